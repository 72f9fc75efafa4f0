//! The completion queue's memory: detection and reading of new entries.

use std::ptr::NonNull;

use mlx5_prm::cqe::{self, CQE_BYTES, Cqe};
use mlx5dv_sys::mlx5dv_cq;

use super::mmio;

/// Bits of the owner byte: the opcode, and the parity of the pass.
const OPCODE_AND_PARITY: u8 = 0xf1;

/// The ring of one completion queue, with this value as the only reader. All pointers are libmlx5's
/// and live as long as the queue.
#[derive(Debug)]
pub(super) struct CqRing {
    /// The completion of the first entry.
    entries: NonNull<u8>,
    record: NonNull<u32>,
    /// Number of entries of the ring, a power of two.
    count: u32,
    /// Number of entries read so far.
    next: u32,
    /// The adapter learns the number of read entries when these bits of it are zero.
    quiet: u32,
    /// Binary logarithm of the bytes of an entry: 64, or 128 with the completion in the second half.
    log_bytes: u8,
}

// SAFETY: the pointers refer to memory of the process that any thread may read and write; `&mut
// self` on every method that does so ensures that one thread at a time does.
unsafe impl Send for CqRing {}

impl CqRing {
    /// The ring in libmlx5's description, or the reason why it is not usable.
    ///
    /// # Safety
    /// `raw` is the result of `mlx5dv_init_obj` for a completion queue that outlives the ring and
    /// that no other code polls.
    pub(super) unsafe fn new(raw: &mlx5dv_cq) -> Result<Self, &'static str> {
        if !raw.cqe_cnt.is_power_of_two() {
            return Err("the size of the completion queue is no power of two");
        }
        let entry_bytes = raw.cqe_size as usize;
        if entry_bytes != CQE_BYTES && entry_bytes != 2 * CQE_BYTES {
            return Err("completions are neither 64 nor 128 bytes");
        }
        let log_bytes = u8::try_from(entry_bytes.ilog2()).map_err(|_| "completions too large")?;
        let entries = NonNull::new(raw.buf.cast::<u8>());
        let entries = entries.ok_or("the completion queue has no buffer")?;
        // SAFETY: the completion of the first entry lies in the queue's buffer, at the entry's end.
        let entries = unsafe { entries.add(entry_bytes - CQE_BYTES) };
        let record =
            NonNull::new(raw.dbrec).ok_or("the completion queue has no doorbell record")?;
        Ok(Self {
            entries,
            record,
            count: raw.cqe_cnt,
            next: 0,
            quiet: Self::quiet(raw.cqe_cnt),
            log_bytes,
        })
    }

    const fn quiet(count: u32) -> u32 {
        (count / 4).saturating_sub(1)
    }

    /// Number of completions for which a ring of `count` entries has space: of the others the adapter may not
    /// know yet that they were read.
    pub(super) const fn capacity(count: u32) -> u32 {
        count - Self::quiet(count)
    }

    /// The number of the next request, if the adapter has written its completion and it is a
    /// success. Any other completion remains for [`CqRing::pop`].
    #[inline(always)]
    pub(super) fn pop_success(&mut self) -> Option<u16> {
        // Opcode and parity together: that of a success is zero.
        const _: () = assert!(cqe::opcode::REQ == 0);
        let next = self.next;
        let entry = self.next_entry();
        let owner = Self::owner(entry);
        if owner & OPCODE_AND_PARITY != u8::from(self.round()) {
            return None;
        }
        mmio::from_device_barrier();
        // SAFETY: within the entry, and aligned; volatile, because the adapter wrote it.
        let counter = unsafe { entry.add(cqe::WQE_COUNTER_AT).cast::<u16>().read_volatile() };
        self.advance_from(next);
        Some(u16::from_be(counter))
    }

    /// The next completion, if the adapter has written it. For a success, only the opcode and the
    /// number of the request are valid.
    pub(super) fn pop(&mut self) -> Option<Cqe> {
        if let Some(wqe_counter) = self.pop_success() {
            return Some(Cqe {
                opcode: cqe::opcode::REQ,
                wqe_counter,
                ..Cqe::default()
            });
        }
        let (entry, _opcode) = self.written()?;
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

    /// The next entry and its opcode, if the adapter has written it.
    fn written(&self) -> Option<(NonNull<u8>, u8)> {
        let entry = self.next_entry();
        let owner = Self::owner(entry);
        // libmlx5 marks entries that were never written as invalid.
        if owner >> 4 == cqe::opcode::INVALID || (owner & 1 != 0) != self.round() {
            return None;
        }
        mmio::from_device_barrier();
        Some((entry, owner >> 4))
    }

    /// The next entry.
    #[inline(always)]
    fn next_entry(&self) -> NonNull<u8> {
        let place = ((self.next & (self.count - 1)) as usize) << self.log_bytes;
        // SAFETY: the entry's number is below the count, so it lies in the ring's buffer.
        unsafe { self.entries.add(place) }
    }

    /// The owner byte of an entry.
    #[inline(always)]
    fn owner(entry: NonNull<u8>) -> u8 {
        // SAFETY: the owner byte is the last of the entry. Volatile, because the adapter writes it.
        unsafe { entry.add(cqe::OWNER_AT).read_volatile() }
    }

    /// The parity of the pass through the ring. Entries of the previous pass have the opposite one.
    #[inline(always)]
    fn round(&self) -> bool {
        self.next & self.count != 0
    }

    /// Returns the next entry to the adapter.
    fn advance(&mut self) {
        self.advance_from(self.next);
    }

    /// Like [`CqRing::advance`], with the number of the entry.
    #[inline(always)]
    fn advance_from(&mut self, entry: u32) {
        self.next = entry.wrapping_add(1);
        if self.next & self.quiet != 0 {
            return;
        }
        // The record holds 24 bits of the counter; it tells the adapter which entries are free.
        let record = (self.next & 0xff_ffff).to_be();
        // SAFETY: a doorbell record is two aligned words, of which this is the first. Volatile,
        // because the adapter reads it.
        unsafe { self.record.write_volatile(record) };
    }
}
