//! Pooled memory keys for DPU-offloaded communication: the host binds a buffer to a key that it made
//! long ago, in about a microsecond; the DPU finds its alias of that key in a map.
//!
//! # Words
//! - **mkey**: memory key, a 24-bit index and an 8-bit tag, `index << 8 | tag`. **lkey** and
//!   **rkey** are what work requests call it locally and remotely.
//! - **gvmi**: a function of the adapter, also vHCA id. Each has key numbers of its own.
//! - **KLM**: an entry (length, key, address) of the list that an indirect mkey translates by.
//! - **UMR**: the work request that rewrites an mkey: **bind** makes it stand for a region,
//!   **invalidate** makes it free.
//! - **export**: a bound key, to be sent to the DPU with its gvmi. **alias**: the DPU's own key that
//!   stands for it. The alias outlives the binding: of a key that is bound again it reaches the new
//!   region, of a free one it reaches nothing.
//! - **lease**: a free key in somebody's hands. **pin**: an alias in somebody's hands.
//!
//! # Rooms
//! [`HostHooks`] and [`DpuHooks`] are the public face. Behind them [`MkeyPool`] and [`AliasMap`]
//! decide, by the numbers of [`PoolPolicy`] and [`AliasPolicy`], and [`MkeyDevice`] and
//! [`AliasDevice`] do. The crate names no UCX type, and without its feature `mlx5` it holds no unsafe
//! code and calls no foreign function.
//!
//! ```
//! use std::sync::Arc;
//! use xgvmi_pool::sim::SimFabric;
//! use xgvmi_pool::{AliasPolicy, DpuHooks, Gvmi, HostHooks, Lkey, OwnerUuid, PoolPolicy, Region};
//! use xgvmi_pool::{RemoteKey, VirtAddr};
//!
//! // A simulated adapter; on a real one these are two `mlx5::Mlx5Device`s of two processes.
//! let fabric = SimFabric::new();
//! let host = HostHooks::open(fabric.function(Gvmi::new(1)), PoolPolicy::default())?;
//! let dpu = DpuHooks::open(fabric.function(Gvmi::new(2)), AliasPolicy::default())?;
//!
//! let region = Region::new(VirtAddr::new(0x7f00_0000_1000), 16 << 10, Lkey::from_raw(0x1234))?;
//! let export = host.export(region)?;
//! // Travels to the DPU: function, key, and who exported it.
//! let owner = OwnerUuid::new(0x5eed);
//! let key = RemoteKey { gvmi: export.gvmi(), mkey: export.mkey(), owner };
//! let alias = dpu.attach(key)?;
//! assert!(fabric.reach(Gvmi::new(2), alias.lkey(), region.addr(), region.len()).is_ok());
//!
//! host.release(export)?;
//! assert!(fabric.reach(Gvmi::new(2), alias.lkey(), region.addr(), 1).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(not(feature = "mlx5"), forbid(unsafe_code))]
#![deny(unsafe_code)]

mod affinity;
mod alias;
mod announce;
mod binding;
mod core;
mod device;
mod error;
mod event;
mod expiry;
mod export;
mod flight;
mod gate;
mod hooks;
mod keeper;
mod key;
mod latency;
#[cfg(feature = "mlx5")]
#[expect(
    unsafe_code,
    reason = "the one door to the adapter: libibverbs, libmlx5 and its rings"
)]
pub mod mlx5;
#[cfg(all(test, loom))]
mod models;
mod names;
mod policy;
mod pool;
mod region;
mod replay;
mod secret;
mod shelf;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod slots;
mod span;
mod spread;
mod stats;
mod sync;
mod tray;
mod unpinned;
mod upkeep;
mod waiters;

pub use alias::{AliasMap, AliasRef, Prepared};
pub use announce::{AnnounceError, Announcement, Body, Inbox, RemoteExport};
pub use device::{Alias, AliasDevice, MkeyDevice, MkeyLimits, MkeySpec, UmrOp};
pub use error::{AliasError, ChainError, DeviceError, PoolError, ReleaseError, Rest};
pub use event::{Observer, PoolEvent};
pub use export::{BoundKey, Export, Lease};
pub use hooks::{DpuHooks, HostHooks};
pub use key::{AccessKey, Gvmi, Lkey, Mkey, MkeyIndex, OwnerUuid, RemoteKey, Rkey, Tag, VirtAddr};
pub use latency::{Latency, PoolLatencies};
pub use policy::{AliasPolicy, Invalidate, OnFull, PolicyError, PoolPolicy, ReuseOrder};
pub use pool::{MkeyPool, PoolLevels};
pub use region::{Region, RegionError};
pub use replay::{News, ReplayFilter};
pub use secret::{Seal, Secret, SecretError};
pub use span::Span;
pub use stats::{AliasStats, PoolStats};
pub use upkeep::Upkeep;
