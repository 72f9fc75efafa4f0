//! `tests/programs/mpi_check.c` on stock Open MPI with four ranks on two emulated nodes, over each transport of UCX.

use super::device::{CLIENT, SERVER, Testbed};
use super::transport::{TRANSPORTS, Transport};
use super::{Case, World, in_order};
use anyhow::{Context, Result, ensure};
use dev_setup as setup;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::{process, workspace};

/// Four polling ranks on two cores take ten seconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(240);
/// Time in seconds after which Open MPI itself ends the ranks, which have their own process groups.
const OWN_LIMIT_S: &str = "210";
/// Time limit for compiling a small C program.
const COMPILE: Duration = Duration::from_secs(60);
/// Number of ranks on each of the two nodes.
const RANKS: &str = "2";
const SECTIONS: [&str; 3] = ["p2p", "collectives", "one_sided"];

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let program = compile(world)?;
    let mut cases = Vec::new();
    for transport in TRANSPORTS {
        let names = SECTIONS.map(|section| format!("{} {section}", transport.name));
        if !names.iter().any(|name| world.wants(name)) {
            continue;
        }
        let (output, result) = match job(world, &program, transport) {
            Ok((output, result)) => (output, result),
            Err(error) => (String::new(), Err(error)),
        };
        let finished = SECTIONS.map(|section| {
            let line = format!("ok {section}");
            output.lines().any(|said| said == line)
        });
        cases.extend(in_order(names, &finished, result));
    }
    Ok(cases)
}

fn compile(world: &World) -> Result<PathBuf> {
    let program = world.dir.join("mpi_check");
    let wheel = setup::mpi::wheel(&world.env);
    let mut mpicc = Command::new(wheel.compiler);
    mpicc
        .envs(wheel.environment)
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(workspace::root().join("tests/programs/mpi_check.c"));
    process::stdout(&mut mpicc, COMPILE)?;
    Ok(program)
}

/// Output of the job, and whether it succeeded.
fn job(world: &World, program: &Path, transport: &Transport) -> Result<(String, Result<()>)> {
    let testbed = Testbed::new(world)?;
    let wheel = setup::mpi::wheel(&world.env);
    let mut mpirun = Command::new(wheel.launcher.first().context("no launcher")?);
    mpirun
        .args(&wheel.launcher[1..])
        .args(["--bind-to", "none", "--timeout", OWN_LIMIT_S])
        .envs(wheel.environment)
        // Otherwise Open MPI uses UCX only for transports that it considers fast.
        .env("OMPI_MCA_pml_ucx_tls", "any")
        .env("OMPI_MCA_pml_ucx_devices", "any")
        .env("UCX_TLS", transport.tls)
        .env("UCX_NET_DEVICES", "mlx5_0:1")
        .env("UCX_WARN_UNUSED_ENV_VARS", "n");
    for (index, function) in [SERVER, CLIENT].into_iter().enumerate() {
        if index > 0 {
            mpirun.arg(":");
        }
        mpirun
            .args(["-n", RANKS])
            .args(words(&testbed.command(function, program)));
    }
    let done = process::run(&mut mpirun, LIMIT)?;
    let judged = || {
        ensure!(
            done.ok() && done.output.lines().any(|line| line == "done"),
            "{}\n{}\n{}",
            process::shown(&mpirun),
            done.verdict(),
            done.output.trim_end()
        );
        let moved = testbed.stats()?.counted("wqes", |name| name == "send")?;
        ensure!(moved > 0, "the device sent nothing");
        testbed.ensure_nothing_refused()
    };
    let result = judged().with_context(|| transport.name);
    Ok((done.output.clone(), result))
}

/// Program and arguments, for use in another command.
fn words(command: &Command) -> Vec<OsString> {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsString::from)
        .collect()
}
