//! Large volumes: what an export reads and keeps, and how long it takes, to open 16 TiB in files with holes, after a clean end
//! and after a kill; the same of as many small blocks as a dense volume has, whose target leaves and returns, and whose clients
//! never read their replies.

use super::loops::client::Client;
use super::place::Place;
use super::{FILES, LIMIT, START};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use testbed::port;
use testbed::process::{self, Running};

const URI: &str = "nbd+unix:///?socket=socket";
/// Name of the test.
pub(super) const NAME: &str = "large: a volume of 16 TiB opens by what has changed";
/// Ranges that are written, the distance between them, and the length of each: each is in a part of the index of its own, and
/// all are 2^20 blocks.
const RANGES: u64 = 512;
const APART_GIB: u64 = 31;
const RANGE: &str = "8M";
/// Most bytes that an opening may read, after a kill with the records of what is in change, too, and most memory of the process.
/// The index has 92 GiB for each target, of which 64 MiB are what is in change.
const READ_MAX: u64 = 256 << 20;
const RECORDS_MAX: u64 = 256 << 20;
const MEMORY_MAX: u64 = 1 << 30;

pub(super) fn run(place: &Place<'_>) -> Result<()> {
    place.create(16 << 20, 4096)?;
    let (export, empty) = open(place)?;
    let info = place.stock("nbdinfo", &["--size", URI])?;
    ensure!(info.trim() == (16_u64 << 40).to_string(), "{info}");
    ranges(place, "write", 1, RANGE)?;
    end(export)?;
    let (mut export, clean) = open(place)?;
    ranges(place, "read", 1, RANGE)?;
    ranges(place, "write", 2, "4k")?;
    export.group.kill();
    process::wait_until(LIMIT, || export.group.has_ended());
    let (export, killed) = open(place)?;
    ranges(place, "read", 2, "4k")?;
    let memory = memory(&export, "VmHWM:")?;
    let openings = [("new", empty), ("clean end", clean), ("kill", killed)];
    let rows = openings.map(|(after, opened)| {
        json!({"volume": "sparse", "after": after, "seconds": opened.time.as_secs_f64(), "read_bytes": opened.read})
    });
    report(place, "sparse", &rows, memory)?;
    for (after, opened) in openings {
        let more = RECORDS_MAX * u64::from(after == "kill");
        ensure!(
            opened.read < READ_MAX + more,
            "too much is read: {openings:?}"
        );
    }
    ensure!(memory < MEMORY_MAX, "too much memory: {memory}");
    Ok(())
}

/// What an opening has cost.
#[derive(Debug, Clone, Copy)]
struct Opened {
    read: u64,
    time: Duration,
}

/// Opens the volume on its files.
fn open(place: &Place<'_>) -> Result<(Running, Opened)> {
    serve(place, &FILES, &["--socket", "socket"])
}

fn serve(place: &Place<'_>, targets: &[&str], options: &[&str]) -> Result<(Running, Opened)> {
    let mut command = Command::new(place.world.bin.join("xgvmi-blk"));
    command.arg("export").args(targets).args(options);
    command.current_dir(&place.dir);
    let begun = Instant::now();
    let export = Running::saying(&mut command, START, "exports volume")?;
    let time = begun.elapsed();
    let read = field(&export, "io", "rchar:")?;
    Ok((export, Opened { read, time }))
}

fn end(mut export: Running) -> Result<()> {
    export.group.ask_to_end();
    let ended = process::wait_until(LIMIT, || export.group.has_ended());
    ensure!(ended, "SIGTERM has no effect");
    Ok(())
}

/// Rows of this volume in the report, in place of earlier ones.
fn report(place: &Place<'_>, volume: &str, rows: &[Value], memory: u64) -> Result<()> {
    let path = place.world.dir.join("storage-large.json");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let before: Value = serde_json::from_str(&text).unwrap_or_default();
    let kept = |key: &str| {
        let others = before[key].as_array().into_iter().flatten();
        let others = others.filter(|row| row["volume"] != volume);
        others.cloned().collect::<Vec<_>>()
    };
    let (mut openings, mut memories) = (kept("rows"), kept("memory"));
    openings.extend(rows.iter().cloned());
    memories.push(json!({"volume": volume, "most_bytes": memory}));
    let date = process::stdout(Command::new("date").args(["-u", "+%F"]), LIMIT)?;
    let report = json!({"date": date.trim(), "rows": openings, "memory": memories});
    fs::write(&path, format!("{report:#}\n")).with_context(|| path.display().to_string())
}

/// Bytes of memory of a process.
fn memory(running: &Running, name: &str) -> Result<u64> {
    Ok(field(running, "status", name)? << 10)
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
fn ranges(place: &Place<'_>, command: &str, pattern: u32, length: &str) -> Result<()> {
    let commands = (0..RANGES).map(|range| {
        let offset = range * APART_GIB;
        format!("{command} -P {pattern} {offset}G {length}")
    });
    let commands: Vec<String> = commands.collect();
    // A command has a limit of time.
    commands
        .chunks(32)
        .try_for_each(|commands| qemu_io(place, URI, commands.to_vec()))
}

fn qemu_io(place: &Place<'_>, uri: &str, commands: Vec<String>) -> Result<()> {
    let mut words = vec!["-f", "raw"];
    for command in &commands {
        words.extend(["-c", command]);
    }
    words.push(uri);
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

/// Name of the test.
pub(super) const DENSE: &str =
    "large: 2^22 blocks: opening, return of a target, and clients that never read";
const BLOCKS: u64 = 1 << 22;
const BLOCK: u32 = 512;
const DENSE_MIB: u64 = (BLOCKS * BLOCK as u64) >> 20;
/// Bytes of memory for each block, and besides: what STORAGE.md says.
const OF_BLOCK: u64 = 16;
const BESIDES: u64 = 240 << 20;
/// Bytes of a target's index for each block, which an opening after a kill reads at most once, besides maps.
const OF_INDEX: u64 = 24;
/// Clients that never read, the reads that each of them asks for, and the most that STORAGE.md lets each of them occupy.
const MUTES: u64 = 32;
const ASKS: u64 = 200;
const ASKED: usize = 1 << 20;
const OF_CLIENT: u64 = 32 << 20;

/// Writes or reads all blocks.
fn all(place: &Place<'_>, uri: &str, command: &str) -> Result<()> {
    for part in (0..DENSE_MIB).step_by(128) {
        let pieces = (part..part + 128).step_by(32);
        let commands = pieces.map(|at| format!("{command} -P 1 {at}M 32M"));
        qemu_io(place, uri, commands.collect())?;
    }
    Ok(())
}

/// Each block is in use.
pub(super) fn dense(place: &Place<'_>) -> Result<()> {
    place.create(DENSE_MIB, BLOCK)?;
    let (export, _) = open(place)?;
    all(place, URI, "write")?;
    let used = memory(&export, "VmHWM:")?;
    let may = OF_BLOCK * BLOCKS + BESIDES;
    ensure!(used <= may, "{used} bytes of memory for {BLOCKS} blocks");
    end(export)?;
    let mut targets = Vec::new();
    for name in FILES {
        targets.push(place.new_target(name)?);
    }
    let addresses: Vec<String> = targets.iter().map(|target| target.1.clone()).collect();
    let words: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let port = port::free()?;
    let listen = format!("127.0.0.1:{port}");
    let uri = format!("nbd://{listen}");
    let clients = (MUTES + 4).to_string();
    let options = "--status-socket status --target-timeout 5s --clients";
    let mut options: Vec<&str> = options.split(' ').collect();
    options.extend([clients.as_str(), "--listen", &listen]);
    let (mut export, clean) = serve(place, &words, &options)?;
    let after_open = memory(&export, "VmHWM:")?;
    all(place, &uri, "read")?;
    // A target leaves, some blocks change, and it returns.
    targets[1].0.group.kill();
    process::wait_until(LIMIT, || targets[1].0.group.has_ended());
    let some = (0..64).map(|part| format!("write -P 2 {}M 64k", part * 32));
    qemu_io(place, &uri, some.collect())?;
    let address = addresses[1].replace("tcp:", "");
    let before = field(&export, "io", "rchar:")?;
    targets[1] = place.target(FILES[1], &address)?;
    place.settle()?;
    let export_read = field(&export, "io", "rchar:")? - before;
    let target_read = field(&targets[1].0, "io", "rchar:")?;
    export.group.kill();
    process::wait_until(LIMIT, || export.group.has_ended());
    let (export, killed) = serve(place, &words, &options)?;
    let some = (0..64).map(|part| format!("read -P 2 {}M 64k", part * 32));
    qemu_io(place, &uri, some.collect())?;
    let mute_memory = mutes(place, &export, (port, &uri))?;
    let rows = [("clean end", clean), ("kill", killed)].map(|(after, opened)| {
        json!({
            "volume": "dense", "after": after, "seconds": opened.time.as_secs_f64(), "read_bytes": opened.read,
            "memory_bytes": after_open, "return_read_bytes": export_read, "returned_target_read_bytes": target_read,
            "mute_clients_bytes": mute_memory,
        })
    });
    report(place, "dense", &rows, used)?;
    let index = OF_INDEX * BLOCKS;
    for read in [clean.read, killed.read, export_read, target_read] {
        ensure!(
            read < 3 * index,
            "more is read than three times the index: {rows:?}"
        );
    }
    ensure!(after_open <= may, "too much memory: {rows:?}");
    drop((export, targets));
    place.scrub().map(drop)
}

/// Clients that send requests and never read replies. Returns the memory that they cost. Meanwhile others are served.
fn mutes(place: &Place<'_>, export: &Running, (port, uri): (u16, &str)) -> Result<u64> {
    let before = memory(export, "VmRSS:")?;
    let mut mutes = Vec::new();
    for _ in 0..MUTES {
        let mut client = Client::connect(port)?;
        for ask in 0..ASKS {
            ensure!(
                client.ask((ask % 1024) << 20, ASKED),
                "the export is gone: {}",
                export.said()
            );
        }
        mutes.push(client);
    }
    for _ in 0..4 {
        let reads = (0..8).map(|part| format!("read -P 1 {}M 1M", part * 32 + 8));
        qemu_io(place, uri, reads.collect())?;
    }
    let most = memory(export, "VmHWM:")?;
    let grown = most.saturating_sub(before);
    ensure!(
        grown <= MUTES * OF_CLIENT + BESIDES,
        "{MUTES} clients that do not read cost {grown} bytes"
    );
    drop(mutes);
    qemu_io(place, uri, vec!["read -P 1 8M 1M".to_owned()])?;
    Ok(grown)
}
