//! Block layout of an alltoallv: counts and displacements per rank, checked before use.

use crate::datatype::Datatype;
use anyhow::{Result, ensure};
use std::ffi::c_int;

/// One side's blocks, in bytes or in elements; one of each per rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    /// Length of each block.
    pub counts: Vec<c_int>,
    /// Start of each block.
    pub displacements: Vec<c_int>,
}

/// Blocks to send to and receive from each rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    send: Blocks,
    receive: Blocks,
    /// The same in elements of the datatype. Both sides are equal.
    elements: Blocks,
    datatype: Datatype,
}

impl Blocks {
    /// `ranks` contiguous blocks of `size` bytes.
    ///
    /// # Errors
    /// The last displacement exceeds MPI's `int`.
    pub fn equal(ranks: usize, size: usize) -> Result<Self> {
        let most = c_int::MAX as usize / ranks.max(1);
        ensure!(
            size <= most,
            "{size} bytes from each of {ranks} ranks: MPI counts bytes with an int, so the largest size is {most}"
        );
        let at = |block: usize| c_int::try_from(block * size);
        Ok(Self {
            counts: vec![c_int::try_from(size)?; ranks],
            displacements: (0..ranks).map(at).collect::<Result<_, _>>()?,
        })
    }

    /// Whether there is a block for each of `ranks`, within `length` bytes.
    fn check(&self, what: &str, ranks: usize, length: usize) -> Result<()> {
        ensure!(
            self.counts.len() == ranks && self.displacements.len() == ranks,
            "{} counts and {} displacements to {what}, for {ranks} ranks",
            self.counts.len(),
            self.displacements.len()
        );
        for (rank, (&count, &at)) in self.counts.iter().zip(&self.displacements).enumerate() {
            let end = usize::try_from(count)
                .ok()
                .zip(usize::try_from(at).ok())
                .map(|(count, at)| count + at);
            ensure!(
                end.is_some_and(|end| end <= length),
                "the block to {what} of rank {rank}, {count} bytes at {at}, is not in a buffer of {length}"
            );
        }
        Ok(())
    }
}

impl Layout {
    /// Equal blocks to and from each of `ranks`, of the whole elements in `size` bytes, as in OSU's benchmark.
    ///
    /// # Errors
    /// As for [`Blocks::equal`].
    pub fn equal(ranks: usize, size: usize, datatype: Datatype) -> Result<Self> {
        let elements = size / datatype.bytes();
        let blocks = Blocks::equal(ranks, elements * datatype.bytes())?;
        Ok(Self {
            send: blocks.clone(),
            receive: blocks,
            elements: Blocks::equal(ranks, elements)?,
            datatype,
        })
    }

    /// Arguments for MPI: both sides and their unit.
    #[must_use]
    pub fn elements(&self) -> (&Blocks, Datatype) {
        (&self.elements, self.datatype)
    }

    /// The send side.
    #[must_use]
    pub fn send(&self) -> &Blocks {
        &self.send
    }

    /// The receive side.
    #[must_use]
    pub fn receive(&self) -> &Blocks {
        &self.receive
    }

    /// # Errors
    /// A side without one block per rank, or a block outside its buffer.
    pub(crate) fn check(&self, ranks: usize, send: usize, receive: usize) -> Result<()> {
        self.send.check("send", ranks, send)?;
        self.receive.check("receive", ranks, receive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_one_behind_the_other() {
        let layout = Layout::equal(3, 100, Datatype::Char).unwrap();
        assert_eq!(layout.send().counts, [100; 3]);
        assert_eq!(layout.receive().displacements, [0, 100, 200]);
        layout.check(3, 300, 300).unwrap();
    }

    #[test]
    fn whole_elements_are_moved() {
        let layout = Layout::equal(2, 11, Datatype::Int).unwrap();
        assert_eq!(layout.send().displacements, [0, 8]);
        let (elements, datatype) = layout.elements();
        assert_eq!(datatype, Datatype::Int);
        assert_eq!(
            (&elements.counts[..], &elements.displacements[..]),
            (&[2, 2][..], &[0, 2][..])
        );
    }

    #[test]
    fn what_leaves_a_buffer_or_an_int_is_refused() {
        let refused = |result: Result<()>, expect: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        let layout = Layout::equal(2, 100, Datatype::Char).unwrap();
        refused(
            layout.check(2, 199, 200),
            "send of rank 1, 100 bytes at 100",
        );
        refused(layout.check(2, 200, 199), "receive of rank 1");
        refused(layout.check(3, 300, 300), "for 3 ranks");
        let mut negative = layout;
        negative.send.counts[0] = -1;
        refused(negative.check(2, 200, 200), "-1 bytes at 0");
        refused(
            Layout::equal(8, 1 << 29, Datatype::Char).map(|_| ()),
            "the largest size is 268435455",
        );
        refused(
            Layout::equal(2, usize::MAX, Datatype::Char).map(|_| ()),
            "MPI counts bytes",
        );
        Layout::equal(8, (1 << 28) - 1, Datatype::Char).unwrap();
    }
}
