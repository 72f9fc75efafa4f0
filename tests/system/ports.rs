//! Drives `programs/port_agent.c`: a process in one function of the device, its ports, and their
//! events.

use crate::agent::{Answer, compile, compile_with};
use crate::harness::Case;
use crate::talk::Talk;
use crate::world::{Testbed, World, free_port, succeed, succeed_pair};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// Time limit of a command. The slowest command waits for an event.
const ANSWER: Duration = Duration::from_secs(30);

/// The communicating functions.
const HOST: &str = "node0.host";
const FAR: &str = "node1.host";
/// Target of the other processes' writes.
const WRITTEN_AT: u64 = 64;
/// `IBV_PORT_ACTIVE`.
const ACTIVE: u64 = 4;
/// `IBV_WC_SUCCESS` and `IBV_WC_RETRY_EXC_ERR`.
const SUCCESS: u64 = 0;
const FLUSHED: u64 = 5;
const RETRY_EXCEEDED: u64 = 12;
/// The same with two ports.
pub(crate) const TOPOLOGY_TWO: &[&str] = &["--ports", "2"];
/// Options of `bf-emu run` for two nodes whose functions have one port each.
pub(crate) const TOPOLOGY_ONE: &[&str] = &[];

/// A running agent with an open device.
pub(crate) struct Party {
    name: String,
    talk: Talk,
    addr: u64,
    rkey: u32,
    pub(crate) caps: Caps,
    /// Encoded timeout of a try, and number of retries.
    patience: (u8, u8),
}

/// Attributes of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    pub(crate) ports: u64,
    /// Maximum number of completions per event.
    pub(crate) count: u64,
    /// Maximum moderation time in microseconds.
    pub(crate) period: u64,
}

/// A port in `ibv_query_port` and related calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) lid: u64,
    pub(crate) gid: u64,
    pub(crate) state: u64,
}

impl Party {
    pub(crate) fn start(testbed: &Testbed<'_>, options: &[&str], function: &str) -> Result<Self> {
        let talk =
            Talk::start(&mut testbed.command_with(options, function, compile("port_agent")?))?;
        let mut party = Self {
            name: function.to_owned(),
            talk,
            addr: 0,
            rkey: 0,
            caps: Caps {
                ports: 0,
                count: 0,
                period: 0,
            },
            // Half a second.
            patience: (14, 7),
        };
        let answer = party.tell("open")?;
        party.addr = answer.value("addr")?;
        party.rkey = answer.value("rkey")?;
        party.caps = Caps {
            ports: answer.value("ports")?,
            count: answer.value("count")?,
            period: answer.value("period")?,
        };
        Ok(party)
    }

    /// Sends one line and waits for the answer.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Answer> {
        let line = self
            .talk
            .ask(command, ANSWER)
            .with_context(|| format!("{} at '{command}'", self.name))?;
        Ok(Answer::new(format!("{}: {command}", self.name), line))
    }

    /// Sends one line. The command must succeed.
    pub(crate) fn tell(&mut self, command: &str) -> Result<Answer> {
        let answer = self.ask(command)?;
        answer.expect_start("ok")?;
        Ok(answer)
    }

    pub(crate) fn port(&mut self, number: u8) -> Result<Port> {
        let answer = self.tell(&format!("port {number}"))?;
        Ok(Port {
            lid: answer.value("lid")?,
            gid: answer.value("gid")?,
            state: answer.value("state")?,
        })
    }

    /// Address and key of its memory.
    pub(crate) fn target(&self) -> (u64, u64) {
        (self.addr, self.rkey.into())
    }

    /// Creates a queue pair on a port. Returns its number.
    pub(crate) fn qp(&mut self, slot: u32, service: &str, port: u8) -> Result<u32> {
        let answer = self.tell(&format!("qp {slot} {service} {port}"))?;
        answer.value("qpn")
    }

    /// Connects a queue pair to a queue pair of `there`.
    pub(crate) fn connect(&mut self, slot: u32, qpn: u32, there: &Port) -> Result<()> {
        let (Port { lid, gid, .. }, (time, tries)) = (there, self.patience);
        self.tell(&format!("connect {slot} {qpn} {lid} {gid} {time} {tries}"))
            .map(drop)
    }

    /// Connects new queue pairs in the same slot of two processes, over a port of each.
    pub(crate) fn pair(&mut self, other: &mut Party, slot: u32, ports: (u8, u8)) -> Result<()> {
        let own = (self.qp(slot, "rc", ports.0)?, self.port(ports.0)?);
        let others = (other.qp(slot, "rc", ports.1)?, other.port(ports.1)?);
        self.connect(slot, others.0, &others.1)?;
        other.connect(slot, own.0, &own.1)
    }

    /// Posts the given number of writes to its own memory with one doorbell.
    pub(crate) fn write(&mut self, slot: u32, times: u64) -> Result<()> {
        let (addr, rkey) = (self.addr + 8, self.rkey);
        self.tell(&format!("write {slot} {times} {addr} {rkey}"))
            .map(drop)
    }

    /// Sets the value of the next writes.
    fn put(&mut self, value: u64) -> Result<()> {
        self.tell(&format!("put 0 {value}")).map(drop)
    }

    /// Writes eight bytes to another process's memory and does not wait.
    fn post_to(&mut self, other: &Party, slot: u32) -> Result<()> {
        let (addr, rkey) = (other.addr + WRITTEN_AT, other.rkey);
        self.tell(&format!("write {slot} 1 {addr} {rkey}"))
            .map(drop)
    }

    /// Writes a fresh value and returns the status of the completion. On success the value must
    /// have arrived.
    fn write_to(&mut self, other: &mut Party, slot: u32) -> Result<u64> {
        let value = 0x5eed_0000_0000 + u64::from(slot) + 1;
        other.tell(&format!("put {WRITTEN_AT} 0"))?;
        self.put(value)?;
        self.post_to(other, slot)?;
        let status = self.tell("poll")?.value("wc")?;
        let there: u64 = other.tell(&format!("get {WRITTEN_AT}"))?.value("value")?;
        let expect = if status == SUCCESS { value } else { 0 };
        ensure!(there == expect, "{}: {there:#x} has arrived", self.name);
        Ok(status)
    }

    /// Kills the process, as a crash would.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.talk.end()
    }
}

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("port_of_one", one_port),
        Case::new("port_two_are_seen", two_are_seen),
        Case::new("port_each_way_between_two", each_way),
        Case::new("port_other_than_the_queue_pairs", other_port),
        Case::new("port_datagrams", datagrams),
        Case::new("port_events", events),
        Case::new("port_function_that_fails", function_fails),
        Case::new("port_down_and_up_in_time", up_in_time),
        Case::new("port_down_for_good", down_for_good),
        Case::new("port_second_by_ucx", second_by_ucx),
        Case::new("port_both_by_ucx", both_by_ucx),
    ]
}

/// A function with one port has no second one.
fn one_port(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut party = Party::start(&testbed, TOPOLOGY_ONE, HOST)?;
    ensure!(party.caps.ports == 1, "{:?}", party.caps);
    ensure!(party.port(1)?.state == ACTIVE, "it is not active");
    party.ask("port 2")?.expect_refusal()?;
    party.ask("qp 0 rc 2")?.expect_refusal()
}

fn two_are_seen(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut party = Party::start(&testbed, TOPOLOGY_TWO, HOST)?;
    ensure!(party.caps.ports == 2, "{:?}", party.caps);
    let (one, two) = (party.port(1)?, party.port(2)?);
    ensure!(
        one.lid != two.lid && one.gid != two.gid && one.state == ACTIVE && two.state == ACTIVE,
        "{one:?}, {two:?}"
    );
    let gids = party.tell("gids")?;
    let all: (u64, u64) = (gids.value("gids")?, gids.value("ports")?);
    ensure!(all == (2, 1 + 2), "addresses of ports: {all:?}");
    party.ask("port 3")?.expect_refusal()?;
    party.ask("qp 0 rc 3")?.expect_refusal()?;
    let tool = world.verbs_tool("ibv_devinfo");
    let shown = succeed(&mut testbed.command_with(TOPOLOGY_TWO, HOST, tool))?;
    for line in ["phys_port_cnt:\t\t\t2", "port:\t1", "port:\t2"] {
        ensure!(
            shown.contains(line),
            "ibv_devinfo has no {line:?}:\n{shown}"
        );
    }
    Ok(())
}

/// Bytes arrive over each pair of ports, by LID and by GID.
fn each_way(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut from = Party::start(&testbed, TOPOLOGY_TWO, HOST)?;
    let mut to = Party::start(&testbed, TOPOLOGY_TWO, FAR)?;
    for (slot, (out, into)) in [(1, 1), (1, 2), (2, 1), (2, 2)].into_iter().enumerate() {
        for by_gid in [false, true] {
            let slot = 2 * u32::try_from(slot)? + u32::from(by_gid);
            let (own, others) = (from.qp(slot, "rc", out)?, to.qp(slot, "rc", into)?);
            let (mut here, mut there) = (from.port(out)?, to.port(into)?);
            if by_gid {
                (here.lid, there.lid) = (0, 0);
            }
            from.connect(slot, others, &there)?;
            to.connect(slot, own, &here)?;
            let status = from.write_to(&mut to, slot)?;
            ensure!(status == SUCCESS, "port {out} to {into}: status {status}");
        }
    }
    Ok(())
}

/// A queue pair does not receive through another port than its own.
fn other_port(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut from = Party::start(&testbed, TOPOLOGY_TWO, HOST)?;
    let mut to = Party::start(&testbed, TOPOLOGY_TWO, FAR)?;
    let (own, others) = (from.qp(0, "rc", 1)?, to.qp(0, "rc", 1)?);
    let (here, wrong) = (from.port(1)?, to.port(2)?);
    from.connect(0, others, &wrong)?;
    to.connect(0, own, &here)?;
    let status = from.write_to(&mut to, 0)?;
    ensure!(status == RETRY_EXCEEDED, "status {status}");
    // The port of a path must be that of its queue pair.
    from.qp(1, "rc", 2)?;
    from.tell("on 1 1")?;
    from.ask(&format!("connect 1 {others} {} 0 14 7", wrong.lid))?
        .expect_start("error RTR: Invalid argument")
}

fn datagrams(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut from = Party::start(&testbed, TOPOLOGY_TWO, HOST)?;
    let mut to = Party::start(&testbed, TOPOLOGY_TWO, FAR)?;
    from.qp(0, "ud", 2)?;
    let qpn = to.qp(0, "ud", 2)?;
    for party in [&mut from, &mut to] {
        party.tell("ready 0")?;
    }
    to.tell("receive 0 4")?;
    let (own, wrong, right) = (from.port(2)?, to.port(1)?, to.port(2)?);
    for lid in [wrong.lid, right.lid] {
        from.tell(&format!("datagram 0 {lid} {qpn}"))?;
        let status: u64 = from.tell("poll")?.value("wc")?;
        ensure!(status == SUCCESS, "a datagram is sent anyway: {status}");
    }
    let arrived = to.tell("poll")?;
    let (status, slid): (u64, u64) = (arrived.value("wc")?, arrived.value("slid")?);
    ensure!((status, slid) == (SUCCESS, own.lid), "{status} from {slid}");
    let more: u64 = to.tell("drain")?.value("read")?;
    ensure!(more == 0, "the other port's datagram came too");
    let dropped = testbed.stats()?.refusals(HOST, "dropped")?;
    ensure!(dropped == 1, "{dropped} dropped");
    Ok(())
}

/// All users of the function get the event, with the right port.
fn events(world: &World) -> Result<()> {
    const COOKIE: u64 = 4711;
    let testbed = Testbed::new(world)?;
    let mut parties = [
        Party::start(&testbed, TOPOLOGY_TWO, HOST)?,
        Party::start(&testbed, TOPOLOGY_TWO, HOST)?,
    ];
    let mut far = Party::start(&testbed, TOPOLOGY_TWO, FAR)?;
    parties[1].tell(&format!("subscribe {COOKIE}"))?;
    // A change; the verbs event; the subtype of the device's event, if any; the resulting state.
    let table: &[(&str, u64, Option<u64>, u64)] = &[
        ("down", 10, Some(1), 1),
        ("init", 10, Some(5), 2),
        ("up", 9, Some(4), ACTIVE),
        ("lid-change", 11, Some(6), ACTIVE),
        ("pkey-change", 12, Some(7), ACTIVE),
        ("gid-change", 18, Some(8), ACTIVE),
        ("sm-change", 13, None, ACTIVE),
        ("client-reregister", 17, Some(9), ACTIVE),
    ];
    for (change, event, subtype, state) in table {
        set(&testbed, HOST, 2, change)?;
        for party in &mut parties {
            let told = party.tell("async")?;
            let told: (u64, u64) = (told.value("event")?, told.value("port")?);
            ensure!(told == (*event, 2), "{change}: {told:?}");
            let states = (party.port(1)?.state, party.port(2)?.state);
            ensure!(states == (ACTIVE, *state), "{change}: {states:?}");
        }
        if let Some(subtype) = subtype {
            let told = parties[1].tell("changed")?;
            let told: [u64; 4] = [
                told.value("cookie")?,
                told.value("type")?,
                told.value("subtype")?,
                told.value("port")?,
            ];
            ensure!(told == [COOKIE, 9, *subtype, 2], "{change}: {told:?}");
        }
        let shown = testbed.path().join(format!(
            "state/views/{HOST}/sys/class/infiniband/mlx5_0/ports/2/state"
        ));
        let shown = std::fs::read_to_string(shown)?;
        ensure!(
            shown.starts_with(&format!("{state}: ")),
            "{change}: sysfs has {shown}"
        );
    }
    // A node's name means all its functions. A change to the current state causes no event.
    for _ in 0..2 {
        set(&testbed, "node1", 1, "down")?;
    }
    set(&testbed, "node1", 1, "up")?;
    let told = [far.tell("async")?, far.tell("async")?]
        .iter()
        .map(|told| told.value::<u64>("event"))
        .collect::<Result<Vec<_>>>()?;
    ensure!(told == [10, 9], "{told:?}");
    // A process that starts later sees the current state.
    set(&testbed, HOST, 1, "down")?;
    let state = Party::start(&testbed, TOPOLOGY_TWO, HOST)?.port(1)?.state;
    ensure!(state == 1, "a later process sees state {state}");
    Ok(())
}

/// A function that fails ends its queue pairs, refuses commands, and stays so. Its peers get no answer, others go on.
fn function_fails(world: &World) -> Result<()> {
    const DEVICE_FATAL: u64 = 8;
    let testbed = Testbed::new(world)?;
    let mut failing = Party::start(&testbed, TOPOLOGY_ONE, HOST)?;
    let mut far = Party::start(&testbed, TOPOLOGY_ONE, FAR)?;
    let mut other = Party::start(&testbed, TOPOLOGY_ONE, "node0.dpu")?;
    failing.pair(&mut far, 0, (1, 1))?;
    far.pair(&mut other, 1, (1, 1))?;
    let status = failing.write_to(&mut far, 0)?;
    ensure!(status == SUCCESS, "status {status} before");
    for _ in 0..2 {
        set(&testbed, HOST, 1, "fatal")?;
    }
    let event: u64 = failing.tell("async")?.value("event")?;
    ensure!(event == DEVICE_FATAL, "event {event}");
    failing.ask("qp 2 rc 1")?.expect_refusal()?;
    failing.ask("port 1")?.expect_refusal()?;
    failing.post_to(&far, 0)?;
    let status: u64 = failing.tell("poll")?.value("wc")?;
    ensure!(
        status == FLUSHED,
        "status {status} of a request to the failed function"
    );
    far.post_to(&failing, 0)?;
    let status: u64 = far.tell("poll")?.value("wc")?;
    ensure!(status == RETRY_EXCEEDED, "status {status} at its peer");
    let status = far.write_to(&mut other, 1)?;
    ensure!(status == SUCCESS, "status {status} between others");
    Ok(())
}

/// Requests on a port that is down retry, and continue when it comes up.
fn up_in_time(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut from = Party::start(&testbed, TOPOLOGY_TWO, HOST)?;
    let mut to = Party::start(&testbed, TOPOLOGY_TWO, FAR)?;
    // Four seconds per try, eight tries: longer than the commands in between.
    from.patience = (20, 7);
    from.pair(&mut to, 0, (2, 2))?;
    from.pair(&mut to, 1, (1, 1))?;
    for who in [HOST, FAR] {
        set(&testbed, who, 2, "down")?;
        from.put(77)?;
        from.post_to(&to, 0)?;
        // The other port continues to transmit.
        let status = from.write_to(&mut to, 1)?;
        ensure!(
            status == SUCCESS,
            "{who}: status {status} on the other port"
        );
        let early: u64 = from.tell("drain")?.value("read")?;
        ensure!(early == 0, "{who}: it completed over a port that is down");
        set(&testbed, who, 2, "up")?;
        let status: u64 = from.tell("poll")?.value("wc")?;
        ensure!(status == SUCCESS, "{who}: status {status} when it came up");
    }
    Ok(())
}

fn down_for_good(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut from = Party::start(&testbed, TOPOLOGY_TWO, HOST)?;
    let mut to = Party::start(&testbed, TOPOLOGY_TWO, FAR)?;
    // 8 microseconds, once more.
    from.patience = (1, 1);
    from.pair(&mut to, 0, (1, 2))?;
    from.qp(1, "ud", 1)?;
    from.tell("ready 1")?;
    set(&testbed, FAR, 2, "init")?;
    let status = from.write_to(&mut to, 0)?;
    ensure!(status == RETRY_EXCEEDED, "status {status}");
    let there = to.port(2)?;
    from.tell(&format!("datagram 1 {} 1", there.lid))?;
    let status: u64 = from.tell("poll")?.value("wc")?;
    ensure!(status == SUCCESS, "a datagram is sent anyway: {status}");
    let dropped = testbed.stats()?.refusals(HOST, "dropped")?;
    ensure!(dropped == 1, "{dropped} dropped");
    Ok(())
}

/// Triggers a port change.
pub(crate) fn set(testbed: &Testbed<'_>, function: &str, port: u8, change: &str) -> Result<()> {
    let port = port.to_string();
    let mut command = testbed.emulator("port");
    succeed(command.args([function, port.as_str(), change])).map(drop)
}

/// Stock UCX on the second port alone: every transport, every byte compared.
fn second_by_ucx(world: &World) -> Result<()> {
    for (transport, tls) in [
        ("rc_mlx5", "rc_x,self"),
        ("dc_mlx5", "dc_x,self"),
        ("ud_mlx5", "ud_x,self"),
    ] {
        let lanes = ucx(world, tls, "mlx5_0:2", &[])?;
        let wanted = format!("{transport}/mlx5_0:2");
        let strange = lanes.iter().find(|lane| **lane != wanted);
        ensure!(strange.is_none(), "lanes are {lanes:?}, not all {wanted}");
    }
    Ok(())
}

/// Stock UCX over both ports of an adapter at once, each through another function, because UCX
/// treats two ports of one function as one device with one address.
fn both_by_ucx(world: &World) -> Result<()> {
    let rails = [("UCX_MAX_RNDV_RAILS", "2"), ("UCX_MAX_EAGER_RAILS", "2")];
    for tls in ["rc_x,self", "dc_x,self"] {
        let lanes = ucx(world, tls, "mlx5_0:1,mlx5_1:2", &rails)?;
        for port in ["mlx5_0:1", "mlx5_1:2"] {
            let used = lanes.iter().any(|lane| lane.ends_with(port));
            ensure!(used, "{tls}: no lane on {port}: {lanes:?}");
        }
    }
    Ok(())
}

/// Two programs that use all UCP operations. Returns the lanes that both had.
fn ucx(world: &World, tls: &str, devices: &str, more: &[(&str, &str)]) -> Result<Vec<String>> {
    let testbed = Testbed::new(world)?;
    let port = free_port()?;
    let include = world.ucx_include.as_os_str();
    let program = compile_with("ucp_pair", &["-isystem".as_ref(), include, "-ldl".as_ref()])?;
    let library = world.ucx_lib.join("libucp.so.0");
    let command = |function: &str| {
        let mut command = testbed.ucx_command_with(TOPOLOGY_TWO, function, &program);
        command
            .env("UCX_TLS", tls)
            .env("UCX_NET_DEVICES", devices)
            .envs(more.iter().copied())
            .arg(&library)
            .args(["-s", "-p", &port.to_string()]);
        command
    };
    let sections = ["tag", "am", "stream", "put", "get", "amo64"];
    let (mut server, mut client) = (
        command("node0.host,node0.dpu"),
        command("node1.host,node1.dpu"),
    );
    server.args(sections);
    client.arg("-c").args(sections);
    let (server, client) = succeed_pair(&mut server, &mut client, port)?;
    let mut lanes = Vec::new();
    for output in [server, client] {
        let line = output.lines().find_map(|line| line.strip_prefix("lanes "));
        let line = line.with_context(|| format!("no lanes:\n{output}"))?;
        lanes.extend(line.split(' ').map(str::to_owned));
    }
    Ok(lanes)
}
