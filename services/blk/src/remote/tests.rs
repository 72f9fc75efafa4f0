//! Tests of targets behind sockets.

use super::*;
use crate::block::encode;
use crate::error::BlkError;
use crate::geometry::{Geometry, Id, Role};
use crate::record::Half;
use crate::store::{Mark, MemoryMedium, NewTarget, Step, Store, Target};
use crate::volume::Volume;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Serves a target in memory. Returns its address.
fn start(role: Role) -> String {
    start_server(role).0
}

fn start_server(role: Role) -> (String, Arc<TargetServer>) {
    let new = NewTarget {
        geometry: Geometry::new(4096, 64).unwrap(),
        role,
        volume: Id([4; 16]),
        complete: true,
    };
    let store = Store::create("memory", Box::new(MemoryMedium::default()), new, None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Arc::new(TargetServer::new(store, Vec::new()));
    let serving = Arc::clone(&server);
    std::thread::spawn(move || serving.run(&listener));
    (address, server)
}

fn address(address: &str, owner: u8) -> Address {
    Address {
        address: address.to_owned(),
        secret: None,
        limit: Duration::from_secs(10),
        longest: Duration::from_secs(60),
        patience: Duration::from_secs(60),
        owner: [owner; 16],
        take_over: false,
        rdma: None,
    }
}

fn connect(to: &str, owner: u8) -> RemoteTarget {
    RemoteTarget::connect(&address(to, owner)).unwrap()
}

fn connect_to_take_over(to: &str, owner: u8) -> RemoteTarget {
    let to = Address {
        take_over: true,
        ..address(to, owner)
    };
    RemoteTarget::connect(&to).unwrap()
}

fn opened(
    addresses: &[String],
    connect: impl Fn(&str) -> RemoteTarget,
) -> Result<Volume, BlkError> {
    let targets = addresses.iter().map(|to| Arc::new(connect(to)) as _);
    Volume::open(targets.collect())
}

fn half(generation: u64) -> Half {
    let encoded = encode(crate::Layout::HALVES, &[7; 4096]);
    let data = encoded.parts[0].clone();
    Half {
        generation,
        kind: encoded.kind,
        stored: encoded.stored,
        data,
    }
}

#[test]
fn a_volume_on_three_processes_keeps_its_data() {
    let addresses = Role::HALVES.map(start);
    let volume = opened(&addresses, |to| connect(to, 1)).unwrap();
    let bytes: Vec<u8> = (0..100_000u32).map(|n| (n / 3).to_le_bytes()[0]).collect();
    volume.write(5000, &bytes).unwrap();
    volume.flush().unwrap();
    let mut back = vec![0; bytes.len()];
    volume.read(5000, &mut back).unwrap();
    assert!(back == bytes);
    assert!(volume.status().targets.iter().all(|target| target.used > 0));
    // Another process takes the volume over. The first one is told at its next write, and writes nothing.
    let later = opened(&addresses, |to| connect_to_take_over(to, 2)).unwrap();
    let refused = volume.write(0, &[9; 4096]).unwrap_err();
    assert!(matches!(refused, BlkError::Superseded { .. }), "{refused}");
    later.read(5000, &mut back).unwrap();
    assert!(back == bytes);
    assert_eq!(later.scrub().unwrap().bad_halves, 0);
}

/// Layouts other than 2+1 also tell their targets which of them are trusted.
#[test]
fn volumes_of_other_layouts_keep_their_data() {
    for layout in ["mirror-2", "mirror-3", "3+2"] {
        let layout: crate::Layout = layout.parse().unwrap();
        let addresses: Vec<String> = layout.roles().map(start).collect();
        let volume = opened(&addresses, |to| connect(to, 1)).unwrap();
        volume.write(5000, &[7; 10_000]).unwrap();
        volume.flush().unwrap();
        drop(volume);
        let volume = opened(&addresses, |to| connect(to, 1)).unwrap();
        let mut back = [0; 10_000];
        volume.read(5000, &mut back).unwrap();
        assert_eq!(back, [7; 10_000], "{layout}");
    }
}

#[test]
fn a_late_call_of_an_earlier_connection_has_no_effect() {
    let to = start(Role::FIRST);
    let early = connect(&to, 1);
    assert!(early.flush().is_err(), "it is not the owner");
    early.mark(1, Mark::Complete).unwrap();
    early.prepare(3, &half(1), 0).unwrap();
    // The same process connects again. Nothing that its first connection sends from here on arrives.
    let again = connect(&to, 1);
    again.mark(1, Mark::Complete).unwrap();
    let late = early.commit(3, 1).unwrap_err();
    assert!(matches!(late, BlkError::Unreachable { .. }), "{late}");
    let held = again.held().unwrap();
    assert!(
        held.iter()
            .all(|held| !held.settled || held.generation == 0)
    );
    again.commit(3, 1).unwrap();
    assert_eq!(again.fetch(3, 1).unwrap(), half(1));
    // Another process with the same epoch, or an older one, is refused.
    let other = connect_to_take_over(&to, 2);
    for epoch in [0, 1] {
        let refused = other.mark(epoch, Mark::Complete).unwrap_err();
        assert!(
            refused.to_string().contains("another process has opened"),
            "{refused}"
        );
    }
    other.mark(2, Mark::Complete).unwrap();
    let fenced = again.flush().unwrap_err();
    assert!(matches!(fenced, BlkError::Superseded { .. }), "{fenced}");
    let fenced = again.fetch(3, 1).unwrap_err();
    assert!(matches!(fenced, BlkError::Superseded { .. }), "{fenced}");
    // Each step of a call is told.
    let (block, generation) = (3, 1);
    let steps = [
        Step::Fetch { block, generation },
        Step::Commit { block, generation },
    ];
    for begun in again.begin_all(&steps) {
        let fenced = again.finish(begun).unwrap_err();
        assert!(matches!(fenced, BlkError::Superseded { .. }), "{fenced}");
    }
}

/// A volume that another process has taken over: each request fails, also those that need no data of a target.
#[test]
fn a_superseded_volume_serves_no_zeros() {
    type Request = fn(&Volume) -> Result<(), BlkError>;
    let requests: [(&str, Request); 7] = [
        ("a read of data", |v| v.read(0, &mut [0; 4096])),
        ("a read of written zeros", |v| v.read(4096, &mut [1; 4096])),
        ("a read of what was never written", |v| {
            v.read(8192, &mut [1; 512])
        }),
        ("extents", |v| v.extents(8192, 4096, 4).map(drop)),
        ("a write of a part", |v| v.write(8192, &[1; 512])),
        ("a trim", |v| v.trim(0, 4096)),
        ("a flush", Volume::flush),
    ];
    for (name, request) in requests {
        let addresses = Role::HALVES.map(start);
        let volume = opened(&addresses, |to| connect(to, 1)).unwrap();
        volume.write(0, &[7; 4096]).unwrap();
        volume.write(4096, &[0; 4096]).unwrap();
        request(&volume).unwrap();
        let later = opened(&addresses[1..], |to| connect_to_take_over(to, 2)).unwrap();
        later.write(8192, &[9; 4096]).unwrap();
        let error = request(&volume).unwrap_err();
        assert!(
            matches!(error, BlkError::Superseded { .. }),
            "{name}: {error}"
        );
        // The first one decides: no later request has any other end.
        for (name, request) in requests {
            let error = request(&volume).unwrap_err();
            assert!(
                matches!(error, BlkError::Superseded { .. }),
                "{name}: {error}"
            );
        }
        let error = volume.wait_superseded();
        assert!(matches!(error, BlkError::Superseded { .. }), "{error}");
    }
}

/// A target that lacks many blocks gets them in groups: 64 blocks by three calls, which each block took alone.
#[test]
fn a_rebuild_reads_and_writes_groups() {
    const BLOCKS: u64 = 64;
    let servers = Role::HALVES.map(start_server);
    let addresses = servers.each_ref().map(|(address, _)| address.clone());
    let volume = opened(&addresses, |to| connect(to, 1)).unwrap();
    volume.detach(Role::FIRST, "it is away");
    let mut bytes = vec![0; usize::try_from(BLOCKS * 4096).unwrap()];
    fastrand::Rng::with_seed(7).fill(&mut bytes);
    volume.write(0, &bytes).unwrap();
    volume.flush().unwrap();
    volume
        .attach(Arc::new(connect(&addresses[0], 1)) as Arc<dyn Target>)
        .unwrap();
    let calls = || servers.each_ref().map(|(_, server)| server.load().calls);
    let before = calls();
    assert_eq!(volume.rebuild(Role::FIRST).unwrap(), BLOCKS);
    let after = calls();
    for (role, (after, before)) in Role::HALVES.into_iter().zip(after.into_iter().zip(before)) {
        // One block, the others, each by two steps, a flush, and what tells that it is complete.
        assert!(after - before <= 8, "{role}: {}", after - before);
    }
    // It has all of them.
    volume.detach(Role::SECOND, "it is away");
    let mut back = vec![0; bytes.len()];
    volume.read(0, &mut back).unwrap();
    assert!(back == bytes);
}

/// Zeros are shown only as long as two targets confirm their owner: two that are lost may have another one.
#[test]
fn zeros_need_two_targets_as_data_does() {
    let addresses = Role::HALVES.map(start);
    let volume = opened(&addresses, |to| connect(to, 1)).unwrap();
    volume.read(0, &mut [1; 4096]).unwrap();
    volume.detach(Role::FIRST, "it is lost");
    volume.read(0, &mut [1; 4096]).unwrap();
    volume.detach(Role::SECOND, "it is lost");
    let error = volume.read(0, &mut [1; 4096]).unwrap_err();
    assert!(matches!(error, BlkError::TooFewTargets { .. }), "{error}");
    assert!(volume.extents(0, 4096, 4).is_err());
}

#[test]
fn an_owner_that_is_connected_keeps_its_targets() {
    let addresses = Role::HALVES.map(start);
    let volume = opened(&addresses, |to| connect(to, 1)).unwrap();
    volume.write(0, &[7; 4096]).unwrap();
    // It has lost one of its targets for a moment: an opener that is refused takes that one neither.
    volume.detach(Role::FIRST, "a cable");
    let refused = opened(&addresses, |to| connect(to, 2)).unwrap_err();
    assert!(matches!(refused, BlkError::Owned { .. }), "{refused}");
    assert!(refused.to_string().contains("--take-over"), "{refused}");
    let other = connect(&addresses[1], 2);
    let refused = other.mark(9, Mark::Complete).unwrap_err();
    assert!(matches!(refused, BlkError::Owned { .. }), "{refused}");
    volume
        .attach(Arc::new(connect(&addresses[0], 1)) as Arc<dyn Target>)
        .unwrap();
    volume.rebuild(Role::FIRST).unwrap();
    // To look at a volume changes nothing.
    let targets = || addresses.iter().map(|to| Arc::new(connect(to, 3)) as _);
    let status = Volume::inspect(targets().collect()).unwrap();
    assert_eq!((status.lost_blocks, status.targets.len()), (0, 3));
    let mut back = [0; 4096];
    volume.read(0, &mut back).unwrap();
    assert_eq!(back, [7; 4096]);
    // The end of the owner frees the targets at once.
    let epoch = connect(&addresses[0], 3).identity().epoch;
    drop(volume);
    drop(opened(&addresses, |to| connect(to, 2)).unwrap());
    assert_eq!(connect(&addresses[0], 3).identity().epoch, epoch + 1);
}

#[test]
fn an_epoch_that_no_opening_can_have_is_refused() {
    let to = start(Role::FIRST);
    let target = connect(&to, 1);
    // A new target joins a volume of any age.
    target.mark(5_000_000, Mark::Complete).unwrap();
    for epoch in [5_000_000 + (1 << 20) + 1, 1 << 24, u64::MAX] {
        let refused = target.mark(epoch, Mark::Complete).unwrap_err();
        assert!(
            refused.to_string().contains("cannot follow epoch 5000000"),
            "{refused}"
        );
    }
    assert_eq!(connect(&to, 1).identity().epoch, 5_000_000);
    target.mark(5_000_000 + (1 << 20), Mark::Complete).unwrap();
}

/// Peers that connect and say nothing, more than the target has places of either kind.
#[test]
fn silent_peers_do_not_lock_the_owner_out() {
    let (to, server) = start_server(Role::FIRST);
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(&to).unwrap()).collect();
    let target = connect(&to, 1);
    target.mark(1, Mark::Complete).unwrap();
    target.prepare(3, &half(1), 0).unwrap();
    assert_eq!(server.load().connections, 1);
    drop(silent);
    // Those that have said hello have a limit of their own, and the next one is told so.
    let admitted: Vec<_> = (1..16).map(|owner| connect(&to, owner)).collect();
    let refused = RemoteTarget::connect(&address(&to, 99)).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("all 16 places for connections"),
        "{refused}"
    );
    drop(admitted);
    target.commit(3, 1).unwrap();
}

#[test]
fn a_peer_is_told_why_it_is_refused() {
    use std::io::{Read as _, Write as _};
    let to = start(Role::FIRST);
    let mut stream = TcpStream::connect(&to).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let call = b"XBLK\x0a\0\0\0\x02\0\0\0\0\x63";
    stream.write_all(call).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.contains("it breaks the protocol: a call that there is not"),
        "{answer}"
    );
}

/// All results of calls are taken at once, in the order of their steps, also an error between others.
#[test]
fn all_steps_have_their_results() {
    let (to, server) = start_server(Role::FIRST);
    let target = connect(&to, 1);
    target.mark(1, Mark::Complete).unwrap();
    let halves = [5, 6].map(half);
    let prepare = |at: usize| Step::Prepare {
        block: at as u64,
        half: &halves[at],
        keep: 0,
    };
    let absent = Step::Commit {
        block: 9,
        generation: 9,
    };
    let ended = target.finish_all(target.begin_all(&[prepare(0), absent, prepare(1)]));
    assert!(matches!(ended[0], Ok(None)) && matches!(ended[2], Ok(None)));
    assert!(
        matches!(ended[1], Err(BlkError::Absent { block: 9, .. })),
        "{ended:?}"
    );
    assert_eq!(target.usage(), server.usage());
    let fetch = |at: usize| Step::Fetch {
        block: at as u64,
        generation: halves[at].generation,
    };
    // Two calls under way, of two steps and of one.
    let mut begun = target.begin_all(&[fetch(1), fetch(0)]);
    begun.push(target.begin(fetch(1)));
    let ended = target.finish_all(begun);
    let ended: Vec<Half> = ended
        .into_iter()
        .map(|half| half.unwrap().unwrap())
        .collect();
    assert_eq!(ended, [&halves[1], &halves[0], &halves[1]].map(Half::clone));
    assert!(target.finish_all(Vec::new()).is_empty());
}

/// A target that answers fewer steps than were sent has no connection any more, and nobody waits for the others.
#[test]
fn a_target_that_answers_too_few_steps_is_given_up() {
    let new = NewTarget {
        geometry: Geometry::new(4096, 64).unwrap(),
        role: Role::FIRST,
        volume: Id([4; 16]),
        complete: true,
    };
    let store = Store::create("memory", Box::new(MemoryMedium::default()), new, None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let limit = Duration::from_secs(30);
    let serves = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let budget = xgvmi_daemon::Budget::new(1 << 20);
        let mut link = xgvmi_daemon::Link::called(stream, wire::PROTOCOL, &[], &budget).unwrap();
        link.wait(limit).unwrap().unwrap();
        let usage = store.usage();
        let hello = wire::Answer::Hello(Box::new(store.identity()), usage, 0, false);
        link.send(&hello.to_bytes(0)).unwrap();
        link.wait(limit).unwrap().unwrap();
        let one = wire::Answer::Steps(vec![wire::Answer::Done(usage)]);
        link.send(&one.to_bytes(1)).unwrap();
        assert!(link.wait(limit).is_err(), "it is not closed");
    });
    let target = connect(&to, 1);
    let commit = |block| Step::Commit {
        block,
        generation: 1,
    };
    let ended = target.finish_all(target.begin_all(&[commit(0), commit(1), commit(2)]));
    assert!(matches!(ended[0], Ok(None)), "{ended:?}");
    for ended in &ended[1..] {
        let error = ended.as_ref().unwrap_err();
        assert!(error.to_string().contains("fewer steps"), "{error}");
    }
    assert!(target.commit(3, 1).is_err());
    serves.join().unwrap();
}

/// The steps of a group go to a target by one message each: to prepare, to settle, and to fetch.
#[test]
fn a_group_takes_few_messages() {
    let servers = Role::HALVES.map(start_server);
    let addresses = servers.each_ref().map(|(address, _)| address.clone());
    let volume = opened(&addresses, |to| connect(to, 1)).unwrap();
    let calls = || servers.each_ref().map(|(_, server)| server.load().calls);
    let bytes: Vec<u8> = (0..256 << 10_u32)
        .map(|at: u32| at.wrapping_mul(0x9e37_79b9).to_be_bytes()[0])
        .collect();
    let before = calls();
    volume.write(0, &bytes).unwrap();
    let written = calls();
    let mut read = vec![0; bytes.len()];
    volume.read(0, &mut read).unwrap();
    assert!(read == bytes);
    let fetched = calls();
    for role in Role::HALVES {
        let at = role.index();
        let data = u64::from(role != Role::PARITY);
        assert_eq!(written[at] - before[at], 2, "{role}");
        assert_eq!(fetched[at] - written[at], data, "{role}");
    }
}

/// A target elsewhere whose first group waits until the second one is there.
struct Meeting {
    target: RemoteTarget,
    groups: Arc<(std::sync::Mutex<usize>, std::sync::Condvar)>,
}

impl Meeting {
    fn meet(&self) {
        let (count, changed) = &*self.groups;
        let mut now = count.lock().unwrap();
        *now += 1;
        changed.notify_all();
        let limit = Duration::from_secs(60);
        let waited = changed.wait_timeout_while(now, limit, |now| *now < 2);
        assert!(!waited.unwrap().1.timed_out(), "one group at a time");
    }
}

impl Target for Meeting {
    fn name(&self) -> &str {
        self.target.name()
    }

    fn identity(&self) -> crate::store::Identity {
        self.target.identity()
    }

    fn part(&self, blocks: std::ops::Range<u64>) -> Result<crate::store::Part, BlkError> {
        self.target.part(blocks)
    }

    fn changed(&self, from: u64) -> Result<crate::store::Changed, BlkError> {
        self.target.changed(from)
    }

    fn grow(&self, blocks: u64) -> Result<(), BlkError> {
        self.target.grow(blocks)
    }

    fn prepare(&self, block: u64, half: &Half, keep: u64) -> Result<(), BlkError> {
        self.target.prepare(block, half, keep)
    }

    fn commit(&self, block: u64, generation: u64) -> Result<(), BlkError> {
        self.target.commit(block, generation)
    }

    fn fetch(&self, block: u64, generation: u64) -> Result<Half, BlkError> {
        self.target.fetch(block, generation)
    }

    fn begin_all(&self, steps: &[crate::store::Step<'_>]) -> Vec<crate::store::Begun> {
        self.meet();
        self.target.begin_all(steps)
    }

    fn finish(&self, begun: crate::store::Begun) -> Result<Option<Half>, BlkError> {
        self.target.finish(begun)
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn flush(&self) -> Result<(), BlkError> {
        self.target.flush()
    }

    fn mark(&self, epoch: u64, mark: Mark) -> Result<(), BlkError> {
        self.target.mark(epoch, mark)
    }

    fn usage(&self) -> crate::store::Usage {
        self.target.usage()
    }
}

/// A request of two groups has both on their way to a target at once, and their bytes come back in their places.
#[test]
fn several_groups_of_a_request_are_under_way() {
    let addresses = Role::HALVES.map(|role| {
        let new = NewTarget {
            geometry: Geometry::new(4096, 128).unwrap(),
            role,
            volume: Id([4; 16]),
            complete: true,
        };
        // An index with room, as those of files: blocks have enough locks.
        let shape = crate::store::Shape::that_grows(new.geometry);
        let medium = Box::new(MemoryMedium::default());
        let store = Store::create_with("memory", medium, new, shape, None);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap().to_string();
        let server = Arc::new(TargetServer::new(store.unwrap(), Vec::new()));
        std::thread::spawn(move || server.run(&listener));
        to
    });
    let groups: Arc<(std::sync::Mutex<usize>, std::sync::Condvar)> = Arc::default();
    let targets = addresses.iter().map(|to| -> Arc<dyn Target> {
        Arc::new(Meeting {
            target: connect(to, 1),
            groups: Arc::clone(&groups),
        })
    });
    let volume = Volume::open(targets.collect()).unwrap();
    let bytes: Vec<u8> = (0..512 << 10_u32)
        .map(|at: u32| at.wrapping_mul(0x9e37_79b9).to_be_bytes()[0])
        .collect();
    *groups.0.lock().unwrap() = 0;
    volume.write(0, &bytes).unwrap();
    *groups.0.lock().unwrap() = 0;
    let mut read = vec![0; bytes.len()];
    volume.read(0, &mut read).unwrap();
    assert!(read == bytes);
    assert_eq!(volume.scrub().unwrap().bad_halves, 0);
}

/// The peer wakes once for the answers to calls that it has sent together.
#[test]
fn calls_that_arrive_together_are_answered_together() {
    let limit = Duration::from_secs(60);
    let link = xgvmi_daemon::Link::connect(&start(Role::FIRST), limit, wire::PROTOCOL, None);
    let mut link = link.unwrap();
    let hello = wire::Call::Hello.to_bytes();
    link.send(&hello).unwrap();
    link.wait(limit).unwrap().unwrap();
    let count: u64 = 8;
    for _ in 0..count {
        link.queue_parts(&[&hello]).unwrap();
    }
    link.flush().unwrap();
    for number in 1..=count {
        assert_eq!(link.has_next(), number > 1, "{number}");
        let answer = link.wait(limit).unwrap().unwrap();
        assert_eq!(answer[..8], number.to_le_bytes());
    }
}

/// The generations come in parts, and the target keeps no copy for a peer.
#[test]
fn generations_come_in_parts() {
    let blocks = 1 << 20;
    let new = NewTarget {
        geometry: Geometry::new(64, blocks).unwrap(),
        role: Role::FIRST,
        volume: Id([4; 16]),
        complete: true,
    };
    let store = Store::create("memory", Box::new(MemoryMedium::default()), new, None).unwrap();
    let zero = |generation| Half {
        generation,
        kind: crate::block::Kind::Zero,
        stored: 0,
        data: Vec::new().into(),
    };
    // Three generations of each are more than one answer has.
    let count = crate::store::PART_MAX as u64 / 3;
    let written: Vec<u64> = (0..count).chain([1 << 15, blocks - 1]).collect();
    for block in &written {
        store.prepare(*block, &zero(1), 0).unwrap();
        store.prepare(*block, &zero(2), 1).unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let server = Arc::new(TargetServer::new(store, Vec::new()));
    let serving = Arc::clone(&server);
    std::thread::spawn(move || serving.run(&listener));
    let target = connect(&to, 1);
    let calls = server.load().calls;
    let held = target.held().unwrap();
    assert_eq!(server.load().calls - calls, 2);
    let found: Vec<_> = held
        .iter()
        .map(|held| (held.block, held.generation))
        .collect();
    // The state before the first write is one that a loss of power may leave.
    let expect = written.iter();
    let expect = expect.flat_map(|block| [0, 1, 2].map(|generation| (*block, generation)));
    let expect: Vec<(u64, u64)> = expect.collect();
    let sorted = {
        let mut found = found;
        found.sort_unstable();
        found
    };
    assert_eq!(sorted, expect);
}

#[test]
fn a_target_that_does_not_answer_is_given_up_after_its_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = Address {
        limit: Duration::from_millis(50),
        longest: Duration::from_secs(60),
        patience: Duration::from_secs(60),
        ..address(&listener.local_addr().unwrap().to_string(), 1)
    };
    let error = RemoteTarget::connect(&silent).unwrap_err();
    assert!(
        error.to_string().contains("no answer within 50 ms"),
        "{error}"
    );
    drop(listener);
    let error = RemoteTarget::connect(&silent).unwrap_err();
    assert!(matches!(error, BlkError::Unreachable { .. }), "{error}");
}

#[test]
fn a_stranger_is_disconnected_and_the_target_serves_on() {
    use std::io::{Read as _, Write as _};
    let to = start(Role::FIRST);
    for bytes in [
        &b"GET / HTTP/1.0\r\n\r\n"[..],
        b"XBLK\x09\0\0\0\xff\xff\xff\xff\0",
        b"XBLK\x05\0\0\0\x02\0\0\0\0\x63",
    ] {
        let mut stream = TcpStream::connect(&to).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        // A refusal, and nothing of the target.
        assert_eq!(answer[12], 4, "{answer:?}");
    }
    let target = connect(&to, 1);
    target.mark(1, Mark::Complete).unwrap();
    let wrong = Half {
        data: vec![1; 99].into(),
        ..half(1)
    };
    let error = target.prepare(0, &wrong, 0).unwrap_err();
    assert!(error.to_string().contains("wrong length"), "{error}");
    assert!(matches!(target.fetch(64, 1), Err(BlkError::Refused { .. })));
    target.prepare(0, &half(1), 0).unwrap();
    let held = target.held().unwrap();
    let held: Vec<_> = held.iter().map(|held| held.generation).collect();
    assert_eq!(held, [1, 0], "and the durable state before");
}
