//! The pool's work requests beside those of stock UCX, byte for byte, and the proof of each form by bytes.

use crate::agent::compile_for_ucx;
use crate::harness::Case;
use crate::process;
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("pool_posts_what_stock_ucx_posts", |world| {
            posts_as_stock(world, "raw")
        }),
        Case::new("pool_posts_what_stock_ucx_posts_by_verbs", |world| {
            posts_as_stock(world, "verbs")
        }),
        Case::new("pool_posts_what_stock_ucx_posts_by_post_send", |world| {
            posts_as_stock(world, "send")
        }),
        Case::new(
            "pool_post_send_leaves_lists_to_ucx",
            post_send_without_lists,
        ),
        Case::new("pool_proof_precedes_the_first_key", proof_first),
        Case::new("pool_proof_is_remembered", remembered),
        Case::new("pool_proof_of_lists_fails", list_proof_fails),
    ];
    cases.extend(
        FAILURES
            .iter()
            .map(|row| Case::new(row.name, move |world| proof_fails(world, row))),
    );
    cases
}

const ROUNDS: usize = 4;
const BYTES: &str = "65536";
/// A buffer that UCX registers in four parts with these variables, so that its bind has the list form.
const LIST_BYTES: &str = "2097152";
const IN_PARTS: [(&str, &str); 2] = [
    ("UCX_IB_REG_MT_THRESH", "512k"),
    ("UCX_IB_REG_MT_CHUNK", "512k"),
];

/// Runs the program in a testbed, with the library beneath UCX or without. Returns what it said.
fn export(
    world: &World,
    testbed: &Testbed<'_>,
    variables: Option<&[(&str, &str)]>,
) -> Result<String> {
    export_bytes(world, testbed, BYTES, variables)
}

/// The same with buffers of another size.
fn export_bytes(
    world: &World,
    testbed: &Testbed<'_>,
    bytes: &str,
    variables: Option<&[(&str, &str)]>,
) -> Result<String> {
    let mut command = testbed.ucx_command_with(
        &[],
        "node0.host",
        compile_for_ucx(world, "ucp_export", &[])?,
    );
    command.args([&ROUNDS.to_string(), bytes]);
    if let Some(variables) = variables {
        let library = world.built("libuct_ib_mlx5_xgvmi.so");
        command.env("LD_PRELOAD", library);
        command.envs(variables.iter().copied());
    }
    succeed(&mut command)
}

/// The UMR requests that the program posts, in their order.
fn posted(world: &World, variables: Option<&[(&str, &str)]>) -> Result<Vec<Vec<u8>>> {
    let testbed = Testbed::new(world)?;
    // A fabric to trace.
    succeed(&mut testbed.command("node0.host", "true"))?;
    process::stdout(testbed.emulator("trace").arg("--on"), LIMIT)?;
    export(world, &testbed, variables)?;
    let text = process::stdout(testbed.emulator("trace").arg("--json"), LIMIT)?;
    let mut entries: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line)?;
        if record["kind"] != "entry" {
            continue;
        }
        let number = |name: &str| {
            let value = record[name].as_u64();
            value.with_context(|| format!("no {name} in {line}"))
        };
        let hex = record["hex"].as_str().context("no bytes")?;
        let bytes = (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16));
        let entry = entries.entry((number("qpn")?, number("index")?));
        entry
            .or_default()
            .extend(bytes.collect::<Result<Vec<_>, _>>()?);
    }
    Ok(entries.into_values().collect())
}

/// Bytes of a request that are the same whoever posts it: what libmlx5 writes, without the numbers of the queue pair,
/// of keys and of memory. The context of an invalidation has places that libmlx5 leaves as they were in the ring.
fn masked(entry: &[u8]) -> Vec<u8> {
    let is_bind = entry.len() == 192;
    let numbers =
        |at: &usize| matches!(at, 4..7 | 12..15) || is_bind && matches!(at, 80..88 | 132..144);
    let unwritten = |at: &usize| match is_bind {
        true => matches!(at, 65 | 67 | 72..80 | 96..128),
        false => matches!(at, 65..68 | 72..128),
    };
    let keep = |at: usize, byte: u8| match numbers(&at) || unwritten(&at) {
        true => 0,
        false => byte,
    };
    let bytes = entry.iter().enumerate();
    bytes.map(|(at, byte)| keep(at, *byte)).collect()
}

fn posts_as_stock(world: &World, post: &str) -> Result<()> {
    let stock = posted(world, None)?;
    ensure!(
        stock.len() == 2 * ROUNDS,
        "stock UCX posted {} requests for {ROUNDS} exports",
        stock.len()
    );
    let variables = [("UCX_XGVMI_PROVE", "n"), ("UCX_XGVMI_POST", post)];
    let ours = posted(world, Some(&variables))?;
    ensure!(
        ours.len() == stock.len(),
        "{} requests, stock UCX posted {}",
        ours.len(),
        stock.len()
    );
    for (number, (ours, stock)) in ours.iter().zip(&stock).enumerate() {
        ensure!(
            masked(ours) == masked(stock),
            "request {number} differs:\nours  {ours:02x?}\nstock {stock:02x?}"
        );
    }
    // The comparison is of binds and invalidations in turn, each with its own length.
    let lengths: Vec<usize> = stock.iter().map(Vec::len).collect();
    ensure!(lengths == [192, 128].repeat(ROUNDS), "{lengths:?}");
    Ok(())
}

/// What the device has done with UMR and the reads of proofs: binds, invalidations, RDMA READs and WRITEs.
fn counts(testbed: &Testbed<'_>) -> Result<[u64; 4]> {
    Ok([
        testbed.stats()?.executed("umr_bind")?,
        testbed.stats()?.executed("umr_invalidate")?,
        testbed.stats()?.executed("rdma_read")?,
        testbed.stats()?.executed("rdma_write")?,
    ])
}

/// Commands of one proof, with those that end its objects when the device is closed.
const PROOF_COMMANDS: [(&str, u64); 7] = [
    ("reg_mr", 1),
    ("create_cq", 1),
    ("create_qp", 1),
    // Three to connect it, and four more after the first refusal.
    ("modify_qp", 7),
    ("destroy_qp", 1),
    ("destroy_cq", 1),
    ("dereg_mr", 1),
];

/// One proof for each process, and none if none is requested. A proof costs a fixed number of commands, and its
/// refusals send no asynchronous event.
fn proof_first(world: &World) -> Result<()> {
    let rounds = ROUNDS as u64;
    let mut issued = Vec::new();
    for (prove, proofs) in [("n", 0), ("y", 1)] {
        let testbed = Testbed::new(world)?;
        let said = export(world, &testbed, Some(&[("UCX_XGVMI_PROVE", prove)]))?;
        let found = counts(&testbed)?;
        let expect = [rounds + proofs, rounds + proofs, proofs, proofs];
        ensure!(
            found == expect,
            "{prove}: {found:?}, not {expect:?}:\n{said}"
        );
        let refused = |reason| testbed.stats()?.refusals("node0.host", reason);
        let refusals = (refused("local_protection")?, refused("remote_access")?);
        ensure!(refusals == (2 * proofs, 0), "{prove}: {refusals:?}");
        issued.push(testbed.stats()?.all_commands("node0.host")?);
    }
    let [without, with] = issued.as_slice() else {
        anyhow::bail!("two runs");
    };
    for (kind, count) in with {
        let more = count - without.get(kind).copied().unwrap_or_default();
        let known = PROOF_COMMANDS.iter().find(|(known, _)| known == kind);
        let expect = known.map_or(0, |(_, count)| *count);
        ensure!(more == expect, "the proof adds {more} {kind}, not {expect}");
    }
    Ok(())
}

/// With `once` the second process proves nothing, unless others may write where that is remembered.
fn remembered(world: &World) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let testbed = Testbed::new(world)?;
    let cache = testbed.path().join("cache");
    let reads = |before: u64| -> Result<u64> {
        let home = cache.to_string_lossy();
        let variables = [("UCX_XGVMI_PROVE", "once"), ("XDG_CACHE_HOME", &*home)];
        export(world, &testbed, Some(&variables))?;
        Ok(testbed.stats()?.executed("rdma_read")? - before)
    };
    let first = reads(0)?;
    ensure!(first == 1, "{first} reads of the first process");
    ensure!(reads(first)? == 0, "the second process proved it again");
    let dir = cache.join("xgvmi");
    ensure!(fs::read_dir(&dir)?.count() == 1, "one form is remembered");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777))?;
    ensure!(
        reads(first)? == 1,
        "a directory that others may write was believed"
    );
    Ok(())
}

/// A proof that fails, by a fault of the device.
struct Failure {
    name: &'static str,
    rules: &'static str,
    /// What the warning says.
    says: &'static str,
}

const FAILURES: &[Failure] = &[
    Failure {
        name: "pool_proof_finds_a_refused_bind",
        rules: "node0.host request umr_bind nth 1 syndrome MW_BIND_ERR",
        says: "the bind is refused (syndrome 0x6)",
    },
    Failure {
        name: "pool_proof_finds_a_bind_without_effect",
        rules: "node0.host request umr_bind nth 1 ignored",
        says: "the bytes are not read back",
    },
    Failure {
        name: "pool_proof_finds_wrong_addresses",
        rules: "node0.host request umr_bind nth 1 shifted",
        says: "the bytes are not read back (syndrome 0x0)",
    },
    Failure {
        name: "pool_proof_finds_a_read_without_effect",
        rules: "node0.host request rdma_read nth 1 ignored",
        says: "the bytes are not read back (syndrome 0x0)",
    },
    Failure {
        name: "pool_proof_finds_a_key_that_is_too_long",
        rules: "node0.host request umr_bind nth 1 longer",
        says: "a read beyond the end is not refused",
    },
    Failure {
        name: "pool_proof_finds_a_refused_invalidation",
        rules: "node0.host request umr_invalidate nth 1 syndrome LOCAL_PROT_ERR",
        says: "the invalidation is refused (syndrome 0x4)",
    },
    Failure {
        name: "pool_proof_finds_an_invalidation_without_effect",
        rules: "node0.host request umr_invalidate nth 1 ignored",
        says: "a read through the invalid key is not refused",
    },
];

/// The form is not used again: one line says so, and every export takes UCX's own path.
fn proof_fails(world: &World, row: &Failure) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let variables = [("BFEMU_FAULTS", row.rules), ("UCX_XGVMI_LOG_LEVEL", "warn")];
    let said = export(world, &testbed, Some(&variables))?;
    one_warning(&said, "stock", row)?;
    // Every export of the program was carried out, by requests of stock UCX: it binds as often as it exports, beside
    // what the proof tried.
    let binds = testbed.stats()?.executed("umr_bind")?;
    ensure!(
        binds >= ROUNDS as u64 && binds <= ROUNDS as u64 + 1,
        "{binds} binds for {ROUNDS} exports"
    );
    Ok(())
}

/// The same for the list form. UCX's own path creates a key for each of these exports.
fn list_proof_fails(world: &World) -> Result<()> {
    let rounds = ROUNDS as u64;
    let run = |testbed: &Testbed<'_>, rules: &str| -> Result<String> {
        let variables = [
            IN_PARTS[0],
            IN_PARTS[1],
            ("BFEMU_FAULTS", rules),
            ("UCX_XGVMI_LOG_LEVEL", "warn"),
        ];
        export_bytes(world, testbed, LIST_BYTES, Some(&variables))
    };
    // Without a fault the list form is proved, and the pool serves the exports.
    let testbed = Testbed::new(world)?;
    run(&testbed, "")?;
    let found = counts(&testbed)?;
    ensure!(found == [rounds + 1, rounds + 1, 1, 1], "{found:?}");
    for row in FAILURES {
        let testbed = Testbed::new(world)?;
        let said = run(&testbed, row.rules)?;
        one_warning(&said, "list", row).with_context(|| row.name.to_owned())?;
        let binds = testbed.stats()?.executed("umr_bind")?;
        ensure!(binds <= 1, "{}: {binds} binds", row.name);
    }
    Ok(())
}

/// `ibv_post_send` has no request for the list form: one line says so, and UCX exports the memory. The pool serves all
/// other memory.
fn post_send_without_lists(world: &World) -> Result<()> {
    let variables = [
        IN_PARTS[0],
        IN_PARTS[1],
        ("UCX_XGVMI_POST", "send"),
        ("UCX_XGVMI_LOG_LEVEL", "warn"),
    ];
    let row = Failure {
        name: "post_send",
        rules: "",
        says: "by ibv_post_send",
    };
    let testbed = Testbed::new(world)?;
    let said = export_bytes(world, &testbed, LIST_BYTES, Some(&variables))?;
    one_warning(&said, "list", &row)?;
    ensure!(testbed.stats()?.executed("umr_bind")? == 0, "{said}");
    let testbed = Testbed::new(world)?;
    let said = export(world, &testbed, Some(&variables))?;
    ensure!(!said.contains("WARN"), "{said}");
    let rounds = ROUNDS as u64;
    let found = counts(&testbed)?;
    ensure!(found == [rounds + 1, rounds + 1, 1, 1], "{found:?}");
    Ok(())
}

/// Exactly one line names the form, the device, the firmware and the failure.
fn one_warning(said: &str, form: &str, row: &Failure) -> Result<()> {
    let what = format!("binds of the {form} form are not used");
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains(&what)).collect();
    let [warning] = warnings.as_slice() else {
        anyhow::bail!("{} warnings instead of one:\n{said}", warnings.len());
    };
    for part in ["WARN", "mlx5_0, firmware ", row.says] {
        ensure!(warning.contains(part), "no '{part}' in: {warning}");
    }
    Ok(())
}
