//! One call, from its arguments to its completion.

use super::state::{Client, Communicator, Held, Live, arguments};
use super::types::{Call, CommunicatorId, Memory, Numbered, Request, Side};
use super::waiting::{Area, Part, Prepared, Work};
use crate::error::{OffloadError, Result};
use crate::reduction::Reduction;
use crate::wire::{Block, BlockList, HostFin, Kind, Members, Route, Target};
use std::ptr::null_mut;
use std::time::Instant;

/// An exchange of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    All,
    /// The blocks to send are those of the receive buffer.
    InPlace,
    /// To, or from, this member alone.
    Gather(usize),
    Scatter(usize),
}

impl Way {
    fn route(
        self,
        rank: u32,
        members: &Members,
        sends: &BlockList,
        receives: &BlockList,
    ) -> Result<Route> {
        let (Self::Gather(root) | Self::Scatter(root)) = self else {
            return Ok(Route::Direct);
        };
        let root = members.get(root).ok_or_else(|| no_root(root, members))?;
        let of_root = |blocks: &BlockList| blocks.iter().all(|block| block.peer == root);
        let is_right = |alone: &BlockList, many: &BlockList| {
            of_root(alone) && (rank == root || many.len() == 0)
        };
        let (is_right, route) = match self {
            Self::Scatter(_) if rank == root => (is_right(receives, sends), Route::Scatter),
            Self::Scatter(_) => (is_right(receives, sends), Route::Direct),
            _ => {
                let members = members.clone();
                (is_right(sends, receives), Route::Gather { root, members })
            }
        };
        match is_right {
            true => Ok(route),
            false => Err(arguments(format!(
                "blocks that are not for or from rank {root}, the root"
            ))),
        }
    }
}

fn no_root(root: usize, members: &Members) -> OffloadError {
    arguments(format!(
        "member {root} as the root of {} members",
        members.len()
    ))
}

impl Client {
    /// Numbers a call that starts later.
    ///
    /// # Errors
    /// [`OffloadError::Arguments`] if there is no such communicator.
    pub fn number(
        &mut self,
        communicator: CommunicatorId,
        is_persistent: bool,
    ) -> Result<Numbered> {
        Ok(self
            .group(communicator.0)?
            .number(communicator, is_persistent))
    }

    /// # Safety
    /// As for [`Client::alltoallv`]. In place, `send` has the blocks and the buffer of `receive`.
    pub(super) unsafe fn begin(
        &mut self,
        call: Call<'_>,
        send: Side<'_>,
        receive: Side<'_>,
        way: Way,
    ) -> Result<Request> {
        self.check()?;
        let members = self.group(call.communicator())?.members.clone();
        let sends = blocks("send", &members, &send)?;
        let receives = blocks("receive", &members, &receive)?;
        check_apart(&receives)?;
        let route = way.route(self.rank, &members, &sends, &receives)?;
        let work = Work::Exchange {
            send: Part {
                area: area(&send.memory),
                blocks: sends,
            },
            receive: Part {
                area: area(&receive.memory),
                blocks: receives,
            },
            in_place: way == Way::InPlace,
            is_spread: self.lanes.count() > 1 && matches!(way, Way::All | Way::InPlace),
            route,
        };
        self.enter(call, receive.memory.range(), work)
    }

    /// # Safety
    /// As for [`Client::allreduce`]. `counts` are the bytes of each member's part of the result; by default each of `to` gets
    /// all of it.
    pub(super) unsafe fn begin_reduce(
        &mut self,
        call: Call<'_>,
        send: Option<Memory<'_>>,
        receive: Option<Memory<'_>>,
        reduction: Reduction,
        to: To<'_>,
    ) -> Result<Request> {
        self.check()?;
        let communicator = call.communicator();
        let members = self.group(communicator)?.members.clone();
        let range = |memory: &Memory<'_>| memory.range();
        let (start, receive_length) = receive.as_ref().map_or((null_mut(), 0), range);
        let length = send.as_ref().map_or(receive_length, |send| send.range().1);
        let (target, wanted) = target(to, &members, self.rank, length)?;
        if wanted != receive_length || !length.is_multiple_of(reduction.element_size()) {
            return Err(arguments(format!(
                "a vector of {length} bytes, and {receive_length} for {wanted} of the result, of elements of {} bytes",
                reduction.element_size()
            )));
        }
        let work = Work::Reduce {
            send: send.as_ref().map(area),
            receive: receive.as_ref().map(area),
            reduction,
            turns: None,
            members,
            target,
        };
        self.enter(call, (start, receive_length), work)
    }

    /// # Safety
    /// As for [`Client::broadcast`]. A barrier has no memory.
    pub(super) unsafe fn begin_tree(
        &mut self,
        call: Call<'_>,
        root: usize,
        memory: Option<Memory<'_>>,
    ) -> Result<Request> {
        self.check()?;
        let members = self.group(call.communicator())?.members.clone();
        let Some(root) = members.get(root) else {
            return Err(no_root(root, &members));
        };
        let range = memory
            .as_ref()
            .map_or((std::ptr::null_mut(), 0), Memory::range);
        let work = Work::Tree {
            area: memory.as_ref().map(area),
            root,
            members,
        };
        self.enter(call, range, work)
    }

    /// A communicator with members.
    pub(super) fn group(&mut self, communicator: u64) -> Result<&mut Communicator> {
        self.communicators
            .get_mut(&communicator)
            .ok_or_else(|| arguments(format!("there is no communicator {communicator}")))
    }

    /// Starts a call, or lets it wait.
    pub(super) fn enter(
        &mut self,
        call: Call<'_>,
        (receive, receive_length): (*mut u8, usize),
        mut work: Work,
    ) -> Result<Request> {
        let (collective, is_persistent) = match call {
            Call::Next(id) => (self.group(id.0)?.number(id, false).start(), false),
            Call::Numbered(call) => (call.start(), call.is_persistent),
        };
        let cost = work.cost(self.window, self.direct_min);
        let mut slices = match work.vector() {
            Some((length, element)) => self.lanes.slices(collective, length, element),
            None => Vec::new(),
        };
        if let Work::Reduce {
            target: Target::Ranges(ranges),
            ..
        } = &work
        {
            for slice in &mut slices {
                slice.received = slice.range_of(ranges, self.rank).0;
            }
        }
        if let Work::Reduce { turns, .. } = &mut work
            && !is_persistent
        {
            let group = self.group(collective.communicator)?;
            let of_slices = slices.iter().map(|slice| group.turn(slice.lane));
            *turns = Some(of_slices.collect());
        }
        let live = Live {
            is_done: false,
            is_persistent,
            left: 0,
            turns: 0,
            ended: Vec::new(),
            slices: match &slices[..] {
                [_] => Vec::new(),
                _ => slices.clone(),
            },
            cost,
            receive,
            receive_length,
            message: None,
            held: Held::default(),
        };
        self.live.insert(collective, live);
        self.waiting.push(Prepared {
            collective,
            is_persistent,
            cost,
            slices,
            work,
        });
        self.start_waiting()?;
        self.progress()?;
        Ok(Request {
            collective,
            message: None,
        })
    }

    /// Makes progress, and completes the calls whose completion has arrived.
    pub(super) fn progress(&mut self) -> Result<()> {
        self.worker.progress_until_idle();
        loop {
            let message = match self.worker.take(|_| true) {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => return Err(self.fail(error.to_string(), true)),
            };
            let sender = match Kind::from_id(message.id) {
                Some(Kind::HostFin) => self
                    .services
                    .iter()
                    .position(|of| message.header.starts_with(&of.from_service.0)),
                _ => None,
            };
            // Not from an SP: another process may know the address of this worker.
            let Some(lane) = sender else {
                continue;
            };
            let ended = match HostFin::parse(&message.data) {
                Ok(fin) => self.finish(lane, fin),
                Err(bad) => Err(OffloadError::message(&self.services[lane].address, &bad)),
            };
            if let Err(error) = ended {
                return Err(self.fail(error.to_string(), true));
            }
        }
        self.start_waiting()?;
        let mut index = 0;
        while let Some(request) = self.sends.get(index) {
            match request.test() {
                Ok(true) => drop(self.sends.swap_remove(index)),
                Ok(false) => index += 1,
                Err(error) => {
                    self.sends.swap_remove(index);
                    return Err(self.fail(error.to_string(), true));
                }
            }
        }
        Ok(())
    }

    /// A call is complete in a lane. After the last one, copies the short blocks into the receive buffer and releases the
    /// registrations.
    pub(super) fn finish(&mut self, lane: usize, fin: HostFin) -> Result<()> {
        let collective = fin.collective;
        let wrong = |what| OffloadError::Failed(format!("{collective}: {what}"));
        let bit = 1 << lane;
        let live = self
            .live
            .get_mut(&collective)
            .filter(|live| live.left & bit != 0)
            .ok_or_else(|| wrong("completed by the service, but not under way"))?;
        live.left &= !bit;
        if live.turns & bit != 0
            && let Some(group) = self.communicators.get_mut(&collective.communicator)
        {
            group.open[lane] -= 1;
        }
        if live.left != 0 {
            live.ended.push((lane, fin));
            return Ok(());
        }
        let start = Instant::now();
        let Held {
            mapped,
            bounces,
            names,
        } = std::mem::take(&mut live.held);
        for (name, lanes) in names.into_iter().flatten() {
            self.names.put_back(name, lanes);
        }
        for range in mapped {
            range.unmap()?;
        }
        live.message = fin.message;
        let most = fin.message.unwrap_or(u64::MAX);
        for bounce in bounces {
            // SAFETY: the buffer belongs to the call until now, and the SP has delivered all its blocks.
            unsafe { bounce.copy_back(live.receive, most) };
            self.bounced -= bounce.memory.len();
        }
        // After the copies, which may contain these blocks' places.
        for (lane, fin) in std::mem::take(&mut live.ended) {
            // SAFETY: the receive buffer belongs to the call until now.
            unsafe { live.take_short(lane, &fin) }.map_err(wrong)?;
        }
        // SAFETY: the same.
        unsafe { live.take_short(lane, &fin) }.map_err(wrong)?;
        live.is_done = true;
        self.waiting.over(collective, live.is_persistent, live.cost);
        self.numbers.deregistration += start.elapsed();
        self.numbers.calls += 1;
        self.numbers.aliases = fin.aliases;
        Ok(())
    }
}

impl Live {
    /// Copies the short blocks of a lane to their places.
    ///
    /// # Safety
    /// The receive buffer belongs to the call.
    unsafe fn take_short(
        &self,
        lane: usize,
        fin: &HostFin,
    ) -> std::result::Result<(), &'static str> {
        let slice = self.slices.iter().find(|slice| slice.lane == lane);
        let first = slice.map_or(0, |slice| slice.received);
        let mut bytes = &fin.bytes[..];
        let blocks = fin.short.iter();
        let blocks = blocks.flat_map(|of| of.offsets().map(|offset| (offset, of.length)));
        for (offset, length) in blocks {
            let at = usize::try_from(offset).ok();
            let at = at.and_then(|at| at.checked_add(first));
            let place = at.zip(usize::try_from(length).ok());
            let place = place.filter(|(at, length)| {
                at.checked_add(*length)
                    .is_some_and(|end| end <= self.receive_length)
            });
            let Some((at, length)) = place else {
                return Err("a block outside the receive buffer");
            };
            let (data, rest) = bytes
                .split_at_checked(length)
                .ok_or("a block without its bytes")?;
            bytes = rest;
            // SAFETY: the offset is inside the buffer, which belongs to the call until now.
            let to = unsafe { self.receive.add(at) };
            // SAFETY: both sides hold `length` bytes; a message never lies in the receive buffer.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, length) };
        }
        Ok(())
    }
}

/// The members that get the result of a reduction, by their places.
#[derive(Debug, Clone, Copy)]
pub(super) enum To<'a> {
    All,
    Root(usize),
    /// Bytes of the result for each.
    Each(&'a [usize]),
}

/// The target of a reduction of `length` bytes, and the bytes of the result for this rank.
fn target(to: To<'_>, members: &Members, rank: u32, length: usize) -> Result<(Target, usize)> {
    match to {
        To::All => Ok((Target::All, length)),
        To::Root(root) => {
            let root = members.get(root).ok_or_else(|| no_root(root, members))?;
            Ok((Target::Root(root), if root == rank { length } else { 0 }))
        }
        To::Each(counts) => {
            let all = counts
                .iter()
                .try_fold(0_usize, |sum, count| sum.checked_add(*count));
            if counts.len() != members.len() || all != Some(length) {
                return Err(arguments(format!(
                    "{} counts of a result of {length} bytes for {} members, or another sum",
                    counts.len(),
                    members.len()
                )));
            }
            let (mut offset, mut wanted) = (0, 0);
            let mut ranges = Vec::new();
            for (peer, count) in members.iter().zip(counts) {
                if peer == rank {
                    wanted = *count;
                }
                if *count > 0 {
                    ranges.push(Block {
                        peer,
                        offset,
                        length: *count as u64,
                    });
                }
                offset += *count as u64;
            }
            Ok((Target::Ranges(ranges), wanted))
        }
    }
}

/// The bytes of the blocks that travel in the message.
///
/// # Safety
/// Each block is inside its buffer, is readable, and no thread writes to it now.
pub(super) unsafe fn short_blocks(area: &Area, blocks: &BlockList, direct_min: u64) -> Vec<u8> {
    let mut short = Vec::new();
    for block in blocks.iter() {
        if block.length < direct_min {
            let number = |number: u64| usize::try_from(number).expect("inside the buffer");
            // SAFETY: the caller upholds the contract.
            let at = unsafe { area.start.add(number(block.offset)) };
            // SAFETY: the same.
            let bytes = unsafe { std::slice::from_raw_parts(at, number(block.length)) };
            short.extend_from_slice(bytes);
        }
    }
    short
}

/// A buffer as a call keeps it.
pub(super) fn area(memory: &Memory<'_>) -> Area {
    let (start, length) = memory.range();
    let packed = match memory {
        Memory::Registered(registered) => Some(registered.packed.clone()),
        Memory::Temporary { .. } => None,
    };
    Area {
        start,
        length,
        packed,
    }
}

/// Blocks of one side that are not empty, each checked to lie inside its memory.
fn blocks(side: &str, members: &Members, of: &Side<'_>) -> Result<BlockList> {
    let (_, length) = of.memory.range();
    if of.counts.len() != members.len() || of.displacements.len() != members.len() {
        return Err(arguments(format!(
            "{} {side} counts and {} displacements for {} members",
            of.counts.len(),
            of.displacements.len(),
            members.len()
        )));
    }
    let blocks = members.iter().zip(of.counts.iter().zip(of.displacements));
    BlockList::read(blocks.map(|(peer, (count, displacement))| {
        // The displacement of an empty block means nothing.
        let end = if *count > 0 { displacement.checked_add(*count) } else { Some(0) };
        if end.is_none_or(|end| end > length) {
            return Err(arguments(format!(
                "the {side} block of rank {peer}, {count} bytes at {displacement}, is not in a buffer of {length} \
                 bytes"
            )));
        }
        Ok(Block {
            peer,
            offset: *displacement as u64,
            length: *count as u64,
        })
    }))
}

/// Receive blocks must not overlap: the result would depend on the order of delivery.
fn check_apart(blocks: &BlockList) -> Result<()> {
    let apart = |a: &Block, b: &Block| a.offset + a.length <= b.offset;
    // Most programs pass them in ascending order.
    let pairs = || blocks.iter().zip(blocks.iter().skip(1));
    if pairs().all(|(a, b)| apart(&a, &b)) {
        return Ok(());
    }
    let mut sorted: Vec<Block> = blocks.iter().collect();
    sorted.sort_unstable_by_key(|block| block.offset);
    match sorted.windows(2).find(|pair| !apart(&pair[0], &pair[1])) {
        None => Ok(()),
        Some(pair) => Err(arguments(format!(
            "the receive blocks of ranks {} and {} overlap",
            pair[0].peer, pair[1].peer
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the checks on blocks (count, displacement) of a buffer of 100 bytes and compares the result.
    fn check(sides: &[(usize, usize)], expect: Option<&str>) {
        let (counts, displacements): (Vec<_>, Vec<_>) = sides.iter().copied().unzip();
        let side = Side {
            memory: Memory::Temporary {
                start: std::ptr::null_mut(),
                length: 100,
            },
            counts: &counts,
            displacements: &displacements,
        };
        let members = Members::from(vec![5, 6, 7]);
        let answer = blocks("receive", &members, &side).and_then(|blocks| check_apart(&blocks));
        match (answer, expect) {
            (Ok(()), None) => {}
            (Err(error), Some(expect)) => {
                let error = error.to_string();
                assert!(error.contains(expect), "{error}");
            }
            (answer, expect) => panic!("{sides:?}: {answer:?}, expected {expect:?}"),
        }
    }

    #[test]
    fn blocks_lie_in_the_buffer_and_apart() {
        check(&[(10, 0), (10, 10), (80, 20)], None);
        check(&[(10, 90), (0, usize::MAX), (10, 0)], None);
        check(&[(10, 50), (10, 0), (10, 40)], None);
        check(&[(10, 0), (10, 9), (0, 0)], Some("ranks 5 and 6 overlap"));
        check(&[(50, 50), (1, 0), (10, 41)], Some("ranks 7 and 5 overlap"));
        check(
            &[(10, 91), (0, 0), (0, 0)],
            Some("receive block of rank 5, 10 bytes at 91"),
        );
        check(
            &[(0, 0), (1, usize::MAX), (0, 0)],
            Some("is not in a buffer of 100 bytes"),
        );
        check(
            &[(0, 0), (0, 0)],
            Some("2 receive counts and 2 displacements for 3 members"),
        );
    }
}
