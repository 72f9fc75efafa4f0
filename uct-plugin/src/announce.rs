//! Announced keys: messages between the programs of a job, sent over their own connection. The DPU
//! creates the aliases of a host's pooled keys before the first import of them.
//!
//! # Message, version 1
//! All numbers are little-endian.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `XGVMIALL` |
//! | 8 | 2 | version, 1 |
//! | 10 | 2 | parts, one for each memory domain |
//! | 12 | 4 | bytes of the message |
//!
//! A part:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 32 | adapter, as UCX compares it |
//! | 32 | 1 | bytes of an exported key: 6, or 14 with its exporter's number |
//! | 33 | 3 | zero |
//! | 36 | 4 | bytes that follow |
//! | 40 | | the pool's announcement, under the job's seal; see `xgvmi-pool` |
//!
//! The bytes outside the sealed announcements only determine the memory domains on which aliases
//! are created. A modification in transit costs time at the first imports and has no other effect.

use std::sync::Mutex;

use once_cell::race::OnceBox;

use xgvmi_pool::{AnnounceError, Announcement, News, OwnerUuid, RemoteKey, ReplayFilter, Seal};

use crate::check::{Adapter, KeyForm};
use crate::{config, domains, forked, log};

const MAGIC: &[u8; 8] = b"XGVMIALL";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 16;
const PART_BYTES: usize = Adapter::BYTES + 8;

/// Maximum number of memory domains in one message: the number that a process serves.
const PARTS_MAX: usize = domains::MDS_MAX;

/// Number of keys in an announced pool if the program names none, unless `UCX_XGVMI_POOL_INIT` is
/// larger. With fewer keys the first exports would use unannounced keys. One chain of requests binds
/// this number.
pub(crate) const KEYS_MIN: u32 = 64;

/// Accepted messages.
static SEEN: OnceBox<Mutex<ReplayFilter>> = OnceBox::new();

/// Reason why a message cannot be written or accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum AnnounceFailure {
    /// No memory domain can announce, or none can create an alias.
    #[error("no memory domain is served in this process")]
    NobodyServed,
    /// Not a message, or a damaged one.
    #[error("byte {at} of a message of {bytes}: {what}")]
    Form {
        /// Offset.
        at: usize,
        /// Length of the message.
        bytes: usize,
        /// The problem at that offset.
        what: &'static str,
    },
    /// The announcement of one memory domain is not authentic.
    #[error("part {part}: {source}")]
    Part {
        /// Number of the part.
        part: usize,
        /// The problem.
        source: AnnounceError,
    },
}

/// Maximum number of keys of a message, unless `UCX_XGVMI_ALIAS_MAX` is above it: one pool of the
/// largest size.
const KEYS_MAX: usize = 1 << 20;

/// One memory domain's part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    adapter: Adapter,
    form: KeyForm,
    announcement: Announcement,
}

/// Writes a message with all keys of all pools of this process and first creates missing keys,
/// which takes hundreds of microseconds per key. `keys` is the number to which each pool is filled.
pub(crate) fn announce(keys: u32) -> Result<Vec<u8>, AnnounceFailure> {
    let options = config::get();
    let mut parts = Vec::new();
    domains::each(|md| {
        if let Some(announcement) = md.announcement(options.pool_init().max(keys)) {
            parts.push(Part {
                adapter: md.adapter(),
                form: md.key_form(),
                announcement,
            });
        }
    });
    if parts.is_empty() {
        return Err(AnnounceFailure::NobodyServed);
    }
    Ok(write(&parts, options.seal()))
}

/// Creates aliases of all keys in a message, on each memory domain of their adapter. Returns the
/// number of aliases. A message that is older than an accepted one of the same sender has no
/// effect.
pub(crate) fn accept(message: &[u8]) -> Result<usize, AnnounceFailure> {
    let options = config::get();
    let keys_max = KEYS_MAX.max(options.aliases_max() as usize);
    let mut parts = read(message, options.seal(), keys_max)?;
    parts.retain(|part| is_news(part.announcement.owner, part.announcement.sequence));
    let (mut ready, mut served) = (0, 0);
    domains::each(|md| {
        served += 1;
        for part in parts.iter().filter(|part| part.adapter == md.adapter()) {
            let keys = keys_as_imported(part, md.key_form());
            ready += md.make_aliases(&keys);
        }
    });
    if served == 0 {
        return Err(AnnounceFailure::NobodyServed);
    }
    Ok(ready)
}

/// The keys in the form of imports on a memory domain with this key format: without the exporter
/// unless both ends know exporters.
fn keys_as_imported(part: &Part, form: KeyForm) -> Vec<RemoteKey> {
    let named = part.form == KeyForm::Long && form == KeyForm::Long;
    let owner = |key: &RemoteKey| if named { key.owner } else { OwnerUuid::new(0) };
    let keys = part.announcement.keys();
    keys.map(|key| RemoteKey {
        owner: owner(&key),
        ..key
    })
    .collect()
}

/// False for a message that is older than an accepted one of the same sender. The last one may be
/// repeated, as when a process has several connections.
fn is_news(owner: OwnerUuid, sequence: u64) -> bool {
    let seen = SEEN.get_or_init(Box::default);
    // A child has no memory domains of its parent's.
    let Some(mut seen) = forked::lock(seen) else {
        return false;
    };
    let mut news = seen.judge(owner, sequence);
    if news == News::TooManyOwners {
        // An old message could cause evictions again.
        seen.clear();
        news = seen.judge(owner, sequence);
    }
    match news {
        News::New | News::Repeated => true,
        News::Old(last) => {
            log::debug!("announcement {sequence} of an exporter comes after {last}");
            false
        }
        News::TooManyOwners => false,
    }
}

fn write(parts: &[Part], seal: &Seal) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(MAGIC);
    message.extend(VERSION.to_le_bytes());
    let count = u16::try_from(parts.len()).expect("at most PARTS_MAX parts");
    message.extend(count.to_le_bytes());
    message.extend([0; 4]);
    for part in parts {
        let bytes = part.announcement.to_bytes(seal);
        message.extend(part.adapter.0);
        message.extend([if part.form == KeyForm::Long { 14 } else { 6 }, 0, 0, 0]);
        let length = u32::try_from(bytes.len()).expect("at most 2^20 keys of 8 bytes");
        message.extend(length.to_le_bytes());
        message.extend(bytes);
    }
    let bytes = u32::try_from(message.len()).expect("at most PARTS_MAX parts of 2^23 bytes");
    message[12..HEAD_BYTES].copy_from_slice(&bytes.to_le_bytes());
    message
}

fn read(message: &[u8], seal: &Seal, keys_max: usize) -> Result<Vec<Part>, AnnounceFailure> {
    let bytes = message.len();
    let wrong = |at, what| AnnounceFailure::Form { at, bytes, what };
    let Some((head, mut rest)) = message.split_first_chunk::<HEAD_BYTES>() else {
        return Err(wrong(0, "too short for a message"));
    };
    if &head[..8] != MAGIC {
        return Err(wrong(0, "no message of this library"));
    }
    let word = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if word(8) != VERSION {
        return Err(wrong(8, "another version of the format"));
    }
    let count = usize::from(word(10));
    if count > PARTS_MAX {
        return Err(wrong(10, "more parts than a process has memory domains"));
    }
    let said = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
    if usize::try_from(said) != Ok(bytes) {
        return Err(wrong(12, "another length than the message has"));
    }
    let mut parts = Vec::with_capacity(count);
    let mut keys = 0;
    for part in 0..count {
        let at = bytes - rest.len();
        let Some((head, behind)) = rest.split_first_chunk::<PART_BYTES>() else {
            return Err(wrong(at, "a part that is cut off"));
        };
        let (adapter, words) = head.split_at(Adapter::BYTES);
        let mut name = [0; Adapter::BYTES];
        name.copy_from_slice(adapter);
        let form = match words[..4] {
            [6, 0, 0, 0] => KeyForm::Short,
            [14, 0, 0, 0] => KeyForm::Long,
            _ => return Err(wrong(at + Adapter::BYTES, "keys of an unknown form")),
        };
        let length = u32::from_le_bytes([words[4], words[5], words[6], words[7]]);
        let own = usize::try_from(length).ok();
        let Some((own, behind)) = own.and_then(|length| behind.split_at_checked(length)) else {
            return Err(wrong(at + Adapter::BYTES + 4, "longer than what is left"));
        };
        let announcement = Announcement::parse(own, seal);
        let announcement = announcement.map_err(|source| AnnounceFailure::Part { part, source })?;
        // A few bytes can stand for many keys.
        keys += announcement.keys().count();
        if keys > keys_max {
            return Err(wrong(at, "more keys than all pools and alias maps have"));
        }
        parts.push(Part {
            adapter: Adapter(name),
            form,
            announcement,
        });
        rest = behind;
    }
    if rest.is_empty() {
        Ok(parts)
    } else {
        Err(wrong(bytes - rest.len(), "more than the parts that it has"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xgvmi_pool::{Body, Gvmi, Mkey, Secret};

    fn part(name: u8, form: KeyForm, keys: &[u32]) -> Part {
        Part {
            adapter: Adapter([name; Adapter::BYTES]),
            form,
            announcement: Announcement {
                gvmi: Gvmi::new(7),
                owner: OwnerUuid::new(99),
                sequence: 3,
                body: Body::Keys(keys.iter().map(|&raw| Mkey::from_raw(raw)).collect()),
            },
        }
    }

    fn message() -> (Vec<Part>, Vec<u8>) {
        let parts = vec![
            part(1, KeyForm::Long, &[0x01fb, 0x02fb, 0x10fb]),
            part(2, KeyForm::Short, &[0x05fb]),
        ];
        let bytes = write(&parts, &Seal::OPEN);
        (parts, bytes)
    }

    fn read(message: &[u8], seal: &Seal) -> Result<Vec<Part>, AnnounceFailure> {
        super::read(message, seal, KEYS_MAX)
    }

    /// A message without a seal: each part of a few bytes stands for as many keys as a pool can have.
    #[test]
    fn a_short_message_cannot_stand_for_millions_of_keys() {
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").expect("a file");
            let pages = statm
                .split(' ')
                .nth(1)
                .and_then(|pages| pages.parse::<usize>().ok());
            pages.expect("a number") * 4096
        };
        let seal = Seal::OPEN;
        let keys: Vec<u32> = (0..1_u32 << 20).map(|index| index << 8 | 251).collect();
        let one = part(1, KeyForm::Long, &keys);
        let single = write(&[one], &seal);
        assert!(single.len() < 256, "{} bytes", single.len());
        assert!(read(&single, &seal).is_ok());
        // The same part as often as a message may have it.
        let mut message = single[..HEAD_BYTES].to_vec();
        let body = &single[HEAD_BYTES..];
        (0..PARTS_MAX).for_each(|_| message.extend(body));
        let count = u16::try_from(PARTS_MAX).expect("a small number");
        message[10..12].copy_from_slice(&count.to_le_bytes());
        let bytes = u32::try_from(message.len()).expect("a small number");
        message[12..HEAD_BYTES].copy_from_slice(&bytes.to_le_bytes());
        let before = resident();
        let error = read(&message, &seal).expect_err("too many keys");
        assert!(error.to_string().contains("more keys than"), "{error}");
        let more = resident().saturating_sub(before);
        assert!(
            more < 64 << 20,
            "{more} bytes for a message of {}",
            message.len()
        );
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let (parts, bytes) = message();
        assert_eq!(read(&bytes, &Seal::OPEN), Ok(parts));
        assert_eq!(read(&write(&[], &Seal::OPEN), &Seal::OPEN), Ok(vec![]));
    }

    #[test]
    fn no_message_is_believed() {
        let (parts, good) = message();
        for length in 0..good.len() {
            assert!(read(&good[..length], &Seal::OPEN).is_err(), "{length}");
        }
        let mut long = good.clone();
        long.push(0);
        assert!(read(&long, &Seal::OPEN).is_err());
        for at in 0..good.len() {
            for value in [0, 1, 0xff] {
                let mut bad = good.clone();
                if bad[at] == value {
                    continue;
                }
                bad[at] = value;
                // Any adapter name is valid; the format byte has two valid values.
                let only_the_name_differs = read(&bad, &Seal::OPEN).is_ok_and(|read| {
                    let keys = |parts: &[Part]| -> Vec<_> {
                        parts
                            .iter()
                            .map(|part| (part.form, part.announcement.clone()))
                            .collect()
                    };
                    keys(&read) == keys(&parts)
                });
                let in_a_name = |first: usize| (first..first + Adapter::BYTES).contains(&at);
                let second =
                    HEAD_BYTES + PART_BYTES + parts[0].announcement.to_bytes(&Seal::OPEN).len();
                let expect = in_a_name(HEAD_BYTES) || in_a_name(second);
                assert_eq!(only_the_name_differs, expect, "byte {at} as {value}");
            }
        }
    }

    #[test]
    fn another_jobs_message_is_refused() {
        let seal = |text: &str| Secret::new(text.as_bytes()).expect("a secret").seal();
        let (ours, theirs) = (seal("0123456789abcdef"), seal("fedcba9876543210"));
        let (parts, _) = message();
        let bytes = write(&parts, &theirs);
        assert_eq!(read(&bytes, &theirs), Ok(parts));
        for wrong in [ours, Seal::OPEN] {
            let error = read(&bytes, &wrong).expect_err("another seal");
            let source = AnnounceError::Seal;
            assert_eq!(error, AnnounceFailure::Part { part: 0, source });
        }
    }

    #[test]
    fn keys_are_named_as_an_import_names_them() {
        for (exporter, importer, owner) in [
            (KeyForm::Long, KeyForm::Long, 99),
            (KeyForm::Long, KeyForm::Short, 0),
            (KeyForm::Short, KeyForm::Long, 0),
            (KeyForm::Short, KeyForm::Short, 0),
        ] {
            let keys = keys_as_imported(&part(1, exporter, &[0x01fb]), importer);
            assert_eq!(keys.len(), 1);
            assert_eq!((keys[0].owner.get(), keys[0].gvmi.get()), (owner, 7));
        }
    }

    #[test]
    fn an_older_message_is_no_news() {
        let owner = OwnerUuid::new(0x6e65_7773);
        for (sequence, expect) in [(5, true), (5, true), (4, false), (6, true), (5, false)] {
            assert_eq!(is_news(owner, sequence), expect, "{sequence}");
        }
    }
}
