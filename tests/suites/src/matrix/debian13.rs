//! Debian 13's own UCX 1.18.1, which is built with assertions, in a tree of its own: the preload cells, and the offload
//! check in each scheme. Without the library a service process there aborts in every job (D13); with it every job runs.

use super::{Built, Options, PRELOAD_CELLS, Row, cells, device, read, report};
use anyhow::{Context, Result, bail, ensure};
use dev_setup::Env;
use dev_setup::tree::{self, UccTree};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::link::Link;
use testbed::place::Place;
use testbed::port::free as free_port;
use testbed::process::{self, Running};

/// Its name in the report. The cells read the version from its beginning.
pub(super) const NAME: &str = "1.18.1-debian13";
/// The argument that selects it.
pub(super) const WORD: &str = "debian13";
/// The preload cells take a minute on an idle machine.
const LIMIT: Duration = Duration::from_secs(900);
/// Time limit for the start of a service, which takes a second.
const UP: Duration = Duration::from_secs(60);
/// Time limit of a job of the offload check.
const JOB: Duration = Duration::from_secs(120);
/// UCX's text of the assertion that does not hold.
const ASSERTION: &str = "Unexpected refcount";

/// Runs everything. The outer error means that the tree is not available.
///
/// # Errors
/// The reason why the packages or the namespaces are not available.
pub(super) fn run(options: &Options, env: &Env, built: &Built) -> Result<Result<Vec<Row>>> {
    let root = tree::debian13()?;
    let place = Place::new(&root, &super::output_dir(), &env.cache)?;
    Ok(in_place(options, &place, env, built))
}

fn in_place(options: &Options, place: &Place, env: &Env, built: &Built) -> Result<Vec<Row>> {
    let link = Link::default();
    let (device, output) = device(built, link)?;
    let through = built.through(&output);
    let libraries = PathBuf::from(UccTree::libraries());
    let only = match options.only.is_empty() {
        true => vec![PRELOAD_CELLS.to_owned(), " absent D".to_owned()],
        false => options.only.clone(),
    };
    let outer = cells(&only, env, &through, &device, &[(NAME, libraries)]);
    let mut command = place.inside(
        &variables(&through.emulator),
        &through.cells.display().to_string(),
    );
    command.args(outer.get_args());
    println!("{NAME}:");
    let code = process::to_end(&mut command, LIMIT)?;
    let mut rows = read(&report())?;
    // Without a failed cell, the cause is elsewhere.
    if code != ExitCode::SUCCESS && !rows.is_empty() && rows.iter().all(|row| row.failure.is_none())
    {
        bail!("the cells have failed without a failed cell");
    }
    for scheme in ["ksm", "stock", "xgvmi"] {
        let case = format!("offload check {scheme}");
        let entry_point = if scheme == "xgvmi" {
            "preload"
        } else {
            "absent"
        };
        let name = format!("{NAME} {entry_point} {case}");
        if !options.only.is_empty() && !options.only.iter().any(|words| name.contains(words)) {
            continue;
        }
        let result = offload_check(place, &device.named(scheme), built, scheme);
        let failure = result.err().map(|error| format!("{error:#}"));
        let verdict = failure
            .as_ref()
            .map_or("ok".to_owned(), |text| format!("FAILED {text}"));
        println!("{name:<48} {verdict}");
        rows.push(Row {
            ucx: NAME.to_owned(),
            symbolic: false,
            link,
            entry_point: entry_point.to_owned(),
            case,
            failure,
            figures: Default::default(),
        });
    }
    Ok(rows)
}

fn variables(emulator: &Path) -> Vec<(String, String)> {
    let preload = emulator.with_file_name("libbfemu_preload.so");
    vec![("BFEMU_PRELOAD".to_owned(), preload.display().to_string())]
}

/// A job of two ranks on two nodes with a service process each. Without the library it must fail by UCX's assertion in a
/// service process. With it, it must verify every byte.
fn offload_check(place: &Place, device: &Cluster, built: &Built, scheme: &str) -> Result<()> {
    let release = built
        .emulator
        .parent()
        .context("an emulator without a directory")?;
    let command = |function: &str, program: &str, arguments: &[String]| {
        let mut variables = variables(&built.emulator);
        for (name, value) in [("UCX_TLS", "rc_x,self"), ("UCX_NET_DEVICES", "mlx5_0:1")] {
            variables.push((name.to_owned(), value.to_owned()));
        }
        if scheme == "xgvmi" {
            let library = built.library.display().to_string();
            variables.push(("LD_PRELOAD".to_owned(), library));
        }
        let run = device.command(function, release.join(program));
        let mut command = place.inside(&variables, &built.emulator.display().to_string());
        command.args(run.get_args()).args(arguments);
        command
    };
    let words =
        |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    let ports = [free_port()?, free_port()?];
    let mut services = Vec::new();
    for (node, port) in ports.iter().enumerate() {
        let listen = format!("127.0.0.1:{port}");
        let options = words(&["--listen", &listen, "--scheme", scheme]);
        let mut service = command(&format!("node{node}.dpu"), "xgvmi-sp", &options);
        services.push(Running::saying(&mut service, UP, " listens on ")?);
    }
    let meet = format!("127.0.0.1:{}", free_port()?);
    let mut ranks = Vec::new();
    for (rank, port) in ports.iter().enumerate() {
        let arguments = words(&[
            "--scheme",
            scheme,
            "--meet",
            &meet,
            "--rank",
            &rank.to_string(),
            "--size",
            "2",
            "--node",
            &format!("n{rank}"),
            "--sp",
            &format!("127.0.0.1:{port}"),
        ]);
        let function = format!("node{rank}.host");
        let mut rank = command(&function, "xgvmi-offload-check", &arguments);
        ranks.push(Running::spawn(&mut rank)?);
    }
    let mut said = String::new();
    let mut good = true;
    for rank in ranks {
        let done = rank.wait(JOB)?;
        good &= done.ok();
        said += &done.output;
    }
    let services: String = services.iter().map(Running::said).collect();
    match scheme {
        "xgvmi" => ensure!(
            good && !services.contains(ASSERTION),
            "the job fails:\n{said}\n{services}"
        ),
        _ => ensure!(
            !good && services.contains(ASSERTION),
            "the assertion does not show any more:\n{said}\n{services}"
        ),
    }
    Ok(())
}
