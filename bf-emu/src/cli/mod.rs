//! The command line of `bf-emu`.

mod args;
mod dpa;
mod fault;
mod gdb;
mod join;
mod launch;
mod port;
mod show;
mod trace;

use anyhow::Result;
use clap::{Parser, Subcommand};

use args::{FabricArgs, FormArgs, ShapeArgs, StateArgs};

const EXAMPLES: &str = "\
Examples:
  bf-emu run --as node0.host -- ibv_devinfo
  bf-emu run --nodes 2 --profile bluefield3 --as node0.host,node0.dpu -- ./program
  eval \"$(bf-emu env --as node0.host)\"
  bf-emu stats --json
  bf-emu port node0.host 1 down
  bf-emu fault add node0.host command create_mkey nth 7 status LIMITS_EXCEEDED

Exit codes: 0 done, 1 failed, 2 wrong usage; `run` ends with the program's own.";

/// An emulated BlueField below unmodified rdma-core
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
    /// Print shell lines that give later programs the environment of `run`
    Env {
        #[command(flatten)]
        fabric: FabricArgs,
    },
    /// Show the counters of each function: commands, work requests, refusals, objects
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
    /// Show recent calls, doorbells, work requests and completions, one line each
    Trace(trace::TraceArgs),
    /// Show the live objects, one line each
    Dump {
        #[command(flatten)]
        state: StateArgs,
        #[command(flatten)]
        form: FormArgs,
    },
    /// Make commands and work requests fail
    Fault(fault::FaultArgs),
    /// Show the processes and threads of the DPA
    Dpa(dpa::DpaArgs),
    /// Carry requests to nodes on other machines, by RoCE v2
    Join(join::JoinArgs),
    /// Take a port down or up, or raise a port event
    Port(port::PortArgs),
    /// Remove the fabric; a later `run` makes a new one
    Reset {
        #[command(flatten)]
        state: StateArgs,
        /// Also while processes use it: they continue alone, and no other process can join them
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

impl Cli {
    /// Executes the command.
    pub(crate) fn act(self) -> Result<()> {
        match self.command {
            Command::Run { fabric, command } => launch::run(&fabric, &command),
            Command::Env { fabric } => launch::env(&fabric),
            Command::Stats { state, form } => show::stats(&state, form.json),
            Command::Ps { state, form } => show::ps(&state, form.json),
            Command::Trace(args) => trace::trace(&args),
            Command::Dump { state, form } => trace::dump(&state, &form),
            Command::Fault(args) => fault::act(&args),
            Command::Dpa(args) => dpa::act(&args),
            Command::Join(args) => join::act(&args),
            Command::Port(args) => port::act(&args),
            Command::Reset { state, force } => show::reset(&state, force),
            Command::Topology { state, shape } => show::topology(&state, &shape),
        }
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
            ("fault --state d add any request umr never", true),
            ("fault add --state d any request umr never", true),
            ("fault --state d list --json", true),
            ("fault list --state d", true),
            ("fault --state d clear 1", true),
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
            ("dpa ps --json", true),
            ("dpa stat --state d", true),
            ("dpa serve --background", true),
            ("dpa", false),
            ("join --state d --port 14791 --disturb 7", true),
            ("join --port 70000", false),
            ("reset --force", true),
            ("topology --nodes 1", true),
            ("", false),
        ] {
            let words = std::iter::once("bf-emu").chain(line.split_whitespace());
            assert_eq!(Cli::try_parse_from(words).is_ok(), accepted, "{line}");
        }
    }
}
