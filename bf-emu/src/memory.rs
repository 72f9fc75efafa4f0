//! The memory of the processes that use the device, as its DMA engine sees it: addresses of a process, never
//! references.

pub mod files;

use std::sync::atomic::{Ordering, fence};

use crate::guard;
use crate::sys::{self, Errno};

/// The memory of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pid: i32,
    local: bool,
}

/// Why memory could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// A page is missing or may not be used so.
    Fault,
    /// The process is gone.
    Gone,
}

impl From<Errno> for MemoryError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno(libc::ESRCH) => Self::Gone,
            // EPERM as well: a process that may not be read is as good as unmapped.
            _ => Self::Fault,
        }
    }
}

/// Result of an access.
pub type Result<T> = std::result::Result<T, MemoryError>;

/// Bytes that one transfer moves before it lets others use the device, and the size of the buffer
/// for data that goes from one foreign process to another: long enough that the cost of the two
/// system calls is small, short enough to live in a core's second-level cache.
pub const CHUNK_BYTES: usize = 256 * 1024;

/// Bytes that one system call copies become visible in the order of its vectors: on x86-64 stores, and
/// loads, are seen in order. Elsewhere it takes a call for each, and a barrier between them.
const COPIES_IN_ORDER: bool = cfg!(target_arch = "x86_64");

impl Space {
    /// The memory of process `pid`.
    #[must_use]
    pub fn of(pid: i32) -> Self {
        Self {
            pid,
            local: pid == sys::pid(),
        }
    }

    /// Reads memory.
    ///
    /// # Errors
    /// Some of it is not there, or the process is gone.
    pub fn read(self, address: u64, bytes: &mut [u8]) -> Result<()> {
        if self.local {
            return Ok(guard::read(address, bytes)?);
        }
        // SAFETY: the target is a slice of ours.
        unsafe { read_foreign(self.pid, bytes.as_mut_ptr().addr(), address, bytes.len()) }
    }

    /// Reads an aligned word of 32 bits, big-endian, as one, and then other memory, which costs as much as
    /// either of them where the kernel has to do it.
    ///
    /// # Errors
    /// For each of the two, as [`Space::read`]. If the word is not there, nor is what is behind it.
    pub fn read_behind_be32(
        self,
        word_at: u64,
        address: u64,
        bytes: &mut [u8],
    ) -> (Result<u32>, Result<()>) {
        if self.local || !COPIES_IN_ORDER {
            // Reading the word orders it before what follows.
            return (self.read_be32(word_at), self.read(address, bytes));
        }
        let mut word = [0; 8];
        let parts = [
            (word.as_mut_ptr().addr(), word_at & !7, word.len()),
            (bytes.as_mut_ptr().addr(), address, bytes.len()),
        ];
        // SAFETY: both targets are ours alone, the array and the slice.
        match unsafe { sys::vm_read_two(self.pid, parts) } {
            Ok(done) => {
                let read = done.saturating_sub(word.len());
                let word = whole(done.min(word.len()), word.len()).map(|()| half(word, word_at));
                (word, whole(read, bytes.len()))
            }
            Err(errno) => (Err(errno.into()), Err(errno.into())),
        }
    }

    /// Reads an aligned word of 32 bits, big-endian, as one. What is read after it is not older than it.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn read_be32(self, address: u64) -> Result<u32> {
        let word = if self.local {
            guard::read_word(address & !7)?
        } else {
            // The kernel copies aligned words as words.
            let mut word = [0; 8];
            self.read(address & !7, &mut word)?;
            word
        };
        // A doorbell record is read so, before the ring that it speaks of. On x86-64 loads are in order and
        // this is nothing.
        fence(Ordering::Acquire);
        Ok(half(word, address))
    }

    /// Writes memory that the process gave to the device.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn write(self, address: u64, bytes: &[u8]) -> Result<()> {
        if self.local {
            // SAFETY: the caller has an object or a key of the process that names the memory.
            return Ok(unsafe { guard::write(address, bytes) }?);
        }
        // SAFETY: as above.
        unsafe { write_foreign(self.pid, bytes.as_ptr().addr(), address, bytes.len()) }
    }

    /// Writes an entry whose last byte gives it to its reader: that byte is written last.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn publish(self, address: u64, entry: &[u8]) -> Result<()> {
        let Some((last, body)) = entry.split_last() else {
            return Ok(());
        };
        if self.local || !COPIES_IN_ORDER {
            let last_at = address.wrapping_add(body.len() as u64);
            self.write(address, body)?;
            // The rest of the entry, and the message that it tells of, come first.
            fence(Ordering::Release);
            return self.write(last_at, &[*last]);
        }
        // SAFETY: as above.
        let done = unsafe { sys::vm_write_last_byte_last(self.pid, entry, address) }?;
        whole(done, entry.len())
    }
}

/// The half of an aligned word of 64 bits that `address` names.
fn half([a, b, c, d, e, f, g, h]: [u8; 8], address: u64) -> u32 {
    u32::from_be_bytes(match address & 4 {
        0 => [a, b, c, d],
        _ => [e, f, g, h],
    })
}

/// Copies from another process.
///
/// # Safety
/// As [`sys::vm_read`].
unsafe fn read_foreign(pid: i32, local: usize, remote: u64, length: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    if unsafe { files::read(pid, local, remote, length) } {
        return Ok(());
    }
    // SAFETY: likewise.
    whole(unsafe { sys::vm_read(pid, local, remote, length) }?, length)
}

/// Copies to another process.
///
/// # Safety
/// As [`sys::vm_write`].
unsafe fn write_foreign(pid: i32, local: usize, remote: u64, length: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    if unsafe { files::write(pid, local, remote, length) } {
        return Ok(());
    }
    // SAFETY: likewise.
    whole(
        unsafe { sys::vm_write(pid, local, remote, length) }?,
        length,
    )
}

fn whole(done: usize, asked: usize) -> Result<()> {
    if done == asked {
        Ok(())
    } else {
        Err(MemoryError::Fault)
    }
}

/// Where a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// Reading.
    Source(MemoryError),
    /// Writing.
    Target(MemoryError),
}

/// Proof that no other thread of this process moves data between two foreign processes now.
///
/// # Safety
/// While a value of the type lives, no other one does in this process.
pub unsafe trait Exclusive {}

/// A buffer for data between two foreign processes. There is one per process, and its user holds an
/// [`Exclusive`].
#[derive(Debug)]
pub struct Bounce {
    bytes: std::cell::UnsafeCell<[u8; CHUNK_BYTES]>,
}

// SAFETY: used only with an `Exclusive`, by one thread of this process at a time.
unsafe impl Sync for Bounce {}

static BOUNCE: Bounce = Bounce {
    bytes: std::cell::UnsafeCell::new([0; CHUNK_BYTES]),
};

/// Moves at most [`CHUNK_BYTES`] from one process's memory to another's. The device's lock is the proof
/// that the caller is alone.
///
/// # Errors
/// Which side failed, and how. Bytes before the failure may have been moved.
pub fn copy(
    _alone: &impl Exclusive,
    from: (Space, u64),
    to: (Space, u64),
    length: usize,
) -> std::result::Result<(), CopyError> {
    let length = length.min(CHUNK_BYTES);
    let ((source, source_at), (target, target_at)) = (from, to);
    match (source.local, target.local) {
        (true, true) => {
            let (Ok(target_at), Ok(source_at)) =
                (usize::try_from(target_at), usize::try_from(source_at))
            else {
                return Err(CopyError::Source(MemoryError::Fault));
            };
            // A source and a target that overlap are the application's mistake; the copy goes
            // upwards and touches nothing else.
            // SAFETY: both ranges were given to the device by keys of this process.
            unsafe { guard::copy(target_at, source_at, length) }
                .map_err(|_| blame(source, source_at as u64, length))
        }
        (false, true) => {
            let Ok(local) = usize::try_from(target_at) else {
                return Err(CopyError::Target(MemoryError::Fault));
            };
            // SAFETY: the local range was given to the device by a key of this process.
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
            // SAFETY: the remote range was given to the device by a key of its process.
            let written = unsafe { write_foreign(target.pid, local, target_at, length) };
            written.map_err(|error| match error {
                MemoryError::Gone => CopyError::Target(error),
                MemoryError::Fault => blame(source, source_at, length),
            })
        }
        (false, false) => {
            // SAFETY: no other thread of this process uses the buffer: `Exclusive`.
            let bytes = unsafe { &mut *BOUNCE.bytes.get() };
            let bytes = &mut bytes[..length];
            source.read(source_at, bytes).map_err(CopyError::Source)?;
            target.write(target_at, bytes).map_err(CopyError::Target)
        }
    }
}

/// Finds out which side a copy failed on, by reading the source again page by page.
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
