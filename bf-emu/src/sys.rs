//! Direct system calls. They use no interposed libc symbol, do not allocate and take no lock, so
//! the signal handler may use all of them.

pub mod datagrams;
pub mod fork_lock;
pub mod full;
pub mod interface;
pub mod limits;
pub mod mapping;
pub mod once;
pub(crate) mod path;
pub(crate) mod steps;
pub mod tasks;
pub mod uring;

use std::ffi::CStr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::bits::{low32, size};

/// An error number of the kernel, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

/// Result of a system call.
pub type Result<T> = std::result::Result<T, Errno>;

/// The identity of an open file, independent of its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Device of the file system.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

/// The last error of the C library's wrapper `syscall`.
fn last_error() -> Errno {
    // SAFETY: the location of errno is a valid pointer for the calling thread, always.
    Errno(unsafe { *libc::__errno_location() })
}

fn check(ret: libc::c_long) -> Result<usize> {
    usize::try_from(ret).map_err(|_| last_error())
}

/// A value in the form of a system call's argument: a whole machine word. A narrower value passed
/// to the variadic `syscall` would leave the upper half of a stack slot undefined.
trait Word {
    fn word(self) -> usize;
}

impl Word for usize {
    fn word(self) -> usize {
        self
    }
}

impl Word for u64 {
    fn word(self) -> usize {
        size(self)
    }
}

impl Word for u32 {
    fn word(self) -> usize {
        self as usize
    }
}

impl Word for i32 {
    fn word(self) -> usize {
        // A negative number keeps its sign. The kernel truncates or extends it.
        size(i64::from(self).cast_unsigned())
    }
}

impl<T> Word for *const T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

impl<T> Word for *mut T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

macro_rules! syscall {
    ($number:expr $(, $arg:expr)* $(,)?) => {
        // SAFETY: each caller below passes the arguments of this system call. Its pointers are
        // valid for the given lengths, or the kernel returns EFAULT without an access.
        check(unsafe { libc::syscall($number $(, Word::word($arg))*) })
    };
}

/// Closes a file.
pub fn close(fd: RawFd) {
    let _ = syscall!(libc::SYS_close, fd);
}

/// Creates an anonymous file of `length` bytes. Its pages are allocated at the first access.
///
/// # Errors
/// The kernel's error.
pub fn memfd(name: &CStr, cloexec: bool, length: u64) -> Result<RawFd> {
    let flags = if cloexec { libc::MFD_CLOEXEC } else { 0 };
    let fd = to_fd(syscall!(libc::SYS_memfd_create, name.as_ptr(), flags)?);
    match syscall!(libc::SYS_ftruncate, fd, length) {
        Ok(_) => Ok(fd),
        Err(errno) => {
            close(fd);
            Err(errno)
        }
    }
}

fn to_fd(value: usize) -> RawFd {
    // The kernel's file descriptors are at most 2^20 (fs.nr_open).
    RawFd::try_from(value).unwrap_or(-1)
}

/// Identity of an open file.
///
/// # Errors
/// The kernel's error; EBADF if the descriptor is not open.
pub fn file_id(fd: RawFd) -> Result<FileId> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    #[cfg(target_arch = "x86_64")]
    syscall!(libc::SYS_fstat, fd, stat.as_mut_ptr())?;
    #[cfg(not(target_arch = "x86_64"))]
    syscall!(
        libc::SYS_newfstatat,
        fd,
        c"".as_ptr(),
        stat.as_mut_ptr(),
        libc::AT_EMPTY_PATH
    )?;
    // SAFETY: zeroed memory is a valid stat, and the kernel has written it.
    let stat = unsafe { stat.assume_init() };
    Ok(FileId {
        device: stat.st_dev,
        inode: stat.st_ino,
    })
}

/// Opens a file by its path.
///
/// # Errors
/// The kernel's error.
pub fn open(path: &CStr, flags: i32) -> Result<RawFd> {
    let flags = flags | libc::O_CLOEXEC;
    syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0).map(to_fd)
}

/// Duplicates an open file with close-on-exec. The new descriptor is the lowest free one from
/// `lowest` on.
///
/// # Errors
/// The kernel's error; EINVAL if `lowest` exceeds the process's limit.
pub fn duplicate_from(fd: RawFd, lowest: u64) -> Result<RawFd> {
    syscall!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, lowest).map(to_fd)
}

/// Writes bytes to a file. Returns the number of bytes written.
///
/// # Errors
/// The kernel's error.
pub fn write(fd: RawFd, bytes: &[u8]) -> Result<usize> {
    syscall!(libc::SYS_write, fd, bytes.as_ptr(), bytes.len())
}

/// Like [`fn@write`], to a pipe that may have no reader. A missing reader is an error and raises no
/// signal. `SIGPIPE` must be blocked in the calling thread.
///
/// # Errors
/// The kernel's error; EPIPE if there is no reader.
pub fn write_pipe(fd: RawFd, bytes: &[u8]) -> Result<usize> {
    let written = write(fd, bytes);
    if written == Err(Errno(libc::EPIPE)) {
        // The signal is pending in the writing thread. It is removed here.
        let set = 1u64 << (libc::SIGPIPE - 1);
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let no_info: *mut libc::siginfo_t = std::ptr::null_mut();
        let _ = syscall!(
            libc::SYS_rt_sigtimedwait,
            &raw const set,
            no_info,
            &raw const now,
            8
        );
    }
    written
}

/// Reads bytes of a file. Returns the number of bytes read.
///
/// # Errors
/// The kernel's error.
pub fn read(fd: RawFd, bytes: &mut [u8]) -> Result<usize> {
    syscall!(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len())
}

/// Reads bytes of a file at an offset.
///
/// # Errors
/// The kernel's error.
pub fn pread(fd: RawFd, bytes: &mut [u8], offset: u64) -> Result<usize> {
    syscall!(
        libc::SYS_pread64,
        fd,
        bytes.as_mut_ptr(),
        bytes.len(),
        offset
    )
}

/// Like [`pread`], to an address.
///
/// # Errors
/// The kernel's error; EFAULT if `local` is not writable.
///
/// # Safety
/// Same as [`vm_read`].
pub unsafe fn pread_to(fd: RawFd, local: usize, length: usize, offset: u64) -> Result<usize> {
    syscall!(libc::SYS_pread64, fd, local, length, offset)
}

/// Like [`pwrite`], from an address.
///
/// # Errors
/// The kernel's error; EFAULT if `local` is not readable.
///
/// # Safety
/// The caller must be permitted to change the file at that offset.
pub unsafe fn pwrite_from(fd: RawFd, local: usize, length: usize, offset: u64) -> Result<usize> {
    syscall!(libc::SYS_pwrite64, fd, local, length, offset)
}

/// Writes bytes to a file at an offset.
///
/// # Errors
/// The kernel's error.
pub fn pwrite(fd: RawFd, bytes: &[u8], offset: u64) -> Result<usize> {
    syscall!(libc::SYS_pwrite64, fd, bytes.as_ptr(), bytes.len(), offset)
}

/// A pipe: (read end, write end). With `packets`, one read returns the bytes of one write.
///
/// # Errors
/// The kernel's error.
pub fn pipe(packets: bool) -> Result<(RawFd, RawFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    let flags = libc::O_CLOEXEC | if packets { libc::O_DIRECT } else { 0 };
    syscall!(libc::SYS_pipe2, ends.as_mut_ptr(), flags)?;
    Ok((ends[0], ends[1]))
}

/// Sets or clears `O_NONBLOCK`.
///
/// # Errors
/// The kernel's error.
pub fn set_nonblocking(fd: RawFd) -> Result<()> {
    let flags = syscall!(libc::SYS_fcntl, fd, libc::F_GETFL)?;
    let flags = low32(flags as u64).cast_signed() | libc::O_NONBLOCK;
    syscall!(libc::SYS_fcntl, fd, libc::F_SETFL, flags).map(drop)
}

/// True if operations on an open file do not block.
///
/// # Errors
/// The kernel's error.
pub fn is_nonblocking(fd: RawFd) -> Result<bool> {
    let flags = syscall!(libc::SYS_fcntl, fd, libc::F_GETFL)?;
    let flags = low32(flags as u64).cast_signed();
    Ok(flags & libc::O_NONBLOCK != 0)
}

/// Clears close-on-exec.
///
/// # Errors
/// The kernel's error.
pub fn keep_over_exec(fd: RawFd) -> Result<()> {
    syscall!(libc::SYS_fcntl, fd, libc::F_SETFD, 0).map(drop)
}

/// True if the other end of a pipe is closed.
#[must_use]
pub fn has_no_reader(write_fd: RawFd) -> bool {
    let mut poll = libc::pollfd {
        fd: write_fd,
        events: 0,
        revents: 0,
    };
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let no_mask: *const u64 = std::ptr::null();
    let polled = syscall!(
        libc::SYS_ppoll,
        &raw mut poll,
        1,
        &raw const now,
        no_mask,
        8
    );
    polled.is_ok() && poll.revents & (libc::POLLERR | libc::POLLNVAL) != 0
}

/// Number of unread bytes in a pipe.
///
/// # Errors
/// The kernel's error.
pub fn waiting_bytes(fd: RawFd) -> Result<usize> {
    let mut count: libc::c_int = 0;
    syscall!(libc::SYS_ioctl, fd, libc::FIONREAD, &raw mut count)?;
    usize::try_from(count).map_err(|_| Errno(libc::EIO))
}

/// Number of this process; 0 before the first query and after a fork.
static PID: AtomicI32 = AtomicI32::new(0);

/// Number of this process. It is cached, because every transfer needs it. The child of a fork must
/// call [`forget_pid`].
#[must_use]
pub fn pid() -> i32 {
    match PID.load(Ordering::Relaxed) {
        0 => {
            // The call cannot fail. A filter that forbids it leads to 0, which is no process.
            let pid = syscall!(libc::SYS_getpid).map_or(0, |pid| low32(pid as u64).cast_signed());
            PID.store(pid, Ordering::Relaxed);
            pid
        }
        pid => pid,
    }
}

/// Number of this process from the kernel: also right in a child that has not called [`forget_pid`] yet.
fn own_process() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() }
}

/// Clears the cached process number. For the child of a fork.
pub fn forget_pid() {
    PID.store(0, Ordering::Relaxed);
}

/// The processor of the calling thread; [`u32::MAX`] if the C library does not know it.
#[must_use]
pub fn cpu() -> u32 {
    // SAFETY: the call has no arguments. The C library implements it without a system call.
    unsafe { libc::sched_getcpu() }.cast_unsigned()
}

/// Yields the processor to other threads.
pub fn yield_now() {
    let _ = syscall!(libc::SYS_sched_yield);
}

/// Ends this process immediately, like SIGKILL.
pub fn vanish() {
    let _ = syscall!(libc::SYS_kill, pid(), libc::SIGKILL);
}

/// Number of the calling thread.
#[must_use]
pub fn thread_id() -> u32 {
    // The call cannot fail. A filter that forbids it leads to a number that no thread has.
    syscall!(libc::SYS_gettid).map_or(u32::MAX, |id| low32(id as u64))
}

/// Copies from `remote` of process `pid` to `local` of this process. Returns the number of bytes
/// copied, which is smaller at a missing page.
///
/// # Errors
/// ESRCH: the process has ended. EFAULT: no byte is readable. EPERM: access is not permitted.
///
/// # Safety
/// `local` must be memory that this process may write for `length` bytes, or unmapped. The kernel
/// checks the mapping but not the other users of the memory.
pub unsafe fn vm_read(pid: i32, local: usize, remote: u64, length: usize) -> Result<usize> {
    let local = [libc::iovec {
        iov_base: local as *mut libc::c_void,
        iov_len: length,
    }];
    let remote = [iovec(remote, length)];
    syscall!(
        libc::SYS_process_vm_readv,
        pid,
        local.as_ptr(),
        1,
        remote.as_ptr(),
        1,
        0
    )
}

/// Like [`vm_read`], for two parts, each (local, remote, length). The first part is copied first.
/// Returns the bytes copied in both.
///
/// # Errors
/// Same as [`vm_read`].
///
/// # Safety
/// Same as [`vm_read`], for both parts.
pub unsafe fn vm_read_two(pid: i32, parts: [(usize, u64, usize); 2]) -> Result<usize> {
    let local = parts.map(|(local, _, length)| libc::iovec {
        iov_base: local as *mut libc::c_void,
        iov_len: length,
    });
    let remote = parts.map(|(_, remote, length)| iovec(remote, length));
    syscall!(
        libc::SYS_process_vm_readv,
        pid,
        local.as_ptr(),
        2,
        remote.as_ptr(),
        2,
        0
    )
}

/// Copies from `local` of this process to `remote` of process `pid`. Returns the number of bytes
/// copied.
///
/// # Errors
/// Same as [`vm_read`].
///
/// # Safety
/// The caller must be permitted to change the memory at `remote`: it has checked the key or the
/// object that names it.
pub unsafe fn vm_write(pid: i32, local: usize, remote: u64, length: usize) -> Result<usize> {
    let local = [libc::iovec {
        iov_base: local as *mut libc::c_void,
        iov_len: length,
    }];
    let remote = [iovec(remote, length)];
    syscall!(
        libc::SYS_process_vm_writev,
        pid,
        local.as_ptr(),
        1,
        remote.as_ptr(),
        1,
        0
    )
}

/// Like [`vm_write`], but writes the last byte after all others. The kernel copies the vectors in
/// order, and on x86-64 stores become visible in order.
///
/// # Errors
/// Same as [`vm_read`].
///
/// # Safety
/// Same as [`vm_write`].
pub unsafe fn vm_write_last_byte_last(pid: i32, bytes: &[u8], remote: u64) -> Result<usize> {
    let Some(body) = bytes.len().checked_sub(1) else {
        return Ok(0);
    };
    let base = bytes.as_ptr().cast_mut().cast::<libc::c_void>();
    let local = [
        libc::iovec {
            iov_base: base,
            iov_len: body,
        },
        libc::iovec {
            iov_base: base.wrapping_byte_add(body),
            iov_len: 1,
        },
    ];
    let remote = [
        iovec(remote, body),
        iovec(remote.wrapping_add(body as u64), 1),
    ];
    syscall!(
        libc::SYS_process_vm_writev,
        pid,
        local.as_ptr(),
        2,
        remote.as_ptr(),
        2,
        0
    )
}

fn iovec(address: u64, length: usize) -> libc::iovec {
    // An address of 64 bits is a pointer on every supported platform.
    libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(address.word()),
        iov_len: length,
    }
}

/// Monotonic time in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of this frame. The call is async-signal-safe. The vDSO
    // implements it, unlike the raw system call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos)
}

/// Waits until [`now_ns`] reaches `deadline_ns`. Sleeps for a long wait and spins at the end,
/// because a sleep ends late while an idle processor wakes up.
pub fn wait_until(deadline_ns: u64) {
    loop {
        let now = now_ns();
        let left = deadline_ns.saturating_sub(now);
        if left == 0 {
            return;
        }
        let margin = LATENESS.margin_ns();
        if left > margin {
            sleep_closely(left - margin);
            LATENESS.met(now_ns().saturating_sub(now + left - margin));
        } else {
            std::hint::spin_loop();
        }
    }
}

static LATENESS: Lateness = Lateness(AtomicU64::new(Lateness::MAX_NS));

/// Delay of the end of sleeps on this machine, some 5 to 50 us. A longer spin takes processor time
/// from other threads.
struct Lateness(AtomicU64);

impl Lateness {
    /// A longer delay means that another thread had the processor. A longer spin would not help.
    const MAX_NS: u64 = 50_000;

    /// Records the delay of a sleep. Recent delays have more weight.
    fn met(&self, late_ns: u64) {
        if late_ns > Self::MAX_NS {
            return;
        }
        let known = self.0.load(Ordering::Relaxed);
        let now = match late_ns.checked_sub(known) {
            Some(more) => known + more / 4,
            None => known - (known - late_ns) / 32,
        };
        self.0.store(now, Ordering::Relaxed);
    }

    /// Time by which a sleep is shortened: the known delay and an eighth more.
    fn margin_ns(&self) -> u64 {
        let known = self.0.load(Ordering::Relaxed);
        (known + known / 8).min(Self::MAX_NS)
    }
}

/// Sleeps for about `nanos`, without the timer slack of 50 us. Restores the timer slack, because
/// the thread belongs to the application.
fn sleep_closely(nanos: u64) {
    let set = |slack_ns: u64| {
        syscall!(
            libc::SYS_prctl,
            libc::PR_SET_TIMERSLACK,
            slack_ns,
            0u64,
            0u64,
            0u64
        )
    };
    let slack = syscall!(
        libc::SYS_prctl,
        libc::PR_GET_TIMERSLACK,
        0u64,
        0u64,
        0u64,
        0u64
    );
    let _ = set(1);
    sleep(nanos);
    if let Ok(slack) = slack.map(u64::try_from)
        && let Ok(slack) = slack
    {
        let _ = set(slack);
    }
}

/// Makes sleeps of the calling thread precise: without the timer slack of 50 us, and without a wait
/// of milliseconds for another thread's time slice. It requests short time slices, which kernels
/// from 6.12 on support (`linux/sched/types.h`, `sched_runtime` of ordinary threads). Older kernels
/// ignore the request.
pub fn sleep_precisely() {
    /// The kernel's shortest time slice.
    const TURN_NS: u64 = 100_000;
    let _ = syscall!(
        libc::SYS_prctl,
        libc::PR_SET_TIMERSLACK,
        1u64,
        0u64,
        0u64,
        0u64
    );
    // struct sched_attr, version 0: size, policy, flags, nice, priority, runtime, deadline, period.
    let mut attributes = [0u64; 6];
    let bytes = size_of_val(&attributes);
    let at = attributes.as_mut_ptr();
    if syscall!(libc::SYS_sched_getattr, 0, at, bytes, 0).is_ok() {
        attributes[3] = TURN_NS;
        let _ = syscall!(libc::SYS_sched_setattr, 0, attributes.as_mut_ptr(), 0);
    }
}

/// Maps a part of a file as shared memory. Returns the address.
///
/// # Errors
/// The kernel's error.
pub fn map_shared(fd: RawFd, offset: u64, length: u64) -> Result<u64> {
    let anywhere: *mut u8 = std::ptr::null_mut();
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let mapped = syscall!(
        libc::SYS_mmap,
        anywhere,
        length,
        rights,
        libc::MAP_SHARED,
        fd,
        offset
    )?;
    Ok(mapped as u64)
}

/// Removes a mapping of [`map_shared`].
pub fn unmap(address: u64, length: u64) {
    let _ = syscall!(libc::SYS_munmap, address, length);
}

/// Sleeps for about `nanos`.
pub fn sleep(nanos: u64) {
    let time = libc::timespec {
        tv_sec: (nanos / 1_000_000_000).cast_signed(),
        tv_nsec: (nanos % 1_000_000_000).cast_signed(),
    };
    let none: *mut libc::timespec = std::ptr::null_mut();
    let _ = syscall!(libc::SYS_nanosleep, &raw const time, none);
}

/// Waits while `*word == expected`, at most `timeout_ns`. Processes may share the word. Spurious
/// wake-ups occur.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: u64) {
    let time = libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (timeout_ns % 1_000_000_000).cast_signed(),
    };
    let op = libc::FUTEX_WAIT;
    let _ = syscall!(
        libc::SYS_futex,
        word.as_ptr(),
        op,
        expected,
        &raw const time
    );
}

/// Wakes one waiter.
pub fn futex_wake(word: &AtomicU32) {
    let op = libc::FUTEX_WAKE;
    let _ = syscall!(libc::SYS_futex, word.as_ptr(), op, 1);
}

/// Blocks all signals except synchronous ones until it is dropped. Otherwise a handler of the
/// application could run during the device's work and post requests.
#[derive(Debug)]
pub struct SignalsHeld {
    before: u64,
}

impl SignalsHeld {
    /// Blocks signals in the calling thread.
    #[must_use]
    pub fn new() -> Self {
        let mut before = 0u64;
        set_mask(!fault_signals(), Some(&mut before));
        Self { before }
    }

    /// The signals that were blocked before.
    #[must_use]
    pub fn before(&self) -> u64 {
        self.before
    }
}

impl Default for SignalsHeld {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        set_mask(self.before, None);
    }
}

/// Signals of the thread's own instructions. They stay unblocked for the doorbell.
const fn fault_signals() -> u64 {
    1 << (libc::SIGSEGV - 1)
        | 1 << (libc::SIGBUS - 1)
        | 1 << (libc::SIGILL - 1)
        | 1 << (libc::SIGFPE - 1)
        | 1 << (libc::SIGTRAP - 1)
        | 1 << (libc::SIGABRT - 1)
}

/// Unblocks all signals: a program may have been started by one that holds them.
pub fn unblock_signals() {
    set_mask(0, None);
}

fn set_mask(mask: u64, before: Option<&mut u64>) {
    let before = before.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // The kernel's signal set is 8 bytes on every supported platform.
    let _ = syscall!(
        libc::SYS_rt_sigprocmask,
        libc::SIG_SETMASK,
        &raw const mask,
        before,
        8
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_without_reader_raises_no_signal() {
        let (read_end, write_end) = pipe(false).unwrap();
        close(read_end);
        // Test programs ignore the signal. With the default action, this program would end when the
        // signals are unblocked, if the call left the signal pending.
        // SAFETY: the action is a standard one.
        let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let held = SignalsHeld::new();
        assert_eq!(write_pipe(write_end, b"x"), Err(Errno(libc::EPIPE)));
        drop(held);
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGPIPE, before) };
        close(write_end);
    }

    #[test]
    fn a_wait_ends_earlier_by_what_sleeps_are_late() {
        for (late_ns, least, most) in [
            (5_000, 5_000, 7_000),
            (24_000, 24_000, 29_000),
            (50_000, 50_000, 50_000),
            // Another thread had the processor: the delay is not recorded.
            (9_000_000, 50_000, 50_000),
        ] {
            let lateness = Lateness(AtomicU64::new(Lateness::MAX_NS));
            for _ in 0..1000 {
                lateness.met(late_ns);
            }
            let margin = lateness.margin_ns();
            assert!((least..=most).contains(&margin), "{late_ns}: {margin}");
            for _ in 0..40 {
                lateness.met(Lateness::MAX_NS);
            }
            assert_eq!(lateness.margin_ns(), Lateness::MAX_NS, "{late_ns}");
        }
    }
}
