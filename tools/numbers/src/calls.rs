//! Tables of the instructions of an offloaded call.

use crate::query::Query;
use crate::table::{self, Column, Form};
use anyhow::Result;
use serde_json::Value;

/// Instructions of a rank and of a service process per call, by owner.
pub(crate) fn instructions(report: &Value, query: &Query) -> Result<String> {
    table::of_rows(
        &query.rows(report, "rows")?,
        &[
            Column::new("process", "/process", Form::Text),
            Column::new("size", "/size", Form::Size),
            Column::new("scheme", "/scheme", Form::Text),
            Column::new("owner", "/owner", Form::Text),
            Column::new("instructions per call", "/instructions", Form::Count),
            Column::new("of stock", "/of_stock", Form::Fixed(3)),
        ],
    )
}

/// A rank's instructions per call, by owner.
pub(crate) fn overlap_instructions(report: &Value, query: &Query) -> Result<String> {
    table::of_rows(
        &query.rows(report, "rows")?,
        &[
            Column::new("part", "/what", Form::Text),
            Column::new("owner", "/owner", Form::Text),
            Column::new("instructions per call", "/instructions", Form::Count),
        ],
    )
}

/// A rank's own time in a call of the scale model, and the overlap that it leaves.
pub(crate) fn overlap_bounds(report: &Value, query: &Query) -> Result<String> {
    let time = |title, path| Column::new(title, path, Form::Fixed(1));
    table::of_rows(
        &query.rows(report, "bounds")?,
        &[
            Column::new("size", "/size", Form::Size),
            time("call (us)", "/call_us"),
            time("registration and keys (us)", "/registration_us"),
            time("instructions (us)", "/instructions_us"),
            time("largest overlap (%)", "/overlap_most_percent"),
        ],
    )
}
