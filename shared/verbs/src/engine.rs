//! Copies between a buffer and the host's memory, one at a time.

use crate::adapter::Adapter;
use crate::direction::Direction;
use crate::error::{Result, VerbsError, check};
use crate::memory::Buffer;
use crate::queue_pair::{QueuePair, Shape};
use mlx5dv_sys::*;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;
use xgvmi_pool::{Lkey, VirtAddr};

/// Entries of a send queue. One request is under way at a time.
const ENTRIES: u32 = 4;

/// How bytes move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// The DMA engine.
    Dma,
    /// RDMA READ and WRITE.
    Rdma,
}

/// Settings of an [`Engine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Use the DMA engine if the adapter has one.
    pub dma: bool,
    /// Time limit of one copy.
    pub limit: Duration,
}

impl Default for EngineOptions {
    /// With the DMA engine. 10 s: a copy of some MiB takes milliseconds.
    fn default() -> Self {
        Self {
            dma: true,
            limit: Duration::from_secs(10),
        }
    }
}

/// A queue pair that is connected to itself.
///
/// The DMA engine (`mlx5dv_wr_memcpy`) takes one request with two local keys and no peer. An alias is a local key of this
/// function, so the engine takes it. An adapter without that engine transfers by RDMA READ and WRITE, which the queue
/// pair posts to itself.
#[derive(Debug)]
pub struct Engine {
    queue: QueuePair,
    transport: Transport,
    limit: Duration,
}

impl Engine {
    /// A queue with the adapter's DMA engine; without it if the adapter has none or the options exclude it.
    ///
    /// # Errors
    /// A queue cannot be created or connected.
    pub fn new(adapter: &Arc<Adapter>, options: EngineOptions) -> Result<Self> {
        let create = |dma| {
            let shape = Shape {
                entries: ENTRIES,
                reads: 1,
                dma,
                receives: 0,
                wakes: false,
            };
            QueuePair::create(adapter, shape)
        };
        let with_dma = options.dma.then(|| create(true));
        let (queue, transport) = match with_dma {
            Some(Ok(queue)) => (queue, Transport::Dma),
            Some(Err(error)) if !is_unsupported(&error) => return Err(error),
            Some(Err(_)) | None => (create(false)?, Transport::Rdma),
        };
        // Only RDMA uses the connection, but the DMA engine takes requests only of a queue in the working state.
        queue.connect(queue.number())?;
        Ok(Self {
            queue,
            transport,
            limit: options.limit,
        })
    }

    /// How bytes move.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Copies the first `len` bytes of the buffer from or to the host's memory at `remote`, which `alias` refers to.
    /// Returns when the copy is complete.
    ///
    /// # Errors
    /// `len` is beyond the buffer; nothing happened. After any other error the engine is unusable: drop it.
    pub fn copy(
        &mut self,
        direction: Direction,
        buffer: &mut Buffer,
        (alias, remote): (Lkey, VirtAddr),
        len: usize,
    ) -> Result<()> {
        let (addr, bytes, lkey) = buffer.parts();
        let length = u32::try_from(len).ok().filter(|_| len <= bytes);
        let length = length.ok_or(VerbsError::TooLong { length: len, bytes })?;
        let local = ibv_sge { addr, length, lkey };
        match self.transport {
            Transport::Dma => self.post_dma(direction, local, (alias, remote))?,
            Transport::Rdma => self.post_rdma(direction, local, (alias, remote))?,
        }
        self.queue.wait(self.limit)
    }

    fn post_dma(
        &self,
        direction: Direction,
        local: ibv_sge,
        (alias, remote): (Lkey, VirtAddr),
    ) -> Result<()> {
        const BUILT: &str = "created with the operations of work requests and with memcpy";
        let (near, far) = ((local.lkey, local.addr), (alias.raw(), remote.get()));
        let ((to, to_addr), (from, from_addr)) = match direction {
            Direction::FromHost => (near, far),
            Direction::ToHost => (far, near),
        };
        // SAFETY: the queue pair is live and was created with extended operations.
        let ex = unsafe { self.queue.lib().ibv_qp_to_qp_ex(self.queue.raw()) };
        // SAFETY: as above, by libmlx5.
        let dv = unsafe { self.queue.lib().mlx5dv_qp_ex_from_ibv_qp_ex(ex) };
        // SAFETY: the queue pair is live; its operations were set when it was created.
        let (start, complete) = unsafe { ((*ex).wr_start, (*ex).wr_complete) };
        // SAFETY: as above.
        let memcpy = unsafe { (*dv).wr_memcpy }.expect(BUILT);
        let (start, complete) = (start.expect(BUILT), complete.expect(BUILT));
        // SAFETY: only this thread posts, because the caller holds the engine exclusively.
        unsafe { start(ex) };
        // SAFETY: a plain field of the live queue pair.
        unsafe { (*ex).wr_flags = IBV_SEND_SIGNALED };
        // SAFETY: the buffer is registered and nobody accesses it during the copy; the adapter checks the alias.
        unsafe { memcpy(dv, to, to_addr, from, from_addr, local.length as usize) };
        // SAFETY: started above.
        let errno = unsafe { complete(ex) };
        check("ibv_wr_complete", errno)
    }

    fn post_rdma(
        &self,
        direction: Direction,
        mut local: ibv_sge,
        (alias, remote): (Lkey, VirtAddr),
    ) -> Result<()> {
        let mut request = ibv_send_wr {
            sg_list: &raw mut local,
            num_sge: 1,
            opcode: match direction {
                Direction::FromHost => IBV_WR_RDMA_READ,
                Direction::ToHost => IBV_WR_RDMA_WRITE,
            },
            send_flags: IBV_SEND_SIGNALED,
            ..ibv_send_wr::default()
        };
        request.wr.rdma.remote_addr = remote.get();
        request.wr.rdma.rkey = alias.raw();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live; the buffer is registered and nobody accesses it during the copy.
        let errno = unsafe { ibv_post_send(self.queue.raw(), &raw mut request, &raw mut bad) };
        check("ibv_post_send", errno)
    }
}

/// Whether the adapter does not have the DMA engine for this type of queue.
fn is_unsupported(error: &VerbsError) -> bool {
    matches!(error, VerbsError::Call { source, .. } if source.kind() == io::ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_engine_falls_back_to_rdma() {
        let check = |source: io::Error, expect: bool| {
            let call = "mlx5dv_create_qp";
            let text = source.to_string();
            assert_eq!(
                is_unsupported(&VerbsError::Call { call, source }),
                expect,
                "{text}"
            );
        };
        // EOPNOTSUPP, what libmlx5 answers; ENOMEM and EINVAL are faults.
        check(io::Error::from_raw_os_error(95), true);
        check(io::Error::from_raw_os_error(12), false);
        check(io::Error::from_raw_os_error(22), false);
        let limit = Duration::from_secs(1);
        assert!(!is_unsupported(&VerbsError::Late { limit }));
    }
}
