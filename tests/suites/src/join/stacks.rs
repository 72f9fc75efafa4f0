//! Communication libraries that connect through the connection manager, between two joined devices: stock UCX and stock
//! libfabric. Both programs compare every byte.

use super::connect::{addresses, ensure_empty, skipped};
use super::{LIMIT, Machines, Network, QUICK};
use crate::{Case, World};
use anyhow::{Context, Result, ensure};
use dev_setup as setup;
use std::process::Command;
use testbed::pair;
use testbed::port::free as free_port;
use testbed::process::{self, Running};
use testbed::workspace;

/// Endpoints of `fi_pingpong`.
const ENDPOINTS: [&str; 2] = ["-e msg", "-e rdm -m tagged"];
/// Transports of UCX, bytes and rounds. All bytes of a round differ from those before, and travel in both directions.
const UCX: [(&str, &str, &str); 3] = [
    ("rc_x", "1", "1"),
    ("rc_x", "2000000", "20"),
    ("rc_v", "100000", "20"),
];
/// 10.4 GB, over a link that loses, repeats and reorders packets.
const VERIFIED: (&str, &str, &str) = ("rc_x", "2000000", "2600");

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let networks = [
        (Network::Loopback, &ENDPOINTS[..], &UCX[..]),
        (Network::Disturbed, &ENDPOINTS, &UCX),
        (Network::Namespaces, &[], &[VERIFIED]),
        (Network::Netem, &[], &[VERIFIED]),
    ];
    let mut cases = Vec::new();
    for (network, endpoints, rows) in networks {
        let named = |row: String| format!("{}: {row}", network.name());
        let fabric = endpoints.iter().map(|row| {
            let run: Run = Box::new(|machines| libfabric(world, machines, row));
            (named(format!("fi_pingpong {row}")), run)
        });
        let ucx = rows.iter().map(|row| {
            let (transport, bytes, rounds) = row;
            let run: Run = Box::new(|machines| ucx(world, machines, *row));
            let name = format!("UCX over rdmacm, {transport}, {bytes} bytes {rounds} times");
            (named(name), run)
        });
        let wanted: Vec<_> = fabric
            .chain(ucx)
            .filter(|(name, _)| world.wants(name))
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let machines = Machines::new(world, network)?;
        cases.extend(wanted.into_iter().map(|(name, run)| match &machines {
            Ok(machines) => Case::of(name, moved(machines, &*run)),
            Err(reason) => skipped(name, reason),
        }));
    }
    Ok(cases)
}

type Run<'a> = Box<dyn Fn(&Machines) -> Result<()> + 'a>;

/// Packets have carried the data, and no connection is left.
fn moved(machines: &Machines, run: &dyn Fn(&Machines) -> Result<()>) -> Result<()> {
    let before = machines.counted("port_xmit_packets")?;
    run(machines)?;
    let packets = machines.counted("port_xmit_packets")? - before;
    ensure!(packets > 10, "only {packets} packets were sent");
    machines.both.iter().try_for_each(ensure_empty)
}

/// A program on each machine.
fn both(machines: &Machines, make: impl Fn(&str) -> Command) -> [Command; 2] {
    [0, 1].map(|index: usize| {
        let machine = &machines.both[index];
        let own = make(["server", "client"][index]);
        let mut command = machine.cluster.command(machine.function, own.get_program());
        command.args(own.get_args());
        for (name, value) in own.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        machine.inside(&command)
    })
}

fn libfabric(world: &World, machines: &Machines, options: &str) -> Result<()> {
    let libfabric = setup::libfabric()?;
    let port = free_port()?;
    let [to, _] = addresses(&machines.both[0], 0);
    let [mut server, mut client] = both(machines, |role| {
        let mut command = Command::new(libfabric.bin.join("fi_pingpong"));
        command.envs(world.env.for_libraries(&libfabric.libraries));
        command.args(["-p", "verbs", "-c", "-I", "5"]);
        match role {
            "server" => command.args(["-B", &port.to_string()]),
            _ => command.args(["-P", &port.to_string(), &to]),
        };
        command.args(options.split_whitespace());
        command
    });
    pair::run(&mut server, &mut client, port, LIMIT)?;
    Ok(())
}

/// `tests/programs/ucp_connect.c`: endpoints by socket address, whose server sends every byte back.
fn ucx(
    world: &World,
    machines: &Machines,
    (transport, bytes, rounds): (&str, &str, &str),
) -> Result<()> {
    let env = &world.env;
    let program = world.dir.join("ucp_connect");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(&program);
    compiler.arg(workspace::root().join("tests/programs/ucp_connect.c"));
    compiler.arg("-isystem").arg(&env.ucx_include);
    compiler.arg("-L").arg(&env.ucx_lib_dir);
    compiler.args([
        "-l:libucp.so.0",
        "-l:libucs.so.0",
        "-Wl,--allow-shlib-undefined",
    ]);
    process::stdout(&mut compiler, QUICK)?;
    let port = free_port()?.to_string();
    let [to, _] = addresses(&machines.both[0], 0);
    let [mut server, mut client] = both(machines, |role| {
        let mut command = Command::new(&program);
        command.envs(env.for_ucx());
        command.env("UCX_TLS", format!("{transport},self"));
        command.env("UCX_NET_DEVICES", "mlx5_0:1");
        command.env("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm");
        // The port's network device is the loopback one.
        command.env("UCX_IB_ROCE_REACHABILITY_MODE", "all");
        // A lost packet at the end of a message is missed soon.
        command.env("UCX_RC_TIMEOUT", "200ms");
        command.args([&to, &port, role]);
        if role == "client" {
            command.args([bytes, rounds]);
        }
        command
    });
    let server = Running::saying(&mut server, QUICK, "listening")?;
    let client = process::run(&mut client, LIMIT)?;
    let patience = if client.ok() { LIMIT } else { QUICK };
    let server = server.wait(patience).context("the server")?;
    let same = client.ok() && server.ok() && client.output.contains(&format!("same {rounds}"));
    ensure!(same, "{}\n{}", server.output, client.output);
    Ok(())
}
