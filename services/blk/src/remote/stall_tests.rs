//! Tests of targets behind sockets whose disks stall.

use super::*;
use crate::block::Kind;
use crate::error::BlkError;
use crate::geometry::{Geometry, Id, Role};
use crate::record::Half;
use crate::store::{Mark, Medium, MemoryMedium, NewTarget, Store, Target};
use crate::volume::Volume;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// Whether disks work.
#[derive(Default)]
pub(crate) struct Switch {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Calls that end before others stall. None: none stalls.
    left: Option<u64>,
    waiting: usize,
}

impl Switch {
    pub(crate) fn set(&self, stalled: bool) {
        self.stall_after(stalled.then_some(0));
    }

    /// This number of calls ends, and those behind them stall.
    pub(crate) fn stall_after(&self, left: Option<u64>) {
        self.state.lock().unwrap().left = left;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        let is_stalled = |state: &mut State| state.left == Some(0);
        let mut state = self.changed.wait_while(state, is_stalled).unwrap();
        state.left = state.left.map(|left| left - 1);
        state.waiting -= 1;
    }

    /// Waits until this number of calls does not end.
    fn wait_stalled(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let limit = Duration::from_secs(30);
        let are_fewer = |state: &mut State| state.waiting < count;
        let waited = self.changed.wait_timeout_while(state, limit, are_fewer);
        assert!(!waited.unwrap().1.timed_out(), "no call stalls");
    }
}

/// Memory whose calls end only while its switches say so, as those of a busy disk: one for all calls, one for syncs.
struct Disk {
    bytes: MemoryMedium,
    switch: Arc<Switch>,
    syncs: Arc<Switch>,
}

impl Medium for Disk {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.switch.pass();
        self.bytes.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.switch.pass();
        self.bytes.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.switch.pass();
        self.syncs.pass();
        Ok(())
    }

    fn release(&self, _: u64, _: u64) {}
}

/// Serves three targets on such disks. Returns their addresses, and the switches of their syncs.
pub(crate) fn start(switch: &Arc<Switch>) -> ([Address; 3], [Arc<Switch>; 3]) {
    let syncs: [Arc<Switch>; 3] = Default::default();
    let addresses = Role::HALVES.map(|role| {
        let new = NewTarget {
            geometry: Geometry::new(u32::try_from(BLOCK).unwrap(), BLOCKS).unwrap(),
            role,
            volume: Id([4; 16]),
            complete: true,
        };
        let disk = Disk {
            bytes: MemoryMedium::default(),
            switch: Arc::clone(switch),
            syncs: Arc::clone(&syncs[role.index()]),
        };
        let store = Store::create("disk", Box::new(disk), new, None).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || Arc::new(TargetServer::new(store, Vec::new())).run(&listener));
        Address {
            address,
            secret: None,
            limit: Duration::from_millis(100),
            longest: Duration::from_secs(60),
            patience: Duration::from_secs(60),
            owner: [1; 16],
            take_over: false,
            rdma: None,
        }
    });
    (addresses, syncs)
}

/// Repeats what a busy machine may not do within the limit of an answer.
pub(crate) fn in_time<T, E: std::fmt::Display>(
    attempt: impl Fn() -> std::result::Result<T, E>,
) -> T {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
}

/// Bytes of eight blocks.
fn content(version: u8) -> Vec<u8> {
    let bytes = 0..u32::try_from(BLOCK * 8).unwrap();
    bytes
        .map(|at| (at / 5).to_le_bytes()[0] ^ version)
        .collect()
}

fn absent(volume: &Volume) -> usize {
    let targets = volume.status().targets;
    targets
        .iter()
        .filter(|target| target.name.is_empty())
        .count()
}

/// One target is given up, the two others are waited for. Nothing fails.
#[test]
fn a_stall_of_all_targets_fails_no_request() {
    let switch = Arc::new(Switch::default());
    let (addresses, _) = start(&switch);
    let connect =
        |to: &Address| -> Arc<dyn Target> { Arc::new(in_time(|| RemoteTarget::connect(to))) };
    let volume = Volume::open(addresses.iter().map(connect).collect()).unwrap();
    for round in 0..4u8 {
        let at = u64::from(round) * 8 * BLOCK as u64;
        volume.write(at, &content(round)).unwrap();
        switch.set(true);
        std::thread::scope(|scope| {
            let requests = [
                scope.spawn(|| volume.write(at, &content(round + 1))),
                scope.spawn(|| volume.write(at + 8 * BLOCK as u64, &content(9))),
                scope.spawn(|| volume.flush()),
            ];
            let end = Instant::now() + Duration::from_secs(30);
            while absent(&volume) == 0 {
                assert!(Instant::now() < end, "no target was given up");
                std::thread::park_timeout(Duration::from_millis(2));
            }
            switch.set(false);
            for request in requests {
                request.join().unwrap().unwrap();
            }
        });
        assert_eq!(absent(&volume), 1, "round {round}");
        let mut back = vec![0; BLOCK * 8];
        volume.read(at, &mut back).unwrap();
        assert!(back == content(round + 1), "round {round}");
        let role = Role::HALVES
            .into_iter()
            .find(|role| volume.status().targets[role.index()].name.is_empty());
        let role = role.unwrap();
        in_time(|| {
            volume.attach(connect(&addresses[role.index()]))?;
            volume.rebuild(role)
        });
    }
    assert_eq!(volume.scrub().unwrap().bad_halves, 0);
}

/// A target whose sync takes long answers the other calls of its connection meanwhile.
#[test]
fn a_sync_holds_up_no_other_call() {
    let (addresses, syncs) = start(&Arc::default());
    let connect = |to: &Address| -> Arc<dyn Target> {
        let limit = Duration::from_secs(10);
        let patient = Address {
            limit,
            longest: limit,
            ..to.clone()
        };
        Arc::new(RemoteTarget::connect(&patient).unwrap())
    };
    let volume = Volume::open(addresses.iter().map(connect).collect()).unwrap();
    volume.write(0, &content(1)).unwrap();
    for switch in &syncs {
        switch.set(true);
    }
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| volume.flush());
        for switch in &syncs {
            switch.wait_stalled(1);
        }
        let behind = 8 * BLOCK as u64;
        for (at, version) in [(0, 2), (behind, 3)] {
            volume.write(at, &content(version)).unwrap();
            let mut back = vec![0; BLOCK * 8];
            volume.read(at, &mut back).unwrap();
            assert!(back == content(version));
        }
        assert!(!flush.is_finished());
        for switch in &syncs {
            switch.set(false);
        }
        flush.join().unwrap().unwrap();
    });
    assert_eq!(absent(&volume), 0);
    volume.flush().unwrap();
    assert_eq!(volume.scrub().unwrap().bad_halves, 0);
}

/// The connection of an owner waits for the disk, and may be lost. A new one is served at once, and ends it.
#[test]
fn a_new_connection_of_the_owner_does_not_wait_for_the_old_one() {
    let ([address, ..], [syncs, ..]) = start(&Arc::default());
    let connect = || {
        let patient = Address {
            limit: Duration::from_secs(10),
            longest: Duration::from_secs(10),
            patience: Duration::from_secs(10),
            ..address.clone()
        };
        RemoteTarget::connect(&patient).unwrap()
    };
    let zero = |generation| Half {
        generation,
        kind: Kind::Zero,
        stored: 0,
        data: Vec::new().into(),
    };
    let early = connect();
    early.mark(1, Mark::Owned).unwrap();
    early.prepare(3, &zero(1), 0).unwrap();
    syncs.set(true);
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| early.flush());
        syncs.wait_stalled(1);
        let again = connect();
        again.mark(1, Mark::Owned).unwrap();
        again.commit(3, 1).unwrap();
        assert_eq!(again.fetch(3, 1).unwrap(), zero(1));
        let ended = flush.join().unwrap().unwrap_err();
        assert!(matches!(ended, BlkError::Unreachable { .. }), "{ended}");
        assert!(early.commit(3, 0).is_err());
        syncs.set(false);
        again.flush().unwrap();
    });
}
