//! Times that a pencil can compute: serialization, propagation, pipeline of the switch, store and forward.
//!
//! At 200 Gb/s a byte needs 40 ps. A full packet is 4096 + 82 = 4178 bytes, 167120 ps. A link delays by 1000000 ps and the
//! switch by 300000 ps.

use crate::{lab, run, scenario, star};
use pcc_lab::algorithm::Port;
use pcc_lab::{Algorithm, Context, Decision, Detail, Event, Failure, Lab};
use std::cell::RefCell;
use std::rc::Rc;

const FULL: u64 = 167_120;
const LINK: u64 = 1_000_000;
const SWITCH: u64 = 300_000;

fn durations(text: &str) -> Vec<u64> {
    let report = run(&mut lab(&star(3, 1_000, text)));
    report
        .per_flow
        .iter()
        .map(|flow| flow.duration_ps.expect("it ended"))
        .collect()
}

fn pairs(pairs: &str, bytes: u64) -> String {
    format!("traffic = [{{ kind = 'pairs', pairs = {pairs}, bytes = {bytes} }}]")
}

#[test]
fn one_packet_takes_two_serializations_two_links_and_the_switch() {
    let alone = FULL + LINK + SWITCH + FULL + LINK;
    assert_eq!(alone, 2_634_240);
    assert_eq!(durations(&pairs("[[1, 0]]", 4096)), [alone]);
}

#[test]
fn a_short_last_packet_waits_behind_the_full_ones() {
    // The third packet, 1082 bytes or 43280 ps, arrives while the second leaves the switch.
    let second_left = LINK + SWITCH + 3 * FULL;
    assert_eq!(
        durations(&pairs("[[1, 0]]", 2 * 4096 + 1000)),
        [second_left + 43_280 + LINK]
    );
}

#[test]
fn two_senders_share_the_last_link_packet_by_packet() {
    let first = 2_634_240;
    assert_eq!(
        durations(&pairs("[[1, 0], [2, 0]]", 4096)),
        [first, first + FULL]
    );
    // Two packets each: they leave in turns, and the flows end with the third and the fourth.
    let expect = [first + 2 * FULL, first + 3 * FULL];
    assert_eq!(durations(&pairs("[[1, 0], [2, 0]]", 2 * 4096)), expect);
}

#[test]
fn half_the_rate_doubles_the_distance_of_packets() {
    let half = "algorithm = { name = 'constant', parameters.constant_rate = 524288 }\nguesses.rate_initial = 524288\n";
    let text = format!("{half}{}", pairs("[[1, 0]]", 3 * 4096));
    assert_eq!(durations(&text), [2_634_240 + 2 * 2 * FULL]);
}

#[test]
fn a_slower_trunk_stores_and_forwards() {
    let scenario = scenario(
        "duration_us = 1000
topology = { shape = 'dumbbell', pairs = 1, gbps = 200, trunk_gbps = 100, delay_ns = 1000 }
traffic = [{ kind = 'pairs', bytes = 8192 }]",
    );
    let report = run(&mut lab(&scenario));
    // The trunk needs twice the time, so the second packet waits for the first.
    let trunk = 2 * FULL;
    let expect = FULL + LINK + SWITCH + 2 * trunk + LINK + SWITCH + FULL + LINK;
    assert_eq!(expect, 4_602_720);
    assert_eq!(report.per_flow[0].duration_ps, Some(expect));
    assert_eq!(
        report.per_flow[0].ideal_ps,
        Some(expect),
        "alone, it has no slowdown"
    );
    assert_eq!(report.slowdown.map(|slowdown| slowdown.p99), Some(1.0));
}

#[test]
fn the_ideal_time_is_that_of_the_lonely_flow_for_all_sizes() {
    for bytes in [1, 1000, 4096, 4097, 40_960, 100_000] {
        for trunk in [50, 100, 200, 400] {
            let scenario = scenario(&format!(
                "duration_us = 1000
topology = {{ shape = 'dumbbell', pairs = 1, gbps = 200, trunk_gbps = {trunk}, delay_ns = 700 }}
traffic = [{{ kind = 'pairs', bytes = {bytes} }}]"
            ));
            let flow = run(&mut lab(&scenario)).per_flow[0];
            assert_eq!(
                flow.duration_ps, flow.ideal_ps,
                "{bytes} bytes over {trunk} Gb/s"
            );
        }
    }
}

/// Asks for a probe at each event, and keeps the RTT events.
#[derive(Debug)]
struct Probing(Rc<RefCell<Vec<Event>>>);

impl Algorithm for Probing {
    fn name(&self) -> &str {
        "probing"
    }

    fn handle(&mut self, _: &mut Context, event: &Event, _: &Port) -> Result<Decision, Failure> {
        if matches!(event.detail, Detail::Rtt { .. }) {
            self.0.borrow_mut().push(*event);
        }
        Ok(Decision::default().and_probe())
    }
}

#[test]
fn a_probe_measures_both_ways_and_the_packet_before_it() {
    // A packet every 64 * 167 ns: no packet waits for another one, but for the probe behind its packet.
    let slow = format!(
        "guesses.rate_initial = 16384\n{}",
        pairs("[[1, 0]]", 10 * 4096)
    );
    let events = Rc::new(RefCell::new(Vec::new()));
    let make = |_| Box::new(Probing(events.clone())) as Box<dyn Algorithm>;
    let mut lab = Lab::with_algorithm(&star(2, 1_000, &slow), &make).expect("accepted");
    let report = run(&mut lab);
    assert!(report.per_flow[0].is_done);
    let events = events.borrow();
    assert!(events.len() >= 3, "{events:?}");
    // 128 bytes need 5120 ps per link. The packet before it leaves the switch 167120 ps after it has come.
    let (out, back) = (
        LINK + SWITCH + FULL + 5_120 + LINK,
        5_120 + LINK + SWITCH + 5_120 + LINK,
    );
    for event in events.iter() {
        let Detail::Rtt {
            request_sent,
            request_received,
            response_sent,
            ..
        } = event.detail
        else {
            panic!("{event:?}");
        };
        // All clocks of the lab run alike, and show whole nanoseconds.
        assert!(u64::from(request_received - request_sent).abs_diff(out / 1_000) <= 1);
        assert_eq!(response_sent - request_received, 1_000);
        assert!(u64::from(event.timestamp - response_sent).abs_diff(back / 1_000) <= 1);
    }
}

#[test]
fn a_lost_packet_is_sent_again_with_all_that_follow() {
    // At 10 Gb/s a full packet needs 3342400 ps and a NACK 67200 ps. The first packet arrives at 8984800 ps, and is lost.
    let scenario = scenario(
        "duration_us = 1000
topology = { shape = 'star', hosts = 2, gbps = 10, delay_ns = 1000 }
traffic = [{ kind = 'pairs', pairs = [[1, 0]], bytes = 12288 }]
[[loss]]\nkind = 'data'\nprobability = 1.0\nfrom_us = 8\nto_us = 9",
    );
    let report = run(&mut lab(&scenario));
    let full = 20 * FULL;
    let second_arrives = full + LINK + SWITCH + full + LINK + full;
    let nack_arrives = second_arrives + 67_200 + LINK + SWITCH + 67_200 + LINK;
    let expect = nack_arrives + 3 * full + LINK + SWITCH + full + LINK;
    assert_eq!((nack_arrives, expect), (14_761_600, 30_431_200));
    let (flow, counters) = (report.per_flow[0], report.counters);
    assert_eq!(flow.duration_ps, Some(expect));
    assert_eq!((flow.resent, flow.timeouts, counters.go_backs), (3, 0, 1));
    assert_eq!(
        (counters.accepted, counters.beyond_gap, counters.duplicates),
        (3, 2, 0)
    );
}

#[test]
fn a_lost_last_packet_waits_for_the_time_out() {
    let scenario = scenario(
        "duration_us = 1000\nhost.timeout_us = 100
topology = { shape = 'star', hosts = 2, gbps = 10, delay_ns = 1000 }
traffic = [{ kind = 'pairs', pairs = [[1, 0]], bytes = 4096 }]
[[loss]]\nkind = 'data'\nprobability = 1.0\nto_us = 9",
    );
    let flow = run(&mut lab(&scenario)).per_flow[0];
    assert_eq!(flow.duration_ps, Some(100_000_000 + 8_984_800));
    assert_eq!((flow.resent, flow.timeouts), (1, 1));
}
