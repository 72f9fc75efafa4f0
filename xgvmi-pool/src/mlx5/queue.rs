//! One queue pair for UMR work requests and its completion queue, from creation to its end.
//!
//! Posters take a short lock to write their chain and ring once. Whoever waits looks at a counter;
//! one of those who wait at a time reads the completion queue for all. The first error ends the
//! queue: it is never mended but replaced, so that a completion that comes late can only count
//! requests of the queue that they were posted to.

use std::fmt;
use std::hint;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mlx5dv_sys::{
    IBV_QPT_RC, MLX5DV_OBJ_CQ, MLX5DV_OBJ_QP, Mlx5Lib, ibv_context, ibv_cq, ibv_pd, ibv_qp,
    ibv_qp_init_attr, mlx5dv_cq, mlx5dv_obj, mlx5dv_qp,
};

use super::connect::Loopback;
use super::cq_ring::CqRing;
use super::progress::{Progress, Ticket};
use super::send_ring::{SendRing, low16};
use super::wqe::{self, Slot, WQEBBS_MAX, Wqe};
use crate::device::UmrOp;
use crate::error::{ChainError, DeviceError, Rest};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// Looks at the counter between two looks at the clock: about a microsecond, the time of a request.
const SPINS: u32 = 64;

/// Building blocks that libmlx5 sets aside for each work request of a reliable connection: control,
/// UMR control, mkey context and one aligned list (`sq_overhead` of `providers/mlx5/verbs.c`).
const WQEBBS_PER_REQUEST: u32 = 3;

/// A queue pair, its completion queue, and what was posted and done.
#[derive(Debug)]
pub(super) struct UmrQueue {
    lib: Arc<Mlx5Lib>,
    qpn: u32,
    /// Building blocks that may be posted and not done.
    capacity: u32,
    poll_timeout: Duration,
    producer: Mutex<Option<Producer>>,
    completions: Mutex<Option<Completions>>,
    progress: Progress,
    forgotten: AtomicBool,
}

#[derive(Debug)]
struct Producer {
    ring: SendRing,
    /// Number of the next building block. 64 bits: it never comes round.
    next: u64,
    qp: Handle<ibv_qp>,
}

#[derive(Debug)]
struct Completions {
    ring: CqRing,
    cq: Handle<ibv_cq>,
}

/// A verbs object, which may be used from any thread.
struct Handle<T>(NonNull<T>);

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// SAFETY: libibverbs objects belong to the process and are safe to use from any thread.
unsafe impl<T> Send for Handle<T> {}

impl UmrQueue {
    /// Creates a queue of about `wqebbs` building blocks and connects it to itself.
    ///
    /// # Errors
    /// If a step is refused; then nothing is left.
    ///
    /// # Safety
    /// `context` and `pd` are live, made by `lib`, and outlive the queue's tear-down.
    pub(super) unsafe fn create(
        lib: &Arc<Mlx5Lib>,
        context: NonNull<ibv_context>,
        pd: NonNull<ibv_pd>,
        loopback: &Loopback,
        wqebbs: u32,
        poll_timeout: Duration,
    ) -> Result<Self, DeviceError> {
        // A completion for each request in the ring, should all of them fail; a request takes two
        // building blocks at least.
        let entries = i32::try_from(wqebbs).unwrap_or(i32::MAX);
        // SAFETY: the context is live; a queue without channel needs nothing else.
        let cq = unsafe {
            lib.ibv_create_cq(
                context.as_ptr(),
                entries,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            )
        };
        let cq = NonNull::new(cq).ok_or_else(|| refused("ibv_create_cq"))?;
        let mut init = ibv_qp_init_attr {
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            qp_type: IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        init.cap.max_send_wr = wqebbs.div_ceil(WQEBBS_PER_REQUEST);
        init.cap.max_send_sge = 1;
        // SAFETY: the domain is live, and so is the completion queue that the attributes name.
        let qp = unsafe { lib.ibv_create_qp(pd.as_ptr(), &raw mut init) };
        let Some(qp) = NonNull::new(qp) else {
            let error = refused("ibv_create_qp");
            // SAFETY: just created, and nothing uses it.
            unsafe { lib.ibv_destroy_cq(cq.as_ptr()) };
            return Err(error);
        };
        // SAFETY: both are live, new, and nobody else's.
        let opened = unsafe { Self::open(lib, qp, cq, poll_timeout) };
        let queue = match opened {
            Ok(queue) => queue,
            Err(what) => {
                // SAFETY: just created, and nothing uses it.
                unsafe { lib.ibv_destroy_qp(qp.as_ptr()) };
                // SAFETY: as above; its queue pair is gone.
                unsafe { lib.ibv_destroy_cq(cq.as_ptr()) };
                return Err(DeviceError::Unsupported {
                    what: what.to_owned(),
                });
            }
        };
        // SAFETY: a new queue pair is in the state RESET. If it stays there, dropping the queue
        // destroys both.
        unsafe { loopback.connect(lib, qp) }?;
        Ok(queue)
    }

    /// # Safety
    /// Both queues are live, new, made by `lib`, and from now on used through this alone.
    unsafe fn open(
        lib: &Arc<Mlx5Lib>,
        qp: NonNull<ibv_qp>,
        cq: NonNull<ibv_cq>,
        poll_timeout: Duration,
    ) -> Result<Self, &'static str> {
        let mut raw_qp = mlx5dv_qp::default();
        let mut raw_cq = mlx5dv_cq::default();
        let mut obj = mlx5dv_obj::default();
        obj.qp.in_ = qp.as_ptr();
        obj.qp.out = &raw mut raw_qp;
        obj.cq.in_ = cq.as_ptr();
        obj.cq.out = &raw mut raw_cq;
        let kinds = u64::from(MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ);
        // SAFETY: the objects are live and of the kinds named, and the outputs are theirs.
        if unsafe { lib.mlx5dv_init_obj(&raw mut obj, kinds) } != 0 {
            return Err("raw access to queues (mlx5dv_init_obj)");
        }
        // SAFETY: libmlx5 has just described this queue, which nobody else posts to.
        let send = unsafe { SendRing::new(&raw_qp) }?;
        // SAFETY: libmlx5 has just described this queue, which nobody else polls.
        let completions = unsafe { CqRing::new(&raw_cq) }?;
        // No more requests than there are completions for, at two building blocks or more each.
        let capacity = send.capacity().min(raw_cq.cqe_cnt.saturating_mul(2));
        if (capacity as usize) < 2 * WQEBBS_MAX {
            return Err("a send queue of so few building blocks");
        }
        // SAFETY: the queue pair is live.
        let qpn = unsafe { (*qp.as_ptr()).qp_num };
        Ok(Self {
            lib: Arc::clone(lib),
            qpn,
            capacity,
            poll_timeout,
            producer: Mutex::new(Some(Producer {
                ring: send,
                next: 0,
                qp: Handle(qp),
            })),
            completions: Mutex::new(Some(Completions {
                ring: completions,
                cq: Handle(cq),
            })),
            progress: Progress::default(),
            forgotten: AtomicBool::new(false),
        })
    }

    /// True once the queue carries nothing any more.
    pub(super) fn has_failed(&self) -> bool {
        self.progress.failure().is_some()
    }

    /// Carries out a chain and returns when its last request is done.
    ///
    /// # Errors
    /// As [`MkeyDevice::run`](crate::MkeyDevice::run).
    pub(super) fn run(&self, chain: &[UmrOp<'_>]) -> Result<(), ChainError> {
        if chain.is_empty() {
            return Ok(());
        }
        let not_posted = |source| ChainError {
            done: 0,
            rest: Rest::NotDone,
            source,
        };
        let ticket = self.post(chain).map_err(not_posted)?;
        self.wait(ticket, chain)
    }

    fn post(&self, chain: &[UmrOp<'_>]) -> Result<Ticket, DeviceError> {
        let wqebbs = self.measure(chain)?;
        let mut clock = Clock::new(self.poll_timeout);
        loop {
            if let Some(ticket) = self.try_post(chain, wqebbs)? {
                return Ok(ticket);
            }
            // The ring is full of other chains: help to get them out of the way.
            self.reap();
            if clock.ran_out() {
                let request = format!("room for {wqebbs} building blocks");
                return Err(DeviceError::TimedOut {
                    request,
                    limit: self.poll_timeout,
                });
            }
        }
    }

    /// Building blocks of a chain, if it fits.
    fn measure(&self, chain: &[UmrOp<'_>]) -> Result<u32, DeviceError> {
        let mut sum = 0;
        for op in chain {
            let wqebbs = wqe::wqebbs(op);
            if wqebbs > WQEBBS_MAX {
                return Err(DeviceError::Unsupported {
                    what: format!("a request as long as {op:?}"),
                });
            }
            sum += wqebbs;
        }
        // The last chain that is done may still count with all but one of its building blocks.
        let most = self.capacity as usize - WQEBBS_MAX;
        match u32::try_from(sum) {
            Ok(wqebbs) if sum <= most => Ok(wqebbs),
            _ => Err(DeviceError::Unsupported {
                what: format!("a chain of {sum} building blocks, the queue takes {most}"),
            }),
        }
    }

    /// Writes the chain and rings, if there is room.
    fn try_post(&self, chain: &[UmrOp<'_>], wqebbs: u32) -> Result<Option<Ticket>, DeviceError> {
        let mut producer = lock(&self.producer);
        if let Some(error) = self.progress.failure() {
            let reason = error.to_string();
            return Err(DeviceError::QueueDown { reason });
        }
        let Some(producer) = producer.as_mut() else {
            return Err(DeviceError::Closed);
        };
        let first = producer.next;
        let end = first + u64::from(wqebbs);
        if end - self.progress.done() > u64::from(self.capacity) {
            return Ok(None);
        }
        let mut last = first;
        for (position, op) in chain.iter().enumerate() {
            last = producer.next;
            let signaled = position + 1 == chain.len();
            let slot = Slot {
                index: low16(last),
                qpn: self.qpn,
                signaled,
            };
            let Some(wqe) = Wqe::new(op, slot) else {
                // Nothing was rung for: the blocks written are overwritten by the next chain.
                producer.next = first;
                return Err(DeviceError::Unsupported {
                    what: format!("a region of {op:?}"),
                });
            };
            producer.ring.write(last, &wqe);
            producer.next += wqe.blocks().len() as u64;
            if signaled {
                assert_eq!(producer.next, end, "a chain takes what was measured");
                producer.ring.ring(end, &wqe);
            }
        }
        Ok(Some(Ticket { first, last }))
    }

    fn wait(&self, ticket: Ticket, chain: &[UmrOp<'_>]) -> Result<(), ChainError> {
        let mut clock = Clock::new(self.poll_timeout);
        loop {
            if let Some(outcome) = self.progress.outcome(ticket, chain) {
                return outcome;
            }
            self.reap();
            if clock.ran_out() {
                let request = format!("{} requests on queue pair {:#x}", chain.len(), self.qpn);
                let limit = self.poll_timeout;
                self.progress
                    .give_up(DeviceError::TimedOut { request, limit });
            }
        }
    }

    /// Reads what completions there are, unless another thread is at it.
    fn reap(&self) {
        let Ok(mut completions) = self.completions.try_lock() else {
            hint::spin_loop();
            return;
        };
        let Some(completions) = completions.as_mut() else {
            return;
        };
        while let Some(cqe) = completions.ring.pop() {
            self.progress.count(&cqe, self.qpn);
        }
    }

    /// Ends the queue for good: when this returns without error, the adapter carries out none of its
    /// requests any more.
    ///
    /// # Errors
    /// If the queue pair is not destroyed. It may be tried again.
    pub(super) fn tear_down(&self) -> Result<(), DeviceError> {
        self.progress.give_up(DeviceError::Closed);
        // Under the locks of those who use the memory that goes with it.
        let mut producer = lock(&self.producer);
        if let Some(Producer { qp, .. }) = producer.as_ref() {
            // SAFETY: live until here, and nobody writes to its ring any more.
            let errno = unsafe { self.lib.ibv_destroy_qp(qp.0.as_ptr()) };
            if errno != 0 {
                let reason = format!("ibv_destroy_qp of {:#x}: errno {errno}", self.qpn);
                return Err(DeviceError::QueueDown { reason });
            }
            *producer = None;
        }
        drop(producer);
        let mut completions = lock(&self.completions);
        if let Some(Completions { cq, .. }) = completions.take() {
            // SAFETY: live until here, its queue pair is gone, and nobody reads it any more.
            let errno = unsafe { self.lib.ibv_destroy_cq(cq.0.as_ptr()) };
            if errno != 0 {
                // A completion queue without queue pair does no harm; it goes with the context.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes dropping the queue call nobody: in a forked child it is the parent's, and its locks may
    /// be held by threads that the child does not have.
    pub(super) fn forget(&self) {
        self.forgotten.store(true, Ordering::Relaxed);
    }

    /// Requests, binds of one entry each, that one chain may hold.
    pub(super) fn chain_ops_max(wqebbs: u32) -> u32 {
        let largest = u32::try_from(WQEBBS_MAX).unwrap_or(u32::MAX);
        wqebbs.saturating_sub(largest) / WQEBBS_PER_REQUEST
    }
}

impl Drop for UmrQueue {
    fn drop(&mut self) {
        if !self.forgotten.load(Ordering::Relaxed) {
            // What cannot be destroyed goes with the context.
            let _left = self.tear_down();
        }
    }
}

/// Tells when a wait is over, and lets others have the processor.
struct Clock {
    limit: Duration,
    start: Option<Instant>,
    spins: u32,
}

impl Clock {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            start: None,
            spins: 0,
        }
    }

    /// Call once a turn.
    fn ran_out(&mut self) -> bool {
        hint::spin_loop();
        self.spins += 1;
        if self.spins < SPINS {
            return false;
        }
        self.spins = 0;
        match self.start {
            // The first microsecond is not counted.
            None => {
                self.start = Some(Instant::now());
                false
            }
            Some(start) => {
                // Somebody else on this processor may be who we wait for.
                thread::yield_now();
                start.elapsed() > self.limit
            }
        }
    }
}

fn refused(call: &'static str) -> DeviceError {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    DeviceError::QueueDown {
        reason: format!("{call}: errno {errno}"),
    }
}
