//! Files that assign execution units to programs: any bytes are read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = flexio::fuzzing::resources("app", input);
});
