//! Counts a process that runs already.
#![cfg(target_arch = "x86_64")]

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time of a step of a test. One that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

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

/// Processor time of a thread in its own code, in ticks of the kernel; `None` after its end.
fn busy_ticks(thread: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // `utime` is the 14th field (proc_pid_stat(5)); the second one is the name in parentheses.
    let behind_name = text.rsplit_once(')')?.1;
    behind_name.split_whitespace().nth(11)?.parse().ok()
}

/// Attaches to a process, counts some steps, and returns the report.
fn count_for_a_while(pid: u32, report: &Path) -> String {
    let _ = std::fs::remove_file(report);
    let mut count = Command::new(env!("CARGO_BIN_EXE_step-count"));
    count.arg("--output").arg(report);
    count.args(["--owner", "shell=/bin/", "--through", "/libc.so"]);
    count.args(["--attach", &pid.to_string()]);
    let mut count = Ended(count.stdout(Stdio::piped()).spawn().expect("step-count"));
    let stdout = count.0.stdout.take().expect("a pipe");
    let line = BufReader::new(stdout).lines().next();
    assert_eq!(line.expect("a line").expect("readable"), "attached");

    let before = waits(count.0.id());
    let limit = Instant::now() + LIMIT;
    while waits(count.0.id()) < before + 100 {
        assert!(Instant::now() < limit, "it does not count");
        std::thread::yield_now();
    }
    let pid = i32::try_from(count.0.id()).expect("a process id");
    // SAFETY: kill(2) takes plain integers; the process is a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    assert!(count.0.wait().expect("an end").success());
    std::fs::read_to_string(report).expect("a report")
}

#[test]
fn a_process_that_saves_and_restores_its_flags_continues_after_its_count() {
    const IS_COUNTED: &str = "XGVMI_TEST_IS_COUNTED";
    if std::env::var_os(IS_COUNTED).is_some() {
        // SAFETY: gettid has no arguments.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        writeln!(std::io::stdout(), "\nthread {thread}").expect("written");
        loop {
            // SAFETY: the stack and the flags are as before.
            unsafe { std::arch::asm!("pushfq", "popfq") };
        }
    }
    let name = "a_process_that_saves_and_restores_its_flags_continues_after_its_count";
    let mut busy = Command::new(std::env::current_exe().expect("a path"));
    busy.args(["--exact", name, "--nocapture"])
        .env(IS_COUNTED, "1");
    let mut busy = Ended(busy.stdout(Stdio::piped()).spawn().expect("a process"));
    let stdout = busy.0.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let thread = lines.find_map(|line| line.strip_prefix("thread ")?.parse().ok());
    let thread: u32 = thread.expect("a thread");
    for round in 0..32 {
        let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join("flags.json");
        count_for_a_while(thread, &report);
        let ticks = || busy_ticks(thread).expect("it continues after its count");
        let (before, limit) = (ticks(), Instant::now() + LIMIT);
        while ticks() == before {
            assert!(Instant::now() < limit, "no progress after count {round}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_running_process_is_counted_until_the_end_is_requested_and_then_continues() {
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join("attach.json");
    let mut busy = Command::new("sh");
    let mut busy = Ended(
        busy.args(["-c", "while :; do :; done"])
            .spawn()
            .expect("a shell"),
    );
    let text = count_for_a_while(busy.0.id(), &report);
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
