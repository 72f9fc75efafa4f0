//! Calls of an offloaded alltoallv between marks, for a tool that counts the instructions of a rank.
//!
//! ```text
//! rank_cost RANK SIZE MEET NODE SERVICE SCHEME BLOCK_BYTES ROUNDS
//! ```
//!
//! A mark is a system call that no kernel has, see the crate `step-count`. Section 1 is the start of a call: registration
//! and export of two temporary buffers, and the message to the service process. Section 2 is the test that completes it,
//! with the release of both buffers. The time between them is the program's own.

use anyhow::{Context as _, Result, bail};
use std::time::Duration;
use xgvmi_offload::{Client, ClientArgs, CommunicatorId, Memory, Scheme, Side, TcpExchange};
use xgvmi_ucp::buffer::Buffer;

/// Number of the system call that is a mark.
const MARK: i64 = 0x5847_564d;
/// Calls before the first that counts: every key of the pool has been used.
const WARM: u32 = 70;
/// The other ranks enter a counted call after this time, so that it does not complete while it starts.
const LATER: Duration = Duration::from_millis(200);
/// Time for a call to complete before the test. A test that comes too early is counted as well, and is rare.
const PAUSE: Duration = Duration::from_millis(500);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [rank, size, meet, node, service, scheme, block, rounds] = words.as_slice() else {
        bail!("usage: rank_cost RANK SIZE MEET NODE SERVICE SCHEME BLOCK_BYTES ROUNDS");
    };
    let (rank, size): (u32, u32) = (rank.parse()?, size.parse()?);
    let (block, rounds): (usize, u32) = (block.parse()?, rounds.parse()?);
    let scheme = [Scheme::Ksm, Scheme::Stock, Scheme::Xgvmi]
        .into_iter()
        .find(|known| known.to_string() == *scheme)
        .context("no such scheme")?;
    let args = ClientArgs {
        services: vec![service.clone()],
        node: Some(node.clone()),
        // Single-stepping slows a call down some thousand times.
        offload_limit_s: Some(600),
        ..ClientArgs::default()
    };
    let options = args.options(scheme)?;
    let mut exchange = TcpExchange::meet(meet, rank, size, options.connect_limit)?;
    let mut client = Client::connect(&options, rank, size, &mut exchange)?;
    for round in 0..WARM + rounds {
        let counts = round >= WARM;
        if counts && rank > 0 {
            std::thread::sleep(LATER);
        }
        call(&mut client, size as usize, block, counts && rank == 0)?;
    }
    client.close()?;
    Ok(())
}

/// One call with new buffers. `counts` puts marks around the rank's own work.
fn call(client: &mut Client, size: usize, block: usize, counts: bool) -> Result<()> {
    let mark = |label| {
        if counts {
            mark(label);
        }
    };
    let (send, receive) = (
        Buffer::untouched(size * block)?,
        Buffer::untouched(size * block)?,
    );
    let lengths = vec![block; size];
    let displacements: Vec<usize> = (0..size).map(|at| at * block).collect();
    let side = |buffer: &Buffer| Side {
        memory: Memory::Temporary {
            start: buffer.as_ptr().cast_mut(),
            length: size * block,
        },
        counts: &lengths,
        displacements: &displacements,
    };
    let (send_side, receive_side) = (side(&send), side(&receive));
    mark(1);
    // SAFETY: both buffers live until the call is complete, and nothing else uses them.
    let request = unsafe { client.alltoallv(CommunicatorId::WORLD, send_side, receive_side) };
    mark(0);
    let mut request = request?;
    loop {
        if counts {
            std::thread::sleep(PAUSE);
        }
        mark(2);
        let done = client.test(&mut request);
        mark(0);
        if done? {
            return Ok(());
        }
        std::thread::yield_now();
    }
}

fn mark(label: u64) {
    // SAFETY: no kernel has this system call: it fails, and touches nothing.
    unsafe { libc::syscall(MARK, label) };
}
