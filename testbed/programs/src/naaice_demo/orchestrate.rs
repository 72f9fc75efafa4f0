//! Starts the services and, for each way, a client; runs all batches; writes the report.

use super::client::{Batch, Done};
use super::report::{Overlap, Parts, Report, Row, ServiceTime, Way};
use crate::demo::Common;
use anyhow::{Context as _, Result, bail};
use bench_report::Samples;
use bench_report::counters::Counters;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testbed::client::Client;
use testbed::cluster::Cluster;
use testbed::port;
use xgvmi_naa::Status;

/// Untimed sessions of each size: each key of the pool (8) is used several times. With large regions there are fewer.
const WARM_UP: u32 = 10;
const WARM_UP_LARGE: u32 = 2;
/// Ways take turns in so many batches for each size: a disturbance of the machine meets all of them.
const TURNS: u32 = 5;
/// Above this size there are fewer iterations, in proportion.
const FULL_COUNT_MAX: usize = 1 << 20;
const COUNT_MIN: u32 = 2;
/// Time for the service to end a session. Aliases of a growing pool stay.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);
/// Sizes at which the overlap is measured.
const OVERLAP: std::ops::RangeInclusive<usize> = 64 << 10..=16 << 20;

/// Word in the first line of a server.
const LISTENS: &str = "listen";
/// Address of node1.dpu.
const ACCELERATOR: &str = "127.66.2.3";

#[derive(Debug, Args)]
pub(crate) struct Demo {
    #[command(flatten)]
    common: Common,
    /// Kernels of the service.
    #[arg(long, value_name = "FILE")]
    kernels: PathBuf,
    /// A software accelerator on libnaaice.
    #[arg(long, value_name = "FILE")]
    server: PathBuf,
    /// The hand-written loop.
    #[arg(long, value_name = "FILE")]
    by_hand: PathBuf,
    /// Built programs of the original library.
    #[arg(long, value_name = "DIR")]
    original: Option<PathBuf>,
}

/// The cluster, and where its processes run.
struct Options<'a> {
    demo: &'a Demo,
    cluster: Cluster,
    /// Cores of host and accelerators; `None` if there is only one.
    cores: Option<[String; 2]>,
}

impl Options<'_> {
    /// A program in a function of the cluster, on its side's core.
    fn command(&self, function: &str, program: &Path) -> Command {
        let placed = self.cluster.command(function, program);
        let Some([host, accelerator]) = &self.cores else {
            return placed;
        };
        let core = match function.ends_with(".host") {
            true => host,
            false => accelerator,
        };
        let mut bound = Command::new("taskset");
        bound
            .args(["-c", core])
            .arg(placed.get_program())
            .args(placed.get_args());
        bound
    }

    /// A service on node0.dpu; it is ended when dropped.
    fn service(&self, port: u16) -> Result<Client> {
        let mut command = self.command("node0.dpu", &self.demo.common.built("xgvmi-naa"));
        command.arg("--kernels").arg(&self.demo.kernels);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        command.arg("--status-socket").arg(self.status_socket());
        command.args(["--sessions", "2", "--session-mib", "256"]);
        Client::saying(&mut command, LISTENS)
    }

    fn status_socket(&self) -> PathBuf {
        self.cluster.path().join("service.sock")
    }

    fn service_status(&self) -> Result<Status> {
        let text = xgvmi_daemon::status::ask(&self.status_socket())?;
        serde_json::from_str(&text).context("the service's status")
    }

    /// An accelerator on node1.dpu that listens for RDMA connections.
    fn accelerator(&self, program: &Path, arguments: &[&str]) -> Result<Client> {
        let mut command = self.command("node1.dpu", program);
        Client::saying(command.args(arguments), LISTENS)
    }

    /// Iterations of a batch: a turn's share.
    fn count(&self, size: usize) -> u32 {
        let times = u32::try_from(size.div_ceil(FULL_COUNT_MAX)).unwrap_or(u32::MAX);
        (self.demo.common.iterations / TURNS / times).max(COUNT_MIN)
    }

    /// The original's server.
    fn original_server(&self, built: &Path) -> Result<Client> {
        Client::start(&mut self.command("node1.dpu", &built.join("naaice_server")))
    }
}

fn carry_out(client: &mut Client, batch: Batch) -> Result<Done> {
    client.send(&batch)?;
    client.answer()
}

/// First and last core of this process, as `taskset` names them.
fn cores() -> Result<Option<[String; 2]>> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .context("/proc/self/status names no cores")?;
    let mut numbers = allowed.trim().split([',', '-']);
    let first = numbers.next().context("no core")?.to_owned();
    Ok(numbers.next_back().map(|last| [first, last.to_owned()]))
}

/// One way, with its client, and its results of the current size.
struct Measured {
    way: Way,
    client: Client,
    counters: Counters,
    shots: Done,
    calls: Done,
    /// Time of the service in one shots.
    service: ServiceTime,
}

impl Measured {
    fn start(way: Way, mut command: Command) -> Result<Self> {
        let client =
            Client::start(&mut command).with_context(|| format!("the client of {}", way.name()))?;
        Ok(Self {
            way,
            client,
            counters: Counters::default(),
            shots: Done::default(),
            calls: Done::default(),
            service: ServiceTime::default(),
        })
    }

    /// A turn of one shots. The device's counters count this way only, because the others wait.
    fn shots(&mut self, options: &Options<'_>, size: usize) -> Result<()> {
        let count = options.count(size);
        let (before, service) = (options.cluster.counters()?, options.service_status()?);
        let done = carry_out(&mut self.client, Batch::OneShots { size, count })?;
        self.counters.add(&settled(options, &before)?);
        self.service.add(&service, &options.service_status()?);
        self.shots.add(done);
        Ok(())
    }

    fn calls(&mut self, options: &Options<'_>, size: usize) -> Result<()> {
        let count = options.count(size);
        let before = options.cluster.counters()?;
        let done = carry_out(&mut self.client, Batch::Calls { size, count })?;
        settled(options, &before)?;
        self.calls.add(done);
        Ok(())
    }

    /// The row of a size; the results start anew.
    fn row(&mut self, size: usize, report: &mut Report) -> Result<Row> {
        let (shots, calls) = (
            std::mem::take(&mut self.shots),
            std::mem::take(&mut self.calls),
        );
        let counters = std::mem::take(&mut self.counters);
        let service = std::mem::take(&mut self.service);
        report.count(&shots);
        report.count(&calls);
        let sessions = shots.one_shot_ns.len() as u64;
        Ok(Row {
            create_us: median(&shots.create_ns),
            call_us: median(&calls.call_ns).context("no call")?,
            one_shot_us: median(&shots.one_shot_ns),
            parts: parts(&shots, &service),
            commands_per_one_shot: (sessions > 0).then(|| counters.per_iteration(sessions)),
            ..Row::new(self.way, size)
        })
    }
}

/// The parts of a one shot. Its call is the first one on these buffers.
fn parts(shots: &Done, service: &ServiceTime) -> Option<Parts> {
    Some(Parts {
        first_call_us: median(&shots.call_ns)?,
        finalize_us: median(&shots.finalize_ns)?,
        service: service.per_session(),
    })
}

/// What the device has done since `before`. The service ends a session after its host has gone on: the end must count for
/// this way and not for the next one.
fn settled(options: &Options<'_>, before: &Counters) -> Result<Counters> {
    let began = Instant::now();
    loop {
        let since = options.cluster.counters()?.since(before)?;
        let count = since.per_iteration(1);
        if count.create_alias <= count.destroy_alias || began.elapsed() > SETTLE_LIMIT {
            return Ok(since);
        }
    }
}

/// The median in microseconds.
fn median(times: &[u64]) -> Option<f64> {
    let mut samples = Samples::default();
    samples.extend_ns(times);
    samples.percentile(50)
}

impl Demo {
    pub(crate) fn run(&self) -> Result<()> {
        let options = Options {
            demo: self,
            cluster: self.common.cluster()?,
            cores: cores()?,
        };
        let me = std::env::current_exe()?;
        let ports = [port::free()?, port::free()?, port::free()?].map(|port| port.to_string());
        let _server = options.accelerator(&self.server, &[&ports[0]])?;
        let _by_hand = options.accelerator(&self.by_hand, &["listen", &ports[1]])?;
        let _service = options.service(ports[2].parse()?)?;
        let mut ways = vec![
            (Way::Verbs, format!("{ACCELERATOR}:{}:2:2", ports[0])),
            (Way::Ksm, format!("dpu/127.0.0.1:{}:2:2", ports[2])),
            (Way::Pool, format!("dpu/127.0.0.1:{}:2:2", ports[2])),
        ];
        let original = match &self.original {
            Some(built) => {
                ways.push((Way::Original, format!("{ACCELERATOR}:12345:2:2")));
                Some(options.original_server(built)?)
            }
            None => None,
        };
        let mut all = Vec::new();
        for (way, spec) in ways {
            let mut command = options.command("node0.host", &me);
            command.arg("naaice-client").env("NAA_SPEC", &spec);
            if way == Way::Original {
                command.arg("--original");
            }
            command.env("NAAICE_KEYS", if way == Way::Ksm { "ksm" } else { "pool" });
            all.push(Measured::start(way, command)?);
        }
        let mut command = options.command("node0.host", &self.by_hand);
        command.args(["call", ACCELERATOR, &ports[1]]);
        // Next to the way that it is compared with.
        all.insert(1, Measured::start(Way::Loop, command)?);
        let mut report = Report::new(&self.common.profile, options.cores.clone());
        for size in &self.common.sizes {
            measure(&options, &mut all, *size, &mut report)
                .with_context(|| format!("{size} bytes"))?;
        }
        drop(original);
        report.write(&self.common.output)?;
        println!("{}", report.markdown()?);
        if report.mismatches > 0 {
            bail!("{} bytes are wrong", report.mismatches);
        }
        Ok(())
    }
}

/// Measures one size of all ways.
fn measure(
    options: &Options<'_>,
    all: &mut [Measured],
    size: usize,
    report: &mut Report,
) -> Result<()> {
    let warm_up = match size > FULL_COUNT_MAX {
        true => WARM_UP_LARGE,
        false => WARM_UP,
    };
    for measured in all.iter_mut() {
        let way = measured.way;
        let batch = match way {
            Way::Loop => Batch::Calls { size, count: 1 },
            _ => Batch::OneShots {
                size,
                count: warm_up,
            },
        };
        let before = options.cluster.counters()?;
        let done = carry_out(&mut measured.client, batch).context(way.name())?;
        if way == Way::Ksm {
            settled(options, &before)?;
        }
        report.count(&done);
    }
    for _ in 0..TURNS {
        for measured in all.iter_mut() {
            if measured.way != Way::Loop {
                let done = measured.shots(options, size);
                done.context(measured.way.name())?;
            }
        }
        for measured in all.iter_mut() {
            let done = measured.calls(options, size);
            done.context(measured.way.name())?;
        }
    }
    let mut rows = Vec::new();
    for measured in all.iter_mut() {
        rows.push(measured.row(size, report)?);
    }
    report.add(rows);
    if !OVERLAP.contains(&size) {
        return Ok(());
    }
    for measured in all.iter_mut().filter(|measured| measured.way != Way::Loop) {
        let count = options.count(size) * TURNS;
        let done = carry_out(&mut measured.client, Batch::Overlap { size, count })?;
        report.count(&done);
        let times = median(&done.call_ns)
            .zip(median(&done.compute_ns))
            .zip(median(&done.both_ns));
        let ((call_us, compute_us), both_us) = times.context("no call")?;
        report.overlap(Overlap::new(
            measured.way,
            size,
            [call_us, compute_us, both_us],
        ));
    }
    Ok(())
}
