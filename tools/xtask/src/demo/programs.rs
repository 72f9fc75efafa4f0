//! `cargo xtask demo programs`: applications and benchmarks of others under stock Open MPI and MPICH on two emulated nodes, with
//! MPI's own collectives, with stock UCC's, with UCC's tuned for these programs, and with the component's on the DPUs.

use super::ucc::names;
use crate::place::Place;
use crate::setup::tree;
use crate::suites::World;
use crate::suites::programs::{self, Executor, Figure};
use crate::suites::ucc::job::Site;
use crate::workspace;
use anyhow::{Context, Result, bail, ensure};
use bench_report::{columns, files, table};
use serde_json::{Value, json};
use std::fs;
use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask demo programs [OPTIONS]

Runs programs that know only MPI, with four ranks on two emulated nodes, and compares their results with their own limits:
  fft    a Fourier transform by FFTW-mpi and by pencils, with blocking, non-blocking and overlapped transpositions
  hpcc   HPL, PTRANS and MPIFFT of the HPC Challenge
  mumps  a sparse system of equations
  imb    Allreduce and Alltoallv of the Intel MPI Benchmarks, under MPICH, which passes blocking calls only
The collectives are MPI's own, stock UCC's on the hosts, stock UCC's with settings for these programs, and the service
processes' (scheme xgvmi). They take turns.

  --rounds N         runs of each program and execution; rows have the medians [default: 3]
  --programs LIST    programs [default: fft,hpcc,mumps,imb]

Writes target/demo-programs/report.json. If the packages or the namespaces are not available, the report names the reason
in 'skipped'. A run takes about 10 minutes.";

/// The emulator's cost profile: the slides' times of the commands.
const PROFILE: &str = "bluefield3";
/// Executions, with their names in the report.
const EXECUTORS: [(&str, Executor); 4] = [
    ("mpi", Executor::Mpi),
    ("ucc", Executor::Ucc),
    ("tuned", Executor::UccTuned),
    ("offload", Executor::Offload),
];

#[derive(Debug, PartialEq, Eq)]
struct Options {
    rounds: usize,
    programs: Vec<&'static str>,
}

impl Options {
    /// `None` for a help request.
    fn parse(arguments: Vec<String>) -> Result<Option<Self>> {
        use lexopt::prelude::{Long, Short, ValueExt as _};
        let mut options = Self {
            rounds: 3,
            programs: programs::MEASURED.to_vec(),
        };
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("rounds") => options.rounds = parser.value()?.parse()?,
                Long("programs") => {
                    let list = parser.value()?.string()?;
                    options.programs = names("program", &programs::MEASURED, &list)?;
                }
                Short('h') | Long("help") => return Ok(None),
                other => bail!(
                    "{}; try: cargo xtask demo programs --help",
                    other.unexpected()
                ),
            }
        }
        ensure!((1..=100).contains(&options.rounds), "--rounds: 1 to 100");
        Ok(Some(options))
    }
}

/// Runs the demo with the arguments after `cargo xtask demo programs`.
pub(super) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(options) = Options::parse(arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let output = workspace::reports_dir("demo-programs");
    // A directory that the user names must not become a skip.
    tree::OtherUcc::given()?;
    // Results of an earlier run must not be reported for this run.
    let _ = fs::remove_dir_all(&output);
    fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;
    let mut world = World::new(Vec::new())?;
    world.profile = Some(PROFILE);
    let site = tree::ucc().and_then(|tree| {
        let place = Place::new(&tree.root, &world.dir, &world.env.cache)?;
        Site::new(&world, tree, place)
    });
    let (rows, skipped) = match site {
        Ok(site) => (measure(&options, &site)?, None),
        Err(error) => (Vec::new(), Some(format!("{error:#}"))),
    };
    println!("{}", table::markdown(columns::PROGRAMS, &rows)?);
    let report = json!({
        "skipped": skipped, "profile": PROFILE, "rounds": options.rounds, "rows": rows,
    });
    files::save(&output.join("report.json"), &report, columns::PROGRAMS)?;
    println!("\nwritten: {}", output.join("report.json").display());
    Ok(ExitCode::SUCCESS)
}

/// The figures of all rounds of an execution.
type Found = Vec<Vec<Figure>>;

fn measure(options: &Options, site: &Site<'_>) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for program in &options.programs {
        let mut found: [Found; EXECUTORS.len()] = Default::default();
        for _ in 0..options.rounds {
            for ((name, executor), found) in EXECUTORS.iter().zip(&mut found) {
                let figures = programs::measure(site, *executor, program);
                found.push(figures.with_context(|| format!("{program} with {name}"))?);
                eprint!(".");
            }
        }
        rows.extend(compared(&found)?);
    }
    eprintln!();
    Ok(rows)
}

/// A row for each figure: medians of all executions. Ratios are of times: a rate is inverted.
fn compared(found: &[Found; EXECUTORS.len()]) -> Result<Vec<Value>> {
    let first = found[0].first().context("no round")?;
    let mut rows = Vec::new();
    for (at, figure) in first.iter().enumerate() {
        let of = |executor: usize, value: fn(&Figure) -> Option<f64>| -> Result<Option<f64>> {
            let rounds = found[executor].iter().map(|round| round.get(at));
            let same =
                |other: &&Figure| (&other.program, other.size) == (&figure.program, figure.size);
            let figures = rounds.map(|other| other.filter(same));
            let figures: Option<Vec<&Figure>> = figures.collect();
            let figures =
                figures.with_context(|| format!("not all runs print {}", figure.program))?;
            Ok(median(figures.into_iter().filter_map(value).collect()))
        };
        let mut row =
            json!({ "program": figure.program, "size": figure.size, "unit": figure.unit });
        let mut values = Vec::new();
        for (executor, (name, _)) in EXECUTORS.iter().enumerate() {
            let value = of(executor, |figure| Some(figure.value))?.context("no value")?;
            let cpu =
                of(executor, |figure| Some(figure.host_cpu_s))?.context("no processor time")?;
            row[name] = value.into();
            row["host_cpu_s"][name] = cpu.into();
            row["overlap_percent"][name] = of(executor, |figure| figure.overlap_percent)?.into();
            let time = if figure.unit.ends_with("/s") {
                1.0 / value
            } else {
                value
            };
            values.push((time, cpu));
        }
        let [mpi, ucc, tuned, ours] = values[..] else {
            bail!("{} executions", values.len());
        };
        for (name, ratio) in [
            ("of_mpi", ours.0 / mpi.0),
            ("of_ucc", ours.0 / ucc.0),
            ("of_tuned", ours.0 / tuned.0),
            ("cpu_of_ucc", ours.1 / ucc.1),
        ] {
            row[name] = ratio.into();
        }
        rows.push(row);
    }
    Ok(rows)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let parse =
            |line: &str| Options::parse(line.split_whitespace().map(str::to_owned).collect());
        assert_eq!(parse("").unwrap().unwrap().rounds, 3);
        assert_eq!(parse("--programs imb").unwrap().unwrap().programs, ["imb"]);
        assert!(parse("--help").unwrap().is_none());
        for bad in ["--rounds 0", "--programs osu", "now"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rows_compare_medians_and_invert_rates() {
        let figure = |unit, value, overlap| Figure {
            program: "p".to_owned(),
            size: 8,
            unit,
            value,
            host_cpu_s: value,
            overlap_percent: overlap,
        };
        let of = |values: [f64; 3]| -> Found {
            values
                .iter()
                .map(|value| {
                    vec![
                        figure("us", *value, Some(*value)),
                        figure("GB/s", *value, None),
                    ]
                })
                .collect()
        };
        let found = [
            of([1.0; 3]),
            of([8.0, 2.0, 4.0]),
            of([2.0; 3]),
            of([1.0; 3]),
        ];
        let rows = compared(&found).unwrap();
        assert_eq!(
            (&rows[0]["ucc"], &rows[0]["of_ucc"]),
            (&json!(4.0), &json!(0.25))
        );
        assert_eq!(
            (&rows[1]["of_ucc"], &rows[1]["cpu_of_ucc"]),
            (&json!(4.0), &json!(0.25))
        );
        assert_eq!(rows[0]["overlap_percent"]["ucc"], 4.0);
        assert!(rows[1]["overlap_percent"]["offload"].is_null());
        let mut fewer = found;
        fewer[3][0].clear();
        assert!(compared(&fewer).is_err());
    }
}
