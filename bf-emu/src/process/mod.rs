//! This process at the device: its attachment, its open contexts, and its doorbell pages.
//!
//! The signal handler reads only arrays of atomics of fixed size.

mod clock;
mod contexts;
pub(crate) mod device_memory;
mod maps;
mod uars;

use std::ffi::CStr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

pub use contexts::{CONTEXTS_MAX, Context};
use contexts::{Contexts, Opened};
use maps::Mapping;
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
use crate::sys::{self, Errno};
use crate::view::state;

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
    contexts: Contexts,
    uars: Uars,
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

/// Says, once in a process, that it can open no more contexts: libibverbs shows another error.
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

/// Bytes of what a context's file says of itself: magic, number, owner, index in the view.
const DESCRIPTION_BYTES: usize = 24;

/// Writes into a context's file whose context it is, for the processes that receive the file.
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
            contexts: Contexts::new(),
            uars: Uars::new(),
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
            start_time: start_time(pid).ok_or("/proc/self/stat cannot be read")?,
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

    /// Takes in a context behind a file.
    fn register(&self, fd: RawFd, opened: Opened) -> Result<Context, Errno> {
        let file = sys::file_id(fd)?;
        self.contexts.add(file, opened).ok_or_else(|| {
            tell_of_contexts();
            Errno(libc::EMFILE)
        })
    }

    /// The context behind a file, which may have been inherited or received.
    pub(crate) fn context_of(&self, fd: RawFd) -> Option<Context> {
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

    /// The view index of the device that a file is open on; None for any other file.
    pub fn device_of(&self, fd: RawFd) -> Option<usize> {
        let context = self.context_of(fd)?;
        Some(self.contexts.view_index(context))
    }

    /// A file of this process is about to be closed. The last one of a context takes its objects
    /// with it, unless they belong to a parent.
    pub fn closing(&self, fd: RawFd) {
        let Some(context) = self.context_of(fd) else {
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
        }
        self.uars.take_back_all(context);
        self.contexts.remove(context);
    }

    /// Takes a context's objects away, and closes the files of its channels that are this process's.
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
        let page = self.contexts.next_page(context);
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
        self.uars.give(context, page.into(), uar)?;
        Ok((offset, uar))
    }

    /// Takes a UAR page back.
    pub(crate) fn drop_uar(&self, context: Context, uar: u32) -> Result<(), Errno> {
        self.uars.take_back(context, uar)
    }

    /// Finds the mappings of UAR pages given out since the last call, and closes them to stores:
    /// from now on a store is a doorbell. To be called before a queue can be rung.
    ///
    /// In polling mode stores are left alone.
    pub(crate) fn close_uars(&self) -> Result<(), Errno> {
        if engine::polling::is_on() {
            return Ok(());
        }
        if !self.uars.take_unseen() {
            return Ok(());
        }
        let maps = std::fs::read_to_string("/proc/self/maps").map_err(|_| Errno(libc::EIO))?;
        for map in maps.lines().filter_map(Mapping::parse) {
            let Some(context) = self.contexts.find(map.file) else {
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
                self.uars.mapped(at, context, index)?;
            }
        }
        Ok(())
    }

    /// A store of this process hit `address`: if that is a UAR page, does what the store asks for.
    /// `value` is what was stored, as memory would hold it, if that is known. None if it is no UAR
    /// page.
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
            if engine::ring_send(self.fabric, function, (context, qpn), uar) {
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
            engine::ring_send(self.fabric, function, (context, slot + QPN_BASE), uar);
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
