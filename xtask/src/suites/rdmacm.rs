//! Stock programs on librdmacm: those of rdma-core (Debian's rdmacm-utils), and perftest with the connection manager.

use super::pair::{CLIENT, Ended, SERVER, Testbed};
use super::{Case, Outcome, World};
use crate::process::{self, Done, Running};
use crate::setup;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// One pair of programs.
const LIMIT: Duration = Duration::from_secs(60);
/// The server of a finished client ends at once.
const SERVER_LIMIT: Duration = Duration::from_secs(20);
/// A program that cannot work waits without end.
const HOPELESS: Duration = Duration::from_secs(10);

/// Addresses of the server's port.
const ADDRESS: &str = "127.66.1.1";
const ADDRESS_V6: &str = "fd00:bf::1:1";

/// The end of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    /// It ends after its client.
    Ends,
    /// It serves without end.
    Stays,
}

/// A pair: its programs, their common options, and those of the client, with ADDRESS or ADDRESS6 for the server's.
struct Pair {
    programs: (&'static str, &'static str),
    /// Options of the server alone.
    server: &'static str,
    common: &'static str,
    client: &'static str,
    ends: Server,
}

const fn pair(program: &'static str, common: &'static str, client: &'static str) -> Pair {
    Pair {
        programs: (program, program),
        server: "",
        common,
        client,
        ends: Server::Ends,
    }
}

/// rdma-core's programs. rping with `-V`, rstream and riostream with `-T v` compare every byte.
const PAIRS: &[Pair] = &[
    Pair {
        server: "-s",
        ..pair("rping", "-C 20 -S 4000 -V", "-c -a ADDRESS")
    },
    Pair {
        server: "-s -a ADDRESS6",
        ..pair("rping", "-C 20 -V", "-c -a ADDRESS6")
    },
    Pair {
        server: "-s -P",
        ends: Server::Stays,
        ..pair("rping", "", "-c -a ADDRESS -C 20 -V")
    },
    pair("ucmatose", "", "-s ADDRESS"),
    pair("ucmatose", "-c 50", "-s ADDRESS"),
    pair("ucmatose", "-m", "-s ADDRESS"),
    Pair {
        ends: Server::Stays,
        ..pair("cmtime", "", "-c 100 -s ADDRESS")
    },
    Pair {
        programs: ("rdma_server", "rdma_client"),
        ..pair("", "", "-s ADDRESS")
    },
    Pair {
        programs: ("rdma_xserver", "rdma_xclient"),
        ..pair("", "-c r", "-s ADDRESS")
    },
    Pair {
        programs: ("rdma_xserver", "rdma_xclient"),
        ..pair("", "-c x", "-s ADDRESS")
    },
    pair("rstream", "-S 65536 -C 200 -T v", "-s ADDRESS"),
    pair("rstream", "-S 4096 -C 200 -T v -T a", "-s ADDRESS"),
    pair("rstream", "-S 4096 -C 200 -T v -T b", "-s ADDRESS"),
    pair("riostream", "-S 65536 -C 200 -T v", "-s ADDRESS"),
    pair("udaddy", "", "-s ADDRESS"),
    pair("udaddy", "-c 10", "-s ADDRESS"),
];

/// perftest's programs with the connection manager (`-R`). The option of each row is common to both sides.
const PERFTESTS: &[(&str, &str)] = &[
    ("ib_write_bw", "-n 200"),
    ("ib_write_bw", "-n 200 -q 8"),
    ("ib_write_lat", "-n 200"),
    ("ib_read_bw", "-n 200 -q 4"),
    ("ib_read_lat", "-n 200"),
    ("ib_send_bw", "-n 200"),
    ("ib_send_bw", "-n 200 -b"),
    ("ib_send_bw", "-n 200 -c UD"),
    ("ib_send_lat", "-n 200"),
    ("ib_send_lat", "-n 200 -c UD"),
    ("ib_atomic_bw", "-n 200"),
    ("ib_atomic_lat", "-n 200"),
];

/// Programs that cannot work here.
const HOPELESS_PAIRS: &[Pair] = &[
    pair("mckey", "-m 239.1.2.3", "-s -b ADDRESS"),
    pair("udpong", "-S 64 -C 20", "-s ADDRESS"),
];

/// Sample for `cargo xtask test`.
pub(super) const SAMPLE: &[&str] = &["rping -C 20 -S 4000"];

pub(super) fn run(world: &World) -> Result<Vec<Case>> {
    let tools = setup::rdmacm()?.join("usr/bin");
    let mut cases = Vec::new();
    for pair in PAIRS {
        let name = pair.name();
        if world.wants(&name) {
            cases.push(Case::of(name, one(world, &tools, pair)));
        }
    }
    for (program, options) in PERFTESTS {
        let name = format!("{program} -R {options}");
        if world.wants(&name) {
            cases.push(Case::of(name, perftest(world, program, options)));
        }
    }
    for pair in HOPELESS_PAIRS {
        let name = pair.name();
        if world.wants(&name) {
            let outcome = hopeless(world, &tools, pair)?;
            cases.push(Case { name, outcome });
        }
    }
    Ok(cases)
}

impl Pair {
    fn name(&self) -> String {
        let words = [self.programs.1, self.common, self.client];
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        words.join(" ")
    }

    /// Commands of the server and the client.
    fn commands(&self, testbed: &Testbed<'_>, tools: &Path) -> (Command, Command) {
        let command = |function: &str, program: &str, own: &str| {
            let mut command = testbed.command(function, tools.join(program));
            let words = self.common.split_whitespace().chain(own.split_whitespace());
            command.args(words.map(|word| match word {
                "ADDRESS" => ADDRESS,
                "ADDRESS6" => ADDRESS_V6,
                other => other,
            }));
            command
        };
        (
            command(SERVER, self.programs.0, self.server),
            command(CLIENT, self.programs.1, self.client),
        )
    }
}

fn one(world: &World, tools: &Path, pair: &Pair) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = pair.commands(&testbed, tools);
    let running = listening(&testbed, &mut server)?;
    let done = process::run(&mut client, LIMIT)?;
    let patience = match pair.ends {
        Server::Ends if done.ok() => SERVER_LIMIT,
        Server::Ends | Server::Stays => Duration::ZERO,
    };
    let served = running.wait(patience)?;
    match pair.ends {
        Server::Ends => {
            let ended = Ended {
                server: served,
                client: done,
            };
            ended.result(&server, &client)?;
        }
        Server::Stays => ensure!(
            done.ok(),
            "{}: {}\n{}\n-- server:\n{}",
            process::shown(&client),
            done.verdict(),
            done.output,
            served.output
        ),
    }
    testbed.ensure_nothing_refused()
}

fn perftest(world: &World, program: &str, options: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let tool = testbed.verbs_tool(program);
    let command = |function: &str| {
        let mut command = testbed.command(function, &tool);
        command.args(["-R", "-F"]).args(options.split_whitespace());
        command
    };
    let (mut server, mut client) = (command(SERVER), command(CLIENT));
    let running = listening(&testbed, &mut server)?;
    let done = process::run(client.arg(ADDRESS), LIMIT)?;
    let patience = match done.ok() {
        true => SERVER_LIMIT,
        false => Duration::ZERO,
    };
    let ended = Ended {
        server: running.wait(patience)?,
        client: done,
    };
    ended.result(&server, &client)?;
    let moved = testbed.counted("wqes", |name| name != "flushed")?;
    ensure!(moved > 0, "the device executed nothing");
    testbed.ensure_nothing_refused()
}

/// Runs programs that do not work, to see when they do.
fn hopeless(world: &World, tools: &Path, pair: &Pair) -> Result<Outcome> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = pair.commands(&testbed, tools);
    let running = Running::spawn(&mut server)?;
    let done: Done = process::run(&mut client, HOPELESS)?;
    let served = running.wait(Duration::ZERO)?;
    Ok(match done.ok() {
        true => Outcome::Passed,
        false => Outcome::Skipped(format!("{}\n{}", done.output, served.output)),
    })
}

/// Starts a server and waits until it listens in the device.
fn listening(testbed: &Testbed<'_>, server: &mut Command) -> Result<Running> {
    let mut running = Running::spawn(server)?;
    let up = process::wait_until(LIMIT, || {
        let objects = testbed.objects().unwrap_or_default();
        objects.contains("stage Listen") || running.group.has_ended()
    });
    if !up || running.group.has_ended() {
        let done = running
            .wait(Duration::ZERO)
            .context("a server that does not listen")?;
        bail!(
            "the server did not come up: {}\n{}\n{}",
            done.verdict(),
            process::shown(server),
            done.output.trim_end()
        );
    }
    Ok(running)
}
