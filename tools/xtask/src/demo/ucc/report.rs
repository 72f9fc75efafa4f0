//! What the programs of the demo of UCC have printed, and the demo's report of it.

use super::{COMMANDS, PROFILE, PROGRAMS, QUESTION, Record};
use crate::process;
use crate::suites::ucc::job::RANKS;
use crate::suites::ucc::programs;
use crate::workspace;
use anyhow::{Context, Result};
use bench_report::{columns, table};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Messages that the ranks say the service processes have moved: sends and receives.
pub(super) fn moved(said: &str) -> u64 {
    let before = said.split(" messages sent or received");
    let numbers = before.filter_map(|text| text.rsplit_once(' ')?.1.parse::<u64>().ok());
    numbers.sum()
}

/// Rows that a program has printed.
pub(super) fn printed(said: &str) -> Result<Vec<Value>> {
    let rows = said.lines().filter(|line| line.starts_with("{\"size\":"));
    rows.map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
        .collect()
}

/// A row of the timed program with the device's commands per call.
pub(in crate::demo) fn counted(line: &str, prefix: &str) -> Result<Value> {
    let mut row: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
    let read = |title: &str| -> Result<Value> {
        let file = format!("{prefix}.{}.{title}", row["size"]);
        let text = fs::read_to_string(&file).with_context(|| format!("no {file}"))?;
        let counters = serde_json::from_str(&text).with_context(|| file.clone())?;
        fs::remove_file(&file).with_context(|| format!("cannot remove {file}"))?;
        Ok(counters)
    };
    let (before, after) = (read("before")?, read("after")?);
    let calls = row["iterations"].as_f64().context("no iterations")?;
    let mut commands = serde_json::Map::new();
    for (group, name) in COMMANDS {
        let count = programs::sum(&after, group, name)? - programs::sum(&before, group, name)?;
        commands.insert(name.to_owned(), (count as f64 / calls).into());
    }
    let rung = programs::doorbells(&after)? - programs::doorbells(&before)?;
    commands.insert("doorbells".to_owned(), (rung as f64 / calls).into());
    row["commands_per_iteration"] = commands.into();
    Ok(row)
}

/// Timed calls of a program.
pub(super) fn calls(record: &Value) -> u64 {
    let rows = record["rows"].as_array().into_iter().flatten();
    rows.filter_map(|row| row["iterations"].as_u64()).sum()
}

/// The report. docs/UCC.md names its fields.
pub(super) fn report(records: &[Record], skipped: Option<&str>) -> Value {
    let rows = records.iter().flat_map(|record| {
        let of_program = record.value["rows"].as_array().into_iter().flatten();
        of_program.map(|row| {
            let overlap = row.get("overlap");
            let us = match overlap {
                Some(overlap) => &overlap["pure_us"],
                None => &row["steady_us"]["p50"],
            };
            json!({
                "program": record.program, "backend": record.way.backend, "scheme": record.way.scheme,
                "size": row["size"], "spread_ms": row["spread_ms"], "us": us,
                "overlap_percent": overlap.map(|overlap| &overlap["percent"]),
                "host_cpu_us_per_call": row["host_cpu_us"],
                "commands_per_call": row["commands_per_iteration"],
                "verified_bytes": row["verified_bytes"],
            })
        })
    });
    let rows: Vec<Value> = rows.collect();
    let sum = |key: &str| -> u64 {
        let rows = records
            .iter()
            .flat_map(|record| record.value["rows"].as_array());
        rows.flatten().filter_map(|row| row[key].as_u64()).sum()
    };
    json!({
        "verified_bytes": sum("verified_bytes"), "mismatches": sum("wrong_bytes"), "skipped": skipped,
        "profile": PROFILE, "ranks": RANKS, "rows": rows,
    })
}

/// The report as a table.
pub(super) fn markdown(report: &Value) -> Result<String> {
    let mut text = String::from("# Collectives of an unmodified MPI program\n\n");
    if let Some(reason) = report["skipped"].as_str() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "Skipped: {reason}");
        return Ok(text);
    }
    let rows = report["rows"].as_array();
    text += &table::markdown(columns::UCC, rows.into_iter().flatten())?;
    let _ = writeln!(
        text,
        "\n\n{} bytes verified, {} wrong; profile {PROFILE}, {RANKS} ranks on two nodes",
        report["verified_bytes"], report["mismatches"]
    );
    Ok(text)
}

/// Plots the blocking program's times.
pub(super) fn plot(records: &[Record], output: &Path) -> Result<()> {
    let blocking = records
        .iter()
        .filter(|record| record.program == PROGRAMS[0]);
    let files: Vec<PathBuf> = blocking
        .map(|record| output.join(format!("{}-{}.json", record.program, record.way.name)))
        .collect();
    let mut command = Command::new(workspace::target_dir().join("release/osu_report"));
    command.arg("--plot").arg(output.join("report.svg"));
    process::stdout(command.args(files), QUESTION)?;
    Ok(())
}

pub(super) fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::super::{SPREADS, Way, executed_by};
    use super::*;

    #[test]
    fn a_report_has_the_form_of_the_page() {
        let row = |extra: Value| {
            let mut row = json!({
                "scheme": "xgvmi", "size": 1024, "iterations": 2, "host_cpu_us": 3.0, "verified_bytes": 8, "wrong_bytes": 1,
                "steady_us": {"p50": 7.0}, "commands_per_iteration": {"create_mkey": 0.5},
            });
            if !extra.is_null() {
                row["overlap"] = extra;
            }
            row
        };
        let way = Way {
            name: "xgvmi",
            backend: "offload",
            scheme: Some("xgvmi"),
            traced: None,
        };
        let record = |program, extra| Record {
            way,
            program,
            value: json!({"rows": [row(extra)]}),
        };
        let records = [
            record(PROGRAMS[0], Value::Null),
            record(PROGRAMS[1], json!({"pure_us": 5.0, "percent": 80.0})),
        ];
        let found = report(&records, None);
        assert_eq!(
            (&found["verified_bytes"], &found["mismatches"]),
            (&json!(16), &json!(2))
        );
        assert!(found["skipped"].is_null());
        assert_eq!(found["rows"][0]["us"], 7.0);
        assert!(found["rows"][0]["overlap_percent"].is_null());
        assert_eq!(found["rows"][1]["us"], 5.0);
        assert_eq!(found["rows"][1]["overlap_percent"], 80.0);
        assert_eq!(found["rows"][1]["commands_per_call"]["create_mkey"], 0.5);
        assert!(
            markdown(&found)
                .unwrap()
                .contains("16 bytes verified, 2 wrong")
        );
        let said =
            "started\n{\"size\":8,\"spread_ms\":5,\"iterations\":2,\"steady_us\":{\"p50\":7.5}}\n";
        let spread = [Record {
            way,
            program: SPREADS[0].1,
            value: json!({ "rows": printed(said).unwrap() }),
        }];
        let found = report(&spread, None);
        assert_eq!(
            (&found["rows"][0]["spread_ms"], &found["rows"][0]["us"]),
            (&json!(5), &json!(7.5))
        );
        assert_eq!(calls(&records[0].value), 2);
        assert_eq!(
            moved("a; 12 messages sent or received\nb; 3 messages sent or received\n7"),
            15
        );
        assert!(executed_by("{TL_UCP}", " Allreduce sum", "x Allreduce sum: {TL_UCP}").is_ok());
        assert!(executed_by("{TL_UCP}", " Allreduce sum", "x Allreduce sum: {TL_X}").is_err());
        assert!(executed_by("{TL_UCP}", " Allreduce sum", "x Bcast {TL_UCP}").is_err());
        let skipped = report(&[], Some("no packages"));
        assert_eq!(skipped["rows"], json!([]));
        assert!(markdown(&skipped).unwrap().contains("Skipped: no packages"));
    }
}
