//! Two devices that are joined by RoCE v2: stock programs on both, over a good network and over one that loses, repeats and
//! reorders packets. The devices share nothing else.

mod alias;
mod connect;
mod demo;
mod stacks;
mod stream;

use super::{Case, Outcome, World};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::pair::Ended;
use testbed::port::{free as free_port, listens_in};
use testbed::process::{self, Done, Running};
use testbed::workspace;

/// Bound of a hang, for one pair of programs.
const LIMIT: Duration = Duration::from_secs(1200);
/// Bound of a hang, for a command that makes or removes something.
const QUICK: Duration = Duration::from_secs(60);

/// Part for `cargo xtask test`.
pub(super) const SAMPLE: &[&str] = &[
    "disturbed: ibv_rc_pingpong -c -n 300",
    "disturbed: joined_stream",
    "carrier ends",
    "loopback: rping",
    "loopback: udaddy",
    "dissector",
    "an alias of a key",
];

/// The network between the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    /// Addresses of one machine.
    Loopback,
    /// The same, with disturbances by the carriers.
    Disturbed,
    /// A link between two network namespaces, with disturbances by the carriers.
    Namespaces,
    /// The same link, with disturbances by the kernel.
    Netem,
}

impl Network {
    fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Disturbed => "disturbed",
            Self::Namespaces => "namespaces",
            Self::Netem => "netem",
        }
    }

    fn has_namespaces(self) -> bool {
        matches!(self, Self::Namespaces | Self::Netem)
    }
}

/// Programs and options. `-g` and `-x` name the GID: 3 is of IPv4, 5 of IPv6. The ping-pongs compare one byte of each page;
/// rows of `connect` compare every byte.
const ROWS: &[(&str, &str)] = &[
    ("ibv_rc_pingpong", "-c -n 300 -g 3"),
    ("ibv_rc_pingpong", "-c -e -n 300 -g 3"),
    ("ibv_rc_pingpong", "-c -s 1048576 -n 30 -g 3"),
    ("ibv_srq_pingpong", "-c -q 8 -n 300 -g 3"),
    ("ib_write_bw", "-n 200 -s 65536 -x 3"),
    ("ib_write_bw", "-n 500 -s 1000 -q 4 -b -x 3"),
    ("ib_write_lat", "-n 200 -s 8 -x 3"),
    ("ib_read_bw", "-n 200 -s 65536 -x 3"),
    ("ib_read_lat", "-n 200 -s 5000 -x 3"),
    ("ib_send_bw", "-n 200 -s 65536 -x 3"),
    ("ib_send_bw", "-n 200 -s 4000 -q 4 --use-srq -x 3"),
    ("ib_send_bw", "-n 200 -e -x 3"),
    ("ib_atomic_bw", "-n 300 -A FETCH_AND_ADD -x 3"),
    ("ib_atomic_lat", "-n 200 -A CMP_AND_SWAP -x 3"),
    ("ibv_xsrq_pingpong", "-n 100 -g 3"),
    ("ib_write_bw", "-c XRC -n 200 -s 65536 -x 3"),
    ("ib_read_bw", "-c XRC -n 200 -s 65536 -x 3"),
    ("ib_send_bw", "-c XRC -n 200 -s 5000 -q 2 -x 3"),
    ("ib_atomic_lat", "-c XRC -n 100 -x 3"),
    // Its receiver counts nothing.
    ("ib_write_bw", "-c UC -n 300 -s 65536 -x 3"),
];

/// `ucx_perftest` of stock UCX: transport and test.
const UCX_ROWS: &[(&str, &str)] = &[
    ("ucx_perftest", "rc_x -t tag_lat -s 8 -n 200"),
    ("ucx_perftest", "rc_x -t tag_bw -s 1048576 -n 20"),
    ("ucx_perftest", "rc_v -t ucp_get -s 65536 -n 50"),
    ("ucx_perftest", "rc_x -t ucp_fadd -s 8 -n 100"),
    ("ucx_perftest", "ud_x -t tag_lat -s 8 -n 100"),
];

/// Rows for a network that loses nothing: the programs wait for each datagram.
const GOOD_ROWS: &[(&str, &str)] = &[
    ("ibv_ud_pingpong", "-c -s 1024 -n 300 -g 3"),
    ("ibv_ud_pingpong", "-c -s 1000 -e -n 300 -g 3"),
    ("ib_send_lat", "-c UD -n 200 -s 64 -x 3"),
    ("ibv_uc_pingpong", "-c -n 300 -g 3"),
    ("ibv_uc_pingpong", "-c -e -s 100000 -n 30 -g 3"),
    ("ib_send_bw", "-c UC -n 300 -s 5000 -x 3"),
    ("ib_send_lat", "-c UC -n 200 -s 5000 -x 3"),
    ("ib_write_lat", "-c UC -n 200 -s 5000 -x 3"),
];

/// Further rows on a link with large frames: packets of 4096 bytes, IPv6, and more data.
const LINK_ROWS: &[(&str, &str)] = &[
    ("ibv_rc_pingpong", "-c -s 4194304 -m 4096 -n 1250 -g 5"),
    ("ib_write_bw", "-n 300 -s 262144 -b -x 5"),
    ("ib_read_bw", "-n 300 -s 262144 -x 5"),
    ("ibv_xsrq_pingpong", "-s 1048576 -m 4096 -n 20 -g 5"),
    ("ib_send_bw", "-c XRC -n 300 -s 65536 -x 5"),
    ("ib_write_bw", "-c UC -n 300 -s 262144 -x 5"),
];

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let networks = [
        (Network::Loopback, ROWS),
        (Network::Loopback, GOOD_ROWS),
        (Network::Disturbed, ROWS),
        (Network::Disturbed, UCX_ROWS),
        (Network::Namespaces, LINK_ROWS),
        (Network::Netem, LINK_ROWS),
    ];
    workspace::build(&["-p bf-emu -p bf-emu-preload"])?;
    let mut cases = Vec::new();
    for (network, rows) in networks {
        let name =
            |(program, options): &(&str, &str)| format!("{}: {program} {options}", network.name());
        let wanted: Vec<_> = rows.iter().filter(|row| world.wants(&name(row))).collect();
        if wanted.is_empty() {
            continue;
        }
        let machines = Machines::new(world, network)?;
        cases.extend(wanted.into_iter().map(|row| match &machines {
            Ok(machines) => Case::of(name(row), stock(world, machines, row)),
            Err(reason) => Case {
                name: name(row),
                outcome: Outcome::Skipped((*reason).to_owned()),
            },
        }));
    }
    let killed = "a killed carrier ends the connections of its machine and of the other one";
    if world.wants(killed) {
        cases.push(Case::of(killed, carrier_dies(world)));
    }
    cases.extend(alias::run_all(world)?);
    cases.extend(connect::run_all(world)?);
    cases.extend(stacks::run_all(world)?);
    cases.extend(stream::run_all(world)?);
    cases.extend(demo::run_all(world)?);
    Ok(cases)
}

/// One of the two machines. Its own node is 0 or 1; the other node is remote.
struct Machine {
    cluster: Cluster,
    function: &'static str,
    namespace: Option<String>,
    carrier: Running,
    /// Options of its carrier.
    join: Vec<String>,
}

impl Machine {
    /// A command of this machine: inside its namespace, if it has one.
    fn inside(&self, command: &Command) -> Command {
        inside(self.namespace.as_deref(), command)
    }

    /// Starts a machine with its carrier.
    fn start(
        cluster: Cluster,
        function: &'static str,
        namespace: Option<String>,
        join: Vec<String>,
    ) -> Result<Self> {
        process::stdout(&mut cluster.command(function, "true"), QUICK)?;
        let carrier = carrier(&cluster, namespace.as_deref(), &join)?;
        Ok(Self {
            cluster,
            function,
            namespace,
            carrier,
            join,
        })
    }

    /// Kills the carrier, and starts another one.
    fn restart_carrier(&mut self) -> Result<()> {
        self.carrier.group.kill();
        process::wait_until(QUICK, || self.carrier.group.has_ended());
        self.carrier = carrier(&self.cluster, self.namespace.as_deref(), &self.join)?;
        Ok(())
    }
}

fn carrier(cluster: &Cluster, namespace: Option<&str>, options: &[String]) -> Result<Running> {
    let mut join = cluster.emulator("join");
    join.args(options);
    Running::saying(&mut inside(namespace, &join), QUICK, "joined:")
}

fn inside(namespace: Option<&str>, command: &Command) -> Command {
    let Some(name) = namespace else {
        let mut same = Command::new(command.get_program());
        same.args(command.get_args());
        return with_variables(same, command);
    };
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", name]);
    inside.arg(command.get_program()).args(command.get_args());
    with_variables(inside, command)
}

fn with_variables(mut command: Command, of: &Command) -> Command {
    for (name, value) in of.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Two network namespaces with a link. Dropping it removes both.
struct Link([String; 2]);

impl Link {
    /// None if this process may not make namespaces.
    fn new() -> Result<Option<Self>> {
        let [a, b] = ["a", "b"].map(|end| format!("xgvmi-join-{}-{end}", std::process::id()));
        if !succeeds("ip", &format!("netns add {a}"))? {
            return Ok(None);
        }
        let link = Self([a.clone(), b.clone()]);
        let device = format!("xgvmi{}", std::process::id());
        let mut lines = vec![
            format!("netns add {b}"),
            format!("-n {a} link add {device} type veth peer name {device} netns {b}"),
        ];
        for (end, host) in [(&a, 1), (&b, 2)] {
            lines.extend([
                format!("-n {end} address add 10.66.0.{host}/24 dev {device}"),
                format!("-n {end} address add fd66::{host}/64 dev {device} nodad"),
                format!("-n {end} link set {device} mtu 9000 up"),
                format!("-n {end} link set lo up"),
            ]);
        }
        for line in lines {
            ensure!(succeeds("ip", &line)?, "ip {line} has failed");
        }
        Ok(Some(link))
    }

    /// Makes the kernel lose, repeat and reorder packets in both directions. False if it cannot.
    fn disturb(&self) -> Result<bool> {
        let device = format!("xgvmi{}", std::process::id());
        for end in &self.0 {
            let line = format!(
                "-n {end} qdisc add dev {device} root netem delay 100us reorder 98% loss 1% duplicate 1%"
            );
            if !succeeds("tc", &line)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for end in &self.0 {
            // The first one may exist without the second one.
            let _ = succeeds("ip", &format!("netns delete {end}"));
        }
    }
}

fn succeeds(program: &str, line: &str) -> Result<bool> {
    if !process::is_installed(program) {
        return Ok(false);
    }
    let done = process::run(Command::new(program).args(line.split_whitespace()), QUICK)?;
    Ok(done.ok())
}

/// Two machines with a carrier each.
struct Machines {
    // The carriers end before their link.
    both: [Machine; 2],
    host: &'static str,
    /// Whether the network loses packets.
    loses: bool,
    _link: Option<Link>,
}

impl Machines {
    /// Starts the carriers; or the reason why the machine has no such network.
    fn new(world: &World, network: Network) -> Result<Result<Self, &'static str>> {
        let link = match network.has_namespaces() {
            true => Link::new()?,
            false => None,
        };
        if network.has_namespaces() && link.is_none() {
            return Ok(Err("network namespaces need privileges"));
        }
        if network == Network::Netem && !link.as_ref().map_or(Ok(false), Link::disturb)? {
            return Ok(Err("the kernel has no netem"));
        }
        let first = Cluster::new(world.bin.join("bf-emu"), 2)?.envs(world.env.for_verbs());
        let port = free_port()?;
        let shape = shape(&first, link.is_some())?;
        let machine = |cluster: Cluster, index: usize| {
            let file = cluster.path().join(format!("topology{index}.toml"));
            fs::write(&file, with_remote(&shape, 1 - index)?).context("the topology")?;
            let cluster = cluster.with_topology(&file);
            let function = ["node0.host", "node1.host"][index];
            let namespace = link.as_ref().map(|link| link.0[index].clone());
            let mut join = vec!["--port".to_owned(), port.to_string()];
            if matches!(network, Network::Disturbed | Network::Namespaces) {
                join.extend(["--disturb".to_owned(), (index + 1).to_string()]);
            }
            Machine::start(cluster, function, namespace, join)
        };
        let second = first.named("second");
        Ok(Ok(Self {
            both: [machine(first, 0)?, machine(second, 1)?],
            host: if link.is_some() {
                "10.66.0.1"
            } else {
                "127.0.0.1"
            },
            loses: network != Network::Loopback,
            _link: link,
        }))
    }

    /// Counts of a port counter, on both machines.
    fn counted(&self, name: &str) -> Result<u64> {
        let count = |machine: &Machine| {
            machine
                .cluster
                .stats()?
                .port_counter(machine.function, name)
        };
        Ok(count(&self.both[0])? + count(&self.both[1])?)
    }
}

/// Topology of two nodes with Ethernet ports.
fn shape(cluster: &Cluster, has_link: bool) -> Result<String> {
    let shape = ["--nodes", "2", "--link", "ethernet"];
    let text = process::stdout(cluster.emulator("topology").args(shape), QUICK)?;
    if !has_link {
        return Ok(text);
    }
    // The host functions have the addresses of the link.
    let mut hosts = 0;
    let lines = text.lines().map(|line| match line.split_once(" = ") {
        Some(("role", role)) => {
            hosts += u32::from(role.contains("host"));
            line.to_owned()
        }
        Some(("addresses", old)) if old.contains(&format!("127.66.{hosts}.1")) => {
            format!("addresses = [\"10.66.0.{hosts}\", \"fd66::{hosts}\"]")
        }
        Some(("mtu", _)) => "mtu = 9000".to_owned(),
        _ => line.to_owned(),
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// The topology with one of its nodes on another machine.
fn with_remote(shape: &str, node: usize) -> Result<String> {
    let line = format!("name = \"node{node}\"\n");
    ensure!(shape.contains(&line), "no {line} in:\n{shape}");
    Ok(shape.replace(&line, &format!("{line}remote = true\n")))
}

/// A tool of ibverbs-utils or perftest.
fn tool(world: &World, name: &str) -> PathBuf {
    let installed = || Path::new(name).to_owned();
    let root = world.env.verbs_root.as_ref();
    root.map_or_else(installed, |root| root.join("usr/bin").join(name))
}

/// Server and client, each on its machine.
fn pair(
    world: &World,
    machines: &Machines,
    (program, options): (&str, &str),
) -> Result<[Command; 2]> {
    let port = free_port()?.to_string();
    if program == "ucx_perftest" {
        return ucx_pair(world, machines, (&port, options));
    }
    let [server, client] = [0, 1].map(|index: usize| {
        let machine = &machines.both[index];
        let mut command = machine
            .cluster
            .command(machine.function, tool(world, program));
        command.args(["-d", "mlx5_0", "-p", &port]);
        command.args(options.split_whitespace());
        if program.starts_with("ib_") {
            command.arg("-F");
        }
        if index == 1 {
            command.arg(machines.host);
        }
        machine.inside(&command)
    });
    Ok([server, client])
}

/// Server and client of `ucx_perftest`, on this transport alone.
fn ucx_pair(
    world: &World,
    machines: &Machines,
    (port, options): (&str, &str),
) -> Result<[Command; 2]> {
    let (transport, test) = options.split_once(' ').context("no test")?;
    let tool = world.env.ucx_tools_dir.join("ucx_perftest");
    Ok([0, 1].map(|index: usize| {
        let machine = &machines.both[index];
        let mut command = machine.cluster.command(machine.function, &tool);
        command.envs(world.env.for_ucx());
        command.env("UCX_TLS", format!("{transport},self"));
        command.env("UCX_NET_DEVICES", "mlx5_0:1");
        command.args(["-p", port, "-w", "5"]);
        if index == 1 {
            command.args(test.split_whitespace()).arg(machines.host);
        }
        machine.inside(&command)
    }))
}

/// Starts the server, and the client when the server listens.
fn started(server: &mut Command, client: &mut Command) -> Result<[Running; 2]> {
    let words: Vec<_> = server
        .get_args()
        .map(|word| word.to_string_lossy())
        .collect();
    let port = words
        .iter()
        .position(|word| word == "-p")
        .context("no port")?;
    let port = words.get(port + 1).context("no port")?.parse()?;
    let listens = |server: &Running| listens_in(server.group.id(), port);
    let server = Running::up(server, QUICK, listens)?;
    Ok([server, Running::spawn(client)?])
}

fn stock(world: &World, machines: &Machines, row: &(&str, &str)) -> Result<()> {
    // Each run has a chance of about one in a hundred per queue pair to lose its last acknowledgement.
    const RUNS: usize = 3;
    let mut lost = 0;
    while !stock_once(world, machines, row)? {
        lost += 1;
        ensure!(
            lost < RUNS,
            "{RUNS} times one side has no last acknowledgement"
        );
    }
    Ok(())
}

/// A run of stock programs. False if the last acknowledgement of a ping-pong was lost: its peer had all and has ended, as it may,
/// so that no repeat was answered.
fn stock_once(world: &World, machines: &Machines, row: &(&str, &str)) -> Result<bool> {
    let (program, _) = *row;
    let [mut server, mut client] = pair(world, machines, *row)?;
    let before = machines.counted("port_xmit_packets")?;
    let [serving, asking] = started(&mut server, &mut client)?;
    let asked = asking.wait(LIMIT)?;
    // The server of a failed client would wait without end.
    let patience = if asked.ok() {
        LIMIT
    } else {
        Duration::from_secs(1)
    };
    let ended = Ended {
        server: serving.wait(patience)?,
        client: asked,
    };
    if machines.loses && program.starts_with("ibv_") {
        let unheard = |had: &Done, other: &Done| {
            had.ok() && !other.ok() && other.output.contains("transport retry counter exceeded")
        };
        let (server, client) = (&ended.server, &ended.client);
        if unheard(server, client) || unheard(client, server) {
            return Ok(false);
        }
    }
    ended.result(&server, &client)?;
    if program.starts_with("ibv_") && program != "ibv_xsrq_pingpong" {
        for output in [&ended.server.output, &ended.client.output] {
            let right = output.contains("bytes in") && !output.contains("invalid data");
            ensure!(right, "wrong bytes arrived:\n{output}");
        }
    }
    let packets = machines.counted("port_xmit_packets")? - before;
    ensure!(packets > 100, "only {packets} packets were sent");
    Ok(true)
}

/// Kills the carrier of one machine while both send. Both programs must end with an error, as over a dead link.
fn carrier_dies(world: &World) -> Result<()> {
    let mut machines = Machines::new(world, Network::Loopback)?.map_err(anyhow::Error::msg)?;
    let row = ("ib_write_bw", "-D 600 -b -s 4096 -u 10 -x 3");
    let [mut server, mut client] = pair(world, &machines, row)?;
    let before = machines.counted("port_xmit_packets")?;
    let [serving, asking] = started(&mut server, &mut client)?;
    let flows = process::wait_until(QUICK, || {
        let now = machines.counted("port_xmit_packets");
        now.is_ok_and(|now| now > before + 1000)
    });
    ensure!(flows, "no packets:\n{}\n{}", serving.said(), asking.said());
    machines.both[0].carrier.group.kill();
    for (name, program) in [("client", asking), ("server", serving)] {
        let done = program.wait(QUICK)?;
        ensure!(!done.timed_out, "the {name} hangs:\n{}", done.output);
        ensure!(
            !done.ok(),
            "the {name} has noticed nothing:\n{}",
            done.output
        );
    }
    let refused = |machine: &Machine| {
        machine
            .cluster
            .stats()?
            .refusals(machine.function, "retry_exceeded")
    };
    for machine in &machines.both {
        ensure!(
            refused(machine)? > 0,
            "{}: no retry exceeded",
            machine.function
        );
    }
    Ok(())
}
