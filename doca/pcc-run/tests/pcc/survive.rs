//! Programs that misbehave, interpreted, and programs that meet losses and failed ports: no flow starves for ever, and the
//! trace and the report say why.

use crate::common::{builds, example, image, program, run, star};
use pcc_lab::{Lab, RATE_MAX, RecordKind, Report};
use pcc_run::{Build, Options, Sources};

/// Two processes per host, four flows to one host. None without a compiler for the DPA.
fn survived(test: &str, case: u32, bytes: u64) -> Option<(Lab, Report)> {
    let test = format!("survive::{test}");
    let build = builds(&test)
        .into_iter()
        .find(|build| *build == Build::Dpa)?;
    let sources = Sources {
        macros: vec![format!("CASE={case}")],
        ..program("fault")
    };
    let scenario = star(
        5,
        5_000_000,
        &format!(
            "algorithm.processes = 2\ntraffic = [{{ kind = 'incast', to = 0, flows = 4, bytes = {bytes} }}]"
        ),
    );
    let options = Options {
        instructions_max: 20_000,
        ..Options::default()
    };
    let (lab, report) = run(&scenario, &image(&sources, build), &options);
    assert!(
        report.per_flow.iter().all(|flow| flow.is_done),
        "{:?}",
        report.per_flow
    );
    Some((lab, report))
}

fn count(lab: &Lab, kind: RecordKind) -> usize {
    let records = lab.trace().records().iter();
    records.filter(|record| record.kind == kind).count()
}

/// All eight processes fail, one after another, and the internal algorithm controls the flows then.
#[track_caller]
fn all_fail(survived: Option<(Lab, Report)>, reason: &str) {
    let Some((lab, report)) = survived else {
        return;
    };
    assert_eq!(report.counters.failures, 8);
    assert_eq!(count(&lab, RecordKind::ProcessActive), 4);
    assert_eq!(count(&lab, RecordKind::InternalActive), 4);
    assert_eq!(report.process_failures.len(), 8);
    for failure in &report.process_failures {
        assert!(failure.reason.contains(reason), "{failure:?}");
        assert!(
            failure.reason.starts_with("misbehave")
                || failure.reason.starts_with("doca_pcc_dev_user_algo"),
            "{failure:?}"
        );
    }
}

#[test]
fn a_crash_names_the_function_and_the_address() {
    let test = "a_crash_names_the_function_and_the_address";
    all_fail(
        survived(test, 1, 2_000_000),
        "store to 0x0: no memory is there",
    );
}

#[test]
fn an_endless_loop_ends_with_its_budget() {
    let test = "an_endless_loop_ends_with_its_budget";
    all_fail(
        survived(test, 2, 2_000_000),
        ": more than 20000 instructions",
    );
}

#[test]
fn a_jump_into_nothing_names_the_jump() {
    let test = "a_jump_into_nothing_names_the_jump";
    let Some((_, report)) = survived(test, 3, 2_000_000) else {
        return;
    };
    assert_eq!(report.counters.failures, 8);
    for failure in &report.process_failures {
        assert!(
            failure
                .reason
                .contains("jump to 0xdead0: no memory is there"),
            "{failure:?}"
        );
        assert!(failure.reason.contains(" from "), "{failure:?}");
    }
}

#[test]
fn rate_zero_is_the_lowest_rate() {
    let Some((lab, report)) = survived("rate_zero_is_the_lowest_rate", 4, 400_000) else {
        return;
    };
    assert_eq!(count(&lab, RecordKind::RateZero), 4, "once per flow");
    assert!(count(&lab, RecordKind::StarvedRate) > 0);
    assert!(
        report
            .per_flow
            .iter()
            .all(|flow| flow.rate_zero > 0 && flow.rate == 64)
    );
    assert_eq!(report.counters.failures, 0);
}

#[test]
fn a_rate_above_the_maximum_is_the_maximum() {
    let test = "a_rate_above_the_maximum_is_the_maximum";
    let Some((lab, report)) = survived(test, 5, 2_000_000) else {
        return;
    };
    assert_eq!(
        count(&lab, RecordKind::RateAboveMaximum),
        4,
        "once per flow"
    );
    assert!(
        report
            .per_flow
            .iter()
            .all(|flow| flow.rate_above > 0 && flow.rate == RATE_MAX)
    );
}

#[test]
fn a_program_that_never_asks_for_a_probe_is_noted() {
    let test = "a_program_that_never_asks_for_a_probe_is_noted";
    let Some((lab, report)) = survived(test, 6, 2_000_000) else {
        return;
    };
    assert_eq!(count(&lab, RecordKind::NoProbe), 4, "once per flow");
    assert!(report.per_flow.iter().all(|flow| flow.probes == 0));
}

/// An example on the host; what it meets is in the scenario.
fn met(name: &str, text: &str) -> (Lab, Report) {
    let scenario = star(5, 5_000_000, text);
    let (lab, report) = run(
        &scenario,
        &image(&example(name), Build::Host),
        &Options::default(),
    );
    assert!(
        report.per_flow.iter().all(|flow| flow.is_done),
        "{:?}",
        report.per_flow
    );
    assert_eq!(report.counters.failures, 0);
    (lab, report)
}

const FLOWS: &str = "traffic = [{ kind = 'incast', to = 0, flows = 4, bytes = 4000000 }]";

fn control(report: &Report, kind: &str) -> pcc_lab::report::Control {
    let found = report.control.iter().find(|control| control.kind == kind);
    *found.expect("a type of events")
}

#[test]
fn lost_probes_responses_and_events_are_asked_for_again() {
    let flows = "guesses.probe_timeout_us = 50\ntraffic = [{ kind = 'incast', to = 0, flows = 2, bytes = 10000000 }]";
    let whole = met("swift", flows).1;
    for lost in ["probe", "response", "event"] {
        let text = format!("{flows}\n[[loss]]\nkind = '{lost}'\nprobability = 0.3");
        let (_, report) = met("swift", &text);
        let losses = if lost == "event" {
            control(&report, "rtt").lost
        } else {
            report.drops.injected
        };
        // Without the recovery, each flow would stop at its first loss.
        let answered = control(&report, "rtt").handled;
        assert!(losses > 2, "{lost}: {losses}");
        assert!(
            answered < control(&whole, "rtt").handled,
            "{lost}: {answered}"
        );
    }
}

#[test]
fn lost_cnps_only_delay_the_control() {
    let text =
        format!("host.cnp_interval_us = 10\n{FLOWS}\n[[loss]]\nkind = 'cnp'\nprobability = 0.5");
    let (_, report) = met("dcqcn", &text);
    assert!(
        report.drops.injected > 0 && report.counters.cnps > 0,
        "{:?}",
        report.drops
    );
    assert!(control(&report, "cnp").handled > 0);
}

#[test]
fn a_port_that_slows_down_or_fails_is_survived_and_the_program_sees_its_speed() {
    let text = format!(
        "host.timeout_us = 300\n{FLOWS}
[[fault]]\nat_us = 100\nlink = 1\nchange = 'speed'\ngbps = 25
[[fault]]\nat_us = 200\nlink = 2\nchange = 'down'
[[fault]]\nat_us = 600\nlink = 2\nchange = 'up'"
    );
    let image = image(&example("dcqcn"), Build::Host);
    let scenario = star(5, 5_000_000, &text);
    let processes = std::cell::RefCell::new(Vec::new());
    let make = |_| -> Box<dyn pcc_lab::Algorithm> {
        let process = image.start(&Options::default()).expect("started");
        processes.borrow_mut().push(process.clone());
        Box::new(process)
    };
    let mut lab = Lab::with_algorithm(&scenario, &make).expect("accepted");
    let report = lab.run();
    assert!(
        report.per_flow.iter().all(|flow| flow.is_done),
        "{:?}",
        report.per_flow
    );
    assert!(report.drops.link_down > 0, "{:?}", report.drops);
    let speeds: Vec<u32> = processes
        .borrow()
        .iter()
        .map(pcc_run::Process::port_gbps)
        .collect();
    assert_eq!(speeds, [200, 25, 200, 200, 200]);
}
