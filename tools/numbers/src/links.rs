//! The report of `cargo xtask bench links`: the demo's rows of each scheme over two links, as ratios.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// The links in the names of the demo's schemes, such as `stock-ethernet`.
const LINKS: [&str; 2] = ["infiniband", "ethernet"];

/// A row per scheme and size: the steady medians over both links, and their ratio.
///
/// # Errors
/// If a byte was wrong, or a row is missing.
pub(crate) fn compare(report: Value) -> Result<Value> {
    let wrong = report["mismatches"].as_u64();
    ensure!(wrong == Some(0), "wrong bytes: {wrong:?}");
    let found = report["rows"].as_array().context("no rows")?;
    ensure!(!found.is_empty(), "no rows");
    let mut rows = Vec::new();
    for row in found {
        let name = row["scheme"].as_str().context("no scheme")?;
        let Some((scheme, "infiniband")) = name.rsplit_once('-') else {
            continue;
        };
        let [infiniband, ethernet] = LINKS.map(|link| {
            let run = format!("{scheme}-{link}");
            let row = found
                .iter()
                .find(|other| other["scheme"] == run && other["size"] == row["size"])
                .with_context(|| format!("no row of {run} with {} bytes", row["size"]))?;
            let median = row["steady_us"]["p50"].as_f64();
            median.with_context(|| format!("no median in {row}"))
        });
        let (infiniband, ethernet) = (infiniband?, ethernet?);
        rows.push(json!({
            "scheme": scheme,
            "size": row["size"],
            "infiniband_us": infiniband,
            "ethernet_us": ethernet,
            "ratio": ethernet / infiniband,
        }));
    }
    Ok(json!({ "schema": 1, "rows": rows }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_compare_the_links() {
        let row =
            |scheme, p50| json!({ "scheme": scheme, "size": 16384, "steady_us": { "p50": p50 } });
        let both = [row("stock-infiniband", 100.0), row("stock-ethernet", 103.0)];
        let compared = compare(json!({ "mismatches": 0, "rows": both })).unwrap();
        let rows = compared["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 1);
        assert!((rows[0]["ratio"].as_f64().unwrap() - 1.03).abs() < 1e-9);
        let error = |report| compare(report).unwrap_err().to_string();
        let one = json!({ "mismatches": 0, "rows": [row("stock-infiniband", 1.0)] });
        assert_eq!(error(one), "no row of stock-ethernet with 16384 bytes");
        let wrong = json!({ "mismatches": 1, "rows": both });
        assert_eq!(error(wrong), "wrong bytes: Some(1)");
    }
}
