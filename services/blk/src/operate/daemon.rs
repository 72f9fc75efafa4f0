//! The main loop of a process that serves: a thread that serves, signals, status, and the loss of the volume.

use super::status::Status;
use crate::error::BlkError;
use crate::say::say;
use anyhow::{Context as _, Result, ensure};
use std::io;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use xgvmi_daemon::{Asked, Background, Daemon};

/// Runs `serve` in a thread and answers questions for the status, until SIGTERM, SIGINT, the end of `serve`, or the return
/// of `lost`, which another process has opened the volume. Returns what ended it.
///
/// # Errors
/// `serve` has failed, or errors of the system.
pub(super) fn run(
    daemon: &Daemon,
    serve: impl FnOnce() -> io::Result<()> + Send + 'static,
    lost: Option<Box<dyn FnOnce() -> BlkError + Send>>,
    status: impl Fn() -> Status,
    reload: impl Fn(),
) -> Result<Ended> {
    let mut server = Background::new("accept").context("cannot start the server")?;
    server.submit(serve);
    let fence = Background::new("fence").context("cannot start a thread")?;
    // It may wait until the process ends: nothing waits for it.
    let mut fence: ManuallyDrop<Background<BlkError>> = ManuallyDrop::new(fence);
    if let Some(lost) = lost {
        fence.submit(lost);
    }
    loop {
        let asked = daemon.wait(&[server.fd(), fence.fd()], None, || status().to_json())?;
        let drains = match (server.take(), fence.take(), asked) {
            (Some(done), ..) => {
                done?;
                false
            }
            (_, Some(error), _) => {
                say(&error);
                true
            }
            (_, _, Some(Asked::Reload)) => {
                reload();
                continue;
            }
            (_, _, Some(Asked::Child) | None) => continue,
            (_, _, Some(asked)) => asked == Asked::Drain,
        };
        return Ok(Ended { drains, server });
    }
}

/// A write beyond the limit of a file's size is an error, as on a full disk, and does not end the process. Call it before other
/// threads.
pub fn ignore_file_size_limit() {
    // SAFETY: no handler is installed, and no memory is involved.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Most heaps of the C library.
const HEAPS: libc::c_int = 2;
/// Free bytes at the end of a heap that stay. By default it gives the memory of each message back to the system, which zeroes it
/// for the next one.
const KEPT: libc::c_int = 16 << 20;
/// What is longer has pages of its own: no message is.
const APART: libc::c_int = 2 << 20;

/// By default the threads of connections share up to eight heaps for each processor, and each keeps the most that ever waited for
/// a flush in it. Call it before other threads.
pub fn use_few_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes plain numbers and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        libc::mallopt(libc::M_MMAP_THRESHOLD, APART);
    }
}

/// Address space that a process needs which serves a volume: data of requests, connections, and stacks of threads.
const ADDRESS_SPACE: u64 = 512 << 20;

/// Memory that the system refuses later would end the process in the middle of a request.
///
/// # Errors
/// The limit of its address space is too low.
pub(super) fn check_address_space() -> Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the place of a result. If the call fails, there is no limit.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    check_limit(limit.rlim_cur)
}

fn check_limit(limit: u64) -> Result<()> {
    ensure!(
        limit >= ADDRESS_SPACE,
        "the limit of address space is {limit} bytes, and {ADDRESS_SPACE} are needed: raise it (ulimit -v, LimitAS)"
    );
    Ok(())
}

/// The end of [`run`]. Dropping it waits for the thread that serves.
#[derive(Debug)]
pub(super) struct Ended {
    /// The requests that have arrived are still answered: after SIGTERM, and when another process has opened the volume,
    /// which fails them.
    pub(super) drains: bool,
    server: Background<io::Result<()>>,
}

impl Ended {
    /// Ends the process without a wait for the thread that serves.
    pub(super) fn leave(self) {
        std::mem::forget(self.server);
    }
}

/// Removes a socket's file when it is dropped.
#[derive(Debug)]
pub(super) struct Unlink(pub(super) PathBuf);

impl Drop for Unlink {
    fn drop(&mut self) {
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_address_space_is_refused() {
        check_limit(libc::RLIM_INFINITY).unwrap();
        check_limit(ADDRESS_SPACE).unwrap();
        let error = check_limit(350 << 20).unwrap_err().to_string();
        assert!(
            error.contains("367001600") && error.contains("ulimit -v"),
            "{error}"
        );
    }
}
