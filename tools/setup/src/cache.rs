//! The cache directory: one lock for concurrent set-ups, and a stamp in each finished part.

use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use testbed::progress;

/// The cache. It is locked against other set-ups until it is dropped.
#[derive(Debug)]
pub struct Cache {
    /// Its directory.
    pub dir: PathBuf,
    _lock: File,
}

impl Cache {
    /// Opens `$XGVMI_CACHE`, else `$XDG_CACHE_HOME/xgvmi`, else `~/.cache/xgvmi`, and waits for its lock.
    pub fn open() -> Result<Self> {
        let dir = dir_from(|name| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        })?;
        Self::open_at(dir)
    }

    fn open_at(dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create the cache {}", dir.display()))?;
        let path = dir.join(".lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        if !flock(&lock, libc::LOCK_EX | libc::LOCK_NB) {
            progress::note(
                super::PART,
                &format!("waiting for another set-up in {} to end", dir.display()),
            );
            if !flock(&lock, libc::LOCK_EX) {
                bail!(
                    "flock {}: {}",
                    path.display(),
                    std::io::Error::last_os_error()
                );
            }
        }
        Ok(Self { dir, _lock: lock })
    }

    /// Creates the part `name` unless its stamp marks it as finished; `build` fills the empty directory.
    ///
    /// The name contains a hash of all inputs of the part, so a stamp never becomes stale. A failed or interrupted
    /// build leaves no stamp, and the next one starts from an empty directory.
    pub fn part(&self, name: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        if self.has_part(name) {
            return Ok(dir);
        }
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot clear {}", dir.display()))?;
        }
        fs::create_dir_all(&dir)?;
        build(&dir)?;
        let mut stamp = File::create(stamp_of(&dir))?;
        stamp.write_all(b"complete\n")?;
        stamp.sync_all()?;
        Ok(dir)
    }

    /// Whether the part exists and is finished.
    pub fn has_part(&self, name: &str) -> bool {
        stamp_of(&self.dir.join(name)).exists()
    }
}

fn stamp_of(dir: &Path) -> PathBuf {
    dir.join(".stamp")
}

fn dir_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    let dir = match (
        variable("XGVMI_CACHE"),
        variable("XDG_CACHE_HOME"),
        variable("HOME"),
    ) {
        (Some(own), _, _) => own,
        (None, Some(cache), _) => cache.join("xgvmi"),
        (None, None, Some(home)) => home.join(".cache/xgvmi"),
        (None, None, None) => bail!("no place for the cache: set XGVMI_CACHE or HOME"),
    };
    // Processes with other working directories use library paths below this directory.
    std::path::absolute(&dir).with_context(|| format!("cache path {}", dir.display()))
}

fn flock(file: &File, operation: libc::c_int) -> bool {
    // SAFETY: the descriptor is open while `file` is borrowed; flock(2) accesses no memory of this process.
    unsafe { libc::flock(file.as_raw_fd(), operation) == 0 }
}

/// Twelve hex digits that depend on all `inputs` (FNV-1a: stable across releases, no dependency; the inputs are
/// constants of this project, so collision attacks do not matter).
pub fn key(inputs: &[&str]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in inputs.iter().flat_map(|s| s.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{:012x}", hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_rank_as_the_help_says() {
        let check = |set: &[(&str, &str)], expect: Option<&str>| {
            let found = dir_from(|name| {
                set.iter()
                    .find(|(n, _)| *n == name)
                    .map(|(_, v)| PathBuf::from(v))
            });
            assert_eq!(found.ok(), expect.map(PathBuf::from), "{set:?}");
        };
        check(
            &[
                ("XGVMI_CACHE", "/c"),
                ("XDG_CACHE_HOME", "/x"),
                ("HOME", "/h"),
            ],
            Some("/c"),
        );
        check(
            &[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")],
            Some("/x/xgvmi"),
        );
        check(&[("HOME", "/h")], Some("/h/.cache/xgvmi"));
        check(&[], None);
    }

    #[test]
    fn a_part_is_built_once_and_again_after_a_failure() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::open_at(place.path().join("cache")).unwrap();
        let build = |dir: &Path| {
            assert!(
                !dir.join("left-over").exists(),
                "a failed build must not be built upon"
            );
            fs::write(dir.join("left-over"), "x").map_err(Into::into)
        };
        assert!(
            cache
                .part("p", |dir| build(dir).and_then(|()| bail!("no network")))
                .is_err()
        );
        assert!(!cache.has_part("p"));
        cache.part("p", build).unwrap();
        cache.part("p", |_| panic!("built twice")).unwrap();
        assert!(cache.has_part("p"));
    }

    #[test]
    fn keys_tell_inputs_apart() {
        assert_eq!(key(&["a", "b"]), key(&["a", "b"]));
        assert_ne!(key(&["a", "b"]), key(&["ab"]));
        assert_eq!(key(&[]).len(), 12);
    }
}
