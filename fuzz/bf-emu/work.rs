//! Work queue entries: any bytes are an entry or an error, on a queue of any kind.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (queue, bytes) = input;
    bf_emu::fuzzing::work(bytes, queue);
});
