//! Plot of the cost per buffer over its size, one line per approach: solid measured, dotted published.

use super::report::{Document, Row};
use anyhow::Result;
use bench_report::svg::{self, COLOURS, DrawResult, Page, bounds, format_time, power_of};
use plotters::prelude::*;

pub(super) fn render(document: &Document) -> Result<String> {
    svg::page(|page| draw(page, document))
}

fn draw(page: &Page<'_>, document: &Document) -> DrawResult {
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
    let x = bounds(all.iter().map(|point| point.0));
    let y = bounds(all.iter().map(|point| point.1));
    let ((left, right), (bottom, top)) = x.zip(y).ok_or("there is no row")?;
    let mut chart = ChartBuilder::on(page)
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
    svg::axes(
        &mut chart,
        ("bytes of memory", "time per buffer"),
        format_time,
    )?;
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
    svg::legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn the_plot_names_what_it_shows() {
        let svg = render(&sample()).expect("drawn");
        for text in [
            "umem, measured",
            "umr_pool_hit, slides",
            "16 KiB",
            "1 MiB",
            "1 ms",
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
