//! Snapshots, compared by stock clients with copies of the same time, while fio writes to the volume.

use super::place::Place;
use super::{FILES, SIZE_MIB, START, fio};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::process::Command;
use testbed::process::Running;

const URI: &str = "nbd+unix:///?socket=socket";

fn uri_of(snapshot: &str) -> String {
    format!("nbd+unix:///{snapshot}?socket=socket")
}

fn start(place: &Place<'_>) -> Result<Running> {
    let mut command = Command::new(place.world.bin.join("xgvmi-blk"));
    command.arg("export").args(FILES).current_dir(&place.dir);
    command.args(["--socket", "socket", "--status-socket", "status"]);
    Running::saying(&mut command, START, "exports volume")
}

fn snapshot(place: &Place<'_>, words: &[&str]) -> Result<String> {
    place.ours(&[&["ctl", "--socket", "status", "snapshot"], words].concat())
}

/// Fails unless a snapshot has the bytes of a file.
fn compare(place: &Place<'_>, name: &str, file: &str) -> Result<()> {
    let uri = uri_of(name);
    place.stock("nbdcopy", &["--connections=4", &uri, "out"])?;
    place.same(file, "out").with_context(|| name.to_owned())?;
    let words = ["compare", "-f", "raw", "-F", "raw", file, &uri];
    place.stock("qemu-img", &words).map(drop)
}

fn used(place: &Place<'_>) -> Result<u64> {
    let words = ["status", "--json", "--socket", "status"];
    let status: Value = serde_json::from_str(&place.ours(&words)?)?;
    let used = status["volume"]["targets"][0]["used"].as_u64();
    used.context("the use of a target")
}

/// Snapshots of before and during fio's writes do not change, also over a kill, a deletion and the loss of a target.
pub(super) fn under_fio(place: &Place<'_>) -> Result<()> {
    place.image("image", SIZE_MIB)?;
    place.create(SIZE_MIB, 4096)?;
    let mut server = start(place)?;
    place.stock("nbdcopy", &["--flush", "image", URI])?;
    snapshot(place, &["create", "before"])?;
    std::thread::scope(|scope| -> Result<()> {
        let words = ["--rw=randwrite", "--bs=4k", "--iodepth=8", "--fsync=64"];
        let writes = scope.spawn(move || fio(place, URI, &words));
        compare(place, "before", "image")?;
        snapshot(place, &["create", "during"])?;
        place.stock("nbdcopy", &[&uri_of("during"), "during"])?;
        compare(place, "before", "image")?;
        compare(place, "during", "during")?;
        let done = writes.join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(())
    })?;
    place.stock("nbdcopy", &[URI, "after"])?;
    ensure!(place.same("image", "after").is_err(), "fio has written");
    snapshot(place, &["create", "after"])?;
    // Two of three are enough.
    server.group.kill();
    drop(server);
    std::fs::rename(place.path(FILES[1]), place.path("away"))?;
    server = start(place)?;
    for (name, file) in [
        ("before", "image"),
        ("during", "during"),
        ("after", "after"),
    ] {
        compare(place, name, file)?;
    }
    drop(server);
    std::fs::rename(place.path("away"), place.path(FILES[1]))?;
    server = start(place)?;
    let full = used(place)?;
    snapshot(place, &["delete", "during"])?;
    server.group.kill();
    drop(server);
    server = start(place)?;
    compare(place, "before", "image")?;
    compare(place, "after", "after")?;
    for name in ["before", "after"] {
        snapshot(place, &["delete", name])?;
    }
    let is_free = testbed::process::wait_until(START, || {
        let left = snapshot(place, &["list"]).is_ok_and(|list| list.trim() != "[]");
        !left && used(place).is_ok_and(|used| used < full)
    });
    ensure!(is_free, "the space of deleted snapshots does not come back");
    place.stock("nbdcopy", &[URI, "out"])?;
    place.same("after", "out")?;
    drop(server);
    place.scrub().map(drop)
}
