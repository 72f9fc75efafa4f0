//! Every packet is accounted for, every byte arrives in order and once, and a seed determines the whole run.

use crate::{check, count, lab, run, scenario, star};
use pcc_lab::RecordKind;

const ALGORITHMS: [&str; 4] = ["none", "dcqcn", "swift", "hpcc"];

/// Payload of a full packet of these scenarios.
const MTU: u64 = 1_024;

/// A scenario from a seed: shape, traffic, algorithm, small buffers, and losses of every kind.
fn random_scenario(seed: u64) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let shape = match seed % 4 {
        0 => "{ shape = 'star', hosts = 8, gbps = 100, delay_ns = 500 }",
        1 => "{ shape = 'dumbbell', pairs = 4, gbps = 100, trunk_gbps = 40, delay_ns = 500 }",
        2 => "{ shape = 'parking_lot', trunks = 3, gbps = 100, delay_ns = 500 }",
        _ => "{ shape = 'fat_tree', k = 4, gbps = 100, delay_ns = 500 }",
    };
    let traffic = match random.u32(0..3) {
        0 => format!(
            "kind = 'incast', to = 1, flows = {}, bytes = 200000",
            random.u32(2..12)
        ),
        1 => "kind = 'permutation', bytes = 300000".to_owned(),
        _ => "kind = 'poisson', sizes = 'hadoop', load = 0.3".to_owned(),
    };
    let algorithm = ALGORITHMS[random.usize(0..4)];
    let pfc = if random.bool() { "[3]" } else { "[]" };
    let kinds = ["data", "ack", "nack", "cnp", "probe", "response", "event"];
    let losses: String = kinds
        .iter()
        .map(|kind| {
            format!(
                "[[loss]]\nkind = '{kind}'\nprobability = {}\nto_us = 400\n",
                random.f64() * 0.02
            )
        })
        .collect();
    format!(
        "seed = {seed}\nduration_us = 60000\ntopology = {shape}\nalgorithm.name = '{algorithm}'
[switch]\nbuffer_kib = 1000\npfc_priorities = {pfc}\nkmin_kib = 20\nkmax_kib = 80
[host]\nmtu = {MTU}\ntimeout_us = 300\nprobe = 'ifa1'\nretries_max = 100
{losses}[[traffic]]\n{}\n",
        traffic.replace(", ", "\n")
    )
}

#[test]
fn packets_and_bytes_are_accounted_for_in_random_scenarios_with_losses() {
    let mut dropped = 0;
    for seed in 0..24 {
        // New flows arrive until the end, which for those with random starts is early.
        let text = random_scenario(seed);
        let text = if text.contains("poisson") {
            text.replace("60000", "600")
        } else {
            text
        };
        let scenario = scenario(&text);
        let mut lab = lab(&scenario);
        let report = run(&mut lab);
        let counters = &report.counters;
        // Without the flows that the report does not list, all bytes are those of accepted packets.
        let delivered: u64 = report
            .per_flow
            .iter()
            .map(|flow| flow.delivered_bytes)
            .sum();
        assert!(delivered <= counters.accepted * MTU, "seed {seed}");
        dropped += report.packets.dropped;
        if text.contains("poisson") {
            continue;
        }
        for flow in &report.per_flow {
            assert!(flow.is_done, "seed {seed}: {flow:?}");
        }
        let expect = report.per_flow.len() as u64
            * if text.contains("incast") {
                200_000
            } else {
                300_000
            };
        assert_eq!(delivered, expect, "seed {seed}");
        let packets = (expect / report.per_flow.len() as u64).div_ceil(MTU);
        assert_eq!(
            counters.accepted,
            packets * report.per_flow.len() as u64,
            "each once"
        );
        assert_eq!(report.packets.in_flight, 0, "seed {seed}: nothing is left");
    }
    assert!(dropped > 1_000, "the scenarios lose packets: {dropped}");
}

#[test]
fn one_seed_gives_one_trace_and_another_seed_another() {
    for seed in 0..4 {
        let text = random_scenario(seed);
        let text = text.replace("60000", "600");
        let result = |text: &str| {
            let mut lab = lab(&scenario(text));
            let report = run(&mut lab);
            (lab.trace().hash(), lab.trace().records().to_vec(), report)
        };
        let first = result(&text);
        assert!(!first.1.is_empty());
        assert_eq!(first, result(&text), "seed {seed}");
        let other = text.replacen(&format!("seed = {seed}"), "seed = 77", 1);
        assert_ne!(first.0, result(&other).0);
    }
}

#[test]
fn a_run_in_steps_is_the_same_run() {
    let scenario = scenario(&random_scenario(1).replace("60000", "600"));
    let whole = run(&mut lab(&scenario));
    let mut lab = lab(&scenario);
    let mut time_ps = 0;
    while lab.run_until(time_ps) {
        check(&lab.report());
        time_ps += 7_000_000;
    }
    assert_eq!(lab.report().trace_hash, whole.trace_hash);
}

#[test]
fn pfc_never_drops_within_its_headroom_and_does_with_less() {
    // Long links at high speed have much on the way. Thresholds vary, and so does the number of senders.
    for (hosts, delay_ns, threshold) in [(5, 500, 20), (17, 5_000, 40), (9, 2_000, 0)] {
        let text = |headroom: &str| {
            format!(
                "duration_us = 800\ntopology = {{ shape = 'star', hosts = {hosts}, gbps = 400, delay_ns = {delay_ns} }}
[switch]\nbuffer_kib = 20000\npfc_xoff_kib = {threshold}\necn = false\n{headroom}
[[traffic]]\nkind = 'incast'\nto = 0\nflows = {}\n",
                2 * (hosts - 1)
            )
        };
        let report = run(&mut lab(&scenario(&text(""))));
        assert!(report.counters.pauses > 0, "{hosts} hosts");
        assert_eq!(
            report.packets.dropped, 0,
            "{hosts} hosts: {:?}",
            report.drops
        );
        assert_eq!(report.counters.duplicates + report.counters.beyond_gap, 0);
        let report = run(&mut lab(&scenario(&text("headroom_bytes = 5000"))));
        assert!(report.drops.headroom > 0, "{hosts} hosts");
    }
}

#[test]
fn pauses_spread_through_a_fat_tree_without_a_drop() {
    let text =
        "duration_us = 500\ntopology = { shape = 'fat_tree', k = 4, gbps = 200, delay_ns = 1000 }
[switch]\nbuffer_kib = 4000\npfc_xoff_kib = 60\necn = false
[[traffic]]\nkind = 'incast'\nto = 0\nflows = 15\n[[traffic]]\nkind = 'permutation'\n";
    let mut lab = lab(&scenario(text));
    let report = run(&mut lab);
    assert_eq!(report.packets.dropped, 0, "{:?}", report.drops);
    let paused: std::collections::BTreeSet<u32> = lab
        .trace()
        .records()
        .iter()
        .filter(|record| record.kind == RecordKind::Pause)
        .map(|record| record.subject)
        .collect();
    assert!(paused.len() > 8, "{paused:?}");
}

#[test]
fn the_limit_of_packets_delays_flows_and_loses_none_for_ever() {
    let text = "limits.packets = 32\nhost.timeout_us = 100
traffic = [{ kind = 'incast', to = 0, flows = 8, bytes = 200000 }]";
    let mut lab = lab(&star(9, 100_000, text));
    let report = run(&mut lab);
    assert!(report.drops.limit > 0);
    assert_eq!(report.counters.packets_peak, 32);
    assert!(
        report.per_flow.iter().all(|flow| flow.is_done),
        "{:?}",
        report.per_flow
    );
}

#[test]
fn lossy_priorities_drop_and_go_back() {
    let text = "switch = { buffer_kib = 200, pfc_priorities = [], ecn = false }
traffic = [{ kind = 'incast', to = 0, flows = 4, bytes = 2000000 }]";
    let mut lab = lab(&star(5, 100_000, text));
    let report = run(&mut lab);
    assert!(report.drops.buffer > 0 && report.counters.go_backs > 0);
    assert!(
        report
            .per_flow
            .iter()
            .all(|flow| flow.is_done && flow.delivered_bytes == 2_000_000)
    );
    assert_eq!(count(&lab, RecordKind::Finish), 4);
}
