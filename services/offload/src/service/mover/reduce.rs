//! Allreduces, reduces and reduce-scatters of a job at one SP.
//!
//! Each window of the vector takes three steps, which are collectives of the ledger like those of the ranks. In step 1 an SP
//! reads the windows of its own ranks into memory of its own, and reduces them. One of these ranks stands for them in step 2:
//! so the network carries one window per SP, whatever the number of its ranks. An SP with one rank omits step 1. Step 2 is
//! a reduce-scatter: the SP of each segment's owner reads the segment from all SPs and reduces it. Step 3 distributes the
//! results: the SPs read them from there into the receive buffers of their ranks. Vectors that are
//! short for so many SPs take a tree in place of steps 2 and 3 (`climb`).
//!
//! A segment of a receive buffer changes only after every SP has read that segment of all send buffers, so an allreduce in
//! place needs no copy. The ranks of an SP are reduced in their order, then the SPs in theirs or in the tree's, and once for all
//! ranks: all ranks get the same bits.
//!
//! The ordinary reductions of a rank on a communicator run one after the other, in the order of their turns, and each has
//! two windows under way. What one of them needs at other SPs has therefore never to wait behind a later one. Members may
//! start persistent ones in different orders, so those run beside each other. `service::segments` has the memory.

use super::{Buffers, Entered, From, Mover, Receive, failed, packed};
use crate::error::{OffloadError, Result};
use crate::service::actions::{Receives, Short};
use crate::service::ledger::Ledger;
use crate::service::segments::{Gathering, Place, Staged};
use crate::service::spacing::place_of;
use crate::service::transport::Transport;
use crate::service::turns::Line;
use crate::service::vectors::{Goal, Phase, Stepped, Vector};
use crate::service::windows::{Division, WINDOWS_AT_ONCE};
use crate::wire::runs::Runs;
use crate::wire::{Block, Blocks, Collective, Contribution, DpuRts, ExportRef, Record, Wide};
use std::collections::VecDeque;

mod climb;

/// Bytes that a reduction of a rank takes beside its members: its state, and handles of UCX.
const VECTOR_HELD: usize = 1024;

impl<T: Transport> Mover<T> {
    /// A local rank enters a reduction.
    pub(super) fn reduce(&mut self, transport: &T, entry: &Contribution<'_>) -> Result<()> {
        let (collective, rank) = (entry.collective, entry.rank);
        let wrong = |what: &str| {
            failed(format!(
                "rank {rank} breaks the protocol in {collective}: {what}"
            ))
        };
        let local = self.ledger.local(rank);
        let local = local.ok_or_else(|| wrong("it is not this service's"))?;
        let groups = self.ledger.members(entry.members).map_err(wrong)?;
        let place = place_of(&groups, self.me);
        let place = place.filter(|_| Ledger::has_member(entry.members, rank));
        let place = place.ok_or_else(|| wrong("it is not a member"))?;
        let goal = Goal::new(entry).map_err(wrong)?;
        let element = entry.reduction.element_size() as u64;
        let division = Division::new(entry.length, element, groups.len(), self.limits.direct_min);
        let division = division.ok_or_else(|| wrong("its vector is too long"))?;
        let is_short = entry.length < self.limits.direct_min;
        let expect = if is_short { entry.length } else { 0 };
        if entry.short.len() as u64 != expect {
            return Err(wrong("it has sent another number of bytes than expected"));
        }
        let wanted = goal.range_of(rank, entry.length).length;
        let holds = |export: Option<ExportRef<'_>>, length: u64| match is_short {
            true => export.is_none(),
            false => export.is_some_and(|export| export.length >= length),
        };
        let from = entry.send_memory.or(entry.receive_memory);
        if !holds(from, entry.length) || wanted > 0 && !holds(entry.receive_memory, wanted) {
            return Err(wrong("its buffer is shorter than its vector"));
        }
        let stands = groups[place].first == rank;
        let ours = match stands {
            true => self.ledger.local_members(entry.members),
            false => Vec::new(),
        };
        let (send, receive) =
            self.import_both(transport, rank, entry.send_memory, entry.receive_memory)?;
        packed(transport, send.as_ref().or(receive.as_ref()))?;
        // Each member gets another range of a long vector, straight from its owner.
        let climbs = division.is_tree(self.limits.direct_min)
            && (is_short || !matches!(goal, Goal::Ranges(_)));
        let division = match climbs {
            true => division.undivided(),
            false => division,
        };
        if climbs && !is_short {
            // Ranks below read from there.
            packed(transport, receive.as_ref())?;
        }
        let bytes = VECTOR_HELD + size_of_val(&groups[..]) + goal.bytes() + entry.short.len();
        let vector = Vector {
            collective,
            rank,
            local,
            reduction: entry.reduction,
            division,
            whole: entry.whole,
            // A job has fewer than 2^16 ranks.
            members: u32::try_from(entry.members.len()).unwrap_or(u32::MAX),
            climbs,
            radix: self.limits.radix.of_broadcast(),
            groups,
            place,
            ours,
            goal,
            base: from.map_or(0, |export| export.address),
            receive_base: entry.receive_memory.map_or(0, |export| export.address),
            send,
            receive,
            short: is_short.then(|| entry.short.to_vec()),
            begun: 0,
            complete: 0,
            sums: Vec::new(),
            results: Vec::new(),
            pieces: Short::default(),
            since: self.now(),
            bytes,
        };
        if vector.stands() && vector.strange().any(|step| self.ledger.has_call(step)) {
            return Err(unlike(collective));
        }
        let line = Line::new(local, collective, entry.turn);
        let begins = match entry.turn {
            None => self.reducing.add(line, vector),
            Some(turn) => self
                .reducing
                .add_in_turn(line, (turn, entry.open), vector)
                .map_err(wrong)?,
        };
        if begins {
            self.begin_windows(transport, line)?;
        }
        Ok(())
    }

    /// Checks that the reduction of a rank, if it is under way, has the step of an offer for it.
    pub(super) fn check_offer(&self, offer: &DpuRts<'_>) -> Result<()> {
        let of = offer.collective;
        if of.step == 0 || of.is_level() {
            return Ok(());
        }
        let peer = offer.parts.first().and_then(|part| part.blocks.peer());
        let Some(local) = peer.and_then(|rank| self.ledger.local(rank)) else {
            return Ok(());
        };
        let line = self.reducing.lines.get(&self.reducing.line_of(local, of));
        let vector = line.and_then(|line| line.iter().find(|vector| vector.is_of(of)));
        match vector.is_some_and(|vector| vector.strange().any(|step| step == of)) {
            true => Err(unlike(of)),
            false => Ok(()),
        }
    }

    /// Begins as many windows of the first reduction of a line as may be under way.
    fn begin_windows(&mut self, transport: &T, line: Line) -> Result<()> {
        let Some(mut vector) = self.first_of(line) else {
            return Ok(());
        };
        while vector.begun < vector.division.windows()
            && vector.begun - vector.complete < WINDOWS_AT_ONCE
        {
            let index = vector.begun;
            vector.begun += 1;
            // In a tree, SPs read long vectors from other SPs' memory.
            match vector.group().count == 1 && !vector.climbs_long() {
                true => self.reduce_with_others(transport, &mut vector, index)?,
                false => self.gather_own(transport, &vector, index)?,
            }
        }
        self.keep_first(line, vector);
        Ok(())
    }

    /// Step 1 of a window.
    fn gather_own(&mut self, transport: &T, vector: &Vector<T>, index: u32) -> Result<()> {
        let window = vector.division.window(index);
        let length = window.length();
        let send = Block {
            peer: vector.group().first,
            offset: 0,
            length,
        };
        let receives = (0..).zip(&vector.ours).map(|(at, peer)| Block {
            peer: *peer,
            offset: at * length,
            length,
        });
        let receives = receives.collect();
        let buffers = Buffers {
            base: vector.base.wrapping_add(window.start()),
            key: vector.key(),
        };
        let place = (index, Phase::Own);
        self.enter_staged(transport, vector, place, (vec![send], receives), buffers)
    }

    /// The window of this SP's ranks is reduced.
    fn reduce_with_others(
        &mut self,
        transport: &T,
        vector: &mut Vector<T>,
        index: u32,
    ) -> Result<()> {
        match vector.climbs {
            true => self.climb(transport, vector),
            false => self.scatter(transport, vector, index),
        }
    }

    /// Step 2 of a window, at the rank that stands for its SP.
    fn scatter(&mut self, transport: &T, vector: &Vector<T>, index: u32) -> Result<()> {
        let window = vector.division.window(index);
        let peers = || vector.groups.iter().map(|group| group.first).enumerate();
        let sends = peers().filter_map(|(at, peer)| {
            let segment = window.segment(at)?;
            Some(Block {
                peer,
                offset: segment.offset - window.start(),
                length: segment.length,
            })
        });
        let mine = window.segment(vector.place).map_or(0, |mine| mine.length);
        let receives = peers().map(|(at, peer)| Block {
            peer,
            offset: at as u64 * mine,
            length: mine,
        });
        let sum = vector.sums.iter().find(|(of, _)| *of == index);
        let buffers = match sum {
            Some((_, sum)) => Buffers {
                base: transport.address(&sum.memory),
                key: sum.key.as_ref(),
            },
            None => Buffers {
                base: vector.base.wrapping_add(window.start()),
                key: vector.key(),
            },
        };
        let sides = (sends.collect(), receives.collect());
        self.enter_staged(transport, vector, (index, Phase::Scatter), sides, buffers)
    }

    /// Enters a step that gets its blocks in memory of this SP, in a tree behind the SP's own vector.
    fn enter_staged(
        &mut self,
        transport: &T,
        vector: &Vector<T>,
        (index, phase): (u32, Phase),
        (sends, receives): (Vec<Block>, Vec<Block>),
        buffers: Buffers<'_>,
    ) -> Result<()> {
        let (sends, receives) = (wide(&sends), wide(&receives));
        let end = |record: &Wide| record.block().offset + record.block().length;
        let length = match vector.short {
            Some(_) => 0,
            None => receives.iter().map(end).max().unwrap_or(0),
        };
        let staged = match length {
            0 => None,
            _ => self.early(transport, length)?,
        };
        let is_late = length > 0 && staged.is_none();
        let entered = Entered::new(None, staged.map(Receive::Staged), self.now());
        let side = match is_late {
            true => Receives::Later(receives.len()),
            false => Receives::Now(Blocks::Wide(&receives)),
        };
        let together = match phase {
            Phase::Own => vector.group().count,
            Phase::Scatter | Phase::Gather => u32::from(!vector.climbs),
        };
        self.agree(vector.step(index, phase), vector.whole)?;
        let place = self.enter(
            vector.step(index, phase),
            (vector.rank, together),
            (Blocks::Wide(&sends), side),
            if sends.is_empty() {
                &[]
            } else {
                vector.short.as_deref().unwrap_or(&[])
            },
            From::Other(buffers),
            entered,
        )?;
        if is_late {
            let gathering = Gathering { receives, length };
            self.reducing.segments.wait(place, gathering);
        }
        Ok(())
    }

    /// Step 3 of a window.
    pub(super) fn gather(
        &mut self,
        transport: &T,
        vector: &mut Vector<T>,
        index: u32,
    ) -> Result<()> {
        let window = vector.division.window(index);
        let mine = window.segment(vector.place).filter(|_| vector.stands());
        let sends = vector.goal.sends(mine);
        let range = vector.goal.range_of(vector.rank, vector.length());
        let groups = vector.groups.iter().enumerate();
        let receives = groups.filter_map(|(at, group)| {
            let (offset, length) = range.common(&window.segment(at)?);
            Some(Block {
                peer: group.first,
                offset: offset - range.offset,
                length,
            })
        });
        let receives: Vec<Block> = receives.collect();
        let mut result = vector.results.iter_mut().find(|(of, _)| *of == index);
        let mut bytes = vector.short.as_deref();
        if let Some((_, staged)) = &mut result {
            bytes = transport.bytes(&mut staged.memory).map(|bytes| &*bytes);
        }
        let mut short = Vec::new();
        for run in sends
            .iter()
            .filter(|run| run.length < self.limits.direct_min)
        {
            for block in (0..run.count).map(|at| run.block(at)) {
                let number = |number| usize::try_from(number).ok();
                let end = number(block.offset + block.length);
                let data = number(block.offset).zip(end);
                let data = data.and_then(|(from, end)| bytes?.get(from..end));
                let data = data.ok_or_else(|| failed("a result without its bytes"))?;
                short.extend_from_slice(data);
            }
        }
        let result = vector.results.iter().find(|(of, _)| *of == index);
        let buffers = Buffers {
            base: result.map_or(0, |(_, staged)| transport.address(&staged.memory)),
            key: result.map_or(&[], |(_, staged)| staged.key.as_ref()),
        };
        let receives = wide(&receives);
        let receive = vector.receive.clone().map(Receive::Shared);
        let entered = Entered::new(None, receive, self.now());
        self.agree(vector.step(index, Phase::Gather), vector.whole)?;
        self.enter(
            vector.step(index, Phase::Gather),
            (vector.rank, vector.group().count),
            (
                Blocks::Runs(Runs::of(&sends)),
                Blocks::Wide(&receives).into(),
            ),
            &short,
            From::Other(buffers),
            entered,
        )
        .map(drop)
    }

    /// A step of a rank is complete.
    pub(super) fn stepped(&mut self, transport: &T, stepped: Stepped) -> Result<()> {
        let collective = stepped.collective;
        let line = self.reducing.line_of(stepped.local, collective);
        let mut vector = self.vector_of(line, collective)?;
        let (index, phase) = Phase::of(collective.step);
        match phase {
            Phase::Own if vector.stands() => {
                vector.fold_short(stepped)?;
                self.reduce_with_others(transport, &mut vector, index)?;
            }
            _ if vector.climbs => {
                if let Some(part) = self.climbed_to(transport, &mut vector, stepped)? {
                    return self.gathered_window(transport, line, vector, part);
                }
            }
            Phase::Own => self.gather(transport, &mut vector, index)?,
            Phase::Scatter => {
                vector.fold_short(stepped)?;
                if let Some(sum) = take_of(&mut vector.sums, index) {
                    self.reducing.segments.put_back(sum);
                }
                self.gather(transport, &mut vector, index)?;
            }
            Phase::Gather => return self.gathered_window(transport, line, vector, stepped),
        }
        self.keep_first(line, vector);
        Ok(())
    }

    /// A window of a rank is complete.
    fn gathered_window(
        &mut self,
        transport: &T,
        line: Line,
        mut vector: Vector<T>,
        stepped: Stepped,
    ) -> Result<()> {
        let (index, _) = Phase::of(stepped.collective.step);
        if let Some(result) = take_of(&mut vector.results, index) {
            self.reducing.segments.put_back(result);
        }
        vector.pieces.blocks.extend(stepped.short);
        vector.pieces.bytes.extend(stepped.bytes);
        vector.complete += 1;
        if vector.complete < vector.division.windows() {
            self.keep_first(line, vector);
        } else {
            self.reducing.count -= 1;
            self.reducing.vector_bytes -= vector.bytes;
            if self
                .reducing
                .lines
                .get(&line)
                .is_some_and(VecDeque::is_empty)
            {
                self.reducing.lines.remove(&line);
                self.reducing.turns.is_idle(line);
            }
            self.all_reduced(transport, vector)?;
        }
        self.begin_windows(transport, line)
    }

    /// The blocks of step 1 or 2 are there: reduces them, if the step has memory for them. The memory is free before the step
    /// is complete.
    pub(super) fn received(
        &mut self,
        transport: &T,
        collective: Collective,
        (call, local): Place,
    ) -> Result<()> {
        let lost = || failed(format!("{collective} without its segments"));
        let seats = self.entered.get_mut(call);
        let entered = seats.and_then(|seats| seats.all.get_mut(local)?.as_mut());
        let Some(Receive::Staged(mut staged)) = entered.and_then(|of| of.receive.take()) else {
            return Ok(());
        };
        let line = self.reducing.line_of(local, collective);
        let mut vector = self.vector_of(line, collective)?;
        let (index, phase) = Phase::of(collective.step);
        let is_own = phase == Phase::Own;
        // In a tree it is the number of a level.
        let index = if vector.climbs { 0 } else { index };
        let window = vector.division.window(index);
        let (length, count) = match phase {
            Phase::Own => (window.length(), vector.ours.len()),
            _ if vector.climbs => (window.length(), vector.with_below()),
            Phase::Scatter | Phase::Gather => {
                let mine = window.segment(vector.place).ok_or_else(lost)?;
                (mine.length, vector.groups.len())
            }
        };
        let bytes = usize::try_from(length).map_err(|_| failed("a segment is too long"))?;
        let all = transport.bytes(&mut staged.memory).ok_or_else(lost)?;
        let all = all.get_mut(..bytes * count).ok_or_else(lost)?;
        let segments = &mut self.reducing.segments;
        if vector.climbs && !is_own {
            let mut sum = take_of(&mut vector.sums, index).ok_or_else(lost)?;
            let own = transport.bytes(&mut sum.memory);
            let own = own.and_then(|own| own.get(..bytes)).ok_or_else(lost)?;
            all[..bytes].copy_from_slice(own);
            segments.put_back(sum);
        }
        let is_last = !is_own && (!vector.climbs || vector.place == 0);
        let result = vector.fold(all, bytes, is_last);
        let mut kept = segments.result(transport, length);
        if kept.is_none() && self.imports.drop_idle(transport)? {
            kept = segments.result(transport, length);
        }
        let (kept, free) = match kept {
            Some(mut kept) => {
                let place = transport.bytes(&mut kept.memory).ok_or_else(lost)?;
                let place = place.get_mut(..bytes).ok_or_else(lost)?;
                place.copy_from_slice(result);
                (kept, Some(staged))
            }
            // The device is full: the result stays at the beginning of the window.
            None => (segments.keep_as_result(staged), None),
        };
        let of = match is_last {
            false => &mut vector.sums,
            true => &mut vector.results,
        };
        of.push((index, kept));
        self.keep_first(line, vector);
        if let Some(free) = free {
            self.reducing.segments.put_back(free);
        }
        self.give_memory(transport)
    }

    /// All blocks of a step without memory are on offer.
    pub(super) fn gathered(&mut self, transport: &T, place: Place) -> Result<()> {
        self.reducing.segments.all_on_offer(place);
        self.give_memory(transport)
    }

    /// Memory for a window whose members may not all have come.
    fn early(&mut self, transport: &T, length: u64) -> Result<Option<Staged<T>>> {
        let segments = &mut self.reducing.segments;
        Ok(match segments.early(transport, length) {
            Ok(staged) => staged,
            // The device is full.
            Err(_) if self.imports.drop_idle(transport)? => {
                segments.early(transport, length).ok().flatten()
            }
            Err(_) => None,
        })
    }

    /// Gives memory to the steps whose turn has come.
    pub(super) fn give_memory(&mut self, transport: &T) -> Result<()> {
        loop {
            let next = match self.reducing.segments.next(transport) {
                Ok(next) => next,
                Err(_) if self.imports.drop_idle(transport)? => continue,
                Err(error) => return self.reducing.segments.postpone(error),
            };
            let Some((place, gathering, staged)) = next else {
                return Ok(());
            };
            let (call, local) = place;
            let seats = self.entered.get_mut(call);
            let entered = seats.and_then(|seats| seats.all.get_mut(local)?.as_mut());
            let entered = entered.ok_or_else(|| failed("a step without its rank"))?;
            entered.receive = Some(Receive::Staged(staged));
            self.ledger
                .receive(place, Blocks::Wide(&gathering.receives))
                .map_err(|wrong| failed(wrong.to_string()))?;
        }
    }

    /// All windows of a rank are complete: releases its buffers and notifies it.
    fn all_reduced(&mut self, transport: &T, vector: Vector<T>) -> Result<()> {
        let now = self.now();
        self.moved.completed(now, vector.since);
        for lent in [vector.send, vector.receive].into_iter().flatten() {
            lent.release(transport)?;
        }
        let short = Some(Box::new(vector.pieces));
        self.complete(transport, vector.collective, vector.local, short)
    }

    /// The first reduction of a line, which a step belongs to.
    fn vector_of(&mut self, line: Line, collective: Collective) -> Result<Vector<T>> {
        let vector = self.first_of(line);
        let vector = vector.filter(|vector| vector.is_of(collective));
        vector.ok_or_else(|| failed(format!("{collective} is complete, but not under way")))
    }

    fn first_of(&mut self, line: Line) -> Option<Vector<T>> {
        self.reducing.lines.get_mut(&line)?.pop_front()
    }

    fn keep_first(&mut self, line: Line, vector: Vector<T>) {
        let line = self.reducing.lines.entry(line).or_default();
        line.push_front(vector);
    }
}

/// Short vectors of many SPs take other steps than long ones.
fn unlike(collective: Collective) -> OffloadError {
    failed(format!(
        "the members of {collective} give different lengths: some are short, and others not"
    ))
}

/// Takes the memory of a window.
fn take_of<T: Transport>(of: &mut Vec<(u32, Staged<T>)>, index: u32) -> Option<Staged<T>> {
    let at = of.iter().position(|(window, _)| *window == index)?;
    Some(of.swap_remove(at).1)
}

fn wide(blocks: &[Block]) -> Vec<Wide> {
    let filled = blocks.iter().filter(|block| block.length > 0);
    filled.map(Block::wide).collect()
}

#[cfg(test)]
mod tests;
