//! Memory keys: context and `CREATE_MKEY`.

use crate::field::fields;

/// Bytes of an mkey context.
pub const CONTEXT_BYTES: usize = 64;
/// Offset of the context in the input of `CREATE_MKEY`, in bytes.
pub const CREATE_CONTEXT_AT: usize = 0x10;
/// Offset of the KLM or MTT list in the input of `CREATE_MKEY`, in bytes.
pub const CREATE_LIST_AT: usize = 0x110;
/// Bytes of one KLM or KSM entry.
pub const KLM_BYTES: usize = 16;

fields! {
    /// The key is unusable until a UMR sets it.
    FREE = 0x001, 1;
    /// Upper bits of the access mode.
    ACCESS_MODE_4_2 = 0x003, 3;
    /// PCI may reorder writes through the key.
    RELAXED_ORDERING_WRITE = 0x00d, 1;
    /// A UMR may change the key.
    UMR_EN = 0x010, 1;
    /// Remote atomics.
    ATOMIC = 0x011, 1;
    /// Remote write.
    REMOTE_WRITE = 0x012, 1;
    /// Remote read.
    REMOTE_READ = 0x013, 1;
    /// Local write.
    LOCAL_WRITE = 0x014, 1;
    /// Local read.
    LOCAL_READ = 0x015, 1;
    /// Lower bits of the access mode.
    ACCESS_MODE_1_0 = 0x016, 2;
    /// The only queue pair that may use the key, or [`QPN_ANY`].
    QPN = 0x020, 24;
    /// The variant, also called tag: the low byte of lkey and rkey.
    VARIANT = 0x038, 8;
    /// The key spans the whole address space. `LEN` is ignored.
    LENGTH64 = 0x060, 1;
    /// Remote invalidation is allowed.
    EN_RINVAL = 0x067, 1;
    /// Protection domain.
    PD = 0x068, 24;
    /// First virtual address of the key.
    START_ADDR = 0x080, 64;
    /// Length in bytes.
    LEN = 0x0c0, 64;
    /// The vHCA of the target key of a crossing key.
    CROSSING_TARGET_GVMI = 0x180, 16;
    /// Capacity of the translation list, in 16-byte words.
    TRANSLATIONS_OCTWORDS = 0x1a0, 32;
    /// MTT: log2 of the page size. KSM: log2 of the entry size.
    LOG_ENTITY_SIZE = 0x1db, 5;
}

/// Fields of `CREATE_MKEY` outside of the context.
pub mod create {
    use super::fields;
    fields! {
        /// The memory is in a umem instead of a list.
        UMEM_VALID = 0x061, 1;
        /// Number of entries in the list, in 16-byte words.
        TRANSLATIONS_OCTWORDS_ACTUAL = 0x300, 32;
        /// The umem.
        UMEM_ID = 0x320, 32;
        /// Offset of the key's memory in the umem.
        UMEM_OFFSET = 0x340, 64;
    }
}

/// `QPN` of a key that any queue pair may use.
pub const QPN_ANY: u32 = 0xff_ffff;

/// Access modes, `ACCESS_MODE_4_2 << 2 | ACCESS_MODE_1_0`.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod access_mode {
    pub const PA: u8 = 0;
    pub const MTT: u8 = 1;
    pub const KLMS: u8 = 2;
    pub const KSM: u8 = 3;
    pub const CROSSING: u8 = 6;
}

/// One entry of a KLM list. A KSM entry has the same layout with a reserved length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Klm {
    /// Length of the entry in bytes. Zero means 2 GiB.
    pub byte_count: u32,
    /// The key that the entry refers to.
    pub mkey: u32,
    /// First address of the entry in that key's address space.
    pub address: u64,
}

impl Klm {
    /// Meaning of a zero `byte_count`, in bytes.
    pub const WHOLE: u64 = 1 << 31;

    /// The entry on the wire.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> [u8; KLM_BYTES] {
        let mut bytes = [0; KLM_BYTES];
        bytes[..4].copy_from_slice(&self.byte_count.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.mkey.to_be_bytes());
        bytes[8..].copy_from_slice(&self.address.to_be_bytes());
        bytes
    }

    /// Parses an entry.
    #[must_use]
    pub fn parse(bytes: &[u8; KLM_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, address @ ..] = *bytes;
        Self {
            byte_count: u32::from_be_bytes([a, b, c, d]),
            mkey: u32::from_be_bytes([e, f, g, h]),
            address: u64::from_be_bytes(address),
        }
    }

    /// The length in bytes. Zero means [`Klm::WHOLE`].
    #[must_use]
    pub fn length(self) -> u64 {
        match self.byte_count {
            0 => Self::WHOLE,
            count => u64::from(count),
        }
    }
}
