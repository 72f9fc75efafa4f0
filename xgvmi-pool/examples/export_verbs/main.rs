//! Exports memory of a host to its DPU over plain libibverbs, without UCX.
//!
//! ```text
//! host$ export_verbs host 0.0.0.0:18600
//! dpu$  export_verbs dpu HOST:18600
//! ```
//!
//! The host fills a new buffer, registers it, exports it with a pooled key and sends the key to the
//! DPU. The DPU gets its alias of the key from the map, reads the buffer with an RDMA READ and
//! checks every byte. Then the host releases the key, and the same READ must end in an error
//! completion. This repeats in each round. From the second round on, neither a key nor an alias is
//! created.
#![expect(clippy::print_stdout, reason = "an example says what it did")]

#[path = "../common/verbs.rs"]
#[expect(dead_code, reason = "the other examples need more of it")]
mod verbs;
mod wire;

use std::env;
use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use mlx5dv_sys::Mlx5Lib;
use verbs::{Context, Memory, Reader};
use wire::{Announced, Channel};
use xgvmi_pool::mlx5::Mlx5Options;
use xgvmi_pool::{AliasPolicy, DpuHooks, HostHooks, OwnerUuid, PoolPolicy, Region, VirtAddr};

/// Time limit of a peer's step.
const PEER_LIMIT: Duration = Duration::from_secs(60);

const USAGE: &str = "\
usage: export_verbs host ADDR:PORT [--device NAME] [--rounds N] [--bytes N]
       export_verbs dpu ADDR:PORT [--device NAME]";

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Arguments {
    role: String,
    address: String,
    device: Option<String>,
    rounds: u64,
    bytes: usize,
}

fn main() -> Outcome<()> {
    let arguments = parse(env::args().skip(1))?;
    match arguments.role.as_str() {
        "host" => host(&arguments),
        "dpu" => dpu(&arguments),
        _ => Err(USAGE.into()),
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Arguments> {
    let (Some(role), Some(address)) = (words.next(), words.next()) else {
        return Err(USAGE.into());
    };
    let mut arguments = Arguments {
        role,
        address,
        device: None,
        rounds: 10,
        bytes: 256 << 10,
    };
    while let Some(option) = words.next() {
        let value = words.next().ok_or(USAGE)?;
        match option.as_str() {
            "--device" => arguments.device = Some(value),
            "--rounds" => arguments.rounds = value.parse()?,
            "--bytes" => arguments.bytes = value.parse()?,
            _ => return Err(USAGE.into()),
        }
    }
    Ok(arguments)
}

fn host(arguments: &Arguments) -> Outcome<()> {
    let lib = Arc::new(Mlx5Lib::open()?);
    let context = Context::open(&lib, arguments.device.as_deref())?;
    let device = context.pool_device(Mlx5Options::default())?;
    let hooks = HostHooks::open(Arc::clone(&device), PoolPolicy::default())?;

    let listener = TcpListener::bind(&arguments.address)?;
    println!("listening on {}", listener.local_addr()?);
    let (stream, _peer) = listener.accept()?;
    let mut channel = Channel::new(stream, PEER_LIMIT)?;

    let owner = OwnerUuid::new(u64::from(std::process::id()) << 32 | 0x7867_766d);
    for round in 0..arguments.rounds {
        let memory = Memory::register(&context, arguments.bytes, round)?;
        let addr = VirtAddr::new(memory.addr());
        let region = Region::new(addr, arguments.bytes as u64, memory.lkey())?;
        let export = hooks.export(region)?;
        let announced = Announced {
            gvmi: export.gvmi(),
            mkey: export.mkey(),
            owner,
            addr,
            bytes: region.len(),
            seed: round,
        };
        channel.send(&announced.to_line())?;
        channel.expect("read")?;
        hooks.release(export)?;
        channel.send("released")?;
        channel.expect("refused")?;
    }
    channel.send("bye")?;
    let stats = hooks.stats();
    println!(
        "{} rounds of {} bytes: {} keys created, {} binds, {} invalidations",
        arguments.rounds, arguments.bytes, stats.creates, stats.binds, stats.invalidates
    );
    let clean = hooks.close() && device.close();
    if clean {
        Ok(())
    } else {
        Err("keys are left behind".into())
    }
}

fn dpu(arguments: &Arguments) -> Outcome<()> {
    let lib = Arc::new(Mlx5Lib::open()?);
    let context = Context::open(&lib, arguments.device.as_deref())?;
    let device = context.pool_device(Mlx5Options::default())?;
    let hooks = DpuHooks::open(Arc::clone(&device), AliasPolicy::default())?;
    let mut channel = Channel::new(TcpStream::connect(&arguments.address)?, PEER_LIMIT)?;

    let mut verified = 0;
    loop {
        let line = channel.receive()?;
        if line == "bye" {
            break;
        }
        let announced = Announced::parse(&line)?;
        let bytes = usize::try_from(announced.bytes)?;
        let memory = Memory::register(&context, bytes, u64::MAX)?;
        let alias = hooks.attach(announced.key())?;
        let reader = Reader::connect(&context)?;
        reader.read(&memory, alias.lkey(), announced.addr)??;
        verified += memory.verify(announced.seed)?;
        channel.send("read")?;

        channel.expect("released")?;
        match reader.read(&memory, alias.lkey(), announced.addr)? {
            Err(refused) => channel.send(refused.word())?,
            Ok(()) => return Err("a released key still gave the memory away".into()),
        }
        hooks.detach(alias);
    }
    let stats = hooks.stats();
    println!(
        "{verified} bytes verified: {} aliases created, {} found again",
        stats.creates, stats.hits
    );
    let clean = hooks.close() && device.close();
    if clean {
        Ok(())
    } else {
        Err("aliases remain on the device".into())
    }
}
