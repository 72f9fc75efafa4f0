//! The tables of the documents, by the name in the marker.

use crate::accelerators;
use crate::judge;
use crate::query::Query;
use crate::reports::{JUDGE, MACHINE};
use crate::storage;
use crate::table::{self, Column, Form, shown};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A table of one report.
pub(crate) struct Table {
    name: &'static str,
    /// The source report.
    pub(crate) report: &'static str,
    /// Creates the text, without a trailing line break.
    pub(crate) body: fn(&Value, &Query) -> Result<String>,
}

const TABLES: &[Table] = &[
    of("alltoallv", "alltoallv", alltoallv),
    of("cost", "cost", cost),
    of("demo", "demo", iterations),
    of("demo-output", "demo", output),
    of("device", "device", measured),
    of("fresh", "fresh", fresh),
    of("hotpath", "hotpath", hotpath),
    of(JUDGE, JUDGE, judge::all),
    of("judge-not-reached", JUDGE, judge::not_reached),
    of("library", "library", measured),
    of(MACHINE, MACHINE, machine),
    of("matrix", "matrix", matrix),
    of("matrix-copied", "matrix", copied),
    of("model", "model", model),
    of("model-changes", "model", changes),
    of("model-limits", "model", limits),
    of("naaice", "naaice", accelerators::calls),
    of("pool", "pool", pool),
    of("pool-instructions", "pool", instructions),
    of("service", "service", service),
    of("storage", "storage", storage::servers),
    of("suites", "suites", suites),
    of("ucc-against-hosts", "ucc", ucc_against_hosts),
    of("volume-ways", "volume", storage::ways),
];

const fn of(
    name: &'static str,
    report: &'static str,
    body: fn(&Value, &Query) -> Result<String>,
) -> Table {
    Table { name, report, body }
}

/// Finds a table by name.
///
/// # Errors
/// There is none; the message lists all names.
pub(crate) fn named(name: &str) -> Result<&'static Table> {
    let found = TABLES.iter().find(|table| table.name == name);
    found.with_context(|| {
        let names: Vec<&str> = TABLES.iter().map(|table| table.name).collect();
        format!("no table '{name}'; there are {}", names.join(", "))
    })
}

/// Device commands per iteration, and their titles.
const COMMANDS: [(&str, &str); 8] = [
    ("create", "/commands_per_iteration/create_mkey"),
    ("destroy", "/commands_per_iteration/destroy_mkey"),
    ("allow", "/commands_per_iteration/allow_other_vhca_access"),
    ("alias+", "/commands_per_iteration/create_alias"),
    ("alias-", "/commands_per_iteration/destroy_alias"),
    ("bind", "/commands_per_iteration/umr_bind"),
    ("inval", "/commands_per_iteration/umr_invalidate"),
    ("doorbells", "/commands_per_iteration/doorbells"),
];

/// Device commands that create, export and destroy keys and aliases.
const KEY_COMMANDS: [&str; 5] = [
    "create_mkey",
    "destroy_mkey",
    "allow_other_vhca_access",
    "create_alias",
    "destroy_alias",
];

/// Rows of the demo.
fn iterations(report: &Value, query: &Query) -> Result<String> {
    let mut rows: Vec<Value> = query.rows(report, "rows")?.into_iter().cloned().collect();
    for row in &mut rows {
        let counts = KEY_COMMANDS.map(|key| row["commands_per_iteration"][key].as_f64());
        let sum: Option<f64> = counts.into_iter().sum();
        row["key_commands"] = sum.context("a row without device commands")?.into();
    }
    let time = |title, path| Column::new(title, path, Form::Fixed(0));
    let count = |title, path| Column::new(title, path, Form::Count);
    table::of_rows(
        &rows.iter().collect::<Vec<_>>(),
        &[
            Column::new("size", "/size", Form::Size),
            Column::new("scheme", "/scheme", Form::Scheme),
            time("first", "/first_us"),
            time("p50", "/steady_us/p50"),
            count("key and alias commands", "/key_commands"),
            count("binds", "/commands_per_iteration/umr_bind"),
            count("doorbells", "/commands_per_iteration/doorbells"),
        ],
    )
}

/// Rows of the alltoallv: cost of the connection, of the first call, and of steady calls.
fn alltoallv(report: &Value, query: &Query) -> Result<String> {
    let rows = query.rows(report, "rows")?;
    let mut rows: Vec<Value> = rows.into_iter().cloned().collect();
    for row in &mut rows {
        for key in ["connect_us", "host_cpu_us", "service_cpu_us"] {
            if row.get(key).is_none() {
                row[key] = Value::Null;
            }
        }
    }
    let time = |title, path| Column::new(title, path, Form::Fixed(0));
    table::of_rows(
        &rows.iter().collect::<Vec<_>>(),
        &[
            Column::new("size", "/size", Form::Size),
            Column::new("scheme", "/scheme", Form::Scheme),
            time("connect", "/connect_us"),
            time("first", "/first_us"),
            time("steady p50", "/steady_us/p50"),
            time("rank CPU", "/host_cpu_us"),
            time("service CPU", "/service_cpu_us"),
        ],
    )
}

/// The demo's output as a fenced block, with the columns of `xgvmi-demo`.
fn output(report: &Value, query: &Query) -> Result<String> {
    const WIDTHS: [usize; 14] = [15, 9, 11, 11, 11, 6, 7, 7, 6, 6, 7, 5, 6, 9];
    let fixed = |title, path| Column::new(title, path, Form::Fixed(1));
    let mut columns = vec![
        Column::new("scheme", "/scheme", Form::Scheme),
        Column::new("size", "/size", Form::Size),
        fixed("first (us)", "/first_us"),
        fixed("p50 (us)", "/steady_us/p50"),
        fixed("p99 (us)", "/steady_us/p99"),
        Column::new("iters", "/iterations", Form::Count),
    ];
    let commands = COMMANDS.iter();
    columns.extend(commands.map(|(title, path)| Column::new(title, path, Form::Count)));
    let line = |cells: Vec<String>| {
        let mut text = String::new();
        for (at, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
            let _ = match at {
                0 => write!(text, "{cell:<width$}"),
                _ => write!(text, " {cell:>width$}"),
            };
        }
        text
    };
    let mut text = "```text\n".to_owned();
    let titles = columns.iter().map(|column| column.title.to_owned());
    writeln!(text, "{}", line(titles.collect()))?;
    for row in query.rows(report, "rows")? {
        let cells = columns.iter().map(|column| column.cell(row));
        writeln!(text, "{}", line(cells.collect::<Result<_>>()?))?;
    }
    let wrong = match report["mismatches"].as_u64() {
        Some(0) => "none wrong".to_owned(),
        Some(wrong) => format!("{wrong} WRONG"),
        None => bail!("the report has no mismatches"),
    };
    let link = report["link"]
        .as_str()
        .map_or_else(String::new, |link| format!(", link {link}"));
    let text_of = |key: &str| {
        let text = report[key].as_str();
        text.with_context(|| format!("the report has no {key}"))
    };
    write!(
        text,
        "\n{} bytes verified at host B, {wrong}; UCX {}, profile {}{link}\n```",
        report["verified_bytes"]
            .as_u64()
            .context("the report has no verified_bytes")?,
        text_of("ucx_version")?,
        text_of("profile")?
    )?;
    Ok(text)
}

fn cost(report: &Value, query: &Query) -> Result<String> {
    let time = |title, path| Column::new(title, path, Form::Micro);
    let rows = query.rows(report, "rows")?.into_iter();
    let mut rows: Vec<Value> = rows.cloned().collect();
    for row in &mut rows {
        let hidden = row["resolvable"] == false;
        row["mark"] = if hidden { "not resolvable" } else { "" }.into();
    }
    table::of_rows(
        &rows.iter().collect::<Vec<_>>(),
        &[
            Column::new("approach", "/approach", Form::Text),
            Column::new("step", "/step", Form::Text),
            Column::new("size", "/size", Form::Size),
            time("measured", "/measured_ns"),
            time("slide", "/slide_ns"),
            Column::new("ratio", "/ratio", Form::Fixed(2)),
            Column::new("", "/mark", Form::Text),
        ],
    )
}

fn pool(report: &Value, query: &Query) -> Result<String> {
    table::of_rows(
        &query.rows(report, "rows")?,
        &[
            Column::new("row", "/name", Form::Text),
            Column::new("ours", "/ours", Form::Fixed(1)),
            Column::new("peer", "/peer", Form::Fixed(1)),
            Column::new("unit", "/unit", Form::Text),
            Column::new("times better", "/ratio", Form::Fixed(2)),
        ],
    )
}

/// Rows of the pool with instruction counts.
fn instructions(report: &Value, query: &Query) -> Result<String> {
    let rows = query.rows(report, "rows")?;
    let counted: Vec<&Value> = rows
        .into_iter()
        .filter(|row| row["instructions"].is_object())
        .collect();
    if counted.is_empty() {
        return Ok("The committed report has no counts: valgrind was not there.".to_owned());
    }
    table::of_rows(
        &counted,
        &[
            Column::new("row", "/name", Form::Text),
            Column::new("ours", "/instructions/ours", Form::Fixed(1)),
            Column::new("peer", "/instructions/peer", Form::Fixed(1)),
        ],
    )
}

/// Rows with a wanted value as text.
fn measured(report: &Value, query: &Query) -> Result<String> {
    table::of_any(&query.rows(report, "rows")?)
}

/// The machine of the last collection, as a list.
fn machine(report: &Value, _: &Query) -> Result<String> {
    let object = report.as_object().context("the report is no object")?;
    let mut text = String::new();
    for (name, value) in object {
        let value = value
            .as_str()
            .with_context(|| format!("{name} is no text"))?;
        writeln!(text, "- {name}: {value}")?;
    }
    Ok(text.trim_end().to_owned())
}

/// Cells of the compatibility matrix: a line for each UCX, a column for each link.
fn matrix(report: &Value, query: &Query) -> Result<String> {
    const LINKS: [&str; 3] = ["infiniband", "infiniband-grh", "ethernet"];
    let mut lines: BTreeMap<&str, [u64; LINKS.len() + 1]> = BTreeMap::new();
    for row in query.rows(report, "rows")? {
        let text = |key: &str| {
            let text = row[key].as_str();
            text.with_context(|| format!("a row of the matrix has no {key}"))
        };
        let link = text("link")?;
        let column = LINKS.iter().position(|known| *known == link);
        let column = column.with_context(|| format!("no column for the link {link}"))?;
        let cells = row["cells"]
            .as_u64()
            .context("a row of the matrix has no cells")?;
        let line = lines.entry(text("ucx")?).or_default();
        line[column] += cells;
        if row["result"] != "ok" {
            line[LINKS.len()] += cells;
        }
    }
    let mut text = format!("| UCX | {} | failed |\n|---|", LINKS.join(" | "));
    text.push_str(&"---:|".repeat(LINKS.len() + 1));
    for (ucx, counts) in lines {
        let counts = counts.map(|count| count.to_string());
        write!(text, "\n| {ucx} | {} |", counts.join(" | "))?;
    }
    Ok(text)
}

/// The longest transfers of imported memory that stock UCX copies by the CPU. A dash: it copies all.
fn copied(report: &Value, query: &Query) -> Result<String> {
    let mut rows: Vec<Value> = Vec::new();
    for row in query.rows(report, "figures")? {
        if row["put_copied_max_bytes"].is_number() {
            let mut row = row.clone();
            // Without a limit the cell reports no figure.
            if row["get_copied_max_bytes"].is_null() {
                row["get_copied_max_bytes"] = Value::Null;
            }
            rows.push(row);
        }
    }
    ensure!(!rows.is_empty(), "no cell has measured copied transfers");
    table::of_rows(
        &rows.iter().collect::<Vec<&Value>>(),
        &[
            Column::new("UCX", "/ucx", Form::Text),
            Column::new(
                "longest copied put (bytes)",
                "/put_copied_max_bytes",
                Form::Count,
            ),
            Column::new(
                "longest copied get (bytes)",
                "/get_copied_max_bytes",
                Form::Count,
            ),
        ],
    )
}

/// The grid of the scale model: a line for each number of nodes, with a letter for the bottleneck.
fn model(report: &Value, query: &Query) -> Result<String> {
    let cell = |row: &Value| {
        let saved = shown(&row["time_saved_percent"], Form::Fixed(1))?;
        // The variation of a credit-dependent schedule exceeds this difference.
        let saved = if saved == "-0.0" {
            "0.0".to_owned()
        } else {
            saved
        };
        let letter = match row["bottleneck"].as_str() {
            Some("link") => "L",
            Some("messages") => "M",
            Some("keys") => "K",
            Some("credits") => "C",
            other => bail!("no letter for the bottleneck {other:?}"),
        };
        Ok(format!("{saved} {letter}"))
    };
    table::pivot(&query.rows(report, "rows")?, "nodes", "size", cell)
}

/// Largest block for which the service process is the limit: a line for each process, a column for each number of nodes.
fn limits(report: &Value, query: &Query) -> Result<String> {
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    let mut nodes: Vec<String> = Vec::new();
    for row in query.rows(report, "limits")? {
        let software = row["software"].as_str().context("a row has no software")?;
        let (sps, slower) = (&row["sps"], &row["slower"]);
        let line = format!(
            "{software}, {} SP, cores {} times slower",
            shown(sps, Form::Count)?,
            shown(slower, Form::Count)?
        );
        let line = line.replace(", cores 1 times slower", "");
        let title = format!("{} nodes", shown(&row["nodes"], Form::Count)?);
        if !nodes.contains(&title) {
            nodes.push(title);
        }
        let size = match row["size"].as_u64() {
            Some(0) => "-".to_owned(),
            _ => shown(&row["size"], Form::Size)?,
        };
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, sizes)) => sizes.push(size),
            None => lines.push((line, vec![size])),
        }
    }
    let rule = "---:|".repeat(nodes.len());
    let mut text = format!("| service process | {} |\n|---|{rule}", nodes.join(" | "));
    for (line, sizes) in lines {
        text.push_str(&format!("\n| {line} | {} |", sizes.join(" | ")));
    }
    Ok(text)
}

/// Saved time at each of the slides' sizes, with a line for each changed input.
fn changes(report: &Value, query: &Query) -> Result<String> {
    let mut lines: Vec<(&str, Vec<String>)> = Vec::new();
    let mut sizes: Vec<String> = Vec::new();
    for row in query.rows(report, "sensitivity")? {
        let what = row["what"].as_str().context("a row has no what")?;
        let size = shown(&row["size"], Form::Size)?;
        if !sizes.contains(&size) {
            sizes.push(size);
        }
        let saved = shown(&row["time_saved_percent"], Form::Fixed(1))?;
        match lines.last_mut() {
            Some((last, cells)) if *last == what => cells.push(saved),
            _ => lines.push((what, vec![saved])),
        }
    }
    let mut text = format!("| change | {} |\n", sizes.join(" | "));
    writeln!(text, "|---|{}", "---:|".repeat(sizes.len()))?;
    for (what, cells) in lines {
        ensure!(cells.len() == sizes.len(), "'{what}' lacks a size");
        writeln!(text, "| {what} | {} |", cells.join(" | "))?;
    }
    Ok(text.trim_end().to_owned())
}

/// Cost of buffers that are made new for each transfer.
fn fresh(report: &Value, query: &Query) -> Result<String> {
    let fixed = |title, path| Column::new(title, path, Form::Fixed(1));
    let count = |title, path| Column::new(title, path, Form::Count);
    table::of_rows(
        &query.rows(report, "rows")?,
        &[
            Column::new("from", "/allocator", Form::Text),
            count("bytes", "/size"),
            Column::new("scheme", "/scheme", Form::Text),
            fixed("whole (us)", "/us/p50"),
            fixed("host (us)", "/host_us/p50"),
            fixed("keys (us)", "/keys_us/p50"),
            count("registrations", "/registrations"),
            count("page faults", "/page_faults"),
        ],
    )
}

/// Counts per export and release, by owner.
fn hotpath(report: &Value, query: &Query) -> Result<String> {
    table::of_rows(
        &query.rows(report, "rows")?,
        &[
            Column::new("count per export and release", "/what", Form::Text),
            Column::new("mode", "/mode", Form::Text),
            Column::new("owner", "/owner", Form::Text),
            Column::new("ours", "/ours", Form::Count),
            Column::new("stock", "/stock", Form::Count),
        ],
    )
}

/// The cost of a block in the service process, per code owner.
fn service(report: &Value, query: &Query) -> Result<String> {
    let whole = |title, path| Column::new(title, path, Form::Fixed(0));
    let count = |title, path| Column::new(title, path, Form::Count);
    let rows = query.rows(report, "rows")?;
    let mut text = table::of_rows(
        &rows,
        &[
            count("ranks", "/ranks"),
            count("services per node", "/services_per_node"),
            Column::new("transport", "/transport", Form::Text),
            whole("instructions per block", "/instructions_per_block"),
            whole("of UCX", "/instructions_of/ucx"),
            whole("bytes per rank", "/bytes_per_rank"),
            whole("connect (ms)", "/connect_ms"),
        ],
    )?;
    // Rows without numbers have a reason.
    for row in rows {
        if let Some(reason) = row["not_measured"].as_str() {
            write!(
                text,
                "\n\nNot measured: {}, {} ranks, {} services per node: {reason}",
                row["transport"].as_str().unwrap_or_default(),
                row["ranks"],
                row["services_per_node"],
            )?;
        }
    }
    Ok(text)
}

/// Tests of each suite over InfiniBand and over Ethernet.
fn suites(report: &Value, query: &Query) -> Result<String> {
    let mut lines: BTreeMap<&str, [String; 3]> = BTreeMap::new();
    for row in query.rows(report, "rows")? {
        let name = row["suite"].as_str().context("a row has no suite")?;
        let (name, link) = match name.strip_prefix("roce-") {
            Some(name) => (name, 1),
            None => (name, 0),
        };
        let [passed, failed, skipped] = ["passed", "failed", "skipped"].map(|key| &row[key]);
        let cells = lines
            .entry(name)
            .or_insert_with(|| ["-".into(), "-".into(), "0".into()]);
        let skipped = skipped.as_u64().context("a row has no number of skips")?;
        cells[link] = shown(passed, Form::Count)?;
        if skipped > 0 {
            write!(cells[link], " ({skipped} skipped)")?;
        }
        let failed = failed.as_u64().context("a row has no number of failures")?;
        let before: u64 = cells[2].parse().context("the sum of failures")?;
        cells[2] = (before + failed).to_string();
    }
    let mut text = "| suite | InfiniBand | Ethernet | failed |\n|---|---:|---:|---:|".to_owned();
    for (name, cells) in lines {
        write!(text, "\n| {name} | {} |", cells.join(" | "))?;
    }
    Ok(text)
}

/// Offloaded collectives over stock UCC on the hosts.
fn ucc_against_hosts(report: &Value, query: &Query) -> Result<String> {
    let ratio = |title, path| Column::new(title, path, Form::Fixed(2));
    table::of_rows(
        &query.rows(report, "rows")?,
        &[
            Column::new("program", "/program", Form::Text),
            Column::new("size", "/size", Form::Size),
            ratio("time", "/of_ucc"),
            ratio("host CPU", "/cpu_of_ucc"),
            Column::new("overlap (%)", "/overlap_percent", Form::Fixed(1)),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(name: &str, report: &Value, expect: &str) {
        let query = Query::parse(name).unwrap();
        let text = (named(name).unwrap().body)(report, &query).unwrap();
        assert!(text.contains(expect), "{text}");
    }

    #[test]
    fn the_demo_is_shown_as_it_prints_itself() {
        let commands = json!({
            "create_mkey": 0, "destroy_mkey": 0, "allow_other_vhca_access": 0, "create_alias": 0,
            "destroy_alias": 0, "umr_bind": 2.0, "umr_invalidate": 0.0, "doorbells": 21.5,
        });
        let row = json!({
            "scheme": "xgvmi", "size": 16384, "iterations": 60, "first_us": 900.2,
            "steady_us": {"p50": 290.0, "p99": 362.5}, "commands_per_iteration": commands,
        });
        let report = json!({
            "rows": [row], "mismatches": 0, "verified_bytes": 7, "ucx_version": "1.20.1", "profile": "p", "link": "l",
        });
        let head = "scheme               size  first (us)    p50 (us)    p99 (us)  iters  create destroy  allow alias+";
        check("demo-output", &report, head);
        let line = "xgvmi-pool         16 KiB       900.2       290.0       362.5     60       0       0      0      0";
        check("demo-output", &report, line);
        check(
            "demo-output",
            &report,
            "\n\n7 bytes verified at host B, none wrong; UCX 1.20.1, profile p, link l\n```",
        );
    }

    #[test]
    fn the_grid_names_what_limits_a_call() {
        let row = |nodes: u32, saved: f64, limit: &str| json!({"nodes": nodes, "size": 1024, "time_saved_percent": saved, "bottleneck": limit});
        let report = json!({"rows": [row(32, -0.01, "link"), row(2, 91.14, "credits")]});
        check("model", &report, "| 2 | 91.1 C |\n| 32 | 0.0 L |");
    }

    #[test]
    fn the_limits_are_a_line_for_each_service_process() {
        let row = |nodes: u32, slower: f64, size: u64| json!({"nodes": nodes, "sps": 4, "software": "measured", "slower": slower, "size": size});
        let report = json!({"limits": [row(2, 1.0, 2048), row(8, 1.0, 0), row(2, 4.0, 4096), row(8, 4.0, 8192)]});
        let lines = "| measured, 4 SP | 2 KiB | - |\n| measured, 4 SP, cores 4 times slower | 4 KiB | 8 KiB |";
        check(
            "model-limits",
            &report,
            "| service process | 2 nodes | 8 nodes |",
        );
        check("model-limits", &report, lines);
    }

    #[test]
    fn a_row_of_the_service_without_numbers_has_its_reason_below() {
        let row = json!({
            "ranks": 64, "services_per_node": 1, "block_bytes": 4096, "transport": "ucx", "instructions_per_block": null,
            "instructions_of": {"ucx": null, "driver": null, "device": null}, "bytes_per_rank": null, "connect_ms": null,
            "us_per_block": {"ours": null, "ucx": null, "driver": null, "device": null, "kernel": null},
            "not_measured": "no time was left",
        });
        let report = json!({"rows": [row]});
        check("service", &report, "| 64 | 1 | ucx | - | - | - | - |");
        let reason = "\n\nNot measured: ucx, 64 ranks, 1 services per node: no time was left";
        check("service", &report, reason);
    }

    #[test]
    fn the_matrix_is_a_line_for_each_ucx() {
        let row = |ucx: &str, link: &str, entry_point: &str, cells: u64, result: &str| json!({"ucx": ucx, "link": link, "entry_point": entry_point, "cells": cells, "result": result});
        let report = json!({"rows": [
            row("1.20.1", "infiniband", "preload", 3, "ok"), row("1.20.1", "infiniband", "late", 1, "failed"),
            row("1.20.1", "ethernet", "preload", 2, "ok"), row("1.18.1", "infiniband", "preload", 4, "ok"),
        ]});
        let lines = "| 1.18.1 | 4 | 0 | 0 | 0 |\n| 1.20.1 | 4 | 0 | 2 | 1 |";
        check("matrix", &report, lines);
        let unknown = json!({"rows": [row("1", "tokenring", "preload", 1, "ok")]});
        let query = Query::parse("matrix").unwrap();
        assert!(matrix(&unknown, &query).is_err());
    }

    #[test]
    fn a_suite_over_both_links_is_one_line() {
        let row = |suite: &str, failed: u64, skipped: u64| json!({"suite": suite, "passed": 7, "failed": failed, "skipped": skipped});
        let report = json!({"rows": [row("osu", 0, 2), row("roce-osu", 1, 0), row("ucc", 0, 0)]});
        let lines = "| osu | 7 (2 skipped) | 7 | 1 |\n| ucc | 7 | - | 0 |";
        check("suites", &report, lines);
    }

    #[test]
    fn key_commands_of_the_demo_are_summed() {
        let commands = json!({
            "create_mkey": 2, "destroy_mkey": 2, "allow_other_vhca_access": 1, "create_alias": 1, "destroy_alias": 1,
            "umr_bind": 3, "doorbells": 10.0,
        });
        let row = json!({
            "scheme": "ksm", "size": 1024, "first_us": 9.4, "steady_us": {"p50": 2.0},
            "commands_per_iteration": commands,
        });
        let line = "| 1 KiB | per-buffer | 9 | 2 | 7 | 3 | 10 |";
        check("demo", &json!({"rows": [row]}), line);
    }

    #[test]
    fn each_table_has_a_report() {
        let reports = crate::reports::Reports::default();
        for table in TABLES.iter().filter(|table| table.report != JUDGE) {
            assert!(reports.get(table.report).is_ok(), "{}", table.name);
        }
        assert!(
            named("gone")
                .err()
                .unwrap()
                .to_string()
                .contains("alltoallv, ")
        );
    }
}
