//! Programs by stock compilers: their output, exit code, registers and memory are equal here and under qemu-riscv64.

use anyhow::{Context as _, Result, bail, ensure};
use rv64::{Lines, Program};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const PROGRAMS: [&str; 6] = [
    "sieve",
    "numbers",
    "atomics",
    "structures",
    "library",
    "forms",
];

const FULL: &str = "-march=rv64imac_zba_zbb_zbs_zicsr_zifencei";
/// The C library is built for it.
const PLAIN: &str = "-march=rv64imac";

/// At its end, each program writes 32 registers and a checksum of its memory.
const STATE: usize = 33 * 8;

/// Seconds, of which a run takes less than one.
const LIMIT: &str = "120";

/// A compiler with options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compiler {
    name: &'static str,
    program: &'static str,
    options: &'static [&'static str],
}

/// What the programs of the measurement are built with.
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
    let program = "riscv64-unknown-elf-gcc";
    Compiler {
        name,
        program,
        options,
    }
}

/// All programs by all compilers that can build them.
fn all() -> impl Iterator<Item = (String, &'static str, Compiler)> {
    let pairs = COMPILERS
        .into_iter()
        .flat_map(|compiler| PROGRAMS.map(|program| (program, compiler)));
    let is_built = |(program, compiler): &(&str, Compiler)| match *program {
        "library" => compiler.name == GCC.name,
        "forms" => compiler.options.contains(&FULL) && compiler.options.contains(&"-O2"),
        _ => true,
    };
    pairs
        .filter(is_built)
        .map(|(program, compiler)| (format!("{program} by {}", compiler.name), program, compiler))
}

pub(crate) fn names() -> impl Iterator<Item = String> {
    all().map(|(name, ..)| name)
}

/// Compares the named ones. Writes a line `ok NAME` or `failed NAME: why` for each.
pub(crate) fn compare(dir: &Path, names: &[&str]) -> Result<ExitCode> {
    let known: Vec<_> = all().collect();
    let mut code = ExitCode::SUCCESS;
    for wanted in names {
        let found = known.iter().find(|(name, ..)| name == wanted);
        let (name, program, compiler) =
            found.with_context(|| format!("no comparison '{wanted}'"))?;
        match equal(dir, program, compiler) {
            Ok(()) => println!("ok {name}"),
            Err(error) => {
                println!(
                    "failed {name}: {}",
                    format!("{error:#}").replace('\n', " | ")
                );
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn equal(dir: &Path, program: &str, compiler: &Compiler) -> Result<()> {
    let file = compile(dir, program, compiler, &[])?;
    let ours = output(&mut here(&file, "run")?)?;
    let theirs = output(&mut emulator(&file))?;
    ensure!(
        theirs.1.len() >= STATE,
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
    let shorter = ours.1.len().min(theirs.1.len());
    if let Some(at) = differs.or((ours.1.len() != theirs.1.len()).then_some(shorter)) {
        let registers = theirs.1.len() - STATE;
        bail!(
            "{}: byte {at} of the output differs; registers begin at {registers}",
            file.display()
        );
    }
    lines(&file)
}

/// The source lines of functions are those that binutils finds.
fn lines(file: &Path) -> Result<()> {
    let bytes = fs::read(file)?;
    let program = Program::parse(&bytes)?;
    let table = Lines::parse(&bytes).context("no table of lines")?;
    for name in ["_start", "finish", "main"] {
        let address = program.symbol(name).context(name)?;
        let mut command = Command::new("riscv64-unknown-elf-addr2line");
        command.arg("-e").arg(file).arg(format!("{address:#x}"));
        let theirs = String::from_utf8(output(&mut command)?.1)?;
        let ours = table
            .at(address)
            .with_context(|| format!("no line of {name}"))?;
        let ours = format!("{}:{}", ours.file, ours.line);
        ensure!(
            ours == theirs.trim(),
            "line of {name}: {ours} here, {theirs} by binutils"
        );
    }
    Ok(())
}

/// Builds a program.
pub(crate) fn compile(
    dir: &Path,
    program: &str,
    compiler: &Compiler,
    more: &[&str],
) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let source = sources.join(if program == "forms" {
        "forms.S".to_owned()
    } else {
        format!("{program}.c")
    });
    let file =
        dir.join(format!("{program}-{}{}", compiler.name, more.join("")).replace([' ', '='], "_"));
    let mut command = Command::new(compiler.program);
    command.args(compiler.options).args(more);
    command.args([
        "-mabi=lp64",
        "-mcmodel=medany",
        "-static",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]);
    command
        .arg("-T")
        .arg(sources.join("link.ld"))
        .arg("-o")
        .arg(&file);
    command.arg(sources.join("start.S")).arg(source);
    if program == "library" {
        command.args(["-nostartfiles", "--specs=picolibc.specs"]);
    } else {
        command
            .args(["-nostdlib", "-ffreestanding"])
            .arg(sources.join("memory.c"));
    }
    if compiler.program != "clang-19" {
        command.arg("-lgcc");
    }
    let done = command.output().with_context(|| compiler.program)?;
    let error = String::from_utf8_lossy(&done.stderr);
    ensure!(
        done.status.success(),
        "{command:?}: {}: {error}",
        done.status
    );
    Ok(file)
}

/// A run in the interpreter: `run` or `count`.
pub(crate) fn here(file: &Path, word: &str) -> Result<Command> {
    let mut command = Command::new("timeout");
    command
        .arg(LIMIT)
        .arg(std::env::current_exe()?)
        .arg(word)
        .arg(file);
    Ok(command)
}

/// A run in the emulator of processes.
pub(crate) fn emulator(file: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args([LIMIT, "qemu-riscv64"]).arg(file);
    command
}

/// Exit code and output.
pub(crate) fn output(command: &mut Command) -> Result<(i32, Vec<u8>)> {
    let done = command.output().context("timeout")?;
    let code = done
        .status
        .code()
        .with_context(|| format!("{command:?}: {}", done.status))?;
    let error = String::from_utf8_lossy(&done.stderr);
    ensure!(error.is_empty(), "{command:?}: {error}");
    Ok((code, done.stdout))
}
