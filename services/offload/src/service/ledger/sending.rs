//! The send side of a rank that arrives: its blocks are appended to the offers to their SPs. The offer to this SP leaves with
//! the others, and stays inside the process.

use super::{CallId, Ledger, OFFER_BLOCKS};
use crate::service::actions::Buffers;
use crate::service::outbox::{Part, sends_once};
use crate::service::spacing::{Spacing, meet};
use crate::wire::runs::{Run, Runs};
use crate::wire::{Blocks, Narrow, Record, Wide, blocks_of};

/// Maximum number of runs of a send side that are divided among the SPs as runs. More are divided block by block.
const RUNS_MAX: usize = 8;

const NO_RANK: &str = "it sends to a rank that is not there";
const NO_BYTES: &str = "bytes of a short block are missing";
const MORE_BYTES: &str = "there are more bytes than short blocks";

impl Ledger {
    /// Appends a rank's blocks to the offers to their SPs. Returns the number of these SPs.
    pub(super) fn send_all(
        &mut self,
        call: CallId,
        source: u32,
        sends: Blocks<'_>,
        short: &[u8],
        buffers: Buffers<'_>,
    ) -> Result<usize, &'static str> {
        if let Blocks::Runs(runs) = sends
            && let Some(run) = runs.only().filter(|_| short.is_empty())
            && let Some(targets) = self.note(call, source, run, buffers)
        {
            return Ok(targets);
        }
        self.states[call].set = None;
        match sends {
            Blocks::Narrow(records) => self.send(call, source, records, short, buffers),
            Blocks::Wide(records) => self.send(call, source, records, short, buffers),
            Blocks::Runs(runs) => self.send_runs(call, source, runs, short, buffers),
        }
    }

    fn send<R: Record>(
        &mut self,
        call: CallId,
        source: u32,
        records: &[R],
        mut short: &[u8],
        buffers: Buffers<'_>,
    ) -> Result<usize, &'static str> {
        if !sends_once(records) {
            return Err("it sends two blocks to one rank");
        }
        let queue = &mut self.states[call].queue;
        // Capacity for an even distribution of ranks over the SPs.
        let per_rank = records.len().div_ceil(self.services.max(1)).max(1);
        let sources = self.rank_of.len().min(OFFER_BLOCKS.div_ceil(per_rank));
        self.targets.clear();
        for record in records {
            let block = record.block();
            let to = self.service_of.get(block.peer as usize);
            let to = *to.ok_or(NO_RANK)?;
            let mut data = None;
            if block.length < self.direct_min {
                // The length is below direct_min, so it fits.
                let length = usize::try_from(block.length).map_err(|_| "a block is too long")?;
                let (bytes, rest) = short.split_at_checked(length).ok_or(NO_BYTES)?;
                data = Some(bytes);
                short = rest;
            }
            let draft = &mut queue.outboxes[to as usize].draft;
            if !draft.is_open() {
                self.targets.push(to);
                if draft.blocks() == 0 {
                    let ranks = self.spare_ranks.pop().unwrap_or_default();
                    let memory = self.spare_bytes.pop().unwrap_or_default();
                    self.spare_capacity -= memory.capacity();
                    let bytes = sources * per_rank * size_of::<R>();
                    draft.reserve(ranks, memory, sources, bytes);
                }
                draft.begin::<R>(source, buffers.base);
            }
            draft.block(record, data);
        }
        if !short.is_empty() {
            return Err(MORE_BYTES);
        }
        // The SPs in rotation: the first sends of the SPs have different targets.
        let me = self.me;
        self.targets.sort_unstable_by_key(|to| (*to < me, *to));
        for to in &self.targets {
            queue.end_part(*to, buffers.key);
        }
        Ok(self.targets.len())
    }

    /// As [`Ledger::send`]. The work follows the number of SPs, not that of the blocks.
    fn send_runs(
        &mut self,
        call: CallId,
        source: u32,
        runs: Runs<'_>,
        short: &[u8],
        buffers: Buffers<'_>,
    ) -> Result<usize, &'static str> {
        let size = self.service_of.len();
        let mut expect = 0;
        for run in runs.iter() {
            if run.block(run.count - 1).peer as usize >= size {
                return Err(NO_RANK);
            }
            if run.length < self.direct_min {
                // Fewer than 2^32 blocks of less than 2^32 bytes.
                expect += run.length * u64::from(run.count);
            }
        }
        if expect != short.len() as u64 {
            return Err(if expect > short.len() as u64 {
                NO_BYTES
            } else {
                MORE_BYTES
            });
        }
        if runs.blocks() < self.services || runs.runs() > RUNS_MAX || !self.can_divide(runs) {
            return self.send_blocks(call, source, runs, short, buffers);
        }
        if let Some(run) = runs.only().filter(|_| short.is_empty()) {
            let targets = self.send_run(call, source, run, buffers);
            self.keep_side(call, source, (run, buffers), targets);
            return Ok(targets);
        }
        let mut part = std::mem::take(&mut self.part);
        let mut targets = 0;
        // The SPs in rotation: the first sends of the SPs have different targets.
        let services = u32::try_from(self.services).expect("no more than there are ranks");
        for to in (self.me..services).chain(0..self.me) {
            self.divide(to, runs, short, &mut part);
            if part.runs.is_empty() {
                continue;
            }
            targets += 1;
            let queue = &mut self.states[call].queue;
            let draft = &mut queue.outboxes[to as usize].draft;
            if draft.sources() == 0 {
                let ranks = self.spare_ranks.pop().unwrap_or_default();
                let memory = self.spare_bytes.pop().unwrap_or_default();
                self.spare_capacity -= memory.capacity();
                draft.reserve(ranks, memory, 0, 0);
            }
            draft.runs(source, buffers.base, &part.runs, &part.short, buffers.key);
            queue.added(to);
        }
        self.part = part;
        Ok(targets)
    }

    /// As [`Ledger::send_runs`], for one run of blocks for the device.
    pub(super) fn send_run(
        &mut self,
        call: CallId,
        source: u32,
        run: &Run,
        buffers: Buffers<'_>,
    ) -> usize {
        let queue = &mut self.states[call].queue;
        let (before, from_me) = self.spaced.split_at(self.me as usize);
        let (me, mut targets) = (self.me, 0);
        for (to, spaced) in (me..).zip(from_me).chain((0..).zip(before)) {
            let Some((first, apart, count)) = meet(run, *spaced) else {
                continue;
            };
            targets += 1;
            let draft = &mut queue.outboxes[to as usize].draft;
            if draft.sources() == 0 {
                let ranks = self.spare_ranks.pop().unwrap_or_default();
                let memory = self.spare_bytes.pop().unwrap_or_default();
                self.spare_capacity -= memory.capacity();
                draft.reserve(ranks, memory, 0, 0);
            }
            let part = run.part(first, apart, count);
            draft.run(source, buffers.base, part, buffers.key);
            queue.added(to);
        }
        targets
    }

    /// As [`Ledger::send_runs`], block by block.
    fn send_blocks(
        &mut self,
        call: CallId,
        source: u32,
        runs: Runs<'_>,
        short: &[u8],
        buffers: Buffers<'_>,
    ) -> Result<usize, &'static str> {
        let narrow: Option<Vec<Narrow>> = blocks_of(runs).map(|block| block.narrow()).collect();
        if let Some(records) = narrow {
            return self.send(call, source, &records, short, buffers);
        }
        let records: Vec<Wide> = blocks_of(runs).map(|block| block.wide()).collect();
        self.send(call, source, &records, short, buffers)
    }

    /// Whether the blocks of these runs for each SP are runs.
    pub(super) fn can_divide(&self, runs: Runs<'_>) -> bool {
        match self.spacing {
            Spacing::None => false,
            Spacing::Even => runs.iter().all(|run| run.step == 1),
            Spacing::Neighbours => true,
        }
    }

    /// The blocks of runs for an SP.
    fn divide(&self, to: u32, runs: Runs<'_>, short: &[u8], part: &mut Part) {
        part.runs.clear();
        part.short.clear();
        let mut data = short;
        for run in runs.iter() {
            let mut bytes: &[u8] = &[];
            if run.length < self.direct_min {
                let all = run.length * u64::from(run.count);
                // The caller has compared the sum with the bytes that there are.
                let all = usize::try_from(all).unwrap_or(0).min(data.len());
                (bytes, data) = data.split_at(all);
            }
            let Some((first, apart, count)) = meet(&run, self.spaced[to as usize]) else {
                continue;
            };
            part.runs.push(run.part(first, apart, count));
            if bytes.is_empty() {
                continue;
            }
            let length = bytes.len() / run.count as usize;
            let (first, count) = (first as usize, count as usize);
            if apart == 1 {
                let range = first * length..(first + count) * length;
                part.short.extend_from_slice(&bytes[range]);
            } else {
                let blocks = bytes.chunks_exact(length).skip(first);
                for block in blocks.step_by(apart as usize).take(count) {
                    part.short.extend_from_slice(block);
                }
            }
        }
    }
}
