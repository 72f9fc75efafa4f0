//! Faults of targets in processes of their own, while a client writes. Each sector has a version in a shadow copy. After
//! each fault everything is read again: through the export, and with each target absent in turn. Parity is scrubbed.

mod common;

use common::{
    EIO, ENOSPC, Nbd, RECORDS_AT, Running, SECTOR, WRITE, bound, create, good, no_starts,
    old_or_new, sector, wait_until,
};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use xgvmi_blk::store::Mark;
use xgvmi_blk::{Role, Store, Target, Volume};

const BLOCK: usize = 1024;
const SECTORS: usize = 128;
/// Of bytes in a relay.
const DELAY: Duration = Duration::from_millis(5);
const TIMEOUT: &str = "--target-timeout";

/// Three targets, an export and a client.
struct World {
    dir: tempfile::TempDir,
    paths: [PathBuf; 3],
    targets: [Option<Running>; 3],
    addresses: [String; 3],
    export: Option<Running>,
    client: Nbd,
    shadow: Vec<u64>,
    version: u64,
    random: fastrand::Rng,
}

impl World {
    fn new(seed: u64) -> Self {
        Self::with(seed, |path| Running::target(path, "127.0.0.1:0", &[]))
    }

    fn with(seed: u64, start: impl Fn(&Path) -> Running) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = create(dir.path(), SECTORS * SECTOR, BLOCK);
        let targets = paths.each_ref().map(|path| start(path));
        let addresses = targets.each_ref().map(Running::address);
        Self::on(seed, (dir, paths), targets, addresses)
    }

    fn on(
        seed: u64,
        (dir, paths): (tempfile::TempDir, [PathBuf; 3]),
        targets: [Running; 3],
        addresses: [String; 3],
    ) -> Self {
        let (export, client) = export(dir.path(), &addresses);
        Self {
            dir,
            paths,
            targets: targets.map(Some),
            addresses,
            export: Some(export),
            client,
            shadow: vec![0; SECTORS],
            version: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Writes `count` random ranges; each must be acknowledged.
    fn write(&mut self, count: usize) {
        for round in 0..count {
            let (range, data) = self.next();
            self.client.write(range.start * SECTOR, &data).unwrap();
            self.shadow[range].fill(self.version);
            if round % 8 == 7 {
                self.client.flush().unwrap();
            }
        }
    }

    /// The next range to write, and its bytes.
    fn next(&mut self) -> (std::ops::Range<usize>, Vec<u8>) {
        self.version += 1;
        let count = self.random.usize(1..=9);
        let at = self.random.usize(..SECTORS - count);
        let data = (at..at + count).flat_map(|number| sector(number, self.version));
        (at..at + count, data.collect())
    }

    /// Everything through the export.
    #[track_caller]
    fn read_all(&mut self, when: &str) {
        let bytes = self.client.read(0, SECTORS * SECTOR).unwrap();
        compare(&bytes, &self.shadow, when);
    }

    fn status(&self, role: usize) -> serde_json::Value {
        let socket = self.dir.path().join("status");
        let text = good(&["status", "--json", "--socket", socket.to_str().unwrap()]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["volume"]["targets"][role].clone()
    }

    fn kill(&mut self, role: usize) {
        self.targets[role].take().unwrap().kill();
    }

    /// Starts a target again at its address.
    fn restart(&mut self, role: usize) {
        let listen = self.addresses[role].strip_prefix("tcp:").unwrap();
        self.targets[role] = Some(Running::target(&self.paths[role], listen, &[]));
    }

    /// Waits until a target is in use and lacks nothing.
    #[track_caller]
    fn wait_complete(&self, role: usize) {
        wait_until("the target is complete", || {
            let status = self.status(role);
            status["absent"] == "" && status["missing_blocks"] == 0
        });
    }

    /// Waits until the export has completed all targets: only then it gives one up that does not answer.
    #[track_caller]
    fn wait_completed(&self) {
        for role in 0..3 {
            wait_until("the target is completed", || {
                self.status(role)["complete"] == true
            });
        }
    }

    /// Exports the volume again, with other options.
    fn export_again(&mut self, more: &[&str]) {
        self.export.take().unwrap().kill();
        let (export, client) = export_with(self.dir.path(), &self.addresses, more);
        (self.export, self.client) = (Some(export), client);
    }

    #[track_caller]
    fn wait_absent(&self, role: usize) {
        wait_until("the target is absent", || self.status(role)["absent"] != "");
    }

    /// Ends all processes with SIGKILL, then reads everything with all targets and with each one absent.
    #[track_caller]
    fn finish(mut self) {
        self.export.take().unwrap().kill();
        for target in &mut self.targets {
            if let Some(target) = target.take() {
                target.kill();
            }
        }
        verify(&self.paths, None, &self.shadow);
        for absent in 0..3 {
            verify(&self.paths, Some(absent), &self.shadow);
        }
    }
}

/// Starts an export of targets. They count as absent after 1.5 s: a busy machine delays answers, too.
fn export(dir: &Path, targets: &[String]) -> (Running, Nbd) {
    export_with(dir, targets, &[])
}

fn export_with(dir: &Path, targets: &[String], more: &[&str]) -> (Running, Nbd) {
    let (socket, status) = (dir.join("nbd"), dir.join("status"));
    let timeout = match more.contains(&TIMEOUT) {
        true => &[][..],
        false => &[TIMEOUT, "1500ms"],
    };
    let usual = ["--status-socket", status.to_str().unwrap()];
    let export = Running::export(targets, &socket, &[timeout, &usual, more].concat());
    let client = Nbd::connect(&socket);
    (export, client)
}

#[track_caller]
fn compare(bytes: &[u8], shadow: &[u64], when: &str) {
    for (number, (bytes, version)) in bytes.chunks(SECTOR).zip(shadow).enumerate() {
        assert!(
            bytes == sector(number, *version),
            "{when}: sector {number} is not version {version}"
        );
    }
}

/// Reads the volume on the files, without one of them, and scrubs it.
#[track_caller]
fn verify(paths: &[PathBuf], absent: Option<usize>, shadow: &[u64]) {
    let _alone = no_starts();
    let present = paths
        .iter()
        .enumerate()
        .filter(|(role, _)| Some(*role) != absent);
    let open = |(_, path): (usize, &PathBuf)| {
        Arc::new(Store::open_file(path, None).unwrap()) as Arc<dyn Target>
    };
    let volume = Volume::open(present.map(open).collect()).unwrap();
    let mut bytes = vec![0; SECTORS * SECTOR];
    volume.read(0, &mut bytes).unwrap();
    compare(&bytes, shadow, &format!("without {absent:?}"));
    let report = volume.scrub().unwrap();
    assert_eq!(report.lost_blocks, 0, "without {absent:?}");
    if absent.is_none() {
        for role in Role::HALVES {
            volume.rebuild(role).unwrap();
        }
        assert_eq!(volume.scrub().unwrap().bad_halves, 0, "parity or checksums");
    }
}

/// A volume for each role, all at the same time: most of their time is waits for a target.
fn for_each_role(test: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for role in 0..3 {
            let test = &test;
            scope.spawn(move || test(role));
        }
    });
}

#[test]
fn each_target_is_killed_and_returns() {
    let mut world = World::new(1);
    for role in 0..3 {
        world.write(24);
        world.kill(role);
        world.write(24);
        world.read_all("a target is killed");
        world.restart(role);
        world.write(8);
        world.wait_complete(role);
        world.read_all("it has returned");
    }
    world.finish();
}

#[test]
fn the_port_of_a_target_that_is_down_is_nobody_elses() {
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), SECTORS * SECTOR, BLOCK);
    let target = Running::target(&paths[0], "127.0.0.1:0", &[]);
    let address = target.address();
    let listen = address.strip_prefix("tcp:").unwrap();
    target.kill();
    assert!(bound(listen.parse().unwrap(), false).is_err());
    assert!(TcpStream::connect(listen).is_err());
    assert_eq!(Running::target(&paths[0], listen, &[]).address(), address);
}

#[test]
fn each_target_stops_and_continues() {
    for_each_role(|role| {
        let mut world = World::new(60 + role as u64);
        world.write(16);
        world.targets[role].as_ref().unwrap().signal(libc::SIGSTOP);
        world.write(16);
        world.wait_absent(role);
        world.read_all("a target has stopped");
        world.targets[role].as_ref().unwrap().signal(libc::SIGCONT);
        world.wait_complete(role);
        world.write(8);
        world.read_all("it continues");
        world.finish();
    });
}

/// Passes bytes between an export and a target, 5 ms later, or when they are no longer held.
fn relay(target: &str, held: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", listener.local_addr().unwrap());
    let target = target.strip_prefix("tcp:").unwrap().to_owned();
    let held = Arc::clone(held);
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(&target).unwrap());
            far.set_nodelay(true).unwrap();
            near.set_nodelay(true).unwrap();
            for (mut from, mut to) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, near),
            ] {
                let held = Arc::clone(&held);
                std::thread::spawn(move || {
                    let mut bytes = [0; 1 << 16];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        // The delay is the fault under test. Nothing depends on its exact length.
                        std::thread::park_timeout(DELAY);
                        while held.load(Ordering::Relaxed) {
                            std::thread::park_timeout(DELAY);
                        }
                        if to.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    address
}

/// A slow target is used as long as it answers in time: here after a thousandth of it, so that a busy machine makes no
/// difference. One that does not answer in time counts as absent, and its late answers have no effect.
#[test]
fn each_target_is_slow_and_then_too_slow() {
    for_each_role(|role| {
        let dir = tempfile::tempdir().unwrap();
        let paths = create(dir.path(), SECTORS * SECTOR, BLOCK);
        let targets = paths
            .each_ref()
            .map(|path| Running::target(path, "127.0.0.1:0", &[]));
        let held = Arc::new(AtomicBool::new(false));
        let mut addresses = targets.each_ref().map(Running::address);
        addresses[role] = relay(&addresses[role], &held);
        let mut world = World::on(63 + role as u64, (dir, paths), targets, addresses);
        world.export_again(&[TIMEOUT, "8s"]);
        world.write(3);
        world.read_all("a target is slow");
        let status = world.status(role);
        assert_eq!(status["absent"], "", "a slow target is in use: {status}");
        assert_eq!(status["missing_blocks"], 0, "{status}");
        held.store(true, Ordering::Relaxed);
        world.write(3);
        world.wait_absent(role);
        world.read_all("a target is too slow");
        held.store(false, Ordering::Relaxed);
        world.wait_complete(role);
        world.read_all("it has returned");
        world.finish();
    });
}

#[test]
fn each_target_returns_with_old_data() {
    let mut world = World::new(4);
    for role in 0..3 {
        world.write(24);
        world.client.flush().unwrap();
        let old = world.dir.path().join("old");
        fs::copy(&world.paths[role], &old).unwrap();
        world.write(24);
        world.kill(role);
        world.write(4);
        fs::copy(&old, &world.paths[role]).unwrap();
        world.restart(role);
        world.read_all("the target returns with old data");
        world.wait_complete(role);
        world.read_all("it is complete");
    }
    // The same while nothing runs.
    let old = world.dir.path().join("old");
    fs::copy(&world.paths[1], &old).unwrap();
    world.write(24);
    world.kill(1);
    world.export.take().unwrap().kill();
    fs::copy(&old, &world.paths[1]).unwrap();
    world.restart(1);
    (world.export, world.client) = {
        let (export, client) = export(world.dir.path(), &world.addresses);
        (Some(export), client)
    };
    world.read_all("all are opened again");
    world.wait_complete(1);
    world.finish();
}

#[test]
fn each_target_has_a_full_disk() {
    for_each_role(|role| {
        let full = ["data_1", "data_2", "data_p"][role];
        let mut world = World::with(5 + role as u64, |path| {
            if path.ends_with(full) {
                Running::limited(path, RECORDS_AT + 8 * 640)
            } else {
                Running::target(path, "127.0.0.1:0", &[])
            }
        });
        world.write(48);
        world.read_all("a disk is full");
        let status = world.status(role);
        assert_eq!(status["absent"], "", "a full target stays in use: {status}");
        assert_ne!(status["missing_blocks"], 0, "it has space for everything");
        // With more space it is completed.
        world.kill(role);
        world.write(1);
        world.restart(role);
        world.wait_complete(role);
        world.finish();
    });
}

#[test]
fn two_full_disks_refuse_writes_and_lose_nothing() {
    let mut world = World::with(9, |path| {
        if path.ends_with("data_1") {
            Running::target(path, "127.0.0.1:0", &[])
        } else {
            Running::limited(path, RECORDS_AT + 20 * 640)
        }
    });
    let mut refused = 0;
    for _ in 0..96 {
        let (range, data) = world.next();
        match world.client.write(range.start * SECTOR, &data) {
            Ok(()) => world.shadow[range].fill(world.version),
            Err(error) => {
                assert_eq!(error, ENOSPC);
                refused += 1;
                let bytes = world.client.read(0, SECTORS * SECTOR).unwrap();
                old_or_new(&bytes, BLOCK, &mut world.shadow, (range, world.version));
            }
        }
    }
    assert!(refused > 0, "the disks have space for everything");
    world.read_all("two disks are full");
    world.export.take().unwrap().kill();
    world.targets = [None, None, None];
    verify(&world.paths, None, &world.shadow);
}

/// Bits of records are flipped in each target's file in turn, while it serves.
#[test]
fn flipped_bits_are_found_and_repaired() {
    let mut world = World::new(10);
    world.write(64);
    for role in 0..3 {
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(&world.paths[role])
            .unwrap();
        let end = file.metadata().unwrap().len();
        let mut flipped = 0;
        for at in (RECORDS_AT + 70..end).step_by(331) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << (at % 8)], at).unwrap();
            flipped += 1;
        }
        assert!(flipped > 20, "{flipped} bits");
        world.read_all("bits are flipped");
        world.write(4);
        world.read_all("writes follow");
        // Nothing reads parity before a scrub, and the next role's bits may be in the same blocks.
        if role == 2 {
            world.export.take().unwrap().kill();
            world.targets = [None, None, None];
            verify(&world.paths, None, &world.shadow);
            return verify_each(&world.paths, &world.shadow);
        }
    }
}

fn verify_each(paths: &[PathBuf], shadow: &[u64]) {
    for absent in 0..3 {
        verify(paths, Some(absent), shadow);
    }
}

/// With two targets lost there are errors for all that needs them, and never other data. When they return, everything
/// that was acknowledged is there.
#[test]
fn two_lost_targets_are_errors_until_one_returns() {
    for_each_role(|kept| {
        let mut world = World::new(11 + kept as u64);
        // Requests do not wait for the return.
        world.export_again(&["--outage-limit", "0s"]);
        world.write(64);
        let lost: Vec<usize> = (0..3).filter(|role| *role != kept).collect();
        for role in &lost {
            world.kill(*role);
        }
        let mut errors = 0;
        for block in 0..SECTORS * SECTOR / BLOCK {
            let first = block * (BLOCK / SECTOR);
            match world.client.read(block * BLOCK, BLOCK) {
                Ok(bytes) => {
                    let expect = (first..first + BLOCK / SECTOR).map(|at| (at, world.shadow[at]));
                    for ((at, version), bytes) in expect.zip(bytes.chunks(SECTOR)) {
                        assert!(bytes == sector(at, version), "block {block} has other data");
                    }
                    assert_eq!(world.shadow[first..first + 2], [0, 0], "read of one half");
                }
                Err(error) => {
                    assert_eq!(error, EIO);
                    errors += 1;
                }
            }
        }
        assert!(errors > SECTORS / 4, "{errors} errors");
        assert_eq!(world.client.write(0, &[1; BLOCK]), Err(EIO));
        assert_eq!(world.client.flush(), Err(EIO));
        for role in &lost {
            world.restart(*role);
        }
        for role in lost {
            world.wait_complete(role);
        }
        world.read_all("both have returned");
        world.write(16);
        world.finish();
    });
}

/// Two targets are killed with a request under way, and return. The request waits for them.
#[test]
fn requests_wait_for_two_lost_targets() {
    for_each_role(|kept| {
        let mut world = World::new(20 + kept as u64);
        world.write(24);
        let lost: Vec<usize> = (0..3).filter(|role| *role != kept).collect();
        for role in &lost {
            world.kill(*role);
        }
        let (range, data) = world.next();
        world
            .client
            .post((WRITE, 0), range.start * SECTOR, data.len(), &data);
        for role in &lost {
            world.wait_absent(*role);
            world.restart(*role);
        }
        world.client.reply().unwrap();
        world.shadow[range].fill(world.version);
        world.read_all("both have returned");
        for role in lost {
            world.wait_complete(role);
        }
        world.finish();
    });
}

/// All targets stop for longer than they may take for an answer. One is given up, and the requests wait for the others.
#[test]
fn requests_wait_while_all_targets_stop() {
    let mut world = World::new(30);
    for _ in 0..2 {
        world.write(24);
        world.wait_completed();
        for target in world.targets.iter().flatten() {
            target.signal(libc::SIGSTOP);
        }
        let (range, data) = world.next();
        world
            .client
            .post((WRITE, 0), range.start * SECTOR, data.len(), &data);
        let absent = |world: &World| {
            (0..3)
                .filter(|role| world.status(*role)["absent"] != "")
                .count()
        };
        wait_until("one target is given up", || absent(&world) == 1);
        for target in world.targets.iter().flatten() {
            target.signal(libc::SIGCONT);
        }
        world.client.reply().unwrap();
        world.shadow[range].fill(world.version);
        world.read_all("they go on");
        for role in 0..3 {
            world.wait_complete(role);
        }
    }
    world.finish();
}

/// All processes are killed with SIGKILL while two targets that have returned are not complete yet.
#[test]
fn everything_is_killed_while_two_targets_are_not_complete() {
    let mut world = World::new(14);
    world.write(64);
    world.export.take().unwrap().kill();
    world.targets = [None, None, None];
    for path in &world.paths[1..] {
        let _alone = no_starts();
        // As an export does that takes a target back.
        let store = Store::open_file(path, None).unwrap();
        store.mark(store.identity().epoch, Mark::Owned).unwrap();
    }
    verify(&world.paths, None, &world.shadow);
    verify_each(&world.paths, &world.shadow);
}

/// Writes with FUA and flushes are there after SIGKILL of everything, again and again.
#[test]
fn flush_and_fua_hold_over_the_kill_of_everything() {
    let mut world = World::new(15);
    for _ in 0..4 {
        world.write(6);
        world.client.flush().unwrap();
        let (range, data) = world.next();
        world
            .client
            .write_through(range.start * SECTOR, &data)
            .unwrap();
        world.shadow[range].fill(world.version);
        world.export.take().unwrap().kill();
        for role in 0..3 {
            world.kill(role);
        }
        verify(&world.paths, None, &world.shadow);
        for role in 0..3 {
            world.restart(role);
        }
        let (export, client) = export(world.dir.path(), &world.addresses);
        (world.export, world.client) = (Some(export), client);
        world.read_all("everything was killed");
    }
    world.finish();
}

/// Tries of the test below, in several volumes at once. Set `XGVMI_BLK_RESTARTS` for more.
fn tries() -> u64 {
    let text = std::env::var("XGVMI_BLK_RESTARTS");
    text.map_or(10, |text| text.parse().expect("a number of tries"))
}

impl World {
    /// Restarts all targets and ends the export, as the number of a try says. Then each command opens the volume.
    fn restart_all(&mut self, number: u64) {
        let mut random = fastrand::Rng::with_seed(number);
        let mut below = |limit: usize| random.usize(..limit);
        self.write(4);
        let mut posted = Vec::new();
        if below(2) == 0 {
            // Requests under way, each of which may have an effect or not.
            for _ in 0..4 {
                let (range, data) = self.next();
                let at = range.start * SECTOR;
                self.client.post((WRITE, 0), at, data.len(), &data);
                posted.push((range, self.version));
            }
        }
        let mut order = [0, 1, 2];
        order.rotate_left(below(3));
        if below(2) == 0 {
            order.swap(1, 2);
        }
        if below(2) == 0 {
            for role in order {
                self.kill(role);
                self.restart(role);
            }
        } else {
            order.iter().for_each(|role| self.kill(*role));
            order.iter().for_each(|role| self.restart(*role));
        }
        // Longer than the export needs to see some of them again, or not.
        for _ in 0..below(64) {
            self.status(order[0]);
        }
        let ending = self.export.take().unwrap();
        if below(2) == 0 {
            ending.signal(libc::SIGTERM);
            assert!(ending.ended().success(), "try {number}");
        } else {
            ending.kill();
        }
        let names = self.addresses.each_ref().map(String::as_str);
        let report = |command: &str| -> serde_json::Value {
            serde_json::from_str(&good(&[&[command], &names[..]].concat())).unwrap()
        };
        match below(3) {
            0 => assert_eq!(report("show")["lost_blocks"], 0, "try {number}"),
            1 => assert_eq!(report("scrub")["lost_blocks"], 0, "try {number}"),
            _ => {}
        }
        let (export, client) = export(self.dir.path(), &self.addresses);
        (self.export, self.client) = (Some(export), client);
        let bytes = self.client.read(0, SECTORS * SECTOR).unwrap();
        for (number, bytes) in bytes.chunks(SECTOR).enumerate() {
            let written = posted.iter().filter(|(range, _)| range.contains(&number));
            for (_, version) in written {
                if bytes == sector(number, *version) {
                    self.shadow[number] = *version;
                }
            }
        }
        compare(&bytes, &self.shadow, &format!("try {number}"));
    }
}

/// All targets are restarted in any order, one after another or together, with requests under way or without, and then the
/// export gets SIGTERM or SIGKILL. The volume opens each time.
#[test]
fn the_volume_opens_after_a_restart_of_all_targets() {
    let (tries, next) = (tries(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for volume in 0..tries.div_ceil(4).min(6) {
            let next = &next;
            scope.spawn(move || {
                let mut world = World::new(40 + volume);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= tries {
                        break;
                    }
                    world.restart_all(number);
                }
            });
        }
    });
    assert!(next.into_inner() >= tries);
}
