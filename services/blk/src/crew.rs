//! How many threads carry out the requests of a client, a queue or a program, and how many bytes of data these may have.
//!
//! NBD connections, queues of virtual machines and asynchronous callers count their threads here. Each keeps a [`Crew`] in
//! its own locked state.

use std::io;

/// Most requests that are carried out at once.
pub const REQUESTS_MAX: usize = 16;
/// Most bytes of their data: a single one of any length fits.
pub(crate) const BYTES_MAX: usize = 32 << 20;

/// The threads of a client, a queue or a program.
#[derive(Debug)]
pub(crate) struct Crew {
    width: usize,
    threads: usize,
    idle: usize,
    bytes: usize,
    /// The last thread could not be started.
    is_short: bool,
}

impl Crew {
    /// Up to so many threads.
    pub(crate) fn new(width: usize) -> Self {
        Self {
            width,
            threads: 0,
            idle: 0,
            bytes: 0,
            is_short: false,
        }
    }

    /// Calls a thread for another request: wakes one that is idle, or starts one. False if there is none.
    ///
    /// # Errors
    /// No thread could be started, and the attempt before was successful. The caller tells it; it is told once.
    pub(crate) fn call(
        &mut self,
        wake: impl FnOnce(),
        start: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<bool> {
        if self.idle > 0 {
            wake();
            return Ok(true);
        }
        if self.threads >= self.width {
            return Ok(false);
        }
        match start() {
            Ok(()) => {
                self.is_short = false;
                self.threads += 1;
                Ok(true)
            }
            Err(_) if std::mem::replace(&mut self.is_short, true) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The calling thread takes part.
    pub(crate) fn join(&mut self) {
        self.threads += 1;
    }

    /// A thread ends.
    pub(crate) fn leave(&mut self) {
        self.threads -= 1;
    }

    /// Threads in all.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// The calling thread begins to wait for a request.
    pub(crate) fn rest(&mut self) {
        self.idle += 1;
    }

    /// The calling thread waits no more.
    pub(crate) fn rise(&mut self) {
        self.idle -= 1;
    }

    /// True if a request with so many bytes may begin beside those under way.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= BYTES_MAX
    }

    /// A request with so many bytes begins.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// A request with so many bytes has ended.
    pub(crate) fn give(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    /// Bytes of the requests under way.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lack of threads is told when it begins, not at each request.
    #[test]
    fn a_lack_of_threads_is_told_once() {
        let mut crew = Crew::new(3);
        let fails = || Err(io::ErrorKind::WouldBlock.into());
        let never = || panic!("nobody is idle");
        assert!(crew.call(never, fails).is_err());
        for _ in 0..3 {
            assert!(!crew.call(never, fails).unwrap());
        }
        assert!(crew.call(never, || Ok(())).unwrap());
        assert_eq!(crew.threads(), 1);
        assert!(crew.call(never, fails).is_err());
        assert!(!crew.call(never, fails).unwrap());
    }

    #[test]
    fn idle_threads_are_woken_first_and_the_width_is_a_limit() {
        let mut crew = Crew::new(2);
        crew.join();
        crew.rest();
        let mut woken = false;
        assert!(crew.call(|| woken = true, || unreachable!()).unwrap());
        assert!(woken);
        crew.rise();
        assert!(crew.call(|| unreachable!(), || Ok(())).unwrap());
        assert!(!crew.call(|| unreachable!(), || unreachable!()).unwrap());
        crew.leave();
        assert_eq!(crew.threads(), 1);
    }

    #[test]
    fn a_request_of_any_length_begins_alone() {
        let mut crew = Crew::new(1);
        assert!(crew.has_room(BYTES_MAX + 1));
        crew.take(BYTES_MAX - 1);
        assert!(crew.has_room(1) && !crew.has_room(2));
        crew.give(BYTES_MAX - 1);
        assert!(crew.has_room(usize::MAX));
    }
}
