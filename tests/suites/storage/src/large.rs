//! A volume of 16 TiB in files with holes: what an export reads and keeps to open it, after a clean end and after a kill.

use super::place::Place;
use super::{FILES, LIMIT, START};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use std::fs;
use std::process::Command;
use testbed::process::{self, Running};

const URI: &str = "nbd+unix:///?socket=socket";
/// Name of the test.
pub(super) const NAME: &str = "large: a volume of 16 TiB opens by what has changed";
/// Ranges that are written, and the distance between them: each is in a part of the index of its own.
const RANGES: u64 = 512;
const APART_GIB: u64 = 31;
/// Most bytes that an opening may read, and most memory of the process, of an index with 92 GiB for each target.
const READ_MAX: u64 = 256 << 20;
const MEMORY_MAX: u64 = 1 << 30;

pub(super) fn run(place: &Place<'_>) -> Result<()> {
    place.create(16 << 20, 4096)?;
    let (mut export, empty) = open(place)?;
    let info = place.stock("nbdinfo", &["--size", URI])?;
    ensure!(info.trim() == (16_u64 << 40).to_string(), "{info}");
    work(place, "write", 1)?;
    export.group.ask_to_end();
    ensure!(
        process::wait_until(LIMIT, || export.group.has_ended()),
        "SIGTERM has no effect"
    );
    let (mut export, clean) = open(place)?;
    work(place, "read", 1)?;
    work(place, "write", 2)?;
    export.group.kill();
    process::wait_until(LIMIT, || export.group.has_ended());
    let (export, killed) = open(place)?;
    work(place, "read", 2)?;
    let memory = field(&export, "status", "VmHWM:")? << 10;
    let report = json!({
        "opened_new": empty, "opened_after_a_clean_end": clean, "opened_after_a_kill": killed, "memory": memory,
    });
    let path = place.world.dir.join("storage-large.json");
    fs::write(&path, format!("{report:#}\n")).with_context(|| path.display().to_string())?;
    for bytes in [empty, clean, killed] {
        ensure!(bytes < READ_MAX, "too much is read: {report}");
    }
    ensure!(memory < MEMORY_MAX, "too much memory: {report}");
    Ok(())
}

/// Opens the volume. Returns the bytes that the export has read until it served.
fn open(place: &Place<'_>) -> Result<(Running, u64)> {
    let mut command = Command::new(place.world.bin.join("xgvmi-blk"));
    command
        .arg("export")
        .args(FILES)
        .args(["--socket", "socket"]);
    command.current_dir(&place.dir);
    let export = Running::saying(&mut command, START, "exports volume")?;
    let read = field(&export, "io", "rchar:")?;
    Ok((export, read))
}

/// A number of a file of `/proc`.
fn field(running: &Running, file: &str, name: &str) -> Result<u64> {
    let path = format!("/proc/{}/{file}", running.group.child.id());
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .with_context(|| text.clone())?
        .parse()
        .with_context(|| text.clone())
}

/// Writes or reads all ranges by one run of qemu-io.
fn work(place: &Place<'_>, command: &str, pattern: u32) -> Result<()> {
    let commands: Vec<String> = (0..RANGES)
        .map(|range| format!("{command} -P {pattern} {}G 4k", range * APART_GIB))
        .collect();
    let mut words = vec!["-f", "raw"];
    for command in &commands {
        words.extend(["-c", command]);
    }
    words.push(URI);
    let said = place.stock("qemu-io", &words)?;
    ensure!(!said.contains("failed") && !said.contains("rror"), "{said}");
    let bytes = said.matches("bytes at offset").count();
    ensure!(
        bytes == commands.len(),
        "{bytes} of {} commands",
        commands.len()
    );
    Ok(())
}
