//! `cargo xtask check-aarch64`: the whole workspace compiles for the DPU's own processors.

use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask check-aarch64

Compiles all libraries and programs for aarch64-unknown-linux-gnu, without linking. Needs a compiler with that target's
standard library: `rustup target add aarch64-unknown-linux-gnu`, or XGVMI_AARCH64_RUSTC=PATH for another compiler. On
Debian it is libstd-rust-web-dev of the architecture arm64, for rustc-web.";

/// Names a compiler with the target's standard library.
pub(crate) const ENV_RUSTC: &str = "XGVMI_AARCH64_RUSTC";

const TARGET: &str = "aarch64-unknown-linux-gnu";
const QUESTION: Duration = Duration::from_secs(30);

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    match arguments.first().map(String::as_str) {
        None => {}
        Some("-h" | "--help") => {
            println!("{HELP}");
            return Ok(ExitCode::SUCCESS);
        }
        Some(other) => bail!("unexpected '{other}'; try: cargo xtask check-aarch64 --help"),
    }
    let rustc = named().unwrap_or_else(|| "rustc".into());
    check_library(&rustc)?;
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root()).env("RUSTC", &rustc);
    // Apart, because another compiler makes other files for this machine too.
    let output = workspace::target_dir().join("aarch64");
    command.env("CARGO_TARGET_DIR", output);
    command.args(["check", "--workspace", "--target", TARGET]);
    let status = command.status().context("cannot run cargo")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The compiler that the environment names.
pub(crate) fn named() -> Option<PathBuf> {
    let value = std::env::var_os(ENV_RUSTC).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// Says what to do if the compiler has no standard library for the target.
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
        // `true` answers nothing: its directory is the empty path.
        assert!(error.unwrap_err().contains("rustup target add"));
        assert!(check_library(Path::new("no-such-compiler")).is_err());
    }
}
