//! `cargo xtask test`: runs every check of the project in phases, each with a time limit, and prints one summary line.

mod counts;
pub(crate) mod documents;
mod libtest;
mod report;
mod schedule;
mod skips;
mod tally;

use crate::link::Link;
use crate::setup::{self, Env};
use crate::{fuzz, matrix, patch, process, suites, workspace};
use anyhow::{Context, Result, bail, ensure};
use schedule::Start;
use std::ffi::OsString;
use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tally::{Case, Tally};

const HELP: &str = "\
Usage: cargo xtask test [--quick] [--ci] [PHASE...] [-- FILTER...]

Runs all phases, or the named ones. Each starts when those that it needs have ended, several at the same time:
  setup    packages and stock UCX (see cargo xtask setup)
  fmt      rustfmt changes nothing
  build    release build for the following phases
  tidy     project rules that no other tool checks
  clippy   debug build of all targets, without a warning
  unit     unit and integration tests; the FFI crates against the installed headers
  suites   a sample of cargo xtask suites
  matrix   the library in two stock UCX versions and the distribution's, at each entry point
  system   stock programs and the device's rules on the emulated device
  counts   instructions of hot paths of pool and service, if valgrind is installed
  dist     the packages, checked and unpacked (see cargo xtask dist)
  docs     documentation tests, and no warning of rustdoc about the libraries; the book, if mdbook is installed
  aarch64  for the DPU's processors: the library in UCX links, pool and alias map run, layouts agree (all: cargo xtask suites
           aarch64)

Then, one after the other:
  patches  the matrix with a patched UCX, if a tree is given (see cargo xtask patch)
  demo     the demo and that of storage, in quick form

Only if named:
  rustdoc  no warning of rustdoc about libraries and programs, private items of programs included
  fuzz     the fuzz targets compile (see cargo xtask fuzz, which runs them)
  loom     models of atomic protocols, in every order of their steps; for changes of these (docs/SPECIFICATION.md)
  soak     20,000 killed processes on the emulated device (XGVMI_CRASH_KILLS sets another number), and 1,000 jobs of the
           service processes, of which one in 20 loses a rank (XGVMI_SOAK_JOBS), and 1,000,000 messages of loops that poll
           (XGVMI_POLL_MESSAGES); takes hours; needs a build

  --quick  without build, system, suites, matrix, counts, patches, dist, aarch64 and demo
  FILTER   run only tests whose name contains one of these words
  --ci     no colours or progress (also if CI is set or the output is not a terminal)

Logs are in target/test/. The last line reads: N passed, N failed, N skipped.";

/// A phase and its time limit: the time on two cores without a cache, multiplied by two or more.
struct Phase {
    name: &'static str,
    limit: Duration,
    in_quick: bool,
    start: Start,
    run: fn(&Phase, &World) -> Result<Vec<Case>>,
}

const fn alone(
    name: &'static str,
    limit_s: u64,
    run: fn(&Phase, &World) -> Result<Vec<Case>>,
) -> Phase {
    Phase {
        name,
        limit: Duration::from_secs(limit_s),
        in_quick: false,
        start: Start::Alone,
        run,
    }
}

const fn after(
    phases: &'static [&'static str],
    name: &'static str,
    limit_s: u64,
    run: fn(&Phase, &World) -> Result<Vec<Case>>,
) -> Phase {
    Phase {
        start: Start::After(phases),
        ..alone(name, limit_s, run)
    }
}

/// A phase of the quick run, too.
const fn quick(phase: Phase) -> Phase {
    Phase {
        in_quick: true,
        ..phase
    }
}

/// Of the phases that may start, the first in this order does: the longest of those that wait for a build, so that no core
/// waits for one of them at the end. Counts wait for phase clippy too, so that they do not take the place of a longer phase.
/// Those that build with the profile of tests start one after
/// the other, because cargo's lock would hold up the next one until its limit.
const PHASES: &[Phase] = &[
    quick(after(&[], "setup", 900, set_up)),
    quick(after(&[], "fmt", 60, format)),
    after(&[], "build", 1200, build),
    quick(after(&[], "tidy", 300, tidiness)),
    quick(after(&["tidy"], "clippy", 1500, clippy)),
    after(&["setup", "build", "clippy"], "system", 1000, system),
    after(&["setup", "build"], "suites", 1000, judges),
    quick(after(&["setup", "clippy"], "unit", 900, unit)),
    after(&["setup", "build", "clippy"], "counts", 600, counts),
    after(&["setup", "build", "clippy"], "matrix", 1000, matrix_cells),
    quick(after(
        &["setup", "clippy", "unit"],
        "docs",
        900,
        documents::run,
    )),
    after(&["setup", "build", "clippy"], "dist", 600, packages),
    after(
        &["setup", "build", "clippy"],
        "aarch64",
        900,
        other_processor,
    ),
    alone("patches", 600, patches),
    alone("demo", 180, demo),
];

/// Run only on request: each compiles much for itself, or takes hours. A kill of the soak takes about 40 ms on two idle cores.
const ON_REQUEST: &[Phase] = &[
    alone("rustdoc", 900, documents::with_programs),
    alone("fuzz", 900, fuzz_targets),
    alone("loom", 900, loom),
    alone("soak", 4 * 3600, soak),
];

/// State that the phases share.
struct World {
    /// Absent if the set-up has failed or has not ended yet.
    env: OnceLock<Env>,
    logs: PathBuf,
    filters: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let split = arguments.iter().position(|argument| argument == "--");
    let (options, filters) = match split {
        Some(at) => (&arguments[..at], arguments[at + 1..].to_vec()),
        None => (&arguments[..], Vec::new()),
    };
    let Some(chosen) = choose(options)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let logs = workspace::target_dir().join("test");
    // Logs of phases that do not run now would look current.
    let _ = fs::remove_dir_all(&logs);
    fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let world = World {
        env: OnceLock::new(),
        logs,
        filters,
    };
    let tally = Mutex::new(Tally::default());
    workspace::build_whole();
    schedule::run(&chosen, &world, &tally);
    let mut tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut accepted = skips::read(&workspace::root().join("tests/skips.toml"))?;
    accepted.retain(|skip| skip.is_due(skips::is_set));
    // A filtered run omits most entries of the list.
    let complete = world.filters.is_empty();
    let phases: Vec<&str> = chosen
        .iter()
        .filter(|_| complete)
        .map(|phase| phase.name)
        .collect();
    tally.judge_skips(&accepted, &phases);
    tally.print();
    Ok(if tally.clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Shows the current phases, on a terminal only. The line stays.
fn show_progress(phase: &str) {
    if std::io::stderr().is_terminal() {
        let what = if phase.is_empty() { "" } else { " ..." };
        eprint!("\r\x1b[K{phase}{what}");
    }
}

/// The requested phases, in order; `None` for a help request.
fn choose(arguments: &[String]) -> Result<Option<Vec<&'static Phase>>> {
    let (mut quick, mut names) = (false, Vec::new());
    for argument in arguments {
        match argument.as_str() {
            "--quick" => quick = true,
            // The output is the same for users and CI; the flag exists for compatibility with common usage.
            "--ci" => {}
            "-h" | "--help" => return Ok(None),
            name if PHASES
                .iter()
                .chain(ON_REQUEST)
                .any(|phase| phase.name == name) =>
            {
                names.push(name);
            }
            other => bail!("no phase or option '{other}'; try: cargo xtask test --help"),
        }
    }
    // All other phases need the set-up, which costs nothing if it exists already.
    let alone = names
        .iter()
        .all(|name| ["fmt", "tidy", "clippy", "rustdoc"].contains(name));
    if !names.is_empty() && !alone && !names.contains(&"setup") {
        names.push("setup");
    }
    let wanted = |phase: &&Phase| {
        (names.is_empty() || names.contains(&phase.name)) && (phase.in_quick || !quick)
    };
    let requested = ON_REQUEST
        .iter()
        .filter(|phase| names.contains(&phase.name));
    Ok(Some(
        PHASES.iter().filter(wanted).chain(requested).collect(),
    ))
}

/// This program. Phase clippy replaces its file.
fn own_command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("cargo-xtask");
    command
}

fn set_up(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    // A separate process, so that the limit covers every wait of the set-up.
    let case = single(phase, world, own_command().arg("setup"))?;
    // This call is fast: the process has completed the set-up or reported the error.
    if let Ok(env) = setup::ensure_offline() {
        // Only this phase sets it.
        let _ = world.env.set(env);
    }
    Ok(vec![case])
}

fn format(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    Ok(vec![single(
        phase,
        world,
        cargo().args(["fmt", "--all", "--check", "--", "--color=never"]),
    )?])
}

/// The project rules, each a test of `tests/rules`.
pub(crate) fn rules() -> Result<Command> {
    let mut command = linting_cargo()?;
    command.args(["test", "--workspace", "--test", "rules"]);
    Ok(command)
}

fn tidiness(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    cases(phase, world, rules()?.args(["--", "--show-output"]))
}

/// Cargo with clippy as the compiler of the workspace's crates. The tests run what it compiles, so that no crate is checked
/// a second time.
fn linting_cargo() -> Result<Command> {
    static DRIVER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let driver = DRIVER.get_or_init(|| {
        let mut command = Command::new("rustc");
        let limit = Duration::from_secs(60);
        let sysroot = process::stdout(command.args(["--print", "sysroot"]), limit).ok()?;
        let driver = Path::new(sysroot.trim()).join("bin/clippy-driver");
        driver.exists().then_some(driver)
    });
    let driver = driver
        .as_ref()
        .context("no clippy-driver beside rustc: rustup component add clippy")?;
    let mut command = cargo();
    let setting = format!(
        "build.rustc-workspace-wrapper={:?}",
        driver.display().to_string()
    );
    command.args(["--config", &setting]);
    Ok(command)
}

const ALL_TARGETS: [&str; 2] = ["--workspace", "--all-targets"];

/// Compiles all targets, which must give no warning.
fn clippy(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    // The second build: without its device the pool is purely safe code, which the first build cannot check.
    let builds: [(&str, &[&str]); 2] = [
        ("clippy", &ALL_TARGETS),
        (
            "clippy of the pool without a device",
            &["-p", "xgvmi-pool", "--no-default-features"],
        ),
    ];
    let mut cases = Vec::new();
    for (name, what) in builds {
        let done = world.run(phase, linting_cargo()?.arg("build").args(what))?;
        cases.push(match (done.ok(), warnings(&done.output)) {
            (true, None) => Case::pass(name),
            (true, Some(warnings)) => Case::fail(name, warnings),
            (false, _) => {
                let end = tally::tail(&done.output, 60);
                Case::fail(name, format!("{}\n{end}", done.verdict()))
            }
        });
    }
    Ok(cases)
}

/// The first lines of warnings of the workspace's crates. Cargo repeats those of crates that it does not compile again.
fn warnings(output: &str) -> Option<String> {
    let is_warning = |line: &&str| line.starts_with("warning: ");
    let is_sum = |line: &str| line.starts_with("warning: `") && line.contains(" generated ");
    let lines = || output.lines().skip_while(|line| !is_warning(line));
    let first: Vec<&str> = lines().take(60).collect();
    lines().any(is_sum).then(|| first.join("\n"))
}

fn unit(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    // Does nothing after phase clippy.
    let built = world.run(phase, linting_cargo()?.arg("build").args(ALL_TARGETS))?;
    if !built.ok() {
        let end = tally::tail(&built.output, 60);
        let detail = format!("{}\n{end}", built.verdict());
        return Ok(vec![Case::fail("build of the tests", detail)]);
    }
    // Without this word cargo would build the examples again, which phase build has and clippy checks.
    let mut command = tests_of_crates(world, "--tests")?;
    // Its test would build it once more, as a package alone.
    let library = workspace::target_dir().join("debug/libbfemu_preload.so");
    command.env("XGVMI_PRELOAD_BUILT", library);
    let tests = selected(phase, world, &mut command)?;
    at_least_one(phase, world, tests)
}

/// The command that runs all tests of one kind but the system tests.
fn tests_of_crates(world: &World, kind: &str) -> Result<Command> {
    let mut command = linting_cargo()?;
    command.args(["test", "--no-fail-fast", "--workspace", kind]);
    command.args(["--exclude", "xgvmi-tests"]);
    if let Ok(env) = world.env() {
        point_at_ucx(&mut command, env);
    }
    // Without the compilers, the tests of device code skip.
    for (name, dirs) in &setup::riscv().unwrap_or_default() {
        prepend(&mut command, name, dirs);
    }
    command.args(["--", "--show-output"]).args(&world.filters);
    Ok(command)
}

/// Adds directories to the front of a command's search path.
fn prepend(command: &mut Command, name: &str, dirs: &str) {
    let own = command.get_envs().find(|(own, _)| *own == name);
    let inherited = || std::env::var_os(name);
    let path = match own {
        Some((_, value)) => value.map(ToOwned::to_owned),
        None => inherited(),
    };
    let mut joined = OsString::from(dirs);
    if let Some(path) = path {
        joined.push(":");
        joined.push(path);
    }
    command.env(name, joined);
}

/// Paths of stock UCX for tests that compare with it; without them these tests skip.
fn point_at_ucx(command: &mut Command, env: &Env) {
    command.env("XGVMI_VENV", &env.venv);
    command.env("XGVMI_UCX_INCLUDE", &env.ucx_include);
    command.env("XGVMI_UCX_LIBRARY", env.ucx_lib_dir.join("libucp.so.0"));
    command.envs(env.for_verbs()).envs(env.for_cc());
}

/// The fuzz targets are a workspace of their own, which no other phase compiles.
fn fuzz_targets(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    Ok(vec![single(phase, world, &mut fuzz::check())?])
}

fn build(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    let ran = single(phase, world, cargo().args(["build", "--release"]))?;
    // Built separately, because the simulated device is a feature that would change the libraries.
    let others = Case {
        name: "programs of counts and of the DPA".to_owned(),
        ..single(
            phase,
            world,
            cargo()
                .args(["build", "--release", "-p", "pool-bench"])
                .args(["--bin", "pool-instructions"])
                .args(["-p", "flexio", "--examples"]),
        )?
    };
    Ok(vec![ran, others])
}

fn counts(_phase: &Phase, world: &World) -> Result<Vec<Case>> {
    counts::cases(world.env()?, &world.filters)
}

/// The loom models need other build flags, so they use a separate directory and evict no other build. Filters do not
/// apply to them: the other tests of the crates cannot run in such a build and must not be selected.
fn loom(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    let mut command = cargo();
    command
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", workspace::target_dir().join("loom"));
    command.args([
        "test",
        "--release",
        "-p",
        "xgvmi-pool",
        "-p",
        "xgvmi-models",
    ]);
    command.args(["--no-default-features", "--lib", "models"]);
    cases(phase, world, &mut command)
}

fn system(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    let mut command = system_tests(world)?;
    let cases = cases(phase, world, command.arg("--").args(&world.filters));
    // A run stopped at its limit leaves its state directories.
    testbed::cluster::sweep();
    cases
}

/// Runs the randomized crash test and the service processes' soak for a long time. The system phase contains short runs.
fn soak(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    let mut command = system_tests(world)?;
    for (variable, long) in [
        ("XGVMI_CRASH_KILLS", "20000"),
        ("XGVMI_SOAK_JOBS", "1000"),
        ("XGVMI_POLL_MESSAGES", "1000000"),
    ] {
        if std::env::var_os(variable).is_none() {
            command.env(variable, long);
        }
    }
    command.arg("--");
    if world.filters.is_empty() {
        command.args(["crash_kills", "offload_soak", "next_poll"]);
    }
    let cases = cases(phase, world, command.args(&world.filters));
    testbed::cluster::sweep();
    cases
}

/// The command that runs the tests over the emulated device.
fn system_tests(world: &World) -> Result<Command> {
    // The phase alone must not start programs of an older build.
    workspace::build(&[""])?;
    let mut command = suites::adversary::tests_on_the_device(linting_cargo()?, world.env()?)?;
    // The rules are a phase of their own.
    command.args(["--test", "wire"]);
    if std::env::var_os("XGVMI_DOCA_SAMPLES").is_some() {
        // Without them the test of the samples' own build skips.
        for (name, dirs) in setup::meson().unwrap_or_default() {
            prepend(&mut command, name, &dirs);
        }
    }
    Ok(command)
}

/// Runs in this process, because each started program has its own limit.
fn judges(_phase: &Phase, world: &World) -> Result<Vec<Case>> {
    world.env()?;
    Ok(suites::sample()?.into_iter().map(of_suite).collect())
}

fn of_suite(case: suites::Case) -> Case {
    match case.outcome {
        suites::Outcome::Passed => Case::pass(case.name),
        suites::Outcome::Failed(detail) => Case::fail(case.name, detail),
        suites::Outcome::Skipped(reason) => Case::skip(case.name, reason),
    }
}

/// The oldest UCX and the newest. The other phases run on the demo's version between them, and `cargo xtask matrix` runs all.
const MATRIX_VERSIONS: [&str; 2] = ["1.18.1", "1.23.0"];

/// The version that also runs as a copy that is bound inside, and the cells of that run.
const SYMBOLIC_SAMPLE: (&str, [&str; 5]) = (
    "1.18.1",
    [
        " preload export and import",
        " preload numbers in xgvmi stat",
        " preload announced keys",
        " preload D7",
        " preload D8",
    ],
);

/// The cells, and a sample of them with a UCX that is bound inside.
fn matrix_cells(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    let mut cases = cells(phase, world)?;
    let mut command = own_command();
    let (version, only) = SYMBOLIC_SAMPLE;
    command.args(["matrix", "--binding", "symbolic", "--link", "infiniband"]);
    command.args(["--ucx", version]);
    let wanted = |only: &&str| {
        world.filters.is_empty() || world.filters.iter().any(|filter| only.contains(filter))
    };
    let only: Vec<&str> = only.into_iter().filter(wanted).collect();
    if !only.is_empty() {
        command.args(only.iter().flat_map(|only| ["--only", only]));
        cases.extend(cases_of(phase, world, &mut command)?);
    }
    Ok(cases)
}

fn cells(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    world.env()?;
    let mut command = own_command();
    command.args(["matrix", "--binding", "default"]);
    for version in MATRIX_VERSIONS.into_iter().chain([matrix::DISTRIBUTION]) {
        command.args(["--ucx", version]);
    }
    for filter in &world.filters {
        command.args(["--only", filter]);
    }
    cases_of(phase, world, &mut command)
}

/// Runs the matrix and returns its cells.
fn cases_of(phase: &Phase, world: &World, command: &mut Command) -> Result<Vec<Case>> {
    let ran = single(phase, world, command)?;
    let cells = matrix::read(&matrix::report()).unwrap_or_default();
    let mut cases: Vec<Case> = cells
        .into_iter()
        .map(|cell| {
            let over = match cell.link {
                Link::Infiniband => String::new(),
                link => format!(" over {}", link.name()),
            };
            let binding = if cell.symbolic { " bound inside" } else { "" };
            let name = format!(
                "UCX {}{binding}{over}, {}: {}",
                cell.ucx, cell.entry_point, cell.case
            );
            match cell.failure {
                None => Case::pass(name),
                Some(detail) => Case::fail(name, detail),
            }
        })
        .collect();
    // The cells contain the failures unless the run did not reach them.
    if cases.is_empty() || ran.is_failure() && !cases.iter().any(Case::is_failure) {
        cases.push(ran);
    }
    Ok(cases)
}

/// Needs a UCX tree and its build, which no package provides.
fn patches(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    if patch::named_by(patch::ENV_SOURCE)?.is_none() {
        let reason = format!("{} is not set", patch::ENV_SOURCE);
        return Ok(vec![Case::skip("a patched UCX", reason)]);
    }
    world.env()?;
    let mut command = own_command();
    Ok(vec![single(phase, world, command.arg("patch"))?])
}

fn packages(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    world.env()?;
    let mut command = own_command();
    let mut cases = vec![single(phase, world, command.args(["dist", "--fast"]))?];
    if let Err(error) = setup::cmake() {
        cases.push(Case::skip("a CMake project", format!("{error:#}")));
    }
    Ok(cases)
}

/// The set-up fetches compiler, C library and emulator.
fn other_processor(_phase: &Phase, world: &World) -> Result<Vec<Case>> {
    world.env()?;
    if let Err(error) = setup::aarch64::ensure() {
        return Ok(vec![Case::skip(
            "programs for aarch64",
            format!("{error:#}"),
        )]);
    }
    Ok(suites::aarch64::sample()?
        .into_iter()
        .map(of_suite)
        .collect())
}

fn demo(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    world.env()?;
    let path = workspace::target_dir().join("demo/report.json");
    // An old report must not count for this run.
    let _ = fs::remove_file(&path);
    let mut command = own_command();
    let ran = single(phase, world, command.args(["demo", "--quick"]))?;
    let mut cases = vec![ran];
    if !cases[0].is_failure() {
        cases.extend(report::judge(&path)?);
    }
    // The oldest supported UCX, which differs most, and Ethernet ports.
    let mut command = own_command();
    command.args(["demo", "--quick", "--link", "ethernet"]);
    command.args(["--ucx", "1.18.1", "--sizes", "16K,1M"]);
    let mut oldest = single(phase, world, &mut command)?;
    "demo with UCX 1.18.1 over Ethernet".clone_into(&mut oldest.name);
    cases.push(oldest);
    let mut command = own_command();
    let mut storage = single(phase, world, command.args(["demo", "storage", "--quick"]))?;
    "demo of storage".clone_into(&mut storage.name);
    if !storage.is_failure() {
        storage_report(&workspace::target_dir().join("demo-storage/report.json"))?;
    }
    cases.push(storage);
    Ok(cases)
}

/// Fails unless the demo of storage has verified bytes, and no byte was wrong.
fn storage_report(path: &Path) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let report: serde_json::Value = serde_json::from_str(&text)?;
    let number = |name: &str| report[name].as_u64();
    let is_right = number("mismatches") == Some(0) && number("verified_bytes") > Some(16 << 20);
    let is_rebuilt = number("rebuilt") > Some(0);
    let of_layout = &report["layouts"][0];
    let is_replaced = of_layout["layout"] == "4+2" && of_layout["replaced"] == 2;
    ensure!(
        is_right && is_rebuilt && is_replaced,
        "{}: {text}",
        path.display()
    );
    Ok(())
}

impl World {
    fn env(&self) -> Result<&Env> {
        self.env
            .get()
            .context("not run, because the set-up is not complete")
    }

    /// Runs `command` to its end or to the phase's limit and logs its output.
    fn run(&self, phase: &Phase, command: &mut Command) -> Result<process::Done> {
        command.current_dir(workspace::root());
        command.env(workspace::BUILD_WHOLE, "1");
        let done = process::run(command, phase.limit)?;
        let path = self.logs.join(format!("{}.log", phase.name));
        let mut log = fs::File::options().create(true).append(true).open(&path)?;
        write!(log, "{}\n{}", process::shown(command), done.output)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(done)
    }
}

fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.env("CARGO_TERM_COLOR", "never");
    command
}

/// A phase that passes or fails as a whole.
fn single(phase: &Phase, world: &World, command: &mut Command) -> Result<Case> {
    let done = world.run(phase, command)?;
    Ok(if done.ok() {
        Case::pass(phase.name)
    } else {
        Case::fail(
            phase.name,
            format!("{}\n{}", done.verdict(), tally::tail(&done.output, 60)),
        )
    })
}

/// A phase that runs cargo test and counts each test.
fn cases(phase: &Phase, world: &World, command: &mut Command) -> Result<Vec<Case>> {
    at_least_one(phase, world, selected(phase, world, command)?)
}

/// Fails without a case: a wrong filter must not look like success.
fn at_least_one(phase: &Phase, world: &World, cases: Vec<Case>) -> Result<Vec<Case>> {
    let log = world.logs.join(format!("{}.log", phase.name));
    ensure!(!cases.is_empty(), "no test ran; see {}", log.display());
    Ok(cases)
}

/// Runs cargo test, and returns a case for each test that the filters select.
fn selected(phase: &Phase, world: &World, command: &mut Command) -> Result<Vec<Case>> {
    let done = world.run(phase, command)?;
    let mut cases = libtest::parse(&done.output);
    let told = cases.iter().any(Case::is_failure);
    if !done.ok() && !told {
        // The command did not compile, crashed between tests, or was stopped.
        let detail = format!("{}\n{}", done.verdict(), tally::tail(&done.output, 60));
        cases.push(Case::fail(phase.name, detail));
    } else if done.timed_out {
        cases.push(Case::fail(phase.name, done.verdict()));
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_the_workspace_are_found() {
        let note = "warning: the following packages contain code that will be rejected: nom\n";
        assert_eq!(warnings(note), None);
        let unused =
            "warning: unused variable: `a`\n --> a.rs\nwarning: `a` (lib) generated 1 warning";
        let output = format!("   Compiling a v0.1.0\n{unused}\n    Finished");
        assert!(warnings(&output).is_some_and(|found| found.starts_with(unused)));
    }

    #[test]
    fn arguments_choose_phases_in_order() {
        let check = |arguments: &[&str], expect: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
            let chosen = choose(&arguments).unwrap().unwrap();
            let names: Vec<&str> = chosen.iter().map(|phase| phase.name).collect();
            assert_eq!(names, expect, "{arguments:?}");
        };
        check(
            &["--quick"],
            &["setup", "fmt", "tidy", "clippy", "unit", "docs"],
        );
        check(&["tidy", "fmt"], &["fmt", "tidy"]);
        check(&["system", "--ci"], &["setup", "system"]);
        check(&["soak", "build"], &["setup", "build", "soak"]);
        check(&["loom"], &["setup", "loom"]);
        assert_eq!(choose(&[]).unwrap().unwrap().len(), PHASES.len());
        assert!(choose(&["--help".to_owned()]).unwrap().is_none());
        assert!(choose(&["sytem".to_owned()]).is_err());
    }

    #[test]
    fn help_names_every_phase() {
        for phase in PHASES.iter().chain(ON_REQUEST) {
            assert!(
                HELP.contains(&format!("\n  {} ", phase.name)),
                "{}",
                phase.name
            );
        }
    }
}
