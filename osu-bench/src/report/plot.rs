//! `report.svg`: time over size on logarithmic axes, one line per scheme.
//!
//! Solid: steady median, with a whisker up to the 99th percentile. Dotted, hollow: the first iteration.

use super::{Report, Row, format_size, unique};
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 600;

/// Told apart by readers of all colour vision (Okabe and Ito), and by their order.
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, LogCoord<f64>>>;

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
/// There is no row, or the drawing fails.
pub fn plot(rows: &[Row], caption: &str) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        draw(&root, rows, caption).map_err(|error| anyhow!("drawing the plot: {error}"))?;
    }
    Ok(svg)
}

type DrawResult = Result<(), Box<dyn std::error::Error>>;

fn draw(root: &DrawingArea<SVGBackend<'_>, Shift>, rows: &[Row], caption: &str) -> DrawResult {
    root.fill(&WHITE)?;
    let (x_range, y_range) = ranges(rows)?;
    let mut chart = ChartBuilder::on(root)
        .caption(caption, ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(84)
        .build_cartesian_2d(x_range, y_range.log_scale())?;
    chart
        .configure_mesh()
        .x_labels(16)
        .x_label_formatter(&|power| size_of_power(*power))
        .y_label_formatter(&|us| format_time(*us))
        .x_desc("bytes per transfer")
        .y_desc("time")
        .axis_desc_style(("sans-serif", 17))
        .label_style(("sans-serif", 15))
        .light_line_style(RGBColor(238, 238, 238))
        .bold_line_style(RGBColor(215, 215, 215))
        .draw()?;
    let schemes = unique(rows.iter().map(|row| row.scheme.as_str()));
    let colours = COLOURS.iter().cycle();
    for (index, (scheme, colour)) in schemes.iter().zip(colours).enumerate() {
        // Side by side, so that schemes that take the same time do not hide each other.
        #[expect(clippy::cast_precision_loss, reason = "a few schemes")]
        let shift = (index as f64 - (schemes.len() - 1) as f64 / 2.0) * 0.1;
        draw_scheme(&mut chart, rows, scheme, *colour, shift)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .margin(12)
        .label_font(("sans-serif", 15))
        .background_style(WHITE.mix(0.9))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    root.present()?;
    Ok(())
}

fn draw_scheme(
    chart: &mut Chart<'_>,
    rows: &[Row],
    scheme: &str,
    colour: RGBColor,
    shift: f64,
) -> DrawResult {
    let mut rows: Vec<&Row> = rows.iter().filter(|row| row.scheme == scheme).collect();
    rows.sort_by_key(|row| row.size);
    let x_of = |row: &Row| power_of(row.size) + shift;
    let steady = || rows.iter().map(|row| (x_of(row), row.steady_us.p50));
    let first = || rows.iter().map(|row| (x_of(row), row.first_us));

    chart
        .draw_series(LineSeries::new(steady(), colour.stroke_width(3)))?
        .label(format!("{scheme}, steady (p50, whisker to p99)"))
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3)));
    chart.draw_series(steady().map(|point| Circle::new(point, 5, colour.filled())))?;
    chart.draw_series(rows.iter().map(|row| {
        let (x, times) = (x_of(row), row.steady_us);
        PathElement::new([(x, times.p50), (x, times.p99)], colour.stroke_width(2))
    }))?;

    chart
        .draw_series(DashedLineSeries::new(first(), 3, 5, colour.stroke_width(1)))?
        .label(format!("{scheme}, first iteration"))
        .legend(move |(x, y)| Circle::new((x + 11, y), 4, colour.stroke_width(1)));
    chart.draw_series(first().map(|point| Circle::new(point, 4, colour.stroke_width(1))))?;
    Ok(())
}

/// The axes' ranges: all points, and some room. The x axis counts powers of two.
fn ranges(rows: &[Row]) -> Result<(std::ops::Range<f64>, std::ops::Range<f64>)> {
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(None, |bounds: Option<(f64, f64)>, value| {
            let (low, high) = bounds.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        })
    };
    let x = bounds(&mut rows.iter().map(|row| power_of(row.size)));
    let y = bounds(
        &mut rows
            .iter()
            .flat_map(|row| [row.first_us, row.steady_us.p50, row.steady_us.p99]),
    );
    let ((left, right), (bottom, top)) = x.zip(y).ok_or_else(|| anyhow!("there is no row"))?;
    // A logarithmic axis has no zero; no transfer takes less than a nanosecond.
    let bottom = bottom.max(1e-3);
    Ok((left - 0.5..right + 0.5, bottom / 2.0..top.max(bottom) * 4.0))
}

/// Where a size stands on an axis that counts powers of two.
pub(crate) fn power_of(size: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a position on a plot")]
    let size = size as f64;
    size.log2()
}

/// `16 KiB` at whole powers of two, nothing between them.
pub(crate) fn size_of_power(power: f64) -> String {
    if power.fract() != 0.0 || !(0.0..f64::from(usize::BITS)).contains(&power) {
        return String::new();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number between 0 and 63, see above"
    )]
    let shift = power as u32;
    format_size(1 << shift)
}

fn format_time(us: f64) -> String {
    if us >= 1e6 {
        format!("{} s", us / 1e6)
    } else if us >= 1e3 {
        format!("{} ms", us / 1e3)
    } else {
        format!("{us} us")
    }
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
            "ksm, steady",
            "stock, steady",
            "xgvmi, first iteration",
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

    #[test]
    fn labels_are_written_as_people_say_them() {
        let check = |found: String, expect: &str| assert_eq!(found, expect);
        check(size_of_power(14.0), "16 KiB");
        check(size_of_power(14.5), "");
        check(size_of_power(-1.0), "");
        check(format_time(100.0), "100 us");
        check(format_time(10_000.0), "10 ms");
        check(format_time(2e6), "2 s");
    }
}
