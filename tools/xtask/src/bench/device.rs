//! `cargo xtask bench device`: measures the emulated device's own time with stock programs and writes
//! `target/bench/device.json`.
//!
//! The bench runs two processes without a cost profile. In trap mode each has its own core. Times depend on this
//! machine and its load: the report contains the load averages, each row is the best of [`ROUNDS`] runs, and nothing is
//! asserted. tests/promises.toml contains the wanted values.

use super::{begin, cluster, finish};
use crate::process::{Done, Running, shown};
use crate::{setup, workspace};
use anyhow::{Context, Result, bail};
use bench_report::{columns, table};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::port;

/// Twenty thousand round trips take a second; a loaded machine takes longer.
const LIMIT: Duration = Duration::from_secs(120);
/// The client retries until the server listens on its port.
const TRIES: usize = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);
/// Runs of each row. Other load on the machine can only increase the times.
const ROUNDS: usize = 3;
/// Number of concurrently busy pairs.
const PAIRS: usize = 4;
const MIB: f64 = 1_048_576.0;

/// Output format of a program.
#[derive(Clone, Copy)]
enum Form {
    /// Columns of perftest's result line.
    Perftest,
    /// UCX's last line: iterations, median, average and overall time in us, ...
    Ucx,
}

/// A program between two nodes.
struct Run {
    program: &'static str,
    options: &'static [&'static str],
    /// Transports of UCX; `cma` uses no device. `None` for a verbs program.
    transports: Option<&'static str>,
    mode: &'static str,
    /// One of several concurrent pairs.
    crowded: bool,
}

/// One value of a run.
struct Row {
    name: &'static str,
    run: Run,
    form: Form,
    column: usize,
    /// Converts the printed value to the row's unit.
    convert: fn(f64) -> f64,
    unit: &'static str,
    /// Higher values are better.
    more: bool,
    wanted: &'static str,
}

impl Run {
    /// The core of an end. Without pinning, the scheduler of a loaded machine may place both ends on one core. Each
    /// side of polling mode has two spinning threads, which are not pinned. `None` if there is only one core.
    fn cpu(&self, function: &str) -> Option<usize> {
        let cpus = allowed_cpus();
        let place = usize::from(function != "node0.host");
        let two = cpus.len() >= 2 && self.mode == "trap" && !self.crowded;
        cpus.get(place).copied().filter(|_| two)
    }
}

/// The cores that this process may use.
fn allowed_cpus() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    parse_cpus(list.unwrap_or_default())
}

/// Parses a list in the kernel's format: `0-2,7`.
fn parse_cpus(list: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// The same command, pinned to one core.
fn pinned(command: &Command, cpu: usize) -> Command {
    let mut pinned = Command::new("taskset");
    pinned.arg("-c").arg(cpu.to_string());
    pinned.arg(command.get_program()).args(command.get_args());
    pinned
}

const fn verbs(program: &'static str, options: &'static [&'static str]) -> Run {
    Run {
        program,
        options,
        transports: None,
        mode: "trap",
        crowded: false,
    }
}

const fn ucx(options: &'static [&'static str], transports: &'static str) -> Run {
    Run {
        program: "ucx_perftest",
        options,
        transports: Some(transports),
        mode: "trap",
        crowded: false,
    }
}

/// The typical latency of a perftest program. Columns: bytes, iterations, minimum, maximum, typical, ...
const fn latency(name: &'static str, run: Run, wanted: &'static str) -> Row {
    Row {
        name,
        run,
        form: Form::Perftest,
        column: 4,
        convert: |us| us,
        unit: "us",
        more: false,
        wanted,
    }
}

const EIGHT: &[&str] = &["-s", "8", "-n", "20000"];
const GET: &[&str] = &["-t", "ucp_get", "-s", "1048576", "-n", "1000", "-w", "50"];
const CMA: &str = "cma,sm,self,tcp";
const DEVICE: &str = "rc_x,self";

const ROWS: &[Row] = &[
    latency(
        "ib_write_lat, 8 B, typical",
        verbs("ib_write_lat", EIGHT),
        "<= 5",
    ),
    latency("ib_read_lat, 8 B, typical", verbs("ib_read_lat", EIGHT), ""),
    latency("ib_send_lat, 8 B, typical", verbs("ib_send_lat", EIGHT), ""),
    latency(
        "ib_atomic_lat, 8 B, typical",
        verbs("ib_atomic_lat", &["-n", "20000"]),
        "",
    ),
    latency(
        "ib_write_lat, 8 B, typical, polling mode",
        Run {
            mode: "polling",
            ..verbs("ib_write_lat", &["-s", "8", "-n", "500"])
        },
        "",
    ),
    Row {
        name: "ucp_put_lat, 8 B, median",
        run: ucx(&["-t", "ucp_put_lat", "-n", "20000"], DEVICE),
        form: Form::Ucx,
        column: 1,
        convert: |us| us,
        unit: "us",
        more: false,
        wanted: "<= 5",
    },
    Row {
        name: "ucp_get, 1 MiB, by the median",
        run: ucx(GET, DEVICE),
        form: Form::Ucx,
        column: 1,
        convert: |us| MIB / us,
        unit: "MB/s",
        more: true,
        wanted: ">= 0.8 times the next row",
    },
    Row {
        name: "the same by UCX's cma",
        run: ucx(GET, CMA),
        form: Form::Ucx,
        column: 1,
        convert: |us| MIB / us,
        unit: "MB/s",
        more: true,
        wanted: "",
    },
    Row {
        name: "ib_write_bw, 8 B, both directions",
        run: verbs("ib_write_bw", &["-s", "8", "-n", "50000", "-b"]),
        form: Form::Perftest,
        column: 4,
        convert: |millions| millions,
        unit: "M/s",
        more: true,
        wanted: ">= 0.25",
    },
    Row {
        name: "ib_write_bw, 8 B, one direction",
        run: verbs("ib_write_bw", &["-s", "8", "-n", "50000"]),
        form: Form::Perftest,
        column: 4,
        convert: |millions| millions,
        unit: "M/s",
        more: true,
        wanted: "",
    },
];

/// Measures, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    begin("device", options, file)?;
    let env = setup::ensure()?;
    workspace::build(&["-p bf-emu -p bf-emu-preload"])?;
    let before = load();
    println!("load averages {before}");
    let mut rows = Vec::new();
    println!("{}", table::head(columns::DEVICE));
    let mut add = |name: &str, measured: f64, unit: &str, wanted: &str| {
        let row = json!({ "name": name, "measured": measured, "unit": unit, "wanted": wanted });
        println!("{}", table::line(columns::DEVICE, &row)?);
        rows.push(row);
        anyhow::Ok(())
    };
    for row in ROWS {
        add(row.name, best(&env, row)?, row.unit, row.wanted)?;
    }
    add(
        "4 busy pairs on all cores, longest round trip",
        longest_gap(&env)? / 1000.0,
        "ms",
        "<= 100",
    )?;
    let report = json!({
        "schema": 2,
        "load_before": before,
        "load_after": load(),
        "rows": Value::from(rows),
    });
    finish(file, &report, columns::DEVICE)
}

/// The machine's load averages over 1, 5 and 15 minutes.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn best(env: &setup::Env, row: &Row) -> Result<f64> {
    let mut best: Option<f64> = None;
    for _ in 0..ROUNDS {
        let device = cluster(2)?;
        let output = Pair::start(env, &device, &row.run)?.finish()?;
        let printed = number(&output, row.form, row.column)
            .with_context(|| format!("{} printed no line of results:\n{output}", row.name))?;
        let measured = (row.convert)(printed);
        best = Some(match best {
            Some(best) if row.more => best.max(measured),
            Some(best) => best.min(measured),
            None => measured,
        });
    }
    best.context("no rounds")
}

/// The longest round trip of a message in us while four pairs are busy. The best of the rounds counts: the load of
/// other processes is not the device's.
fn longest_gap(env: &setup::Env) -> Result<f64> {
    const RUN: Run = Run {
        crowded: true,
        ..verbs("ib_write_lat", EIGHT)
    };
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let device = cluster(2)?;
        let pairs: Vec<Pair> = (0..PAIRS)
            .map(|_| Pair::start(env, &device, &RUN))
            .collect::<Result<_>>()?;
        let mut longest: f64 = 0.0;
        for pair in pairs {
            let output = pair.finish()?;
            let half = number(&output, Form::Perftest, 3)
                .with_context(|| format!("no line of results:\n{output}"))?;
            longest = longest.max(2.0 * half);
        }
        best = best.min(longest);
    }
    Ok(best)
}

/// Both running ends of a program.
struct Pair {
    server: Running,
    client: Running,
    again: Command,
}

impl Pair {
    fn start(env: &setup::Env, device: &Cluster, run: &Run) -> Result<Self> {
        let port = port::free()?;
        let server = Running::spawn(&mut end(env, device, run, "node0.host", port))?;
        let mut again = end(env, device, run, "node1.host", port);
        again.arg("127.0.0.1");
        let client = Running::spawn(&mut again)?;
        Ok(Self {
            server,
            client,
            again,
        })
    }

    /// Waits for both ends and returns the client's output.
    fn finish(self) -> Result<String> {
        let Self {
            server,
            client,
            mut again,
        } = self;
        let mut done: Done = client.wait(LIMIT)?;
        // The server needs a moment to listen; until then the client's connection is refused.
        for _ in 0..TRIES {
            if done.ok() || done.timed_out {
                break;
            }
            std::thread::sleep(BETWEEN_TRIES);
            done = Running::spawn(&mut again)?.wait(LIMIT)?;
        }
        if !done.ok() {
            bail!("`{}`: {}\n{}", shown(&again), done.verdict(), done.output);
        }
        let served = server.wait(LIMIT)?;
        if !served.ok() {
            bail!(
                "the server of `{}`: {}\n{}",
                shown(&again),
                served.verdict(),
                served.output
            );
        }
        Ok(done.output)
    }
}

fn end(env: &setup::Env, device: &Cluster, run: &Run, function: &str, port: u16) -> Command {
    let program = match run.transports {
        Some(_) => env.ucx_tools_dir.join(run.program),
        None => run.program.into(),
    };
    let mut command = if run.transports == Some(CMA) {
        Command::new(program)
    } else {
        device.command_with(&["--mode", run.mode], function, program)
    };
    if let Some(cpu) = run.cpu(function) {
        command = pinned(&command, cpu);
    }
    command.args(run.options).args(["-p", &port.to_string()]);
    match run.transports {
        None => {
            command.args(["-F", "-d", "mlx5_0"]).envs(env.for_verbs());
        }
        Some(transports) => {
            command.envs(env.for_ucx()).env("UCX_TLS", transports);
            if transports != CMA {
                command.env("UCX_NET_DEVICES", "mlx5_0:1");
            }
        }
    }
    command
}

/// A column of a program's result line.
fn number(output: &str, form: Form, column: usize) -> Option<f64> {
    let numbers = |text: &str| -> Vec<f64> {
        let words = text.split_whitespace();
        words.map_while(|word| word.parse().ok()).collect()
    };
    // perftest prints the deviation of an interrupted run as "-nan", after the columns that are read here.
    let line = output.lines().find_map(|line| match form {
        Form::Perftest => Some(numbers(line)).filter(|numbers| numbers.len() >= 5),
        Form::Ucx => Some(numbers(line.strip_prefix("Final:")?)),
    })?;
    line.get(column).copied().filter(|number| *number > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores() {
        assert_eq!(parse_cpus("\t0-2,7\n"), [0, 1, 2, 7]);
        assert_eq!(parse_cpus("\t5"), [5]);
        assert_eq!(parse_cpus(""), [] as [usize; 0]);
    }

    #[test]
    fn numbers_are_read() {
        let perftest = " #bytes #iterations t_min[usec] t_max[usec] t_typical[usec]\n\
                        Conflicting CPU frequency values detected: 2.0 != 3.0\n\
                         8       20000          5.38           43.44        5.54     \t5.62 -nan 6.88 18.73\n";
        assert_eq!(number(perftest, Form::Perftest, 4), Some(5.54));
        assert_eq!(number(perftest, Form::Perftest, 3), Some(43.44));
        assert_eq!(number("no numbers\n1 2 3\n", Form::Perftest, 4), None);
        let bandwidth = " 8          100000           0.00               0.87   \t\t   0.113873\n";
        assert_eq!(number(bandwidth, Form::Perftest, 4), Some(0.113_873));
        let ucx = "+---\nFinal:                 20000      7.868    17.858    25.430        0.43       0.30\n";
        assert_eq!(number(ucx, Form::Ucx, 1), Some(7.868));
        assert_eq!(number("Final: none", Form::Ucx, 1), None);
    }
}
