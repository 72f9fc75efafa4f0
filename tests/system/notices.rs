//! Asynchronous events that are no errors: a connection is established or migrates, a send queue is drained.

use crate::agent::compile;
use crate::harness::Case;
use crate::ports::TOPOLOGY_TWO;
use crate::talk::Talk;
use crate::world::{Testbed, World, succeed};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// Time limit of a step of a program.
const LIMIT: Duration = Duration::from_secs(30);
/// The modes of the device.
const MODES: [&str; 5] = [
    "trap",
    "deferred:3",
    "adversary:1",
    "adversary:2",
    "adversary:3",
];

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("notices_of_queue_pairs", notices),
        Case::new("connections_migrate_to_their_alternate_path", migration),
        Case::new("ethernet_ports_have_no_alternate_path", no_migration),
    ]
}

/// In each mode: completions that are late must precede the notice of a drained queue.
fn notices(world: &World) -> Result<()> {
    for mode in MODES {
        let testbed = Testbed::new(world)?;
        let mut command = testbed.command("node0.host", compile("notices")?);
        let said = succeed(command.env("BFEMU_MODE", mode)).context(mode)?;
        ensure!(said.ends_with("ok\n"), "{mode}: {said}");
    }
    Ok(())
}

/// A failed port, a command, and a peer with another path.
fn migration(world: &World) -> Result<()> {
    for mode in MODES {
        let testbed = Testbed::new(world)?;
        let mut command = testbed.command_with(TOPOLOGY_TWO, "node0.host", compile("migration")?);
        let mut program = Talk::start(command.env("BFEMU_MODE", mode))?;
        loop {
            let said = program.hear(LIMIT).context(mode)?;
            let Some((state, port)) = said.split_once(' ') else {
                ensure!(said == "ok", "{mode}: {said}");
                break;
            };
            succeed(testbed.emulator("port").args(["node0.host", port, state]))?;
            program.say("")?;
        }
    }
    Ok(())
}

/// As the kernel refuses it.
fn no_migration(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let options = [TOPOLOGY_TWO, &["--link", "ethernet"]].concat();
    let mut command = testbed.command_with(&options, "node0.host", compile("migration")?);
    let said = succeed(command.arg("ethernet"))?;
    ensure!(said == "ok\n", "{said}");
    Ok(())
}
