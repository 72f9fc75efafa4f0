//! All bytes of an NBD client.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::LazyCell;
use xgvmi_blk::{fuzzing, nbd::Export};

thread_local! {
    /// One volume for all inputs: a client may find anything in it.
    static EXPORT: LazyCell<Export> = LazyCell::new(fuzzing::export);
}

fuzz_target!(|bytes: &[u8]| EXPORT.with(|export| fuzzing::connection(export, bytes)));
