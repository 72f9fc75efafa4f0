//! Messages between an initiator and a service.

#![no_main]

use libfuzzer_sys::fuzz_target;
use xgvmi_blk::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::service(bytes));
