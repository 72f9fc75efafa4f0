//! Both ends of a queue: requests and completions in the rings by this crate, or through libmlx5.

use std::ptr::NonNull;

use mlx5_prm::cqe::Cqe;
use mlx5dv_sys::{Mlx5Lib, ibv_cq, ibv_qp, ibv_qp_ex, mlx5dv_qp_ex};

use super::cq_ring::CqRing;
use super::receive;
use super::send_ring::SendRing;
use super::send_verbs::PostSend;
use super::wqe::{Request, Slot, Wqe};

/// The code that writes requests into the ring and rings the doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Post {
    /// This crate, if the queue pair has its own doorbell register, or one that accepts single
    /// stores only; otherwise libmlx5.
    #[default]
    Raw,
    /// libmlx5 (`mlx5dv_wr_raw_wqe`), with its locks. Slower because of the calls. If libmlx5 is too
    /// old for raw work requests, as [`Post::Send`].
    Verbs,
    /// libmlx5 (`ibv_post_send`). It has no request for [`Form::List`](super::Form::List).
    Send,
}

/// Both ends of one queue pair. A queue that libmlx5 posts to must also be polled through libmlx5: libmlx5
/// learns from completions which part of the ring is free.
#[derive(Debug)]
#[repr(C, u32)]
pub(super) enum Ends {
    Rings {
        sender: SendRing,
        completions: CqRing,
    },
    Verbs(VerbsSend),
    Send(Box<PostSend>),
}

impl Ends {
    pub(super) fn post(&self) -> Post {
        match self {
            Self::Rings { .. } => Post::Raw,
            Self::Verbs(_) => Post::Verbs,
            Self::Send(_) => Post::Send,
        }
    }

    /// Begins a chain.
    #[inline]
    pub(super) fn begin(&mut self) {
        match self {
            Self::Rings { .. } => {}
            Self::Verbs(verbs) => verbs.begin(),
            Self::Send(send) => send.begin(),
        }
    }

    /// Adds a request whose first building block has the number `at`. `wqe` is a buffer for its
    /// encoding.
    ///
    /// # Errors
    /// If the request is too long, or libmlx5 has no such request.
    #[inline]
    pub(super) fn add<R: Request>(
        &mut self,
        at: u64,
        request: &R,
        slot: Slot,
        wqe: &mut Wqe,
    ) -> Result<(), &'static str> {
        const TOO_LONG: &str = "a bind of so many list entries";
        match self {
            Self::Rings { sender, .. } => {
                if !request.write(slot, wqe) {
                    return Err(TOO_LONG);
                }
                sender.write(at, wqe);
            }
            Self::Verbs(verbs) => {
                if !request.write(slot, wqe) {
                    return Err(TOO_LONG);
                }
                verbs.write(at, wqe);
            }
            Self::Send(send) => {
                let verbs = request.verbs().ok_or("this bind by ibv_post_send")?;
                send.add(at, verbs, slot.signaled);
            }
        }
        Ok(())
    }

    /// Aborts the chain: none of its requests is posted.
    pub(super) fn abort(&mut self) {
        // The next chain overwrites the entries in the ring, or the list of requests.
        if let Self::Verbs(verbs) = self {
            verbs.abort();
        }
    }

    /// Tells the adapter that all building blocks below the number `end` are written. `last` is the
    /// last entry. After an error no request of the chain is posted.
    #[inline]
    pub(super) fn commit(&mut self, end: u64, last: &Wqe) -> Result<(), i32> {
        match self {
            Self::Rings { sender, .. } => {
                sender.ring(end, last);
                Ok(())
            }
            Self::Verbs(verbs) => verbs.commit(),
            Self::Send(send) => send.commit(),
        }
    }

    /// The next completion, if there is one.
    ///
    /// # Safety
    /// `cq` is the live completion queue of this queue pair, and no other code polls it.
    #[inline]
    pub(super) unsafe fn pop(&mut self, cq: NonNull<ibv_cq>) -> Option<Cqe> {
        match self {
            Self::Rings { completions, .. } => completions.pop(),
            Self::Verbs(_) | Self::Send(_) => {
                // SAFETY: the caller's promise.
                unsafe { receive::poll(cq) }.map(|wc| receive::to_cqe(&wc))
            }
        }
    }
}

/// A queue pair whose entries libmlx5 copies to the ring.
#[derive(Debug)]
pub(super) struct VerbsSend {
    qp: NonNull<ibv_qp_ex>,
    mlx5: NonNull<mlx5dv_qp_ex>,
}

// SAFETY: libibverbs objects belong to the process; `&mut self` on every method ensures that one
// thread at a time posts.
unsafe impl Send for VerbsSend {}

impl VerbsSend {
    /// The queue pair's extended form, or the reason why it has none.
    ///
    /// # Safety
    /// `qp` is live, was created by `lib` with `MLX5DV_QP_EX_WITH_RAW_WQE`, outlives this value,
    /// and no other code posts to it.
    pub(super) unsafe fn new(lib: &Mlx5Lib, qp: NonNull<ibv_qp>) -> Result<Self, &'static str> {
        const NONE: &str = "a queue pair for raw work requests";
        // SAFETY: the caller's promise.
        let extended = unsafe { lib.ibv_qp_to_qp_ex(qp.as_ptr()) };
        let extended = NonNull::new(extended).ok_or(NONE)?;
        // SAFETY: a queue pair of libmlx5, as the caller promises.
        let mlx5 = unsafe { lib.mlx5dv_qp_ex_from_ibv_qp_ex(extended.as_ptr()) };
        let mlx5 = NonNull::new(mlx5).ok_or(NONE)?;
        // SAFETY: both are live.
        let calls = unsafe { (extended.as_ref(), mlx5.as_ref()) };
        let all = calls.0.wr_start.is_some()
            && calls.0.wr_abort.is_some()
            && calls.0.wr_complete.is_some()
            && calls.1.wr_raw_wqe.is_some();
        match all {
            true => Ok(Self { qp: extended, mlx5 }),
            false => Err(NONE),
        }
    }

    fn begin(&mut self) {
        // SAFETY: live, by the contract of `new`.
        if let Some(start) = unsafe { self.qp.as_ref() }.wr_start {
            // SAFETY: the operation of this queue pair.
            unsafe { start(self.qp.as_ptr()) };
        }
    }

    fn write(&mut self, at: u64, wqe: &Wqe) {
        // SAFETY: live, by the contract of `new`; libmlx5 keeps the number for the completion.
        unsafe { self.qp.as_mut() }.wr_id = at;
        // SAFETY: as above.
        if let Some(raw) = unsafe { self.mlx5.as_ref() }.wr_raw_wqe {
            // SAFETY: the operation of this queue pair; the entry has the length in its control
            // segment.
            unsafe { raw(self.mlx5.as_ptr(), wqe.as_ptr().cast()) };
        }
    }

    fn abort(&mut self) {
        // SAFETY: live, by the contract of `new`.
        if let Some(abort) = unsafe { self.qp.as_ref() }.wr_abort {
            // SAFETY: the operation of this queue pair.
            unsafe { abort(self.qp.as_ptr()) };
        }
    }

    fn commit(&mut self) -> Result<(), i32> {
        // SAFETY: live, by the contract of `new`.
        match unsafe { self.qp.as_ref() }.wr_complete {
            // SAFETY: the operation of this queue pair.
            Some(complete) => match unsafe { complete(self.qp.as_ptr()) } {
                0 => Ok(()),
                errno => Err(errno),
            },
            None => Err(libc::EOPNOTSUPP),
        }
    }
}
