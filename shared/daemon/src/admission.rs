//! Places for the connections of a server. Peers that have not proved who they are have places of their own, so that they
//! take none of the others. The oldest connection that does nothing ends for a new one.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The connections of a server.
#[derive(Debug)]
pub struct Admission {
    visitors_max: usize,
    admitted_max: usize,
    table: Mutex<Table>,
}

/// A second handle of each connection's socket.
#[derive(Debug, Default)]
struct Table {
    /// Orders connections by the beginning of their state.
    next: u64,
    /// Peers that have not proved who they are.
    visitors: BTreeMap<u64, TcpStream>,
    /// Admitted peers that may make place for others.
    idle: BTreeMap<u64, TcpStream>,
    /// Other admitted peers.
    busy: BTreeMap<u64, TcpStream>,
}

/// A connection's place. Its drop frees the place.
#[derive(Debug)]
pub struct Place {
    admission: Arc<Admission>,
    key: u64,
}

/// All places are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("all {0} places for connections are taken: close one, or try again later")]
pub struct NoPlace(pub usize);

impl Admission {
    /// Places for `visitors_max` peers that have proved nothing, and for `admitted_max` others.
    #[must_use]
    pub fn new(visitors_max: usize, admitted_max: usize) -> Arc<Self> {
        Arc::new(Self {
            visitors_max: visitors_max.max(1),
            admitted_max,
            table: Mutex::default(),
        })
    }

    /// Takes a place for a connection that was accepted. If there is none, the visitor that has waited longest loses its
    /// connection: silent peers cannot keep others out.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn arrive(self: &Arc<Self>, stream: &TcpStream) -> io::Result<Place> {
        let stream = stream.try_clone()?;
        let mut table = self.table();
        if table.visitors.len() >= self.visitors_max {
            end(table.visitors.pop_first());
        }
        let key = table.number();
        table.visitors.insert(key, stream);
        Ok(Place {
            admission: Arc::clone(self),
            key,
        })
    }

    /// Number of admitted connections.
    #[must_use]
    pub fn admitted(&self) -> usize {
        self.table().admitted()
    }

    /// Number of all connections.
    #[must_use]
    pub fn count(&self) -> usize {
        let table = self.table();
        table.visitors.len() + table.admitted()
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

    fn admitted(&self) -> usize {
        self.idle.len() + self.busy.len()
    }
}

/// Ends a connection, which wakes its thread.
fn end(oldest: Option<(u64, TcpStream)>) {
    if let Some((_, stream)) = oldest {
        // A socket that is closed already needs nothing.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

impl Place {
    /// The peer has proved who it is. The admitted connection that has been idle for the longest time ends if there are too
    /// many. A visitor that had to make place meanwhile has no connection any more.
    ///
    /// # Errors
    /// All places are taken by connections that are not idle.
    pub fn admit(&mut self) -> Result<(), NoPlace> {
        let most = self.admission.admitted_max;
        let mut table = self.admission.table();
        let Some(stream) = table.visitors.remove(&self.key) else {
            return Err(NoPlace(most));
        };
        if table.admitted() >= most {
            let oldest = table.idle.pop_first();
            if oldest.is_none() {
                return Err(NoPlace(most));
            }
            end(oldest);
        }
        self.key = table.number();
        table.busy.insert(self.key, stream);
        Ok(())
    }

    /// The admitted connection may make place for others from now on.
    pub fn rest(&mut self) {
        let mut table = self.admission.table();
        if let Some(stream) = table.busy.remove(&self.key) {
            self.key = table.number();
            table.idle.insert(self.key, stream);
        }
    }

    /// The admitted connection keeps its place from now on. False if it had to make place meanwhile.
    pub fn begin(&mut self) -> bool {
        let mut table = self.admission.table();
        let Some(stream) = table.idle.remove(&self.key) else {
            return false;
        };
        table.busy.insert(self.key, stream);
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.admission.table();
        table.visitors.remove(&self.key);
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

    fn has_ended(mut caller: &TcpStream) -> bool {
        caller.set_nonblocking(true).expect("an option");
        caller.read(&mut [0]).is_ok_and(|count| count == 0)
    }

    #[test]
    fn silent_visitors_take_no_place_of_the_others() {
        let (site, admission) = (Site::new(), Admission::new(3, 2));
        let pairs: Vec<_> = (0..5).map(|_| site.pair()).collect();
        let arrive = |(_, stream): &(_, TcpStream)| admission.arrive(stream).expect("a handle");
        let mut places: Vec<_> = pairs.iter().map(arrive).collect();
        // The two that have waited longest are disconnected, and nobody else is.
        let ended: Vec<bool> = pairs.iter().map(|(caller, _)| has_ended(caller)).collect();
        assert_eq!(ended, [true, true, false, false, false]);
        assert_eq!(admission.count(), 3);
        let admitted: Vec<bool> = places.iter_mut().map(|p| p.admit().is_ok()).collect();
        assert_eq!(admitted, [false, false, true, true, false]);
        assert_eq!((admission.admitted(), admission.count()), (2, 2));
        // Visitors take no place of those that are admitted.
        let more: Vec<_> = (0..9).map(|_| site.pair()).collect();
        let visitors: Vec<_> = more.iter().map(arrive).collect();
        assert_eq!(admission.count(), 2 + 3);
        assert!(!has_ended(&pairs[2].0) && !has_ended(&pairs[3].0));
        drop((places, visitors));
        assert_eq!(admission.count(), 0);
    }

    #[test]
    fn the_admitted_connection_that_is_idle_for_longest_makes_place() {
        let (site, admission) = (Site::new(), Admission::new(9, 3));
        let pairs: Vec<_> = (0..3).map(|_| site.pair()).collect();
        let arrive = |(_, stream): &(_, TcpStream)| admission.arrive(stream).expect("a handle");
        let mut places: Vec<_> = pairs.iter().map(arrive).collect();
        for place in &mut places {
            place.admit().expect("a place");
            place.rest();
        }
        assert!(places[0].begin());
        assert!(places[1].begin());
        places[1].rest();
        let new = site.pair();
        let mut fourth = arrive(&new);
        fourth.admit().expect("a place");
        fourth.rest();
        let ended: Vec<bool> = pairs.iter().map(|(caller, _)| has_ended(caller)).collect();
        assert_eq!(ended, [false, false, true], "2 is idle for longer than 1");
        assert!(!places[2].begin(), "its place is gone");
        assert!(places[1].begin() && fourth.begin());
        let new = site.pair();
        assert_eq!(arrive(&new).admit(), Err(NoPlace(3)), "all are busy");
    }
}
