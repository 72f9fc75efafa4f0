//! Programs, builds and labs of the tests.

use pcc_lab::{Algorithm, Lab, RecordKind, Report, Scenario};
use pcc_run::{Build, Image, Options, Process, Sources};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Prints the name of a skipped test and the reason.
#[expect(
    clippy::print_stdout,
    reason = "the test run counts the skips by their lines"
)]
pub(crate) fn skip(test: &str, reason: &str) {
    println!("SKIP {test}: {reason}");
}

/// The builds that this machine has compilers for: always that for the host.
pub(crate) fn builds(test: &str) -> Vec<Build> {
    let is_there = |name| {
        let mut command = Command::new(name);
        command.arg("--version").stdout(Stdio::null());
        command.stderr(Stdio::null()).status().is_ok()
    };
    if is_there("clang-19") || is_there("riscv64-unknown-elf-gcc") {
        return vec![Build::Host, Build::Dpa];
    }
    skip(
        test,
        "no compiler for RISC-V; cargo xtask doctor names the packages",
    );
    vec![Build::Host]
}

/// A program of the tests.
pub(crate) fn program(name: &str) -> Sources {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    Sources::new(name, &[folder.join(format!("{name}.c"))])
}

/// An example of the device library.
pub(crate) fn example(name: &str) -> Sources {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcc-dev/examples");
    Sources::new(name, &[folder.join(format!("{name}.c"))])
}

/// The image of a program. Tests that need the same one share it.
pub(crate) fn image(sources: &Sources, build: Build) -> Image {
    static BUILT: Mutex<BTreeMap<String, Image>> = Mutex::new(BTreeMap::new());
    let key = format!("{build:?} {sources:?}");
    let built = || BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(image) = built().get(&key) {
        return image.clone();
    }
    let image = Image::build(sources, build).unwrap_or_else(|error| panic!("{build:?}: {error}"));
    built().insert(key, image.clone());
    image
}

pub(crate) fn start(sources: &Sources, build: Build) -> Process {
    let process = image(sources, build).start(&Options::default());
    process.unwrap_or_else(|refused| panic!("{build:?}: {refused}"))
}

/// A star with links of 200 Gb/s and 1000 ns; `rest` is the rest of the scenario. Counted instructions take no time.
pub(crate) fn star(hosts: u32, duration_us: u64, rest: &str) -> Scenario {
    let text = format!(
        "duration_us = {duration_us}\nguesses.handler_mips = 0\nlimits.trace = 1000000
topology = {{ shape = 'star', hosts = {hosts}, gbps = 200, delay_ns = 1000 }}\n{rest}"
    );
    Scenario::from_toml(&text).unwrap_or_else(|refusal| panic!("{refusal}\n{text}"))
}

/// Runs a scenario with a process for each host, and checks what holds for every run.
pub(crate) fn run(scenario: &Scenario, image: &Image, options: &Options) -> (Lab, Report) {
    let make = |_| -> Box<dyn Algorithm> { Box::new(image.start(options).expect("started")) };
    let mut lab = Lab::with_algorithm(scenario, &make).expect("accepted");
    let report = lab.run();
    assert_eq!(report.unaccounted, 0, "{:?}", report.packets);
    (lab, report)
}

/// Time, flow and rate of each change of a rate.
pub(crate) fn rates(lab: &Lab) -> Vec<(u64, u32, u64)> {
    assert_eq!(lab.trace().omitted(), 0, "raise limits.trace");
    let records = lab.trace().records().iter();
    let changes = records.filter(|record| record.kind == RecordKind::Rate);
    changes
        .map(|record| (record.time_ps, record.subject, record.value))
        .collect()
}

/// The directory that a variable names.
pub(crate) fn checkout(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty())?;
    Some(PathBuf::from(path))
}
