//! The secret that the processes of a job share, and what is made from it: the access key that opens
//! their memory keys to each other, and the seal of their messages.

use std::fmt;
use std::path::Path;
use std::{env, fs, io};

use crate::key::AccessKey;

/// What the derived keys are for, so that one never serves as another.
const ACCESS_CONTEXT: &str = "xgvmi 2026 mkey access key";
const SEAL_CONTEXT: &str = "xgvmi 2026 announcement seal";

/// Something that only the processes of one job know. Without one, jobs use what every stock UCX
/// uses, which keeps nobody out.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret in {path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        cause: io::Error,
    },
    /// The variable is not set, or is no text.
    #[error("the environment variable {name} contains no valid secret: {cause}")]
    Variable {
        /// The variable.
        name: String,
        /// Why not.
        cause: env::VarError,
    },
    /// Too short to be one, or so long that it is something else.
    #[error("a secret of {len} bytes instead of {min} to {max}")]
    Length {
        /// Its length.
        len: usize,
        /// Fewest bytes.
        min: usize,
        /// Most bytes.
        max: usize,
    },
}

impl Secret {
    /// Fewest bytes: 128 bits, if they are random.
    pub const BYTES_MIN: usize = 16;
    /// Most bytes: a longer file is a mistake.
    pub const BYTES_MAX: usize = 4096;

    /// A secret from bytes, which should be random.
    ///
    /// # Errors
    /// If there are too few or too many.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        let (len, min, max) = (bytes.len(), Self::BYTES_MIN, Self::BYTES_MAX);
        if (min..=max).contains(&len) {
            Ok(Self(bytes.into()))
        } else {
            Err(SecretError::Length { len, min, max })
        }
    }

    /// The secret in what a file holds, without the white space around it.
    ///
    /// # Errors
    /// If it is too short or too long.
    pub fn from_text(text: &[u8]) -> Result<Self, SecretError> {
        Self::new(text.trim_ascii())
    }

    /// The secret in a file, without the white space around it. Its owner alone should be able to
    /// read it.
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

    /// A key for something else of the same job, which `context` names as nothing else does.
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
    /// Never shows the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Tells whether a message is whole and, with a secret, whether it comes from the same job.
#[derive(Clone)]
pub struct Seal(Option<[u8; 32]>);

impl Seal {
    /// Bytes of a seal on a message.
    pub const BYTES: usize = 16;

    /// The seal of jobs without a secret: it finds damage, and keeps nobody out.
    pub const OPEN: Self = Self(None);

    /// The seal of a message, which goes behind it.
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

    /// True if the seal is that of the message. Takes as long for a wrong one as for the right one.
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
    /// Never shows the key.
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
        // The seal's key must not be the access key, which the adapter is shown.
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

    #[test]
    fn secrets_are_not_printed() {
        let shown = format!("{:?} {:?}", secret(7), secret(7).seal());
        assert_eq!(shown, "Secret(..) Seal(..)");
    }
}
