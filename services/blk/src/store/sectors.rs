//! Errors of single sectors: a record that the disk cannot read is damaged, and its block is repaired from other targets. A disk
//! with many of them in a short time has failed.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most records within [`TIME`] that are only damaged.
pub(super) const ERRORS_MAX: u32 = 16;
/// Time after which errors do not count any more.
const TIME: Duration = Duration::from_secs(60);

/// What the disk could not read lately.
#[derive(Debug, Default)]
pub(super) struct SectorErrors {
    /// Beginning of a period of [`TIME`], and errors since then.
    period: Mutex<Option<(Instant, u32)>>,
}

impl SectorErrors {
    /// True if a read has failed because of its sectors alone.
    pub(super) fn are_few(&self, error: &io::Error) -> bool {
        let of_sectors = [libc::EIO, libc::ENODATA, libc::EILSEQ, libc::EBADMSG];
        error
            .raw_os_error()
            .is_some_and(|code| of_sectors.contains(&code))
            && self.count(Instant::now()) <= ERRORS_MAX
    }

    fn count(&self, now: Instant) -> u32 {
        // A panic cannot leave it half changed.
        let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
        let (begun, before) = period
            .filter(|(begun, _)| now.saturating_duration_since(*begun) < TIME)
            .unwrap_or((now, 0));
        let errors = before.saturating_add(1);
        *period = Some((begun, errors));
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_errors_in_a_short_time_are_those_of_the_disk() {
        let errors = SectorErrors::default();
        let begun = Instant::now();
        for count in 1..=40 {
            assert_eq!(errors.count(begun + TIME / 2), count);
        }
        assert_eq!(errors.count(begun + TIME + TIME / 2), 1);
        let few = SectorErrors::default();
        let fails = |code| few.are_few(&io::Error::from_raw_os_error(code));
        assert!(!fails(libc::EBADF));
        assert!((0..ERRORS_MAX).all(|_| fails(libc::EIO)));
        assert!(!fails(libc::EIO));
    }
}
