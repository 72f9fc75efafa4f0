//! `tests/programs/mpi_legal.c`: legal MPI programs that implementations of collectives tend to break, under stock Open MPI
//! and MPICH with the service processes.

use super::job::{Backend, Launcher, RANKS, Site};
use super::{COMPILE, QUESTION, neighbors, timed};
use crate::device::Testbed;
use crate::{Case, Outcome, World};
use anyhow::{Context, Result, bail, ensure};
use dev_setup::tree;
use std::process::Command;
use std::time::Duration;
use testbed::place::Place;
use testbed::process::{self, Running};

/// Programs that `cargo xtask test` runs, in one job. The others take longer or need much memory.
const SAMPLE: [&str; 8] = [
    "persistent-orders",
    "persistent-reductions",
    "memory-of-files",
    "memory-with-gaps",
    "mixture",
    "groups",
    "empty",
    "in-place",
];
/// Name of the job with all of them.
const SAMPLE_NAME: &str = "a sample in one job";

/// Sample for `cargo xtask test`.
pub(crate) const SAMPLES: &[&str] = &[SAMPLE_NAME, neighbors::NAME];

/// Seconds by which a rank is late in a program that is about lateness: more than any limit that a collective ever had by
/// default.
const VERY_LATE_S: &str = "65";
/// In all others.
const LATE_S: &str = "1";

/// Time limit of a job in seconds, after which Open MPI itself ends the ranks. Some programs do not end with stock UCC.
fn limit_s(names: &[&str]) -> u64 {
    // They take at most 10 s, and do not end with the stock UCC that the testing suite has.
    match names {
        ["spawn" | "empty-at-once" | "mixed-types" | "between-groups"] => 60,
        _ => 180,
    }
}
/// Time for the launcher's own end.
const GRACE: Duration = Duration::from_secs(20);

/// Name of the program's file.
pub(super) const PROGRAM: &str = "mpi_legal";

/// Name of the only test if the packages are missing.
const NO_PACKAGES: &str = "stock UCC of the testing suite";

pub(crate) fn open_mpi(world: &World) -> Result<Vec<Case>> {
    run_all(world, Launcher::OpenMpi)
}

pub(crate) fn mpich(world: &World) -> Result<Vec<Case>> {
    run_all(world, Launcher::Mpich)
}

fn run_all(world: &World, launcher: Launcher) -> Result<Vec<Case>> {
    let site = tree::ucc().and_then(|tree| {
        let place = Place::new(&tree.root, &world.dir, &world.env.cache)?;
        Site::new(world, tree, place)
    });
    let (site, program) = match site.and_then(|site| Ok((site, launcher.compile(world, PROGRAM)?)))
    {
        Ok(both) => both,
        Err(error) => {
            return Ok(vec![Case {
                name: NO_PACKAGES.to_owned(),
                outcome: Outcome::Skipped(format!("{error:#}")),
            }]);
        }
    };
    let legal = Legal {
        site: &site,
        launcher,
        program,
    };
    let mut cases = Vec::new();
    if world.wants(SAMPLE_NAME) {
        let sample = || Case::of(SAMPLE_NAME, legal.offloaded(&SAMPLE));
        cases.push(timed(sample));
    }
    type Test = fn(&Site<'_>, Launcher) -> Result<()>;
    let with_library: [(&str, Test); 6] = [
        (neighbors::NAME, neighbors::offloaded),
        (neighbors::MESSAGES, neighbors::messages),
        (neighbors::LENGTHS, neighbors::lengths),
        (neighbors::LARGE, neighbors::large),
        (neighbors::LOST, neighbors::messages_lost),
        (neighbors::TOPOLOGIES, neighbors::topologies),
    ];
    for (name, test) in with_library {
        if world.wants(name) {
            cases.push(timed(|| Case::of(name, test(&site, launcher))));
        }
    }
    if launcher == Launcher::Mpich && world.wants(neighbors::FORTRAN) {
        cases.push(timed(|| match neighbors::fortran(&site) {
            Some(result) => Case::of(neighbors::FORTRAN, result),
            None => skipped(neighbors::FORTRAN, neighbors::MPICH_FORTRAN),
        }));
    }
    for name in legal.names()? {
        if world.wants(&name) {
            cases.push(timed(|| legal.case(name)));
        }
    }
    if world.wants(NO_PACKAGES) {
        cases.push(Case::of(NO_PACKAGES, Ok(())));
    }
    Ok(cases)
}

/// The programs, compiled for one MPI.
struct Legal<'a> {
    site: &'a Site<'a>,
    launcher: Launcher,
    program: String,
}

impl Legal<'_> {
    fn names(&self) -> Result<Vec<String>> {
        let compiler = self.launcher.compiler(self.site.world)?;
        let mut command = Command::new(&self.program);
        command.arg("--list").envs(compiler.environment);
        let list = process::stdout(&mut command, COMPILE)?;
        Ok(list.lines().map(str::to_owned).collect())
    }

    /// Fails only where the same program works with UCC without the component; otherwise it is a skip with that reason if
    /// it works without UCC.
    fn case(&self, name: String) -> Case {
        let Err(error) = self.offloaded(&[&name]) else {
            return Case::of(name, Ok(()));
        };
        let outcome = match self.without(Backend::Ucc, &name) {
            Ok(()) => Outcome::Failed(format!("{error:#}")),
            Err(alone) => match self.without(Backend::Mpi, &name) {
                Ok(()) => Outcome::Skipped(format!("it fails without the component: {alone:#}")),
                Err(mpi) => Outcome::Failed(format!("it fails without UCC: {mpi:#}")),
            },
        };
        Case { name, outcome }
    }

    /// Runs programs with service processes, which must have completed calls.
    fn offloaded(&self, names: &[&str]) -> Result<()> {
        let services = self.site.services("xgvmi", &[])?;
        let where_and_how = (&services.testbed, Backend::Offload(&services));
        let output = self.succeed(where_and_how, names)?;
        let completed = services.completed()?;
        let served = output
            .lines()
            .find_map(|line| line.split_once(" collectives offloaded "));
        let served = served.map_or("", |(_, kinds)| kinds);
        let least = match self.launcher {
            Launcher::OpenMpi => least_calls(names),
            Launcher::Mpich => 1,
        };
        println!("{completed:>8} calls of ranks completed by the services; one rank: {served}");
        ensure!(
            completed >= RANKS * least || !is_offloaded(names, self.launcher),
            "the services completed {completed} calls:\n{output}"
        );
        // Every thread's communicators join the job.
        ensure!(
            !names.contains(&"threads") || !output.contains("is not offloaded"),
            "{output}"
        );
        Ok(())
    }

    /// Runs a program without the component.
    fn without(&self, backend: Backend<'_>, name: &str) -> Result<()> {
        let testbed = Testbed::new(self.site.world)?;
        self.succeed((&testbed, backend), &[name]).map(drop)
    }

    fn succeed(&self, backend: (&Testbed<'_>, Backend<'_>), names: &[&str]) -> Result<String> {
        let is_late = |name: &str| name.starts_with("late-") || name == "idle";
        let late_s = match names.iter().any(|name| is_late(name)) {
            true => VERY_LATE_S,
            false => LATE_S,
        };
        let mut words = vec![self.program.as_str(), "--late", late_s];
        words.extend(names);
        let limit_s = limit_s(names);
        let none = |_| Vec::new();
        let mut command =
            self.site
                .job_within(&limit_s.to_string(), backend, self.launcher, &words, none);
        let done = process::run(&mut command, Duration::from_secs(limit_s) + GRACE)?;
        ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
        // The launcher may put a program's line behind the beginning of another rank's line.
        for expect in names.iter().map(|name| format!("ok {name}")) {
            ensure!(
                done.output.lines().any(|line| line.ends_with(&expect)),
                "no '{expect}':\n{}",
                done.output
            );
        }
        Ok(done.output)
    }
}

/// Name of the test of the Fortran program.
pub(super) const FORTRAN: &str = "Open MPI mpi_fortran";

/// A Fortran program: Open MPI's own names for complex and logical types, and its MPI_IN_PLACE.
pub(super) fn fortran(site: &Site<'_>) -> Case {
    const COMPILER: &str = "mpifort.openmpi";
    let Some(program) = neighbors::compile_fortran(site, COMPILER) else {
        return skipped(FORTRAN, COMPILER);
    };
    let test = || -> Result<()> {
        let program = program?;
        let run = |library| -> Result<u64> {
            let (output, completed) =
                neighbors::run(site, Launcher::OpenMpi, &[&program], library)?;
            ensure!(output.lines().any(|line| line == "done"), "{output}");
            Ok(completed)
        };
        let without = run(None)?;
        let library = Launcher::OpenMpi.compiler(site.world)?.neighbors()?;
        let with = run(Some(&library))?;
        // Those of complex numbers and of whole ones, among others. The program has two of neighbours.
        ensure!(
            without >= 5 * RANKS && with == without + 2 * RANKS,
            "the services completed {without} calls without the library, and {with} with it"
        );
        Ok(())
    };
    Case::of(FORTRAN, test())
}

fn skipped(name: &str, compiler: &str) -> Case {
    Case {
        name: name.to_owned(),
        outcome: Outcome::Skipped(format!("no {compiler}")),
    }
}

/// Communicators come and go, each with one call. Neither the services nor the device keeps anything of them, and a rank keeps no
/// more than with stock UCC alone: Open MPI and UCC each keep about 0.3 KiB per communicator.
pub(super) fn communicators(site: &Site<'_>) -> Result<()> {
    const ROUNDS: &str = "1000";
    const LOOP_S: &str = "600";
    /// Resident memory of the services and objects of the device, by which one half of the rounds may differ. A leak of an
    /// object, or of a few hundred bytes, per communicator is more.
    const KIB: u64 = 512;
    const OBJECTS: usize = 100;
    /// By which a rank may grow more than one with stock UCC alone: a leak of 0.1 KiB per communicator is more.
    const RANK_KIB: u64 = 64;
    let program = Launcher::OpenMpi.compile(site.world, PROGRAM)?;
    let services = site.services("xgvmi", &[])?;
    let where_and_how = (&services.testbed, Backend::Offload(&services));
    let words = [&program, "--rounds", ROUNDS, "come-and-go"];
    let mut command = site.job_within(LOOP_S, where_and_how, Launcher::OpenMpi, &words, |_| {
        Vec::new()
    });
    let job = Running::spawn(&mut command)?;
    let mut held = Vec::new();
    for quarter in [1, 3] {
        let sign = format!("quarter {quarter} is over");
        let limit = Duration::from_secs(LOOP_S.parse()?);
        let is_over = process::wait_until(limit, || job.said().contains(&sign));
        ensure!(is_over, "no '{sign}':\n{}", job.said());
        let objects = services.testbed.objects()?.lines().count();
        held.push((services.resident_kib()?, objects));
    }
    let done = job.wait(Duration::from_secs(LOOP_S.parse()?) + GRACE)?;
    ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
    let said: Vec<&str> = done
        .output
        .lines()
        .filter(|line| line.contains("is over"))
        .collect();
    println!("services (KiB) and objects: {held:?}; {said:?}");
    let testbed = Testbed::new(site.world)?;
    let alone = (&testbed, Backend::Ucc);
    let mut command = site.job_within(LOOP_S, alone, Launcher::OpenMpi, &words, |_| Vec::new());
    let peer = process::run(&mut command, Duration::from_secs(LOOP_S.parse()?) + GRACE)?;
    ensure!(
        peer.ok(),
        "stock UCC alone: {}\n{}",
        peer.verdict(),
        peer.output
    );
    let (ours, stock) = (growth_kib(&done.output)?, growth_kib(&peer.output)?);
    println!("a rank has grown by {ours} KiB, with stock UCC alone by {stock} KiB");
    ensure!(
        ours <= stock + RANK_KIB,
        "{ROUNDS} communicators: a rank has grown by {ours} KiB, with stock UCC alone by {stock} KiB"
    );
    let [(early, few), (late, many)] = held[..] else {
        bail!("{held:?}");
    };
    ensure!(
        late <= early + KIB && many <= few + OBJECTS,
        "KiB of the services and objects of the device after a quarter and after three: {held:?}\n{said:?}"
    );
    let completed = services.completed()?;
    ensure!(
        completed >= RANKS * ROUNDS.parse::<u64>()?,
        "the services completed {completed} calls"
    );
    Ok(())
}

/// Growth of the rank that says when a quarter of the rounds is over, from the first quarter's end to the last one's.
fn growth_kib(said: &str) -> Result<u64> {
    let sizes = said.lines().filter_map(|line| {
        let (_, rest) = line.split_once("is over, this rank has ")?;
        rest.split(' ').next()?.parse().ok()
    });
    let sizes: Vec<u64> = sizes.collect();
    let [first, .., last] = sizes[..] else {
        bail!("a rank does not say how much memory it has:\n{said}");
    };
    Ok(last.saturating_sub(first))
}

/// A rank ends its job, or ends alone without MPI_Finalize, while calls are under way. The services serve the next job and keep
/// nothing.
pub(super) fn sudden_ends(site: &Site<'_>) -> Result<()> {
    const LIMIT_S: &str = "120";
    let program = Launcher::OpenMpi.compile(site.world, PROGRAM)?;
    let services = site.services("xgvmi", &[])?;
    let run = |name: &str| {
        let words = [&program, name];
        let where_and_how = (&services.testbed, Backend::Offload(&services));
        let mut command =
            site.job_within(LIMIT_S, where_and_how, Launcher::OpenMpi, &words, |_| {
                Vec::new()
            });
        process::run(&mut command, Duration::from_secs(LIMIT_S.parse()?) + GRACE)
    };
    let good = || -> Result<()> {
        let done = run("groups")?;
        ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
        ensure!(!done.output.contains("is not offloaded"), "{}", done.output);
        Ok(())
    };
    // UCX keeps some objects after the first job of a service.
    good()?;
    let before = services.held()?;
    for name in [
        "ends-by-abort",
        "ends-by-exit",
        "ends-at-once",
        "ends-by-signal",
    ] {
        let done = run(name)?;
        ensure!(
            !done.ok() && !done.timed_out,
            "{name}: {}\n{}",
            done.verdict(),
            done.output
        );
        ensure!(!super::wrong_bytes(&done.output), "{name}: {}", done.output);
        good().with_context(|| format!("after {name}"))?;
    }
    let mut after = Vec::new();
    let few = process::wait_until(QUESTION, || {
        after = services.held().unwrap_or_default();
        after.len() == before.len()
            && after
                .iter()
                .flatten()
                .zip(before.iter().flatten())
                .all(|(after, before)| *after < before + 4)
    });
    ensure!(
        few,
        "descriptors and threads of the services: {before:?} before the jobs, {after:?} after them"
    );
    Ok(())
}

/// Calls per rank that the service processes must execute of some programs under Open MPI, which passes complex numbers on. The
/// rest are persistent, or a reduce-scatter in place.
fn least_calls(names: &[&str]) -> u64 {
    match names {
        ["complex-numbers"] => 48,
        ["numbers"] => 150,
        ["outstanding"] => 900,
        ["read-only"] => 10,
        _ => 1,
    }
}

/// Whether the service processes must execute some of these programs' calls. MPICH passes blocking collectives to UCC only,
/// and Open MPI passes no persistent ones.
fn is_offloaded(names: &[&str], launcher: Launcher) -> bool {
    const BLOCKING: [&str; 20] = [
        "late-first",
        "late-root",
        "memory-of-files",
        "memory-of-the-program",
        "memory-with-gaps",
        "negative-displacements",
        "empty",
        "in-place",
        "reused-memory",
        "come-and-go",
        "connected",
        "garbage-elsewhere",
        "in-place-uneven",
        "large-counts",
        "numbers",
        "read-only",
        "replaced-memory",
        "stack-of-another",
        "topologies",
        "unfreed",
    ];
    const ON_THE_HOSTS: [&str; 10] = [
        "intercommunicator",
        "mixed-types",
        "odd-types",
        "operators",
        "own-operator",
        "persistent-orders",
        "reduce-scatter",
        "sessions",
        "spawn",
        "types",
    ];
    match launcher {
        Launcher::OpenMpi => names.iter().any(|name| !ON_THE_HOSTS.contains(name)),
        Launcher::Mpich => names.iter().any(|name| BLOCKING.contains(name)),
    }
}
