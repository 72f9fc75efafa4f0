//! The command line: what can be said to `bf-emu`, and who acts on it.

mod fault;
mod launch;
mod port;
mod show;
mod trace;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use bf_emu::engine::deferred::Mode;
use bf_emu::model::address::Link;
use bf_emu::process::KeyNumbers;
use clap::{Args, Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  bf-emu run --as node0.host -- ibv_devinfo
  bf-emu run --nodes 2 --profile bluefield3 --as node0.host,node0.dpu -- ./program
  eval \"$(bf-emu env --as node0.host)\"
  bf-emu stats --json
  bf-emu port node0.host 1 down
  bf-emu fault add node0.host command create_mkey nth 7 status LIMITS_EXCEEDED

Exit codes: 0 done, 1 failed, 2 wrong usage; `run` ends with the program's own.";

/// An emulated BlueField beneath unmodified rdma-core
#[derive(Debug, Parser)]
#[command(name = "bf-emu", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program that sees functions of the fabric as mlx5_0, mlx5_1, ...
    Run {
        #[command(flatten)]
        fabric: FabricArgs,
        /// The program and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<std::ffi::OsString>,
    },
    /// Print shell lines that do for later programs what `run` does for one
    Env {
        #[command(flatten)]
        fabric: FabricArgs,
    },
    /// Show what the functions have done: commands, work requests, refusals, objects
    Stats {
        #[command(flatten)]
        state: StateArgs,
        #[command(flatten)]
        form: FormArgs,
    },
    /// List the processes that use the fabric
    Ps {
        #[command(flatten)]
        state: StateArgs,
        #[command(flatten)]
        form: FormArgs,
    },
    /// Show the calls, doorbells, work requests and completions of late, a line each
    Trace(trace::TraceArgs),
    /// Show the objects that there are, a line each
    Dump {
        #[command(flatten)]
        state: StateArgs,
        #[command(flatten)]
        form: FormArgs,
    },
    /// Make commands and work requests go wrong on purpose
    Fault {
        #[command(subcommand)]
        command: fault::FaultCommand,
    },
    /// Let a port go down or come up, or tell of a change on it
    Port(port::PortArgs),
    /// Remove the fabric; a later `run` makes a new one
    Reset {
        #[command(flatten)]
        state: StateArgs,
        /// Also if processes use it: they go on alone, and no other can join them
        #[arg(long)]
        force: bool,
    },
    /// Print the fabric's topology as a file for --topology
    Topology {
        #[command(flatten)]
        state: StateArgs,
        #[command(flatten)]
        shape: ShapeArgs,
    },
}

#[derive(Args, Debug)]
struct StateArgs {
    /// The fabric's directory [default: $BFEMU_STATE, else /dev/shm/bf-emu-<uid>]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct FormArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ShapeArgs {
    /// Take the fabric from a file
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    topology: Option<PathBuf>,
    /// Take N nodes with one host and one DPU function each [default: 2]
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,
    /// Give each function N ports, 1 or 2 [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "topology")]
    ports: Option<usize>,
    /// What the ports are connected to: infiniband; infiniband-grh, where each message needs a global
    /// route, as on a port that functions share; ethernet, with RoCE v1 and v2 [default: infiniband]
    #[arg(long, value_name = "LINK", conflicts_with = "topology", value_parser = link_named)]
    link: Option<Link>,
}

#[derive(Args, Debug)]
struct FabricArgs {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    /// How long operations take: none, bluefield3, or a file [default: none]
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Who executes posted work: trap, the posting thread when it rings the doorbell; polling, a thread
    /// beside it, for machines with processors to spare; deferred or deferred:SEED, one that comes
    /// later, to find out who relies on the first [default: trap]
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// Which number a new mkey gets: resting, one that has not been used for long; lowest, the lowest
    /// that is free, to find out who relies on the first [default: resting]
    #[arg(long, value_name = "NUMBERS")]
    keys: Option<KeyNumbers>,
    /// The functions to see, in this order: node0.host or node0.host,node0.dpu
    #[arg(long = "as", value_name = "FUNCTIONS")]
    view: String,
}

/// The link of this name.
fn link_named(name: &str) -> std::result::Result<Link, String> {
    let names: Vec<_> = Link::ALL.into_iter().map(Link::name).collect();
    Link::named(name).ok_or_else(|| format!("there are {}", names.join(", ")))
}

impl Cli {
    /// Does what was asked for.
    pub(crate) fn act(self) -> Result<()> {
        match self.command {
            Command::Run { fabric, command } => launch::run(&fabric, &command),
            Command::Env { fabric } => launch::env(&fabric),
            Command::Stats { state, form } => show::stats(&state, form.json),
            Command::Ps { state, form } => show::ps(&state, form.json),
            Command::Trace(args) => trace::trace(&args),
            Command::Dump { state, form } => trace::dump(&state, &form),
            Command::Fault { command } => fault::act(&command),
            Command::Port(args) => port::act(&args),
            Command::Reset { state, force } => show::reset(&state, force),
            Command::Topology { state, shape } => show::topology(&state, &shape),
        }
    }
}

/// Writes to stdout. A reader that has seen enough, as `head`, is no failure.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("writing to stdout"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_can_be_said() {
        for (line, accepted) in [
            ("run --as node0.host -- ibv_devinfo -v", true),
            (
                "run --state d --nodes 4 --profile none --mode trap --as a.b -- x",
                true,
            ),
            ("run --topology f --as a.b -- x", true),
            ("run --topology f --nodes 2 --as a.b -- x", false),
            ("run --as a.b", false),
            ("run -- x", false),
            ("run --mode warp --as a.b -- x", false),
            ("run --mode deferred:7 --as a.b -- x", true),
            ("run --keys lowest --as a.b -- x", true),
            ("run --keys low --as a.b -- x", false),
            ("run --mode polling --as a.b -- x", true),
            ("env --as a.b", true),
            ("stats --json", true),
            ("ps --state d", true),
            ("fault add any request umr never", true),
            ("fault add", false),
            ("fault list --json", true),
            ("fault clear 1 2", true),
            ("port node0.host 2 down", true),
            ("port node0 1 client-reregister", true),
            ("port node0.host down", false),
            ("port node0.host 1 sideways", false),
            ("run --nodes 2 --ports 2 --as a.b -- x", true),
            ("run --topology f --ports 2 --as a.b -- x", false),
            ("run --link ethernet --as a.b -- x", true),
            ("env --link infiniband-grh --as a.b", true),
            ("topology --link infiniband", true),
            ("run --link token-ring --as a.b -- x", false),
            ("run --topology f --link ethernet --as a.b -- x", false),
            ("trace --json --follow", true),
            ("trace --on", true),
            ("trace --on --off", false),
            ("trace --last 10", true),
            ("dump --json", true),
            ("reset --force", true),
            ("topology --nodes 1", true),
            ("", false),
        ] {
            let words = std::iter::once("bf-emu").chain(line.split_whitespace());
            assert_eq!(Cli::try_parse_from(words).is_ok(), accepted, "{line}");
        }
    }
}
