//! This process at the device: its attachment, its open contexts, and its doorbell pages.
//!
//! The signal handler reads only arrays of atomics of fixed size.

pub mod channels;
mod clock;
mod connections;
mod contexts;
pub(crate) mod device_memory;
pub mod dpa;
mod maps;
mod memlock;
pub mod pages;
mod patience;
mod uars;

use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

pub use contexts::{CONTEXTS_MAX, Context};
use contexts::{Contexts, Opened};
use maps::Mapping;
pub use memlock::{ENV_MEMLOCK, LockedMemory};
pub use patience::ENV_CM_TIMEOUT;
pub use uars::UARS_MAX;
use uars::{Uar, Uars};

use crate::engine;
use crate::engine::deferred::{ENV_MODE, Mode};
use crate::fabric::objects::Attached;
use crate::fabric::release::start_time;
use crate::fabric::table::Owner;
use crate::fabric::{Fabric, NUMBER_BASE, QPN_BASE};
use crate::model::faults::{self, ENV_FAULTS, RULES_MAX, Rule};
use crate::model::topology::{VIEW_NAME_MAX, View};
use crate::sys::fork_lock::Fork;
use crate::sys::once::Once;
use crate::sys::{self, Errno};
use crate::view::state;

/// Environment variable that names the state directory.
pub const ENV_STATE: &str = "BFEMU_STATE";
/// Environment variable that names the functions visible to a process, as a comma list.
pub const ENV_AS: &str = "BFEMU_AS";

const PAGE: usize = pages::BYTES;
/// Size of the sparse file behind a context. It covers every page that a driver may map.
pub const CONTEXT_FILE_BYTES: u64 = 1 << 30;
/// First UAR page that is moved by [`UAR_PAGES_AWAY`]. The move skips the pages that the driver
/// maps by command (`mlx5-abi.h`, `enum mlx5_ib_mmap_cmd`): the clock page and device memory.
const UAR_PAGES_FIRST: u32 = 5 << 8;
const UAR_PAGES_AWAY: u32 = (16 << 8) - UAR_PAGES_FIRST;
const CONTEXT_FILE_NAME: &CStr = c"bf-emu-uverbs";
const CONTEXT_MAGIC: u64 = u64::from_be_bytes(*b"bf-emu-c");

/// The effect of a store to a UAR page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// A send doorbell. The bytes after it up to `end` are payload.
    Send {
        /// Address of the first byte after the doorbell register.
        end: usize,
    },
    /// Another doorbell, or no effect.
    Other,
}

/// The connection of this process to the device.
#[derive(Debug)]
pub struct Process {
    fabric: &'static Fabric,
    view: View,
    /// Fault rules of this process, from its environment.
    faults: Vec<Rule>,
    /// Choice of mkey numbers, from the environment.
    key_numbers: KeyNumbers,
    locked_memory: LockedMemory,
    /// Time for an answer of the connection manager, from the environment.
    cm_patience_ns: u64,
    functions: Vec<usize>,
    /// Number in the device's process table, counted from 1; 0 until attached, and after a fork.
    number: AtomicU32,
    contexts: Contexts,
    uars: Uars,
}

static PROCESS: Once<Option<Process>> = Once::new();
static ATTACHED: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// This process. The first call attaches it. None if the environment names no device, or if
/// attaching failed. A failure is logged once on standard error.
pub fn current() -> Option<&'static Process> {
    let process = PROCESS.get_or_make(|| {
        let (state, view) = environment()?;
        // Its thread may have asked for it before a fork, of which this process is the child.
        sys::forget_pid();
        // Before it attaches: another thread may fork at any time from here on.
        // SAFETY: the functions may run around a fork, and live as long as the process. If their registration fails (for
        // lack of memory), children keep their parent's contexts.
        unsafe {
            libc::pthread_atfork(
                Some(before_fork),
                Some(after_fork_in_parent),
                Some(after_fork_in_child),
            )
        };
        match Process::attach(&state, &view) {
            Ok(process) => Some(process),
            Err(error) => {
                let text = format!("bf-emu: this process has no device: {error}\n");
                let _ = sys::write(2, text.as_bytes());
                None
            }
        }
    });
    if let Some(process) = process {
        ATTACHED.store(std::ptr::from_ref(process).cast_mut(), Ordering::Release);
    }
    process.as_ref()
}

thread_local! {
    /// What [`before_fork`] did, for each fork of this thread that has not ended. The process may be there only when the
    /// other function runs. A fork in a signal handler may interrupt another one.
    static FORKS: Cell<([Option<Fork>; FORKS_MAX], usize)> = const { Cell::new(([None; FORKS_MAX], 0)) };
}

/// Forks within forks of one thread that are told apart. The ones within hold nothing.
const FORKS_MAX: usize = 4;

extern "C" fn before_fork() {
    let (mut forks, depth) = FORKS.get();
    if let Some(place) = forks.get_mut(depth) {
        *place = match PROCESS.get() {
            Some(Some(process)) => Some(process.uars.before_fork()),
            _ => None,
        };
    }
    FORKS.set((forks, depth + 1));
}

/// The process, and what [`before_fork`] did with it.
fn forked() -> Option<(&'static Process, Fork)> {
    let (forks, depth) = FORKS.get();
    let depth = depth.saturating_sub(1);
    FORKS.set((forks, depth));
    let fork = forks.get(depth).copied().flatten()?;
    Some((PROCESS.get()?.as_ref()?, fork))
}

extern "C" fn after_fork_in_parent() {
    if let Some((process, fork)) = forked() {
        process.uars.after_fork_in_parent(fork);
    }
}

extern "C" fn after_fork_in_child() {
    if let Some((process, fork)) = forked() {
        process.uars.after_fork_in_child(fork);
    }
    if let Some(Some(process)) = PROCESS.get() {
        process.after_fork_in_child();
    }
}

/// This process, if it is attached. Async-signal-safe.
pub fn attached() -> Option<&'static Process> {
    let process = ATTACHED.load(Ordering::Acquire);
    // SAFETY: null, or a reference into a static that is never dropped.
    unsafe { process.as_ref() }
}

fn environment() -> Option<(PathBuf, String)> {
    // SAFETY: the call takes a number only.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    asked_for(secure, |name| std::env::var_os(name))
}

/// The device that the environment names. A program with more rights than its user ignores the
/// environment.
fn asked_for(
    secure: bool,
    variable: impl Fn(&str) -> Option<std::ffi::OsString>,
) -> Option<(PathBuf, String)> {
    if secure {
        return None;
    }
    let view = variable(ENV_AS)?.into_string().ok()?;
    Some((variable(ENV_STATE)?.into(), view))
}

/// Fault rules of this process, from its environment.
fn own_faults(fabric: &Fabric) -> Result<Vec<Rule>, Box<dyn std::error::Error>> {
    let Some(value) = std::env::var_os(ENV_FAULTS) else {
        return Ok(Vec::new());
    };
    let value = value
        .into_string()
        .map_err(|value| format!("{ENV_FAULTS} is {value:?}, which is not UTF-8"))?;
    let text = match value.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| format!("reading {file}, which {ENV_FAULTS} names: {error}"))?,
        None => value,
    };
    Ok(faults::parse::parse(&text, &fabric.names())?)
}

/// The mode of this process, from its environment.
fn own_mode() -> Result<Mode, Box<dyn std::error::Error>> {
    match std::env::var(ENV_MODE) {
        Ok(text) => Ok(text.parse()?),
        Err(std::env::VarError::NotPresent) => Ok(Mode::Trap),
        Err(error) => Err(format!("{ENV_MODE}: {error}").into()),
    }
}

/// Environment variable for the choice of mkey numbers: `resting` or `lowest`.
pub const ENV_KEYS: &str = "BFEMU_KEYS";

/// Choice of the number of a new mkey.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyNumbers {
    /// The number that is free for the longest time. A stale use of an old key fails.
    #[default]
    Resting,
    /// The lowest free number, perhaps that of the last destroyed key. A stale use of an old key
    /// meets another key.
    Lowest,
}

/// The text names no choice of numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a choice of key numbers: resting or lowest")]
pub struct KeyNumbersError {
    text: String,
}

impl std::str::FromStr for KeyNumbers {
    type Err = KeyNumbersError;

    fn from_str(text: &str) -> Result<Self, KeyNumbersError> {
        match text {
            "resting" => Ok(Self::Resting),
            "lowest" => Ok(Self::Lowest),
            _ => Err(KeyNumbersError {
                text: text.to_owned(),
            }),
        }
    }
}

impl std::fmt::Display for KeyNumbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Resting => "resting",
            Self::Lowest => "lowest",
        })
    }
}

fn own_key_numbers() -> Result<KeyNumbers, Box<dyn std::error::Error>> {
    match std::env::var(ENV_KEYS) {
        Ok(text) => Ok(text.parse()?),
        Err(std::env::VarError::NotPresent) => Ok(KeyNumbers::Resting),
        Err(error) => Err(format!("{ENV_KEYS}: {error}").into()),
    }
}

fn faults_do_not_fit() -> String {
    format!(
        "the rules of {ENV_FAULTS} do not fit: a device has at most {RULES_MAX}; see 'bf-emu fault list'"
    )
}

/// Logs, once in a process, that it can open no more contexts: libibverbs shows another error.
fn tell_of_contexts() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    let text = format!(
        "bf-emu: this process has {CONTEXTS_MAX} contexts open, the maximum (docs/EMULATION.md, Limits)\n"
    );
    let _ = sys::write(2, text.as_bytes());
}

/// Makes a page of a context's file read-only.
///
/// # Errors
/// EIO: the kernel refuses.
fn close_uar(start: usize) -> Result<(), Errno> {
    // SAFETY: the page is a mapping of our own file, made by the driver for a UAR of the context that the calling thread
    // creates an object in: it stays until that context closes. The handler for its faults is installed since the context
    // was opened.
    let failed = unsafe { libc::syscall(libc::SYS_mprotect, start, PAGE, libc::PROT_READ) };
    if failed == 0 {
        Ok(())
    } else {
        Err(Errno(libc::EIO))
    }
}

/// Bytes of the description in a context's file: magic, number, owner, index in the view.
const DESCRIPTION_BYTES: usize = 24;

/// Writes the description of a context into its file, for processes that receive the file.
fn describe(fd: RawFd, opened: Opened) -> Result<(), Errno> {
    let mut page = [0; DESCRIPTION_BYTES];
    page[..8].copy_from_slice(&CONTEXT_MAGIC.to_ne_bytes());
    page[8..12].copy_from_slice(&opened.number.to_ne_bytes());
    page[12..16].copy_from_slice(&opened.owner_pid.to_ne_bytes());
    page[16..24].copy_from_slice(&opened.view_index.to_ne_bytes());
    sys::pwrite(fd, &page, 0).map(drop)
}

/// Number, index in the view and owner of the context behind a file; None for any other file.
fn described(fd: RawFd) -> Option<(u32, usize, i32)> {
    let mut page = [0; DESCRIPTION_BYTES];
    if sys::pread(fd, &mut page, 0).ok()? != page.len() {
        return None;
    }
    let (magic, rest) = page.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let (owner, index) = rest.split_first_chunk()?;
    (*magic == CONTEXT_MAGIC.to_ne_bytes()).then_some((
        u32::from_ne_bytes(*number),
        usize::from_ne_bytes(*index.first_chunk()?),
        i32::from_ne_bytes(*owner),
    ))
}

impl Process {
    fn attach(state: &std::path::Path, view: &str) -> Result<Self, Box<dyn std::error::Error>> {
        pages::check()?;
        let fabric = engine::open(state)?;
        let view = state::load_view(state, view)?;
        let mut functions = Vec::new();
        for spec in &view.functions {
            let index = fabric.function_index(&spec.name);
            functions.push(index.ok_or_else(|| format!("the device has no {}", spec.name))?);
        }
        let faults = own_faults(&fabric)?;
        engine::deferred::set(own_mode()?);
        let locked_memory = memlock::own_locked_memory()?;
        crate::memory::pins::set(locked_memory == LockedMemory::Pinned);
        let process = Self {
            fabric: Box::leak(Box::new(fabric)),
            view,
            faults,
            key_numbers: own_key_numbers()?,
            locked_memory,
            cm_patience_ns: patience::own_patience()?,
            functions,
            number: AtomicU32::new(0),
            contexts: Contexts::new(),
            uars: Uars::new(),
        };
        process.enter()?;
        Ok(process)
    }

    /// Attaches a process without functions of its own: the DPA's runner.
    ///
    /// # Errors
    /// No device is in the state directory, or it is full.
    pub(crate) fn attach_runner(
        state: &std::path::Path,
    ) -> Result<&'static Self, Box<dyn std::error::Error>> {
        let process = Box::leak(Box::new(Self {
            fabric: Box::leak(Box::new(engine::open(state)?)),
            view: View {
                functions: Vec::new(),
                sys_root: PathBuf::new(),
            },
            faults: Vec::new(),
            key_numbers: KeyNumbers::default(),
            locked_memory: LockedMemory::default(),
            cm_patience_ns: 0,
            functions: Vec::new(),
            number: AtomicU32::new(0),
            contexts: Contexts::new(),
            uars: Uars::new(),
        }));
        process.enter()?;
        process.start_tick().map_err(std::io::Error::from)?;
        Ok(process)
    }

    /// Choice of the next mkey's number.
    pub(crate) fn key_numbers(&self) -> KeyNumbers {
        self.key_numbers
    }

    /// Whether registered memory counts against the limit of locked memory.
    pub(crate) fn locked_memory(&self) -> LockedMemory {
        self.locked_memory
    }

    /// Enters this process into the device's process table.
    fn enter(&self) -> Result<u32, Box<dyn std::error::Error>> {
        // Other processes move data to and from this one. Yama requires this permission for them.
        // SAFETY: this call takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
        let pid = sys::pid();
        let mut view = [0; VIEW_NAME_MAX];
        let names: Vec<_> = self
            .view
            .functions
            .iter()
            .map(|spec| spec.name.as_str())
            .collect();
        // The DPA's runner has no functions.
        let names = match &names[..] {
            [] => "dpa".to_owned(),
            names => names.join(","),
        };
        for (to, from) in view.iter_mut().zip(names.bytes()) {
            *to = from;
        }
        let attached = Attached {
            pid,
            start_time: start_time(pid).ok_or("/proc/self/stat cannot be read")?,
            view,
        };
        let _held = sys::SignalsHeld::new();
        let mut locked = self.fabric.lock();
        locked.release_pid(pid);
        locked.sweep();
        let index = locked.common().processes.insert(Owner::default(), attached);
        let path = self.fabric.path().to_owned();
        let index = index.ok_or(crate::fabric::FabricError::Full { path })?;
        self.fabric.renew_life(&locked, index)?;
        if !locked.arm_faults(index + 1, &self.faults) {
            locked.release_process(index + 1);
            return Err(faults_do_not_fit().into());
        }
        self.number.store(index + 1, Ordering::Release);
        Ok(index + 1)
    }

    /// This process's number on the device. A forked child gets a new number.
    pub(crate) fn number(&self) -> Result<u32, Errno> {
        match self.number.load(Ordering::Acquire) {
            0 => self.enter().map_err(|_| Errno(libc::ENOMEM)),
            number => Ok(number),
        }
    }

    /// The device.
    #[must_use]
    pub fn fabric(&self) -> &'static Fabric {
        self.fabric
    }

    /// Indices of the functions visible to this process, in the order of its devices.
    pub fn functions(&self) -> &[usize] {
        &self.functions
    }

    /// The functions and paths visible to this process.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Opens a new context on the function at `device` in the view.
    ///
    /// # Errors
    /// ENODEV: no such function exists. EMFILE: too many contexts are open. Other errors come from
    /// the kernel.
    pub fn open(&self, device: usize, cloexec: bool) -> Result<RawFd, Errno> {
        let function = *self.functions.get(device).ok_or(Errno(libc::ENODEV))?;
        self.start_tick()?;
        let fd = sys::memfd(CONTEXT_FILE_NAME, cloexec, CONTEXT_FILE_BYTES)?;
        let opened = Opened {
            number: self.fabric.next_context(),
            function,
            view_index: device,
            owner_pid: sys::pid(),
        };
        let made = clock::put(fd)
            .and_then(|()| describe(fd, opened))
            .and_then(|()| self.register(fd, opened));
        match made {
            Ok(_) => Ok(fd),
            Err(errno) => {
                sys::close(fd);
                Err(errno)
            }
        }
    }

    /// Records a context and its file.
    fn register(&self, fd: RawFd, opened: Opened) -> Result<Context, Errno> {
        let file = sys::file_id(fd)?;
        self.contexts.add(file, opened).ok_or_else(|| {
            tell_of_contexts();
            Errno(libc::EMFILE)
        })
    }

    /// The context behind a file descriptor, which may be inherited or received.
    pub fn context_of(&self, fd: RawFd) -> Option<Context> {
        let file = sys::file_id(fd).ok()?;
        if let Some(context) = self.contexts.find(file) {
            return Some(context);
        }
        let (number, device, owner_pid) = described(fd)?;
        let opened = Opened {
            number,
            function: *self.functions.get(device)?,
            view_index: device,
            owner_pid,
        };
        self.register(fd, opened).ok()
    }

    /// The view index of the device behind a file descriptor; None for any other file.
    pub fn device_of(&self, fd: RawFd) -> Option<usize> {
        let context = self.context_of(fd)?;
        Some(self.contexts.view_index(context))
    }

    /// Handles the close of a file descriptor. The last descriptor of a context releases its
    /// objects, unless they belong to a parent.
    pub fn closing(&self, fd: RawFd) {
        let Some(context) = self.context_of(fd) else {
            self.closing_rdma_cm(fd);
            return;
        };
        let ours = self.contexts.is_of(context, sys::pid());
        if self.open_elsewhere(fd) {
            return;
        }
        if ours {
            let _held = sys::SignalsHeld::new();
            self.unmap_device_memory(context);
            self.release(context);
            self.close_dpa(context);
        }
        self.uars.take_back_all(context);
        self.contexts.remove(context);
    }

    /// Releases a context's objects, and closes the files of this process's channels in it.
    fn release(&self, context: Context) {
        let process = self.number.load(Ordering::Acquire);
        let mut locked = self.fabric.lock();
        let channels = locked.peek(context.function).channels.iter();
        let ours = channels
            .filter(|(_, owner, _)| (owner.process, owner.context) == (process, context.number));
        let files: Vec<RawFd> = ours.map(|(_, _, channel)| channel.write_fd).collect();
        locked.release_context(context.number);
        drop(locked);
        for file in files {
            sys::close(file);
        }
    }

    /// Removes this process's own mappings of a context's device memory.
    fn unmap_device_memory(&self, context: Context) {
        let process = self.number.load(Ordering::Acquire);
        let locked = self.fabric.lock();
        for (_, owner, memory) in locked.peek(context.function).umems.iter() {
            let ours = (owner.process, owner.context) == (process, context.number);
            if ours && memory.device_page != 0 {
                device_memory::unmap(memory);
            }
        }
    }

    /// True if another file descriptor of this process refers to the same open file.
    fn open_elsewhere(&self, fd: RawFd) -> bool {
        self.descriptors_like(fd).next().is_some()
    }

    /// The other file descriptors of this process that refer to the same file.
    fn descriptors_like(&self, fd: RawFd) -> impl Iterator<Item = RawFd> {
        let id = sys::file_id(fd);
        let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok())
            .filter(move |other| *other != fd && id.is_ok() && sys::file_id(*other) == id)
    }

    /// Allocates a UAR page for a context. Returns its offset in the file and its number on the
    /// device.
    pub(crate) fn take_uar(&self, context: Context) -> Result<(u64, u32), Errno> {
        let page = self.contexts.next_page(context);
        // Some page numbers are reserved for other pages of the file.
        let page = match page {
            UAR_PAGES_FIRST.. => page + UAR_PAGES_AWAY,
            _ => page,
        };
        let offset = u64::from(page) * PAGE as u64;
        if offset >= CONTEXT_FILE_BYTES {
            return Err(Errno(libc::ENOMEM));
        }
        let uar = self.fabric.next_uar();
        self.uars.give(context, page.into(), uar)?;
        Ok((offset, uar))
    }

    /// Frees a UAR page.
    pub(crate) fn drop_uar(&self, context: Context, uar: u32) -> Result<(), Errno> {
        self.uars.take_back(context, uar)
    }

    /// Finds the mappings of a context's UAR pages that are not found yet and makes them read-only:
    /// from then on a store is a doorbell. Must be called before a doorbell of a new queue of the
    /// context.
    ///
    /// In polling mode the mappings stay writable.
    pub(crate) fn close_uars(&self, context: Context) -> Result<(), Errno> {
        if engine::polling::is_on() {
            return Ok(());
        }
        let mappings = || {
            let maps = std::fs::read_to_string("/proc/self/maps").map_err(|_| Errno(libc::EIO))?;
            let mut pages = Vec::new();
            for map in maps.lines().filter_map(Mapping::parse) {
                let found = self.contexts.find(map.file);
                if found.is_none_or(|found| found.number != context.number)
                    || !map.writable
                    || device_memory::contains(map.offset / PAGE as u64)
                {
                    continue;
                }
                for page in 0..(map.end - map.start) / PAGE {
                    let number = map.offset / PAGE as u64 + page as u64;
                    pages.push((map.start + page * PAGE, number));
                }
            }
            Ok(pages)
        };
        self.uars.close_new(context, mappings, close_uar)
    }

    /// Executes a doorbell: a store of this process to `address`. `value` is the stored value in
    /// memory order, if it is known. Returns None if the address is not in a UAR page.
    ///
    /// Async-signal-safe, for a signal that the calling thread's own store raised.
    pub fn doorbell(&self, address: usize, value: Option<u64>) -> Option<Rung> {
        let page = address & !(PAGE - 1);
        let Uar {
            context,
            function,
            number,
        } = self.uars.at(page)?;
        let bytes = value.map(u64::to_le_bytes);
        self.fabric.counters(function).trap();
        match address - page {
            CQ_DOORBELL => self.arm(function, context, bytes),
            // Only the first store of a BlueFlame copy is a doorbell. The rest is payload, which is
            // also in the ring.
            offset if offset >= SEND_DOORBELL && offset % BLUEFLAME_BYTES == 0 => {
                // The conversion cannot fail: a page has 4 KiB.
                let register = (offset - SEND_DOORBELL) / (2 * BLUEFLAME_BYTES) + 1;
                let register = u8::try_from(register).ok();
                let place = engine::Place {
                    uar: number,
                    register,
                };
                self.ring(function, context, place, bytes);
                let end = address + BLUEFLAME_BYTES;
                return Some(Rung::Send { end });
            }
            _ => {}
        }
        Some(Rung::Other)
    }

    fn arm(&self, function: usize, context: u32, bytes: Option<[u8; 8]>) {
        if let Some([command @ .., a, b, c, d]) = bytes {
            let cqn = u32::from_be_bytes([a, b, c, d]);
            let command = Some(u32::from_be_bytes(command));
            engine::ring_arm(self.fabric, function, (context, cqn), command);
            return;
        }
        // The stored value is unknown, so all queues are armed. An extra event is harmless.
        let mut from = 0;
        loop {
            let next = {
                let locked = self.fabric.lock();
                locked
                    .peek(function)
                    .cqs
                    .next(from, |owner, _| owner.context == context)
            };
            let Some(slot) = next else { return };
            let cqn = slot + NUMBER_BASE;
            engine::ring_arm(self.fabric, function, (context, cqn), None);
            from = slot + 1;
        }
    }

    fn ring(&self, function: usize, context: u32, place: engine::Place, bytes: Option<[u8; 8]>) {
        if let Some([_, _, _, _, a, b, c, _]) = bytes {
            let qpn = u32::from_be_bytes([0, a, b, c]);
            if engine::ring_send(self.fabric, function, (context, qpn), place) {
                return;
            }
        }
        // The value names no queue of the page, so every queue of the page is run.
        let place = engine::Place {
            register: None,
            ..place
        };
        let mut from = 0;
        loop {
            let next = {
                let locked = self.fabric.lock();
                let wanted = |owner: Owner, qp: &crate::fabric::objects::Qp| {
                    owner.context == context && qp.uar == place.uar
                };
                locked.peek(function).qps.next(from, wanted)
            };
            let Some(slot) = next else { return };
            engine::ring_send(self.fabric, function, (context, slot + QPN_BASE), place);
            from = slot + 1;
        }
    }

    /// Resets this process's state in the child of a fork. The child enters the process table at
    /// its first call to the device. The parent keeps its objects.
    fn after_fork_in_child(&self) {
        sys::forget_pid();
        self.number.store(0, Ordering::Release);
        engine::tick::after_fork_in_child();
        engine::poller::after_fork_in_child();
        crate::memory::after_fork_in_child();
        Self::forget_dpa();
        // SAFETY: this call takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }

    /// Starts the threads that a process with queue pairs needs.
    pub(crate) fn start_tick(&self) -> Result<(), Errno> {
        let number = self.number()?;
        engine::tick::start(self.fabric, number)
            .and_then(|()| engine::poller::start(self.fabric, number))
            .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))
    }
}

/// Offset of the completion queue doorbell in a UAR page (`mlx5.h`, MLX5_CQ_DOORBELL).
const CQ_DOORBELL: usize = 0x20;
/// Offset of the first send doorbell (`mlx5.h`, MLX5_BF_OFFSET).
const SEND_DOORBELL: usize = 0x800;
/// Distance of the two alternating send doorbells.
const BLUEFLAME_BYTES: usize = 0x100;

#[cfg(test)]
mod tests {
    use super::*;

    /// A setuid program has no device, independent of its user's environment.
    #[test]
    fn a_privileged_program_is_not_affected() {
        let variables = |name: &str| match name {
            ENV_STATE => Some("/state".into()),
            ENV_AS => Some("node0.host".into()),
            _ => None,
        };
        let asked = asked_for(false, variables);
        assert_eq!(asked, Some(("/state".into(), "node0.host".to_owned())));
        assert_eq!(asked_for(true, variables), None);
        assert_eq!(asked_for(false, |_| None), None);
    }
}
