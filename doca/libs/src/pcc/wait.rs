//! Waits for a change of a process's state.

use crate::error::{Result, fail};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK_NS: i64 = 5_000_000;

/// Signals of this thread that wait, except those of its own instructions, until this value is dropped.
struct Held(libc::sigset_t);

impl Held {
    fn new() -> Self {
        let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the first calls initialize the set, and the last one writes the old mask.
        unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            for own in [
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGILL,
                libc::SIGFPE,
                libc::SIGTRAP,
            ] {
                libc::sigdelset(blocked.as_mut_ptr(), own);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }

    /// Sleeps. Returns true if a signal has come, also one that came since the start.
    fn sleep(&self, ns: i64) -> bool {
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: ns,
        };
        // SAFETY: no descriptors, a time and a mask.
        let polled =
            unsafe { libc::ppoll(std::ptr::null_mut(), 0, &raw const time, &raw const self.0) };
        polled < 0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the mask before this value.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

/// Returns when the state is another one than at the start, after `seconds` (-1: no limit), or when a signal comes.
pub(super) fn change(seconds: i32, mut look: impl FnMut() -> Result<u32>) -> Result<()> {
    let limit = match u64::try_from(seconds) {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) if seconds == -1 => None,
        Err(_) => fail!(
            InvalidValue,
            "a wait of {seconds} s: allowed are 0 and more, or -1 for no limit"
        ),
    };
    let began = Instant::now();
    let first = look()?;
    // A state that never changes again.
    if first >= super::DEACTIVATED {
        return Ok(());
    }
    let held = Held::new();
    loop {
        if limit.is_some_and(|limit| began.elapsed() >= limit) || held.sleep(LOOK_NS) {
            return Ok(());
        }
        if look()? != first {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_a_change_a_limit_or_at_once_after_the_end() {
        let mut looks = 0;
        change(-1, || {
            looks += 1;
            Ok(u32::from(looks > 3))
        })
        .expect("good");
        assert_eq!(looks, 4);
        change(0, || Ok(1)).expect("the limit");
        change(-1, || Ok(super::super::ERROR)).expect("never another state");
        let fault = change(-2, || Ok(0)).expect_err("bad");
        assert!(fault.text.contains("a wait of -2 s"), "{fault}");
    }
}
