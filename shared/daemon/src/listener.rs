//! A listening TCP socket with room for all ranks of a job, and accepts that survive a shortage.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::time::Duration;

/// Maximum number of connections that wait for their accept. The system has a limit of its own, `net.core.somaxconn`.
///
/// All ranks of a job connect to their service at once. The system drops the first packet of a connection beyond the
/// limit, and the caller sends it again after one second, then after two more.
const WAITING_MAX: i32 = 4096;

/// Listens on `address`. The standard library alone lets 128 connections wait.
///
/// # Errors
/// The address is unusable.
pub fn listen(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // On a socket that listens already, this changes the number of connections that may wait.
    rustix::net::listen(&listener, WAITING_MAX)?;
    Ok(listener)
}

/// Pause after a failed accept, so that a shortage of descriptors or memory does not become a busy loop.
const PAUSE: Duration = Duration::from_millis(20);

/// Calls `accept` until there is a connection. An error of one connection, or a lack of descriptors or memory, does not
/// end a server: `tell` gets the first one, and the next attempt follows.
///
/// # Errors
/// The socket cannot accept: it was shut down, or is none that listens.
pub fn accept_patiently<T>(
    mut accept: impl FnMut() -> io::Result<T>,
    tell: impl FnOnce(&io::Error),
) -> io::Result<T> {
    let mut tell = Some(tell);
    loop {
        let error = match accept() {
            Ok(accepted) => return Ok(accepted),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP) | None => {
                return Err(error);
            }
            Some(_) => {
                if let Some(tell) = tell.take() {
                    tell(&error);
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::fd::AsRawFd as _;

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
        for number in 0..callers {
            // A busy machine may deliver the caller's last packet after its call.
            let mut fds = [crate::pollfd(listener.as_raw_fd(), libc::POLLIN)];
            crate::poll(&mut fds, Some(LIMIT)).expect("polled");
            assert!(listener.accept().is_ok(), "{number} of {callers}");
        }
    }

    #[test]
    fn a_shortage_does_not_end_a_server_and_a_shut_socket_does() {
        let shortages = [libc::EMFILE, libc::EINTR, libc::ENOBUFS, libc::ECONNABORTED];
        let mut errors = shortages.into_iter();
        let mut told = Vec::new();
        let accepted = accept_patiently(
            || {
                let next = errors.next();
                next.map_or(Ok(7), |errno| Err(io::Error::from_raw_os_error(errno)))
            },
            |error| told.push(error.raw_os_error()),
        );
        assert_eq!(accepted.expect("the shortage ends"), 7);
        assert_eq!(told, [Some(libc::EMFILE)], "once");
        let listener = listen("127.0.0.1:0").expect("a port");
        // SAFETY: an open socket of this process; no memory is involved.
        unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
        let error = accept_patiently(|| listener.accept(), |_| {}).expect_err("shut");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn an_unusable_address_is_an_error() {
        assert!(listen("no port").is_err());
    }
}
