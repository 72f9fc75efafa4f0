//! The program: scenario in, report and trace out.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SCENARIO: &str = "duration_us = 2000
sample_us = 100
[topology]
shape = 'star'
hosts = 4
gbps = 200
delay_ns = 1000
[algorithm]
name = 'dcqcn'
[[traffic]]
kind = 'incast'
to = 0
flows = 3
bytes = 3000000
";

/// A folder of this test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn program(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pcc-lab"));
    command.args(arguments).output().expect("started")
}

#[test]
fn a_scenario_gives_a_report_and_a_trace_the_same_each_time() {
    let folder = Folder::new("pcc-lab-report");
    let scenario = folder.write("scenario.toml", SCENARIO);
    let (report, trace) = (folder.write("report.json", ""), folder.write("trace", ""));
    let mut results = Vec::new();
    for _ in 0..2 {
        let output = program(&[&scenario, "--report", &report, "--trace", &trace]);
        assert!(output.status.success(), "{output:?}");
        let read = |path: &str| std::fs::read_to_string(path).expect("written");
        results.push((read(&report), read(&trace)));
    }
    assert_eq!(results[0], results[1]);
    let report: Value = serde_json::from_str(&results[0].0).expect("JSON");
    assert_eq!(report["unaccounted"], 0);
    assert_eq!(report["flows"], 3);
    assert!(
        report["samples"]
            .as_array()
            .is_some_and(|samples| samples.len() > 3),
        "{report}"
    );
    let finished = results[0]
        .1
        .lines()
        .filter(|line| line.contains(" finish "))
        .count();
    assert_eq!(finished, 3, "{}", results[0].1);
}

#[test]
fn a_trace_of_flows_is_replayed() {
    let folder = Folder::new("pcc-lab-replay");
    let scenario = folder.write("scenario.toml", SCENARIO);
    let rows = folder.write(
        "flows",
        "# ns from to bytes\n0 1 2 5000\n100000, 3, 2, 7000\n",
    );
    let output = program(&[
        &scenario,
        "--replay",
        &rows,
        "--algorithm",
        "swift",
        "--seed",
        "9",
    ]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["algorithm"], "swift");
    let replayed = &report["per_flow"].as_array().expect("flows")[3..];
    let bytes: Vec<u64> = replayed
        .iter()
        .filter_map(|flow| flow["delivered_bytes"].as_u64())
        .collect();
    assert_eq!(bytes, [5_000, 7_000]);
}

#[test]
fn the_recorded_traffic_of_an_alltoallv_is_replayed_faster() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let path = |name: &str| folder.join(name).display().to_string();
    let rows = std::fs::read_to_string(path("alltoallv.trace")).expect("the trace");
    let rows = pcc_lab::scenario::parse_rows(&rows).expect("rows");
    let blocks = rows.iter().filter(|row| row.3 == 65_536).count();
    assert_eq!(
        blocks,
        3 * 16 * 12,
        "three calls of 16 ranks, 12 of other nodes"
    );
    let replay = |faster: &str| -> Value {
        let output = program(&[
            &path("alltoallv.toml"),
            "--replay",
            &path("alltoallv.trace"),
            "--faster",
            faster,
        ]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let report = replay("20000");
    let flows = report["per_flow"].as_array().expect("flows");
    // Sixteen flows of the scenario come first.
    let recorded = &flows[16..];
    assert_eq!(recorded.len(), rows.len());
    for (flow, row) in recorded.iter().zip(&rows) {
        assert_eq!(flow["delivered_bytes"].as_u64(), Some(row.3), "{row:?}");
    }
    // At a higher speed the ports are the limit, and reads wait for each other.
    let slowdown = |report: &Value| report["slowdown"]["p95"].as_f64().expect("a number");
    assert!(slowdown(&report) > 2.0 * slowdown(&replay("1000")));
}

#[test]
fn a_refusal_is_one_line_with_the_file() {
    let folder = Folder::new("pcc-lab-refusal");
    let scenario = folder.write("scenario.toml", &SCENARIO.replace("gbps = 200", "gbps = 0"));
    let output = program(&[&scenario]);
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.ends_with("scenario.toml: link 0, h0 to s0, has 0 Gb/s; give it a speed\n"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn the_guesses_are_listed_with_their_defaults() {
    let output = program(&["--guesses"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("cnp_delay_us = 0\n"), "{text}");
    let guesses = text.lines().filter(|line| line.contains("Guess: ")).count();
    assert_eq!(guesses, pcc_lab::scenario::GUESSES.len());
}

#[test]
fn the_scenarios_of_the_source_tree_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut number = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file");
        let mut scenario = crate::scenario(&text);
        // A part of the run is enough.
        scenario.duration_us = scenario.duration_us.min(5_000);
        scenario.warmup_us = scenario.warmup_us.min(2_500);
        let report = crate::run(&mut crate::lab(&scenario));
        assert!(report.counters.accepted > 1_000, "{}", path.display());
        number += 1;
    }
    assert_eq!(number, 4);
}
