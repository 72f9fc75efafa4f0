//! The secret of a service that reads it again on SIGHUP. Peers may prove the previous one for a limited time.

use crate::error::{DaemonError, Result};
use crate::secret::Secret;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time during which a replaced secret still opens connections: peers that start at this moment have read the old one.
const OLD_LIMIT: Duration = Duration::from_secs(300);

/// The current secret and the previous one; none without a file.
#[derive(Debug)]
pub struct Secrets {
    file: Option<PathBuf>,
    context: &'static str,
    /// The current one is the first.
    all: Vec<Secret>,
    old_until: Instant,
}

impl Secrets {
    /// Reads the file, if there is one, as [`Secret::read`] does.
    ///
    /// # Errors
    /// As [`Secret::read`].
    pub fn read(file: Option<PathBuf>, context: &'static str) -> Result<Self> {
        let secret = file.as_deref().map(|file| Secret::read(file, context));
        Ok(Self {
            all: secret.transpose()?.into_iter().collect(),
            file,
            context,
            old_until: Instant::now(),
        })
    }

    /// The secrets, one of which a new connection must prove; without any, everyone is served.
    #[must_use]
    pub fn all(&self) -> &[Secret] {
        &self.all
    }

    /// Forgets the previous secret when its time is over.
    pub fn expire(&mut self, now: Instant) {
        if now > self.old_until {
            self.all.truncate(1);
        }
    }

    /// Reads the file again. Existing connections keep the secret that they have proved. Returns the event for the log.
    ///
    /// # Errors
    /// The file cannot be read; the secret is unchanged.
    pub fn reload(&mut self) -> Result<String> {
        let Some(file) = &self.file else {
            return Ok("SIGHUP: no effect without --secret-file".to_owned());
        };
        let secret = Secret::read(file, self.context).map_err(|error| {
            DaemonError::Failed(format!("SIGHUP: the secret is unchanged: {error}"))
        })?;
        let file = file.display();
        if self.all.first() == Some(&secret) {
            return Ok(format!("SIGHUP: the secret in {file} has not changed"));
        }
        self.all.insert(0, secret);
        // Secrets older than the previous one are dropped.
        self.all.truncate(2);
        self.old_until = Instant::now() + OLD_LIMIT;
        Ok(format!(
            "SIGHUP: a new secret from {file}; the old one is accepted for another {} s",
            OLD_LIMIT.as_secs()
        ))
    }
}
