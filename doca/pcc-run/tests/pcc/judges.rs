//! Programs of others, unmodified, from directories that the user names: what they compute, and the same in both builds.

use crate::common::{builds, checkout, image, rates, run, skip, star};
use pcc_dev::Query;
use pcc_dev::layout::{Detail, Event, TX_PROBE_SENT, event_type};
use pcc_lab::{RATE_MAX, Report};
use pcc_run::{Build, Options, Process, Sources};
use std::path::PathBuf;

/// Variable with the directory of NVIDIA's samples of DOCA.
const SAMPLES: &str = "XGVMI_DOCA_SAMPLES";

/// Variable with the directory of the tutorial of SIGCOMM 2026 about BlueField.
const TUTORIAL: &str = "XGVMI_PCC_TUTORIAL";

/// The directory, or the named skip of the test.
fn named(test: &str, variable: &str) -> Option<PathBuf> {
    let root = checkout(variable);
    if root.is_none() {
        let reason = format!("{variable} names no directory of the programs");
        skip(&format!("judges::{test}"), &reason);
    }
    root
}

/// A program of the samples: its folder, and its files.
fn sample(test: &str, folder: &str, files: &[&str]) -> Option<Sources> {
    let root = named(test, SAMPLES)?;
    let device = root.join("applications/pcc/device");
    let folder = device.join(folder);
    let files: Vec<PathBuf> = files.iter().map(|file| folder.join(file)).collect();
    Some(Sources {
        includes: vec![
            device,
            root.join("applications/common/device"),
            folder.join("algo"),
        ],
        ..Sources::new("sample", &files)
    })
}

fn rtt_template(test: &str) -> Option<Sources> {
    let files = ["rp_rtt_template_dev_main.c", "algo/rtt_template.c"];
    sample(test, "rp/rtt_template", &files)
}

/// A program of the tutorial: its folder, and the file with its algorithm.
fn tutorial(test: &str, folder: &str, algorithm: &str) -> Option<Sources> {
    let device = named(test, TUTORIAL)?.join(folder).join("device");
    let files = [
        device.join("rp_main.c"),
        device.join("algo").join(algorithm),
    ];
    Some(Sources {
        includes: vec![device.join("algo"), device],
        ..Sources::new("tutorial", &files)
    })
}

fn started(sources: &Sources, build: Build) -> Process {
    let process = image(sources, build).start(&Options::default());
    process.unwrap_or_else(|refused| panic!("{build:?}: {refused}"))
}

/// One flow, event by event.
struct Flow {
    process: Process,
    context: [u32; 12],
}

impl Flow {
    fn new(process: &Process) -> Self {
        Self {
            process: process.clone(),
            context: [0; 12],
        }
    }

    /// Rate and whether a probe is asked for.
    fn event(&mut self, kind: u8, flags: u8, timestamp: u32, detail: Detail) -> (u32, u32) {
        let event = Event {
            kind,
            subtype: 0,
            port: 0,
            plane: 0,
            flags,
            flow_tag: 1,
            qpn: 7,
            hop_limit: 64,
            sn: 0,
            timestamp,
            detail,
        };
        let answer = self.process.event(&self.context, &event, 0, false);
        let answer = answer.expect("no failure");
        self.context = answer.context;
        (answer.results.rate, answer.results.probe)
    }

    fn tx(&mut self, flags: u8, timestamp: u32) -> (u32, u32) {
        let detail = Detail::Tx {
            first_timestamp: timestamp,
            sent_32bytes: 1,
            sent_packets: 1,
        };
        self.event(event_type::TX, flags, timestamp, detail)
    }

    fn ack(&mut self, kind: u8, timestamp: u32) -> (u32, u32) {
        let detail = Detail::Ack {
            first_timestamp: timestamp,
            first_sn: 0,
            coalesced: 1,
        };
        self.event(kind, 0, timestamp, detail)
    }

    fn rtt(&mut self, now: u32, delay: u32) -> (u32, u32) {
        let detail = Detail::Rtt {
            request_sent: now.wrapping_sub(delay),
            request_received: 0,
            response_sent: 0,
            received: (0, 0),
        };
        self.event(event_type::RTT, 0, now, detail)
    }
}

/// `rate` times a factor with 16 bits of fraction.
fn times(rate: u32, factor: u32) -> u32 {
    u32::try_from((u64::from(rate) * u64::from(factor)) >> 16).expect("32 bits")
}

/// 10 % with 16 bits, and 5 % with 20 bits of fraction, as the template has them.
const TENTH: u32 = 6_553;
const STEP: u32 = 52_428;
const ONE: u32 = 1 << 16;

#[test]
fn the_template_has_its_parameters_and_counters() {
    let Some(sources) = rtt_template("the_template_has_its_parameters_and_counters") else {
        return;
    };
    for build in builds("judges::the_template_has_its_parameters_and_counters") {
        let process = started(&sources, build);
        let query = |what, number| process.query(what, 0, number).expect("a value");
        assert_eq!((query(Query::Id, 0), query(Query::Version, 0)), (0xbfff, 1));
        assert_eq!(
            (query(Query::Parameters, 0), query(Query::Counters, 0)),
            (6, 2)
        );
        let values: Vec<u64> = (0..6)
            .map(|number| query(Query::Parameter, number))
            .collect();
        assert_eq!(values, [6_553, 52_428, 13_000, 1 << 20, 64, 150_000]);
        let text = process.query_text((Query::Text, Query::TextBytes), 0, 0);
        assert_eq!(text.as_deref(), Ok("Rtt template v0.1"));
        let printed = "doca_pcc_dev_user_init, disable_event_bitmask=0x80000010\n";
        assert_eq!(process.output().printed, printed);
        assert_eq!(process.output().trace[0], [0, 0, 0, 0, 1, 16]);
        let refused = process
            .set_parameters(0, 3, &[RATE_MAX + 1])
            .expect_err("a refusal");
        assert_eq!(
            refused.to_string(),
            "sample: parameter 3: 1048577 is not between 1 and 1048576"
        );
    }
}

#[test]
fn the_template_follows_its_rules_event_by_event() {
    let Some(sources) = rtt_template("the_template_follows_its_rules_event_by_event") else {
        return;
    };
    for build in builds("judges::the_template_follows_its_rules_event_by_event") {
        let process = started(&sources, build);
        let mut flow = Flow::new(&process);
        let mut rate = RATE_MAX;
        assert_eq!(flow.tx(0, 1_001), (rate, 1), "a new flow");
        assert_eq!(flow.tx(TX_PROBE_SENT, 1_101), (rate, 0));
        assert_eq!(
            flow.rtt(9_001, 8_000),
            (rate, 1),
            "5 % more, and no more than the port"
        );
        assert_eq!(flow.tx(TX_PROBE_SENT, 9_101), (rate, 0));
        rate = times(rate, ONE - TENTH);
        assert_eq!(
            flow.rtt(39_001, 21_001),
            (rate, 1),
            "13001 ns above the least delay: a tenth less"
        );
        flow.tx(TX_PROBE_SENT, 39_101);
        rate += STEP;
        assert_eq!(
            flow.rtt(60_001, 21_000),
            (rate, 1),
            "13000 ns above it: 5 % of the port more"
        );
        assert_eq!(
            flow.ack(event_type::CNP, 60_101),
            (rate, 0),
            "a CNP is noted"
        );
        flow.tx(TX_PROBE_SENT, 60_201);
        rate = times(rate, ONE - 2 * TENTH);
        assert_eq!(
            flow.rtt(70_001, 8_000),
            (rate, 1),
            "and counts at the next response"
        );
        assert_eq!(flow.ack(event_type::NACK, 70_101).0, rate);
        flow.tx(TX_PROBE_SENT, 70_201);
        rate = times(rate, ONE - 5 * TENTH);
        assert_eq!(
            flow.rtt(300_001, 150_000),
            (rate, 1),
            "a NACK counts with a long delay"
        );
        // The clock wraps between the request and its response.
        flow.tx(TX_PROBE_SENT, 300_101);
        rate += STEP;
        assert_eq!(flow.rtt(1_001, 9_000), (rate, 1));
        let counter = |number| process.query(Query::Counter, 0, number);
        assert_eq!((counter(0), counter(1)), (Ok(6), Ok(6)));
    }
}

#[test]
fn the_template_asks_again_for_a_probe_that_is_lost() {
    let Some(sources) = rtt_template("the_template_asks_again_for_a_probe_that_is_lost") else {
        return;
    };
    for build in builds("judges::the_template_asks_again_for_a_probe_that_is_lost") {
        let mut flow = Flow::new(&started(&sources, build));
        // Without the flag that the probe was sent, the second TX event after the request asks again.
        assert_eq!(flow.tx(0, 1_001).1, 1);
        assert_eq!(
            [
                flow.tx(0, 1_101).1,
                flow.tx(0, 1_201).1,
                flow.tx(0, 1_301).1
            ],
            [0, 1, 0]
        );
        // With the flag, the response is missed after 300 us, and then after twice that.
        assert_eq!(flow.tx(TX_PROBE_SENT, 2_000).1, 0);
        assert_eq!((flow.tx(0, 302_000).1, flow.tx(0, 302_001).1), (0, 1));
        assert_eq!((flow.tx(0, 602_000).1, flow.tx(0, 602_001).1), (0, 1));
    }
}

fn two_flows(rest: &str) -> pcc_lab::Scenario {
    let text = format!(
        "guesses.response_ns = 0\n{rest}\ntraffic = [{{ kind = 'incast', to = 0, flows = 2 }}]"
    );
    let text = text.replace("guesses.response_ns = 0", "");
    let mut scenario = star(3, 6_000, &text);
    scenario.guesses.response_ns = 0;
    if let pcc_lab::scenario::Topology::Star { delay_ns, .. } = &mut scenario.topology {
        *delay_ns = 1_800;
    }
    scenario
}

/// The rates of both builds; the report of the first.
#[track_caller]
fn in_both_builds(
    test: &str,
    sources: &Sources,
    scenario: &pcc_lab::Scenario,
    options: &Options,
) -> Report {
    let mut results = Vec::new();
    for build in builds(&format!("judges::{test}")) {
        let (lab, report) = run(scenario, &image(sources, build), options);
        assert_eq!(report.counters.failures, 0, "{:?}", report.process_failures);
        if build == Build::Dpa {
            let instructions = report.instructions_per_event.expect("counted");
            assert!((20.0..2_000.0).contains(&instructions), "{instructions}");
        }
        results.push((rates(&lab), report));
    }
    for (sequence, report) in &results[1..] {
        assert_eq!(&results[0].0, sequence);
        assert_eq!(results[0].1.trace_hash, report.trace_hash);
    }
    results.swap_remove(0).1
}

#[test]
fn the_template_in_the_lab_agrees_with_a_fluid_model() {
    let test = "the_template_in_the_lab_agrees_with_a_fluid_model";
    let Some(sources) = rtt_template(test) else {
        return;
    };
    let scenario = two_flows("warmup_us = 2000\nswitch = { ecn = false, pfc_xoff_kib = 30000 }");
    let report = in_both_builds(test, &sources, &scenario, &Options::default());
    // The model: 99 % of the port, a mean queue of 49 us, fair. 25000 bytes are 1 us.
    assert!(
        (0.98..1.0).contains(&report.utilisation),
        "{}",
        report.utilisation
    );
    let queue_us = report.queue_bytes.mean / 25_000;
    assert!((42..=56).contains(&queue_us), "{queue_us} us");
    assert!(
        report.jain.is_some_and(|jain| jain > 0.97),
        "{:?}",
        report.jain
    );
}

#[test]
fn the_template_with_sampled_counters_runs_in_both_builds() {
    let test = "the_template_with_sampled_counters_runs_in_both_builds";
    let Some(sources) = rtt_template(test) else {
        return;
    };
    let with = Sources {
        macros: vec!["DOCA_PCC_SAMPLE_TX_BYTES".to_owned()],
        ..sources.clone()
    };
    let mut scenario = two_flows("warmup_us = 1000");
    scenario.duration_us = 3_000;
    let sampled = in_both_builds(test, &with, &scenario, &Options::default());
    let (lab, _) = run(
        &scenario,
        &image(&sources, Build::Host),
        &Options::default(),
    );
    let (with_lab, _) = run(&scenario, &image(&with, Build::Host), &Options::default());
    // A sender whose port is above 85 % cuts twice as deep: at the start, both are.
    let first_cut = |lab| {
        let rates = rates(lab);
        let mut cuts = rates.iter().map(|(_, _, rate)| *rate);
        cuts.find(|rate| *rate < u64::from(RATE_MAX))
    };
    let (deep, usual) = (first_cut(&with_lab), first_cut(&lab));
    let expect = |tenths| Some(u64::from(times(RATE_MAX, ONE - tenths * TENTH)));
    let pairs = [(expect(2), expect(1)), (expect(4), expect(2))];
    assert!(pairs.contains(&(deep, usual)), "{deep:?}, {usual:?}");
    assert!(sampled.utilisation > 0.5, "{}", sampled.utilisation);
}

/// Twelve bytes as the sender's program reads them: queue in cells of 256 bytes, bytes and time of the switch.
fn telemetry(cells: u16, bytes: u32, time: u32) -> Detail {
    let mut raw = [0; 12];
    raw[..2].copy_from_slice(&cells.to_le_bytes());
    raw[3] = 1 << 5;
    raw[4..8].copy_from_slice(&bytes.to_le_bytes());
    raw[8..].copy_from_slice(&time.to_le_bytes());
    Detail::Raw(raw)
}

#[test]
fn the_telemetry_program_of_a_sender_follows_queue_and_rate_of_the_switch() {
    let test = "the_telemetry_program_of_a_sender_follows_queue_and_rate_of_the_switch";
    let files = ["rp_switch_telemetry_dev_main.c", "algo/telem_template.c"];
    let Some(sources) = sample(test, "rp/switch_telemetry", &files) else {
        return;
    };
    for build in builds(&format!("judges::{test}")) {
        let process = started(&sources, build);
        let value =
            |number| u32::try_from(process.query(Query::Parameter, 0, number).expect("a value"));
        // Factor, increase, queue, and first rate. The last two parameters have no declaration, and so are 0.
        let [factor, step, queue, first] =
            [0, 1, 2, 3].map(|number| value(number).expect("32 bits"));
        let mut flow = Flow::new(&process);
        let mut rate = first;
        assert_eq!(flow.tx(0, 1_001), (rate, 1));
        let cells = u16::try_from(queue / 256 + 1).expect("16 bits");
        rate = times(rate, ONE - factor);
        let long = telemetry(cells, 1 << 20, 1_000);
        assert_eq!(
            flow.event(event_type::RTT, 0, 9_001, long),
            (rate, 1),
            "a long queue"
        );
        // 200 MB in 1 ms are 200 GB/s; a port of 0 Gb/s has the largest reciprocal, so that the link counts as full.
        rate = (rate + step).min(RATE_MAX);
        let short = telemetry(0, (1 << 20) + 200_000_000, 1_001_000);
        assert_eq!(
            flow.event(event_type::RTT, 0, 19_001, short),
            (rate, 1),
            "a short queue, a full link"
        );
        assert_eq!(process.query(Query::Counter, 0, 1), Ok(2));
    }
}

/// A probe with IFA 2.0 metadata of the switches on its path, the last one first.
fn ifa2(hop_limit: u8, switches: &[[u8; 32]]) -> (Vec<u8>, u32) {
    // Ethernet, IPv4, UDP, and the header of the metadata.
    let mut packet = vec![0; 14 + 20 + 8];
    packet.extend([
        0,
        0,
        hop_limit,
        u8::try_from(switches.len() * 8).expect("small"),
    ]);
    packet.extend(switches.iter().flatten());
    (packet, 14 + 20)
}

/// Metadata of a switch: port 5, and device 0x42.
fn metadata(bytes: u32, ns: u32, cells: u16) -> [u8; 32] {
    let mut data = [0; 32];
    data[2] = 1;
    // Port type 2.
    data[3] = 2;
    let [high, low] =
        [ns >> 16, ns & 0xffff].map(|half| u16::try_from(half).expect("16 bits").to_be_bytes());
    data[18..20].copy_from_slice(&high);
    data[20..22].copy_from_slice(&low);
    data[22..24].copy_from_slice(&cells.to_be_bytes());
    data[26..28].copy_from_slice(&5_u16.to_be_bytes());
    data[28..32].copy_from_slice(&bytes.to_be_bytes());
    data
}

#[test]
fn the_telemetry_program_of_a_receiver_answers_with_what_the_last_switch_wrote() {
    let test = "the_telemetry_program_of_a_receiver_answers_with_what_the_last_switch_wrote";
    let Some(sources) = sample(
        test,
        "np/switch_telemetry",
        &["np_switch_telemetry_dev_main.c"],
    ) else {
        return;
    };
    let sources = Sources {
        is_np: true,
        ..sources
    };
    for build in builds(&format!("judges::{test}")) {
        let process = started(&sources, build);
        let probe = |switches: &[[u8; 32]]| {
            let hops = u8::try_from(switches.len()).expect("few");
            let (packet, l4) = ifa2(8 - hops, switches);
            process.probe(&packet, l4, l4 + 8).expect("an answer")
        };
        let first = metadata(1_000, 70_000, 0x0102);
        assert_eq!(
            probe(&[first]),
            [0; 12],
            "before the host has sent the hop limit"
        );
        assert_eq!(process.mailbox(&8_u32.to_le_bytes(), 0), Ok(Vec::new()));
        let printed = "Mailbox initiated hop limit = 8\n";
        assert_eq!(process.output().printed, printed);
        process.set_time_us(10);
        // The first metadata of a port has no difference yet: not valid. The queue is 0x0102 cells.
        let answer = probe(&[first, metadata(1, 2, 3)]);
        assert_eq!(answer[..2], [1, 2]);
        assert_eq!(
            (answer[2] & 7, answer[3]),
            (1, 2),
            "the second of two switches, port type 2, not valid"
        );
        process.set_time_us(20);
        let answer = probe(&[metadata(5_000, 71_000, 7)]);
        let expect = [0, 7, 0, 2 | 1 << 2, 0, 0, 0x0f, 0xa0, 0, 0, 3, 0xe8];
        assert_eq!(answer, expect, "4000 bytes in 1000 ns, big-endian");
        // Five seconds later the port is a new one.
        process.set_time_us(5_000_021);
        assert_eq!(probe(&[metadata(6_000, 72_000, 7)])[3], 2, "not valid");
    }
}

/// The lines about the rate that a program has printed.
fn printed(
    sources: &Sources,
    build: Build,
    mark_all: f64,
    duration_us: u64,
) -> (Vec<String>, Report) {
    let text = format!(
        "switch.mark_all = {mark_all}\nhost.cnp_interval_us = 1\nguesses.coalesced_max = 1\ntraffic = [{{ kind = 'pairs', pairs = [[1, 0]] }}]"
    );
    let scenario = star(2, duration_us, &text);
    let image = image(sources, build);
    let processes = std::cell::RefCell::new(Vec::new());
    let make = |_| -> Box<dyn pcc_lab::Algorithm> {
        let process = image.start(&Options::default()).expect("started");
        processes.borrow_mut().push(process.clone());
        Box::new(process)
    };
    let mut lab = pcc_lab::Lab::with_algorithm(&scenario, &make).expect("accepted");
    let report = lab.run();
    let processes = processes.into_inner();
    let output = processes[1].output();
    let lines = output
        .printed
        .lines()
        .filter(|line| line.starts_with("PURE_ECN"));
    (lines.map(str::to_owned).collect(), report)
}

#[test]
fn the_exercise_of_the_tutorial_prints_what_its_guide_shows() {
    let test = "the_exercise_of_the_tutorial_prints_what_its_guide_shows";
    for folder in ["doca-2/doca-pcc-ecn", "doca-3/doca-pcc-ecn"] {
        let Some(exercise) = tutorial(test, folder, "rtt_template_exercise.c") else {
            return;
        };
        let Some(solution) = tutorial(test, folder, "rtt_template.c") else {
            return;
        };
        for build in builds(&format!("judges::{test}")) {
            let (lines, _) = printed(&exercise, build, 1.0, 1_600);
            let expect =
                [1, 501, 1_001].map(|number| format!("PURE_ECN cnp={number} rate=1048576"));
            assert_eq!(lines[..3], expect, "the exercise as it is does not react");
            let (lines, report) = printed(&solution, build, 1.0, 1_600);
            // 0.9 with 16 bits of fraction is 58982.
            assert_eq!(
                lines[0],
                format!("PURE_ECN cnp=1 rate={}", times(RATE_MAX, 58_982))
            );
            assert!(
                report.per_flow[0].rate < RATE_MAX / 64,
                "each packet is marked: {:?}",
                report.per_flow[0].rate
            );
        }
    }
}

#[test]
fn fewer_marks_give_the_tutorials_algorithm_more_throughput() {
    let test = "fewer_marks_give_the_tutorials_algorithm_more_throughput";
    let Some(solution) = tutorial(test, "doca-3/doca-pcc-ecn", "rtt_template.c") else {
        return;
    };
    let goodput = |mark_all| {
        printed(&solution, Build::Host, mark_all, 20_000)
            .1
            .goodput_gbps
    };
    let [all, some, few] = [1.0, 0.001, 0.0001].map(goodput);
    assert!(all < 5.0, "100 %: {all} Gb/s, collapsed");
    assert!(
        some > 2.0 * all && few > 1.2 * some,
        "{all}, {some}, {few} Gb/s"
    );
}

#[test]
fn the_path_steering_program_of_the_tutorial_runs_in_both_builds() {
    let test = "the_path_steering_program_of_the_tutorial_runs_in_both_builds";
    let Some(sources) = tutorial(test, "doca-3/pcc-path-steering", "rtt_template.c") else {
        return;
    };
    let mut scenario = two_flows("warmup_us = 1000");
    scenario.duration_us = 2_000;
    let report = in_both_builds(test, &sources, &scenario, &Options::default());
    assert!(report.utilisation > 0.5, "{}", report.utilisation);
}
