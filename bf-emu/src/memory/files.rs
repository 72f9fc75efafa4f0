//! The memory of other processes through `/proc/PID/mem`, opened once per process.
//!
//! For a few bytes this takes little more than half the time of `process_vm_writev`, which looks up
//! the process and checks permissions at each call. All other transfers use that call, and it also
//! reports the cause of an error. Where the system refuses that call, all transfers go through the
//! files (`read_all`, `write_all`).
//!
//! A file refers to the memory that the process had when the file was opened. After an exec or the
//! end of the process it transfers nothing. It is closed when a transfer finds that, and when a file
//! of another process is opened. The files have high numbers, so that a program that
//! expects the next free number does not meet them. A program that closes all its files may close
//! these too.
//!
//! The signal handler uses this module: it does not allocate, lock or panic.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sys::{self, Errno, path::PathBuffer};

/// Longest transfer through a file. The kernel copies it twice, which soon costs more than it
/// saves.
pub(super) const BYTES_MAX: usize = 2048;
/// Largest number of open files. Processes whose numbers share a slot replace each other's file.
const PLACES: usize = 64;
/// Lowest file descriptor; half of the process's limit if that is lower.
const NUMBER_MIN: u64 = 4000;

/// The process number in the upper half. The lower half is [`NO_FILE`], or the file descriptor plus
/// 2.
static FILES: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
/// Number of files that may be open. It is zero in a process that never had a peer.
static OPENED: AtomicUsize = AtomicUsize::new(0);
/// The process's memory cannot be opened as a file.
const NO_FILE: u64 = 1;

/// Copies from `remote` of another process to `local` of this one. Returns false on a failure,
/// without its cause.
///
/// # Safety
/// Same as [`sys::vm_read`].
pub(super) unsafe fn read(pid: i32, local: usize, remote: u64, length: usize) -> bool {
    // SAFETY: the caller's promise.
    let moved = |file| unsafe { sys::pread_to(file, local, length, remote) };
    length <= BYTES_MAX && by_file(pid, length, moved)
}

/// Copies from `local` of this process to `remote` of another one. Returns false on a failure,
/// without its cause.
///
/// # Safety
/// Same as [`sys::vm_write`].
pub(super) unsafe fn write(pid: i32, local: usize, remote: u64, length: usize) -> bool {
    // SAFETY: the caller's promise.
    let moved = |file| unsafe { sys::pwrite_from(file, local, length, remote) };
    length <= BYTES_MAX && by_file(pid, length, moved)
}

/// Like [`read`], of any length, with the cause of a failure.
///
/// # Safety
/// Same as [`sys::vm_read`].
pub(super) unsafe fn read_all(
    pid: i32,
    local: usize,
    remote: u64,
    length: usize,
) -> sys::Result<()> {
    // SAFETY: the caller's promise.
    all(pid, length, |file| unsafe {
        sys::pread_to(file, local, length, remote)
    })
}

/// Like [`write`], of any length, with the cause of a failure.
///
/// # Safety
/// Same as [`sys::vm_write`].
pub(super) unsafe fn write_all(
    pid: i32,
    local: usize,
    remote: u64,
    length: usize,
) -> sys::Result<()> {
    // SAFETY: the caller's promise.
    all(pid, length, |file| unsafe {
        sys::pwrite_from(file, local, length, remote)
    })
}

/// A transfer that has no other way than the file. The kernel stops at the first missing page, and after 2 GiB, which is
/// more than the device moves at once.
fn all(pid: i32, length: usize, moved: impl Fn(RawFd) -> sys::Result<usize>) -> sys::Result<()> {
    // A file whose process has run another program is opened a second time.
    for _ in 0..2 {
        if length == 0 || by_file(pid, length, &moved) {
            return Ok(());
        }
    }
    // The program has closed the file. A file of its own for each transfer is slow, and works.
    if let Some(file) = open(pid) {
        let done = moved(file);
        sys::close(file);
        if done == Ok(length) {
            return Ok(());
        }
    }
    if sys::tasks::exists(pid) {
        Err(Errno(libc::EFAULT))
    } else {
        forget(pid);
        Err(Errno(libc::ESRCH))
    }
}

/// True if the descriptor may be one of these files.
#[must_use]
pub fn may_be(fd: RawFd) -> bool {
    OPENED.load(Ordering::Relaxed) != 0 && FILES.iter().any(|place| holds(place, fd))
}

fn holds(place: &AtomicU64, fd: RawFd) -> bool {
    file_of(place.load(Ordering::Relaxed)) == Some(fd)
}

/// Closes the file of a process that has ended.
#[cold]
pub(super) fn forget(pid: i32) {
    let owner = u64::from(pid.unsigned_abs());
    for place in &FILES {
        let held = place.load(Ordering::Relaxed);
        if held >> 32 == owner {
            empty(place, held);
        }
    }
}

/// Closes the files of all processes that have ended or run another program. Their files transfer
/// nothing, where a living process's file transfers or fails.
fn forget_ended() {
    for place in &FILES {
        let held = place.load(Ordering::Relaxed);
        let mut byte = 0_u8;
        let local = (&raw mut byte).expose_provenance();
        // SAFETY: a byte of this function.
        let ended = |file| unsafe { sys::pread_to(file, local, 1, 0) } == Ok(0);
        if file_of(held).is_some_and(ended) {
            empty(place, held);
        }
    }
}

/// Empties a slot and closes its file, unless another thread has changed the slot.
fn empty(place: &AtomicU64, held: u64) {
    let emptied = place.compare_exchange(held, 0, Ordering::Relaxed, Ordering::Relaxed);
    if let (Ok(_), Some(file)) = (emptied, file_of(held)) {
        sys::close(file);
    }
}

/// Must be called before the program closes this descriptor itself.
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
        // The process has ended or runs another program: the file is opened again.
        Ok(0) => {
            if place.swap(0, Ordering::Relaxed) == held {
                sys::close(file);
            }
            false
        }
        // The program has closed the descriptor and may have reused it. It is not used again.
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
    // 0 is an empty slot, and 1 means no file.
    number.checked_sub(2).filter(|number| *number >= 0)
}

/// Opens the memory of a process and puts the file into a slot. Removes the slot's previous file.
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
        // Another thread filled the slot first. Its file may belong to any process.
        if let Some(file) = file {
            sys::close(file);
        }
        return 0;
    }
    if let Some(old) = file_of(held) {
        sys::close(old);
    }
    forget_ended();
    new
}

fn open(pid: i32) -> Option<RawFd> {
    let mut path = PathBuffer::new();
    path.text("/proc/").number(pid).text("/mem");
    let file = sys::open(path.as_cstr(), libc::O_RDWR).ok()?;
    let from = NUMBER_MIN.min(sys::limits::files_max() / 2);
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

    /// All tests share the process's file descriptors.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// A separate process, and an unused address in it: the end of its environment.
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
            // Between fork and exec the child still has this program's memory.
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

        /// Writes a byte and reads it back.
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
        // The program closes all its files, with notice.
        closing(file);
        sys::close(file);
        assert_eq!(file_of(other.held()), None);
        other.check(2);
        // It closes them without notice, or opens another file in their place.
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
        // A missing page is also missing through the file.
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
    fn transfers_need_no_call_of_the_kernel_but_the_file() {
        let _turn = ONE_AT_A_TIME.lock().unwrap();
        let mut other = Other::new();
        let pid = other.pid();
        let mut bytes = [7; 1500];
        let at = bytes.as_mut_ptr().expose_provenance();
        // SAFETY: the array has this length, and the other program's stack may be changed: it only waits.
        let write = |to, length| unsafe { write_all(pid, at, to, length) };
        // SAFETY: the array, which no other thread uses, has this length.
        let read = |from, length| unsafe { read_all(pid, at, from, length) };
        write(other.address, 1500).unwrap();
        read(other.address, 1500).unwrap();
        assert_eq!(bytes, [7; 1500]);
        // The stack ends 2048 bytes behind the address; nothing is mapped behind it.
        for (at, length) in [(64, 8), (other.address + 2000, 1500)] {
            assert_eq!(write(at, length), Err(Errno(libc::EFAULT)));
            assert_eq!(read(at, length), Err(Errno(libc::EFAULT)));
        }
        // The program has closed the file: each transfer has a file of its own.
        let file = file_of(other.held()).unwrap();
        closing(file);
        sys::close(file);
        write(other.address, 8).unwrap();
        read(other.address, 8).unwrap();
        assert_eq!(read(64, 8), Err(Errno(libc::EFAULT)));
        assert_eq!(file_of(other.held()), None);
        other.child.kill().unwrap();
        other.child.wait().unwrap();
        assert_eq!(read(other.address, 8), Err(Errno(libc::ESRCH)));
        assert_eq!(write(other.address, 8), Err(Errno(libc::ESRCH)));
        assert_eq!(other.held(), 0);
    }

    #[test]
    fn files_of_ended_processes_are_closed() {
        let _turn = ONE_AT_A_TIME.lock().unwrap();
        let (mut first, mut second) = (Other::new(), Other::new());
        let has_file = |other: &Other| {
            let held = other.held();
            held >> 32 == u64::from(other.child.id()) && file_of(held).is_some()
        };
        first.check(1);
        assert!(has_file(&first));
        first.child.kill().unwrap();
        first.child.wait().unwrap();
        // Nothing has used the file since.
        assert!(has_file(&first));
        second.check(2);
        assert!(!has_file(&first));
        // A transfer that is too long for the file finds the end of the process.
        assert!(has_file(&second));
        second.child.kill().unwrap();
        second.child.wait().unwrap();
        let space = Space::of(second.pid());
        let mut long = [0; 2 * BYTES_MAX];
        assert_eq!(
            space.read(second.address, &mut long),
            Err(MemoryError::Gone)
        );
        assert!(!has_file(&second));
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
        // A process that does not exist has no file, and is not opened again.
        assert_eq!(replace(&place, held, 1 << 30) & 0xffff_ffff, NO_FILE);
    }
}
