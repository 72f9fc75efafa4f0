//! The command `storage-power`: runs a program on a file whose disk can lose its power. It carries out the program's writes and
//! flushes itself, by a filter of system calls. At SIGUSR1 it kills the program, and of what was not flushed each sector
//! becomes what it was before, or stays.

use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};

const HELP: &str = "\
Usage: storage-power FILE SEED PROGRAM [ARGUMENT]...

Runs a program that writes FILE by pwrite and pwritev. SIGUSR1 kills it: what no flush covered is lost by sectors at random.";

/// Bytes of a sector, which is written as a whole.
const SECTOR: usize = 512;
/// Most versions of sectors that are kept. A disk with more in its cache writes it.
const KEPT_MAX: usize = 1 << 17;
/// Longest call of a program that is carried out.
const CALL_MAX: usize = 64 << 20;
/// Parts of a call: the system's limit.
const PARTS_MAX: usize = 1024;
/// Milliseconds until the program is looked after.
const PAUSE_MS: i32 = 100;

/// Calls that change the file or flush it. Others go their way.
const CALLS: [i64; 6] = [
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_fallocate,
];

static CUT: AtomicBool = AtomicBool::new(false);

extern "C" fn cut(_signal: libc::c_int) {
    CUT.store(true, Ordering::Relaxed);
}

fn system(done: i64, what: &str) -> Result<i64> {
    match done {
        -1 => Err(io::Error::last_os_error()).context(what.to_owned()),
        done => Ok(done),
    }
}

/// Filters the system calls of this thread and of the programs that it starts. Returns where they arrive.
fn filter() -> Result<OwnedFd> {
    let code = |bits: u32| u16::try_from(bits).unwrap_or_default();
    let statement = |bits: u32, k: u32| libc::sock_filter {
        code: code(bits),
        jt: 0,
        jf: 0,
        k,
    };
    // The number of the call is the first word.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for (at, call) in CALLS.iter().enumerate() {
        program.push(libc::sock_filter {
            jt: u8::try_from(CALLS.len() - at)?,
            ..statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                u32::try_from(*call)?,
            )
        });
    }
    program.push(statement(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ALLOW,
    ));
    program.push(statement(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_USER_NOTIF,
    ));
    let program = libc::sock_fprog {
        len: u16::try_from(program.len())?,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: plain integers.
    let alone = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    system(alone.into(), "no new privileges")?;
    // SAFETY: the filter lives until the call has returned, which copies it.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    let listener = i32::try_from(system(listener, "a filter of system calls")?)?;
    // SAFETY: a new descriptor that nothing else has.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// The file with what its disk has not written for sure.
struct Disk {
    path: PathBuf,
    file: File,
    /// Former versions of sectors, the oldest first. None of them is older than the last flush.
    kept: BTreeMap<u64, Vec<[u8; SECTOR]>>,
    versions: usize,
}

impl Disk {
    /// Keeps what is in this range, which is about to change.
    fn keep(&mut self, offset: u64, length: u64) -> io::Result<()> {
        for sector in offset / SECTOR as u64..(offset + length).div_ceil(SECTOR as u64) {
            let mut bytes = [0; SECTOR];
            let mut at = 0;
            while at < SECTOR {
                let place = sector * SECTOR as u64 + at as u64;
                match self.file.read_at(&mut bytes[at..], place)? {
                    0 => break,
                    count => at += count,
                }
            }
            self.kept.entry(sector).or_default().push(bytes);
            self.versions += 1;
        }
        if self.versions > KEPT_MAX {
            self.flushed();
        }
        Ok(())
    }

    fn flushed(&mut self) {
        self.kept.clear();
        self.versions = 0;
    }

    /// Each sector without a flush becomes one of its former versions, or stays. Returns how many became older, of how many.
    fn lose_power(&mut self, random: &mut fastrand::Rng) -> Result<(usize, usize)> {
        // Disks write most, some, or nothing of what they have in their caches.
        let written = random.u32(..4);
        let mut lost = 0;
        for (sector, versions) in &self.kept {
            if random.u32(..4) >= written {
                let old = &versions[random.usize(..versions.len())];
                self.file.write_all_at(old, sector * SECTOR as u64)?;
                lost += 1;
            }
        }
        let all = self.kept.len();
        self.flushed();
        Ok((lost, all))
    }
}

/// The program under way.
struct Watched {
    child: Child,
    listener: OwnedFd,
    disk: Disk,
}

impl Watched {
    fn start(file: &Path, program: &str, arguments: &[String]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments);
        // The filter belongs to the thread that ends here, and to the program.
        let started = std::thread::spawn(move || -> Result<(OwnedFd, Child)> {
            let listener = filter()?;
            let child = command
                .spawn()
                .with_context(|| format!("{:?}", command.get_program()))?;
            Ok((listener, child))
        });
        let started = started.join();
        let (listener, child) = started.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        // O_NONBLOCK has no effect on a file; what is a pipe does not block.
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK);
        let opened = options.open(file);
        Ok(Self {
            child,
            listener,
            disk: Disk {
                path: file.canonicalize()?,
                file: opened.with_context(|| file.display().to_string())?,
                kept: BTreeMap::new(),
                versions: 0,
            },
        })
    }

    /// Carries out calls until the program has ended or the power is lost. Returns true if it is.
    fn serve(&mut self) -> Result<bool> {
        while !CUT.load(Ordering::Relaxed) {
            if self.child.try_wait()?.is_some() {
                return Ok(false);
            }
            let mut poll = libc::pollfd {
                fd: self.listener.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: the place of one entry.
            let ready = unsafe { libc::poll(&raw mut poll, 1, PAUSE_MS) };
            if ready == 1 && poll.revents & libc::POLLIN != 0 {
                self.answer()?;
            } else if ready == 1 {
                // All that were filtered are gone.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        Ok(true)
    }

    fn answer(&mut self) -> Result<()> {
        // SAFETY: plain integers, for which zeros are asked for.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        let listener = self.listener.as_raw_fd();
        // SAFETY: the place of a call.
        let got = unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call) };
        if got != 0 {
            // Its thread is gone, or a signal has come.
            return Ok(());
        }
        // SAFETY: plain integers.
        let mut reply: libc::seccomp_notif_resp = unsafe { std::mem::zeroed() };
        reply.id = call.id;
        match self.carry_out(&call) {
            None => reply.flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE)?,
            Some(Ok(value)) => reply.val = value,
            Some(Err(error)) => reply.error = -error.raw_os_error().unwrap_or(libc::EIO),
        }
        // SAFETY: the place of an answer. If the thread is gone meanwhile, nobody misses it.
        unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const reply) };
        Ok(())
    }

    /// Carries out a call on the file. None: it is of another file.
    fn carry_out(&mut self, call: &libc::seccomp_notif) -> Option<io::Result<i64>> {
        let number = i64::from(call.data.nr);
        let args = call.data.args;
        let link = format!("/proc/{}/fd/{}", call.pid, args[0]);
        if std::fs::read_link(link).ok()? != self.disk.path {
            return None;
        }
        Some(match number {
            libc::SYS_fdatasync | libc::SYS_fsync => {
                self.disk.flushed();
                Ok(0)
            }
            libc::SYS_fallocate => self.allocate(args),
            libc::SYS_pwrite64 => memory(call.pid, &[(args[1], args[2])])
                .and_then(|bytes| self.write(args[3], &bytes)),
            _ => parts(call.pid, args[1], args[2])
                .and_then(|parts| memory(call.pid, &parts))
                .and_then(|bytes| self.write(args[3], &bytes)),
        })
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<i64> {
        self.disk.keep(offset, bytes.len() as u64)?;
        self.disk.file.write_all_at(bytes, offset)?;
        i64::try_from(bytes.len()).map_err(io::Error::other)
    }

    fn allocate(&mut self, args: [u64; 6]) -> io::Result<i64> {
        let [_, mode, offset, length, ..] = args;
        self.disk.keep(offset, length)?;
        let whole = |number: u64| i64::try_from(number).map_err(io::Error::other);
        let mode = i32::try_from(mode).map_err(io::Error::other)?;
        let file = self.disk.file.as_raw_fd();
        // SAFETY: plain integers and an open file.
        match unsafe { libc::fallocate(file, mode, whole(offset)?, whole(length)?) } {
            0 => Ok(0),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Reads parts of a process's memory.
fn memory(process: u32, parts: &[(u64, u64)]) -> io::Result<Vec<u8>> {
    let length: u64 = parts.iter().map(|part| part.1).sum();
    let length = usize::try_from(length).map_err(io::Error::other)?;
    if length > CALL_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut bytes = vec![0; length];
    let remote: Vec<libc::iovec> = parts
        .iter()
        .map(|(address, length)| libc::iovec {
            iov_base: *address as *mut libc::c_void,
            // Cannot be cut: the sum fits.
            iov_len: usize::try_from(*length).unwrap_or(usize::MAX),
        })
        .collect();
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: length,
    };
    let process = i32::try_from(process).map_err(io::Error::other)?;
    // SAFETY: the local part is the whole vector; a wrong address of the other process is an error.
    let done = unsafe {
        libc::process_vm_readv(
            process,
            &raw const local,
            1,
            remote.as_ptr(),
            remote.len() as u64,
            0,
        )
    };
    match usize::try_from(done) {
        Ok(done) if done == length => Ok(bytes),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

/// Addresses and lengths of the parts of a call.
fn parts(process: u32, address: u64, count: u64) -> io::Result<Vec<(u64, u64)>> {
    if count > PARTS_MAX as u64 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let bytes = memory(process, &[(address, count * 16)])?;
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (pairs, _) = words.as_chunks::<2>();
    Ok(pairs.iter().map(|pair| (pair[0], pair[1])).collect())
}

fn run() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if matches!(&words[..], [word] if word == "--help" || word == "-h") {
        writeln!(io::stdout(), "{HELP}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let [file, seed, program, arguments @ ..] = &words[..] else {
        bail!("give a file, a seed and a program; try --help");
    };
    let mut random = fastrand::Rng::with_seed(seed.parse().context("the seed")?);
    // SAFETY: the handler stores a flag.
    let handled = unsafe { libc::signal(libc::SIGUSR1, cut as *const () as libc::sighandler_t) };
    ensure!(handled != libc::SIG_ERR, "no handler of SIGUSR1");
    let mut watched = Watched::start(Path::new(file), program, arguments)?;
    // The program, which gets it, too, decides.
    // SAFETY: plain integers.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    writeln!(
        io::stdout(),
        "storage-power: process {}",
        watched.child.id()
    )?;
    let is_cut = watched.serve();
    if !matches!(is_cut, Ok(false)) {
        watched.child.kill()?;
    }
    let status = watched.child.wait()?;
    if is_cut? {
        let (lost, all) = watched.disk.lose_power(&mut random)?;
        writeln!(
            io::stdout(),
            "storage-power: {lost} of {all} sectors are lost"
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("storage-power: {error:#}");
        ExitCode::FAILURE
    })
}
