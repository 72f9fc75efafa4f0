//! Ioctls: any calls with any attributes on one context.
#![no_main]

use arbitrary::Arbitrary;
use xgvmi_fuzz::{Attr, Device, limited};
use libfuzzer_sys::fuzz_target;

/// Calls of one input.
const CALLS_MAX: usize = 16;

#[derive(Debug, Arbitrary)]
struct Call {
    object: u8,
    object_of_driver: bool,
    method: u8,
    method_of_driver: bool,
    attrs: Vec<Attr>,
}

fn number(low: u8, of_driver: bool) -> u16 {
    u16::from(low) | u16::from(of_driver) << 12
}

fuzz_target!(|calls: Vec<Call>| {
    let mut device = Device::open();
    for call in calls.iter().take(CALLS_MAX) {
        let object = number(call.object, call.object_of_driver);
        let method = number(call.method, call.method_of_driver);
        device.call(object, method, limited(&call.attrs));
    }
});
