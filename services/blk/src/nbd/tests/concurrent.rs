//! Several requests of one connection at once, and the end of a server.

use super::*;
use crate::disk::Disk;
use crate::error::Result;
use crate::nbd::REQUESTS_MAX;
use crate::store::{Medium, Shape};
use crate::volume::{Extent, VolumeStatus};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

/// A test that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(20);

/// Writes stop at a closed gate.
#[derive(Default)]
struct Gate {
    /// Closed, and the number of writes that wait.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn close(&self) {
        self.state.lock().unwrap().0 = true;
    }

    fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            let (next, waited) = self.changed.wait_timeout(state, LIMIT).unwrap();
            assert!(!waited.timed_out(), "the gate stays closed");
            state = next;
        }
        state.1 -= 1;
    }

    /// Waits until `count` writes wait.
    fn wait_for(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let fewer = |state: &mut (bool, usize)| state.1 < count;
        let (state, waited) = self
            .changed
            .wait_timeout_while(state, LIMIT, fewer)
            .unwrap();
        assert!(!waited.timed_out(), "{} of {count} writes wait", state.1);
    }

    fn waiting(&self) -> usize {
        self.state.lock().unwrap().1
    }
}

struct Gated(MemoryMedium, Arc<Gate>);

impl Medium for Gated {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.1.pass();
        self.0.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn release(&self, _: u64, _: u64) {}
}

/// An export whose writes stop at a gate on the way to data_1.
fn gated() -> (Export, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let targets = Role::HALVES.map(|role| -> Arc<dyn Target> {
        let new = NewTarget {
            geometry: Geometry::of_size(4096, SIZE).unwrap(),
            role,
            volume: Id([3; 16]),
            complete: true,
        };
        let medium: Box<dyn Medium> = match role {
            Role::FIRST => Box::new(Gated(MemoryMedium::default(), Arc::clone(&gate))),
            _ => Box::new(MemoryMedium::default()),
        };
        // An index with room, as those of files: blocks have enough locks.
        let shape = Shape::that_grows(new.geometry);
        Arc::new(Store::create_with("m", medium, new, shape, None).unwrap())
    });
    let volume = Volume::open(targets.to_vec()).unwrap();
    (Export::new(Arc::new(volume), "vol"), gate)
}

impl Client {
    /// The cookie of the next reply, which has no data and no error.
    fn done(&mut self) -> u64 {
        assert_eq!(self.number(4), u64::from(CHUNK_MAGIC));
        assert_eq!(self.number(4), 1 << 16, "one chunk without data");
        let cookie = self.number(8);
        assert_eq!(self.number(4), 0);
        cookie
    }
}

fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(512)
}

#[test]
fn requests_of_one_connection_run_at_once_up_to_the_limit() {
    let (export, gate) = gated();
    let mut client = Client::ready(&export);
    gate.close();
    let count = REQUESTS_MAX as u64 + 4;
    for number in 1..=count {
        client.post_as(number, (WRITE, 0), (number * 4096, 4096), &block(number));
    }
    gate.wait_for(REQUESTS_MAX);
    assert_eq!(gate.waiting(), REQUESTS_MAX);
    gate.open();
    let replies: BTreeSet<u64> = (1..=count).map(|_| client.done()).collect();
    assert_eq!(replies, (1..=count).collect());
    for number in 1..=count {
        assert!(
            client.read(number * 4096, 4096) == block(number),
            "{number}"
        );
    }
    client.leave();
}

#[test]
fn a_fast_request_overtakes_a_slow_one_and_both_are_answered() {
    let (export, gate) = gated();
    let mut client = Client::ready(&export);
    client.request((WRITE, 0), 8192, 4096, &block(2)).unwrap();
    gate.close();
    client.post_as(1, (WRITE, 0), (0, 4096), &block(1));
    gate.wait_for(1);
    assert!(client.read(8192, 4096) == block(2));
    gate.open();
    assert_eq!(client.done(), 1);
    // A client that leaves gets the replies of what it has sent before.
    gate.close();
    for cookie in 2..5 {
        client.post_as(cookie, (WRITE, 0), (cookie * 4096, 4096), &block(cookie));
    }
    client.post((2, 0), 0, 0, &[]);
    gate.wait_for(3);
    gate.open();
    let replies: BTreeSet<u64> = (0..3).map(|_| client.done()).collect();
    assert_eq!(replies, (2..5).collect());
    client.server.take().unwrap().join().unwrap().unwrap();
}

#[test]
fn the_data_of_requests_under_way_have_a_limit() {
    let export = export();
    let mut client = Client::ready(&export);
    // Each READ is beyond the volume, and reserves its bytes before it is refused: together 16 times the limit.
    for cookie in 0..16 {
        client.post_as(cookie, (READ, 0), (0, LENGTH_MAX), &[]);
    }
    for _ in 0..16 {
        assert_eq!(client.number(4), u64::from(CHUNK_MAGIC));
        client.take(12);
        let length = usize::try_from(client.number(4)).unwrap();
        assert_eq!(client.take(length)[..4], errno::EINVAL.to_be_bytes());
    }
    assert_eq!(client.read(0, 512), [0; 512]);
    client.leave();
}

/// Data that is never zero. It counts the reads that have begun, and the questions for states.
#[derive(Default)]
struct Counted(AtomicUsize, AtomicUsize);

impl Disk for Counted {
    fn id(&self) -> Id {
        Id([3; 16])
    }

    fn geometry(&self) -> Geometry {
        Geometry::of_size(4096, 64 << 20).unwrap()
    }

    fn read(&self, _: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        bytes.fill(5);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn write_zeroes(&self, _: u64, _: u64, _: bool) -> Result<()> {
        Ok(())
    }

    fn trim(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn extents(&self, _: u64, length: u64, _: usize) -> Result<Vec<Extent>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Ok(vec![Extent {
            length,
            zero: false,
        }])
    }

    fn status(&self) -> VolumeStatus {
        VolumeStatus::default()
    }
}

/// Behind a service each question is a round trip.
#[test]
fn a_read_asks_for_no_states() {
    let disk = Arc::new(Counted::default());
    let export = Export::new(Arc::clone(&disk) as Arc<dyn Disk>, "vol");
    let mut client = Client::connect(&export, 3);
    client.option(option::STRUCTURED_REPLY, &[]);
    let query = [
        &name("vol")[..],
        &1u32.to_be_bytes(),
        &name("base:allocation"),
    ]
    .concat();
    client.option(option::SET_META_CONTEXT, &query);
    let replies = client.option(option::GO, &[name("vol"), vec![0, 0]].concat());
    assert_eq!(replies.last().unwrap().0, reply::ACK);
    for length in [512, 4096, 1 << 20] {
        assert_eq!(client.read(4096, length), vec![5; length as usize]);
    }
    let counts = || [&disk.0, &disk.1].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(counts(), [3, 0]);
    client.request((STATUS, 0), 0, 4096, &[]).unwrap();
    assert_eq!(counts(), [3, 1]);
    client.leave();
}

/// A client that reads no replies keeps at most the data of two of its requests in the server's memory.
#[test]
fn replies_that_nobody_reads_count_as_data_of_requests() {
    const LENGTH: u32 = LENGTH_MAX / 2;
    const READS: u64 = 8;
    let disk = Arc::new(Counted::default());
    let export = Export::new(Arc::clone(&disk) as Arc<dyn Disk>, "vol");
    let mut client = Client::connect(&export, 3);
    let replies = client.option(option::GO, &[name("vol"), vec![0, 0]].concat());
    assert_eq!(replies.last().unwrap().0, reply::ACK);
    for cookie in 1..=READS {
        client.post_as(cookie, (READ, 0), (0, LENGTH), &[]);
    }
    let (mut data, whole) = (vec![0; LENGTH as usize], vec![5; LENGTH as usize]);
    for read in 0..READS {
        let expect = (read + 2).min(READS);
        // All reads move 128 MiB, which takes long under a user-mode emulator.
        let end = Instant::now() + LIMIT;
        while (disk.0.load(Ordering::SeqCst) as u64) < expect {
            assert!(Instant::now() < end, "the reads stop");
            std::thread::yield_now();
        }
        // No socket takes the whole reply: the next two are under way, and all others wait.
        assert_eq!(disk.0.load(Ordering::SeqCst) as u64, expect);
        assert!(export.buffered_bytes() <= LENGTH_MAX.into());
        assert_eq!(client.number(4), u64::from(SIMPLE_REPLY_MAGIC));
        client.take(12);
        client.stream.read_exact(&mut data).unwrap();
        assert!(data == whole);
    }
    client.leave();
    assert_eq!(export.buffered_bytes(), 0);
}

/// The accounting of a client that ends in the middle of a request.
#[test]
fn a_client_that_breaks_off_leaves_no_bytes_behind() {
    let export = export();
    let mut client = Client::ready(&export);
    client.post_as(1, (WRITE, 0), (0, 4096), &[7; 100]);
    let end = Instant::now() + LIMIT;
    while export.buffered_bytes() != 4096 {
        assert!(Instant::now() < end, "the request does not arrive");
        std::thread::yield_now();
    }
    client.stream.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(client.server.take().unwrap().join().unwrap().is_err());
    assert_eq!(export.buffered_bytes(), 0);
}

/// The client learns why it is refused, also one that uses the old option, and a place that becomes free is given again.
#[test]
fn clients_beyond_the_limit_are_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
    let server = Arc::new(Server::new(listener, export(), None).with_clients(2));
    let running = Arc::clone(&server);
    std::thread::spawn(move || running.run());
    let connect = || {
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut client = Client {
            stream,
            server: None,
        };
        client.take(18);
        client.send(&3u32.to_be_bytes());
        client
    };
    let go = |client: &mut Client<UnixStream>| {
        let replies = client.option(option::GO, &[name("vol"), vec![0, 0]].concat());
        replies.last().unwrap().clone()
    };
    let mut clients = [connect(), connect()];
    // Those that have chosen nothing keep nobody out.
    let mut third = connect();
    let info = third.option(option::INFO, &[name("vol"), vec![0, 0]].concat());
    assert_eq!(info.last().unwrap().0, reply::ACK);
    for client in &mut clients {
        assert_eq!(go(client), (reply::ACK, vec![]));
    }
    let (kind, text) = go(&mut third);
    assert_eq!(kind, reply::ERR_POLICY);
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text, "all 2 places for clients are taken (--clients)");
    let ends = |mut client: Client<UnixStream>| {
        let mut rest = Vec::new();
        client.stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
    };
    ends(third);
    let mut old = connect();
    old.send(b"IHAVEOPT\0\0\0\x01\0\0\0\x03vol");
    ends(old);
    assert_eq!(server.refused(), 2);
    let [first, mut second] = clients;
    first.stream.shutdown(std::net::Shutdown::Both).unwrap();
    drop(first);
    let end = Instant::now() + LIMIT;
    while server.connections() != 1 {
        assert!(Instant::now() < end, "a place is not given back");
        std::thread::yield_now();
    }
    assert_eq!(go(&mut connect()), (reply::ACK, vec![]));
    second.post_as(1, (READ, 0), (0, 512), &[]);
    assert_eq!(second.number(4), u64::from(SIMPLE_REPLY_MAGIC));
}

#[test]
fn a_server_that_drains_answers_what_has_arrived_and_accepts_nothing_more() {
    let (export, gate) = gated();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let server = Arc::new(Server::new(
        Listener::Unix(UnixListener::bind(&path).unwrap()),
        export.clone(),
        None,
    ));
    let running = {
        let server = Arc::clone(&server);
        std::thread::spawn(move || server.run())
    };
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut client = Client {
        stream,
        server: None,
    };
    client.take(18);
    client.send(&3u32.to_be_bytes());
    client.option(option::STRUCTURED_REPLY, &[]);
    client.go();
    gate.close();
    for cookie in 1..4 {
        client.post_as(cookie, (WRITE, 0), (cookie * 4096, 4096), &block(cookie));
    }
    gate.wait_for(3);
    server.drain();
    running.join().unwrap().unwrap();
    assert_eq!(server.connections(), 1);
    assert!(UnixStream::connect(&path).is_err(), "a new client");
    gate.open();
    let replies: BTreeSet<u64> = (0..3).map(|_| client.done()).collect();
    assert_eq!(replies, (1..4).collect());
    let mut rest = Vec::new();
    client.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    let mut bytes = [0; 4096];
    export.volume().read(3 * 4096, &mut bytes).unwrap();
    assert!(bytes[..] == block(3));
}
