//! Registered memory, queue pairs and copies through aliases, for services on a DPU and their clients on the host. The
//! crate has no protocol: the caller decides how a client passes its keys to a service.
//!
//! | Side | Type | Purpose |
//! |---|---|---|
//! | host | [`HostKeys`] | registers memory and exports it, by a pooled key or by a key of its own |
//! | host | [`Held`] | one exported range; its drop ends the access of the DPU |
//! | host | [`Unkeyed`] | the registration of a range whose access has ended |
//! | host | [`PerProcess`] | one adapter for all sessions of a process |
//! | DPU | [`Adapter`] | open function with the device for [`xgvmi_pool::DpuHooks`] |
//! | DPU | [`HostAliases`] | the aliases of the keys of all connected hosts; those of an owner end with its last connection |
//! | DPU | [`Access`] | one alias of a host's key |
//! | DPU | [`Registered`], [`Buffer`] | memory of the DPU that the adapter may read and write |
//! | DPU | [`Engine`] | one copy at a time, by the DMA engine or by RDMA |
//! | DPU | [`Mover`] | chains of RDMA requests with one doorbell and one completion |
//! | both | [`Reads`], [`Shown`] | a connection to another machine: each side reads memory that the other one shows |
//! | DPU | [`Notices`] | messages from and to a program on the device |
//!
//! Glossary: an *alias* is a local key of the DPU's function that refers to a key of the host's function. [`Engine`] and
//! [`Mover`] take an alias and a *virtual address of the host*; the adapter checks both. Lengths are bytes. Each wait has
//! a limit, after which the call returns [`VerbsError::Late`].
//!
//! Threads: [`Adapter`] and [`HostKeys`] may be used from any number of threads at a time. An [`Engine`] or a [`Mover`]
//! may move between threads and serves one of them at a time.
//!
//! Facts: the operations of the DMA engine and the flag that asks for them are those of `mlx5dv.h`
//! (`MLX5DV_QP_EX_WITH_MEMCPY`, `mlx5dv_wr_memcpy`); the state changes of a queue pair are those of `ibv_modify_qp(3)`.
//!
//! ```no_run
//! use xgvmi_pool::{Lkey, VirtAddr};
//! use xgvmi_verbs::{Adapter, Buffer, Direction, Engine, EngineOptions, VerbsError};
//!
//! /// First byte of the host's memory at `remote`, which `alias` refers to.
//! fn first_byte(alias: Lkey, remote: VirtAddr) -> Result<u8, VerbsError> {
//!     let adapter = Adapter::open(None)?;
//!     let mut buffer = Buffer::new(&adapter, 4096)?;
//!     let mut engine = Engine::new(&adapter, EngineOptions::default())?;
//!     engine.copy(Direction::FromHost, &mut buffer, (alias, remote), 1)?;
//!     Ok(buffer.bytes()[0])
//! }
//! ```

mod adapter;
mod aliases;
mod direction;
mod engine;
mod error;
mod host;
mod memory;
mod mover;
mod notices;
mod process;
mod queue_pair;
mod reads;
mod shown;

pub use adapter::{Adapter, Port};
pub use aliases::{Access, HostAliases, Keys};
pub use direction::Direction;
pub use engine::{Engine, EngineOptions, Transport};
pub use error::{Forked, VerbsError};
pub use host::{Held, HostKeys, HostOptions, KeyKind, Rights, Unkeyed};
pub use memory::{Buffer, Registered};
pub use mover::{Mover, MoverOptions, Piece};
pub use notices::Notices;
pub use process::PerProcess;
pub use queue_pair::Endpoint;
pub use reads::Reads;
pub use shown::{Shown, Slot};
