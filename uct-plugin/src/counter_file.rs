//! The counter file: a small file in shared memory with this process's counters, for `xgvmi stat`. No
//! thread maintains it, and readers need no cooperation: exports, imports and releases count in
//! place.
//!
//! The file is `/dev/shm/xgvmi-<user id>/<process id>`, with access for its user only. Its process
//! holds a lock on it. Readers and later processes detect with the lock that it is alive. It is
//! removed at exit. The file describes itself in 64-bit words of the machine: magic, format,
//! process id; offset and length in bytes of the version's text and of the names, one per line;
//! offset of the first slot, words per slot, number of slots; number of memory domains without a
//! slot. A slot belongs to one memory domain. It consists of a word that is nonzero while the slot
//! is in use, and one word per name. The number of a name is the sum of its words; words of an empty
//! name are unused. Exports and releases have further words for the first threads of the process: each
//! is written by one thread, without a locked instruction, and shares its cache line with no other
//! thread's.
//!
//! A forked child closes the descriptor of its parent's file at once, so it does not keep the lock.
//! If the child itself uses UCX, it creates a file of its own.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use xgvmi_pool::{AliasStats, PoolStats};

use crate::{config, forked, log};

/// `xgvmi st`, read as a word.
const MAGIC: u64 = u64::from_ne_bytes(*b"xgvmi st");
/// Format version, raised when the head changes. New names need no new format.
const FORMAT: u64 = 2;
/// Words of the head; the last ones are spare.
const HEAD_WORDS: usize = 16;
/// Word of the head that counts memory domains without a slot.
const UNLISTED: usize = 10;
/// Maximum number of slots: 16 devices with one memory domain for InfiniBand and one for GGA.
const SLOTS: usize = 32;
/// Maximum number of files per sweep of the directory. The next process sweeps the rest.
const SWEPT_MAX: usize = 1024;
/// Maximum number of tried names: several containers may use the same process number.
const NAMES_MAX: usize = 8;

/// Interval of the pool's and map's own counters: far longer than their summation takes, far
/// shorter than a reader's interval.
const RENEWAL: Duration = Duration::from_millis(10);
/// After the first events of a kind, only one of this many reads the clock for that, because
/// reading it takes as long as the rest of a release. The counters may therefore lag by this many
/// events.
const EVENTS_PER_LOOK: u64 = 64;

/// The counted events, in the order of the slots' words.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The pool served an export.
    Export = 2,
    /// UCX handled an export.
    ExportLeft,
    /// The alias map served an import.
    Import,
    /// UCX handled an import.
    ImportLeft,
    /// A served export was released.
    Release,
    /// A released key may still work until UCX has deregistered the memory.
    ReleaseFailed,
    /// A served import was released.
    ImportReleased,
}

impl Event {
    /// The event of a release, also of one at the close of its memory domain.
    pub(crate) const fn of_release(is_done: bool) -> Self {
        match is_done {
            true => Self::Release,
            // The key becomes invalid with the registration, which UCX removes next.
            false => Self::ReleaseFailed,
        }
    }

    /// Index of the event among those that have a word for each thread.
    #[inline(always)]
    const fn lane_place(self) -> Option<usize> {
        match self {
            Self::Export => Some(0),
            Self::Release => Some(1),
            _ => None,
        }
    }
}

/// Names of the slots' first words; the pool's and the map's follow.
const OWN_NAMES: [&str; 9] = [
    "gvmi",
    "renewed_ns",
    "exports",
    "exports_left",
    "imports",
    "imports_left",
    "releases",
    "releases_failed",
    "imports_released",
];
/// Words of a cache line; of two lines on aarch64, where some systems transfer both at once.
const LINE_WORDS: usize = if cfg!(target_arch = "aarch64") { 16 } else { 8 };
/// Threads with words of their own.
pub(crate) const LANES: usize = 16;
/// Words of a slot before the lines of the threads, with the first word.
const LANES_AT: usize = (1 + OWN_NAMES.len()).next_multiple_of(LINE_WORDS);
/// Words of a slot before the pool's and the map's.
const VALUES_AT: usize = LANES_AT + LANES * LINE_WORDS;
/// The events that have a word for each thread, in the order of these words.
const LANE_EVENTS: [Event; 2] = [Event::Export, Event::Release];

/// Word of the slot, after the first, with the monotonic time of the last update.
const RENEWED: usize = 1;

/// This process's file. Null if there is none yet.
static CURRENT: AtomicPtr<CounterFile> = AtomicPtr::new(null_mut());

/// Set if the file cannot be created. This process does not try again.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Descriptor that holds the lock on this process's file; -1 if there is none.
static LOCKED: AtomicI32 = AtomicI32::new(-1);

/// The mapped file.
#[derive(Debug)]
struct CounterFile {
    /// [`forked::generation`] of its process.
    generation: u32,
    words: NonNull<u64>,
    /// Index of the first slot's first word.
    slots_at: usize,
    slot_words: usize,
    path: PathBuf,
    taken: Mutex<[bool; SLOTS]>,
    /// Bytes of the mapping.
    bytes: usize,
    /// Holds the lock.
    file: File,
}

// SAFETY: the words are only accessed atomically, and the mapping is never removed.
unsafe impl Send for CounterFile {}
// SAFETY: as above.
unsafe impl Sync for CounterFile {}

/// A memory domain's slot of the counter file. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    file: &'static CounterFile,
    at: usize,
}

/// Counters of a memory domain: in the counter file if it has a slot, otherwise in this structure.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counts {
    /// The first of the words; null until the first event.
    words: AtomicPtr<AtomicU64>,
    slot: OnceLock<Option<Slot>>,
    here: Here,
}

/// Words as in the counter file, up to the pool's.
#[derive(Debug)]
#[repr(align(64))]
struct Here([AtomicU64; VALUES_AT]);

impl Default for Here {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; VALUES_AT])
    }
}

impl Counts {
    /// Counts an event of the thread with this number, which no other living thread has. True if the
    /// other counters need an update.
    ///
    /// `words` is [`Counts::words`], which the caller keeps where it reads it with other data.
    #[inline(always)]
    pub(crate) fn count(&self, words: *mut AtomicU64, event: Event, thread: usize) -> bool {
        let before = match event.lane_place() {
            Some(place) if thread < LANES => {
                // SAFETY: that many words are there; see `word`.
                let word = unsafe { &*words.add(LANES_AT + thread * LINE_WORDS + place) };
                // Only this thread writes the word.
                let before = word.load(Ordering::Relaxed);
                word.store(before + 1, Ordering::Relaxed);
                before
            }
            _ => self.event(event).fetch_add(1, Ordering::Relaxed),
        };
        before < EVENTS_PER_LOOK || before.is_multiple_of(EVENTS_PER_LOOK)
    }

    /// Count of an event.
    pub(crate) fn get(&self, event: Event) -> u64 {
        let shared = self.event(event).load(Ordering::Relaxed);
        let Some(place) = event.lane_place() else {
            return shared;
        };
        let of = |lane| self.word(LANES_AT + lane * LINE_WORDS + place);
        shared
            + (0..LANES)
                .map(|lane| of(lane).load(Ordering::Relaxed))
                .sum::<u64>()
    }

    /// Updates the pool's and the map's counters, if the interval has passed.
    pub(crate) fn renew(
        &self,
        gvmi: Option<u16>,
        pool: impl FnOnce() -> PoolStats,
        aliases: impl FnOnce() -> AliasStats,
    ) {
        if let Some(Some(slot)) = self.slot.get() {
            slot.renew(gvmi, pool, aliases);
        }
    }

    /// The word of an event that all threads share.
    #[inline]
    fn event(&self, event: Event) -> &AtomicU64 {
        self.word(1 + event as usize)
    }

    /// A word of the slot, below [`VALUES_AT`].
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        let words = self.words();
        debug_assert!(at < VALUES_AT);
        // SAFETY: that many words are in this structure, or in the counter file, which is never unmapped;
        // they are accessed only atomically.
        unsafe { &*words.add(at) }
    }

    /// The first of the words.
    pub(crate) fn words(&self) -> *mut AtomicU64 {
        let words = self.words.load(Ordering::Acquire);
        match words.is_null() {
            false => words,
            true => self.find_words(),
        }
    }

    #[cold]
    fn find_words(&self) -> *mut AtomicU64 {
        let here = self.here.0.as_ptr().cast_mut();
        let words = match self.slot.get_or_init(slot) {
            Some(slot) => slot.words(),
            None => here,
        };
        self.words.store(words, Ordering::Release);
        words
    }
}

/// A slot for a memory domain, unless the option disables it, the file cannot be created, or all
/// slots are in use.
fn slot() -> Option<Slot> {
    if !config::get().stats {
        return None;
    }
    current()?.slot()
}

/// This process's file, created at the first call. Takes no lock, because a thread of the parent
/// could hold it at a fork.
fn current() -> Option<&'static CounterFile> {
    let found = CURRENT.load(Ordering::Acquire);
    // SAFETY: files are never freed after their publication.
    if let Some(file) = unsafe { found.as_ref() } {
        return Some(file);
    }
    if HAS_FAILED.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    let dir = PathBuf::from(format!("/dev/shm/xgvmi-{user}"));
    let file = match CounterFile::make(&dir, user) {
        Ok(file) => file,
        Err(error) => {
            HAS_FAILED.store(true, Ordering::Relaxed);
            log::diag!("no counters for xgvmi stat, {}: {error}", dir.display());
            return None;
        }
    };
    let locked = file.file.as_raw_fd();
    let new = Box::into_raw(Box::new(file));
    match CURRENT.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            LOCKED.store(locked, Ordering::Release);
            // SAFETY: as above.
            unsafe { new.as_ref() }
        }
        Err(first) => {
            // SAFETY: it came from Box::into_raw above and was not published.
            unsafe { Box::from_raw(new) }.discard();
            // SAFETY: as above.
            unsafe { first.as_ref() }
        }
    }
}

/// Runs when the process ends.
pub(crate) fn remove() {
    // SAFETY: files are never freed after their publication. A child has no file of its parent.
    if let Some(file) = unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        // The next process sweeps files that cannot be removed now. There is time for that here.
        let _removed = fs::remove_file(&file.path);
        if let Some(dir) = file.path.parent() {
            sweep(dir);
        }
    }
}

impl Slot {
    /// The words of the slot.
    fn words(&self) -> *mut AtomicU64 {
        std::ptr::from_ref(self.file.slot_word(self.at, 0)).cast_mut()
    }

    fn renew(
        &self,
        gvmi: Option<u16>,
        pool: impl FnOnce() -> PoolStats,
        aliases: impl FnOnce() -> AliasStats,
    ) {
        let Some(renewed) = self.value(RENEWED) else {
            return;
        };
        let (now, before) = (now_ns(), renewed.load(Ordering::Relaxed));
        let age = u128::from(now.saturating_sub(before));
        let is_mine = || {
            let order = Ordering::Relaxed;
            renewed.compare_exchange(before, now, order, order).is_ok()
        };
        if before != 0 && age < RENEWAL.as_nanos() || !is_mine() {
            return;
        }
        if let (Some(gvmi), Some(word)) = (gvmi, self.value(0)) {
            word.store(gvmi.into(), Ordering::Relaxed);
        }
        let values = pool().each().chain(aliases().each());
        for (at, (_name, value)) in (VALUES_AT - 1..).zip(values) {
            if let Some(word) = self.value(at) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// A word after the first; `None` in a child.
    fn value(&self, at: usize) -> Option<&AtomicU64> {
        if !self.file.is_own() {
            return None;
        }
        Some(self.file.slot_word(self.at, 1 + at))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.file.is_own() {
            return;
        }
        for at in 0..self.file.slot_words {
            self.file.slot_word(self.at, at).store(0, Ordering::Relaxed);
        }
        let mut taken = self
            .file
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        taken[self.at] = false;
    }
}

impl CounterFile {
    fn make(dir: &Path, user: u32) -> io::Result<Self> {
        own_directory(dir, user)?;
        let (file, path) = create(dir)?;
        let names = names();
        let version = env!("CARGO_PKG_VERSION");
        // Whole cache lines: the lines of the threads are aligned in each slot.
        let slot_words = (1 + names.lines().count()).next_multiple_of(LINE_WORDS);
        let text_at = HEAD_WORDS * 8;
        let names_at = text_at + version.len();
        let slots_at = (names_at + names.len()).next_multiple_of(8 * LINE_WORDS);
        let bytes = slots_at + SLOTS * slot_words * 8;
        if let Err(error) = reserve(&file, bytes) {
            let _removed = fs::remove_file(&path);
            return Err(error);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let words = unsafe {
            libc::mmap(
                null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if words == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            let _removed = fs::remove_file(&path);
            return Err(error);
        }
        let text = words.cast::<u8>();
        for (at, part) in [(text_at, version), (names_at, &names)] {
            // SAFETY: the mapping has the length that was computed from the same parts, and no
            // process reads it before the magic is written.
            unsafe {
                text.add(at)
                    .copy_from_nonoverlapping(part.as_ptr(), part.len())
            };
        }
        let file = Self {
            generation: forked::generation(),
            slots_at: slots_at / 8,
            words: NonNull::new(words.cast()).ok_or_else(io::Error::last_os_error)?,
            slot_words,
            path,
            taken: Mutex::new([false; SLOTS]),
            bytes,
            file,
        };
        let head = [
            FORMAT,
            std::process::id().into(),
            text_at as u64,
            version.len() as u64,
            names_at as u64,
            names.len() as u64,
            slots_at as u64,
            slot_words as u64,
            SLOTS as u64,
        ];
        for (at, value) in (1..).zip(head) {
            file.word(at).store(value, Ordering::Relaxed);
        }
        if !forked::watch(in_child) {
            file.discard();
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        file.word(0).store(MAGIC, Ordering::Release);
        Ok(file)
    }

    /// Removes a file that no other thread has seen.
    fn discard(self) {
        let _removed = fs::remove_file(&self.path);
        // SAFETY: the mapping is this value's own, and nothing refers to it.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.bytes) };
    }

    /// False in a child of the process that created the file.
    fn is_own(&self) -> bool {
        self.generation == forked::generation()
    }

    fn slot(&'static self) -> Option<Slot> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = taken.iter().position(|taken| !taken) else {
            self.word(UNLISTED).fetch_add(1, Ordering::Relaxed);
            return None;
        };
        taken[at] = true;
        self.slot_word(at, 0).store(1, Ordering::Release);
        Some(Slot { file: self, at })
    }

    fn slot_word(&self, slot: usize, at: usize) -> &AtomicU64 {
        let first = self.slots_at;
        self.word(first + slot * self.slot_words + at)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: all callers stay within the head and the slots, for which the mapping was made;
        // it is aligned and never removed, and the words are accessed only atomically.
        unsafe { AtomicU64::from_ptr(self.words.as_ptr().add(at)) }
    }
}

/// The counters belong to the parent, and its lock must end with it.
fn in_child() {
    let locked = LOCKED.swap(-1, Ordering::Relaxed);
    if locked >= 0 {
        // SAFETY: the descriptor is a copy of the parent's. The file's structure is never dropped.
        unsafe { libc::close(locked) };
    }
    CURRENT.store(null_mut(), Ordering::Relaxed);
    HAS_FAILED.store(false, Ordering::Relaxed);
}

/// Gives the file its length and its memory. Without the memory, for example in a full `/dev/shm`,
/// the first store to the mapping would end the process.
fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    let bytes = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// All names of a slot's words after the first, one per line.
fn names() -> String {
    let mut names: Vec<String> = OWN_NAMES.map(str::to_owned).to_vec();
    names.resize(LANES_AT - 1, String::new());
    for lane in 1..=LANES {
        names.extend(LANE_EVENTS.map(|event| OWN_NAMES[event as usize].to_owned()));
        names.resize(LANES_AT - 1 + lane * LINE_WORDS, String::new());
    }
    names.extend(
        PoolStats::default()
            .each()
            .map(|(name, _)| format!("pool_{name}")),
    );
    names.extend(
        AliasStats::default()
            .each()
            .map(|(name, _)| format!("alias_{name}")),
    );
    names.join("\n")
}

/// Checks a directory that no other user can write to, and creates it if necessary.
fn own_directory(dir: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Any user may create a directory, or a link, with this name.
    let metadata = fs::symlink_metadata(dir)?;
    if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o077 != 0 {
        return Err(io::Error::other("is not a directory of this user's alone"));
    }
    Ok(())
}

/// Creates this process's file and locks it.
fn create(dir: &Path) -> io::Result<(File, PathBuf)> {
    let pid = std::process::id();
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for at in 0..NAMES_MAX {
        let path = match at {
            0 => dir.join(pid.to_string()),
            at => dir.join(format!("{pid}.{at}")),
        };
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(0o600);
        match options.open(&path) {
            Ok(file) if lock(&file) => return Ok((file, path)),
            Ok(_swept_at_once) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Removes the files of dead processes.
fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten().take(SWEPT_MAX) {
        let path = entry.path();
        if File::open(&path).is_ok_and(|file| lock(&file)) {
            // Another process may have been faster.
            let _removed = fs::remove_file(&path);
        }
    }
}

/// True if no other process has locked the file. The lock lasts until the file is closed.
fn lock(file: &File) -> bool {
    // SAFETY: the descriptor is open.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Monotonic time, equal in all processes, never zero.
fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is ours; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let ns = now
        .tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec);
    u64::try_from(ns).expect("the clock starts at zero").max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> u32 {
        // SAFETY: geteuid has no preconditions.
        unsafe { libc::geteuid() }
    }

    /// The word of a name in a slot, read from the file like an external reader.
    fn read(path: &Path, slot: usize, name: &str) -> u64 {
        let bytes = fs::read(path).expect("the file");
        let word = |at: usize| {
            let bytes = bytes[8 * at..8 * at + 8].try_into().expect("a word");
            usize::try_from(u64::from_ne_bytes(bytes)).expect("it fits")
        };
        assert_eq!(word(0) as u64, MAGIC);
        let names = std::str::from_utf8(&bytes[word(5)..word(5) + word(6)]).expect("names");
        let places = names.lines().enumerate().filter(|(_, line)| *line == name);
        let words = places.map(|(at, _)| word(word(7) / 8 + slot * word(8) + 1 + at) as u64);
        words.reduce(|sum, word| sum + word).expect(name)
    }

    #[test]
    fn every_release_is_counted() {
        let counts = Counts::default();
        counts.slot.set(None).expect("not set");
        for is_done in [true, false, true] {
            let _due = counts.count(counts.words(), Event::of_release(is_done), 0);
        }
        let of = |event| counts.get(event);
        assert_eq!((of(Event::Release), of(Event::ReleaseFailed)), (2, 1));
    }

    #[test]
    fn without_a_slot_events_are_counted_all_the_same() {
        let counts = Counts::default();
        counts.slot.set(None).expect("not set");
        let looks = (0..1024)
            .filter(|_| counts.count(counts.words(), Event::Release, 3))
            .count();
        assert_eq!(counts.get(Event::Release), 1024);
        assert_eq!(counts.get(Event::Export), 0);
        // Every one of the first events, and one of every further 64.
        assert_eq!(looks, 64 + 15);
    }

    #[test]
    fn numbers_stand_in_the_file_and_go_with_their_slot() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().join("counters");
        let file = Box::leak(Box::new(
            CounterFile::make(&dir, user()).expect("a counter file"),
        ));
        let path = file.path.clone();
        let first = file.slot().expect("a slot");
        let second = Counts::default();
        second.slot.set(file.slot()).expect("not set");
        // The first and the last thread with a word of its own, and two without one.
        for thread in [0, LANES - 1, LANES, usize::MAX] {
            let _due = second.count(second.words(), Event::Export, thread);
        }
        let _due = second.count(second.words(), Event::ReleaseFailed, 0);
        let pool = || {
            let mut stats = PoolStats::default();
            stats.hits = 5;
            stats
        };
        let aliases = || {
            let mut stats = AliasStats::default();
            stats.aliases = 9;
            stats
        };
        assert_eq!(second.get(Event::Export), 4);
        let words = second.words.load(Ordering::Relaxed);
        assert!(
            words.addr().is_multiple_of(64),
            "each thread's words are a line"
        );
        second.renew(Some(7), pool, aliases);
        // Before the interval has passed, nothing is computed.
        second.renew(Some(7), || unreachable!(), || unreachable!());
        for (name, expect) in [
            ("gvmi", 7),
            ("exports", 4),
            ("exports_left", 0),
            ("releases_failed", 1),
            ("pool_hits", 5),
            ("alias_aliases", 9),
        ] {
            assert_eq!(read(&path, 1, name), expect, "{name}");
            assert_eq!(read(&path, 0, name), 0, "{name}");
        }
        assert!(read(&path, 1, "renewed_ns") > 0);
        drop(second);
        assert_eq!(read(&path, 1, "exports"), 0);
        drop(first);
        let all: Vec<_> = (0..SLOTS).map(|_| file.slot().expect("a slot")).collect();
        assert!(file.slot().is_none());
        assert_eq!(file.word(UNLISTED).load(Ordering::Relaxed), 1);
        drop(all);
        assert!(file.slot().is_some());
    }

    #[test]
    fn only_what_the_dead_have_left_is_swept() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().join("counters");
        own_directory(&dir, user()).expect("a new directory");
        fs::write(dir.join("4000000"), "left behind").expect("a file");
        let (alive, path) = create(&dir).expect("a file");
        let (other, second) = create(&dir).expect("a second name");
        assert_ne!(path, second);
        drop(other);
        sweep(&dir);
        assert!(path.is_file());
        assert!(!second.exists() && !dir.join("4000000").exists());
        drop(alive);
        sweep(&dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = tempfile::tempdir().expect("a directory");
        let dir = place.path().join("open");
        fs::create_dir(&dir).expect("a directory");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).expect("its mode");
        assert!(own_directory(&dir, user()).is_err());
        assert!(own_directory(&dir, user() + 1).is_err());
        let link = place.path().join("link");
        std::os::unix::fs::symlink(place.path(), &link).expect("a link");
        assert!(own_directory(&link, user()).is_err());
    }
}
