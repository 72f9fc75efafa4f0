//! Cases of threads, forks and signals at a bad moment.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::checks::{FAULTS, action, count, exchange, expect, in_child, open_device};

/// Ends this process if it waits without end from now on.
fn limit() {
    // SAFETY: no pointers.
    unsafe { libc::alarm(60) };
}

/// A thread sets handlers, while another one sends it the signal.
pub(crate) fn a_sent_signal_does_not_meet_its_own_change() -> Result<(), String> {
    const SENT: u32 = 3000;
    limit();
    let handler: extern "C" fn(c_int) = count;
    let action = action(handler as usize, 0, &[]);
    exchange(libc::SIGSEGV, Some(&action))?;
    let _device = open_device()?;
    // SAFETY: no preconditions.
    let this = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for sent in 0..SENT {
                // SAFETY: the thread lives until this one has ended.
                let answer = unsafe { libc::pthread_kill(this, libc::SIGSEGV) };
                expect("pthread_kill", answer, 0)?;
                while FAULTS.load(Ordering::Relaxed) == sent {
                    std::thread::yield_now();
                }
                // A busy machine takes long for all of them together.
                limit();
                // The next one comes at another moment of a change.
                (0..sent % 128).for_each(|_| std::hint::spin_loop());
            }
            Ok::<_, String>(())
        });
        let mut set = Ok(());
        while set.is_ok() && FAULTS.load(Ordering::Relaxed) < SENT {
            set = exchange(libc::SIGSEGV, Some(&action)).map(drop);
        }
        sender.join().map_err(|_| "the sender panicked")??;
        set
    })
}

/// Processes whose child opens the device while a thread of theirs attaches to it.
pub(crate) fn a_child_does_not_wait_for_a_thread_that_attaches() -> Result<(), String> {
    const PROCESSES: u32 = 50;
    for _ in 0..PROCESSES {
        in_child(|| {
            let starts = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let opens = scope.spawn(|| {
                    starts.store(true, Ordering::Release);
                    open_device().map(drop)
                });
                while !starts.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                let child = in_child(|| {
                    limit();
                    open_device().map(drop)
                });
                opens.join().map_err(|_| "the thread panicked")??;
                child
            })
        })?;
    }
    Ok(())
}
