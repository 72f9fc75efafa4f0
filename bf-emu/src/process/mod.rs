//! This process and the device: attaching, its open contexts, and the pages whose doorbells it may
//! ring.
//!
//! What the signal handler needs is kept in arrays of atomics of fixed size.

mod clock;
pub(crate) mod device_memory;
mod maps;

use std::ffi::CStr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use maps::Mapping;

use crate::engine;
use crate::engine::deferred::{ENV_MODE, Mode};
use crate::fabric::objects::Attached;
use crate::fabric::release::start_time;
use crate::fabric::table::Owner;
use crate::fabric::{Fabric, NUMBER_BASE, QPN_BASE};
use crate::model::faults::{self, ENV_FAULTS, RULES_MAX, Rule};
use crate::model::topology::{VIEW_NAME_MAX, View};
use crate::sys::{self, Errno, FileId};
use crate::view::state;

/// Contexts that one process may have open.
pub const CONTEXTS_MAX: usize = 256;
/// UAR pages that one process may have mapped.
pub const UARS_MAX: usize = 4096;

/// Environment variable that names the state directory.
pub const ENV_STATE: &str = "BFEMU_STATE";
/// Environment variable that names the functions a process sees, a comma list.
pub const ENV_AS: &str = "BFEMU_AS";

const PAGE: usize = 4096;
/// Size of the sparse file behind a context: room for every page that may be mapped of it.
pub const CONTEXT_FILE_BYTES: u64 = 1 << 30;
/// UAR pages from this one on lie so much further on, behind what the driver maps by command
/// (`mlx5-abi.h`, `enum mlx5_ib_mmap_cmd`): the clock page and device memory.
const UAR_PAGES_FIRST: u32 = 5 << 8;
const UAR_PAGES_AWAY: u32 = (16 << 8) - UAR_PAGES_FIRST;
const CONTEXT_FILE_NAME: &CStr = c"bf-emu-uverbs";
const CONTEXT_MAGIC: u64 = u64::from_be_bytes(*b"bf-emu-c");

/// An open context of this process, as long as `context` is not 0.
#[derive(Debug, Default)]
struct ContextSlot {
    context: AtomicU32,
    function: AtomicU32,
    view_index: AtomicU32,
    owner_pid: AtomicU32,
    next_page: AtomicU32,
    device: AtomicU64,
    inode: AtomicU64,
}

/// A mapped UAR page of this process, as long as `start` is not 0.
#[derive(Debug, Default)]
struct UarSlot {
    start: AtomicUsize,
    context: AtomicU32,
    function: AtomicU32,
    /// The page's number on the device.
    uar: AtomicU32,
}

/// What a store to a UAR page was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The doorbell of a send queue, and what is copied behind it up to `end` is payload.
    Send {
        /// Address of the first byte that is not of the same register.
        end: usize,
    },
    /// Something else, or nothing.
    Other,
}

/// An open context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Its number on the device.
    pub number: u32,
    /// The function it is open on.
    pub function: usize,
    /// Its place in this process.
    slot: usize,
}

/// What this process shares with the device.
#[derive(Debug)]
pub struct Process {
    fabric: &'static Fabric,
    view: View,
    /// What is to go wrong in this process, from its environment.
    faults: Vec<Rule>,
    /// Which number its next mkey gets, likewise.
    key_numbers: KeyNumbers,
    functions: Vec<usize>,
    /// Number in the device's process table, counted from 1; 0 until attached, and after a fork.
    number: AtomicU32,
    contexts: Box<[ContextSlot]>,
    uars: Box<[UarSlot]>,
    uars_high: AtomicUsize,
    /// A UAR page was given out whose mapping was not found yet.
    uars_unseen: AtomicBool,
    /// The pages given out, by context and page in its file: number on the device.
    pages: std::sync::Mutex<Vec<(u32, u32, u32)>>,
}

static PROCESS: OnceLock<Option<Process>> = OnceLock::new();
static ATTACHED: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// This process, attached at the first call. None if the environment asks for no device, or if
/// attaching failed, which is said once on standard error.
pub fn current() -> Option<&'static Process> {
    let process = PROCESS.get_or_init(|| {
        let (state, view) = environment()?;
        match Process::attach(&state, &view) {
            Ok(process) => Some(process),
            Err(error) => {
                let text = format!("bf-emu: this process gets no device: {error}\n");
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

/// The device that an environment asks for. A program that runs with more rights than its user gets no
/// say from the user's environment.
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

/// The faults that this process is to have, from its environment.
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

/// Environment variable that says which numbers a process's mkeys get: `resting` or `lowest`.
pub const ENV_KEYS: &str = "BFEMU_KEYS";

/// Which number a new mkey gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyNumbers {
    /// One that has rested for long: what still uses the key before finds nobody.
    #[default]
    Resting,
    /// The lowest that is free, perhaps that of the key destroyed last: what still uses that key
    /// meets another one.
    Lowest,
}

/// A choice of numbers that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no choice of key numbers: one of resting, lowest")]
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
        "the rules of {ENV_FAULTS} do not fit: the device has {RULES_MAX} at most; see 'bf-emu fault list'"
    )
}

impl Process {
    fn attach(state: &std::path::Path, view: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let fabric = engine::open(state)?;
        let view = state::load_view(state, view)?;
        let mut functions = Vec::new();
        for spec in &view.functions {
            let index = fabric.function_index(&spec.name);
            functions.push(index.ok_or_else(|| format!("the device has no {}", spec.name))?);
        }
        let faults = own_faults(&fabric)?;
        engine::deferred::set(own_mode()?);
        let process = Self {
            fabric: Box::leak(Box::new(fabric)),
            view,
            faults,
            key_numbers: own_key_numbers()?,
            functions,
            number: AtomicU32::new(0),
            contexts: (0..CONTEXTS_MAX).map(|_| ContextSlot::default()).collect(),
            uars: (0..UARS_MAX).map(|_| UarSlot::default()).collect(),
            uars_high: AtomicUsize::new(0),
            uars_unseen: AtomicBool::new(false),
            pages: std::sync::Mutex::default(),
        };
        process.enter()?;
        Ok(process)
    }

    /// Which number its next mkey gets.
    pub(crate) fn key_numbers(&self) -> KeyNumbers {
        self.key_numbers
    }

    /// Takes a place in the device's process table.
    fn enter(&self) -> Result<u32, Box<dyn std::error::Error>> {
        // Others move data in and out of this process; under Yama they must be let in.
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
        for (to, from) in view.iter_mut().zip(names.join(",").bytes()) {
            *to = from;
        }
        let attached = Attached {
            pid,
            start_time: start_time(pid).unwrap_or(0),
            cpu: u32::MAX,
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

    /// This process's number on the device, taken anew after a fork.
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

    /// What this process sees.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Opens a new context on the function at `device` in the view.
    ///
    /// # Errors
    /// ENODEV: there is no such function. EMFILE: too many contexts. Others of the kernel.
    pub fn open(&self, device: usize, cloexec: bool) -> Result<RawFd, Errno> {
        let function = *self.functions.get(device).ok_or(Errno(libc::ENODEV))?;
        self.start_tick()?;
        let fd = sys::memfd(CONTEXT_FILE_NAME, cloexec, CONTEXT_FILE_BYTES)?;
        let number = self.fabric.next_context();
        let made = clock::put(fd).and_then(|()| self.describe(fd, number, device));
        let made = made.and_then(|()| {
            self.register(
                fd,
                Context {
                    number,
                    function,
                    slot: 0,
                },
                device,
                sys::pid(),
            )
        });
        match made {
            Ok(_) => Ok(fd),
            Err(errno) => {
                sys::close(fd);
                Err(errno)
            }
        }
    }

    /// Writes into the file itself whose context it is, for whoever gets it from us.
    fn describe(&self, fd: RawFd, number: u32, device: usize) -> Result<(), Errno> {
        let mut page = [0; 24];
        page[..8].copy_from_slice(&CONTEXT_MAGIC.to_ne_bytes());
        page[8..12].copy_from_slice(&number.to_ne_bytes());
        page[12..16].copy_from_slice(&u32::try_from(device).unwrap_or(0).to_ne_bytes());
        page[16..20].copy_from_slice(&sys::pid().to_ne_bytes());
        sys::pwrite(fd, &page, 0).map(drop)
    }

    fn register(
        &self,
        fd: RawFd,
        context: Context,
        device: usize,
        owner_pid: i32,
    ) -> Result<Context, Errno> {
        let id = sys::file_id(fd)?;
        for (slot, entry) in self.contexts.iter().enumerate() {
            // u32::MAX marks a slot that is being filled in: no context has that number.
            let claim =
                entry
                    .context
                    .compare_exchange(0, u32::MAX, Ordering::Acquire, Ordering::Relaxed);
            if claim.is_err() {
                continue;
            }
            entry.function.store(
                u32::try_from(context.function).unwrap_or(0),
                Ordering::Relaxed,
            );
            entry
                .view_index
                .store(u32::try_from(device).unwrap_or(0), Ordering::Relaxed);
            entry
                .owner_pid
                .store(owner_pid.unsigned_abs(), Ordering::Relaxed);
            entry.next_page.store(1, Ordering::Relaxed);
            entry.device.store(id.device, Ordering::Relaxed);
            entry.inode.store(id.inode, Ordering::Relaxed);
            entry.context.store(context.number, Ordering::Release);
            return Ok(Context { slot, ..context });
        }
        Err(Errno(libc::EMFILE))
    }

    /// The context behind a file, which may have been inherited or received.
    pub(crate) fn context_of(&self, fd: RawFd) -> Option<Context> {
        let id = sys::file_id(fd).ok()?;
        if let Some(context) = self.known_context(id) {
            return Some(context);
        }
        let mut page = [0; 24];
        if sys::pread(fd, &mut page, 0).ok()? != page.len() {
            return None;
        }
        let word =
            |at: usize| u32::from_ne_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
        if page[..8] != CONTEXT_MAGIC.to_ne_bytes() {
            return None;
        }
        let (number, device) = (word(8), word(12) as usize);
        let function = *self.functions.get(device)?;
        let owner = i32::from_ne_bytes(word(16).to_ne_bytes());
        self.register(
            fd,
            Context {
                number,
                function,
                slot: 0,
            },
            device,
            owner,
        )
        .ok()
    }

    fn known_context(&self, id: FileId) -> Option<Context> {
        self.contexts.iter().enumerate().find_map(|(slot, entry)| {
            let number = entry.context.load(Ordering::Acquire);
            let same = number != 0
                && number != u32::MAX
                && entry.inode.load(Ordering::Relaxed) == id.inode
                && entry.device.load(Ordering::Relaxed) == id.device;
            let function = entry.function.load(Ordering::Relaxed) as usize;
            same.then_some(Context {
                number,
                function,
                slot,
            })
        })
    }

    /// The view index of the device that a file is open on; None for any other file.
    pub fn device_of(&self, fd: RawFd) -> Option<usize> {
        let context = self.context_of(fd)?;
        Some(
            self.contexts[context.slot]
                .view_index
                .load(Ordering::Relaxed) as usize,
        )
    }

    /// A file of this process is about to be closed. The last one of a context takes its objects
    /// with it, unless they belong to a parent.
    pub fn closing(&self, fd: RawFd) {
        let Some(context) = self.context_of(fd) else {
            return;
        };
        let entry = &self.contexts[context.slot];
        let ours = entry.owner_pid.load(Ordering::Relaxed) == sys::pid().unsigned_abs();
        if self.open_elsewhere(fd) {
            return;
        }
        if ours {
            let _held = sys::SignalsHeld::new();
            self.unmap_device_memory(context);
            self.fabric.lock().release_context(context.number);
        }
        for uar in self.uars.iter() {
            if uar.context.load(Ordering::Relaxed) == context.number {
                uar.start.store(0, Ordering::Release);
            }
        }
        if let Ok(mut pages) = self.pages.lock() {
            pages.retain(|(number, _, _)| *number != context.number);
        }
        entry.context.store(0, Ordering::Release);
    }

    /// Takes away the mappings that stand for device memory of a context and were made here.
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

    /// True if another number of this process stands for the same open file.
    fn open_elsewhere(&self, fd: RawFd) -> bool {
        let Ok(id) = sys::file_id(fd) else {
            return false;
        };
        let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
            return false;
        };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok())
            .any(|other| other != fd && sys::file_id(other) == Ok(id))
    }

    /// Gives a UAR page to a context: (offset in its file, number on the device).
    pub(crate) fn take_uar(&self, context: Context) -> Result<(u64, u32), Errno> {
        let entry = &self.contexts[context.slot];
        let page = entry.next_page.fetch_add(1, Ordering::Relaxed);
        // Some numbers stand for other pages of the file.
        let page = match page {
            UAR_PAGES_FIRST.. => page + UAR_PAGES_AWAY,
            _ => page,
        };
        let offset = u64::from(page) * PAGE as u64;
        if offset >= CONTEXT_FILE_BYTES {
            return Err(Errno(libc::ENOMEM));
        }
        let uar = self.fabric.next_uar();
        let mut pages = self.pages.lock().map_err(|_| Errno(libc::ENOMEM))?;
        if pages.len() >= UARS_MAX {
            return Err(Errno(libc::ENOMEM));
        }
        pages.push((context.number, page, uar));
        self.uars_unseen.store(true, Ordering::Release);
        Ok((offset, uar))
    }

    /// Takes a UAR page back.
    pub(crate) fn drop_uar(&self, context: Context, uar: u32) -> Result<(), Errno> {
        let mut pages = self.pages.lock().map_err(|_| Errno(libc::ENOMEM))?;
        let before = pages.len();
        pages.retain(|page| (page.0, page.2) != (context.number, uar));
        if pages.len() == before {
            return Err(Errno(libc::ENOENT));
        }
        for slot in self.uars.iter() {
            if slot.uar.load(Ordering::Relaxed) == uar {
                slot.start.store(0, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Finds the mappings of UAR pages given out since the last call, and closes them to stores:
    /// from now on a store is a doorbell. To be called before a queue can be rung.
    ///
    /// In polling mode stores are left alone.
    pub(crate) fn close_uars(&self) -> Result<(), Errno> {
        if engine::polling::is_on() {
            return Ok(());
        }
        if !self.uars_unseen.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let maps = std::fs::read_to_string("/proc/self/maps").map_err(|_| Errno(libc::EIO))?;
        for map in maps.lines().filter_map(Mapping::parse) {
            let Some(context) = self.known_context(map.file) else {
                continue;
            };
            if !map.writable || device_memory::contains(map.offset / PAGE as u64) {
                continue;
            }
            // SAFETY: the range is a mapping of a file of ours, made by the driver for a UAR; the
            // handler that serves its faults is in place since the context was opened.
            let failed = unsafe {
                libc::syscall(
                    libc::SYS_mprotect,
                    map.start,
                    map.end - map.start,
                    libc::PROT_READ,
                )
            };
            if failed != 0 {
                return Err(Errno(libc::EIO));
            }
            for page in 0..(map.end - map.start) / PAGE {
                let at = map.start + page * PAGE;
                let index = map.offset / PAGE as u64 + page as u64;
                self.add_uar(at, context, u32::try_from(index).unwrap_or(0))?;
            }
        }
        Ok(())
    }

    fn add_uar(&self, start: usize, context: Context, page: u32) -> Result<(), Errno> {
        let uar = {
            let pages = self.pages.lock().map_err(|_| Errno(libc::EIO))?;
            pages
                .iter()
                .find(|known| (known.0, known.1) == (context.number, page))
                .map(|p| p.2)
        };
        // A page that was not given out as a UAR rings nothing.
        let Some(uar) = uar else { return Ok(()) };
        for (index, slot) in self.uars.iter().enumerate() {
            if slot.start.load(Ordering::Acquire) != 0 {
                continue;
            }
            slot.context.store(context.number, Ordering::Relaxed);
            slot.function.store(
                u32::try_from(context.function).unwrap_or(0),
                Ordering::Relaxed,
            );
            slot.uar.store(uar, Ordering::Relaxed);
            slot.start.store(start, Ordering::Release);
            self.uars_high.fetch_max(index + 1, Ordering::AcqRel);
            return Ok(());
        }
        Err(Errno(libc::ENOMEM))
    }

    /// A store of this process hit `address`: if that is a UAR page, does what the store asks for.
    /// `value` is what was stored, as memory would hold it, if that is known. None if it is no UAR
    /// page.
    ///
    /// Async-signal-safe, for a signal that the calling thread's own store raised.
    pub fn doorbell(&self, address: usize, value: Option<u64>) -> Option<Rung> {
        let page = address & !(PAGE - 1);
        let high = self.uars_high.load(Ordering::Acquire).min(self.uars.len());
        let uar = self.uars[..high]
            .iter()
            .find(|uar| uar.start.load(Ordering::Acquire) == page);
        let uar = uar?;
        let context = uar.context.load(Ordering::Relaxed);
        let function = uar.function.load(Ordering::Relaxed) as usize;
        let number = uar.uar.load(Ordering::Relaxed);
        let bytes = value.map(u64::to_le_bytes);
        self.fabric.counters(function).trap();
        match address - page {
            CQ_DOORBELL => self.arm(function, context, bytes),
            // Of a BlueFlame copy only the first store is a doorbell; the rest is payload that
            // also lies in the ring.
            offset if offset >= SEND_DOORBELL && offset % BLUEFLAME_BYTES == 0 => {
                self.ring(function, context, number, bytes);
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
        // What was stored is not known: arm all; an event too many does no harm.
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

    fn ring(&self, function: usize, context: u32, uar: u32, bytes: Option<[u8; 8]>) {
        if let Some([_, _, _, _, a, b, c, _]) = bytes {
            let qpn = u32::from_be_bytes([0, a, b, c]);
            if engine::ring_send(self.fabric, function, (context, qpn)) {
                return;
            }
        }
        // The value does not tell whose doorbell it is: look at every queue of the page.
        let mut from = 0;
        loop {
            let next = {
                let locked = self.fabric.lock();
                let wanted = |owner: Owner, qp: &crate::fabric::objects::Qp| {
                    owner.context == context && qp.uar == uar
                };
                locked.peek(function).qps.next(from, wanted)
            };
            let Some(slot) = next else { return };
            engine::ring_send(self.fabric, function, (context, slot + QPN_BASE));
            from = slot + 1;
        }
    }

    /// The child of a fork is another process: it takes a place of its own when it first calls the
    /// device. What the parent made stays the parent's.
    pub fn after_fork_in_child(&self) {
        sys::forget_pid();
        self.number.store(0, Ordering::Release);
        engine::tick::after_fork_in_child();
        engine::poller::after_fork_in_child();
        // SAFETY: this call takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }

    /// Starts what a process with queue pairs needs.
    pub(crate) fn start_tick(&self) -> Result<(), Errno> {
        let number = self.number()?;
        engine::tick::start(self.fabric, number)
            .and_then(|()| engine::poller::start(self.fabric, number))
            .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))
    }
}

/// Where in a UAR page completion queues are armed (`mlx5.h`, MLX5_CQ_DOORBELL).
const CQ_DOORBELL: usize = 0x20;
/// Where the doorbells of send queues begin (`mlx5.h`, MLX5_BF_OFFSET).
const SEND_DOORBELL: usize = 0x800;
/// Distance of the two alternating doorbell buffers.
const BLUEFLAME_BYTES: usize = 0x100;

#[cfg(test)]
mod tests {
    use super::*;

    /// A setuid program has no device, whatever its user's environment says.
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
