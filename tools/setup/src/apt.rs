//! Installs the Debian packages if that is allowed, otherwise unpacks them into the cache.

use super::cache::{Cache, key};
use super::{Fetch, pins};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use testbed::{process, progress};

/// Time limit of a dpkg or sudo query. They are fast, but a disk may be slow.
const QUESTION: Duration = Duration::from_secs(30);
/// Time limit of one apt run: 10 MB over a slow connection, plus the wait for another apt's lock.
const APT: Duration = Duration::from_secs(600);

/// Ensures the packages. Returns `Some(root)` if they are unpacked instead of installed.
pub fn ensure(cache: &Cache, fetch: Fetch) -> Result<Option<PathBuf>> {
    let missing = missing_packages()?;
    if missing.is_empty() {
        return Ok(None);
    }
    // An unpacked tree stays in use until the packages are installed.
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
pub fn missing_packages() -> Result<Vec<String>> {
    let there = installed(pins::APT_PACKAGES)?;
    Ok(pins::APT_PACKAGES
        .iter()
        .map(|&p| p.to_owned())
        .filter(|p| !there.contains(p))
        .collect())
}

/// Packages of a list that are not installed.
///
/// # Errors
/// Errors of dpkg.
pub fn missing_of(packages: &[&'static str]) -> Result<Vec<&'static str>> {
    let there = installed(packages)?;
    let missing = packages.iter().copied();
    Ok(missing
        .filter(|package| !there.contains(*package))
        .collect())
}

/// The unpacked tree in the cache that replaces installed packages, if it exists.
pub fn unpacked_root(cache: &Cache) -> Option<PathBuf> {
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

/// Installs one more package if that is allowed; returns false otherwise.
pub fn try_install(package: &str) -> Result<bool> {
    match privilege() {
        Some(prefix) if has_apt() => install(&prefix, &[package.to_owned()]).map(|()| true),
        _ => Ok(false),
    }
}

/// Ensures more packages. Returns `Some(root)` if they are unpacked instead of installed.
pub fn ensure_more(cache: &Cache, name: &str, packages: &[&str]) -> Result<Option<PathBuf>> {
    let there = installed(packages)?;
    let missing: Vec<String> = packages
        .iter()
        .filter(|package| !there.contains(**package))
        .map(|package| (*package).to_owned())
        .collect();
    if missing.is_empty() {
        return Ok(None);
    }
    if let Some(prefix) = privilege().filter(|_| has_apt()) {
        progress::note(super::PART, &format!("installing {}", missing.join(" ")));
        install(&prefix, &missing).with_context(|| needs(&missing))?;
        return Ok(None);
    }
    let part = format!(
        "{name}-{}",
        key(&[&packages.join(" "), std::env::consts::ARCH])
    );
    let dir = cache
        .part(&part, |dir| unpack(cache, packages, dir))
        .with_context(|| needs(&missing))?;
    Ok(Some(dir.join("root")))
}

/// Library directories of an unpacked tree. Packages from before the merge of /lib into /usr still use /lib.
pub fn library_dirs(root: &Path) -> [PathBuf; 2] {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    [
        root.join("usr/lib").join(&triplet),
        root.join("lib").join(&triplet),
    ]
}

/// Downloads `packages` with their missing dependencies and unpacks them into `dir/root`. Needs no root privileges.
pub fn unpack(cache: &Cache, packages: &[&str], dir: &Path) -> Result<()> {
    unpack_what(cache, dir, |options| simulate(options, packages))
}

/// As [`unpack`], without dependencies.
pub fn unpack_alone(cache: &Cache, packages: &[&str], dir: &Path) -> Result<()> {
    unpack_what(cache, dir, |options| {
        // The query needs package lists.
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
    // Uses the system's package lists, or separate lists if they are absent (a fresh container).
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
    // Package lists are large and outdated within days.
    if own.exists() {
        fs::remove_dir_all(&own)?;
    }
    Ok(())
}

/// The command line for a user without root privileges.
fn needs(missing: &[String]) -> String {
    format!(
        "needs: sudo apt-get install --no-install-recommends {}",
        missing.join(" ")
    )
}

/// The subset of `packages` that is fully installed.
fn installed(packages: &[&str]) -> Result<BTreeSet<String>> {
    let mut query = Command::new("dpkg-query");
    query
        .args(["-W", "-f=${Package} ${db:Status-Status}\n"])
        .args(packages);
    // dpkg-query returns 1 if one package is unknown, and still lists the others; a system without dpkg has none.
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

/// Prefix of a command that must run as root; `None` if root is not available.
fn privilege() -> Option<Vec<&'static str>> {
    // SAFETY: geteuid(2) has no parameters, accesses no memory and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        return Some(Vec::new());
    }
    let mut sudo = Command::new("sudo");
    let allowed = process::run(sudo.args(["-n", "true"]), QUESTION).is_ok_and(|done| done.ok());
    allowed.then(|| vec!["sudo", "-n"])
}

fn install(prefix: &[&str], packages: &[String]) -> Result<()> {
    // Two parts of the set-up may install packages at the same time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let apt = |arguments: &[&str]| {
        let mut words = prefix.to_vec();
        // Runs through env, because sudo drops the caller's variables.
        words.extend([
            "env",
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "-q",
            "-y",
        ]);
        // Another apt (unattended upgrades on a new machine) may hold the lock for minutes.
        words.push("-oDPkg::Lock::Timeout=300");
        words.extend(arguments);
        let mut command = Command::new(words[0]);
        process::stdout(command.args(&words[1..]), APT)
    };
    let mut arguments = vec!["install", "--no-install-recommends"];
    arguments.extend(packages.iter().map(String::as_str));
    if apt(&arguments).is_err() {
        // A fresh image has no package lists, and an old image lists versions that no longer exist.
        apt(&["update"])?;
        apt(&arguments)?;
    }
    Ok(())
}

/// Packages that an installation of `packages` would install, including those of `packages` that are missing.
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
pub(crate) fn to_install(text: &str) -> Vec<String> {
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
