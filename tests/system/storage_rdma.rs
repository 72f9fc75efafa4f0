//! Targets that a service on a DPU reaches over RDMA, on other functions and another machine: every byte comes back, half
//! blocks travel by RDMA, and what goes wrong costs one target at most.

use crate::harness::Case;
use crate::offload::Process;
use crate::ports::set;
use crate::process;
use crate::storage::{By, MIB, Place, addresses, span};
use crate::world::{LIMIT, Testbed, World, free_port};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What the service says if it uses frames in place of RDMA.
const FRAMES: &str = "travel over TCP";
/// Length of the head of a frame: magic, version, length.
const HEAD: usize = 12;
/// Kinds of messages that name memory: a call behind the class of its frame, an answer behind that and its number.
const CALL_PULL: (usize, u8) = (1, 16);
const ANSWER_PULL: (usize, u8) = (9, 15);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("storage_rdma_bytes", |w| bytes_verified(w, "infiniband")),
        Case::new("storage_rdma_on_ethernet", |w| {
            bytes_verified(w, "ethernet")
        }),
        Case::new("storage_rdma_on_routed_infiniband", |w| {
            bytes_verified(w, "infiniband-grh")
        }),
        Case::new("storage_rdma_target_stalls", stalls),
        Case::new("storage_rdma_port_down_and_up", port_down_and_up),
        Case::new("storage_rdma_replaced", replaced),
        Case::new("storage_rdma_without_a_device", without_a_device),
        Case::new("storage_rdma_hostile_volume", hostile_volume),
        Case::new("storage_rdma_hostile_target", hostile_target),
    ]
}

fn free_ports() -> Result<[u16; 3]> {
    Ok([free_port()?, free_port()?, free_port()?])
}

fn three(place: &Place<'_>, by: By, ports: [u16; 3]) -> Result<[Process; 3]> {
    let target = |index: usize| place.target(by, index, ports[index]);
    Ok([target(0)?, target(1)?, target(2)?])
}

/// Requests of several sizes. All half blocks of the long ones are read by RDMA, on both ways.
fn bytes_verified(world: &World, link: &str) -> Result<()> {
    let testbed = Testbed::new(world)?.with_link(link);
    let place = Place::on(world, testbed, 32 * MIB, 4096)?;
    let ports = free_ports()?;
    let targets = three(&place, By::Rdma, ports)?;
    let service = place.service(&addresses(By::Rdma, ports), &[])?;
    let mut initiator = place.initiator("announced")?;
    let reads = || place.testbed.stats()?.executed("rdma_read");
    // The two proofs of each connection.
    ensure!(reads()? >= 6, "{} reads", reads()?);
    let mut verified = 0;
    for (seed, request) in [(1, 4096), (2, 512 * 7), (3, MIB), (4, 5 * MIB + 512)] {
        let length = if request < 65536 { MIB } else { 12 * MIB };
        for kind in ["Write", "Read"] {
            let before = reads()?;
            verified += initiator.good(&span(kind, 512, length, (request, seed)))?;
            let reads = reads()? - before;
            // Groups of 256 KiB at most; a read needs two targets.
            let least = if request < 65536 {
                0
            } else {
                2 * length / (256 << 10)
            };
            ensure!(
                reads >= least,
                "{kind} of {request}: {reads} reads of {least}"
            );
        }
    }
    ensure!(verified >= 26 * MIB, "{verified} bytes are too few");
    initiator.good(&json!("Flush"))?;
    ensure!(!service.said().contains(FRAMES), "{}", service.said());
    drop((initiator, service, targets));
    let report = place.scrub()?;
    ensure!(
        report["bad_halves"] == 0 && report["lost_blocks"] == 0,
        "{report}"
    );
    Ok(())
}

/// A target stops under writes: it counts as absent, and takes no harm when it goes on.
fn stalls(world: &World) -> Result<()> {
    let place = Place::new(world, 16 * MIB, 4096)?;
    let ports = free_ports()?;
    let targets = three(&place, By::Rdma, ports)?;
    let options = ["--target-timeout", "1500ms"];
    let mut service = place.service(&addresses(By::Rdma, ports), &options)?;
    let mut initiator = place.initiator("announced")?;
    for (stopped, target) in targets.iter().enumerate() {
        let seed = stopped as u64;
        initiator.send(&span("Write", 0, 16 * MIB, (MIB, seed)))?;
        target.signal(libc::SIGSTOP)?;
        let done = initiator.answer()?;
        ensure!(done["failed"] == 0, "target {stopped} stops: {done}");
        initiator.good(&span("Write", 0, 4 * MIB, (MIB, seed)))?;
        initiator.good(&span("Read", 0, 16 * MIB, (MIB, seed)))?;
        target.signal(libc::SIGCONT)?;
        service.hear(&format!("{} is complete", ROLES[stopped]))?;
        initiator.good(&span("Read", 0, 16 * MIB, (MIB, seed)))?;
    }
    ensure!(!service.said().contains(FRAMES), "{}", service.said());
    Ok(())
}

const ROLES: [&str; 3] = ["data_1", "data_2", "data_p"];

/// A new target takes the place of one while the service serves: it is completed by RDMA.
fn replaced(world: &World) -> Result<()> {
    let mut place = Place::new(world, 16 * MIB, 4096)?;
    let ports = free_ports()?;
    let _targets = three(&place, By::Rdma, ports)?;
    let status = place.testbed.path().join("status");
    let status = status.to_str().context("the status socket")?;
    let service = place.service(&addresses(By::Rdma, ports), &["--status-socket", status])?;
    let mut initiator = place.initiator("announced")?;
    initiator.good(&span("Write", 0, 16 * MIB, (MIB, 1)))?;
    // What was not flushed would come from memory.
    initiator.good(&json!("Flush"))?;
    place.files[0] = place.testbed.path().join("new");
    let new = place.files[0].to_str().context("the new target")?;
    let ours = |words: &[&str]| {
        let mut command = Command::new(world.built("xgvmi-blk"));
        process::stdout(command.args(words), LIMIT)
    };
    ours(&["create", new, "--like", status, "--role", ROLES[0]])?;
    let port = free_port()?;
    let _new = place.target(By::Rdma, 0, port)?;
    let reads = || place.testbed.stats()?.executed("rdma_read");
    let before = reads()?;
    let address = format!("rdma:127.0.0.1:{port}");
    let told = ours(&["ctl", "--socket", status, "replace", &address, "--wait"])?;
    let reads = reads()? - before;
    // Groups of 256 KiB come from two targets and go to one.
    let least = 3 * 16 * MIB / (256 << 10);
    ensure!(
        reads >= least,
        "{reads} reads of {least}: {told}{}",
        service.said()
    );
    ensure!(!service.said().contains(FRAMES), "{}", service.said());
    initiator.good(&span("Read", 0, 16 * MIB, (MIB, 1)))?;
    Ok(())
}

/// The port of two targets goes down under writes and comes up: requests wait for them.
fn port_down_and_up(world: &World) -> Result<()> {
    let place = Place::new(world, 16 * MIB, 4096)?;
    let ports = free_ports()?;
    let _targets = three(&place, By::Rdma, ports)?;
    let _service = place.service(&addresses(By::Rdma, ports), &["--outage-limit", "60s"])?;
    let mut initiator = place.initiator("announced")?;
    initiator.good(&span("Write", 8 * MIB, 8 * MIB, (MIB, 1)))?;
    initiator.send(&span("Write", 0, 8 * MIB, (MIB, 2)))?;
    set(&place.testbed, "node1", 1, "down")?;
    // Some requests meet the port that is down. Nothing depends on their number.
    std::thread::park_timeout(Duration::from_millis(30));
    set(&place.testbed, "node1", 1, "up")?;
    let done = initiator.answer()?;
    ensure!(done["failed"] == 0, "{done}");
    for (offset, seed) in [(8 * MIB, 1), (0, 2)] {
        initiator.good(&span("Read", offset, 8 * MIB, (MIB, seed)))?;
    }
    Ok(())
}

/// Without a device a target does not start with --rdma. A volume says that it uses frames, if either side has none.
fn without_a_device(world: &World) -> Result<()> {
    let place = Place::new(world, 8 * MIB, 4096)?;
    let program = world.built("xgvmi-blk");
    let mut command = place.testbed.command("node1.dpu", &program);
    command.arg("target").arg(&place.files[0]);
    command.args(["--listen", "127.0.0.1:0", "--rdma", "--device", "none_0"]);
    let (code, said) = Process::spawn(&mut command)?.end(LIMIT, &["--device"])?;
    ensure!(
        code == Some(1) && said.contains("no RDMA device") && said.contains("none_0"),
        "{said}"
    );
    for (by, options, expect) in [
        (By::Tcp, &[][..], "serves without RDMA"),
        (By::Rdma, &["--rdma-device", "none_0"], "no RDMA device"),
    ] {
        let ports = free_ports()?;
        let _targets = three(&place, by, ports)?;
        let mut service = place.service(&addresses(By::Rdma, ports), options)?;
        service.hear(expect)?;
        ensure!(
            service.said().matches(FRAMES).count() == 3,
            "{}",
            service.said()
        );
        let mut initiator = place.initiator("announced")?;
        for kind in ["Write", "Read"] {
            initiator.good(&span(kind, 0, 8 * MIB, (MIB, 1)))?;
        }
        service.signal(libc::SIGTERM)?;
        service.end(LIMIT, &[" serves "])?;
    }
    Ok(())
}

/// How a frame changes on its way. The numbers are those of bytes behind the kind of the message.
type Change = fn(&mut Vec<u8>);

/// Passes frames between a service and a target. The first message of `kind` on each connection changes, as long as
/// `changes` allows. Returns the port.
fn relay(
    target: u16,
    (is_call, (at, kind)): (bool, (usize, u8)),
    change: Change,
    changes: &Arc<AtomicUsize>,
) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let changes = Arc::clone(changes);
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (Ok(near), Ok(far)) = (near, TcpStream::connect(("127.0.0.1", target))) else {
                return;
            };
            let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else {
                return;
            };
            for (from, to, calls) in [(near_too, far_too, true), (far, near, false)] {
                let changes = Arc::clone(&changes);
                std::thread::spawn(move || {
                    let is_meant =
                        move |body: &[u8]| calls == is_call && body.get(at) == Some(&kind);
                    pass(&from, &to, |frame| {
                        let meant = is_meant(&frame[HEAD..]);
                        let allowed = |left: usize| left.checked_sub(1);
                        let order = Ordering::SeqCst;
                        if meant && changes.fetch_update(order, order, allowed).is_ok() {
                            change(frame);
                        }
                    });
                    // They may be closed already.
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                });
            }
        }
    });
    Ok(port)
}

/// Passes frames until a side closes.
fn pass(mut from: &TcpStream, mut to: &TcpStream, change: impl Fn(&mut Vec<u8>)) {
    loop {
        let mut frame = vec![0; HEAD];
        if from.read_exact(&mut frame).is_err() {
            return;
        }
        let mut length = [0; 4];
        length.copy_from_slice(&frame[8..]);
        frame.resize(HEAD + u32::from_le_bytes(length) as usize, 0);
        if from.read_exact(&mut frame[HEAD..]).is_err() {
            return;
        }
        change(&mut frame);
        if to.write_all(&frame).is_err() {
            return;
        }
    }
}

/// Adds to a number of four bytes at `at`, counted from the kind of a message, which is at `kind` in its frame.
fn add(frame: &mut [u8], (kind, at): (usize, usize), value: u32) {
    let at = HEAD + kind + 1 + at;
    let mut number = [0; 4];
    number.copy_from_slice(&frame[at..at + 4]);
    let number = u32::from_le_bytes(number).wrapping_add(value);
    frame[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

/// One target is behind a relay that changes frames. The volume keeps its bytes, the target returns, and the
/// others are not lost.
fn hostile(world: &World, who: (bool, (usize, u8)), changes: &[(&str, Change)]) -> Result<()> {
    let place = Place::new(world, 8 * MIB, 4096)?;
    for (seed, (name, change)) in (1..).zip(changes) {
        let ports = free_ports()?;
        let targets = three(&place, By::Rdma, ports)?;
        let left = Arc::new(AtomicUsize::new(0));
        let relayed = relay(ports[0], who, *change, &left)?;
        let names = addresses(By::Rdma, [relayed, ports[1], ports[2]]);
        let options = ["--target-timeout", "1500ms"];
        let mut service = place.service(&names, &options)?;
        let mut initiator = place.initiator("announced")?;
        let both = |initiator: &mut crate::storage::Initiator, seed| -> Result<()> {
            for kind in ["Write", "Read"] {
                initiator.good(&span(kind, 0, 8 * MIB, (MIB, seed)))?;
            }
            Ok(())
        };
        both(&mut initiator, seed).with_context(|| format!("before: {name}"))?;
        left.store(1, Ordering::SeqCst);
        both(&mut initiator, 100 + seed).with_context(|| (*name).to_owned())?;
        let met = process::wait_until(LIMIT, || left.load(Ordering::SeqCst) == 0);
        ensure!(met, "{name}: no frame was changed");
        service
            .hear("data_1 is complete")
            .with_context(|| (*name).to_owned())?;
        both(&mut initiator, 200 + seed).with_context(|| format!("after: {name}"))?;
        let said = service.said();
        let lost = |role: &str| said.contains(&format!("{role} is complete"));
        ensure!(!lost("data_2") && !lost("data_p"), "{name}: {said}");
        ensure!(!said.contains(FRAMES), "{name}: {said}");
        service.signal(libc::SIGTERM)?;
        service.end(LIMIT, &[" serves "])?;
        drop(targets);
        let mut command = Command::new(world.built("xgvmi-blk"));
        command.arg("show").args(&place.files);
        process::stdout(&mut command, LIMIT)?;
    }
    let report = place.scrub()?;
    ensure!(
        report["bad_halves"] == 0 && report["lost_blocks"] == 0,
        "{report}"
    );
    Ok(())
}

/// A volume names memory that it has not, or a slot that the target has not, or changes what it has sent.
fn hostile_volume(world: &World) -> Result<()> {
    // Behind the kind: slot (2), address (8), length (4), checksum (4).
    hostile(
        world,
        (true, CALL_PULL),
        &[
            ("memory outside its slots", |frame| {
                add(frame, (1, 2), 64 << 20)
            }),
            ("memory before its slots", |frame| {
                add(frame, (1, 2), 0u32.wrapping_sub(1 << 30))
            }),
            ("a longer message than a slot", |frame| {
                add(frame, (1, 10), 1 << 30)
            }),
            ("no bytes", |frame| {
                let at = HEAD + 1 + 1 + 10;
                frame[at..at + 4].fill(0);
            }),
            ("another slot of its own", |frame| add(frame, (1, 2), 64)),
            ("a wrong checksum", |frame| add(frame, (1, 14), 1)),
            ("a slot that the target has not", |frame| {
                frame[HEAD + 2..HEAD + 4].copy_from_slice(&16u16.to_le_bytes());
            }),
        ],
    )
}

/// A target answers by memory that it has not, by another slot, late, or twice.
fn hostile_target(world: &World) -> Result<()> {
    // Behind the kind: address (8), length (4), checksum (4).
    hostile(
        world,
        (false, ANSWER_PULL),
        &[
            ("memory outside its slots", |frame| {
                add(frame, (9, 0), 64 << 20)
            }),
            ("another slot", |frame| add(frame, (9, 0), 557_056)),
            ("a longer message than a slot", |frame| {
                add(frame, (9, 8), 1 << 30)
            }),
            ("a wrong checksum", |frame| add(frame, (9, 12), 1)),
            ("twice", |frame| frame.extend_from_within(..)),
            ("the number of another call", |frame| {
                add(frame, (0, 0), 1 << 30)
            }),
            ("late", |_| {
                // The delay is the fault under test: longer than the service waits.
                std::thread::park_timeout(Duration::from_millis(4000));
            }),
        ],
    )
}
