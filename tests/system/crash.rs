//! Kills processes at random moments with all their traffic outstanding. The device continues to
//! work, the peers get an error, and no object of the dead processes remains.
//!
//! A seed determines the run, and a failure prints it. `XGVMI_CRASH_SEED` repeats a run, as far as
//! the machine's timing allows. `XGVMI_CRASH_KILLS` sets its length.

use crate::agent;
use crate::harness::Case;
use crate::process;
use crate::talk::Talk;
use crate::verbs;
use crate::world::{LIMIT, Testbed, World};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Default number of kills.
const KILLS: u32 = 200;
/// Number of its peers' deaths that a process sees before it ends in order, if it is not killed
/// before.
const SURVIVALS_MAX: u32 = 3;
/// Connections at once: enough to keep two cores busy without queueing.
const PAIRS: u64 = 2;
/// Latest moment of a kill, from the start of the traffic.
const TRAFFIC_US: u64 = 25_000;
/// Latest moment of a kill at start. Loading and opening take about this time.
const START_US: u64 = 90_000;

/// Permitted first errors of a survivor (`enum ibv_wc_status`): remote errors or retry errors. A
/// local error would blame the wrong side. A flush without an earlier error would indicate a lost
/// completion.
const ALLOWED: [u32; 6] = [9, 10, 11, 12, 13, 14];

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("crash_kills", kills)]
}

fn kills(world: &World) -> Result<()> {
    let seed = number("XGVMI_CRASH_SEED")?.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(1, |now| u64::from(now.subsec_nanos()))
    });
    let wanted = match number("XGVMI_CRASH_KILLS")? {
        Some(wanted) => u32::try_from(wanted).context("XGVMI_CRASH_KILLS")?,
        None => KILLS,
    };
    run(world, seed, wanted).with_context(|| format!("XGVMI_CRASH_SEED={seed}"))
}

fn number(name: &str) -> Result<Option<u64>> {
    let Some(text) = std::env::var_os(name) else {
        return Ok(None);
    };
    let parsed = text.to_str().and_then(|text| text.parse().ok());
    let parsed = parsed.with_context(|| format!("{name} is {text:?}, which is no number"))?;
    Ok(Some(parsed))
}

fn run(world: &World, seed: u64, wanted: u32) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let program = program()?;
    let killed = AtomicU32::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let pairs: Vec<_> = (0..PAIRS)
            .map(|pair| {
                let (testbed, program, killed) = (&testbed, &program, &killed);
                let random =
                    Random(seed.wrapping_add(pair).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
                scope.spawn(move || Pair::start(testbed, program, random)?.go(killed, wanted))
            })
            .collect();
        let ended: Vec<Result<()>> = pairs
            .into_iter()
            .map(|pair| {
                pair.join()
                    .unwrap_or_else(|_| bail!("the pair's thread panicked"))
            })
            .collect();
        ended.into_iter().collect()
    })?;
    let killed = killed.load(Ordering::Relaxed);
    ensure!(killed >= wanted, "{killed} kills of {wanted}");
    nothing_is_left(&testbed)?;
    verbs::pingpong_in(world, &testbed)?;
    nothing_is_left(&testbed)
}

/// Two connected processes on different nodes.
struct Pair<'a> {
    testbed: &'a Testbed<'a>,
    program: &'a Path,
    random: Random,
    sides: [Peer; 2],
}

/// One process.
struct Peer {
    talk: Talk,
    survived: u32,
}

const FUNCTIONS: [&str; 2] = ["node0.host", "node1.dpu"];

impl<'a> Pair<'a> {
    fn start(testbed: &'a Testbed<'a>, program: &'a Path, mut random: Random) -> Result<Self> {
        let sides = [
            Peer::start(testbed, program, FUNCTIONS[0], &mut random)?,
            Peer::start(testbed, program, FUNCTIONS[1], &mut random)?,
        ];
        Ok(Self {
            testbed,
            program,
            random,
            sides,
        })
    }

    fn go(mut self, killed: &AtomicU32, wanted: u32) -> Result<()> {
        while killed.load(Ordering::Relaxed) < wanted {
            let count = match self.random.below(8) {
                0 => self.kill_at_start()?,
                1 => self.kill_in_traffic([true, true])?,
                n if n % 2 == 0 => self.kill_in_traffic([true, false])?,
                _ => self.kill_in_traffic([false, true])?,
            };
            killed.fetch_add(count, Ordering::Relaxed);
        }
        self.sides.into_iter().try_for_each(Peer::close)
    }

    /// A process that is killed while it loads, opens the device and creates its objects.
    fn kill_at_start(&mut self) -> Result<u32> {
        let which = usize::from(self.random.below(2) == 1);
        let mut talk = Talk::start(&mut self.testbed.command(FUNCTIONS[which], self.program))?;
        // The kill interrupts this command. Its answer does not matter.
        let seed = self.random.below(u64::MAX);
        talk.say(&format!("open {seed} 0\nqp"))?;
        self.random.pause(START_US);
        talk.end()?;
        Ok(1)
    }

    fn kill_in_traffic(&mut self, victims: [bool; 2]) -> Result<u32> {
        let [a, b] = &mut self.sides;
        let (a_end, b_end) = (a.tell("qp")?, b.tell("qp")?);
        a.tell(&format!("connect {}", End::parse(&b_end)?))?;
        b.tell(&format!("connect {}", End::parse(&a_end)?))?;
        a.tell("start")?;
        b.tell("start")?;
        self.random.pause(TRAFFIC_US);
        for (side, dies) in self.sides.iter_mut().zip(victims) {
            if dies {
                side.talk.end()?;
            }
        }
        let mut count = 0;
        for (which, dies) in victims.into_iter().enumerate() {
            if dies {
                count += 1;
                self.replace(which)?;
                continue;
            }
            self.sides[which].expect_the_end()?;
            self.sides[which].tell("drain")?;
            self.sides[which].survived += 1;
            if self.sides[which].survived == SURVIVALS_MAX {
                let fresh = Peer::start(
                    self.testbed,
                    self.program,
                    FUNCTIONS[which],
                    &mut self.random,
                )?;
                std::mem::replace(&mut self.sides[which], fresh).close()?;
            }
        }
        Ok(count)
    }

    fn replace(&mut self, which: usize) -> Result<()> {
        let fresh = Peer::start(
            self.testbed,
            self.program,
            FUNCTIONS[which],
            &mut self.random,
        )?;
        self.sides[which] = fresh;
        Ok(())
    }
}

impl Peer {
    fn start(
        testbed: &Testbed<'_>,
        program: &Path,
        function: &str,
        random: &mut Random,
    ) -> Result<Self> {
        let mut command = testbed.command(function, program);
        if random.below(4) == 0 {
            command.env("BFEMU_MODE", format!("deferred:{}", random.below(1000)));
        }
        let talk = Talk::start(&mut command)?;
        let mut peer = Self { talk, survived: 0 };
        let mode = random.below(4);
        peer.tell(&format!("open {} {mode}", random.below(u64::MAX)))?;
        Ok(peer)
    }

    fn tell(&mut self, line: &str) -> Result<String> {
        let answer = self
            .talk
            .ask(line, LIMIT)
            .with_context(|| format!("at '{line}'"))?;
        ensure!(answer.starts_with("ok"), "'{line}' -> {answer}");
        Ok(answer)
    }

    /// The traffic ends with an error that a dead peer explains and does not hang. The remaining
    /// state is consistent.
    fn expect_the_end(&mut self) -> Result<()> {
        let answer = self.tell("wait")?;
        let status: u32 = value(&answer, "status")?;
        ensure!(ALLOWED.contains(&status), "a survivor saw: {answer}");
        Ok(())
    }

    /// The process ends in order.
    fn close(mut self) -> Result<()> {
        self.tell("close").map(drop)
    }
}

/// Connection data of one side: number, LID, address and key.
struct End;

impl End {
    fn parse(answer: &str) -> Result<String> {
        let [qpn, lid, addr, rkey] =
            ["qpn", "lid", "addr", "rkey"].map(|key| value::<u64>(answer, key));
        Ok(format!("{} {} {} {}", qpn?, lid?, addr?, rkey?))
    }
}

fn value<T: std::str::FromStr>(answer: &str, key: &str) -> Result<T> {
    let mut words = answer.split(' ');
    let found = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let parsed = found.and_then(|text| text.parse().ok());
    parsed.with_context(|| format!("no {key} in '{answer}'"))
}

/// No process, and no object of any function.
pub(crate) fn nothing_is_left(testbed: &Testbed<'_>) -> Result<()> {
    let text = process::stdout(testbed.emulator("stats").arg("--json"), LIMIT)?;
    let stats: serde_json::Value = serde_json::from_str(&text)?;
    let functions = stats["functions"]
        .as_array()
        .context("no functions in the stats")?;
    for function in functions {
        let objects = function["objects"]
            .as_object()
            .context("no objects in the stats")?;
        let left: Vec<_> = objects.iter().filter(|(_, count)| **count != 0).collect();
        ensure!(left.is_empty(), "{} keeps {left:?}", function["name"]);
    }
    let text = process::stdout(testbed.emulator("ps").arg("--json"), LIMIT)?;
    let processes: serde_json::Value = serde_json::from_str(&text)?;
    ensure!(
        processes == serde_json::json!([]),
        "processes are left: {processes}"
    );
    Ok(())
}

/// xorshift64*: the same numbers from the same seed on all machines.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }

    /// Lets the processes run until the moment of the kill. No condition exists to wait for: an
    /// unknown state is the purpose of this test.
    fn pause(&mut self, limit_us: u64) {
        process::wait_until(Duration::from_micros(self.below(limit_us)), || false);
    }
}

fn program() -> Result<PathBuf> {
    agent::compile("crash_peer")
}
