//! Packets of RoCE v2: any bytes behind the UDP header are a packet or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| bf_emu::fuzzing::packet(bytes));
