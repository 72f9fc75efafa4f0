//! State of an open volume: targets, blocks, locks and counters.

use super::pending::Pending;
use super::seats::{Seat, Seats};
use super::stack::{Layering, Merging};
use super::trustees::Trust;
use super::turns::{BlockLocks, Commits, Helpers, Scrubbing};
use crate::encryption::{Cipher, Wrapping};
use crate::error::{BlkError, Result};
use crate::geometry::{Geometry, Id, Layout, PerTarget, Role};
use crate::store::{COUNTER_BITS, Members, Target};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A page of blocks takes this for each of them.
const _: () = assert!(size_of::<BlockState>() == 16);

/// What the volume knows of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BlockState {
    /// The generation that counts; 0 if the block was never written.
    pub(super) generation: u64,
    /// Targets that hold it.
    pub(super) holders: u16,
    /// Targets that were completed without it, because it was lost.
    pub(super) marked: u16,
    /// The block is all zeros.
    pub(super) zero: bool,
    /// Its layer does not have it any more. Then it also counts as zeros.
    pub(super) hole: bool,
    /// The generation was settled and has too few holders, or too few targets say what the block is.
    pub(super) lost: bool,
}

impl BlockState {
    pub(super) fn is_held_by(self, role: Role) -> bool {
        self.holders & role.bit() != 0
    }

    /// True if it has data, or should have.
    fn is_used(self) -> bool {
        self.generation != 0 || self.lost
    }

    /// True if a target lacks something of it.
    pub(super) fn is_missing_at(self, role: Role) -> bool {
        self.is_used() && (self.holders | self.marked) & role.bit() == 0
    }

    fn is_unreadable(self, layout: Layout) -> bool {
        let is_short = layout.is_short(self.holders);
        self.lost || (self.generation != 0 && !self.hole && is_short)
    }
}

/// Blocks of a page of states.
pub(super) const PAGE: u64 = PAGE_LEN as u64;
const PAGE_LEN: usize = 64;

/// The states of the blocks of a page.
type Page = [BlockState; PAGE_LEN];

/// The states of blocks, and how many of those lack something.
///
/// What is not here is either known to be unwritten, or the same at all targets in use: then it is looked up when it is needed.
#[derive(Debug)]
pub(super) struct Blocks {
    layout: Layout,
    /// Pages by number. None: nothing of it was ever written.
    pages: BTreeMap<u64, Option<Box<Page>>>,
    /// Pages that are not here were never written.
    all_known: bool,
    missing: PerTarget<u64>,
    unreadable: u64,
    /// Number of times that what a target holds was forgotten.
    forgets: u64,
}

impl Blocks {
    /// Nothing is known, or that nothing was written.
    pub(super) fn new(layout: Layout, all_known: bool) -> Self {
        Self {
            layout,
            pages: BTreeMap::new(),
            all_known,
            missing: layout.map(|_| 0),
            unreadable: 0,
            forgets: 0,
        }
    }

    fn at(block: u64) -> (u64, usize) {
        // Cannot be cut: less than a page.
        (block / PAGE, usize::try_from(block % PAGE).unwrap_or(0))
    }

    fn get(&self, block: u64) -> BlockState {
        let (page, at) = Self::at(block);
        let page = self.pages.get(&page).and_then(Option::as_ref);
        page.map_or(BlockState::default(), |page| page[at])
    }

    pub(super) fn set(&mut self, block: u64, state: BlockState) {
        let (page, at) = Self::at(block);
        let old = self.get(block);
        if old == state {
            return;
        }
        let page = self.pages.entry(page).or_default();
        page.get_or_insert_with(|| Box::new([BlockState::default(); PAGE_LEN]))[at] = state;
        self.count(state, old);
    }

    fn count(&mut self, state: BlockState, old: BlockState) {
        for role in self.layout.roles() {
            let missing = &mut self.missing[role.index()];
            *missing += u64::from(state.is_missing_at(role));
            *missing -= u64::from(old.is_missing_at(role));
        }
        self.unreadable += u64::from(state.is_unreadable(self.layout));
        self.unreadable -= u64::from(old.is_unreadable(self.layout));
    }

    /// The first block from `from` on, before `to`, whose state must be looked up.
    pub(super) fn unknown(&self, from: u64, to: u64) -> Option<u64> {
        if self.all_known {
            return None;
        }
        let pages = from / PAGE..to.div_ceil(PAGE);
        let page = pages
            .into_iter()
            .find(|page| !self.pages.contains_key(page))?;
        Some(from.max(page * PAGE))
    }

    /// Takes the states of blocks into the pages that are not here.
    pub(super) fn learn(&mut self, states: &[(u64, BlockState)]) {
        for of_page in states.chunk_by(|(one, _), (next, _)| one / PAGE == next / PAGE) {
            let number = of_page.first().map_or(0, |(block, _)| block / PAGE);
            if !self.pages.contains_key(&number) {
                for (block, state) in of_page {
                    self.set(*block, *state);
                }
            }
        }
    }

    /// Of these blocks nothing was written but what is here.
    pub(super) fn learned(&mut self, blocks: Range<u64>) {
        for page in blocks.start / PAGE..blocks.end.div_ceil(PAGE) {
            self.pages.entry(page).or_default();
        }
    }

    /// Everything that is not here was never written.
    pub(super) fn all_known(&mut self) {
        self.all_known = true;
        self.pages.retain(|_, page| page.is_some());
    }

    pub(super) fn are_all_known(&self) -> bool {
        self.all_known
    }

    pub(super) fn forgets(&self) -> u64 {
        self.forgets
    }

    /// Pages from that of block `from` on, before `to`, of which something was written: the first block of one.
    pub(super) fn next_page(&self, from: u64, to: u64) -> Option<u64> {
        let mut pages = self.pages.range(from.div_ceil(PAGE)..to.div_ceil(PAGE));
        let page = pages.find(|(_, page)| page.is_some())?;
        Some(page.0 * PAGE)
    }

    /// What the target of a role holds is not known any more.
    pub(super) fn forget(&mut self, role: Role) {
        self.forgets += 1;
        let layout = self.layout;
        let (mut missing, mut unreadable) = (layout.map(|_| 0), 0);
        let pages = self.pages.values_mut().flatten();
        for state in pages.flat_map(|page| page.iter_mut()) {
            state.holders &= !role.bit();
            state.marked &= !role.bit();
            for role in layout.roles() {
                missing[role.index()] += u64::from(state.is_missing_at(role));
            }
            unreadable += u64::from(state.is_unreadable(layout));
        }
        (self.missing, self.unreadable) = (missing, unreadable);
    }

    /// True if a target holds all blocks that can be read, as far as they are here.
    pub(super) fn holds_all(&self, role: Role) -> bool {
        let mut states = self.pages.values().flatten().flat_map(|page| page.iter());
        states.all(|state| state.lost || !state.is_missing_at(role))
    }

    /// Blocks that count as lost.
    pub(super) fn lost(&self) -> Vec<u64> {
        if self.unreadable == 0 {
            return Vec::new();
        }
        let mut lost = Vec::new();
        for (number, page) in &self.pages {
            let states = (number * PAGE..).zip(page.iter().flat_map(|page| page.iter()));
            lost.extend(
                states
                    .filter(|(_, state)| state.lost)
                    .map(|(block, _)| block),
            );
        }
        lost
    }

    /// Ranges of blocks whose states are here.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        let pages = self.pages.keys();
        pages.map(|page| page * PAGE..(page + 1) * PAGE).collect()
    }

    /// True if every target in use holds all that is here, and everything can be read.
    pub(super) fn is_whole(&self) -> bool {
        self.missing.iter().all(|missing| *missing == 0) && self.unreadable == 0
    }
}

/// Counters of a volume since it was opened.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) read_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) moved_bytes: AtomicU64,
    pub(super) degraded_reads: AtomicU64,
    pub(super) repaired_halves: AtomicU64,
    pub(super) corrupt_halves: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) damaged_entries: AtomicU64,
    pub(super) replacements: AtomicU64,
    pub(super) scrubs: AtomicU64,
    pub(super) scrubbed_blocks: AtomicU64,
    pub(super) scrub_bad_halves: AtomicU64,
    pub(super) scrub_lost_blocks: AtomicU64,
    pub(super) flush_groups: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, amount: u64) {
    // Relaxed: a counter orders nothing.
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// State of a target as a volume sees it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TargetStatus {
    /// Its role: `data_1`, `data_2` or `data_p`, or that of another layout.
    pub role: String,
    /// Its name; empty if it is absent.
    pub name: String,
    /// Why it is absent; empty if it is present.
    pub absent: String,
    /// Bytes of records in use.
    pub used: u64,
    /// Blocks whose current generation it does not hold.
    pub missing_blocks: u64,
    /// It was completed since it is in use. A target that does not answer is given up only if enough others are complete.
    pub complete: bool,
}

xgvmi_daemon::status! {
    /// State and counters of a volume.
    #[derive(Default)]
    pub struct VolumeStatus("xgvmi_blk_") {
        pub value volume: String, "Identifier of the volume.";
        pub value size: u64, "Size in bytes.";
        pub value block_size: u32, "Bytes of a block.";
        #[serde(default)]
        pub gauge encrypted: bool, "1 if the stored bytes are encrypted.";
        pub value targets: Vec<TargetStatus>, "The targets, in the order of their roles.";
        pub gauge lost_blocks, "Blocks that too few targets hold.";
        pub counter read_bytes, "Bytes read by clients.";
        pub counter written_bytes, "Bytes written by clients.";
        pub counter moved_bytes, "Bytes of half blocks sent to targets.";
        pub counter degraded_reads, "Reads of blocks that needed parity.";
        pub counter repaired_halves, "Half blocks that were written again.";
        pub counter corrupt_halves, "Half blocks that were wrong.";
        pub counter flushes, "Flushes.";
        #[serde(default)]
        pub gauge damaged_entries,
            "Index entries that could not be read when their target was opened or has returned.";
        #[serde(default)]
        pub counter replacements, "Targets that were replaced.";
        #[serde(default)]
        pub gauge scrubbing, "1 while a scrub runs beside the clients.";
        #[serde(default)]
        pub counter scrubs, "Scrubs that have ended.";
        #[serde(default)]
        pub counter scrubbed_blocks, "Blocks that scrubs have read.";
        #[serde(default)]
        pub counter scrub_bad_halves, "Half blocks that scrubs found absent or wrong.";
        #[serde(default)]
        pub counter scrub_lost_blocks, "Blocks that scrubs could not read.";
        #[serde(default)]
        pub counter flush_groups, "Flushes of the targets. Each serves all requests that wait for one.";
    }
}

/// A volume that is open.
pub struct Volume {
    pub(super) layout: Layout,
    pub(super) block_size: u32,
    /// Blocks. It can grow.
    pub(super) size: AtomicU64,
    pub(super) id: Id,
    pub(super) epoch: u64,
    /// The epoch at whose end the targets were equal, if those in use agree about it.
    pub(super) equal: u64,
    /// A request has failed, or a target did not settle something: entries may say more than what counts.
    pub(super) disturbed: AtomicBool,
    pub(super) counter: AtomicU64,
    /// Up to this generation all targets have made durable what counts.
    pub(super) released: AtomicU64,
    pub(super) seats: Arc<Seats>,
    pub(super) blocks: Mutex<Blocks>,
    pub(super) locks: BlockLocks,
    pub(super) pending: Pending,
    pub(super) trust: Trust,
    /// The targets that have replaced others.
    pub(super) members: Mutex<Members>,
    /// The wrapped data key that counts, if the volume is encrypted.
    pub(super) wrapping: Mutex<Option<Wrapping>>,
    /// What its owner reads and writes it with.
    pub(super) cipher: Option<Cipher>,
    /// Held while a target takes its place.
    pub(super) attaching: Mutex<()>,
    /// Held during a flush that a write begins because much waits for one.
    pub(super) relieving: Mutex<()>,
    pub(super) commits: Commits,
    pub(super) helpers: Helpers,
    pub(super) scrubbing: Scrubbing,
    /// Where the next rebuild of each target begins.
    pub(super) starts: PerTarget<AtomicU64>,
    pub(super) layering: Layering,
    /// A block and its places in all layers have the same remainder.
    pub(super) step: u64,
    pub(super) merging: Mutex<Merging>,
    pub(super) counters: Counters,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Volume");
        debug
            .field("id", &self.id)
            .field("geometry", &self.geometry());
        debug.finish_non_exhaustive()
    }
}

impl Volume {
    /// Size of the volume.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        Geometry::known(self.block_size, self.size.load(Ordering::Acquire))
    }

    /// How its data is spread over the targets.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Identifier of the volume.
    #[must_use]
    pub fn id(&self) -> Id {
        self.id
    }

    /// State and counters.
    #[must_use]
    pub fn status(&self) -> VolumeStatus {
        let missing = self.blocks().missing.clone();
        let lost_blocks = self.lost_blocks();
        let seats = self.seats.look(|seats| {
            let look = |seat: &Seat| match seat {
                Seat::Present(occupant) => {
                    let target = Arc::clone(&occupant.target);
                    Ok((target, occupant.is_complete(self.layout)))
                }
                Seat::Absent(reason) => Err(reason.clone()),
            };
            seats.iter().map(look).collect::<PerTarget<_>>()
        });
        // Without the lock of the places: a target may be busy with its disk.
        let targets = self.layout.roles().zip(seats).map(|(role, seat)| {
            let (name, absent, used, complete) = match seat {
                Ok((target, whole)) => {
                    let used = target.usage().used;
                    (target.name().to_owned(), String::new(), used, whole)
                }
                Err(reason) => (String::new(), reason, 0, false),
            };
            TargetStatus {
                role: role.to_string(),
                name,
                absent,
                used,
                missing_blocks: missing[role.index()],
                complete,
            }
        });
        let targets = targets.collect();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        VolumeStatus {
            volume: self.id.to_string(),
            size: self.geometry().size(),
            block_size: self.block_size,
            encrypted: self.wrapping().is_some(),
            targets,
            lost_blocks,
            read_bytes: get(&counters.read_bytes),
            written_bytes: get(&counters.written_bytes),
            moved_bytes: get(&counters.moved_bytes),
            degraded_reads: get(&counters.degraded_reads),
            repaired_halves: get(&counters.repaired_halves),
            corrupt_halves: get(&counters.corrupt_halves),
            flushes: get(&counters.flushes),
            damaged_entries: get(&counters.damaged_entries),
            replacements: get(&counters.replacements),
            scrubbing: self.scrubbing.runs().into(),
            scrubs: get(&counters.scrubs),
            scrubbed_blocks: get(&counters.scrubbed_blocks),
            scrub_bad_halves: get(&counters.scrub_bad_halves),
            scrub_lost_blocks: get(&counters.scrub_lost_blocks),
            flush_groups: get(&counters.flush_groups),
        }
    }

    /// Names of the targets in use.
    #[must_use]
    pub fn present(&self) -> Vec<String> {
        let name = |seat: &Seat| match seat {
            Seat::Present(occupant) => Some(occupant.target.name().to_owned()),
            Seat::Absent(_) => None,
        };
        self.seats
            .look(|seats| seats.iter().filter_map(name).collect())
    }

    /// Blocks that too few targets hold, and that are not in memory either.
    pub(super) fn lost_blocks(&self) -> u64 {
        let unreadable = self.blocks().unreadable;
        unreadable.saturating_sub(self.pending.kept_here())
    }

    /// Name of the target of a role, or of the last one that was there.
    #[must_use]
    pub fn name_of(&self, role: Role) -> Option<String> {
        self.seats.name_of(role)
    }

    /// Number of blocks that the target of a role lacks.
    #[must_use]
    pub fn missing_blocks(&self, role: Role) -> u64 {
        self.blocks().missing[role.index()]
    }

    /// Bytes of records in use at the target of a role, if it is there.
    #[must_use]
    pub fn used(&self, role: Role) -> Option<u64> {
        Some(self.target(role).ok()?.usage().used)
    }

    /// True if the target of a role is in use and was completed. Blocks for which it had no space since do not count.
    #[must_use]
    pub fn is_complete(&self, role: Role) -> bool {
        self.seats.look(|seats| {
            matches!(&seats[role.index()], Seat::Present(one) if one.is_complete(self.layout))
        })
    }

    /// True if the target of a role takes its place, and it is not known yet what it holds.
    pub(crate) fn is_arriving(&self, role: Role) -> bool {
        self.seats.look(
            |seats| matches!(&seats[role.index()], Seat::Present(occupant) if occupant.arriving),
        )
    }

    /// Lets requests wait for a target that they need, up to `limit` after the loss of the last one. Without it they fail
    /// at once. Somebody must [attach](Volume::attach) targets that return.
    pub fn set_outage_limit(&self, limit: Duration) {
        self.seats.set_outage_limit(limit);
    }

    /// Carries out `operation`. If it fails because a target is absent, it is repeated as soon as one has returned.
    pub(super) fn with_return(&self, mut operation: impl FnMut() -> Result<()>) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.seats.check_owner()?;
            let returns = self.seats.returns();
            let done = operation();
            self.seats.check_owner()?;
            match done {
                Err(error) if error.wants_target() => {
                    if !self.seats.wait_for_return(returns, begun, &error) {
                        self.seats.check_owner()?;
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    /// True if another process has opened the volume.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.seats.check_owner().is_err()
    }

    /// Waits until another process has opened the volume. Returns the error of all requests from then on.
    #[must_use]
    pub fn wait_superseded(&self) -> BlkError {
        self.seats.wait_superseded()
    }

    /// The target of a role.
    pub(super) fn target(&self, role: Role) -> Result<Arc<dyn Target>> {
        self.seats.target(role)
    }

    /// Stops the use of a target. Its place is free for the same or another one.
    pub fn detach(&self, role: Role, reason: &str) {
        self.seats.free(role, reason);
    }

    /// Stops the use of `target` if it is still the one in use, because of an error of it.
    pub(super) fn fail(&self, target: &Arc<dyn Target>, error: &BlkError) {
        self.seats.fail(target, error);
    }

    pub(super) fn blocks(&self) -> MutexGuard<'_, Blocks> {
        // A panic cannot leave the table half changed: states are replaced as a whole.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// State of a block. The block is inside the volume.
    pub(super) fn state(&self, block: u64) -> BlockState {
        // See `Volume::know`.
        self.blocks().get(block)
    }

    pub(super) fn set_state(&self, block: u64, state: BlockState) {
        self.blocks().set(block, state);
    }

    /// The newest generation.
    pub(super) fn last_generation(&self) -> u64 {
        self.epoch << COUNTER_BITS | self.counter.load(Ordering::Relaxed)
    }

    /// A generation that no other write has.
    pub(super) fn next_generation(&self) -> u64 {
        // 2^40 writes at one per microsecond take 12 days: the epoch is raised before.
        self.epoch << COUNTER_BITS | (self.counter.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
