//! The doorbell trap preserves the state of the thread that rings.

use crate::agent::compile;
use crate::harness::Case;
use crate::world::{Testbed, World, succeed};
use anyhow::{Result, ensure};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("trap_keeps_registers", keeps_registers),
        Case::new("trap_foreign_doorbell", foreign_doorbell),
    ]
}

/// General registers, flags, vectors, the red zone, floating-point modes, errno and the signal
/// mask, with signals whose handlers also ring.
fn keeps_registers(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let said = succeed(&mut testbed.command("node0.host", compile("trap_state")?))?;
    ensure!(said.trim() == "ok 20000", "{said}");
    let traps = testbed.stats()?.total("traps")?;
    ensure!(traps >= 20_000, "only {traps} stores trapped");
    Ok(())
}

/// Dedicated doorbell registers: both halves of each ring its queue pair. Another queue pair's register does not, in the
/// same page or in another one.
fn foreign_doorbell(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let program = compile("foreign_doorbell")?;
    let said = succeed(&mut testbed.command("node0.host", program))?;
    ensure!(said.trim() == "ok 256", "{said}");
    let refused = testbed
        .stats()?
        .refusals("node0.host", "foreign_doorbell")?;
    ensure!(refused == 2, "{refused} doorbells were refused");
    Ok(())
}
