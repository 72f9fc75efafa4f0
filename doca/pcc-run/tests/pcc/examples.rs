//! The algorithms of the examples: their rules, the same rates in both builds and as in the lab's own, fairness and throughput.

use crate::common::{builds, example, image, rates, run, star, start};
use pcc_dev::Query;
use pcc_lab::algorithm::{Detail, EVENT_TYPES, Event, EventType, Port};
use pcc_lab::native::{self, Parameters};
use pcc_lab::{Algorithm, Context, Lab, RATE_MAX};
use pcc_run::{Build, Options};

const NAMES: [&str; 3] = ["dcqcn", "swift", "hpcc"];

const PORT: Port = Port {
    slot: 0,
    overload: false,
    mbps: 200_000,
    mtu: 4096,
    time_ps: 0,
    sent_bytes: 0,
    received_bytes: 0,
};

fn options(name: &str) -> Options {
    Options {
        raw_probes: name == "hpcc",
        ..Options::default()
    }
}

fn event(kind: EventType, timestamp: u32) -> Event {
    let detail = match kind {
        EventType::Tx => Detail::Tx {
            first_timestamp: timestamp,
            sent_32bytes: 0,
            sent_packets: 1,
        },
        EventType::Rtt => Detail::Rtt {
            request_sent: timestamp,
            request_received: 0,
            response_sent: 0,
            raw: [0; 3],
        },
        _ => Detail::Ack {
            first_timestamp: timestamp,
            first_sn: 0,
            coalesced: 1,
        },
    };
    Event {
        kind,
        subtype: 0,
        flags: 0,
        flow_tag: 3,
        sn: 9,
        timestamp,
        detail,
    }
}

/// A random event: any type, steps of time of all sizes.
fn any_event(random: &mut fastrand::Rng, now: &mut u32) -> Event {
    *now = now.wrapping_add(random.u32(..) >> random.u32(8..32));
    let mut event = event(EVENT_TYPES[random.usize(0..5)], *now);
    match &mut event.detail {
        Detail::Tx { sent_32bytes, .. } => *sent_32bytes = random.u16(..),
        Detail::Rtt {
            request_sent,
            request_received,
            response_sent,
            raw,
        } => {
            *request_sent = now.wrapping_sub(random.u32(..) >> random.u32(4..32));
            *request_received = random.u32(..);
            *response_sent = request_received.wrapping_add(random.u32(..2_000));
            *raw = [
                random.u32(..) >> random.u32(8..32),
                random.u32(..),
                random.u32(..),
            ];
        }
        Detail::Ack { .. } => {}
    }
    event
}

#[test]
fn each_example_decides_as_the_algorithm_of_the_lab_in_both_builds() {
    for build in builds("examples::each_example_decides_as_the_algorithm_of_the_lab_in_both_builds")
    {
        for name in NAMES {
            let started = image(&example(name), build).start(&options(name));
            let mut program = started.unwrap_or_else(|refused| panic!("{refused}"));
            let mut own = native::by_name(name, &Parameters::default()).expect("a name");
            let disabled = own.disabled_events();
            assert_eq!(program.disabled_events(), disabled | 1 << 31, "{name}");
            let mut random = fastrand::Rng::with_seed(77);
            let mut now = random.u32(..);
            let (mut flow, mut own_flow, mut rate) = (Context::default(), Context::default(), 0);
            for step in 0..8_000 {
                let event = any_event(&mut random, &mut now);
                if event.kind.mask() & disabled != 0 {
                    continue;
                }
                // A new flow from time to time, on ports of several speeds.
                if step % 1_000 == 0 {
                    (flow, own_flow) = (Context::default(), Context::default());
                }
                let mbps = [200_000, 100_000, 400_000, 25_000][step / 2_000];
                let port = Port { mbps, ..PORT };
                let found = program
                    .handle(&mut flow, &event, &port)
                    .expect("no failure");
                let expect = own
                    .handle(&mut own_flow, &event, &port)
                    .expect("no failure");
                rate = expect.rate.unwrap_or(rate);
                assert_eq!(
                    found.rate,
                    Some(rate),
                    "{name}, {build:?}, step {step}: {event:?}"
                );
                assert_eq!(
                    found.probe, expect.probe,
                    "{name}, {build:?}, step {step}: {event:?}"
                );
            }
        }
    }
}

fn incast(name: &str, duration_us: u64, warmup_us: u64) -> pcc_lab::Scenario {
    let probe = if name == "hpcc" { "ifa2" } else { "ccmad" };
    star(
        9,
        duration_us,
        &format!(
            "warmup_us = {warmup_us}\nhost.probe = '{probe}'\ntraffic = [{{ kind = 'incast', to = 0, flows = 8 }}]"
        ),
    )
}

#[test]
fn both_builds_give_the_same_sequence_of_rates_as_the_algorithm_of_the_lab() {
    let test = "examples::both_builds_give_the_same_sequence_of_rates_as_the_algorithm_of_the_lab";
    let builds = builds(test);
    for name in NAMES {
        let mut scenario = incast(name, 1_500, 0);
        let mut runs = Vec::new();
        for build in &builds {
            let (lab, report) = run(&scenario, &image(&example(name), *build), &options(name));
            let counted = report.instructions_per_event.is_some();
            assert_eq!(counted, *build == Build::Dpa);
            runs.push((rates(&lab), report.trace_hash));
        }
        name.clone_into(&mut scenario.algorithm.name);
        let mut own = Lab::new(&scenario).expect("accepted");
        let hash = own.run().trace_hash;
        runs.push((rates(&own), hash));
        assert!(runs[0].0.len() > 50, "{name}: {} changes", runs[0].0.len());
        for other in &runs[1..] {
            assert_eq!(runs[0].0, other.0, "{name}");
            assert_eq!(runs[0].1, other.1, "{name}: each event of the lab");
        }
    }
}

#[test]
fn eight_flows_share_a_port_fairly_and_fill_it() {
    for name in ["dcqcn", "swift"] {
        let scenario = incast(name, 16_000, 8_000);
        let (_, report) = run(
            &scenario,
            &image(&example(name), Build::Host),
            &options(name),
        );
        let jain = report.jain.expect("eight rates");
        assert!(jain >= 0.99, "{name}: Jain's index {jain}");
        assert!(
            (0.96..=1.0).contains(&report.utilisation),
            "{name}: {}",
            report.utilisation
        );
        assert_eq!(report.packets.dropped, 0, "{name}");
    }
}

#[test]
fn hpcc_keeps_its_target_with_a_short_queue() {
    let scenario = incast("hpcc", 5_000, 3_000);
    let (_, report) = run(
        &scenario,
        &image(&example("hpcc"), Build::Host),
        &options("hpcc"),
    );
    assert!(
        (0.93..0.98).contains(&report.utilisation),
        "{}",
        report.utilisation
    );
    assert!(report.queue_bytes.p99 < 50_000, "{:?}", report.queue_bytes);
}

#[test]
fn dcqcn_halves_at_the_first_cnp_and_recovers_half_the_way_each_period() {
    for build in
        builds("examples::dcqcn_halves_at_the_first_cnp_and_recovers_half_the_way_each_period")
    {
        let process = start(&example("dcqcn"), build);
        // The paper's period of alpha.
        process
            .set_parameters(0, 1, &[55])
            .expect("within the limits");
        let mut program = process.clone();
        let mut flow = Context::default();
        let mut rate = |kind, us: u32| {
            let decision = program.handle(&mut flow, &event(kind, us * 1_000), &PORT);
            decision.expect("no failure").rate
        };
        assert_eq!(
            rate(EventType::Tx, 1),
            Some(RATE_MAX),
            "starts at line rate"
        );
        assert_eq!(rate(EventType::Cnp, 2), Some(RATE_MAX / 2), "alpha is 1");
        assert_eq!(rate(EventType::Cnp, 51), Some(RATE_MAX / 2), "within 50 us");
        assert_eq!(
            rate(EventType::Cnp, 52),
            Some(RATE_MAX / 4),
            "alpha is still 1"
        );
        let mut expect = RATE_MAX / 4;
        for period in 1..=5 {
            expect = u32::midpoint(expect, RATE_MAX / 2);
            assert_eq!(rate(EventType::Tx, 52 + 55 * period), Some(expect));
        }
        assert_eq!(process.query(Query::Counter, 0, 0), Ok(2), "decreases");
    }
}

fn response(now: u32, delay: u32, utilisation_percent: u32) -> Event {
    let mut event = event(EventType::Rtt, now);
    event.detail = Detail::Rtt {
        request_sent: now - delay,
        request_received: 0,
        response_sent: 0,
        raw: [(utilisation_percent << 16) / 100, 0, 0],
    };
    event
}

#[test]
fn swift_adds_a_part_of_a_packet_and_cuts_in_proportion_to_the_excess() {
    let test = "examples::swift_adds_a_part_of_a_packet_and_cuts_in_proportion_to_the_excess";
    for build in builds(test) {
        let process = start(&example("swift"), build);
        // No flow scaling.
        process
            .set_parameters(0, 1, &[0])
            .expect("within the limits");
        let mut program = process.clone();
        let mut flow = Context::default();
        let mut rate = |event: &Event| program.handle(&mut flow, event, &PORT).expect("no failure");
        let first = rate(&event(EventType::Tx, 1_000_000));
        assert_eq!((first.rate, first.probe), (Some(RATE_MAX), true));
        // Delay 40 us, target 25 us: the excess 15/40, times 0.8, is 0.3 of the window: 170.9 of 244.1 packets of 4096 bytes.
        // At this delay, they are 140 of 200 Gb/s.
        let near = |rate: Option<u32>, gbps: f64| {
            let found = f64::from(rate.expect("a rate")) * 200.0 / f64::from(RATE_MAX);
            assert!((found - gbps).abs() < 0.01, "{found} in place of {gbps}");
        };
        near(rate(&response(2_000_000, 40_000, 0)).rate, 140.0);
        // Within the round trip. The same window at the half of the delay has twice the rate, and at most that of the port.
        near(rate(&response(2_039_999, 40_000, 0)).rate, 140.0);
        near(rate(&response(2_039_999, 80_000, 0)).rate, 70.0);
        // Below the target: a tenth of a packet for each of the 2 round trips since, within the port's 122.07 packets.
        near(rate(&response(2_080_000, 20_000, 0)).rate, 200.0);
        near(
            rate(&response(2_100_000, 24_000, 0)).rate,
            200.0 / 24.0 * 20.0 + 0.1 * 32.768 / 24.0,
        );
        let before = rate(&response(2_100_000, 24_000, 0)).rate;
        let half = before.map(|rate| rate / 2);
        assert_eq!(
            rate(&event(EventType::Nack, 4_000_000)).rate,
            half,
            "the largest cut"
        );
    }
}

#[test]
fn hpcc_divides_by_the_excess_and_adds_five_times_below_the_target() {
    for build in builds("examples::hpcc_divides_by_the_excess_and_adds_five_times_below_the_target")
    {
        let started = image(&example("hpcc"), build).start(&options("hpcc"));
        let mut program = started.expect("started");
        let mut flow = Context::default();
        let mut rate = |event: &Event| {
            program
                .handle(&mut flow, event, &PORT)
                .expect("no failure")
                .rate
        };
        assert_eq!(rate(&event(EventType::Tx, 1_000)), Some(RATE_MAX));
        // 95 % over 190 %, in 16 bits: 62259 / 124518 is a half. 200 Mb/s are 1048 of 2^20 at 200 Gb/s.
        assert_eq!(
            rate(&response(9_000, 8_000, 190)),
            Some(RATE_MAX / 2 + 1_048)
        );
        for number in 2..=6 {
            assert_eq!(
                rate(&response(9_000, 8_000, 50)),
                Some(RATE_MAX / 2 + 1_048 * number)
            );
        }
        let before = u64::from(RATE_MAX / 2 + 6 * 1_048);
        let expect = (before * 62_259 / 32_768 + 1_048).min(u64::from(RATE_MAX));
        assert_eq!(
            rate(&response(9_000, 8_000, 50)).map(u64::from),
            Some(expect),
            "the sixth is multiplicative"
        );
    }
}

#[test]
fn parameters_change_under_load() {
    let image = image(&example("swift"), Build::Host);
    let scenario = incast("swift", 16_000, 6_000);
    let processes = std::cell::RefCell::new(Vec::new());
    let make = |_| -> Box<dyn Algorithm> {
        let process = image.start(&Options::default()).expect("started");
        processes.borrow_mut().push(process.clone());
        Box::new(process)
    };
    let mut lab = Lab::with_algorithm(&scenario, &make).expect("accepted");
    lab.run_until(11_000_000_000);
    let before = lab.report().queue_bytes.mean;
    // Twice the delay is twice the queue, without a loss.
    for process in processes.borrow().iter() {
        process
            .set_parameters(0, 0, &[80_000])
            .expect("within the limits");
    }
    let report = lab.run();
    let after = 2 * report.queue_bytes.mean - before;
    assert!(after > before * 3 / 2, "{before}, {after}");
    assert_eq!((report.unaccounted, report.packets.dropped), (0, 0));
}

/// Set-points in Gb/s and the measured payload: HPFT (github.com/AtlanticBob/hpft), BlueField-3 at 200 Gb/s.
const SETPOINTS: [(u32, f64); 8] = [
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
fn set_points_of_a_program_are_obeyed_as_on_hardware() {
    let image = image(&example("constant"), Build::Host);
    for (gbps, measured) in SETPOINTS {
        let options = Options {
            parameters: vec![(0, (gbps << 20) / 200)],
            ..Options::default()
        };
        let text = "warmup_us = 1000\ntraffic = [{ kind = 'pairs', pairs = [[1, 0]] }]";
        let (_, report) = run(&star(2, 6_000, text), &image, &options);
        let ratio = report.goodput_gbps / measured;
        assert!(
            (0.96..1.04).contains(&ratio),
            "{gbps} Gb/s: {}, hardware {measured}",
            report.goodput_gbps
        );
    }
}
