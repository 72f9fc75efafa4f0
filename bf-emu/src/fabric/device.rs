//! The mapped device file and its lock.
//!
//! The file is sparse: a table uses memory only for slots that were ever used.

use std::fs::{File, OpenOptions};
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::counters::Counters;
use super::error::FabricError;
use super::limits::PROCESSES_MAX;
use super::lock::{Holder, SharedMutex, Taken};
use super::port::{Identity, PortStates};
use super::tables::{Common, Function};
use super::text::{text, text_bytes};
use super::{link, rules, trace};
use crate::bits::size;
use crate::memory::Exclusive;
use crate::model::faults::{RULES_MAX, Rule};
use crate::model::profile::ProfileTable;
use crate::model::topology::{FUNCTIONS_MAX, PORTS_MAX, Topology};
use crate::sys::{self, Errno};

const MAGIC: u64 = u64::from_be_bytes(*b"bf-emu\0\x01");
const FILE_NAME: &str = "device";
const PROFILE_NAME_MAX: usize = 64;

/// The head of the file: constant once made, or atomic.
#[derive(Debug)]
#[repr(C)]
struct Head {
    magic: u64,
    /// Sizes of a function's tables, the head and what is common, to know a file of another build.
    layout: [u64; 3],
    functions: usize,
    next_context: AtomicU32,
    next_uar: AtomicU32,
    /// Deaths in the middle of a change, each repaired.
    repairs: AtomicU64,
    /// Faults in force: none is the case that must cost nothing.
    faults: AtomicU32,
    /// Not 0 once a completion queue had moderation.
    moderates: AtomicU32,
    profile_name: [u8; PROFILE_NAME_MAX],
    profile: ProfileTable,
    lock: SharedMutex,
    /// Held by a thread of each process for as long as its program runs.
    lives: [SharedMutex; PROCESSES_MAX],
    /// Counts what that thread was woken for.
    ticks: [AtomicU32; PROCESSES_MAX],
    identities: [Identity; FUNCTIONS_MAX],
    counters: [Counters; FUNCTIONS_MAX],
    links: [[link::Port; PORTS_MAX]; FUNCTIONS_MAX],
    port_states: PortStates,
    trace: trace::Ring,
}

const PAGE: usize = 4096;
const HEAD_BYTES: usize = size_of::<Head>().next_multiple_of(PAGE);
const COMMON_BYTES: usize = size_of::<Common>().next_multiple_of(PAGE);
const FUNCTION_BYTES: usize = size_of::<Function>().next_multiple_of(PAGE);
const LAYOUT: [u64; 3] = [
    FUNCTION_BYTES as u64,
    HEAD_BYTES as u64,
    COMMON_BYTES as u64,
];

/// Ends what a process that died with the lock was doing to queues of others. Called with the lock held
/// and the tables repaired. Async-signal-safe.
pub type Recovery = fn(&mut Locked<'_>);

/// The mapped device.
#[derive(Debug)]
pub struct Fabric {
    base: NonNull<u8>,
    bytes: usize,
    path: PathBuf,
    recovery: Recovery,
}

// SAFETY: the mapping stays until drop and belongs to no thread; its contents are reached through
// atomics, constants and the lock.
unsafe impl Send for Fabric {}
// SAFETY: as above.
unsafe impl Sync for Fabric {}

impl Drop for Fabric {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length and nobody else unmaps it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl Fabric {
    /// Makes the device of a topology in directory `state`, or checks that the one there is the
    /// same. `recovery` is the engine's part of a repair: see `engine::create`.
    ///
    /// # Errors
    /// The file cannot be made, or describes another device.
    pub fn create(
        state: &Path,
        topology: &Topology,
        (profile, profile_name): (&ProfileTable, &str),
        recovery: Recovery,
    ) -> Result<Self, FabricError> {
        let path = state.join(FILE_NAME);
        if path.exists() {
            let fabric = Self::open(state, recovery)?;
            fabric.check_same(topology, profile, profile_name)?;
            return Ok(fabric);
        }
        // Made under another name and renamed, so that nobody ever opens half a device.
        let draft = state.join(format!("{FILE_NAME}.{}", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft)
            .map_err(|source| FabricError::Io {
                call: "create",
                path: draft.clone(),
                source,
            })?;
        let functions = topology.functions();
        let bytes = HEAD_BYTES + COMMON_BYTES + functions.len() * FUNCTION_BYTES;
        file.set_len(bytes as u64)
            .map_err(|source| FabricError::Io {
                call: "extend",
                path: draft.clone(),
                source,
            })?;
        let fabric = Self::map(&file, bytes, (path.clone(), recovery))?;
        // SAFETY: the file is new and has no name that others know: this process alone sees the
        // head, and all zeroes is a valid one.
        let head = unsafe { fabric.base.cast::<Head>().as_mut() };
        head.layout = LAYOUT;
        head.functions = functions.len();
        head.profile = *profile;
        head.profile_name = text_bytes(profile_name);
        for (identity, spec) in head.identities.iter_mut().zip(functions) {
            *identity = Identity::new(spec);
        }
        head.next_context = AtomicU32::new(1);
        head.next_uar = AtomicU32::new(1);
        // SAFETY: nobody else knows of the mutex yet.
        unsafe { head.lock.init() }.map_err(|errno| FabricError::Io {
            call: "make the lock of",
            path: draft.clone(),
            source: errno.into(),
        })?;
        head.magic = MAGIC;
        std::fs::rename(&draft, &path).map_err(|source| FabricError::Io {
            call: "name",
            path: path.clone(),
            source,
        })?;
        Ok(fabric)
    }

    /// Opens the device in directory `state`. `recovery` is the engine's part of a repair: see
    /// `engine::open`.
    ///
    /// # Errors
    /// There is none, or it is of another version.
    pub fn open(state: &Path, recovery: Recovery) -> Result<Self, FabricError> {
        let path = state.join(FILE_NAME);
        let io = |call, source| FabricError::Io {
            call,
            path: path.clone(),
            source,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|source| io("open", source))?;
        let bytes = file.metadata().map_err(|source| io("stat", source))?.len();
        let bytes = size(bytes);
        if bytes < HEAD_BYTES + COMMON_BYTES {
            return Err(FabricError::Layout { path });
        }
        let fabric = Self::map(&file, bytes, (path.clone(), recovery))?;
        let head = fabric.head();
        let functions = head.functions;
        let same = head.magic == MAGIC
            && head.layout == LAYOUT
            && functions <= FUNCTIONS_MAX
            && bytes == HEAD_BYTES + COMMON_BYTES + functions * FUNCTION_BYTES;
        if same {
            Ok(fabric)
        } else {
            Err(FabricError::Layout { path })
        }
    }

    fn map(
        file: &File,
        bytes: usize,
        (path, recovery): (PathBuf, Recovery),
    ) -> Result<Self, FabricError> {
        // The interposed mmap of the process may be hooked by others: ask the kernel.
        // SAFETY: a new shared mapping of a file that we have open, at an address of the kernel's
        // choice.
        let base = unsafe {
            libc::syscall(
                libc::SYS_mmap,
                std::ptr::null_mut::<u8>(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0u64,
            )
        };
        match usize::try_from(base)
            .ok()
            .and_then(|base| NonNull::new(base as *mut u8))
        {
            Some(base) => Ok(Self {
                base,
                bytes,
                path,
                recovery,
            }),
            None => Err(FabricError::Io {
                call: "map",
                path,
                source: std::io::Error::last_os_error(),
            }),
        }
    }

    fn check_same(
        &self,
        topology: &Topology,
        profile: &ProfileTable,
        profile_name: &str,
    ) -> Result<(), FabricError> {
        let mismatch = |there: String, asked: String| {
            Err(FabricError::Mismatch {
                path: self.path.clone(),
                there,
                asked,
            })
        };
        let names = |names: &mut dyn Iterator<Item = &str>| {
            format!("functions {}", names.collect::<Vec<_>>().join(","))
        };
        let there = names(&mut self.identities().iter().map(Identity::name));
        let asked = names(&mut topology.functions().iter().map(|spec| spec.name.as_str()));
        if there != asked {
            return mismatch(there, asked);
        }
        if self.profile() != profile {
            return mismatch(
                format!("profile {}", self.profile_name()),
                format!("profile {profile_name}"),
            );
        }
        Ok(())
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with a head, page-aligned, that nobody changes after it was
        // made but through its atomics and its mutex.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    /// The states of all ports.
    pub(super) fn port_states(&self) -> &PortStates {
        &self.head().port_states
    }

    /// The ports of adapters, by their first function.
    pub(super) fn links(&self) -> &[[link::Port; PORTS_MAX]; FUNCTIONS_MAX] {
        &self.head().links
    }

    /// The device file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The functions, in the order of their indices.
    #[must_use]
    pub fn identities(&self) -> &[Identity] {
        let head = self.head();
        &head.identities[..head.functions.min(FUNCTIONS_MAX)]
    }

    /// What identifies a function.
    #[must_use]
    pub fn identity(&self, function: usize) -> Option<&Identity> {
        self.identities().get(function)
    }

    /// Names of the functions.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.identities().iter().map(Identity::name).collect()
    }

    /// True if some fault on purpose is in force.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        self.head().faults.load(Ordering::Relaxed) != 0
    }

    /// True if some completion queue has, or had, moderation.
    #[must_use]
    pub(crate) fn has_moderated(&self) -> bool {
        self.head().moderates.load(Ordering::Relaxed) != 0
    }

    /// Notes that a completion queue has moderation.
    pub(crate) fn moderates(&self) {
        self.head().moderates.store(1, Ordering::Relaxed);
    }

    /// Index of the function of this name.
    #[must_use]
    pub fn function_index(&self, name: &str) -> Option<usize> {
        self.identities()
            .iter()
            .position(|identity| identity.name() == name)
    }

    /// Index of the function with this gvmi.
    #[must_use]
    pub fn function_of_vhca(&self, vhca_id: u16) -> Option<usize> {
        self.identities()
            .iter()
            .position(|identity| identity.vhca_id == vhca_id)
    }

    /// Counters of a function. Not guarded by the lock.
    #[must_use]
    pub fn counters(&self, function: usize) -> &Counters {
        &self.head().counters[function.min(FUNCTIONS_MAX - 1)]
    }

    /// What happened lately. Not guarded by the lock.
    #[must_use]
    pub fn trace(&self) -> &trace::Ring {
        &self.head().trace
    }

    /// The cost profile in force.
    #[must_use]
    pub fn profile(&self) -> &ProfileTable {
        &self.head().profile
    }

    /// Its name.
    #[must_use]
    pub fn profile_name(&self) -> &str {
        text(&self.head().profile_name)
    }

    /// Deaths in the middle of a change that were repaired.
    #[must_use]
    pub fn repairs(&self) -> u64 {
        self.head().repairs.load(Ordering::Relaxed)
    }

    /// Whether the program of the process in this slot of the table still runs: dead if it has
    /// ended, nobody if it has not said so yet. Async-signal-safe.
    pub(crate) fn life(&self, slot: u32) -> Option<Holder> {
        self.head()
            .lives
            .get(slot as usize)
            .map(SharedMutex::holder)
    }

    /// Makes a process that took a slot of the table one that has not said that it lives.
    ///
    /// # Errors
    /// The C library's.
    pub(crate) fn renew_life(&self, locked: &Locked<'_>, slot: u32) -> Result<(), Errno> {
        let _ = locked;
        match self.head().lives.get(slot as usize) {
            // SAFETY: the slot is the calling process's, whose thread does not hold it yet; those
            // who look do so under the lock that the caller holds.
            Some(life) => unsafe { life.init() },
            None => Ok(()),
        }
    }

    /// What the thread of the process in this slot sleeps on.
    #[must_use]
    pub(crate) fn tick(&self, slot: u32) -> Option<&AtomicU32> {
        self.head().ticks.get(slot as usize)
    }

    /// Says that the process in this slot lives, until the calling thread ends.
    pub(crate) fn live(&self, slot: u32) {
        if let Some(life) = self.head().lives.get(slot as usize) {
            life.lock();
        }
    }

    /// A number for a new context.
    #[must_use]
    pub fn next_context(&self) -> u32 {
        self.head().next_context.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a new UAR page.
    #[must_use]
    pub fn next_uar(&self) -> u32 {
        self.head().next_uar.fetch_add(1, Ordering::Relaxed) & 0x00ff_ffff
    }

    /// Takes the device's lock. The calling thread must not hold it, and must have signals held
    /// back, or a handler that posts would wait for itself.
    #[must_use]
    pub fn lock(&self) -> Locked<'_> {
        let taken = self.head().lock.lock();
        let mut locked = Locked {
            fabric: self,
            _not_send: PhantomData,
        };
        if taken == Taken::OwnerDied {
            self.head().repairs.fetch_add(1, Ordering::Relaxed);
            locked.recover();
        }
        locked
    }
}

/// The device with its lock held.
#[derive(Debug)]
pub struct Locked<'a> {
    fabric: &'a Fabric,
    // A mutex is given back by the thread that took it.
    _not_send: PhantomData<*mut ()>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread took the lock in `Fabric::lock` or `Locked::pause`.
        unsafe { self.fabric.head().lock.unlock() };
    }
}

// SAFETY: one thread at a time holds the lock.
unsafe impl Exclusive for Locked<'_> {}

impl<'a> Locked<'a> {
    /// The device.
    #[must_use]
    pub fn fabric(&self) -> &'a Fabric {
        self.fabric
    }

    /// Number of the calling thread, which holds the lock.
    #[must_use]
    pub(crate) fn thread(&self) -> u32 {
        self.fabric.head().lock.thread()
    }

    /// Lets others have the lock for a moment. What was read before may have changed.
    pub fn pause(&mut self) {
        // SAFETY: this thread holds the lock, and holds it again before anything else happens.
        unsafe { self.fabric.head().lock.unlock() };
        if self.fabric.head().lock.lock() == Taken::OwnerDied {
            self.fabric.head().repairs.fetch_add(1, Ordering::Relaxed);
            self.recover();
        }
    }

    /// As [`Locked::pause`], until a time.
    pub(crate) fn pause_until(&mut self, until_ns: u64) {
        // SAFETY: as there.
        unsafe { self.fabric.head().lock.unlock() };
        sys::wait_until(until_ns);
        if self.fabric.head().lock.lock() == Taken::OwnerDied {
            self.fabric.head().repairs.fetch_add(1, Ordering::Relaxed);
            self.recover();
        }
    }

    /// Puts right what a holder of the lock left that died in the middle of a change.
    fn recover(&mut self) {
        self.repair();
        (self.fabric.recovery)(self);
    }

    /// What every function shares.
    #[must_use]
    pub fn common(&mut self) -> &mut Common {
        let at = self.fabric.base.as_ptr().wrapping_byte_add(HEAD_BYTES);
        // SAFETY: the mapping has a `Common` there, page-aligned; all zeroes is a valid one. The
        // lock keeps every other thread and process away, and the borrow of `self` this one.
        unsafe { &mut *at.cast::<Common>() }
    }

    /// The objects of a function.
    ///
    /// # Panics
    /// Never in practice: indices come from [`Fabric::identities`] and stored numbers are checked
    /// against it.
    #[must_use]
    pub fn function(&mut self, index: usize) -> &mut Function {
        // SAFETY: the lock keeps others away, and the borrow of `self` this thread.
        unsafe { &mut *self.function_ptr(index) }
    }

    /// The objects of a function, to be read.
    #[must_use]
    pub fn peek(&self, index: usize) -> &Function {
        // SAFETY: the lock keeps others away; nobody changes it while `self` is borrowed.
        unsafe { &*self.function_ptr(index) }
    }

    fn function_ptr(&self, index: usize) -> *mut Function {
        let index = index.min(self.fabric.identities().len().saturating_sub(1));
        let offset = HEAD_BYTES + COMMON_BYTES + index * FUNCTION_BYTES;
        // The mapping has as many functions as identities, each page-aligned and all zeroes at
        // first, which is a valid one.
        self.fabric
            .base
            .as_ptr()
            .wrapping_byte_add(offset)
            .cast::<Function>()
    }

    /// Puts faults on purpose in force, for one process or, with 0, for all: all of them or, if there
    /// is no room, none. Returns whether there was.
    pub fn arm_faults(&mut self, process: u32, rules: &[Rule]) -> bool {
        let table = &mut self.common().faults;
        if table.live() as usize + rules.len() > RULES_MAX {
            return false;
        }
        for rule in rules {
            // Cannot fail: there is room.
            let _ = rules::arm(table, process, *rule);
        }
        self.count_faults();
        true
    }

    /// Takes faults out of force that `wanted` accepts by number. Returns how many.
    pub fn disarm_faults(&mut self, wanted: impl Fn(u32) -> bool) -> usize {
        let mut gone = 0;
        let mut from = 0;
        while let Some(index) = self.common().faults.next(from, |_, _| true) {
            from = index + 1;
            if wanted(index) && self.common().faults.remove(index).is_some() {
                gone += 1;
            }
        }
        self.count_faults();
        gone
    }

    pub(super) fn count_faults(&mut self) {
        let live = self.common().faults.live();
        self.fabric.head().faults.store(live, Ordering::Relaxed);
    }

    /// Number of the process that owns an object; None if it is gone.
    #[must_use]
    pub fn pid(&self, process: u32) -> Option<i32> {
        let at = self.fabric.base.as_ptr().wrapping_byte_add(HEAD_BYTES);
        // SAFETY: as in `common`, read only.
        let common = unsafe { &*at.cast::<Common>() };
        let slot = process.checked_sub(1)?;
        let pid = common.processes.get(slot).map(|process| process.pid);
        // Its number may be another's by now.
        pid.filter(|_| self.fabric.life(slot) != Some(Holder::Dead))
    }
}

#[cfg(test)]
mod tests {
    use super::super::port::Place;
    use super::*;

    const PROFILE: (&ProfileTable, &str) = (&ProfileTable::NONE, "none");

    #[test]
    fn a_device_is_made_once_and_checked_after() {
        let dir = tempfile::tempdir().unwrap();
        let two = Topology::with_nodes(2).unwrap();
        let fabric = Fabric::create(dir.path(), &two, PROFILE, |_| {}).unwrap();
        assert_eq!(fabric.function_index("node1.dpu"), Some(3));
        let identity = fabric.identity(3).unwrap();
        let place = Some(Place {
            function: 3,
            port: 1,
        });
        assert_eq!(fabric.port_of_lid(identity.lid(1)), place);
        assert_eq!(fabric.port_of_gid(&identity.gid(1)), place);
        assert_eq!((identity.lid(2), fabric.port_of_lid(0)), (0, None));
        Fabric::create(dir.path(), &two, PROFILE, |_| {}).unwrap();
        let one = Topology::with_nodes(1).unwrap();
        let error = Fabric::create(dir.path(), &one, PROFILE, |_| {}).unwrap_err();
        assert!(error.to_string().contains("bf-emu reset"), "{error}");
    }

    #[test]
    fn a_file_of_another_layout_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for bytes in [0, 5, HEAD_BYTES + COMMON_BYTES] {
            std::fs::write(dir.path().join(FILE_NAME), vec![0xffu8; bytes]).unwrap();
            let error = Fabric::open(dir.path(), |_| {}).unwrap_err();
            assert!(
                matches!(error, FabricError::Layout { .. }),
                "{bytes}: {error}"
            );
        }
    }

    #[test]
    fn a_new_device_takes_little_memory() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let topology = Topology::with_nodes(4).unwrap();
        let fabric = Fabric::create(dir.path(), &topology, PROFILE, |_| {}).unwrap();
        let mut locked = fabric.lock();
        for function in 0..8 {
            assert_eq!(locked.function(function).mkeys.live(), 0);
        }
        drop(locked);
        let blocks = std::fs::metadata(fabric.path()).unwrap().blocks();
        assert!(blocks * 512 < 2 << 20, "{blocks} blocks of 512 bytes");
    }
}
