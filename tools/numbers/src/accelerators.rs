//! Tables of `cargo xtask demo naaice`.

use crate::query::Query;
use crate::table::{self, Column, Form};
use anyhow::Result;
use serde_json::Value;

/// Calls to accelerators: a dash for what a hand-written loop does not have.
pub(crate) fn calls(report: &Value, query: &Query) -> Result<String> {
    let mut rows: Vec<Value> = query.rows(report, "rows")?.into_iter().cloned().collect();
    for row in &mut rows {
        let commands = row["commands_per_one_shot"].clone();
        for key in ["umr_bind", "doorbells"] {
            row[key] = commands[key].clone();
        }
        for key in ["key_commands", "times_faster_than_ksm", "call_of_loop"] {
            if row.get(key).is_none() {
                row[key] = Value::Null;
            }
        }
    }
    let time = |title, path| Column::new(title, path, Form::Fixed(1));
    let count = |title, path| Column::new(title, path, Form::Count);
    table::of_rows(
        &rows.iter().collect::<Vec<_>>(),
        &[
            Column::new("size", "/size", Form::Size),
            Column::new("way", "/way", Form::Text),
            time("create (us)", "/create_us"),
            time("call (us)", "/call_us"),
            time("one shot (us)", "/one_shot_us"),
            count("key and alias commands", "/key_commands"),
            count("binds", "/umr_bind"),
            count("doorbells", "/doorbells"),
            Column::new("call over loop", "/call_of_loop", Form::Fixed(2)),
            Column::new(
                "times faster than ksm",
                "/times_faster_than_ksm",
                Form::Fixed(2),
            ),
        ],
    )
}

/// Parts of a one shot, of the ways through the service.
pub(crate) fn parts(report: &Value, query: &Query) -> Result<String> {
    let rows = query.rows(report, "rows")?;
    let mut rows: Vec<Value> = rows
        .into_iter()
        .filter(|row| row["parts"]["service"].is_object())
        .cloned()
        .collect();
    if rows.is_empty() {
        return Ok("Not in the report yet.".to_owned());
    }
    for row in &mut rows {
        if row.get("at_most_times_faster").is_none() {
            row["at_most_times_faster"] = Value::Null;
        }
    }
    let time = |title, path| Column::new(title, path, Form::Fixed(1));
    table::of_rows(
        &rows.iter().collect::<Vec<_>>(),
        &[
            Column::new("size", "/size", Form::Size),
            Column::new("way", "/way", Form::Text),
            time("create (us)", "/create_us"),
            time("first call (us)", "/parts/first_call_us"),
            time("finalize (us)", "/parts/finalize_us"),
            time("zero (us)", "/parts/service/zero_us"),
            time("read (us)", "/parts/service/read_us"),
            time("kernel (us)", "/parts/service/kernel_us"),
            time("write (us)", "/parts/service/write_us"),
            Column::new("at most", "/at_most_times_faster", Form::Fixed(2)),
        ],
    )
}

/// A computation of the host during calls.
pub(crate) fn overlap(report: &Value, query: &Query) -> Result<String> {
    let time = |title, path| Column::new(title, path, Form::Fixed(1));
    table::of_rows(
        &query.rows(report, "overlap")?,
        &[
            Column::new("size", "/size", Form::Size),
            Column::new("way", "/way", Form::Text),
            time("call (us)", "/call_us"),
            time("computation (us)", "/compute_us"),
            time("both (us)", "/both_us"),
            time("hidden (%)", "/hidden_percent"),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_of_a_call_are_shown_if_the_report_has_them() {
        let shown = |report: &Value| {
            let query = Query::parse("naaice-parts").expect("a table");
            parts(report, &query).expect("a table")
        };
        let mut row = json!({"size": 1 << 20, "way": "ksm", "create_us": 1.0});
        let old = shown(&json!({"rows": [row.clone()]}));
        assert_eq!(old, "Not in the report yet.");
        let service = json!({"zero_us": 4.0, "read_us": 5.0, "kernel_us": 6.0, "write_us": 7.25});
        row["parts"] = json!({"first_call_us": 2.0, "finalize_us": 3.0, "service": service});
        let line = "| 1 MiB | ksm | 1.0 | 2.0 | 3.0 | 4.0 | 5.0 | 6.0 | 7.2 | - |";
        let text = shown(&json!({"rows": [row]}));
        assert!(text.contains(line), "{text}");
    }
}
