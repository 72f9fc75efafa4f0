//! A job at a service process that receives any messages in any order.

#![no_main]

use libfuzzer_sys::fuzz_target;
use xgvmi_offload::fuzzing::job;

fuzz_target!(|bytes: &[u8]| {
    let _ = job(bytes);
});
