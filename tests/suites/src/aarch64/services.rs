//! Services on DPUs of the other processor, with hosts of this one: collectives, an accelerator, a volume. The programs of the
//! hosts compare each byte.

use super::{STARTER, STARTER_EMULATOR, compile, foreign, starter, tools};
use crate::{Case, World, ucc};
use anyhow::{Context as _, Result, ensure};
use dev_setup as setup;
use dev_setup::versions::VERSIONS;
use std::fs;
use std::path::Path;
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::foreign::Foreign;
use testbed::process::{self, Running};
use testbed::{naaice, port, workspace};

/// Time limit for the start of a service: it takes seconds, and minutes on a loaded machine.
const UP: Duration = Duration::from_secs(300);
/// Time limit of a job, the same.
const LIMIT: Duration = Duration::from_secs(1200);
/// Packages for the processor.
const PACKAGES: &[&str] = &[
    "bf-emu-preload",
    "uct-plugin",
    "xgvmi-offload",
    "xgvmi-naa",
    "xgvmi-blk",
];

/// Each job that is wanted.
pub(crate) fn run_all(world: &World) -> Result<Vec<Case>> {
    workspace::build(&[
        "-p bf-emu -p bf-emu-preload -p uct-plugin -p xgvmi-offload -p ucc-tl -p xgvmi-blk -p naaice",
    ])?;
    let pinned = |version: &&setup::versions::Version| version.name == setup::pins::UCX_VERSION;
    let version = VERSIONS.iter().find(pinned).unwrap_or(&VERSIONS[0]);
    let foreign = foreign(PACKAGES, version)?;
    type Job = fn(&World, &Foreign) -> Result<()>;
    let jobs: [(&str, Job); 2] = [
        ("offloaded alltoallv", alltoallv),
        ("accelerator calls", accelerator),
    ];
    let wanted = jobs.iter().filter(|(name, _)| world.wants(name));
    let mut cases: Vec<Case> = wanted
        .map(|(name, job)| Case::of(*name, job(world, &foreign)))
        .collect();
    cases.extend(ucc::with_services_on(world, &foreign)?);
    cases.extend(volume(world, &foreign)?);
    Ok(cases)
}

/// Ranks on two nodes: random counts, and long and short blocks.
fn alltoallv(world: &World, foreign: &Foreign) -> Result<()> {
    const RANKS: usize = 4;
    let device = Cluster::new(world.bin.join("bf-emu"), 2)?;
    let library = world.bin.join("libuct_ib_mlx5_xgvmi.so");
    let runtime = device.path().display().to_string();
    let common = [
        ("UCX_TLS", "rc_x,self".to_owned()),
        ("UCX_NET_DEVICES", "mlx5_0:1".to_owned()),
        ("LD_PRELOAD", library.display().to_string()),
        ("XDG_RUNTIME_DIR", runtime),
    ];
    let device = device.envs(common.map(|(name, value)| (name.to_owned(), value)));
    let (mut services, mut addresses) = (Vec::new(), Vec::new());
    for node in 0..2 {
        let address = format!("127.0.0.1:{}", port::free()?);
        let mut service = foreign.command(&device, &format!("node{node}.dpu"), "xgvmi-sp");
        service.args(["--listen", &address]);
        services.push(Running::saying(&mut service, UP, " listens on ")?);
        addresses.push(address);
    }
    let meet = format!("127.0.0.1:{}", port::free()?);
    let mut ranks = Vec::new();
    for rank in 0..RANKS {
        let node = rank * 2 / RANKS;
        let program = world.bin.join("xgvmi-offload-check");
        let mut command = device.command(&format!("node{node}.host"), program);
        command.envs(world.env.for_ucx());
        command.args(["--scheme", "xgvmi", "--meet", &meet, "--rounds", "12"]);
        command.args(["--rank", &rank.to_string(), "--size", &RANKS.to_string()]);
        command.args(["--node", &format!("n{node}"), "--sp", &addresses[node]]);
        command.args(["--block", "100000", "--seed", "1"]);
        ranks.push(Running::spawn(&mut command)?);
    }
    let mut faults = Vec::new();
    for (rank, running) in ranks.into_iter().enumerate() {
        let done = running.wait(LIMIT)?;
        if !done.ok() || verified(&done.output).is_none_or(|bytes| bytes == 0) {
            faults.push(format!("rank {rank}: {}\n{}", done.verdict(), done.output));
        }
    }
    let said = || services.iter().map(Running::said).collect::<String>();
    ensure!(
        faults.is_empty(),
        "{}\nservices:\n{}",
        faults.join("\n"),
        said()
    );
    Ok(())
}

/// The number in front of "bytes verified".
fn verified(said: &str) -> Option<u64> {
    let (before, _) = said.split_once(" bytes verified")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Sessions, calls and faults of kernels that run in processes of the DPU.
fn accelerator(world: &World, foreign: &Foreign) -> Result<()> {
    const CHECKS: [&str; 8] = [
        "bytes",
        "codes",
        "unknown_function",
        "create_again",
        "zeroed",
        "regions_32",
        "crash",
        "unmapped",
    ];
    let place = workspace::target_dir().join("suites/aarch64");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let tools = tools::ensure()?;
    let kernels = place.join("kernels.so");
    let shared = naaice::kernels(1);
    let variables = tools.for_cc();
    compile(&tools.cc(), "naaice_kernels", &shared, &variables, &kernels)?;
    starter(&tools)?;
    let client = place.join("naaice_client");
    let options = naaice::program(1, &world.bin);
    let verbs = world.env.for_cc();
    compile(Path::new("cc"), "naaice_client", &options, &verbs, &client)?;

    let device = Cluster::new(world.bin.join("bf-emu"), 1)?.envs(world.env.for_verbs());
    let beside = [("LD_PRELOAD".to_owned(), STARTER.to_owned())];
    let address = format!("127.0.0.1:{}", port::free()?);
    let mut service = foreign.command(&device.clone().envs(beside), "node0.dpu", "xgvmi-naa");
    service.arg("--kernels").arg(&kernels);
    service.args(["--listen", &address]);
    service.args(["--verbs-listen", &format!("0.0.0.0:{}", port::free()?)]);
    service.arg("--status-socket");
    service.arg(device.path().join("status.sock"));
    service.env(STARTER_EMULATOR, &foreign.emulator);
    let service = Running::saying(&mut service, UP, " listens on ")?;
    let mut host = device.command("node0.host", &client);
    host.args(CHECKS)
        .env("NAA_SPEC", naaice::spec(&format!("dpu/{address}")));
    let done = process::run(&mut host, LIMIT)?;
    let passed = |check: &&str| {
        done.output
            .lines()
            .any(|line| line == format!("ok {check}"))
    };
    ensure!(
        done.ok() && CHECKS.iter().all(passed),
        "{}\n{}\nservice:\n{}",
        done.verdict(),
        done.output,
        service.said()
    );
    Ok(())
}

/// Stock clients of a volume behind a service.
fn volume(world: &World, foreign: &Foreign) -> Result<Vec<Case>> {
    const PARTS: [&str; 2] = ["DPU: nbdinfo", "DPU: qemu-io"];
    let parts: Vec<String> = PARTS
        .iter()
        .filter(|name| world.wants(name))
        .map(|name| (*name).to_owned())
        .collect();
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    crate::storage::run_with(world, &parts, Some(foreign))
}
