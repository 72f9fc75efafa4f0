//! Completion queue entries.

use crate::wqe::{be32, be64};

/// Bytes of an entry. In a queue of 128-byte entries it is the second half.
pub const CQE_BYTES: usize = 64;
/// Offset of the byte that passes the entry to its reader: opcode, format and owner.
pub const OWNER_AT: usize = 63;
/// Offset of the number of the request, in big-endian order.
pub const WQE_COUNTER_AT: usize = 60;

/// Opcodes of completions, the upper half of the last byte.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod opcode {
    pub const REQ: u8 = 0;
    pub const RESP_WR_IMM: u8 = 1;
    pub const RESP_SEND: u8 = 2;
    pub const RESP_SEND_IMM: u8 = 3;
    pub const RESP_SEND_INV: u8 = 4;
    pub const RESIZE_CQ: u8 = 5;
    pub const NO_PACKET: u8 = 6;
    pub const SIG_ERR: u8 = 12;
    pub const REQ_ERR: u8 = 13;
    pub const RESP_ERR: u8 = 14;
    pub const INVALID: u8 = 15;
}

/// Syndromes of error completions (`mlx5dv.h`, `MLX5_CQE_SYNDROME_*`).
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod syndrome {
    pub const LOCAL_LENGTH_ERR: u8 = 0x01;
    pub const LOCAL_QP_OP_ERR: u8 = 0x02;
    pub const LOCAL_PROT_ERR: u8 = 0x04;
    pub const WR_FLUSH_ERR: u8 = 0x05;
    pub const MW_BIND_ERR: u8 = 0x06;
    pub const BAD_RESP_ERR: u8 = 0x10;
    pub const LOCAL_ACCESS_ERR: u8 = 0x11;
    pub const REMOTE_INVAL_REQ_ERR: u8 = 0x12;
    pub const REMOTE_ACCESS_ERR: u8 = 0x13;
    pub const REMOTE_OP_ERR: u8 = 0x14;
    pub const TRANSPORT_RETRY_EXC_ERR: u8 = 0x15;
    pub const RNR_RETRY_EXC_ERR: u8 = 0x16;
    pub const REMOTE_ABORTED_ERR: u8 = 0x22;
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// See [`opcode`].
    pub opcode: u8,
    /// The owner bit: the parity of the pass over the ring that wrote the entry.
    pub owner: bool,
    /// The entry is solicited.
    pub solicited: bool,
    /// 1: up to 32 bytes of data are in the entry itself. 2: up to 64 bytes.
    pub inline_scatter: u8,
    /// User index of the shared receive queue or queue pair, 24 bits.
    pub user_index: u32,
    /// Immediate data, or the invalidated key.
    pub imm: u32,
    /// Number of bytes moved.
    pub byte_count: u32,
    /// Time stamp. Error completions have their syndromes there instead.
    pub timestamp: u64,
    /// Opcode of the work request (of a send queue), upper byte.
    pub wqe_opcode: u8,
    /// Queue pair, 24 bits.
    pub qpn: u32,
    /// Counter of the work queue entry.
    pub wqe_counter: u16,
    /// Datagrams: sender's queue pair, 24 bits.
    pub src_qpn: u32,
    /// Datagrams: sender's LID.
    pub slid: u16,
    /// Datagrams: service level and the two global-route bits, the upper byte of `flags_rqpn`.
    pub rx_flags: u8,
    /// Errors: see [`syndrome`].
    pub syndrome: u8,
    /// Errors: vendor error code.
    pub vendor_syndrome: u8,
}

impl Cqe {
    /// True for completions in error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self.opcode, opcode::REQ_ERR | opcode::RESP_ERR)
    }

    /// The entry on the wire. Write the last byte last, because it passes the entry to the reader.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CQE_BYTES] {
        let mut bytes = [0; CQE_BYTES];
        bytes[16..18].copy_from_slice(&0u16.to_be_bytes());
        bytes[22..24].copy_from_slice(&self.slid.to_be_bytes());
        bytes[24..28].copy_from_slice(&low24(self.rx_flags, self.src_qpn));
        bytes[32..36].copy_from_slice(&low24(0, self.user_index));
        bytes[36..40].copy_from_slice(&self.imm.to_be_bytes());
        bytes[44..48].copy_from_slice(&self.byte_count.to_be_bytes());
        if self.is_error() {
            bytes[54] = self.vendor_syndrome;
            bytes[55] = self.syndrome;
        } else {
            bytes[48..56].copy_from_slice(&self.timestamp.to_be_bytes());
        }
        bytes[56..60].copy_from_slice(&low24(self.wqe_opcode, self.qpn));
        bytes[WQE_COUNTER_AT..WQE_COUNTER_AT + 2].copy_from_slice(&self.wqe_counter.to_be_bytes());
        bytes[OWNER_AT] = self.opcode << 4
            | (self.inline_scatter & 3) << 2
            | u8::from(self.solicited) << 1
            | u8::from(self.owner);
        bytes
    }

    /// Parses an entry.
    #[must_use]
    pub fn parse(bytes: &[u8; CQE_BYTES]) -> Self {
        let last = bytes[OWNER_AT];
        let opcode = last >> 4;
        let error = matches!(opcode, opcode::REQ_ERR | opcode::RESP_ERR);
        Self {
            opcode,
            owner: last & 1 != 0,
            solicited: last & 2 != 0,
            inline_scatter: last >> 2 & 3,
            user_index: be32(&bytes[33..36]),
            imm: be32(&bytes[36..40]),
            byte_count: be32(&bytes[44..48]),
            timestamp: if error { 0 } else { be64(&bytes[48..56]) },
            wqe_opcode: bytes[56],
            qpn: be32(&bytes[57..60]),
            wqe_counter: u16::from_be_bytes([bytes[WQE_COUNTER_AT], bytes[WQE_COUNTER_AT + 1]]),
            src_qpn: be32(&bytes[25..28]),
            slid: u16::from_be_bytes([bytes[22], bytes[23]]),
            rx_flags: bytes[24],
            syndrome: if error { bytes[55] } else { 0 },
            vendor_syndrome: if error { bytes[54] } else { 0 },
        }
    }
}

fn low24(top: u8, value: u32) -> [u8; 4] {
    let [_, a, b, c] = value.to_be_bytes();
    [top, a, b, c]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(cqe: Cqe, expect: &[(usize, &[u8])]) {
        let bytes = cqe.to_bytes();
        let mut model = [0; CQE_BYTES];
        for (at, part) in expect {
            model[*at..at + part.len()].copy_from_slice(part);
        }
        assert_eq!(bytes, model);
        assert_eq!(Cqe::parse(&bytes), cqe);
    }

    /// Offsets of `struct mlx5_cqe64` and `struct mlx5_err_cqe` in `mlx5dv.h`.
    #[test]
    fn entries_have_the_layout_of_mlx5dv() {
        check(
            Cqe {
                opcode: opcode::RESP_SEND_IMM,
                owner: true,
                solicited: true,
                user_index: 5,
                imm: 0x0102_0304,
                byte_count: 64,
                timestamp: 9,
                qpn: 0x48,
                wqe_counter: 3,
                ..Cqe::default()
            },
            &[
                (35, &[5]),
                (36, &[1, 2, 3, 4]),
                (47, &[64]),
                (55, &[9]),
                (59, &[0x48]),
                (61, &[3]),
                (63, &[0x33]),
            ],
        );
        check(
            Cqe {
                opcode: opcode::REQ_ERR,
                syndrome: syndrome::REMOTE_ACCESS_ERR,
                vendor_syndrome: 0x88,
                wqe_opcode: 0x10,
                qpn: 0x12_3456,
                wqe_counter: 0x102,
                ..Cqe::default()
            },
            &[
                (54, &[0x88, 0x13]),
                (56, &[0x10, 0x12, 0x34, 0x56, 1, 2]),
                (63, &[0xd0]),
            ],
        );
    }
}
