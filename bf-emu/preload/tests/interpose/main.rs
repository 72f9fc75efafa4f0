//! Tests of the preload library from the view of a program. Each case runs in its own process,
//! which loads the library before the C library. This program is both the runner and, with the name
//! of a case as argument, that process.

mod cases;
mod checks;
mod interfaces;
mod races;
mod variants;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use bf_emu::engine;
use bf_emu::model::profile::Profile;
use bf_emu::model::topology::Topology;
use bf_emu::view::state::{ENV_AS, ENV_STATE, StateDir};

const ENV_CASE: &str = "INTERPOSE_CASE";
const ENV_LIBRARY: &str = "XGVMI_PRELOAD_BUILT";
const VIEW: &str = "node0.host,node0.dpu";

fn main() -> ExitCode {
    if let Some(name) = std::env::var_os(ENV_CASE) {
        let case = cases::ALL.iter().find(|case| *case.name == *name);
        return match case.map(|case| (case.act)()) {
            Some(Ok(())) => ExitCode::SUCCESS,
            Some(Err(fault)) => {
                eprintln!("{fault}");
                ExitCode::FAILURE
            }
            None => ExitCode::FAILURE,
        };
    }
    // Arguments of the usual test harness: a word selects the cases whose names contain it.
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let selected = |name: &str| wanted.is_empty() || wanted.iter().any(|word| name.contains(word));
    let state = tempfile::tempdir().expect("a directory for the state");
    let state = state.path().join("state");
    make_state(&state);
    let library = build_library();
    let mut failed = 0;
    for case in cases::ALL.iter().filter(|case| selected(case.name)) {
        let passed = run(case, &state, &library);
        eprintln!(
            "test {} ... {}",
            case.name,
            if passed { "ok" } else { "FAILED" }
        );
        failed += usize::from(!passed);
    }
    eprintln!("test result: {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn make_state(path: &Path) {
    let topology = Topology::with_nodes(1).expect("one node is allowed");
    let profile = Profile::load("none").expect("built in");
    let state = StateDir::create(path, &topology, &profile).expect("a new state");
    engine::create(path, &topology, &profile).expect("a new device");
    let lock = state.lock().expect("the lock of a new state");
    state.make_view(VIEW, &lock).expect("a new view");
}

fn run(case: &cases::Case, state: &Path, library: &Path) -> bool {
    let program = std::env::current_exe().expect("this program's own file");
    let mut command = Command::new(program);
    command.env(ENV_CASE, case.name).env("LD_PRELOAD", library);
    if case.with_device {
        command.env(ENV_STATE, state).env(ENV_AS, VIEW);
    } else {
        command.env_remove(ENV_STATE).env_remove(ENV_AS);
    }
    let status = command.status().expect("starting a case");
    if status.code() != case.code {
        eprintln!("{}: {status}", case.name);
    }
    status.code() == case.code
}

/// Builds the library in the profile of this test. Cargo does not build it, because a test cannot
/// link a C library.
fn build_library() -> PathBuf {
    // `cargo xtask test` has built it.
    if let Some(library) = std::env::var_os(ENV_LIBRARY) {
        return library.into();
    }
    let program = std::env::current_exe().expect("this program's own file");
    // The path is <target>/<profile>/deps/<test>.
    let profile = program.ancestors().nth(2).expect("a directory of cargo's");
    let target = profile.parent().expect("a directory of cargo's");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME")])
        .args([
            "--manifest-path",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ])
        .arg("--target-dir")
        .arg(target);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("starting cargo");
    assert!(status.success(), "building the preload library: {status}");
    profile.join("libbfemu_preload.so")
}
