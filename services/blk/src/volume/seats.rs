//! The places of a volume's targets: who is in use, who is given up, and the wait for one that returns.

use super::trustees::is_used;
use crate::error::{BlkError, Result};
use crate::geometry::{Layout, PerTarget, Role};
use crate::say::say;
use crate::store::{Seating, Target};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A place for a target. Absent ones have a reason.
pub(super) enum Seat {
    /// In use.
    Present(Occupant),
    /// Free.
    Absent(String),
}

/// A target in use.
pub(super) struct Occupant {
    pub(super) target: Arc<dyn Target>,
    /// It was completed since it took its place.
    pub(super) whole: bool,
    /// What it holds is not known yet.
    pub(super) arriving: bool,
    /// It holds everything that was acknowledged since it took its place (`trust`).
    pub(super) trusted: bool,
}

impl Occupant {
    /// True if it holds everything, also for an opening with few others.
    pub(super) fn is_complete(&self, layout: Layout) -> bool {
        self.whole && (self.trusted || !is_used(layout))
    }
}

/// The places of all targets.
pub(super) struct Seats {
    layout: Layout,
    state: Mutex<State>,
    /// A target has returned, one that was about to has failed, or the limit has changed.
    changed: Condvar,
}

struct State {
    layout: Layout,
    seats: PerTarget<Seat>,
    /// Who had each place last.
    names: PerTarget<Option<String>>,
    /// Targets that have returned so far, or are trusted again.
    returns: u64,
    /// When a target was lost last.
    lost_at: Option<Instant>,
    /// Longest time from the loss of a target until requests that need it fail.
    outage_limit: Duration,
    /// The target that another process has taken, if one has.
    superseded: Option<String>,
    /// Number of times that a request has looked for a target that returns.
    #[cfg(test)]
    attempts: u64,
}

impl Seats {
    pub(super) fn new(layout: Layout, seats: PerTarget<Seat>) -> Self {
        let is_absent = |seat: &Seat| matches!(seat, Seat::Absent(_));
        // One that was not there at the opening counts as lost then.
        let lost_at = seats.iter().any(is_absent).then(Instant::now);
        let name_of = |seat: &Seat| match seat {
            Seat::Present(occupant) => Some(occupant.target.name().to_owned()),
            Seat::Absent(_) => None,
        };
        Self {
            layout,
            state: Mutex::new(State {
                layout,
                names: seats.iter().map(name_of).collect(),
                seats,
                returns: 0,
                lost_at,
                outage_limit: Duration::ZERO,
                superseded: None,
                #[cfg(test)]
                attempts: 0,
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the places half changed: each is replaced as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the places to `look`, which must not use them otherwise.
    pub(super) fn look<T>(&self, look: impl FnOnce(&[Seat]) -> T) -> T {
        look(&self.state().seats)
    }

    /// The target of a role.
    pub(super) fn target(&self, role: Role) -> Result<Arc<dyn Target>> {
        match &self.state().seats[role.index()] {
            Seat::Present(occupant) => Ok(Arc::clone(&occupant.target)),
            Seat::Absent(_) => Err(BlkError::Offline(role)),
        }
    }

    /// Name of the target that has a place, or had it last.
    pub(super) fn name_of(&self, role: Role) -> Option<String> {
        self.state().names[role.index()].clone()
    }

    /// An error if the place of `target` is taken.
    pub(super) fn check_free(&self, target: &Arc<dyn Target>) -> Result<()> {
        let role = target.identity().role;
        match &self.state().seats[role.index()] {
            Seat::Absent(_) => Ok(()),
            Seat::Present(other) => Err(BlkError::Disagree {
                first: other.target.name().to_owned(),
                second: target.name().to_owned(),
                difference: format!("both are {role}"),
            }),
        }
    }

    /// Gives `target` its place, which is free or that of a target that it replaces. `clear` runs before any other thread sees it there.
    pub(super) fn take(&self, target: &Arc<dyn Target>, clear: impl FnOnce()) {
        let role = target.identity().role;
        let mut state = self.state();
        clear();
        state.names[role.index()] = Some(target.name().to_owned());
        state.seats[role.index()] = Seat::Present(Occupant {
            target: Arc::clone(target),
            whole: false,
            arriving: true,
            trusted: false,
        });
    }

    /// What `target` holds is known from here on. Requests that wait for a target try again.
    pub(super) fn arrived(&self, target: &Arc<dyn Target>) {
        let mut state = self.state();
        if let Some(occupant) = state.occupant(target.as_ref()) {
            occupant.arriving = false;
            state.returns += 1;
            self.changed.notify_all();
        }
    }

    /// True if `target` is in use.
    pub(super) fn is_used(&self, target: &Arc<dyn Target>) -> bool {
        self.state().find(target.as_ref()).is_some()
    }

    /// `target` holds everything from here on.
    pub(super) fn completed(&self, target: &Arc<dyn Target>) {
        if let Some(occupant) = self.state().occupant(target.as_ref()) {
            occupant.whole = true;
        }
    }

    /// `target` is trusted from here on. Requests that wait for that try again.
    pub(super) fn trusted(&self, target: &Arc<dyn Target>) {
        let mut state = self.state();
        if let Some(occupant) = state.occupant(target.as_ref())
            && !std::mem::replace(&mut occupant.trusted, true)
        {
            state.returns += 1;
            self.changed.notify_all();
        }
    }

    /// Those of these roles lack something from here on, until they are completed again.
    pub(super) fn distrusted(&self, roles: u16) {
        let mut state = self.state();
        for (role, seat) in self.layout.roles().zip(&mut state.seats) {
            if let Seat::Present(occupant) = seat
                && roles & role.bit() != 0
            {
                occupant.trusted = false;
            }
        }
    }

    /// Frees a place, whoever has it.
    pub(super) fn free(&self, role: Role, reason: &str) {
        let mut state = self.state();
        if let Seat::Present(_) = &state.seats[role.index()] {
            state.lose(role, reason);
            self.changed.notify_all();
        }
    }

    /// Frees the place of `target` if it is still in use, because of an error of it.
    pub(super) fn fail(&self, target: &Arc<dyn Target>, error: &BlkError) {
        let mut state = self.state();
        if let BlkError::Superseded { target } = error {
            state.superseded.get_or_insert_with(|| target.clone());
            self.changed.notify_all();
        }
        if let Some(role) = state.find(target.as_ref()) {
            say(format_args!("{role} is not used any more: {error}"));
            state.lose(role, &error.to_string());
            self.changed.notify_all();
        }
    }

    /// An error if another process has opened the volume since.
    pub(super) fn check_owner(&self) -> Result<()> {
        match &self.state().superseded {
            Some(target) => Err(BlkError::Superseded {
                target: target.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Waits until another process has opened the volume. Returns the error of all requests from then on.
    pub(super) fn wait_superseded(&self) -> BlkError {
        let mut state = self.state();
        loop {
            if let Some(target) = state.superseded.clone() {
                return BlkError::Superseded { target };
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How long requests wait for a target that returns. Somebody must attach it.
    pub(super) fn set_outage_limit(&self, limit: Duration) {
        self.state().outage_limit = limit;
        self.changed.notify_all();
    }

    /// True if there is a target to wait for after this error.
    pub(super) fn is_return_possible(&self, error: &BlkError) -> bool {
        self.state().end(Instant::now(), error).is_some()
    }

    /// Number of targets that have returned so far.
    pub(super) fn returns(&self) -> u64 {
        self.state().returns
    }

    /// Number of times that a request has looked for a target that returns.
    #[cfg(test)]
    pub(super) fn attempts(&self) -> u64 {
        self.state().attempts
    }

    /// Waits, after this error, until a target has returned since there were `returns`, or is trusted again. False if none can,
    /// or none does in time. The limit counts from the loss of the last target, or from `begun` if that was earlier or for
    /// one that has to be completed: a request waits no longer in
    /// all, however often targets come and go, and after the limit requests fail at once. A request that a silent target
    /// has held up until then waits once more as long for a target that has taken its place meanwhile: that one may have
    /// waited for the request's own lock.
    pub(super) fn wait_for_return(&self, returns: u64, begun: Instant, error: &BlkError) -> bool {
        let mut state = self.state();
        loop {
            #[cfg(test)]
            {
                state.attempts += 1;
            }
            if state.superseded.is_some() {
                return false;
            }
            if state.returns != returns {
                // A last attempt, if this one took long.
                return Instant::now() < begun + 2 * state.outage_limit;
            }
            let Some(end) = state.end(begun, error) else {
                return false;
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    /// The place of `target`, if it is in use. Asks the target nothing: it may be busy.
    fn find(&self, target: &dyn Target) -> Option<Role> {
        self.layout.roles().find(|role| {
            matches!(&self.seats[role.index()], Seat::Present(occupant) if same(occupant.target.as_ref(), target))
        })
    }

    fn occupant(&mut self, target: &dyn Target) -> Option<&mut Occupant> {
        let role = self.find(target)?;
        match &mut self.seats[role.index()] {
            Seat::Present(occupant) => Some(occupant),
            Seat::Absent(_) => None,
        }
    }

    /// When a request that has `begun` and got this error stops to wait for a target. `None` if there is none to wait for.
    fn end(&self, begun: Instant, error: &BlkError) -> Option<Instant> {
        let has = |wanted: fn(&Occupant) -> bool| {
            let mut seats = self.seats.iter();
            seats.any(|seat| matches!(seat, Seat::Present(occupant) if wanted(occupant)))
        };
        if self.lost_at.is_some() && has(|occupant| occupant.arriving) {
            return Some(begun + 2 * self.outage_limit);
        }
        // One that is there is completed before it counts.
        let needs_trust = matches!(error, BlkError::TooFewTargets { .. }) && is_used(self.layout);
        if needs_trust && has(|occupant| !occupant.trusted) {
            return Some(begun + self.outage_limit);
        }
        let is_absent = |seat: &Seat| matches!(seat, Seat::Absent(_));
        let absent = self.seats.iter().any(is_absent);
        let lost_at = self.lost_at.filter(|_| absent)?;
        Some(lost_at.min(begun) + self.outage_limit)
    }

    fn lose(&mut self, role: Role, reason: &str) {
        self.seats[role.index()] = Seat::Absent(reason.to_owned());
        self.lost_at = Some(Instant::now());
    }
}

/// True if both are the same object.
pub(super) fn same(one: &dyn Target, other: &dyn Target) -> bool {
    std::ptr::addr_eq(one, other)
}

impl Seating for Seats {
    fn gives_up(&self, target: &dyn Target, reason: &str) -> bool {
        let mut state = self.state();
        let Some(role) = state.find(target) else {
            return true;
        };
        let others = self.layout.mask(|other| {
            let seat = &state.seats[other.index()];
            other != role && matches!(seat, Seat::Present(one) if one.is_complete(self.layout))
        });
        let dispensable = !self.layout.is_short(others);
        if dispensable {
            let name = target.name();
            say(format_args!(
                "{role} is not used any more: {name}: {reason}"
            ));
            state.lose(role, &format!("{name}: {reason}"));
        }
        dispensable
    }

    fn is_arriving(&self, target: &dyn Target) -> bool {
        let mut state = self.state();
        let occupant = state.occupant(target);
        occupant.is_some_and(|occupant| occupant.arriving)
    }
}
