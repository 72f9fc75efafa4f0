//! Imports of the library's keys through stock UCX: device commands, and counters at the end. Host and DPU are two contexts
//! of one program.

use crate::agent::compile_for_ucx;
use crate::harness::Case;
use crate::world::{Testbed, World, succeed};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// Imports of each key.
const IMPORTS: u64 = 6;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("imports_of_a_key_created_again", key_created_again),
        Case::new("imports_and_exports_in_use_at_the_end", in_use_at_the_end),
    ]
}

/// `programs/ucp_import.c` with the library, for a number of exports.
fn program(world: &World, testbed: &Testbed<'_>, exports: u64) -> Result<Command> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../uct-plugin/include");
    let program = compile_for_ucx(world, "ucp_import", &["-isystem".as_ref(), own.as_os_str()])?;
    let functions = "node0.host,node0.dpu";
    let mut command = testbed.ucx_command_with(&[], functions, program);
    command.args(["mlx5_0", "mlx5_1"]);
    command.args([exports.to_string(), IMPORTS.to_string()]);
    command.env("LD_PRELOAD", world.built("libuct_ib_mlx5_xgvmi.so"));
    command.env("UCX_XGVMI_INVALIDATE", "strict");
    command.env("UCX_XGVMI_POOL_INIT", "1");
    Ok(command)
}

/// Number behind `name` in the program's line.
fn number(line: &str, name: &str) -> Result<u64> {
    let mut words = line.split_whitespace();
    words
        .find(|word| *word == name)
        .and_then(|_| words.next())
        .and_then(|word| word.parse().ok())
        .with_context(|| format!("no {name}: {line}"))
}

/// The pool destroys keys that it cannot invalidate. After some exports a new key has the index of a destroyed one and another
/// tag, as UCX's keys outside its pool do. The importer recognises the exporter and keeps the alias: only the first import of
/// each key costs a command.
fn key_created_again(world: &World) -> Result<()> {
    // More than there are free indices when the program starts to export.
    const EXPORTS: u64 = 24;
    let testbed = Testbed::new(world)?;
    let mut command = program(world, &testbed, EXPORTS)?;
    // The first invalidation is the library's check of the device.
    let rule = "node0.host request umr_invalidate after 1 syndrome LOCAL_PROT_ERR";
    command.env("BFEMU_FAULTS", rule);
    let said = succeed(&mut command)?;
    let expect = (EXPORTS, EXPORTS * IMPORTS);
    let served = (number(&said, "exports")?, number(&said, "imports")?);
    ensure!(served == expect, "{expect:?}: {said}");
    let keys = testbed.stats()?.commands("node0.host", "create_mkey")?;
    ensure!(keys >= EXPORTS, "{keys} keys: {said}");
    let aliases = testbed.stats()?.commands("node0.dpu", "create_alias")?;
    ensure!(
        aliases == EXPORTS,
        "{aliases} aliases of {EXPORTS} keys with {IMPORTS} imports each"
    );
    Ok(())
}

/// The end of a memory domain releases what is still in use, and counts it.
fn in_use_at_the_end(world: &World) -> Result<()> {
    const EXPORTS: u64 = 3;
    let testbed = Testbed::new(world)?;
    let said = succeed(&mut program(world, &testbed, EXPORTS)?)?;
    let expect = [
        ("exports", EXPORTS),
        ("releases", EXPORTS),
        ("imports", EXPORTS * IMPORTS),
        ("released", EXPORTS * IMPORTS),
    ];
    for (name, count) in expect {
        ensure!(number(&said, name)? == count, "{count} {name}: {said}");
    }
    Ok(())
}
