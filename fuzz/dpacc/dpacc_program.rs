//! Linked device programs and their debug information: any bytes are read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = dpacc::fuzzing::program(input, &["kernel", "main", "nothing"]);
});
