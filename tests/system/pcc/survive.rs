//! What flows survive on the device: programs that misbehave, lost events, a port that is down, floods of requests, receivers that
//! refuse or crash, and a full disk.

use super::{
    ACTIVE, CRASHES, ENDLESS, ERROR, Host, NO_PROBE, Pair, RATE_ABOVE, RATE_ZERO, SLOW, counter,
    goes_on, report, testbed, until,
};
use crate::world::{LIMIT, World};
use anyhow::{Context as _, Result, ensure};
use testbed::process;

/// Lowest rate of the limiter, and that of the whole port.
const RATE_FLOOR: u64 = 64;
const RATE_MAX: u64 = 1 << 20;

/// Rate 0, a rate above the maximum, and no request for a probe: the flow goes on, and the report says why it is as it is.
pub(super) fn misbehave(world: &World) -> Result<()> {
    let testbed = testbed(world, 2)?;
    let mut host = Host::started(&testbed, world, 1)?;
    host.ok("mbps 64000")?;
    let pair = Pair::start(&testbed, world, (1, 2), 18515, &["-R", "-n", ENDLESS])?;
    let usual = goes_on(&testbed, 1)?;
    for (fault, rate, note) in [
        (
            RATE_ZERO,
            RATE_FLOOR,
            "asks for rate 0; the limiter keeps its lowest rate",
        ),
        (
            RATE_ABOVE,
            RATE_MAX,
            "asks for more than 2^20; the limiter keeps the port's speed",
        ),
    ] {
        host.ok(&format!("fault {fault}"))?;
        let before = until(&testbed, 1, note, |flow| flow.rate == rate)?;
        let shown = testbed.ask("dpa", &["flows"])?;
        ensure!(shown.contains(note), "{shown}");
        // One message at the lowest rate takes a part of a second.
        until(&testbed, 1, "messages", |flow| {
            flow.messages > before.messages
        })?;
    }
    host.ok("fault 0")?;
    until(&testbed, 1, "the usual rate", |flow| {
        flow.rate == usual.rate
    })?;
    drop(pair);
    // Another flow, which never gets a probe.
    host.ok(&format!("fault {NO_PROBE}"))?;
    let pair = Pair::start(&testbed, world, (1, 2), 18516, &["-R", "-n", ENDLESS])?;
    let note = "the program has never asked for a probe";
    let told = process::wait_until(LIMIT, || {
        testbed
            .ask("dpa", &["flows"])
            .is_ok_and(|shown| shown.contains(note))
    });
    ensure!(told, "{}", testbed.ask("dpa", &["flows"])?);
    goes_on(&testbed, 1)?;
    drop(pair);
    Ok(())
}

/// A program that is too slow loses events, which counters tell; a port that is down stops its flow. Both go on afterwards.
pub(super) fn losses(world: &World) -> Result<()> {
    let testbed = testbed(world, 2)?;
    let mut host = Host::started(&testbed, world, 1)?;
    host.ok("mbps 100000")?;
    let pair = Pair::start(&testbed, world, (1, 2), 18515, &["-R", "-n", ENDLESS])?;
    goes_on(&testbed, 1)?;
    host.ok(&format!("fault {SLOW}"))?;
    until(&testbed, 1, "lost events", |flow| flow.lost > 10)?;
    let report = report(&testbed)?;
    let drops = [
        "SX_EVENT_WRED_DROP",
        "SX_RTT_EVENT_WRED_DROP",
        "RTT_EVENT_WRED_DROP",
    ];
    let counted: u64 = drops
        .iter()
        .map(|name| counter(&report, 1, name))
        .sum::<Result<u64>>()?;
    ensure!(counted > 10, "{report}");
    // Probes that were lost are asked for again: answers go on.
    host.ok("fault 0")?;
    let answers = |host: &mut Host| -> Result<u64> {
        let said = host.ok("probes")?;
        let last = said.split_whitespace().last().context("a number")?;
        Ok(last.parse()?)
    };
    let before = answers(&mut host)?;
    let went_on = process::wait_until(LIMIT, || {
        answers(&mut host).is_ok_and(|now| now > before + 20)
    });
    ensure!(went_on, "no further answers of probes after {before}");
    testbed.ask("port", &["node1.host", "1", "down"])?;
    testbed.ask("port", &["node1.host", "1", "up"])?;
    let after = goes_on(&testbed, 1)?;
    until(&testbed, 1, "messages", |flow| {
        flow.messages > after.messages + 50
    })?;
    drop(pair);
    Ok(())
}

/// A thousand requests of the mailbox and two hundred new values of a parameter while perftest runs: each is answered, and the
/// last value counts.
pub(super) fn under_load(world: &World) -> Result<()> {
    let testbed = testbed(world, 2)?;
    let mut host = Host::started(&testbed, world, 1)?;
    host.ok("mbps 64000")?;
    let pair = Pair::start(&testbed, world, (1, 2), 18515, &["-R", "-n", ENDLESS])?;
    let before = goes_on(&testbed, 1)?;
    host.expect("flood 1000", "ok 1000")?;
    let after = goes_on(&testbed, 1)?;
    ensure!(after.messages > before.messages, "{before:?}, {after:?}");
    host.ok("parameters 77777")?;
    until(&testbed, 1, "the last value", |flow| flow.rate == 77_777)?;
    drop(pair);
    Ok(())
}

/// A program of the receiver answers probes, leaves some without an answer, and crashes: then the device answers in its place.
pub(super) fn receivers(world: &World) -> Result<()> {
    let testbed = testbed(world, 2)?;
    let mut receiver = Host::start(&testbed, world, 2)?;
    receiver.ok("create 1")?;
    receiver.ok("start")?;
    let mut sender = Host::start(&testbed, world, 1)?;
    sender.ok("create 3")?;
    sender.ok("start")?;
    sender.ok("mbps 64000")?;
    let pair = Pair::start(&testbed, world, (1, 2), 18515, &["-R", "-n", ENDLESS])?;
    // Answers of the receiver's program, and of its device.
    let probes = |sender: &mut Host| -> Result<[u64; 2]> {
        let said = sender.ok("probes")?;
        let mut words = said.split_whitespace().skip(2).map(str::parse);
        let mut next = || words.next().context("a number");
        Ok([next()??, next()??])
    };
    receiver.becomes(ERROR)?;
    let mut last = [0; 2];
    let device_answers = process::wait_until(LIMIT, || {
        last = probes(&mut sender).unwrap_or(last);
        last[1] > 20
    });
    ensure!(device_answers, "{last:?}");
    // 60 answers, and every second one of the 60 probes after them.
    ensure!(last[0] == 90, "{last:?}");
    let report = report(&testbed)?;
    ensure!(counter(&report, 2, "DROP_RTT_PORT0_RES")? == 30, "{report}");
    sender.expect("state", ACTIVE)?;
    goes_on(&testbed, 1)?;
    drop(pair);
    Ok(())
}

/// A disk without space costs the core dump and old values of counters, with a line each, and nothing else.
pub(super) fn full_disk(world: &World) -> Result<()> {
    let testbed = testbed(world, 2)?;
    let full = std::path::Path::new("/dev/full");
    let mut host = Host::start_with(&testbed, world, 1, Some(full))?;
    host.ok("create")?;
    host.ok("start")?;
    let pair = Pair::start(&testbed, world, (1, 2), 18515, &["-R", "-n", ENDLESS])?;
    goes_on(&testbed, 1)?;
    host.ok(&format!("fault {CRASHES}"))?;
    host.becomes(ERROR)?;
    host.says("cannot write the core dump /dev/full: No space left on device")?;
    let lines = host.0.complaints();
    ensure!(lines.matches("core dump").count() == 1, "{lines}");
    host.ok("destroy")?;
    // The program lives, and the flow too.
    host.ok("create")?;
    host.ok("start")?;
    host.expect("state", ACTIVE)?;
    goes_on(&testbed, 1)?;
    // The files of the counters.
    let mut find = std::process::Command::new("find");
    find.arg(testbed.state()).args(["-path", "*diag_cnt/dump"]);
    let found = process::stdout(&mut find, LIMIT)?;
    ensure!(!found.is_empty(), "no file of counters");
    for file in found.lines() {
        std::fs::remove_file(file)?;
        std::os::unix::fs::symlink(full, file)?;
    }
    let script = "pci=$(sed -n s/PCI_SLOT_NAME=//p /sys/class/infiniband/mlx5_0/device/uevent)
test -e /sys/kernel/debug/mlx5/$pci/diag_cnt/dump";
    let mut look = testbed.command("node0.host", "bash");
    let done = process::run(look.args(["-c", script]), LIMIT)?;
    let line = "diag_cnt/dump has old counters, or none: No space left on device";
    ensure!(done.ok() && done.output.contains(line), "{}", done.output);
    drop(pair);
    Ok(())
}
