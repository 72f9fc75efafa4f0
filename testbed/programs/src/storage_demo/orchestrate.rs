//! Starts targets, services and clients; writes, verifies, loses a target, rebuilds; measures the schemes.

use super::client::{Batch, Span};
use super::done::Done;
use super::pattern::Kind;
use super::report::{Bytes, Processor, Report, Row, SCHEMES, Times, percentile};
use crate::demo::Common;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testbed::client::Client;
use testbed::cluster::Cluster;
use testbed::port;

pub(super) const MIB: u64 = 1 << 20;
/// Bytes of a request when data is written and verified.
pub(super) const REQUEST: usize = 1 << 20;
/// Requests at once.
pub(super) const THREADS: usize = 4;
/// Untimed transfers of each scheme and size.
const WARM_UP: u32 = 8;
/// Transfers of a scheme before the next one has its turn: slow changes of the machine concern all of them. Each round of
/// turns begins with another scheme.
const TURN: u32 = 5;
/// Longest wait for a state of the volume.
const LIMIT: Duration = Duration::from_secs(120);
/// A busy disk must not make a target absent. A killed target closes its connection.
const TARGET_TIMEOUT: &str = "60s";
/// The three targets are on both nodes.
const PLACES: [&str; 3] = ["node0.dpu", "node1.dpu", "node1.host"];

/// The cluster, and directories for the targets.
pub(super) struct Options<'a> {
    pub(super) common: &'a Common,
    /// Stock UCX's `libucp.so.0`.
    pub(super) libucp: &'a str,
    pub(super) cluster: Cluster,
    /// The program `xgvmi-blk`.
    pub(super) program: PathBuf,
    /// For the targets of the first part.
    pub(super) disk: &'a Path,
    /// For the targets of the other parts, in memory.
    pub(super) memory: PathBuf,
    pub(super) bytes: u64,
}

impl Options<'_> {
    /// Creates the targets of a volume.
    fn create(&self, directory: &Path, size: u64, block: &str) -> Result<Vec<PathBuf>> {
        let files: Vec<PathBuf> = ["a", "b", "c"].map(|name| directory.join(name)).into();
        let words = ["--size", &size.to_string(), "--block-size", block];
        let files_and_words = files.iter().map(|file| file.as_os_str());
        let files_and_words = files_and_words.chain(words.iter().map(OsStr::new));
        self.ours("create", files_and_words)?;
        Ok(files)
    }

    /// Runs a command of the program that ends.
    pub(super) fn ours(
        &self,
        name: &str,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<()> {
        let output = Command::new(&self.program).arg(name).args(words).output()?;
        ensure!(
            output.status.success(),
            "xgvmi-blk {name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    pub(super) fn target(&self, index: usize, file: &Path, port: u16) -> Result<Client> {
        let mut command = self
            .cluster
            .command(PLACES[index % PLACES.len()], &self.program);
        command.arg("target").arg(file);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        Client::saying(&mut command, " serves ")
    }

    /// A service on node0.dpu, and where its status is.
    pub(super) fn service(&self, targets: &[String], port: u16) -> Result<(Client, PathBuf)> {
        let status = self.memory.join(format!("status-{port}"));
        let mut command = self.cluster.command("node0.dpu", &self.program);
        command.arg("service").args(targets);
        command.args(["--target-timeout", TARGET_TIMEOUT, "--stock-keys"]);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        command.arg("--status-socket").arg(&status);
        Ok((Client::saying(&mut command, " serves ")?, status))
    }

    /// A client on node0.host.
    pub(super) fn client(&self, words: &[&str]) -> Result<Client> {
        let mut command = self.cluster.command("node0.host", std::env::current_exe()?);
        command.arg("storage-client").args(words);
        Client::saying(&mut command, "connected to ")
    }

    pub(super) fn status(&self, socket: &Path) -> Result<Value> {
        let mut command = Command::new(&self.program);
        command.args(["status", "--json", "--socket"]).arg(socket);
        let output = command.output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Waits for a state of the volume.
    pub(super) fn until(
        &self,
        socket: &Path,
        what: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let end = Instant::now() + LIMIT;
        loop {
            let status = self.status(socket)?;
            if is(&status["volume"]) {
                return Ok(status);
            }
            ensure!(Instant::now() < end, "{what} takes too long: {status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Carries out a batch, of which no request fails.
pub(super) fn carry_out(client: &mut Client, batch: &Batch) -> Result<Done> {
    client.send(batch)?;
    answer(client)
}

fn answer(client: &mut Client) -> Result<Done> {
    let done: Done = client.answer()?;
    ensure!(done.failed == 0, "a request has failed: {}", done.reason);
    Ok(done)
}

/// Writes and verifies, loses a target under writes, rebuilds it, and repeats the work on the host's cores.
pub(super) fn data(options: &Options<'_>, report: &mut Report) -> Result<()> {
    let files = options.create(options.disk, options.bytes, "4096")?;
    let ports = [port::free()?, port::free()?, port::free()?];
    let names: Vec<String> = ports.map(|port| format!("tcp:127.0.0.1:{port}")).into();
    let mut targets = Vec::new();
    for (index, (file, port)) in files.iter().zip(ports).enumerate() {
        targets.push(options.target(index, file, port)?);
    }
    let port = port::free()?;
    let (service, status) = options.service(&names, port)?;
    let mut client = options.client(&["announced", &format!("127.0.0.1:{port}")])?;
    let span = |seed| Span {
        offset: 0,
        length: options.bytes,
        request: REQUEST,
        threads: THREADS,
        seed,
        kind: Kind::Mixed,
    };
    let mut pass = |client: &mut Client, batch: &Batch| -> Result<u64> {
        let done = carry_out(client, batch)?;
        report.count(&done);
        Ok(done.processor_ns)
    };
    let offloaded = [Batch::Write(span(1)), Batch::Read(span(1))];
    let offloaded = offloaded.map(|batch| pass(&mut client, &batch));
    let full = options.status(&status)?["volume"].clone();
    let number = |value: &Value| value.as_u64().context("a number of the status");
    let moved = number(&full["moved_bytes"])?;
    let mut stored = 0;
    for target in full["targets"].as_array().context("targets")? {
        stored += number(&target["used"])?;
    }
    // A target is killed when half of the data is rewritten.
    client.send(&Batch::Write(span(2)))?;
    options.until(&status, "half of the data", |volume| {
        volume["written_bytes"].as_u64() >= Some(options.bytes * 3 / 2)
    })?;
    drop(targets.remove(0));
    answer(&mut client)?;
    // That may have been the last write: some come after it in any case.
    let again = Span {
        length: options.bytes / 2,
        ..span(2)
    };
    carry_out(&mut client, &Batch::Write(again))?;
    pass(&mut client, &Batch::Read(span(2)))?;
    let lost = options.status(&status)?["volume"]["targets"][0].clone();
    let rebuilt = number(&lost["missing_blocks"])?;
    ensure!(rebuilt > 0, "the killed target lacks nothing: {lost}");
    targets.insert(0, options.target(0, &files[0], ports[0])?);
    options.until(&status, "the rebuild", |volume| {
        let target = &volume["targets"][0];
        target["absent"] == "" && target["missing_blocks"] == 0
    })?;
    pass(&mut client, &Batch::Read(span(2)))?;
    drop((client, service));
    // The same work without a DPU.
    let words = std::iter::once("direct").chain(names.iter().map(String::as_str));
    let mut direct = options.client(&words.collect::<Vec<_>>())?;
    let host = [Batch::Write(span(3)), Batch::Read(span(3))];
    let host = host.map(|batch| pass(&mut direct, &batch));
    let [write, read] = offloaded;
    let [host_write, host_read] = host;
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
    let per_gib = |ns: u64| ns as f64 / 1e9 / (2.0 * options.bytes as f64 / f64::from(1 << 30));
    report.host_cpu_s_per_gib = Processor {
        offloaded: per_gib(write? + read?),
        host: per_gib(host_write? + host_read?),
    };
    report.rebuilt = rebuilt;
    report.bytes = Bytes {
        written: options.bytes,
        moved,
        stored,
        // Two halves and their parity, each padded to half a block.
        reference: options.bytes * 3 / 2,
    };
    Ok(())
}

/// Measures all schemes in turns, on targets in memory.
pub(super) fn schemes(options: &Options<'_>, report: &mut Report) -> Result<()> {
    let largest = options.common.sizes.iter().max().context("no sizes")?;
    let size = (8 * *largest as u64).max(16 * MIB);
    let files = options.create(&options.memory, size, "65536")?;
    let names: Vec<String> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    let port = port::free()?;
    let (_service, _) = options.service(&names, port)?;
    let mut clients = Vec::new();
    for scheme in SCHEMES {
        let address = format!("127.0.0.1:{port}");
        clients.push(options.client(&[scheme, &address, "--libucp", options.libucp])?);
    }
    let mut seed = 0;
    let mut fresh = |size: usize, count: u32| {
        seed += u64::from(count);
        Batch::Fresh {
            size,
            count,
            seed,
            kind: Kind::Plain,
        }
    };
    for &size in &options.common.sizes {
        let mut times = SCHEMES.map(|_| Times::default());
        let mut commands = Vec::new();
        for (scheme, client) in SCHEMES.iter().zip(&mut clients) {
            // The first transfer with announced keys counts like all others.
            if *scheme != "announced" {
                report.count(&carry_out(client, &fresh(size, WARM_UP))?);
            }
            let before = options.cluster.counters()?;
            report.count(&carry_out(client, &fresh(size, WARM_UP))?);
            let since = options.cluster.counters()?.since(&before)?;
            commands.push(since.per_iteration(2 * u64::from(WARM_UP)));
        }
        for round in 0..options.common.iterations.div_ceil(TURN) as usize {
            for turn in 0..SCHEMES.len() {
                let at = (round + turn) % SCHEMES.len();
                let done = carry_out(&mut clients[at], &fresh(size, TURN))?;
                report.count(&done);
                times[at].add(&done)?;
            }
        }
        let stock = SCHEMES.iter().position(|scheme| *scheme == "stock");
        let stock = times[stock.context("a scheme")?].rounds.clone();
        for ((scheme, times), commands) in SCHEMES.iter().zip(times).zip(commands) {
            let row = Row::new(scheme, size, (&times, &stock), commands)?;
            report.rows.push(row);
        }
    }
    Ok(())
}

impl Times {
    /// A sample is the mean of a write and a read of the same bytes.
    fn add(&mut self, done: &Done) -> Result<()> {
        let pairs = done.write_ns.iter().zip(&done.read_ns);
        let both: Vec<u64> = pairs.map(|(write, read)| (write + read) / 2).collect();
        self.rounds.push(percentile(&both, 50)?);
        self.both.extend(both);
        self.write.extend(&done.write_ns);
        self.read.extend(&done.read_ns);
        Ok(())
    }
}
