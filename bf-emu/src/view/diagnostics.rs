//! Diagnostic counters of congestion control in the tree: `/sys/kernel/debug/mlx5/PCI/diag_cnt/dump`.
//!
//! DOCA's script `pcc_counters.sh` writes the numbers of the counters that it wants into the files of this directory, and reads
//! the values from `dump`: a line for each, with its number, two words that it ignores, and the value. All counters are always
//! there, so what is written has no effect. As with `hw_counters`, a reader's process writes the present values first.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::fabric::Fabric;
use crate::fabric::congestion::DIAGNOSTIC_IDS;

/// Directory of the counters, below that of a device; its files; and the one with the values.
pub(super) const DIR: &str = "diag_cnt";
pub(super) const FILES: [&str; 3] = ["counter_id", "params", DUMP];
pub(super) const DUMP: &str = "dump";

/// Writes the values of a function's card into the file at `path`.
///
/// # Errors
/// Errors of the file system.
pub fn refresh(fabric: &Fabric, function: usize, path: &[u8]) -> io::Result<()> {
    let mut text = String::new();
    let counters = fabric.diagnostics(fabric.card(function));
    for (id, (_, value)) in DIAGNOSTIC_IDS.iter().zip(counters) {
        let _ = writeln!(text, "{id:04x},0,0,{value}");
    }
    let file = OpenOptions::new()
        .write(true)
        .open(Path::new(OsStr::from_bytes(path)))?;
    // Values never fall, so that under the lock no text replaces a longer one.
    file.lock()?;
    file.write_all_at(text.as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine;
    use crate::fabric::congestion::Diagnostic;
    use crate::model::profile::Profile;
    use crate::model::topology::Topology;

    #[test]
    fn the_file_has_a_line_for_each_counter() {
        let dir = tempfile::tempdir().unwrap();
        let topology = Topology::with_nodes(1).unwrap();
        let fabric =
            engine::create(dir.path(), &topology, &Profile::load("none").unwrap()).unwrap();
        let path = dir.path().join(DUMP);
        std::fs::write(&path, "set\n").unwrap();
        let card = fabric.card(1);
        for _ in 0..12 {
            fabric.diagnose(card, Diagnostic::HandledTx);
        }
        refresh(&fabric, 1, path.as_os_str().as_bytes()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), Diagnostic::ALL.len(), "{text}");
        assert!(text.starts_with("0a07,0,0,0\n"), "{text}");
        assert!(text.lines().any(|line| line == "2013,0,0,12"), "{text}");
    }
}
