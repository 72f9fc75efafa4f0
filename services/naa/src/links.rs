//! The connections of hosts. Without a limit for each kind, connections that prove nothing, or that have no session, would
//! exclude the others. The oldest one of a kind ends for a new one.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Connections before their hello. One that is slow ends when a further one needs its place.
const STRANGERS_MAX: usize = 256;

/// The connections of a service.
#[derive(Debug)]
pub(crate) struct Links {
    table: Mutex<Table>,
    members_max: usize,
}

#[derive(Debug, Default)]
struct Table {
    /// Orders connections by the beginning of their state.
    next: u64,
    strangers: BTreeMap<u64, Socket>,
    /// Hosts that have said hello and have no session.
    idle: BTreeMap<u64, Socket>,
    /// Hosts with a session.
    busy: BTreeMap<u64, Socket>,
}

/// A second handle of a connection's socket.
#[derive(Debug)]
struct Socket(TcpStream);

impl Socket {
    /// Ends the connection, which wakes its thread.
    fn end(self) {
        // A socket that is closed already needs nothing.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// A connection's place in the table. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Entry<'l> {
    links: &'l Links,
    key: u64,
}

impl Links {
    pub(crate) fn new(members_max: usize) -> Self {
        Self {
            table: Mutex::default(),
            members_max,
        }
    }

    /// Number of connections.
    pub(crate) fn count(&self) -> usize {
        let table = self.table();
        table.strangers.len() + table.idle.len() + table.busy.len()
    }

    /// Takes a new connection. The oldest one that has not said hello ends if there are too many.
    pub(crate) fn admit(&self, stream: TcpStream) -> Entry<'_> {
        let mut table = self.table();
        if table.strangers.len() >= STRANGERS_MAX
            && let Some((_, oldest)) = table.strangers.pop_first()
        {
            oldest.end();
        }
        let key = table.number();
        table.strangers.insert(key, Socket(stream));
        Entry { links: self, key }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No holder panics between changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Entry<'_> {
    /// The host has said hello. The connection that has been without a session for the longest time ends if there are
    /// too many. False if all have sessions, or if this connection had to make place meanwhile.
    pub(crate) fn welcome(&mut self) -> bool {
        let mut table = self.links.table();
        let Some(socket) = table.strangers.remove(&self.key) else {
            return false;
        };
        if table.idle.len() + table.busy.len() >= self.links.members_max {
            match table.idle.pop_first() {
                Some((_, oldest)) => oldest.end(),
                None => return false,
            }
        }
        self.key = table.number();
        table.idle.insert(self.key, socket);
        true
    }

    /// A session begins. False if the connection had to make place meanwhile.
    pub(crate) fn begin(&mut self) -> bool {
        let mut table = self.links.table();
        let Some(socket) = table.idle.remove(&self.key) else {
            return false;
        };
        table.busy.insert(self.key, socket);
        true
    }

    /// The session has ended.
    pub(crate) fn finish(&mut self) {
        let mut table = self.links.table();
        if let Some(socket) = table.busy.remove(&self.key) {
            self.key = table.number();
            table.idle.insert(self.key, socket);
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut table = self.links.table();
        table.strangers.remove(&self.key);
        table.idle.remove(&self.key);
        table.busy.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::TcpListener;

    struct Site(TcpListener);

    impl Site {
        fn new() -> Self {
            Self(TcpListener::bind("127.0.0.1:0").expect("a port"))
        }

        /// Both ends of a connection.
        fn pair(&self) -> (TcpStream, TcpStream) {
            let address = self.0.local_addr().expect("bound");
            let caller = TcpStream::connect(address).expect("it listens");
            (caller, self.0.accept().expect("a caller").0)
        }
    }

    fn copy(stream: &TcpStream) -> TcpStream {
        stream.try_clone().expect("a descriptor")
    }

    fn has_ended(mut caller: &TcpStream) -> bool {
        caller.set_nonblocking(true).expect("an option");
        caller.read(&mut [0]).is_ok_and(|count| count == 0)
    }

    #[test]
    fn strangers_take_places_of_strangers_only() {
        let (site, links) = (Site::new(), Links::new(2));
        let (friend, stream) = site.pair();
        let mut entry = links.admit(copy(&stream));
        assert!(entry.welcome());
        let strangers: Vec<_> = (0..300)
            .map(|_| {
                let (caller, stream) = site.pair();
                (caller, links.admit(copy(&stream)), stream)
            })
            .collect();
        assert_eq!(links.count(), STRANGERS_MAX + 1);
        let ended = strangers.iter().filter(|(caller, ..)| has_ended(caller));
        assert_eq!(ended.count(), 300 - STRANGERS_MAX);
        assert!(!has_ended(&friend));
        let (_caller, stream) = site.pair();
        assert!(
            links.admit(copy(&stream)).welcome(),
            "a host that says hello"
        );
        drop((entry, strangers));
        assert_eq!(links.count(), 0);
    }

    #[test]
    fn the_connection_without_a_session_that_is_idle_for_longest_makes_place() {
        let (site, links) = (Site::new(), Links::new(3));
        let hosts: Vec<_> = (0..3).map(|_| site.pair()).collect();
        let mut entries: Vec<_> = hosts.iter().map(|(_, s)| links.admit(copy(s))).collect();
        assert!(entries.iter_mut().all(Entry::welcome));
        assert!(entries[0].begin());
        assert!(entries[1].begin());
        entries[1].finish();
        let (_caller, stream) = site.pair();
        let mut fourth = links.admit(copy(&stream));
        assert!(fourth.welcome());
        let ended: Vec<bool> = hosts.iter().map(|(caller, _)| has_ended(caller)).collect();
        assert_eq!(ended, [false, false, true], "2 is idle for longer than 1");
        assert!(!entries[2].begin(), "its place is gone");
        assert!(entries[1].begin() && fourth.begin());
        let (_caller, stream) = site.pair();
        assert!(!links.admit(copy(&stream)).welcome(), "all have sessions");
    }
}
