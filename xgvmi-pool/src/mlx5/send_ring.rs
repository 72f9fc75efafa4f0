//! The send queue's memory: writing of entries, and the doorbell.

use std::ptr::NonNull;

use mlx5_prm::wqe::WQEBB_BYTES;
use mlx5dv_sys::mlx5dv_qp;

use super::mmio;
use super::template::Block;
use super::wqe::Wqe;

/// Index of the send counter in the two words of a doorbell record (`mlx5dv.h`, `MLX5_SND_DBR`).
const SEND_RECORD: usize = 1;

/// The ring of one queue pair, with this value as the only writer, and its doorbell. The doorbell
/// is the queue pair's own, or takes single stores only. All pointers are libmlx5's and live as
/// long as the queue pair.
///
/// A register of BlueFlame has two doorbells, which libmlx5 uses in turn, because the stores of two
/// copied requests must not mix. A single store needs only the first one, as in Linux' and DPDK's
/// Ethernet drivers.
#[derive(Debug)]
pub(super) struct SendRing {
    blocks: NonNull<[u64; WQEBB_BYTES / 8]>,
    record: NonNull<u32>,
    doorbell: NonNull<u64>,
    /// Number of building blocks of the ring minus one: the number is a power of two.
    mask: u32,
}

// SAFETY: the pointers refer to memory of the process that any thread may write; `&mut self` on
// every writing method ensures that one thread at a time writes.
unsafe impl Send for SendRing {}

impl SendRing {
    /// The ring in libmlx5's description, or the reason why it is not usable.
    ///
    /// # Safety
    /// `raw` is the result of `mlx5dv_init_obj` for a queue pair that outlives the ring and that no
    /// other code posts to.
    pub(super) unsafe fn new(raw: &mlx5dv_qp) -> Result<Self, &'static str> {
        if raw.sq.stride as usize != WQEBB_BYTES {
            return Err("building blocks of the send queue are not 64 bytes");
        }
        if !raw.sq.wqe_cnt.is_power_of_two() {
            return Err("the size of the send queue is no power of two");
        }
        let ring = NonNull::new(raw.sq.buf.cast()).ok_or("the send queue has no buffer")?;
        let record = NonNull::new(raw.dbrec).ok_or("the queue pair has no doorbell record")?;
        let doorbell = NonNull::new(raw.bf.reg.cast()).ok_or("the queue pair has no doorbell")?;
        Ok(Self {
            blocks: ring,
            record,
            doorbell,
            mask: raw.sq.wqe_cnt - 1,
        })
    }

    /// Writes an entry whose first building block has the number `at`. The adapter does not read it
    /// before the doorbell.
    #[inline]
    pub(super) fn write(&mut self, at: u64, wqe: &Wqe) {
        for (block, number) in wqe.blocks().zip(at..) {
            let place = self.block(number);
            for (word, bytes) in block.as_chunks::<8>().0.iter().enumerate() {
                // SAFETY: `word` is below 8, the words of a building block. The buffer is
                // page-aligned, so a block is aligned to its size. Volatile, because the adapter
                // reads it.
                unsafe { place.add(word).write_volatile(u64::from_ne_bytes(*bytes)) };
            }
        }
    }

    /// Writes an entry of whole building blocks, of which the first has the number `at`.
    #[inline(always)]
    pub(super) fn write_blocks<const BLOCKS: usize>(&mut self, at: u64, blocks: &[Block; BLOCKS]) {
        for (block, number) in blocks.iter().zip(at..) {
            // SAFETY: the buffer is page-aligned, so a block is aligned to its size. Ordinary stores
            // of any width: the barrier before the doorbell comes after them.
            unsafe { self.block(number).cast::<Block>().write(*block) };
        }
    }

    /// The building block with this number in the ring's buffer.
    #[inline]
    fn block(&self, number: u64) -> NonNull<u64> {
        #[expect(clippy::cast_possible_truncation, reason = "masked to less than 2^32")]
        let place = (number & u64::from(self.mask)) as usize;
        // SAFETY: `place` is below the capacity, so it lies in the ring's buffer.
        unsafe { self.blocks.add(place) }.cast::<u64>()
    }

    /// Tells the adapter that all building blocks below the number `end` are written. `last` is the
    /// last entry.
    #[inline]
    pub(super) fn ring(&mut self, end: u64, last: &Wqe) {
        self.ring_word(end, u64::from_ne_bytes(last.doorbell()));
    }

    /// Like `ring`; `first` is the first word of the last entry.
    #[inline(always)]
    pub(super) fn ring_word(&mut self, end: u64, first: u64) {
        // The record holds the counter modulo 2^16.
        let counter = u32::from(low16(end)).to_be();
        mmio::to_device_barrier();
        // SAFETY: a doorbell record is two aligned words.
        let record = unsafe { self.record.add(SEND_RECORD) };
        // SAFETY: as above; volatile, because the adapter reads it.
        unsafe { record.write_volatile(counter) };
        mmio::wc_start();
        // SAFETY: a doorbell takes aligned stores of eight bytes.
        unsafe { self.doorbell.write_volatile(first) };
        mmio::flush_writes();
    }
}

/// The low 16 bits.
pub(super) fn low16(number: u64) -> u16 {
    let [a, b, ..] = number.to_le_bytes();
    u16::from_le_bytes([a, b])
}
