//! Outgoing connections: name look-ups and connects run in threads of their own and never in the thread that serves.

use super::link::reach;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Threads at once. Further calls wait for one of them.
const THREADS_MAX: usize = 16;

/// A finished call: its key, and the connection or the error.
pub type Dialed = (u64, io::Result<TcpStream>);

/// Calls that are under way, and those that wait.
#[derive(Debug)]
pub struct Dialer {
    waiting: VecDeque<(u64, String, Duration)>,
    running: usize,
    sender: Sender<Dialed>,
    receiver: Receiver<Dialed>,
    /// A byte comes out of the first for each finished call.
    wake: (UnixStream, UnixStream),
}

impl Dialer {
    /// # Errors
    /// The system's.
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

    /// Readable when a call has finished.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.wake.0.as_raw_fd()
    }

    /// Calls `host:port`, again and again until `limit`. The answer comes by [`Dialer::take`] under `key`.
    pub fn dial(&mut self, key: u64, address: &str, limit: Duration) {
        self.waiting.push_back((key, address.to_owned(), limit));
        self.start();
    }

    /// Takes a finished call.
    pub fn take(&mut self) -> Option<Dialed> {
        let mut bytes = [0; THREADS_MAX];
        // Emptied first, so that a call that finishes now is told by a new byte.
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
                // The receiver is gone when the daemon ends.
                let _ = sender.send((key, reach(&address, limit)));
                if let Ok(mut wake) = wake {
                    let _ = wake.write_all(&[0]);
                }
            };
            let thread = std::thread::Builder::new().name("dial".to_owned());
            if let Err(error) = thread.spawn(finish) {
                // Told like a connect that fails.
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
