//! Polling mode: stock programs give the same results, without traps.

use crate::agent::{compile, compile_with};
use crate::harness::Case;
use crate::world::{Testbed, World, free_port, succeed, succeed_pair};
use anyhow::{Result, ensure};
use std::process::Command;

const POLLING: (&str, &str) = ("BFEMU_MODE", "polling");

/// A stock program with few messages: each may take milliseconds if both sides and both threads
/// compete for two processors.
struct Program {
    name: &'static str,
    tool: &'static str,
    options: &'static [&'static str],
    /// It sleeps until a completion event.
    arms: bool,
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "polling_pingpong",
        tool: "ibv_rc_pingpong",
        options: &["-d", "mlx5_0", "-c", "-n", "200"],
        arms: false,
    },
    Program {
        name: "polling_pingpong_events",
        tool: "ibv_rc_pingpong",
        options: &["-d", "mlx5_0", "-c", "-e", "-n", "200"],
        arms: true,
    },
    Program {
        name: "polling_ib_write_lat",
        tool: "ib_write_lat",
        options: &["-d", "mlx5_0", "-F", "-n", "100"],
        arms: false,
    },
    Program {
        name: "polling_ib_send_bw_ud",
        tool: "ib_send_bw",
        options: &["-d", "mlx5_0", "-F", "-c", "UD", "-s", "1024", "-n", "300"],
        arms: false,
    },
    Program {
        name: "polling_ib_read_bw_events",
        tool: "ib_read_bw",
        options: &["-d", "mlx5_0", "-F", "-e", "-n", "300"],
        arms: true,
    },
    Program {
        name: "polling_ib_atomic_bw",
        tool: "ib_atomic_bw",
        options: &["-d", "mlx5_0", "-F", "-n", "300"],
        arms: false,
    },
];

/// `ucx_perftest`, whose queues commands create; with `rc_x` and `dc_x` in turn.
const UCX: &[(&str, &str, &[&str])] = &[
    (
        "polling_ucx_put_lat",
        "rc_x,self",
        &["-t", "ucp_put_lat", "-n", "100", "-w", "5"],
    ),
    (
        "polling_ucx_tag_bw",
        "rc_x,self",
        &["-t", "tag_bw", "-s", "65536", "-n", "200", "-w", "5"],
    ),
    (
        "polling_ucx_am_lat_dc",
        "dc_x,self",
        &["-t", "ucp_am_lat", "-n", "100", "-w", "5"],
    ),
];

pub(crate) fn cases() -> Vec<Case> {
    let verbs = PROGRAMS
        .iter()
        .map(|row| Case::new(row.name, move |world| verbs(world, row)));
    let ucx = UCX
        .iter()
        .map(|row| Case::new(row.0, move |world| ucx(world, row.1, row.2)));
    let forks = ["trap", "polling", "deferred:3"].map(|mode| {
        Case::new(format!("fork_poster_{mode}"), move |world| {
            fork(world, mode)
        })
    });
    let within = Case::new("fork_within_a_search_for_doorbell_pages", fork_within);
    let cases = verbs.chain(ucx).chain(forks);
    cases.chain([within]).collect()
}

/// If a forked child rings its parent's queues, the device serves it in each mode, where an adapter
/// can see the request.
fn fork(world: &World, mode: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut command = testbed.command("node0.host", compile("fork_poster")?);
    let said = succeed(command.env(POLLING.0, mode))?;
    ensure!(said.trim() == "ok 20", "{said}");
    Ok(())
}

/// A signal handler forks while its own thread changes the table of doorbell pages.
fn fork_within(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let program = compile_with("fork_within", &["-rdynamic", "-libverbs"])?;
    let said = succeed(&mut testbed.command("node0.host", program))?;
    ensure!(said.starts_with("ok ") && said.trim() != "ok 0", "{said}");
    Ok(())
}

fn verbs(world: &World, row: &Program) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let run = |function: &str| testbed.command(function, world.verbs_tool(row.tool));
    pair(&testbed, row.options, run)?;
    let arms = testbed.stats()?.total("cq_arms")?;
    ensure!(
        (arms > 0) == row.arms,
        "{}: {arms} arms of completion queues",
        row.name
    );
    Ok(())
}

fn ucx(world: &World, transports: &str, options: &[&str]) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let run = |function: &str| {
        let mut command = testbed.ucx_command(function, "ucx_perftest");
        command
            .env("UCX_TLS", transports)
            .env("UCX_NET_DEVICES", "mlx5_0:1");
        command
    };
    pair(&testbed, options, run)
}

fn pair(testbed: &Testbed<'_>, options: &[&str], command: impl Fn(&str) -> Command) -> Result<()> {
    let port = free_port()?;
    let run = |function: &str| {
        let mut command = command(function);
        command.env(POLLING.0, POLLING.1);
        command.args(options).args(["-p", &port.to_string()]);
        command
    };
    let (mut server, mut client) = (run("node0.host"), run("node1.host"));
    succeed_pair(&mut server, client.arg("127.0.0.1"), port)?;
    let (traps, doorbells) = (
        testbed.stats()?.total("traps")?,
        testbed.stats()?.total("doorbells")?,
    );
    ensure!(traps == 0, "{traps} stores trapped");
    ensure!(doorbells > 0, "nothing was posted");
    Ok(())
}
