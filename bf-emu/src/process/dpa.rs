//! This process's connections to the DPA's runner: the process that has the DPA's memory and executes its threads.
//!
//! The first command of a context starts the runner if there is none. A context has one connection that carries no command: the
//! runner releases the context's objects when it closes. Each command has another connection, so that a remote call that
//! runs does not keep other threads from the device. Once a connection has broken, the DPA is lost for the context.

pub(crate) mod wire;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Context, ENV_AS, ENV_STATE, Process};
use crate::sys::once::Once;
use crate::sys::{self, Errno};
use crate::view::state::ENV_LIBRARY;
use wire::{Answer, Kind, Request, option};

/// Environment variable with the path of the program `bf-emu`.
pub const ENV_PROGRAM: &str = "BFEMU_PROGRAM";
/// Environment variable with options of the program's processes of the DPA, see [`options`].
pub const ENV_OPTIONS: &str = "BFEMU_DPA";
/// Name of the runner's socket in the state directory.
pub const SOCKET: &str = "dpa.sock";
/// Idle connections that a context keeps.
const IDLE_MAX: usize = 4;

/// Connections of a context.
#[derive(Debug)]
struct Session {
    /// Keeps the context's objects.
    #[expect(dead_code, reason = "open as long as the session")]
    control: UnixStream,
    idle: Vec<UnixStream>,
    is_lost: bool,
}

/// By process and context.
type Sessions = HashMap<(i32, u32), Session>;

/// The child of a fork has sessions of its own, and a lock of its own: a thread that it has not may hold its parent's.
static SESSIONS: Once<Mutex<Sessions>> = Once::new();

fn sessions() -> MutexGuard<'static, Sessions> {
    let sessions = SESSIONS.get_or_make(Mutex::default);
    sessions.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The options in a list with commas: `weak` reports missing fences, `core` writes a core file at a fault, `hold` lets threads wait
/// for a debugger, `limit=N` kills a function after N seconds.
///
/// # Errors
/// A name is unknown, or the limit is not below the DPA's own.
pub fn options(list: &str) -> Result<u32, String> {
    let names = list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let mut options = 0;
    for name in names {
        if let Some(seconds) = name.strip_prefix("limit=") {
            let own = option::LIMIT_SECONDS;
            let seconds = seconds.parse().ok().filter(|of| (1..=own).contains(of));
            let seconds: u32 = seconds
                .ok_or_else(|| format!("{name:?}: the limit of the DPA is 1 to {own} seconds"))?;
            options |= seconds << option::LIMIT_AT;
            continue;
        }
        let known = option::NAMES.iter().find(|(known, _)| *known == name);
        let (_, bit) = known.ok_or_else(|| {
            let names = option::NAMES.map(|(name, _)| name).join(", ");
            format!("{name:?} is no option of the DPA: there are {names}, limit=SECONDS")
        })?;
        options |= bit;
    }
    Ok(options)
}

/// The options of this process's environment. A bad name counts as none: `bf-emu run` has checked them.
fn chosen() -> u32 {
    let list = std::env::var(ENV_OPTIONS).unwrap_or_default();
    options(&list).unwrap_or_default()
}

/// Sends a command of a context to the runner, and waits for the answer. A remote call may take long, so the caller's signals come
/// through, except those that it blocks.
///
/// # Errors
/// EIO: the runner has ended. ENODEV: it cannot be started.
pub(crate) fn command(
    (process, context, signals): (&Process, Context, u64),
    (kind, object): (Kind, u32),
    input: &[u8],
    capacity: usize,
) -> Result<Answer, Errno> {
    let key = (sys::pid(), context.number);
    if !process.contexts.is_of(context, key.0) {
        // The objects belong to the program that has opened the context.
        return Err(Errno(libc::EPERM));
    }
    let request = Request {
        kind,
        process: process.number()?,
        context: context.number,
        function: u32::try_from(context.function).map_err(|_| Errno(libc::EINVAL))?,
        object,
        capacity: u32::try_from(capacity).map_err(|_| Errno(libc::EINVAL))?,
        pid: sys::pid(),
        options: chosen(),
    };
    let stream = take(process, key, &request)?;
    let exchanged = exchange(&stream, &request, input, signals);
    let mut sessions = sessions();
    let Some(session) = sessions.get_mut(&key) else {
        return Err(Errno(libc::EIO));
    };
    match exchanged {
        Ok(answer) => {
            if session.idle.len() < IDLE_MAX {
                session.idle.push(stream);
            }
            Ok(answer)
        }
        Err(_) => {
            session.is_lost = true;
            Err(Errno(libc::EIO))
        }
    }
}

fn exchange(
    stream: &UnixStream,
    request: &Request,
    input: &[u8],
    signals: u64,
) -> io::Result<Answer> {
    request.send(stream, input)?;
    wait_readable(stream.as_raw_fd(), signals);
    Answer::receive(stream)
}

/// Waits until a descriptor is readable or closed, with this set of blocked signals. The handlers of others run meanwhile.
fn wait_readable(fd: RawFd, blocked: u64) {
    /// Bytes of the kernel's set of signals, on every supported platform.
    const SET_BYTES: usize = 8;
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let no_limit: *const libc::timespec = std::ptr::null();
    let mut again = true;
    while again {
        // SAFETY: one entry, no time, and a set of signals with its size.
        let polled = unsafe {
            libc::syscall(
                libc::SYS_ppoll,
                &raw mut poll,
                1,
                no_limit,
                &raw const blocked,
                SET_BYTES,
            )
        };
        again = polled < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
    }
}

/// A connection of a context for one command. The first one of a context opens its session.
fn take(process: &Process, key: (i32, u32), request: &Request) -> Result<UnixStream, Errno> {
    let state = process.fabric().path();
    let socket = state.parent().unwrap_or(state).join(SOCKET);
    let mut sessions = sessions();
    if let Some(session) = sessions.get_mut(&key) {
        if session.is_lost {
            return Err(Errno(libc::EIO));
        }
        if let Some(stream) = session.idle.pop() {
            return Ok(stream);
        }
        let connected = UnixStream::connect(&socket);
        return connected.map_err(|_| {
            session.is_lost = true;
            Errno(libc::EIO)
        });
    }
    let control = open(&socket, request)?;
    let stream = UnixStream::connect(&socket).map_err(|_| Errno(libc::EIO))?;
    let session = Session {
        control,
        idle: Vec::new(),
        is_lost: false,
    };
    sessions.insert(key, session);
    Ok(stream)
}

/// Attempts to open a session, and the pause between them. Many programs may begin and end at the same time, each with a runner
/// of its own.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(2);

/// Opens a session. A runner whose last program ends at this moment serves no other one; then the next one does.
fn open(socket: &Path, request: &Request) -> Result<UnixStream, Errno> {
    let hello = Request {
        kind: Kind::Hello,
        ..*request
    };
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        let stream = match UnixStream::connect(socket) {
            Ok(stream) => stream,
            Err(_) => {
                start(socket)?;
                match UnixStream::connect(socket) {
                    Ok(stream) => stream,
                    Err(_) => continue,
                }
            }
        };
        match exchange(&stream, &hello, &[], u64::MAX) {
            Ok(answer) if answer.status == 0 && answer.errno == 0 => return Ok(stream),
            Ok(_) => return Err(Errno(libc::ENOMEM)),
            Err(_) => {}
        }
    }
    Err(Errno(libc::ENODEV))
}

/// The program `bf-emu`: by the environment, or beside the library.
fn program() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os(ENV_PROGRAM).filter(|path| !path.is_empty()) {
        return Some(program.into());
    }
    let library = PathBuf::from(std::env::var_os(ENV_LIBRARY)?);
    let dir = library.parent()?;
    let candidates = [dir.join("bf-emu"), dir.join("../../bin/bf-emu")];
    candidates.into_iter().find(|path| path.is_file())
}

/// Starts the runner. It answers when its socket exists.
fn start(socket: &Path) -> Result<(), Errno> {
    let refused = |text: String| {
        let text = format!("bf-emu: the DPA's runner cannot be started: {text}\n");
        let _ = sys::write(2, text.as_bytes());
        Errno(libc::ENODEV)
    };
    let program =
        program().ok_or_else(|| refused(format!("no program bf-emu; name it in {ENV_PROGRAM}")))?;
    let mut command = Command::new(&program);
    command.args(["dpa", "serve", "--background"]);
    command
        .arg("--state")
        .arg(socket.parent().unwrap_or(socket));
    for name in ["LD_PRELOAD", ENV_STATE, ENV_AS, ENV_LIBRARY] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(refused(format!("{}: {status}", program.display()))),
        // The program ignores SIGCHLD, so the result is not known. The connection will show it.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(()),
        Err(error) => Err(refused(format!("{}: {error}", program.display()))),
    }
}

impl Process {
    /// Ends a context's session: the runner releases its objects.
    pub(super) fn close_dpa(&self, context: Context) {
        sessions().remove(&(sys::pid(), context.number));
    }

    /// For the child of a fork, which has one thread.
    pub(super) fn forget_dpa() {
        SESSIONS.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its parent's thread never opens the lock in the child.
    #[test]
    fn a_child_does_not_wait_for_a_thread_that_has_the_sessions() {
        let held = sessions();
        // SAFETY: the child allocates, which glibc allows in a child, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the alarm ends a child that waits.
            unsafe { libc::alarm(30) };
            Process::forget_dpa();
            let is_empty = sessions().is_empty();
            // SAFETY: ends the child without its parent's destructors.
            unsafe { libc::_exit(i32::from(!is_empty)) };
        }
        let mut status = -1;
        // SAFETY: the child is this process's own, and the status is of this frame.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        drop(held);
        assert_eq!(status, 0);
    }
}
