//! Requests that the device must refuse: completions of both sides, states of their queue pairs,
//! events, and no moved byte. With stock libibverbs between two processes.

use crate::agent::{Agent, Memory, Wc, connect};
use crate::harness::Case;
use crate::world::{Testbed, World};
use anyhow::{Result, ensure};

const SIZE: u64 = 64 * 1024;
/// Bytes of a message that does not fit into a completion.
const MESSAGE: u64 = 1000;
const LOCAL: u64 = 1;
const REMOTE: u64 = 2;

// Completions (`enum ibv_wc_status`).
const LOC_LEN_ERR: Wc = Wc::Other(1);
const REM_INV_REQ_ERR: Wc = Wc::Other(9);
const REM_OP_ERR: Wc = Wc::Other(11);

// States and events (`enum ibv_qp_state`, `enum ibv_event_type`).
const RTS: u32 = 3;
const ERR: u32 = 6;
const QP_REQ_ERR: u32 = 2;
const QP_ACCESS_ERR: u32 = 3;

/// A requester and a responder, connected.
struct Scene {
    asks: Agent,
    answers: Agent,
    local: Memory,
    remote: Memory,
}

/// A request that the responder refuses.
struct Row {
    name: &'static str,
    /// Rights of the memory at the responder, and of its queue pair.
    rights: &'static str,
    grants: &'static str,
    verb: Verb,
    /// Added to the remote address and key.
    at: u64,
    key: u32,
    status: Wc,
    /// The asynchronous event at the responder.
    event: u32,
}

#[derive(Clone, Copy)]
enum Verb {
    Read,
    Write,
    FetchAdd,
}

const fn row(name: &'static str, verb: Verb, status: Wc, event: u32) -> Row {
    Row {
        name,
        rights: "wRWA",
        grants: "wRWA",
        verb,
        at: 0,
        key: 0,
        status,
        event,
    }
}

const ROWS: &[Row] = &[
    Row {
        grants: "wRA",
        ..row(
            "refusal_write_that_the_queue_pair_does_not_grant",
            Verb::Write,
            REM_INV_REQ_ERR,
            QP_REQ_ERR,
        )
    },
    Row {
        grants: "wWA",
        ..row(
            "refusal_read_that_the_queue_pair_does_not_grant",
            Verb::Read,
            REM_INV_REQ_ERR,
            QP_REQ_ERR,
        )
    },
    Row {
        grants: "wRW",
        ..row(
            "refusal_atomic_that_the_queue_pair_does_not_grant",
            Verb::FetchAdd,
            REM_INV_REQ_ERR,
            QP_REQ_ERR,
        )
    },
    Row {
        at: 4,
        ..row(
            "refusal_atomic_that_is_not_aligned",
            Verb::FetchAdd,
            REM_INV_REQ_ERR,
            QP_REQ_ERR,
        )
    },
    Row {
        rights: "wRW",
        ..row(
            "refusal_atomic_that_the_key_does_not_grant",
            Verb::FetchAdd,
            Wc::RemAccessErr,
            QP_ACCESS_ERR,
        )
    },
    Row {
        key: 1,
        ..row(
            "refusal_remote_key_of_another_variant",
            Verb::Write,
            Wc::RemAccessErr,
            QP_ACCESS_ERR,
        )
    },
    Row {
        key: 77 << 8,
        ..row(
            "refusal_remote_key_of_nothing",
            Verb::Read,
            Wc::RemAccessErr,
            QP_ACCESS_ERR,
        )
    },
    Row {
        at: 1,
        ..row(
            "refusal_remote_range_beyond_the_end",
            Verb::Write,
            Wc::RemAccessErr,
            QP_ACCESS_ERR,
        )
    },
    // The end of the range wraps around.
    Row {
        at: u64::MAX - (1 << 48),
        ..row(
            "refusal_remote_range_that_wraps",
            Verb::Read,
            Wc::RemAccessErr,
            QP_ACCESS_ERR,
        )
    },
];

type Rule = fn(&mut Scene) -> Result<()>;

const RULES: &[(&str, Rule)] = &[
    ("refusal_local_key_of_another_variant", local_variant),
    ("refusal_local_range_beyond_the_end", local_bounds),
    ("refusal_message_longer_than_its_receive", too_long),
    ("refusal_receive_with_a_bad_key", bad_receive),
    ("refusal_flushes_the_receives_too", receives_flushed),
    ("refusal_of_a_region_that_is_gone", region_gone),
    ("refusal_key_that_cannot_be_taken_away", not_to_invalidate),
    ("refusal_completion_that_has_no_room", overrun),
    ("refusal_transitions_that_there_are_not", transitions),
    ("connection_options", options),
];

pub(crate) fn cases() -> Vec<Case> {
    let by_row = |row: &'static Row| {
        Case::new(row.name, move |world: &World| {
            let testbed = Testbed::new(world)?;
            refused(&mut Scene::set(&testbed, row.rights)?, row)
        })
    };
    let by_rule = |&(name, rule): &(&'static str, Rule)| {
        Case::new(name, move |world: &World| {
            let testbed = Testbed::new(world)?;
            rule(&mut Scene::set(&testbed, "wRWA")?)
        })
    };
    let mut cases: Vec<Case> = ROWS.iter().map(by_row).collect();
    cases.extend(RULES.iter().map(by_rule));
    cases
}

impl Scene {
    fn set(testbed: &Testbed<'_>, rights: &str) -> Result<Self> {
        let mut asks = Agent::start(testbed, "node0.host")?;
        let mut answers = Agent::start(testbed, "node1.host")?;
        let local = asks.memory(0, SIZE, "wRWA")?;
        let remote = answers.memory(0, SIZE, rights)?;
        asks.fill(0, 0, SIZE, LOCAL)?;
        answers.fill(0, 0, SIZE, REMOTE)?;
        connect(&mut asks, &mut answers)?;
        Ok(Self {
            asks,
            answers,
            local,
            remote,
        })
    }

    fn nothing_has_moved(&mut self) -> Result<()> {
        self.asks.expect(0, 0, SIZE, LOCAL)?;
        self.answers.expect(0, 0, SIZE, REMOTE)
    }

    fn send(&mut self, length: u64, invalidate: &str) -> Result<Wc> {
        let Memory { addr, lkey, .. } = self.local;
        let command = format!("send 0 {addr} {lkey} {length} {invalidate}");
        self.asks.tell(command.trim_end())?.wc()
    }

    fn post(&mut self, lkey: u32, length: u64) -> Result<()> {
        let command = format!("post 0 {} {lkey} {length}", self.remote.addr);
        self.answers.tell(&command).map(drop)
    }
}

#[track_caller]
fn is<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<()> {
    ensure!(found == expected, "{what}: {found:?} and not {expected:?}");
    Ok(())
}

fn state(agent: &mut Agent) -> Result<u32> {
    agent.tell("state 0")?.value("state")
}

fn refused(scene: &mut Scene, row: &Row) -> Result<()> {
    scene.answers.tell(&format!("access 0 {}", row.grants))?;
    let (local, remote) = (scene.local, scene.remote);
    let at = remote.addr.wrapping_add(row.at);
    let key = remote.rkey.wrapping_add(row.key);
    let status = match row.verb {
        Verb::Read | Verb::Write => {
            let verb = if matches!(row.verb, Verb::Read) {
                "read"
            } else {
                "write"
            };
            scene
                .asks
                .rdma(verb, (local.addr, local.lkey), (at, key), SIZE)?
        }
        Verb::FetchAdd => {
            let (addr, lkey) = (local.addr, local.lkey);
            let command = format!("atomic 0 fadd {addr} {lkey} {at} {key} 1");
            scene.asks.tell(&command)?.wc()?
        }
    };
    is("completion", status, row.status)?;
    is("asking state", state(&mut scene.asks)?, ERR)?;
    is("answering state", state(&mut scene.answers)?, ERR)?;
    let event: u32 = scene.answers.tell("event")?.value("event")?;
    is("event", event, row.event)?;
    scene.nothing_has_moved()
}

/// An error of the requester alone. The responder does not notice it.
fn only_here(scene: &mut Scene, local: (u64, u32)) -> Result<()> {
    let remote = (scene.remote.addr, scene.remote.rkey);
    let status = scene.asks.rdma("write", local, remote, SIZE)?;
    is("completion", status, Wc::LocProtErr)?;
    is("asking state", state(&mut scene.asks)?, ERR)?;
    is("answering state", state(&mut scene.answers)?, RTS)?;
    scene.nothing_has_moved()
}

fn local_variant(scene: &mut Scene) -> Result<()> {
    only_here(scene, (scene.local.addr, scene.local.lkey ^ 1))
}

fn local_bounds(scene: &mut Scene) -> Result<()> {
    only_here(scene, (scene.local.addr + 1, scene.local.lkey))
}

fn too_long(scene: &mut Scene) -> Result<()> {
    scene.post(scene.remote.lkey, MESSAGE - 1)?;
    is("sender", scene.send(MESSAGE, "")?, REM_INV_REQ_ERR)?;
    is("receiver", scene.answers.tell("poll")?.wc()?, LOC_LEN_ERR)?;
    is("receiving state", state(&mut scene.answers)?, ERR)?;
    scene.nothing_has_moved()
}

fn bad_receive(scene: &mut Scene) -> Result<()> {
    scene.post(scene.remote.lkey ^ 1, MESSAGE)?;
    is("sender", scene.send(MESSAGE, "")?, REM_OP_ERR)?;
    is(
        "receiver",
        scene.answers.tell("poll")?.wc()?,
        Wc::LocProtErr,
    )?;
    is("receiving state", state(&mut scene.answers)?, ERR)?;
    scene.nothing_has_moved()
}

fn receives_flushed(scene: &mut Scene) -> Result<()> {
    const RECEIVES: usize = 3;
    for _ in 0..RECEIVES {
        scene.post(scene.remote.lkey, MESSAGE)?;
    }
    let local = (scene.local.addr, scene.local.lkey);
    let remote = (scene.remote.addr, scene.remote.rkey ^ 1);
    let status = scene.asks.rdma("write", local, remote, SIZE)?;
    is("completion", status, Wc::RemAccessErr)?;
    for _ in 0..RECEIVES {
        is("receive", scene.answers.tell("poll")?.wc()?, Wc::WrFlushErr)?;
    }
    scene.nothing_has_moved()
}

fn region_gone(scene: &mut Scene) -> Result<()> {
    let other = scene.answers.memory(1, SIZE, "wRW")?;
    scene.answers.tell("unmem 1")?;
    let local = (scene.local.addr, scene.local.lkey);
    let remote = (other.addr, other.rkey);
    let status = scene.asks.rdma("read", local, remote, SIZE)?;
    is("completion", status, Wc::RemAccessErr)?;
    scene.nothing_has_moved()
}

/// A message cannot invalidate the key of a region, only that of a window or of a key that allows
/// it.
fn not_to_invalidate(scene: &mut Scene) -> Result<()> {
    scene.post(scene.remote.lkey, MESSAGE)?;
    let key = scene.remote.rkey.to_string();
    is("sender", scene.send(MESSAGE, &key)?, Wc::RemAccessErr)?;
    is("receiving state", state(&mut scene.answers)?, ERR)?;
    scene.nothing_has_moved()
}

/// A full completion queue gets no more entries, and its queue pairs end. Each has one event.
fn overrun(scene: &mut Scene) -> Result<()> {
    const CQ_ERR: u32 = 0;
    const QP_FATAL: u32 = 1;
    let answer = scene.asks.tell("overrun")?;
    let (capacity, read): (u32, u32) = (answer.value("room")?, answer.value("read")?);
    is("completions", read, capacity)?;
    is("state", answer.value("state")?, ERR)?;
    for expect in [CQ_ERR, QP_FATAL] {
        let event: u32 = scene.asks.tell("event")?.value("event")?;
        is("event", event, expect)?;
    }
    Ok(())
}

/// Masks (`enum ibv_qp_attr_mask`) and states that the kernel does not accept together.
fn transitions(scene: &mut Scene) -> Result<()> {
    const STATE: u32 = 1 << 0;
    const DEST_QPN: u32 = 1 << 20;
    const ACCESS_FLAGS: u32 = 1 << 3;
    const CUR_STATE: u32 = 1 << 1;
    const SQD: u32 = 4;
    for (mask, to) in [
        (STATE, 1),
        (STATE, 2),
        (STATE | DEST_QPN, RTS),
        (STATE | ACCESS_FLAGS, ERR),
        (DEST_QPN, RTS),
        (STATE, 9),
        (STATE | CUR_STATE, SQD),
    ] {
        let answer = scene.asks.ask(&format!("modify 0 {mask} {to}"))?;
        answer.expect_start("error ibv_modify_qp: Invalid argument")?;
        is("state", state(&mut scene.asks)?, RTS)?;
    }
    for (to, expect) in [(SQD, SQD), (RTS, RTS), (ERR, ERR), (0, 0)] {
        scene.asks.tell(&format!("modify 0 {STATE} {to}"))?;
        is("state", state(&mut scene.asks)?, expect)?;
    }
    // Reset has one successor state.
    let answer = scene.asks.ask(&format!("modify 0 {STATE} {ERR}"))?;
    answer.expect_start("error ibv_modify_qp: Invalid argument")
}

/// Options of a connection (ECE): a new queue pair has version 1 and no option. A transition answers which of the
/// requested bits the device knows, unless its command has no field for them.
fn options(scene: &mut Scene) -> Result<()> {
    const STATE: u32 = 1 << 0;
    const VERSION_1: u32 = 0x1000_0000;
    let ask = |scene: &mut Scene, command: &str| -> Result<u32> {
        let answer = scene.asks.tell(command)?;
        is("vendor", answer.value("vendor")?, 0x15b3_u32)?;
        answer.value("options")
    };
    is(
        "options of a new queue pair",
        ask(scene, "ece 0")?,
        VERSION_1,
    )?;
    for (asked, to, expect) in [
        (u32::MAX, RTS, VERSION_1),
        (VERSION_1, RTS, VERSION_1),
        (1, RTS, 0),
        (VERSION_1, ERR, 0),
    ] {
        ask(scene, &format!("ece 0 {asked}"))?;
        is("options before the transition", ask(scene, "ece 0")?, 0)?;
        scene.asks.tell(&format!("modify 0 {STATE} {to}"))?;
        is("options", ask(scene, "ece 0")?, expect)?;
    }
    Ok(())
}
