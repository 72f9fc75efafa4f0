//! The emulator's own commands: users of a fabric, counters, and reset.

use crate::agent::{Agent, compile};
use crate::harness::Case;
use crate::process;
use crate::world::{LIMIT, Testbed, World, free_port, succeed, succeed_pair};
use anyhow::{Context, Result, ensure};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("bf_emu_lists_its_users", users),
        Case::new("bf_emu_counts_by_function", counts),
        Case::new("bf_emu_resets", resets),
        Case::new("bf_emu_ends_with_the_programs_code", exit_code),
        Case::new("bf_emu_counts_time_on_the_link", link),
        Case::new("bf_emu_keeps_the_device_under_another_preload", preload),
    ]
}

fn users(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut agent = Agent::start(&testbed, "node1.dpu")?;
    agent.memory(0, 4096, "w")?;
    let listed = succeed(&mut testbed.emulator("ps"))?;
    let line = listed.lines().find(|line| line.contains("node1.dpu"));
    ensure!(
        line.is_some_and(|line| line.contains("verbs_agent")),
        "the user is not listed:\n{listed}"
    );
    agent.end()?;
    let listed = succeed(&mut testbed.emulator("ps"))?;
    ensure!(
        !listed.contains("verbs_agent"),
        "a dead user is listed:\n{listed}"
    );
    Ok(())
}

fn counts(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut agent = Agent::start(&testbed, "node0.host")?;
    agent.memory(0, 4096, "w")?;
    for slot in 0..3 {
        agent.tell(&format!("ksm {slot} 0 0 4096"))?;
    }
    agent.tell("unobj 0")?;
    for (function, command, expect) in [
        ("node0.host", "create_mkey", 3),
        ("node0.host", "destroy_mkey", 1),
        ("node0.dpu", "create_mkey", 0),
    ] {
        let found = testbed.stats()?.commands(function, command)?;
        ensure!(
            found == expect,
            "{function} has executed {found} {command} and not {expect}"
        );
    }
    Ok(())
}

fn resets(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut agent = Agent::start(&testbed, "node0.host")?;
    let refused = process::run(&mut testbed.emulator("reset"), LIMIT)?;
    ensure!(
        !refused.ok(),
        "a fabric in use was removed:\n{}",
        refused.output
    );
    agent.tell("mem 0 4096")?;
    agent.end()?;
    succeed(&mut testbed.emulator("reset"))?;
    let mut again = Agent::start(&testbed, "node0.host")?;
    again.tell("mem 0 4096")?;
    let found = testbed.stats()?.commands("node0.host", "open_context")?;
    ensure!(found == 1, "the new fabric counts {found} contexts");
    Ok(())
}

fn exit_code(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let done = process::run(
        testbed.command("node0.host", "sh").args(["-c", "exit 7"]),
        LIMIT,
    )?;
    ensure!(
        done.status.code() == Some(7),
        "{}\n{}",
        done.status,
        done.output
    );
    let done = process::run(testbed.command("node9.host", "true").arg("x"), LIMIT)?;
    ensure!(
        !done.ok() && done.output.contains("node9"),
        "{}\n{}",
        done.status,
        done.output
    );
    Ok(())
}

/// 1 Gbit/s is 8 ns per byte, for all senders together: the port's time is that of the transmitted
/// bytes.
const LINK: &str = "source = \"a test\"\n[link]\nlatency_ns = 2000\nbandwidth_mbit_per_s = 1000\n";
const NS_PER_BYTE: u64 = 8;

fn link(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let profile = testbed.path().join("link.toml");
    std::fs::write(&profile, LINK)?;
    let profile = profile.to_str().context("a path of UTF-8")?;
    let port = free_port()?;
    let run = |function: &str| {
        let options = ["--profile", profile];
        let mut command = testbed.command_with(&options, function, world.verbs_tool("ib_write_bw"));
        let port = port.to_string();
        command.args([
            "-d", "mlx5_0", "-F", "-s", "8192", "-q", "2", "-n", "100", "-p", &port,
        ]);
        command
    };
    let mut client = run("node1.host");
    succeed_pair(&mut run("node0.host"), client.arg("127.0.0.1"), port)?;
    let (bytes, link_ns) = (
        testbed.stats()?.total("bytes")?,
        testbed.stats()?.total("link_ns")?,
    );
    ensure!(bytes >= 2 * 100 * 8192, "{bytes} bytes passed");
    ensure!(
        link_ns == bytes * NS_PER_BYTE,
        "{bytes} bytes occupied the link for {link_ns} ns"
    );
    Ok(())
}

/// A program whose starter replaces or removes `LD_PRELOAD` has the device, unless the starter takes that away too.
fn preload(world: &World) -> Result<()> {
    const PYTHON: &str = "import os, subprocess, sys; \
        sys.exit(subprocess.call(sys.argv[1:], env=dict(os.environ, LD_PRELOAD='')))";
    const SHELL: &str = "LD_PRELOAD=libm.so.6 exec \"$0\" \"$@\"";
    let testbed = Testbed::new(world)?;
    let program = compile("contexts")?;
    for starter in [
        &["env", "LD_PRELOAD=libm.so.6"][..],
        &["env", "-u", "LD_PRELOAD"],
        &["sh", "-c", SHELL],
        &["python3", "-c", PYTHON],
    ] {
        let mut command = testbed.command("node0.host", starter[0]);
        command.args(&starter[1..]).arg(&program);
        let said = succeed(command.args(["rounds", "1"]))?;
        ensure!(said.starts_with("ok "), "{starter:?}: {said}");
    }
    let mut command = testbed.command("node0.host", "env");
    command.args(["-u", "BFEMU_AS", "LD_PRELOAD=libm.so.6"]);
    let output = command.arg(&program).args(["rounds", "1"]).output()?;
    ensure!(
        !output.status.success(),
        "a device that was taken away is there"
    );
    Ok(())
}
