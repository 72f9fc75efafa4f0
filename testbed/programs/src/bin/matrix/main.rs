//! `matrix`: tests the library with each installed UCX, each way of loading it, and each kind of
//! peer. A host and a DPU process, started by the given commands, exchange a memory key. The DPU
//! moves the host's bytes and checks every one of them.

mod agent;
mod atomics;
mod cases;
mod context;
mod counters;
mod defects;
mod gga;
mod library;
mod memory;
mod older;
mod peer;
mod relaxed;
mod steps;
mod stress;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use cases::{CASES, Case};
use peer::{EntryPoint, Launch};

const HELP: &str = "\
Usage: matrix --library FILE --host COMMAND --dpu COMMAND --ucx VERSION=LIBUCP[=DIR]... [OPTIONS]
       matrix agent LIBUCP

  --library FILE     the library under test
  --host COMMAND     words that run a program on the host function, as in 'ssh node0'
  --dpu COMMAND      the same for the DPU function of the same adapter
  --dpu-foreign PROCESSOR:EMULATOR:LIBRARIES:PROGRAMS:LIBUCP
                     the DPU's process is of another processor, under a user-mode emulator; PROGRAMS
                     contains library, this program, and a directory plugins
  --ucx VERSION=LIBUCP[=DIR]
                     a UCX: its libucp, and where its other libraries are if they are elsewhere
  --plugins DIR      a directory with the library as UCX's plugin, for UCX 1.22 and later
  --bound-inside     each UCX's references to its own functions are bound inside
  --module           the UCX is patched and finds the library in its module directory; the
                     directory of --plugins stands for it
  --mended NAME      the UCX is patched and does not have the defect, as in 'D24'
  --report FILE      write the results there, as JSON
  --failing NAME=COMMAND
                     as --host or --dpu, but what NAME says goes wrong there; for the defects:
                     connect (host: the first queue pair cannot be connected), bind (host: the
                     third binding of a key fails), allow (host: the second key may not be
                     opened to others), never (host: the second binding never completes),
                     invalidate (host: the first invalidation fails), alias (DPU: the second
                     alias is refused); and relaxed-host and relaxed-dpu (both: an adapter whose
                     firmware makes relaxed-ordering keys only), with relaxed-counters: as counters,
                     of that adapter; gga-host, gga-dpu and gga-counters: the same for an adapter
                     that has UCX's GGA transport; and counters: nothing fails, the command shows the adapter's
                     counters as JSON; and panic: no command but the library as a debug build,
                     which can be made to panic
  --only WORDS       run the cells whose name contains the words; more than one: any of them

Exit codes: 0 all passed, 1 some failed, 2 wrong usage.";

/// The command-line arguments.
struct Arguments {
    launch: Launch,
    versions: Vec<Ucx>,
    report: Option<PathBuf>,
    only: Vec<String>,
}

/// An installed UCX.
#[derive(Clone, Debug)]
struct Ucx {
    version: String,
    libucp: PathBuf,
    libraries: Option<PathBuf>,
}

/// One cell of the matrix.
struct Row {
    ucx: String,
    entry_point: EntryPoint,
    case: &'static str,
    result: Result<(), String>,
    figures: BTreeMap<&'static str, u64>,
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    if words.peek().is_some_and(|word| word == "agent") {
        return agent::main(words.nth(1).map(PathBuf::from));
    }
    if words.peek().is_some_and(|word| word == "older") {
        return older::main(words.nth(1).map(PathBuf::from));
    }
    let arguments = match parse(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            say(&mut io::stderr(), &format!("matrix: {error}\n\n{HELP}"));
            return ExitCode::from(2);
        }
    };
    let rows = run(&arguments);
    if let Some(path) = &arguments.report
        && let Err(error) = fs::write(path, json(&rows))
    {
        say(
            &mut io::stderr(),
            &format!("matrix: cannot write {}: {error}", path.display()),
        );
        return ExitCode::FAILURE;
    }
    let failed = rows.iter().filter(|row| row.result.is_err()).count();
    say(
        &mut io::stdout(),
        &format!("{} passed, {failed} failed", rows.len() - failed),
    );
    if failed == 0 && !rows.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run(arguments: &Arguments) -> Vec<Row> {
    let mut rows = Vec::new();
    for ucx in &arguments.versions {
        for case in CASES
            .iter()
            .chain(atomics::CASES)
            .chain(relaxed::CASES)
            .chain(gga::CASES)
            .chain(defects::CASES)
            .chain(older::CASES)
        {
            for &entry_point in case.entry_points {
                let name = format!("{} {} {}", ucx.version, entry_point.name(), case.name);
                if !arguments.wants(&name) || !fits(case, entry_point, ucx, arguments) {
                    continue;
                }
                let result = (case.run)(&arguments.launch, ucx, entry_point);
                let verdict = match &result {
                    Ok(()) => "ok".to_owned(),
                    Err(error) => format!("FAILED {error}"),
                };
                say(&mut io::stdout(), &format!("{name:<48} {verdict}"));
                rows.push(Row {
                    ucx: ucx.version.clone(),
                    entry_point,
                    case: case.name,
                    result,
                    figures: arguments.launch.figures.take(),
                });
            }
        }
    }
    rows
}

impl Arguments {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|words| name.contains(words))
    }
}

/// False for a way of loading that this UCX does not have.
fn fits(case: &Case, entry_point: EntryPoint, ucx: &Ucx, arguments: &Arguments) -> bool {
    let has_plugins = ucx.has_plugin_path() && arguments.launch.plugins.is_some();
    let can_fail = |name: &str| arguments.launch.failing.iter().any(|(has, _)| has == name);
    let has_modules = arguments.launch.finds_modules && arguments.launch.plugins.is_some();
    (!entry_point.needs_plugin_path() || has_plugins)
        && (entry_point != EntryPoint::Module || has_modules)
        && (case.fits)(ucx)
        && case.failing.is_none_or(can_fail)
}

impl Ucx {
    /// Since 1.22, UCX loads modules from `UCX_PLUGIN_PATH`.
    fn has_plugin_path(&self) -> bool {
        self.is_since((1, 22))
    }

    /// Before 1.18, the library stays inactive.
    fn is_known(&self) -> bool {
        self.is_since((1, 18))
    }

    fn is_since(&self, version: (u32, u32)) -> bool {
        let mut numbers = self.version.split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= version,
            // The name of a locally built tree.
            _ => version <= (1, 18),
        }
    }
}

fn parse(words: impl Iterator<Item = OsString>) -> Result<Arguments, String> {
    let mut words = words.map(|word| word.to_string_lossy().into_owned());
    let (mut library, mut host, mut dpu, mut foreign) = (None, None, None, None);
    let (mut plugins, mut report, mut only) = (None, None, Vec::new());
    let (mut finds_modules, mut is_bound_inside, mut mended) = (false, false, Vec::new());
    let mut failing = Vec::new();
    let mut versions = Vec::new();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--library" => library = Some(PathBuf::from(value()?)),
            "--host" => host = Some(split(&value()?)),
            "--dpu" => dpu = Some(split(&value()?)),
            "--dpu-foreign" => {
                let parsed = value()?.parse().map_err(|error| format!("{error:#}"));
                foreign = Some(parsed?);
            }
            "--plugins" => plugins = Some(PathBuf::from(value()?)),
            "--bound-inside" => is_bound_inside = true,
            "--module" => finds_modules = true,
            "--mended" => mended.push(value()?),
            "--report" => report = Some(PathBuf::from(value()?)),
            "--failing" => failing.push(parse_failing(&value()?)?),
            "--only" => only.push(value()?),
            "--ucx" => versions.push(parse_ucx(&value()?)?),
            _ => return Err(format!("unknown word {word}")),
        }
    }
    let missing = |what: &str| format!("{what} is missing");
    let launch = Launch {
        library: library.ok_or_else(|| missing("--library"))?,
        host: host.ok_or_else(|| missing("--host"))?,
        dpu: dpu.ok_or_else(|| missing("--dpu"))?,
        foreign,
        plugins,
        finds_modules,
        is_bound_inside,
        mended,
        failing,
        others: versions.clone(),
        figures: peer::Figures::default(),
    };
    if versions.is_empty() {
        return Err(missing("--ucx"));
    }
    Ok(Arguments {
        launch,
        versions,
        report,
        only,
    })
}

fn parse_failing(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, command) = text
        .split_once('=')
        .ok_or_else(|| format!("--failing {text} is not NAME=COMMAND"))?;
    Ok((name.to_owned(), split(command)))
}

fn parse_ucx(text: &str) -> Result<Ucx, String> {
    let mut parts = text.split('=');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(version), Some(libucp), libraries, None) => Ok(Ucx {
            version: version.to_owned(),
            libucp: libucp.into(),
            libraries: libraries.map(PathBuf::from),
        }),
        _ => Err(format!("--ucx {text} is not VERSION=LIBUCP[=DIR]")),
    }
}

fn split(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

/// `{"rows":[{"ucx","entry_point","case","result","figures"}]}`.
fn json(rows: &[Row]) -> String {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let result = row.result.as_ref().map_or_else(String::as_str, |()| "ok");
            serde_json::json!({
                "ucx": row.ucx, "entry_point": row.entry_point.name(), "case": row.case, "result": result,
                "figures": row.figures,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::json!({ "rows": rows }))
}

/// Writes a line. An error is ignored, because there is no other output.
fn say(to: &mut dyn io::Write, line: &str) {
    let _written = writeln!(to, "{line}").and_then(|()| to.flush());
}
