//! Any bytes as requests, and as memory of a guest, for fuzz targets and tests.

use super::device::Device;
use super::lane::Lane;
use super::request::{Parts, Status, Terms, carry_out};
use super::shared::Served;
use crate::disk::Disk;
use std::sync::{Arc, mpsc};
use vhost_user_backend::{VringMutex, VringT as _};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryAtomic, GuestMemoryMmap};

/// Bytes of the guest's memory: table of descriptors, rings, then what the descriptors name.
const MEMORY: usize = 64 << 10;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
const ENTRIES: u16 = 16;
/// Most requests of one input: a request may write its own ring.
const REQUESTS: u64 = 64;

/// A request with these bytes: a byte of flags, two of the length for the answer, then what the guest sends.
pub(crate) fn request(disk: &dyn Disk, bytes: &[u8]) {
    let [flags, low, high, sent @ ..] = bytes else {
        return;
    };
    let terms = Terms {
        read_only: flags & 1 != 0,
        write_through: flags & 2 != 0,
    };
    let to_length = usize::from(u16::from_le_bytes([*low, *high]));
    let mut to = vec![0; to_length];
    let mut parts = Parts {
        from: sent,
        from_length: sent.len(),
        to: &mut to[..],
        to_length,
    };
    let (status, written) = carry_out(disk, terms, &mut parts, (&mut Vec::new(), &|| {}));
    assert!(written <= to_length && (written == 0 || status == Status::Ok));
}

/// A guest whose memory has these bytes: the first 256 are the table of descriptors, the next 64 the available ring, the
/// rest is what descriptors name. Returns how many requests were used.
pub(crate) fn guest(disk: &Arc<dyn Disk>, bytes: &[u8]) -> u16 {
    let Ok(memory) = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY)]) else {
        return 0;
    };
    let (table, rest) = bytes.split_at(bytes.len().min(usize::from(ENTRIES) * 16));
    let (ring, data) = rest.split_at(rest.len().min(64));
    let data = &data[..data.len().min(MEMORY - 0x3000)];
    for (at, part) in [(0, table), (AVAIL, ring), (0x3000, data)] {
        // Cannot fail: each is inside.
        let _ = memory.write_slice(part, GuestAddress(at));
    }
    let memory = GuestMemoryAtomic::new(memory);
    let (ended, _has_ended) = mpsc::channel();
    let served = Served {
        disk: Arc::clone(disk),
        queues: 1,
        read_only: false,
    };
    let Ok(device) = Device::new(served, memory.clone(), ended) else {
        return 0;
    };
    let ring = VringMutex::new(memory, ENTRIES);
    let Ok(ring) = ring else { return 0 };
    ring.set_queue_size(ENTRIES);
    if ring.set_queue_info(0, AVAIL, USED).is_err() {
        return 0;
    }
    ring.set_queue_ready(true);
    device.alone(|shared| Arc::<Lane>::default().work_alone(shared, &ring, REQUESTS));
    ring.queue_used_idx().unwrap_or_default()
}
