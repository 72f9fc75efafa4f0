//! The Debian packages: installed where that is allowed, else unpacked into the cache.

use super::cache::{Cache, key};
use super::{Fetch, pins};
use crate::{process, progress};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// dpkg and sudo answer at once; a slow disk is granted this.
const QUESTION: Duration = Duration::from_secs(30);
/// For one apt run: 10 MB at modem speed, plus the wait for another apt's lock.
const APT: Duration = Duration::from_secs(600);

/// Makes sure of the packages. `Some(root)` where they lie unpacked instead of installed.
pub(crate) fn ensure(cache: &Cache, fetch: Fetch) -> Result<Option<PathBuf>> {
    let missing = missing_packages()?;
    if missing.is_empty() {
        return Ok(None);
    }
    // Rootless stays rootless: what was unpacked once serves until somebody installs the packages.
    if let Some(root) = unpacked_root(cache) {
        return Ok(Some(root));
    }
    if fetch == Fetch::Refused {
        bail!("{} (offline)", needs(&missing));
    }
    if !has_apt() {
        bail!(
            "needs: libibverbs.so.1, libmlx5.so.1, their headers, ibv_devinfo and ib_write_lat; this system has no \
             apt-get, so install them by its own means (often rdma-core-devel, libibverbs-utils, perftest)"
        );
    }
    if let Some(prefix) = privilege() {
        progress::note(super::PART, &format!("installing {}", missing.join(" ")));
        install(&prefix, &missing).with_context(|| needs(&missing))?;
        return Ok(None);
    }
    println!("{}", needs(&missing));
    progress::note(
        super::PART,
        "no root: unpacking the packages into the cache",
    );
    let dir = cache
        .part(&part_name(), |dir| unpack(cache, pins::APT_PACKAGES, dir))
        .with_context(|| needs(&missing))?;
    Ok(Some(dir.join("root")))
}

/// Packages of the list that are not installed.
pub(crate) fn missing_packages() -> Result<Vec<String>> {
    let there = installed(pins::APT_PACKAGES)?;
    Ok(pins::APT_PACKAGES
        .iter()
        .map(|&p| p.to_owned())
        .filter(|p| !there.contains(p))
        .collect())
}

/// The tree in the cache that stands in for installed packages, if it was made.
pub(crate) fn unpacked_root(cache: &Cache) -> Option<PathBuf> {
    cache
        .has_part(&part_name())
        .then(|| cache.dir.join(part_name()).join("root"))
}

fn part_name() -> String {
    format!(
        "debs-{}",
        key(&[&pins::APT_PACKAGES.join(" "), std::env::consts::ARCH])
    )
}

/// Installs one more package where that is allowed; false where it is not.
pub(crate) fn try_install(package: &str) -> Result<bool> {
    match privilege() {
        Some(prefix) if has_apt() => install(&prefix, &[package.to_owned()]).map(|()| true),
        _ => Ok(false),
    }
}

/// Where an unpacked tree holds its libraries. Packages from before the merge of /lib into /usr still name the former.
pub(crate) fn library_dirs(root: &Path) -> [PathBuf; 2] {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    [
        root.join("usr/lib").join(&triplet),
        root.join("lib").join(&triplet),
    ]
}

/// Downloads `packages` with all that they depend on and the system lacks, and unpacks them into `dir/root`, as any user.
pub(crate) fn unpack(cache: &Cache, packages: &[&str], dir: &Path) -> Result<()> {
    unpack_what(cache, dir, |options| simulate(options, packages))
}

/// As [`unpack`], but nothing that they depend on.
pub(crate) fn unpack_alone(cache: &Cache, packages: &[&str], dir: &Path) -> Result<()> {
    unpack_what(cache, dir, |options| {
        // Answered only where there are package lists.
        let mut policy = Command::new("apt-cache");
        policy.args(options).arg("show").args(packages);
        process::stdout(&mut policy, QUESTION)?;
        Ok(packages.iter().map(|&package| package.to_owned()).collect())
    })
}

fn unpack_what(
    cache: &Cache,
    dir: &Path,
    choose: impl Fn(&[String]) -> Result<Vec<String>>,
) -> Result<()> {
    if !has_apt() {
        bail!("this system has no apt-get");
    }
    // The system's own package lists first; a list of our own where they are absent (a fresh container).
    let own = cache.dir.join("apt");
    let (options, wanted) = match choose(&[]) {
        Ok(wanted) => (Vec::new(), wanted),
        Err(_) => {
            for sub in ["lists/partial", "cache/archives/partial"] {
                fs::create_dir_all(own.join(sub))?;
            }
            let options = vec![
                format!("-oDir::State::Lists={}", own.join("lists").display()),
                format!("-oDir::Cache={}", own.join("cache").display()),
                "-oAcquire::Languages=none".to_owned(),
            ];
            let mut update = Command::new("apt-get");
            process::stdout(update.args(&options).args(["-q", "update"]), APT)?;
            let wanted = choose(&options)?;
            (options, wanted)
        }
    };
    let debs = dir.join("debs");
    fs::create_dir_all(&debs)?;
    let mut download = Command::new("apt-get");
    download
        .args(&options)
        .args(["-q", "download"])
        .args(&wanted)
        .current_dir(&debs);
    process::stdout(&mut download, APT)?;
    let root = dir.join("root");
    for entry in fs::read_dir(&debs)? {
        let mut extract = Command::new("dpkg-deb");
        process::stdout(extract.arg("-x").arg(entry?.path()).arg(&root), APT)?;
    }
    fs::remove_dir_all(&debs)?;
    // Package lists are large and age within days.
    if own.exists() {
        fs::remove_dir_all(&own)?;
    }
    Ok(())
}

/// The line which a user without root is asked to run.
fn needs(missing: &[String]) -> String {
    format!(
        "needs: sudo apt-get install --no-install-recommends {}",
        missing.join(" ")
    )
}

/// Which of `packages` dpkg has, fully installed.
fn installed(packages: &[&str]) -> Result<BTreeSet<String>> {
    let mut query = Command::new("dpkg-query");
    query
        .args(["-W", "-f=${Package} ${db:Status-Status}\n"])
        .args(packages);
    // dpkg-query answers 1 when one of them is unknown, and still lists the others; a system without dpkg has none.
    match process::run(&mut query, QUESTION) {
        Ok(done) => Ok(done
            .output
            .lines()
            .filter_map(|line| line.strip_suffix(" installed"))
            .map(str::to_owned)
            .collect()),
        Err(_) => Ok(BTreeSet::new()),
    }
}

fn has_apt() -> bool {
    process::run(Command::new("apt-get").arg("--version"), QUESTION).is_ok_and(|done| done.ok())
}

/// What to put in front of a command that must run as root; `None` when there is no way.
fn privilege() -> Option<Vec<&'static str>> {
    // SAFETY: geteuid(2) takes nothing, touches no memory and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        return Some(Vec::new());
    }
    let mut sudo = Command::new("sudo");
    let allowed = process::run(sudo.args(["-n", "true"]), QUESTION).is_ok_and(|done| done.ok());
    allowed.then(|| vec!["sudo", "-n"])
}

fn install(prefix: &[&str], packages: &[String]) -> Result<()> {
    // Two parts of the set-up may want packages at the same time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let apt = |arguments: &[&str]| {
        let mut words = prefix.to_vec();
        // Through env, because sudo drops the caller's variables.
        words.extend([
            "env",
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "-q",
            "-y",
        ]);
        // Another apt (unattended upgrades on a young machine) may hold the lock for minutes.
        words.push("-oDPkg::Lock::Timeout=300");
        words.extend(arguments);
        let mut command = Command::new(words[0]);
        process::stdout(command.args(&words[1..]), APT)
    };
    let mut arguments = vec!["install", "--no-install-recommends"];
    arguments.extend(packages.iter().map(String::as_str));
    if apt(&arguments).is_err() {
        // A fresh image has no package lists, and an old one has lists of versions that are gone.
        apt(&["update"])?;
        apt(&arguments)?;
    }
    Ok(())
}

/// The packages which installing `packages` would bring, `packages` among them unless already installed.
fn simulate(options: &[String], packages: &[&str]) -> Result<Vec<String>> {
    let mut command = Command::new("apt-get");
    command
        .args(options)
        .args(["-q", "-s", "--no-install-recommends", "install"])
        .args(packages);
    let text = process::stdout(&mut command, QUESTION)?;
    Ok(to_install(&text))
}

/// Package names in the output of `apt-get -s install`.
fn to_install(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix("Inst "))
        .filter_map(|rest| rest.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_install_names_the_packages() {
        let text = "Reading package lists...\nInst libnl-3-200 (3.7.0-0.2+b1 Debian:12 [amd64])\n\
                    Inst perftest [1.0] (4.5+0.17-1 Debian:12 [amd64])\nConf libnl-3-200 (3.7.0-0.2+b1)\n";
        assert_eq!(to_install(text), ["libnl-3-200", "perftest"]);
        assert!(to_install("").is_empty());
    }

    #[test]
    fn the_line_to_run_is_the_documented_one() {
        let missing = ["a".to_owned(), "b".to_owned()];
        assert_eq!(
            needs(&missing),
            "needs: sudo apt-get install --no-install-recommends a b"
        );
    }
}
