//! The counted thread at its breakpoints: its registers, the other threads of the program, and their code.

use crate::code::Code;
use crate::threads::{SYSCALL_BYTES, Stopped, Threads};
use crate::tracee::Tracee;
use anyhow::{Result, ensure};
use libc::{c_int, user_regs_struct};

/// Why the count stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Before the system call that is a mark with this label.
    Mark(u64),
    /// The end is requested.
    End,
}

/// The counted thread, the others, and their code.
#[derive(Debug)]
pub(crate) struct Walker<'a> {
    pub(crate) thread: &'a Tracee,
    pub(crate) threads: Threads,
    pub(crate) code: Code,
    pub(crate) registers: user_regs_struct,
    /// The program's threads may start others.
    pub(crate) may_clone: bool,
}

impl<'a> Walker<'a> {
    /// Sets the breakpoints of all blocks that are known from an earlier round.
    pub(crate) fn start(thread: &'a Tracee, code: Option<Code>, may_clone: bool) -> Result<Self> {
        let code = match code {
            Some(code) => code,
            None => Code::open(thread.pid)?,
        };
        let threads = Threads::take(thread.pid, &code)?;
        code.lower_all()?;
        Ok(Self {
            thread,
            threads,
            code,
            registers: thread.registers()?,
            may_clone,
        })
    }

    /// Removes all breakpoints. Returns the known blocks.
    pub(crate) fn end(self) -> Result<Code> {
        self.threads.release(&self.code)?;
        Ok(self.code)
    }

    /// Continues behind the mark before which the thread is, as if the kernel had refused it.
    pub(crate) fn skip_mark(&mut self) {
        self.registers.rip += SYSCALL_BYTES;
        self.registers.rax = i64::from(-libc::ENOSYS).cast_unsigned();
    }

    /// Runs the thread until it stops. The registers are then those of the stop.
    pub(crate) fn run(&mut self, how: libc::c_uint, signal: c_int) -> Result<c_int> {
        self.thread.set_registers(&self.registers)?;
        self.thread.resume(how, signal)?;
        self.stop()
    }

    /// Waits until the thread stops.
    pub(crate) fn stop(&mut self) -> Result<c_int> {
        let status = self.thread.settle(self.threads.wait(&self.code)?)?;
        ensure!(
            libc::WIFSTOPPED(status),
            "the program ended while it was counted"
        );
        self.registers = self.thread.registers()?;
        Ok(status)
    }

    /// Why the thread has stopped. `call` is the address of the system call that it makes, or 0.
    pub(crate) fn reason(&mut self, status: c_int, call: u64) -> Result<Stopped> {
        self.threads
            .reason(status, &mut self.registers, call, &self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracee::request;
    use std::process::{Child, Command};
    use std::ptr::null_mut;

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn an_interrupt_does_not_hide_the_breakpoint_that_the_thread_has_met() {
        let mut busy = Command::new("sh");
        let busy = busy.args(["-c", "while :; do :; done"]).spawn();
        let busy = Ended(busy.expect("a shell"));
        let thread = Tracee {
            pid: busy.0.id().try_into().expect("a process id"),
        };
        request(libc::PTRACE_SEIZE, thread.pid, null_mut()).expect("traced");
        request(libc::PTRACE_INTERRUPT, thread.pid, null_mut()).expect("interrupted");
        thread.wait().expect("stopped");
        let mut walker = Walker::start(&thread, None, false).expect("a walker");

        // The thread has met a breakpoint, and is interrupted before it reports that.
        let at = walker.registers.rip;
        let last = walker.code.block(at).expect("a block").last();
        walker.registers.rip = last + 1;
        thread.set_registers(&walker.registers).expect("registers");
        // SAFETY: the call takes plain integers; the process is a child that has not been waited for.
        let sent =
            unsafe { libc::syscall(libc::SYS_tgkill, thread.pid, thread.pid, libc::SIGTRAP) };
        assert_eq!(sent, 0);
        request(libc::PTRACE_INTERRUPT, thread.pid, null_mut()).expect("interrupted");
        thread.resume(libc::PTRACE_CONT, 0).expect("resumed");

        let status = walker.stop().expect("a stop");
        let reason = walker.reason(status, 0).expect("a reason");
        assert_eq!(reason, Stopped::At(last));
        assert_eq!(walker.registers.rip, last);
    }
}
