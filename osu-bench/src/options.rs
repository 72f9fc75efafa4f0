//! The command line: OSU's options with their letters, ranges and defaults, and our own.

mod help;
mod values;

use crate::buffers::TempBuffers;
use crate::datatype::Datatype;
use lexopt::prelude::{Long, Short, ValueExt as _};
use std::ffi::OsString;
use std::path::PathBuf;

pub use help::help;
use values::{count, memory_limit, percentiles, sizes};

/// One of the two programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `osu_alltoallv`: MPI_Alltoallv.
    Blocking,
    /// `osu_ialltoallv`: MPI_Ialltoallv, and the share of it that computation hides.
    NonBlocking,
}

/// Backend of the collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendKind {
    /// MPI itself.
    Mpi,
    /// The service processes on the DPUs.
    Offload,
}

/// Source of the keys of the offloaded collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Stock UCX that creates a key for each buffer.
    Ksm,
    /// Stock UCX with its own key pool.
    Stock,
    /// Stock UCX with this project's library.
    Xgvmi,
}

/// How ranks wait in the barrier between iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarrierKind {
    /// In MPI_Barrier, as in OSU's benchmark.
    Spin,
    /// Asleep between tests, for machines with fewer cores than processes.
    Sleep,
}

/// Computation of the non-blocking benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeKind {
    /// OSU's loop over small matrices. It uses the core.
    Loop,
    /// A sleep of the same length. It simulates a dedicated core on machines with fewer cores than processes.
    Sleep,
}

/// Iterations and warm-up iterations of one message size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounds {
    /// Timed iterations.
    pub iterations: usize,
    /// Warm-up iterations before them.
    pub warm_up: usize,
}

/// The configuration of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The program.
    pub program: Program,
    /// `-m`: the smallest size, in bytes.
    pub size_min: usize,
    /// `-m`: the largest.
    pub size_max: usize,
    /// `-M`: maximum size of a buffer in bytes.
    pub memory_max: usize,
    /// Up to 8,192 bytes.
    pub small: Rounds,
    /// Above.
    pub large: Rounds,
    /// `-f`: more columns.
    pub full: bool,
    /// `-c`: compare every byte.
    pub validate: bool,
    /// `-u`: calls before each validated iteration.
    pub validation_warm_up: usize,
    /// `-z`: percentiles of the mean over ranks, at most five.
    pub percentiles: Vec<u8>,
    /// `-T`: one table for each.
    pub datatypes: Vec<Datatype>,
    /// `-l`: the send blocks are in the receive buffer (MPI_IN_PLACE).
    pub in_place: bool,
    /// `-t`: MPI_Test calls during the computation.
    pub test_calls: usize,
    /// `--backend`.
    pub backend: BackendKind,
    /// `--scheme`, of the offloaded backend.
    pub scheme: Scheme,
    /// `--temp-buffers`.
    pub temp_buffers: TempBuffers,
    /// `--time-alloc`: also time allocation, first touch and release.
    pub time_alloc: bool,
    /// `--barrier`.
    pub barrier: BarrierKind,
    /// `--compute`.
    pub compute: ComputeKind,
    /// `--counters`: the command that prints the device's counters, run by rank 0.
    pub counters: Vec<OsString>,
    /// `--service-pids`: service processes on this machine, whose processor time rank 0 reads.
    pub service_pids: Vec<i32>,
    /// `--json`.
    pub json: Option<PathBuf>,
    /// `--csv`.
    pub csv: Option<PathBuf>,
    /// `--plot`.
    pub plot: Option<PathBuf>,
    /// `--plugin`: the library of scheme xgvmi.
    pub plugin: Option<PathBuf>,
    /// `--mpi-library`.
    pub mpi_library: Option<PathBuf>,
    /// Options of the service processes.
    pub offload: OffloadOptions,
}

/// Options of the offloaded backend, with the names of `xgvmi_offload::ClientArgs`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffloadOptions {
    /// `--sp`: the service processes of this rank's node.
    pub services: Vec<String>,
    /// `--node`.
    pub node: Option<String>,
    /// `--offload-config`.
    pub config: Option<PathBuf>,
    /// `--connect-limit-s`.
    pub connect_limit_s: Option<u64>,
    /// `--offload-limit-s`.
    pub limit_s: Option<u64>,
    /// `--offload-spin-us`.
    pub spin_us: Option<u64>,
    /// `--secret-file`.
    pub secret: Option<PathBuf>,
    /// `--ucx-library`.
    pub ucx_library: Option<PathBuf>,
}

/// The action that the command line requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// The benchmark.
    Run(Box<Options>),
    /// `-h`.
    Help,
    /// `-v`.
    Version,
}

/// A usage error in OSU's form: `message [-option value]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadUsage(pub String);

/// Above this size the large rounds apply.
const LARGE_SIZE: usize = 8192;

/// Most validation warm-up calls that OSU allows.
const VALIDATION_WARM_UP_MAX: usize = 10;

/// Maximum number of tables: each datatype once, and all of them again.
const DATATYPES_MAX: usize = 2 * Datatype::ALL.len();

/// Maximum number of iterations, warm-ups and test calls. Each time is kept in 8 bytes.
const COUNT_MAX: usize = 10_000_000;

impl Options {
    /// OSU's defaults.
    #[must_use]
    pub fn new(program: Program) -> Self {
        Self {
            program,
            size_min: 1,
            size_max: 1 << 20,
            memory_max: 512 << 20,
            small: Rounds {
                iterations: 1000,
                warm_up: 100,
            },
            large: Rounds {
                iterations: 100,
                warm_up: 10,
            },
            full: false,
            validate: false,
            validation_warm_up: 5,
            percentiles: Vec::new(),
            datatypes: Vec::new(),
            in_place: false,
            test_calls: 0,
            backend: BackendKind::Mpi,
            scheme: Scheme::Xgvmi,
            temp_buffers: TempBuffers::None,
            time_alloc: false,
            barrier: BarrierKind::Spin,
            compute: ComputeKind::Loop,
            counters: Vec::new(),
            service_pids: Vec::new(),
            json: None,
            csv: None,
            plot: None,
            plugin: None,
            mpi_library: None,
            offload: OffloadOptions::default(),
        }
    }

    /// Parses the arguments after the program's name.
    ///
    /// # Errors
    /// [`BadUsage`].
    pub fn parse(
        program: Program,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Request, BadUsage> {
        let mut options = Self::new(program);
        let mut parser = lexopt::Parser::from_args(arguments);
        loop {
            let argument = match parser.next() {
                Ok(Some(argument)) => argument,
                Ok(None) => break,
                Err(error) => return Err(BadUsage(error.to_string())),
            };
            let name = match argument {
                Short('h') | Long("help") => return Ok(Request::Help),
                Short('v') | Long("version") => return Ok(Request::Version),
                Short('f') | Long("full") => {
                    options.full = true;
                    continue;
                }
                Short('c') | Long("validation") => {
                    if let Some(value) = parser.optional_value() {
                        let value = value.to_string_lossy();
                        return Err(BadUsage(format!(
                            "Validation takes no value here [-c {value}]"
                        )));
                    }
                    options.validate = true;
                    continue;
                }
                Short('z') | Long("tail-lat") => {
                    let list = parser.optional_value();
                    options.percentiles = percentiles(list.as_deref())?;
                    continue;
                }
                Short('l') | Long("in-place") => {
                    options.in_place = true;
                    continue;
                }
                Long("time-alloc") => {
                    options.time_alloc = true;
                    continue;
                }
                Long("counters") => {
                    options.counters = command(&mut parser)?;
                    continue;
                }
                Long("service-pids") => {
                    options.service_pids = pids(&mut parser)?;
                    continue;
                }
                Short(letter) => Name::Letter(letter),
                Long(name) => Name::Word(name.to_owned()),
                lexopt::Arg::Value(value) => {
                    let value = value.to_string_lossy();
                    return Err(BadUsage(format!("Unexpected argument [{value}]")));
                }
            };
            let name = name.canonical(program)?;
            let Ok(value) = parser.value() else {
                return Err(BadUsage(format!(
                    "Option Missing Required Argument [{name}]"
                )));
            };
            options.set(&name, value)?;
        }
        if options.datatypes.is_empty() {
            options.datatypes.push(Datatype::default());
        }
        options.agree()?;
        Ok(Request::Run(Box::new(options)))
    }

    fn set(&mut self, name: &str, value: OsString) -> Result<(), BadUsage> {
        // File names are bytes. All other values are text.
        match name {
            "--json" => return store(&mut self.json, value),
            "--csv" => return store(&mut self.csv, value),
            "--plot" => return store(&mut self.plot, value),
            "--plugin" => return store(&mut self.plugin, value),
            "--mpi-library" => return store(&mut self.mpi_library, value),
            "--secret-file" => return store(&mut self.offload.secret, value),
            "--ucx-library" => return store(&mut self.offload.ucx_library, value),
            "--offload-config" => return store(&mut self.offload.config, value),
            _ => {}
        }
        let shown = value.to_string_lossy().into_owned();
        let bad = |what: &str| BadUsage(format!("{what} [{name} {shown}]"));
        let text = value.string().map_err(|_| bad("Not a text"))?;
        if name.starts_with("--") {
            self.set_own(name, text, bad)
        } else {
            self.set_of_osu(name, &text, bad)
        }
    }

    /// Sets an option of OSU's own benchmark.
    fn set_of_osu(
        &mut self,
        name: &str,
        text: &str,
        bad: impl Fn(&str) -> BadUsage,
    ) -> Result<(), BadUsage> {
        let number = |least: usize, what: &str| {
            count(text)
                .filter(|number| (least..=COUNT_MAX).contains(number))
                .ok_or_else(|| bad(what))
        };
        match name {
            "-m" => {
                let (min, max) = sizes(text).ok_or_else(|| bad("Invalid Message Size"))?;
                self.size_min = min.unwrap_or(self.size_min);
                self.size_max = max.unwrap_or(self.size_max);
            }
            "-M" => {
                self.memory_max = memory_limit(text).ok_or_else(|| bad("Invalid Memory Limit"))?
            }
            "-i" => {
                let iterations = number(1, "Invalid Number of Iterations")?;
                self.small.iterations = iterations;
                self.large.iterations = iterations;
            }
            "-x" => {
                let warm_up = number(0, "Invalid Number of Warmup Iterations")?;
                self.small.warm_up = warm_up;
                self.large.warm_up = warm_up;
            }
            "-u" => {
                let calls = number(0, "Invalid Number of Validation Warmup Iterations")?;
                if calls > VALIDATION_WARM_UP_MAX {
                    return Err(bad(
                        "Number of Validation Warmup Iterations must not be more than 10",
                    ));
                }
                self.validation_warm_up = calls;
            }
            // The arrays of a computation on a GPU. Without a GPU OSU ignores it as well.
            "-a" => drop(number(1, "Invalid Device Array Size")?),
            "-T" => {
                let named = Datatype::named(text).ok_or_else(|| {
                    bad("Invalid datatype, there are MPI_CHAR, MPI_INT, MPI_FLOAT and all")
                })?;
                self.datatypes.extend(named);
                if self.datatypes.len() > DATATYPES_MAX {
                    return Err(bad("Too many datatypes"));
                }
            }
            "-t" => self.test_calls = number(0, "Invalid Number of Probes")?,
            _ => return Err(BadUsage(format!("Invalid option [{name}]"))),
        }
        Ok(())
    }

    /// Sets an option that OSU's benchmark does not have.
    fn set_own(
        &mut self,
        name: &str,
        text: String,
        bad: impl Fn(&str) -> BadUsage,
    ) -> Result<(), BadUsage> {
        // The client checks the limits of these.
        let seconds = |text: &str| text.parse::<u64>().map_err(|_| bad("Not a whole number"));
        match name {
            "--backend" => {
                self.backend = match text.as_str() {
                    "mpi" => BackendKind::Mpi,
                    "offload" => BackendKind::Offload,
                    _ => return Err(bad("Invalid backend, there are mpi and offload")),
                };
            }
            "--scheme" => {
                self.scheme = Scheme::ALL
                    .into_iter()
                    .find(|scheme| scheme.name() == text)
                    .ok_or_else(|| bad("Invalid scheme, there are ksm, stock and xgvmi"))?;
            }
            "--temp-buffers" => {
                self.temp_buffers = text.parse().map_err(|()| {
                    bad("Invalid kind of buffers, there are none, malloc, mmap and ring:N")
                })?;
            }
            "--barrier" => {
                self.barrier = match text.as_str() {
                    "spin" => BarrierKind::Spin,
                    "sleep" => BarrierKind::Sleep,
                    _ => return Err(bad("Invalid barrier, there are spin and sleep")),
                };
            }
            "--compute" => {
                self.compute = match text.as_str() {
                    "loop" => ComputeKind::Loop,
                    "sleep" => ComputeKind::Sleep,
                    _ => return Err(bad("Invalid computation, there are loop and sleep")),
                };
            }
            "--sp" => {
                self.offload
                    .services
                    .extend(text.split(',').map(str::to_owned));
            }
            "--node" => self.offload.node = Some(text),
            "--connect-limit-s" => self.offload.connect_limit_s = Some(seconds(&text)?),
            "--offload-limit-s" => self.offload.limit_s = Some(seconds(&text)?),
            "--offload-spin-us" => self.offload.spin_us = Some(seconds(&text)?),
            _ => return Err(BadUsage(format!("Invalid option [{name}]"))),
        }
        Ok(())
    }

    /// Checks combinations of options.
    fn agree(&self) -> Result<(), BadUsage> {
        if self.size_min > self.size_max {
            return Err(BadUsage(format!(
                "The smallest message size is above the largest [-m {}:{}]",
                self.size_min, self.size_max
            )));
        }
        let nowhere = self.offload.services.is_empty() && self.offload.config.is_none();
        if self.backend == BackendKind::Offload && nowhere {
            return Err(BadUsage(
                "The offloaded backend needs to know where its service processes are [--sp]"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// The number of iterations for a size.
    #[must_use]
    pub fn rounds(&self, size: usize) -> Rounds {
        if size > LARGE_SIZE {
            self.large
        } else {
            self.small
        }
    }

    /// The sizes of a run, each twice the previous one.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let max = self.size_max;
        std::iter::successors(Some(self.size_min), |size| size.checked_mul(2))
            .take_while(move |size| *size <= max)
    }

    /// The scheme's name, or the backend's if it has no schemes. It distinguishes runs.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self.backend {
            BackendKind::Mpi => self.backend.name(),
            BackendKind::Offload => self.scheme.name(),
        }
    }

    /// Whether each iteration allocates its own buffers.
    #[must_use]
    pub fn temporary(&self) -> bool {
        matches!(self.temp_buffers, TempBuffers::Malloc | TempBuffers::Mmap)
    }

    /// The options that must be equal on all ranks, because the lengths and the number of messages depend on
    /// them.
    #[must_use]
    pub fn shape(&self) -> String {
        let Self { small, large, .. } = self;
        format!(
            "{}, datatypes {:?}, in place {}, sizes {}:{}, iterations {} and {}, warm-up {} and {}, validation {} with {} calls, test calls {}, \
             backend {:?}, scheme {}, buffers {}, barrier {:?}, counters {}",
            self.program.name(),
            self.datatypes,
            self.in_place,
            self.size_min,
            self.size_max,
            small.iterations,
            large.iterations,
            small.warm_up,
            large.warm_up,
            self.validate,
            self.validation_warm_up,
            self.test_calls,
            self.backend,
            self.scheme.name(),
            self.temp_buffers,
            self.barrier,
            !self.counters.is_empty(),
        )
    }
}

impl Scheme {
    /// In the order of the tables.
    pub const ALL: [Self; 3] = [Self::Ksm, Self::Stock, Self::Xgvmi];

    /// Its name on command lines and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ksm => "ksm",
            Self::Stock => "stock",
            Self::Xgvmi => "xgvmi",
        }
    }
}

impl Program {
    /// Its file name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "osu_alltoallv",
            Self::NonBlocking => "osu_ialltoallv",
        }
    }
}

impl BackendKind {
    /// Its name on command lines and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mpi => "mpi",
            Self::Offload => "offload",
        }
    }
}

/// An option with its value, as typed.
enum Name {
    Letter(char),
    Word(String),
}

/// OSU's long names, with their letters.
const LONG: [(&str, char); 8] = [
    ("message-size", 'm'),
    ("mem-limit", 'M'),
    ("iterations", 'i'),
    ("warmup", 'x'),
    ("validation-warmup", 'u'),
    ("num-test-calls", 't'),
    ("array-size", 'a'),
    ("type", 'T'),
];

/// Our options.
const OWN: [&str; 18] = [
    "backend",
    "scheme",
    "temp-buffers",
    "barrier",
    "compute",
    "json",
    "csv",
    "plot",
    "plugin",
    "mpi-library",
    "ucx-library",
    "sp",
    "node",
    "offload-config",
    "connect-limit-s",
    "offload-limit-s",
    "offload-spin-us",
    "secret-file",
];

/// OSU's options of these two benchmarks that are not supported, with the reason.
const ELSEWHERE: [(char, &str, &str); 5] = [
    ('D', "ddt", "Derived datatypes are not measured here"),
    (
        'G',
        "graph",
        "Graphs are drawn without gnuplot here: --plot FILE.svg",
    ),
    ('I', "session", "Sessions of MPI-4 are not used here"),
    ('P', "papi", "Processor counters (PAPI) are not read here"),
    (
        'd',
        "accelerator",
        "Memory of accelerators (CUDA, ROCm, OpenACC) is not used here",
    ),
];

impl Name {
    /// The one name under which an option is handled.
    fn canonical(self, program: Program) -> Result<String, BadUsage> {
        let letter = match self {
            Self::Letter(letter) => letter,
            Self::Word(word) => match LONG
                .iter()
                .copied()
                .chain(ELSEWHERE.map(|(letter, name, _)| (name, letter)))
                .find(|(name, _)| *name == word)
            {
                Some((_, letter)) => letter,
                None if OWN.contains(&word.as_str()) => return Ok(format!("--{word}")),
                None => return Err(BadUsage(format!("Invalid option [--{word}]"))),
            },
        };
        match letter {
            't' if program == Program::Blocking => Err(BadUsage("Invalid option [-t]".to_owned())),
            'm' | 'M' | 'i' | 'x' | 'u' | 't' | 'a' | 'T' => Ok(format!("-{letter}")),
            other => Err(BadUsage(
                match ELSEWHERE.iter().find(|(known, ..)| *known == other) {
                    Some((_, _, why)) => format!("{why} [-{other}]"),
                    None => format!("Invalid option [-{other}]"),
                },
            )),
        }
    }
}

fn store(place: &mut Option<PathBuf>, value: OsString) -> Result<(), BadUsage> {
    *place = Some(value.into());
    Ok(())
}

/// The words up to a word ';'.
fn command(parser: &mut lexopt::Parser) -> Result<Vec<OsString>, BadUsage> {
    let unfinished = || BadUsage("A command ends with a word ';' [--counters]".to_owned());
    let mut words = Vec::new();
    let mut raw = parser.raw_args().map_err(|_| unfinished())?;
    for word in raw.by_ref() {
        if word == ";" {
            return if words.is_empty() {
                Err(BadUsage(
                    "A command without a program [--counters]".to_owned(),
                ))
            } else {
                Ok(words)
            };
        }
        words.push(word);
    }
    Err(unfinished())
}

fn pids(parser: &mut lexopt::Parser) -> Result<Vec<i32>, BadUsage> {
    let bad = || BadUsage("Process ids above zero, with commas [--service-pids]".to_owned());
    let list = parser.value().map_err(|_| bad())?;
    let list = list.to_str().ok_or_else(bad)?;
    let pid = |word: &str| word.parse().ok().filter(|pid| *pid > 0).ok_or_else(bad);
    list.split(',').map(pid).collect()
}

#[cfg(test)]
mod tests;
