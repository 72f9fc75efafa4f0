//! `report.md`: the run for readers, with the definitions of its numbers.

use super::Report;
use anyhow::Result;
use bench_report::columns::{DEMO, DEMO_RATIOS};
use bench_report::table;
use serde_json::Value;

/// The page.
///
/// # Errors
/// The report has no row.
pub(super) fn render(report: &Report) -> Result<String> {
    let rows = sorted(report)?;
    let size = ["size", "scheme"];
    let times = ["first_us", "steady_us.p50", "steady_us.p99", "iterations"];
    let mut times = table::part(DEMO, &[&size[..], &times].concat())?;
    times.extend(DEMO_RATIOS);
    let counts = DEMO
        .iter()
        .filter(|column| column.name.starts_with("commands"));
    let mut commands = table::part(DEMO, &size)?;
    commands.extend(counts);
    Ok(format!(
        "# Offloaded transfer, host A to host B by two DPUs\n\n\
         - UCX {}, unmodified; device cost profile `{}`; DPUs {}\n\
         - {} bytes verified at host B, {} wrong\n\
         - schemes: `per-buffer` = UCX creates a key per buffer (`UCX_IB_XGVMI_UMR_ENABLE=n`); `ucx-pool` = UCX's own pool; \
         `xgvmi-pool` = this project's library in the same UCX, `arena` = the same with `UCX_XGVMI_ARENA`; report.json calls \
         the first three `ksm`, `stock` and `xgvmi`\n\n\
         Both hosts use a fresh buffer for each iteration. An iteration's time is host A's: from just before it \
         tells host B to start, until its own buffer is unmapped from UCX and from the address space and host B has \
         unmapped from UCX. Registration, export, import, keys, data and completions of all four processes are in \
         it; making, filling and verifying buffers are not. *First* is the first iteration in a new UCX context \
         (the median where there were several). Percentiles are nearest-rank over the steady \
         iterations; the schemes took turns within each size.\n\n\
         ![steady times over size](report.svg)\n\n## Times\n\n{}\n\n\
         ## Commands per steady iteration, all four functions (the device's own counters)\n\n{}\n",
        report.ucx_version,
        report.profile,
        report.dpu_arch,
        report.verified_bytes,
        report.mismatches,
        table::markdown(&times, &rows)?,
        table::markdown(&commands, &rows)?
    ))
}

/// Rows sorted by size, schemes in the order of the run, with their ratios to other schemes.
fn sorted(report: &Report) -> Result<Vec<Value>> {
    let (sizes, schemes) = (report.sizes(), report.schemes());
    let mut rows = Vec::new();
    for size in sizes {
        for row in schemes.iter().filter_map(|scheme| report.row(scheme, size)) {
            let mut value = serde_json::to_value(row)?;
            for (scheme, name) in [("stock", "of_stock"), ("ksm", "of_ksm")] {
                let other = report.row(scheme, size);
                if let Some(other) = other.filter(|other| other.scheme != row.scheme) {
                    value[name] = (row.steady_us.p50 / other.steady_us.p50).into();
                }
            }
            rows.push(value);
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn the_page_has_every_row_and_the_ratios() {
        let text = render(&sample()).expect("a page");
        for line in [
            "- UCX 1.20.1, unmodified; device cost profile `bluefield3`; DPUs aarch64",
            "- 123456789 bytes verified at host B, 0 wrong",
            "| 16 KiB | per-buffer | 2100.0 | 1800.0 | 2250.0 | 60 | 6.00 | - |",
            "| 16 KiB | xgvmi-pool | 900.2 | 290.0 | 362.5 | 60 | 0.97 | 0.16 |",
            "| 16 MiB | ucx-pool | 0 | 0 | 0 | 0 | 0 | 2 | 0 | 21.50 |",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "no line {line:?} in\n{text}"
            );
        }
    }

    #[test]
    fn a_run_of_one_scheme_has_no_ratios() {
        let mut report = sample();
        report.rows.retain(|row| row.scheme == "xgvmi");
        let text = render(&report).expect("a page");
        assert!(
            text.contains("| 16 KiB | xgvmi-pool | 900.2 | 290.0 | 362.5 | 60 | - | - |"),
            "{text}"
        );
    }
}
