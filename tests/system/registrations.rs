//! Registrations of memory that the kernel cannot pin, or may not pin for this process.

use crate::agent::compile;
use crate::harness::Case;
use crate::world::{Testbed, World, succeed};
use anyhow::{Result, ensure};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("registration_is_checked_page_by_page", checked)]
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
