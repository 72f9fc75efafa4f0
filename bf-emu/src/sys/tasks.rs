//! Processes and threads: whether they exist, since when, and whether the kernel marks their mutexes. Async-signal-safe.

use std::ffi::CStr;
use std::io::Write;

use super::{Errno, last_error};
use crate::sys;

/// True if a process exists. One that has ended exists until its parent asks for its result.
#[must_use]
pub fn exists(process: i32) -> bool {
    // SAFETY: signal 0 only checks.
    let asked = unsafe { libc::kill(process, 0) };
    asked == 0 || last_error() != Errno(libc::ESRCH)
}

/// True if the kernel knows the list of robust mutexes of the calling thread, which it marks at its end.
#[must_use]
pub fn has_robust_list() -> bool {
    let (mut head, mut length) = (0_usize, 0_usize);
    // SAFETY: both pointers are to words of this frame.
    let asked =
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut length) };
    asked == 0 && head != 0
}

/// True if a process or thread has ended, or its number is that of a later one, which started at another time than `started`.
/// An error of the calling process, such as too many open files, proves nothing.
#[must_use]
pub fn has_ended(task: i32, started: Option<u64>) -> bool {
    match started_at(task) {
        Ok(found) => found.is_none() || started.is_some_and(|time| found != Some(time)),
        Err(error) => matches!(error, Errno(libc::ENOENT | libc::ESRCH)),
    }
}

/// Start time of a process or thread in clock ticks since boot; None if it does not exist, is a zombie, or cannot be asked.
#[must_use]
pub fn start_time(task: i32) -> Option<u64> {
    started_at(task).ok().flatten()
}

/// As [`start_time`]; None for a zombie.
fn started_at(task: i32) -> sys::Result<Option<u64>> {
    const NO_PATH: Errno = Errno(libc::EINVAL);
    let mut path = [0; 48];
    // Two numbers of at most eleven characters fit. Their formatting does not allocate. A user-mode emulator invents the
    // content of a process's own /proc/PID/stat, but not that of its threads.
    write!(&mut path[..], "/proc/{task}/task/{task}/stat\0").map_err(|_| NO_PATH)?;
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| NO_PATH)?;
    let file = sys::open(path, libc::O_RDONLY)?;
    // A line has 52 numbers and a name of at most 64 bytes. The start time is in its first half.
    let mut line = [0; 1024];
    let length = sys::read(file, &mut line);
    sys::close(file);
    Ok(parse_start_time(line.get(..length?).unwrap_or_default()))
}

fn parse_start_time(line: &[u8]) -> Option<u64> {
    // The second field is the program's name in parentheses. The name may contain any byte.
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Waits until the system forgets a thread, which may take a moment after the join.
#[cfg(test)]
pub(crate) fn wait_for_end(thread: u32) {
    use std::time::{Duration, Instant};
    let task = i32::try_from(thread).unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    while !has_ended(task, None) {
        assert!(Instant::now() < limit, "thread {thread} does not end");
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_process() {
        let fields = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        for (line, expect) in [
            (format!("7 (a) S {fields}"), Some(4711)),
            (format!("7 (a) ) Z 1) R {fields}\n"), Some(4711)),
            (format!("7 (a) Z {fields}"), None),
            ("7 (a) S 1 2".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(parse_start_time(line.as_bytes()), expect, "{line:?}");
        }
        let own = start_time(sys::pid());
        assert!(own.is_some());
        assert_eq!(own, start_time(sys::pid()));
        assert_eq!(start_time(i32::MAX), None);
    }

    #[test]
    fn a_process_without_free_descriptors_takes_no_other_for_dead() {
        let pid = sys::pid();
        let started = start_time(pid);
        assert!(has_ended(i32::MAX, None) && has_ended(pid, Some(0)));
        assert!(!has_ended(pid, started) && !has_ended(pid, None));
        // SAFETY: the child only makes system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: the limit is of this frame.
            let failed = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) };
            let took = has_ended(pid, started) || start_time(pid).is_some();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(failed != 0 || took)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "a living process counted as dead");
    }
}
