//! Tests of what keeps a volume complete.

use super::*;
use crate::geometry::{Geometry, Id};
use crate::operate::OpenArgs;
use crate::remote::stall_tests::{Switch, in_time, start};
use crate::store::{MemoryMedium, NewTarget, Store, Target};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

const BLOCK: usize = 4096;
/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

/// A target that was full is completed when it has freed space, and is not tried again and again before.
#[test]
fn a_full_target_is_completed_when_it_has_space() {
    let (size, count) = (4096u32, 8);
    let targets = Role::HALVES.map(|role| -> Arc<dyn Target> {
        let new = NewTarget {
            geometry: Geometry::new(size, count).unwrap(),
            role,
            volume: Id([1; 16]),
            complete: true,
        };
        // Four half blocks and their headers, in the first target.
        let capacity = (role == Role::FIRST).then_some(4 * (2048 + 64));
        let medium = Box::new(MemoryMedium::default());
        Arc::new(Store::create("memory", medium, new, capacity).unwrap())
    });
    let volume = Volume::open(targets.to_vec()).unwrap();
    let mut seed = 1u64;
    let mut noise = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed.to_be_bytes()[0]
    };
    for block in 0..6 {
        let bytes: Vec<u8> = (0..size).map(|_| noise()).collect();
        volume.write(block * u64::from(size), &bytes).unwrap();
    }
    volume.flush().unwrap();
    assert_eq!(volume.missing_blocks(Role::FIRST), 2);
    let used = wants_rebuild(&volume, Role::FIRST, None).expect("it has not been tried");
    let error = explained(rebuild_one(&volume, Role::FIRST).unwrap_err()).to_string();
    assert!(
        error.contains("is full") && error.contains("the rest follows by itself"),
        "{error}"
    );
    let failed = Some(Failed {
        used,
        at: Instant::now(),
        again: LONG,
        in_vain: 0,
    });
    assert_eq!(wants_rebuild(&volume, Role::FIRST, failed), None);
    volume.trim(0, 2 * u64::from(size)).unwrap();
    volume.flush().unwrap();
    assert!(wants_rebuild(&volume, Role::FIRST, failed).is_some());
    rebuild_one(&volume, Role::FIRST).unwrap();
    assert_eq!(volume.missing_blocks(Role::FIRST), 0);
    assert_eq!(wants_rebuild(&volume, Role::FIRST, None), None);
}

/// A source that cannot read a block leaves and returns with each rebuild: it is not asked for that block each second.
#[test]
fn a_rebuild_in_vain_is_not_tried_again_because_its_source_returns() {
    let both = Role::FIRST.bit() | Role::SECOND.bit();
    let mut failed = Failed::new(None, 7, both, true);
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(failed.again, Duration::from_secs(seconds));
        assert!(failed.stays(Role::FIRST) && !failed.stays(Role::PARITY));
        failed = Failed::new(Some(failed), 7, both, true);
    }
    // One that has completed something goes on.
    let failed = Failed::new(Some(failed), 7, both, false);
    assert_eq!(failed.again, REBUILD_AGAIN[0]);
    assert!(!failed.stays(Role::FIRST));
}

/// A volume on targets at these addresses that is kept complete.
fn kept(addresses: &[String], limit: Duration, outage_limit: Duration) -> Arc<Volume> {
    let args = OpenArgs {
        target_timeout: limit,
        outage_limit,
        ..OpenArgs::default()
    };
    let names: Vec<String> = addresses.iter().map(|to| format!("tcp:{to}")).collect();
    let opener = Arc::new(Opener::new(&names, &args).unwrap());
    let volume = Arc::new(in_time(|| opener.open_volume()));
    keep(&opener, &volume).unwrap();
    volume
}

fn wait_complete(volume: &Volume) {
    let end = Instant::now() + LONG / 2;
    while !Role::HALVES
        .into_iter()
        .all(|role| volume.is_complete(role))
    {
        assert!(
            Instant::now() < end,
            "not complete: {:?}",
            volume.status().targets
        );
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Two targets are lost. One of them returns, and its disk does not end a sync: that by which it is marked, or the one after
/// it has its place. A request needs only the other one, which returns meanwhile.
#[test]
fn a_target_with_a_busy_disk_delays_no_other() {
    for syncs_that_end in [0, 1] {
        let (addresses, [syncs, ..]) = start(&Arc::<Switch>::default());
        let addresses = addresses.map(|to| to.address);
        let volume = kept(&addresses, Duration::from_secs(1), LONG / 2);
        let bytes = [7; 2 * BLOCK];
        volume.write(0, &bytes).unwrap();
        volume.flush().unwrap();
        // A busy machine may have opened it without one.
        wait_complete(&volume);
        syncs.stall_after(Some(syncs_that_end));
        for role in [Role::FIRST, Role::PARITY] {
            volume.detach(role, "the test says so");
        }
        for block in 0..8u64 {
            let written = volume.write(block * BLOCK as u64, &bytes);
            written.unwrap_or_else(|error| panic!("{syncs_that_end} syncs: {error}"));
        }
        syncs.stall_after(None);
        wait_complete(&volume);
        volume.flush().unwrap();
        assert_eq!(volume.scrub().unwrap().bad_halves, 0);
    }
}

/// Connections of which nothing comes back behind a number of answers: as of one that a router has forgotten, or of a target
/// whose disk is busy.
#[derive(Default)]
struct Mute {
    /// Number of such connections, before others.
    connections: AtomicUsize,
    answers: AtomicUsize,
}

/// Forwards connections to a target.
fn forward(to: String, mute: Arc<Mute>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut target) = (client.unwrap(), TcpStream::connect(&to).unwrap());
            let take = |left: usize| left.checked_sub(1);
            let taken = mute
                .connections
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
            let answers = taken.map(|_| mute.answers.load(Ordering::SeqCst));
            let (mut from, mut into) = (client.try_clone().unwrap(), target.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = io::copy(&mut from, &mut into);
                let _ = into.shutdown(std::net::Shutdown::Write);
            });
            std::thread::spawn(move || -> io::Result<()> {
                if let Ok(answers) = answers {
                    for _ in 0..answers {
                        let mut head = [0; 12];
                        target.read_exact(&mut head)?;
                        let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
                        client.write_all(&head)?;
                        io::copy(&mut (&target).take(length.into()), &mut client)?;
                    }
                    io::copy(&mut target, &mut io::sink())?;
                }
                io::copy(&mut target, &mut client)?;
                client.shutdown(std::net::Shutdown::Both)
            });
        }
    });
    address
}

/// A volume on targets behind such connections, and some data on it. All targets are in use: a busy machine may have opened it
/// without one, and the attempt to take that one back must not be under way when the test begins.
fn kept_behind(
    mutes: &[Arc<Mute>; 3],
    limit: Duration,
    outage_limit: Duration,
) -> (Arc<Volume>, Vec<u8>) {
    let (addresses, _) = start(&Arc::<Switch>::default());
    let to = addresses.into_iter().zip(mutes);
    let addresses: Vec<String> = to
        .map(|(to, mute)| forward(to.address, Arc::clone(mute)))
        .collect();
    let volume = kept(&addresses, limit, outage_limit);
    let bytes = [7; 2 * BLOCK].to_vec();
    volume.write(0, &bytes).unwrap();
    volume.flush().unwrap();
    wait_complete(&volume);
    (volume, bytes)
}

/// A target that is back gives no answer behind hello, behind its mark, or while it tells what it holds. Another one that is
/// back takes its place meanwhile, and requests go on.
#[test]
fn a_target_that_does_not_answer_delays_no_other() {
    for answers in 1..4 {
        let mutes: [Arc<Mute>; 3] = Default::default();
        let (volume, bytes) = kept_behind(&mutes, Duration::from_secs(1), LONG / 2);
        mutes[0].answers.store(answers, Ordering::SeqCst);
        mutes[0].connections.store(usize::MAX, Ordering::SeqCst);
        for role in [Role::FIRST, Role::PARITY] {
            volume.detach(role, "the test says so");
        }
        let written = volume.write(0, &bytes);
        written.unwrap_or_else(|error| panic!("{answers} answers: {error}"));
        mutes[0].connections.store(0, Ordering::SeqCst);
        wait_complete(&volume);
        volume.flush().unwrap();
        assert_eq!(volume.scrub().unwrap().bad_halves, 0);
    }
}

/// A target that is back takes its place by another connection if the first ones give no answer, long before requests fail.
#[test]
fn a_return_without_an_answer_is_tried_again() {
    for answers in 1..4 {
        let mutes: [Arc<Mute>; 3] = Default::default();
        let (volume, bytes) = kept_behind(&mutes, Duration::from_millis(250), 10 * LONG);
        mutes[0].answers.store(answers, Ordering::SeqCst);
        mutes[0].connections.store(2, Ordering::SeqCst);
        for role in [Role::FIRST, Role::PARITY] {
            volume.detach(role, "the test says so");
        }
        volume.write(0, &bytes).unwrap();
        wait_complete(&volume);
        assert_eq!(mutes[0].connections.load(Ordering::SeqCst), 0);
        assert_eq!(in_time(|| volume.scrub()).bad_halves, 0);
    }
}
