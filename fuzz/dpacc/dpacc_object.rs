//! Object files and archives of device code: any bytes are read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = dpacc::fuzzing::object(input);
});
