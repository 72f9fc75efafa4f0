//! A rank on a host: all-to-alls with fresh buffers, of which each byte is compared. Batches come from standard input, so that
//! the device's counters can be read between them.

use super::agent::RANKS_PER_NODE;
use super::clock::nanoseconds;
use super::link::{Exported, Finished, Hello, Link, Post};
use crate::storage_demo::Pages;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, Write as _};
use std::net::TcpListener;
use std::time::Instant;
use xgvmi_pool::mlx5::steps::Rights;
use xgvmi_pool::{AccessKey, Seal, VirtAddr};
use xgvmi_verbs::{HostKeys, HostOptions, KeyKind};

/// Ranks in all.
pub(super) const RANKS: usize = 2 * RANKS_PER_NODE;
/// Keys that exist before the first call: twice those of a call.
const KEYS_AHEAD: u32 = 4;

#[derive(Debug, Args)]
pub(crate) struct Rank {
    /// Number of the rank.
    #[arg(long)]
    rank: usize,
    /// Port of the node's agent.
    #[arg(long)]
    agent: u16,
    /// Port at which rank 0 listens for the others.
    #[arg(long)]
    meet: u16,
}

/// A request: calls of one size.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Batch {
    pub(super) is_pooled: bool,
    /// Bytes to each rank, a multiple of 8.
    pub(super) block: usize,
    pub(super) count: u32,
}

/// The answer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Done {
    /// Time of each call: registration, keys, transfer, end of the access.
    pub(super) ns: Vec<u64>,
    pub(super) verified: u64,
    pub(super) wrong: u64,
}

impl Rank {
    /// Reads batches, one a line, until standard input ends.
    pub(crate) fn run(&self) -> Result<()> {
        let mut meeting = Meeting::new(self.rank, self.meet)?;
        let mut key = [0; AccessKey::BYTES];
        fastrand::fill(&mut key);
        let access_key = AccessKey::new(key);
        let keys = HostKeys::open(&HostOptions {
            device: None,
            owner: access_key.owner(),
            access_key: access_key.clone(),
            keys_ahead: KEYS_AHEAD,
        })?;
        // The keys stay until the process ends.
        let keys: &'static HostKeys = Box::leak(Box::new(keys));
        let mut agent = Link::connect(&format!("127.0.0.1:{}", self.agent))?;
        agent.send(&Hello {
            rank: self.rank,
            gvmi: keys.gvmi().get(),
            access_key: key.to_vec(),
            announcement: keys.announcement(&Seal::OPEN),
        })?;
        let Finished = agent.receive()?;
        let mut stdout = std::io::stdout();
        writeln!(stdout, "ready")?;
        stdout.flush()?;
        let mut sequence = 0;
        for line in std::io::stdin().lock().lines() {
            let batch: Batch = serde_json::from_str(&line?).context("a batch")?;
            let mut done = Done::default();
            for _ in 0..batch.count {
                sequence += 1;
                self.call(batch, sequence, (keys, &mut agent, &mut meeting), &mut done)?;
            }
            writeln!(stdout, "{}", serde_json::to_string(&done)?)?;
            stdout.flush()?;
        }
        Ok(())
    }

    fn call(
        &self,
        batch: Batch,
        sequence: u64,
        (keys, agent, meeting): (&'static HostKeys, &mut Link, &mut Meeting),
        done: &mut Done,
    ) -> Result<()> {
        let length = batch.block * RANKS;
        let (mut send, mut receive) = (Pages::new(length)?, Pages::new(length)?);
        for (to, block) in send.bytes().chunks_mut(batch.block).enumerate() {
            fill(block, (self.rank, to, sequence));
        }
        receive.bytes().fill(0xee);
        meeting.meet()?;
        let began = Instant::now();
        let kind = match batch.is_pooled {
            true => KeyKind::Pooled,
            false => KeyKind::Own,
        };
        let at = |pages: &mut Pages| VirtAddr::new(pages.bytes().as_mut_ptr() as u64);
        let (from, to) = (at(&mut send), at(&mut receive));
        // SAFETY: both mappings stay until the keys are released below.
        let held = unsafe {
            keys.hold_all(
                kind,
                [
                    (from, length, Rights::Read),
                    (to, length, Rights::ReadWrite),
                ],
            )
        }?;
        let exported = |index: usize, address: VirtAddr| Exported {
            address: address.get(),
            mkey: held[index].mkey().raw(),
        };
        agent.send(&Post {
            is_pooled: batch.is_pooled,
            block: batch.block as u64,
            send: exported(0, from),
            receive: exported(1, to),
        })?;
        let Finished = agent.receive()?;
        drop(held);
        done.ns.push(nanoseconds(began.elapsed()));
        for (from, block) in receive.bytes().chunks(batch.block).enumerate() {
            done.wrong += wrong(block, (from, self.rank, sequence));
            done.verified += block.len() as u64;
        }
        Ok(())
    }
}

/// A word of the block from a rank to a rank in a call.
fn word((from, to, sequence): (usize, usize, u64), at: usize) -> u64 {
    (at as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add((from as u64) << 56 ^ (to as u64) << 48 ^ sequence.wrapping_mul(0xff51_afd7))
}

fn fill(block: &mut [u8], of: (usize, usize, u64)) {
    for (at, bytes) in block.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = word(of, at).to_le_bytes();
    }
}

/// Bytes that differ.
fn wrong(block: &[u8], of: (usize, usize, u64)) -> u64 {
    let mut count = 0;
    for (at, bytes) in block.as_chunks::<8>().0.iter().enumerate() {
        let expect = word(of, at).to_le_bytes();
        if *bytes != expect {
            let pairs = bytes.iter().zip(expect);
            count += pairs.filter(|(found, expect)| *found != expect).count() as u64;
        }
    }
    count
}

/// A barrier of the ranks, at rank 0.
#[derive(Debug)]
enum Meeting {
    First(Vec<Link>),
    Other(Link),
}

impl Meeting {
    fn new(rank: usize, port: u16) -> Result<Self> {
        if rank > 0 {
            return Ok(Self::Other(Link::connect(&format!("127.0.0.1:{port}"))?));
        }
        ensure!(RANKS > 1, "a meeting of one rank");
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let mut stdout = std::io::stdout();
        writeln!(stdout, "listens")?;
        stdout.flush()?;
        let others = (1..RANKS).map(|_| Link::accept(&listener));
        Ok(Self::First(others.collect::<Result<_>>()?))
    }

    fn meet(&mut self) -> Result<()> {
        match self {
            Self::First(others) => {
                for other in others.iter_mut() {
                    let Finished = other.receive()?;
                }
                others
                    .iter_mut()
                    .try_for_each(|other| other.send(&Finished))
            }
            Self::Other(first) => {
                first.send(&Finished)?;
                let Finished = first.receive()?;
                Ok(())
            }
        }
    }
}
