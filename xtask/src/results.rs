//! `cargo xtask results`: docs/RESULTS.md from the files that the benches wrote. Nothing in it is typed by hand.
//!
//! A bench that has not been run is named with its command, and its section says so; a file that is not as it should
//! be is an error.

mod machine;
mod table;
mod timeline;

use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use table::{Column, Form};

const HELP: &str = "\
Usage: cargo xtask results

Writes docs/RESULTS.md and its plots from what `cargo xtask bench`, demo, matrix and suites left below target.
Sections without a file say which command makes it.";

/// Where plots go, below docs.
const PLOTS: &str = "results";
/// `date` and `git` answer at once.
const LIMIT: Duration = Duration::from_secs(10);

/// One result.
struct Section {
    title: &'static str,
    /// What the numbers are, so that the page can be read alone.
    about: &'static str,
    command: &'static str,
    /// Below the target directory.
    file: &'static str,
    /// The plot that the same command wrote.
    plot: Option<&'static str>,
    body: fn(&Value) -> Result<String>,
}

const SECTIONS: [Section; 10] = [
    Section {
        title: "The offloaded transfer",
        about: "Host A to host B by two DPUs, four processes, a fresh buffer in every iteration; times of a whole \
                iteration in us, commands of the device per iteration.",
        command: "cargo xtask demo",
        file: "demo/report.json",
        plot: Some("demo/report.svg"),
        body: iterations,
    },
    Section {
        title: "The offloaded alltoallv",
        about: "osu_alltoallv over service processes, two emulated nodes, a temporary buffer in every iteration; times \
                in us, commands of the device per iteration.",
        command: "cargo xtask bench alltoallv",
        file: "bench/alltoallv.json",
        plot: Some("bench/alltoallv.svg"),
        body: iterations,
    },
    Section {
        title: "What a key costs",
        about: "Each step on the emulated device under the profile `bluefield3`, in us: measured; what the emulator and \
                the program need themselves, measured with all other steps as they are and no time for this one; the \
                slides' time; and measured over what was expected. The emulator works while the device's time runs, \
                so that anything from the longer of the two to their sum is as expected: 1.00.",
        command: "cargo xtask bench cost",
        file: "bench/cost.json",
        plot: Some("bench/cost.svg"),
        body: cost,
    },
    Section {
        title: "The pool beside its peers",
        about: "One run for both; \"times better\" is the peer's number over ours. What each row is stands in \
                [SPECIFICATION.md](SPECIFICATION.md).",
        command: "cargo xtask bench pool",
        file: "bench/pool.json",
        plot: None,
        body: pool,
    },
    Section {
        title: "The library in a process",
        about: "What it adds to the whole run of a program that it serves in nothing, and its size.",
        command: "cargo xtask bench library",
        file: "bench/library.json",
        plot: None,
        body: any_rows,
    },
    Section {
        title: "The emulated device",
        about: "Stock programs over the emulated device without a cost profile: what the emulator itself takes.",
        command: "cargo xtask bench device",
        file: "bench/device.json",
        plot: None,
        body: any_rows,
    },
    Section {
        title: "Predicted: alltoallv on machines of any size",
        about: "The scale model ([MODEL.md](MODEL.md)), 32 ranks and 4 service processes per node, 400 Gb/s: time \
                saved against a key per buffer, in percent, by the whole of this project's pool.",
        command: "cargo xtask bench model",
        file: "bench/model.json",
        plot: Some("bench/model.svg"),
        body: model,
    },
    Section {
        title: "The model against the measured alltoallv",
        about: "What a pool saves of a call against a key per buffer, in us: the difference of two measured medians, \
                and of two predictions. The emulator's own time is in both medians and cancels out, but for what it \
                adds to commands that the pool avoids.",
        command: "cargo xtask bench check",
        file: "bench/check.json",
        plot: None,
        body: check,
    },
    Section {
        title: "In every stock UCX",
        about: "Cells of the compatibility matrix, by what came of them.",
        command: "cargo xtask matrix",
        file: "matrix/report.json",
        plot: None,
        body: matrix,
    },
    Section {
        title: "Other people's programs",
        about: "Test suites of others over the emulated device; skips are listed with reasons in \
                [skips.toml](../tests/suites/skips.toml).",
        command: "cargo xtask suites",
        file: "suites/report.json",
        plot: None,
        body: suites,
    },
];

/// Writes the page.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    match arguments.first().map(String::as_str) {
        None => {}
        Some("-h" | "--help") => {
            println!("{HELP}");
            return Ok(ExitCode::SUCCESS);
        }
        Some(other) => bail!("'{other}' is not understood; try: cargo xtask results --help"),
    }
    let (target, docs) = (workspace::target_dir(), workspace::root().join("docs"));
    let mut missing = Vec::new();
    let page = page(&target, &machine::describe()?, &mut missing)?;
    if missing.len() == SECTIONS.len() {
        bail!("nothing was measured yet; try: {}", missing.join(", "));
    }
    let plots = docs.join(PLOTS);
    fs::create_dir_all(&plots).with_context(|| format!("making {}", plots.display()))?;
    for section in &SECTIONS {
        if let Some(plot) = section
            .plot
            .map(|plot| target.join(plot))
            .filter(|plot| plot.exists())
        {
            let copy = plots.join(plot_name(section));
            fs::copy(&plot, &copy).with_context(|| format!("copying {}", plot.display()))?;
        }
    }
    draw_timeline(&target, &plots, &mut missing)?;
    let file = docs.join("RESULTS.md");
    fs::write(&file, page).with_context(|| format!("writing {}", file.display()))?;
    for command in missing {
        println!("not measured: {command}");
    }
    println!("written: {}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// Draws README's picture, if there are reports of both the demo and the cost of a key.
fn draw_timeline(target: &Path, plots: &Path, missing: &mut Vec<&'static str>) -> Result<()> {
    let report = |file: &str| -> Result<Option<Value>> {
        let path = target.join(file);
        let Ok(json) = fs::read_to_string(&path) else {
            return Ok(None);
        };
        let report = serde_json::from_str(&json);
        report
            .map(Some)
            .with_context(|| format!("reading {}", path.display()))
    };
    let (Some(cost), Some(demo)) = (report("bench/cost.json")?, report("demo/report.json")?) else {
        missing.push("cargo xtask bench cost and cargo xtask demo, for README's time line");
        return Ok(());
    };
    let path = plots.join("transfer.svg");
    fs::write(&path, timeline::draw(&cost, &demo)?)
        .with_context(|| format!("writing {}", path.display()))
}

/// File name of a section's plot: that of its report.
fn plot_name(section: &Section) -> String {
    let name = section.command.rsplit(' ').next().unwrap_or_default();
    format!("{name}.svg")
}

fn page(target: &Path, machine: &str, missing: &mut Vec<&'static str>) -> Result<String> {
    let mut text = format!(
        "# Results\n\nMade by `cargo xtask results` from the files that the commands below wrote; nothing is typed by \
         hand. Times are this machine's, which may have done other work as well: they compare what stands beside each \
         other, and predict no other machine.\n\n{machine}"
    );
    for section in &SECTIONS {
        let file = target.join(section.file);
        write!(text, "\n## {}\n\n{}\n\n", section.title, section.about)?;
        let Ok(json) = fs::read_to_string(&file) else {
            missing.push(section.command);
            writeln!(text, "Not measured here: `{}` does.", section.command)?;
            continue;
        };
        let report: Value =
            serde_json::from_str(&json).with_context(|| format!("reading {}", file.display()))?;
        let body =
            (section.body)(&report).with_context(|| format!("what {} holds", file.display()))?;
        writeln!(
            text,
            "`{}`, {}:\n\n{body}",
            section.command,
            written(&file)?
        )?;
        if section.plot.is_some_and(|plot| target.join(plot).exists()) {
            writeln!(
                text,
                "\n![{}]({PLOTS}/{})",
                section.title,
                plot_name(section)
            )?;
        }
    }
    Ok(text)
}

/// When a file was written.
fn written(file: &Path) -> Result<String> {
    let mut command = Command::new("date");
    command
        .args(["--utc", "+%F %R UTC", "--reference"])
        .arg(file);
    Ok(process::stdout(&mut command, LIMIT)?.trim().to_owned())
}

/// Rows of the demo and of the alltoallv, which have the same form.
fn iterations(report: &Value) -> Result<String> {
    let count = |title, path| Column::new(title, path, Form::Count);
    let time = |title, path| Column::new(title, path, Form::Fixed(1));
    let mut rows = report["rows"].clone();
    for row in rows.as_array_mut().into_iter().flatten() {
        let number = |path: &str| row.pointer(path).and_then(Value::as_f64);
        if let (Some(first), Some(p50)) = (number("/first_us"), number("/steady_us/p50")) {
            row["first_more_us"] = (first - p50).into();
        }
    }
    table::of_rows(
        &rows,
        &[
            Column::new("size", "/size", Form::Size),
            Column::new("scheme", "/scheme", Form::Text),
            time("first", "/first_us"),
            time("p50", "/steady_us/p50"),
            // What only the first one does, keys above all.
            time("first - p50", "/first_more_us"),
            time("p99", "/steady_us/p99"),
            count("create", "/commands_per_iteration/create_mkey"),
            count("destroy", "/commands_per_iteration/destroy_mkey"),
            count("allow", "/commands_per_iteration/allow_other_vhca_access"),
            count("alias+", "/commands_per_iteration/create_alias"),
            count("alias-", "/commands_per_iteration/destroy_alias"),
            count("bind", "/commands_per_iteration/umr_bind"),
            count("inval", "/commands_per_iteration/umr_invalidate"),
            count("doorbells", "/commands_per_iteration/doorbells"),
        ],
    )
}

fn cost(report: &Value) -> Result<String> {
    let time = |title, path| Column::new(title, path, Form::Micro);
    table::of_rows(
        &report["rows"],
        &[
            Column::new("approach", "/approach", Form::Text),
            Column::new("step", "/step", Form::Text),
            Column::new("size", "/size", Form::Size),
            time("measured", "/measured_ns"),
            time("own", "/own_ns"),
            time("slide", "/slide_ns"),
            Column::new("ratio", "/ratio", Form::Fixed(2)),
        ],
    )
}

fn pool(report: &Value) -> Result<String> {
    table::of_rows(
        &report["rows"],
        &[
            Column::new("row", "/name", Form::Text),
            Column::new("ours", "/ours", Form::Fixed(1)),
            Column::new("peer", "/peer", Form::Fixed(1)),
            Column::new("unit", "/unit", Form::Text),
            Column::new("times better", "/ratio", Form::Fixed(2)),
        ],
    )
}

/// Whatever plain columns the rows have.
fn any_rows(report: &Value) -> Result<String> {
    table::of_any(&report["rows"])
}

/// The grid of [`SECTIONS`]'s model: a line for each number of nodes.
fn model(report: &Value) -> Result<String> {
    let drawn = |row: &&Value| {
        row["scheme"] == "xgvmi" && row["ppn"] == 32 && row["sps"] == 4 && row["link_gbps"] == 400.0
    };
    table::pivot(
        &report["rows"],
        drawn,
        "nodes",
        "size",
        "time_saved_percent",
    )
}

fn check(report: &Value) -> Result<String> {
    let time = |title, path| Column::new(title, path, Form::Fixed(0));
    table::of_rows(
        &report["rows"],
        &[
            Column::new("scheme", "/scheme", Form::Text),
            Column::new("size", "/size", Form::Size),
            time("measured", "/measured_saved_us"),
            time("predicted", "/predicted_saved_us"),
            Column::new("ratio", "/ratio", Form::Fixed(2)),
        ],
    )
}

fn matrix(report: &Value) -> Result<String> {
    table::counted(&report["rows"], &["ucx", "door"], "result")
}

fn suites(report: &Value) -> Result<String> {
    let count = |title, path| Column::new(title, path, Form::Count);
    let rows = if report.is_array() {
        report
    } else {
        &report["suites"]
    };
    table::of_rows(
        rows,
        &[
            Column::new("suite", "/suite", Form::Text),
            count("passed", "/passed"),
            count("failed", "/failed"),
            count("skipped", "/skipped"),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_named() {
        let place = tempfile::tempdir().unwrap();
        let bench = place.path().join("bench");
        fs::create_dir(&bench).unwrap();
        let rows = r#"{"rows":[{"name":"a","ours":1.0,"peer":2.5,"ratio":2.5,"unit":"ns"}]}"#;
        fs::write(bench.join("pool.json"), rows).unwrap();
        let mut missing = Vec::new();
        let page = page(place.path(), "- a machine\n", &mut missing).unwrap();
        assert!(page.contains("| a | 1.0 | 2.5 | ns | 2.50 |"), "{page}");
        assert!(
            page.contains("Not measured here: `cargo xtask demo` does."),
            "{page}"
        );
        assert_eq!(missing.len(), SECTIONS.len() - 1);
    }

    #[test]
    fn a_file_of_another_form_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let bench = place.path().join("bench");
        fs::create_dir(&bench).unwrap();
        for wrong in ["", "{}", r#"{"rows":[]}"#, r#"{"rows":[{"name":"a"}]}"#] {
            fs::write(bench.join("pool.json"), wrong).unwrap();
            let error = page(place.path(), "", &mut Vec::new()).unwrap_err();
            assert!(
                format!("{error:#}").contains("pool.json"),
                "{wrong}: {error:#}"
            );
        }
    }
}
