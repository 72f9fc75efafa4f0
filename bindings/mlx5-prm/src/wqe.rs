//! Work queue entries of send queues: the control segment and the segments that may follow.

/// Bytes of a building block of a send queue.
pub const WQEBB_BYTES: usize = 64;
/// Sizes of work queue entries are counted in these bytes.
pub const OCTOWORD_BYTES: usize = 16;
/// Most octowords that an entry may have: the field is six bits wide.
pub const DS_MAX: u8 = 63;
/// `lkey` that ends the scatter list of a receive entry (`MLX5_INVALID_LKEY`).
pub const INVALID_LKEY: u32 = 0x100;

/// Opcodes of send queues.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod opcode {
    pub const NOP: u8 = 0x00;
    pub const SEND_INVAL: u8 = 0x01;
    pub const RDMA_WRITE: u8 = 0x08;
    pub const RDMA_WRITE_IMM: u8 = 0x09;
    pub const SEND: u8 = 0x0a;
    pub const SEND_IMM: u8 = 0x0b;
    pub const TSO: u8 = 0x0e;
    pub const RDMA_READ: u8 = 0x10;
    pub const ATOMIC_CS: u8 = 0x11;
    pub const ATOMIC_FA: u8 = 0x12;
    pub const ATOMIC_MASKED_CS: u8 = 0x14;
    pub const ATOMIC_MASKED_FA: u8 = 0x15;
    pub const BIND_MW: u8 = 0x18;
    pub const LOCAL_INVAL: u8 = 0x1b;
    pub const SET_PSV: u8 = 0x20;
    pub const UMR: u8 = 0x25;
    pub const TAG_MATCHING: u8 = 0x28;
    pub const MMO: u8 = 0x2f;
}

/// Variants of [`opcode::MMO`] (rdma-core `providers/mlx5/wqe.h`, `MLX5_OPC_MOD_MMO_*`).
pub mod mmo {
    /// Copies memory.
    pub const DMA: u8 = 0x1;
    /// Bytes of the buffer where the device reports the details of a copy. rdma-core provides this
    /// many (`verbs.c`, `MLX5_OPAQUE_BUF_LEN`).
    pub const DMA_OPAQUE_BYTES: u64 = 64;
}

/// Bits of the control segment's flag byte (`fm_ce_se`).
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod flag {
    /// Condition of a completion: this mask, and [`CE_ALWAYS`] for an unconditional completion.
    pub const CE_MASK: u8 = 0x0c;
    pub const CE_ALWAYS: u8 = 0x08;
    pub const SOLICITED: u8 = 0x02;
    pub const FENCE_MASK: u8 = 0xe0;
    pub const FENCE_SMALL: u8 = 1 << 5;
    pub const FENCE_INITIATOR_SMALL: u8 = 1 << 5;
    pub const FENCE_FULL: u8 = 2 << 5;
    pub const FENCE_STRONG_ORDERING: u8 = 3 << 5;
    pub const FENCE_SMALL_AND_FULL: u8 = 4 << 5;
}

/// The control segment at the start of every entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ctrl {
    /// Variant of the opcode.
    pub opmod: u8,
    /// Number of the entry's first building block, modulo 65,536.
    pub index: u16,
    /// See [`opcode`].
    pub opcode: u8,
    /// The send queue's number, 24 bits.
    pub qpn: u32,
    /// Size of the entry in octowords, this segment included, 6 bits.
    pub ds: u8,
    /// Signature, if signatures are enabled.
    pub signature: u8,
    /// See [`flag`].
    pub flags: u8,
    /// Immediate data, key to invalidate, or the mkey that a UMR changes.
    pub imm: u32,
}

impl Ctrl {
    /// Bytes of the segment.
    pub const BYTES: usize = 16;

    /// The segment on the wire.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.opmod;
        bytes[1..3].copy_from_slice(&self.index.to_be_bytes());
        bytes[3] = self.opcode;
        bytes[4..8].copy_from_slice(&(self.qpn << 8 | u32::from(self.ds & DS_MAX)).to_be_bytes());
        bytes[8] = self.signature;
        bytes[11] = self.flags;
        bytes[12..].copy_from_slice(&self.imm.to_be_bytes());
        bytes
    }

    /// Parses the segment.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        Self {
            opmod: bytes[0],
            index: u16::from_be_bytes([bytes[1], bytes[2]]),
            opcode: bytes[3],
            qpn: u32::from_be_bytes([0, bytes[4], bytes[5], bytes[6]]),
            ds: bytes[7] & DS_MAX,
            signature: bytes[8],
            flags: bytes[11],
            imm: u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
        }
    }

    /// True if the entry requests a completion even on success.
    #[must_use]
    pub fn is_signaled(&self) -> bool {
        self.flags & flag::CE_MASK == flag::CE_ALWAYS
    }

    /// True if the receiver gets a solicited event.
    #[must_use]
    pub fn is_solicited(&self) -> bool {
        self.flags & flag::SOLICITED != 0
    }

    /// Number of building blocks of the entry.
    #[must_use]
    pub fn wqebbs(&self) -> u16 {
        u16::from(self.ds).div_ceil(4).max(1)
    }
}

/// The remote address segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Address in the remote key's address space.
    pub address: u64,
    /// The remote key.
    pub rkey: u32,
}

impl RemoteAddress {
    /// Parses the segment.
    #[must_use]
    pub fn parse(bytes: &[u8; OCTOWORD_BYTES]) -> Self {
        Self {
            address: be64(&bytes[..8]),
            rkey: be32(&bytes[8..12]),
        }
    }

    /// The segment on the wire.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> [u8; OCTOWORD_BYTES] {
        let mut bytes = [0; OCTOWORD_BYTES];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }
}

/// The metadata segment of [`opcode::MMO`] (rdma-core `providers/mlx5/wqe.h`, `struct
/// mlx5_mmo_metadata_seg`). The source and the destination follow, one [`Data`] segment each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MmoMetadata {
    /// Parameters of the operation; zero for a copy.
    pub control: u32,
    /// Local key of the opaque buffer.
    pub opaque_lkey: u32,
    /// Address of the opaque buffer.
    pub opaque_address: u64,
}

impl MmoMetadata {
    /// Parses the segment.
    #[must_use]
    pub fn parse(bytes: &[u8; OCTOWORD_BYTES]) -> Self {
        Self {
            control: be32(&bytes[..4]),
            opaque_lkey: be32(&bytes[4..8]),
            opaque_address: be64(&bytes[8..]),
        }
    }

    /// The segment on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; OCTOWORD_BYTES] {
        let mut bytes = [0; OCTOWORD_BYTES];
        bytes[..4].copy_from_slice(&self.control.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.opaque_lkey.to_be_bytes());
        bytes[8..].copy_from_slice(&self.opaque_address.to_be_bytes());
        bytes
    }
}

/// One octoword of a gather or scatter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// `length` bytes follow in the entry itself. Header and data are padded to a whole octoword.
    Inline {
        /// Bytes of data.
        length: u32,
    },
    /// `length` bytes of memory; zero means 2 GiB if the queue supports it.
    Memory {
        /// Bytes, 31 bits.
        length: u32,
        /// The local key.
        lkey: u32,
        /// Address in the key's address space.
        address: u64,
    },
}

impl Data {
    const INLINE: u32 = 1 << 31;
    /// Bytes of the header of an inline segment.
    pub const INLINE_HEADER_BYTES: usize = 4;

    /// Parses the segment at the start of `bytes`.
    #[must_use]
    pub fn parse(bytes: &[u8; OCTOWORD_BYTES]) -> Self {
        let count = be32(&bytes[..4]);
        if count & Self::INLINE != 0 {
            Self::Inline {
                length: count & !Self::INLINE,
            }
        } else {
            Self::Memory {
                length: count,
                lkey: be32(&bytes[4..8]),
                address: be64(&bytes[8..]),
            }
        }
    }

    /// The segment on the wire. For an inline segment only the header: the data follows immediately.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> [u8; OCTOWORD_BYTES] {
        let mut bytes = [0; OCTOWORD_BYTES];
        match self {
            Self::Inline { length } => {
                bytes[..4].copy_from_slice(&(length | Self::INLINE).to_be_bytes());
            }
            Self::Memory {
                length,
                lkey,
                address,
            } => {
                bytes[..4].copy_from_slice(&(length & !Self::INLINE).to_be_bytes());
                bytes[4..8].copy_from_slice(&lkey.to_be_bytes());
                bytes[8..].copy_from_slice(&address.to_be_bytes());
            }
        }
        bytes
    }
}

/// The datagram segment: destination of a UD or DC entry. A compact address vector consists of the first half only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// Queue key (UD) in the upper half, or the access key (DC).
    pub key: u64,
    /// Destination queue pair or DCT, 24 bits.
    pub dqp: u32,
    /// The vector has its second half.
    pub extended: bool,
    /// Destination LID.
    pub dlid: u16,
    /// A global route follows in the second half. Reserved on Ethernet, where there always is one.
    pub grh: bool,
    /// Index of the sender's GID, for an extended vector.
    pub sgid_index: u8,
    /// Flow label of the global route, 20 bits.
    pub flow_label: u32,
    /// Traffic class of the global route.
    pub tclass: u8,
    /// Hop limit of the global route.
    pub hop_limit: u8,
    /// Destination MAC on Ethernet.
    pub rmac: [u8; 6],
    /// Destination GID, for an extended vector.
    pub dgid: [u8; 16],
}

impl AddressVector {
    /// Bytes of an extended vector.
    pub const BYTES: usize = 48;
    /// Bytes of a compact vector.
    pub const COMPACT_BYTES: usize = 16;

    /// Parses the vector; with less than 48 bytes a compact one.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut whole = [0; Self::BYTES];
        for (to, from) in whole.iter_mut().zip(bytes) {
            *to = *from;
        }
        let dqp = be32(&whole[8..12]);
        let mut dgid = [0; 16];
        dgid.copy_from_slice(&whole[32..48]);
        let mut rmac = [0; 6];
        rmac.copy_from_slice(&whole[20..26]);
        let route = be32(&whole[28..32]);
        Self {
            key: be64(&whole[..8]),
            dqp: dqp & 0xff_ffff,
            extended: dqp >> 31 == 1,
            dlid: u16::from_be_bytes([whole[14], whole[15]]),
            grh: route >> 30 & 1 == 1,
            sgid_index: whole[28] << 4 | whole[29] >> 4,
            flow_label: route & 0xf_ffff,
            tclass: whole[26],
            hop_limit: whole[27],
            rmac,
            dgid,
        }
    }
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |value, &byte| value << 8 | u32::from(byte))
}

pub(crate) fn be64(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first octoword that `ibv_rc_pingpong` of rdma-core 44 posts: a signaled SEND of one
    /// gather entry, by queue pair 0x48.
    #[test]
    fn ctrl_of_a_signaled_send() {
        let bytes = [0, 0, 1, 0x0a, 0, 0, 0x48, 2, 0, 0, 0, 8, 0, 0, 0, 0];
        let ctrl = Ctrl {
            index: 1,
            opcode: opcode::SEND,
            qpn: 0x48,
            ds: 2,
            flags: flag::CE_ALWAYS,
            ..Ctrl::default()
        };
        assert_eq!(Ctrl::parse(&bytes), ctrl);
        assert_eq!(ctrl.to_bytes(), bytes);
        assert!(ctrl.is_signaled() && !ctrl.is_solicited());
        assert_eq!(ctrl.wqebbs(), 1);
    }

    #[test]
    fn sizes_round_up_to_building_blocks() {
        for (ds, wqebbs) in [(0, 1), (1, 1), (4, 1), (5, 2), (12, 3), (63, 16)] {
            assert_eq!(
                Ctrl {
                    ds,
                    ..Ctrl::default()
                }
                .wqebbs(),
                wqebbs,
                "ds {ds}"
            );
        }
    }

    #[test]
    fn data_segments() {
        let memory = Data::Memory {
            length: 0x1000,
            lkey: 0x1234_5678,
            address: 0x7f00_dead_b000,
        };
        let bytes = [
            0, 0, 0x10, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0x7f, 0, 0xde, 0xad, 0xb0, 0,
        ];
        assert_eq!(memory.to_bytes(), bytes);
        assert_eq!(Data::parse(&bytes), memory);
        let inline = Data::Inline { length: 12 };
        assert_eq!(inline.to_bytes()[..4], [0x80, 0, 0, 12]);
        assert_eq!(Data::parse(&inline.to_bytes()), inline);
    }

    /// The fields in the order of rdma-core's `struct mlx5_mmo_metadata_seg`.
    #[test]
    fn mmo_metadata() {
        let metadata = MmoMetadata {
            control: 0x0102_0304,
            opaque_lkey: 0x1234_5678,
            opaque_address: 0x7f00_dead_b000,
        };
        let bytes = [
            1, 2, 3, 4, 0x12, 0x34, 0x56, 0x78, 0, 0, 0x7f, 0, 0xde, 0xad, 0xb0, 0,
        ];
        assert_eq!(metadata.to_bytes(), bytes);
        assert_eq!(MmoMetadata::parse(&bytes), metadata);
    }

    /// `struct mlx5_wqe_av` of `mlx5dv.h`: key, dqp_dct, stat_rate_sl, fl_mlid, rlid, ...
    #[test]
    fn address_vectors() {
        let mut bytes = [0; 48];
        bytes[..4].copy_from_slice(&0x1111_1111u32.to_be_bytes());
        bytes[8..12].copy_from_slice(&0x8000_0123u32.to_be_bytes());
        bytes[14..16].copy_from_slice(&7u16.to_be_bytes());
        bytes[28] = 0x40;
        bytes[47] = 9;
        let vector = AddressVector::parse(&bytes);
        assert_eq!(
            (vector.dqp, vector.dlid, vector.extended, vector.grh),
            (0x123, 7, true, true)
        );
        assert_eq!(vector.key >> 32, 0x1111_1111);
        assert_eq!(vector.dgid[15], 9);
        assert!(!AddressVector::parse(&bytes[..16]).grh);
    }
}
