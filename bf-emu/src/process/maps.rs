//! Mappings of this process, from `/proc/self/maps`.

use crate::sys::FileId;

/// A line of `/proc/self/maps`.
pub(super) struct Mapping {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) offset: u64,
    pub(super) writable: bool,
    pub(super) file: FileId,
}

impl Mapping {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?;
        let offset = fields.next()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let inode = fields.next()?.parse().ok()?;
        let hex = |text: &str| u32::from_str_radix(text, 16).ok();
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            offset: u64::from_str_radix(offset, 16).ok()?,
            writable: rights.as_bytes().get(1) == Some(&b'w'),
            file: FileId {
                device: libc::makedev(hex(major)?, hex(minor)?),
                inode,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let line = "7f2000-7f3000 rw-s 00002000 00:01 1025   /memfd:bf-emu-uverbs (deleted)";
        let map = Mapping::parse(line).unwrap();
        assert_eq!(
            (map.start, map.end, map.offset),
            (0x7f2000, 0x7f3000, 0x2000)
        );
        assert!(map.writable);
        assert_eq!(
            map.file,
            FileId {
                device: libc::makedev(0, 1),
                inode: 1025
            }
        );
        assert!(Mapping::parse("7f2000-7f3000").is_none());
    }
}
