//! What a reader may see, said as plainly as possible. It knows nothing of generations, entries or space.
//!
//! A block is two sectors, each with the number of the write that made it. For each block the model keeps the values that
//! may be read, and the sets of targets that may hold the newest of them as a whole. The rules are the promises of
//! `docs/STORAGE.md`:
//!
//! - A block that enough targets of an opening are bound to hold is readable.
//! - A value is the last acknowledged one. After a loss of power that may leave fewer than two holders, it is one since
//!   the last flush. After a request that failed, it is the old or the new one.
//! - A value that was read stays, unless a loss of power takes writes of the page cache away that no flush has covered.

use crate::disk::Keep;
use xgvmi_blk::TARGETS_MAX;

/// A block's two sectors.
pub(crate) type Value = [u32; 2];

/// How many targets there are, and how many of them restore a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) targets: u8,
    pub(crate) needed: u32,
}

impl Shape {
    /// All targets.
    pub(crate) fn all(self) -> u16 {
        (1 << self.targets) - 1
    }

    /// What one target keeps of a loss of power. Of many each has another part.
    pub(crate) fn keep_at(self, target: u8, keep: Keep) -> Keep {
        match keep {
            _ if self.targets <= 3 => keep,
            Keep::First(count) => Keep::First((count + 5 * target) % 12),
            Keep::Any(choice) => Keep::Any(choice.wrapping_add(29 * target)),
            keep => keep,
        }
    }

    /// All sets with enough of `targets`.
    fn enough_of(self, targets: u16) -> Sets {
        self.of(|set| (set & targets).count_ones() >= self.needed)
    }

    /// All sets that fulfil a condition.
    fn of(self, wanted: impl Fn(u16) -> bool) -> Sets {
        Sets::of((0..=self.all()).filter(|set| wanted(*set)))
    }

    /// Those that fulfil a condition, or all sets that do if none of these does.
    fn only(self, sets: Sets, wanted: impl Fn(u16) -> bool) -> Sets {
        let all = self.of(wanted);
        let both = sets.and(all);
        if both == Sets::NONE { all } else { both }
    }

    /// True if enough of `targets` hold the block, whichever set it is.
    fn are_enough(self, sets: Sets, targets: u16) -> bool {
        sets.iter()
            .all(|set| (set & targets).count_ones() >= self.needed)
    }
}

/// Sets of targets as bits, each set again a bit: which sets are possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sets([u64; WORDS]);

/// Words with a bit for each set of as many targets as a volume has at most.
const WORDS: usize = (1 << TARGETS_MAX) / 64;

impl Sets {
    const NONE: Self = Self([0; WORDS]);

    fn iter(self) -> impl Iterator<Item = u16> {
        let words = (0u16..).step_by(64).zip(self.0);
        words
            .filter(|(_, word)| *word != 0)
            .flat_map(|(first, word)| {
                let bits = (0..64).filter(move |bit| word >> bit & 1 != 0);
                bits.map(move |bit| first + bit)
            })
    }

    fn of(sets: impl Iterator<Item = u16>) -> Self {
        let mut all = Self::NONE;
        for set in sets {
            all.0[usize::from(set) / 64] |= 1 << (set % 64);
        }
        all
    }

    fn map(self, change: impl Fn(u16) -> u16) -> Self {
        Self::of(self.iter().map(change))
    }

    fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|nth| self.0[nth] | other.0[nth]))
    }

    fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|nth| self.0[nth] & other.0[nth]))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Block {
    /// What may be read now.
    values: Vec<Value>,
    /// Also any value that a write made, now and after a loss of power: targets that had newer ones were given up.
    any: [bool; 2],
    /// What may have become durable: the last flushed values, then the later ones.
    since: Vec<Value>,
    /// Targets that may hold the newest value.
    holders: Sets,
    /// Targets that have written it since their last sync.
    dirty: u16,
    /// Targets whose sync failed with it: what they hold can be in the page cache only.
    suspect: u16,
    /// Targets that were damaged since: a rebuild does not look at what they hold.
    rotten: u16,
    /// Damaged targets over which a write has gone that no sync has covered: a loss of power brings the damage back.
    healed: u16,
    /// A write was acknowledged since the volume was opened.
    written: bool,
    /// The next flush covers it.
    due: bool,
    /// Since the volume was opened a write has failed, or power was lost: a later opening may decide in another way.
    undecided: bool,
    /// A write was cut off: two targets may have its value, and no one has looked since.
    partial: bool,
    /// Targets that a read may have given the value, and that have not made that durable since.
    repaired: u16,
    /// Targets that may hold the value without these repairs.
    before: Sets,
    /// Targets that took part in the last flush and were not damaged since: until the next one they keep what it was about.
    kept: u16,
    /// Pairs of targets that may have made the value durable before the next flush: the volume also flushes by itself.
    covered: Sets,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Failed,
    /// The process was killed before its client had an answer.
    Killed,
}

/// The targets of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Those in use.
    pub(crate) used: u16,
    /// Those that have failed meanwhile, or are full.
    pub(crate) faulty: u16,
    /// Those whose data counted when it began.
    pub(crate) trusted: u16,
}

impl Part {
    /// Those that a request can rely on.
    pub(crate) fn sound(self) -> u16 {
        self.healthy() & self.trusted
    }

    pub(crate) fn healthy(self) -> u16 {
        self.used & !self.faulty
    }
}

/// The model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Model {
    shape: Shape,
    /// Those of the volume, then those of each snapshot.
    blocks: Vec<Block>,
    /// Blocks of the volume.
    size: usize,
    /// There may be layers.
    layered: bool,
    /// Targets that were damaged.
    damaged: u16,
    /// Names of the snapshots that were answered.
    snapshots: Vec<String>,
    /// Names of snapshots whose deletion was answered.
    deleted: Vec<String>,
    /// Targets that count as complete.
    whole: u16,
    /// An opening was killed or has failed: until the next one its targets may be ahead of those of another.
    cut: bool,
    /// Targets that were in use since the volume was opened.
    seen: u16,
}

impl Block {
    /// It may have become what was made durable.
    fn fall_back(&mut self) {
        self.values = self.since.clone();
        self.any[0] |= self.any[1];
    }

    /// A target may lose what a read has given it.
    fn repair_lost(&mut self, target: u16) {
        if self.repaired & target != 0 {
            self.holders = self.holders.or(self.before);
        }
    }
}

fn add(values: &mut Vec<Value>, more: &[Value]) {
    for value in more {
        if !values.contains(value) {
            values.push(*value);
        }
    }
}

impl Model {
    /// A new volume.
    pub(crate) fn new(blocks: usize, shape: Shape) -> Self {
        let block = Block {
            values: vec![[0; 2]],
            since: vec![[0; 2]],
            any: [false; 2],
            holders: shape.of(|set| set == shape.all()),
            dirty: 0,
            suspect: 0,
            rotten: 0,
            healed: 0,
            written: false,
            due: false,
            undecided: false,
            partial: false,
            repaired: 0,
            before: Sets::NONE,
            kept: shape.all(),
            covered: Sets::NONE,
        };
        Self {
            shape,
            blocks: vec![block; blocks],
            size: blocks,
            layered: false,
            damaged: 0,
            snapshots: Vec::new(),
            deleted: Vec::new(),
            whole: shape.all(),
            cut: false,
            seen: 0,
        }
    }

    /// True if a block is bound to be readable with these targets.
    pub(crate) fn is_readable(&self, block: usize, part: Part) -> bool {
        let targets = part.healthy();
        let kept = self.blocks[block].kept;
        if self.keeps() && kept != 0 && self.damaged == 0 && targets == self.shape.all() {
            return true;
        }
        let sure = match self.layered && self.damaged != 0 {
            // It does not know what an empty layer does not have, and neither does a new one.
            true => targets & self.whole & !self.damaged,
            false => targets,
        };
        self.shape.are_enough(self.blocks[block].holders, sure)
    }

    /// True if a loss of power during a flush leaves what was flushed before, however far it came.
    fn keeps(&self) -> bool {
        let Shape { targets, needed } = self.shape;
        needed > 2 || (needed == 2 && targets > 3)
    }

    /// The targets whose data counts. If they are only as many as are needed, nobody else tells a record that was never flushed
    /// from a damaged one.
    pub(crate) fn trusts(&mut self, trusted: u16) {
        if trusted.count_ones() <= self.shape.needed {
            self.blocks.iter_mut().for_each(|block| block.kept = 0);
        }
    }

    /// Those of these targets that count as complete.
    pub(crate) fn whole(&self, targets: u16) -> u16 {
        self.whole & targets
    }

    /// True if a target counts as complete.
    pub(crate) fn is_whole(&self, target: u8) -> bool {
        self.whole & 1 << target != 0
    }

    /// True if a volume is bound to open with these targets.
    pub(crate) fn opens(&self, targets: u16) -> bool {
        // Of others one that is absent may have gone on alone.
        let votes = self.shape.targets == 3 && self.shape.needed == 2;
        targets == self.shape.all() || (votes && (targets & self.whole).count_ones() >= 2)
    }

    /// A volume was opened. Two targets decide about a write that was cut off. If one of the three was absent or has failed
    /// meanwhile, the third one may not have it.
    pub(crate) fn opened(&mut self, part: Part) {
        let shape = self.shape;
        let keeps = self.keeps();
        self.cut &= part.healthy() != shape.all();
        self.seen = part.used;
        for block in &mut self.blocks {
            block.written = false;
            block.due = false;
            block.undecided = false;
            if keeps && !shape.are_enough(block.holders, part.healthy()) {
                // Too few are there. What no flush has covered it may decide against, for those that were absent as well, or it may
                // be an error from here on.
                block.fall_back();
                if block.since.len() > 1 || block.any[1] {
                    block.holders = shape.of(|_| true);
                }
            }
            block.covered = Sets::NONE;
            if part.healthy() != shape.all() {
                // Without one it may count as lost, and those that return get to know that.
                block.kept = 0;
            }
            if block.partial && part.healthy() != shape.all() {
                block.holders = block.holders.or(shape.enough_of(part.used));
            }
        }
    }

    /// Only damaged targets decide: what they have lost counts as lost from here on, whoever has it.
    pub(crate) fn undecidable(&mut self) {
        let shape = self.shape;
        for block in self.blocks.iter_mut().filter(|block| block.rotten != 0) {
            block.holders = shape.of(|_| true);
        }
    }

    /// An opening was killed or has failed. A target that it has marked returns only at the next opening with it.
    pub(crate) fn opening_ended(&mut self) {
        self.cut = true;
    }

    /// True if a target is bound to be taken back.
    pub(crate) fn is_return_sure(&self) -> bool {
        !self.cut
    }

    /// The volume is opened without targets that may have newer data. Each block is what those have that are there, or an error.
    pub(crate) fn parted(&mut self) {
        let shape = self.shape;
        self.blocks.truncate(self.size);
        (self.snapshots, self.deleted) = (Vec::new(), Vec::new());
        for block in &mut self.blocks {
            (block.values, block.since) = (Vec::new(), Vec::new());
            block.any = [true; 2];
            block.holders = shape.of(|_| true);
            (block.undecided, block.partial, block.written, block.due) =
                (false, false, false, false);
            (block.kept, block.covered) = (0, Sets::NONE);
        }
    }

    /// A write of a block: `change` makes the new value of an old one.
    pub(crate) fn write(
        &mut self,
        block: usize,
        change: impl Fn(Value) -> Value,
        part: Part,
        end: End,
    ) {
        let shape = self.shape;
        let block = &mut self.blocks[block];
        let mut new: Vec<Value> = block.values.iter().map(|value| change(*value)).collect();
        if block.any[0] && change([0; 2]) == change([u32::MAX; 2]) {
            // It does not depend on what was there.
            new = vec![change([0; 2])];
        }
        // Those that were healthy hold it. Those that were not may.
        let now = shape.of(|set| set & !part.used == 0 && part.healthy() & !set == 0);
        match end {
            End::Done => {
                block.values.clear();
                block.any[0] &= change([0; 2]) != change([u32::MAX; 2]);
                block.undecided = false;
                block.healed |= block.rotten & part.healthy();
                block.rotten &= !part.healthy();
                block.holders = shape.only(now, |set| set.count_ones() >= shape.needed);
            }
            End::Killed if part.faulty == 0 => {
                block.holders = block.holders.or(now);
                block.undecided = true;
            }
            End::Killed | End::Failed => {
                block.holders = shape.of(|_| true);
                block.undecided = true;
            }
        }
        block.partial = end != End::Done;
        // The next flush covers the last acknowledged write: one that failed leaves what was made durable of that.
        if end == End::Done {
            block.covered = Sets::NONE;
            (block.repaired, block.before) = (0, Sets::NONE);
        }
        add(&mut block.values, &new);
        // In the order of the writes: the last one counts.
        block.since.retain(|value| !new.contains(value));
        add(&mut block.since, &new);
        block.dirty |= part.used;
        block.written |= end == End::Done;
        block.due |= end == End::Done;
    }

    /// True if there may be layers: some say nothing of a block that is readable.
    pub(crate) fn has_layers(&self) -> bool {
        self.layered
    }

    /// A snapshot begins.
    pub(crate) fn layered(&mut self) {
        self.blocks.iter_mut().for_each(|block| block.kept = 0);
        self.layered = true;
    }

    /// A snapshot was made, which ends with a flush.
    pub(crate) fn snapshot(&mut self, name: &str, part: Part) {
        self.flushed(part);
        self.blocks.extend_from_within(..self.size);
        self.snapshots.push(name.to_owned());
    }

    /// The deletion of a snapshot has begun.
    pub(crate) fn unsnapshot(&mut self, name: &str, end: End) {
        if let Some(at) = self.snapshots.iter().position(|known| known == name) {
            self.snapshots.remove(at);
            let first = self.size * (at + 1);
            self.blocks.drain(first..first + self.size);
        }
        if end == End::Done {
            self.deleted.push(name.to_owned());
        }
    }

    /// Blocks of deleted snapshots may have moved to the targets in use, durably. Nothing of what they are changes.
    pub(crate) fn merged(&mut self, part: Part) {
        let shape = self.shape;
        let moved = shape.of(|set| set & !part.used == 0 && part.healthy() & !set == 0);
        let moved = match part.healthy().count_ones() {
            few if few < shape.needed => shape.enough_of(part.used),
            _ => moved,
        };
        for block in &mut self.blocks {
            block.kept = 0;
            block.holders = block.holders.or(moved);
        }
    }

    /// The snapshots that are bound to be there, and the number of the first block of each.
    pub(crate) fn snapshots(&self) -> Vec<(String, usize)> {
        let firsts = (1..).map(|nth| nth * self.size);
        self.snapshots.iter().cloned().zip(firsts).collect()
    }

    /// A snapshot that is bound to be there and is not, or must not be there.
    pub(crate) fn wrong_snapshot(&self, there: &[String]) -> Option<String> {
        let mut bound = self.snapshots.iter();
        let absent = bound.find(|name| !there.contains(name));
        let mut gone = self.deleted.iter();
        let back = gone.find(|name| there.contains(name));
        absent
            .map(|name| format!("{name} is lost"))
            .or(back.map(|name| format!("{name} is there again")))
    }

    /// A flush that succeeded.
    pub(crate) fn flushed(&mut self, part: Part) {
        let shape = self.shape;
        for block in &mut self.blocks {
            // What an earlier opening wrote and this one cannot read is not covered.
            if !block.due && !shape.are_enough(block.holders, part.healthy()) {
                continue;
            }
            block.due = false;
            block.since.clone_from(&block.values);
            block.any[1] = block.any[0];
            block.dirty &= !part.healthy();
            block.repaired &= !part.healthy();
            block.healed &= !part.healthy() | block.suspect;
            // Two of those that were flushed have it, whoever had it before.
            let sound = part.used & !block.suspect;
            if !shape.are_enough(block.holders, sound) {
                let kept = block.holders.and(shape.enough_of(sound));
                block.holders = kept.or(shape.enough_of(part.used)).or(block.covered);
                block.suspect = 0;
            }
            block.covered = Sets::NONE;
            block.kept = part.sound();
            if block.kept.count_ones() < shape.needed {
                block.kept = 0;
            }
        }
    }

    /// These targets have made durable what they held, in one step that was no flush.
    pub(crate) fn synced(&mut self, targets: u16) {
        let shape = self.shape;
        for block in self.blocks.iter_mut().filter(|block| block.due) {
            block.covered = block.covered.or(shape.enough_of(targets));
        }
    }

    /// The sync of a target has failed: what it had not made durable does not count any more.
    pub(crate) fn sync_failed(&mut self, target: u16) {
        for block in &mut self.blocks {
            block.repair_lost(target);
            block.kept = 0;
            if block.dirty & target != 0 {
                block.suspect |= target;
                block.holders = block.holders.or(block.holders.map(|set| set & !target));
            }
        }
    }

    /// A target has lost power, and with it what was not flushed.
    pub(crate) fn lost_power(&mut self, target: u16, trusted: u16) {
        let shape = self.shape;
        for block in &mut self.blocks {
            block.repair_lost(target);
            block.repaired &= !target;
            block.rotten |= block.healed & target;
            block.healed &= !target;
            if (block.dirty | block.suspect) & target != 0 {
                block.holders = block.holders.or(block.holders.map(|set| set & !target));
                block.dirty &= !target;
                block.suspect &= !target;
                if !shape.are_enough(block.holders, trusted) {
                    block.undecided = true;
                    block.fall_back();
                    // Nobody else tells whether its record was flushed: it may be an error.
                    if trusted.count_ones() <= shape.needed {
                        block.holders = shape.of(|_| true);
                    }
                }
            }
        }
    }

    /// A target has lost bytes that were flushed. Those that were not may be lost as by a loss of power.
    pub(crate) fn damaged(&mut self, target: u16, trusted: u16) {
        let shape = self.shape;
        self.damaged |= target;
        self.lost_power(target, trusted);
        for block in &mut self.blocks {
            block.kept = 0;
            block.rotten |= target;
            if block.partial {
                block.holders = block.holders.or(shape.enough_of(shape.all()));
            }
            block.holders = block.holders.or(block.holders.map(|set| set & !target));
        }
    }

    /// A target begins to return: it does not count as complete until it has been rebuilt.
    pub(crate) fn returns(&mut self, target: u16) {
        self.whole &= !target;
        self.seen |= target;
        // What it had not made durable when it left does not count before that either.
        for block in &mut self.blocks {
            block.repair_lost(target);
            if block.dirty & target != 0 {
                block.holders = block.holders.or(block.holders.map(|set| set & !target));
            }
        }
    }

    /// A new target has taken the place of another. It may have what waits for a flush.
    pub(crate) fn replaced(&mut self, target: u16) {
        self.doubted(target);
        for block in &mut self.blocks {
            let without = block.holders.map(|set| set & !target);
            block.holders = without.or(without.map(|set| set | target));
            block.covered = block.covered.map(|set| set & !target);
            block.before = block.before.map(|set| set & !target);
            block.suspect &= !target;
            block.dirty |= target;
        }
        self.seen |= target;
    }

    /// A replacement of this target has failed: others may believe that another one has its place.
    pub(crate) fn doubted(&mut self, target: u16) {
        self.whole &= !target;
        for block in &mut self.blocks {
            block.repair_lost(target);
            block.kept = 0;
            block.holders = block.holders.or(block.holders.map(|set| set & !target));
        }
    }

    /// All targets in use have been completed.
    pub(crate) fn rebuilt(&mut self, part: Part) {
        let shape = self.shape;
        for block in &mut self.blocks {
            if shape.are_enough(block.holders, part.used) {
                let sound = part.used & !block.rotten;
                block.holders = block.holders.map(|set| set | sound);
            }
            block.suspect &= !part.used;
        }
        self.whole |= part.used;
    }

    /// A read: an error if the value is none that may be there.
    pub(crate) fn read(&mut self, block: usize, value: Value, part: Part) -> Result<(), String> {
        let shape = self.shape;
        let number = block;
        let block = &mut self.blocks[block];
        if !block.any[0] && !block.values.contains(&value) {
            let kind = if value == [0; 2] {
                "zeros"
            } else {
                "wrong data"
            };
            return Err(format!(
                "{kind}: block {number} is {value:?}, and may be {:?}",
                block.values
            ));
        }
        if !block.undecided {
            block.partial = false;
            // What this opening has written it also knows by itself.
            if block.written {
                return Ok(());
            }
            let was_sure = block.values.len() == 1 && !block.any[0];
            block.any[0] = false;
            block.values = vec![value];
            let last = block.since.iter().rposition(|other| *other == value);
            block.since.truncate(last.map_or(0, |last| last + 1));
            add(&mut block.since, &[value]);
            if was_sure && shape.are_enough(block.holders, part.used) {
                return Ok(());
            }
            // A volume knows zeros by itself.
            if value == [0; 2] {
                block.holders = shape.enough_of(shape.all());
                return Ok(());
            }
            // Two have anything else: which ones, nobody knows. The read may have made them so, which no sync has covered.
            let durable = match was_sure {
                true => block.holders,
                false => shape.enough_of(self.seen),
            };
            block.before = block.before.or(durable);
            block.repaired |= part.used;
            block.holders = shape.enough_of(part.used);
        }
        Ok(())
    }
}
