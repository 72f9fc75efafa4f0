//! Events that a pool reports to an observer, for example for a log. The crate itself writes no
//! log.

use std::fmt;

use crate::error::DeviceError;
use crate::key::Mkey;

/// An event of interest to the user of a pool that no return value reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolEvent {
    /// The device is full. The pool lowers its cap to the present number of keys.
    CapLowered {
        /// The new cap in keys.
        cap: u32,
        /// The device's error.
        error: DeviceError,
    },
    /// The device could neither invalidate nor destroy a key. The pool never uses it again.
    Lost {
        /// The key.
        mkey: Mkey,
        /// The device's last error.
        error: DeviceError,
    },
}

/// A receiver of events. The pool calls it on the thread of the event, without holding a lock.
pub struct Observer(Box<dyn Fn(&PoolEvent) + Send + Sync>);

impl Observer {
    /// An observer that calls this function. The function must not call the pool.
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
