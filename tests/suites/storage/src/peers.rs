//! The NBD servers that others have, beside ours, with the same fio jobs; and the bytes that a volume takes.

use super::place::Served;
use super::{FILES, LIMIT, Place, SIZE_MIB, START, Server, World};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use std::time::Duration;
use testbed::process::{self, Running};

/// Size of the requests, as fio and the report write it.
const SIZES: [(&str, u64); 3] = [("4k", 4096), ("64k", 64 << 10), ("1M", 1 << 20)];
/// Data of which fio makes a half compressible, as the promise about stored bytes says.
const HALF: &str = "--buffer_compress_percentage=50";
/// Size of an export of nbdkit that holds a target.
const TARGET: &str = "256M";
const GIB: f64 = (1u64 << 30) as f64;

/// A server of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    /// Our export, with three targets in its own memory.
    Ours,
    /// Our export, with three memory servers of nbdkit: the pipeline on the host's cores.
    OursOnNbdkit,
    /// One memory server of nbdkit, without compression and redundancy.
    Nbdkit,
    /// qemu-nbd on a raw file, without compression and redundancy.
    QemuNbd,
}

impl Backend {
    const ALL: [Self; 4] = [Self::Ours, Self::OursOnNbdkit, Self::Nbdkit, Self::QemuNbd];

    const fn name(self) -> &'static str {
        match self {
            Self::Ours => "xgvmi-blk, targets in memory",
            Self::OursOnNbdkit => "xgvmi-blk over three nbdkit",
            Self::Nbdkit => "nbdkit memory",
            Self::QemuNbd => "qemu-nbd",
        }
    }
}

impl Place<'_> {
    /// Starts a stock server that has `socket` when it is ready.
    pub(super) fn stock_server(
        &self,
        program: &str,
        arguments: &[&str],
        socket: &str,
    ) -> Result<Running> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.dir);
        for (name, value) in self.world.tools {
            command.env(name, value);
        }
        let mut running = Running::spawn(&mut command)?;
        let path = self.path(socket);
        let ready = process::wait_until(START, || path.exists() || running.group.has_ended());
        ensure!(
            ready && !running.group.has_ended(),
            "{program} does not start:\n{}",
            running.said()
        );
        Ok(running)
    }

    /// Three memory servers of nbdkit, and the names of targets on them.
    pub(super) fn nbdkit_targets(&self, size: &str) -> Result<(Vec<Running>, [String; 3])> {
        let mut servers = Vec::new();
        let size = format!("size={size}");
        for name in FILES {
            let words = ["-f", "-U", name, "memory", &size];
            servers.push(self.stock_server("nbdkit", &words, name)?);
        }
        Ok((servers, FILES.map(|name| format!("nbd:{name}"))))
    }

    fn peer(&self, backend: Backend) -> Result<Served> {
        let size = format!("{SIZE_MIB}M");
        let stock = |running| Server {
            running,
            uri: "nbd+unix:///?socket=socket".to_owned(),
            service: None,
        };
        let mut behind = Vec::new();
        let server = match backend {
            Backend::Ours => self.export(&["--memory", &size])?,
            Backend::OursOnNbdkit => {
                let (servers, targets) = self.nbdkit_targets(TARGET)?;
                behind = servers;
                let targets = targets.each_ref().map(String::as_str);
                self.ours(&[&["create"], &targets[..], &["--size", &size]].concat())?;
                self.export(&targets)?
            }
            Backend::Nbdkit => {
                let size = format!("size={size}");
                let words = ["-f", "-U", "socket", "memory", &size];
                stock(self.stock_server("nbdkit", &words, "socket")?)
            }
            Backend::QemuNbd => {
                let file = fs::File::create(self.path("raw"))?;
                file.set_len(SIZE_MIB << 20)?;
                let socket = self.path("socket");
                let socket = socket.to_str().context("the path of the socket")?;
                let words = [
                    "-f",
                    "raw",
                    "--cache=writeback",
                    "--persistent",
                    "--shared=8",
                ];
                let words = [&words[..], &["-k", socket, "raw"]].concat();
                stock(self.stock_server("qemu-nbd", &words, "socket")?)
            }
        };
        Ok(Served { server, behind })
    }

    /// Runs a job of fio and returns its part of the report.
    fn job(&self, uri: &str, options: &[&str]) -> Result<Value> {
        let uri = format!("--uri={uri}");
        let size = format!("--size={SIZE_MIB}M");
        let words = [
            "--name=job",
            "--ioengine=nbd",
            "--randrepeat=1",
            "--output-format=json",
            HALF,
        ];
        let words = [&words[..], &["--refill_buffers", &uri, &size], options].concat();
        let text = self.stock_within(LIMIT, "fio", &words)?;
        let json = text.find('{').map_or("", |at| &text[at..]);
        let report: Value = serde_json::from_str(json).with_context(|| text.clone())?;
        let job = report["jobs"][0].clone();
        ensure!(job["error"] == 0, "fio: error {}", job["error"]);
        Ok(job)
    }
}

/// Runs the same jobs on each server. Each takes `seconds`.
///
/// # Errors
/// A server or a job fails.
pub fn bench(world: &World<'_>, seconds: u64) -> Result<Value> {
    let mut rows: Vec<Value> = Vec::new();
    for backend in Backend::ALL {
        let place = Place::on_host(world, "peers")?;
        let peer = place.peer(backend)?;
        let uri = peer.server.uri.as_str();
        // Reads find data everywhere.
        place.job(uri, &["--rw=write", "--bs=1M", "--iodepth=4"])?;
        for (kind, rw) in [("write", "--rw=randwrite"), ("read", "--rw=randread")] {
            for (bs, size) in SIZES {
                let (bs, runtime) = (format!("--bs={bs}"), format!("--runtime={seconds}"));
                let before = peer.processor()?;
                let options = [rw, &bs, "--iodepth=16", "--time_based", &runtime];
                let job = place.job(uri, &options)?;
                let cpu_s = (peer.processor()? - before).as_secs_f64();
                let number = |path: &str| -> Result<f64> {
                    let number = job[kind].pointer(path).and_then(Value::as_f64);
                    number.with_context(|| format!("fio reports no {path}"))
                };
                let us = |path: &str| Ok::<f64, anyhow::Error>(number(path)? / 1e3);
                rows.push(json!({
                    "backend": backend.name(), "op": kind, "size": size,
                    "mib_s": number("/bw_bytes")? / f64::from(1 << 20),
                    "p50_us": us("/clat_ns/percentile/50.000000")?,
                    "p99_us": us("/clat_ns/percentile/99.000000")?,
                    "server_cpu_s_per_gib": cpu_s * GIB / number("/io_bytes")?,
                }));
            }
        }
    }
    let rows: Vec<Value> = rows.iter().map(|row| compared(row, &rows)).collect();
    let (disks, total) = super::disks::measure(world, seconds)?;
    Ok(json!({
        "rows": rows, "stored": [stored(world)?], "engine": super::engine::rows(world)?,
        "disks": disks, "disks_total": total,
    }))
}

/// A row with its bandwidth over those of the stock servers.
fn compared(row: &Value, rows: &[Value]) -> Value {
    let mut row = row.clone();
    for (key, backend) in [
        ("of_nbdkit", Backend::Nbdkit),
        ("of_qemu_nbd", Backend::QemuNbd),
    ] {
        let peer = rows.iter().find(|peer| {
            peer["backend"] == backend.name()
                && peer["op"] == row["op"]
                && peer["size"] == row["size"]
        });
        let rate = |row: &Value| row["mib_s"].as_f64();
        let ratio = peer.and_then(|peer| Some(rate(&row)? / rate(peer)?));
        row[key] = ratio.map_or(Value::Null, Value::from);
    }
    row
}

/// Stored bytes of half compressible data, ours and those of the reference's format.
fn stored(world: &World<'_>) -> Result<Value> {
    let place = Place::on_host(world, "stored")?;
    place.create(SIZE_MIB, 4096)?;
    {
        let server = place.export(&FILES)?;
        place.job(&server.uri, &["--rw=write", "--bs=1M", "--iodepth=4"])?;
        place.stock("nbdcopy", &[&server.uri, "image"])?;
    }
    let shown: Value = serde_json::from_str(&place.ours(&[&["show"], &FILES[..]].concat())?)?;
    let targets = shown["targets"].as_array().context("the targets")?;
    let halves: u64 = targets
        .iter()
        .filter_map(|target| target["used"].as_u64())
        .sum();
    ensure!(halves > 0, "nothing is stored: {shown}");
    let index = FILES.len() as u64 * super::INDEX_BYTES;
    let parts = ["sbc_1", "sbc_2", "sbc_p"];
    place.ours(&[&["sbc", "write", "image"], &parts[..]].concat())?;
    let length = |name: &&str| fs::metadata(place.path(name)).map(|data| data.len());
    let reference: u64 = parts.iter().map(length).sum::<std::io::Result<u64>>()?;
    Ok(json!({
        "data_bytes": SIZE_MIB << 20, "block_bytes": 4096, "half_bytes": halves, "index_bytes": index,
        "stored_bytes": halves + index, "reference_bytes": reference,
        "of_reference": (halves + index) as f64 / reference as f64,
    }))
}

/// Half compressible data takes at most three quarters of what the reference's format takes.
pub(super) fn stored_bytes(place: &Place<'_>) -> Result<()> {
    let stored = stored(place.world)?;
    let ratio = stored["of_reference"].as_f64().context("the ratio")?;
    ensure!(ratio > 0.0 && ratio <= 0.75, "{stored}");
    Ok(())
}

/// A volume that is larger than the memory servers of nbdkit on which it is. Full servers refuse data and stay in use.
pub(super) fn on_small_nbdkit(place: &Place<'_>) -> Result<()> {
    let create = |names: &[&str]| place.ours(&[&["create"], names, &["--size", "16M"]].concat());
    {
        let (_servers, names) = place.nbdkit_targets("100K")?;
        let refused = create(&names.each_ref().map(String::as_str));
        let refused = refused.err().context("there is no space for the index")?;
        let reason = "it has 102400 bytes, and the index of a volume with 4096 blocks";
        ensure!(format!("{refused:#}").contains(reason), "{refused:#}");
    }
    for name in FILES {
        // The servers are killed and leave their sockets.
        let _ = fs::remove_file(place.path(name));
    }
    let (_servers, names) = place.nbdkit_targets("2M")?;
    let names = names.each_ref().map(String::as_str);
    create(&names)?;
    let server = place.export(&names)?;
    place.image("large", 16)?;
    let refused = place.stock("nbdcopy", &["large", &server.uri]);
    let refused = refused.err().context("there is no space for the image")?;
    ensure!(
        format!("{refused:#}").contains("No space left on device"),
        "{refused:#}"
    );
    ensure!(
        !server.said().contains("not used any more"),
        "{}",
        server.said()
    );
    let clear = ["-f", "raw", "-c", "discard 0 16M", "-c", "flush"];
    place.stock("qemu-io", &[&clear[..], &[&server.uri]].concat())?;
    place.image("small", 1)?;
    place.stock("nbdcopy", &["--flush", "small", &server.uri])?;
    place.stock("nbdcopy", &[&server.uri, "out"])?;
    let (small, out) = (fs::read(place.path("small"))?, fs::read(place.path("out"))?);
    let (start, rest) = out.split_at(small.len());
    ensure!(start == small, "the first MiB differs");
    ensure!(rest.iter().all(|byte| *byte == 0), "the rest is not zero");
    Ok(())
}

/// A volume on three memory servers of nbdkit, one of which ends.
pub(super) fn on_nbdkit(place: &Place<'_>) -> Result<()> {
    place.image("image", 16)?;
    let (mut servers, names) = place.nbdkit_targets(TARGET)?;
    let names = names.each_ref().map(String::as_str);
    let create = [&["create"], &names[..], &["--size", "16M"]].concat();
    place.ours(&create)?;
    // An export with something on it is not overwritten.
    ensure!(place.ours(&create).is_err(), "a target was created twice");
    let server = place.export(&names)?;
    place.stock(
        "nbdcopy",
        &["--connections=4", "--flush", "image", &server.uri],
    )?;
    place.stock("nbdcopy", &["--connections=4", &server.uri, "out"])?;
    place.same("image", "out")?;
    servers[1].group.kill();
    place.stock("nbdcopy", &[&server.uri, "out"])?;
    place.same("image", "out").context("without a server")?;
    let said = process::wait_until(Duration::from_secs(20), || {
        server
            .running
            .said()
            .contains("data_2 is not used any more")
    });
    ensure!(said, "the export does not miss the server");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_same_job() {
        let row = |backend: Backend, size: u64, rate: f64| json!({"backend": backend.name(), "op": "read", "size": size, "mib_s": rate});
        let rows = [
            row(Backend::Ours, 1, 50.0),
            row(Backend::Nbdkit, 1, 100.0),
            row(Backend::QemuNbd, 1, 25.0),
            row(Backend::Nbdkit, 2, 7.0),
        ];
        let ours = compared(&rows[0], &rows);
        assert_eq!(
            (&ours["of_nbdkit"], &ours["of_qemu_nbd"]),
            (&0.5.into(), &2.0.into())
        );
        assert!(compared(&rows[3], &rows)["of_qemu_nbd"].is_null());
    }
}
