//! The algorithms of the examples: the same rates in both builds and as in the lab's own, fairness and throughput.

use crate::common::{builds, example, image, rates, run, star};
use pcc_dev::Query;
use pcc_lab::algorithm::{Detail, EVENT_TYPES, Event, Port};
use pcc_lab::native::{self, Parameters};
use pcc_lab::{Algorithm, Context, Lab};
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

/// A random event: any type, steps of time of all sizes.
fn any_event(random: &mut fastrand::Rng, now: &mut u32) -> Event {
    *now = now.wrapping_add(random.u32(..) >> random.u32(8..32));
    let mut event = Event {
        flow_tag: 3,
        sn: 9,
        ..Event::of_one_packet(EVENT_TYPES[random.usize(0..5)], *now)
    };
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

/// Parameters of an example that differ from its defaults, and the same of the lab's algorithm.
fn changed(name: &str) -> (Vec<(u32, u32)>, Parameters) {
    let mut same = Parameters::default();
    let set = match name {
        "dcqcn" => {
            same.dcqcn.alpha_timer_us = 55;
            vec![(1, 55)]
        }
        "swift" => {
            (same.swift.target_ns, same.swift.flow_scaling_ns) = (40_000, 0);
            vec![(0, 40_000), (1, 0)]
        }
        _ => {
            same.hpcc.target_percent = 80;
            vec![(0, 80)]
        }
    };
    (set, same)
}

/// The rules themselves are tested by hand where the lab's algorithms are.
#[test]
fn each_example_decides_as_the_algorithm_of_the_lab_in_both_builds() {
    for build in builds("examples::each_example_decides_as_the_algorithm_of_the_lab_in_both_builds")
    {
        for name in NAMES {
            let (set, same) = changed(name);
            decides_alike(name, build, &[], &Parameters::default());
            decides_alike(name, build, &set, &same);
        }
    }
}

fn decides_alike(name: &str, build: Build, set: &[(u32, u32)], same: &Parameters) {
    let started = image(&example(name), build).start(&options(name));
    let process = started.unwrap_or_else(|refused| panic!("{refused}"));
    for (number, value) in set {
        process
            .set_parameters(0, *number, &[*value])
            .expect("within the limits");
    }
    let mut program = process.clone();
    let mut own = native::by_name(name, same).expect("a name");
    let disabled = own.disabled_events();
    assert_eq!(program.disabled_events(), disabled | 1 << 31, "{name}");
    let mut random = fastrand::Rng::with_seed(77);
    let mut now = random.u32(..);
    let (mut flow, mut own_flow, mut rate) = (Context::default(), Context::default(), 0);
    for step in 0..6_000 {
        let event = any_event(&mut random, &mut now);
        if event.kind.mask() & disabled != 0 {
            continue;
        }
        // A new flow from time to time, on ports of several speeds.
        if step % 1_000 == 0 {
            (flow, own_flow) = (Context::default(), Context::default());
        }
        let mbps = [200_000, 100_000, 400_000, 25_000][step / 1_500];
        let port = Port { mbps, ..PORT };
        let found = program
            .handle(&mut flow, &event, &port)
            .expect("no failure");
        let expect = own
            .handle(&mut own_flow, &event, &port)
            .expect("no failure");
        rate = expect.rate.unwrap_or(rate);
        let decided = (found.rate, found.probe);
        assert_eq!(
            decided,
            (Some(rate), expect.probe),
            "{name}, {build:?}, step {step}: {event:?}"
        );
    }
    let decreases = process.query(Query::Counter, 0, 0);
    assert!(decreases.expect("a counter") > 0, "{name}");
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
