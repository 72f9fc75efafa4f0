//! The start of a call at the SP: registers the memory of its blocks, or copies them to memory that can be registered. The
//! registrations of a persistent call may outlive its starts.

use super::call::short_blocks;
use super::lanes::Slice;
use super::spans::{Piece, Span, pack, packed_length, pieces};
use super::state::{Bounce, Client, Held};
use super::types::{Registered, Side};
use super::waiting::{Area, Part, Prepared, Work};
use crate::error::Result;
use crate::wire::{Block, BlockList, Export, HostArrive, HostReduce, HostTree, Kind, Target};
use std::time::Instant;
use xgvmi_ucp::MappedRange;
use xgvmi_ucp::buffer::Buffer;

/// Maximum memory of all calls for copies of their blocks. A call that needs more gets it when no other call has copies.
const BOUNCED_MAX: usize = 256 << 20;

/// Number of ranges whose failed registration is remembered.
const UNREGISTRABLE_MAX: usize = 16;

/// Why a call could not get its memory. It waits for the end of another call.
#[derive(Debug)]
struct NoMemory(String);

type Got<T> = std::result::Result<T, NoMemory>;

/// A message to the SP of a lane.
type Letter = (usize, Kind, Vec<u8>);

/// Memory that the device can reach. Its export has the handle unless the SPs of all lanes have the import.
#[derive(Debug, Clone)]
struct Reached {
    export: Export,
    /// The lanes whose SPs have the import, and the place of its name among those of the call.
    known: u64,
    name: Option<usize>,
}

/// What a copy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    /// The device reads it.
    In,
    /// The device writes it.
    Out,
    /// The device reads and writes it.
    InAndOut,
}

impl Client {
    /// Starts calls as long as one may start.
    pub(super) fn start_waiting(&mut self) -> Result<()> {
        while let Some(call) = self.waiting.next() {
            // SAFETY: the buffers belong to the call, see Client::alltoallv.
            unsafe { self.launch(call) }?;
        }
        Ok(())
    }

    /// Starts a call at the SP, or lets it wait for memory.
    ///
    /// # Safety
    /// The buffers belong to the call until it completes, as [`Client::alltoallv`] says.
    unsafe fn launch(&mut self, call: Prepared) -> Result<()> {
        let mut held = Held::default();
        // SAFETY: the caller upholds the contract.
        let messages = match unsafe { self.messages(&call, &mut held) } {
            Ok(messages) => messages,
            Err(NoMemory(why)) => {
                for (name, _) in held.names.into_iter().flatten() {
                    self.names.put_back(name, 0);
                }
                drop(held);
                if self.waiting.started() == 0 {
                    let reason = format!("rank {}: {}: {why}", self.rank, call.collective);
                    return Err(self.fail(reason, true));
                }
                self.waiting.put_back(call);
                return Ok(());
            }
        };
        self.bounced += held.bounced();
        self.numbers.bounced_bytes += held.bounced() as u64;
        let left = messages
            .iter()
            .fold(0, |lanes, (lane, ..)| lanes | 1 << lane);
        let has_turn = matches!(call.work, Work::Reduce { turns: Some(_), .. });
        if let Some(live) = self.live.get_mut(&call.collective) {
            live.held = held;
            live.left = left;
            live.turns = if has_turn { left } else { 0 };
        }
        if has_turn && let Some(group) = self.communicators.get_mut(&call.collective.communicator) {
            for (lane, ..) in &messages {
                group.open[*lane] += 1;
            }
        }
        self.waiting.begun(call.line(), call.cost);
        for (lane, kind, data) in messages {
            let token = self.services[lane].to_service.0.to_vec();
            match self.endpoints[lane].send(kind as u16, token, data) {
                Ok(request) => self.sends.push(request),
                Err(error) => return Err(self.fail(error.to_string(), true)),
            }
        }
        Ok(())
    }

    /// Number of ordinary reductions of a communicator that are under way in a lane.
    fn open(&self, communicator: u64, lane: usize) -> u32 {
        self.communicators
            .get(&communicator)
            .map_or(0, |group| group.open[lane])
    }

    /// Number of members of a communicator that share this rank's SPs.
    fn together(&self, communicator: u64) -> u32 {
        self.communicators
            .get(&communicator)
            .map_or(1, |group| group.together)
    }

    /// The messages to the SPs. `held` gets the memory that they name.
    ///
    /// # Safety
    /// As for [`Client::launch`].
    unsafe fn messages(&mut self, call: &Prepared, held: &mut Held) -> Got<Vec<Letter>> {
        match &call.work {
            // SAFETY: the caller upholds the contract.
            Work::Exchange { .. } => unsafe { self.exchange(call, held) },
            // SAFETY: the same.
            Work::Reduce { .. } => unsafe { self.reductions(call, held) },
            // SAFETY: the same.
            Work::Tree { .. } => unsafe { self.trees(call, held) },
        }
    }

    /// # Safety
    /// As for [`Client::launch`].
    unsafe fn exchange(&mut self, call: &Prepared, held: &mut Held) -> Got<Vec<Letter>> {
        let Work::Exchange {
            send,
            receive,
            in_place,
            is_spread,
            route,
        } = &call.work
        else {
            return Ok(Vec::new());
        };
        // SAFETY: the caller upholds the contract.
        let (from, sends) = unsafe { self.reach(send, *in_place, Copied::In, held) }?;
        // SAFETY: the same.
        let (into, receives) = unsafe { self.reach(receive, false, Copied::Out, held) }?;
        let direct_min = self.direct_min as u64;
        let together = self.together(call.collective.communicator);
        let arrive = HostArrive {
            collective: call.collective,
            rank: self.rank,
            together,
            send_memory: None,
            receive_memory: None,
            sends: BlockList::Runs(Vec::new()),
            receives: BlockList::Runs(Vec::new()),
            short: Vec::new(),
            route: route.clone(),
        };
        if !is_spread {
            let lane = call.slices.first().map_or(0, |slice| slice.lane);
            let arrive = HostArrive {
                send_memory: from.map(|from| from.in_lane(lane, held)),
                receive_memory: into.map(|into| into.in_lane(lane, held)),
                sends,
                receives,
                // SAFETY: the same; blocks() has checked that each block is inside its buffer.
                short: unsafe { short_blocks(&send.area, &send.blocks, direct_min) },
                ..arrive
            };
            return Ok(vec![(lane, Kind::HostArrive, arrive.to_bytes())]);
        }
        let mine = self.lanes.of(self.rank);
        let mut receives = Some(receives);
        let mut letters = Vec::with_capacity(self.lanes.count());
        for lane in 0..self.lanes.count() {
            let of_lane = self.lanes.part(&sends, lane);
            if lane != mine && of_lane.len() == 0 {
                continue;
            }
            let is_long = of_lane.groups().any(|group| group.length >= direct_min);
            let blocks = self.lanes.part(&send.blocks, lane);
            let mut arrive = HostArrive {
                send_memory: from
                    .as_ref()
                    .filter(|_| is_long)
                    .map(|from| from.in_lane(lane, held)),
                sends: of_lane,
                // SAFETY: the same.
                short: unsafe { short_blocks(&send.area, &blocks, direct_min) },
                ..arrive.clone()
            };
            if lane == mine {
                arrive.receive_memory = into.as_ref().map(|into| into.in_lane(lane, held));
                arrive.receives = receives.take().unwrap_or(arrive.receives);
            }
            letters.push((lane, Kind::HostArrive, arrive.to_bytes()));
        }
        Ok(letters)
    }

    /// # Safety
    /// As for [`Client::launch`].
    unsafe fn reductions(&mut self, call: &Prepared, held: &mut Held) -> Got<Vec<Letter>> {
        let Work::Reduce {
            send,
            receive,
            reduction,
            turns,
            members,
            target,
        } = &call.work
        else {
            return Ok(Vec::new());
        };
        let direct_min = self.direct_min;
        let (mut from, mut into) = (None, None);
        if call.slices.iter().any(|slice| slice.length >= direct_min) {
            let back = match send {
                Some(_) => Copied::Out,
                None => Copied::InAndOut,
            };
            if let Some(receive) = receive.as_ref().filter(|receive| receive.length > 0) {
                // SAFETY: the caller upholds the contract.
                into = Some(unsafe { self.reach_all(receive, back, held) }?);
            }
            if let Some(send) = send {
                // SAFETY: the same.
                from = Some(unsafe { self.reach_all(send, Copied::In, held) }?);
            }
        }
        let mut letters = Vec::with_capacity(call.slices.len());
        for (at, slice) in call.slices.iter().enumerate() {
            let is_long = slice.length >= direct_min;
            let (target, wanted) = match target {
                Target::Ranges(ranges) => (
                    Target::Ranges(slice.ranges(ranges)),
                    slice.range_of(ranges, self.rank).1,
                ),
                all_or_root => (all_or_root.clone(), slice.length),
            };
            let part = |of: &Option<Reached>, start: usize, length: usize, held: &mut Held| {
                let of = of.as_ref().filter(|_| is_long && length > 0)?;
                Some(of.part(start, length).in_lane(slice.lane, held))
            };
            let mut short = Vec::new();
            if !is_long && let Some(vector) = send.as_ref().or(receive.as_ref()) {
                // SAFETY: the same.
                short = unsafe { vector.bytes(slice.start, slice.length) };
            }
            let message = HostReduce {
                collective: call.collective,
                rank: self.rank,
                reduction: *reduction,
                turn: turns.as_ref().and_then(|turns| turns.get(at).copied()),
                open: match turns {
                    Some(_) => self.open(call.collective.communicator, slice.lane),
                    None => 0,
                },
                length: slice.length as u64,
                whole: self.whole(call),
                members: members.clone(),
                target,
                send_memory: part(&from, slice.start, slice.length, held),
                receive_memory: part(&into, slice.received, wanted, held),
                short,
            };
            letters.push((slice.lane, Kind::HostReduce, message.to_bytes()));
        }
        Ok(letters)
    }

    /// Length of a call's vector, whatever its lanes; 0 with one lane.
    fn whole(&self, call: &Prepared) -> u64 {
        let last = call.slices.last().filter(|_| self.lanes.count() > 1);
        last.map_or(0, |last| (last.start + last.length) as u64)
    }

    /// # Safety
    /// As for [`Client::launch`].
    unsafe fn trees(&mut self, call: &Prepared, held: &mut Held) -> Got<Vec<Letter>> {
        let Work::Tree {
            area,
            root,
            members,
        } = &call.work
        else {
            return Ok(Vec::new());
        };
        let is_root = *root == self.rank;
        let is_long = |slice: &Slice| slice.length >= self.direct_min;
        let mut memory = None;
        if let Some(area) = area
            && call.slices.iter().any(is_long)
        {
            let copied = if is_root { Copied::In } else { Copied::Out };
            // SAFETY: the caller upholds the contract.
            memory = Some(unsafe { self.reach_all(area, copied, held) }?);
        }
        let mut letters = Vec::with_capacity(call.slices.len());
        for slice in &call.slices {
            let is_long = slice.length >= self.direct_min;
            let mut short = Vec::new();
            if let Some(area) = area.as_ref().filter(|_| is_root && !is_long) {
                // SAFETY: the same.
                short = unsafe { area.bytes(slice.start, slice.length) };
            }
            let memory = memory.as_ref().filter(|_| is_long);
            let memory = memory.map(|memory| memory.part(slice.start, slice.length));
            let message = HostTree {
                collective: call.collective,
                rank: self.rank,
                root: *root,
                is_barrier: area.is_none(),
                members: members.clone(),
                memory: memory.map(|memory| memory.in_lane(slice.lane, held)),
                length: slice.length as u64,
                whole: self.whole(call),
                short,
            };
            letters.push((slice.lane, Kind::HostTree, message.to_bytes()));
        }
        Ok(letters)
    }

    /// Lets the device reach the long blocks of a side. Returns the exported memory, and the blocks as offsets in it. With
    /// `must_copy`, the memory is a copy of the blocks. `copied` says what a copy is for.
    ///
    /// # Safety
    /// As for [`Client::launch`].
    unsafe fn reach(
        &mut self,
        part: &Part,
        must_copy: bool,
        copied: Copied,
        held: &mut Held,
    ) -> Got<(Option<Reached>, BlockList)> {
        let direct_min = self.direct_min as u64;
        let mut blocks = part.blocks.clone();
        let Some(span) = Span::of(&blocks, direct_min) else {
            return Ok((None, blocks));
        };
        let mut why = "its blocks are far from each other".to_owned();
        if !must_copy {
            if part.area.packed.is_some() {
                // SAFETY: the caller upholds the contract.
                let export = unsafe { self.reach_all(&part.area, copied, held) }?;
                return Ok((Some(export), blocks));
            }
            if span.is_dense(&blocks, direct_min) {
                let area = part.area.part(span.first, span.length());
                // SAFETY: the same: the span is inside the buffer.
                match unsafe { self.register_for(&area, held) } {
                    Ok(export) => {
                        blocks.rebase(span.first, direct_min);
                        return Ok((Some(export), blocks));
                    }
                    Err(error) => why = error,
                }
            }
        }
        let pieces = pieces(&blocks, direct_min);
        let blocks = pack(&blocks, &pieces, direct_min);
        // SAFETY: the same: the pieces consist of blocks.
        let export = unsafe { self.copy_for(&part.area, pieces, copied, &why, held) }?;
        Ok((Some(export), blocks))
    }

    /// Lets the device reach a whole buffer.
    ///
    /// # Safety
    /// As for [`Client::launch`].
    unsafe fn reach_all(&mut self, area: &Area, copied: Copied, held: &mut Held) -> Got<Reached> {
        if let Some(packed) = &area.packed {
            return Ok(self.named(area, packed, held));
        }
        // SAFETY: the caller upholds the contract.
        match unsafe { self.register_for(area, held) } {
            Ok(export) => Ok(export),
            Err(why) => {
                let whole = Piece {
                    at: 0,
                    length: area.length as u64,
                    packed: 0,
                };
                // SAFETY: the same.
                unsafe { self.copy_for(area, vec![whole], copied, &why, held) }
            }
        }
    }

    /// Registers a range of the program's memory for a call, unless that has failed lately.
    ///
    /// # Errors
    /// Why it cannot be registered.
    ///
    /// # Safety
    /// As for [`Client::launch`].
    unsafe fn register_for(
        &mut self,
        area: &Area,
        held: &mut Held,
    ) -> std::result::Result<Reached, String> {
        // SAFETY: the caller upholds the contract.
        let (mapped, packed) = unsafe { self.try_map(area.start, area.length) }?;
        held.mapped.push(mapped);
        Ok(self.named(area, &packed, held))
    }

    /// Registers and exports a range of the program's memory, unless that has failed lately.
    ///
    /// # Errors
    /// Why it cannot be registered.
    ///
    /// # Safety
    /// As for [`MappedRange::new`].
    unsafe fn try_map(
        &mut self,
        start: *mut u8,
        length: usize,
    ) -> std::result::Result<(MappedRange, Vec<u8>), String> {
        let range = (start.addr(), length);
        let named = |why: &str| format!("{} bytes at {:#x} {why}", range.1, range.0);
        if self.unregistrable.contains(&range) {
            return Err(named("could not be registered before"));
        }
        // SAFETY: the caller upholds the contract.
        unsafe { self.map(start, length) }.map_err(|error| {
            if self.unregistrable.len() == UNREGISTRABLE_MAX {
                self.unregistrable.pop_front();
            }
            self.unregistrable.push_back(range);
            named(&format!("cannot be registered: {error}"))
        })
    }

    /// # Safety
    /// As for [`Client::keep_blocks`].
    pub(super) unsafe fn keep_side(&mut self, side: Side<'_>) -> Option<Registered> {
        let (start, length) = side.memory.range();
        let of_all = (0..).zip(side.counts.iter().zip(side.displacements));
        let blocks: BlockList = of_all
            .map(|(peer, (count, displacement))| Block {
                peer,
                offset: *displacement as u64,
                length: *count as u64,
            })
            .collect();
        let direct_min = self.direct_min as u64;
        let is_used = Span::of(&blocks, direct_min).is_some();
        // A start would leave out short blocks at the ends.
        let whole = Span {
            first: 0,
            end: length as u64,
        };
        // SAFETY: the caller upholds the contract.
        unsafe {
            self.keep(
                start,
                length,
                is_used && whole.is_dense(&blocks, direct_min),
            )
        }
    }

    /// # Safety
    /// As for [`Client::keep_blocks`].
    pub(super) unsafe fn keep(
        &mut self,
        start: *mut u8,
        length: usize,
        is_used: bool,
    ) -> Option<Registered> {
        if !is_used || self.check().is_err() {
            return None;
        }
        // SAFETY: the caller upholds the contract.
        let (range, packed) = unsafe { self.try_map(start, length) }.ok()?;
        Some(Registered {
            range,
            start,
            packed,
        })
    }

    /// An export of the program's memory, with a name if there is one. The handle was asked for now: UCX has the memory
    /// registered.
    fn named(&mut self, area: &Area, packed: &[u8], held: &mut Held) -> Reached {
        let (address, length) = (area.start.addr() as u64, area.length as u64);
        let free = held.names.iter().position(Option::is_none);
        let taken = free.and_then(|free| {
            let (name, known) = self.names.take(packed, (address, length))?;
            held.names[free] = Some((name, 0));
            Some((free, name, known))
        });
        let known = taken.map_or(0, |(_, _, known)| known);
        let is_known = (0..self.lanes.count()).all(|lane| known & 1 << lane != 0);
        Reached {
            export: Export {
                address,
                length,
                packed: if is_known {
                    Vec::new()
                } else {
                    packed.to_vec()
                },
                name: taken.map(|(_, name, _)| name),
            },
            known,
            name: taken.map(|(free, ..)| free),
        }
    }

    /// Registers memory of the client for these pieces of a buffer.
    ///
    /// # Safety
    /// As for [`Client::launch`]; the pieces lie inside the buffer.
    unsafe fn copy_for(
        &mut self,
        area: &Area,
        pieces: Vec<Piece>,
        copied: Copied,
        why: &str,
        held: &mut Held,
    ) -> Got<Reached> {
        let no_memory = |what: String| NoMemory(format!("{why}; {what}"));
        let length = usize::try_from(packed_length(&pieces))
            .map_err(|_| no_memory("the blocks are longer than the memory".to_owned()))?;
        let others = self.bounced + held.bounced();
        if others > 0 && others.saturating_add(length) > BOUNCED_MAX {
            return Err(no_memory(format!(
                "copies of blocks have {others} of {BOUNCED_MAX} bytes already"
            )));
        }
        let mut memory = Buffer::untouched(length)
            .map_err(|error| no_memory(format!("there is no memory for a copy: {error}")))?;
        if copied != Copied::Out {
            // SAFETY: the caller upholds the contract.
            unsafe { area.copy_in(&pieces, memory.as_mut_slice()) };
        }
        let start = memory.as_ptr().cast_mut();
        // SAFETY: the memory is kept until the registration ends, and nobody else knows it.
        let (mapped, packed) = unsafe { self.map(start, length) }.map_err(|error| {
            no_memory(format!(
                "a copy cannot be registered either: {error}: is the limit of locked memory too low (ulimit -l)?"
            ))
        })?;
        let export = Export {
            address: memory.address(),
            length: length as u64,
            packed,
            name: None,
        };
        held.mapped.push(mapped);
        let back = if copied == Copied::In {
            Vec::new()
        } else {
            pieces
        };
        held.bounces.push(Bounce { memory, back });
        Ok(Reached {
            export,
            known: 0,
            name: None,
        })
    }

    /// Registers and exports a range.
    ///
    /// # Safety
    /// As for [`MappedRange::new`].
    pub(super) unsafe fn map(
        &mut self,
        start: *mut u8,
        length: usize,
    ) -> Result<(MappedRange, Vec<u8>)> {
        let begin = Instant::now();
        // SAFETY: the caller upholds the contract.
        let range = unsafe { MappedRange::new(&self.context, start, length) }?;
        let packed = range.export()?.to_vec();
        self.numbers.registration += begin.elapsed();
        self.numbers.registrations += 1;
        Ok((range, packed))
    }
}

impl Reached {
    /// The export for the SP of a lane.
    fn in_lane(&self, lane: usize, held: &mut Held) -> Export {
        let bit = 1 << lane;
        if let Some(name) = self.name
            && let Some((_, lanes)) = &mut held.names[name]
        {
            *lanes |= bit;
        }
        let mut export = self.export.clone();
        if self.known & bit != 0 {
            export.packed = Vec::new();
        }
        export
    }

    /// A part of the memory.
    fn part(&self, start: usize, length: usize) -> Self {
        let export = Export {
            address: self.export.address.wrapping_add(start as u64),
            length: length as u64,
            ..self.export.clone()
        };
        Self { export, ..*self }
    }
}

impl Area {
    /// Bytes of the buffer.
    ///
    /// # Safety
    /// They are readable memory inside the buffer, to which no thread writes now.
    unsafe fn bytes(&self, start: usize, length: usize) -> Vec<u8> {
        if length == 0 {
            return Vec::new();
        }
        // SAFETY: the caller upholds the contract.
        unsafe { std::slice::from_raw_parts(self.start.wrapping_add(start), length) }.to_vec()
    }

    /// A part of the buffer.
    fn part(&self, first: u64, length: u64) -> Self {
        let number = |number: u64| usize::try_from(number).expect("a part of a buffer");
        Self {
            start: self.start.wrapping_add(number(first)),
            length: number(length),
            packed: None,
        }
    }

    /// Copies pieces of the buffer to their places in `to`.
    ///
    /// # Safety
    /// The pieces are readable memory inside the buffer, to which no thread writes now.
    unsafe fn copy_in(&self, pieces: &[Piece], to: &mut [u8]) {
        for piece in pieces {
            let from = self.part(piece.at, piece.length);
            // SAFETY: the caller upholds the contract.
            let bytes = unsafe { std::slice::from_raw_parts(from.start, from.length) };
            let packed = usize::try_from(piece.packed).expect("inside the memory");
            to[packed..packed + bytes.len()].copy_from_slice(bytes);
        }
    }
}

impl Bounce {
    /// Copies what the device has written to the receive buffer that begins at `start`; of each range at most `most` bytes, as a
    /// message may be shorter than its receive.
    ///
    /// # Safety
    /// The pieces are writable memory of that buffer, which no thread accesses now, and the device has written them.
    pub(super) unsafe fn copy_back(&self, start: *mut u8, most: u64) {
        let bytes = self.memory.as_slice();
        for piece in &self.back {
            let number = |number: u64| usize::try_from(number).expect("inside the memory");
            let (packed, length) = (number(piece.packed), number(piece.length.min(most)));
            let from = &bytes[packed..packed + length];
            // SAFETY: the caller upholds the contract.
            let to = unsafe { start.add(number(piece.at)) };
            // SAFETY: the same; both sides hold `length` bytes and are different memory.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, length) };
        }
    }
}

impl Held {
    /// Bytes of the client's own memory.
    pub(super) fn bounced(&self) -> usize {
        self.bounces.iter().map(|bounce| bounce.memory.len()).sum()
    }
}
