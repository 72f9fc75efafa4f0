//! Debugging of a process of the DPA: the runner's side, and the connection of a debugger to it.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use dpa_os::{REGISTERS, Stopped};
use serde::{Deserialize, Serialize};

use super::tables::{Dpa, Runner, What};
use super::worker::State;
use crate::process::dpa::SOCKET;
use crate::process::dpa::wire::{Answer, Kind, Request};
use crate::sys;

/// Most bytes of memory of one request.
pub const MEMORY_MAX: usize = 4096;

/// What a debugger asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Begin with this process. All threads stop as soon as one executes a function.
    Attach(u32),
    /// What the threads do.
    State,
    /// Numbers of the threads that execute a function.
    Threads,
    /// Registers of a thread: `x0` to `x31` and the program counter.
    Registers(u32),
    /// New ones.
    SetRegisters(u32, Vec<u64>),
    /// Memory from an address on, up to [`MEMORY_MAX`] bytes.
    Read(u64, usize),
    /// Memory at an address gets these bytes.
    Write(u64, Vec<u8>),
    /// A breakpoint begins or ends.
    Breakpoint(u64, bool),
    /// A thread executes an instruction.
    Step(u32),
    /// All threads go on.
    Go,
    /// All threads stop as soon as one executes a function.
    Interrupt,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// It is done.
    Done,
    /// It is not possible.
    No(String),
    /// What the threads do.
    State(DebugState),
    /// Numbers of threads.
    Threads(Vec<u32>),
    /// Registers.
    Registers(Vec<u64>),
    /// Memory, which may end before the asked bytes.
    Bytes(Vec<u8>),
}

/// What the threads of a process do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DebugState {
    /// They run, or wait for work.
    Runs,
    /// All have stopped because of this one.
    Stopped(u32),
    /// This one has a fault.
    Fault(u32),
    /// The process has ended.
    Ended,
}

/// Serves a debugger until its connection closes. It begins with a request to attach.
pub(super) fn serve(
    runner: &'static Runner,
    stream: &UnixStream,
    input: Vec<u8>,
) -> io::Result<()> {
    let mut dpa: Option<Arc<Dpa>> = None;
    let mut input = input;
    let served = loop {
        let ask = serde_json::from_slice(&input);
        let said = match (ask, &dpa) {
            (Ok(Ask::Attach(id)), None) => match attach(runner, id) {
                Ok(found) => {
                    dpa = Some(found);
                    Said::Done
                }
                Err(text) => Said::No(text),
            },
            (Ok(ask), Some(dpa)) => {
                let said = dpa.worker.ask(move |state| act(state, ask));
                said.unwrap_or(Said::State(DebugState::Ended))
            }
            (Ok(_), None) => Said::No("no process: attach first".to_owned()),
            (Err(error), _) => Said::No(format!("no request of a debugger: {error}")),
        };
        let answer = Answer {
            output: serde_json::to_vec(&said).unwrap_or_default(),
            ..Answer::default()
        };
        let next = answer.send(stream).and_then(|()| Request::receive(stream));
        match next {
            Ok((request, next)) if request.kind == Kind::Debug => input = next,
            Ok(_) => break Err(io::ErrorKind::InvalidData.into()),
            Err(error) => break Err(error),
        }
    };
    if let Some(dpa) = dpa {
        dpa.worker.ask(|state| state.os.detach());
    }
    served
}

fn attach(runner: &Runner, id: u32) -> Result<Arc<Dpa>, String> {
    let tables = runner.tables();
    let Some(What::Process(dpa)) = tables.objects.get(&id).map(|object| object.what.clone()) else {
        return Err(format!("no process {id} of the DPA"));
    };
    drop(tables);
    match dpa.worker.ask(|state| state.os.attach()) {
        Some(true) => Ok(dpa),
        Some(false) => Err(format!("process {id} of the DPA has a debugger already")),
        None => Err(format!("process {id} of the DPA has ended")),
    }
}

fn act(state: &mut State, ask: Ask) -> Said {
    let done = |is_done: bool| match is_done {
        true => Said::Done,
        false => Said::No("not possible".to_owned()),
    };
    let os = &mut state.os;
    match ask {
        Ask::Attach(_) => Said::No("attached already".to_owned()),
        Ask::State => Said::State(match os.stopped() {
            Stopped::No => DebugState::Runs,
            Stopped::Thread(number) => DebugState::Stopped(number),
            Stopped::Fault(number) => DebugState::Fault(number),
            Stopped::Ended => DebugState::Ended,
        }),
        Ask::Threads => Said::Threads(os.active()),
        Ask::Registers(thread) => match os.registers(thread) {
            Some(registers) => Said::Registers(registers.to_vec()),
            None => Said::No(format!("no thread {thread}")),
        },
        Ask::SetRegisters(thread, registers) => {
            let registers: Option<&[u64; REGISTERS]> = registers.first_chunk();
            done(registers.is_some_and(|registers| os.set_registers(thread, registers)))
        }
        Ask::Read(address, bytes) => {
            let mut memory = vec![0; bytes.min(MEMORY_MAX)];
            let count = os.peek(address, &mut memory);
            memory.truncate(count);
            Said::Bytes(memory)
        }
        Ask::Write(address, bytes) => done(bytes.len() <= MEMORY_MAX && os.poke(address, &bytes)),
        Ask::Breakpoint(address, is_set) => done(os.set_breakpoint(address, is_set)),
        Ask::Step(thread) => {
            os.step(&mut state.device, sys::now_ns(), thread);
            Said::Done
        }
        Ask::Go => {
            os.go();
            Said::Done
        }
        Ask::Interrupt => {
            os.interrupt();
            Said::Done
        }
    }
}

/// A request of no program of the host.
pub(super) fn outside(kind: Kind, object: u32) -> Request {
    Request {
        kind,
        process: 0,
        context: 0,
        function: 0,
        object,
        capacity: 0,
        pid: 0,
        options: 0,
    }
}

/// The program of a process as an ELF file.
///
/// # Errors
/// No runner answers, or it has no such process.
pub fn program(state: &Path, process: u32) -> io::Result<Vec<u8>> {
    let stream = UnixStream::connect(state.join(SOCKET))?;
    let mut file = Vec::new();
    loop {
        // The offset is the input.
        let offset = (file.len() as u64).to_le_bytes();
        outside(Kind::Program, process).send(&stream, &offset)?;
        let answer = Answer::receive(&stream)?;
        if answer.errno != 0 {
            return Err(io::Error::from_raw_os_error(answer.errno));
        }
        if answer.output.is_empty() {
            return Ok(file);
        }
        file.extend(answer.output);
    }
}

/// A debugger's connection to the runner.
#[derive(Debug)]
pub struct Debugger {
    stream: UnixStream,
}

impl Debugger {
    /// Begins with a process.
    ///
    /// # Errors
    /// No runner answers, or it has no such process.
    pub fn attach(state: &Path, process: u32) -> io::Result<Self> {
        let debugger = Self {
            stream: UnixStream::connect(state.join(SOCKET))?,
        };
        match debugger.ask(&Ask::Attach(process))? {
            Said::No(text) => Err(io::Error::other(text)),
            _ => Ok(debugger),
        }
    }

    /// Asks the runner.
    ///
    /// # Errors
    /// It has ended.
    pub fn ask(&self, ask: &Ask) -> io::Result<Said> {
        outside(Kind::Debug, 0).send(&self.stream, &serde_json::to_vec(ask)?)?;
        let answer = Answer::receive(&self.stream)?;
        serde_json::from_slice(&answer.output).map_err(io::Error::other)
    }
}
