//! Block devices: their size, what they hold before, and space that they get back.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;

/// Bytes at the start and at the end in which others keep what they have on a device.
const LABELS: u64 = 1 << 20;
/// `BLKDISCARD` of `linux/fs.h`.
const DISCARD: libc::Ioctl = 0x1277;
/// Where others begin, what that is, and its name.
const KNOWN: [(usize, &[u8], &str); 10] = [
    (0, b"XGVMIBLK", "a target of xgvmi-blk"),
    (0, b"LUKS\xba\xbe", "an encrypted device (LUKS)"),
    (0, b"XFSB", "an XFS file system"),
    (0x438, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0x1_0040, b"_BHRfS_M", "a Btrfs file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (536, b"LVM2 001", "a physical volume of LVM"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of a RAID (md)"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (510, &[0x55, 0xaa], "a partition table or a boot sector"),
];

/// True for a block device, also behind links.
pub(super) fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Its bytes.
pub(super) fn size(file: &File) -> io::Result<u64> {
    let mut file = file;
    file.seek(SeekFrom::End(0))
}

/// The ranges in which something may be.
fn labels(size: u64) -> [(u64, u64); 2] {
    let length = LABELS.min(size);
    [(0, length), (size - length, length)]
}

/// What a device holds, if it is not empty.
pub(super) fn content(file: &File, size: u64) -> io::Result<Option<&'static str>> {
    let mut bytes = vec![0; usize::try_from(LABELS.min(size)).unwrap_or(0)];
    for (offset, _) in labels(size) {
        file.read_exact_at(&mut bytes, offset)?;
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        let is_there = |(at, magic, _): &&(usize, &[u8], &str)| {
            offset == 0 && bytes.get(*at..at + magic.len()) == Some(*magic)
        };
        let known = KNOWN.iter().find(is_there);
        return Ok(Some(known.map_or("other data", |(_, _, name)| name)));
    }
    Ok(None)
}

/// Nobody finds there what was there before.
pub(super) fn wipe(file: &File, size: u64) -> io::Result<()> {
    // Of a device that cannot, what was there is overwritten in time.
    let _ = discard(file, 0, size);
    let zeros = vec![0; usize::try_from(LABELS.min(size)).unwrap_or(0)];
    for (offset, _) in labels(size) {
        file.write_all_at(&zeros, offset)?;
    }
    file.sync_data()
}

/// Tells a device that nobody needs a range.
pub(super) fn discard(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let range = [offset, length];
    // SAFETY: an open file of this process, and two numbers that the system reads.
    match unsafe { libc::ioctl(file.as_raw_fd(), DISCARD, range.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
