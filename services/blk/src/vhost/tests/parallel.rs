//! Several requests of one queue, and targets without space.

use super::*;
use crate::error::Result;
use crate::vhost::REQUESTS_MAX;
use crate::volume::{Extent, VolumeStatus};
use std::sync::{Condvar, Mutex};

/// Bytes that the driver gives each request: header, status, and a sector.
const ROOM: u64 = 1024;

/// What a disk has seen.
#[derive(Default)]
struct Seen {
    /// Offsets whose reads and writes stop.
    closed: Vec<u64>,
    /// Reads and writes that stop.
    waiting: usize,
    /// Most of them at once.
    most: usize,
    /// What was carried out.
    done: Vec<&'static str>,
}

/// A disk with gates.
struct Gated {
    volume: Arc<Volume>,
    seen: Mutex<Seen>,
    changed: Condvar,
}

impl Gated {
    fn new(closed: &[u64]) -> (Arc<Self>, Site) {
        let volume = volume();
        let disk = Arc::new(Self {
            volume: Arc::clone(&volume),
            seen: Mutex::new(Seen {
                closed: closed.to_vec(),
                ..Seen::default()
            }),
            changed: Condvar::new(),
        });
        let site = Site::of(volume, Arc::clone(&disk) as Arc<dyn Disk>, false);
        (disk, site)
    }

    fn pass(&self, offset: u64) {
        let mut seen = self.seen.lock().unwrap();
        seen.waiting += 1;
        seen.most = seen.most.max(seen.waiting);
        self.changed.notify_all();
        let stops = |seen: &mut Seen| seen.closed.contains(&offset);
        let (next, waited) = self.changed.wait_timeout_while(seen, LIMIT, stops).unwrap();
        assert!(!waited.timed_out(), "a gate stays closed");
        seen = next;
        seen.waiting -= 1;
    }

    fn open(&self, offset: u64) {
        let mut seen = self.seen.lock().unwrap();
        seen.closed.retain(|closed| *closed != offset);
        self.changed.notify_all();
    }

    fn log(&self, what: &'static str) {
        self.seen.lock().unwrap().done.push(what);
        self.changed.notify_all();
    }

    /// Waits until what was seen is as wanted.
    #[track_caller]
    fn wait_for(&self, wanted: impl Fn(&Seen) -> bool) {
        let seen = self.seen.lock().unwrap();
        let other = |seen: &mut Seen| !wanted(seen);
        let (seen, waited) = self.changed.wait_timeout_while(seen, LIMIT, other).unwrap();
        let (waiting, done) = (seen.waiting, &seen.done);
        assert!(
            !waited.timed_out(),
            "{waiting} requests stop, done: {done:?}"
        );
    }

    fn done(&self) -> Vec<&'static str> {
        self.seen.lock().unwrap().done.clone()
    }
}

impl Disk for Gated {
    fn id(&self) -> Id {
        Id([3; 16])
    }

    fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.pass(offset);
        let done = self.volume.read(offset, bytes);
        self.log("read");
        done
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.pass(offset);
        let done = self.volume.write(offset, bytes);
        self.log("write");
        done
    }

    fn write_zeroes(&self, offset: u64, length: u64, allocate: bool) -> Result<()> {
        self.volume.write_zeroes(offset, length, allocate)
    }

    fn trim(&self, offset: u64, length: u64) -> Result<()> {
        self.volume.trim(offset, length)
    }

    fn flush(&self) -> Result<()> {
        self.log("flush");
        self.volume.flush()
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.volume.extents(offset, length, limit)
    }

    fn status(&self) -> VolumeStatus {
        self.volume.status()
    }
}

impl Guest {
    /// Makes requests of one sector each, and does not wait. Request N has the descriptors from 3 N on.
    fn post(&mut self, requests: &[(u32, u64)]) {
        for (nth, (kind, sector)) in (0u16..).zip(requests) {
            let at = HEADER + u64::from(nth) * ROOM;
            let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
            self.put(at, &header);
            self.put(at + 16, &[0xee]);
            let head = nth * 3;
            let data = match kind {
                0 => WRITE | NEXT,
                _ => NEXT,
            };
            // A FLUSH has no data.
            let second = if *kind == 4 { head + 2 } else { head + 1 };
            for (place, address, length, flags, next) in [
                (head, at, 16u32, NEXT, second),
                (head + 1, at + 512, 512, data, head + 2),
                (head + 2, at + 16, 1, WRITE, 0),
            ] {
                let entry = [
                    &address.to_le_bytes()[..],
                    &length.to_le_bytes(),
                    &flags.to_le_bytes(),
                    &next.to_le_bytes(),
                ];
                self.put(u64::from(place) * 16, &entry.concat());
            }
            let entry = AVAIL + 4 + u64::from(self.made % ENTRIES) * 2;
            self.put(entry, &head.to_le_bytes());
            self.made = self.made.wrapping_add(1);
        }
        self.put(AVAIL + 2, &self.made.to_le_bytes());
        self.kick.write(1).unwrap();
    }

    /// Waits until all requests are used. Returns their numbers, in the order of their use, and their results.
    fn ended(&self) -> Vec<(u32, u8)> {
        let end = Instant::now() + LIMIT;
        while self.used() != self.made {
            assert!(Instant::now() < end, "a request is not answered");
            std::thread::yield_now();
        }
        let head = |nth: u16| -> u32 {
            let at = USED + 4 + u64::from(nth % ENTRIES) * 8;
            self.memory.read_obj(GuestAddress(at)).unwrap()
        };
        let numbers = (0..self.made).map(|nth| head(nth) / 3);
        let status = |number: u32| self.get(HEADER + u64::from(number) * ROOM + 16, 1)[0];
        numbers.map(|number| (number, status(number))).collect()
    }
}

#[test]
fn requests_of_a_queue_are_carried_out_at_once_and_end_in_their_order() {
    let gates: Vec<u64> = (0..4).map(|number| number * 4096).collect();
    let (disk, site) = Gated::new(&gates);
    let mut guest = site.guest(0);
    guest.post(&[(1, 0), (1, 8), (0, 16), (1, 24), (1, 32)]);
    // Four stop, and the last one was carried out.
    disk.wait_for(|seen| seen.waiting == 4 && seen.done.len() == 1);
    assert_eq!(guest.used(), 0, "a front end would repeat the wrong ones");
    for gate in [3, 1, 2] {
        disk.open(gate * 4096);
    }
    disk.wait_for(|seen| seen.done.len() == 4);
    assert_eq!(guest.used(), 0);
    disk.open(0);
    let all: Vec<_> = (0..5).map(|number| (number, 0)).collect();
    assert_eq!(guest.ended(), all);
    // The number of requests that were taken, for the front end's next start.
    assert_eq!(guest.front.get_vring_base(0).unwrap(), 5);
}

#[test]
fn a_flush_follows_the_requests_before_it_and_none_behind_it() {
    let (disk, site) = Gated::new(&[0]);
    let mut guest = site.guest(0);
    guest.post(&[(1, 0), (4, 0), (0, 8)]);
    // The read behind the FLUSH is done, the write before it stops.
    disk.wait_for(|seen| seen.done.len() == 1 && seen.waiting == 1);
    assert_eq!(disk.done(), ["read"]);
    disk.open(0);
    assert_eq!(guest.ended(), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(disk.done(), ["read", "write", "flush"]);
}

#[test]
fn a_queue_has_a_most_of_requests_at_once() {
    let (disk, site) = Gated::new(&[0]);
    let mut guest = site.guest(0);
    // Of one sector all, by one chain, as often as the ring has entries.
    guest.post(&[(0, 0)]);
    disk.wait_for(|seen| seen.waiting == 1);
    for _ in 1..ENTRIES {
        let entry = AVAIL + 4 + u64::from(guest.made % ENTRIES) * 2;
        guest.put(entry, &0u16.to_le_bytes());
        guest.made += 1;
    }
    guest.put(AVAIL + 2, &guest.made.to_le_bytes());
    guest.kick.write(1).unwrap();
    disk.wait_for(|seen| seen.waiting == REQUESTS_MAX);
    disk.open(0);
    assert_eq!(guest.ended(), vec![(0, 0); usize::from(ENTRIES)]);
    let seen = disk.seen.lock().unwrap();
    assert_eq!((seen.done.len(), seen.most), (ENTRIES.into(), REQUESTS_MAX));
}

/// A drain lets the requests under way end, and begins none. The used ring tells which ones.
#[test]
fn a_drain_ends_what_has_begun() {
    let (disk, site) = Gated::new(&[0, 4096]);
    let mut guest = site.guest(0);
    guest.post(&[(1, 0), (1, 8)]);
    disk.wait_for(|seen| seen.waiting == 2);
    site.server.drain();
    // It comes too late.
    guest.post(&[(1, 16)]);
    disk.open(4096);
    disk.wait_for(|seen| seen.done.len() == 1);
    assert_eq!(site.server.connections(), 1, "a request is under way");
    disk.open(0);
    site.settled(0);
    assert_eq!((guest.used(), disk.done().len()), (2, 2));
}

/// virtio has one error for all: the guest learns that the write failed. Space that returns is used.
#[test]
fn writes_to_full_targets_are_errors_until_there_is_space() {
    // Space for some blocks of the volume's 256.
    let volume = limited_volume(Some(64 << 10));
    let site = Site::of(Arc::clone(&volume), volume, false);
    let mut guest = site.guest(0);
    let mut noise = vec![0; 4096];
    let mut random = fastrand::Rng::with_seed(5);
    let mut write = |guest: &mut Guest, block: u64| {
        random.fill(&mut noise);
        guest.put(DATA, &noise);
        (
            guest.request(1, block * 8, &[(DATA, 4096, 0)]),
            noise.clone(),
        )
    };
    let mut held = Vec::new();
    loop {
        let block = held.len() as u64;
        let (answer, bytes) = write(&mut guest, block);
        if answer != (0, 1) {
            assert_eq!(answer, (1, 1), "an I/O error");
            break;
        }
        held.push(bytes);
        assert!(held.len() < 256, "the targets are never full");
    }
    assert!(held.len() > 8, "{}", held.len());
    let read = |guest: &mut Guest, block: u64| {
        let to = [(DATA + 8192, 4096, WRITE)];
        assert_eq!(guest.request(0, block * 8, &to), (0, 4097));
        guest.get(DATA + 8192, 4096)
    };
    for (block, bytes) in (0..).zip(&held) {
        assert!(read(&mut guest, block) == *bytes, "block {block}");
    }
    assert_eq!(read(&mut guest, held.len() as u64), vec![0; 4096]);
    // FLUSH is no write, and the queue goes on.
    assert_eq!(guest.request(4, 0, &[]), (0, 1));
    guest.range(0, 16, 0);
    assert_eq!(guest.request(11, 0, &[(DATA, 16, 0)]), (0, 1));
    assert_eq!(guest.request(4, 0, &[]), (0, 1));
    let (answer, bytes) = write(&mut guest, held.len() as u64);
    assert_eq!(answer, (0, 1), "two blocks were given back");
    assert!(read(&mut guest, held.len() as u64) == bytes);
    assert_eq!(site.volume.status().lost_blocks, 0);
}
