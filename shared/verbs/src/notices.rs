//! Messages between this process and a program on the device: writes with an immediate value, and immediate values.

use crate::adapter::Adapter;
use crate::error::{Result, check, last};
use crate::memory::Buffer;
use crate::queue_pair::{QueuePair, Shape};
use mlx5dv_sys::*;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

/// A queue pair to another one of the same port. The values that it receives wake whoever polls its descriptor.
#[derive(Debug)]
pub struct Notices {
    queue: QueuePair,
    /// Messages in each direction that may be on their way.
    entries: u16,
    sent: u32,
}

impl Notices {
    /// Creates the queue pair. At most `entries` messages may be on their way in each direction.
    ///
    /// # Errors
    /// The adapter or the system refuses.
    pub fn create(adapter: &Arc<Adapter>, entries: u16) -> Result<Self> {
        let shape = Shape {
            // The space of a message is free after a later one has completed, and not each one reports it.
            entries: 2 * u32::from(entries),
            reads: 1,
            dma: false,
            receives: entries.into(),
            wakes: false,
        };
        Ok(Self {
            queue: QueuePair::create(adapter, shape)?,
            entries,
            sent: 0,
        })
    }

    /// Number of the queue pair.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.queue.number()
    }

    /// Connects it to a queue pair, which may send from then on.
    ///
    /// # Errors
    /// The adapter refuses.
    pub fn connect(&self, peer: u32) -> Result<()> {
        self.queue.connect(peer)?;
        (0..self.entries).try_for_each(|_| self.receive())
    }

    /// Descriptor that is readable when a value comes after [`arm`](Self::arm).
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.queue.channel_fd()
    }

    /// Writes `length` bytes of a buffer from `offset` on to memory of the peer, and sends an immediate value. The peer has
    /// the bytes when it has the value; until then they must not change.
    ///
    /// # Errors
    /// The queue is full or in error.
    ///
    /// # Panics
    /// The range is not in the buffer.
    pub fn write(
        &mut self,
        from: &Buffer,
        (offset, length): (usize, u32),
        (address, key): (u64, u32),
        value: u32,
    ) -> Result<()> {
        let (start, bytes, lkey) = from.parts();
        let end = offset.checked_add(length as usize);
        assert!(
            end.is_some_and(|end| end <= bytes),
            "{length} bytes at {offset} of a buffer of {bytes}"
        );
        let mut part = ibv_sge {
            addr: start + offset as u64,
            length,
            lkey,
        };
        let mut request = ibv_send_wr {
            sg_list: &raw mut part,
            num_sge: 1,
            opcode: IBV_WR_RDMA_WRITE_WITH_IMM,
            ..ibv_send_wr::default()
        };
        request.__bindgen_anon_1.imm_data = value.to_be();
        request.wr.rdma.remote_addr = address;
        request.wr.rdma.rkey = key;
        self.sent = self.sent.wrapping_add(1);
        if self.sent.is_multiple_of(u32::from(self.entries)) {
            request.send_flags = IBV_SEND_SIGNALED;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, and the request with its part too. A buffer that ends early ends its key: the device
        // then reads nothing.
        let errno = unsafe { ibv_post_send(self.queue.raw(), &raw mut request, &raw mut bad) };
        check("ibv_post_send", errno)
    }

    /// Takes the next value of the peer.
    ///
    /// # Errors
    /// The connection has failed: a message did not arrive, or the peer is gone.
    pub fn next(&self) -> Result<Option<u32>> {
        loop {
            let Some(completion) = self.queue.poll()? else {
                return Ok(None);
            };
            if completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM {
                continue;
            }
            self.receive()?;
            // SAFETY: such a completion has a value.
            return Ok(Some(u32::from_be(unsafe {
                completion.__bindgen_anon_1.imm_data
            })));
        }
    }

    /// The descriptor becomes readable at the next value. A value that came before does not make it so: call
    /// [`next`](Self::next) after this.
    ///
    /// # Errors
    /// The system refuses.
    pub fn arm(&self) -> Result<()> {
        self.queue.arm()
    }

    /// An entry for a value.
    fn receive(&self) -> Result<()> {
        let mut request = ibv_recv_wr::default();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, and the request has no buffer.
        let errno = unsafe { ibv_post_recv(self.queue.raw(), &raw mut request, &raw mut bad) };
        match errno {
            -1 => Err(last("ibv_post_recv")),
            errno => check("ibv_post_recv", errno),
        }
    }
}
