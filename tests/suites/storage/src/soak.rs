//! An hour of fio on a volume behind a DPU, while its targets and its service fail and return. It runs only by hand.

use super::{FILES, LIMIT, MIXED, Place, SIZE_MIB, Server, fio};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::Duration;
use testbed::process::{self, Running};

/// Name of the test.
pub(super) const NAME: &str =
    "soak: fio with mixed sizes for an hour, while targets and the service fail";
/// Longest run.
pub(super) const LENGTH: Duration = Duration::from_secs(3600);
/// Variable with the seconds of a shorter one.
const SHORTER: &str = "XGVMI_SOAK_S";
/// Shortest time between faults: a target leaves, returns and is completed.
const PERIOD: Duration = Duration::from_secs(30);
/// Time that a target is absent.
const ABSENCE: Duration = Duration::from_secs(15);
/// Writes per second. fio reads everything again each time that it has written the whole volume.
const RATE: &str = "--rate=5M";

/// What has failed, and how often.
#[derive(Debug, Default)]
struct Faults {
    targets_killed: u64,
    targets_stopped: u64,
    service_killed: u64,
}

/// The volume with its processes.
struct Volume<'a> {
    place: &'a Place<'a>,
    server: Server,
    targets: Vec<(Running, String)>,
    faults: Faults,
}

fn length() -> Result<Duration> {
    let Ok(text) = std::env::var(SHORTER) else {
        return Ok(LENGTH);
    };
    let seconds = text.parse().ok().map(Duration::from_secs);
    let length = seconds.filter(|length| (2 * PERIOD..=LENGTH).contains(length));
    length.with_context(|| format!("{SHORTER}={text}: give 60 to {} seconds", LENGTH.as_secs()))
}

pub(super) fn run(place: &Place<'_>) -> Result<()> {
    let run = length()?;
    place.create(SIZE_MIB, 4096)?;
    let mut targets = Vec::new();
    for name in FILES {
        targets.push(place.new_target(name)?);
    }
    let words: Vec<&str> = targets
        .iter()
        .map(|(_, address)| address.as_str())
        .collect();
    let mut volume = Volume {
        server: place.export(&words)?,
        place,
        targets,
        faults: Faults::default(),
    };
    let uri = volume.server.uri.clone();
    let job = std::thread::scope(|scope| -> Result<Value> {
        let job = scope.spawn(|| {
            let length = format!("--runtime={}", run.as_secs());
            let loops = [
                "--time_based",
                &length,
                "--do_verify=1",
                "--verify_backlog=256",
                RATE,
            ];
            fio(place, &uri, &[&MIXED[..], &loops].concat())
        });
        let mut round = 0;
        let period = PERIOD.max(run / 30);
        while !process::wait_until(period, || job.is_finished()) {
            volume.fail(round, &|| job.is_finished())?;
            round += 1;
        }
        job.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    place.stock("nbdcopy", &[&uri, "image"])?;
    let faults = volume.faults;
    drop((volume.server, volume.targets));
    let scrub = place.scrub()?;
    place.compare_each("image")?;
    report(place, run, (&job, &faults, &scrub))
}

impl Volume<'_> {
    /// Each target is killed and stopped in turn; every fourth time the service is killed. Without further requests no
    /// fault is noticed, so `ended` ends the wait.
    fn fail(&mut self, round: usize, ended: &dyn Fn() -> bool) -> Result<()> {
        let target = round % FILES.len();
        let role = FILES[target];
        let (lost, complete) = (
            format!("{role} is not used any more"),
            format!("{role} is complete"),
        );
        if round % 4 == 3 {
            self.faults.service_killed += 1;
            return self.server.renew_service(self.place);
        }
        let before = [self.count(&lost), self.count(&complete)];
        if round.is_multiple_of(2) {
            self.faults.targets_killed += 1;
            self.targets[target].0.group.kill();
            self.wait(&lost, before[0], ended)?;
            std::thread::sleep(ABSENCE);
            let (_, address) = &self.targets[target];
            let address = address.strip_prefix("tcp:").context("an address")?;
            let again = self.place.target(role, address)?;
            self.targets[target] = again;
        } else {
            self.faults.targets_stopped += 1;
            let stopped = i32::try_from(self.targets[target].0.group.child.id())?;
            // SAFETY: kill(2) takes plain integers; the process is a child that is not waited for.
            unsafe { libc::kill(stopped, libc::SIGSTOP) };
            self.wait(&lost, before[0], ended)?;
            std::thread::sleep(ABSENCE);
            // SAFETY: as above.
            unsafe { libc::kill(stopped, libc::SIGCONT) };
        }
        self.wait(&complete, before[1], ended)
    }

    fn count(&self, word: &str) -> usize {
        self.server.said().matches(word).count()
    }

    fn wait(&self, word: &str, before: usize, ended: &dyn Fn() -> bool) -> Result<()> {
        ensure!(
            process::wait_until(LIMIT, || self.count(word) > before || ended()),
            "no '{word}':\n{}",
            self.server.said()
        );
        Ok(())
    }
}

fn report(
    place: &Place<'_>,
    run: Duration,
    (job, faults, scrub): (&Value, &Faults, &Value),
) -> Result<()> {
    let date = process::stdout(Command::new("date").args(["-u", "+%F"]), LIMIT)?;
    let bytes = |kind: &str| job[kind]["io_bytes"].as_u64().unwrap_or_default();
    let report = json!({
        "date": date.trim(),
        "seconds": run.as_secs(),
        "written_bytes": bytes("write"),
        "verified_bytes": bytes("read"),
        // fio and the comparisons end at the first wrong byte, and then there is no report.
        "wrong_bytes": 0,
        "targets_killed": faults.targets_killed,
        "targets_stopped": faults.targets_stopped,
        "service_killed": faults.service_killed,
        "scrub": scrub,
    });
    let path = place.world.dir.join("storage-soak.json");
    let text = serde_json::to_string_pretty(&report)?;
    fs::write(&path, text + "\n").with_context(|| path.display().to_string())
}
