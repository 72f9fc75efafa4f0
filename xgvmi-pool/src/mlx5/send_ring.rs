//! The send queue's memory: where entries are written, and how the adapter is told.

use std::ptr::NonNull;

use mlx5_prm::wqe::WQEBB_BYTES;
use mlx5dv_sys::mlx5dv_qp;

use super::mmio;
use super::single::Block;
use super::wqe::Wqe;

/// Index of the send counter among the two words of a doorbell record (`mlx5dv.h`, `MLX5_SND_DBR`).
const SEND_RECORD: usize = 1;

/// The ring of one queue pair, of which this is the only writer, and its doorbell, which is the queue
/// pair's own or takes single stores only. All pointers are libmlx5's and live as long as the queue
/// pair.
#[derive(Debug)]
pub(super) struct SendRing {
    blocks: NonNull<[u64; WQEBB_BYTES / 8]>,
    /// Building blocks of the ring, less one: the count is a power of two.
    mask: u32,
    record: NonNull<u32>,
    doorbell: NonNull<u64>,
    /// Bytes between the two doorbells that are rung in turn, zero if there is one.
    doorbell_stride: usize,
    second_doorbell: bool,
}

// SAFETY: the pointers are to memory of the process that any thread may write; `&mut self` on every
// method that writes makes sure that one does at a time.
unsafe impl Send for SendRing {}

impl SendRing {
    /// The ring that libmlx5 describes, or why it is none.
    ///
    /// # Safety
    /// `raw` is what `mlx5dv_init_obj` wrote about a queue pair that outlives the ring and that
    /// nobody else posts to.
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
            mask: raw.sq.wqe_cnt - 1,
            record,
            doorbell,
            doorbell_stride: raw.bf.size as usize,
            second_doorbell: false,
        })
    }

    /// Writes an entry whose first building block is number `at`. The adapter does not look at it
    /// before the doorbell.
    #[inline]
    pub(super) fn write(&mut self, at: u64, wqe: &Wqe) {
        for (block, number) in wqe.blocks().zip(at..) {
            let place = self.block(number);
            for (word, bytes) in block.as_chunks::<8>().0.iter().enumerate() {
                // SAFETY: `word` is below 8, the words of a building block; the buffer is aligned
                // to pages, so a block is to its size. Volatile, because the adapter reads it.
                unsafe { place.add(word).write_volatile(u64::from_ne_bytes(*bytes)) };
            }
        }
    }

    /// Writes the building blocks of an entry, the first of which is number `at`.
    #[inline(always)]
    pub(super) fn write_blocks<const BLOCKS: usize>(&mut self, at: u64, blocks: &[Block; BLOCKS]) {
        for (block, number) in blocks.iter().zip(at..) {
            let place = self.block(number);
            for (word, value) in block.iter().enumerate() {
                // SAFETY: `word` is below 8, the words of a building block; the buffer is aligned
                // to pages, so a block is to its size. Volatile, because the adapter reads it.
                unsafe { place.add(word).write_volatile(*value) };
            }
        }
    }

    /// The building block of this number, in the ring's buffer.
    #[inline]
    fn block(&self, number: u64) -> NonNull<u64> {
        #[expect(clippy::cast_possible_truncation, reason = "masked to less than 2^32")]
        let place = (number & u64::from(self.mask)) as usize;
        // SAFETY: `place` is below the capacity, so that it lies in the ring's buffer.
        unsafe { self.blocks.add(place) }.cast::<u64>()
    }

    /// Tells the adapter that all building blocks below number `end` are written, the last entry
    /// being `last`.
    #[inline]
    pub(super) fn ring(&mut self, end: u64, last: &Wqe) {
        self.ring_word(end, u64::from_ne_bytes(last.doorbell()));
    }

    /// The same; `first` is the first word of the last entry.
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
        let offset = if self.second_doorbell {
            self.doorbell_stride
        } else {
            0
        };
        // SAFETY: the second doorbell lies one stride behind the first, in the same UAR page
        // (libmlx5: `bf->offset ^= bf->buf_size`).
        let doorbell = unsafe { self.doorbell.byte_add(offset) };
        // SAFETY: a doorbell takes aligned stores of eight bytes.
        unsafe { doorbell.write_volatile(first) };
        mmio::flush_writes();
        self.second_doorbell = !self.second_doorbell;
    }
}

/// The low 16 bits.
pub(super) fn low16(number: u64) -> u16 {
    let [a, b, ..] = number.to_le_bytes();
    u16::from_le_bytes([a, b])
}
