//! The superblock of a target: what it is, in two copies. Does no I/O.
//!
//! ```text
//! 0  magic "XGVMIBLK"    8  version (4)   12 role (1), standing (1), zero (2)   16 block size (4)   20 zero (4)
//! 24 blocks (8)          32 volume (16)   48 target (16)   64 sequence (8)   72 epoch (8)   80 agreed (8)
//! 88 equal (8)       96 room (8)        104 slots (8)      112 ready (8)       120 tail (8)      128 used (8)
//! 136 suspects (8)   144 revision (8)   152 members (48)   200 CRC32C (4)
//! ```
//!
//! That is version 4, and 5 with a table of layers. Version 6 is for what those cannot say, and has its checksum elsewhere:
//!
//! ```text
//! 200 zero (4)   204 features (4): 1 layers, 4 layout   208 members of further roles (128)   336 trusted: epoch (8)
//! 344 revision (8)   352 roles (4)   500 parts of data (1), parities (1)   508 CRC32C (4)
//! ```
//!
//! The copies are in the first two pages and are written in turn. The valid one with the higher sequence counts.

use super::layout::{PAGE, Shape};
use crate::geometry::{BLOCKS_MAX, Geometry, Id, Layout, Role, TARGETS_MAX};
use crate::record::Place;

const BYTES: usize = 204;
const CRC_AT: usize = 200;
const MEMBERS_AT: usize = 152;
const MAGIC: [u8; 8] = *b"XGVMIBLK";
const VERSION: u32 = 4;
/// The same with a table of layers, which programs must know.
const WITH_LAYERS: u32 = 5;
/// The same with features, which programs must know.
const WITH_FEATURES: u32 = 6;
const LONG: usize = 512;
const LONG_CRC_AT: usize = 508;
const FEATURES_AT: usize = 204;
const MORE_MEMBERS_AT: usize = 208;
const TRUSTED_AT: usize = 336;
const LAYOUT_AT: usize = 500;
/// Bits of features.
const LAYERS: u32 = 1;
const LAYOUT: u32 = 4;
/// The version before, which says nothing about members, and where its checksum was. The next write makes it the present one.
const WITHOUT_MEMBERS: (u32, usize) = (3, 144);
/// The versions before that, and where their checksums were. Their indexes have other entries.
const OLD: [(u32, usize); 2] = [(1, 80), (2, 88)];

/// Bits of a generation below the epoch.
pub(crate) const COUNTER_BITS: u32 = 40;
/// Highest epoch: the rest of a generation's 64 bits.
pub(crate) const EPOCH_MAX: u64 = (1 << (u64::BITS - COUNTER_BITS)) - 1;

/// What a volume records about a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The epoch alone: the target is used from now on, and may lack blocks.
    Owned,
    /// It has also taken over what the volume has decided about blocks.
    Agreed,
    /// It also holds everything.
    Complete,
    /// All do, durably, and nobody writes any more: from here on they are equal but for what changes.
    Equal,
    /// The epoch, and which targets have replaced others.
    Members(Members),
    /// The epoch, and which targets are trusted.
    Trusted(Trusted),
}

/// The targets that hold everything that was acknowledged, as a target was told last (`volume::trust`). Volumes of two halves
/// do not use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trusted {
    /// The epoch in which it was told.
    pub epoch: u64,
    /// Grows with each change.
    pub revision: u64,
    /// The roles, as bits.
    pub roles: u16,
}

/// Which targets have replaced others, as a target was told last. What those hold does not count any more, also if the targets
/// are away that know newer data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Members {
    /// Grows with each change.
    pub revision: u64,
    /// The target of each role. Zeros: none was replaced.
    pub targets: [Id; TARGETS_MAX],
}

impl Members {
    /// The target of a role, if it has replaced another one.
    #[must_use]
    pub fn of(&self, role: Role) -> Option<Id> {
        Some(self.targets[role.index()]).filter(|id| *id != Id::default())
    }

    /// The same with another target of a role.
    #[must_use]
    pub fn with(mut self, role: Role, target: Id) -> Self {
        self.targets[role.index()] = target;
        self.revision += 1;
        self
    }
}

/// How far a target holds what its volume has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It takes the place of another target, and has never held everything.
    New,
    /// It has held everything once. Since then it was absent, or its volume was not closed.
    Returned,
    /// It holds everything.
    Complete,
}

impl Standing {
    /// Its number on the medium and on the wire.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::New => 0,
            Self::Complete => 1,
            Self::Returned => 2,
        }
    }

    pub(crate) fn of(number: u8) -> Option<Self> {
        let all = [Self::New, Self::Complete, Self::Returned];
        all.into_iter().find(|standing| standing.number() == number)
    }
}

/// What a target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Size of the volume.
    pub geometry: Geometry,
    /// Part of each block that the target holds.
    pub role: Role,
    /// The volume.
    pub volume: Id,
    /// The target itself.
    pub target: Id,
    /// Number of times that the volume was opened. A higher one is a later one.
    pub epoch: u64,
    /// What it holds of the volume.
    pub standing: Standing,
    /// The last epoch whose decisions about blocks it has taken over.
    pub agreed: u64,
    /// The epoch at whose end all three targets were equal. 0: never.
    pub equal: u64,
    /// Blocks for which its index has room.
    pub room: u64,
    /// Those targets of the volume that have replaced others.
    pub members: Members,
    /// Those that hold everything that was acknowledged.
    pub trusted: Trusted,
}

impl Identity {
    /// True if the target holds everything.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.standing == Standing::Complete
    }

    /// What records of a block say about themselves.
    pub(super) fn place(&self, block: u64) -> Place {
        Place {
            volume: self.volume,
            role: self.role,
            block,
        }
    }

    /// Records what a volume says about its target.
    pub(crate) fn marked(&mut self, epoch: u64, mark: Mark) {
        self.epoch = epoch;
        match mark {
            Mark::Owned if self.standing == Standing::Complete => {
                self.standing = Standing::Returned
            }
            Mark::Owned => {}
            Mark::Agreed => self.agreed = epoch,
            Mark::Complete => (self.agreed, self.standing) = (epoch, Standing::Complete),
            Mark::Equal => {
                (self.agreed, self.standing) = (epoch, Standing::Complete);
                self.equal = epoch;
            }
            Mark::Members(members) => self.members = members,
            Mark::Trusted(trusted) => self.trusted = trusted,
        }
    }
}

/// A superblock and the number of its write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) identity: Identity,
    pub(super) sequence: u64,
    pub(super) shape: Shape,
    /// Sectors for groups in change that can be used.
    pub(super) ready: u64,
    /// All records of the settled index are before this offset.
    pub(super) tail: u64,
    /// Bytes of records in use, as far as known then.
    pub(super) used: u64,
    /// Sectors of groups in change were damaged, and what was in them is not known yet.
    pub(super) has_suspects: bool,
    /// The volume has, or had, snapshots: the table of layers counts.
    pub(super) has_layers: bool,
}

impl Superblock {
    /// True if nothing was written since the targets were equal.
    pub(super) fn is_closed(&self) -> bool {
        let identity = &self.identity;
        identity.is_complete() && identity.equal == identity.epoch && identity.epoch != 0
    }

    /// End of the blocks that the index can have.
    pub(super) fn reach(&self) -> u64 {
        match self.has_layers {
            true => self.shape.room,
            false => self.identity.geometry.blocks(),
        }
    }

    /// Offset of the copy that this sequence number is written to.
    pub(super) fn offset(self) -> u64 {
        self.sequence % 2 * PAGE as u64
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let identity = self.identity;
        let layout = identity.role.layout();
        let is_long = layout != Layout::HALVES;
        let mut bytes = vec![0; if is_long { LONG } else { BYTES }];
        bytes[..8].copy_from_slice(&MAGIC);
        let version = match self.has_layers {
            _ if is_long => WITH_FEATURES,
            true => WITH_LAYERS,
            false => VERSION,
        };
        bytes[8..12].copy_from_slice(&version.to_be_bytes());
        bytes[12] = identity.role.number();
        bytes[13] = identity.standing.number();
        bytes[16..20].copy_from_slice(&identity.geometry.block_size().to_be_bytes());
        bytes[24..32].copy_from_slice(&identity.geometry.blocks().to_be_bytes());
        bytes[32..48].copy_from_slice(&identity.volume.0);
        bytes[48..64].copy_from_slice(&identity.target.0);
        bytes[64..72].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[72..80].copy_from_slice(&identity.epoch.to_be_bytes());
        bytes[80..88].copy_from_slice(&identity.agreed.to_be_bytes());
        let fields = [
            identity.equal,
            self.shape.room,
            self.shape.slots,
            self.ready,
            self.tail,
            self.used,
            self.has_suspects.into(),
        ];
        let fields = fields.into_iter().chain([identity.members.revision]);
        for (bytes, field) in bytes[88..MEMBERS_AT].chunks_exact_mut(8).zip(fields) {
            bytes.copy_from_slice(&field.to_be_bytes());
        }
        let members = bytes[MEMBERS_AT..CRC_AT].chunks_exact_mut(16);
        for (bytes, member) in members.zip(identity.members.targets) {
            bytes.copy_from_slice(&member.0);
        }
        if is_long {
            self.put_features(&mut bytes);
            return bytes;
        }
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    /// What only version 6 has.
    fn put_features(self, bytes: &mut [u8]) {
        let Identity {
            role,
            members,
            trusted,
            ..
        } = self.identity;
        let features = LAYOUT | if self.has_layers { LAYERS } else { 0 };
        bytes[FEATURES_AT..MORE_MEMBERS_AT].copy_from_slice(&features.to_be_bytes());
        let more = bytes[MORE_MEMBERS_AT..TRUSTED_AT].chunks_exact_mut(16);
        for (bytes, member) in more.zip(&members.targets[3..]) {
            bytes.copy_from_slice(&member.0);
        }
        let words = [
            trusted.epoch,
            trusted.revision,
            u64::from(trusted.roles) << 32,
        ];
        for (bytes, word) in bytes[TRUSTED_AT..].chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        bytes[LAYOUT_AT..LAYOUT_AT + 2].copy_from_slice(&role.layout().numbers());
        let crc = crc32c::crc32c(&bytes[..LONG_CRC_AT]);
        bytes[LONG_CRC_AT..].copy_from_slice(&crc.to_be_bytes());
    }

    /// The superblock of a medium that starts with these pages.
    pub(super) fn parse(pages: &[u8]) -> Result<Self, String> {
        let copies = pages.chunks(PAGE).take(2).map(Self::parse_copy);
        let mut newest: Option<Self> = None;
        let mut fault = None;
        for copy in copies {
            match copy {
                Ok(copy) if newest.is_none_or(|newest| newest.sequence < copy.sequence) => {
                    newest = Some(copy);
                }
                Ok(_) => {}
                // That of the first copy: a target that was never marked has two of them.
                Err(reason) => fault = fault.or(Some(reason)),
            }
        }
        newest.ok_or_else(|| fault.unwrap_or_else(|| "it is empty".to_owned()))
    }

    fn parse_copy(page: &[u8]) -> Result<Self, String> {
        let bytes: &[u8; LONG] = page.first_chunk().ok_or("it is too short for a target")?;
        if bytes[..8] != MAGIC {
            return Err("it is no target of xgvmi-blk".to_owned());
        }
        let be32 = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let be64 = |at: usize| u64::from(be32(at)) << 32 | u64::from(be32(at + 4));
        let is_old = |(old, crc_of_old): &(u32, usize)| {
            be32(8) == *old && be32(*crc_of_old) == crc32c::crc32c(&bytes[..*crc_of_old])
        };
        if let Some((old, _)) = OLD.into_iter().find(is_old) {
            return Err(format!(
                "its format has version {old}, which this program does not read: export the volume by the release that \
                 made it, and copy it to a new volume"
            ));
        }
        let has_members = !is_old(&WITHOUT_MEMBERS);
        let is_long = be32(8) == WITH_FEATURES;
        let crc_at = if is_long { LONG_CRC_AT } else { CRC_AT };
        if has_members && be32(crc_at) != crc32c::crc32c(&bytes[..crc_at]) {
            return Err("its superblock is damaged".to_owned());
        }
        let features = match be32(8) {
            WITH_FEATURES => be32(FEATURES_AT),
            WITH_LAYERS => LAYERS,
            _ => 0,
        };
        if has_members && !(VERSION..=WITH_FEATURES).contains(&be32(8)) {
            return Err(format!(
                "its format has version {}; this program reads versions up to {WITH_FEATURES}",
                be32(8)
            ));
        }
        if features & !(LAYERS | LAYOUT) != 0 {
            return Err(format!(
                "it has features ({features:#x}) that this program does not know: use a newer one"
            ));
        }
        let layout = match features & LAYOUT {
            0 => Layout::HALVES,
            _ => Layout::new(bytes[LAYOUT_AT], bytes[LAYOUT_AT + 1])
                .ok_or("its layout is unknown")?,
        };
        let id = |at: usize| {
            let mut id = Id([0; 16]);
            id.0.copy_from_slice(&bytes[at..at + 16]);
            id
        };
        let identity = Identity {
            geometry: Geometry::new(be32(16), be64(24)).map_err(|error| error.to_string())?,
            role: layout.role(bytes[12].into()).ok_or("its role is unknown")?,
            volume: id(32),
            target: id(48),
            epoch: be64(72),
            standing: Standing::of(bytes[13]).ok_or("its standing is unknown")?,
            agreed: be64(80),
            equal: be64(88),
            room: be64(96),
            members: match has_members {
                true => Members {
                    revision: be64(144),
                    targets: std::array::from_fn(|nth| match nth {
                        0..3 => id(MEMBERS_AT + 16 * nth),
                        _ if is_long => id(MORE_MEMBERS_AT + 16 * (nth - 3)),
                        _ => Id::default(),
                    }),
                },
                false => Members::default(),
            },
            trusted: match is_long {
                true => Trusted {
                    epoch: be64(TRUSTED_AT),
                    revision: be64(TRUSTED_AT + 8),
                    roles: u16::try_from(be32(TRUSTED_AT + 16)).unwrap_or(0),
                },
                false => Trusted::default(),
            },
        };
        let shape = Shape {
            room: be64(96),
            slots: be64(104),
        };
        let ready = be64(112);
        let has_room = (identity.geometry.blocks()..=BLOCKS_MAX).contains(&shape.room);
        let slots = 1..=shape.groups();
        if !has_room || !slots.contains(&shape.slots) || !(1..=shape.slots).contains(&ready) {
            return Err("the sizes of its index contradict each other".to_owned());
        }
        Ok(Self {
            identity,
            sequence: be64(64),
            shape,
            ready,
            tail: be64(120),
            used: be64(128),
            has_suspects: be64(136) != 0,
            has_layers: features & LAYERS != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn superblock(sequence: u64) -> Superblock {
        Superblock {
            identity: Identity {
                geometry: Geometry::new(4096, 77).unwrap(),
                role: Role::PARITY,
                volume: Id([1; 16]),
                target: Id([2; 16]),
                epoch: sequence + 5,
                standing: Standing::Returned,
                agreed: sequence + 4,
                equal: sequence + 3,
                room: 1 << 20,
                members: Members::default().with(Role::SECOND, Id([9; 16])),
                trusted: Trusted::default(),
            },
            sequence,
            shape: Shape::with_room(1 << 20),
            ready: 10,
            tail: 1 << 40,
            used: 1 << 39,
            has_suspects: true,
            has_layers: true,
        }
    }

    fn pages(copies: &[Superblock]) -> Vec<u8> {
        let mut pages = vec![0; 2 * PAGE];
        for copy in copies {
            let at = usize::try_from(copy.offset()).unwrap();
            let bytes = copy.to_bytes();
            pages[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        pages
    }

    #[test]
    fn the_later_copy_counts_and_a_torn_one_does_not() {
        let (old, new) = (superblock(4), superblock(5));
        let mut pages = pages(&[old, new]);
        assert_eq!(Superblock::parse(&pages), Ok(new));
        pages[PAGE + 70] ^= 1;
        assert_eq!(Superblock::parse(&pages), Ok(old));
        pages[70] ^= 1;
        let fault = Superblock::parse(&pages).unwrap_err();
        assert!(fault.contains("damaged"), "{fault}");
        let fault = Superblock::parse(&[0; 8192]).unwrap_err();
        assert!(fault.contains("no target"), "{fault}");
        assert!(Superblock::parse(&[]).is_err());
    }

    #[test]
    fn other_layouts_have_a_version_of_their_own() {
        let mut old = superblock(4);
        let layout: Layout = "8+3".parse().unwrap();
        let last = layout.role(10).unwrap();
        old.identity.role = last;
        old.identity.members = Members::default().with(last, Id([8; 16]));
        old.identity.trusted = Trusted {
            epoch: 9,
            revision: 1 << 40,
            roles: 0x7fe,
        };
        let mut pages = pages(&[old, superblock(3)]);
        assert_eq!((pages[11], pages[PAGE + 11]), (6, 5));
        assert_eq!(Superblock::parse(&pages), Ok(old));
        for (at, to, fault) in [
            (207, 0xd, "features (0xd)"),
            (500, 9, "layout"),
            (12, 11, "role"),
        ] {
            let was = std::mem::replace(&mut pages[at], to);
            let crc = crc32c::crc32c(&pages[..LONG_CRC_AT]);
            pages[LONG_CRC_AT..LONG].copy_from_slice(&crc.to_be_bytes());
            let found = Superblock::parse(&pages[..PAGE]).unwrap_err();
            assert!(found.contains(fault), "{found}");
            pages[at] = was;
        }
        assert_eq!(Superblock::parse(&pages).unwrap().sequence, 3);
    }

    /// A target of a version before is refused by a message that says what to do.
    #[test]
    fn the_formats_before_are_refused() {
        for (old, crc_of_old) in OLD {
            let mut pages = pages(&[superblock(4), superblock(5)]);
            for page in pages.chunks_mut(PAGE) {
                page[8..12].copy_from_slice(&old.to_be_bytes());
                let crc = crc32c::crc32c(&page[..crc_of_old]);
                page[crc_of_old..crc_of_old + 4].copy_from_slice(&crc.to_be_bytes());
            }
            let fault = Superblock::parse(&pages).unwrap_err();
            assert!(
                fault.contains(&format!("version {old}")) && fault.contains("copy it"),
                "{fault}"
            );
        }
    }

    /// A target of version 3 is used. It says nothing about members.
    #[test]
    fn the_format_without_members_is_read() {
        let (version, crc_at) = WITHOUT_MEMBERS;
        let mut pages = pages(&[superblock(4), superblock(5)]);
        for page in pages.chunks_mut(PAGE) {
            page[8..12].copy_from_slice(&version.to_be_bytes());
            let crc = crc32c::crc32c(&page[..crc_at]);
            page[crc_at..BYTES].fill(0);
            page[crc_at..crc_at + 4].copy_from_slice(&crc.to_be_bytes());
        }
        let found = Superblock::parse(&pages).unwrap();
        assert_eq!(found.identity.members, Members::default());
        assert_eq!((found.sequence, found.tail), (5, 1 << 40));
        pages[PAGE + 88] ^= 1;
        assert_eq!(Superblock::parse(&pages).unwrap().sequence, 4);
    }

    proptest! {
        #[test]
        fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), right in any::<bool>()) {
            if right && bytes.len() >= LONG {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..12].copy_from_slice(&VERSION.to_be_bytes());
                let crc = crc32c::crc32c(&bytes[..CRC_AT]);
                bytes[CRC_AT..BYTES].copy_from_slice(&crc.to_be_bytes());
            }
            let _ = Superblock::parse(&bytes);
        }
    }
}
