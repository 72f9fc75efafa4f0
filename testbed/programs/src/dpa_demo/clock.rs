//! Times: pauses of a process that waits, processor time of other processes.

use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

/// First and longest pause between two looks at a word of memory. A processor of the DPU sleeps meanwhile.
const PAUSE: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(320));
/// Bounds a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Looks until there is a result.
pub(super) fn wait<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let began = Instant::now();
    let mut pause = PAUSE.0;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(
            began.elapsed() < LIMIT,
            "no {what} within {} s",
            LIMIT.as_secs()
        );
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Looks without a pause until there is a result, for times of single kernels.
pub(super) fn spin<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(
            began.elapsed() < LIMIT,
            "no {what} within {} s",
            LIMIT.as_secs()
        );
        std::thread::yield_now();
    }
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
