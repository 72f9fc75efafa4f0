//! The command line: OSU's options with their letters, ranges and defaults, and our own.

mod values;

use crate::buffers::TempBuffers;
use crate::datatype::Datatype;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Args, Command, FromArgMatches as _, ValueEnum};
use std::error::Error as _;
use std::ffi::OsString;
use std::path::PathBuf;
use values::{buffers, count, datatypes, memory_limit, percentiles, pid, sizes};
use xgvmi_offload::ClientArgs;

/// One of the two programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Program {
    /// `osu_alltoallv`: MPI_Alltoallv.
    #[default]
    Blocking,
    /// `osu_ialltoallv`: MPI_Ialltoallv, and the share of it that computation hides.
    NonBlocking,
}

/// Backend of the collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendKind {
    /// MPI itself.
    Mpi,
    /// The service processes on the DPUs.
    Offload,
}

/// Source of the keys of the offloaded collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scheme {
    /// Stock UCX that creates a key for each buffer.
    Ksm,
    /// Stock UCX with its own key pool.
    Stock,
    /// Stock UCX with this project's library.
    Xgvmi,
}

/// How ranks wait in the barrier between iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BarrierKind {
    /// In MPI_Barrier, as in OSU's benchmark.
    Spin,
    /// Asleep between tests, for machines with fewer cores than processes.
    Sleep,
}

/// Computation of the non-blocking benchmark.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ComputeKind {
    /// OSU's loop over small matrices. It uses the core.
    #[default]
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

/// The smallest and the largest size of a run, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The smallest size.
    pub min: usize,
    /// The largest size.
    pub max: usize,
}

impl Default for Bounds {
    /// OSU's.
    fn default() -> Self {
        let (min, max) = (1, 1 << 20);
        Self { min, max }
    }
}

/// The configuration of a run. Options with a letter are OSU's.
// A list that is one value has the full name of its type: the parser would take a plain `Vec` for several values.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct Options {
    /// The program.
    #[arg(skip)]
    pub program: Program,
    /// Print this help
    #[arg(short, long, action = ArgAction::HelpShort)]
    help: (),
    /// Print the version
    #[arg(short = 'v', long, action = ArgAction::Version)]
    version: (),
    /// More columns: minimum and maximum over ranks, iterations
    #[arg(short, long)]
    pub full: bool,
    /// Bytes to each rank, doubling: MAX, MIN:MAX, MIN: or :MAX
    #[arg(short = 'm', long = "message-size", value_name = "SIZES", value_parser = sizes, default_value = "1:1048576")]
    pub size: Bounds,
    /// Timed iterations [default: 1000, and 100 above 8192 bytes]
    #[arg(short, long, value_parser = count(1, "Invalid Number of Iterations"))]
    pub iterations: Option<usize>,
    /// Untimed iterations before them [default: 100, and 10 above 8192 bytes]
    #[arg(short = 'x', long = "warmup", value_name = "ITERATIONS",
        value_parser = count(0, "Invalid Number of Warmup Iterations"))]
    pub warm_up: Option<usize>,
    /// Maximum size of a buffer in bytes
    #[arg(short = 'M', long = "mem-limit", value_name = "SIZE", value_parser = memory_limit, default_value = "536870912")]
    pub memory_max: usize,
    /// Compare every received byte. OSU's LOG is not supported
    #[arg(short = 'c', long = "validation", value_name = "LOG", value_parser = values::no_value, num_args = 0..=1,
        default_value = "false", default_missing_value = "true", hide_default_value = true, action = ArgAction::Set)]
    pub validate: bool,
    /// Calls before each validated iteration, at most 10
    #[arg(short = 'u', long = "validation-warmup", value_name = "CALLS", value_parser = values::validation_warm_up,
        default_value = "5")]
    pub validation_warm_up: usize,
    /// One table per datatype: MPI_CHAR, MPI_INT, MPI_FLOAT or all; repeatable
    #[arg(short = 'T', long = "type", value_name = "DATATYPE", value_parser = datatypes, default_value = "MPI_CHAR")]
    types: Vec<std::vec::Vec<Datatype>>,
    /// The datatypes of all tables.
    #[arg(skip)]
    pub datatypes: Vec<Datatype>,
    /// Send from the receive buffer (MPI_IN_PLACE)
    #[arg(short = 'l', long)]
    pub in_place: bool,
    /// Size of arrays on an accelerator; no effect without one, as with OSU
    #[arg(short, long, value_name = "SIZE", value_parser = count(1, "Invalid Device Array Size"))]
    pub array_size: Option<usize>,
    /// Percentiles of the mean over ranks, at most five [default: none; without P: 50,90,99]
    #[arg(short = 'z', long = "tail-lat", value_name = "P,P,..", value_parser = percentiles, num_args = 0..=1,
        default_value = "", default_missing_value = "50,90,99", hide_default_value = true)]
    pub percentiles: std::vec::Vec<u8>,
    /// The computation of the non-blocking program.
    #[arg(skip)]
    pub overlap: Overlap,
    /// Backend: MPI, or the service processes on the DPUs
    #[arg(long, default_value = "mpi")]
    pub backend: BackendKind,
    /// Keys of the offloaded collective
    #[arg(long, default_value = "xgvmi")]
    pub scheme: Scheme,
    /// none: one pair of buffers for all iterations, as in OSU; malloc, mmap: a new pair in each; ring:N: N pairs in turn
    #[arg(long, value_name = "KIND", value_parser = buffers, default_value = "none")]
    pub temp_buffers: TempBuffers,
    /// Include allocation, first touch and release of temporary buffers in the times
    #[arg(long)]
    pub time_alloc: bool,
    /// Wait between iterations; use sleep with fewer cores than processes
    #[arg(long, default_value = "spin")]
    pub barrier: BarrierKind,
    /// Rank 0 runs COMMAND before and after the timed iterations of a size and writes the device's commands per iteration
    /// to the JSON file. A word ';' ends it
    #[arg(long, value_name = "COMMAND", num_args = 0.., value_terminator = ";", allow_hyphen_values = true,
        action = ArgAction::Set)]
    pub counters: Vec<OsString>,
    /// Service processes on rank 0's machine; their processor time per iteration goes to the JSON file
    #[arg(long, value_name = "PID,..", value_parser = pid, value_delimiter = ',', action = ArgAction::Set)]
    pub service_pids: Vec<i32>,
    /// Write the results as JSON (rank 0)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the results as CSV (rank 0)
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Plot the results (rank 0)
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Library of scheme xgvmi [default: libuct_ib_mlx5_xgvmi.so in this program's directory]
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// Library compiled from shim/osu_mpi.c with your mpicc [default: $OSU_MPI_LIBRARY, else libosu_mpi.so in this
    /// program's directory]
    #[arg(long, value_name = "FILE")]
    pub mpi_library: Option<PathBuf>,
    /// Options of the service processes.
    #[command(flatten)]
    pub offload: ClientArgs,
}

/// Options of the non-blocking program alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Overlap {
    /// Calls of MPI_Test during the computation
    #[arg(short = 't', long = "num-test-calls", value_name = "CALLS", default_value = "0",
        value_parser = count(0, "Invalid Number of Probes"))]
    pub test_calls: usize,
    /// Computation: OSU's loop, or a sleep of the same length
    #[arg(long, default_value = "loop")]
    pub compute: ComputeKind,
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

/// The version of OSU's benchmarks with this output.
pub const VERSION: &str = "7.4";

/// Above this size the large rounds apply.
const LARGE_SIZE: usize = 8192;

/// Maximum number of tables: each datatype once, and all of them again.
const DATATYPES_MAX: usize = 2 * Datatype::ALL.len();

/// OSU's options of these two benchmarks that are not supported, with the reason.
const ELSEWHERE: [(&str, &str, &str); 5] = [
    ("-D", "--ddt", "Derived datatypes are not measured here"),
    (
        "-G",
        "--graph",
        "Graphs are drawn without gnuplot here: --plot FILE.svg",
    ),
    ("-I", "--session", "Sessions of MPI-4 are not used here"),
    (
        "-P",
        "--papi",
        "Processor counters (PAPI) are not read here",
    ),
    (
        "-d",
        "--accelerator",
        "Memory of accelerators (CUDA, ROCm, OpenACC) is not used here",
    ),
];

/// The definition of a program's command line.
#[must_use]
pub fn command(program: Program) -> Command {
    let (name, about) = match program {
        Program::Blocking => (
            program.name(),
            "OSU's MPI_Alltoallv latency test, with temporary buffers",
        ),
        Program::NonBlocking => (
            program.name(),
            "OSU's MPI_Ialltoallv overlap test, with temporary buffers",
        ),
    };
    let mut command = Options::augment_args(Command::new(name));
    if program == Program::NonBlocking {
        command = Overlap::augment_args(command);
    }
    command
        .version(VERSION)
        .about(about)
        .long_about(format!(
            "{about}.\n\nTo be started by MPI's launcher, as in `mpirun -np 4 {name} -m 1024:65536 --temp-buffers mmap`. The \
             options of OSU's micro-benchmarks {VERSION} come first, then those of these programs."
        ))
        .no_binary_name(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args_override_self(true)
        .mut_args(|arg| {
            let heading = match arg.get_short() {
                Some(_) => "Options of OSU's micro-benchmarks",
                None => "Options of these programs",
            };
            // The next word is the value, whatever it is, unless an option may go without.
            let always = arg.get_action().takes_values() && arg.get_num_args().is_none();
            match always {
                true => arg.allow_hyphen_values(true),
                false => arg,
            }
            .help_heading(heading)
        })
}

/// The output of `-h`.
#[must_use]
pub fn help(program: Program) -> String {
    command(program).render_help().to_string()
}

impl Options {
    /// OSU's defaults.
    #[must_use]
    pub fn new(program: Program) -> Self {
        match Self::parse(program, []) {
            Ok(Request::Run(options)) => *options,
            other => unreachable!("every option has a default: {other:?}"),
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
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        let mut command = command(program);
        let read = command.try_get_matches_from_mut(&arguments);
        let read = read.and_then(|matches| {
            let mut options = Self::from_arg_matches(&matches)?;
            options.program = program;
            if program == Program::NonBlocking {
                options.overlap = Overlap::from_arg_matches(&matches)?;
            }
            let types = matches.get_raw("types").and_then(Iterator::last);
            Ok((options, types.map(OsString::from)))
        });
        let (mut options, last_type) = match read {
            Ok(read) => read,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::DisplayHelp => Ok(Request::Help),
                    ErrorKind::DisplayVersion => Ok(Request::Version),
                    _ => Err(in_osus_form(&error, &command)),
                };
            }
        };
        options.datatypes = std::mem::take(&mut options.types).concat();
        if options.datatypes.len() > DATATYPES_MAX {
            let last = last_type.unwrap_or_default();
            return Err(BadUsage(format!(
                "Too many datatypes [-T {}]",
                last.display()
            )));
        }
        options.agree(&arguments)?;
        Ok(Request::Run(Box::new(options)))
    }

    /// Checks combinations of options.
    fn agree(&self, arguments: &[OsString]) -> Result<(), BadUsage> {
        let bad = |text: &str| Err(BadUsage(text.to_owned()));
        let Bounds { min, max } = self.size;
        if min > max {
            return bad(&format!(
                "The smallest message size is above the largest [-m {min}:{max}]"
            ));
        }
        let nowhere = self.offload.services.is_empty() && self.offload.offload_config.is_none();
        if self.backend == BackendKind::Offload && nowhere {
            return bad(
                "The offloaded backend needs to know where its service processes are [--sp]",
            );
        }
        if let Some(at) = arguments.iter().rposition(|word| word == "--counters") {
            if self.counters.is_empty() {
                return bad("A command without a program [--counters]");
            }
            let end = arguments.get(at + 1 + self.counters.len());
            if end.is_none_or(|word| word != ";") {
                return bad("A command ends with a word ';' [--counters]");
            }
        }
        Ok(())
    }

    /// The number of iterations for a size.
    #[must_use]
    pub fn rounds(&self, size: usize) -> Rounds {
        let (iterations, warm_up) = match size > LARGE_SIZE {
            true => (100, 10),
            false => (1000, 100),
        };
        Rounds {
            iterations: self.iterations.unwrap_or(iterations),
            warm_up: self.warm_up.unwrap_or(warm_up),
        }
    }

    /// The sizes of a run, each twice the previous one.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let Bounds { min, max } = self.size;
        std::iter::successors(Some(min), |size| size.checked_mul(2))
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
        let [small, large] = [LARGE_SIZE, LARGE_SIZE + 1].map(|size| self.rounds(size));
        format!(
            "{}, datatypes {:?}, in place {}, sizes {}:{}, iterations {} and {}, warm-up {} and {}, validation {} with {} calls, test calls {}, \
             backend {:?}, scheme {}, buffers {}, barrier {:?}, counters {}",
            self.program.name(),
            self.datatypes,
            self.in_place,
            self.size.min,
            self.size.max,
            small.iterations,
            large.iterations,
            small.warm_up,
            large.warm_up,
            self.validate,
            self.validation_warm_up,
            self.overlap.test_calls,
            self.backend,
            self.scheme.name(),
            self.temp_buffers,
            self.barrier,
            !self.counters.is_empty(),
        )
    }
}

/// The error in OSU's form: `message [-option value]`.
fn in_osus_form(error: &clap::Error, command: &Command) -> BadUsage {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    let given = text(ContextKind::InvalidArg);
    let known = command.get_arguments().find(|arg| arg.to_string() == given);
    let name = match known.map(|arg| (arg.get_short(), arg.get_long())) {
        Some((Some(letter), _)) => format!("-{letter}"),
        Some((None, Some(long))) => format!("--{long}"),
        _ => given,
    };
    let value = text(ContextKind::InvalidValue);
    BadUsage(match (error.kind(), error.source()) {
        (ErrorKind::UnknownArgument, _) => {
            let found = ELSEWHERE
                .iter()
                .find(|(letter, long, _)| name == *letter || name == *long);
            match found {
                Some((letter, _, why)) => format!("{why} [{letter}]"),
                None if name.starts_with('-') => format!("Invalid option [{name}]"),
                None => format!("Unexpected argument [{name}]"),
            }
        }
        (ErrorKind::InvalidValue, _) if value.is_empty() => {
            format!("Option Missing Required Argument [{name}]")
        }
        (ErrorKind::InvalidValue, _) => {
            let valid = text(ContextKind::ValidValue);
            format!("Invalid value, there are {valid} [{name} {value}]")
        }
        (ErrorKind::ValueValidation, Some(why)) => format!("{why} [{name} {value}]"),
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        }
    })
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

#[cfg(test)]
mod tests;
