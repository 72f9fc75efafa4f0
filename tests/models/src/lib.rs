//! Models of the library's registrations.
//!
//! The rest of the library calls UCX and cannot be built for loom. Empty in other builds.
#![cfg(loom)]

/// The types that the table needs.
mod abi {
    use std::ffi::c_void;

    pub(crate) type MdHandle = *mut c_void;
    pub(crate) type MemHandle = *mut c_void;
}

/// As in the library.
mod memh {
    pub(crate) const fn mix(address: usize) -> u64 {
        let product = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ (product >> 32)
    }
}

/// The same.
mod rkey {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Memory {
        pub(crate) address: usize,
        pub(crate) length: usize,
        pub(crate) lkey: u32,
    }
}

// Its tests are elsewhere for rustfmt; the library formats it.
#[rustfmt::skip]
#[path = "../../../uct-plugin/src/registrations.rs"]
#[expect(dead_code, reason = "the models call a part of it")]
mod registrations;
