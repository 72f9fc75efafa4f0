//! The pool and the alias map on libmlx5 and the emulated device, with programs of the
//! testbed and the example of their crate.

use crate::harness::{Case, Outcome};
use crate::process;
use crate::world::{LIMIT, Testbed, World, free_port, succeed, succeed_pair};
use anyhow::{Context, Result, bail, ensure};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("pool_device_check", device_check),
        Case::new("pool_export_verbs", export_verbs),
        Case::new("pool_faults", faults),
        Case::new("pool_exporter_vanishes", exporter_vanishes),
        Case::that_may_skip("pool_dma_buf", dma_buf),
    ]
}

/// The pool's own list of faults, and the emulator's rules for each of them. Seeds determine the
/// chances, so that a failed run fails again. The rules end, so that a pool can be closed in order.
const FAULTS: &[(&str, &str)] = &[
    (
        "a key is not created",
        "node0.host command create_mkey every 2 times 9 status INTERNAL_ERR",
    ),
    (
        "a key may not be opened to others",
        "node0.host command allow_other_vhca_access every 2 times 9 status BAD_PARAM",
    ),
    (
        "the device is full",
        "node0.host command create_mkey after 3 status LIMITS_EXCEEDED",
    ),
    (
        "a bind ends in an error",
        "node0.host request umr_bind chance 0.1 seed 5 syndrome MW_BIND_ERR",
    ),
    (
        "an invalidation ends in an error",
        "node0.host request umr_invalidate chance 0.1 seed 5 syndrome LOCAL_PROT_ERR",
    ),
    (
        "a completion never comes",
        "node0.host request umr every 25 times 6 never",
    ),
    (
        "a completion comes too late",
        "node0.host request umr every 25 times 6 late 150ms",
    ),
    (
        "the queue fails",
        "node0.host request umr chance 0.1 seed 5 qp_error",
    ),
    (
        "the queue fails and cannot be replaced at once",
        "node0.host request umr every 10 qp_error; node0.host command modify_qp_rtr every 2 status BAD_PARAM",
    ),
    (
        "a key can be neither invalidated nor destroyed",
        "node0.host request umr_invalidate chance 0.7 seed 5 syndrome LOCAL_PROT_ERR; \
         node0.host command destroy_mkey chance 0.7 seed 5 status INTERNAL_ERR",
    ),
    (
        "an alias is not created",
        "node0.dpu command create_general_object every 2 times 9 status BAD_RESOURCE",
    ),
    (
        "a little of everything",
        "node0.host command create_mkey chance 0.02 seed 5 status INTERNAL_ERR; \
         node0.host request umr chance 0.02 seed 6 syndrome LOCAL_PROT_ERR; \
         node0.host request umr chance 0.005 seed 7 never; \
         node0.dpu command create_general_object chance 0.02 seed 8 status BAD_RESOURCE",
    ),
];

/// The invariants that hold on a simulated adapter hold on libmlx5: the same list, the same
/// program.
fn faults(world: &World) -> Result<()> {
    let program = world.built("device_faults");
    let testbed = Testbed::new(world)?;
    let list = succeed(
        testbed
            .command("node0.host,node0.dpu", &program)
            .arg("--list"),
    )?;
    let known: Vec<&str> = FAULTS.iter().map(|(name, _)| *name).collect();
    let listed: Vec<&str> = list.lines().filter(|line| !line.is_empty()).collect();
    ensure!(
        listed == known,
        "the pool's list is {listed:?}, not {known:?}"
    );
    for (name, rules) in FAULTS {
        for mode in ["strict", "batched", "chained"] {
            let mut command = testbed.command("node0.host,node0.dpu", &program);
            command.args(["mlx5_0", "mlx5_1", name, mode]);
            let output = succeed(command.env("BFEMU_FAULTS", rules))?;
            ensure!(output.ends_with("ok\n"), "{name}, {mode}:\n{output}");
        }
    }
    Ok(())
}

/// Memory registered through its dma-buf, if kernel and device support it.
fn dma_buf(world: &World) -> Result<Outcome> {
    const CANNOT: i32 = 77;
    let testbed = Testbed::new(world)?;
    let program = world.built("dma_buf");
    let mut command = testbed.command("node0.host,node0.dpu", program);
    let done = process::run(command.args(["mlx5_0", "mlx5_1"]), LIMIT)?;
    if done.status.code() == Some(CANNOT) {
        return Ok(Outcome::Skipped(done.output.trim().to_owned()));
    }
    ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
    Ok(Outcome::Passed)
}

/// If an exporter dies, its importer soon gets an error and does not hang.
fn exporter_vanishes(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let program = world.built("export_verbs");
    let port = free_port()?;
    let address = format!("127.0.0.1:{port}");
    let ended = succeed_pair(
        testbed
            .command("node0.host", &program)
            .args(["host", &address, "--rounds", "10", "--bytes", "65536"])
            .env("BFEMU_FAULTS", "node0.host request umr_bind nth 4 vanish"),
        testbed
            .command("node0.dpu", &program)
            .args(["dpu", &address]),
        port,
    );
    let Err(both) = ended.map_err(|error| format!("{error:#}")) else {
        bail!("both ended well, although the exporter should have died");
    };
    let (server, client) = both
        .split_once("-- server: ")
        .and_then(|(_, rest)| rest.split_once("-- client: "))
        .with_context(|| both.clone())?;
    ensure!(
        server.starts_with("signal: 9"),
        "the exporter lived on:\n{both}"
    );
    ensure!(
        client.starts_with("exit status: 1"),
        "the importer did not end by itself:\n{both}"
    );
    Ok(())
}

/// All requirements of the pool on its device, with both functions of a node in one process.
fn device_check(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let program = world.built("device_check");
    let output = succeed(
        testbed
            .command("node0.host,node0.dpu", program)
            .args(["mlx5_0", "mlx5_1"]),
    )?;
    let passed = output
        .lines()
        .filter(|line| line.starts_with("ok "))
        .count();
    ensure!(passed > 0, "no check ran:\n{output}");
    ensure!(
        output.contains(&format!("{passed} checks, 0 failed")),
        "{passed} checks passed:\n{output}"
    );
    Ok(())
}

/// Host and DPU in two processes: bytes arrive through pooled keys, and none through released keys.
fn export_verbs(world: &World) -> Result<()> {
    const ROUNDS: u64 = 10;
    const BYTES: u64 = 65536;
    let testbed = Testbed::new(world)?;
    let program = world.built("export_verbs");
    let port = free_port()?;
    let address = format!("127.0.0.1:{port}");
    let (host, dpu) = succeed_pair(
        testbed
            .command("node0.host", &program)
            .args(["host", &address])
            .args(["--rounds", &ROUNDS.to_string()])
            .args(["--bytes", &BYTES.to_string()]),
        testbed
            .command("node0.dpu", &program)
            .args(["dpu", &address]),
        port,
    )?;
    let verified = count_before(&dpu, " bytes verified")?;
    ensure!(
        verified == ROUNDS * BYTES,
        "{verified} bytes verified:\n{dpu}"
    );
    let created = count_before(&dpu, " aliases created")?;
    let keys = testbed.stats()?.commands("node0.host", "create_mkey")?;
    ensure!(
        created < ROUNDS && keys < ROUNDS,
        "{keys} keys and {created} aliases for {ROUNDS} exports:\n{host}\n{dpu}"
    );
    // From the device's own count, which the programs cannot influence.
    let (bound, released) = (
        testbed.stats()?.executed("umr_bind")?,
        testbed.stats()?.executed("umr_invalidate")?,
    );
    ensure!(
        bound >= ROUNDS && released >= ROUNDS,
        "{bound} binds and {released} invalidations for {ROUNDS} exports:\n{host}\n{dpu}"
    );
    Ok(())
}

/// The number before `what`.
fn count_before(text: &str, what: &str) -> Result<u64> {
    text.split_once(what)
        .and_then(|(before, _)| before.rsplit(|c: char| !c.is_ascii_digit()).next())
        .and_then(|digits| digits.parse().ok())
        .with_context(|| format!("no count of{what}:\n{text}"))
}
