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
//! 200 zero (4)   204 features (4): 1 layers, 2 encrypted, 4 layout   208 members of further roles (128)   336 trusted: epoch (8)
//! 344 revision (8)   352 roles (4)   384 algorithm (4)   392 revision of the wrapping (8)   400 wrapped key (72)
//! 472 check of the key (16)   500 parts of data (1), parities (1)   508 CRC32C (4)
//! ```
//!
//! The copies are in the first two pages and are written in turn. The valid one with the higher sequence counts.

use super::layout::{PAGE, SECTOR, Shape};
use super::space::UNIT;
use crate::crc32c::crc32c;
use crate::encryption::{ALGORITHM, WRAPPED, Wrapping};
use crate::geometry::{BLOCKS_MAX, Geometry, Id, Layout, Role, TARGETS_MAX};
use crate::record::Place;

const BYTES: usize = 204;
const CRC_AT: usize = 200;
const MEMBERS_AT: usize = 152;
const MAGIC: [u8; 8] = *b"XGVMIBLK";
const VERSION: u32 = 4;
/// The same with a table of layers, which programs must know.
const WITH_LAYERS: u32 = 5;
/// The same in a sector, with features that programs must know.
const WITH_FEATURES: u32 = 6;
const FEATURES_AT: usize = 204;
const MORE_MEMBERS_AT: usize = 208;
const TRUSTED_AT: usize = 336;
const WRAPPING_AT: usize = 384;
const LAYOUT_AT: usize = 500;
const SECTOR_CRC_AT: usize = 508;
/// The feature of version 5.
const LAYERS: u32 = 1;
/// There is a wrapped data key.
const ENCRYPTED: u32 = 1 << 1;
/// The layout is not that of two halves.
const LAYOUT: u32 = 1 << 2;
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
    /// The epoch, and the data key as the volume has wrapped it.
    Wrapping(Wrapping),
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
    /// The wrapped data key, if the volume is encrypted.
    pub wrapping: Option<Wrapping>,
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
            Mark::Wrapping(wrapping) => self.wrapping = Some(wrapping),
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

    /// Features of version 6. None: an older one will do.
    fn features(&self) -> u32 {
        let has = |feature: u32, has: bool| if has { feature } else { 0 };
        let needed = has(ENCRYPTED, self.identity.wrapping.is_some())
            | has(LAYOUT, self.identity.role.layout() != Layout::HALVES);
        match needed {
            0 => 0,
            needed => needed | has(LAYERS, self.has_layers),
        }
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let identity = self.identity;
        let features = self.features();
        let (version, length) = match (features, self.has_layers) {
            (0, false) => (VERSION, BYTES),
            (0, true) => (WITH_LAYERS, BYTES),
            _ => (WITH_FEATURES, SECTOR),
        };
        let mut bytes = vec![0; length];
        bytes[..8].copy_from_slice(&MAGIC);
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
        if version == WITH_FEATURES {
            bytes[FEATURES_AT..FEATURES_AT + 4].copy_from_slice(&features.to_be_bytes());
        }
        if features & LAYOUT != 0 {
            self.put_layout(&mut bytes);
        }
        if let Some(wrapping) = identity.wrapping {
            put_wrapping(&wrapping, &mut bytes[WRAPPING_AT..]);
        }
        let crc_at = length - 4;
        let crc = crc32c(&bytes[..crc_at]);
        bytes[crc_at..].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    /// What only other layouts than that of two halves have.
    fn put_layout(self, bytes: &mut [u8]) {
        let Identity {
            role,
            members,
            trusted,
            ..
        } = self.identity;
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
        let bytes: &[u8; SECTOR] = page.first_chunk().ok_or("it is too short for a target")?;
        if bytes[..8] != MAGIC {
            return Err("it is no target of xgvmi-blk".to_owned());
        }
        let be32 = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let be64 = |at: usize| u64::from(be32(at)) << 32 | u64::from(be32(at + 4));
        let is_old = |(old, crc_of_old): &(u32, usize)| {
            be32(8) == *old && be32(*crc_of_old) == crc32c(&bytes[..*crc_of_old])
        };
        if let Some((old, _)) = OLD.into_iter().find(is_old) {
            return Err(format!(
                "its format has version {old}, which this program does not read: export the volume by the release that \
                 made it, and copy it to a new volume"
            ));
        }
        let has_members = !is_old(&WITHOUT_MEMBERS);
        let sector: Option<&[u8; SECTOR]> = page.first_chunk().filter(|sector| {
            let crc = crc32c(&sector[..SECTOR_CRC_AT]);
            be32(8) == WITH_FEATURES && sector[SECTOR_CRC_AT..] == crc.to_be_bytes()
        });
        let is_whole = sector.is_some() || be32(CRC_AT) == crc32c(&bytes[..CRC_AT]);
        if has_members && !is_whole {
            return Err("its superblock is damaged".to_owned());
        }
        let version = be32(8);
        if has_members && sector.is_none() && ![VERSION, WITH_LAYERS].contains(&version) {
            return Err(format!(
                "its format has version {version}; this program reads versions up to {WITH_FEATURES}"
            ));
        }
        let (features, wrapping) = match sector {
            Some(sector) => features_of(sector)?,
            None => (0, None),
        };
        let has_layers = version == WITH_LAYERS || features & LAYERS != 0;
        let of_layout = sector.filter(|_| features & LAYOUT != 0);
        let layout = layout_of(of_layout).ok_or("its layout is unknown")?;
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
                        _ if of_layout.is_some() => id(MORE_MEMBERS_AT + 16 * (nth - 3)),
                        _ => Id::default(),
                    }),
                },
                false => Members::default(),
            },
            wrapping,
            trusted: match of_layout {
                Some(_) => Trusted {
                    epoch: be64(TRUSTED_AT),
                    revision: be64(TRUSTED_AT + 8),
                    roles: u16::try_from(be32(TRUSTED_AT + 16)).unwrap_or(0),
                },
                None => Trusted::default(),
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
        Self {
            identity,
            sequence: be64(64),
            shape,
            ready,
            tail: be64(120),
            used: be64(128),
            has_suspects: be64(136) != 0,
            has_layers,
        }
        .that_can_go_on()
    }

    /// Neither writes nor bytes of a target become so many that its counters cannot be added to, and records end with a unit.
    fn that_can_go_on(self) -> Result<Self, String> {
        let Trusted {
            epoch, revision, ..
        } = self.identity.trusted;
        let members = self.identity.members.revision;
        let bytes = [self.tail, self.used];
        let counters = [self.sequence, members, epoch, revision];
        let mut all = counters.into_iter().chain(bytes);
        if all.any(|counter| counter >> 62 != 0) {
            return Err("its counters are out of range".to_owned());
        }
        if !self.tail.is_multiple_of(UNIT) {
            return Err(format!(
                "its records end at byte {}, which is no multiple of {UNIT}: replace the target",
                self.tail
            ));
        }
        Ok(self)
    }
}

/// The layout that a superblock of version 6 has.
fn layout_of(sector: Option<&[u8; SECTOR]>) -> Option<Layout> {
    match sector {
        None => Some(Layout::HALVES),
        Some(sector) => Layout::new(sector[LAYOUT_AT], sector[LAYOUT_AT + 1]),
    }
}

/// The features of a superblock of version 6, and the wrapped key.
fn features_of(sector: &[u8; SECTOR]) -> Result<(u32, Option<Wrapping>), String> {
    let word = |at: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&sector[at..at + 4]);
        u32::from_be_bytes(word)
    };
    let features = word(FEATURES_AT);
    let unknown = features & !(LAYERS | ENCRYPTED | LAYOUT);
    if unknown != 0 {
        return Err(format!(
            "it has features that this program does not know ({unknown:#x}): use a newer release"
        ));
    }
    if features & ENCRYPTED == 0 {
        return Ok((features, None));
    }
    let algorithm = word(WRAPPING_AT);
    if algorithm != ALGORITHM {
        return Err(format!(
            "it is encrypted by an algorithm that this program does not know ({algorithm}): use a newer release"
        ));
    }
    Ok((features, Some(take_wrapping(&sector[WRAPPING_AT..]))))
}

fn put_wrapping(wrapping: &Wrapping, bytes: &mut [u8]) {
    bytes[..4].copy_from_slice(&ALGORITHM.to_be_bytes());
    bytes[8..16].copy_from_slice(&wrapping.revision.to_be_bytes());
    bytes[16..16 + WRAPPED].copy_from_slice(&wrapping.wrapped);
    bytes[16 + WRAPPED..][..wrapping.check.len()].copy_from_slice(&wrapping.check);
}

fn take_wrapping(bytes: &[u8]) -> Wrapping {
    let mut revision = [0; 8];
    revision.copy_from_slice(&bytes[8..16]);
    let mut wrapping = Wrapping {
        revision: u64::from_be_bytes(revision),
        wrapped: [0; WRAPPED],
        check: [0; 16],
    };
    wrapping.wrapped.copy_from_slice(&bytes[16..16 + WRAPPED]);
    wrapping
        .check
        .copy_from_slice(&bytes[16 + WRAPPED..32 + WRAPPED]);
    wrapping
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
                wrapping: None,
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

    fn encrypted(sequence: u64, has_layers: bool) -> Superblock {
        let mut encrypted = superblock(sequence);
        encrypted.has_layers = has_layers;
        encrypted.identity.wrapping = Some(Wrapping {
            revision: 3,
            wrapped: [4; WRAPPED],
            check: [5; 16],
        });
        encrypted
    }

    /// Version 6 has a sector, with a checksum over all of it. Without features of its own a superblock stays as it was.
    #[test]
    fn a_wrapped_key_comes_back() {
        for has_layers in [false, true] {
            let (old, new) = (superblock(4), encrypted(5, has_layers));
            assert_eq!(
                (old.to_bytes().len(), new.to_bytes().len()),
                (BYTES, SECTOR)
            );
            let pages = pages(&[old, new]);
            assert_eq!(Superblock::parse(&pages), Ok(new));
            for bit in 0..SECTOR * 8 {
                let mut bad = pages.clone();
                bad[PAGE + bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Superblock::parse(&bad), Ok(old), "bit {bit}");
            }
        }
    }

    #[test]
    fn features_and_algorithms_of_later_releases_are_refused() {
        for (at, expect) in [(FEATURES_AT, "features"), (WRAPPING_AT, "algorithm")] {
            let mut pages = pages(&[encrypted(4, true), encrypted(5, true)]);
            for page in pages.chunks_mut(PAGE) {
                page[at] = 1;
                let crc = crc32c(&page[..SECTOR_CRC_AT]);
                page[SECTOR_CRC_AT..SECTOR].copy_from_slice(&crc.to_be_bytes());
            }
            let fault = Superblock::parse(&pages).unwrap_err();
            assert!(
                fault.contains(expect) && fault.contains("newer release"),
                "{fault}"
            );
        }
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
        for (at, to, fault) in [(207, 0xd, "(0x8)"), (500, 9, "layout"), (12, 11, "role")] {
            let was = std::mem::replace(&mut pages[at], to);
            let crc = crc32c(&pages[..SECTOR_CRC_AT]);
            pages[SECTOR_CRC_AT..SECTOR].copy_from_slice(&crc.to_be_bytes());
            let found = Superblock::parse(&pages[..PAGE]).unwrap_err();
            assert!(found.contains(fault), "{found}");
            pages[at] = was;
        }
        assert_eq!(Superblock::parse(&pages).unwrap().sequence, 3);
    }

    /// The next write would count beyond it.
    #[test]
    fn a_counter_at_its_end_is_refused() {
        let mut last = superblock(4);
        last.sequence = u64::MAX - 1;
        let fault = Superblock::parse(&pages(&[last])).unwrap_err();
        assert!(fault.contains("out of range"), "{fault}");
        let (good, mut tail) = (superblock(4), superblock(5));
        tail.tail = u64::MAX - 63;
        assert_eq!(Superblock::parse(&pages(&[good, tail])), Ok(good));
        let mut used = superblock(5);
        used.used = u64::MAX - 1;
        assert_eq!(Superblock::parse(&pages(&[good, used])), Ok(good));
    }

    /// The next record would be written there, and looked for at the unit before.
    #[test]
    fn records_that_end_within_a_unit_are_refused() {
        let (good, mut odd) = (superblock(3), superblock(4));
        odd.tail += 1;
        let fault = Superblock::parse(&pages(&[odd])).unwrap_err();
        assert!(fault.contains("no multiple of 64"), "{fault}");
        assert_eq!(Superblock::parse(&pages(&[good, odd])), Ok(good));
    }

    /// A target of a version before is refused by a message that says what to do.
    #[test]
    fn the_formats_before_are_refused() {
        for (old, crc_of_old) in OLD {
            let mut pages = pages(&[superblock(4), superblock(5)]);
            for page in pages.chunks_mut(PAGE) {
                page[8..12].copy_from_slice(&old.to_be_bytes());
                let crc = crc32c(&page[..crc_of_old]);
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
            let crc = crc32c(&page[..crc_at]);
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
            if right && bytes.len() >= SECTOR {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..12].copy_from_slice(&WITH_FEATURES.to_be_bytes());
                bytes[FEATURES_AT..FEATURES_AT + 4].copy_from_slice(&[0, 0, 0, 7]);
                let crc = crc32c(&bytes[..SECTOR_CRC_AT]);
                bytes[SECTOR_CRC_AT..SECTOR].copy_from_slice(&crc.to_be_bytes());
            } else if right && bytes.len() >= BYTES {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..12].copy_from_slice(&VERSION.to_be_bytes());
                let crc = crc32c(&bytes[..CRC_AT]);
                bytes[CRC_AT..BYTES].copy_from_slice(&crc.to_be_bytes());
            }
            let _ = Superblock::parse(&bytes);
        }
    }
}
