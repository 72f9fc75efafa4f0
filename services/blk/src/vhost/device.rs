//! The device of one connection: features, configuration, and its queues.
//!
//! The threads of a queue (`lane`) carry out its requests.

use super::lane::Lane;
use super::request::{LENGTH_MAX, RANGE_SECTORS_MAX, RANGES_MAX};
use super::shared::{Memory, Served, Shared};
use crate::geometry::SECTOR;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VringMutex};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

/// Most queues of a device.
pub const QUEUES_MAX: usize = 16;
/// Most descriptors of a queue.
const QUEUE_SIZE: usize = 256;
/// Most segments of a READ or WRITE, and most bytes of each: together less than the longest request.
const SEGMENTS: u32 = 126;
const SEGMENT_BYTES: u32 = 256 << 10;
const _: () = assert!(SEGMENTS as usize * SEGMENT_BYTES as usize <= LENGTH_MAX);

/// Bits of the features.
mod feature {
    pub(super) const SIZE_MAX: u64 = 1 << 1;
    pub(super) const SEG_MAX: u64 = 1 << 2;
    pub(super) const READ_ONLY: u64 = 1 << 5;
    pub(super) const BLK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const TOPOLOGY: u64 = 1 << 10;
    pub(super) const MQ: u64 = 1 << 12;
    pub(super) const DISCARD: u64 = 1 << 13;
    pub(super) const WRITE_ZEROES: u64 = 1 << 14;
    pub(super) const INDIRECT: u64 = 1 << 28;
    pub(super) const EVENT_IDX: u64 = 1 << 29;
    pub(super) const VERSION_1: u64 = 1 << 32;
}

/// A device of one connection.
pub(super) struct Device {
    shared: Arc<Shared>,
    lanes: Vec<Arc<Lane>>,
    /// Events of threads that have not begun.
    exits: Mutex<Vec<(EventConsumer, EventNotifier)>>,
    /// Events of the others, each of which ends its thread.
    given: Mutex<Vec<OwnedFd>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is inside has no state that a panic could leave half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    pub(super) fn new(served: Served, memory: Memory, ended: Sender<()>) -> io::Result<Self> {
        // Here, because a thread without its event would never end.
        let flags = EventFlag::NONBLOCK | EventFlag::CLOEXEC;
        let exits = (0..served.queues).map(|_| new_event_consumer_and_notifier(flags));
        let exits = exits.collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            lanes: (0..served.queues).map(|_| Arc::default()).collect(),
            shared: Arc::new(Shared {
                served,
                memory,
                event_idx: AtomicBool::new(false),
                write_through: AtomicBool::new(true),
                stopped: AtomicBool::new(false),
                _ended: ended,
            }),
            exits: Mutex::new(exits),
            given: Mutex::default(),
        })
    }

    /// Work on the device by this thread alone.
    pub(super) fn alone(&self, work: impl FnOnce(&Arc<Shared>)) {
        work(&self.shared);
    }

    /// Ends the threads of the queues, each after its request.
    pub(super) fn end(&self) {
        self.stop();
        for event in locked(&self.given).iter() {
            // An event that has happened already needs nothing.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
        for lane in &self.lanes {
            lane.end();
        }
    }

    /// No request is begun any more.
    pub(super) fn stop(&self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
    }

    /// The configuration of the device, as the guest reads it.
    pub(super) fn config(&self) -> [u8; 60] {
        let geometry = self.shared.served.disk.geometry();
        let block = geometry.block_size().next_power_of_two().max(SECTOR);
        let exponent = (block / SECTOR).trailing_zeros();
        // Cannot be cut: a block has at most 1 MiB, there are at most 16 queues.
        let small = |number: u32| u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes();
        let sectors = block / SECTOR;
        let mut config = [0; 60];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(geometry.size() / u64::from(SECTOR)).to_le_bytes());
        put(8, &SEGMENT_BYTES.to_le_bytes());
        put(12, &SEGMENTS.to_le_bytes());
        put(20, &SECTOR.to_le_bytes());
        put(24, &small(exponent)[..1]);
        put(26, &small(sectors));
        put(28, &sectors.to_le_bytes());
        put(32, &[1]);
        put(
            34,
            &u16::try_from(self.shared.served.queues)
                .unwrap_or(u16::MAX)
                .to_le_bytes(),
        );
        put(36, &RANGE_SECTORS_MAX.to_le_bytes());
        put(40, &RANGES_MAX.to_le_bytes());
        put(44, &sectors.to_le_bytes());
        put(48, &RANGE_SECTORS_MAX.to_le_bytes());
        put(52, &RANGES_MAX.to_le_bytes());
        put(56, &[1]);
        config
    }
}

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = VringMutex<Memory>;

    fn num_queues(&self) -> usize {
        self.shared.served.queues
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        use feature::*;
        let own = SIZE_MAX | SEG_MAX | BLK_SIZE | FLUSH | TOPOLOGY | MQ | DISCARD | WRITE_ZEROES;
        let read_only = if self.shared.served.is_read_only() {
            READ_ONLY
        } else {
            0
        };
        let ring = INDIRECT | EVENT_IDX | VERSION_1;
        own | read_only | ring | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn acked_features(&self, features: u64) {
        let write_through = features & feature::FLUSH == 0;
        self.shared
            .write_through
            .store(write_through, Ordering::Relaxed);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&self, enabled: bool) {
        self.shared.event_idx.store(enabled, Ordering::Relaxed);
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let config = self.config();
        let byte = |at: u32| config.get(at as usize).copied().unwrap_or(0);
        // The protocol allows 256 bytes.
        let end = offset.saturating_add(size.min(256));
        (offset..end).map(byte).collect()
    }

    fn update_memory(&self, _: Memory) -> io::Result<()> {
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.shared.served.queues)
            .map(|queue| 1 << queue)
            .collect()
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        let (consumer, notifier) = locked(&self.exits).pop()?;
        // SAFETY: The crate gives the descriptor up (`into_raw_fd`) and never closes it, so it has one owner: this one,
        // which lives longer than the crate's thread.
        let owned = unsafe { OwnedFd::from_raw_fd(consumer.as_raw_fd()) };
        locked(&self.given).push(owned);
        Some((consumer, notifier))
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        // The requests under way, if any, end first: the front end learns which one is the next.
        if let Some(lane) = self.lanes.get(queue as usize) {
            lane.settle();
        }
        Ok(())
    }

    fn handle_event(
        &self,
        event: u16,
        _: EventSet,
        vrings: &[VringMutex<Memory>],
        thread: usize,
    ) -> io::Result<()> {
        // An error would end the thread. Each thread has one queue.
        if let (0, Some(vring), Some(lane)) = (event, vrings.first(), self.lanes.get(thread)) {
            lane.kick(&self.shared, vring);
        }
        Ok(())
    }
}
