//! Stock programs on librdmacm: those of rdma-core (Debian's rdmacm-utils), and perftest with the connection manager.
//! `tests/suites/rdmacm.txt` lists the pairs.

use super::device::{CLIENT, DPU, SERVER, Testbed};
use super::{Case, Outcome, World};
use anyhow::{Context, Result};
use dev_setup as setup;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testbed::link::Link;
use testbed::pair::Ended;
use testbed::process::{self, Running};
use testbed::workspace;

/// One pair of programs. A pair that cannot work waits without end.
const LIMIT: Duration = Duration::from_secs(120);

/// Sample for `cargo xtask test`.
pub(super) const SAMPLE: &[&str] = &["rping -c -a ADDRESS -C 20 -S"];

pub(super) fn run(world: &World) -> Result<Vec<Case>> {
    let tools = setup::rdmacm()?.join("usr/bin");
    let text = fs::read_to_string(workspace::root().join("tests/suites/rdmacm.txt"))?;
    let mut cases = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (end, pair) = line.split_once(' ').context("a line of one word")?;
        let (end, only_infiniband) = match end.strip_prefix("ib:") {
            Some(end) => (end, true),
            None => (end, false),
        };
        if only_infiniband && world.link != Link::Infiniband {
            continue;
        }
        let (server, client) = pair.split_once(';').context("a line without client")?;
        let name = client.trim();
        if world.wants(name) {
            let mut case = Case::of(name, one(world, &tools, end, [server, client]));
            if let (Outcome::Failed(why), "fails") = (&case.outcome, end) {
                case.outcome = Outcome::Skipped(why.clone());
            }
            cases.push(case);
        }
    }
    Ok(cases)
}

/// Functions of the servers of a group.
const GROUP: [&str; 3] = [SERVER, SERVER, DPU];

/// Multicast groups that a server joins: its option "-c", else one.
fn groups_of(server: &str) -> usize {
    let mut words = server.split_whitespace();
    let count = words.find(|word| *word == "-c").and_then(|_| words.next());
    count.and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// Runs a server, or a group of them, and its client. The device must not refuse any request.
fn one(world: &World, tools: &Path, end: &str, [server_line, client]: [&str; 2]) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let command = |function: &str, line: &str| -> Result<Command> {
        let mut words = line.split_whitespace();
        let program = words.next().context("a pair without program")?;
        let mut command = match program.starts_with("ib_") {
            true => testbed.command(function, testbed.verbs_tool(program)),
            false => testbed.command(function, tools.join(program)),
        };
        command.args(words.map(|word| match word {
            "ADDRESS" => "127.66.1.1",
            "ADDRESS6" => "fd00:bf::1:1",
            "CLIENT" => "127.66.2.1",
            "CLIENT6" => "fd00:bf::2:1",
            other => other,
        }));
        Ok(command)
    };
    let functions = match end {
        "group" => &GROUP[..],
        _ => &GROUP[..1],
    };
    let mut servers = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let mut server = command(function, server_line)?;
        let is_up = |_: &Running| {
            let objects = testbed.objects().unwrap_or_default();
            let joined = objects.matches(" multicast ").count();
            let listens = objects.contains("stage Listen");
            end == "fails" || listens || joined >= groups_of(server_line) * (index + 1)
        };
        let running = Running::up(&mut server, LIMIT, is_up)?;
        servers.push((server, running));
    }
    let mut client = command(CLIENT, client)?;
    let done = process::run(&mut client, LIMIT)?;
    let patience = match done.ok() && end != "stays" {
        true => LIMIT,
        false => Duration::ZERO,
    };
    for (server, running) in servers {
        let ended = Ended {
            server: running.wait(patience)?,
            client: done.clone(),
        };
        if end != "stays" || !ended.client.ok() {
            ended.result(&server, &client)?;
        }
    }
    testbed.ensure_nothing_refused()
}
