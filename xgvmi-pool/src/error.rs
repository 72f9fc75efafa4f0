//! Errors of this crate. Each names the call, the object and the numbers.

use std::time::Duration;

use crate::key::{Gvmi, Mkey};

/// A failure of a device.
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
        /// The object of the command.
        object: String,
        /// The adapter's status byte, zero if the command did not reach it.
        status: u8,
        /// The adapter's syndrome, zero if the command did not reach it.
        syndrome: u32,
        /// The kernel's error number, zero if there was none.
        errno: i32,
    },
    /// The adapter cannot hold another object of this kind (`CREATE_MKEY` status 0x8).
    #[error("{call} exceeds the limits of the device: status 0x8, syndrome {syndrome:#x}")]
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
        /// Vendor syndrome of the completion.
        vendor: u8,
    },
    /// A completion did not arrive in time. The request may or may not have been executed.
    #[error("no completion of {request} within {limit:?}")]
    TimedOut {
        /// The work request.
        request: String,
        /// Time limit of the wait.
        limit: Duration,
    },
    /// The queue that carries requests is under reconstruction, or its reconstruction failed.
    #[error("the work queue is down: {reason}")]
    QueueDown {
        /// The reason.
        reason: String,
    },
    /// The device does not support the operation in any state.
    #[error("not supported by the device: {what}")]
    Unsupported {
        /// The unsupported operation.
        what: String,
    },
    /// The device was closed.
    #[error("the device is closed")]
    Closed,
    /// The process was forked after the device was opened. The device belongs to the parent.
    #[error("the device belongs to the parent process {parent}")]
    Forked {
        /// The process that opened it.
        parent: u32,
    },
}

impl DeviceError {
    /// True if the adapter is full. This is an ordinary result: the pool lowers its cap.
    #[must_use]
    pub const fn is_limit(&self) -> bool {
        matches!(self, Self::LimitsExceeded { .. })
    }
}

/// A chain of work requests that did not complete as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{done} requests of the chain are complete, the next one failed: {source}")]
pub struct ChainError {
    /// Number of requests at the front of the chain that are known to have taken effect.
    pub done: usize,
    /// State of the other requests.
    pub rest: Rest,
    /// The error that stopped the chain.
    pub source: DeviceError,
}

/// The known state of the requests behind the completed ones in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// None of them took effect, and none will.
    NotDone,
    /// Each of them may have taken effect. None will take effect after another chain was posted.
    Unknown,
}

/// The reason why the pool returned no bound key. The caller uses its other path. The pool remains
/// usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// All keys that the pool may have are in use.
    #[error("all {mkeys_max} keys of the pool are in use")]
    Full {
        /// The cap in force.
        mkeys_max: u32,
    },
    /// All keys are in use, and the device recently refused another one.
    #[error(
        "the device refused another key, with {mkeys} keys of the pool in use: {source}; the pool asks again in \
         {retry_in:?} or later"
    )]
    DeviceFull {
        /// Number of keys when the device refused.
        mkeys: u32,
        /// Time in which the pool does not ask the device for another key, at most 10 seconds.
        retry_in: Duration,
        /// The device's error.
        source: DeviceError,
    },
    /// All keys with entries for such memory are in use.
    #[error(
        "all {keys_max} keys of the pool for memory of many gigabytes or registrations are in use"
    )]
    LongKeysInUse {
        /// Maximum number of such keys.
        keys_max: u32,
    },
    /// All keys were in use, and none was released in time.
    #[error(
        "all {mkeys_max} keys of the pool are in use and none was released within {limit:?}{}",
        also(refusal.as_ref())
    )]
    WaitedTooLong {
        /// The cap in force.
        mkeys_max: u32,
        /// Time limit of the wait.
        limit: Duration,
        /// The device's error, if a refusal of the device lowered the cap.
        refusal: Option<DeviceError>,
    },
    /// The memory needs more KLM entries than a pooled key has.
    #[error("memory of {len} bytes needs {entries} KLM entries, a pooled key has {entries_max}")]
    RegionTooLong {
        /// Length of the memory in bytes.
        len: u64,
        /// Required entries.
        entries: u64,
        /// Entries of a pooled key.
        entries_max: u32,
    },
    /// The device could not create a key.
    #[error("cannot create a key: {0}")]
    Create(#[source] DeviceError),
    /// The device could not bind the key. The key is not in use.
    #[error("cannot bind {mkey:?}: {source}")]
    Bind {
        /// The key.
        mkey: Mkey,
        /// The device's error.
        source: DeviceError,
    },
    /// The process has not enough memory for a pool of this size.
    #[error("no memory for a pool of {mkeys_max} keys, {bytes} bytes")]
    NoMemory {
        /// Maximum number of keys.
        mkeys_max: u32,
        /// Required bytes.
        bytes: usize,
    },
    /// The pool was closed.
    #[error("the pool is closed")]
    Closed,
    /// The process was forked after the pool was opened. The pool belongs to the parent.
    #[error("the pool belongs to the parent process")]
    Forked,
    /// The policy contains an invalid value.
    #[error("policy: {0}")]
    Policy(#[from] PolicyError),
}

/// The part of a message that says why the cap is lower than the policy's.
fn also(refusal: Option<&DeviceError>) -> String {
    refusal.map_or_else(String::new, |error| {
        format!("; the device refused another key: {error}")
    })
}

impl PoolError {
    /// True if the release of a key ends the condition. A pool without keys, to which the device
    /// refused the first one, has none that could be released.
    pub(crate) const fn ends_with_a_release(&self) -> bool {
        self.is_full() && !matches!(self, Self::DeviceFull { mkeys: 0, .. })
    }

    /// True if the pool is full. The condition ends when a key is released, or when the device has
    /// space for another one.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(
            self,
            Self::Full { .. }
                | Self::DeviceFull { .. }
                | Self::LongKeysInUse { .. }
                | Self::WaitedTooLong { .. }
        )
    }
}

/// A released key whose invalidation and destruction both failed. Peers may still reach the region
/// through it. The pool never leases the key again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{mkey:?} could be neither invalidated ({invalidate}) nor destroyed ({destroy})")]
pub struct ReleaseError {
    /// The key.
    pub mkey: Mkey,
    /// The device's error of the invalidation.
    pub invalidate: DeviceError,
    /// The device's error of the destruction.
    pub destroy: DeviceError,
}

/// The reason why the map returned no alias of a remote key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AliasError {
    /// The device could not create the alias: the key no longer exists, it does not allow this
    /// function, or the access key is wrong.
    #[error("cannot create an alias of {mkey:?} of {gvmi:?}: {source}")]
    Create {
        /// Function that owns the key.
        gvmi: Gvmi,
        /// The key.
        mkey: Mkey,
        /// The device's error.
        source: DeviceError,
    },
    /// All aliases that the map may hold are in use.
    #[error("all {aliases_max} aliases of the map are in use")]
    Full {
        /// Maximum number of aliases.
        aliases_max: u32,
    },
    /// The process has no memory for another alias in the map.
    #[error("no memory for another alias in the map")]
    NoMemory,
    /// Another thread creates the alias and did not finish in time.
    #[error("another thread's alias of {mkey:?} of {gvmi:?} was not ready within {limit:?}")]
    WaitedTooLong {
        /// Function that owns the key.
        gvmi: Gvmi,
        /// The key.
        mkey: Mkey,
        /// Time limit of the wait.
        limit: Duration,
    },
    /// The map was closed.
    #[error("the alias map is closed")]
    Closed,
    /// The process was forked after the map was opened. The map belongs to the parent.
    #[error("the alias map belongs to the parent process")]
    Forked,
    /// The policy contains an invalid value.
    #[error("policy: {0}")]
    Policy(#[from] PolicyError),
}

/// A policy with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A value is out of range.
    #[error("{name} is {value}, allowed are {min} to {max}")]
    OutOfRange {
        /// Field of the policy.
        name: &'static str,
        /// Value of the field.
        value: u64,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
    },
}
