//! Power losses under an export: each target is a file of an ext4 on a dm-flakey device of its own, which drops what is
//! written from some moment on. What was flushed before is there afterwards.
//!
//! It needs root and device mapper, on the machine or in a virtual one: `storage-crash` is its command.

use super::loops::client::{Client, Heard, SECTOR};
use super::loops::ledger::{BLOCK, Ledger, Write};
use super::{FILES, START};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::process::{self, Running};

/// Size of the volume, and of each target's disk.
const VOLUME: usize = 2 << 20;
const DISK: u64 = 48 << 20;
/// A command of the system.
const LIMIT: Duration = Duration::from_secs(60);

/// A disk that can lose its power.
struct Disk {
    loops: String,
    mapped: String,
    mount: PathBuf,
}

impl Drop for Disk {
    fn drop(&mut self) {
        // After a failure some of it was never there.
        let mount = self.mount.display().to_string();
        for words in [
            &["umount", &mount][..],
            &["dmsetup", "remove", &self.mapped],
            &["losetup", "-d", &self.loops],
        ] {
            let _ = Command::new(words[0]).args(&words[1..]).output();
        }
    }
}

pub(super) fn system(words: &[&str]) -> Result<String> {
    process::stdout(Command::new(words[0]).args(&words[1..]), LIMIT)
}

impl Disk {
    fn new(dir: &Path, name: &str) -> Result<Self> {
        let image = dir.join(format!("{name}.image"));
        let file = fs::File::create(&image)?;
        file.set_len(DISK)?;
        let loops = system(&["losetup", "-f"])?.trim().to_owned();
        let path = |path: &Path| path.display().to_string();
        system(&["losetup", &loops, &path(&image)])?;
        let disk = Self {
            loops,
            mapped: format!("xgvmi-{}-{name}", std::process::id()),
            mount: dir.join(name),
        };
        system(&[
            "dmsetup",
            "create",
            &disk.mapped,
            "--table",
            &disk.table(true),
        ])?;
        let device = disk.device();
        system(&["mkfs.ext4", "-q", &device])?;
        fs::create_dir_all(&disk.mount)?;
        disk.mount()?;
        Ok(disk)
    }

    fn device(&self) -> String {
        format!("/dev/mapper/{}", self.mapped)
    }

    /// A device that is always up, or always loses what is written.
    fn table(&self, has_power: bool) -> String {
        let intervals = if has_power {
            "180 0"
        } else {
            "0 180 1 drop_writes"
        };
        let sectors = DISK / SECTOR as u64;
        format!("0 {sectors} flakey {} 0 {intervals}", self.loops)
    }

    /// Everything that is written from here on is lost, or stays.
    fn power(&self, is_on: bool) -> Result<()> {
        // Without a freeze of the file system, which would write everything first.
        system(&["dmsetup", "suspend", "--nolockfs", &self.mapped])?;
        system(&[
            "dmsetup",
            "load",
            &self.mapped,
            "--table",
            &self.table(is_on),
        ])?;
        system(&["dmsetup", "resume", &self.mapped]).map(drop)
    }

    fn mount(&self) -> Result<()> {
        let mount = self.mount.display().to_string();
        system(&["mount", "-t", "ext4", &self.device(), &mount]).map(drop)
    }

    /// What the machine had in memory is gone.
    fn restart(&self) -> Result<()> {
        system(&["umount", &self.mount.display().to_string()])?;
        self.power(true)?;
        self.mount()
    }
}

/// Loses the power in so many rounds, on disks below `dir`.
///
/// # Errors
/// What was flushed is not there, or the system refuses something.
pub fn lose_power(program: &Path, dir: &Path, (rounds, seed): (u64, u64)) -> Result<String> {
    let disks: Vec<Disk> = FILES
        .iter()
        .map(|name| Disk::new(dir, name))
        .collect::<Result<_>>()?;
    let targets: Vec<PathBuf> = disks.iter().map(|disk| disk.mount.join("target")).collect();
    let mut create = Command::new(program);
    create.arg("create").args(&targets);
    process::stdout(create.args(["--size", &VOLUME.to_string()]), LIMIT)?;
    let mut ledger = Ledger::new(VOLUME / SECTOR);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut unflushed, mut lost, mut errors) = (0, 0, 0);
    for round in 0..=rounds {
        let mut export = Command::new(program);
        export.arg("export").args(&targets);
        let port = testbed::port::free()?;
        export.args(["--listen", &format!("127.0.0.1:{port}")]);
        let export = Running::saying(&mut export, START, "exports volume")?;
        let mut client = Client::connect(port)?;
        errors += check(&mut client, &mut ledger)
            .with_context(|| format!("round {round} of seed {seed}"))?;
        if round == rounds {
            break;
        }
        let flushed = write(&mut client, ledger.batch(6, &mut random))?;
        client.flush()?;
        flushed.iter().for_each(|write| ledger.done(write));
        // Acknowledged, and no more: it is old or new.
        unflushed += write(&mut client, ledger.batch(4, &mut random))?.len();
        // The disks lose their power one after another, with writes under way.
        let mut order: Vec<&Disk> = disks.iter().collect();
        random.shuffle(&mut order);
        for disk in order {
            for write in ledger.batch(2, &mut random) {
                ensure!(
                    client.write(1, write.first as u64 * SECTOR as u64, &write.bytes()),
                    "the export has ended"
                );
                lost += 1;
            }
            disk.power(false)?;
        }
        if random.bool() {
            // A flush that the disks do not carry out: it makes nothing durable.
            client.flush_unheard();
        }
        drop(export);
        disks.iter().try_for_each(Disk::restart)?;
    }
    Ok(format!(
        "{rounds} power losses, {unflushed} writes without a flush, {lost} under way, {errors} blocks unreadable, none of \
         them flushed"
    ))
}

/// Sends writes and waits for their answers.
pub(super) fn write(client: &mut Client, writes: Vec<Write>) -> Result<Vec<Write>> {
    for write in &writes {
        let sent = client.write(0, write.first as u64 * SECTOR as u64, &write.bytes());
        ensure!(sent, "the export has ended");
    }
    for _ in &writes {
        match client.hear()? {
            Heard::Answer(0, 0) => {}
            other => bail!("a write: {other:?}"),
        }
    }
    Ok(writes)
}

/// Compares all blocks. One that was written since the last flush may be unreadable: it is written again. Returns their number.
fn check(client: &mut Client, ledger: &mut Ledger) -> Result<u64> {
    let mut errors = 0;
    for first in (0..ledger.sectors()).step_by(BLOCK) {
        let offset = first as u64 * SECTOR as u64;
        let mut bytes = [0; BLOCK * SECTOR];
        match client.read(offset, &mut bytes) {
            Ok(()) => ledger.check(first, &bytes)?,
            Err(error) if ledger.is_settled(first, BLOCK) => return Err(error),
            Err(_) => {
                errors += 1;
                let again = ledger.again(first, BLOCK);
                write(client, vec![again])?;
                ledger.done(&again);
            }
        }
    }
    // What was read stays only if it is durable.
    client.flush()?;
    Ok(errors)
}
