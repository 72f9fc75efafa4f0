//! All ranks of a node in one process and, after they have connected, in one thread: alltoallvs of equal blocks with real UCX
//! connections, for a tool that measures the service processes.
//!
//! ```text
//! light_ranks NODE SIZE MEET SERVICES SCHEME BLOCK_BYTES WARM_UP GATE
//! ```
//!
//! There are two nodes, 0 and 1, with half of the ranks each. The buffers stay registered. After the rounds of the warm-up the
//! program prints `warm` and waits for the file GATE.1, which contains a number of rounds. After these rounds it prints `done 1`
//! and waits for GATE.2, and so on. It ends when the file GATE.end is there. Every byte of the last round before each `done` is
//! verified.

use anyhow::{Context as _, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use xgvmi_offload::{
    Client, ClientArgs, CommunicatorId, Memory, Registered, Scheme, Side, TcpExchange,
};
use xgvmi_ucp::buffer::Buffer;

/// Time between two looks at the ranks' connections. The services need the cores.
const LOOK: Duration = Duration::from_micros(200);
/// A tool that counts instructions slows a service process down some thousand times.
const LIMIT: Duration = Duration::from_secs(1200);

/// A client on its way to the main thread.
struct Moving(Client);

// SAFETY: each object that a client shares by reference counts is inside the client, and the client moves as a whole. UCX
// permits calls from one thread at a time (UCS_THREAD_MODE_SERIALIZED); the end of the connecting thread orders them.
unsafe impl Send for Moving {}

/// A rank and its buffers. The fields drop in this order: the registrations before their memory.
struct Rank {
    number: u32,
    client: Client,
    registered: Option<(Registered, Registered)>,
    _send: Buffer,
    receive: Buffer,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [node, size, meet, services, scheme, block, warm_up, gate] = words.as_slice() else {
        bail!("usage: light_ranks NODE SIZE MEET SERVICES SCHEME BLOCK_BYTES WARM_UP GATE");
    };
    let (node, size): (u32, u32) = (node.parse()?, size.parse()?);
    let (block, warm_up): (usize, u32) = (block.parse()?, warm_up.parse()?);
    ensure!(node < 2 && size >= 2 && size % 2 == 0, "two equal nodes");
    let scheme = [Scheme::Ksm, Scheme::Stock, Scheme::Xgvmi]
        .into_iter()
        .find(|known| known.to_string() == *scheme)
        .context("no such scheme")?;
    let args = ClientArgs {
        services: services.split(',').map(str::to_owned).collect(),
        node: Some(format!("n{node}")),
        offload_limit: Some(LIMIT),
        connect_limit: Some(Duration::from_secs(300)),
        ..ClientArgs::default()
    };
    let clients = connect(
        &args,
        scheme,
        node * (size / 2)..(node + 1) * (size / 2),
        size,
        meet,
    )?;
    let mut ranks = Vec::new();
    for (number, client) in clients {
        ranks.push(prepare(number, client, size as usize, block)?);
    }
    for _ in 0..warm_up {
        call(&mut ranks, size as usize, block)?;
    }
    say("warm");
    let mut sample = 1;
    while let Some(rounds) = wait_for(gate, sample)? {
        for _ in 0..rounds {
            call(&mut ranks, size as usize, block)?;
        }
        for rank in &ranks {
            verify(rank, block)?;
        }
        say(&format!("done {sample}"));
        sample += 1;
    }
    for mut rank in ranks {
        if let Some((send, receive)) = rank.registered.take() {
            rank.client.release(send)?;
            rank.client.release(receive)?;
        }
        rank.client.close()?;
    }
    Ok(())
}

/// Connects the ranks of this node, each in a thread: a connect waits for all other ranks.
fn connect(
    args: &ClientArgs,
    scheme: Scheme,
    ranks: std::ops::Range<u32>,
    size: u32,
    meet: &str,
) -> Result<Vec<(u32, Client)>> {
    thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .map(|rank| {
                let thread = scope.spawn(move || -> Result<Moving> {
                    let options = args.clone().options(scheme)?;
                    let mut exchange = TcpExchange::meet(meet, rank, size, options.connect_limit)?;
                    let client = Client::connect(&options, rank, size, &mut exchange)?;
                    Ok(Moving(client))
                });
                (rank, thread)
            })
            .collect();
        let mut clients = Vec::new();
        for (rank, thread) in threads {
            let Ok(client) = thread.join() else {
                bail!("the thread of rank {rank} has panicked");
            };
            clients.push((rank, client.with_context(|| format!("rank {rank}"))?.0));
        }
        Ok(clients)
    })
}

fn prepare(number: u32, mut client: Client, size: usize, block: usize) -> Result<Rank> {
    let length = size * block;
    let (mut send, receive) = (Buffer::new(length)?, Buffer::new(length)?);
    for (to, bytes) in (0..).zip(send.as_mut_slice().chunks_exact_mut(block)) {
        bytes.fill(pattern(number, to));
    }
    // SAFETY: the buffers outlive their registrations, see `Rank`; between the calls nothing uses them.
    let of_send = unsafe { client.register(send.as_ptr().cast_mut(), length) }?;
    // SAFETY: as above.
    let of_receive = unsafe { client.register(receive.as_ptr().cast_mut(), length) }?;
    Ok(Rank {
        number,
        client,
        registered: Some((of_send, of_receive)),
        _send: send,
        receive,
    })
}

/// One alltoallv of all ranks.
fn call(ranks: &mut [Rank], size: usize, block: usize) -> Result<()> {
    let lengths = vec![block; size];
    let displacements: Vec<usize> = (0..size).map(|at| at * block).collect();
    let mut requests = Vec::new();
    for (index, rank) in ranks.iter_mut().enumerate() {
        let (send, receive) = rank.registered.as_ref().context("a rank without buffers")?;
        let side = |registered| Side {
            memory: Memory::Registered(registered),
            counts: &lengths,
            displacements: &displacements,
        };
        // SAFETY: the buffers live until the call is complete, and nothing uses them meanwhile.
        let request = unsafe {
            rank.client
                .alltoallv(CommunicatorId::WORLD, side(send), side(receive))
        }?;
        requests.push((index, request));
    }
    let end = Instant::now() + LIMIT;
    while !requests.is_empty() {
        let mut left = Vec::new();
        for (index, mut request) in requests {
            if !ranks[index].client.test(&mut request)? {
                left.push((index, request));
            }
        }
        requests = left;
        ensure!(Instant::now() < end, "a call is not complete");
        if !requests.is_empty() {
            thread::sleep(LOOK);
        }
    }
    Ok(())
}

fn verify(rank: &Rank, block: usize) -> Result<()> {
    for (from, bytes) in (0..).zip(rank.receive.as_slice().chunks_exact(block)) {
        let expect = pattern(from, rank.number);
        ensure!(
            bytes.iter().all(|byte| *byte == expect),
            "rank {} has wrong bytes of rank {from}",
            rank.number
        );
    }
    Ok(())
}

/// The byte that fills a block. It is not zero.
fn pattern(from: u32, to: u32) -> u8 {
    (from * 7 + to * 31).to_le_bytes()[0] | 1
}

/// Waits for the file of a sample. Returns its number of rounds; `None` if the program shall end.
fn wait_for(gate: &str, sample: u32) -> Result<Option<u32>> {
    let file = PathBuf::from(format!("{gate}.{sample}"));
    let end = Instant::now() + LIMIT;
    while !Path::new(&format!("{gate}.end")).exists() {
        if file.exists() {
            let text = std::fs::read_to_string(&file).context("the number of rounds")?;
            return Ok(Some(text.trim().parse().context("the number of rounds")?));
        }
        ensure!(Instant::now() < end, "{} does not come", file.display());
        thread::sleep(Duration::from_millis(2));
    }
    Ok(None)
}

#[expect(clippy::print_stdout, reason = "a program's answer")]
fn say(what: &str) {
    println!("{what}");
}
