//! Opens a volume: checks that the targets belong together, decides which generation of each block counts, and settles that.

use super::apart::{self, FORGOTTEN_MIN};
use super::decide::{Rule, Unclean};
use super::evidence::{changed, examine, pages};
use super::io::Targets;
use super::keys;
use super::pending::Pending;
use super::replace::{check_member, newest};
use super::seats::{Occupant, Seat, Seats};
use super::stack::Layering;
use super::state::{BlockState, Blocks, Counters, Volume, VolumeStatus, add};
use super::trustees::{Trust, is_used};
use super::turns::{BlockLocks, Commits, Helpers, Scrubbing};
use crate::encryption::{KeyFile, Wrapping};
use crate::error::{BlkError, Result};
use crate::geometry::{Layout, PerTarget, Role};
use crate::layers::Layers;
use crate::say::say;
use crate::store::{EPOCH_MAX, Identity, Mark, Members, Seating, Standing, Step, Target, Trusted};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// How many different numbers of them there are.
const FORGOTTEN: u64 = 1 << 16;

/// How many it leaves out. By chance: openings that know nothing of each other have different ones.
fn forgotten_epochs() -> Result<u64> {
    let random = xgvmi_daemon::random().map_err(|error| BlkError::io("an epoch", error))?;
    // Cannot be cut: below 2^16.
    Ok(FORGOTTEN_MIN + u64::try_from(random % u128::from(FORGOTTEN)).unwrap_or(0))
}

/// The targets of an opening. One that fails is left out.
struct Found {
    layout: Layout,
    /// Absent targets count as gone, also if they may have served since.
    are_gone: bool,
    /// The epoch of the owner is chosen: no others count as gone any more.
    has_epoch: bool,
    seats: Targets,
    reasons: PerTarget<String>,
}

impl Found {
    /// Puts targets at their places.
    fn new(targets: Vec<Arc<dyn Target>>, are_gone: bool) -> Result<Self> {
        let layout = targets
            .first()
            .map(|target| target.identity().role.layout());
        let layout = layout.unwrap_or_default();
        let mut seats: Targets = layout.map(|_| None);
        let mut first: Option<(String, Identity)> = None;
        for target in targets {
            let identity = target.identity();
            if let Some((name, other)) = &first {
                agree((name, other), (target.name(), &identity))?;
            } else {
                first = Some((target.name().to_owned(), identity));
            }
            let seat = &mut seats[identity.role.index()];
            if let Some(other) = seat {
                return Err(BlkError::Disagree {
                    first: other.name().to_owned(),
                    second: target.name().to_owned(),
                    difference: same_role(&other.identity(), &identity),
                });
            }
            *seat = Some(target);
        }
        let absent = || "it was not there when the volume was opened".to_owned();
        Ok(Self {
            layout,
            are_gone,
            has_epoch: false,
            seats,
            reasons: layout.map(|_| absent()),
        })
    }

    fn present(&self) -> impl Iterator<Item = (Role, &Arc<dyn Target>)> {
        let seats = self.layout.roles().zip(&self.seats);
        seats.filter_map(|(role, seat)| Some((role, seat.as_ref()?)))
    }

    /// The identity of the volume. Of two halves two targets are enough that are not new: one of them has each acknowledged write.
    fn identity(&self) -> Result<Identity> {
        let identities = self.present().map(|(_, target)| target.identity());
        let old = identities.filter(|identity| identity.standing != Standing::New);
        let old: PerTarget<Identity> = old.collect();
        let absent = self.may_be_ahead();
        if absent != 0 && !self.are_gone && old.len() >= self.layout.needed() {
            let absent = self.layout.roles().filter(|role| absent & role.bit() != 0);
            let absent: Vec<String> = absent.map(|role| role.to_string()).collect();
            return Err(BlkError::Ahead {
                roles: absent.join(", "),
            });
        }
        match old.first() {
            Some(identity) if old.len() >= self.layout.needed() => Ok(*identity),
            _ => Err(too_few(self.layout, &self.seats)),
        }
    }

    /// Which targets are trusted, as those tell that know it best (`trust`).
    fn trusted(&self) -> Trusted {
        let identities = self.present().map(|(_, target)| target.identity());
        let old = identities.filter(|identity| identity.standing != Standing::New);
        let newest = old.map(|identity| identity.trusted);
        newest
            .max_by_key(|trusted| (trusted.epoch, trusted.revision))
            .unwrap_or_default()
    }

    /// The trusted targets that are there.
    fn deciders(&self) -> u16 {
        let roles = self.trusted().roles;
        self.layout.mask(|role| {
            let target = self.seats[role.index()].as_ref();
            roles & role.bit() != 0
                && target.is_some_and(|target| target.identity().standing != Standing::New)
        })
    }

    /// Trusted targets that are absent, if they are so many that they may have served without those that are there.
    fn may_be_ahead(&self) -> u16 {
        let deciders = self.deciders();
        let absent = self.trusted().roles & !deciders;
        match is_used(self.layout) && (!self.layout.is_short(absent) || deciders == 0) {
            true => absent,
            false => 0,
        }
    }

    /// Leaves a target out that has failed. That is the opening's error if too few are left, or if another process uses it.
    fn leave_out(&mut self, role: Role, error: BlkError) -> Result<()> {
        let forgotten = self.forgotten();
        self.seats[role.index()] = None;
        let forgets_it = self.has_epoch && self.forgotten() != forgotten;
        if self.identity().is_err() || forgets_it || error.is_used_elsewhere() {
            return Err(error);
        }
        say(format_args!("{error}; the volume is opened without {role}"));
        self.reasons[role.index()] = error.to_string();
        Ok(())
    }

    /// Calls each target.
    fn each<T>(
        &mut self,
        mut call: impl FnMut(Role, &dyn Target) -> Result<T>,
    ) -> Result<PerTarget<Option<T>>> {
        let mut results: PerTarget<Option<T>> = self.layout.map(|_| None);
        for role in self.layout.roles() {
            let Some(target) = self.seats[role.index()].clone() else {
                continue;
            };
            match call(role, target.as_ref()) {
                Ok(result) => results[role.index()] = Some(result),
                Err(error) => self.leave_out(role, error)?,
            }
        }
        Ok(results)
    }

    /// Blocks of the volume: a target that has fewer was not there when it grew.
    fn blocks(&self) -> u64 {
        let identities = self.present().map(|(_, target)| target.identity());
        let old = identities.filter(|identity| identity.standing != Standing::New);
        old.map(|identity| identity.geometry.blocks())
            .max()
            .unwrap_or(0)
    }

    /// Leaves out targets in whose place others are.
    fn leave_out_replaced(&mut self) -> Result<Members> {
        let members = newest(
            self.layout,
            self.present().map(|(_, target)| target.identity()),
        );
        for role in self.layout.roles() {
            let target = self.seats[role.index()].clone();
            if let Some(Err(error)) = target.map(|target| check_member(&members, target.as_ref())) {
                self.leave_out(role, error)?;
            }
        }
        Ok(members)
    }

    /// Lets all record which targets have replaced others, if some do not know it.
    fn tell_members(&mut self, epoch: u64, known: Members) -> Result<Members> {
        let mut members = known;
        for (role, target) in self.present() {
            let id = target.identity().target;
            let is_new = is_used(self.layout) && target.identity().standing == Standing::New;
            if members.of(role).map_or(is_new, |of_role| of_role != id) {
                members = members.with(role, id);
            }
        }
        self.each(|_, target| match target.identity().members == members {
            true => Ok(()),
            false => target.mark(epoch, Mark::Members(members)),
        })?;
        Ok(members)
    }

    /// Lets all have the wrapping that counts.
    fn tell_wrapping(&mut self, epoch: u64, wrapping: Wrapping) -> Result<()> {
        let told = self.each(
            |_, target| match target.identity().wrapping == Some(wrapping) {
                true => Ok(()),
                false => target.mark(epoch, Mark::Wrapping(wrapping)),
            },
        );
        told.map(drop)
    }

    /// The table of layers. Its owner lets all targets have it, as its own.
    fn layers(&mut self, epoch: Option<u64>) -> Result<Layers> {
        let known = self.each(|_, target| target.layers())?;
        let newest = known
            .into_iter()
            .flatten()
            .max_by_key(|layers| layers.version);
        let mut newest = newest.unwrap_or_default();
        if let Some(epoch) = epoch.filter(|_| !newest.is_empty()) {
            newest.version = (epoch, 0);
            self.each(|_, target| target.set_layers(&newest))?;
        }
        Ok(newest)
    }

    /// The epoch at whose end all these targets were equal. 0: they do not agree about it.
    fn equal(&self) -> u64 {
        let identities = self.present().map(|(_, target)| target.identity());
        let equal = identities.map(|identity| match identity.standing {
            Standing::New => 0,
            _ => identity.equal,
        });
        let equal: Vec<u64> = equal.collect();
        match equal.first() {
            Some(first) if equal.iter().all(|equal| equal == first) => *first,
            _ => 0,
        }
    }

    /// An error if targets were each used without the others.
    fn check_apart(&self) -> Result<()> {
        let epochs = self.present().map(|(_, target)| target.identity().epoch);
        match apart::may_be(self.layout, epochs.max().unwrap_or(0)) {
            true => apart::check(self.present().map(|(_, target)| target)),
            false => Ok(()),
        }
    }

    /// Trusted targets that are absent, and that are said to be gone.
    fn forgotten(&self) -> u16 {
        match self.are_gone {
            true => self.may_be_ahead(),
            false => 0,
        }
    }

    /// The epoch of this opening.
    fn choose_epoch(&mut self, as_owner: bool) -> Result<u64> {
        let epochs = self.present().map(|(_, target)| target.identity().epoch);
        // What counts as gone may have been opened as well.
        let step = match self.forgotten() {
            0 => 1,
            _ => forgotten_epochs()?,
        };
        let epoch = epochs.max().unwrap_or(0) + step;
        self.has_epoch = as_owner;
        match epoch > EPOCH_MAX {
            true => Err(BlkError::Epochs(EPOCH_MAX)),
            false => Ok(epoch),
        }
    }

    fn rule(&self) -> Rule {
        Rule {
            layout: self.layout,
            trusted: is_used(self.layout).then(|| self.trusted().roles & !self.forgotten()),
        }
    }

    /// Decides about all blocks that may have changed since the targets were equal.
    fn decide(&mut self, blocks: u64) -> Result<Decided> {
        loop {
            match self.decide_once(blocks) {
                Ok(decided) => return Ok(decided),
                Err((role, error)) => self.leave_out(role, error)?,
            }
        }
    }

    fn decide_once(&self, blocks: u64) -> Result<Decided, (Role, BlkError)> {
        let equal = self.equal();
        let mut ranges = Vec::new();
        if equal == 0 {
            ranges.push(0..blocks);
        } else {
            for (role, target) in self.present() {
                ranges.extend(changed(target.as_ref()).map_err(|error| (role, error))?);
            }
            ranges = pages(ranges, blocks);
        }
        let mut decided = Decided {
            blocks: Blocks::new(self.layout, equal == 0),
            unclean: Vec::new(),
            equal,
        };
        for range in ranges {
            let mut from = range.start;
            while from < range.end {
                let found = examine(self.rule(), &self.seats, from..range.end)?;
                decided.blocks.learn(&found.states);
                decided.unclean.extend(found.unclean);
                from = found.next;
            }
            if equal != 0 {
                decided.blocks.learned(range);
            }
        }
        Ok(decided)
    }

    /// The targets at their places, and why others are absent. These decide.
    fn into_seats(mut self, deciders: u16) -> PerTarget<Seat> {
        let mut reasons = self.reasons.into_iter();
        self.layout.map(|role| {
            let reason = reasons.next().unwrap_or_default();
            match self.seats[role.index()].take() {
                Some(target) => Seat::Present(Occupant {
                    target,
                    whole: false,
                    arriving: false,
                    trusted: deciders & role.bit() != 0,
                }),
                None => Seat::Absent(reason),
            }
        })
    }
}

impl Volume {
    /// Opens the volume on these targets, in any order. Two are enough.
    ///
    /// # Errors
    /// The targets belong to different volumes, two of them have one role, another process uses them, or fewer than two are
    /// there that are not new and can be used.
    pub fn open(targets: Vec<Arc<dyn Target>>) -> Result<Self> {
        Self::open_with(targets, None)
    }

    /// As [`Volume::open`], with the key file of an encrypted volume.
    ///
    /// # Errors
    /// As [`Volume::open`], or the key file is missing, is not the volume's, or the volume is not encrypted.
    pub fn open_with(targets: Vec<Arc<dyn Target>>, key: Option<&KeyFile>) -> Result<Self> {
        Self::open_as(targets, Some(key), false)
    }

    /// As [`Volume::open_with`], also if absent targets may hold newer data than these: they count as gone. When one returns, its
    /// newer data is lost.
    ///
    /// # Errors
    /// As [`Volume::open_with`].
    pub fn open_without_absent(
        targets: Vec<Arc<dyn Target>>,
        key: Option<&KeyFile>,
    ) -> Result<Self> {
        Self::open_as(targets, Some(key), true)
    }

    /// State of the volume on these targets, also while another process uses them. Changes nothing.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn inspect(targets: Vec<Arc<dyn Target>>) -> Result<VolumeStatus> {
        Ok(Self::open_as(targets, None, true)?.status())
    }

    /// Opens the volume, as its owner with a key file if it has one, or to look at it.
    fn open_as(
        targets: Vec<Arc<dyn Target>>,
        owner: Option<Option<&KeyFile>>,
        are_gone: bool,
    ) -> Result<Self> {
        let as_owner = owner.is_some();
        let mut found = Found::new(targets, are_gone)?;
        found.identity()?;
        let mut members = found.leave_out_replaced()?;
        found.check_apart()?;
        let identity = found.identity()?;
        let epoch = found.choose_epoch(as_owner)?;
        // All are asked before one is changed: an owner that is there loses none of its targets.
        let owned = found.present().find(|(_, target)| target.is_owned());
        if let Some((_, target)) = owned.filter(|_| as_owner) {
            return Err(BlkError::Owned {
                target: target.name().to_owned(),
            });
        }
        let wrapping = keys::known(found.present().map(|(_, target)| target))?;
        let cipher = match owner {
            Some(file) => keys::cipher(&identity, wrapping, file)?,
            None => None,
        };
        // First of all: from here on no other process changes them.
        if as_owner {
            found.each(|_, target| target.mark(epoch, Mark::Owned))?;
            members = found.tell_members(epoch, members)?;
            if let Some(wrapping) = wrapping {
                found.tell_wrapping(epoch, wrapping)?;
            }
            let blocks = found.blocks();
            found.each(|_, target| target.grow(blocks))?;
        }
        let blocks = found.blocks();
        let layers = found.layers(as_owner.then_some(epoch))?;
        let step = match layers.is_empty() {
            true => Layers::step_of(identity.room),
            false => layers.step,
        };
        let locks = BlockLocks::default();
        if !layers.is_empty() {
            locks.share(step);
        }
        let decided = found.decide(blocks.max(layers.end))?;
        let trusted = found.trusted();
        let deciders = found.deciders();
        let damaged = found.present().map(|(_, target)| target.usage().damaged);
        let damaged = damaged.sum();
        let layout = found.layout;
        let seats = found.into_seats(deciders);
        let volume = Self {
            layout,
            block_size: identity.geometry.block_size(),
            size: AtomicU64::new(blocks),
            id: identity.volume,
            epoch,
            equal: decided.equal,
            disturbed: AtomicBool::new(false),
            counter: AtomicU64::new(0),
            released: AtomicU64::new(0),
            seats: Arc::new(Seats::new(layout, seats)),
            blocks: Mutex::new(decided.blocks),
            locks,
            pending: Pending::new(layout, identity.room),
            trust: Trust::new(trusted),
            members: Mutex::new(members),
            wrapping: Mutex::new(wrapping),
            cipher,
            attaching: Mutex::new(()),
            relieving: Mutex::new(()),
            commits: Commits::default(),
            helpers: Helpers::default(),
            scrubbing: Scrubbing::default(),
            starts: layout.map(|_| AtomicU64::new(0)),
            layering: Layering::new(layers),
            step,
            merging: Mutex::default(),
            counters: Counters::default(),
        };
        add(&volume.counters.damaged_entries, damaged);
        for role in layout.roles() {
            if let Ok(target) = volume.target(role) {
                target.seated(volume.seating());
            }
        }
        if as_owner {
            volume.settle_all(&decided.unclean, deciders)?;
        }
        Ok(volume)
    }

    /// Makes it so that all targets say what was decided.
    fn settle_all(&self, all: &[Unclean], deciders: u16) -> Result<()> {
        if is_used(self.layout) {
            // Before anything of what was decided is changed or shown: the absent ones do not decide otherwise later.
            self.trust_only(deciders, true)?;
        }
        if !all.is_empty() {
            // Before one of them loses what it says otherwise: after a kill the others know that it was decided.
            self.mark_agreed()?;
        }
        let kept = self.settle(all)?;
        if kept != 0 {
            self.disturbed.store(true, Ordering::Relaxed);
        }
        self.give_what_lacks(deciders)?;
        self.take_over(kept)?;
        if is_used(self.layout) {
            let blocks = self.blocks();
            let lacking = self.layout.mask(|role| !blocks.holds_all(role));
            drop(blocks);
            self.distrust(lacking | kept)?;
        }
        Ok(())
    }

    /// What a target asks before it is given up.
    pub(super) fn seating(&self) -> Weak<dyn Seating> {
        let seats: Weak<Seats> = Arc::downgrade(&self.seats);
        seats
    }

    /// Leaves in entries only what was decided, and makes that durable. Returns the targets that still have something else.
    pub(super) fn settle(&self, blocks: &[Unclean]) -> Result<u16> {
        let mut kept = 0;
        for group in blocks.chunks(self.group()) {
            let _locks = self.locks.of(group.iter().map(|unclean| unclean.block));
            // First all get the generation, and only then it is settled at the others, as in a write: two of them show it,
            // whichever two are there after a kill.
            for unclean in group {
                for role in self.layout.roles() {
                    let wrong = !self.put_right(unclean.block, role);
                    kept |= if wrong { unclean.roles & role.bit() } else { 0 };
                }
            }
            let targets = self.targets();
            let states = group.iter().map(|unclean| self.state(unclean.block));
            let steps: Vec<(&Unclean, BlockState)> = group.iter().zip(states).collect();
            let done = self.each(&targets, &steps, |_, (unclean, state), role| {
                let has_it = state.generation == 0 || state.is_held_by(role);
                (unclean.roles & role.bit() != 0 && !state.lost && has_it).then_some(Step::Commit {
                    block: unclean.block,
                    generation: state.generation,
                })
            });
            for (at, (unclean, state)) in steps.iter().enumerate() {
                if !state.lost {
                    kept |= unclean.roles & !done.done(at);
                }
            }
        }
        if !blocks.is_empty() {
            self.flush_once()?;
        }
        Ok(kept)
    }

    /// Gives trusted targets what was decided and they lack: a write that was cut off.
    fn give_what_lacks(&self, deciders: u16) -> Result<()> {
        if !is_used(self.layout) {
            return Ok(());
        }
        let mut gave = false;
        for role in self
            .layout
            .roles()
            .filter(|role| deciders & role.bit() != 0)
        {
            if self.blocks().holds_all(role) {
                continue;
            }
            for block in self.written_blocks(0..self.end()) {
                let _lock = self.locks.one(block);
                gave |= !self.state(block).is_held_by(role) && self.put_right(block, role);
            }
        }
        match gave {
            true => self.flush_once(),
            false => Ok(()),
        }
    }

    /// Writes a block at a target that does not have it. False if that is not possible now. The caller holds its lock.
    fn put_right(&self, block: u64, role: Role) -> bool {
        let state = self.state(block);
        if state.lost || state.generation == 0 || state.is_held_by(role) {
            return true;
        }
        let Ok(target) = self.target(role) else {
            return false;
        };
        // The other blocks are served in any case: after a loss of power an entry may be there without its half block, and
        // a target may be full.
        self.rebuild_block(block, state, role, &target)
            .inspect_err(|error| say(error))
            .is_ok()
    }

    /// Records at all targets that they take over the decisions of this process.
    pub(super) fn mark_agreed(&self) -> Result<()> {
        let mark = |role| -> Result<()> {
            let target = self.target(role)?;
            let marked = target.mark(self.epoch, Mark::Agreed);
            marked.inspect_err(|error| self.fail(&target, error))
        };
        self.enough(&self.layout.map(mark))
    }

    /// Records at the targets, but for those in `kept`, that they have taken over the decisions of this opening.
    fn take_over(&self, kept: u16) -> Result<()> {
        let done: Vec<Result<()>> = self
            .layout
            .roles()
            .map(|role| {
                let target = self.target(role)?;
                if kept & role.bit() != 0 {
                    return Ok(());
                }
                let mark = match self.missing_blocks(role) {
                    0 => Mark::Complete,
                    _ => Mark::Agreed,
                };
                target
                    .mark(self.epoch, mark)
                    .inspect_err(|error| self.fail(&target, error))?;
                if mark == Mark::Complete {
                    self.seats.completed(&target);
                }
                Ok(())
            })
            .collect();
        self.enough(&done)
    }
}

/// Checks that two targets belong to one volume.
pub(super) fn agree(first: (&str, &Identity), second: (&str, &Identity)) -> Result<()> {
    let ((first, ours), (second, theirs)) = (first, second);
    let difference = if ours.volume != theirs.volume {
        format!("volume {} and {}", ours.volume, theirs.volume)
    } else if ours.geometry.block_size() != theirs.geometry.block_size() {
        format!("{} and {}", ours.geometry, theirs.geometry)
    } else if let Some(difference) = keys::difference(ours, theirs) {
        difference.to_owned()
    } else if ours.role.layout() != theirs.role.layout() {
        format!("layout {} and {}", ours.role.layout(), theirs.role.layout())
    } else {
        return Ok(());
    };
    Err(BlkError::Disagree {
        first: first.to_owned(),
        second: second.to_owned(),
        difference,
    })
}

fn same_role(first: &Identity, second: &Identity) -> String {
    if first.target == second.target {
        "they are the same target".to_owned()
    } else {
        format!("both are {}", first.role)
    }
}

fn too_few(layout: Layout, seats: &Targets) -> BlkError {
    let reason = |role: Role| match &seats[role.index()] {
        None => Some(format!("{role} is absent")),
        Some(target) if target.identity().standing == Standing::New => Some(format!(
            "{role} ({}) is new and does not hold everything yet",
            target.name()
        )),
        Some(_) => None,
    };
    let reasons: Vec<String> = layout.roles().filter_map(reason).collect();
    BlkError::TooFewTargets {
        layout,
        usable: layout.targets() - reasons.len(),
        reasons: reasons.join(", "),
    }
}

/// The decision about blocks.
struct Decided {
    blocks: Blocks,
    unclean: Vec<Unclean>,
    equal: u64,
}
