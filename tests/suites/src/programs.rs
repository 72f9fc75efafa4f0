//! Programs of others with results that they check themselves, on stock MPI and UCC, while the service processes execute
//! their collectives: the HPC Challenge, the tests of MUMPS, the Intel MPI Benchmarks, Fourier transforms by FFTW, and the tests
//! of mpi4py.

use super::ucc::job::{Backend, Launcher, RANKS, Site};
use super::ucc::programs::compile_mpi_with;
use super::{Case, Outcome, World};
use anyhow::{Context, Result, ensure};
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
/// 96 calls of each rank transpose among several ranks.
const FOURIER: &[(&str, usize, u64)] = &[("fftw", 4, 1), ("pencils", 8, 4 * 96)];
/// Transforms of each grid.
const FOURIER_ROUNDS: &str = "2";

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

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let site = tree::ucc().and_then(|tree| {
        let place = Place::new(&tree.root, &world.dir, &world.env.cache)?;
        Site::new(world, tree, place)
    });
    let site = match site {
        Ok(site) => site,
        Err(error) => return Ok(vec![skipped(NO_PACKAGES, &error)]),
    };
    let mut cases = Vec::new();
    if world.wants(NO_PACKAGES) {
        cases.push(Case::of(NO_PACKAGES, Ok(())));
    }
    if world.wants("hpcc") {
        cases.push(Case::of("hpcc", hpcc(&site)));
    }
    for (program, input) in MUMPS.iter().filter(|(name, _)| world.wants(name)) {
        cases.push(Case::of(*program, mumps(&site, program, input)));
    }
    for how in FOURIER.iter().filter(|(name, ..)| world.wants(name)) {
        cases.push(Case::of(how.0, fourier(&site, *how)));
    }
    for module in PYTHON.iter().filter(|name| world.wants(name)) {
        cases.push(match setup::mpi4py() {
            Ok(tests) => Case::of(*module, python(&site, &tests, module)),
            Err(error) => skipped(module, &error),
        });
    }
    for (program, benchmarks) in INTEL.iter().filter(|(name, _)| world.wants(name)) {
        cases.push(match setup::intel_benchmarks() {
            Ok(dir) => Case::of(*program, intel(&site, &dir.join(program), benchmarks)),
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

/// Runs a line of the shell as each rank. The services execute collectives. Returns the output, and the number of calls of
/// ranks that the services have completed.
fn job(
    site: &Site<'_>,
    launcher: Launcher,
    libraries: &[String],
    line: &str,
) -> Result<(String, u64)> {
    let services = site.services(SCHEME, &[])?;
    let mut set = String::new();
    if !libraries.is_empty() {
        set = format!(
            "export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:{}; ",
            libraries.join(":")
        );
    }
    let line = format!("{set}{line}");
    let mut command = site.job(
        (&services.testbed, Backend::Offload(&services)),
        launcher,
        &["/usr/bin/bash", "-c", &line],
        |_| Vec::new(),
    );
    let done = process::run(&mut command, LIMIT)?;
    ensure!(
        done.ok(),
        "{}\n{}\n{}",
        process::shown(&command),
        done.verdict(),
        done.output
    );
    let completed = services.completed()?;
    ensure!(
        completed > 0,
        "the services completed no call:\n{}",
        done.output
    );
    Ok((done.output, completed))
}

/// Linear equations, transposition, random access, Fourier transform: each compares its results.
fn hpcc(site: &Site<'_>) -> Result<()> {
    const INPUT: &str = "hpccinf.txt";
    const OUTPUT: &str = "hpccoutf.txt";
    /// Parallel parts, with the line that each prints about its results.
    const RIGHT: &[&str] = &[
        "Success=1",
        "Finished      1 tests with the following results:",
        "0 tests completed and failed residual checks",
        "0 tests skipped because of illegal input values",
    ];
    let tools = setup::applications()?;
    let dir = site.world.dir.join("hpcc");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    fs::write(dir.join(INPUT), HPCC_INPUT).context(INPUT)?;
    let program = tools.bin.join("hpcc");
    let line = format!("cd {} && exec {}", dir.display(), program.display());
    job(site, Launcher::OpenMpi, &libraries(&tools), &line)?;
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
    Ok(())
}

/// A sparse system of equations, whose solution is 1, 2, 3, 4, 5.
fn mumps(site: &Site<'_>, program: &str, input: &str) -> Result<()> {
    const SOLUTION: [f64; 5] = [1.0, 2.0, 3.0, 4.0, 5.0];
    let tools = setup::applications()?;
    let dir = tools.root.join("usr/lib/mumps");
    let dir = dir.display();
    let line = format!("exec {dir}/{program} < {dir}/{input}");
    let (said, _) = job(site, Launcher::OpenMpi, &libraries(&tools), &line)?;
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
    Ok(())
}

/// Waves have their spectrum, and come back from it.
fn fourier(site: &Site<'_>, (how, lines, least): (&str, usize, u64)) -> Result<()> {
    let tools = setup::applications()?;
    let mut options: Vec<OsString> = vec!["-isystem".into(), tools.root.join("usr/include").into()];
    for library in ["libfftw3_mpi.so.3", "libfftw3.so.3"] {
        options.push(tools.library(library)?.into());
    }
    options.push("-lm".into());
    let program = compile_mpi_with(site, "mpi_fft", &options)?;
    let line = format!("exec {program} {how} {FOURIER_ROUNDS}");
    let (said, completed) = job(site, Launcher::OpenMpi, &libraries(&tools), &line)?;
    let rows = said.lines().filter(|line| line.starts_with("{\"how\""));
    let rows: Vec<Value> = rows.map(serde_json::from_str).collect::<Result<_, _>>()?;
    let are_verified = rows.iter().all(|row| {
        row["verified_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes > 0)
    });
    ensure!(
        rows.len() == lines && are_verified && completed >= least,
        "{} rows of {lines}, {completed} calls of {least}:\n{said}",
        rows.len()
    );
    Ok(())
}

/// Each rank passes all tests of a module.
fn python(site: &Site<'_>, tests: &setup::Mpi4py, module: &str) -> Result<()> {
    let dirs = tests.libraries.iter().map(|dir| dir.display().to_string());
    let usr = tests.root.join("usr");
    let line = format!(
        "export PYTHONHOME={usr} PYTHONPATH={packages} PYTHONDONTWRITEBYTECODE=1 MPI4PY_MPIABI=openmpi \
         MPI4PY_LIBMPI=libmpi.so.40; exec {usr}/bin/{name} {tests}/main.py --no-builddir -i '{module}\\.py'",
        usr = usr.display(),
        packages = tests.packages.display(),
        name = setup::Mpi4py::PYTHON,
        tests = tests.tests.display(),
    );
    let (said, _) = job(site, Launcher::OpenMpi, &dirs.collect::<Vec<_>>(), &line)?;
    let of = |start: &str| said.lines().filter(|line| line.starts_with(start)).count() as u64;
    ensure!(
        of("OK") == RANKS && of("Ran ") == RANKS && of("Ran 0 tests") == 0,
        "not all ranks pass:\n{said}"
    );
    Ok(())
}

/// Each benchmark prints its whole table.
fn intel(site: &Site<'_>, program: &Path, benchmarks: &str) -> Result<()> {
    // The namespaces have this directory, and perhaps not that of the user's programs.
    let name = program.file_name().context("a program")?;
    let copy = site.world.dir.join(name);
    fs::copy(program, &copy).with_context(|| program.display().to_string())?;
    let lengths = site.world.dir.join("imb-lengths");
    fs::write(&lengths, LENGTHS.join("\n")).with_context(|| lengths.display().to_string())?;
    let line = format!(
        "exec {} {INTEL_OPTIONS} -msglen {} {benchmarks}",
        copy.display(),
        lengths.display()
    );
    let (said, _) = job(site, Launcher::Mpich, &[], &line)?;
    let mut tables = said.split("# Benchmarking ").skip(1);
    for benchmark in benchmarks.split_whitespace() {
        let table = tables.find(|table| table.split_whitespace().next() == Some(benchmark));
        let table = table.with_context(|| format!("no table of {benchmark}:\n{said}"))?;
        let is_row = |line: &&str| {
            let mut words = line.split_whitespace();
            let numbers = words.by_ref().map_while(|word| word.parse::<f64>().ok());
            numbers.count() > 1
        };
        let rows = table.lines().filter(is_row).count();
        let expect = match benchmark {
            "Barrier" => 1,
            _ => LENGTHS.len(),
        };
        ensure!(rows >= expect, "{benchmark} has {rows} rows:\n{table}");
        ensure!(
            table.contains("#processes = 4") || table.contains("#processes = 2"),
            "{benchmark} did not run on all processes:\n{table}"
        );
    }
    let is_wrong = |line: &&str| line.contains("rror") || line.contains("invalid");
    let wrong: Vec<&str> = said.lines().filter(is_wrong).collect();
    ensure!(wrong.is_empty(), "{wrong:?}\n{said}");
    ensure!(
        said.contains("# All processes entering MPI_Finalize"),
        "not at its end:\n{said}"
    );
    Ok(())
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
480
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
