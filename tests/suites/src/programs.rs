//! Programs of others with results that they check themselves, on stock MPI and UCC, while the service processes execute
//! their collectives: the HPC Challenge, the tests of MUMPS, the Intel MPI Benchmarks, OSU's benchmarks, Fourier transforms by
//! FFTW, and the tests of mpi4py. [`measure`] times them with any execution of their collectives.

use super::device::Testbed;
use super::ucc::job::{Backend, Launcher, RANKS, Site, variable};
use super::ucc::programs::compile_mpi_with;
use super::{Case, Outcome, World};
use anyhow::{Context, Result, bail, ensure};
use dev_setup::{self as setup, tree};
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;
use testbed::place::Place;
use testbed::process;

/// Bound of a hang, for one job of four polling ranks and two services on two cores.
const LIMIT: Duration = Duration::from_secs(240);
const SCHEME: &str = "xgvmi";
/// Name of the single test that replaces those of Open MPI if the packages are not available.
const NO_PACKAGES: &str = "stock UCC of the testing suite";

/// Arithmetics of MUMPS and their inputs.
const MUMPS: &[(&str, &str)] = &[
    ("ssimpletest", "input_simpletest_real"),
    ("dsimpletest", "input_simpletest_real"),
    ("csimpletest", "input_simpletest_cmplx"),
    ("zsimpletest", "input_simpletest_cmplx"),
];

/// Ways of `tests/programs/mpi_fft.c`, the lines of each, and the fewest calls of ranks that the services complete: of pencils,
/// 288 calls of each rank transpose among several ranks.
const FOURIER: &[(&str, usize, u64)] = &[("fftw", 5, 1), ("pencils", 15, 4 * 288)];
/// Timed transforms of each grid.
const FOURIER_ROUNDS: &str = "2";
/// Timed transforms of the grids that are measured, and these grids' places in the program: halves of a transposition have
/// blocks of about 47 KiB and 240 KiB.
const FOURIER_MEASURED: (&str, [&str; 2]) = ("5", ["0", "4"]);

/// Modules of mpi4py's tests: blocking, non-blocking and persistent collectives of buffers, of vectors, of Python's objects, on
/// graphs of neighbours and between groups.
const PYTHON: &[&str] = &[
    "test_cco_buf",
    "test_cco_nb_buf",
    "test_cco_pr_buf",
    "test_cco_vec",
    "test_cco_nb_vec",
    "test_cco_pr_vec",
    "test_cco_obj",
    "test_cco_ngh_buf",
    "test_cco_pr_ngh_buf",
    "test_cco_ngh_obj",
    "test_cco_buf_inter",
    "test_cco_vec_inter",
    "test_cco_obj_inter",
];

/// Benchmarks of each program of the Intel MPI Benchmarks: each prints a table with a row per length.
const INTEL: &[(&str, &str)] = &[
    (
        "IMB-MPI1",
        "PingPong Sendrecv Exchange Allreduce Reduce Reduce_scatter Allgather Allgatherv Scatter Scatterv Gather Gatherv \
         Alltoall Alltoallv Bcast Barrier",
    ),
    (
        "IMB-NBC",
        "Ialltoall Ialltoallv Iallgather Iallgatherv Iallreduce Ibcast Igather Igatherv Ireduce Ireduce_scatter Iscatter \
         Iscatterv",
    ),
    (
        "IMB-RMA",
        "Unidir_put Unidir_get All_put_all All_get_all Accumulate",
    ),
];
/// Repetitions of each length: ranks that poll share the cores.
const INTEL_OPTIONS: &str = "-npmin 4 -iter 4 -iter_policy off -time 2";
/// Lengths of which the services get no export, and one.
const LENGTHS: [&str; 3] = ["8", "4096", "65536"];
/// Measured benchmarks: blocking ones, because MPICH passes no others to UCC.
const INTEL_MEASURED: (&str, &str) = ("IMB-MPI1", "Allreduce Alltoallv");

/// OSU's benchmarks of a built directory, with the extra columns of the table.
const OSU: &[&str] = &[
    "osu_alltoallv",
    "osu_ialltoallv",
    "osu_allreduce",
    "osu_iallreduce",
    "osu_bcast",
];
/// Options of OSU's benchmarks, and the number of their lengths.
const OSU_OPTIONS: (&str, usize) = ("-c -m 1024:131072 -i 5 -x 1", 8);

/// Rows and columns of the HPC Challenge's matrices.
const HPCC_SIZE: u32 = 480;

/// Settings of stock UCC for the tuned row of the table: all blocks of an alltoallv are under way at once, and reductions go
/// around a ring, in place of UCC's defaults.
const TUNED: [(&str, &str); 2] = [
    ("UCC_TL_UCP_ALLTOALLV_PAIRWISE_NUM_POSTS", "0"),
    ("UCC_TL_UCP_TUNE", "allreduce:@ring:inf"),
];

const YIELD: (&str, &str) = ("UCC_TL_XGVMI_WAIT", "yield");

/// How the collectives of a program are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executor {
    /// MPI's own algorithms.
    Mpi,
    /// Stock UCC on the hosts.
    Ucc,
    /// The same, with settings for these programs.
    UccTuned,
    /// The service processes.
    Offload,
}

/// A result of a program.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The program and its part.
    pub program: String,
    /// Bytes of a message, or elements.
    pub size: u64,
    /// Unit of the value: of time, or of a rate.
    pub unit: &'static str,
    /// The value.
    pub value: f64,
    /// Processor time of the part on the hosts, or else of the whole job.
    pub host_cpu_s: f64,
    /// Part of the communication that computation hides, where the program overlaps them.
    pub overlap_percent: Option<f64>,
}

/// Programs that [`measure`] runs.
pub const MEASURED: [&str; 4] = ["fft", "hpcc", "mumps", "imb"];

/// Runs one of [`MEASURED`], checks its results, and returns its figures.
///
/// # Errors
/// The program is not available, it fails, or one of its results is wrong.
pub fn measure(site: &Site<'_>, executor: Executor, program: &str) -> Result<Vec<Figure>> {
    let run = Run { site, executor };
    match program {
        "fft" => {
            let (rounds, grids) = FOURIER_MEASURED;
            let mut figures = run.fourier(&["fftw", rounds, grids[1]])?.1;
            for grid in grids {
                figures.extend(run.fourier(&["pencils", rounds, grid])?.1);
            }
            Ok(figures)
        }
        "hpcc" => run.hpcc(),
        "mumps" => run.mumps(MUMPS[1].0, MUMPS[1].1),
        "imb" => {
            let (program, benchmarks) = INTEL_MEASURED;
            run.intel(&setup::intel_benchmarks()?.join(program), benchmarks)
        }
        other => bail!("no program '{other}'; there are {}", MEASURED.join(", ")),
    }
}

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let site = tree::ucc().and_then(|tree| {
        let place = Place::new(&tree.root, &world.dir, &world.env.cache)?;
        Site::new(world, tree, place)
    });
    let site = match site {
        Ok(site) => site,
        Err(error) => return Ok(vec![skipped(NO_PACKAGES, &error)]),
    };
    let run = Run {
        site: &site,
        executor: Executor::Offload,
    };
    let mut cases = Vec::new();
    if world.wants(NO_PACKAGES) {
        cases.push(Case::of(NO_PACKAGES, Ok(())));
    }
    if world.wants("hpcc") {
        cases.push(Case::of("hpcc", run.hpcc().map(drop)));
    }
    for (program, input) in MUMPS.iter().filter(|(name, _)| world.wants(name)) {
        cases.push(Case::of(*program, run.mumps(program, input).map(drop)));
    }
    for (how, lines, least) in FOURIER.iter().filter(|(name, ..)| world.wants(name)) {
        let test = || {
            let (completed, figures) = run.fourier(&[how, FOURIER_ROUNDS])?;
            ensure!(
                figures.len() == *lines && completed >= *least,
                "{} rows of {lines}, {completed} calls of {least}",
                figures.len()
            );
            Ok(())
        };
        cases.push(Case::of(*how, test()));
    }
    for module in PYTHON.iter().filter(|name| world.wants(name)) {
        cases.push(match setup::mpi4py() {
            Ok(tests) => Case::of(*module, run.python(&tests, module)),
            Err(error) => skipped(module, &error),
        });
    }
    for (program, benchmarks) in INTEL.iter().filter(|(name, _)| world.wants(name)) {
        cases.push(match setup::intel_benchmarks() {
            Ok(dir) => Case::of(
                *program,
                run.intel(&dir.join(program), benchmarks).map(drop),
            ),
            Err(error) => skipped(program, &error),
        });
    }
    for program in OSU.iter().filter(|name| world.wants(name)) {
        cases.push(match setup::osu_benchmarks() {
            Ok(dir) => Case::of(*program, run.osu(&dir, program)),
            Err(error) => skipped(program, &error),
        });
    }
    Ok(cases)
}

fn skipped(name: &str, error: &anyhow::Error) -> Case {
    Case {
        name: name.to_owned(),
        outcome: Outcome::Skipped(format!("{error:#}")),
    }
}

/// Output of a job.
struct Done {
    said: String,
    /// Calls of ranks that the services have completed; 0 if there are none.
    completed: u64,
    /// Processor time of all ranks, their ends included.
    host_cpu_s: f64,
}

/// Runs programs with one execution of their collectives.
struct Run<'a> {
    site: &'a Site<'a>,
    executor: Executor,
}

impl Run<'_> {
    /// Runs a line of the shell as each rank: `before`, and the timed program. If services execute the collectives, they must
    /// have completed some.
    fn job(
        &self,
        launcher: Launcher,
        libraries: &[String],
        (before, program): (&str, &str),
    ) -> Result<Done> {
        const MARK: &str = "host processor time";
        let services = match self.executor {
            Executor::Offload => Some(self.site.services(SCHEME, &[])?),
            _ => None,
        };
        let own = match &services {
            Some(_) => None,
            None => Some(Testbed::new(self.site.world)?),
        };
        let where_and_how = match (&services, &own, self.executor) {
            (Some(services), ..) => (&services.testbed, Backend::Offload(services)),
            (_, Some(testbed), Executor::Mpi) => (testbed, Backend::Mpi),
            (_, Some(testbed), _) => (testbed, Backend::Ucc),
            (None, None, _) => bail!("no device"),
        };
        let mut set = String::new();
        if !libraries.is_empty() {
            set = format!(
                "export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:{}; ",
                libraries.join(":")
            );
        }
        let line = format!("{set}{before}TIMEFORMAT='{MARK} %U %S'; time {program}");
        let mut command = self.site.job(
            where_and_how,
            launcher,
            &["/usr/bin/bash", "-c", &line],
            |_| match (self.executor, launcher) {
                (Executor::UccTuned, _) => TUNED.into_iter().map(variable).collect(),
                // Its ranks keep the cores, which the service processes share here.
                (Executor::Offload, Launcher::Mpich) => vec![variable(YIELD)],
                _ => Vec::new(),
            },
        );
        let done = process::run(&mut command, LIMIT)?;
        ensure!(
            done.ok(),
            "{}\n{}\n{}",
            process::shown(&command),
            done.verdict(),
            done.output
        );
        let completed = services.map_or(Ok(0), |services| services.completed())?;
        ensure!(
            completed > 0 || self.executor != Executor::Offload,
            "the services completed no call:\n{}",
            done.output
        );
        let times = done.output.lines().filter_map(|line| line.split_once(MARK));
        let times: Vec<f64> = times
            .map(|(_, rest)| {
                rest.split_whitespace()
                    .map_while(|word| word.parse::<f64>().ok())
                    .sum()
            })
            .collect();
        ensure!(
            times.len() as u64 == RANKS,
            "{} ranks of {RANKS} print their processor time:\n{}",
            times.len(),
            done.output
        );
        Ok(Done {
            completed,
            host_cpu_s: times.iter().sum(),
            said: done.output,
        })
    }

    /// Linear equations, transposition, random access, Fourier transform: each compares its results.
    fn hpcc(&self) -> Result<Vec<Figure>> {
        const INPUT: &str = "hpccinf.txt";
        const OUTPUT: &str = "hpccoutf.txt";
        /// Parallel parts, with the line that each prints about its results.
        const RIGHT: &[&str] = &[
            "Success=1",
            "Finished      1 tests with the following results:",
            "0 tests completed and failed residual checks",
            "0 tests skipped because of illegal input values",
        ];
        /// Parallel parts whose rates are figures.
        const RATES: &[(&str, &str, &str)] = &[
            ("hpcc HPL", "HPL_Tflops", "Tflop/s"),
            ("hpcc PTRANS", "PTRANS_GBs", "GB/s"),
            ("hpcc MPIFFT", "MPIFFT_Gflops", "Gflop/s"),
        ];
        let tools = setup::applications()?;
        let dir = self.site.world.dir.join("hpcc");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let input = HPCC_INPUT.replace("SIZE", &HPCC_SIZE.to_string());
        fs::write(dir.join(INPUT), input).context(INPUT)?;
        let program = tools.bin.join("hpcc").display().to_string();
        let before = format!("cd {} && ", dir.display());
        let libraries = libraries(&tools);
        let done = self.job(Launcher::OpenMpi, &libraries, (&before, &program))?;
        let said = fs::read_to_string(dir.join(OUTPUT)).context(OUTPUT)?;
        for right in RIGHT {
            ensure!(said.contains(right), "no '{right}':\n{said}");
        }
        // Both algorithms, on all processes together and on one.
        let found = said.matches("Found 0 errors in ").count();
        let of_access = said.matches("errors in ").count();
        ensure!(
            found == of_access && found == 4,
            "{found} of {of_access} checks of random access are right:\n{said}"
        );
        let wrong = ["FAILED", "failed)", "Failed"];
        let wrong = wrong.iter().find(|word| said.contains(**word));
        ensure!(wrong.is_none(), "{wrong:?}:\n{said}");
        residuals(&said)?;
        let figures = RATES.iter().map(|(program, name, unit)| {
            Ok(Figure {
                program: (*program).to_owned(),
                size: HPCC_SIZE.into(),
                unit,
                value: summary(&said, name)?,
                host_cpu_s: done.host_cpu_s,
                overlap_percent: None,
            })
        });
        figures.collect()
    }

    /// A sparse system of equations, whose solution is 1, 2, 3, 4, 5.
    fn mumps(&self, program: &str, input: &str) -> Result<Vec<Figure>> {
        const SOLUTION: [f64; 5] = [1.0, 2.0, 3.0, 4.0, 5.0];
        let tools = setup::applications()?;
        let dir = tools.root.join("usr/lib/mumps");
        let dir = dir.display();
        let line = format!("{dir}/{program} < {dir}/{input}");
        let done = self.job(Launcher::OpenMpi, &libraries(&tools), ("", &line))?;
        let said = &done.said;
        let (_, solution) = said
            .rsplit_once("Solution is")
            .with_context(|| format!("no solution:\n{said}"))?;
        let solution = solution.split("Entering").next().unwrap_or_default();
        // A complex number is `(real,imaginary)`.
        let is_complex = solution.contains('(');
        let apart = |c: char| c.is_whitespace() || "(),".contains(c);
        let numbers = solution.split(apart).filter_map(|word| word.parse().ok());
        let numbers: Vec<f64> = numbers.collect();
        let expect: Vec<f64> = match is_complex {
            true => SOLUTION.iter().flat_map(|real| [*real, 0.0]).collect(),
            false => SOLUTION.to_vec(),
        };
        let is_near = |(found, expect): (&f64, &f64)| (found - expect).abs() < 1e-4;
        ensure!(
            numbers.len() >= expect.len() && numbers.iter().zip(&expect).all(is_near),
            "{numbers:?} is not {expect:?}:\n{said}"
        );
        let times = said
            .lines()
            .filter(|line| line.to_ascii_lowercase().contains("elapsed time"));
        let times: Vec<f64> = times
            .filter_map(|line| line.rsplit('=').next()?.trim().parse().ok())
            .collect();
        ensure!(!times.is_empty(), "no elapsed time:\n{said}");
        Ok(vec![Figure {
            program: format!("mumps {program}"),
            size: SOLUTION.len() as u64,
            unit: "us",
            value: times.iter().sum::<f64>() * 1e6,
            host_cpu_s: done.host_cpu_s,
            overlap_percent: None,
        }])
    }

    /// Waves have their spectrum, and come back from it. Returns the number of calls that the services have completed, too.
    fn fourier(&self, words: &[&str]) -> Result<(u64, Vec<Figure>)> {
        let tools = setup::applications()?;
        let mut options: Vec<OsString> =
            vec!["-isystem".into(), tools.root.join("usr/include").into()];
        for library in ["libfftw3_mpi.so.3", "libfftw3.so.3"] {
            options.push(tools.library(library)?.into());
        }
        options.push("-lm".into());
        let program = compile_mpi_with(self.site, "mpi_fft", &options)?;
        let line = format!("{program} {}", words.join(" "));
        let done = self.job(Launcher::OpenMpi, &libraries(&tools), ("", &line))?;
        let rows = done
            .said
            .lines()
            .filter(|line| line.starts_with("{\"how\""));
        let rows: Vec<Value> = rows.map(serde_json::from_str).collect::<Result<_, _>>()?;
        let are_verified = rows.iter().all(|row| {
            row["verified_bytes"]
                .as_u64()
                .is_some_and(|bytes| bytes > 0)
        });
        ensure!(are_verified && !rows.is_empty(), "{}", done.said);
        let figures = rows.iter().map(|row| transform(row, &rows));
        Ok((done.completed, figures.collect::<Result<_>>()?))
    }

    /// Each rank passes all tests of a module.
    fn python(&self, tests: &setup::Mpi4py, module: &str) -> Result<()> {
        let dirs = tests.libraries.iter().map(|dir| dir.display().to_string());
        let usr = tests.root.join("usr");
        let before = format!(
            "export PYTHONHOME={usr} PYTHONPATH={packages} PYTHONDONTWRITEBYTECODE=1 MPI4PY_MPIABI=openmpi \
             MPI4PY_LIBMPI=libmpi.so.40; ",
            usr = usr.display(),
            packages = tests.packages.display(),
        );
        let program = format!(
            "{usr}/bin/{name} {tests}/main.py --no-builddir -i '{module}\\.py'",
            usr = usr.display(),
            name = setup::Mpi4py::PYTHON,
            tests = tests.tests.display(),
        );
        let dirs: Vec<String> = dirs.collect();
        let said = self
            .job(Launcher::OpenMpi, &dirs, (&before, &program))?
            .said;
        let of = |start: &str| said.lines().filter(|line| line.starts_with(start)).count() as u64;
        ensure!(
            of("OK") == RANKS && of("Ran ") == RANKS && of("Ran 0 tests") == 0,
            "not all ranks pass:\n{said}"
        );
        Ok(())
    }

    /// Each benchmark prints its whole table. Its figures are the average times of all ranks.
    fn intel(&self, program: &Path, benchmarks: &str) -> Result<Vec<Figure>> {
        // The namespaces have this directory, and perhaps not that of the user's programs.
        let name = program.file_name().context("a program")?;
        let copy = self.site.world.dir.join(name);
        fs::copy(program, &copy).with_context(|| program.display().to_string())?;
        let lengths = self.site.world.dir.join("imb-lengths");
        fs::write(&lengths, LENGTHS.join("\n")).with_context(|| lengths.display().to_string())?;
        // Only rank 0 prints. Its tables do not go to the launcher, which mixes them with the lines of other ranks.
        let printed = self.site.world.dir.join("imb-printed");
        let line = format!(
            "{} {INTEL_OPTIONS} -msglen {} {benchmarks} > {}.$PMI_RANK",
            copy.display(),
            lengths.display(),
            printed.display()
        );
        let done = self.job(Launcher::Mpich, &[], ("", &line))?;
        let printed = printed.with_extension("0");
        let said = fs::read_to_string(&printed).with_context(|| printed.display().to_string())?;
        fs::remove_file(&printed).with_context(|| printed.display().to_string())?;
        let mut tables = said.split("# Benchmarking ").skip(1);
        let mut figures = Vec::new();
        for benchmark in benchmarks.split_whitespace() {
            let table = tables.find(|table| table.split_whitespace().next() == Some(benchmark));
            let table = table.with_context(|| format!("no table of {benchmark}:\n{said}"))?;
            let numbers = |line: &str| -> Vec<f64> {
                let words = line.split_whitespace();
                words.map_while(|word| word.parse().ok()).collect()
            };
            let rows: Vec<Vec<f64>> = table
                .lines()
                .map(numbers)
                .filter(|row| row.len() > 1)
                .collect();
            let expect = match benchmark {
                "Barrier" => 1,
                _ => LENGTHS.len(),
            };
            ensure!(
                rows.len() >= expect,
                "{benchmark} has {} rows:\n{table}",
                rows.len()
            );
            ensure!(
                table.contains("#processes = 4") || table.contains("#processes = 2"),
                "{benchmark} did not run on all processes:\n{table}"
            );
            // Bytes, repetitions, least, greatest and average time.
            for line in table.lines().filter(|line| numbers(line).len() == 5) {
                let size = line.split_whitespace().next().unwrap_or_default();
                let size = size.parse().with_context(|| line.to_owned())?;
                if size > 0 {
                    figures.push(Figure {
                        program: format!("{} {benchmark}", name.to_string_lossy()),
                        size,
                        unit: "us",
                        value: numbers(line)[4],
                        host_cpu_s: done.host_cpu_s,
                        overlap_percent: None,
                    });
                }
            }
        }
        let is_wrong = |line: &&str| line.contains("rror") || line.contains("invalid");
        let wrong: Vec<&str> = said.lines().filter(is_wrong).collect();
        ensure!(wrong.is_empty(), "{wrong:?}\n{said}");
        ensure!(
            said.contains("# All processes entering MPI_Finalize"),
            "not at its end:\n{said}"
        );
        Ok(figures)
    }

    /// OSU's own validation passes at each length.
    fn osu(&self, dir: &Path, program: &str) -> Result<()> {
        let file = setup::found_below(dir, program)?;
        let copy = self.site.world.dir.join(format!("built-{program}"));
        fs::copy(&file, &copy).with_context(|| file.display().to_string())?;
        let (options, lengths) = OSU_OPTIONS;
        let line = format!("{} {options}", copy.display());
        let done = self.job(Launcher::OpenMpi, &[], ("", &line))?;
        let rows = done
            .said
            .lines()
            .filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
        let right = rows
            .filter(|line| line.trim_end().ends_with("Pass"))
            .count();
        ensure!(
            right == lengths,
            "{right} of {lengths} lengths are right:\n{}",
            done.said
        );
        Ok(())
    }
}

/// The value of a name in hpcc's summary.
fn summary(said: &str, name: &str) -> Result<f64> {
    let mut values = said.lines().filter_map(|line| {
        let (found, value) = line.split_once('=')?;
        (found == name).then(|| value.trim().parse().ok())?
    });
    values
        .next()
        .with_context(|| format!("no {name} in:\n{said}"))
}

/// Compares hpcc's errors with its limits. The error of its transform, which it does not compare itself, has the limit of its
/// transform on one process: relative to the machine's precision and the logarithm of the length, the limit of all residuals.
fn residuals(said: &str) -> Result<()> {
    const LIMIT: f64 = 16.0;
    let length = summary(said, "MPIFFT_N")?;
    let scaled = summary(said, "MPIFFT_maxErr")? / (f64::EPSILON / 2.0) / length.ln();
    let found = [
        ("MPIFFT_maxErr", scaled),
        ("PTRANS_residual", summary(said, "PTRANS_residual")?),
    ];
    for (name, value) in found {
        ensure!(
            (0.0..LIMIT).contains(&value),
            "{name} is {value} times its unit, the limit is {LIMIT}:\n{said}"
        );
    }
    let hpl = said.lines().filter(|line| line.starts_with("||Ax-b||"));
    let hpl: Vec<f64> = hpl
        .filter_map(|line| {
            line.split('=')
                .nth(1)?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .collect();
    ensure!(
        !hpl.is_empty() && hpl.iter().all(|value| (0.0..LIMIT).contains(value)),
        "residuals of HPL: {hpl:?}, the limit is {LIMIT}:\n{said}"
    );
    Ok(())
}

/// The figure of a row of `tests/programs/mpi_fft.c`. What overlap hides is the time in calls of MPI that it saves beside the
/// blocking calls of the same grid.
fn transform(row: &Value, rows: &[Value]) -> Result<Figure> {
    let number =
        |row: &Value, key: &str| row[key].as_f64().with_context(|| format!("{row}: {key}"));
    let how = row["how"].as_str().context("how")?;
    let blocking = rows
        .iter()
        .find(|other| other["how"] == "MPI_Alltoallv" && other["grid"] == row["grid"]);
    let overlap_percent = match blocking {
        Some(blocking) if how == "overlap" => {
            let saved = 1.0 - number(row, "calls_us")? / number(blocking, "calls_us")?;
            Some(100.0 * saved.max(0.0))
        }
        _ => None,
    };
    let grid = row["grid"].as_array().context("grid")?;
    Ok(Figure {
        program: format!("mpi_fft {how}"),
        size: grid.iter().filter_map(Value::as_u64).product(),
        unit: "us",
        value: number(row, "us")?,
        host_cpu_s: number(row, "cpu_us")? / 1e6 * RANKS as f64,
        overlap_percent,
    })
}

/// Library directories of the unpacked programs.
fn libraries(tools: &setup::Judges) -> Vec<String> {
    let dirs = tools.libraries.iter();
    dirs.map(|dir| dir.display().to_string()).collect()
}

/// A small matrix on a grid of two by two processes: hpcc reads the first word of each line, and two heads.
const HPCC_INPUT: &str = "equations of a small matrix
two by two processes
none
8  messages go to hpcc's own file
1  size of the matrix:
SIZE
1  size of the blocks:
40
0  places of processes by rows
1  grid, its rows and columns:
2
2
16.0  residuals below this are right
1  kind of factorization:
2
1  recursion ends at
4  columns,
1  with so many panels:
2
1  kind of recursive factorization:
1
1  kind of broadcast:
1
1  depth of the look-ahead:
0
2  swap by both ways,
64  from so many columns on
0  L is transposed
0  U is transposed
1  equilibration
8  alignment of doubles
-
0  more matrices to transpose

0  more blocks to transpose

";
