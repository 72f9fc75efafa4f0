//! Links that change or fail, and packets and events that are lost.

use crate::{count, lab, run, scenario, star};
use pcc_lab::RecordKind;

#[test]
fn a_port_at_half_speed_halves_the_flow() {
    let text = "traffic = [{ kind = 'pairs', pairs = [[1, 0]] }]
[[fault]]\nat_us = 1000\nlink = 1\nchange = 'speed'\ngbps = 100";
    for algorithm in ["none", "swift"] {
        let text = format!("algorithm.name = '{algorithm}'\n{text}");
        let mut lab = lab(&star(2, 2_000, &text));
        let report = run(&mut lab);
        // 1 ms at 200 and 1 ms at 100 Gb/s, of which 4096 of 4178 bytes are payload.
        let expect = (25_000_000 + 12_500_000) * 4096 / 4178;
        let delivered = report.per_flow[0].delivered_bytes;
        assert!(
            delivered.abs_diff(expect) < expect / 50,
            "{algorithm}: {delivered} of {expect}"
        );
        assert_eq!(count(&lab, RecordKind::PortSpeed), 2, "both directions");
    }
}

#[test]
fn a_port_that_is_down_loses_what_it_held_and_the_flow_goes_on_afterwards() {
    for algorithm in ["none", "dcqcn", "swift", "hpcc"] {
        let text = format!(
            "algorithm.name = '{algorithm}'\nhost = {{ timeout_us = 500, starvation_us = 300, probe = 'ifa2' }}
traffic = [{{ kind = 'pairs', pairs = [[1, 0]], bytes = 20000000 }}]
[[fault]]\nat_us = 100\nlink = 1\nchange = 'down'\n[[fault]]\nat_us = 2000\nlink = 1\nchange = 'up'"
        );
        let mut lab = lab(&star(2, 1_000_000, &text));
        let report = run(&mut lab);
        let flow = report.per_flow[0];
        assert!(
            flow.is_done && flow.delivered_bytes == 20_000_000,
            "{algorithm}: {flow:?}"
        );
        assert!(
            report.drops.link_down > 0 && flow.timeouts > 0,
            "{algorithm}: {report:?}"
        );
        assert!(count(&lab, RecordKind::StarvedPortDown) > 0, "{algorithm}");
    }
}

#[test]
fn a_trunk_that_stays_down_fails_the_flows_after_their_retries() {
    let scenario = scenario(
        "duration_us = 100000\nhost = { timeout_us = 200, retries_max = 3 }
topology = { shape = 'dumbbell', pairs = 2, gbps = 100, trunk_gbps = 100, delay_ns = 1000 }
traffic = [{ kind = 'pairs', bytes = 10000000 }]
[[fault]]\nat_us = 50\nlink = 4\nchange = 'down'",
    );
    let mut lab = lab(&scenario);
    let report = run(&mut lab);
    assert!(
        report
            .per_flow
            .iter()
            .all(|flow| flow.has_failed && flow.timeouts == 4)
    );
    assert_eq!(count(&lab, RecordKind::Fail), 2);
    assert!(
        report.time_ns < 10_000_000,
        "ends with the last flow, at {} ns",
        report.time_ns
    );
}

#[test]
fn a_flap_under_pauses_leaves_no_port_paused() {
    let text = "host.timeout_us = 200\nswitch = { pfc_xoff_kib = 20, ecn = false }
traffic = [{ kind = 'incast', to = 0, flows = 8, bytes = 3000000 }]
[[fault]]\nat_us = 60\nlink = 3\nchange = 'down'\n[[fault]]\nat_us = 61\nlink = 3\nchange = 'up'
[[fault]]\nat_us = 90\nlink = 0\nchange = 'down'\n[[fault]]\nat_us = 91\nlink = 0\nchange = 'up'";
    let mut lab = lab(&star(9, 1_000_000, text));
    let report = run(&mut lab);
    assert!(report.counters.pauses > 0 && report.drops.link_down > 0);
    assert!(
        report.per_flow.iter().all(|flow| flow.is_done),
        "{:?}",
        report.per_flow
    );
}

#[test]
fn a_lost_probe_is_asked_for_again() {
    // Without answers the flows fill the buffer up to the pauses, and a probe must not wait there for longer than its time-out.
    for algorithm in ["swift", "hpcc"] {
        for kind in ["probe", "response"] {
            let text = format!(
                "algorithm.name = '{algorithm}'\nhost.probe = 'ifa2'\nguesses.probe_timeout_us = 100\nswitch.pfc_xoff_kib = 200
traffic = [{{ kind = 'incast', to = 0, flows = 4 }}]
[[loss]]\nkind = '{kind}'\nprobability = 1.0\nto_us = 1000"
            );
            let report = run(&mut lab(&star(5, 4_000, &text)));
            let rtt = report.control[4];
            assert_eq!(rtt.kind, "rtt");
            assert!(rtt.handled > 100, "{algorithm}, {kind}: {rtt:?}");
            assert!(
                report.per_flow.iter().all(|flow| flow.probes > 20),
                "{algorithm}, {kind}"
            );
        }
    }
}

#[test]
fn a_lost_cnp_costs_queue_and_no_packet() {
    let text = |loss: &str| {
        format!(
            "algorithm.name = 'dcqcn'\ntraffic = [{{ kind = 'incast', to = 0, flows = 4 }}]\n{loss}"
        )
    };
    let all = run(&mut lab(&star(5, 3_000, &text(""))));
    let lossy = "[[loss]]\nkind = 'cnp'\nprobability = 0.8";
    let some = run(&mut lab(&star(5, 3_000, &text(lossy))));
    assert!(all.counters.cnps > 0 && some.counters.cnps > 0);
    assert!(some.queue_bytes.mean > all.queue_bytes.mean, "{some:?}");
    assert_eq!(
        (all.packets.dropped, some.drops.buffer + some.drops.headroom),
        (0, 0)
    );
}

#[test]
fn lost_events_are_counted_and_the_flows_go_on() {
    for algorithm in ["dcqcn", "swift"] {
        let text = format!(
            "algorithm.name = '{algorithm}'\ntraffic = [{{ kind = 'incast', to = 0, flows = 4, bytes = 10000000 }}]
[[loss]]\nkind = 'event'\nprobability = 0.3"
        );
        let mut lab = lab(&star(5, 1_000_000, &text));
        let report = run(&mut lab);
        let lost: u64 = report.control.iter().map(|control| control.lost).sum();
        assert!(lost > 50, "{algorithm}: {lost}");
        assert_eq!(count(&lab, RecordKind::EventLost) as u64, lost);
        assert!(
            report.per_flow.iter().all(|flow| flow.is_done),
            "{algorithm}"
        );
    }
}

#[test]
fn a_packet_on_a_link_that_was_down_meanwhile_is_lost() {
    // The packet is on the first link from 0.2 us to 5.2 us.
    let scenario = scenario(
        "duration_us = 1000\nhost.timeout_us = 100
topology = { shape = 'star', hosts = 2, gbps = 200, delay_ns = 5000 }
traffic = [{ kind = 'pairs', pairs = [[1, 0]], bytes = 4096 }]
[[fault]]\nat_us = 2\nlink = 1\nchange = 'down'\n[[fault]]\nat_us = 3\nlink = 1\nchange = 'up'",
    );
    let report = run(&mut lab(&scenario));
    assert_eq!((report.drops.link_down, report.counters.timeouts), (1, 1));
    assert!(report.per_flow[0].is_done);
}
