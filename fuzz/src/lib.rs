//! A device in the fuzzer's own process, and calls on it in the form of libibverbs.
//!
//! The addresses in a call are in [`Arena`] or unmapped. The device correctly writes to the
//! addresses that its user names. Writes to the fuzzer's own memory would reveal no bug.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::OnceLock;

use arbitrary::Arbitrary;
use bf_emu::engine;
use bf_emu::process::{self, Process};
use bf_emu::model::profile::Profile;
use bf_emu::view::state::StateDir;
use bf_emu::model::topology::Topology;

/// `RDMA_VERBS_IOCTL`.
const REQUEST: u64 = 0xc018_1b01;
const HEADER_BYTES: usize = 24;
const ATTR_BYTES: usize = 16;
/// Attributes of one call: one more than the device accepts.
const ATTRS_MAX: usize = 49;
/// Files that one input can leave open: one for each call.
const FILES_MAX: i32 = 64;
/// Bytes of the arena.
const ARENA_BYTES: usize = 1 << 16;

/// The value of an attribute.
#[derive(Debug, Clone, Arbitrary)]
pub enum Value {
    /// A number in the attribute itself, and its declared length.
    Number(u32, u8),
    /// A handle: its kind and index.
    Handle(u8, u8),
    /// Bytes in the arena.
    Bytes(Vec<u8>),
    /// A buffer for an answer.
    Capacity(u16),
    /// An address in the arena, as a number.
    Address(u16),
    /// An unmapped address, and its declared length.
    Nowhere(u16),
}

/// An attribute.
#[derive(Debug, Clone, Arbitrary)]
pub struct Attr {
    /// Low byte of its number.
    pub id: u8,
    /// True for a number of the driver.
    pub of_driver: bool,
    /// Flags.
    pub flags: u8,
    /// Value.
    pub value: Value,
}

/// Memory for the calls.
pub struct Arena {
    bytes: Box<[u64]>,
}

impl Arena {
    fn new() -> Self {
        Self {
            bytes: vec![0; ARENA_BYTES / 8].into_boxed_slice(),
        }
    }

    /// Address of its first byte.
    pub fn address(&self) -> u64 {
        self.bytes.as_ptr().expose_provenance() as u64
    }

    fn at(&self, offset: usize) -> u64 {
        self.address() + (offset % ARENA_BYTES) as u64
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= ARENA_BYTES, "beyond the arena");
        let to = self.bytes.as_mut_ptr().cast::<u8>();
        // SAFETY: the target is in the arena, which is borrowed exclusively. The source is
        // elsewhere.
        unsafe {
            to.add(offset)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
}

/// An open context and the resources of one input.
pub struct Device {
    process: &'static Process,
    fd: RawFd,
    /// Memory for the calls.
    pub arena: Arena,
    used: usize,
}

impl Device {
    /// Opens a context. The first call creates the device.
    pub fn open() -> Self {
        let process = process();
        let fd = process.open(0, true).expect("a context");
        let (arena, used) = (Arena::new(), 0);
        Self {
            process,
            fd,
            arena,
            used,
        }
    }

    /// Makes a call. Returns the attributes after it, if it succeeded.
    pub fn call(&mut self, object: u16, method: u16, attrs: &[Attr]) -> Option<Vec<u64>> {
        let mut frame = vec![0_u64; (HEADER_BYTES + attrs.len() * ATTR_BYTES) / 8];
        let bytes = (HEADER_BYTES + attrs.len() * ATTR_BYTES) as u64;
        frame[0] = bytes & 0xffff
            | u64::from(object) << 16
            | u64::from(method) << 32
            | (attrs.len() as u64) << 48;
        // The driver number of mlx5.
        frame[2] = 1;
        for (attr, words) in attrs.iter().zip(frame[3..].chunks_exact_mut(2)) {
            let (length, data) = self.place(&attr.value);
            let id = u64::from(attr.id) | u64::from(attr.of_driver) << 12;
            words[0] = id | u64::from(length) << 16 | u64::from(attr.flags) << 32;
            words[1] = data;
        }
        let argument = frame.as_mut_ptr().expose_provenance();
        let context = self.process.context_of(self.fd)?;
        let done = bf_emu::commands::ioctl(self.process, (context, self.fd), REQUEST, argument);
        let done = done.is_ok();
        done.then(|| frame[3..].iter().skip(1).step_by(2).copied().collect())
    }

    /// Length and data word of a value.
    fn place(&mut self, value: &Value) -> (u16, u64) {
        match value {
            Value::Number(number, length) => (u16::from(length % 12), u64::from(*number)),
            Value::Handle(kind, slot) => (0, u64::from(*kind) << 24 | u64::from(*slot)),
            Value::Address(offset) => (8, self.arena.at(usize::from(*offset))),
            // Not canonical: never mapped.
            Value::Nowhere(length) => (*length, 0x8000_0000_0000_0000),
            Value::Bytes(bytes) => {
                let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
                if length <= 8 {
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    return (length, u64::from_ne_bytes(word));
                }
                let address = self.take(usize::from(length));
                let offset = (address - self.arena.address()) as usize;
                self.arena.put(offset, &bytes[..usize::from(length)]);
                (length, address)
            }
            Value::Capacity(length) => {
                let length = length % 4096;
                (length, self.take(usize::from(length)))
            }
        }
    }

    /// An unused part of the arena. A request that does not fit starts at the beginning again.
    fn take(&mut self, bytes: usize) -> u64 {
        if self.used + bytes > ARENA_BYTES {
            self.used = 0;
        }
        let address = self.arena.at(self.used);
        self.used += bytes.next_multiple_of(8);
        address
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Calls may have opened files, with descriptors after the context's.
        // SAFETY: reads flags only; the descriptor may be closed.
        let is_open = |fd: &RawFd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0;
        for fd in (self.fd..self.fd + FILES_MAX).take_while(is_open) {
            self.process.closing(fd);
            // SAFETY: only this device has opened files since its creation.
            unsafe { libc::close(fd) };
        }
    }
}

/// Truncates a list of attributes to the useful length.
pub fn limited(attrs: &[Attr]) -> &[Attr] {
    &attrs[..attrs.len().min(ATTRS_MAX)]
}

fn process() -> &'static Process {
    static PROCESS: OnceLock<&'static Process> = OnceLock::new();
    PROCESS.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let topology = Topology::with_nodes(1).expect("a topology");
        let profile = Profile::load("none").expect("a profile");
        let state = StateDir::create(&dir.path().join("state"), &topology, &profile);
        let state = state.expect("a device");
        let lock = state.lock().expect("a lock");
        let fabric = engine::create(state.path(), &topology, &profile);
        drop(fabric.expect("a fabric"));
        state.make_view("node0.host", &lock).expect("a view");
        drop(lock);
        // SAFETY: the fuzzer has one thread, which is this one.
        unsafe { std::env::set_var(process::ENV_STATE, state.path()) };
        // SAFETY: as above.
        unsafe { std::env::set_var(process::ENV_AS, "node0.host") };
        let process = process::current().expect("a process on the device");
        // The device is open and no longer needs its directory.
        drop(dir);
        guard();
        process
    })
}

thread_local! {
    /// The previous fault handlers.
    static BEFORE: RefCell<[Option<libc::sigaction>; 2]> = const { RefCell::new([None; 2]) };
}

/// Lets guarded copies survive a missing page, as in the preload library. The fuzzer handles other
/// faults.
fn guard() {
    for (index, signal) in [libc::SIGSEGV, libc::SIGBUS].into_iter().enumerate() {
        // SAFETY: all zero is a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: both are valid, and the handler is never unloaded.
        unsafe { libc::sigaction(signal, &action, &mut before) };
        BEFORE.with_borrow_mut(|all| all[index] = Some(before));
    }
}

extern "C" fn on_fault(
    signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes the interrupted thread's context.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    {
        let rip = &mut registers.gregs[libc::REG_RIP as usize];
        if let Some(next) = bf_emu::guard::fixup(*rip as usize) {
            *rip = next as i64;
            return;
        }
    }
    let _registers = registers;
    let index = usize::from(signal == libc::SIGBUS);
    let before = BEFORE.with_borrow(|all| all[index]);
    if let Some(before) = before {
        // SAFETY: the previous action is valid. The instruction faults again, and that action
        // handles it.
        unsafe { libc::sigaction(signal, &before, std::ptr::null_mut()) };
    }
}

/// A command of the connection manager.
#[derive(Debug, Clone, Arbitrary)]
pub struct Command {
    /// Its number.
    pub number: u8,
    /// The identifier that it names.
    pub id: u8,
    /// Declared bytes of its structure.
    pub given: u16,
    /// Room for the answer.
    pub room: u16,
    /// An unmapped address for the answer.
    pub nowhere: bool,
    /// Its structure, except identifier and addresses.
    pub structure: Vec<u8>,
}

/// Two open files of the connection manager.
pub struct Connections {
    process: &'static Process,
    files: [RawFd; 2],
    arena: Arena,
}

impl Connections {
    /// Opens the files. The first call creates the device.
    pub fn open() -> Self {
        let process = process();
        let file = || process.open_rdma_cm(true, false).expect("a file");
        let files = [file(), file()];
        let arena = Arena::new();
        Self {
            process,
            files,
            arena,
        }
    }

    /// Writes a command. Addresses in it are in the arena or unmapped.
    pub fn write(&mut self, file: usize, command: &Command) {
        const STRUCTURE_BYTES: usize = 296;
        const HEADER_BYTES: usize = 8;
        /// Place of answers: behind the longest command.
        const ANSWER: usize = 1024;
        let number = command.number % 25;
        let mut bytes = vec![0; HEADER_BYTES + STRUCTURE_BYTES];
        bytes[0] = number;
        bytes[4..6].copy_from_slice(&(command.given % 400).to_ne_bytes());
        bytes[6..8].copy_from_slice(&(command.room % 1024).to_ne_bytes());
        for (to, from) in bytes[HEADER_BYTES..].iter_mut().zip(&command.structure) {
            *to = *from;
        }
        let answer = match command.nowhere {
            true => 0x8000_0000_0000_0000,
            false => self.arena.at(ANSWER),
        };
        let (answer_at, id_at) = places(number);
        if let Some(at) = answer_at {
            let at = HEADER_BYTES + at;
            bytes[at..at + 8].copy_from_slice(&answer.to_ne_bytes());
        }
        if let Some(at) = id_at {
            let at = HEADER_BYTES + at;
            bytes[at..at + 4].copy_from_slice(&u32::from(command.id % 32).to_ne_bytes());
        }
        if number == 18 {
            let from = self.files[usize::from(command.id) % 2];
            bytes[HEADER_BYTES + 12..HEADER_BYTES + 16].copy_from_slice(&from.to_ne_bytes());
        }
        let length = bytes.len();
        self.arena.put(0, &bytes);
        let fd = self.files[file % 2];
        let at = self.arena.address() as usize;
        let _ = bf_emu::commands::write_rdma_cm(self.process, fd, at, length);
    }
}

/// Offsets of the answer's address (or a value's) and of the identifier in a command's structure.
fn places(number: u8) -> (Option<usize>, Option<usize>) {
    match number {
        0 => (Some(8), None),
        1 | 5 | 11 | 17 | 18 | 19 | 14 => (Some(0), Some(8)),
        2 => (Some(0), Some(36)),
        3 => (None, Some(56)),
        6 => (None, Some(272)),
        8 => (None, Some(280)),
        12 => (Some(0), None),
        16 => (Some(0), Some(44)),
        22 => (Some(0), Some(16)),
        _ => (None, Some(0)),
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        for fd in self.files {
            self.process.closing(fd);
            // SAFETY: this value has opened the file.
            unsafe { libc::close(fd) };
        }
    }
}
