//! Checks the demo's report on any machine: bytes and counts, which are exact. Times are not checked.

use super::tally::Case;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Commands that a steady iteration with the library must not issue.
const KEY_COMMANDS: [&str; 5] = [
    "create_mkey",
    "destroy_mkey",
    "allow_other_vhca_access",
    "create_alias",
    "destroy_alias",
];

/// Reads the report and checks it.
pub(crate) fn judge(path: &Path) -> Result<Vec<Case>> {
    let text = fs::read_to_string(path).with_context(|| format!("no report {}", path.display()))?;
    let report: Value = serde_json::from_str(&text).context("the demo's report")?;
    let case = |name, verdict: Result<()>| match verdict {
        Ok(()) => Case::pass(name),
        Err(error) => Case::fail(name, format!("{error:#}")),
    };
    Ok(vec![
        case("every byte is verified", every_byte_is_verified(&report)),
        case(
            "steady state makes no key commands",
            steady_state_makes_no_key_commands(&report),
        ),
    ])
}

fn every_byte_is_verified(report: &Value) -> Result<()> {
    ensure!(report["schema"] == 1, "schema {}", report["schema"]);
    ensure!(
        report["mismatches"] == 0,
        "{} bytes are wrong",
        report["mismatches"]
    );
    let rows = rows(report)?;
    for scheme in ["ksm", "stock", "xgvmi"] {
        ensure!(
            rows.iter().any(|row| row["scheme"] == scheme),
            "no row of scheme {scheme}"
        );
    }
    let moved: u64 = rows
        .iter()
        .filter_map(|row| Some(row["size"].as_u64()? * row["iterations"].as_u64()?))
        .sum();
    let verified = report["verified_bytes"]
        .as_u64()
        .context("no verified_bytes")?;
    ensure!(
        moved > 0 && verified >= moved,
        "{moved} bytes moved, {verified} verified"
    );
    Ok(())
}

fn steady_state_makes_no_key_commands(report: &Value) -> Result<()> {
    for row in rows(report)?.iter().filter(|row| row["scheme"] == "xgvmi") {
        for command in KEY_COMMANDS {
            let count = &row["commands_per_iteration"][command];
            ensure!(
                count.as_f64() == Some(0.0),
                "{command} at {} bytes: {count} per iteration",
                row["size"]
            );
        }
    }
    Ok(())
}

fn rows(report: &Value) -> Result<&Vec<Value>> {
    report["rows"]
        .as_array()
        .filter(|rows| !rows.is_empty())
        .context("no rows")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(scheme: &str, create_mkey: f64) -> Value {
        json!({
            "scheme": scheme, "size": 16384, "iterations": 10,
            "commands_per_iteration": {
                "create_mkey": create_mkey, "destroy_mkey": 0.0, "allow_other_vhca_access": 0,
                "create_alias": 0.0, "destroy_alias": 0.0,
            },
        })
    }

    fn report(mismatches: u64, verified: u64, rows: &[Value]) -> Value {
        json!({ "schema": 1, "mismatches": mismatches, "verified_bytes": verified, "rows": rows })
    }

    fn check(report: &Value, expect: [bool; 2]) {
        let found = [
            every_byte_is_verified(report).is_ok(),
            steady_state_makes_no_key_commands(report).is_ok(),
        ];
        assert_eq!(found, expect, "{report}");
    }

    #[test]
    fn bytes_and_counts_are_judged() {
        let good = [row("ksm", 1.0), row("stock", 0.0), row("xgvmi", 0.0)];
        check(&report(0, 491_520, &good), [true, true]);
        check(&report(1, 491_520, &good), [false, true]);
        check(&report(0, 491_519, &good), [false, true]);
        check(&report(0, 491_520, &good[..2]), [false, true]);
        check(&report(0, 0, &[]), [false, false]);
        let creates = [row("ksm", 1.0), row("stock", 0.0), row("xgvmi", 0.1)];
        check(&report(0, 491_520, &creates), [true, false]);
        // A missing count must not count as zero.
        let silent = [
            row("ksm", 1.0),
            row("stock", 0.0),
            json!({ "scheme": "xgvmi", "size": 1, "iterations": 1 }),
        ];
        check(&report(0, 491_520, &silent), [true, false]);
    }
}
