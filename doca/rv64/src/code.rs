//! Decoded code: one instruction per halfword of each executable range, decoded at its first execution.

use crate::compressed;
use crate::decode::{LONG, decode};
use crate::op::{Code, Op};
use crate::space::Space;
use crate::trap::Fault;

/// An executable range.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) start: u64,
    /// At index i is the instruction at `start + 2 * i`.
    pub(crate) ops: Vec<Op>,
}

/// All executable ranges.
#[derive(Debug, Default)]
pub(crate) struct Decodes {
    ranges: Vec<Decoded>,
}

impl Decodes {
    /// Adds an executable range of the space.
    pub(crate) fn add(&mut self, start: u64, length: u64) {
        let halves = usize::try_from(length / 2).unwrap_or_default();
        self.ranges.push(Decoded {
            start,
            ops: vec![Op::default(); halves],
        });
    }

    /// The range of an address.
    pub(crate) fn range(&mut self, pc: u64) -> Option<&mut Decoded> {
        self.ranges.iter_mut().find(|range| range.holds(pc))
    }

    /// The instruction at an address. Decodes it if that has not been done.
    pub(crate) fn op(&mut self, space: &Space, pc: u64) -> Result<Op, Fault> {
        if let Some(range) = self.range(pc) {
            let at = range.index(pc);
            let op = &mut range.ops[at];
            if op.code == Code::Fresh {
                *op = fetch(space, pc)?;
            }
            return Ok(*op);
        }
        fetch(space, pc)
    }

    /// Instructions with bytes from `first` to `last` are decoded again.
    pub(crate) fn forget(&mut self, first: u64, last: u64) {
        for range in &mut self.ranges {
            let end = range.start + 2 * range.ops.len() as u64;
            // An instruction may begin two bytes before.
            let (from, to) = (first.saturating_sub(2).max(range.start), last.min(end - 1));
            if range.holds(from) && from <= to {
                let (from, to) = (range.index(from), range.index(to));
                range.ops[from..=to].fill(Op::default());
            }
        }
    }
}

impl Decoded {
    fn holds(&self, pc: u64) -> bool {
        pc.wrapping_sub(self.start) / 2 < self.ops.len() as u64
    }

    /// The index of an address that the range holds.
    pub(crate) fn index(&self, pc: u64) -> usize {
        usize::try_from((pc - self.start) / 2).unwrap_or(usize::MAX)
    }
}

/// Reads and decodes an instruction.
fn fetch(space: &Space, pc: u64) -> Result<Op, Fault> {
    let low = space.fetch(pc)?;
    if low & 3 != 3 {
        let illegal = Op::plain(Code::Illegal, 1);
        return Ok(compressed::expand(low).map_or(illegal, |word| decode(word, 1)));
    }
    Ok(decode(word(space, pc)?, LONG))
}

/// The instruction at an address: 32 bits, or 16 if it is a compressed one.
pub(crate) fn word(space: &Space, pc: u64) -> Result<u32, Fault> {
    let low = space.fetch(pc)?;
    if low & 3 != 3 {
        return Ok(low.into());
    }
    let high = space.fetch(pc.wrapping_add(2))?;
    Ok(u32::from(low) | u32::from(high) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{Backing, Range, Rights};

    #[test]
    fn changed_bytes_are_decoded_again() {
        let mut space = Space::new(16);
        let rights = Rights::new(true, true, true);
        let backing = Backing::Memory(0);
        space
            .map(Range {
                start: 0x1000,
                length: 16,
                rights,
                backing,
            })
            .unwrap();
        let mut code = Decodes::default();
        code.add(0x1000, 16);
        // c.nop four times, and two long instructions.
        space
            .poke(
                0x1000,
                &[1, 0, 1, 0, 1, 0, 1, 0, 0x13, 0, 0, 0, 0x13, 0, 0, 0],
            )
            .unwrap();
        for pc in [0x1000, 0x1002, 0x1004, 0x1006, 0x1008, 0x100c] {
            assert_eq!(code.op(&space, pc).unwrap().code, Code::Addi, "{pc:#x}");
        }
        let fresh = |code: &mut Decodes| {
            let ops = &code.range(0x1000).unwrap().ops;
            ops.iter()
                .map(|op| u8::from(op.code == Code::Fresh))
                .collect::<Vec<_>>()
        };
        assert_eq!(fresh(&mut code), [0, 0, 0, 0, 0, 1, 0, 1]);
        code.forget(0x100a, 0x100a);
        assert_eq!(
            fresh(&mut code),
            [0, 0, 0, 0, 1, 1, 0, 1],
            "the second half of a long one"
        );
        code.forget(0, 0x1003);
        assert_eq!(fresh(&mut code), [1, 1, 0, 0, 1, 1, 0, 1]);
        code.forget(0x2000, 0x2003);
        code.forget(0, 0xfff);
        assert_eq!(fresh(&mut code), [1, 1, 0, 0, 1, 1, 0, 1]);
    }

    #[test]
    fn an_instruction_across_the_end_is_a_fault() {
        let mut space = Space::new(4);
        let (rights, backing) = (Rights::READ_EXECUTE, Backing::Memory(0));
        space
            .map(Range {
                start: 0x1000,
                length: 4,
                rights,
                backing,
            })
            .unwrap();
        space.poke(0x1000, &[1, 0, 0x13, 0]).unwrap();
        assert_eq!(word(&space, 0x1002).unwrap_err().address, 0x1004);
    }
}
