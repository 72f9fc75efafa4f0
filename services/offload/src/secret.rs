//! The secret that a site's ranks and SPs share.

use super::error::Result;
use std::path::Path;
use xgvmi_daemon::Secret;

/// Purpose of the key that is derived from the file. Another use of the same file derives another key.
pub(super) const CONTEXT: &str = "xgvmi 2026 service process control traffic";

/// Reads the file given by `--secret-file`.
pub(super) fn read(path: &Path) -> Result<Secret> {
    Ok(Secret::read(path, CONTEXT)?)
}
