//! Messages of the connection manager between machines: any bytes of a datagram to queue pair 1 are a message or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| bf_emu::fuzzing::management(bytes));
