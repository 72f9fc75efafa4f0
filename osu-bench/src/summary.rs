//! Combines the results of all ranks for one size at rank 0.

use crate::datatype::Datatype;
use crate::measure::Seen;
use crate::mpi::World;
use crate::omb::{Figures, Latency, Line, Overlap};
use crate::options::{BackendKind, Options, Program};
use crate::results::{OffloadRow, OverlapRow, Row};
use anyhow::Result;
use bench_report::Samples;
use bench_report::counters::CommandsPerIteration;
use osu_bench::report::Percentiles;

/// One size, over all ranks.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    size: usize,
    datatype: Datatype,
    iterations: usize,
    program: Option<Program>,
    /// Means over ranks.
    mean: Seen,
    least: f64,
    greatest: f64,
    /// Mean over ranks of each timed iteration, sorted.
    sorted: Vec<f64>,
    samples: Samples,
    wrong: Option<u64>,
    verified: Option<u64>,
    offload: Option<OffloadRow>,
    commands: Option<CommandsPerIteration>,
    service_cpu: Option<f64>,
}

/// Connection to the service processes, over all ranks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Connected {
    /// Mean over ranks, in microseconds; `None` without a connection.
    pub us: Option<f64>,
    /// Commands and requests of the device during the connection, if counted.
    pub commands: Option<CommandsPerIteration>,
}

/// The numbers that a rank sends to rank 0, in this order.
const GIVEN: usize = 18;

impl Summary {
    /// Collects the results of all ranks. Complete at rank 0 only.
    ///
    /// # Errors
    /// MPI's error.
    pub fn gather(
        world: &World,
        options: &Options,
        (size, datatype): (usize, Datatype),
        seen: &Seen,
    ) -> Result<Self> {
        let counted = seen.counted.unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "counts, exact below 2^53")]
        let given: [f64; GIVEN] = [
            seen.first,
            seen.pure,
            seen.overall,
            seen.compute,
            seen.init,
            seen.test,
            seen.wait,
            seen.alloc,
            seen.free,
            seen.wrong as f64,
            f64::from(u8::from(seen.counted.is_some())),
            counted.registration_us,
            counted.host.hits as f64,
            counted.host.misses as f64,
            counted.alias.hits as f64,
            counted.alias.misses as f64,
            seen.cpu,
            seen.verified as f64,
        ];
        let bytes: Vec<u8> = given.iter().flat_map(|value| value.to_le_bytes()).collect();
        let all: Vec<Vec<f64>> = world
            .allgather(&bytes)?
            .iter()
            .map(|bytes| {
                bytes
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .map(|value| f64::from_le_bytes(*value))
                    .collect()
            })
            .collect();
        let times = world.sum(&seen.times)?;
        #[expect(clippy::cast_precision_loss, reason = "a number of processes")]
        let ranks = world.size() as f64;
        let sum = |index: usize| all.iter().map(|of_rank| of_rank[index]).sum::<f64>();
        let mean = |index: usize| sum(index) / ranks;
        let pure = || all.iter().map(|of_rank| of_rank[1]);
        let mut sorted: Vec<f64> = times.iter().map(|time| time / ranks).collect();
        sorted.sort_by(f64::total_cmp);
        let mut samples = Samples::default();
        samples.extend_us(&sorted);
        let offload = (sum(10) > 0.0).then(|| OffloadRow {
            registration_us: mean(11) / iterations(seen),
            host_hit_percent: percent(sum(12), sum(13)),
            alias_hit_percent: percent(sum(14), sum(15)),
        });
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a sum of counts"
        )]
        let [wrong, verified] = [9, 17].map(|index| options.validate.then(|| sum(index) as u64));
        Ok(Self {
            size,
            datatype,
            iterations: seen.times.len(),
            program: Some(options.program),
            mean: Seen {
                first: mean(0),
                pure: mean(1),
                overall: mean(2),
                compute: mean(3),
                init: mean(4),
                test: mean(5),
                wait: mean(6),
                alloc: mean(7),
                free: mean(8),
                cpu: mean(16),
                ..Seen::default()
            },
            least: pure().fold(f64::INFINITY, f64::min),
            greatest: pure().fold(0.0, f64::max),
            sorted,
            samples,
            wrong,
            verified,
            offload,
            commands: seen
                .device
                .map(|device| device.per_iteration(seen.times.len() as u64)),
            service_cpu: seen.service_cpu,
        })
    }

    /// Number of wrong bytes, with validation.
    #[must_use]
    pub fn wrong(&self) -> Option<u64> {
        self.wrong
    }

    /// The line of the table, with the requested percentiles and additional columns.
    #[must_use]
    pub fn print(&self, options: &Options) -> String {
        let tails: Vec<f64> = options
            .percentiles
            .iter()
            .map(|percent| self.tail(*percent))
            .collect();
        crate::omb::line(
            options,
            &Line {
                size: self.size,
                figures: self.figures(),
                iterations: self.iterations,
                valid: self.wrong.map(|wrong| wrong == 0),
                tails: &tails,
                own: &self.own(options),
            },
        )
    }

    /// OSU's percentile: the sample whose number, from 1, is this percentage of the total, rounded down.
    fn tail(&self, percent: u8) -> f64 {
        let number = self.sorted.len() * usize::from(percent) / 100;
        // Here OSU's code would read before the first sample.
        let index = number.saturating_sub(1);
        self.sorted.get(index).copied().unwrap_or_default()
    }

    fn overlap(&self) -> Overlap {
        Overlap {
            overall: self.mean.overall,
            compute: self.mean.compute,
            init: self.mean.init,
            test: self.mean.test,
            wait: self.mean.wait,
            pure: self.mean.pure,
            pure_least: self.least,
            pure_greatest: self.greatest,
        }
    }

    fn figures(&self) -> Figures {
        match self.program {
            Some(Program::NonBlocking) => Figures::Overlap(self.overlap()),
            _ => Figures::Latency(Latency {
                average: self.mean.pure,
                least: self.least,
                greatest: self.greatest,
            }),
        }
    }

    fn own(&self, options: &Options) -> Vec<Option<f64>> {
        let mut values = Vec::new();
        if options.temporary() {
            values.extend([Some(self.mean.alloc), Some(self.mean.free)]);
        }
        if options.backend == BackendKind::Offload {
            values.extend([
                self.offload.map(|offload| offload.registration_us),
                self.offload.and_then(|offload| offload.host_hit_percent),
                self.offload.and_then(|offload| offload.alias_hit_percent),
            ]);
        }
        values
    }

    /// The row of the result files.
    #[must_use]
    pub fn row(&self, scheme: String, connected: &Connected) -> Row {
        let percentile = |percent| self.samples.percentile(percent).unwrap_or_default();
        let overlap = (self.program == Some(Program::NonBlocking)).then(|| OverlapRow {
            pure_us: self.mean.pure,
            compute_us: self.mean.compute,
            percent: self.overlap().percent(),
        });
        Row {
            scheme,
            size: self.size,
            datatype: self.datatype,
            iterations: self.iterations as u64,
            connect_us: connected.us,
            commands_at_connect: connected.commands,
            first_us: self.mean.first,
            steady_us: Percentiles {
                p50: percentile(50),
                p99: percentile(99),
            },
            average_us: self.mean.overall,
            least_us: self.least,
            greatest_us: self.greatest,
            alloc_us: self.mean.alloc,
            free_us: self.mean.free,
            overlap,
            host_cpu_us: self.mean.cpu,
            service_cpu_us: self.service_cpu,
            wrong_bytes: self.wrong,
            verified_bytes: self.verified,
            offload: self.offload,
            commands_per_iteration: self.commands,
        }
    }
}

/// The titles of our columns after OSU's, in the order of their values.
#[must_use]
pub fn own_columns(options: &Options) -> Vec<&'static str> {
    let mut titles = Vec::new();
    if options.temporary() {
        titles.extend(["Alloc(us)", "Free(us)"]);
    }
    if options.backend == BackendKind::Offload {
        titles.extend(["Reg(us)", "Host Hit(%)", "Alias Hit(%)"]);
    }
    titles
}

#[expect(clippy::cast_precision_loss, reason = "at most ten million")]
fn iterations(seen: &Seen) -> f64 {
    seen.times.len().max(1) as f64
}

/// Hit rate in percent; `None` without lookups.
fn percent(hits: f64, misses: f64) -> Option<f64> {
    (hits + misses > 0.0).then(|| hits / (hits + misses) * 100.0)
}
