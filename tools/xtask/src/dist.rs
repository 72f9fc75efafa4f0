//! `cargo xtask dist`: builds Debian packages of the library, the offload, the block storage and the emulator, checks them, and tests them
//! in an unpacked tree.

mod check;
mod cmake;
mod papers;

use crate::setup::{self, Env};
use crate::stage::{self, Built, LIBRARY, Layout, Part};
use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use testbed::cluster::Cluster;

const HELP: &str = "\
Usage: cargo xtask dist [--output DIR] [--architecture arm64] [--fast]

Builds five packages for this machine's architecture, or for the DPU's (arm64), in DIR (target/dist):

  xgvmi          the library in UCX's module directory and in a directory of its own, its command, header, pkg-config file
  xgvmi-offload  service processes with a systemd unit and example configurations, OSU's benchmarks, cost table, model
  xgvmi-blk      block storage: its command, systemd units, example configurations
  xgvmi-naa      calls to accelerators: library, headers, CMake package, and the service with unit and configuration
  bf-emu         the emulated device

Each contains manual pages, completions, licences and a changelog. The command builds each package twice and requires
identical bytes, dated by SOURCE_DATE_EPOCH or the last commit. It checks the contents as lintian would, unpacks the
packages, and runs stock UCX with the unpacked library on the unpacked emulated device. A C project finds the unpacked
CMake package and calls an accelerator. With --fast, the packages are larger: for tests. Needs dpkg-deb.";

/// Compressing a package of about ten megabytes.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the command.
pub(crate) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(options) = parse(arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    if process::stdout(Command::new("dpkg-deb").arg("--version"), LIMIT).is_err() {
        bail!("no dpkg-deb, which makes the packages: install dpkg");
    }
    let machine = match options.foreign {
        true => Machine::of("aarch64")?,
        false => Machine::this()?,
    };
    let epoch = epoch()?;
    let built = match options.foreign {
        true => stage::build_foreign()?,
        false => stage::build()?,
    };
    let output = &options.output;
    fs::create_dir_all(output).with_context(|| format!("cannot make {}", output.display()))?;
    let mut packages = Vec::new();
    for part in Part::ALL {
        let package = make(part, (&built, &machine, epoch), &options)?;
        let faults = check::package(part, &package, &machine)?;
        if !faults.is_empty() {
            bail!("{}:\n  {}", package.display(), faults.join("\n  "));
        }
        packages.push(package);
    }
    if options.foreign {
        told(&packages, &machine)?;
    } else {
        try_out(&packages, &machine, &setup::ensure()?)?;
    }
    for package in packages {
        let kib = package.metadata().map_or(0, |data| data.len() / 1024);
        println!("{} ({kib} KiB)", package.display());
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// Directory of the packages.
    output: PathBuf,
    /// Whether they are compressed with the least effort.
    fast: bool,
    /// Whether they are for the DPU's architecture.
    foreign: bool,
}

/// Checks what dpkg says of packages for another architecture, whose programs and libraries the suites check.
fn told(packages: &[PathBuf], machine: &Machine) -> Result<()> {
    let root = workspace::target_dir().join("stage/foreign");
    let _ = fs::remove_dir_all(&root);
    for package in packages {
        let mut ask = Command::new("dpkg");
        let said = process::stdout(ask.arg("--info").arg(package), LIMIT)?;
        let wanted = format!("Architecture: {}", machine.architecture);
        if !said.lines().any(|line| line.trim() == wanted) {
            bail!("{} is not of {wanted}:\n{said}", package.display());
        }
        let mut unpack = Command::new("dpkg-deb");
        process::stdout(unpack.arg("-x").arg(package).arg(&root), LIMIT)?;
    }
    let layout = Layout::debian(&root, machine.triplet);
    crate::suites::aarch64::check_installed(&[
        layout.plugins().as_path(),
        &layout.at("bin"),
        &layout.at(&layout.lib),
        &layout.at("lib/bf-emu"),
    ])
}

/// The options; `None` for a help request.
fn parse(arguments: Vec<String>) -> Result<Option<Options>> {
    use lexopt::prelude::{Long, Short};
    let mut options = Options {
        output: workspace::target_dir().join("dist"),
        fast: false,
        foreign: false,
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("architecture") => {
                let name = parser.value()?;
                if name != "arm64" {
                    bail!("no architecture {name:?}; there is arm64");
                }
                options.foreign = true;
            }
            Long("output") => options.output = std::path::absolute(parser.value()?)?,
            Long("fast") => options.fast = true,
            Short('h') | Long("help") => return Ok(None),
            other => bail!("{}; try: cargo xtask dist --help", other.unexpected()),
        }
    }
    Ok(Some(options))
}

/// Debian's names of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Name in a package's file name.
    architecture: &'static str,
    /// Name in a library's path.
    triplet: &'static str,
}

impl Machine {
    fn this() -> Result<Self> {
        Self::of(std::env::consts::ARCH)
    }

    fn of(architecture: &str) -> Result<Self> {
        match architecture {
            "x86_64" => Ok(Self {
                architecture: "amd64",
                triplet: "x86_64-linux-gnu",
            }),
            "aarch64" => Ok(Self {
                architecture: "arm64",
                triplet: "aarch64-linux-gnu",
            }),
            other => {
                bail!("no package for {other}: UCX's mlx5 module is known on x86_64 and aarch64")
            }
        }
    }
}

/// Timestamp of all files, in seconds since 1970.
fn epoch() -> Result<u64> {
    if let Some(value) = std::env::var_os("SOURCE_DATE_EPOCH") {
        let text = value.to_string_lossy();
        return text
            .parse()
            .with_context(|| format!("SOURCE_DATE_EPOCH={text}"));
    }
    let mut command = Command::new("git");
    command.current_dir(workspace::root());
    command.args(["log", "-1", "--format=%ct"]);
    let text = process::stdout(&mut command, LIMIT);
    let text = text.context("no SOURCE_DATE_EPOCH, and no commit to date by")?;
    text.trim().parse().context("git's date")
}

/// Builds a package: twice without compression, which must give the same bytes, and once with it.
fn make(
    part: Part,
    (built, machine, epoch): (&Built, &Machine, u64),
    Options { output, fast, .. }: &Options,
) -> Result<PathBuf> {
    let Machine {
        architecture,
        triplet,
    } = machine;
    let version = env!("CARGO_PKG_VERSION");
    let file = format!("{}_{version}_{architecture}.deb", part.package());
    let stage = workspace::target_dir().join("stage");
    let root = stage.join(part.package());
    let build = |target: &Path, compression: &[&str]| {
        let mut command = Command::new("dpkg-deb");
        command.env("SOURCE_DATE_EPOCH", epoch.to_string());
        command.arg("--root-owner-group").args(compression);
        process::stdout(command.arg("--build").arg(&root).arg(target), LIMIT)
    };
    let plain = ["first", "second"].map(|name| stage.join(format!("{name}-{file}")));
    for target in &plain {
        let _ = fs::remove_dir_all(&root);
        let layout = Layout::debian(&root, triplet);
        stage::put(part, built, &layout)?;
        papers::put(part, machine, epoch, &layout)?;
        check::settle(&root)?;
        build(target, &["-Znone"])?;
    }
    if fs::read(&plain[0])? != fs::read(&plain[1])? {
        bail!("{file} is not the same when it is built again");
    }
    for target in plain {
        fs::remove_file(&target).with_context(|| target.display().to_string())?;
    }
    let package = output.join(&file);
    let level = if *fast { "-z0" } else { "-z6" };
    build(&package, &["-Zxz", level])?;
    Ok(package)
}

/// Unpacks the packages and runs stock UCX with the unpacked library over the unpacked emulator.
fn try_out(packages: &[PathBuf], machine: &Machine, env: &Env) -> Result<()> {
    let root = workspace::target_dir().join("stage/installed");
    let _ = fs::remove_dir_all(&root);
    for package in packages {
        let mut command = Command::new("dpkg-deb");
        process::stdout(command.arg("-x").arg(package).arg(&root), LIMIT)?;
    }
    let layout = Layout::debian(&root, machine.triplet);
    let state = root.join("state");
    let emulator = layout.at("bin/bf-emu");
    let said = load(&layout, &state, &emulator, env);
    let mut reset = Command::new(&emulator);
    let reset = process::stdout(reset.args(["reset", "--state"]).arg(&state), LIMIT);
    let said = said?;
    reset?;
    // UCX finds the device, calls the library, and lists its options.
    for sign in [
        "mlx5_0:1",
        "calls this library by name",
        "UCX_XGVMI_POOL_MAX=",
    ] {
        if !said.contains(sign) {
            bail!("UCX with the installed library does not say '{sign}':\n{said}");
        }
    }
    for name in ["xgvmi", "xgvmi-sp", "xgvmi-blk", "xgvmi-naa", "cost_table"] {
        let mut command = Command::new(layout.at("bin").join(name));
        let version = process::stdout(command.arg("--version"), LIMIT)?;
        if !version.contains(env!("CARGO_PKG_VERSION")) {
            bail!("the installed {name} says: {version}");
        }
    }
    match cmake::try_out(&layout, env)? {
        Some(said) => print!("{said}"),
        None => println!("no CMake: the CMake package of libnaaice was not tried"),
    }
    Ok(())
}

fn load(layout: &Layout, state: &Path, emulator: &Path, env: &Env) -> Result<String> {
    let mut command = Cluster::at(emulator, state, 2).command("node0.host", "sh");
    // After the emulator's own preload.
    command.args([
        "-c",
        r#"LD_PRELOAD="$LD_PRELOAD:$1"; export LD_PRELOAD; exec "$2" -d -c"#,
    ]);
    command.arg("sh").arg(layout.plugins().join(LIBRARY));
    command.arg(env.ucx_tools_dir.join("ucx_info"));
    command.env("UCX_XGVMI_LOG_LEVEL", "debug");
    let mut libraries = env.ucx_lib_dir.display().to_string();
    for (name, value) in env.for_verbs() {
        if name == "LD_LIBRARY_PATH" {
            libraries = format!("{libraries}:{value}");
        } else {
            command.env(name, value);
        }
    }
    process::stdout(command.env("LD_LIBRARY_PATH", libraries), LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_debian_s() {
        assert_eq!(Machine::of("x86_64").unwrap().architecture, "amd64");
        assert_eq!(Machine::of("aarch64").unwrap().triplet, "aarch64-linux-gnu");
        assert!(Machine::of("riscv64").is_err());
    }

    #[test]
    fn the_output_is_where_it_is_said() {
        let parse = |words: &[&str]| parse(words.iter().map(|&word| word.to_owned()).collect());
        let plain = parse(&[]).unwrap().unwrap();
        assert!(plain.output.ends_with("dist") && !plain.fast && !plain.foreign);
        let other = parse(&["--output=/a", "--fast", "--architecture=arm64"]);
        let other = other.unwrap().unwrap();
        assert!(other.output == Path::new("/a") && other.fast && other.foreign);
        assert!(parse(&["--architecture=riscv64"]).is_err());
        assert_eq!(parse(&["--help"]).unwrap(), None);
        assert!(parse(&["a"]).is_err());
    }
}
