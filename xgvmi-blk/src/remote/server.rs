//! Serves one target to the process that owns its volume.
//!
//! Any connection may ask for the identity. The connection that marks the target with an epoch owns it from then on.
//! Calls of earlier owners are refused: also those that were sent before, and arrive late.

use super::wire::{Answer, CALL_MAX, Call, HELD_MAX, PROTOCOL};
use crate::error::{BlkError, Result};
use crate::store::{Held, Store, Target};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use xgvmi_daemon::{Budget, Link, LinkError, Secret};

/// Most connections at once.
const CONNECTIONS_MAX: usize = 16;
/// Bytes of frames of connections that have not said who they are.
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

struct Shared {
    store: Store,
    secrets: Vec<Secret>,
    budget: Budget,
    /// Held during each call that needs it: an owner's last call ends before the next owner's first one starts.
    owner: Mutex<Owner>,
    open: AtomicUsize,
}

/// Serves `store` on `listener` without end. Peers must prove one of the secrets unless there is none.
///
/// # Errors
/// The socket fails.
pub fn serve(listener: &TcpListener, store: Store, secrets: Vec<Secret>) -> io::Result<()> {
    let shared = Arc::new(Shared {
        store,
        secrets,
        budget: Budget::new(BUDGET),
        owner: Mutex::default(),
        open: AtomicUsize::new(0),
    });
    for connection in 1.. {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if shared.open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            shared.open.fetch_sub(1, Ordering::Relaxed);
            eprintln!("xgvmi-blk: a connection was refused: {CONNECTIONS_MAX} are open");
            continue;
        }
        let thread = Arc::clone(&shared);
        let work = move || {
            match thread.connection(stream, connection) {
                Ok(()) | Err(LinkError::Closed) => {}
                Err(error) => eprintln!("xgvmi-blk: a connection is closed: {error}"),
            }
            thread.open.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = std::thread::Builder::new()
            .name("target".to_owned())
            .spawn(work)
        {
            shared.open.fetch_sub(1, Ordering::Relaxed);
            eprintln!("xgvmi-blk: a connection was refused: {error}");
        }
    }
    Ok(())
}

impl Shared {
    /// Answers the calls of one connection.
    fn connection(&self, stream: TcpStream, number: usize) -> Result<(), LinkError> {
        let mut link = Link::called(stream, PROTOCOL, &self.secrets, &self.budget)?;
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
            link.send(&self.answer(&call, number, &mut held).to_bytes())?;
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
            Call::Mark {
                epoch,
                complete,
                owner,
            } => self.mark((*epoch, *complete), (connection, *owner)),
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
        (epoch, complete): (u64, bool),
        (connection, process): (usize, [u8; 16]),
    ) -> Result<()> {
        let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.store.identity().epoch;
        let is_same = owner.connection == 0 || owner.process == process;
        if epoch < known || (epoch == known && !is_same) {
            return Err(self.refused("another process has opened the volume since"));
        }
        self.store.mark(epoch, complete)?;
        *owner = Owner {
            connection,
            process,
        };
        Ok(())
    }

    /// Runs a call of the owner.
    fn owned(&self, connection: usize, call: impl FnOnce(&Store) -> Result<()>) -> Result<()> {
        let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        if owner.connection == connection {
            call(&self.store)
        } else {
            Err(self.refused("another connection owns the target"))
        }
    }
}
