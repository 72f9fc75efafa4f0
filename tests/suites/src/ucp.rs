//! `tests/programs/ucp_pair.c` on each stock UCX over each transport: all UCP transfer types, with every byte compared.

use super::device::{CLIENT, DPU, SERVER, Testbed};
use super::stock::Stock;
use super::transport::{GGA, TRANSPORTS, Transport};
use super::{Case, Outcome, World, in_order};
use anyhow::{Context, Result, ensure};
use dev_setup::versions::{VERSIONS, Version};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::{pair, port};
use testbed::{process, workspace};

/// One pair of programs takes a second or two on two idle cores; an internal wait ends after 40 s.
const LIMIT: Duration = Duration::from_secs(150);
/// Time limit for compiling a small C program.
const COMPILE: Duration = Duration::from_secs(60);

/// Sections of the pair's run, in order.
const SECTIONS: [&str; 7] = ["tag", "am", "stream", "put", "get", "amo32", "amo64"];

/// How the pair waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Both sides poll.
    Polling,
    /// Both sleep until the device has an event for them.
    Asleep,
}

impl Mode {
    const ALL: [Self; 2] = [Self::Polling, Self::Asleep];

    /// Part of the tests' names.
    const fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Asleep => "asleep",
        }
    }

    const fn option(self) -> Option<&'static str> {
        match self {
            Self::Polling => None,
            Self::Asleep => Some("-w"),
        }
    }
}

/// Versions whose stock binary has the GGA transport for this device. They use it only for programs that poll.
const WITH_GGA: [&str; 3] = ["1.19.0", "1.20.1", "1.21.0"];

/// Sample for `cargo xtask test`: each transport in each mode, on versions that its other phases also download.
pub(super) const SAMPLE: &[&str] = &[
    "1.18.1 rc_mlx5 polling",
    "1.18.1 ud_mlx5 asleep",
    "1.18.1 ud_verbs asleep",
    "1.20.1 dc_mlx5 polling",
    "1.20.1 dc_mlx5 asleep",
    "1.20.1 rc_verbs asleep",
    "1.20.1 ud_verbs polling",
    "1.23.0 rc_mlx5 asleep",
    "1.23.0 rc_verbs polling",
    "1.23.0 ud_mlx5 polling",
    "1.20.1 gga_mlx5 polling",
];

/// Sample over Ethernet: each transport once.
pub(super) const ROCE_SAMPLE: &[&str] = &[
    "1.18.1 rc_mlx5 polling",
    "1.18.1 ud_verbs polling",
    "1.20.1 dc_mlx5 asleep",
    "1.20.1 rc_verbs polling",
    "1.23.0 ud_mlx5 polling",
];

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let program = compile(world)?;
    let mut cases = Vec::new();
    for version in VERSIONS {
        let row = |transport, mode| Row::new(world, version, transport, mode);
        let gga = WITH_GGA.contains(&version.name);
        let rows = TRANSPORTS
            .iter()
            .flat_map(|transport| Mode::ALL.map(|mode| row(transport, mode)))
            .chain(gga.then(|| row(&GGA, Mode::Polling)));
        let rows: Vec<Row<'_>> = rows.filter(|row| !row.sections.is_empty()).collect();
        if rows.is_empty() {
            continue;
        }
        match Stock::fetch(world, version) {
            Ok(stock) => cases.extend(rows.iter().flat_map(|row| row.run(&program, &stock))),
            Err(error) => cases.push(Case::of(version.name, Err(error))),
        }
    }
    Ok(cases)
}

fn compile(world: &World) -> Result<PathBuf> {
    let program = world.dir.join("ucp_pair");
    let source = workspace::root().join("tests/programs/ucp_pair.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-isystem"])
        .arg(&world.env.ucx_include)
        .arg("-o")
        .args([&program, &source])
        .arg("-ldl");
    process::stdout(&mut cc, COMPILE)?;
    Ok(program)
}

/// One pair of programs; each of its sections is a test.
struct Row<'a> {
    world: &'a World,
    transport: &'a Transport,
    mode: Mode,
    /// The selected sections with their test names.
    sections: Vec<(&'static str, String)>,
}

impl<'a> Row<'a> {
    fn new(world: &'a World, version: &Version, transport: &'a Transport, mode: Mode) -> Self {
        let row = format!("{} {} {}", version.name, transport.name, mode.name());
        let named = SECTIONS.map(|section| (section, format!("{row} {section}")));
        let is_wanted = |(_, name): &(&str, String)| world.wants(name);
        Self {
            world,
            transport,
            mode,
            sections: named.into_iter().filter(is_wanted).collect(),
        }
    }

    fn run(&self, program: &Path, stock: &Stock) -> Vec<Case> {
        let names = self.sections.iter().map(|(_, name)| name.clone());
        let (finished, result) = match self.pair(program, stock) {
            Ok(pair) => pair,
            Err(error) => (Vec::new(), Err(error)),
        };
        // UCX's message for a transport that its build or the device lacks.
        if let Err(error) = &result
            && format!("{error:#}").contains("no usable transports")
        {
            let skipped = |name| Case {
                name,
                outcome: Outcome::Skipped("UCX finds no such transport".to_owned()),
            };
            return names.map(skipped).collect();
        }
        let is_finished = |(section, _): &(&str, String)| finished.contains(section);
        let finished: Vec<bool> = self.sections.iter().map(is_finished).collect();
        in_order(names, &finished, result)
    }

    fn is_gga(&self) -> bool {
        self.transport.name == GGA.name
    }

    /// Sections that both sides finished, and whether the run succeeded.
    fn pair(&self, program: &Path, stock: &Stock) -> Result<(Vec<&'static str>, Result<()>)> {
        let mut testbed = Testbed::new(self.world)?;
        let mut peer = CLIENT;
        if self.is_gga() {
            testbed = testbed.with(&["--profile", "gga"]);
            peer = DPU;
        }
        let port = port::free()?;
        let command = |function: &str, side: &[&str]| {
            let mut command = testbed.command(function, program);
            command
                .envs(stock.environment(self.world, self.transport.tls))
                .envs(self.is_gga().then_some(("UCX_RNDV_THRESH", "8192")))
                .arg(&stock.libucp)
                .args(self.mode.option())
                .args(["-p", &port.to_string()])
                .args(side)
                .args(self.sections.iter().map(|(section, _)| section));
            command
        };
        let (mut server, mut client) = (command(SERVER, &[]), command(peer, &["-c"]));
        let ended = pair::both(&mut server, &mut client, port, LIMIT)?;
        let outputs = [&ended.server.output, &ended.client.output];
        let is_finished = |section: &&str| {
            let line = format!("ok {section}");
            let said = |output: &&String| output.lines().any(|said| said == line);
            outputs.iter().all(said)
        };
        let finished = self.sections.iter().map(|(section, _)| *section);
        let finished = finished.filter(is_finished).collect();
        let result = ended
            .result(&server, &client)
            .and_then(|()| self.judge(&testbed, &outputs));
        Ok((finished, result))
    }

    /// Checks that the run used the intended transport.
    fn judge(&self, testbed: &Testbed<'_>, outputs: &[&String; 2]) -> Result<()> {
        let carries =
            |name: &str| self.transport.name == name || self.is_gga() && name == "ud_mlx5";
        let wanted = |lane: &str| lane.strip_suffix("/mlx5_0:1").is_some_and(carries);
        for output in outputs {
            let line = |key: &str| output.lines().find_map(|line| line.strip_prefix(key));
            let lanes = line("lanes ").with_context(|| format!("no lanes:\n{output}"))?;
            let strange = lanes.split(' ').find(|lane| !wanted(lane));
            ensure!(
                strange.is_none() && lanes.contains(self.transport.name),
                "lanes are {lanes}, not all of {}",
                self.transport.name
            );
            let sleeps = line("sleeps ").with_context(|| format!("no sleeps:\n{output}"))?;
            let slept = sleeps != "0";
            ensure!(slept == (self.mode == Mode::Asleep), "slept {sleeps} times");
        }
        let moved = testbed.stats()?.counted("wqes", |name| name != "flushed")?;
        ensure!(moved > 0, "the device executed nothing");
        let is_long = |(name, _): &(&str, String)| ["tag", "am"].contains(name);
        if self.is_gga() && self.sections.iter().any(is_long) {
            let copies = testbed
                .stats()?
                .counted("wqes", |name| name == "dma_memcpy")?;
            ensure!(copies > 0, "no message was copied by the adapter");
        }
        let wants_atomics = self.sections.iter().any(|(name, _)| *name == "amo64");
        if wants_atomics && self.transport.has_atomics {
            let atomics = testbed.stats()?.counted("wqes", |name| name == "atomic")?;
            ensure!(atomics > 0, "the device executed no atomics");
        }
        testbed.ensure_nothing_refused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_has_every_transport_in_every_mode() {
        for transport in TRANSPORTS {
            for mode in Mode::ALL {
                let row = format!("{} {}", transport.name, mode.name());
                assert!(SAMPLE.iter().any(|sample| sample.ends_with(&row)), "{row}");
            }
            let row = format!(" {} ", transport.name);
            assert!(
                ROCE_SAMPLE.iter().any(|sample| sample.contains(&row)),
                "{row}"
            );
        }
    }

    #[test]
    fn sections_are_those_of_the_program() {
        let source = workspace::root().join("tests/programs/ucp_pair.c");
        let text = std::fs::read_to_string(source).unwrap();
        for section in SECTIONS {
            assert!(text.contains(&format!("\t{{ \"{section}\", ")), "{section}");
        }
    }
}
