//! Runs the data path of whole jobs without UCX: the ranks only arrive, and the transport only counts. The measured
//! cost is that of this project's own code.

pub mod connect;
pub mod reduce;
pub mod scale;

use super::mover::{Destination, Limits, Mover, Peers};
use super::transport::{Ended, Range, Run, Sent, Started, Transport};
use crate::client::{RANKS_PER_SP, services_used};
use crate::error::{OffloadError, Result};
use crate::token::Token;
use crate::wire::{Block, BlockList, Collective, Export, ExportRef, HostArrive, Kind, Name, Route};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A job on two nodes that repeats an alltoallv of equal blocks.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Total number of ranks, an even number.
    pub ranks: u32,
    /// Number of service processes per node.
    pub services_per_node: u32,
    /// Length of each block in bytes.
    pub block_bytes: u64,
    /// Number of alltoallvs.
    pub rounds: u32,
}

/// Measurements of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Number of blocks moved.
    pub blocks: u64,
    /// Number of messages between ranks and services, and between services.
    pub messages: u64,
    /// Time spent in the services.
    pub time: Duration,
}

/// A queued message.
#[derive(Debug)]
struct Letter {
    to: Place,
    kind: Kind,
    token: Token,
    data: Vec<u8>,
}

/// Receiver of a message.
#[derive(Debug, Clone, Copy)]
enum Place {
    Rank,
    Service(usize),
}

/// Counts reads and forwards messages.
#[derive(Debug, Default)]
struct StandIn {
    letters: RefCell<VecDeque<Letter>>,
    /// The memory of letters that were read. UCX copies messages to memory of its own.
    spare: RefCell<Vec<Vec<u8>>>,
    blocks: Cell<u64>,
    messages: Cell<u64>,
    completed: Cell<u64>,
    block_bytes: u64,
}

/// Length of a packed key; matches UCX 1.20 with one device.
const KEY_BYTES: usize = 40;

/// A packed key. UCX allocates its own, which is not this project's cost.
#[derive(Debug)]
struct Packed([u8; KEY_BYTES]);

impl Default for Packed {
    fn default() -> Self {
        Self([0; KEY_BYTES])
    }
}

impl AsRef<[u8]> for Packed {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Transport for StandIn {
    type Peer = Place;
    type Memory = u64;
    type Key = u64;
    type Packed = Packed;
    type Operation = ();
    type Reads = ();

    fn send(&self, to: &Place, kind: Kind, token: Token, data: Vec<u8>) -> Result<Sent<()>> {
        self.messages.set(self.messages.get() + 1);
        match to {
            Place::Rank => {
                self.completed.set(self.completed.get() + 1);
                Ok(Sent::AtOnce(data))
            }
            Place::Service(_) => {
                let mut copy = self.spare.borrow_mut().pop().unwrap_or_default();
                copy.clear();
                copy.extend_from_slice(&data);
                self.letters.borrow_mut().push_back(Letter {
                    to: *to,
                    kind,
                    token,
                    data: copy,
                });
                Ok(Sent::AtOnce(data))
            }
        }
    }

    fn import(&self, export: ExportRef<'_>) -> Result<u64> {
        Ok(export.address)
    }

    fn address(&self, memory: &u64) -> u64 {
        *memory
    }

    fn pack(&self, memory: &u64) -> Result<Packed> {
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&memory.to_le_bytes());
        Ok(Packed(key))
    }

    fn stage(&self, _: usize) -> Result<u64> {
        Err(OffloadError::Failed(
            "the stand-in has no bytes to reduce".to_owned(),
        ))
    }

    fn bytes<'a>(&self, _: &'a mut u64) -> Option<&'a mut [u8]> {
        None
    }

    fn unmap(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn unpack(&self, _: &Place, key: &[u8]) -> Result<u64> {
        let first = key.first_chunk().copied().expect("made by pack()");
        Ok(u64::from_le_bytes(first))
    }

    fn read(&self, (): &mut (), range: Range<'_, Self>, _: u64) -> Result<bool> {
        // A rank's buffer starts at the rank's number times 1 TiB. Block i of the buffer belongs to rank i.
        let source = range.key >> 40;
        let destination = range.into >> 40;
        assert_eq!(range.address, range.key + destination * self.block_bytes);
        assert_eq!(range.to, source * self.block_bytes);
        assert_eq!(range.length as u64, self.block_bytes);
        self.blocks.set(self.blocks.get() + 1);
        Ok(false)
    }

    /// As UCX, it starts all reads of a run at once.
    #[inline]
    fn read_run<'a>(
        &self,
        (): &mut (),
        run: Run<'a, Self>,
        sources: impl Iterator<Item = (&'a u64, u64)>,
    ) -> Result<Started> {
        let own = (run.into >> 40) * self.block_bytes;
        let (mut count, mut to) = (0, run.to);
        let most = run.room.min(run.most as usize);
        for (key, address) in sources.take(most) {
            assert_eq!(address, key + own);
            assert_eq!(to, (key >> 40) * self.block_bytes);
            to += run.stride;
            count += 1;
        }
        assert_eq!(run.length as u64, self.block_bytes);
        self.blocks.set(self.blocks.get() + u64::from(count));
        Ok((count, count))
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

/// Runs a job. `before` is called after the ranks are set up and before any service exists.
///
/// # Errors
/// Errors of the data path. They occur only if the data path has a defect.
pub fn run(plan: &Plan, before: impl FnOnce()) -> Result<Outcome> {
    let per_node = plan.ranks / 2;
    let used = services_used(
        per_node as usize,
        plan.services_per_node as usize,
        RANKS_PER_SP.into(),
    );
    let services = 2 * u32::try_from(used).expect("a few");
    let service_of: Vec<u32> = (0..plan.ranks)
        .map(|rank| {
            let (node, local) = (rank / per_node, rank % per_node);
            node * (services / 2) + local % (services / 2)
        })
        .collect();
    // The sequence number is patched for each round because building a message is the rank's cost.
    let arrivals =
        |is_first| (0..plan.ranks).map(move |rank| arrival(plan, rank, services, is_first));
    let mut arrivals: [Vec<Vec<u8>>; 2] =
        [true, false].map(|is_first| arrivals(is_first).collect());
    let transport = StandIn {
        block_bytes: plan.block_bytes,
        ..StandIn::default()
    };
    before();
    let start = Instant::now();
    let mut movers: Vec<Mover<StandIn>> = (0..services)
        .map(|me| mover(me, services, &service_of))
        .collect();
    let mut post = Post::default();
    for round in 0..plan.rounds {
        let [first, later] = &mut arrivals;
        let arrivals = if round == 0 { first } else { later };
        for (rank, data) in (0..).zip(arrivals) {
            data[5..9].copy_from_slice(&round.to_le_bytes());
            let of = service_of[rank as usize] as usize;
            let header = rank_token(rank).0;
            movers[of].receive(&transport, Kind::HostArrive, &header, data)?;
            movers[of].act(&transport)?;
            post.deliver(&transport, &mut movers)?;
        }
        for mover in &mut movers {
            mover.settle(&transport)?;
        }
        post.deliver(&transport, &mut movers)?;
    }
    let expect = u64::from(plan.rounds) * u64::from(plan.ranks);
    assert_eq!(
        transport.completed.get(),
        expect,
        "each rank completes once"
    );
    Ok(Outcome {
        blocks: transport.blocks.get(),
        messages: transport.messages.get() + expect,
        time: start.elapsed(),
    })
}

/// Delivers the messages between the services.
#[derive(Debug, Default)]
struct Post {
    /// Messages under way; the vector is reused.
    batch: VecDeque<Letter>,
    /// Services that have received a message and have not acted.
    awake: Vec<usize>,
}

impl Post {
    /// Delivers messages until none are left. As a service process does, a service takes all its messages and then
    /// acts. A service without messages sleeps and costs nothing.
    fn deliver(&mut self, transport: &StandIn, movers: &mut [Mover<StandIn>]) -> Result<()> {
        loop {
            std::mem::swap(&mut self.batch, &mut *transport.letters.borrow_mut());
            if self.batch.is_empty() {
                return Ok(());
            }
            for letter in self.batch.drain(..) {
                if let Place::Service(to) = letter.to {
                    movers[to].receive(transport, letter.kind, &letter.token.0, &letter.data)?;
                    transport.spare.borrow_mut().push(letter.data);
                    if !self.awake.contains(&to) {
                        self.awake.push(to);
                    }
                }
            }
            for to in self.awake.drain(..) {
                movers[to].act(transport)?;
            }
        }
    }
}

/// The buffers stay from call to call: the first one announces them.
fn arrival(plan: &Plan, rank: u32, services: u32, is_first: bool) -> Vec<u8> {
    let memory = Some(Export {
        address: u64::from(rank) << 40,
        length: u64::from(plan.ranks) * plan.block_bytes,
        packed: if is_first {
            vec![1; KEY_BYTES]
        } else {
            Vec::new()
        },
        name: Some(Name {
            slot: 0,
            generation: 1,
        }),
    });
    let block = |peer: u32| Block {
        peer,
        offset: u64::from(peer) * plan.block_bytes,
        length: plan.block_bytes,
    };
    let blocks: BlockList = (0..plan.ranks).map(block).collect();
    let arrive = HostArrive {
        collective: Collective {
            communicator: 0,
            sequence: 0,
            start: 0,
            step: 0,
        },
        rank,
        together: plan.ranks.div_ceil(services),
        send_memory: memory.clone(),
        receive_memory: memory,
        sends: blocks.clone(),
        receives: blocks,
        short: Vec::new(),
        route: Route::Direct,
    };
    arrive.to_bytes()
}

fn mover(me: u32, services: u32, service_of: &[u32]) -> Mover<StandIn> {
    let ranks = (0..).zip(service_of);
    let ours = ranks.filter(|(_, of)| **of == me).map(|(rank, _)| rank);
    let ours: Vec<u32> = ours.collect();
    let peers = Peers {
        me,
        service_of: service_of.to_vec(),
        ranks: ours
            .iter()
            .map(|rank| Destination {
                peer: Place::Rank,
                token: rank_token(*rank),
            })
            .collect(),
        from_ranks: ours.iter().map(|rank| rank_token(*rank)).collect(),
        services: (0..services)
            .map(|to| {
                Some(Destination {
                    peer: Place::Service(to as usize),
                    token: service_token(me, to),
                })
            })
            .collect(),
    };
    let limits = Limits {
        sends: 4,
        receives: super::RECEIVES,
        direct_min: 512,
        imports: 4,
        radix: crate::radix::Radix::default(),
    };
    let mut mover = Mover::new(peers, limits);
    for from in 0..services {
        mover.expect_service(from, service_token(from, me));
    }
    mover
}

fn rank_token(rank: u32) -> Token {
    Token(u128::from(rank).to_le_bytes())
}

fn service_token(from: u32, to: u32) -> Token {
    Token((1 << 64 | u128::from(from) << 32 | u128::from(to)).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_a_job_is_moved() {
        for (ranks, services_per_node) in [(4, 1), (16, 4), (64, 4), (256, 1)] {
            let plan = Plan {
                ranks,
                services_per_node,
                block_bytes: 4096,
                rounds: 6,
            };
            let outcome = run(&plan, || ()).expect("carried out");
            assert_eq!(outcome.blocks, 6 * u64::from(ranks * ranks));
        }
    }
}
