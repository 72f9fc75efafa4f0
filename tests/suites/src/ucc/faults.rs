//! Services that cannot serve and options that cannot be right: one clear line on rank 0, and UCC's other components carry
//! out every collective.

use super::job::{Backend, Launcher, RANKS, Services, Site, Variable, variable};
use super::{COMPILE, FALLING_BACK, LIMIT, SOME, none_failed, succeed, traced};
use crate::device::Testbed;
use anyhow::{Context, Result, ensure};
use dev_setup::tree::UccTree;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testbed::port::free as free_port;
use testbed::process::{self, Running};

/// Time limit for a script that opens a port.
const UP: Duration = Duration::from_secs(30);

/// A server that answers each connection as a service of protocol version 99 does: magic, version, length.
const OTHER_VERSION: &str = "\
import socket, sys
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('up', flush=True)
while True:
    peer, _ = server.accept()
    peer.recv(4096)
    peer.sendall(b'xgsp' + (99).to_bytes(4, 'little') + bytes(4))
    peer.close()
";

pub(super) fn unreachable(site: &Site<'_>) -> Result<()> {
    let services = site.services("stock", &[])?;
    let port = free_port()?;
    let vary = |node| match node {
        1 => vec![services_at(port)],
        _ => Vec::new(),
    };
    fall_back(site, &services, vary, "cannot reach the service at")
}

pub(super) fn options_differ(site: &Site<'_>) -> Result<()> {
    let services = site.services("stock", &[])?;
    let vary = |node| match node {
        1 => vec![variable(("UCC_TL_XGVMI_TUNE", "bcast:inf"))],
        _ => Vec::new(),
    };
    fall_back(site, &services, vary, "rank 2 has other options")
}

pub(super) fn another_secret(site: &Site<'_>) -> Result<()> {
    let (right, wrong) = (secret(site, "right")?, secret(site, "wrong")?);
    let services = site.services("stock", &["--secret-file", &right])?;
    let vary = |_| vec![variable(("UCC_TL_XGVMI_SECRET_FILE", &wrong))];
    fall_back(site, &services, vary, "secret")
}

pub(super) fn another_version(site: &Site<'_>) -> Result<()> {
    let services = site.services("stock", &[])?;
    let port = free_port()?;
    let mut server = site.place.outside("python3");
    server.args(["-c", OTHER_VERSION, &port.to_string()]);
    let server = Running::spawn(&mut server)?;
    let up = process::wait_until(UP, || server.said().contains("up"));
    ensure!(up, "no server: {}", server.said());
    let vary = |_| vec![services_at(port)];
    fall_back(site, &services, vary, "version is 99")
}

pub(super) fn former_option(site: &Site<'_>) -> Result<()> {
    let services = site.services("stock", &[])?;
    let vary = |_| vec![variable(("UCC_TL_XGVMI_COLLS", "bcast"))];
    let expect = "UCC_TL_XGVMI_COLLS=bcast is an option of earlier versions: use UCC_TL_XGVMI_TUNE";
    fall_back(site, &services, vary, expect)
}

pub(super) fn malformed_file(site: &Site<'_>) -> Result<()> {
    let services = site.services("stock", &[])?;
    let file = site.world.dir.join("malformed.toml");
    fs::write(&file, "sp = [\"127.0.0.1:1\"\n")?;
    let file = file.display().to_string();
    let vary = |_| {
        vec![
            variable(("UCC_TL_XGVMI_SERVICES", "")),
            variable(("UCC_TL_XGVMI_CONFIG", &file)),
        ]
    };
    fall_back(site, &services, vary, "malformed.toml")
}

/// A team that cannot be offloaded is an error where the user wants that.
pub(super) fn no_fallback(site: &Site<'_>) -> Result<()> {
    let services = site.services("stock", &[])?;
    let port = free_port()?;
    let vary = |fallback: &'static str| {
        move |_| {
            vec![
                services_at(port),
                variable(("UCC_TL_XGVMI_FALLBACK", fallback)),
            ]
        }
    };
    let program = site.test_program(FALLING_BACK);
    let run = |fallback| {
        let mut job = site.traced(&services, Launcher::OpenMpi, &program, vary(fallback));
        process::run(&mut job, LIMIT)
    };
    for (fallback, expect) in [
        ("error", "its collectives fail"),
        ("abort", "the process ends"),
    ] {
        let done = run(fallback)?;
        ensure!(
            !done.timed_out && !done.ok(),
            "{fallback}: {}\n{}",
            done.verdict(),
            done.output
        );
        let lines = done.output.lines().filter(|line| line.contains(expect));
        let lines: Vec<&str> = lines.collect();
        ensure!(
            !lines.is_empty()
                && (fallback == "abort" || lines.len() == 1)
                && lines[0].contains("cannot reach the service at"),
            "{fallback}: {lines:#?} of\n{}",
            done.output
        );
    }
    Ok(())
}

/// A process without options: the component is loaded, and says and does nothing.
pub(super) fn not_configured(site: &Site<'_>) -> Result<()> {
    let testbed = Testbed::new(site.world)?;
    let program = site.test_program(FALLING_BACK);
    let mut job = site.job(
        (&testbed, Backend::Ucc),
        Launcher::OpenMpi,
        &program,
        |_| vec![variable(("UCC_COLL_TRACE", "info"))],
    );
    let output = succeed(&mut job)?;
    none_failed(&output)?;
    let [offloaded, left] = traced(&output);
    ensure!(
        offloaded == 0 && left > 0 && !output.contains("TL_XGVMI"),
        "the component is in use:\n{output}"
    );
    Ok(())
}

/// Options in UCC's own file, which names the file of all nodes.
pub(super) fn options_in_files(site: &Site<'_>) -> Result<()> {
    let services = site.services("stock", &[])?;
    let conf = site.world.dir.join("ucc.conf");
    let nodes = nodes_file(site, services.ports())?;
    let options = format!("UCC_TL_XGVMI_CONFIG={nodes}\nUCC_TL_XGVMI_TUNE=alltoallv:0#bcast:inf\n");
    fs::write(&conf, options)?;
    let conf = conf.display().to_string();
    let program = site.test_program(FALLING_BACK);
    // UCC prefers the environment to its file, so the options must be absent there.
    let backend = Backend::OffloadByFile(&services);
    let mut job = site.job(
        (&services.testbed, backend),
        Launcher::OpenMpi,
        &program,
        |_| {
            vec![
                variable(("UCC_COLL_TRACE", "info")),
                variable(("UCC_CONFIG_FILE", &conf)),
            ]
        },
    );
    let output = succeed(&mut job)?;
    none_failed(&output)?;
    let (bcast, alltoallv) = (
        traced_of(&output, "Bcast "),
        traced_of(&output, "Alltoallv:"),
    );
    ensure!(
        bcast[0] > 0 && bcast[1] == 0 && alltoallv[0] == 0 && alltoallv[1] > 0,
        "offloaded and left: {bcast:?} broadcasts, {alltoallv:?} alltoallvs:\n{output}"
    );
    ensure!(services.completed()? > 0, "{output}");
    Ok(())
}

/// A file that names the service process of each node.
fn nodes_file(site: &Site<'_>, ports: impl IntoIterator<Item = u16>) -> Result<String> {
    let file = site.world.dir.join("nodes.toml");
    let list = ports.into_iter().enumerate();
    let list =
        list.map(|(node, port)| format!("[nodes.node{node}]\nsp = [\"127.0.0.1:{port}\"]\n"));
    fs::write(&file, list.collect::<String>())?;
    Ok(file.display().to_string())
}

/// Number of collectives of a kind that UCC's trace assigns to the component, and to others.
fn traced_of(output: &str, kind: &str) -> [u64; 2] {
    let kind = format!("coll_init: {kind}");
    let lines = output.lines().filter(|line| line.contains(&kind));
    lines.fold([0, 0], |mut counts, line| {
        counts[usize::from(!line.contains("{TL_XGVMI}"))] += 1;
        counts
    })
}

/// A node without a DPU: its service process runs on a core of its host, and the nodes' file names it as any other.
pub(super) fn mixed_nodes(site: &Site<'_>) -> Result<()> {
    let mut services = site.services("xgvmi", &[])?;
    services.running.pop();
    let ports = [services.ports()[0], free_port()?];
    let mut command = site.service(&services.testbed, "xgvmi", "node1.host");
    command.args(["--listen", &format!("127.0.0.1:{}", ports[1])]);
    let service = Running::saying(&mut command, UP, " listens on ")?;
    services.running.push(service);
    let nodes = nodes_file(site, ports)?;
    let program = site.test_program(SOME);
    let mut job = site.job(
        (&services.testbed, Backend::OffloadByFile(&services)),
        Launcher::OpenMpi,
        &program,
        |_| {
            vec![
                variable(("UCC_COLL_TRACE", "info")),
                variable(("UCC_TL_XGVMI_CONFIG", &nodes)),
                variable(("UCC_TL_XGVMI_TUNE", "inf")),
            ]
        },
    );
    let output = succeed(&mut job)?;
    none_failed(&output)?;
    let [offloaded, left] = traced(&output);
    ensure!(
        offloaded > 0 && left == 0 && services.completed()? >= 2 * offloaded,
        "{offloaded} were offloaded, {left} were not:\n{output}"
    );
    Ok(())
}

/// UCC's own strings of scores choose what the component serves, and UCC says what is wrong with one.
pub(super) fn tuned(site: &Site<'_>) -> Result<()> {
    const PROGRAM: &str =
        "-c alltoallv,bcast,barrier -t world -d int32 -m 1024:1024 -O 0 -C 32 -D 32";
    let services = site.services("stock", &[])?;
    let program = site.test_program(PROGRAM);
    let run = |tune| -> Result<String> {
        let vary = |_| vec![variable(("UCC_TL_XGVMI_TUNE", tune))];
        let output = succeed(&mut site.traced(&services, Launcher::OpenMpi, &program, vary))?;
        none_failed(&output)?;
        Ok(output)
    };
    const SERVED: [bool; 2] = [true, false];
    const LEFT: [bool; 2] = [false, true];
    // Whether broadcasts, alltoallvs and barriers are offloaded, and whether some are left. MPI itself has a broadcast of four
    // bytes.
    for (tune, expect) in [
        ("0", [LEFT; 3]),
        (
            "alltoallv:0#bcast:2k-inf:inf#barrier:100",
            [LEFT, LEFT, SERVED],
        ),
        ("bcast:512-inf:inf", [[true, true], SERVED, LEFT]),
        ("alltoallx:0", [LEFT, SERVED, LEFT]),
    ] {
        let output = run(tune)?;
        for (kind, expect) in ["Bcast ", "Alltoallv:", "Barrier"].iter().zip(expect) {
            let counts = traced_of(&output, kind);
            ensure!(
                counts.map(|count| count > 0) == expect,
                "{tune}: {kind} offloaded and left: {counts:?}:\n{output}"
            );
        }
        let is_explained = output.contains("failed to parse");
        ensure!(
            is_explained == tune.contains("alltoallx"),
            "{tune}: {output}"
        );
    }
    Ok(())
}

/// A `libucc.so.1` that says that it is version 1.MINOR.0. Everything else comes from the library that it needs.
const VERSION_STUB: &str = "\
void ucc_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
	*major = 1;
	*minor = MINOR;
	*release = 0;
}
";

/// A UCC whose structures the component does not know, older or newer: one line per process, and the component is not used.
pub(super) fn unknown_ucc(site: &Site<'_>) -> Result<()> {
    for minor in [4, 10] {
        let services = site.services("stock", &[])?;
        let path = stage_of_version(site, minor)?;
        let program = site.test_program(FALLING_BACK);
        let vary = |_| vec![variable(("LD_LIBRARY_PATH", &path))];
        let output = succeed(&mut site.traced(&services, Launcher::OpenMpi, &program, vary))?;
        none_failed(&output)?;
        let [offloaded, left] = traced(&output);
        ensure!(
            offloaded == 0 && left > 0,
            "1.{minor}: {offloaded} were offloaded, {left} were not:\n{output}"
        );
        let lines = output.lines().filter(|line| line.contains("TL_XGVMI"));
        let lines: Vec<&str> = lines.collect();
        let expect =
            format!("UCC 1.{minor}.0 is not used: the component does not know this version");
        let ranks = usize::try_from(RANKS)?;
        ensure!(
            lines.len() == ranks && lines.iter().all(|line| line.contains(&expect)),
            "not {ranks} lines with '{expect}' but {lines:#?} of\n{output}"
        );
    }
    Ok(())
}

/// A library path where UCC is version 1.`minor` and has the stage's components.
fn stage_of_version(site: &Site<'_>, minor: u32) -> Result<String> {
    let dir = site.world.dir.join(format!("ucc-1.{minor}"));
    let _ = fs::remove_dir_all(&dir);
    let real = dir.join("real");
    fs::create_dir_all(&real).with_context(|| format!("cannot create {}", real.display()))?;
    let (stub, needed) = (dir.join("stub.c"), real.join("libucc.so.1"));
    fs::write(&stub, VERSION_STUB)?;
    // A library without a name: the stub then needs it by its path, and not by the stub's own name.
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-x", "c", "/dev/null", "-o"])
        .arg(&needed);
    process::stdout(&mut cc, COMPILE)?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", &format!("-DMINOR={minor}")])
        .args(["-Wl,-soname,libucc.so.1", "-Wl,--no-as-needed", "-o"])
        .arg(dir.join("libucc.so.1"))
        .args([&stub, &needed]);
    process::stdout(&mut cc, COMPILE)?;
    fs::remove_file(&needed)?;
    symlink(site.stage.join("libucc.so.1"), &needed)?;
    symlink(site.stage.join("ucc"), real.join("ucc"))?;
    Ok(format!(
        "{}:{}",
        dir.display(),
        UccTree::library_path(&site.stage)
    ))
}

fn services_at(port: u16) -> Variable {
    variable(("UCC_TL_XGVMI_SERVICES", &format!("127.0.0.1:{port}")))
}

/// A secret file that only its owner can read.
fn secret(site: &Site<'_>, name: &str) -> Result<String> {
    let file: PathBuf = site.world.dir.join(format!("{name}.secret"));
    let shown = || format!("cannot write {}", file.display());
    let _ = fs::remove_file(&file);
    fs::write(&file, format!("{name}-0123456789abcdef")).with_context(shown)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).with_context(shown)?;
    Ok(file.display().to_string())
}

/// A job that is not offloaded and still passes. Rank 0 writes one warning, which contains `expect`.
fn fall_back(
    site: &Site<'_>,
    services: &Services<'_>,
    vary: impl Fn(usize) -> Vec<Variable>,
    expect: &str,
) -> Result<()> {
    let program = site.test_program(FALLING_BACK);
    let output = succeed(&mut site.traced(services, Launcher::OpenMpi, &program, vary))?;
    none_failed(&output)?;
    let [offloaded, left] = traced(&output);
    ensure!(
        offloaded == 0 && left > 0,
        "{offloaded} were offloaded, {left} were not:\n{output}"
    );
    let warnings: Vec<&str> = output
        .lines()
        .filter(|line| line.contains(" TL_XGVMI ") && !line.contains(" INFO "))
        .collect();
    ensure!(
        warnings.len() == 1
            && warnings[0].contains("is not offloaded: ")
            && warnings[0].contains(expect),
        "not one line with '{expect}' but {warnings:#?} of\n{output}"
    );
    Ok(())
}
