//! The runner's sessions: who may command what, and what goes away with whom.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::worker::Worker;
use super::{commands, report};
use crate::process::Process;
use crate::process::dpa::SOCKET;
use crate::process::dpa::wire::{Answer, Kind, Request};
use crate::sys;

/// Time for the first program to open its session.
const FIRST_MS: i32 = 10_000;
/// Name of the file whose lock the runner holds.
const LOCK: &str = "dpa.lock";
/// Largest number of an object: a handle has 24 bits.
const OBJECTS_MAX: u32 = 0xff_ffff;

/// A context of a program: its number on the device, and that of its process.
pub(super) type Session = (u32, u32);

/// An object.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) session: Session,
    pub(super) what: What,
}

/// What an object is. All except a process name theirs.
#[derive(Clone, Debug)]
pub(super) enum What {
    Process(Arc<Dpa>),
    Memory { process: u32, address: u64 },
    Thread { process: u32 },
    Outbox { process: u32, id: u32 },
    Window { process: u32, id: u32 },
}

/// A process of the DPA.
#[derive(Debug)]
pub(super) struct Dpa {
    pub(super) worker: Arc<Worker>,
    pub(super) function: usize,
    /// The card: functions of one card share its DPA.
    pub(super) card: u64,
    /// Slots of its umem and its channel.
    pub(super) umem: u32,
    pub(super) channel: u32,
    /// Address of its heap in the runner, and bytes.
    pub(super) place: (u64, u64),
    /// The program of the host.
    pub(super) pid: i32,
}

/// A program's context.
#[derive(Debug)]
pub(super) struct Open {
    /// Why the last command was refused.
    pub(super) reason: String,
}

/// What the runner knows.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) sessions: HashMap<Session, Open>,
    pub(super) objects: HashMap<u32, Object>,
    /// Threads of each card: number of the thread, and its process.
    pub(super) threads: HashMap<u32, (u64, u32)>,
    last: u32,
    /// Outboxes and windows made so far.
    pub(super) configured: u32,
}

impl Tables {
    /// A free number for an object or a thread.
    pub(super) fn number(&mut self) -> Option<u32> {
        for _ in 0..OBJECTS_MAX {
            self.last = if self.last >= OBJECTS_MAX {
                1
            } else {
                self.last + 1
            };
            let (objects, threads) = (&self.objects, &self.threads);
            if !objects.contains_key(&self.last) && !threads.contains_key(&self.last) {
                return Some(self.last);
            }
        }
        None
    }
}

/// The runner.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) process: &'static Process,
    /// Its number on the device.
    pub(super) number: u32,
    tables: Mutex<Tables>,
    socket: std::path::PathBuf,
}

impl Runner {
    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the session of a program that has ended or closed its context. The last one ends the runner.
    fn close(&'static self, session: Session) {
        commands::release(self, session);
        let mut tables = self.tables();
        tables.sessions.remove(&session);
        if tables.sessions.is_empty() {
            // No later program may find the socket of a runner that ends.
            let _ = std::fs::remove_file(&self.socket);
            self.process.fabric().lock().release_process(self.number);
            std::process::exit(0);
        }
    }
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
    let lock = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(state.join(LOCK))?;
    // SAFETY: a descriptor that is open, and a number.
    if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error.into());
        }
        return Ok(ready()?);
    }
    let process = Process::attach_runner(state)?;
    let socket = state.join(SOCKET);
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(&socket)?;
    let number = process.number().map_err(io::Error::from)?;
    let runner: &'static Runner = Box::leak(Box::new(Runner {
        process,
        number,
        tables: Mutex::default(),
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
            _ => commands::act(runner, request, input).send(&stream)?,
        }
        stream.flush()?;
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
    runner.close(session);
    told
}
