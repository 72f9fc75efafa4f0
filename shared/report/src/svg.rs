//! Common parts of all plots: page, size axis, colours, legend.

use crate::format_size;
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 600;

/// Colours that are distinct in all forms of colour vision (Okabe and Ito). The order also
/// distinguishes them.
pub const COLOURS: [RGBColor; 6] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// The drawing area.
pub type Page<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A chart with powers of two on the x axis.
pub type Chart<'a, Y> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, Y>>;
/// The result type of plotters' drawing functions.
pub type DrawResult = std::result::Result<(), Box<dyn std::error::Error>>;

/// Draws a plot and returns it as SVG text.
///
/// # Errors
/// The error of `draw`.
pub fn page(draw: impl FnOnce(&Page<'_>) -> DrawResult) -> Result<String> {
    let mut svg = String::new();
    {
        let page = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        let whole = |page: &Page<'_>| -> DrawResult {
            page.fill(&WHITE)?;
            draw(page)?;
            page.present()?;
            Ok(())
        };
        whole(&page).map_err(|error| anyhow!("drawing the plot: {error}"))?;
    }
    Ok(svg)
}

/// Draws the axes, their titles and the grid.
pub fn axes<Y>(
    chart: &mut Chart<'_, Y>,
    (x, y): (&str, &str),
    y_label: fn(&f64) -> String,
) -> DrawResult
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_labels(16)
        .x_label_formatter(&|power| size_of_power(*power))
        .y_label_formatter(&y_label)
        .x_desc(x)
        .y_desc(y)
        .axis_desc_style(("sans-serif", 17))
        .label_style(("sans-serif", 15))
        .light_line_style(RGBColor(238, 238, 238))
        .bold_line_style(RGBColor(215, 215, 215))
        .draw()?;
    Ok(())
}

/// Draws the legend of all series drawn before.
pub fn legend<Y>(chart: &mut Chart<'_, Y>, place: SeriesLabelPosition) -> DrawResult
where
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(place)
        .margin(12)
        .label_font(("sans-serif", 15))
        .background_style(WHITE.mix(0.9))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    Ok(())
}

/// Smallest and largest value; `None` without values.
pub fn bounds(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().fold(None, |bounds, value| {
        let (low, high) = bounds.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// Position of a size on an axis of powers of two.
pub fn power_of(size: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a position on a plot")]
    let size = size as f64;
    size.log2()
}

/// `16 KiB` at whole powers of two, otherwise empty.
fn size_of_power(power: f64) -> String {
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

/// A time in microseconds as text with a suitable unit.
pub fn format_time(us: &f64) -> String {
    if *us >= 1e6 {
        format!("{} s", us / 1e6)
    } else if *us >= 1e3 {
        format!("{} ms", us / 1e3)
    } else {
        format!("{us} us")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_written_as_people_say_them() {
        let check = |found: String, expect: &str| assert_eq!(found, expect);
        check(size_of_power(14.0), "16 KiB");
        check(size_of_power(14.5), "");
        check(size_of_power(-1.0), "");
        check(format_time(&100.0), "100 us");
        check(format_time(&10_000.0), "10 ms");
        check(format_time(&2e6), "2 s");
    }

    #[test]
    fn bounds_are_of_all_values() {
        assert_eq!(bounds([2.0, 1.0, 3.0]), Some((1.0, 3.0)));
        assert_eq!(bounds([]), None);
    }
}
