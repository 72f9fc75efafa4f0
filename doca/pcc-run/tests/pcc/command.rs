//! The command `pcc-run`.

use crate::common::builds;
use pcc_run::Build;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn command(scenario: &Path, source: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pcc-run"));
    command.arg(scenario).arg(source).args(more);
    command.output().expect("started")
}

fn scenario(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("scenario.toml");
    let text = "duration_us = 500
topology = { shape = 'star', hosts = 3, gbps = 200, delay_ns = 1000 }
traffic = [{ kind = 'incast', to = 0, flows = 2 }]";
    std::fs::write(&path, text).expect("written");
    path
}

#[test]
fn the_command_reports_rates_instructions_and_what_the_device_sustains() {
    let folder = tempfile::tempdir().expect("a folder");
    let (scenario, constant) = (scenario(&folder), source("../pcc-dev/examples/constant.c"));
    for build in
        builds("command::the_command_reports_rates_instructions_and_what_the_device_sustains")
    {
        let name = if build == Build::Dpa { "dpa" } else { "host" };
        let output = command(&scenario, &constant, &["--build", name, "--set", "0=65536"]);
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            (&report["algorithm"], &report["per_flow"][0]["rate"]),
            (&"constant".into(), &65_536.into())
        );
        assert_eq!(
            report["instructions_per_event"].is_number(),
            build == Build::Dpa
        );
        let told = String::from_utf8_lossy(&output.stderr);
        let sustains = "48 threads with 1800 million per second each sustain";
        assert_eq!(told.contains(sustains), build == Build::Dpa, "{told}");
    }
}

/// The first command of the guide, and the example that needs what switches write.
#[test]
fn the_scenario_of_the_guide_is_filled_by_each_example() {
    let incast = source("../pcc-lab/scenarios/incast.toml");
    for (name, more) in [
        ("swift", ["--set", "0=30000"]),
        ("hpcc", ["--probe", "ifa2"]),
    ] {
        let program = source(&format!("../pcc-dev/examples/{name}.c"));
        let output = command(
            &incast,
            &program,
            &[&["--build", "host"], &more[..]].concat(),
        );
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let utilisation = report["utilisation"].as_f64().expect("a number");
        assert!(utilisation > 0.9, "{name}: {utilisation}");
    }
}

#[test]
fn what_is_wrong_with_a_program_is_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let scenario = scenario(&folder);
    let fault = |source: &Path, more: &[&str]| {
        let mut all = vec!["--build", "host"];
        all.extend(more);
        let output = command(&scenario, source, &all);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let limits = source("tests/programs/limits.c");
    assert_eq!(
        fault(&limits, &["-D", "LACKS=2"]),
        "error: limits: the program has no doca_pcc_dev_user_algo()\n"
    );
    let constant = source("../pcc-dev/examples/constant.c");
    assert_eq!(
        fault(&constant, &["--set", "0=0"]),
        "error: constant: parameter 0: 0 is not between 1 and 1048576\n"
    );
    let told = fault(&source("tests/programs/nothing.c"), &[]);
    assert!(
        told.starts_with("error: nothing does not compile:") && told.contains("nothing.c"),
        "{told}"
    );
}
