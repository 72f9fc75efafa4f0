//! One registration: memory handle, address, length and kind of export, in one cache line.

use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(not(loom))]
use std::{hint, thread};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(loom)]
use loom::{hint, thread};

use xgvmi_pool::BoundKey;

use crate::abi::MdHandle;
use crate::rkey::Memory;

/// Registered memory of a domain. The fields are atomics: a concurrent use of a reused line, which
/// UCX's interface forbids, gives wrong values but no undefined behaviour.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Registration {
    /// Address of the memory handle that has this line; [`NO_MEMH`] if none has it. Claimed under the
    /// line's lock.
    pub(super) memh: AtomicUsize,
    /// Address of the memory domain.
    pub(super) md: AtomicUsize,
    address: AtomicUsize,
    length: AtomicUsize,
    /// The kind of export, see [`Decision`].
    exported: AtomicU64,
    lkey: AtomicU32,
    /// Number of handles whose first line is this one and that have another one. Written under the lock.
    pub(super) displaced: AtomicU32,
    /// Held for the claim of the line, and of others for handles of this line.
    is_locked: AtomicBool,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Registration>() == 64);

/// No memory handle has this address.
pub(super) const NO_MEMH: usize = 0;

/// A thread is about to decide. The value of a free line, so that the thread that claims one decides.
const DECIDING: u64 = 0;
const NATIVELY: u64 = 1;
/// Recorded, and not exported yet. No key has these bits: they are above 2^32.
const UNDECIDED: u64 = 2;

/// Looks at a decision before the thread yields to others: some microseconds.
const SPINS: u32 = if cfg!(loom) { 1 } else { 256 };

/// Kind of export of a memory handle. The first export decides, and all importers of the handle
/// then get one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exported {
    /// Not exported.
    No,
    /// By UCX's own operation.
    Natively,
    /// With a key of the pool.
    FromPool(BoundKey),
}

impl Exported {
    #[inline(always)]
    pub(crate) const fn of(bits: u64) -> Self {
        match bits {
            NATIVELY => Self::Natively,
            DECIDING | UNDECIDED => Self::No,
            bits => Self::FromPool(BoundKey::from_bits(bits)),
        }
    }

    pub(crate) const fn bits(self) -> u64 {
        match self {
            Self::No => UNDECIDED,
            Self::Natively => NATIVELY,
            Self::FromPool(key) => key.to_bits(),
        }
    }
}

/// The held lock of a line, until the drop.
#[derive(Debug)]
pub(super) struct Locked<'a>(&'a Registration);

impl Drop for Locked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.is_locked.store(false, Ordering::Release);
    }
}

impl Registration {
    /// A line that no memory handle has.
    #[cfg(not(loom))]
    #[expect(
        clippy::declare_interior_mutable_const,
        reason = "each line of the table is a new value"
    )]
    pub(super) const NONE: Self = Self {
        memh: AtomicUsize::new(NO_MEMH),
        md: AtomicUsize::new(0),
        address: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        exported: AtomicU64::new(DECIDING),
        lkey: AtomicU32::new(0),
        displaced: AtomicU32::new(0),
        is_locked: AtomicBool::new(false),
    };

    /// Locks the line, if it is not locked.
    #[inline(always)]
    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        let order = (Ordering::Acquire, Ordering::Relaxed);
        let locked = self
            .is_locked
            .compare_exchange(false, true, order.0, order.1);
        locked.is_ok().then(|| Locked(self))
    }

    /// Locks the line. Its holder needs some dozens of instructions.
    #[inline(always)]
    pub(super) fn lock(&self) -> Locked<'_> {
        match self.try_lock() {
            Some(locked) => locked,
            None => self.wait_for_lock(),
        }
    }

    #[cold]
    fn wait_for_lock(&self) -> Locked<'_> {
        let mut looks = 0;
        loop {
            pause(&mut looks);
            if let Some(locked) = self.try_lock() {
                return locked;
            }
        }
    }

    /// True if handles whose first line is this one have another one.
    #[inline(always)]
    pub(super) fn has_displaced(&self) -> bool {
        self.displaced.load(Ordering::Relaxed) != 0
    }

    /// True if the line is that of the memory handle.
    #[inline(always)]
    pub(super) fn is_of(&self, memh: usize) -> bool {
        self.memh.load(Ordering::Acquire) == memh
    }

    /// Records a registration in a free line whose lock the caller holds. The handle comes last: others
    /// find the line by it.
    #[inline(always)]
    pub(super) fn fill(&self, memh: usize, md: MdHandle, memory: Memory) {
        self.md.store(md.addr(), Ordering::Relaxed);
        self.address.store(memory.address, Ordering::Relaxed);
        self.length.store(memory.length, Ordering::Relaxed);
        self.lkey.store(memory.lkey, Ordering::Relaxed);
        self.memh.store(memh, Ordering::Release);
    }

    /// Takes the line away from its handle, which its domain deregisters or which ends with its domain.
    /// UCX does each once, and never both. Returns the kind of export.
    #[inline(always)]
    pub(super) fn take(&self) -> Exported {
        let exported = self.exported();
        self.exported.store(DECIDING, Ordering::Relaxed);
        self.memh.store(NO_MEMH, Ordering::Release);
        exported
    }

    /// Address of the memory domain.
    pub(super) fn md(&self) -> usize {
        self.md.load(Ordering::Relaxed)
    }

    /// The memory.
    #[inline(always)]
    pub(crate) fn memory(&self) -> Memory {
        Memory {
            address: self.address.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
            lkey: self.lkey.load(Ordering::Relaxed),
        }
    }

    /// The kind of export.
    #[inline(always)]
    pub(crate) fn exported(&self) -> Exported {
        Exported::of(self.exported.load(Ordering::Acquire))
    }

    /// The kind of export once it is decided. After [`Exported::No`] the calling thread decides: it calls
    /// [`Registration::decide`].
    #[inline(always)]
    pub(super) fn decision(&self) -> Exported {
        match self.exported() {
            Exported::No => self.await_decision(),
            exported => exported,
        }
    }

    #[cold]
    fn await_decision(&self) -> Exported {
        let mut looks = 0;
        loop {
            match self.exported.load(Ordering::Acquire) {
                DECIDING => pause(&mut looks),
                UNDECIDED => {
                    let order = (Ordering::Acquire, Ordering::Relaxed);
                    let begun = self
                        .exported
                        .compare_exchange(UNDECIDED, DECIDING, order.0, order.1);
                    if begun.is_ok() {
                        return Exported::No;
                    }
                }
                bits => return Exported::of(bits),
            }
        }
    }

    /// Decides the kind of export, in the thread that got [`Exported::No`] or filled the line.
    #[inline(always)]
    pub(crate) fn decide(&self, exported: Exported) {
        self.exported.store(exported.bits(), Ordering::Release);
    }
}

/// Waits for another thread: spins, then yields.
fn pause(looks: &mut u32) {
    *looks = looks.saturating_add(1);
    match *looks < SPINS {
        true => hint::spin_loop(),
        false => thread::yield_now(),
    }
}
