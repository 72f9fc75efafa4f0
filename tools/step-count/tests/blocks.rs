//! Counts of blocks equal those of single steps, and the known numbers of a program.
#![cfg(target_arch = "x86_64")]

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program whose counts are known.
const KNOWN: &str = env!("CARGO_BIN_EXE_known");

fn count(report: &Path, by: &[&str]) -> Command {
    let _ = std::fs::remove_file(report);
    let mut command = Command::new(env!("CARGO_BIN_EXE_step-count"));
    command.arg("--output").arg(report).args(by);
    command.args(["--owner", "known=/known", "--through", "/libc.so"]);
    command
}

fn read(report: &Path) -> Value {
    let text = std::fs::read_to_string(report).expect("a report");
    serde_json::from_str(&text).expect("JSON")
}

/// Counts of the program between marks.
fn marked(by: &[&str], rounds: u64) -> Value {
    let name = format!("marked-{}-{rounds}.json", by.concat());
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = count(&report, by);
    command
        .arg("--")
        .arg(KNOWN)
        .args(["marks".to_owned(), rounds.to_string()]);
    let status = command.status().expect("step-count");
    assert!(status.success(), "{status}");
    read(&report)
}

/// Counts of the program while it is attached.
fn attached(by: &[&str], rounds: u64) -> u64 {
    let name = format!("attached-{}-{rounds}.json", by.concat());
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut program = Command::new(KNOWN);
    program.args(["attached".to_owned(), rounds.to_string()]);
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Ended(program.spawn().expect("the program"));
    let mut output = BufReader::new(program.0.stdout.take().expect("a pipe"));
    let mut ready = String::new();
    output
        .read_line(&mut ready)
        .expect("the program says a line");
    let mut command = count(&report, by);
    command.args(["--attach", &program.0.id().to_string()]);
    let mut count = Ended(command.stdout(Stdio::piped()).spawn().expect("step-count"));
    let stdout = count.0.stdout.take().expect("a pipe");
    let line = BufReader::new(stdout).lines().next();
    assert_eq!(line.expect("a line").expect("readable"), "attached");

    let mut stdin = program.0.stdin.take().expect("a pipe");
    stdin.write_all(b"go\n").expect("the program reads");
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).expect("the program ends it");
    let pid = i32::try_from(count.0.id()).expect("a process id");
    // SAFETY: kill(2) takes plain integers; the process is a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    assert!(count.0.wait().expect("an end").success());
    stdin.write_all(b"end\n").expect("the program continues");
    assert!(program.0.wait().expect("an end").success());
    let report = read(&report);
    assert_eq!(report["rounds"][0]["sections"][0]["label"], 1);
    let owners = &report["rounds"][0]["sections"][0]["owners"];
    owners["known"]["instructions"].as_u64().expect("a count")
}

#[test]
fn blocks_and_steps_count_the_known_instructions() {
    const ROUNDS: u64 = 300;
    let (steps, blocks) = (marked(&[], ROUNDS), marked(&["--blocks"], ROUNDS));
    let section = |report: &Value, round: usize| report["rounds"][round]["sections"][0].clone();
    for report in [&steps, &blocks] {
        let known = &section(report, 0)["owners"]["known"];
        // See the program: half of the rounds are odd.
        assert_eq!(known["instructions"], 2 + 31 * ROUNDS + 3, "{known}");
        assert_eq!(known["system_calls"], ROUNDS);
        assert_eq!(section(report, 1)["owners"]["known"]["faults"], 7);
    }
    // Blocks do not tell locked instructions.
    let without_locked = |report: &Value| {
        let mut section = section(report, 1);
        let owners = section["owners"].as_object_mut().into_iter().flatten();
        for (_owner, counts) in owners {
            counts["locked"] = Value::Null;
        }
        section
    };
    assert_eq!(without_locked(&steps), without_locked(&blocks));
    assert!(blocks["rounds"][0]["lines"]["known"].is_null());
}

#[test]
fn blocks_and_steps_count_each_instruction_alike() {
    let addresses = |by: &[&str]| {
        let report = marked(&[by, &["--addresses", "known"]].concat(), 300);
        report["addresses"].clone()
    };
    let steps = addresses(&[]);
    assert!(
        steps.as_object().is_some_and(|counts| counts.len() > 20),
        "{steps}"
    );
    assert_eq!(steps, addresses(&["--blocks"]));
}

#[test]
fn a_running_process_is_counted_by_blocks() {
    const ROUNDS: u64 = 5000;
    let of_round = |by: &[&str]| {
        let (more, fewer) = (attached(by, ROUNDS), attached(by, 2));
        (more - fewer) as f64 / (ROUNDS - 2) as f64
    };
    for by in [&["--blocks"][..], &[]] {
        let count = of_round(by);
        // The start and the end of the count differ by some hundred instructions.
        assert!((count - 31.0).abs() < 0.2, "{by:?}: {count}");
    }
}
