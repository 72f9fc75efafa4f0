//! Announcements of keys and of exports. Any bytes under a valid seal are a message or an error,
//! and encoding a message again gives an equal message. Bytes without the seal are an error.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use xgvmi_pool::{Announcement, Body, Seal, Secret};

/// The head of every message, so most inputs pass the check of it.
const HEAD: &[u8] = b"XGVMIANN\x01\0";

/// Maximum number of keys of a message that is encoded again. A few bytes may name a million keys,
/// whose encoding takes seconds.
const KEYS_MAX: usize = 1 << 12;

fuzz_target!(|input: &[u8]| {
    // The unmodified input. A fuzzer does not guess a seal of 16 bytes.
    assert!(Announcement::parse(input, &Seal::OPEN).is_err());

    let secret = Secret::new(&[7; 32]).expect("long enough");
    let seal = secret.seal();
    let mut bytes = HEAD.to_vec();
    bytes.extend(input);
    let sealed = seal.of(&bytes);
    bytes.extend(sealed);
    assert!(
        Announcement::parse(&bytes, &Seal::OPEN).is_err(),
        "another job's"
    );
    let Ok(announcement) = Announcement::parse(&bytes, &seal) else {
        return;
    };
    if announcement.keys().count() > KEYS_MAX {
        return;
    }
    let again = announcement.to_bytes(&seal);
    let read = Announcement::parse(&again, &seal).expect("what was written");
    match (&announcement.body, &read.body) {
        // Runs in the input may have any order and may overlap. The encoder sorts and merges them.
        (Body::Keys(before), Body::Keys(after)) => {
            let set = |keys: &[xgvmi_pool::Mkey]| -> BTreeSet<u32> {
                keys.iter().map(|key| key.raw()).collect()
            };
            assert_eq!(set(before), set(after));
            assert_eq!(after.len(), set(after).len());
        }
        (before, after) => assert_eq!(before, after),
    }
    assert_eq!(
        (read.gvmi, read.owner, read.sequence),
        (announcement.gvmi, announcement.owner, announcement.sequence)
    );
    assert_eq!(read.to_bytes(&seal), again);
});
