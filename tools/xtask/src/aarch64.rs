//! `cargo xtask check-aarch64`: compiles the whole workspace for the DPU's processors and runs unit tests there.

use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask check-aarch64 [--test]

Compiles all libraries and programs for aarch64-unknown-linux-gnu, without linking. Needs a compiler with that target's
standard library: `rustup target add aarch64-unknown-linux-gnu`, or XGVMI_AARCH64_RUSTC=PATH for another compiler. On
Debian it is libstd-rust-web-dev of the architecture arm64, for rustc-web.

  --test   run the unit tests of the pool, the PRM and the library in UCX under a user-mode emulator instead. Needs
           qemu-aarch64 and aarch64-linux-gnu-gcc: apt install qemu-user gcc-aarch64-linux-gnu";

/// Path of a compiler with the target's standard library.
const ENV_RUSTC: &str = "XGVMI_AARCH64_RUSTC";

const TARGET: &str = "aarch64-unknown-linux-gnu";
const QUESTION: Duration = Duration::from_secs(30);

/// Requirements of the tests: a linker with the target's C library, and a user-mode emulator.
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Directory of the linker's C library.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";
/// Crates whose unit tests need no device.
const TESTED: [&str; 3] = ["mlx5-prm", "xgvmi-pool", "uct-plugin"];
/// The test needs MADV_WIPEONFORK, which qemu supports since 8.0; Debian 12 has 7.2.
const NOT_UNDER_EMULATION: &str = "a_child_knows_that_it_is_one";

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let test = match words[..] {
        [] => false,
        ["--test"] => true,
        ["-h" | "--help", ..] => {
            println!("{HELP}");
            return Ok(ExitCode::SUCCESS);
        }
        [other, ..] => bail!("unexpected '{other}'; try: cargo xtask check-aarch64 --help"),
    };
    let rustc = compiler();
    check_library(&rustc)?;
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root()).env("RUSTC", &rustc);
    // A separate directory, because another compiler produces different files for this machine too.
    let output = workspace::target_dir().join("aarch64");
    command.env("CARGO_TARGET_DIR", output);
    if test {
        for program in [LINKER, EMULATOR] {
            if !process::is_installed(program) {
                bail!("{program} is not installed: apt install qemu-user gcc-aarch64-linux-gnu");
            }
        }
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
        let runner = format!("{EMULATOR} -L {SYSROOT}");
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        command.args(["test", "--lib", "--target", TARGET]);
        for name in TESTED {
            command.args(["-p", name]);
        }
        command.args(["--", "--skip", NOT_UNDER_EMULATION]);
    } else {
        command.args(["check", "--workspace", "--target", TARGET]);
    }
    let status = command.status().context("cannot run cargo")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The compiler from the environment, else the default one.
fn compiler() -> PathBuf {
    named().unwrap_or_else(|| "rustc".into())
}

/// True if there is a compiler with the target's standard library.
pub(crate) fn can_compile() -> bool {
    check_library(&compiler()).is_ok()
}

/// True if this machine can link and run programs for the target.
pub(crate) fn can_run() -> bool {
    can_compile() && process::is_installed(LINKER) && process::is_installed(EMULATOR)
}

/// The compiler from the environment.
fn named() -> Option<PathBuf> {
    let value = std::env::var_os(ENV_RUSTC).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// Checks that the compiler has a standard library for the target; the error contains the fix.
fn check_library(rustc: &Path) -> Result<()> {
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", TARGET]);
    let dir = process::stdout(&mut command, QUESTION)?;
    let dir = Path::new(dir.trim());
    if dir.is_dir() {
        return Ok(());
    }
    bail!(
        "{} has no standard library for {TARGET} ({}): rustup target add {TARGET}, or name a compiler that has it in \
         {ENV_RUSTC}",
        rustc.display(),
        dir.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_without_the_target_is_told() {
        let error = check_library(Path::new("true")).map_err(|error| error.to_string());
        // `true` prints nothing, so its sysroot is the empty path.
        assert!(error.unwrap_err().contains("rustup target add"));
        assert!(check_library(Path::new("no-such-compiler")).is_err());
    }
}
