//! Block storage over three targets, two of which are enough: compression, parity and crash-safe commits.
//!
//! A [`Volume`] splits each block, in its compressed form, in two halves and adds their parity. Three [`Target`]s hold
//! one part each. [`service`] runs on a DPU and moves the data of initiators ([`client`]) by DMA.
//!
//! ```
//! use std::sync::Arc;
//! use xgvmi_blk::store::NewTarget;
//! use xgvmi_blk::{Geometry, Id, Role, Store, Target, Volume};
//!
//! # let directory = std::env::temp_dir().join(format!("xgvmi-blk-example-{}", std::process::id()));
//! # std::fs::create_dir_all(&directory)?;
//! let geometry = Geometry::of_size(4096, 1 << 20)?;
//! let mut targets: Vec<Arc<dyn Target>> = Vec::new();
//! for role in Role::HALVES {
//!     let new = NewTarget { geometry, role, volume: Id([7; 16]), complete: true };
//!     targets.push(Arc::new(Store::create_file(&directory.join(role.to_string()), new, None)?));
//! }
//! let volume = Volume::open(targets)?;
//! volume.write(8192, b"two targets are enough")?;
//! volume.detach(Role::FIRST, "for the example");
//! let mut bytes = [0; 22];
//! volume.read(8192, &mut bytes)?;
//! assert_eq!(&bytes, b"two targets are enough");
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod aio;
pub mod block;
pub mod client;
mod code;
mod crc32c;
mod crew;
pub mod disk;
pub mod encryption;
pub mod error;
mod frames;
pub mod fuzzing;
pub mod geometry;
mod layers;
pub mod nbd;
pub mod operate;
mod pipe;
pub mod record;
pub mod remote;
mod roles;
mod say;
pub mod sbc;
pub mod service;
pub mod store;
mod tries;
pub mod vhost;
pub mod volume;

pub use disk::Disk;
pub use encryption::KeyFile;
pub use error::{BlkError, Result};
pub use geometry::{Geometry, Id, Layout, Role, TARGETS_MAX};
pub use layers::Layers;
pub use store::{Store, Target};
pub use volume::Volume;
