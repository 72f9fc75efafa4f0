//! `bf-emu trace` and `bf-emu dump`: recent operations, and live objects.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use bf_emu::engine;
use bf_emu::fabric::Fabric;
use bf_emu::report::dump;
use bf_emu::report::trace::Shown;
use bf_emu::view::state::{StateDir, locate};
use clap::Args;

use super::args::{FormArgs, StateArgs, print};
use super::show;

/// Interval between two reads of a followed trace. It is short for a reader and long enough to cost
/// the processes nothing.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of `bf-emu trace`.
#[derive(Args, Debug)]
pub(super) struct TraceArgs {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    form: FormArgs,
    /// Start recording, and show nothing
    #[arg(long, conflicts_with_all = ["off", "follow", "last"])]
    on: bool,
    /// Stop recording, and show nothing
    #[arg(long, conflicts_with_all = ["follow", "last"])]
    off: bool,
    /// Start recording, and show new records until interrupted; recording stays on
    #[arg(long)]
    follow: bool,
    /// Show the latest N records [default: all, up to 65536; with --follow: none]
    #[arg(long, value_name = "N")]
    last: Option<u64>,
}

fn open(args: &StateArgs) -> Result<Fabric> {
    let state = StateDir::open(&locate(args.state.as_deref()))?;
    Ok(engine::open(state.path())?)
}

/// Turns the trace on or off, or shows it.
pub(super) fn trace(args: &TraceArgs) -> Result<()> {
    let fabric = open(&args.state)?;
    let trace = fabric.trace();
    if args.on || args.off {
        trace.turn(args.on);
        return Ok(());
    }
    let names = fabric.names();
    let latest = trace.latest();
    let default = if args.follow { 0 } else { u64::MAX };
    let mut after = latest.saturating_sub(args.last.unwrap_or(default));
    if args.follow {
        trace.turn(true);
    }
    loop {
        let mut text = String::new();
        for record in trace.since(after) {
            after = record.number;
            let shown = Shown::new(&record, &names);
            if args.form.json {
                text.push_str(&serde_json::to_string(&shown).context("writing JSON")?);
            } else {
                text.push_str(&shown.to_string());
            }
            text.push('\n');
        }
        if !args.follow {
            return print(&text);
        }
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // The reader of the output has closed it.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                trace.turn(false);
                return Ok(());
            }
            result => result.context("writing to stdout")?,
        }
        std::thread::sleep(FOLLOW_INTERVAL);
    }
}

/// Prints the objects.
pub(super) fn dump(args: &StateArgs, form: &FormArgs) -> Result<()> {
    let objects = dump::objects(&open(args)?);
    if form.json {
        return show::print_json(&objects);
    }
    let lines: String = objects.iter().map(|object| format!("{object}\n")).collect();
    print(&lines)
}
