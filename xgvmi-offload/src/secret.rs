//! The secret of a site's ranks and SPs.

use super::error::Result;
use std::path::Path;
use xgvmi_daemon::Secret;

/// The purpose of a key that is derived from the file. Another use of the same file gets another key.
const CONTEXT: &str = "xgvmi 2026 service process control traffic";

/// Reads the file of `--secret-file`.
pub(super) fn read(path: &Path) -> Result<Secret> {
    Ok(Secret::read(path, CONTEXT)?)
}
