//! Outgoing connections. Name look-ups and connects run in separate threads and do not block the serving thread.

use super::link::reach;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Maximum number of concurrent threads. Further attempts wait.
const THREADS_MAX: usize = 16;

/// A finished attempt: its key, and the connection or the error.
pub type Dialed = (u64, io::Result<TcpStream>);

/// Attempts in progress, and waiting ones.
#[derive(Debug)]
pub struct Dialer {
    waiting: VecDeque<(u64, String, Duration)>,
    running: usize,
    sender: Sender<Dialed>,
    receiver: Receiver<Dialed>,
    /// The first socket receives a byte for each finished attempt.
    wake: (UnixStream, UnixStream),
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
    pub fn dial(&mut self, key: u64, address: &str, limit: Duration) {
        self.waiting.push_back((key, address.to_owned(), limit));
        self.start();
    }

    /// Returns a finished attempt.
    pub fn take(&mut self) -> Option<Dialed> {
        let mut bytes = [0; THREADS_MAX];
        // Drained first: an attempt that finishes from now on writes a new byte.
        while matches!(self.wake.0.read(&mut bytes), Ok(1..)) {}
        let dialed = self.receiver.try_recv().ok()?;
        self.running -= 1;
        self.start();
        Some(dialed)
    }

    fn start(&mut self) {
        while self.running < THREADS_MAX
            && let Some((key, address, limit)) = self.waiting.pop_front()
        {
            self.running += 1;
            let sender = self.sender.clone();
            let wake = self.wake.1.try_clone();
            let finish = move || {
                // The send fails only when the daemon ends.
                let _ = sender.send((key, reach(&address, limit)));
                if let Ok(mut wake) = wake {
                    let _ = wake.write_all(&[0]);
                }
            };
            let thread = std::thread::Builder::new().name("dial".to_owned());
            if let Err(error) = thread.spawn(finish) {
                // Reported like a failed connect.
                let _ = self.sender.send((key, Err(error)));
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
            dialer.dial(key, address, Duration::from_secs(9));
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
}
