//! Tests of asynchronous requests, under two executors and by hand.

use super::*;
use crate::error::BlkError;
use crate::geometry::{Geometry, Id, Role};
use crate::store::{MemoryMedium, NewTarget, Shape, Store, Target};
use crate::volume::{Extent, Volume, VolumeStatus};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A test that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(20);
const SIZE: u64 = 1 << 20;

fn volume() -> Volume {
    let targets = Role::HALVES.map(|role| -> Arc<dyn Target> {
        let new = NewTarget {
            geometry: Geometry::of_size(4096, SIZE).unwrap(),
            role,
            volume: Id([3; 16]),
            complete: true,
        };
        let medium = Box::new(MemoryMedium::default());
        let shape = Shape::that_grows(new.geometry);
        Arc::new(Store::create_with("m", medium, new, shape, None).unwrap())
    });
    Volume::open(targets.to_vec()).unwrap()
}

/// A volume whose writes stop at a closed gate, and panic at offset 0 if they shall.
struct Gated {
    volume: Volume,
    state: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    closed: bool,
    panics: bool,
    /// Writes that have arrived.
    waiting: usize,
    most: usize,
    ended: usize,
    flushes: usize,
}

impl Gated {
    fn new(closed: bool) -> Arc<Self> {
        Arc::new(Self {
            volume: volume(),
            state: Mutex::new(Gate {
                closed,
                ..Gate::default()
            }),
            changed: Condvar::new(),
        })
    }

    fn change(&self, change: impl FnOnce(&mut Gate)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn open(&self) {
        self.change(|gate| gate.closed = false);
    }

    fn wait_for(&self, is_there: impl Fn(&Gate) -> bool) {
        let state = self.state.lock().unwrap();
        let waited = self
            .changed
            .wait_timeout_while(state, LIMIT, |gate| !is_there(gate))
            .unwrap();
        assert!(!waited.1.timed_out(), "it takes too long");
    }
}

impl Disk for Gated {
    fn id(&self) -> Id {
        self.volume.id()
    }

    fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.volume.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.change(|gate| {
            gate.waiting += 1;
            gate.most = gate.most.max(gate.waiting);
        });
        self.wait_for(|gate| !gate.closed);
        let panics = self.state.lock().unwrap().panics;
        assert!(!panics, "a defect below");
        let done = self.volume.write(offset, bytes);
        self.change(|gate| {
            gate.waiting -= 1;
            gate.ended += 1;
        });
        done
    }

    fn write_zeroes(&self, offset: u64, length: u64, allocate: bool) -> Result<()> {
        self.volume.write_zeroes(offset, length, allocate)
    }

    fn trim(&self, offset: u64, length: u64) -> Result<()> {
        self.volume.trim(offset, length)
    }

    fn flush(&self) -> Result<()> {
        self.change(|gate| gate.flushes += 1);
        self.volume.flush()
    }

    fn extents(&self, offset: u64, length: u64, limit: usize) -> Result<Vec<Extent>> {
        self.volume.extents(offset, length, limit)
    }

    fn status(&self) -> VolumeStatus {
        self.volume.status()
    }
}

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Woken {
    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn poll<T: Send + 'static>(request: &mut Request<T>, woken: &Arc<Woken>) -> Poll<T> {
    let waker = Waker::from(Arc::clone(woken));
    Pin::new(request).poll(&mut Context::from_waker(&waker))
}

fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(512)
}

async fn every_call(disk: AsyncDisk) -> Result<()> {
    let (done, buffer) = disk.write(4096, block(1).into_boxed_slice()).await;
    done?;
    assert!(*buffer == *block(1), "the buffer came back changed");
    disk.write_zeroes(8192, 4096, true).await?;
    disk.trim(4096, 2048).await?;
    disk.flush().await?;
    let (done, buffer) = disk.read(4096, vec![9; 8192]).await;
    done?;
    assert!(buffer == [block(1), vec![0; 4096]].concat());
    disk.trim(4096, 4096).await?;
    let (done, buffer) = disk.read(4096, buffer).await;
    done?;
    assert!(buffer == [0; 8192]);
    // The errors are those of the blocking calls.
    let (failed, buffer) = disk.read(SIZE, vec![0; 512]).await;
    let theirs = disk.disk().read(SIZE, &mut [0; 512]).unwrap_err();
    assert_eq!(failed.unwrap_err().to_string(), theirs.to_string());
    let (failed, buffer) = disk.write(SIZE - 1, buffer).await;
    assert!(matches!(failed, Err(BlkError::Geometry(_))));
    assert_eq!(buffer.len(), 512);
    disk.close().await
}

#[test]
fn a_minimal_executor_carries_out_every_call() {
    pollster::block_on(every_call(AsyncDisk::new(Arc::new(volume())))).unwrap();
}

#[test]
fn tokio_carries_out_many_requests_of_many_tasks() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let gated = Gated::new(false);
    let disk = AsyncDisk::with_depth(Arc::clone(&gated) as Arc<dyn Disk>, 5);
    runtime.block_on(async {
        let tasks: Vec<_> = (1..200)
            .map(|number| {
                let disk = disk.clone();
                tokio::spawn(async move {
                    disk.write(number * 4096, block(number)).await.0.unwrap();
                    let (done, read) = disk.read(number * 4096, vec![0; 4096]).await;
                    done.unwrap();
                    assert!(read == block(number), "{number}");
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        every_call(disk).await.unwrap();
    });
    let most = gated.state.lock().unwrap().most;
    assert!((1..=5).contains(&most), "{most} writes at once");
}

/// Beyond the depth requests wait, in their order, and each one that ends calls one.
#[test]
fn a_request_beyond_the_depth_waits_for_a_place() {
    let gated = Gated::new(true);
    let disk = AsyncDisk::with_depth(Arc::clone(&gated) as Arc<dyn Disk>, 2);
    let woken: [Arc<Woken>; 5] = Default::default();
    let mut requests: Vec<_> = (0..5)
        .map(|number| disk.write(number * 4096, block(number)))
        .collect();
    for (request, woken) in requests.iter_mut().zip(&woken) {
        assert!(poll(request, woken).is_pending());
    }
    gated.wait_for(|gate| gate.waiting == 2);
    // One that waits is dropped: it never happens, and nobody waits for it.
    drop(requests.remove(2));
    gated.open();
    gated.wait_for(|gate| gate.ended == 2);
    let pairs = [0, 1, 3, 4];
    while pairs.iter().any(|at| woken[*at].times() == 0) {
        std::thread::yield_now();
    }
    for request in requests {
        pollster::block_on(request).0.unwrap();
    }
    assert_eq!(woken[2].times(), 0);
    assert_eq!(gated.state.lock().unwrap().ended, 4);
    assert_eq!(gated.state.lock().unwrap().most, 2);
    let mut bytes = [1; 4096];
    gated.read(2 * 4096, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4096]);
}

/// A future that was called to a free place and is dropped instead gives the call to the next one.
#[test]
fn a_called_request_that_is_dropped_calls_the_next() {
    let gated = Gated::new(true);
    let disk = AsyncDisk::with_depth(Arc::clone(&gated) as Arc<dyn Disk>, 1);
    let woken: [Arc<Woken>; 3] = Default::default();
    let mut requests: Vec<_> = (0..3)
        .map(|number| disk.write(number * 4096, block(number)))
        .collect();
    for (request, woken) in requests.iter_mut().zip(&woken) {
        assert!(poll(request, woken).is_pending());
    }
    gated.open();
    while woken[1].times() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(woken[2].times(), 0);
    drop(requests.remove(1));
    assert_eq!(woken[2].times(), 1);
    pollster::block_on(requests.remove(1)).0.unwrap();
}

/// The request goes on with its own buffer, which is freed after it.
#[test]
fn a_dropped_request_is_carried_out_with_its_own_buffer() {
    /// Tells when it is freed.
    struct Buffer(Vec<u8>, Arc<AtomicUsize>);
    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Buffer {
        fn drop(&mut self) {
            self.0.fill(0xff);
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let freed = Arc::new(AtomicUsize::new(0));
    let buffer = |number| Buffer(block(number), Arc::clone(&freed));
    let gated = Gated::new(true);
    let disk = AsyncDisk::new(Arc::clone(&gated) as Arc<dyn Disk>);
    let mut request = disk.write(4096, buffer(7));
    assert!(poll(&mut request, &Arc::default()).is_pending());
    gated.wait_for(|gate| gate.waiting == 1);
    drop(request);
    assert_eq!(freed.load(Ordering::SeqCst), 0);
    // One that was never polled does nothing.
    drop(disk.write(4096, buffer(8)));
    assert_eq!(freed.load(Ordering::SeqCst), 1);
    gated.open();
    pollster::block_on(disk.close()).unwrap();
    while freed.load(Ordering::SeqCst) == 1 {
        std::thread::yield_now();
    }
    let mut bytes = [0; 4096];
    gated.read(4096, &mut bytes).unwrap();
    assert!(bytes[..] == block(7)[..]);
}

/// The last handle may go before its requests have ended.
#[test]
fn requests_outlive_the_handles() {
    let gated = Gated::new(true);
    let disk = AsyncDisk::new(Arc::clone(&gated) as Arc<dyn Disk>);
    let mut request = disk.write(4096, block(7));
    assert!(poll(&mut request, &Arc::default()).is_pending());
    let unbegun = disk.write(8192, block(8));
    drop(disk);
    gated.open();
    pollster::block_on(request).0.unwrap();
    pollster::block_on(unbegun).0.unwrap();
    // Nobody else uses the disk then: it may be opened again.
    assert_eq!(Arc::strong_count(&gated), 1);
}

#[test]
fn close_waits_for_requests_under_way_and_refuses_others() {
    let gated = Gated::new(true);
    let disk = AsyncDisk::with_depth(Arc::clone(&gated) as Arc<dyn Disk>, 1);
    let woken: [Arc<Woken>; 3] = Default::default();
    let mut first = disk.write(4096, block(1));
    let mut waits = disk.write(8192, block(2));
    assert!(poll(&mut first, &woken[0]).is_pending());
    assert!(poll(&mut waits, &woken[1]).is_pending());
    gated.wait_for(|gate| gate.waiting == 1);
    let mut close = Box::pin(disk.close());
    let waker = Waker::from(Arc::clone(&woken[2]));
    let mut context = Context::from_waker(&waker);
    assert!(close.as_mut().poll(&mut context).is_pending());
    assert_eq!(gated.state.lock().unwrap().flushes, 0);
    for refused in [waits, disk.write(0, block(3))] {
        let (failed, buffer) = pollster::block_on(refused);
        assert!(failed.unwrap_err().to_string().contains("is closed"));
        assert_eq!(buffer.len(), 4096);
    }
    gated.open();
    pollster::block_on(close).unwrap();
    let state = gated.state.lock().unwrap();
    assert_eq!((state.ended, state.flushes), (1, 1));
    drop(state);
    pollster::block_on(first).0.unwrap();
    // Again, which does no harm.
    pollster::block_on(disk.clone().close()).unwrap();
}

/// A defect below arrives where a blocking call would have met it, and takes no place from others.
#[test]
fn a_panic_arrives_at_its_own_request() {
    let gated = Gated::new(false);
    gated.change(|gate| gate.panics = true);
    let disk = AsyncDisk::with_depth(Arc::clone(&gated) as Arc<dyn Disk>, 1);
    for _ in 0..3 {
        let request = disk.write(0, block(1));
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pollster::block_on(request)));
        assert!(caught.is_err());
    }
    gated.change(|gate| gate.panics = false);
    pollster::block_on(disk.write(0, block(1))).0.unwrap();
    pollster::block_on(disk.close()).unwrap();
}

/// A buffer that panics when it is freed costs no thread.
#[test]
fn a_buffer_that_panics_at_its_end_costs_no_thread() {
    struct Bomb(Vec<u8>);
    impl AsRef<[u8]> for Bomb {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a defect of the caller");
        }
    }
    let gated = Gated::new(true);
    let disk = AsyncDisk::with_depth(Arc::clone(&gated) as Arc<dyn Disk>, 1);
    let mut request = disk.write(0, Bomb(block(1)));
    assert!(poll(&mut request, &Arc::default()).is_pending());
    gated.wait_for(|gate| gate.waiting == 1);
    drop(request);
    gated.open();
    pollster::block_on(disk.write(4096, block(2))).0.unwrap();
    pollster::block_on(disk.close()).unwrap();
}
