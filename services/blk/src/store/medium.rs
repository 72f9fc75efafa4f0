//! Bytes behind a store, and those in memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::{PoisonError, RwLock};

/// Positional access to bytes. Several threads may call it at once.
pub trait Medium: Send + Sync {
    /// Fills `bytes` from `offset`. Bytes behind the end are zero.
    ///
    /// # Errors
    /// Errors of the system.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// As [`Medium::read`], into new memory.
    ///
    /// # Errors
    /// As [`Medium::read`].
    fn read_new(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes `bytes` at `offset` and grows the medium as far as needed.
    ///
    /// # Errors
    /// Errors of the system.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// As [`Medium::write`], of parts one behind the other, by one call if possible.
    ///
    /// # Errors
    /// As [`Medium::write`].
    fn write_parts(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.write(offset, &parts.concat())
    }

    /// Makes everything durable that was written before.
    ///
    /// # Errors
    /// Errors of the system.
    fn sync(&self) -> io::Result<()>;

    /// Gives the memory of a range back. Its contents may then be anything.
    fn release(&self, offset: u64, length: u64);

    /// True if [`Medium::sync`] has nothing to wait for.
    fn syncs_at_once(&self) -> bool {
        false
    }

    /// Its size in bytes, if it cannot grow.
    fn size(&self) -> Option<u64> {
        None
    }

    /// Bytes that the system still has for it, if that is known.
    fn free(&self) -> Option<u64> {
        None
    }
}

impl<M: Medium> Medium for &M {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        (**self).read(offset, bytes)
    }

    fn read_new(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        (**self).read_new(offset, length)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        (**self).sync()
    }

    fn release(&self, offset: u64, length: u64) {
        (**self).release(offset, length);
    }
}

/// Bytes per piece of memory. Pieces exist as soon as they are written to.
const PIECE: usize = 1 << 20;

/// A piece of memory. Several threads may read it at once.
type Piece = RwLock<Vec<u8>>;

/// Memory of this process, in pieces that exist as far as they were written.
#[derive(Debug, Default)]
pub struct MemoryMedium {
    pieces: RwLock<BTreeMap<u64, Piece>>,
}

impl MemoryMedium {
    /// Calls `each` with the number of a piece, the range in it, and the range of the caller's bytes.
    fn pieces(
        offset: u64,
        length: usize,
        mut each: impl FnMut(u64, usize, std::ops::Range<usize>),
    ) {
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            // Cannot be cut: less than a piece.
            let within = usize::try_from(at % PIECE as u64).unwrap_or(0);
            let count = (length - done).min(PIECE - within);
            each(at / PIECE as u64, within, done..done + count);
            done += count;
        }
    }
}

impl Medium for MemoryMedium {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let pieces = self.pieces.read().unwrap_or_else(PoisonError::into_inner);
        Self::pieces(offset, bytes.len(), |number, within, range| {
            let part = &mut bytes[range];
            match pieces.get(&number) {
                Some(piece) => {
                    let piece = piece.read().unwrap_or_else(PoisonError::into_inner);
                    part.copy_from_slice(&piece[within..within + part.len()]);
                }
                None => part.fill(0),
            }
        });
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let write = |piece: &Piece, within: usize, part: &[u8]| {
            let mut piece = piece.write().unwrap_or_else(PoisonError::into_inner);
            piece[within..within + part.len()].copy_from_slice(part);
        };
        Self::pieces(offset, bytes.len(), |number, within, range| {
            let part = &bytes[range];
            let pieces = self.pieces.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(piece) = pieces.get(&number) {
                return write(piece, within, part);
            }
            drop(pieces);
            let mut pieces = self.pieces.write().unwrap_or_else(PoisonError::into_inner);
            let new = || RwLock::new(vec![0; PIECE]);
            write(pieces.entry(number).or_insert_with(new), within, part);
        });
        Ok(())
    }

    fn write_parts(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        parts.iter().try_fold(offset, |at, part| {
            self.write(at, part).map(|()| at + part.len() as u64)
        })?;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn syncs_at_once(&self) -> bool {
        true
    }

    fn release(&self, offset: u64, length: u64) {
        let mut pieces = self.pieces.write().unwrap_or_else(PoisonError::into_inner);
        let piece = PIECE as u64;
        let (first, end) = (offset.div_ceil(piece), (offset + length) / piece);
        for number in first..end {
            pieces.remove(&number);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A medium keeps bytes.
    #[track_caller]
    pub(in super::super) fn check(medium: &dyn Medium) {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| n.to_be_bytes()[2]).collect();
        let piece = PIECE as u64;
        let at = piece - 7;
        medium.write(at, &bytes).unwrap();
        medium.sync().unwrap();
        let mut back = vec![1; bytes.len() + 20];
        medium.read(at - 10, &mut back).unwrap();
        assert_eq!(back[..10], [0; 10]);
        assert!(back[10..10 + bytes.len()] == bytes);
        assert_eq!(back[10 + bytes.len()..], [0; 10], "behind the end");
        assert!(medium.read_new(at - 10, back.len()).unwrap() == back);
        assert_eq!(medium.read_new(at * 9, 20).unwrap(), [0; 20]);
        // More than a call takes, and some without bytes.
        let parts: Vec<&[u8]> = bytes[..90_000]
            .chunks(60)
            .flat_map(|part| [&[], part])
            .collect();
        medium.write_parts(2 * piece - 9, &parts).unwrap();
        medium.read(2 * piece - 9, &mut back[..90_000]).unwrap();
        assert!(back[..90_000] == bytes[..90_000]);
        medium.release(0, 4 * piece);
        medium.read(5 * piece, &mut back[..9]).unwrap();
        assert_eq!(back[..9], [0; 9]);
    }

    #[test]
    fn memory_keeps_bytes() {
        check(&MemoryMedium::default());
    }
}
