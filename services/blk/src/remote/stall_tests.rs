//! Tests of targets behind sockets whose disks stall.

use super::*;
use crate::error::Result;
use crate::geometry::{Geometry, Id, Role};
use crate::store::{Medium, MemoryMedium, NewTarget, Store, Target};
use crate::volume::Volume;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// Whether disks work.
#[derive(Default)]
struct Switch {
    stalled: Mutex<bool>,
    changed: Condvar,
}

impl Switch {
    fn set(&self, stalled: bool) {
        *self.stalled.lock().unwrap() = stalled;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let stalled = self.stalled.lock().unwrap();
        drop(self.changed.wait_while(stalled, |stalled| *stalled));
    }
}

/// Memory whose calls end only while its switch says so, as those of a busy disk.
struct Disk {
    bytes: MemoryMedium,
    switch: Arc<Switch>,
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
        Ok(())
    }

    fn release(&self, _: u64, _: u64) {}
}

/// Serves three targets on such disks. Returns their addresses.
fn start(switch: &Arc<Switch>) -> [Address; 3] {
    Role::ALL.map(|role| {
        let new = NewTarget {
            geometry: Geometry::new(u32::try_from(BLOCK).unwrap(), BLOCKS).unwrap(),
            role,
            volume: Id([4; 16]),
            complete: true,
        };
        let disk = Disk {
            bytes: MemoryMedium::default(),
            switch: Arc::clone(switch),
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
            owner: [1; 16],
            take_over: false,
        }
    })
}

/// Repeats what a busy machine may not do within the limit of an answer.
fn in_time<T>(attempt: impl Fn() -> Result<T>) -> T {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
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
    let addresses = start(&switch);
    let connect =
        |to: &Address| -> Arc<dyn Target> { Arc::new(in_time(|| RemoteTarget::connect(to))) };
    let volume = Volume::open(addresses.iter().map(connect).collect()).unwrap();
    let content = |version: u8| -> Vec<u8> {
        let bytes = 0..u32::try_from(BLOCK * 8).unwrap();
        bytes
            .map(|at| (at / 5).to_le_bytes()[0] ^ version)
            .collect()
    };
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
        let role = Role::ALL
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
