//! What a pool does beside the exports: creating keys before they are needed, and destroying those
//! that have not been needed for long. By call, or in a thread of the pool's own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::core::Core;
use crate::device::MkeyDevice;
use crate::keeper::Round;
use crate::slots::State;

/// Keys that one round of upkeep creates or destroys at most: at hundreds of microseconds each, a
/// round takes some tens of milliseconds.
pub(crate) const ROUND_MAX: u32 = 64;

/// How often the keeper looks for what is not needed, as a part of the age at which it goes.
pub(crate) const LOOKS_PER_AGE: u32 = 4;

/// What upkeep has seen of the shelf.
#[derive(Debug, Default)]
pub(crate) struct Watch(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Since when the shelf has been watched for keys that nobody needs.
    since: Option<Instant>,
    /// Keys that nobody needed and that are still to be destroyed.
    surplus: usize,
}

/// What a round of upkeep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upkeep {
    /// Keys created.
    pub created: u32,
    /// Keys destroyed.
    pub destroyed: u32,
}

impl<D: MkeyDevice> Core<D> {
    /// One round: creates up to the high mark if there are fewer free keys than the low one, and
    /// destroys what was not needed for the policy's age beyond the high one.
    pub(crate) fn upkeep(&self) -> Upkeep {
        let (low, high) = (self.policy.low as usize, self.policy.high as usize);
        let mut done = Upkeep::default();
        if self.enter().is_err() {
            return done;
        }
        self.flush_if_late();
        if self.shelf.queued() < low {
            while done.created < ROUND_MAX && self.shelf.queued() < high {
                match self.create(State::Free) {
                    Ok(id) => {
                        self.shelf.add(id);
                        done.created += 1;
                    }
                    Err(_) => break,
                }
            }
        }
        let surplus = self.surplus();
        for _ in 0..surplus {
            let (Ok(_inside), Some(id)) = (self.enter(), self.shelf.retire()) else {
                break;
            };
            self.slots.advance(id, State::Free, State::Unsure);
            if self.destroy(id).is_ok() {
                self.counters.aged.one();
                done.destroyed += 1;
            }
        }
        done
    }

    /// Keys for this round to destroy: of those that nobody needed for the policy's age, as many as
    /// there are beyond the high mark.
    fn surplus(&self) -> usize {
        let mut seen = self.watch.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let since = *seen.since.get_or_insert(now);
        if now.duration_since(since) >= self.policy.age {
            seen.since = Some(now);
            seen.surplus = self.shelf.idle().saturating_sub(self.policy.high as usize);
        }
        let surplus = seen.surplus.min(ROUND_MAX as usize);
        seen.surplus -= surplus;
        surplus
    }

    /// Starts the keeper thread. False if the system gives none; upkeep is then the caller's.
    pub(crate) fn start_keeper(self: &Arc<Self>) -> bool {
        let core = Arc::downgrade(self);
        self.keeper.start(self.policy.age / LOOKS_PER_AGE, move || {
            // Held for one round only: the pool ends with its last handle.
            let Some(core) = core.upgrade() else {
                return Round::Over;
            };
            let done = core.upkeep();
            if let Some(left) = core.batch_time_left() {
                return Round::After(left);
            }
            if done.created.max(done.destroyed) == ROUND_MAX {
                Round::More
            } else {
                Round::Done
            }
        })
    }
}
