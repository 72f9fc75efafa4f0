//! The space of deleted snapshots comes back: the layer below takes over, block by block, what the next one has.
//!
//! Of a block that both have the newer data is written to the lower layer, which no reader sees, and made durable. Only then the
//! upper layer gets a hole. When it has nothing but holes, the lower one takes its place in the table. What a kill or a loss
//! of power leaves is the same data at one of two places.

use super::io::BlockWrite;
use super::stack::Merging;
use super::state::Volume;
use crate::error::Result;
use crate::layers::Layers;
use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};

/// How far the space of deleted snapshots has come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// There is nothing more to do.
    Done,
    /// A further step is due.
    Going,
    /// This many blocks cannot be read: a write of the volume, or the return of a target, mends that.
    Stuck(u64),
}

/// Two layers, the upper of which the lower takes over.
struct Pair {
    layers: Arc<Layers>,
    lower: usize,
}

impl Pair {
    fn of(layers: Arc<Layers>) -> Option<Self> {
        let lower = layers.merging()?;
        (lower + 1 < layers.all.len()).then_some(Self { layers, lower })
    }

    fn upper_id(&self) -> u32 {
        self.layers.all[self.lower + 1].id
    }

    /// Blocks that both cover.
    fn blocks(&self) -> Range<u64> {
        let [lower, upper] = [self.lower, self.lower + 1].map(|at| self.layers.all[at].covered());
        0..lower.min(upper)
    }

    fn places(&self, block: u64) -> Option<(u64, u64)> {
        let [lower, upper] = [self.lower, self.lower + 1];
        let lower = self.layers.all[lower].place(block)?;
        Some((lower, self.layers.all[upper].place(block)?))
    }
}

impl Volume {
    fn merging(&self) -> MutexGuard<'_, Merging> {
        // A panic cannot leave it half changed: a pass begins again.
        self.merging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No step begins any more.
    pub(super) fn stop_merging(&self) {
        self.merging().stopped = true;
    }

    /// Moves some blocks of deleted snapshots, and makes that durable.
    ///
    /// # Errors
    /// A block cannot be read or written now. A later call repeats the step.
    pub fn merge(&self) -> Result<Merge> {
        let mut turn = self.merging();
        let Some(pair) = self.layers().and_then(Pair::of).filter(|_| !turn.stopped) else {
            return Ok(Merge::Done);
        };
        if turn.upper != pair.upper_id() {
            *turn = Merging {
                upper: pair.upper_id(),
                ..Merging::default()
            };
        }
        let (batch, next) = self.next_in_upper(&pair, turn.next)?;
        if !batch.is_empty() {
            let (moved, lost) = self.move_down(&batch, turn.upper)?;
            turn.moved += moved;
            turn.lost += lost;
            turn.next = next;
            return Ok(Merge::Going);
        }
        let (moved, lost) = (turn.moved, turn.lost);
        (turn.next, turn.moved, turn.lost) = (0, 0, 0);
        match (moved, lost) {
            (0, 0) => self.end_merge(turn.upper),
            (0, lost) => Ok(Merge::Stuck(lost)),
            _ => Ok(Merge::Going),
        }
    }

    /// The next blocks that the upper layer has, from `from` on, and the first one behind them.
    fn next_in_upper(&self, pair: &Pair, from: u64) -> Result<(Vec<u64>, u64)> {
        let mut batch = Vec::new();
        let mut blocks = pair.blocks();
        blocks.start = from;
        for segment in pair.layers.all[pair.lower + 1].within(blocks.clone()) {
            let end = segment.place + segment.length;
            let mut at = segment.place;
            while at < end {
                let known = self.know_next(at)?.clamp(at + 1, end);
                for place in self.written_blocks(at..known) {
                    if self.state(place).is_in_layer() {
                        batch.push(segment.first + (place - segment.place));
                        if batch.len() == self.group() {
                            let next = batch.last().map_or(from, |last| last + 1);
                            return Ok((batch, next));
                        }
                    }
                }
                at = known;
            }
        }
        Ok((batch, blocks.end))
    }

    /// Lets the lower layer take over blocks. Returns how many it has, and how many cannot be read.
    fn move_down(&self, batch: &[u64], upper: u32) -> Result<(u64, u64)> {
        let done = self.copy_down(batch, upper);
        let (copied, lost) = match done {
            Err(error) if error.is_full() => {
                // What the lower layer has of them nobody sees.
                self.drop_hidden(batch, upper)?;
                self.copy_down(batch, upper)?
            }
            done => done?,
        };
        self.flush_once()?;
        let _locks = self.locks.of(batch.iter().copied());
        let Some(pair) = self.pair(upper) else {
            return Ok((1, lost));
        };
        let places = copied.iter().filter_map(|(block, _)| pair.places(*block));
        let _writing = self.begin_write(places.map(|(_, place)| place));
        let mut holes = Vec::new();
        for (block, generation) in &copied {
            let Some((_, place)) = pair.places(*block) else {
                continue;
            };
            // A write may have replaced it since.
            if self.state(place).generation == *generation {
                holes.push(self.new_hole(place));
            }
        }
        self.write_blocks(holes)?;
        Ok((copied.len() as u64, lost))
    }

    /// The pair, if it still is one. The caller has locks of blocks.
    fn pair(&self, upper: u32) -> Option<Pair> {
        let pair = self.layers().and_then(Pair::of)?;
        (pair.upper_id() == upper).then_some(pair)
    }

    /// Writes blocks of the upper layer to the lower one. Returns them with their generations, and the number of those that
    /// cannot be read.
    fn copy_down(&self, batch: &[u64], upper: u32) -> Result<(Vec<(u64, u64)>, u64)> {
        let _locks = self.locks.of(batch.iter().copied());
        let mut copied = Vec::new();
        let mut lost = 0;
        let Some(pair) = self.pair(upper) else {
            return Ok((copied, lost));
        };
        let places = batch.iter().filter_map(|block| pair.places(*block));
        let _writing = self.begin_write(places.map(|(below, _)| below));
        let mut content = vec![0; self.geometry().block_len()];
        let mut writes: Vec<BlockWrite> = Vec::new();
        for block in batch {
            let Some((below, place)) = pair.places(*block) else {
                continue;
            };
            self.know(below..below + 1)?;
            let state = self.state(place);
            if !state.is_in_layer() {
                continue;
            }
            match self.read_block(place, &mut content) {
                Ok(()) => {
                    writes.push(self.new_write(below, &content, false));
                    copied.push((*block, state.generation));
                }
                Err(error)
                    if error.wants_target() && self.targets().iter().any(Option::is_none) =>
                {
                    return Err(error);
                }
                Err(_) => lost += 1,
            }
        }
        self.write_blocks(writes)?;
        Ok((copied, lost))
    }

    /// Gives the space back of what the lower layer has under blocks of the upper one.
    fn drop_hidden(&self, batch: &[u64], upper: u32) -> Result<()> {
        // The upper ones must be durable before.
        self.flush_once()?;
        {
            let _locks = self.locks.of(batch.iter().copied());
            let Some(pair) = self.pair(upper) else {
                return Ok(());
            };
            let places = batch.iter().filter_map(|block| pair.places(*block));
            let _writing = self.begin_write(places.map(|(below, _)| below));
            let mut holes = Vec::new();
            for block in batch {
                let Some((below, place)) = pair.places(*block) else {
                    continue;
                };
                let (hidden, shown) = (self.state(below), self.state(place));
                if shown.is_in_layer() && hidden.is_in_layer() && !hidden.zero {
                    holes.push(self.new_hole(below));
                }
            }
            self.write_blocks(holes)?;
        }
        // The first one makes the holes durable, the second one frees what they replace.
        self.flush_once()?;
        self.flush_once()
    }

    /// The upper layer has nothing any more: the lower one takes its place.
    fn end_merge(&self, upper: u32) -> Result<Merge> {
        let _turn = self.arrival();
        // Its places may be used for another layer then, and must not show anything.
        self.flush_once()?;
        let _all = self.locks.all();
        let Some(pair) = self.pair(upper) else {
            return Ok(Merge::Going);
        };
        for segment in pair.layers.all[pair.lower + 1].within(pair.blocks()) {
            let mut places = self.written_blocks(segment.place..segment.place + segment.length);
            if places.any(|place| self.state(place).is_in_layer()) {
                return Ok(Merge::Going);
            }
        }
        self.adopt(pair.layers.merged(pair.lower))?;
        Ok(Merge::Going)
    }
}
