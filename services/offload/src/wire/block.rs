//! A block, as it is and in its two forms on the wire.

/// A block of one side's buffer, for or from `peer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    /// The other rank, by its number in the job.
    pub(crate) peer: u32,
    /// Bytes from the start of the buffer.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) length: u64,
}

/// A block on the wire: the other rank, offset and length, of 32 bits each.
pub(crate) type Narrow = [u8; 12];

/// A block on the wire: the other rank, then offset and length of 64 bits each.
pub(crate) type Wide = [u8; 20];

/// Forms of blocks on the wire.
pub(crate) const NARROW: u8 = 0;
pub(crate) const WIDE: u8 = 1;

/// A block on the wire, in one of its forms.
pub(crate) trait Record: AsRef<[u8]> {
    const FORM: u8;

    fn block(&self) -> Block;
}

impl Block {
    /// The block in the narrow form, if it fits.
    pub(crate) fn narrow(&self) -> Option<Narrow> {
        let offset = u32::try_from(self.offset).ok()?;
        let length = u32::try_from(self.length).ok()?;
        let mut record: Narrow = [0; 12];
        for (place, word) in record.chunks_exact_mut(4).zip([self.peer, offset, length]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Some(record)
    }

    /// The block in the wide form.
    pub(crate) fn wide(&self) -> Wide {
        let mut record: Wide = [0; 20];
        record[..4].copy_from_slice(&self.peer.to_le_bytes());
        record[4..12].copy_from_slice(&self.offset.to_le_bytes());
        record[12..].copy_from_slice(&self.length.to_le_bytes());
        record
    }
}

impl Record for Narrow {
    const FORM: u8 = NARROW;

    fn block(&self) -> Block {
        // Constant indices: the compiler makes three loads of this.
        let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3] = *self;
        Block {
            peer: u32::from_le_bytes([a0, a1, a2, a3]),
            offset: u32::from_le_bytes([b0, b1, b2, b3]).into(),
            length: u32::from_le_bytes([c0, c1, c2, c3]).into(),
        }
    }
}

impl Record for Wide {
    const FORM: u8 = WIDE;

    fn block(&self) -> Block {
        let (peer, rest) = self.split_first_chunk().expect("4 of 20 bytes");
        let (offset, rest) = rest.split_first_chunk().expect("8 of 16 bytes");
        let length = rest.first_chunk().expect("8 bytes");
        Block {
            peer: u32::from_le_bytes(*peer),
            offset: u64::from_le_bytes(*offset),
            length: u64::from_le_bytes(*length),
        }
    }
}
