//! What the pool saves over block size, one line per number of nodes.

use super::report::{Document, Row};
use anyhow::Result;
use bench_report::svg::{self, COLOURS, DrawResult, Page, bounds, power_of};
use plotters::prelude::*;

/// Of the schemes that were predicted, the first of these is drawn: the whole of the project's, else UCX's pool.
const DRAWN: [&str; 2] = ["xgvmi", "stock"];

/// Draws the rows that differ from the first machine in nothing but nodes and size.
///
/// # Errors
/// If there is no row of a scheme with a pool.
pub(super) fn render(document: &Document) -> Result<String> {
    svg::page(|page| draw(page, document))
}

fn draw(page: &Page<'_>, document: &Document) -> DrawResult {
    let scheme = DRAWN
        .into_iter()
        .find(|scheme| document.rows.iter().any(|row| row.scheme == *scheme))
        .ok_or("there is no row of a scheme with a pool")?;
    // The slides' machine where the grid has it, so that a sweep shows what the pages speak of.
    let of_scheme = || document.rows.iter().filter(|row| row.scheme == scheme);
    let base = of_scheme()
        .find(|row| (row.nodes, row.sps) == (32, 4))
        .or_else(|| of_scheme().next())
        .ok_or("there is no row")?;
    let alike =
        |row: &&Row| (row.ppn, row.sps) == (base.ppn, base.sps) && row.link_gbps == base.link_gbps;
    let rows: Vec<&Row> = of_scheme().filter(alike).collect();
    let mut nodes: Vec<u32> = rows.iter().map(|row| row.nodes).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let (left, right) = bounds(rows.iter().map(|row| power(row))).ok_or("there is no row")?;
    let mut chart = ChartBuilder::on(page)
        .caption(
            format!(
                "Predicted: time saved by {scheme} against a key per buffer ({} ranks, {} SPs per node, {} Gb/s)",
                base.ppn, base.sps, base.link_gbps
            ),
            ("sans-serif", 20),
        )
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(left - 0.5..right + 1.5, 0.0..100.0)?;
    let percent = |percent: &f64| format!("{percent} %");
    svg::axes(&mut chart, ("bytes per block", "time saved"), percent)?;
    for (at, nodes) in nodes.into_iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        // Beyond the last colour, thinner.
        let width = if at < COLOURS.len() { 3 } else { 1 };
        let mut line: Vec<(f64, f64)> = rows
            .iter()
            .filter(|row| row.nodes == nodes)
            .map(|row| (power(row), row.time_saved_percent.clamp(0.0, 100.0)))
            .collect();
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart
            .draw_series(LineSeries::new(line.clone(), colour.stroke_width(width)))?
            .label(format!("{nodes} nodes"))
            .legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(width))
            });
        chart.draw_series(
            line.into_iter()
                .map(|point| Circle::new(point, 4, colour.filled())),
        )?;
    }
    svg::legend(&mut chart, SeriesLabelPosition::UpperRight)
}

fn power(row: &Row) -> f64 {
    power_of(usize::try_from(row.size).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(scheme: &str) -> Document {
        let rows = [(2, 14), (32, 14), (2, 15), (32, 15)].map(|(nodes, power)| Row {
            nodes,
            ppn: 32,
            sps: 4,
            link_gbps: 400.0,
            size: 1 << power,
            scheme: scheme.to_owned(),
            us: 10.0,
            time_saved_percent: f64::from(nodes),
            speedup_percent: 0.0,
        });
        let mut document = Document::new(String::new(), &[], &[]);
        document.rows = rows.into();
        document
    }

    #[test]
    fn the_plot_names_what_it_shows() {
        let svg = render(&document("stock")).expect("drawn");
        for text in [
            "saved by stock",
            "32 ranks, 4 SPs",
            "2 nodes",
            "32 nodes",
            "16 KiB",
        ] {
            assert!(svg.contains(text), "no {text:?} in the plot");
        }
        let svg = render(&document("xgvmi")).expect("drawn");
        assert!(svg.contains("saved by xgvmi"));
    }

    #[test]
    fn without_a_pool_there_is_nothing_to_draw() {
        assert!(render(&document("ksm")).is_err());
    }
}
