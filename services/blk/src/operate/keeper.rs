//! Keeps a volume complete while it serves: takes absent targets back, and completes those that lack blocks.

use super::opener::{Opener, rebuild_one};
use crate::error::BlkError;
use crate::geometry::{PerTarget, Role};
use crate::say::say;
use crate::volume::Volume;
use anyhow::{Context as _, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Time between attempts to take absent targets back.
const RETURN: Duration = Duration::from_secs(1);
/// Shortest and longest time until a rebuild that has failed is tried again, if the target has not freed space before.
const REBUILD_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// What keeps a volume complete. One thread looks for absent targets and starts a thread for each attempt: a target that
/// does not answer delays no other one. Another thread completes targets.
struct Keeper {
    opener: Arc<Opener>,
    volume: Arc<Volume>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Attempts to take targets back, by their names.
    attempts: HashMap<String, Attempt>,
    /// The last error of each kind.
    told: HashMap<String, String>,
    failed: PerTarget<Option<Failed>>,
}

/// Attempts to take a target back.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    is_under_way: bool,
    /// The target must answer within this time.
    patience: Duration,
}

/// A rebuild that has failed.
#[derive(Debug, Clone, Copy)]
struct Failed {
    /// Bytes in use at the target then.
    used: u64,
    at: Instant,
    /// Time until the next one.
    again: Duration,
    /// The targets that were there when it began, if it has completed nothing. Those that have left and returned since do not
    /// help: one that cannot read a block leaves with each rebuild.
    in_vain: u16,
}

impl Failed {
    /// A rebuild behind one that has failed before, while `used` bytes were in use and these targets were there. It has
    /// completed something, or nothing.
    fn new(before: Option<Self>, used: u64, present: u16, is_in_vain: bool) -> Self {
        let [shortest, longest] = REBUILD_AGAIN;
        let before = before.filter(|_| is_in_vain);
        Self {
            used,
            at: Instant::now(),
            again: before.map_or(shortest, |before| longest.min(2 * before.again)),
            in_vain: if is_in_vain { present } else { 0 },
        }
    }

    /// True if the return of this target does not help.
    fn stays(&self, returned: Role) -> bool {
        self.in_vain & returned.bit() != 0
    }
}

/// Starts the threads that keep a volume complete.
///
/// # Errors
/// Errors of the system.
pub(super) fn keep(opener: &Arc<Opener>, volume: &Arc<Volume>) -> Result<()> {
    volume.set_outage_limit(opener.outage_limit);
    let keeper = Arc::new(Keeper {
        opener: Arc::clone(opener),
        volume: Arc::clone(volume),
        state: Mutex::new(State {
            failed: volume.layout().map(|_| None),
            ..State::default()
        }),
    });
    let completes = Arc::clone(&keeper);
    start("keeper", move || keeper.take_back())?;
    start("completer", move || completes.complete())
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = Builder::new().name(name.to_owned()).spawn(work);
    thread.map(drop).context("cannot start the keeper")
}

impl Keeper {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave it half changed in a way that matters.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back targets that return, until another process has the volume.
    fn take_back(self: &Arc<Self>) {
        while !self.volume.is_superseded() {
            let present = self.volume.present();
            let names = self.opener.names().clone();
            let absent = names.into_iter().filter(|name| !present.contains(name));
            for name in absent {
                let Some(patience) = self.begin(&name) else {
                    continue;
                };
                let keeper = Arc::clone(self);
                let of_thread = name.clone();
                let started = start("return", move || keeper.attempt(&of_thread, patience));
                if started.is_err() {
                    self.attempt(&name, patience);
                }
            }
            std::thread::sleep(RETURN);
        }
    }

    /// Begins an attempt, unless one is under way. Returns the time within which the target must answer.
    fn begin(&self, name: &str) -> Option<Duration> {
        let (shortest, _) = self.opener.patience();
        let mut state = self.state();
        let attempt = state.attempts.entry(name.to_owned()).or_insert(Attempt {
            is_under_way: false,
            patience: shortest,
        });
        let was_under_way = std::mem::replace(&mut attempt.is_under_way, true);
        (!was_under_way).then_some(attempt.patience)
    }

    /// Tries to take a target back. If it does not answer, the next attempt has another connection and twice the time: the
    /// connection may be lost, or the disk busy.
    fn attempt(&self, name: &str, patience: Duration) {
        let begun = Instant::now();
        let opened = self.opener.open_with(name, patience);
        let taken = {
            // Nobody replaces it meanwhile.
            let names = self.opener.names();
            let is_meant = names.iter().any(|of_volume| of_volume == name);
            is_meant.then(|| opened.and_then(|target| self.volume.attach(target)))
        };
        let mut state = self.state();
        match taken {
            Some(Err(error)) => {
                let (_, longest) = self.opener.patience();
                let is_late = begun.elapsed() >= patience;
                let next = if is_late { 2 * patience } else { patience };
                if let Some(attempt) = state.attempts.get_mut(name) {
                    *attempt = Attempt {
                        is_under_way: false,
                        patience: next.min(longest),
                    };
                }
                state.tell_once(name, Err::<(), _>(error.into()));
            }
            Some(Ok(role)) => {
                state.attempts.remove(name);
                // What could not be read before may be there now.
                for (of, failed) in self.volume.layout().roles().zip(&mut state.failed) {
                    *failed = failed.filter(|failed| of != role && failed.stays(role));
                }
                say(format_args!("{role} is used again: {name}"));
                if self.volume.is_complete(role) {
                    say(format_args!("{role} is complete: it lacks nothing"));
                }
                state.tell_once(name, Ok(()));
            }
            None => drop(state.attempts.remove(name)),
        }
    }

    /// Completes targets that lack blocks, until then.
    fn complete(&self) {
        while !self.volume.is_superseded() {
            for role in self.volume.layout().roles() {
                let failed = self.state().failed[role.index()];
                if let Some(used) = wants_rebuild(&self.volume, role, failed) {
                    let volume = &self.volume;
                    let missing = volume.missing_blocks(role);
                    let present = volume.layout().mask(|role| volume.used(role).is_some());
                    let rebuilt = rebuild_one(volume, role).map_err(explained);
                    let is_in_vain = volume.missing_blocks(role) >= missing;
                    let mut state = self.state();
                    let after = || Failed::new(failed, used, present, is_in_vain);
                    state.failed[role.index()] = rebuilt.is_err().then(after);
                    state.tell_once(&format!("rebuild of {role}"), rebuilt);
                }
            }
            std::thread::sleep(RETURN);
        }
    }
}

impl State {
    /// Logs an error, unless it was the last one of its kind.
    fn tell_once<T>(&mut self, kind: &str, result: Result<T>) {
        match result {
            Ok(_) => drop(self.told.remove(kind)),
            Err(error) => {
                let error = format!("{error:#}");
                if self.told.get(kind) != Some(&error) {
                    // A target names itself.
                    match error.starts_with(kind) {
                        true => say(&error),
                        false => say(format_args!("{kind}: {error}")),
                    }
                    self.told.insert(kind.to_owned(), error);
                }
            }
        }
    }
}

/// Says what to do about a rebuild that has failed.
fn explained(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<BlkError>() {
        Some(full) if full.is_full() => {
            anyhow::anyhow!("{full}: free some there, and the rest follows by itself")
        }
        _ => error,
    }
}

/// Bytes in use at a target that lacks something, if a rebuild may help: it has not failed yet, the target has freed space
/// since, or some time has passed.
fn wants_rebuild(volume: &Volume, role: Role, failed: Option<Failed>) -> Option<u64> {
    // Before it is known what a target holds, everything seems to be missing.
    let used = volume.used(role).filter(|_| !volume.is_arriving(role))?;
    if volume.is_complete(role) && volume.missing_blocks(role) == 0 {
        return None;
    }
    let again =
        failed.is_none_or(|failed| used < failed.used || failed.at.elapsed() >= failed.again);
    again.then_some(used)
}

#[cfg(test)]
mod tests;
