//! Blocks on their way to the program, and whose they are.

use super::block::{Block, Ends, FAILED, LOG_BLOCKS};
use super::device::Device;
use std::rc::Rc;
use std::sync::Arc;
use xgvmi_verbs::{Adapter, Buffer, VerbsError};

/// Blocks that may be under way.
const BLOCKS: u64 = 1 << LOG_BLOCKS;

/// Blocks in memory of this process, which the device copies to the DPA. Each counter counts blocks since the start.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Buffer,
    put: u64,
    posted: u64,
    done: u64,
    /// Owner and number of each block that is not done, by its place.
    flights: Box<[(u32, u32)]>,
    owners: Vec<Rc<Ends>>,
}

impl Ring {
    pub(super) fn new(adapter: &Arc<Adapter>) -> Result<Self, VerbsError> {
        Ok(Self {
            memory: Buffer::new(adapter, Block::BYTES << LOG_BLOCKS)?,
            put: 0,
            posted: 0,
            done: 0,
            flights: vec![(0, 0); 1 << LOG_BLOCKS].into_boxed_slice(),
            owners: Vec::new(),
        })
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.put - self.done < BLOCKS
    }

    /// Whether no block is under way.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.put == self.done
    }

    /// A number for who gets the numbers of its blocks that are done. A job has two of them.
    #[cold]
    pub(super) fn enter(&mut self, ends: &Rc<Ends>) -> u32 {
        self.owners.push(Rc::clone(ends));
        u32::try_from(self.owners.len() - 1).unwrap_or_default()
    }

    /// Whether a block was put and not posted.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.put != self.posted
    }

    /// Adds a block. There is room.
    #[inline]
    pub(super) fn put(&mut self, block: &Block, owner: u32, number: u32) {
        let at = place(self.put);
        let slots = self.memory.bytes().as_chunks_mut::<{ Block::BYTES }>().0;
        block.write(&mut slots[at]);
        self.flights[at] = (owner, number);
        self.put += 1;
    }

    /// Sends the waiting blocks, in two messages if they pass the end of the ring.
    pub(super) fn post(&mut self, device: &mut Device) -> Result<(), String> {
        while self.is_waiting() {
            let at = place(self.posted);
            let to_end = BLOCKS - at as u64;
            let count = (self.put - self.posted).min(to_end);
            let sent = device.write(&self.memory, at, count);
            sent.map_err(|error| error.to_string())?;
            self.posted += count;
        }
        Ok(())
    }

    /// The program has done this number of blocks, modulo [`FAILED`]. Returns true if it has done more than before.
    pub(super) fn done(&mut self, value: u32) -> bool {
        let more = (u64::from(value).wrapping_sub(self.done)) & u64::from(FAILED - 1);
        let more = more.min(self.posted - self.done);
        for counter in self.done..self.done + more {
            let (owner, number) = self.flights[place(counter)];
            self.owners[owner as usize].borrow_mut().push(number);
        }
        self.done += more;
        more > 0
    }

    /// Forgets what is under way.
    pub(super) fn clear(&mut self) {
        (self.posted, self.done) = (self.put, self.put);
    }
}

/// Index of a block in the ring.
#[inline]
fn place(counter: u64) -> usize {
    usize::try_from(counter % BLOCKS).unwrap_or_default()
}
