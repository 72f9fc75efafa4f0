//! The demo with host and DPU A on one machine and those of B on another one: the DPU of A reads its host's memory through an
//! alias, which another machine reads from it. Every byte is compared at host B.

use super::{LIMIT, Machines, Network};
use crate::{Case, World};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use testbed::process;
use testbed::workspace;

const SCHEMES: &str = "ksm,stock,xgvmi,arena";

/// Stands for the emulator: `run` goes to the machine of the function's node, and everything else to the first one.
const EMULATOR: &str = r#"#!/bin/sh
command=$1; shift 3
if [ "$command" != run ]; then exec "$EMULATOR" "$command" --state "$STATE0" "$@"; fi
while [ "$1" != -- ]; do if [ "$1" = --as ]; then function=$2; fi; shift; done
state=$STATE0; case $function in node1.*) state=$STATE1;; esac
exec "$EMULATOR" run --state "$state" --as "$function" "$@"
"#;

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let networks = [Network::Loopback, Network::Disturbed];
    let names = networks.map(|network| {
        let name = format!(
            "{}: the demo with its hosts on two machines",
            network.name()
        );
        (network, name)
    });
    let wanted = names.into_iter().filter(|(_, name)| world.wants(name));
    Ok(wanted
        .map(|(network, name)| Case::of(name, one(world, network)))
        .collect())
}

fn one(world: &World, network: Network) -> Result<()> {
    workspace::build(&["-p osu-bench -p uct-plugin"])?;
    let machines = Machines::new(world, network)?.map_err(anyhow::Error::msg)?;
    let dir = machines.both[0].cluster.path();
    let emulator = dir.join("emulator");
    fs::write(&emulator, EMULATOR).context("the emulator")?;
    fs::set_permissions(&emulator, fs::Permissions::from_mode(0o755))?;
    let library = world.env.ucx_lib_dir.join("libucp.so.0");
    let plugin = world.bin.join("libuct_ib_mlx5_xgvmi.so");
    let mut demo = Command::new(world.bin.join("xgvmi-demo"));
    process::without_ucx_settings(&mut demo);
    demo.arg("orchestrate").arg("--emulator").arg(&emulator);
    demo.arg("--plugin").arg(&plugin);
    demo.arg("--ucx-library").arg(&library);
    demo.args(["--schemes", SCHEMES, "--links", "ethernet"]);
    demo.args(["--profile", "none", "--sizes", "64K,1M"]);
    demo.args(["--iterations", "20", "--limit-s", "1000"]);
    demo.arg("--output").arg(dir.join("demo"));
    demo.envs(world.env.for_ucx());
    for (name, value) in [
        ("UCX_TLS", "rc_x,self"),
        ("UCX_NET_DEVICES", "mlx5_0:1"),
        ("UCX_RC_TIMEOUT", "200ms"),
        // As in other programs of this wheel.
        ("UCX_MODULES", "^efa,rdmacm"),
    ] {
        demo.env(name, value);
    }
    demo.env("EMULATOR", world.bin.join("bf-emu"));
    for (name, machine) in ["STATE0", "STATE1"].iter().zip(&machines.both) {
        demo.env(name, machine.cluster.state());
    }
    // The DPU of A answers the reads.
    let packets = || {
        let stats = machines.both[0].cluster.stats()?;
        stats.port_counter("node0.dpu", "port_xmit_packets")
    };
    let before = packets()?;
    let done = process::run(&mut demo, LIMIT)?;
    let right = done.ok() && done.output.contains("bytes verified at host B, none wrong");
    ensure!(right, "{}\n{}", done.verdict(), done.output);
    // At least one packet for each 1024 bytes of the counted transfers.
    let least = 4 * 20 * ((64 << 10) + (1 << 20)) / 1024;
    let packets = packets()? - before;
    ensure!(packets >= least, "only {packets} packets were sent");
    Ok(())
}
