//! The life of a service process: it drains on SIGTERM, reads its secret again on SIGHUP, and tells its status.

use crate::harness::Case;
use crate::offload::{Farm, fail, succeed};
use crate::world::{LIMIT, Testbed, World};
use anyhow::{Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("offload_drains_on_sigterm", drain),
        Case::new("offload_reads_its_secret_again_on_sighup", reload),
    ]
}

/// A job that stands still in round 5, because rank 0 does not enter it.
const STALLED: [&str; 6] = [
    "--rounds",
    "8",
    "--stall-in",
    "5",
    "--offload-limit",
    "600s",
];

/// Running jobs go on, new ones are refused, and the service ends when the last one has.
fn drain(world: &World) -> Result<()> {
    let mut farm = Farm::new(world, "stock", 1)?;
    let mut ranks = farm.job(1, &STALLED, |_, _| ())?;
    for rank in &mut ranks {
        rank.hear("round 5")?;
    }
    for service in farm.services.iter_mut().flatten() {
        service.signal(libc::SIGTERM)?;
        service.hear("1 running jobs have 60s to finish, new jobs are refused")?;
    }
    fail(
        farm.job(1, &["--rounds", "2"], |_, _| ())?,
        &["this service ends when its jobs are done: use another one"],
    )?;
    for service in farm.services.iter_mut().flatten() {
        ensure!(
            !service.has_ended(),
            "it has not waited:\n{}",
            service.said()
        );
    }
    // The job ends with its rank 0, and the services with the job.
    ranks[0].group.kill();
    let rank_0 = ranks.remove(0);
    fail(
        ranks,
        &["rank 0 has closed its connection", "rank 0 is lost"],
    )?;
    drop(rank_0);
    for service in farm.services.iter_mut().flatten() {
        let (code, said) = service.end(LIMIT, &["rank 0"])?;
        ensure!(code == Some(0), "exit code {code:?}:\n{said}");
    }
    Ok(())
}

/// A job that runs keeps its connections; new jobs may use the new secret, and for a while the old one.
fn reload(world: &World) -> Result<()> {
    let place = Testbed::new(world)?;
    let write = |name: &str, text: &str| -> Result<String> {
        let path = place.path().join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(path.display().to_string())
    };
    let of_services = write("services", "the first secret of all\n")?;
    let first = write("first", "the first secret of all\n")?;
    let second = write("second", "the second secret of all\n")?;
    let third = write("third", "the third secret of all\n")?;
    let with = |path: &str| {
        let path = path.to_owned();
        move |_: u32, command: &mut Command| {
            command.args(["--secret-file", &path]);
        }
    };
    let mut farm = Farm::with_each(world, "stock", 1, with(&of_services))?;
    let mut ranks = farm.job(1, &STALLED, with(&first))?;
    for rank in &mut ranks {
        rank.hear("round 5")?;
    }
    fs::copy(Path::new(&second), Path::new(&of_services))?;
    for service in farm.services.iter_mut().flatten() {
        service.signal(libc::SIGHUP)?;
        service.hear("SIGHUP: a new secret from ")?;
    }
    let rounds = ["--rounds", "2"];
    succeed(farm.job(1, &rounds, with(&second))?)?;
    succeed(farm.job(1, &rounds, with(&first))?)?;
    fail(
        farm.job(1, &rounds, with(&third))?,
        &["its secret is not this service's"],
    )?;
    for rank in &mut ranks {
        ensure!(!rank.has_ended(), "a rank has ended:\n{}", rank.said());
    }
    // A secret that cannot be read changes nothing.
    fs::write(&of_services, "short")?;
    for service in farm.services.iter_mut().flatten() {
        service.signal(libc::SIGHUP)?;
        service.hear("SIGHUP: the secret is unchanged")?;
    }
    succeed(farm.job(1, &rounds, with(&second))?)?;
    Ok(())
}
