//! TCP connections to peers that may not listen yet, and to peers that may lose power.

use rustix::net::sockopt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

/// Interval between attempts to reach a peer that does not listen yet.
pub(super) const RETRY: Duration = Duration::from_millis(20);

/// Connects to `host:port` with retries until `limit`. Blocks.
///
/// # Errors
/// The error of the last attempt.
pub fn reach(address: &str, limit: Duration) -> io::Result<TcpStream> {
    reach_within(address, limit, limit)
}

/// As [`reach`]. Gives up after `absent_limit` if the answer is that nothing listens there, or that no such host exists.
///
/// # Errors
/// The error of the last attempt.
pub fn reach_within(
    address: &str,
    limit: Duration,
    absent_limit: Duration,
) -> io::Result<TcpStream> {
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        let error = match connect_once(address, left.max(RETRY)) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let is_over = match error.kind() {
            io::ErrorKind::InvalidInput => true,
            // The peer may exist: its queue of callers is full, or the network drops packets.
            io::ErrorKind::TimedOut => left <= RETRY,
            _ => left.min(absent_limit.saturating_sub(start.elapsed())) <= RETRY,
        };
        if is_over {
            return Err(error);
        }
        std::thread::sleep(RETRY);
    }
}

fn connect_once(address: &str, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(
        io::ErrorKind::InvalidData,
        format!("'{address}' names no address"),
    );
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, limit).and_then(to_another) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The kernel may give a connection the local port at which its peer will listen. Such a connection leads to itself, and keeps
/// the peer from its port.
pub(super) fn to_another(stream: TcpStream) -> io::Result<TcpStream> {
    match stream.local_addr()? == stream.peer_addr()? {
        true => Err(io::ErrorKind::ConnectionRefused.into()),
        false => Ok(stream),
    }
}

/// A peer that loses power does not close its connections: the kernel closes them after about ten seconds of silence.
///
/// # Errors
/// Errors of the system.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(2))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    // The same limit for unacknowledged data, in milliseconds.
    Ok(sockopt::set_tcp_user_timeout(stream, 11_000)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, bind, connect, getsockname, socket};

    #[test]
    fn a_connection_to_itself_is_none() {
        let any = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &any).expect("bound");
        connect(&socket, &getsockname(&socket).expect("its address")).expect("connected");
        let error = to_another(TcpStream::from(socket)).expect_err("to itself");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
