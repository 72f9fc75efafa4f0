//! rdma-core's own suite from Debian's package: unpacked and run by `tests/suites/rdma_core.py`, with every test by
//! name.

use super::device::{SERVER, Testbed};
use super::{Case, Outcome, World};
use anyhow::{Context, Result, bail, ensure};
use dev_setup as setup;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::link::Link;
use testbed::process::{self, Done};
use testbed::workspace;

/// The whole suite takes half a minute on two idle cores.
const LIMIT: Duration = Duration::from_secs(400);
/// One test takes at most a second; a hanging test is abandoned after this number of seconds.
const TEST_LIMIT_S: &str = "30";
/// Maximum number of runs of a suite that ends early: each early end means one more test that hung or crashed.
const RUNS_MAX: usize = 20;
/// Debian's interpreter: the modules of Debian's package work with no other.
const PYTHON: &str = "/usr/bin/python3";
/// Prefix of all test names. It carries no information, so reports omit it.
const PREFIX: &str = "tests.";

/// The device under test.
struct Device {
    /// Options of `bf-emu run`.
    options: &'static [&'static str],
    /// Port for the suite.
    port: &'static str,
    /// GID for the suite; without it the suite uses the first GID.
    gid: Option<&'static str>,
    /// Prefix of its tests' names.
    prefix: &'static str,
}

const ONE_PORT: Device = Device {
    options: &[],
    port: "1",
    gid: None,
    prefix: "",
};
const SECOND_PORT: Device = Device {
    options: &["--ports", "2"],
    port: "2",
    gid: None,
    prefix: "port 2: ",
};
/// Ethernet with an IPv4 address in RoCE v2. The first GID is link-local, in RoCE v1.
const ROCE_V2: Device = Device {
    options: &[],
    port: "1",
    gid: Some("3"),
    prefix: "gid 3: ",
};

/// Firmware that wants a command before a queue pair copies memory: libmlx5 sends it.
const WITH_GGA: Device = Device {
    options: &["--profile", "gga"],
    port: "1",
    gid: None,
    prefix: "gga: ",
};
/// The suite's tests of such copies.
const COPIES: &str = "dma_memcpy";

/// Sample for `cargo xtask test` over Ethernet: tests that are skipped on InfiniBand.
pub(super) const ROCE_SAMPLE: &[&str] = &["AHTest.test_create_ah_roce", "test_rc_modify_udp_sport"];

/// A test that reads the MAC of its port from the network device. The emulated port has the machine's network device
/// but a different MAC, so the test's queue pairs send to an address without a receiver.
const WITHOUT_ITS_DEVICE: &str =
    "test_mlx5_devx.Mlx5DevxRcTrafficTest.test_devx_rc_qp_send_imm_traffic";

/// The whole suite, and its passing tests once more: on a second port, and over Ethernet in the other version of RoCE. The
/// tests of copies of memory also run on firmware that wants a command before.
pub(super) fn run(world: &World) -> Result<Vec<Case>> {
    let suite = Unpacked::new(world)?;
    let all = suite.names(world)?;
    let (mut cases, mut log) = suite.run(world, &ONE_PORT, all)?;
    if world.link == Link::Ethernet {
        let fails = |case: &&mut Case| {
            let failed =
                matches!(&case.outcome, Outcome::Failed(what) if what.contains("requester error"));
            failed && case.name == WITHOUT_ITS_DEVICE
        };
        for case in cases.iter_mut().filter(fails) {
            case.outcome = Outcome::Skipped("no MAC".to_owned());
        }
    }
    let passed = cases
        .iter()
        .filter(|case| matches!(case.outcome, Outcome::Passed));
    let passed: Vec<String> = passed
        .map(|case| format!("{PREFIX}{}", case.name))
        .collect();
    let is_copy = |name: &&String| name.contains(COPIES);
    let copies = passed.iter().filter(is_copy).cloned().collect();
    let other = match world.link {
        Link::Ethernet => &ROCE_V2,
        Link::Infiniband | Link::InfinibandGrh => &SECOND_PORT,
    };
    for (device, names) in [(other, passed), (&WITH_GGA, copies)] {
        let (again, more) = suite.run(world, device, names)?;
        cases.extend(again.into_iter().map(|case| Case {
            name: format!("{}{}", device.prefix, case.name),
            ..case
        }));
        log.push_str(&more);
    }
    fs::write(world.dir.join("pyverbs.log"), log)?;
    Ok(cases)
}

/// The suite in the build directory, and the bindings in the cache.
struct Unpacked {
    dir: PathBuf,
    bindings: PathBuf,
    driver: PathBuf,
}

impl Unpacked {
    fn new(world: &World) -> Result<Self> {
        let root = setup::pyverbs()?;
        let dir = world.dir.join("pyverbs");
        let _ = fs::remove_dir_all(&dir);
        let tests = dir.join("tests");
        fs::create_dir_all(&tests)?;
        copy_tests(&root.join("usr/share/doc/rdma-core/tests"), &tests)?;
        ensure!(
            Path::new(PYTHON).exists(),
            "{PYTHON} is absent; Debian's package python3 brings it"
        );
        Ok(Self {
            dir,
            bindings: root.join("usr/lib/python3/dist-packages"),
            driver: workspace::root().join("tests/suites/rdma_core.py"),
        })
    }

    /// The selected tests.
    fn names(&self, world: &World) -> Result<Vec<String>> {
        let listed = self.driver(&Testbed::new(world)?, &ONE_PORT, &[])?;
        let lines = listed.output.lines();
        let all: Vec<&str> = lines
            .filter_map(|line| line.strip_prefix("NAME "))
            .collect();
        ensure!(
            listed.ok() && !all.is_empty(),
            "the suite does not load: {}\n{}",
            listed.verdict(),
            listed.output
        );
        let wanted = |name: &&str| world.wants(name.strip_prefix(PREFIX).unwrap_or(name));
        let names = all.into_iter().filter(wanted);
        Ok(names.map(str::to_owned).collect())
    }

    /// Runs all tests, also after crashes or hangs. Returns them and the output.
    fn run(
        &self,
        world: &World,
        device: &Device,
        mut left: Vec<String>,
    ) -> Result<(Vec<Case>, String)> {
        let testbed = Testbed::new(world)?;
        let mut cases = Vec::new();
        let mut log = String::new();
        for _ in 0..RUNS_MAX {
            if left.is_empty() {
                break;
            }
            let done = self.driver(&testbed, device, &left)?;
            log.push_str(&done.output);
            let (told, broken) = parse(&done.output)?;
            let mut over: BTreeSet<String> = told.iter().map(|case| case.name.clone()).collect();
            cases.extend(told);
            if let Some(name) = broken {
                let detail = format!("did not end: {}\n{}", done.verdict(), tail(&done.output));
                over.insert(name.clone());
                cases.push(Case {
                    name,
                    outcome: Outcome::Failed(detail),
                });
            } else {
                ensure!(
                    done.ok() && !over.is_empty(),
                    "{}\n{}",
                    done.verdict(),
                    tail(&done.output)
                );
            }
            left.retain(|name| !over.contains(name.strip_prefix(PREFIX).unwrap_or(name)));
        }
        ensure!(
            left.is_empty(),
            "{} tests were not run, as {RUNS_MAX} others hung",
            left.len()
        );
        Ok((cases, log))
    }

    /// Runs the named tests once, or lists all.
    fn driver(&self, testbed: &Testbed<'_>, device: &Device, names: &[String]) -> Result<Done> {
        let list = self.dir.join("names");
        fs::write(&list, names.join("\n"))?;
        let mut command = testbed.command_with(device.options, SERVER, PYTHON);
        command
            .arg(&self.driver)
            .arg(&self.dir)
            .arg(TEST_LIMIT_S)
            .arg(&list)
            .args(["--dev", "mlx5_0", "--port", device.port])
            .args(device.gid.iter().flat_map(|gid| ["--gid", gid]))
            .env("PYTHONPATH", &self.bindings)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        process::run(&mut command, LIMIT)
    }
}

/// Debian compresses the longer test files like documentation.
fn copy_tests(from: &Path, to: &Path) -> Result<()> {
    let entries = fs::read_dir(from).with_context(|| format!("no suite in {}", from.display()))?;
    let mut compressed = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().context("a file without a name")?;
        let target = to.join(name);
        fs::copy(&path, &target)?;
        if target.extension().is_some_and(|ending| ending == "gz") {
            compressed.push(target);
        }
    }
    let mut unzip = Command::new("gzip");
    process::stdout(unzip.arg("-d").args(compressed), Duration::from_secs(30)).map(drop)
}

/// The tests that the driver reported, and the last started test without a result.
fn parse(output: &str) -> Result<(Vec<Case>, Option<String>)> {
    let short = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    let mut cases: Vec<Case> = Vec::new();
    let mut begun = None;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("START ") {
            begun = Some(short(name));
        }
        let Some(json) = line.strip_prefix("RESULT ") else {
            continue;
        };
        let told: serde_json::Value = serde_json::from_str(json).context("a line of the driver")?;
        let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
        let name = short(&text("name"));
        if begun.as_ref() == Some(&name) {
            begun = None;
        }
        let outcome = match text("outcome").as_str() {
            "passed" => Outcome::Passed,
            "skipped" => Outcome::Skipped(text("reason")),
            "failed" => Outcome::Failed(text("reason")),
            other => bail!("the driver told of an outcome '{other}'"),
        };
        // A test with a failing clean-up is reported twice: the failure counts.
        match cases.iter_mut().find(|case| case.name == name) {
            Some(case) if matches!(outcome, Outcome::Failed(_)) => case.outcome = outcome,
            Some(_) => {}
            None => cases.push(Case { name, outcome }),
        }
    }
    Ok((cases, begun))
}

/// The last part of the output.
fn tail(output: &str) -> String {
    const LINES: usize = 30;
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_understood() {
        let output = "noise\nSTART tests.test_a.A.one\n\
                      RESULT {\"name\": \"tests.test_a.A.one\", \"outcome\": \"passed\", \"reason\": \"\"}\n\
                      RESULT {\"name\": \"tests.test_a.A.one\", \"outcome\": \"failed\", \"reason\": \"late\"}\n\
                      RESULT {\"name\": \"tests.test_a.A.two\", \"outcome\": \"skipped\", \"reason\": \"no\"}\n\
                      START tests.test_a.A.three\nFatal Python error\n";
        let (cases, broken) = parse(output).unwrap();
        let case = |name: &str, outcome: Outcome| Case {
            name: name.to_owned(),
            outcome,
        };
        let expect = [
            case("test_a.A.one", Outcome::Failed("late".to_owned())),
            case("test_a.A.two", Outcome::Skipped("no".to_owned())),
        ];
        assert_eq!(cases, expect);
        assert_eq!(broken.as_deref(), Some("test_a.A.three"));
        assert!(parse("RESULT {}\n").is_err());
    }
}
