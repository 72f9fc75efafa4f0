//! Prints the speed of the lab (incast of 128 flows, 10 ms at 200 Gb/s), and what each algorithm reaches on each topology.
#![expect(clippy::print_stdout, reason = "the table is what this program prints")]

use pcc_lab::{Lab, Refusal, Scenario};
use std::time::Instant;

/// Name, end of the scenario in us, and the rest of the scenario.
const TOPOLOGIES: &[(&str, u64, &str)] = &[
    ("incast 2", 20_000, "topology = { shape = 'star', hosts = 3, gbps = 200, delay_ns = 1000 }
        traffic = [{ kind = 'incast', to = 0, flows = 2 }]"),
    ("incast 8", 20_000, "topology = { shape = 'star', hosts = 9, gbps = 200, delay_ns = 1000 }
        traffic = [{ kind = 'incast', to = 0, flows = 8 }]"),
    ("incast 32", 20_000, "topology = { shape = 'star', hosts = 33, gbps = 200, delay_ns = 1000 }
        traffic = [{ kind = 'incast', to = 0, flows = 32 }]"),
    ("incast 128", 20_000, "topology = { shape = 'star', hosts = 129, gbps = 200, delay_ns = 1000 }
        traffic = [{ kind = 'incast', to = 0, flows = 128 }]"),
    ("dumbbell 8", 20_000, "topology = { shape = 'dumbbell', pairs = 8, gbps = 200, trunk_gbps = 200, delay_ns = 1000 }
        traffic = [{ kind = 'pairs' }]"),
    ("parking lot 2", 20_000, "topology = { shape = 'parking_lot', trunks = 2, gbps = 200, delay_ns = 1000 }
        traffic = [{ kind = 'pairs' }]"),
    ("incast 32 of 1 MB", 20_000, "topology = { shape = 'star', hosts = 33, gbps = 200, delay_ns = 1000 }
        traffic = [{ kind = 'incast', to = 0, flows = 32, bytes = 1000000 }]"),
    ("fat tree, permutation", 10_000, "topology = { shape = 'fat_tree', k = 4, gbps = 200, delay_ns = 1000 }
        traffic = [{ kind = 'permutation', bytes = 20000000 }]"),
    ("fat tree, hadoop 50 %", 5_000, "topology = { shape = 'fat_tree', k = 4, gbps = 200, delay_ns = 1000 }
        traffic = [{ kind = 'poisson', sizes = 'hadoop', load = 0.5 }]"),
];

const ALGORITHMS: [&str; 4] = ["none", "dcqcn", "swift", "hpcc"];

fn scenario(algorithm: &str, duration_us: u64, rest: &str) -> Result<Scenario, Refusal> {
    let warmup = if rest.contains("bytes") || rest.contains("sizes") {
        0
    } else {
        duration_us / 2
    };
    let text = format!(
        "duration_us = {duration_us}\nwarmup_us = {warmup}\nhost.probe = 'ifa2'\n{rest}\nalgorithm.name = '{algorithm}'\n"
    );
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    Scenario::from_toml(&lines.join("\n"))
}

/// Time of this thread on a processor, in seconds.
fn processor_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let ns: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(ns / 1e9)
}

/// Scenarios of the measurement of speed: name, end in us, and the rest.
const SPEEDS: &[(&str, u64, &str)] = &[
    (
        "128 flows into one port",
        10_000,
        "topology = { shape = 'star', hosts = 129, gbps = 200, delay_ns = 1000 }
        traffic = [{ kind = 'incast', to = 0, flows = 128 }]",
    ),
    (
        "fat tree of 128 hosts, permutation",
        2_000,
        "topology = { shape = 'fat_tree', k = 8, gbps = 200, delay_ns = 1000 }
        traffic = [{ kind = 'permutation' }]",
    ),
];

#[expect(clippy::cast_precision_loss, reason = "rates for people")]
fn speed() -> Result<(), Refusal> {
    println!(
        "| 200 Gb/s | simulated ms | algorithm | events | packets x links | s | s on a processor | events per s | packets x links per s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, duration_us, rest) in SPEEDS {
        for algorithm in ALGORITHMS {
            let mut lab = Lab::new(&scenario(algorithm, *duration_us, rest)?)?;
            let (start, before) = (Instant::now(), processor_s());
            let report = lab.run();
            let wall = start.elapsed().as_secs_f64();
            let spent = processor_s()
                .zip(before)
                .map_or(wall, |(after, before)| after - before);
            println!(
                "| {name} | {} | {algorithm} | {} | {} | {wall:.2} | {spent:.2} | {:.0} | {:.0} |",
                duration_us / 1_000,
                report.events,
                report.transmissions,
                report.events as f64 / spent,
                report.transmissions as f64 / spent,
            );
        }
    }
    Ok(())
}

fn table() -> Result<(), Refusal> {
    println!(
        "\n| topology | algorithm | utilisation | queue mean, KB | queue 99 %, KB | Jain | slowdown 50 / 95 / 99 % | pauses | drops |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, duration_us, rest) in TOPOLOGIES {
        for algorithm in ALGORITHMS {
            let report = Lab::new(&scenario(algorithm, *duration_us, rest)?)?.run();
            let slowdown = report.slowdown.map_or("-".to_owned(), |slowdown| {
                format!(
                    "{:.2} / {:.2} / {:.2}",
                    slowdown.p50, slowdown.p95, slowdown.p99
                )
            });
            println!(
                "| {name} | {algorithm} | {:.4} | {} | {} | {} | {slowdown} | {} | {} |",
                report.utilisation,
                report.queue_bytes.mean / 1000,
                report.queue_bytes.p99 / 1000,
                report
                    .jain
                    .map_or("-".to_owned(), |jain| format!("{jain:.4}")),
                report.counters.pauses,
                report.packets.dropped,
            );
        }
    }
    Ok(())
}

fn main() -> Result<(), Refusal> {
    speed()?;
    table()
}
