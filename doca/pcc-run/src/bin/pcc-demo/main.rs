//! Congestion-control programs side by side in the lab: incasts and a parking lot, set-points, speed, and a plot over time.
#![expect(clippy::print_stdout, reason = "the table is what this program prints")]

mod htsim;
mod plot;
mod programs;
mod report;
mod runs;
mod takeover;

use anyhow::{Context as _, Result, ensure};
use bench_report::columns::CONGESTION;
use bench_report::table;
use clap::Parser;
use programs::Contender;
use report::{Packets, Row, SetPoint, Speed, Written};
use runs::{Case, Length};
use std::path::PathBuf;

/// Compares congestion-control programs in the lab
#[derive(Debug, Parser)]
struct Arguments {
    /// Directory of the report
    #[arg(long)]
    output: PathBuf,
    /// Microseconds of the lab that each run takes
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(400..=1_000_000))]
    us: u64,
}

/// Set-points in Gb/s, on a port of 200 Gb/s.
const SETPOINTS: [u32; 8] = [1, 2, 4, 8, 12, 16, 32, 64];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    bench_report::files::remove(&arguments.output)?;
    let length = Length::new(arguments.us);
    let contenders = programs::all()?;
    let (mut rows, mut packets, mut speed, mut series) =
        (Vec::new(), Packets::default(), Speed::default(), Vec::new());
    println!("{}", table::head(CONGESTION));
    for case in Case::all() {
        for contender in &contenders {
            let row = row(contender, case, length, &mut packets, &mut speed)?;
            println!("{}", row.line()?);
            rows.push(row);
            if case == Case::PLOTTED {
                series.push((
                    contender.name.clone(),
                    runs::over_time(contender, case, length)?,
                ));
            }
        }
    }
    let setpoints = setpoints(length, &mut packets)?;
    let swift = contenders.iter().find(|one| one.name == "swift");
    let (takeover_us, report) = takeover::measure(swift.context("an example")?)?;
    packets.add(&report);
    ensure!(
        packets.unaccounted() == 0,
        "the lab has lost account of packets: {packets:?}"
    );
    let none = contenders.first().context("a contender without control")?;
    speed.beside = htsim::beside(none, &arguments.output)?;
    let written = Written::new((packets, takeover_us), rows, setpoints, speed);
    println!("{}", written.closing());
    let plot = plot::render(&series)?;
    bench_report::files::write(
        &arguments.output,
        (&written, CONGESTION),
        &written.markdown()?,
        &plot,
    )?;
    Ok(())
}

/// One algorithm in one case: flows without end for shares and queues, flows of one size for slowdowns.
fn row(
    contender: &Contender,
    case: Case,
    length: Length,
    packets: &mut Packets,
    speed: &mut Speed,
) -> Result<Row> {
    let (steady, seconds) = runs::timed(contender, &case.steady(contender, length))?;
    let (finite, _) = runs::timed(contender, &case.finite(contender, length))?;
    for report in [&steady, &finite] {
        packets.add(report);
    }
    speed.add(contender, case, length, &steady, seconds);
    let slowdown = finite.slowdown.context("flows that end")?;
    Ok(Row::new(contender, case, &steady, slowdown))
}

/// What a constant rate gives, as a part of the set-point.
fn setpoints(length: Length, packets: &mut Packets) -> Result<Vec<SetPoint>> {
    let constant = programs::constant()?;
    let mut all = Vec::new();
    for gbps in SETPOINTS {
        let contender = constant.with_rate((gbps << 20) / 200);
        let (report, _) = runs::timed(&contender, &runs::single(length))?;
        packets.add(&report);
        all.push(SetPoint {
            gbps,
            measured_ratio: report.goodput_gbps / f64::from(gbps),
        });
    }
    Ok(all)
}
