//! Targets on block devices, and past the system's cache. Their files are where the build is: a file system in memory may have no
//! O_DIRECT.

mod common;

use common::{ENOSPC, Nbd, Running, SECTOR, bad, create, good, names, sector, skip, turn};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;
/// Bytes of a device.
const SIZE: u64 = 16 * MIB;
/// Sectors of a volume.
const SECTORS: usize = 1024;

/// A loop device on a file.
struct Loop(String);

impl Loop {
    /// None where the machine does not permit it.
    fn new(file: &Path, size: u64) -> Option<Self> {
        File::create(file).unwrap().set_len(size).unwrap();
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]).arg(file);
        let output = command.output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?;
        let is_made = output.status.success() && !name.trim().is_empty();
        is_made.then(|| Self(name.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Writes, kills the process, and reads through another one.
#[track_caller]
fn keeps_data(dir: &Path, targets: &[String], options: &[&str]) {
    let socket = dir.join("socket");
    let bytes = |version: u64| -> Vec<u8> {
        let sectors = 0..SECTORS;
        sectors.flat_map(|nth| sector(nth, version)).collect()
    };
    for version in 1..4 {
        let exporting = Running::export(targets, &socket, options);
        let mut client = Nbd::connect(&socket);
        client.write(0, &bytes(version)).unwrap();
        client.flush().unwrap();
        // A part of a block, beside the others.
        client.write_through(7 * SECTOR, &sector(7, 9)).unwrap();
        exporting.kill();
        let exporting = Running::export(targets, &socket, options);
        let mut client = Nbd::connect(&socket);
        let mut expect = bytes(version);
        expect[7 * SECTOR..8 * SECTOR].copy_from_slice(&sector(7, 9));
        let read = client.read(0, SECTORS * SECTOR).unwrap();
        assert!(read == expect, "version {version}");
        exporting.kill();
    }
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let report = good(&[&["scrub"], &targets[..], options].concat());
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let bad = ["bad_halves", "lost_blocks"].map(|name| report[name].as_u64());
    assert_eq!(bad, [Some(0); 2], "{report}");
}

#[test]
fn files_past_the_cache_keep_data_and_serve_with_it_too() {
    let _turn = turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let targets = names(&create(dir.path(), SECTORS * SECTOR, 4096));
    keeps_data(dir.path(), &targets, &["--direct"]);
    keeps_data(dir.path(), &targets, &[]);
    keeps_data(dir.path(), &targets, &["--direct"]);
}

#[test]
fn block_devices_are_targets_unless_they_hold_something_else() {
    let _turn = turn();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = |name: &str| dir.path().join(name);
    let made = ["a", "b", "c"].map(|name| Loop::new(&file(name), SIZE));
    let small = Loop::new(&file("small"), MIB);
    let ([Some(a), Some(b), Some(c)], Some(small)) = (&made, small) else {
        return skip(
            "block_devices_are_targets_unless_they_hold_something_else",
            "this user may not make loop devices",
        );
    };
    let devices = [a, b, c].map(|device| device.0.clone());
    let [a, b, c] = devices.each_ref().map(String::as_str);
    let size = ["--size", &(SECTORS * SECTOR).to_string()].map(str::to_owned);
    let create = |third: &str, more: &[&str]| {
        let size = size.each_ref().map(String::as_str);
        [&["create", a, b, third], &size[..], more]
            .concat()
            .join(" ")
    };
    let refused = |third: &str, more: &[&str], text: &str| {
        let words = create(third, more);
        let error = bad(&words.split(' ').collect::<Vec<_>>());
        assert!(
            error.contains(text) && error.contains('/'),
            "no '{text}': {error}"
        );
        assert_eq!(error.trim().lines().count(), 1, "{error}");
    };
    // What others keep at the start or at the end.
    let write = |device: &str, at: u64, bytes: &[u8]| {
        let file = File::options().write(true).open(device).unwrap();
        file.write_all_at(bytes, at).unwrap();
        file.sync_all().unwrap();
    };
    write(a, 0x438, &[0x53, 0xef]);
    refused(c, &[], "it holds an ext2, ext3 or ext4 file system");
    write(a, 0x438, &[0, 0]);
    write(a, SIZE - 512, b"EFI PART");
    refused(
        c,
        &[],
        "it holds other data: give another device, or --force",
    );
    refused(&small.0, &["--force"], "give it more");
    let mut held = [0; 8];
    let left = File::open(&small.0).unwrap();
    write(&small.0, 0, b"XFSB");
    refused(&small.0, &["--force"], "give it more");
    left.read_exact_at(&mut held, 0).unwrap();
    assert_eq!(held[..4], *b"XFSB", "it was overwritten");
    let words = create(c, &["--force"]);
    good(&words.split(' ').collect::<Vec<_>>());
    refused(c, &[], "it holds a target of xgvmi-blk");
    for options in [&[][..], &["--direct"]] {
        keeps_data(dir.path(), &devices, options);
    }
    // The system's device manager looks at a device that has changed, with a shared lock.
    let looks = File::open(b).unwrap();
    looks.lock_shared().unwrap();
    good(&["show", a, b, c]);
    drop(looks);
    // The device's own size is the capacity: more is ENOSPC, and what was flushed before is there.
    good(&["create", a, b, c, "--size", "64M", "--force"]);
    let exporting = Running::export(&devices, &file("socket"), &["--outage-limit", "0s"]);
    let mut client = Nbd::connect(&file("socket"));
    let mut random = fastrand::Rng::with_seed(1);
    let mut noise = vec![0; 1 << 20];
    random.fill(&mut noise);
    let mut offset = 0;
    let full = loop {
        match client.write(offset, &noise) {
            Ok(()) => client.flush().unwrap(),
            Err(error) => break error,
        }
        offset += noise.len();
    };
    assert_eq!(full, ENOSPC);
    assert!(offset > 8 << 20, "full after {offset} bytes");
    for offset in (0..offset).step_by(noise.len()) {
        assert!(
            client.read(offset, noise.len()).unwrap() == noise,
            "{offset}"
        );
    }
    exporting.kill();
    // Nobody else gets it while it is used, nor the other way round.
    let exporting = Running::export(&devices, &file("socket"), &[]);
    assert!(bad(&["show", a, b]).contains("another process uses this target"));
    refused(c, &["--force"], "it is in use");
    exporting.kill();
}
