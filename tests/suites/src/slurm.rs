//! Slurm of the distribution with two nodes on this machine: `salloc` and `srun` start ranks of MPICH by PMI-2, `salloc` and
//! `mpirun` those of Open MPI, and a prolog starts the service processes that carry out their collectives.

use super::device::Testbed;
use super::ucc::job::{Launcher, RANKS, Site, Variable, device, variable};
use super::{Case, Outcome, World};
use anyhow::{Context, Result, ensure};
use dev_setup::{self as setup, tree};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::place::Place;
use testbed::port::free as free_port;
use testbed::process::{self, Running};

/// Bound of a hang, for one job or for the start of the daemons.
const LIMIT: Duration = Duration::from_secs(180);
/// Legal programs with blocking collectives, whose bytes are compared.
const PROGRAMS: [&str; 3] = ["memory-with-gaps", "in-place", "empty"];
/// What the launcher tells a rank.
const OF_LAUNCHER: [&str; 4] = ["PMI_FD", "PMI_JOBID", "PMI_RANK", "PMI_SIZE"];

const TASKS: &str = "srun: tasks on two nodes";
const OFFLOADED: &str = "salloc and srun: collectives on the DPUs, with services of a prolog";
const OPEN_MPI: &str = "salloc and mpirun: collectives of Open MPI on the DPUs";
/// What salloc tells mpirun.
const OF_SALLOC: [&str; 8] = [
    "SLURM_JOBID",
    "SLURM_JOB_ID",
    "SLURM_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_TASKS_PER_NODE",
    "SLURM_JOB_CPUS_PER_NODE",
];

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    if world.wants(TASKS) {
        cases.push(Case::of(TASKS, tasks(world)));
    }
    type Test = fn(&Site<'_>) -> Result<()>;
    let tests: [(&str, Test); 2] = [(OFFLOADED, offloaded), (OPEN_MPI, open_mpi)];
    for (name, test) in tests.into_iter().filter(|(name, _)| world.wants(name)) {
        let site = tree::ucc().and_then(|tree| {
            let place = Place::new(&tree.root, &world.dir, &world.env.cache)?;
            Site::new(world, tree, place)
        });
        let may = name != OPEN_MPI || fs::metadata("/proc/self")?.uid() == 0;
        let site = site.and_then(|site| may.then_some(site).context("not root"));
        cases.push(match site {
            Ok(site) => Case::of(name, test(&site)),
            Err(error) => Case {
                name: name.to_owned(),
                outcome: Outcome::Skipped(format!("{error:#}")),
            },
        });
    }
    Ok(cases)
}

/// The daemons, with the nodes `n0` and `n1`.
struct Slurm {
    tools: setup::Judges,
    dir: PathBuf,
    daemons: Vec<Running>,
}

impl Slurm {
    /// `dir` has the prolog and the epilog. With `is_apart` each node has a host name, which requires privileges.
    fn start(dir: &Path, is_apart: bool) -> Result<Self> {
        let mut slurm = Self {
            tools: setup::slurm()?,
            dir: dir.to_owned(),
            daemons: Vec::new(),
        };
        fs::create_dir(dir.join("slurm")).context("a directory")?;
        let word = |program: &str, option: &str| {
            let said = process::stdout(Command::new(program).arg(option), LIMIT)?;
            anyhow::Ok(said.trim().to_owned())
        };
        let (host, user) = (word("hostname", "-s")?, word("id", "-un")?);
        let sbin = slurm.tools.root.join("usr/sbin");
        let key = dir.join("munge.key");
        let seed = format!("{:?}{}", std::time::SystemTime::now(), std::process::id());
        fs::write(&key, seed.repeat(8))?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let mut munged = slurm.command(sbin.join("munged"));
        munged.args(["--foreground", "--force", "--num-threads=1"]);
        for (option, file) in [
            ("key-file", "munge.key"),
            ("socket", "munge.socket"),
            ("pid-file", "munge.pid"),
            ("log-file", "munge.log"),
            ("seed-file", "munge.seed"),
        ] {
            munged.arg(format!("--{option}={}", dir.join(file).display()));
        }
        let socket = dir.join("munge.socket");
        let munged = Running::up(&mut munged, LIMIT, |_| socket.exists())?;
        slurm.daemons.push(munged);
        let ports = [free_port()?, free_port()?, free_port()?];
        let plugins = slurm.tools.library("slurm-wlm")?;
        let hosts = match is_apart {
            true => ["n0", "n1"],
            false => [host.as_str(); 2],
        };
        let text = config(dir, &plugins, (&host, hosts, &user), ports);
        fs::write(dir.join("slurm.conf"), text)?;
        let mut controller = slurm.command(sbin.join("slurmctld-wlm"));
        slurm.daemons.push(Running::spawn(controller.arg("-D"))?);
        for node in ["n0", "n1"] {
            let mut daemon = slurm.command(match is_apart {
                true => PathBuf::from("unshare"),
                false => sbin.join("slurmd-wlm"),
            });
            if is_apart {
                daemon.args(["--uts", "sh", "-c", "hostname $0; exec \"$@\"", node]);
                daemon.arg(sbin.join("slurmd-wlm"));
            }
            daemon
                .args(["-D", "-N", node, "-d"])
                .arg(sbin.join("slurmstepd-wlm"));
            slurm.daemons.push(Running::spawn(&mut daemon)?);
        }
        let states = || {
            let mut ask = slurm.command(slurm.tools.bin.join("sinfo"));
            process::stdout(ask.args(["-h", "-N", "-o", "%T"]), LIMIT).unwrap_or_default()
        };
        let ready = process::wait_until(LIMIT, || states() == "idle\nidle\n");
        ensure!(
            ready,
            "the nodes are not idle: {}\n{}",
            states(),
            slurm.said()
        );
        Ok(slurm)
    }

    /// A program of Slurm with its configuration.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        let libraries: Vec<String> = self
            .tools
            .libraries
            .iter()
            .map(|dir| dir.display().to_string())
            .collect();
        command.env("LD_LIBRARY_PATH", libraries.join(":"));
        command.env("SLURM_CONF", self.dir.join("slurm.conf"));
        command
    }

    /// Output of the daemons.
    fn said(&self) -> String {
        let all: Vec<String> = self.daemons.iter().map(Running::said).collect();
        all.join("\n")
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // Services whose epilog has not run. They lead their sessions.
        for node in ["n0", "n1"] {
            let file = self.dir.join(format!("service.{node}.pid"));
            if let Ok(pid) = fs::read_to_string(file) {
                let _ = process::run(Command::new("kill").args(["-9", pid.trim()]), LIMIT);
            }
        }
    }
}

/// The configuration. Nodes have more processors than the machine.
fn config(
    dir: &Path,
    plugins: &Path,
    (host, hosts, user): (&str, [&str; 2], &str),
    ports: [u16; 3],
) -> String {
    let [one, other] = hosts;
    let [controller, first, second] = ports;
    let (dir, plugins) = (dir.display(), plugins.display());
    format!(
        "ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CryptoType=crypto/munge
PluginDir={plugins}
StateSaveLocation={dir}/slurm
SlurmctldPidFile={dir}/controller.pid
SlurmdPidFile={dir}/%n.pid
SlurmdSpoolDir={dir}/spool.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=pmi2
ReturnToService=2
SlurmdParameters=config_overrides
Prolog={dir}/prolog
Epilog={dir}/epilog
PrologFlags=Alloc
NodeName=n0 NodeHostname={one} NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=100
NodeName=n1 NodeHostname={other} NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=100
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"
    )
}

/// Writes a script that the shell executes.
fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{text}")).with_context(|| path.display().to_string())?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn tasks(world: &World) -> Result<()> {
    // Its directory takes sockets of short names.
    let testbed = Testbed::new(world)?;
    let dir = testbed.path();
    script(
        &dir.join("prolog"),
        &format!("echo up >> {}/seen\n", dir.display()),
    )?;
    script(&dir.join("epilog"), "exit 0\n")?;
    let slurm = Slurm::start(dir, false)?;
    let mut srun = slurm.command(slurm.tools.bin.join("srun"));
    srun.args(["-N2", "-n4", "--mpi=pmi2", "sh", "-c"]);
    srun.arg("echo $SLURMD_NODENAME $PMI_RANK of $PMI_SIZE");
    let said = process::stdout(&mut srun, LIMIT).with_context(|| slurm.said())?;
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    ensure!(
        lines == ["n0 0 of 4", "n0 1 of 4", "n1 2 of 4", "n1 3 of 4"],
        "{said}\n{}",
        slurm.said()
    );
    let seen = fs::read_to_string(dir.join("seen")).unwrap_or_default();
    ensure!(seen == "up\nup\n", "the prolog ran so: {seen}");
    Ok(())
}

/// The words of a command as a line of a shell, which replaces its variables.
fn line(command: &Command) -> String {
    let quoted = |word: &str| format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""));
    let mut words = vec!["env".to_owned()];
    for (name, value) in command.get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
        words.push(quoted(&format!("{}={value}", name.to_string_lossy())));
    }
    let all = std::iter::once(command.get_program()).chain(command.get_args());
    words.extend(all.map(|word| quoted(&word.to_string_lossy())));
    words.join(" ")
}

/// A rank's scheme.
const SCHEME: &str = "xgvmi";

/// Prolog and epilog that start and end the services on the device. Returns lines of a script for which `$n` is the number of the
/// node, and `$port` that of its service, and the variables of its ranks.
fn services(site: &Site<'_>, testbed: &Testbed<'_>) -> Result<(String, Vec<Variable>)> {
    testbed.create()?;
    let dir = testbed.path();
    let ports = [free_port()?, free_port()?];
    let node = format!(
        "n=${{SLURMD_NODENAME#n}}\nport=$(sed -n \"$((n + 1))p\" {0}/ports)\nof={0}/service.$SLURMD_NODENAME\n",
        dir.display()
    );
    fs::write(dir.join("ports"), format!("{}\n{}\n", ports[0], ports[1]))?;
    let mut service = site.service(testbed, SCHEME, "node$n.dpu");
    service.args(["--listen", "127.0.0.1:$port"]);
    // The prolog ends when the service listens, and the epilog ends the service after its report of the job.
    let prolog = format!(
        "setsid {} > $of.log 2>&1 < /dev/null &
echo $! > $of.pid
for i in $(seq 600); do grep -q ' listens on ' $of.log && exit 0; sleep 0.1; done
exit 1\n",
        line(&service)
    );
    let epilog = "for i in $(seq 100); do grep -q ': done, ' $of.log && break; sleep 0.1; done
kill $(cat $of.pid)
rm $of.pid\n";
    script(&dir.join("prolog"), &(node.clone() + &prolog))?;
    script(&dir.join("epilog"), &(node.clone() + epilog))?;
    let mut own = device(SCHEME, site.world);
    own.extend(
        [
            ("UCC_TL_XGVMI_SERVICES", "127.0.0.1:$port"),
            ("UCC_TL_XGVMI_NODE", "node$n"),
            ("UCC_TL_XGVMI_SCHEME", SCHEME),
            ("UCC_TL_XGVMI_TUNE", "inf"),
        ]
        .map(variable),
    );
    Ok((node, own))
}

/// Runs salloc with a command that starts the legal programs, whose collectives the services carry out.
fn allocated(slurm: &Slurm, command: &[&Path], arguments: &[&str]) -> Result<()> {
    let dir = &slurm.dir;
    let mut job = slurm.command(slurm.tools.bin.join("salloc"));
    job.args(["-N2", "-n4"]).args(command).args(arguments);
    let done = process::run(&mut job, LIMIT)?;
    let logs = || {
        ["n0", "n1"].map(|node| {
            fs::read_to_string(dir.join(format!("service.{node}.log"))).unwrap_or_default()
        })
    };
    let said = || format!("{}\n{}\n{}", done.output, logs().join("\n"), slurm.said());
    ensure!(done.ok(), "{}\n{}", done.verdict(), said());
    for expect in PROGRAMS.map(|name| format!("ok {name}")) {
        let found = done.output.lines().any(|line| line.ends_with(&expect));
        ensure!(found, "no '{expect}':\n{}", said());
    }
    let gone = || {
        ["n0", "n1"]
            .iter()
            .all(|node| !dir.join(format!("service.{node}.pid")).exists())
    };
    ensure!(
        process::wait_until(LIMIT, gone),
        "the epilogs have not ended\n{}",
        said()
    );
    let counts = logs()
        .iter()
        .flat_map(|log| log.lines())
        .filter_map(|line| {
            let (_, rest) = line.split_once(": done, ")?;
            rest.split(' ').next()?.parse::<u64>().ok()
        })
        .sum::<u64>();
    ensure!(
        counts >= RANKS,
        "the services completed {counts} calls\n{}",
        said()
    );
    Ok(())
}

fn offloaded(site: &Site<'_>) -> Result<()> {
    let testbed = Testbed::new(site.world)?;
    let dir = testbed.path();
    let (node, mut own) = services(site, &testbed)?;
    own.extend(OF_LAUNCHER.map(|name| (name.to_owned(), format!("${name}"))));
    let program = Launcher::Mpich.compile(site.world, "mpi_legal")?;
    let mut rank = site.rank(&testbed, own, ("node$n.host", &program));
    rank.args(["--late", "1"]).args(PROGRAMS);
    let task = dir.join("task");
    script(&task, &format!("{node}exec {}\n", line(&rank)))?;
    let slurm = Slurm::start(dir, false)?;
    let srun = slurm.tools.bin.join("srun");
    allocated(
        &slurm,
        &[&srun],
        &["--mpi=pmi2", &task.display().to_string()],
    )
}

/// Open MPI's mpirun starts its daemons by srun, and tells the nodes by their host names. mpirun and daemons are in the tree of
/// the MPI, and Slurm is not, so scripts of their names change the place.
fn open_mpi(site: &Site<'_>) -> Result<()> {
    let testbed = Testbed::new(site.world)?;
    let dir = testbed.path();
    let (node, mut own) = services(site, &testbed)?;
    site.add_interface()?;
    let program = Launcher::OpenMpi.compile(site.world, "mpi_legal")?;
    let slurm = Slurm::start(dir, true)?;
    let (inner, outer) = (dir.join("inner"), dir.join("outer"));
    for dir in [&inner, &outer] {
        fs::create_dir(dir).context("a directory")?;
    }
    own.extend(OF_SALLOC.map(|name| (name.to_owned(), format!("${name}"))));
    own.extend(
        ["SLURM_NODEID", "SLURMD_NODENAME"].map(|name| (name.to_owned(), format!("${name}"))),
    );
    let daemon = site.tool(own, "prted");
    script(
        &outer.join("prted"),
        &format!("{node}exec {} \"$@\"\n", line(&daemon)),
    )?;
    let mut srun = slurm.command(slurm.tools.bin.join("srun"));
    srun.env(
        "PATH",
        format!("{}:/usr/bin:/bin:/usr/sbin", outer.display()),
    );
    let back = format!(
        "chroot /proc/{0}/root nsenter --target {0} --mount --net --",
        std::process::id()
    );
    script(
        &inner.join("srun"),
        &format!("exec {back} {} \"$@\"\n", line(&srun)),
    )?;
    let mut own = vec![(
        "PATH".to_owned(),
        format!("{}:/usr/bin:/bin:/usr/sbin", inner.display()),
    )];
    own.extend(OF_SALLOC.map(|name| (name.to_owned(), format!("${name}"))));
    let mut launch = site.tool(own, "mpirun.openmpi");
    launch.args([
        "-n",
        "4",
        "--oversubscribe",
        "--bind-to",
        "none",
        "--timeout",
        "120",
    ]);
    let inner = testbed.command("$UCC_TL_XGVMI_NODE.host", &program);
    let task = dir.join("task");
    script(&task, &format!("exec {} \"$@\"\n", line(&inner)))?;
    launch.arg(&task).args(["--late", "1"]).args(PROGRAMS);
    let launcher = dir.join("launch");
    script(&launcher, &format!("exec {}\n", line(&launch)))?;
    allocated(&slurm, &[&launcher], &[])
}
