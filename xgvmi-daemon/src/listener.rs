//! A listening TCP socket with room for all ranks of a job.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::AsRawFd as _;

/// Maximum number of connections that wait for their accept. The system has a limit of its own, `net.core.somaxconn`.
///
/// All ranks of a job connect to their service at once. The system drops the first packet of a connection beyond the
/// limit, and the caller sends it again after one second, then after two more.
const WAITING_MAX: libc::c_int = 4096;

/// Listens on `address`. The standard library alone lets 128 connections wait.
///
/// # Errors
/// The address is unusable.
pub fn listen(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // SAFETY: listen takes plain numbers. On a socket that listens already, it changes the number of connections that
    // may wait.
    if unsafe { libc::listen(listener.as_raw_fd(), WAITING_MAX) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::time::Duration;

    /// More than the standard library's listener holds.
    const CALLERS: usize = 200;

    /// Nobody accepts meanwhile: a caller without a place in the queue fails after this time.
    const LIMIT: Duration = Duration::from_secs(20);

    fn somaxconn() -> usize {
        let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
        text.ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(CALLERS)
    }

    #[test]
    fn many_callers_wait_at_once() {
        let listener = listen("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let callers = CALLERS.min(somaxconn());
        let waiting: Vec<TcpStream> = (0..callers)
            .map(|_| TcpStream::connect_timeout(&address, LIMIT).expect("connected"))
            .collect();
        assert_eq!(waiting.len(), callers);
        listener.set_nonblocking(true).expect("set");
        let accepted = std::iter::from_fn(|| listener.accept().ok()).count();
        assert_eq!(accepted, callers, "nobody had to call again");
    }

    #[test]
    fn an_unusable_address_is_an_error() {
        assert!(listen("no port").is_err());
    }
}
