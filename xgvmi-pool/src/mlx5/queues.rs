//! The present work queue. It is created at the first use and replaced after a failure.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mlx5dv_sys::{Mlx5Lib, ibv_access_flags, ibv_context, ibv_pd};

use super::connect::Loopback;
use super::parts::Shape;
use super::queue::UmrQueue;
use crate::error::DeviceError;
use crate::sync::{AtomicU64, Mutex, Ordering, RwLock, lock, read, write};

/// Time without another attempt after a queue could not be created. It doubles with each failure.
/// Otherwise every export would cost some kernel calls while a port is down.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
/// Maximum of this time: the queue recovers at most this long after its port.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The parameters of a queue.
#[derive(Debug)]
pub(super) struct Recipe {
    pub(super) lib: Arc<Mlx5Lib>,
    pub(super) context: NonNull<ibv_context>,
    pub(super) pd: NonNull<ibv_pd>,
    pub(super) ports: u8,
    /// Access flags that the firmware needs in each registration.
    pub(super) access: ibv_access_flags,
    pub(super) port: Option<u8>,
    pub(super) gid_index: Option<u8>,
    pub(super) shape: Shape,
}

/// The present work queue.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Queues {
    /// The first queue, which rarely fails. Until it fails, no thread takes a lock.
    first: OnceLock<Arc<UmrQueue>>,
    recipe: Recipe,
    current: RwLock<Option<Arc<UmrQueue>>>,
    attempts: Mutex<Attempts>,
    recoveries: AtomicU64,
}

#[derive(Debug)]
struct Attempts {
    closed: bool,
    backoff: Duration,
    /// Earliest time of the next attempt.
    not_before: Option<Instant>,
    /// Error of the last attempt.
    error: Option<DeviceError>,
}

impl Queues {
    /// Creates no queue yet.
    ///
    /// # Safety
    /// Context and domain of the recipe are live, were created by its library, and outlive
    /// [`Queues::close`].
    pub(super) unsafe fn new(recipe: Recipe) -> Self {
        let attempts = Attempts {
            closed: false,
            backoff: BACKOFF_MIN,
            not_before: None,
            error: None,
        };
        Self {
            recipe,
            current: RwLock::new(None),
            first: OnceLock::new(),
            attempts: Mutex::new(attempts),
            recoveries: AtomicU64::new(0),
        }
    }

    /// The first queue, also after it has failed: it lives as long as the device, and refuses requests
    /// then.
    pub(super) fn made(&self) -> Option<&Arc<UmrQueue>> {
        self.first.get()
    }

    /// A working queue.
    ///
    /// # Errors
    /// If there is none and none can be created now.
    #[inline]
    pub(super) fn get(&self) -> Result<Arc<UmrQueue>, DeviceError> {
        match &*read(&self.current) {
            Some(queue) if !queue.has_failed() => return Ok(Arc::clone(queue)),
            _ => {}
        }
        self.replace()
    }

    /// Number of failed queues that were replaced.
    pub(super) fn recoveries(&self) -> u64 {
        self.recoveries.load(Ordering::Relaxed)
    }

    fn replace(&self) -> Result<Arc<UmrQueue>, DeviceError> {
        // Held during kernel calls, which have a time limit, and never during a poll.
        let mut attempts = lock(&self.attempts);
        if attempts.closed {
            return Err(DeviceError::Closed);
        }
        let old = read(&self.current).clone();
        if let Some(queue) = &old
            && !queue.has_failed()
        {
            // Another thread was faster.
            return Ok(Arc::clone(queue));
        }
        if let Some(not_before) = attempts.not_before
            && Instant::now() < not_before
        {
            let unknown = || DeviceError::QueueDown {
                reason: "not tried yet".to_owned(),
            };
            return Err(attempts.error.clone().unwrap_or_else(unknown));
        }
        let made = self.make(old.as_deref());
        match made {
            Ok(queue) => {
                *write(&self.current) = Some(Arc::clone(&queue));
                let _later = self.first.set(Arc::clone(&queue));
                attempts.backoff = BACKOFF_MIN;
                attempts.not_before = None;
                if old.is_some() {
                    self.recoveries.fetch_add(1, Ordering::Relaxed);
                }
                Ok(queue)
            }
            Err(error) => {
                attempts.not_before = Some(Instant::now() + attempts.backoff);
                attempts.backoff = (attempts.backoff * 2).min(BACKOFF_MAX);
                attempts.error = Some(error.clone());
                Err(error)
            }
        }
    }

    fn make(&self, old: Option<&UmrQueue>) -> Result<Arc<UmrQueue>, DeviceError> {
        // This must come first: the adapter must not execute requests of the old queue any more
        // when the new one carries requests on the same keys.
        if let Some(old) = old {
            old.tear_down()?;
        }
        let loopback = self.loopback()?;
        let Recipe {
            lib,
            context,
            pd,
            shape,
            ..
        } = &self.recipe;
        // SAFETY: live by the contract of `new` because the device is not closed; `close` tears
        // down the queue that is created here.
        let queue = unsafe { UmrQueue::create(lib, *context, *pd, loopback, *shape) }?;
        Ok(Arc::new(queue))
    }

    /// The present route of a queue pair to itself.
    ///
    /// # Errors
    /// If there is no route.
    fn loopback(&self) -> Result<Loopback, DeviceError> {
        let Recipe {
            lib,
            context,
            ports,
            port,
            gid_index,
            ..
        } = &self.recipe;
        // SAFETY: live by the contract of `new` because the device is not closed.
        unsafe { Loopback::find(lib, *context, *ports, *port, *gid_index) }
    }

    /// The parameters of queues.
    pub(super) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Ends the present queue. No other queue is created.
    ///
    /// # Errors
    /// If its queue pair is not destroyed.
    pub(super) fn close(&self) -> Result<(), DeviceError> {
        lock(&self.attempts).closed = true;
        match write(&self.current).take() {
            Some(queue) => queue.tear_down(),
            None => Ok(()),
        }
    }

    /// Forgets the queue without a call to the kernel: in a forked child it belongs to the parent.
    pub(super) fn forget(&self) {
        if let Ok(current) = self.current.try_read()
            && let Some(queue) = &*current
        {
            queue.forget();
        }
    }
}
