//! Serves one target to the process that owns its volume.
//!
//! Any connection may ask for the identity. The connection that marks the target with an epoch owns it from then on.
//! Calls of earlier owners are refused: also those that were sent before, and arrive late.

use super::wire::{Answer, CALL_MAX, Call, HELD_MAX, PROTOCOL};
use crate::error::{BlkError, Result};
use crate::say::say;
use crate::store::{Held, Identity, Mark, Store, Target, Usage};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use xgvmi_daemon::{Budget, Link, LinkError, Secret};

/// No connection has this number.
const NOBODY: usize = usize::MAX;
/// Most connections at once.
const CONNECTIONS_MAX: usize = 16;
/// Bytes of frames of unidentified connections.
const BUDGET: usize = 64 << 20;
/// A peer that does not prove the secret and say hello within this time loses its connection.
const GREETING: Duration = Duration::from_secs(10);
/// A connection waits this long for the next call before it looks again.
const IDLE: Duration = Duration::from_secs(3600);

/// The owner of a target.
#[derive(Debug, Default)]
struct Owner {
    /// Number of its connection; 0 for none.
    connection: usize,
    /// Number of its process.
    process: [u8; 16],
}

/// Work of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Open connections.
    pub connections: usize,
    /// Calls since the start.
    pub calls: u64,
    /// Calls that were refused or have failed.
    pub failed_calls: u64,
}

/// Serves one target to peers that prove one of its secrets.
#[derive(Debug)]
pub struct TargetServer {
    store: Store,
    /// Without any, everybody is served.
    secrets: RwLock<Vec<Secret>>,
    budget: Budget,
    /// Held during each call that needs it: an owner's last call ends before the next owner's first one starts.
    owner: Mutex<Owner>,
    open: AtomicUsize,
    calls: AtomicU64,
    failed_calls: AtomicU64,
}

impl TargetServer {
    /// Serves `store`. Peers must prove one of the secrets unless there is none.
    #[must_use]
    pub fn new(store: Store, secrets: Vec<Secret>) -> Self {
        Self {
            store,
            secrets: RwLock::new(secrets),
            budget: Budget::new(BUDGET),
            owner: Mutex::default(),
            open: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            failed_calls: AtomicU64::new(0),
        }
    }

    /// What the target is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.store.identity()
    }

    /// Use of the target's space.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.store.usage()
    }

    /// Connections and calls.
    #[must_use]
    pub fn load(&self) -> Load {
        Load {
            connections: self.open.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
            failed_calls: self.failed_calls.load(Ordering::Relaxed),
        }
    }

    /// New connections must prove one of these secrets. Open ones stay.
    pub fn set_secrets(&self, secrets: Vec<Secret>) {
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
    }

    /// Ends the calls of owners for good, and makes what they did durable.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn drain(&self) -> Result<()> {
        let mut owner = self.owner();
        owner.connection = NOBODY;
        // Held until the process ends: no other connection becomes the owner.
        let _kept = std::mem::ManuallyDrop::new(owner);
        self.store.flush()
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        // A panic cannot leave the owner half changed.
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts connections without end.
    ///
    /// # Errors
    /// The socket fails.
    pub fn run(self: &Arc<Self>, listener: &TcpListener) -> io::Result<()> {
        for connection in 1.. {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if self.open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                self.open.fetch_sub(1, Ordering::Relaxed);
                say(format_args!(
                    "a connection was refused: {CONNECTIONS_MAX} are open"
                ));
                continue;
            }
            let thread = Arc::clone(self);
            let work = move || {
                match thread.connection(stream, connection) {
                    Ok(()) | Err(LinkError::Closed) => {}
                    Err(error) => say(format_args!("a connection is closed: {error}")),
                }
                thread.open.fetch_sub(1, Ordering::Relaxed);
            };
            if let Err(error) = std::thread::Builder::new()
                .name("target".to_owned())
                .spawn(work)
            {
                self.open.fetch_sub(1, Ordering::Relaxed);
                say(format_args!("a connection was refused: {error}"));
            }
        }
        Ok(())
    }

    /// Answers the calls of one connection.
    fn connection(&self, stream: TcpStream, number: usize) -> Result<(), LinkError> {
        let secrets = self
            .secrets
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut link = Link::called(stream, PROTOCOL, &secrets, &self.budget)?;
        let mut held = Vec::new();
        let mut limit = GREETING;
        loop {
            let Some(bytes) = link.wait(limit)? else {
                if limit == GREETING {
                    return Err(LinkError::Malformed("it does not say hello in time"));
                }
                continue;
            };
            let call = Call::parse(&bytes)
                .map_err(|_| LinkError::Malformed("a call that there is not"))?;
            limit = IDLE;
            link.set_frame_max(CALL_MAX);
            let answer = self.answer(&call, number, &mut held);
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.failed_calls
                .fetch_add(answer.is_error().into(), Ordering::Relaxed);
            link.send(&answer.to_bytes())?;
        }
    }

    fn answer(&self, call: &Call, connection: usize, held: &mut Vec<Held>) -> Answer {
        let done = match call {
            Call::Hello => return Answer::Hello(self.store.identity(), self.store.usage()),
            Call::Held { from } => return self.held(*from, held),
            Call::Fetch { block, generation } => {
                return match self.store.fetch(*block, *generation) {
                    Ok(half) => Answer::Half(half),
                    Err(error) => Answer::of_error(&error),
                };
            }
            Call::Mark { epoch, mark, owner } => self.mark((*epoch, *mark), (connection, *owner)),
            Call::Prepare { block, keep, half } => self.owned(connection, |store| {
                if half.fits(store.identity().role) {
                    store.prepare(*block, half, *keep)
                } else {
                    Err(self.refused("the half block has a wrong length"))
                }
            }),
            Call::Commit { block, generation } => {
                self.owned(connection, |store| store.commit(*block, *generation))
            }
            Call::Flush => self.owned(connection, Target::flush),
        };
        match done {
            Ok(()) => Answer::Done(self.store.usage()),
            Err(error) => Answer::of_error(&error),
        }
    }

    /// A part of the generations. The first part takes a copy, so that the parts belong together.
    fn held(&self, from: u64, held: &mut Vec<Held>) -> Answer {
        if from == 0 {
            match self.store.held() {
                Ok(all) => *held = all,
                Err(error) => return Answer::of_error(&error),
            }
        }
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(held.len());
        let end = held.len().min(from + HELD_MAX);
        let part = held[from..end].to_vec();
        if part.is_empty() {
            *held = Vec::new();
        }
        Answer::Held(part)
    }

    fn refused(&self, reason: &str) -> BlkError {
        BlkError::Refused {
            target: self.store.name().to_owned(),
            reason: reason.to_owned(),
        }
    }

    /// Makes a connection the owner, unless another process has opened the volume later.
    fn mark(
        &self,
        (epoch, mark): (u64, Mark),
        (connection, process): (usize, [u8; 16]),
    ) -> Result<()> {
        let mut owner = self.owner();
        let known = self.store.identity().epoch;
        let is_same = owner.connection == 0 || owner.process == process;
        if epoch < known || (epoch == known && !is_same) {
            return Err(self.refused("another process has opened the volume since"));
        }
        self.store.mark(epoch, mark)?;
        *owner = Owner {
            connection,
            process,
        };
        Ok(())
    }

    /// Runs a call of the owner.
    fn owned(&self, connection: usize, call: impl FnOnce(&Store) -> Result<()>) -> Result<()> {
        let owner = self.owner();
        if owner.connection == connection {
            call(&self.store)
        } else {
            Err(self.refused("another connection owns the target"))
        }
    }
}
