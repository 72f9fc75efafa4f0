//! A whole run, common to both programs, from the command line to the exit code.
//!
//! An error that a rank meets while it gets ready is told to all of them: rank 0 prints it, all end with 1, and nobody
//! waits for anybody. One that it meets later, inside a collective, ends the job by MPI_Abort, since the others are
//! waiting for it where they cannot be told.

use crate::backend::Backend;
use crate::datatype::Datatype;
use crate::measure::{Bench, device_counters};
use crate::mpi::{World, launcher_rank};
use crate::offload::{self, Offload};
use crate::omb;
use crate::options::{BackendKind, BadUsage, Options, Program, Request, help};
use crate::results::{Record, replace};
use crate::summary::{Connected, Summary, own_columns};
use anyhow::{Context as _, Result, bail};
use bench_report::counters::Counters;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time limit for rank 0's last message, if MPI cannot report that it was printed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Runs the program in this process's environment.
#[must_use]
pub fn main(program: Program) -> ExitCode {
    if let Some(code) = cli_pages::asked_of(|| crate::options::command(program)) {
        return code;
    }
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let request = Options::parse(program, arguments.clone());
    let library = match &request {
        Ok(Request::Run(options)) => options.mpi_library.clone(),
        _ => named_library(&arguments),
    };
    let preloaded = match &request {
        Ok(Request::Run(options)) => offload::preload(options),
        _ => Ok(()),
    };
    let world = match preloaded.and_then(|()| World::start(library.as_deref())) {
        Ok(world) => world,
        Err(error) => {
            // One copy is enough, and the launcher ends all ranks when one has ended.
            if launcher_rank().unwrap_or(0) == 0 {
                complain(&format!("{}: {error:#}", program.name()));
            } else {
                std::thread::sleep(LAST_WORDS);
            }
            return ExitCode::FAILURE;
        }
    };
    let code = match agreed(&world, &request) {
        Ok(Agreed::Run) => match request {
            Ok(Request::Run(options)) => run(&world, *options, &arguments),
            // Agreed::Run is the configuration of all ranks, including this one.
            _ => ExitCode::FAILURE,
        },
        Ok(Agreed::Help) => say(&world, &help(program)),
        Ok(Agreed::Version) => say(&world, &omb::title(program)),
        Ok(Agreed::Nothing(text)) => {
            if world.rank() == 0 {
                eprintln!("{text}\n");
            }
            say(&world, &help(program));
            ExitCode::FAILURE
        }
        Err(error) => {
            complain(&format!(
                "{}: rank {}: {error:#}",
                program.name(),
                world.rank()
            ));
            world.abort(1)
        }
    };
    // In some launchers the first rank that exits ends the others. It must not exit before rank 0 has printed.
    match world.barrier().and_then(|()| world.finish()) {
        Ok(()) => code,
        Err(error) => {
            complain(&format!("{}: {error:#}", program.name()));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line to standard error in one write: the launcher mixes the outputs of all ranks with its own by writes.
fn complain(text: &str) {
    // Nobody is left to hear of a closed standard error.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// The action of all ranks.
enum Agreed {
    Run,
    Help,
    Version,
    /// The usage error of the first rank that has one.
    Nothing(String),
}

/// Asks all ranks, because a rank with a usage error must not leave the others waiting.
fn agreed(world: &World, request: &Result<Request, BadUsage>) -> Result<Agreed> {
    let word = match request {
        Ok(Request::Run(_)) => "run",
        Ok(Request::Help) => "help",
        Ok(Request::Version) => "version",
        Err(BadUsage(text)) => &format!("?{text}"),
    };
    let words = world.allgather(cut(word))?;
    let find = |wanted: &[u8]| words.iter().any(|word| word == wanted);
    if let Some(text) = words.iter().find_map(|word| word.strip_prefix(b"?")) {
        return Ok(Agreed::Nothing(String::from_utf8_lossy(text).into_owned()));
    }
    Ok(if find(b"help") {
        Agreed::Help
    } else if find(b"version") {
        Agreed::Version
    } else {
        Agreed::Run
    })
}

/// Maximum length of an error text that is sent to all ranks. Longer texts are truncated.
fn cut(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(4096)]
}

/// The MPI library from a command line with a usage error. The error message needs MPI as well.
fn named_library(arguments: &[OsString]) -> Option<PathBuf> {
    let at = arguments.iter().position(|word| word == "--mpi-library")?;
    arguments.get(at + 1).map(PathBuf::from)
}

fn say(world: &World, text: &str) -> ExitCode {
    if world.rank() == 0 {
        print(text);
    }
    ExitCode::SUCCESS
}

/// Flushes rank 0's lines at once. A closed pipe is no reason to stop.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn run(world: &World, mut options: Options, arguments: &[OsString]) -> ExitCode {
    let program = options.program.name();
    let measured = get_ready(world, &mut options)
        .map_err(Failure::Together)
        .and_then(|()| connect_and_run(world, &options, arguments));
    match measured {
        Ok(code) => code,
        Err(Failure::Together(text)) => {
            if world.rank() == 0 {
                complain(&format!("{program}: {text}"));
            }
            ExitCode::FAILURE
        }
        Err(Failure::Alone(error)) => {
            // An error often occurs on all ranks. Rank 0 prints it, unless rank 0 is absent.
            if world.rank() != 0 {
                std::thread::sleep(LAST_WORDS);
            }
            complain(&format!("{program}: rank {}: {error:#}", world.rank()));
            world.abort(1)
        }
    }
}

/// Kind of failure.
enum Failure {
    /// All ranks know the error and exit in order.
    Together(String),
    /// Only this rank knows the error.
    Alone(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Alone(error)
    }
}

/// Checks before the first measurement. All ranks get the same answer.
fn get_ready(world: &World, options: &mut Options) -> Result<(), String> {
    if world.size() < 2 {
        return Err("This test requires at least two processes".to_owned());
    }
    let fitted = limit_sizes(options, world.size());
    if let (Ok(Some(warning)), 0) = (&fitted, world.rank()) {
        complain(warning);
    }
    // The text is the same at all ranks with equal options. Later checks find unequal options.
    together(world, fitted.map(|_| ()))?;
    let shapes = world
        .allgather(options.shape().as_bytes())
        .map_err(|error| format!("{error:#}"))?;
    if let Some(other) = shapes.iter().position(|shape| *shape != shapes[0]) {
        return Err(format!(
            "rank {other} was started with other options than rank 0:\n  rank 0: {}\n  rank {other}: {}",
            String::from_utf8_lossy(&shapes[0]),
            String::from_utf8_lossy(&shapes[other])
        ));
    }
    let writable = if world.rank() == 0 {
        check_files(options)
    } else {
        Ok(())
    };
    together(world, writable)
}

/// Sizes within the memory limit (as in OSU) and within MPI's int, and the warning if sizes were removed.
fn limit_sizes(options: &mut Options, ranks: usize) -> Result<Option<String>> {
    let mut warning = None;
    let limit = options.memory_max / ranks;
    if options.size.max > limit {
        options.size.max = limit;
        warning = Some(format!(
            "Warning! Limiting max message size to: {limit}. Increase -M, --mem-limit for higher message sizes."
        ));
    }
    if options.size.min > options.size.max {
        bail!(
            "no message size is left: the smallest is {}, and {ranks} ranks leave {limit} bytes to each in buffers of \
             {} bytes; raise -M",
            options.size.min,
            options.memory_max
        );
    }
    crate::layout::Layout::equal(ranks, options.size.max, Datatype::Char)?;
    Ok(warning)
}

/// Checks now whether the files are writable, not after the run.
fn check_files(options: &Options) -> Result<()> {
    for path in [&options.json, &options.csv, &options.plot]
        .into_iter()
        .flatten()
    {
        replace(path, "")?;
    }
    Ok(())
}

/// Exchanges the status of all ranks. The error is that of the first failed rank.
fn together<T>(world: &World, result: Result<T>) -> Result<T, String> {
    let (text, value) = match result {
        Ok(value) => (String::new(), Some(value)),
        Err(error) => (format!("{error:#}"), None),
    };
    let texts = world
        .allgather(cut(&text))
        .map_err(|error| format!("{error:#}"))?;
    let failed: Vec<usize> = (0..texts.len())
        .filter(|rank| !texts[*rank].is_empty())
        .collect();
    match (failed.first(), value) {
        (None, Some(value)) => Ok(value),
        (first, _) => {
            let first = first.copied().unwrap_or_else(|| world.rank());
            let text = String::from_utf8_lossy(&texts[first]);
            Err(match failed.len() {
                1 => format!("rank {first}: {text}"),
                count => format!("rank {first} and {} more: {text}", count.saturating_sub(1)),
            })
        }
    }
}

fn connect_and_run(
    world: &World,
    options: &Options,
    arguments: &[OsString],
) -> Result<ExitCode, Failure> {
    let before = device_counters(world, options)?;
    let began = Instant::now();
    let backend = together(world, open_backend(world, options)).map_err(Failure::Together)?;
    let connected = connected(world, options, (began.elapsed(), before))?;
    let bench = Bench::new(world, options, backend);
    let mut bench = together(world, bench).map_err(Failure::Together)?;
    let first = world.rank() == 0;
    let arguments = arguments
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut record = Record::new(options, world.version(), world.size(), arguments);
    if first {
        print(&omb::preamble(options.program));
    }
    let mut wrong_size = None;
    'tables: for datatype in options.datatypes.iter().copied() {
        if first {
            print(&omb::header(options, datatype, &own_columns(options)));
        }
        // Sizes below an element have no line.
        for size in options.sizes().filter(|size| *size >= datatype.bytes()) {
            let seen = bench
                .size(size, datatype)
                .with_context(|| format!("message size {size}"))?;
            let summary = Summary::gather(world, options, (size, datatype), &seen)?;
            record.push(summary.row(record.scheme.clone(), &connected));
            if first {
                print(&summary.print(options));
            }
            // All ranks have the sum and stop together.
            if summary.wrong().is_some_and(|wrong| wrong > 0) {
                wrong_size = Some(size);
                break 'tables;
            }
        }
    }
    bench.finish()?;
    let written = if first { record.write(options) } else { Ok(()) };
    together(world, written).map_err(Failure::Together)?;
    if let Some(size) = wrong_size {
        if first {
            print(&omb::validation_error(options.program, size));
        }
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The connection that took this rank `time`, over all ranks, with the device's counters before it.
fn connected(
    world: &World,
    options: &Options,
    (time, before): (Duration, Option<Counters>),
) -> Result<Connected> {
    if options.backend == BackendKind::Mpi {
        return Ok(Connected::default());
    }
    let sum = world.sum(&[time.as_secs_f64() * 1e6])?;
    let after = device_counters(world, options)?;
    let commands = match (before, after) {
        (Some(before), Some(after)) => Some(after.since(&before)?.per_iteration(1)),
        _ => None,
    };
    #[expect(clippy::cast_precision_loss, reason = "a number of processes")]
    let ranks = world.size() as f64;
    Ok(Connected {
        us: sum.first().map(|sum| sum / ranks),
        commands,
    })
}

fn open_backend<'w>(world: &'w World, options: &Options) -> Result<Backend<'w>> {
    match options.backend {
        BackendKind::Mpi => Ok(Backend::Mpi(world)),
        BackendKind::Offload => Ok(Backend::Offload(Box::new(Offload::connect(
            world, options,
        )?))),
    }
}
