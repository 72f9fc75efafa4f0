//! Processes of `xgvmi-blk` and a small NBD client, for the tests of whole processes.

#![allow(dead_code, reason = "each test program uses a part")]

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// A test that waits longer has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
pub(crate) const SECTOR: usize = 512;
/// Behind two superblocks, and an index in which a small volume can grow.
pub(crate) const RECORDS_AT: u64 = 1_937_408;

/// One test at a time: a process that one starts has the other's files open, and their locks, between fork and exec.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shared while a process starts, for tests that run at the same time.
static STARTS: RwLock<()> = RwLock::new(());

/// Held while a test itself has a target's file open: a process that another test starts has it open, too, and its lock,
/// between fork and exec.
pub(crate) fn no_starts() -> RwLockWriteGuard<'static, ()> {
    STARTS.write().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(command: &mut Command) -> Child {
    let _starts = STARTS.read().unwrap_or_else(PoisonError::into_inner);
    command.spawn().unwrap()
}

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xgvmi-blk"));
    command
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("RUNTIME_DIRECTORY");
    command
}

/// Runs a command to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    let mut command = program();
    command.args(arguments).stdin(Stdio::null());
    let pipes = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn(pipes).wait_with_output().unwrap()
}

/// Runs a command that must be successful. Returns its output.
#[track_caller]
pub(crate) fn good(arguments: &[&str]) -> String {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail. Returns its last error.
#[track_caller]
pub(crate) fn bad(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments:?} was carried out");
    String::from_utf8(output.stderr).unwrap()
}

const ANY: &str = "127.0.0.1:0";

/// A socket that has the address and never listens. Between two processes that listen there, the kernel would give the port to
/// any connection of this machine, and the second one could not bind it.
fn kept_address() -> String {
    static KEPT: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let socket = bound(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), true).unwrap();
    let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    KEPT.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(socket);
    address.to_string()
}

/// A socket at an address, which shares it with others that do so, or not.
pub(crate) fn bound(address: SocketAddrV4, shares: bool) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, shares)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// A process that serves. Dropping it kills it.
pub(crate) struct Running {
    pub(crate) child: Child,
    /// Its first line.
    pub(crate) line: String,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = spawn(command.stdout(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(
            !line.is_empty(),
            "{command:?} has ended: {:?}",
            child.wait()
        );
        Self { child, line }
    }

    /// A target; its last word is the address. The port of `127.0.0.1:0` is nobody else's afterwards, so that the target can
    /// be started again at its address.
    pub(crate) fn target(file: &Path, listen: &str, more: &[&str]) -> Self {
        let kept = (listen == ANY).then(kept_address);
        let listen = kept.as_deref().unwrap_or(listen);
        let mut command = program();
        command.arg("target").arg(file).args(["--listen", listen]);
        Self::start(command.args(more))
    }

    /// A target whose file may not grow beyond `bytes`.
    pub(crate) fn limited(file: &Path, bytes: u64) -> Self {
        let mut command = program();
        command.arg("target").arg(file);
        command.args(["--listen", "127.0.0.1:0"]);
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: bytes,
        };
        let set = move || {
            // SAFETY: the structure lives as long as the closure. The call may be made between fork and exec.
            let done = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
            match done {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure calls only functions that are allowed between fork and exec.
        Self::start(unsafe { command.pre_exec(set) })
    }

    pub(crate) fn export(targets: &[String], socket: &Path, more: &[&str]) -> Self {
        let mut command = program();
        command
            .arg("export")
            .args(targets)
            .arg("--socket")
            .arg(socket);
        Self::start(command.args(more))
    }

    /// Address of a target: `tcp:HOST:PORT`.
    pub(crate) fn address(&self) -> String {
        self.line.split_whitespace().last().unwrap().to_owned()
    }

    /// Sends a signal. After SIGSTOP it returns once no thread of the process runs: kill(2) only announces a stop.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: no memory is involved. The process is not waited for before, so its number is still its own.
        let done = unsafe { libc::kill(self.child.id().cast_signed(), signal) };
        assert_eq!(done, 0);
        if signal == libc::SIGSTOP {
            wait_until("the process stops", || self.has_stopped());
        }
    }

    fn has_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.flatten().all(|task| {
            // A thread that has ended has no such file. The state follows the name, which is in parentheses.
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
            state.is_none_or(|state| b"TZX".contains(&state))
        })
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end of the process.
    #[track_caller]
    pub(crate) fn ended(mut self) -> std::process::ExitStatus {
        let mut status = None;
        wait_until("the process ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tells that a test cannot run here.
#[allow(
    clippy::print_stdout,
    reason = "the test run counts the skips by their lines"
)]
pub(crate) fn skip(test: &str, reason: &str) {
    println!("SKIP {test}: {reason}");
}

#[track_caller]
pub(crate) fn wait_until(what: &str, done: impl FnMut() -> bool) {
    wait_within(LIMIT, what, done);
}

#[track_caller]
pub(crate) fn wait_within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Creates the targets of a volume with blocks of `block_size` bytes.
pub(crate) fn create(dir: &Path, size: usize, block_size: usize) -> [PathBuf; 3] {
    let paths = ["data_1", "data_2", "data_p"].map(|name| dir.join(name));
    let words = paths.each_ref().map(|path| path.to_str().unwrap());
    let (size, block_size) = (size.to_string(), block_size.to_string());
    let options = ["--size", &size, "--block-size", &block_size];
    good(&[&["create"], &words[..], &options[..]].concat());
    paths
}

pub(crate) fn names(paths: &[PathBuf]) -> Vec<String> {
    paths
        .iter()
        .map(|path| path.to_str().unwrap().to_owned())
        .collect()
}

/// A client with simple replies, one request at a time.
pub(crate) struct Nbd {
    pub(crate) stream: UnixStream,
    /// Size of the export when it was connected.
    pub(crate) size: u64,
}

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const FUA: u16 = 1;
pub(crate) const EIO: u32 = 5;
pub(crate) const ENOSPC: u32 = 28;

impl Nbd {
    pub(crate) fn connect(socket: &Path) -> Self {
        Self::connect_to(socket, "")
    }

    /// Connects to the export with a name.
    pub(crate) fn connect_to(socket: &Path, name: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
            .write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0")
            .unwrap();
        let length = u8::try_from(name.len()).unwrap();
        stream
            .write_all(&[&[length], name.as_bytes()].concat())
            .unwrap();
        let mut greeting = [0; 18 + 10];
        stream.read_exact(&mut greeting).unwrap();
        let size = u64::from_be_bytes(greeting[18..26].try_into().unwrap());
        Self { stream, size }
    }

    /// Writes. None if the server has gone.
    pub(crate) fn try_write(&mut self, offset: usize, data: &[u8]) -> Option<Result<(), u32>> {
        self.try_post((WRITE, 0), offset, data.len(), data).ok()?;
        self.try_reply().ok()
    }

    /// Flushes. None if the server has gone.
    pub(crate) fn try_flush(&mut self) -> Option<Result<(), u32>> {
        self.try_post((FLUSH, 0), 0, 0, &[]).ok()?;
        self.try_reply().ok()
    }

    /// Sends a request.
    pub(crate) fn post(&mut self, command: (u16, u16), offset: usize, length: usize, data: &[u8]) {
        self.try_post(command, offset, length, data).unwrap();
    }

    fn try_post(
        &mut self,
        (command, flags): (u16, u16),
        offset: usize,
        length: usize,
        data: &[u8],
    ) -> std::io::Result<()> {
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(1u64.to_be_bytes());
        bytes.extend((offset as u64).to_be_bytes());
        bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes)
    }

    /// The error number of the next reply.
    pub(crate) fn reply(&mut self) -> Result<(), u32> {
        self.try_reply().unwrap()
    }

    fn try_reply(&mut self) -> std::io::Result<Result<(), u32>> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        Ok(match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => Ok(()),
            error => Err(error),
        })
    }

    /// True if a read gets an error or the end of the connection, and no data.
    pub(crate) fn is_refused_to_read(&mut self, offset: usize, length: usize) -> bool {
        let posted = self.try_post((READ, 0), offset, length, &[]);
        let reply = posted.and_then(|()| self.try_reply());
        !matches!(reply, Ok(Ok(())))
    }

    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) -> Result<(), u32> {
        self.post((WRITE, 0), offset, data.len(), data);
        self.reply()
    }

    /// A write that is durable when it returns.
    pub(crate) fn write_through(&mut self, offset: usize, data: &[u8]) -> Result<(), u32> {
        self.post((WRITE, FUA), offset, data.len(), data);
        self.reply()
    }

    pub(crate) fn flush(&mut self) -> Result<(), u32> {
        self.post((FLUSH, 0), 0, 0, &[]);
        self.reply()
    }

    pub(crate) fn read(&mut self, offset: usize, length: usize) -> Result<Vec<u8>, u32> {
        self.post((READ, 0), offset, length, &[]);
        self.reply()?;
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        Ok(bytes)
    }
}

/// Bytes of a sector that name it and its version. Version 0 is zeros, and each third version does not compress.
pub(crate) fn sector(number: usize, version: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if version == 0 {
        return bytes;
    }
    let mark = (number as u64) << 40 | version;
    let mut random = fastrand::Rng::with_seed(mark);
    for word in bytes.chunks_mut(16) {
        let noise = if version.is_multiple_of(3) {
            random.u64(..)
        } else {
            5
        };
        word[..8].copy_from_slice(&mark.to_le_bytes());
        word[8..].copy_from_slice(&noise.to_le_bytes());
    }
    bytes
}

/// After a write that was refused: each block has what the shadow copy says or the version of the write in its range. What is
/// there counts from then on.
#[track_caller]
pub(crate) fn old_or_new(
    bytes: &[u8],
    block: usize,
    shadow: &mut [u64],
    (range, version): (std::ops::Range<usize>, u64),
) {
    let length = block / SECTOR;
    for (first, bytes) in (0..).step_by(length).zip(bytes.chunks(block)) {
        let is = |of: &dyn Fn(usize) -> u64| {
            let expect = (first..first + length).flat_map(|at| sector(at, of(at)));
            bytes.iter().copied().eq(expect)
        };
        let old = |at: usize| shadow[at];
        let new = |at: usize| {
            if range.contains(&at) {
                version
            } else {
                shadow[at]
            }
        };
        if is(&new) {
            let new: Vec<u64> = (first..first + length).map(new).collect();
            shadow[first..first + length].copy_from_slice(&new);
        } else {
            assert!(is(&old), "sector {first}: its block is neither old nor new");
        }
    }
}
