//! The pool: keys that were created once and are bound again and again.
//!
//! It decides which key, when to create, and what becomes of a key whose request failed; the device
//! does the rest. A key is handed out only in the free state.

use std::fmt;
use std::time::Duration;

use crate::device::{MkeyDevice, MkeySpec, UmrOp};
use crate::error::{ChainError, DeviceError, PoolError, ReleaseError};
use crate::gate::Gate;
use crate::key::{Gvmi, Mkey};
use crate::policy::{Invalidate, OnFull, PoolPolicy};
use crate::region::Region;
use crate::shelf::Shelf;
use crate::slots::{SlotId, Slots, State};
use crate::stats::{PoolCounters, PoolStats};
use crate::sync::{Arc, AtomicU32, Mutex, Ordering, lock};

/// Invalidations that are tried before a key is destroyed. The first can fail through no fault of
/// its own, when another request of the queue did; on a queue that was rebuilt the second one tells.
const INVALIDATE_ATTEMPTS: u32 = 2;

/// How long closing waits for calls that are inside the device. Commands are bounded by the kernel;
/// what is still inside after that hangs in the kernel, and its objects are left alone.
const CLOSE_WAIT: Duration = Duration::from_secs(60);

/// A pool of keys of one function. Cheap to clone; all clones are the same pool.
#[derive(Debug)]
pub struct MkeyPool<D: MkeyDevice> {
    inner: Arc<Inner<D>>,
}

impl<D: MkeyDevice> Clone for MkeyPool<D> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

#[derive(Debug)]
struct Inner<D: MkeyDevice> {
    device: Arc<D>,
    policy: PoolPolicy,
    spec: MkeySpec,
    gvmi: Gvmi,
    gate: Gate,
    slots: Slots,
    shelf: Shelf,
    /// Slots without a key. Its lock also guards `cap`, both being of the control path.
    vacant: Mutex<Vec<SlotId>>,
    /// Keys that the pool may have; lower than the policy's once the device was full.
    cap: AtomicU32,
    counters: PoolCounters,
}

impl<D: MkeyDevice> MkeyPool<D> {
    /// A pool over the device, with as many keys as the policy wants at once. A prefill that the
    /// device cuts short is not an error: the rest is created when it is needed.
    ///
    /// # Errors
    /// If the policy cannot be followed.
    pub fn open(device: Arc<D>, policy: PoolPolicy) -> Result<Self, PoolError> {
        let policy = policy.checked(device.limits())?;
        let slots = Slots::new(policy.mkeys_max);
        // From the back, so that slot 0 is used first.
        let vacant = slots.ids().rev().collect();
        let inner = Inner {
            spec: MkeySpec {
                klm_entries: policy.klm_entries,
                access_key: policy.access_key.clone(),
            },
            gvmi: device.gvmi(),
            gate: Gate::new(),
            slots,
            shelf: Shelf::new(policy.mkeys_max),
            vacant: Mutex::new(vacant),
            cap: AtomicU32::new(policy.mkeys_max),
            counters: PoolCounters::default(),
            device,
            policy,
        };
        let pool = Self {
            inner: Arc::new(inner),
        };
        pool.prefill(pool.inner.policy.prefill);
        Ok(pool)
    }

    /// Creates keys until the pool has `count` of them free, or may have no more. Returns how many
    /// are free then.
    pub fn prefill(&self, count: u32) -> usize {
        let inner = &*self.inner;
        while inner.shelf.len() < count as usize {
            match inner.create(State::Free) {
                Ok(id) => inner.shelf.put(id),
                Err(_) => break,
            }
        }
        inner.shelf.len()
    }

    /// A free key, out of the pool or newly created.
    ///
    /// # Errors
    /// If all keys are in use, or a new one cannot be created.
    pub fn lease(&self) -> Result<Lease<'_, D>, PoolError> {
        let id = self.inner.take()?;
        Ok(Lease {
            inner: &self.inner,
            id: Some(id),
        })
    }

    /// A key that stands for the region. One work request if the pool has a free key.
    ///
    /// # Errors
    /// As [`MkeyPool::lease`]; if the region is too long for a pooled key; if the bind fails.
    pub fn export(&self, region: Region) -> Result<Export<D>, PoolError> {
        self.inner.check_length(&region)?;
        let id = self.inner.take()?;
        let mkey = self.inner.bind(id, region)?;
        Ok(Export {
            inner: Arc::clone(&self.inner),
            id: Some(id),
            mkey,
            region,
        })
    }

    /// The function that the keys belong to.
    #[must_use]
    pub fn gvmi(&self) -> Gvmi {
        self.inner.gvmi
    }

    /// The numbers so far.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.inner.counters.snapshot()
    }

    /// How many keys are where.
    #[must_use]
    pub fn levels(&self) -> PoolLevels {
        let mut levels = PoolLevels {
            cap: self.inner.cap.load(Ordering::Relaxed),
            ..PoolLevels::default()
        };
        for id in self.inner.slots.ids() {
            match self.inner.slots.state(id) {
                State::Vacant => {}
                State::Free => levels.free += 1,
                State::Leased => levels.leased += 1,
                State::Bound => levels.bound += 1,
                State::Unsure => levels.unsure += 1,
                State::Lost => levels.lost += 1,
            }
        }
        levels
    }

    /// Destroys all keys, those that are still leased or bound as well. What is released later is
    /// already dead. The device stays open. True if nothing is left behind.
    pub fn close(&self) -> bool {
        self.inner.close()
    }
}

/// How many keys are in which state. A key that moves meanwhile may be counted twice or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolLevels {
    /// Keys that the pool may have at present.
    pub cap: u32,
    /// Keys that wait to be used.
    pub free: u32,
    /// Keys in somebody's hands that stand for nothing yet.
    pub leased: u32,
    /// Keys that stand for a region.
    pub bound: u32,
    /// Keys that are being invalidated or destroyed.
    pub unsure: u32,
    /// Keys that could be neither invalidated nor destroyed.
    pub lost: u32,
}

/// A free key in one's hands. Goes back to the pool when dropped.
#[derive(Debug)]
pub struct Lease<'a, D: MkeyDevice> {
    inner: &'a Arc<Inner<D>>,
    /// Empty once the lease has become an export.
    id: Option<SlotId>,
}

impl<D: MkeyDevice> Lease<'_, D> {
    /// Makes the key stand for the region.
    ///
    /// # Errors
    /// If the region is too long for a pooled key, or the bind fails.
    pub fn bind(mut self, region: Region) -> Result<Export<D>, PoolError> {
        self.inner.check_length(&region)?;
        let Some(id) = self.id.take() else {
            return Err(PoolError::Closed);
        };
        let mkey = self.inner.bind(id, region)?;
        Ok(Export {
            inner: Arc::clone(self.inner),
            id: Some(id),
            mkey,
            region,
        })
    }
}

impl<D: MkeyDevice> Drop for Lease<'_, D> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.inner.give_back(id);
        }
    }
}

/// A key that stands for a region. Released when dropped; [`Export::release`] also says how it went.
pub struct Export<D: MkeyDevice> {
    inner: Arc<Inner<D>>,
    /// Empty once released.
    id: Option<SlotId>,
    mkey: Mkey,
    region: Region,
}

impl<D: MkeyDevice> Export<D> {
    /// The key to send to the importer.
    #[must_use]
    pub fn mkey(&self) -> Mkey {
        self.mkey
    }

    /// The function that the key belongs to, to send along.
    #[must_use]
    pub fn gvmi(&self) -> Gvmi {
        self.inner.gvmi
    }

    /// What the key stands for.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// Gives the key back. When this returns without error, nobody reaches the region through it
    /// any more.
    ///
    /// # Errors
    /// If the key could be neither invalidated nor destroyed.
    pub fn release(mut self) -> Result<(), ReleaseError> {
        match self.id.take() {
            Some(id) => self.inner.release(id, self.mkey),
            None => Ok(()),
        }
    }
}

impl<D: MkeyDevice> Drop for Export<D> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            // A key that is lost is counted; there is nobody here to be told.
            let _lost = self.inner.release(id, self.mkey);
        }
    }
}

impl<D: MkeyDevice> fmt::Debug for Export<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("gvmi", &self.inner.gvmi)
            .field("mkey", &self.mkey)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

impl<D: MkeyDevice> Inner<D> {
    fn check_length(&self, region: &Region) -> Result<(), PoolError> {
        let (entries, entries_max) = (region.klm_entries(), self.policy.klm_entries);
        if entries > u64::from(entries_max) {
            return Err(PoolError::RegionTooLong {
                len: region.len(),
                entries,
                entries_max,
            });
        }
        Ok(())
    }

    /// A slot in the state `Leased`.
    fn take(&self) -> Result<SlotId, PoolError> {
        if self.gate.is_shut() {
            return Err(PoolError::Closed);
        }
        if let Some(id) = self.shelf.take() {
            self.slots.advance(id, State::Free, State::Leased);
            self.counters.hits.one();
            return Ok(id);
        }
        self.counters.misses.one();
        let result = self.create(State::Leased);
        if result.is_err() {
            self.counters.refusals.one();
        }
        result
    }

    /// Creates a key in a vacant slot.
    fn create(&self, state: State) -> Result<SlotId, PoolError> {
        let _inside = self.gate.enter().ok_or(PoolError::Closed)?;
        let id = self.reserve()?;
        match self.device.create_mkey(&self.spec) {
            Ok(index) => {
                self.slots.fill(id, index, state);
                self.counters.creates.one();
                Ok(id)
            }
            Err(error) => {
                let mut vacant = lock(&self.vacant);
                vacant.push(id);
                self.counters.create_failures.one();
                if !error.is_limit() {
                    return Err(PoolError::Create(error));
                }
                // The device is full: what the pool has now is what it can have.
                let live = self.policy.mkeys_max - len_u32(&vacant);
                self.cap.store(live, Ordering::Relaxed);
                self.counters.cap_lowered.one();
                Err(PoolError::Full { mkeys_max: live })
            }
        }
    }

    /// A vacant slot, if the cap allows another key.
    fn reserve(&self) -> Result<SlotId, PoolError> {
        let mut vacant = lock(&self.vacant);
        let cap = self.cap.load(Ordering::Relaxed);
        let live = self.policy.mkeys_max - len_u32(&vacant);
        if live < cap
            && let Some(id) = vacant.pop()
        {
            return Ok(id);
        }
        match self.policy.on_full {
            OnFull::Fail => Err(PoolError::Full { mkeys_max: cap }),
        }
    }

    /// Binds a leased slot. If it fails, the key goes where it belongs.
    fn bind(&self, id: SlotId, region: Region) -> Result<Mkey, PoolError> {
        let Some(_inside) = self.gate.enter() else {
            return Err(PoolError::Closed);
        };
        let mkey = Mkey::new(self.slots.index(id), self.policy.tag);
        self.counters.chains.one();
        match self.device.run(&[UmrOp::Bind { mkey, region }]) {
            Ok(()) => {
                self.slots.advance(id, State::Leased, State::Bound);
                self.counters.binds.one();
                Ok(mkey)
            }
            Err(ChainError { source, .. }) => {
                self.counters.bind_failures.one();
                // Even a request that was refused may have left something behind in the key.
                self.slots.advance(id, State::Leased, State::Unsure);
                let _lost = self.clean(id, mkey);
                Err(PoolError::Bind { mkey, source })
            }
        }
    }

    /// Puts an unbound key back.
    fn give_back(&self, id: SlotId) {
        if !self.gate.is_shut() {
            self.slots.advance(id, State::Leased, State::Free);
            self.shelf.put(id);
        }
    }

    /// Makes a bound key free again and puts it back.
    fn release(&self, id: SlotId, mkey: Mkey) -> Result<(), ReleaseError> {
        // A pool that is closed has destroyed the key already.
        let Some(_inside) = self.gate.enter() else {
            return Ok(());
        };
        self.slots.advance(id, State::Bound, State::Unsure);
        match self.policy.invalidate {
            Invalidate::Strict => self.clean(id, mkey),
        }
    }

    /// Brings a key of unknown state into the free state, or destroys it. Never pools one that is
    /// not known to be free.
    fn clean(&self, id: SlotId, mkey: Mkey) -> Result<(), ReleaseError> {
        let invalidate = match self.invalidate(mkey) {
            Ok(()) => {
                self.slots.advance(id, State::Unsure, State::Free);
                self.shelf.put(id);
                return Ok(());
            }
            Err(error) => error,
        };
        match self.device.destroy_mkey(mkey.index()) {
            Ok(()) => {
                self.counters.destroys.one();
                self.slots.advance(id, State::Unsure, State::Vacant);
                lock(&self.vacant).push(id);
                Ok(())
            }
            Err(destroy) => {
                self.counters.lost.one();
                self.slots.advance(id, State::Unsure, State::Lost);
                Err(ReleaseError {
                    mkey,
                    invalidate,
                    destroy,
                })
            }
        }
    }

    fn invalidate(&self, mkey: Mkey) -> Result<(), DeviceError> {
        let mut attempt = 1;
        loop {
            self.counters.chains.one();
            match self.device.run(&[UmrOp::Invalidate { mkey }]) {
                Ok(()) => {
                    self.counters.invalidates.one();
                    return Ok(());
                }
                Err(ChainError { source, .. }) => {
                    self.counters.invalidate_failures.one();
                    if attempt == INVALIDATE_ATTEMPTS {
                        return Err(source);
                    }
                    attempt += 1;
                }
            }
        }
    }

    fn close(&self) -> bool {
        if !self.gate.shut() {
            return true;
        }
        if !self.gate.wait_empty(CLOSE_WAIT) {
            // Somebody hangs inside the device; taking it away under them would be worse.
            return false;
        }
        let mut clean = true;
        for id in self.slots.ids() {
            match self.slots.state(id) {
                State::Vacant => continue,
                State::Lost => clean = false,
                State::Free | State::Leased | State::Bound | State::Unsure => {}
            }
            match self.device.destroy_mkey(self.slots.index(id)) {
                Ok(()) => self.counters.destroys.one(),
                Err(_) => clean = false,
            }
        }
        clean
    }
}

impl<D: MkeyDevice> Drop for Inner<D> {
    fn drop(&mut self) {
        // The last handle and the last export are gone, so nobody is inside and this does not wait.
        self.close();
    }
}

fn len_u32(slots: &[SlotId]) -> u32 {
    // Cannot be lost: there are no more slots than `mkeys_max`, which is u32.
    u32::try_from(slots.len()).unwrap_or(u32::MAX)
}
