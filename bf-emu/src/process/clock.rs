//! The page from which a driver converts timestamps of completions to the time of day
//! (`mlx5-abi.h`, `struct mlx5_ib_clock_info`).

use std::os::fd::RawFd;
use std::time::{SystemTime, UNIX_EPOCH};

use super::pages;
use crate::sys::{self, Errno};

/// The clock page in the driver's mmap offsets: command 7 (`MLX5_IB_MMAP_CLOCK_INFO`, at bit 8), in
/// pages.
const PAGE: u64 = 7 << 8;
/// Bytes of the structure.
const BYTES: usize = 56;

/// Writes the clock page into a context's file. Time stamps are nanoseconds of the monotonic clock.
/// One pair of readings is therefore valid until the time of day is set.
pub(super) fn put(fd: RawFd) -> Result<(), Errno> {
    let day_ns = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos());
    let nsec = u64::try_from(day_ns).unwrap_or(u64::MAX);
    let info = info(nsec, sys::now_ns());
    // A write to a file in memory is complete or fails.
    sys::pwrite(fd, &info, PAGE * pages::BYTES as u64).map(drop)
}

/// The structure for time of day `nsec` at device time `cycles`, in nanoseconds.
fn info(nsec: u64, cycles: u64) -> [u8; BYTES] {
    const NSEC: usize = 8;
    const CYCLES: usize = 16;
    const MULT: usize = 32;
    const MASK: usize = 40;
    const OVERFLOW_PERIOD: usize = 48;
    // The sequence lock's sign, the fraction and the shift are 0.
    let mut info = [0; BYTES];
    info[NSEC..][..8].copy_from_slice(&nsec.to_ne_bytes());
    info[CYCLES..][..8].copy_from_slice(&cycles.to_ne_bytes());
    info[MULT..][..4].copy_from_slice(&1u32.to_ne_bytes());
    info[MASK..][..8].copy_from_slice(&u64::MAX.to_ne_bytes());
    info[OVERFLOW_PERIOD..][..8].copy_from_slice(&u64::MAX.to_ne_bytes());
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets of the kernel's structure: sign, resv, nsec, cycles, frac, mult, shift, mask,
    /// overflow_period.
    #[test]
    fn layout() {
        let info = info(0x0102, 0x0304);
        let word = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().unwrap());
        let words = [word(0), word(8), word(16), word(24), word(32), word(40)];
        assert_eq!(words, [0, 0x0102, 0x0304, 0, 1, u64::MAX]);
    }
}
