//! A file or a block device behind a store.

use super::device;
use super::direct::WholeSectors;
use super::layout::{PAGE, SECTOR};
use super::medium::Medium;
use smallvec::SmallVec;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Most parts of a call: the system's limit.
const PARTS_MAX: usize = 1024;

/// Pages of the system's cache, beyond whose ends no space is given back.
const CACHED: u64 = 4096;

/// A file or a block device, locked as long as it is open.
#[derive(Debug)]
pub struct FileMedium {
    file: File,
    /// Bytes of a device.
    device: Option<u64>,
    /// Opened with O_DIRECT.
    is_direct: bool,
}

impl FileMedium {
    /// Creates a new file, or takes a block device, whose contents stay until [`FileMedium::wipe`].
    ///
    /// # Errors
    /// The file exists; the device is in use, or without `force` holds something; or errors of the system.
    pub fn create(path: &Path, force: bool) -> io::Result<Self> {
        if device::is_device(path) {
            let taken = Self::open(path)?;
            let held = device::content(&taken.file, taken.device.unwrap_or(0))?;
            return match held.filter(|_| !force) {
                Some(held) => Err(io::Error::other(format!(
                    "it holds {held}: give another device, or --force to overwrite it"
                ))),
                None => Ok(taken),
            };
        }
        let mut options = OpenOptions::new();
        // Others could read the data, and keep the lock.
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path)?;
        Self::locked(file, false)
    }

    /// Opens a file or a block device.
    ///
    /// # Errors
    /// `WouldBlock` if another process has the file open, `ResourceBusy` if another one, or a file system, has the device, or
    /// errors of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, 0)
    }

    /// As [`FileMedium::open`], past the system's cache.
    ///
    /// # Errors
    /// As [`FileMedium::open`], or the file system cannot do that.
    pub fn open_direct(path: &Path) -> io::Result<WholeSectors<Self>> {
        let opened = Self::open_with(path, libc::O_DIRECT);
        let cannot = |error: io::Error| match error.raw_os_error() {
            Some(libc::EINVAL) => {
                io::Error::other("its file system has no O_DIRECT: leave --direct out")
            }
            _ => error,
        };
        let medium = opened.map_err(cannot)?;
        // The shortest sector with which a read succeeds is the medium's.
        let reads = |sector: &usize| {
            let shorter = WholeSectors::new(&medium, *sector);
            shorter.read(*sector as u64, &mut vec![0; *sector]).is_ok()
        };
        match [SECTOR, PAGE].into_iter().find(reads) {
            Some(sector) => Ok(WholeSectors::new(medium, sector)),
            None => Err(cannot(io::Error::from_raw_os_error(libc::EINVAL))),
        }
    }

    fn open_with(path: &Path, flags: i32) -> io::Result<Self> {
        // Of a device: also a file system must not have it. Of a file that says nothing.
        let alone = match device::is_device(path) {
            true => libc::O_EXCL,
            false => 0,
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags | alone);
        Self::locked(options.open(path)?, flags & libc::O_DIRECT != 0)
    }

    /// Overwrites what identifies the former contents of a device.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn wipe(&self) -> io::Result<()> {
        self.device
            .map_or(Ok(()), |size| device::wipe(&self.file, size))
    }

    fn locked(file: File, is_direct: bool) -> io::Result<Self> {
        let is_device = file.metadata()?.file_type().is_block_device();
        // SAFETY: an open file of this process; no memory is involved.
        let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        // A device is ours alone already. The system's device manager has a lock of it while it looks what changed there.
        if locked != 0 && !is_device {
            return Err(io::Error::last_os_error());
        }
        let device = is_device.then(|| device::size(&file)).transpose()?;
        Ok(Self {
            file,
            device,
            is_direct,
        })
    }
}

impl Medium for FileMedium {
    fn read(&self, offset: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        while !bytes.is_empty() {
            match self.file.read_at(bytes, at) {
                Ok(0) => {
                    bytes.fill(0);
                    break;
                }
                Ok(count) => {
                    bytes = &mut bytes[count..];
                    at += count as u64;
                    if self.is_direct && !count.is_multiple_of(SECTOR) {
                        // The end of a file that has no whole sectors. No other read can begin there.
                        bytes.fill(0);
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read_new(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        // It is not zeroed before: that costs as much as the copy from the system's cache.
        let mut bytes = Vec::with_capacity(length);
        let place = rustix::buffer::spare_capacity(&mut bytes);
        let done = rustix::io::pread(&self.file, place, offset);
        match done {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // The allocator may have given more.
        bytes.truncate(length);
        let done = bytes.len();
        if done < length {
            bytes.resize(length, 0);
            self.read(offset + done as u64, &mut bytes[done..])?;
        }
        Ok(bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn write_parts(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut at = offset;
        for some in parts.chunks(PARTS_MAX) {
            let mut slices: SmallVec<[IoSlice<'_>; 4]> =
                some.iter().map(|part| IoSlice::new(part)).collect();
            let mut left = &mut slices[..];
            // Empty ones at the start would look like the end of the file.
            IoSlice::advance_slices(&mut left, 0);
            while !left.is_empty() {
                match rustix::io::pwritev(&self.file, left, at) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => {
                        IoSlice::advance_slices(&mut left, count);
                        at += count as u64;
                    }
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn release(&self, offset: u64, length: u64) {
        let start = offset.next_multiple_of(CACHED);
        let end = (offset + length) / CACHED * CACHED;
        if start >= end {
            return;
        }
        if self.device.is_some() {
            // A device that cannot keeps the bytes, which the caller allows.
            let _ = device::discard(&self.file, start, end - start);
            return;
        }
        let (Ok(offset), Ok(length)) = (i64::try_from(start), i64::try_from(end - start)) else {
            return;
        };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: an open file of this process; no memory is involved. A file system that cannot punch holes keeps the
        // bytes, which the caller allows.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, length) };
    }

    fn size(&self) -> Option<u64> {
        self.device
    }

    fn free(&self) -> Option<u64> {
        if self.device.is_some() {
            return None;
        }
        let mut system = std::mem::MaybeUninit::uninit();
        // SAFETY: an open file of this process, and the place of a result.
        let done = unsafe { libc::fstatvfs(self.file.as_raw_fd(), system.as_mut_ptr()) };
        // SAFETY: filled in if the call was successful.
        let system: libc::statvfs = (done == 0).then(|| unsafe { system.assume_init() })?;
        Some(system.f_bavail.saturating_mul(system.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::super::medium::tests::check;
    use super::*;

    #[test]
    fn a_file_keeps_bytes() {
        let dir = tempfile::tempdir().unwrap();
        check(&FileMedium::create(&dir.path().join("a"), false).unwrap());
    }

    #[test]
    fn a_file_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let first = FileMedium::create(&path, false).unwrap();
        let error = FileMedium::open(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(
            FileMedium::create(&path, false).is_err(),
            "it was overwritten"
        );
        drop(first);
        FileMedium::open(&path).unwrap();
    }
}
