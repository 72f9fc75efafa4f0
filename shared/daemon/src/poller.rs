//! Waits for many descriptors with `epoll(7)`: the cost of a wait does not depend on their number.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

/// Maximum number of events per wait. The next wait returns the others.
const EVENTS: usize = 256;

/// A set of descriptors, each with a key that the program chooses. Closing a descriptor removes it from the set.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// An empty set.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes a plain integer.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { epoll })
    }

    /// Adds a descriptor. Waits for it to become readable, and with `write` also writable.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn add(&self, fd: RawFd, key: u64, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, key, write)
    }

    /// Changes whether to wait for a descriptor to become writable.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn set_write(&self, fd: RawFd, key: u64, write: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, key, write)
    }

    /// Removes a descriptor that stays open.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, false)
    }

    /// Waits at most for `limit` and returns the keys of the ready descriptors in `ready`.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn wait(&self, limit: Duration, ready: &mut Vec<u64>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // Rounded up because a limit below a millisecond must still sleep.
        let timeout_ms = i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let capacity = i32::try_from(EVENTS).expect("a small number");
        // SAFETY: `events` holds `capacity` events and lives through the call.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                capacity,
                timeout_ms,
            )
        };
        ready.clear();
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            };
        };
        ready.extend(events[..count].iter().map(|event| event.u64));
        Ok(())
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, key: u64, write: bool) -> io::Result<()> {
        let write = if write { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | write).cast_unsigned(),
            u64: key,
        };
        // SAFETY: the event lives through the call. A closed descriptor causes only an error.
        let result =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Readable while one of its descriptors is ready: a set can be in another one.
impl AsRawFd for Poller {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn ready_descriptors_are_told_by_their_keys() {
        let poller = Poller::new().expect("epoll");
        let (mut left, right) = UnixStream::pair().expect("sockets");
        let mut ready = Vec::new();
        poller.add(right.as_raw_fd(), 7, false).expect("added");
        poller.wait(Duration::ZERO, &mut ready).expect("waited");
        assert!(ready.is_empty());
        left.write_all(b"x").expect("written");
        poller
            .wait(Duration::from_secs(9), &mut ready)
            .expect("waited");
        assert_eq!(ready, [7]);
        poller.add(left.as_raw_fd(), 8, false).expect("added");
        poller
            .set_write(left.as_raw_fd(), 8, true)
            .expect("changed");
        drop(right);
        poller
            .wait(Duration::from_secs(9), &mut ready)
            .expect("waited");
        assert_eq!(ready, [8], "a closed descriptor leaves");
    }
}
