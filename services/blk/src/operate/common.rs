//! Secrets, and the names to which they belong.

use anyhow::{Result, ensure};
use std::path::Path;
use xgvmi_daemon::Secret;

/// Purpose of the key that is derived from a secret file. Another use of the same file derives another key.
const SECRET_CONTEXT: &str = "xgvmi 2026 block storage target traffic";

/// Longest name of an initiator or a volume.
const NAME_MAX: usize = 64;

/// Reads a secret of target traffic.
pub(super) fn secret(path: &Path) -> Result<Secret> {
    Ok(Secret::read(path, SECRET_CONTEXT)?)
}

/// Reads a secret of initiators: that of all, or of the one with a name.
///
/// # Errors
/// The file cannot be read or is no secret, or the name cannot be one.
pub fn initiator_secret(path: &Path, name: Option<&str>) -> Result<Secret> {
    match name {
        Some(name) => {
            check_name("an initiator", name)?;
            named_secret(path, name)
        }
        None => Ok(Secret::read(path, crate::client::SECRET_CONTEXT)?),
    }
}

/// The secret of an initiator with a name, which is another one for each name.
pub(super) fn named_secret(path: &Path, name: &str) -> Result<Secret> {
    let secret = Secret::read(path, crate::client::SECRET_CONTEXT)?;
    Ok(secret.derived(format!("initiator {name}").as_bytes()))
}

/// Checks the name of an initiator or a volume.
///
/// # Errors
/// It is none.
pub(super) fn check_name(of: &str, name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    ensure!(
        (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_plain),
        "'{name}': the name of {of} has 1 to {NAME_MAX} letters, digits, '.', '_' or '-'"
    );
    Ok(())
}
