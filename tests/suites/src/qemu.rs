//! A running machine of QEMU that migrates to another process by RDMA: every byte of its memory arrives, and it goes on.

use super::device::{CLIENT, SERVER, Testbed};
use super::iser::noise;
use super::judges::{listening, moved};
use super::{Case, World};
use anyhow::{Context, Result, bail, ensure};
use dev_setup as setup;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testbed::process::{self, Running};

/// Bound of a hang, for one step.
const LIMIT: Duration = Duration::from_secs(120);
const URI: &str = "rdma:127.66.1.1:4444";
const MEMORY: usize = 64 << 20;
/// The part of the memory that has bytes without a pattern.
const LOADED: std::ops::Range<usize> = (16 << 20)..(40 << 20);
/// The part that the machine changes all the time.
const CHANGED: usize = 0x2_0000;
/// Code of the machine's processor: adds one to each word of a segment, again and again.
const CODE: [u8; 15] = [
    0xb8, 0x00, 0x20, 0x8e, 0xc0, 0x31, 0xff, 0x26, 0xff, 0x05, 0x83, 0xc7, 0x02, 0xeb, 0xf8,
];

pub(super) fn run_all(world: &World) -> Result<Vec<Case>> {
    let ways = [
        ("memory registered in pieces", false),
        ("all memory registered", true),
    ];
    let ways = ways.iter().filter(|(name, _)| world.wants(name));
    Ok(ways
        .map(|(name, pin_all)| Case::of(*name, migrates(world, *pin_all)))
        .collect())
}

/// QEMU's control socket.
struct Monitor {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Monitor {
    fn open(path: &Path) -> Result<Self> {
        let mut stream = None;
        process::wait_until(LIMIT, || {
            stream = UnixStream::connect(path).ok();
            stream.is_some()
        });
        let stream = stream.with_context(|| format!("no {}", path.display()))?;
        stream.set_read_timeout(Some(LIMIT))?;
        let lines = BufReader::new(stream.try_clone()?);
        let mut monitor = Self { stream, lines };
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.stream, "{request}")?;
        loop {
            let mut line = String::new();
            ensure!(
                self.lines.read_line(&mut line)? != 0,
                "{command}: the machine has ended"
            );
            let answer: Value = serde_json::from_str(&line)?;
            if let Some(error) = answer.get("error") {
                bail!("{command}: {error}");
            }
            // Others are the greeting and events.
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
        }
    }

    fn status(&mut self, command: &str) -> Result<String> {
        let answer = self.ask(command, &json!({}))?;
        Ok(answer["status"].as_str().unwrap_or("none").to_owned())
    }

    /// A part of the machine's memory.
    fn memory(&mut self, file: &Path, at: usize, length: usize) -> Result<Vec<u8>> {
        let name = file.display().to_string();
        let part = json!({"val": at, "size": length, "filename": name});
        self.ask("pmemsave", &part)?;
        fs::read(file).context(name)
    }

    /// Waits until the machine has changed its memory.
    fn ensure_runs(&mut self, file: &Path) -> Result<()> {
        let before = self.memory(file, CHANGED, 64)?;
        let runs = process::wait_until(LIMIT, || {
            self.memory(file, CHANGED, 64)
                .is_ok_and(|now| now != before)
        });
        ensure!(runs, "the machine does not run");
        Ok(())
    }
}

fn migrates(world: &World, pin_all: bool) -> Result<()> {
    let (tools, testbed) = (setup::machines()?, Testbed::new(world)?);
    let dir = testbed.path();
    let [disk, bytes, dump] = ["boot", "bytes", "dump"].map(|name| dir.join(name));
    let mut sector = [0; 512];
    sector[..CODE.len()].copy_from_slice(&CODE);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    // A floppy of 1.44 MB.
    fs::write(&disk, [&sector[..], &[0; 1_474_560 - 512]].concat())?;
    let loaded = noise(LOADED.len());
    fs::write(&bytes, &loaded)?;
    let machine = |function: &str, socket: &Path| {
        let mut command = testbed.command(function, tools.bin.join("qemu-system-x86_64"));
        command.envs(world.env.for_libraries(&tools.libraries));
        for data in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(tools.root.join(data));
        }
        let firmware = tools.root.join("usr/share/seabios/bios-256k.bin");
        command.arg("-bios").arg(firmware);
        command.args([
            "-nodefaults",
            "-display",
            "none",
            "-accel",
            "tcg",
            "-machine",
            "pc",
        ]);
        command.args(["-m", "64", "-boot", "a"]);
        command.args([
            "-drive",
            &format!("if=floppy,format=raw,readonly=on,file={}", disk.display()),
        ]);
        command.args([
            "-qmp",
            &format!("unix:{},server=on,wait=off", socket.display()),
        ]);
        command
    };
    let [near, far] = ["near", "far"].map(|name| dir.join(name));
    let mut target: Command = machine(SERVER, &far);
    let waiting = listening(&testbed, target.args(["-S", "-incoming", URI]))?;
    let mut source = machine(CLIENT, &near);
    let load = format!(
        "loader,file={},addr={:#x},force-raw=on",
        bytes.display(),
        LOADED.start
    );
    let running = Running::spawn(source.args(["-device", &load]))?;
    let mut source = Monitor::open(&near).with_context(|| running.said())?;
    let mut target = Monitor::open(&far).with_context(|| waiting.said())?;
    source.ensure_runs(&dump)?;
    for side in [&mut source, &mut target] {
        let all = json!([{"capability": "rdma-pin-all", "state": pin_all}]);
        side.ask("migrate-set-capabilities", &json!({"capabilities": all}))?;
    }
    source.ask("migrate", &json!({"uri": URI}))?;
    let mut status = String::new();
    process::wait_until(LIMIT, || {
        status = source.status("query-migrate").unwrap_or_default();
        matches!(&*status, "completed" | "failed" | "")
    });
    let said = format!("{}\n{}", running.said(), waiting.said());
    ensure!(status == "completed", "migration: {status}\n{said}");
    let arrived = process::wait_until(LIMIT, || {
        target
            .status("query-status")
            .is_ok_and(|status| status == "paused")
    });
    ensure!(arrived, "the target waits still\n{said}");
    let before = source.memory(&dump, 0, MEMORY)?;
    let after = target.memory(&dump, 0, MEMORY)?;
    ensure!(
        before.get(LOADED) == Some(&loaded[..]),
        "the source had other bytes"
    );
    let wrong = before
        .iter()
        .zip(&after)
        .filter(|(one, other)| one != other);
    let (wrong, length) = (wrong.count(), after.len());
    ensure!(
        wrong == 0 && length == MEMORY,
        "{wrong} of {length} bytes are wrong"
    );
    target.ask("cont", &json!({}))?;
    target.ensure_runs(&dump)?;
    moved(&testbed, u64::try_from(LOADED.len())?)
}
