//! A rank of allreduces whose sums it knows: a service process that adds a contribution before it has arrived makes another
//! sum.
//!
//! ```text
//! reduce_ranks RANK SIZE NODE MEET SERVICES SCHEME ROUNDS
//! ```
//!
//! Every other allreduce is in place. A reduce-scatter, a reduce, a broadcast and a barrier follow. Each element of each result is
//! verified.

#[path = "../ranks/mod.rs"]
mod ranks;

use anyhow::{Context as _, Result, ensure};
use xgvmi_offload::{Client, CommunicatorId, Element, Memory, Operation, Reduction};
use xgvmi_ucp::buffer::Buffer;

/// Elements of a vector: one segment per service process, several windows, one that travels in messages, and one that is read and
/// that eight service processes reduce along a tree.
const LENGTHS: [usize; 4] = [2_500, 300_000, 60, 500];
const ELEMENT: usize = 8;

/// An element of a rank's vector. The former round's values are elsewhere in each vector.
fn element(round: u32, rank: u32, at: u64) -> u64 {
    let seed = u64::from(round) << 32 | u64::from(rank);
    (seed ^ at.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A call and its verification.
fn call(
    client: &mut Client,
    (rank, size, round): (u32, u32, u32),
    reduction: Reduction,
    (send, receive): (&mut Buffer, &mut Buffer),
) -> Result<usize> {
    let elements = LENGTHS[[0, 2, 3, 1, 2, 3][round as usize % 6]];
    let length = elements * ELEMENT;
    let is_in_place = round % 2 == 1;
    let own = if is_in_place {
        &mut *receive
    } else {
        &mut *send
    };
    for (at, word) in (0..).zip(own.as_mut_slice()[..length].chunks_exact_mut(ELEMENT)) {
        word.copy_from_slice(&element(round, rank, at).to_le_bytes());
    }
    let memory = |buffer: &mut Buffer| Memory::Temporary {
        start: buffer.as_mut_slice().as_mut_ptr(),
        length,
    };
    let (from, to) = ((!is_in_place).then(|| memory(send)), memory(receive));
    // SAFETY: the buffers stay allocated, and nothing uses them, until the call is complete.
    let request = unsafe { client.allreduce(CommunicatorId::WORLD, from, to, reduction) }?;
    client.wait(request)?;
    let words = receive.as_slice()[..length].chunks_exact(ELEMENT);
    for (at, word) in (0..).zip(words) {
        ensure!(
            word == sum_of(size, round, at),
            "round {round}: element {at} is wrong"
        );
    }
    Ok(length)
}

/// The sum of all ranks' elements.
fn sum_of(size: u32, round: u32, at: u64) -> [u8; ELEMENT] {
    let sum = (0..size).fold(0_u64, |sum, of| sum.wrapping_add(element(round, of, at)));
    sum.to_le_bytes()
}

/// A reduce-scatter of uneven parts, a reduce and a broadcast with the same root, and a barrier.
fn others(
    client: &mut Client,
    (rank, size, round): (u32, u32, u32),
    reduction: Reduction,
    (send, receive): (&mut Buffer, &mut Buffer),
) -> Result<usize> {
    let elements = LENGTHS[[3, 1, 0, 2][round as usize % 4]];
    let length = elements * ELEMENT;
    let root = (round % size) as usize;
    for (at, word) in (0..).zip(send.as_mut_slice()[..length].chunks_exact_mut(ELEMENT)) {
        word.copy_from_slice(&element(round, rank, at).to_le_bytes());
    }
    let memory = |buffer: &mut Buffer, length: usize| Memory::Temporary {
        start: buffer.as_mut_slice().as_mut_ptr(),
        length,
    };
    // The last rank gets nothing.
    let parts = (size as usize - 1).max(1);
    let counts = |rank: usize| match rank + 1 == size as usize && size > 1 {
        true => 0,
        false => (elements * (rank + 1) / parts - elements * rank / parts) * ELEMENT,
    };
    let all: Vec<usize> = (0..size as usize).map(counts).collect();
    let mine = all[rank as usize];
    let first = all[..rank as usize].iter().sum::<usize>() / ELEMENT;
    let (from, to) = (memory(send, length), memory(receive, mine));
    // SAFETY: the buffers stay allocated, and nothing uses them, until the call is complete.
    let request =
        unsafe { client.reduce_scatter(CommunicatorId::WORLD, &all, from, to, reduction) }?;
    client.wait(request)?;
    let words = receive.as_slice()[..mine].chunks_exact(ELEMENT);
    for (at, word) in (first as u64..).zip(words) {
        ensure!(
            word == sum_of(size, round, at),
            "round {round}: element {at} of the reduce-scatter is wrong"
        );
    }
    let is_root = rank as usize == root;
    let to = is_root.then(|| memory(receive, length));
    let from = Some(memory(send, length));
    // SAFETY: the same.
    let request = unsafe { client.reduce(CommunicatorId::WORLD, root, from, to, reduction) }?;
    client.wait(request)?;
    // SAFETY: the same.
    let request =
        unsafe { client.broadcast(CommunicatorId::WORLD, root, memory(receive, length)) }?;
    client.wait(request)?;
    let words = receive.as_slice()[..length].chunks_exact(ELEMENT);
    for (at, word) in (0..).zip(words) {
        ensure!(
            word == sum_of(size, round, at),
            "round {round}: element {at} of the broadcast is wrong"
        );
    }
    let request = client.barrier(CommunicatorId::WORLD)?;
    client.wait(request)?;
    Ok(mine + length)
}

fn main() -> Result<()> {
    let mut job = ranks::Rank::connect("reduce_ranks")?;
    let (rank, size, rounds) = (job.rank, job.size, job.rounds);
    let sum = Reduction::new(Element::U64, Operation::Sum).context("a sum")?;
    let most = LENGTHS[1] * ELEMENT;
    let (mut send, mut receive) = (Buffer::new(most)?, Buffer::new(most)?);
    let mut verified = 0;
    for round in 0..rounds {
        let of = (rank, size, round);
        verified += call(&mut job.client, of, sum, (&mut send, &mut receive))?;
        verified += others(&mut job.client, of, sum, (&mut send, &mut receive))?;
    }
    job.end(verified as u64)
}
