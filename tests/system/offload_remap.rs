//! Imports that the service processes keep between calls, while ranks unmap their buffers and map others at the same addresses.

use crate::harness::Case;
use crate::offload::{Farm, NODES, Process};
use crate::world::{LIMIT, World, free_port};
use anyhow::{Result, ensure};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("offload_remapped_buffers", remapped),
        Case::new("offload_remapped_buffers_under_the_adversary", |world| {
            remapped_in(world, "xgvmi", "adversary:3")
        }),
    ]
}

/// A service keeps imports between calls, and must not use those of memory that is gone.
fn remapped(world: &World) -> Result<()> {
    for scheme in ["ksm", "stock", "xgvmi"] {
        remapped_in(world, scheme, "trap")?;
    }
    Ok(())
}

fn remapped_in(world: &World, scheme: &'static str, mode: &str) -> Result<()> {
    let farm = Farm::with_each(world, scheme, 1, |_, command| {
        command.env("BFEMU_MODE", mode);
    })?;
    let meet = format!("127.0.0.1:{}", free_port()?);
    let size = 2 * NODES;
    let ranks = (0..size).map(|rank| {
        let node = rank / 2;
        let mut command = farm.command(&format!("node{node}.host"), "remap_ranks");
        command.env("BFEMU_MODE", mode);
        command.args([rank.to_string(), size.to_string(), format!("n{node}")]);
        command.args([&meet, &farm.addresses(node)?, scheme, "33"]);
        Process::spawn(&mut command)
    });
    let ranks = ranks.collect::<Result<Vec<_>>>()?;
    let verified = farm.succeed(ranks, LIMIT)?;
    ensure!(verified > 0, "no byte was moved");
    Ok(())
}
