//! The completion queue's memory: which entries the adapter has written since.

use std::ptr::NonNull;

use mlx5_prm::cqe::{self, CQE_BYTES, Cqe};
use mlx5dv_sys::mlx5dv_cq;

use super::mmio;

/// The ring of one completion queue, of which this is the only reader. All pointers are libmlx5's
/// and live as long as the queue.
#[derive(Debug)]
pub(super) struct CqRing {
    entries: NonNull<u8>,
    /// Entries of the ring, a power of two.
    count: u32,
    entry_bytes: usize,
    record: NonNull<u32>,
    /// Entries read so far.
    next: u32,
}

// SAFETY: the pointers are to memory of the process that any thread may read and write; `&mut self`
// on every method that does makes sure that one does at a time.
unsafe impl Send for CqRing {}

impl CqRing {
    /// The ring that libmlx5 describes, or why it is none.
    ///
    /// # Safety
    /// `raw` is what `mlx5dv_init_obj` wrote about a completion queue that outlives the ring and
    /// that nobody else polls.
    pub(super) unsafe fn new(raw: &mlx5dv_cq) -> Result<Self, &'static str> {
        if !raw.cqe_cnt.is_power_of_two() {
            return Err("the size of the completion queue is no power of two");
        }
        let entry_bytes = raw.cqe_size as usize;
        if entry_bytes != CQE_BYTES && entry_bytes != 2 * CQE_BYTES {
            return Err("completions are neither 64 nor 128 bytes");
        }
        let entries = NonNull::new(raw.buf.cast()).ok_or("the completion queue has no buffer")?;
        let record =
            NonNull::new(raw.dbrec).ok_or("the completion queue has no doorbell record")?;
        Ok(Self {
            entries,
            count: raw.cqe_cnt,
            entry_bytes,
            record,
            next: 0,
        })
    }

    /// The next completion, if the adapter has written it. Of one that is no error, opcode and number
    /// of the request.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Cqe> {
        let place = (self.next & (self.count - 1)) as usize * self.entry_bytes;
        // The completion proper is the second half of a 128-byte entry.
        let place = place + (self.entry_bytes - CQE_BYTES);
        // SAFETY: the entry's number is below the count, so that it lies in the ring's buffer.
        let entry = unsafe { self.entries.add(place) };
        // SAFETY: the owner byte is the last of the entry. Volatile, because the adapter writes it.
        let owner = unsafe { entry.add(cqe::OWNER_AT).read_volatile() };
        // The parity of the round through the ring: entries of the round before have the other one,
        // and those never written are marked invalid by libmlx5.
        let round = self.next & self.count != 0;
        if owner >> 4 == cqe::opcode::INVALID || (owner & 1 != 0) != round {
            return None;
        }
        mmio::from_device_barrier();
        if owner >> 4 == cqe::opcode::REQ {
            // Of a success the number of its request is all that matters.
            // SAFETY: within the entry, and aligned; volatile, because the adapter wrote it.
            let counter = unsafe { entry.add(cqe::WQE_COUNTER_AT).cast::<u16>().read_volatile() };
            self.advance();
            return Some(Cqe {
                opcode: cqe::opcode::REQ,
                wqe_counter: u16::from_be(counter),
                ..Cqe::default()
            });
        }
        let mut bytes = [0; CQE_BYTES];
        for (word, bytes) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: `word` is below 8, the words of an entry.
            let word = unsafe { entry.cast::<u64>().add(word) };
            // SAFETY: entries are aligned to their size; volatile, because the adapter wrote it.
            *bytes = unsafe { word.read_volatile() }.to_ne_bytes();
        }
        self.advance();
        Some(Cqe::parse(&bytes))
    }

    /// Gives the entry back to the adapter.
    #[inline]
    fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
        // The record holds 24 bits of the counter; it tells the adapter which entries are free.
        let record = (self.next & 0xff_ffff).to_be();
        // SAFETY: a doorbell record is two aligned words, of which this is the first. Volatile,
        // because the adapter reads it.
        unsafe { self.record.write_volatile(record) };
    }
}
