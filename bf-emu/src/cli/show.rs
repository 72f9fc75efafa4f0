//! `bf-emu stats`, `ps`, `topology` and `reset`.

use std::fs;

use anyhow::{Context, Result, bail};
use bf_emu::engine;
use bf_emu::fabric::FabricError;
use bf_emu::report::stats;
use bf_emu::view::state::{StateDir, StateError, locate};
use serde::Serialize;

use super::args::{ShapeArgs, StateArgs, print};
use super::launch;

/// A process that uses the fabric.
#[derive(Debug, Serialize)]
struct ProcessInfo {
    pid: i32,
    /// The functions visible to it.
    view: String,
    /// Its name from the kernel; empty if it just ended.
    command: String,
    /// The objects it owns, by kind.
    objects: Objects,
}

#[derive(Debug, Default, Serialize)]
struct Objects {
    qps: usize,
    cqs: usize,
    srqs: usize,
    mkeys: usize,
    umems: usize,
    pds: usize,
}

/// Prints the counters.
pub(super) fn stats(args: &StateArgs, json: bool) -> Result<()> {
    let state = open(args)?;
    let stats = stats::collect(state.path())?;
    if json {
        return print_json(&stats);
    }
    print(&format!("{}\n", stats.to_string().trim_end()))
}

/// Prints the processes.
pub(super) fn ps(args: &StateArgs, json: bool) -> Result<()> {
    let processes = processes(&open(args)?)?;
    if json {
        return print_json(&processes);
    }
    let view_width = processes.iter().map(|process| process.view.len()).max();
    let view_width = view_width.unwrap_or(0).max("AS".len());
    let mut text = format!(
        "{:>8} {:view_width$} {:>6} {:>6} {:>6} {:>7} {:>6} {:>6} COMMAND\n",
        "PID", "AS", "QPS", "CQS", "SRQS", "MKEYS", "UMEMS", "PDS"
    );
    for ProcessInfo {
        pid,
        view,
        command,
        objects,
    } in &processes
    {
        let Objects {
            qps,
            cqs,
            srqs,
            mkeys,
            umems,
            pds,
        } = objects;
        text.push_str(&format!(
            "{pid:>8} {view:view_width$} {qps:>6} {cqs:>6} {srqs:>6} {mkeys:>7} {umems:>6} \
             {pds:>6} {command}\n"
        ));
    }
    print(&text)
}

/// Prints the requested topology, the topology of the state, or the default one.
pub(super) fn topology(args: &StateArgs, shape: &ShapeArgs) -> Result<()> {
    let topology = match launch::asked_topology(shape)? {
        Some(asked) => asked,
        None => match open(args) {
            Ok(state) => state.topology()?,
            Err(StateError::Missing { .. }) => launch::default_topology()?,
            Err(error) => return Err(error.into()),
        },
    };
    print(&topology.to_toml())
}

/// Removes the state.
pub(super) fn reset(args: &StateArgs, force: bool) -> Result<()> {
    let state = match open(args) {
        Err(StateError::Missing { .. }) => return Ok(()),
        other => other?,
    };
    let lock = state.lock()?;
    // A device of another version cannot list its processes. Its error message tells the user to
    // run this command.
    let users = match processes(&state) {
        Err(error) if is_unreadable(&error) => Vec::new(),
        other => other?,
    };
    if !users.is_empty() && !force {
        let pids: Vec<String> = users.iter().map(|user| user.pid.to_string()).collect();
        bail!(
            "state {} is used by process {}; end them first, or give --force",
            state.path().display(),
            pids.join(", ")
        );
    }
    Ok(state.remove(lock)?)
}

fn open(args: &StateArgs) -> Result<StateDir, StateError> {
    StateDir::open(&locate(args.state.as_deref()))
}

fn is_unreadable(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(FabricError::Layout { .. } | FabricError::Io { .. })
    )
}

/// The processes that use the device of `state`, by pid; none if it has no device.
fn processes(state: &StateDir) -> Result<Vec<ProcessInfo>> {
    if !state.device_path().exists() {
        return Ok(Vec::new());
    }
    let fabric = engine::open(state.path())?;
    let functions = fabric.identities().len();
    let mut locked = fabric.lock();
    locked.sweep();
    let attached: Vec<_> = locked
        .common()
        .processes
        .iter()
        .map(|(index, _, process)| (index + 1, *process))
        .collect();
    let mut processes = Vec::with_capacity(attached.len());
    for (number, process) in attached {
        let mut objects = Objects::default();
        for index in 0..functions {
            let function = locked.peek(index);
            objects.qps += owned(function.qps.iter().map(|(_, owner, _)| owner), number);
            objects.cqs += owned(function.cqs.iter().map(|(_, owner, _)| owner), number);
            objects.srqs += owned(function.srqs.iter().map(|(_, owner, _)| owner), number);
            objects.mkeys += owned(function.mkeys.iter().map(|(_, owner, _)| owner), number);
            objects.umems += owned(function.umems.iter().map(|(_, owner, _)| owner), number);
            objects.pds += owned(function.pds.iter().map(|(_, owner, _)| owner), number);
        }
        let view = process
            .view
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default();
        let command = fs::read_to_string(format!("/proc/{}/comm", process.pid));
        processes.push(ProcessInfo {
            pid: process.pid,
            view: String::from_utf8_lossy(view).into_owned(),
            command: command.unwrap_or_default().trim_end().to_owned(),
            objects,
        });
    }
    processes.sort_unstable_by_key(|process| process.pid);
    Ok(processes)
}

fn owned(owners: impl Iterator<Item = bf_emu::fabric::table::Owner>, process: u32) -> usize {
    owners.filter(|owner| owner.process == process).count()
}

pub(super) fn print_json(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).context("writing JSON")?;
    text.push('\n');
    print(&text)
}
