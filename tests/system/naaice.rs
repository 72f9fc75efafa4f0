//! Calls to network-attached accelerators: a C program on libnaaice as the host, and as accelerators a C program on
//! the same library and the service on the DPU. The programs verify every byte. Failures must end in one clear error
//! within the library's limits, never in a hang.

use crate::agent::compile_with;
use crate::harness::{Case, Outcome};
use crate::offload::Process;
use crate::process;
use crate::world::{LIMIT, Testbed, World, free_port};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testbed::{naaice, workspace};

/// Time limit for survivors to detect a failure: the library's limits are 10 s and 30 s.
pub(crate) const FAILURE_LIMIT: Duration = Duration::from_secs(60);
/// Built programs of the original library, for its own examples in both roles.
const ORIGINAL: &str = "XGVMI_NAAICE_BUILT";
/// Addresses of the emulated functions.
pub(crate) const NODE0_DPU: &str = "127.66.1.3";
pub(crate) const NODE1_HOST: &str = "127.66.2.1";
/// Checks that every accelerator passes.
const CHECKS: [&str; 11] = [
    "bytes",
    "codes",
    "unknown_function",
    "test_never_waits",
    "create_again",
    "zeroed",
    "regions_32",
    "refusals",
    "no_signal_handler",
    "forked",
    "read_only",
];
/// Checks of accelerators that run kernels in processes.
const PROCESS_CHECKS: [&str; 4] = ["crash", "loop", "forking_kernels", "unmapped"];

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("naaice_verbs_infiniband", |w| verbs(w, "infiniband")),
        Case::new("naaice_verbs_ethernet", |w| verbs(w, "ethernet")),
        Case::new("naaice_dpu_pool", |w| dpu(w, "pool")),
        Case::new("naaice_dpu_ksm", |w| dpu(w, "ksm")),
        Case::new("naaice_dpu_of_another_node", remote),
        Case::new("naaice_kernel_processes_serve_again", processes),
        Case::new("naaice_sessions_make_no_keys", steady_state),
        Case::new("naaice_more_clients_than_slots", slots),
        Case::new("naaice_no_server", no_server),
        Case::new("naaice_low_level_calls", low_level),
        Case::new("naaice_interface_2", interface_2),
        Case::new("naaice_server_killed", server_killed),
        Case::new("naaice_server_killed_in_each_state", server_killed_in_state),
        Case::new("naaice_client_killed_while_the_kernel_runs", client_killed),
        Case::new("naaice_server_stopped_and_continued", stopped),
        Case::new("naaice_host_stopped_and_continued", host_stopped),
        Case::new("naaice_port_down_and_up", port),
        Case::new("naaice_bind_fails", bind_fails),
        Case::new("naaice_secret", secret),
        Case::new("naaice_doctor", doctor),
        Case::that_may_skip("naaice_programs_of_the_original", original),
    ]
}

/// A cluster with the programs of the tests.
pub(crate) struct Place<'a> {
    world: &'a World,
    pub(crate) testbed: Testbed<'a>,
    options: Vec<String>,
    /// Options of the compiler for programs on the library.
    pub(crate) library: Vec<String>,
    kernels: PathBuf,
    pub(crate) server: PathBuf,
    client: PathBuf,
}

impl<'a> Place<'a> {
    pub(crate) fn new(world: &'a World) -> Result<Self> {
        Self::with(world, &[])
    }

    /// With options of `bf-emu run`.
    pub(crate) fn with(world: &'a World, options: &[&str]) -> Result<Self> {
        Self::of_interface(world, options, 1)
    }

    /// With programs and kernels for this interface of the original.
    fn of_interface(world: &'a World, options: &[&str], interface: u32) -> Result<Self> {
        let kernels = workspace::root().join("tests/programs/naaice_kernels.c");
        let built = world.built("libnaaice.so");
        let built = built.parent().context("the build directory")?;
        let library = naaice::program(interface, built);
        let server = [vec![kernels.display().to_string()], library.clone()].concat();
        Ok(Self {
            world,
            testbed: Testbed::new(world)?,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            kernels: compile_with("naaice_kernels", &naaice::kernels(interface))?,
            server: compile_with("naaice_server", &server)?,
            client: compile_with("naaice_client", &library)?,
            library,
        })
    }

    /// Another program on the library.
    pub(crate) fn compile(&self, name: &str) -> Result<PathBuf> {
        let options = self
            .library
            .iter()
            .cloned()
            .chain(["-lrdmacm", "-libverbs"].map(String::from));
        compile_with(name, &options.collect::<Vec<String>>())
    }

    pub(crate) fn command(&self, function: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        self.testbed.command_with(&options, function, program)
    }

    /// A software accelerator on node1.host; its port.
    pub(crate) fn start_server(&self) -> Result<(Process, String)> {
        let port = free_port()?;
        let mut command = self.command("node1.host", &self.server);
        let mut server = Process::spawn(command.arg(port.to_string()))?;
        server.hear("listening on")?;
        Ok((server, format!("{NODE1_HOST}:{port}")))
    }

    /// A service on node0.dpu: its addresses for its own host and for others.
    pub(crate) fn start_service(&self, options: &[&str]) -> Result<(Process, String, String)> {
        self.start_service_with(options, |_| ())
    }

    /// The same with more in its command.
    pub(crate) fn start_service_with(
        &self,
        options: &[&str],
        vary: impl Fn(&mut Command),
    ) -> Result<(Process, String, String)> {
        let (tcp, rdma) = (free_port()?, free_port()?);
        let mut command = self.command("node0.dpu", self.world.built("xgvmi-naa"));
        command
            .arg("--kernels")
            .arg(&self.kernels)
            .args(["--listen", &format!("127.0.0.1:{tcp}")])
            .args(["--verbs-listen", &format!("0.0.0.0:{rdma}")])
            .arg("--status-socket")
            .arg(self.socket())
            .args(options);
        vary(&mut command);
        let mut service = Process::spawn(&mut command)?;
        service.hear(" listens on ")?;
        Ok((
            service,
            format!("dpu/127.0.0.1:{tcp}"),
            format!("{NODE0_DPU}:{rdma}"),
        ))
    }

    fn socket(&self) -> PathBuf {
        self.testbed.path().join("status.sock")
    }

    /// A number of the service's status.
    pub(crate) fn status(&self, name: &str) -> Result<u64> {
        let mut command = Command::new(self.world.built("xgvmi-naa"));
        command
            .args(["status", "--json", "--socket"])
            .arg(self.socket());
        let text = process::stdout(&mut command, LIMIT)?;
        let status: serde_json::Value = serde_json::from_str(&text)?;
        status[name]
            .as_u64()
            .with_context(|| format!("no {name} in {text}"))
    }

    /// The client on `function`, for an accelerator at `address`.
    pub(crate) fn client(&self, function: &str, address: &str, checks: &[&str]) -> Command {
        let mut command = self.command(function, &self.client);
        command.args(checks).env("NAA_SPEC", naaice::spec(address));
        command
    }

    /// The client passes all checks.
    pub(crate) fn passes(&self, function: &str, address: &str, checks: &[&str]) -> Result<()> {
        self.succeeds(&mut self.client(function, address, checks), checks)
    }

    pub(crate) fn succeeds(&self, command: &mut Command, checks: &[&str]) -> Result<()> {
        let mut client = Process::spawn(command)?;
        let last = checks
            .last()
            .map_or_else(String::new, |check| format!("ok {check}"));
        let (code, said) = client.end(LIMIT, &[&last])?;
        ensure!(
            code == Some(0) && said.contains(&last),
            "exit code {code:?}:\n{said}"
        );
        Ok(())
    }

    /// Starts a client that reports how its call ended.
    pub(crate) fn start_client(&self, address: &str, check: &str, hear: &str) -> Result<Process> {
        let mut client = Process::spawn(&mut self.client("node0.host", address, &[check]))?;
        client.hear(hear)?;
        Ok(client)
    }
}

fn verbs(world: &World, link: &str) -> Result<()> {
    let place = Place::with(world, &["--link", link])?;
    let (_server, address) = place.start_server()?;
    place.passes("node0.host", &address, &CHECKS)?;
    place.passes("node0.host", &address, &["unmapped"])
}

fn dpu(world: &World, keys: &str) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, address, _) = place.start_service(&["--kernel-limit", "1s"])?;
    for checks in [&CHECKS[..], &PROCESS_CHECKS, &["failed_read"]] {
        let mut client = place.client("node0.host", &address, checks);
        place.succeeds(client.env("NAAICE_KEYS", keys), checks)?;
    }
    ensure!(place.status("sessions_now")? == 0, "a session remains");
    ensure!(
        place.status("kernels_killed")? == 2,
        "the kernels that loop were not killed once each"
    );
    Ok(())
}

/// A host that no alias can reach connects over RDMA. Kernels run in processes as well.
fn remote(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, _, address) = place.start_service(&["--kernel-limit", "1s"])?;
    place.passes("node1.host", &address, &CHECKS)?;
    place.passes("node1.host", &address, &PROCESS_CHECKS)?;
    ensure!(
        place.status("aliases_created")? == 0,
        "an alias of another node's key"
    );
    Ok(())
}

/// Sessions over RDMA use kernel processes that were started ahead: 40 sessions start none. A process that was killed is
/// replaced, and its session's call has the return code of a crash.
fn processes(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, _, address) = place.start_service(&[])?;
    let started = || place.status("kernels_started");
    let ready = process::wait_until(LIMIT, || started().is_ok_and(|count| count == 2));
    ensure!(ready, "not two processes ahead: {:?}", started());
    place.passes(
        "node1.host",
        &address,
        &["create_again", "zeroed", "create_again"],
    )?;
    ensure!(
        started()? == 2,
        "{} processes for sessions one after the other",
        started()?
    );
    place.passes("node1.host", &address, &["crash", "bytes"])?;
    ensure!(
        started()? <= 4,
        "{} processes after two kernels have crashed",
        started()?
    );
    Ok(())
}

/// Twenty more sessions on fresh buffers issue no key command and no alias command.
fn steady_state(world: &World) -> Result<()> {
    const COMMANDS: [(&str, &str); 5] = [
        ("node0.host", "create_mkey"),
        ("node0.host", "allow_other_vhca_access"),
        ("node0.host", "destroy_mkey"),
        ("node0.dpu", "create_alias"),
        ("node0.dpu", "destroy_alias"),
    ];
    let count = |checks: &[&str]| -> Result<Vec<u64>> {
        let place = Place::new(world)?;
        let (_service, address, _) = place.start_service(&[])?;
        place.passes("node0.host", &address, checks)?;
        let commands = COMMANDS.iter();
        commands
            .map(|(function, kind)| place.testbed.stats()?.commands(function, kind))
            .collect()
    };
    let (once, twice) = (
        count(&["create_again"])?,
        count(&["create_again", "create_again"])?,
    );
    ensure!(once[0] > 0, "the pool has created keys");
    ensure!(
        once == twice,
        "20 sessions: {once:?}, 40 sessions: {twice:?} of {COMMANDS:?}"
    );
    Ok(())
}

fn slots(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, dpu, rdma) = place.start_service(&["--sessions", "1"])?;
    for address in [dpu, rdma] {
        let mut holder = place.start_client(&address, "hold", "holding")?;
        let mut second = Process::spawn(&mut place.client("node0.host", &address, &["refused"]))?;
        let (code, said) = second.end(FAILURE_LIMIT, &["refused after"])?;
        ensure!(
            code == Some(0) && said.contains("in use; try again later"),
            "{said}"
        );
        holder.signal(libc::SIGCONT)?;
        let (code, said) = holder.end(LIMIT, &["ok hold"])?;
        ensure!(code == Some(0), "{said}");
        freed(&place)?;
        place.passes("node0.host", &address, &["bytes"])?;
    }
    Ok(())
}

/// Waits until the service has no session.
pub(crate) fn freed(place: &Place<'_>) -> Result<()> {
    let freed = process::wait_until(LIMIT, || {
        place.status("sessions_now").is_ok_and(|now| now == 0)
    });
    ensure!(
        freed,
        "a session remains: {:?}",
        place.status("sessions_now")
    );
    Ok(())
}

fn no_server(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let port = free_port()?;
    for address in [
        format!("{NODE1_HOST}:{port}"),
        format!("dpu/127.0.0.1:{port}"),
    ] {
        let mut client = Process::spawn(&mut place.client("node0.host", &address, &["refused"]))?;
        let (code, said) = client.end(FAILURE_LIMIT, &["refused after"])?;
        ensure!(
            code == Some(0) && said.contains("refused after"),
            "{address}: {said}"
        );
    }
    Ok(())
}

/// The accelerator dies between connection and announcement, between creation and call, and during a call.
fn server_killed(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    for on_dpu in [false, true] {
        let start = || -> Result<(Process, String)> {
            if on_dpu {
                let (service, address, _) = place.start_service(&[])?;
                Ok((service, address))
            } else {
                place.start_server()
            }
        };
        let (server, address) = start()?;
        server.signal(libc::SIGSTOP)?;
        let mut client = Process::spawn(&mut place.client("node0.host", &address, &["refused"]))?;
        server.signal(libc::SIGKILL)?;
        let (code, said) = client.end(FAILURE_LIMIT, &["refused after"])?;
        ensure!(code == Some(0), "killed while a host connects: {said}");
        drop(server);

        let (server, address) = start()?;
        let mut client = place.start_client(&address, "stopped=21", "created")?;
        server.signal(libc::SIGKILL)?;
        drop(server);
        client.signal(libc::SIGCONT)?;
        lost(&mut client).context("killed before the call")?;

        let (server, address) = start()?;
        let mut client = place.start_client(&address, "until=21", "called")?;
        server.signal(libc::SIGKILL)?;
        lost(&mut client).context("killed while the kernel runs")?;
    }
    Ok(())
}

/// The client reports the loss of the accelerator.
pub(crate) fn lost(client: &mut Process) -> Result<()> {
    let (code, said) = client.end(FAILURE_LIMIT, &["ended "])?;
    ensure!(
        code == Some(0) && said.contains("ended -1 state 40 code 1 "),
        "exit code {code:?}:\n{said}"
    );
    Ok(())
}

/// As above, in states in which the accelerator stops itself: a requested connection, an established one without an
/// announcement, a running kernel.
fn server_killed_in_state(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let program = place.compile("naaice_server_stops")?;
    for state in ["request", "established", "calculating"] {
        let port = free_port()?;
        let mut server = place.command("node1.host", &program);
        let mut server = Process::spawn(server.args([&port.to_string(), state]))?;
        server.hear("listening on")?;
        let calls = state == "calculating";
        let check = if calls { "until=21" } else { "refused" };
        let address = format!("{NODE1_HOST}:{port}");
        let mut client = Process::spawn(&mut place.client("node0.host", &address, &[check]))?;
        server.hear("stopped").context(state)?;
        server.signal(libc::SIGKILL)?;
        if calls {
            lost(&mut client)?;
        } else {
            let (code, said) = client.end(FAILURE_LIMIT, &["refused after"])?;
            ensure!(code == Some(0), "killed in state {state}: {said}");
        }
    }
    Ok(())
}

/// A C program on the low-level interface.
fn low_level(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_server, address) = place.start_server()?;
    low_level_calls(&place, &address)
}

fn low_level_calls(place: &Place<'_>, address: &str) -> Result<()> {
    let program = place.compile("naaice_low_level")?;
    let (host, port) = address.split_once(':').context("an address")?;
    let mut client = place.command("node0.host", &program);
    place.succeeds(client.args([host, port]), &["low_level"])
}

/// Programs and kernels for the original's interface after version 0.1.
fn interface_2(world: &World) -> Result<()> {
    let place = Place::of_interface(world, &[], 2)?;
    let (_server, verbs) = place.start_server()?;
    let (_service, dpu, _) = place.start_service(&[])?;
    low_level_calls(&place, &verbs)?;
    for address in [verbs, dpu] {
        place.passes("node0.host", &address, &CHECKS)?;
    }
    Ok(())
}

/// Slot and keys of a dead host come back: with one slot the next host is served. The host dies between calls, and while
/// the kernel runs.
fn client_killed(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, dpu, rdma) = place.start_service(&["--sessions", "1"])?;
    for (address, killed) in [(&dpu, 1), (&rdma, 2)] {
        let mut client = place.start_client(address, "hold", "holding")?;
        client.group.kill();
        freed(&place)?;
        // The kernel begins after the service has read the input; over RDMA the host writes it.
        let counter = if address == &dpu {
            "bytes_read"
        } else {
            "calls"
        };
        let before = place.status(counter)?;
        let mut client = place.start_client(address, "until=21", "called")?;
        let runs = || place.status(counter).is_ok_and(|now| now > before);
        ensure!(
            process::wait_until(LIMIT, runs),
            "the service has not begun the call"
        );
        client.group.kill();
        freed(&place)?;
        place.passes("node0.host", address, &["bytes", "codes"])?;
        let found = place.status("kernels_killed")?;
        ensure!(
            found == killed,
            "{found} kernels of dead hosts were killed instead of {killed}"
        );
    }

    // The kernel of a program of its own ends by itself; the server then serves others.
    let (mut server, address) = place.start_server()?;
    let mut client = place.start_client(&address, "until=22", "called")?;
    client.group.kill();
    place.passes("node0.host", &address, &["bytes", "codes"])?;
    ensure!(
        !server.has_ended(),
        "the server has ended:\n{}",
        server.said()
    );
    Ok(())
}

fn stopped(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    for on_dpu in [false, true] {
        let (server, address) = if on_dpu {
            let (service, address, _) = place.start_service(&[])?;
            (service, address)
        } else {
            place.start_server()?
        };
        let mut client = place.start_client(&address, "calls", "calling")?;
        server.signal(libc::SIGSTOP)?;
        server.signal(libc::SIGCONT)?;
        let (code, said) = client.end(LIMIT, &["ok calls"])?;
        ensure!(code == Some(0), "{said}");
    }
    Ok(())
}

/// A host that stops during a session, or during a call, delays no other host. Afterwards it continues.
fn host_stopped(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_server, verbs) = place.start_server()?;
    let (_service, dpu, rdma) = place.start_service(&[])?;
    for address in [verbs, dpu, rdma] {
        // It stops itself.
        let mut holder = place.start_client(&address, "hold", "holding")?;
        let mut caller = place.start_client(&address, "until=22", "called")?;
        caller.signal(libc::SIGSTOP)?;
        place.passes("node0.host", &address, &["bytes", "codes"])?;
        holder.signal(libc::SIGCONT)?;
        caller.signal(libc::SIGCONT)?;
        let (code, said) = holder.end(LIMIT, &["ok hold"])?;
        ensure!(code == Some(0), "{address}: {said}");
        let (code, said) = caller.end(LIMIT, &["ended "])?;
        ensure!(
            code == Some(0) && said.contains("ended 0 state 30 code 0 "),
            "{address}: {said}"
        );
    }
    Ok(())
}

/// The port of the accelerator's node goes down and up between calls: over RDMA the transport repeats, and accesses
/// through aliases do not use the port.
fn port(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_server, verbs) = place.start_server()?;
    let (_service, dpu, _) = place.start_service(&[])?;
    for (address, function) in [(verbs, "node1.host"), (dpu, "node0.dpu")] {
        let mut client = place.start_client(&address, "calls", "calling")?;
        for state in ["down", "up"] {
            let mut command = place.testbed.emulator("port");
            process::stdout(command.args([function, "1", state]), LIMIT)?;
        }
        let (code, said) = client.end(LIMIT, &["ok calls"])?;
        ensure!(code == Some(0), "{address}: {said}");
    }
    Ok(())
}

/// One bind in five fails: sessions still work, because the library binds again.
fn bind_fails(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_service, address, _) = place.start_service(&[])?;
    let mut client = place.client("node0.host", &address, &["bytes", "create_again"]);
    client.env(
        "BFEMU_FAULTS",
        "node0.host request umr_bind every 5 syndrome MW_BIND_ERR",
    );
    place.succeeds(&mut client, &["bytes", "create_again"])?;
    let failed = place.testbed.stats()?.refusals("node0.host", "injected")?;
    ensure!(failed > 0, "no bind has failed");
    Ok(())
}

fn secret(world: &World) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new(world)?;
    let file = |name: &str, text: &str| -> Result<PathBuf> {
        let path = place.testbed.path().join(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(path)
    };
    let (right, wrong) = (
        file("right", "a secret of the accelerator's site")?,
        file("wrong", "another secret of another site")?,
    );
    let option = right.display().to_string();
    let (mut service, address, _) = place.start_service(&["--secret-file", &option])?;
    let mut client = place.client("node0.host", &address, &["bytes"]);
    place.succeeds(client.env("NAAICE_SECRET_FILE", &right), &["bytes"])?;
    for (secret, expect) in [(Some(&wrong), "secret"), (None, "secret")] {
        let mut client = place.client("node0.host", &address, &["refused"]);
        if let Some(secret) = secret {
            client.env("NAAICE_SECRET_FILE", secret);
        }
        let (code, said) = Process::spawn(&mut client)?.end(FAILURE_LIMIT, &["refused after"])?;
        ensure!(code == Some(0) && said.contains(expect), "{said}");
    }
    // After a change of the file the old secret is valid too.
    let old = file("old", "a secret of the accelerator's site")?;
    file("right", "the next secret of the accelerator's site")?;
    service.signal(libc::SIGHUP)?;
    service.hear("a new secret from")?;
    for secret in [&right, &old] {
        let mut client = place.client("node0.host", &address, &["bytes"]);
        place.succeeds(client.env("NAAICE_SECRET_FILE", secret), &["bytes"])?;
    }
    Ok(())
}

/// `xgvmi doctor` reaches what is there, and names what is not.
fn doctor(world: &World) -> Result<()> {
    let place = Place::new(world)?;
    let (_server, verbs) = place.start_server()?;
    let (_service, dpu, _) = place.start_service(&[])?;
    let nobody = format!("dpu/127.0.0.1:{}", free_port()?);
    let spec = format!("{verbs}:1:1,{dpu}:1:1,{dpu}:2:2,{nobody}:1:1,10.99.9.9:1:1:1");
    let mut command = place.command("node0.host", world.built("xgvmi"));
    command.arg("doctor").env("NAA_SPEC", spec);
    // Without UCX and such it reports faults as well, so the exit code says nothing.
    let (_, said) = Process::spawn(&mut command)?.end(LIMIT, &["10.99.9.9:1, functions 1: "])?;
    for expect in [
        "OK   rdma_cm       /dev/infiniband/rdma_cm".to_owned(),
        format!("OK   accelerator   {verbs}, functions 1: there is an RDMA route"),
        format!("OK   accelerator   {dpu}, functions 1 2: the service listens"),
        format!("FIX  accelerator   {nobody}, functions 1: "),
        "FIX  accelerator   10.99.9.9:1, functions 1: ".to_owned(),
    ] {
        ensure!(said.contains(&expect), "no {expect:?} in\n{said}");
    }
    Ok(())
}

/// The original library's own programs against this library, in both roles. They print the first byte of each region
/// after 100 calls; regions 0, 1 and 3 are outputs.
fn original(world: &World) -> Result<Outcome> {
    const EXPECT: [&str; 4] = [
        "Parameter 0: first element: 100.",
        "Parameter 1: first element: 101.",
        "Parameter 2: first element: 2. Success? yes",
        "Parameter 3: first element: 103. Success? yes",
    ];
    let Some(built) = std::env::var_os(ORIGINAL).map(PathBuf::from) else {
        return Ok(Outcome::Skipped(format!(
            "{ORIGINAL} does not name the built programs of the NAAICE communication library"
        )));
    };
    let place = Place::new(world)?;
    let (_server, address) = place.start_server()?;
    let mut client = place.command("node0.host", built.join("naaice_client_ap2"));
    client
        .args(["4", "64 64 1000 70000"])
        .env("NAA_SPEC", format!("{address}:1:4"));
    let (code, said) = Process::spawn(&mut client)?.end(LIMIT, &EXPECT[3..])?;
    ensure!(
        code == Some(0) && EXPECT.iter().all(|line| said.contains(line)),
        "{said}"
    );

    // Its server listens on a fixed port.
    let mut server = Process::spawn(&mut place.command("node1.host", built.join("naaice_server")))?;
    let served = process::wait_until(LIMIT, || {
        place
            .succeeds(
                &mut place.client("node0.host", &format!("{NODE1_HOST}:12345"), &["calls"]),
                &["calls"],
            )
            .is_ok()
            || server.has_ended()
    });
    ensure!(served && !server.has_ended(), "{}", server.said());
    Ok(Outcome::Passed)
}
