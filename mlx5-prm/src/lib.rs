//! Wire layouts of mlx5 devices, and nothing else: no I/O, no allocation, no unsafe.
//!
//! Two programs meet at these bytes and nowhere else: the pool, which writes them to a device, and
//! the emulated device, which reads them. Each layout is therefore tested against golden bytes that
//! neither of the two produced: what stock rdma-core writes.
//!
//! # Words
//! - **PRM**: the programmer's reference manual of the adapter; a bit offset below is the PRM's.
//! - **mailbox**: a command's input or output, big-endian.
//! - **mkey**: memory key, a 24-bit index and an 8-bit variant ("tag") in the low byte.
//! - **MTT / KLM / KSM**: the three ways of an mkey to translate an address: to pages; to a list of
//!   (length, key, address) entries; to such a list with one fixed entry size.
//! - **UMR**: user-mode memory registration, a work request that rewrites an mkey.
//! - **gvmi**: guest virtual machine id, also vHCA id: a function of the adapter.
//! - **alias**: an mkey of one vHCA that stands for an mkey of another.
//!
//! Offsets were checked with the interface files of rdma-core (`providers/mlx5/mlx5_ifc.h`,
//! `mlx5dv.h`, `wqe.h`) and UCX (`ib_mlx5_ifc.h`).
#![no_std]
#![forbid(unsafe_code)]

pub mod cap;
pub mod cmd;
pub mod cq;
pub mod cqe;
pub mod field;
pub mod mkey;
pub mod qp;
pub mod rmp;
pub mod umr;
pub mod vport;
pub mod wqe;
pub mod xgvmi;

pub use field::Field;
