//! A thread for work that would block the serving thread.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

type Task<R> = Box<dyn FnOnce() -> R + Send>;

/// A thread that runs tasks in their order. Dropping it waits until all its tasks are done.
///
/// The number of waiting tasks has no limit of its own. [`Background::pending`] tells the number, for callers that
/// limit it.
#[derive(Debug)]
pub struct Background<R> {
    tasks: Option<Sender<Task<R>>>,
    results: Receiver<R>,
    thread: Option<JoinHandle<()>>,
    pending: usize,
    /// Receives a byte for each result.
    wake: UnixStream,
}

impl<R: Send + 'static> Background<R> {
    /// Starts the thread. `name` is at most 15 bytes.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(name: &str) -> io::Result<Self> {
        let (tasks, receiver) = channel::<Task<R>>();
        let (sender, results) = channel();
        let (wake, mut waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        // A full socket wakes the reader as well.
        waker.set_nonblocking(true)?;
        let run = move || {
            for task in receiver {
                // The send fails only while the daemon ends.
                let _ = sender.send(task());
                let _ = waker.write(&[0]);
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        Ok(Self {
            tasks: Some(tasks),
            results,
            thread: Some(thread.spawn(run)?),
            pending: 0,
            wake,
        })
    }

    /// Readable when a result is there.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// Runs `task` after all earlier tasks.
    pub fn submit(&mut self, task: impl FnOnce() -> R + Send + 'static) {
        let tasks = self.tasks.as_ref().expect("open until it is dropped");
        self.pending += 1;
        // The thread ends early only if a task panics; the next take() then reports it.
        let _ = tasks.send(Box::new(task));
    }

    /// Number of tasks whose result has not been taken.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// The result of the oldest finished task.
    ///
    /// # Panics
    /// A task has panicked.
    pub fn take(&mut self) -> Option<R> {
        let mut bytes = [0; 64];
        // Drained first: a task that ends from now on writes a new byte.
        while matches!((&self.wake).read(&mut bytes), Ok(1..)) {}
        let result = self.results.try_recv();
        if matches!(result, Err(std::sync::mpsc::TryRecvError::Disconnected)) {
            panic!("a task of a background thread has panicked");
        }
        let result = result.ok()?;
        self.pending -= 1;
        Some(result)
    }
}

impl<R> Drop for Background<R> {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // A panic of a task has been printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{poll, pollfd};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    #[test]
    fn tasks_run_in_their_order_and_wake_the_reader() {
        let mut background = Background::new("test").expect("a thread");
        assert_eq!((background.take(), background.pending()), (None, 0));
        for number in 0..200 {
            background.submit(move || number);
        }
        let mut seen = Vec::new();
        while seen.len() < 200 {
            let mut fds = [pollfd(background.fd(), libc::POLLIN)];
            poll(&mut fds, Some(Duration::from_secs(20))).expect("polled");
            assert_ne!(fds[0].revents, 0, "no result");
            while let Some(number) = background.take() {
                seen.push(number);
            }
        }
        assert!(seen.into_iter().eq(0..200));
        assert_eq!(background.pending(), 0);
    }

    #[test]
    fn a_drop_waits_for_all_tasks() {
        let done = Arc::new(AtomicUsize::new(0));
        let mut background = Background::new("test").expect("a thread");
        for _ in 0..50 {
            let done = Arc::clone(&done);
            background.submit(move || {
                done.fetch_add(1, SeqCst);
            });
        }
        drop(background);
        assert_eq!(done.load(SeqCst), 50);
    }
}
