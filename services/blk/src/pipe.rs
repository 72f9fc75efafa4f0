//! Calls over one connection, several at a time, by any number of threads. No thread of its own: one of the threads that
//! wait reads for all.

use bytes::Bytes;
use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, LinkError, poll, pollfd};

/// Time after which a call that is late asks again whether it is given up.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Why a call has no answer. The connection is closed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Broken(pub(crate) String);

type Result<T> = std::result::Result<T, Broken>;

/// A connection with calls under way. Each answer starts with the number of its call, 8 bytes, little endian. After an error
/// it stays closed: a late answer would be taken for another one.
#[derive(Debug)]
pub(crate) struct Pipe {
    limit: Duration,
    state: Mutex<State>,
    /// Wakes the thread that waits for the socket: there is something to send that it does not know of.
    wake: (UnixStream, UnixStream),
}

/// A thread that waits while another one reads.
#[derive(Debug)]
struct Waiter {
    /// Its calls: it goes on when one of them is answered.
    numbers: Vec<u64>,
    wake: Arc<Condvar>,
    /// How often it was woken.
    #[cfg(test)]
    times: std::sync::atomic::AtomicUsize,
}

impl Waiter {
    fn new(numbers: &[u64]) -> Self {
        Self {
            numbers: numbers.to_vec(),
            wake: Arc::default(),
            #[cfg(test)]
            times: Default::default(),
        }
    }

    fn wake(&self) {
        self.wake.notify_one();
        #[cfg(test)]
        self.times
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct State {
    link: Option<Link>,
    /// Why there is no link.
    reason: String,
    /// Number of the next call.
    next: u64,
    /// Answers that nobody has taken yet.
    answers: HashMap<u64, Bytes>,
    /// Calls without an answer.
    open: usize,
    /// A thread waits for the socket, without the lock.
    reading: bool,
    /// The threads that wait for it.
    waiting: Vec<Waiter>,
    /// A closed connection whose socket that thread still waits for.
    left: Option<Link>,
}

impl Pipe {
    /// Calls over `link`. An answer that takes longer than `limit` closes it.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn new(link: Link, limit: Duration) -> io::Result<Self> {
        let wake = UnixStream::pair()?;
        wake.0.set_nonblocking(true)?;
        // A full one wakes the reader as well.
        wake.1.set_nonblocking(true)?;
        Ok(Self {
            limit,
            state: Mutex::new(State {
                link: Some(link),
                reason: String::new(),
                next: 0,
                answers: HashMap::new(),
                open: 0,
                reading: false,
                waiting: Vec::new(),
                left: None,
            }),
            wake,
        })
    }

    /// Sends a call, which `bytes` makes of its number. Each number must be given to [`Pipe::wait`] once.
    pub(crate) fn send(&self, bytes: impl FnOnce(u64) -> Vec<u8>) -> Result<u64> {
        self.send_by(|link, number| link.send(&bytes(number)))
    }

    /// As [`Pipe::send`], of a call in parts.
    pub(crate) fn send_parts(&self, parts: &[&[u8]]) -> Result<u64> {
        self.send_by(|link, _| link.send_parts(parts))
    }

    fn send_by(
        &self,
        send: impl FnOnce(&mut Link, u64) -> std::result::Result<(), LinkError>,
    ) -> Result<u64> {
        let mut state = self.state();
        let number = state.next;
        let link = state.link()?;
        if let Err(error) = send(link, number) {
            return Err(self.close(&mut state, error.to_string()));
        }
        let is_left = link.wants_to_send();
        state.next += 1;
        state.open += 1;
        if is_left && state.reading {
            // The thread that waits for the socket does not know of it.
            let _ = (&self.wake.1).write(&[0]);
        }
        Ok(number)
    }

    /// Waits for the answer to a call.
    pub(crate) fn wait(&self, number: u64) -> Result<Bytes> {
        self.wait_longer(number, self.limit, |_, _| true)
    }

    /// As [`Pipe::wait`]. At the limit `gives_up` gets the reason and the time, and decides. The answer is awaited as long
    /// as it refuses, up to `longest`.
    pub(crate) fn wait_longer(
        &self,
        number: u64,
        longest: Duration,
        gives_up: impl Fn(&str, Duration) -> bool,
    ) -> Result<Bytes> {
        let begun = Instant::now();
        let mut limit = self.limit;
        loop {
            if let Some(answer) = self.look(number, begun + limit)? {
                return Ok(answer);
            }
            let waited = begun.elapsed();
            if waited < limit {
                continue;
            }
            let reason = format!("no answer within {} ms", limit.as_millis());
            if limit >= longest || gives_up(&reason, limit) {
                return Err(self.shut(&reason));
            }
            limit = (limit + self.limit.min(ASK_AGAIN)).min(longest);
        }
    }

    /// True if [`Pipe::wait`] does not block. Does not block either.
    pub(crate) fn has(&self, number: u64) -> bool {
        let mut state = self.state();
        if !state.reading && !state.answers.contains_key(&number) {
            // An error closes the connection, which the wait reports.
            let _ = self.receive(&mut state);
        }
        state.link.is_none() || state.answers.contains_key(&number)
    }

    /// Closes the connection: all calls fail.
    pub(crate) fn shut(&self, reason: &str) -> Broken {
        self.close(&mut self.state(), reason.to_owned())
    }

    /// As [`Pipe::is_closed`], also if the peer has closed the connection and no call has found that.
    pub(crate) fn is_closed_now(&self) -> bool {
        let mut state = self.state();
        if !state.reading {
            // An error closes the connection.
            let _ = self.receive(&mut state);
        }
        state.link.is_none()
    }

    /// True after an error.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().link.is_none()
    }

    /// Waits until [`Pipe::wait`] does not block for one of these calls. False if that takes longer than `limit`.
    pub(crate) fn wait_any(&self, numbers: &[u64], limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            let mut state = self.state();
            if !state.reading {
                // An error closes the connection, which the wait reports.
                let _ = self.receive(&mut state);
            }
            if state.has_any(numbers) || Instant::now() >= end {
                state.hand_over();
                return state.has_any(numbers);
            }
            // An error closes the connection.
            let _ = self.arrive(state, numbers, end);
        }
    }

    /// Takes the answer, or takes part in waiting for one.
    fn look(&self, number: u64, end: Instant) -> Result<Option<Bytes>> {
        let mut state = self.state();
        let answer = state.answers.remove(&number);
        if answer.is_some() || end <= Instant::now() {
            state.hand_over();
            return match answer {
                Some(answer) => Ok(Some(answer)),
                None => state.link().map(|_| None),
            };
        }
        // Without a connection there is no answer.
        state.link()?;
        self.arrive(state, &[number], end).map(|()| None)
    }

    /// Waits until one of the calls may be answered, or nobody reads any more, at most until `end`. One thread reads for all.
    fn arrive(
        &self,
        mut state: MutexGuard<'_, State>,
        numbers: &[u64],
        end: Instant,
    ) -> Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        if state.reading {
            let waiter = Waiter::new(numbers);
            let wake = Arc::clone(&waiter.wake);
            state.waiting.push(waiter);
            let waited = wake.wait_timeout(state, left);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let is_other = |waiter: &Waiter| !Arc::ptr_eq(&waiter.wake, &wake);
            state.waiting.retain(is_other);
            state.leave_at(end);
            return Ok(());
        }
        let mut fds = [
            state.link()?.pollfd(),
            pollfd(self.wake.0.as_raw_fd(), libc::POLLIN),
        ];
        state.reading = true;
        drop(state);
        // Another thread may close the connection meanwhile, which ends the wait.
        let polled = poll(&mut fds, Some(left));
        let mut state = self.state();
        while fds[1].revents != 0 && matches!((&self.wake.0).read(&mut [0; 64]), Ok(1..)) {}
        state.reading = false;
        state.left = None;
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                Err(self.close(&mut state, error.to_string()))
            }
            _ => {
                let received = self.receive(&mut state);
                state.leave_at(end);
                received
            }
        }
    }

    /// Takes everything that has arrived.
    fn receive(&self, state: &mut State) -> Result<()> {
        loop {
            let link = state.link()?;
            let taken = link.flush().and_then(|()| link.take_shared());
            let bytes = match taken {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.close(state, error.to_string())),
            };
            let number = bytes.first_chunk();
            let number = number.map_or(u64::MAX, |number| u64::from_le_bytes(*number));
            if number >= state.next || state.open == 0 || state.answers.contains_key(&number) {
                return Err(self.close(state, "it answers no call".to_owned()));
            }
            state.open -= 1;
            state.answers.insert(number, bytes);
            let waits = |waiter: &&Waiter| waiter.numbers.contains(&number);
            if let Some(waiter) = state.waiting.iter().find(waits) {
                waiter.wake();
            }
        }
    }

    fn close(&self, state: &mut State, reason: String) -> Broken {
        if let Some(link) = state.link.take() {
            state.reason.clone_from(&reason);
            // SAFETY: an open socket of this process; no memory is involved. It ends a wait of another thread.
            unsafe { libc::shutdown(link.fd(), libc::SHUT_RDWR) };
            state.left = state.reading.then_some(link);
        }
        for waiter in &state.waiting {
            waiter.wake();
        }
        Broken(state.reason.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No holder panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// True if one of the calls is answered, or none will be.
    fn has_any(&self, numbers: &[u64]) -> bool {
        let has = |number: &u64| self.answers.contains_key(number);
        self.link.is_none() || numbers.iter().any(has)
    }

    /// A thread whose time is over may do something else before it comes back.
    fn leave_at(&self, end: Instant) {
        if end <= Instant::now() {
            self.hand_over();
        }
    }

    /// A thread does not wait any more. If nobody reads, another one does from here on.
    fn hand_over(&self) {
        let has_none = |waiter: &&Waiter| !self.has_any(&waiter.numbers);
        if !self.reading
            && let Some(waiter) = self.waiting.iter().find(has_none)
        {
            waiter.wake();
        }
    }

    fn link(&mut self) -> Result<&mut Link> {
        let reason = &self.reason;
        self.link.as_mut().ok_or_else(|| Broken(reason.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use xgvmi_daemon::Protocol;

    /// Longer than any test.
    const LONG: Duration = Duration::from_secs(60);
    const PROTOCOL: Protocol = Protocol {
        magic: *b"TEST",
        version: 1,
        program: "test",
    };

    /// A pipe and the other end of its connection.
    fn connected() -> (Pipe, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let link = Link::connect(&address, LONG, PROTOCOL, None).unwrap();
        let (peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(LONG / 2)).unwrap();
        (Pipe::new(link, LONG).unwrap(), peer)
    }

    fn answer(peer: &mut TcpStream, number: u64) {
        let mut frame = b"TEST\x01\0\0\0\x09\0\0\0\0".to_vec();
        frame.extend(number.to_le_bytes());
        peer.write_all(&frame).unwrap();
    }

    /// A thread waits for the answer to one call. Another call, which the socket does not take at once, arrives as a whole
    /// nevertheless, and is answered first.
    #[test]
    fn a_long_call_goes_on_while_another_answer_is_awaited() {
        let (pipe, mut peer) = connected();
        let short = pipe.send(|_| b"short".to_vec()).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| pipe.wait(short));
            while !pipe.state().reading {
                std::thread::yield_now();
            }
            let length = 16 << 20;
            let long = pipe.send(|_| vec![7; length]).unwrap();
            assert!(pipe.state().link().unwrap().wants_to_send());
            let mut calls = vec![0; 13 + 5 + 13 + length];
            peer.read_exact(&mut calls).unwrap();
            assert!(calls.ends_with(&[7; 4096]));
            answer(&mut peer, long);
            assert_eq!(pipe.wait(long).unwrap()[..], long.to_le_bytes());
            answer(&mut peer, short);
            assert_eq!(waits.join().unwrap().unwrap()[..], short.to_le_bytes());
        });
    }

    /// Other threads wait for calls of their own, and one of those that have none reads when the reader goes on.
    #[test]
    fn an_answer_wakes_the_thread_that_waits_for_it() {
        let (pipe, mut peer) = connected();
        let calls = [(); 4].map(|()| pipe.send(|_| Vec::new()).unwrap());
        for number in calls {
            pipe.state().waiting.push(Waiter::new(&[number]));
        }
        let times = |waiter: &Waiter| waiter.times.load(std::sync::atomic::Ordering::Relaxed);
        let woken = || -> Vec<usize> { pipe.state().waiting.iter().map(times).collect() };
        for (number, expect) in [(2, [0, 0, 1, 0]), (0, [1, 0, 1, 0])] {
            answer(&mut peer, calls[number]);
            while !pipe.has(calls[number]) {
                std::thread::yield_now();
            }
            assert_eq!(woken(), expect);
        }
        // Its own answer, and the first that has none reads from here on.
        pipe.wait(calls[2]).unwrap();
        assert_eq!(woken(), [1, 1, 1, 0]);
        pipe.shut("done");
        assert_eq!(woken(), [2, 2, 2, 1]);
    }

    #[test]
    fn an_answer_to_no_call_closes_the_connection() {
        let (pipe, mut peer) = connected();
        let number = pipe.send(|_| Vec::new()).unwrap();
        answer(&mut peer, 9);
        let error = pipe.wait(number).unwrap_err();
        assert_eq!(error.to_string(), "it answers no call");
        assert!(pipe.is_closed() && pipe.send(|_| Vec::new()).is_err());
    }
}
