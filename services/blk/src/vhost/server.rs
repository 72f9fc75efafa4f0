//! The socket of vhost-user front ends, one at a time.

use super::device::Device;
use super::shared::Served;
use crate::disk::FindDisk;
use crate::say::say;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use vhost::vhost_user::{Error as VhostUserError, Listener};
use vhost_user_backend::{Error, ShutdownHandle, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};
use xgvmi_daemon::{poll, pollfd};

/// Pause after a front end that could not be accepted, and how many such pauses there are in a row: ten seconds.
const PAUSE: Duration = Duration::from_millis(100);
const FAILURES_MAX: u32 = 100;

/// Serves a volume to the virtual machine that is connected.
pub struct VhostServer {
    find: FindDisk,
    queues: usize,
    read_only: bool,
    listener: UnixListener,
    current: Mutex<Option<Current>>,
    /// A front end is connected, or its requests have not ended.
    busy: AtomicBool,
    drains: AtomicBool,
}

impl std::fmt::Debug for VhostServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VhostServer").finish_non_exhaustive()
    }
}

/// The connection that is served.
struct Current {
    device: Arc<Device>,
    handle: ShutdownHandle,
}

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Current").finish_non_exhaustive()
    }
}

fn failed(error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl VhostServer {
    /// Serves the disk that `find` finds on a socket, with so many queues. Without one, it ends each connection. A disk that may
    /// not be written is read-only, too.
    #[must_use]
    pub fn new(listener: UnixListener, find: FindDisk, queues: usize, read_only: bool) -> Self {
        Self {
            find,
            queues,
            read_only,
            listener,
            current: Mutex::default(),
            busy: AtomicBool::new(false),
            drains: AtomicBool::new(false),
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        // A panic cannot leave it half changed.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of front ends, 0 or 1.
    #[must_use]
    pub fn connections(&self) -> usize {
        usize::from(self.busy.load(Ordering::SeqCst))
    }

    /// Serves one front end after the other until [`VhostServer::drain`].
    ///
    /// # Errors
    /// No front end could be accepted for a while.
    pub fn run(&self) -> io::Result<()> {
        let mut listener = Listener::from(self.listener.try_clone()?);
        let mut failures = 0;
        while !self.drains.load(Ordering::SeqCst) {
            match self.serve(&mut listener) {
                Ok(()) => failures = 0,
                Err(_) if self.drains.load(Ordering::SeqCst) => {}
                Err(error) if failures == FAILURES_MAX => return Err(error),
                // A lack of descriptors, memory or threads ends.
                Err(error) => {
                    if failures == 0 {
                        say(format_args!("no vhost-user front end is accepted: {error}"));
                    }
                    failures += 1;
                    std::thread::sleep(PAUSE);
                }
            }
        }
        Ok(())
    }

    /// Accepts a front end and serves it until it leaves.
    fn serve(&self, listener: &mut Listener) -> io::Result<()> {
        // As it is when the front end has come, with the rights of then.
        let mut fds = [pollfd(self.listener.as_raw_fd(), libc::POLLIN)];
        poll(&mut fds, None)?;
        let disk = match (self.find)().and_then(|disk| disk.renew().map(|()| disk)) {
            Ok(disk) => disk,
            Err(reason) => {
                self.listener.accept()?;
                say(format_args!("a vhost-user front end was refused: {reason}"));
                return Ok(());
            }
        };
        let served = Served {
            disk,
            queues: self.queues,
            read_only: self.read_only,
        };
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let (ended, has_ended) = mpsc::channel();
        let device = Device::new(served, memory.clone(), ended)?;
        let device = Arc::new(device);
        let served = self.serve_device(listener, &device, memory);
        device.end();
        drop((device, self.current().take()));
        // The requests under way end before another front end may repeat them.
        let _ = has_ended.recv();
        self.busy.store(false, Ordering::SeqCst);
        served
    }

    fn serve_device(
        &self,
        listener: &mut Listener,
        device: &Arc<Device>,
        memory: GuestMemoryAtomic<GuestMemoryMmap>,
    ) -> io::Result<()> {
        let daemon = VhostUserDaemon::new("vhost".to_owned(), Arc::clone(device), memory);
        let mut daemon = daemon.map_err(|error| failed(&error))?;
        daemon.start(listener).map_err(|error| failed(&error))?;
        self.busy.store(true, Ordering::SeqCst);
        if let Some(handle) = daemon.shutdown_handle() {
            let device = Arc::clone(device);
            *self.current() = Some(Current { device, handle });
        }
        if self.drains.load(Ordering::SeqCst) {
            self.stop();
        }
        match daemon.wait() {
            Ok(())
            | Err(Error::HandleRequest(
                VhostUserError::Disconnected | VhostUserError::PartialMessage,
            )) => say("the vhost-user front end has left"),
            Err(error) => say(format_args!("the vhost-user front end has left: {error}")),
        }
        Ok(())
    }

    fn stop(&self) {
        if let Some(current) = self.current().as_ref() {
            current.device.stop();
            current.handle.shutdown();
        }
    }

    /// Accepts no front end and begins no request any more. The requests under way end; [`VhostServer::connections`] is 0
    /// afterwards.
    pub fn drain(&self) {
        self.drains.store(true, Ordering::SeqCst);
        // SAFETY: an open socket of this process; no memory is involved.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        self.stop();
    }
}
