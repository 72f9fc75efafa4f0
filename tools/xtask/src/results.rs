//! `cargo xtask results`: measures, copies the reports to `docs/results`, and writes the generated parts of the
//! documents from them.

pub(crate) mod commits;
mod machine;

use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use doc_numbers::reports::{COMMITTED, MACHINE, REPORTS, Report, committed, lines};
use doc_numbers::tree::Tree;
use doc_numbers::{blocks, committed_reports, page, promises, timeline};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const HELP: &str = "\
Usage: cargo xtask results [OPTIONS]

Runs the demo and the benchmarks, copies the reports to docs/results, and writes the tables and
figures of README.md, CHANGELOG.md and docs from them. If a report cannot be created, the committed one remains.
Takes up to 25 minutes. Run it on an idle machine. The matrix, the suites, the fuzz targets and the demo of UCC run only
if they are named, because each takes as long as all others. If they are not named, the command uses their existing
reports.

  --only LIST   only these reports: demo, pool, library, links, device, cost, alltoallv, model, check,
                hotpath, fresh, offload, overlap, scale, service, soak, storage, storage-soak, storage-large,
                storage-search, matrix, suites, fuzz, ucc, programs, naaice, volume
  --keep        run nothing: take the reports that are below the target directory
  --render      run nothing and copy nothing: write the documents anew from docs/results, and all promises
                of tests/promises.toml to target/promises.md

Generated parts of documents:

  <!-- numbers: TABLE [KEY=VALUE]... -->      on a line of its own; the table of the rows with these values;
                                              values of the same key are alternatives
  <!-- end -->
  <!-- number: REPORT [KEY=VALUE]... [FUNCTION:]FIELD [FORM] --><!-- end -->     one figure in a sentence

FUNCTION is count, sum, min, max or range, over all rows. FORM is .N (digits behind the point), ',' (thousands), us
(nanoseconds as microseconds), k.N (a thousandth, with N digits), % (a share) or size (bytes). A VALUE with spaces stands in double quotes.";

/// Time limit of the whole run.
const BUDGET: Duration = Duration::from_secs(25 * 60);
/// Time limit of `date` and `git`.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Run,
    Keep,
    Render,
}

#[derive(Debug)]
struct Options {
    mode: Mode,
    only: Vec<String>,
}

impl Options {
    /// `None` for a help request.
    fn parse(arguments: Vec<String>) -> Result<Option<Self>> {
        use lexopt::prelude::{Long, Short, ValueExt as _};
        let (mut mode, mut only) = (Mode::Run, Vec::new());
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("keep") => mode = Mode::Keep,
                Long("render") => mode = Mode::Render,
                Long("only") => {
                    for name in parser.value()?.string()?.split(',') {
                        if !REPORTS.iter().any(|report| report.name == name) {
                            let names: Vec<&str> = REPORTS.iter().map(|r| r.name).collect();
                            bail!("no report '{name}'; there are {}", names.join(", "));
                        }
                        only.push(name.to_owned());
                    }
                }
                Short('h') | Long("help") => return Ok(None),
                other => bail!("{}; try: cargo xtask results --help", other.unexpected()),
            }
        }
        Ok(Some(Self { mode, only }))
    }

    /// Whether to run the command of a requested report, or only to take its file.
    fn runs(&self, report: &Report) -> bool {
        !report.only_by_name || !self.only.is_empty()
    }

    fn wants(&self, report: &Report) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == report.name)
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(options) = Options::parse(arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let root = workspace::root();
    let mut complete = true;
    if options.mode != Mode::Render {
        let (target, place) = (workspace::target_dir(), root.join(COMMITTED));
        fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
        let start = Instant::now();
        // Before the first report changes a committed file.
        let commit = machine::commit();
        let mut collected = 0;
        for report in REPORTS.iter().filter(|report| options.wants(report)) {
            let made = match options.mode {
                // The command itself sees the files that the reports before it have changed.
                Mode::Run if options.runs(report) => make(report, &target, start)
                    .and_then(|()| commits::note(&target.join(report.file), commit.as_deref())),
                _ => Ok(()),
            };
            match made.and_then(|()| collect(report, &target, &place)) {
                Ok(true) => collected += 1,
                Ok(false) => println!(
                    "{:<10} no report; `{}` makes it",
                    report.name,
                    report.shown()
                ),
                Err(error) => {
                    println!("{:<10} FAILED: {error:#}", report.name);
                    complete = false;
                }
            }
        }
        if collected == 0 {
            bail!("nothing was measured");
        }
        // The other reports are of the machine of the last run with all.
        if options.only.is_empty() {
            write(&root.join(committed(MACHINE)), &lines(&machine::describe()))?;
        }
        println!(
            "{collected} reports collected in {} s",
            start.elapsed().as_secs()
        );
    }
    complete &= render(&root)?;
    Ok(if complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the command of a report within the remaining time. Its output goes to a file.
fn make(report: &Report, target: &Path, start: Instant) -> Result<()> {
    let left = BUDGET.saturating_sub(start.elapsed()).min(report.limit);
    if left.is_zero() {
        bail!("no time is left of {} minutes", BUDGET.as_secs() / 60);
    }
    let place = target.join("results");
    fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
    let log = place.join(format!("{}.log", report.name));
    let output = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    // A report of an earlier run must not count for this run.
    let _ = fs::remove_file(target.join(report.file));
    let program = std::env::current_exe().context("where is this program?")?;
    let mut command = Command::new(program);
    command.args(report.command).stdin(Stdio::null());
    command.stdout(output.try_clone()?).stderr(output);
    let began = Instant::now();
    let (status, timed_out) = process::Group::spawn(&mut command)?.wait(left)?;
    if timed_out {
        bail!(
            "`{}` was stopped after {} s; see {}",
            report.shown(),
            left.as_secs(),
            log.display()
        );
    }
    println!(
        "{:<10} {:>4} s  {}",
        report.name,
        began.elapsed().as_secs(),
        report.shown()
    );
    // A command that fails because a promise is not kept still writes a report.
    if !status.success() && !target.join(report.file).exists() {
        bail!("`{}`: {status}; see {}", report.shown(), log.display());
    }
    Ok(())
}

/// Copies the files that a command has written. False if there are none.
fn collect(report: &Report, target: &Path, place: &Path) -> Result<bool> {
    let file = target.join(report.file);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
    };
    let commit = commits::of(&file);
    let text = report.commit(&text, &written(&file)?, commit.as_deref());
    let text = text.with_context(|| format!("what {} holds", file.display()))?;
    let committed = place.join(format!("{}.json", report.name));
    let text = match fs::read_to_string(&committed) {
        Ok(before) => report
            .merged(&text, &before)
            .with_context(|| format!("what {} holds", committed.display()))?,
        Err(_) => text,
    };
    write(&committed, &text)?;
    if let Some(plot) = report
        .plot
        .map(|plot| target.join(plot))
        .filter(|plot| plot.exists())
    {
        let copy = place.join(format!("{}.svg", report.name));
        fs::copy(&plot, &copy).with_context(|| format!("copying {}", plot.display()))?;
    }
    Ok(true)
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

/// The time at which a file was written.
fn written(file: &Path) -> Result<String> {
    let mut command = Command::new("date");
    command
        .args(["--utc", "+%F %R UTC", "--reference"])
        .arg(file);
    Ok(process::stdout(&mut command, LIMIT)?.trim().to_owned())
}

/// Writes the generated parts of all documents. False if one could not be generated.
fn render(root: &Path) -> Result<bool> {
    let tree = Tree::read(root)?;
    let reports = committed_reports(&tree)?;
    let mut complete = true;
    if let (Some(cost), Some(demo)) = (reports.get("cost")?, reports.get("demo")?) {
        write(
            &root.join(COMMITTED).join("transfer.svg"),
            &timeline::draw(cost, demo)?,
        )?;
    }
    let mut tell = |page: &str, faults: &[(usize, String)]| {
        for (line, fault) in faults {
            println!("{page}:{line}: {fault}");
            complete = false;
        }
    };
    let promised = page::page(&reports);
    let place = workspace::target_dir().join(page::PAGE);
    tell(promises::FILE, &promised.faults);
    write(&place, &promised.text)?;
    println!("written: {}", place.display());
    for page in tree.markdown() {
        let rendered = blocks::render(&page.text, &reports);
        tell(&page.path, &rendered.faults);
        if rendered.text != page.text {
            write(&root.join(&page.path), &rendered.text)?;
            println!("written: {}", page.path);
        }
    }
    Ok(complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let parse =
            |line: &str| Options::parse(line.split_whitespace().map(str::to_owned).collect());
        let options = parse("").unwrap().unwrap();
        assert_eq!(options.mode, Mode::Run);
        assert!(REPORTS.iter().all(|report| options.wants(report)));
        let options = parse("--keep --only demo,pool").unwrap().unwrap();
        assert_eq!(options.mode, Mode::Keep);
        let wanted: Vec<&str> = REPORTS
            .iter()
            .filter(|report| options.wants(report))
            .map(|report| report.name)
            .collect();
        assert_eq!(wanted, ["demo", "pool"]);
        assert!(parse("--help").unwrap().is_none());
        for bad in ["--only gone", "--fast", "now"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(
            REPORTS
                .iter()
                .any(|report| !parse("").unwrap().unwrap().runs(report))
        );
        assert!(
            REPORTS
                .iter()
                .all(|report| parse("--only suites").unwrap().unwrap().runs(report))
        );
        // The help names every report.
        assert!(
            REPORTS
                .iter()
                .all(|report| HELP.contains(&format!(" {}", report.name)))
        );
    }

    #[test]
    fn a_report_is_copied_and_a_file_of_another_form_is_an_error() {
        let target = tempfile::tempdir().unwrap();
        let place = tempfile::tempdir().unwrap();
        let report = REPORTS.iter().find(|report| report.name == "cost").unwrap();
        assert!(!collect(report, target.path(), place.path()).unwrap());
        fs::create_dir(target.path().join("bench")).unwrap();
        for (text, good) in [
            ("", false),
            ("[]", false),
            (r#"{"rows":[{"name":"a"}]}"#, true),
        ] {
            fs::write(target.path().join(report.file), text).unwrap();
            fs::write(target.path().join("bench/cost.svg"), "plot").unwrap();
            commits::note(&target.path().join(report.file), Some("abc")).unwrap();
            match collect(report, target.path(), place.path()) {
                Ok(collected) => assert!(collected && good, "{text}"),
                Err(error) => assert!(
                    !good && format!("{error:#}").contains("cost.json"),
                    "{error:#}"
                ),
            }
        }
        let text = fs::read_to_string(place.path().join("cost.json")).unwrap();
        assert!(
            text.contains("\"rows\": [\n{\"name\":\"a\"}\n]\n}\n")
                && text.contains("\"commit\": \"abc\""),
            "{text}"
        );
        assert!(place.path().join("cost.svg").exists());
    }
}
