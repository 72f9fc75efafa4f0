//! fio with our engine, whose requests a service on an emulated DPU carries out: verified, and measured by the way in which
//! the service gets access to fio's memory.

use super::{FILES, LIMIT, Place, SIZE_MIB, START, World};
use anyhow::{Context, Result, ensure};
use dev_process::process::{self, Running};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Ways to fio's memory.
const SCHEMES: [&str; 4] = ["copy", "ksm", "xgvmi", "announced"];
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
    dir: TempDir,
    service: Option<Running>,
    address: String,
}

impl<'a> Node<'a> {
    fn new(world: &'a World<'a>, block_size: &str) -> Result<Self> {
        const PREFIX: &str = "xgvmi-fio";
        process::sweep(Path::new(process::STATE_PARENT), PREFIX);
        // The device is a file that all its processes map.
        let dir = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}-{}-", std::process::id()))
            .tempdir_in(process::STATE_PARENT)?;
        let mut create = Command::new(world.bin.join("xgvmi-blk"));
        create.arg("create").args(FILES).current_dir(dir.path());
        create.args([
            "--size",
            &format!("{SIZE_MIB}M"),
            "--block-size",
            block_size,
        ]);
        process::stdout(&mut create, LIMIT)?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut node = Self {
            world,
            dir,
            service: None,
            address: format!("127.0.0.1:{port}"),
        };
        node.serve()?;
        Ok(node)
    }

    /// A program in a function of the node.
    fn command(&self, function: &str, program: &Path) -> Command {
        let mut command = Command::new(self.world.bin.join("bf-emu"));
        command
            .args(["run", "--nodes", "1", "--profile", PROFILE, "--state"])
            .arg(self.dir.path().join("state"))
            .args(["--as", function, "--"])
            .arg(program)
            .current_dir(self.dir.path());
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
        command.arg("service").args(FILES);
        command.args(["--listen", &self.address]);
        let mut service = Running::spawn(&mut command)?;
        let ready = process::wait_until(START, || {
            service.said().contains(" serves volume ") || service.group.has_ended()
        });
        ensure!(
            ready && !service.group.has_ended(),
            "the service does not start:\n{}",
            service.said()
        );
        self.service = Some(service);
        Ok(())
    }

    /// fio on the host.
    fn fio(&self, scheme: &str, options: &[&str]) -> Command {
        let engine = self.world.bin.join("libxgvmi_fio.so");
        let mut command = self.command("node0.host", Path::new("fio"));
        command
            .args(["--name=job", "--randrepeat=1", "--output-format=json"])
            .arg(format!("--ioengine=external:{}", engine.display()))
            .arg(format!("--service={}", self.address))
            .args([format!("--scheme={scheme}"), "--copy_max=0".to_owned()])
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
    let fails = |node: &Node<'_>, options: &[&str], reason: &str| -> Result<()> {
        let done = process::run(&mut node.fio("announced", options), LIMIT)?;
        ensure!(
            !done.ok() && done.output.contains(reason),
            "{options:?}: {}",
            done.output
        );
        Ok(())
    };
    // What was written is gone, and fio says so.
    fails(&node, &[&write[..], &["--verify_only"]].concat(), "verify")?;
    fails(
        &node,
        &["--rw=read", "--bs=1000", "--size=1M"],
        "multiples of 512",
    )?;
    fails(&node, &["--rw=read", "--nrfiles=2"], "one file")?;
    node.service = None;
    fails(&node, &["--rw=read", "--bs=4k"], "service 127.0.0.1:")
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
