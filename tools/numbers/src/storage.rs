//! Tables of the benchmark and of the demo of block storage.

use crate::query::Query;
use crate::table::{self, Column, Form};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Adds the ratios that are promised to the report of the demo.
pub(crate) fn ratios(mut report: Value) -> Result<Value> {
    let ratio = |of: &str, over: &str| -> Result<Value> {
        let number = |path: &str| report.pointer(path).and_then(Value::as_f64);
        let of = number(of).with_context(|| format!("no number {of}"))?;
        let over = number(over).with_context(|| format!("no number {over}"))?;
        Ok(json!(of / over))
    };
    let cpu = ratio("/host_cpu_s_per_gib/offloaded", "/host_cpu_s_per_gib/host")?;
    let stored = ratio("/bytes/stored", "/bytes/reference")?;
    report["host_cpu_of_host"] = cpu;
    report["stored_of_reference"] = stored;
    let rows = report["rows"].as_array_mut().context("no rows")?;
    for row in rows {
        let commands = &row["commands_per_io"];
        let of_keys = [
            "create_mkey",
            "destroy_mkey",
            "allow_other_vhca_access",
            "create_alias",
            "destroy_alias",
        ];
        let sum: Option<f64> = of_keys.iter().map(|key| commands[*key].as_f64()).sum();
        row["key_commands"] = json!(sum.context("a row without commands")?);
    }
    Ok(report)
}

/// Ways to the host's memory.
pub(crate) fn ways(report: &Value, query: &Query) -> Result<String> {
    let mut rows: Vec<Value> = query.rows(report, "rows")?.into_iter().cloned().collect();
    for row in &mut rows {
        if row.get("of_stock").is_none() {
            row["of_stock"] = Value::Null;
        }
    }
    let time = |title, path| Column::new(title, path, Form::Fixed(0));
    table::of_rows(
        &rows.iter().collect::<Vec<_>>(),
        &[
            Column::new("size", "/size", Form::Size),
            Column::new("way", "/scheme", Form::Text),
            time("p50 (us)", "/us/p50"),
            time("p99 (us)", "/us/p99"),
            time("write (us)", "/write_us"),
            time("read (us)", "/read_us"),
            Column::new("of stock", "/of_stock", Form::Fixed(2)),
            Column::new("key and alias commands", "/key_commands", Form::Fixed(1)),
            Column::new("binds", "/commands_per_io/umr_bind", Form::Fixed(1)),
            Column::new(
                "invalidations",
                "/commands_per_io/umr_invalidate",
                Form::Fixed(1),
            ),
            Column::new(
                "doorbells of the host",
                "/commands_per_io/doorbells",
                Form::Fixed(1),
            ),
        ],
    )
}

/// Requests of fio's own memory: a line for each size, the median of each way, and which ways are faster than the copy.
pub(crate) fn engine(report: &Value, query: &Query) -> Result<String> {
    query.only_filters()?;
    let engine = &report["engine"];
    let Some(rows) = engine["rows"].as_array() else {
        return Ok("Not in the report yet.".to_owned());
    };
    let mut lines: BTreeMap<u64, Value> = BTreeMap::new();
    for row in rows {
        let size = row["size"].as_u64().context("a row without size")?;
        let scheme = row["scheme"].as_str().context("a row without scheme")?;
        let us = row["p50_us"].as_f64().context("a row without p50_us")?;
        let line = lines
            .entry(size)
            .or_insert_with(|| json!({ "size": size, "faster": "" }));
        // Both directions count the same.
        line[scheme] = json!(line[scheme].as_f64().unwrap_or_default() + us / 2.0);
    }
    let from = engine["faster_than_copy_from"].as_object();
    for (scheme, from) in from.into_iter().flatten() {
        let Some(from) = from.as_u64() else { continue };
        for (_, line) in lines.range_mut(from..) {
            let before = line["faster"].as_str().unwrap_or_default();
            let comma = if before.is_empty() { "" } else { ", " };
            line["faster"] = json!(format!("{before}{comma}{scheme}"));
        }
    }
    let time = |title, path| Column::new(title, path, Form::Fixed(0));
    table::of_rows(
        &lines.values().collect::<Vec<_>>(),
        &[
            Column::new("size", "/size", Form::Size),
            time("copy (us)", "/copy"),
            time("ksm (us)", "/ksm"),
            time("stock (us)", "/stock"),
            time("xgvmi (us)", "/xgvmi"),
            time("announced (us)", "/announced"),
            Column::new("from here on faster than the copy", "/faster", Form::Text),
        ],
    )
}

/// What the volume of the demo costs the host, and the bytes that it stores.
pub(crate) fn volume(report: &Value, _query: &Query) -> Result<String> {
    table::of_rows(
        &[report],
        &[
            Column::new("verified", "/verified_bytes", Form::Count),
            Column::new("wrong", "/mismatches", Form::Count),
            Column::new("written", "/bytes/written", Form::Count),
            Column::new("moved to targets", "/bytes/moved", Form::Count),
            Column::new("stored", "/bytes/stored", Form::Count),
            Column::new("reference's format", "/bytes/reference", Form::Count),
            Column::new("rebuilt blocks", "/rebuilt", Form::Count),
            Column::new(
                "host CPU with the DPU (s/GiB)",
                "/host_cpu_s_per_gib/offloaded",
                Form::Fixed(2),
            ),
            Column::new(
                "on the host's cores (s/GiB)",
                "/host_cpu_s_per_gib/host",
                Form::Fixed(2),
            ),
        ],
    )
}

/// NBD servers with the same jobs.
pub(crate) fn servers(report: &Value, query: &Query) -> Result<String> {
    table::of_rows(
        &query.rows(report, "rows")?,
        &[
            Column::new("server", "/backend", Form::Text),
            Column::new("op", "/op", Form::Text),
            Column::new("size", "/size", Form::Size),
            Column::new("MiB/s", "/mib_s", Form::Fixed(0)),
            Column::new("p50 (us)", "/p50_us", Form::Fixed(0)),
            Column::new("p99 (us)", "/p99_us", Form::Fixed(0)),
            Column::new(
                "server CPU (s/GiB)",
                "/server_cpu_s_per_gib",
                Form::Fixed(2),
            ),
            Column::new("of nbdkit", "/of_nbdkit", Form::Fixed(2)),
            Column::new("of qemu-nbd", "/of_qemu_nbd", Form::Fixed(2)),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_and_commands_of_the_demo_are_computed() {
        let commands = json!({
            "create_mkey": 1.0, "destroy_mkey": 1.0, "allow_other_vhca_access": 1.0, "create_alias": 1.0,
            "destroy_alias": 0.5, "umr_bind": 1.0, "umr_invalidate": 1.0, "doorbells": 3.0,
        });
        let report = json!({
            "host_cpu_s_per_gib": {"offloaded": 1.0, "host": 4.0}, "bytes": {"stored": 3, "reference": 6},
            "rows": [{"commands_per_io": commands}],
        });
        let report = ratios(report).unwrap();
        assert_eq!(report["host_cpu_of_host"], json!(0.25));
        assert_eq!(report["stored_of_reference"], json!(0.5));
        assert_eq!(report["rows"][0]["key_commands"], json!(4.5));
        assert!(ratios(json!({"rows": []})).is_err());
    }

    #[test]
    fn each_size_names_the_ways_that_are_faster_than_the_copy() {
        let mut rows = Vec::new();
        for (size, pooled) in [(4096, 11.0), (65536, 9.0)] {
            for scheme in ["copy", "ksm", "stock", "xgvmi", "announced"] {
                for (op, more) in [("write", 1.0), ("read", -1.0)] {
                    let us = if scheme == "copy" { 10.0 } else { pooled } + more;
                    rows.push(json!({"scheme": scheme, "op": op, "size": size, "p50_us": us}));
                }
            }
        }
        let from = json!({"ksm": null, "stock": 65536, "xgvmi": 65536});
        let report = json!({"engine": {"rows": rows, "faster_than_copy_from": from}});
        let query = Query::parse("storage").unwrap();
        let table = engine(&report, &query).unwrap();
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| 4 KiB | 10 | 11 | 11 | 11 | 11 |  |",
                "| 64 KiB | 10 | 9 | 9 | 9 | 9 | stock, xgvmi |"
            ]
        );
        let early = engine(&json!({}), &query).unwrap();
        assert_eq!(early, "Not in the report yet.");
    }
}
