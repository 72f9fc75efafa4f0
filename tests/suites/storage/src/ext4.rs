//! A file system that is copied in and out while targets and the service are killed.

use super::{FILES, LIMIT, Place, RECORDS_AT, SIZE_MIB, Server, Way, flip, without};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use testbed::process::{self, Running};
use testbed::workspace;

/// Bytes of a copy before its first fault. The whole copy has several times as many.
const BEFORE: u64 = 4 << 20;

/// mkfs.ext4 makes the image. During the copy to the volume one target is killed, during the copy from it another one; if
/// there is a service, it is killed too, during both. The targets return. Then bits are flipped.
pub(super) fn faults(place: &Place<'_>) -> Result<()> {
    make_image(place)?;
    place.create(SIZE_MIB, 4096)?;
    let mut targets = Vec::new();
    for name in FILES {
        targets.push(place.new_target(name)?);
    }
    let addresses: Vec<&str> = targets
        .iter()
        .map(|(_, address)| address.as_str())
        .collect();
    let mut server = place.export(&addresses)?;
    let uri = server.uri.clone();
    // One request at a time: the faults meet the copy in its middle.
    let slowly = ["--connections=1", "--requests=1", "--request-size=65536"];
    let length = || fs::metadata(place.path(FILES[0])).map_or(0, |data| data.len());
    during(
        place,
        &[&slowly[..], &["--flush", "image", &uri]].concat(),
        || length() > RECORDS_AT + BEFORE,
        || {
            kill(place, &mut server, &mut targets[1].0)?;
            wait(&server, "data_2 is not used any more")
        },
    )?;
    let address = targets[1].1.strip_prefix("tcp:").context("an address")?;
    targets[1] = place.target(FILES[1], address)?;
    wait(&server, "data_2 is complete")?;
    let copied = || fs::metadata(place.path("out")).map_or(0, |data| data.blocks() * 512);
    during(
        place,
        &[&slowly[..], &[&uri, "out"]].concat(),
        || copied() > BEFORE,
        || {
            kill(place, &mut server, &mut targets[0].0)?;
            wait(&server, "data_1 is not used any more")
        },
    )?;
    check(place)?;
    drop((server, targets));
    let mut words = vec!["rebuild"];
    words.extend(FILES);
    place.ours(&words)?;
    flip(&place.path("data_2"))?;
    {
        let server = place.export(&without(None))?;
        place.stock("nbdcopy", &[&server.uri, "out"])?;
    }
    check(place)?;
    place.scrub()?;
    place.compare_each("image")
}

/// An image with documents, and with a file that takes most of it.
fn make_image(place: &Place<'_>) -> Result<()> {
    let docs = workspace::root().join("docs");
    let docs = docs.to_str().context("the path of the documents")?;
    place.stock("cp", &["-r", docs, "tree"])?;
    place.image("tree/large", SIZE_MIB / 2)?;
    let size = format!("{SIZE_MIB}M");
    place
        .stock("mkfs.ext4", &["-q", "-d", "tree", "image", &size])
        .map(drop)
}

/// Runs nbdcopy, and `fault` in its middle.
fn during(
    place: &Place<'_>,
    copy: &[&str],
    begun: impl Fn() -> bool,
    fault: impl FnOnce() -> Result<()>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let job = scope.spawn(|| place.stock("nbdcopy", copy));
        process::wait_until(LIMIT, || begun() || job.is_finished());
        let is_early = !job.is_finished();
        let failed = fault();
        let copied = job
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        copied?;
        failed?;
        ensure!(
            is_early,
            "the copy has ended before its fault: nothing was tested"
        );
        Ok(())
    })
}

/// Kills a target, and the service if there is one. The service starts again without the target.
fn kill(place: &Place<'_>, server: &mut Server, target: &mut Running) -> Result<()> {
    if place.way == Way::Dpu {
        server.renew_service(place)?;
    }
    target.group.kill();
    Ok(())
}

fn wait(server: &Server, word: &str) -> Result<()> {
    ensure!(
        process::wait_until(LIMIT, || server.said().contains(word)),
        "no '{word}':\n{}",
        server.said()
    );
    Ok(())
}

/// The copy is the image, its file system is clean, and its files are those of the tree.
fn check(place: &Place<'_>) -> Result<()> {
    place.same("image", "out")?;
    place.stock("e2fsck", &["-f", "-n", "out"])?;
    let _ = fs::remove_dir_all(place.path("files"));
    fs::create_dir_all(place.path("files"))?;
    place.stock("debugfs", &["-R", "rdump / files", "out"])?;
    place
        .stock("diff", &["-r", "-x", "lost+found", "tree", "files"])
        .map(drop)
}
