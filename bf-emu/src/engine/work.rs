//! Send work queue entries: parses the bytes of a ring into a checked [`Work`]. Has no side
//! effects.

use mlx5_prm::mkey::{KLM_BYTES, Klm};
use mlx5_prm::umr::{self, UmrContext, UmrCtrl};
use mlx5_prm::wqe::{
    AddressVector, Ctrl, MmoMetadata, OCTOWORD_BYTES, RemoteAddress, WQEBB_BYTES, mmo, opcode,
};
use mlx5_prm::{qp::service, wqe::DS_MAX};

/// Largest entry in bytes.
pub(crate) const WORK_BYTES_MAX: usize =
    (DS_MAX as usize * OCTOWORD_BYTES).next_multiple_of(WQEBB_BYTES);

/// The operation of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// No operation.
    Nop,
    /// A message.
    Send {
        /// Immediate data.
        imm: Option<u32>,
        /// Key that the message invalidates at the receiver.
        invalidate: Option<u32>,
    },
    /// RDMA write.
    Write {
        /// Target in the peer's memory.
        remote: RemoteAddress,
        /// Immediate data, which takes a receive entry.
        imm: Option<u32>,
    },
    /// RDMA read.
    Read {
        /// Source in the peer's memory.
        remote: RemoteAddress,
    },
    /// Atomic operation on a word of the peer's memory.
    Atomic {
        /// The word.
        remote: RemoteAddress,
        /// The operation.
        atomic: Atomic,
    },
    /// Change of an mkey.
    Umr {
        /// The mkey, as an lkey.
        mkey: u32,
        /// Control segment of the UMR.
        ctrl: UmrCtrl,
        /// Context segment of the UMR.
        context: UmrContext,
    },
    /// Copy between two ranges of the poster's own keys. The source and the destination follow.
    Memcpy {
        /// The buffer for details.
        metadata: MmoMetadata,
    },
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Atomic {
    /// Bytes of the word: 4 or 8.
    pub bytes: u8,
    /// The operation and its operands.
    pub kind: AtomicKind,
}

/// Atomic operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicKind {
    /// Swaps if the word equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds.
    FetchAdd {
        /// Addend.
        add: u64,
    },
    /// Swaps some bits if other bits are equal.
    MaskedCompareSwap {
        /// Expected value.
        compare: u64,
        /// Bits to compare.
        compare_mask: u64,
        /// New value.
        swap: u64,
        /// Bits to change.
        swap_mask: u64,
    },
    /// Adds in fields.
    MaskedFetchAdd {
        /// Addend.
        add: u64,
        /// The highest bit of each field.
        boundary: u64,
    },
}

/// A checked entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Its control segment.
    pub ctrl: Ctrl,
    /// Datagrams and dynamic connections: the destination.
    pub address: Option<AddressVector>,
    /// XRC: the destination's shared receive queue.
    pub xrc_srq: Option<u32>,
    /// The operation.
    pub operation: Operation,
    /// Offset of the data segments, or of the translation list of a UMR.
    pub data_at: usize,
    /// Offset of the entry's end.
    pub end: usize,
}

/// Reason why an entry was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkError {
    /// The device does not support the opcode, or not on a queue of this type.
    Opcode,
    /// The entry is shorter than its opcode needs.
    Short,
}

/// Parses an entry of a queue of service type `queue`.
pub(crate) fn parse(bytes: &[u8], queue: u8) -> Result<Work, WorkError> {
    let mut reader = Reader { bytes, at: 0 };
    let ctrl = Ctrl::parse(reader.take()?);
    let end = usize::from(ctrl.ds) * OCTOWORD_BYTES;
    // An entry has at least its control segment, which contains the length.
    if end < reader.at {
        return Err(WorkError::Short);
    }
    reader.bytes = bytes.get(..end).ok_or(WorkError::Short)?;
    let address = match queue {
        service::UD | service::DCI if !is_local(&ctrl) => Some(reader.address_vector()?),
        _ => None,
    };
    let xrc_srq = match queue {
        service::XRC if !is_local(&ctrl) => Some(reader.xrc_srq()?),
        _ => None,
    };
    let operation = operation(&mut reader, &ctrl, queue)?;
    Ok(Work {
        ctrl,
        address,
        xrc_srq,
        operation,
        data_at: reader.at,
        end,
    })
}

/// True if an entry has no destination on any queue.
fn is_local(ctrl: &Ctrl) -> bool {
    matches!(ctrl.opcode, opcode::NOP | opcode::MMO)
}

/// The operation of an entry, by its opcode and the service of its queue. Reads the segments before
/// the data.
fn operation(reader: &mut Reader<'_>, ctrl: &Ctrl, queue: u8) -> Result<Operation, WorkError> {
    let reliable = matches!(queue, service::RC | service::DCI | service::XRC);
    let connected = reliable || queue == service::UC;
    let imm = Some(ctrl.imm);
    Ok(match ctrl.opcode {
        opcode::NOP => Operation::Nop,
        opcode::SEND => Operation::Send {
            imm: None,
            invalidate: None,
        },
        opcode::SEND_IMM => Operation::Send {
            imm,
            invalidate: None,
        },
        opcode::SEND_INVAL if connected => Operation::Send {
            imm: None,
            invalidate: imm,
        },
        opcode::RDMA_WRITE if connected => Operation::Write {
            remote: reader.remote()?,
            imm: None,
        },
        opcode::RDMA_WRITE_IMM if connected => Operation::Write {
            remote: reader.remote()?,
            imm,
        },
        opcode::RDMA_READ if reliable => Operation::Read {
            remote: reader.remote()?,
        },
        opcode::ATOMIC_CS if reliable => {
            let remote = reader.remote()?;
            let (swap, compare) = reader.words()?;
            let kind = AtomicKind::CompareSwap { compare, swap };
            let atomic = Atomic { bytes: 8, kind };
            Operation::Atomic { remote, atomic }
        }
        opcode::ATOMIC_FA if reliable => {
            let remote = reader.remote()?;
            let (add, _) = reader.words()?;
            let kind = AtomicKind::FetchAdd { add };
            let atomic = Atomic { bytes: 8, kind };
            Operation::Atomic { remote, atomic }
        }
        opcode::ATOMIC_MASKED_CS | opcode::ATOMIC_MASKED_FA if reliable => {
            let bytes = masked_bytes(ctrl.opmod)?;
            let remote = reader.remote()?;
            let kind = if ctrl.opcode == opcode::ATOMIC_MASKED_CS {
                reader.masked_compare_swap(bytes)?
            } else {
                reader.masked_fetch_add(bytes)?
            };
            let atomic = Atomic { bytes, kind };
            Operation::Atomic { remote, atomic }
        }
        opcode::UMR if connected && queue != service::XRC => Operation::Umr {
            mkey: ctrl.imm,
            ctrl: UmrCtrl::parse(reader.take()?),
            context: UmrContext::parse(reader.take::<{ umr::CONTEXT_BYTES }>()?),
        },
        // `mlx5dv_wr_memcpy` is for RC and DCI (rdma-core `providers/mlx5/mlx5.h`, `dma_mmo_sq`).
        opcode::MMO if ctrl.opmod == mmo::DMA && matches!(queue, service::RC | service::DCI) => {
            Operation::Memcpy {
                metadata: MmoMetadata::parse(reader.take()?),
            }
        }
        _ => return Err(WorkError::Opcode),
    })
}

/// The entries of an inline translation list.
pub(crate) fn klms(bytes: &[u8]) -> impl Iterator<Item = Klm> {
    bytes.as_chunks::<KLM_BYTES>().0.iter().map(Klm::parse)
}

/// Bytes of the word of a masked operation, by the variant of its opcode. Bit 3 marks such a word,
/// and the lower bits are log2 of its number of four-byte units.
fn masked_bytes(opmod: u8) -> Result<u8, WorkError> {
    match opmod {
        8 => Ok(4),
        9 => Ok(8),
        _ => Err(WorkError::Opcode),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], WorkError> {
        let rest = self.bytes.get(self.at..).ok_or(WorkError::Short)?;
        let part = rest.first_chunk::<N>().ok_or(WorkError::Short)?;
        self.at += N;
        Ok(part)
    }

    fn remote(&mut self) -> Result<RemoteAddress, WorkError> {
        Ok(RemoteAddress::parse(self.take()?))
    }

    /// The XRC segment: a number in the first word (`mlx5dv.h`, `struct mlx5_wqe_xrc_seg`).
    fn xrc_srq(&mut self) -> Result<u32, WorkError> {
        let [a, b, c, d, ..] = *self.take::<OCTOWORD_BYTES>()?;
        Ok(u32::from_be_bytes([a, b, c, d]))
    }

    /// A word of four or eight bytes.
    fn word(&mut self, bytes: u8) -> Result<u64, WorkError> {
        Ok(match bytes {
            4 => u64::from(u32::from_be_bytes(*self.take()?)),
            _ => u64::from_be_bytes(*self.take()?),
        })
    }

    fn masked_compare_swap(&mut self, bytes: u8) -> Result<AtomicKind, WorkError> {
        let (swap, compare) = (self.word(bytes)?, self.word(bytes)?);
        let (swap_mask, compare_mask) = (self.word(bytes)?, self.word(bytes)?);
        Ok(AtomicKind::MaskedCompareSwap {
            compare,
            compare_mask,
            swap,
            swap_mask,
        })
    }

    /// With words of four bytes, half of the segment is unused.
    fn masked_fetch_add(&mut self, bytes: u8) -> Result<AtomicKind, WorkError> {
        let (add, boundary) = (self.word(bytes)?, self.word(bytes)?);
        if bytes == 4 {
            self.take::<8>()?;
        }
        Ok(AtomicKind::MaskedFetchAdd { add, boundary })
    }

    fn words(&mut self) -> Result<(u64, u64), WorkError> {
        let [first, second] = [*self.take::<8>()?, *self.take::<8>()?];
        Ok((u64::from_be_bytes(first), u64::from_be_bytes(second)))
    }

    /// A compact address vector, or an extended one if its flag is set.
    fn address_vector(&mut self) -> Result<AddressVector, WorkError> {
        let rest = self.bytes.get(self.at..).ok_or(WorkError::Short)?;
        let compact: &[u8; AddressVector::COMPACT_BYTES] =
            rest.first_chunk().ok_or(WorkError::Short)?;
        if AddressVector::parse(compact).extended {
            Ok(AddressVector::parse(
                self.take::<{ AddressVector::BYTES }>()?,
            ))
        } else {
            self.at += AddressVector::COMPACT_BYTES;
            Ok(AddressVector::parse(compact))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(opcode: u8, segments: &[&[u8]]) -> Vec<u8> {
        let body: Vec<u8> = segments.concat();
        let ds = u8::try_from(1 + body.len().div_ceil(16)).unwrap();
        let mut bytes = Ctrl {
            opcode,
            ds,
            imm: 0x1234,
            ..Ctrl::default()
        }
        .to_bytes()
        .to_vec();
        bytes.extend(body);
        bytes.resize(usize::from(ds) * 16, 0);
        bytes
    }

    #[track_caller]
    fn check(bytes: &[u8], queue: u8, expect: Result<(Operation, usize), WorkError>) {
        assert_eq!(
            parse(bytes, queue).map(|work| (work.operation, work.data_at)),
            expect
        );
    }

    #[test]
    fn operations() {
        let remote = RemoteAddress {
            address: 0x1000,
            rkey: 0x600fb,
        };
        let raddr = remote.to_bytes();
        let read = Operation::Read { remote };
        check(
            &entry(opcode::RDMA_READ, &[&raddr, &[0; 16]]),
            service::RC,
            Ok((read, 32)),
        );
        check(
            &entry(opcode::RDMA_READ, &[&raddr]),
            service::UC,
            Err(WorkError::Opcode),
        );
        check(
            &entry(opcode::RDMA_WRITE, &[]),
            service::RC,
            Err(WorkError::Short),
        );
        let send = Operation::Send {
            imm: Some(0x1234),
            invalidate: None,
        };
        check(
            &entry(opcode::SEND_IMM, &[&[0; 16]]),
            service::RC,
            Ok((send, 16)),
        );
        // A datagram begins with its address vector: compact, or extended if its flag is set.
        let mut vector = [0; 48];
        check(
            &entry(opcode::SEND_IMM, &[&vector]),
            service::UD,
            Ok((send, 32)),
        );
        vector[8] = 0x80;
        check(
            &entry(opcode::SEND_IMM, &[&vector]),
            service::UD,
            Ok((send, 64)),
        );
        check(
            &entry(opcode::SEND_IMM, &[&vector[..32]]),
            service::UD,
            Err(WorkError::Short),
        );
        check(&entry(0x3f, &[]), service::RC, Err(WorkError::Opcode));
        let kind = AtomicKind::CompareSwap {
            compare: 2,
            swap: 1,
        };
        let words = [1u64.to_be_bytes(), 2u64.to_be_bytes()].concat();
        let atomic = Operation::Atomic {
            remote,
            atomic: Atomic { bytes: 8, kind },
        };
        check(
            &entry(opcode::ATOMIC_CS, &[&raddr, &words]),
            service::RC,
            Ok((atomic, 48)),
        );
    }

    #[test]
    fn copies_have_no_destination_and_one_variant() {
        let metadata = MmoMetadata {
            opaque_lkey: 0x600fb,
            opaque_address: 0x1000,
            ..MmoMetadata::default()
        };
        let copy = |opmod: u8, segments: &[&[u8]]| {
            let mut bytes = entry(opcode::MMO, segments);
            bytes[0] = opmod;
            bytes
        };
        let whole = copy(mmo::DMA, &[&metadata.to_bytes(), &[0; 32]]);
        let expect = Operation::Memcpy { metadata };
        check(&whole, service::RC, Ok((expect, 32)));
        check(&whole, service::DCI, Ok((expect, 32)));
        for queue in [service::UC, service::UD, service::XRC] {
            check(&whole, queue, Err(WorkError::Opcode));
        }
        // SHA, compression, decompression and the other variants.
        for opmod in [0, 2, 3, 4, 6, 7] {
            let other = copy(opmod, &[&metadata.to_bytes(), &[0; 32]]);
            check(&other, service::RC, Err(WorkError::Opcode));
        }
        check(&copy(mmo::DMA, &[]), service::RC, Err(WorkError::Short));
    }

    #[test]
    fn masked_atomics_have_words_of_two_widths() {
        let remote = RemoteAddress {
            address: 0x1000,
            rkey: 0x600fb,
        };
        let raddr = remote.to_bytes();
        let masked = |opcode: u8, opmod: u8, words: &[u8]| {
            let mut bytes = entry(opcode, &[&raddr, words]);
            bytes[0] = opmod;
            bytes
        };
        let ok = |bytes: u8, kind: AtomicKind, at: usize| {
            let atomic = Atomic { bytes, kind };
            Ok((Operation::Atomic { remote, atomic }, at))
        };
        let cs = AtomicKind::MaskedCompareSwap {
            swap: 1,
            compare: 2,
            swap_mask: 3,
            compare_mask: 4,
        };
        let fa = AtomicKind::MaskedFetchAdd {
            add: 1,
            boundary: 2,
        };
        let four: Vec<u8> = (1..=4u32).flat_map(u32::to_be_bytes).collect();
        let eight: Vec<u8> = (1..=4u64).flat_map(u64::to_be_bytes).collect();
        let (cs_op, fa_op) = (opcode::ATOMIC_MASKED_CS, opcode::ATOMIC_MASKED_FA);
        check(&masked(cs_op, 8, &four), service::RC, ok(4, cs, 48));
        check(&masked(cs_op, 9, &eight), service::RC, ok(8, cs, 64));
        check(&masked(fa_op, 8, &four), service::RC, ok(4, fa, 48));
        check(&masked(fa_op, 9, &eight), service::RC, ok(8, fa, 48));
        for (bytes, queue, expect) in [
            (masked(cs_op, 9, &four), service::RC, WorkError::Short),
            (masked(cs_op, 10, &eight), service::RC, WorkError::Opcode),
            (masked(fa_op, 0, &eight), service::RC, WorkError::Opcode),
            (masked(fa_op, 9, &eight), service::UC, WorkError::Opcode),
        ] {
            check(&bytes, queue, Err(expect));
        }
    }

    proptest! {
        /// The parser accepts arbitrary bytes of a ring without a panic and without a read beyond
        /// the end.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..1100), queue in 0u8..16) {
            if let Ok(work) = parse(&bytes, queue) {
                prop_assert!(work.data_at <= work.end && work.end <= bytes.len());
                prop_assert!(klms(&bytes[work.data_at..work.end]).count() <= 63);
            }
        }
    }
}
