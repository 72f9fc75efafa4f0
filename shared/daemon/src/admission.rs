//! Places for the connections of a server. Peers that have not proved who they are have places of their own, so that they
//! take none of the others.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts the connections of a server. A [`Visitor`] has arrived, and becomes [`Admitted`] when it has proved who it is.
#[derive(Debug)]
pub struct Admission {
    visitors_max: usize,
    admitted_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The one that has waited longest is first.
    visitors: VecDeque<(u64, TcpStream)>,
    admitted: usize,
    next: u64,
}

/// A connection whose peer has not proved who it is.
#[derive(Debug)]
pub struct Visitor {
    admission: Arc<Admission>,
    number: u64,
}

/// A connection whose peer has proved who it is. Its drop frees the place.
#[derive(Debug)]
pub struct Admitted(Arc<Admission>);

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
            state: Mutex::default(),
        })
    }

    /// Takes a place for a connection that was accepted. If there is none, the visitor that has waited longest loses its
    /// connection: silent peers cannot keep others out.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn arrive(self: &Arc<Self>, stream: &TcpStream) -> io::Result<Visitor> {
        let stream = stream.try_clone()?;
        let mut state = self.state();
        while state.visitors.len() >= self.visitors_max {
            let Some((_, oldest)) = state.visitors.pop_front() else {
                break;
            };
            // Its thread sees the end. The peer may be gone already.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let number = state.next;
        state.next += 1;
        state.visitors.push_back((number, stream));
        Ok(Visitor {
            admission: Arc::clone(self),
            number,
        })
    }

    /// Number of admitted connections.
    #[must_use]
    pub fn admitted(&self) -> usize {
        self.state().admitted
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the lists half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Visitor {
    /// Takes a place for a peer that has proved who it is.
    ///
    /// # Errors
    /// All places are taken.
    pub fn admit(self) -> Result<Admitted, NoPlace> {
        let admission = Arc::clone(&self.admission);
        {
            let mut state = admission.state();
            if state.admitted >= admission.admitted_max {
                return Err(NoPlace(admission.admitted_max));
            }
            state.admitted += 1;
        }
        Ok(Admitted(admission))
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        state.visitors.retain(|(number, _)| *number != self.number);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.state().admitted -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::TcpListener;

    #[test]
    fn silent_visitors_take_no_place_of_the_others() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let admission = Admission::new(3, 2);
        let connect = || {
            let client = TcpStream::connect(address).unwrap();
            (client, listener.accept().unwrap().0)
        };
        let mut silent: Vec<_> = (0..5).map(|_| connect()).collect();
        let visitors: Vec<_> = silent
            .iter()
            .map(|(_, stream)| admission.arrive(stream).unwrap())
            .collect();
        // The two that have waited longest are disconnected, and nobody else is.
        for (client, _) in &mut silent[..2] {
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
        for (client, _) in &mut silent[2..] {
            client.set_nonblocking(true).unwrap();
            let error = client.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
        let admitted: Vec<_> = visitors.into_iter().map(Visitor::admit).collect();
        assert_eq!(admission.admitted(), 2);
        assert_eq!(admitted[2].as_ref().unwrap_err(), &NoPlace(2));
        drop(admitted);
        assert_eq!(admission.admitted(), 0);
        assert_eq!(admission.state().visitors.len(), 0);
    }
}
