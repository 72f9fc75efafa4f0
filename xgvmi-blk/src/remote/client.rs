//! A target in another process, as the volume uses it.

use super::wire::{Answer, Call, PROTOCOL};
use crate::error::{BlkError, Result};
use crate::record::Half;
use crate::store::{Held, Identity, Target, Usage};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use xgvmi_daemon::{Link, Secret};

/// How to reach a target.
#[derive(Debug, Clone)]
pub struct Address {
    /// `host:port`.
    pub address: String,
    /// The secret of both sides. None on machines where everyone is trusted.
    pub secret: Option<Secret>,
    /// Longest wait for the answer to one call.
    pub limit: Duration,
    /// Number of the process that owns the volume. Two openings never have the same one.
    pub owner: [u8; 16],
}

/// A connection to a target. After an error it is closed for good: a new one takes its place.
#[derive(Debug)]
pub struct RemoteTarget {
    name: String,
    limit: Duration,
    owner: [u8; 16],
    link: Mutex<Option<Link>>,
    known: Mutex<(Identity, Usage)>,
}

impl RemoteTarget {
    /// Connects to a target.
    ///
    /// # Errors
    /// It does not answer within the limit, or refuses.
    pub fn connect(to: &Address) -> Result<Self> {
        let name = format!("tcp:{}", to.address);
        let link = Link::connect(&to.address, to.limit, PROTOCOL, to.secret.as_ref());
        let mut link = link.map_err(|error| unreachable(&name, &error))?;
        let (identity, usage) = match exchange(&name, &mut link, &Call::Hello, to.limit)? {
            Answer::Hello(identity, usage) => (identity, usage),
            other => return Err(refusal(&name, 0, 0, other)),
        };
        Ok(Self {
            name,
            limit: to.limit,
            owner: to.owner,
            link: Mutex::new(Some(link)),
            known: Mutex::new((identity, usage)),
        })
    }

    /// Calls the target. A failed connection is closed, because a late answer would be taken for that of the next call.
    fn call(&self, call: &Call) -> Result<Answer> {
        let mut place = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(link) = place.as_mut() else {
            return Err(unreachable(
                &self.name,
                &"the connection was closed after an error",
            ));
        };
        let answer = exchange(&self.name, link, call, self.limit);
        if answer.is_err() {
            *place = None;
        }
        answer
    }

    /// Calls the target for an effect on `block`.
    fn done(&self, call: &Call, block: u64, generation: u64) -> Result<()> {
        match self.call(call)? {
            Answer::Done(usage) => {
                self.known().1 = usage;
                Ok(())
            }
            other => Err(refusal(&self.name, block, generation, other)),
        }
    }

    fn known(&self) -> MutexGuard<'_, (Identity, Usage)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a call and waits for its answer.
fn exchange(name: &str, link: &mut Link, call: &Call, limit: Duration) -> Result<Answer> {
    link.send(&call.to_bytes())
        .map_err(|error| unreachable(name, &error))?;
    let bytes = link
        .wait(limit)
        .map_err(|error| unreachable(name, &error))?;
    let bytes = bytes
        .ok_or_else(|| unreachable(name, &format!("no answer within {} ms", limit.as_millis())))?;
    Answer::parse(&bytes).map_err(|error| unreachable(name, &error))
}

fn unreachable(name: &str, reason: &dyn std::fmt::Display) -> BlkError {
    BlkError::Unreachable {
        target: name.to_owned(),
        reason: reason.to_string(),
    }
}

/// The error of an answer that is not the result of the call.
fn refusal(name: &str, block: u64, generation: u64, answer: Answer) -> BlkError {
    let target = name.to_owned();
    match answer {
        Answer::Absent => BlkError::Absent {
            target,
            block,
            generation,
        },
        Answer::Corrupt(fault) => BlkError::Corrupt {
            target,
            block,
            fault,
        },
        Answer::Full {
            wanted,
            free,
            capacity,
        } => BlkError::Full {
            target,
            wanted,
            free,
            capacity,
        },
        Answer::Failed(reason) => BlkError::Refused { target, reason },
        Answer::Hello(..) | Answer::Held(_) | Answer::Half(_) | Answer::Done(_) => {
            unreachable(name, &"it answers another call than the one that was sent")
        }
    }
}

impl Target for RemoteTarget {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> Identity {
        self.known().0
    }

    fn held(&self) -> Result<Vec<Held>> {
        let mut all = Vec::new();
        loop {
            let from = all.len() as u64;
            match self.call(&Call::Held { from })? {
                Answer::Held(part) if part.is_empty() => return Ok(all),
                // A block has two generations at most.
                Answer::Held(part) if from < 2 * self.identity().geometry.blocks() => {
                    all.extend(part)
                }
                Answer::Held(_) => {
                    return Err(unreachable(
                        &self.name,
                        &"it names more blocks than the volume has",
                    ));
                }
                other => return Err(refusal(&self.name, 0, 0, other)),
            }
        }
    }

    fn prepare(&self, block: u64, half: &Half, keep: u64) -> Result<()> {
        let (generation, half) = (half.generation, half.clone());
        self.done(&Call::Prepare { block, keep, half }, block, generation)
    }

    fn commit(&self, block: u64, generation: u64) -> Result<()> {
        self.done(&Call::Commit { block, generation }, block, generation)
    }

    fn fetch(&self, block: u64, generation: u64) -> Result<Half> {
        match self.call(&Call::Fetch { block, generation })? {
            Answer::Half(half)
                if half.generation == generation && half.fits(self.identity().role) =>
            {
                Ok(half)
            }
            Answer::Half(_) => Err(unreachable(
                &self.name,
                &"it answers with another half block",
            )),
            other => Err(refusal(&self.name, block, generation, other)),
        }
    }

    fn flush(&self) -> Result<()> {
        self.done(&Call::Flush, 0, 0)
    }

    fn mark(&self, epoch: u64, complete: bool) -> Result<()> {
        let owner = self.owner;
        self.done(
            &Call::Mark {
                epoch,
                complete,
                owner,
            },
            0,
            0,
        )?;
        let mut known = self.known();
        known.0.epoch = epoch;
        known.0.complete = complete;
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.known().1
    }
}
