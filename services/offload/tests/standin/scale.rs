//! Whole jobs of many light ranks: the messages of ranks and services are real, and no UCX is beneath. It counts bytes,
//! messages and memory of one call.
//!
//! Blocks have 8 bytes, so that they travel in the messages; every byte that a rank gets is compared. An alltoall of many
//! ranks does not fit in one process: there, one service is measured, and the offers of the others for it alone are made
//! before.

mod one;
pub mod several;
pub mod trees;
mod vector;

use super::{KEY_BYTES, Packed, rank_token, service_token};
use crate::client::Lanes;
use crate::draft::RtsHead;
use crate::error::{OffloadError, Result};
use crate::radix::Radix;
use crate::reduction::{Element, Operation, Reduction};
use crate::service::mover::{Destination, Limits, Mover, Peers};
use crate::service::outbox::Queue;
use crate::service::transport::{Ended, Range, Sent, Transport};
use crate::token::Token;
use crate::wire::runs::Run;
use crate::wire::{
    Block, BlockList, Collective, DpuFin, DpuRts, ExportRef, HostArrive, HostFin, HostReduce,
    HostTree, Kind, Route, Target,
};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Offers without an answer, the default of `--sends`.
const SENDS: usize = 4;

/// Length of a block.
const BLOCK: u64 = 8;
const BLOCK_BYTES: usize = 8;

/// Blocks of an alltoall beyond which only one service is measured.
const WHOLE_MAX: u64 = 1 << 22;

/// Length of the token in front of each message.
const TOKEN: u64 = 16;

/// Place of the rank in its message to the service.
const RANK_AT: usize = 21;

/// A call of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Every rank sends a block to every rank.
    Alltoall,
    /// An alltoallv in a three-dimensional grid: each rank has six partners.
    Halo,
    /// Rank 0 sends a block to all.
    Broadcast,
    /// No data.
    Barrier,
    /// Every rank gets the sum of a number of each.
    Allreduce,
    /// Every rank gets the sum of a vector of so many bytes of each, which services read.
    Vector(u64),
    /// Every rank sends a block to rank 0.
    Gather,
    /// Rank 0 sends a block to every rank.
    Scatter,
}

impl Pattern {
    /// Length of the vectors that services read.
    fn vector(self) -> Option<u64> {
        match self {
            Self::Vector(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// A job with one service per node.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Total number of ranks, a power of two of at least 64.
    pub ranks: u32,
    /// Number of nodes, which divides the ranks.
    pub nodes: u32,
    /// The call.
    pub pattern: Pattern,
    /// Number of calls.
    pub rounds: u32,
}

/// How the caller counts memory.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    /// Begins to count.
    pub mark: &'a dyn Fn(),
    /// Most bytes in use since then.
    pub peak: &'a dyn Fn() -> usize,
}

impl Memory<'_> {
    /// Counts nothing.
    const NONE: Self = Self {
        mark: &|| (),
        peak: &|| 0,
    };
}

impl std::fmt::Debug for Memory<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

/// Measurements of one call. Bytes are without the program's data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Bytes of a rank's message to its service; the rank with most.
    pub to_service: u64,
    /// Bytes of offers that a service sends, per rank of its own; the service with most.
    pub offers_per_rank: f64,
    /// Bytes of the answers to offers that a service sends, per rank of its own.
    pub answers_per_rank: f64,
    /// Bytes of a service's message to a rank, the longest.
    pub to_rank: u64,
    /// Messages that a service sends to others and gets from them; the service with most.
    pub messages: u64,
    /// Blocks that were compared, per call; of a vector, all that were read.
    pub blocks: u64,
    /// Peak memory to make a rank's message.
    pub memory_per_rank: usize,
    /// Peak memory of a service.
    pub memory_per_service: usize,
}

/// A message to a service.
#[derive(Debug)]
struct Letter {
    from: u32,
    to: u32,
    kind: Kind,
    token: Token,
    data: Vec<u8>,
}

/// Receiver of a message.
#[derive(Debug, Clone, Copy)]
enum Place {
    Rank(u32),
    Service(u32),
}

/// What a service has sent and got.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    offers: u64,
    answers: u64,
    messages: u64,
    /// Messages from and to ranks.
    of_ranks: u64,
}

/// The services of a job, or of one of its lanes.
#[derive(Debug)]
struct Layout {
    services: u32,
    service_of: Vec<u32>,
    lane: Option<(Lanes, usize)>,
    radix: Radix,
    sends: usize,
}

impl Layout {
    /// One service per node.
    fn of(plan: &Plan) -> Self {
        let per_node = plan.ranks / plan.nodes;
        Self {
            services: plan.nodes,
            service_of: (0..plan.ranks).map(|rank| rank / per_node).collect(),
            lane: None,
            radix: Radix::default(),
            sends: SENDS,
        }
    }

    /// Whether a rank gets blocks in the lane.
    fn receives(&self, rank: u32) -> bool {
        let lane = self.lane.as_ref();
        lane.is_none_or(|(lanes, lane)| lanes.of(rank) == *lane)
    }
}

/// Counts and compares, and passes messages on.
#[derive(Debug)]
struct Wire {
    plan: Plan,
    layout: Layout,
    letters: RefCell<VecDeque<Letter>>,
    tallies: RefCell<Vec<Tally>>,
    /// The service that acts.
    acting: Cell<u32>,
    completed: Cell<u64>,
    blocks: Cell<u64>,
    to_rank: Cell<u64>,
    vectors: vector::Vectors,
}

impl Transport for Wire {
    type Peer = Place;
    type Memory = vector::Area;
    type Key = u64;
    type Packed = Packed;
    type Operation = ();
    type Reads = ();

    fn send(&self, to: &Place, kind: Kind, token: Token, data: Vec<u8>) -> Result<Sent<()>> {
        match *to {
            Place::Rank(rank) => {
                self.deliver(rank, &data)?;
                Ok(Sent::AtOnce(data))
            }
            Place::Service(to) => {
                let from = self.acting.get();
                self.count(from, to, kind, &data)?;
                self.letters.borrow_mut().push_back(Letter {
                    from,
                    to,
                    kind,
                    token,
                    data,
                });
                Ok(Sent::AtOnce(Vec::new()))
            }
        }
    }

    fn import(&self, export: ExportRef<'_>) -> Result<vector::Area> {
        Ok(vector::Area::of_rank(export.address))
    }

    fn address(&self, memory: &vector::Area) -> u64 {
        memory.address
    }

    fn pack(&self, _: &vector::Area) -> Result<Packed> {
        Ok(Packed([0; KEY_BYTES]))
    }

    fn stage(&self, length: usize) -> Result<vector::Area> {
        Ok(self.vectors.stage(self.acting.get(), length))
    }

    fn bytes<'a>(&self, memory: &'a mut vector::Area) -> Option<&'a mut [u8]> {
        memory.bytes()
    }

    fn unmap(&self, memory: vector::Area) -> Result<()> {
        self.vectors.unmap(self.acting.get(), memory);
        Ok(())
    }

    fn unpack(&self, _: &Place, _: &[u8]) -> Result<u64> {
        Ok(0)
    }

    fn read(&self, (): &mut (), range: Range<'_, Self>, _: u64) -> Result<bool> {
        if self.plan.pattern.vector().is_none() {
            return Err(failed("a block of 8 bytes is read by the device"));
        }
        self.blocks.set(self.blocks.get() + 1);
        let to = range.into.address + range.to;
        self.vectors.read(range.address, to, range.length);
        Ok(false)
    }

    fn reads_len((): &()) -> usize {
        0
    }

    fn next_read(&self, (): &mut ()) -> Option<(u64, Ended)> {
        None
    }

    fn aliases(&self) -> Option<(u64, u64)> {
        None
    }

    fn has_ended(&self, (): &()) -> Result<bool> {
        Ok(true)
    }
}

impl Wire {
    fn new(plan: Plan) -> Self {
        Self::over(plan, Layout::of(&plan))
    }

    fn over(plan: Plan, layout: Layout) -> Self {
        Self {
            plan,
            letters: RefCell::default(),
            tallies: RefCell::new(vec![Tally::default(); layout.services as usize]),
            vectors: vector::Vectors::new(&plan, layout.services),
            layout,
            acting: Cell::new(0),
            completed: Cell::new(0),
            blocks: Cell::new(0),
            to_rank: Cell::new(0),
        }
    }

    fn count(&self, from: u32, to: u32, kind: Kind, data: &[u8]) -> Result<()> {
        let data_of_program = match kind {
            Kind::DpuRts => {
                let rts = DpuRts::parse(data).map_err(|bad| failed(bad.to_string()))?;
                rts.short.len() as u64
            }
            _ => 0,
        };
        let bytes = TOKEN + data.len() as u64 - data_of_program;
        let mut tallies = self.tallies.borrow_mut();
        tallies[to as usize].messages += 1;
        let sender = &mut tallies[from as usize];
        sender.messages += 1;
        match kind {
            Kind::DpuRts | Kind::DpuRelay => sender.offers += bytes,
            _ => sender.answers += bytes,
        }
        Ok(())
    }

    /// A rank's call is complete: compares what it has got.
    fn deliver(&self, rank: u32, data: &[u8]) -> Result<()> {
        let fin = HostFin::parse(data).map_err(|bad| failed(bad.to_string()))?;
        let of_program = fin.bytes.len() as u64;
        let longest = self.to_rank.get();
        self.to_rank
            .set(longest.max(TOKEN + data.len() as u64 - of_program));
        self.completed.set(self.completed.get() + 1);
        self.tallies.borrow_mut()[self.acting.get() as usize].of_ranks += 1;
        if self.plan.pattern.vector().is_some() {
            self.vectors.is_complete(rank);
            return Ok(());
        }
        if self.plan.pattern == Pattern::Allreduce {
            let sum = (0..self.plan.ranks).fold(0, |sum: u64, of| sum.wrapping_add(content(of, 0)));
            assert_eq!(fin.bytes, sum.to_le_bytes(), "rank {rank}");
            self.blocks.set(self.blocks.get() + 1);
            return Ok(());
        }
        let expect: Vec<u32> = match self.plan.pattern {
            Pattern::Alltoall | Pattern::Halo if !self.layout.receives(rank) => Vec::new(),
            _ => receives(&self.plan, rank).collect(),
        };
        let mut found = vec![None; expect.len()];
        let mut rest = &fin.bytes[..];
        let blocks = fin.short.iter();
        for (offset, length) in blocks.flat_map(|of| of.offsets().map(|at| (at, of.length))) {
            let (bytes, after) = rest.split_at(BLOCK_BYTES);
            rest = after;
            assert_eq!(length, BLOCK, "rank {rank}");
            let at = usize::try_from(offset / BLOCK).expect("small");
            found[at] = bytes.first_chunk().copied().map(u64::from_le_bytes);
        }
        for (source, got) in expect.iter().zip(found) {
            let whose = match self.plan.pattern {
                Pattern::Broadcast => 0,
                _ => rank,
            };
            assert_eq!(got, Some(content(*source, whose)), "rank {rank}");
        }
        self.blocks.set(self.blocks.get() + expect.len() as u64);
        Ok(())
    }
}

/// The content of a block.
fn content(from: u32, to: u32) -> u64 {
    u64::from(from) << 32 | u64::from(to) << 1 | 1
}

/// Extent of the grid in each dimension.
fn grid(ranks: u32) -> [u32; 3] {
    let mut extents = [1; 3];
    for dimension in (0..ranks.ilog2()).map(|at| at % 3) {
        extents[dimension as usize] *= 2;
    }
    extents
}

/// The six partners of a rank; the grid is a torus.
fn partners(ranks: u32, rank: u32) -> Vec<u32> {
    let extents = grid(ranks);
    let mut partners = Vec::new();
    let mut apart = 1;
    for extent in extents {
        let at = rank / apart % extent;
        for to in [(at + 1) % extent, (at + extent - 1) % extent] {
            partners.push(rank - at * apart + to * apart);
        }
        apart *= extent;
    }
    partners.sort_unstable();
    partners
}

/// The ranks to which a rank sends a block.
fn sends(plan: &Plan, rank: u32) -> Box<dyn Iterator<Item = u32>> {
    match plan.pattern {
        Pattern::Alltoall => Box::new(0..plan.ranks),
        Pattern::Halo => Box::new(partners(plan.ranks, rank).into_iter()),
        Pattern::Broadcast if rank == 0 => Box::new(std::iter::once(0)),
        Pattern::Allreduce | Pattern::Gather => Box::new(std::iter::once(0)),
        Pattern::Scatter if rank == 0 => Box::new(0..plan.ranks),
        Pattern::Broadcast | Pattern::Barrier | Pattern::Scatter | Pattern::Vector(_) => {
            Box::new(std::iter::empty())
        }
    }
}

/// The ranks from which a rank gets a block.
fn receives(plan: &Plan, rank: u32) -> Box<dyn Iterator<Item = u32>> {
    match plan.pattern {
        Pattern::Alltoall => Box::new(0..plan.ranks),
        Pattern::Halo => Box::new(partners(plan.ranks, rank).into_iter()),
        Pattern::Broadcast if rank > 0 => Box::new(std::iter::once(0)),
        Pattern::Scatter => Box::new(std::iter::once(0)),
        Pattern::Gather if rank == 0 => Box::new(0..plan.ranks),
        _ => Box::new(std::iter::empty()),
    }
}

/// The rank's message to its service, and the number of bytes of the program in it.
fn message(plan: &Plan, rank: u32) -> (Kind, Vec<u8>, u64) {
    let is_same = plan.pattern == Pattern::Broadcast;
    let mut short = Vec::with_capacity(sends(plan, rank).count() * BLOCK_BYTES);
    for to in sends(plan, rank) {
        short.extend(content(rank, if is_same { 0 } else { to }).to_le_bytes());
    }
    let payload = short.len() as u64;
    if matches!(plan.pattern, Pattern::Allreduce | Pattern::Vector(_)) {
        let bytes = plan.pattern.vector();
        let buffer = |slot| bytes.map(|bytes| vector::buffer(rank, slot, bytes));
        let reduce = HostReduce {
            whole: 0,
            collective: COLLECTIVE,
            rank,
            reduction: Reduction::new(Element::U64, Operation::Sum).expect("defined"),
            turn: Some(0),
            open: 0,
            length: bytes.unwrap_or(BLOCK),
            members: (0..plan.ranks).collect(),
            target: Target::All,
            send_memory: buffer(0),
            receive_memory: buffer(1),
            short,
        };
        return (Kind::HostReduce, reduce.to_bytes(), payload);
    }
    if matches!(plan.pattern, Pattern::Broadcast | Pattern::Barrier) {
        let is_barrier = plan.pattern == Pattern::Barrier;
        let entry = HostTree {
            whole: 0,
            collective: COLLECTIVE,
            rank,
            root: 0,
            is_barrier,
            members: (0..plan.ranks).collect(),
            memory: None,
            length: if is_barrier { 0 } else { BLOCK },
            short,
        };
        return (Kind::HostTree, entry.to_bytes(), payload);
    }
    let arrive = HostArrive {
        collective: COLLECTIVE,
        rank,
        together: plan.ranks / plan.nodes,
        send_memory: None,
        receive_memory: None,
        sends: blocks(sends(plan, rank)),
        receives: blocks(receives(plan, rank)),
        short,
        route: match plan.pattern {
            Pattern::Gather => Route::Gather {
                root: 0,
                members: (0..plan.ranks).collect(),
            },
            Pattern::Scatter if rank == 0 => Route::Scatter,
            _ => Route::Direct,
        },
    };
    (Kind::HostArrive, arrive.to_bytes(), payload)
}

const COLLECTIVE: Collective = Collective {
    communicator: 0,
    sequence: 0,
    start: 0,
    step: 0,
};

/// Makes the messages of all ranks. Those of an alltoall or allreduce differ in the rank and the data alone, and those of a
/// broadcast or barrier in the rank, apart from the root's.
struct Messages {
    plan: Plan,
    /// That of rank 1.
    one: Option<(Kind, Vec<u8>, u64)>,
}

impl Messages {
    fn new(plan: Plan) -> Self {
        let is_same = plan.pattern != Pattern::Halo;
        Self {
            plan,
            one: is_same.then(|| message(&plan, 1)),
        }
    }

    fn of(&self, rank: u32) -> (Kind, Vec<u8>) {
        let one = self.one.as_ref().filter(|_| rank > 0);
        let Some((kind, data, payload)) = one else {
            let (kind, data, _) = message(&self.plan, rank);
            return (kind, data);
        };
        let mut data = data.clone();
        data[RANK_AT..RANK_AT + 4].copy_from_slice(&rank.to_le_bytes());
        if self.plan.pattern.vector().is_some() {
            vector::name(&mut data, rank);
        }
        let at = data.len() - usize::try_from(*payload).expect("in memory");
        for (to, place) in (0..).zip(data[at..].chunks_exact_mut(BLOCK_BYTES)) {
            place.copy_from_slice(&content(rank, to).to_le_bytes());
        }
        (*kind, data)
    }
}

/// A block for each of these ranks, one after the other.
fn blocks(peers: impl Iterator<Item = u32>) -> BlockList {
    let block = |(peer, at): (u32, u64)| Block {
        peer,
        offset: at * BLOCK,
        length: BLOCK,
    };
    peers.zip(0..).map(block).collect()
}

fn mover(layout: &Layout, me: u32) -> Mover<Wire> {
    let ranks = (0..).zip(&layout.service_of);
    let ours = ranks.filter(|(_, of)| **of == me).map(|(rank, _)| rank);
    let ours: Vec<u32> = ours.collect();
    let from_ranks = ours.iter().copied().map(rank_token).collect();
    let peers = Peers {
        me,
        service_of: layout.service_of.clone(),
        ranks: ours
            .into_iter()
            .map(|rank| Destination {
                peer: Place::Rank(rank),
                token: rank_token(rank),
            })
            .collect(),
        from_ranks,
        services: (0..layout.services)
            .map(|to| {
                Some(Destination {
                    peer: Place::Service(to),
                    token: service_token(me, to),
                })
            })
            .collect(),
    };
    let limits = Limits {
        sends: layout.sends,
        receives: 4,
        direct_min: 512,
        imports: 4,
        radix: layout.radix,
    };
    let mut mover = Mover::new(peers, limits);
    for from in 0..layout.services {
        mover.expect_service(from, service_token(from, me));
    }
    mover
}

/// Runs the calls and measures the first.
///
/// # Errors
/// Errors of the data path. They occur only if the data path has a defect.
pub fn run(plan: &Plan, memory: Memory<'_>) -> Result<Outcome> {
    let mut to_service = 0;
    let mut memory_per_rank = 0;
    for rank in [0, 1, plan.ranks / 2, plan.ranks - 1] {
        (memory.mark)();
        let (_, data, payload) = message(plan, rank);
        to_service = to_service.max(TOKEN + data.len() as u64 - payload);
        memory_per_rank = memory_per_rank.max((memory.peak)());
    }
    let squared = u64::from(plan.ranks) * u64::from(plan.ranks);
    let is_whole = plan.pattern != Pattern::Alltoall || squared <= WHOLE_MAX;
    let wire = Wire::new(*plan);
    let (memory_per_service, of) = if is_whole {
        (whole(&wire, memory)?, None)
    } else {
        let measured = plan.nodes / 2;
        (one::run(&wire, measured, memory)?, Some(measured))
    };
    let tallies = wire.tallies.borrow();
    let counted = |(index, _): &(u32, &Tally)| of.is_none_or(|of| of == *index);
    let counted: Vec<Tally> = (0..)
        .zip(&*tallies)
        .filter(counted)
        .map(|(_, tally)| *tally)
        .collect();
    let most = |of: fn(&Tally) -> u64| counted.iter().map(of).max().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^52")]
    let per_rank = |bytes: u64| bytes as f64 * f64::from(plan.nodes) / f64::from(plan.ranks);
    let rounds = u64::from(plan.rounds);
    Ok(Outcome {
        to_service,
        offers_per_rank: per_rank(most(|tally| tally.offers) / rounds),
        answers_per_rank: per_rank(most(|tally| tally.answers) / rounds),
        to_rank: wire.to_rank.get(),
        messages: most(|tally| tally.messages) / rounds,
        blocks: wire.blocks.get() / rounds,
        memory_per_rank,
        memory_per_service,
    })
}

/// Writes the number of the call over the upper half of the communicator's number.
fn number(kind: Kind, data: &mut [u8], round: u32) {
    let at = match kind {
        Kind::HostArrive | Kind::HostTree | Kind::HostReduce => 5,
        _ => 4,
    };
    data[at..at + 4].copy_from_slice(&round.to_le_bytes());
}

/// Runs all services. Returns the peak memory of one: the most for segments, and all else on average.
fn whole(wire: &Wire, memory: Memory<'_>) -> Result<usize> {
    let plan = wire.plan;
    let messages = Messages::new(plan);
    (memory.mark)();
    let layout = &wire.layout;
    let mut movers: Vec<Mover<Wire>> = (0..layout.services).map(|me| mover(layout, me)).collect();
    for round in 0..plan.rounds {
        for rank in 0..plan.ranks {
            let of = layout.service_of[rank as usize];
            let (kind, mut data) = messages.of(rank);
            number(kind, &mut data, round);
            let mover = &mut movers[of as usize];
            wire.acting.set(of);
            wire.tallies.borrow_mut()[of as usize].of_ranks += 1;
            mover.receive(wire, kind, &rank_token(rank).0, &data)?;
            mover.act(wire)?;
            pass(wire, &mut movers)?;
            let is_last = layout.service_of.get(rank as usize + 1) != Some(&of);
            if plan.pattern.vector().is_some() && is_last {
                // What all services keep for the next call would not fit.
                wire.acting.set(of);
                movers[of as usize].drop_free(wire)?;
            }
            let begun = u64::from(round) * u64::from(plan.ranks);
            assert!(
                plan.pattern != Pattern::Barrier
                    || rank + 1 == plan.ranks
                    || wire.completed.get() == begun,
                "a barrier ends before rank {} has entered it",
                rank + 1
            );
        }
        for (me, mover) in (0..).zip(&mut movers) {
            wire.acting.set(me);
            mover.settle(wire)?;
        }
        pass(wire, &mut movers)?;
    }
    let peak = (memory.peak)();
    let expect = u64::from(plan.rounds) * u64::from(plan.ranks);
    assert_eq!(wire.completed.get(), expect, "each rank completes once");
    let (of_one, of_all) = wire.vectors.staged();
    Ok(peak.saturating_sub(of_all) / plan.nodes as usize + of_one)
}

/// Passes messages on until none are left. A service takes all its messages and then acts, and settles when it has no more.
/// Returns how many messages, one after the other, the last rank that completes has waited for.
fn pass(wire: &Wire, movers: &mut [Mover<Wire>]) -> Result<u32> {
    let mut is_awake = vec![false; movers.len()];
    let mut awake = Vec::new();
    let (mut waves, mut depth) = (0, 0);
    loop {
        let batch = std::mem::take(&mut *wire.letters.borrow_mut());
        if batch.is_empty() {
            return Ok(depth);
        }
        waves += 1;
        let completed = wire.completed.get();
        for letter in batch {
            let to = letter.to as usize;
            wire.acting.set(letter.to);
            movers[to].receive(wire, letter.kind, &letter.token.0, &letter.data)?;
            if !std::mem::replace(&mut is_awake[to], true) {
                awake.push(letter.to);
            }
        }
        for to in awake.drain(..) {
            is_awake[to as usize] = false;
            wire.acting.set(to);
            movers[to as usize].act(wire)?;
        }
        if wire.completed.get() > completed {
            depth = waves;
        }
    }
}

fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}

#[cfg(test)]
mod tests;
