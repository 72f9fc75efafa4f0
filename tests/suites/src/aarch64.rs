//! Programs of the DPU's processors: they are linked and checked, their unit tests run under a user-mode emulator, and DPUs of
//! that processor work with hosts of this one on one emulated fabric.

mod files;
mod jobs;
mod services;
mod units;
mod verbs;

use super::{Case, World};
use anyhow::{Context as _, Result, ensure};
use dev_setup::aarch64::{self as tools, Aarch64, TARGET};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::foreign::Foreign;
use testbed::{process, workspace};

pub(super) use jobs::{demo, matrix, packages};
pub(super) use services::run_all as services;
pub(super) use units::run_all as units;
pub(super) use verbs::run_all as verbs;

/// Time limit of a build without a cache on a loaded machine, and of another command of this project.
const LIMIT: Duration = Duration::from_secs(3000);

/// Programs that a program starts, as binfmt_misc would start them.
const STARTER: &str = "libstart_foreign.so";
/// Its variable with the emulator.
const STARTER_EMULATOR: &str = "XGVMI_FOREIGN_EMULATOR";

/// Packages of the libraries and programs that run on a DPU, and of the emulated device.
const PRODUCT: &[&str] = &[
    "uct-plugin",
    "xgvmi-cli",
    "xgvmi-offload",
    "ucc-tl",
    "xgvmi-blk",
    "xgvmi-blk-capi",
    "naaice",
    "xgvmi-naa",
    "bf-emu",
    "bf-emu-preload",
];

/// Packages of this project whose programs are in the Debian packages too.
const PACKAGED: &[&str] = &["osu-mpi", "cost-table", "scale-model", "xgvmi-fio"];

/// The libraries for the host side of DPA programs, which no package contains.
const UNPACKAGED: &str = "doca-libs";

/// Directory of the builds for the processor.
fn target_dir() -> PathBuf {
    workspace::target_dir().join("aarch64")
}

/// Directory of the built programs and libraries.
fn programs() -> PathBuf {
    target_dir().join(TARGET).join("debug")
}

/// Runs cargo for the processor. Returns its output.
fn cargo(tools: &Aarch64, words: &[&str], packages: &[&str]) -> Result<String> {
    to_end(&mut command(tools, words, packages), LIMIT)
}

/// A command of cargo for the processor.
fn command(tools: &Aarch64, words: &[&str], packages: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root());
    command.arg(words[0]);
    command.args(["--locked", "--target", TARGET]);
    for package in packages {
        command.args(["-p", package]);
    }
    command.args(&words[1..]);
    command.envs(tools.for_cargo(&target_dir()));
    command
}

/// Runs a command that must succeed. Returns its output.
fn to_end(command: &mut Command, limit: Duration) -> Result<String> {
    let shown = process::shown(command);
    let done = process::run(command, limit).with_context(|| shown.clone())?;
    ensure!(done.ok(), "`{shown}`: {}\n{}", done.verdict(), done.output);
    Ok(done.output)
}

/// Makes the library that starts programs. Returns its path.
fn starter(tools: &Aarch64) -> Result<PathBuf> {
    let output = programs().join(STARTER);
    let shared = ["-shared", "-fPIC"].map(str::to_owned);
    let variables = tools.for_cc();
    compile(&tools.cc(), "start_foreign", &shared, &variables, &output)?;
    Ok(output)
}

/// Compiles a C program of the tests.
fn compile(
    compiler: &Path,
    source: &str,
    options: &[String],
    variables: &[(String, String)],
    output: &Path,
) -> Result<()> {
    let source = workspace::root().join(format!("tests/programs/{source}.c"));
    let mut command = Command::new(compiler);
    command.arg("-O2").arg("-o").arg(output).arg(source);
    command.args(options).envs(variables.iter().cloned());
    to_end(&mut command, LIMIT).map(drop)
}

/// Builds packages, and returns the processor with a stock UCX.
///
/// # Errors
/// Those of the set-up and of the compiler.
pub fn foreign(packages: &[&str], ucx: &dev_setup::versions::Version) -> Result<Foreign> {
    let env = dev_setup::ensure()?;
    let tools = tools::ensure()?;
    cargo(&tools, &["build"], packages)?;
    let ucx = ucx.ensure_for_aarch64(&dev_setup::cache::Cache::open()?, &env)?;
    Ok(Foreign {
        architecture: "aarch64".to_owned(),
        emulator: tools.emulator(),
        libraries: tools.libraries(),
        programs: programs(),
        ucx,
    })
}

/// As [`foreign`], with the program of the matrix.
pub(super) fn for_matrix(ucx: &dev_setup::versions::Version) -> Result<Foreign> {
    let foreign = foreign(&["bf-emu-preload", "uct-plugin"], ucx)?;
    let words = ["build", "--bin", "matrix"];
    cargo(&tools::ensure()?, &words, &["testbed-programs"])?;
    Ok(foreign)
}

/// Builds what the packages contain. Returns its directory and the program that runs its programs.
///
/// # Errors
/// Those of the set-up and of the compiler.
pub fn release() -> Result<(PathBuf, PathBuf)> {
    let tools = tools::ensure()?;
    let packages = [PRODUCT, PACKAGED].concat();
    cargo(&tools, &["build", "--release"], &packages)?;
    Ok((target_dir().join(TARGET).join("release"), tools.runner()))
}

/// Checks the product's files that are in one of these directories of unpacked packages; each must be in one.
///
/// # Errors
/// The first fault.
pub fn check_installed(dirs: &[&Path]) -> Result<()> {
    let tools = tools::ensure()?;
    let packaged = |file: &&files::File| file.package != UNPACKAGED;
    for file in files::FILES.iter().filter(packaged) {
        let found = dirs.iter().find_map(|dir| {
            file.names()
                .map(|name| dir.join(name))
                .find(|path| path.is_file())
        });
        let path = found.with_context(|| format!("{} is in no package", file.name))?;
        files::check(file, &path, &tools).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// What `cargo xtask test` runs: the library in UCX is linked and checked, pool and alias map are tested, and layouts are
/// compared with those of the libraries' headers and the device's manual. The rest is in the suites.
///
/// # Errors
/// Those of the set-up.
pub fn sample() -> Result<Vec<Case>> {
    let tools = tools::ensure()?;
    println!("aarch64: {}", tools.versions()?);
    let mut cases = linked(&tools, &["uct-plugin"], |file| file.package == "uct-plugin");
    cases.extend(units::of(&tools, &["mlx5-prm", "xgvmi-pool"]));
    cases.push(units::layouts(&tools));
    Ok(cases)
}

/// All libraries and programs.
pub(super) fn link(_world: &World) -> Result<Vec<Case>> {
    let tools = tools::ensure()?;
    println!("aarch64: {}", tools.versions()?);
    Ok(linked(&tools, &[PRODUCT, &[UNPACKAGED]].concat(), |_| true))
}

fn linked(tools: &Aarch64, packages: &[&str], wanted: impl Fn(&files::File) -> bool) -> Vec<Case> {
    let built = cargo(tools, &["build"], packages).map(drop);
    let mut cases = vec![Case::of(format!("{} link", packages.join(" ")), built)];
    let chosen = files::FILES.iter().filter(|file| wanted(file));
    cases.extend(chosen.map(|file| {
        let name = format!("{} is as it must be", file.name);
        Case::of(name, files::check(file, &programs().join(file.name), tools))
    }));
    cases
}
