//! Receivers that are not ready: what a write with immediate does without a receive, the retries
//! that stock librdmacm sets, and the counters of ports in sysfs.

use crate::agent::compile_with;
use crate::harness::Case;
use crate::ports::{Party, TOPOLOGY_ONE};
use crate::process;
use crate::talk::Talk;
use crate::world::{LIMIT, Testbed, World};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

const HOST: &str = "node0.host";
const FAR: &str = "node1.host";
/// `IBV_WC_SUCCESS`, `IBV_WC_RNR_RETRY_EXC_ERR` and `IBV_WC_RECV_RDMA_WITH_IMM`.
const SUCCESS: u64 = 0;
const RNR_EXCEEDED: u64 = 13;
const RECEIVED: u64 = 129;
/// `rnr_retry` for retries without end.
const FOREVER: u64 = 7;
/// Longest wait for retries, each of which takes 0.64 ms.
const RETRIES: Duration = Duration::from_secs(20);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("rnr_write_with_immediate_waits", waits),
        Case::new("rnr_write_with_immediate_gives_up", gives_up),
        Case::new("rnr_retries_of_librdmacm", librdmacm),
        Case::new("rnr_retries_of_librdmacm_end", librdmacm_ends),
    ]
}

/// A counter as a program in the function reads it, and as `bf-emu stats` shows it.
fn counter(testbed: &Testbed<'_>, function: &str, name: &str) -> Result<u64> {
    let path = format!("/sys/class/infiniband/mlx5_0/ports/1/hw_counters/{name}");
    let mut command = testbed.command_with(TOPOLOGY_ONE, function, "cat");
    let text = process::stdout(command.arg(&path), LIMIT)?;
    let value = text.strip_suffix('\n').and_then(|text| text.parse().ok());
    value.with_context(|| format!("{path} in {function}: '{text}'"))
}

/// Connects slot 0 of two parties; the first one retries so often. Returns the target of its writes.
fn connected(sender: &mut Party, receiver: &mut Party, retries: u64) -> Result<(u64, u64)> {
    let (here, there) = (sender.port(1)?, receiver.port(1)?);
    let (own, other) = (sender.qp(0, "rc", 1)?, receiver.qp(0, "rc", 1)?);
    let line = |qpn, lid, gid| format!("connect 0 {qpn} {lid} {gid} 14 7 {retries}");
    sender.tell(&line(other, there.lid, there.gid))?;
    receiver.tell(&line(own, here.lid, here.gid))?;
    Ok(receiver.target())
}

/// The write waits for its receive, both sides count, and then it arrives.
fn waits(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut sender = Party::start(&testbed, TOPOLOGY_ONE, HOST)?;
    let mut receiver = Party::start(&testbed, TOPOLOGY_ONE, FAR)?;
    let (addr, rkey) = connected(&mut sender, &mut receiver, FOREVER)?;
    let retried = || counter(&testbed, HOST, "rnr_nak_retry_err");
    ensure!(retried()? == 0, "a new device has retried");
    sender.tell("put 0 77")?;
    sender.tell(&format!("immediate 0 1 {addr} {rkey}"))?;
    for least in [1, 3] {
        let counted = process::wait_until(RETRIES, || retried().is_ok_and(|count| count >= least));
        ensure!(counted, "{} retries, not {least}", retried()?);
    }
    for party in [&mut sender, &mut receiver] {
        let read: u64 = party.tell("drain")?.value("read")?;
        ensure!(read == 0, "a completion without a receive");
    }
    ensure!(
        counter(&testbed, FAR, "rnr_nak_retry_err")? == 0
            && counter(&testbed, HOST, "out_of_buffer")? == 0,
        "the wrong side counts"
    );
    ensure!(
        counter(&testbed, FAR, "out_of_buffer")? >= 3,
        "the receiver does not count"
    );
    receiver.tell("receive 0 1")?;
    let sent = sender.tell("poll")?;
    let arrived = receiver.tell("poll")?;
    ensure!(sent.value::<u64>("wc")? == SUCCESS, "{sent:?}");
    ensure!(
        (arrived.value::<u64>("wc")?, arrived.value::<u64>("opcode")?) == (SUCCESS, RECEIVED),
        "{arrived:?}"
    );
    ensure!(
        receiver.tell("get 0")?.value::<u64>("value")? == 77,
        "the data"
    );
    // With a receive nothing is counted.
    let before = retried()?;
    receiver.tell("receive 0 1")?;
    sender.tell(&format!("immediate 0 1 {addr} {rkey}"))?;
    sender.tell("poll")?;
    ensure!(retried()? == before, "a write with its receive is counted");
    let counted = testbed.stats()?.port_counter(HOST, "rnr_nak_retry_err")?;
    ensure!(counted == before, "stats shows {counted}, sysfs {before}");
    Ok(())
}

/// A write with a limited number of retries ends in an error, which is no retry.
fn gives_up(world: &World) -> Result<()> {
    for retries in [0, 2] {
        let testbed = Testbed::new(world)?;
        let mut sender = Party::start(&testbed, TOPOLOGY_ONE, HOST)?;
        let mut receiver = Party::start(&testbed, TOPOLOGY_ONE, FAR)?;
        let (addr, rkey) = connected(&mut sender, &mut receiver, retries)?;
        sender.tell(&format!("immediate 0 1 {addr} {rkey}"))?;
        let ended = sender.tell("poll")?;
        ensure!(ended.value::<u64>("wc")? == RNR_EXCEEDED, "{ended:?}");
        let counted = counter(&testbed, HOST, "rnr_nak_retry_err")?;
        ensure!(
            counted <= retries && (counted > 0) == (retries > 0),
            "{counted} retries of at most {retries}"
        );
        let read: u64 = receiver.tell("drain")?.value("read")?;
        ensure!(read == 0, "the receiver has a completion");
    }
    Ok(())
}

/// Address of the first port of [`FAR`].
const FAR_ADDRESS: &str = "127.66.2.1";
const PORT: u32 = 7471;

/// A side of a connection through stock librdmacm: `programs/cm_retries.c`.
struct Side(Talk);

impl Side {
    /// The client's side and the server's one. Each passes its number of retries to the other side.
    fn pair(testbed: &Testbed<'_>, [client, server]: [u64; 2]) -> Result<[Self; 2]> {
        let program = compile_with("cm_retries", &["-lrdmacm", "-libverbs"])?;
        let start = |function| -> Result<Self> {
            let mut command = testbed.command_with(TOPOLOGY_ONE, function, &program);
            Ok(Self(Talk::start(&mut command)?))
        };
        let (mut active, mut passive) = (start(HOST)?, start(FAR)?);
        passive.tell(&format!("listen {FAR_ADDRESS} {PORT}"))?;
        // Each call returns after the other one.
        passive.0.say(&format!("accept {server}"))?;
        active.tell(&format!("connect {FAR_ADDRESS} {PORT} {client}"))?;
        let accepted = passive.0.hear(LIMIT)?;
        ensure!(accepted == "ok", "{accepted}");
        Ok([active, passive])
    }

    fn tell(&mut self, line: &str) -> Result<String> {
        let answer = self.0.ask(line, LIMIT)?;
        ensure!(answer.starts_with("ok"), "'{line}' -> {answer}");
        Ok(answer)
    }
}

/// The connection manager sets no timer, so a receiver asks for 655 ms, and the sender tries as often as its peer said.
/// Here the server waits for the client's receive, and the client does not wait for the server's.
fn librdmacm(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let [mut client, mut server] = Side::pair(&testbed, [FOREVER, 0])?;
    for (side, expect) in [
        (&mut client, "ok timer=0 retries=0"),
        (&mut server, "ok timer=0 retries=7"),
    ] {
        let found = side.tell("attributes")?;
        ensure!(found == expect, "{found}, not {expect}");
    }
    let retried = || counter(&testbed, FAR, "rnr_nak_retry_err");
    server.tell("send 77")?;
    let counted = process::wait_until(RETRIES, || retried().is_ok_and(|count| count >= 2));
    ensure!(counted, "{} retries", retried()?);
    for side in [&mut client, &mut server] {
        let read = side.tell("drain")?;
        ensure!(read == "ok read=0", "{read}");
    }
    client.tell("receive")?;
    let sent = server.tell("poll")?;
    ensure!(sent.starts_with("ok read=1 status=0 kind=2"), "{sent}");
    let arrived = client.tell("poll")?;
    ensure!(arrived == "ok read=1 status=0 kind=1 value=77", "{arrived}");
    client.tell("send 78")?;
    let refused = client.tell("poll")?;
    let expect = format!("ok read=1 status={RNR_EXCEEDED} kind=2");
    ensure!(refused.starts_with(&expect), "{refused}");
    let counted = counter(&testbed, HOST, "rnr_nak_retry_err")?;
    ensure!(counted == 0, "{counted} retries of 0");
    let read = server.tell("drain")?;
    ensure!(read == "ok read=0", "{read}");
    Ok(())
}

/// The client passes 1 to the server, which tries once more and gives up.
fn librdmacm_ends(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let [_client, mut server] = Side::pair(&testbed, [1, FOREVER])?;
    server.tell("send 77")?;
    let refused = server.tell("poll")?;
    let expect = format!("ok read=1 status={RNR_EXCEEDED} kind=2");
    ensure!(refused.starts_with(&expect), "{refused}");
    let counted = counter(&testbed, FAR, "rnr_nak_retry_err")?;
    ensure!(counted == 1, "{counted} retries of 1");
    Ok(())
}
