//! Registrations of memory that the kernel cannot pin, or may not pin for this process.

use crate::agent::compile;
use crate::harness::{Case, Outcome};
use crate::process;
use crate::world::{Testbed, World, succeed};
use anyhow::{Result, ensure};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("registration_is_checked_page_by_page", checked),
        Case::new("pages_on_demand_come_and_go", on_demand),
        Case::new("pages_on_demand_come_late", late),
        Case::that_may_skip("pinned_pages_stay_the_devices", pinned),
    ]
}

/// Holes, pages without permission, and the limit of locked memory.
fn checked(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut command = testbed.command("node0.host", compile("registration")?);
    let said = succeed(command.env("BFEMU_MEMLOCK", "counted"))?;
    ensure!(said.ends_with("ok\n"), "{said}");
    ensure!(
        said.matches("RLIMIT_MEMLOCK").count() == 1,
        "the limit is named once: {said}"
    );
    Ok(())
}

/// Pages that are absent at registration, come, go and change; prefetches; refusals.
fn on_demand(world: &World) -> Result<()> {
    paging(world, "trap")
}

/// The same with late pages and repeated messages.
fn late(world: &World) -> Result<()> {
    (1..=4).try_for_each(|seed| paging(world, &format!("adversary:{seed}")))
}

fn paging(world: &World, mode: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut command = testbed.command("node0.host", compile("paging")?);
    let said = succeed(command.env("BFEMU_MODE", mode))?;
    ensure!(said == "ok\n", "{said}");
    Ok(())
}

/// Pages that a program unmaps below a registration, in its own process and in another one.
fn pinned(world: &World) -> Result<Outcome> {
    if !process::has_io_uring() {
        let why = "the system gives this user no io_uring";
        return Ok(Outcome::Skipped(why.to_owned()));
    }
    for mode in ["trap", "polling", "adversary:3"] {
        let testbed = Testbed::new(world)?;
        let mut command = testbed.command("node0.host", compile("paging")?);
        command
            .arg("pinned")
            .env("BFEMU_MODE", mode)
            .env("BFEMU_MEMLOCK", "pinned");
        let said = succeed(&mut command)?;
        ensure!(said == "ok\n", "{mode}: {said}");
    }
    Ok(Outcome::Passed)
}
