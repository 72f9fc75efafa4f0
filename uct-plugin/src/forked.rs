//! Forked children. A thread of the parent may have held a lock at the fork. It does not exist in
//! the child, where nothing releases the lock. A child therefore waits for a lock only for a limited
//! time, and then goes on without the locked data.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
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

/// Counts forks from now on: before the first lock that a thread may hold at a fork. A program that forks before it uses UCX
/// is no child. False if the system has no memory for it.
pub(crate) fn watch_forks() -> bool {
    static IS_WATCHING: AtomicBool = AtomicBool::new(false);
    if IS_WATCHING.load(Ordering::Acquire) {
        return true;
    }
    // Two threads may come here, and neither waits for the other one.
    // SAFETY: the handlers close descriptors and store to atomics.
    let is_watching = unsafe { libc::pthread_atfork(None, None, Some(in_child)) == 0 };
    if is_watching {
        IS_WATCHING.store(true, Ordering::Release);
    }
    is_watching
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
    is_kept && watch_forks()
}

/// Runs the function before and after each fork, in the parent. False if the system has no memory for it.
pub(crate) fn watch_parent(handler: extern "C" fn()) -> bool {
    // SAFETY: the function takes no lock that a thread holds during a fork.
    unsafe { libc::pthread_atfork(Some(handler), Some(handler), None) == 0 }
}

extern "C" fn in_child() {
    /// The child that was here.
    static CHILD: AtomicI32 = AtomicI32::new(0);
    // SAFETY: it has no preconditions.
    let own = unsafe { libc::getpid() };
    if CHILD.swap(own, Ordering::Relaxed) == own {
        return;
    }
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

/// `ibv_is_fork_initialized`, an `enum ibv_fork_status` (infiniband/verbs.h).
type ForkStatusFn = unsafe extern "C" fn() -> c_int;

/// `IBV_FORK_DISABLED`: `ibv_fork_init` was not called, and the kernel does not say that it copies.
const FORK_DISABLED: c_int = 0;
/// `IBV_FORK_UNNEEDED`: the kernel copies pinned pages for a child.
const FORK_UNNEEDED: c_int = 2;
/// Linux copies pinned pages for a child since this version.
const COPIES_PINNED: (u32, u32) = (5, 12);

/// True if a forked child has all memory that its parent registers. `symbol` finds libibverbs' functions.
pub(crate) fn is_safe(symbol: impl Fn(&CStr) -> Option<NonNull<c_void>>) -> bool {
    let status = symbol(c"ibv_is_fork_initialized")
        .map(|function| {
            // SAFETY: libibverbs' function of that name has this type.
            unsafe { std::mem::transmute::<*mut c_void, ForkStatusFn>(function.as_ptr()) }
        })
        // SAFETY: it has no preconditions.
        .map(|status| unsafe { status() });
    is_fork_safe(status, release())
}

/// Whether a child of a fork has all memory that is registered: with `MADV_DONTFORK` on slabs it would
/// lose its heap, and on an old kernel the parent's pages could move away from their registration.
fn is_fork_safe(status: Option<c_int>, release: Option<(u32, u32)>) -> bool {
    match status {
        Some(FORK_UNNEEDED) => true,
        Some(FORK_DISABLED) | None => release.is_some_and(|release| release >= COPIES_PINNED),
        Some(_) => false,
    }
}

/// Version of the kernel.
fn release() -> Option<(u32, u32)> {
    // SAFETY: an all-zero value is valid.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the result can be written.
    if unsafe { libc::uname(&raw mut name) } != 0 {
        return None;
    }
    // SAFETY: the kernel ends the text with a zero byte.
    let text = unsafe { CStr::from_ptr(name.release.as_ptr()) };
    version(text.to_str().ok()?)
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
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

    #[test]
    fn handlers_that_two_threads_have_registered_count_a_fork_once() {
        assert!(watch_forks());
        // As a second thread that did not see the first one.
        // SAFETY: as in `watch_forks`.
        let again = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert_eq!(again, 0);
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it runs no destructor.
            unsafe { libc::_exit(i32::from(generation() != 1)) };
        }
        let mut status = -1;
        // SAFETY: the child is this process's own, and the status is writable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }

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

    #[test]
    fn a_fork_is_safe_only_where_the_kernel_copies_pinned_pages() {
        for (status, release, expect) in [
            (Some(FORK_UNNEEDED), None, true),
            (Some(FORK_UNNEEDED), Some((4, 18)), true),
            (Some(FORK_DISABLED), Some((5, 12)), true),
            (Some(FORK_DISABLED), Some((5, 11)), false),
            (Some(FORK_DISABLED), None, false),
            // IBV_FORK_ENABLED: registrations take their pages away from children.
            (Some(1), Some((6, 1)), false),
            (None, Some((6, 1)), true),
            (None, Some((4, 19)), false),
        ] {
            assert_eq!(
                is_fork_safe(status, release),
                expect,
                "{status:?} {release:?}"
            );
        }
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("5.14-rc1"), Some((5, 14)));
        assert_eq!(version("none"), None);
        assert!(release().is_some());
    }
}
