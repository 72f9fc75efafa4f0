//! The runner's log: its standard error, a file of the state directory.

use std::io::Write as _;

/// Writes a line to the runner's log. A full disk loses it.
pub(super) fn log(text: &str) {
    let _ = writeln!(std::io::stderr(), "bf-emu: dpa: {text}");
}
