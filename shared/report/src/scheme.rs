//! What people read for the schemes of reports. Reports and options keep `ksm`, `stock` and `xgvmi`, which are interfaces.

/// The name of a scheme in tables and plots. Variants keep their suffix, such as `xgvmi+batched`; other names stay.
///
/// ```
/// use bench_report::scheme_title;
///
/// assert_eq!(scheme_title("ksm"), "per-buffer");
/// assert_eq!(scheme_title("stock"), "ucx-pool");
/// assert_eq!(scheme_title("xgvmi+batched"), "xgvmi-pool+batched");
/// assert_eq!(scheme_title("mpi"), "mpi");
/// ```
#[must_use]
pub fn scheme_title(name: &str) -> String {
    let end = name.find(['+', '-']).unwrap_or(name.len());
    let (scheme, variant) = name.split_at(end);
    let title = match scheme {
        "ksm" => "per-buffer",
        "stock" => "ucx-pool",
        "xgvmi" => "xgvmi-pool",
        other => other,
    };
    format!("{title}{variant}")
}
