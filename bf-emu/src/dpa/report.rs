//! The processes and threads of the DPA for the user.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;

use mlx5_prm::dpa::{ThreadCounters, ThreadKind};
use serde::{Deserialize, Serialize};

use super::debug::outside;
use super::tables::{Runner, What};
use crate::process::dpa::SOCKET;
use crate::process::dpa::wire::{Answer, Kind};

/// A process of the DPA.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Its number.
    pub id: u32,
    /// The function that it belongs to.
    pub function: String,
    /// The program of the host or the DPU.
    pub pid: i32,
    /// Instructions of all threads.
    pub instructions: u64,
    /// Doorbells of all threads.
    pub doorbells: u64,
    /// Accesses to memory behind keys.
    pub window_accesses: u64,
    /// The fault that has ended it, or nothing.
    pub fault: String,
    /// It waits for a debugger, and has something to execute.
    pub held: bool,
    /// Its threads.
    pub threads: Vec<ThreadReport>,
}

/// A thread of the DPA.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ThreadReport {
    /// Its number.
    pub number: u32,
    /// What it is for: call, launch, handler, worker.
    pub kind: String,
    /// It executes a function.
    pub runs: bool,
    /// Functions that it has begun.
    pub activations: u64,
    /// Instructions that it has executed. Each takes one cycle.
    pub instructions: u64,
}

/// All processes, as JSON.
pub(super) fn collect(runner: &'static Runner) -> Vec<u8> {
    let tables = runner.tables();
    let objects = tables.objects.iter();
    let mut found: Vec<_> = objects
        .filter_map(|(id, object)| match &object.what {
            What::Process(dpa) => Some((*id, std::sync::Arc::clone(dpa))),
            _ => None,
        })
        .collect();
    drop(tables);
    found.sort_by_key(|(id, _)| *id);
    let identities = runner.process.fabric().identities();
    let processes: Vec<ProcessReport> = found
        .into_iter()
        .filter_map(|(id, dpa)| {
            let function = identities.get(dpa.function)?.name().to_owned();
            let pid = dpa.pid;
            dpa.worker.ask(move |state| ProcessReport {
                id,
                function,
                pid,
                instructions: state.os.machine().retired(),
                doorbells: state.device.doorbells,
                window_accesses: state.device.accesses,
                fault: state
                    .os
                    .fault()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                held: state.os.is_held(),
                threads: state.os.counters().map(of_thread).collect(),
            })
        })
        .collect();
    serde_json::to_vec(&processes).unwrap_or_default()
}

fn of_thread(counters: ThreadCounters) -> ThreadReport {
    let kind = match counters.kind {
        ThreadKind::Call => "call",
        ThreadKind::Launch => "launch",
        ThreadKind::Handler => "handler",
        ThreadKind::Worker => "worker",
    };
    ThreadReport {
        number: counters.number,
        kind: kind.to_owned(),
        runs: counters.runs,
        activations: counters.activations,
        instructions: counters.instructions,
    }
}

fn is_end(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof
    )
}

/// The processes of the DPA in a state directory. None run if there is no runner.
///
/// # Errors
/// The runner does not answer.
pub fn report(state: &Path) -> std::io::Result<Vec<ProcessReport>> {
    let Ok(stream) = UnixStream::connect(state.join(SOCKET)) else {
        return Ok(Vec::new());
    };
    let asked = outside(Kind::Report, 0).send(&stream, &[]);
    let answer = match asked.and_then(|()| Answer::receive(&stream)) {
        Ok(answer) => answer,
        // The runner has ended with its last program.
        Err(error) if is_end(error.kind()) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    serde_json::from_slice(&answer.output).map_err(std::io::Error::other)
}
