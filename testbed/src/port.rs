//! TCP ports of this machine, for servers that tests and benchmarks start.

use anyhow::{Context as _, Result};
use std::collections::VecDeque;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

/// The ports that [`free`] returns. They are below the range from which Linux takes the local ports of connections
/// (32768 to 60999 by default): a port from that range can become the local port of any connection between the choice of
/// the port and the start of its server, or while the server restarts.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// Distance between the first ports of two processes with consecutive ids. It has no common divisor with `COUNT`.
const STRIDE: u32 = 61;

/// Number of reservations that a process keeps, each with a descriptor. A server has bound its port long before the
/// process has chosen as many others.
const KEPT_MAX: usize = 256;

/// The next port of this process, and the reservations of the last ones.
static CHOSEN: Mutex<(Option<u16>, VecDeque<UnixListener>)> = Mutex::new((None, VecDeque::new()));

/// A TCP port without a listener at any address, for a server that starts later. No two calls return the same port as long as the
/// calling processes live, with up to 256 ports per process.
///
/// Any thread may call it.
///
/// # Errors
/// If each of the 12,000 ports from 20,000 on is in use.
pub fn free() -> Result<u16> {
    // A panic between two changes leaves at most a reservation too much.
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    let (next, kept) = &mut *chosen;
    let start = next.unwrap_or_else(|| first_of(std::process::id()));
    let ports = (0..COUNT).map(|step| FIRST + (start - FIRST + step) % COUNT);
    let found = ports
        .into_iter()
        .find_map(|port| Some((port, reserve(port)?)));
    let (port, reservation) =
        found.with_context(|| format!("no free TCP port from {FIRST} to {}", FIRST + COUNT - 1))?;
    *next = Some(FIRST + (port - FIRST + 1) % COUNT);
    kept.push_back(reservation);
    if kept.len() > KEPT_MAX {
        kept.pop_front();
    }
    Ok(port)
}

/// The first port of a process.
fn first_of(process: u32) -> u16 {
    let offset = process.wrapping_mul(STRIDE) % u32::from(COUNT);
    // Less than COUNT, so it fits.
    FIRST + u16::try_from(offset).unwrap_or(0)
}

/// Reserves a port among the processes that use this module, if nothing listens on it. The reservation is a socket with an
/// abstract name, which the kernel removes with the process.
fn reserve(port: u16) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("xgvmi-port-{port}")).ok()?;
    let reservation = UnixListener::bind_addr(&name).ok()?;
    // Without a bind as a trial: a process that another thread forks at that moment would hold the port until its `execve`.
    (!listens(port)).then_some(reservation)
}

/// Whether a socket listens on `port`, at any address. Reads the kernel's tables and does not connect: many test servers
/// treat the first connection as their client's.
#[must_use]
pub fn listens(port: u16) -> bool {
    listens_at("self", port)
}

/// Whether a socket listens on `port` in the network namespace of a process, at any address.
#[must_use]
pub fn listens_in(process: i32, port: u16) -> bool {
    listens_at(&process.to_string(), port)
}

fn listens_at(process: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let wanted = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let table = format!("/proc/{process}/net/{table}");
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&wanted))
                && words.nth(1) == Some(LISTEN)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::TcpListener;

    #[test]
    fn no_port_is_returned_twice() {
        let ports: Vec<u16> = (0..KEPT_MAX / 2)
            .map(|_| free().expect("a free port"))
            .collect();
        let different: BTreeSet<u16> = ports.iter().copied().collect();
        assert_eq!(different.len(), ports.len());
        assert!(
            ports
                .iter()
                .all(|port| (FIRST..FIRST + COUNT).contains(port))
        );
        // Another process cannot have them either.
        assert!(ports.iter().all(|port| reserve(*port).is_none()));
    }

    #[test]
    fn a_port_in_use_is_not_free() {
        let port = free().expect("a free port");
        assert!(!listens(port));
        let server = TcpListener::bind(("127.0.0.1", port)).expect("it was free");
        assert!(listens(port));
        assert!(TcpListener::bind(("127.0.0.1", port)).is_err());
        drop(server);
    }

    #[test]
    fn processes_begin_at_different_ports() {
        let starts: BTreeSet<u16> = (0..u32::from(COUNT)).map(first_of).collect();
        assert_eq!(starts.len(), usize::from(COUNT));
    }
}
