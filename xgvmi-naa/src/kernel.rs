//! Kernels in a process of their own: a kernel that crashes or loops ends its process and not the service.
//!
//! The service and the process share the memory of a session's regions. A request names function and regions by
//! their offsets; the answer is one byte.

use naaice::Kernels;
use naaice::abi::code;
use naaice::kernels::{KernelRegion, run_on};
use naaice::server::Block;
use naaice::wire::REGIONS_MAX;
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

/// Descriptor of the shared memory in the kernel's process.
const MEMORY_FD: RawFd = 3;
/// Descriptor of the requests.
const REQUEST_FD: RawFd = 4;
/// Interval at which a running kernel's caller is looked after, if it has no descriptor.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
const HEAD_BYTES: usize = 8;
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
}

/// Why a call has no return code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The caller is gone.
    CallerGone,
}

/// A process that runs kernels on one block of memory. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct KernelProcess {
    child: Child,
    requests: UnixStream,
}

impl KernelProcess {
    /// Starts the process.
    ///
    /// # Errors
    /// If the process cannot be started, or the memory is not shared.
    pub(crate) fn spawn(options: &KernelOptions, memory: &Block) -> io::Result<Self> {
        let file = memory.file().ok_or(io::ErrorKind::InvalidInput)?;
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("run-kernels")
            .arg("--kernels")
            .arg(&options.file)
            .args(["--bytes", &memory.len().to_string()])
            .stdin(Stdio::null());
        // The kernels need no device.
        command.env_remove("LD_PRELOAD");
        let (memory, requests) = (file.as_raw_fd(), theirs.as_raw_fd());
        let parent = std::process::id();
        // SAFETY: between fork and exec the closure makes system calls only.
        unsafe {
            command.pre_exec(move || {
                place(memory, requests)?;
                die_with_parent(parent)
            })
        };
        let child = spawn_from_keeper(command)?;
        Ok(Self {
            child,
            requests: ours,
        })
    }

    /// Runs a function. `caller` becomes readable when the caller is gone. Without a descriptor (-1), `caller_gone` is
    /// asked at an interval.
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
            ];
            let patience = match caller {
                -1 => left.min(LOOK_INTERVAL),
                _ => left,
            };
            if xgvmi_daemon::poll(&mut fds, Some(patience)).is_err() {
                return Ok(code::KERNEL_CRASHED);
            }
            if fds[0].revents != 0 {
                let mut answer = [0];
                return Ok(match self.requests.read_exact(&mut answer) {
                    Ok(()) => answer[0],
                    Err(_) => code::KERNEL_CRASHED,
                });
            }
            if (caller == -1 || fds[1].revents != 0) && caller_gone() {
                return Err(Stopped::CallerGone);
            }
        }
    }
}

/// Whether the process may not be used for another call.
pub(crate) fn is_dead(code: u8) -> bool {
    matches!(code, code::KERNEL_TIMEOUT | code::KERNEL_CRASHED)
}

impl Drop for KernelProcess {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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

/// Puts the descriptors where the kernel's process expects them.
fn place(memory: RawFd, requests: RawFd) -> io::Result<()> {
    // Out of the way first: one of them may have the other's number.
    let (memory, requests) = (duplicate_above(memory)?, duplicate_above(requests)?);
    for (from, to) in [(memory, MEMORY_FD), (requests, REQUEST_FD)] {
        // SAFETY: both numbers are descriptors of this process.
        if unsafe { libc::dup2(from, to) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn duplicate_above(fd: RawFd) -> io::Result<RawFd> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, REQUEST_FD + 1) } {
        fd if fd >= 0 => Ok(fd),
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
pub(crate) fn serve(kernels: &Path, bytes: usize) -> anyhow::Result<()> {
    // SAFETY: the service has placed the descriptors, and nothing else owns them.
    let (memory, requests) = unsafe {
        (
            OwnedFd::from_raw_fd(MEMORY_FD),
            UnixStream::from_raw_fd(REQUEST_FD),
        )
    };
    let mut requests = requests;
    let block = Block::of_file(memory, bytes)?;
    let kernels = Kernels::open(kernels)?;
    loop {
        let mut head = [0; HEAD_BYTES];
        match requests.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            done => done?,
        }
        let [function, count, _, _, user @ ..] = head;
        let mut regions = Vec::with_capacity(REGIONS_MAX);
        for _ in 0..count {
            let mut bytes = [0; REGION_BYTES];
            requests.read_exact(&mut bytes)?;
            regions.push(region(&block, &bytes)?);
        }
        // SAFETY: the operator's kernels; the regions are inside the block, which the service does not access during
        // the call.
        let code = unsafe { run_on(&kernels, function, u32::from_le_bytes(user), &regions) };
        requests.write_all(&[code])?;
    }
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
