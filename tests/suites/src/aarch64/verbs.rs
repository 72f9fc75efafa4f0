//! rdma-core's ping-pong programs between a host of this processor and a DPU of the other one, each received byte compared.

use super::foreign;
use crate::{Case, World};
use anyhow::{Result, ensure};
use dev_setup::versions::VERSIONS;
use std::process::Command;
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::foreign::Foreign;
use testbed::{pair, port, workspace};

const LIMIT: Duration = Duration::from_secs(600);

/// Program, mode of the DPU's device, and options. BlueFlame copies and plain doorbells both occur.
const PINGPONGS: &[(&str, &str, &str)] = &[
    ("ibv_rc_pingpong", "trap", "-n 300"),
    ("ibv_rc_pingpong", "trap", "-n 100 -e"),
    ("ibv_rc_pingpong", "trap", "-n 20 -s 1048576"),
    ("ibv_rc_pingpong", "deferred", "-n 100"),
    ("ibv_rc_pingpong", "adversary:11", "-n 100"),
    ("ibv_rc_pingpong", "polling", "-n 100"),
    ("ibv_uc_pingpong", "trap", "-n 300"),
    ("ibv_ud_pingpong", "trap", "-n 300 -s 2048"),
    ("ibv_srq_pingpong", "trap", "-n 100 -q 4"),
];

/// Each program that is wanted.
pub(crate) fn run_all(world: &World) -> Result<Vec<Case>> {
    workspace::build(&["-p bf-emu -p bf-emu-preload"])?;
    // The programs use no UCX; it only has its place in the description.
    let foreign = foreign(&["bf-emu-preload"], &VERSIONS[0])?;
    let mut cases = Vec::new();
    for (program, mode, options) in PINGPONGS {
        let name = format!("{program} {options}, {mode}");
        if world.wants(&name) {
            let device = Cluster::new(world.bin.join("bf-emu"), 1)?;
            let ran = pingpong(&device.with(["--mode", mode]), &foreign, program, options);
            cases.push(Case::of(name, ran));
        }
    }
    Ok(cases)
}

/// The DPU's program, which is the server, and the host's.
fn commands(
    device: &Cluster,
    foreign: &Foreign,
    program: &str,
    options: &str,
) -> Result<(Command, Command, u16)> {
    let port = port::free()?;
    let arguments = format!("-c {options} -p {port}");
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let path = foreign.libraries.join("usr/bin").join(program);
    let mut server = foreign.command(device, "node0.dpu", path);
    server.args(&arguments);
    let mut client = device.command("node0.host", program);
    client.args(&arguments).arg("localhost");
    Ok((server, client, port))
}

fn pingpong(device: &Cluster, foreign: &Foreign, program: &str, options: &str) -> Result<()> {
    let (mut server, mut client, port) = commands(device, foreign, program, options)?;
    let said = pair::run(&mut server, &mut client, port, LIMIT)?;
    for output in [said.0, said.1] {
        ensure!(
            output.contains("bytes in") && !output.contains("invalid data"),
            "wrong bytes arrived:\n{output}"
        );
    }
    Ok(())
}
