//! `cargo xtask bench storage`: runs the same fio jobs on `xgvmi-blk` and on stock NBD servers, measures the stored bytes,
//! and requests of fio's own memory through an emulated DPU; writes `target/bench/storage.json` and `storage.svg`.

use super::pool::instructions;
use crate::{process, setup, workspace};
use anyhow::{Context, Result, bail};
use bench_report::{columns, files, table};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Seconds of each job, unless the user wants others.
const SECONDS: u64 = 3;
const PLOT_LIMIT: Duration = Duration::from_secs(60);

/// How the writes of `write_cost` are: its option, and the writes of two runs, whose difference excludes the start-up.
pub(crate) const WRITES: [(&[&str], [u32; 2]); 2] =
    [(&[], [2000, 8000]), (&["in-order"], [40, 120])];
/// Most time of a run under valgrind.
const COUNT_LIMIT: Duration = Duration::from_secs(120);

/// Instructions, and calls of the allocator, for a write to targets in memory: a random one of 4 KiB, or one of 256 KiB in order.
pub(crate) fn per_write((order, writes): (&[&str], [u32; 2])) -> Result<[f64; 2]> {
    workspace::build(&["-p xgvmi-blk --example write_cost"])?;
    let program = workspace::target_dir().join("release/examples/write_cost");
    let mut counts = Vec::new();
    for count in writes {
        let mut command = Command::new(&program);
        command.arg(count.to_string()).args(order);
        let said = process::stdout(&mut command, COUNT_LIMIT)?;
        let said: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
        let calls = said["allocations"].as_u64().context("allocations")?;
        counts.push([instructions::of(&mut command, COUNT_LIMIT)?, calls]);
    }
    let between = |at: usize| counts[1][at].saturating_sub(counts[0][at]);
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^52")]
    let each = |at: usize| between(at) as f64 / f64::from(writes[1] - writes[0]);
    Ok([each(0), each(1)])
}

/// Measures, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    let seconds = seconds(options)?;
    let tools = setup::storage()?;
    files::prepare(file)?;
    workspace::build(&[
        "-p xgvmi-blk -p bf-emu -p bf-emu-preload -p xgvmi-fio -p testbed-programs",
    ])?;
    let demo = workspace::built("xgvmi-testbed");
    let env = setup::ensure()?;
    let world = storage_suite::World {
        bin: demo.parent().context("the program has a directory")?,
        dir: &workspace::target_dir().join("bench/storage"),
        tools: &tools,
        ucx: &env.ucx_lib_dir.join("libucp.so.0"),
        verbs: &env.for_ucx(),
        parts: &[],
        dpu: None,
    };
    let report = storage_suite::bench(&world, seconds)?;
    print!("{}", table::text(columns::STORAGE, rows(&report))?);
    print_engine(&report["engine"])?;
    let disks = report["disks"].as_array().context("rows of disks")?;
    print!("{}", table::text(columns::STORAGE_DISKS, disks)?);
    let total = &report["disks_total"][0];
    println!(
        "a socket carries {:.0} MiB/s, of which sequential reads of TCP targets reach {:.2}; a relay behind it {:.0}, of which \
         they reach {:.2}; flushed writes to two copies reach {:.2} of the pair; a rebuild is {:.2} of the sequential writes; {} bytes verified\n\
         connecting to an RDMA target takes {:.0} device commands on both sides\n\
         of the processor time of flushed writes past the cache, entries into calls that write are {:.4}\n",
        total["socket_mib_per_s"].as_f64().unwrap_or_default(),
        total["read_of_socket"].as_f64().unwrap_or_default(),
        total["relay_mib_per_s"].as_f64().unwrap_or_default(),
        total["read_of_relay"].as_f64().unwrap_or_default(),
        total["flushed_of_pair"].as_f64().unwrap_or_default(),
        total["rebuild_of_write"].as_f64().unwrap_or_default(),
        total["verified_bytes"],
        total["rdma_commands_per_target"]
            .as_f64()
            .unwrap_or_default(),
        total["direct_entries_of_cpu"].as_f64().unwrap_or_default()
    );
    let stored: &Value = &report["stored"][0];
    println!(
        "half compressible data: {} bytes stored, {} in the reference's format: {:.3}",
        stored["stored_bytes"],
        stored["reference_bytes"],
        stored["of_reference"].as_f64().unwrap_or_default()
    );
    files::save(file, &report, columns::STORAGE)?;
    let plot = file.with_extension("svg");
    let mut draw = Command::new(demo);
    draw.arg("storage-plot").args([file, &plot]);
    process::stdout(&mut draw, PLOT_LIMIT)?;
    println!("\nwritten: {}, {}", file.display(), plot.display());
    Ok(ExitCode::SUCCESS)
}

/// Requests of fio's own memory through the DPU, by the way to this memory.
fn print_engine(engine: &Value) -> Result<()> {
    println!("\nfio through the DPU");
    print!("{}", table::text(columns::STORAGE_ENGINE, rows(engine))?);
    let from = engine["faster_than_copy_from"].as_object();
    for (scheme, size) in from.into_iter().flatten() {
        match size.as_u64() {
            Some(size) => println!("{scheme} is faster than the copy from {size} bytes on"),
            None => println!("{scheme} is not faster than the copy at the largest size"),
        }
    }
    println!();
    Ok(())
}

fn rows(report: &Value) -> &[Value] {
    report["rows"].as_array().map_or(&[], Vec::as_slice)
}

fn seconds(options: &[String]) -> Result<u64> {
    match options {
        [] => Ok(SECONDS),
        [option, value] if option == "--seconds" => match value.parse() {
            Ok(seconds @ 1..=60) => Ok(seconds),
            _ => bail!("--seconds {value}: give 1 to 60"),
        },
        _ => bail!(
            "bench storage has one option, --seconds N, and not '{}'",
            options.join(" ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_job_is_bounded() {
        let check = |words: &[&str]| {
            seconds(
                &words
                    .iter()
                    .map(|&word| word.to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(check(&[]).unwrap(), SECONDS);
        assert_eq!(check(&["--seconds", "60"]).unwrap(), 60);
        for words in [
            &["--seconds"][..],
            &["--seconds", "0"],
            &["--seconds", "61"],
            &["x", "3"],
        ] {
            assert!(check(words).is_err(), "{words:?}");
        }
    }
}
