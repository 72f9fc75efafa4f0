//! Loops of failures on one volume: its export is killed while it completes a target, targets leave with writes under way,
//! targets are replaced. One target at a time is behind `storage-lossy`. After each round everything is read and compared
//! with what was acknowledged.

pub(crate) mod batch;
pub(crate) mod client;
pub(crate) mod ledger;

use super::place::Place;
use super::{FILES, LIMIT, START, World};
use anyhow::{Context as _, Result, bail, ensure};
use batch::{Batch, Event};
use client::{Client, SECTOR};
use ledger::Ledger;
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use testbed::process::{self, Running};

/// Rounds of each loop, unless a part says otherwise.
const ROUNDS: u64 = 1000;
/// A part of this form says how many.
const PART: &str = "rounds ";
/// Volumes of a loop that are worked on at once: a round is mostly waiting.
const LANES: u64 = 4;
/// Size of a volume in MiB.
const SIZE_MIB: u64 = 2;
/// Writes of a batch.
const WRITES: usize = 24;
/// Bytes of a read.
const READ: usize = 256 << 10;
/// Rates of `storage-lossy`, and those of a target that the volume cannot do without: it must answer.
const LOSSY: [&str; 8] = [
    "--skip", "2000", "--mute", "2000", "--delay", "20", "--repeat", "25",
];
const NEEDED: [&str; 4] = ["--delay", "12", "--repeat", "25"];

type Round = fn(&mut Lane<'_>) -> Result<()>;

const LOOPS: [(&str, Round); 3] = [
    (
        "repair: the export is killed while it completes a target",
        repair,
    ),
    (
        "replay: targets leave with writes under way, and count as holders when they are back",
        replay,
    ),
    (
        "replacement: targets are replaced while clients write, and the export is killed",
        replacement,
    ),
];

/// A volume, its processes, and what it may hold.
struct Lane<'a> {
    place: Place<'a>,
    /// Files of the targets.
    files: [String; 3],
    targets: Vec<(Running, String)>,
    /// In front of one of the targets.
    lossy: Option<Running>,
    export: Option<Running>,
    client: Option<Client>,
    ledger: Ledger,
    random: fastrand::Rng,
    /// Files that were made.
    made: u64,
}

/// Runs the loops that are wanted. Returns a line for each, too.
///
/// # Errors
/// A part is none.
pub fn run_loops(world: &World<'_>) -> Result<Vec<(&'static str, Result<()>)>> {
    let mut rounds = ROUNDS;
    let mut words = Vec::new();
    for part in world.parts {
        match part.strip_prefix(PART) {
            Some(count) => rounds = count.parse().with_context(|| part.clone())?,
            None => words.push(part.as_str()),
        }
    }
    let wants = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    let mut results = Vec::new();
    for (name, round) in LOOPS.into_iter().filter(|(name, _)| wants(name)) {
        results.push((name, run_loop(world, name, round, rounds)));
    }
    let large: [(_, super::Test); 2] = [
        (super::large::NAME, super::large::run),
        (super::large::DENSE, super::large::dense),
    ];
    for (name, test) in large.into_iter().filter(|(name, _)| wants(name)) {
        let place = Place::on_host(world, "storage-large");
        results.push((name, place.and_then(|place| test(&place))));
    }
    Ok(results)
}

fn run_loop(world: &World<'_>, name: &str, round: Round, rounds: u64) -> Result<()> {
    let next = AtomicU64::new(0);
    let total = AtomicU64::new(0);
    let lane = |number: u64| -> Result<()> {
        let word = name.split(':').next().unwrap_or_default();
        let place = Place::on_host(world, &format!("storage-loops/{word}-{number}"))?;
        let mut lane = Lane::new(place, number)?;
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= rounds {
                return lane.finish();
            }
            let done = round(&mut lane).and_then(|()| lane.read_all());
            if done.is_err() {
                // No other lane begins a round.
                next.store(rounds, Ordering::Relaxed);
            }
            done.with_context(|| format!("round {at}, volume {number}:\n{}", lane.said()))?;
            total.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES.min(rounds))
            .map(|number| scope.spawn(move || lane(number)))
            .collect();
        let ended = lanes.into_iter().map(|lane| {
            lane.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        ended
            .collect::<Vec<Result<()>>>()
            .into_iter()
            .collect::<Result<()>>()
    })?;
    ensure!(
        total.into_inner() == rounds,
        "not all rounds were carried out"
    );
    Ok(())
}

impl<'a> Lane<'a> {
    fn new(place: Place<'a>, number: u64) -> Result<Self> {
        place.create(SIZE_MIB, 4096)?;
        let mut lane = Self {
            place,
            files: FILES.map(str::to_owned),
            targets: Vec::new(),
            lossy: None,
            export: None,
            client: None,
            ledger: Ledger::new(usize::try_from(SIZE_MIB << 20)? / SECTOR),
            random: fastrand::Rng::with_seed(number),
            made: 0,
        };
        for file in lane.files.clone() {
            lane.targets.push(lane.place.new_target(&file)?);
        }
        lane.start(None)?;
        Ok(lane)
    }

    fn said(&self) -> String {
        self.export.as_ref().map(Running::said).unwrap_or_default()
    }

    /// Starts the export on all targets, or without one of them. A target of them is lossy.
    fn start(&mut self, absent: Option<usize>) -> Result<()> {
        let seat = self.random.usize(..3);
        let to = self.targets[seat].1.replace("tcp:", "");
        let seed = self.random.u64(..).to_string();
        let mut command = Command::new(self.place.world.bin.join("storage-lossy"));
        command.args(["--to", &to, "--seed", &seed]);
        match absent {
            None => command.args(LOSSY),
            Some(_) => command.args(NEEDED),
        };
        let lossy = Running::saying(&mut command, START, "is lossy at")?;
        let said = lossy.said();
        let address = said
            .split_whitespace()
            .find(|word| word.starts_with("tcp:"));
        let address = address.with_context(|| said.clone())?.to_owned();
        self.lossy = Some(lossy);
        let mut command = Command::new(self.place.world.bin.join("xgvmi-blk"));
        command.arg("export").current_dir(&self.place.dir);
        for (at, (_, direct)) in self.targets.iter().enumerate() {
            if Some(at) != absent {
                command.arg(if at == seat { &address } else { direct });
            }
        }
        command.args(["--listen", "127.0.0.1:0", "--status-socket", "status"]);
        // No request may fail that two of the targets can carry out, however slow the machine is.
        command.args([
            "--target-timeout",
            "500ms",
            "--outage-limit",
            "16s",
            "--take-over",
        ]);
        // It refuses to start if it loses a target that it needs meanwhile. Its supervisor would start it again.
        let mut start = || Running::saying(&mut command, START, "exports volume");
        let export = start().or_else(|_| start()).or_else(|_| start())?;
        let said = export.said();
        let port = said.split(" on tcp:127.0.0.1:").nth(1);
        let port = port.and_then(|rest| rest.split_whitespace().next());
        let port = port
            .with_context(|| said.clone())?
            .parse()
            .with_context(|| said.clone())?;
        self.export = Some(export);
        self.client = Some(Client::connect(port).with_context(|| self.said())?);
        Ok(())
    }

    /// Kills the export, and starts it again.
    fn restart(&mut self, absent: Option<usize>) -> Result<()> {
        self.client = None;
        if let Some(mut export) = self.export.take() {
            export.group.kill();
            process::wait_until(LIMIT, || export.group.has_ended());
        }
        self.start(absent)
    }

    fn client(&mut self) -> Result<&mut Client> {
        self.client.as_mut().context("a client")
    }

    fn kill(&mut self, target: usize) {
        let running = &mut self.targets[target].0;
        running.group.kill();
        process::wait_until(LIMIT, || running.group.has_ended());
    }

    /// The target is back at its address.
    fn back(&mut self, target: usize) -> Result<()> {
        let address = self.targets[target].1.replace("tcp:", "");
        self.targets[target] = self.place.target(&self.files[target], &address)?;
        Ok(())
    }

    /// Writes a batch, several requests at once. `event` is told how many answers there are, or that there is none for a
    /// while, and may end the export: then true is returned.
    fn write(
        &mut self,
        event: &mut dyn FnMut(&mut Self, Option<usize>) -> Result<()>,
    ) -> Result<bool> {
        let client = self.client.as_mut().context("a client")?;
        let mut batch = Batch::post(client, &mut self.ledger, WRITES, &mut self.random);
        loop {
            let client = self.client.as_mut().context("a client")?;
            match batch.next(client, &mut self.ledger)? {
                Event::Answer => event(self, Some(batch.answers))?,
                Event::Refused(write, error) => bail!("{write:?}: error {error}"),
                Event::Silence => event(self, None)?,
                Event::End => return Ok(true),
                Event::Done(all) => return Ok(!all),
            }
        }
    }

    /// Writes a batch without an event.
    fn write_quietly(&mut self) -> Result<()> {
        let ended = self.write(&mut |_, _| Ok(()))?;
        ensure!(!ended, "the export has ended");
        Ok(())
    }

    fn read_all(&mut self) -> Result<()> {
        let mut bytes = vec![0; READ];
        for first in (0..self.ledger.sectors()).step_by(READ / SECTOR) {
            self.client()?.read((first * SECTOR) as u64, &mut bytes)?;
            self.ledger.check(first, &bytes)?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        self.place.settle()
    }

    /// The volume is the same without each of the targets, and a scrub finds nothing.
    fn finish(mut self) -> Result<()> {
        self.settle()?;
        for absent in 0..3 {
            self.restart(Some(absent))?;
            self.read_all().with_context(|| self.said())?;
        }
        self.restart(None)?;
        self.settle()?;
        (self.client, self.export, self.lossy) = (None, None, None);
        self.targets.clear();
        let mut words = vec!["scrub"];
        words.extend(self.files.iter().map(String::as_str));
        let report: Value = serde_json::from_str(&self.place.ours(&words)?)?;
        ensure!(
            report["bad_halves"] == 0 && report["lost_blocks"] == 0,
            "{report}"
        );
        Ok(())
    }
}

/// A target returns without some writes. The export is killed as often as it begins to complete it.
fn repair(lane: &mut Lane<'_>) -> Result<()> {
    lane.settle()?;
    let victim = lane.random.usize(..3);
    lane.kill(victim);
    let mut back = false;
    // If the lossy target has left, too, the requests wait for the first one.
    lane.write(&mut |lane, answers| {
        if answers.is_none() && !back {
            back = true;
            lane.back(victim)?;
        }
        Ok(())
    })?;
    if !back {
        lane.back(victim)?;
    }
    for _ in 0..lane.random.usize(1..4) {
        let at = lane.random.usize(..WRITES);
        let mut killed = false;
        lane.write(&mut |lane, answers| {
            if !killed && answers.is_none_or(|answers| answers > at) {
                killed = true;
                lane.export.as_mut().context("an export")?.group.kill();
            }
            Ok(())
        })?;
        lane.restart(None)?;
        lane.read_all()?;
    }
    Ok(())
}

/// A target leaves between writes that no flush has covered, and returns. Then it must hold what it has missed, also for an
/// export that has one other target.
fn replay(lane: &mut Lane<'_>) -> Result<()> {
    lane.settle()?;
    let victim = lane.random.usize(..3);
    lane.write_quietly()?;
    let (leaves, returns) = (
        lane.random.usize(..WRITES / 2),
        lane.random.usize(WRITES / 2..WRITES),
    );
    let (mut left, mut back) = (false, false);
    lane.write(&mut |lane, answers| {
        if !left && answers.is_some_and(|answers| answers > leaves) {
            left = true;
            lane.kill(victim);
        }
        if left && !back && answers.is_none_or(|answers| answers > returns) {
            back = true;
            lane.back(victim)?;
        }
        Ok(())
    })?;
    if left && !back {
        lane.back(victim)?;
    }
    lane.client()?.flush()?;
    lane.settle()?;
    let absent = (victim + 1 + lane.random.usize(..2)) % 3;
    lane.restart(Some(absent))?;
    lane.read_all()?;
    lane.write_quietly()?;
    lane.restart(None)
}

/// A target is replaced by an empty one at another address, now and then with a kill of the export meanwhile.
fn replacement(lane: &mut Lane<'_>) -> Result<()> {
    lane.settle()?;
    lane.write_quietly()?;
    let victim = lane.random.usize(..3);
    lane.made += 1;
    let file = format!("new-{}", lane.made);
    lane.place
        .ours(&["create", &file, "--like", "status", "--role", FILES[victim]])?;
    let (running, address) = lane.place.new_target(&file)?;
    lane.settle()?;
    let kills = lane.random.u32(..3) == 0;
    let at = lane.random.usize(..WRITES);
    // The two others must hold everything, and the lossy one may leave at any time.
    let replaced = process::wait_until(LIMIT, || {
        lane.place
            .ours(&["ctl", "--socket", "status", "replace", &address])
            .is_ok()
    });
    ensure!(
        replaced,
        "{address} does not take the place of {}",
        FILES[victim]
    );
    let (old, _) = std::mem::replace(&mut lane.targets[victim], (running, address));
    let old_file = std::mem::replace(&mut lane.files[victim], file);
    let mut killed = false;
    lane.write(&mut |lane, answers| {
        if kills && !killed && answers.is_none_or(|answers| answers > at) {
            killed = true;
            lane.export.as_mut().context("an export")?.group.kill();
        }
        Ok(())
    })?;
    if killed || lane.random.bool() {
        lane.restart(None)?;
    }
    lane.settle()?;
    drop(old);
    fs::remove_file(lane.place.path(&old_file))?;
    lane.read_all()?;
    let absent = (victim + 1 + lane.random.usize(..2)) % 3;
    lane.restart(Some(absent))?;
    lane.read_all()?;
    lane.restart(None)
}
