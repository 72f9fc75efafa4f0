//! Lifetime and limits of accelerators: hosts that vanish, that are quiet or many, kernels that take what they get, the end
//! of the accelerator during calls, and its start on the port of a killed one.

use crate::agent::{compile_cxx, compile_with};
use crate::harness::Case;
use crate::naaice::{FAILURE_LIMIT, NODE1_HOST, Place, freed, lost};
use crate::offload::Process;
use crate::process;
use crate::world::{LIMIT, World, free_port};
use anyhow::{Context, Result, ensure};
use std::net::TcpStream;

/// Environment variable: number of restarts on one port.
const RESTARTS: &str = "XGVMI_NAAICE_RESTARTS";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("naaice_listener_ends_before_its_sessions", listener_life),
        Case::new("naaice_host_vanishes_between_calls", vanishes),
        Case::new("naaice_region_beyond_1_gib", beyond_1gib),
        Case::new("naaice_idle_processes_and_strangers", idle_and_strangers),
        Case::new("naaice_idle_session_ends", idle_session),
        Case::new("naaice_kernel_memory_limit", kernel_memory),
        Case::new("naaice_memory_of_all_sessions", memory),
        Case::new("naaice_64_hosts_at_once", hosts_64),
        Case::new("naaice_stop_during_calls", stop_during_calls),
        Case::new("naaice_restart_on_one_port", restarts),
        Case::new("naaice_hello_of_too_many_keys", hello_of_many_keys),
        Case::new("naaice_host_leaves_before_its_welcome", leaves_early),
        Case::new("naaice_listener_fails", listener_fails),
        Case::new("naaice_crowded_accelerator", crowded),
        Case::new("naaice_cpp_calls", cpp),
    ]
}

/// The C++ interface.
fn cpp(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let program = compile_cxx("naaice_cpp", &place.library)?;
    let (_server, verbs) = place.start_server()?;
    let (_service, dpu, _) = place.start_service(&[])?;
    for address in [verbs, dpu] {
        let spec = [(2, 1), (2, 2), (16, 1)];
        let spec = spec.map(|(code, inputs)| format!("{address}:{code}:{inputs}"));
        let mut command = place.command("node0.host", &program);
        place.succeeds(command.env("NAA_SPEC", spec.join(",")), &["cpp"])?;
    }
    Ok(())
}

/// The program that says hello to the service, with a number of keys.
fn hello(place: &Place<'_>, world: &World, address: &str, keys: u32) -> Result<Process> {
    let target = address.strip_prefix("dpu/").context("a service")?;
    let mut command = place.command("node0.host", world.built("naaice_hello"));
    Process::spawn(command.args([target, &keys.to_string()]))
}

fn aliases(place: &Place<'_>, command: &str) -> Result<u64> {
    place.testbed.stats()?.commands("node0.dpu", command)
}

/// A host may announce 4,096 keys. One more, and the service refuses it without a command.
fn hello_of_many_keys(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, address, _) = place.start_service(&[])?;
    let mut host = hello(&place, world, &address, 4097)?;
    let (code, said) = host.end(LIMIT, &["the maximum is 4096"])?;
    ensure!(
        code == Some(0) && said.contains("it has 4097 keys; the maximum is 4096"),
        "{said}"
    );
    let created = aliases(&place, "create_alias")?;
    ensure!(created == 0, "{created} aliases");
    place.passes("node0.host", &address, &["bytes"])
}

/// A host that leaves while the service creates the aliases of its keys, so that it cannot be welcomed. Its aliases end.
fn leaves_early(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (mut service, address, _) = place.start_service(&["--log", "info"])?;
    let fault = |arguments: &[&str]| {
        let mut command = place.testbed.emulator("fault");
        process::stdout(command.args(arguments), LIMIT)
    };
    fault(&["add", "node0.dpu command create_general_object late 100ms"])?;
    let mut host = hello(&place, world, &address, 32)?;
    host.hear("sent")?;
    let begun = || {
        place
            .status("aliases_created")
            .is_ok_and(|created| created > 0)
    };
    ensure!(process::wait_until(LIMIT, begun), "no alias");
    host.signal(libc::SIGKILL)?;
    service.hear("has ended")?;
    let objects = process::stdout(&mut place.testbed.emulator("dump"), LIMIT)?;
    let is_alias = |line: &&str| line.contains("kind Alias");
    ensure!(
        objects.lines().filter(is_alias).count() == 0,
        "aliases remain:\n{objects}"
    );
    fault(&["clear"])?;
    place.passes("node0.host", &address, &["bytes"])
}

/// The listener for RDMA connections fails. The service ends with an error, so that its manager starts it again.
fn listener_fails(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let broken = compile_with("poll_fails", &["-shared", "-fPIC"])?;
    let sign = place.testbed.path().join("poll-fails");
    let (mut service, _, rdma) = place.start_service_with(&[], |command| {
        command.env("LD_PRELOAD", &broken);
        command.env("POLL_FAILS", &sign);
    })?;
    place.passes("node1.host", &rdma, &["bytes"])?;
    std::fs::write(&sign, "")?;
    let (code, said) = service.end(FAILURE_LIMIT, &["the RDMA listener has failed"])?;
    ensure!(
        code == Some(1) && said.contains("the RDMA listener has failed: poll: "),
        "exit code {code:?}:\n{said}"
    );
    Ok(())
}

/// An accelerator whose system rejects two requests of a host, as with many hosts at once, and that answers the third.
fn crowded(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let mut command = place.command("node1.host", world.built("naaice_crowded"));
    place.succeeds(command.arg(NODE1_HOST), &["crowded"])
}

/// A session that outlives its listener, and a port that is in use.
fn listener_life(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let mut command = place.command("node1.host", world.built("naaice_listener"));
    place.succeeds(command.arg(NODE1_HOST), &["listener_life"])
}

/// A host that is cut off between calls, as one that loses power. Its session ends, and its place is free.
fn vanishes(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, _, rdma) = place.start_service(&["--sessions", "1"])?;
    let (mut server, verbs) = place.start_server()?;
    let mut holders = Vec::new();
    for address in [&rdma, &verbs] {
        let mut holder = Process::spawn(&mut place.client("node1.host", address, &["hold"]))?;
        holder.hear("holding")?;
        holders.push(holder);
    }
    let port = |function: &str, state: &str| {
        let mut command = place.testbed.emulator("port");
        process::stdout(command.args([function, "1", state]), LIMIT)
    };
    port("node1.host", "down")?;
    freed(&place)?;
    server.hear("worker_procedure: ")?;
    port("node1.host", "up")?;
    place.passes("node0.host", &rdma, &["bytes"])?;
    place.passes("node0.host", &verbs, &["bytes"])
}

fn beyond_1gib(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_server, address) = place.start_server()?;
    place.passes("node0.host", &address, &["beyond_1gib"])
}

/// Processes that keep a connection without a session, and connections that say nothing, exclude no host.
fn idle_and_strangers(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, address, _) = place.start_service(&["--sessions", "1"])?;
    let mut quiet = Vec::new();
    for _ in 0..17 {
        quiet.push(place.start_client(&address, "quiet", "quiet")?);
    }
    place.passes("node0.host", &address, &["bytes"])?;
    // The first of them has lost its connection, and connects again.
    for process in [0, 16] {
        // The service notices the end of a session after its host has ended.
        freed(&place)?;
        quiet[process].signal(libc::SIGCONT)?;
        let (code, said) = quiet[process].end(LIMIT, &["ok quiet"])?;
        ensure!(code == Some(0), "{said}");
    }
    let target = address.strip_prefix("dpu/").context("a service")?;
    let strangers: Vec<TcpStream> = (0..300)
        .map(|_| TcpStream::connect(target))
        .collect::<std::io::Result<_>>()?;
    freed(&place)?;
    place.passes("node0.host", &address, &["bytes"])?;
    drop(strangers);
    Ok(())
}

/// With a limit, a session that makes no call ends, on both ways.
fn idle_session(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, dpu, rdma) = place.start_service(&["--sessions", "1", "--idle-limit", "1s"])?;
    for address in [dpu, rdma] {
        let mut holder = place.start_client(&address, "stopped=1", "created")?;
        freed(&place)?;
        holder.signal(libc::SIGCONT)?;
        lost(&mut holder)?;
    }
    Ok(())
}

fn kernel_memory(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, dpu, rdma) = place.start_service(&["--kernel-mib", "64"])?;
    place.passes("node0.host", &dpu, &["memory_kernel"])?;
    place.passes("node1.host", &rdma, &["memory_kernel"])
}

/// The regions of all sessions have one limit. A session beyond it is refused with the reason, and a later one is served.
fn memory(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let options = ["--session-mib", "1", "--memory-mib", "1"];
    let (_service, dpu, rdma) = place.start_service(&options)?;
    let mut holder = place.start_client(&dpu, "hold", "holding")?;
    for address in [&dpu, &rdma] {
        let mut second = Process::spawn(&mut place.client("node0.host", address, &["refused"]))?;
        let (code, said) = second.end(FAILURE_LIMIT, &["refused after"])?;
        ensure!(code == Some(0) && said.contains("refused after"), "{said}");
    }
    holder.signal(libc::SIGCONT)?;
    let (code, said) = holder.end(LIMIT, &["ok hold"])?;
    ensure!(code == Some(0), "{said}");
    // Sizes of one class after the other use the same memory.
    place.passes("node0.host", &dpu, &["create_again"])
}

fn hosts_64(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, dpu, rdma) = place.start_service(&["--sessions", "64"])?;
    for (function, address) in [("node0.host", dpu), ("node1.host", rdma)] {
        let spec = vec![format!("{address}:1:1"); 64].join(",");
        let mut client = place.client(function, &address, &["hosts_64"]);
        place.succeeds(client.env("NAA_SPEC", spec), &["hosts_64"])?;
    }
    Ok(())
}

/// A service that is stopped during calls ends in order, with its kernels, and the hosts notice it.
fn stop_during_calls(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (mut service, dpu, rdma) = place.start_service(&[])?;
    let mut clients = Vec::new();
    for address in [&dpu, &rdma, &rdma] {
        clients.push(place.start_client(address, "until=21", "called")?);
    }
    let calls = || place.status("calls").is_ok_and(|calls| calls == 3);
    ensure!(
        process::wait_until(LIMIT, calls),
        "the calls have not begun"
    );
    service.signal(libc::SIGTERM)?;
    for client in &mut clients {
        let (code, said) = client.end(FAILURE_LIMIT, &["ended "])?;
        ensure!(code == Some(0) && said.contains(" code 1 "), "{said}");
    }
    let (code, said) = service.end(FAILURE_LIMIT, &[])?;
    ensure!(code == Some(0), "exit code {code:?}:\n{said}");
    Ok(())
}

/// An accelerator is killed and starts again on its port. The short form has 10 rounds.
fn restarts(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let count: u32 = match std::env::var(RESTARTS) {
        Ok(text) => text.parse().with_context(|| format!("{RESTARTS}={text}"))?,
        Err(_) => 10,
    };
    let port = free_port()?.to_string();
    let mut last = None;
    for round in 0..count {
        let mut next = Process::spawn(place.command("node1.host", &place.server).arg(&port))?;
        next.hear("listening on")
            .with_context(|| format!("start {round} of {count}"))?;
        next.signal(libc::SIGKILL)?;
        // The killed process may still exit when the next one binds.
        last = Some(next);
    }
    drop(last);
    let mut server = Process::spawn(place.command("node1.host", &place.server).arg(&port))?;
    server.hear("listening on")?;
    place.passes("node0.host", &format!("{NODE1_HOST}:{port}"), &["bytes"])
}
