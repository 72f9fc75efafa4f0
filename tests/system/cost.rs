//! `cost_table` over libmlx5 and the emulated device: every row is measured, and a pooled key costs no command.

use crate::harness::Case;
use crate::world::{Room, World, free_port, succeed, succeed_pair};
use anyhow::{Result, ensure};
use std::fs;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("cost_table_measures_every_row", every_row),
        Case::new("cost_table_of_a_dpu_elsewhere", elsewhere),
        Case::new("a_pool_hit_needs_no_command", pool_hit),
    ]
}

/// Approaches' steps, as the slides have them.
const ROWS: usize = 27;

fn every_row(world: &World) -> Result<()> {
    let room = Room::new(world)?;
    let csv = room.path().join("cost.csv");
    succeed(
        room.command("node0.host,node0.dpu", world.program("cost_table"))
            .args(["--host", "mlx5_0", "--dpu", "mlx5_1", "--repeats", "3"])
            .args(["--sizes", "16K,4M", "--output"])
            .arg(&csv),
    )?;
    let text = fs::read_to_string(&csv)?;
    let mut lines = text.lines();
    ensure!(
        lines.next() == Some("approach,step,ns_16KiB,ns_4MiB"),
        "{text}"
    );
    let measured = lines
        .filter(|line| {
            let mut times = line.split(',').skip(2).map(str::parse::<u64>);
            times
                .by_ref()
                .take(2)
                .all(|time| time.is_ok_and(|ns| ns > 0))
                && times.next().is_none()
        })
        .count();
    ensure!(measured == ROWS, "{measured} rows of {ROWS}:\n{text}");
    Ok(())
}

/// Host and DPU in two processes, as on two machines.
fn elsewhere(world: &World) -> Result<()> {
    const REPEATS: u64 = 5;
    let room = Room::new(world)?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let port = address.rsplit(':').next().unwrap_or_default().parse()?;
    let program = world.program("cost_table");
    let (served, table) = succeed_pair(
        room.command("node0.dpu", &program)
            .args(["--serve", &address]),
        room.command("node0.host", &program)
            .args(["--dpu", &address, "--approaches", "umr", "--sizes", "16K"])
            .args(["--repeats", &REPEATS.to_string()]),
        port,
    )?;
    ensure!(table.contains("dpu_mkey_registration"), "{table}");
    // One round more, which does not count.
    let made = room.commands("node0.dpu", "create_alias")?;
    ensure!(made == REPEATS + 1, "{made} aliases:\n{served}\n{table}");
    Ok(())
}

fn pool_hit(world: &World) -> Result<()> {
    const REPEATS: u64 = 10;
    let room = Room::new(world)?;
    succeed(
        room.command("node0.host", world.program("cost_table"))
            .args(["--approaches", "umr_pool_hit", "--sizes", "16K"])
            .args(["--repeats", &REPEATS.to_string()]),
    )?;
    let (made, bound) = (
        room.commands("node0.host", "create_mkey")?,
        room.executed("umr_bind")?,
    );
    ensure!(
        made == 1 && bound == REPEATS + 1,
        "{made} keys made and {bound} bound in {REPEATS} rounds and one more"
    );
    Ok(())
}
