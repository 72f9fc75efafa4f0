//! Two processes that send to each other at the same time over unreliable or extended connections, and compare every byte
//! (`tests/programs/joined_stream.c`). An unreliable connection may lose and repeat messages, and delivers no other bytes; an
//! extended one delivers each message once.

use super::connect::skipped;
use super::{LIMIT, Machines, Network, QUICK};
use crate::{Case, World};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testbed::port::free as free_port;
use testbed::process::{self, Running};
use testbed::workspace;

/// Messages of each process, of up to 16 KiB.
const MESSAGES: u64 = 1000;
/// Kinds of connections.
const KINDS: [&str; 2] = [UNRELIABLE, "xrc"];
const UNRELIABLE: &str = "uc";
/// Networks, and indices of GIDs: IPv4 and IPv6.
const NETWORKS: [(Network, &str); 5] = [
    (Network::Loopback, "3"),
    (Network::Disturbed, "3"),
    (Network::Namespaces, "5"),
    (Network::Netem, "3"),
    (Network::Netem, "5"),
];

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (network, gid) in NETWORKS {
        let name = |kind: &str| format!("{}: joined_stream {kind} {gid}", network.name());
        let wanted: Vec<_> = KINDS
            .iter()
            .filter(|kind| world.wants(&name(kind)))
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let program = world.dir.join("joined_stream");
        compile(&program)?;
        let machines = Machines::new(world, network)?;
        for kind in wanted {
            cases.push(match &machines {
                Ok(machines) => {
                    let run = stream(machines, &program, (kind, gid), network);
                    Case::of(name(kind), run)
                }
                Err(reason) => skipped(name(kind), reason),
            });
        }
    }
    Ok(cases)
}

fn compile(program: &Path) -> Result<()> {
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
    compiler.arg(program);
    compiler.arg(workspace::root().join("tests/programs/joined_stream.c"));
    compiler.arg("-libverbs");
    process::stdout(&mut compiler, QUICK).map(drop)
}

/// What a process reports.
#[derive(Debug)]
struct Counts {
    sent: u64,
    got: u64,
    lost: u64,
    twice: u64,
    places: u64,
}

impl Counts {
    fn of(output: &str) -> Result<Self> {
        let line = output.lines().find(|line| line.starts_with("sent "));
        let line = line.with_context(|| format!("no counts:\n{output}"))?;
        let words: Vec<_> = line.split_whitespace().collect();
        let count = |name: &str| -> Result<u64> {
            let at = words.iter().position(|word| *word == name);
            let word = at.and_then(|at| words.get(at + 1));
            Ok(word.with_context(|| format!("no {name}"))?.parse()?)
        };
        Ok(Self {
            sent: count("sent")?,
            got: count("got")?,
            lost: count("lost")?,
            twice: count("twice")?,
            places: count("places")?,
        })
    }
}

fn stream(
    machines: &Machines,
    program: &Path,
    (kind, gid): (&str, &str),
    network: Network,
) -> Result<()> {
    let port = free_port()?;
    let [mut server, mut client] = [0, 1].map(|index: usize| {
        let machine = &machines.both[index];
        let mut command = machine.cluster.command(machine.function, program);
        command.args([kind, gid, &MESSAGES.to_string(), &port.to_string()]);
        if index == 1 {
            command.arg(machines.host);
        }
        machine.inside(&command)
    });
    let before = machines.counted("port_xmit_packets")?;
    let serving = Running::saying(&mut server, QUICK, "listening")?;
    let client = process::run(&mut client, LIMIT)?;
    // The server of a failed client would wait for its answer.
    let server = serving.wait(if client.ok() { LIMIT } else { Duration::ZERO })?;
    for done in [&client, &server] {
        ensure!(
            done.ok(),
            "{}\n{}\n{}",
            done.verdict(),
            client.output,
            server.output
        );
        let counts = Counts::of(&done.output)?;
        let agree = counts.sent == MESSAGES && counts.got + counts.lost == MESSAGES;
        ensure!(agree && counts.got > 0, "{counts:?}");
        // The writes are half of the messages. Some bytes of a lost one may be there.
        let writes = MESSAGES / 2;
        ensure!(
            counts.places <= writes && counts.places + counts.lost >= writes,
            "{counts:?}"
        );
        match (kind, network) {
            // The system drops datagrams for which a carrier has no time.
            (UNRELIABLE, Network::Loopback) => ensure!(counts.twice == 0, "{counts:?}"),
            (UNRELIABLE, _) => ensure!(counts.lost > 0, "nothing was lost: {counts:?}"),
            _ => ensure!((counts.lost, counts.twice) == (0, 0), "{counts:?}"),
        }
    }
    let packets = machines.counted("port_xmit_packets")? - before;
    ensure!(packets > 2 * MESSAGES, "only {packets} packets were sent");
    Ok(())
}
