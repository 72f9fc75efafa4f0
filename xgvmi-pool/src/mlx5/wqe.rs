//! The work requests of this crate as bytes: UMR entries that bind a key to a region or free it.
//!
//! The bind joins two forms that stock rdma-core writes: the inline translation list of
//! `mlx5dv_wr_set_mkey_layout_list`, and the start address of `IBV_WR_BIND_MW`, so that a key of any
//! number of entries answers to the region's own addresses. The invalidation is that of the Linux
//! driver's `IB_WR_LOCAL_INV`, which changes the free bit alone and thereby leaves the tag as it is.

use mlx5_prm::mkey::{KLM_BYTES, Klm, QPN_ANY};
use mlx5_prm::umr::{self, UmrContext, UmrCtrl, access, mask};
use mlx5_prm::wqe::{Ctrl, DS_MAX, OCTOWORD_BYTES, WQEBB_BYTES, flag, opcode};

use crate::device::UmrOp;
use crate::span::Span;

/// Bytes before the translation list.
const HEAD_BYTES: usize = Ctrl::BYTES + umr::CTRL_BYTES + umr::CONTEXT_BYTES;
/// Building blocks of the largest entry.
pub(super) const WQEBBS_MAX: usize = (DS_MAX as usize * OCTOWORD_BYTES).div_ceil(WQEBB_BYTES);

/// Entries of the translation list that the largest work queue entry has room for.
pub(super) const KLM_ENTRIES_MAX: u32 = 52;
const _: () = assert!(klm_entries_in(DS_MAX as usize * OCTOWORD_BYTES) == KLM_ENTRIES_MAX as usize);

/// One work queue entry, ready to be copied to the ring.
pub(super) struct Wqe {
    bytes: [u8; WQEBBS_MAX * WQEBB_BYTES],
    wqebbs: usize,
}

/// Where an entry goes, and what the queue wants of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Number of the entry's first building block, modulo 65,536.
    pub(super) index: u16,
    /// The queue pair.
    pub(super) qpn: u32,
    /// The entry is the last of its chain and reports the chain's completion.
    pub(super) signaled: bool,
}

/// Entries of the translation list that a work queue entry of so many bytes has room for.
pub(super) const fn klm_entries_in(wqe_bytes: usize) -> usize {
    let lists = wqe_bytes.saturating_sub(HEAD_BYTES) / umr::LIST_ALIGN_BYTES;
    lists * (umr::LIST_ALIGN_BYTES / KLM_BYTES)
}

/// Building blocks that the request takes in the ring: two to invalidate, three to bind a gigabyte.
pub(super) fn wqebbs(op: &UmrOp<'_>) -> usize {
    let bytes = match op {
        UmrOp::Bind { span, .. } => HEAD_BYTES + list_bytes(span),
        UmrOp::Invalidate { .. } => HEAD_BYTES,
    };
    bytes.div_ceil(WQEBB_BYTES)
}

/// Bytes of the translation list, padding included.
fn list_bytes(span: &Span<'_>) -> usize {
    let entries = usize::try_from(span.klm_entries()).unwrap_or(usize::MAX / KLM_BYTES);
    (entries * KLM_BYTES).next_multiple_of(umr::LIST_ALIGN_BYTES)
}

impl Wqe {
    /// The request as an entry. `None` if the memory needs more than [`KLM_ENTRIES_MAX`] entries.
    pub(super) fn new(op: &UmrOp<'_>, slot: Slot) -> Option<Self> {
        if let UmrOp::Bind { span, .. } = op
            && span.klm_entries() > u64::from(KLM_ENTRIES_MAX)
        {
            return None;
        }
        let mut wqe = Self {
            bytes: [0; _],
            wqebbs: wqebbs(op),
        };
        let mut ds = HEAD_BYTES / OCTOWORD_BYTES;
        let (control, context) = match op {
            UmrOp::Bind { mkey, span } => {
                let list = list_bytes(span);
                ds += list / OCTOWORD_BYTES;
                wqe.put_list(span);
                let control = UmrCtrl {
                    // A key that is not free is somebody else's: the device refuses it.
                    flags: umr::flag::INLINE | umr::flag::CHECK_FREE,
                    klm_octowords: fit(list / OCTOWORD_BYTES),
                    translation_offset: 0,
                    mkey_mask: mask::FREE
                        | mask::MKEY
                        | mask::LEN
                        | mask::START_ADDR
                        | mask::LOCAL_WRITE
                        | mask::REMOTE_READ
                        | mask::REMOTE_WRITE,
                };
                let context = UmrContext {
                    access: access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_WRITE,
                    qpn: QPN_ANY,
                    variant: mkey.tag().get(),
                    start_addr: span.addr().get(),
                    len: span.len(),
                    ..UmrContext::default()
                };
                (control, context)
            }
            UmrOp::Invalidate { .. } => {
                let control = UmrCtrl {
                    flags: umr::flag::INLINE,
                    mkey_mask: mask::FREE,
                    ..UmrCtrl::default()
                };
                (
                    control,
                    UmrContext {
                        free: true,
                        ..UmrContext::default()
                    },
                )
            }
        };
        let ce = if slot.signaled { flag::CE_ALWAYS } else { 0 };
        let ctrl = Ctrl {
            index: slot.index,
            opcode: opcode::UMR,
            qpn: slot.qpn,
            // Cannot be lost: the list was checked against the largest entry.
            ds: u8::try_from(ds).unwrap_or(DS_MAX),
            // Behind the entry before it: a key may be freed and bound again in one chain.
            flags: flag::FENCE_INITIATOR_SMALL | ce,
            imm: op.mkey().raw(),
            ..Ctrl::default()
        };
        wqe.put(0, &ctrl.to_bytes());
        wqe.put(Ctrl::BYTES, &control.to_bytes());
        wqe.put(Ctrl::BYTES + umr::CTRL_BYTES, &context.to_bytes());
        Some(wqe)
    }

    /// The building blocks to copy to the ring.
    pub(super) fn blocks(&self) -> impl ExactSizeIterator<Item = &[u8; WQEBB_BYTES]> {
        self.bytes.as_chunks().0[..self.wqebbs].iter()
    }

    /// The first eight bytes, which a doorbell repeats.
    pub(super) fn doorbell(&self) -> [u8; 8] {
        let [a, b, c, d, e, f, g, h, ..] = self.bytes;
        [a, b, c, d, e, f, g, h]
    }

    fn put_list(&mut self, span: &Span<'_>) {
        for (entry, (address, len, lkey)) in span.klm_pieces().enumerate() {
            let klm = Klm {
                byte_count: len,
                mkey: lkey.raw(),
                address: address.get(),
            };
            self.put(HEAD_BYTES + entry * KLM_BYTES, &klm.to_bytes());
        }
    }

    fn put(&mut self, at: usize, part: &[u8]) {
        self.bytes[at..at + part.len()].copy_from_slice(part);
    }
}

/// Cannot be lost: an entry has at most 63 octowords.
fn fit(octowords: usize) -> u16 {
    u16::try_from(octowords).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Lkey, Mkey, VirtAddr};
    use crate::region::Region;

    const SLOT: Slot = Slot {
        index: 0x0102,
        qpn: 0x48,
        signaled: true,
    };

    #[track_caller]
    fn check(op: &UmrOp<'_>, slot: Slot, expect: &[(usize, &[u8])]) {
        let wqe = Wqe::new(op, slot).expect("it fits");
        let mut model = [0u8; WQEBBS_MAX * WQEBB_BYTES];
        for (at, part) in expect {
            model[*at..at + part.len()].copy_from_slice(part);
        }
        assert_eq!(wqe.bytes, model);
        assert_eq!(wqe.blocks().len(), wqebbs(op));
        assert_eq!(wqe.doorbell(), model[..8]);
    }

    fn bind(len: u64) -> UmrOp<'static> {
        let addr = VirtAddr::new(0x7f00_0000_1001);
        let region = Region::new(addr, len, Lkey::from_raw(0x0a0b_0c0d)).expect("a region");
        UmrOp::Bind {
            mkey: Mkey::from_raw(0x1234_56fb),
            span: region.into(),
        }
    }

    #[test]
    fn a_bind_has_the_bytes_of_the_prm() {
        check(
            &bind(0x4000),
            SLOT,
            &[
                (
                    0,
                    &[
                        0, 1, 2, 0x25, 0, 0, 0x48, 12, 0, 0, 0, 0x28, 0x12, 0x34, 0x56, 0xfb,
                    ],
                ),
                // Control: inline, must be free; four octowords; free, mkey, access, start, length.
                (
                    16,
                    &[
                        0xa0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0x1c, 0x20, 0x41,
                    ],
                ),
                // Context: local write, remote read and write; any queue pair, tag 0xfb.
                (64, &[0, 0, 0x38, 0, 0xff, 0xff, 0xff, 0xfb]),
                (
                    80,
                    &[0, 0, 0x7f, 0, 0, 0, 0x10, 1, 0, 0, 0, 0, 0, 0, 0x40, 0],
                ),
                // One entry: length, lkey, address.
                (
                    128,
                    &[
                        0, 0, 0x40, 0, 0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0x7f, 0, 0, 0, 0x10, 1,
                    ],
                ),
            ],
        );
    }

    #[test]
    fn a_long_region_has_an_entry_for_each_gigabyte() {
        let len = (4u64 << 30) + 5;
        let wqe = Wqe::new(
            &bind(len),
            Slot {
                signaled: false,
                ..SLOT
            },
        )
        .expect("it fits");
        assert_eq!(wqe.blocks().len(), 4);
        assert_eq!(
            wqe.bytes[7], 16,
            "octowords: 8 of the head, 5 entries padded to 8"
        );
        assert_eq!(wqe.bytes[11], 0x20, "no completion");
        assert_eq!(wqe.bytes[20..22], [0, 8]);
        assert_eq!(wqe.bytes[88..96], len.to_be_bytes());
        let entry = |entry: usize| {
            let at = 128 + entry * 16;
            Klm::parse(wqe.bytes[at..at + 16].try_into().expect("16 bytes"))
        };
        let whole = |entry: u64| Klm {
            byte_count: 1 << 30,
            mkey: 0x0a0b_0c0d,
            address: 0x7f00_0000_1001 + (entry << 30),
        };
        assert_eq!(
            [entry(0), entry(1), entry(2), entry(3)],
            [0, 1, 2, 3].map(whole)
        );
        assert_eq!(
            entry(4),
            Klm {
                byte_count: 5,
                ..whole(4)
            }
        );
        assert_eq!(
            [entry(5), entry(6), entry(7)],
            [Klm::default(); 3],
            "padding"
        );
    }

    #[test]
    fn each_registration_of_a_span_has_an_entry_with_its_own_key() {
        let part = |addr, len, lkey| {
            Region::new(VirtAddr::new(addr), len, Lkey::from_raw(lkey)).expect("a region")
        };
        let parts = [part(0x7001, 0xfff, 0x0a00), part(0x8000, 0x2000, 0x0b00)];
        let wqe = Wqe::new(
            &UmrOp::Bind {
                mkey: Mkey::from_raw(0x1234_56fb),
                span: Span::of(&parts).expect("no gap"),
            },
            SLOT,
        )
        .expect("it fits");
        assert_eq!(wqe.blocks().len(), 3);
        assert_eq!(wqe.bytes[80..88], 0x7001u64.to_be_bytes());
        assert_eq!(wqe.bytes[88..96], 0x2fffu64.to_be_bytes());
        for (entry, part) in parts.iter().enumerate() {
            let at = 128 + entry * 16;
            let klm = Klm::parse(wqe.bytes[at..at + 16].try_into().expect("16 bytes"));
            let expect = Klm {
                byte_count: u32::try_from(part.len()).expect("short"),
                mkey: part.lkey().raw(),
                address: part.addr().get(),
            };
            assert_eq!(klm, expect);
        }
    }

    #[test]
    fn the_longest_region_fits_and_the_next_one_does_not() {
        let longest = u64::from(KLM_ENTRIES_MAX) << 30;
        let wqe = Wqe::new(&bind(longest), SLOT).expect("it fits");
        assert_eq!(wqe.blocks().len(), 15);
        assert_eq!(wqe.bytes[7], 60);
        assert!(Wqe::new(&bind(longest + 1), SLOT).is_none());
    }

    #[test]
    fn an_invalidation_changes_the_free_bit_alone() {
        check(
            &UmrOp::Invalidate {
                mkey: Mkey::from_raw(0x1234_56fb),
            },
            SLOT,
            &[
                (
                    0,
                    &[
                        0, 1, 2, 0x25, 0, 0, 0x48, 8, 0, 0, 0, 0x28, 0x12, 0x34, 0x56, 0xfb,
                    ],
                ),
                (16, &[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0]),
                (64, &[0x40, 0, 0, 0]),
            ],
        );
    }
}
