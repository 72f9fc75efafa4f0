//! The open files of the connection manager in this process.

use std::os::fd::RawFd;

use super::Process;
use crate::engine;
use crate::fabric::counters::Refusal;
use crate::fabric::rdma_cm::CmFile;
use crate::fabric::table::Owner;
use crate::sys::{self, Errno, path::PathBuffer};

impl Process {
    /// Time that the other side of a connection has for each answer, in nanoseconds.
    pub(crate) fn cm_patience_ns(&self) -> u64 {
        self.cm_patience_ns
    }

    /// Opens the connection manager: the read end of a pipe.
    ///
    /// # Errors
    /// ENOMEM: the device has the largest number of such files. Other errors come from the kernel.
    pub fn open_rdma_cm(&self, cloexec: bool, nonblocking: bool) -> Result<RawFd, Errno> {
        let process = self.number()?;
        self.start_tick()?;
        engine::tick::connects();
        let (fd, write_end) = sys::pipe(false)?;
        let both = both_ends(fd);
        sys::close(write_end);
        let made = both.and_then(|pipe| {
            let kept = self.keep_rdma_cm(process, fd, pipe);
            kept.inspect_err(|_| sys::close(pipe))
        });
        let ready = made.and_then(|()| {
            if !cloexec {
                sys::keep_over_exec(fd)?;
            }
            if nonblocking {
                sys::set_nonblocking(fd)?;
            }
            Ok(fd)
        });
        ready.inspect_err(|_| sys::close(fd))
    }

    fn keep_rdma_cm(&self, process: u32, fd: RawFd, pipe: RawFd) -> Result<(), Errno> {
        let id = sys::file_id(fd)?;
        let file = CmFile {
            device: id.device,
            inode: id.inode,
            pipe,
            functions: self
                .functions
                .iter()
                .fold(0, |mask, index| mask | 1 << index),
        };
        let owner = Owner {
            process,
            context: 0,
        };
        let _held = sys::SignalsHeld::new();
        let mut locked = self.fabric.lock();
        // The kernel uses the number of a pipe again after its owner has died.
        let files = &locked.common().rdma_cm.files;
        if let Some(stale) = files.next(0, |_, file| file.is(id)) {
            locked.cm_close(stale);
        }
        if locked.common().rdma_cm.files.insert(owner, file).is_none() {
            self.fabric.counters(0).refuse(Refusal::TableFull);
            return Err(Errno(libc::ENOMEM));
        }
        Ok(())
    }

    /// The slot of the connection manager's file behind a descriptor, which may be inherited or
    /// received.
    pub(crate) fn cm_file(&self, fd: RawFd) -> Option<u32> {
        let id = sys::file_id(fd).ok()?;
        let _held = sys::SignalsHeld::new();
        let mut locked = self.fabric.lock();
        locked.common().rdma_cm.files.next(0, |_, file| file.is(id))
    }

    /// True if a descriptor is a file of the connection manager.
    #[must_use]
    pub fn is_rdma_cm(&self, fd: RawFd) -> bool {
        self.cm_file(fd).is_some()
    }

    /// Handles the close of a descriptor. The last one of the process that opened the file ends its
    /// identifiers.
    pub(super) fn closing_rdma_cm(&self, fd: RawFd) {
        let Some(file) = self.cm_file(fd) else {
            return;
        };
        if self.rdma_cm_elsewhere(fd, file) {
            return;
        }
        let pipe = {
            let _held = sys::SignalsHeld::new();
            let mut locked = self.fabric.lock();
            let owner = locked.common().rdma_cm.files.owner(file);
            let ours = owner.and_then(|owner| locked.pid(owner.process)) == Some(sys::pid());
            if ours { locked.cm_close(file) } else { None }
        };
        if let Some(pipe) = pipe {
            sys::close(pipe);
        }
    }

    /// True if another descriptor of the program refers to the file. The emulator's own descriptor
    /// of the pipe does not count.
    fn rdma_cm_elsewhere(&self, fd: RawFd, file: u32) -> bool {
        let pipe = {
            let _held = sys::SignalsHeld::new();
            let mut locked = self.fabric.lock();
            let files = &locked.common().rdma_cm.files;
            files.get(file).map(|file| file.pipe)
        };
        self.descriptors_like(fd).any(|other| Some(other) != pipe)
    }
}

/// A descriptor of both ends of a pipe that does not block.
fn both_ends(fd: RawFd) -> Result<RawFd, Errno> {
    let mut path = PathBuffer::new();
    path.text("/proc/self/fd/").number(fd);
    sys::open(path.as_cstr(), libc::O_RDWR | libc::O_NONBLOCK)
}
