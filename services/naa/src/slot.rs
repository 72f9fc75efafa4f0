//! What a session needs on the DPU: registered memory, queue pairs, and a kernel's process. Slots are used again.

use crate::kernel::{KernelOptions, KernelProcess, Place, Stopped, is_dead};
use naaice::abi::code;
use naaice::server::{Block, MemoryLimit, Taken};
use naaice::wire::REGIONS_MAX;
use std::io;
use std::num::NonZeroU16;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    _taken: Taken,
}

impl Slot {
    fn new(adapter: &Arc<Adapter>, bytes: usize, taken: Taken) -> Result<Self, VerbsError> {
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
            _taken: taken,
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

/// The smallest memory of a slot. Larger ones have a power of two.
const SLOT_BYTES_MIN: usize = 1 << 20;

/// The slots of the service. A slot has memory for a size class, and all slots together do not exceed the limit of the
/// service.
#[derive(Debug)]
pub(crate) struct Slots {
    table: Mutex<Table>,
    adapter: Arc<Adapter>,
    count: usize,
    bytes_max: usize,
    memory: Arc<MemoryLimit>,
}

#[derive(Debug, Default)]
struct Table {
    free: Vec<Slot>,
    in_use: usize,
}

impl Slots {
    /// At most `count` slots of at most `bytes_max` bytes.
    pub(crate) fn new(
        adapter: Arc<Adapter>,
        (count, bytes_max): (usize, usize),
        memory: Arc<MemoryLimit>,
    ) -> Self {
        Self {
            table: Mutex::default(),
            adapter,
            count,
            bytes_max,
            memory,
        }
    }

    /// A slot of at least `bytes` bytes, or why there is none.
    pub(crate) fn take(&self, bytes: usize) -> Result<Slot, String> {
        {
            let mut table = self.table();
            if table.in_use >= self.count {
                let count = self.count;
                return Err(format!(
                    "all {count} sessions of the service are in use; try again later"
                ));
            }
            table.in_use += 1;
            if let Some(slot) = table.smallest(bytes) {
                return Ok(slot);
            }
        }
        // Registration takes long, so the table is free meanwhile.
        self.create(bytes).inspect_err(|_| {
            self.table().in_use -= 1;
        })
    }

    fn create(&self, bytes: usize) -> Result<Slot, String> {
        let class = size_class(bytes, self.bytes_max);
        let taken = loop {
            if let Some(taken) = self.memory.take(class as u64) {
                break taken;
            }
            // Free slots of other classes make room.
            let Some(slot) = self.table().free.pop() else {
                return Err(format!(
                    "{} of the service's {} bytes for regions are in use, and the session needs {class} more \
                     (--memory-mib); try again later",
                    self.memory.used(),
                    self.memory.max()
                ));
            };
            drop(slot);
        };
        Slot::new(&self.adapter, class, taken).map_err(|error| error.to_string())
    }

    pub(crate) fn put(&self, slot: Slot) {
        let mut table = self.table();
        table.in_use -= 1;
        table.free.push(slot);
        let surplus = match table.free.len() > self.count {
            true => Some(table.free.swap_remove(0)),
            false => None,
        };
        drop(table);
        drop(surplus);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The smallest free slot of at least `bytes` bytes.
    fn smallest(&mut self, bytes: usize) -> Option<Slot> {
        let fits = |(_, slot): &(usize, &Slot)| slot.block.len() >= bytes;
        let free = self.free.iter().enumerate().rev().filter(fits);
        let (at, _) = free.min_by_key(|(_, slot)| slot.block.len())?;
        Some(self.free.remove(at))
    }
}

fn size_class(bytes: usize, bytes_max: usize) -> usize {
    let class = bytes.max(SLOT_BYTES_MIN).next_power_of_two();
    class.min(bytes_max.max(bytes))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two_below_the_limit_of_a_session() {
        const MIB: usize = 1 << 20;
        for (bytes, class) in [
            (1, MIB),
            (MIB, MIB),
            (MIB + 1, 2 * MIB),
            (100 * MIB, 128 * MIB),
            (250 * MIB, 255 * MIB),
            (255 * MIB, 255 * MIB),
        ] {
            assert_eq!(size_class(bytes, 255 * MIB), class);
        }
    }
}
