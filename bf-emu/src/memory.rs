//! The memory of the processes that use the device, from the view of its DMA engine. It consists of
//! addresses in a process, never references.

pub mod files;
pub mod pins;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use self::pins::Pin;
use crate::guard;
use crate::sys::{self, Errno, steps::step};

/// The memory of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pid: i32,
    local: bool,
    /// The pages of a registration, whatever is at their addresses now.
    pin: Pin,
}

/// Reason why memory was not accessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// A page is missing or does not permit the access.
    Fault,
    /// The process has ended.
    Gone,
}

impl From<Errno> for MemoryError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno(libc::ESRCH) => Self::Gone,
            // Includes EPERM: memory without permission is treated as unmapped.
            _ => Self::Fault,
        }
    }
}

/// Result of an access.
pub type Result<T> = std::result::Result<T, MemoryError>;

/// Bytes that one transfer moves before it releases the lock for others. Also the size of the
/// buffer for data between two foreign processes. It is long enough that the two system calls cost
/// little, and short enough for a core's second-level cache.
pub const CHUNK_BYTES: usize = 256 * 1024;

/// True if the copies of one system call become visible in the order of its vectors. On x86-64
/// stores, and loads, are visible in order. Other platforms need a call for each vector, and a
/// barrier between them.
fn copies_in_order() -> bool {
    cfg!(target_arch = "x86_64") && !REFUSED.load(Ordering::Relaxed)
}

/// The system has no `process_vm_readv` and `process_vm_writev`, such as a user-mode emulator or a
/// container's filter. Each call would fail.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Notes an error that no later call of the two would avoid. Returns whether it is one.
fn refused(error: Errno) -> bool {
    let is = error == Errno(libc::ENOSYS);
    if is {
        REFUSED.store(true, Ordering::Relaxed);
    }
    is
}

impl Space {
    /// The memory of process `pid`.
    #[must_use]
    pub fn of(pid: i32) -> Self {
        Self {
            pid,
            local: pid == sys::pid(),
            pin: Pin::default(),
        }
    }

    /// The pages of a registration of process `pid`, which may be pinned.
    #[must_use]
    pub(crate) fn registered(pid: i32, pin: Pin) -> Self {
        Self {
            pin,
            ..Self::of(pid)
        }
    }

    /// Reads memory.
    ///
    /// # Errors
    /// A part of the range is not accessible, or the process has ended.
    pub fn read(self, address: u64, bytes: &mut [u8]) -> Result<()> {
        if self.pin.is_some()
            && let Some(done) = pins::read(self.pid, self.pin, address, bytes)
        {
            return Ok(done?);
        }
        if self.local {
            return Ok(guard::read(address, bytes)?);
        }
        // SAFETY: the target is an exclusive slice.
        unsafe { read_foreign(self.pid, bytes.as_mut_ptr().addr(), address, bytes.len()) }
    }

    /// Reads an aligned big-endian word of 32 bits atomically, and then other memory. If the kernel
    /// performs the copy, both reads together cost as much as one.
    ///
    /// # Errors
    /// For each of the two, as in [`Space::read`]. If the word is not accessible, neither is the
    /// second result.
    pub fn read_behind_be32(
        self,
        word_at: u64,
        address: u64,
        bytes: &mut [u8],
    ) -> (Result<u32>, Result<()>) {
        if self.local || !copies_in_order() {
            // The read of the word precedes the second read.
            return (self.read_be32(word_at), self.read(address, bytes));
        }
        let mut word = [0; 8];
        let parts = [
            (word.as_mut_ptr().addr(), word_at & !7, word.len()),
            (bytes.as_mut_ptr().addr(), address, bytes.len()),
        ];
        // SAFETY: both targets, the array and the slice, are exclusive.
        match unsafe { sys::vm_read_two(self.pid, parts) } {
            Ok(done) => {
                let read = done.saturating_sub(word.len());
                let word = whole(done.min(word.len()), word.len()).map(|()| half(word, word_at));
                (word, whole(read, bytes.len()))
            }
            Err(errno) if refused(errno) => (self.read_be32(word_at), self.read(address, bytes)),
            Err(errno) => (Err(errno.into()), Err(errno.into())),
        }
    }

    /// Reads an aligned big-endian word of 32 bits atomically. Later reads return values that are
    /// not older.
    ///
    /// # Errors
    /// Same as [`Space::read`].
    pub fn read_be32(self, address: u64) -> Result<u32> {
        let word = if self.local {
            guard::read_word(address & !7)?
        } else {
            // The kernel copies aligned words as words.
            let mut word = [0; 8];
            self.read(address & !7, &mut word)?;
            word
        };
        // A doorbell record is read this way before its ring: the driver has a barrier between the ring and the record
        // (rdma-core 44, `udma_to_device_barrier`, `providers/mlx5/qp.c:767`), and this is its other side. On x86-64 loads
        // are in order, and the fence costs nothing.
        fence(Ordering::Acquire);
        Ok(half(word, address))
    }

    /// Writes memory that the process registered with the device.
    ///
    /// # Errors
    /// Same as [`Space::read`].
    pub fn write(self, address: u64, bytes: &[u8]) -> Result<()> {
        step();
        if self.pin.is_some()
            && let Some(done) = pins::write(self.pid, self.pin, address, bytes)
        {
            return Ok(done?);
        }
        if self.local {
            // SAFETY: the caller holds an object or a key of the process that names the memory.
            return Ok(unsafe { guard::write(address, bytes) }?);
        }
        // SAFETY: as above.
        unsafe { write_foreign(self.pid, bytes.as_ptr().addr(), address, bytes.len()) }
    }

    /// Writes an entry whose last byte makes it valid for its reader. That byte is written last.
    ///
    /// # Errors
    /// Same as [`Space::read`].
    pub fn publish(self, address: u64, entry: &[u8]) -> Result<()> {
        step();
        let Some((last, body)) = entry.split_last() else {
            return Ok(());
        };
        if self.local || !copies_in_order() {
            let last_at = address.wrapping_add(body.len() as u64);
            self.write(address, body)?;
            // The rest of the entry, and the message that it reports, are written first. The driver reads the last byte
            // before them (rdma-core 44, `udma_from_device_barrier`, `providers/mlx5/cq.c:557`).
            fence(Ordering::Release);
            return self.write(last_at, &[*last]);
        }
        // SAFETY: as above.
        match unsafe { sys::vm_write_last_byte_last(self.pid, entry, address) } {
            Ok(done) => whole(done, entry.len()),
            // The system has just refused the call, so this call goes the other way.
            Err(errno) if refused(errno) => self.publish(address, entry),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The half of an aligned 64-bit word at `address`.
fn half([a, b, c, d, e, f, g, h]: [u8; 8], address: u64) -> u32 {
    u32::from_be_bytes(match address & 4 {
        0 => [a, b, c, d],
        _ => [e, f, g, h],
    })
}

/// Copies from another process.
///
/// # Safety
/// Same as [`sys::vm_read`].
unsafe fn read_foreign(pid: i32, local: usize, remote: u64, length: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    if unsafe { files::read(pid, local, remote, length) } {
        return Ok(());
    }
    if !REFUSED.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        match unsafe { sys::vm_read(pid, local, remote, length) } {
            Ok(done) => return whole(done, length),
            Err(error) if refused(error) => {}
            Err(error) => return Err(failed(pid, error)),
        }
    }
    // SAFETY: the caller's promise.
    unsafe { files::read_all(pid, local, remote, length) }.map_err(MemoryError::from)
}

/// Copies to another process.
///
/// # Safety
/// Same as [`sys::vm_write`].
unsafe fn write_foreign(pid: i32, local: usize, remote: u64, length: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    if unsafe { files::write(pid, local, remote, length) } {
        return Ok(());
    }
    if !REFUSED.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        match unsafe { sys::vm_write(pid, local, remote, length) } {
            Ok(done) => return whole(done, length),
            Err(error) if refused(error) => {}
            Err(error) => return Err(failed(pid, error)),
        }
    }
    // SAFETY: the caller's promise.
    unsafe { files::write_all(pid, local, remote, length) }.map_err(MemoryError::from)
}

/// The reason of a failed transfer. The file of a process that has ended is closed.
fn failed(pid: i32, error: Errno) -> MemoryError {
    let error = MemoryError::from(error);
    if error == MemoryError::Gone {
        files::forget(pid);
    }
    error
}

fn whole(done: usize, asked: usize) -> Result<()> {
    if done == asked {
        Ok(())
    } else {
        Err(MemoryError::Fault)
    }
}

/// The failed side of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// The read failed.
    Source(MemoryError),
    /// The write failed.
    Target(MemoryError),
}

/// A buffer for data between two foreign processes.
#[derive(Debug)]
struct Bounce {
    is_used: AtomicBool,
    bytes: UnsafeCell<[u8; CHUNK_BYTES]>,
}

// SAFETY: the thread that has set `is_used` uses the buffer alone.
unsafe impl Sync for Bounce {}

/// Most threads of a process that move data between two foreign processes at a time: further ones
/// wait.
const BOUNCES: usize = 4;

static BOUNCE: [Bounce; BOUNCES] = [const {
    Bounce {
        is_used: AtomicBool::new(false),
        bytes: UnsafeCell::new([0; CHUNK_BYTES]),
    }
}; BOUNCES];

/// The child of a fork has none of the threads that used a buffer.
pub(crate) fn after_fork_in_child() {
    for bounce in &BOUNCE {
        bounce.is_used.store(false, Ordering::Relaxed);
    }
    pins::after_fork_in_child();
}

/// Calls `with` with a buffer that no other thread uses. The caller's signals are blocked, because
/// it holds a lock of the device, so its thread does not use one already.
fn with_bounce<T>(with: impl FnOnce(&mut [u8; CHUNK_BYTES]) -> T) -> T {
    let claims = |bounce: &&Bounce| !bounce.is_used.swap(true, Ordering::Acquire);
    let bounce = loop {
        match BOUNCE.iter().find(claims) {
            Some(bounce) => break bounce,
            // A user copies one chunk and returns it.
            None => sys::yield_now(),
        }
    };
    // SAFETY: this thread has set `is_used`.
    let done = with(unsafe { &mut *bounce.bytes.get() });
    bounce.is_used.store(false, Ordering::Release);
    done
}

/// Moves at most [`CHUNK_BYTES`] from one process's memory to another's. The caller's signals are
/// blocked.
///
/// # Errors
/// The failed side and the cause. Bytes before the failure may have been moved.
pub fn copy(
    from: (Space, u64),
    to: (Space, u64),
    length: usize,
) -> std::result::Result<(), CopyError> {
    let length = length.min(CHUNK_BYTES);
    let ((source, source_at), (target, target_at)) = (from, to);
    let pinned = source.pin.is_some() || target.pin.is_some();
    match (source.local && !pinned, target.local && !pinned) {
        (true, true) => {
            let (Ok(target_at), Ok(source_at)) =
                (usize::try_from(target_at), usize::try_from(source_at))
            else {
                return Err(CopyError::Source(MemoryError::Fault));
            };
            // An overlap of source and target is the application's error. The copy goes upwards and
            // changes only the target.
            // SAFETY: keys of this process registered both ranges with the device.
            unsafe { guard::copy(target_at, source_at, length) }
                .map_err(|_| blame(source, source_at as u64, length))
        }
        (false, true) => {
            let Ok(local) = usize::try_from(target_at) else {
                return Err(CopyError::Target(MemoryError::Fault));
            };
            // SAFETY: a key of this process registered the local range with the device.
            let read = unsafe { read_foreign(source.pid, local, source_at, length) };
            read.map_err(|error| match error {
                MemoryError::Gone => CopyError::Source(error),
                MemoryError::Fault => blame(source, source_at, length),
            })
        }
        (true, false) => {
            let Ok(local) = usize::try_from(source_at) else {
                return Err(CopyError::Source(MemoryError::Fault));
            };
            // SAFETY: a key of its process registered the remote range with the device.
            let written = unsafe { write_foreign(target.pid, local, target_at, length) };
            written.map_err(|error| match error {
                MemoryError::Gone => CopyError::Target(error),
                MemoryError::Fault => blame(source, source_at, length),
            })
        }
        (false, false) => with_bounce(|bytes| {
            let bytes = &mut bytes[..length];
            source.read(source_at, bytes).map_err(CopyError::Source)?;
            target.write(target_at, bytes).map_err(CopyError::Target)
        }),
    }
}

/// Finds the failed side of a copy: reads the source again page by page.
fn blame(source: Space, address: u64, length: usize) -> CopyError {
    const PAGE: u64 = 4096;
    let mut byte = [0];
    let end = address.saturating_add(length as u64);
    let mut at = address;
    while at < end {
        if let Err(error) = source.read(at, &mut byte) {
            return CopyError::Source(error);
        }
        at = (at | (PAGE - 1)).saturating_add(1);
    }
    CopyError::Target(MemoryError::Fault)
}
