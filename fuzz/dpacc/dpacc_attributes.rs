//! Files of attributes of device programs: any text is read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &str| {
    let _ = dpacc::fuzzing::attributes(input);
});
