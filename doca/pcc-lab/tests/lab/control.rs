//! What the algorithms of the lab reach, and what the lab does with algorithms that misbehave.

use crate::{count, lab, run, star};
use pcc_lab::algorithm::Port;
use pcc_lab::{Algorithm, Context, Decision, Event, EventType, Failure, Lab, RATE_MAX, RecordKind};

#[test]
fn eight_flows_share_a_port_fairly_and_fill_it() {
    for algorithm in ["dcqcn", "swift"] {
        let text = format!(
            "warmup_us = 20000\nalgorithm.name = '{algorithm}'\ntraffic = [{{ kind = 'incast', to = 0, flows = 8 }}]"
        );
        let report = run(&mut lab(&star(9, 40_000, &text)));
        let jain = report.jain.expect("eight rates");
        assert!(jain >= 0.99, "{algorithm}: Jain's index {jain}");
        assert!(
            report.utilisation >= 0.96,
            "{algorithm}: {}",
            report.utilisation
        );
        assert!(
            report.utilisation <= 1.0,
            "{algorithm}: {}",
            report.utilisation
        );
        assert_eq!(report.packets.dropped, 0, "{algorithm}");
    }
}

/// With few packets in flight, fairness comes from the targets, which grow as windows shrink.
#[test]
fn swift_is_fair_with_many_flows_and_keeps_its_queue() {
    for (flows, queue_us) in [(32, 50), (128, 90)] {
        let text = format!(
            "warmup_us = 10000\nalgorithm.name = 'swift'\ntraffic = [{{ kind = 'incast', to = 0, flows = {flows} }}]"
        );
        let report = run(&mut lab(&star(flows + 1, 20_000, &text)));
        let jain = report.jain.expect("rates");
        assert!(jain >= 0.99, "{flows} flows: Jain's index {jain}");
        let (utilisation, queue) = (report.utilisation, report.queue_bytes.p99);
        assert!(utilisation >= 0.96, "{flows} flows: {utilisation}");
        // 25 bytes leave a port of 200 Gb/s in a nanosecond.
        assert!(queue <= queue_us * 25_000, "{flows} flows: {queue} bytes");
        assert_eq!(report.packets.dropped, 0, "{flows} flows");
    }
}

#[test]
fn hpcc_keeps_its_target_with_a_queue_of_a_few_packets() {
    let text = "warmup_us = 5000\nalgorithm.name = 'hpcc'\nhost.probe = 'ifa2'
traffic = [{ kind = 'incast', to = 0, flows = 8 }]";
    let report = run(&mut lab(&star(9, 10_000, text)));
    assert!(
        (0.93..0.98).contains(&report.utilisation),
        "{}",
        report.utilisation
    );
    assert!(report.queue_bytes.p99 < 50_000, "{:?}", report.queue_bytes);
    assert!(
        report.jain.is_some_and(|jain| jain >= 0.99),
        "{:?}",
        report.jain
    );
}

#[test]
fn control_keeps_queues_shorter_than_none() {
    let mean = |algorithm| {
        let text = format!(
            "warmup_us = 5000\nalgorithm.name = '{algorithm}'\nhost.probe = 'ifa2'
traffic = [{{ kind = 'incast', to = 0, flows = 8 }}]"
        );
        run(&mut lab(&star(9, 10_000, &text))).queue_bytes.mean
    };
    let none = mean("none");
    for algorithm in ["dcqcn", "swift", "hpcc"] {
        assert!(
            mean(algorithm) * 3 < none,
            "{algorithm}: {} of {none}",
            mean(algorithm)
        );
    }
}

/// Set-points in Gb/s and the measured payload: HPFT (github.com/AtlanticBob/hpft), BlueField-3 at 200 Gb/s.
const SETPOINTS: [(u64, f64); 8] = [
    (1, 0.97),
    (2, 1.94),
    (4, 3.87),
    (8, 7.76),
    (12, 11.79),
    (16, 15.51),
    (32, 31.13),
    (64, 62.49),
];

#[test]
fn set_points_are_obeyed_as_on_hardware() {
    for (gbps, measured) in SETPOINTS {
        let rate = (gbps << 20) / 200;
        let text = format!(
            "warmup_us = 1000\nalgorithm = {{ name = 'constant', parameters.constant_rate = {rate} }}
traffic = [{{ kind = 'pairs', pairs = [[1, 0]] }}]"
        );
        let report = run(&mut lab(&star(2, 6_000, &text)));
        let ratio = report.goodput_gbps / measured;
        assert!(
            (0.96..1.04).contains(&ratio),
            "{gbps} Gb/s: {}, hardware {measured}",
            report.goodput_gbps
        );
    }
}

/// Gives the same answer to each event.
#[derive(Debug)]
struct Stubborn(Decision);

impl Algorithm for Stubborn {
    fn name(&self) -> &str {
        "stubborn"
    }

    fn handle(&mut self, _: &mut Context, _: &Event, _: &Port) -> Result<Decision, Failure> {
        Ok(self.0)
    }
}

fn stubborn(decision: Decision, bytes: u64) -> Lab {
    let text = format!("traffic = [{{ kind = 'incast', to = 0, flows = 4, bytes = {bytes} }}]");
    let make = |_| Box::new(Stubborn(decision)) as Box<dyn Algorithm>;
    Lab::with_algorithm(&star(5, 5_000_000, &text), &make).expect("accepted")
}

#[test]
fn rate_zero_becomes_the_lowest_rate_and_the_trace_says_so() {
    let mut lab = stubborn(Decision::rate(0), 40_000);
    let report = run(&mut lab);
    assert!(
        report
            .per_flow
            .iter()
            .all(|flow| flow.is_done && flow.rate_zero > 0 && flow.rate == 64)
    );
    assert_eq!(count(&lab, RecordKind::RateZero), 4, "once per flow");
    assert!(
        count(&lab, RecordKind::StarvedRate) > 0,
        "progress is slow, and the reason recorded"
    );
    assert_eq!(
        report.counters.timeouts, 0,
        "slow packets are acknowledged one by one"
    );
}

#[test]
fn a_rate_above_the_maximum_is_the_maximum_and_the_trace_says_so() {
    let mut lab = stubborn(Decision::rate(u32::MAX), 1_000_000);
    let report = run(&mut lab);
    assert!(
        report
            .per_flow
            .iter()
            .all(|flow| flow.is_done && flow.rate_above > 0 && flow.rate == RATE_MAX)
    );
    assert_eq!(
        count(&lab, RecordKind::RateAboveMaximum),
        4,
        "once per flow"
    );
}

#[test]
fn flows_of_an_algorithm_that_never_asks_for_a_probe_do_not_starve() {
    let mut lab = stubborn(Decision::rate(RATE_MAX / 64), 10_000_000);
    let report = run(&mut lab);
    assert!(
        report
            .per_flow
            .iter()
            .all(|flow| flow.is_done && flow.probes == 0)
    );
    assert_eq!(count(&lab, RecordKind::NoProbe), 4, "once per flow");
    // Without any decision, flows keep the rate of the start.
    let report = run(&mut stubborn(Decision::default(), 1_000_000));
    assert!(
        report
            .per_flow
            .iter()
            .all(|flow| flow.is_done && flow.rate == 4_096)
    );
}

/// Fails at an event of its life.
#[derive(Debug)]
struct Fragile {
    process: u32,
    events: u32,
}

impl Algorithm for Fragile {
    fn name(&self) -> &str {
        "fragile"
    }

    fn handle(&mut self, context: &mut Context, _: &Event, _: &Port) -> Result<Decision, Failure> {
        self.events += 1;
        if self.events > 50 {
            return Err(Failure("illegal instruction".to_owned()));
        }
        // The context of another process is never seen.
        assert!(
            context[0] == 0 || context[0] == self.process + 1,
            "{context:?}"
        );
        context[0] = self.process + 1;
        Ok(Decision::rate(RATE_MAX / 4).and_probe())
    }
}

#[test]
fn a_failed_process_is_replaced_and_after_the_last_one_the_internal_algorithm_controls() {
    let text = "algorithm.processes = 3\ntraffic = [{ kind = 'pairs', pairs = [[1, 0]], bytes = 50000000 }]";
    let make = |place: pcc_lab::Place| {
        Box::new(Fragile {
            process: place.process,
            events: 0,
        }) as Box<dyn Algorithm>
    };
    let mut lab = Lab::with_algorithm(&star(2, 1_000_000, text), &make).expect("accepted");
    let report = run(&mut lab);
    assert!(report.per_flow[0].is_done && report.counters.timeouts == 0);
    assert_eq!(report.counters.failures, 3);
    assert_eq!(count(&lab, RecordKind::ProcessActive), 2);
    assert_eq!(count(&lab, RecordKind::InternalActive), 1);
    let lost: u64 = report.control.iter().map(|control| control.lost).sum();
    assert!(lost > 3, "events of the take-over are lost: {lost}");
    // The internal DCQCN starts at line rate, and nothing marks a single flow.
    assert_eq!(report.per_flow[0].rate, RATE_MAX);
}

#[test]
fn a_process_killed_in_the_middle_loses_no_flow() {
    let text = "algorithm = { name = 'swift', processes = 2 }
traffic = [{ kind = 'incast', to = 0, flows = 4, bytes = 20000000 }]";
    let mut lab = lab(&star(5, 1_000_000, text));
    lab.run_until(1_000_000_000);
    (1..5).for_each(|host| lab.kill(host));
    assert_eq!(
        lab.active_process(1)
            .map(|process| process.name().to_owned()),
        Some("swift".to_owned())
    );
    let report = run(&mut lab);
    assert!(report.per_flow.iter().all(|flow| flow.is_done));
    assert_eq!((report.counters.failures, report.packets.dropped), (4, 0));
}

#[test]
fn flows_without_rdma_cm_have_slot_15_and_the_trace_says_so() {
    let text = "traffic = [{ kind = 'pairs', pairs = [[1, 0]], bytes = 10000000, class = { rdma_cm = false } }]";
    let make = |_| Box::new(Stubborn(Decision::rate(64))) as Box<dyn Algorithm>;
    let mut lab = Lab::with_algorithm(&star(2, 100_000, text), &make).expect("accepted");
    let report = run(&mut lab);
    assert_eq!(count(&lab, RecordKind::InternalSlot), 1);
    assert!(
        report.per_flow[0].is_done && report.per_flow[0].rate == RATE_MAX,
        "not the rate of the user's algorithm"
    );
}

/// Counts instructions, and events with the overload bit.
#[derive(Debug)]
struct Slow;

impl Algorithm for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn handle(
        &mut self,
        context: &mut Context,
        event: &Event,
        port: &Port,
    ) -> Result<Decision, Failure> {
        context[0] += u32::from(port.overload);
        let rate = if context[0] > 0 {
            RATE_MAX / 16
        } else {
            RATE_MAX
        };
        Ok(Decision {
            rate: Some(rate),
            probe: event.kind == EventType::Tx,
            instructions: 50_000,
            ..Decision::default()
        })
    }
}

#[test]
fn more_events_than_the_threads_sustain_set_the_overload_bit_and_are_dropped() {
    let text = "guesses = { handler_threads = 1, tx_event_packets = 1, event_queue_min = 4, event_queue_max = 16, overload_events = 3, coalesced_max = 1 }
host.ack_every = 1\nduration_us = 3000";
    let flows: String = (0..40).map(|_| "[1, 0], ").collect();
    let text =
        format!("{text}\ntraffic = [{{ kind = 'pairs', pairs = [{flows}], bytes = 300000 }}]");
    let text = text.replace("\nduration_us = 3000", "");
    let mut lab =
        Lab::with_algorithm(&star(2, 1_000_000, &text), &|_| Box::new(Slow)).expect("accepted");
    let report = run(&mut lab);
    let lost: u64 = report.control.iter().map(|control| control.lost).sum();
    assert!(
        lost > 0 && report.counters.overloaded > 0,
        "{:?}",
        report.control
    );
    assert_eq!(report.counters.events_peak, 16);
    assert_eq!(report.instructions_per_event, Some(50_000.0));
    assert!(report.per_flow.iter().all(|flow| flow.is_done));
}

#[test]
fn a_delay_of_cnps_makes_the_queue_longer() {
    let queue = |delay_us| {
        let text = format!(
            "algorithm.name = 'dcqcn'\nguesses.cnp_delay_us = {delay_us}
traffic = [{{ kind = 'incast', to = 0, flows = 8, bytes = 1000000 }}]"
        );
        run(&mut lab(&star(9, 20_000, &text))).queue_bytes.peak
    };
    assert!(queue(55) > queue(0), "{} and {}", queue(55), queue(0));
}

#[test]
fn weighted_priorities_share_a_port_and_those_without_weight_pass_them() {
    let text = "warmup_us = 1000\nswitch = { pfc_priorities = [2, 4, 5], weights = [0, 0, 3, 0, 1, 0, 0, 0], ecn = false }
traffic = [{ kind = 'pairs', pairs = [[1, 0]], class = { priority = 2 } },
  { kind = 'pairs', pairs = [[2, 0]], class = { priority = 4 } },
  { kind = 'pairs', pairs = [[3, 0]], bytes = 4096, start_us = 2000, class = { priority = 5 } }]";
    let mut lab = lab(&star(4, 5_000, text));
    let report = run(&mut lab);
    let [heavy, light] = [0, 1].map(|flow| report.per_flow[flow].gbps);
    assert!((2.95..3.05).contains(&(heavy / light)), "{heavy}, {light}");
    assert!(report.utilisation > 0.99, "{}", report.utilisation);
    let flow = report.per_flow[2];
    let waited = flow.duration_ps.expect("done") - flow.ideal_ps.expect("finite");
    assert!(waited <= 167_120, "at most one packet: {waited} ps");
}

#[test]
fn a_higher_priority_passes_a_queue() {
    let text = "switch.pfc_priorities = [3, 5]
traffic = [{ kind = 'incast', to = 0, flows = 4, bytes = 5000000 },
  { kind = 'pairs', pairs = [[5, 0]], bytes = 4096, start_us = 50, class = { priority = 5 } }]";
    let report = run(&mut lab(&star(6, 10_000, text)));
    let flow = report.per_flow[4];
    // At most one packet of the queue is before it.
    let (duration, ideal) = (
        flow.duration_ps.expect("done"),
        flow.ideal_ps.expect("finite"),
    );
    assert!(
        (ideal..=ideal + 167_120).contains(&duration),
        "{duration}, {ideal}"
    );
}
