//! Ratios of the demo of block storage.

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
        let sum = crate::keys::key_commands(row, "commands_per_io");
        row["key_commands"] = json!(sum.context("a row without commands")?);
    }
    Ok(report)
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
