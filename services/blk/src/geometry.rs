//! Sizes, roles and identifiers of a volume.

pub use crate::roles::{Layout, PerTarget, Role, TARGETS_MAX};
use std::fmt;

/// A size that no volume may have, or a range outside a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// A size that no volume may have.
    #[error("{0}")]
    Size(String),
    /// A range outside the volume.
    #[error("{length} bytes at {offset} exceed the volume's {size} bytes")]
    Bounds {
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Size of the volume in bytes.
        size: u64,
    },
}

type Result<T> = std::result::Result<T, GeometryError>;

/// Block sizes are multiples of this number of bytes, as in the reference format.
pub const BLOCK_UNIT: u32 = 64;
/// Largest block size in bytes.
pub const BLOCK_SIZE_MAX: u32 = 1 << 20;
/// Most blocks of a volume.
pub const BLOCKS_MAX: u64 = 1 << 32;
/// The exported size is a multiple of this number of bytes.
pub const SECTOR: u32 = 512;

/// Block size and number of blocks of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    block_size: u32,
    blocks: u64,
}

impl Geometry {
    /// A volume of `blocks` blocks of `block_size` bytes.
    ///
    /// # Errors
    /// The block size is no multiple of 64 or exceeds 1 MiB, or the number of blocks is 0 or exceeds [`BLOCKS_MAX`].
    pub fn new(block_size: u32, blocks: u64) -> Result<Self> {
        if block_size == 0 || !block_size.is_multiple_of(BLOCK_UNIT) || block_size > BLOCK_SIZE_MAX
        {
            return Err(GeometryError::Size(format!(
                "block size {block_size}: give a multiple of {BLOCK_UNIT} up to {BLOCK_SIZE_MAX}"
            )));
        }
        if blocks == 0 || blocks > BLOCKS_MAX {
            return Err(GeometryError::Size(format!(
                "{blocks} blocks of {block_size} bytes: a volume has 1 to {BLOCKS_MAX}; choose another block size"
            )));
        }
        Ok(Self { block_size, blocks })
    }

    /// A volume of `size` bytes.
    ///
    /// # Errors
    /// As [`Geometry::new`], or `size` is no multiple of the block size and of 512 bytes.
    pub fn of_size(block_size: u32, size: u64) -> Result<Self> {
        let geometry = Self::new(block_size, 1)?;
        let unit = u64::from(geometry.block_size);
        if !size.is_multiple_of(unit) || !size.is_multiple_of(u64::from(SECTOR)) {
            return Err(GeometryError::Size(format!(
                "size {size}: give a multiple of the block size ({block_size}) and of {SECTOR} bytes"
            )));
        }
        Self::new(block_size, size / unit)
    }

    /// A size that was checked before.
    pub(crate) const fn known(block_size: u32, blocks: u64) -> Self {
        Self { block_size, blocks }
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_size(self) -> u32 {
        self.block_size
    }

    /// Bytes of a block, as a length in memory.
    #[must_use]
    pub const fn block_len(self) -> usize {
        self.block_size as usize
    }

    /// Number of blocks.
    #[must_use]
    pub const fn blocks(self) -> u64 {
        self.blocks
    }

    /// Bytes of the volume.
    #[must_use]
    pub const fn size(self) -> u64 {
        // Cannot overflow: 2^32 blocks of at most 2^20 bytes.
        self.blocks * self.block_size as u64
    }

    /// Checks that a range lies in the volume.
    ///
    /// # Errors
    /// [`GeometryError::Bounds`].
    pub fn check(self, offset: u64, length: u64) -> Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(GeometryError::Bounds {
                offset,
                length,
                size: self.size(),
            }),
        }
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks of {} bytes", self.blocks, self.block_size)
    }
}

/// Identifier of a volume or of a target: 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Id(pub [u8; 16]);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_volume_may_have_are_refused() {
        for (block_size, size, fault) in [
            (0, 4096, "block size 0"),
            (100, 4096, "block size 100"),
            (32, 4096, "block size 32"),
            ((1 << 20) + 64, 1 << 30, "block size 1048640"),
            (4096, 0, "0 blocks"),
            (4096, 4097, "size 4097"),
            (64, 64, "size 64"),
            (64, 1 << 40, "blocks of 64 bytes"),
            (1 << 20, u64::MAX, "size"),
        ] {
            let error = Geometry::of_size(block_size, size).unwrap_err().to_string();
            assert!(error.contains(fault), "{block_size} {size}: {error}");
        }
        assert_eq!(Geometry::of_size(4096, 1 << 20).unwrap().blocks(), 256);
        assert_eq!(Geometry::of_size(192, 192 * 512).unwrap().blocks(), 512);
    }

    #[test]
    fn ranges_that_wrap_are_outside() {
        let geometry = Geometry::of_size(4096, 1 << 20).unwrap();
        assert!(geometry.check(0, 1 << 20).is_ok());
        assert!(geometry.check(1 << 20, 0).is_ok());
        for (offset, length) in [(1, 1 << 20), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
            assert!(geometry.check(offset, length).is_err());
        }
    }
}
