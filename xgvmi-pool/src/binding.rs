//! Binding and invalidation of keys: the composition of chains, and the handling of keys whose
//! request failed.

use std::time::{Duration, Instant};

use crate::core::Core;
use crate::device::{MkeyDevice, QuickPath as _, UmrOp};
use crate::error::{ChainError, DeviceError, PoolError, ReleaseError, Rest};
use crate::event::PoolEvent;
use crate::export::BoundKey;
use crate::key::{Lkey, Mkey, VirtAddr};
use crate::latency::Times;
use crate::policy::Invalidate;
use crate::region::Region;
use crate::slots::{Size, SlotId, State};
use crate::span::Span;
use crate::sync::Ordering;

/// Number of invalidation attempts before the pool destroys a key. The first attempt can fail
/// because another request of the queue failed. The second runs on a rebuilt queue and is decisive.
const INVALIDATE_ATTEMPTS: u32 = 2;

/// Maximum number of invalidations in front of a single bind. They are on the stack of a hot path,
/// and one release per bind is the usual case.
const CHAINED_MAX: usize = 8;

/// One chain in this number is timed: two clock reads take as long as the rest of a release.
const CHAINS_PER_SAMPLE: u64 = 64;

/// Requests in their order, and their slots.
struct Chain {
    ids: Vec<SlotId>,
    ops: Vec<UmrOp<'static>>,
}

/// A chain that did not complete. All its keys are already handled.
struct Stopped {
    /// Number of requests at the front that took effect.
    done: usize,
    source: DeviceError,
}

impl<D: MkeyDevice> Core<D> {
    /// The size of the key that the memory needs.
    #[inline]
    pub(crate) fn size_for(&self, span: &Span<'_>) -> Result<Size, PoolError> {
        match span.klm_entries() {
            entries if entries <= u64::from(self.hot.klm_entries) => Ok(Size::Short),
            entries if entries <= u64::from(self.policy.klm_entries) => Ok(Size::Long),
            _ => Err(self.too_long(span)),
        }
    }

    #[cold]
    fn too_long(&self, span: &Span<'_>) -> PoolError {
        PoolError::RegionTooLong {
            len: span.len(),
            entries: span.klm_entries(),
            entries_max: self.policy.klm_entries,
        }
    }

    /// Leases a key and binds it. After a failure the key is already handled.
    #[inline(never)]
    pub(crate) fn draw(&self, span: Span<'_>) -> Result<(SlotId, Mkey), PoolError> {
        match span.regions() {
            &[region] => match self.draw_region(self.thread(), region) {
                Ok(bound) => Ok((bound.slot(), bound.mkey())),
                Err(error) => Err(*error),
            },
            _ => self.draw_slowly(span),
        }
    }

    /// As [`Core::draw`], for one region, in the thread with this number. The result fits into registers.
    #[inline(always)]
    pub(crate) fn draw_region(
        &self,
        thread: usize,
        region: Region,
    ) -> Result<BoundKey, Box<PoolError>> {
        // Such a region takes one entry, and every key has one. Long keys are in no cache.
        if region.len() <= Region::KLM_BYTES_MAX
            && let Some(cache) = self.claim(thread)
            && let Some(id) = self.free_list.take_claimed(&cache)
        {
            // No other thread has the slot, so its state need not show the request.
            let mkey = self.slots.advance_mkey(id, State::Free, State::Bound);
            let ran = match cache.binds().is_multiple_of(CHAINS_PER_SAMPLE) {
                false => match self.quick.bind(mkey, region) {
                    Some(ran) => ran,
                    None => self.bind_by_run(mkey, region.addr(), region.len(), region.lkey()),
                },
                true => self.bind_timed(mkey, region.addr(), region.len(), region.lkey()),
            };
            return match ran {
                Ok(()) => {
                    cache.count_bind();
                    Ok(BoundKey::new(id, mkey))
                }
                Err(failed) => {
                    let (addr, len) = (region.addr(), region.len());
                    self.not_bound(BoundKey::new(id, mkey), addr, len, region.lkey(), failed)
                }
            };
        }
        self.draw_region_slowly(region.addr(), region.len(), region.lkey())
    }

    #[cold]
    fn bind_timed(
        &self,
        mkey: Mkey,
        addr: VirtAddr,
        len: u64,
        lkey: Lkey,
    ) -> Result<(), Box<ChainError>> {
        let start = Instant::now();
        let region = Region::of_parts(addr, len, lkey);
        match self.quick.bind(mkey, region) {
            Some(ran) => ran?,
            None => self.bind_by_run(mkey, addr, len, lkey)?,
        }
        self.latencies.bind.record(start.elapsed());
        Ok(())
    }

    #[cold]
    fn bind_by_run(
        &self,
        mkey: Mkey,
        addr: VirtAddr,
        len: u64,
        lkey: Lkey,
    ) -> Result<(), Box<ChainError>> {
        let span = Region::of_parts(addr, len, lkey).into();
        Ok(self.device.run(&[UmrOp::Bind { mkey, span }])?)
    }

    #[cold]
    fn draw_region_slowly(
        &self,
        addr: VirtAddr,
        len: u64,
        lkey: Lkey,
    ) -> Result<BoundKey, Box<PoolError>> {
        let region = Region::of_parts(addr, len, lkey);
        let (id, mkey) = self.draw_slowly(region.into())?;
        Ok(BoundKey::new(id, mkey))
    }

    /// Handles the key of a bind that failed.
    #[cold]
    #[expect(
        clippy::boxed_local,
        reason = "one register instead of a copy on the hot path's stack"
    )]
    fn not_bound(
        &self,
        key: BoundKey,
        addr: VirtAddr,
        len: u64,
        lkey: Lkey,
        failed: Box<ChainError>,
    ) -> Result<BoundKey, Box<PoolError>> {
        let (id, mkey) = (key.slot(), key.mkey());
        if !self.device.is_ours() {
            return Err(Box::new(PoolError::Forked));
        }
        self.counters.chains.one();
        self.slots.advance(id, State::Bound, State::Leased);
        let span = Region::of_parts(addr, len, lkey).into();
        match self.settle(&[id], &[UmrOp::Bind { mkey, span }], Some(*failed)) {
            Ok(()) => Ok(BoundKey::new(id, mkey)),
            Err(Stopped { source, .. }) => Err(Box::new(PoolError::Bind { mkey, source })),
        }
    }

    /// As [`Core::draw`], if the thread's cache is held or empty, or the policy does not bind directly.
    #[inline(never)]
    fn draw_slowly(&self, span: Span<'_>) -> Result<(SlotId, Mkey), PoolError> {
        if self.size_for(&span)? == Size::Long {
            return self.draw_long(span);
        }
        let inside = self.enter()?;
        self.flush_if_late();
        let taken = match self.is_queue() {
            false => self.take_free(Some(span.addr())),
            true => None,
        };
        let (id, _inside) = match taken {
            Some(id) => (id, inside),
            None => {
                // The call may wait for a key, and closing should not wait for that.
                drop(inside);
                (self.take_slowly()?, self.enter()?)
            }
        };
        let mkey = self.bind_inside(id, span)?;
        Ok((id, mkey))
    }

    /// As [`Core::draw`], for memory that needs a long key.
    #[cold]
    pub(crate) fn draw_long(&self, span: Span<'_>) -> Result<(SlotId, Mkey), PoolError> {
        self.flush_if_late();
        let id = self.take_long()?;
        let mkey = self.bind(id, span)?;
        Ok((id, mkey))
    }

    /// Binds a leased slot. After a failure the key is already handled.
    pub(crate) fn bind(&self, id: SlotId, span: Span<'_>) -> Result<Mkey, PoolError> {
        let _inside = self.enter()?;
        self.bind_inside(id, span)
    }

    #[inline]
    fn bind_inside(&self, id: SlotId, span: Span<'_>) -> Result<Mkey, PoolError> {
        let mkey = self.slots.mkey(id);
        self.free_list.remember(id, span.addr());
        let bind = UmrOp::Bind { mkey, span };
        let ran = match self.hot.invalidate {
            Invalidate::Chained => self.run_behind_invalidations(id, bind),
            Invalidate::Strict | Invalidate::Batched => self.run_bind(id, bind),
        };
        match ran {
            Ok(()) => Ok(mkey),
            Err(Stopped { source, .. }) => Err(PoolError::Bind { mkey, source }),
        }
    }

    /// Runs a single bind.
    #[inline]
    fn run_bind(&self, id: SlotId, bind: UmrOp<'_>) -> Result<(), Stopped> {
        let ops = [bind];
        match self.post(&ops, &self.latencies.bind) {
            Ok(()) => {
                self.bound(id);
                Ok(())
            }
            Err(failed) => self.settle(&[id], &ops, Some(failed)),
        }
    }

    /// Records that a bind took effect.
    #[inline]
    fn bound(&self, id: SlotId) {
        self.slots.advance(id, State::Leased, State::Bound);
        self.counters.binds.one();
        let others = match self.hot.is_direct {
            true => self.free_list.requests().bound(),
            false => 0,
        };
        self.counters.in_use.up(others);
    }

    /// Runs a bind behind the invalidations of keys that were released meanwhile.
    fn run_behind_invalidations(&self, id: SlotId, bind: UmrOp<'_>) -> Result<(), Stopped> {
        let (mut ids, mut ops) = ([id; CHAINED_MAX + 1], [bind; CHAINED_MAX + 1]);
        let mut chained = 0;
        while chained < CHAINED_MAX
            && let Some(released) = self.pending.pop()
        {
            ids[chained] = released;
            ops[chained] = self.invalidation(released);
            chained += 1;
        }
        // The bind comes last: the entries behind the invalidations already hold it.
        self.run(&ids[..=chained], &ops[..=chained])
    }

    /// Binds leased slots, with chains as long as the device allows. Slots that remain unbound are
    /// already handled.
    pub(crate) fn bind_many(&self, leased: &[(SlotId, Region)]) -> Vec<Result<Mkey, PoolError>> {
        let _inside = match self.enter() {
            Ok(inside) => inside,
            Err(error) => return leased.iter().map(|_| Err(error.clone())).collect(),
        };
        let weight_max = self.device.limits().chain_ops_max.max(1);
        let mut results = Vec::with_capacity(leased.len());
        let mut chain = Chain::with_capacity(leased.len());
        let mut weight = 0;
        if self.policy.invalidate == Invalidate::Chained {
            // At most half of the chain: invalidations then keep pace with exports.
            while weight < weight_max / 2
                && let Some(released) = self.pending.pop()
            {
                let op = self.invalidation(released);
                weight += op.weight();
                chain.push(released, op);
            }
        }
        for (id, region) in leased {
            let bind = UmrOp::Bind {
                mkey: self.slots.mkey(*id),
                span: (*region).into(),
            };
            if weight + bind.weight() > weight_max && !chain.ops.is_empty() {
                self.run_binds(&mut chain, &mut results);
                weight = 0;
            }
            weight += bind.weight();
            chain.push(*id, bind);
        }
        self.run_binds(&mut chain, &mut results);
        results
    }

    /// Runs the chain, empties it, and appends the result of each of its binds.
    fn run_binds(&self, chain: &mut Chain, results: &mut Vec<Result<Mkey, PoolError>>) {
        let stopped = self.run(&chain.ids, &chain.ops).err();
        for (number, op) in chain.ops.iter().enumerate() {
            let UmrOp::Bind { mkey, .. } = *op else {
                continue;
            };
            results.push(match &stopped {
                Some(Stopped { done, source }) if number >= *done => Err(PoolError::Bind {
                    mkey,
                    source: source.clone(),
                }),
                _ => Ok(mkey),
            });
        }
        chain.clear();
    }

    /// Invalidates a bound key, now or later according to the policy.
    pub(crate) fn release(&self, id: SlotId, mkey: Mkey) -> Result<(), ReleaseError> {
        let released = self.release_in(self.thread(), id, mkey);
        released.map_err(|error| *error)
    }

    /// As [`Core::release`], in the thread with this number.
    #[inline(always)]
    pub(crate) fn release_in(
        &self,
        thread: usize,
        id: SlotId,
        mkey: Mkey,
    ) -> Result<(), Box<ReleaseError>> {
        let Some(cache) = self.claim(thread) else {
            return self.release_slowly(id, mkey);
        };
        // Free before the request: a second release must not find it bound. No other thread gets the slot
        // before it is in the cache.
        if !self.slots.try_advance(id, State::Bound, State::Free) {
            // A long key, which is in no cache.
            drop(cache);
            return self.release_slowly(id, mkey);
        }
        let number = cache.count_release();
        let ran = match number.is_multiple_of(CHAINS_PER_SAMPLE) {
            false => match self.quick.invalidate(mkey) {
                Some(ran) => ran,
                None => self.invalidate_by_run(mkey),
            },
            true => self.invalidate_timed(mkey),
        };
        match ran {
            Ok(()) => {
                cache.count_invalidate();
                self.free_list.put_claimed(&cache, id);
                Ok(())
            }
            Err(failed) => self.not_invalidated(id, mkey, *failed),
        }
    }

    #[cold]
    fn invalidate_timed(&self, mkey: Mkey) -> Result<(), Box<ChainError>> {
        let start = Instant::now();
        match self.quick.invalidate(mkey) {
            Some(ran) => ran?,
            None => self.invalidate_by_run(mkey)?,
        }
        self.latencies.invalidate.record(start.elapsed());
        Ok(())
    }

    #[cold]
    fn invalidate_by_run(&self, mkey: Mkey) -> Result<(), Box<ChainError>> {
        Ok(self.device.run(&[UmrOp::Invalidate { mkey }])?)
    }

    /// Handles a key whose first invalidation failed.
    #[cold]
    fn not_invalidated(
        &self,
        id: SlotId,
        mkey: Mkey,
        failed: ChainError,
    ) -> Result<(), Box<ReleaseError>> {
        // A key in a forked child belongs to the parent.
        if !self.device.is_ours() {
            return Ok(());
        }
        self.slots.advance(id, State::Free, State::Unsure);
        Ok(self.clean_again(id, mkey, failed)?)
    }

    /// As [`Core::release`], if the thread's cache is held, or the policy does not invalidate directly.
    #[inline(never)]
    fn release_slowly(&self, id: SlotId, mkey: Mkey) -> Result<(), Box<ReleaseError>> {
        // Closing a pool has already destroyed the key. A key in a forked child belongs to the
        // parent.
        let Ok(_inside) = self.enter() else {
            return Ok(());
        };
        self.counters.in_use.down();
        if self.hot.invalidate != Invalidate::Strict {
            self.release_later(id);
            return Ok(());
        }
        self.slots.advance(id, State::Bound, State::Unsure);
        match self.post(&[UmrOp::Invalidate { mkey }], &self.latencies.invalidate) {
            Ok(()) => {
                self.cleaned(id);
                Ok(())
            }
            Err(failed) => Ok(self.clean_again(id, mkey, failed)?),
        }
    }

    /// Queues a released key for its invalidation together with others.
    #[inline(never)]
    fn release_later(&self, id: SlotId) {
        self.slots.advance(id, State::Bound, State::Pending);
        self.pending.push(id);
        self.note_pending();
        if self.pending.len() >= self.policy.batch_ops as usize {
            self.flush_batch();
        } else {
            self.flush_if_late();
        }
    }

    /// Nanoseconds since the pool was opened, never zero. Called only if keys wait: a clock read
    /// takes as long as the rest of a release.
    fn now_ns(&self) -> u64 {
        // 64 bits of nanoseconds are five centuries.
        u64::try_from(self.epoch.elapsed().as_nanos()).map_or(u64::MAX, |now| now.max(1))
    }

    /// Starts the time of a batch, if it is not running.
    fn note_pending(&self) {
        let order = Ordering::Relaxed;
        if self.pending_since.load(order) == 0
            && self
                .pending_since
                .compare_exchange(0, self.now_ns(), order, order)
                .is_ok()
            && self.policy.keeper
        {
            self.keeper.kick();
        }
    }

    /// Remaining time of the longest waiting key; `None` if no key waits.
    pub(crate) fn batch_time_left(&self) -> Option<Duration> {
        let since = match self.pending_since.load(Ordering::Relaxed) {
            0 => return None,
            since => since,
        };
        let waited = Duration::from_nanos(self.now_ns().saturating_sub(since));
        Some(self.policy.batch_time.saturating_sub(waited))
    }

    /// Invalidates the waiting keys if the first of them has waited long enough.
    #[inline]
    pub(crate) fn flush_if_late(&self) {
        if self.pending_since.load(Ordering::Relaxed) != 0
            && self.batch_time_left() == Some(Duration::ZERO)
        {
            self.flush();
        }
    }

    /// Invalidates all waiting keys. Returns their number.
    pub(crate) fn flush(&self) -> usize {
        let Ok(_inside) = self.enter() else {
            return 0;
        };
        let mut flushed = 0;
        // Only the keys that wait now: other threads may continue to release.
        let mut batches = self.pending.len().div_ceil(self.policy.batch_ops as usize);
        while batches > 0 {
            flushed += self.flush_batch();
            batches -= 1;
        }
        flushed
    }

    fn flush_batch(&self) -> usize {
        let batch = self.policy.batch_ops as usize;
        // Before the first pop: a release meanwhile restarts the time.
        self.pending_since.store(0, Ordering::SeqCst);
        let mut chain = Chain::with_capacity(batch);
        while chain.ops.len() < batch
            && let Some(released) = self.pending.pop()
        {
            let op = self.invalidation(released);
            chain.push(released, op);
        }
        // The pool cleans each failed key, and reports lost keys to the observer.
        let _stopped = self.run(&chain.ids, &chain.ops);
        if self.pending.len() > 0 {
            // Other threads have released more than a batch.
            self.note_pending();
        }
        chain.ops.len()
    }

    /// The request that invalidates a pending key.
    fn invalidation(&self, id: SlotId) -> UmrOp<'static> {
        self.slots.advance(id, State::Pending, State::Unsure);
        UmrOp::Invalidate {
            mkey: self.slots.mkey(id),
        }
    }

    /// Runs a chain and moves each key to its next state: bound, free, or cleaned.
    fn run(&self, ids: &[SlotId], ops: &[UmrOp<'_>]) -> Result<(), Stopped> {
        let Some(last) = ops.last() else {
            return Ok(());
        };
        let times = match last {
            UmrOp::Bind { .. } => &self.latencies.bind,
            UmrOp::Invalidate { .. } => &self.latencies.invalidate,
        };
        let failed = self.post(ops, times).err();
        self.settle(ids, ops, failed)
    }

    /// Moves the key of each request to its next state according to the result of the chain.
    fn settle(
        &self,
        ids: &[SlotId],
        ops: &[UmrOp<'_>],
        failed: Option<ChainError>,
    ) -> Result<(), Stopped> {
        let done = failed.as_ref().map_or(ops.len(), |failed| failed.done);
        // The device has not begun a chain that it does not support: the keys to bind are still
        // free.
        let not_posted = failed.as_ref().is_some_and(|failed| {
            let is_refused = matches!(failed.source, DeviceError::Unsupported { .. });
            is_refused && failed.rest == Rest::NotDone
        });
        for (number, (id, op)) in ids.iter().zip(ops).enumerate() {
            match (op, number < done) {
                (UmrOp::Bind { .. }, true) => self.bound(*id),
                (UmrOp::Invalidate { .. }, true) => {
                    self.slots.advance(*id, State::Unsure, State::Free);
                    self.counters.invalidates.one();
                    self.give(*id);
                }
                (UmrOp::Bind { .. }, false) if not_posted => {
                    self.counters.bind_failures.one();
                    self.give_back(*id);
                }
                (UmrOp::Bind { mkey, .. }, false) => {
                    self.counters.bind_failures.one();
                    // Even a refused request may have modified the key.
                    self.slots.advance(*id, State::Leased, State::Unsure);
                    let _lost = self.clean(*id, *mkey);
                }
                (UmrOp::Invalidate { mkey }, false) => {
                    self.counters.invalidate_failures.one();
                    let _lost = self.clean(*id, *mkey);
                }
            }
        }
        match failed {
            None => Ok(()),
            Some(ChainError { done, source, .. }) => Err(Stopped { done, source }),
        }
    }

    #[inline]
    fn post(&self, ops: &[UmrOp<'_>], times: &Times) -> Result<(), ChainError> {
        let number = self.counters.chains.next();
        match number.is_multiple_of(CHAINS_PER_SAMPLE) {
            false => self.device.run(ops),
            true => self.post_timed(ops, times),
        }
    }

    #[cold]
    fn post_timed(&self, ops: &[UmrOp<'_>], times: &Times) -> Result<(), ChainError> {
        let start = Instant::now();
        self.device.run(ops)?;
        times.record(start.elapsed());
        Ok(())
    }

    /// Returns an invalidated key to the free list.
    #[inline(always)]
    fn cleaned(&self, id: SlotId) {
        self.counters.invalidates.one();
        self.slots.advance(id, State::Unsure, State::Free);
        self.give(id);
    }

    /// Invalidates or destroys a leased key that may be bound.
    #[cold]
    pub(crate) fn clean_leased(&self, id: SlotId) -> Result<(), ReleaseError> {
        // Closing a pool destroys all keys.
        let Ok(_inside) = self.enter() else {
            return Ok(());
        };
        self.slots.advance(id, State::Leased, State::Unsure);
        self.clean(id, self.slots.mkey(id))
    }

    /// Invalidates a key of unknown state, or destroys it. Never pools a key that is not known to
    /// be free.
    #[cold]
    fn clean(&self, id: SlotId, mkey: Mkey) -> Result<(), ReleaseError> {
        match self.post(&[UmrOp::Invalidate { mkey }], &self.latencies.invalidate) {
            Ok(()) => {
                self.cleaned(id);
                Ok(())
            }
            Err(failed) => self.clean_again(id, mkey, failed),
        }
    }

    /// Continues after the first invalidation of a key failed.
    #[cold]
    fn clean_again(&self, id: SlotId, mkey: Mkey, first: ChainError) -> Result<(), ReleaseError> {
        let mut invalidate = first.source;
        self.counters.invalidate_failures.one();
        for _attempt in 1..INVALIDATE_ATTEMPTS {
            match self.post(&[UmrOp::Invalidate { mkey }], &self.latencies.invalidate) {
                Ok(()) => {
                    self.cleaned(id);
                    return Ok(());
                }
                Err(ChainError { source, .. }) => {
                    self.counters.invalidate_failures.one();
                    invalidate = source;
                }
            }
        }
        self.destroy(id).map_err(|destroy| {
            self.tell(|| PoolEvent::Lost {
                mkey,
                error: destroy.clone(),
            });
            ReleaseError {
                mkey,
                invalidate,
                destroy,
            }
        })
    }
}

impl Chain {
    fn with_capacity(capacity: usize) -> Self {
        Self {
            ids: Vec::with_capacity(capacity),
            ops: Vec::with_capacity(capacity),
        }
    }

    fn push(&mut self, id: SlotId, op: UmrOp<'static>) {
        self.ids.push(id);
        self.ops.push(op);
    }

    fn clear(&mut self) {
        self.ids.clear();
        self.ops.clear();
    }
}
