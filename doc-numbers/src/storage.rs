//! Tables of the benchmark and of the demo of block storage.

use crate::query::Query;
use crate::table::{self, Column, Form};
use anyhow::{Context, Result};
use serde_json::{Value, json};

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
    let time = |title, path| Column::new(title, path, Form::Fixed(0));
    table::of_rows(
        &query.rows(report, "rows")?,
        &[
            Column::new("size", "/size", Form::Size),
            Column::new("way", "/scheme", Form::Text),
            time("p50 (us)", "/us/p50"),
            time("p99 (us)", "/us/p99"),
            time("write (us)", "/write_us"),
            time("read (us)", "/read_us"),
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

/// Stored bytes of a volume and of the reference's format.
pub(crate) fn stored(report: &Value, query: &Query) -> Result<String> {
    table::of_rows(
        &query.rows(report, "stored")?,
        &[
            Column::new("data", "/data_bytes", Form::Size),
            Column::new("half blocks", "/half_bytes", Form::Count),
            Column::new("index", "/index_bytes", Form::Count),
            Column::new("stored", "/stored_bytes", Form::Count),
            Column::new("reference", "/reference_bytes", Form::Count),
            Column::new("ratio", "/of_reference", Form::Fixed(3)),
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
}
