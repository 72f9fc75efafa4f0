//! The table on standard output: fixed columns, each row printed when it is measured.

use super::Row;
use bench_report::{format_size, scheme_title};

/// The column titles.
#[must_use]
pub fn header() -> String {
    format!(
        "{:<15} {:>9} {:>11} {:>11} {:>11} {:>6}  {:>6} {:>7} {:>6} {:>6} {:>7} {:>5} {:>6} {:>9}",
        "scheme",
        "size",
        "first (us)",
        "p50 (us)",
        "p99 (us)",
        "iters",
        "create",
        "destroy",
        "allow",
        "alias+",
        "alias-",
        "bind",
        "inval",
        "doorbells",
    )
}

/// One row; command counts are per iteration.
#[must_use]
pub fn row(row: &Row) -> String {
    let counts = &row.commands_per_iteration;
    format!(
        "{:<15} {:>9} {:>11.1} {:>11.1} {:>11.1} {:>6}  {:>6} {:>7} {:>6} {:>6} {:>7} {:>5} {:>6} {:>9}",
        scheme_title(&row.scheme),
        format_size(row.size),
        row.first_us,
        row.steady_us.p50,
        row.steady_us.p99,
        row.iterations,
        count(counts.create_mkey),
        count(counts.destroy_mkey),
        count(counts.allow_other_vhca_access),
        count(counts.create_alias),
        count(counts.destroy_alias),
        count(counts.umr_bind),
        count(counts.umr_invalidate),
        count(counts.doorbells),
    )
}

/// Whole numbers without a fraction, so that a 0 is recognisable.
pub(super) fn count(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn columns_stand_below_their_titles() {
        let text: Vec<String> = std::iter::once(header())
            .chain(sample().rows.iter().map(row))
            .collect();
        assert!(
            text.iter().all(|line| line.len() == text[0].len()),
            "{text:#?}"
        );
        assert!(
            text[3].starts_with(
                "xgvmi-pool         16 KiB       900.2       290.0       362.5     60"
            )
        );
        assert!(text[3].ends_with("     2      0     21.50"));
    }
}
