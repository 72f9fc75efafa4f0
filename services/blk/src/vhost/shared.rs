//! What the threads of all queues of a device use, and how a request is carried out.

use super::request::{Parts, Status, Terms, carry_out};
use crate::disk::Disk;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use virtio_queue::DescriptorChain;
use vm_memory::{GuestMemoryAtomic, GuestMemoryLoadGuard, GuestMemoryMmap};

/// What a device serves.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) queues: usize,
    pub(super) read_only: bool,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").finish_non_exhaustive()
    }
}

impl Served {
    /// True if the guest may not write: the options say so, or its service does.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only || self.disk.is_read_only()
    }
}

pub(super) type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
pub(super) type Chain = DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>;

thread_local! {
    /// The data of a request.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What the threads of all queues use.
pub(super) struct Shared {
    pub(super) served: Served,
    pub(super) memory: Memory,
    pub(super) event_idx: AtomicBool,
    pub(super) write_through: AtomicBool,
    /// No request is begun any more.
    pub(super) stopped: AtomicBool,
    /// Its drop tells that no thread uses the device any more.
    pub(super) _ended: Sender<()>,
}

impl Shared {
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Carries out a request, which waits by `earlier` for those before it. Returns how many bytes it has written to the
    /// guest's memory.
    pub(super) fn request(
        &self,
        chain: Chain,
        memory: &GuestMemoryMmap,
        earlier: &dyn Fn(),
    ) -> u32 {
        let reader = chain.clone().reader(memory);
        // Without a place for the status the guest learns nothing.
        let Ok(mut writer) = chain.writer(memory) else {
            return 0;
        };
        let Some(to_length) = writer.available_bytes().checked_sub(1) else {
            return 0;
        };
        let Ok(mut status) = writer.split_at(to_length) else {
            return 0;
        };
        let (result, written) = match reader {
            Ok(from) => {
                let terms = Terms {
                    read_only: self.served.is_read_only(),
                    write_through: self.write_through.load(Ordering::Relaxed),
                };
                let mut parts = Parts {
                    from_length: from.available_bytes(),
                    from,
                    to: writer,
                    to_length,
                };
                let disk = self.served.disk.as_ref();
                BUFFER
                    .with_borrow_mut(|buffer| carry_out(disk, terms, &mut parts, (buffer, earlier)))
            }
            Err(_) => (Status::IoError, 0),
        };
        if status.write_obj(result as u8).is_err() {
            return 0;
        }
        // Cannot be cut: at most the longest READ.
        u32::try_from(written + 1).unwrap_or(u32::MAX)
    }
}
