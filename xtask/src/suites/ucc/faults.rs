//! Services that cannot serve and options that cannot be right: one clear line on rank 0, and UCC's other components carry
//! out every collective.

use super::job::{Launcher, Services, Site, Variable, variable};
use super::{FALLING_BACK, none_failed, succeed, test_program, traced};
use crate::process::Running;
use crate::suites::pair::free_port;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

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
        1 => vec![variable(("UCC_TL_XGVMI_COLLS", "bcast"))],
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
    let up = crate::process::wait_until(UP, || server.said().contains("up"));
    ensure!(up, "no server: {}", server.said());
    let vary = |_| vec![services_at(port)];
    fall_back(site, &services, vary, "version is 99")
}

pub(super) fn unknown_collective(site: &Site<'_>) -> Result<()> {
    let services = site.services("stock", &[])?;
    let vary = |_| vec![variable(("UCC_TL_XGVMI_COLLS", "alltoallx"))];
    fall_back(
        site,
        &services,
        vary,
        "UCC_TL_XGVMI_COLLS: 'alltoallx' is no collective that the component serves",
    )
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
    let program = test_program(FALLING_BACK);
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
