//! Encoding of this crate's work requests: UMR entries that bind or invalidate a key, and the read
//! that proves them.
//!
//! The invalidation and the bind of one registration below 2 GiB are byte for byte equal to
//! libmlx5's requests for `IBV_WR_LOCAL_INV` and for `IBV_WR_BIND_MW` of a type 1 window. Stock UCX
//! posts these requests for its own exported keys (rdma-core 44, `providers/mlx5/qp.c`,
//! `set_bind_wr`). A bind of several registrations, or of 2 GiB and more, is the same request with
//! a longer translation list.

use mlx5_prm::mkey::{KLM_BYTES, Klm, QPN_ANY};
use mlx5_prm::umr::{self, UmrContext, UmrCtrl, access, mask};
use mlx5_prm::wqe::{Ctrl, DS_MAX, Data, OCTOWORD_BYTES, RemoteAddress, WQEBB_BYTES, flag, opcode};

use super::form::Form;
use super::send_verbs::VerbsRequest;
use crate::device::UmrOp;
use crate::key::{Lkey, Mkey, VirtAddr};
use crate::span::Span;

/// Bytes before the translation list.
const HEAD_BYTES: usize = Ctrl::BYTES + umr::CTRL_BYTES + umr::CONTEXT_BYTES;
/// Building blocks of the largest entry.
pub(super) const WQEBBS_MAX: usize = (DS_MAX as usize * OCTOWORD_BYTES).div_ceil(WQEBB_BYTES);

/// Entries of the translation list in the largest work queue entry.
pub(super) const KLM_ENTRIES_MAX: u32 = 52;
const _: () = assert!(klm_entries_in(DS_MAX as usize * OCTOWORD_BYTES) == KLM_ENTRIES_MAX as usize);

/// One work queue entry, ready to copy to the ring. It is large, so each queue has one and rewrites
/// it for each request.
#[derive(Debug)]
pub(super) struct Wqe {
    bytes: [u8; WQEBBS_MAX * WQEBB_BYTES],
    wqebbs: usize,
}

/// Position of an entry in the queue, and its flags.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Number of the entry's first building block, modulo 65,536.
    pub(super) index: u16,
    /// Number of the queue pair.
    pub(super) qpn: u32,
    /// The entry is the last of its chain and generates the chain's completion.
    pub(super) signaled: bool,
    /// Fence that makes the entry wait for earlier entries: 0, or a fence of [`flag::FENCE_MASK`].
    pub(super) fence: u8,
}

/// A request for a queue.
pub(super) trait Request {
    /// Building blocks of the request in the ring.
    fn wqebbs(&self) -> usize;
    /// Writes the request as an entry. False if it does not fit in the largest entry.
    fn write(&self, slot: Slot, wqe: &mut Wqe) -> bool;
    /// The request modifies a key, so the next one must not overtake it.
    fn is_umr(&self) -> bool;
    /// The request for `ibv_post_send`, if it has one.
    fn verbs(&self) -> Option<VerbsRequest>;
}

/// An RDMA read through a key, into memory of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) key: Mkey,
    pub(super) from: VirtAddr,
    pub(super) lkey: Lkey,
    pub(super) to: VirtAddr,
    pub(super) len: u32,
}

/// Maximum number of translation list entries in a work queue entry of `wqe_bytes` bytes.
pub(super) const fn klm_entries_in(wqe_bytes: usize) -> usize {
    let lists = wqe_bytes.saturating_sub(HEAD_BYTES) / umr::LIST_ALIGN_BYTES;
    lists * (umr::LIST_ALIGN_BYTES / KLM_BYTES)
}

/// Bytes of the translation list, including padding.
fn list_bytes(span: &Span<'_>) -> usize {
    let entries = match Form::of(span) {
        Form::Stock => 1,
        Form::List => usize::try_from(span.klm_entries()).expect("a span has at most 2^32 pieces"),
    };
    (entries * KLM_BYTES).next_multiple_of(umr::LIST_ALIGN_BYTES)
}

/// Fields that every entry here modifies or checks: the key's state, its tag and the offset in its
/// list.
const MASK_ALWAYS: u64 = mask::FREE | mask::MKEY;

impl Request for UmrOp<'_> {
    fn wqebbs(&self) -> usize {
        let bytes = match self {
            UmrOp::Bind { span, .. } => HEAD_BYTES + list_bytes(span),
            UmrOp::Invalidate { .. } => HEAD_BYTES,
        };
        bytes.div_ceil(WQEBB_BYTES)
    }

    #[inline]
    fn write(&self, slot: Slot, wqe: &mut Wqe) -> bool {
        if let UmrOp::Bind { span, .. } = self
            && span.klm_entries() > u64::from(KLM_ENTRIES_MAX)
        {
            return false;
        }
        wqe.clear(self.wqebbs());
        let mut ds = HEAD_BYTES / OCTOWORD_BYTES;
        let (control, context) = match self {
            UmrOp::Bind { mkey, span } => {
                let list = list_bytes(span);
                ds += list / OCTOWORD_BYTES;
                wqe.put_list(span);
                let control = UmrCtrl {
                    // `mlx5dv.h` spells it MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET.
                    flags: umr::flag::INLINE | umr::flag::TRANSLATION_OFFSET,
                    klm_octowords: fit(list / OCTOWORD_BYTES),
                    translation_offset: 0,
                    mkey_mask: MASK_ALWAYS
                        | mask::LEN
                        | mask::START_ADDR
                        | mask::LOCAL_WRITE
                        | mask::REMOTE_READ
                        | mask::REMOTE_WRITE
                        | mask::ATOMIC,
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
                    flags: umr::flag::INLINE | umr::flag::TRANSLATION_OFFSET | umr::flag::CHECK_QPN,
                    mkey_mask: MASK_ALWAYS | mask::QPN,
                    ..UmrCtrl::default()
                };
                // The tag becomes zero until the next bind sets it.
                let context = UmrContext {
                    free: true,
                    qpn: QPN_ANY,
                    ..UmrContext::default()
                };
                (control, context)
            }
        };
        wqe.put_ctrl(slot, opcode::UMR, ds, self.mkey().raw());
        wqe.put(Ctrl::BYTES, &control.to_bytes());
        wqe.put(Ctrl::BYTES + umr::CTRL_BYTES, &context.to_bytes());
        true
    }

    fn is_umr(&self) -> bool {
        true
    }

    fn verbs(&self) -> Option<VerbsRequest> {
        Some(match self {
            UmrOp::Bind { mkey, span } => {
                let (region, len) = Form::stock_region(span)?;
                VerbsRequest::Bind {
                    mkey: *mkey,
                    lkey: region.lkey(),
                    addr: region.addr(),
                    len,
                }
            }
            UmrOp::Invalidate { mkey } => VerbsRequest::Invalidate { mkey: *mkey },
        })
    }
}

impl Request for Read {
    fn wqebbs(&self) -> usize {
        1
    }

    fn write(&self, slot: Slot, wqe: &mut Wqe) -> bool {
        wqe.clear(self.wqebbs());
        let remote = RemoteAddress {
            address: self.from.get(),
            rkey: self.key.raw(),
        };
        let data = Data::Memory {
            length: self.len,
            lkey: self.lkey.raw(),
            address: self.to.get(),
        };
        wqe.put_ctrl(slot, opcode::RDMA_READ, 3, 0);
        wqe.put(Ctrl::BYTES, &remote.to_bytes());
        wqe.put(Ctrl::BYTES + OCTOWORD_BYTES, &data.to_bytes());
        true
    }

    fn is_umr(&self) -> bool {
        false
    }

    fn verbs(&self) -> Option<VerbsRequest> {
        Some(VerbsRequest::Read {
            mkey: self.key,
            from: self.from,
            lkey: self.lkey,
            to: self.to,
            len: self.len,
        })
    }
}

impl Wqe {
    /// An empty entry.
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; _],
            wqebbs: 0,
        }
    }

    /// Resets it to an entry of `wqebbs` zeroed building blocks.
    #[inline]
    fn clear(&mut self, wqebbs: usize) {
        self.wqebbs = wqebbs;
        self.bytes[..wqebbs * WQEBB_BYTES].fill(0);
    }

    /// The building blocks to copy to the ring.
    pub(super) fn blocks(&self) -> impl ExactSizeIterator<Item = &[u8; WQEBB_BYTES]> {
        self.bytes.as_chunks().0[..self.wqebbs].iter()
    }

    /// The first eight bytes, which are also the content of the doorbell.
    pub(super) fn doorbell(&self) -> [u8; 8] {
        let [a, b, c, d, e, f, g, h, ..] = self.bytes;
        [a, b, c, d, e, f, g, h]
    }

    /// Pointer to the entry, for code that reads its length from the entry.
    pub(super) fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    fn put_ctrl(&mut self, slot: Slot, opcode: u8, octowords: usize, imm: u32) {
        let ce = if slot.signaled { flag::CE_ALWAYS } else { 0 };
        let ctrl = Ctrl {
            index: slot.index,
            opcode,
            qpn: slot.qpn,
            ds: u8::try_from(octowords).expect("the list was checked against the largest entry"),
            flags: slot.fence | ce,
            imm,
            ..Ctrl::default()
        };
        self.put(0, &ctrl.to_bytes());
    }

    fn put_list(&mut self, span: &Span<'_>) {
        let mut entry = 0;
        let mut put = |address: VirtAddr, len: u32, lkey: Lkey| {
            let klm = Klm {
                byte_count: len,
                mkey: lkey.raw(),
                address: address.get(),
            };
            self.put(HEAD_BYTES + entry * KLM_BYTES, &klm.to_bytes());
            entry += 1;
        };
        match Form::stock_region(span) {
            Some((region, len)) => put(region.addr(), len, region.lkey()),
            None => span
                .klm_pieces()
                .for_each(|(address, len, lkey)| put(address, len, lkey)),
        }
    }

    fn put(&mut self, at: usize, part: &[u8]) {
        self.bytes[at..at + part.len()].copy_from_slice(part);
    }
}

fn fit(octowords: usize) -> u16 {
    u16::try_from(octowords).expect("an entry has at most 63 octowords")
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
        fence: 0,
    };
    const KEY: Mkey = Mkey::from_raw(0x1234_56fb);

    fn written(request: &impl Request, slot: Slot) -> Option<Wqe> {
        let mut wqe = Wqe::new();
        request.write(slot, &mut wqe).then_some(wqe)
    }

    #[track_caller]
    fn check(request: &impl Request, slot: Slot, expect: &[(usize, &[u8])]) {
        let wqe = written(request, slot).expect("it fits");
        let mut model = [0u8; WQEBBS_MAX * WQEBB_BYTES];
        for (at, part) in expect {
            model[*at..at + part.len()].copy_from_slice(part);
        }
        assert_eq!(wqe.bytes, model);
        assert_eq!(wqe.blocks().len(), request.wqebbs());
        assert_eq!(wqe.doorbell(), model[..8]);
    }

    fn bind(len: u64) -> UmrOp<'static> {
        let addr = VirtAddr::new(0x7f00_0000_1001);
        let region = Region::new(addr, len, Lkey::from_raw(0x0a0b_0c0d)).expect("a region");
        UmrOp::Bind {
            mkey: KEY,
            span: region.into(),
        }
    }

    /// Equals `IBV_WR_BIND_MW` of rdma-core 44. The system test `pool_stock_forms` compares it with
    /// the requests of stock UCX.
    /// `pool_stock_forms`.
    #[test]
    fn a_bind_has_the_bytes_of_libmlx5() {
        check(
            &bind(0x4000),
            SLOT,
            &[
                (
                    0,
                    &[
                        0, 1, 2, 0x25, 0, 0, 0x48, 12, 0, 0, 0, 8, 0x12, 0x34, 0x56, 0xfb,
                    ],
                ),
                // Control: inline, with offset; four octowords; free, mkey, access, start, length.
                (
                    16,
                    &[
                        0x90, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0x3c, 0x20, 0x41,
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

    /// Equals `IBV_WR_LOCAL_INV` of rdma-core 44, behind another UMR.
    #[test]
    fn an_invalidation_has_the_bytes_of_libmlx5() {
        check(
            &UmrOp::Invalidate { mkey: KEY },
            Slot {
                fence: flag::FENCE_INITIATOR_SMALL,
                ..SLOT
            },
            &[
                (
                    0,
                    &[
                        0, 1, 2, 0x25, 0, 0, 0x48, 8, 0, 0, 0, 0x28, 0x12, 0x34, 0x56, 0xfb,
                    ],
                ),
                (
                    16,
                    &[0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0x60, 0],
                ),
                // Free; any queue pair, tag zero.
                (64, &[0x40, 0, 0, 0, 0xff, 0xff, 0xff, 0]),
            ],
        );
    }

    #[test]
    fn a_read_names_the_key_and_where_the_bytes_go() {
        let read = Read {
            key: KEY,
            from: VirtAddr::new(0x1000),
            lkey: Lkey::from_raw(0x0a0b_0c0d),
            to: VirtAddr::new(0x2000),
            len: 0x40,
        };
        check(
            &read,
            SLOT,
            &[
                (0, &[0, 1, 2, 0x10, 0, 0, 0x48, 3, 0, 0, 0, 8]),
                (16, &[0, 0, 0, 0, 0, 0, 0x10, 0, 0x12, 0x34, 0x56, 0xfb]),
                (
                    32,
                    &[
                        0, 0, 0, 0x40, 0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0, 0, 0, 0, 0x20, 0,
                    ],
                ),
            ],
        );
    }

    fn entry(wqe: &Wqe, entry: usize) -> Klm {
        let at = HEAD_BYTES + entry * KLM_BYTES;
        Klm::parse(wqe.bytes[at..at + 16].try_into().expect("16 bytes"))
    }

    #[test]
    fn one_region_below_two_gigabytes_has_the_stock_form() {
        let longest = Form::STOCK_BYTES_END - 1;
        let wqe = written(&bind(longest), SLOT).expect("it fits");
        assert_eq!((wqe.blocks().len(), wqe.bytes[7]), (3, 12));
        let whole = Klm {
            byte_count: 0x7fff_ffff,
            mkey: 0x0a0b_0c0d,
            address: 0x7f00_0000_1001,
        };
        assert_eq!(entry(&wqe, 0), whole);
        assert_eq!(entry(&wqe, 1), Klm::default());
        // One byte more takes two entries, and another form.
        let wqe = written(&bind(longest + 1), SLOT).expect("it fits");
        assert_eq!(wqe.blocks().len(), 3);
        assert_eq!(entry(&wqe, 0).byte_count, 0x7fff_0000);
        assert_eq!(entry(&wqe, 1).byte_count, 0x1_0000);
        let form = |op: &UmrOp<'_>| match op {
            UmrOp::Bind { span, .. } => Form::of(span),
            UmrOp::Invalidate { .. } => panic!("no bind"),
        };
        assert_eq!(form(&bind(longest)), Form::Stock);
        assert_eq!(form(&bind(longest + 1)), Form::List);
    }

    #[test]
    fn a_long_region_has_as_many_entries_as_it_needs() {
        let len = 4 * Region::KLM_BYTES_MAX + 5;
        let slot = Slot {
            signaled: false,
            ..SLOT
        };
        let wqe = written(&bind(len), slot);
        let wqe = wqe.expect("it fits");
        assert_eq!(wqe.blocks().len(), 4);
        assert_eq!(
            wqe.bytes[7], 16,
            "octowords: 8 of the head, 5 entries padded to 8"
        );
        assert_eq!(wqe.bytes[11], 0, "no completion");
        // Except for the length of the list, all bytes equal the stock form.
        assert_eq!(wqe.bytes[16..22], [0x90, 0, 0, 0, 0, 8]);
        assert_eq!(wqe.bytes[88..96], len.to_be_bytes());
        let whole = |entry: u64| Klm {
            byte_count: 0x7fff_0000,
            mkey: 0x0a0b_0c0d,
            address: 0x7f00_0000_1001 + entry * Region::KLM_BYTES_MAX,
        };
        for (at, number) in (0..4).enumerate() {
            assert_eq!(entry(&wqe, at), whole(number));
        }
        let rest = Klm {
            byte_count: 5,
            ..whole(4)
        };
        assert_eq!(entry(&wqe, 4), rest);
        for at in 5..8 {
            assert_eq!(entry(&wqe, at), Klm::default(), "padding");
        }
    }

    #[test]
    fn each_registration_of_a_span_has_an_entry_with_its_own_key() {
        let part = |addr, len, lkey| {
            Region::new(VirtAddr::new(addr), len, Lkey::from_raw(lkey)).expect("a region")
        };
        let parts = [part(0x7001, 0xfff, 0x0a00), part(0x8000, 0x2000, 0x0b00)];
        let op = UmrOp::Bind {
            mkey: KEY,
            span: Span::of(&parts).expect("no gap"),
        };
        let wqe = written(&op, SLOT).expect("it fits");
        assert_eq!(wqe.blocks().len(), 3);
        assert_eq!(wqe.bytes[80..88], 0x7001u64.to_be_bytes());
        assert_eq!(wqe.bytes[88..96], 0x2fffu64.to_be_bytes());
        for (at, part) in parts.iter().enumerate() {
            let expect = Klm {
                byte_count: u32::try_from(part.len()).expect("short"),
                mkey: part.lkey().raw(),
                address: part.addr().get(),
            };
            assert_eq!(entry(&wqe, at), expect);
        }
    }

    #[test]
    fn the_longest_region_fits_and_the_next_one_does_not() {
        let longest = u64::from(KLM_ENTRIES_MAX) * Region::KLM_BYTES_MAX;
        let wqe = written(&bind(longest), SLOT).expect("it fits");
        assert_eq!(wqe.blocks().len(), 15);
        assert_eq!(wqe.bytes[7], 60);
        assert!(written(&bind(longest + 1), SLOT).is_none());
    }
}
