//! The device interface of the pool and the alias map. Devices do I/O and make no decisions.

use std::fmt;

use crate::error::{ChainError, DeviceError};
use crate::key::{AccessKey, Gvmi, Lkey, Mkey, MkeyIndex, RemoteKey};
use crate::region::Region;
use crate::span::Span;

/// One work request on a pooled key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UmrOp<'a> {
    /// Binds a free key to memory, under the memory's own addresses, readable and writable locally
    /// and remotely, without remote atomics. Whether the bind of a key that is not free fails
    /// depends on the device. mlx5 binds it to the new memory, because stock requests do not check
    /// the state.
    Bind {
        /// The key. Its tag becomes the tag of the mkey.
        mkey: Mkey,
        /// The memory to bind.
        span: Span<'a>,
    },
    /// Frees a key. Every later access through it or an alias of it fails.
    Invalidate {
        /// The key.
        mkey: Mkey,
    },
}

impl UmrOp<'_> {
    /// The key of the request.
    #[must_use]
    pub const fn mkey(&self) -> Mkey {
        match self {
            Self::Bind { mkey, .. } | Self::Invalidate { mkey } => *mkey,
        }
    }

    /// The weight of the request in a chain. A bind of memory with up to four KLM entries has
    /// weight one.
    #[must_use]
    pub fn weight(&self) -> u32 {
        match self {
            // In units of 64 bytes. Such a bind takes three: two before the list, and one for every
            // four entries of the list.
            Self::Bind { span, .. } => {
                let units = 2 + span.klm_entries().div_ceil(4);
                u32::try_from(units.div_ceil(3)).unwrap_or(u32::MAX)
            }
            Self::Invalidate { .. } => 1,
        }
    }
}

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MkeyLimits {
    /// Maximum number of KLM entries per key and per bind.
    pub klm_entries_max: u32,
    /// Maximum total weight of the requests in one chain, see [`UmrOp::weight`].
    pub chain_ops_max: u32,
}

/// Properties of a key to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkeySpec {
    /// Number of KLM entries.
    pub klm_entries: u32,
    /// Access key that another function must present to alias the key.
    pub access_key: AccessKey,
}

/// The exporting side of a device: keys that work requests bind and invalidate.
///
/// Any thread may make these calls, several at a time. Each call has a time limit: commands the
/// kernel's limit, [`MkeyDevice::run`] the device's limit.
pub trait MkeyDevice: fmt::Debug + Send + Sync + 'static {
    /// A shorter path of [`MkeyDevice::run`] for single requests, which a pool keeps in its own data.
    /// `()` if there is none.
    type Quick: QuickPath;

    /// The shorter path.
    fn quick(&self) -> Self::Quick;

    /// The function that owns the keys.
    fn gvmi(&self) -> Gvmi;

    /// The limits of the device.
    fn limits(&self) -> MkeyLimits;

    /// False in a process that was forked after its parent opened the device. The device belongs to
    /// the parent. The pool and the map then touch nothing, not even locks, because the parent may
    /// hold them.
    fn is_ours(&self) -> bool {
        true
    }

    /// A mark of the calling thread, if the device can tell it in a few instructions: not zero, the
    /// same in every call of the thread, and no other living thread has it. Without it, the pool
    /// uses a thread-local variable.
    #[must_use]
    fn thread_mark() -> Option<usize>
    where
        Self: Sized,
    {
        None
    }

    /// Creates a key in the free state and opens it to other functions. Takes hundreds of
    /// microseconds.
    ///
    /// # Errors
    /// If the device refuses. No key exists then.
    fn create_mkey(&self, spec: &MkeySpec) -> Result<MkeyIndex, DeviceError>;

    /// Destroys a key in any state. Takes hundreds of microseconds.
    ///
    /// # Errors
    /// If the device refuses. The key then still exists, and is lost.
    fn destroy_mkey(&self, mkey: MkeyIndex) -> Result<(), DeviceError>;

    /// Executes the requests in their order and returns when the last one is complete. Takes about
    /// a microsecond.
    ///
    /// # Errors
    /// If not all of them are known to be complete. A request that did not take effect never will
    /// after a later call of `run` has posted anything.
    fn run(&self, chain: &[UmrOp<'_>]) -> Result<(), ChainError>;

    /// Number of times that the queue of the requests failed and was replaced.
    fn recoveries(&self) -> u64 {
        0
    }
}

/// Single requests of a device, in fewer steps than [`MkeyDevice::run`] takes.
pub trait QuickPath: fmt::Debug + Send + Sync + 'static {
    /// Executes one bind to one region. `None` if nothing was posted, as in a forked child:
    /// [`MkeyDevice::run`] must do it, or report the error.
    ///
    /// # Errors
    /// Those of [`MkeyDevice::run`].
    fn bind(&self, mkey: Mkey, region: Region) -> Option<Result<(), Box<ChainError>>>;

    /// Executes one invalidation, like [`QuickPath::bind`].
    ///
    /// # Errors
    /// Those of [`MkeyDevice::run`].
    fn invalidate(&self, mkey: Mkey) -> Option<Result<(), Box<ChainError>>>;
}

impl QuickPath for () {
    fn bind(&self, _mkey: Mkey, _region: Region) -> Option<Result<(), Box<ChainError>>> {
        None
    }

    fn invalidate(&self, _mkey: Mkey) -> Option<Result<(), Box<ChainError>>> {
        None
    }
}

/// An alias: a key of this function that refers to another function's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Id of the object.
    pub index: MkeyIndex,
    /// The key for local work requests. Peers can use it as rkey.
    pub lkey: Lkey,
}

/// The importing side of a device: aliases of other functions' keys.
///
/// Any thread may make these calls, several at a time. Each call has the kernel's time limit of
/// commands.
pub trait AliasDevice: fmt::Debug + Send + Sync + 'static {
    /// See [`MkeyDevice::is_ours`].
    fn is_ours(&self) -> bool {
        true
    }

    /// See [`MkeyDevice::thread_mark`].
    #[must_use]
    fn thread_mark() -> Option<usize>
    where
        Self: Sized,
    {
        None
    }

    /// Creates an alias. Takes hundreds of microseconds.
    ///
    /// # Errors
    /// If the device refuses, or the alias fails its check. No alias exists then.
    fn create_alias(&self, key: &RemoteKey, access: &AccessKey) -> Result<Alias, DeviceError>;

    /// Destroys an alias. Takes hundreds of microseconds.
    ///
    /// # Errors
    /// If the device refuses. The alias then still exists, and is lost.
    fn destroy_alias(&self, alias: MkeyIndex) -> Result<(), DeviceError>;
}
