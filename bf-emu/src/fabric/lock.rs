//! The device's lock: one mutex in shared memory that survives the death of its holder.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

use crate::sys::Errno;

/// A mutex that lies in memory shared by processes.
#[repr(C)]
pub struct SharedMutex {
    inner: UnsafeCell<libc::pthread_mutex_t>,
}

// SAFETY: a process-shared mutex is made to be used by many threads of many processes.
unsafe impl Sync for SharedMutex {}

impl std::fmt::Debug for SharedMutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedMutex").finish_non_exhaustive()
    }
}

/// How a lock was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// In order.
    Clean,
    /// Its last holder died: what it guards may be half changed.
    OwnerDied,
}

impl SharedMutex {
    /// Makes the mutex usable.
    ///
    /// # Errors
    /// The C library's.
    ///
    /// # Safety
    /// Nobody else may know of the mutex yet.
    pub(crate) unsafe fn init(&self) -> Result<(), Errno> {
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: the attributes are initialised by the first call and used by the others; the
        // mutex is ours alone, by the caller's promise.
        let results = unsafe {
            [
                libc::pthread_mutexattr_init(attributes),
                libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED),
                libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST),
                libc::pthread_mutex_init(self.inner.get(), attributes),
                libc::pthread_mutexattr_destroy(attributes),
            ]
        };
        match results.into_iter().find(|&result| result != 0) {
            None => Ok(()),
            Some(error) => Err(Errno(error)),
        }
    }

    /// Takes the lock. The thread must not hold it.
    pub(crate) fn lock(&self) -> Taken {
        // SAFETY: the mutex was initialised before the file it lies in got its name. A robust
        // mutex is entered by a list of the calling thread; that list is never half changed here,
        // because the thread that rings a doorbell is at a store and not inside the C library.
        match unsafe { libc::pthread_mutex_lock(self.inner.get()) } {
            libc::EOWNERDEAD => {
                // SAFETY: this thread holds the mutex now.
                unsafe { libc::pthread_mutex_consistent(self.inner.get()) };
                Taken::OwnerDied
            }
            _ => Taken::Clean,
        }
    }

    /// Gives the lock back.
    ///
    /// # Safety
    /// The calling thread must hold it.
    pub(crate) unsafe fn unlock(&self) {
        // SAFETY: held, by the caller's promise.
        unsafe { libc::pthread_mutex_unlock(self.inner.get()) };
    }
}
