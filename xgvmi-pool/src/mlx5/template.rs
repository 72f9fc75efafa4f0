//! Templates of the two most frequent requests: the bind of one registration, and the invalidation,
//! each as a chain of its own. Most of their words are constant. They are encoded once, like any
//! other request, and each post fills in only the variable words.

use super::wqe::{Request, Slot, Wqe};
use crate::device::UmrOp;
use crate::key::{Lkey, Mkey, VirtAddr};
use crate::region::Region;

/// Words of a building block.
pub(super) const WQEBB_WORDS: usize = 8;

/// Positions of the variable words: control segment (number of the request, key), context (tag,
/// address, length), and the one entry of the list (length and local key, address).
const INDEX: usize = 0;
const KEY: usize = 1;
const TAG: usize = 8;
const START: usize = 10;
const LEN: usize = 11;
const ENTRY_KEY: usize = 16;
const ENTRY_START: usize = 17;

/// The requests of one queue pair, with zeros in the variable words.
#[derive(Debug)]
pub(super) struct Templates {
    bind: [Block; 3],
    invalidate: [Block; 2],
}

/// A building block as words in the adapter's byte order.
pub(super) type Block = [u64; WQEBB_WORDS];

/// Position in a request, in words, and value of a variable word.
pub(super) type Variable = (usize, u64);

impl Templates {
    /// The requests of the queue pair, each with a completion. `None` if the encoding fails.
    pub(super) fn new(qpn: u32) -> Option<Self> {
        let mkey = Mkey::from_raw(0);
        let slot = Slot {
            index: 0,
            qpn,
            signaled: true,
            fence: 0,
        };
        // One byte at address zero under key zero: the length is cleared below.
        let region = Region::new(VirtAddr::new(0), 1, Lkey::from_raw(0)).ok()?;
        let span = region.into();
        let mut bind = blocks(&UmrOp::Bind { mkey, span }, slot)?;
        bind.as_flattened_mut()[LEN] = 0;
        bind.as_flattened_mut()[ENTRY_KEY] = 0;
        Some(Self {
            bind,
            invalidate: blocks(&UmrOp::Invalidate { mkey }, slot)?,
        })
    }

    /// The bind of a key to a region of `len` bytes, below 2 GiB, and its variable words, of which
    /// the first is also the doorbell's. See [`Slot`] for `index` and `fence`.
    #[inline(always)]
    pub(super) fn bind(
        &self,
        mkey: Mkey,
        (region, len): (&Region, u32),
        index: u16,
        fence: u8,
    ) -> (&[Block; 3], [Variable; 7]) {
        let [head, key] = head(&self.bind[0], mkey, index, fence);
        let start = region.addr().get().to_be();
        let tag = self.bind.as_flattened()[TAG] | u64::from(mkey.tag().get()).to_be();
        let entry_key = u64::from(len) << 32 | u64::from(region.lkey().raw());
        let variables = [
            head,
            key,
            (TAG, tag),
            (START, start),
            (LEN, u64::from(len).to_be()),
            (ENTRY_KEY, entry_key.to_be()),
            (ENTRY_START, start),
        ];
        (&self.bind, variables)
    }

    /// The invalidation of a key, and its variable words, of which the first is also the doorbell's.
    #[inline(always)]
    pub(super) fn invalidate(
        &self,
        mkey: Mkey,
        index: u16,
        fence: u8,
    ) -> (&[Block; 2], [Variable; 2]) {
        let variables = head(&self.invalidate[0], mkey, index, fence);
        (&self.invalidate, variables)
    }
}

/// The variable words of the control segment.
#[inline(always)]
fn head(first: &Block, mkey: Mkey, index: u16, fence: u8) -> [Variable; 2] {
    let index = first[INDEX] | (u64::from(index) << 40).to_be();
    let key = first[KEY] | (u64::from(mkey.raw()) | u64::from(fence) << 32).to_be();
    [(INDEX, index), (KEY, key)]
}

/// The building blocks of the request; `None` if it has another length.
fn blocks<const BLOCKS: usize>(op: &UmrOp<'_>, slot: Slot) -> Option<[Block; BLOCKS]> {
    let mut wqe = Wqe::new();
    if !op.write(slot, &mut wqe) || wqe.blocks().len() != BLOCKS {
        return None;
    }
    let mut blocks = [[0; WQEBB_WORDS]; BLOCKS];
    let bytes = wqe.blocks().flat_map(|block| block.as_chunks::<8>().0);
    for (word, bytes) in blocks.as_flattened_mut().iter_mut().zip(bytes) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Some(blocks)
}

#[cfg(test)]
mod tests {
    use super::super::form::Form;
    use super::*;
    use mlx5_prm::wqe::flag;

    /// The blocks with their variable words. The first variable is the doorbell's word.
    fn filled<const BLOCKS: usize, const WORDS: usize>(
        (blocks, variables): (&[Block; BLOCKS], [Variable; WORDS]),
    ) -> [Block; BLOCKS] {
        let mut blocks = *blocks;
        assert_eq!(variables[0].0, 0);
        for (position, value) in variables {
            blocks.as_flattened_mut()[position] = value;
        }
        blocks
    }

    #[track_caller]
    fn check(op: &UmrOp<'_>, index: u16, fence: u8) {
        let templates = Templates::new(0x1234).expect("they can be written");
        let slot = Slot {
            index,
            qpn: 0x1234,
            signaled: true,
            fence,
        };
        match op {
            UmrOp::Bind { mkey, span } => {
                let stock = Form::stock_region(span).expect("of the stock form");
                let found = filled(templates.bind(*mkey, stock, index, fence));
                assert_eq!(Some(found), blocks::<3>(op, slot));
            }
            UmrOp::Invalidate { mkey } => {
                let found = filled(templates.invalidate(*mkey, index, fence));
                assert_eq!(Some(found), blocks::<2>(op, slot));
            }
        }
    }

    #[test]
    fn a_single_request_has_the_bytes_of_any_other() {
        for (index, fence) in [
            (0, 0),
            (0xabcd, flag::FENCE_INITIATOR_SMALL),
            (0xffff, 0xe0),
        ] {
            for raw in [0x1234_56fb, 0x0100, 0xffff_ffff] {
                let mkey = Mkey::from_raw(raw);
                check(&UmrOp::Invalidate { mkey }, index, fence);
                for (addr, len, lkey) in [
                    (0x7f00_0000_1001, 0x4000, 0x0a0b_0c0d),
                    (1, 1, 1),
                    (0xffff_0000_0000, (1 << 31) - 1, u32::MAX),
                ] {
                    let region = Region::new(VirtAddr::new(addr), len, Lkey::from_raw(lkey));
                    let span = region.expect("a region").into();
                    check(&UmrOp::Bind { mkey, span }, index, fence);
                }
            }
        }
    }
}
