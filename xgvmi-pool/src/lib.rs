//! Pooled memory keys for DPU-offloaded communication. The host binds an existing key to a buffer
//! in about a microsecond. The DPU finds its alias of that key in a map.
//!
//! # Terms
//! - **mkey**: memory key, a 24-bit index and an 8-bit tag, `index << 8 | tag`. A work request
//!   calls it **lkey** for local memory and **rkey** for remote memory.
//! - **gvmi**: a function of the adapter, also called vHCA id. Key numbers are per function.
//! - **KLM**: an entry (length, key, address) of an indirect mkey's translation list.
//! - **UMR**: the work request that rewrites an mkey. **bind** makes the key refer to a region,
//!   **invalidate** removes the reference.
//! - **export**: a bound key with its gvmi, sent to the DPU. **alias**: the DPU's own key for it.
//!   The alias outlives the binding: after the next bind it gives access to the new region, and
//!   after an invalidation to nothing.
//! - **lease**: exclusive use of a pooled key. **pin**: a reference that protects an alias from
//!   eviction.
//!
//! # Structure
//! [`HostHooks`] and [`DpuHooks`] are the public interface. [`MkeyPool`] and [`AliasMap`] make the
//! decisions, with the limits in [`PoolPolicy`] and [`AliasPolicy`]. [`MkeyDevice`] and
//! [`AliasDevice`] execute them. The crate names no UCX type. Without its feature `mlx5` it
//! contains no unsafe code and calls no foreign function.
//!
//! ```
//! use std::sync::Arc;
//! use xgvmi_pool::sim::SimFabric;
//! use xgvmi_pool::{AliasPolicy, DpuHooks, Gvmi, HostHooks, Lkey, OwnerUuid, PoolPolicy, Region};
//! use xgvmi_pool::{RemoteKey, VirtAddr};
//!
//! // A simulated adapter. On a real one, use two `mlx5::Mlx5Device`s in two processes.
//! let fabric = SimFabric::new();
//! let host = HostHooks::open(fabric.function(Gvmi::new(1)), PoolPolicy::default())?;
//! let dpu = DpuHooks::open(fabric.function(Gvmi::new(2)), AliasPolicy::default())?;
//!
//! let region = Region::new(VirtAddr::new(0x7f00_0000_1000), 16 << 10, Lkey::from_raw(0x1234))?;
//! let export = host.export(region)?;
//! // The message to the DPU: function, key, and exporter.
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
mod alias_entry;
mod alias_table;
mod announce;
mod backoff;
mod binding;
mod core;
mod device;
mod error;
mod event;
mod expiry;
mod export;
mod flight;
mod free_list;
mod gate;
mod hooks;
mod idle_watch;
mod keeper;
mod key;
mod latency;
mod local_cache;
mod long_keys;
#[cfg(feature = "mlx5")]
#[expect(
    unsafe_code,
    reason = "access to the adapter: libibverbs, libmlx5 and its rings"
)]
pub mod mlx5;
#[cfg(all(test, loom))]
mod models;
mod parallel;
mod policy;
mod pool;
mod region;
mod replay;
mod secret;
#[cfg_attr(
    feature = "mlx5",
    expect(unsafe_code, reason = "the signal mask of new threads")
)]
mod signals;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod slots;
mod span;
mod stats;
mod sync;
mod tags;
mod unpinned;
mod upkeep;
mod use_clock;
mod waiters;

pub use alias::AliasMap;
pub use alias_entry::{AliasPin, AliasRef};
pub use announce::{AnnounceError, Announcement, Body, Inbox, RemoteExport};
pub use backoff::Backoff;
pub use device::{Alias, AliasDevice, MkeyDevice, MkeyLimits, MkeySpec, QuickPath, UmrOp};
pub use error::{AliasError, ChainError, DeviceError, PolicyError, PoolError, ReleaseError, Rest};
pub use event::{Observer, PoolEvent};
pub use export::{BoundKey, Export, Lease};
pub use hooks::{DpuHooks, HostHooks};
pub use key::{AccessKey, Gvmi, Lkey, Mkey, MkeyIndex, OwnerUuid, RemoteKey, Rkey, Tag, VirtAddr};
pub use latency::{Latency, PoolLatencies};
pub use policy::{AliasPolicy, Invalidate, OnFull, PoolPolicy, ReuseOrder};
pub use pool::{MkeyPool, PoolLevels};
pub use region::{Region, RegionError};
pub use replay::{News, ReplayFilter};
pub use secret::{Seal, Secret, SecretError};
pub use span::Span;
pub use stats::{AliasStats, PoolStats, Prepared};
pub use upkeep::Upkeep;
