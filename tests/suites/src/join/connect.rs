//! Stock programs on librdmacm over two machines, or three, with deaths of programs and carriers while they connect; and the
//! dissector's view of the packets.

use super::{LIMIT, Machine, Machines, Network, QUICK, succeeds, tool, with_remote};
use crate::{Case, Outcome, World};
use anyhow::{Context, Result, ensure};
use dev_setup as setup;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::pair::Ended;
use testbed::port::free as free_port;
use testbed::process::{self, Running};
use testbed::workspace;

/// Pairs of programs: the server's line and the client's. `ADDRESS` is the server's. rping with `-V`, and rstream with
/// `-T v`, compare every byte. A server that has an end in brackets serves without end.
const ROWS: &[&str] = &[
    "rping -s -C 50 -S 4000 -V ; rping -c -a ADDRESS -C 50 -S 4000 -V",
    "[rping -s -P] ; rping -c -a ADDRESS -C 21 -V",
    "ucmatose -c 50 ; ucmatose -c 50 -s ADDRESS",
    "ucmatose -m ; ucmatose -m -s ADDRESS",
    "[cmtime] ; cmtime -c 100 -s ADDRESS",
    "rdma_server ; rdma_client -s ADDRESS",
    "ib_write_bw -R -F -n 50 ; ib_write_bw -R -F -n 50 ADDRESS",
];

/// Pairs for a network that loses nothing: datagrams, which nobody repeats, or much data, whose acknowledgements the
/// programs' timeout of 2 s repeats.
const GOOD_ROWS: &[&str] = &[
    "udaddy ; udaddy -s ADDRESS",
    "udaddy -c 10 ; udaddy -c 10 -s ADDRESS",
    "rdma_xserver -c r ; rdma_xclient -c r -s ADDRESS",
    "rstream -S 65536 -C 200 -T v ; rstream -S 65536 -C 200 -T v -s ADDRESS",
    "riostream -S 4096 -C 200 -T v ; riostream -S 4096 -C 200 -T v -s ADDRESS",
    "ib_write_lat -R -F -n 200 ; ib_write_lat -R -F -n 200 ADDRESS",
    "ib_read_bw -R -F -n 200 -q 4 ; ib_read_bw -R -F -n 200 -q 4 ADDRESS",
    "ib_send_bw -R -F -n 200 -b ; ib_send_bw -R -F -n 200 -b ADDRESS",
    "ib_send_lat -R -F -n 200 -c UD ; ib_send_lat -R -F -n 200 -c UD ADDRESS",
    "ib_atomic_bw -R -F -n 200 ; ib_atomic_bw -R -F -n 200 ADDRESS",
];

/// Pairs on a link, also with addresses of IPv6.
const LINK_ROWS: &[&str] = &[
    "rping -s -C 50 -S 4000 -V ; rping -c -a ADDRESS -C 50 -S 4000 -V",
    "rping -s -a ADDRESS6 -C 20 -V ; rping -c -a ADDRESS6 -C 20 -V",
    "ucmatose -c 20 ; ucmatose -c 20 -s ADDRESS",
    "[cmtime] ; cmtime -c 100 -s ADDRESS",
    "ib_write_bw -R -F -n 50 ; ib_write_bw -R -F -n 50 ADDRESS",
];

/// Nothing, or the reason why the machine cannot run a case.
type Verdict = Result<(), &'static str>;
type Judge = fn(&World) -> Result<Verdict>;

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let networks = [
        (Network::Loopback, ROWS),
        (Network::Loopback, GOOD_ROWS),
        (Network::Disturbed, ROWS),
        (Network::Namespaces, LINK_ROWS),
        (Network::Netem, LINK_ROWS),
    ];
    let mut cases = Vec::new();
    for (network, rows) in networks {
        let name = |row: &str| {
            let client = row.split_once(" ; ").map_or(row, |(_, client)| client);
            format!("{}: {client}", network.name())
        };
        let wanted: Vec<_> = rows.iter().filter(|row| world.wants(&name(row))).collect();
        if wanted.is_empty() {
            continue;
        }
        let machines = Machines::new(world, network)?;
        for row in wanted {
            cases.push(match &machines {
                // The first row runs in both directions.
                Ok(machines) if *row == ROWS[0] => Case::of(
                    name(row),
                    pair(world, machines, row, 0).and_then(|()| pair(world, machines, row, 1)),
                ),
                Ok(machines) => Case::of(name(row), pair(world, machines, row, 0)),
                Err(reason) => skipped(name(row), reason),
            });
        }
    }
    let others: [(&str, Judge); 5] = [
        (
            "programs and carriers that are killed while they connect",
            killed,
        ),
        (
            "a carrier that starts 200 times, with connections between",
            restarted,
        ),
        ("three machines connect to one another", three),
        ("the dissector finds no malformed packet", dissected),
        ("a carrier on a full file system says so", full),
    ];
    for (name, case) in others {
        if world.wants(name) {
            cases.push(match case(world) {
                Ok(Err(reason)) => skipped(name.to_owned(), reason),
                Ok(Ok(())) => Case::of(name, Ok(())),
                Err(error) => Case::of(name, Err(error)),
            });
        }
    }
    Ok(cases)
}

pub(super) fn skipped(name: String, reason: &str) -> Case {
    Case {
        name,
        outcome: Outcome::Skipped(reason.to_owned()),
    }
}

/// The address of a machine, in both versions.
pub(super) fn addresses(machine: &Machine, index: usize) -> [String; 2] {
    let host = index + 1;
    match machine.namespace {
        Some(_) => [format!("10.66.0.{host}"), format!("fd66::{host}")],
        None => [format!("127.66.{host}.1"), format!("fd00:bf::{host}:1")],
    }
}

/// A program of a line on a machine.
fn command(world: &World, machine: &Machine, line: &str, to: &[String; 2]) -> Result<Command> {
    let mut words = line.trim_matches(['[', ']']).split_whitespace();
    let program = words.next().context("a line without program")?;
    let path: PathBuf = match program.starts_with("ib_") {
        true => tool(world, program),
        false => setup::rdmacm()?.join("usr/bin").join(program),
    };
    let mut command = machine.cluster.command(machine.function, path);
    command.args(words.map(|word| match word {
        "ADDRESS" => &to[0],
        "ADDRESS6" => &to[1],
        other => other,
    }));
    Ok(machine.inside(&command))
}

fn listens(machine: &Machine) -> bool {
    let objects = machine.cluster.ask("dump", &[]).unwrap_or_default();
    objects.contains("stage Listen")
}

/// Waits until the connection manager of a machine has nothing left.
pub(super) fn ensure_empty(machine: &Machine) -> Result<()> {
    let objects = || {
        // This removes what ended programs have left.
        let _ = machine.cluster.stats();
        machine.cluster.ask("dump", &[]).unwrap_or_default()
    };
    let empty = process::wait_until(QUICK, || !objects().contains("rdma_cm_id"));
    ensure!(
        empty,
        "{}: identifiers are left:\n{}",
        machine.function,
        objects()
    );
    Ok(())
}

/// Runs a row with its server on one of the machines.
fn pair(world: &World, machines: &Machines, row: &str, server: usize) -> Result<()> {
    let (served, asking) = row.split_once(" ; ").context("a row without client")?;
    let stays = served.starts_with('[');
    let [near, far] = [server, 1 - server].map(|index: usize| &machines.both[index]);
    let to = addresses(near, server);
    let mut serve = command(world, near, served, &to)?;
    let mut ask = command(world, far, asking, &to)?;
    let serving = Running::up(&mut serve, QUICK, |_| listens(near))?;
    let client = process::run(&mut ask, LIMIT)?;
    // The server of a failed client would wait without end.
    let patience = match client.ok() && !stays {
        true => LIMIT,
        false => Duration::ZERO,
    };
    let ended = Ended {
        server: serving.wait(patience)?,
        client,
    };
    if !stays || !ended.client.ok() {
        ended.result(&serve, &ask)?;
    }
    machines.both.iter().try_for_each(ensure_empty)
}

/// Kills each program and each carrier after the first packets of a connection, at several points. The other program of a
/// killed one ends, and later connections stand.
fn killed(world: &World) -> Result<Verdict> {
    let mut machines = Machines::new(world, Network::Loopback)?.map_err(anyhow::Error::msg)?;
    let to = addresses(&machines.both[0], 0);
    for packets in [1, 2, 3, 4, 5, 7] {
        for victim in ["client", "server", "carrier 0", "carrier 1"] {
            let place = || format!("the {victim} was killed after {packets} packets");
            let line = |machine: &Machine, line: &str| {
                let mut command = command(world, machine, line, &to)?;
                command.env("BFEMU_CM_TIMEOUT_MS", "4000");
                anyhow::Ok(command)
            };
            let [near, far] = &machines.both;
            let mut serve = line(near, "rping -s -P")?;
            let mut server = Running::up(&mut serve, QUICK, |_| listens(near))?;
            let before = machines.counted("port_xmit_packets")?;
            let mut client = Running::spawn(&mut line(far, "rping -c -a ADDRESS -C 2000 -V")?)?;
            let begun = process::wait_until(QUICK, || {
                let now = machines.counted("port_xmit_packets");
                now.is_ok_and(|now| now >= before + packets)
            });
            ensure!(
                begun,
                "before the {victim} was to be killed after {packets} packets: none\n{}\n{}",
                client.said(),
                server.said()
            );
            match victim {
                "client" => client.group.kill(),
                "server" => server.group.kill(),
                "carrier 0" => machines.both[0].restart_carrier()?,
                _ => machines.both[1].restart_carrier()?,
            }
            let [near, far] = &machines.both;
            if victim != "client" {
                let ended = process::wait_until(QUICK, || client.group.has_ended());
                ensure!(
                    ended,
                    "{}: the client hangs:\n{}\n{}{}",
                    place(),
                    client.said(),
                    far.cluster.ask("dump", &[])?,
                    near.cluster.ask("dump", &[])?
                );
            }
            server.group.kill();
            // The numbers of the killed ones are gone, and others connect.
            machines
                .both
                .iter()
                .try_for_each(ensure_empty)
                .with_context(place)?;
            pair(world, &machines, ROWS[0], 0).with_context(place)?;
        }
    }
    Ok(Ok(()))
}

/// Restarts the carriers many times. Connections stand between and afterwards.
fn restarted(world: &World) -> Result<Verdict> {
    let mut machines = Machines::new(world, Network::Loopback)?.map_err(anyhow::Error::msg)?;
    for round in 0..200 {
        machines.both[round % 2].restart_carrier()?;
        if round % 20 == 0 {
            pair(world, &machines, ROWS[0], round / 20 % 2)
                .with_context(|| format!("round {round}"))?;
        }
    }
    pair(world, &machines, ROWS[0], 1)?;
    Ok(Ok(()))
}

/// Three machines, each of which connects to both others at the same time.
fn three(world: &World) -> Result<Verdict> {
    let functions = ["node0.host", "node1.host", "node2.host"];
    let first = Cluster::new(world.bin.join("bf-emu"), 3)?.envs(world.env.for_verbs());
    let line = ["--nodes", "3", "--link", "ethernet"];
    let shape = process::stdout(first.emulator("topology").args(line), QUICK)?;
    let port = free_port()?.to_string();
    let start = |index: usize| {
        let cluster = first.named(&format!("machine{index}"));
        let others = (0..3).filter(|other| *other != index);
        let text = others
            .into_iter()
            .try_fold(shape.clone(), |text, other| with_remote(&text, other))?;
        let file = cluster.path().join(format!("three{index}.toml"));
        fs::write(&file, text).context("the topology")?;
        let join = vec!["--port".to_owned(), port.clone()];
        Machine::start(cluster.with_topology(&file), functions[index], None, join)
    };
    let machines = [start(0)?, start(1)?, start(2)?];
    let mut running = Vec::new();
    // One server for each client, at its own port.
    for (index, machine) in machines.iter().enumerate() {
        for other in (0..3).filter(|other| *other != index) {
            let to = addresses(machine, index);
            let number = 7000 + 10 * index + other;
            let mut serve = command(
                world,
                machine,
                &format!("rping -s -C 50 -V -p {number}"),
                &to,
            )?;
            let service = format!("service {:#x}", 0x0106_0000 + number);
            let is_up = |_: &Running| {
                let objects = machine.cluster.ask("dump", &[]).unwrap_or_default();
                objects.contains(&service)
            };
            running.push(Running::up(&mut serve, QUICK, is_up)?);
        }
    }
    for (index, machine) in machines.iter().enumerate() {
        for other in (0..3).filter(|other| *other != index) {
            let to = addresses(&machines[other], other);
            let number = 7000 + 10 * other + index;
            let line = format!("rping -c -a ADDRESS -C 50 -V -p {number}");
            running.push(Running::spawn(&mut command(world, machine, &line, &to)?)?);
        }
    }
    for program in running {
        let done = program.wait(LIMIT)?;
        ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
    }
    machines.iter().try_for_each(ensure_empty)?;
    Ok(Ok(()))
}

/// Records the packets of connections, of a lookup and of a refusal. Wireshark's dissector finds all messages and nothing
/// malformed, and scapy computes the same checksums.
fn dissected(world: &World) -> Result<Verdict> {
    let judges = setup::dissector()?;
    let machines = Machines::new(world, Network::Loopback)?.map_err(anyhow::Error::msg)?;
    let port = machines.both[0].join.get(1).context("no port")?.clone();
    let file = world.dir.join("join.pcap");
    let ask = |program: &str| {
        let mut command = Command::new(judges.bin.join(program));
        command.envs(world.env.for_libraries(&judges.libraries));
        command
    };
    let mut record = ask("dumpcap");
    record
        .args([
            "-P",
            "-q",
            "-i",
            "lo",
            "-f",
            &format!("udp port {port}"),
            "-w",
        ])
        .arg(&file);
    let Ok(recorder) = Running::saying(&mut record, QUICK, "File:") else {
        return Ok(Err("needs privileges to record packets"));
    };
    for row in [ROWS[0], GOOD_ROWS[0]] {
        pair(world, &machines, row, 0)?;
    }
    for row in [
        ("ibv_uc_pingpong", "-s 5000 -n 40 -g 3"),
        ("ib_write_bw", "-c UC -n 40 -s 5000 -x 3"),
        ("ibv_xsrq_pingpong", "-s 5000 -n 40 -g 3"),
        ("ib_read_bw", "-c XRC -n 40 -s 5000 -x 3"),
        ("ib_atomic_lat", "-c XRC -n 80 -x 3"),
    ] {
        super::stock(world, &machines, &row)?;
    }
    let to = addresses(&machines.both[0], 0);
    let mut refused = command(world, &machines.both[1], "rping -c -a ADDRESS -C 1", &to)?;
    ensure!(
        !process::run(&mut refused, QUICK)?.ok(),
        "a connection without listener"
    );
    let dissect = |what: &[&str]| {
        let mut command = ask("tshark");
        command
            .args(["-o", &format!("infiniband.rroce.port:{port}"), "-r"])
            .arg(&file)
            .args(what);
        process::stdout(&mut command, QUICK)
    };
    let messages = [
        "-Y",
        "infiniband.mad",
        "-T",
        "fields",
        "-e",
        "infiniband.mad.attributeid",
    ];
    let seen = process::wait_until(QUICK, || {
        let all = dissect(&messages).unwrap_or_default();
        // REQ, REJ, REP, RTU, DREQ, DREP, SIDR_REQ and SIDR_REP.
        [0x10, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]
            .iter()
            .all(|attribute| all.contains(&format!("{attribute:#06x}")))
    });
    recorder.group.ask_to_end();
    recorder.wait(QUICK)?;
    ensure!(seen, "messages are missing:\n{}", dissect(&messages)?);
    let bad = dissect(&[
        "-Y",
        "_ws.malformed || _ws.expert.severity == \"Error\" || !infiniband",
    ])?;
    ensure!(bad.trim().is_empty(), "the dissector refuses:\n{bad}");
    let mut checksums = Command::new("python3");
    checksums.arg(workspace::root().join("tests/suites/join_icrc.py"));
    checksums.arg(&file).arg(&port);
    let packages = setup::pyverbs()?.join("usr/lib/python3/dist-packages");
    checksums.env("PYTHONPATH", packages);
    let counted = process::stdout(&mut checksums, QUICK)?;
    let right = counted.contains(" packets, 0 wrong") && !counted.starts_with("0 ");
    ensure!(right, "{counted}");
    Ok(Ok(()))
}

/// Starts a carrier on a file system without free space, in a mount namespace.
fn full(world: &World) -> Result<Verdict> {
    if !succeeds("unshare", "-m true")? {
        return Ok(Err("needs privileges for mounts"));
    }
    let first = Cluster::new(world.bin.join("bf-emu"), 2)?.envs(world.env.for_verbs());
    let shape = super::shape(&first, false)?;
    let dir = first.path();
    let topology = dir.join("topology.toml");
    fs::write(&topology, with_remote(&shape, 1)?)?;
    let script = "mount -t tmpfs -o size=3m tmpfs $DIR/small &&
        $EMULATOR run --state $DIR/small/s --topology $DIR/topology.toml --as node0.host -- true || exit 9
        dd if=/dev/zero of=$DIR/small/fill bs=4k status=none
        exec $EMULATOR join --state $DIR/small/s --port $PORT";
    fs::create_dir(dir.join("small"))?;
    let mut shell = Command::new("unshare");
    shell.args(["-m", "sh", "-c", script]);
    shell.env("DIR", dir).env("PORT", free_port()?.to_string());
    shell.env("EMULATOR", world.bin.join("bf-emu"));
    let done = process::run(&mut shell, QUICK)?;
    ensure!(
        done.status.code() == Some(1) && done.status.signal().is_none(),
        "{}\n{}",
        done.verdict(),
        done.output
    );
    ensure!(
        done.output
            .contains("its file system is full; free space there"),
        "{}",
        done.output
    );
    Ok(Ok(()))
}
