//! Templates of the two most frequent requests: the bind of one registration, and the invalidation,
//! each as a chain of its own. Most of their words are zero and four more are constant. A queue keeps
//! the constants of both requests in one cache line, taken from the usual encoding.

use mlx5_prm::wqe::flag;

use super::wqe::{Request, Slot, Wqe};
use crate::device::UmrOp;
use crate::key::{Lkey, Mkey, VirtAddr};
use crate::region::Region;

/// Words of a building block.
const WQEBB_WORDS: usize = 8;

/// Positions of the words that are not always zero: control segment (number of the request; key and
/// flags), UMR control segment (two words), context (access and tag, address, length), and the one
/// entry of the list (length and local key, address).
const INDEX: usize = 0;
const KEY: usize = 1;
const CONTROL: usize = 2;
const MASK: usize = 3;
const TAG: usize = 8;
const START: usize = 10;
const LEN: usize = 11;
const ENTRY_KEY: usize = 16;
const ENTRY_START: usize = 17;

/// Flags of the control segment, without the fence: the request generates a completion.
const FLAGS: u8 = flag::CE_ALWAYS;

/// The constants of the requests of one queue pair.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Templates {
    bind: Constants,
    invalidate: Constants,
}

const _: () = assert!(size_of::<Templates>() == 64);

/// Constant bits of a request, in the adapter's byte order.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Constants {
    index: u64,
    control: u64,
    mask: u64,
    context: u64,
}

/// A building block as words in the adapter's byte order.
pub(super) type Block = [u64; WQEBB_WORDS];

impl Templates {
    /// Stands where a queue has no templates.
    pub(super) const NONE: Self = Self {
        bind: Constants::NONE,
        invalidate: Constants::NONE,
    };

    /// The requests of the queue pair, each with a completion. `None` if the encoding fails, or has
    /// constants at other positions.
    pub(super) fn new(qpn: u32) -> Option<Self> {
        let mkey = Mkey::from_raw(0);
        let slot = Slot {
            index: 0,
            qpn,
            signaled: true,
            fence: 0,
        };
        // One byte at address zero under key zero: only the length is not zero.
        let region = Region::new(VirtAddr::new(0), 1, Lkey::from_raw(0)).ok()?;
        let bind = encode(
            &UmrOp::Bind {
                mkey,
                span: region.into(),
            },
            slot,
        )?;
        let invalidate = encode(&UmrOp::Invalidate { mkey }, slot)?;
        let templates = Self {
            bind: Constants::of(&bind),
            invalidate: Constants::of(&invalidate),
        };
        let same = templates.bind(mkey, (region, 1), 0, 0) == bind
            && templates.invalidate(mkey, 0, 0) == invalidate;
        same.then_some(templates)
    }

    /// The bind of a key to a region of `len` bytes, below 2 GiB. See [`Slot`] for `index` and
    /// `fence`.
    #[inline(always)]
    pub(super) fn bind(
        &self,
        mkey: Mkey,
        (region, len): (Region, u32),
        index: u16,
        fence: u8,
    ) -> [Block; 3] {
        let mut blocks = [[0; WQEBB_WORDS]; 3];
        let words = blocks.as_flattened_mut();
        self.bind.write(words, mkey, index, fence);
        let start = region.addr().get().to_be();
        words[TAG] |= u64::from(mkey.tag().get()).to_be();
        words[START] = start;
        words[LEN] = u64::from(len).to_be();
        words[ENTRY_KEY] = (u64::from(len) << 32 | u64::from(region.lkey().raw())).to_be();
        words[ENTRY_START] = start;
        blocks
    }

    /// The invalidation of a key. See [`Slot`] for `index` and `fence`.
    #[inline(always)]
    pub(super) fn invalidate(&self, mkey: Mkey, index: u16, fence: u8) -> [Block; 2] {
        let mut blocks = [[0; WQEBB_WORDS]; 2];
        let words = blocks.as_flattened_mut();
        self.invalidate.write(words, mkey, index, fence);
        blocks
    }
}

impl Constants {
    const NONE: Self = Self {
        index: 0,
        control: 0,
        mask: 0,
        context: 0,
    };

    fn of(blocks: &[Block]) -> Self {
        let words = blocks.as_flattened();
        Self {
            index: words[INDEX],
            control: words[CONTROL],
            mask: words[MASK],
            context: words[TAG],
        }
    }

    /// Writes the constants, and the variable words of the control segment.
    #[inline(always)]
    fn write(&self, words: &mut [u64], mkey: Mkey, index: u16, fence: u8) {
        words[INDEX] = self.index | (u64::from(index) << 40).to_be();
        words[KEY] = (u64::from(mkey.raw()) | u64::from(FLAGS | fence) << 32).to_be();
        words[CONTROL] = self.control;
        words[MASK] = self.mask;
        words[TAG] = self.context;
    }
}

/// The building blocks of the request by the usual encoding; `None` if it has another length.
fn encode<const BLOCKS: usize>(op: &UmrOp<'_>, slot: Slot) -> Option<[Block; BLOCKS]> {
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
                let found = templates.bind(*mkey, (*stock.0, stock.1), index, fence);
                assert_eq!(Some(found), encode(op, slot));
            }
            UmrOp::Invalidate { mkey } => {
                let found = templates.invalidate(*mkey, index, fence);
                assert_eq!(Some(found), encode(op, slot));
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
