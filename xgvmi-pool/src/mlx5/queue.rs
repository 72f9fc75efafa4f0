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
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mlx5dv_sys::{Mlx5Lib, ibv_context, ibv_cq, ibv_pd, ibv_qp};

use super::connect::Loopback;
use super::cq_ring::CqRing;
use super::parts::{Parts, Shape, WQEBBS_PER_REQUEST, unsupported};
use super::progress::{Progress, Single, Ticket};
use super::register::Register;
use super::send::{Ends, Post, VerbsSend};
use super::send_ring::{SendRing, low16};
use super::send_verbs::PostSend;
use super::short_lock::{Held, ShortLock};
use super::template::Templates;
use super::wqe::{Request, Slot, WQEBBS_MAX, Wqe};
use crate::device::UmrOp;
use crate::error::{ChainError, DeviceError, Rest};
use crate::key::{Lkey, Mkey, VirtAddr};
use crate::region::Region;
use crate::sync::{AtomicBool, Ordering};

/// Reads of the counter between two reads of the clock: about a microsecond, the time of a request.
const SPINS: u32 = 64;

/// Polls of a thread that keeps the lock after its post: some microseconds.
const POLLS_MAX: u32 = 256;

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

/// Both ends of the queue, and the state of its posts.
#[derive(Debug)]
#[repr(C)]
struct Work {
    /// Number of the next building block. 64 bits: it never wraps.
    next: u64,
    /// `None` after the queue pair was destroyed.
    ends: Option<Ends>,
    /// Maximum number of building blocks in flight for a post from a template; zero without
    /// templates.
    capacity: u32,
    /// Fence of the next request: a request behind a UMR has one, as in libmlx5 (`fm_cache`).
    fence: u8,
    /// Fence of a request behind a UMR.
    fence_behind: u8,
    cold: Box<Cold>,
}

/// The parts that only other posts and the tear-down need.
#[derive(Debug)]
struct Cold {
    /// Buffer in which entries are encoded before the copy to the ring.
    scratch: Wqe,
    qp: Handle<ibv_qp>,
    /// Freed after the queue pair.
    register: Option<Arc<Register>>,
    /// The completion queue exists.
    has_cq: bool,
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
        let ends = match parts.post {
            // SAFETY: libmlx5 has just described both queues, and no other code posts or polls. The
            // register is the queue pair's own or takes single stores only; `create_qp` ensures that.
            Post::Raw => unsafe { SendRing::new(&raw_qp) }.and_then(|sender| {
                // SAFETY: as above.
                let completions = unsafe { CqRing::new(&raw_cq) }?;
                Ok(Ends::Rings {
                    sender,
                    completions,
                })
            }),
            // SAFETY: just created with the flag for raw requests, and no other code posts to it.
            Post::Verbs => unsafe { VerbsSend::new(lib, parts.qp()?) }.map(Ends::Verbs),
            Post::Send => {
                let requests = shape.wqebbs.div_ceil(WQEBBS_PER_REQUEST) as usize;
                // SAFETY: just created, and no other code posts to it.
                let send = unsafe { PostSend::new(parts.qp()?, requests) };
                Ok(Ends::Send(Box::new(send)))
            }
        };
        let ends = ends.map_err(unsupported)?;
        let requests = match parts.post {
            Post::Raw => CqRing::capacity(raw_cq.cqe_cnt),
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
        let post = ends.post();
        let (cq, register) = parts.keep();
        let templates = match post {
            Post::Raw => Templates::new(qpn),
            Post::Verbs | Post::Send => None,
        };
        let work = Work {
            next: 0,
            ends: Some(ends),
            capacity: templates.as_ref().map_or(0, |_| capacity),
            fence: 0,
            fence_behind: shape.fence,
            cold: Box::new(Cold {
                scratch: Wqe::new(),
                qp: Handle(qp),
                register: register.map(Arc::new),
                has_cq: true,
            }),
        };
        Ok(Self {
            work: ShortLock::new(work),
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
        self.work.lock().cold.register.clone()
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

    /// Waits for a bind that was posted and did not complete at once.
    ///
    /// # Errors
    /// Those of [`UmrQueue::run`].
    #[cold]
    pub(super) fn await_bind(
        &self,
        first: u64,
        mkey: Mkey,
        addr: VirtAddr,
        len: u64,
        lkey: Lkey,
    ) -> Result<(), Box<ChainError>> {
        let span = Region::of_parts(addr, len, lkey).into();
        Ok(self.wait(Ticket::single(first), &[UmrOp::Bind { mkey, span }])?)
    }

    /// Waits for an invalidation that was posted and did not complete at once.
    ///
    /// # Errors
    /// Those of [`UmrQueue::run`].
    #[cold]
    pub(super) fn await_invalidation(&self, first: u64, mkey: Mkey) -> Result<(), Box<ChainError>> {
        Ok(self.wait(Ticket::single(first), &[UmrOp::Invalidate { mkey }])?)
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
                next,
                ends:
                    Some(Ends::Rings {
                        sender: ring,
                        completions,
                    }),
                capacity,
                fence,
                fence_behind,
                ..
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
            let Some(Ends::Rings { completions, .. }) = work.ends.as_mut() else {
                return false;
            };
            match completions.pop_success() {
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
        let Work {
            next,
            ends: Some(ends),
            fence: next_fence,
            cold,
            ..
        } = &mut *work
        else {
            return Err(DeviceError::Closed);
        };
        let first = *next;
        let end = first + u64::from(wqebbs);
        if end - self.progress.done() > u64::from(self.capacity) {
            return Ok(None);
        }
        let mut last = first;
        let mut fence = *next_fence;
        ends.begin();
        for (position, op) in chain.iter().enumerate() {
            last = *next;
            let signaled = position + 1 == chain.len();
            let slot = Slot {
                index: low16(last),
                qpn: self.qpn,
                signaled,
                fence,
            };
            let wqe = &mut cold.scratch;
            if let Err(what) = ends.add(last, op, slot, wqe) {
                ends.abort();
                *next = first;
                return Err(DeviceError::Unsupported {
                    what: what.to_owned(),
                });
            }
            // Ordering: a chain may invalidate a key and bind it again, or read through the key that it has
            // bound. Without the fence the adapter uses the key as it was before the UMR.
            fence = if op.is_umr() { self.fence } else { 0 };
            *next += op.wqebbs() as u64;
            if signaled {
                assert_eq!(*next, end, "a chain takes what was measured");
                if let Err(errno) = ends.commit(end, wqe) {
                    *next = first;
                    let reason = format!("libmlx5 does not post: errno {errno}");
                    return Err(DeviceError::QueueDown { reason });
                }
            }
        }
        *next_fence = fence;
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
            let Some(ends) = work.ends.as_mut() else {
                return poll;
            };
            // SAFETY: live while the lock is held and there are the ends, and polled only under it.
            while let Some(cqe) = unsafe { ends.pop(self.cq.0) } {
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
        if work.ends.is_some() {
            // SAFETY: live until here, and no thread writes to its ring any more.
            let errno = unsafe { self.lib.ibv_destroy_qp(work.cold.qp.0.as_ptr()) };
            if errno != 0 {
                let reason = format!("ibv_destroy_qp of {:#x}: errno {errno}", self.qpn);
                return Err(DeviceError::QueueDown { reason });
            }
            work.ends = None;
            // This also frees the doorbell register, whose queue pair is gone.
            work.cold.register = None;
        }
        if std::mem::take(&mut work.cold.has_cq) {
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
        if let Some(register) = self.work.get_mut().cold.register.take() {
            std::mem::forget(register);
        }
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
