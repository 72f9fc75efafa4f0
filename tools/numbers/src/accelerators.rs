//! The table of `cargo xtask demo naaice`.

use crate::query::Query;
use crate::table::{self, Column, Form};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Calls to accelerators: a line for each size, with the times of each way.
pub(crate) fn calls(report: &Value, query: &Query) -> Result<String> {
    let mut lines: BTreeMap<u64, Value> = BTreeMap::new();
    for row in query.rows(report, "rows")? {
        let size = row["size"].as_u64().context("a row without size")?;
        let way = row["way"].as_str().context("a row without way")?;
        let line = lines.entry(size).or_insert_with(|| json!({ "size": size }));
        line[way] = row.clone();
    }
    let time = |title, path| Column::new(title, path, Form::Fixed(0));
    table::of_rows(
        &lines.values().collect::<Vec<_>>(),
        &[
            Column::new("size", "/size", Form::Size),
            time("call: loop", "/loop/call_us"),
            time("verbs", "/verbs/call_us"),
            time("pool", "/pool/call_us"),
            time("one shot: verbs", "/verbs/one_shot_us"),
            time("per-buffer", "/ksm/one_shot_us"),
            time("pool", "/pool/one_shot_us"),
            Column::new(
                "per-buffer over pool",
                "/pool/times_faster_than_ksm",
                Form::Fixed(1),
            ),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(error.to_string().contains("/pool/call_us"), "{error:#}");
    }
}
