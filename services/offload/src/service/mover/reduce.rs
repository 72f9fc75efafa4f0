//! Allreduces of a job at one SP.
//!
//! Each window of the vector takes two steps, which are collectives of the ledger like those of the ranks. Step 1 is a
//! reduce-scatter: the SP of each segment's owner reads the segment from the send buffers of all members into memory of its
//! own, and reduces it. Step 2 is an allgather: the SPs read the results from there into the receive buffers of their ranks.
//! A segment of a receive buffer changes only after every SP has read that segment of all send buffers, so an allreduce in
//! place needs no copy. Members are reduced in their order, and once for all ranks: all ranks get the same bits.
//!
//! The ordinary allreduces of a rank on a communicator run one after the other, in the order of their turns, and each has
//! two windows under way. What one of them needs at other SPs has therefore never to wait behind a later one. Members may
//! start persistent ones in different orders, so those run beside each other. `service::segments` has the memory.

use super::{Buffers, Entered, Mover, Receive, failed};
use crate::error::Result;
use crate::service::actions::{Receives, Short};
use crate::service::segments::{Gathering, Place, Staged};
use crate::service::transport::Transport;
use crate::service::turns::Line;
use crate::service::vectors::{Stepped, Vector, sole};
use crate::service::windows::Division;
use crate::wire::{Block, Blocks, Collective, Delivered, Export, HostReduce, Narrow, Wide};
use std::collections::VecDeque;
use std::rc::Rc;

/// Number of windows of an allreduce that are under way at once: one moves while the other is reduced.
const WINDOWS_AT_ONCE: u32 = 2;

/// Bytes that an allreduce of a rank takes beside its members: its state, and handles of UCX.
const VECTOR_HELD: usize = 1024;

impl<T: Transport> Mover<T> {
    /// A local rank enters an allreduce.
    pub(super) fn reduce(&mut self, transport: &T, message: HostReduce) -> Result<()> {
        let HostReduce {
            collective, rank, ..
        } = message;
        let wrong = |what: &str| {
            failed(format!(
                "rank {rank} breaks the protocol in {collective}: {what}"
            ))
        };
        let local = self.ledger.local(rank);
        let local = local.ok_or_else(|| wrong("it is not this service's"))?;
        // Memory follows the number of members.
        check_members(&message.members, self.ledger.size()).map_err(wrong)?;
        let mut members = message.members.iter();
        let place = members.position(|member| *member == rank);
        let place = place.ok_or_else(|| wrong("it is not a member"))?;
        let ours = message.members.iter();
        let ours = ours.filter(|member| self.ledger.local(**member).is_some());
        let together = u32::try_from(ours.count()).unwrap_or(u32::MAX);
        let element = message.reduction.element_size() as u64;
        let direct_min = self.limits.direct_min;
        let division = Division::new(message.length, element, message.members.len(), direct_min);
        let division = division.ok_or_else(|| wrong("its vector is too long"))?;
        let is_short = message.length < direct_min;
        let expect = if is_short { message.length } else { 0 };
        if message.short.len() as u64 != expect {
            return Err(wrong("it has sent another number of bytes than expected"));
        }
        let exports = [&message.send_memory, &message.receive_memory];
        let outside = |export: &Export| export.length < message.length;
        if exports.into_iter().flatten().any(outside)
            || message.receive_memory.is_none() != is_short
        {
            return Err(wrong("its buffer is shorter than its vector"));
        }
        let bytes = VECTOR_HELD + size_of_val(&message.members[..]) + message.short.len();
        let receive = message.receive_memory.as_ref();
        let receive = receive.map(|e| transport.import(e.view())).transpose()?;
        let send = message.send_memory.as_ref();
        let send = send.map(|e| transport.import(e.view())).transpose()?;
        let from = message.send_memory.or(message.receive_memory);
        let key = send.as_ref().or(receive.as_ref());
        let vector = Vector {
            collective,
            rank,
            local,
            reduction: message.reduction,
            division,
            members: message.members,
            place,
            together,
            base: from.map_or(0, |export| export.address),
            key: key.map_or_else(|| Ok(T::Packed::default()), |memory| transport.pack(memory))?,
            send,
            receive: receive.map(Rc::new),
            short: is_short.then_some(message.short),
            begun: 0,
            complete: 0,
            results: Vec::new(),
            since: self.now(),
            bytes,
        };
        let line = Line::new(local, collective, message.turn);
        let begins = match message.turn {
            None => self.reducing.add(line, vector),
            Some(turn) => self
                .reducing
                .add_in_turn(line, (turn, message.open), vector)
                .map_err(wrong)?,
        };
        if begins {
            self.begin_windows(transport, line)?;
        }
        Ok(())
    }

    /// Begins as many windows of the first allreduce of a line as may be under way.
    fn begin_windows(&mut self, transport: &T, line: Line) -> Result<()> {
        let Some(mut vector) = self.first_of(line) else {
            return Ok(());
        };
        while vector.begun < vector.division.windows()
            && vector.begun - vector.complete < WINDOWS_AT_ONCE
        {
            let index = vector.begun;
            vector.begun += 1;
            self.scatter(transport, &vector, index)?;
        }
        self.keep_first(line, vector);
        Ok(())
    }

    /// Step 1 of a window.
    fn scatter(&mut self, transport: &T, vector: &Vector<T>, index: u32) -> Result<()> {
        let window = vector.division.window(index);
        let mine = window.segment(vector.place);
        let sends = vector.blocks(&window, |_, segment| {
            let segment = segment.unwrap_or_default();
            (
                segment.offset.saturating_sub(window.start()),
                segment.length,
            )
        });
        let receives = vector.blocks(&window, |member, _| match mine {
            Some(mine) => (member as u64 * mine.length, mine.length),
            None => (0, 0),
        });
        let length = match mine {
            Some(mine) if vector.short.is_none() => mine.length * vector.members.len() as u64,
            _ => 0,
        };
        let staged = match length {
            0 => None,
            _ => self.reducing.segments.early(transport, length)?,
        };
        let buffers = Buffers {
            base: vector.base.wrapping_add(window.start()),
            key: vector.key.as_ref(),
        };
        let short = vector.short.as_deref().unwrap_or(&[]);
        let (sends, receives) = (narrow(&sends)?, wide(&receives));
        let is_late = length > 0 && staged.is_none();
        let entered = Entered::new(None, staged.map(Receive::Staged), self.now());
        let side = match is_late {
            true => Receives::Later(receives.len()),
            false => Receives::Now(Blocks::Wide(&receives)),
        };
        let place = self.enter(
            transport,
            vector.step(2 * index + 1),
            (vector.rank, vector.together),
            (Blocks::Narrow(&sends), side),
            short,
            buffers,
            entered,
        )?;
        if is_late {
            let gathering = Gathering { receives, length };
            self.reducing.segments.wait(place, gathering);
        }
        Ok(())
    }

    /// Step 2 of a window. `result` is the reduced segment of this rank.
    fn gather(
        &mut self,
        transport: &T,
        vector: &Vector<T>,
        index: u32,
        result: Option<&Staged<T>>,
        base: u64,
    ) -> Result<()> {
        let window = vector.division.window(index);
        let mine = window.segment(vector.place);
        let sends = vector.blocks(&window, |_, _| (0, mine.map_or(0, |mine| mine.length)));
        let receives = vector.blocks(&window, |_, segment| {
            let segment = segment.unwrap_or_default();
            (segment.offset, segment.length)
        });
        let short = match (&vector.short, mine) {
            (Some(short), Some(_)) => short.repeat(vector.members.len()),
            _ => Vec::new(),
        };
        let buffers = Buffers {
            base,
            key: result.map_or(&[], |result| result.key.as_ref()),
        };
        let (sends, receives) = (narrow(&sends)?, wide(&receives));
        let receive = vector.receive.clone().map(Receive::Shared);
        let entered = Entered::new(None, receive, self.now());
        self.enter(
            transport,
            vector.step(2 * index + 2),
            (vector.rank, vector.together),
            (Blocks::Narrow(&sends), Blocks::Wide(&receives).into()),
            &short,
            buffers,
            entered,
        )
        .map(drop)
    }

    /// A step of a rank is complete.
    pub(super) fn stepped(&mut self, transport: &T, stepped: Stepped) -> Result<()> {
        let collective = stepped.collective;
        let line = self.reducing.line_of(stepped.local, collective);
        let mut vector = self.vector_of(line, collective)?;
        let index = (collective.step - 1) / 2;
        if collective.step % 2 == 1 {
            self.reduced(transport, &mut vector, index, stepped)?;
            self.keep_first(line, vector);
            return Ok(());
        }
        if let Some(at) = vector.results.iter().position(|(of, _)| *of == index) {
            let (_, staged) = vector.results.swap_remove(at);
            self.reducing.segments.put_back(staged);
        }
        if vector.short.is_some() {
            vector.short = Some(stepped.bytes);
        }
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

    /// The blocks of step 1 are there: reduces this rank's segment, if the step has memory for it. The memory is free before
    /// the step is complete.
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
        let index = (collective.step - 1) / 2;
        let window = vector.division.window(index);
        let mine = window.segment(vector.place).ok_or_else(lost)?;
        let length = usize::try_from(mine.length).map_err(|_| failed("a segment is too long"))?;
        let bytes = transport.bytes(&mut staged.memory).ok_or_else(lost)?;
        let all = bytes.get_mut(..length * vector.members.len());
        let (result, others) = all.ok_or_else(lost)?.split_at_mut(length);
        for other in others.chunks_exact(length) {
            vector.reduction.fold(result, other);
        }
        let mut kept = self.reducing.segments.result(transport, mine.length)?;
        let place = transport.bytes(&mut kept.memory).ok_or_else(lost)?;
        let place = place.get_mut(..length).ok_or_else(lost)?;
        place.copy_from_slice(result);
        vector.results.push((index, kept));
        self.keep_first(line, vector);
        self.reducing.segments.put_back(staged);
        self.give_memory(transport)
    }

    /// Step 1 is complete: begins step 2.
    fn reduced(
        &mut self,
        transport: &T,
        vector: &mut Vector<T>,
        index: u32,
        stepped: Stepped,
    ) -> Result<()> {
        let Some(mine) = vector.division.window(index).segment(vector.place) else {
            return self.gather(transport, vector, index, None, 0);
        };
        if let Some((_, result)) = vector.results.iter().find(|(of, _)| *of == index) {
            let base = transport.address(&result.memory);
            return self.gather(transport, vector, index, Some(result), base);
        }
        let length = usize::try_from(mine.length).map_err(|_| failed("a segment is too long"))?;
        let lost = || failed(format!("{} without its segments", stepped.collective));
        // The blocks have arrived in any order.
        let mut blocks = stepped.short;
        let mut order: Vec<(u64, &[u8])> = Vec::with_capacity(blocks.len());
        let mut rest = &stepped.bytes[..];
        for offset in blocks.drain(..).flat_map(Delivered::offsets) {
            let (data, after) = rest.split_at_checked(length).ok_or_else(lost)?;
            order.push((offset, data));
            rest = after;
        }
        order.sort_unstable_by_key(|(offset, _)| *offset);
        let mut parts = order.into_iter().map(|(_, data)| data);
        let mut result = parts.next().unwrap_or(&[]).to_vec();
        for part in parts {
            vector.reduction.fold(&mut result, part);
        }
        vector.short = Some(result);
        self.gather(transport, vector, index, None, 0)
    }

    /// All blocks of a step without memory are on offer.
    pub(super) fn gathered(&mut self, transport: &T, place: Place) -> Result<()> {
        self.reducing.segments.all_on_offer(place);
        self.give_memory(transport)
    }

    /// Gives memory to the steps whose turn has come.
    fn give_memory(&mut self, transport: &T) -> Result<()> {
        while let Some((place, gathering, staged)) = self.reducing.segments.next(transport)? {
            let (call, local) = place;
            let seats = self.entered.get_mut(call);
            let entered = seats.and_then(|seats| seats.all.get_mut(local)?.as_mut());
            let entered = entered.ok_or_else(|| failed("a step without its rank"))?;
            entered.receive = Some(Receive::Staged(staged));
            self.ledger
                .receive(place, Blocks::Wide(&gathering.receives))
                .map_err(|wrong| failed(wrong.to_string()))?;
        }
        Ok(())
    }

    /// All windows of a rank are complete: releases its buffers and notifies it.
    fn all_reduced(&mut self, transport: &T, vector: Vector<T>) -> Result<()> {
        let since = self.now().saturating_duration_since(vector.since);
        self.moved.call_latency.record(since);
        let receive = vector.receive.map(sole).transpose()?;
        for memory in [vector.send, receive].into_iter().flatten() {
            transport.unmap(memory)?;
        }
        let bytes = vector.short.unwrap_or_default();
        let whole = Delivered::one(0, bytes.len() as u64);
        let short = (whole.length > 0).then_some(whole);
        let short = Short {
            blocks: short.into_iter().collect(),
            bytes,
        };
        let short = Some(Box::new(short));
        self.complete(transport, vector.collective, vector.local, short)
    }

    /// The first allreduce of a line, which a step belongs to.
    fn vector_of(&mut self, line: Line, collective: Collective) -> Result<Vector<T>> {
        let vector = self.first_of(line);
        let vector = vector.filter(|vector| vector.step(collective.step) == collective);
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

/// Checks that the members are different ranks of a job of this size.
fn check_members(members: &[u32], size: usize) -> std::result::Result<(), &'static str> {
    if members.len() > size {
        return Err("it has more members than the job has ranks");
    }
    if members.iter().any(|member| *member as usize >= size) {
        return Err("it names a rank that is not there");
    }
    // Most communicators have their ranks in ascending order.
    if members.is_sorted_by(|a, b| a < b) {
        return Ok(());
    }
    let mut sorted = members.to_vec();
    sorted.sort_unstable();
    if sorted.is_sorted_by(|a, b| a < b) {
        Ok(())
    } else {
        Err("a rank is two of its members")
    }
}

fn narrow(blocks: &[Block]) -> Result<Vec<Narrow>> {
    let records = blocks.iter().map(Block::narrow).collect::<Option<_>>();
    records.ok_or_else(|| failed("a window is too long"))
}

fn wide(blocks: &[Block]) -> Vec<Wide> {
    blocks.iter().map(Block::wide).collect()
}

#[cfg(test)]
mod tests;
