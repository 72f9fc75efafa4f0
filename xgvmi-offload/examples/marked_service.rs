//! A service process whose instructions a tool can count: SIGUSR1 starts a section, SIGUSR2 ends it.
//!
//! ```text
//! marked_service LISTEN
//! ```
//!
//! The handlers make a system call that no kernel has, see the crate `step-count`. The signals must go to the first thread,
//! which is the one that moves data.

use anyhow::{Result, bail, ensure};
use std::io;
use xgvmi_offload::{Service, ServiceArgs};

/// Number of the system call that is a mark.
const MARK: i64 = 0x5847_564d;
/// Single-stepping slows the thread down some thousand times, also its heartbeats.
const SILENCE_LIMIT_S: u64 = 1200;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [listen] = words.as_slice() else {
        bail!("usage: marked_service LISTEN");
    };
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        let handler: extern "C" fn(libc::c_int) = on_signal;
        // SAFETY: the handler calls only functions that are safe in a handler.
        let before = unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        ensure!(before != libc::SIG_ERR, "{}", io::Error::last_os_error());
    }
    let args = ServiceArgs {
        listen: Some(listen.clone()),
        silence_limit_s: Some(SILENCE_LIMIT_S),
        setup_limit_s: Some(300),
        ..ServiceArgs::default()
    };
    let mut service = Service::new(args.options()?)?;
    #[expect(clippy::print_stdout, reason = "a program's answer")]
    {
        println!(
            "marked_service listens on {}, process {}",
            service.address(),
            std::process::id()
        );
    }
    Ok(service.run()?)
}

extern "C" fn on_signal(signal: libc::c_int) {
    let label = u64::from(signal == libc::SIGUSR1);
    // SAFETY: the location of this thread's errno is valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // SAFETY: no kernel has this system call: it fails, and touches nothing.
    unsafe { libc::syscall(MARK, label) };
    // SAFETY: as above.
    unsafe { *errno = before };
}
