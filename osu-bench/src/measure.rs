//! Measurement of one message size on this rank: the loops of OSU's two benchmarks, with selectable buffers.

use crate::backend::{Backend, Pending, Source};
use crate::buffers::{Pair, Supply, TempBuffers};
use crate::compute::Compute;
use crate::datatype::Datatype;
use crate::layout::Layout;
use crate::mpi::World;
use crate::offload::Counted;
use crate::options::{BarrierKind, Options, Program};
use anyhow::Result;
use bench_report::counters::Counters;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use xgvmi_ucp::pattern::Pattern;

/// Runs the sizes of a benchmark one after the other.
#[derive(Debug)]
pub struct Bench<'w> {
    world: &'w World,
    options: &'w Options,
    backend: Backend<'w>,
    /// Permanent buffers for all sizes.
    lasting: Option<Supply>,
    /// Buffers for the calls before a validated iteration.
    warm_up: Option<Pair>,
    compute: Compute,
    /// Number of iterations so far. It makes the pattern of each iteration unique.
    sequence: u64,
}

/// This rank's result for one size. Times are in microseconds and, unless noted, means over the timed
/// iterations.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// The very first iteration, including warm-up.
    pub first: f64,
    /// Each timed iteration: of the call, or from start to end of the wait.
    pub times: Vec<f64>,
    /// The collective alone.
    pub pure: f64,
    /// With computation between start and wait.
    pub overall: f64,
    /// Computation without tests.
    pub compute: f64,
    /// The call that starts the collective.
    pub init: f64,
    /// Tests.
    pub test: f64,
    /// The wait.
    pub wait: f64,
    /// Allocation of the buffers.
    pub alloc: f64,
    /// Release of the buffers.
    pub free: f64,
    /// Processor time of this process, all threads together, from start to end of the call without computation.
    pub cpu: f64,
    /// Number of wrong bytes.
    pub wrong: u64,
    /// Number of compared bytes.
    pub verified: u64,
    /// Counters of the backend over the timed iterations.
    pub counted: Option<Counted>,
    /// Counters of the device over the timed iterations, at rank 0.
    pub device: Option<Counters>,
    /// Processor time of a service process per timed iteration, at rank 0: their mean.
    pub service_cpu: Option<f64>,
}

/// One iteration.
#[derive(Debug, Clone, Copy, Default)]
struct Once {
    total: Duration,
    init: Duration,
    compute: Duration,
    test: Duration,
    wait: Duration,
    alloc: Duration,
    free: Duration,
    cpu: Duration,
    wrong: u64,
    verified: u64,
}

/// Times of a computation with tests.
#[derive(Debug, Default)]
struct Computed {
    /// Tests.
    test: Duration,
    /// Processor time of the computation.
    compute_cpu: Duration,
}

/// One size.
struct Case {
    /// Bytes of a block: the whole elements that fit into the size.
    size: usize,
    layout: Rc<Layout>,
    supply: Supply,
    iterations: usize,
    warm_up: usize,
}

impl<'w> Bench<'w> {
    /// Allocates the permanent buffers.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(world: &'w World, options: &'w Options, backend: Backend<'w>) -> Result<Self> {
        let bytes = options.size.max * world.size();
        let lasting = if options.temporary() {
            None
        } else {
            Some(Supply::new(options.temp_buffers, bytes)?)
        };
        let warm_up = if options.validate && options.validation_warm_up > 0 {
            Some(Supply::new(TempBuffers::Mmap, bytes)?.take()?)
        } else {
            None
        };
        Ok(Self {
            world,
            options,
            backend,
            lasting,
            warm_up,
            compute: Compute::new(options.overlap.compute),
            sequence: 0,
        })
    }

    /// Measures one size of one datatype. Collective over all ranks.
    ///
    /// # Errors
    /// The backend's error, or unreadable device counters.
    pub fn size(&mut self, size: usize, datatype: Datatype) -> Result<Seen> {
        let rounds = self.options.rounds(size);
        let supply = match self.lasting.take() {
            Some(supply) => supply,
            None => Supply::new(self.options.temp_buffers, size * self.world.size())?,
        };
        let mut case = Case {
            size: size / datatype.bytes() * datatype.bytes(),
            layout: Rc::new(Layout::equal(self.world.size(), size, datatype)?),
            supply,
            iterations: rounds.iterations,
            warm_up: rounds.warm_up,
        };
        self.barrier()?;
        let seen = match self.options.program {
            Program::Blocking => self.blocking(&mut case),
            Program::NonBlocking => self.non_blocking(&mut case),
        }?;
        if !self.options.temporary() {
            self.lasting = Some(case.supply);
        }
        Ok(seen)
    }

    /// Disconnects. Collective over all ranks.
    ///
    /// # Errors
    /// The backend's error.
    pub fn finish(self) -> Result<()> {
        self.backend.close()
    }

    fn blocking(&mut self, case: &mut Case) -> Result<Seen> {
        let mut seen = self.pass(case, |bench, layout, pair| {
            let (began, cpu) = (Instant::now(), process_cpu());
            let pair = bench.backend.alltoallv(layout, pair, bench.source())?;
            let once = Once {
                total: began.elapsed(),
                cpu: process_cpu().saturating_sub(cpu),
                ..Once::default()
            };
            Ok((pair, once))
        })?;
        seen.pure = seen.overall;
        Ok(seen)
    }

    /// Two passes, as in OSU's benchmark. The first measures the collective. The second computes for the same
    /// time while the collective is outstanding.
    fn non_blocking(&mut self, case: &mut Case) -> Result<Seen> {
        let alone = self.pass(case, |bench, layout, pair| {
            let began = Instant::now();
            let pending = bench.backend.start(layout, pair, bench.source())?;
            let pair = bench.backend.wait(pending)?;
            let once = Once {
                total: began.elapsed(),
                ..Once::default()
            };
            Ok((pair, once))
        })?;
        // Excludes allocation time, because nothing computes during it.
        let target = if self.options.time_alloc {
            alone.overall - alone.alloc - alone.free
        } else {
            alone.overall
        };
        let target = Duration::from_secs_f64((target / 1e6).max(0.0));
        self.barrier()?;
        let mut seen = self.pass(case, |bench, layout, pair| {
            let (began, cpu) = (Instant::now(), process_cpu());
            let mut pending = bench.backend.start(layout, pair, bench.source())?;
            let init = began.elapsed();
            let computing = Instant::now();
            let tested = bench.compute_and_test(target, &mut pending)?;
            let test = tested.test;
            let compute = computing.elapsed().saturating_sub(test);
            let waiting = Instant::now();
            let pair = bench.backend.wait(pending)?;
            let spent = process_cpu().saturating_sub(cpu);
            let once = Once {
                cpu: spent.saturating_sub(tested.compute_cpu),
                total: began.elapsed(),
                init,
                compute,
                test,
                wait: waiting.elapsed(),
                ..Once::default()
            };
            Ok((pair, once))
        })?;
        seen.pure = alone.overall;
        seen.first = alone.first;
        seen.wrong += alone.wrong;
        seen.verified += alone.verified;
        Ok(seen)
    }

    /// Computes for `target` in equal parts with a test after each.
    fn compute_and_test(&mut self, target: Duration, pending: &mut Pending) -> Result<Computed> {
        let calls = self.options.overlap.test_calls;
        let mut computed = Computed::default();
        let Ok(parts @ 1..) = u32::try_from(calls) else {
            computed.compute_cpu = self.computation(target);
            return Ok(computed);
        };
        for _ in 0..parts {
            computed.compute_cpu += self.computation(target / parts);
            let began = Instant::now();
            self.backend.test(pending)?;
            computed.test += began.elapsed();
        }
        Ok(computed)
    }

    /// Computes, and returns the processor time of this thread.
    fn computation(&mut self, target: Duration) -> Duration {
        let before = cpu_of(libc::CLOCK_THREAD_CPUTIME_ID);
        self.compute.run(target);
        cpu_of(libc::CLOCK_THREAD_CPUTIME_ID).saturating_sub(before)
    }

    /// All iterations of a size: warm-up iterations, then timed ones.
    fn pass(
        &mut self,
        case: &mut Case,
        call: impl Fn(&mut Self, &Rc<Layout>, Pair) -> Result<(Pair, Once)>,
    ) -> Result<Seen> {
        let mut seen = Seen::default();
        let mut sum = Once::default();
        let (mut counted, mut device, mut services) = (None, None, None);
        for iteration in 0..case.warm_up + case.iterations {
            if iteration == case.warm_up {
                counted = self.backend.counted();
                device = device_counters(self.world, self.options)?;
                services = service_cpu(self.world, self.options)?;
            }
            let once = self.iteration(case, &call)?;
            seen.wrong += once.wrong;
            seen.verified += once.verified;
            if iteration == 0 {
                seen.first = micros(once.total);
            }
            if iteration >= case.warm_up {
                seen.times.push(micros(once.total));
                sum.add(&once);
            }
        }
        let services = match (services, service_cpu(self.world, self.options)?) {
            (Some(before), Some(after)) => Some(after.saturating_sub(before)),
            _ => None,
        };
        let after = device_counters(self.world, self.options)?;
        seen.device = match (&device, after) {
            (Some(before), Some(after)) => Some(after.since(before)?),
            _ => None,
        };
        seen.counted = counted
            .zip(self.backend.counted())
            .map(|(before, after)| after.since(&before));
        #[expect(clippy::cast_precision_loss, reason = "at most ten million")]
        let mean = |time: Duration| micros(time) / case.iterations as f64;
        seen.overall = mean(sum.total);
        seen.compute = mean(sum.compute);
        seen.init = mean(sum.init);
        seen.test = mean(sum.test);
        seen.wait = mean(sum.wait);
        seen.alloc = mean(sum.alloc);
        seen.free = mean(sum.free);
        seen.cpu = mean(sum.cpu);
        #[expect(clippy::cast_precision_loss, reason = "a number of processes")]
        let processes = self.options.service_pids.len() as f64;
        seen.service_cpu = services.map(|time| mean(time) / processes);
        Ok(seen)
    }

    fn iteration(
        &mut self,
        case: &mut Case,
        call: &impl Fn(&mut Self, &Rc<Layout>, Pair) -> Result<(Pair, Once)>,
    ) -> Result<Once> {
        self.sequence += 1;
        let began = Instant::now();
        let mut pair = case.supply.take()?;
        let alloc = began.elapsed();
        if self.options.validate {
            self.fill(case.size, &mut pair);
            self.calls_before(&case.layout)?;
            self.barrier()?;
        } else if self.options.temporary() {
            // Allocation takes different times on the ranks. Without this barrier the call would include the
            // difference.
            self.barrier()?;
        }
        let (pair, mut once) = call(self, &case.layout, pair)?;
        self.barrier()?;
        if self.options.validate {
            once.wrong = self.wrong(case.size, &pair);
            once.verified = (case.size * self.world.size()) as u64;
        }
        let began = Instant::now();
        case.supply.give(pair);
        once.free = began.elapsed();
        once.alloc = alloc;
        if self.options.time_alloc {
            once.total += once.alloc + once.free;
        }
        Ok(once)
    }

    /// The calls before a validated iteration, with separate buffers.
    fn calls_before(&mut self, layout: &Rc<Layout>) -> Result<()> {
        for _ in 0..self.options.validation_warm_up {
            self.barrier()?;
            if let Some(pair) = self.warm_up.take() {
                // As in OSU's benchmark: not in place, even if the timed calls are.
                self.warm_up = Some(self.backend.alltoallv(layout, pair, Source::Send)?);
            }
        }
        Ok(())
    }

    /// Pattern of the data from rank `from` to rank `to` in this iteration.
    fn pattern(&self, size: usize, from: usize, to: usize) -> Pattern {
        Pattern::new(&[self.sequence, size as u64, from as u64, to as u64])
    }

    fn source(&self) -> Source {
        if self.options.in_place {
            Source::InPlace
        } else {
            Source::Send
        }
    }

    fn fill(&self, size: usize, pair: &mut Pair) {
        let ranks = self.world.size();
        // Data of an earlier iteration must not pass for this iteration's.
        pair.receive.as_mut_slice()[..size * ranks].fill(0xee);
        let source = match self.source() {
            Source::Send => &mut pair.send,
            Source::InPlace => &mut pair.receive,
        };
        let blocks = source.as_mut_slice().chunks_exact_mut(size);
        for (to, block) in blocks.take(ranks).enumerate() {
            self.pattern(size, self.world.rank(), to).fill(block);
        }
    }

    fn wrong(&self, size: usize, pair: &Pair) -> u64 {
        let blocks = pair.receive.as_slice().chunks_exact(size);
        blocks
            .take(self.world.size())
            .enumerate()
            .filter_map(|(from, block)| self.pattern(size, from, self.world.rank()).check(block))
            .map(|mismatch| mismatch.bytes)
            .sum()
    }

    fn barrier(&self) -> Result<()> {
        barrier(self.world, self.options)
    }
}

fn barrier(world: &World, options: &Options) -> Result<()> {
    match options.barrier {
        BarrierKind::Spin => world.barrier(),
        BarrierKind::Sleep => world.sleeping_barrier(),
    }
}

/// The device's counters while no rank works. `None` without `--counters` and at ranks other than 0.
///
/// # Errors
/// Rank 0 cannot run the command or read its output. The other ranks then wait for it, so the caller aborts the
/// job.
pub fn device_counters(world: &World, options: &Options) -> Result<Option<Counters>> {
    let Some((program, arguments)) = options.counters.split_first() else {
        return Ok(None);
    };
    barrier(world, options)?;
    let counters = if world.rank() == 0 {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        // The counters command does not need the libraries that this process preloads.
        command.env_remove("LD_PRELOAD");
        let shown = format!("{command:?}");
        let output = command
            .output()
            .map_err(|error| anyhow::anyhow!("cannot run {shown}: {error}"))?;
        anyhow::ensure!(
            output.status.success(),
            "{shown}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
        Some(Counters::parse(&output.stdout)?)
    } else {
        None
    };
    barrier(world, options)?;
    Ok(counters)
}

/// Processor time of all service processes so far, all threads together. `None` without `--service-pids` and at ranks
/// other than 0.
fn service_cpu(world: &World, options: &Options) -> Result<Option<Duration>> {
    if world.rank() != 0 || options.service_pids.is_empty() {
        return Ok(None);
    }
    let mut sum = Duration::ZERO;
    for pid in &options.service_pids {
        let mut clock = 0;
        // SAFETY: clock_getcpuclockid(3) writes one clock id.
        let errno = unsafe { libc::clock_getcpuclockid(*pid, &raw mut clock) };
        anyhow::ensure!(
            errno == 0,
            "the processor time of service process {pid}: {}",
            std::io::Error::from_raw_os_error(errno)
        );
        sum += cpu_of(clock);
    }
    Ok(Some(sum))
}

impl Once {
    fn add(&mut self, other: &Self) {
        self.total += other.total;
        self.init += other.init;
        self.compute += other.compute;
        self.test += other.test;
        self.wait += other.wait;
        self.alloc += other.alloc;
        self.free += other.free;
        self.cpu += other.cpu;
    }
}

/// Processor time of this process so far, all threads together.
fn process_cpu() -> Duration {
    cpu_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Processor time of one of the system's processor-time clocks.
fn cpu_of(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime(2) writes one timespec. The clocks of this process exist on every Linux. That of another
    // process may have ended with it; the time then stays zero.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    debug_assert_eq!(status, 0, "the processor-time clocks exist");
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a time since the start"
    )]
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
