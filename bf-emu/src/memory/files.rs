//! The memory of other processes through `/proc/PID/mem`, opened once per process.
//!
//! For a few bytes this takes little more than half the time of `process_vm_writev`, which looks up the process and
//! checks permissions at each call. All other transfers use that call, and it also reports the cause of an error.
//!
//! A file refers to the memory that the process had when the file was opened. After an exec or the end of the process
//! it transfers nothing. The files have high numbers, so that a program that expects the next free number does not meet
//! them. A program that closes all its files may close these too.
//!
//! The signal handler uses this module: it does not allocate, lock or panic.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sys::{self, Errno, path::PathBuffer};

/// Most bytes that go this way: the kernel copies them twice, which soon takes longer than what is saved.
pub(super) const BYTES_MAX: usize = 2048;
/// Files that are open at most; of two processes whose numbers share a place, the last one used has it.
const PLACES: usize = 64;
/// The files' numbers are from here, or from the middle of what the process may have open.
const NUMBER_MIN: u64 = 4000;

/// A process's number in the upper half; in the lower one [`NO_FILE`] or its file's number behind it.
static FILES: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
/// How many of them may be open: none is the case of those who never had a peer.
static OPENED: AtomicUsize = AtomicUsize::new(0);
/// The process's memory is not to be had as a file.
const NO_FILE: u64 = 1;

/// Copies from `remote` of another process to `local` of this one. False if that did not work: nothing is
/// said about why.
///
/// # Safety
/// As [`sys::vm_read`].
pub(super) unsafe fn read(pid: i32, local: usize, remote: u64, length: usize) -> bool {
    // SAFETY: the caller's promise.
    let moved = |file| unsafe { sys::pread_to(file, local, length, remote) };
    length <= BYTES_MAX && by_file(pid, length, moved)
}

/// Copies from `local` of this process to `remote` of another one, likewise.
///
/// # Safety
/// As [`sys::vm_write`].
pub(super) unsafe fn write(pid: i32, local: usize, remote: u64, length: usize) -> bool {
    // SAFETY: the caller's promise.
    let moved = |file| unsafe { sys::pwrite_from(file, local, length, remote) };
    length <= BYTES_MAX && by_file(pid, length, moved)
}

/// True if this may be the number of such a file.
#[must_use]
pub fn may_be(fd: RawFd) -> bool {
    OPENED.load(Ordering::Relaxed) != 0 && FILES.iter().any(|place| holds(place, fd))
}

fn holds(place: &AtomicU64, fd: RawFd) -> bool {
    file_of(place.load(Ordering::Relaxed)) == Some(fd)
}

/// The program is about to close this file of its own accord.
pub fn closing(fd: RawFd) {
    for place in &FILES {
        if holds(place, fd) {
            let held = place.load(Ordering::Relaxed);
            place.store(held & !u64::from(u32::MAX) | NO_FILE, Ordering::Relaxed);
        }
    }
}

fn by_file(pid: i32, wanted: usize, moved: impl FnOnce(RawFd) -> sys::Result<usize>) -> bool {
    let Ok(index) = usize::try_from(pid) else {
        return false;
    };
    let Some(place) = FILES.get(index % PLACES) else {
        return false;
    };
    let mut held = place.load(Ordering::Relaxed);
    if held >> 32 != u64::from(pid.unsigned_abs()) {
        held = replace(place, held, pid);
    }
    let Some(file) = file_of(held) else {
        return false;
    };
    match moved(file) {
        Ok(done) if done == wanted => true,
        // Another program runs under the number, or none: it is looked for anew.
        Ok(0) => {
            if place.swap(0, Ordering::Relaxed) == held {
                sys::close(file);
            }
            false
        }
        // Closed, and perhaps another file by now, which is not to be touched again.
        Err(Errno(libc::EBADF | libc::ESPIPE)) => {
            place.store(held & !u64::from(u32::MAX) | NO_FILE, Ordering::Relaxed);
            false
        }
        _ => false,
    }
}

fn file_of(held: u64) -> Option<RawFd> {
    let [a, b, c, d, ..] = held.to_le_bytes();
    let number = i32::from_le_bytes([a, b, c, d]);
    // 0 is an empty place and 1 no file.
    number.checked_sub(2).filter(|number| *number >= 0)
}

/// Opens the memory of a process and gives it the place of another.
#[cold]
fn replace(place: &AtomicU64, held: u64, pid: i32) -> u64 {
    let file = open(pid);
    let low = file.map_or(NO_FILE, |file| u64::from(file.unsigned_abs()) + 2);
    let new = u64::from(pid.unsigned_abs()) << 32 | low;
    OPENED.fetch_add(usize::from(file.is_some()), Ordering::Relaxed);
    if place
        .compare_exchange(held, new, Ordering::Relaxed, Ordering::Relaxed)
        .is_err()
    {
        // Another thread was there before: its file may be of any process.
        if let Some(file) = file {
            sys::close(file);
        }
        return 0;
    }
    if let Some(old) = file_of(held) {
        sys::close(old);
    }
    new
}

fn open(pid: i32) -> Option<RawFd> {
    let mut path = PathBuffer::new();
    path.text("/proc/").number(pid).text("/mem");
    let file = sys::open(path.as_cstr(), libc::O_RDWR).ok()?;
    let from = NUMBER_MIN.min(sys::files_max() / 2);
    let high = sys::duplicate_from(file, from);
    sys::close(file);
    high.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryError, Space};
    use std::process::{Child, Command, Stdio};
    use std::sync::Mutex;

    /// Numbers of files are everybody's.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// A process of its own, and an address in it that it will not use: its environment's end.
    struct Other {
        child: Child,
        address: u64,
    }

    impl Other {
        fn new() -> Self {
            let child = Command::new("cat")
                .env("PAD", "x".repeat(4096))
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let path = format!("/proc/{}/maps", child.id());
            // Between fork and exec it has this program's memory still.
            let stack = loop {
                let environment = std::fs::read(format!("/proc/{}/environ", child.id()));
                let maps = std::fs::read_to_string(&path).unwrap();
                let stack = maps.lines().find(|line| line.ends_with("[stack]"));
                let ours = environment.is_ok_and(|text| text.windows(4).any(|w| w == b"PAD="));
                if let Some(stack) = stack
                    && ours
                {
                    break stack.to_owned();
                }
                std::thread::yield_now();
            };
            let end = stack.split_once('-').unwrap().1.split_once(' ').unwrap().0;
            let end = u64::from_str_radix(end, 16).unwrap();
            Self {
                child,
                address: end - 2048,
            }
        }

        fn pid(&self) -> i32 {
            i32::try_from(self.child.id()).unwrap()
        }

        fn held(&self) -> u64 {
            let index = usize::try_from(self.pid()).unwrap() % PLACES;
            FILES[index].load(Ordering::Relaxed)
        }

        /// Writes and reads it back.
        fn check(&self, byte: u8) {
            let space = Space::of(self.pid());
            let mut found = [0; 64];
            space.write(self.address, &[byte; 64]).unwrap();
            space.read(self.address, &mut found).unwrap();
            assert_eq!(found, [byte; 64]);
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }

    #[test]
    fn bytes_go_by_file_and_without_one() {
        let _turn = ONE_AT_A_TIME.lock().unwrap();
        let mut other = Other::new();
        other.check(1);
        let file = file_of(other.held()).unwrap();
        // The program closes all its files.
        closing(file);
        sys::close(file);
        assert_eq!(file_of(other.held()), None);
        other.check(2);
        // So does one that does not say so, and one that puts another file there.
        for instead in [None, Some(())] {
            let index = usize::try_from(other.pid()).unwrap() % PLACES;
            FILES[index].store(0, Ordering::Relaxed);
            other.check(3);
            let file = file_of(other.held()).unwrap();
            sys::close(file);
            let pipe = instead.map(|()| sys::pipe(false).unwrap());
            let put = pipe
                .map(|(_, end)| sys::duplicate_from(end, u64::from(file.unsigned_abs())).unwrap());
            other.check(4);
            assert_eq!(file_of(other.held()), None);
            assert!(put.is_none_or(|put| put == file && sys::file_id(put).is_ok()));
            for end in pipe.into_iter().flat_map(|(a, b)| [a, b]).chain(put) {
                sys::close(end);
            }
        }
        // What is not there, is not there by file either.
        let space = Space::of(other.pid());
        assert_eq!(space.write(64, &[0; 8]), Err(MemoryError::Fault));
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        assert_eq!(space.write(other.address, &[0; 8]), Err(MemoryError::Gone));
        let mut found = [0; 8];
        assert_eq!(
            space.read(other.address, &mut found),
            Err(MemoryError::Gone)
        );
    }

    #[test]
    fn a_place_goes_to_who_comes() {
        let _turn = ONE_AT_A_TIME.lock().unwrap();
        let (first, second) = (Other::new(), Other::new());
        let place = AtomicU64::new(0);
        let held = replace(&place, 0, first.pid());
        let old = file_of(held).unwrap();
        let held = replace(&place, held, second.pid());
        assert_eq!(place.load(Ordering::Relaxed), held);
        let file = file_of(held).unwrap();
        assert!(sys::file_id(old).is_err() || old == file);
        sys::close(file);
        // A process that there is not has no file, and is not asked for again.
        assert_eq!(replace(&place, held, 1 << 30) & 0xffff_ffff, NO_FILE);
    }
}
