//! Compilers, directories and commands of the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compilers of the device, as `DPACC_DEVICE_CC` names them.
pub(crate) const COMPILERS: [&str; 2] = ["clang-19", "riscv64-unknown-elf-gcc"];

/// Runs a test in a new directory with each compiler. Skips the compilers that are not installed.
pub(crate) fn with_each_compiler(test: &str, run: impl Fn(&Bench)) {
    for compiler in COMPILERS {
        with(test, compiler, &run);
    }
}

/// As [`with_each_compiler`], for tests in which the compiler makes no difference.
pub(crate) fn with_gcc(test: &str, run: impl Fn(&Bench)) {
    with(test, COMPILERS[1], run);
}

fn with(test: &str, compiler: &'static str, run: impl Fn(&Bench)) {
    if !is_installed(compiler) || !is_installed("riscv64-unknown-elf-ld") {
        skip(
            test,
            &format!("no {compiler} or no binutils; cargo xtask doctor names the packages"),
        );
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    run(&Bench { dir, compiler });
}

/// Prints the name of a skipped test and the reason.
#[expect(
    clippy::print_stdout,
    reason = "the test run counts the skips by their lines"
)]
pub(crate) fn skip(test: &str, reason: &str) {
    println!("SKIP {test}: {reason}");
}

/// Whether a program is in PATH.
pub(crate) fn is_installed(program: &str) -> bool {
    find(program).is_some()
}

/// The path of a program.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = std::env::split_paths(&path).map(|dir| dir.join(program));
    paths.find(|path| path.is_file())
}

/// The C library of picolibc, which is installed beside gcc, and gcc's own.
pub(crate) fn libraries() -> [PathBuf; 2] {
    let gcc = find(COMPILERS[1]).expect("gcc");
    let prefix = gcc.parent().and_then(Path::parent).expect("a prefix");
    let mut ask = Command::new(&gcc);
    ask.args(["-march=rv64imac", "-mabi=lp64", "-print-libgcc-file-name"]);
    let own = String::from_utf8(succeed(&mut ask)).expect("a path");
    let c = "lib/picolibc/riscv64-unknown-elf/lib/release/rv64imac/lp64/libc.a";
    [prefix.join(c), PathBuf::from(own.trim())]
}

/// A directory and a compiler.
pub(crate) struct Bench {
    dir: tempfile::TempDir,
    pub(crate) compiler: &'static str,
}

impl Bench {
    /// A path in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("a file");
        path
    }

    /// `dpacc`, started in the directory.
    pub(crate) fn dpacc(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dpacc"));
        command
            .env("DPACC_DEVICE_CC", self.compiler)
            .current_dir(self.dir.path());
        command
    }
}

/// A source or header of the tests.
pub(crate) fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(name)
}

/// Runs a command that succeeds, without messages, and returns its standard output.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> Vec<u8> {
    let done = run(command);
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success(),
        "{command:?}: {}\n{told}",
        done.status
    );
    assert_eq!(told, "", "{command:?}");
    done.stdout
}

/// Runs a command that fails with code 1, and returns its messages.
#[track_caller]
pub(crate) fn fail(command: &mut Command) -> String {
    let done = run(command);
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{command:?}\n{told}");
    told
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
