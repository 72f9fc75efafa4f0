//! Core files of processes of the DPA.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use dpa_os::Os;

/// Bytes of one write.
const PART: usize = 256 << 10;

/// Writes the state of a process to a file. An incomplete file is removed.
pub(super) fn write(os: &Os, path: &str) -> io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    let written = copy(os, &mut file);
    if written.is_err() {
        // The disk is full: what is there helps nobody.
        let _ = std::fs::remove_file(path);
    }
    written
}

fn copy(os: &Os, to: &mut impl Write) -> io::Result<()> {
    let core = os.core_file();
    let mut part = vec![0; PART];
    let mut offset = 0;
    while offset < core.bytes() {
        let count = os.read_core(&core, offset, &mut part);
        if count == 0 {
            break;
        }
        to.write_all(&part[..count])?;
        offset += count as u64;
    }
    Ok(())
}
