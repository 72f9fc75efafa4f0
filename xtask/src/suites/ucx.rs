//! UCX's own tools on stock UCX of their version: `ucx_perftest` over each transport, and with two daemons on the DPUs.

use super::pair::{self, CLIENT, Room, SERVER};
use super::stock::{self, Stock};
use super::transport::{TRANSPORTS, Transport};
use super::{Case, World};
use crate::matrix::versions::VERSIONS;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::time::Duration;

/// One test takes a second on two idle cores, or four with daemons, where four processes poll.
const LIMIT: Duration = Duration::from_secs(120);

/// Tests of `ucx_perftest`, and whether they are run in every version or in the set-up's own only. Iterations are as
/// many as fill every queue once: what is proved is that the protocol works, bytes are `ucp`'s affair.
const TESTS: &[(&str, bool)] = &[
    ("tag_lat -s 8 -n 600", true),
    ("tag_lat -s 8 -n 100 -E sleep", true),
    ("tag_lat -s 65536 -n 50", false),
    ("tag_bw -s 1048576 -n 30", true),
    ("tag_sync_lat -s 8 -n 200", false),
    ("ucp_am_lat -s 8 -n 600", false),
    ("ucp_am_bw -s 1048576 -n 30", true),
    ("stream_lat -s 8 -n 600", true),
    ("stream_bw -s 65536 -n 100", false),
    ("ucp_put_lat -s 8 -n 600", true),
    ("ucp_put_bw -s 1048576 -n 30", false),
    ("ucp_get -s 8 -n 600", false),
    ("ucp_get -s 1048576 -n 30", true),
    ("ucp_add -s 8 -n 200", false),
    ("ucp_fadd -s 8 -n 200", true),
    ("ucp_swap -s 8 -n 200", false),
    ("ucp_cswap -s 8 -n 200", false),
    ("ucp_fadd -s 4 -n 200", false),
];

/// With daemons UCX knows one test; `ucp_am_lat` ends in a crash of UCX's own daemon.
const DAEMON_TESTS: &[&str] = &["ucp_am_bw -s 65536 -n 50", "ucp_am_bw -s 1048576 -n 10"];

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for version in VERSIONS {
        let is_own = version.name == world.env.ucx_version;
        let tests = TRANSPORTS.iter().flat_map(|transport| {
            let tests = TESTS.iter().filter(|(_, everywhere)| is_own || *everywhere);
            tests.map(move |(test, _)| (Some(transport), *test))
        });
        let tests = tests.chain(DAEMON_TESTS.iter().map(|test| (None, *test)));
        let name = |transport: Option<&Transport>, test: &str| {
            let by = transport.map_or("daemons", |transport| transport.name);
            format!("{} {by} {test}", version.name)
        };
        let wanted: Vec<_> = tests
            .map(|(transport, test)| (name(transport, test), transport, test))
            .filter(|(name, ..)| world.wants(name))
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let Some(tools) = stock::tools(world, version) else {
            continue;
        };
        match tools.and_then(|tools| Ok((tools, Stock::fetch(world, version)?))) {
            Ok((tools, stock)) => {
                cases.extend(wanted.into_iter().map(|(name, transport, test)| {
                    let result = match transport {
                        Some(transport) => one(world, &stock, &tools, transport, test),
                        None => with_daemons(world, &stock, &tools, test),
                    };
                    Case::of(name, result)
                }))
            }
            Err(error) => cases.push(Case::of(version.name, Err(error))),
        }
    }
    Ok(cases)
}

fn one(
    world: &World,
    stock: &Stock,
    tools: &Path,
    transport: &Transport,
    test: &str,
) -> Result<()> {
    let room = Room::new(world)?;
    let port = pair::free_port()?;
    let command = |function: &str| {
        let mut command = room.command(function, tools.join("ucx_perftest"));
        command.envs(stock.environment(world, transport.tls));
        command
    };
    let (mut server, mut client) = (command(SERVER), command(CLIENT));
    server.args(["-p", &port.to_string()]);
    client
        .args(["127.0.0.1", "-p", &port.to_string(), "-w", "10", "-t"])
        .args(test.split_whitespace());
    let (_, output) = pair::run(&mut server, &mut client, port, LIMIT)?;
    ensure_result(&output)?;
    let moved = room.counted("wqes", |name| name != "flushed")?;
    ensure!(moved > 0, "the device executed nothing");
    Ok(())
}

/// Two hosts whose messages their DPUs carry: UCX's own use of keys that cross functions.
fn with_daemons(world: &World, stock: &Stock, tools: &Path, test: &str) -> Result<()> {
    let room = Room::new(world)?;
    let ports = [pair::free_port()?, pair::free_port()?, pair::free_port()?];
    let [port, local, remote] = ports.map(|port| port.to_string());
    let command = |function: &str, program: &str, port: &str| {
        let mut command = room.command(function, tools.join(program));
        command
            .envs(stock.environment(world, "rc_x,tcp"))
            // Daemons are found by their addresses, which is the work of a network device.
            .env("UCX_NET_DEVICES", "mlx5_0:1,lo")
            .args(["-p", port]);
        command
    };
    // They go on when their test is over, and are ended when dropped.
    let mut at_client = command("node1.dpu", "ucx_perftest_daemon", &local);
    let mut at_server = command("node0.dpu", "ucx_perftest_daemon", &remote);
    let _client_daemon = pair::listening(&mut at_client, ports[1], LIMIT)?;
    let _server_daemon = pair::listening(&mut at_server, ports[2], LIMIT)?;
    let mut server = command(SERVER, "ucx_perftest", &port);
    let mut client = command(CLIENT, "ucx_perftest", &port);
    client
        .args(["127.0.0.1", "-t"])
        .args(test.split_whitespace())
        .arg("-g")
        .arg(format!("127.0.0.1:{local}"))
        .arg("-G")
        .arg(format!("127.0.0.1:{remote}"));
    let (_, output) = pair::run(&mut server, &mut client, ports[0], LIMIT)?;
    ensure_result(&output)?;
    let aliases = room.counted("commands", |name| name == "create_alias")?;
    ensure!(
        aliases >= 2,
        "the DPUs made {aliases} aliases, not 2 or more"
    );
    let moved = room.counted("wqes", |name| name == "rdma_read" || name == "rdma_write")?;
    ensure!(moved > 0, "no data went through the aliases");
    room.ensure_nothing_refused()
}

/// That the client's last line has its numbers.
fn ensure_result(output: &str) -> Result<()> {
    let line = output
        .lines()
        .find_map(|line| line.strip_prefix("Final:"))
        .with_context(|| format!("no result:\n{output}"))?;
    let numbers = line
        .split_whitespace()
        .filter_map(|word| word.parse::<f64>().ok());
    ensure!(numbers.take(4).count() == 4, "no times in 'Final:{line}'");
    Ok(())
}
