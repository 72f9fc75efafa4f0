//! A rank of allreduces whose sums it knows: a service process that adds a contribution before it has arrived makes another
//! sum.
//!
//! ```text
//! reduce_ranks RANK SIZE NODE MEET SERVICES SCHEME ROUNDS
//! ```
//!
//! Every other call is in place. Each element of each result is verified.

use anyhow::{Context as _, Result, bail, ensure};
use std::time::Duration;
use xgvmi_offload::{
    Client, ClientArgs, CommunicatorId, Element, Memory, Operation, Reduction, Scheme, TcpExchange,
};
use xgvmi_ucp::buffer::Buffer;

/// Elements of a vector: one segment per service process, and several windows.
const LENGTHS: [usize; 2] = [2_500, 300_000];
const ELEMENT: usize = 8;
/// Time limits of a job whose device or machine is slow.
const LIMIT: Duration = Duration::from_secs(120);

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
    let elements = LENGTHS[usize::from(round % 4 == 3)];
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
        let sum = (0..size).fold(0_u64, |sum, of| sum.wrapping_add(element(round, of, at)));
        ensure!(
            word == sum.to_le_bytes(),
            "round {round}: element {at} is wrong"
        );
    }
    Ok(length)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [rank, size, node, meet, services, scheme, rounds] = words.as_slice() else {
        bail!("usage: reduce_ranks RANK SIZE NODE MEET SERVICES SCHEME ROUNDS");
    };
    let (rank, size, rounds): (u32, u32, u32) = (rank.parse()?, size.parse()?, rounds.parse()?);
    let scheme = [Scheme::Ksm, Scheme::Stock, Scheme::Xgvmi]
        .into_iter()
        .find(|known| known.to_string() == *scheme)
        .context("no such scheme")?;
    let args = ClientArgs {
        services: services.split(',').map(str::to_owned).collect(),
        node: Some(node.clone()),
        offload_limit: Some(LIMIT),
        connect_limit: Some(LIMIT),
        ..ClientArgs::default()
    };
    let options = args.options(scheme)?;
    let mut exchange = TcpExchange::meet(meet, rank, size, LIMIT)?;
    let mut client = Client::connect(&options, rank, size, &mut exchange)?;
    let sum = Reduction::new(Element::U64, Operation::Sum).context("a sum")?;
    let most = LENGTHS[1] * ELEMENT;
    let (mut send, mut receive) = (Buffer::new(most)?, Buffer::new(most)?);
    let mut verified = 0;
    for round in 0..rounds {
        let of = (rank, size, round);
        verified += call(&mut client, of, sum, (&mut send, &mut receive))?;
    }
    client.close()?;
    say(&format!("rank {rank}: {verified} bytes verified"));
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a program's answer")]
fn say(what: &str) {
    println!("{what}");
}
