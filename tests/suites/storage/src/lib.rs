//! Stock block clients on an export of `xgvmi-blk`, and stock libraries on its files.
//!
//! ```no_run
//! # use std::path::Path;
//! let parts = ["fio: random".to_owned()];
//! let world = storage_suite::World {
//!     bin: Path::new("target/release"),
//!     dir: Path::new("target/suites/storage"),
//!     tools: &[],
//!     ucx: Path::new("libucp.so.0"),
//!     verbs: &[],
//!     parts: &parts,
//!     dpu: None,
//! };
//! for (name, result) in storage_suite::run(&world)? {
//!     println!("{name}: {result:?}");
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```

mod crash;
mod disks;
mod engine;
mod ext4;
mod faults;
mod initiators;
mod kernel;
mod large;
mod loops;
mod peers;
mod place;
mod power;
mod replay;
mod several;
mod snapshots;
mod soak;
mod tls;
mod vhost;
mod waits;

pub use crash::lose_power;
pub use kernel::{Kernel, run_kernel};
pub use loops::run_loops;
pub use peers::bench;
pub use replay::record;
pub use tls::run_tls;
pub use vhost::{EXERCISE_TEST, LOG_TEST, Machinery, VHOST_TESTS, has_log, run_vhost};

use anyhow::{Context, Result, bail, ensure};
use place::{Place, Server, Way, without};
use serde_json::Value;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::Duration;
use testbed::cluster::Cluster;
use testbed::foreign::Foreign;
use testbed::workspace;

/// One command of a stock client.
const LIMIT: Duration = Duration::from_secs(120);
/// Start of an export.
const START: Duration = Duration::from_secs(20);
/// Run of fio with mixed sizes, in seconds.
const MIXED_S: u64 = 60;
/// The same in `cargo xtask test`.
const SAMPLE_S: u64 = 3;
/// Size of a volume in MiB.
const SIZE_MIB: u64 = 64;
/// Offset of the first record in a target with blocks of 4 KiB, behind two superblocks and an index with room for sixteen
/// times as many blocks.
const RECORDS_AT: u64 = 6_131_712;
/// Bytes of superblocks and index that such a target has: 24 for each block, and 512 KiB for what is in change.
const INDEX_BYTES: u64 = 8192 + (SIZE_MIB << 20) / 4096 * 24 + (512 << 10);
const FILES: [&str; 3] = ["data_1", "data_2", "data_p"];

/// Sample for `cargo xtask test`: each client, each kind of fault, and each part of the way through a DPU once. What repeats
/// them (with another client, by the other way, with each target in turn) runs in the suite. The soak runs only if it is asked
/// for.
pub const SAMPLE: &[&str] = &[
    "nbdinfo",
    "nbdsh",
    "nbdkit: a volume on",
    "qemu-io",
    "convert",
    "fio: random",
    "fio: mixed sizes for three seconds",
    "fio: a target is killed",
    "fio: its requests",
    "fio: its engine loses",
    "ext4: a file system survives",
    "snapshots",
    "targets: liblz4",
    "sbc",
    "DPU: nbdsh",
    "DPU: fio: random",
    "DPU: fio: all targets stop",
    "DPU: service: its limit",
    "DPU: service: names",
    "DPU: ext4: targets",
];

type Test = fn(&Place<'_>) -> Result<()>;

/// Tests with the volume behind a service on a DPU.
const THROUGH_DPU: &[(&str, Test)] = &[
    ("DPU: nbdinfo describes the export", nbdinfo),
    ("DPU: nbdsh: commands, flags and refusals", nbdsh),
    ("DPU: nbdcopy: in and out, four connections", nbdcopy),
    ("DPU: qemu-img: convert and compare", qemu_img),
    ("DPU: qemu-img: bench", qemu_bench),
    (
        "DPU: qemu-io: patterns, zeros, discards and flushes",
        qemu_io,
    ),
    ("DPU: fio: random writes of a block, verified", fio_random),
    ("DPU: fio: sequential writes, verified", fio_sequential),
    (
        "DPU: fio: mixed sizes for three seconds, verified",
        fio_sample,
    ),
    ("DPU: fio: mixed sizes for a minute, verified", fio_mixed),
    (
        "DPU: fio: with each target absent, completed afterwards",
        fio_degraded,
    ),
    (
        "DPU: fio: a target is killed, another one stops, both return",
        faults::lost,
    ),
    (
        "DPU: fio: all targets stop and two are killed, and no request fails",
        faults::stalled,
    ),
    (
        "DPU: service: its limit passes with a request under way, which the next one carries out",
        faults::drained,
    ),
    (
        "DPU: service: names of initiators, one may only read, one is revoked; an encrypted volume",
        initiators::names,
    ),
    (
        "DPU: service: two volumes, of which initiators may write one, read one, or use one only",
        initiators::rights,
    ),
    (
        "DPU: service: two volumes by name in one export, one loses its targets, the other goes on",
        several::by_name,
    ),
    (
        "DPU: ext4: a file system survives an absent and a damaged target",
        ext4,
    ),
    (
        "DPU: ext4: targets and the service are killed while a file system is copied in and out",
        ext4::faults,
    ),
];

const TESTS: &[(&str, Test)] = &[
    ("nbdinfo describes the export", nbdinfo),
    ("nbdsh: commands, flags and refusals", nbdsh),
    ("nbdcopy: in and out, four connections", nbdcopy),
    ("qemu-img: convert and compare", qemu_img),
    ("qemu-img: bench", qemu_bench),
    ("qemu-io: patterns, zeros, discards and flushes", qemu_io),
    ("fio: random writes of a block, verified", fio_random),
    ("fio: sequential writes, verified", fio_sequential),
    ("fio: mixed sizes for three seconds, verified", fio_sample),
    ("fio: mixed sizes for a minute, verified", fio_mixed),
    (
        "fio: with each target absent, completed afterwards",
        fio_degraded,
    ),
    (
        "fio: a target is killed, another one stops, both return",
        faults::lost,
    ),
    (
        "fio: all targets stop and two are killed, and no request fails",
        faults::stalled,
    ),
    (
        "fio: all disks lose their power, and what it had flushed is verified by its saved state",
        power::verified,
    ),
    (
        "ext4: a file system survives an absent and a damaged target",
        ext4,
    ),
    (
        "ext4: targets are killed while a file system is copied in and out",
        ext4::faults,
    ),
    (
        "snapshots: nbdcopy and qemu-img compare them while fio writes",
        snapshots::under_fio,
    ),
    ("nbdkit: a volume on three memory servers", peers::on_nbdkit),
    (
        "nbdkit: a volume larger than its memory servers",
        peers::on_small_nbdkit,
    ),
    (
        "fio: its requests through the DPU, by each way, verified",
        engine::verified,
    ),
    (
        "fio: its engine needs the secret of the service",
        engine::secrets,
    ),
    ("fio: its engine names one of two volumes", engine::named),
    (
        "fio: its engine names itself, and has the rights of this name at each volume",
        engine::identities,
    ),
    (
        "fio: its engine loses the service, and the data is old or new",
        engine::killed,
    ),
    (
        "fio: its engine refuses another version",
        engine::other_version,
    ),
    (
        "fio: bytes that half compressible data takes",
        peers::stored_bytes,
    ),
    ("targets: liblz4 and ISA-L read them", targets),
    (
        "sbc: liblz4 and ISA-L read what we write, and the reverse",
        sbc,
    ),
];

/// Where the tests find their programs and put their files.
#[derive(Debug)]
pub struct World<'a> {
    /// Directory of the built `xgvmi-blk`.
    pub bin: &'a Path,
    /// Directory for the files of the tests.
    pub dir: &'a Path,
    /// Environment of the stock programs.
    pub tools: &'a [(String, String)],
    /// Stock UCX's `libucp.so.0`.
    pub ucx: &'a Path,
    /// Environment of programs that use libibverbs and this UCX.
    pub verbs: &'a [(String, String)],
    /// A test runs if its name contains one of these words; without words all run.
    pub parts: &'a [String],
    /// The processor of the DPUs, if it is not that of the hosts.
    pub dpu: Option<&'a Foreign>,
}

impl World<'_> {
    /// A new emulated device of one node.
    fn cluster(&self, nodes: u32) -> Result<Cluster> {
        let device = Cluster::new(self.bin.join("bf-emu"), nodes)?;
        Ok(device.envs(self.verbs.iter().cloned()))
    }
}

/// Runs all tests that are wanted. The soak must be asked for.
///
/// # Errors
/// The directory cannot be created.
pub fn run(world: &World<'_>) -> Result<Vec<(&'static str, Result<()>)>> {
    let wants = |name: &str| world.parts.iter().any(|part| wanted(name, part));
    let host = TESTS.iter().map(|(name, test)| (*name, Way::Host, *test));
    let dpu = THROUGH_DPU
        .iter()
        .map(|(name, test)| (*name, Way::Dpu, *test));
    let tests = host
        .chain(dpu)
        .filter(|(name, ..)| world.parts.is_empty() || wants(name));
    let asked = world
        .parts
        .iter()
        .any(|part| soak::NAME.starts_with(part.as_str()));
    let mut results = Vec::new();
    let soak: (&str, Way, Test) = (soak::NAME, Way::Dpu, soak::run);
    for (name, way, test) in tests.chain(asked.then_some(soak)) {
        let dir = world.dir.join("storage");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        results.push((name, test(&Place { world, dir, way })));
    }
    Ok(results)
}

/// True if a word asks for a test. Those through a DPU have the names of others, so the word must name it.
fn wanted(name: &str, part: &str) -> bool {
    name.contains(part) && name.starts_with("DPU") == part.contains("DPU")
}

fn nbdinfo(place: &Place<'_>) -> Result<()> {
    place.create(16, 4096)?;
    let server = place.export(&FILES)?;
    let told: Value = serde_json::from_str(&place.stock("nbdinfo", &["--json", &server.uri])?)?;
    let export = &told["exports"][0];
    ensure!(
        told["protocol"] == "newstyle-fixed" && told["structured"] == true,
        "{told}"
    );
    ensure!(export["export-size"] == 16 << 20, "{told}");
    for can in [
        "can_flush",
        "can_fua",
        "can_trim",
        "can_zero",
        "can_multi_conn",
        "can_df",
    ] {
        ensure!(export[can] == true, "{can}: {told}");
    }
    ensure!(export["block_size_minimum"] == 512, "{told}");
    ensure!(export["contexts"][0] == "base:allocation", "{told}");
    let list = place.stock("nbdinfo", &["--list", &server.uri])?;
    ensure!(list.contains("export=\"\""), "{list}");
    let map = place.stock("nbdinfo", &["--map", &server.uri])?;
    ensure!(
        map.split_whitespace()
            .eq(["0", "16777216", "3", "hole,zero"]),
        "{map}"
    );
    Ok(())
}

fn nbdsh(place: &Place<'_>) -> Result<()> {
    place.create(16, 4096)?;
    let server = place.export(&FILES)?;
    let script = workspace::root().join("tests/suites/storage_nbdsh.py");
    let uri = format!("uri = '{}'", server.uri);
    // Debian's interpreter: its modules work with no other.
    let start = format!("exec(open('{}').read())", script.display());
    let said = place.stock("/usr/bin/python3", &["-m", "nbd", "-c", &uri, "-c", &start])?;
    ensure!(said.contains("all as expected"), "{said}");
    Ok(())
}

fn nbdcopy(place: &Place<'_>) -> Result<()> {
    place.image("image", SIZE_MIB)?;
    for block_size in [512, 4096, 1 << 20] {
        for name in FILES {
            let _ = fs::remove_file(place.path(name));
        }
        place.create(SIZE_MIB, block_size)?;
        let server = place.export(&FILES)?;
        place.stock(
            "nbdcopy",
            &["--connections=4", "--flush", "image", &server.uri],
        )?;
        place.stock("nbdcopy", &["--connections=4", &server.uri, "out"])?;
        place
            .same("image", "out")
            .with_context(|| format!("blocks of {block_size} bytes"))?;
        let map = place.stock("nbdinfo", &["--map", "--totals", &server.uri])?;
        // A larger block has bytes of each kind.
        let is_fine = block_size <= 4096;
        ensure!(
            is_fine == map.contains("hole,zero"),
            "blocks of {block_size} bytes:
{map}"
        );
        drop(server);
        place.scrub()?;
    }
    place.compare_each("image")
}

fn qemu_img(place: &Place<'_>) -> Result<()> {
    place.image("image", SIZE_MIB)?;
    place.create(SIZE_MIB, 4096)?;
    let server = place.export(&FILES)?;
    let uri = server.uri.as_str();
    place.stock(
        "qemu-img",
        &[
            "convert", "-n", "-W", "-f", "raw", "-O", "raw", "image", uri,
        ],
    )?;
    place.stock(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", "image", uri],
    )?;
    place.stock(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "qcow2", uri, "out.qcow2"],
    )?;
    place.stock(
        "qemu-img",
        &["compare", "-f", "qcow2", "-F", "raw", "out.qcow2", "image"],
    )?;
    drop(server);
    place.scrub().map(drop)
}

fn qemu_bench(place: &Place<'_>) -> Result<()> {
    place.create(SIZE_MIB, 4096)?;
    let server = place.export(&FILES)?;
    let uri = server.uri.as_str();
    for write in [&["-w", "--pattern=165", "--flush-interval=64"][..], &[]] {
        let words = [
            &["bench", "-f", "raw", "-c", "2000", "-d", "16", "-s", "4096"],
            write,
            &[uri],
        ]
        .concat();
        place.stock("qemu-img", &words)?;
    }
    drop(server);
    place.scrub().map(drop)
}

fn qemu_io(place: &Place<'_>) -> Result<()> {
    place.create(SIZE_MIB, 4096)?;
    let server = place.export(&FILES)?;
    let commands = [
        "write -P 1 0 64k",
        "write -P 2 512 1536",
        "write -f -P 3 4096 4096",
        "write -P 4 1000k 3M",
        "write -z 2M 1M",
        "write -z -u 8k 8k",
        "discard 32k 8k",
        "flush",
        "read -P 1 0 512",
        "read -P 2 512 1536",
        "read -P 1 2048 2048",
        "read -P 3 4k 4k",
        "read -P 0 8k 8k",
        "read -P 1 16k 16k",
        "read -P 0 32k 8k",
        "read -P 1 40k 24k",
        "read -P 4 1000k 1000k",
        "read -P 0 2M 1M",
        "read -P 4 3M 1000k",
        "read -P 0 60M 4M",
    ];
    let mut words = vec!["-f", "raw"];
    words.extend(commands.iter().flat_map(|command| ["-c", command]));
    words.push(&server.uri);
    let said = place.stock("qemu-io", &words)?;
    ensure!(!said.contains("failed") && !said.contains("rror"), "{said}");
    drop(server);
    place.scrub().map(drop)
}

/// Options of every job: each block has a header and a checksum, and a wrong one ends the job.
const VERIFY: [&str; 7] = [
    "--ioengine=nbd",
    "--verify=crc32c",
    "--verify_fatal=1",
    "--verify_dump=0",
    "--randrepeat=1",
    "--group_reporting",
    "--output-format=json",
];

/// Runs fio against an export and checks that it verified what it wrote. Returns its report of the job.
fn fio(place: &Place<'_>, uri: &str, options: &[&str]) -> Result<Value> {
    let uri = format!("--uri={uri}");
    let size = format!("--size={SIZE_MIB}M");
    // fio knows the options of an engine behind the engine's own.
    let mut words = vec!["--name=job"];
    words.extend(VERIFY);
    words.extend([uri.as_str(), size.as_str()]);
    words.extend(options);
    let limit = LIMIT + soak::LENGTH;
    let text = place.stock_within(limit, "fio", &words)?;
    let json = text
        .find('{')
        .map(|at| &text[at..])
        .with_context(|| text.clone())?;
    let report: Value = serde_json::from_str(json).with_context(|| text.clone())?;
    let job = &report["jobs"][0];
    let bytes = |kind: &str| job[kind]["io_bytes"].as_u64().unwrap_or_default();
    ensure!(job["error"] == 0, "fio: error {}", job["error"]);
    ensure!(
        bytes("read") >= 1 << 20 && bytes("write") >= 1 << 20,
        "fio has verified nothing: {job}"
    );
    Ok(job.clone())
}

fn fio_on_new(place: &Place<'_>, options: &[&str]) -> Result<()> {
    place.create(SIZE_MIB, 4096)?;
    let server = place.export(&FILES)?;
    fio(place, &server.uri, options)?;
    drop(server);
    place.scrub().map(drop)
}

fn fio_random(place: &Place<'_>) -> Result<()> {
    fio_on_new(place, &["--rw=randwrite", "--bs=4k", "--iodepth=16"])
}

fn fio_sequential(place: &Place<'_>) -> Result<()> {
    fio_on_new(
        place,
        &[
            "--rw=write",
            "--bs=1M",
            "--iodepth=4",
            "--buffer_compress_percentage=50",
        ],
    )
}

/// Requests of 512 bytes to 256 KiB that do not fit blocks.
const MIXED: [&str; 6] = [
    "--rw=randwrite",
    "--bsrange=512-256k",
    "--blockalign=512",
    "--iodepth=8",
    "--buffer_compress_percentage=50",
    "--fsync=64",
];

fn mixed(place: &Place<'_>, seconds: u64) -> Result<()> {
    let time = format!("--runtime={seconds}");
    let loops = [
        "--time_based",
        time.as_str(),
        "--do_verify=1",
        "--verify_backlog=256",
    ];
    fio_on_new(place, &[&MIXED[..], &loops].concat())
}

fn fio_sample(place: &Place<'_>) -> Result<()> {
    mixed(place, SAMPLE_S)
}

fn fio_mixed(place: &Place<'_>) -> Result<()> {
    mixed(place, MIXED_S)
}

/// Writes with each target absent in turn. The absent one is completed from the two others by the next export.
fn fio_degraded(place: &Place<'_>) -> Result<()> {
    place.create(SIZE_MIB, 4096)?;
    for absent in 0..FILES.len() {
        let server = place.export(&without(Some(absent)))?;
        let seed = format!("--randseed={absent}");
        let offset = format!("--offset={}M", 16 * absent);
        fio(
            place,
            &server.uri,
            &[
                "--rw=randwrite",
                "--bs=4k",
                "--iodepth=16",
                "--size=16M",
                &seed,
                &offset,
            ],
        )?;
        place.stock("nbdcopy", &[&server.uri, "image"])?;
        drop(server);
        let mut words = vec!["rebuild"];
        words.extend(FILES);
        place.ours(&words)?;
        place.scrub()?;
        place.compare_each("image")?;
    }
    Ok(())
}

/// A file system with the project's own documents, through an absent target, flipped bits and a new target.
fn ext4(place: &Place<'_>) -> Result<()> {
    let docs = workspace::root().join("docs");
    let docs = docs.to_str().context("the path of the documents")?;
    place.stock(
        "mkfs.ext4",
        &["-q", "-d", docs, "image", &format!("{SIZE_MIB}M")],
    )?;
    place.create(SIZE_MIB, 4096)?;
    let server = place.export(&without(Some(1)))?;
    place.stock("nbdcopy", &["--flush", "image", &server.uri])?;
    drop(server);
    let mut words = vec!["rebuild"];
    words.extend(FILES);
    place.ours(&words)?;
    flip(&place.path("data_1"))?;
    let server = place.export(&FILES)?;
    place.stock("nbdcopy", &[&server.uri, "out"])?;
    drop(server);
    check_files(place, docs)?;
    place.scrub()?;
    fs::remove_file(place.path("data_1"))?;
    place.ours(&["create", "data_1", "--like", "data_2", "--role", "data_1"])?;
    place.ours(&words)?;
    place.scrub()?;
    place.compare_each("image")
}

/// The file system in `out` is clean and has the documents.
fn check_files(place: &Place<'_>, docs: &str) -> Result<()> {
    place.same("image", "out")?;
    place.stock("e2fsck", &["-f", "-n", "out"])?;
    fs::create_dir_all(place.path("files"))?;
    place.stock("debugfs", &["-R", "rdump / files", "out"])?;
    place
        .stock("diff", &["-r", "-x", "lost+found", docs, "files"])
        .map(drop)
}

/// Flips a bit in each of some records behind the index.
fn flip(path: &Path) -> Result<()> {
    let mut file = fs::OpenOptions::new().read(true).write(true).open(path)?;
    let end = file.metadata()?.len();
    ensure!(end > RECORDS_AT + 4096, "the target has no records");
    for at in (RECORDS_AT + 100..end).step_by(10_007) {
        let mut byte = [0];
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut byte)?;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(&[byte[0] ^ 0x10])?;
    }
    Ok(())
}

fn formats(place: &Place<'_>, words: &[&str]) -> Result<String> {
    let script = workspace::root().join("tests/suites/storage_formats.py");
    let script = script.to_str().context("the path of the script")?;
    place.stock("/usr/bin/python3", &[&[script], words].concat())
}

fn targets(place: &Place<'_>) -> Result<()> {
    place.image("image", 16)?;
    for block_size in [512, 4096, 1 << 16] {
        for name in FILES {
            let _ = fs::remove_file(place.path(name));
        }
        place.create(16, block_size)?;
        let server = place.export(&FILES)?;
        // Written twice: old generations must not count.
        for _ in 0..2 {
            place.stock("nbdcopy", &["image", &server.uri])?;
        }
        drop(server);
        let said = formats(place, &[&["targets"], &FILES[..], &["image"]].concat())?;
        for kind in ["zero", "raw", "compressed"] {
            if said.contains(&format!(" 0 {kind}")) {
                bail!("no block of {block_size} bytes is {kind}: {said}");
            }
        }
    }
    Ok(())
}

fn sbc(place: &Place<'_>) -> Result<()> {
    let mut text = String::new();
    while text.len() < 3_000_001 {
        text += &format!(
            "{} bottles of something on the wall, {}\n",
            text.len() / 7,
            text.len() % 97
        );
    }
    fs::write(place.path("image"), &text)?;
    for block_size in ["512", "4096", "1048576"] {
        let words = [
            &["sbc", "write", "image"],
            &FILES[..],
            &["--block-size", block_size],
        ]
        .concat();
        place.ours(&words)?;
        formats(place, &[&["sbc"], &FILES[..], &["image"]].concat())?;
        formats(
            place,
            &[&["make", "image", block_size], &FILES[..]].concat(),
        )?;
        for pair in [
            ["--data-1", "--data-2"],
            ["--data-1", "--data-p"],
            ["--data-2", "--data-p"],
        ] {
            let mut words = vec!["sbc", "read", "out"];
            for option in pair {
                let at = FILES
                    .iter()
                    .position(|name| option[2..].replace('-', "_") == **name);
                words.extend([option, FILES[at.context("the file of an option")?]]);
            }
            place.ours(&words)?;
            let mut padded = text.clone().into_bytes();
            let size: usize = block_size.parse()?;
            padded.resize(padded.len().next_multiple_of(size), 0);
            ensure!(
                fs::read(place.path("out"))? == padded,
                "{pair:?} with blocks of {block_size} bytes"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_the_sample_selects_a_test() {
        let names = || TESTS.iter().chain(THROUGH_DPU).map(|(name, _)| *name);
        for part in SAMPLE {
            assert!(names().any(|name| wanted(name, part)), "{part}");
        }
        let chosen = names().filter(|name| SAMPLE.iter().any(|part| wanted(name, part)));
        assert!(chosen.count() < names().count() * 2 / 3);
    }
}
