//! UMR work requests: the UMR control and mkey context segments, which follow the control segment
//! of opcode [`UMR`](crate::wqe::opcode::UMR).

/// Bytes of the UMR control segment.
pub const CTRL_BYTES: usize = 48;
/// Bytes of the mkey context segment.
pub const CONTEXT_BYTES: usize = 64;
/// An inline translation list is padded to a multiple of these bytes.
pub const LIST_ALIGN_BYTES: usize = 64;

/// Flags of the control segment (`mlx5dv.h`, `MLX5_WQE_UMR_CTRL_FLAG_*`).
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod flag {
    /// The work request contains the translation list.
    pub const INLINE: u8 = 1 << 7;
    /// The key must be free.
    pub const CHECK_FREE: u8 = 1 << 5;
    pub const TRANSLATION_OFFSET: u8 = 1 << 4;
    /// The key's queue pair must be the posting one.
    pub const CHECK_QPN: u8 = 1 << 3;
}

/// Fields of the context that the request changes (`mlx5dv.h`, `MLX5_WQE_UMR_CTRL_MKEY_MASK_*`).
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod mask {
    pub const LEN: u64 = 1 << 0;
    pub const START_ADDR: u64 = 1 << 6;
    pub const BSF_ENABLE: u64 = 1 << 12;
    /// The variant, low byte of the key.
    pub const MKEY: u64 = 1 << 13;
    pub const QPN: u64 = 1 << 14;
    pub const LOCAL_WRITE: u64 = 1 << 18;
    pub const REMOTE_READ: u64 = 1 << 19;
    pub const REMOTE_WRITE: u64 = 1 << 20;
    pub const ATOMIC: u64 = 1 << 21;
    pub const FREE: u64 = 1 << 29;
}

/// Access flags of the mkey context segment.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod access {
    pub const LOCAL_READ: u8 = 1 << 2;
    pub const LOCAL_WRITE: u8 = 1 << 3;
    pub const REMOTE_READ: u8 = 1 << 4;
    pub const REMOTE_WRITE: u8 = 1 << 5;
    pub const ATOMIC: u8 = 1 << 6;
}

const CONTEXT_FREE: u8 = 1 << 6;

/// The UMR control segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UmrCtrl {
    /// See [`flag`].
    pub flags: u8,
    /// Size of the translation list, in 16-byte words, a multiple of four.
    pub klm_octowords: u16,
    /// First entry of the key's list to change, in 16-byte words, or the size of the BSF.
    pub translation_offset: u16,
    /// See [`mask`].
    pub mkey_mask: u64,
}

impl UmrCtrl {
    /// The segment on the wire.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> [u8; CTRL_BYTES] {
        let mut bytes = [0; CTRL_BYTES];
        bytes[0] = self.flags;
        bytes[4..6].copy_from_slice(&self.klm_octowords.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.translation_offset.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.mkey_mask.to_be_bytes());
        bytes
    }

    /// Parses the segment.
    #[must_use]
    pub fn parse(bytes: &[u8; CTRL_BYTES]) -> Self {
        Self {
            flags: bytes[0],
            klm_octowords: u16::from_be_bytes([bytes[4], bytes[5]]),
            translation_offset: u16::from_be_bytes([bytes[6], bytes[7]]),
            mkey_mask: be64(&bytes[8..16]),
        }
    }
}

/// The mkey context segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UmrContext {
    /// The key is free after the request.
    pub free: bool,
    /// See [`access`].
    pub access: u8,
    /// The only queue pair that may use the key, or [`QPN_ANY`](crate::mkey::QPN_ANY).
    pub qpn: u32,
    /// The variant, low byte of the key.
    pub variant: u8,
    /// First virtual address.
    pub start_addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// log2 of the page or entry size.
    pub log_page_size: u8,
}

impl UmrContext {
    /// The segment on the wire.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> [u8; CONTEXT_BYTES] {
        let mut bytes = [0; CONTEXT_BYTES];
        bytes[0] = if self.free { CONTEXT_FREE } else { 0 };
        bytes[2] = self.access;
        bytes[4..8].copy_from_slice(&(self.qpn << 8 | u32::from(self.variant)).to_be_bytes());
        bytes[16..24].copy_from_slice(&self.start_addr.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.len.to_be_bytes());
        bytes[59] = self.log_page_size;
        bytes
    }

    /// Parses the segment.
    #[must_use]
    pub fn parse(bytes: &[u8; CONTEXT_BYTES]) -> Self {
        Self {
            free: bytes[0] & CONTEXT_FREE != 0,
            access: bytes[2],
            qpn: u32::from_be_bytes([0, bytes[4], bytes[5], bytes[6]]),
            variant: bytes[7],
            start_addr: be64(&bytes[16..24]),
            len: be64(&bytes[24..32]),
            log_page_size: bytes[59] & 0x1f,
        }
    }
}

fn be64(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes after the control segment that rdma-core 44 writes for `IBV_WR_BIND_MW` of a type
    /// 1 window (`providers/mlx5/qp.c`, `set_bind_wr`): tag 0xfb, 0x4000 bytes at 0x7f00_0000_1000,
    /// local write, remote read and write.
    #[test]
    fn bind_has_the_bytes_of_rdma_core() {
        let ctrl = UmrCtrl {
            flags: flag::TRANSLATION_OFFSET | flag::INLINE,
            klm_octowords: 4,
            translation_offset: 0,
            mkey_mask: mask::FREE
                | mask::MKEY
                | mask::LEN
                | mask::START_ADDR
                | mask::LOCAL_WRITE
                | mask::REMOTE_READ
                | mask::REMOTE_WRITE
                | mask::ATOMIC,
        };
        let mut expect = [0u8; CTRL_BYTES];
        expect[..16].copy_from_slice(&[
            0x90, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0x3c, 0x20, 0x41,
        ]);
        assert_eq!(ctrl.to_bytes(), expect);
        assert_eq!(UmrCtrl::parse(&expect), ctrl);

        let context = UmrContext {
            access: access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_WRITE,
            qpn: 0xff_ffff,
            variant: 0xfb,
            start_addr: 0x7f00_0000_1000,
            len: 0x4000,
            ..UmrContext::default()
        };
        let mut expect = [0u8; CONTEXT_BYTES];
        expect[2] = 0x38;
        expect[4..8].copy_from_slice(&[0xff, 0xff, 0xff, 0xfb]);
        expect[16..24].copy_from_slice(&[0, 0, 0x7f, 0, 0, 0, 0x10, 0]);
        expect[24..32].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x40, 0]);
        assert_eq!(context.to_bytes(), expect);
        assert_eq!(UmrContext::parse(&expect), context);
    }

    #[test]
    fn invalidate_frees_the_key() {
        let context = UmrContext {
            free: true,
            qpn: 0xff_ffff,
            ..UmrContext::default()
        };
        let bytes = context.to_bytes();
        assert_eq!(bytes[..8], [0x40, 0, 0, 0, 0xff, 0xff, 0xff, 0]);
        assert_eq!(UmrContext::parse(&bytes), context);
    }
}
