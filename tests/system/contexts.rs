//! Contexts: the remains of a closed one, and the maximum number per process.

use crate::agent::compile;
use crate::harness::Case;
use crate::world::{Testbed, World, succeed};
use anyhow::{Context, Result, bail, ensure};
use std::process::Output;

const FUNCTION: &str = "node0.host";
/// Rounds of opening and closing.
const ROUNDS: u64 = 10_000;
/// The limit in docs/EMULATION.md, section Limits.
const CONTEXTS_MAX: usize = 4096;
/// Rounds of each thread that opens and closes, or maps and unmaps.
const ROUNDS_OF_A_THREAD: u64 = 1_500;
const EMFILE: i32 = 24;
const SIGSEGV: i32 = 11;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("context_leaves_no_file", leaves_no_file),
        Case::new(
            "context_destroyed_channels_leave_no_file",
            channels_leave_no_file,
        ),
        Case::new("context_closed_leaves_null_alone", leaves_null_alone),
        Case::new("context_limit", limit),
        Case::new("context_opened_by_threads", opened_by_threads),
    ]
}

/// Each round needs as many commands as the first, and no file of a channel stays open.
fn leaves_no_file(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let rounds = ROUNDS.to_string();
    let mut command = testbed.command(FUNCTION, compile("contexts")?);
    let said = succeed(command.args(["rounds", &rounds]))?;
    let files = said
        .trim()
        .strip_prefix("ok files=")
        .context(said.clone())?;
    let (before, after) = files.split_once(',').context(said.clone())?;
    ensure!(
        before == after,
        "{before} open files, {after} after all rounds"
    );
    let opened = testbed.stats()?.commands(FUNCTION, "open_context")?;
    ensure!(opened == ROUNDS, "{opened} contexts were opened");
    let uars = testbed.stats()?.commands(FUNCTION, "alloc_uar")?;
    ensure!(
        uars.is_multiple_of(ROUNDS),
        "{uars} doorbell pages in {ROUNDS} rounds"
    );
    Ok(())
}

/// Each destroyed channel closes both ends of its pipe at once, or with the last duplicate of its
/// file.
fn channels_leave_no_file(world: &World) -> Result<()> {
    const CHANNELS: &str = "1000";
    let testbed = Testbed::new(world)?;
    let mut command = testbed.command(FUNCTION, compile("contexts")?);
    let said = succeed(command.args(["channels", CHANNELS]))?;
    let files = said
        .trim()
        .strip_prefix("ok files=")
        .context(said.clone())?;
    let counts = files.split(',').map(str::parse::<i64>);
    let counts = counts.collect::<Result<Vec<_>, _>>()?;
    let [first, ..] = counts[..] else {
        bail!("{said}")
    };
    // The duplicate and the write end stay open together.
    let expected = [first, first, first, first + 2, first];
    ensure!(counts == expected, "{counts:?}, not {expected:?}");
    Ok(())
}

/// The page at address 0 never belongs to a context, whatever was closed before.
fn leaves_null_alone(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut command = testbed.command(FUNCTION, compile("contexts")?);
    let Output { stdout, stderr, .. } = command.arg("null").output()?;
    let (said, complained) = (String::from_utf8(stdout)?, String::from_utf8(stderr)?);
    ensure!(
        said == format!("ok store={SIGSEGV} load={SIGSEGV}\n"),
        "{said}{complained}"
    );
    ensure!(complained.is_empty(), "{complained}");
    Ok(())
}

/// Making the doorbell pages of one thread's context read-only affects no page of another thread, whatever it maps and unmaps.
fn opened_by_threads(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let rounds = ROUNDS_OF_A_THREAD.to_string();
    let mut command = testbed.command(FUNCTION, compile("contexts")?);
    let said = succeed(command.args(["threads", &rounds]))?;
    ensure!(said == "ok\n", "{said}");
    Ok(())
}

fn limit(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut command = testbed.command(FUNCTION, compile("contexts")?);
    let Output { stdout, stderr, .. } = command.arg("most").output()?;
    let (said, complained) = (String::from_utf8(stdout)?, String::from_utf8(stderr)?);
    ensure!(
        said == format!("ok opened={CONTEXTS_MAX} errno={EMFILE}\n"),
        "{said}{complained}"
    );
    let named = complained.contains(&format!("{CONTEXTS_MAX} contexts"));
    ensure!(named && complained.lines().count() == 1, "{complained}");
    Ok(())
}
