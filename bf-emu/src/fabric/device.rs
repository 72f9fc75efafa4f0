//! The mapped device file.
//!
//! The file is sparse: a table uses memory only for slots that were ever used.

use std::fs::{File, OpenOptions};
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::cards::{CardLocks, CardMap, Cards};
use super::carrier::Carrier;
use super::counters::Counters;
use super::error::FabricError;
use super::flow::Shared;
use super::limits::PROCESSES_MAX;
use super::lock::{Holder, SharedMutex};
use super::port::{Identity, PortStates};
use super::tables::{Common, Function};
use super::text::{text, text_bytes};
use super::{link, rules, trace};
use crate::bits::size;
use crate::model::faults::{RULES_MAX, Rule};
use crate::model::profile::ProfileTable;
use crate::model::topology::{FUNCTIONS_MAX, PORTS_MAX, Topology};
use crate::sys::{self, Errno, steps::step};

const MAGIC: u64 = u64::from_be_bytes(*b"bf-emu\0\x01");
const FILE_NAME: &str = "device";
const PROFILE_NAME_MAX: usize = 64;

/// The header of the file: constant after its creation, or atomic.
#[derive(Debug)]
#[repr(C)]
struct Head {
    magic: u64,
    /// Sizes of a function's tables, the header and the common state. They detect a file of another
    /// build.
    layout: [u64; 3],
    functions: usize,
    next_context: AtomicU32,
    next_uar: AtomicU32,
    /// Number of repairs after a death during a change.
    repairs: AtomicU64,
    /// Number of active faults. Zero keeps the common case free of cost.
    faults: AtomicU32,
    /// Not 0 after any completion queue had moderation.
    moderates: AtomicU32,
    profile_name: [u8; PROFILE_NAME_MAX],
    profile: ProfileTable,
    locks: CardLocks,
    /// A thread of each process holds its mutex while the program runs.
    lives: [SharedMutex; PROCESSES_MAX],
    /// Wake-up counter of each process's thread.
    ticks: [AtomicU32; PROCESSES_MAX],
    /// Processor on which each process last rang a doorbell, plus 1.
    processors: [AtomicU32; PROCESSES_MAX],
    identities: [Identity; FUNCTIONS_MAX],
    counters: [Counters; FUNCTIONS_MAX],
    links: [[link::Port; PORTS_MAX]; FUNCTIONS_MAX],
    port_states: PortStates,
    congestion: Shared,
    carrier: Carrier,
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

/// Finishes the changes to other processes' queues that a dead holder of a lock began. The caller
/// holds all locks and has repaired the tables. Async-signal-safe.
pub type Recovery = fn(&mut Locked<'_>);

/// The mapped device.
#[derive(Debug)]
pub struct Fabric {
    base: NonNull<u8>,
    bytes: usize,
    path: PathBuf,
    recovery: Recovery,
    cards: CardMap,
}

// SAFETY: the mapping stays until drop and belongs to no thread. Its contents are accessed through
// atomics, constants and the lock.
unsafe impl Send for Fabric {}
// SAFETY: as above.
unsafe impl Sync for Fabric {}

impl Drop for Fabric {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping with this length, and no other code unmaps it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl Fabric {
    /// Creates the device of a topology in directory `state`, or checks that the existing one is
    /// the same. `recovery` is the engine's part of a repair: see `engine::create`.
    ///
    /// # Errors
    /// The file cannot be created, or describes another device.
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
        // Created under a temporary name and renamed, so no process opens an incomplete device.
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
        let mut fabric = Self::map(&file, bytes, (path.clone(), recovery))?;
        // SAFETY: the file is new and other processes do not know its name. Only this process sees
        // the header, and all zeroes is a valid header.
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
        // SAFETY: no other thread knows the locks yet.
        unsafe { head.locks.init() }.map_err(|errno| FabricError::Io {
            call: "make the locks of",
            path: draft.clone(),
            source: errno.into(),
        })?;
        // SAFETY: as above.
        unsafe { head.carrier.init() }.map_err(|errno| FabricError::Io {
            call: "make the locks of",
            path: draft.clone(),
            source: errno.into(),
        })?;
        head.magic = MAGIC;
        fabric.cards = CardMap::new(fabric.identities());
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
    /// No device exists there, or it has another version.
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
        let mut fabric = Self::map(&file, bytes, (path.clone(), recovery))?;
        let head = fabric.head();
        let functions = head.functions;
        let same = head.magic == MAGIC
            && head.layout == LAYOUT
            && functions <= FUNCTIONS_MAX
            && bytes == HEAD_BYTES + COMMON_BYTES + functions * FUNCTION_BYTES;
        if same {
            fabric.cards = CardMap::new(fabric.identities());
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
        // The process's mmap may be interposed, so the system call is used directly.
        // SAFETY: a new shared mapping of a file that is open here, at an address of the kernel's
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
                cards: CardMap::new(&[]),
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
        // SAFETY: the mapping begins with a page-aligned header. After its creation it changes only
        // through its atomics and its mutexes.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    /// The locks of all cards.
    pub(super) fn locks(&self) -> &CardLocks {
        &self.head().locks
    }

    /// The cards of the functions.
    pub(super) fn cards(&self) -> &CardMap {
        &self.cards
    }

    /// Counts a repair after a death during a change.
    pub(super) fn count_repair(&self) {
        self.head().repairs.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the processor of the process in this slot.
    pub(crate) fn set_processor(&self, slot: u32, processor: u32) {
        // Written only on a change, because the peer reads it at each doorbell.
        if let Some(own) = self.head().processors.get(slot as usize)
            && own.load(Ordering::Relaxed) != processor.wrapping_add(1)
        {
            own.store(processor.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// True if the process in this slot last rang a doorbell on this processor.
    pub(crate) fn was_on(&self, slot: u32, processor: u32) -> bool {
        let last = self.head().processors.get(slot as usize);
        last.is_some_and(|last| last.load(Ordering::Relaxed) == processor.wrapping_add(1))
    }

    /// The states of all ports.
    pub(super) fn port_states(&self) -> &PortStates {
        &self.head().port_states
    }

    /// The ports of adapters, by their first function.
    pub(super) fn links(&self) -> &[[link::Port; PORTS_MAX]; FUNCTIONS_MAX] {
        &self.head().links
    }

    /// Congestion control.
    pub(super) fn congestion(&self) -> &Shared {
        &self.head().congestion
    }

    /// The process that carries requests to other machines.
    pub(super) fn carrier(&self) -> &Carrier {
        &self.head().carrier
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

    /// The identity of a function.
    #[must_use]
    pub fn identity(&self, function: usize) -> Option<&Identity> {
        self.identities().get(function)
    }

    /// Names of the functions.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.identities().iter().map(Identity::name).collect()
    }

    /// True if a fault rule is active.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        self.head().faults.load(Ordering::Relaxed) != 0
    }

    /// True if any completion queue has or had moderation.
    #[must_use]
    pub(crate) fn has_moderated(&self) -> bool {
        self.head().moderates.load(Ordering::Relaxed) != 0
    }

    /// Records that a completion queue has moderation.
    pub(crate) fn moderates(&self) {
        self.head().moderates.store(1, Ordering::Relaxed);
    }

    /// Index of the function with this name.
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

    /// Counters of a function. The lock does not protect them.
    #[must_use]
    pub fn counters(&self, function: usize) -> &Counters {
        &self.head().counters[function.min(FUNCTIONS_MAX - 1)]
    }

    /// The trace. The lock does not protect it.
    #[must_use]
    pub fn trace(&self) -> &trace::Ring {
        &self.head().trace
    }

    /// The active cost profile.
    #[must_use]
    pub fn profile(&self) -> &ProfileTable {
        &self.head().profile
    }

    /// Name of the active cost profile.
    #[must_use]
    pub fn profile_name(&self) -> &str {
        text(&self.head().profile_name)
    }

    /// Number of repairs after a death during a change.
    #[must_use]
    pub fn repairs(&self) -> u64 {
        self.head().repairs.load(Ordering::Relaxed)
    }

    /// State of the program in this slot of the process table: `Dead` if it has ended, `Nobody` if
    /// its thread does not hold the mutex yet. Async-signal-safe.
    pub(crate) fn life(&self, slot: u32) -> Option<Holder> {
        self.head()
            .lives
            .get(slot as usize)
            .map(SharedMutex::holder)
    }

    /// Resets the life mutex of a slot for a new process.
    ///
    /// # Errors
    /// The C library's error.
    pub(crate) fn renew_life(&self, locked: &Locked<'_>, slot: u32) -> Result<(), Errno> {
        let _ = locked;
        match self.head().lives.get(slot as usize) {
            // SAFETY: the slot belongs to the calling process, whose thread does not hold the mutex
            // yet. Readers hold the lock that the caller holds now.
            Some(life) => unsafe { life.init() },
            None => Ok(()),
        }
    }

    /// The word on which the thread of the process in this slot sleeps.
    #[must_use]
    pub(crate) fn tick(&self, slot: u32) -> Option<&AtomicU32> {
        self.head().ticks.get(slot as usize)
    }

    /// Marks the process in this slot as alive until the calling thread ends.
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
}

/// The device with the locks of some cards held.
#[derive(Debug)]
pub struct Locked<'a> {
    pub(super) fabric: &'a Fabric,
    pub(super) held: Cards,
    /// A process did not answer: ended processes are released after the locks.
    pub(super) sweeps: bool,
    // The thread that locks a mutex must unlock it.
    pub(super) not_send: PhantomData<*mut ()>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.release_all();
        if std::mem::take(&mut self.sweeps) {
            self.fabric.lock().sweep();
        }
    }
}

impl<'a> Locked<'a> {
    /// The device.
    #[must_use]
    pub fn fabric(&self) -> &'a Fabric {
        self.fabric
    }

    /// Number of the calling thread, which holds a lock.
    #[must_use]
    pub(crate) fn thread(&self) -> u32 {
        let first = self.held.first();
        first.map_or(0, |card| self.fabric.locks().thread(card))
    }

    /// Repairs the state after a holder of a lock died during a change. The thread holds all locks.
    pub(super) fn recover(&mut self) {
        self.fabric.count_repair();
        self.repair();
        (self.fabric.recovery)(self);
    }

    /// State common to all functions. The thread must hold all locks.
    #[must_use]
    pub fn common(&mut self) -> &mut Common {
        step();
        self.must(self.is_whole());
        let at = self.fabric.base.as_ptr().wrapping_byte_add(HEAD_BYTES);
        // SAFETY: the mapping holds a page-aligned `Common` there, and all zeroes is valid. The
        // locks exclude other threads and processes, and the borrow of `self` excludes this one.
        unsafe { &mut *at.cast::<Common>() }
    }

    /// The objects of a function. The thread must hold its card's lock.
    #[must_use]
    pub fn function(&mut self, index: usize) -> &mut Function {
        step();
        // SAFETY: the lock excludes others, and the borrow of `self` excludes this thread.
        unsafe { &mut *self.function_ptr(index) }
    }

    /// The objects of a function, read-only.
    #[must_use]
    pub fn peek(&self, index: usize) -> &Function {
        // SAFETY: the lock excludes others, and nothing changes while `self` is borrowed.
        unsafe { &*self.function_ptr(index) }
    }

    fn function_ptr(&self, index: usize) -> *mut Function {
        let index = index.min(self.fabric.identities().len().saturating_sub(1));
        self.must(self.holds(index));
        let offset = HEAD_BYTES + COMMON_BYTES + index * FUNCTION_BYTES;
        // The mapping has one `Function` for each identity. Each is page-aligned and initially all
        // zeroes, which is valid.
        self.fabric
            .base
            .as_ptr()
            .wrapping_byte_add(offset)
            .cast::<Function>()
    }

    /// Ends the program if it is about to change what it has not locked: its peers' data would be lost without a trace.
    /// Async-signal-safe.
    fn must(&self, holds: bool) {
        if !holds {
            let _ = sys::write(
                2,
                b"bf-emu: internal error: a lock is missing; please report it\n",
            );
            std::process::abort();
        }
    }

    /// Activates fault rules for one process, or with 0 for all. If not all of them fit, none is
    /// activated. Returns whether they were activated.
    pub fn arm_faults(&mut self, process: u32, rules: &[Rule]) -> bool {
        let table = &mut self.common().faults;
        if table.live() as usize + rules.len() > RULES_MAX {
            return false;
        }
        for rule in rules {
            // Cannot fail: free slots were counted before.
            let _ = rules::arm(table, process, *rule);
        }
        self.count_faults();
        true
    }

    /// Deactivates the fault rules whose number `wanted` accepts. Returns their count.
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

    /// Process number of an object's owner; None if the process has ended.
    #[must_use]
    pub fn pid(&self, process: u32) -> Option<i32> {
        let at = self.fabric.base.as_ptr().wrapping_byte_add(HEAD_BYTES);
        // SAFETY: as in `common`, read only. Processes come and go under all locks, and the thread holds one.
        let common = unsafe { &*at.cast::<Common>() };
        let slot = process.checked_sub(1)?;
        let pid = common.processes.get(slot).map(|process| process.pid);
        // Another process may have the number now.
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
