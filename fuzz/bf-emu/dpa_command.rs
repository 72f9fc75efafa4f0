//! Requests to the runner of the DPA, and the fields of commands: any bytes are read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| bf_emu::fuzzing::dpa_command(input));
