//! Calls of an offloaded alltoallv, for a tool that counts the instructions of a rank or of a service process.
//!
//! ```text
//! rank_cost RANK SIZE MEET NODE SERVICE SCHEME BLOCK_BYTES ROUNDS [DIRECTORY]
//! ```
//!
//! Without DIRECTORY, rank 0 puts marks around its own work in each of ROUNDS calls.
//!
//! A mark is a system call that no kernel has, see the crate `step-count`. Section 1 is the start of a call: registration
//! and export of two temporary buffers, and the message to the service process. Section 2 is the test that completes it,
//! with the release of both buffers. The time between them is the program's own.
//!
//! With DIRECTORY there are no marks. All ranks wait before ROUNDS calls and after them: rank 0 creates the file `warm`
//! there and waits for a file `go`, and afterwards creates `done` and waits for `end`. Between `warm` and `done` the
//! service processes do the work of ROUNDS calls and of nothing else.

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};
use xgvmi_offload::{
    Client, ClientArgs, CommunicatorId, Exchange as _, Memory, Request, Scheme, Side, TcpExchange,
};
use xgvmi_ucp::buffer::Buffer;

/// Number of the system call that is a mark.
const MARK: i64 = 0x5847_564d;
/// Calls before the first that counts: every key of the pool has been used.
const WARM: u32 = 70;
/// Time from the end of the other ranks' call to the test of rank 0. A test that comes too early is counted as well, and is
/// rare.
const PAUSE: Duration = Duration::from_millis(200);
/// Interval between looks at a file or a call: the counted process may share its core with the ranks.
const LOOK: Duration = Duration::from_millis(1);
/// Time limit of a wait for a file, and of the other ranks' wait for rank 0.
const LIMIT: Duration = Duration::from_secs(300);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (first, place) = match words.as_slice() {
        [first @ .., place] if words.len() == 9 => (first, Some(Path::new(place))),
        all => (all, None),
    };
    let [rank, size, meet, node, service, scheme, block, rounds] = first else {
        bail!("usage: rank_cost RANK SIZE MEET NODE SERVICE SCHEME BLOCK_BYTES ROUNDS [DIRECTORY]");
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
        offload_limit: Some(2 * LIMIT),
        connect_limit: Some(LIMIT),
        ..ClientArgs::default()
    };
    let options = args.options(scheme)?;
    let mut exchange = TcpExchange::meet(meet, rank, size, options.connect_limit)?;
    let mut client = Client::connect(&options, rank, size, &mut exchange)?;
    let pause = |exchange: &mut TcpExchange, reached: &str, until: &str| -> Result<()> {
        let Some(place) = place else {
            return Ok(());
        };
        together(exchange)?;
        if rank == 0 {
            File::create(place.join(reached)).context("a file of the pause")?;
            wait_for(&place.join(until))?;
        }
        together(exchange)
    };
    let size = size as usize;
    for _ in 0..WARM {
        Call::start(&mut client, size, block, &|_| ())?.end(&mut client, &|_| ())?;
    }
    pause(&mut exchange, "warm", "go")?;
    for _ in 0..rounds {
        match (place, rank) {
            (None, 0) => {
                let call = Call::start(&mut client, size, block, &mark)?;
                // The other ranks enter the call now, so it does not complete while it starts.
                together(&mut exchange)?;
                together(&mut exchange)?;
                std::thread::sleep(PAUSE);
                call.end(&mut client, &mark)?;
            }
            (None, _) => {
                together(&mut exchange)?;
                Call::start(&mut client, size, block, &|_| ())?.end(&mut client, &|_| ())?;
                together(&mut exchange)?;
            }
            (Some(_), _) => {
                Call::start(&mut client, size, block, &|_| ())?.end(&mut client, &|_| ())?;
            }
        }
    }
    pause(&mut exchange, "done", "end")?;
    client.close()?;
    Ok(())
}

/// Waits until all ranks have called this function.
fn together(exchange: &mut TcpExchange) -> Result<()> {
    let all = exchange.allgather(&[]);
    all.map(drop).map_err(|error| anyhow!("{error}"))
}

fn wait_for(file: &Path) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while !file.exists() {
        ensure!(Instant::now() < end, "no file {}", file.display());
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// A call with new buffers, which live until its end.
struct Call {
    request: Request,
    _buffers: [Buffer; 2],
}

impl Call {
    /// Starts a call, between marks.
    fn start(client: &mut Client, size: usize, block: usize, mark: &dyn Fn(u64)) -> Result<Self> {
        let buffer = || Buffer::untouched(size * block);
        let (send, receive) = (buffer()?, buffer()?);
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
        Ok(Self {
            request: request?,
            _buffers: [send, receive],
        })
    }

    /// Waits for the end, with each test between marks.
    fn end(mut self, client: &mut Client, mark: &dyn Fn(u64)) -> Result<()> {
        loop {
            mark(2);
            let done = client.test(&mut self.request);
            mark(0);
            if done? {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn mark(label: u64) {
    // SAFETY: no kernel has this system call: it fails, and touches nothing.
    unsafe { libc::syscall(MARK, label) };
}
