//! `ucx_perftest` of stock UCX, over each transport by itself.

use super::pair::{CLIENT, Room, SERVER, free_port, run};
use super::{Case, World};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// One test on two cores, which others may keep busy.
const LIMIT: Duration = Duration::from_secs(120);

/// Transports by the names of `UCX_TLS`, each with what it needs besides.
const TRANSPORTS: &[&str] = &["rc_x", "dc_x", "ud_x", "rc_v", "ud_v"];

/// Tests of `ucx_perftest` and their options.
const TESTS: &[&str] = &[
    "tag_lat -s 8 -n 1000",
    "tag_lat -s 8 -n 200 -E sleep",
    "tag_lat -s 65536 -n 100",
    "tag_bw -s 1048576 -n 50",
    "tag_sync_lat -s 8 -n 500",
    "ucp_am_lat -s 8 -n 1000",
    "ucp_am_bw -s 1048576 -n 50",
    "stream_lat -s 8 -n 1000",
    "stream_bw -s 65536 -n 200",
    "ucp_put_lat -s 8 -n 1000",
    "ucp_put_bw -s 1048576 -n 50",
    "ucp_get -s 8 -n 1000",
    "ucp_get -s 1048576 -n 50",
    "ucp_add -s 8 -n 500",
    "ucp_fadd -s 8 -n 500",
    "ucp_swap -s 8 -n 500",
    "ucp_cswap -s 8 -n 500",
    "ucp_fadd -s 4 -n 500",
];

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let version = &world.env.ucx_version;
    let mut cases = Vec::new();
    for transport in TRANSPORTS {
        for test in TESTS {
            let name = format!("{version} {transport} {test}");
            if world.wants(&name) {
                cases.push(Case::of(name, one(world, transport, test)));
            }
        }
    }
    Ok(cases)
}

fn one(world: &World, transport: &str, test: &str) -> Result<()> {
    let room = Room::new(world)?;
    let port = free_port()?;
    let command = |function: &str| {
        let mut command = room.command(function, world.env.ucx_tools_dir.join("ucx_perftest"));
        command
            .envs(world.env.for_ucx())
            .env("UCX_TLS", transport)
            .env("UCX_NET_DEVICES", "mlx5_0:1")
            .env("UCX_WARN_UNUSED_ENV_VARS", "n");
        command
    };
    let (mut server, mut client) = (command(SERVER), command(CLIENT));
    server.args(["-p", &port.to_string()]);
    client
        .args(["127.0.0.1", "-p", &port.to_string(), "-w", "10", "-t"])
        .args(test.split_whitespace());
    let (_, output) = run(&mut server, &mut client, port, LIMIT)?;
    let line = output
        .lines()
        .find_map(|line| line.strip_prefix("Final:"))
        .with_context(|| format!("no result:\n{output}"))?;
    let numbers = line
        .split_whitespace()
        .filter_map(|word| word.parse::<f64>().ok());
    ensure!(numbers.take(4).count() == 4, "no times in 'Final:{line}'");
    let moved = room.counted("wqes", |name| name != "flushed")?;
    ensure!(moved > 0, "the device executed nothing");
    Ok(())
}
