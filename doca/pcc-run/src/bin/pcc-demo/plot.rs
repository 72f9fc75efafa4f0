//! Queue and rates over time, one colour per algorithm.

use anyhow::Result;
use bench_report::svg::{self, COLOURS, DrawResult, Page, bounds};
use pcc_lab::RATE_MAX;
use pcc_lab::report::Sample;
use plotters::prelude::*;

type Series = (String, Vec<Sample>);
type Line = (String, RGBColor, Vec<(f64, f64)>);

/// Speed of a port.
const GBPS: f64 = 200.0;

pub(crate) fn render(all: &[Series]) -> Result<String> {
    svg::page(|page| {
        let (above, below) = page.split_vertically(300);
        chart(
            &above,
            ("Incast of eight flows: longest queue", "MB"),
            &lines(all, queue),
        )?;
        chart(
            &below,
            ("Rates: the lowest and the highest of the eight", "Gb/s"),
            &edges(all),
        )
    })
}

#[expect(clippy::cast_precision_loss, reason = "a place on a plot")]
fn queue(sample: &Sample) -> f64 {
    sample.queue_bytes as f64 / 1e6
}

fn gbps(rate: Option<&u32>) -> f64 {
    f64::from(*rate.unwrap_or(&0)) * GBPS / f64::from(RATE_MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a place on a plot")]
fn points(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Vec<(f64, f64)> {
    let us = |sample: &Sample| sample.time_ns as f64 / 1e3;
    samples
        .iter()
        .map(|sample| (us(sample), of(sample)))
        .collect()
}

fn lines(all: &[Series], of: fn(&Sample) -> f64) -> Vec<Line> {
    let coloured = all.iter().zip(COLOURS.iter().cycle());
    coloured
        .map(|((name, samples), colour)| (name.clone(), *colour, points(samples, of)))
        .collect()
}

/// Two lines for each algorithm.
fn edges(all: &[Series]) -> Vec<Line> {
    let lowest = lines(all, |sample| gbps(sample.rates.iter().min()));
    let highest = lines(all, |sample| gbps(sample.rates.iter().max()));
    lowest
        .into_iter()
        .chain(
            highest
                .into_iter()
                .map(|(_, colour, points)| (String::new(), colour, points)),
        )
        .collect()
}

fn chart(page: &Page<'_>, (title, unit): (&str, &str), lines: &[Line]) -> DrawResult {
    let all = || lines.iter().flat_map(|(_, _, points)| points);
    let x = bounds(all().map(|point| point.0)).ok_or("there is no sample")?;
    let (_, top) = bounds(all().map(|point| point.1)).ok_or("there is no sample")?;
    let mut chart = ChartBuilder::on(page)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(x.0..x.1, 0.0..top.max(0.001) * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("us")
        .y_desc(unit)
        .label_style(("sans-serif", 13))
        .light_line_style(RGBColor(238, 238, 238))
        .draw()?;
    for (name, colour, points) in lines {
        let colour = *colour;
        let drawn = chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        if !name.is_empty() {
            drawn.label(name.clone()).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3))
            });
        }
    }
    svg::legend(&mut chart, SeriesLabelPosition::UpperRight)
}
