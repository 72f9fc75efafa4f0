//! The offloaded alltoallv: ranks and service processes (SPs) on two emulated nodes, with the
//! project's own programs. The ranks verify every byte. Failures must end in one clear error on all
//! ranks and never in a hang.

use crate::evidence;
use crate::harness::Case;
use crate::process::{self, Collected, Group};
use crate::world::{LIMIT, Testbed, World, free_port};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time after which the state of all processes of a job is recorded for the report of a failure. It is shorter than the
/// time limits of the ranks, because a rank that gives up takes the cause with it.
const SLOW: Duration = Duration::from_secs(20);

/// The same for a job that has lost a rank before it met the others. They wait for it until their limit, 30 s.
const VERY_SLOW: Duration = Duration::from_secs(45);

/// Time limit for survivors to detect a failure. With a free core they need a fraction of a second.
const FAILURE_LIMIT: Duration = Duration::from_secs(40);

pub(crate) const NODES: u32 = 2;

/// Variable that names the directory of the SPs' status sockets.
const RUNTIME_DIRECTORY: &str = "XDG_RUNTIME_DIR";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        // So many SPs that gathers and scatters have a tree.
        Case::new("offload_stock", |world| bytes(world, "stock", 4, 3)),
        Case::new("offload_ksm", |world| bytes(world, "ksm", 2, 1)),
        Case::new("offload_xgvmi", |world| bytes(world, "xgvmi", 4, 2)),
        Case::new("offload_steady_state_makes_no_keys", steady_state),
        Case::new("offload_kept_buffers", kept_buffers),
        Case::new("offload_last_messages_of_a_job_arrive", last_messages),
        Case::new("offload_jobs_one_after_the_other_and_at_once", jobs),
        Case::new("offload_workers_under_one_daemon", workers),
        Case::new("offload_killed_worker_is_started_again", worker_again),
        Case::new("offload_node_whose_service_is_on_the_host", service_on_host),
        Case::new("offload_counts_that_disagree", counts_disagree),
        Case::new("offload_service_killed", |world| {
            killed(world, Victim::Service)
        }),
        Case::new("offload_service_stopped", |world| {
            killed(world, Victim::Stopped)
        }),
        Case::new("offload_service_hangs", |world| killed(world, Victim::Hung)),
        Case::new("offload_rank_killed", |world| killed(world, Victim::Rank)),
        Case::new("offload_service_missing", service_missing),
        Case::new("offload_wrong_size_scheme_and_version", disagreements),
        Case::new("offload_secret", secret),
    ]
}

/// SPs on both nodes, and the data to start ranks.
pub(crate) struct Farm<'a> {
    world: &'a World,
    pub(crate) testbed: Testbed<'a>,
    scheme: &'static str,
    /// SPs per node.
    pub(crate) services: Vec<Vec<Process>>,
}

impl<'a> Farm<'a> {
    pub(crate) fn new(world: &'a World, scheme: &'static str, per_node: u32) -> Result<Self> {
        Self::with(world, scheme, per_node, &[])
    }

    pub(crate) fn with(
        world: &'a World,
        scheme: &'static str,
        per_node: u32,
        options: &[&str],
    ) -> Result<Self> {
        Self::with_each(world, scheme, per_node, |_, command| {
            command.args(options);
        })
    }

    /// `vary` changes the arguments of a node's SPs.
    pub(crate) fn with_each(
        world: &'a World,
        scheme: &'static str,
        per_node: u32,
        vary: impl Fn(u32, &mut Command),
    ) -> Result<Self> {
        let mut farm = Self {
            world,
            testbed: Testbed::new(world)?,
            scheme,
            services: Vec::new(),
        };
        for node in 0..NODES {
            let mut services = Vec::new();
            for _ in 0..per_node {
                let mut command = farm.command(&format!("node{node}.dpu"), "xgvmi-sp");
                command.args(["--listen", "127.0.0.1:0"]);
                vary(node, &mut command);
                services.push(Process::spawn(&mut command)?);
            }
            farm.services.push(services);
        }
        for service in farm.services.iter_mut().flatten() {
            service.hear(" listens on ")?;
        }
        Ok(farm)
    }

    /// One of the project's programs, in this farm's scheme.
    pub(crate) fn command(&self, function: &str, program: &str) -> Command {
        let path: PathBuf = self.world.built(program);
        let mut command = self.testbed.ucx_command(function, &path.to_string_lossy());
        command.env("UCX_TLS", "rc_x,self");
        command.env("UCX_NET_DEVICES", "mlx5_0:1");
        command.env(RUNTIME_DIRECTORY, self.testbed.path());
        if self.scheme == "xgvmi" {
            let library: &Path = &self.world.built("libuct_ib_mlx5_xgvmi.so");
            command.env("LD_PRELOAD", library);
        }
        command
    }

    /// The addresses of a node's SPs.
    pub(crate) fn addresses(&self, node: u32) -> Result<String> {
        let mut addresses = Vec::new();
        for service in &self.services[node as usize] {
            let said = service.said();
            let lines = said
                .lines()
                .filter_map(|line| line.split_once(" listens on "));
            addresses.extend(lines.map(|(_, rest)| {
                let address = rest.split(',').next().unwrap_or_default();
                address.to_owned()
            }));
        }
        ensure!(!addresses.is_empty(), "no service of node {node} listens");
        Ok(addresses.join(","))
    }

    /// A job of `per_node` ranks on each node; `vary` changes the arguments of single ranks.
    pub(crate) fn job(
        &self,
        per_node: u32,
        options: &[&str],
        vary: impl Fn(u32, &mut Command),
    ) -> Result<Vec<Process>> {
        let addresses = (0..NODES).map(|node| self.addresses(node));
        let addresses = addresses.collect::<Result<Vec<_>>>()?;
        self.ranks(per_node, options, |rank, command| {
            command.args(["--sp", &addresses[(rank / per_node) as usize]]);
            vary(rank, command);
        })
    }

    /// A job whose options name a file with the addresses of the SPs.
    pub(crate) fn job_by_file(&self, per_node: u32, options: &[&str]) -> Result<Vec<Process>> {
        self.ranks(per_node, options, |_, _| ())
    }

    fn ranks(
        &self,
        per_node: u32,
        options: &[&str],
        vary: impl Fn(u32, &mut Command),
    ) -> Result<Vec<Process>> {
        let meet = format!("127.0.0.1:{}", free_port()?);
        let size = NODES * per_node;
        (0..size)
            .map(|rank| {
                let node = rank / per_node;
                let function = format!("node{node}.host");
                let mut command = self.command(&function, "xgvmi-offload-check");
                command.args(["--scheme", self.scheme, "--meet", &meet]);
                command.args(["--rank", &rank.to_string(), "--node", &format!("n{node}")]);
                // Few ranks use all SPs.
                command.args(["--ranks-per-sp", "1"]);
                command.args(options);
                vary(rank, &mut command);
                if !command.get_args().any(|argument| argument == "--size") {
                    command.args(["--size", &size.to_string()]);
                }
                Process::spawn(&mut command)
            })
            .collect()
    }

    /// As [`succeed`]. The error of a job that takes long also contains the state of the SPs and of the device.
    pub(crate) fn succeed(&self, ranks: Vec<Process>, limit: Duration) -> Result<u64> {
        succeed_beside(ranks, limit, || self.state())
    }

    /// All ranks end, with or without an error. The error of a rank that does not end contains the state of all processes.
    pub(crate) fn end(&self, mut ranks: Vec<Process>, limit: Duration) -> Result<()> {
        let late = state_after(VERY_SLOW, &mut ranks, || self.state());
        for rank in &mut ranks {
            rank.end(limit, &[""]).with_context(|| late.clone())?;
        }
        Ok(())
    }

    /// What the SPs do, their status, and the counters of the device, as text.
    fn state(&self) -> String {
        let ask = |command: &mut Command| {
            process::stdout(command, SLOW).unwrap_or_else(|error| format!("{error:#}\n"))
        };
        let mut text = evidence::of_machine();
        for (node, services) in (0..).zip(&self.services) {
            for service in services {
                text.push_str(&format!(
                    "a service of node {node} says: {}\n",
                    service.said()
                ));
                text.push_str(&service.state());
            }
            for address in self.addresses(node).unwrap_or_default().split(',') {
                let port = address.rsplit(':').next().unwrap_or_default();
                let mut command = Command::new(self.world.built("xgvmi-sp"));
                command.env(RUNTIME_DIRECTORY, self.testbed.path());
                command.args(["status", "--json", "--port", port]);
                text.push_str(&format!("status of {address}: {}", ask(&mut command)));
            }
        }
        text + &ask(self.testbed.emulator("stats").arg("--json"))
    }

    fn commands(&self, kind: &str) -> Result<u64> {
        let functions = ["node0.host", "node0.dpu", "node1.host", "node1.dpu"];
        let counts = functions.map(|function| self.testbed.stats()?.commands(function, kind));
        counts.into_iter().sum()
    }
}

/// A program that runs beside the others; killed when dropped.
pub(crate) struct Process {
    shown: String,
    pub(crate) group: Group,
    output: Collected,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        let (reader, writer) = std::io::pipe().context("pipe for a child's output")?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let group = Group::spawn(command);
        // The command holds write ends of the pipe.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self {
            shown: process::shown(command),
            group: group?,
            output: Collected::from(Some(reader)),
        })
    }

    pub(crate) fn said(&self) -> String {
        self.output.text()
    }

    /// Waits until the program has printed `text`.
    pub(crate) fn hear(&mut self, text: &str) -> Result<()> {
        let heard = process::wait_until(LIMIT, || {
            self.said().contains(text) || self.group.has_ended()
        });
        ensure!(
            heard && self.said().contains(text),
            "no '{text}' from `{}`:\n{}",
            self.shown,
            self.said()
        );
        Ok(())
    }

    /// Waits for its end and returns the exit code and its output. Fails unless the output contains
    /// one of `words`.
    pub(crate) fn end(&mut self, limit: Duration, words: &[&str]) -> Result<(Option<i32>, String)> {
        let (status, timed_out) = self.group.wait(limit)?;
        if timed_out {
            bail!("it hangs: `{}`\n{}", self.shown, self.said());
        }
        // The pipe may deliver the last lines after the process has ended.
        process::wait_until(LIMIT, || {
            let is_complete = self.output.is_complete();
            is_complete || words.iter().any(|word| self.said().contains(word))
        });
        Ok((status.code(), self.said()))
    }

    /// Waits for its end as a rank that succeeds. Returns the number of verified bytes.
    fn succeed(&mut self, limit: Duration) -> Result<u64> {
        let (code, said) = self.end(limit, &[" bytes verified"])?;
        ensure!(
            code == Some(0),
            "exit code {code:?}: `{}`\n{said}",
            self.shown
        );
        verified_bytes(&said)
    }

    /// What its threads do now, as text.
    fn state(&self) -> String {
        evidence::of_process(self.group.child.id())
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.group.has_ended()
    }

    pub(crate) fn signal(&self, signal: libc::c_int) -> Result<()> {
        self.group.signal(signal)
    }
}

/// All ranks succeed. Returns the number of verified bytes. An error contains the output of every rank: one that waits for
/// another does not know why that one has failed.
pub(crate) fn succeed(ranks: Vec<Process>) -> Result<u64> {
    succeed_beside(ranks, LIMIT, String::new)
}

/// As [`succeed`]. `others` describes other processes of the job if it takes long.
fn succeed_beside(
    mut ranks: Vec<Process>,
    limit: Duration,
    others: impl Fn() -> String,
) -> Result<u64> {
    let late = state_after(SLOW, &mut ranks, others);
    let mut verified = 0;
    for at in 0..ranks.len() {
        verified += ranks[at].succeed(limit).with_context(|| {
            let said = ranks.iter().enumerate();
            let said =
                said.map(|(rank, process)| format!("rank {rank} says: {}\n", process.said()));
            said.collect::<String>() + &late
        })?;
    }
    Ok(verified)
}

/// Waits for the end of all ranks. Returns an empty text, or after `limit` the state of the ranks and of the others.
fn state_after(limit: Duration, ranks: &mut [Process], others: impl Fn() -> String) -> String {
    if process::wait_until(limit, || ranks.iter_mut().all(Process::has_ended)) {
        return String::new();
    }
    let mut text = format!("after {} s:\n", limit.as_secs());
    for (rank, process) in ranks.iter().enumerate() {
        text.push_str(&format!("rank {rank}: {}", process.state()));
    }
    text + &others()
}

/// All ranks end with code 1 and an error that contains one of `expect`.
pub(crate) fn fail(ranks: Vec<Process>, expect: &[&str]) -> Result<()> {
    for mut rank in ranks {
        let (code, said) = rank.end(FAILURE_LIMIT, expect)?;
        ensure!(
            code == Some(1) && expect.iter().any(|text| said.contains(text)),
            "exit code {code:?}, expected one of {expect:?}: `{}`\n{said}",
            rank.shown
        );
    }
    Ok(())
}

fn verified_bytes(said: &str) -> Result<u64> {
    said.split_once(" bytes verified")
        .and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok())
        .with_context(|| format!("no verified bytes:\n{said}"))
}

/// Random counts with zeros, short and long blocks, on two communicators at once, some in place.
fn bytes(world: &World, scheme: &'static str, per_node: u32, services: u32) -> Result<()> {
    let farm = Farm::new(world, scheme, services)?;
    for (seed, block) in [(1, "100000"), (2, "3000"), (3, "700")] {
        let options = ["--rounds", "12", "--block", block, "--seed"];
        let seed: i32 = seed;
        let seed = seed.to_string();
        let options: Vec<&str> = options.into_iter().chain([seed.as_str()]).collect();
        let verified = succeed(farm.job(per_node, &options, |_, _| ())?)
            .with_context(|| format!("seed {seed}, blocks up to {block}"))?;
        ensure!(verified > 0, "no byte was moved");
    }
    Ok(())
}

/// With the library, temporary buffers in every round: forty rounds need exactly as many commands
/// as four. Keys are created and announced when a job begins, so their aliases exist as well.
fn steady_state(world: &World) -> Result<()> {
    const KINDS: [&str; 5] = [
        "create_mkey",
        "destroy_mkey",
        "allow_other_vhca_access",
        "create_alias",
        "destroy_alias",
    ];
    let count = |scheme, rounds: &str| -> Result<Vec<u64>> {
        let farm = Farm::new(world, scheme, 1)?;
        let options = [
            "--equal",
            "--block",
            "4096",
            "--world-only",
            "--rounds",
            rounds,
        ];
        succeed(farm.job(2, &options, |_, _| ())?)?;
        ensure!(
            farm.testbed.stats()?.executed("umr_bind")? >= rounds.parse::<u64>()? * 8,
            "the pool has bound nothing"
        );
        // The services drop the aliases of a job after its last rank has ended.
        let created = farm.commands("create_alias")?;
        let began = Instant::now();
        while farm.commands("destroy_alias")? < created && began.elapsed() < LIMIT {
            std::thread::yield_now();
        }
        KINDS.iter().map(|kind| farm.commands(kind)).collect()
    };
    let (few, many) = (count("xgvmi", "4")?, count("xgvmi", "40")?);
    ensure!(
        few == many,
        "{KINDS:?}: {few:?} in 4 rounds, {many:?} in 40"
    );
    // Connect and first call create no more keys and aliases than stock UCX does. More would delay the first call.
    let (ours, stock) = (count("xgvmi", "1")?, count("stock", "1")?);
    for ((kind, ours), stock) in KINDS.iter().zip(ours).zip(stock) {
        ensure!(
            stock > 0 && ours <= stock,
            "{ours} {kind} of four ranks that connect and call once, {stock} with stock UCX"
        );
    }
    Ok(())
}

/// Buffers that are registered once need no registration per call, in all schemes.
fn kept_buffers(world: &World) -> Result<()> {
    let farm = Farm::new(world, "stock", 1)?;
    let options = [
        "--equal",
        "--block",
        "20000",
        "--keep-buffers",
        "--rounds",
        "10",
    ];
    let ranks = farm.job(1, &options, |_, _| ())?;
    let verified = succeed(ranks)?;
    ensure!(verified == 2 * 10 * 2 * 20000, "{verified} bytes verified");
    let bound = farm.testbed.stats()?.executed("umr_bind")?;
    // Plus the registrations for the services' greetings.
    ensure!(bound == 6, "{bound} binds for three buffers of two ranks");
    // The services keep the imports as well: more calls look up no more aliases.
    let imports = |rounds: &str| -> Result<Vec<String>> {
        let farm = Farm::new(world, "xgvmi", 1)?;
        let options = ["--equal", "--keep-buffers", "--rounds", rounds];
        let mut ranks = farm.job(1, &options, |_, _| ())?;
        let said = ranks.iter_mut().map(|rank| {
            let (_, said) = rank.end(LIMIT, &[" bytes verified"])?;
            let (_, counts) = said.split_once(", aliases ").context("no counts")?;
            Ok(counts.lines().next().unwrap_or_default().to_owned())
        });
        said.collect()
    };
    let (few, many) = (imports("4")?, imports("40")?);
    ensure!(few == many, "{few:?} in 4 rounds, {many:?} in 40");
    Ok(())
}

/// The job of a service some of whose messages are slow ends while its last message to the other service is still in its queue.
/// The rank there waits for that message.
fn last_messages(world: &World) -> Result<()> {
    let farm = Farm::new(world, "stock", 1)?;
    let fault = |words: &[&str]| {
        let mut command = farm.testbed.emulator("fault");
        process::stdout(command.args(words), LIMIT)
    };
    // If all were slow, the job's last message to its own rank would be as late.
    for seed in 1..=8 {
        let rule = format!("node0.dpu request send chance 0.3 seed {seed} late 20ms");
        fault(&["add", &rule])?;
        let verified = succeed(farm.job(1, &["--equal", "--rounds", "3"], |_, _| ())?)?;
        ensure!(verified > 0, "nothing to verify");
        fault(&["clear"])?;
    }
    Ok(())
}

/// A daemon serves jobs in sequence and in parallel. A failed job does not affect it.
fn jobs(world: &World) -> Result<()> {
    let farm = Farm::new(world, "stock", 1)?;
    let short = ["--rounds", "5"];
    let (one, other) = (
        farm.job(1, &short, |_, _| ())?,
        farm.job(2, &short, |_, _| ())?,
    );
    succeed(one)?;
    succeed(other)?;
    let wrong = ["--rounds", "5", "--wrong-count-in", "3"];
    fail(farm.job(1, &wrong, |_, _| ())?, &["disagree"])?;
    succeed(farm.job(2, &short, |_, _| ())?)?;
    Ok(())
}

/// One daemon runs several services, and ends them on request.
fn workers(world: &World) -> Result<()> {
    let mut farm = Farm::with(world, "stock", 1, &["--workers", "2"])?;
    ensure!(farm.addresses(0)?.split(',').count() == 2, "two services");
    succeed(farm.job(2, &["--rounds", "5"], |_, _| ())?)?;
    for services in &mut farm.services {
        let daemon = &mut services[0];
        daemon.signal(libc::SIGTERM)?;
        let (code, said) = daemon.end(LIMIT, &["listens on"])?;
        ensure!(code == Some(0), "exit code {code:?}:\n{said}");
    }
    Ok(())
}

/// A worker is killed while a job runs on the worker beside it: the job goes on, and the killed worker serves the next one.
fn worker_again(world: &World) -> Result<()> {
    let farm = Farm::new(world, "stock", 1)?;
    let (first, second) = two_ports()?;
    let mut command = farm.command("node1.dpu", "xgvmi-sp");
    command.args(["--listen", &format!("127.0.0.1:{first}"), "--workers", "2"]);
    let mut daemon = Process::spawn(&mut command)?;
    daemon.hear(&format!("listens on 127.0.0.1:{second}"))?;
    let id = daemon.group.child.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
    let victim = children.split_whitespace().next().context("a service")?;
    let victim: i32 = victim.parse()?;

    let on = |services: String| -> Result<_> {
        let here = farm.addresses(0)?;
        Ok(move |rank: u32, command: &mut Command| {
            let services = if rank < 2 { &here } else { &services };
            command.args(["--sp", services]);
        })
    };
    let beside = on(format!("127.0.0.1:{second}"))?;
    let job = farm.ranks(2, &["--rounds", "60"], beside)?;
    daemon.hear(": ready")?;
    // SAFETY: kill(2) takes plain integers; the process is the daemon's, which has not waited for it.
    let killed = unsafe { libc::kill(victim, libc::SIGKILL) };
    ensure!(killed == 0, "kill {victim}");
    daemon.hear("worker 0 has ended")?;
    daemon.hear("it is started again")?;
    succeed(job)?;
    let both = on(format!("127.0.0.1:{first},127.0.0.1:{second}"))?;
    succeed(farm.ranks(2, &["--rounds", "5"], both)?)?;
    daemon.signal(libc::SIGTERM)?;
    let (code, said) = daemon.end(LIMIT, &["listens on"])?;
    ensure!(code == Some(0), "exit code {code:?}:\n{said}");
    Ok(())
}

/// Two free ports, one after the other.
fn two_ports() -> Result<(u16, u16)> {
    for _ in 0..100 {
        let first = free_port()?;
        let Some(second) = first.checked_add(1) else {
            continue;
        };
        if TcpListener::bind(("127.0.0.1", second)).is_ok() {
            return Ok((first, second));
        }
    }
    bail!("no two ports are free")
}

/// Node 1 has no DPU: its service runs on the host.
fn service_on_host(world: &World) -> Result<()> {
    for scheme in ["stock", "xgvmi"] {
        let mut farm = Farm::new(world, scheme, 1)?;
        let mut command = farm.command("node1.host", "xgvmi-sp");
        command.args(["--listen", "127.0.0.1:0"]);
        let mut service = Process::spawn(&mut command)?;
        service.hear(" listens on ")?;
        farm.services[1] = vec![service];
        succeed(farm.job(2, &["--rounds", "10"], |_, _| ())?)
            .with_context(|| format!("scheme {scheme}"))?;
    }
    Ok(())
}

fn counts_disagree(world: &World) -> Result<()> {
    let farm = Farm::new(world, "xgvmi", 2)?;
    // Every fifth round is in place and has no counts of its own. This round is not.
    let options = ["--rounds", "6", "--wrong-count-in", "3", "--world-only"];
    let expect = "the counts of call 3 on communicator 0 disagree: rank 0 sends ";
    fail(farm.job(2, &options, |_, _| ())?, &[expect])
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Service,
    Stopped,
    /// A service that hangs but still exists.
    Hung,
    Rank,
}

/// A process dies while the others are in a call that needs it.
fn killed(world: &World, victim: Victim) -> Result<()> {
    for scheme in ["stock", "xgvmi"] {
        // Long enough for a busy machine, and shorter than the default of twenty seconds.
        let limit = ["--silence-limit", "3s"];
        let limit: &[&str] = if victim == Victim::Hung { &limit } else { &[] };
        let mut farm = Farm::with(world, scheme, 2, limit)?;
        let options = [
            "--rounds",
            "8",
            "--stall-in",
            "5",
            "--offload-limit",
            "600s",
        ];
        let mut ranks = farm.job(2, &options, |_, _| ())?;
        for rank in &mut ranks {
            rank.hear("round 5")?;
        }
        let expect = match victim {
            Victim::Service => {
                // Not rank 0, which sleeps and would not notice.
                farm.services[1][0].signal(libc::SIGKILL)?;
                ["has ended or was killed", "is lost"]
            }
            Victim::Stopped => {
                farm.services[1][0].signal(libc::SIGINT)?;
                ["was stopped", "was stopped"]
            }
            Victim::Hung => {
                farm.services[1][0].signal(libc::SIGSTOP)?;
                ["nothing was heard of the service", "nothing was heard for"]
            }
            Victim::Rank => {
                ranks[0].group.kill();
                [
                    "rank 0 has closed its connection without a goodbye",
                    "rank 0 is lost",
                ]
            }
        };
        // The process is stopped until the others have ended, because they would also detect its
        // death.
        let _rank_0 = ranks.remove(0);
        fail(ranks, &expect).with_context(|| format!("scheme {scheme}"))?;
        for (node, services) in farm.services.iter_mut().enumerate() {
            for (index, service) in services.iter_mut().enumerate() {
                let was_victim =
                    !matches!(victim, Victim::Rank | Victim::Hung) && (node, index) == (1, 0);
                ensure!(
                    was_victim || !service.group.has_ended(),
                    "service {index} of node {node} has ended:\n{}",
                    service.said()
                );
            }
        }
        if victim == Victim::Hung {
            // It finds the job ended and serves the next one. Its log says how long it stood still.
            farm.services[1][0].signal(libc::SIGCONT)?;
            farm.services[1][0].hear("the main loop stood still for ")?;
            succeed(farm.job(2, &["--rounds", "2"], |_, _| ())?)
                .with_context(|| format!("after the pause, scheme {scheme}"))?;
        }
    }
    Ok(())
}

/// With a secret, only ranks with the secret are served.
fn secret(world: &World) -> Result<()> {
    let place = Testbed::new(world)?;
    let file = |name: &str, text: &str| -> Result<String> {
        let path = place.path().join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(path.display().to_string())
    };
    let one = file("one", "a secret of the test\n")?;
    let other = file("other", "another of its secrets\n")?;
    let with = |secret: &str| {
        let secret = secret.to_owned();
        move |_: u32, command: &mut Command| {
            command.args(["--secret-file", &secret]);
        }
    };
    let rounds = ["--rounds", "2"];
    // In scheme xgvmi the announced keys make a long first message.
    let farm = Farm::with_each(world, "xgvmi", 1, with(&one))?;
    succeed(farm.job(1, &rounds, with(&one))?)?;
    fail(
        farm.job(1, &rounds, |_, _| ())?,
        &["serves only owners of its secret: give --secret-file FILE"],
    )?;
    let expect = "its secret is not this service's";
    fail(farm.job(1, &rounds, with(&other))?, &[expect])?;
    succeed(farm.job(1, &rounds, with(&one))?)?;

    // Services with different secrets, each with a rank of the same secret.
    let each = |node: u32, command: &mut Command| {
        command.args(["--secret-file", if node == 0 { &one } else { &other }]);
    };
    let farm = Farm::with_each(world, "stock", 1, each)?;
    // The rank of the refused service knows the reason. The other one only waits.
    let limit = ["--rounds", "2", "--connect-limit", "5s"];
    fail(farm.job(1, &limit, each)?, &[expect])?;

    let farm = Farm::new(world, "stock", 1)?;
    let expect = "it has a secret, and this service none: give --secret-file";
    fail(farm.job(1, &rounds, with(&one))?, &[expect])?;

    // A service that listens beyond this machine needs a secret, or an explicit option to run
    // without one.
    let started = |options: &[&str], expect: &str| -> Result<()> {
        let mut command = farm.command("node0.dpu", "xgvmi-sp");
        command.args(["--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:1"]);
        command.args(options);
        let service = Process::spawn(&mut command)?;
        let heard = process::wait_until(LIMIT, || service.said().contains(expect));
        ensure!(heard, "no '{expect}': {}", service.said());
        Ok(())
    };
    started(
        &[],
        "would serve everybody who reaches it: give --secret-file",
    )?;
    started(
        &["--insecure"],
        "warning: --insecure: whoever reaches 0.0.0.0:",
    )?;
    started(&["--secret-file", &one], " listens on ")?;
    Ok(())
}

/// One rank's SP is absent: all ranks report which one, and whose.
fn service_missing(world: &World) -> Result<()> {
    let farm = Farm::new(world, "stock", 1)?;
    let nobody = format!("127.0.0.1:{}", free_port()?);
    let meet = format!("127.0.0.1:{}", free_port()?);
    let mut ranks = Vec::new();
    for (rank, service) in [(0, farm.addresses(0)?), (1, nobody.clone())] {
        let mut command = farm.command(&format!("node{rank}.host"), "xgvmi-offload-check");
        command.args(["--meet", &meet, "--size", "2", "--absent-limit", "1s"]);
        command.args(["--rank", &rank.to_string(), "--sp", &service]);
        ranks.push(Process::spawn(&mut command)?);
    }
    fail(
        ranks,
        &[&format!("rank 1: cannot reach the service at {nobody}")],
    )
}

/// A rank with other options than the rest is named.
fn disagreements(world: &World) -> Result<()> {
    let farm = Farm::with(world, "stock", 1, &["--scheme", "stock"])?;
    let size = |rank: u32, command: &mut Command| {
        if rank == 1 {
            command.args(["--size", "3"]);
        }
    };
    fail(
        farm.job(1, &[], size)?,
        &["a rank 1 of 3 has come", "rank 0 has not answered"],
    )?;
    let mut ranks = Vec::new();
    let meet = format!("127.0.0.1:{}", free_port()?);
    for rank in 0..2 {
        let mut command = farm.command(&format!("node{rank}.host"), "xgvmi-offload-check");
        command.args(["--meet", &meet, "--size", "2", "--scheme", "ksm"]);
        command.args(["--rank", &rank.to_string(), "--sp", &farm.addresses(rank)?]);
        ranks.push(Process::spawn(&mut command)?);
    }
    fail(ranks, &["its scheme is ksm, and this service's stock"])?;

    // A program of another version: magic, protocol 99, a length.
    let mut stream = TcpStream::connect(farm.addresses(0)?)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(&[b"xgsp".as_slice(), &99u32.to_le_bytes(), &[0; 4]].concat())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    ensure!(
        answer.contains("protocol version is 99"),
        "the service answers {answer:?}"
    );
    Ok(())
}
