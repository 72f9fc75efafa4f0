//! The tables of the documents, by the name in the marker. The columns are those of the report.

mod model;

use crate::judge;
use crate::keys::key_commands;
use crate::query::Query;
use crate::reports::{JUDGE, MACHINE};
use anyhow::{Context, Result, bail};
use bench_report::columns;
use bench_report::table::{self, Column, Form, field, shown};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A table of one report.
pub(crate) struct Table {
    name: &'static str,
    /// The source report.
    pub(crate) report: &'static str,
    body: Body,
}

enum Body {
    /// Rows of the report with some of its columns; all columns if no name is given. A column of which the marker names one
    /// value is left out.
    Rows(&'static [Column], &'static [&'static str]),
    /// Text without a trailing line break.
    Of(fn(&Value, &Query) -> Result<String>),
}

impl Table {
    /// The text, without a trailing line break.
    ///
    /// # Errors
    /// The report has no such rows, or a row lacks a cell.
    pub(crate) fn body(&self, report: &Value, query: &Query) -> Result<String> {
        match self.body {
            Body::Rows(columns, names) => {
                let mut columns = match names {
                    [] => columns.to_vec(),
                    names => table::part(columns, names)?,
                };
                columns.retain(|column| !query.fixes(column.name));
                table::markdown(&columns, query.rows(report, "rows")?)
            }
            Body::Of(body) => body(report, query),
        }
    }
}

const TABLES: &[Table] = &[
    rows("alltoallv", columns::ALLTOALLV, &[]),
    rows(
        "cost",
        columns::COST,
        &[
            "approach",
            "step",
            "size",
            "measured_ns",
            "slide_ns",
            "ratio",
            "resolvable",
        ],
    ),
    of("demo", "demo", iterations),
    of("demo-output", "demo", output),
    rows("device", columns::DEVICE, &[]),
    rows(
        "fresh",
        columns::FRESH,
        &[
            "allocator",
            "size",
            "scheme",
            "us.p50",
            "host_us.p50",
            "keys_us.p50",
            "registrations",
            "page_faults",
        ],
    ),
    rows("hotpath", columns::HOTPATH, &[]),
    of(JUDGE, JUDGE, judge::all),
    of("judge-not-reached", JUDGE, judge::not_reached),
    rows("library", columns::LIBRARY, &[]),
    of(MACHINE, MACHINE, machine),
    of("matrix", "matrix", matrix),
    of("matrix-copied", "matrix", copied),
    of("model", "model", model::model),
    of("model-changes", "model", model::changes),
    of("model-limits", "model", model::limits),
    of("model-ucc", "model", model::beside_ucc),
    of("model-crossings", "model", model::crossings),
    of("naaice", "naaice", calls),
    rows(
        "offload",
        columns::OFFLOAD,
        &["process", "scheme", "instructions", "of_stock"],
    ),
    rows(
        "pool",
        columns::POOL,
        &["name", "ours", "peer", "unit", "ratio"],
    ),
    of("pool-instructions", "pool", instructions),
    rows(
        "programs",
        columns::PROGRAMS,
        &[
            "program",
            "size",
            "of_ucc",
            "of_tuned",
            "cpu_of_ucc",
            "overlap_percent.offload",
        ],
    ),
    of("scale", "scale", scale),
    of("service", "service", service),
    rows("storage", columns::STORAGE, &[]),
    of("storage-disks", "storage", disks),
    of("suites", "suites", suites),
    of("ucc-against-hosts", "ucc", ucc_against_hosts),
    of("ucc-spread", "ucc", ucc_spread),
    of("volume-ways", "volume", ways),
];

const fn rows(
    report: &'static str,
    columns: &'static [Column],
    names: &'static [&'static str],
) -> Table {
    Table {
        name: report,
        report,
        body: Body::Rows(columns, names),
    }
}

const fn of(
    name: &'static str,
    report: &'static str,
    body: fn(&Value, &Query) -> Result<String>,
) -> Table {
    Table {
        name,
        report,
        body: Body::Of(body),
    }
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

/// Rows of the demo.
fn iterations(report: &Value, query: &Query) -> Result<String> {
    let mut rows: Vec<Value> = query.rows(report, "rows")?.into_iter().cloned().collect();
    for row in &mut rows {
        let sum = key_commands(row, "commands_per_iteration");
        row["key_commands"] = sum.context("a row without device commands")?.into();
    }
    let time = |name, text| Column::new(name, "us", text, Form::Fixed(0));
    let mut shown = vec![
        Column::size(),
        Column::scheme(0),
        time("first_us", "first"),
        time("steady_us.p50", "p50"),
        Column::count("key_commands", "key and alias commands"),
    ];
    let names = ["umr_bind", "doorbells"].map(|name| format!("commands_per_iteration.{name}"));
    shown.extend(table::part(
        columns::DEMO,
        &names.each_ref().map(String::as_str),
    )?);
    shown.retain(|column| !query.fixes(column.name));
    table::markdown(&shown, &rows)
}

/// The demo's output as a fenced block.
fn output(report: &Value, query: &Query) -> Result<String> {
    let mut text = format!("```text\n{}\n", table::head(columns::DEMO));
    for row in query.rows(report, "rows")? {
        writeln!(text, "{}", table::line(columns::DEMO, row)?)?;
    }
    let wrong = match report["mismatches"].as_u64() {
        Some(0) => "none wrong".to_owned(),
        Some(wrong) => format!("{wrong} WRONG"),
        None => bail!("the report has no mismatches"),
    };
    let link = report["link"]
        .as_str()
        .map_or_else(String::new, |link| format!(", link {link}"));
    let cell = |key: &str, form| {
        let cell = field(report, key);
        shown(
            cell.with_context(|| format!("the report has no {key}"))?,
            form,
        )
    };
    write!(
        text,
        "\n{} bytes verified at host B, {wrong}; UCX {}, profile {}{link}\n```",
        cell("verified_bytes", Form::Count)?,
        cell("ucx_version", Form::Text)?,
        cell("profile", Form::Text)?
    )?;
    Ok(text)
}

/// Rows of the pool with instruction counts.
fn instructions(report: &Value, query: &Query) -> Result<String> {
    let mut counted = query.rows(report, "rows")?;
    counted.retain(|row| row["instructions"].is_object());
    if counted.is_empty() {
        return Ok("The committed report has no counts: valgrind was not there.".to_owned());
    }
    let names = ["name", "instructions.ours", "instructions.peer"];
    table::markdown(&table::part(columns::POOL, &names)?, counted)
}

/// The machine of the last collection, as a list.
fn machine(report: &Value, _: &Query) -> Result<String> {
    let object = report.as_object().context("the report is no object")?;
    let line = |(name, value): (&String, &Value)| {
        let value = shown(value, Form::Text).with_context(|| name.clone())?;
        Ok(format!("- {name}: {value}"))
    };
    let lines = object.iter().map(line).collect::<Result<Vec<_>>>()?;
    Ok(lines.join("\n"))
}

/// Cells of the compatibility matrix: a line for each UCX, a column for each link.
fn matrix(report: &Value, query: &Query) -> Result<String> {
    const COLUMNS: [&str; 4] = ["infiniband", "infiniband-grh", "ethernet", "failed"];
    let mut lines: BTreeMap<String, [u64; COLUMNS.len()]> = BTreeMap::new();
    for row in query.rows(report, "rows")? {
        let text = |key: &str| shown(&row[key], Form::Text);
        let link = text("link")?;
        let column = COLUMNS.iter().position(|known| *known == link);
        let column = column.with_context(|| format!("no column for the link {link}"))?;
        let cells = row["cells"].as_u64();
        let cells = cells.context("a row of the matrix has no cells")?;
        let line = lines.entry(text("ucx")?).or_default();
        line[column] += cells;
        if row["result"] != "ok" {
            line[COLUMNS.len() - 1] += cells;
        }
    }
    let cells = lines.into_iter().flat_map(|(ucx, counts)| {
        let cells = COLUMNS.iter().zip(counts);
        cells.map(move |(column, count)| (ucx.clone(), (*column).to_owned(), count.to_string()))
    });
    table::crossed("UCX", &cells.collect::<Vec<_>>())
}

/// The longest transfers of imported memory that stock UCX copies by the CPU. A dash: it copies all.
fn copied(report: &Value, query: &Query) -> Result<String> {
    let rows = query.rows(report, "figures")?.into_iter();
    table::markdown(
        columns::MATRIX_COPIED,
        rows.filter(|row| row["put_copied_max_bytes"].is_number()),
    )
}

/// Rows joined by their size: the row of each name in `key` is a field of its size's row.
fn by_size(rows: Vec<&Value>, key: &str) -> Result<Vec<Value>> {
    let mut lines: BTreeMap<u64, Value> = BTreeMap::new();
    for row in rows {
        let size = row["size"].as_u64().context("a row without size")?;
        let name = row[key].as_str();
        let name = name.with_context(|| format!("a row without {key}"))?;
        let line = lines.entry(size).or_insert_with(|| json!({ "size": size }));
        line[name] = row.clone();
    }
    Ok(lines.into_values().collect())
}

/// Calls to accelerators: a line for each size, with the times of each way.
fn calls(report: &Value, query: &Query) -> Result<String> {
    const fn time(name: &'static str, text: &'static str) -> Column {
        Column::new(name, "", text, Form::Fixed(0))
    }
    const COLUMNS: &[Column] = &[
        Column::size(),
        time("loop.call_us", "call: loop"),
        time("verbs.call_us", "verbs"),
        time("pool.call_us", "pool"),
        time("verbs.one_shot_us", "one shot: verbs"),
        time("ksm.one_shot_us", "per-buffer"),
        time("pool.one_shot_us", "pool"),
        Column::new(
            "pool.times_faster_than_ksm",
            "",
            "per-buffer over pool",
            Form::Fixed(1),
        ),
    ];
    table::markdown(COLUMNS, &by_size(query.rows(report, "rows")?, "way")?)
}

/// Transfers on fresh memory: a line for each size, with the median of each scheme.
fn ways(report: &Value, query: &Query) -> Result<String> {
    const fn time(name: &'static str, text: &'static str) -> Column {
        Column::new(name, "us", text, Form::Fixed(0))
    }
    const COLUMNS: &[Column] = &[
        Column::size(),
        time("copy.us.p50", "copy"),
        time("ksm.us.p50", "per-buffer"),
        time("stock.us.p50", "ucx-pool"),
        time("xgvmi.us.p50", "xgvmi-pool"),
        time("announced.us.p50", "announced"),
    ];
    table::markdown(COLUMNS, &by_size(query.rows(report, "rows")?, "scheme")?)
}

/// Calls of light ranks, each number with the power of the number of ranks with which it grows.
fn scale(report: &Value, query: &Query) -> Result<String> {
    let columns = table::part(columns::SCALE, &columns::OF_SCALE)?;
    let fits = report["growth"].as_array().context("no growth")?;
    let mut cells = Vec::new();
    for row in query.rows(report, "rows")? {
        let fit = fits
            .iter()
            .find(|fit| fit["collective"] == row["collective"]);
        for (column, name) in columns.iter().zip(columns::OF_SCALE) {
            let mut cell = shown(&row[name], Form::Fixed(0))?;
            let power = fit.and_then(|fit| fit[name].as_f64());
            if let Some(power) = power.filter(|_| row[name].is_number()) {
                // Without the sign of a zero.
                let power = format!("{power:.1}").replace("-0.0", "0.0");
                write!(cell, " ({power})")?;
            }
            cells.push((
                shown(&row["collective"], Form::Text)?,
                column.text.to_owned(),
                cell,
            ));
        }
    }
    table::crossed("collective", &cells)
}

/// The cost of a block in the service process, per code owner.
fn service(report: &Value, query: &Query) -> Result<String> {
    const NAMES: [&str; 7] = [
        "ranks",
        "services_per_node",
        "transport",
        "instructions_per_block",
        "instructions_of.ucx",
        "bytes_per_rank",
        "connect_ms",
    ];
    let rows = query.rows(report, "rows")?;
    let mut columns = table::part(columns::SERVICE, &NAMES)?;
    columns.retain(|column| !query.fixes(column.name));
    let mut text = table::markdown(&columns, rows.iter().copied())?;
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

/// Passed, failed and skipped tests of each suite over InfiniBand, and in brackets over Ethernet: a list.
fn suites(report: &Value, query: &Query) -> Result<String> {
    let mut lines: BTreeMap<&str, [Option<String>; 2]> = BTreeMap::new();
    for row in query.rows(report, "rows")? {
        let name = row["suite"].as_str().context("a row has no suite")?;
        let (name, link) = match name.strip_prefix("roce-") {
            Some(name) => (name, 1),
            None => (name, 0),
        };
        let count = |key: &str| {
            let count = row[key].as_u64();
            count.with_context(|| format!("a row has no number '{key}'"))
        };
        let (passed, failed, skipped) = (count("passed")?, count("failed")?, count("skipped")?);
        lines.entry(name).or_default()[link] = Some(format!("{passed}/{failed}/{skipped}"));
    }
    let entries = lines.into_iter().map(|(name, links)| {
        let [infiniband, ethernet] = links;
        let infiniband = infiniband.unwrap_or_else(|| "-".to_owned());
        let ethernet = ethernet.map_or_else(String::new, |cell| format!(" ({cell})"));
        format!("{name} {infiniband}{ethernet}")
    });
    let mut text = String::new();
    let mut line = 0;
    for entry in entries {
        let (between, start) = match line {
            0 => ("", 0),
            _ if line + entry.len() > 118 => (",\n", 0),
            _ => (", ", line + 2),
        };
        text += between;
        text += &entry;
        line = start + entry.len();
    }
    Ok(text + ".")
}

/// What stores do to disks for a processor second: a line for each store, a column for each pattern.
fn disks(report: &Value, query: &Query) -> Result<String> {
    let cell = |row: &&Value| {
        let rate = shown(&row["disk_mib_per_cpu_s"], Form::Fixed(0))?;
        let text = |key: &str| shown(&row[key], Form::Text);
        Ok((text("peer")?, text("pattern")?, rate))
    };
    let rows = query.rows(report, "disks")?;
    let cells = rows.iter().map(cell).collect::<Result<Vec<_>>>()?;
    table::crossed("targets", &cells)
}

/// Offloaded collectives over stock UCC on the hosts.
fn ucc_against_hosts(report: &Value, query: &Query) -> Result<String> {
    let mut shown = table::part(columns::UCC, &["program", "size"])?;
    shown.extend(columns::UCC_RATIOS);
    shown.extend(table::part(columns::UCC, &["overlap_percent"])?);
    shown.push(
        Column::new(
            "overlap_of_allowed",
            "",
            "of what the emulator allows",
            Form::Fixed(2),
        )
        .optional(),
    );
    let rows = query.rows(report, "rows")?.into_iter();
    table::markdown(&shown, rows.filter(|row| row["spread_ms"].is_null()))
}

/// Time of a rank in an alltoallv and in an allreduce that the ranks start at different times, divided by that of stock UCC: a
/// line for each size, a column for each spread.
fn ucc_spread(report: &Value, query: &Query) -> Result<String> {
    const PROGRAMS: [&str; 2] = ["spread_ialltoallv", "spread_iallreduce"];
    let rows = query.rows(report, "rows")?;
    let of = |program: &'static str| rows.iter().filter(move |row| row["program"] == program);
    let mut cells = Vec::new();
    for row in of(PROGRAMS[0]) {
        let (size, spread) = (Column::size().cell(row)?, &row["spread_ms"]);
        let ratio = |program: &'static str| {
            let same = of(program)
                .find(|other| other["spread_ms"] == *spread && other["size"] == row["size"]);
            let ratio = same.and_then(|row| row["of_ucc"].as_f64());
            ratio.with_context(|| {
                format!("{program} has no row of {size} with {spread} ms and its peer")
            })
        };
        let cell = format!("{:.2}/{:.2}", ratio(PROGRAMS[0])?, ratio(PROGRAMS[1])?);
        cells.push((size, format!("{spread} ms"), cell));
    }
    table::crossed("size", &cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn check(name: &str, report: &Value, expect: &str) {
        let query = Query::parse(name).unwrap();
        let text = named(name).unwrap().body(report, &query).unwrap();
        assert!(text.contains(expect), "{text}");
    }

    #[test]
    fn spreads_are_lines_with_both_collectives() {
        let row = |program: &str, spread: u64, us: f64| json!({"program": program, "spread_ms": spread, "us": us, "of_ucc": us / 1000.0, "size": 8});
        let rows = [
            row("spread_ialltoallv", 0, 500.4),
            row("spread_ialltoallv", 5, 250.0),
            row("spread_iallreduce", 0, 100.0),
            row("spread_iallreduce", 5, 200.0),
            json!({"program": "osu_alltoallv", "spread_ms": null, "us": 1.0, "size": 8}),
        ];
        let report = json!({ "rows": rows });
        check(
            "ucc-spread",
            &report,
            "| size | 0 ms | 5 ms |\n|---|---:|---:|\n| 8 B | 0.50/0.10 | 0.25/0.20 |",
        );
        let report = json!({ "rows": rows[..3] });
        let query = Query::parse("ucc-spread").unwrap();
        assert!(named("ucc-spread").unwrap().body(&report, &query).is_err());
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
        check("demo-output", &report, &table::head(columns::DEMO));
        let line = "xgvmi-pool        16 KiB       900.2     290.0     362.5      60       0        0       0       0       0";
        check("demo-output", &report, line);
        check(
            "demo-output",
            &report,
            "\n\n7 bytes verified at host B, none wrong; UCX 1.20.1, profile p, link l\n```",
        );
    }

    #[test]
    fn a_number_of_light_ranks_that_was_not_measured_has_no_growth() {
        let row = json!({
            "collective": "barrier", "bytes_per_rank": 65.25, "messages_per_sp": 18.0, "instructions_per_block": null,
            "memory_per_rank": 306.0, "memory_per_sp": 165_870.0,
        });
        let growth = json!({
            "collective": "barrier", "bytes_per_rank": 0.035, "messages_per_sp": 0.212, "instructions_per_block": -0.4,
            "memory_per_rank": -0.0, "memory_per_sp": 0.851,
        });
        check(
            "scale",
            &json!({"rows": [row], "growth": [growth]}),
            "| barrier | 65 (0.0) | 18 (0.2) | - | 306 (0.0) | 165870 (0.9) |",
        );
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
        check("suites", &report, "osu 7/0/2 (7/1/0), ucc 7/0/0.");
        let all: Vec<Value> = (0..30).map(|at| row(&format!("suite{at}"), 0, 0)).collect();
        let query = Query::parse("suites").unwrap();
        let text = suites(&json!({ "rows": all }), &query).unwrap();
        assert_eq!(text.matches("suite").count(), 30);
        assert!(text.lines().all(|line| (1..=120).contains(&line.len())));
    }

    #[test]
    fn a_column_with_one_value_is_left_out() {
        let row = json!({"name": "n", "ours": 1.0, "peer": 2.0, "unit": "ns", "ratio": 2.0});
        let report = json!({ "rows": [row] });
        let query = Query::parse("pool unit=ns").unwrap();
        let text = named("pool").unwrap().body(&report, &query).unwrap();
        assert!(text.ends_with("| n | 1.0 | 2.0 | 2.00 |"), "{text}");
        check("pool", &report, "| n | 1.0 | 2.0 | ns | 2.00 |");
    }

    #[test]
    fn disks_are_a_line_for_each_store() {
        let row = |peer: &str, pattern: &str, rate: f64| json!({"peer": peer, "pattern": pattern, "disk_mib_per_cpu_s": rate});
        let rows = [row("tcp", "read", 9.6), row("tcp", "write", 3.0)];
        let lines = "| targets | read | write |\n|---|---:|---:|\n| tcp | 10 | 3 |";
        check("storage-disks", &json!({ "disks": rows }), lines);
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

    #[test]
    fn each_size_has_the_times_of_each_way() {
        let row = |way: &str, call: f64, one_shot: f64| json!({"size": 1 << 20, "way": way, "call_us": call, "one_shot_us": one_shot});
        let mut rows = vec![
            json!({"size": 1 << 20, "way": "loop", "call_us": 1.0}),
            row("verbs", 2.0, 3.0),
            row("ksm", 4.0, 8.0),
            row("pool", 6.0, 4.0),
        ];
        rows[3]["times_faster_than_ksm"] = json!(2.0);
        let shown = |rows: &[Value]| calls(&json!({"rows": rows}), &Query::parse("naaice")?);
        let table = shown(&rows).expect("a table");
        assert_eq!(
            table.lines().nth(2),
            Some("| 1 MiB | 1 | 2 | 6 | 3 | 8 | 4 | 2.0 |")
        );
        let error = shown(&rows[..3]).expect_err("pool is absent");
        assert!(error.to_string().contains("pool.call_us"), "{error:#}");
    }

    #[test]
    fn each_size_has_the_median_of_each_scheme() {
        let mut rows = Vec::new();
        for (size, pooled) in [(65536, 9.0), (4096, 11.0)] {
            for scheme in ["copy", "ksm", "stock", "xgvmi", "announced"] {
                let us = if scheme == "copy" { 10.0 } else { pooled };
                rows.push(json!({"scheme": scheme, "size": size, "us": {"p50": us}}));
            }
        }
        let shown = |rows: &[Value]| ways(&json!({"rows": rows}), &Query::parse("volume-ways")?);
        let table = shown(&rows).unwrap();
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| 4 KiB | 10 | 11 | 11 | 11 | 11 |",
                "| 64 KiB | 10 | 9 | 9 | 9 | 9 |"
            ]
        );
        let error = shown(&rows[1..]).unwrap_err();
        assert!(error.to_string().contains("copy.us.p50"), "{error:#}");
    }
}
