//! The promises that a benchmark checks: each is a query of a report and a bound. A promise without a report, or without
//! its row in the report, is neither kept nor broken.

use crate::promises::{FILE, Measured};
use crate::query::Query;
use crate::reports::Reports;
use anyhow::{Context, Result};
use bench_report::{columns, table};
use serde_json::{Value, json};

/// One row for each measured promise: `promise`, `wanted`, `found`, `kept` (null without a report), the `command` that
/// writes the report, and `why` a promise is not kept.
///
/// # Errors
/// A report does not have the expected form.
pub fn rows(reports: &Reports) -> Result<Vec<Value>> {
    let measured = reports.promises.measured.iter();
    measured
        .map(|promise| {
            let found = found(promise, reports).with_context(|| promise.text.clone())?;
            let kept = found.map(|found| promise.bound.holds(found));
            let shown = found.map(|found| {
                let mut shown = digits(found);
                // A number that misses the bound must not look like the bound.
                if kept == Some(false) && promise.bound.shown("").ends_with(&format!(" {shown}")) {
                    shown = format!("{found:.4}");
                }
                format!("{shown} {}", promise.unit).trim_end().to_owned()
            });
            Ok(json!({
                "promise": promise.text, "wanted": promise.bound.shown(&promise.unit), "found": shown, "kept": kept,
                "command": Reports::command(&Query::parse(&promise.query)?.report)?, "why": promise.why,
            }))
        })
        .collect()
}

fn found(promise: &Measured, reports: &Reports) -> Result<Option<f64>> {
    let number = |text: &str| -> Result<Option<f64>> {
        let query = Query::parse(text)?;
        match reports.get(&query.report)? {
            Some(report) => query.number(report),
            None => Ok(None),
        }
    };
    let Some(found) = number(&promise.query)? else {
        return Ok(None);
    };
    let Some(over) = &promise.over else {
        return Ok(Some(found));
    };
    Ok(number(over)?.map(|over| found / over))
}

/// Three significant digits; large numbers keep all integer digits.
fn digits(number: f64) -> String {
    match number.abs() {
        _ if number.fract() == 0.0 => format!("{number:.0}"),
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

/// A promise's row with its verdict in words.
pub fn with_verdict(row: &Value, [kept, broken, unknown]: [&str; 3]) -> Value {
    let mut row = row.clone();
    let verdict = match row["kept"].as_bool() {
        Some(true) => kept,
        Some(false) => broken,
        None => unknown,
    };
    row["verdict"] = verdict.into();
    row
}

/// Table of all measured promises.
pub(crate) fn all(report: &Value, query: &Query) -> Result<String> {
    let rows = query.rows(report, "rows")?.into_iter().map(|row| {
        let mut row = with_verdict(row, ["yes", "**no**", "not measured"]);
        row["command"] = format!("`{}`", row["command"].as_str().unwrap_or_default()).into();
        row
    });
    table::markdown(columns::JUDGE, &rows.collect::<Vec<_>>())
}

/// List of the measured promises that the reports do not reach, by reason.
pub(crate) fn not_reached(report: &Value, query: &Query) -> Result<String> {
    let mut reasons: Vec<(&str, String)> = Vec::new();
    for row in query.rows(report, "rows")? {
        if row["kept"].as_bool() != Some(false) {
            continue;
        }
        let cell = |key: &str| row[key].as_str().unwrap_or("-");
        let why = row["why"].as_str().with_context(|| {
            format!(
                "'{}' is not reached ({}); give the reason as `why` in {FILE}",
                cell("promise"),
                cell("found")
            )
        })?;
        let line = format!(
            "  - {}: {} ({})",
            cell("promise"),
            cell("found"),
            cell("wanted")
        );
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, lines)) => *lines += &format!("\n{line}"),
            None => reasons.push((why, line)),
        }
    }
    if reasons.is_empty() {
        return Ok("None: the committed reports keep all measured promises.".to_owned());
    }
    let parts: Vec<String> = reasons
        .iter()
        // Links of the file begin at the root, and the list is in a page below docs.
        .map(|(why, lines)| format!("- {}\n{lines}", why.replace("](docs/", "](")))
        .collect();
    Ok(parts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promises::Promises;

    const PROMISES: &str = r#"
[[measured]]
text = "median over stock"
query = "demo scheme=xgvmi max:of_stock"
at_most = 1.05
unit = "times"
why = "reason"
[[measured]]
text = "median over ksm"
query = "demo scheme=xgvmi max:of_ksm"
below = 1
[[measured]]
text = "lease"
query = "pool name=lease_release_1t ours"
at_most = 60
[[measured]]
text = "two threads"
query = "pool name=lease_release_2t ratio"
above = 1.0
[[measured]]
text = "get"
query = 'device name="ucp_get, 1 MiB, by the median" measured'
over = 'device name="the same by cma" measured'
at_least = 0.8
unit = "times"
"#;

    fn reports() -> Reports {
        let mut reports = Reports::default();
        reports.promises = Promises::parse(PROMISES).unwrap();
        reports
    }

    fn judged(report: &str, text: &str) -> Vec<Value> {
        let mut reports = reports();
        reports.add(report, text).unwrap();
        rows(&reports).unwrap()
    }

    fn row<'a>(rows: &'a [Value], what: &str) -> &'a Value {
        let mut found = rows.iter().filter(|row| row["promise"] == what);
        found.next().unwrap()
    }

    #[test]
    fn a_promise_is_kept_broken_or_unknown() {
        let demo = |p50: f64| {
            let row = |scheme: &str, p50: f64| json!({"scheme": scheme, "size": 1, "first_us": 1.0, "steady_us": {"p50": p50}});
            json!({"mismatches": 0, "rows": [row("ksm", 200.0), row("stock", 100.0), row("xgvmi", p50)]})
        };
        let check = |p50: f64, stock: bool, ksm: bool, found: &str| {
            let rows = judged("demo", &demo(p50).to_string());
            assert_eq!(
                *row(&rows, "median over stock"),
                json!({
                    "promise": "median over stock", "wanted": "<= 1.05 times", "found": found, "kept": stock,
                    "command": "cargo xtask demo", "why": "reason",
                })
            );
            assert_eq!(row(&rows, "median over ksm")["kept"], ksm);
            // A missing report.
            let pool = row(&rows, "lease");
            assert_eq!(
                (&pool["kept"], &pool["found"]),
                (&Value::Null, &Value::Null)
            );
        };
        check(104.0, true, true, "1.04 times");
        check(106.0, false, true, "1.06 times");
        check(105.0, true, true, "1.05 times");
        check(105.01, false, true, "1.0501 times");
        check(200.0, false, false, "2 times");
    }

    #[test]
    fn a_row_that_is_not_there_is_unknown_and_one_of_another_form_an_error() {
        let rows = judged(
            "pool",
            r#"{"rows":[{"name":"lease_release_1t","ours":70.0,"ratio":0.5}]}"#,
        );
        let kept = |what: &str| row(&rows, what)["kept"].clone();
        assert_eq!(kept("lease"), false);
        assert_eq!(kept("two threads"), Value::Null);
        let mut reports = reports();
        let strange = r#"{"rows":[{"name":"lease_release_1t","ours":"fast","ratio":1}]}"#;
        reports.add("pool", strange).unwrap();
        assert!(super::rows(&reports).is_err());
    }

    #[test]
    fn ratios_of_two_rows_are_judged() {
        let device = r#"{"rows":[{"name":"ucp_get, 1 MiB, by the median","measured":9},
                                 {"name":"the same by cma","measured":10}]}"#;
        let rows = judged("device", device);
        let get = row(&rows, "get");
        assert_eq!(
            (&get["found"], &get["kept"]),
            (&json!("0.900 times"), &json!(true))
        );
    }

    #[test]
    fn promises_that_are_not_reached_have_their_reason() {
        let row = |promise: &str, kept: Option<bool>, why: Option<&str>| json!({"promise": promise, "wanted": "<= 1", "found": "2", "kept": kept, "why": why});
        let rows = [
            row("a", Some(false), Some("Because [B](docs/B.md).")),
            row("b", Some(true), None),
            row("c", None, Some("Old.")),
            row("d", Some(false), Some("Because [B](docs/B.md).")),
        ];
        let check = |report: Value, expect: &str| {
            let query = Query::parse("judge-not-reached").unwrap();
            let text = not_reached(&report, &query);
            let text = text.unwrap_or_else(|error| error.to_string());
            assert!(text.contains(expect), "{text}");
        };
        check(
            json!({"rows": rows}),
            "- Because [B](B.md).\n  - a: 2 (<= 1)\n  - d: 2 (<= 1)",
        );
        check(json!({"rows": [row("b", Some(true), None)]}), "None: ");
        let silent = json!({"rows": [row("a", Some(false), None)]});
        check(silent, "give the reason");
    }
}
