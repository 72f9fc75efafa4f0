//! `report.md`: the run for readers, with the definitions of its numbers.

use super::table::count;
use super::{Report, Row};
use bench_report::{format_size, scheme_title};
use std::fmt::Write as _;

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_all(&mut text, report);
    text
}

fn write_all(to: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(to, "# Offloaded transfer, host A to host B by two DPUs\n")?;
    writeln!(
        to,
        "- UCX {}, unmodified; device cost profile `{}`",
        report.ucx_version, report.profile
    )?;
    writeln!(
        to,
        "- {} bytes verified at host B, {} wrong",
        report.verified_bytes, report.mismatches
    )?;
    write!(
        to,
        "- schemes: `per-buffer` = UCX creates a key per buffer (`UCX_IB_XGVMI_UMR_ENABLE=n`); `ucx-pool` = UCX's own pool; \
         `xgvmi-pool` = this project's library in the same UCX, `arena` = the same with `UCX_XGVMI_ARENA`; report.json calls \
         the first three `ksm`, `stock` and `xgvmi`\n\n\
         Both hosts use a fresh buffer for each iteration. An iteration's time is host A's: from just before it \
         tells host B to start, until its own buffer is unmapped from UCX and from the address space and host B has \
         unmapped from UCX. Registration, export, import, keys, data and completions of all four processes are in \
         it; making, filling and verifying buffers are not. *First* is the first iteration in a new UCX context \
         (the median where there were several). Percentiles are nearest-rank over the steady \
         iterations; the schemes took turns within each size.\n\n"
    )?;
    writeln!(to, "![steady times over size](report.svg)\n")?;
    times(to, report)?;
    commands(to, report)
}

fn times(to: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(to, "## Times (us)\n")?;
    writeln!(
        to,
        "| size | scheme | first | p50 | p99 | iterations | p50 against ucx-pool | p50 against per-buffer |"
    )?;
    writeln!(to, "|---:|---|---:|---:|---:|---:|---:|---:|")?;
    for row in sorted(report) {
        writeln!(
            to,
            "| {} | {} | {:.1} | {:.1} | {:.1} | {} | {} | {} |",
            format_size(row.size),
            scheme_title(&row.scheme),
            row.first_us,
            row.steady_us.p50,
            row.steady_us.p99,
            row.iterations,
            against(report, row, "stock"),
            against(report, row, "ksm"),
        )?;
    }
    writeln!(to)
}

fn commands(to: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(
        to,
        "## Commands per steady iteration, all four functions (the device's own counters)\n"
    )?;
    writeln!(
        to,
        "| size | scheme | create mkey | destroy mkey | allow other vHCA | create alias | destroy alias | UMR bind \
         | UMR invalidate | doorbells |"
    )?;
    writeln!(to, "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|")?;
    for row in sorted(report) {
        let counts = &row.commands_per_iteration;
        write!(
            to,
            "| {} | {} |",
            format_size(row.size),
            scheme_title(&row.scheme)
        )?;
        for value in [
            counts.create_mkey,
            counts.destroy_mkey,
            counts.allow_other_vhca_access,
            counts.create_alias,
            counts.destroy_alias,
            counts.umr_bind,
            counts.umr_invalidate,
            counts.doorbells,
        ] {
            write!(to, " {} |", count(value))?;
        }
        writeln!(to)?;
    }
    Ok(())
}

/// Sorted by size; schemes in the order of the run.
fn sorted(report: &Report) -> impl Iterator<Item = &Row> {
    let schemes = report.schemes();
    report.sizes().into_iter().flat_map(move |size| {
        schemes
            .clone()
            .into_iter()
            .filter_map(move |scheme| report.row(scheme, size))
    })
}

fn against(report: &Report, row: &Row, scheme: &str) -> String {
    match report.row(scheme, row.size) {
        Some(other) if other.scheme != row.scheme => {
            format!("{:.2}x", row.steady_us.p50 / other.steady_us.p50)
        }
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn the_page_has_every_row_and_the_ratios() {
        let text = render(&sample());
        for line in [
            "- UCX 1.20.1, unmodified; device cost profile `bluefield3`",
            "- 123456789 bytes verified at host B, 0 wrong",
            "| 16 KiB | per-buffer | 2100.0 | 1800.0 | 2250.0 | 60 | 6.00x | - |",
            "| 16 KiB | xgvmi-pool | 900.2 | 290.0 | 362.5 | 60 | 0.97x | 0.16x |",
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
        let text = render(&report);
        assert!(
            text.contains("| 16 KiB | xgvmi-pool | 900.2 | 290.0 | 362.5 | 60 | - | - |"),
            "{text}"
        );
    }
}
