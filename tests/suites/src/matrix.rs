//! `cargo xtask matrix`: tests the library in each stock UCX, with each way of loading and each kind of peer, over the
//! emulated device.
//!
//! This file fetches, builds and starts. `testbed/programs/src/bin/matrix` contains the cells.

mod aarch64;
mod debian13;
mod services;

use anyhow::{Context, Result, bail};
use dev_setup as setup;
use dev_setup::Env;
use dev_setup::cache::Cache;
use dev_setup::versions::{self, VERSIONS, Version};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::link::Link;
use testbed::{process, workspace};

const HELP: &str = "\
Usage: cargo xtask matrix [--ucx VERSION]... [--only WORDS]... [--link LINK] [--binding BINDING] [--dpu aarch64]

Runs a host and a DPU process on each stock UCX from 1.18.1 to 1.23.0 on the emulated device, with the library in both
of them, in one, and in none, at each entry point of that UCX. Every byte is verified. Reproduces the defects of stock
UCX (docs/DEFECTS.md) without the library and checks that they do not occur with it. Runs the offloaded alltoallv in
each scheme. Downloads what is not in the cache
(150 MB for all versions).

  --ucx VERSION   run only this version; repeatable. `distribution` is the system's own UCX: if it is older than 1.18,
                  the library must not change its behaviour. `debian13` is Debian 13's UCX 1.18.1, which is built with
                  assertions, in a tree of its own: the cells by preload, and the offloaded alltoallv in each scheme
  --only WORDS    run only cells whose name contains the words; repeatable
  --link LINK     link type of the ports: infiniband, infiniband-grh (each message needs a global route) or ethernet
                  (RoCE). Without this option, all cells run over infiniband, and the cells about exports also over
                  the other two. With it, only the preload cells run, over that link
  --binding BINDING
                  `default` runs the libraries as they are; `symbolic` runs copies of them whose references to their own
                  functions are bound inside, as in the packages of Ubuntu and DOCA (-Bsymbolic-functions). Without
                  this option both run: the same cells must pass
  --dpu aarch64   the DPU's process is of this processor, under a user-mode emulator, with its stock UCX: export and
                  import by preload and by plugin, with the oldest and the newest version if none is named

Writes target/matrix/report.json: {\"rows\":[{\"ucx\",\"symbolic\",\"link\",\"entry_point\",\"case\",\"result\",\"figures\"}]}; a
result is \"ok\" or the failure.";

/// Injected faults of the defect cells, and their functions, in the emulator's rule syntax.
const FAULTS: [(&str, &str, &str); 6] = [
    (
        "connect",
        "host",
        "any command modify_qp_rtr nth 1 status BAD_PARAM",
    ),
    (
        "bind",
        "host",
        "any request umr_bind nth 3 syndrome MW_BIND_ERR",
    ),
    (
        "allow",
        "host",
        "any command allow_other_vhca_access nth 2 status BAD_PARAM",
    ),
    ("never", "host", "any request umr_bind nth 2 never"),
    (
        "invalidate",
        "host",
        "any request umr_invalidate nth 1 syndrome LOCAL_PROT_ERR",
    ),
    (
        "alias",
        "dpu",
        "any command create_general_object nth 2 status BAD_RESOURCE",
    ),
];

/// Cells that run over every link: they check the bytes, and that the pool and not UCX's own path serves the exports.
const LINK_CELLS: [&str; 3] = [
    " preload export and import",
    " preload numbers in xgvmi stat",
    " preload announced keys",
];

/// Cells of a requested link.
const PRELOAD_CELLS: &str = " preload ";

/// Argument that selects the system's own UCX.
pub const DISTRIBUTION: &str = "distribution";

/// All cells take two minutes on an idle machine, and several times that on a busy one.
const LIMIT: Duration = Duration::from_secs(1800);

/// One cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Version of UCX.
    pub ucx: String,
    /// Whether the UCX is a copy that is bound inside.
    pub symbolic: bool,
    /// Link layer of the ports.
    pub link: Link,
    /// The way in which UCX loads the library.
    pub entry_point: String,
    /// The tested case.
    pub case: String,
    /// The failure, if the cell failed.
    pub failure: Option<String>,
    /// What the case has measured.
    figures: BTreeMap<String, u64>,
}

/// Runs the matrix with the arguments after `cargo xtask matrix`.
pub fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(options) = Options::parse(arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    // An old report must not count for this run.
    let _ = fs::remove_file(report());
    let env = setup::ensure()?;
    let built = Built::make()?;
    if options.foreign {
        let rows = aarch64::run(&options, &env, &built)?;
        write(&report(), &rows)?;
        let is_clean = rows.iter().all(|row| row.failure.is_none());
        return Ok(if is_clean {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    let mut clean = true;
    let mut rows = Vec::new();
    for &symbolic in &options.bindings {
        let (mut there, missing) = fetch((&options.versions, symbolic), &env)?;
        if options.distribution && !symbolic {
            match versions::distribution(&env)? {
                Some((version, libraries)) => there.push((version.leak(), libraries)),
                None => println!("the system has no UCX before 1.18, so that none is tried"),
            }
        }
        for (version, error) in missing {
            println!("{version:<48} FAILED {error}");
            clean = false;
            rows.push(Row::missing(version, symbolic, error));
        }
        if !there.is_empty() {
            clean &= over_links(&options, (&env, &built), (symbolic, &there), &mut rows)?;
        }
        // Our programs are not bound inside, and the distribution's UCX is too old for them.
        let with_services = |(version, _): &&(&str, PathBuf)| {
            !symbolic && options.versions.iter().any(|known| known.name == *version)
        };
        if options.link.is_none() {
            for (version, libraries) in there.iter().filter(with_services) {
                let found = services::of_version(&options, (&env, &built), (version, libraries))?;
                clean &= found.iter().all(|row| row.failure.is_none());
                rows.extend(found);
            }
        }
    }
    if options.debian13 {
        match debian13::run(&options, &env, &built) {
            Ok(found) => {
                let found = found.context(debian13::NAME)?;
                clean &= found.iter().all(|row| row.failure.is_none());
                rows.extend(found);
            }
            Err(reason) => println!("{} SKIPPED {reason:#}", debian13::NAME),
        }
    }
    write(&report(), &rows)?;
    Ok(if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Row {
    /// A version that cannot be fetched.
    fn missing(version: &str, symbolic: bool, error: String) -> Self {
        Self {
            ucx: version.to_owned(),
            symbolic,
            link: Link::default(),
            entry_point: "none".to_owned(),
            case: "fetch".to_owned(),
            failure: Some(error),
            figures: BTreeMap::new(),
        }
    }
}

/// Runs the cells of these versions over each link and adds their rows. False if one failed.
fn over_links(
    options: &Options,
    (env, built): (&Env, &Built),
    (symbolic, there): (bool, &[(&str, PathBuf)]),
    rows: &mut Vec<Row>,
) -> Result<bool> {
    let mut clean = true;
    for (link, only) in options.links() {
        let (device, output) = device(built, link)?;
        let mut command = cells(&only, env, &built.through(&output), &device, there);
        if symbolic {
            command.arg("--bound-inside");
        }
        let binding = if symbolic { ", bound inside" } else { "" };
        println!("over {}{binding}:", link.name());
        clean &= process::to_end(&mut command, LIMIT)? == ExitCode::SUCCESS;
        let over = read(&report())?.into_iter();
        rows.extend(over.map(|row| Row {
            link,
            symbolic,
            ..row
        }));
    }
    Ok(clean)
}

/// Runs all cells with a UCX that is not one of the known stock versions; `words` describe its differences.
pub fn run_on(version: &str, libraries: &Path, words: &[&str]) -> Result<Vec<Row>> {
    let _ = fs::remove_file(report());
    let env = setup::ensure()?;
    let built = Built::make()?;
    let (device, _) = device(&built, Link::default())?;
    let there = [(version, libraries.to_owned())];
    let mut command = cells(&[], &env, &built, &device, &there);
    let code = process::to_end(command.args(words), LIMIT)?;
    let rows = read(&report())?;
    // Without a failed cell, the cause is elsewhere.
    if code != ExitCode::SUCCESS && rows.iter().all(|row| row.failure.is_none()) {
        bail!("the matrix has failed without a failed cell");
    }
    Ok(rows)
}

/// The last run's report.
pub fn report() -> PathBuf {
    output_dir().join("report.json")
}

/// Reads a report.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    let text = fs::read_to_string(path).with_context(|| format!("no report {}", path.display()))?;
    let report: Value = serde_json::from_str(&text).context("the matrix's report")?;
    let rows = report["rows"].as_array().context("a report without rows")?;
    let row = |row: &Value| {
        let text = |name: &str| {
            let text = row[name].as_str().map(str::to_owned);
            text.with_context(|| format!("a row without {name}: {row}"))
        };
        let result = text("result")?;
        // The cells do not know their link.
        let link = row["link"]
            .as_str()
            .map_or(Ok(Link::default()), Link::named)?;
        Ok(Row {
            ucx: text("ucx")?,
            // The cells do not know it either.
            symbolic: row["symbolic"].as_bool().unwrap_or_default(),
            link,
            entry_point: text("entry_point")?,
            case: text("case")?,
            failure: (result != "ok").then_some(result),
            figures: figures(row)?,
        })
    };
    rows.iter().map(row).collect()
}

/// The measured numbers of a cell. A cell may have none.
fn figures(row: &Value) -> Result<BTreeMap<String, u64>> {
    let figures = row["figures"].as_object().into_iter().flatten();
    let number = |(name, value): (&String, &Value)| {
        let number = value.as_u64();
        let number = number.with_context(|| format!("{name} is {value}, which is no number"));
        Ok((name.clone(), number?))
    };
    figures.map(number).collect()
}

fn write(path: &Path, rows: &[Row]) -> Result<()> {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let result = row.failure.as_deref().unwrap_or("ok");
            let link = row.link.name();
            json!({
                "ucx": row.ucx, "symbolic": row.symbolic, "link": link, "entry_point": row.entry_point,
                "case": row.case, "result": result, "figures": row.figures,
            })
        })
        .collect();
    fs::write(path, format!("{:#}\n", json!({ "rows": rows })))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[derive(Debug)]
struct Options {
    versions: Vec<&'static Version>,
    /// Also test the system's own UCX.
    distribution: bool,
    /// Also test Debian 13's UCX.
    debian13: bool,
    only: Vec<String>,
    link: Option<Link>,
    /// Whether the copies that are bound inside are tested, for each run.
    bindings: Vec<bool>,
    /// The DPU is of another processor.
    foreign: bool,
}

impl Options {
    /// `None` for a help request.
    fn parse(arguments: Vec<String>) -> Result<Option<Self>> {
        use lexopt::prelude::{Long, Short, ValueExt as _};
        let (mut versions, mut only, mut distribution) = (Vec::new(), Vec::new(), false);
        let mut debian13 = false;
        let mut link = None;
        let mut bindings = vec![false, true];
        let mut foreign = false;
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("ucx") => match parser.value()?.string()?.as_str() {
                    DISTRIBUTION => distribution = true,
                    debian13::WORD => debian13 = true,
                    name => versions.push(version(name)?),
                },
                Long("only") => only.push(parser.value()?.string()?),
                Long("link") => link = Some(Link::named(&parser.value()?.string()?)?),
                Long("binding") => match parser.value()?.string()?.as_str() {
                    "default" => bindings = vec![false],
                    "symbolic" => bindings = vec![true],
                    other => bail!("--binding {other}: default or symbolic"),
                },
                Long("dpu") => match parser.value()?.string()?.as_str() {
                    aarch64::WORD => foreign = true,
                    other => bail!("--dpu {other}: only {}", aarch64::WORD),
                },
                Short('h') | Long("help") => return Ok(None),
                other => bail!("{}; try: cargo xtask matrix --help", other.unexpected()),
            }
        }
        if foreign && versions.is_empty() {
            versions.extend(VERSIONS.first().into_iter().chain(VERSIONS.last()));
        }
        if foreign && (distribution || debian13 || link.is_some()) {
            bail!("--dpu {} has no other UCX and no other link", aarch64::WORD);
        }
        if versions.is_empty() && !distribution && !debian13 {
            versions.extend(VERSIONS);
            distribution = true;
            // Other links and selected cells are about the listed versions.
            debian13 = only.is_empty() && link.is_none() && bindings.contains(&false);
        }
        Ok(Some(Self {
            versions,
            distribution,
            debian13,
            only,
            link,
            bindings,
            foreign,
        }))
    }

    /// Links to test, each with the words that select its cells; no words select all.
    fn links(&self) -> Vec<(Link, Vec<String>)> {
        let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let only = || self.only.clone();
        match self.link {
            Some(Link::Infiniband) => vec![(Link::Infiniband, only())],
            Some(link) if self.only.is_empty() => vec![(link, own(&[PRELOAD_CELLS]))],
            Some(link) => vec![(link, only())],
            None if self.only.is_empty() && !self.versions.is_empty() => vec![
                (Link::Infiniband, Vec::new()),
                (Link::InfinibandGrh, own(&LINK_CELLS)),
                (Link::Ethernet, own(&LINK_CELLS)),
            ],
            None => vec![(Link::Infiniband, only())],
        }
    }
}

fn version(name: &str) -> Result<&'static Version> {
    let known = VERSIONS.iter().find(|version| version.name == name);
    known.with_context(|| {
        let names: Vec<_> = VERSIONS.iter().map(|version| version.name).collect();
        format!("no UCX '{name}'; there are {}", names.join(", "))
    })
}

/// Fetched versions with their library directories, and missing versions with the reason.
type Fetched = (Vec<(&'static str, PathBuf)>, Vec<(&'static str, String)>);

/// Tries every version even if one fails.
fn fetch((versions, symbolic): (&[&'static Version], bool), env: &Env) -> Result<Fetched> {
    let cache = Cache::open()?;
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    for version in versions {
        let found = match symbolic {
            false => version.ensure(&cache, env),
            true => version.ensure_symbolic(&cache, env),
        };
        match found {
            Ok(libraries) => there.push((version.name, libraries)),
            Err(error) => missing.push((version.name, format!("{error:#}"))),
        }
    }
    Ok((there, missing))
}

/// Programs and libraries that the matrix runs.
#[derive(Debug)]
struct Built {
    cells: PathBuf,
    emulator: PathBuf,
    library: PathBuf,
    /// The library as a debug build, for injected panics.
    panicking: PathBuf,
    /// A directory with the library under the names by which UCX looks for plugins.
    plugins: PathBuf,
    /// A directory with the rules of the faults.
    faults: PathBuf,
}

impl Built {
    fn make() -> Result<Self> {
        workspace::build(&[
            "-p bf-emu -p bf-emu-preload -p uct-plugin -p xgvmi-cli -p xgvmi-offload",
            "-p testbed-programs --bin matrix",
        ])?;
        // Only a debug build supports injected panics.
        workspace::cargo("build -p uct-plugin --lib")?;
        let release = workspace::target_dir().join("release");
        let library = release.join("libuct_ib_mlx5_xgvmi.so");
        let panicking = workspace::target_dir().join("debug/libuct_ib_mlx5_xgvmi.so");
        let plugins = output_dir().join("plugins");
        make_plugins(&library, &plugins)?;
        let faults = output_dir().join("faults");
        fs::create_dir_all(&faults).with_context(|| format!("cannot make {}", faults.display()))?;
        for (name, _, rules) in FAULTS {
            let file = faults.join(name);
            fs::write(&file, rules).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(Self {
            cells: release.join("matrix"),
            emulator: release.join("bf-emu"),
            library,
            panicking,
            plugins,
            faults,
        })
    }

    /// The same paths through a link to the build's output: the loader does not accept preload paths with spaces or
    /// colons, and a workspace path may contain them.
    fn through(&self, link: &Path) -> Self {
        let target = workspace::target_dir();
        let moved = |path: &Path| {
            let behind = path.strip_prefix(&target);
            behind.map_or_else(|_| path.to_owned(), |behind| link.join(behind))
        };
        Self {
            cells: moved(&self.cells),
            emulator: moved(&self.emulator),
            library: moved(&self.library),
            panicking: moved(&self.panicking),
            plugins: moved(&self.plugins),
            faults: moved(&self.faults),
        }
    }
}

/// Copies the library to a directory of UCX's plugins.
fn make_plugins(library: &Path, plugins: &Path) -> Result<()> {
    fs::create_dir_all(plugins).with_context(|| format!("cannot make {}", plugins.display()))?;
    // UCX uses the suffix of its own libucs, which is one of these.
    for ending in ["so.0", "so.0.0.0"] {
        let plugin = plugins.join(format!("libuct_ib_mlx5_xgvmi.{ending}"));
        fs::copy(library, &plugin).with_context(|| format!("cannot write {}", plugin.display()))?;
    }
    Ok(())
}

fn cells(
    only: &[String],
    env: &Env,
    built: &Built,
    device: &Cluster,
    versions: &[(&str, PathBuf)],
) -> Command {
    let device = device.clone().on(&built.emulator);
    let line = |words: Vec<OsString>| words.join(OsStr::new(" ")).to_string_lossy().into_owned();
    let run = |device: &Cluster, role: &str| line(device.launch_words(&format!("node0.{role}")));
    let mut command = Command::new(&built.cells);
    command.arg("--library").arg(&built.library);
    command.arg("--plugins").arg(&built.plugins);
    command.arg("--report").arg(report());
    for role in ["host", "dpu"] {
        command.arg(format!("--{role}")).arg(run(&device, role));
    }
    for (name, role, _) in FAULTS {
        let rules = built.faults.join(name);
        command.arg("--failing").arg(format!(
            "{name}=env BFEMU_FAULTS=@{} {}",
            rules.display(),
            run(&device, role)
        ));
    }
    let lowest = device.clone().with(["--keys", "lowest"]);
    command.arg("--failing");
    command.arg(format!("lowest={}", run(&lowest, "host")));
    command.arg("--failing");
    command.arg(format!("panic={}", built.panicking.display()));
    command.arg("--failing");
    command.arg(format!("counters={}", line(device.stats_words())));
    for (adapter, profile) in [("relaxed", "relaxed-only"), ("gga", "gga")] {
        let other = device.named(adapter).with(["--profile", profile]);
        for (name, words) in [
            ("host", run(&other, "host")),
            ("dpu", run(&other, "dpu")),
            ("counters", line(other.stats_words())),
        ] {
            command
                .arg("--failing")
                .arg(format!("{adapter}-{name}={words}"));
        }
    }
    for only in only {
        command.arg("--only").arg(only);
    }
    process::without_ucx_settings(&mut command);
    let verbs = env.for_verbs();
    let path = |(name, dirs): &(String, String)| (name == "LD_LIBRARY_PATH").then(|| dirs.clone());
    let behind = verbs.iter().find_map(path);
    for (version, libraries) in versions {
        let mut dirs = libraries.display().to_string();
        if let Some(more) = &behind {
            dirs = format!("{dirs}:{more}");
        }
        // The fetch has checked that the file exists.
        let libucp = versions::libucp(libraries).unwrap_or_else(|_| libraries.join("libucp.so.0"));
        command.arg("--ucx");
        command.arg(format!("{version}={}={dirs}", libucp.display()));
    }
    command.envs(verbs);
    // The emulator would search at the link's target.
    let preload = built.emulator.with_file_name("libbfemu_preload.so");
    command.env("BFEMU_PRELOAD", preload);
    command
}

fn output_dir() -> PathBuf {
    workspace::target_dir().join("matrix")
}

/// A device for the cells of a link. Its directory has a link to the build's output beside the device.
fn device(built: &Built, link: Link) -> Result<(Cluster, PathBuf)> {
    let device = Cluster::new(&built.emulator, 2)?.with(["--link", link.name()]);
    let output = device.path().join("build");
    std::os::unix::fs::symlink(workspace::target_dir(), &output)
        .with_context(|| format!("cannot make {}", output.display()))?;
    Ok((device, output))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Option<Options>> {
        Options::parse(arguments.iter().map(|a| (*a).to_owned()).collect())
    }

    #[test]
    fn options_choose_versions_and_cells() {
        let names = |arguments: &[&str]| -> Vec<&str> {
            let options = parse(arguments).unwrap().unwrap();
            options
                .versions
                .iter()
                .map(|version| version.name)
                .collect()
        };
        assert_eq!(
            names(&[]),
            ["1.18.1", "1.19.0", "1.20.1", "1.21.0", "1.23.0"]
        );
        assert_eq!(names(&["--ucx", "1.23.0", "--ucx=1.18.1"]).len(), 2);
        let options = parse(&["--only", "a", "--only=b c"]).unwrap().unwrap();
        assert_eq!(options.only, ["a", "b c"]);
        assert!(parse(&["--help"]).unwrap().is_none());
        let links = |arguments: &[&str]| parse(arguments).unwrap().unwrap().links();
        assert_eq!(links(&[]).len(), 3);
        assert_eq!(links(&["--only", "a"]).len(), 1);
        let ethernet = links(&["--link", "ethernet"]);
        assert_eq!(ethernet, [(Link::Ethernet, vec![PRELOAD_CELLS.to_owned()])]);
        assert!(parse(&["--link", "ib"]).is_err());
        let foreign = parse(&["--dpu", "aarch64"]).unwrap().unwrap();
        assert!(foreign.foreign && !foreign.distribution && !foreign.debian13);
        assert_eq!(names(&["--dpu", "aarch64"]), ["1.18.1", "1.23.0"]);
        assert_eq!(names(&["--dpu", "aarch64", "--ucx", "1.20.1"]), ["1.20.1"]);
        for other in [
            "riscv64",
            "aarch64 --link ethernet",
            "aarch64 --ucx debian13",
        ] {
            let words: Vec<&str> = ["--dpu"].into_iter().chain(other.split(' ')).collect();
            assert!(parse(&words).is_err(), "{other}");
        }
        let bindings = |arguments: &[&str]| parse(arguments).unwrap().unwrap().bindings;
        assert_eq!(bindings(&[]), [false, true]);
        assert_eq!(bindings(&["--binding", "symbolic"]), [true]);
        assert!(parse(&["--binding", "inside"]).is_err());
        let error = parse(&["--ucx", "1.22.0"]).unwrap_err().to_string();
        assert!(error.contains("no UCX '1.22.0'"), "{error}");
        assert!(parse(&["1.18.1"]).is_err());
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        let row = |failure: Option<&str>| Row {
            ucx: "1.18.1".to_owned(),
            symbolic: true,
            link: Link::Ethernet,
            entry_point: "preload".to_owned(),
            case: "export and import".to_owned(),
            failure: failure.map(str::to_owned),
            figures: BTreeMap::from([("put_copied_max_bytes".to_owned(), 477)]),
        };
        let rows = [row(None), row(Some("7 of 8 bytes are wrong"))];
        write(&path, &rows).unwrap();
        assert_eq!(read(&path).unwrap(), rows);
        fs::write(&path, r#"{"rows":[{"ucx":"1.18.1"}]}"#).unwrap();
        assert!(read(&path).is_err());
        assert!(read(&dir.path().join("none")).is_err());
    }

    #[test]
    fn what_was_built_is_reached_without_spaces() {
        let target = workspace::target_dir();
        let built = Built {
            cells: target.join("release/matrix"),
            emulator: target.join("release/bf-emu"),
            library: target.join("release/library.so"),
            panicking: target.join("debug/library.so"),
            plugins: target.join("matrix/plugins"),
            faults: PathBuf::from("/elsewhere"),
        };
        let built = built.through(Path::new("/link"));
        assert_eq!(built.library, Path::new("/link/release/library.so"));
        assert_eq!(built.plugins, Path::new("/link/matrix/plugins"));
        assert_eq!(built.faults, Path::new("/elsewhere"));
    }
}
