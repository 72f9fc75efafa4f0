//! Counts a process that runs already.
#![cfg(target_arch = "x86_64")]

use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Number of times that a process has waited. Each step of the counted process is such a wait of `step-count`.
fn waits(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("a count").trim().parse().expect("a number")
}

#[test]
fn a_running_process_is_counted_until_the_end_is_requested_and_then_continues() {
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join("attach.json");
    let _ = std::fs::remove_file(&report);
    let mut busy = Command::new("sh");
    let mut busy = Ended(
        busy.args(["-c", "while :; do :; done"])
            .spawn()
            .expect("a shell"),
    );
    let mut count = Command::new(env!("CARGO_BIN_EXE_step-count"));
    count.arg("--output").arg(&report);
    count.args(["--owner", "shell=/bin/", "--through", "/libc.so"]);
    count.args(["--attach", &busy.0.id().to_string()]);
    let mut count = Ended(count.stdout(Stdio::piped()).spawn().expect("step-count"));
    let stdout = count.0.stdout.take().expect("a pipe");
    let line = BufReader::new(stdout).lines().next();
    assert_eq!(line.expect("a line").expect("readable"), "attached");

    let before = waits(count.0.id());
    let limit = Instant::now() + Duration::from_secs(60);
    while waits(count.0.id()) < before + 100 {
        assert!(Instant::now() < limit, "it does not count");
        std::thread::yield_now();
    }
    let pid = i32::try_from(count.0.id()).expect("a process id");
    // SAFETY: kill(2) takes plain integers; the process is a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    assert!(count.0.wait().expect("an end").success());

    let text = std::fs::read_to_string(&report).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let sections = report["rounds"][0]["sections"]
        .as_array()
        .expect("sections");
    assert_eq!(sections.len(), 1);
    assert_eq!(sections[0]["label"], 1);
    let owners = sections[0]["owners"].as_object().expect("owners");
    let counts = owners
        .values()
        .map(|counts| counts["instructions"].as_u64());
    assert!(counts.flatten().sum::<u64>() > 0, "{text}");
    assert!(busy.0.try_wait().expect("a status").is_none());
}
