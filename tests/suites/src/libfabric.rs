//! `fi_pingpong` of stock libfabric over its verbs provider, each byte compared. libfabric finds the device through the
//! connection manager: it binds identifiers to the addresses of the network interfaces, and to the loopback address.

use super::device::{CLIENT, SERVER, Testbed};
use super::{Case, World};
use anyhow::{Context, Result, ensure};
use dev_setup as setup;
use std::time::Duration;
use testbed::pair::run as run_pair;
use testbed::port::free as free_port;

/// One pair of programs. A pair that cannot connect waits without end.
const LIMIT: Duration = Duration::from_secs(120);

/// Sample for `cargo xtask test`.
pub(super) const SAMPLE: &[&str] = &["fi_pingpong -e msg", "fi_pingpong -e rdm -m msg"];

/// Endpoints: connections, the reliable datagrams of `ofi_rxm` above them, and datagrams.
const ROWS: &[&str] = &["-e msg", "-e rdm -m msg", "-e rdm -m tagged", "-e dgram"];

pub(super) fn run(world: &World) -> Result<Vec<Case>> {
    let libfabric = setup::libfabric()?;
    let rows = ROWS.iter().map(|row| (format!("fi_pingpong {row}"), row));
    Ok(rows
        .filter(|(name, _)| world.wants(name))
        .map(|(name, row)| Case::of(name, pair(world, &libfabric, row)))
        .collect())
}

/// Runs a server and a client on a new device; the device must not refuse any request.
fn pair(world: &World, libfabric: &setup::Libfabric, options: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let port = free_port()?.to_string();
    let command = |function: &str, role: &str| {
        let mut command = testbed.command(function, libfabric.bin.join("fi_pingpong"));
        command
            .envs(world.env.for_libraries(&libfabric.libraries))
            .args(["-p", "verbs", "-c", "-I", "20", role, &port])
            .args(options.split_whitespace());
        command
    };
    let (mut server, mut client) = (command(SERVER, "-B"), command(CLIENT, "-P"));
    let listens = port.parse().context("a port")?;
    let outputs = run_pair(&mut server, client.arg("127.66.1.1"), listens, LIMIT)?;
    testbed
        .ensure_nothing_refused()
        .with_context(|| format!("{}\n{}", outputs.0, outputs.1))?;
    let moved = testbed.stats()?.counted("wqes", |name| name == "send")?;
    ensure!(moved > 0, "the device moved no message");
    Ok(())
}
