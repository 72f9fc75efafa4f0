//! Arguments that several commands take, and the output that they print.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use bf_emu::engine::deferred::Mode;
use bf_emu::model::address::Link;
use bf_emu::process::KeyNumbers;
use clap::Args;

#[derive(Args, Debug)]
pub(super) struct StateArgs {
    /// The fabric's directory [default: $BFEMU_STATE, else /dev/shm/bf-emu-<uid>]
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(super) struct FormArgs {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args, Debug)]
pub(super) struct ShapeArgs {
    /// Take the fabric from a file
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    pub(super) topology: Option<PathBuf>,
    /// Take N nodes with one host and one DPU function each [default: 2]
    #[arg(long, value_name = "N")]
    pub(super) nodes: Option<usize>,
    /// Give each function N ports, 1 or 2 [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "topology")]
    pub(super) ports: Option<usize>,
    /// What the ports are connected to: infiniband; infiniband-grh, where each message needs a global
    /// route, as on a port that functions share; ethernet, with RoCE v1 and v2 [default: infiniband]
    #[arg(long, value_name = "LINK", conflicts_with = "topology", value_parser = link_named)]
    pub(super) link: Option<Link>,
}

#[derive(Args, Debug)]
pub(super) struct FabricArgs {
    #[command(flatten)]
    pub(super) state: StateArgs,
    #[command(flatten)]
    pub(super) shape: ShapeArgs,
    /// How long operations take: none, bluefield3, or a file [default: none]
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) profile: Option<String>,
    /// Who executes posted work: trap, the posting thread when it rings the doorbell; polling, a thread
    /// beside it, for machines with processors to spare; deferred or deferred:SEED, one that comes
    /// later, to find out who relies on the first [default: trap]
    #[arg(long, value_name = "MODE")]
    pub(super) mode: Option<Mode>,
    /// Which number a new mkey gets: resting, one that has not been used for long; lowest, the lowest
    /// that is free, to find out who relies on the first [default: resting]
    #[arg(long, value_name = "NUMBERS")]
    pub(super) keys: Option<KeyNumbers>,
    /// The functions to see, in this order: node0.host or node0.host,node0.dpu
    #[arg(long = "as", value_name = "FUNCTIONS")]
    pub(super) view: String,
}

/// The link of this name.
fn link_named(name: &str) -> std::result::Result<Link, String> {
    let names: Vec<_> = Link::ALL.into_iter().map(Link::name).collect();
    Link::named(name).ok_or_else(|| format!("there are {}", names.join(", ")))
}

/// Writes to stdout. A reader that has seen enough, as `head`, is no failure.
pub(super) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("writing to stdout"),
    }
}
