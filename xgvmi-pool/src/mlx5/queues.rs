//! The queue in use, made when it is first needed and replaced when it has failed.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mlx5dv_sys::{Mlx5Lib, ibv_context, ibv_pd};

use super::connect::Loopback;
use super::queue::{Shape, UmrQueue};
use crate::error::DeviceError;
use crate::sync::{AtomicU64, Mutex, Ordering, RwLock, lock, read, write};

/// How long after a queue could not be made nobody tries again, at first. Doubles each time: a port
/// that is down would otherwise cost every export some kernel calls.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
/// Longest such time: a port that comes up again is noticed within it.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// What a queue is made of.
#[derive(Debug)]
pub(super) struct Recipe {
    pub(super) lib: Arc<Mlx5Lib>,
    pub(super) context: NonNull<ibv_context>,
    pub(super) pd: NonNull<ibv_pd>,
    pub(super) ports: u8,
    pub(super) port: Option<u8>,
    pub(super) gid_index: Option<u8>,
    pub(super) shape: Shape,
}

/// The queue in use.
#[derive(Debug)]
pub(super) struct Queues {
    recipe: Recipe,
    current: RwLock<Option<Arc<UmrQueue>>>,
    /// The first queue, which hardly ever fails: as long as it does not, nobody takes a lock.
    first: OnceLock<Arc<UmrQueue>>,
    attempts: Mutex<Attempts>,
    recoveries: AtomicU64,
}

#[derive(Debug)]
struct Attempts {
    closed: bool,
    backoff: Duration,
    /// Nobody tries before this.
    not_before: Option<Instant>,
    /// What the last attempt came to.
    error: Option<DeviceError>,
}

impl Queues {
    /// No queue yet.
    ///
    /// # Safety
    /// Context and domain of the recipe are live, made by its library, and outlive
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

    /// The first queue, if it carries requests. Until the device is closed, which waits for all calls.
    #[inline]
    pub(super) fn first(&self) -> Option<&UmrQueue> {
        let first = self.first.get()?;
        (!first.has_failed()).then_some(&**first)
    }

    /// A queue that carries requests.
    ///
    /// # Errors
    /// If there is none and none can be made now.
    #[inline]
    pub(super) fn get(&self) -> Result<Arc<UmrQueue>, DeviceError> {
        match &*read(&self.current) {
            Some(queue) if !queue.has_failed() => return Ok(Arc::clone(queue)),
            _ => {}
        }
        self.replace()
    }

    /// Queues that were replaced because they had failed.
    pub(super) fn recoveries(&self) -> u64 {
        self.recoveries.load(Ordering::Relaxed)
    }

    fn replace(&self) -> Result<Arc<UmrQueue>, DeviceError> {
        // Held over kernel calls, which are bounded, and never over a poll.
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
        // First of all: what was posted to the old queue must not be carried out any more once the
        // new one carries requests on the same keys.
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
        // SAFETY: live by the promise given to `new`, the device not being closed; `close` tears down
        // what is made here.
        let queue = unsafe { UmrQueue::create(lib, *context, *pd, loopback, *shape) }?;
        Ok(Arc::new(queue))
    }

    /// The way of a queue pair to itself, as it is now.
    ///
    /// # Errors
    /// If there is none.
    fn loopback(&self) -> Result<Loopback, DeviceError> {
        let Recipe {
            lib,
            context,
            ports,
            port,
            gid_index,
            ..
        } = &self.recipe;
        // SAFETY: live by the promise given to `new`, the device not being closed.
        unsafe { Loopback::find(lib, *context, *ports, *port, *gid_index) }
    }

    /// What queues are made of.
    pub(super) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Ends the queue in use, and makes no other.
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

    /// Forgets the queue without a call to the kernel: in a forked child it is the parent's.
    pub(super) fn forget(&self) {
        if let Ok(current) = self.current.try_read()
            && let Some(queue) = &*current
        {
            queue.forget();
        }
    }
}
