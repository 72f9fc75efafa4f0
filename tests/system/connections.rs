//! The connection manager at the kernel's interface: `programs/cm_agent.c` writes its commands. The
//! programs above librdmacm are in `cargo xtask suites rdmacm`.

use crate::agent::{compile_for_ucx, compile_with};
use crate::harness::Case;
use crate::process;
use crate::talk::Talk;
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::time::Duration;

/// Address of the first port of node0.host, and of node1.host.
pub(crate) const SERVER: &str = "127.66.1.1";
pub(crate) const CLIENT: &str = "127.66.2.1";
pub(crate) const PORT: u32 = 7471;
/// `enum rdma_ucm_port_space`.
pub(crate) const TCP: u32 = 0x0106;
pub(crate) const UDP: u32 = 0x0111;

/// Kinds of events (`enum rdma_cm_event_type`).
pub(crate) mod kind {
    pub(crate) const ADDRESS_RESOLVED: i64 = 0;
    pub(crate) const ADDRESS_ERROR: i64 = 1;
    pub(crate) const ROUTE_RESOLVED: i64 = 2;
    pub(crate) const ROUTE_ERROR: i64 = 3;
    pub(crate) const REQUEST: i64 = 4;
    pub(crate) const RESPONSE: i64 = 5;
    pub(crate) const UNREACHABLE: i64 = 7;
    pub(crate) const REJECTED: i64 = 8;
    pub(crate) const ESTABLISHED: i64 = 9;
    pub(crate) const DISCONNECTED: i64 = 10;
    pub(crate) const TIME_WAIT_EXIT: i64 = 15;
}

/// Longest wait for an event that must come: the device looks at dead processes every 100 ms.
const EVENT: Duration = Duration::from_secs(60);
/// Wait for an event that must not come.
const NO_EVENT: Duration = Duration::from_millis(150);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("cm_connection", connection),
        Case::new("cm_private_data", private_data),
        Case::new("cm_refusals", refusals),
        Case::new("cm_port_clash", port_clash),
        Case::new("cm_backlog", backlog),
        Case::new("cm_nobody", nobody),
        Case::new("cm_timeout", timeout),
        Case::new("cm_port_down", port_down),
        Case::new("cm_rejected", rejected),
        Case::new("cm_death_in_each_state", death),
        Case::new("cm_close_ends_connections", close),
        Case::new("cm_migrate", migrate),
        Case::new("cm_child_of_fork", child),
        Case::new("cm_cancelled_thread", cancelled),
        Case::new("cm_kills", kills),
        Case::new("cm_ucx", |world| ucx(world, "infiniband")),
        Case::new("cm_ucx_roce", |world| ucx(world, "ethernet")),
    ]
}

/// A running agent with one open file.
pub(crate) struct Agent {
    name: String,
    pub(crate) talk: Talk,
}

/// An event; `kind` is -1 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: i64,
    status: i64,
    pub(crate) id: i64,
    pub(crate) uid: i64,
    bytes: i64,
    first: i64,
    /// Number of the queue pair.
    pub(crate) qp: i64,
    /// Queue key of a datagram service or group.
    pub(crate) qkey: i64,
    /// LID of a group.
    pub(crate) lid: i64,
}

impl Agent {
    pub(crate) fn start(testbed: &Testbed<'_>, function: &str) -> Result<Self> {
        Self::start_with(testbed, &[], function, None)
    }

    /// With options of `bf-emu run`, and with a time limit of the connection manager.
    pub(crate) fn start_with(
        testbed: &Testbed<'_>,
        options: &[&str],
        function: &str,
        timeout_ms: Option<u32>,
    ) -> Result<Self> {
        let mut command = testbed.command_with(options, function, program()?);
        if let Some(timeout_ms) = timeout_ms {
            command.env("BFEMU_CM_TIMEOUT_MS", timeout_ms.to_string());
        }
        let mut agent = Self {
            name: function.to_owned(),
            talk: Talk::start(&mut command)?,
        };
        agent.tell("open")?;
        Ok(agent)
    }

    pub(crate) fn ask(&mut self, line: &str) -> Result<String> {
        let answer = self.talk.ask(line, LIMIT);
        answer.with_context(|| format!("{} at '{line}'", self.name))
    }

    pub(crate) fn tell(&mut self, line: &str) -> Result<String> {
        let answer = self.ask(line)?;
        ensure!(
            answer.starts_with("ok"),
            "{}: '{line}' -> {answer}",
            self.name
        );
        Ok(answer)
    }

    /// The command must be refused with this error.
    pub(crate) fn refused(&mut self, line: &str, why: &str) -> Result<()> {
        let answer = self.ask(line)?;
        let fits = answer.starts_with("error") && answer.ends_with(why);
        ensure!(fits, "{}: '{line}' -> {answer}, not {why}", self.name);
        Ok(())
    }

    pub(crate) fn create(&mut self, port_space: u32) -> Result<i64> {
        let answer = self.tell(&format!("create 0 {port_space}"))?;
        value(&answer, "id")
    }

    /// A listener on all addresses.
    fn listener(&mut self, backlog: u32) -> Result<i64> {
        let id = self.create(TCP)?;
        self.tell(&format!("bind 0 {id} 0.0.0.0 {PORT}"))?;
        self.tell(&format!("listen 0 {id} {backlog}"))?;
        Ok(id)
    }

    /// An identifier with a path to the server.
    fn routed(&mut self) -> Result<i64> {
        let id = self.create(TCP)?;
        self.tell(&format!("resolve 0 {id} {SERVER} {PORT} 1000"))?;
        self.expect(kind::ADDRESS_RESOLVED)?;
        self.tell(&format!("route 0 {id} 1000"))?;
        self.expect(kind::ROUTE_RESOLVED)?;
        Ok(id)
    }

    /// An identifier whose request is on its way.
    pub(crate) fn requesting(&mut self) -> Result<i64> {
        let id = self.routed()?;
        self.tell(&format!("connect 0 {id} 0"))?;
        Ok(id)
    }

    fn event(&mut self, file: u32, wait: Duration) -> Result<Event> {
        let answer = self.tell(&format!("event {file} {}", wait.as_millis()))?;
        if answer == "ok kind=none" {
            return Ok(Event {
                kind: -1,
                status: 0,
                id: 0,
                uid: 0,
                bytes: 0,
                first: 0,
                qp: 0,
                qkey: 0,
                lid: 0,
            });
        }
        let number = |key| value(&answer, key);
        Ok(Event {
            kind: number("kind")?,
            status: number("status")?,
            id: number("id")?,
            uid: number("uid")?,
            bytes: number("bytes")?,
            first: number("first")?,
            qp: number("qp")?,
            qkey: number("qkey")?,
            lid: number("lid")?,
        })
    }

    /// The next event must be of this kind, and its status must be 0.
    pub(crate) fn expect(&mut self, kind: i64) -> Result<Event> {
        self.expect_status(kind, 0)
    }

    pub(crate) fn expect_status(&mut self, kind: i64, status: i64) -> Result<Event> {
        let event = self.event(0, EVENT)?;
        let fits = event.kind == kind && event.status == status;
        ensure!(fits, "{}: {event:?}, not {kind} with {status}", self.name);
        Ok(event)
    }

    pub(crate) fn expect_nothing(&mut self) -> Result<()> {
        let event = self.event(0, NO_EVENT)?;
        ensure!(event.kind == -1, "{}: {event:?}", self.name);
        Ok(())
    }
}

pub(crate) fn value(answer: &str, key: &str) -> Result<i64> {
    let mut words = answer.split(' ');
    let found = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let parsed = found.and_then(|text| text.parse().ok());
    parsed.with_context(|| format!("no {key} in '{answer}'"))
}

fn program() -> Result<PathBuf> {
    compile_with("cm_agent", &["-lpthread"])
}

/// A server and a client on two nodes.
pub(crate) fn two(testbed: &Testbed<'_>) -> Result<(Agent, Agent)> {
    let server = Agent::start(testbed, "node0.host")?;
    Ok((server, Agent::start(testbed, "node1.host")?))
}

/// States of a connection before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The request waits to be read.
    Requested,
    /// The request was read.
    Received,
    /// The reply was sent.
    Replied,
    Established,
    /// The client has asked for the end.
    Disconnecting,
}

impl State {
    const ALL: [Self; 5] = [
        Self::Requested,
        Self::Received,
        Self::Replied,
        Self::Established,
        Self::Disconnecting,
    ];
}

/// Brings a new connection into a state. Returns the identifiers of the server and the client.
fn bring(server: &mut Agent, client: &mut Agent, state: State) -> Result<(i64, i64)> {
    let active = client.requesting()?;
    if state == State::Requested {
        return Ok((-1, active));
    }
    let passive = server.expect(kind::REQUEST)?.id;
    if state == State::Received {
        return Ok((passive, active));
    }
    server.tell(&format!("accept 0 {passive} 0"))?;
    client.expect(kind::RESPONSE)?;
    if state == State::Replied {
        return Ok((passive, active));
    }
    client.tell(&format!("establish 0 {active}"))?;
    server.expect(kind::ESTABLISHED)?;
    if state == State::Disconnecting {
        client.tell(&format!("disconnect 0 {active}"))?;
        server.expect(kind::DISCONNECTED)?;
    }
    Ok((passive, active))
}

/// A whole life: each side's attributes, both ends, and the rest after it.
fn connection(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = two(&testbed)?;
    server.listener(0)?;
    let (passive, active) = bring(&mut server, &mut client, State::Established)?;
    for (agent, id) in [(&mut server, passive), (&mut client, active)] {
        for state in 1..=3 {
            agent.tell(&format!("attributes 0 {id} {state}"))?;
        }
        let ready = agent.tell(&format!("attributes 0 {id} 2"))?;
        ensure!(value(&ready, "dest")? == 0x77, "{ready}");
        agent.refused(&format!("attributes 0 {id} 4"), "Invalid argument")?;
    }
    client.tell(&format!("disconnect 0 {active}"))?;
    server.expect(kind::DISCONNECTED)?;
    client.expect_nothing()?;
    server.tell(&format!("disconnect 0 {passive}"))?;
    client.expect(kind::DISCONNECTED)?;
    for agent in [&mut server, &mut client] {
        agent.expect(kind::TIME_WAIT_EXIT)?;
        agent.expect_nothing()?;
    }
    // Address, route, response, the end, and the end of the rest.
    let gone = client.tell(&format!("destroy 0 {active}"))?;
    ensure!(value(&gone, "events")? == 5, "{gone}");
    client.refused(&format!("destroy 0 {active}"), "No such file or directory")
}

/// Private data of all messages, with the kernel's limits, and events with the messages' room.
fn private_data(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = two(&testbed)?;
    server.listener(0)?;
    let active = client.routed()?;
    client.refused(&format!("connect 0 {active} 57"), "Invalid argument")?;
    client.refused(&format!("connect 0 {active} 0 invalid"), "Invalid argument")?;
    client.tell(&format!("connect 0 {active} 56"))?;
    let request = server.expect(kind::REQUEST)?;
    ensure!(
        (request.bytes, request.first) == (56, i64::from(b'p')),
        "{request:?}"
    );
    server.tell(&format!("accept 0 {} 196", request.id))?;
    let response = client.expect(kind::RESPONSE)?;
    ensure!(
        (response.bytes, response.first) == (196, i64::from(b'p')),
        "{response:?}"
    );

    client.requesting()?;
    let request = server.expect(kind::REQUEST)?;
    // The kernel rejects a request whose acceptance is refused.
    server.refused(&format!("accept 0 {} 197", request.id), "Invalid argument")?;
    client.expect_status(kind::REJECTED, 28)?;

    client.requesting()?;
    let request = server.expect(kind::REQUEST)?;
    server.refused(
        &format!("reject 0 {} 149 0", request.id),
        "Invalid argument",
    )?;
    server.refused(&format!("reject 0 {} 0 8", request.id), "Invalid argument")?;
    server.tell(&format!("reject 0 {} 148 35", request.id))?;
    let refusal = client.expect_status(kind::REJECTED, 35)?;
    ensure!(
        (refusal.bytes, refusal.first) == (148, i64::from(b'r')),
        "{refusal:?}"
    );
    Ok(())
}

/// Malformed commands, and commands in the wrong state.
fn refusals(world: &World) -> Result<()> {
    const EINVAL: &str = "Invalid argument";
    let testbed = Testbed::new(world)?;
    let mut agent = Agent::start(&testbed, "node0.host")?;
    agent.tell("open")?;
    for (line, why) in [
        ("raw 0 0 24 4 7", EINVAL),
        ("raw 0 23 24 4 64", EINVAL),
        ("raw 0 0 57 4 64", EINVAL),
        ("raw 0 13 0 0 8", "Function not implemented"),
        ("raw 0 0 24 3 32", "No space left on device"),
        ("raw 0 1 16 3 24", "No space left on device"),
        ("raw 0 12 8 323 16", "No space left on device"),
        ("raw 0 11 16 143 24", "No space left on device"),
        ("raw 0 6 279 0 400", EINVAL),
        ("raw 0 7 8 0 16", "No such file or directory"),
        ("create 0 1", EINVAL),
        ("destroy 0 99", "No such file or directory"),
    ] {
        agent.refused(line, why)?;
    }
    let id = agent.create(TCP)?;
    for (line, why) in [
        (format!("destroy 1 {id}"), EINVAL),
        (format!("route 0 {id} 10"), EINVAL),
        (format!("connect 0 {id} 0"), EINVAL),
        (format!("accept 0 {id} 0"), EINVAL),
        (format!("reject 0 {id} 0 0"), EINVAL),
        (format!("disconnect 0 {id}"), EINVAL),
        (format!("attributes 0 {id} 1"), EINVAL),
        (
            format!("bind 0 {id} {CLIENT} 0"),
            "Cannot assign requested address",
        ),
        (
            format!("bind 0 {id} 10.9.8.7 0"),
            "Cannot assign requested address",
        ),
        (format!("option 0 {id} 0 9 0 4"), "Function not implemented"),
        (format!("option 0 {id} 7 0 0 4"), "Function not implemented"),
        (format!("option 0 {id} 0 1 1 3"), EINVAL),
        (format!("option 0 {id} 0 3 32 1"), EINVAL),
        (format!("option 0 {id} 1 1 0 4"), EINVAL),
    ] {
        agent.refused(&line, why)?;
    }
    agent.tell(&format!("bind 0 {id} {SERVER} 0"))?;
    agent.refused(&format!("bind 0 {id} {SERVER} 0"), EINVAL)?;
    agent.tell(&format!("listen 0 {id} 0"))?;
    agent.refused(&format!("listen 0 {id} 0"), EINVAL)?;
    agent.refused(&format!("resolve 0 {id} {CLIENT} {PORT} 10"), EINVAL)
}

/// Ports are those of a function in a port space.
fn port_clash(world: &World) -> Result<()> {
    const IN_USE: &str = "Address already in use";
    const NOT_AVAILABLE: &str = "Cannot assign requested address";
    let testbed = Testbed::new(world)?;
    let (mut server, mut other) = two(&testbed)?;
    let first = server.create(TCP)?;
    server.tell(&format!("bind 0 {first} {SERVER} {PORT}"))?;
    let mut second = Agent::start(&testbed, "node0.host")?;
    let clashing = second.create(TCP)?;
    second.refused(&format!("bind 0 {clashing} {SERVER} {PORT}"), IN_USE)?;
    second.refused(&format!("bind 0 {clashing} 0.0.0.0 {PORT}"), NOT_AVAILABLE)?;
    // Another port space, another port, and another machine.
    let datagrams = second.create(UDP)?;
    second.tell(&format!("bind 0 {datagrams} {SERVER} {PORT}"))?;
    other.listener(0)?;
    // A shared address, until one of the two listens.
    let sharing = server.create(TCP)?;
    server.tell(&format!("option 0 {sharing} 0 1 1 4"))?;
    server.tell(&format!("bind 0 {sharing} {SERVER} 7999"))?;
    second.tell(&format!("option 0 {clashing} 0 1 1 4"))?;
    second.tell(&format!("bind 0 {clashing} {SERVER} 7999"))?;
    second.refused(&format!("listen 0 {clashing} 0"), IN_USE)?;
    // The port is free after its owner's end, also for a process that attached before that end.
    let last = second.create(TCP)?;
    server.talk.end()?;
    second.tell(&format!("bind 0 {last} 0.0.0.0 {PORT}"))?;
    Ok(())
}

/// A listener with a backlog of two refuses the third request, until one is read.
fn backlog(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = two(&testbed)?;
    server.listener(2)?;
    for _ in 0..2 {
        client.requesting()?;
    }
    client.requesting()?;
    client.expect_status(kind::REJECTED, 28)?;
    server.expect(kind::REQUEST)?;
    client.requesting()?;
    client.expect_nothing()?;
    for _ in 0..2 {
        server.expect(kind::REQUEST)?;
    }
    server.expect_nothing()
}

/// Addresses and services without an owner.
fn nobody(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (_server, mut client) = two(&testbed)?;
    client.requesting()?;
    client.expect_status(kind::REJECTED, 8)?;
    for (address, status) in [
        // In the network of the ports, but of none of them: nobody answers.
        ("127.66.9.9", -i64::from(libc::ETIMEDOUT)),
        ("10.9.8.7", -i64::from(libc::ENODEV)),
    ] {
        let id = client.create(TCP)?;
        client.tell(&format!("resolve 0 {id} {address} {PORT} 100"))?;
        client.expect_status(kind::ADDRESS_ERROR, status)?;
        // Another try is possible.
        client.tell(&format!("resolve 0 {id} {SERVER} {PORT} 100"))?;
        client.expect(kind::ADDRESS_RESOLVED)?;
    }
    Ok(())
}

/// A side that does not answer.
fn timeout(world: &World) -> Result<()> {
    let late = -i64::from(libc::ETIMEDOUT);
    let testbed = Testbed::new(world)?;
    let start = |function| Agent::start_with(&testbed, &[], function, Some(300));
    let (mut server, mut client) = (start("node0.host")?, start("node1.host")?);
    server.listener(0)?;
    client.requesting()?;
    let request = server.expect(kind::REQUEST)?;
    client.expect_status(kind::UNREACHABLE, late)?;
    // The requester has given up: the reply is refused.
    server.tell(&format!("accept 0 {} 0", request.id))?;
    server.expect_status(kind::REJECTED, 6)?;
    // A reply that nobody confirms.
    bring(&mut server, &mut client, State::Replied)?;
    server.expect_status(kind::UNREACHABLE, late)?;
    // An end that nobody answers.
    bring(&mut server, &mut client, State::Disconnecting)?;
    client.expect(kind::DISCONNECTED)?;
    Ok(())
}

/// Ports on the way that are down.
fn port_down(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let port = |state: &str| {
        let mut command = testbed.emulator("port");
        succeed(command.args(["node0.host", "1", state])).map(drop)
    };
    let (mut server, mut client) = two(&testbed)?;
    server.listener(0)?;
    let id = client.routed()?;
    port("down")?;
    client.tell(&format!("connect 0 {id} 0"))?;
    server.expect_nothing()?;
    // The subnet administrator knows no path to the port.
    let other = client.create(TCP)?;
    client.tell(&format!("resolve 0 {other} {SERVER} {PORT} 100"))?;
    client.expect(kind::ADDRESS_RESOLVED)?;
    client.tell(&format!("route 0 {other} 100"))?;
    client.expect_status(kind::ROUTE_ERROR, -i64::from(libc::EINVAL))?;
    // The request is sent again until the port is up.
    port("up")?;
    server.expect(kind::REQUEST)?;
    Ok(())
}

/// Both sides may refuse, and an identifier that ends refuses.
fn rejected(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = two(&testbed)?;
    let listener = server.listener(0)?;
    let (passive, _) = bring(&mut server, &mut client, State::Received)?;
    server.tell(&format!("destroy 0 {passive}"))?;
    client.expect_status(kind::REJECTED, 28)?;
    let (_, active) = bring(&mut server, &mut client, State::Replied)?;
    client.tell(&format!("reject 0 {active} 0 0"))?;
    server.expect_status(kind::REJECTED, 28)?;
    // A requester that ends, before and after the listener has read the request.
    let (passive, active) = bring(&mut server, &mut client, State::Received)?;
    client.tell(&format!("destroy 0 {active}"))?;
    server.refused(&format!("accept 0 {passive} 0"), "Invalid argument")?;
    // A listener that ends refuses the requests that wait.
    client.requesting()?;
    server.tell(&format!("destroy 0 {listener}"))?;
    client.expect_status(kind::REJECTED, 28)?;
    Ok(())
}

/// The death of either side's process in each state of a connection.
fn death(world: &World) -> Result<()> {
    for state in State::ALL {
        server_dies(world, state).with_context(|| format!("the server dies: {state:?}"))?;
        client_dies(world, state).with_context(|| format!("the client dies: {state:?}"))?;
    }
    Ok(())
}

fn server_dies(world: &World, state: State) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = two(&testbed)?;
    server.listener(0)?;
    bring(&mut server, &mut client, state)?;
    server.talk.end()?;
    match state {
        State::Requested | State::Received | State::Replied => {
            client.expect_status(kind::REJECTED, 28)?;
        }
        State::Established | State::Disconnecting => {
            client.expect(kind::DISCONNECTED)?;
        }
    }
    // The service is free again, for another process of that function.
    let mut again = Agent::start(&testbed, "node0.host")?;
    again.listener(0)?;
    bring(&mut again, &mut client, State::Received).map(drop)
}

fn client_dies(world: &World, state: State) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = two(&testbed)?;
    server.listener(0)?;
    let (passive, _) = bring(&mut server, &mut client, state)?;
    client.talk.end()?;
    release_dead(&testbed)?;
    match state {
        State::Requested => {
            // The request that nobody has read stays an event. Its acceptance fails.
            let request = server.expect(kind::REQUEST)?;
            server.refused(&format!("accept 0 {} 0", request.id), "Invalid argument")?;
        }
        State::Received => {
            server.refused(&format!("accept 0 {passive} 0"), "Invalid argument")?;
        }
        State::Replied => {
            server.expect_status(kind::REJECTED, 28)?;
        }
        State::Established => {
            server.expect(kind::DISCONNECTED)?;
        }
        State::Disconnecting => {
            server.tell(&format!("disconnect 0 {passive}"))?;
            server.expect(kind::TIME_WAIT_EXIT)?;
        }
    }
    let mut again = Agent::start(&testbed, "node1.host")?;
    bring(&mut server, &mut again, State::Established).map(drop)
}

/// The close of a file ends its identifiers.
fn close(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = two(&testbed)?;
    server.listener(0)?;
    bring(&mut server, &mut client, State::Established)?;
    client.requesting()?;
    server.tell("close 0")?;
    let ends = [client.event(0, EVENT)?, client.event(0, EVENT)?];
    let mut kinds = ends.map(|event| event.kind);
    kinds.sort_unstable();
    ensure!(kinds == [kind::REJECTED, kind::DISCONNECTED], "{ends:?}");
    Ok(())
}

/// An identifier that moves to another file takes its unread events along.
fn migrate(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = two(&testbed)?;
    let listener = server.listener(0)?;
    server.tell("open")?;
    client.requesting()?;
    let moved = server.tell(&format!("migrate 1 {listener} 0"))?;
    ensure!(value(&moved, "events")? == 0, "{moved}");
    server.expect_nothing()?;
    let request = server.event(1, EVENT)?;
    ensure!(request.kind == kind::REQUEST, "{request:?}");
    server.refused(&format!("accept 0 {} 0", request.id), "Invalid argument")?;
    server.tell(&format!("accept 1 {} 0", request.id))?;
    client.expect(kind::RESPONSE)?;
    server.refused(&format!("migrate 1 {listener} 0"), "Invalid argument")
}

/// A child of a fork uses its parent's file. Its close does not end the parent's identifiers.
fn child(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = two(&testbed)?;
    server.listener(0)?;
    bring(&mut server, &mut client, State::Established)?;
    client.tell("child 0")?;
    server.expect_nothing()?;
    client.requesting()?;
    server.expect(kind::REQUEST)?;
    Ok(())
}

/// A thread can be cancelled while it waits for an event, and while it writes to any other file.
fn cancelled(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = two(&testbed)?;
    server.tell("cancel 0")?;
    // The file still works.
    server.listener(0)?;
    bring(&mut server, &mut client, State::Established).map(drop)
}

/// Clients that are killed at any moment of their connections. The server stays, and nothing of
/// them remains.
fn kills(world: &World) -> Result<()> {
    const KILLS: u64 = 40;
    let testbed = Testbed::new(world)?;
    let mut server = Agent::start(&testbed, "node0.host")?;
    server.listener(0)?;
    for round in 0..KILLS {
        let mut client = Agent::start(&testbed, "node1.host")?;
        let id = client.routed()?;
        client.talk.say(&format!(
            "connect 0 {id} 0\nevent 0 1000\nestablish 0 {id}\ndisconnect 0 {id}"
        ))?;
        if round % 2 == 0 {
            let request = server.expect(kind::REQUEST)?;
            server.ask(&format!("accept 0 {} 0", request.id))?;
        }
        // The moments spread over the client's commands.
        pause(Duration::from_micros(round * 37 % 1500));
        client.talk.end()?;
        drain(&testbed, &mut server)?;
    }
    let mut client = Agent::start(&testbed, "node1.host")?;
    bring(&mut server, &mut client, State::Established)?;
    client.talk.end()?;
    drain(&testbed, &mut server)?;
    // The server's listener and the connections that it has read remain.
    let objects = succeed(&mut testbed.emulator("dump"))?;
    let left = objects.lines().filter(|line| line.contains("pid gone"));
    ensure!(left.count() == 0, "objects of dead processes:\n{objects}");
    Ok(())
}

/// Endpoints of stock UCX by socket address, with UCX's own connection manager on librdmacm.
fn ucx(world: &World, link: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let program = compile_for_ucx(world, "ucp_connect", &[])?;
    let command = |function: &str, role: &[&str]| {
        let options = ["--link", link];
        let mut command = testbed.ucx_command_with(&options, function, &program);
        command.args([SERVER, "7000"]).args(role);
        command.env("UCX_TLS", "rc_x,self");
        command.env("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm");
        command
    };
    for bytes in ["1", "100000", "2000000"] {
        let mut server = process::Running::spawn(&mut command("node0.host", &["server"]))?;
        let up = process::wait_until(LIMIT, || {
            server.said().contains("listening") || server.group.has_ended()
        });
        ensure!(up && !server.group.has_ended(), "{}", server.said());
        let client = process::run(&mut command("node1.host", &["client", bytes]), LIMIT)?;
        let server = server.wait(LIMIT)?;
        let same = client.ok() && server.ok() && client.output.contains("same");
        ensure!(same, "{bytes}: {}\n{}", server.output, client.output);
    }
    Ok(())
}

/// Waits.
fn pause(time: Duration) {
    process::wait_until(time, || false);
}

/// Reads all events of a server, those of dead clients included.
fn drain(testbed: &Testbed<'_>, server: &mut Agent) -> Result<()> {
    release_dead(testbed)?;
    while server.event(0, NO_EVENT)?.kind != -1 {}
    Ok(())
}

/// Releases the objects of dead processes, which sends the events to their peers. Without it the device does so within
/// 100 ms, and later on a busy machine.
fn release_dead(testbed: &Testbed<'_>) -> Result<()> {
    succeed(&mut testbed.emulator("stats")).map(drop)
}
