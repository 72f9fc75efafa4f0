//! Secrets.

use anyhow::Result;
use std::path::Path;
use xgvmi_daemon::Secret;

/// Purpose of the key that is derived from a secret file. Another use of the same file derives another key.
const SECRET_CONTEXT: &str = "xgvmi 2026 block storage target traffic";

/// Reads a secret of target traffic.
pub(super) fn secret(path: &Path) -> Result<Secret> {
    Ok(Secret::read(path, SECRET_CONTEXT)?)
}

/// Reads a secret of initiators.
///
/// # Errors
/// The file cannot be read, or is no secret.
pub fn initiator_secret(path: &Path) -> Result<Secret> {
    Ok(Secret::read(path, crate::client::SECRET_CONTEXT)?)
}
