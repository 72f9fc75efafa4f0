//! Memory of a virtual machine, with the queue that the device serves.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::LazyCell;
use std::sync::Arc;
use xgvmi_blk::{Disk, fuzzing};

thread_local! {
    /// One volume for all inputs: a guest may find anything in it.
    static DISK: LazyCell<Arc<dyn Disk>> = LazyCell::new(fuzzing::disk);
}

fuzz_target!(|bytes: &[u8]| DISK.with(|disk| fuzzing::guest_memory(disk, bytes)));
