//! The rules of cross-function memory keys through stock libmlx5: permitted accesses, and the
//! errors of the others.
//!
//! Three processes: the owner of the memory on a host, the user of its alias on that node's DPU, and a peer on the
//! other node. Each case is a row of [`RULES`]: it prepares a key, tries one access, and names the completion that
//! must follow. After an access that must not succeed, every byte on both sides is what it was.

use crate::agent::{Agent, Memory, Wc, connect};
use crate::harness::Case;
use crate::world::{Testbed, World};
use anyhow::{Result, ensure};

const SIZE: u64 = 64 * 1024;
/// The exported part lies inside the memory, with canaries before and behind it.
const OFFSET: u64 = 8192;
const LENGTH: u64 = 16384;

/// Seeds of the bytes in the owner's and the peer's memory.
const OWNER: u64 = 1;
const PEER: u64 = 2;

const SECRET: &str = "a-key-both-know";

/// The three processes, with memory in slot 0 of owner and peer.
struct Scene {
    owner: Agent,
    dpu: Agent,
    peer: Agent,
    memory: Memory,
    remote: Memory,
}

/// An mkey of the owner, by its number in that function.
#[derive(Clone, Copy)]
struct Exported {
    index: u32,
}

/// Use of the alias.
#[derive(Clone, Copy)]
enum Access {
    /// The DPU writes the owner's bytes to the peer: the alias is the local key.
    PushLocal,
    /// The DPU reads the peer's bytes into the owner's memory: the alias is the local key.
    PullLocal,
    /// The peer reads the owner's bytes through the DPU: the alias is the remote key.
    PullRemote,
    /// The peer writes into the owner's memory through the DPU: the alias is the remote key.
    PushRemote,
}

const ALL: [Access; 4] = [
    Access::PushLocal,
    Access::PullLocal,
    Access::PullRemote,
    Access::PushRemote,
];

impl Access {
    /// What a bad key ends in: the side that holds the key decides the name.
    fn refusal(self) -> Wc {
        match self {
            Self::PushLocal | Self::PullLocal => Wc::LocProtErr,
            Self::PullRemote | Self::PushRemote => Wc::RemAccessErr,
        }
    }
}

type Rule = fn(&mut Scene) -> Result<()>;

const RULES: &[(&str, Rule)] = &[
    ("rule_ksm_alias_moves_bytes", ksm_moves),
    ("rule_umr_alias_moves_bytes", umr_moves),
    ("rule_rebinding_keeps_the_alias", rebinding),
    ("rule_unbound_umr_key_is_refused", unbound),
    ("rule_invalidated_umr_key_is_refused", invalidated),
    ("rule_access_outside_the_range_is_refused", out_of_range),
    ("rule_range_shrinks_with_a_new_binding", shrunk),
    ("rule_alias_can_be_asked_about", asked_about),
    ("rule_alias_needs_permission", not_allowed),
    ("rule_alias_needs_the_access_key", wrong_key),
    ("rule_alias_needs_an_existing_key", no_such_key),
    ("rule_key_of_another_function_is_refused", foreign),
    ("rule_destroyed_alias_is_refused", destroyed_alias),
    ("rule_alias_of_a_destroyed_key_is_refused", destroyed_key),
    (
        "rule_alias_does_not_reach_the_next_key_of_its_number",
        number_again,
    ),
    ("rule_key_of_another_domain_is_refused", wrong_domain),
    ("rule_missing_rights_are_refused", missing_rights),
    ("rule_requests_behind_an_error_are_flushed", flushed),
    ("rule_death_of_the_owner_ends_its_keys", dead_owner),
];

pub(crate) fn cases() -> Vec<Case> {
    let case = |&(name, rule): &(&'static str, Rule)| {
        Case::new(name, move |world: &World| {
            let testbed = Testbed::new(world)?;
            rule(&mut Scene::set(&testbed)?)
        })
    };
    RULES.iter().map(case).collect()
}

impl Scene {
    fn set(testbed: &Testbed<'_>) -> Result<Self> {
        // A key's number is used again at once. An alias must not rely on the number.
        let options = ["--keys", "lowest"];
        let mut owner = Agent::start_with(testbed, &options, "node0.host")?;
        let dpu = Agent::start(testbed, "node0.dpu")?;
        let mut peer = Agent::start(testbed, "node1.dpu")?;
        let memory = owner.memory(0, SIZE, "wRWA")?;
        let remote = peer.memory(0, SIZE, "wRWA")?;
        ensure!(owner.vhca != dpu.vhca, "host and DPU have one vhca_id");
        Ok(Self {
            owner,
            dpu,
            peer,
            memory,
            remote,
        })
    }

    /// A KSM key over the exported part, with permission for holders of the access key.
    fn export_ksm(&mut self) -> Result<Exported> {
        let index = self
            .owner
            .tell(&format!("ksm 0 0 {OFFSET} {LENGTH}"))?
            .value("index")?;
        self.owner.tell(&format!("allow {index} {SECRET}"))?;
        Ok(Exported { index })
    }

    /// A UMR key with permission, not yet bound.
    fn export_umr(&mut self) -> Result<Exported> {
        let index = self.owner.tell("umr 0")?.value("index")?;
        self.owner.tell(&format!("allow {index} {SECRET}"))?;
        Ok(Exported { index })
    }

    fn bind(&mut self, offset: u64, length: u64) -> Result<()> {
        let wc = self
            .owner
            .tell(&format!("bind 0 0 {offset} {length}"))?
            .wc()?;
        ensure!(wc == Wc::Success, "bind ended in {wc:?}");
        Ok(())
    }

    fn invalidate(&mut self) -> Result<()> {
        let wc = self.owner.tell("invalidate 0")?.wc()?;
        ensure!(wc == Wc::Success, "invalidate ended in {wc:?}");
        Ok(())
    }

    /// The DPU's alias, or the refusal.
    fn alias(&mut self, exported: Exported, secret: &str) -> Result<crate::agent::Answer> {
        let vhca = self.owner.vhca;
        self.dpu
            .ask(&format!("alias 1 {vhca} {} {secret}", exported.index))
    }

    fn alias_key(&mut self, exported: Exported) -> Result<u32> {
        let vhca = self.owner.vhca;
        self.dpu
            .tell(&format!("alias 1 {vhca} {} {SECRET}", exported.index))?
            .value("key")
    }

    /// One access of `length` bytes at `at` in the owner's memory, on fresh QPs.
    fn access(&mut self, access: Access, key: u32, at: u64, length: u64) -> Result<Wc> {
        let alias = (at, key);
        let remote = (self.remote.addr, self.remote.rkey);
        let local = (self.remote.addr, self.remote.lkey);
        connect(&mut self.dpu, &mut self.peer)?;
        let wc = match access {
            Access::PushLocal => self.dpu.rdma("write", alias, remote, length),
            Access::PullLocal => self.dpu.rdma("read", alias, remote, length),
            Access::PullRemote => self.peer.rdma("read", local, alias, length),
            Access::PushRemote => self.peer.rdma("write", local, alias, length),
        }?;
        self.dpu.tell("unqp 0")?;
        self.peer.tell("unqp 0")?;
        Ok(wc)
    }

    /// The access succeeds and moves exactly these bytes, at `offset` in the owner's memory.
    fn moves(&mut self, access: Access, key: u32, offset: u64, length: u64) -> Result<()> {
        // A seed of its own distinguishes these bytes from the surrounding ones.
        const CARGO: u64 = 77;
        self.reset_bytes()?;
        match access {
            Access::PullLocal | Access::PushRemote => self.peer.fill(0, 0, length, CARGO),
            Access::PushLocal | Access::PullRemote => self.owner.fill(0, offset, length, CARGO),
        }?;
        let wc = self.access(access, key, self.memory.addr + offset, length)?;
        ensure!(wc == Wc::Success, "ended in {wc:?}");
        self.owner.expect(0, offset, length, CARGO)?;
        self.peer.expect(0, 0, length, CARGO)?;
        self.owner.expect_kept(0, 0, offset, OWNER)?;
        self.owner
            .expect_kept(0, offset + length, SIZE - offset - length, OWNER)?;
        self.peer.expect_kept(0, length, SIZE - length, PEER)
    }

    /// The access ends in `expect`, and no byte changes on either side.
    fn refuses(
        &mut self,
        access: Access,
        key: u32,
        at: u64,
        length: u64,
        expect: Wc,
    ) -> Result<()> {
        self.reset_bytes()?;
        let wc = self.access(access, key, at, length)?;
        ensure!(wc == expect, "ended in {wc:?} and not in {expect:?}");
        self.owner.expect(0, 0, SIZE, OWNER)?;
        self.peer.expect(0, 0, SIZE, PEER)
    }

    fn reset_bytes(&mut self) -> Result<()> {
        self.owner.fill(0, 0, SIZE, OWNER)?;
        self.peer.fill(0, 0, SIZE, PEER)
    }

    /// All four ways to use `key` for the exported part are refused.
    fn refuses_all(&mut self, key: u32) -> Result<()> {
        let at = self.memory.addr + OFFSET;
        ALL.iter()
            .try_for_each(|&access| self.refuses(access, key, at, LENGTH, access.refusal()))
    }
}

fn ksm_moves(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_ksm()?;
    let key = scene.alias_key(exported)?;
    ALL.iter()
        .try_for_each(|&access| scene.moves(access, key, OFFSET, LENGTH))
}

fn umr_moves(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_umr()?;
    scene.bind(OFFSET, LENGTH)?;
    let key = scene.alias_key(exported)?;
    ALL.iter()
        .try_for_each(|&access| scene.moves(access, key, OFFSET, LENGTH))
}

fn rebinding(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_umr()?;
    let key = scene.alias_key(exported)?;
    for offset in [OFFSET, 2 * OFFSET, 0] {
        scene.bind(offset, LENGTH)?;
        scene.moves(Access::PullLocal, key, offset, LENGTH)?;
        scene.moves(Access::PullRemote, key, offset, LENGTH)?;
        scene.invalidate()?;
    }
    Ok(())
}

fn unbound(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_umr()?;
    let key = scene.alias_key(exported)?;
    scene.refuses_all(key)
}

fn invalidated(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_umr()?;
    scene.bind(OFFSET, LENGTH)?;
    let key = scene.alias_key(exported)?;
    scene.moves(Access::PullLocal, key, OFFSET, LENGTH)?;
    scene.invalidate()?;
    scene.refuses_all(key)
}

fn out_of_range(scene: &mut Scene) -> Result<()> {
    let start = scene.memory.addr + OFFSET;
    // One byte too many on either side, wholly outside, and a length that would wrap.
    let outside = [
        (start - 1, 2),
        (start + LENGTH - 1, 2),
        (start + LENGTH, 1),
        (start, LENGTH + 1),
        (u64::MAX - 1, 16),
    ];
    let exported = scene.export_ksm()?;
    let ksm = scene.alias_key(exported)?;
    for (at, length) in outside {
        for access in ALL {
            scene.refuses(access, ksm, at, length, access.refusal())?;
        }
    }
    scene.dpu.tell("unobj 1")?;
    let exported = scene.export_umr()?;
    scene.bind(OFFSET, LENGTH)?;
    let umr = scene.alias_key(exported)?;
    for (at, length) in outside {
        for access in ALL {
            scene.refuses(access, umr, at, length, access.refusal())?;
        }
    }
    Ok(())
}

fn shrunk(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_umr()?;
    scene.bind(OFFSET, LENGTH)?;
    let key = scene.alias_key(exported)?;
    scene.moves(Access::PullRemote, key, OFFSET, LENGTH)?;
    scene.invalidate()?;
    scene.bind(OFFSET, LENGTH / 2)?;
    scene.moves(Access::PullRemote, key, OFFSET, LENGTH / 2)?;
    scene.refuses_all(key)
}

/// Without a wait: the answer arrives through a channel, after the request's number.
fn asked_about(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_ksm()?;
    let key = scene.alias_key(exported)?;
    let answer = scene.dpu.tell(&format!("async 1 {}", key >> 8))?;
    let vhca = scene.owner.vhca;
    answer.expect_start(&format!("ok id={} status=0 vhca={vhca}", 0x5151))
}

fn not_allowed(scene: &mut Scene) -> Result<()> {
    let index = scene
        .owner
        .tell(&format!("ksm 0 0 {OFFSET} {LENGTH}"))?
        .value("index")?;
    scene.alias(Exported { index }, SECRET)?.expect_refusal()?;
    // The same request succeeds once it is permitted: nothing else was wrong.
    scene.owner.tell(&format!("allow {index} {SECRET}"))?;
    scene.alias_key(Exported { index }).map(drop)
}

fn wrong_key(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_ksm()?;
    for wrong in ["another-key", "a-key-both-kno", "a-key-both-know-", ""] {
        scene.alias(exported, wrong)?.expect_refusal()?;
    }
    scene.alias_key(exported).map(drop)
}

fn no_such_key(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_ksm()?;
    scene
        .alias(
            Exported {
                index: exported.index + 4096,
            },
            SECRET,
        )?
        .expect_refusal()?;
    scene.owner.tell("unobj 0")?;
    scene.alias(exported, SECRET)?.expect_refusal()
}

fn foreign(scene: &mut Scene) -> Result<()> {
    // Index spaces are per function, so a small number may be a key of the DPU. Use a number far
    // from those.
    let mut index = 0;
    for slot in 1..24 {
        index = scene
            .owner
            .tell(&format!("ksm {slot} 0 {OFFSET} {LENGTH}"))?
            .value("index")?;
    }
    scene.owner.tell(&format!("allow {index} {SECRET}"))?;
    scene.refuses_all(index << 8 | 0x5a)
}

fn destroyed_alias(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_ksm()?;
    let key = scene.alias_key(exported)?;
    scene.moves(Access::PullLocal, key, OFFSET, LENGTH)?;
    scene.dpu.tell("unobj 1")?;
    scene.refuses_all(key)
}

fn destroyed_key(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_ksm()?;
    let key = scene.alias_key(exported)?;
    scene.owner.tell("unobj 0")?;
    scene.refuses_all(key)
}

fn number_again(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_ksm()?;
    let key = scene.alias_key(exported)?;
    scene.owner.tell("unobj 0")?;
    let again = scene.export_ksm()?;
    ensure!(
        again.index == exported.index,
        "number {} came after {}",
        again.index,
        exported.index
    );
    scene.refuses_all(key)?;
    scene.dpu.tell("unobj 1")?;
    let key = scene.alias_key(again)?;
    scene.moves(Access::PullLocal, key, OFFSET, LENGTH)
}

fn wrong_domain(scene: &mut Scene) -> Result<()> {
    // Memory of the DPU in its second protection domain. Its QPs are in the first.
    let other = scene.dpu.memory(2, SIZE, "wRWA 1")?;
    connect(&mut scene.dpu, &mut scene.peer)?;
    let remote = (scene.remote.addr, scene.remote.rkey);
    let wc = scene
        .dpu
        .rdma("write", (other.addr, other.lkey), remote, 4096)?;
    ensure!(wc == Wc::LocProtErr, "as local key it ended in {wc:?}");
    scene.dpu.tell("unqp 0")?;
    scene.peer.tell("unqp 0")?;
    connect(&mut scene.dpu, &mut scene.peer)?;
    let local = (scene.remote.addr, scene.remote.lkey);
    let wc = scene
        .peer
        .rdma("read", local, (other.addr, other.rkey), 4096)?;
    ensure!(wc == Wc::RemAccessErr, "as remote key it ended in {wc:?}");
    Ok(())
}

fn missing_rights(scene: &mut Scene) -> Result<()> {
    // Rights, attempted access, and result.
    let table = [
        ("w", "read", Wc::RemAccessErr),
        ("w", "write", Wc::RemAccessErr),
        ("wR", "read", Wc::Success),
        ("wR", "write", Wc::RemAccessErr),
        ("wW", "read", Wc::RemAccessErr),
        ("wW", "write", Wc::Success),
    ];
    for (slot, (rights, verb, expect)) in (2..).zip(table) {
        let target = scene.dpu.memory(slot, SIZE, rights)?;
        scene.dpu.fill(slot, 0, SIZE, OWNER)?;
        scene.peer.fill(0, 0, SIZE, PEER)?;
        connect(&mut scene.dpu, &mut scene.peer)?;
        let local = (scene.remote.addr, scene.remote.lkey);
        let wc = scene
            .peer
            .rdma(verb, local, (target.addr, target.rkey), SIZE)?;
        ensure!(
            wc == expect,
            "{verb} of memory with '{rights}' ended in {wc:?}"
        );
        let moved = expect == Wc::Success;
        scene.dpu.expect(
            slot,
            0,
            SIZE,
            if moved && verb == "write" {
                PEER
            } else {
                OWNER
            },
        )?;
        scene.peer.expect(
            0,
            0,
            SIZE,
            if moved && verb == "read" { OWNER } else { PEER },
        )?;
        scene.dpu.tell("unqp 0")?;
        scene.peer.tell("unqp 0")?;
    }
    // A read lands in local memory, which must be writable.
    let fixed = scene.dpu.memory(20, SIZE, "R")?;
    scene.dpu.fill(20, 0, SIZE, OWNER)?;
    connect(&mut scene.dpu, &mut scene.peer)?;
    let remote = (scene.remote.addr, scene.remote.rkey);
    let wc = scene
        .dpu
        .rdma("read", (fixed.addr, fixed.lkey), remote, SIZE)?;
    ensure!(
        wc == Wc::LocProtErr,
        "read into memory without local write ended in {wc:?}"
    );
    scene.dpu.expect(20, 0, SIZE, OWNER)
}

fn flushed(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_umr()?;
    let unbound = scene.alias_key(exported)?;
    let good = scene.dpu.memory(2, SIZE, "wRWA")?;
    scene.peer.fill(0, 0, SIZE, PEER)?;
    connect(&mut scene.dpu, &mut scene.peer)?;
    let remote = (scene.remote.addr, scene.remote.rkey);
    let at = scene.memory.addr + OFFSET;
    let wc = scene.dpu.rdma("write", (at, unbound), remote, LENGTH)?;
    ensure!(wc == Wc::LocProtErr, "the bad request ended in {wc:?}");
    let wc = scene
        .dpu
        .rdma("write", (good.addr, good.lkey), remote, LENGTH)?;
    ensure!(
        wc == Wc::WrFlushErr,
        "the good request behind it ended in {wc:?}"
    );
    scene.peer.expect(0, 0, SIZE, PEER)
}

fn dead_owner(scene: &mut Scene) -> Result<()> {
    let exported = scene.export_ksm()?;
    let key = scene.alias_key(exported)?;
    scene.moves(Access::PullLocal, key, OFFSET, LENGTH)?;
    scene.owner.end()?;
    scene.peer.fill(0, 0, SIZE, PEER)?;
    let at = (scene.memory.addr + OFFSET, key);
    let remote = (scene.remote.addr, scene.remote.rkey);
    for verb in ["write", "read"] {
        connect(&mut scene.dpu, &mut scene.peer)?;
        let wc = scene.dpu.rdma(verb, at, remote, LENGTH)?;
        ensure!(wc == Wc::LocProtErr, "{verb} ended in {wc:?}");
        scene.peer.expect(0, 0, SIZE, PEER)?;
        scene.dpu.tell("unqp 0")?;
        scene.peer.tell("unqp 0")?;
    }
    Ok(())
}
