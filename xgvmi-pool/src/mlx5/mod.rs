//! The real device: keys, aliases and a work queue of an mlx5 adapter, over libibverbs and libmlx5.
//!
//! Keys and aliases are made by DEVX commands. Binds and invalidations are UMR work requests that
//! this module writes itself into a queue pair of its own, connected to itself, which nobody else
//! posts to: a chain of them costs one doorbell and one completion.

mod alias;
mod caps;
mod command;
mod connect;
mod cq_ring;
mod device;
mod fork;
mod form;
mod function;
mod gid;
mod mkey;
mod mmio;
mod progress;
mod proof;
mod proofs;
mod queue;
mod queues;
mod read;
mod reader;
mod receive;
mod record;
mod register;
mod send;
mod send_ring;
mod single;
pub mod steps;
mod wqe;

pub use device::{Mlx5Device, Mlx5Options};
pub use form::Form;
pub use function::Function;
pub use proof::ProofStep;
pub use proofs::{FormFailure, OnFailure, Outcome, Proof, Prove};
pub use read::ReadError;
pub use send::Post;
// What `Mlx5Device::open` is called with.
pub use mlx5dv_sys::{LoadError, Mlx5Lib, ibv_context, ibv_pd};
// For those who look a region's registration up in somebody else's structures.
pub use mlx5dv_sys::ibv_mr;
