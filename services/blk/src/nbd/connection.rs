//! The transmission phase of one connection, with several requests at once.
//!
//! The threads of a connection take turns. One reads the next request and hands the turn on before it carries the request
//! out. Replies leave in the order in which the requests are done, as the protocol allows. A thread more is started when
//! all others are busy.

use super::answer::Answer;
use super::export::Export;
use super::handshake::{Chosen, broken};
use super::transmit;
use super::wire::{Command, LENGTH_MAX, REQUEST, Request, request};
use crate::crew::{BYTES_MAX, Crew};
use crate::say::say;
use std::io::{self, BufReader, Read, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};

// A single READ or WRITE of any length fits.
const _: () = assert!(LENGTH_MAX as usize <= BYTES_MAX);

/// Bytes that are read at once, if a request is shorter: it comes with its data, and the next ones with it.
const AHEAD: usize = 16 << 10;
/// Longer buffers are given back after a request.
const KEPT: usize = 1 << 20;

/// The threads of a connection.
#[derive(Debug)]
struct State {
    /// Idle are those that wait for their turn to read. A request is under way until its whole reply is written.
    crew: Crew,
    /// The thread whose turn it is waits for bytes.
    waits: bool,
    /// No more requests are read.
    ended: bool,
    /// The first error.
    error: Option<io::Error>,
}

struct Connection<'a, R, W> {
    export: &'a Export,
    chosen: Chosen,
    reader: Mutex<BufReader<R>>,
    writer: Mutex<W>,
    state: Mutex<State>,
    /// Bytes have become free.
    freed: Condvar,
    /// Ends a read that is under way, after a failed reply.
    hang_up: &'a (dyn Fn() + Sync),
}

/// Serves requests until the client leaves, up to `width` at once.
///
/// # Errors
/// The client breaks the protocol, or errors of the connection.
pub(super) fn serve<R: Read + Send, W: Write + Send>(
    (reader, writer): (R, W),
    export: &Export,
    chosen: Chosen,
    (width, hang_up): (usize, &(dyn Fn() + Sync)),
) -> io::Result<()> {
    let mut crew = Crew::new(width);
    crew.join();
    let connection = Connection {
        export,
        chosen,
        reader: Mutex::new(BufReader::with_capacity(AHEAD, reader)),
        writer: Mutex::new(writer),
        state: Mutex::new(State {
            crew,
            waits: false,
            ended: false,
            error: None,
        }),
        freed: Condvar::new(),
        hang_up,
    };
    std::thread::scope(|scope| connection.work(scope));
    let mut state = connection.state();
    // Of a request whose data did not arrive.
    export.unbuffer(state.crew.bytes());
    let error = state.error.take();
    error.map_or(Ok(()), Err)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of a thread ends the connection when all threads have ended.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R: Read + Send, W: Write + Send> Connection<'_, R, W> {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Reads and carries out requests, in turn with the other threads.
    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let mut buffer = Vec::new();
        let mut reply = Answer::default();
        loop {
            self.state().crew.rest();
            let mut reader = locked(&self.reader);
            let ended = {
                let mut state = self.state();
                state.crew.rise();
                state.ended
            };
            if ended {
                return;
            }
            let request = match self.next(&mut *reader, &mut buffer) {
                Ok(Some(request)) => request,
                other => return self.end(other.map(drop)),
            };
            self.hand_on(scope);
            drop(reader);
            reply.clear();
            transmit::answer(
                &mut reply,
                self.export,
                self.chosen,
                (&request, &mut buffer),
            );
            let written = reply.write(&mut *locked(&self.writer), &buffer);
            buffer.truncate(KEPT);
            buffer.shrink_to(KEPT);
            // A client that reads no replies keeps its own requests waiting.
            self.give(taken(&request));
            if let Err(error) = written {
                self.end(Err(error));
                (self.hang_up)();
                return;
            }
        }
    }

    /// The next request, with the data of a write. None if the client has left.
    fn next(&self, reader: &mut BufReader<R>, buffer: &mut Vec<u8>) -> io::Result<Option<Request>> {
        let mut bytes = [0; REQUEST];
        match reader.read_exact(&mut bytes) {
            // A client that closes between requests has left.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let request = request(&bytes).map_err(|error| broken(error.0))?;
        if request.command == Command::Disconnect {
            return Ok(None);
        }
        self.take(taken(&request));
        if transmit::is_long(&request) {
            *buffer = self.export.volume().memory(request.length as usize);
        }
        if request.command == Command::Write {
            transmit::take_data(reader, request.length, buffer)?;
        }
        Ok(Some(request))
    }

    /// Starts another thread if no other one waits for the turn.
    fn hand_on<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let start = || {
            let thread = Builder::new().name("nbd".to_owned());
            thread.spawn_scoped(scope, || self.work(scope)).map(drop)
        };
        let mut state = self.state();
        // The turn itself wakes a thread that waits for it.
        if let Err(error) = state.crew.call(|| (), start) {
            say(format_args!(
                "a client has {} threads, and another one cannot be started: {error}",
                state.crew.threads()
            ));
        }
    }

    /// Waits until `bytes` fit into the limit.
    fn take(&self, bytes: usize) {
        let mut state = self.state();
        while !state.crew.has_room(bytes) {
            state.waits = true;
            state = self
                .freed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.crew.take(bytes);
        self.export.buffer(bytes);
    }

    fn give(&self, bytes: usize) {
        let waits = {
            let mut state = self.state();
            state.crew.give(bytes);
            std::mem::take(&mut state.waits)
        };
        self.export.unbuffer(bytes);
        if waits {
            self.freed.notify_one();
        }
    }

    /// No thread reads another request.
    fn end(&self, result: io::Result<()>) {
        let mut state = self.state();
        state.ended = true;
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
    }
}

/// Bytes of a request's buffer. Longer requests are refused without one.
fn taken(request: &Request) -> usize {
    match request.command {
        Command::Read | Command::Write if request.length <= LENGTH_MAX => request.length as usize,
        _ => 0,
    }
}
