//! The runner's sessions: who may command what, and what goes away with whom.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Mutex;

use super::tables::{Open, Runner, Session, What};
use super::{commands, debug, report};
use crate::process::Process;
use crate::process::dpa::SOCKET;
use crate::process::dpa::wire::{Answer, Kind, Request};
use crate::sys;

/// Time for the first program to open its session.
const FIRST_MS: i32 = 10_000;
/// Name of the file whose lock the runner holds.
const LOCK: &str = "dpa.lock";
/// Removes the session of a program that has ended or closed its context. The last one ends the runner.
fn close(runner: &'static Runner, session: Session) {
    commands::release(runner, session);
    let mut tables = runner.tables();
    tables.sessions.remove(&session);
    if tables.sessions.is_empty() {
        // No later program may find the socket of a runner that ends.
        let _ = std::fs::remove_file(&runner.socket);
        runner
            .process
            .fabric()
            .lock()
            .release_process(runner.number);
        std::process::exit(0);
    }
}

/// Takes the lock of the runner. False if another runner serves: one that ends has the lock for a moment after its socket is gone, and
/// one that starts before its socket is there.
fn own(lock: &File, socket: &Path) -> io::Result<bool> {
    for _ in 0..FIRST_MS {
        // SAFETY: a descriptor that is open, and a number.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error);
        }
        if UnixStream::connect(socket).is_ok() {
            return Ok(false);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Err(io::Error::other(
        "another runner has the lock and does not serve",
    ))
}

/// Serves the programs of the device in a state directory, until the last one has closed its context. Calls `ready` when the socket
/// exists, or if another runner serves already.
///
/// # Errors
/// The device or the socket cannot be opened.
pub fn serve(
    state: &Path,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    sys::unblock_signals();
    let lock = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(state.join(LOCK))?;
    let socket = state.join(SOCKET);
    if !own(&lock, &socket)? {
        return Ok(ready()?);
    }
    let process = Process::attach_runner(state)?;
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    // Reports are those of the programs from now on.
    let _ = std::fs::remove_file(state.join(super::order::FILE));
    let listener = UnixListener::bind(&socket)?;
    let number = process.number().map_err(io::Error::from)?;
    let runner: &'static Runner = Box::leak(Box::new(Runner {
        process,
        number,
        tables: Mutex::default(),
        congestion: Mutex::default(),
        socket,
    }));
    ready()?;
    loop {
        if runner.tables().sessions.is_empty() && !is_readable(listener.as_raw_fd(), FIRST_MS) {
            let tables = runner.tables();
            if tables.sessions.is_empty() {
                let _ = std::fs::remove_file(&runner.socket);
                return Ok(());
            }
        }
        let (stream, _) = listener.accept()?;
        std::thread::Builder::new()
            .name("dpa-command".to_owned())
            .spawn(move || {
                // A broken connection ends it.
                let _ = connection(runner, stream);
            })?;
    }
}

fn is_readable(fd: i32, milliseconds: i32) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut poll, 1, milliseconds) > 0 }
}

/// Answers the commands of a connection until it closes.
fn connection(runner: &'static Runner, mut stream: UnixStream) -> io::Result<()> {
    loop {
        let (request, input) = Request::receive(&stream)?;
        match request.kind {
            Kind::Hello => return session(runner, stream, request),
            Kind::Report => {
                let output = report::collect(runner);
                let answer = Answer {
                    output,
                    ..Answer::default()
                };
                answer.send(&stream)?;
            }
            Kind::Debug => return debug::serve(runner, &stream, input),
            Kind::Program => program(runner, request.object, &input).send(&stream)?,
            _ => commands::act(runner, request, input).send(&stream)?,
        }
        stream.flush()?;
    }
}

/// Part of the program of a process.
fn program(runner: &Runner, id: u32, input: &[u8]) -> Answer {
    const PART: usize = 512 << 10;
    let tables = runner.tables();
    let offset = input.first_chunk().copied().map(u64::from_le_bytes);
    let offset = usize::try_from(offset.unwrap_or_default()).unwrap_or(usize::MAX);
    match tables.objects.get(&id).map(|object| &object.what) {
        Some(What::Process(dpa)) => {
            let rest = dpa.image.get(offset..).unwrap_or_default();
            Answer {
                output: rest[..rest.len().min(PART)].to_vec(),
                ..Answer::default()
            }
        }
        _ => Answer {
            errno: libc::ESRCH,
            ..Answer::default()
        },
    }
}

/// Keeps a session until its connection closes or its program ends.
fn session(runner: &'static Runner, stream: UnixStream, request: Request) -> io::Result<()> {
    let session = (request.process, request.context);
    let is_it = runner.process.fabric().lock().pid(request.process) == Some(request.pid);
    // A child of the program may have inherited the connection, so its end alone does not show the program's end.
    // SAFETY: numbers only.
    let program = unsafe { libc::syscall(libc::SYS_pidfd_open, request.pid, 0) };
    let program = i32::try_from(program).unwrap_or(-1);
    if !is_it || program < 0 {
        let answer = Answer {
            errno: libc::ESRCH,
            ..Answer::default()
        };
        return answer.send(&stream);
    }
    let open = Open {
        reason: String::new(),
    };
    runner.tables().sessions.insert(session, open);
    let told = Answer::default().send(&stream);
    if told.is_ok() {
        let mut polls = [stream.as_raw_fd(), program].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        // The program sends nothing more on this connection.
        // SAFETY: two entries.
        while unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) } < 0 {}
    }
    sys::close(program);
    close(runner, session);
    told
}
