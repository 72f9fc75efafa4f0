//! A power loss at each moment: the disk of an export's targets is a dm-log-writes device, whose log is replayed up to each
//! flush, to each mark, and to moments between them. The volume must open there and have what was flushed.
//!
//! `storage-crash` makes the log, where root and device mapper are. What it writes follows from a seed, so the replay knows it
//! and needs neither.

use super::loops::client::{Client, SECTOR};
use super::loops::ledger::{BLOCK, Ledger, Write};
use super::{FILES, START};
use crate::crash::{system, write};
use anyhow::{Context as _, Result, ensure};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::process::{self, Running};

/// Size of the volume, and of each target's part of the disk.
const VOLUME: usize = 1 << 20;
const PART: u64 = 6 << 20;
const DISK: u64 = PART * FILES.len() as u64;
/// A command of the system.
const LIMIT: Duration = Duration::from_secs(60);
/// Moments of a replay beside flushes and marks, about.
const MOMENTS: usize = 200;
/// Beginning of the names of marks.
const MARK: &str = "xgvmi-";

/// What is written, a function of the seed.
struct Plan {
    ledger: Ledger,
    random: fastrand::Rng,
}

impl Plan {
    fn new(seed: u64) -> Self {
        Self {
            ledger: Ledger::new(VOLUME / SECTOR),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Writes of a round, whose second part follows the answers to the first one.
    fn round(&mut self) -> [Vec<Write>; 2] {
        [6, 4].map(|count| self.ledger.batch(count, &mut self.random))
    }

    fn flushed(&mut self, writes: &[Vec<Write>; 2]) {
        let all = writes.iter().flatten();
        all.for_each(|write| self.ledger.done(write));
    }
}

/// The devices of a log. The last one is the log's own.
struct Devices {
    names: Vec<String>,
    loops: String,
}

impl Drop for Devices {
    fn drop(&mut self) {
        // After a failure some of it was never there.
        for name in self.names.iter().rev() {
            let _ = Command::new("dmsetup")
                .args(["remove", "--retry", name])
                .output();
        }
        let _ = Command::new("losetup").args(["-d", &self.loops]).output();
    }
}

impl Devices {
    fn new(dir: &Path, log: &Path) -> Result<Self> {
        let image = dir.join("logged.image");
        File::create(&image)?.set_len(DISK)?;
        let loops = system(&["losetup", "-f"])?.trim().to_owned();
        system(&["losetup", &loops, &image.display().to_string()])?;
        let mut devices = Self {
            names: Vec::new(),
            loops: loops.clone(),
        };
        let sectors = DISK / SECTOR as u64;
        let table = format!("0 {sectors} log-writes {loops} {}", log.display());
        devices.add("log", &table)?;
        let part = PART / SECTOR as u64;
        for (at, name) in (0..).zip(FILES) {
            let table = format!("0 {part} linear {} {}", devices.path(0), at * part);
            devices.add(name, &table)?;
        }
        Ok(devices)
    }

    fn add(&mut self, name: &str, table: &str) -> Result<()> {
        let name = format!("xgvmi-{}-{name}", std::process::id());
        system(&["dmsetup", "create", &name, "--table", table])?;
        self.names.push(name);
        Ok(())
    }

    fn path(&self, index: usize) -> String {
        format!("/dev/mapper/{}", self.names[index])
    }

    fn mark(&self, number: u64) -> Result<()> {
        let mark = format!("{MARK}{number}");
        system(&["dmsetup", "message", &self.names[0], "0", "mark", &mark]).map(drop)
    }
}

fn export(program: &Path, targets: &[String], options: &[&str]) -> Result<(Running, Client)> {
    let mut export = Command::new(program);
    let port = testbed::port::free()?;
    export.arg("export").args(targets).args(options);
    export.args(["--listen", &format!("127.0.0.1:{port}")]);
    let export = Running::saying(&mut export, START, "exports volume")?;
    Ok((export, Client::connect(port)?))
}

/// Makes a log on the block device `log`: an export whose targets are on one disk, with a mark after each flush. Half way it is
/// killed, and goes on past the system's cache.
///
/// # Errors
/// The system refuses something, or the export fails.
pub fn record(
    program: &Path,
    (dir, log): (&Path, &Path),
    (rounds, seed): (u64, u64),
) -> Result<String> {
    let devices = Devices::new(dir, log)?;
    let targets: Vec<String> = (1..=FILES.len()).map(|at| devices.path(at)).collect();
    let mut create = Command::new(program);
    create.arg("create").args(&targets);
    process::stdout(create.args(["--size", &VOLUME.to_string()]), LIMIT)?;
    devices.mark(0)?;
    let mut plan = Plan::new(seed);
    let mut serving = export(program, &targets, &[])?;
    for round in 1..=rounds {
        let writes = plan.round();
        for batch in &writes {
            write(&mut serving.1, batch.clone())?;
        }
        serving.1.flush()?;
        plan.flushed(&writes);
        devices.mark(round)?;
        if round == rounds / 2 {
            drop(serving);
            serving = export(program, &targets, &["--direct"])?;
        }
    }
    drop(serving);
    Ok(format!("{rounds} flushes in the log"))
}

/// One entry of a log.
struct Entry {
    /// Bytes of the disk that it changes.
    offset: u64,
    length: usize,
    /// Where its data is in the log. `None`: zeros.
    data: Option<u64>,
    ends_flush: bool,
    mark: Option<u64>,
}

/// Flags of an entry, as Linux' `drivers/md/dm-log-writes.c` writes them.
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARKED: u64 = 8;
const MAGIC: u64 = 0x006a_7366_7773_6872;

/// Reads the entries of a log.
fn entries(log: &File) -> Result<Vec<Entry>> {
    let word = |at: u64| -> Result<u64> {
        let mut bytes = [0; 8];
        log.read_exact_at(&mut bytes, at)?;
        Ok(u64::from_le_bytes(bytes))
    };
    ensure!(
        word(0)? == MAGIC && word(8)? == 1,
        "no log of dm-log-writes"
    );
    let (count, sector) = (word(16)?, word(24)? & 0xffff_ffff);
    let mut at = sector;
    let mut all = Vec::new();
    for _ in 0..count {
        let (first, sectors, flags, named) =
            (word(at)?, word(at + 8)?, word(at + 16)?, word(at + 24)?);
        let mut name = vec![0; usize::try_from(named)?.min(64)];
        log.read_exact_at(&mut name, at + 32)?;
        let mark = String::from_utf8_lossy(&name).into_owned();
        let mark = mark.trim_end_matches('\0').strip_prefix(MARK);
        let has_data = flags & (DISCARD | MARKED) == 0;
        all.push(Entry {
            offset: first * sector,
            length: usize::try_from(sectors * sector)?,
            data: has_data.then_some(at + sector),
            ends_flush: flags & (FLUSH | FUA) != 0,
            mark: match flags & MARKED {
                0 => None,
                _ => mark.map(str::parse).transpose().context("a mark")?,
            },
        });
        at += sector + if has_data { sectors * sector } else { 0 };
    }
    Ok(all)
}

/// Replays a log. Returns how many moments were judged, and how many blocks could not be read there.
///
/// # Errors
/// The volume does not open at a moment, or does not have there what was flushed.
pub(super) fn replay(
    program: &Path,
    (dir, log): (&Path, &Path),
    (rounds, seed): (u64, u64),
) -> Result<(usize, u64)> {
    let log = File::open(log).with_context(|| log.display().to_string())?;
    let entries = entries(&log)?;
    let marks: Vec<u64> = entries.iter().filter_map(|entry| entry.mark).collect();
    ensure!(
        marks.iter().copied().eq(0..=rounds),
        "the marks are {marks:?}"
    );
    // Before and after each flush.
    let mut plan = Plan::new(seed);
    let mut known = vec![plan.ledger.clone()];
    for _ in 0..rounds {
        let writes = plan.round();
        known.push(plan.ledger.clone());
        plan.flushed(&writes);
        known.push(plan.ledger.clone());
    }
    let last = known.len() - 1;
    let wanted = |entry: &Entry| entry.ends_flush || entry.mark.is_some();
    let created = entries.iter().position(|entry| entry.mark == Some(0));
    let created = created.context("no mark of the creation")?;
    // Also within what a flush makes durable: a part of it may be there.
    let step = entries.len().div_ceil(MOMENTS);
    let mut disk = vec![0; usize::try_from(DISK)?];
    let (mut stage, mut moments, mut errors) = (0, 0, 0);
    for (at, entry) in entries.iter().enumerate() {
        let range = usize::try_from(entry.offset)?..usize::try_from(entry.offset)? + entry.length;
        let bytes = disk.get_mut(range).context("an entry beyond the disk")?;
        match entry.data {
            Some(data) => log.read_exact_at(bytes, data)?,
            None => bytes.fill(0),
        }
        if let Some(mark) = entry.mark {
            stage = 2 * usize::try_from(mark)?;
        }
        if at < created || !(wanted(entry) || at.is_multiple_of(step)) {
            continue;
        }
        // Behind a mark the next round may have begun.
        let ledger = &known[match entry.mark {
            Some(_) => stage,
            None => (stage + 1).min(last),
        }];
        errors += judge(program, dir, &disk, ledger.clone()).with_context(|| {
            format!(
                "entry {at} of {}, after mark {}, of seed {seed}",
                entries.len(),
                stage / 2
            )
        })?;
        moments += 1;
    }
    Ok((moments, errors))
}

/// Opens the volume on the disk as it is at a moment, and compares all blocks. Returns how many cannot be read.
fn judge(program: &Path, dir: &Path, disk: &[u8], mut ledger: Ledger) -> Result<u64> {
    let targets: Vec<PathBuf> = FILES
        .iter()
        .map(|name| dir.join(format!("{name}.part")))
        .collect();
    for (target, part) in targets.iter().zip(disk.chunks(usize::try_from(PART)?)) {
        fs::write(target, part)?;
    }
    let names: Vec<String> = targets
        .iter()
        .map(|target| target.display().to_string())
        .collect();
    let (_export, mut client) = export(program, &names, &[])?;
    let mut errors = 0;
    for first in (0..ledger.sectors()).step_by(BLOCK) {
        let mut bytes = [0; BLOCK * SECTOR];
        match client.read(first as u64 * SECTOR as u64, &mut bytes) {
            Ok(()) => ledger.check(first, &bytes)?,
            Err(error) if ledger.is_settled(first, BLOCK) => return Err(error),
            Err(_) => errors += 1,
        }
    }
    Ok(errors)
}
