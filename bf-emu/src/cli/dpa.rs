//! `bf-emu dpa`: the runner of the DPA, and its processes and threads.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bf_emu::dpa;
use bf_emu::view::state::locate;
use clap::{Args, Subcommand};

use super::args::{FormArgs, print};
use super::gdb;

/// Name of the file in the state directory with what the runner says at its end.
const LOG: &str = "dpa.log";

#[derive(Args, Debug)]
pub(super) struct DpaArgs {
    /// The fabric's directory [default: $BFEMU_STATE, else /dev/shm/bf-emu-<uid>]
    #[arg(long, value_name = "DIR", global = true)]
    state: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// List the processes of the DPA, and the fault of each
    Ps {
        #[command(flatten)]
        form: FormArgs,
    },
    /// Show the threads of the DPA: activations, cycles and instructions of each
    Stat {
        #[command(flatten)]
        form: FormArgs,
    },
    /// Show the flows of congestion control: slot, rate, bytes and events of each, and counters of cards
    Flows {
        #[command(flatten)]
        form: FormArgs,
    },
    /// List accesses that need a fence, a writeback or an invalidation, of programs with `bf-emu run --dpa weak`
    Order {
        #[command(flatten)]
        form: FormArgs,
    },
    /// Debug a process of the DPA with gdb: the first one that waits, see `bf-emu run --dpa hold`
    Gdb {
        /// This process, see `bf-emu dpa ps`
        #[arg(long, value_name = "DPA")]
        process: Option<u32>,
        /// Speak the remote protocol of gdb on standard input and output, for `target remote | bf-emu dpa gdb --stdio`
        #[arg(long, requires = "process")]
        stdio: bool,
        /// The debugger
        #[arg(long, value_name = "PROGRAM", default_value = "gdb-multiarch")]
        gdb: String,
        /// More arguments of the debugger
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Execute the DPA's programs, until no program uses it; programs start this themselves
    Serve {
        /// Return as soon as programs can connect
        #[arg(long)]
        background: bool,
    },
}

/// Executes the command.
pub(super) fn act(args: &DpaArgs) -> Result<()> {
    let state = locate(args.state.as_deref());
    match &args.action {
        Action::Ps { form } => ps(&state, form.json),
        Action::Stat { form } => stat(&state, form.json),
        Action::Flows { form } => flows(&state, form.json),
        Action::Order { form } => order(&state, form.json),
        Action::Gdb {
            stdio: true,
            process,
            ..
        } => gdb::serve(&state, process.unwrap_or_default()),
        Action::Gdb {
            process,
            gdb,
            arguments,
            ..
        } => gdb::start(&state, *process, gdb, arguments),
        Action::Serve { background: true } => background(&state),
        Action::Serve { .. } => serve(&state),
    }
}

fn reports(state: &Path) -> Result<Vec<dpa::ProcessReport>> {
    dpa::report(state).context("asking the runner of the DPA")
}

fn ps(state: &Path, json: bool) -> Result<()> {
    let processes = reports(state)?;
    if json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&processes)?));
    }
    let mut text = format!(
        "{:>6} {:>8} {:20} {:>7} {:>14} {:>10} {:>10} FAULT\n",
        "DPA", "PID", "FUNCTION", "THREADS", "INSTRUCTIONS", "DOORBELLS", "ACCESSES"
    );
    for process in &processes {
        text.push_str(&format!(
            "{:>6} {:>8} {:20} {:>7} {:>14} {:>10} {:>10} {}\n",
            process.id,
            process.pid,
            process.function,
            process.threads.len(),
            process.instructions,
            process.doorbells,
            process.window_accesses,
            process.fault
        ));
    }
    print(&text)
}

fn stat(state: &Path, json: bool) -> Result<()> {
    let processes = reports(state)?;
    if json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&processes)?));
    }
    let mut text = format!(
        "{:>6} {:>6} {:8} {:>5} {:>11} {:>14} {:>14}\n",
        "DPA", "THREAD", "KIND", "RUNS", "ACTIVATIONS", "CYCLES", "INSTRUCTIONS"
    );
    for process in &processes {
        for thread in &process.threads {
            text.push_str(&format!(
                "{:>6} {:>6} {:8} {:>5} {:>11} {:>14} {:>14}\n",
                process.id,
                thread.number,
                thread.kind,
                if thread.runs { "yes" } else { "no" },
                thread.activations,
                thread.instructions,
                thread.instructions
            ));
        }
    }
    print(&text)
}

fn flows(state: &Path, json: bool) -> Result<()> {
    let report = bf_emu::report::flows::flows(state)?;
    if json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&report)?));
    }
    let mut text = format!(
        "{:20} {:>8} {:>4} {:>8} {:>10} {:>14} {:>10} {:>6} NOTE\n",
        "FUNCTION", "QP", "SLOT", "GB/S", "MESSAGES", "BYTES", "EVENTS", "LOST"
    );
    for flow in &report.flows {
        text.push_str(&format!(
            "{:20} {:>#8x} {:>4} {:>8.3} {:>10} {:>14} {:>10} {:>6} {}\n",
            flow.function,
            flow.qpn,
            flow.slot,
            flow.gbps,
            flow.messages,
            flow.payload_bytes,
            flow.events,
            flow.lost_events,
            flow.note
        ));
    }
    for card in report.cards.iter().filter(|card| card.is_controlled) {
        text.push_str(&format!(
            "{}: a program controls this card\n",
            card.function
        ));
    }
    print(&text)
}

fn order(state: &Path, json: bool) -> Result<()> {
    let reports = dpa::order_reports(state).context("reading the reports")?;
    if json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&reports)?));
    }
    let mut text = String::new();
    for report in reports {
        let dpa::OrderReport {
            pid,
            thread,
            pc,
            function,
            file,
            line,
            text: missing,
        } = report;
        text.push_str(&format!(
            "{file}:{line}: {missing} ({function}, {pc:#x}, thread {thread} of program {pid})\n"
        ));
    }
    print(&text)
}

fn serve(state: &Path) -> Result<()> {
    let ready = || {
        let mut out = io::stdout().lock();
        writeln!(out, "ready").and_then(|()| out.flush())
    };
    dpa::serve(state, ready)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("serving the DPA of {}", state.display()))
}

/// Starts the runner in a session of its own and waits until it is ready.
fn background(state: &Path) -> Result<()> {
    // Pipes and sockets of the program that has started this one must not stay open as long as the runner.
    // SAFETY: this program has opened no file.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    let program = std::env::current_exe().context("finding this program's own file")?;
    let log = state.join(LOG);
    let log = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let mut command = Command::new(program);
    command.args(["dpa", "serve", "--state"]).arg(state);
    command.current_dir("/").process_group(0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut child = command.spawn().context("starting the runner of the DPA")?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim_end() != "ready" {
        let status = child.wait()?;
        let said = std::fs::read_to_string(state.join(LOG)).unwrap_or_default();
        bail!(
            "the runner of the DPA has ended: {status}: {}",
            said.trim_end()
        );
    }
    Ok(())
}
