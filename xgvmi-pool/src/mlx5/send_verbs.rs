//! Posting by `ibv_post_send`, for a libmlx5 without raw work requests.
//!
//! libmlx5 encodes a bind of a type 1 memory window and an invalidation in the same way for stock
//! UCX. It has no request for the list form, so UCX itself exports memory that needs it.

use std::ptr::{self, NonNull};

use mlx5dv_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_MW_TYPE_1,
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, ibv_mr,
    ibv_mw, ibv_post_send, ibv_qp, ibv_send_wr, ibv_sge,
};

use crate::key::{Lkey, Mkey, VirtAddr};

/// A request that `ibv_post_send` can express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerbsRequest {
    /// Binds the key to `len` bytes at `addr` of the registration with the key `lkey`.
    Bind {
        mkey: Mkey,
        lkey: Lkey,
        addr: VirtAddr,
        len: u32,
    },
    /// Invalidates the key.
    Invalidate { mkey: Mkey },
    /// Reads `len` bytes at `from` through the key, to `to`.
    Read {
        mkey: Mkey,
        from: VirtAddr,
        lkey: Lkey,
        to: VirtAddr,
        len: u32,
    },
}

/// A request with the objects that it points to. The pointers are set when the chain is complete.
struct Entry {
    wr: ibv_send_wr,
    sge: ibv_sge,
    mw: ibv_mw,
    mr: ibv_mr,
}

impl Entry {
    fn new(at: u64, request: VerbsRequest, signaled: bool) -> Self {
        let mut entry = Self {
            wr: ibv_send_wr {
                wr_id: at,
                send_flags: if signaled { IBV_SEND_SIGNALED } else { 0 },
                ..ibv_send_wr::default()
            },
            sge: ibv_sge::default(),
            mw: ibv_mw::default(),
            mr: ibv_mr::default(),
        };
        match request {
            VerbsRequest::Bind {
                mkey,
                lkey,
                addr,
                len,
            } => {
                entry.wr.opcode = IBV_WR_BIND_MW;
                entry.wr.send_flags |= IBV_SEND_INLINE;
                entry.mw.type_ = IBV_MW_TYPE_1;
                // libmlx5 writes the window's key to the immediate field, and the new key to the
                // key's context. Only the tag may differ.
                entry.mw.rkey = mkey.raw();
                entry.wr.__bindgen_anon_2.bind_mw.rkey = mkey.raw();
                entry.mr.lkey = lkey.raw();
                // SAFETY: all bytes of the union are zero, which is a valid value.
                let info = unsafe { &mut entry.wr.__bindgen_anon_2.bind_mw.bind_info };
                info.addr = addr.get();
                info.length = len.into();
                info.mw_access_flags =
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
            }
            VerbsRequest::Invalidate { mkey } => {
                entry.wr.opcode = IBV_WR_LOCAL_INV;
                entry.wr.__bindgen_anon_1.invalidate_rkey = mkey.raw();
            }
            VerbsRequest::Read {
                mkey,
                from,
                lkey,
                to,
                len,
            } => {
                entry.wr.opcode = IBV_WR_RDMA_READ;
                entry.wr.num_sge = 1;
                entry.wr.wr.rdma.remote_addr = from.get();
                entry.wr.wr.rdma.rkey = mkey.raw();
                entry.sge = ibv_sge {
                    addr: to.get(),
                    length: len,
                    lkey: lkey.raw(),
                };
            }
        }
        entry
    }

    /// Points the request to its objects and to the next request.
    fn link(&mut self, next: *mut ibv_send_wr) {
        self.wr.next = next;
        match self.wr.opcode {
            IBV_WR_BIND_MW => {
                self.wr.__bindgen_anon_2.bind_mw.mw = &raw mut self.mw;
                self.wr.__bindgen_anon_2.bind_mw.bind_info.mr = &raw mut self.mr;
            }
            IBV_WR_RDMA_READ => self.wr.sg_list = &raw mut self.sge,
            _ => {}
        }
    }
}

/// The sender of one queue pair.
pub(super) struct PostSend {
    qp: NonNull<ibv_qp>,
    /// The chain, with space for the longest one.
    chain: Vec<Entry>,
}

impl std::fmt::Debug for PostSend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("PostSend");
        shown.field("qp", &self.qp);
        shown.field("requests", &self.chain.len());
        shown.finish_non_exhaustive()
    }
}

// SAFETY: libibverbs objects belong to the process; `&mut self` on every method ensures that one
// thread at a time posts. Pointers in the chain are set and used within one call.
unsafe impl Send for PostSend {}

impl PostSend {
    /// The sender for chains of up to `requests` requests.
    ///
    /// # Safety
    /// `qp` is live, outlives this value, and no other code posts to it.
    pub(super) unsafe fn new(qp: NonNull<ibv_qp>, requests: usize) -> Self {
        let chain = Vec::with_capacity(requests);
        Self { qp, chain }
    }

    pub(super) fn begin(&mut self) {
        self.chain.clear();
    }

    /// Adds a request with the number `at`.
    pub(super) fn add(&mut self, at: u64, request: VerbsRequest, signaled: bool) {
        self.chain.push(Entry::new(at, request, signaled));
    }

    /// Posts the chain. After an error no request of it is posted: the queue has space for all, so
    /// libmlx5 can refuse only the first one.
    pub(super) fn commit(&mut self) -> Result<(), i32> {
        let mut next = ptr::null_mut();
        for entry in self.chain.iter_mut().rev() {
            entry.link(next);
            next = &raw mut entry.wr;
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live, and the requests and their objects are in the chain.
        match unsafe { ibv_post_send(self.qp.as_ptr(), next, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }
}
