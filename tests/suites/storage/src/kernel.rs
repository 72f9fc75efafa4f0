//! Exports as block devices of this machine's kernel: ublk by libnbd's nbdublk, nbd by nbd-client. Most machines of tests lack
//! one or the other; each test says what it lacks.

use super::place::Place;
use super::{LIMIT, START, VERIFY, World};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::process::{self, Running};

/// A group of xfstests or blktests.
const GROUP: Duration = Duration::from_hours(2);
/// Device of ublk, which has to be free.
const UBLK: &str = "/dev/ublkb7";

/// Result of a test, or why this machine cannot run it.
pub type Kernel = Result<Result<()>, String>;

type Test = fn(&Place<'_>) -> Result<()>;

/// A test, and what it lacks here.
type Named = (&'static str, fn() -> Option<String>, Test);

const TESTS: [Named; 3] = [
    (
        "kernel: a device of ublk, verified by fio",
        lacks_ublk,
        ublk,
    ),
    (
        "kernel: xfstests' generic group on two devices",
        lacks_xfstests,
        xfstests,
    ),
    ("kernel: blktests' block group", lacks_blktests, blktests),
];

/// Runs all tests that are wanted.
///
/// # Errors
/// A directory cannot be created.
pub fn run_kernel(world: &World<'_>) -> Result<Vec<(&'static str, Kernel)>> {
    let wants = |name: &str| {
        let parts = &world.parts;
        parts.is_empty() || parts.iter().any(|part| name.contains(part.as_str()))
    };
    let wanted = TESTS.iter().filter(|(name, ..)| wants(name));
    wanted
        .map(|(name, lacks, test)| {
            let result = match lacks() {
                Some(reason) => Err(reason),
                None => Ok(test(&Place::on_host(world, "storage-kernel")?)),
            };
            Ok((*name, result))
        })
        .collect()
}

fn lacks_program(name: &str) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = [PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")];
    let mut dirs = std::env::split_paths(&path).chain(sbin);
    let is_there = dirs.any(|dir| dir.join(name).is_file());
    (!is_there).then(|| format!("needs {name}"))
}

fn lacks_device(path: &str) -> Option<String> {
    let opened = fs::File::options().read(true).write(true).open(path);
    opened
        .err()
        .map(|error| format!("needs {path} of the kernel: {error}"))
}

fn lacks_ublk() -> Option<String> {
    lacks_device("/dev/ublk-control").or_else(|| lacks_program("nbdublk"))
}

/// What a device of nbd needs, and the directory in a variable with a program `check`.
fn lacks_nbd(devices: &[&str], variable: &str) -> Option<String> {
    let devices = devices.iter().find_map(|device| lacks_device(device));
    devices
        .or_else(|| lacks_program("nbd-client"))
        .or_else(|| directory(variable).err().map(|error| error.to_string()))
}

fn lacks_xfstests() -> Option<String> {
    lacks_nbd(&["/dev/nbd0", "/dev/nbd1"], "XGVMI_XFSTESTS")
}

fn lacks_blktests() -> Option<String> {
    lacks_nbd(&["/dev/nbd0"], "XGVMI_BLKTESTS")
}

fn directory(variable: &str) -> Result<PathBuf> {
    let dir = std::env::var_os(variable).map(PathBuf::from);
    let dir = dir.filter(|dir| dir.join("check").is_file());
    dir.with_context(|| format!("{variable} names no directory with a built check"))
}

/// nbdublk serves the export as a device. fio writes and verifies it; the image that dd reads is that of nbdcopy.
fn ublk(place: &Place<'_>) -> Result<()> {
    ensure!(!Path::new(UBLK).exists(), "{UBLK} is there already");
    place.create(super::SIZE_MIB, 4096)?;
    let server = place.export(&super::FILES)?;
    let is_device = || fs::metadata(UBLK).is_ok_and(|data| data.file_type().is_block_device());
    {
        let mut command = Command::new("nbdublk");
        command.args([UBLK, &server.uri]).current_dir(&place.dir);
        let mut served = Running::up(&mut command, START, |_| is_device())?;
        let filename = format!("--filename={UBLK}");
        let mut words = vec!["--name=job"];
        // Without the engine for NBD.
        words.extend(VERIFY.iter().filter(|word| !word.starts_with("--ioengine")));
        words.extend([
            "--ioengine=psync",
            "--direct=1",
            "--rw=randwrite",
            "--bs=4k",
            "--size=32M",
        ]);
        words.push(&filename);
        place.stock("fio", &words)?;
        let from = format!("if={UBLK}");
        place.stock("dd", &[&from, "of=of_device", "bs=1M", "iflag=direct"])?;
        // It deletes its device.
        served.group.wait(Duration::ZERO)?;
    }
    ensure!(process::wait_until(LIMIT, || !is_device()), "{UBLK} stays");
    place.stock("nbdcopy", &[&server.uri, "of_export"])?;
    place.same("of_device", "of_export")?;
    drop(server);
    place.scrub().map(drop)
}

/// A device of the kernel's nbd, which ends with it.
struct Nbd<'a> {
    place: &'a Place<'a>,
    device: &'static str,
}

impl<'a> Nbd<'a> {
    fn new(place: &'a Place<'a>, device: &'static str, volume: &str) -> Result<Self> {
        let words = ["-unix", "socket", device, "-N", volume];
        place.stock("nbd-client", &words)?;
        Ok(Self { place, device })
    }
}

impl Drop for Nbd<'_> {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.place.stock("nbd-client", &["-d", self.device]);
    }
}

/// One export with a volume in memory of 2 GiB for each name.
fn export(place: &Place<'_>, names: &[&str]) -> Result<Running> {
    let mut command = Command::new(place.world.bin.join("xgvmi-blk"));
    command
        .args(["export", "--socket", "socket"])
        .current_dir(&place.dir);
    for name in names {
        let files = ["1", "2", "3"].map(|part| format!("{name}{part}"));
        let mut words = vec!["create"];
        words.extend(files.iter().map(String::as_str));
        words.extend(["--size", "2G"]);
        place.ours(&words)?;
        command.arg(format!("--volume={name}={}", files.join(",")));
    }
    Running::saying(&mut command, START, "exports volume")
}

/// Runs `check` of a directory.
fn check(command: &mut Command, dir: &Path) -> Result<()> {
    let said = process::stdout(command.current_dir(dir), GROUP)?;
    ensure!(!said.contains("Failures:"), "{said}");
    Ok(())
}

fn xfstests(place: &Place<'_>) -> Result<()> {
    let dir = directory("XGVMI_XFSTESTS")?;
    let _server = export(place, &["test", "scratch"])?;
    let _devices = [
        Nbd::new(place, "/dev/nbd0", "test")?,
        Nbd::new(place, "/dev/nbd1", "scratch")?,
    ];
    place.stock("mkfs.ext4", &["-q", "/dev/nbd0"])?;
    let mut command = Command::new("./check");
    command.args(["-g", "generic/quick"]).env("FSTYP", "ext4");
    for (device, mount, at) in [
        ("TEST_DEV", "TEST_DIR", "test"),
        ("SCRATCH_DEV", "SCRATCH_MNT", "scratch"),
    ] {
        let path = place.path(&format!("{at}-mount"));
        fs::create_dir(&path)?;
        let number = u8::from(at == "scratch");
        command
            .env(mount, path)
            .env(device, format!("/dev/nbd{number}"));
    }
    check(&mut command, &dir)
}

fn blktests(place: &Place<'_>) -> Result<()> {
    let dir = directory("XGVMI_BLKTESTS")?;
    let _server = export(place, &["test"])?;
    let _device = Nbd::new(place, "/dev/nbd0", "test")?;
    let config = place.path("config");
    fs::write(&config, "TEST_DEVS=(/dev/nbd0)\n")?;
    let mut command = Command::new("./check");
    command.arg("--device-only").arg("--quick=60");
    check(command.arg("--config").arg(config).arg("block"), &dir)
}
