//! Targets in processes of their own that are killed, stop and return while fio writes and verifies.

use super::{FILES, LIMIT, Place, RECORDS_AT, SIZE_MIB, Server, fio};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use testbed::process::{self, Running};

/// Time that all targets stop, several times as long as a target may take for an answer.
const STALL: Duration = Duration::from_secs(3);
/// Longest wait for one effect.
const LONGEST: Duration = Duration::from_secs(480);

/// A volume on targets in processes of their own.
struct World<'a> {
    place: &'a Place<'a>,
    targets: Vec<(Running, String)>,
    server: Server,
}

/// One target is killed while fio writes and verifies, another one is stopped. Both return and are completed.
pub(super) fn lost(place: &Place<'_>) -> Result<()> {
    // A busy machine does not answer in less, and nothing but the stop shall count as one.
    let mut world = World::new(place, &["--target-timeout", "10s"])?;
    world.during_fio(|targets, log| {
        let [_, second, parity] = targets else {
            anyhow::bail!("not three targets");
        };
        let seen = [log.count("data_2 is not used"), log.count("data_2 is comp")];
        second.0.group.kill();
        log.wait("data_2 is not used", seen[0])?;
        restart(place, 1, second)?;
        log.wait("data_2 is comp", seen[1])?;
        let seen = [log.count("data_p is not used"), log.count("data_p is comp")];
        parity.0.group.signal(libc::SIGSTOP)?;
        log.wait("data_p is not used", seen[0])?;
        parity.0.group.signal(libc::SIGCONT)?;
        log.wait("data_p is comp", seen[1])
    })?;
    world.finish()
}

/// All targets stop together for longer than a target may take for an answer, as on a disk that they share. Then two are
/// killed and return. No request of fio fails.
pub(super) fn stalled(place: &Place<'_>) -> Result<()> {
    let mut world = World::new(place, &["--target-timeout", "1s"])?;
    world.during_fio(|targets, log| {
        for _ in 0..2 {
            let lost = log.count("is not used");
            for target in &*targets {
                target.0.group.signal(libc::SIGSTOP)?;
            }
            std::thread::sleep(STALL);
            for target in &*targets {
                target.0.group.signal(libc::SIGCONT)?;
            }
            log.wait("is not used", lost)?;
            // Requests are carried out again.
            log.jobs(2)?;
        }
        for role in [0, 2] {
            targets[role].0.group.kill();
        }
        let complete = ["data_1 is comp", "data_p is comp"].map(|word| (word, log.count(word)));
        for role in [0, 2] {
            restart(place, role, &mut targets[role])?;
        }
        for (word, seen) in complete {
            log.wait(word, seen)?;
        }
        log.jobs(1)
    })?;
    world.finish()
}

/// The limit of SIGTERM passes while a request waits for targets that have stopped. The next service carries it out.
pub(super) fn drained(place: &Place<'_>) -> Result<()> {
    let options = ["--target-timeout", "1s", "--outage-limit", "60s"];
    let mut world = World::new(place, &[&options[..], &["--drain-limit", "1s"]].concat())?;
    let uri = world.server.uri.clone();
    let qemu_io = |commands: &[&str]| {
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let words = ["-f", "raw"].into_iter().chain(commands);
        let words: Vec<&str> = words.chain([uri.as_str()]).collect();
        let said = place.stock("qemu-io", &words)?;
        ensure!(!said.contains("failed") && !said.contains("rror"), "{said}");
        Ok(())
    };
    qemu_io(&["write -P 1 0 1M", "flush"])?;
    for target in &world.targets {
        target.0.group.signal(libc::SIGSTOP)?;
    }
    std::thread::scope(|scope| -> Result<()> {
        let request = scope.spawn(|| qemu_io(&["write -P 2 64k 64k", "flush"]));
        said(&world.server, "is not used any more")?;
        let service = world.server.service.as_ref().context("a service")?;
        service.running.group.ask_to_end();
        said(&world.server, "1 requests have no answer after 1s")?;
        for target in &world.targets {
            target.0.group.signal(libc::SIGCONT)?;
        }
        let service = world.server.service.as_mut().context("a service")?;
        process::wait_until(LIMIT, || service.running.group.has_ended());
        world.server.renew_service(place)?;
        let request = request.join();
        request.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    qemu_io(&[
        "read -P 1 0 64k",
        "read -P 2 64k 64k",
        "read -P 1 128k 896k",
    ])?;
    world.finish()
}

fn said(server: &Server, words: &str) -> Result<()> {
    let said = process::wait_until(LIMIT, || server.said().contains(words));
    ensure!(said, "no '{words}':\n{}", server.said());
    Ok(())
}

fn restart(place: &Place<'_>, role: usize, target: &mut (Running, String)) -> Result<()> {
    // The next one needs its port and its lock.
    process::wait_until(LIMIT, || target.0.group.has_ended());
    let address = target.1.strip_prefix("tcp:").context("an address")?;
    *target = place.target(FILES[role], address)?;
    Ok(())
}

/// What the process says that holds the targets, and fio's progress.
struct Log<'a> {
    server: &'a Server,
    /// Jobs of fio that have ended.
    done: &'a AtomicU64,
    /// fio has failed.
    failed: &'a AtomicBool,
}

impl Log<'_> {
    fn count(&self, word: &str) -> usize {
        self.server.said().matches(word).count()
    }

    /// Waits until `word` was said more often than `seen` times.
    fn wait(&self, word: &str, seen: usize) -> Result<()> {
        self.until(&format!("'{word}'"), || self.count(word) > seen)
    }

    /// Waits for the end of `count` more jobs.
    fn jobs(&self, count: u64) -> Result<()> {
        let before = self.done.load(Ordering::Relaxed);
        let more = || self.done.load(Ordering::Relaxed) >= before + count;
        self.until("end of a job of fio", more)
    }

    /// Waits as long as fio's jobs end, however slow the machine is.
    fn until(&self, what: &str, reached: impl Fn() -> bool) -> Result<()> {
        let begun = Instant::now();
        loop {
            let jobs = self.done.load(Ordering::Relaxed);
            let progress = || jobs != self.done.load(Ordering::Relaxed);
            let fails = || self.failed.load(Ordering::Relaxed);
            process::wait_until(LIMIT, || reached() || progress() || fails());
            if reached() {
                return Ok(());
            }
            ensure!(
                progress() && !fails() && begun.elapsed() < LONGEST,
                "no {what}:\n{}",
                self.server.said()
            );
        }
    }
}

impl<'a> World<'a> {
    /// A volume with these options.
    fn new(place: &'a Place<'a>, options: &[&'a str]) -> Result<Self> {
        place.create(SIZE_MIB, 4096)?;
        let targets = FILES.into_iter().map(|name| place.new_target(name));
        let targets: Vec<_> = targets.collect::<Result<_>>()?;
        let addresses = targets.iter().map(|(_, address)| address.as_str());
        let mut words: Vec<&str> = addresses.collect();
        words.extend(options);
        Ok(Self {
            server: place.export(&words)?,
            place,
            targets,
        })
    }

    /// Runs jobs of fio, one after another, until `faults` has ended. Each of them verifies what it wrote, and none may
    /// fail.
    fn during_fio(
        &mut self,
        faults: impl FnOnce(&mut [(Running, String)], &Log<'_>) -> Result<()>,
    ) -> Result<()> {
        let (done, failed, stop) = (
            AtomicU64::new(0),
            AtomicBool::new(false),
            AtomicBool::new(false),
        );
        let log = Log {
            server: &self.server,
            done: &done,
            failed: &failed,
        };
        let (place, uri) = (self.place, self.server.uri.as_str());
        let jobs = || -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                let seed = format!("--randseed={}", done.load(Ordering::Relaxed));
                let options = ["--rw=randwrite", "--bs=4k", "--iodepth=8", "--size=16M"];
                fio(place, uri, &[&options[..], &[&seed]].concat())
                    .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let length = || fs::metadata(place.path(FILES[1])).map_or(0, |data| data.len());
        std::thread::scope(|scope| {
            let jobs = scope.spawn(jobs);
            let begun = log.until("write of fio", || length() > RECORDS_AT + (1 << 20));
            let tested = begun.and_then(|()| faults(&mut self.targets, &log));
            stop.store(true, Ordering::Relaxed);
            let jobs = jobs.join();
            let jobs = jobs.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            jobs.with_context(|| self.server.said())?;
            tested
        })
    }

    /// Compares the volume with what each two targets hold.
    fn finish(self) -> Result<()> {
        let place = self.place;
        place.stock("nbdcopy", &[&self.server.uri, "image"])?;
        drop((self.server, self.targets));
        // A busy machine may have cost a target some blocks at the end.
        place.ours(&[&["rebuild"], &FILES[..]].concat())?;
        place.scrub()?;
        place.compare_each("image")
    }
}
