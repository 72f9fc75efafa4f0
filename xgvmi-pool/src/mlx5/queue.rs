//! A queue pair for UMR work requests with its completion queue, from creation to destruction.
//!
//! Posting threads take a short lock to write their chain, and ring once. The holder of the lock also
//! polls the completion queue, for all threads. A thread that posts a single request keeps the lock
//! until its completion, unless another thread waits for the lock. Other waiting threads read a
//! counter. The first error ends the
//! queue. The device replaces a failed queue and never repairs it, so a late completion can count
//! only for requests of its own queue.

use std::fmt;
use std::hint;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mlx5dv_sys::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPT_RC, MLX5DV_OBJ_CQ, MLX5DV_OBJ_QP,
    MLX5DV_QP_EX_WITH_RAW_WQE, MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS, Mlx5Lib, ibv_context,
    ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, mlx5dv_cq,
    mlx5dv_obj, mlx5dv_qp, mlx5dv_qp_init_attr,
};

use super::connect::Loopback;
use super::cq_ring::CqRing;
use super::progress::{Progress, Single, Ticket};
use super::receive::Receiver;
use super::register::Register;
use super::send::{Post, Sender, VerbsSend};
use super::send_ring::{SendRing, low16};
use super::send_verbs::PostSend;
use super::short_lock::{Held, ShortLock};
use super::template::Templates;
use super::wqe::{Request, Slot, WQEBBS_MAX, Wqe};
use crate::error::{ChainError, DeviceError, Rest};
use crate::key::Mkey;
use crate::region::Region;
use crate::sync::{AtomicBool, Ordering};

/// Reads of the counter between two reads of the clock: about a microsecond, the time of a request.
const SPINS: u32 = 64;

/// Polls of a thread that keeps the lock after its post: some microseconds.
const POLLS_MAX: u32 = 256;

/// Building blocks that libmlx5 reserves per work request of a reliable connection: control, UMR
/// control, mkey context and one aligned list (`sq_overhead` of `providers/mlx5/verbs.c`).
const WQEBBS_PER_REQUEST: u32 = 3;

/// Properties of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Approximate number of building blocks of the ring.
    pub(super) wqebbs: u32,
    /// Maximum wait for a completion.
    pub(super) poll_timeout: Duration,
    /// The code that posts.
    pub(super) post: Post,
    /// Fence of a request behind a UMR.
    pub(super) fence: u8,
}

/// A queue pair, its completion queue, and the state of its requests. A post and its wait touch the
/// first three cache lines only.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct UmrQueue {
    work: ShortLock<Work>,
    progress: Progress,
    templates: Templates,
    cq: Handle<ibv_cq>,
    lib: Arc<Mlx5Lib>,
    qpn: u32,
    /// The route of the queue pair's connection.
    loopback: Loopback,
    post: Post,
    /// Fence of a request behind a UMR.
    fence: u8,
    /// Maximum number of building blocks in flight.
    capacity: u32,
    poll_timeout: Duration,
    forgotten: AtomicBool,
}

const _: () = assert!(std::mem::offset_of!(UmrQueue, templates) <= 128);

/// Both ends of the queue.
#[derive(Debug)]
#[repr(C)]
struct Work {
    /// `None` after the queue pair was destroyed.
    producer: Option<Producer>,
    /// `None` after the completion queue was destroyed.
    receiver: Option<Receiver>,
}

#[derive(Debug)]
struct Producer {
    sender: Sender,
    /// Number of the next building block. 64 bits: it never wraps.
    next: u64,
    cold: Box<Cold>,
    /// Maximum number of building blocks in flight for a post from a template; zero without
    /// templates.
    capacity: u32,
    /// Fence of the next request: a request behind a UMR has one, as in libmlx5 (`fm_cache`).
    fence: u8,
    /// Fence of a request behind a UMR.
    fence_behind: u8,
}

/// The parts of a producer that only other posts and the tear-down need.
#[derive(Debug)]
struct Cold {
    /// Buffer in which entries are encoded before the copy to the ring.
    scratch: Wqe,
    qp: Handle<ibv_qp>,
    /// Freed after the queue pair.
    register: Option<Arc<Register>>,
}

/// A verbs object. Any thread may use it.
struct Handle<T>(NonNull<T>);

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// SAFETY: libibverbs objects belong to the process and are safe to use from any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; the value itself never changes.
unsafe impl<T> Sync for Handle<T> {}

impl UmrQueue {
    /// Creates a queue and connects it to itself.
    ///
    /// # Errors
    /// If a step is refused. No object remains then.
    ///
    /// # Safety
    /// `context` and `pd` are live, were created by `lib`, and outlive the queue's tear-down.
    pub(super) unsafe fn create(
        lib: &Arc<Mlx5Lib>,
        context: NonNull<ibv_context>,
        pd: NonNull<ibv_pd>,
        loopback: Loopback,
        shape: Shape,
    ) -> Result<Self, DeviceError> {
        // One completion for each request in the ring, in case all of them fail. A request takes at
        // least two building blocks.
        let entries = i32::try_from(shape.wqebbs).unwrap_or(i32::MAX);
        // SAFETY: the context is live by the caller's promise.
        let mut parts = unsafe { Parts::new(lib, context, pd, entries) }?;
        let (raw_qp, raw_cq) = parts.create_qp(context, shape)?;
        let sender = match parts.post {
            // SAFETY: libmlx5 has just described this queue, and no other code posts to it. Its
            // register is its own or takes single stores only; `create_qp` ensures that.
            Post::Raw => unsafe { SendRing::new(&raw_qp) }.map(Sender::Ring),
            // SAFETY: just created with the flag for raw requests, and no other code posts to it.
            Post::Verbs => unsafe { VerbsSend::new(lib, parts.qp()?) }.map(Sender::Verbs),
            Post::Send => {
                let requests = shape.wqebbs.div_ceil(WQEBBS_PER_REQUEST) as usize;
                // SAFETY: just created, and no other code posts to it.
                let send = unsafe { PostSend::new(parts.qp()?, requests) };
                Ok(Sender::Send(Box::new(send)))
            }
        };
        let receiver = match parts.post {
            // SAFETY: libmlx5 has just described this queue, and no other code polls it.
            Post::Raw => unsafe { CqRing::new(&raw_cq) }.map(Receiver::Ring),
            Post::Verbs | Post::Send => Ok(Receiver::Verbs),
        };
        let (sender, receiver) = (sender.map_err(unsupported)?, receiver.map_err(unsupported)?);
        let requests = match parts.post {
            Post::Raw => raw_cq.cqe_cnt,
            // libmlx5 counts requests, each of the reserved size.
            Post::Verbs | Post::Send => raw_cq
                .cqe_cnt
                .min(shape.wqebbs.div_ceil(WQEBBS_PER_REQUEST)),
        };
        // At most as many requests as completions, with at least two building blocks each.
        let capacity = raw_qp.sq.wqe_cnt.min(requests.saturating_mul(2));
        if (capacity as usize) < 2 * WQEBBS_MAX {
            return Err(unsupported("a send queue of so few building blocks"));
        }
        let qp = parts.qp()?;
        // SAFETY: a new queue pair is in the state RESET.
        unsafe { loopback.connect(lib, qp) }?;
        // SAFETY: the queue pair is live.
        let qpn = unsafe { (*qp.as_ptr()).qp_num };
        let post = sender.post();
        let (cq, register) = parts.keep();
        let templates = Templates::new(qpn);
        let producer = Producer {
            sender,
            next: 0,
            cold: Box::new(Cold {
                scratch: Wqe::new(),
                qp: Handle(qp),
                register: register.map(Arc::new),
            }),
            capacity: templates.as_ref().map_or(0, |_| capacity),
            fence: 0,
            fence_behind: shape.fence,
        };
        Ok(Self {
            work: ShortLock::new(Work {
                producer: Some(producer),
                receiver: Some(receiver),
            }),
            templates: templates.unwrap_or(Templates::NONE),
            progress: Progress::default(),
            cq: Handle(cq),
            lib: Arc::clone(lib),
            qpn,
            loopback,
            post,
            fence: shape.fence,
            capacity,
            poll_timeout: shape.poll_timeout,
            forgotten: AtomicBool::new(false),
        })
    }

    /// The route of the queue pair to itself.
    pub(super) fn loopback(&self) -> &Loopback {
        &self.loopback
    }

    /// The register, for another queue pair that rings it only within [`UmrQueue::alone`]. The
    /// creation of a register page costs more than everything else that such a queue pair needs.
    pub(super) fn register(&self) -> Option<Arc<Register>> {
        self.work.lock().producer.as_ref()?.cold.register.clone()
    }

    /// Runs a function while no thread posts to the queue.
    pub(super) fn alone<T>(&self, act: impl FnOnce() -> T) -> T {
        let _held = self.work.lock();
        act()
    }

    /// The code that posts.
    pub(super) fn posted_by(&self) -> Post {
        self.post
    }

    /// True after the queue has failed.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.progress.failure().is_some()
    }

    /// Posts one bind to a region of `len` bytes, below 2 GiB.
    #[inline(always)]
    pub(super) fn bind(&self, mkey: Mkey, (region, len): (Region, u32)) -> Single {
        self.post_single(mkey, Some((region, len)))
    }

    /// Posts one invalidation.
    #[inline(always)]
    pub(super) fn invalidate(&self, mkey: Mkey) -> Single {
        self.post_single(mkey, None)
    }

    /// Executes a chain and returns when its last request is complete.
    ///
    /// # Errors
    /// The errors of [`MkeyDevice::run`](crate::MkeyDevice::run).
    #[inline(never)]
    pub(super) fn run<R: Request>(&self, chain: &[R]) -> Result<(), ChainError> {
        if chain.is_empty() {
            return Ok(());
        }
        let ticket = self.post(chain).map_err(|source| ChainError {
            done: 0,
            rest: Rest::NotDone,
            source,
        })?;
        self.wait(ticket, chain)
    }

    /// Posts the bind of a key to memory, or its invalidation, and polls for the completion.
    #[inline(always)]
    fn post_single(&self, mkey: Mkey, memory: Option<(Region, u32)>) -> Single {
        let wqebbs = match memory {
            Some(_) => 3,
            None => 2,
        };
        let mut work = self.work.lock();
        let first = match &mut *work {
            Work {
                producer:
                    Some(Producer {
                        sender: Sender::Ring(ring),
                        next,
                        capacity,
                        fence,
                        fence_behind,
                        ..
                    }),
                receiver: Some(Receiver::Ring(completions)),
            } if *next + wqebbs - self.progress.done() <= u64::from(*capacity)
                && !self.has_failed() =>
            {
                let first = *next;
                *next += wqebbs;
                let (index, behind) = (low16(first), *fence);
                let word = match memory {
                    Some(memory) => {
                        let blocks = self.templates.bind(mkey, memory, index, behind);
                        ring.write_blocks(first, &blocks);
                        blocks[0][0]
                    }
                    None => {
                        let blocks = self.templates.invalidate(mkey, index, behind);
                        ring.write_blocks(first, &blocks);
                        blocks[0][0]
                    }
                };
                *fence = *fence_behind;
                ring.ring_word(first + wqebbs, word);
                // Usually the queue was empty, and the adapter is as fast as this thread.
                if let Some(counter) = completions.pop_success() {
                    if counter == low16(first) {
                        self.progress.succeed_at(first);
                        return Single::Done;
                    }
                    self.progress.succeed(counter);
                }
                first
            }
            _ => return Single::Refused,
        };
        match self.poll_until(work, first) {
            true => Single::Done,
            false => Single::Posted(first),
        }
    }

    /// Polls completions up to that of a request, for the holder of the lock: a poll is one load. False
    /// if it does not arrive within [`POLLS_MAX`] polls, or another thread waits for the lock.
    #[inline(never)]
    fn poll_until(&self, mut work: Held<'_, Work>, first: u64) -> bool {
        for _ in 0..POLLS_MAX {
            if self.progress.done() > first {
                return true;
            }
            let Some(Receiver::Ring(ring)) = work.receiver.as_mut() else {
                return false;
            };
            match ring.pop_success() {
                Some(counter) => self.progress.succeed(counter),
                None if work.is_wanted() => return false,
                None => hint::spin_loop(),
            }
        }
        false
    }

    fn post<R: Request>(&self, chain: &[R]) -> Result<Ticket, DeviceError> {
        let wqebbs = self.measure(chain)?;
        let mut clock = Clock::new(self.poll_timeout);
        loop {
            if let Some(ticket) = self.try_post(chain, wqebbs)? {
                return Ok(ticket);
            }
            // Other chains fill the ring: poll for their completions.
            let polls = self.reap(None);
            if clock.ran_out(polls) {
                let request = format!("room for {wqebbs} building blocks");
                return Err(DeviceError::TimedOut {
                    request,
                    limit: self.poll_timeout,
                });
            }
        }
    }

    /// Number of building blocks of a chain, if it fits.
    #[inline]
    fn measure<R: Request>(&self, chain: &[R]) -> Result<u32, DeviceError> {
        let mut sum = 0;
        for op in chain {
            let wqebbs = op.wqebbs();
            if wqebbs > WQEBBS_MAX {
                return Err(DeviceError::Unsupported {
                    what: format!("a request of {wqebbs} building blocks"),
                });
            }
            sum += wqebbs;
        }
        // The last completed chain may still occupy all but one of its building blocks.
        let most = self.capacity as usize - WQEBBS_MAX;
        match u32::try_from(sum) {
            Ok(wqebbs) if sum <= most => Ok(wqebbs),
            _ => Err(DeviceError::Unsupported {
                what: format!("a chain of {sum} building blocks, the queue takes {most}"),
            }),
        }
    }

    /// Writes the chain and rings the doorbell, if there is space.
    #[inline]
    fn try_post<R: Request>(
        &self,
        chain: &[R],
        wqebbs: u32,
    ) -> Result<Option<Ticket>, DeviceError> {
        let mut work = self.work.lock();
        if let Some(error) = self.progress.failure() {
            let reason = error.to_string();
            return Err(DeviceError::QueueDown { reason });
        }
        let Some(producer) = work.producer.as_mut() else {
            return Err(DeviceError::Closed);
        };
        let first = producer.next;
        let end = first + u64::from(wqebbs);
        if end - self.progress.done() > u64::from(self.capacity) {
            return Ok(None);
        }
        let mut last = first;
        let mut fence = producer.fence;
        producer.sender.begin();
        for (position, op) in chain.iter().enumerate() {
            last = producer.next;
            let signaled = position + 1 == chain.len();
            let slot = Slot {
                index: low16(last),
                qpn: self.qpn,
                signaled,
                fence,
            };
            let wqe = &mut producer.cold.scratch;
            if let Err(what) = producer.sender.add(last, op, slot, wqe) {
                producer.sender.abort();
                producer.next = first;
                return Err(DeviceError::Unsupported {
                    what: what.to_owned(),
                });
            }
            // Ordering: a chain may invalidate a key and bind it again, or read through the key that it has
            // bound. Without the fence the adapter uses the key as it was before the UMR.
            fence = if op.is_umr() { self.fence } else { 0 };
            producer.next += op.wqebbs() as u64;
            if signaled {
                assert_eq!(producer.next, end, "a chain takes what was measured");
                if let Err(errno) = producer.sender.commit(end, wqe) {
                    producer.next = first;
                    let reason = format!("libmlx5 does not post: errno {errno}");
                    return Err(DeviceError::QueueDown { reason });
                }
            }
        }
        producer.fence = fence;
        Ok(Some(Ticket { first, last }))
    }

    /// Waits for the completion of a chain.
    #[inline(never)]
    pub(super) fn wait<R: Request>(&self, ticket: Ticket, chain: &[R]) -> Result<(), ChainError> {
        let mut clock = Clock::new(self.poll_timeout);
        loop {
            if let Some(outcome) = self.progress.outcome(ticket, chain) {
                return outcome;
            }
            let polls = self.reap(Some(ticket));
            if clock.ran_out(polls) {
                let request = format!("{} requests on queue pair {:#x}", chain.len(), self.qpn);
                let limit = self.poll_timeout;
                self.progress
                    .give_up(DeviceError::TimedOut { request, limit });
            }
        }
    }

    /// Polls completions, unless another thread holds the lock: up to that of the ticket, for some
    /// polls, and while no other thread waits for the lock. Returns the number of polls.
    fn reap(&self, ticket: Option<Ticket>) -> u32 {
        // A plain load, so that several waiting threads do not write the line of the holder.
        let Some(mut work) = self.work.is_free().then(|| self.work.try_lock()).flatten() else {
            return 1;
        };
        for poll in 1..=SPINS {
            let Some(receiver) = work.receiver.as_mut() else {
                return poll;
            };
            // SAFETY: live while the lock is held and there is a receiver, and polled only under it.
            while let Some(cqe) = unsafe { receiver.pop(self.cq.0) } {
                self.progress.count(&cqe, self.qpn);
            }
            let is_known = |ticket: Ticket| self.progress.done() > ticket.last;
            if ticket.is_none_or(is_known) || self.has_failed() || work.is_wanted() {
                return poll;
            }
            hint::spin_loop();
        }
        SPINS
    }

    /// Ends the queue. After a return without error the adapter executes none of its requests any
    /// more.
    ///
    /// # Errors
    /// If the queue pair is not destroyed. The caller may try again.
    pub(super) fn tear_down(&self) -> Result<(), DeviceError> {
        self.progress.give_up(DeviceError::Closed);
        // Under the lock that protects the memory of the queue.
        let mut work = self.work.lock();
        if let Some(Producer { cold, .. }) = work.producer.as_ref() {
            // SAFETY: live until here, and no thread writes to its ring any more.
            let errno = unsafe { self.lib.ibv_destroy_qp(cold.qp.0.as_ptr()) };
            if errno != 0 {
                let reason = format!("ibv_destroy_qp of {:#x}: errno {errno}", self.qpn);
                return Err(DeviceError::QueueDown { reason });
            }
            // This also frees the doorbell register, whose queue pair is gone.
            work.producer = None;
        }
        if work.receiver.take().is_some() {
            // SAFETY: live until here, its queue pair is gone, and no thread reads it any more.
            let errno = unsafe { self.lib.ibv_destroy_cq(self.cq.0.as_ptr()) };
            if errno != 0 {
                // A completion queue without a queue pair does no harm. It ends with the context.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Prevents calls when the queue is dropped. In a forked child it belongs to the parent, and
    /// threads that the child does not have may hold its locks.
    pub(super) fn forget(&self) {
        self.forgotten.store(true, Ordering::Relaxed);
    }

    /// Maximum number of requests, as binds of one entry each, in one chain.
    pub(super) fn chain_ops_max(wqebbs: u32) -> u32 {
        let largest = u32::try_from(WQEBBS_MAX).expect("16 blocks");
        wqebbs.saturating_sub(largest) / WQEBBS_PER_REQUEST
    }
}

impl Drop for UmrQueue {
    fn drop(&mut self) {
        if !self.forgotten.load(Ordering::Relaxed) {
            // Objects that cannot be destroyed end with the context.
            let _left = self.tear_down();
            return;
        }
        let producer = self.work.get_mut().producer.as_mut();
        if let Some(register) = producer.and_then(|producer| producer.cold.register.take()) {
            std::mem::forget(register);
        }
    }
}

/// The parts of a queue during its creation. Dropping it destroys the existing parts.
struct Parts<'l> {
    lib: &'l Arc<Mlx5Lib>,
    pd: NonNull<ibv_pd>,
    cq: NonNull<ibv_cq>,
    qp: Option<NonNull<ibv_qp>>,
    register: Option<Register>,
    post: Post,
    /// Another object owns both queues now.
    kept: bool,
}

impl<'l> Parts<'l> {
    /// A completion queue, and a doorbell register if one is available.
    ///
    /// # Safety
    /// `context` and `pd` are live, were created by `lib`, and outlive this value and the queue
    /// made from it.
    unsafe fn new(
        lib: &'l Arc<Mlx5Lib>,
        context: NonNull<ibv_context>,
        pd: NonNull<ibv_pd>,
        entries: i32,
    ) -> Result<Self, DeviceError> {
        // SAFETY: the context is live; a queue without a channel has no other requirement.
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
        // SAFETY: the caller's promise.
        let register = unsafe { Register::alloc(lib, context, pd) }.ok();
        Ok(Self {
            lib,
            pd,
            cq,
            qp: None,
            register,
            post: Post::Raw,
            kept: false,
        })
    }

    fn qp(&self) -> Result<NonNull<ibv_qp>, DeviceError> {
        self.qp.ok_or_else(|| unsupported("a queue pair"))
    }

    fn domain(&self) -> *mut ibv_pd {
        match &self.register {
            Some(register) => register.domain(),
            None => self.pd.as_ptr(),
        }
    }

    /// Creates the queue pair for the posting code, and returns libmlx5's description of both
    /// queues.
    fn create_qp(
        &mut self,
        context: NonNull<ibv_context>,
        shape: Shape,
    ) -> Result<(mlx5dv_qp, mlx5dv_cq), DeviceError> {
        let cq = self.cq.as_ptr();
        let cap = ibv_qp_cap {
            max_send_wr: shape.wqebbs.div_ceil(WQEBBS_PER_REQUEST),
            max_send_sge: 1,
            ..ibv_qp_cap::default()
        };
        if shape.post == Post::Raw {
            self.create_plain(cap)?;
            let described = self.describe()?;
            // A register that another queue pair may share accepts single stores from any thread. A
            // doorbell must not come between another thread's stores to a BlueFlame buffer, and
            // libmlx5's lock prevents that.
            if self.register.is_some() || described.0.bf.size == 0 {
                return Ok(described);
            }
            self.destroy_qp();
        }
        if shape.post == Post::Send {
            return self.create_for_post_send(cap);
        }
        self.post = Post::Verbs;
        let mut init = ibv_qp_init_attr_ex {
            send_cq: cq,
            recv_cq: cq,
            cap,
            qp_type: IBV_QPT_RC,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: self.domain(),
            ..ibv_qp_init_attr_ex::default()
        };
        let mut mlx5_init = mlx5dv_qp_init_attr {
            comp_mask: u64::from(MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS),
            send_ops_flags: u64::from(MLX5DV_QP_EX_WITH_RAW_WQE),
            ..mlx5dv_qp_init_attr::default()
        };
        // SAFETY: the context is live, and so are all objects that the attributes name.
        let qp = unsafe {
            self.lib
                .mlx5dv_create_qp(context.as_ptr(), &raw mut init, &raw mut mlx5_init)
        };
        self.qp = NonNull::new(qp);
        match self.qp {
            Some(_) => self.describe(),
            // A libmlx5 that is too old refuses the flag.
            None => self.create_for_post_send(cap),
        }
    }

    fn create_for_post_send(
        &mut self,
        cap: ibv_qp_cap,
    ) -> Result<(mlx5dv_qp, mlx5dv_cq), DeviceError> {
        self.post = Post::Send;
        self.create_plain(cap)?;
        self.describe()
    }

    /// Creates the queue pair without extended operations.
    fn create_plain(&mut self, cap: ibv_qp_cap) -> Result<(), DeviceError> {
        let cq = self.cq.as_ptr();
        let mut init = ibv_qp_init_attr {
            send_cq: cq,
            recv_cq: cq,
            cap,
            qp_type: IBV_QPT_RC,
            ..ibv_qp_init_attr::default()
        };
        // SAFETY: the domain is live, and so is the completion queue that the attributes name.
        let qp = unsafe { self.lib.ibv_create_qp(self.domain(), &raw mut init) };
        self.qp = Some(NonNull::new(qp).ok_or_else(|| refused("ibv_create_qp"))?);
        Ok(())
    }

    /// libmlx5's description of both queues.
    fn describe(&self) -> Result<(mlx5dv_qp, mlx5dv_cq), DeviceError> {
        let mut raw_qp = mlx5dv_qp::default();
        let mut raw_cq = mlx5dv_cq::default();
        let mut obj = mlx5dv_obj::default();
        obj.qp.in_ = self.qp()?.as_ptr();
        obj.qp.out = &raw mut raw_qp;
        obj.cq.in_ = self.cq.as_ptr();
        obj.cq.out = &raw mut raw_cq;
        let kinds = u64::from(MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ);
        // SAFETY: the objects are live and of the kinds named, and the outputs are theirs.
        match unsafe { self.lib.mlx5dv_init_obj(&raw mut obj, kinds) } {
            0 => Ok((raw_qp, raw_cq)),
            _ => Err(unsupported("raw access to queues (mlx5dv_init_obj)")),
        }
    }

    fn destroy_qp(&mut self) {
        if let Some(qp) = self.qp.take() {
            // SAFETY: just created and unused.
            unsafe { self.lib.ibv_destroy_qp(qp.as_ptr()) };
        }
    }

    /// Passes both queues and the register to the caller.
    fn keep(mut self) -> (NonNull<ibv_cq>, Option<Register>) {
        self.kept = true;
        (self.cq, self.register.take())
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        self.destroy_qp();
        // SAFETY: just created, and its queue pair is gone.
        unsafe { self.lib.ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

fn unsupported(what: &'static str) -> DeviceError {
    DeviceError::Unsupported {
        what: what.to_owned(),
    }
}

/// The time limit of a wait. It also yields the processor.
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

    /// Called once per iteration of the wait, with the number of its polls.
    fn ran_out(&mut self, polls: u32) -> bool {
        hint::spin_loop();
        self.spins += polls;
        if self.spins < SPINS {
            return false;
        }
        self.spins = 0;
        match self.start {
            // The first microsecond does not count.
            None => {
                self.start = Some(Instant::now());
                false
            }
            Some(start) => {
                // The thread with the awaited work may need this processor.
                thread::yield_now();
                start.elapsed() > self.limit
            }
        }
    }
}

fn refused(call: &'static str) -> DeviceError {
    let errno = std::io::Error::last_os_error()
        .raw_os_error()
        .expect("it is an errno");
    DeviceError::QueueDown {
        reason: format!("{call}: errno {errno}"),
    }
}
