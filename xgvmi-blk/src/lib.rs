//! Block storage over three targets, two of which are enough: compression, parity and crash-safe commits.
//!
//! A [`Volume`] splits each block, in its compressed form, in two halves and adds their parity. Three [`Target`]s hold
//! one part each.

pub mod block;
pub mod error;
pub mod fuzzing;
pub mod geometry;
pub mod nbd;
pub mod operate;
pub mod record;
pub mod remote;
pub mod sbc;
pub mod store;
pub mod volume;

pub use error::{BlkError, Result};
pub use geometry::{Geometry, Id, Role};
pub use store::{Store, Target};
pub use volume::Volume;
