//! The state that all handles of a pool share, and the path of a key from its creation to its
//! destruction.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::device::{MkeyDevice, MkeySpec};
use crate::error::{DeviceError, PoolError};
use crate::event::{Observer, PoolEvent};
use crate::free_list::FreeList;
use crate::gate::{Gate, Inside};
use crate::idle_watch::IdleWatch;
use crate::keeper::Keeper;
use crate::key::{Gvmi, VirtAddr};
use crate::latency::Latencies;
use crate::local_cache::Claimed;
use crate::long_keys::LongKeys;
use crate::policy::{Invalidate, OnFull, PoolPolicy};
use crate::slots::{Size, SlotId, Slots, State};
use crate::stats::PoolCounters;
use crate::sync::{AtomicU32, AtomicU64, LINE_BYTES, Mutex, Ordering, Queue, lock, thread_number};
use crate::tags::Tags;
use crate::waiters::{Waiters, Wake};

/// Time for which a full device keeps the pool at its lowered cap. It is long enough that a retry
/// costs almost nothing, and short enough that a pool grows again within a job.
const CAP_RETRY: Duration = Duration::from_secs(10);

/// Entries of a short key: memory of up to 4 GiB in up to four registrations. The adapter allocates entries in
/// fours, so a key of UCX's own pool has as many.
const SHORT_ENTRIES: u32 = 4;

/// At most one key in this number is long.
const LONG_SHARE: u32 = 4;

/// Maximum time that closing waits for running device calls. The kernel limits the time of a
/// command. A call that runs longer is stuck in the kernel, and closing leaves its objects alone.
const CLOSE_WAIT: Duration = Duration::from_secs(60);

/// A pool without its handles.
///
/// The fields are in the order of their use: an export and its release read the first cache line, write
/// the second one, and touch no other.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Core<D: MkeyDevice> {
    pub(crate) quick: D::Quick,
    pub(crate) slots: Slots,
    /// A copy of what each export and release reads of the policy.
    pub(crate) hot: Hot,
    pub(crate) free_list: FreeList,
    pub(crate) device: Arc<D>,
    pub(crate) gate: Gate,
    /// Release time of the first pending key, in nanoseconds since `epoch`; zero if there is none.
    pub(crate) pending_since: AtomicU64,
    pub(crate) counters: PoolCounters,
    /// Released keys that are still bound to their regions, the oldest first.
    pub(crate) pending: Queue<SlotId>,
    pub(crate) policy: PoolPolicy,
    specs: Specs,
    pub(crate) long: LongKeys,
    pub(crate) epoch: Instant,
    vacant_slots: Mutex<VacantSlots>,
    /// Current maximum number of keys; lower than the policy's while the device is full. Written
    /// under the lock of `vacant_slots`.
    cap: AtomicU32,
    waiters: Waiters,
    pub(crate) latencies: Latencies,
    pub(crate) observer: Option<Observer>,
    pub(crate) keeper: Keeper,
    pub(crate) idle_watch: IdleWatch,
}

/// What the device needs to know to create a key.
#[derive(Debug)]
struct Specs {
    short: MkeySpec,
    long: MkeySpec,
}

/// What each export and release reads of the policy and of the device's properties.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hot {
    /// Those of a short key.
    pub(crate) klm_entries: u32,
    pub(crate) gvmi: Gvmi,
    pub(crate) invalidate: Invalidate,
    /// No keeper creates keys and no lease waits for one.
    is_plain: bool,
    /// A bind and an invalidation run while the thread holds a cache, see [`Core::claim`].
    pub(crate) is_direct: bool,
}

// With it, the fields that an export reads end within a cache line.
const _: () = assert!(size_of::<Hot>() == 12);

/// Slots without a key.
#[derive(Debug)]
struct VacantSlots {
    /// Slots that never had a key, the next one first. A pool may open within an export, so this is
    /// a range and not a list that opening would have to write.
    unused: Range<u32>,
    /// Slots whose key was destroyed.
    vacated: Vec<SlotId>,
    /// Number of long keys.
    long: u32,
    /// The device is full.
    refusal: Option<Refusal>,
    /// The last creation failed for another reason.
    failure: Option<DeviceError>,
    /// Intervals between attempts after such failures.
    backoff: Backoff,
    tags: Tags,
}

/// The device refused another key.
#[derive(Debug)]
struct Refusal {
    error: DeviceError,
    /// Time at which the pool tries a higher cap again.
    retry_at: Instant,
}

impl VacantSlots {
    /// Takes a slot without a key: the last vacated slot, otherwise an unused slot.
    fn take(&mut self) -> Option<SlotId> {
        let vacated = self.vacated.pop();
        vacated.or_else(|| self.unused.next().map(SlotId))
    }

    /// Number of slots without a key.
    fn vacant(&self) -> usize {
        self.vacated.len() + self.unused.len()
    }
}

/// Bytes per key of a pool's maximum: a slot, its number, and entries in two queues.
const BYTES_PER_KEY: usize = LINE_BYTES + 144;
/// Bytes of a pool without keys.
const BYTES_BESIDE: usize = 64 << 10;

/// Checks in advance that the memory of a pool is available. Its parts allocate with code that
/// cannot report a failure.
fn ask_for_memory(mkeys_max: u32) -> Result<(), PoolError> {
    let mut trial: Vec<u8> = Vec::new();
    let asked = trial.try_reserve_exact(bytes_of(mkeys_max));
    asked.map_err(|_| no_memory(mkeys_max))
}

const fn bytes_of(mkeys_max: u32) -> usize {
    BYTES_BESIDE + BYTES_PER_KEY * mkeys_max as usize
}

const fn no_memory(mkeys_max: u32) -> PoolError {
    PoolError::NoMemory {
        mkeys_max,
        bytes: bytes_of(mkeys_max),
    }
}

impl<D: MkeyDevice> Core<D> {
    /// Creates a pool without keys.
    pub(crate) fn new(
        device: Arc<D>,
        policy: PoolPolicy,
        observer: Option<Observer>,
    ) -> Result<Self, PoolError> {
        let policy = policy.checked(device.limits())?;
        ask_for_memory(policy.mkeys_max)?;
        let caches = match policy.caches {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            caches => caches as usize,
        };
        let free_list = FreeList::new(policy.mkeys_max, policy.cache_keys, caches, policy.order);
        let slots = Slots::new(policy.mkeys_max).ok_or_else(|| no_memory(policy.mkeys_max))?;
        let is_plain = !policy.keeper && !matches!(policy.on_full, OnFull::Wait(_));
        let short = policy.klm_entries.min(SHORT_ENTRIES);
        let spec = |klm_entries| MkeySpec {
            klm_entries,
            access_key: policy.access_key.clone(),
        };
        Ok(Self {
            specs: Specs {
                short: spec(short),
                long: spec(policy.klm_entries),
            },
            long: LongKeys::new((policy.mkeys_max / LONG_SHARE).max(1)),
            gate: Gate::new(),
            slots,
            hot: Hot {
                klm_entries: short,
                gvmi: device.gvmi(),
                invalidate: policy.invalidate,
                is_plain,
                is_direct: is_plain
                    && policy.invalidate == Invalidate::Strict
                    && free_list.has_caches(),
            },
            free_list,
            pending: Queue::new(match policy.invalidate {
                // No key waits for invalidation.
                Invalidate::Strict => 1,
                Invalidate::Batched | Invalidate::Chained => policy.mkeys_max as usize,
            }),
            pending_since: AtomicU64::new(0),
            epoch: Instant::now(),
            vacant_slots: Mutex::new(VacantSlots {
                unused: 0..policy.mkeys_max,
                vacated: Vec::new(),
                long: 0,
                refusal: None,
                failure: None,
                backoff: Backoff::default(),
                tags: Tags::default(),
            }),
            cap: AtomicU32::new(policy.mkeys_max),
            waiters: Waiters::new(),
            counters: PoolCounters::default(),
            latencies: Latencies::new(),
            observer,
            keeper: Keeper::new(),
            idle_watch: IdleWatch::default(),
            quick: device.quick(),
            device,
            policy,
        })
    }

    /// Takes a slot in the state `Leased`.
    #[inline]
    pub(crate) fn take(&self) -> Result<SlotId, PoolError> {
        match self.take_now() {
            Some(id) => Ok(id),
            None => self.take_slowly(),
        }
    }

    /// The fast path of `take`, small enough to inline.
    #[inline]
    pub(crate) fn take_now(&self) -> Option<SlotId> {
        if !self.is_open() || self.is_queue() {
            return None;
        }
        self.take_free(None)
    }

    /// True if a thread waits for a key. A new lease must not overtake it.
    #[inline]
    pub(crate) fn is_queue(&self) -> bool {
        self.may_wait() && self.waiters.any()
    }

    /// Number of the calling thread.
    #[inline(always)]
    pub(crate) fn thread(&self) -> usize {
        thread_number(D::thread_mark())
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.device.is_ours() && !self.gate.is_shut()
    }

    fn check_open(&self) -> Result<(), PoolError> {
        if !self.device.is_ours() {
            return Err(PoolError::Forked);
        }
        if self.gate.is_shut() {
            return Err(PoolError::Closed);
        }
        Ok(())
    }

    /// Enters the gate that closing waits for. Fails if the pool is closed or belongs to another
    /// process.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Inside<'_>, PoolError> {
        if !self.device.is_ours() {
            return Err(PoolError::Forked);
        }
        // Not `ok_or`, which would build and drop an error in each call.
        match self.gate.enter() {
            Some(inside) => Ok(inside),
            None => Err(PoolError::Closed),
        }
    }

    /// Claims the cache of the calling thread, which has this number, for a bind or an invalidation. Until the claim is dropped,
    /// the pool does not close. `None` if the thread must take the other path, by [`Core::enter`].
    ///
    /// A forked child may get the claim too. The device executes none of its requests, and everything else
    /// is the child's copy of the pool.
    #[inline(always)]
    pub(crate) fn claim(&self, thread: usize) -> Option<Claimed<'_>> {
        if !self.hot.is_direct {
            return None;
        }
        // A closed pool has all claims.
        self.free_list.claim_own(thread)
    }

    #[inline(always)]
    pub(crate) fn take_free(&self, place: Option<VirtAddr>) -> Option<SlotId> {
        let id = self.free_list.take(self.thread(), place)?;
        self.slots.advance(id, State::Free, State::Leased);
        if !self.hot.is_plain {
            self.kick_if_low();
        }
        Some(id)
    }

    /// Wakes the keeper if few keys are free.
    #[inline(never)]
    fn kick_if_low(&self) {
        if self.policy.keeper && self.free_list.queued() < self.policy.low as usize {
            self.keeper.kick();
        }
    }

    #[cold]
    pub(crate) fn take_slowly(&self) -> Result<SlotId, PoolError> {
        self.check_open()?;
        let queue = self.is_queue();
        self.counters.misses.one();
        // A flush frees released keys faster than the device creates new ones.
        if self.flush() > 0
            && !queue
            && let Some(id) = self.take_free(None)
        {
            return Ok(id);
        }
        let result = match self.create(State::Leased, Size::Short) {
            // A long key serves any memory.
            Err(full) if full.is_full() && !queue => match self.take_free_long() {
                Some(id) => Ok(id),
                None => self.wait_if_full(full),
            },
            Err(error) => self.wait_if_full(error),
            Ok(id) => Ok(id),
        };
        if result.is_err() {
            self.counters.refusals.one();
        }
        result
    }

    fn wait_if_full(&self, error: PoolError) -> Result<SlotId, PoolError> {
        match self.policy.on_full {
            OnFull::Wait(limit) if error.ends_with_a_release() => self.wait(limit),
            OnFull::Wait(_) | OnFull::Fail => Err(error),
        }
    }

    fn take_free_long(&self) -> Option<SlotId> {
        let id = self.long.take(self.policy.order)?;
        self.slots.advance(id, State::Free, State::Leased);
        Some(id)
    }

    /// Takes a slot with a long key in the state `Leased`. Waits for none.
    #[cold]
    pub(crate) fn take_long(&self) -> Result<SlotId, PoolError> {
        self.check_open()?;
        if let Some(id) = self.take_free_long() {
            return Ok(id);
        }
        self.counters.misses.one();
        if self.flush() > 0
            && let Some(id) = self.take_free_long()
        {
            return Ok(id);
        }
        let result = match self.create(State::Leased, Size::Long) {
            // A free short key gives its place.
            Err(PoolError::Full { .. } | PoolError::DeviceFull { .. }) if self.shed_one() => {
                self.create(State::Leased, Size::Long)
            }
            result => result,
        };
        if result.is_err() {
            self.counters.refusals.one();
        }
        result
    }

    /// Destroys up to `most` free keys, those of caches too. Returns their number.
    pub(crate) fn shed(&self, most: u32) -> u32 {
        self.flush();
        let mut shed = 0;
        while shed < most && (self.shed_long() || self.shed_one()) {
            shed += 1;
        }
        shed
    }

    fn shed_long(&self) -> bool {
        let Ok(_inside) = self.enter() else {
            return false;
        };
        let found = self.long.retire();
        found.is_some_and(|id| self.destroy_free(id))
    }

    fn shed_one(&self) -> bool {
        let Ok(_inside) = self.enter() else {
            return false;
        };
        let found = self.free_list.retire().or_else(|| {
            self.free_list.collect();
            self.free_list.retire()
        });
        found.is_some_and(|id| self.destroy_free(id))
    }

    /// Destroys a key that was in a free list. False if the device refuses.
    pub(crate) fn destroy_free(&self, id: SlotId) -> bool {
        self.slots.advance(id, State::Free, State::Unsure);
        let is_gone = self.destroy(id).is_ok();
        if is_gone {
            self.counters.aged.one();
        }
        is_gone
    }

    /// Waits for a key, first come, first served.
    fn wait(&self, limit: Duration) -> Result<SlotId, PoolError> {
        let start = Instant::now();
        let deadline = start + limit;
        self.counters.waits.one();
        let mut at_front = false;
        let result = loop {
            let flight = self.waiters.join(at_front);
            // A release may have freed a key before it saw this waiter.
            self.match_waiters();
            let left = deadline.saturating_duration_since(Instant::now());
            match self.waiters.wait(&flight, left) {
                Some(Wake::Key(id)) => {
                    self.slots.advance(id, State::Free, State::Leased);
                    break Ok(id);
                }
                Some(Wake::SlotVacated) => match self.create(State::Leased, Size::Short) {
                    Err(full) if full.ends_with_a_release() => at_front = true,
                    result => break result,
                },
                Some(Wake::Closed) => break Err(PoolError::Closed),
                None => {
                    let vacant_slots = lock(&self.vacant_slots);
                    let refusal = vacant_slots.refusal.as_ref();
                    break Err(PoolError::WaitedTooLong {
                        mkeys_max: self.cap(),
                        limit,
                        refusal: refusal.map(|refusal| refusal.error.clone()),
                    });
                }
            }
        };
        self.latencies.wait.record(start.elapsed());
        result
    }

    /// Gives free keys to waiting threads.
    fn match_waiters(&self) {
        while self.waiters.any() {
            if self.gate.is_shut() {
                self.waiters.serve(Wake::Closed);
                continue;
            }
            let short = self.free_list.take(self.thread(), None);
            let Some(id) = short.or_else(|| self.long.take(self.policy.order)) else {
                return;
            };
            if !self.waiters.serve(Wake::Key(id)) {
                self.put(id);
            }
        }
    }

    #[inline]
    fn may_wait(&self) -> bool {
        !self.hot.is_plain && matches!(self.policy.on_full, OnFull::Wait(_))
    }

    /// Returns a key to the free list.
    #[inline(always)]
    pub(crate) fn give(&self, id: SlotId) {
        self.put(id);
        if self.may_wait() && self.waiters.any() {
            self.match_waiters();
        }
    }

    #[inline(always)]
    fn put(&self, id: SlotId) {
        match self.slots.size(id) {
            Size::Short => self.free_list.put(self.thread(), id),
            Size::Long => self.long.put(id),
        }
    }

    /// Returns an unbound key to the free list.
    #[inline]
    pub(crate) fn give_back(&self, id: SlotId) {
        // Closing a pool has already destroyed the key.
        if self.is_open() {
            self.slots.advance(id, State::Leased, State::Free);
            self.give(id);
        }
    }

    /// Creates a key in a vacant slot.
    pub(crate) fn create(&self, state: State, size: Size) -> Result<SlotId, PoolError> {
        let _inside = self.enter()?;
        let id = self.reserve(size)?;
        let start = Instant::now();
        let spec = match size {
            Size::Short => &self.specs.short,
            Size::Long => &self.specs.long,
        };
        match self.device.create_mkey(spec) {
            Ok(index) => {
                self.latencies.create.record(start.elapsed());
                let mut vacant_slots = lock(&self.vacant_slots);
                vacant_slots.failure = None;
                vacant_slots.backoff.succeeded();
                let mkey = vacant_slots.tags.of_new(index, self.policy.tag);
                drop(vacant_slots);
                self.slots.fill(id, mkey, (state, size));
                self.counters.creates.one();
                Ok(id)
            }
            Err(error) => {
                self.counters.create_failures.one();
                Err(self.not_created(id, size, error))
            }
        }
    }

    /// A vacant slot, if the cap allows another key.
    fn reserve(&self, size: Size) -> Result<SlotId, PoolError> {
        let mut vacant_slots = lock(&self.vacant_slots);
        if let Some(failure) = &vacant_slots.failure
            && !vacant_slots.backoff.is_due(Instant::now())
        {
            return Err(PoolError::Create(failure.clone()));
        }
        let live = self.live(&vacant_slots);
        let refusal = vacant_slots.refusal.as_ref();
        if refusal.is_some_and(|refusal| Instant::now() >= refusal.retry_at) {
            // Another process may have destroyed keys meanwhile.
            vacant_slots.refusal = None;
            self.cap.store(self.policy.mkeys_max, Ordering::Relaxed);
        }
        let cap = self.cap();
        if size == Size::Long && vacant_slots.long >= self.long.max() {
            return Err(PoolError::LongKeysInUse {
                keys_max: self.long.max(),
            });
        }
        let found = match live < cap {
            true => vacant_slots.take(),
            false => None,
        };
        if size == Size::Long && found.is_some() {
            vacant_slots.long += 1;
        }
        found.ok_or_else(|| match &vacant_slots.refusal {
            Some(refusal) => PoolError::DeviceFull {
                mkeys: cap,
                retry_in: refusal.retry_at.saturating_duration_since(Instant::now()),
                source: refusal.error.clone(),
            },
            None => PoolError::Full { mkeys_max: cap },
        })
    }

    /// Returns the slot of a key whose creation failed.
    fn not_created(&self, id: SlotId, size: Size, error: DeviceError) -> PoolError {
        let mut vacant_slots = lock(&self.vacant_slots);
        vacant_slots.vacated.push(id);
        vacant_slots.long -= u32::from(size == Size::Long);
        if !error.is_limit() {
            vacant_slots.failure = Some(error.clone());
            vacant_slots.backoff.failed(Instant::now());
            return PoolError::Create(error);
        }
        // The device is full: the present number of keys becomes the cap.
        let cap = self.live(&vacant_slots);
        self.cap.store(cap, Ordering::Relaxed);
        vacant_slots.refusal = Some(Refusal {
            error: error.clone(),
            retry_at: Instant::now() + CAP_RETRY,
        });
        drop(vacant_slots);
        self.counters.cap_lowered.one();
        let source = error.clone();
        self.tell(|| PoolEvent::CapLowered { cap, error });
        PoolError::DeviceFull {
            mkeys: cap,
            retry_in: CAP_RETRY,
            source,
        }
    }

    /// Destroys a key of the state `Unsure` and vacates its slot.
    ///
    /// # Errors
    /// If the device refuses. The key is lost then.
    pub(crate) fn destroy(&self, id: SlotId) -> Result<(), DeviceError> {
        let start = Instant::now();
        let index = self.slots.mkey(id).index();
        match self.device.destroy_mkey(index) {
            Ok(()) => {
                self.latencies.destroy.record(start.elapsed());
                self.counters.destroys.one();
                let is_long = self.slots.size(id) == Size::Long;
                self.slots.advance(id, State::Unsure, State::Vacant);
                let mut vacant_slots = lock(&self.vacant_slots);
                vacant_slots.vacated.push(id);
                vacant_slots.long -= u32::from(is_long);
                vacant_slots.tags.destroyed(index);
                drop(vacant_slots);
                if self.may_wait() && self.waiters.any() {
                    self.waiters.serve(Wake::SlotVacated);
                }
                Ok(())
            }
            Err(error) => {
                self.counters.lost.one();
                self.slots.advance(id, State::Unsure, State::Lost);
                Err(error)
            }
        }
    }

    /// Number of existing keys, in any state.
    pub(crate) fn live_keys(&self) -> u32 {
        self.live(&lock(&self.vacant_slots))
    }

    fn live(&self, vacant_slots: &VacantSlots) -> u32 {
        let vacant = u32::try_from(vacant_slots.vacant()).expect("at most `mkeys_max` slots");
        self.policy.mkeys_max - vacant
    }

    /// Current maximum number of keys.
    pub(crate) fn cap(&self) -> u32 {
        self.cap.load(Ordering::Relaxed)
    }

    /// Reports an event to the observer, if there is one.
    pub(crate) fn tell(&self, event: impl FnOnce() -> PoolEvent) {
        if let Some(observer) = &self.observer {
            observer.tell(&event());
        }
    }

    pub(crate) fn close(&self) -> bool {
        if !self.device.is_ours() || !self.gate.shut() {
            return true;
        }
        self.keeper.stop();
        self.match_waiters();
        if !self.gate.wait_empty(CLOSE_WAIT) || !self.free_list.seal(CLOSE_WAIT) {
            // A device call is stuck. It would be worse to destroy its objects under it.
            return false;
        }
        let mut clean = true;
        for id in self.slots.ids() {
            if self.slots.state(id) == State::Vacant {
                continue;
            }
            match self.device.destroy_mkey(self.slots.mkey(id).index()) {
                Ok(()) => self.counters.destroys.one(),
                Err(_) => clean = false,
            }
        }
        clean
    }
}

impl<D: MkeyDevice> Drop for Core<D> {
    fn drop(&mut self) {
        // The last handle and the last export are gone. No call is inside, so this does not wait.
        self.close();
    }
}
