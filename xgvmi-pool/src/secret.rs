//! The shared secret of a job's processes, and its derived keys: the access key, with which the
//! processes may alias one another's memory keys, and the seal of their messages.

use std::fmt;
use std::path::Path;
use std::{env, fs, io};

use crate::key::AccessKey;

/// The purpose of the derived key. Each purpose has its own context, so no derived key equals
/// another.
const ACCESS_CONTEXT: &str = "xgvmi 2026 mkey access key";
const SEAL_CONTEXT: &str = "xgvmi 2026 announcement seal";

/// A secret shared by the processes of one job. Jobs without a secret use the constant access key
/// of stock UCX, which excludes no process.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

/// The reason why there is no secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret in {path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// The reason.
        cause: io::Error,
    },
    /// The variable is not set, or is not valid text.
    #[error("the environment variable {name} contains no valid secret: {cause}")]
    Variable {
        /// The variable.
        name: String,
        /// The reason.
        cause: env::VarError,
    },
    /// The secret is too short or too long.
    #[error("a secret of {len} bytes instead of {min} to {max}")]
    Length {
        /// Length in bytes.
        len: usize,
        /// Minimum length in bytes.
        min: usize,
        /// Maximum length in bytes.
        max: usize,
    },
}

impl Secret {
    /// Minimum length: 128 bits, if the bytes are random.
    pub const BYTES_MIN: usize = 16;
    /// Maximum length: a longer file is probably not a secret.
    pub const BYTES_MAX: usize = 4096;

    /// A secret from bytes, which should be random.
    ///
    /// # Errors
    /// If there are too few or too many bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        let (len, min, max) = (bytes.len(), Self::BYTES_MIN, Self::BYTES_MAX);
        if (min..=max).contains(&len) {
            Ok(Self(bytes.into()))
        } else {
            Err(SecretError::Length { len, min, max })
        }
    }

    /// The secret in the content of a file, without leading and trailing white space.
    ///
    /// # Errors
    /// If it is too short or too long.
    pub fn from_text(text: &[u8]) -> Result<Self, SecretError> {
        Self::new(text.trim_ascii())
    }

    /// The secret in a file, without leading and trailing white space. Only the owner of the file
    /// should have read permission.
    ///
    /// # Errors
    /// If the file cannot be read, or is too short or too long.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        match fs::read(path) {
            Ok(bytes) => Self::from_text(&bytes),
            Err(cause) => Err(SecretError::File {
                path: path.display().to_string(),
                cause,
            }),
        }
    }

    /// The secret in an environment variable. Other processes of the same user can read it there.
    ///
    /// # Errors
    /// If the variable is not set, or is too short or too long.
    pub fn from_env(name: &str) -> Result<Self, SecretError> {
        match env::var(name) {
            Ok(text) => Self::from_text(text.as_bytes()),
            Err(cause) => Err(SecretError::Variable {
                name: name.to_owned(),
                cause,
            }),
        }
    }

    /// A derived key for another purpose of the same job. `context` must be unique for that
    /// purpose.
    #[must_use]
    pub fn derive_key(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, &self.0)
    }

    /// The job's access key.
    #[must_use]
    pub fn access_key(&self) -> AccessKey {
        AccessKey::new(blake3::derive_key(ACCESS_CONTEXT, &self.0))
    }

    /// The job's seal.
    #[must_use]
    pub fn seal(&self) -> Seal {
        Seal(Some(blake3::derive_key(SEAL_CONTEXT, &self.0)))
    }
}

impl fmt::Debug for Secret {
    /// Prints no bytes of the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A seal verifies that a message is intact and, with a secret, that it comes from the same job.
#[derive(Clone)]
pub struct Seal(Option<[u8; 32]>);

impl Seal {
    /// Bytes of a seal on a message.
    pub const BYTES: usize = 16;

    /// The seal of jobs without a secret. It detects damage, but any process can create it.
    pub const OPEN: Self = Self(None);

    /// The seal of a message, to append to the message.
    #[must_use]
    pub fn of(&self, message: &[u8]) -> [u8; Self::BYTES] {
        let hash = match &self.0 {
            Some(key) => blake3::keyed_hash(key, message),
            None => blake3::hash(message),
        };
        let mut seal = [0; Self::BYTES];
        seal.copy_from_slice(&hash.as_bytes()[..Self::BYTES]);
        seal
    }

    /// True if the seal belongs to the message. The comparison takes constant time.
    pub(crate) fn fits(&self, message: &[u8], seal: &[u8; Self::BYTES]) -> bool {
        let right = self.of(message);
        right
            .iter()
            .zip(seal)
            .fold(0, |differ, (a, b)| differ | (a ^ b))
            == 0
    }
}

impl fmt::Debug for Seal {
    /// Prints no bytes of the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Seal(..)"
        } else {
            "Seal(OPEN)"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::new(&[byte; 16]).expect("long enough")
    }

    #[test]
    fn one_secret_gives_one_access_key_and_another_gives_another() {
        assert_eq!(secret(1).access_key(), secret(1).access_key());
        assert_ne!(secret(1).access_key(), secret(2).access_key());
        assert_ne!(secret(1).access_key(), AccessKey::UCX_COMPATIBLE);
        // The seal's key must differ from the access key, because the adapter sees the access key.
        assert_ne!(secret(1).seal().0, Some(*secret(1).access_key().as_bytes()));
    }

    #[test]
    fn a_seal_fits_its_message_and_job_alone() {
        let (mine, other) = (secret(1).seal(), secret(2).seal());
        let seal = mine.of(b"message");
        assert!(mine.fits(b"message", &seal));
        assert!(!mine.fits(b"massage", &seal));
        assert!(!other.fits(b"message", &seal));
        assert!(!Seal::OPEN.fits(b"message", &seal));
        assert!(Seal::OPEN.fits(b"message", &Seal::OPEN.of(b"message")));
    }

    #[test]
    fn a_secret_comes_from_a_file_without_the_space_around_it() {
        let path = env::temp_dir().join(format!("xgvmi-secret-{}", std::process::id()));
        fs::write(&path, b"  0123456789abcdef\n").expect("written");
        let from_file = Secret::from_file(&path).map(|secret| secret.0);
        fs::remove_file(&path).expect("removed");
        assert_eq!(*from_file.expect("a secret"), *b"0123456789abcdef");
        assert!(matches!(
            Secret::from_file(&path),
            Err(SecretError::File { .. })
        ));
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        assert!(matches!(
            Secret::new(&[1; 15]),
            Err(SecretError::Length { len: 15, .. })
        ));
        assert!(matches!(
            Secret::new(&[1; 4097]),
            Err(SecretError::Length { len: 4097, .. })
        ));
        let unset = Secret::from_env("XGVMI_A_VARIABLE_THAT_IS_NOT_SET");
        assert!(matches!(unset, Err(SecretError::Variable { .. })));
    }

    /// The answers come from an implementation of BLAKE3 in Python that follows section 2 of its
    /// specification and shares no code with the crate.
    #[test]
    fn known_answers() {
        let hex =
            |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        let secret = Secret::new(b"0123456789abcdef").expect("long enough");
        assert_eq!(
            hex(secret.access_key().as_bytes()),
            "66209698f9328d3631b1869e2a82ee7564cb09e856e407a5d5314911f201b853"
        );
        assert_eq!(
            hex(&secret.seal().of(b"message")),
            "b503edbaa9b5b8c26b3fcca0b30ae330"
        );
    }

    #[test]
    fn secrets_are_not_printed() {
        let shown = format!("{:?} {:?}", secret(7), secret(7).seal());
        assert_eq!(shown, "Secret(..) Seal(..)");
    }
}
