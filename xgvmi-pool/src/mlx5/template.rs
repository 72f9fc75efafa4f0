//! Templates of the two most frequent requests: the bind of one registration, and the invalidation,
//! each as a chain of its own. Most of their words are constant. They are encoded once, like any
//! other request, and each post fills in only the variable words.

use super::wqe::{Request, Slot, Wqe};
use crate::device::UmrOp;
use crate::key::{Lkey, Mkey, VirtAddr};
use crate::region::Region;

/// Words of a building block.
pub(super) const WQEBB_WORDS: usize = 8;
/// Words of a bind in the stock form: three building blocks.
const BIND_WORDS: usize = 3 * WQEBB_WORDS;
/// Words of an invalidation.
const INVALIDATE_WORDS: usize = 2 * WQEBB_WORDS;

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
    bind: [u64; BIND_WORDS],
    invalidate: [u64; INVALIDATE_WORDS],
}

/// A building block as words in the adapter's byte order.
pub(super) type Block = [u64; WQEBB_WORDS];

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
        let mut bind = words(&UmrOp::Bind { mkey, span }, slot)?;
        bind[LEN] = 0;
        bind[ENTRY_KEY] = 0;
        Some(Self {
            bind,
            invalidate: words(&UmrOp::Invalidate { mkey }, slot)?,
        })
    }

    /// The bind of a key to a region of `len` bytes, below 2 GiB. See [`Slot`] for `index` and
    /// `fence`.
    #[inline(always)]
    pub(super) fn bind(
        &self,
        mkey: Mkey,
        (region, len): (&Region, u32),
        index: u16,
        fence: u8,
    ) -> [Block; 3] {
        let mut words = self.bind;
        put_head(&mut words, mkey, index, fence);
        let start = region.addr().get().to_be();
        words[TAG] |= u64::from(mkey.tag().get()).to_be();
        words[START] = start;
        words[LEN] = u64::from(len).to_be();
        words[ENTRY_KEY] = (u64::from(len) << 32 | u64::from(region.lkey().raw())).to_be();
        words[ENTRY_START] = start;
        let (blocks, _) = words.as_chunks();
        [blocks[0], blocks[1], blocks[2]]
    }

    /// The invalidation of a key.
    #[inline(always)]
    pub(super) fn invalidate(&self, mkey: Mkey, index: u16, fence: u8) -> [Block; 2] {
        let mut words = self.invalidate;
        put_head(&mut words, mkey, index, fence);
        let (blocks, _) = words.as_chunks();
        [blocks[0], blocks[1]]
    }
}

/// Fills in the control segment.
#[inline(always)]
fn put_head(words: &mut [u64], mkey: Mkey, index: u16, fence: u8) {
    words[INDEX] |= (u64::from(index) << 40).to_be();
    words[KEY] |= (u64::from(mkey.raw()) | u64::from(fence) << 32).to_be();
}

/// The request's words; `None` if it has another length.
fn words<const WORDS: usize>(op: &UmrOp<'_>, slot: Slot) -> Option<[u64; WORDS]> {
    let mut wqe = Wqe::new();
    if !op.write(slot, &mut wqe) || wqe.blocks().len() * WQEBB_WORDS != WORDS {
        return None;
    }
    let mut words = [0; WORDS];
    let blocks = wqe.blocks().flat_map(|block| block.as_chunks::<8>().0);
    for (word, bytes) in words.iter_mut().zip(blocks) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::super::form::Form;
    use super::*;
    use mlx5_prm::wqe::flag;

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
                let found = templates.bind(*mkey, stock, index, fence);
                assert_eq!(
                    Some(found.as_flattened()),
                    words::<BIND_WORDS>(op, slot).as_ref().map(|w| &w[..])
                );
            }
            UmrOp::Invalidate { mkey } => {
                let found = templates.invalidate(*mkey, index, fence);
                assert_eq!(
                    Some(found.as_flattened()),
                    words::<INVALIDATE_WORDS>(op, slot).as_ref().map(|w| &w[..])
                );
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
