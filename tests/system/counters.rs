//! Counters of ports, as programs read them from sysfs and by `ibv_query_port`: traffic of perftest, errors, and partitions.

use crate::agent::{Agent, Wc, connect};
use crate::harness::Case;
use crate::process;
use crate::world::{LIMIT, Testbed, World, free_port, run_pair, succeed, succeed_pair};
use anyhow::{Context, Result, ensure};
use std::process::Command;

const SERVER: &str = "node0.host";
const CLIENT: &str = "node1.host";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("counters_of_writes_and_reads", traffic),
        Case::new("counters_of_a_refused_request", refused),
        Case::new("partitions_must_be_the_same", partitions),
    ]
}

/// Counters of a function's port in this directory, by one reader.
fn read<const N: usize>(
    testbed: &Testbed<'_>,
    function: &str,
    names: [&str; N],
) -> Result<[u64; N]> {
    let port = "/sys/class/infiniband/mlx5_0/ports/1";
    let paths = names.map(|name| format!("{port}/{name}"));
    let text = process::stdout(testbed.command(function, "cat").args(&paths), LIMIT)?;
    let counts: Option<Vec<u64>> = text.lines().map(|line| line.parse().ok()).collect();
    let counts = counts.and_then(|counts| counts.try_into().ok());
    counts.with_context(|| format!("{paths:?} of {function}: {text}"))
}

/// Messages of 64 KiB in packets of 1 KiB, as their headers say.
fn traffic(world: &World) -> Result<()> {
    const MESSAGES: u64 = 100;
    const BYTES: u64 = 65536;
    const MTU: u64 = 1024;
    /// Local route, base transport and invariant CRC of each packet.
    const HEAD: u64 = 8 + 12 + 4;
    const REMOTE: u64 = 16;
    const ACKNOWLEDGEMENT: u64 = 4;
    let packets = BYTES / MTU;
    let data = BYTES + packets * HEAD;
    let written = (data + REMOTE, HEAD + ACKNOWLEDGEMENT);
    let read_back = (HEAD + REMOTE, data + 2 * ACKNOWLEDGEMENT);
    for (program, requests, (there, back), counts) in [
        ("ib_write_bw", "rx_write_requests", written, [packets, 1]),
        ("ib_read_bw", "rx_read_requests", read_back, [1, packets]),
    ] {
        let testbed = Testbed::new(world)?;
        let port = free_port()?;
        let run = |function: &str| {
            let mut command = testbed.command(function, world.verbs_tool(program));
            let (messages, bytes, mtu) = (MESSAGES.to_string(), BYTES.to_string(), MTU.to_string());
            command.args(["-F", "-d", "mlx5_0", "-p", &port.to_string()]);
            command.args(["-n", &messages, "-s", &bytes, "-m", &mtu]);
            command
        };
        succeed_pair(&mut run(SERVER), run(CLIENT).arg("127.0.0.1"), port)?;
        let names = [
            "counters/port_xmit_packets",
            "counters/port_rcv_packets",
            "counters/port_xmit_data",
            "counters/port_rcv_data",
            "counters/unicast_xmit_packets",
            "counters/multicast_xmit_packets",
            "counters/symbol_error",
        ];
        let expect = |[sent, received]: [u64; 2], (out, back): (u64, u64)| {
            let all = |one: u64| one * MESSAGES;
            [sent, received, out / 4, back / 4, sent, 0, 0].map(all)
        };
        let found = read(&testbed, CLIENT, names)?;
        let expected = expect(counts, (there, back));
        ensure!(found == expected, "{program}: {found:?}, not {expected:?}");
        let found = read(&testbed, SERVER, names)?;
        let [sent, received] = counts;
        let expected = expect([received, sent], (back, there));
        ensure!(found == expected, "{program}: {found:?}, not {expected:?}");
        let requests = read(&testbed, SERVER, [&format!("hw_counters/{requests}")])?;
        ensure!(requests == [MESSAGES], "{program}: {requests:?} requests");
    }
    Ok(())
}

/// Both sides count a refused access once, and each flushed request.
fn refused(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut asks = Agent::start(&testbed, CLIENT)?;
    let mut answers = Agent::start(&testbed, SERVER)?;
    let local = asks.memory(0, 4096, "wRWA")?;
    let remote = answers.memory(0, 4096, "wR")?;
    connect(&mut asks, &mut answers)?;
    let wc = asks.rdma(
        "write",
        (local.addr, local.lkey),
        (remote.addr, remote.rkey),
        64,
    )?;
    ensure!(wc == Wc::RemAccessErr, "{wc:?}");
    let errors = [
        "hw_counters/req_cqe_error",
        "hw_counters/req_remote_access_errors",
        "hw_counters/resp_remote_access_errors",
        "hw_counters/req_remote_invalid_request",
    ];
    let (asked, answered) = (
        read(&testbed, CLIENT, errors)?,
        read(&testbed, SERVER, errors)?,
    );
    ensure!(
        asked == [1, 1, 0, 0] && answered == [0, 0, 1, 0],
        "{asked:?} and {answered:?}"
    );
    Ok(())
}

/// A stock program connects within a partition, one end of which is a full member, and not to another one.
fn partitions(world: &World) -> Result<()> {
    for (keys, same) in [
        (["0x8001", "0x0001"], true),
        (["0x8001", "0x8002"], false),
        (["0x0001", "0x0001"], false),
    ] {
        let testbed = Testbed::new(world)?;
        let file = testbed.path().join("topology.toml");
        let node =
            |key: &str| format!("[[node]]\n[[node.function]]\nrole = \"host\"\npkeys = [{key}]\n");
        std::fs::write(&file, keys.map(node).concat())?;
        let testbed = testbed.with_topology(&file);
        let port = free_port()?;
        let run = |function: &str| -> Command {
            let mut command = testbed.command(function, world.verbs_tool("ibv_rc_pingpong"));
            command.args(["-d", "mlx5_0", "-p", &port.to_string(), "-n", "10"]);
            command
        };
        let mut client = run(CLIENT);
        client.arg("127.0.0.1");
        let info = || {
            let mut command = testbed.command(SERVER, world.verbs_tool("ibv_devinfo"));
            succeed(command.arg("-v"))
        };
        let none = |info: &str| {
            let mut lines = info.lines().map(str::split_whitespace);
            lines.any(|words| words.eq(["bad_pkey_cntr:", "0x0"]))
        };
        if same {
            succeed_pair(&mut run(SERVER), &mut client, port)?;
            let info = info()?;
            ensure!(none(&info), "{keys:?}: {info}");
        } else {
            // The client gives up; the server waits for it and is ended.
            let mut server = testbed.command(SERVER, "timeout");
            server.args(["--preserve-status", "5"]);
            server.arg(world.verbs_tool("ibv_rc_pingpong"));
            server.args(["-d", "mlx5_0", "-p", &port.to_string(), "-n", "10"]);
            let (_, client) = run_pair(&mut server, &mut client, port)?;
            ensure!(
                client.output.contains("transport retry counter exceeded"),
                "{keys:?}: {}",
                client.output
            );
            let info = info()?;
            ensure!(!none(&info), "{keys:?}: {info}");
        }
        let shown = "/sys/class/infiniband/mlx5_0/ports/1/pkeys/0";
        let shown = process::stdout(testbed.command(SERVER, "cat").arg(shown), LIMIT)?;
        ensure!(shown.trim() == keys[0], "{shown}");
    }
    Ok(())
}
