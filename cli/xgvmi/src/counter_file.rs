//! Reads the counters that the library publishes for each process, from a self-describing file in
//! shared memory. See `uct-plugin/src/counter_file.rs`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

/// `xgvmi st`, read as a word.
const MAGIC: u64 = u64::from_ne_bytes(*b"xgvmi st");
const FORMAT: u64 = 2;
/// Maximum size of a file. The library writes about 64 KiB.
const BYTES_MAX: u64 = 1 << 20;
/// Bytes of a word.
const WORD: usize = 8;

/// One process that uses the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u64,
    /// Version of the library in that process.
    pub(crate) version: String,
    /// Memory domains without a slot in the file.
    pub(crate) unlisted: u64,
    pub(crate) domains: Vec<Domain>,
}

/// One memory domain: names and counters, in the order of the file.
pub(crate) type Domain = Vec<(String, u64)>;

/// Reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CounterFileError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: not written by this version of the library", path.display())]
    Form { path: PathBuf },
}

/// The directory of this user's processes.
pub(crate) fn default_dir() -> PathBuf {
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    PathBuf::from(format!("/dev/shm/xgvmi-{user}"))
}

/// All live processes, sorted by process number, and the files that could not be read.
pub(crate) fn processes(dir: &Path) -> (Vec<Process>, Vec<CounterFileError>) {
    let (mut processes, mut errors) = (Vec::new(), Vec::new());
    // Without a directory no process uses the library.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match read(&entry.path()) {
            Ok(Some(process)) => processes.push(process),
            Ok(None) => {}
            Err(error) => errors.push(error),
        }
    }
    processes.sort_by_key(|process| process.pid);
    (processes, errors)
}

/// The process of a file. `None` if it is dead or has not yet published its counters.
fn read(path: &Path) -> Result<Option<Process>, CounterFileError> {
    let failed = |source| CounterFileError::Read {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        // The process has just ended.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    if !is_alive(&file) {
        return Ok(None);
    }
    // The words of one call have no order on Arm: what is read after the magic was written before it.
    let mut magic = [0; WORD];
    file.read_at(&mut magic, 0).map_err(failed)?;
    fence(Ordering::Acquire);
    if magic == [0; WORD] {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    let form = || CounterFileError::Form {
        path: path.to_owned(),
    };
    parse(&bytes).ok_or_else(form).map(Some)
}

/// A live process holds a lock on its file.
fn is_alive(file: &File) -> bool {
    // SAFETY: the descriptor is open. If this call gets the lock, closing the descriptor releases
    // it.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) != 0 }
}

fn parse(bytes: &[u8]) -> Option<Process> {
    let head = |at: usize| word(bytes, at);
    if head(0)? != MAGIC || head(1)? != FORMAT {
        return None;
    }
    let size = |at: usize| usize::try_from(head(at)?).ok();
    let text = |at: usize, length: usize| {
        let text = bytes.get(at..at.checked_add(length)?)?;
        std::str::from_utf8(text).ok()
    };
    let version = text(size(3)?, size(4)?)?;
    let names: Vec<&str> = text(size(5)?, size(6)?)?.lines().collect();
    let (slots_at, slot_words, slots) = (size(7)?, size(8)?, size(9)?);
    let mut domains = Vec::new();
    let slot_bytes = slot_words.checked_mul(WORD)?;
    let all = bytes.get(slots_at..slots_at.checked_add(slot_bytes.checked_mul(slots)?)?)?;
    if slot_bytes == 0 {
        return None;
    }
    for slot in all.chunks_exact(slot_bytes) {
        if word(slot, 0)? == 0 {
            continue;
        }
        // A number may have several words.
        let mut numbers: Vec<(String, u64)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (at, name) in (1..).zip(&names).filter(|(_, name)| !name.is_empty()) {
            let Some(word) = word(slot, at) else {
                break;
            };
            let place = *places.entry(*name).or_insert(numbers.len());
            match numbers.get_mut(place) {
                Some((_, sum)) => *sum = sum.wrapping_add(word),
                None => numbers.push(((*name).to_owned(), word)),
            }
        }
        domains.push(numbers);
    }
    Some(Process {
        pid: head(2)?,
        version: version.to_owned(),
        unlisted: head(10)?,
        domains,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at * WORD..at * WORD + WORD)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A file that uses two of three slots.
    pub(crate) fn file(pid: u64) -> Vec<u8> {
        let (version, names) = ("0.1.0", "gvmi\nexports\n\nexports\npool_hits");
        let slots_at = 128 + (version.len() + names.len()).next_multiple_of(WORD);
        let lengths = [version.len(), names.len()].map(|length| length as u64);
        let names_at = 128 + lengths[0];
        let mut words = vec![MAGIC, FORMAT, pid, 128, lengths[0], names_at, lengths[1]];
        words.extend([slots_at as u64, 6, 3, 2]);
        words.resize(16, 0);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(version.bytes().chain(names.bytes()));
        bytes.resize(slots_at, 0);
        let slots = [[1, 7, 30, 5, 10, 39], [0; 6], [1, 8, 2, 0, 0, 1_u64]];
        bytes.extend(slots.iter().flatten().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn a_file_describes_itself() {
        let process = parse(&file(4711)).expect("a counter file");
        assert_eq!((process.pid, process.unlisted), (4711, 2));
        assert_eq!(process.version, "0.1.0");
        let number = |name: &str, number| (name.to_owned(), number);
        let first = vec![
            number("gvmi", 7),
            number("exports", 40),
            number("pool_hits", 39),
        ];
        assert_eq!(process.domains[0], first);
        assert_eq!(process.domains.len(), 2);
    }

    #[test]
    fn no_file_is_believed() {
        let good = file(1);
        for length in [0, 7, 8, 127, 140, good.len() - 1] {
            assert_eq!(parse(&good[..length]), None, "{length}");
        }
        for at in 0..16 {
            for value in [0, 1 << 20, u64::MAX] {
                let mut bad = good.clone();
                bad[at * WORD..at * WORD + WORD].copy_from_slice(&value.to_ne_bytes());
                // A wrong number in the file neither panics nor allocates more memory than the file
                // size.
                let _parsed = parse(&bad);
            }
        }
    }

    #[test]
    fn only_the_living_are_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("4711");
        fs::write(&path, file(4711)).expect("a file");
        assert!(processes(dir.path()).0.is_empty());
        let owner = File::open(&path).expect("the file");
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::flock(owner.as_raw_fd(), libc::LOCK_EX) }, 0);
        let (alive, errors) = processes(dir.path());
        assert_eq!((alive.len(), errors.len()), (1, 0));
        fs::write(&path, b"something else").expect("a file");
        let (alive, errors) = processes(dir.path());
        assert_eq!((alive.len(), errors.len()), (0, 1));
        assert!(processes(&dir.path().join("none")).0.is_empty());
    }
}
