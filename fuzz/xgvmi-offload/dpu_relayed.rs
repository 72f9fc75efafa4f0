//! DPU_RELAYED.

#![no_main]

use libfuzzer_sys::fuzz_target;
use xgvmi_offload::fuzzing::{Message, parse};

fuzz_target!(|bytes: &[u8]| {
    let _ = parse(Message::DpuRelayed, bytes);
});
