//! `cargo xtask bindgen`: writes the committed FFI bindings, or checks that they equal bindgen's output.

use crate::{process, setup, workspace};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask bindgen [--check]

For each crate with a wrapper.h and a bindgen.args (one argument per line; $UCX_INCLUDE and $UCC_INCLUDE stand for the
headers of stock UCX and stock UCC), runs the pinned bindgen and writes src/bindings.rs. Builds never need
libclang; only this command does.

  --check   write nothing; print the difference and fail if there is one";

/// bindgen reads all of UCX's headers in a few seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let mut check = false;
    for argument in arguments {
        match argument.as_str() {
            "--check" => check = true,
            "-h" | "--help" => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => bail!("no option '{other}'; try: cargo xtask bindgen --help"),
        }
    }
    let crates = crates_with_bindings()?;
    let env = setup::ensure()?;
    let tools = setup::bindgen_tools()?;
    let mut stale = 0;
    for dir in crates {
        let name = dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let fresh = generate(&dir, &env, &tools).with_context(|| format!("bindings of {name}"))?;
        let path = dir.join("src/bindings.rs");
        let committed = fs::read_to_string(&path).unwrap_or_default();
        if fresh == committed {
            println!("{name}: bindings are current");
        } else if check {
            println!("{name}: src/bindings.rs differs from what bindgen writes");
            show_difference(&path, &fresh)?;
            stale += 1;
        } else {
            fs::write(&path, fresh)?;
            println!("{name}: src/bindings.rs written");
        }
    }
    Ok(if stale == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Crates of the workspace with generated bindings, sorted by path.
fn crates_with_bindings() -> Result<Vec<PathBuf>> {
    let manifest = fs::read_to_string(workspace::root().join("Cargo.toml"))?;
    let manifest: toml::Table = manifest.parse().context("Cargo.toml")?;
    let members = manifest["workspace"]["members"].as_array();
    let members = members.context("Cargo.toml has no members")?.iter();
    let mut found = Vec::new();
    for member in members.filter_map(toml::Value::as_str) {
        let dir = workspace::root().join(member);
        match (
            dir.join("wrapper.h").exists(),
            dir.join("bindgen.args").exists(),
        ) {
            (true, true) => found.push(dir),
            (false, false) => {}
            _ => bail!(
                "{} has one of wrapper.h and bindgen.args, not both",
                dir.display()
            ),
        }
    }
    found.sort();
    Ok(found)
}

fn generate(dir: &Path, env: &setup::Env, tools: &setup::BindgenTools) -> Result<String> {
    let text = fs::read_to_string(dir.join("bindgen.args"))?;
    let ucx = env.ucx_include.display().to_string();
    let ucc = match text.contains("$UCC_INCLUDE") {
        true => setup::tree::ucc()?.include().display().to_string(),
        false => String::new(),
    };
    let mut command = Command::new(&tools.bindgen);
    command
        .arg("wrapper.h")
        .args(arguments(&text, &ucx, &ucc))
        .current_dir(dir);
    command
        .env("LIBCLANG_PATH", &tools.libclang_dir)
        .envs(env.for_cc());
    // The wheel contains libclang without clang's headers (stddef.h); the installed compiler provides them.
    let compiler_include =
        process::stdout(Command::new("cc").arg("-print-file-name=include"), LIMIT)?;
    command.env(
        "BINDGEN_EXTRA_CLANG_ARGS",
        format!("-isystem {}", compiler_include.trim()),
    );
    process::stdout(&mut command, LIMIT)
}

/// One argument per line; blank lines and `#` comments are ignored.
fn arguments(text: &str, ucx: &str, ucc: &str) -> Vec<String> {
    text.lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            line.replace("$UCX_INCLUDE", ucx)
                .replace("$UCC_INCLUDE", ucc)
        })
        .collect()
}

fn show_difference(path: &Path, fresh: &str) -> Result<()> {
    let other = workspace::target_dir().join("bindings.fresh.rs");
    fs::write(&other, fresh)?;
    let mut diff = Command::new("diff");
    let done = process::run(diff.arg("-u").arg(path).arg(&other), LIMIT)?;
    for line in done.output.lines().take(80) {
        println!("{line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bindings_of_the_workspace_are_generated() {
        let crates = crates_with_bindings().unwrap();
        let root = workspace::root();
        let found = crates.iter().map(|dir| dir.strip_prefix(&root).unwrap());
        let found: Vec<_> = found.map(|dir| dir.to_string_lossy()).collect();
        let expect = [
            "bindings/mlx5dv-sys",
            "bindings/rdmacm-sys",
            "clients/ucc-tl",
            "ucx-sys",
        ];
        assert_eq!(found, expect);
    }

    #[test]
    fn an_argument_is_a_line() {
        let text = "--use-core\n\n# why\n--raw-line=use libc::{a, b};\n--\n-I$UCX_INCLUDE/x\n-I$UCC_INCLUDE\n";
        let expect = [
            "--use-core",
            "--raw-line=use libc::{a, b};",
            "--",
            "-I/inc/x",
            "-I/ucc",
        ];
        assert_eq!(arguments(text, "/inc", "/ucc"), expect);
    }
}
