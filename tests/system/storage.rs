//! Block storage through a DPU: `xgvmi-blk service` on the DPU, three targets, and an initiator on its host that verifies
//! every byte. Failures must end in a clear error and never in wrong data.

use crate::faults::fault;
use crate::harness::Case;
use crate::offload::Process;
use crate::process;
use crate::world::{LIMIT, Testbed, World, free_port};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

pub(crate) const MIB: u64 = 1 << 20;
/// Kills of the service. The place between two commits is random.
const KILLS: u64 = 200;
/// Commands that create or destroy keys and aliases.
const COMMANDS: [(&str, &str); 5] = [
    ("node0.host", "create_mkey"),
    ("node0.host", "allow_other_vhca_access"),
    ("node0.host", "destroy_mkey"),
    ("node0.dpu", "create_alias"),
    ("node0.dpu", "destroy_alias"),
];

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("storage_bytes_copy", |w| bytes_verified(w, "copy", &[])),
        Case::new("storage_bytes_ksm", |w| bytes_verified(w, "ksm", &[])),
        Case::new("storage_bytes_stock", |w| {
            bytes_verified(w, "stock", &["--stock-keys"])
        }),
        Case::new("storage_stock_keys_are_refused", stock_keys_refused),
        Case::new("storage_bytes_xgvmi", |w| bytes_verified(w, "xgvmi", &[])),
        Case::new("storage_bytes_announced", |w| {
            bytes_verified(w, "announced", &[])
        }),
        Case::new("storage_bytes_usual", |w| bytes_verified(w, "usual", &[])),
        Case::new("storage_bytes_without_the_dma_engine", |w| {
            bytes_verified(w, "announced", &["--rdma"])
        }),
        Case::new("storage_transfers_make_no_keys", steady_state),
        Case::new("storage_service_killed_between_commits", killed),
        Case::new("storage_service_returns", service_returns),
        Case::new("storage_target_lost_and_back", |w| target_lost(w, By::Tcp)),
        Case::new("storage_rdma_target_lost_and_back", |w| {
            target_lost(w, By::Rdma)
        }),
        Case::new("storage_bind_fails", bind_fails),
        Case::new("storage_no_keys", no_keys),
        Case::new("storage_memory_unmapped_under_a_transfer", unmapped),
        Case::new("storage_initiator_killed", initiator_killed),
        Case::new("storage_secret", secret),
    ]
}

/// How a volume reaches targets in processes of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Tcp,
    /// The targets are on other functions than the service, two of them on another machine.
    Rdma,
}

/// Functions of the targets that are reached by RDMA.
const FUNCTIONS: [&str; 3] = ["node1.dpu", "node1.host", "node0.host"];

/// A cluster with a volume.
pub(crate) struct Place<'a> {
    pub(crate) world: &'a World,
    pub(crate) testbed: Testbed<'a>,
    pub(crate) files: [PathBuf; 3],
    pub(crate) port: u16,
}

impl<'a> Place<'a> {
    pub(crate) fn new(world: &'a World, size: u64, block: u32) -> Result<Self> {
        Self::on(world, Testbed::new(world)?, size, block)
    }

    pub(crate) fn on(
        world: &'a World,
        testbed: Testbed<'a>,
        size: u64,
        block: u32,
    ) -> Result<Self> {
        let files = ["a", "b", "c"].map(|name| testbed.path().join(name));
        let mut command = Command::new(world.built("xgvmi-blk"));
        command.arg("create").args(&files);
        command.args(["--size", &size.to_string()]);
        command.args(["--block-size", &block.to_string()]);
        process::stdout(&mut command, LIMIT)?;
        Ok(Self {
            world,
            testbed,
            files,
            port: free_port()?,
        })
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.files.iter();
        names.map(|file| file.display().to_string()).collect()
    }

    /// A target in a process of its own.
    pub(crate) fn target(&self, by: By, index: usize, port: u16) -> Result<Process> {
        let program = self.world.built("xgvmi-blk");
        let mut command = match by {
            By::Tcp => Command::new(program),
            By::Rdma => self.testbed.command(FUNCTIONS[index], program),
        };
        command.arg("target").arg(&self.files[index]);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        if by == By::Rdma {
            command.arg("--rdma");
        }
        let mut target = Process::spawn(&mut command)?;
        target.hear(" serves ")?;
        Ok(target)
    }

    /// The service on node0.dpu with these targets.
    pub(crate) fn service(&self, targets: &[String], options: &[&str]) -> Result<Process> {
        let mut command = self
            .testbed
            .command("node0.dpu", self.world.built("xgvmi-blk"));
        command.arg("service").args(targets).args(options);
        command.args(["--listen", &self.address()]);
        let mut service = Process::spawn(&mut command)?;
        service.hear(" serves volume")?;
        Ok(service)
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// An initiator on node0.host.
    pub(crate) fn initiator(&self, scheme: &str) -> Result<Initiator> {
        self.initiator_with(scheme, None)
    }

    fn initiator_with(&self, scheme: &str, fault: Option<&str>) -> Result<Initiator> {
        let mut command = self
            .testbed
            .command("node0.host", self.world.built("xgvmi-testbed"));
        command.args(["storage-client", scheme, &self.address()]);
        if scheme == "stock" {
            command
                .arg("--libucp")
                .arg(self.world.ucx_lib.join("libucp.so.0"));
        }
        if let Some(fault) = fault {
            command.env("BFEMU_FAULTS", fault);
        }
        Initiator::start(&mut command)
    }

    /// Numbers of [`COMMANDS`].
    fn commands(&self) -> Result<Vec<u64>> {
        let commands = COMMANDS.iter();
        commands
            .map(|(function, kind)| self.testbed.stats()?.commands(function, kind))
            .collect()
    }

    /// The report of a scrub, when nobody else uses the targets.
    pub(crate) fn scrub(&self) -> Result<Value> {
        let mut command = Command::new(self.world.built("xgvmi-blk"));
        command.arg("scrub").args(&self.files);
        Ok(serde_json::from_str(&process::stdout(
            &mut command,
            LIMIT,
        )?)?)
    }
}

/// A client with pipes. It is killed when dropped.
pub(crate) struct Initiator {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Initiator {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (sender, lines) = channel();
        let stdout = child.stdout.take().context("a pipe was requested")?;
        let stderr = child.stderr.take().context("a pipe was requested")?;
        for pipe in [
            Box::new(stdout) as Box<dyn std::io::Read + Send>,
            Box::new(stderr),
        ] {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let lines = BufReader::new(pipe).lines().map_while(Result::ok);
                // The receiver may be gone.
                lines.for_each(|line| drop(sender.send(line)));
            });
        }
        let stdin = child.stdin.take().context("a pipe was requested")?;
        let initiator = Self {
            child,
            stdin,
            lines,
        };
        let line = initiator.line()?;
        ensure!(line.starts_with("connected to "), "the client says: {line}");
        Ok(initiator)
    }

    fn line(&self) -> Result<String> {
        self.lines
            .recv_timeout(LIMIT)
            .context("the client says nothing")
    }

    pub(crate) fn send(&mut self, batch: &Value) -> Result<()> {
        writeln!(self.stdin, "{batch}")?;
        Ok(self.stdin.flush()?)
    }

    pub(crate) fn answer(&self) -> Result<Value> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("the client says: {line}"))
    }

    pub(crate) fn batch(&mut self, batch: &Value) -> Result<Value> {
        self.send(batch)?;
        self.answer()
    }

    /// A batch without a failure and without a wrong byte. Returns the number of verified bytes.
    pub(crate) fn good(&mut self, batch: &Value) -> Result<u64> {
        let done = self.batch(batch)?;
        ensure!(done["failed"] == 0 && done["wrong"] == 0, "{batch}: {done}");
        done["verified"].as_u64().context("a number")
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.kill();
    }
}

/// Names of targets on this machine.
pub(crate) fn addresses(by: By, ports: [u16; 3]) -> [String; 3] {
    let scheme = match by {
        By::Tcp => "tcp",
        By::Rdma => "rdma",
    };
    ports.map(|port| format!("{scheme}:127.0.0.1:{port}"))
}

pub(crate) fn span(kind: &str, offset: u64, length: u64, (request, seed): (u64, u64)) -> Value {
    json!({kind: {
        "offset": offset, "length": length, "request": request, "threads": 3, "seed": seed, "kind": "Mixed",
    }})
}

/// Requests of several sizes from several threads, parts of blocks, fresh memory, trims; then again by a second process,
/// and after the return of the service.
fn bytes_verified(world: &World, scheme: &str, options: &[&str]) -> Result<()> {
    let place = Place::new(world, 32 * MIB, 4096)?;
    let mut service = place.service(&place.names(), options)?;
    let by = if options.contains(&"--rdma") {
        "by RDMA"
    } else {
        "by DMA"
    };
    ensure!(service.said().contains(by), "{}", service.said());
    let mut initiator = place.initiator(scheme)?;
    let mut verified = 0;
    for (seed, request) in [(1, 4096), (2, 512 * 7), (3, MIB), (4, 5 * MIB + 512)] {
        let length = if request < 65536 { MIB } else { 12 * MIB };
        for kind in ["Write", "Read"] {
            verified += initiator.good(&span(kind, 512, length, (request, seed)))?;
        }
    }
    for size in [512, 4096, 65536, MIB] {
        let batch = json!({"Fresh": {"size": size, "count": 6, "seed": 9, "kind": "Half"}});
        verified += initiator.good(&batch)?;
    }
    ensure!(verified > 26 * MIB, "{verified} bytes are too few");
    for kind in ["Write", "Read"] {
        initiator.good(&span(kind, 8 * MIB, 8 * MIB, (MIB, 7)))?;
    }
    initiator.good(&json!({"Trim": {"offset": 0, "length": MIB}}))?;
    initiator.good(&json!("Flush"))?;
    let mut second = place.initiator(scheme)?;
    second.good(&span("Read", 8 * MIB, 8 * MIB, (65536, 7)))?;
    drop((initiator, second));
    service.signal(libc::SIGKILL)?;
    service.end(LIMIT, &[" serves volume "])?;
    let report = place.scrub()?;
    ensure!(
        report["bad_halves"] == 0 && report["lost_blocks"] == 0,
        "{report}"
    );
    let _service = place.service(&place.names(), options)?;
    let mut third = place.initiator(scheme)?;
    third.good(&span("Read", 8 * MIB, 8 * MIB, (MIB, 7)))?;
    Ok(())
}

/// Every process knows the access key of stock UCX: a service takes such keys only if it is told to.
fn stock_keys_refused(world: &World) -> Result<()> {
    let place = Place::new(world, 8 * MIB, 4096)?;
    let _service = place.service(&place.names(), &[])?;
    let Err(error) = place.initiator("stock") else {
        anyhow::bail!("an initiator with public keys is served");
    };
    ensure!(format!("{error:#}").contains("--stock-keys"), "{error:#}");
    Ok(())
}

/// With announced keys already the first transfer issues no key and no alias command; without, the warm ones do not.
fn steady_state(world: &World) -> Result<()> {
    let fresh =
        |count: u32| json!({"Fresh": {"size": 65536, "count": count, "seed": 1, "kind": "Half"}});
    for (scheme, warm_up) in [
        ("announced", 0),
        ("xgvmi", 20),
        ("stock", 20),
        ("copy", 0),
        ("usual", 0),
    ] {
        let place = Place::new(world, 8 * MIB, 4096)?;
        let _service = place.service(&place.names(), &["--stock-keys"])?;
        let mut initiator = place.initiator(scheme)?;
        initiator.good(&json!("Flush"))?;
        if warm_up > 0 {
            initiator.good(&fresh(warm_up))?;
        } else if scheme == "copy" {
            // The alias of the one region.
            initiator.good(&fresh(1))?;
        }
        let before = place.commands()?;
        ensure!(before[0] > 0, "{scheme}: a key was created");
        initiator.good(&fresh(40))?;
        let after = place.commands()?;
        ensure!(
            before == after,
            "{scheme}: 80 transfers: {before:?}, then {after:?} of {COMMANDS:?}"
        );
    }
    Ok(())
}

/// The service is killed again and again while the initiator writes. Each block is old or new.
fn killed(world: &World) -> Result<()> {
    let place = Place::new(world, 65536, 1024)?;
    let mut service = place.service(&place.names(), &[])?;
    let mut initiator = place.initiator("torture")?;
    let mut written = 0;
    let mut round = 0;
    // Under load and with a device that holds completions, little is written before a kill: then there are more of them.
    while round < KILLS || written <= KILLS * 512 && round < 3 * KILLS {
        initiator.send(&json!("Torture"))?;
        // The delay only chooses where the process is killed. Nothing depends on its length.
        std::thread::park_timeout(Duration::from_micros(round * 7919 % 15_000));
        service.signal(libc::SIGKILL)?;
        let done = initiator.answer()?;
        ensure!(done["failed"] == 1, "kill {round}: {done}");
        written += done["verified"].as_u64().unwrap_or(0);
        service.end(LIMIT, &[" serves volume "])?;
        service = place.service(&place.names(), &[])?;
        initiator
            .good(&json!("Check"))
            .with_context(|| format!("kill {round}"))?;
        round += 1;
    }
    ensure!(
        written > KILLS * 512,
        "{written} bytes were written between {round} kills"
    );
    for absent in 0..3 {
        service.signal(libc::SIGKILL)?;
        service.end(LIMIT, &[" serves volume "])?;
        let mut two = place.names();
        two.remove(absent);
        service = place.service(&two, &[])?;
        initiator
            .good(&json!("Check"))
            .with_context(|| format!("without target {absent}"))?;
    }
    service.signal(libc::SIGKILL)?;
    service.end(LIMIT, &[" serves volume "])?;
    let report = place.scrub()?;
    ensure!(report["lost_blocks"] == 0, "{report}");
    Ok(())
}

/// The initiator's calls wait for a service that returns, and repeat what had no answer.
fn service_returns(world: &World) -> Result<()> {
    let place = Place::new(world, 16 * MIB, 4096)?;
    let mut service = place.service(&place.names(), &[])?;
    let mut initiator = place.initiator("announced")?;
    let write = span("Write", 0, 16 * MIB, (65536, 3));
    initiator.send(&write)?;
    service.signal(libc::SIGKILL)?;
    service.end(LIMIT, &[" serves volume "])?;
    let _service = place.service(&place.names(), &[])?;
    let done = initiator.answer()?;
    ensure!(done["failed"] == 0, "{done}");
    initiator.good(&span("Read", 0, 16 * MIB, (MIB, 3)))?;
    Ok(())
}

/// A target process is killed under writes, and returns. Then another one is killed.
fn target_lost(world: &World, by: By) -> Result<()> {
    let place = Place::new(world, 16 * MIB, 4096)?;
    let ports = [free_port()?, free_port()?, free_port()?];
    let target = |index: usize| place.target(by, index, ports[index]);
    let mut targets = [target(0)?, target(1)?, target(2)?];
    let mut service = place.service(&addresses(by, ports), &[])?;
    let mut initiator = place.initiator("announced")?;
    for lost in 0..3 {
        let seed = lost as u64;
        initiator.send(&span("Write", 0, 16 * MIB, (65536, seed)))?;
        targets[lost].signal(libc::SIGKILL)?;
        targets[lost].end(LIMIT, &[" serves "])?;
        let done = initiator.answer()?;
        ensure!(done["failed"] == 0, "target {lost} lost: {done}");
        initiator.good(&span("Read", 0, 16 * MIB, (MIB, seed)))?;
        targets[lost] = target(lost)?;
        let role = ["data_1", "data_2", "data_p"][lost];
        service.hear(&format!("{role} is complete"))?;
    }
    initiator.good(&span("Read", 0, 16 * MIB, (MIB, 2)))?;
    ensure!(
        !service.said().contains("travel over TCP"),
        "{}",
        service.said()
    );
    Ok(())
}

/// One bind in five fails: transfers still work, because the library binds again. With several threads all attempts of
/// one transfer may be each a fifth one: then this transfer fails with the reason.
fn bind_fails(world: &World) -> Result<()> {
    let place = Place::new(world, 8 * MIB, 4096)?;
    let _service = place.service(&place.names(), &[])?;
    let fault = "node0.host request umr_bind every 5 syndrome MW_BIND_ERR";
    let mut initiator = place.initiator_with("announced", Some(fault))?;
    let done = initiator.batch(&span("Write", 0, 4 * MIB, (65536, 2)))?;
    let reason = done["reason"].as_str().unwrap_or_default();
    ensure!(
        done["failed"] == 0 || reason.contains("cannot bind"),
        "{done}"
    );
    for kind in ["Write", "Read"] {
        let mut order = span(kind, 0, 4 * MIB, (65536, 1));
        order[kind]["threads"] = json!(1);
        initiator.good(&order)?;
    }
    let failed = place.testbed.stats()?.refusals("node0.host", "injected")?;
    ensure!(failed > 0, "no bind has failed");
    Ok(())
}

/// The device creates no key: transfers fail with the reason, and work again afterwards.
fn no_keys(world: &World) -> Result<()> {
    let place = Place::new(world, 8 * MIB, 4096)?;
    let _service = place.service(&place.names(), &[])?;
    let mut initiator = place.initiator("xgvmi")?;
    let rule = "node0.host command create_mkey status LIMITS_EXCEEDED";
    fault(&place.testbed, &["add", rule])?;
    let done = initiator.batch(&span("Write", 0, 65536, (65536, 1)))?;
    let reason = done["reason"].as_str().unwrap_or_default();
    ensure!(
        done["failed"] == 1 && reason.contains("keys of the host's memory"),
        "{done}"
    );
    fault(&place.testbed, &["clear"])?;
    // The pool does not ask the device again at once.
    let mut done = Value::Null;
    process::wait_until(LIMIT, || {
        done = initiator
            .batch(&span("Write", 0, 65536, (65536, 1)))
            .unwrap_or(Value::Null);
        done["failed"] == 0
    });
    ensure!(done["failed"] == 0, "{done}");
    for kind in ["Write", "Read"] {
        initiator.good(&span(kind, 0, MIB, (65536, 1)))?;
    }
    Ok(())
}

/// Memory that is unmapped under a transfer costs this transfer at most.
fn unmapped(world: &World) -> Result<()> {
    let place = Place::new(world, 8 * MIB, 4096)?;
    let _service = place.service(&place.names(), &[])?;
    let mut initiator = place.initiator("announced")?;
    initiator.good(&span("Write", 4 * MIB, 4 * MIB, (MIB, 1)))?;
    let done = initiator.batch(&json!({"Unmap": {"size": MIB, "count": 10}}))?;
    let reason = done["reason"].as_str().unwrap_or_default();
    ensure!(
        done["failed"] == 0 || reason.contains("cannot access the host's memory"),
        "{done}"
    );
    for (kind, offset, seed) in [("Read", 4 * MIB, 1), ("Write", 0, 2), ("Read", 0, 2)] {
        initiator.good(&span(kind, offset, 4 * MIB, (MIB, seed)))?;
    }
    Ok(())
}

/// An initiator dies under its transfers: the service ends its aliases and serves the next one.
fn initiator_killed(world: &World) -> Result<()> {
    let place = Place::new(world, 16 * MIB, 4096)?;
    let _service = place.service(&place.names(), &[])?;
    for scheme in ["announced", "ksm", "copy"] {
        let mut initiator = place.initiator(scheme)?;
        initiator.send(&span("Write", 0, 16 * MIB, (65536, 1)))?;
        initiator.kill()?;
        let ended = process::wait_until(LIMIT, || {
            place.testbed.stats().is_ok_and(|stats| {
                let count = |kind| stats.commands("node0.dpu", kind).unwrap_or(0);
                count("create_alias") == count("destroy_alias")
            })
        });
        ensure!(ended, "{scheme}: aliases of a dead initiator remain");
    }
    let mut next = place.initiator("announced")?;
    for kind in ["Write", "Read"] {
        next.good(&span(kind, 0, 16 * MIB, (MIB, 2)))?;
    }
    Ok(())
}

/// Without the secret an initiator is refused, and a service beyond loopback does not start.
fn secret(world: &World) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new(world, 8 * MIB, 4096)?;
    let file = place.testbed.path().join("secret");
    std::fs::write(&file, "a secret of the volume's site")?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
    let option = file.display().to_string();
    let _service = place.service(&place.names(), &["--initiator-secret-file", &option])?;
    let Err(error) = place.initiator("announced") else {
        anyhow::bail!("an initiator without the secret is served");
    };
    ensure!(format!("{error:#}").contains("secret"), "{error:#}");
    let mut command = place.testbed.command("node0.dpu", world.built("xgvmi-blk"));
    command
        .arg("service")
        .args(place.names())
        .args(["--listen", "0.0.0.0:0"]);
    let (code, said) = Process::spawn(&mut command)?.end(LIMIT, &["secret"])?;
    ensure!(code == Some(1) && said.contains("secret"), "{said}");
    Ok(())
}
