//! The pool and the alias map on libmlx5 and the emulated device, by the example programs of their crate.

use crate::harness::Case;
use crate::world::{Room, World, free_port, succeed, succeed_pair};
use anyhow::{Context, Result, ensure};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("pool_device_check", device_check),
        Case::new("pool_export_verbs", export_verbs),
    ]
}

/// Every promise that the pool takes from its device, with both functions of a node in one process.
fn device_check(world: &World) -> Result<()> {
    let room = Room::new(world)?;
    let program = world.example("device_check");
    let output = succeed(
        room.command("node0.host,node0.dpu", program)
            .args(["mlx5_0", "mlx5_1"]),
    )?;
    let passed = output
        .lines()
        .filter(|line| line.starts_with("ok "))
        .count();
    ensure!(passed > 0, "no check ran:\n{output}");
    ensure!(
        output.contains(&format!("{passed} checks, 0 failed")),
        "{passed} checks passed:\n{output}"
    );
    Ok(())
}

/// A host and its DPU in two processes: bytes arrive through pooled keys, and through released ones none.
fn export_verbs(world: &World) -> Result<()> {
    const ROUNDS: u64 = 10;
    const BYTES: u64 = 65536;
    let room = Room::new(world)?;
    let program = world.example("export_verbs");
    let port = free_port()?;
    let address = format!("127.0.0.1:{port}");
    let (host, dpu) = succeed_pair(
        room.command("node0.host", &program)
            .args(["host", &address])
            .args(["--rounds", &ROUNDS.to_string()])
            .args(["--bytes", &BYTES.to_string()]),
        room.command("node0.dpu", &program).args(["dpu", &address]),
        port,
    )?;
    let verified = count_before(&dpu, " bytes verified")?;
    ensure!(
        verified == ROUNDS * BYTES,
        "{verified} bytes verified:\n{dpu}"
    );
    let created = count_before(&dpu, " aliases created")?;
    let keys = room.commands("node0.host", "create_mkey")?;
    ensure!(
        created < ROUNDS && keys < ROUNDS,
        "{keys} keys and {created} aliases for {ROUNDS} exports:\n{host}\n{dpu}"
    );
    // By the device's own count, which the programs cannot make up.
    let (bound, released) = (room.executed("umr_bind")?, room.executed("umr_invalidate")?);
    ensure!(
        bound >= ROUNDS && released >= ROUNDS,
        "{bound} binds and {released} invalidations for {ROUNDS} exports:\n{host}\n{dpu}"
    );
    Ok(())
}

/// The number in front of `what`.
fn count_before(text: &str, what: &str) -> Result<u64> {
    text.split_once(what)
        .and_then(|(before, _)| before.rsplit(|c: char| !c.is_ascii_digit()).next())
        .and_then(|digits| digits.parse().ok())
        .with_context(|| format!("no count of{what}:\n{text}"))
}
