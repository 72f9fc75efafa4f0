//! `cargo xtask demo`: the slides' workflow on two emulated nodes, in four schemes, with verified bytes.
//!
//! This file sets up and builds; `xgvmi-demo orchestrate` runs the schemes.

mod dpa;
pub(crate) mod links;
mod naaice;
mod orchestrated;
mod pcc;
mod programs;
mod storage;
mod ucc;

use crate::link::Link;
use crate::progress::{self, Line};
use crate::setup::Env;
use crate::setup::cache::Cache;
use crate::setup::versions::{self, VERSIONS, Version};
use crate::{process, setup, suites, workspace};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask demo [OPTIONS]
       cargo xtask demo ucc [OPTIONS]
       cargo xtask demo programs [OPTIONS]
       cargo xtask demo naaice [OPTIONS]
       cargo xtask demo storage [OPTIONS]
       cargo xtask demo pcc [OPTIONS]
       cargo xtask demo dpa [OPTIONS]

Transfers data from host A to host B through two DPUs that never store it: four processes on stock UCX, on two emulated
nodes with a host and a DPU function each. Every byte is verified. The command first sets up and builds what it needs.

Schemes: ksm    stock UCX with a key per buffer (UCX_IB_XGVMI_UMR_ENABLE=n)
         stock  stock UCX with its own key pool
         xgvmi  stock UCX with this project's library preloaded; it creates its first keys when UCX opens the
                device (UCX_XGVMI_POOL_INIT=2)
         arena  as xgvmi, and the hosts' buffers need no registration of their own (UCX_XGVMI_ARENA)

  --quick            fewer iterations: less than 30 s after the build
  --schemes LIST     run only these schemes, for example ksm,xgvmi [default: ksm,stock,xgvmi,arena]
  --sizes LIST       bytes per transfer, at least 16K [default: 16K,256K,1M,16M]
  --iterations N     counted iterations per scheme and size [default: by size]
  --link LINK        link type of the ports: infiniband, infiniband-grh (each message needs a global route) or
                     ethernet (RoCE) [default: infiniband]
  --dpu aarch64      DPUs of that processor under a user-mode emulator: counts are real, times are of emulated instructions
  --ucx VERSION      stock UCX of this version; downloaded if necessary [default: the pinned one]

`demo ucc` runs the collectives of an unmodified MPI program on the DPUs; see `cargo xtask demo ucc --help`.
`demo programs` runs applications of others so; see `cargo xtask demo programs --help`.
`demo naaice` calls accelerators on fresh buffers; see `cargo xtask demo naaice --help`.
`demo storage` serves a volume through a DPU; see `cargo xtask demo storage --help`.
`demo pcc` compares congestion-control programs; see `cargo xtask demo pcc --help`.
`demo dpa` moves data by kernels of the DPA; see `cargo xtask demo dpa --help`.

Writes target/demo/report.json, report.md, report.svg, and the processes' logs in target/demo/logs. With --ucx the
directory is target/demo/ucx-VERSION, with --dpu target/demo/aarch64/ucx-VERSION.";

const SCHEMES: &str = "ksm,stock,xgvmi,arena";

/// Time limit of the whole run: the demo takes less than a minute. The orchestrator has a shorter limit, because it can
/// report the step that hangs.
const LIMIT: Duration = Duration::from_secs(240);
const ORCHESTRATOR_LIMIT_S: u64 = 220;
/// Longer limits for processors that an emulator executes.
const FOREIGN_FACTOR: u32 = 10;

/// A build without a cache takes a minute or two; a loaded machine takes longer.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);

/// Runs the demo with the arguments after `cargo xtask demo`.
pub(crate) fn run(mut arguments: Vec<String>) -> Result<ExitCode> {
    if arguments.first().is_some_and(|first| first == "ucc") {
        return ucc::run(arguments.split_off(1));
    }
    if arguments.first().is_some_and(|first| first == "programs") {
        return programs::run(arguments.split_off(1));
    }
    if arguments.first().is_some_and(|first| first == "naaice") {
        return naaice::run(arguments.split_off(1));
    }
    if arguments.first().is_some_and(|first| first == "storage") {
        return storage::run(arguments.split_off(1));
    }
    if arguments.first().is_some_and(|first| first == "pcc") {
        return pcc::run(arguments.split_off(1));
    }
    if arguments.first().is_some_and(|first| first == "dpa") {
        return dpa::run(arguments.split_off(1));
    }
    let Some(options) = Options::parse(arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let (env, libraries, built) = prepare(&options)?;
    let mut command = orchestrate(&options, (&env, &libraries), &built);
    command.args(["--links", options.link.name()]);
    command.arg("--output").arg(options.output_dir());
    if options.aarch64 {
        let packages = ["bf-emu-preload", "uct-plugin", "osu-bench"];
        let foreign = suites::aarch64::foreign(&packages, options.version())?;
        command.args(["--dpu", &foreign.to_string()]);
    }
    let logs = || format!("see {}", options.output_dir().join("logs").display());
    process::to_end(&mut command, LIMIT * options.slowness()).with_context(logs)
}

/// Runs set-up and build concurrently and reports their progress. Neither depends on the other.
fn prepare(options: &Options) -> Result<(Env, PathBuf, Built)> {
    let _line = Line::start();
    let mut build = Build::start()?;
    let set_up = setup::ensure().and_then(|env| {
        let libraries = match options.ucx {
            Some(version) => version.ensure(&Cache::open()?, &env)?,
            None => env.ucx_lib_dir.clone(),
        };
        Ok((env, libraries))
    });
    progress::done(setup::PART);
    // The next run can use the build even if the set-up has failed.
    let built = build.wait();
    let (env, libraries) = set_up?;
    Ok((env, libraries, built?))
}

#[derive(Debug, PartialEq, Eq)]
struct Options {
    quick: bool,
    schemes: String,
    sizes: Option<String>,
    iterations: Option<String>,
    link: Link,
    ucx: Option<&'static Version>,
    /// The DPUs' processor is aarch64.
    aarch64: bool,
}

impl Options {
    /// `None` for a help request.
    fn parse(arguments: Vec<String>) -> Result<Option<Self>> {
        use lexopt::prelude::{Long, Short, ValueExt as _};
        let mut options = Self {
            quick: false,
            schemes: SCHEMES.to_owned(),
            sizes: None,
            iterations: None,
            link: Link::default(),
            ucx: None,
            aarch64: false,
        };
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("quick") => options.quick = true,
                Long("schemes") => options.schemes = schemes(&parser.value()?.string()?)?,
                Long("sizes") => options.sizes = Some(parser.value()?.string()?),
                Long("iterations") => options.iterations = Some(parser.value()?.string()?),
                Long("link") => options.link = Link::named(&parser.value()?.string()?)?,
                Long("ucx") => options.ucx = Some(version(&parser.value()?.string()?)?),
                Long("dpu") => {
                    let name = parser.value()?.string()?;
                    ensure!(name == "aarch64", "no processor '{name}'; there is aarch64");
                    options.aarch64 = true;
                }
                Short('h') | Long("help") => return Ok(None),
                other => bail!("{}; try: cargo xtask demo --help", other.unexpected()),
            }
        }
        Ok(Some(options))
    }

    fn slowness(&self) -> u32 {
        if self.aarch64 { FOREIGN_FACTOR } else { 1 }
    }

    fn version(&self) -> &'static Version {
        let pinned = |version: &&Version| version.name == setup::pins::UCX_VERSION;
        let usual = VERSIONS.iter().find(pinned).unwrap_or(&VERSIONS[0]);
        self.ucx.unwrap_or(usual)
    }

    fn output_dir(&self) -> PathBuf {
        let usual = workspace::reports_dir("demo");
        if self.aarch64 {
            return usual.join(format!("aarch64/ucx-{}", self.version().name));
        }
        match self.ucx {
            // A report of another UCX must not replace the default report.
            Some(version) => usual.join(format!("ucx-{}", version.name)),
            None => usual,
        }
    }
}

fn version(name: &str) -> Result<&'static Version> {
    let found = VERSIONS.iter().find(|version| version.name == name);
    found.with_context(|| {
        let names: Vec<&str> = VERSIONS.iter().map(|version| version.name).collect();
        format!("no UCX '{name}'; there are {}", names.join(", "))
    })
}

/// A list of known schemes, with commas.
fn schemes(list: &str) -> Result<String> {
    for name in list.split(',') {
        ensure!(
            SCHEMES.split(',').any(|known| known == name),
            "no scheme '{name}'; there are {SCHEMES}"
        );
    }
    Ok(list.to_owned())
}

/// Programs and libraries that the demo runs.
#[derive(Debug)]
struct Built {
    demo: PathBuf,
    emulator: PathBuf,
    plugin: PathBuf,
}

/// A running cargo.
struct Build {
    command: Command,
    cargo: process::Group,
    /// Reads cargo's output to the end.
    reader: Option<JoinHandle<String>>,
}

impl Build {
    const PART: &str = "build";

    /// Starts the build of the programs that the demo runs.
    fn start() -> Result<Self> {
        let mut command = Command::new("cargo");
        command.current_dir(workspace::root());
        command.args(["build", "--release", "--color", "never"]);
        if !workspace::builds_whole() {
            for package in ["bf-emu", "bf-emu-preload", "uct-plugin", "osu-bench"] {
                command.args(["-p", package]);
            }
        }
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut cargo = process::Group::spawn(&mut command).context("cannot run cargo")?;
        let said = cargo.child.stderr.take();
        let reader =
            said.map(|said| std::thread::spawn(move || Self::follow(BufReader::new(said))));
        progress::note(Self::PART, "starting cargo");
        Ok(Self {
            command,
            cargo,
            reader,
        })
    }

    /// Forwards crate names to the progress line. Returns cargo's whole output.
    fn follow(said: impl BufRead) -> String {
        let (mut text, mut crates) = (String::new(), 0);
        for line in said.lines().map_while(std::io::Result::ok) {
            if let Some(name) = compiled(&line) {
                crates += 1;
                progress::note_often(Self::PART, &format!("compiling {name} ({crates})"));
            }
            text.push_str(&line);
            text.push('\n');
        }
        text
    }

    fn wait(&mut self) -> Result<Built> {
        let (status, timed_out) = self.cargo.wait(BUILD_LIMIT)?;
        let said = self.reader.take().map(JoinHandle::join);
        progress::done(Self::PART);
        if timed_out || !status.success() {
            let said = said.and_then(std::result::Result::ok).unwrap_or_default();
            bail!("`{}`: {status}\n{said}", process::shown(&self.command));
        }
        let release = workspace::target_dir().join("release");
        Ok(Built {
            demo: release.join("xgvmi-demo"),
            emulator: release.join("bf-emu"),
            plugin: release.join("libuct_ib_mlx5_xgvmi.so"),
        })
    }
}

/// The crate in a line of cargo's output, such as `   Compiling clap v4.6.7`.
fn compiled(line: &str) -> Option<&str> {
    let (name, _) = line
        .trim_start()
        .strip_prefix("Compiling ")?
        .split_once(' ')?;
    Some(name)
}

/// The program that runs the transfers with these options of the demo.
fn orchestrate(options: &Options, (env, libraries): (&Env, &Path), built: &Built) -> Command {
    let mut command = Command::new(&built.demo);
    command.arg("orchestrate");
    command.arg("--emulator").arg(&built.emulator);
    command.arg("--plugin").arg(&built.plugin);
    command
        .arg("--ucx-library")
        .arg(versions::libucp(libraries).unwrap_or_else(|_| libraries.join("libucp.so.0")));
    command.args(["--schemes", &options.schemes]);
    let limit_s = ORCHESTRATOR_LIMIT_S * u64::from(options.slowness());
    command.args(["--limit-s", &limit_s.to_string()]);
    if options.quick {
        command.arg("--quick");
    }
    if let Some(sizes) = &options.sizes {
        command.args(["--sizes", sizes]);
    }
    if let Some(iterations) = &options.iterations {
        command.args(["--iterations", iterations]);
    }
    process::without_ucx_settings(&mut command);
    command.envs(env.for_libraries(&[libraries.to_owned()]));
    command.env("UCX_TLS", "rc_x,self");
    command.env("UCX_NET_DEVICES", "mlx5_0:1");
    // A directory that cannot be read has no libucp either, which the program reports.
    command.envs(versions::modules(libraries).ok().flatten());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Option<Options>> {
        Options::parse(arguments.iter().map(|a| (*a).to_owned()).collect())
    }

    #[test]
    fn options_are_read() {
        let check = |arguments: &[&str], expect: Options| {
            assert_eq!(parse(arguments).unwrap(), Some(expect), "{arguments:?}");
        };
        let default = || Options {
            quick: false,
            schemes: SCHEMES.to_owned(),
            sizes: None,
            iterations: None,
            link: Link::default(),
            ucx: None,
            aarch64: false,
        };
        check(&[], default());
        check(
            &["--dpu", "aarch64"],
            Options {
                aarch64: true,
                ..default()
            },
        );
        check(
            &["--ucx", "1.18.1"],
            Options {
                ucx: Some(&VERSIONS[0]),
                ..default()
            },
        );
        check(
            &["--quick", "--schemes", "xgvmi,ksm", "--sizes=16K"],
            Options {
                quick: true,
                schemes: "xgvmi,ksm".to_owned(),
                sizes: Some("16K".to_owned()),
                ..default()
            },
        );
        assert_eq!(parse(&["--quick", "--help"]).unwrap(), None);
    }

    #[test]
    fn unknown_options_and_schemes_are_refused() {
        let check = |arguments: &[&str], expect: &str| {
            let error = parse(arguments).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(&["--fast"], "--fast");
        check(&["now"], "now");
        check(&["--schemes", "umem"], "no scheme 'umem'");
        check(
            &["--dpu", "riscv64"],
            "no processor 'riscv64'; there is aarch64",
        );
        check(&["--ucx", "1.17.0"], "no UCX '1.17.0'; there are 1.18.1, ");
    }

    #[test]
    fn crates_are_read_from_what_cargo_says() {
        let check = |line, expect| assert_eq!(compiled(line), expect, "{line}");
        check("   Compiling clap v4.6.7", Some("clap"));
        check("   Compiling bf-emu v0.1.0 (/a/b)", Some("bf-emu"));
        check("    Finished `release` profile [optimized] in 9s", None);
        check("", None);
    }
}
