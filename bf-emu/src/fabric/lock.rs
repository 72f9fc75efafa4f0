//! A lock of the device: a robust mutex in shared memory, which survives the death of its holder.
//!
//! The kernel marks a mutex whose holder ends. It cannot do so for threads without a robust list: a user-mode emulator
//! refuses `set_robust_list`. Such a thread writes its number and start time beside the mutex, and others mark the mutex as
//! the kernel does once they find that no such thread exists.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use super::holder::{FUTEX_OWNER_DIED, FUTEX_TID_MASK, Name, joined};
use crate::sys::{self, Errno, steps::step, tasks};

/// Bytes of the longest mutex of the C library: that of aarch64.
const MUTEX_BYTES: usize = 48;

/// A mutex in memory that processes share, also those of other processors, in its own cache line.
#[repr(C, align(64))]
pub struct SharedMutex {
    inner: UnsafeCell<libc::pthread_mutex_t>,
    _padding: [u8; MUTEX_BYTES - size_of::<libc::pthread_mutex_t>()],
    name: Name,
}

/// Enters the calling thread. One that does not know its start has no name.
fn write_name(name: &Name, thread: u32) {
    name.write(own_start(thread).map_or(0, |started| joined(thread, started)));
}

/// True if the thread of a name has ended. A failed query proves nothing.
fn has_ended(name: u64) -> bool {
    let Ok(task) = i32::try_from(name >> 32) else {
        return false;
    };
    match tasks::start_time(task) {
        Some(started) => joined(task.cast_unsigned(), started) != name,
        None => tasks::has_ended(task, None),
    }
}

/// Start time of the calling thread, looked up at its first lock. None if it cannot be asked now.
fn own_start(thread: u32) -> Option<u64> {
    thread_local! {
        /// Thread and start time. The child of a fork is another thread.
        static OWN: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
    }
    let (known, started) = OWN.get();
    if known == thread {
        return Some(started);
    }
    let started = i32::try_from(thread).ok().and_then(tasks::start_time)?;
    OWN.set((thread, started));
    Some(started)
}

/// True if the kernel marks the mutexes of threads of this process that end.
fn kernel_marks() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let yes = tasks::has_robust_list();
            KNOWN.store(if yes { YES } else { NO }, Ordering::Relaxed);
            yes
        }
        known => known == YES,
    }
}

// SAFETY: a process-shared mutex supports many threads of many processes.
unsafe impl Sync for SharedMutex {}

impl std::fmt::Debug for SharedMutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedMutex").finish_non_exhaustive()
    }
}

/// State of the protected data when the lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The last holder released the lock.
    Clean,
    /// The last holder died: the protected data may be inconsistent.
    OwnerDied,
}

/// Holder of a mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// No holder.
    Nobody,
    /// A live thread.
    Alive,
    /// A thread that ended without a release.
    Dead,
}

/// Longest sleep of a waiter before it checks the mutex. A wake-up is lost if the woken thread is
/// killed before it has the lock and a third thread took and released the lock meanwhile. This
/// limit bounds the wait in that case.
const LOOK_AGAIN_NS: i64 = 100_000_000;

/// Number of tries before a waiter sleeps, some ten microseconds in all. Most holders release the
/// lock sooner. A sleep and its wake-up cost about as much on both sides.
const LOOKS: u32 = 500;

/// The end of a waiter's sleep, in the C library's form.
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
    /// Initialises the mutex.
    ///
    /// # Errors
    /// The C library's error.
    ///
    /// # Safety
    /// No other thread may know the mutex yet.
    pub(crate) unsafe fn init(&self) -> Result<(), Errno> {
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: the first call initialises the attributes and the others use them. The caller
        // promises that no other thread uses the mutex.
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

    /// Takes the lock if it is free. The thread must not hold it.
    pub(crate) fn try_lock(&self) -> Option<Taken> {
        // SAFETY: as in `lock`.
        let result = unsafe { libc::pthread_mutex_trylock(self.inner.get()) };
        (result != libc::EBUSY).then(|| self.taken(result))
    }

    /// Takes the lock. The thread must not hold it.
    pub(crate) fn lock(&self) -> Taken {
        // SAFETY: the mutex is initialised before its file gets its name. The C library keeps a
        // robust mutex in a list of the calling thread. That list is consistent here, because a
        // thread that writes a doorbell is at a store and not inside the C library.
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
            // No sleep for a holder with a name: it may have ended.
            if result == libc::ETIMEDOUT || self.name.is_written() {
                self.mark_if_dead();
            }
            let until = soon();
            // SAFETY: as above; the time is of this frame.
            result = unsafe { libc::pthread_mutex_timedlock(self.inner.get(), &raw const until) };
        }
        self.taken(result)
    }

    /// The state that the C library reports to the new holder, which is this thread.
    fn taken(&self, result: i32) -> Taken {
        step();
        if !kernel_marks() {
            write_name(&self.name, self.thread());
        }
        if result == libc::EOWNERDEAD {
            // SAFETY: this thread holds the mutex now.
            unsafe { libc::pthread_mutex_consistent(self.inner.get()) };
            if kernel_marks() {
                // That of the dead thread. A later thread with its number, which the kernel marks, has no name.
                self.name.remove();
            }
            return Taken::OwnerDied;
        }
        Taken::Clean
    }

    /// Reads the state of the mutex's holder. Does not take the mutex; async-signal-safe.
    pub(crate) fn holder(&self) -> Holder {
        // SAFETY: the first word of the C library's mutex is the futex, which the kernel marks when
        // the holder ends (glibc, `struct __pthread_mutex_s`; the layout is part of its binary
        // interface, and a test below checks it). The word is aligned and changed by atomic
        // operations.
        let word = unsafe { AtomicU32::from_ptr(self.inner.get().cast()) };
        match word.load(Ordering::Acquire) {
            0 => Holder::Nobody,
            word if word & FUTEX_OWNER_DIED != 0 => Holder::Dead,
            word if self.name.is_dead(word & FUTEX_TID_MASK, has_ended) => Holder::Dead,
            _ => Holder::Alive,
        }
    }

    /// Marks the mutex of a holder that has ended, as the kernel does for one with a robust list (`linux/futex.h`): the
    /// waiters' bit stays, and one waiter takes it over.
    pub(super) fn mark_if_dead(&self) {
        // SAFETY: as in `holder`.
        let futex = unsafe { AtomicU32::from_ptr(self.inner.get().cast()) };
        let is_gone = |thread| i32::try_from(thread).is_ok_and(|task| tasks::has_ended(task, None));
        if self.name.mark_if_dead(futex, has_ended, is_gone) {
            sys::futex_wake(futex);
        }
    }

    /// Number of the thread that holds the mutex; 0 for none. The holder can read its own number
    /// here without a system call.
    pub(crate) fn thread(&self) -> u32 {
        // SAFETY: as in `holder`.
        let word = unsafe { AtomicU32::from_ptr(self.inner.get().cast()) };
        word.load(Ordering::Relaxed) & FUTEX_TID_MASK
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The calling thread must hold it.
    pub(crate) unsafe fn unlock(&self) {
        step();
        if !kernel_marks() {
            self.name.remove();
        }
        // SAFETY: the caller promises that the thread holds it.
        unsafe { libc::pthread_mutex_unlock(self.inner.get()) };
        step();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::tasks::wait_for_end;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn the_holder_is_seen_from_outside() {
        // SAFETY: all zeroes is a valid argument of `init`.
        let mutex: Box<SharedMutex> = unsafe { crate::fabric::zeroed() };
        // SAFETY: no other thread knows it yet.
        unsafe { mutex.init() }.unwrap();
        assert_eq!(mutex.holder(), Holder::Nobody);
        assert_eq!(mutex.lock(), Taken::Clean);
        assert_eq!(mutex.holder(), Holder::Alive);
        assert_eq!(mutex.thread(), crate::sys::thread_id());
        // SAFETY: this thread holds it.
        unsafe { mutex.unlock() };
        assert_eq!(mutex.holder(), Holder::Nobody);
        // A thread that ends while it holds the lock.
        let taken = || (mutex.lock(), sys::thread_id());
        let (taken, thread) = std::thread::scope(|scope| scope.spawn(taken).join().unwrap());
        assert_eq!(taken, Taken::Clean);
        wait_for_end(thread);
        assert_eq!(mutex.holder(), Holder::Dead);
        assert_eq!(mutex.lock(), Taken::OwnerDied);
        // SAFETY: this thread holds it.
        unsafe { mutex.unlock() };
        assert_eq!(mutex.lock(), Taken::Clean);
    }

    #[test]
    fn a_holder_that_the_kernel_does_not_mark_is_found_by_its_name() {
        // SAFETY: as above.
        let mutex: Box<SharedMutex> = unsafe { crate::fabric::zeroed() };
        // SAFETY: as above.
        unsafe { mutex.init() }.unwrap();
        assert_eq!((size_of::<SharedMutex>(), mutex.lock()), (64, Taken::Clean));
        // SAFETY: as in `holder`.
        let futex = unsafe { AtomicU32::from_ptr(mutex.inner.get().cast()) };
        let own = mutex.thread();
        // A thread without a name, such as one that has just taken the mutex, counts as alive.
        mutex.mark_if_dead();
        assert_eq!((mutex.holder(), mutex.thread()), (Holder::Alive, own));
        write_name(&mutex.name, own);
        mutex.mark_if_dead();
        assert_eq!((mutex.holder(), mutex.thread()), (Holder::Alive, own));
        // Another thread has the number now: it started at another time.
        mutex.name.0.fetch_add(1, Ordering::Relaxed);
        assert_eq!(mutex.holder(), Holder::Dead);
        // SAFETY: this thread holds it.
        unsafe { mutex.unlock() };
        // A thread has ended while it held the mutex. The unmarked word is what the kernel leaves without a list.
        let ended = std::thread::spawn(sys::thread_id).join().unwrap();
        wait_for_end(ended);
        mutex.name.0.store(joined(ended, 1), Ordering::Relaxed);
        futex.store(ended, Ordering::Relaxed);
        assert_eq!(mutex.holder(), Holder::Dead);
        assert_eq!((mutex.lock(), mutex.thread()), (Taken::OwnerDied, own));
        // The dead thread's name would make a later thread of its number, which the kernel marks, look dead.
        assert_ne!(mutex.name.0.load(Ordering::Relaxed), joined(ended, 1));
        // SAFETY: this thread holds it.
        unsafe { mutex.unlock() };
        // The same between the mutex and the name.
        mutex.name.remove();
        futex.store(ended, Ordering::Relaxed);
        assert_eq!((mutex.lock(), mutex.thread()), (Taken::OwnerDied, own));
        // SAFETY: this thread holds it.
        unsafe { mutex.unlock() };
        assert_eq!(mutex.lock(), Taken::Clean);
        // SAFETY: as above.
        unsafe { mutex.unlock() };
    }

    #[test]
    fn a_change_of_holders_is_no_death() {
        let own = sys::thread_id();
        let start = |task: u32| tasks::start_time(i32::try_from(task).unwrap()).unwrap();
        // A thread of another process.
        let mut other = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let names = [own, other.id()].map(|thread| joined(thread, start(thread)));
        let name = Name(AtomicU64::new(names[0]));
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for next in names.iter().cycle() {
                    name.0.store(*next, Ordering::Release);
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let dead = (0..1000)
                .any(|_| name.is_dead(own, has_ended) || name.is_dead(other.id(), has_ended));
            ends.store(true, Ordering::Relaxed);
            assert!(!dead);
        });
        drop(other.stdin.take());
        other.wait().unwrap();
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
