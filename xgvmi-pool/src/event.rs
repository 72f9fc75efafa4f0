//! What a pool has to tell whoever keeps a log. The crate itself logs nothing.

use std::fmt;

use crate::error::DeviceError;
use crate::key::Mkey;

/// Something that a user of the pool may want to know and that no return value says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolEvent {
    /// The device is full: the pool makes do with the keys it has.
    CapLowered {
        /// Keys that the pool may have now.
        cap: u32,
        /// What the device said.
        error: DeviceError,
    },
    /// A key could be neither invalidated nor destroyed and is out of use for good.
    Lost {
        /// The key.
        mkey: Mkey,
        /// What the device said last.
        error: DeviceError,
    },
}

/// Whom a pool tells. Called on the thread where it happens, outside of all locks.
pub struct Observer(Box<dyn Fn(&PoolEvent) + Send + Sync>);

impl Observer {
    /// Has events told to a function, which must not call the pool.
    #[must_use]
    pub fn new(tell: impl Fn(&PoolEvent) + Send + Sync + 'static) -> Self {
        Self(Box::new(tell))
    }

    pub(crate) fn tell(&self, event: &PoolEvent) {
        (self.0)(event);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
