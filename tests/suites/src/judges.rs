//! Stock programs that people measure and test RDMA with: qperf, fio's engine `rdma`, and dapltest of Debian's dapl2-utils.
//! They come from the distribution, and the device must not refuse any of their requests.

use super::device::{CLIENT, SERVER, Testbed};
use super::{Case, World};
use anyhow::{Context, Result, ensure};
use dev_setup as setup;
use std::fs;
use std::process::Command;
use std::time::Duration;
use testbed::link::Link;
use testbed::pair;
use testbed::port::free as free_port;
use testbed::process::{self, Running};

/// One pair of programs. A pair that cannot connect waits without end.
const LIMIT: Duration = Duration::from_secs(120);

/// Samples for `cargo xtask test`.
pub(super) const FIO_SAMPLE: &[&str] = &["read"];
pub(super) const DAPL_SAMPLE: &[&str] = &["poll"];

/// The address of the server's port.
const ADDRESS: &str = "127.66.1.1";

/// Tests of qperf, each of a second: the datagrams, the unreliable and the reliable connections, and verified atomics.
const QPERF: &[&str] = &[
    "rc_lat",
    "rc_bw",
    "uc_lat",
    "uc_bw",
    "ud_lat",
    "ud_bw",
    "rc_rdma_read_lat",
    "rc_rdma_read_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_poll_lat",
    "uc_rdma_write_bw",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

pub(super) fn qperf(world: &World) -> Result<Vec<Case>> {
    let tools = setup::judges()?;
    // The tests of unreliable queue pairs know no global routes, and the others find them by the connection manager.
    let has_routes = world.link == Link::Ethernet;
    let routes = |test: &str| !has_routes || test.contains("rc_");
    let tests = QPERF
        .iter()
        .filter(|test| routes(test) && world.wants(test));
    Ok(tests
        .map(|test| Case::of(*test, one_qperf(world, &tools, test)))
        .collect())
}

fn one_qperf(world: &World, tools: &setup::Judges, test: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let port = free_port()?;
    let command = |function: &str| {
        let mut command = testbed.command(function, tools.bin.join("qperf"));
        command.args(["--listen_port", &port.to_string()]);
        command
    };
    let mut client = command(CLIENT);
    if world.link == Link::Ethernet {
        client.args(["-cm", "1"]);
    }
    client.args(["-t", "1", ADDRESS, test, "quit"]);
    let (_, output) = pair::run(&mut command(SERVER), &mut client, port, LIMIT)?;
    ensure!(output.contains(" = "), "no result:\n{output}");
    moved(&testbed, 1)
}

/// Bytes that fio moves per test, in requests of this size.
const FIO_BYTES: u64 = 4 << 20;
const FIO_REQUEST: u64 = 64 << 10;

/// Ways in which fio's engine moves data, and receives of the server. fio does not repeat a send whose receiver is not
/// ready, so all are posted in advance.
const FIO: &[(&str, &str)] = &[("write", "16"), ("read", "16"), ("send", "64")];

pub(super) fn fio(world: &World) -> Result<Vec<Case>> {
    let variables = setup::storage()?;
    let ways = FIO.iter().filter(|(way, _)| world.wants(way));
    Ok(ways
        .map(|(way, depth)| Case::of(*way, one_fio(world, &variables, way, depth)))
        .collect())
}

fn one_fio(world: &World, variables: &[(String, String)], way: &str, depth: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let port = free_port()?;
    let command = |function: &str, own: &[&str]| {
        let mut command = testbed.command(function, "fio");
        let variables = variables.iter().filter(|(name, _)| name == "PATH");
        command.envs(variables.map(|(name, value)| (name, value)));
        command.args(["--ioengine=rdma", &format!("--port={port}")]);
        command.arg(format!("--bs={FIO_REQUEST}"));
        command.arg(format!("--size={FIO_BYTES}")).args(own);
        command
    };
    let depth = format!("--iodepth={depth}");
    let mut server = command(SERVER, &["--name=receiver", "--rw=read", &depth]);
    let verb = format!("--verb={way}");
    let host = format!("--hostname={ADDRESS}");
    let sender = ["--name=sender", "--rw=write", "--iodepth=1", &host, &verb];
    beside(&testbed, &mut server, &mut command(CLIENT, &sender))?;
    moved(&testbed, FIO_BYTES)
}

/// Transactions of dapltest, each of which compares every byte.
const DAPL: &[(&str, &str)] = &[
    ("send and receive", "-i 100 client SR 256 server SR 256"),
    (
        "poll",
        "-P -i 50 client RW 4096 server RR 4096 client SR 256 4 server SR 256 4",
    ),
    (
        "long",
        "-i 20 client RW 1000000 client RR 1000000 client SR 65536 2 server SR 65536 2",
    ),
];

pub(super) fn dapl(world: &World) -> Result<Vec<Case>> {
    let tools = setup::judges()?;
    let tests = DAPL.iter().filter(|(name, _)| world.wants(name));
    Ok(tests
        .map(|(name, test)| Case::of(*name, one_dapl(world, &tools, test)))
        .collect())
}

fn one_dapl(world: &World, tools: &setup::Judges, test: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    // An adapter of DAPL has the address of its port.
    let provider = tools.library("libdaplofa.so.2")?;
    let line = |name: &str, address: &str| {
        let provider = provider.display();
        format!("{name} u2.0 nonthreadsafe default {provider} dapl.2.0 \"{address} 0\" \"\"\n")
    };
    let config = world.dir.join("dat.conf");
    let text = line("server", ADDRESS) + &line("client", "127.66.2.1");
    fs::write(&config, text).with_context(|| config.display().to_string())?;
    let command = |function: &str, arguments: &str| {
        let mut command = testbed.command(function, tools.bin.join("dapltest"));
        command.envs(world.env.for_libraries(&tools.libraries));
        command.env("DAT_OVERRIDE", &config);
        command.args(arguments.split_whitespace());
        command
    };
    let mut server = command(SERVER, "-T S -D server");
    let running = listening(&testbed, &mut server)?;
    for arguments in [
        format!("-T T -V -D client -s {ADDRESS} {test}"),
        format!("-T Q -D client -s {ADDRESS}"),
    ] {
        let mut client = command(CLIENT, &arguments);
        let done = process::run(&mut client, LIMIT)?;
        // It ends without an error code after a failure.
        let failed = ["bad ", "Warning", "failed", "FAILED", "error"];
        let is_good = done.ok() && !failed.iter().any(|word| done.output.contains(word));
        ensure!(is_good, "{arguments}\n{}\n{}", done.verdict(), done.output);
    }
    let done = running.wait(LIMIT)?;
    ensure!(done.ok(), "server: {}\n{}", done.verdict(), done.output);
    moved(&testbed, 1)
}

/// Starts a server and waits until it listens at the connection manager.
pub(super) fn listening(testbed: &Testbed<'_>, server: &mut Command) -> Result<Running> {
    let listens = |_: &Running| {
        let objects = testbed.objects().unwrap_or_default();
        objects.contains("stage Listen")
    };
    Running::up(server, LIMIT, listens)
}

/// Runs a server of the connection manager and its client; both must succeed.
fn beside(testbed: &Testbed<'_>, server: &mut Command, client: &mut Command) -> Result<()> {
    let running = listening(testbed, server)?;
    let done = process::run(client, LIMIT)?;
    let patience = match done.ok() {
        true => LIMIT,
        false => Duration::ZERO,
    };
    let ended = pair::Ended {
        server: running.wait(patience)?,
        client: done,
    };
    ended.result(server, client)
}

/// The device moved at least `bytes`, and refused no request.
pub(super) fn moved(testbed: &Testbed<'_>, bytes: u64) -> Result<()> {
    testbed.ensure_nothing_refused()?;
    let stats = testbed.stats()?;
    let moved = stats.total("bytes")?;
    ensure!(moved >= bytes, "the device moved {moved} bytes");
    Ok(())
}
