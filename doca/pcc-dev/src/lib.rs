//! Device side of programmable congestion control: C headers, device library, layouts and limits.
//!
//! # A process
//!
//! A program is the user's C and the library ([`SOURCES`]). The device calls it by these symbols, with 64-bit arguments:
//!
//! | symbol | arguments | result |
//! |---|---|---|
//! | `__pcc_port` | port, Gb/s, planes | 0 |
//! | `__pcc_start` | | mask of the types of events that the program does not want |
//! | `__pcc_event` | address of a block ([`layout::Block`]) | 0; the block has the answer |
//! | `__pcc_set_params` | port, slot, first parameter, their number, address of the values | 0, or 1: refused |
//! | `__pcc_mailbox` | request, its bytes, most bytes of the response, response | 1: refused; else the response's bytes, shifted by 32 |
//! | `__pcc_query` | a [`Query`], port, slot, number of a parameter or counter | the value |
//! | `__pcc_np_packet` | address of a probe ([`layout::Probe`]) | 0: the answer is valid |
//!
//! The ports come first, then the start, then all others. `__pcc_port` comes again when a port has changed. The program calls
//! the device by [`Service`]s: an `ecall` with the number in `t0` on the DPA, and a function on the host, which
//! `__pcc_attach(owner, function)` sets before all others.
#![forbid(unsafe_code)]

pub mod fxp;
pub mod layout;
mod library;
pub mod limits;

pub use library::{
    DEVICE_SOURCES, HEADERS, HOST_HEADERS, HOST_SOURCES, LIBRARIES, NP_SOURCES, Query, SOURCES,
    Service,
};
