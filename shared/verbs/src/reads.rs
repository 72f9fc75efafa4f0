//! A connection to another machine, through which each side reads memory of the other one. Neither side can write the
//! other one's memory: the queue pair refuses it.

use crate::adapter::Adapter;
use crate::error::{Result, VerbsError, check};
use crate::memory::Buffer;
use crate::queue_pair::{Endpoint, QueuePair, Shape};
use mlx5dv_sys::*;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Entries of the send queue. One read is under way at a time.
const ENTRIES: u32 = 4;
/// Requests into which the adapter may split a read.
const READS_MAX: u8 = 16;

/// A queue pair with the buffer of its reads. The fields end in their order: the queue pair before the buffer.
#[derive(Debug)]
pub struct Reads {
    queue: QueuePair,
    /// A read has failed: another one might take its late completion.
    is_broken: bool,
    buffer: Buffer,
}

impl Reads {
    /// Creates the queue pair, and a buffer for reads of up to `bytes`. Peers reach memory that is [shown](crate::Shown)
    /// on the same adapter only: an adapter for each connection keeps peers apart.
    ///
    /// # Errors
    /// The adapter refuses.
    pub fn create(adapter: &Arc<Adapter>, bytes: usize) -> Result<Self> {
        let shape = Shape {
            entries: ENTRIES,
            reads: READS_MAX,
            dma: false,
            receives: 0,
            wakes: true,
        };
        Ok(Self {
            queue: QueuePair::create(adapter, shape)?,
            is_broken: false,
            buffer: Buffer::new(adapter, bytes)?,
        })
    }

    /// The address of this side, for the peer.
    ///
    /// # Errors
    /// The adapter has no address.
    pub fn endpoint(&self) -> Result<Endpoint> {
        self.queue.endpoint()
    }

    /// Connects to the peer, once.
    ///
    /// # Errors
    /// The adapter refuses the address.
    pub fn connect(&self, peer: &Endpoint) -> Result<()> {
        self.queue.connect_to(peer)
    }

    /// Reads `len` bytes at `address` of the memory behind the peer's key. The bytes are there when it returns, and nobody
    /// else changes them.
    ///
    /// # Errors
    /// `len` is beyond the buffer; nothing happened. The peer has no such memory, or does not answer within `limit`: the
    /// connection is unusable.
    pub fn read(
        &mut self,
        (key, address): (u32, u64),
        len: usize,
        limit: Duration,
    ) -> Result<&[u8]> {
        let (addr, bytes, lkey) = self.buffer.parts();
        let length = u32::try_from(len).ok().filter(|_| len <= bytes);
        let length = length.ok_or(VerbsError::TooLong { length: len, bytes })?;
        if self.is_broken {
            return Err(VerbsError::Call {
                call: "a read on a connection that has failed",
                source: std::io::ErrorKind::BrokenPipe.into(),
            });
        }
        let mut local = ibv_sge { addr, length, lkey };
        let mut request = ibv_send_wr {
            sg_list: &raw mut local,
            num_sge: 1,
            opcode: IBV_WR_RDMA_READ,
            send_flags: IBV_SEND_SIGNALED,
            ..ibv_send_wr::default()
        };
        request.wr.rdma.remote_addr = address;
        request.wr.rdma.rkey = key;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the buffer is registered, and nobody accesses it during the read.
        let errno = unsafe { ibv_post_send(self.queue.raw(), &raw mut request, &raw mut bad) };
        let done = check("ibv_post_send", errno).and_then(|()| self.queue.wait_asleep(limit));
        self.is_broken = done.is_err();
        done?;
        Ok(&self.buffer.bytes()[..len])
    }
}
