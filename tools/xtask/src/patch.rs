//! `cargo xtask patch`: applies the patches to a copy of a UCX tree, and tests an installation of a patched tree with
//! the matrix. The command does not build UCX.

mod series;

use crate::{matrix, process, workspace};
use anyhow::{Context, Result, bail};
use series::{Change, TARGETS, Target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const HELP: &str = "\
Usage: XGVMI_UCX_SRC=DIR cargo xtask patch
       XGVMI_UCX_BUILT=PREFIX cargo xtask patch

With XGVMI_UCX_SRC: identifies the UCX tree in DIR by the contents of the files to change, copies it to target/patch/,
applies the patches of patches/ to the copy, and checks the result. DIR itself is only read. In a git work tree, the
command copies the committed state and refuses uncommitted changes.

With XGVMI_UCX_BUILT: runs the matrix with a patched UCX that was built from such a copy and installed below PREFIX. UCX
then finds the library in a module directory, without a preload.

Both may be given. See patches/README.md.";

/// Path of the UCX tree.
pub(crate) const ENV_SOURCE: &str = "XGVMI_UCX_SRC";
/// Path of an installation of a patched tree.
pub(crate) const ENV_BUILT: &str = "XGVMI_UCX_BUILT";

/// Time limit of one git or tar command on a tree of several thousand files.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    match arguments.first().map(String::as_str) {
        None => {}
        Some("-h" | "--help") => {
            println!("{HELP}");
            return Ok(ExitCode::SUCCESS);
        }
        Some(other) => bail!("unexpected '{other}'; try: cargo xtask patch --help"),
    }
    let (source, built) = (named_by(ENV_SOURCE)?, named_by(ENV_BUILT)?);
    if source.is_none() && built.is_none() {
        bail!("neither {ENV_SOURCE} nor {ENV_BUILT} is set; try: cargo xtask patch --help");
    }
    if let Some(source) = source {
        let (target, copy) = apply(&source)?;
        println!(
            "the patches for {} are on the copy {}",
            target.name,
            copy.display()
        );
        println!("build and install it as its README says, with its mlx5 module, and then:");
        println!("    {ENV_BUILT}=PREFIX cargo xtask patch");
    }
    let Some(built) = built else {
        return Ok(ExitCode::SUCCESS);
    };
    let rows = judge(&built)?;
    Ok(if rows.iter().all(|row| row.failure.is_none()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The directory in the variable, if it is set.
pub(crate) fn named_by(variable: &str) -> Result<Option<PathBuf>> {
    let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let path = std::path::absolute(&value).with_context(|| format!("{variable}={value:?}"))?;
    if !path.is_dir() {
        bail!("{variable}={}: no such directory", path.display());
    }
    Ok(Some(path))
}

/// Copies the tree and applies its patches to the copy.
pub(crate) fn apply(source: &Path) -> Result<(Target, PathBuf)> {
    let (target, changes) = recognise(source)?;
    let copy = workspace::target_dir().join("patch").join(target.name);
    copy_tree(source, &copy)?;
    for patch in series::files(&series_dir(&target))? {
        git(
            &copy,
            &["apply", "--unidiff-zero", &patch.display().to_string()],
        )
        .with_context(|| format!("{} does not apply", patch.display()))?;
    }
    for Change { path, after, .. } in &changes {
        let found = number_of(&copy.join(path))?;
        if found.as_ref() != Some(after) {
            bail!("{path} is {found:?} in the end, not {after}");
        }
    }
    Ok((target, copy))
}

/// Runs the matrix with an installation of a patched UCX.
pub(crate) fn judge(prefix: &Path) -> Result<Vec<matrix::Row>> {
    let libraries = prefix.join("lib");
    let is_patched = |target: &&Target| {
        let (file, mark) = target.mark;
        let bytes = fs::read(libraries.join("ucx").join(file)).unwrap_or_default();
        bytes.windows(mark.len()).any(|part| part == mark)
    };
    let Some(target) = TARGETS.iter().find(is_patched) else {
        bail!(
            "no patched UCX with its mlx5 module in {}",
            libraries.display()
        );
    };
    println!(
        "UCX with the patches for {} in {}",
        target.name,
        libraries.display()
    );
    let mut words = vec!["--module"];
    for defect in target.mends {
        words.extend(["--mended", defect]);
    }
    matrix::run_on(target.version, &libraries, &words)
}

/// Finds the series whose original files match the tree.
fn recognise(source: &Path) -> Result<(Target, Vec<Change>)> {
    let mut reasons = Vec::new();
    for target in TARGETS {
        let changes = series::changes(&series_dir(&target))?;
        let mut differs = Vec::new();
        for change in &changes {
            if number_of(&source.join(&change.path))? != change.before {
                differs.push(change.path.as_str());
            }
        }
        if differs.is_empty() {
            check_clean(source)?;
            return Ok((target, changes));
        }
        let Target { name, commit, .. } = target;
        reasons.push(format!(
            "not {name} ({commit}): {} differ",
            differs.join(", ")
        ));
    }
    bail!(
        "no patches for the tree {}:\n  {}",
        source.display(),
        reasons.join("\n  ")
    )
}

/// Checks that a git work tree has no changes, because the copy contains the committed files.
fn check_clean(source: &Path) -> Result<()> {
    if !source.join(".git").exists() {
        return Ok(());
    }
    let changed = git(source, &["status", "--porcelain", "--untracked-files=no"])?;
    match changed.lines().next() {
        None => Ok(()),
        Some(first) => bail!(
            "{} has {} changed files, as {first}: commit or stash them first",
            source.display(),
            changed.lines().count()
        ),
    }
}

/// Replaces the copy.
fn copy_tree(source: &Path, copy: &Path) -> Result<()> {
    let what = || format!("cannot copy {} to {}", source.display(), copy.display());
    if copy.starts_with(source) {
        bail!("{}: it would be within itself", what());
    }
    if copy.exists() {
        fs::remove_dir_all(copy).with_context(what)?;
    }
    fs::create_dir_all(copy).with_context(what)?;
    let pack = if source.join(".git").exists() {
        "git archive HEAD"
    } else {
        "tar --create ."
    };
    // Both commands must succeed, so the code does not use a plain shell's pipe.
    let archive = copy.with_extension("tar");
    let script = format!("{pack} >\"$1\" && tar --extract --file \"$1\" --directory \"$2\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(&archive).arg(copy);
    command.current_dir(source).env("GIT_OPTIONAL_LOCKS", "0");
    let copied = process::stdout(&mut command, LIMIT).map(drop);
    let _ = fs::remove_file(&archive);
    copied.with_context(what)
}

/// Git's object id of the file's contents; `None` if there is no file.
fn number_of(file: &Path) -> Result<Option<String>> {
    if !file.is_file() {
        return Ok(None);
    }
    let dir = file.parent().context("a file without a directory")?;
    let name = file.display().to_string();
    let number = git(dir, &["hash-object", "--no-filters", &name])?;
    Ok(Some(number.trim().to_owned()))
}

/// Runs git in a directory. It never uses this project's own repository, and writes only files.
fn git(dir: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    command.current_dir(dir).args(words);
    command.env("GIT_OPTIONAL_LOCKS", "0");
    if let Some(parent) = dir.parent() {
        command.env("GIT_CEILING_DIRECTORIES", parent);
    }
    process::stdout(&mut command, LIMIT)
}

fn series_dir(target: &Target) -> PathBuf {
    workspace::root().join("patches").join(target.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_something_else_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("src/uct/ib/configure.m4");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "something else\n").unwrap();
        let error = format!("{:#}", apply(dir.path()).unwrap_err());
        for target in TARGETS {
            assert!(error.contains(target.commit), "{error}");
        }
        assert!(error.contains("configure.m4 differ"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "something else\n");
    }

    #[test]
    fn contents_have_git_s_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        assert_eq!(number_of(&file).unwrap(), None);
        fs::write(&file, "").unwrap();
        // The empty blob, known to every user of git.
        let number = number_of(&file).unwrap().unwrap();
        assert_eq!(number, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    }

    #[test]
    fn an_installation_without_patches_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("lib/ucx")).unwrap();
        fs::write(dir.path().join("lib/ucx/libuct_ib.so.0"), ":mlx5:efa").unwrap();
        let error = format!("{:#}", judge(dir.path()).unwrap_err());
        assert!(error.contains("no patched UCX"), "{error}");
    }
}
