//! Several volumes in one service, and in one export of it: clients name theirs, and the loss of all targets of one stops no
//! other.

use super::place::Place;
use super::{LIMIT, START, fio};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use testbed::cluster::Cluster;
use testbed::port;
use testbed::process::{self, Running};

const MIB: u64 = 64;

/// Creates the targets of a volume with this name.
fn create(place: &Place<'_>, name: &str) -> Result<[String; 3]> {
    let files = ["1", "2", "3"].map(|part| format!("{name}{part}"));
    let mut words = vec!["create"];
    words.extend(files.iter().map(String::as_str));
    words.extend(["--size", "64M"]);
    place.ours(&words)?;
    Ok(files)
}

/// An export on the host of volumes of the service, at a socket.
fn export(place: &Place<'_>, device: &Cluster, address: &str, volumes: &[&str]) -> Result<Running> {
    let program: &Path = &place.world.bin.join("xgvmi-blk");
    let mut command: Command = device.command("node0.host", program);
    command.current_dir(&place.dir);
    command.args(["export", "--service", address, "--socket", "nbd"]);
    command.args(["--status-socket", "export-status"]);
    for name in volumes {
        command.args(["--volume", name]);
    }
    Running::saying(&mut command, START, "exports volume")
}

fn uri(volume: &str) -> String {
    format!("nbd+unix:///{volume}?socket=nbd")
}

fn status(place: &Place<'_>, socket: &str) -> Result<Value> {
    let told = place.ours(&["status", "--socket", socket, "--json"])?;
    Ok(serde_json::from_str(&told)?)
}

/// One export of both volumes, and of one that the service does not have: that stops no other.
fn together(place: &Place<'_>, device: &Cluster, address: &str) -> Result<Running> {
    let exports = export(place, device, address, &["a", "b", "c"])?;
    ensure!(
        exports.said().contains("exports volumes a, b, c on nbd"),
        "{}",
        exports.said()
    );
    for name in ["a", "b"] {
        let size = place.stock("nbdinfo", &["--size", &uri(name)])?;
        ensure!(size.trim() == (MIB << 20).to_string(), "{name}: {size}");
    }
    let refused = place.stock("qemu-img", &["info", &uri("c")]);
    let fault = format!("{:#}", refused.err().context("it is refused")?);
    let expect = "volume c is not open: service";
    ensure!(
        fault.contains(expect) && fault.contains("name one of a, b"),
        "{fault}"
    );
    let list = place.stock("nbdinfo", &["--list", &uri("")])?;
    let is_listed = |name: &str| list.contains(&format!("export=\"{name}\":"));
    ensure!(
        ["a", "b", "c"].map(is_listed) == [true, true, false],
        "{list}"
    );
    let open = || {
        let told = status(place, "export-status")?;
        let all = told["volumes"].as_array().context("several")?;
        let open = all.iter().map(|one| one["error"] == "");
        Ok::<_, anyhow::Error>(open.collect::<Vec<_>>())
    };
    ensure!(open()? == [true, true, false]);
    let words = [
        "ctl",
        "--socket",
        "export-status",
        "--volume",
        "a",
        "snapshot",
        "list",
    ];
    let refused = place.ours(&words);
    let fault = format!("{:#}", refused.err().context("it is refused")?);
    ensure!(fault.contains("the volume is that of a service"), "{fault}");
    Ok(exports)
}

pub(super) fn by_name(place: &Place<'_>) -> Result<()> {
    let mut targets = Vec::new();
    for file in create(place, "a")? {
        targets.push((place.new_target(&file)?, file));
    }
    let of_a: Vec<String> = targets.iter().map(|((_, to), _)| to.clone()).collect();
    let of_b = create(place, "b")?;
    let device = place.world.cluster(1)?;
    let address = format!("127.0.0.1:{}", port::free()?);
    // Two workers: the one of the other volume is kept, whatever waits.
    let words = [
        format!("--volume=a={}", of_a.join(",")),
        format!("--volume=b={}", of_b.join(",")),
        "--workers=2".to_owned(),
        "--outage-limit=5m".to_owned(),
        "--target-timeout=2s".to_owned(),
        "--status-socket=status".to_owned(),
    ];
    let service = place.start_service(&device, &words, &address)?;
    for (name, expect) in [
        (
            &["c"][..],
            "there is no volume 'c': name one of a, b (--volume)",
        ),
        (&[], "there is no volume '': name one of a, b (--volume)"),
    ] {
        let refused = export(place, &device, &address, name).map(drop);
        let fault = format!("{:#}", refused.err().context("it is refused")?);
        ensure!(fault.contains(expect), "{fault}");
    }
    let exports = together(place, &device, &address)?;
    place.image("image", MIB)?;
    place.stock("nbdcopy", &["--flush", "image", &uri("a")])?;
    fio(
        place,
        &uri("b"),
        &["--rw=randwrite", "--bs=4k", "--iodepth=8"],
    )?;
    place.ours(&[
        "ctl", "--socket", "status", "--volume", "b", "snapshot", "create", "s",
    ])?;

    // All targets of one volume are lost. Its requests wait, and the other volume goes on meanwhile.
    let addresses: Vec<String> = of_a.iter().map(|to| to.replace("tcp:", "")).collect();
    let files: Vec<String> = targets.drain(..).map(|(_, file)| file).collect();
    std::thread::scope(|scope| -> Result<()> {
        let waits = scope.spawn(|| place.stock_within(3 * LIMIT, "nbdcopy", &[&uri("a"), "out"]));
        let lost = process::wait_until(LIMIT, || {
            status(place, "status").is_ok_and(|told| {
                let all = told["volumes"][0]["volume"]["targets"].as_array();
                all.is_some_and(|all| all.iter().all(|one| one["absent"] != ""))
            })
        });
        let went_on = fio(
            place,
            &uri("b"),
            &["--rw=randwrite", "--bs=4k", "--iodepth=8"],
        );
        let has_waited = !waits.is_finished();
        for (file, address) in files.iter().zip(&addresses) {
            targets.push((place.target(file, address)?, file.clone()));
        }
        let done = waits.join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        ensure!(lost, "the targets are not lost");
        went_on?;
        ensure!(
            has_waited,
            "the requests of the first volume have not waited"
        );
        Ok(())
    })?;
    place.same("image", "out")?;
    let told = status(place, "status")?;
    ensure!(
        told["volumes"][1]["name"] == "b" && told["volume"].is_null(),
        "{told}"
    );
    ensure!(told["requests"]["failed"] == 0, "{told}");
    drop((exports, service, targets));
    let mut scrub = vec!["scrub"];
    scrub.extend(of_b.iter().map(String::as_str));
    let report: Value = serde_json::from_str(&place.ours(&scrub)?)?;
    ensure!(report["bad_halves"] == 0, "{report}");
    Ok(())
}
