//! OSU's output format of version 7.4, followed by our own columns.
//!
//! Widths and precision are OSU's: 10 characters for the size, 20 for each number with two decimals, 12 for the
//! iterations. The golden files in `tests/golden` are the output of OSU's own programs.

use crate::datatype::Datatype;
use crate::options::{Options, Program, VERSION};
use std::fmt::Write as _;

/// Result of the blocking benchmark at one size, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Latency {
    /// Mean over ranks of each rank's mean.
    pub average: f64,
    /// The smallest of the ranks' means.
    pub least: f64,
    /// The largest of the ranks' means.
    pub greatest: f64,
}

/// Result of the non-blocking benchmark at one size: means over ranks, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Overlap {
    /// From the start of the collective to the end of the wait, with computation between.
    pub overall: f64,
    /// The computation alone.
    pub compute: f64,
    /// The call that starts the collective.
    pub init: f64,
    /// All calls of MPI_Test.
    pub test: f64,
    /// The call of MPI_Wait.
    pub wait: f64,
    /// The collective without computation.
    pub pure: f64,
    /// The smallest of the ranks' means of that.
    pub pure_least: f64,
    /// The largest of the ranks' means of that.
    pub pure_greatest: f64,
}

impl Overlap {
    /// Share of the collective that the computation hid, in percent, at least 0.
    #[must_use]
    pub fn percent(&self) -> f64 {
        // OSU's formula: overall time minus computation, relative to the pure collective.
        (100.0 - (self.overall - self.compute) / self.pure * 100.0).max(0.0)
    }
}

/// The result of either benchmark.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figures {
    /// Of the blocking benchmark.
    Latency(Latency),
    /// Of the non-blocking one.
    Overlap(Overlap),
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Line<'a> {
    /// Bytes to each rank.
    pub size: usize,
    /// OSU's numbers.
    pub figures: Figures,
    /// Timed iterations.
    pub iterations: usize,
    /// With validation, whether all bytes were correct.
    pub valid: Option<bool>,
    /// One per percentile.
    pub tails: &'a [f64],
    /// Our own columns after OSU's; "-" without a value.
    pub own: &'a [Option<f64>],
}

/// The line that `-v` prints, and the first line of a run.
#[must_use]
pub fn title(program: Program) -> String {
    let kind = match program {
        Program::Blocking => "",
        Program::NonBlocking => "Non-blocking ",
    };
    format!("# OSU MPI {kind}All-to-Allv Personalized Exchange Latency Test v{VERSION}\n")
}

/// The lines above the first table.
#[must_use]
pub fn preamble(program: Program) -> String {
    let mut text = format!("\n{}", title(program));
    if program == Program::NonBlocking {
        text.push_str("# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n\n");
    }
    text
}

/// The lines above a datatype's table.
#[must_use]
pub fn header(options: &Options, datatype: Datatype, own: &[&str]) -> String {
    let columns: &[&str] = match (options.program, options.full) {
        (Program::Blocking, false) => &["Avg Latency(us)"],
        (Program::Blocking, true) => &["Avg Latency(us)", "Min Latency(us)", "Max Latency(us)"],
        (Program::NonBlocking, false) => {
            &["Overall(us)", "Compute(us)", "Pure Comm.(us)", "Overlap(%)"]
        }
        (Program::NonBlocking, true) => &[
            "Overall(us)",
            "Compute(us)",
            "Coll. Init(us)",
            "MPI_Test(us)",
            "MPI_Wait(us)",
            "Pure Comm.(us)",
            "Min Comm.(us)",
            "Max Comm.(us)",
            "Overlap(%)",
        ],
    };
    let mut text = format!("# Datatype: {}.\n# Size    ", datatype.name());
    // Writing to a String cannot fail, here and below.
    for column in columns {
        let _ = write!(text, "{column:>20}");
    }
    if options.program == Program::Blocking && options.full {
        let _ = write!(text, "{:>12}", "Iterations");
    }
    if options.validate {
        let _ = write!(text, "{:>20}", "Validation");
    }
    for percent in &options.percentiles {
        let _ = write!(text, "{:>20}", format!("P{percent} Tail Lat(us)"));
    }
    for column in own {
        let _ = write!(text, "{column:>20}");
    }
    text.push('\n');
    text
}

/// One line of numbers.
#[must_use]
pub fn line(options: &Options, line: &Line<'_>) -> String {
    let mut text = format!("{:<10}", line.size);
    match line.figures {
        Figures::Latency(latency) => {
            number(&mut text, latency.average);
            if options.full {
                number(&mut text, latency.least);
                number(&mut text, latency.greatest);
                let _ = write!(text, "{:>12}", line.iterations);
            }
        }
        Figures::Overlap(overlap) => {
            number(&mut text, overlap.overall);
            number(&mut text, overlap.compute);
            if options.full {
                number(&mut text, overlap.init);
                number(&mut text, overlap.test);
                number(&mut text, overlap.wait);
            }
            number(&mut text, overlap.pure);
            if options.full {
                number(&mut text, overlap.pure_least);
                number(&mut text, overlap.pure_greatest);
            }
            number(&mut text, overlap.percent());
        }
    }
    if let Some(valid) = line.valid {
        let _ = write!(text, "{:>20}", if valid { "Pass" } else { "Fail" });
    }
    for tail in line.tails {
        number(&mut text, *tail);
    }
    for own in line.own {
        match own {
            Some(value) => number(&mut text, *value),
            None => {
                let _ = write!(text, "{:>20}", "-");
            }
        }
    }
    text.push('\n');
    text
}

/// OSU's message on standard output after wrong bytes.
#[must_use]
pub fn validation_error(program: Program, size: usize) -> String {
    format!(
        "DATA VALIDATION ERROR: {} exited with status 1 on message size {size}.\n",
        program.name()
    )
}

fn number(text: &mut String, value: f64) {
    let _ = write!(text, "{value:>20.2}");
}
