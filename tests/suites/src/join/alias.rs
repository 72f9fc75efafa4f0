//! A key of another machine's function: no alias of it can be made, although both machines know the function by the same
//! number, and its owner exports on.

use super::{LIMIT, Machines, Network, QUICK};
use crate::{Case, World};
use anyhow::{Error, Result, ensure};
use testbed::port::free as free_port;
use testbed::process::{self, Running};
use testbed::workspace;

pub(super) const NAME: &str = "loopback: an alias of a key of the other machine is refused";
/// The device's answer to the importer's command: bad resource.
const STATUS: &str = "status: 5,";

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    Ok(match world.wants(NAME) {
        true => vec![Case::of(NAME, refused(world))],
        false => Vec::new(),
    })
}

fn refused(world: &World) -> Result<()> {
    workspace::build(&["-p xgvmi-pool --example export_verbs"])?;
    let machines = Machines::new(world, Network::Loopback)?.map_err(Error::msg)?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let command = |at: usize, function: &str, role: &str| {
        let program = world.bin.join("examples/export_verbs");
        let mut command = machines.both[at].cluster.command(function, program);
        command.args([role, &address, "--rounds", "2"]);
        command
    };
    let host = Running::saying(
        &mut command(0, "node0.host", "host"),
        QUICK,
        "listening on ",
    )?;
    // A function of the other machine, and one of the same card, which must not be taken for it.
    let asked = process::run(&mut command(1, "node1.dpu", "dpu"), LIMIT)?;
    ensure!(
        !asked.timed_out && !asked.ok() && asked.output.contains(STATUS),
        "{}\n{}",
        asked.verdict(),
        asked.output
    );
    // The owner waits for an importer that reads, and learns that there is none.
    let served = host.wait(QUICK)?;
    ensure!(
        !served.timed_out && served.output.contains("the peer is gone"),
        "{}\n{}",
        served.verdict(),
        served.output
    );
    let aliases = |at: usize, function: &str| {
        let stats = machines.both[at].cluster.stats()?;
        stats.commands(function, "create_alias")
    };
    ensure!(aliases(1, "node1.dpu")? > 0, "no alias was asked for");
    // On its own machine the same key can be imported.
    let host = Running::saying(
        &mut command(0, "node0.host", "host"),
        QUICK,
        "listening on ",
    )?;
    let near = process::run(&mut command(0, "node0.dpu", "dpu"), LIMIT)?;
    ensure!(near.ok(), "{}\n{}", near.verdict(), near.output);
    let served = host.wait(QUICK)?;
    ensure!(served.ok(), "{}\n{}", served.verdict(), served.output);
    Ok(())
}
