//! Starts the services and, for each way, a client; runs all batches; writes the report.

use crate::client::{Batch, Done};
use crate::report::{Report, Row, Way};
use anyhow::{Context as _, Result, bail, ensure};
use bench_report::counters::Counters;
use bench_report::{Samples, parse_size};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Untimed sessions of each size: each key of the pool (8) is used several times.
const WARM_UP: u32 = 10;

/// What `cargo xtask demo naaice` passes.
struct Options {
    /// Command that starts a program in a function of the cluster; `{function}` stands for its name.
    launch: Vec<String>,
    /// Command that prints the device's counters.
    counters: Vec<String>,
    service: PathBuf,
    kernels: PathBuf,
    output: PathBuf,
    profile: String,
    sizes: Vec<usize>,
    iterations: u32,
    /// Built programs of the original library.
    original: Option<PathBuf>,
}

impl Options {
    fn parse(words: Vec<String>) -> Result<Self> {
        let mut words = words.into_iter();
        let mut next = |name: &str| words.next().with_context(|| format!("{name} is missing"));
        let path = PathBuf::from;
        Ok(Self {
            launch: serde_json::from_str(&next("launch")?).context("launch")?,
            counters: serde_json::from_str(&next("counters")?).context("counters")?,
            service: path(next("service")?),
            kernels: path(next("kernels")?),
            output: path(next("output")?),
            profile: next("profile")?,
            sizes: next("sizes")?
                .split(',')
                .map(parse_size)
                .collect::<std::result::Result<_, _>>()
                .map_err(anyhow::Error::msg)?,
            iterations: next("iterations")?.parse().context("iterations")?,
            original: words.next().map(path),
        })
    }

    /// A program in a function of the cluster.
    fn command(&self, function: &str, program: &Path) -> Result<Command> {
        let mut command = command(&self.launch, function)?;
        command.arg(program);
        Ok(command)
    }

    fn counters(&self) -> Result<Counters> {
        let output = command(&self.counters, "")?
            .output()
            .context("the device's counters")?;
        ensure!(
            output.status.success(),
            "the device's counters: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(Counters::parse(&output.stdout)?)
    }

    /// A service in a function; it is ended when dropped.
    fn service(&self, function: &str, tcp: u16, rdma: u16) -> Result<Running> {
        let mut command = self.command(function, &self.service)?;
        command.arg("--kernels").arg(&self.kernels);
        command.args(["--listen", &format!("127.0.0.1:{tcp}")]);
        command.args(["--verbs-listen", &format!("0.0.0.0:{rdma}")]);
        command.args(["--sessions", "2", "--session-mib", "256"]);
        let mut running = Running::start(&mut command)?;
        let line = running.line().context("the service")?;
        ensure!(line.contains(" listens on "), "the service says: {line}");
        Ok(running)
    }

    /// The original's server.
    fn original_server(&self, built: &Path) -> Result<Running> {
        Running::start(&mut self.command("node1.dpu", &built.join("naaice_server"))?)
    }
}

fn command(words: &[String], function: &str) -> Result<Command> {
    let mut words = words
        .iter()
        .map(|word| word.replace("{function}", function));
    let mut command = Command::new(words.next().context("an empty command")?);
    command.args(words);
    Ok(command)
}

/// A child with pipes. It is killed when dropped.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let stdout = child.stdout.take().context("a pipe was requested")?;
        Ok(Self {
            stdin: child.stdin.take(),
            child,
            stdout: BufReader::new(stdout),
        })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line)?;
        ensure!(read > 0, "it has ended: {}", self.child.wait()?);
        Ok(line)
    }

    fn batch(&mut self, batch: Batch) -> Result<Done> {
        let stdin = self.stdin.as_mut().context("a pipe was requested")?;
        writeln!(stdin, "{}", serde_json::to_string(&batch)?)?;
        stdin.flush()?;
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("the client says: {line}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

pub(crate) fn run(arguments: Vec<String>) -> Result<()> {
    let options = Options::parse(arguments)?;
    let me = std::env::current_exe()?;
    let ports = [free_port()?, free_port()?, free_port()?, free_port()?];
    let _remote = options.service("node1.dpu", ports[0], ports[1])?;
    let _local = options.service("node0.dpu", ports[2], ports[3])?;
    let mut ways = vec![
        (Way::Verbs, format!("127.66.2.3:{}:2:2", ports[1])),
        (Way::Ksm, format!("dpu/127.0.0.1:{}:2:2", ports[2])),
        (Way::Pool, format!("dpu/127.0.0.1:{}:2:2", ports[2])),
    ];
    let original = match &options.original {
        Some(built) => {
            ways.push((Way::Original, "127.66.2.3:12345:2:2".to_owned()));
            Some(options.original_server(built)?)
        }
        None => None,
    };
    let mut report = Report::new(&options.profile);
    for (way, spec) in ways {
        let mut command = options.command("node0.host", &me)?;
        command.args(["client", way.name()]).env("NAA_SPEC", &spec);
        command.env("NAAICE_KEYS", if way == Way::Ksm { "ksm" } else { "pool" });
        let mut client = Running::start(&mut command)?;
        for size in &options.sizes {
            let row = measure(&options, &mut client, way, *size, &mut report)
                .with_context(|| format!("{} with {size} bytes", way.name()))?;
            report.rows.push(row);
        }
    }
    drop(original);
    report.write(&options.output)?;
    println!("{}", report.markdown());
    if report.mismatches > 0 {
        bail!("{} bytes are wrong", report.mismatches);
    }
    Ok(())
}

/// Measures one size of one way.
fn measure(
    options: &Options,
    client: &mut Running,
    way: Way,
    size: usize,
    report: &mut Report,
) -> Result<Row> {
    let count = options.iterations;
    let warm_up = client.batch(Batch::OneShots {
        size,
        count: WARM_UP,
    })?;
    report.count(&warm_up);
    let before = options.counters()?;
    let shots = client.batch(Batch::OneShots { size, count })?;
    let commands = options
        .counters()?
        .since(&before)?
        .per_iteration(u64::from(count));
    report.count(&shots);
    let calls = client.batch(Batch::Calls { size, count })?;
    report.count(&calls);
    let median = |times: &[u64]| -> Result<f64> {
        let mut samples = Samples::default();
        samples.extend_ns(times);
        samples.percentile(50).context("no samples")
    };
    Ok(Row {
        way,
        size,
        create_us: median(&shots.create_ns)?,
        call_us: median(&calls.call_ns)?,
        one_shot_us: median(&shots.one_shot_ns)?,
        commands_per_one_shot: commands,
    })
}
