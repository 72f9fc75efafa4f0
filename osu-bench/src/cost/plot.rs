//! What one buffer costs over its size, one line per approach: solid measured, dotted the slides.

use super::report::{Document, Row};
use crate::report::plot::{COLOURS, power_of, size_of_power};
use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 600;

pub(super) fn render(document: &Document) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        draw(&root, document).map_err(|error| anyhow!("drawing the plot: {error}"))?;
    }
    Ok(svg)
}

type DrawResult = std::result::Result<(), Box<dyn std::error::Error>>;

fn draw(root: &DrawingArea<SVGBackend<'_>, Shift>, document: &Document) -> DrawResult {
    let sizes = document.sizes();
    let points = |approach: &str, of: fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
        let total = |size: &usize| {
            let us = document.total_ns(approach, *size, of)? / 1e3;
            Some((power_of(*size), us)).filter(|(_, us)| *us > 0.0)
        };
        sizes.iter().filter_map(total).collect()
    };
    let measured: fn(&Row) -> Option<f64> = |row| Some(row.measured_ns);
    let slide: fn(&Row) -> Option<f64> = |row| row.slide_ns;
    let all: Vec<(f64, f64)> = document
        .approaches()
        .into_iter()
        .flat_map(|approach| [points(approach, measured), points(approach, slide)].concat())
        .collect();
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        all.iter()
            .map(of)
            .fold((f64::MAX, f64::MIN), |(low, high), value| {
                (low.min(value), high.max(value))
            })
    };
    if all.is_empty() {
        return Err("there is no row".into());
    }
    let ((left, right), (bottom, top)) = (bounds(|point| point.0), bounds(|point| point.1));
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(root)
        .caption(
            "Keys for a buffer that a DPU reaches: all steps, made and unmade",
            ("sans-serif", 22),
        )
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(84)
        .build_cartesian_2d(
            left - 0.5..right + 0.5,
            (bottom / 2.0..top * 4.0).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_labels(16)
        .x_label_formatter(&|power| size_of_power(*power))
        .y_label_formatter(&|us| format!("{us} us"))
        .x_desc("bytes of memory")
        .y_desc("time per buffer")
        .axis_desc_style(("sans-serif", 17))
        .label_style(("sans-serif", 15))
        .light_line_style(RGBColor(238, 238, 238))
        .bold_line_style(RGBColor(215, 215, 215))
        .draw()?;
    for (approach, colour) in document
        .approaches()
        .into_iter()
        .zip(COLOURS.iter().cycle())
    {
        let colour = *colour;
        let line = points(approach, measured);
        chart
            .draw_series(LineSeries::new(line.clone(), colour.stroke_width(3)))?
            .label(format!("{approach}, measured"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3)));
        chart.draw_series(
            line.into_iter()
                .map(|point| Circle::new(point, 5, colour.filled())),
        )?;
        let line = points(approach, slide);
        if line.is_empty() {
            continue;
        }
        chart
            .draw_series(DashedLineSeries::new(
                line.clone(),
                3,
                5,
                colour.stroke_width(1),
            ))?
            .label(format!("{approach}, slides"))
            .legend(move |(x, y)| Circle::new((x + 11, y), 4, colour.stroke_width(1)));
        chart.draw_series(
            line.into_iter()
                .map(|point| Circle::new(point, 4, colour.stroke_width(1))),
        )?;
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

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;

    #[test]
    fn the_plot_names_what_it_shows() {
        let svg = render(&sample()).expect("drawn");
        for text in [
            "umem, measured",
            "umr_pool_hit, slides",
            "16 KiB",
            "1 MiB",
            "1000 us",
        ] {
            assert!(svg.contains(text), "no {text:?} in the plot");
        }
    }

    #[test]
    fn nothing_is_no_plot() {
        let mut document = sample();
        document.rows.clear();
        assert!(render(&document).is_err());
    }
}
