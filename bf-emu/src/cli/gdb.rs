//! `bf-emu dpa gdb`: a debugger for threads of the DPA, by the remote protocol of gdb on standard input and output.
//!
//! The crate `gdbstub` reads and answers the packets: it is kept up, bounds each packet by its buffer, and answers bad packets with an
//! error. This file translates its questions for the runner.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use bf_emu::dpa::{Ask, DebugState, Debugger, MEMORY_MAX, Said};
use gdbstub::common::{Signal, Tid};
use gdbstub::conn::{Connection, ConnectionExt};
use gdbstub::stub::run_blocking::{BlockingEventLoop, Event, WaitForStopReasonError};
use gdbstub::stub::{DisconnectReason, GdbStub, MultiThreadStopReason};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadResume, MultiThreadResumeOps, MultiThreadSchedulerLocking,
    MultiThreadSchedulerLockingOps, MultiThreadSingleStep, MultiThreadSingleStepOps,
};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, SwBreakpoint, SwBreakpointOps,
};
use gdbstub::target::{Target, TargetError, TargetResult};
use gdbstub_arch::riscv::Riscv64;
use gdbstub_arch::riscv::reg::RiscvCoreRegs;

/// Bytes of the longest packet.
const PACKET_BYTES: usize = 8192;
/// Pause between two questions whether a thread has stopped, in milliseconds.
const PAUSE_MS: i32 = 2;

/// Waits for a process that a debugger can stop, and starts gdb with its program.
pub(super) fn start(state: &Path, process: Option<u32>, gdb: &str, more: &[String]) -> Result<()> {
    let process = wait(state, process)?;
    let image = bf_emu::dpa::program(state, process).context("the program of the process")?;
    let file = state.join(format!("dpa.{process}.elf"));
    std::fs::write(&file, image).with_context(|| format!("writing {}", file.display()))?;
    let own = std::env::current_exe().context("finding this program's own file")?;
    let remote = format!(
        "target remote | exec {} dpa gdb --stdio --process {process} --state {}",
        own.display(),
        state.display()
    );
    let error = Command::new(gdb)
        .args(["-q", "-ex", "set confirm off", "-ex", &remote])
        .args(more)
        .arg(&file)
        .exec();
    Err(error).with_context(|| format!("starting {gdb}: cargo xtask setup installs gdb-multiarch"))
}

/// The process with this number, or the first one that waits for a debugger, as soon as it is there.
fn wait(state: &Path, process: Option<u32>) -> Result<u32> {
    let mut has_said = false;
    loop {
        let processes = bf_emu::dpa::report(state).context("asking the runner of the DPA")?;
        let found = processes.iter().find(|found| match process {
            Some(id) => found.id == id,
            None => found.held,
        });
        match (found, process) {
            (Some(found), _) => return Ok(found.id),
            (None, Some(id)) => bail!("no process {id} of the DPA: bf-emu dpa ps lists them"),
            (None, None) => {}
        }
        if !has_said {
            let text = "waiting for a program with bf-emu run --dpa hold; end with Ctrl-C";
            let _ = writeln!(io::stderr(), "{text}");
            has_said = true;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Speaks the protocol until the debugger leaves.
pub(super) fn serve(state: &Path, process: u32) -> Result<()> {
    let debugger = Debugger::attach(state, process).context("attaching to the process")?;
    let mut target = Dpa {
        debugger,
        step: None,
        last: None,
        is_interrupted: false,
    };
    // gdb asks for a thread at once, so one must have stopped.
    let mut pipe = Pipe { ahead: None };
    loop {
        match target.state().map_err(anyhow::Error::msg)? {
            DebugState::Runs => {
                if pipe.is_readable(PAUSE_MS)? && pipe.is_closed()? {
                    return Ok(());
                }
            }
            DebugState::Ended => bail!("the process of the DPA has ended"),
            DebugState::Stopped(_) | DebugState::Fault(_) => break,
        }
    }
    let mut buffer = vec![0; PACKET_BYTES];
    let stub = GdbStub::builder(pipe)
        .with_packet_buffer(&mut buffer)
        .build()
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    match stub.run_blocking::<Loop>(&mut target) {
        Ok(DisconnectReason::Disconnect | DisconnectReason::Kill) => Ok(()),
        Ok(DisconnectReason::TargetExited(_) | DisconnectReason::TargetTerminated(_)) => Ok(()),
        Err(error) if error.is_connection_error() => Ok(()),
        Err(error) => bail!("debugging: {error}"),
    }
}

/// Standard input and output, and a byte that was looked at.
struct Pipe {
    ahead: Option<u8>,
}

impl Pipe {
    fn is_readable(&self, milliseconds: i32) -> io::Result<bool> {
        let mut poll = libc::pollfd {
            fd: 0,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        let count = unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
        match count {
            0.. => Ok(self.ahead.is_some() || count > 0),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn byte(&mut self) -> io::Result<Option<u8>> {
        if let Some(byte) = self.ahead.take() {
            return Ok(Some(byte));
        }
        let mut byte = 0u8;
        // Not by the library's buffer, into which `poll` does not look.
        // SAFETY: the place of one byte.
        let count = unsafe { libc::read(0, (&raw mut byte).cast(), 1) };
        match count {
            1 => Ok(Some(byte)),
            0 => Ok(None),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// True if nothing more will come. Reads a byte ahead.
    fn is_closed(&mut self) -> io::Result<bool> {
        if self.ahead.is_none() {
            self.ahead = self.byte()?;
        }
        Ok(self.ahead.is_none())
    }
}

impl Connection for Pipe {
    type Error = io::Error;

    fn write(&mut self, byte: u8) -> io::Result<()> {
        self.write_all(&[byte])
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        io::stdout().lock().write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().lock().flush()
    }
}

impl ConnectionExt for Pipe {
    fn read(&mut self) -> io::Result<u8> {
        self.byte()?
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        if self.ahead.is_none() && self.is_readable(0)? && self.is_closed()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.ahead)
    }
}

/// The threads of a process, for `gdbstub`.
struct Dpa {
    debugger: Debugger,
    /// The thread that executes one instruction at the next start.
    step: Option<Tid>,
    /// The thread that has stopped last.
    last: Option<u32>,
    is_interrupted: bool,
}

fn is_end(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
    )
}

/// The number of a thread.
fn number(tid: Tid) -> u32 {
    u32::try_from(tid.get()).unwrap_or_default()
}

fn tid(number: u32) -> Tid {
    NonZeroUsize::new(number as usize).unwrap_or(NonZeroUsize::MIN)
}

impl Dpa {
    fn ask(&self, ask: &Ask) -> Result<Said, String> {
        match self.debugger.ask(ask) {
            Ok(said) => Ok(said),
            // The runner ends with its last program.
            Err(error) if is_end(error.kind()) => Ok(Said::State(DebugState::Ended)),
            Err(error) => Err(format!("the runner of the DPA: {error}")),
        }
    }

    fn state(&mut self) -> Result<DebugState, String> {
        match self.ask(&Ask::State)? {
            Said::State(state) => {
                if let DebugState::Stopped(thread) | DebugState::Fault(thread) = state {
                    self.last = Some(thread);
                }
                Ok(state)
            }
            _ => Ok(DebugState::Ended),
        }
    }

    /// Something that the runner does, or refuses.
    fn done(&self, ask: &Ask) -> TargetResult<(), Self> {
        match self.ask(ask).map_err(TargetError::Fatal)? {
            Said::Done => Ok(()),
            _ => Err(TargetError::NonFatal),
        }
    }
}

impl Target for Dpa {
    type Arch = Riscv64;
    type Error = String;

    fn base_ops(&mut self) -> BaseOps<'_, Self::Arch, Self::Error> {
        BaseOps::MultiThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadBase for Dpa {
    fn read_registers(
        &mut self,
        registers: &mut RiscvCoreRegs<u64>,
        tid: Tid,
    ) -> TargetResult<(), Self> {
        let said = self.ask(&Ask::Registers(number(tid)));
        let Said::Registers(values) = said.map_err(TargetError::Fatal)? else {
            return Err(TargetError::NonFatal);
        };
        let (Some(x), Some(pc)) = (values.first_chunk(), values.get(32)) else {
            return Err(TargetError::NonFatal);
        };
        (registers.x, registers.pc) = (*x, *pc);
        Ok(())
    }

    fn write_registers(
        &mut self,
        registers: &RiscvCoreRegs<u64>,
        tid: Tid,
    ) -> TargetResult<(), Self> {
        let mut values = registers.x.to_vec();
        values.push(registers.pc);
        self.done(&Ask::SetRegisters(number(tid), values))
    }

    fn read_addrs(
        &mut self,
        address: u64,
        bytes: &mut [u8],
        _tid: Tid,
    ) -> TargetResult<usize, Self> {
        let count = bytes.len().min(MEMORY_MAX);
        let said = self.ask(&Ask::Read(address, count));
        match said.map_err(TargetError::Fatal)? {
            Said::Bytes(memory) if !memory.is_empty() && memory.len() <= count => {
                bytes[..memory.len()].copy_from_slice(&memory);
                Ok(memory.len())
            }
            _ => Err(TargetError::NonFatal),
        }
    }

    fn write_addrs(&mut self, address: u64, bytes: &[u8], _tid: Tid) -> TargetResult<(), Self> {
        self.done(&Ask::Write(address, bytes.to_vec()))
    }

    fn list_active_threads(&mut self, each: &mut dyn FnMut(Tid)) -> Result<(), String> {
        let Said::Threads(mut threads) = self.ask(&Ask::Threads)? else {
            return Ok(());
        };
        // gdb begins with the first one.
        threads.sort_by_key(|thread| Some(*thread) != self.last);
        if threads.is_empty() {
            threads.extend(self.last);
        }
        threads.into_iter().map(tid).for_each(each);
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadResume for Dpa {
    fn resume(&mut self) -> Result<(), String> {
        let ask = match self.step {
            Some(thread) => Ask::Step(number(thread)),
            None => Ask::Go,
        };
        self.ask(&ask).map(drop)
    }

    fn clear_resume_actions(&mut self) -> Result<(), String> {
        self.step = None;
        Ok(())
    }

    fn set_resume_action_continue(
        &mut self,
        _tid: Tid,
        _signal: Option<Signal>,
    ) -> Result<(), String> {
        Ok(())
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSchedulerLocking for Dpa {
    /// The runner lets no other thread go on during a step.
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), String> {
        Ok(())
    }
}

impl MultiThreadSingleStep for Dpa {
    fn set_resume_action_step(&mut self, tid: Tid, _signal: Option<Signal>) -> Result<(), String> {
        self.step = Some(tid);
        Ok(())
    }
}

impl Breakpoints for Dpa {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Dpa {
    fn add_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        let said = self.ask(&Ask::Breakpoint(address, true));
        Ok(said.map_err(TargetError::Fatal)? == Said::Done)
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _kind: usize) -> TargetResult<bool, Self> {
        let said = self.ask(&Ask::Breakpoint(address, false));
        Ok(said.map_err(TargetError::Fatal)? == Said::Done)
    }
}

/// Waits for the threads or for the debugger.
enum Loop {}

type Reason = MultiThreadStopReason<u64>;

impl BlockingEventLoop for Loop {
    type Target = Dpa;
    type Connection = Pipe;
    type StopReason = Reason;

    fn wait_for_stop_reason(
        target: &mut Dpa,
        pipe: &mut Pipe,
    ) -> Result<Event<Reason>, WaitForStopReasonError<String, io::Error>> {
        loop {
            let reason = match target.state().map_err(WaitForStopReasonError::Target)? {
                DebugState::Runs => None,
                DebugState::Stopped(thread) if target.step.take().is_some() => {
                    Some(MultiThreadStopReason::SignalWithThread {
                        tid: tid(thread),
                        signal: Signal::SIGTRAP,
                    })
                }
                DebugState::Stopped(thread) if std::mem::take(&mut target.is_interrupted) => {
                    Some(MultiThreadStopReason::SignalWithThread {
                        tid: tid(thread),
                        signal: Signal::SIGINT,
                    })
                }
                DebugState::Stopped(thread) => Some(MultiThreadStopReason::SwBreak(tid(thread))),
                DebugState::Fault(thread) => Some(MultiThreadStopReason::SignalWithThread {
                    tid: tid(thread),
                    signal: Signal::SIGSEGV,
                }),
                DebugState::Ended => Some(MultiThreadStopReason::Exited(0)),
            };
            if let Some(reason) = reason {
                return Ok(Event::TargetStopped(reason));
            }
            let readable = pipe.is_readable(PAUSE_MS);
            if readable.map_err(WaitForStopReasonError::Connection)? {
                let byte = pipe.read().map_err(WaitForStopReasonError::Connection)?;
                return Ok(Event::IncomingData(byte));
            }
        }
    }

    fn on_interrupt(target: &mut Dpa) -> Result<Option<Reason>, String> {
        target.is_interrupted = true;
        target.ask(&Ask::Interrupt)?;
        Ok(None)
    }
}
