//! Tests the command as a user runs it: exit codes, and the output streams.

use std::process::{Command, Output};

fn xgvmi(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xgvmi"))
        .args(arguments)
        // The value of the developer's shell must not affect the test.
        .env_remove("UCX_XGVMI_POOL_MAX")
        .output()
        .expect("it runs")
}

#[track_caller]
fn check(arguments: &[&str], code: i32, part: &str) {
    let output = xgvmi(arguments);
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    if code == 2 || text.is_empty() {
        text.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(text.contains(part), "{arguments:?}: {text}");
}

#[test]
fn exit_codes_are_0_1_and_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().to_string_lossy();
    check(&["--version"], 0, env!("CARGO_PKG_VERSION"));
    check(&["info", "-c"], 0, "UCX_XGVMI_POOL_MAX=4096\n");
    check(&["info", "-f"], 0, "# Maximum number of memory keys");
    check(&["info", "--ucx", "/none"], 0, "cannot open /none");
    check(&["stat", "--dir", &dir], 0, "no process uses the library");
    check(&["stat", "--dir", &dir, "--json"], 0, r#"{"processes":[]}"#);
    check(&["stat", "--dir", &dir, "--pid", "1"], 1, "no process");
    check(&["doctor", "--ucx", "/none"], 1, "FIX  UCX");
    check(
        &["doctor", "--ucx", "/none", "--json"],
        1,
        r#""state":"FIX""#,
    );
    check(&[], 2, "Usage: xgvmi");
    check(&["stat", "--json", "--prom"], 2, "cannot be used with");
    check(&["stat", "--watch", "0"], 2, "invalid value");
    check(&["cure"], 2, "unrecognized subcommand");
}
