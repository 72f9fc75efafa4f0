//! The doorbell trap preserves the state of the thread that rings.

use crate::agent::compile;
use crate::harness::Case;
use crate::world::{Room, World, succeed};
use anyhow::{Result, ensure};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("trap_keeps_registers", keeps_registers)]
}

/// General registers, flags, vectors, the red zone, floating-point modes, errno and the signal
/// mask, with signals whose handlers also ring.
fn keeps_registers(world: &World) -> Result<()> {
    let room = Room::new(world)?;
    let said = succeed(&mut room.command("node0.host", compile("trap_state")?))?;
    ensure!(said.trim() == "ok 20000", "{said}");
    let traps = room.total("traps")?;
    ensure!(traps >= 20_000, "only {traps} stores trapped");
    Ok(())
}
