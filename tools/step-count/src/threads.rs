//! The threads of the program while breakpoints are set. All of them meet the breakpoints, and only the first one is counted.

use crate::branch;
use crate::code::{Code, Last};
use crate::tracee::{Tracee, end, request, wait_for};
use anyhow::{Context, Result, bail, ensure};
use libc::{c_int, pid_t, user_regs_struct};
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::time::Duration;

/// A system call and a breakpoint. They replace unused bytes in the header of the kernel's own object in the program, which is
/// executable. A thread makes its system calls there, because the breakpoint at the original place must stay for the others.
const GADGET: [u8; 3] = [0x0f, 0x05, 0xcc];
/// Offset of the unused bytes: `EI_PAD` of `elf.h`.
const UNUSED_AT: u64 = 9;
/// Length of the instruction of a system call.
pub(crate) const SYSCALL_BYTES: u64 = 2;
/// Time limit for the stop of a thread, which may be in a system call that no signal interrupts.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// System calls that return elsewhere, or in a new thread.
const ELSEWHERE: [i64; 6] = [
    libc::SYS_rt_sigreturn,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
];

/// Why a thread is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Before the instruction with this breakpoint.
    At(u64),
    /// A system call has returned.
    Returned,
    /// A step is complete: an instruction, or the entry into a signal's handler.
    Step,
    /// Before the delivery of a signal.
    Signal(c_int),
    /// By `ptrace` itself.
    Event,
}

/// Threads of the program other than the counted one.
#[derive(Debug)]
pub(crate) struct Threads {
    counted: pid_t,
    /// The other threads.
    others: BTreeMap<pid_t, Other>,
    gadget: u64,
    /// Bytes at the place of the gadget.
    replaced: [u8; GADGET.len()],
}

#[derive(Debug, Default)]
struct Other {
    /// Address of the instruction of the system call that it makes at the gadget.
    call: u64,
}

impl Threads {
    /// Takes all other threads and writes the gadget.
    pub(crate) fn take(counted: pid_t, code: &Code) -> Result<Self> {
        let gadget = kernels_object(counted)? + UNUSED_AT;
        let mut replaced = [0; GADGET.len()];
        let read = code.memory.read_bytes(gadget, &mut replaced);
        ensure!(read == replaced.len(), "the vdso is not readable");
        let mut threads = Self {
            counted,
            others: BTreeMap::new(),
            gadget,
            replaced,
        };
        let stopped = threads.stop_all()?;
        code.memory.write_bytes(gadget, &GADGET)?;
        for (tid, status) in stopped {
            let signal = match status >> 16 {
                0 => libc::WSTOPSIG(status),
                _ => 0,
            };
            Tracee { pid: tid }.resume(libc::PTRACE_CONT, signal)?;
        }
        Ok(threads)
    }

    /// Stops all other threads, also those that begin meanwhile. Returns their statuses.
    fn stop_all(&mut self) -> Result<BTreeMap<pid_t, c_int>> {
        let mut stopped = BTreeMap::new();
        loop {
            let mut is_complete = true;
            let place = format!("/proc/{}/task", self.counted);
            for entry in std::fs::read_dir(&place).with_context(|| place.clone())? {
                let name = entry?.file_name();
                let tid: pid_t = name.to_string_lossy().parse().context("a thread's id")?;
                if tid == self.counted || stopped.contains_key(&tid) {
                    continue;
                }
                if let Some(status) = self.stop(tid)? {
                    stopped.insert(tid, status);
                    is_complete = false;
                }
            }
            if is_complete {
                return Ok(stopped);
            }
        }
    }

    /// Stops another thread; `None` if it has ended.
    fn stop(&mut self, tid: pid_t) -> Result<Option<c_int>> {
        let options = std::ptr::without_provenance_mut(usize::try_from(libc::PTRACE_O_TRACECLONE)?);
        match request(libc::PTRACE_SEIZE, tid, options) {
            Ok(()) => {}
            // It is traced already.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("attaching to thread {tid}"));
            }
        }
        if request(libc::PTRACE_INTERRUPT, tid, null_mut()).is_err() {
            return Ok(None);
        }
        let thread = Tracee { pid: tid };
        let Some(status) = thread.wait_at_most(STOP_LIMIT)? else {
            bail!("thread {tid} did not stop within {STOP_LIMIT:?}");
        };
        let status = thread.settle(status)?;
        Ok(libc::WIFSTOPPED(status).then_some(status))
    }

    /// Waits until the counted thread stops; other threads that stop continue meanwhile. Returns its status.
    pub(crate) fn wait(&mut self, code: &Code) -> Result<c_int> {
        loop {
            let Some((tid, status)) = wait_for(-1)? else {
                if end::is_requested() {
                    // The program may have ended; then the next wait says so.
                    let _ = request(libc::PTRACE_INTERRUPT, self.counted, null_mut());
                }
                continue;
            };
            if tid == self.counted {
                return Ok(status);
            }
            self.pass(tid, status, code)?;
        }
    }

    /// Why a stopped thread is stopped. Its registers then are those before the breakpoint, or those after the system call.
    pub(crate) fn reason(
        &self,
        status: c_int,
        registers: &mut user_regs_struct,
        call: u64,
        code: &Code,
    ) -> Result<Stopped> {
        ensure!(
            libc::WIFSTOPPED(status),
            "the program ended while it was counted"
        );
        let stop = libc::WSTOPSIG(status);
        let behind = self.gadget + SYSCALL_BYTES;
        if stop != libc::SIGTRAP || status >> 16 != 0 {
            // A system call that the signal interrupted continues at its own place.
            if (self.gadget..=behind).contains(&registers.rip) {
                registers.rip = call + (registers.rip - self.gadget);
            }
            return Ok(match status >> 16 {
                0 => Stopped::Signal(stop),
                _ => Stopped::Event,
            });
        }
        let before = registers.rip.wrapping_sub(1);
        if before == behind {
            registers.rip = call + SYSCALL_BYTES;
            return Ok(Stopped::Returned);
        }
        if code.at(before).is_none() {
            return Ok(Stopped::Step);
        }
        registers.rip = before;
        Ok(Stopped::At(before))
    }

    /// Starts the system call at the address of the registers, away from its place.
    pub(crate) fn call(&self, thread: &Tracee, registers: &user_regs_struct) -> Result<()> {
        let mut registers = *registers;
        registers.rip = self.gadget;
        thread.set_registers(&registers)?;
        thread.resume(libc::PTRACE_CONT, 0)
    }

    /// Continues another thread that has stopped.
    fn pass(&mut self, tid: pid_t, status: c_int, code: &Code) -> Result<()> {
        if !libc::WIFSTOPPED(status) {
            self.others.remove(&tid);
            return Ok(());
        }
        let thread = Tracee { pid: tid };
        let call = self.others.entry(tid).or_default().call;
        let mut registers = thread.registers()?;
        let reason = self.reason(status, &mut registers, call, code)?;
        let mut signal = 0;
        match reason {
            // Such as the start of a new thread.
            Stopped::Event => {}
            Stopped::Returned => thread.set_registers(&registers)?,
            Stopped::Step => signal = libc::SIGTRAP,
            Stopped::Signal(sent) => {
                thread.set_registers(&registers)?;
                signal = sent;
            }
            Stopped::At(address) => match code.at(address) {
                Some(Last::Branch(instruction)) => {
                    branch::follow(&instruction, &mut registers, &code.memory)?;
                    thread.set_registers(&registers)?;
                }
                Some(Last::SystemCall) if !returns_elsewhere(&registers)? => {
                    self.others.entry(tid).or_default().call = address;
                    return self.call(&thread, &registers);
                }
                _ => {
                    thread.set_registers(&registers)?;
                    code.lift(address)?;
                    thread.resume(libc::PTRACE_SINGLESTEP, 0)?;
                    let stopped = thread.wait_at_most(STOP_LIMIT);
                    code.lower(address)?;
                    let Some(status) = stopped? else {
                        bail!("thread {tid} takes too long for one instruction");
                    };
                    return match libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP
                    {
                        true => thread.resume(libc::PTRACE_CONT, 0),
                        false => self.pass(tid, status, code),
                    };
                }
            },
        }
        thread.resume(libc::PTRACE_CONT, signal)
    }

    /// Stops all other threads, removes breakpoints and gadget, and lets the threads go.
    pub(crate) fn release(mut self, code: &Code) -> Result<()> {
        let mut signals = Vec::new();
        for (tid, status) in self.stop_all()? {
            let thread = Tracee { pid: tid };
            let call = self.others.entry(tid).or_default().call;
            let mut registers = thread.registers()?;
            let reason = self.reason(status, &mut registers, call, code)?;
            thread.set_registers(&registers)?;
            let signal = match reason {
                Stopped::Signal(signal) => signal,
                _ => 0,
            };
            signals.push((tid, signal));
        }
        code.lift_all()?;
        code.memory.write_bytes(self.gadget, &self.replaced)?;
        for (tid, signal) in signals {
            let signal = std::ptr::without_provenance_mut(usize::try_from(signal)?);
            match request(libc::PTRACE_DETACH, tid, signal) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                    return Err(error).with_context(|| format!("detaching from thread {tid}"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether the system call at the registers returns at another place, or in another thread as well.
pub(crate) fn returns_elsewhere(registers: &user_regs_struct) -> Result<bool> {
    let number = registers.rax.cast_signed();
    ensure!(
        ![libc::SYS_fork, libc::SYS_vfork, libc::SYS_execve].contains(&number),
        "the program starts a process while it is counted (system call {number})"
    );
    Ok(ELSEWHERE.contains(&number))
}

/// Address of the kernel's object in the program (vdso).
fn kernels_object(pid: pid_t) -> Result<u64> {
    let path = format!("/proc/{pid}/auxv");
    let bytes = std::fs::read(&path).with_context(|| path.clone())?;
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| word.try_into().map(u64::from_le_bytes))
        .collect::<Result<_, _>>()?;
    let mut pairs = words.chunks_exact(2);
    let found = pairs.find(|pair| pair[0] == libc::AT_SYSINFO_EHDR);
    let found = found.map(|pair| pair[1]);
    found.context("counting blocks needs the vdso, which this kernel does not provide")
}
