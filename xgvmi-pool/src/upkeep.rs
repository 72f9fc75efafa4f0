//! Upkeep of a pool: it creates keys before they are needed and destroys keys that were idle for
//! long. It runs on a call, or in a thread of the pool.

use std::sync::Arc;

use crate::core::Core;
use crate::device::MkeyDevice;
use crate::keeper::{LOOKS_PER_AGE, ROUND_MAX, Round};
use crate::slots::{Size, State};

/// Result of a round of upkeep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upkeep {
    /// Keys created.
    pub created: u32,
    /// Keys destroyed.
    pub destroyed: u32,
}

impl<D: MkeyDevice> Core<D> {
    /// Runs one round: creates keys up to the high mark if fewer than the low mark are free, and
    /// destroys keys above the high mark that were idle for the policy's age.
    pub(crate) fn upkeep(&self) -> Upkeep {
        let (low, high) = (self.policy.low as usize, self.policy.high as usize);
        let mut done = Upkeep::default();
        if self.enter().is_err() {
            return done;
        }
        self.flush_if_late();
        if self.free_list.queued() < low {
            while done.created < ROUND_MAX && self.free_list.queued() < high {
                match self.create(State::Free, Size::Short) {
                    Ok(id) => {
                        self.free_list.add(id);
                        done.created += 1;
                    }
                    Err(_) => break,
                }
            }
        }
        let high = self.policy.high as usize;
        let above_mark = || self.free_list.idle().saturating_sub(high);
        let surplus = self.idle_watch.surplus(self.policy.age, above_mark);
        let above_none = || self.long.idle();
        let long = self.long.watch.surplus(self.policy.age, above_none);
        for number in 0..surplus + long {
            let retire = || match number < surplus {
                true => self.free_list.retire(),
                false => self.long.retire(),
            };
            if let (Ok(_inside), Some(id)) = (self.enter(), retire()) {
                done.destroyed += u32::from(self.destroy_free(id));
            }
        }
        done
    }

    /// Starts the keeper thread. False if the system starts no thread. The caller must then run
    /// upkeep.
    pub(crate) fn start_keeper(self: &Arc<Self>) -> bool {
        let core = Arc::downgrade(self);
        self.keeper.start(self.policy.age / LOOKS_PER_AGE, move || {
            // The thread holds the core for one round only, so the pool ends with its last handle.
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
