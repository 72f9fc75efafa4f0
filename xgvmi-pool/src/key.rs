//! Memory keys and the numbers around them, each as its own type; no bare `u32` crosses a boundary.

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

/// Index of a memory key in the table of its function: 24 bits. Two functions may well use the same
/// index for different keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MkeyIndex(u32);

impl MkeyIndex {
    /// Largest index.
    pub const MAX: Self = Self(0xff_ffff);

    /// The index, or nothing if it does not fit in 24 bits.
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

/// The low byte of a key, which its owner chooses (PRM: `mkey_7_0`, also variant).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(u8);

impl Tag {
    /// The tag by which stock UCX recognises a pooled key (`UCT_IB_MLX5_MKEY_TAG_UMR`). A stock
    /// importer keeps the alias of such a key for the next import and forgets any other.
    pub const UCX_POOLED: Self = Self(251);
    /// No tag, which is what stock UCX gives to the lkey of an alias.
    pub const ZERO: Self = Self(0);

    /// A tag of one's own choice.
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

/// A memory key as it travels: `index << 8 | tag`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mkey(u32);

impl Mkey {
    /// The key of an index and a tag.
    #[must_use]
    pub const fn new(index: MkeyIndex, tag: Tag) -> Self {
        Self(index.0 << 8 | tag.0 as u32)
    }

    /// The key that a peer or a library gave as a number. Any number is a key.
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

/// The key that the owner of memory uses for it in its own work requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lkey(u32);

impl Lkey {
    /// The local key that `ibv_reg_mr` or an alias gave.
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

/// The key that a peer needs to reach memory with RDMA.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rkey(u32);

impl Rkey {
    /// The remote key as a peer sent it.
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

/// A virtual address of the process that owns the memory. It is a number here: nothing in this
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

    /// The address `offset` bytes on, or nothing if that leaves the address space.
    #[must_use]
    pub const fn checked_add(self, offset: u64) -> Option<Self> {
        match self.0.checked_add(offset) {
            Some(addr) => Some(Self(addr)),
            None => None,
        }
    }

    /// Bytes from `base` to here, or nothing if `base` lies behind.
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

/// What a function must present before the adapter lets it alias another function's key.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey([u8; AccessKey::BYTES]);

impl AccessKey {
    /// Bytes of an access key (PRM: `access_key`, 256 bits).
    pub const BYTES: usize = 32;

    /// The constant that every stock UCX uses. Whoever can reach the adapter knows it, so it keeps
    /// nobody out; it is what lets stock peers and ours work together.
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

    /// An access key of one's own.
    #[must_use]
    pub const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes as a command carries them.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for AccessKey {
    /// Never shows the bytes: a debug print must not give the key away.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = *self == Self::UCX_COMPATIBLE;
        f.write_str(if known {
            "AccessKey(UCX_COMPATIBLE)"
        } else {
            "AccessKey(..)"
        })
    }
}

/// Who exported a key: a number that an exporter draws once and that no other exporter has (UCX
/// >= 1.19: `md_uuid`). It tells a living exporter's key from a dead one's with the same number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerUuid(u64);

impl OwnerUuid {
    /// The owner of keys that travel without one (UCX 1.18: six-byte keys). Such keys of a restarted
    /// exporter cannot be told from those of the old one.
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
    /// The key there.
    pub mkey: Mkey,
    /// Who exported it.
    pub owner: OwnerUuid,
}

impl RemoteKey {
    /// `gvmi << 32 | mkey`: what the alias map is keyed by. The owner is not part of it: an index
    /// belongs to one owner at a time, and a second owner means that the first one is gone.
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
    fn a_secret_access_key_is_not_printed() {
        let shown = format!("{:?}", AccessKey::new([0xa5; 32]));
        assert_eq!(shown, "AccessKey(..)");
    }
}
