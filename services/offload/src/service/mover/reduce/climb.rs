//! Reductions of vectors that are short for so many SPs: the messages of an SP grow with the logarithm of the number of SPs.
//!
//! The SPs form a tree, binomial by default. On the way up, the rank that stands for an SP gets the vectors of the SPs below, reduces
//! them with that of its own SP, and gives the result to the SP above. On the way down, the result of the first SP takes the tree of a
//! broadcast, and each rank keeps its part of it; if one rank alone wants it, it goes straight there. The steps of the ledger have
//! the number of the level in place of the window's: in those of level *L*, places of level *L - 1* and *L* meet.
//!
//! Vectors from `direct_min` on are read. On the way up the SPs read them from each other's memory, on the way down from the
//! receive buffer of the rank that stands for the SP above, at the first SP from the SP's memory.

use super::{Buffers, Entered, From, Mover, Receive, take_of, wide};
use crate::error::Result;
use crate::service::imports::Lent;
use crate::service::transport::Transport;
use crate::service::vectors::{Goal, Phase, Stepped, Vector};
use crate::wire::{Block, Blocks};

impl<T: Transport> Mover<T> {
    /// The vectors of this SP's ranks are reduced: the rank that stands for them gets those of the SPs below.
    pub(super) fn climb(&mut self, transport: &T, vector: &mut Vector<T>) -> Result<()> {
        let tree = vector.tree();
        let below = tree.below(vector.place);
        let below: Vec<u32> = below.map(|place| tree.stands_for(place)).collect();
        if below.is_empty() {
            return self.hand_up(transport, vector);
        }
        let level = tree.level(vector.place) + 1;
        self.meet_level(transport, vector, (level, Phase::Scatter), &[], &below)
    }

    /// The vectors of an SP and of all below it are reduced.
    fn hand_up(&mut self, transport: &T, vector: &mut Vector<T>) -> Result<()> {
        let tree = vector.tree();
        match tree.above(vector.place) {
            Some(above) => {
                let level = tree.level(vector.place);
                let above = [tree.stands_for(above)];
                self.meet_level(transport, vector, (level, Phase::Scatter), &above, &[])
            }
            None => self.pass_down(transport, vector).map(drop),
        }
    }

    /// A rank waits for the result.
    fn wait_for_result(&mut self, transport: &T, vector: &mut Vector<T>) -> Result<()> {
        if let Some(sum) = take_of(&mut vector.sums, 0) {
            self.reducing.segments.put_back(sum);
        }
        if matches!(vector.goal, Goal::Root(_)) {
            return self.gather(transport, vector, 0);
        }
        let tree = vector.tree();
        let level = tree.level(vector.place);
        let (level, from) = match tree.above(vector.place).filter(|_| vector.stands()) {
            Some(above) => (level, tree.stands_for(above)),
            None => (level + 1, vector.group().first),
        };
        self.meet_level(transport, vector, (level, Phase::Gather), &[], &[from])
    }

    /// The rank that stands for an SP has the result, and passes it on. Returns true if nobody is below.
    fn pass_down(&mut self, transport: &T, vector: &mut Vector<T>) -> Result<bool> {
        if matches!(vector.goal, Goal::Root(_)) {
            return self.gather(transport, vector, 0).map(|()| false);
        }
        let tree = vector.tree();
        let level = tree.level(vector.place) + 1;
        let below = tree.below(vector.place);
        let below = below.map(|place| tree.stands_for(place));
        let others = vector.ours.iter().copied();
        let others = others.filter(|other| *other != vector.rank);
        let mut to: Vec<u32> = below.chain(others).collect();
        if to.is_empty() {
            return Ok(true);
        }
        // The result is in the SP's memory: the rank gets it as the others do.
        let from = match vector.results.is_empty() {
            true => None,
            false => Some(vector.rank),
        };
        to.extend(from);
        self.meet_level(
            transport,
            vector,
            (level, Phase::Gather),
            &to,
            from.as_slice(),
        )?;
        Ok(false)
    }

    /// A step of the tree is complete for a rank. Returns what it has got if its reduction is complete.
    pub(super) fn climbed_to(
        &mut self,
        transport: &T,
        vector: &mut Vector<T>,
        mut stepped: Stepped,
    ) -> Result<Option<Stepped>> {
        let (level, phase) = Phase::of(stepped.collective.step);
        let is_own_level = vector.stands() && level == vector.tree().level(vector.place);
        match phase {
            Phase::Own => self.wait_for_result(transport, vector)?,
            Phase::Scatter if is_own_level => self.wait_for_result(transport, vector)?,
            Phase::Scatter => {
                vector.fold_short(stepped)?;
                self.hand_up(transport, vector)?;
            }
            Phase::Gather if matches!(vector.goal, Goal::Root(_)) => return Ok(Some(stepped)),
            Phase::Gather => {
                if !stepped.bytes.is_empty() {
                    vector.short = Some(std::mem::take(&mut stepped.bytes));
                }
                if let Some(result) = take_of(&mut vector.results, 0) {
                    self.reducing.segments.put_back(result);
                }
                if !is_own_level || self.pass_down(transport, vector)? {
                    (stepped.short, stepped.bytes) = vector.part();
                    return Ok(Some(stepped));
                }
            }
        }
        Ok(None)
    }

    /// Enters a step of the tree: the vector goes to some ranks, or vectors come from some.
    fn meet_level(
        &mut self,
        transport: &T,
        vector: &Vector<T>,
        (level, phase): (u32, Phase),
        to: &[u32],
        from: &[u32],
    ) -> Result<()> {
        let length = vector.length();
        let block = |(at, peer): (u64, &u32)| Block {
            peer: *peer,
            offset: at * length,
            length,
        };
        let mut sends: Vec<Block> = to.iter().map(|peer| block((0, peer))).collect();
        sends.sort_unstable_by_key(|block| block.peer);
        // The SP's own vector is before those of the SPs below.
        let first = u64::from(vector.climbs_long() && phase == Phase::Scatter);
        let receives: Vec<Block> = (first..).zip(from).map(block).collect();
        let mut staged = vector.sums.iter().chain(&vector.results);
        let buffers = match staged.next() {
            Some((_, staged)) => Buffers {
                base: transport.address(&staged.memory),
                key: staged.key.as_ref(),
            },
            None => Buffers {
                base: vector.receive_base,
                key: vector.receive.as_ref().map_or(&[], Lent::key),
            },
        };
        if phase == Phase::Scatter {
            let sides = (sends, receives);
            return self.enter_staged(transport, vector, (level, phase), sides, buffers);
        }
        let bytes = vector.short.as_deref().unwrap_or_default();
        let receive = vector.receive.clone().filter(|_| !from.is_empty());
        let entered = Entered::new(None, receive.map(Receive::Shared), self.now());
        let step = vector.step(level, phase);
        self.agree(step, vector.whole)?;
        self.enter(
            step,
            (vector.rank, 0),
            (
                Blocks::Wide(&wide(&sends)),
                Blocks::Wide(&wide(&receives)).into(),
            ),
            &bytes.repeat(to.len()),
            From::Other(buffers),
            entered,
        )
        .map(drop)
    }
}
