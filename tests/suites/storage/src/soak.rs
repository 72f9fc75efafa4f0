//! An hour of writes to a volume behind a DPU, while its export, its service and its targets are killed, stopped, and lose
//! their power. Whatever may be read is known for each sector. It runs only by hand.

mod memory;

use super::loops::batch::{Batch, Event};
use super::loops::client::{Client, SECTOR};
use super::loops::ledger::{BLOCK, Ledger, Wrong};
use super::{FILES, LIMIT, Place, START};
use anyhow::{Context as _, Result, bail, ensure};
use memory::Memory;
use serde_json::json;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use testbed::cluster::Cluster;
use testbed::port;
use testbed::process::{self, Running};

/// Name of the test.
pub(super) const NAME: &str =
    "soak: an hour of writes, while export, service and targets are killed and lose their power";
/// Longest run.
pub(super) const LENGTH: Duration = Duration::from_secs(3600);
/// Shortest run.
const SHORTEST: Duration = Duration::from_secs(60);
/// Variable with the seconds of a shorter one.
const SHORTER: &str = "XGVMI_SOAK_S";
/// Pause between rounds, in which the processes have nothing to do.
const PAUSE: Duration = Duration::from_secs(4);
/// Size of the volume in MiB.
const SIZE_MIB: u64 = 16;
/// Bytes of a read.
const READ: usize = 256 << 10;
/// Writes of a batch.
const WRITES: usize = 64;
/// Rounds with faults of targets only, then of export and service only, then of all.
const PHASE: u64 = 30;
/// Starts of a process until it counts as one that cannot open the volume. Its supervisor would go on.
const STARTS: usize = 3;

/// What fails in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Export,
    Service,
    Kill,
    Stop,
    /// With a power loss only.
    None,
}

/// What loses its power in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    Stays,
    One,
    All,
}

/// What has failed, how often, and what came of it.
#[derive(Debug, Default)]
struct Counts {
    rounds: u64,
    export_killed: u64,
    service_killed: u64,
    target_killed: u64,
    target_stopped: u64,
    power_losses: u64,
    powerless_targets: u64,
    lost_sectors: u64,
    written: u64,
    verified: u64,
    refused: u64,
    unreadable: u64,
    unopenable: u64,
    wrong: Wrong,
}

/// The volume with its processes. They end in this order.
struct Soak<'a> {
    place: &'a Place<'a>,
    client: Option<Client>,
    export: Option<Running>,
    service: Option<Running>,
    targets: Vec<Running>,
    addresses: Vec<String>,
    service_address: String,
    device: Cluster,
    ledger: Ledger,
    random: fastrand::Rng,
    counts: Counts,
    memory: Memory,
    started: Instant,
}

fn length() -> Result<Duration> {
    let Ok(text) = std::env::var(SHORTER) else {
        return Ok(LENGTH);
    };
    let seconds = text.parse().ok().map(Duration::from_secs);
    let length = seconds.filter(|length| (SHORTEST..=LENGTH).contains(length));
    length.with_context(|| format!("{SHORTER}={text}: give 60 to {} seconds", LENGTH.as_secs()))
}

pub(super) fn run(place: &Place<'_>) -> Result<()> {
    let length = length()?;
    place.create(SIZE_MIB, 4096)?;
    let mut soak = Soak::new(place)?;
    let done = soak.rounds(length);
    soak.memory.end();
    // Also what has failed is reported.
    soak.report()?;
    done.with_context(|| soak.said())?;
    soak.finish(length)
}

/// A process by its group: it is gone when its files and ports are free.
fn kill(running: &mut Running) {
    running.group.kill();
    process::wait_until(LIMIT, || running.group.has_ended());
}

impl<'a> Soak<'a> {
    fn new(place: &'a Place<'a>) -> Result<Self> {
        let address = || Ok(format!("127.0.0.1:{}", port::free()?));
        let mut soak = Self {
            place,
            client: None,
            export: None,
            service: None,
            targets: Vec::new(),
            addresses: FILES.iter().map(|_| address()).collect::<Result<_>>()?,
            service_address: address()?,
            device: place.world.cluster(1)?,
            ledger: Ledger::new(usize::try_from(SIZE_MIB << 20)? / SECTOR),
            random: fastrand::Rng::with_seed(1),
            counts: Counts::default(),
            memory: Memory::default(),
            started: Instant::now(),
        };
        for target in 0..FILES.len() {
            let running = soak.target(target)?;
            soak.targets.push(running);
        }
        soak.start_service()?;
        soak.start_export()?;
        Ok(soak)
    }

    fn said(&self) -> String {
        let said = self.service.iter().chain(&self.export).chain(&self.targets);
        // The last of it.
        let tail = |text: String| text.lines().rev().take(12).collect::<Vec<_>>().join("\n");
        said.map(|running| tail(running.said()))
            .collect::<Vec<_>>()
            .join("\n--\n")
    }

    /// Starts a target at its address, on a disk that can lose its power.
    fn target(&mut self, target: usize) -> Result<Running> {
        let bin = self.place.world.bin;
        let mut command = Command::new(bin.join("storage-power"));
        command.args([FILES[target], &self.random.u64(..).to_string()]);
        command.arg(bin.join("xgvmi-blk"));
        command.args(["target", FILES[target], "--listen", &self.addresses[target]]);
        command.current_dir(&self.place.dir);
        Running::saying(&mut command, START, " at tcp:")
    }

    /// Starts a process, which may have lost a target that it needs.
    fn start(&mut self, what: &str, start: impl Fn(&Self) -> Result<Running>) -> Result<Running> {
        let mut last = None;
        for _ in 0..STARTS {
            match start(self) {
                Ok(running) => return Ok(running),
                Err(error) => last = Some(error),
            }
        }
        self.counts.unopenable += 1;
        Err(last.context("a start")?.context(what.to_owned()))
    }

    fn start_service(&mut self) -> Result<()> {
        let service = self.start("the service", |soak| {
            let mut words: Vec<String> = soak
                .addresses
                .iter()
                .map(|address| format!("tcp:{address}"))
                .collect();
            let options = "--target-timeout 1s --outage-limit 60s --status-socket status";
            words.extend(options.split(' ').map(str::to_owned));
            soak.place
                .start_service(&soak.device, &words, &soak.service_address)
        })?;
        self.service = Some(service);
        Ok(())
    }

    fn start_export(&mut self) -> Result<()> {
        let export = self.start("the export", |soak| {
            let program = soak.place.world.bin.join("xgvmi-blk");
            let mut command = soak.device.command("node0.host", program);
            command.args(["export", "--service", &soak.service_address]);
            command.args(["--listen", "127.0.0.1:0"]);
            Running::saying(
                command.current_dir(&soak.place.dir),
                START,
                "exports volume",
            )
        })?;
        let said = export.said();
        let port = said.split(" on tcp:127.0.0.1:").nth(1);
        let port = port.and_then(|rest| rest.split_whitespace().next());
        let port = port.with_context(|| said.clone())?.parse()?;
        self.export = Some(export);
        self.client = Some(Client::connect(port)?);
        Ok(())
    }

    fn client(&mut self) -> Result<&mut Client> {
        self.client.as_mut().context("a client")
    }

    /// Rounds until the time is over.
    fn rounds(&mut self, length: Duration) -> Result<()> {
        while self.started.elapsed() < length {
            let number = self.counts.rounds;
            let (fault, power) = self.choose();
            self.round(fault, power)
                .with_context(|| format!("round {number}: {fault:?}, power {power:?}"))?;
            self.counts.rounds += 1;
            self.samples()?;
            self.report()?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn choose(&mut self) -> (Fault, Power) {
        let random = &mut self.random;
        let powers = [Power::Stays, Power::One, Power::All];
        let power = powers[random.usize(..3)];
        let targets = [Fault::Kill, Fault::Stop, Fault::None];
        let above = [Fault::Export, Fault::Service];
        match self.counts.rounds / PHASE % 3 {
            0 => match targets[random.usize(..3)] {
                // One disk at a time, or all of them.
                fault @ (Fault::Kill | Fault::Stop) => (fault, Power::Stays),
                fault => (fault, powers[random.usize(1..3)]),
            },
            1 => (above[random.usize(..2)], Power::Stays),
            _ => {
                let all = [above[0], above[1], targets[0], targets[1], targets[2]];
                (all[random.usize(..all.len())], power)
            }
        }
    }

    fn round(&mut self, fault: Fault, power: Power) -> Result<()> {
        self.write_quietly()?;
        if self.random.bool() {
            self.client()?.flush()?;
            self.ledger.flushed();
        }
        let client = self.client.as_mut().context("a client")?;
        let mut batch = Batch::post(client, &mut self.ledger, WRITES, &mut self.random);
        let at = self.random.usize(..WRITES);
        while batch.answers < at {
            match batch.next(client, &mut self.ledger)? {
                Event::Answer | Event::Silence => {}
                other => bail!("before any fault: {other:?}"),
            }
        }
        let victim = self.random.usize(..FILES.len());
        self.fail((fault, power), victim)?;
        // A write of a part of a block that nothing can read any more is refused.
        let may_refuse = power == Power::All || fault == Fault::Service;
        loop {
            let client = self.client.as_mut().context("a client")?;
            match batch.next(client, &mut self.ledger)? {
                Event::Answer | Event::Silence => {}
                Event::Refused(..) if may_refuse => self.counts.refused += 1,
                Event::Refused(write, error) => bail!("{write:?}: error {error}"),
                Event::End if fault == Fault::Export => break,
                Event::End => bail!("the export has ended"),
                Event::Done(_) => break,
            }
        }
        // What is heard after the loss may have been answered before it.
        if power == Power::All || power == Power::One && fault == Fault::Service {
            self.ledger.lost_power();
        }
        self.counts.written += batch.bytes;
        self.mend(fault, victim)?;
        self.compare()?;
        self.place.settle()
    }

    fn write_quietly(&mut self) -> Result<()> {
        let client = self.client.as_mut().context("a client")?;
        let mut batch = Batch::post(client, &mut self.ledger, WRITES, &mut self.random);
        loop {
            match batch.next(client, &mut self.ledger)? {
                Event::Answer | Event::Silence => {}
                Event::Done(true) => break,
                other => bail!("without a fault: {other:?}"),
            }
        }
        self.counts.written += batch.bytes;
        Ok(())
    }

    fn fail(&mut self, (fault, power): (Fault, Power), victim: usize) -> Result<()> {
        match fault {
            Fault::Export => {
                self.counts.export_killed += 1;
                kill(self.export.as_mut().context("an export")?);
            }
            Fault::Service => {
                self.counts.service_killed += 1;
                kill(self.service.as_mut().context("a service")?);
            }
            Fault::Kill => {
                self.counts.target_killed += 1;
                kill(&mut self.targets[victim]);
            }
            Fault::Stop => {
                self.counts.target_stopped += 1;
                signal(-self.targets[victim].group.id(), libc::SIGSTOP)?;
            }
            Fault::None => {}
        }
        let others = (victim + 1)..(victim + FILES.len());
        let powerless: Vec<usize> = match power {
            Power::Stays => Vec::new(),
            // Another target is enough for the volume only if this one has not failed, too.
            Power::One if matches!(fault, Fault::Kill | Fault::Stop) => Vec::new(),
            Power::One => vec![victim],
            // What was killed before the power was lost is found by its file as it is.
            Power::All => others
                .map(|target| target % FILES.len())
                .chain((fault != Fault::Kill).then_some(victim))
                .collect(),
        };
        if fault == Fault::Stop && power == Power::All {
            signal(-self.targets[victim].group.id(), libc::SIGCONT)?;
        }
        self.cut(&powerless)?;
        if power == Power::All && fault == Fault::Kill {
            self.targets[victim] = self.target(victim)?;
        }
        if fault == Fault::Service {
            self.start_service()?;
        }
        Ok(())
    }

    /// These targets lose their power, and return.
    fn cut(&mut self, targets: &[usize]) -> Result<()> {
        if targets.is_empty() {
            return Ok(());
        }
        self.counts.power_losses += 1;
        self.counts.powerless_targets += targets.len() as u64;
        for target in targets {
            signal(self.targets[*target].group.id(), libc::SIGUSR1)?;
        }
        for target in targets {
            let running = &mut self.targets[*target];
            let ended = process::wait_until(LIMIT, || {
                running.group.has_ended() && running.said().contains(" sectors are lost")
            });
            let said = running.said();
            let lost = said
                .lines()
                .rev()
                .find_map(|line| line.strip_prefix("storage-power: ")?.split_once(" of "));
            let (lost, _) = lost.filter(|_| ended).with_context(|| said.clone())?;
            self.counts.lost_sectors += lost.parse::<u64>()?;
        }
        for target in targets {
            self.targets[*target] = self.target(*target)?;
        }
        Ok(())
    }

    /// What has failed is back.
    fn mend(&mut self, fault: Fault, victim: usize) -> Result<()> {
        match fault {
            Fault::Export => {
                self.client = None;
                self.start_export()
            }
            Fault::Kill if self.targets[victim].group.has_ended() => {
                self.targets[victim] = self.target(victim)?;
                Ok(())
            }
            Fault::Stop => signal(-self.targets[victim].group.id(), libc::SIGCONT),
            _ => Ok(()),
        }
    }

    /// Compares all sectors. A block that was written since the last flush may be unreadable: it is written again. Then all
    /// is flushed.
    fn compare(&mut self) -> Result<()> {
        let mut bytes = vec![0; READ];
        for first in (0..self.ledger.sectors()).step_by(READ / SECTOR) {
            if self
                .client()?
                .read((first * SECTOR) as u64, &mut bytes)
                .is_ok()
            {
                self.look(first, &bytes);
                continue;
            }
            for first in (first..first + READ / SECTOR).step_by(BLOCK) {
                let bytes = &mut bytes[..BLOCK * SECTOR];
                match self.client()?.read((first * SECTOR) as u64, bytes) {
                    Ok(()) => {
                        let bytes = bytes.to_vec();
                        self.look(first, &bytes);
                    }
                    Err(error) if self.ledger.is_settled(first, BLOCK) => {
                        self.counts.wrong.lost += BLOCK as u64;
                        let first = format!("sector {first} cannot be read: {error:#}");
                        self.counts.wrong.first.get_or_insert(first);
                    }
                    Err(_) => {
                        self.counts.unreadable += 1;
                        let again = self.ledger.again(first, BLOCK);
                        super::crash::write(self.client()?, vec![again])?;
                        self.ledger.done(&again);
                    }
                }
            }
        }
        // What was read stays only if it is durable.
        self.client()?.flush()?;
        self.ledger.flushed();
        match &self.counts.wrong.first {
            Some(first) => bail!("{first}"),
            None => Ok(()),
        }
    }

    fn look(&mut self, first: usize, bytes: &[u8]) {
        let wrong = self.ledger.compare(first, bytes);
        let all = &mut self.counts.wrong;
        all.bytes += wrong.bytes;
        all.lost += wrong.lost;
        all.first = all.first.take().or(wrong.first);
        self.counts.verified += bytes.len() as u64;
    }

    fn samples(&mut self) -> Result<()> {
        for (name, target) in FILES.iter().zip(&self.targets) {
            let said = target.said();
            let process = said
                .lines()
                .find_map(|line| line.strip_prefix("storage-power: process "));
            let process = process.with_context(|| said.clone())?.parse()?;
            self.memory.sample(&format!("target {name}"), process)?;
        }
        for (name, running) in [("export", &self.export), ("service", &self.service)] {
            let running = running.as_ref().context("a process")?;
            self.memory.sample(name, running.group.child.id())?;
        }
        Ok(())
    }

    /// The volume is the same without each of the targets, and a scrub finds nothing. Memory has stayed.
    fn finish(mut self, length: Duration) -> Result<()> {
        let mut image = vec![0; usize::try_from(SIZE_MIB << 20)?];
        for (at, bytes) in image.chunks_mut(READ).enumerate() {
            self.client()?.read((at * READ) as u64, bytes)?;
        }
        let place = self.place;
        fs::write(place.path("image"), image)?;
        (self.client, self.export, self.service) = (None, None, None);
        self.targets.clear();
        place.scrub()?;
        place.compare_each("image")?;
        ensure!(
            self.memory.is_flat(),
            "memory grows: {}",
            self.memory.report()
        );
        let unjudged = self.memory.unjudged();
        ensure!(
            length < LENGTH || unjudged.is_empty(),
            "no life was long enough: {unjudged:?}"
        );
        Ok(())
    }

    fn report(&self) -> Result<()> {
        let date = process::stdout(Command::new("date").args(["-u", "+%F"]), LIMIT)?;
        let counts = &self.counts;
        let report = json!({
            "date": date.trim(),
            "seconds": self.started.elapsed().as_secs(),
            "rounds": counts.rounds,
            "written_bytes": counts.written,
            "verified_bytes": counts.verified,
            "wrong_bytes": counts.wrong.bytes,
            "lost_flushed_sectors": counts.wrong.lost,
            "unopenable": counts.unopenable,
            "first_wrong": counts.wrong.first,
            "export_killed": counts.export_killed,
            "service_killed": counts.service_killed,
            "target_killed": counts.target_killed,
            "target_stopped": counts.target_stopped,
            "power_losses": counts.power_losses,
            "powerless_targets": counts.powerless_targets,
            "sectors_lost_without_flush": counts.lost_sectors,
            "blocks_unreadable_without_flush": counts.unreadable,
            "refused_writes": counts.refused,
            "memory": self.memory.report(),
        });
        let path = self.place.world.dir.join("storage-soak.json");
        let text = serde_json::to_string_pretty(&report)?;
        fs::write(&path, text + "\n").with_context(|| path.display().to_string())
    }
}

fn signal(process: i32, signal: i32) -> Result<()> {
    // SAFETY: kill(2) takes plain integers; the process, or its group, is a child that is not waited for.
    let done = unsafe { libc::kill(process, signal) };
    ensure!(done == 0, "signal {signal} to {process}");
    Ok(())
}
