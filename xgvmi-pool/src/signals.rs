//! The signal mask of threads that this crate starts.
//!
//! A new thread inherits the mask of its creator. Without a mask of its own it could run the signal
//! handlers of the application, which may expect a thread of the application.

/// Runs a function that starts threads. The threads block all signals except those that an error of
/// the thread itself raises.
#[cfg(feature = "mlx5")]
pub(crate) fn blocked<T>(start: impl FnOnce() -> T) -> T {
    const OWN: [libc::c_int; 6] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
    ];
    // SAFETY: an all-zero set is a valid one.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are this function's own.
    let changed = unsafe {
        libc::sigfillset(&raw mut all);
        for signal in OWN {
            libc::sigdelset(&raw mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) == 0
    };
    let result = start();
    if changed {
        // SAFETY: the call above has written the set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
        };
    }
    result
}

/// Without an adapter there is no application whose signals matter.
#[cfg(not(feature = "mlx5"))]
pub(crate) fn blocked<T>(start: impl FnOnce() -> T) -> T {
    start()
}

#[cfg(all(test, feature = "mlx5"))]
mod tests {
    use super::*;

    /// Signals that this thread blocks, as a bit mask.
    fn mask() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(line.expect("a mask").trim(), 16).expect("a number")
    }

    #[test]
    fn a_new_thread_handles_no_signal_of_the_application() {
        let before = mask();
        let of_thread = blocked(|| std::thread::spawn(mask))
            .join()
            .expect("a thread");
        assert_eq!(mask(), before);
        let bit = |signal: libc::c_int| 1_u64 << (signal - 1);
        for signal in [
            libc::SIGALRM,
            libc::SIGUSR1,
            libc::SIGPROF,
            libc::SIGCHLD,
            libc::SIGTERM,
        ] {
            assert_ne!(of_thread & bit(signal), 0, "{signal}");
        }
        assert_eq!(of_thread & bit(libc::SIGSEGV), 0);
    }

    #[test]
    fn the_threads_of_this_crate_are_such_threads() {
        let items = [0_u8; 64];
        let caller = std::thread::current().id();
        // Each helper waits for the other threads, so all of them work.
        let barrier = std::sync::Barrier::new(4);
        let masks = crate::parallel::parallel(&items[..4], 4, |_| {
            barrier.wait();
            (std::thread::current().id() == caller, mask())
        });
        let alarm = 1_u64 << (libc::SIGALRM - 1);
        let helpers = masks
            .iter()
            .filter(|(is_caller, mask)| !is_caller && mask & alarm != 0);
        assert_eq!(helpers.count(), 3, "{masks:?}");
        let keeper = crate::keeper::Keeper::new();
        let (sender, receiver) = std::sync::mpsc::channel();
        let started = keeper.start(std::time::Duration::from_secs(1), move || {
            let _received = sender.send(mask());
            crate::keeper::Round::Over
        });
        assert!(started);
        keeper.kick();
        assert_ne!(receiver.recv().expect("a round") & alarm, 0);
        keeper.stop();
    }
}
