//! Packed keys of several sources. UCX's keys to the buffers of a job differ in a few bytes, so each travels as what differs
//! from the first one.

use super::parts::PACKED_MAX;
use xgvmi_daemon::codec::{BadMessage, Reader, put_varint};

/// A packed key inside a message, in up to three pieces.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PackedKey<'a> {
    pieces: [&'a [u8]; 3],
}

impl<'a> PackedKey<'a> {
    /// A key in one piece.
    pub(crate) fn whole(key: &'a [u8]) -> Self {
        Self {
            pieces: [&[], key, &[]],
        }
    }

    /// The key in one piece. `memory` is for a key that is in several.
    pub(crate) fn bytes<'b>(&self, memory: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if let [[], whole, []] = self.pieces {
            return whole;
        }
        memory.clear();
        for piece in self.pieces {
            memory.extend_from_slice(piece);
        }
        memory
    }

    /// Whether it is this key.
    #[inline]
    pub(crate) fn is(&self, key: &[u8]) -> bool {
        let [head, middle, tail] = self.pieces;
        let Some((first, rest)) = key.split_at_checked(head.len()) else {
            return false;
        };
        let Some((second, third)) = rest.split_at_checked(middle.len()) else {
            return false;
        };
        // Most keys differ from others in few bytes.
        let few = second.iter().zip(middle).all(|(a, b)| a == b);
        few && third == tail && (head.is_empty() || first == head)
    }

    /// Appends a source's code and address, and what differs from `first` in its key.
    #[inline]
    pub(crate) fn put(key: &[u8], first: &[u8], code: u64, base: u64, bytes: &mut Vec<u8>) {
        let head = common_start(key, first);
        let tail = common_end(&key[head..], &first[head..]);
        let middle = &key[head..key.len() - tail];
        // Most numbers are small, and their bytes are appended together.
        if code < 0x80 && key.len() < 0x80 {
            let byte = |number: usize| number.to_le_bytes()[0];
            let mut together = [0; 12];
            together[0] = code.to_le_bytes()[0];
            together[1..9].copy_from_slice(&base.to_le_bytes());
            together[9..].copy_from_slice(&[byte(head), byte(tail), byte(middle.len())]);
            bytes.extend_from_slice(&together);
        } else {
            put_varint(bytes, code);
            bytes.extend_from_slice(&base.to_le_bytes());
            for number in [head, tail, middle.len()] {
                put_varint(bytes, number as u64);
            }
        }
        bytes.extend_from_slice(middle);
    }

    /// Reads what [`PackedKey::put`] has written.
    pub(super) fn read(reader: &mut Reader<'a>, first: &'a [u8]) -> Result<Self, BadMessage> {
        let (head, tail) = (reader.number(), reader.number());
        let length = reader.number();
        let middle = reader.piece(length);
        reader.sound()?;
        let piece = |length: u64| usize::try_from(length).ok();
        let head = piece(head).and_then(|length| first.get(..length));
        let tail = piece(tail).and_then(|length| first.get(first.len().checked_sub(length)?..));
        let (Some(head), Some(tail)) = (head, tail) else {
            return Err(reader.fault("with a part of a key that does not exist"));
        };
        if head.len() + middle.len() + tail.len() > PACKED_MAX {
            return Err(reader.fault(LONG_KEY));
        }
        Ok(Self {
            pieces: [head, middle, tail],
        })
    }
}

/// Number of equal bytes at the start.
fn common_start(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let mut equal = 0;
    for (a, b) in words {
        let differs = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differs != 0 {
            return equal + differs.trailing_zeros() as usize / 8;
        }
        equal += 8;
    }
    let rest = a[equal..].iter().zip(&b[equal..]);
    equal + rest.take_while(|(a, b)| a == b).count()
}

/// Number of equal bytes at the end.
fn common_end(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_rchunks::<8>().1.iter().rev();
    let mut equal = 0;
    for (a, b) in words.zip(b.as_rchunks::<8>().1.iter().rev()) {
        let differs = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differs != 0 {
            return equal + differs.leading_zeros() as usize / 8;
        }
        equal += 8;
    }
    let rest = |of: &[u8]| of.len() - equal;
    let rest = a[..rest(a)].iter().rev().zip(b[..rest(b)].iter().rev());
    equal + rest.take_while(|(a, b)| a == b).count()
}

pub(super) const LONG_KEY: &str = "too long in a packed key";

impl PartialEq for PackedKey<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.pieces.concat() == other.pieces.concat()
    }
}

impl Eq for PackedKey<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_what_differs_from_the_first_one() {
        let first = [7; 40];
        let mut other = first;
        other[20..24].copy_from_slice(&[1, 2, 3, 4]);
        let mut ends = first;
        (ends[0], ends[39]) = (1, 2);
        for (key, length) in [
            (&ends[..], 43),
            (&first[..], 3),
            (&other[..], 7),
            (&first[..9], 3),
            (&[9; 12][..], 15),
            (&[][..], 3),
        ] {
            let mut bytes = Vec::new();
            PackedKey::put(key, &first, 5, 1 << 40, &mut bytes);
            assert_eq!(bytes.len(), 9 + length, "{key:?}");
            let mut reader = Reader::new("X", &bytes);
            let source = (reader.number(), u64::from_le_bytes(reader.fixed()));
            assert_eq!(source, (5, 1 << 40));
            let found = PackedKey::read(&mut reader, &first).expect("made by put()");
            assert_eq!(found.bytes(&mut Vec::new()), key);
            assert_eq!(found, PackedKey::whole(key));
            assert!(reader.end().is_ok());
        }
        let mut bytes = Vec::new();
        let long = [7; 200];
        PackedKey::put(&long, &first, 300, 9, &mut bytes);
        let mut reader = Reader::new("X", &bytes);
        let source = (reader.number(), u64::from_le_bytes(reader.fixed()));
        assert_eq!(source, (300, 9));
        let found = PackedKey::read(&mut reader, &first).expect("made by put()");
        assert_eq!(found.bytes(&mut Vec::new()), long);
        for numbers in [[41, 0, 0], [0, 41, 0], [0, 0, 1]] {
            assert!(PackedKey::read(&mut Reader::new("X", &numbers), &first).is_err());
        }
    }
}
