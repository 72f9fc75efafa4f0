//! The hardware device: keys, aliases and a work queue of an mlx5 adapter, through libibverbs and
//! libmlx5.
//!
//! DEVX commands create keys and aliases. UMR work requests bind and invalidate keys. This module
//! writes them into its own queue pair, which is connected to itself and has no other user. A chain
//! of requests costs one doorbell and one completion.

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
mod identity;
mod mkey;
mod mmio;
mod parts;
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
mod send_verbs;
mod short_lock;
pub mod steps;
mod template;
mod thread;
mod wqe;

pub use device::{Mlx5Device, Mlx5Options};
pub use fork::Quick;
pub use form::Form;
pub use function::Function;
pub use proof::ProofStep;
pub use proofs::{FormFailure, OnFailure, Outcome, Proof, Prove};
pub use read::ReadError;
pub use send::Post;
pub use thread::{number as thread_number, pointer as thread_mark};
// Types of the arguments of `Mlx5Device::open`.
pub use mlx5dv_sys::{LoadError, Mlx5Lib, ibv_context, ibv_pd};
// For callers that read the registration of a region from another library's structures.
pub use mlx5dv_sys::ibv_mr;
