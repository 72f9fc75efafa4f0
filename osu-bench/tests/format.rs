//! OSU's output format: parses the output of OSU's own programs as scripts do, and prints it again.

use osu_mpi::datatype::Datatype;
use osu_mpi::omb::{Figures, Latency, Line, Overlap, header, line, preamble};
use osu_mpi::options::{Options, Program, Request};
use std::ffi::OsString;

/// A table as scripts read it: without lines that begin with '#' and empty ones; fields separated by blanks.
struct Table {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

fn parse(text: &str) -> Table {
    let titles = text
        .lines()
        .filter_map(|line| line.strip_prefix("# Size"))
        .next()
        .expect("a line of titles");
    // Titles contain single blanks. At least two blanks separate them.
    let titles = titles
        .split("  ")
        .map(str::trim)
        .filter(|title| !title.is_empty())
        .map(str::to_owned);
    let rows = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_whitespace().map(str::to_owned).collect());
    Table {
        titles: titles.collect(),
        rows: rows.collect(),
    }
}

impl Table {
    fn text(&self, row: usize, title: &str) -> Option<&str> {
        let at = self.titles.iter().position(|found| found == title)?;
        Some(&self.rows[row][at + 1])
    }

    fn number(&self, row: usize, title: &str) -> f64 {
        self.text(row, title)
            .map_or(0.0, |text| text.parse().expect("a number"))
    }
}

/// The options of a run and OSU's output for it.
fn check(program: Program, arguments: &str, golden: &str) {
    let words = arguments.split_whitespace().map(OsString::from);
    let Ok(Request::Run(options)) = Options::parse(program, words) else {
        panic!("{arguments}");
    };
    let mut printed = preamble(program);
    // One table per datatype, in their order.
    let tables = golden.split("# Datatype: ").skip(1);
    assert_eq!(tables.clone().count(), options.datatypes.len());
    for (datatype, text) in options.datatypes.iter().zip(tables) {
        printed += &header(&options, *datatype, &[]);
        let (_, text) = text.split_once('\n').expect("a line of titles");
        printed += &reprinted(program, &options, &parse(text));
    }
    assert_eq!(printed, golden, "{arguments}");
}

/// The lines of numbers.
fn reprinted(program: Program, options: &Options, table: &Table) -> String {
    let mut printed = String::new();
    for row in 0..table.rows.len() {
        let number = |title: &str| table.number(row, title);
        let tails: Vec<f64> = options
            .percentiles
            .iter()
            .map(|percent| number(&format!("P{percent} Tail Lat(us)")))
            .collect();
        let figures = match program {
            Program::Blocking => Figures::Latency(Latency {
                average: number("Avg Latency(us)"),
                least: number("Min Latency(us)"),
                greatest: number("Max Latency(us)"),
            }),
            Program::NonBlocking => Figures::Overlap(Overlap {
                overall: number("Overall(us)"),
                compute: number("Compute(us)"),
                init: number("Coll. Init(us)"),
                test: number("MPI_Test(us)"),
                wait: number("MPI_Wait(us)"),
                pure: number("Pure Comm.(us)"),
                pure_least: number("Min Comm.(us)"),
                pure_greatest: number("Max Comm.(us)"),
            }),
        };
        printed += &line(
            options,
            &Line {
                size: table.rows[row][0].parse().expect("a size"),
                figures,
                iterations: 20,
                valid: table.text(row, "Validation").map(|text| text == "Pass"),
                tails: &tails,
                own: &[],
            },
        );
    }
    printed
}

#[test]
fn the_blocking_table_is_osus() {
    let check = |arguments, golden| check(Program::Blocking, arguments, golden);
    check("", include_str!("golden/alltoallv.txt"));
    check("-f", include_str!("golden/alltoallv_full.txt"));
    check("-z", include_str!("golden/alltoallv_tail.txt"));
    check(
        "-f -c -z50,90,99",
        include_str!("golden/alltoallv_full_validated_tail.txt"),
    );
    check(
        "-T all -m 2:16 -f -c",
        include_str!("golden/alltoallv_types.txt"),
    );
    check(
        "-l -m 2:16 -f -c",
        include_str!("golden/alltoallv_in_place.txt"),
    );
}

#[test]
fn the_non_blocking_table_is_osus() {
    let check = |arguments, golden| check(Program::NonBlocking, arguments, golden);
    check("", include_str!("golden/ialltoallv.txt"));
    check(
        "-f -c -t 3",
        include_str!("golden/ialltoallv_full_validated.txt"),
    );
    check("-c -z5,99", include_str!("golden/ialltoallv_tail.txt"));
    check(
        "-T mpi_int -T MPI_FLOAT -m 2:16",
        include_str!("golden/ialltoallv_types.txt"),
    );
}

#[test]
fn our_columns_come_behind_osus() {
    let options = Options::new(Program::Blocking);
    let own = ["Alloc(us)", "Host Hit(%)"];
    let mut text = header(&options, Datatype::Char, &own);
    text += &line(
        &options,
        &Line {
            size: 4096,
            figures: Figures::Latency(Latency {
                average: 12.345,
                ..Latency::default()
            }),
            iterations: 20,
            valid: None,
            tails: &[],
            own: &[Some(1.5), None],
        },
    );
    let table = parse(&text);
    assert_eq!(
        table.titles,
        ["Avg Latency(us)", "Alloc(us)", "Host Hit(%)"]
    );
    // A reader that knows OSU's columns only reads the same values as before.
    assert_eq!(table.rows, [["4096", "12.35", "1.50", "-"]]);
    assert!(text.ends_with(&format!(
        "4096      {:>20}{:>20}{:>20}\n",
        "12.35", "1.50", "-"
    )));
}

#[test]
fn overlap_is_what_computation_hides() {
    let overlap = |overall, compute, pure| {
        Overlap {
            overall,
            compute,
            pure,
            ..Overlap::default()
        }
        .percent()
    };
    assert_eq!(overlap(100.0, 100.0, 50.0), 100.0);
    assert_eq!(overlap(110.0, 100.0, 50.0), 80.0);
    assert_eq!(overlap(200.0, 100.0, 50.0), 0.0);
}
