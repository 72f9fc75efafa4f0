//! Errors of this crate: which call, which object, which numbers.

use std::time::Duration;

use crate::key::{Gvmi, Mkey};

/// What a device could not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The adapter or the kernel refused a command.
    #[error(
        "{call} of {object} refused: status {status:#x}, syndrome {syndrome:#x}, errno {errno}"
    )]
    Refused {
        /// The command.
        call: &'static str,
        /// What it was about.
        object: String,
        /// The adapter's status byte, zero if the command did not reach it.
        status: u8,
        /// The adapter's syndrome, zero if the command did not reach it.
        syndrome: u32,
        /// The kernel's error number, zero if it had none.
        errno: i32,
    },
    /// The adapter has no room for another object of the kind (`CREATE_MKEY` status 0x8).
    #[error("{call} exceeds the limits of the device: syndrome {syndrome:#x}")]
    LimitsExceeded {
        /// The command.
        call: &'static str,
        /// The adapter's syndrome.
        syndrome: u32,
    },
    /// A work request ended in an error completion.
    #[error("{request} ended with syndrome {syndrome:#x}, vendor {vendor:#x}")]
    Completion {
        /// The work request.
        request: String,
        /// Syndrome of the completion.
        syndrome: u8,
        /// Vendor's syndrome of the completion.
        vendor: u8,
    },
    /// A completion did not come in time. Whether the request was carried out is not known.
    #[error("no completion of {request} within {limit:?}")]
    TimedOut {
        /// The work request.
        request: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The queue that carries requests is being rebuilt, or could not be.
    #[error("the work queue is down: {reason}")]
    QueueDown {
        /// Why.
        reason: String,
    },
    /// The device cannot do what was asked, whatever its state.
    #[error("not supported by the device: {what}")]
    Unsupported {
        /// What it cannot do.
        what: String,
    },
    /// The device was closed.
    #[error("the device is closed")]
    Closed,
    /// The process was forked since: the device belongs to the parent.
    #[error("the device belongs to the parent process {parent}")]
    Forked {
        /// The process that opened it.
        parent: u32,
    },
}

impl DeviceError {
    /// True if the adapter is full: an ordinary answer, to which the cap of the pool gives way.
    #[must_use]
    pub const fn is_limit(&self) -> bool {
        matches!(self, Self::LimitsExceeded { .. })
    }
}

/// A chain of work requests that did not run to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{done} requests of the chain are complete, the next one failed: {source}")]
pub struct ChainError {
    /// How many requests from the front are known to have taken effect.
    pub done: usize,
    /// What became of the others.
    pub rest: Rest,
    /// What stopped the chain.
    pub source: DeviceError,
}

/// What is known of the requests of a chain behind those that are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// None of them took effect, and none will.
    NotDone,
    /// Each of them may have taken effect. None will once another chain has been posted.
    Unknown,
}

/// Why the pool gave no bound key. The caller takes its other path; the pool is as usable as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// All keys that the pool may have are in use.
    #[error("all {mkeys_max} keys of the pool are in use")]
    Full {
        /// The cap in force.
        mkeys_max: u32,
    },
    /// All keys were in use, and none came back in time.
    #[error("all {mkeys_max} keys of the pool are in use and none was released within {limit:?}")]
    WaitedTooLong {
        /// The cap in force.
        mkeys_max: u32,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The memory needs more KLM entries than a key of the pool has.
    #[error("memory of {len} bytes needs {entries} KLM entries, a pooled key has {entries_max}")]
    RegionTooLong {
        /// Its length in bytes.
        len: u64,
        /// Entries it needs.
        entries: u64,
        /// Entries there are.
        entries_max: u32,
    },
    /// The device could not make a key.
    #[error("cannot create a key: {0}")]
    Create(#[source] DeviceError),
    /// The device could not bind the key. It is not in use by anybody.
    #[error("cannot bind {mkey:?}: {source}")]
    Bind {
        /// The key.
        mkey: Mkey,
        /// What the device said.
        source: DeviceError,
    },
    /// There is no memory for a pool of this size.
    #[error("no memory for a pool of {mkeys_max} keys, {bytes} bytes")]
    NoMemory {
        /// Keys that the pool may have.
        mkeys_max: u32,
        /// Bytes that it takes.
        bytes: usize,
    },
    /// The pool was closed.
    #[error("the pool is closed")]
    Closed,
    /// The process was forked since: the pool is the parent's.
    #[error("the pool belongs to the parent process")]
    Forked,
    /// The policy contradicts itself or the device.
    #[error("policy: {0}")]
    Policy(#[from] crate::policy::PolicyError),
}

impl PoolError {
    /// True if the pool is full, which passes by itself as keys come back.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::WaitedTooLong { .. })
    }
}

/// A released key that is not known to be dead: the region may still be reachable through it. The
/// key is lost to the pool and will never be handed out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{mkey:?} could be neither invalidated ({invalidate}) nor destroyed ({destroy})")]
pub struct ReleaseError {
    /// The key.
    pub mkey: Mkey,
    /// What the device said to the invalidation.
    pub invalidate: DeviceError,
    /// What it said to the destruction.
    pub destroy: DeviceError,
}

/// Why there is no alias of a remote key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AliasError {
    /// The device could not make the alias: the key is gone, closed to us, or the access key is
    /// wrong.
    #[error("cannot create an alias of {mkey:?} of {gvmi:?}: {source}")]
    Create {
        /// Function that owns the key.
        gvmi: Gvmi,
        /// The key.
        mkey: Mkey,
        /// What the device said.
        source: DeviceError,
    },
    /// All aliases that the map may hold are in use.
    #[error("all {aliases_max} aliases of the map are in use")]
    Full {
        /// The bound.
        aliases_max: u32,
    },
    /// There is no memory for another alias in the map.
    #[error("no memory for another alias in the map")]
    NoMemory,
    /// Another thread makes the alias and did not come to an end in time.
    #[error("another thread's alias of {mkey:?} of {gvmi:?} was not ready within {limit:?}")]
    WaitedTooLong {
        /// Function that owns the key.
        gvmi: Gvmi,
        /// The key.
        mkey: Mkey,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The map was closed.
    #[error("the alias map is closed")]
    Closed,
    /// The process was forked since: the map is the parent's.
    #[error("the alias map belongs to the parent process")]
    Forked,
    /// The policy contradicts itself.
    #[error("policy: {0}")]
    Policy(#[from] crate::policy::PolicyError),
}
