//! The file with a job's secret, from which the access key and the seal of its messages are
//! derived.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use xgvmi_pool::{Secret, SecretError};

/// Reason why a file contains no valid secret. The text never contains any part of the secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum KeyFileError {
    /// The system refused.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can read it, so it is not secret.
    #[error("{} has mode {mode:o}; only its owner may have access", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// Its owner is neither this user nor root.
    #[error("{} belongs to user {owner}, not to user {user} or root", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// This process's user.
        user: u32,
    },
    /// It is too short or too long.
    #[error("{}: {source}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Actual and permitted length.
        source: SecretError,
    },
}

/// The secret in the file.
pub(crate) fn read(path: &Path) -> Result<Secret, KeyFileError> {
    let failed = |source| KeyFileError::Read {
        path: path.to_owned(),
        source,
    };
    // A pipe without a writer must not block the program.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    let owner = metadata.uid();
    if owner != user && owner != 0 {
        return Err(KeyFileError::Owner {
            path: path.to_owned(),
            owner,
            user,
        });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Open {
            path: path.to_owned(),
            mode,
        });
    }
    let mut bytes = Vec::new();
    // One byte more than permitted, so that a longer file is detected.
    file.take(Secret::BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    match Secret::new(bytes.trim_ascii()) {
        Ok(secret) => Ok(secret),
        Err(source) => Err(KeyFileError::Length {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[track_caller]
    fn check(text: &str, mode: u32, expect: Result<&str, &str>) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
        match (read(&path), expect) {
            (Ok(found), Ok(secret)) => {
                let secret = Secret::new(secret.as_bytes()).expect("a secret");
                assert_eq!(found.access_key(), secret.access_key());
            }
            (Err(error), Err(part)) => {
                let error = error.to_string();
                assert!(error.contains(part), "{error}");
                assert!(
                    !error.contains("a5a5"),
                    "the secret is in the message: {error}"
                );
            }
            (found, expect) => panic!("{found:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn a_secret_is_long_enough_and_nobody_else_reads_it() {
        let secret = "a5".repeat(32);
        check(&secret, 0o600, Ok(&secret));
        check(&format!("{secret}\n"), 0o400, Ok(&secret));
        check(&secret[..16], 0o600, Ok(&secret[..16]));
        check(&secret, 0o644, Err("has mode 644"));
        check(&secret, 0o640, Err("has mode 640"));
        check(
            &secret[..15],
            0o600,
            Err("a secret of 15 bytes instead of 16 to 4096"),
        );
        check("", 0o600, Err("a secret of 0 bytes"));
        check(&"a5".repeat(4096), 0o600, Err("a secret of 4097 bytes"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read(Path::new("/no/such/key"))
            .expect_err("no file")
            .to_string();
        assert!(
            error.contains("cannot read /no/such/key: No such file"),
            "{error}"
        );
    }
}
