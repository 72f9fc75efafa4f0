//! Kernels in a process of their own: a kernel that crashes or loops ends its process and not the service.
//!
//! The service and the process share the memory of a session's regions, whose file the process receives before the
//! session's first call. A request names function and regions by their offsets; the answer is one byte.

use crate::counters::add;
use anyhow::Context as _;
use naaice::Kernels;
use naaice::abi::code;
use naaice::kernels::{KernelRegion, run_on};
use naaice::server::Block;
use naaice::wire::REGIONS_MAX;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Descriptor of the requests in the kernel's process.
const REQUEST_FD: RawFd = 3;
/// In place of a function code: the length of the memory of the following requests. The file comes with it. Length 0
/// is the end of the memory.
const MEMORY: u8 = 0;
/// Interval at which a running kernel's caller is looked after: it may have no descriptor, and the service may end.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
const HEAD_BYTES: usize = 8;
const LENGTH_BYTES: usize = 8;
const REGION_BYTES: usize = 24;

/// A region of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Offset in the shared memory.
    pub(crate) offset: usize,
    /// Size in bytes.
    pub(crate) size: usize,
    /// Flags of the announcement.
    pub(crate) flags: u8,
}

/// How kernels run.
#[derive(Debug, Clone)]
pub(crate) struct KernelOptions {
    /// The shared object.
    pub(crate) file: PathBuf,
    /// Time limit of a call.
    pub(crate) limit: Duration,
    /// Memory of a process beside the regions, in bytes.
    pub(crate) memory: u64,
    /// Number of processes that were started.
    pub(crate) started: Arc<AtomicU64>,
}

/// Why a call has no return code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The caller is gone.
    CallerGone,
}

/// Processes without memory, for sessions whose memory ends with them. A session takes one and returns it.
#[derive(Debug)]
pub(crate) struct Stock {
    idle: Mutex<Vec<KernelProcess>>,
    max: usize,
}

impl Stock {
    /// Holds at most `max` processes.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            idle: Mutex::new(Vec::new()),
            max,
        }
    }

    /// Starts processes until there are `count`.
    ///
    /// # Errors
    /// If one cannot be started.
    pub(crate) fn fill(&self, options: &KernelOptions, count: usize) -> io::Result<()> {
        while self.idle().len() < count.min(self.max) {
            let process = KernelProcess::spawn(options)?;
            self.idle().push(process);
        }
        Ok(())
    }

    /// A process for this memory. Without an idle one it is started.
    ///
    /// # Errors
    /// If it cannot be started, or the memory is not shared.
    pub(crate) fn take(
        &self,
        options: &KernelOptions,
        memory: &Block,
    ) -> io::Result<KernelProcess> {
        loop {
            let idle = self.idle().pop();
            let Some(mut process) = idle else {
                break;
            };
            // A process that something else has ended is dropped.
            if process.attach(memory).is_ok() {
                return Ok(process);
            }
        }
        let mut process = KernelProcess::spawn(options)?;
        process.attach(memory)?;
        Ok(process)
    }

    /// Keeps a process for the next session.
    pub(crate) fn put(&self, mut process: KernelProcess) {
        if process.detach().is_err() {
            return;
        }
        let mut idle = self.idle();
        if idle.len() < self.max {
            idle.push(process);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<KernelProcess>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process that runs kernels on one block of memory at a time. Dropping it ends it and the processes of its group.
#[derive(Debug)]
pub(crate) struct KernelProcess {
    child: Child,
    /// Becomes readable when the process ends. A child of it may hold the requests' socket open.
    end: Option<OwnedFd>,
    requests: UnixStream,
}

impl KernelProcess {
    /// Starts the process.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub(crate) fn spawn(options: &KernelOptions) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["run-kernels", "--serve", "--kernels"])
            .arg(&options.file)
            .stdin(Stdio::null())
            .process_group(0);
        // The kernels need no device.
        command.env_remove("LD_PRELOAD");
        let requests = theirs.as_raw_fd();
        let parent = std::process::id();
        let memory = options.memory;
        // SAFETY: between fork and exec the closure makes system calls only.
        unsafe {
            command.pre_exec(move || {
                place(requests)?;
                limit_memory(memory)?;
                die_with_parent(parent)
            })
        };
        let child = spawn_from_keeper(command)?;
        add(&options.started, 1);
        let end = end_of(child.id());
        Ok(Self {
            child,
            end,
            requests: ours,
        })
    }

    /// Gives the process the memory of the following calls.
    ///
    /// # Errors
    /// If the process has ended, or the memory is not shared.
    pub(crate) fn attach(&mut self, memory: &Block) -> io::Result<()> {
        let file = memory.file().ok_or(io::ErrorKind::InvalidInput)?;
        let files = [file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = memory_request(memory.len());
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.requests, &[IoSlice::new(&bytes)], &mut control, flags)?;
        self.requests.write_all(&bytes[sent..])
    }

    /// Takes the memory from the process.
    fn detach(&mut self) -> io::Result<()> {
        self.requests.write_all(&memory_request(0))
    }

    /// Runs a function. `caller_gone` is asked at an interval, and when `caller` becomes readable. The descriptor may be -1.
    ///
    /// # Errors
    /// If the caller is gone. The process has to be replaced then, as after a code of [`is_dead`].
    pub(crate) fn run(
        &mut self,
        (function, user): (u8, u32),
        regions: &[Place],
        limit: Duration,
        mut caller_gone: impl FnMut() -> bool,
        caller: RawFd,
    ) -> Result<u8, Stopped> {
        if self
            .requests
            .write_all(&request(function, user, regions))
            .is_err()
        {
            return Ok(code::KERNEL_CRASHED);
        }
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(code::KERNEL_TIMEOUT);
            }
            let mut fds = [
                xgvmi_daemon::pollfd(self.requests.as_raw_fd(), libc::POLLIN),
                xgvmi_daemon::pollfd(caller, libc::POLLIN),
                xgvmi_daemon::pollfd(
                    self.end.as_ref().map_or(-1, |end| end.as_raw_fd()),
                    libc::POLLIN,
                ),
            ];
            if xgvmi_daemon::poll(&mut fds, Some(left.min(LOOK_INTERVAL))).is_err() {
                return Ok(code::KERNEL_CRASHED);
            }
            if fds[0].revents != 0 {
                let mut answer = [0];
                return Ok(match self.requests.read_exact(&mut answer) {
                    Ok(()) => answer[0],
                    Err(_) => code::KERNEL_CRASHED,
                });
            }
            if fds[2].revents != 0 {
                return Ok(self.last_answer());
            }
            if caller_gone() {
                return Err(Stopped::CallerGone);
            }
        }
    }
}

impl KernelProcess {
    /// The answer of a process that has ended.
    fn last_answer(&self) -> u8 {
        let mut answer = [0];
        match rustix::net::recv(&self.requests, &mut answer, RecvFlags::DONTWAIT) {
            Ok((_, 1)) => answer[0],
            _ => code::KERNEL_CRASHED,
        }
    }
}

/// A descriptor of the process's end; `None` on a kernel without such descriptors.
fn end_of(process: u32) -> Option<OwnedFd> {
    // SAFETY: the call takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the descriptor was just created and has no other owner.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Limits the memory of this process, without the regions: they are shared memory.
fn limit_memory(bytes: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: the structure lives during the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the process may not be used for another call.
pub(crate) fn is_dead(code: u8) -> bool {
    matches!(code, code::KERNEL_TIMEOUT | code::KERNEL_CRASHED)
}

impl Drop for KernelProcess {
    fn drop(&mut self) {
        if let Ok(group) = libc::pid_t::try_from(self.child.id()) {
            // SAFETY: the call takes two numbers. The group exists until the process is waited for.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn memory_request(length: usize) -> [u8; HEAD_BYTES + LENGTH_BYTES] {
    let mut bytes = [0; HEAD_BYTES + LENGTH_BYTES];
    bytes[0] = MEMORY;
    bytes[HEAD_BYTES..].copy_from_slice(&(length as u64).to_le_bytes());
    bytes
}

fn request(function: u8, user: u32, regions: &[Place]) -> Vec<u8> {
    let count = u8::try_from(regions.len()).expect("at most 32 regions");
    let mut bytes = vec![function, count, 0, 0];
    bytes.extend(user.to_le_bytes());
    for region in regions {
        for word in [
            region.offset as u64,
            region.size as u64,
            u64::from(region.flags),
        ] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes
}

/// Puts the descriptor where the kernel's process expects it.
fn place(requests: RawFd) -> io::Result<()> {
    // With the same number, dup2 would leave the descriptor closed at exec.
    if requests == REQUEST_FD {
        // SAFETY: the descriptor is open.
        return match unsafe { libc::fcntl(requests, libc::F_SETFD, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
    }
    // SAFETY: both numbers are descriptors of this process.
    match unsafe { libc::dup2(requests, REQUEST_FD) } {
        REQUEST_FD => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Starts a process from a thread that lives as long as the service: the system ends a process of [`die_with_parent`]
/// together with the thread that started it.
fn spawn_from_keeper(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static KEEPER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in orders {
                // Whoever ordered it waits for the answer.
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
    let (answer, answered) = mpsc::channel();
    keeper.send((command, answer)).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

/// A kernel must not outlive a service that was killed.
fn die_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: the call changes an attribute of this process only.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has no preconditions.
    let now = unsafe { libc::getppid() };
    match u32::try_from(now) == Ok(parent) {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// The kernel's process: runs functions until the service closes the requests.
///
/// # Errors
/// If the kernels cannot be loaded, or a request is damaged.
pub(crate) fn serve(kernels: &Path) -> anyhow::Result<()> {
    // SAFETY: the service has placed the descriptor, and nothing else owns it.
    let mut requests = unsafe { UnixStream::from_raw_fd(REQUEST_FD) };
    // A program that a kernel starts does not get it.
    // SAFETY: the descriptor is open.
    unsafe { libc::fcntl(REQUEST_FD, libc::F_SETFD, libc::FD_CLOEXEC) };
    let kernels = Kernels::open(kernels)?;
    let mut memory = None;
    while let Some((head, file)) = read_head(&mut requests)? {
        let [function, count, _, _, user @ ..] = head;
        if function == MEMORY {
            let mut length = [0; LENGTH_BYTES];
            requests.read_exact(&mut length)?;
            let length = usize::try_from(u64::from_le_bytes(length))?;
            // The previous memory ends first.
            drop(memory.take());
            memory = file.map(|file| Block::of_file(file, length)).transpose()?;
            continue;
        }
        let block = memory.as_ref().context("a call without memory")?;
        let mut regions = Vec::with_capacity(REGIONS_MAX);
        for _ in 0..count {
            let mut bytes = [0; REGION_BYTES];
            requests.read_exact(&mut bytes)?;
            regions.push(region(block, &bytes)?);
        }
        // SAFETY: the operator's kernels; the regions are inside the block, which the service does not access during
        // the call.
        let code = unsafe { run_on(&kernels, function, u32::from_le_bytes(user), &regions) };
        requests.write_all(&[code])?;
    }
    Ok(())
}

/// The start of a request, with the file that came with it. `None` at the end.
fn read_head(requests: &mut UnixStream) -> io::Result<Option<([u8; HEAD_BYTES], Option<OwnedFd>)>> {
    let mut head = [0; HEAD_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let target = &mut [IoSliceMut::new(&mut head)];
        recvmsg(&*requests, target, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    requests.read_exact(&mut head[received.bytes..])?;
    Ok(Some((head, file)))
}

fn region(block: &Block, bytes: &[u8; REGION_BYTES]) -> anyhow::Result<KernelRegion> {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| usize::try_from(u64::from_le_bytes(words[at]));
    let (offset, size) = (word(0)?, word(1)?);
    anyhow::ensure!(
        offset
            .checked_add(size)
            .is_some_and(|end| end <= block.len()),
        "a region beyond the memory"
    );
    Ok(KernelRegion {
        addr: block.as_ptr().wrapping_add(offset),
        size,
        flags: bytes[16],
    })
}

/// Checks that the kernels can be loaded, in a process of their own.
///
/// # Errors
/// The process's report.
pub(crate) fn check(file: &Path) -> anyhow::Result<()> {
    let arguments: [OsString; 3] = ["run-kernels".into(), "--kernels".into(), file.into()];
    let output = Command::new(std::env::current_exe()?)
        .args(arguments)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()?;
    anyhow::ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
            .trim()
            .trim_start_matches("error: ")
    );
    Ok(())
}
