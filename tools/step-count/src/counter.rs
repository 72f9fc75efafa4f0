//! Runs the program at full speed up to a mark, and counts it after it: in single steps, or in blocks.

use crate::MARK;
use crate::code::Code;
use crate::decode::{BYTES_MAX, Flags, Step};
use crate::owners::{Kind, Map, Owner, Rules};
use crate::report::{Line, Report, Round, Sums};
use crate::tracee::{Cpus, Pace, Tracee, end, request};
use crate::walker::{Stop, Walker};
use anyhow::{Context, Result, bail, ensure};
use iced_x86::InstructionInfoFactory;
use libc::{pid_t, user_regs_struct};
use std::collections::HashMap;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::ptr::null_mut;

/// Allocation functions of the C library.
const ALLOCATORS: [&std::ffi::CStr; 6] = [
    c"malloc",
    c"calloc",
    c"realloc",
    c"posix_memalign",
    c"aligned_alloc",
    c"memalign",
];

/// Label of the section of a running process.
const ATTACHED: u64 = 1;

/// How a program is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum By {
    /// One instruction at a time, with the cache lines that it accesses.
    #[default]
    Steps,
    /// One block at a time.
    Blocks,
}

/// Runs the program to its end. Returns the counts and the program's exit code.
pub(crate) fn trace(words: &[String], rules: &Rules, by: By) -> Result<(Report, ExitCode)> {
    let [program, arguments @ ..] = words else {
        bail!("no program");
    };
    let mut command = Command::new(program);
    command.args(arguments);
    // SAFETY: the closure makes one system call and touches no memory of the parent's threads.
    unsafe { command.pre_exec(|| request(libc::PTRACE_TRACEME, 0, null_mut()).map(drop)) };
    let child = command
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let tracee = Tracee {
        pid: pid_t::try_from(child.id())?,
    };
    tracee.wait()?;
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
    let options = std::ptr::without_provenance_mut(usize::try_from(options)?);
    request(libc::PTRACE_SETOPTIONS, tracee.pid, options)?;
    Counter::new(rules, by)?.run(&tracee)
}

/// Counts the first thread of a running process as one section, until this process receives SIGINT or SIGTERM. The
/// process then continues as before.
pub(crate) fn attach(pid: pid_t, rules: &Rules, by: By) -> Result<Report> {
    end::prepare()?;
    let tracee = Tracee { pid };
    let options = match by {
        By::Steps => libc::PTRACE_O_TRACESYSGOOD,
        // A new thread meets the breakpoints as well.
        By::Blocks => libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE,
    };
    let options = std::ptr::without_provenance_mut(usize::try_from(options)?);
    request(libc::PTRACE_SEIZE, pid, options).with_context(|| format!("attaching to {pid}"))?;
    request(libc::PTRACE_INTERRUPT, pid, null_mut())?;
    tracee.wait()?;
    writeln!(io::stdout(), "attached")?;
    let report = match by {
        By::Steps => Counter::new(rules, by)?.run_until_end(&tracee)?,
        By::Blocks => Counter::new(rules, by)?.walk_until_end(&tracee)?,
    };
    tracee.resume(libc::PTRACE_DETACH, 0).context("detaching")?;
    Ok(report)
}

/// Counts the steps of one program.
pub(crate) struct Counter<'a> {
    pub(crate) rules: &'a Rules,
    by: By,
    cpus: Cpus,
    pub(crate) map: Map,
    pub(crate) allocators: Vec<u64>,
    /// Blocks of earlier rounds.
    code: Option<Code>,
    steps: HashMap<u64, Step>,
    factory: InstructionInfoFactory,
    pub(crate) sums: Sums,
    rounds: Vec<Round>,
    /// Owner that the code of `--through` objects is counted for.
    pub(crate) owner: Owner,
    /// Address of the previous instruction.
    last: u64,
    /// Execution count of each instruction of the owner given by `--addresses`.
    pub(crate) addresses: HashMap<u64, u64>,
    /// Each cache line of that owner.
    lines: HashMap<u64, Line>,
}

impl<'a> Counter<'a> {
    fn new(rules: &'a Rules, by: By) -> Result<Self> {
        Ok(Self {
            by,
            code: None,
            rules,
            cpus: Cpus::read()?,
            map: Map::default(),
            allocators: Vec::new(),
            steps: HashMap::new(),
            factory: InstructionInfoFactory::new(),
            sums: Sums::default(),
            rounds: Vec::new(),
            owner: Owner(0),
            last: 0,
            addresses: HashMap::new(),
            lines: HashMap::new(),
        })
    }

    fn run(mut self, tracee: &Tracee) -> Result<(Report, ExitCode)> {
        let (mut pace, mut signal) = (Pace::Full, 0);
        loop {
            let status = tracee.go(pace, signal)?;
            signal = 0;
            if libc::WIFEXITED(status) {
                ensure!(self.sums.is_empty(), "the program ended between two marks");
                let code = u8::try_from(libc::WEXITSTATUS(status))?;
                return Ok((self.report(), code.into()));
            }
            if libc::WIFSIGNALED(status) {
                bail!("the program died of signal {}", libc::WTERMSIG(status));
            }
            let stop = libc::WSTOPSIG(status);
            let is_call = stop == libc::SIGTRAP | 0x80;
            if stop != libc::SIGTRAP && !is_call {
                // A signal for the program itself. Between marks a fault is counted.
                if pace == Pace::Step
                    && stop == libc::SIGSEGV
                    && let Some(counts) = self.sums.counts(self.owner)
                {
                    counts.faults += 1;
                }
                signal = stop;
                continue;
            }
            if pace == Pace::Full && !is_call {
                // A stop of ptrace itself, for example at exec.
                continue;
            }
            let registers = tracee.registers()?;
            let label = match pace {
                Pace::Full => at_mark(&registers),
                Pace::Step => self.step(tracee, &registers)?,
            };
            match label {
                None => {}
                Some(0) => {
                    // The mark that ended the round is reported again at its entry.
                    if pace == Pace::Step {
                        self.end_round();
                        self.cpus.release(tracee.pid)?;
                    }
                    pace = Pace::Full;
                }
                Some(label) => {
                    if self.sums.is_empty() {
                        self.begin_round(tracee)?;
                        // Continue from the mark's entry to its exit. Counting starts there.
                        tracee.go(Pace::Full, 0)?;
                    }
                    self.sums.begin(label);
                    match self.by {
                        By::Steps if pace == Pace::Full => {
                            self.step(tracee, &tracee.registers()?)?;
                            pace = Pace::Step;
                        }
                        By::Steps => {}
                        By::Blocks => {
                            self.walk_round(tracee)?;
                            self.end_round();
                            self.cpus.release(tracee.pid)?;
                        }
                    }
                }
            }
        }
    }

    /// Counts all steps of a stopped process until the end is requested.
    fn run_until_end(mut self, tracee: &Tracee) -> Result<Report> {
        self.begin_round(tracee)?;
        self.sums.begin(ATTACHED);
        let registers = tracee.registers()?;
        // In a system call, the first step is its end.
        if registers.orig_rax.cast_signed() < 0 {
            self.step(tracee, &registers)?;
        }
        let mut signal = 0;
        loop {
            let status = tracee.go(Pace::Step, signal)?;
            signal = 0;
            ensure!(
                libc::WIFSTOPPED(status),
                "the process ended while it was counted"
            );
            let stop = libc::WSTOPSIG(status);
            // With an event it is a stop of ptrace itself, such as the interrupt at the end.
            let has_event = status >> 16 != 0;
            if has_event || stop == libc::SIGTRAP {
                if !has_event {
                    self.step(tracee, &tracee.registers()?)?;
                }
                if end::is_requested() {
                    break;
                }
                continue;
            }
            if stop == libc::SIGSEGV
                && let Some(counts) = self.sums.counts(self.owner)
            {
                counts.faults += 1;
            }
            signal = stop;
        }
        self.end_round();
        self.cpus.release(tracee.pid)?;
        Ok(self.report())
    }

    /// Counts the blocks up to the mark that ends the round, before which the program stops.
    fn walk_round(&mut self, tracee: &Tracee) -> Result<()> {
        let mut walker = Walker::start(tracee, self.code.take(), false)?;
        loop {
            match self.walk(&mut walker)? {
                Stop::Mark(0) => break,
                Stop::Mark(label) => {
                    self.sums.begin(label);
                    walker.skip_mark();
                }
                Stop::End => bail!("the count ends within a round"),
            }
        }
        self.code = Some(walker.end()?);
        Ok(())
    }

    /// Counts all blocks of a stopped process until the end is requested.
    fn walk_until_end(mut self, tracee: &Tracee) -> Result<Report> {
        self.begin_round(tracee)?;
        self.sums.begin(ATTACHED);
        let mut walker = Walker::start(tracee, None, true)?;
        self.finish_call(&mut walker)?;
        while let Stop::Mark(_) = self.walk(&mut walker)? {
            walker.skip_mark();
        }
        walker.end()?;
        self.end_round();
        self.cpus.release(tracee.pid)?;
        Ok(self.report())
    }

    fn report(self) -> Report {
        let addresses = self.addresses.iter();
        let addresses = addresses.map(|(at, count)| (self.map.name(*at), *count));
        let lines = self.lines.iter();
        let lines = lines.map(|(at, line)| (self.map.name(*at), *line));
        Report {
            addresses: addresses.collect(),
            lines: lines.collect(),
            rounds: self.rounds,
        }
    }

    fn begin_round(&mut self, tracee: &Tracee) -> Result<()> {
        let maps = |pid: &str| {
            let path = format!("/proc/{pid}/maps");
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
        };
        self.map = Map::parse(&maps(&tracee.pid.to_string())?, self.rules);
        if self.allocators.is_empty() {
            // This program and the traced program use the same C library at different addresses.
            const LIBRARY: &str = "/libc.so.6";
            let own = Map::parse(&maps("self")?, self.rules).base(LIBRARY);
            if let (Some(own), Some(theirs)) = (own, self.map.base(LIBRARY)) {
                let there = |name: &&std::ffi::CStr| {
                    // SAFETY: the name ends with a zero byte.
                    let here = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
                    (!here.is_null()).then(|| here.addr() as u64 - own + theirs)
                };
                self.allocators = ALLOCATORS.iter().filter_map(there).collect();
            }
        }
        self.owner = Owner(0);
        self.cpus.share(tracee.pid)
    }

    fn end_round(&mut self) {
        let sums = std::mem::take(&mut self.sums);
        let has_lines = self.by == By::Steps;
        self.rounds.push(sums.finish(self.rules.names(), has_lines));
    }

    /// Counts the next instruction. Returns the label if it is a mark. Instructions that move the flags are executed here,
    /// and the one that follows is counted as well.
    fn step(&mut self, tracee: &Tracee, registers: &user_regs_struct) -> Result<Option<u64>> {
        let mut registers = *registers;
        loop {
            match self.count(tracee, &registers)? {
                Next::Mark(label) => return Ok(Some(label)),
                Next::Flags(direction, length) => {
                    tracee.move_flags(direction, length, &mut registers)?;
                }
                Next::Other => return Ok(None),
            }
        }
    }

    fn count(&mut self, tracee: &Tracee, registers: &user_regs_struct) -> Result<Next> {
        let at = registers.rip;
        let step = match self.steps.entry(at) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                let mut bytes = [0; BYTES_MAX];
                let read = tracee.read(at, &mut bytes);
                ensure!(read > 0, "no instruction at {at:#x}");
                place.insert(Step::decode(&bytes[..read], at, &mut self.factory))
            }
        };
        if step.is_system_call && registers.rax == MARK {
            return Ok(Next::Mark(registers.rdi));
        }
        if let Some(Kind::Of(owner)) = self.map.kind(at) {
            self.owner = owner;
        }
        let is_again = step.repeats && self.last == at;
        self.last = at;
        for (line, writes) in step.lines(registers) {
            if self.map.kind(line << 6) != Some(Kind::Stack) {
                self.sums.touch(self.owner, line);
                if self.rules.wants_addresses(self.owner) {
                    let line = self.lines.entry(line << 6).or_default();
                    line.count += 1;
                    line.is_written |= writes;
                } else if let Some(line) = self.lines.get_mut(&(line << 6)) {
                    line.is_shared = true;
                }
            }
        }
        if self.rules.wants_addresses(self.owner) {
            *self.addresses.entry(at).or_default() += u64::from(!is_again);
        }
        let allocates = self.allocators.contains(&at);
        let (is_system_call, is_locked) = (step.is_system_call, step.is_locked);
        let (flags, length) = (step.flags, step.length);
        if let Some(counts) = self.sums.counts(self.owner) {
            counts.instructions += u64::from(!is_again);
            counts.locked += u64::from(is_locked);
            counts.allocations += u64::from(allocates);
            counts.system_calls += u64::from(is_system_call);
        }
        Ok(flags.map_or(Next::Other, |flags| Next::Flags(flags, length)))
    }
}

/// The instruction that the program executes next.
enum Next {
    /// A mark with this label.
    Mark(u64),
    /// It moves the flags and has this length.
    Flags(Flags, u64),
    Other,
}

/// The label, if the program is at the entry of a mark.
fn at_mark(registers: &user_regs_struct) -> Option<u64> {
    // At the entry of a system call the kernel has stored ENOSYS in the result register.
    let enosys = i64::from(-libc::ENOSYS).cast_unsigned();
    (registers.orig_rax == MARK && registers.rax == enosys).then_some(registers.rdi)
}
