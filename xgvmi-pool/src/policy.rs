//! Every number that the pool and the alias map go by, with its unit, its default and the reason.
//! Policy does no I/O.

use std::time::Duration;

use crate::device::MkeyLimits;
use crate::key::{AccessKey, Tag};

/// What the pool does when a released key has to be invalidated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Invalidate {
    /// Before the release returns. Nobody reaches the region through the key afterwards, so the
    /// caller may free the memory at once. The only mode that keeps a peer with a stale handle out
    /// at all times, hence the default.
    #[default]
    Strict,
}

/// What the pool does when all keys that it may have are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    /// Fail at once with [`PoolError::Full`](crate::PoolError::Full); the caller takes its other
    /// path. The default, because stock UCX has such a path and waiting could cost more than it.
    #[default]
    Fail,
}

/// How a pool of keys behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPolicy {
    /// Keys that the pool has at most, leased ones included. Default 4096: more concurrent exports
    /// than 64 ranks of 64 buffers need, and two orders of magnitude below the adapter's table, so
    /// that a pool is never what fills it.
    pub mkeys_max: u32,
    /// Keys that are created when the pool opens. Default 0: a process that never exports should
    /// not pay hundreds of microseconds per key; who knows the number of buffers, sets it.
    pub prefill: u32,
    /// KLM entries of each key. Default 16: regions up to 16 GiB, for 256 bytes of adapter memory a
    /// key; a device that can take fewer lowers it.
    pub klm_entries: u32,
    /// Tag of the keys. Default [`Tag::UCX_POOLED`]: a stock importer caches the aliases of no
    /// other.
    pub tag: Tag,
    /// What an importer must present. Default [`AccessKey::UCX_COMPATIBLE`].
    pub access_key: AccessKey,
    /// When released keys are invalidated.
    pub invalidate: Invalidate,
    /// What happens at the cap.
    pub on_full: OnFull,
}

impl Default for PoolPolicy {
    fn default() -> Self {
        Self {
            mkeys_max: 4096,
            prefill: 0,
            klm_entries: 16,
            tag: Tag::UCX_POOLED,
            access_key: AccessKey::UCX_COMPATIBLE,
            invalidate: Invalidate::default(),
            on_full: OnFull::default(),
        }
    }
}

/// How a map of aliases behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasPolicy {
    /// Aliases that the map holds at most, pinned ones included. Default 65,536: 1024 ranks with 64
    /// buffers each, at well under 256 bytes of process memory an alias.
    pub aliases_max: u32,
    /// What the exporters ask for. Default [`AccessKey::UCX_COMPATIBLE`].
    pub access_key: AccessKey,
    /// How long one thread waits for the alias that another one is making. Default 10 s: a command
    /// takes hundreds of microseconds, the kernel gives up on one after tens of seconds.
    pub create_wait: Duration,
}

impl Default for AliasPolicy {
    fn default() -> Self {
        Self {
            aliases_max: 65_536,
            access_key: AccessKey::UCX_COMPATIBLE,
            create_wait: Duration::from_secs(10),
        }
    }
}

/// A policy that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A number lies outside of its range.
    #[error("{name} is {value}, allowed are {min} to {max}")]
    OutOfRange {
        /// Field of the policy.
        name: &'static str,
        /// What it was set to.
        value: u64,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
    },
}

/// Largest cap: the adapter's key table has 2^24 entries, and a slot of the pool takes memory.
const MKEYS_CAP: u64 = 1 << 20;
/// Largest bound of the alias map, for the same reason.
const ALIASES_CAP: u64 = 1 << 22;

impl PoolPolicy {
    /// The policy as far as the device can follow it.
    ///
    /// # Errors
    /// If a number lies outside of its range.
    pub(crate) fn checked(mut self, limits: MkeyLimits) -> Result<Self, PolicyError> {
        within("mkeys_max", self.mkeys_max, 1, MKEYS_CAP)?;
        within("prefill", self.prefill, 0, u64::from(self.mkeys_max))?;
        within("klm_entries", self.klm_entries, 1, 1 << 16)?;
        self.klm_entries = self.klm_entries.min(limits.klm_entries_max);
        Ok(self)
    }
}

impl AliasPolicy {
    /// The policy, if it can be followed.
    ///
    /// # Errors
    /// If a number lies outside of its range.
    pub(crate) fn checked(self) -> Result<Self, PolicyError> {
        within("aliases_max", self.aliases_max, 1, ALIASES_CAP)?;
        Ok(self)
    }
}

fn within(name: &'static str, value: u32, min: u64, max: u64) -> Result<(), PolicyError> {
    let value = u64::from(value);
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(PolicyError::OutOfRange {
            name,
            value,
            min,
            max,
        })
    }
}
