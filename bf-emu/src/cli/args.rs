//! Arguments and output functions that several commands share.

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
    /// Read the topology from a file
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    pub(super) topology: Option<PathBuf>,
    /// Use N nodes with one host and one DPU function each [default: 2]
    #[arg(long, value_name = "N")]
    pub(super) nodes: Option<usize>,
    /// Give each function N ports, 1 or 2 [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "topology")]
    pub(super) ports: Option<usize>,
    /// Link of the ports: infiniband; infiniband-grh, which requires a global route in each message, as a port that
    /// functions share does; ethernet, with RoCE v1 and v2 [default: infiniband]
    #[arg(long, value_name = "LINK", conflicts_with = "topology", value_parser = link_named)]
    pub(super) link: Option<Link>,
}

#[derive(Args, Debug)]
pub(super) struct FabricArgs {
    #[command(flatten)]
    pub(super) state: StateArgs,
    #[command(flatten)]
    pub(super) shape: ShapeArgs,
    /// Durations of operations: none, bluefield3, or a file [default: none]; relaxed-only and gga: as none, with
    /// firmware that refuses keys without relaxed ordering of PCI, or that has what UCX's GGA transport needs
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) profile: Option<String>,
    /// Executor of posted work: trap, the posting thread at its doorbell; polling, another thread of the process, for
    /// machines with idle processors; deferred or deferred:SEED, another thread after a delay, to find programs that
    /// depend on immediate execution [default: trap]
    #[arg(long, value_name = "MODE")]
    pub(super) mode: Option<Mode>,
    /// Number of a new mkey: resting, the one that was destroyed first; lowest, the lowest free one, to find programs
    /// that use destroyed keys [default: resting]
    #[arg(long, value_name = "NUMBERS")]
    pub(super) keys: Option<KeyNumbers>,
    /// The program's processes of the DPA, a list of: weak, accesses that need a fence, a writeback or an invalidation are
    /// reported (see `bf-emu dpa order`); core, a fault writes dpa.PID.core to the program's directory; limit=SECONDS, a function is killed earlier than after 120; hold, threads wait for `bf-emu dpa
    /// gdb`
    #[arg(long, value_name = "OPTIONS", value_parser = dpa_options)]
    pub(super) dpa: Option<String>,
    /// The visible functions, in this order: node0.host or node0.host,node0.dpu
    #[arg(long = "as", value_name = "FUNCTIONS")]
    pub(super) view: String,
}

/// The link of this name.
fn link_named(name: &str) -> std::result::Result<Link, String> {
    let names: Vec<_> = Link::ALL.into_iter().map(Link::name).collect();
    Link::named(name).ok_or_else(|| format!("there are {}", names.join(", ")))
}

/// A list of options of the DPA.
fn dpa_options(list: &str) -> std::result::Result<String, String> {
    bf_emu::process::dpa::options(list).map(|_| list.to_owned())
}

/// Writes to stdout. A reader that closes the pipe early, such as `head`, is not an error.
pub(super) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("writing to stdout"),
    }
}
