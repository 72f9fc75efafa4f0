//! `report.svg`: time over size on logarithmic axes, one line per scheme.
//!
//! Solid: steady median, with a whisker up to the 99th percentile. Dotted, hollow: the first iteration.

use super::{Report, Row, unique};
use anyhow::{Result, anyhow};
use bench_report::scheme_title;
use bench_report::svg::{self, COLOURS, Chart, DrawResult, Page, bounds, format_time, power_of};
use plotters::prelude::*;

pub(super) fn render(report: &Report) -> Result<String> {
    let caption = format!(
        "Offloaded transfer, time per iteration (UCX {}, profile {})",
        report.ucx_version, report.profile
    );
    plot(&report.rows, &caption)
}

/// Draws rows under a caption: a line per scheme, in the order in which the schemes come.
///
/// # Errors
/// No row, or a failed drawing.
pub fn plot(rows: &[Row], caption: &str) -> Result<String> {
    svg::page(|page| draw(page, rows, caption))
}

fn draw(page: &Page<'_>, rows: &[Row], caption: &str) -> DrawResult {
    let (x_range, y_range) = ranges(rows)?;
    let mut chart = ChartBuilder::on(page)
        .caption(caption, ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(84)
        .build_cartesian_2d(x_range, y_range.log_scale())?;
    svg::axes(&mut chart, ("bytes per transfer", "time"), format_time)?;
    let schemes = unique(rows.iter().map(|row| row.scheme.as_str()));
    let colours = COLOURS.iter().cycle();
    for (index, (scheme, colour)) in schemes.iter().zip(colours).enumerate() {
        // Side by side, so that schemes that take the same time do not hide each other.
        #[expect(clippy::cast_precision_loss, reason = "a few schemes")]
        let shift = (index as f64 - (schemes.len() - 1) as f64 / 2.0) * 0.1;
        draw_scheme(&mut chart, rows, scheme, *colour, shift)?;
    }
    svg::legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

fn draw_scheme(
    chart: &mut Chart<'_, LogCoord<f64>>,
    rows: &[Row],
    scheme: &str,
    colour: RGBColor,
    shift: f64,
) -> DrawResult {
    let mut rows: Vec<&Row> = rows.iter().filter(|row| row.scheme == scheme).collect();
    rows.sort_by_key(|row| row.size);
    let title = scheme_title(scheme);
    let x_of = |row: &Row| power_of(row.size) + shift;
    let steady = || rows.iter().map(|row| (x_of(row), row.steady_us.p50));
    let first = || rows.iter().map(|row| (x_of(row), row.first_us));

    chart
        .draw_series(LineSeries::new(steady(), colour.stroke_width(3)))?
        .label(format!("{title}, steady (p50, whisker to p99)"))
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3)));
    chart.draw_series(steady().map(|point| Circle::new(point, 5, colour.filled())))?;
    chart.draw_series(rows.iter().map(|row| {
        let (x, times) = (x_of(row), row.steady_us);
        PathElement::new([(x, times.p50), (x, times.p99)], colour.stroke_width(2))
    }))?;

    chart
        .draw_series(DashedLineSeries::new(first(), 3, 5, colour.stroke_width(1)))?
        .label(format!("{title}, first iteration"))
        .legend(move |(x, y)| Circle::new((x + 11, y), 4, colour.stroke_width(1)));
    chart.draw_series(first().map(|point| Circle::new(point, 4, colour.stroke_width(1))))?;
    Ok(())
}

/// The ranges of the axes: all points with a margin. The x axis counts powers of two.
fn ranges(rows: &[Row]) -> Result<(std::ops::Range<f64>, std::ops::Range<f64>)> {
    let x = bounds(rows.iter().map(|row| power_of(row.size)));
    let y = bounds(
        rows.iter()
            .flat_map(|row| [row.first_us, row.steady_us.p50, row.steady_us.p99]),
    );
    let ((left, right), (bottom, top)) = x.zip(y).ok_or_else(|| anyhow!("there is no row"))?;
    // A logarithmic axis has no zero; no transfer takes less than a nanosecond.
    let bottom = bottom.max(1e-3);
    Ok((left - 0.5..right + 0.5, bottom / 2.0..top.max(bottom) * 4.0))
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn the_plot_names_what_it_shows() {
        let svg = render(&sample()).expect("drawn");
        for text in [
            "UCX 1.20.1, profile bluefield3",
            "per-buffer, steady",
            "ucx-pool, steady",
            "xgvmi-pool, first iteration",
            "16 KiB",
            "16 MiB",
            "1 ms",
            "bytes per transfer",
        ] {
            assert!(svg.contains(text), "no {text:?} in the plot");
        }
    }

    #[test]
    fn one_row_is_enough_and_none_is_an_error() {
        let mut report = sample();
        report.rows.truncate(1);
        assert!(render(&report).is_ok());
        report.rows.clear();
        assert!(render(&report).is_err());
    }
}
