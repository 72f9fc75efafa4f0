//! A device behind its socket, with a driver that writes each descriptor itself, also wrong ones.

use super::VhostServer;
use super::request::{Parts, Status, Terms, carry_out};
use crate::disk::Disk;
use crate::error::Result as DiskResult;
use crate::store::{MemoryMedium, NewTarget, Shape, Store, Target};
use crate::volume::{Extent, Volume, VolumeStatus};
use crate::{Geometry, Id, Role};
use proptest::prelude::*;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;
use xgvmi_daemon::{poll, pollfd};

/// Bound of a hang.
const LIMIT: Duration = Duration::from_secs(20);
const SIZE: u64 = 1 << 20;
const MEMORY: usize = 8 << 20;
const ENTRIES: u16 = 32;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
const TABLE: u64 = 0x3000;
const HEADER: u64 = 0x4000;
const STATUS: u64 = 0x5000;
const DATA: u64 = 0x10_0000;
/// Where the guest's memory begins in the front end's addresses.
const BASE: u64 = 0x7000_0000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const PROTOCOL: u64 = 1 << 30;
const FLUSH: u64 = 1 << 9;
const READ_ONLY: u64 = 1 << 5;

mod parallel;

fn volume() -> Arc<Volume> {
    limited_volume(None)
}

/// A volume of targets with so many bytes of data.
fn limited_volume(capacity: Option<u64>) -> Arc<Volume> {
    let targets = Role::HALVES.map(|role| -> Arc<dyn Target> {
        let new = NewTarget {
            geometry: Geometry::of_size(4096, SIZE).unwrap(),
            role,
            volume: Id([3; 16]),
            complete: true,
        };
        // An index with room, as those of files: blocks have enough locks.
        let shape = Shape::that_grows(new.geometry);
        let medium = Box::new(MemoryMedium::default());
        Arc::new(Store::create_with("m", medium, new, shape, capacity).unwrap())
    });
    Arc::new(Volume::open(targets.to_vec()).unwrap())
}

/// A server in a thread of this process.
struct Site {
    dir: tempfile::TempDir,
    volume: Arc<Volume>,
    server: Arc<VhostServer>,
}

impl Site {
    fn new(read_only: bool) -> Self {
        let volume = volume();
        let disk = Arc::clone(&volume) as Arc<dyn Disk>;
        Self::of(volume, disk, read_only)
    }

    /// A server of a disk on a volume.
    fn of(volume: Arc<Volume>, disk: Arc<dyn Disk>, read_only: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("vhost")).unwrap();
        let server = Arc::new(VhostServer::new(
            listener,
            crate::disk::always(disk),
            2,
            read_only,
        ));
        let running = Arc::clone(&server);
        std::thread::spawn(move || running.run());
        Self {
            dir,
            volume,
            server,
        }
    }

    fn guest(&self, without: u64) -> Guest {
        Guest::new(&self.dir.path().join("vhost"), without)
    }

    fn settled(&self, connections: usize) {
        let end = Instant::now() + LIMIT;
        while self.server.connections() != connections {
            assert!(Instant::now() < end, "a front end stays");
            std::thread::yield_now();
        }
    }
}

/// A front end and the driver of its guest, with the first queue in use.
struct Guest {
    front: Frontend,
    features: u64,
    memory: GuestMemoryMmap,
    kick: EventFd,
    call: EventFd,
    /// Requests that were made.
    made: u16,
}

type Descriptor = (u64, u32, u16);

impl Guest {
    fn new(path: &Path, without: u64) -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len(MEMORY as u64).unwrap();
        let fd = file.as_raw_fd();
        let range = (GuestAddress(0), MEMORY, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        let mut front = Frontend::connect(path, 2).unwrap();
        front.set_owner().unwrap();
        let features = front.get_features().unwrap();
        front.set_features(features & !without).unwrap();
        let protocol = front.get_protocol_features().unwrap();
        let wanted = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::CONFIG;
        assert!(protocol.contains(wanted));
        front.set_protocol_features(wanted).unwrap();
        assert_eq!(front.get_queue_num().unwrap(), 2);
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY as u64,
            userspace_addr: BASE,
            mmap_offset: 0,
            mmap_handle: fd,
        };
        front.set_mem_table(&[region]).unwrap();
        let (kick, call) = (
            EventFd::new(0).unwrap(),
            EventFd::new(libc::EFD_NONBLOCK).unwrap(),
        );
        let rings = VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            flags: 0,
            desc_table_addr: BASE,
            used_ring_addr: BASE + USED,
            avail_ring_addr: BASE + AVAIL,
            log_addr: None,
        };
        front.set_vring_num(0, ENTRIES).unwrap();
        front.set_vring_addr(0, &rings).unwrap();
        front.set_vring_base(0, 0).unwrap();
        front.set_vring_call(0, &call).unwrap();
        front.set_vring_kick(0, &kick).unwrap();
        front.set_vring_enable(0, true).unwrap();
        Self {
            front,
            features,
            memory,
            kick,
            call,
            made: 0,
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    fn get(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory
            .read_slice(&mut bytes, GuestAddress(at))
            .unwrap();
        bytes
    }

    fn used(&self) -> u16 {
        self.memory.read_obj(GuestAddress(USED + 2)).unwrap()
    }

    /// Writes descriptors to a table, each with the one behind it unless its flags tell otherwise.
    fn table(&self, at: u64, descriptors: &[Descriptor]) {
        for (number, (address, length, flags)) in (0u16..).zip(descriptors) {
            let entry = [
                &address.to_le_bytes()[..],
                &length.to_le_bytes(),
                &flags.to_le_bytes(),
                &(number + 1).to_le_bytes(),
            ];
            self.put(at + u64::from(number) * 16, &entry.concat());
        }
    }

    /// Makes a request of the descriptors, and waits until it is used. Returns the bytes that the device has written.
    fn submit(&mut self, descriptors: &[Descriptor]) -> u32 {
        self.table(0, descriptors);
        self.make(self.made.wrapping_add(1));
        let at = USED + 4 + u64::from(self.made.wrapping_sub(1) % ENTRIES) * 8 + 4;
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }

    fn make(&mut self, index: u16) {
        let entry = AVAIL + 4 + u64::from(self.made % ENTRIES) * 2;
        self.put(entry, &0u16.to_le_bytes());
        self.made = self.made.wrapping_add(1);
        // No interrupt is left out: the event index is that of the last request.
        self.put(
            AVAIL + 4 + u64::from(ENTRIES) * 2,
            &(self.made - 1).to_le_bytes(),
        );
        self.put(AVAIL + 2, &index.to_le_bytes());
        self.kick.write(1).unwrap();
        let end = Instant::now() + LIMIT;
        while self.used() != self.made {
            assert!(Instant::now() < end, "a request is not answered");
            let mut fds = [pollfd(self.call.as_raw_fd(), libc::POLLIN)];
            poll(&mut fds, Some(Duration::from_millis(20))).unwrap();
            let _ = self.call.read();
        }
    }

    /// A request with its header, data and status. Returns the status and the bytes that the device has written.
    fn request(&mut self, kind: u32, sector: u64, data: &[Descriptor]) -> (u8, u32) {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.put(HEADER, &header);
        self.put(STATUS, &[0xee]);
        let mut all = vec![(HEADER, 16, NEXT)];
        all.extend(
            data.iter()
                .map(|(at, length, flags)| (*at, *length, flags | NEXT)),
        );
        all.push((STATUS, 1, WRITE));
        let written = self.submit(&all);
        (self.get(STATUS, 1)[0], written)
    }

    fn range(&self, sector: u64, sectors: u32, flags: u32) {
        let bytes = [
            &sector.to_le_bytes()[..],
            &sectors.to_le_bytes(),
            &flags.to_le_bytes(),
        ];
        self.put(DATA, &bytes.concat());
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect()
}

#[test]
fn requests_do_what_they_say() {
    let site = Site::new(false);
    let mut guest = site.guest(0);
    let bytes = pattern(64 << 10);
    guest.put(DATA, &bytes);
    let parts = [(DATA, 512, 0), (DATA + 512, (64 << 10) - 512, 0)];
    assert_eq!(guest.request(1, 1, &parts), (0, 1));
    let mut held = vec![0; 64 << 10];
    site.volume.read(512, &mut held).unwrap();
    assert!(held == bytes);
    assert_eq!(site.volume.status().flushes, 0);
    assert_eq!(guest.request(4, 0, &[]), (0, 1));
    assert_eq!(site.volume.status().flushes, 1);
    let to = [
        (DATA + (1 << 20), 65535, WRITE),
        (DATA + (2 << 20), 1, WRITE),
    ];
    assert_eq!(guest.request(0, 1, &to), (0, (64 << 10) + 1));
    assert!(guest.get(DATA + (1 << 20), 65535) == bytes[..65535]);
    assert_eq!(guest.get(DATA + (2 << 20), 1), bytes[65535..]);
    // Its identifier, in 20 bytes or fewer.
    assert_eq!(guest.request(8, 0, &[(DATA, 20, WRITE)]), (0, 21));
    assert_eq!(
        guest.get(DATA, 20),
        &site.volume.id().to_string().as_bytes()[..20]
    );
    assert_eq!(guest.request(8, 0, &[(DATA, 4, WRITE)]), (0, 5));
    // Blocks become zero.
    for kind in [11, 13] {
        guest.put(DATA, &bytes);
        assert_eq!(guest.request(1, 0, &[(DATA, 16384, 0)]).0, 0);
        guest.range(8, 8, 0);
        assert_eq!(guest.request(kind, 0, &[(DATA, 16, 0)]), (0, 1));
        let mut held = vec![1; 16384];
        site.volume.read(0, &mut held).unwrap();
        assert!(held[..4096] == bytes[..4096] && held[4096..8192] == [0; 4096]);
        assert!(held[8192..] == bytes[8192..16384]);
    }
    // A table of its own, in any pieces.
    guest.put(HEADER, &[&[0; 8][..], &[8, 0, 0, 0, 0, 0, 0, 0]].concat());
    guest.table(
        TABLE,
        &[(HEADER, 7, NEXT), (HEADER + 7, 9, NEXT), (DATA, 513, WRITE)],
    );
    assert_eq!(guest.submit(&[(TABLE, 48, INDIRECT)]), 513);
    assert_eq!(guest.get(DATA, 512), [0; 512]);
}

#[test]
fn the_configuration_is_that_of_the_volume() {
    let site = Site::new(true);
    let mut guest = site.guest(0);
    assert_ne!(guest.features & READ_ONLY, 0);
    assert_ne!(guest.features & PROTOCOL, 0);
    let none = VhostUserConfigFlags::WRITABLE;
    let (_, config) = guest.front.get_config(0, 60, none, &[0; 60]).unwrap();
    assert_eq!(config[..8], (SIZE / 512).to_le_bytes());
    assert_eq!(config[20..24], 512u32.to_le_bytes());
    assert_eq!(config[24], 3, "blocks of 4 KiB");
    assert_eq!(config[34..36], [2, 0]);
    guest.put(DATA, &[7; 512]);
    for (kind, length) in [(1, 512), (11, 16), (13, 16)] {
        guest.range(0, 1, 0);
        assert_eq!(guest.request(kind, 0, &[(DATA, length, 0)]), (1, 1));
    }
    assert_eq!(guest.request(0, 0, &[(DATA, 512, WRITE)]).0, 0);
    assert_eq!(guest.request(4, 0, &[]).0, 0);
}

/// The volume of a service whose rights change. Nobody may use it without a look at them.
struct Rights {
    volume: Arc<Volume>,
    may_write: AtomicBool,
    may_write_next: Mutex<Result<bool, String>>,
}

impl Disk for Rights {
    fn id(&self) -> Id {
        self.volume.id()
    }

    fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> DiskResult<()> {
        self.volume.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> DiskResult<()> {
        self.volume.write(offset, bytes)
    }

    fn write_zeroes(&self, offset: u64, length: u64, allocate: bool) -> DiskResult<()> {
        self.volume.write_zeroes(offset, length, allocate)
    }

    fn trim(&self, offset: u64, length: u64) -> DiskResult<()> {
        self.volume.trim(offset, length)
    }

    fn flush(&self) -> DiskResult<()> {
        self.volume.flush()
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> DiskResult<Vec<Extent>> {
        self.volume.extents(offset, length, limit)
    }

    fn is_read_only(&self) -> bool {
        !self.may_write.load(Ordering::SeqCst)
    }

    fn renew(&self) -> Result<(), String> {
        let next = self.may_write_next.lock().unwrap().clone()?;
        self.may_write.store(next, Ordering::SeqCst);
        Ok(())
    }

    fn status(&self) -> VolumeStatus {
        self.volume.status()
    }
}

/// What a guest may do is what the service says when its front end connects.
#[test]
fn a_guest_learns_that_the_service_lets_it_only_read() {
    let volume = volume();
    let disk = Arc::new(Rights {
        volume: Arc::clone(&volume),
        may_write: AtomicBool::new(true),
        may_write_next: Mutex::new(Ok(true)),
    });
    let site = Site::of(volume, Arc::clone(&disk) as Arc<dyn Disk>, false);
    let mut guest = site.guest(0);
    assert_eq!(guest.features & READ_ONLY, 0);
    assert_eq!(guest.request(1, 0, &[(DATA, 512, 0)]), (0, 1));
    drop(guest);
    site.settled(0);
    *disk.may_write_next.lock().unwrap() = Ok(false);
    let mut guest = site.guest(0);
    assert_eq!(guest.features & READ_ONLY, READ_ONLY);
    for (kind, length) in [(1, 512), (11, 16), (13, 16)] {
        guest.range(0, 1, 0);
        assert_eq!(guest.request(kind, 0, &[(DATA, length, 0)]), (1, 1));
    }
    assert_eq!(guest.request(0, 0, &[(DATA, 512, WRITE)]).0, 0);
    assert_eq!(site.volume.status().written_bytes, 512);
    drop(guest);
    site.settled(0);
    // One that it lets do nothing.
    *disk.may_write_next.lock().unwrap() = Err("no right".to_owned());
    let refused = Frontend::connect(site.dir.path().join("vhost"), 1).unwrap();
    assert!(refused.get_features().is_err());
    *disk.may_write_next.lock().unwrap() = Ok(true);
    let mut guest = site.guest(0);
    assert_eq!(guest.features & READ_ONLY, 0);
    assert_eq!(guest.request(1, 0, &[(DATA, 512, 0)]), (0, 1));
}

#[test]
fn a_guest_without_flush_has_durable_writes() {
    let site = Site::new(false);
    let mut guest = site.guest(FLUSH);
    assert_eq!(guest.request(1, 0, &[(DATA, 512, 0)]).0, 0);
    assert_eq!(site.volume.status().flushes, 1);
}

#[test]
fn what_a_guest_must_not_ask_is_an_error_and_the_next_request_is_served() {
    let site = Site::new(false);
    let mut guest = site.guest(0);
    let sectors = SIZE / 512;
    let good = |guest: &mut Guest| {
        assert_eq!(guest.request(0, 0, &[(DATA, 512, WRITE)]), (0, 513));
    };
    let huge = u32::MAX;
    for (kind, sector, data) in [
        // Beyond the end, also by an overflow, of no or half a sector, too long.
        (0, sectors, vec![(DATA, 512, WRITE)]),
        (1, sectors - 1, vec![(DATA, 1024, 0)]),
        (0, u64::MAX, vec![(DATA, 512, WRITE)]),
        (1, u64::MAX / 512, vec![(DATA, 512, 0)]),
        (0, 0, vec![]),
        (1, 0, vec![]),
        (0, 0, vec![(DATA, 511, WRITE)]),
        (1, 0, vec![(DATA, 513, 0)]),
        // Another direction than the request's.
        (0, 0, vec![(DATA, 512, 0)]),
        (1, 0, vec![(DATA, 512, WRITE)]),
        (11, 0, vec![(DATA, 16, WRITE)]),
        // Ranges: none, half of one, too many.
        (11, 0, vec![]),
        (13, 0, vec![(DATA, 15, 0)]),
        (11, 0, vec![(DATA + 4096, 17 * 16, 0)]),
        (11, 0, vec![(DATA, huge >> 12, 0)]),
    ] {
        guest.range(0, 1, 0);
        let (status, written) = guest.request(kind, sector, &data);
        assert_eq!((status, written), (1, 1), "{kind} {sector} {data:?}");
        good(&mut guest);
    }
    // Buffers outside the guest's memory: a write has no data to take, a read has no place for its status. A chain of
    // 4 GiB has no end, so it has no status.
    let outside = MEMORY as u64 - 512;
    for (at, length, told) in [
        (outside, 1024, (1, 1)),
        (u64::MAX - 511, 512, (1, 1)),
        (1 << 40, 512, (1, 1)),
        (DATA, huge, (0xee, 0)),
    ] {
        assert_eq!(guest.request(1, 0, &[(at, length, 0)]), told);
        assert_eq!(guest.request(0, 0, &[(at, length, WRITE)]), (0xee, 0));
        good(&mut guest);
    }
    for (sector, count, flags, expect) in [
        (sectors, 1, 0, 1),
        (u64::MAX, 1, 0, 1),
        (0, 0, 0, 1),
        (0, huge, 0, 1),
        (0, 1, 2, 2),
    ] {
        guest.range(sector, count, flags);
        for kind in [11, 13] {
            assert_eq!(guest.request(kind, 0, &[(DATA, 16, 0)]), (expect, 1));
        }
    }
    guest.range(0, 1, 1);
    assert_eq!(guest.request(11, 0, &[(DATA, 16, 0)]), (2, 1), "UNMAP");
    assert_eq!(guest.request(13, 0, &[(DATA, 16, 0)]), (0, 1));
    for kind in [2, 3, 5, 99, huge] {
        assert_eq!(guest.request(kind, 0, &[]), (2, 1));
    }
    good(&mut guest);
    // Chains without a status, without a header, with loops, and with a table that is none.
    guest.table(
        TABLE,
        &[(TABLE, 16, INDIRECT | NEXT), (TABLE, 16, INDIRECT)],
    );
    for chain in [
        vec![(HEADER, 16, 0)],
        vec![(STATUS, 1, WRITE)],
        vec![(HEADER, 3, NEXT), (STATUS, 1, WRITE)],
        vec![(HEADER, 0, NEXT), (STATUS, 0, WRITE)],
        vec![(STATUS, 1, WRITE | NEXT), (HEADER, 16, 0)],
        vec![(HEADER, 16, NEXT); ENTRIES as usize],
        vec![(TABLE, 32, INDIRECT)],
        vec![(TABLE, 31, INDIRECT)],
        vec![(u64::MAX - 15, 16, INDIRECT)],
        vec![(0, huge & !15, INDIRECT)],
        vec![(HEADER, 16, NEXT), (TABLE, 32, INDIRECT | WRITE)],
    ] {
        assert!(guest.submit(&chain) <= 1, "{chain:?}");
        good(&mut guest);
    }
    let mut held = vec![1; 1 << 20];
    site.volume.read(0, &mut held).unwrap();
    assert!(held.iter().all(|byte| *byte == 0), "nothing was written");
}

#[test]
fn rings_that_are_wrong_end_their_queue_and_the_next_front_end_is_served() {
    let site = Site::new(false);
    for wrong in 0..3 {
        let guest = site.guest(0);
        site.settled(1);
        match wrong {
            // More requests than the queue has entries.
            0 => guest.put(AVAIL + 2, &1000u16.to_le_bytes()),
            // A head behind the end of the table.
            1 => {
                guest.put(AVAIL + 4, &999u16.to_le_bytes());
                guest.put(AVAIL + 2, &1u16.to_le_bytes());
            }
            // A chain that names itself.
            _ => {
                guest.put(
                    0,
                    &[&HEADER.to_le_bytes()[..], &[16, 0, 0, 0, 1, 0, 0, 0]].concat(),
                );
                guest.put(AVAIL + 2, &1u16.to_le_bytes());
            }
        }
        guest.kick.write(1).unwrap();
        drop(guest);
        site.settled(0);
    }
    let mut guest = site.guest(0);
    assert_eq!(guest.request(0, 0, &[(DATA, 512, WRITE)]), (0, 513));
    // The number of requests that were taken, for the front end's next start.
    assert_eq!(guest.front.get_vring_base(0).unwrap(), 1);
}

/// Neither a descriptor nor a thread stays, also of a front end that says nothing.
#[test]
fn a_front_end_that_leaves_keeps_nothing() {
    let site = Site::new(false);
    let path = site.dir.path().join("vhost");
    // Of this server alone: other tests have descriptors and threads too.
    let held = || Arc::strong_count(&site.volume);
    let before = held();
    for _ in 0..50 {
        drop(std::os::unix::net::UnixStream::connect(&path).unwrap());
        let mut guest = site.guest(0);
        assert_eq!(guest.request(4, 0, &[]).0, 0);
    }
    let end = Instant::now() + LIMIT;
    // The device that waits for the next front end may not have been there before.
    while site.server.connections() != 0 || held() > before + 1 {
        assert!(Instant::now() < end, "{} devices stay", held() - before);
        std::thread::yield_now();
    }
}

#[test]
fn a_drain_ends_the_front_end_and_later_ones() {
    let site = Site::new(false);
    let mut guest = site.guest(0);
    assert_eq!(guest.request(1, 0, &[(DATA, 512, 0)]).0, 0);
    site.server.drain();
    site.settled(0);
    assert!(guest.front.get_features().is_err());
    assert!(Frontend::connect(site.dir.path().join("vhost"), 1).is_err());
}

proptest! {
    /// No bytes of a guest end the process, write more than the guest's buffer, or change a read-only volume.
    #[test]
    fn any_request(
        kind in prop_oneof![0u32..16, any::<u32>()],
        sector in prop_oneof![0u64..2100, any::<u64>()],
        data in proptest::collection::vec(any::<u8>(), 0..1100),
        to_length in 0usize..1100,
        read_only: bool,
    ) {
        let volume = volume();
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        let bytes = [&header[..], &data].concat();
        let mut to = vec![0; to_length];
        let terms = Terms { read_only, write_through: false };
        let mut parts = Parts { from: &bytes[..], from_length: bytes.len(), to: &mut to[..], to_length };
        let (status, written) = carry_out(volume.as_ref(), terms, &mut parts, (&mut Vec::new(), &|| {}));
        prop_assert!(written <= to_length && (written == 0 || status == Status::Ok));
        let changed = volume.status().written_bytes != 0;
        prop_assert_eq!(changed, kind == 1 && status == Status::Ok);
        prop_assert!(!(changed && read_only));
        // Without a whole header nothing happens.
        let mut parts = Parts { from: &bytes[..15], from_length: 15, to: &mut to[..], to_length };
        let cut = carry_out(volume.as_ref(), terms, &mut parts, (&mut Vec::new(), &|| {}));
        prop_assert_eq!(cut, (Status::IoError, 0));
    }
}
