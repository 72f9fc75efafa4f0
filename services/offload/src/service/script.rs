//! A job at one SP that receives any messages in any order, for a fuzz target: the data path without UCX.
//!
//! The bytes of an input are a script: who sends which message, and when reads complete. Most messages are nearly valid, so
//! that the script gets beyond the first check. An error ends the job, as in a service; a panic is a defect.

use crate::draft::{RtsDraft, RtsHead};
use crate::error::{OffloadError, Result};
use crate::reduction::Reduction;
use crate::service::mover::{Destination, Limits, Mover, Peers};
use crate::service::transport::{Ended, Range, Sent, Transport};
use crate::token::Token;
use crate::wire::{
    Block, Collective, DpuFin, DpuNote, DpuRelay, Export, ExportRef, HostArrive, HostReduce,
    HostTree, Kind, Route, TREE_STEP, Target,
};

use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// SP 0 is the one under test; it serves ranks 0, 1 and 3.
const SERVICE_OF: [u32; 6] = [0, 0, 1, 0, 1, 2];
const ME: u32 = 0;

/// Minimum length of a block that the device reads.
const DIRECT_MIN: u64 = 512;

/// Lengths of blocks: none, short, at the limit, and longer.
const LENGTHS: [u64; 6] = [0, 1, 5, 511, 512, 4096];

/// Maximum number of steps of a script.
const STEPS_MAX: usize = 64;

/// Records offers, and completes reads on request.
#[derive(Debug, Default)]
struct Machine {
    /// Offers of the SP: the receiver and the number.
    offers: RefCell<Vec<(u32, u64)>>,
    reads: RefCell<Vec<Rc<Cell<bool>>>>,
}

/// The receiver of a message.
#[derive(Debug, Clone, Copy)]
enum Place {
    Rank,
    Service(u32),
}

/// Memory of a rank or of the SP.
#[derive(Debug)]
struct Memory {
    address: u64,
    bytes: Vec<u8>,
}

impl Transport for Machine {
    type Peer = Place;
    type Memory = Memory;
    type Key = ();
    type Packed = Vec<u8>;
    type Operation = ();
    type Reads = Vec<(u64, Rc<Cell<bool>>)>;

    fn send(&self, to: &Place, kind: Kind, _: Token, data: Vec<u8>) -> Result<Sent<()>> {
        if let (Place::Service(to), Kind::DpuRts) = (to, kind) {
            let number = data.get(24..32).and_then(|word| word.first_chunk());
            let number = number.expect("an offer has a number");
            self.offers
                .borrow_mut()
                .push((*to, u64::from_le_bytes(*number)));
        }
        Ok(Sent::AtOnce(data))
    }

    fn import(&self, export: ExportRef<'_>) -> Result<Memory> {
        Ok(Memory {
            address: export.address,
            bytes: Vec::new(),
        })
    }

    fn address(&self, memory: &Memory) -> u64 {
        memory.address
    }

    fn pack(&self, _: &Memory) -> Result<Vec<u8>> {
        Ok(vec![1; 40])
    }

    fn stage(&self, length: usize) -> Result<Memory> {
        Ok(Memory {
            address: 1 << 46,
            bytes: vec![0; length],
        })
    }

    fn bytes<'a>(&self, memory: &'a mut Memory) -> Option<&'a mut [u8]> {
        (!memory.bytes.is_empty()).then_some(&mut memory.bytes[..])
    }

    fn unmap(&self, _: Memory) -> Result<()> {
        Ok(())
    }

    fn unpack(&self, _: &Place, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read(&self, reads: &mut Self::Reads, range: Range<'_, Self>, tag: u64) -> Result<bool> {
        // UCX refuses what is outside an imported buffer. Memory of the SP itself must never be exceeded.
        let into = &range.into.bytes;
        if !into.is_empty() {
            let end = usize::try_from(range.to).expect("inside") + range.length;
            assert!(end <= into.len(), "{end} of {}", into.len());
        }
        let read = Rc::new(Cell::new(false));
        self.reads.borrow_mut().push(Rc::clone(&read));
        reads.push((tag, read));
        Ok(true)
    }

    fn reads_len(reads: &Self::Reads) -> usize {
        reads.len()
    }

    fn next_read(&self, reads: &mut Self::Reads) -> Option<(u64, Ended)> {
        let at = reads.iter().position(|(_, read)| read.get())?;
        Some((reads.remove(at).0, Ok(())))
    }

    fn aliases(&self) -> Option<(u64, u64)> {
        None
    }

    fn has_ended(&self, (): &()) -> Result<bool> {
        Ok(true)
    }
}

/// The rest of an input. It ends in zeros.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    fn rank(&mut self) -> u32 {
        // One of them does not exist.
        u32::try_from(self.below(SERVICE_OF.len() + 1)).expect("small")
    }

    fn collective(&mut self) -> Collective {
        let byte = self.byte();
        Collective {
            communicator: u64::from(byte & 1),
            sequence: u32::from(byte >> 1 & 1),
            start: u32::from(byte >> 7),
            step: match self.byte() {
                level @ 0..40 => TREE_STEP | u32::from(level & 3),
                _ => u32::from(byte >> 4 & 7),
            },
        }
    }

    fn length(&mut self) -> u64 {
        let byte = self.below(16);
        LENGTHS.get(byte).copied().unwrap_or(5)
    }

    /// A block for each of some ranks. The lengths follow from the ranks, so that those of two ranks agree, unless the
    /// script says otherwise.
    fn blocks(&mut self, peers: &[u32], of: impl Fn(u32) -> u64) -> Vec<Block> {
        let variant = self.byte();
        let mut blocks: Vec<Block> = peers
            .iter()
            .map(|peer| Block {
                peer: *peer,
                offset: u64::from(*peer) * 4096,
                length: of(*peer),
            })
            .collect();
        match variant {
            250 => blocks.reverse(),
            251 => blocks.truncate(self.below(4)),
            252 => blocks.extend_from_within(..),
            253 => {
                for block in &mut blocks {
                    block.offset = u64::MAX - block.offset;
                }
            }
            254 => {
                let length = self.length();
                for block in &mut blocks {
                    block.length = length;
                }
            }
            255 => {
                for block in &mut blocks {
                    block.peer = self.rank();
                }
            }
            _ => {}
        }
        blocks
    }
}

/// Length of the block from one rank to another.
fn between(from: u32, to: u32) -> u64 {
    LENGTHS[(from * 5 + to * 3) as usize % LENGTHS.len()]
}

fn short_of(blocks: &[Block]) -> Vec<u8> {
    let short = blocks.iter().filter(|block| block.length < DIRECT_MIN);
    let bytes: u64 = short.map(|block| block.length).sum();
    vec![7; usize::try_from(bytes).expect("few")]
}

fn export(length: u64) -> Export {
    Export {
        address: 1 << 40,
        length,
        packed: vec![1; 40],
        name: None,
    }
}

fn rank_token(rank: u32) -> Token {
    Token(u128::from(rank).to_le_bytes())
}

fn service_token(service: u32) -> Token {
    Token(u128::from(100 + service).to_le_bytes())
}

fn mover() -> Mover<Machine> {
    let ours = |rank: &u32| SERVICE_OF.get(*rank as usize) == Some(&ME);
    let ranks = 0..u32::try_from(SERVICE_OF.len()).expect("few");
    let peers = Peers {
        me: ME,
        service_of: SERVICE_OF.to_vec(),
        ranks: ranks
            .clone()
            .filter(ours)
            .map(|rank| Destination {
                peer: Place::Rank,
                token: rank_token(rank),
            })
            .collect(),
        from_ranks: ranks.filter(ours).map(rank_token).collect(),
        services: (0..3)
            .map(|to| {
                Some(Destination {
                    peer: Place::Service(to),
                    token: service_token(to),
                })
            })
            .collect(),
    };
    let limits = Limits {
        sends: 2,
        receives: 2,
        direct_min: DIRECT_MIN,
        imports: 4,
        radix: crate::radix::Radix::default(),
    };
    let mut mover = Mover::new(peers, limits);
    for service in 1..3 {
        mover.expect_service(service, service_token(service));
    }
    mover
}

fn everyone() -> Vec<u32> {
    (0..u32::try_from(SERVICE_OF.len()).expect("few")).collect()
}

/// Runs a script; returns true if it has not broken the protocol.
#[must_use]
pub fn job(bytes: &[u8]) -> bool {
    let machine = Machine::default();
    let mut mover = mover();
    let mut script = Script(bytes);
    let mut steps = 0;
    while !script.0.is_empty() && steps < STEPS_MAX {
        steps += 1;
        if step(&machine, &mut mover, &mut script).is_err() {
            return false;
        }
    }
    // What messages have made the SP keep is counted until the end of their calls, and not longer.
    let queues = mover.queues();
    assert!(queues.calls > 0 || mover.call_bytes() == 0, "{queues:?}");
    true
}

fn step(machine: &Machine, mover: &mut Mover<Machine>, script: &mut Script<'_>) -> Result<()> {
    let mut receive =
        |kind, token: Token, data: &[u8]| mover.receive(machine, kind, &token.0, data);
    match script.below(13) {
        0..=2 => {
            let message = arrival(script);
            receive(
                Kind::HostArrive,
                rank_token(message.rank),
                &message.to_bytes(),
            )?;
        }
        3 | 4 => {
            let (from, data) = offer(script);
            receive(Kind::DpuRts, service_token(from), &data)?;
        }
        5 => {
            let message = reduction(script);
            receive(
                Kind::HostReduce,
                rank_token(message.rank),
                &message.to_bytes(),
            )?;
        }
        6 => {
            let offers = machine.offers.take();
            for (from, offer) in offers {
                let offer = match script.byte() {
                    255 => offer.wrapping_add(1),
                    _ => offer,
                };
                let fin = DpuFin {
                    from,
                    offers: vec![offer],
                };
                receive(Kind::DpuFin, service_token(from), &fin.to_bytes())?;
            }
        }
        7 => {
            for read in machine.reads.take() {
                read.set(true);
            }
            mover.reap(machine)?;
        }
        8 => drop(mover.settle(machine)?),
        9 => {
            let message = tree(script);
            receive(
                Kind::HostTree,
                rank_token(message.rank),
                &message.to_bytes(),
            )?;
        }
        10 => {
            let from = 1 + u32::from(script.byte() & 1);
            let mut collective = script.collective();
            collective.step = u32::from(script.byte() & 3);
            let note = DpuNote { collective, from }.to_bytes_in(Vec::new());
            receive(Kind::DpuNote, service_token(from), &note)?;
        }
        11 => {
            let (from, data) = offer(script);
            let to = u32::from(script.byte() & 3);
            let mut collective = script.collective();
            collective.step = 0;
            let relay = DpuRelay {
                collective,
                from,
                id: script.byte().into(),
                root: (script.byte() & 1 == 0).then_some(to),
                offers: vec![(to, &data[..]); usize::from(script.byte() & 3)],
            };
            receive(Kind::DpuRelay, service_token(from), &relay.to_bytes())?;
        }
        _ => {
            let kind = Kind::from_id(u16::from(script.byte()) % (Kind::COUNT + 2));
            let kind = kind.ok_or_else(|| OffloadError::Failed("an unknown kind".to_owned()))?;
            let token = match script.byte() {
                from @ 0..200 => rank_token(from.into()),
                from => service_token(u32::from(from) - 200),
            };
            let length = script.0.len().min(usize::from(script.byte()));
            let (data, rest) = script.0.split_at_checked(length).unwrap_or_default();
            script.0 = rest;
            receive(kind, token, data)?;
        }
    }
    mover.act(machine).map(drop)
}

fn arrival(script: &mut Script<'_>) -> HostArrive {
    let rank = script.rank();
    let mut collective = script.collective();
    collective.step = 0;
    let sends = script.blocks(&everyone(), |to| between(rank, to));
    let receives = script.blocks(&everyone(), |from| between(from, rank));
    let mut short = short_of(&sends);
    if script.byte() == 255 {
        short.push(0);
    }
    HostArrive {
        collective,
        rank,
        together: 1,
        send_memory: Some(export(1 << 16)),
        receive_memory: Some(export(1 << 16)),
        sends: sends.into(),
        receives: receives.into(),
        short,
        route: match script.byte() {
            0..16 => Route::Scatter,
            byte @ 16..64 => Route::Gather {
                root: u32::from(byte) % 5,
                members: everyone().into(),
            },
            _ => Route::Direct,
        },
    }
}

/// DPU_RTS of another SP, with its number.
fn offer(script: &mut Script<'_>) -> (u32, Vec<u8>) {
    let from = 1 + u32::from(script.byte() & 1);
    let collective = script.collective();
    let mut draft = RtsDraft::default();
    for source in everyone() {
        let is_theirs = SERVICE_OF[source as usize] == from;
        if !is_theirs && script.byte() != 255 {
            continue;
        }
        let blocks = script.blocks(&[0, 1, 3], |to| between(source, to));
        for block in blocks {
            if !draft.is_open() {
                draft.begin::<crate::wire::Wide>(source, 1 << 40);
            }
            let short = short_of(&[block]);
            let short = (block.length < DIRECT_MIN).then_some(&short[..]);
            draft.block(&block.wide(), short);
        }
        if draft.is_open() {
            draft.end(&[1; 40]);
        }
    }
    if draft.sources() == 0 {
        draft.begin::<crate::wire::Wide>(2, 0);
        draft.end(&[]);
    }
    let head = RtsHead {
        whole: 0,
        collective,
        from,
        offer: script.byte().into(),
    };
    (from, draft.finish(head).1)
}

/// A rank's part in a broadcast or barrier.
fn tree(script: &mut Script<'_>) -> HostTree {
    let rank = script.rank();
    let mut collective = script.collective();
    collective.step = 0;
    let members = match script.byte() {
        255 => (0..script.below(9)).map(|_| script.rank()).collect(),
        0..128 => vec![0, 1, 3],
        _ => everyone(),
    };
    let root = match script.byte() {
        255 => script.rank(),
        byte => u32::from(byte & 1),
    };
    let is_barrier = script.byte() & 1 == 0;
    let length = if is_barrier { 0 } else { script.length() };
    let is_short = length < DIRECT_MIN;
    let short = if is_short && rank == root { length } else { 0 };
    HostTree {
        whole: 0,
        collective,
        rank,
        root,
        is_barrier,
        members: members.into(),
        memory: (!is_short).then(|| export(length)),
        length,
        short: vec![9; usize::try_from(short).expect("short")],
    }
}

fn reduction(script: &mut Script<'_>) -> HostReduce {
    let rank = script.rank();
    let mut collective = script.collective();
    collective.step = 0;
    let codes = (script.byte() % 12, script.byte() % 11);
    let sum = || Reduction::from_codes(2, 0).expect("a sum");
    let reduction = Reduction::from_codes(codes.0.into(), codes.1.into()).unwrap_or_else(sum);
    let element = reduction.element_size() as u64;
    let elements = [0, 1, 63, 64, 8192, 40_000, 70_000][script.below(7)];
    let length = elements * element;
    let members = match script.byte() {
        255 => (0..script.below(9)).map(|_| script.rank()).collect(),
        0..128 => vec![0, 1, 3],
        _ => everyone(),
    };
    let is_short = length < DIRECT_MIN;
    let memory = |export: Export| (!is_short).then_some(export);
    HostReduce {
        whole: 0,
        collective,
        rank,
        reduction,
        turn: (script.byte() & 1 == 0).then_some(collective.sequence),
        open: u32::from(script.byte() & 1),
        length,
        target: match script.byte() % 4 {
            0 => Target::Root(script.rank()),
            1 => Target::Ranges(vec![Block {
                peer: script.rank(),
                offset: 0,
                length: 1 + length / 2,
            }]),
            _ => Target::All,
        },
        members: members.into(),
        send_memory: if script.byte() & 1 == 0 {
            memory(export(length))
        } else {
            None
        },
        receive_memory: memory(export(length)),
        short: if is_short {
            vec![1; usize::try_from(length).expect("short")]
        } else {
            Vec::new()
        },
    }
}
