//! NIXL's wheel over its own UCX and libmlx5: one process writes the memory of another and reads it back, in parts.

use super::device::{CLIENT, SERVER, Testbed};
use super::{Case, World};
use anyhow::{Context as _, Result, ensure};
use dev_setup as setup;
use std::fs;
use std::process::Command;
use std::time::Duration;
use testbed::process::{self, Running};
use testbed::workspace;

/// Bound of a hang; longer than that of the program.
const LIMIT: Duration = Duration::from_secs(120);
/// Transports of UCX.
const TRANSPORTS: &[&str] = &["rc_x", "rc_v"];
/// Bytes that one case moves and compares.
const BYTES: u64 = 2 << 20;

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let nixl = setup::nixl()?;
    let transports = TRANSPORTS.iter().filter(|name| world.wants(name));
    Ok(transports
        .map(|name| Case::of(*name, one(world, &nixl, name)))
        .collect())
}

fn one(world: &World, nixl: &setup::Nixl, transport: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let meet = world.dir.join(format!("nixl-{transport}"));
    if meet.exists() {
        fs::remove_dir_all(&meet).with_context(|| meet.display().to_string())?;
    }
    fs::create_dir_all(&meet).with_context(|| meet.display().to_string())?;
    let command = |function: &str, role: &str| -> Command {
        let mut command = testbed.command(function, &nixl.python);
        command.arg(workspace::root().join("tests/suites/nixl_pair.py"));
        command.arg(role).arg(&nixl.packages).arg(&meet);
        command.env("NIXL_PLUGIN_DIR", &nixl.plugins);
        command.env("UCX_TLS", format!("{transport},self"));
        command.env("UCX_NET_DEVICES", "mlx5_0:1");
        command
    };
    let is_up = |_: &Running| meet.join("target").exists();
    let target = Running::up(&mut command(SERVER, "target"), LIMIT, is_up)?;
    let done = process::run(&mut command(CLIENT, "initiator"), LIMIT)?;
    let expect = format!("{BYTES} bytes verified");
    let is_good = done.ok() && done.output.contains(&expect);
    ensure!(is_good, "{}\n{}", done.verdict(), done.output);
    let done = target.wait(LIMIT)?;
    ensure!(done.ok(), "target: {}\n{}", done.verdict(), done.output);
    testbed.ensure_nothing_refused()?;
    let moved = testbed.stats()?.total("bytes")?;
    ensure!(moved >= BYTES, "the device moved {moved} bytes");
    Ok(())
}
