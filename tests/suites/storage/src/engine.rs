//! fio with our engine, whose requests a service on an emulated DPU carries out: verified, and measured by the way in which
//! the service gets access to fio's memory.

use super::{FILES, LIMIT, Place, SIZE_MIB, START, Way, World};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use testbed::cluster::Cluster;
use testbed::process::{self, Running};

/// Ways to fio's memory.
const SCHEMES: [&str; 5] = ["copy", "ksm", "stock", "xgvmi", "announced"];
/// Sizes of the measured requests, as fio and the report write them.
const SIZES: [(&str, u64); 6] = [
    ("4k", 4 << 10),
    ("16k", 16 << 10),
    ("64k", 64 << 10),
    ("256k", 256 << 10),
    ("1M", 1 << 20),
    ("4M", 4 << 20),
];
/// Measured requests of each size, way and direction.
const REQUESTS: &str = "--number_ios=200";
/// The emulated device's times of commands.
const PROFILE: &str = "bluefield3";

/// An emulated node with a volume, whose targets are in memory.
struct Node<'a> {
    world: &'a World<'a>,
    device: Cluster,
    service: Option<Running>,
    address: String,
    /// Its targets, or volumes.
    targets: Vec<String>,
    /// More options of the service.
    options: Vec<String>,
}

impl<'a> Node<'a> {
    fn new(world: &'a World<'a>, block_size: &str) -> Result<Self> {
        let device = world.cluster(1)?.with(["--profile", PROFILE]);
        let mut create = Command::new(world.bin.join("xgvmi-blk"));
        create.arg("create").args(FILES).current_dir(device.path());
        create.args([
            "--size",
            &format!("{SIZE_MIB}M"),
            "--block-size",
            block_size,
        ]);
        process::stdout(&mut create, LIMIT)?;
        let port = testbed::port::free()?;
        let mut node = Self {
            world,
            device,
            service: None,
            address: format!("127.0.0.1:{port}"),
            targets: FILES.map(str::to_owned).to_vec(),
            options: Vec::new(),
        };
        node.serve()?;
        Ok(node)
    }

    /// A file of the node that only its owner can read.
    fn secret(&self, name: &str, bytes: &[u8]) -> Result<String> {
        let path = self.device.path().join(name);
        fs::write(&path, bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(path.display().to_string())
    }

    /// A program in a function of the node.
    fn command(&self, function: &str, program: &Path) -> Command {
        let mut command = self.device.command(function, program);
        command.current_dir(self.device.path());
        process::without_ucx_settings(&mut command);
        for (name, value) in self.world.tools.iter().chain(self.world.verbs) {
            let other = |both: &[(String, String)]| {
                let found = both.iter().find(|(other, _)| other == name);
                found.map(|(_, value)| value.clone())
            };
            let value = match (
                name.as_str(),
                other(self.world.verbs),
                other(self.world.tools),
            ) {
                ("LD_LIBRARY_PATH", Some(verbs), Some(tools)) => format!("{verbs}:{tools}"),
                _ => value.clone(),
            };
            command.env(name, value);
        }
        command
    }

    /// Starts the service on the DPU, anew if it runs.
    fn serve(&mut self) -> Result<()> {
        self.service = None;
        let mut command = self.command("node0.dpu", &self.world.bin.join("xgvmi-blk"));
        command.arg("service").args(&self.targets);
        command.args(["--listen", &self.address, "--stock-keys"]);
        command.arg("--status-socket").arg(self.status_socket());
        command.args(&self.options);
        self.service = Some(Running::saying(&mut command, START, " serves volume")?);
        Ok(())
    }

    fn status_socket(&self) -> PathBuf {
        self.device.path().join("status")
    }

    /// Requests that the service has taken.
    fn requests(&self) -> Result<u64> {
        let mut status = Command::new(self.world.bin.join("xgvmi-blk"));
        status.args(["status", "--json", "--socket"]);
        let text = process::stdout(status.arg(self.status_socket()), LIMIT)?;
        let status: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let requests = status["requests"]["requests"].as_u64();
        requests.with_context(|| format!("no number of requests: {status}"))
    }

    /// fio on the host.
    fn fio(&self, scheme: &str, options: &[&str]) -> Command {
        self.fio_of(Path::new("fio"), scheme, options)
    }

    /// The same with another program.
    fn fio_of(&self, program: &Path, scheme: &str, options: &[&str]) -> Command {
        let engine = self.world.bin.join("libxgvmi_fio.so");
        let mut command = self.command("node0.host", program);
        command
            .args(["--name=job", "--randrepeat=1", "--output-format=json"])
            .arg(format!("--ioengine=external:{}", engine.display()))
            .arg(format!("--service={}", self.address))
            .args([format!("--scheme={scheme}"), "--copy_max=0".to_owned()])
            .arg(format!("--ucx={}", self.world.ucx.display()))
            .args(options);
        command
    }

    /// A job's part of fio's report.
    fn job(&self, scheme: &str, options: &[&str]) -> Result<Value> {
        let text = process::stdout(&mut self.fio(scheme, options), LIMIT)?;
        let json = text.find('{').map_or("", |at| &text[at..]);
        let report: Value = serde_json::from_str(json).with_context(|| text.clone())?;
        let job = report["jobs"][0].clone();
        ensure!(job["error"] == 0, "fio: error {}", job["error"]);
        Ok(job)
    }

    /// A job that fails and says each of the reasons.
    fn fails(&self, options: &[&str], reasons: &[&str]) -> Result<()> {
        failed(&mut self.fio("announced", options), reasons).with_context(|| format!("{options:?}"))
    }
}

/// A program that fails and says each of the reasons.
fn failed(command: &mut Command, reasons: &[&str]) -> Result<()> {
    let done = process::run(command, LIMIT)?;
    ensure!(
        !done.ok() && reasons.iter().all(|reason| done.output.contains(reason)),
        "{}\n{}",
        done.verdict(),
        done.output
    );
    Ok(())
}

/// fio names one of two volumes, and a name that is none is refused.
pub(super) fn named(place: &Place<'_>) -> Result<()> {
    let mut node = Node::new(place.world, "4096")?;
    node.service = None;
    let files = ["b1", "b2", "b3"];
    let mut create = Command::new(node.world.bin.join("xgvmi-blk"));
    create
        .arg("create")
        .args(files)
        .current_dir(node.device.path());
    process::stdout(create.args(["--size", "8M"]), LIMIT)?;
    let volume = |name: &str, files: [&str; 3]| format!("--volume={name}={}", files.join(","));
    node.targets = vec![volume("a", FILES), volume("b", files)];
    node.serve()?;
    let words = [
        "--rw=randwrite",
        "--bs=4k",
        "--verify=crc32c",
        "--verify_fatal=1",
    ];
    for (name, size) in [("--volume=a", "--size=32M"), ("--volume=b", "--size=8M")] {
        node.job("announced", &[&words[..], &[name, size]].concat())?;
    }
    let reason = "name one of a, b (--volume)";
    let small = [words[0], "--size=8M"];
    node.fails(
        &[&small[..], &["--volume=c"]].concat(),
        &["there is no volume 'c'", reason],
    )?;
    node.fails(&small, &[reason])
}

/// fio gives its name and that of a volume, and has the rights of this name there.
pub(super) fn identities(place: &Place<'_>) -> Result<()> {
    let mut node = Node::new(place.world, "4096")?;
    node.service = None;
    let files = ["b1", "b2", "b3"];
    let mut create = Command::new(node.world.bin.join("xgvmi-blk"));
    let create = create.arg("create").args(files).args(["--size", "8M"]);
    process::stdout(create.current_dir(node.device.path()), LIMIT)?;
    let secret = node.secret("secret", &[7; 32])?;
    let initiators = "[db1]\nsecret-file = 'secret'\nvolumes = { a = 'write', b = 'read' }\n\
                      [db2]\nsecret-file = 'secret'\nvolumes = { b = 'write' }\n";
    fs::write(node.device.path().join("initiators.toml"), initiators)?;
    let volume = |name: &str, files: [&str; 3]| format!("--volume={name}={}", files.join(","));
    node.targets = vec![volume("a", FILES), volume("b", files)];
    node.options = vec!["--initiators=initiators.toml".to_owned()];
    node.serve()?;
    let words = |identity: &str, volume: &str, more: &str| {
        let secret = format!("--secret_file={secret}");
        let words =
            format!("{secret} --identity={identity} --volume={volume} --bs=4k --size=8M {more}");
        words.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let write = "--rw=randwrite --verify=crc32c --verify_fatal=1";
    let job = |(identity, volume, more): (&str, &str, &str)| {
        let words = words(identity, volume, more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        node.job("announced", &words).map(drop)
    };
    let fails = |(identity, volume, more): (&str, &str, &str), reasons: &[&str]| {
        let words = words(identity, volume, more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        node.fails(&words, reasons)
    };
    job(("db1", "a", write))?;
    job(("db2", "b", write))?;
    // It reads what the other one has written there, and cannot change it.
    fails(("db1", "b", "--rw=write"), &["Operation not permitted"])?;
    job(("db1", "b", &format!("{write} --verify_only")))?;
    fails(
        ("db2", "a", "--rw=read"),
        &["there is no volume 'a' for initiator db2: name one of b"],
    )?;
    fails(("db3", "a", "--rw=read"), &["secret"])?;
    fails(("no,name", "a", "--rw=read"), &["'no,name'"])?;
    node.fails(
        &["--rw=read", "--identity=db1", "--volume=a"],
        &["identity without secret_file"],
    )
}

/// fio writes and verifies by each way, with many requests at once, and gets errors as numbers of errno.
pub(super) fn verified(place: &Place<'_>) -> Result<()> {
    let mut node = Node::new(place.world, "4096")?;
    for scheme in SCHEMES {
        for options in [
            &["--rw=randrw", "--bsrange=4k-1m", "--size=24M"][..],
            // More requests than a service takes, parts of blocks, flushes, and two jobs at once.
            &[
                "--rw=randwrite",
                "--bs=512",
                "--size=1M",
                "--fsync=16",
                "--numjobs=2",
                "--offset_increment=8M",
            ],
        ] {
            let more = ["--iodepth=40", "--verify=crc32c", "--verify_fatal=1"];
            let job = node.job(scheme, &[options, &more].concat());
            let job = job.with_context(|| format!("{scheme}: {options:?}"))?;
            let (written, read) = (&job["write"]["total_ios"], &job["read"]["total_ios"]);
            ensure!(
                written.as_u64() > Some(0) && read.as_u64() > Some(0),
                "{scheme}: {written} writes, {read} reads"
            );
        }
    }
    // Another process than the writer's finds the data.
    let write = [
        "--rw=write",
        "--bs=64k",
        "--size=8M",
        "--verify=crc32c",
        "--iodepth=4",
    ];
    node.job("announced", &[&write[..], &["--do_verify=0"]].concat())?;
    node.serve()?;
    node.job("xgvmi", &[&write[..], &["--verify_only"]].concat())?;
    node.job("announced", &["--rw=trim", "--bs=64k", "--size=8M"])?;
    // What was written is gone, and fio says so.
    node.fails(&[&write[..], &["--verify_only"]].concat(), &["verify"])?;
    node.fails(
        &["--rw=read", "--bs=1000", "--size=1M"],
        &["multiples of 512"],
    )?;
    node.fails(&["--rw=read", "--nrfiles=2"], &["one file"])?;
    node.service = None;
    node.fails(&["--rw=read", "--bs=4k"], &["service 127.0.0.1:"])
}

/// fio needs the secret of the service. Without it, with another one, or with a file that others can read, it ends with the
/// reason and has written nothing.
pub(super) fn secrets(place: &Place<'_>) -> Result<()> {
    let mut node = Node::new(place.world, "4096")?;
    let right = node.secret("right", &[7; 32])?;
    let wrong = node.secret("wrong", &[8; 32])?;
    node.options = vec!["--initiator-secret-file".to_owned(), right.clone()];
    node.serve()?;
    let write = ["--rw=write", "--bs=64k", "--size=1M", "--iodepth=4"];
    let with = |path: &str| format!("--secret_file={path}");
    let job = |secret: &str| {
        [&write[..], &["--verify=crc32c", secret]]
            .concat()
            .join(" ")
    };
    let words = job(&with(&right));
    node.job("announced", &words.split(' ').collect::<Vec<_>>())?;
    // Nothing of what follows reaches the volume: the verification at the end finds the data of the job above.
    let other = [&write[..], &["--buffer_pattern=0x55"]].concat();
    node.fails(&other, &["secret"])?;
    node.fails(&[&other[..], &[&with(&wrong)]].concat(), &["secret"])?;
    let absent = with("/nowhere/secret");
    node.fails(&[&other[..], &[&absent]].concat(), &["/nowhere/secret"])?;
    let public = node.secret("public", &[7; 32])?;
    fs::set_permissions(&public, fs::Permissions::from_mode(0o644))?;
    node.fails(&[&other[..], &[&with(&public)]].concat(), &[&public])?;
    let words = format!("{words} --verify_only");
    node.job("announced", &words.split(' ').collect::<Vec<_>>())?;
    Ok(())
}

/// A service that is killed under a job ends the job with a reason. Each block is old or new afterwards.
pub(super) fn killed(place: &Place<'_>) -> Result<()> {
    // Requests of one block: only they are atomic.
    let block = ["--bs=4k", "--size=16M", "--iodepth=16", "--verify=pattern"];
    let pattern = |name: &str| format!("--verify_pattern=%o\"{name}\"");
    let (old, new) = (pattern(OLD), pattern(NEW));
    for scheme in ["xgvmi", "copy"] {
        let mut node = Node::new(place.world, "4096")?;
        node.job(scheme, &[&["--rw=write", &old][..], &block].concat())?;
        let endless = ["--rw=randwrite", "--time_based", "--runtime=100", &new];
        let endless = [&endless[..], &block, &["--do_verify=0"]].concat();
        let mut fio = Running::spawn(&mut node.fio(scheme, &endless))?;
        let before = node.requests()?;
        let busy = process::wait_until(START, || {
            fio.group.has_ended() || node.requests().is_ok_and(|now| now > before + 1000)
        });
        ensure!(busy, "fio does nothing: {}", fio.said());
        node.service.as_mut().context("a service")?.group.kill();
        let done = fio.wait(START)?;
        let said = &done.output;
        ensure!(!done.timed_out, "{scheme}: fio does not end: {said}");
        ensure!(
            !done.ok()
                && said.contains(&format!("xgvmi-fio: service {}", node.address))
                && said.contains("Connection reset by peer"),
            "{scheme}: {said}"
        );
        let beside = Place {
            world: place.world,
            dir: node.device.path().to_owned(),
            way: Way::Host,
        };
        let export = beside.export(&FILES)?;
        beside.stock("nbdcopy", &[&export.uri, "image"])?;
        let image = fs::read(beside.path("image"))?;
        let counted = old_and_new(&image[..16 << 20]).context(scheme)?;
        ensure!(
            counted.1 > 0,
            "{scheme}: {counted:?} blocks are old and new"
        );
    }
    Ok(())
}

/// Words in the data of fio before and after a change.
const OLD: &str = "old data";
const NEW: &str = "new data";

/// Numbers of blocks of 4 KiB that are old and new. Each consists of its offset and the word.
fn old_and_new(image: &[u8]) -> Result<(usize, usize)> {
    let mut counted = (0, 0);
    for (at, block) in image.chunks(4096).enumerate() {
        let offset = (at as u64 * 4096).to_le_bytes();
        let is = |word: &str| {
            let mut pieces = block.chunks(16);
            pieces.all(|piece| piece[..8] == offset && piece[8..] == *word.as_bytes())
        };
        match (is(OLD), is(NEW)) {
            (true, _) => counted.0 += 1,
            (_, true) => counted.1 += 1,
            _ => bail!("block {at} is neither old nor new: {:x?}", &block[..32]),
        }
    }
    Ok(counted)
}

/// A fio of another version gets no engine and says why. It is Debian's, whose version is changed in the file.
pub(super) fn other_version(place: &Place<'_>) -> Result<()> {
    let (known, other) = (b"fio-3.33", b"fio-3.34");
    let node = Node::new(place.world, "4096")?;
    let mut bytes = fs::read(stock_program(place.world, "fio")?)?;
    let mut found = 0;
    for at in 0..bytes.len().saturating_sub(known.len()) {
        if bytes[at..].starts_with(known) {
            bytes[at..at + other.len()].copy_from_slice(other);
            found += 1;
        }
    }
    ensure!(found > 0, "this fio does not contain its version");
    let program = node.device.path().join("fio");
    fs::write(&program, bytes)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let read = ["--rw=read", "--bs=4k", "--size=64k"];
    failed(
        &mut node.fio_of(&program, "announced", &read),
        &["xgvmi-fio: this is fio-3.34; the engine serves fio-3.33"],
    )?;
    // It is the version alone that the engine refuses.
    node.job("announced", &read).map(drop)
}

/// The file of a stock program.
fn stock_program(world: &World<'_>, name: &str) -> Result<PathBuf> {
    let path = world.tools.iter().find(|(key, _)| key == "PATH");
    let (_, dirs) = path.context("the environment of the stock programs has no PATH")?;
    let mut files = dirs.split(':').map(|dir| Path::new(dir).join(name));
    files
        .find(|file| file.is_file())
        .with_context(|| format!("no {name} in {dirs}"))
}

/// Times of single requests by each way, and the size from which on each is faster than the copy.
pub(super) fn rows(world: &World<'_>) -> Result<Value> {
    // Longer blocks than usual: this is about the way to the memory.
    let node = Node::new(world, "65536")?;
    let mut rows: Vec<Value> = Vec::new();
    for (bs, size) in SIZES {
        for (op, rw) in [("write", "--rw=randwrite"), ("read", "--rw=randread")] {
            for scheme in SCHEMES {
                let bs = format!("--bs={bs}");
                let options = [rw, &bs, "--size=48M", "--norandommap", REQUESTS];
                let fill = ["--refill_buffers", "--buffer_compress_percentage=90"];
                // Times from the submission on: the key is bound within it.
                let fill = [&fill[..], &["--lat_percentiles=1"]].concat();
                let job = node.job(scheme, &[&options[..], &fill].concat())?;
                let number = |path: &str| -> Result<f64> {
                    let number = job[op].pointer(path).and_then(Value::as_f64);
                    number.with_context(|| format!("fio reports no {path}"))
                };
                rows.push(json!({
                    "scheme": scheme, "op": op, "size": size,
                    "p50_us": number("/lat_ns/percentile/50.000000")? / 1e3,
                    "p99_us": number("/lat_ns/percentile/99.000000")? / 1e3,
                }));
            }
        }
    }
    let from: serde_json::Map<String, Value> = SCHEMES[1..]
        .iter()
        .map(|scheme| ((*scheme).to_owned(), json!(crossover(&rows, scheme))))
        .collect();
    Ok(json!({ "rows": rows, "faster_than_copy_from": from }))
}

/// The smallest size from which on writes and reads together take less time than with the copy.
fn crossover(rows: &[Value], scheme: &str) -> Option<u64> {
    let of = |scheme: &str, size: u64| -> f64 {
        let rows = rows.iter();
        let rows = rows.filter(|row| row["scheme"] == scheme && row["size"] == size);
        rows.filter_map(|row| row["p50_us"].as_f64()).sum()
    };
    let sizes = SIZES.iter().rev().map(|(_, size)| *size);
    sizes
        .take_while(|size| of(scheme, *size) < of("copy", *size))
        .last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_neither_old_nor_new_is_found() {
        let block = |at: u64, word: &str| {
            [&(at * 4096).to_le_bytes()[..], word.as_bytes()]
                .concat()
                .repeat(256)
        };
        let mut image = [block(0, OLD), block(1, NEW), block(2, NEW)].concat();
        assert_eq!(old_and_new(&image).unwrap(), (1, 2));
        image[4096 + 100] ^= 1;
        assert!(old_and_new(&image).is_err());
        // The data of another place.
        assert!(old_and_new(&block(1, OLD)).is_err());
    }

    #[test]
    fn the_crossover_is_the_smallest_size_of_an_unbroken_row() {
        let row = |scheme: &str, size: u64, us: f64| json!({"scheme": scheme, "op": "read", "size": size, "p50_us": us});
        let faster = [true, false, false, true, true, true];
        let mut rows = Vec::new();
        for ((_, size), faster) in SIZES.into_iter().zip(faster) {
            rows.push(row("copy", size, 10.0));
            rows.push(row("xgvmi", size, if faster { 9.0 } else { 11.0 }));
            rows.push(row("ksm", size, 10.0));
        }
        assert_eq!(crossover(&rows, "xgvmi"), Some(256 << 10));
        assert_eq!(crossover(&rows, "ksm"), None);
    }
}
