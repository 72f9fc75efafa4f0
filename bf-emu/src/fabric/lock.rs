//! The device's lock: one robust mutex in shared memory, which survives the death of its holder.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::Errno;

/// A mutex that lies in memory shared by processes, in a cache line of its own.
#[repr(C, align(64))]
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

/// Who has a mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Nobody.
    Nobody,
    /// A thread that lives.
    Alive,
    /// A thread that ended without giving it back.
    Dead,
}

/// Bit of a futex word that the kernel sets when the holder ends (`linux/futex.h`).
const FUTEX_OWNER_DIED: u32 = 0x4000_0000;
/// The bits of a futex word that name its holder, the same header.
const FUTEX_TID_MASK: u32 = 0x3fff_ffff;
/// A waiter looks for itself this often. A wake-up is lost if the thread that was woken is killed
/// before it has the lock and a third one has passed by; nobody may sleep on that for ever.
const LOOK_AGAIN_NS: i64 = 100_000_000;

/// A waiter looks so often before it sleeps, some ten microseconds in all. Most holders are through sooner, and a sleep
/// and the wake-up from it cost both sides about as much.
const LOOKS: u32 = 500;

/// The time until which a waiter sleeps, as the C library wants it.
fn soon() -> libc::timespec {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of this frame.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    time.tv_nsec += LOOK_AGAIN_NS;
    if time.tv_nsec >= 1_000_000_000 {
        time.tv_nsec -= 1_000_000_000;
        time.tv_sec += 1;
    }
    time
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
        let mut result = unsafe { libc::pthread_mutex_trylock(self.inner.get()) };
        for _ in 0..LOOKS {
            if result != libc::EBUSY {
                break;
            }
            std::hint::spin_loop();
            if self.thread() == 0 {
                // SAFETY: as above.
                result = unsafe { libc::pthread_mutex_trylock(self.inner.get()) };
            }
        }
        while matches!(result, libc::EBUSY | libc::ETIMEDOUT) {
            let until = soon();
            // SAFETY: as above; the time is of this frame.
            result = unsafe { libc::pthread_mutex_timedlock(self.inner.get(), &raw const until) };
        }
        if result == libc::EOWNERDEAD {
            // SAFETY: this thread holds the mutex now.
            unsafe { libc::pthread_mutex_consistent(self.inner.get()) };
            return Taken::OwnerDied;
        }
        Taken::Clean
    }

    /// What a look at the mutex tells of its holder. Takes nothing; async-signal-safe.
    pub(crate) fn holder(&self) -> Holder {
        // SAFETY: the first word of the C library's mutex is the futex that the kernel marks when
        // the holder ends (glibc, `struct __pthread_mutex_s`; the layout is part of its binary
        // interface, and a test below asks it). It is aligned, and changed by atomic operations.
        let word = unsafe { AtomicU32::from_ptr(self.inner.get().cast()) };
        match word.load(Ordering::Acquire) {
            0 => Holder::Nobody,
            word if word & FUTEX_OWNER_DIED != 0 => Holder::Dead,
            _ => Holder::Alive,
        }
    }

    /// The thread that holds the mutex, by its number; 0 for nobody. What the holder itself sees saves
    /// it the system call that would tell the same.
    pub(crate) fn thread(&self) -> u32 {
        // SAFETY: as in `holder`.
        let word = unsafe { AtomicU32::from_ptr(self.inner.get().cast()) };
        word.load(Ordering::Relaxed) & FUTEX_TID_MASK
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_seen_from_outside() {
        // SAFETY: all zeroes is a mutex that `init` may make.
        let mutex: Box<SharedMutex> = unsafe { crate::fabric::zeroed() };
        // SAFETY: nobody else knows of it yet.
        unsafe { mutex.init() }.unwrap();
        assert_eq!(mutex.holder(), Holder::Nobody);
        assert_eq!(mutex.lock(), Taken::Clean);
        assert_eq!(mutex.holder(), Holder::Alive);
        assert_eq!(mutex.thread(), crate::sys::thread_id());
        // SAFETY: this thread holds it.
        unsafe { mutex.unlock() };
        assert_eq!(mutex.holder(), Holder::Nobody);
        // A thread that ends with the lock.
        let ended = std::thread::scope(|scope| scope.spawn(|| mutex.lock()).join().unwrap());
        assert_eq!(ended, Taken::Clean);
        assert_eq!(mutex.holder(), Holder::Dead);
        assert_eq!(mutex.lock(), Taken::OwnerDied);
        // SAFETY: this thread holds it.
        unsafe { mutex.unlock() };
        assert_eq!(mutex.lock(), Taken::Clean);
    }

    #[test]
    fn waiters_wait_their_turn() {
        // SAFETY: as above.
        let mutex: Box<SharedMutex> = unsafe { crate::fabric::zeroed() };
        // SAFETY: as above.
        unsafe { mutex.init() }.unwrap();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        assert_eq!(mutex.lock(), Taken::Clean);
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        // SAFETY: this thread holds it.
                        unsafe { mutex.unlock() };
                    }
                });
            }
        });
    }
}
