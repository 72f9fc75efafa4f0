//! The collectives' service processes on one UCX: jobs of two ranks on two nodes, by the program that checks the offload.

use super::{Built, Options, Row, device};
use anyhow::{Result, ensure};
use dev_setup::Env;
use dev_setup::versions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::link::Link;
use testbed::port::free as free_port;
use testbed::process::{self, Running};

/// The stock version that is built with assertions.
const WITH_ASSERTIONS: &str = "1.19.0";
/// UCX's text of the assertion that does not hold (D13).
const ASSERTION: &str = "Unexpected refcount";
/// Time limit for the start of a service, which takes a second.
const UP: Duration = Duration::from_secs(60);
/// Time limit of a job.
const JOB: Duration = Duration::from_secs(120);

/// What a job has shown.
#[derive(Debug)]
pub(super) struct Ran {
    /// Whether every rank has verified every byte.
    pub(super) good: bool,
    pub(super) ranks: String,
    pub(super) services: String,
}

/// A job of two ranks on two nodes with a service process each. `command` starts a program as a function of the device.
pub(super) fn job(
    scheme: &str,
    command: impl Fn(&str, &str, &[String]) -> Result<Command>,
) -> Result<Ran> {
    let words =
        |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    let ports = [free_port()?, free_port()?];
    let mut services = Vec::new();
    for (node, port) in ports.iter().enumerate() {
        let listen = format!("127.0.0.1:{port}");
        let options = words(&["--listen", &listen, "--scheme", scheme]);
        let mut service = command(&format!("node{node}.dpu"), "xgvmi-sp", &options)?;
        services.push(Running::saying(&mut service, UP, " listens on ")?);
    }
    let meet = format!("127.0.0.1:{}", free_port()?);
    let mut ranks = Vec::new();
    for (rank, port) in ports.iter().enumerate() {
        let (number, node) = (rank.to_string(), format!("n{rank}"));
        let service = format!("127.0.0.1:{port}");
        let arguments = words(&[
            "--scheme", scheme, "--meet", &meet, "--rank", &number, "--size", "2", "--node", &node,
            "--sp", &service,
        ]);
        let function = format!("node{rank}.host");
        let mut rank = command(&function, "xgvmi-offload-check", &arguments)?;
        ranks.push(Running::spawn(&mut rank)?);
    }
    let mut ran = Ran {
        good: true,
        ranks: String::new(),
        services: String::new(),
    };
    for rank in ranks {
        let done = rank.wait(JOB)?;
        ran.good &= done.ok();
        ran.ranks += &done.output;
    }
    ran.services = services.iter().map(Running::said).collect();
    Ok(ran)
}

/// A job must verify every byte, or fail by UCX's assertion in a service process: without the library, in a UCX `with_assertions`.
pub(super) fn judge(ran: &Ran, scheme: &str, with_assertions: bool) -> Result<()> {
    let asserted = ran.services.contains(ASSERTION);
    let (ranks, services) = (&ran.ranks, &ran.services);
    if with_assertions && scheme != "xgvmi" {
        ensure!(
            !ran.good && asserted,
            "the assertion does not show any more:\n{ranks}\n{services}"
        );
    } else {
        ensure!(ran.good && !asserted, "the job fails:\n{ranks}\n{services}");
    }
    Ok(())
}

/// A row for each scheme that the options select, and its line. The library is in all processes of scheme `xgvmi` only.
pub(super) fn rows(options: &Options, ucx: &str, check: impl Fn(&str) -> Result<()>) -> Vec<Row> {
    let mut rows = Vec::new();
    for scheme in ["ksm", "stock", "xgvmi"] {
        let case = format!("offload check {scheme}");
        let entry_point = match scheme {
            "xgvmi" => "preload",
            _ => "absent",
        };
        let name = format!("{ucx} {entry_point} {case}");
        if !options.only.is_empty() && !options.only.iter().any(|words| name.contains(words)) {
            continue;
        }
        let failure = check(scheme).err().map(|error| format!("{error:#}"));
        let verdict = failure
            .as_ref()
            .map_or("ok".to_owned(), |text| format!("FAILED {text}"));
        println!("{name:<48} {verdict}");
        rows.push(Row {
            ucx: ucx.to_owned(),
            symbolic: false,
            link: Link::default(),
            entry_point: entry_point.to_owned(),
            case,
            failure,
            figures: Default::default(),
        });
    }
    rows
}

/// The rows of a stock version.
///
/// # Errors
/// There is no device.
pub(super) fn of_version(
    options: &Options,
    (env, built): (&Env, &Built),
    (version, libraries): (&str, &Path),
) -> Result<Vec<Row>> {
    let (device, output) = device(built, Link::default())?;
    let built = built.through(&output);
    let library = versions::libucp(libraries)?;
    let modules = versions::modules(libraries)?;
    let verbs = env.for_verbs();
    let release = built.emulator.with_file_name("");
    let program = |name: &str| -> PathBuf { release.join(name) };
    let check = |scheme: &str| -> Result<()> {
        let device = device.named(scheme);
        let ran = job(scheme, |function, name, arguments| {
            let mut command = device.command(function, program(name));
            process::without_ucx_settings(&mut command);
            command.args(arguments).arg("--ucx-library").arg(&library);
            command.envs(verbs.iter().map(|(name, value)| (name, value)));
            command.envs(modules.iter().map(|(name, value)| (name, value)));
            command
                .env("UCX_TLS", "rc_x,self")
                .env("UCX_NET_DEVICES", "mlx5_0:1");
            let mut paths = libraries.display().to_string();
            if let Some((_, more)) = verbs.iter().find(|(name, _)| name == "LD_LIBRARY_PATH") {
                paths = format!("{paths}:{more}");
            }
            command.env("LD_LIBRARY_PATH", paths);
            command.env("BFEMU_PRELOAD", program("libbfemu_preload.so"));
            if scheme == "xgvmi" {
                command.env("LD_PRELOAD", &built.library);
            }
            Ok(command)
        })?;
        judge(&ran, scheme, version == WITH_ASSERTIONS)
    };
    Ok(rows(options, version, check))
}
