//! `cargo xtask demo dpa`: kernels of the DPA, and an all-to-all whose blocks they move, beside MPI's own and that of service
//! processes. `xgvmi-testbed` runs the part without MPI; this file builds, adds the rows of MPI, and writes the report.

use super::orchestrated::{self, PROFILE};
use super::ucc::{counted, executed_by};
use crate::place::Place;
use crate::process;
use crate::setup::{self, tree};
use crate::suites::World;
use crate::suites::device::Testbed;
use crate::suites::ucc::job::{Backend, Launcher, RANKS, STRICT_ORDER, Services, Site, variable};
use crate::suites::ucc::programs;
use crate::workspace;
use anyhow::{Context as _, Result, bail, ensure};
use bench_report::{columns, files, parse_size, table};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
Usage: cargo xtask demo dpa [OPTIONS]

Kernels of the emulated DPA, compiled by dpacc from testbed/programs/src/dpa_demo/kernels.c:
  launches   cold, repeated with equal width, and chained by an event
  ping-pong  two kernels that messages activate
  all-to-all of four ranks on two nodes with fresh buffers: the hosts export their buffers, the DPUs make aliases of the keys,
             and kernels post RDMA reads on the aliases. Every byte is verified. Schemes: ksm (a key per buffer) and xgvmi
             (pooled keys, announced ahead)
Beside it the same exchange as MPI_Ialltoall of stock Open MPI (mpi), and of Open MPI with stock UCC on service processes on
the DPUs (sp). Both need packages of Debian's testing suite and namespaces; without them the report names the reason.

  --sizes MIN:MAX    bytes to each rank; they double [default: 1K:1M]
  --iterations N     timed calls per size [default: 20]
  --quick            sizes 4K:8K, five calls, without MPI

Writes target/demo-dpa/report.json and report.md.";

const LIMIT: Duration = Duration::from_secs(600);
/// Time limit of one MPI job.
const JOB_LIMIT: Duration = Duration::from_secs(360);
/// Untimed calls of MPI, until every key of the services' pools has been used.
const WARM_UP: &str = "34";
/// The seed's latencies between the launch and the start of a kernel.
const PUBLISHED: &str = "5 to 7 us for a launch of equal width and 3 us for a chained one";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    least: usize,
    most: usize,
    iterations: u32,
    is_quick: bool,
}

impl Options {
    /// `None` for a help request.
    fn parse(arguments: Vec<String>) -> Result<Option<Self>> {
        use lexopt::prelude::{Long, Short, ValueExt as _};
        let mut options = Self {
            least: 1 << 10,
            most: 1 << 20,
            iterations: 20,
            is_quick: false,
        };
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("sizes") => {
                    let text = parser.value()?.string()?;
                    (options.least, options.most) = sizes(&text)?;
                }
                Long("iterations") => options.iterations = parser.value()?.parse()?,
                Long("quick") => {
                    options.is_quick = true;
                    options.iterations = 5;
                    (options.least, options.most) = (4 << 10, 8 << 10);
                }
                Short('h') | Long("help") => return Ok(None),
                other => bail!("{}; try: cargo xtask demo dpa --help", other.unexpected()),
            }
        }
        ensure!(
            (1..=10_000).contains(&options.iterations),
            "--iterations: 1 to 10000"
        );
        Ok(Some(options))
    }

    /// All sizes, with commas.
    fn list(&self) -> String {
        let next = |size: &usize| size.checked_mul(2).filter(|next| *next <= self.most);
        let sizes = std::iter::successors(Some(self.least), next);
        let sizes: Vec<String> = sizes.map(|size| size.to_string()).collect();
        sizes.join(",")
    }
}

fn sizes(text: &str) -> Result<(usize, usize)> {
    let range = text
        .split_once(':')
        .and_then(|(least, most)| Some((parse_size(least).ok()?, parse_size(most).ok()?)));
    let good = range.filter(|(least, most)| {
        *least >= 8 && least.is_multiple_of(8) && least <= most && *most <= 1 << 24
    });
    good.with_context(|| format!("--sizes '{text}' is not MIN:MAX with multiples of 8 up to 16M"))
}

/// Runs the demo with the arguments after `cargo xtask demo dpa`.
pub(super) fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let Some(options) = Options::parse(arguments)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let env = setup::ensure()?;
    workspace::build(&["-p bf-emu -p bf-emu-preload -p testbed-programs -p dpacc"])?;
    let output = workspace::reports_dir("demo-dpa");
    let words = [
        "--sizes".to_owned(),
        options.list(),
        "--iterations".to_owned(),
        options.iterations.to_string(),
    ];
    let mut command = orchestrated::program("dpa-demo", &output, &words);
    command.envs(env.for_verbs());
    orchestrated::with_riscv(&mut command);
    let code = process::to_end(&mut command, LIMIT)?;
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    let file = output.join("report.json");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let mut report: Value = serde_json::from_str(&text)?;
    match of_mpi(&options) {
        Ok(rows) => add(&mut report, rows)?,
        Err(error) => report["skipped"] = format!("mpi and sp: {error:#}").into(),
    }
    files::save(&file, &report, columns::DPA)?;
    let text = markdown(&report)?;
    fs::write(output.join("report.md"), &text)?;
    print!("{text}");
    println!("\nwritten: {}", file.display());
    Ok(match report["mismatches"].as_u64() {
        Some(0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Rows of MPI's own exchange and of the service processes'.
fn of_mpi(options: &Options) -> Result<Vec<Value>> {
    ensure!(!options.is_quick, "not measured with --quick");
    // A directory that the user names must not become a skip.
    tree::OtherUcc::given()?;
    let tree = tree::ucc()?;
    let mut world = World::new(Vec::new())?;
    world.profile = Some(PROFILE);
    let place = Place::new(&tree.root, &world.dir, &world.env.cache)?;
    let site = Site::new(&world, tree, place)?;
    let testbed = Testbed::new(&world)?;
    let mut rows = exchange(options, &site, (&testbed, Backend::Mpi), "mpi")?;
    let services = site.services("xgvmi", &[])?;
    let on_services = (&services.testbed, Backend::Offload(&services));
    rows.extend(exchange(options, &site, on_services, "sp")?);
    Ok(rows)
}

/// One job of all sizes.
fn exchange(
    options: &Options,
    site: &Site<'_>,
    (testbed, backend): (&Testbed<'_>, Backend<'_>),
    scheme: &str,
) -> Result<Vec<Value>> {
    let world = site.world;
    let program = programs::compile_mpi(site, "mpi_timed")?;
    let prefix = world
        .dir
        .join(format!("dpa-{scheme}"))
        .display()
        .to_string();
    let times = world.dir.join(format!("dpa-{scheme}.cpu"));
    let _ = fs::remove_file(&times);
    let run = |words: &[&str], is_traced: bool| -> Result<String> {
        let mut job = site.job((testbed, backend), Launcher::OpenMpi, words, |_| {
            let trace = is_traced.then_some(("UCC_COLL_TRACE", "info"));
            [STRICT_ORDER]
                .into_iter()
                .chain(trace)
                .map(variable)
                .collect()
        });
        let done = process::run(&mut job, JOB_LIMIT)?;
        let shown = || format!("`{}`\n{}", process::shown(&job), done.output);
        ensure!(done.ok(), "{}: {}", done.verdict(), shown());
        Ok(done.output)
    };
    let services = match backend {
        Backend::Offload(services) => Some(services),
        _ => None,
    };
    if services.is_some() {
        let words = [&program, "exchange", "4096", "4096", "2", "0", "-"];
        executed_by("{TL_XGVMI}", " Alltoall: ", &run(&words, true)?)?;
    }
    let (least, most) = (options.least.to_string(), options.most.to_string());
    let iterations = options.iterations.to_string();
    let counters = counters(testbed, services, &times);
    let mut words = vec![
        program.as_str(),
        "exchange",
        &least,
        &most,
        &iterations,
        WARM_UP,
        &prefix,
    ];
    words.extend(counters.iter().map(String::as_str));
    let said = run(&words, false)?;
    let lines = said.lines().filter(|line| line.starts_with("{\"size\":"));
    let processor = fs::read_to_string(&times).with_context(|| times.display().to_string())?;
    let mut processor = processor.lines().map(str::parse::<u64>);
    let mut rows = Vec::new();
    for line in lines {
        let row = counted(line, &prefix)?;
        let spent = processor.next().zip(processor.next());
        let (before, after) = spent.context("no processor time of the services")?;
        let calls = row["iterations"].as_f64().context("no iterations")?;
        #[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
        let arm_us = (after? - before?) as f64 / 1e3 / calls;
        rows.push(json!({
            "scheme": scheme, "size": row["size"], "us": {"p50": row["steady_us"]["p50"]},
            "commands_per_call": row["commands_per_iteration"], "dpa_instructions_per_block": null,
            "arm_cpu_us_per_call": services.map(|_| arm_us),
            "verified_bytes": row["verified_bytes"], "wrong_bytes": row["wrong_bytes"],
        }));
    }
    ensure!(!rows.is_empty(), "{scheme} prints no row:\n{said}");
    Ok(rows)
}

/// A command that prints the device's counters, and appends the processor time of the services to a file.
fn counters(testbed: &Testbed<'_>, services: Option<&Services<'_>>, times: &Path) -> Vec<String> {
    let program = workspace::built("xgvmi-testbed");
    let mut words = vec![
        program.display().to_string(),
        "dpa-counters".to_owned(),
        "--times".to_owned(),
        times.display().to_string(),
    ];
    for service in services.into_iter().flat_map(|all| &all.running) {
        words.extend(["--process".to_owned(), service.group.id().to_string()]);
    }
    words.push("--".to_owned());
    let stats = testbed.stats_words();
    words.extend(stats.iter().map(|word| word.to_string_lossy().into_owned()));
    words
}

/// Adds rows with their verified bytes to the report.
fn add(report: &mut Value, rows: Vec<Value>) -> Result<()> {
    for mut row in rows {
        let of = row.as_object_mut().context("a row")?;
        for (part, whole) in [
            ("verified_bytes", "verified_bytes"),
            ("wrong_bytes", "mismatches"),
        ] {
            let count = of.remove(part).and_then(|count| count.as_u64());
            let before = report[whole].as_u64().context("a count of bytes")?;
            report[whole] = (before + count.context("a count of bytes")?).into();
        }
        report["rows"].as_array_mut().context("rows")?.push(row);
    }
    Ok(())
}

/// The report as tables.
fn markdown(report: &Value) -> Result<String> {
    let list = |name: &str| {
        report[name]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
    };
    let mut rows = list("rows").to_vec();
    rows.sort_by_key(|row| row["size"].as_u64());
    let mut text = String::from("# Kernels of the DPA\n\nCounts for one launch of 16 threads:\n\n");
    text += &table::markdown(columns::DPA_LAUNCH, list("launch"))?;
    let pong = &report["ping_pong"];
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "\n\nA card's latencies are {PUBLISHED}. The emulator's times are its own \
         work, and contain the pause after which its DPA looks at an event again: a count of steps and no forecast.\n\n\
         Ping-pong of {} bytes: {:.1} us a round, {:.0} instructions a message.\n\n\
         All-to-all of {RANKS} ranks on two nodes, fresh buffers; commands and Arm processor time per call. The Arm processor's \
         time contains the emulated adapter's work for requests that the Arm cores post (sp).\n",
        pong["bytes"],
        pong["us"]["p50"].as_f64().unwrap_or_default(),
        pong["instructions_per_message"]
            .as_f64()
            .unwrap_or_default(),
    );
    text += &table::markdown(columns::DPA, &rows)?;
    if let Some(reason) = report["skipped"].as_str() {
        let _ = write!(text, "\n\nNot measured: {reason}.");
    }
    let _ = writeln!(
        text,
        "\n\n{} bytes verified, {} wrong; profile {PROFILE}",
        report["verified_bytes"], report["mismatches"]
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>> {
        Options::parse(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn sizes_double_from_the_least_to_the_most() {
        let all = parse("").unwrap().unwrap().list();
        assert_eq!(all.split(',').count(), 11);
        assert!(all.starts_with("1024,2048,") && all.ends_with(",1048576"));
        assert_eq!(parse("--quick").unwrap().unwrap().list(), "4096,8192");
        assert!(parse("--quick --help").unwrap().is_none());
        for bad in [
            "--sizes 4K",
            "--sizes 8K:4K",
            "--sizes 4:8",
            "--iterations 0",
            "now",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rows_of_mpi_join_the_report() {
        let mut report = json!({
            "verified_bytes": 10, "mismatches": 0, "launch": [{"kind": "cold", "instructions": 4, "doorbells": 0, "objects": 16, "us": 9.0}],
            "ping_pong": {"bytes": 8, "us": {"p50": 3.0}, "instructions_per_message": 70.0}, "rows": [],
        });
        let row = json!({
            "scheme": "sp", "size": 1024, "us": {"p50": 5.0}, "commands_per_call": {"umr_bind": 8.0},
            "dpa_instructions_per_block": null, "arm_cpu_us_per_call": 2.0, "verified_bytes": 7, "wrong_bytes": 1,
        });
        add(&mut report, vec![row]).unwrap();
        assert_eq!(
            (&report["verified_bytes"], &report["mismatches"]),
            (&json!(17), &json!(1))
        );
        assert!(report["rows"][0].get("wrong_bytes").is_none());
        let text = markdown(&report).unwrap();
        assert!(
            text.contains("17 bytes verified, 1 wrong") && text.contains("cold"),
            "{text}"
        );
    }
}
