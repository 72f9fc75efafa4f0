//! Counts a program block by block: the processor executes each block at full speed up to a breakpoint at its last instruction.
//!
//! A stop at a breakpoint costs half of a single step, and there is one stop for several instructions. The instructions at
//! breakpoints run on a copy of the registers ([`crate::branch`]), as system calls at another place, or as single steps. The
//! counts equal those of single steps. The cache lines that the program accesses are not known.

use crate::MARK;
use crate::branch;
use crate::code::Last;
use crate::counter::Counter;
use crate::owners::Kind;
use crate::threads::{Stopped, returns_elsewhere};
use crate::tracee::end;
use crate::walker::{Stop, Walker};
use anyhow::{Context, Result, bail, ensure};
use libc::c_int;

impl Counter<'_> {
    /// Counts blocks up to a mark or the end.
    pub(crate) fn walk(&mut self, walker: &mut Walker<'_>) -> Result<Stop> {
        while !end::is_requested() {
            let start = walker.registers.rip;
            let block = walker.code.block(start)?;
            if let Some(Kind::Of(owner)) = self.map.kind(start) {
                self.owner = owner;
            }
            let last = block.last();
            if start != last {
                let status = walker.run(libc::PTRACE_CONT, 0)?;
                let reason = walker.reason(status, 0)?;
                let at = walker.registers.rip;
                let done = block.position(at);
                let done = done.with_context(|| {
                    format!("{reason:?} at {at:#x}, outside of the block at {start:#x}")
                })?;
                match reason {
                    Stopped::Signal(signal) => {
                        // The instruction that faults is counted: it runs again, or its handler replaces it.
                        let faulted = usize::from(is_fault(signal));
                        self.count_first(block.first(done + faulted));
                        self.deliver(walker, signal)?;
                        continue;
                    }
                    // The end of the block, or a breakpoint that was set after the block was known.
                    _ => self.count_first(block.first(done)),
                }
                if reason != Stopped::At(last) {
                    continue;
                }
            }
            let kind = walker.code.at(last).context("a block without an end")?;
            if let Some(stop) = self.pass(walker, last, kind)? {
                return Ok(stop);
            }
        }
        walker.thread.set_registers(&walker.registers)?;
        Ok(Stop::End)
    }

    /// Completes the system call that the stop of a running thread has interrupted. No breakpoint is set yet at its place.
    pub(crate) fn finish_call(&mut self, walker: &mut Walker<'_>) -> Result<()> {
        let status = walker.run(libc::PTRACE_SINGLESTEP, 0)?;
        match libc::WSTOPSIG(status) {
            _ if status >> 16 != 0 => Ok(()),
            libc::SIGTRAP => Ok(()),
            signal => self.deliver(walker, signal),
        }
    }

    /// Executes the instruction at a breakpoint, before which the thread is.
    fn pass(&mut self, walker: &mut Walker<'_>, at: u64, kind: Last) -> Result<Option<Stop>> {
        walker.registers.rip = at;
        match kind {
            Last::SystemCall if walker.registers.rax == MARK => {
                walker.thread.set_registers(&walker.registers)?;
                return Ok(Some(Stop::Mark(walker.registers.rdi)));
            }
            Last::Branch(instruction) => {
                self.count_first(&[at]);
                branch::follow(&instruction, &mut walker.registers, &walker.code.memory)?;
            }
            Last::SystemCall => {
                self.count_first(&[at]);
                if let Some(counts) = self.sums.counts(self.owner) {
                    counts.system_calls += 1;
                }
                if returns_elsewhere(&walker.registers)? {
                    self.step_over(walker, at)?;
                } else {
                    self.call(walker, at)?;
                }
            }
            Last::Other => {
                self.count_first(&[at]);
                self.step_over(walker, at)?;
            }
        }
        Ok(None)
    }

    /// Makes the system call at an address.
    fn call(&mut self, walker: &mut Walker<'_>, at: u64) -> Result<()> {
        walker.threads.call(walker.thread, &walker.registers)?;
        loop {
            let status = walker.stop()?;
            let raw = walker.registers;
            match walker.reason(status, at)? {
                Stopped::Returned => return Ok(()),
                Stopped::Signal(signal) => return self.deliver(walker, signal),
                Stopped::Event if !end::is_requested() => {
                    // The kernel continues the system call where it was made.
                    walker.registers = raw;
                    walker.thread.resume(libc::PTRACE_CONT, 0)?;
                }
                Stopped::Event => return Ok(()),
                other => bail!("{other:?} in the system call at {at:#x}"),
            }
        }
    }

    /// Executes the instruction at an address in its place.
    fn step_over(&mut self, walker: &mut Walker<'_>, at: u64) -> Result<()> {
        let is_clone = [libc::SYS_clone, libc::SYS_clone3]
            .contains(&walker.registers.rax.cast_signed())
            && matches!(walker.code.at(at), Some(Last::SystemCall));
        ensure!(
            walker.may_clone || !is_clone,
            "the program starts a thread between two marks"
        );
        walker.code.lift(at)?;
        let mut status = walker.run(libc::PTRACE_SINGLESTEP, 0)?;
        while status >> 16 == libc::PTRACE_EVENT_CLONE {
            status = walker.run(libc::PTRACE_SINGLESTEP, 0)?;
        }
        walker.code.lower(at)?;
        match libc::WSTOPSIG(status) {
            _ if status >> 16 != 0 => Ok(()),
            libc::SIGTRAP => Ok(()),
            signal => self.deliver(walker, signal),
        }
    }

    /// Delivers a signal, and stops at the first instruction of its handler. Without a handler, the thread may have executed
    /// one instruction.
    fn deliver(&mut self, walker: &mut Walker<'_>, signal: c_int) -> Result<()> {
        let mut signal = signal;
        loop {
            if signal == libc::SIGSEGV
                && let Some(counts) = self.sums.counts(self.owner)
            {
                counts.faults += 1;
            }
            let before = walker.registers.rip;
            let status = walker.run(libc::PTRACE_SINGLESTEP, signal)?;
            signal = match libc::WSTOPSIG(status) {
                _ if status >> 16 != 0 => 0,
                libc::SIGTRAP => {
                    match walker.thread.signal_code()? {
                        // A breakpoint at the instruction that would have run.
                        SI_KERNEL => walker.registers.rip -= 1,
                        // A handler.
                        libc::SIGTRAP => {}
                        _ => self.count_first(&[before]),
                    }
                    return Ok(());
                }
                other => other,
            };
        }
    }

    /// Counts instructions of the current owner.
    fn count_first(&mut self, addresses: &[u64]) {
        let allocators = &self.allocators;
        let allocations = addresses.iter().filter(|at| allocators.contains(at));
        let allocations = allocations.count() as u64;
        if let Some(counts) = self.sums.counts(self.owner) {
            counts.instructions += addresses.len() as u64;
            counts.allocations += allocations;
        }
        if self.rules.wants_addresses(self.owner) {
            for at in addresses {
                *self.addresses.entry(*at).or_default() += 1;
            }
        }
    }
}

/// The code of a SIGTRAP by a breakpoint (`asm-generic/siginfo.h`, `SI_KERNEL`).
const SI_KERNEL: c_int = 0x80;

/// Whether the signal is about the current instruction.
fn is_fault(signal: c_int) -> bool {
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL].contains(&signal)
}
