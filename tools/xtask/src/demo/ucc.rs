//! `cargo xtask demo ucc`: an unmodified MPI program under stock Open MPI and stock UCC on two emulated nodes, with MPI's
//! own collectives, with UCC's on the hosts, and with the component's on the DPUs.
//!
//! The programs are OSU's two benchmarks with MPI as their backend, and `tests/programs/mpi_timed.c`. They use fresh
//! buffers in each call and compare every received byte.

mod report;

use crate::place::Place;
use crate::process;
use crate::setup::{mpi, tree};
use crate::suites::World;
use crate::suites::device::Testbed;
use crate::suites::ucc::job::{Backend, Launcher, RANKS, STRICT_ORDER, Shape, Site, variable};
use crate::suites::ucc::programs;
use crate::workspace;
use anyhow::{Context, Result, bail, ensure};
use bench_report::{columns, files};
pub(super) use report::counted;
use report::{calls, markdown, moved, plot, printed, report, write};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask demo ucc [OPTIONS]

Runs osu_alltoallv, osu_ialltoallv and a program of MPI_Allreduce and MPI_Iallreduce, which know only MPI, under stock
Open MPI with stock UCC of Debian's testing suite: two emulated nodes, four ranks, fresh buffers in each call, every byte verified. The collectives are Open MPI's
own (mpi), stock UCC's on the hosts (ucc), and the service processes' on the DPUs (offload) in schemes ksm, stock and
xgvmi. Computation between start and wait is a sleep, because two cores cannot compute for four ranks. The programs spread_...
let the ranks start at different times, and measure the time of a rank in MPI. The programs sleep_... block, and their
ranks sleep in an offloaded call (UCC_TL_XGVMI_WAIT=sleep). So do those of the group cluster, blocking allreduces of 16 ranks on four nodes.
The group messages has a ping-pong and an exchange with two neighbours, on a communicator with the info xgvmi_messages.

  --sizes MIN:MAX    bytes to each rank, or of a rank's vector; they double [default: 1024:1048576]
  --iterations N     timed calls per size [default: 20]
  --schemes LIST     schemes of the offloaded collectives [default: ksm,stock,xgvmi]
  --programs LIST    groups of programs [default: osu,mpi,spread,sleep,messages,cluster]
  --quick            sizes 65536:262144, five calls each

A run of all takes longer than 25 minutes on two cores. The groups sleep, messages and cluster measure xgvmi only, from 64 KiB on, and messages of up to four times MAX; spread
has 4 KiB, 64 KiB and 1 MiB. `cargo xtask results --only ucc` replaces the rows of the programs that a run has measured.

Writes target/demo-ucc/report.json, report.md, report.svg. If the packages or the namespaces are not available, the
report names the reason in 'skipped'.";

/// The emulator's cost profile: the slides' times of the commands.
const PROFILE: &str = "bluefield3";
/// Untimed calls until every key of a pool has been used: 64 keys are announced, and each call uses two.
const WARM_UP: &str = "34";
/// Time limit of one job: each size takes seconds on two busy cores.
const JOB_LIMIT: Duration = Duration::from_secs(360);
/// Time limit of one query.
const QUESTION: Duration = Duration::from_secs(60);
/// The MPI programs.
const PROGRAMS: [&str; 2] = ["osu_alltoallv", "osu_ialltoallv"];
/// Modes of the program of allreduces, and their names in the report.
const REDUCTIONS: [(&str, &str); 2] =
    [("blocking", "mpi_allreduce"), ("overlap", "mpi_iallreduce")];
/// Modes of that program in which the ranks start at different times, and their names in the report.
const SPREADS: [(&str, &str); 2] = [
    ("spread-ialltoallv", "spread_ialltoallv"),
    ("spread-iallreduce", "spread_iallreduce"),
];
/// Milliseconds from the first rank's start to the last one's, as words of the mode.
const SPREAD_MS: &str = ":0:1:5:10";
/// Sizes of these programs.
const SPREAD_SIZES: [u32; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Modes of the program whose ranks sleep in offloaded calls, and their names in the report.
const SLEEPS: [(&str, &str); 2] = [
    ("blocks", "sleep_alltoallv"),
    ("blocking", "sleep_allreduce"),
];
/// The option that makes a waiting rank sleep.
const SLEEP: (&str, &str) = ("UCC_TL_XGVMI_WAIT", "sleep");
/// The program of more ranks, and their places.
const CLUSTER: (&str, &str, Shape) = (
    "blocking",
    "allreduce_4x4",
    Shape {
        nodes: 4,
        ranks_per_node: 4,
    },
);
/// Sizes from which the calls of blocking ranks are compared.
const LONG: u32 = 64 << 10;
/// Modes of the program with messages between ranks, and their names in the report.
const MESSAGES: [(&str, &str); 2] = [("ping-pong", "message_ping_pong"), ("halo", "message_halo")];
/// Groups of programs.
const GROUPS: [&str; 6] = ["osu", "mpi", "spread", "sleep", "messages", "cluster"];
/// Counted commands and work requests of the device, with their groups in its counters.
const COMMANDS: [(&str, &str); 7] = [
    ("commands", "create_mkey"),
    ("commands", "destroy_mkey"),
    ("commands", "allow_other_vhca_access"),
    ("commands", "create_alias"),
    ("commands", "destroy_alias"),
    ("wqes", "umr_bind"),
    ("wqes", "umr_invalidate"),
];
/// Schemes of the offloaded collectives.
const SCHEMES: [&str; 3] = ["ksm", "stock", "xgvmi"];

#[derive(Debug, PartialEq, Eq)]
struct Options {
    sizes: String,
    iterations: u32,
    schemes: Vec<&'static str>,
    programs: Vec<&'static str>,
}

impl Options {
    /// `None` for a help request.
    fn parse(arguments: Vec<String>) -> Result<Option<Self>> {
        use lexopt::prelude::{Long, Short, ValueExt as _};
        let mut options = Self {
            sizes: "1024:1048576".to_owned(),
            iterations: 20,
            schemes: SCHEMES.to_vec(),
            programs: GROUPS.to_vec(),
        };
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("sizes") => options.sizes = sizes(parser.value()?.string()?)?,
                Long("iterations") => options.iterations = parser.value()?.parse()?,
                Long("schemes") => {
                    options.schemes = names("scheme", &SCHEMES, &parser.value()?.string()?)?;
                }
                Long("programs") => {
                    options.programs = names("group", &GROUPS, &parser.value()?.string()?)?;
                }
                Long("quick") => {
                    options.sizes = "65536:262144".to_owned();
                    options.iterations = 5;
                }
                Short('h') | Long("help") => return Ok(None),
                other => bail!("{}; try: cargo xtask demo ucc --help", other.unexpected()),
            }
        }
        ensure!(
            (1..=10_000).contains(&options.iterations),
            "--iterations: 1 to 10000"
        );
        Ok(Some(options))
    }
}

fn sizes(text: String) -> Result<String> {
    bounds(&text)?;
    Ok(text)
}

/// The least and the greatest size.
fn bounds(text: &str) -> Result<[u32; 2]> {
    let number = |part: &str| part.parse::<u32>().ok().filter(|size| *size > 0);
    let both = text
        .split_once(':')
        .and_then(|(least, most)| Some([number(least)?, number(most)?]));
    both.filter(|[least, most]| least <= most)
        .with_context(|| format!("--sizes '{text}' is not MIN:MAX"))
}

/// Names of a list, all of which are known.
pub(super) fn names(what: &str, known: &[&'static str], list: &str) -> Result<Vec<&'static str>> {
    let found = |name: &str| known.iter().copied().find(|known| *known == name);
    list.split(',')
        .map(|name| {
            found(name)
                .with_context(|| format!("no {what} '{name}'; there are {}", known.join(", ")))
        })
        .collect()
}

/// Runs the demo with the arguments after `cargo xtask demo ucc`.
pub(super) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(options) = Options::parse(arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let output = workspace::reports_dir("demo-ucc");
    // A directory that the user names must not become a skip.
    tree::OtherUcc::given()?;
    // Results of an earlier run must not be reported for this run.
    let _ = fs::remove_dir_all(&output);
    fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;
    let mut world = World::new(Vec::new())?;
    world.profile = Some(PROFILE);
    let place = tree::ucc().and_then(|tree| {
        let place = Place::new(&tree.root, &world.dir, &world.env.cache)?;
        Ok((tree, place))
    });
    let report = match place {
        Ok((tree, place)) => measure(&options, Site::new(&world, tree, place)?, &output)?,
        Err(error) => report(&[], Some(&format!("{error:#}"))),
    };
    files::save(&output.join("report.json"), &report, columns::UCC)?;
    let text = markdown(&report)?;
    write(&output.join("report.md"), &text)?;
    print!("{text}");
    println!("\nwritten: {}", output.join("report.json").display());
    Ok(match report["mismatches"].as_u64() {
        Some(0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// One way to execute the collectives.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// Name in the plot.
    name: &'static str,
    backend: &'static str,
    scheme: Option<&'static str>,
    /// The component that UCC's trace names for each alltoallv; `None` without UCC.
    traced: Option<&'static str>,
}

impl Way {
    /// Whether the groups of few executions have this one.
    fn is_compared(&self) -> bool {
        matches!(self.name, "ucc" | "xgvmi")
    }
}

/// Blocking calls of more ranks.
fn cluster(options: &Options, site: &Site<'_>, way: Way) -> Result<Vec<Record>> {
    let services = way
        .scheme
        .map(|scheme| site.services(scheme, &[]))
        .transpose()?;
    let own = match &services {
        Some(_) => None,
        None => Some(Testbed::of(site.world, site.shape.nodes)?),
    };
    let (testbed, backend) = match (&services, &own) {
        (Some(services), _) => (&services.testbed, Backend::Offload(services)),
        (None, Some(testbed)) => (testbed, Backend::Ucc),
        (None, None) => bail!("no device"),
    };
    let runner = Runner {
        site,
        testbed,
        backend,
    };
    let records = runner.long(options, way, &[(CLUSTER.0, CLUSTER.1)], &[SLEEP])?;
    if let Some(services) = &services {
        let made = records
            .iter()
            .map(|record| calls(&record.value))
            .sum::<u64>();
        let completed = services.completed()?;
        ensure!(
            completed >= site.shape.ranks() * made,
            "the services completed {completed} calls; {} ranks made {made} each",
            site.shape.ranks()
        );
    }
    Ok(records)
}

/// A result file of one of the programs.
struct Record {
    way: Way,
    program: &'static str,
    value: Value,
}

fn measure(options: &Options, mut site: Site<'_>, output: &Path) -> Result<Value> {
    let mut ways = vec![
        Way {
            name: "mpi",
            backend: "mpi",
            scheme: None,
            traced: None,
        },
        Way {
            name: "ucc",
            backend: "ucc",
            scheme: None,
            traced: Some("{TL_UCP}"),
        },
    ];
    ways.extend(options.schemes.iter().map(|scheme| Way {
        name: scheme,
        backend: "offload",
        scheme: Some(scheme),
        traced: Some("{TL_XGVMI}"),
    }));
    let library = mpi::wheel(&site.world.env).library()?;
    let mut records = Vec::new();
    for way in &ways {
        records.extend(one_way(options, &site, *way, &library, output)?);
    }
    if options.programs.contains(&"cluster") {
        site.shape = CLUSTER.2;
        for way in ways.into_iter().filter(Way::is_compared) {
            records.extend(cluster(options, &site, way)?);
        }
    }
    if options.programs.contains(&"osu") {
        plot(&records, output)?;
    }
    Ok(report(&records, None))
}

fn one_way(
    options: &Options,
    site: &Site<'_>,
    way: Way,
    library: &Path,
    output: &Path,
) -> Result<Vec<Record>> {
    let services = way
        .scheme
        .map(|scheme| site.services(scheme, &[]))
        .transpose()?;
    let own_testbed = match &services {
        Some(_) => None,
        None => Some(Testbed::new(site.world)?),
    };
    let (testbed, backend) = match (&services, &own_testbed) {
        (Some(services), _) => (&services.testbed, Backend::Offload(services)),
        (None, Some(testbed)) if way.backend == "ucc" => (testbed, Backend::Ucc),
        (None, Some(testbed)) => (testbed, Backend::Mpi),
        (None, None) => bail!("no device"),
    };
    let runner = Runner {
        site,
        testbed,
        backend,
    };
    let library = library.display().to_string();
    let run = |program: &str, shape: &[&str], trace: bool| -> Result<String> {
        let path = site.world.bin.join(program).display().to_string();
        let mut words = vec![path.as_str(), "--backend", "mpi", "--barrier", "sleep"];
        words.extend(["-c", "-u", "0", "--temp-buffers", "mmap"]);
        words.extend(shape);
        let variables = [("OSU_MPI_LIBRARY", library.as_str()), STRICT_ORDER];
        runner.run(&words, trace, &variables)
    };
    // UCC's trace costs time, so a short job proves who executes the collectives.
    if let Some(component) = way.traced {
        let said = run(
            PROGRAMS[0],
            &["-m", "4096:4096", "-i", "2", "-x", "0"],
            true,
        )?;
        executed_by(component, " Alltoallv: ", &said)?;
    }
    let emulator = site.world.bin.join("bf-emu").display().to_string();
    let state = testbed.state().display().to_string();
    let iterations = options.iterations.to_string();
    let mut records = Vec::new();
    let has = |group: &str| options.programs.contains(&group);
    for program in PROGRAMS.into_iter().filter(|_| has("osu")) {
        let file = output.join(format!("{program}-{}.json", way.name));
        let to = file.display().to_string();
        let mut shape = vec!["-m", &options.sizes, "-i", &iterations, "-x", WARM_UP];
        if program == PROGRAMS[1] {
            shape.extend(["--compute", "sleep"]);
        }
        shape.extend(["--json", &to]);
        shape.extend([
            "--counters",
            &emulator,
            "stats",
            "--json",
            "--state",
            &state,
            ";",
        ]);
        run(program, &shape, false)?;
        let text = fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
        let mut value: Value = serde_json::from_str(&text)?;
        value["scheme"] = way.name.into();
        for row in value["rows"].as_array_mut().into_iter().flatten() {
            row["scheme"] = way.name.into();
        }
        write(&file, &value.to_string())?;
        eprint!(".");
        records.push(Record {
            way,
            program,
            value,
        });
    }
    if has("mpi") {
        records.extend(runner.reductions(options, way)?);
    }
    if has("spread") {
        records.extend(runner.spreads(options, way)?);
    }
    if has("sleep") && way.is_compared() {
        records.extend(runner.long(options, way, &SLEEPS, &[SLEEP])?);
    }
    if has("messages") && way.is_compared() {
        records.extend(runner.messages(options, way)?);
    }
    if let Some(services) = &services {
        let calls = records
            .iter()
            .map(|record| calls(&record.value))
            .sum::<u64>();
        let completed = services.completed()?;
        ensure!(
            completed >= RANKS * calls,
            "the services completed {completed} calls of ranks; {RANKS} ranks made {calls} each"
        );
    }
    Ok(records)
}

/// Checks that UCC's trace names the component for each collective of a kind.
pub(super) fn executed_by(component: &str, kind: &str, said: &str) -> Result<()> {
    let lines = said.lines().filter(|line| line.contains(kind));
    let [others, found] = lines.fold([0, 0], |mut counts, line| {
        counts[usize::from(line.contains(component))] += 1;
        counts
    });
    ensure!(
        others == 0 && found > 0,
        "UCC gave {found} calls to {component} and {others} to others:\n{said}"
    );
    Ok(())
}

/// Starts jobs of one way on its device.
struct Runner<'a> {
    site: &'a Site<'a>,
    testbed: &'a Testbed<'a>,
    backend: Backend<'a>,
}

impl Runner<'_> {
    /// Runs a job; returns its output.
    fn run(&self, words: &[&str], trace: bool, variables: &[(&str, &str)]) -> Result<String> {
        let where_and_how = (self.testbed, self.backend);
        let mut job = self.site.job(where_and_how, Launcher::OpenMpi, words, |_| {
            let trace = trace.then_some(("UCC_COLL_TRACE", "info"));
            let all = variables.iter().copied().chain(trace);
            all.map(variable).collect()
        });
        let done = process::run(&mut job, JOB_LIMIT)?;
        let shown = || format!("`{}`\n{}", process::shown(&job), done.output);
        ensure!(done.ok(), "{}: {}", done.verdict(), shown());
        Ok(done.output)
    }

    /// Allreduces, blocking and with computation.
    fn reductions(&self, options: &Options, way: Way) -> Result<Vec<Record>> {
        let world = self.site.world;
        let program = programs::compile_mpi(self.site, "mpi_timed")?;
        if let Some(component) = way.traced {
            let words = [&program, "blocking", "4096", "4096", "2", "0", "-"];
            executed_by(component, " Allreduce sum", &self.run(&words, true, &[])?)?;
        }
        let prefix = world.dir.join("allreduce-counters").display().to_string();
        let emulator = world.bin.join("bf-emu").display().to_string();
        let state = self.testbed.state().display().to_string();
        let iterations = options.iterations.to_string();
        let (least, most) = options.sizes.split_once(':').context("sizes")?;
        let mut records = Vec::new();
        for (mode, name) in REDUCTIONS {
            let shape = [mode, least, most, &iterations, WARM_UP, &prefix];
            let counters = [&emulator, "stats", "--json", "--state", &state];
            let words: Vec<&str> = std::iter::once(program.as_str())
                .chain(shape)
                .chain(counters)
                .collect();
            let said = self.run(&words, false, &[])?;
            let rows = said.lines().filter(|line| line.starts_with("{\"size\":"));
            let rows: Vec<Value> = rows
                .map(|line| counted(line, &prefix))
                .collect::<Result<_>>()?;
            ensure!(!rows.is_empty(), "{name} prints no row:\n{said}");
            eprint!(".");
            records.push(Record {
                way,
                program: name,
                value: json!({ "rows": rows }),
            });
        }
        Ok(records)
    }

    /// Collectives that the ranks start at different times.
    fn spreads(&self, options: &Options, way: Way) -> Result<Vec<Record>> {
        let [least, most] = bounds(&options.sizes)?;
        let sizes = SPREAD_SIZES
            .iter()
            .filter(|size| (least..=most).contains(size));
        let sizes: Vec<u32> = sizes.copied().collect();
        let mut records = Vec::new();
        for (mode, name) in SPREADS {
            let mode = format!("{mode}{SPREAD_MS}");
            for size in &sizes {
                records.push(self.timed(options, way, (&mode, name), [*size; 2], &[])?);
            }
        }
        Ok(records)
    }

    /// Blocking collectives of long messages, with variables of the ranks.
    fn long(
        &self,
        options: &Options,
        way: Way,
        modes: &[(&str, &'static str)],
        variables: &[(&str, &str)],
    ) -> Result<Vec<Record>> {
        let [least, most] = bounds(&options.sizes)?;
        let sizes = [least.max(LONG), most];
        let modes = modes.iter().filter(|_| sizes[0] <= most);
        modes
            .map(|mode| self.timed(options, way, *mode, sizes, variables))
            .collect()
    }

    /// Messages between ranks. Those of a way with services are offloaded.
    fn messages(&self, options: &Options, way: Way) -> Result<Vec<Record>> {
        let [least, most] = bounds(&options.sizes)?;
        let sizes = [least.max(LONG), most.saturating_mul(4)];
        let pool = self.site.world.bin.join("libuct_ib_mlx5_xgvmi.so");
        let library = mpi::wheel(&self.site.world.env).neighbors()?;
        let both = format!("{}:{}", pool.display(), library.display());
        let preload = [("LD_PRELOAD", both.as_str())];
        let variables = &preload[..way.scheme.iter().len()];
        let mut records = Vec::new();
        for (mode, name) in MESSAGES {
            let (record, said) = self.said(options, way, (mode, name), sizes, variables)?;
            // A send and a receive of each rank at least.
            let least = way.scheme.map_or(0, |_| 2 * RANKS * calls(&record.value));
            let moved = moved(&said);
            ensure!(
                moved >= least && (least > 0 || moved == 0),
                "{name}: the service processes moved {moved} messages:\n{said}"
            );
            records.push(record);
        }
        Ok(records)
    }

    /// A mode of the timed program, without the device's counters.
    fn timed(
        &self,
        options: &Options,
        way: Way,
        mode: (&str, &'static str),
        sizes: [u32; 2],
        variables: &[(&str, &str)],
    ) -> Result<Record> {
        let (record, _) = self.said(options, way, mode, sizes, variables)?;
        Ok(record)
    }

    fn said(
        &self,
        options: &Options,
        way: Way,
        (mode, name): (&str, &'static str),
        [least, most]: [u32; 2],
        variables: &[(&str, &str)],
    ) -> Result<(Record, String)> {
        let program = programs::compile_mpi(self.site, "mpi_timed")?;
        let numbers = [least, most, options.iterations].map(|number| number.to_string());
        let mut words = vec![program.as_str(), mode];
        words.extend(numbers.iter().map(String::as_str));
        words.extend([WARM_UP, "-"]);
        let said = self.run(&words, false, variables)?;
        let rows = printed(&said)?;
        ensure!(!rows.is_empty(), "{name} prints no row:\n{said}");
        eprint!(".");
        let record = Record {
            way,
            program: name,
            value: json!({ "rows": rows }),
        };
        Ok((record, said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>> {
        Options::parse(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn options_are_read() {
        let options = parse("").unwrap().unwrap();
        assert_eq!(
            (
                options.sizes.as_str(),
                options.schemes.len(),
                options.programs.len()
            ),
            ("1024:1048576", 3, 6)
        );
        let options = parse("--quick --schemes xgvmi").unwrap().unwrap();
        assert_eq!((options.iterations, options.schemes), (5, vec!["xgvmi"]));
        let options = parse("--programs spread").unwrap().unwrap();
        assert_eq!(options.programs, ["spread"]);
        assert!(parse("--help").unwrap().is_none());
        for bad in [
            "--sizes 1024",
            "--sizes 4:2",
            "--sizes 0:2",
            "--iterations 0",
            "--schemes umem",
            "--programs osu,all",
            "now",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
