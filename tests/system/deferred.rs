//! Deferred mode: requests of stock programs complete later and out of step, with the same results.

use crate::harness::Case;
use crate::process;
use crate::verbs;
use crate::world::{LIMIT, Testbed, World, free_port, succeed_pair};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A delay that exceeds the time between a doorbell and its request in the other mode on an idle
/// machine, and that some of the draws exceed.
const LATER_NS: u64 = 100_000;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("deferred_work_comes_later", comes_later),
        Case::new("deferred_atomics_and_reads", perftest),
    ]
}

fn options(seed: u64) -> [(&'static str, String); 1] {
    [("BFEMU_MODE", format!("deferred:{seed}"))]
}

/// Every byte arrives, and the trace shows that no poster executed its own requests.
fn comes_later(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    // The first program creates the state.
    verbs::pingpong_in(world, &testbed)?;
    process::stdout(testbed.emulator("trace").arg("--on"), LIMIT)?;
    let port = free_port()?.to_string();
    let run = |function: &str| {
        let mut command = testbed.command(function, world.verbs_tool("ibv_rc_pingpong"));
        command
            .envs(options(7))
            .args(["-d", "mlx5_0", "-n", "500", "-c", "-p", &port]);
        command
    };
    let mut client = run("node1.host");
    let listening = port.parse().context("port")?;
    succeed_pair(&mut run("node0.host"), client.arg("127.0.0.1"), listening)?;
    let text = process::stdout(testbed.emulator("trace").arg("--json"), LIMIT)?;
    let records: Vec<Value> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let mut rang: Option<u64> = None;
    let (mut requests, mut late) = (0, 0);
    for record in records
        .iter()
        .filter(|record| record["function"] == "node0.host")
    {
        let time = record["time_ns"].as_u64().context("time_ns")?;
        if record["kind"] == "doorbell" {
            rang = rang.or(Some(time));
        } else if record["kind"] == "request" {
            requests += 1;
            let waited = rang.take().map_or(0, |rang| time.saturating_sub(rang));
            late += u32::from(waited > LATER_NS);
        }
    }
    ensure!(
        requests == 500,
        "{requests} requests of 500 are in the trace"
    );
    ensure!(late >= 50, "only {late} of {requests} requests came later");
    Ok(())
}

fn perftest(world: &World) -> Result<()> {
    for (program, seed) in [
        ("ib_read_bw", 1),
        ("ib_atomic_bw", 2),
        ("ib_send_bw", 3),
        ("ib_write_bw", 4),
    ] {
        let testbed = Testbed::new(world)?;
        let port = free_port()?;
        let run = |function: &str| {
            let mut command = testbed.command(function, world.verbs_tool(program));
            command.envs(options(seed)).args([
                "-d",
                "mlx5_0",
                "-F",
                "-n",
                "300",
                "-p",
                &port.to_string(),
            ]);
            command
        };
        succeed_pair(
            &mut run("node0.host"),
            run("node1.dpu").arg("127.0.0.1"),
            port,
        )?;
    }
    Ok(())
}
