//! Directs `programs/port_agent.c`: a process in one function of the device, its ports, and what happens on them.

use crate::agent::{Answer, compile};
use crate::harness::Case;
use crate::talk::Talk;
use crate::world::{Room, World};
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// One command; the slowest waits for an event.
const ANSWER: Duration = Duration::from_secs(30);

/// A room of two nodes whose functions have one port each, as options of `bf-emu run`.
pub(crate) const TOPOLOGY_ONE: &[&str] = &["--nodes", "2"];

/// A running agent, whose device is open.
pub(crate) struct Party {
    name: String,
    talk: Talk,
    addr: u64,
    rkey: u32,
    pub(crate) caps: Caps,
}

/// What a device says of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    pub(crate) ports: u64,
    /// Most completions of one event.
    pub(crate) count: u64,
    /// Longest time that one is held back, in microseconds.
    pub(crate) period: u64,
}

/// A port as `ibv_query_port` and its kin show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) lid: u64,
    pub(crate) gid: u64,
    pub(crate) state: u64,
}

impl Party {
    pub(crate) fn start(room: &Room<'_>, options: &[&str], function: &str) -> Result<Self> {
        let talk = Talk::start(&mut room.command_with(options, function, program()?))?;
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

    /// Says one line and waits for the answer.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Answer> {
        let line = self
            .talk
            .ask(command, ANSWER)
            .with_context(|| format!("{} at '{command}'", self.name))?;
        Ok(Answer::new(format!("{}: {command}", self.name), line))
    }

    /// Says one line that must be obeyed.
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

    /// Makes a queue pair on a port. Returns its number.
    pub(crate) fn qp(&mut self, slot: u32, service: &str, port: u8) -> Result<u32> {
        let answer = self.tell(&format!("qp {slot} {service} {port}"))?;
        answer.value("qpn")
    }

    /// Connects a queue pair to one behind `there`, with about a second of patience.
    pub(crate) fn connect(&mut self, slot: u32, qpn: u32, there: &Port) -> Result<()> {
        self.tell(&format!(
            "connect {slot} {qpn} {} {} 14 7",
            there.lid, there.gid
        ))
        .map(drop)
    }

    /// Connects new queue pairs in the same slot of two parties, over a port of each.
    pub(crate) fn pair(&mut self, other: &mut Party, slot: u32, ports: (u8, u8)) -> Result<()> {
        let own = (self.qp(slot, "rc", ports.0)?, self.port(ports.0)?);
        let others = (other.qp(slot, "rc", ports.1)?, other.port(ports.1)?);
        self.connect(slot, others.0, &others.1)?;
        other.connect(slot, own.0, &own.1)
    }

    /// Writes into its own memory, as often as asked for, by one doorbell.
    pub(crate) fn write(&mut self, slot: u32, times: u64) -> Result<()> {
        let (addr, rkey) = (self.addr + 8, self.rkey);
        self.tell(&format!("write {slot} {times} {addr} {rkey}"))
            .map(drop)
    }

    /// Kills the process, as a crash would.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.talk.end()
    }
}

/// The agent's program, compiled once per run.
fn program() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| compile("port_agent").map_err(|error| format!("{error:#}")));
    match built {
        Ok(path) => Ok(path.clone()),
        Err(text) => bail!("{text}"),
    }
}

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("port_of_one", one_port)]
}

/// A function with one port has no second one.
fn one_port(world: &World) -> Result<()> {
    let room = Room::new(world)?;
    let mut party = Party::start(&room, TOPOLOGY_ONE, "node0.host")?;
    ensure!(party.caps.ports == 1, "{:?}", party.caps);
    ensure!(party.port(1)?.state == 4, "it is not active");
    party.ask("port 2")?.expect_refusal()?;
    party.ask("qp 0 rc 2")?.expect_refusal()
}
