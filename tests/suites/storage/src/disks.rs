//! Volumes on memory, files with and without the cache, TCP and RDMA targets beside a stock pair of mirrored disks: rates, processor time, and messages, by the
//! same fio jobs on files of one file system, and verified.
//!
//! The pair is two exports of nbdkit's file plugin, mirrored by QEMU's quorum driver: it writes and flushes both, and reads the
//! first one.

use super::place::Served;
use super::{FILES, LIMIT, Place, START, Server, World, waits};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testbed::cluster::Cluster;
use testbed::port;
use testbed::process::Running;
use testbed::workspace;

/// Size of a volume in MiB.
const SIZE_MIB: u64 = 256;
const MIB: f64 = (1 << 20) as f64;
/// Most messages to a target for a group of 256 KiB.
const SENDS_MAX: f64 = 4.0;
/// Time for which the socket of the host is measured.
const SOCKET: Duration = Duration::from_secs(1);
/// Bytes that it is given at once.
const PIECE: usize = 256 << 10;
/// Rounds of what is compared by turns.
const ROUNDS: usize = 5;

/// Jobs: name, size of a request as the client and the report write it, and options of fio. What they read was written by those
/// before. Without options the client is `storage_writes.py`.
const PATTERNS: [(&str, &str, u64, &[&str]); 4] = [
    (
        "sequential write",
        "256k",
        256 << 10,
        &["--rw=write", "--iodepth=8"],
    ),
    // A flush behind each 64 MiB, and one at the end: all bytes reach the disks within the processor time that is counted.
    (
        FLUSHED,
        "256k",
        256 << 10,
        &["--rw=write", "--iodepth=8", "--fsync=256", "--end_fsync=1"],
    ),
    (READ, "256k", 256 << 10, &["--rw=read", "--iodepth=8"]),
    ("random write", "4k", 4 << 10, &[]),
];
const FLUSHED: &str = "sequential write, flushed";
const READ: &str = "sequential read";
/// Jobs that verify what they write.
const VERIFIED: [&[&str]; 2] = [
    &["--rw=write", "--bs=256k", "--iodepth=8"],
    &["--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=32M"],
];

/// A new target takes the place of the first one, and is completed.
const REBUILD: &str = "rebuild";

/// What fio writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Memory,
    File,
    /// Files past the system's cache.
    Direct,
    Tcp,
    /// Two whole copies, as the pair has them.
    Copies,
    /// The same of longer blocks, as a volume for long writes has them.
    Coarse,
    /// Four parts and two parities.
    Parts,
    /// On three functions of the emulated device, and the export on a fourth one.
    Rdma,
    Pair,
}

impl Peer {
    const ALL: [Self; 9] = [
        Self::Memory,
        Self::File,
        Self::Direct,
        Self::Tcp,
        Self::Copies,
        Self::Coarse,
        Self::Parts,
        Self::Rdma,
        Self::Pair,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::File => "file",
            Self::Direct => "file, direct",
            Self::Tcp => "tcp",
            Self::Copies => "tcp, mirror-2",
            Self::Coarse => "tcp, mirror-2, 64 KiB blocks",
            Self::Parts => "tcp, 4+2",
            Self::Rdma => "rdma",
            Self::Pair => "nbdkit file, mirrored by qemu",
        }
    }

    const fn layout(self) -> &'static str {
        match self {
            Self::Copies | Self::Coarse => "mirror-2",
            Self::Parts => "4+2",
            Self::Memory | Self::File | Self::Direct | Self::Tcp | Self::Rdma | Self::Pair => "2+1",
        }
    }

    const fn block_size(self) -> &'static str {
        match self {
            Self::Coarse => "65536",
            _ => "4096",
        }
    }

    /// Files of targets in processes of their own.
    const fn files(self) -> &'static [&'static str] {
        match self {
            Self::Tcp | Self::Rdma => &FILES,
            Self::Copies | Self::Coarse => &["1", "2"],
            Self::Parts => &["1", "2", "3", "4", "5", "6"],
            Self::Memory | Self::File | Self::Direct | Self::Pair => &[],
        }
    }
}

/// Its processes, and the device of those that use RDMA. The fields end in their order.
struct Disks(Served, Option<Cluster>);

/// Functions of RDMA targets, and of their export.
const FUNCTIONS: [&str; 3] = ["node1.host", "node1.dpu", "node0.dpu"];
const EXPORT: &str = "node0.host";

/// Processor time of processes, in the system's ticks.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    user: u64,
    system: u64,
}

impl Spent {
    fn of(id: u32) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
        // The name of the program may have spaces.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let field = |nth: usize| -> Result<u64> {
            let field = fields.split_whitespace().nth(nth).context("a field")?;
            field.parse().context("a number")
        };
        Ok(Self {
            user: field(11)?,
            system: field(12)?,
        })
    }

    fn and(self, other: Self) -> Self {
        Self {
            user: self.user + other.user,
            system: self.system + other.system,
        }
    }

    /// What was spent since then.
    fn since(self, before: Self) -> Self {
        Self {
            user: self.user - before.user,
            system: self.system - before.system,
        }
    }
}

/// What is counted before and after a job.
struct Counts {
    processor: Duration,
    /// Of the process that clients connect to, and of those behind it.
    spent: [Spent; 2],
    /// Bytes of half blocks that were sent to targets.
    moved: u64,
    /// Calls of each target.
    calls: Vec<u64>,
    /// Reads of all functions by RDMA.
    reads: u64,
    /// Calls of the system that write, by the process that clients connect to.
    writes: u64,
}

/// Calls of the system by which a process has written.
fn writes_of(id: u32) -> Result<u64> {
    let io = fs::read_to_string(format!("/proc/{id}/io"))?;
    let mut lines = io.lines();
    let writes = lines.find_map(|line| line.strip_prefix("syscw: "));
    writes.context("syscw")?.parse().context("a number")
}

/// Seconds that a call of the system takes beside its work.
fn entry() -> f64 {
    const TIMES: u32 = 1 << 20;
    let begun = Instant::now();
    for _ in 0..TIMES {
        // SAFETY: no memory is involved.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
    begun.elapsed().as_secs_f64() / f64::from(TIMES)
}

impl Disks {
    fn start(place: &Place<'_>, peer: Peer) -> Result<Self> {
        let size = format!("{SIZE_MIB}M");
        // A slow disk is no absent one.
        let more = ["--target-timeout", "60s", "--status-socket", "status"];
        match peer {
            Peer::Memory => {
                let server = place.export(&[&["--memory", &size], &more[..]].concat())?;
                Ok(Self(Served::alone(server), None))
            }
            Peer::File | Peer::Direct => {
                place.create(SIZE_MIB, 4096)?;
                let direct: &[&str] = match peer {
                    Peer::Direct => &["--direct"],
                    _ => &[],
                };
                let server = place.export(&[&FILES[..], &more, direct].concat())?;
                Ok(Self(Served::alone(server), None))
            }
            Peer::Tcp | Peer::Copies | Peer::Coarse | Peer::Parts | Peer::Rdma => {
                let create = ["--size", &size, "--layout", peer.layout()];
                let create = [&create[..], &["--block-size", peer.block_size()]].concat();
                place.ours(&[&["create"], peer.files(), &create].concat())?;
                let scheme = if peer == Peer::Rdma { "rdma" } else { "tcp" };
                let by_rdma = peer == Peer::Rdma;
                let device = by_rdma.then(|| place.world.cluster(2)).transpose()?;
                let program = place.world.bin.join("xgvmi-blk");
                let on = |function: &str| match &device {
                    Some(device) => device.command(function, &program),
                    None => Command::new(&program),
                };
                let mut behind = Vec::new();
                let mut words = Vec::new();
                for (name, function) in peer.files().iter().zip(FUNCTIONS.iter().cycle()) {
                    let listen = format!("127.0.0.1:{}", port::free()?);
                    let mut command = on(function);
                    command.args(["target", name, "--listen", &listen]);
                    command.args(["--status-socket", &status_of(name)]);
                    command.args(by_rdma.then_some("--rdma"));
                    command.current_dir(&place.dir);
                    let says = format!(" at {scheme}:");
                    behind.push(Running::saying(&mut command, START, &says)?);
                    words.push(format!("{scheme}:{listen}"));
                }
                let mut command = on(EXPORT);
                command.arg("export").args(words).args(more);
                command.args(["--socket", "socket"]);
                command.current_dir(&place.dir);
                let server = Server {
                    running: Running::saying(&mut command, START, "exports volume")?,
                    uri: "nbd+unix:///?socket=socket".to_owned(),
                    service: None,
                };
                Ok(Self(Served { server, behind }, device))
            }
            Peer::Pair => Self::pair(place),
        }
    }

    fn pair(place: &Place<'_>) -> Result<Self> {
        let mut behind = Vec::new();
        let mut options = "driver=quorum,vote-threshold=1,read-pattern=fifo".to_owned();
        for (at, name) in ["one", "other"].into_iter().enumerate() {
            fs::File::create(place.path(name))?.set_len(SIZE_MIB << 20)?;
            let port = port::free()?;
            let port = port.to_string();
            let pid = format!("{name}.pid");
            let words = [
                "-f",
                "-i",
                "127.0.0.1",
                "-p",
                &port,
                "-P",
                &pid,
                "file",
                name,
            ];
            behind.push(place.stock_server("nbdkit", &words, &pid)?);
            for (key, value) in [
                ("driver", "nbd"),
                ("server.type", "inet"),
                ("server.host", "127.0.0.1"),
                ("server.port", &port),
            ] {
                options += &format!(",children.{at}.{key}={value}");
            }
        }
        let socket = place.path("socket");
        let socket = socket.to_str().context("the path of the socket")?;
        let words = [
            "--persistent",
            "--shared=8",
            "--image-opts",
            "-k",
            socket,
            &options,
        ];
        let server = Server {
            running: place.stock_server("qemu-nbd", &words, "socket")?,
            uri: "nbd+unix:///?socket=socket".to_owned(),
            service: None,
        };
        Ok(Self(Served { server, behind }, None))
    }

    /// Device commands that connecting to a target takes on both sides, of those that have done nothing else yet.
    fn commands(&self) -> Result<Option<f64>> {
        let Some(device) = &self.1 else {
            return Ok(None);
        };
        let stats = device.stats()?;
        let mut commands = 0;
        for function in FUNCTIONS.iter().chain([&EXPORT]) {
            commands += stats.all_commands(function)?.values().sum::<u64>();
        }
        Ok(Some(commands as f64 / FUNCTIONS.len() as f64))
    }

    /// Replaces the first target by an empty one. The bytes are those of the volume, as of its sequential writes.
    fn rebuild(&mut self, place: &Place<'_>, peer: Peer) -> Result<Value> {
        const NEW: &str = "new";
        let shown = status(place, "status")?["volume"]["targets"][0]["role"].clone();
        let role = shown.as_str().context("the role of a target")?;
        place.ours(&["create", NEW, "--like", "status", "--role", role])?;
        let listen = format!("127.0.0.1:{}", port::free()?);
        let mut command = Command::new(place.world.bin.join("xgvmi-blk"));
        command.args(["target", NEW, "--listen", &listen]);
        command.args(["--status-socket", &status_of(NEW)]);
        command.current_dir(&place.dir);
        let running = Running::saying(&mut command, START, " at tcp:")?;
        self.0.behind.push(running);
        let before = self.counts(place, peer)?;
        let begun = Instant::now();
        let target = format!("tcp:{listen}");
        place.ours(&["ctl", "--socket", "status", "replace", &target, "--wait"])?;
        let seconds = begun.elapsed().as_secs_f64();
        // All targets are complete.
        let after = self.counts(place, peer)?;
        let calls = status(place, &status_of(NEW))?["calls"].as_u64();
        let (size, mib) = (256 << 10, SIZE_MIB as f64);
        let cpu_s = (after.processor - before.processor).as_secs_f64();
        Ok(json!({
            "peer": peer.name(), "pattern": REBUILD, "block": size,
            "mib_per_s": mib / seconds,
            "cpu_s_per_gib": cpu_s * 1024.0 / mib,
            "sends_per_group": calls.context("calls")? as f64 / (mib * 4.0),
            "reads_per_group": None::<f64>,
            "flushes": 0,
            "disk_mib_per_cpu_s": (after.moved - before.moved) as f64 / MIB / cpu_s,
        }))
    }

    fn counts(&self, place: &Place<'_>, peer: Peer) -> Result<Counts> {
        let mut behind = Spent::default();
        for running in &self.0.behind {
            behind = behind.and(Spent::of(running.group.child.id())?);
        }
        let front = Spent::of(self.0.server.running.group.child.id())?;
        let mut counts = Counts {
            processor: self.0.processor()?,
            spent: [front, behind],
            moved: 0,
            calls: Vec::new(),
            reads: 0,
            writes: writes_of(self.0.server.running.group.child.id())?,
        };
        if let Some(device) = &self.1 {
            counts.reads = device.stats()?.executed("rdma_read")?;
        }
        if peer != Peer::Pair {
            let volume = status(place, "status")?["volume"].clone();
            counts.moved = volume["moved_bytes"].as_u64().context("moved bytes")?;
            let targets = volume["targets"].as_array().context("targets")?;
            let are_whole = targets.iter().all(|target| target["complete"] == true);
            ensure!(are_whole, "a target was lost: {volume}");
        }
        for name in peer.files() {
            let calls = status(place, &status_of(name))?["calls"].as_u64();
            counts.calls.push(calls.context("calls")?);
        }
        Ok(counts)
    }
}

/// The status socket of a target.
fn status_of(name: &str) -> String {
    format!("{name}.status")
}

fn status(place: &Place<'_>, socket: &str) -> Result<Value> {
    let text = place.ours(&["status", "--json", "--socket", socket])?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

/// A job of fio on an export. Returns its part of the report.
fn job(place: &Place<'_>, uri: &str, options: &[&str]) -> Result<Value> {
    let uri = format!("--uri={uri}");
    let size = format!("--size={SIZE_MIB}M");
    let words = [
        "--name=job",
        "--ioengine=nbd",
        "--randrepeat=1",
        "--output-format=json",
        &uri,
        &size,
    ];
    let text = place.stock_within(LIMIT, "fio", &[&words[..], options].concat())?;
    let json = text.find('{').map_or("", |at| &text[at..]);
    let report: Value = serde_json::from_str(json).with_context(|| text.clone())?;
    let job = report["jobs"][0].clone();
    ensure!(job["error"] == 0, "fio: error {}", job["error"]);
    Ok(job)
}

/// The rows of all peers, each job for `seconds`, and one row of what a socket of this host carries.
///
/// # Errors
/// A server or a job fails, fio finds wrong bytes, or a group takes more messages than it should.
pub(super) fn measure(world: &World<'_>, seconds: u64) -> Result<(Value, Value)> {
    let mut rows = Vec::new();
    let mut verified = 0;
    let mut commands = None;
    for peer in Peer::ALL {
        let place = Place::on_host(world, "disks")?;
        let mut disks = Disks::start(&place, peer)?;
        commands = commands.or(disks.commands()?);
        // Reads find data everywhere, and files have their size.
        job(
            &place,
            &disks.0.server.uri,
            &["--rw=write", "--bs=1M", "--iodepth=4", "--end_fsync=1"],
        )?;
        for pattern in PATTERNS {
            let row = row(&place, &disks, peer, pattern, seconds);
            rows.push(row.with_context(|| format!("{}: {}", peer.name(), pattern.0))?);
        }
        if matches!(peer, Peer::Tcp | Peer::Parts) {
            rows.push(disks.rebuild(&place, peer).context(peer.name())?);
        }
        for options in VERIFIED {
            let more = ["--verify=crc32c", "--verify_fatal=1"];
            let job = job(&place, &disks.0.server.uri, &[options, &more].concat())?;
            let read = job["read"]["io_bytes"].as_u64().context("verified bytes")?;
            ensure!(read > 0, "nothing is verified: {job}");
            verified += read;
        }
    }
    let by_turns = by_turns(world, seconds)?;
    let rate = |pattern: &str| {
        let is_it = |row: &&Value| row["peer"] == Peer::Tcp.name() && row["pattern"] == pattern;
        rows.iter().find(is_it)?["mib_per_s"].as_f64()
    };
    // The part of the processor time of writes past the system's cache that is the entry into calls of the system: so much could
    // be saved by asking for several at once.
    let entries = |row: &Value| {
        let groups_per_gib = (1_u64 << 30) as f64 / row["block"].as_f64()?;
        let writes = row["writes_per_group"].as_f64()? * groups_per_gib;
        Some(writes * entry() / row["cpu_s_per_gib"].as_f64()?)
    };
    let direct = |row: &&Value| row["peer"] == Peer::Direct.name() && row["pattern"] == FLUSHED;
    let entries = rows.iter().find(direct).and_then(entries);
    let write = rate(PATTERNS[0].0).context("the writes")?;
    let mut total = json!([{
        "verified_bytes": verified,
        "rebuild_of_write": rate(REBUILD).context("the rebuild")? / write,
        "rdma_commands_per_target": commands,
        "direct_entries_of_cpu": entries.context("writes past the cache")?,
    }]);
    for (name, value) in by_turns {
        total[0][name] = value.into();
    }
    Ok((rows.into(), total))
}

/// What is compared in short rounds by turns, as a host's rate changes within minutes: medians of the rounds.
fn by_turns(world: &World<'_>, seconds: u64) -> Result<Vec<(&'static str, f64)>> {
    let begin = |name: &str, peer: Peer| -> Result<_> {
        let place = Place::on_host(world, name)?;
        let disks = Disks::start(&place, peer)?;
        let fill = ["--rw=write", "--bs=1M", "--iodepth=4", "--end_fsync=1"];
        job(&place, &disks.0.server.uri, &fill)?;
        Ok((disks, place, peer))
    };
    let number = |of: &(Disks, Place<'_>, Peer), pattern: &str, name: &str| -> Result<f64> {
        let job = PATTERNS.into_iter().find(|of| of.0 == pattern);
        let row = row(&of.1, &of.0, of.2, job.context("the job")?, seconds)?;
        row[name].as_f64().context("a number")
    };
    let mut rounds = [(); 5].map(|()| Vec::new());
    let tcp = begin("disks", Peer::Tcp)?;
    for _ in 0..ROUNDS {
        let (socket, relay) = (carries(false)?, carries(true)?);
        let read = number(&tcp, READ, "mib_per_s")?;
        for (all, one) in rounds
            .iter_mut()
            .zip([socket, relay, read / socket, read / relay])
        {
            all.push(one);
        }
    }
    drop(tcp);
    let both = [begin("disks", Peer::Copies)?, begin("pair", Peer::Pair)?];
    for _ in 0..ROUNDS {
        let [copies, pair] = &both;
        let rate = |of| number(of, FLUSHED, "disk_mib_per_cpu_s");
        rounds[4].push(rate(copies)? / rate(pair)?);
    }
    let names = [
        "socket_mib_per_s",
        "relay_mib_per_s",
        "read_of_socket",
        "read_of_relay",
        "flushed_of_pair",
    ];
    Ok(names.into_iter().zip(rounds.map(median)).collect())
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of[of.len() / 2]
}

/// What a client has done.
struct Done {
    bytes: f64,
    flushes: u64,
    seconds: f64,
}

/// Random writes with flushes.
fn random_writes(place: &Place<'_>, uri: &str, seconds: u64) -> Result<Done> {
    let script = workspace::root().join("tests/suites/storage_writes.py");
    let script = script.to_str().context("the path of the script")?;
    // Debian's interpreter: its modules work with no other.
    let text = place.stock("/usr/bin/python3", &[script, uri, &seconds.to_string()])?;
    let done: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    Ok(Done {
        bytes: done["bytes"].as_f64().context("bytes")?,
        flushes: done["flushes"].as_u64().context("flushes")?,
        seconds: done["seconds"].as_f64().context("seconds")?,
    })
}

fn row(
    place: &Place<'_>,
    disks: &Disks,
    peer: Peer,
    (pattern, bs, size, options): (&str, &str, u64, &[&str]),
    seconds: u64,
) -> Result<Value> {
    let before = disks.counts(place, peer)?;
    let kind = if pattern.ends_with("read") {
        "read"
    } else {
        "write"
    };
    let work = || match options {
        [] => random_writes(place, &disks.0.server.uri, seconds),
        options => {
            let (bs, runtime) = (format!("--bs={bs}"), format!("--runtime={seconds}"));
            let timed = [bs.as_str(), "--time_based", runtime.as_str()];
            let job = job(place, &disks.0.server.uri, &[options, &timed].concat())?;
            let number = |name: &str| job[kind][name].as_f64().context("fio's report");
            let bytes = number("io_bytes")?;
            Ok(Done {
                bytes,
                flushes: job["sync"]["total_ios"].as_u64().unwrap_or(0),
                seconds: bytes / number("bw_bytes")?,
            })
        }
    };
    let id = |running: &Running| running.group.child.id();
    let behind: Vec<u32> = disks.0.behind.iter().map(id).collect();
    let (done, waits) = waits::during([&[id(&disks.0.server.running)], &behind], work);
    let Done {
        bytes,
        flushes,
        seconds,
    } = done?;
    let after = disks.counts(place, peer)?;
    ensure!(bytes > 0.0, "nothing was done");
    ensure!(flushes > 0 || pattern != FLUSHED, "fio has flushed nothing");
    let cpu_s = (after.processor - before.processor).as_secs_f64();
    let disk_bytes = match (kind, peer) {
        ("read", _) => bytes,
        (_, Peer::Pair) => 2.0 * bytes,
        _ => (after.moved - before.moved) as f64,
    };
    let groups = bytes / size as f64;
    let sends = after.calls.iter().zip(&before.calls);
    let sends = sends.map(|(after, before)| (after - before) as f64 / groups);
    let sends = sends.fold(None, |most: Option<f64>, sends| {
        Some(most.map_or(sends, |most| most.max(sends)))
    });
    if size >= 256 << 10 {
        ensure!(
            sends.is_none_or(|sends| sends <= SENDS_MAX),
            "{sends:?} messages to a target for a group of {size} bytes; the most is {SENDS_MAX}"
        );
    }
    // SAFETY: no memory is involved.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let gib = bytes / MIB / 1024.0;
    let spent = |of: usize| {
        let spent = after.spent[of].since(before.spent[of]);
        json!({
            "user_s": spent.user as f64 / ticks / gib,
            "system_s": spent.system as f64 / ticks / gib,
            "waits_per_group": waits[of] as f64 / groups,
        })
    };
    let (front, behind) = (spent(0), spent(1));
    Ok(json!({
        "peer": peer.name(), "pattern": pattern, "block": size,
        "where": {"front": front, "targets": behind},
        "mib_per_s": bytes / MIB / seconds,
        "cpu_s_per_gib": cpu_s * 1024.0 * MIB / bytes,
        "sends_per_group": sends,
        "reads_per_group": disks.1.as_ref().map(|_| (after.reads - before.reads) as f64 / groups),
        "writes_per_group": (after.writes - before.writes) as f64 / groups,
        "flushes": flushes,
        "disk_mib_per_cpu_s": disk_bytes / MIB / cpu_s,
    }))
}

/// MiB per second that a TCP connection of this host carries, in pieces of 256 KiB. With `relayed` a thread between passes them
/// on by a second socket, as an export does to its client: no read of remote targets can be faster.
fn carries(relayed: bool) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    let sends = std::thread::spawn(move || -> std::io::Result<()> {
        let piece = vec![7; PIECE];
        let begun = Instant::now();
        while begun.elapsed() < SOCKET {
            server.write_all(&piece)?;
        }
        Ok(())
    });
    let begun = Instant::now();
    let bytes = match relayed {
        false => drain(&mut client)?,
        true => {
            let (mut near, mut far) = UnixStream::pair()?;
            let relays = std::thread::spawn(move || -> std::io::Result<()> {
                let mut piece = vec![0; PIECE];
                loop {
                    match client.read(&mut piece)? {
                        0 => return Ok(()),
                        count => near.write_all(&piece[..count])?,
                    }
                }
            });
            let bytes = drain(&mut far)?;
            ended(relays)?;
            bytes
        }
    };
    let taken = begun.elapsed().as_secs_f64();
    ended(sends)?;
    Ok(bytes as f64 / MIB / taken)
}

/// Reads all, and returns how much it was.
fn drain(stream: &mut impl std::io::Read) -> std::io::Result<usize> {
    let (mut piece, mut bytes) = (vec![0; PIECE], 0);
    loop {
        match stream.read(&mut piece)? {
            0 => return Ok(bytes),
            count => bytes += count,
        }
    }
}

fn ended(thread: JoinHandle<std::io::Result<()>>) -> std::io::Result<()> {
    let done = thread.join();
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![9.0, 1.0, 3.0]), 3.0);
    }

    #[test]
    fn a_socket_carries_something() {
        assert!(carries(false).unwrap() > 1.0);
        assert!(carries(true).unwrap() > 1.0);
    }
}
