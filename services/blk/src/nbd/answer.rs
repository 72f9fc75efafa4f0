//! The bytes of a reply, in which the data of a read stays in the request's buffer.

use std::io::{self, IoSlice, Write};
use std::ops::Range;

/// A reply, in parts.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Headers, extents and texts.
    own: Vec<u8>,
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    /// A range of the reply's own bytes.
    Own(Range<usize>),
    /// A range of the request's buffer.
    Data(Range<usize>),
}

impl Answer {
    pub(super) fn clear(&mut self) {
        self.own.clear();
        self.parts.clear();
    }

    /// Adds bytes.
    pub(super) fn own(&mut self, bytes: &[u8]) {
        let start = self.own.len();
        self.own.extend_from_slice(bytes);
        match self.parts.last_mut() {
            Some(Part::Own(range)) => range.end = self.own.len(),
            _ => self.parts.push(Part::Own(start..self.own.len())),
        }
    }

    /// Adds a range of the request's buffer.
    pub(super) fn data(&mut self, range: Range<usize>) {
        self.parts.push(Part::Data(range));
    }

    /// Writes everything.
    pub(super) fn write(&self, writer: &mut impl Write, buffer: &[u8]) -> io::Result<()> {
        let slice = |part: &Part| match part {
            Part::Own(range) => IoSlice::new(&self.own[range.clone()]),
            Part::Data(range) => IoSlice::new(&buffer[range.clone()]),
        };
        let mut slices: Vec<IoSlice<'_>> = self.parts.iter().map(slice).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            match writer.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut left, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time, and is interrupted.
    struct Slow(Vec<u8>, bool);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = bytes.len().min(3);
            self.0.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn all_parts_leave_in_their_order() {
        let mut answer = Answer::default();
        answer.own(b"never");
        answer.clear();
        answer.own(b"he");
        answer.own(b"ad");
        answer.data(4..9);
        answer.own(b"");
        answer.own(b"middle");
        answer.data(0..4);
        let mut slow = Slow(Vec::new(), false);
        answer.write(&mut slow, b"data bytes").unwrap();
        assert_eq!(slow.0, b"head bytemiddledata");
    }
}
