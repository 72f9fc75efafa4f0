//! Moderated completion events through stock libibverbs, configured by verbs and by command:
//! triggered by count, by time, and after the death of the process whose work completed. Also other
//! changes of a completion queue by command.

use crate::harness::Case;
use crate::ports::{Party, TOPOLOGY_ONE};
use crate::world::{Testbed, World};
use anyhow::{Result, ensure};

/// Moderation time in microseconds, the device's maximum. No timed event arrives earlier.
const PERIOD_US: u64 = 4095;
/// Completions per event.
const COUNT: u64 = 4;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("moderation_by_verbs", by_verbs),
        Case::new("moderation_by_command", by_command),
        Case::new("moderation_after_the_sender_died", after_a_death),
        Case::new("completion_queue_resized_by_command", resized),
    ]
}

/// A process whose queue pair 0 is connected to itself.
fn alone(testbed: &Testbed<'_>) -> Result<Party> {
    let mut party = Party::start(testbed, TOPOLOGY_ONE, "node0.host")?;
    let (qpn, port) = (party.qp(0, "rc", 1)?, party.port(1)?);
    party.connect(0, qpn, &port)?;
    Ok(party)
}

/// Posts `writes` writes with one doorbell and counts the events that arrive at once.
fn events_after(party: &mut Party, writes: u64) -> Result<u64> {
    party.tell("arm")?;
    party.write(0, writes)?;
    party.tell("events")?.value("events")
}

/// Fewer writes than the count still cause an event, but not before the moderation time.
fn told_by_time(party: &mut Party) -> Result<()> {
    party.tell("arm")?;
    party.write(0, COUNT - 1)?;
    let since_us: u64 = party.tell("event")?.value("since_us")?;
    ensure!(
        since_us >= PERIOD_US,
        "the event came after {since_us} us of {PERIOD_US}"
    );
    drained(party, COUNT - 1)
}

fn drained(party: &mut Party, expect: u64) -> Result<()> {
    let read: u64 = party.tell("drain")?.value("read")?;
    ensure!(read == expect, "{read} completions, not {expect}");
    Ok(())
}

fn by_verbs(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut party = alone(&testbed)?;
    ensure!(
        (party.caps.count, party.caps.period) == (65_535, PERIOD_US),
        "{:?}",
        party.caps
    );
    // Without moderation each completion causes an event.
    ensure!(events_after(&mut party, 1)? == 1, "without moderation");
    drained(&mut party, 1)?;
    party.tell(&format!("moderate {COUNT} {PERIOD_US}"))?;
    // The full count causes one event at once.
    ensure!(events_after(&mut party, COUNT)? == 1, "by count");
    drained(&mut party, COUNT)?;
    ensure!(events_after(&mut party, 2 * COUNT)? == 1, "beyond count");
    drained(&mut party, 2 * COUNT)?;
    told_by_time(&mut party)?;
    // Unread entries at the time of arming count.
    party.write(0, COUNT)?;
    party.tell("arm")?;
    let events: u64 = party.tell("events")?.value("events")?;
    ensure!(events == 1, "{events} events of entries that were there");
    drained(&mut party, COUNT)?;
    // Zero in either value disables moderation.
    for none in [format!("0 {PERIOD_US}"), format!("{COUNT} 0")] {
        party.tell(&format!("moderate {none}"))?;
        ensure!(events_after(&mut party, 1)? == 1, "moderation {none}");
        drained(&mut party, 1)?;
    }
    party
        .ask(&format!("moderate 1 {}", PERIOD_US + 1))?
        .expect_start("error ibv_modify_cq: Invalid argument")?;
    let changes = testbed.stats()?.commands("node0.host", "modify_cq")?;
    ensure!(changes == 4, "{changes} changes counted");
    Ok(())
}

fn by_command(world: &World) -> Result<()> {
    const PERIOD: u64 = 1;
    const BOTH: u64 = 3;
    let testbed = Testbed::new(world)?;
    let mut party = alone(&testbed)?;
    party.tell(&format!("modify {BOTH} {COUNT} {PERIOD_US}"))?;
    ensure!(events_after(&mut party, COUNT)? == 1, "by count");
    drained(&mut party, COUNT)?;
    told_by_time(&mut party)?;
    // One of the two values changes, the other stays.
    party.tell(&format!("modify {PERIOD} 77 100"))?;
    let state = party.tell("query")?;
    let seen: (u64, u64) = (state.value("count")?, state.value("period")?);
    ensure!(seen == (COUNT, 100), "QUERY_CQ has {seen:?}");
    // Armed: 9, and answered: 10.
    party.tell("arm")?;
    let armed: u64 = party.tell("query")?.value("st")?;
    party.write(0, COUNT)?;
    let fired: u64 = party.tell("query")?.value("st")?;
    ensure!((armed, fired) == (9, 10), "states {armed} and {fired}");
    party
        .ask("modify 16 0 0")?
        .expect_start("error MODIFY_CQ: status 0x3")
}

/// The process that wrote the completions has died before their event is due. The event still
/// arrives.
fn after_a_death(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut party = Party::start(&testbed, TOPOLOGY_ONE, "node0.host")?;
    for round in 0..5 {
        let mut sender = Party::start(&testbed, TOPOLOGY_ONE, "node1.host")?;
        party.pair(&mut sender, 0, (1, 1))?;
        party.tell(&format!("moderate {COUNT} {PERIOD_US}"))?;
        party.tell("receive 0 2")?;
        party.tell("arm")?;
        sender.tell("send 0 2")?;
        sender.end()?;
        party.tell("event")?;
        let read: u64 = party.tell("drain")?.value("read")?;
        ensure!(read == 2, "round {round}: {read} completions");
    }
    Ok(())
}

fn resized(world: &World) -> Result<()> {
    const LOG: u64 = 9;
    let testbed = Testbed::new(world)?;
    let mut party = alone(&testbed)?;
    let before: u64 = party.tell("query")?.value("produced")?;
    party.tell(&format!("resize {LOG}"))?;
    let state = party.tell("query")?;
    let (log, produced): (u64, u64) = (state.value("log")?, state.value("produced")?);
    // The last entry of the old ring announces the new one.
    ensure!(
        (log, produced) == (LOG, before + 1),
        "2^{log} entries, {produced} written"
    );
    party.write(0, 3)?;
    let opcodes = (1..=4)
        .map(|at| party.tell(&format!("ring {at}"))?.value::<u64>("opcode"))
        .collect::<Result<Vec<_>>>()?;
    // Three completions of requests, and nothing yet.
    ensure!(opcodes == [0, 0, 0, 15], "the new ring has {opcodes:?}");
    party
        .ask("resize 23")?
        .expect_start("error MODIFY_CQ: status 0x3")
}
