//! Objects of UCC that the component allocates: UCC's part, then the component's own.

use crate::layout::OBJECT_BYTES;
use std::ffi::c_void;

/// An object of UCC that the component allocates: UCC's part, then the component's part.
#[repr(C, align(16))]
pub(crate) struct Object<T> {
    base: [u8; OBJECT_BYTES],
    pub(crate) own: T,
}

/// Allocates a zeroed base followed by the component's part.
pub(crate) fn allocate<T>(own: T) -> *mut c_void {
    let object = Object {
        base: [0; OBJECT_BYTES],
        own,
    };
    Box::into_raw(Box::new(object)).cast()
}

/// # Safety
/// `object` is from [`allocate`] with the same type, and has no user left.
pub(crate) unsafe fn free<T>(object: *mut c_void) {
    // SAFETY: the caller upholds the contract.
    drop(unsafe { Box::from_raw(object.cast::<Object<T>>()) });
}

/// # Safety
/// `object` is from [`allocate`] with the same type, and is alive.
pub(crate) unsafe fn own<'a, T>(object: *mut c_void) -> &'a T {
    // SAFETY: the caller upholds the contract.
    unsafe { &(*object.cast::<Object<T>>()).own }
}
