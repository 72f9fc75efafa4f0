//! Memory keys and related numbers. Each has its own type: no bare `u32` crosses an interface.

use std::fmt;

/// A function of the adapter: guest virtual machine id, in the PRM also `vhca_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvmi(u16);

impl Gvmi {
    /// The function with the id that `QUERY_HCA_CAP` reports as `vhca_id`.
    #[must_use]
    pub const fn new(vhca_id: u16) -> Self {
        Self(vhca_id)
    }

    /// The id.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Index of a memory key in the table of its function: 24 bits. Two functions may use the same
/// index for different keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MkeyIndex(u32);

impl MkeyIndex {
    /// Largest index.
    pub const MAX: Self = Self(0xff_ffff);

    /// The index, or `None` if it does not fit in 24 bits.
    #[must_use]
    pub const fn new(index: u32) -> Option<Self> {
        if index <= Self::MAX.0 {
            Some(Self(index))
        } else {
            None
        }
    }

    /// The index as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The low byte of a key, chosen by its owner (PRM: `mkey_7_0`, also called variant).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(u8);

impl Tag {
    /// The tag by which stock UCX recognises a pooled key (`UCT_IB_MLX5_MKEY_TAG_UMR`). A stock
    /// importer caches the alias of such a key for the next import. It does not cache aliases of
    /// other keys.
    pub const UCX_POOLED: Self = Self(251);
    /// No tag. Stock UCX gives this tag to the lkey of an alias.
    pub const ZERO: Self = Self(0);

    /// A tag with this value.
    #[must_use]
    pub const fn new(tag: u8) -> Self {
        Self(tag)
    }

    /// The byte.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A memory key as a number in messages and work requests: `index << 8 | tag`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mkey(u32);

impl Mkey {
    /// The key with this index and tag.
    #[must_use]
    pub const fn new(index: MkeyIndex, tag: Tag) -> Self {
        Self(index.0 << 8 | tag.0 as u32)
    }

    /// The key for a number from a peer or a library. Every number is a valid key.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The key as a number.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The index part.
    #[must_use]
    pub const fn index(self) -> MkeyIndex {
        MkeyIndex(self.0 >> 8)
    }

    /// The tag part.
    #[must_use]
    pub const fn tag(self) -> Tag {
        Tag(self.0.to_le_bytes()[0])
    }
}

impl fmt::Debug for Mkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mkey({:#x})", self.0)
    }
}

/// The key that a process uses for its own memory in its own work requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lkey(u32);

impl Lkey {
    /// The local key of a registration (`ibv_reg_mr`) or of an alias.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The key as a number.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Lkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lkey({:#x})", self.0)
    }
}

/// The key that a peer needs for RDMA access to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rkey(u32);

impl Rkey {
    /// The remote key from a peer's message.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The key as a number.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Rkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rkey({:#x})", self.0)
    }
}

/// A virtual address of the process that owns the memory. It is only a number: nothing in this
/// crate reads or writes the memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VirtAddr(u64);

impl VirtAddr {
    /// The address as a number.
    #[must_use]
    pub const fn new(addr: u64) -> Self {
        Self(addr)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address plus `offset` bytes, or `None` if the sum leaves the address space.
    #[must_use]
    pub const fn checked_add(self, offset: u64) -> Option<Self> {
        match self.0.checked_add(offset) {
            Some(addr) => Some(Self(addr)),
            None => None,
        }
    }

    /// The distance in bytes from `base` to this address, or `None` if `base` is higher.
    #[must_use]
    pub const fn checked_offset_from(self, base: Self) -> Option<u64> {
        self.0.checked_sub(base.0)
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtAddr({:#x})", self.0)
    }
}

/// The secret that a function must present before the adapter lets it alias another function's key.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey([u8; AccessKey::BYTES]);

impl AccessKey {
    /// Bytes of an access key (PRM: `access_key`, 256 bits).
    pub const BYTES: usize = 32;

    /// The constant in every stock UCX. Every process with access to the adapter knows it, so it
    /// excludes no process. With it stock peers and this library interoperate.
    pub const UCX_COMPATIBLE: Self = {
        let token = b"uct_ib_mkey_token";
        let mut bytes = [0; Self::BYTES];
        let mut at = 0;
        while at < token.len() {
            bytes[at] = token[at];
            at += 1;
        }
        Self(bytes)
    };

    /// An access key with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The identity of the exporter whose keys have this access key, for services that take no exporter's word for its
    /// identity: only a process that knows the access key can name it.
    #[must_use]
    pub fn owner(&self) -> OwnerUuid {
        const CONTEXT: &str = "xgvmi 2026 owner of an access key";
        let [a, b, c, d, e, f, g, h, ..] = blake3::derive_key(CONTEXT, &self.0);
        // Not the unknown owner, which matches any.
        OwnerUuid(u64::from_le_bytes([a, b, c, d, e, f, g, h]).max(1))
    }

    /// The bytes in the order of the command.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for AccessKey {
    /// Prints no bytes: debug output must not disclose the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = *self == Self::UCX_COMPATIBLE;
        f.write_str(if known {
            "AccessKey(UCX_COMPATIBLE)"
        } else {
            "AccessKey(..)"
        })
    }
}

/// The identity of an exporter: a number that an exporter draws once and no other exporter has
/// (`md_uuid` in UCX from 1.19). It distinguishes a live exporter's key from a dead exporter's key with the
/// same number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerUuid(u64);

impl OwnerUuid {
    /// The owner of keys that a message carries without an owner (UCX 1.18: six-byte keys). Such
    /// keys of a restarted exporter are indistinguishable from those of the earlier process.
    pub const UNKNOWN: Self = Self(0);

    /// The owner with this number.
    #[must_use]
    pub const fn new(uuid: u64) -> Self {
        Self(uuid)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for OwnerUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerUuid({:#x})", self.0)
    }
}

/// A key of another function, as its exporter announced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey {
    /// The function that owns the key.
    pub gvmi: Gvmi,
    /// The key in that function's table.
    pub mkey: Mkey,
    /// The identity of the exporter.
    pub owner: OwnerUuid,
}

impl RemoteKey {
    /// `gvmi << 32 | mkey`: the key of the alias map. It does not contain the owner. An index has
    /// one owner at a time, so a second owner means that the first one ended.
    #[must_use]
    pub const fn map_key(self) -> u64 {
        (self.gvmi.0 as u64) << 32 | self.mkey.0 as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mkey_is_index_and_tag() {
        let index = MkeyIndex::new(0x12_3456).expect("24 bits");
        let key = Mkey::new(index, Tag::UCX_POOLED);
        assert_eq!(key.raw(), 0x1234_56fb);
        assert_eq!((key.index(), key.tag()), (index, Tag::UCX_POOLED));
        assert_eq!(Mkey::from_raw(u32::MAX).index(), MkeyIndex::MAX);
        assert_eq!(MkeyIndex::new(0x100_0000), None);
    }

    #[test]
    fn the_map_key_is_gvmi_and_mkey() {
        let key = |gvmi, mkey, owner| RemoteKey {
            gvmi: Gvmi::new(gvmi),
            mkey: Mkey::from_raw(mkey),
            owner: OwnerUuid::new(owner),
        };
        assert_eq!(key(0xabcd, 0x1234_56fb, 1).map_key(), 0xabcd_1234_56fb);
        assert_eq!(key(0xabcd, 0x1234_56fb, 2).map_key(), 0xabcd_1234_56fb);
        assert_ne!(key(1, 0, 1).map_key(), key(0, 1, 1).map_key());
    }

    #[test]
    fn addresses_do_not_wrap() {
        assert_eq!(VirtAddr::new(u64::MAX).checked_add(1), None);
        assert_eq!(VirtAddr::new(8).checked_add(8), Some(VirtAddr::new(16)));
        assert_eq!(VirtAddr::new(8).checked_offset_from(VirtAddr::new(9)), None);
    }

    #[test]
    fn the_compatible_access_key_is_padded_with_zeros() {
        let bytes = AccessKey::UCX_COMPATIBLE;
        assert_eq!(&bytes.as_bytes()[..18], b"uct_ib_mkey_token\0");
        assert!(bytes.as_bytes()[17..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn an_access_key_names_its_owner() {
        let owner = |byte| AccessKey::new([byte; 32]).owner();
        assert_eq!(owner(1), owner(1));
        assert_ne!(owner(1), owner(2));
        assert_ne!(owner(0), OwnerUuid::UNKNOWN);
        // The number must not disclose the key.
        assert_ne!(owner(1).get(), u64::from_le_bytes([1; 8]));
    }

    #[test]
    fn a_secret_access_key_is_not_printed() {
        let shown = format!("{:?}", AccessKey::new([0xa5; 32]));
        assert_eq!(shown, "AccessKey(..)");
    }
}
