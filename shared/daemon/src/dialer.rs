//! Outgoing connections. Name look-ups and connects run in separate threads and do not block the serving thread.

use super::link::reach;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Maximum number of concurrent threads, and of those of one group. Further attempts wait.
const THREADS_MAX: usize = 16;
const THREADS_PER_GROUP: usize = 4;

/// A finished attempt: its key, and the connection or the error.
pub type Dialed = (u64, io::Result<TcpStream>);

/// A group of attempts, such as those of one job. Groups take turns, so the dead addresses of one do not delay another.
pub type Group = u128;

/// Attempts in progress, and waiting ones.
#[derive(Debug)]
pub struct Dialer {
    /// The first is next. No group occurs twice, and none without attempts.
    waiting: VecDeque<(Group, VecDeque<Attempt>)>,
    running: usize,
    /// Number of threads of each group that has some.
    threads: HashMap<Group, usize>,
    sender: Sender<(Group, Dialed)>,
    receiver: Receiver<(Group, Dialed)>,
    /// The first socket receives a byte for each finished attempt.
    wake: (UnixStream, UnixStream),
}

/// A waiting attempt.
#[derive(Debug)]
struct Attempt {
    key: u64,
    address: String,
    limit: Duration,
}

impl Dialer {
    /// # Errors
    /// Errors of the system.
    pub fn new() -> io::Result<Self> {
        let (sender, receiver) = channel();
        let wake = UnixStream::pair()?;
        wake.0.set_nonblocking(true)?;
        Ok(Self {
            waiting: VecDeque::new(),
            running: 0,
            threads: HashMap::new(),
            sender,
            receiver,
            wake,
        })
    }

    /// Readable when an attempt has finished.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.wake.0.as_raw_fd()
    }

    /// Connects to `host:port` with retries until `limit`. [`Dialer::take`] returns the result under `key`.
    pub fn dial(&mut self, group: Group, key: u64, address: &str, limit: Duration) {
        let attempt = Attempt {
            key,
            address: address.to_owned(),
            limit,
        };
        match self.waiting.iter_mut().find(|(of, _)| *of == group) {
            Some((_, attempts)) => attempts.push_back(attempt),
            None => self.waiting.push_back((group, VecDeque::from([attempt]))),
        }
        self.start();
    }

    /// Drops the waiting attempts of a group. [`Dialer::take`] still returns those in progress.
    pub fn cancel(&mut self, group: Group) {
        self.waiting.retain(|(of, _)| *of != group);
    }

    /// Returns a finished attempt.
    pub fn take(&mut self) -> Option<Dialed> {
        let mut bytes = [0; THREADS_MAX];
        // Drained first: an attempt that finishes from now on writes a new byte.
        while matches!(self.wake.0.read(&mut bytes), Ok(1..)) {}
        let (group, dialed) = self.receiver.try_recv().ok()?;
        self.running -= 1;
        if let Some(threads) = self.threads.get_mut(&group) {
            *threads -= 1;
            if *threads == 0 {
                self.threads.remove(&group);
            }
        }
        self.start();
        Some(dialed)
    }

    /// The next attempt of the first group that may have another thread. The group goes to the end.
    fn next(&mut self) -> Option<(Group, Attempt)> {
        let is_free = |(group, _): &(Group, VecDeque<Attempt>)| {
            let threads = self.threads.get(group).copied().unwrap_or(0);
            threads < THREADS_PER_GROUP
        };
        let at = self.waiting.iter().position(is_free)?;
        let (group, mut attempts) = self.waiting.remove(at)?;
        let attempt = attempts.pop_front()?;
        if !attempts.is_empty() {
            self.waiting.push_back((group, attempts));
        }
        Some((group, attempt))
    }

    fn start(&mut self) {
        while self.running < THREADS_MAX
            && let Some((
                group,
                Attempt {
                    key,
                    address,
                    limit,
                },
            )) = self.next()
        {
            self.running += 1;
            *self.threads.entry(group).or_default() += 1;
            let sender = self.sender.clone();
            let wake = self.wake.1.try_clone();
            let finish = move || {
                // The send fails only when the daemon ends.
                let _ = sender.send((group, (key, reach(&address, limit))));
                if let Ok(mut wake) = wake {
                    let _ = wake.write_all(&[0]);
                }
            };
            let thread = std::thread::Builder::new().name("dial".to_owned());
            if let Err(error) = thread.spawn(finish) {
                // Reported like a failed connect.
                let _ = self.sender.send((group, (key, Err(error))));
                let _ = self.wake.1.write_all(&[0]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{poll, pollfd};
    use std::net::TcpListener;

    #[test]
    fn more_calls_than_threads_all_get_their_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let good = listener.local_addr().expect("bound").to_string();
        let mut dialer = Dialer::new().expect("sockets");
        let count: u64 = 21;
        for key in 0..count {
            let address = if key % 3 == 0 { "no port" } else { &good };
            dialer.dial(u128::from(key % 2), key, address, Duration::from_secs(9));
        }
        let mut seen = Vec::new();
        while (seen.len() as u64) < count {
            let mut fds = [pollfd(dialer.fd(), libc::POLLIN)];
            poll(&mut fds, Some(Duration::from_secs(20))).expect("polled");
            assert_ne!(fds[0].revents, 0, "no answer");
            while let Some((key, answer)) = dialer.take() {
                assert_eq!(answer.is_err(), key % 3 == 0, "{key}: {answer:?}");
                seen.push(key);
            }
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..count));
    }

    #[test]
    fn the_dead_addresses_of_a_group_do_not_delay_another() {
        // A listener whose queue is full: a connect to it waits until its limit.
        let full = TcpListener::bind("127.0.0.1:0").expect("a port");
        // SAFETY: an open listener; the call changes the length of its queue.
        assert_eq!(unsafe { libc::listen(full.as_raw_fd(), 0) }, 0);
        let dead = full.local_addr().expect("bound");
        let mut queued = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&dead, Duration::from_millis(50)) {
            queued.push(stream);
        }
        let good = TcpListener::bind("127.0.0.1:0").expect("a port");
        let good = good.local_addr().expect("bound").to_string();
        let mut dialer = Dialer::new().expect("sockets");
        let limit = Duration::from_secs(60);
        for key in 0..100 {
            dialer.dial(1, key, &dead.to_string(), limit);
        }
        for key in 100..130 {
            dialer.dial(2, key, &good, limit);
        }
        let mut seen = Vec::new();
        while seen.len() < 30 {
            let mut fds = [pollfd(dialer.fd(), libc::POLLIN)];
            poll(&mut fds, Some(limit / 2)).expect("polled");
            assert_ne!(fds[0].revents, 0, "no answer: {seen:?}");
            while let Some((key, answer)) = dialer.take() {
                assert!(answer.is_ok(), "{key}: {answer:?}");
                seen.push(key);
            }
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(100..130));
        assert_eq!(dialer.running, THREADS_PER_GROUP);
        dialer.cancel(1);
        assert!(dialer.waiting.is_empty());
    }
}
