//! Forked children. A thread of the parent may have held a lock at the fork. It does not exist in
//! the child, where nothing releases the lock. A child therefore waits for a lock only for a limited
//! time, and then goes on without the locked data.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::thread;
use std::time::Duration;

/// Number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Functions that a child runs at its start.
static HANDLERS: [AtomicPtr<()>; 4] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 4];

/// Attempts of a child to get a lock, one per millisecond. A thread of the child itself holds one for
/// less, unless it closes a device.
const ATTEMPTS: u32 = 200;

/// Number of forks between the first process that used the library and this one.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Runs the function in each forked child from now on. False if the system has no memory for it.
/// The function may only store to atomics and close descriptors.
pub(crate) fn watch(handler: fn()) -> bool {
    let handler = handler as *mut ();
    let is_kept = HANDLERS.iter().any(|place| {
        let empty = std::ptr::null_mut();
        let kept = place.compare_exchange(empty, handler, Ordering::AcqRel, Ordering::Acquire);
        kept.map_or_else(|found| found == handler, |_empty| true)
    });
    static IS_WATCHING: AtomicBool = AtomicBool::new(false);
    if IS_WATCHING.swap(true, Ordering::Relaxed) {
        return is_kept;
    }
    // SAFETY: the handlers close descriptors and store to atomics.
    let is_watching = unsafe { libc::pthread_atfork(None, None, Some(in_child)) == 0 };
    IS_WATCHING.store(is_watching, Ordering::Relaxed);
    is_kept && is_watching
}

extern "C" fn in_child() {
    for place in &HANDLERS {
        let handler = place.load(Ordering::Acquire);
        if !handler.is_null() {
            // SAFETY: `watch` stored a function of this type.
            let handler = unsafe { std::mem::transmute::<*mut (), fn()>(handler) };
            handler();
        }
    }
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The lock of a mutex. `None` in a child if nothing releases it.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match generation() {
        0 => Some(mutex.lock().unwrap_or_else(PoisonError::into_inner)),
        _ => attempt(|| mutex.try_lock()),
    }
}

/// The read lock, like [`lock`].
pub(crate) fn read<T>(lock: &RwLock<T>) -> Option<RwLockReadGuard<'_, T>> {
    match generation() {
        0 => Some(lock.read().unwrap_or_else(PoisonError::into_inner)),
        _ => attempt(|| lock.try_read()),
    }
}

/// The write lock, like [`lock`].
pub(crate) fn write<T>(lock: &RwLock<T>) -> Option<RwLockWriteGuard<'_, T>> {
    match generation() {
        0 => Some(lock.write().unwrap_or_else(PoisonError::into_inner)),
        _ => attempt(|| lock.try_write()),
    }
}

#[cold]
fn attempt<G>(attempt: impl Fn() -> Result<G, TryLockError<G>>) -> Option<G> {
    for _ in 0..ATTEMPTS {
        match attempt() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    static CALLED: AtomicBool = AtomicBool::new(false);
    static HELD: Mutex<()> = Mutex::new(());
    static HELD_TOO: RwLock<()> = RwLock::new(());
    static FREE: Mutex<()> = Mutex::new(());

    /// Runs in the child, where only this thread exists. It allocates nothing.
    fn works_in_child() -> bool {
        lock(&HELD).is_none()
            && write(&HELD_TOO).is_none()
            && read(&HELD_TOO).is_none()
            && lock(&FREE).is_some()
            && generation() == 1
            && CALLED.load(Ordering::Relaxed)
    }

    #[test]
    fn a_lock_that_a_thread_of_the_parent_holds_does_not_stop_a_child() {
        let handler = || CALLED.store(true, Ordering::Relaxed);
        assert!(watch(handler) && watch(handler));
        let (taken, over) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _held = lock(&HELD).expect("a lock");
                let _held_too = write(&HELD_TOO).expect("a lock");
                taken.wait();
                over.wait();
            });
            taken.wait();
            // SAFETY: the child calls only functions that allocate nothing, and then ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the alarm ends a child that waits, and `_exit` runs no destructor.
                unsafe {
                    libc::alarm(30);
                    libc::_exit(i32::from(!works_in_child()));
                }
            }
            let mut status = -1;
            // SAFETY: the child is this process's own, and the status is writable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            over.wait();
            assert_eq!(status, 0);
        });
    }
}
