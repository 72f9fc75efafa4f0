//! Processor time of a thread.

use std::time::Duration;

/// Processor time of the calling thread since its start.
#[must_use]
pub fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // By libc: rustix reads the auxiliary vector at its first use, which valgrind does not show as the kernel does.
    // SAFETY: `time` is a timespec, and every thread has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let number = |number: i64| u64::try_from(number).unwrap_or_default();
    Duration::from_secs(number(time.tv_sec)) + Duration::from_nanos(number(time.tv_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_processor_time() {
        let before = thread_time();
        let mut sum = 0_u64;
        while thread_time() == before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(thread_time() > before);
    }
}
