//! Transfers of several ranges at once: chains of RDMA requests.

use crate::adapter::Adapter;
use crate::direction::Direction;
use crate::error::{Result, check};
use crate::memory::Registered;
use crate::queue_pair::{QueuePair, Shape};
use mlx5dv_sys::*;
use std::num::NonZeroU16;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;
use xgvmi_pool::{Lkey, VirtAddr};

/// Maximum bytes of one request, below the adapter's 2 GiB.
const REQUEST_BYTES_MAX: usize = 1 << 30;
/// Reads in flight. Every mlx5 device supports 16.
const READS_MAX: u8 = 16;

/// Settings of a [`Mover`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoverOptions {
    /// Requests of a chain, which has one doorbell and one completion. More requests make more chains.
    pub chain_max: NonZeroU16,
    /// Time limit of one chain.
    pub limit: Duration,
}

/// Two queue pairs of this function, connected to each other. A request of the first one goes through the second one,
/// in the function that owns the alias.
#[derive(Debug)]
pub struct Mover {
    requester: QueuePair,
    /// The responder of the requests.
    _responder: QueuePair,
    options: MoverOptions,
}

impl Mover {
    /// Creates and connects the queue pairs.
    ///
    /// # Errors
    /// One of them cannot be created or connected.
    pub fn connect(adapter: &Arc<Adapter>, options: MoverOptions) -> Result<Self> {
        let shape = Shape {
            entries: options.chain_max.get().into(),
            reads: READS_MAX,
            dma: false,
            receives: 0,
            wakes: false,
        };
        let create = || QueuePair::create(adapter, shape);
        let (requester, responder) = (create()?, create()?);
        requester.connect(responder.number())?;
        responder.connect(requester.number())?;
        Ok(Self {
            requester,
            _responder: responder,
            options,
        })
    }

    /// Transfers pieces between registered memory and the host's memory. Returns when all are complete.
    ///
    /// # Errors
    /// The adapter refuses an access or does not answer. Some pieces may be complete. The queue pairs are unusable: drop
    /// the value.
    ///
    /// # Safety
    /// Each piece's local range is inside the registered memory, which nobody accesses during the call.
    pub unsafe fn transfer(
        &mut self,
        direction: Direction,
        memory: &Registered,
        pieces: &[Piece],
    ) -> Result<()> {
        let requests: Vec<Piece> = pieces.iter().flat_map(Piece::split).collect();
        for chain in requests.chunks(self.options.chain_max.get().into()) {
            // SAFETY: the caller's promise.
            unsafe { self.post(direction, memory, chain) }?;
            self.requester.wait(self.options.limit)?;
        }
        Ok(())
    }

    /// Posts a chain. Its last request has a completion.
    ///
    /// # Safety
    /// As for [`Self::transfer`], until the completion.
    unsafe fn post(
        &self,
        direction: Direction,
        memory: &Registered,
        chain: &[Piece],
    ) -> Result<()> {
        let mut sges: Vec<ibv_sge> = chain
            .iter()
            .map(|piece| ibv_sge {
                addr: piece.local as u64,
                length: u32::try_from(piece.len).expect("at most 1 GiB"),
                lkey: memory.lkey(),
            })
            .collect();
        let mut requests: Vec<ibv_send_wr> = chain
            .iter()
            .zip(&mut sges)
            .map(|(piece, sge)| {
                let mut request = ibv_send_wr {
                    sg_list: ptr::from_mut(sge),
                    num_sge: 1,
                    opcode: match direction {
                        Direction::FromHost => IBV_WR_RDMA_READ,
                        Direction::ToHost => IBV_WR_RDMA_WRITE,
                    },
                    ..ibv_send_wr::default()
                };
                request.wr.rdma.remote_addr = piece.remote.get();
                request.wr.rdma.rkey = piece.alias.raw();
                request
            })
            .collect();
        for index in 1..requests.len() {
            let next = &raw mut requests[index];
            requests[index - 1].next = next;
        }
        if let Some(last) = requests.last_mut() {
            last.send_flags = IBV_SEND_SIGNALED;
        }
        let mut bad = ptr::null_mut();
        let qp = self.requester.raw();
        // SAFETY: the queue pair is live and has space for a chain; the list lives through the call; the caller
        // vouches for the memory until the completion.
        let errno = unsafe { ibv_post_send(qp, requests.as_mut_ptr(), &raw mut bad) };
        check("ibv_post_send", errno)
    }
}

/// A range of registered memory and its counterpart in the host's memory, which `alias` refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First byte of this process.
    pub local: *mut u8,
    /// Alias of the host's key.
    pub alias: Lkey,
    /// First byte of the host.
    pub remote: VirtAddr,
    /// Bytes. Nothing happens for 0.
    pub len: usize,
}

impl Piece {
    /// The piece in parts that a request can transfer.
    fn split(&self) -> impl Iterator<Item = Self> {
        let whole = *self;
        (0..whole.len)
            .step_by(REQUEST_BYTES_MAX)
            .map(move |at| Self {
                local: whole.local.wrapping_add(at),
                remote: VirtAddr::new(whole.remote.get() + at as u64),
                len: (whole.len - at).min(REQUEST_BYTES_MAX),
                ..whole
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: usize = 1 << 32;
    const REMOTE: u64 = 1 << 40;

    /// Length of each part; the parts follow each other without a gap on both sides.
    fn split(len: usize) -> Vec<usize> {
        let piece = Piece {
            local: ptr::without_provenance_mut(LOCAL),
            alias: Lkey::from_raw(0x1234),
            remote: VirtAddr::new(REMOTE),
            len,
        };
        let mut at = 0;
        let parts = piece.split().map(|part| {
            assert_eq!(part.local.addr(), LOCAL + at);
            assert_eq!(part.remote.get(), REMOTE + at as u64);
            assert_eq!(part.alias, piece.alias);
            at += part.len;
            part.len
        });
        let parts = parts.collect();
        assert_eq!(at, len, "every byte once");
        parts
    }

    #[test]
    fn pieces_are_split_at_the_limit_of_a_request() {
        const MAX: usize = REQUEST_BYTES_MAX;
        assert!(split(0).is_empty());
        assert_eq!(split(1), [1]);
        assert_eq!(split(MAX), [MAX]);
        assert_eq!(split(MAX + 1), [MAX, 1]);
        assert_eq!(split(3 * MAX), [MAX, MAX, MAX]);
    }
}
