//! Content of a secret's file: any bytes are a secret, or are too few or too many. Leading and
//! trailing white space makes no difference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xgvmi_pool::{AccessKey, Secret, SecretError};

fuzz_target!(|input: &[u8]| {
    let trimmed = input.trim_ascii();
    let is_secret = (Secret::BYTES_MIN..=Secret::BYTES_MAX).contains(&trimmed.len());
    match Secret::from_text(input) {
        Ok(secret) => {
            assert!(is_secret);
            assert_ne!(secret.access_key(), AccessKey::UCX_COMPATIBLE);
            let spaced = [b" \t", input, b"\r\n\n"].concat();
            let again = Secret::from_text(&spaced).expect("the same secret");
            assert_eq!(again.access_key(), secret.access_key());
            let mut other = trimmed.to_vec();
            other[0] ^= 0x80;
            let other = Secret::new(&other).expect("as long");
            assert_ne!(other.access_key(), secret.access_key());
        }
        Err(SecretError::Length { len, .. }) => {
            assert!(!is_secret && len == trimmed.len());
        }
        Err(other) => panic!("{other}"),
    }
});
