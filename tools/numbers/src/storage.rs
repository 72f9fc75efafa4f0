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

/// Transfers on fresh memory: a line for each size, with the median of each scheme.
pub(crate) fn ways(report: &Value, query: &Query) -> Result<String> {
    let mut lines: BTreeMap<u64, Value> = BTreeMap::new();
    for row in query.rows(report, "rows")? {
        let size = row["size"].as_u64().context("a row without size")?;
        let scheme = row["scheme"].as_str().context("a row without scheme")?;
        let line = lines.entry(size).or_insert_with(|| json!({ "size": size }));
        line[scheme] = row["us"]["p50"].clone();
    }
    let time = |title, path| Column::new(title, path, Form::Fixed(0));
    table::of_rows(
        &lines.values().collect::<Vec<_>>(),
        &[
            Column::new("size", "/size", Form::Size),
            time("copy (us)", "/copy"),
            time("per-buffer (us)", "/ksm"),
            time("ucx-pool (us)", "/stock"),
            time("xgvmi-pool (us)", "/xgvmi"),
            time("announced (us)", "/announced"),
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
        assert!(error.to_string().contains("/copy"), "{error:#}");
    }
}
