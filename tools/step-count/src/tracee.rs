//! The traced program: requests of `ptrace`, the request to end, and the processors that both use.

use crate::decode::Flags;
use anyhow::{Context, Result, ensure};
use libc::{c_int, c_uint, c_void, pid_t, user_regs_struct};
use std::io;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// The flag that makes the processor stop after each instruction (Intel SDM volume 1, 3.4.3).
const TRAP_FLAG: u64 = 1 << 8;

/// Time between two looks at a thread that shall stop.
const LOOK: Duration = Duration::from_micros(100);

/// How the program continues.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Until the next system call.
    Full,
    /// For one instruction.
    Step,
}

/// The stopped program, or the stopped first thread of a running process.
#[derive(Debug)]
pub(crate) struct Tracee {
    pub(crate) pid: pid_t,
}

/// The end of the count of a running process, requested by a signal.
pub(crate) mod end {
    use anyhow::{Result, ensure};
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    static REQUESTED: AtomicBool = AtomicBool::new(false);

    extern "C" fn request(_signal: libc::c_int) {
        REQUESTED.store(true, Ordering::Relaxed);
        // The signal may arrive just before a wait for a process that sleeps. The alarm interrupts such a wait.
        // SAFETY: alarm(2) is allowed in signal handlers.
        unsafe { libc::alarm(1) };
    }

    /// Handles SIGINT and SIGTERM. They interrupt system calls.
    pub(crate) fn prepare() -> Result<()> {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM] {
            // SAFETY: the structure consists of integers and a pointer; zero is a valid value.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = (request as extern "C" fn(libc::c_int)) as libc::sighandler_t;
            // SAFETY: the handler stores one atomic and calls alarm(2).
            let set = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
            ensure!(set == 0, "sigaction: {}", io::Error::last_os_error());
        }
        Ok(())
    }

    pub(crate) fn is_requested() -> bool {
        REQUESTED.load(Ordering::Relaxed)
    }
}

impl Tracee {
    /// Waits until the program stops; returns its status.
    pub(crate) fn wait(&self) -> Result<c_int> {
        loop {
            if let Some((_, status)) = wait_for(self.pid)? {
                return Ok(status);
            }
            if end::is_requested() {
                request(libc::PTRACE_INTERRUPT, self.pid, null_mut())?;
            }
        }
    }

    /// Waits for a stop within a time; `None` if there is none.
    pub(crate) fn wait_at_most(&self, limit: Duration) -> Result<Option<c_int>> {
        let limit = Instant::now() + limit;
        loop {
            let mut status = 0;
            let how = libc::__WALL | libc::WNOHANG;
            // SAFETY: the status variable is writable.
            let waited = unsafe { libc::waitpid(self.pid, &raw mut status, how) };
            if waited == self.pid {
                return Ok(Some(status));
            }
            let error = io::Error::last_os_error();
            ensure!(
                waited == 0 || error.kind() == io::ErrorKind::Interrupted,
                "waitpid: {error}"
            );
            if Instant::now() > limit {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The report of a breakpoint or a step, if one waits behind a stop by `PTRACE_INTERRUPT`: the kernel reports the interrupt
    /// first, with the registers behind the breakpoint. A detached thread would end by the report that waits.
    pub(crate) fn settle(&self, mut status: c_int) -> Result<c_int> {
        while libc::WIFSTOPPED(status)
            && status >> 16 == libc::PTRACE_EVENT_STOP
            && self.has_pending(libc::SIGTRAP)?
        {
            self.resume(libc::PTRACE_CONT, 0)?;
            status = self.wait()?;
        }
        Ok(status)
    }

    pub(crate) fn go(&self, pace: Pace, signal: c_int) -> Result<c_int> {
        let how = match pace {
            Pace::Full => libc::PTRACE_SYSCALL,
            Pace::Step => libc::PTRACE_SINGLESTEP,
        };
        self.resume(how, signal)?;
        self.settle(self.wait()?)
    }

    pub(crate) fn registers(&self) -> Result<user_regs_struct> {
        // SAFETY: the structure consists of integers; zero is a valid value.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        request(
            libc::PTRACE_GETREGS,
            self.pid,
            (&raw mut registers).cast::<c_void>(),
        )?;
        Ok(registers)
    }

    pub(crate) fn set_registers(&self, registers: &user_regs_struct) -> Result<()> {
        let registers = std::ptr::from_ref(registers).cast_mut();
        Ok(request(
            libc::PTRACE_SETREGS,
            self.pid,
            registers.cast::<c_void>(),
        )?)
    }

    /// Continues with a request such as `PTRACE_CONT`, and delivers a signal unless it is 0.
    pub(crate) fn resume(&self, how: c_uint, signal: c_int) -> Result<()> {
        let signal = std::ptr::without_provenance_mut(usize::try_from(signal)?);
        Ok(request(how, self.pid, signal)?)
    }

    /// Whether a signal waits for its delivery to the thread.
    pub(crate) fn has_pending(&self, signal: c_int) -> Result<bool> {
        let path = format!("/proc/{0}/task/{0}/status", self.pid);
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let line = text.lines().find_map(|line| line.strip_prefix("SigPnd:"));
        let line = line.with_context(|| format!("{path} has no SigPnd"))?;
        let pending = u64::from_str_radix(line.trim(), 16).with_context(|| path.clone())?;
        Ok(pending >> (signal - 1) & 1 == 1)
    }

    /// The code that says why a signal was sent.
    pub(crate) fn signal_code(&self) -> Result<c_int> {
        // SAFETY: the structure consists of integers; zero is a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        request(
            libc::PTRACE_GETSIGINFO,
            self.pid,
            (&raw mut info).cast::<c_void>(),
        )?;
        Ok(info.si_code)
    }

    /// Executes the instruction of this length at the registers, which moves the flags. The processor would push the trap flag
    /// that the step itself sets. A pop makes the kernel regard that flag as the program's own (arch/x86/kernel/step.c,
    /// `is_setting_trap_flag`): it would remain after the count and end the program.
    pub(crate) fn move_flags(
        &self,
        direction: Flags,
        length: u64,
        registers: &mut user_regs_struct,
    ) -> Result<()> {
        match direction {
            Flags::Push => {
                registers.rsp = registers.rsp.wrapping_sub(8);
                self.write(registers.rsp, registers.eflags & !TRAP_FLAG)?;
            }
            Flags::Pop => {
                let mut bytes = [0; 8];
                let read = self.read(registers.rsp, &mut bytes);
                ensure!(
                    read == bytes.len(),
                    "no flags on the stack at {:#x}",
                    registers.rsp
                );
                registers.eflags = u64::from_le_bytes(bytes) & !TRAP_FLAG;
                registers.rsp = registers.rsp.wrapping_add(8);
            }
        }
        registers.rip += length;
        self.set_registers(registers)
    }

    /// Writes a word to the program's memory.
    fn write(&self, address: u64, word: u64) -> Result<()> {
        // A 64-bit address of another process.
        #[expect(clippy::cast_possible_truncation, reason = "x86_64 alone")]
        let [address, word] =
            [address, word].map(|value| std::ptr::without_provenance_mut::<c_void>(value as usize));
        // SAFETY: the kernel checks the address, which is the traced program's.
        let result = unsafe { libc::ptrace(libc::PTRACE_POKEDATA, self.pid, address, word) };
        ensure!(result == 0, "ptrace: {}", io::Error::last_os_error());
        Ok(())
    }

    /// Reads memory of the program into `bytes`; returns the number of bytes read.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
        let local = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // A 64-bit address of another process.
        #[expect(clippy::cast_possible_truncation, reason = "x86_64 alone")]
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address as usize),
            iov_len: bytes.len(),
        };
        // SAFETY: the local buffer is writable, and the kernel checks the remote addresses.
        let read = unsafe {
            libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0)
        };
        usize::try_from(read).unwrap_or_default()
    }
}

/// Waits until a thread stops or ends, any traced thread for -1. Returns it and its status; `None` if a signal interrupts the
/// wait.
pub(crate) fn wait_for(pid: pid_t) -> Result<Option<(pid_t, c_int)>> {
    let mut status = 0;
    // SAFETY: the status variable is writable.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    if waited > 0 {
        return Ok(Some((waited, status)));
    }
    let error = io::Error::last_os_error();
    ensure!(
        error.kind() == io::ErrorKind::Interrupted,
        "waitpid: {error}"
    );
    Ok(None)
}

pub(crate) fn request(what: libc::c_uint, pid: pid_t, data: *mut c_void) -> io::Result<()> {
    // SAFETY: each caller passes data of the type that its request requires.
    let result = unsafe { libc::ptrace(what, pid, null_mut::<c_void>(), data) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The CPUs that this process may use, and the one that it shares with the program during a round: between two CPUs,
/// each step would wake the other one up.
pub(crate) struct Cpus {
    all: libc::cpu_set_t,
}

impl Cpus {
    pub(crate) fn read() -> Result<Self> {
        // SAFETY: the set consists of integers; zero is a valid value.
        let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is writable and of this size.
        let read = unsafe { libc::sched_getaffinity(0, size_of_val(&all), &raw mut all) };
        ensure!(
            read == 0,
            "sched_getaffinity: {}",
            io::Error::last_os_error()
        );
        Ok(Self { all })
    }

    /// Binds this process and the program to the CPU of this process.
    pub(crate) fn share(&self, pid: pid_t) -> Result<()> {
        // SAFETY: the call has no arguments.
        let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).context("sched_getcpu")?;
        // SAFETY: the set consists of integers; zero is a valid value.
        let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        ensure!(cpu < 8 * size_of_val(&one), "CPU {cpu} is too high");
        // SAFETY: the number is within the set.
        unsafe { libc::CPU_SET(cpu, &mut one) };
        Self::set(pid, &one)
    }

    /// Lets this process and the program use all CPUs again.
    pub(crate) fn release(&self, pid: pid_t) -> Result<()> {
        Self::set(pid, &self.all)
    }

    fn set(pid: pid_t, cpus: &libc::cpu_set_t) -> Result<()> {
        for pid in [0, pid] {
            // SAFETY: the set is readable and of this size.
            let set = unsafe { libc::sched_setaffinity(pid, size_of_val(cpus), cpus) };
            ensure!(
                set == 0,
                "sched_setaffinity: {}",
                io::Error::last_os_error()
            );
        }
        Ok(())
    }
}
