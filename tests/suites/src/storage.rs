//! Stock block clients on exports of `xgvmi-blk`: the crate `storage-suite` with the programs of the set-up.

use super::{Case, Outcome, World};
use anyhow::Result;
use dev_setup as setup;
use std::path::{Path, PathBuf};
use testbed::foreign::Foreign;

/// Variable with a directory of built programs of xfstests.
const EXERCISERS: &str = "XGVMI_XFSTESTS";

/// Samples for `cargo xtask test`: a guest whose export is killed, and two rounds of each loop. A guest's kernel takes long to
/// start without KVM.
pub(super) const VHOST_SAMPLE: &[&str] = &["the export is killed while the guest writes"];
pub(super) const LOOPS_SAMPLE: &[&str] = &["rounds 2", "repair:", "replay:", "replacement:"];

/// All tests that are wanted.
pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let mut cases = run_with(world, &world.parts, None)?;
    let tools = setup::storage()?;
    for (name, result) in storage_suite::run_kernel(&parts(world, &tools))? {
        cases.push(match result {
            Ok(result) => Case::of(name, result),
            Err(reason) => Case {
                name: name.to_owned(),
                outcome: Outcome::Skipped(reason),
            },
        });
    }
    Ok(cases)
}

/// The tests of NBD with TLS.
pub(super) fn run_tls(world: &World) -> Result<Vec<Case>> {
    let tools = setup::storage()?;
    let results = storage_suite::run_tls(&parts(world, &tools))?;
    Ok(results
        .into_iter()
        .map(|(name, result)| Case::of(name, result))
        .collect())
}

/// The tests of a virtual machine, or why there is none.
pub(super) fn run_vhost(world: &World) -> Result<Vec<Case>> {
    let (Some(root), Some(guest)) = (setup::virtual_machine()?, setup::guest_tools()?) else {
        let reason = "needs x86-64 and Debian's packages of QEMU, a kernel and busybox";
        let skipped = |name: &str| Case {
            name: name.to_owned(),
            outcome: Outcome::Skipped(reason.to_owned()),
        };
        let names = storage_suite::VHOST_TESTS.into_iter();
        return Ok(names
            .chain([storage_suite::EXERCISE_TEST, storage_suite::LOG_TEST])
            .map(skipped)
            .collect());
    };
    let exercisers = std::env::var_os(EXERCISERS).map(PathBuf::from);
    let tools = setup::storage()?;
    let machinery = storage_suite::Machinery {
        root: &root,
        tools: &guest,
        fsx: &setup::fsx()?,
        exercisers: exercisers.as_deref(),
    };
    let results = storage_suite::run_vhost(&parts(world, &tools), machinery)?;
    let cases = results.into_iter();
    let mut cases: Vec<Case> = cases.map(|(name, result)| Case::of(name, result)).collect();
    let exercises = format!("{EXERCISERS} names no directory with fsstress");
    let logs = "the guest's kernel has no dm-log-writes".to_owned();
    for (name, is_there, reason) in [
        (
            storage_suite::EXERCISE_TEST,
            exercisers.is_some(),
            exercises,
        ),
        (storage_suite::LOG_TEST, storage_suite::has_log(&root), logs),
    ] {
        let wants =
            world.parts.is_empty() || world.parts.iter().any(|part| name.contains(part.as_str()));
        if !is_there && wants {
            cases.push(Case {
                name: name.to_owned(),
                outcome: Outcome::Skipped(reason),
            });
        }
    }
    Ok(cases)
}

/// The loops of failures.
pub(super) fn run_loops(world: &World) -> Result<Vec<Case>> {
    let tools = setup::storage()?;
    let results = storage_suite::run_loops(&parts(world, &tools))?;
    Ok(results
        .into_iter()
        .map(|(name, result)| Case::of(name, result))
        .collect())
}

/// What tests without the device need.
fn parts<'a>(world: &'a World, tools: &'a [(String, String)]) -> storage_suite::World<'a> {
    storage_suite::World {
        bin: &world.bin,
        dir: &world.dir,
        tools,
        ucx: Path::new(""),
        verbs: &[],
        parts: &world.parts,
        dpu: None,
    }
}

/// The tests whose names contain one of these words, with the services on this processor or on another one.
pub(super) fn run_with(
    world: &World,
    parts: &[String],
    dpu: Option<&Foreign>,
) -> Result<Vec<Case>> {
    let tools = setup::storage()?;
    let results = storage_suite::run(&storage_suite::World {
        bin: &world.bin,
        dir: &world.dir,
        tools: &tools,
        ucx: &world.env.ucx_lib_dir.join("libucp.so.0"),
        verbs: &world.env.for_ucx(),
        parts,
        dpu,
    })?;
    Ok(results
        .into_iter()
        .map(|(name, result)| Case::of(name, result))
        .collect())
}
