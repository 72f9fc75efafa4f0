//! What all handles of a pool share, and where its keys are: created, free, waited for, destroyed.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{MkeyDevice, MkeySpec};
use crate::error::{DeviceError, PoolError};
use crate::event::{Observer, PoolEvent};
use crate::gate::{Gate, Inside};
use crate::keeper::Keeper;
use crate::key::{Gvmi, VirtAddr};
use crate::latency::Latencies;
use crate::names::Names;
use crate::policy::{Invalidate, OnFull, PoolPolicy};
use crate::shelf::Shelf;
use crate::slots::{SlotId, Slots, State};
use crate::stats::PoolCounters;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, Queue, lock};
use crate::upkeep::Watch;
use crate::waiters::{Waiters, Wake};

/// How long after the device was full the pool stays at what it had before it asks for one more.
/// Long enough that asking costs nothing, short enough that a pool grows again within a job.
const CAP_RETRY: Duration = Duration::from_secs(10);

/// How long closing waits for calls that are inside the device. Commands are bounded by the kernel;
/// what is still inside after that hangs in the kernel, and its objects are left alone.
const CLOSE_WAIT: Duration = Duration::from_secs(60);

/// A pool, without the handles to it.
#[derive(Debug)]
pub(crate) struct Core<D: MkeyDevice> {
    pub(crate) device: Arc<D>,
    pub(crate) policy: PoolPolicy,
    spec: MkeySpec,
    pub(crate) gvmi: Gvmi,
    pub(crate) gate: Gate,
    pub(crate) slots: Slots,
    pub(crate) shelf: Shelf,
    /// Released keys that still stand for their regions, the oldest first.
    pub(crate) pending: Queue<SlotId>,
    /// When the first of them was released, in nanoseconds since `epoch`; zero if there is none.
    pub(crate) pending_since: AtomicU64,
    pub(crate) epoch: Instant,
    room: Mutex<Room>,
    /// Keys that the pool may have; lower than the policy's while the device is full. Written under
    /// the lock of `room`.
    cap: AtomicU32,
    waiters: Waiters,
    pub(crate) counters: PoolCounters,
    pub(crate) latencies: Latencies,
    pub(crate) observer: Option<Observer>,
    pub(crate) keeper: Keeper,
    pub(crate) watch: Watch,
}

/// What is left to create.
#[derive(Debug)]
struct Room {
    /// Slots that never had a key; the first is the next. A pool is opened within an export, so that
    /// no list of them is written then.
    unused: Range<u32>,
    /// Slots that had one.
    vacated: Vec<SlotId>,
    /// When a lowered cap may be tried again.
    retry_at: Option<Instant>,
    names: Names,
}

impl Room {
    /// A slot without a key, the one that was vacated last before one that was never used.
    fn take(&mut self) -> Option<SlotId> {
        let vacated = self.vacated.pop();
        vacated.or_else(|| self.unused.next().map(SlotId))
    }

    /// Slots without a key.
    fn vacant(&self) -> usize {
        self.vacated.len() + self.unused.len()
    }
}

/// Bytes that a pool takes for each key that it may have: a slot, its number, and a place in two queues.
const BYTES_PER_KEY: usize = 176;
/// And beside them.
const BYTES_BESIDE: usize = 64 << 10;

/// Asks for as much memory as a pool takes, because its parts are made by code that cannot be told no.
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
    /// A pool without keys.
    pub(crate) fn new(
        device: Arc<D>,
        policy: PoolPolicy,
        observer: Option<Observer>,
    ) -> Result<Self, PoolError> {
        let policy = policy.checked(device.limits())?;
        ask_for_memory(policy.mkeys_max)?;
        let trays = match policy.trays {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            trays => trays as usize,
        };
        let slots = Slots::new(policy.mkeys_max).ok_or_else(|| no_memory(policy.mkeys_max))?;
        Ok(Self {
            spec: MkeySpec {
                klm_entries: policy.klm_entries,
                access_key: policy.access_key.clone(),
            },
            gvmi: device.gvmi(),
            gate: Gate::new(),
            slots,
            shelf: Shelf::new(policy.mkeys_max, policy.tray_keys, trays, policy.order),
            pending: Queue::new(match policy.invalidate {
                // Nothing waits.
                Invalidate::Strict => 1,
                Invalidate::Batched | Invalidate::Chained => policy.mkeys_max as usize,
            }),
            pending_since: AtomicU64::new(0),
            epoch: Instant::now(),
            room: Mutex::new(Room {
                unused: 0..policy.mkeys_max,
                vacated: Vec::new(),
                retry_at: None,
                names: Names::default(),
            }),
            cap: AtomicU32::new(policy.mkeys_max),
            waiters: Waiters::new(),
            counters: PoolCounters::default(),
            latencies: Latencies::new(),
            observer,
            keeper: Keeper::new(),
            watch: Watch::default(),
            device,
            policy,
        })
    }

    /// A slot in the state `Leased`.
    #[inline]
    pub(crate) fn take(&self) -> Result<SlotId, PoolError> {
        match self.take_now() {
            Some(id) => Ok(id),
            None => self.take_slowly(),
        }
    }

    /// The same, if nothing stands in the way: small enough to be a part of the caller.
    #[inline]
    pub(crate) fn take_now(&self) -> Option<SlotId> {
        if !self.is_open() || self.is_queue() {
            return None;
        }
        self.take_free(None)
    }

    /// True if somebody waits, whom nobody passes.
    #[inline]
    pub(crate) fn is_queue(&self) -> bool {
        self.may_wait() && self.waiters.any()
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

    /// Goes in where closing waits, unless the pool is closed or another process's.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Inside<'_>, PoolError> {
        if !self.device.is_ours() {
            return Err(PoolError::Forked);
        }
        self.gate.enter().ok_or(PoolError::Closed)
    }

    #[inline]
    pub(crate) fn take_free(&self, place: Option<VirtAddr>) -> Option<SlotId> {
        let id = self.shelf.take(place)?;
        self.slots.advance(id, State::Free, State::Leased);
        if self.policy.keeper && self.shelf.queued() < self.policy.low as usize {
            self.keeper.kick();
        }
        Some(id)
    }

    #[cold]
    pub(crate) fn take_slowly(&self) -> Result<SlotId, PoolError> {
        self.check_open()?;
        let queue = self.is_queue();
        self.counters.misses.one();
        // Keys that only wait for their invalidation are closer than new ones.
        if self.flush() > 0
            && !queue
            && let Some(id) = self.take_free(None)
        {
            return Ok(id);
        }
        let result = match self.create(State::Leased) {
            Err(PoolError::Full { mkeys_max }) => match self.policy.on_full {
                OnFull::Fail => Err(PoolError::Full { mkeys_max }),
                OnFull::Wait(limit) => self.wait(limit),
            },
            result => result,
        };
        if result.is_err() {
            self.counters.refusals.one();
        }
        result
    }

    /// Waits for a key, first come first served.
    fn wait(&self, limit: Duration) -> Result<SlotId, PoolError> {
        let start = Instant::now();
        let deadline = start + limit;
        self.counters.waits.one();
        let mut at_front = false;
        let result = loop {
            let flight = self.waiters.join(at_front);
            // A key may have come back before the queue was seen to be there.
            self.match_waiters();
            let left = deadline.saturating_duration_since(Instant::now());
            match self.waiters.wait(&flight, left) {
                Some(Wake::Key(id)) => {
                    self.slots.advance(id, State::Free, State::Leased);
                    break Ok(id);
                }
                Some(Wake::Room) => match self.create(State::Leased) {
                    Err(PoolError::Full { .. }) => at_front = true,
                    result => break result,
                },
                Some(Wake::Closed) => break Err(PoolError::Closed),
                None => {
                    break Err(PoolError::WaitedTooLong {
                        mkeys_max: self.cap(),
                        limit,
                    });
                }
            }
        };
        self.latencies.wait.record(start.elapsed());
        result
    }

    /// Hands free keys to those who wait.
    fn match_waiters(&self) {
        while self.waiters.any() {
            if self.gate.is_shut() {
                self.waiters.serve(Wake::Closed);
                continue;
            }
            let Some(id) = self.shelf.take(None) else {
                return;
            };
            if !self.waiters.serve(Wake::Key(id)) {
                self.shelf.put(id);
            }
        }
    }

    fn may_wait(&self) -> bool {
        matches!(self.policy.on_full, OnFull::Wait(_))
    }

    /// Puts a free key back.
    #[inline]
    pub(crate) fn give(&self, id: SlotId) {
        self.shelf.put(id);
        if self.may_wait() && self.waiters.any() {
            self.match_waiters();
        }
    }

    /// Puts an unbound key back.
    #[inline]
    pub(crate) fn give_back(&self, id: SlotId) {
        // A pool that is closed has destroyed the key already.
        if self.is_open() {
            self.slots.advance(id, State::Leased, State::Free);
            self.give(id);
        }
    }

    /// Creates a key in a vacant slot.
    pub(crate) fn create(&self, state: State) -> Result<SlotId, PoolError> {
        let _inside = self.enter()?;
        let id = self.reserve()?;
        let start = Instant::now();
        match self.device.create_mkey(&self.spec) {
            Ok(index) => {
                self.latencies.create.record(start.elapsed());
                let mkey = lock(&self.room).names.of_new(index, self.policy.tag);
                self.slots.fill(id, mkey, state);
                self.counters.creates.one();
                Ok(id)
            }
            Err(error) => {
                self.counters.create_failures.one();
                Err(self.not_created(id, error))
            }
        }
    }

    /// A vacant slot, if the cap allows another key.
    fn reserve(&self) -> Result<SlotId, PoolError> {
        let mut room = lock(&self.room);
        let live = self.live(&room);
        if room
            .retry_at
            .is_some_and(|retry_at| Instant::now() >= retry_at)
        {
            // Perhaps somebody else gave keys of theirs back.
            room.retry_at = None;
            self.cap.store(self.policy.mkeys_max, Ordering::Relaxed);
        }
        let cap = self.cap();
        let found = match live < cap {
            true => room.take(),
            false => None,
        };
        found.ok_or(PoolError::Full { mkeys_max: cap })
    }

    /// Gives the slot of a key that was not created back.
    fn not_created(&self, id: SlotId, error: DeviceError) -> PoolError {
        let mut room = lock(&self.room);
        room.vacated.push(id);
        if !error.is_limit() {
            return PoolError::Create(error);
        }
        // The device is full: what the pool has now is what it can have.
        let cap = self.live(&room);
        self.cap.store(cap, Ordering::Relaxed);
        room.retry_at = Some(Instant::now() + CAP_RETRY);
        drop(room);
        self.counters.cap_lowered.one();
        self.tell(|| PoolEvent::CapLowered { cap, error });
        PoolError::Full { mkeys_max: cap }
    }

    /// Destroys a key of the state `Unsure` and makes room for another.
    ///
    /// # Errors
    /// If the device refuses; then the key is lost.
    pub(crate) fn destroy(&self, id: SlotId) -> Result<(), DeviceError> {
        let start = Instant::now();
        let index = self.slots.mkey(id).index();
        match self.device.destroy_mkey(index) {
            Ok(()) => {
                self.latencies.destroy.record(start.elapsed());
                self.counters.destroys.one();
                self.slots.advance(id, State::Unsure, State::Vacant);
                let mut room = lock(&self.room);
                room.vacated.push(id);
                room.names.destroyed(index);
                drop(room);
                if self.may_wait() && self.waiters.any() {
                    self.waiters.serve(Wake::Room);
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

    /// Keys that there are, in whatever state.
    pub(crate) fn live_keys(&self) -> u32 {
        self.live(&lock(&self.room))
    }

    fn live(&self, room: &Room) -> u32 {
        // Cannot be lost: there are no more slots than `mkeys_max`, which is u32.
        self.policy.mkeys_max - u32::try_from(room.vacant()).unwrap_or(u32::MAX)
    }

    /// Keys that the pool may have at present.
    pub(crate) fn cap(&self) -> u32 {
        self.cap.load(Ordering::Relaxed)
    }

    /// Tells the observer, if there is one.
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
        if !self.gate.wait_empty(CLOSE_WAIT) {
            // Somebody hangs inside the device; taking it away under them would be worse.
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
        // The last handle and the last export are gone, so nobody is inside and this does not wait.
        self.close();
    }
}
