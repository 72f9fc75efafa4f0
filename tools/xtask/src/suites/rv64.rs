//! The processor of DPA programs: own programs by stock compilers under qemu-riscv64 as well, random instructions on ckb-vm as
//! well, and riscv-tests.

use super::{Case, Outcome, World};
use crate::{process, setup, workspace};
use anyhow::{Context as _, Result, ensure};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The part that `cargo xtask test` runs.
pub(super) const SAMPLE: &[&str] = &["program"];

/// Programs of doca/rv64/tests/programs.
const PROGRAMS: [&str; 6] = [
    "sieve",
    "numbers",
    "atomics",
    "structures",
    "library",
    "forms",
];

/// Random instructions, and those of a sample.
const INSTRUCTIONS: u64 = 10_000_000;

/// A user's directory with the built programs of riscv-tests.
const RISCV_TESTS: &str = "XGVMI_RISCV_TESTS";

const COMPILE: Duration = Duration::from_secs(60);
const RUN: Duration = Duration::from_secs(120);
const BUILD: Duration = Duration::from_secs(900);

const FULL: &str = "-march=rv64imac_zba_zbb_zbs_zicsr_zifencei";
/// The C library is built for it.
const PLAIN: &str = "-march=rv64imac";

/// A compiler with options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compiler {
    name: &'static str,
    program: &'static str,
    options: &'static [&'static str],
}

/// What all programs of the benchmark are built with.
pub(crate) const GCC: Compiler = gcc("gcc -O2", &["-O2", PLAIN]);

const COMPILERS: [Compiler; 4] = [
    GCC,
    gcc("gcc -O2 with bit manipulation", &["-O2", FULL]),
    gcc("gcc -O0 with bit manipulation", &["-O0", FULL]),
    Compiler {
        name: "clang -O2 with bit manipulation",
        program: "clang-19",
        options: &[
            "--target=riscv64-unknown-elf",
            "-fuse-ld=lld-19",
            "-O2",
            FULL,
        ],
    },
];

const fn gcc(name: &'static str, options: &'static [&'static str]) -> Compiler {
    Compiler {
        name,
        program: "riscv64-unknown-elf-gcc",
        options,
    }
}

/// Compilers, an emulator and the interpreter.
pub(crate) struct Tools {
    /// Directories to search before the usual ones.
    paths: Vec<(&'static str, String)>,
    interpreter: PathBuf,
    /// Directory of built programs.
    dir: PathBuf,
}

impl Tools {
    /// Ensures the packages and builds the interpreter.
    pub(crate) fn ensure() -> Result<Self> {
        let paths = setup::riscv()?;
        let mut build = Command::new("cargo");
        build.args([
            "build",
            "--release",
            "--quiet",
            "-p",
            "rv64",
            "--example",
            "rv64_user",
        ]);
        run(build.current_dir(workspace::root()), BUILD)?;
        let target = workspace::target_dir();
        let dir = target.join("rv64");
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let interpreter = target.join("release/examples/rv64_user");
        Ok(Self {
            paths,
            interpreter,
            dir,
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, dirs) in &self.paths {
            let mut path = OsString::from(dirs);
            if let Some(own) = std::env::var_os(name) {
                path.push(":");
                path.push(own);
            }
            command.env(name, path);
        }
        command
    }

    /// Builds a program.
    pub(crate) fn compile(
        &self,
        program: &str,
        compiler: &Compiler,
        more: &[&str],
    ) -> Result<PathBuf> {
        let sources = workspace::root().join("doca/rv64/tests/programs");
        let ending = if program == "forms" { "S" } else { "c" };
        let words = format!("{program} {} {}", compiler.name, more.join(" "));
        let file = self.dir.join(words.trim().replace([' ', '='], "_"));
        let mut command = self.command(compiler.program);
        command.args(compiler.options).args(more);
        command.args([
            "-mabi=lp64",
            "-mcmodel=medany",
            "-static",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-T",
        ]);
        command.arg(sources.join("link.ld")).arg("-o").arg(&file);
        command
            .arg(sources.join("start.S"))
            .arg(sources.join(format!("{program}.{ending}")));
        match (program, compiler.program) {
            ("library", _) => command.args(["-nostartfiles", "--specs=picolibc.specs"]),
            (_, "clang-19") => command
                .args(["-nostdlib", "-ffreestanding"])
                .arg(sources.join("memory.c")),
            _ => command
                .args(["-nostdlib", "-ffreestanding"])
                .arg(sources.join("memory.c"))
                .arg("-lgcc"),
        };
        run(&mut command, COMPILE)?;
        Ok(file)
    }

    /// A run of a program in the interpreter.
    pub(crate) fn interpreter(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.interpreter);
        command.arg(program);
        command
    }

    /// A run of a program in the emulator of processes.
    pub(crate) fn emulator(&self, program: &Path) -> Command {
        let mut command = self.command("qemu-riscv64");
        command.arg(program);
        command
    }
}

/// All tests that are wanted.
pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let mut cases = programs(world)?;
    let random = format!("random instructions: {INSTRUCTIONS} on ckb-vm as well");
    if world.wants(&random) {
        cases.push(Case::of(random, on_ckb()));
    }
    const NAME: &str = "riscv-tests";
    if world.wants(NAME) {
        cases.push(riscv_tests(NAME));
    }
    Ok(cases)
}

/// Each program by each compiler.
fn programs(world: &World) -> Result<Vec<Case>> {
    let all = COMPILERS
        .iter()
        .flat_map(|compiler| PROGRAMS.map(|program| (program, compiler)));
    // The C library is one for gcc, and assembly is the same for all options.
    let is_built = |(program, compiler): &(&str, &Compiler)| match *program {
        "library" => compiler.name == GCC.name,
        "forms" => compiler.options.contains(&"-O2") && compiler.options.contains(&FULL),
        _ => true,
    };
    let named = all.filter(is_built).map(|(program, compiler)| {
        let name = format!(
            "program {program} by {}: registers, memory and output as under qemu-riscv64",
            compiler.name
        );
        (name, program, compiler)
    });
    let wanted: Vec<_> = named.filter(|(name, ..)| world.wants(name)).collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let tools = Tools::ensure()?;
    let cases = wanted.into_iter();
    Ok(cases
        .map(|(name, program, compiler)| Case::of(name, compare(&tools, program, compiler)))
        .collect())
}

/// Each program writes its registers and a checksum of its memory at its end.
fn compare(tools: &Tools, program: &str, compiler: &Compiler) -> Result<()> {
    let file = tools.compile(program, compiler, &[])?;
    let ours = output(&mut tools.interpreter(&file))?;
    let theirs = output(&mut tools.emulator(&file))?;
    ensure!(
        theirs.1.len() >= 264,
        "qemu-riscv64: exit code {}, {} bytes",
        theirs.0,
        theirs.1.len()
    );
    ensure!(
        ours.0 == theirs.0,
        "exit code {} here, {} under qemu-riscv64",
        ours.0,
        theirs.0
    );
    let differs = ours
        .1
        .iter()
        .zip(&theirs.1)
        .position(|(ours, theirs)| ours != theirs);
    let at =
        differs.or((ours.1.len() != theirs.1.len()).then_some(ours.1.len().min(theirs.1.len())));
    if let Some(at) = at {
        // The last 264 bytes are 32 registers and the checksum.
        let registers = theirs.1.len() - 264;
        anyhow::bail!(
            "{}: byte {at} of the output differs; registers begin at {registers}",
            file.display()
        );
    }
    Ok(())
}

/// Exit code and output.
fn output(command: &mut Command) -> Result<(i32, Vec<u8>)> {
    let shown = process::shown(command);
    let mut limited = Command::new("timeout");
    limited
        .arg(RUN.as_secs().to_string())
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            limited.env(name, value);
        }
    }
    let done = limited.output().with_context(|| shown.clone())?;
    let code = done
        .status
        .code()
        .with_context(|| format!("{shown}: {}", done.status))?;
    let error = String::from_utf8_lossy(&done.stderr);
    ensure!(error.is_empty(), "{shown}: {error}");
    Ok((code, done.stdout))
}

/// The judge is a workspace of its own.
fn on_ckb() -> Result<()> {
    let mut command = Command::new("cargo");
    command.args([
        "run",
        "--release",
        "--quiet",
        "--",
        &INSTRUCTIONS.to_string(),
    ]);
    command.env("CARGO_TARGET_DIR", workspace::target_dir().join("ckb"));
    command.current_dir(workspace::root().join("doca/rv64/tests/ckb"));
    run(&mut command, BUILD)
}

fn riscv_tests(name: &str) -> Case {
    if std::env::var_os(RISCV_TESTS).is_none_or(|dir| dir.is_empty()) {
        let reason = format!("{RISCV_TESTS} names no directory with built programs");
        return Case {
            name: name.to_owned(),
            outcome: Outcome::Skipped(reason),
        };
    }
    let mut command = Command::new("cargo");
    command.args([
        "test",
        "--release",
        "--quiet",
        "-p",
        "rv64",
        "--test",
        "riscv_tests",
    ]);
    Case::of(name, run(command.current_dir(workspace::root()), BUILD))
}

fn run(command: &mut Command, limit: Duration) -> Result<()> {
    let shown = process::shown(command);
    let done = process::run(command, limit)?;
    ensure!(done.ok(), "`{shown}`: {}\n{}", done.verdict(), done.output);
    Ok(())
}
