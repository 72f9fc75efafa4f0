//! Asynchronous events that are no errors: a connection is established, a send queue is drained.

use crate::agent::compile;
use crate::harness::Case;
use crate::world::{Testbed, World, succeed};
use anyhow::{Context, Result, ensure};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("notices_of_queue_pairs", notices)]
}

/// In each mode: completions that are late must precede the notice of a drained queue.
fn notices(world: &World) -> Result<()> {
    for mode in [
        "trap",
        "deferred:3",
        "adversary:1",
        "adversary:2",
        "adversary:3",
    ] {
        let testbed = Testbed::new(world)?;
        let mut command = testbed.command("node0.host", compile("notices")?);
        let said = succeed(command.env("BFEMU_MODE", mode)).context(mode)?;
        ensure!(said.ends_with("ok\n"), "{mode}: {said}");
    }
    Ok(())
}
