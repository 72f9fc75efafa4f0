//! `cargo xtask install`: the library where UCX looks for modules, and the command, below a prefix.

use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const HELP: &str = "\
Usage: cargo xtask install --prefix DIR

Builds the library and the command xgvmi, and puts below DIR:

  lib/ucx/libuct_ib_mlx5_xgvmi.so.0    the library, and .so.0.0.0, the name that some packagings of UCX ask for
  bin/xgvmi                            the command
  share/doc/xgvmi/                     options, hardware, defects, licences

Files that are there are replaced at once, never written to, so that processes that use them go on.
If DIR is UCX's own prefix and UCX is 1.22 or later, UCX loads the library by itself.";

const LIBRARY: &str = "libuct_ib_mlx5_xgvmi.so.0";

/// What is read, by its place in the workspace.
const DOCUMENTS: [&str; 5] = [
    "uct-plugin/OPTIONS.md",
    "docs/HARDWARE.md",
    "docs/DEFECTS.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
];

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(prefix) = parse(arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root());
    command.args(["build", "--release", "-p", "uct-plugin", "-p", "xgvmi-cli"]);
    let status = command.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("`{}`: {status}", process::shown(&command));
    }
    let release = workspace::target_dir().join("release");
    let modules = prefix.join("lib/ucx");
    place(
        &release.join("libuct_ib_mlx5_xgvmi.so"),
        &modules.join(LIBRARY),
        0o755,
    )?;
    let other_name = modules.join(format!("{LIBRARY}.0.0"));
    replace(&other_name, |path| symlink(LIBRARY, path))?;
    place(&release.join("xgvmi"), &prefix.join("bin/xgvmi"), 0o755)?;
    let documents = prefix.join("share/doc/xgvmi");
    for document in DOCUMENTS {
        let source = workspace::root().join(document);
        let name = source.file_name().context("a document without a name")?;
        place(&source, &documents.join(name), 0o644)?;
    }
    let modules = modules.display();
    println!("installed in {}", prefix.display());
    println!("any UCX from 1.18 on:  LD_PRELOAD={modules}/{LIBRARY} your-program");
    println!("UCX 1.22 and later:    UCX_PLUGIN_PATH={modules} your-program");
    Ok(ExitCode::SUCCESS)
}

/// The prefix; `None` when help was asked for.
fn parse(arguments: Vec<String>) -> Result<Option<PathBuf>> {
    use lexopt::prelude::{Long, Short};
    let mut prefix = None;
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("prefix") => prefix = Some(PathBuf::from(parser.value()?)),
            Short('h') | Long("help") => return Ok(None),
            other => bail!("{}; try: cargo xtask install --help", other.unexpected()),
        }
    }
    let prefix = prefix.context("--prefix is missing; try: cargo xtask install --help")?;
    let absolute = std::path::absolute(&prefix);
    Ok(Some(
        absolute.with_context(|| prefix.display().to_string())?,
    ))
}

fn place(source: &Path, target: &Path, mode: u32) -> Result<()> {
    replace(target, |path| {
        fs::copy(source, path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    })
    .with_context(|| format!("from {}", source.display()))
}

/// Makes a file beside its place and moves it there.
fn replace(target: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let what = || format!("cannot install {}", target.display());
    let parent = target.parent().with_context(what)?;
    fs::create_dir_all(parent).with_context(what)?;
    let name = target.file_name().with_context(what)?.to_string_lossy();
    let new = parent.join(format!(".{name}.{}", std::process::id()));
    // What an install with the same number that was killed has left.
    let _ = fs::remove_file(&new);
    let made = make(&new).and_then(|()| fs::rename(&new, target));
    if made.is_err() {
        let _ = fs::remove_file(&new);
    }
    made.with_context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_is_needed() {
        let parse = |words: &[&str]| parse(words.iter().map(|&word| word.to_owned()).collect());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--prefix"]).is_err());
        assert!(parse(&["here"]).is_err());
        assert_eq!(parse(&["--help"]).unwrap(), None);
        assert_eq!(parse(&["--prefix=/opt/x"]).unwrap(), Some("/opt/x".into()));
        assert!(parse(&["--prefix", "x"]).unwrap().unwrap().is_absolute());
    }

    #[test]
    fn a_file_in_use_is_replaced_and_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("source"), dir.path().join("a/b/target"));
        fs::write(&source, "old").unwrap();
        place(&source, &target, 0o644).unwrap();
        let in_use = fs::File::open(&target).unwrap();
        fs::write(&source, "new").unwrap();
        place(&source, &target, 0o755).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        assert_eq!(std::io::read_to_string(in_use).unwrap(), "old");
        assert_eq!(
            target.metadata().unwrap().permissions().mode() & 0o777,
            0o755
        );
        // Nothing is left beside it, not even after a failure.
        assert!(place(&dir.path().join("none"), &target, 0o644).is_err());
        assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 1);
    }
}
