//! The memory of the processes that use the device, as its DMA engine sees it: addresses of a
//! process, never references.

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
        let done =
            unsafe { sys::vm_read(self.pid, bytes.as_mut_ptr().addr(), address, bytes.len()) }?;
        whole(done, bytes.len())
    }

    /// Reads an aligned word of 32 bits, big-endian, as one.
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
        let [a, b, c, d, e, f, g, h] = word;
        let bytes = if address & 4 == 0 {
            [a, b, c, d]
        } else {
            [e, f, g, h]
        };
        Ok(u32::from_be_bytes(bytes))
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
        let done = unsafe { sys::vm_write(self.pid, bytes.as_ptr().addr(), address, bytes.len()) }?;
        whole(done, bytes.len())
    }

    /// Writes an entry whose last byte gives it to its reader: that byte is written last.
    ///
    /// # Errors
    /// As [`Space::read`].
    pub fn publish(self, address: u64, entry: &[u8]) -> Result<()> {
        let Some((last, body)) = entry.split_last() else {
            return Ok(());
        };
        if self.local {
            let last_at = address.wrapping_add(body.len() as u64);
            // SAFETY: the entry lies in a ring that the process gave to the device.
            unsafe { guard::write(address, body) }?;
            std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
            // SAFETY: as above.
            return Ok(unsafe { guard::write(last_at, &[*last]) }?);
        }
        // SAFETY: as above.
        let done = unsafe { sys::vm_write_last_byte_last(self.pid, entry, address) }?;
        whole(done, entry.len())
    }
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

/// A buffer for data between two foreign processes. There is one per process, and the device's lock
/// is held while it is in use.
#[derive(Debug)]
pub struct Bounce {
    bytes: std::cell::UnsafeCell<[u8; CHUNK_BYTES]>,
}

// SAFETY: used only under the device's lock, by one thread of this process at a time.
unsafe impl Sync for Bounce {}

static BOUNCE: Bounce = Bounce {
    bytes: std::cell::UnsafeCell::new([0; CHUNK_BYTES]),
};

/// Moves at most [`CHUNK_BYTES`] from one process's memory to another's. The device's lock must be
/// held: witnessed by the argument.
///
/// # Errors
/// Which side failed, and how. Bytes before the failure may have been moved.
pub fn copy(
    _lock: &crate::fabric::Locked<'_>,
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
            match unsafe { sys::vm_read(source.pid, local, source_at, length) } {
                Ok(done) if done == length => Ok(()),
                Err(Errno(libc::ESRCH)) => Err(CopyError::Source(MemoryError::Gone)),
                _ => Err(blame(source, source_at, length)),
            }
        }
        (true, false) => {
            let Ok(local) = usize::try_from(source_at) else {
                return Err(CopyError::Source(MemoryError::Fault));
            };
            // SAFETY: the remote range was given to the device by a key of its process.
            match unsafe { sys::vm_write(target.pid, local, target_at, length) } {
                Ok(done) if done == length => Ok(()),
                Err(Errno(libc::ESRCH)) => Err(CopyError::Target(MemoryError::Gone)),
                _ => Err(blame(source, source_at, length)),
            }
        }
        (false, false) => {
            // SAFETY: the lock is held, so no other thread of this process uses the buffer.
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
