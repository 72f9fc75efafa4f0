//! Rates that stock perftest obeys: set-points, its own figure, and two senders at one port.
//!
//! The device's time is that of the machine, slower by a factor. So what arrives in a stretch has bounds that hold on a machine of
//! any load: a sender never sends more than its rate in the longest time that the stretch can have had, and, without the time
//! in which it came late, no less in the shortest one.

use super::{ENDLESS, Flow, Host, Pair, counter, flow, report, testbed, until};
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Context as _, Result, ensure};
use std::time::{Duration, Instant};

/// Set-points in Gb/s, and what a BlueField-3 gave (HPFT's measurement with the same kind of algorithm).
const SETPOINTS: [(f64, f64); 8] = [
    (1.0, 0.97),
    (2.0, 1.94),
    (4.0, 3.87),
    (8.0, 7.76),
    (12.0, 11.79),
    (16.0, 15.51),
    (32.0, 31.13),
    (64.0, 62.49),
];
/// Allowed distance from these.
const BAND: f64 = 0.04;
/// Bytes of a message, and those that a port counts for it: two packets with their headers.
const MESSAGE: u64 = 8_192;
const COUNTED: u64 = MESSAGE + 2 * (12 + 4) + 16;
/// Headers, check sums and gaps of its packets.
const WIRE: u64 = MESSAGE + 2 * 82;
/// Time of the machine by that of the device.
const SLOWDOWN: f64 = 100.0;
/// Speed of a port in Gb/s.
const PORT: f64 = 400.0;
/// Least duration of a stretch on the machine.
const STRETCH: Duration = Duration::from_millis(500);
/// Time by which a late sender may catch up, on the machine.
const BURST: Duration = Duration::from_millis(20);

/// What a sender's limiter states and what has arrived at node 2, with the time before and after.
struct Look {
    flow: Flow,
    bytes: u64,
    times: (Instant, Instant),
}

/// Bytes that a node's port counts as received.
fn received(testbed: &Testbed<'_>, node: u8) -> Result<u64> {
    let mut command = testbed.command(&format!("node{}.host", node - 1), "cat");
    command.arg("/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data");
    let words: u64 = succeed(&mut command)?.trim().parse().context("a number")?;
    Ok(words * 4)
}

impl Look {
    fn at(testbed: &Testbed<'_>) -> Result<Self> {
        let (flow, start) = (flow(testbed, 1)?, Instant::now());
        let bytes = received(testbed, 2)?;
        Ok(Self {
            flow,
            bytes,
            times: (start, Instant::now()),
        })
    }

    /// At the end of a stretch the limiter is asked last, so that its late time covers the stretch.
    fn after(testbed: &Testbed<'_>) -> Result<Self> {
        let start = Instant::now();
        let bytes = received(testbed, 2)?;
        let times = (start, Instant::now());
        Ok(Self {
            flow: flow(testbed, 1)?,
            bytes,
            times,
        })
    }
}

/// Payload rates in Gb/s between two looks: the least and the largest that the limiter can have meant.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn bounds(before: &Look, after: &Look) -> (f64, f64) {
    let bits = ((after.bytes - before.bytes) * 8 * MESSAGE / COUNTED) as f64;
    let device_ns = |time: Duration| time.as_secs_f64() * 1e9 / SLOWDOWN;
    let longest = device_ns(after.times.1 - before.times.0 + BURST);
    let shortest = device_ns((after.times.0 - before.times.1).saturating_sub(BURST));
    let late = (after.flow.late_ns - before.flow.late_ns) as f64;
    (bits / longest, bits / (shortest - late).max(1.0))
}

/// Stock perftest with the connection manager obeys the program's rates, in the ratios of hardware: by what arrives at the
/// receiver. Without the connection manager no program is called, and the report says why. Telemetry and counters tell what
/// happened.
pub(super) fn setpoints(world: &World) -> Result<()> {
    let testbed = testbed(world, 2)?;
    let mut host = Host::started(&testbed, world, 1)?;
    host.expect("state", super::ACTIVE)?;
    let pair = Pair::start(&testbed, world, (1, 2), 18515, &["-R", "-n", ENDLESS])?;
    for (gbps, hardware) in SETPOINTS {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small numbers"
        )]
        let (mbps, rate) = (
            (gbps * 1e3) as u64,
            (gbps / PORT * f64::from(1 << 20)) as u64,
        );
        host.ok(&format!("mbps {mbps}"))?;
        until(&testbed, 1, "the rate", |flow| {
            flow.rate.abs_diff(rate) <= 1
        })?;
        let before = Look::at(&testbed)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "small numbers"
        )]
        let messages = (STRETCH.as_secs_f64() * gbps * 1e9 / SLOWDOWN / (WIRE * 8) as f64) as u64;
        until(&testbed, 1, "messages", |flow| {
            flow.messages >= before.flow.messages + messages
        })?;
        let after = Look::after(&testbed)?;
        let (least, most) = bounds(&before, &after);
        ensure!(
            least <= hardware * (1.0 + BAND) && most >= hardware * (1.0 - BAND),
            "{gbps} Gb/s: between {least:.3} and {most:.3} arrive, on hardware {hardware}; {:?} to {:?}",
            before.flow,
            after.flow
        );
        ensure!(after.flow.slot == 0, "{:?}", after.flow);
    }
    let found = host.ok("telemetry")?;
    let expect = "ok c1 2.3 1 1 'test: constant rate' 1 EVENTS=";
    ensure!(
        found.starts_with(expect) && !found.ends_with("=0"),
        "{found}"
    );
    let report = report(&testbed)?;
    for name in [
        "HANDLED_SXW_EVENTS",
        "HANDLED_RXT_EVENTS",
        "MAD_RTT_PERF_CONT_REQ",
    ] {
        ensure!(counter(&report, 1, name)? > 0, "{name} in {report}");
    }
    counters_of_the_script(&testbed)?;
    drop(pair);
    without_the_connection_manager(world)
}

/// The average that perftest itself prints is never above the set-point.
pub(super) fn own_figure(world: &World) -> Result<()> {
    let testbed = testbed(world, 2)?;
    let mut host = Host::started(&testbed, world, 1)?;
    host.ok("mbps 16000")?;
    let arguments = ["-R", "-n", "2000", "--report_gbits"];
    let pair = Pair::start(&testbed, world, (1, 2), 18515, &arguments)?;
    let done = pair.client.wait(LIMIT)?;
    ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
    // Bytes, iterations, peak, average, messages per second.
    let row = done.output.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.first() == Some(&"8192")).then(|| words.get(3)?.parse::<f64>().ok())?
    });
    let gbps = row.with_context(|| done.output.clone())? * SLOWDOWN;
    let duration = 2_000.0 * 8.0 * 8_356.0 / 16.0 / 1e9 * SLOWDOWN;
    let most = 15.51 * (1.0 + BAND) * (1.0 + BURST.as_secs_f64() / duration);
    ensure!(
        gbps > 0.0 && gbps <= most,
        "{gbps} Gb/s, at most {most}: {}",
        done.output
    );
    Ok(())
}

/// The files of DOCA's script `pcc_counters.sh`: it writes which counters it wants, and reads lines with four fields.
fn counters_of_the_script(testbed: &Testbed<'_>) -> Result<()> {
    let script = "pci=$(sed -n s/PCI_SLOT_NAME=//p /sys/class/infiniband/mlx5_0/device/uevent)
counters=/sys/kernel/debug/mlx5/$pci/diag_cnt
echo 0x0a07,0x2013 > $counters/counter_id && echo 1,100,8c,1,0 > $counters/params && echo set > $counters/dump || exit 1
IFS=,; while read -r id first second value; do
[ $id = 2013 ] && echo HANDLED_SXW_EVENTS $value; done < $counters/dump; true";
    let said = succeed(testbed.command("node0.host", "bash").args(["-c", script]))?;
    let value = said.trim().strip_prefix("HANDLED_SXW_EVENTS ");
    let value = value.and_then(|value| value.parse::<u64>().ok());
    ensure!(value.is_some_and(|value| value > 0), "{said}");
    Ok(())
}

fn without_the_connection_manager(world: &World) -> Result<()> {
    let testbed = testbed(world, 2)?;
    let _host = Host::started(&testbed, world, 1)?;
    Pair::start(&testbed, world, (1, 2), 18515, &["-x", "3", "-n", "100"])?.end()?;
    let pair = Pair::start(&testbed, world, (1, 2), 18516, &["-x", "3", "-n", ENDLESS])?;
    let flow = until(&testbed, 1, "messages", |flow| flow.messages > 0)?;
    ensure!((flow.slot, flow.events) == (15, 0), "{flow:?}");
    let shown = testbed.ask("dpa", &["flows"])?;
    ensure!(
        shown.contains("rdma_cm has not connected this queue pair (perftest: -R)"),
        "{shown}"
    );
    drop(pair);
    Ok(())
}

/// Two cards that send to one: its port carries what it can and no more, and both have a part of it in most stretches.
pub(super) fn two_senders(world: &World) -> Result<()> {
    const STRETCHES: usize = 8;
    const MESSAGES: u64 = 1_200;
    let testbed = testbed(world, 3)?;
    let _hosts = [
        Host::started(&testbed, world, 1)?,
        Host::started(&testbed, world, 2)?,
    ];
    let mut pairs = Vec::new();
    for (node, port) in [(1, 18515), (2, 18516)] {
        let arguments = ["-R", "-s", "65536", "-n", ENDLESS];
        pairs.push(Pair::start(&testbed, world, (node, 3), port, &arguments)?);
    }
    let both = |least: u64| -> Result<[u64; 2]> {
        let mut sent = [0; 2];
        let is_enough = testbed::process::wait_until(LIMIT, || {
            let found = [1, 2].map(|node| flow(&testbed, node).map_or(0, |flow| flow.messages));
            sent = found;
            found.iter().sum::<u64>() >= least && found.iter().all(|one| *one > 0)
        });
        ensure!(is_enough, "{sent:?} messages");
        Ok(sent)
    };
    let mut before = both(200)?;
    let (begin, first) = (Instant::now(), received(&testbed, 3)?);
    let mut seen = Vec::new();
    for _ in 0..STRETCHES {
        let after = both(before.iter().sum::<u64>() + MESSAGES)?;
        seen.push([0, 1].map(|at| after[at] - before[at]));
        before = after;
    }
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let bits = ((received(&testbed, 3)? - first) * 8) as f64;
    let longest = (begin.elapsed() + BURST).as_secs_f64() * 1e9 / SLOWDOWN;
    ensure!(
        bits / longest <= PORT,
        "{} Gb/s through the port",
        bits / longest
    );
    // A sender that gets no processor cannot use its share.
    let is_shared = |sent: &&[u64; 2]| sent.iter().all(|one| one * 4 >= sent.iter().sum::<u64>());
    let shared = seen.iter().filter(is_shared).count();
    ensure!(
        shared * 3 >= STRETCHES * 2,
        "{shared} shared stretches: {seen:?}"
    );
    // The queue before the port has reached the marks.
    let report = report(&testbed)?;
    let marks = counter(&report, 1, "PCC_CNP_COUNT")? + counter(&report, 2, "PCC_CNP_COUNT")?;
    ensure!(marks > 0, "{report}");
    drop(pairs);
    Ok(())
}
