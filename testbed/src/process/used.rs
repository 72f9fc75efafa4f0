//! Processor time of children, by the thread that has waited for them.

use std::cell::Cell;
use std::io;
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

thread_local! {
    /// Of the children that this thread has waited for.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// One wait at a time, so that the sum over all children grows by one child.
static WAIT: Mutex<()> = Mutex::new(());

/// Looks whether a child has ended, and adds its processor time to this thread's.
pub(super) fn try_wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let _one = WAIT.lock().unwrap_or_else(PoisonError::into_inner);
    let before = of(libc::RUSAGE_CHILDREN);
    let status = child.try_wait()?;
    if status.is_some() {
        charge(of(libc::RUSAGE_CHILDREN).saturating_sub(before));
    }
    Ok(status)
}

/// Waits for the end of a child, and adds its processor time to this thread's.
pub(super) fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    if let Some(status) = try_wait(child)? {
        return Ok(status);
    }
    // SAFETY: zeros are valid for plain numbers.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // Without the lock, because it may take long. It leaves the child to the next wait.
    // SAFETY: `info` is a valid place for the result.
    unsafe {
        libc::waitid(
            libc::P_PID,
            child.id(),
            &raw mut info,
            libc::WEXITED | libc::WNOWAIT,
        )
    };
    match try_wait(child)? {
        Some(status) => Ok(status),
        // A signal has ended the wait.
        None => child.wait(),
    }
}

/// Adds to this thread's processor time what another thread has used on its behalf.
pub fn charge(time: Duration) {
    WAITED.set(WAITED.get() + time);
}

/// Processor time of this thread, and of the children that it has waited for with all that these have waited for.
#[must_use]
pub fn used() -> Duration {
    WAITED.get() + of(libc::RUSAGE_THREAD)
}

/// Processor time of this thread, this process or all its ended children (`RUSAGE_THREAD`, `RUSAGE_SELF`,
/// `RUSAGE_CHILDREN`).
#[must_use]
pub fn of(who: libc::c_int) -> Duration {
    // SAFETY: zeros are valid for plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid place for the result.
    unsafe { libc::getrusage(who, &raw mut usage) };
    let time = |time: libc::timeval| {
        let micros = time.tv_sec * 1_000_000 + time.tv_usec;
        Duration::from_micros(micros.try_into().unwrap_or(0))
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::super::{Group, wait_until};
    use super::*;
    use std::process::Command;

    /// Longest wait. It only bounds a hang.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A shell that counts, with its child.
    fn counts() -> Command {
        let mut command = Command::new("sh");
        let count = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        command.args(["-c", &format!("sh -c '{count}'; {count}")]);
        command
    }

    #[test]
    fn a_thread_has_the_time_of_the_children_that_it_waits_for() {
        let before = used();
        let of_other = std::thread::spawn(|| {
            let mut group = Group::spawn(&mut counts()).unwrap();
            assert!(wait_until(PATIENCE, || group.has_ended()));
            used()
        });
        let of_other = of_other.join().unwrap();
        assert!(of_other > Duration::from_millis(5), "{of_other:?}");
        let own = used().saturating_sub(before);
        assert!(own < of_other / 2, "{own:?} beside {of_other:?}");
        charge(of_other);
        assert!(used().saturating_sub(before) >= of_other);
        // A group that is dropped counts as well.
        let before = used();
        let group = Group::spawn(&mut counts()).unwrap();
        let id = group.id();
        let stat = || std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        assert!(wait_until(PATIENCE, || stat().contains(") Z ")));
        drop(group);
        let own = used().saturating_sub(before);
        assert!(own > of_other / 4, "{own:?} of {of_other:?}");
    }
}
