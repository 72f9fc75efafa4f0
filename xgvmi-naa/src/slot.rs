//! What a session needs on the DPU: registered memory, queue pairs, and a kernel's process. Slots are used again.

use crate::kernel::{KernelOptions, KernelProcess, Place, Stopped, is_dead};
use naaice::abi::code;
use naaice::server::Block;
use naaice::wire::REGIONS_MAX;
use std::io;
use std::num::NonZeroU16;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use xgvmi_pool::{Lkey, VirtAddr};
use xgvmi_verbs::{Adapter, Direction, Mover, MoverOptions, Piece, Registered, VerbsError};

/// Time limit of one transfer. 64 MiB take milliseconds; an adapter without answer is broken.
const TRANSFER_LIMIT: Duration = Duration::from_secs(30);

/// A place for a session. The fields end in their order: the registration before the memory.
#[derive(Debug)]
pub(crate) struct Slot {
    mover: Option<Mover>,
    memory: Registered,
    block: Block,
    kernel: Option<KernelProcess>,
}

impl Slot {
    fn new(adapter: &Arc<Adapter>, bytes: usize) -> Result<Self, VerbsError> {
        let block = Block::new(bytes, true).map_err(|source| VerbsError::Call {
            call: "memory of a session",
            source,
        })?;
        // SAFETY: the block's pages live as long as the slot, whose fields end in order.
        let memory = unsafe { Registered::new(adapter, block.as_ptr(), block.len()) }?;
        Ok(Self {
            mover: None,
            memory,
            block,
            kernel: None,
        })
    }

    /// Zeroes a region.
    pub(crate) fn clear(&mut self, place: Place) {
        self.block.clear(place.offset, place.size);
    }

    /// Transfers regions in one chain of requests. Queue pairs are created when needed, and again after an error.
    pub(crate) fn transfer(
        &mut self,
        adapter: &Arc<Adapter>,
        direction: Direction,
        regions: &[(Place, Lkey, VirtAddr)],
    ) -> Result<(), VerbsError> {
        if regions.is_empty() {
            return Ok(());
        }
        let mut mover = match self.mover.take() {
            Some(mover) => mover,
            None => connect(adapter)?,
        };
        let piece = |(place, alias, remote): &(Place, Lkey, VirtAddr)| {
            assert!(
                place.offset + place.size <= self.block.len(),
                "checked when the session was created"
            );
            Piece {
                local: self.block.as_ptr().wrapping_add(place.offset),
                alias: *alias,
                remote: *remote,
                len: place.size,
            }
        };
        let pieces: Vec<Piece> = regions.iter().map(piece).collect();
        // SAFETY: inside the registered block; the kernel's process does not run during a transfer.
        unsafe { mover.transfer(direction, &self.memory, &pieces) }?;
        self.mover = Some(mover);
        Ok(())
    }

    /// Runs a function on the slot's memory. `caller` becomes readable when `caller_gone` may return true.
    pub(crate) fn run(
        &mut self,
        options: &KernelOptions,
        call: (u8, u32),
        places: &[Place],
        caller_gone: impl FnMut() -> bool,
        caller: RawFd,
    ) -> Result<u8, Stopped> {
        let Ok(mut kernel) = self.kernel.take().map_or_else(
            || -> io::Result<KernelProcess> {
                let mut process = KernelProcess::spawn(options)?;
                process.attach(&self.block)?;
                Ok(process)
            },
            io::Result::Ok,
        ) else {
            return Ok(code::KERNEL_CRASHED);
        };
        // After an error the process is dropped, which ends it.
        let code = kernel.run(call, places, options.limit, caller_gone, caller)?;
        if !is_dead(code) {
            self.kernel = Some(kernel);
        }
        Ok(code)
    }
}

/// The slots of the service.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Mutex<Free>,
    adapter: Arc<Adapter>,
    bytes: usize,
}

#[derive(Debug)]
struct Free {
    slots: Vec<Slot>,
    /// Slots that may still be created.
    more: usize,
}

impl Slots {
    pub(crate) fn new(adapter: Arc<Adapter>, count: usize, bytes: usize) -> Self {
        Self {
            free: Mutex::new(Free {
                slots: Vec::new(),
                more: count,
            }),
            adapter,
            bytes,
        }
    }

    /// A free slot; `None` if all are in use.
    pub(crate) fn take(&self) -> Result<Option<Slot>, VerbsError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = free.slots.pop() {
            return Ok(Some(slot));
        }
        if free.more == 0 {
            return Ok(None);
        }
        let slot = Slot::new(&self.adapter, self.bytes)?;
        free.more -= 1;
        Ok(Some(slot))
    }

    pub(crate) fn put(&self, slot: Slot) {
        self.free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .slots
            .push(slot);
    }
}

/// Queue pairs that transfer all regions of a session in one chain.
fn connect(adapter: &Arc<Adapter>) -> Result<Mover, VerbsError> {
    let chain_max = u16::try_from(REGIONS_MAX).ok().and_then(NonZeroU16::new);
    let options = MoverOptions {
        chain_max: chain_max.expect("a small constant"),
        limit: TRANSFER_LIMIT,
    };
    Mover::connect(adapter, options)
}
