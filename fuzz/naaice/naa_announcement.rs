//! The message of a peer that announces memory regions. What is read must be what was written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use naaice::wire::Message;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::parse(bytes) {
        assert_eq!(message.to_bytes(), bytes);
    }
});
