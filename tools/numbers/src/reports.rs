//! The report files: the command that writes each report, and its part that is committed below `docs/results`.

use crate::promises::Promises;
use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Directory of committed report files and plots, relative to the root of the tree.
pub const COMMITTED: &str = "docs/results";

/// The report that describes the machine of the last collection. No command writes it.
pub const MACHINE: &str = "machine";

/// The name of the table of promises, which is computed from the other reports.
pub const JUDGE: &str = "judge";

/// The key of the time at which a report was measured.
const MEASURED: &str = "measured_at";

/// The key of the commit that was measured. A report of a command that was ended early has none.
const COMMIT: &str = "commit";

/// One report.
#[derive(Debug)]
pub struct Report {
    /// Its name in markers, and the stem of the committed file.
    pub name: &'static str,
    /// The arguments of `cargo xtask` that write it.
    pub command: &'static [&'static str],
    /// The file that the command writes, below the target directory.
    pub file: &'static str,
    /// The plot that the same command writes.
    pub plot: Option<&'static str>,
    /// The command is stopped after this time.
    pub limit: Duration,
    /// The command takes too long for a default run. Unless the user names the report, only an existing file is used.
    pub only_by_name: bool,
    /// Key of the rows that a partial run replaces; the committed file keeps its other rows.
    pub merged_by: Option<&'static str>,
    /// The part that is committed.
    reduce: fn(Value) -> Result<Value>,
}

const fn report(
    name: &'static str,
    command: &'static [&'static str],
    file: &'static str,
    limit_s: u64,
) -> Report {
    Report {
        name,
        command,
        file,
        plot: None,
        limit: Duration::from_secs(limit_s),
        only_by_name: false,
        merged_by: None,
        reduce: Ok,
    }
}

/// All reports, in the order of `cargo xtask results`: reports shown in README come first.
pub const REPORTS: [Report; 27] = [
    Report {
        plot: Some("demo/report.svg"),
        ..report("demo", &["demo"], "demo/report.json", 400)
    },
    report("pool", &["bench", "pool"], "bench/pool.json", 400),
    report("library", &["bench", "library"], "bench/library.json", 200),
    Report {
        reduce: crate::links::compare,
        ..report("links", &["bench", "links"], "bench/links.json", 400)
    },
    report("device", &["bench", "device"], "bench/device.json", 300),
    Report {
        plot: Some("bench/cost.svg"),
        ..report("cost", &["bench", "cost"], "bench/cost.json", 300)
    },
    Report {
        plot: Some("bench/alltoallv.svg"),
        ..report(
            "alltoallv",
            &[
                "bench",
                "alltoallv",
                "--",
                "--sizes",
                "1024,4096,16384,65536,131072,262144",
            ],
            "bench/alltoallv.json",
            700,
        )
    },
    Report {
        plot: Some("bench/model.svg"),
        reduce: model,
        ..report("model", &["bench", "model"], "bench/model.json", 300)
    },
    report("check", &["bench", "check"], "bench/check.json", 60),
    report("hotpath", &["bench", "hotpath"], "bench/hotpath.json", 600),
    report("fresh", &["bench", "fresh"], "bench/fresh.json", 900),
    report("offload", &["bench", "offload"], "bench/offload.json", 900),
    report("overlap", &["bench", "overlap"], "bench/overlap.json", 400),
    report("service", &["bench", "service"], "bench/service.json", 1200),
    Report {
        reduce: scale,
        only_by_name: true,
        ..report("scale", &["bench", "scale"], "bench/scale.json", 5400)
    },
    Report {
        plot: Some("bench/storage.svg"),
        ..report("storage", &["bench", "storage"], "bench/storage.json", 700)
    },
    Report {
        only_by_name: true,
        ..report("soak", &["bench", "soak"], "bench/soak.json", 3600)
    },
    Report {
        only_by_name: true,
        ..report(
            "storage-soak",
            &["suites", "storage", "--", "soak"],
            "suites/storage-soak.json",
            4800,
        )
    },
    Report {
        only_by_name: true,
        ..report(
            "storage-large",
            &["suites", "storage-loops", "--", "large"],
            "suites/storage-large.json",
            1800,
        )
    },
    Report {
        only_by_name: true,
        ..report(
            "storage-search",
            &["suites", "storage-search"],
            "storage-search/report.json",
            22_000,
        )
    },
    Report {
        reduce: matrix,
        only_by_name: true,
        ..report("matrix", &["matrix"], "matrix/report.json", 1400)
    },
    Report {
        reduce: suites,
        only_by_name: true,
        merged_by: Some("suite"),
        ..report("suites", &["suites"], "suites/report.json", 1400)
    },
    Report {
        only_by_name: true,
        merged_by: Some("target"),
        ..report("fuzz", &["fuzz"], "fuzz/report.json", 1400)
    },
    Report {
        plot: Some("demo-ucc/report.svg"),
        reduce: ucc,
        only_by_name: true,
        merged_by: Some("program"),
        ..report("ucc", &["demo", "ucc"], "demo-ucc/report.json", 1400)
    },
    Report {
        reduce: ucc,
        only_by_name: true,
        merged_by: Some("program"),
        ..report(
            "programs",
            &["demo", "programs"],
            "demo-programs/report.json",
            2400,
        )
    },
    Report {
        plot: Some("demo-naaice/report.svg"),
        ..report(
            "naaice",
            &["demo", "naaice"],
            "demo-naaice/report.json",
            1000,
        )
    },
    Report {
        plot: Some("demo-storage/report.svg"),
        reduce: crate::storage::ratios,
        ..report(
            "volume",
            &["demo", "storage"],
            "demo-storage/report.json",
            700,
        )
    },
];

impl Report {
    /// The command line of the report.
    pub fn shown(&self) -> String {
        format!("cargo xtask {}", self.command.join(" "))
    }

    /// The text of the committed file, made from the text of the command's file. `commit` is the measured commit, if it is
    /// known.
    ///
    /// # Errors
    /// If the text is not a report of this form.
    pub fn commit(&self, text: &str, measured_at: &str, commit: Option<&str>) -> Result<String> {
        let report = serde_json::from_str(text)?;
        let mut report = (self.reduce)(report)?;
        let object = report.as_object_mut().context("the report is no object")?;
        if self.merged_by.is_some() {
            mark(object, measured_at, commit);
        }
        object.insert(MEASURED.to_owned(), measured_at.into());
        if let Some(commit) = commit {
            object.insert(COMMIT.to_owned(), commit.into());
        }
        Ok(lines(object))
    }

    /// The text of the committed file `new` with the rows of `before` that the new run has not replaced.
    ///
    /// # Errors
    /// If one of the texts is not such a file.
    pub fn merged(&self, new: &str, before: &str) -> Result<String> {
        let Some(key) = self.merged_by else {
            return Ok(new.to_owned());
        };
        let mut new: Map<String, Value> = serde_json::from_str(new)?;
        let mut before: Map<String, Value> = serde_json::from_str(before)?;
        if let Some(time) = before[MEASURED].as_str().map(str::to_owned) {
            let commit = before.get(COMMIT).and_then(Value::as_str);
            let commit = commit.map(str::to_owned);
            mark(&mut before, &time, commit.as_deref());
        }
        let rows = new["rows"].as_array().into_iter().flatten();
        let replaced: Vec<Value> = rows.map(|row| row[key].clone()).collect();
        for (name, list) in &before {
            let Some(list) = list.as_array() else {
                continue;
            };
            let kept = list.iter().filter(|row| !replaced.contains(&row[key]));
            let kept: Vec<Value> = kept.cloned().collect();
            if let Some(new) = new.get_mut(name).and_then(Value::as_array_mut) {
                new.splice(0..0, kept);
            }
        }
        Ok(lines(&new))
    }
}

/// Notes the time and the commit of the measurement in each row that has no time.
fn mark(object: &mut Map<String, Value>, measured_at: &str, commit: Option<&str>) {
    for row in object["rows"].as_array_mut().into_iter().flatten() {
        if row[MEASURED].is_null() {
            row[MEASURED] = measured_at.into();
            if let Some(commit) = commit {
                row[COMMIT] = commit.into();
            }
        }
    }
}

/// The committed path of a report.
pub fn committed(name: &str) -> String {
    format!("{COMMITTED}/{name}.json")
}

/// JSON with one line for each element of a list, so that diffs are readable.
pub fn lines(object: &Map<String, Value>) -> String {
    let mut text = "{".to_owned();
    for (at, (key, value)) in object.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}\n{}: ", json!(key));
        match value.as_array() {
            Some(list) if !list.is_empty() => {
                let list: Vec<String> = list.iter().map(Value::to_string).collect();
                let _ = write!(text, "[\n{}\n]", list.join(",\n"));
            }
            _ => {
                let _ = write!(text, "{value}");
            }
        }
    }
    text.push_str("\n}\n");
    text
}

/// The committed reports, ready to be queried.
#[derive(Debug, Default)]
pub struct Reports {
    by_name: BTreeMap<String, Value>,
    /// The promises that the reports must keep.
    pub promises: Promises,
}

impl Reports {
    /// Adds the text of a committed file.
    ///
    /// # Errors
    /// If it is not JSON.
    pub fn add(&mut self, name: &str, text: &str) -> Result<()> {
        let mut report: Value = serde_json::from_str(text).with_context(|| committed(name))?;
        crate::compare::schemes(&mut report);
        crate::compare::backends(&mut report);
        if let Some(made_by) = REPORTS.iter().find(|report| report.name == name) {
            report["source"] = source(made_by, &report).into();
        }
        self.by_name.insert(name.to_owned(), report);
        if let Some(overlap) = self.by_name.get("overlap").cloned()
            && let Some(ucc) = self.by_name.get_mut("ucc")
        {
            crate::overlap::bound(ucc, &overlap);
        }
        Ok(())
    }

    /// The reports that commands have written below the target directory.
    ///
    /// # Errors
    /// A file does not have the form of its report.
    pub fn measured(target: &Path) -> Result<Self> {
        let mut reports = Self::default();
        for report in &REPORTS {
            let file = target.join(report.file);
            if let Ok(text) = fs::read_to_string(&file) {
                if is_skipped(&text) {
                    continue;
                }
                let text = report.commit(&text, "", None);
                let text = text.with_context(|| format!("what {} holds", file.display()))?;
                reports.add(report.name, &text)?;
            }
        }
        Ok(reports)
    }

    /// The command line that writes a report.
    ///
    /// # Errors
    /// There is no report of this name.
    pub fn command(name: &str) -> Result<String> {
        let report = REPORTS.iter().find(|report| report.name == name);
        let report = report.with_context(|| format!("there is no report '{name}'"))?;
        Ok(report.shown())
    }

    /// A report; `None` if its file is missing.
    ///
    /// # Errors
    /// There is no report of this name.
    pub fn get(&self, name: &str) -> Result<Option<&Value>> {
        let known = name == MACHINE || REPORTS.iter().any(|report| report.name == name);
        anyhow::ensure!(known, "there is no report '{name}'");
        Ok(self.by_name.get(name))
    }
}

/// The origin of a committed report, for its table: command, days and commits. A report that partial runs replace has
/// those of its rows.
fn source(made_by: &Report, report: &Value) -> String {
    let all: Vec<&Value> = match made_by.merged_by {
        Some(_) => report["rows"].as_array().into_iter().flatten().collect(),
        None => vec![report],
    };
    let values = |key: &str| all.iter().map(|part| part[key].as_str()).collect();
    let times: BTreeSet<Option<&str>> = values(MEASURED);
    let times: BTreeSet<Option<&str>> = times
        .into_iter()
        .map(|time| time?.split_whitespace().next())
        .collect();
    let time = |at: Option<&Option<&str>>| match at {
        Some(Some(time)) => (*time).to_owned(),
        _ => "time unknown".to_owned(),
    };
    let mut shown = time(times.first());
    if times.len() > 1 {
        shown.push_str(&format!(" to {}", time(times.last())));
    }
    let commits: BTreeSet<Option<&str>> = values(COMMIT);
    let commits: Vec<&str> = commits.iter().map(|c| c.unwrap_or("unknown")).collect();
    format!(
        "`{}`, {shown}, commit {}",
        made_by.shown(),
        commits.join(", ")
    )
}

/// Whether a report says that nothing was measured, and why.
fn is_skipped(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|report| report["skipped"].is_string())
}

/// The whole report, unless the demo was skipped: its committed numbers then stay.
fn ucc(report: Value) -> Result<Value> {
    if let Some(reason) = report["skipped"].as_str() {
        anyhow::bail!("the demo was skipped: {reason}");
    }
    Ok(report)
}

fn rows<'a>(report: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    let rows = report[key].as_array();
    rows.with_context(|| format!("the report has no '{key}'"))
}

/// Keeps the part of the grid that the documents use (32 ranks and 4 service processes per node, 400 Gb/s), and its
/// schemes; of the calls beside UCC's the alltoallv, and where the others cross.
fn model(report: Value) -> Result<Value> {
    const SCHEMES: [&str; 4] = ["ksm", "stock", "xgvmi", "xgvmi-announce-batch-chain"];
    let drawn = |row: &Value| {
        let machine = row["ppn"] == 32 && row["sps"] == 4 && row["link_gbps"] == 400.0;
        machine && SCHEMES.iter().any(|scheme| row["scheme"] == *scheme)
    };
    let slim = |row: &Value| {
        json!({
            "nodes": row["nodes"], "size": row["size"], "scheme": row["scheme"],
            "us": row["us"], "time_saved_percent": row["time_saved_percent"],
        })
    };
    let mut kept = Vec::new();
    let shares = rows(&report, "shares")?;
    for (row, shares) in rows(&report, "rows")?.iter().zip(shares) {
        if drawn(row) {
            let mut row = slim(row);
            row["bottleneck"] = shares["bottleneck"].clone();
            kept.push(row);
        }
    }
    let first = rows(&report, "first_rows")?.iter();
    let first: Vec<Value> = first.filter(|row| drawn(row)).map(slim).collect();
    let mut sensitivity = Vec::new();
    for change in rows(&report, "sensitivity")? {
        for at in rows(change, "sizes")? {
            let mut row = at.clone();
            row["what"] = change["what"].clone();
            let percent = |key: &str| at[key].as_f64();
            if let (Some(saved), Some(slides)) =
                (percent("time_saved_percent"), percent("slides_percent"))
            {
                row["off_slides"] = (saved - slides).abs().into();
            }
            sensitivity.push(row);
        }
    }
    let besides = rows(&report, "beside_ucc")?.iter();
    let besides: Vec<&Value> = besides
        .filter(|row| row["collective"] == "alltoallv" && row["ppn"] == 32)
        .collect();
    Ok(json!({
        "costs": report["costs"], "link_gbps": 400, "rows": kept, "first_rows": first,
        "sensitivity": sensitivity, "limits": rows(&report, "limits")?,
        "beside_ucc": besides, "crossings": report["crossings"],
    }))
}

/// The calls of light ranks, without lanes and trees.
fn scale(report: Value) -> Result<Value> {
    Ok(
        json!({ "rows": rows(&report, "rows")?, "growth": report["growth"], "flat": report["flat"] }),
    )
}

/// The number of cells for each version, way of loading, and result; and what the cases have measured. Copies that are bound
/// inside repeat the cells of their version: those count that have failed.
fn matrix(report: Value) -> Result<Value> {
    let mut groups: Vec<(Value, u64)> = Vec::new();
    let mut figures: Vec<Value> = Vec::new();
    for row in rows(&report, "rows")? {
        if row["symbolic"] == true && row["result"] == "ok" {
            continue;
        }
        if let Some(measured) = row["figures"].as_object().filter(|map| !map.is_empty()) {
            let mut cell = measured.clone();
            for key in ["ucx", "link", "entry_point", "case"] {
                cell.insert(key.to_owned(), row[key].clone());
            }
            figures.push(cell.into());
        }
        let result = if row["result"] == "ok" {
            "ok"
        } else {
            "failed"
        };
        let group = json!({
            "ucx": row["ucx"], "link": row["link"], "entry_point": row["entry_point"], "result": result,
        });
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, cells)) => *cells += 1,
            None => groups.push((group, 1)),
        }
    }
    let rows = groups.into_iter().map(|(mut row, cells)| {
        row["cells"] = cells.into();
        let failed = if row["result"] == "ok" { 0 } else { cells };
        row["failed"] = failed.into();
        row
    });
    Ok(json!({ "rows": rows.collect::<Vec<Value>>(), "figures": figures }))
}

/// Counts per suite, and the number of skipped tests per reason.
fn suites(report: Value) -> Result<Value> {
    let suites = report.as_array().context("the report is no list")?;
    let (mut rows, mut skips): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    for suite in suites {
        rows.push(json!({
            "suite": suite["suite"], "passed": suite["passed"], "failed": suite["failed"],
            "skipped": suite["skipped"],
        }));
        for skip in suite["skips"].as_array().into_iter().flatten() {
            let known = skips
                .iter_mut()
                .find(|row| row["suite"] == suite["suite"] && row["reason"] == skip["reason"]);
            match known {
                Some(row) => row["tests"] = (row["tests"].as_u64().unwrap_or_default() + 1).into(),
                None => skips
                    .push(json!({"suite": suite["suite"], "tests": 1, "reason": skip["reason"]})),
            }
        }
    }
    Ok(json!({ "rows": rows, "skips": skips }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> &'static Report {
        REPORTS.iter().find(|report| report.name == name).unwrap()
    }

    #[test]
    fn reports_are_committed_without_what_no_document_shows() {
        let check = |name: &str, report: Value, expect: Value| {
            let text = named(name)
                .commit(&report.to_string(), "now", None)
                .unwrap();
            let mut found: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(found["measured_at"], "now");
            found.as_object_mut().unwrap().remove("measured_at");
            assert_eq!(found, expect);
        };
        check(
            "matrix",
            json!({"rows": [
                {"ucx": "1", "link": "l", "entry_point": "p", "case": "a", "result": "ok", "figures": {"bytes": 7}},
                {"ucx": "1", "link": "l", "entry_point": "p", "case": "b", "result": "ok"},
                {"ucx": "1", "link": "l", "entry_point": "p", "case": "c", "result": "3 bytes are wrong"},
            ]}),
            json!({"rows": [
                {"ucx": "1", "link": "l", "entry_point": "p", "result": "ok", "cells": 2, "failed": 0},
                {"ucx": "1", "link": "l", "entry_point": "p", "result": "failed", "cells": 1, "failed": 1},
            ], "figures": [
                {"ucx": "1", "link": "l", "entry_point": "p", "case": "a", "bytes": 7},
            ]}),
        );
        let skip = |name: &str| json!({"name": name, "reason": "r"});
        check(
            "suites",
            json!([{"suite": "s", "passed": 1, "failed": 0, "skipped": 2, "skips": [skip("a"), skip("b")]}]),
            json!({
                "rows": [{"suite": "s", "passed": 1, "failed": 0, "skipped": 2, "measured_at": "now"}],
                "skips": [{"suite": "s", "tests": 2, "reason": "r"}],
            }),
        );
        let row = |ppn: u32| {
            json!({"ppn": ppn, "sps": 4, "link_gbps": 400.0, "scheme": "xgvmi", "size": 1, "nodes": 2, "us": 3.0,
                   "time_saved_percent": 4.0})
        };
        check(
            "model",
            json!({"costs": "c", "rows": [row(32), row(16)], "first_rows": [row(16)],
                   "shares": [{"bottleneck": "link"}, {}],
                   "sensitivity": [{"what": "w", "sizes": [{"size": 1}]}], "limits": [{"size": 2}],
                   "beside_ucc": [{"size": 3, "collective": "alltoallv", "ppn": 32}, {"size": 3, "collective": "bcast", "ppn": 32}],
                   "crossings": [{"from": 4}]}),
            json!({"costs": "c", "link_gbps": 400, "first_rows": [], "limits": [{"size": 2}],
                   "beside_ucc": [{"size": 3, "collective": "alltoallv", "ppn": 32}], "crossings": [{"from": 4}],
                   "sensitivity": [{"what": "w", "size": 1}],
                   "rows": [{"scheme": "xgvmi", "size": 1, "nodes": 2, "us": 3.0, "time_saved_percent": 4.0,
                             "bottleneck": "link"}]}),
        );
        assert!(named("matrix").commit("[]", "now", None).is_err());
        assert!(named("demo").commit("", "now", None).is_err());
        let skipped = json!({"skipped": "no packages", "rows": []}).to_string();
        assert!(named("ucc").commit(&skipped, "now", None).is_err());
    }

    #[test]
    fn a_partial_run_keeps_the_rows_of_other_suites() {
        let run = |suites: &[(&str, u64)]| {
            let of = |(suite, passed): &(&str, u64)| {
                json!({"suite": suite, "passed": passed, "failed": 0, "skipped": 0,
                       "skips": [{"name": "n", "reason": "r"}]})
            };
            json!(suites.iter().map(of).collect::<Vec<_>>()).to_string()
        };
        let report = named("suites");
        let before = report
            .commit(&run(&[("a", 1), ("b", 2)]), "then", None)
            .unwrap();
        let new = report
            .commit(&run(&[("b", 3), ("c", 4)]), "now", None)
            .unwrap();
        let merged: Value = serde_json::from_str(&report.merged(&new, &before).unwrap()).unwrap();
        let rows = merged["rows"].as_array().unwrap();
        let found: Vec<(&str, u64, &str)> = rows
            .iter()
            .map(|row| {
                let text = |key: &str| row[key].as_str().unwrap();
                (
                    text("suite"),
                    row["passed"].as_u64().unwrap(),
                    text("measured_at"),
                )
            })
            .collect();
        assert_eq!(found, [("a", 1, "then"), ("b", 3, "now"), ("c", 4, "now")]);
        assert_eq!(merged["skips"].as_array().unwrap().len(), 3);
        // Other reports are replaced as a whole.
        assert_eq!(named("demo").merged("{}", "{\"rows\": []}").unwrap(), "{}");
    }

    #[test]
    fn a_report_names_its_command_its_time_and_its_commit() {
        let check = |name: &str, text: &str, expect: &str| {
            let mut reports = Reports::default();
            reports.add(name, text).unwrap();
            assert_eq!(reports.get(name).unwrap().unwrap()["source"], expect);
        };
        let text = named("demo").commit(r#"{"rows":[]}"#, "now", Some("abc"));
        check(
            "demo",
            &text.unwrap(),
            "`cargo xtask demo`, now, commit abc",
        );
        let suites = |name: &str, time: &str, commit| {
            let run = json!([{"suite": name, "passed": 1, "failed": 0, "skipped": 0}]).to_string();
            named("suites").commit(&run, time, commit).unwrap()
        };
        let (old, new) = (
            suites("a", "2026-01", None),
            suites("b", "2026-02", Some("abc")),
        );
        check(
            "suites",
            &old,
            "`cargo xtask suites`, 2026-01, commit unknown",
        );
        let merged = named("suites").merged(&new, &old).unwrap();
        let expect = "`cargo xtask suites`, 2026-01 to 2026-02, commit unknown, abc";
        check("suites", &merged, expect);
    }
}
