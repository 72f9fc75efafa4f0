//! The file with a job's access key.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use xgvmi_pool::AccessKey;

/// Why a file gives no access key. The text never holds any of the key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum KeyFileError {
    /// The system did not let us.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Others can read it, and so it is no secret.
    #[error("{} has mode {mode:o}, others than its owner must not have access", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// It belongs to somebody who is neither this user nor root.
    #[error("{} belongs to user {owner}, not to user {user} or root", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// This process's user.
        user: u32,
    },
    /// It does not hold what it should.
    #[error("{} does not hold {} hexadecimal digits", path.display(), 2 * AccessKey::BYTES)]
    Form {
        /// The file.
        path: PathBuf,
    },
}

/// Bytes that are read at most: the digits and some white space around them.
const BYTES_MAX: u64 = 256;

/// Reads the access key from the file.
pub(crate) fn read(path: &Path) -> Result<AccessKey, KeyFileError> {
    let failed = |source| KeyFileError::Read {
        path: path.to_owned(),
        source,
    };
    // A pipe that nobody writes to must not hold up the program.
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
    let mut text = String::new();
    file.take(BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(failed)?;
    parse(text.trim()).ok_or_else(|| KeyFileError::Form {
        path: path.to_owned(),
    })
}

fn parse(text: &str) -> Option<AccessKey> {
    let digits = text.as_bytes();
    if digits.len() != 2 * AccessKey::BYTES {
        return None;
    }
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let mut key = [0; AccessKey::BYTES];
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(AccessKey::new(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[track_caller]
    fn check(text: &str, mode: u32, expect: Result<[u8; 32], &str>) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
        match (read(&path), expect) {
            (Ok(key), Ok(bytes)) => assert_eq!(*key.as_bytes(), bytes),
            (Err(error), Err(part)) => {
                let error = error.to_string();
                assert!(error.contains(part), "{error}");
                assert!(
                    !error.contains("a5a5"),
                    "the key is in the message: {error}"
                );
            }
            (found, expect) => panic!("{found:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn a_key_is_64_digits_that_nobody_else_reads() {
        let digits = "a5".repeat(32);
        check(&digits, 0o600, Ok([0xa5; 32]));
        check(
            &format!("{}\n", digits.to_uppercase()),
            0o400,
            Ok([0xa5; 32]),
        );
        check(&digits, 0o644, Err("has mode 644"));
        check(&digits, 0o640, Err("has mode 640"));
        check(
            &digits[1..],
            0o600,
            Err("does not hold 64 hexadecimal digits"),
        );
        check(
            &digits.replace("a5a5", "a5g5"),
            0o600,
            Err("does not hold 64"),
        );
        check(&format!("{digits}a5"), 0o600, Err("does not hold 64"));
        check("", 0o600, Err("does not hold 64"));
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
