//! The CMake package of libnaaice: a C project finds it in an unpacked tree, is built with each of its targets, and calls
//! an accelerator on the unpacked emulated device.

use super::LIMIT;
use crate::setup::{self, Env};
use crate::stage::Layout;
use crate::{process, workspace};
use anyhow::{Result, bail};
use std::path::Path;
use std::process::{Command, Stdio};
use testbed::cluster::Cluster;
use testbed::port;

/// Address of the accelerator's function on the emulated device.
const ACCELERATOR: &str = "127.66.2.1";

/// Builds and runs the project. `None` without CMake.
pub(super) fn try_out(layout: &Layout, env: &Env) -> Result<Option<String>> {
    let Ok(cmake) = setup::cmake() else {
        return Ok(None);
    };
    let build = workspace::target_dir().join("stage/cmake");
    let _ = std::fs::remove_dir_all(&build);
    let command = || {
        let mut command = Command::new(&cmake.program);
        command.envs(env.for_cc()).envs(cmake.env.iter().cloned());
        command
    };
    let mut configure = command();
    configure
        .arg("-S")
        .arg(workspace::root().join("tests/programs/naaice_cmake"));
    configure.arg("-B").arg(&build);
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", layout.at("").display());
    process::stdout(configure.arg(prefix), LIMIT)?;
    process::stdout(command().arg("--build").arg(&build), LIMIT)?;
    let device = Cluster::at(layout.at("bin/bf-emu"), build.join("state"), 2);
    let said = call(&device, env, &build);
    let reset = device.ask("reset", &[]);
    let said = said?;
    reset?;
    Ok(Some(said))
}

/// Both clients call the server.
fn call(device: &Cluster, env: &Env, build: &Path) -> Result<String> {
    let port = port::free()?.to_string();
    let program = |function: &str, name: &str| {
        let mut command = device.command(function, build.join(name));
        command
            // cargo names its own directories there, whose libraries are not the installed ones.
            .env_remove("LD_LIBRARY_PATH")
            .envs(env.for_verbs());
        command
    };
    let mut server = program("node1.host", "server");
    let log = std::fs::File::create(build.join("server.log"))?;
    server
        .arg(&port)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let server = process::Group::spawn(&mut server)?;
    let listens = process::wait_until(LIMIT, || {
        std::fs::read_to_string(build.join("server.log"))
            .is_ok_and(|text| text.contains("listening"))
    });
    if !listens {
        bail!(
            "the server does not listen; see {}",
            build.join("server.log").display()
        );
    }
    let mut low_level = program("node0.host", "low_level");
    let mut said = process::stdout(low_level.args([ACCELERATOR, &port]), LIMIT)?;
    let mut client = program("node0.host", "client");
    client.env("NAA_SPEC", format!("{ACCELERATOR}:{port}:2:2"));
    said += &process::stdout(client.arg("bytes"), LIMIT)?;
    drop(server);
    for sign in ["ok low_level", "ok bytes"] {
        if !said.contains(sign) {
            bail!("a program of the CMake project does not say '{sign}':\n{said}");
        }
    }
    Ok(said)
}
