//! Three targets, an export and the model: carries out steps on the product's `Volume` and `Store`.

use crate::disk::{Content, Disk, Fuse, random};
use crate::model::{End, Model, Part, Shape as Counts};
use crate::node::Node;
use crate::step::{Step, targets};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use xgvmi_blk::error::{BlkError, Result};
use xgvmi_blk::store::{NewTarget, Shape};
use xgvmi_blk::{Geometry, Id, Layout, Store, TARGETS_MAX, Target, Volume};

/// What a sequence starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Blocks of the volume, 1 to 3.
    pub blocks: u8,
    /// How data is spread, on any number of targets.
    pub layout: Layout,
    /// Bytes of a block.
    pub block_len: u16,
    /// The targets are processes of their own. Otherwise they are files of the export, which end with it.
    pub elsewhere: bool,
    /// The index settles every group as soon as it can. Otherwise each group stays in change.
    pub settles: bool,
    /// Syncs have no effect: disks that break their own promise, to see that the search finds it.
    pub lies: bool,
    /// Target 0 answers that it has what it has not: writes are acknowledged with a part fewer, to see that the search finds it.
    pub forgets: bool,
}

impl Setting {
    pub(crate) fn counts(self) -> Counts {
        // Cannot be cut: eleven at most.
        let [targets, needed] = [self.layout.targets(), self.layout.needed()]
            .map(|count| u8::try_from(count).unwrap_or(11));
        Counts {
            targets,
            needed: needed.into(),
        }
    }
}

const NAMES: [&str; TARGETS_MAX] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a"];

pub(crate) fn trusted_by(volume: &Volume) -> u16 {
    volume.trusted()
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What is wrong, in a few words.
    pub kind: &'static str,
    /// Which step, and details.
    pub detail: String,
}

pub(crate) type Outcome<T = ()> = std::result::Result<T, Violation>;

pub(crate) fn violation<T>(kind: &'static str, detail: impl Into<String>) -> Outcome<T> {
    Err(Violation {
        kind,
        detail: detail.into(),
    })
}

/// Disks of new volumes: making them takes longer than a sequence.
#[derive(Debug)]
pub struct Fresh {
    pub(crate) setting: Setting,
    disks: Vec<Content>,
    /// New targets, to replace those.
    pub(crate) spares: Arc<Vec<Content>>,
}

impl Fresh {
    /// Creates the targets of a new volume.
    ///
    /// # Errors
    /// The product refuses it.
    pub fn new(setting: Setting) -> Result<Self> {
        Ok(Self {
            setting,
            disks: Self::disks(setting, true)?,
            spares: Arc::new(Self::disks(setting, false)?),
        })
    }

    fn disks(setting: Setting, complete: bool) -> Result<Vec<Content>> {
        let fuse = Fuse::new();
        let mut disks = Vec::new();
        for role in setting.layout.roles() {
            let disk = Disk::new(Content::default(), &fuse);
            let geometry = Geometry::new(setting.block_len.into(), setting.blocks.into())?;
            let new = NewTarget {
                geometry,
                role,
                volume: Id([7; 16]),
                complete,
            };
            // Room for three snapshots. Some groups can be in change, or all.
            let shape = match setting.settles {
                true => Shape { room: 40, slots: 4 },
                false => Shape { room: 40, slots: 5 },
            };
            let disk_of = Box::new(disk.clone());
            drop(Store::create_with("new", disk_of, new, shape, None)?);
            let mut content = disk.content().clone();
            content.faults.lies = setting.lies;
            disks.push(content);
        }
        Ok(disks)
    }
}

/// Everything.
#[derive(Debug)]
pub struct World {
    pub(crate) setting: Setting,
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) spares: Arc<Vec<Content>>,
    /// Targets that have been replaced, or those that have replaced them, as far as they are not in `nodes`.
    pub(crate) others: Vec<Option<Arc<Node>>>,
    /// Places whose new target is used up.
    pub(crate) spent: u16,
    /// Places in which the target is that was replaced.
    pub(crate) stale: u16,
    /// Places whose replacement was cut off: the others may believe that another target has the place.
    pub(crate) doubted: u16,
    /// Targets that count as gone since an opening without them, and have not been taken back.
    pub(crate) apart: u16,
    /// Those that are left, as far as they know what counts.
    pub(crate) kin: u16,
    /// Those of `others` that are left.
    pub(crate) other_kin: u16,
    /// There was such an opening: those that are left need not know of replacements.
    pub(crate) parted: bool,
    /// Boots of the targets in use when they were connected.
    pub(crate) links: Vec<Option<u32>>,
    /// The targets whose data counts, as the last export knew.
    pub(crate) trusted: u16,
    pub(crate) volume: Option<Volume>,
    pub(crate) fuse: Fuse,
    pub(crate) model: Model,
    pub(crate) version: u32,
    /// Blocks that the volume is bound to have.
    pub(crate) size: u64,
    /// The target that is damaged. Two are not: nothing is promised then.
    pub(crate) damaged: Option<u8>,
    /// The fuse of the last step has burnt.
    cut: bool,
}

/// Bytes of a sector that a write made.
fn fill(bytes: &mut [u8], block: usize, sector: usize, version: u32) {
    if version == 0 {
        return bytes.fill(0);
    }
    let mark = u64::from(version) << 16 | (block as u64) << 8 | (sector as u64 + 1);
    let mut state = mark;
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        // Every other version does not compress.
        let value = if at == 0 || version.is_multiple_of(2) {
            mark
        } else {
            random(&mut state)
        };
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

/// The write that made a sector's bytes. None: no write has made them.
fn version_of(bytes: &[u8], block: usize, sector: usize) -> Option<u32> {
    let word: [u8; 8] = *bytes.first_chunk()?;
    let version = u32::try_from(u64::from_le_bytes(word) >> 16).ok()?;
    let mut right = vec![0; bytes.len()];
    fill(&mut right, block, sector, version);
    (right == bytes).then_some(version)
}

impl World {
    /// A volume that was never opened.
    #[must_use]
    pub fn new(fresh: &Fresh) -> Self {
        let setting = fresh.setting;
        let fuse = Fuse::new();
        let counts = setting.counts();
        let targets = setting.layout.targets();
        let node = |at: usize| {
            // A target elsewhere survives the export.
            let of_disk = if setting.elsewhere {
                Fuse::new()
            } else {
                fuse.clone()
            };
            Node::new(NAMES[at], Disk::new(fresh.disks[at].clone(), &of_disk))
        };
        Self {
            setting,
            nodes: (0..targets).map(node).collect(),
            spares: Arc::clone(&fresh.spares),
            others: vec![None; targets],
            spent: 0,
            stale: 0,
            doubted: 0,
            apart: 0,
            kin: counts.all(),
            other_kin: 0,
            parted: false,
            links: vec![None; targets],
            trusted: counts.all(),
            volume: None,
            fuse,
            model: Model::new(setting.blocks.into(), counts),
            version: 0,
            size: setting.blocks.into(),
            damaged: None,
            cut: false,
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.setting.counts()
    }

    pub(crate) fn node(&self, target: u8) -> &Arc<Node> {
        &self.nodes[usize::from(target)]
    }

    /// True if an export runs.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.volume.is_some()
    }

    /// True if the last step did not come to its end: it had more operations than the fuse before it allows.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.cut
    }

    /// A number for everything that later steps depend on.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let nodes = self.links.iter().zip(&self.nodes);
        let live = nodes.map(|(link, node)| link.map(|boot| node.serves(boot)));
        let live: Vec<_> = live.collect();
        (
            live,
            self.trusted,
            self.version,
            self.size,
            self.damaged,
            &self.model,
        )
            .hash(&mut hasher);
        self.volume.as_ref().map(Volume::searched).hash(&mut hasher);
        (self.spent, self.stale, self.doubted).hash(&mut hasher);
        (self.apart, self.kin, self.other_kin, self.parted).hash(&mut hasher);
        for node in self.nodes.iter().chain(self.others.iter().flatten()) {
            node.disk.content().hash(&mut hasher);
            let store = node.store().map(|store| store.searched());
            (store, node.disk.own().is_burnt()).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The targets that the volume uses and that answer, and those that are full.
    pub(crate) fn part(&self, volume: &Volume) -> Part {
        let mut used = 0;
        let present = volume.present();
        for (at, node) in self.nodes.iter().enumerate() {
            let serves = self.links[at].is_some_and(|boot| node.serves(boot));
            used |= u16::from(serves && present.iter().any(|name| name == node.name())) << at;
        }
        Part {
            used,
            faulty: 0,
            trusted: trusted_by(volume),
        }
    }

    /// The targets of a step that has ended, and what has failed in it.
    pub(crate) fn ended(&mut self, mut part: Part) -> Part {
        let mut synced = 0;
        for target in 0..self.counts().targets {
            let node = Arc::clone(self.node(target));
            let faults = &mut node.disk.content().faults;
            if faults.met || faults.full || node.disk.own().is_burnt() {
                part.faulty |= 1 << target;
            }
            synced |= u16::from(std::mem::take(&mut faults.synced)) << target;
            if std::mem::take(&mut faults.unsynced) {
                self.model.sync_failed(1 << target);
            }
            faults.met = false;
        }
        self.model.synced(synced);
        part
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.fuse.is_burnt()
    }

    pub(crate) fn end<T>(&self, result: &Result<T>) -> End {
        match result {
            _ if self.is_killed() => End::Killed,
            Ok(_) => End::Done,
            Err(_) => End::Failed,
        }
    }

    /// Carries out a step. One that does not apply has no effect.
    ///
    /// # Errors
    /// A promise is broken.
    pub fn step(&mut self, step: Step) -> Outcome {
        let arms = matches!(step, Step::KillAt(_) | Step::DieAt(..));
        let burnt = |world: &Self| {
            let own = world
                .nodes
                .iter()
                .map(|node| node.disk.own().is_burnt())
                .collect::<Vec<_>>();
            (world.is_killed(), own)
        };
        let before = burnt(self);
        self.apply(step).map_err(|violation| Violation {
            detail: format!("{step}: {}", violation.detail),
            ..violation
        })?;
        self.cut = burnt(self) != before;
        if !arms {
            if self.is_killed() {
                self.close();
            }
            self.fuse.set(u32::MAX);
            for node in &self.nodes {
                // A target that has failed stays so.
                if !node.disk.own().is_burnt() {
                    node.disk.own().set(u32::MAX);
                }
            }
        }
        Ok(())
    }

    fn apply(&mut self, step: Step) -> Outcome {
        let all = self.counts().all();
        let step = match step {
            Step::Restart(mask) => Step::Restart(mask & all),
            Step::Power(mask, keep) => Step::Power(mask & all, keep),
            Step::DieAt(target, _)
            | Step::SyncFails(target)
            | Step::SyncFull(target)
            | Step::Full(target)
            | Step::Space(target)
            | Step::Swap(target)
            | Step::Damage(target, ..)
            | Step::Attach(target)
            | Step::Replace(target)
                if all & 1 << target == 0 =>
            {
                return Ok(());
            }
            step => step,
        };
        match step {
            Step::Open(mask) => return self.open(mask & all, false),
            Step::Alone(mask) => return self.open(mask & all, true),
            Step::Restart(mask) => {
                targets(mask).for_each(|target| self.node(target).stop());
            }
            Step::Power(mask, keep) => {
                for target in targets(mask) {
                    self.node(target).stop();
                    let keep = self.counts().keep_at(target, keep);
                    self.node(target).disk.content().lose_power(keep);
                    self.model.lost_power(1 << target, self.trusted);
                }
            }
            Step::Machine(keep) => {
                self.close();
                return self.apply(Step::Power(self.counts().all(), keep));
            }
            Step::KillAt(at) => self.fuse.set(u32::from(at) + 1),
            Step::DieAt(target, at) => self.node(target).disk.own().set(u32::from(at) + 1),
            Step::SyncFails(target) => {
                self.node(target).disk.content().faults.sync = Some(libc::EIO);
            }
            Step::SyncFull(target) => {
                self.node(target).disk.content().faults.sync = Some(libc::ENOSPC);
            }
            Step::Full(target) => self.node(target).disk.content().faults.full = true,
            Step::Space(target) => self.node(target).disk.content().faults.full = false,
            Step::Swap(target) => self.swap(target),
            Step::Damage(target, nth, damage) => {
                let other = self.damaged.is_some_and(|damaged| damaged != target);
                if self.volume.is_some() || other {
                    return Ok(());
                }
                self.damaged = Some(target);
                self.node(target).stop();
                if !self.node(target).disk.content().damage(nth, damage) {
                    return Ok(());
                }
                self.model.damaged(1 << target, self.trusted);
            }
            _ => return self.request(step),
        }
        Ok(())
    }

    /// A step of a running export.
    fn request(&mut self, step: Step) -> Outcome {
        let Some(volume) = self.volume.take() else {
            return Ok(());
        };
        let done = self.of_volume(&volume, step);
        self.trusted = trusted_by(&volume);
        self.follow();
        self.model.trusts(self.trusted);
        self.volume = Some(volume);
        if matches!(step, Step::Kill | Step::Term) {
            self.close();
        }
        done
    }

    fn of_volume(&mut self, volume: &Volume, step: Step) -> Outcome {
        let blocks = self.setting.blocks;
        match step {
            Step::Write(block) => self.write(volume, block % blocks, None),
            Step::Part(block, sector) => self.write(volume, block % blocks, Some(sector)),
            Step::Zero(block) => self.zero(volume, block % blocks),
            Step::All => self.write_all(volume),
            Step::Flush => self.flush(volume),
            Step::Term => self.terminate(volume),
            Step::Read => self.read(volume),
            Step::Attach(target) => self.attach(volume, target),
            Step::Rebuild => self.rebuild(volume),
            Step::Keep => {
                for target in 0..self.counts().targets {
                    self.attach(volume, target)?;
                }
                self.rebuild(volume)
            }
            Step::Scrub => self.scrub(volume),
            Step::Grow => self.grow(volume),
            Step::Replace(target) => self.replace(volume, target),
            Step::Snap => self.snapshot(volume),
            Step::Unsnap(nth) => self.unsnapshot(volume, nth),
            Step::Merge => self.merge(volume),
            _ => Ok(()),
        }
    }

    /// The export has ended.
    pub(crate) fn close(&mut self) {
        self.volume = None;
        self.links.fill(None);
        if !self.setting.elsewhere {
            self.nodes.iter().for_each(|node| node.close());
        }
    }

    pub(crate) fn connect(&mut self, target: u8) -> Result<Arc<dyn Target>> {
        let node = Arc::clone(self.node(target));
        if !self.setting.elsewhere {
            node.close();
        }
        let fuse = self.setting.elsewhere.then_some(&self.fuse);
        let forgets = self.setting.forgets && target == 0;
        let link = node.connect(fuse, forgets)?;
        self.links[usize::from(target)] = Some(node.boots());
        Ok(link)
    }

    /// True if some that are not damaged decide. If the damage is at the only ones, nobody knows what counts.
    pub(crate) fn decide(&self, part: Part) -> bool {
        let decide = part.trusted & !self.damaged.map_or(0, |damaged| 1 << damaged);
        self.setting.layout == Layout::HALVES || decide != 0
    }

    /// The targets that can acknowledge a request.
    pub(crate) fn acknowledging(&self, part: Part) -> u16 {
        match self.setting.layout == Layout::HALVES {
            true => part.sound(),
            false => self.model.whole(part.sound()),
        }
    }

    /// A request has failed: an error if it must not, or not yet.
    pub(crate) fn refused(
        &self,
        volume: &Volume,
        part: Part,
        readable: bool,
        error: &BlkError,
    ) -> Outcome {
        if self.is_killed() {
            return Ok(());
        }
        let wants_target = matches!(
            error,
            BlkError::TooFewTargets { .. } | BlkError::Lost { .. } | BlkError::Offline(_)
        );
        // One that is there may still have to be completed before it counts.
        let waits = matches!(error, BlkError::TooFewTargets { .. })
            && part.trusted.count_ones() < self.counts().targets.into();
        if wants_target
            && (waits || volume.present().len() < self.setting.layout.targets())
            && !volume.waits_for_return(error)
        {
            return violation("no wait", format!("it fails at once: {error}"));
        }
        // What was acknowledged by others is not given up for one that has returned and lacks some of it.
        let sound = match error {
            BlkError::TooFewTargets { .. } => self.acknowledging(part),
            error if error.is_full() => self.acknowledging(part),
            _ => part.sound(),
        };
        if readable && self.decide(part) && sound.count_ones() >= self.counts().needed {
            return violation("refused", error.to_string());
        }
        Ok(())
    }

    fn block_len(&self) -> usize {
        self.setting.block_len.into()
    }

    fn write(&mut self, volume: &Volume, block: u8, sector: Option<u8>) -> Outcome {
        self.version += 1;
        let (version, block) = (self.version, usize::from(block));
        let half = self.block_len() / 2;
        let sectors = match sector {
            Some(sector) => usize::from(sector)..usize::from(sector) + 1,
            None => 0..2,
        };
        let mut bytes = vec![0; half * sectors.len()];
        for (sector, bytes) in sectors.clone().zip(bytes.chunks_mut(half)) {
            fill(bytes, block, sector, version);
        }
        let part = self.part(volume);
        let result = volume.write((block * 2 * half + sectors.start * half) as u64, &bytes);
        let part = self.ended(part);
        let readable = sector.is_none() || self.model.is_readable(block, part);
        if let Err(error) = &result {
            self.refused(volume, part, readable, error)?;
        }
        let change = |mut value: [u32; 2]| {
            sectors.clone().for_each(|sector| value[sector] = version);
            value
        };
        self.model.write(block, change, part, self.end(&result));
        Ok(())
    }

    fn zero(&mut self, volume: &Volume, block: u8) -> Outcome {
        let (block, length) = (usize::from(block), self.block_len());
        let part = self.part(volume);
        let result = volume.write_zeroes((block * length) as u64, length as u64, false);
        let part = self.ended(part);
        if let Err(error) = &result {
            self.refused(volume, part, true, error)?;
        }
        self.model.write(block, |_| [0; 2], part, self.end(&result));
        Ok(())
    }

    fn write_all(&mut self, volume: &Volume) -> Outcome {
        self.version += 1;
        let (version, half) = (self.version, self.block_len() / 2);
        let blocks = usize::from(self.setting.blocks);
        let mut bytes = vec![0; 2 * half * blocks];
        for (at, bytes) in bytes.chunks_mut(half).enumerate() {
            fill(bytes, at / 2, at % 2, version);
        }
        let part = self.part(volume);
        let result = volume.write(0, &bytes);
        let part = self.ended(part);
        if let Err(error) = &result {
            self.refused(volume, part, true, error)?;
        }
        for block in 0..blocks {
            self.model
                .write(block, |_| [version; 2], part, self.end(&result));
        }
        Ok(())
    }

    fn flush(&mut self, volume: &Volume) -> Outcome {
        let part = self.part(volume);
        let result = volume.flush();
        let part = self.ended(part);
        match &result {
            Ok(()) if !self.is_killed() => self.model.flushed(part),
            Ok(()) => {}
            Err(error) => self.refused(volume, part, self.are_readable(part), error)?,
        }
        Ok(())
    }

    fn grow(&mut self, volume: &Volume) -> Outcome {
        let (now, length) = (volume.geometry().blocks(), self.block_len() as u64);
        // The index has room for eight. Sizes are multiples of 512 bytes.
        let wanted = (now + 1).next_multiple_of(4);
        if wanted > 8 {
            return Ok(());
        }
        let part = self.part(volume);
        let result = volume.grow(wanted * length);
        let part = self.ended(part);
        match result {
            Ok(_) if self.is_killed() => {}
            Ok(size) => self.size = size.blocks(),
            Err(error) => self.refused(volume, part, true, &error)?,
        }
        Ok(())
    }

    /// As SIGTERM does.
    fn terminate(&mut self, volume: &Volume) -> Outcome {
        let part = self.part(volume);
        let result = volume.close();
        let part = self.ended(part);
        match &result {
            Ok(()) if !self.is_killed() => self.model.flushed(part),
            Ok(()) => {}
            Err(error) => self.refused(volume, part, self.are_readable(part), error)?,
        }
        Ok(())
    }

    /// True if all blocks are bound to be readable with these targets.
    pub(crate) fn are_readable(&self, part: Part) -> bool {
        let mut blocks = 0..usize::from(self.setting.blocks);
        blocks.all(|block| self.model.is_readable(block, part))
    }

    fn read(&mut self, volume: &Volume) -> Outcome {
        self.read_blocks(volume, None)?;
        if self.is_killed() {
            return Ok(());
        }
        let there = volume.snapshots().into_iter().map(|one| one.name);
        if let Some(wrong) = self.model.wrong_snapshot(&there.collect::<Vec<_>>()) {
            return violation("snapshot", wrong);
        }
        for (name, first) in self.model.snapshots() {
            self.read_blocks(volume, Some((&name, first)))?;
        }
        if self.is_killed() {
            return Ok(());
        }
        self.read_grown(volume)
    }

    /// Reads the blocks of the volume, or of a snapshot whose first block has this number in the model.
    fn read_blocks(&mut self, volume: &Volume, of: Option<(&str, usize)>) -> Outcome {
        let half = self.block_len() / 2;
        let mut bytes = vec![0xaa; 2 * half];
        for at in 0..usize::from(self.setting.blocks) {
            let part = self.part(volume);
            let offset = (at * 2 * half) as u64;
            let result = match of {
                None => volume.read(offset, &mut bytes),
                Some((name, _)) => volume.read_snapshot(name, offset, &mut bytes),
            };
            let block = at + of.map_or(0, |(_, first)| first);
            let part = self.ended(part);
            if self.is_killed() {
                return Ok(());
            }
            if let Err(error) = result {
                let readable = self.model.is_readable(block, part);
                self.refused(volume, part, readable, &error)?;
                continue;
            }
            let sectors =
                [0, 1].map(|sector| version_of(&bytes[sector * half..][..half], at, sector));
            let [Some(first), Some(second)] = sectors else {
                return violation(
                    "wrong data",
                    format!("block {block} has bytes that nobody wrote"),
                );
            };
            if let Err(detail) = self.model.read(block, [first, second], part) {
                let kind = if detail.starts_with("zeros") {
                    "zeros"
                } else {
                    "wrong data"
                };
                return violation(kind, detail);
            }
        }
        Ok(())
    }

    /// What the volume has grown by is zeros.
    fn read_grown(&mut self, volume: &Volume) -> Outcome {
        let length = self.block_len() as u64;
        let blocks = u64::from(self.setting.blocks)..volume.geometry().blocks();
        for block in blocks {
            let part = self.part(volume);
            let mut bytes = vec![0xaa; self.block_len()];
            let result = volume.read(block * length, &mut bytes);
            let part = self.ended(part);
            match result {
                _ if self.is_killed() => return Ok(()),
                Ok(()) if bytes.iter().any(|byte| *byte != 0) => {
                    return violation("wrong data", format!("block {block} is new"));
                }
                Ok(()) => {}
                // Which target says that it was never written is not followed after damage.
                Err(error) => self.refused(volume, part, self.damaged.is_none(), &error)?,
            }
        }
        Ok(())
    }
}
