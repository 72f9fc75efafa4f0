//! `cargo xtask suites`: runs unmodified third-party test programs over the emulated device.
//!
//! ```
//! # fn main() -> anyhow::Result<()> {
//! stock_suites::run(vec!["--list".to_owned()])?;
//! # Ok(())
//! # }
//! ```
#![expect(
    clippy::print_stdout,
    reason = "the command answers on standard output"
)]

pub mod aarch64;
pub mod adversary;
pub mod device;
mod iser;
mod join;
mod judges;
mod libfabric;
pub mod matrix;
mod mpi;
mod mutants;
mod nixl;
mod osu;
pub mod programs;
mod pyverbs;
mod qemu;
mod rdmacm;
pub mod rv64;
mod search;
mod skips;
mod slurm;
mod stock;
mod storage;
mod transport;
pub mod ucc;
mod ucp;
mod ucx;
mod verbs;

use anyhow::{Context, Result, bail, ensure};
use dev_setup::{self as setup, Env};
use serde_json::{Value, json};
use skips::Accepted;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use testbed::link::Link;
use testbed::workspace;

const HELP: &str = "\
Usage: cargo xtask suites [--list] [NAME...] [-- PART...]

Runs third-party test programs on the emulated device and writes target/suites/report.json. Runs all or the named ones:
  pyverbs   rdma-core 44's own suite, from Debian's python3-pyverbs
  pingpong  ibv_{rc,uc,ud,srq}_pingpong, one byte of each received page compared
  perftest  ib_{write,read,send,atomic}_{lat,bw} in their variants
  rdmacm    rping, ucmatose, cmtime, rstream and the other programs of librdmacm; perftest with the connection manager
  libfabric fi_pingpong of stock libfabric over its verbs provider, each byte compared; programs of fabtests in
            $XGVMI_FABTESTS
  qperf     Debian's qperf over RC, UC and UD, with verified atomics
  fio       fio's own engine for RDMA: write, read, send
  dapl      dapltest of Debian's dapl2-utils, each byte compared
  iser      Debian's tgt with libiscsi's tests and QEMU's storage daemon over iSER, every byte of an image compared
  qemu      a machine of Debian's QEMU migrates by RDMA while it runs, each byte of its memory compared
  nixl      NIXL's wheel over its own UCX: WRITE and READ, each byte compared
  ucp       all UCP operations, each byte compared, on five stock UCX versions over each transport
  ucx       ucx_perftest of stock UCX over each transport, and with daemons on the DPUs
  mpi       stock Open MPI with four ranks on two nodes, over each transport, each byte compared
  osu       osu_alltoallv and osu_ialltoallv under the wheel's Open MPI and Debian's Open MPI and MPICH
  ucc       stock UCC of Debian's testing suite, alone and under its Open MPI and MPICH, with collectives on the DPUs:
            with the service processes, without them, and with one of them killed
  mpi-legal-openmpi
            legal MPI programs that collectives tend to break: late ranks, persistent requests in other orders, memory that
            cannot be registered, thousands of calls at once, communicators that end; with collectives on the DPUs
  mpi-legal-mpich
            the same programs under MPICH
  mpi-programs
            hpcc, the tests of MUMPS and of mpi4py, Fourier transforms by FFTW under Open MPI and the Intel MPI Benchmarks
            under MPICH, each with checks, and with collectives on the DPUs; XGVMI_IMB=DIR names other built benchmarks,
            XGVMI_OSU=DIR built ones of OSU (7.2) for Open MPI
  slurm     Debian's Slurm with two nodes here: MPICH by PMI-2 and Open MPI, collectives on the DPUs with service processes of a prolog
  storage   stock block clients on xgvmi-blk: nbdinfo, nbdsh, nbdcopy, qemu-img, qemu-io, fio, e2fsck; liblz4 and ISA-L
            on its files. The parts 'DPU' have the volume behind a service on a DPU. The part 'soak' writes to
            such a volume for an hour (XGVMI_SOAK_S: fewer seconds), while export, service and targets are killed and lose
            their power, and only if it is named. The parts 'kernel' have it as a device of ublk or nbd; XGVMI_XFSTESTS=DIR and XGVMI_BLKTESTS=DIR name
            built ones
  storage-tls
            libnbd, nbdcopy, qemu-img, qemu-io and Python's ssl with certificates on an export with TLS, and clients that it
            must refuse
  storage-vhost
            a Linux guest of Debian's QEMU, without KVM, on the vhost-user-blk device of an export, which is killed meanwhile;
            an export in the guest whose targets are on dm-flakey and dm-log-writes disks that lose their power; a guest that
            boots from the volume; fsx on ext4 on the device, and on a device of the guest's kernel's NBD client.
            XGVMI_XFSTESTS=DIR names a built fsstress, which then exercises such an ext4
  storage-loops
            1,000 times each: an export that is killed while it completes a target, targets that leave with writes under way,
            targets that are replaced; one target skips, delays and repeats calls. An export of 16 TiB, and one of 2^22 blocks. The part 'rounds N'
            has other numbers of rounds
  storage-search
            all sequences of steps and faults of a block volume up to a depth, then 10^7 random ones, each read compared with a
            plain model: target/storage-search/report.json. No device, no stock program. The part 'sample' takes seconds,
            'deep' (a depth more) hours
  adversary the system tests of pool, library and services under 1,000 seeds of the adversary mode, a few tests for each. Parts
            are 'seed N'
  adversary-demos
            the demos and the soak under ten seeds of that mode. Parts are 'demo storage seed N', 'soak seed N'
  join      two devices that share nothing but a network, joined by `bf-emu join`: ping-pongs, perftest and UCX over a good
            network and over one that loses, repeats and reorders packets, also with connections by librdmacm; programs and
            carriers that are killed; the packets as tshark and scapy read them
  mutants   the product without one of the orderings that it relies on: a system test must fail in adversary mode. Builds a
            copy of the sources in target/mutants
  rv64      the processor of DPA programs, without a device: own programs by stock gcc and clang under qemu-riscv64 as well,
            10^7 random instructions on ckb-vm as well, and the programs of riscv-tests in $XGVMI_RISCV_TESTS

  aarch64-link, aarch64-unit, aarch64-packages
            libraries, programs, unit tests and Debian packages of the DPU's processors, under a user-mode emulator
  aarch64-verbs, aarch64-matrix, aarch64-demo, aarch64-services
            hosts of this processor and DPUs of aarch64 on one fabric: rdma-core's ping-pongs, the library in
            stock UCX by preload and plugin, the demo, collectives, accelerator and volume with their services.
            The name aarch64 stands for all seven

  roce-...  each of them over Ethernet ports, with GIDs of RoCE v1 and v2 and addresses of IPv4 and IPv6
  PART      run only tests whose name contains one of the words (skips are not checked then)
  --list    list the suites

tests/suites/skips.toml lists the accepted skips with reasons. A skip without an entry, or an entry without a skip, fails
the run.";

/// One test of a suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Name, without the suite's.
    pub name: String,
    /// Its result.
    pub outcome: Outcome,
}

/// Result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It has passed.
    Passed,
    /// Contains the explanation.
    Failed(String),
    /// Contains the suite's own reason.
    Skipped(String),
}

impl Case {
    /// The test that a function has run.
    pub fn of(name: impl Into<String>, result: Result<()>) -> Self {
        Self {
            name: name.into(),
            outcome: match result {
                Ok(()) => Outcome::Passed,
                Err(error) => Outcome::Failed(format!("{error:#}")),
            },
        }
    }
}

/// The consecutive tests of one run: its result, and the finished tests. The first unfinished test gets the failure; if
/// all have finished, the last one gets it.
pub fn in_order(
    names: impl IntoIterator<Item = String>,
    finished: &[bool],
    result: Result<()>,
) -> Vec<Case> {
    let mut detail = result.err().map(|error| format!("{error:#}"));
    let mut cases: Vec<Case> = names
        .into_iter()
        .zip(finished)
        .map(|(name, finished)| {
            let outcome = if *finished {
                Outcome::Passed
            } else {
                let behind = "not reached, as the one before failed";
                Outcome::Failed(detail.take().unwrap_or_else(|| behind.to_owned()))
            };
            Case { name, outcome }
        })
        .collect();
    if let (Some(detail), Some(last)) = (detail, cases.last_mut()) {
        last.outcome = Outcome::Failed(detail);
    }
    cases
}

struct Suite {
    name: &'static str,
    /// Part that `cargo xtask test` runs, as words of the arguments; all if the list is absent.
    sample: Option<&'static [&'static str]>,
    /// Link layer of the device's ports.
    link: Link,
    /// Whether it needs the build of [`World::new`].
    needs_build: bool,
    run: fn(&World) -> Result<Vec<Case>>,
}

impl Suite {
    /// The suite over InfiniBand.
    const fn new(
        name: &'static str,
        sample: Option<&'static [&'static str]>,
        run: fn(&World) -> Result<Vec<Case>>,
    ) -> Self {
        Self {
            name,
            sample,
            link: Link::Infiniband,
            needs_build: true,
            run,
        }
    }

    /// A suite without the device, which builds its own programs.
    const fn alone(
        name: &'static str,
        sample: Option<&'static [&'static str]>,
        run: fn(&World) -> Result<Vec<Case>>,
    ) -> Self {
        Self {
            needs_build: false,
            ..Self::new(name, sample, run)
        }
    }

    /// The suite over Ethernet.
    const fn roce(
        name: &'static str,
        sample: Option<&'static [&'static str]>,
        run: fn(&World) -> Result<Vec<Case>>,
    ) -> Self {
        Self {
            link: Link::Ethernet,
            ..Self::new(name, sample, run)
        }
    }
}

const SUITES: &[Suite] = &[
    Suite::new("pyverbs", Some(&[]), pyverbs::run),
    Suite::new("pingpong", Some(&[]), verbs::pingpong),
    Suite::new("perftest", None, verbs::perftest),
    Suite::new("rdmacm", Some(rdmacm::SAMPLE), rdmacm::run),
    Suite::new("libfabric", Some(libfabric::SAMPLE), libfabric::run),
    Suite::new("qperf", None, judges::qperf),
    Suite::new("fio", Some(judges::FIO_SAMPLE), judges::fio),
    Suite::new("dapl", Some(judges::DAPL_SAMPLE), judges::dapl),
    Suite::new("iser", None, iser::run_all),
    Suite::new("qemu", None, qemu::run_all),
    Suite::new("nixl", None, nixl::run_all),
    Suite::new("ucp", Some(ucp::SAMPLE), ucp::run_all),
    Suite::new("ucx", None, ucx::run_all),
    Suite::new("mpi", Some(&["dc_mlx5"]), mpi::run_all),
    Suite::new("osu", None, osu::run_all),
    Suite::new("ucc", Some(ucc::SAMPLE), ucc::run_all),
    Suite::new(
        "mpi-legal-openmpi",
        Some(ucc::legal::SAMPLES),
        ucc::legal::open_mpi,
    ),
    Suite::new(
        "mpi-legal-mpich",
        Some(ucc::legal::SAMPLES),
        ucc::legal::mpich,
    ),
    Suite::new("mpi-programs", None, programs::run_all),
    Suite::new("slurm", None, slurm::run_all),
    Suite::new("storage", Some(storage_suite::SAMPLE), storage::run_all),
    Suite::new("storage-tls", Some(&[]), storage::run_tls),
    Suite::new(
        "storage-vhost",
        Some(storage::VHOST_SAMPLE),
        storage::run_vhost,
    ),
    Suite::new(
        "storage-loops",
        Some(storage::LOOPS_SAMPLE),
        storage::run_loops,
    ),
    Suite::new("storage-search", Some(search::SAMPLE), search::run_all),
    Suite::new("adversary", None, adversary::run_all),
    Suite::new("adversary-demos", None, adversary::demos),
    Suite::alone("join", Some(join::SAMPLE), join::run_all),
    Suite::alone("mutants", None, mutants::run_all),
    Suite::alone("rv64", Some(rv64::SAMPLE), rv64::run_all),
    Suite::alone("aarch64-link", None, aarch64::link),
    Suite::alone("aarch64-unit", None, aarch64::units),
    Suite::alone("aarch64-packages", None, aarch64::packages),
    Suite::alone("aarch64-verbs", None, aarch64::verbs),
    Suite::alone("aarch64-matrix", None, aarch64::matrix),
    Suite::alone("aarch64-demo", None, aarch64::demo),
    Suite::alone("aarch64-services", None, aarch64::services),
    Suite::roce("roce-pyverbs", Some(pyverbs::ROCE_SAMPLE), pyverbs::run),
    Suite::roce("roce-pingpong", Some(&[]), verbs::pingpong),
    Suite::roce("roce-perftest", None, verbs::perftest),
    Suite::roce("roce-rdmacm", Some(rdmacm::SAMPLE), rdmacm::run),
    Suite::roce("roce-libfabric", None, libfabric::run),
    Suite::roce("roce-qperf", None, judges::qperf),
    Suite::roce("roce-fio", None, judges::fio),
    Suite::roce("roce-dapl", None, judges::dapl),
    Suite::roce("roce-iser", None, iser::run_all),
    Suite::roce("roce-qemu", None, qemu::run_all),
    Suite::roce("roce-ucp", Some(ucp::ROCE_SAMPLE), ucp::run_all),
    Suite::roce("roce-ucx", None, ucx::run_all),
    Suite::roce("roce-mpi", None, mpi::run_all),
    Suite::roce("roce-osu", None, osu::run_all),
];

/// State that the suites share.
#[derive(Debug)]
pub struct World {
    /// Paths of the set-up.
    pub env: Env,
    /// Directory of the built `bf-emu` and its library.
    pub bin: PathBuf,
    /// `target/suites`.
    pub dir: PathBuf,
    /// A test runs if its name contains one of these words; without words all run.
    parts: Vec<String>,
    /// Link layer of the device's ports.
    pub link: Link,
    /// Cost profile of the emulated device; the default costs nothing.
    pub profile: Option<&'static str>,
}

impl World {
    /// Builds the emulator and creates a directory for the reports.
    pub fn new(parts: Vec<String>) -> Result<Self> {
        let world = Self::without_build(parts)?;
        workspace::build(&[
            "-p bf-emu -p bf-emu-preload -p osu-mpi -p uct-plugin -p xgvmi-offload -p xgvmi-blk -p xgvmi-fio -p ucc-tl \
             -p storage-search -p storage-suite",
        ])?;
        Ok(world)
    }

    /// Creates a directory for the reports.
    fn without_build(parts: Vec<String>) -> Result<Self> {
        let env = setup::ensure()?;
        let dir = workspace::target_dir().join("suites");
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self {
            env,
            bin: workspace::target_dir().join("release"),
            dir,
            parts,
            link: Link::default(),
            profile: None,
        })
    }

    /// Whether to run a test.
    pub fn wants(&self, name: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|part| name.contains(part.as_str()))
    }
}

/// Runs the command.
pub fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some((chosen, parts)) = choose(&arguments)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let mut world = match chosen.iter().any(|suite| suite.needs_build) {
        true => World::new(parts)?,
        false => World::without_build(parts)?,
    };
    let accepted = accepted()?;
    let path = world.dir.join("report.json");
    let mut reports = Vec::new();
    let (mut clean, mut tests) = (true, 0);
    for suite in chosen {
        let started = Instant::now();
        world.link = suite.link;
        let mut cases = (suite.run)(&world).with_context(|| suite.name)?;
        if world.parts.is_empty() {
            judge(suite.name, &mut cases, &accepted);
        }
        clean &= tell(suite.name, started.elapsed(), &cases);
        tests += cases.len();
        reports.push(report(suite.name, &cases));
        // After each suite: a run that is ended early keeps what it has shown.
        let text = serde_json::to_string_pretty(&reports)?;
        fs::write(&path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("report: {}", path.display());
    ensure!(
        tests > 0 || world.parts.is_empty(),
        "no test of these suites has one of these words in its name: {}",
        world.parts.join(" ")
    );
    Ok(if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the samples of the suites, about three minutes, for `cargo xtask test`. The result omits accepted skips from the
/// cases and contains their number.
pub fn sample() -> Result<Vec<Case>> {
    let mut world = World::new(Vec::new())?;
    let accepted = accepted()?;
    let mut all = Vec::new();
    for suite in SUITES {
        let Some(parts) = suite.sample else {
            continue;
        };
        world.link = suite.link;
        world.parts = parts.iter().map(|part| (*part).to_owned()).collect();
        let started = Instant::now();
        let mut cases = (suite.run)(&world).with_context(|| suite.name)?;
        println!(
            "sample of {}: {} tests, {:.0} s",
            suite.name,
            cases.len(),
            started.elapsed().as_secs_f64()
        );
        if parts.is_empty() {
            judge(suite.name, &mut cases, &accepted);
            let [.., skipped] = count(&cases);
            cases.retain(|case| !matches!(case.outcome, Outcome::Skipped(_)));
            cases.push(Case::of(
                format!("the {skipped} skips are accepted ones"),
                Ok(()),
            ));
        }
        all.extend(cases.into_iter().map(|case| Case {
            name: format!("{}: {}", suite.name, case.name),
            ..case
        }));
    }
    Ok(all)
}

fn accepted() -> Result<Vec<Accepted>> {
    skips::read(&workspace::root().join("tests/suites/skips.toml"))
}

type Choice = (Vec<&'static Suite>, Vec<String>);

/// The requested suites and parts; `None` if the request was answered already.
fn choose(arguments: &[String]) -> Result<Option<Choice>> {
    let mut words = arguments.iter();
    let mut chosen = Vec::new();
    for word in words.by_ref() {
        match word.as_str() {
            "-h" | "--help" => {
                println!("{HELP}");
                return Ok(None);
            }
            "--list" => {
                for suite in SUITES {
                    println!("{}", suite.name);
                }
                return Ok(None);
            }
            "--" => break,
            "aarch64" => chosen.extend(
                SUITES
                    .iter()
                    .filter(|suite| suite.name.starts_with("aarch64-")),
            ),
            name => match SUITES.iter().find(|suite| suite.name == name) {
                Some(suite) => chosen.push(suite),
                None => bail!("no suite or option '{name}'; try: cargo xtask suites --help"),
            },
        }
    }
    if chosen.is_empty() {
        chosen.extend(SUITES);
    }
    Ok(Some((chosen, words.cloned().collect())))
}

/// Turns unaccepted skips, and accepted skips that did not occur, into failures.
fn judge(suite: &str, cases: &mut Vec<Case>, accepted: &[Accepted]) {
    let mut expected: BTreeMap<&str, &Accepted> = accepted
        .iter()
        .filter(|skip| skip.suite == suite)
        .map(|skip| (skip.name.as_str(), skip))
        .collect();
    for case in cases.iter_mut() {
        let accepted = expected.remove(case.name.as_str());
        let verdict = match (&mut case.outcome, accepted) {
            (Outcome::Skipped(reason), Some(accepted)) => {
                // The report contains this project's reason: the suite's own often names only what it did not find.
                accepted.reason.clone_into(reason);
                continue;
            }
            (Outcome::Skipped(reason), None) => format!("skipped, which is not accepted: {reason}"),
            (Outcome::Passed, Some(accepted)) if accepted.of_machine => continue,
            (Outcome::Passed, Some(_)) => "passed; take its skip off the list".to_owned(),
            _ => continue,
        };
        case.outcome = Outcome::Failed(verdict);
    }
    for name in expected.into_keys() {
        let detail = "listed as a skip, but there is no such test".to_owned();
        cases.push(Case {
            name: name.to_owned(),
            outcome: Outcome::Failed(detail),
        });
    }
}

/// Prints the results of a suite. Returns true if no test failed.
fn tell(suite: &str, time: Duration, cases: &[Case]) -> bool {
    for case in cases {
        if let Outcome::Failed(detail) = &case.outcome {
            println!("FAILED {suite} {}\n{}", case.name, detail.trim_end());
        }
    }
    let [passed, failed, skipped] = count(cases);
    println!(
        "{suite:<13} {passed} passed, {failed} failed, {skipped} skipped  ({:.0} s)",
        time.as_secs_f64()
    );
    failed == 0
}

fn count(cases: &[Case]) -> [usize; 3] {
    let number =
        |wanted: fn(&Outcome) -> bool| cases.iter().filter(|case| wanted(&case.outcome)).count();
    [
        number(|outcome| matches!(outcome, Outcome::Passed)),
        number(|outcome| matches!(outcome, Outcome::Failed(_))),
        number(|outcome| matches!(outcome, Outcome::Skipped(_))),
    ]
}

fn report(suite: &str, cases: &[Case]) -> Value {
    let [passed, failed, skipped] = count(cases);
    let skips: Vec<Value> = cases
        .iter()
        .filter_map(|case| match &case.outcome {
            Outcome::Skipped(reason) => Some(json!({"name": case.name, "reason": reason})),
            _ => None,
        })
        .collect();
    json!({"suite": suite, "passed": passed, "failed": failed, "skipped": skipped, "skips": skips})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_judged() {
        let skip = |name: &str| Accepted {
            suite: "s".to_owned(),
            name: name.to_owned(),
            reason: "ours".to_owned(),
            of_machine: name == "elsewhere",
        };
        let case = |name: &str, outcome: Outcome| Case {
            name: name.to_owned(),
            outcome,
        };
        let skipped = || Outcome::Skipped("theirs".to_owned());
        let mut cases = vec![
            case("good", Outcome::Passed),
            case("listed", skipped()),
            case("new", skipped()),
            case("mended", Outcome::Passed),
            case("elsewhere", Outcome::Passed),
        ];
        let accepted = ["listed", "mended", "gone", "elsewhere"].map(skip);
        judge("s", &mut cases, &accepted);
        let failed: Vec<&str> = cases
            .iter()
            .filter(|case| matches!(case.outcome, Outcome::Failed(_)))
            .map(|case| case.name.as_str())
            .collect();
        assert_eq!(failed, ["new", "mended", "gone"]);
        let report = report("s", &cases);
        assert_eq!(report["passed"], 2);
        assert_eq!(report["skips"][0]["reason"], "ours");
        // Skips accepted for another suite do not apply to this one.
        let mut other = vec![case("good", Outcome::Passed)];
        judge("t", &mut other, &accepted);
        assert_eq!(count(&other), [1, 0, 0]);
    }

    #[test]
    fn what_went_wrong_is_told_once() {
        let outcomes = |finished: &[bool], result: Result<()>| {
            let names = ["a", "b", "c"].map(str::to_owned);
            let words =
                in_order(names, finished, result)
                    .into_iter()
                    .map(|case| match case.outcome {
                        Outcome::Passed => "passed".to_owned(),
                        Outcome::Failed(detail) => detail,
                        Outcome::Skipped(_) => "skipped".to_owned(),
                    });
            words.collect::<Vec<_>>().join(", ")
        };
        let wrong = || Err(anyhow::anyhow!("wrong"));
        assert_eq!(outcomes(&[true; 3], Ok(())), "passed, passed, passed");
        assert_eq!(outcomes(&[true; 3], wrong()), "passed, passed, wrong");
        let behind = "not reached, as the one before failed";
        let expect = format!("passed, wrong, {behind}");
        assert_eq!(outcomes(&[true, false, false], wrong()), expect);
    }

    #[test]
    fn arguments() {
        let names = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let (chosen, parts) = choose(&words).unwrap().unwrap();
            let names: Vec<&str> = chosen.iter().map(|suite| suite.name).collect();
            (names.join(" "), parts.join(" "))
        };
        assert_eq!(names("ucx pyverbs").0, "ucx pyverbs");
        assert_eq!(names("ucx -- tag am"), ("ucx".into(), "tag am".into()));
        assert_eq!(names("").0.split(' ').count(), SUITES.len());
        assert_eq!(names("aarch64").0.split(' ').count(), 7);
        assert!(choose(&["uxc".to_owned()]).is_err());
        for suite in SUITES {
            let name = suite.name.strip_prefix("roce-").unwrap_or(suite.name);
            assert!(HELP.lines().any(|line| {
                let names = line.strip_prefix("  ").unwrap_or_default();
                names.split([',', ' ']).any(|word| word == name) && !names.starts_with(' ')
            }));
            assert_eq!(name != suite.name, suite.link == Link::Ethernet);
        }
    }
}
