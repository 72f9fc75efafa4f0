//! `cost_table` over libmlx5 and the emulated device: every row is measured, and a pooled key needs
//! no command.

use crate::harness::Case;
use crate::world::{Testbed, World, free_port, succeed, succeed_pair};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("cost_table_measures_every_row", every_row),
        Case::new("cost_table_of_a_dpu_elsewhere", elsewhere),
        Case::new("a_pool_hit_needs_no_command", pool_hit),
        Case::new("cost_table_sets_own_time_apart", own_time),
    ]
}

/// Steps of the approaches, as in the published table.
const ROWS: usize = 27;

fn every_row(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let csv = testbed.path().join("cost.csv");
    succeed(
        testbed
            .command("node0.host,node0.dpu", world.built("cost_table"))
            .args(["--host", "mlx5_0", "--dpu", "mlx5_1", "--repeats", "3"])
            .args(["--sizes", "16K,4M", "--output"])
            .arg(&csv),
    )?;
    let text = fs::read_to_string(&csv)?;
    let mut lines = text.lines();
    ensure!(
        lines.next() == Some("approach,step,ns_16KiB,ns_4MiB"),
        "{text}"
    );
    let measured = lines
        .filter(|line| {
            let mut times = line.split(',').skip(2).map(str::parse::<u64>);
            times
                .by_ref()
                .take(2)
                .all(|time| time.is_ok_and(|ns| ns > 0))
                && times.next().is_none()
        })
        .count();
    ensure!(measured == ROWS, "{measured} rows of {ROWS}:\n{text}");
    Ok(())
}

/// Host and DPU in two processes, as on two machines.
fn elsewhere(world: &World) -> Result<()> {
    const REPEATS: u64 = 5;
    let testbed = Testbed::new(world)?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let port = address.rsplit(':').next().unwrap_or_default().parse()?;
    let program = world.built("cost_table");
    let (served, table) = succeed_pair(
        testbed
            .command("node0.dpu", &program)
            .args(["--serve", &address]),
        testbed
            .command("node0.host", &program)
            .args(["--dpu", &address, "--approaches", "umr", "--sizes", "16K"])
            .args(["--repeats", &REPEATS.to_string()]),
        port,
    )?;
    ensure!(table.contains("dpu_mkey_registration"), "{table}");
    // Plus one round, which does not count.
    let made = testbed.stats()?.commands("node0.dpu", "create_alias")?;
    ensure!(made == REPEATS + 1, "{made} aliases:\n{served}\n{table}");
    Ok(())
}

fn pool_hit(world: &World) -> Result<()> {
    const REPEATS: u64 = 10;
    let testbed = Testbed::new(world)?;
    succeed(
        testbed
            .command("node0.host", world.built("cost_table"))
            .args(["--approaches", "umr_pool_hit", "--sizes", "16K"])
            .args(["--repeats", &REPEATS.to_string()]),
    )?;
    let (made, bound) = (
        testbed.stats()?.commands("node0.host", "create_mkey")?,
        testbed.stats()?.executed("umr_bind")?,
    );
    ensure!(
        made == 1 && bound == REPEATS + 2,
        "{made} keys made and {bound} bound in {REPEATS} rounds, one more, and the proof"
    );
    Ok(())
}

/// The profile's duration of a step applies to that step only. The report shows the own time next
/// to it.
fn own_time(world: &World) -> Result<()> {
    const PROFILE: &str = "source = \"a test\"\n[cost_ns]\numr_bind = 20000000\n";
    const BIND_NS: f64 = 20e6;
    let (free, slow) = (Testbed::new(world)?, Testbed::new(world)?);
    let profile = slow.path().join("slow.toml");
    fs::write(&profile, PROFILE)?;
    let profile = profile.to_str().context("a path of UTF-8")?;
    let (own, report) = (free.path().join("own.json"), slow.path().join("cost.json"));
    let measure = |testbed: &Testbed<'_>, profile: &str, extra: &[&Path]| {
        let options = ["--profile", profile];
        let mut command = testbed.command_with(&options, "node0.host", world.built("cost_table"));
        command.args(["--approaches", "umr_pool_hit", "--sizes", "16K"]);
        succeed(command.args(["--repeats", "5"]).args(extra))
    };
    measure(&free, "none", &[Path::new("-o"), &own])?;
    measure(
        &slow,
        profile,
        &[Path::new("--own"), &own, Path::new("-o"), &report],
    )?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
    let rows = report["rows"].as_array().context("rows")?;
    ensure!(rows.len() == 4, "{report:#}");
    for row in rows {
        let ns = |key: &str| {
            row[key]
                .as_f64()
                .with_context(|| format!("{key} of {row:#}"))
        };
        ensure!(ns("own_ns")? > 0.0, "{row:#}");
        if row["step"] == "host_umr_mkey_registration" {
            // Never shorter. The own time comes from the other run.
            ensure!(
                ns("least_ns")? >= BIND_NS && ns("own_ns")? < BIND_NS,
                "{row:#}"
            );
        } else {
            ensure!(ns("measured_ns")? < BIND_NS, "{row:#}");
        }
    }
    Ok(())
}
