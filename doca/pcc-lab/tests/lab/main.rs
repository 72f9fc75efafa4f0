//! Whole runs of the lab: times by hand, accounts of packets, lossless switches, algorithms, and faults.

mod accounts;
mod control;
mod events;
mod exact;
mod faults;
mod mutations;
mod peers;
mod program;
mod template;

use pcc_lab::{Lab, RecordKind, Report, Scenario};

/// A star with links of 200 Gb/s and 1000 ns; `rest` is the rest of the scenario, in dotted keys and tables.
fn star(hosts: u32, duration_us: u64, rest: &str) -> Scenario {
    let text = format!(
        "duration_us = {duration_us}\ntopology = {{ shape = 'star', hosts = {hosts}, gbps = 200, delay_ns = 1000 }}\n{rest}"
    );
    scenario(&text)
}

fn scenario(text: &str) -> Scenario {
    Scenario::from_toml(text).unwrap_or_else(|refusal| panic!("{refusal}\n{text}"))
}

fn lab(scenario: &Scenario) -> Lab {
    Lab::new(scenario).expect("the lab accepts the scenario")
}

/// Runs, and checks what holds for every run.
fn run(lab: &mut Lab) -> Report {
    let report = lab.run();
    check(&report);
    report
}

fn check(report: &Report) {
    let packets = report.packets;
    assert_eq!(report.unaccounted, 0, "{packets:?}");
    assert_eq!(
        packets.sent,
        packets.delivered + packets.dropped + packets.in_flight
    );
    let drops = report.drops;
    let reasons = drops.buffer + drops.headroom + drops.link_down + drops.injected + drops.limit;
    assert_eq!(
        reasons, packets.dropped,
        "each drop has one reason: {drops:?}"
    );
}

fn count(lab: &Lab, kind: RecordKind) -> usize {
    let records = lab.trace().records().iter();
    records.filter(|record| record.kind == kind).count()
}
