//! What the pool and the alias map ask of a device. Devices do I/O and decide nothing.

use std::fmt;

use crate::error::{ChainError, DeviceError};
use crate::key::{AccessKey, Gvmi, Lkey, Mkey, MkeyIndex, RemoteKey};
use crate::span::Span;

/// One work request on a pooled key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UmrOp<'a> {
    /// Makes a free key stand for memory, under the memory's own addresses, readable and
    /// writable locally and remotely, without remote atomics. Whether a key that is not free is an
    /// error depends on the device: mlx5 binds it to the new memory, as stock requests do not ask.
    Bind {
        /// The key; its tag becomes the key's tag.
        mkey: Mkey,
        /// What it shall stand for.
        span: Span<'a>,
    },
    /// Makes a key free: any access through it or an alias of it fails from then on.
    Invalidate {
        /// The key.
        mkey: Mkey,
    },
}

impl UmrOp<'_> {
    /// The key that the request is about.
    #[must_use]
    pub const fn mkey(&self) -> Mkey {
        match self {
            Self::Bind { mkey, .. } | Self::Invalidate { mkey } => *mkey,
        }
    }

    /// What the request counts for in a chain, the bind of memory of up to four KLM entries being
    /// one.
    #[must_use]
    pub fn weight(&self) -> u32 {
        match self {
            // In units of 64 bytes, of which such a bind takes three: two before the list, and one
            // for each four entries of it.
            Self::Bind { span, .. } => {
                let units = 2 + span.klm_entries().div_ceil(4);
                u32::try_from(units.div_ceil(3)).unwrap_or(u32::MAX)
            }
            Self::Invalidate { .. } => 1,
        }
    }
}

/// What a device can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MkeyLimits {
    /// KLM entries that one key may have and one bind may write.
    pub klm_entries_max: u32,
    /// What the requests of one chain may weigh together, see [`UmrOp::weight`].
    pub chain_ops_max: u32,
}

/// What to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkeySpec {
    /// Room for KLM entries.
    pub klm_entries: u32,
    /// What another function must present to alias the key.
    pub access_key: AccessKey,
}

/// The exporting side of a device: keys that work requests bind and invalidate.
///
/// All calls may come from any thread, several at a time. Each is bounded in time: commands by the
/// kernel's own limit, [`MkeyDevice::run`] by the device's.
pub trait MkeyDevice: fmt::Debug + Send + Sync + 'static {
    /// The function that the keys belong to.
    fn gvmi(&self) -> Gvmi;

    /// What the device can take.
    fn limits(&self) -> MkeyLimits;

    /// False in a process that was forked from the one that opened the device, which it belongs to:
    /// pool and map then leave everything alone, locks included, that the parent may hold.
    fn is_ours(&self) -> bool {
        true
    }

    /// Creates a key in the free state and opens it to other functions. Hundreds of microseconds.
    ///
    /// # Errors
    /// If the device refuses; then there is no key.
    fn create_mkey(&self, spec: &MkeySpec) -> Result<MkeyIndex, DeviceError>;

    /// Destroys a key in whatever state it is. Hundreds of microseconds.
    ///
    /// # Errors
    /// If the device refuses; then the key is still there, and lost.
    fn destroy_mkey(&self, mkey: MkeyIndex) -> Result<(), DeviceError>;

    /// Carries out the requests in their order and returns when the last one is done. About a
    /// microsecond.
    ///
    /// # Errors
    /// If not all of them are known to be done. A request that did not take effect never will once
    /// a later call of `run` has posted anything.
    fn run(&self, chain: &[UmrOp<'_>]) -> Result<(), ChainError>;

    /// Times that the queue which carries the requests had failed and was replaced.
    fn recoveries(&self) -> u64 {
        0
    }
}

/// An alias: a key of this function that stands for another function's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Id of the object.
    pub index: MkeyIndex,
    /// The key to use in local work requests, and to hand out as rkey.
    pub lkey: Lkey,
}

/// The importing side of a device: aliases of other functions' keys.
///
/// All calls may come from any thread, several at a time. Each is bounded by the kernel's limit on
/// commands.
pub trait AliasDevice: fmt::Debug + Send + Sync + 'static {
    /// As [`MkeyDevice::is_ours`].
    fn is_ours(&self) -> bool {
        true
    }

    /// Creates an alias. Hundreds of microseconds.
    ///
    /// # Errors
    /// If the device refuses, or the alias is not in order; then there is none.
    fn create_alias(&self, key: &RemoteKey, access: &AccessKey) -> Result<Alias, DeviceError>;

    /// Destroys an alias. Hundreds of microseconds.
    ///
    /// # Errors
    /// If the device refuses; then the alias is still there, and lost.
    fn destroy_alias(&self, alias: MkeyIndex) -> Result<(), DeviceError>;
}
