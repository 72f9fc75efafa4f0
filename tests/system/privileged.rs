//! Privileged (setuid) programs: they get no emulated device and are otherwise unaffected.

use crate::agent::compile_with;
use crate::harness::{Case, Outcome};
use crate::process;
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Context, Result, ensure};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

/// Owner of the program, and user that runs it. Neither needs a name.
const OWNER: u32 = 65_532;
const USER: u32 = 65_533;

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::that_may_skip("setuid_program", setuid_program)]
}

fn setuid_program(world: &World) -> Result<Outcome> {
    // SAFETY: geteuid(2) takes nothing, touches no memory and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(Outcome::Skipped(
            "only root makes a program of another user's and becomes a third".to_owned(),
        ));
    }
    let program = compile_with::<&str>("privileged", &[])?;
    // Not in the state directory, whose file system may pass the bit over.
    let place = tempfile::tempdir()?;
    let privileged = place.path().join("privileged");
    std::fs::copy(&program, &privileged).context("copying the program")?;
    set_permissions(place.path(), Permissions::from_mode(0o711))?;
    chown(&privileged, Some(OWNER), Some(OWNER)).context("giving the program away")?;
    set_permissions(&privileged, Permissions::from_mode(0o4755))?;

    let testbed = Testbed::new(world)?;
    let with = succeed(&mut testbed.command("node0.host", &program))?;
    ensure!(
        with.trim() == "secure=0 uid=0 euid=0 library=1 device=1",
        "an ordinary program has the device: {with}"
    );
    let as_user = |command: &mut Command| {
        command.arg(USER.to_string()).arg(&privileged);
        process::run(command, LIMIT)
    };
    let without = as_user(&mut Command::new(&program))?;
    let head = format!("secure=1 uid={USER} euid={OWNER} library=0 device=");
    ensure!(
        without.ok() && without.output.starts_with(&head),
        "the program does not get its owner's rights; is {} on a file system that passes setuid over?\n{}",
        place.path().display(),
        without.output
    );
    let with = as_user(&mut testbed.command("node0.host", &program))?;
    ensure!(
        with.ok() && with.output == without.output,
        "beneath the emulator: {}\n{}\nwithout it: {}",
        with.verdict(),
        with.output,
        without.output
    );
    Ok(Outcome::Passed)
}
