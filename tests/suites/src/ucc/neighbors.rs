//! Neighbourhood collectives and messages of an MPI program with the preloaded library of `clients/mpi`, on the service processes.

use super::job::{Backend, Launcher, RANKS, Site, Variable, variable};
use super::{COMPILE, LIMIT};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;
use testbed::process::Running;
use testbed::{process, workspace};

/// Name of the test.
pub(super) const NAME: &str = "neighbourhoods";
/// Name of the test of a program with other collectives beside.
pub(super) const TOPOLOGIES: &str = "topologies with the library";
/// Name of the test of messages.
pub(super) const MESSAGES: &str = "messages";
/// Name of the test of messages that are longer or shorter than their receives.
pub(super) const LENGTHS: &str = "messages of other lengths";
/// Name of the test of messages of more than 2 GiB.
pub(super) const LARGE: &str = "large messages";
/// Name of the test of messages without a service.
pub(super) const LOST: &str = "messages with a service killed";
/// Name of the test of a Fortran program.
pub(super) const FORTRAN: &str = "Fortran with the library";
/// Its compiler.
pub(super) const MPICH_FORTRAN: &str = "mpifort.mpich";

/// The component offloads each call on a topology whose neighbours are different ranks, and without the library none. MPICH
/// passes blocking collectives to UCC only.
pub(super) fn offloaded(site: &Site<'_>, launcher: Launcher) -> Result<()> {
    let program = launcher.compile(site.world, "mpi_neighbors")?;
    let (said, _) = run(site, launcher, &[&program], None)?;
    let calls = calls(&said).with_context(|| said.clone())?;
    ensure!(alltoallvs(&said).iter().all(|count| *count == 0), "{said}");
    let library = launcher.compiler(site.world)?.neighbors()?;
    let (said, completed) = run(site, launcher, &[&program], Some(&library))?;
    let expect = match launcher {
        Launcher::OpenMpi => calls.iter().sum::<u64>(),
        Launcher::Mpich => calls[0],
    };
    let counted = alltoallvs(&said);
    println!(
        "alltoallvs of each rank: {counted:?} of {expect} calls; {completed} calls of ranks at the services"
    );
    let ranks = RANKS.try_into()?;
    ensure!(
        counted == vec![expect; ranks] && completed >= RANKS * expect,
        "{expect} calls of each rank: {counted:?}, and {completed} at the services:\n{said}"
    );
    Ok(())
}

/// All messages that can be served are, and no other one; without the library none.
pub(super) fn messages(site: &Site<'_>, launcher: Launcher) -> Result<()> {
    let program = launcher.compile(site.world, "mpi_messages")?;
    let (said, _) = run(site, launcher, &[&program], None)?;
    let expect = numbers(&said, "rank ", " has ", " messages");
    let none = numbers(&said, "rank ", "; ", " messages sent or received");
    let is_none = none.iter().all(|of| of.1 == 0);
    let is_all = u64::try_from(expect.len())? == RANKS;
    ensure!(is_none && is_all, "{said}");
    served(site, launcher, &program, expect)
}

/// All messages that are longer or shorter than their receives are served.
pub(super) fn lengths(site: &Site<'_>, launcher: Launcher) -> Result<()> {
    let program = launcher.compile(site.world, "mpi_lengths")?;
    served(site, launcher, &program, Vec::new())
}

/// All messages of more than 2 GiB are served.
pub(super) fn large(site: &Site<'_>, launcher: Launcher) -> Result<()> {
    let program = launcher.compile(site.world, "mpi_large")?;
    served(site, launcher, &program, Vec::new())
}

/// Each rank of a program with the library has as many messages as expected, or as it says itself.
fn served(
    site: &Site<'_>,
    launcher: Launcher,
    program: &str,
    mut expect: Vec<(u64, u64)>,
) -> Result<()> {
    let library = launcher.compiler(site.world)?.neighbors()?;
    let (said, completed) = run(site, launcher, &[program, "served"], Some(&library))?;
    if expect.is_empty() {
        expect = numbers(&said, "rank ", " has ", " messages");
    }
    let counted = numbers(&said, "rank ", "; ", " messages sent or received");
    println!("messages of each rank: {counted:?}; {completed} calls of ranks at the services");
    let sum: u64 = expect.iter().map(|of| of.1).sum();
    ensure!(
        counted == expect && sum > 0 && completed >= sum,
        "messages of each rank: {counted:?} and not {expect:?}; {completed} calls at the services:\n{said}"
    );
    Ok(())
}

/// When a service ends, the messages of all ranks fail, and their data until then is right. Then the ranks agree anew, and all
/// messages go by the MPI.
pub(super) fn messages_lost(site: &Site<'_>, launcher: Launcher) -> Result<()> {
    let program = launcher.compile(site.world, "mpi_messages")?;
    let library = launcher.compiler(site.world)?.neighbors()?;
    let mut services = site.services("xgvmi", &[])?;
    let where_and_how = (&services.testbed, Backend::Offload(&services));
    let words = [&program[..], "endless"];
    let mut command = site.job(where_and_how, launcher, &words, |_| {
        let mut own = preload(site, Some(&library));
        own.push(variable(("UCC_TL_XGVMI_ON_FAILURE", "host")));
        own
    });
    let job = Running::spawn(&mut command)?;
    let is_going = process::wait_until(LIMIT, || job.said().lines().any(|line| line == "going"));
    ensure!(is_going, "no messages: {}", job.said());
    services.running.pop();
    let done = job.wait(LIMIT)?;
    let told = format!("{RANKS} of {RANKS} ranks are told");
    ensure!(
        !done.timed_out && done.output.lines().any(|line| line == told),
        "{}\n{}",
        done.verdict(),
        done.output
    );
    Ok(())
}

/// The numbers of the ranks in lines with `rank R`, then with a number between two texts, in the order of ranks.
fn numbers(said: &str, rank: &str, before: &str, after: &str) -> Vec<(u64, u64)> {
    let number = |line: &str| -> Option<(u64, u64)> {
        let (rest, _) = line.split_once(after)?;
        let (rest, number) = rest.rsplit_once(before)?;
        let (_, rest) = rest.rsplit_once(rank)?;
        let rank = rest.split(' ').next()?;
        Some((rank.parse().ok()?, number.trim().parse().ok()?))
    };
    let mut found: Vec<_> = said.lines().filter_map(number).collect();
    found.sort_unstable();
    found
}

pub(super) fn topologies(site: &Site<'_>, launcher: Launcher) -> Result<()> {
    let program = launcher.compile(site.world, "mpi_legal")?;
    let library = launcher.compiler(site.world)?.neighbors()?;
    let (said, completed) = run(site, launcher, &[&program, "topologies"], Some(&library))?;
    ensure!(
        said.contains("ok topologies") && completed > 0,
        "the services completed {completed} calls:\n{said}"
    );
    Ok(())
}

/// A Fortran program under MPICH. It has one blocking call of neighbours. `None` without a compiler.
pub(super) fn fortran(site: &Site<'_>) -> Option<Result<()>> {
    let launcher = Launcher::Mpich;
    let program = compile_fortran(site, MPICH_FORTRAN)?;
    let test = || -> Result<()> {
        let library = launcher.compiler(site.world)?.neighbors()?;
        let (said, _) = run(site, launcher, &[&program?], Some(&library))?;
        let counted = alltoallvs(&said);
        ensure!(
            said.lines().any(|line| line == "done") && counted == vec![1; RANKS.try_into()?],
            "alltoallvs of each rank: {counted:?}\n{said}"
        );
        Ok(())
    };
    Some(test())
}

/// Compiles the Fortran program. `None` without the compiler.
pub(super) fn compile_fortran(site: &Site<'_>, compiler: &str) -> Option<Result<String>> {
    Command::new(compiler).arg("--version").output().ok()?;
    let program = site.world.dir.join(format!("mpi_fortran-{compiler}"));
    let mut compile = Command::new(compiler);
    // An argument of one place has several types: the interface of mpif.h is implicit.
    compile
        .args(["-O1", "-g", "-fallow-argument-mismatch", "-w", "-o"])
        .arg(&program)
        .arg(workspace::root().join("tests/programs/mpi_fortran.f90"));
    let compiled = process::stdout(&mut compile, COMPILE);
    Some(compiled.map(|_| program.display().to_string()))
}

/// Number of alltoallvs that each rank has offloaded, as the component counts.
fn alltoallvs(said: &str) -> Vec<u64> {
    let lines = said
        .lines()
        .filter_map(|line| line.split_once(" collectives offloaded "));
    let counts = lines.map(|(_, kinds)| {
        let (_, rest) = kinds.split_once("alltoallv ")?;
        rest.split([',', ')']).next()?.parse().ok()
    });
    counts.map(|count| count.unwrap_or(0)).collect()
}

/// The calls of a rank: blocking ones, and others.
fn calls(said: &str) -> Option<[u64; 2]> {
    let line = said.lines().find_map(|line| line.split_once("calls "))?.1;
    let mut numbers = line.split(' ').map(|word| word.trim().parse().ok());
    Some([numbers.next()??, numbers.next()??])
}

/// Runs a program. Returns its output with the logs of all ranks behind it, and how many calls the services have completed. Each
/// rank logs to its own file, since a launcher mixes the lines of ranks.
pub(super) fn run(
    site: &Site<'_>,
    launcher: Launcher,
    words: &[&str],
    library: Option<&Path>,
) -> Result<(String, u64)> {
    let services = site.services("xgvmi", &[])?;
    let where_and_how = (&services.testbed, Backend::Offload(&services));
    let logs = site.world.dir.join("neighbours");
    let _ = fs::remove_dir_all(&logs);
    fs::create_dir(&logs)?;
    let mut command = site.job(where_and_how, launcher, words, |_| {
        let mut own = preload(site, library);
        let log = logs.join("%p").display().to_string();
        own.push(("UCX_LOG_FILE".to_owned(), log));
        own
    });
    let mut said = super::succeed(&mut command)?;
    for log in fs::read_dir(&logs)? {
        said.push('\n');
        said.push_str(&fs::read_to_string(log?.path())?);
    }
    Ok((said, services.completed()?))
}

/// The library beside that of the pool.
fn preload(site: &Site<'_>, library: Option<&Path>) -> Vec<Variable> {
    let pool = site.world.bin.join("libuct_ib_mlx5_xgvmi.so");
    let both = library.map(|library| format!("{}:{}", pool.display(), library.display()));
    both.map(|both| ("LD_PRELOAD".to_owned(), both))
        .into_iter()
        .collect()
}
