//! Adversary mode: the device does what an adapter may do, and the product's tests pass. Each group of tests
//! below runs again in this program's child, whose programs are in that mode.

use crate::harness::Case;
use crate::process;
use crate::world::{Testbed, World, free_port, succeed_pair};
use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::time::Duration;

/// Variable with the seed of all groups, for the suite of many seeds.
const SEED: &str = "XGVMI_ADVERSARY_SEED";
/// Bound of a hang of one group.
const LIMIT: Duration = Duration::from_secs(400);

/// Tests by name, which take less than a second each. Group N runs under seed N.
const GROUPS: [&[&str]; 10] = [
    &["naaice_verbs_infiniband", "offload_known_sums"],
    &["pool_export_verbs", "arena_reuse_on_small_pages"],
    &["offload_kept_buffers", "imports_of_a_key_created_again"],
    &["storage_c_library", "arena_stale_peer"],
    &["storage_bytes_xgvmi", "arena_remote_key"],
    &["storage_bytes_without", "pool_proof_of_lists"],
    &["naaice_kernel_processes_serve_again", "storage_rdma_bytes"],
    &["naaice_dpu_pool", "storage_rdma_target_lost"],
    &["offload_jobs_one_after", "arena_eight_threads"],
    &["storage_service_killed_between", "pool_proof_is_remembered"],
];

pub(crate) fn cases() -> Vec<Case> {
    let groups = (0..).zip(GROUPS).map(|(number, names)| {
        Case::new(format!("adversary_group_{number}"), move |_| {
            group(number, names)
        })
    });
    groups
        .chain([Case::new("adversary_stock_programs", stock)])
        .collect()
}

/// Runs tests of this program in a child. All programs of the child are in adversary mode.
fn group(number: u64, names: &[&str]) -> Result<()> {
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().context(SEED)?,
        Err(_) => number,
    };
    let own = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(own);
    command
        .args(names)
        .env("BFEMU_MODE", format!("adversary:{seed}"))
        .env_remove(SEED);
    let done = process::run(&mut command, LIMIT)?;
    ensure!(
        done.ok(),
        "seed {seed}: {}\n{}",
        done.verdict(),
        done.output
    );
    let expect = format!(" {} passed; 0 failed; 0 skipped", names.len());
    ensure!(
        done.output.contains(&expect),
        "seed {seed}: not{expect}:\n{}",
        done.output
    );
    Ok(())
}

/// Stock programs, which compare each byte or count each message.
fn stock(world: &World) -> Result<()> {
    for (seed, (program, options)) in (1..).zip([
        ("ibv_rc_pingpong", &["-c", "-n", "100"][..]),
        ("ibv_srq_pingpong", &["-c", "-n", "100"]),
        ("ib_write_bw", &["-F", "-n", "100"]),
        ("ib_read_bw", &["-F", "-n", "100"]),
        ("ib_atomic_bw", &["-F", "-n", "100"]),
        ("ib_send_bw", &["-F", "-e", "-n", "100"]),
    ]) {
        let testbed = Testbed::new(world)?;
        let port = free_port()?;
        let run = |function: &str| {
            let mut command = testbed.command(function, world.verbs_tool(program));
            command
                .env("BFEMU_MODE", format!("adversary:{seed}"))
                .args(["-d", "mlx5_0", "-p", &port.to_string()])
                .args(options);
            command
        };
        succeed_pair(
            &mut run("node0.host"),
            run("node1.dpu").arg("127.0.0.1"),
            port,
        )
        .with_context(|| format!("{program}, seed {seed}"))?;
    }
    Ok(())
}
