//! `fi_pingpong` of stock libfabric over its verbs provider, each byte compared, and programs of fabtests, which the user has
//! built. libfabric finds the device through the
//! connection manager: it binds identifiers to the addresses of the network interfaces, and to the loopback address.

use super::device::{CLIENT, SERVER, Testbed};
use super::{Case, Outcome, World};
use anyhow::{Context, Result, ensure};
use dev_setup as setup;
use std::path::{Path, PathBuf};
use std::time::Duration;
use testbed::pair::{Ended, run as run_pair};
use testbed::port::free as free_port;
use testbed::process::{self, Running};

/// One pair of programs. A pair that cannot connect waits without end.
const LIMIT: Duration = Duration::from_secs(120);
/// Of a pair, which takes seconds on a busy machine.
const PAIR_LIMIT: Duration = Duration::from_secs(30);
/// What the provider for reliable datagrams says of connections.
const LOG: [(&str, &str); 3] = [
    ("FI_LOG_LEVEL", "info"),
    ("FI_LOG_PROV", "ofi_rxm"),
    ("FI_LOG_SUBSYS", "ep_ctrl"),
];
/// A run that has not ended, and the provider's reason: it closes its connection after the peer has, and drops the completions there,
/// also that of the last send, for which `fi_pingpong` waits. This happens if the system stops the program between that send and
/// its first look.
const LOST: [&str; 2] = ["stopped at its limit", "shutdown conn"];

/// Sample for `cargo xtask test`.
pub(super) const SAMPLE: &[&str] = &["fi_pingpong -e msg", "fi_pingpong -e rdm -m msg"];

/// Endpoints: connections, the reliable datagrams of `ofi_rxm` above them, and datagrams.
const ROWS: &[&str] = &["-e msg", "-e rdm -m msg", "-e rdm -m tagged", "-e dgram"];

/// Variable with the directory of built programs of fabtests, for the stock libfabric.
const FABTESTS: &str = "XGVMI_FABTESTS";

/// Programs of fabtests: provider and options. The messages and writes are compared; `fi_rdm_atomic` compares without an
/// option, or with `-v`, by its version.
const FABTESTS_ROWS: &[(&str, &str, &str)] = &[
    ("fi_msg_pingpong", "verbs", "-v"),
    ("fi_rdm_pingpong", "verbs;ofi_rxm", "-v"),
    ("fi_rma_bw", "verbs;ofi_rxm", "-e rdm -o write -v"),
    ("fi_rma_bw", "verbs;ofi_rxm", "-e rdm -o read -v"),
    ("fi_rdm_atomic", "verbs;ofi_rxm", ""),
];

pub(super) fn run(world: &World) -> Result<Vec<Case>> {
    let libfabric = setup::libfabric()?;
    let rows = ROWS.iter().map(|row| (format!("fi_pingpong {row}"), row));
    let mut cases: Vec<_> = rows
        .filter(|(name, _)| world.wants(name))
        .map(|(name, row)| Case::of(name, pair(world, &libfabric, row)))
        .collect();
    let built = std::env::var_os(FABTESTS).filter(|dir| !dir.is_empty());
    let built = built.map(PathBuf::from);
    for row in FABTESTS_ROWS {
        let name = format!("fabtests: {} {}", row.0, row.2);
        let name = name.trim_end().to_owned();
        if !world.wants(&name) {
            continue;
        }
        cases.push(match &built {
            Some(dir) => Case::of(name, fabtest(world, (&libfabric, dir), *row)),
            None => Case {
                name,
                outcome: Outcome::Skipped(format!(
                    "{FABTESTS} names no directory with built programs"
                )),
            },
        });
    }
    Ok(cases)
}

/// Runs a server and a client of fabtests on a new device. The server listens through the connection manager.
fn fabtest(
    world: &World,
    (libfabric, dir): (&setup::Libfabric, &Path),
    (program, provider, options): (&str, &str, &str),
) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let port = free_port()?.to_string();
    let command = |function: &str, role: &str| {
        let mut command = testbed.command(function, dir.join(program));
        command
            .envs(world.env.for_libraries(&libfabric.libraries))
            .args(["-p", provider, "-I", "20", "-S", "100000", role, &port])
            .args(options.split_whitespace());
        command
    };
    let help = process::run(command(SERVER, "-B").arg("-h"), LIMIT)?.output;
    let compares: &[&str] = match program == "fi_rdm_atomic" && help.contains("-v") {
        true => &["-v"],
        false => &[],
    };
    let (mut server, mut client) = (command(SERVER, "-B"), command(CLIENT, "-P"));
    server.args(compares).args(["-s", "127.66.1.1"]);
    client.args(compares).arg("127.66.1.1");
    let serving = Running::up(&mut server, LIMIT, |_| {
        testbed
            .objects()
            .is_ok_and(|objects| objects.contains("stage Listen"))
    })?;
    let asked = Running::spawn(&mut client)?.wait(LIMIT)?;
    let patience = match asked.ok() {
        true => LIMIT,
        false => Duration::from_secs(1),
    };
    let ended = Ended {
        server: serving.wait(patience)?,
        client: asked,
    };
    ended.result(&server, &client)?;
    testbed
        .ensure_nothing_refused()
        .with_context(|| ended.client.output.clone())?;
    let moved = testbed
        .stats()?
        .counted("wqes", |name| name.contains("send"))?;
    ensure!(moved > 0, "the device moved no message");
    Ok(())
}

/// Runs a server and a client, and again if the provider has lost a completion ([`LOST`]).
fn pair(world: &World, libfabric: &setup::Libfabric, options: &str) -> Result<()> {
    let is_lost = |error: &anyhow::Error| {
        let said = format!("{error:#}");
        LOST.iter().all(|text| said.contains(text))
    };
    let mut done = pair_once(world, libfabric, options);
    for _ in 0..2 {
        match &done {
            Err(error) if is_lost(error) => done = pair_once(world, libfabric, options),
            _ => break,
        }
    }
    done
}

/// Runs a server and a client on a new device; the device must not refuse any request.
fn pair_once(world: &World, libfabric: &setup::Libfabric, options: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let port = free_port()?.to_string();
    let command = |function: &str, role: &str| {
        let mut command = testbed.command(function, libfabric.bin.join("fi_pingpong"));
        command
            .envs(world.env.for_libraries(&libfabric.libraries))
            .envs(LOG)
            .args(["-p", "verbs", "-c", "-I", "20", role, &port])
            .args(options.split_whitespace());
        command
    };
    let (mut server, mut client) = (command(SERVER, "-B"), command(CLIENT, "-P"));
    let listens = port.parse().context("a port")?;
    let outputs = run_pair(&mut server, client.arg("127.66.1.1"), listens, PAIR_LIMIT)?;
    testbed
        .ensure_nothing_refused()
        .with_context(|| format!("{}\n{}", outputs.0, outputs.1))?;
    let moved = testbed.stats()?.counted("wqes", |name| name == "send")?;
    ensure!(moved > 0, "the device moved no message");
    Ok(())
}
