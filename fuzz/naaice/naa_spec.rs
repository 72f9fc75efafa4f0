//! The specification of accelerators in the environment. A fault has a position inside the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use naaice::spec;

fuzz_target!(|text: &str| {
    match spec::parse(text) {
        Ok(entries) => assert_eq!(entries.len(), text.split(',').count()),
        Err(fault) => {
            assert!((1..=4).contains(&fault.field) && fault.entry >= 1);
            assert!(fault.column >= 1 && fault.column <= text.chars().count() + 2);
        }
    }
});
