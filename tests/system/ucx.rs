//! Stock UCX on the emulated device: discovery, and its own performance test between two nodes.

use crate::harness::Case;
use crate::world::{Testbed, World, free_port, succeed, succeed_pair};
use anyhow::{Context, Result, ensure};

/// One run of `ucx_perftest`.
struct Perftest {
    name: &'static str,
    /// Options of both sides. With `-x` it is a test of UCT, otherwise of UCP.
    options: &'static [&'static str],
}

const PERFTEST: &[Perftest] = &[
    Perftest {
        name: "ucx_tag_lat",
        options: &["-t", "tag_lat", "-n", "500", "-w", "20"],
    },
    Perftest {
        name: "ucx_tag_lat_rndv",
        options: &["-t", "tag_lat", "-s", "1048576", "-n", "50", "-w", "5"],
    },
    Perftest {
        name: "ucx_put_lat",
        options: &["-t", "ucp_put_lat", "-n", "500", "-w", "20"],
    },
    Perftest {
        name: "ucx_get",
        options: &["-t", "ucp_get", "-s", "65536", "-n", "500", "-w", "50"],
    },
    Perftest {
        name: "uct_put_lat",
        options: &[
            "-d", "mlx5_0:1", "-x", "rc_mlx5", "-t", "put_lat", "-n", "500", "-w", "20",
        ],
    },
    Perftest {
        name: "uct_get_bw",
        options: &[
            "-d", "mlx5_0:1", "-x", "rc_mlx5", "-t", "get_bw", "-D", "zcopy", "-s", "65536", "-n",
            "500", "-w", "50",
        ],
    },
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("ucx_info", info),
        Case::new("ucx_opens_devx_with_xgvmi", devx),
        Case::new("ucx_blueflame_copies_trap_once", one_trap),
    ];
    cases.extend(
        PERFTEST
            .iter()
            .map(|row| Case::new(row.name, move |world| perftest(world, row))),
    );
    // Words of four bytes need masked operations. Without them UCX executes the atomics in software
    // at the receiver.
    cases.push(Case::new("ucx_swap_32", |world| {
        const ITERATIONS: u64 = 500;
        let row = Perftest {
            name: "",
            options: &["-t", "ucp_swap", "-s", "4", "-n", "500", "-w", "20"],
        };
        let testbed = Testbed::new(world)?;
        perftest_in(&testbed, &row)?;
        let done = testbed.stats()?.executed("atomic")?;
        ensure!(done >= ITERATIONS, "the device did {done} atomics");
        Ok(())
    }));
    cases
}

fn info(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let output = succeed(testbed.ucx_command("node0.host", "ucx_info").arg("-d"))?;
    for transport in ["rc_mlx5", "ud_mlx5"] {
        let mut lines = output
            .lines()
            .skip_while(|line| !line.contains(&format!("Transport: {transport}")));
        let device = lines
            .nth(1)
            .with_context(|| format!("no transport {transport}:\n{output}"))?;
        ensure!(
            device.contains("Device: mlx5_0:1"),
            "{transport} is on '{device}'"
        );
    }
    let complaint = output
        .lines()
        .find(|line| line.contains(" ERROR ") && line.contains("mlx5"));
    ensure!(complaint.is_none(), "UCX complains: {complaint:?}");
    Ok(())
}

fn devx(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    for function in ["node0.host", "node0.dpu"] {
        let mut command = testbed.ucx_command(function, "ucx_info");
        let output = succeed(command.arg("-d").env("UCX_LOG_LEVEL", "debug"))?;
        // UCX falls back silently to other paths. These lines are those of the pinned version.
        for line in [
            "md open by 'uct_ib_mlx5_devx_md_ops' is successful",
            "mlx5_0: XGVMI is supported",
        ] {
            let why: Vec<&str> = output
                .lines()
                .filter(|l| l.contains("mlx5_0") && l.contains("ib_mlx5"))
                .collect();
            ensure!(
                output.contains(line),
                "{function}: no '{line}':\n{}",
                why.join("\n")
            );
        }
    }
    Ok(())
}

/// Each request traps once, although its copy into a BlueFlame register has four or more stores: in
/// loops of one block and of several, and in straight-line copies.
fn one_trap(world: &World) -> Result<()> {
    for row in PERFTEST.iter().filter(|row| row.name != "ucx_tag_lat_rndv") {
        let testbed = Testbed::new(world)?;
        perftest_in(&testbed, row)?;
        let (traps, doorbells) = (
            testbed.stats()?.total("traps")?,
            testbed.stats()?.total("doorbells")?,
        );
        let rings = doorbells + testbed.stats()?.total("cq_arms")?;
        ensure!(doorbells > 500, "{}: {doorbells} doorbells", row.name);
        ensure!(
            traps == rings,
            "{}: {traps} traps for {rings} doorbells and arms",
            row.name
        );
    }
    Ok(())
}

fn perftest(world: &World, row: &Perftest) -> Result<()> {
    perftest_in(&Testbed::new(world)?, row)
}

fn perftest_in(testbed: &Testbed<'_>, row: &Perftest) -> Result<()> {
    let port = free_port()?;
    let command = |function: &str| {
        let mut command = testbed.ucx_command(function, "ucx_perftest");
        // rc_x alone, so that a fallback to another transport fails.
        command
            .env("UCX_TLS", "rc_x,self")
            .env("UCX_NET_DEVICES", "mlx5_0:1");
        command.args(row.options).args(["-p", &port.to_string()]);
        command
    };
    let (mut server, mut client) = (command("node0.host"), command("node1.host"));
    let (_, output) = succeed_pair(&mut server, client.arg("127.0.0.1"), port)?;
    // "Final:" line: iterations; typical, average and overall latency; bandwidths; rates.
    let line = output.lines().find_map(|line| line.strip_prefix("Final:"));
    let line = line.with_context(|| format!("no result:\n{output}"))?;
    let numbers: Vec<f64> = line
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    ensure!(
        numbers.len() >= 4 && numbers[0] > 0.0 && numbers[2] > 0.0,
        "no time in 'Final:{line}'"
    );
    Ok(())
}
