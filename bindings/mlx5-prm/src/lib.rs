//! Wire layouts of mlx5 devices: commands, keys, work requests and completions. The crate does no I/O, allocates nothing, and contains no unsafe code.
//!
//! The pool writes these bytes to a device and the emulated device reads them. Each layout is tested against golden
//! bytes of a third party: the bytes that stock rdma-core writes.
//!
//! ```
//! use mlx5_prm::mkey::Klm;
//!
//! // One entry of an indirect key: 16 KiB at an address, through another key.
//! let entry = Klm { byte_count: 16 << 10, mkey: 0x1234, address: 0x7f00_0000_1000 };
//! let bytes = entry.to_bytes();
//! assert_eq!(bytes[..4], [0, 0, 0x40, 0]);
//! assert_eq!(Klm::parse(&bytes), entry);
//! ```
//!
//! # Terms
//! - **PRM**: Programmer's Reference Manual of the adapter. Bit offsets in this crate are the PRM's.
//! - **mailbox**: the input or output of a firmware command, big-endian.
//! - **mkey**: memory key, a 24-bit index and an 8-bit tag (variant) in the low byte.
//! - **MTT, KLM, KSM**: the three translations of an mkey: a page list; a list of (length, key, address) entries; a
//!   list of (key, address) entries of equal length.
//! - **UMR**: user-mode memory registration, a work request that rewrites an mkey.
//! - **gvmi**: a function of the adapter, also called vHCA id.
//! - **alias**: an mkey of one function that stands for an mkey of another function.
//!
//! The offsets match the interface files of rdma-core (`providers/mlx5/mlx5_ifc.h`, `mlx5dv.h`, `wqe.h`) and UCX
//! (`ib_mlx5_ifc.h`).
#![no_std]
#![forbid(unsafe_code)]

pub mod cap;
pub mod cmd;
pub mod cq;
pub mod cqe;
pub mod dpa;
pub mod field;
pub mod mkey;
pub mod qp;
pub mod rmp;
pub mod umr;
pub mod vport;
pub mod wqe;
pub mod xgvmi;

pub use field::Field;
