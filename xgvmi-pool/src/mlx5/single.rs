//! The two requests that are posted all the time, each by itself: the bind of one registration and the
//! invalidation. Most of their words are the same each time, so they are written once, as any other
//! request, and then only what differs is put in.

use super::form::Form;
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

/// Where what differs lies: control segment (number of the request, key), context (tag, address,
/// length), and the one entry of the list (length and local key, address).
const INDEX: usize = 0;
const KEY: usize = 1;
const TAG: usize = 8;
const START: usize = 10;
const LEN: usize = 11;
const ENTRY_KEY: usize = 16;
const ENTRY_START: usize = 17;

/// The requests of one queue pair, with zeros where they differ.
#[derive(Debug)]
pub(super) struct Templates {
    bind: [u64; BIND_WORDS],
    invalidate: [u64; INVALIDATE_WORDS],
}

/// A request as the words of its building blocks, in the adapter's order of bytes.
pub(super) enum Words {
    Bind([u64; BIND_WORDS]),
    Invalidate([u64; INVALIDATE_WORDS]),
}

impl Templates {
    /// The requests of the queue pair, each of which reports its completion. `None` if they cannot be
    /// written.
    pub(super) fn new(qpn: u32) -> Option<Self> {
        let mkey = Mkey::from_raw(0);
        let slot = Slot {
            index: 0,
            qpn,
            signaled: true,
            fence: 0,
        };
        // One byte at zero under key zero: the length is taken out below.
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

    /// The request, if it is one of the two. `index` and `fence` are those of [`Slot`].
    #[inline]
    pub(super) fn words(&self, op: &UmrOp<'_>, index: u16, fence: u8) -> Option<Words> {
        let index = u64::from(index) << 40;
        let key = u64::from(op.mkey().raw()) | u64::from(fence) << 32;
        match op {
            UmrOp::Bind { mkey, span } => {
                let (region, len) = Form::stock_region(span)?;
                let mut words = self.bind;
                words[INDEX] |= index.to_be();
                words[KEY] |= key.to_be();
                words[TAG] |= u64::from(mkey.tag().get()).to_be();
                words[START] = region.addr().get().to_be();
                words[LEN] = u64::from(len).to_be();
                words[ENTRY_KEY] = (u64::from(len) << 32 | u64::from(region.lkey().raw())).to_be();
                words[ENTRY_START] = region.addr().get().to_be();
                Some(Words::Bind(words))
            }
            UmrOp::Invalidate { .. } => {
                let mut words = self.invalidate;
                words[INDEX] |= index.to_be();
                words[KEY] |= key.to_be();
                Some(Words::Invalidate(words))
            }
        }
    }
}

impl Words {
    /// Building blocks of the request.
    #[inline]
    pub(super) const fn wqebbs(&self) -> u64 {
        match self {
            Self::Bind(_) => 3,
            Self::Invalidate(_) => 2,
        }
    }
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
        match templates.words(op, index, fence).expect("one of the two") {
            Words::Bind(found) => assert_eq!(Some(found), words(op, slot)),
            Words::Invalidate(found) => assert_eq!(Some(found), words(op, slot)),
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

    #[test]
    fn a_long_bind_is_not_one_of_them() {
        let region = Region::new(VirtAddr::new(0x1000), 1 << 31, Lkey::from_raw(7));
        let op = UmrOp::Bind {
            mkey: Mkey::from_raw(0x1234_56fb),
            span: region.expect("a region").into(),
        };
        let templates = Templates::new(1).expect("they can be written");
        assert!(templates.words(&op, 0, 0).is_none());
    }
}
