//! fio writes while all disks lose their power, and later verifies what it had saved as completed. A flush by another client
//! comes between the two, so that all of it is durable; what follows that flush is lost by sectors at random.

use super::place::Place;
use super::{FILES, LIMIT, SIZE_MIB, START, VERIFY};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::process::Command;
use testbed::port;
use testbed::process::{self, Running};

/// Power losses.
const LOSSES: u64 = 3;
/// Seconds until each of them.
const UNTIL_S: u64 = 3;
/// fio writes the volume up to here. Behind it the last writes are lost.
const AREA_MIB: u64 = 32;
/// Flushes, writes without a flush, and cuts the power of its targets: another client of the export.
const CUT: &str = "\
import nbd, os, signal, sys
client = nbd.NBD()
client.connect_uri(sys.argv[1])
client.flush()
for at in range(64):
    client.pwrite(bytes([at + 1]) * 65536, (32 << 20) + at * 65536)
for process in sys.argv[2:]:
    os.kill(int(process), signal.SIGUSR1)
";

/// Starts a target on a disk that can lose its power.
fn target(place: &Place<'_>, (name, address): (&str, &str), seed: u64) -> Result<Running> {
    let bin = place.world.bin;
    let mut command = Command::new(bin.join("storage-power"));
    command.args([name, &seed.to_string()]);
    command.arg(bin.join("xgvmi-blk"));
    command.args(["target", name, "--listen", address]);
    Running::saying(command.current_dir(&place.dir), START, " at tcp:")
}

fn export(place: &Place<'_>, addresses: &[String]) -> Result<Running> {
    let mut command = Command::new(place.world.bin.join("xgvmi-blk"));
    command.arg("export").current_dir(&place.dir);
    command.args(addresses.iter().map(|address| format!("tcp:{address}")));
    command.args(["--socket", "socket", "--outage-limit", "1s"]);
    Running::saying(&mut command, START, "exports volume")
}

/// Options of fio with each run.
fn fio<'a>(uri: &'a str, size: &'a str, seed: &'a str) -> Vec<&'a str> {
    let mut words = vec!["--name=job"];
    words.extend(VERIFY);
    words.extend([uri, size, seed]);
    words.extend(["--rw=randwrite", "--bs=4k", "--iodepth=8", "--fsync=32"]);
    words
}

pub(super) fn verified(place: &Place<'_>) -> Result<()> {
    place.create(SIZE_MIB, 4096)?;
    fs::write(place.path("cut.py"), CUT)?;
    let address = |_| Ok(format!("127.0.0.1:{}", port::free()?));
    let addresses: Vec<String> = FILES.iter().map(address).collect::<Result<_>>()?;
    let uri = "nbd+unix:///?socket=socket";
    let (of_uri, size) = (format!("--uri={uri}"), format!("--size={AREA_MIB}M"));
    for loss in 0..LOSSES {
        let start = || -> Result<Vec<Running>> {
            let named = FILES.into_iter().zip(&addresses);
            named
                .map(|(name, address)| target(place, (name, address), loss + 1))
                .collect()
        };
        let mut targets = start()?;
        let server = export(place, &addresses)?;
        let processes = targets.iter().map(|target| target.group.id().to_string());
        let processes: Vec<String> = processes.collect();
        let cut = format!(
            "--trigger=/usr/bin/python3 cut.py '{uri}' {}",
            processes.join(" ")
        );
        let (seed, until) = (
            format!("--randseed={loss}"),
            format!("--trigger-timeout={UNTIL_S}"),
        );
        let mut words = fio(&of_uri, &size, &seed);
        words.extend(["--do_verify=0", "--rate_iops=1000"]);
        words.extend(["--verify_state_save=1", &until, &cut]);
        let mut command = Command::new("fio");
        command.args(&words).current_dir(&place.dir);
        for (name, value) in place.world.tools {
            command.env(name, value);
        }
        // Its last requests may fail.
        let done = process::run(&mut command, LIMIT)?;
        for target in &mut targets {
            let lost = process::wait_until(LIMIT, || {
                target.said().contains(" sectors are lost") && target.group.has_ended()
            });
            ensure!(lost, "{}\n{}", target.said(), done.output);
        }
        drop(server);
        let targets = start()?;
        let server = export(place, &addresses)?;
        let mut words = fio(&of_uri, &size, &seed);
        words.extend(["--verify_only=1", "--verify_state_load=1"]);
        let text = place.stock("fio", &words)?;
        let json = text.find('{').map(|at| &text[at..]);
        let json = json.with_context(|| text.clone())?;
        let report: Value = serde_json::from_str(json).with_context(|| text.clone())?;
        let job = &report["jobs"][0];
        let read = job["read"]["io_bytes"].as_u64().unwrap_or_default();
        ensure!(
            job["error"] == 0 && read >= 1 << 20,
            "loss {loss}: error {}, {read} bytes verified",
            job["error"]
        );
        drop((server, targets));
    }
    Ok(())
}
