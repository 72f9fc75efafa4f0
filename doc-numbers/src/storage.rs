//! Tables of the benchmark of block storage.

use crate::query::Query;
use crate::table::{self, Column, Form};
use anyhow::Result;
use serde_json::Value;

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
