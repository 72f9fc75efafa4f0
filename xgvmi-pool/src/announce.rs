//! Messages from an exporter to an importer. A message announces the pooled keys before the first
//! collective, so the importer can create their aliases in advance, or carries several exports.
//!
//! # Format, version 1
//! All numbers are little-endian.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `XGVMIANN` |
//! | 8 | 2 | version, 1 |
//! | 10 | 2 | function that owns the keys (gvmi) |
//! | 12 | 1 | kind: 1 keys, 2 exports |
//! | 13 | 3 | zero |
//! | 16 | 8 | owner |
//! | 24 | 8 | sequence number: each message of an owner has a higher one than those before |
//! | 32 | 4 | entries that follow |
//! | 36 | 4 | zero |
//! | 40 | | keys: runs of 8 bytes, first key and number of keys with consecutive indices; exports: 24 bytes each, key, zero, address, length |
//! | end | 16 | seal over everything before |

use crate::device::MkeyDevice;
use crate::export::Export;
use crate::key::{Gvmi, Lkey, Mkey, MkeyIndex, OwnerUuid, RemoteKey, VirtAddr};
use crate::region::Region;
use crate::replay::{News, OWNERS_MAX, ReplayFilter};
use crate::secret::Seal;

const MAGIC: [u8; 8] = *b"XGVMIANN";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 40;
const RUN_BYTES: usize = 8;
const EXPORT_BYTES: usize = 24;

/// Maximum number of keys in one announcement: the maximum size of a pool.
const KEYS_MAX: u32 = 1 << 20;

/// A message of an exporter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Function that owns the keys.
    pub gvmi: Gvmi,
    /// The identity of the exporter.
    pub owner: OwnerUuid,
    /// Higher than in all earlier messages of the owner.
    pub sequence: u64,
    /// The announced keys or exports.
    pub body: Body,
}

/// The content of an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Keys that the exporter will bind to changing regions.
    Keys(Vec<Mkey>),
    /// Keys that are bound.
    Exports(Vec<RemoteExport>),
}

/// A key that is bound to a region of the exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteExport {
    /// The key.
    pub mkey: Mkey,
    /// First byte.
    pub addr: VirtAddr,
    /// Length in bytes.
    pub len: u64,
}

/// The reason why a message is refused. A refused message changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnnounceError {
    /// The message does not begin with the magic number.
    #[error("no announcement")]
    NoAnnouncement,
    /// The message has another version of the format.
    #[error("an announcement of version {version}, this is version {VERSION}")]
    Version {
        /// Version of the message.
        version: u16,
    },
    /// The length of the message differs from the length that its header implies.
    #[error("an announcement of {len} bytes instead of {expected}")]
    Length {
        /// Its length in bytes.
        len: usize,
        /// Length that the header implies.
        expected: usize,
    },
    /// The message was modified, or it comes from another job.
    #[error("the seal is wrong or belongs to another job")]
    Seal,
    /// The seal is valid but an entry is invalid.
    #[error("entry {entry} of the announcement: {what}")]
    Content {
        /// Index of the entry.
        entry: usize,
        /// The defect of the entry.
        what: &'static str,
    },
    /// The message is not newer than an earlier one.
    #[error("announcement {sequence} of {owner:?} comes after {seen}")]
    Replayed {
        /// Owner named in the message.
        owner: OwnerUuid,
        /// Sequence number of the message.
        sequence: u64,
        /// Highest sequence number so far.
        seen: u64,
    },
    /// The message names another owner than its sender.
    #[error("an announcement of {owner:?} by {sender:?}")]
    Owner {
        /// Owner named in the message.
        owner: OwnerUuid,
        /// Owner of the sender's access key.
        sender: OwnerUuid,
    },
    /// The inbox has reached its limit of exporters.
    #[error("more than {OWNERS_MAX} exporters")]
    Owners,
}

impl RemoteExport {
    /// The remote key that an importer passes to its alias map.
    #[must_use]
    pub fn of<D: MkeyDevice>(export: &Export<D>) -> Self {
        Self {
            mkey: export.mkey(),
            addr: export.addr(),
            len: export.len(),
        }
    }
}

impl Announcement {
    /// Encodes and seals the message.
    #[must_use]
    pub fn to_bytes(&self, seal: &Seal) -> Vec<u8> {
        let (kind, entries) = match &self.body {
            Body::Keys(keys) => (1u8, runs(keys)),
            Body::Exports(exports) => (2, exports.iter().flat_map(export_bytes).collect()),
        };
        let entry_bytes = if kind == 1 { RUN_BYTES } else { EXPORT_BYTES };
        let count = u32::try_from(entries.len() / entry_bytes);
        let count = count.expect("an announcement has less than 2^32 entries");
        let mut bytes = Vec::with_capacity(HEAD_BYTES + entries.len() + Seal::BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.gvmi.get().to_le_bytes());
        bytes.extend([kind, 0, 0, 0]);
        bytes.extend(self.owner.get().to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(entries);
        bytes.extend(seal.of(&bytes));
        bytes
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// If the bytes are no announcement, are damaged, or come from another job.
    pub fn parse(bytes: &[u8], seal: &Seal) -> Result<Self, AnnounceError> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Err(AnnounceError::NoAnnouncement);
        };
        if head[..8] != MAGIC {
            return Err(AnnounceError::NoAnnouncement);
        }
        let version = u16_at(head, 8);
        if version != VERSION {
            return Err(AnnounceError::Version { version });
        }
        let (kind, count) = (head[12], u32_at(head, 32));
        let entry_bytes = if kind == 2 { EXPORT_BYTES } else { RUN_BYTES };
        // A product of two small numbers: no overflow on a machine of 64 bits.
        let expected = count as usize * entry_bytes + HEAD_BYTES + Seal::BYTES;
        let len = bytes.len();
        let Some((entries, found)) = rest.split_last_chunk::<{ Seal::BYTES }>() else {
            return Err(AnnounceError::Length { len, expected });
        };
        if len != expected {
            return Err(AnnounceError::Length { len, expected });
        }
        if !seal.fits(&bytes[..len - Seal::BYTES], found) {
            return Err(AnnounceError::Seal);
        }
        if head[13..16] != [0; 3] || head[36..] != [0; 4] {
            return Err(AnnounceError::Content {
                entry: 0,
                what: "what should be zero is not",
            });
        }
        let body = match kind {
            1 => Body::Keys(parse_runs(entries)?),
            2 => Body::Exports(parse_exports(entries)?),
            _ => {
                return Err(AnnounceError::Content {
                    entry: 0,
                    what: "of no known kind",
                });
            }
        };
        Ok(Self {
            gvmi: Gvmi::new(u16_at(head, 10)),
            owner: OwnerUuid::new(u64_at(head, 16)),
            sequence: u64_at(head, 24),
            body,
        })
    }

    /// The announced keys, in the form that an alias map takes.
    pub fn keys(&self) -> impl Iterator<Item = RemoteKey> + '_ {
        let (keys, exports): (&[Mkey], &[RemoteExport]) = match &self.body {
            Body::Keys(keys) => (keys, &[]),
            Body::Exports(exports) => (&[], exports),
        };
        let mkeys = keys
            .iter()
            .copied()
            .chain(exports.iter().map(|export| export.mkey));
        mkeys.map(|mkey| RemoteKey {
            gvmi: self.gvmi,
            mkey,
            owner: self.owner,
        })
    }
}

/// Encodes keys as runs. The adapter allocates indices in ascending order, so a pool of thousands
/// of keys takes a few runs.
fn runs(keys: &[Mkey]) -> Vec<u8> {
    let mut sorted: Vec<u32> = keys.iter().map(|key| key.raw()).collect();
    // Sort by tag and then by index: a run must not break where tags differ.
    sorted.sort_unstable_by_key(|raw| raw.rotate_right(8));
    sorted.dedup();
    let follows = |a: &u32, b: &u32| a.checked_add(1 << 8) == Some(*b);
    let run = |run: &[u32]| {
        let count = u32::try_from(run.len()).expect("a run has at most 2^24 keys");
        [run[0], count].map(u32::to_le_bytes)
    };
    sorted.chunk_by(follows).flat_map(run).flatten().collect()
}

fn parse_runs(entries: &[u8]) -> Result<Vec<Mkey>, AnnounceError> {
    let wrong = |entry, what| AnnounceError::Content { entry, what };
    let mut keys = Vec::new();
    for (entry, run) in entries.as_chunks::<RUN_BYTES>().0.iter().enumerate() {
        let (first, count) = (Mkey::from_raw(u32_at(run, 0)), u32_at(run, 4));
        if count == 0 {
            return Err(wrong(entry, "an empty run"));
        }
        if count > KEYS_MAX || keys.len() + count as usize > KEYS_MAX as usize {
            return Err(wrong(entry, "more keys than a pool has"));
        }
        for offset in 0..count {
            let index = MkeyIndex::new(first.index().get() + offset);
            let index = index.ok_or_else(|| wrong(entry, "indices of more than 24 bits"))?;
            keys.push(Mkey::new(index, first.tag()));
        }
    }
    Ok(keys)
}

fn export_bytes(export: &RemoteExport) -> [u8; EXPORT_BYTES] {
    let mut bytes = [0; EXPORT_BYTES];
    bytes[..4].copy_from_slice(&export.mkey.raw().to_le_bytes());
    bytes[8..16].copy_from_slice(&export.addr.get().to_le_bytes());
    bytes[16..].copy_from_slice(&export.len.to_le_bytes());
    bytes
}

fn parse_exports(entries: &[u8]) -> Result<Vec<RemoteExport>, AnnounceError> {
    let parse = |(entry, bytes): (usize, &[u8; EXPORT_BYTES])| {
        let (addr, len) = (VirtAddr::new(u64_at(bytes, 8)), u64_at(bytes, 16));
        // Only the address range is checked. The local key does not matter here.
        let region = Region::new(addr, len, Lkey::from_raw(0));
        if region.is_err() || bytes[4..8] != [0; 4] {
            return Err(AnnounceError::Content {
                entry,
                what: "no region",
            });
        }
        Ok(RemoteExport {
            mkey: Mkey::from_raw(u32_at(bytes, 0)),
            addr,
            len,
        })
    };
    entries
        .as_chunks()
        .0
        .iter()
        .enumerate()
        .map(parse)
        .collect()
}

/// An inbox that accepts each message once.
#[derive(Debug)]
pub struct Inbox {
    seal: Seal,
    seen: ReplayFilter,
}

impl Inbox {
    /// An inbox for messages with this seal.
    #[must_use]
    pub fn new(seal: Seal) -> Self {
        Self {
            seal,
            seen: ReplayFilter::default(),
        }
    }

    /// Decodes a message and records its sequence number.
    ///
    /// # Errors
    /// If the bytes are no announcement, are damaged, come from another job, or are not newer than
    /// an earlier message of the owner.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Announcement, AnnounceError> {
        let announcement = Announcement::parse(bytes, &self.seal)?;
        self.accept(announcement)
    }

    /// Like [`Inbox::receive`], for messages that `sender` sends about its own keys.
    ///
    /// # Errors
    /// The errors of [`Inbox::receive`], and [`AnnounceError::Owner`].
    pub fn receive_from(
        &mut self,
        bytes: &[u8],
        sender: OwnerUuid,
    ) -> Result<Announcement, AnnounceError> {
        let announcement = Announcement::parse(bytes, &self.seal)?;
        let owner = announcement.owner;
        if owner != sender {
            return Err(AnnounceError::Owner { owner, sender });
        }
        self.accept(announcement)
    }

    fn accept(&mut self, announcement: Announcement) -> Result<Announcement, AnnounceError> {
        let Announcement {
            owner, sequence, ..
        } = announcement;
        match self.seen.judge(owner, sequence) {
            News::New => {}
            News::Repeated => return Err(replayed(owner, sequence, sequence)),
            News::Old(seen) => return Err(replayed(owner, sequence, seen)),
            News::TooManyOwners => return Err(AnnounceError::Owners),
        }
        Ok(announcement)
    }

    /// Removes an owner that is known to be dead.
    pub fn forget(&mut self, owner: OwnerUuid) {
        self.seen.forget(owner);
    }
}

const fn replayed(owner: OwnerUuid, sequence: u64, seen: u64) -> AnnounceError {
    AnnounceError::Replayed {
        owner,
        sequence,
        seen,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Tag;
    use crate::secret::Secret;

    fn key(index: u32, tag: u8) -> Mkey {
        Mkey::new(MkeyIndex::new(index).expect("24 bits"), Tag::new(tag))
    }

    fn announcement(body: Body) -> Announcement {
        Announcement {
            gvmi: Gvmi::new(0x0102),
            owner: OwnerUuid::new(0x1122_3344_5566_7788),
            sequence: 9,
            body,
        }
    }

    #[track_caller]
    fn check(body: Body, len: usize) {
        let announcement = announcement(body);
        let bytes = announcement.to_bytes(&Seal::OPEN);
        assert_eq!(bytes.len(), HEAD_BYTES + len + Seal::BYTES);
        assert_eq!(Announcement::parse(&bytes, &Seal::OPEN), Ok(announcement));
    }

    fn exports() -> Body {
        let export = |number: u32| RemoteExport {
            mkey: key(number, 251),
            addr: VirtAddr::new(0x7000_0000 + (u64::from(number) << 12)),
            len: 0x1000,
        };
        Body::Exports((1..4).map(export).collect())
    }

    #[test]
    fn a_message_reads_as_it_was_written() {
        check(Body::Keys(vec![]), 0);
        check(
            Body::Keys((5..4101).map(|index| key(index, 251)).collect()),
            8,
        );
        let broken = [(1, 7), (1, 251), (2, 251), (4, 251)].map(|(index, tag)| key(index, tag));
        check(Body::Keys(broken.to_vec()), 3 * 8);
        check(exports(), 3 * 24);
    }

    #[test]
    fn the_format_is_that_of_version_1() {
        let bytes = announcement(Body::Keys(vec![key(2, 251), key(1, 251)])).to_bytes(&Seal::OPEN);
        let mut expect = b"XGVMIANN\x01\0\x02\x01\x01\0\0\0".to_vec();
        expect.extend([
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 9, 0, 0, 0, 0, 0, 0, 0,
        ]);
        expect.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        expect.extend([0xfb, 1, 0, 0, 2, 0, 0, 0]);
        assert_eq!(bytes[..bytes.len() - Seal::BYTES], expect);
    }

    /// A message that was modified and sealed again. Only a member of the job can do this.
    fn forged(
        body: Body,
        change: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Announcement, AnnounceError> {
        let mut bytes = announcement(body).to_bytes(&Seal::OPEN);
        bytes.truncate(bytes.len() - Seal::BYTES);
        change(&mut bytes);
        bytes.extend(Seal::OPEN.of(&bytes));
        Announcement::parse(&bytes, &Seal::OPEN)
    }

    #[test]
    fn a_message_that_makes_no_sense_is_refused() {
        let keys = || Body::Keys(vec![key(0xff_fffe, 251), key(0xff_ffff, 251)]);
        assert!(forged(keys(), |_| ()).is_ok());
        let content = |result| matches!(result, Err(AnnounceError::Content { .. }));
        assert!(
            content(forged(keys(), |bytes| bytes[12] = 3)),
            "a kind that is not known"
        );
        assert!(content(forged(keys(), |bytes| bytes[13] = 1)), "no zero");
        assert!(
            content(forged(keys(), |bytes| bytes[44] = 3)),
            "an index of 25 bits"
        );
        assert!(
            content(forged(keys(), |bytes| bytes[44] = 0)),
            "an empty run"
        );
        assert!(
            content(forged(keys(), |bytes| bytes[47] = 1)),
            "millions of keys"
        );
        assert!(
            content(forged(exports(), |bytes| bytes[56..64].fill(0))),
            "an empty region"
        );
        assert!(
            content(forged(exports(), |bytes| bytes[56..64].fill(255))),
            "a region too long"
        );
        let version = forged(keys(), |bytes| bytes[8] = 2);
        assert_eq!(version, Err(AnnounceError::Version { version: 2 }));
        let length = |result| matches!(result, Err(AnnounceError::Length { .. }));
        assert!(
            length(forged(keys(), |bytes| bytes[32..36].fill(255))),
            "entries without end"
        );
        assert!(
            length(forged(keys(), |bytes| bytes.push(0))),
            "something behind it"
        );
    }

    #[test]
    fn every_damage_and_every_cut_is_found() {
        let bytes = announcement(exports()).to_bytes(&Seal::OPEN);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(
                Announcement::parse(&damaged, &Seal::OPEN).is_err(),
                "byte {at}"
            );
            assert!(
                Announcement::parse(&bytes[..at], &Seal::OPEN).is_err(),
                "{at} bytes"
            );
        }
    }

    #[test]
    fn another_jobs_message_is_refused() {
        let secret = |byte| Secret::new(&[byte; 32]).expect("long enough");
        let bytes = announcement(exports()).to_bytes(&secret(1).seal());
        let parse = |seal: &Seal| Announcement::parse(&bytes, seal);
        assert!(parse(&secret(1).seal()).is_ok());
        assert_eq!(parse(&secret(2).seal()), Err(AnnounceError::Seal));
        assert_eq!(parse(&Seal::OPEN), Err(AnnounceError::Seal));
    }

    #[test]
    fn a_message_is_taken_in_once() {
        let mut inbox = Inbox::new(Seal::OPEN);
        let message = |sequence, owner| {
            let announcement = Announcement {
                sequence,
                owner,
                ..announcement(exports())
            };
            announcement.to_bytes(&Seal::OPEN)
        };
        let [a, b] = [1, 2].map(OwnerUuid::new);
        assert!(inbox.receive(&message(5, a)).is_ok());
        let replayed = AnnounceError::Replayed {
            owner: a,
            sequence: 5,
            seen: 5,
        };
        assert_eq!(inbox.receive(&message(5, a)), Err(replayed));
        assert!(inbox.receive(&message(4, a)).is_err());
        assert!(inbox.receive(&message(6, a)).is_ok());
        assert!(
            inbox.receive(&message(1, b)).is_ok(),
            "each owner counts for itself"
        );
        inbox.forget(a);
        assert!(inbox.receive(&message(1, a)).is_ok());
    }
}
