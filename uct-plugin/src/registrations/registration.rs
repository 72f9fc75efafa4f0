//! One registration: address, length and kind of export, in one cache line.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use xgvmi_pool::BoundKey;

use crate::abi::MdHandle;

/// Registered memory of a domain. The fields are atomics: a concurrent use of a reused line, which
/// UCX's interface forbids, gives wrong values but no undefined behaviour.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Registration {
    /// Address of the memory handle that has this line; [`NO_MEMH`] if none has it. Unused in the
    /// overflow, which has its own index.
    pub(super) memh: AtomicUsize,
    /// Address of the memory domain; [`NO_MD`] while the line is claimed or released.
    pub(super) md: AtomicUsize,
    address: AtomicUsize,
    length: AtomicUsize,
    /// [`UNDECIDED`], [`NATIVELY`], or the bits of a bound key.
    exported: AtomicU64,
    /// Number of the thread that alone claims the line, plus one; [`NO_HOME`] if none does. Unused in
    /// the overflow.
    home: AtomicUsize,
}

const _: () = assert!(size_of::<Registration>() == 64);

/// No memory handle has this address.
pub(super) const NO_MEMH: usize = 0;
/// No memory domain has this address.
pub(super) const NO_MD: usize = 0;

/// No thread claims the line.
const NO_HOME: usize = 0;

/// No key has these bits: they are above 2^32.
const UNDECIDED: u64 = 0;
const NATIVELY: u64 = 1;

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
    pub(crate) const fn of(bits: u64) -> Self {
        match bits {
            UNDECIDED => Self::No,
            NATIVELY => Self::Natively,
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

impl Registration {
    /// A line that no memory handle has.
    #[expect(
        clippy::declare_interior_mutable_const,
        reason = "each line of the table is a new value"
    )]
    pub(super) const NONE: Self = Self {
        memh: AtomicUsize::new(NO_MEMH),
        md: AtomicUsize::new(NO_MD),
        address: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        exported: AtomicU64::new(UNDECIDED),
        home: AtomicUsize::new(NO_HOME),
    };

    /// True if the thread with this number alone claims the line.
    #[inline(always)]
    pub(super) fn is_home_of(&self, thread: usize) -> bool {
        self.home.load(Ordering::Relaxed) == thread + 1
    }

    /// Gives the line to the thread with this number, unless another thread has it.
    #[inline(always)]
    pub(super) fn take_home(&self, thread: usize) -> bool {
        let order = Ordering::Relaxed;
        let taken = self
            .home
            .compare_exchange(NO_HOME, thread + 1, order, order);
        taken.is_ok()
    }

    /// Claims a line of the calling thread for a memory handle, if no handle has it. A load and a store
    /// are enough, because no other thread claims the line.
    #[inline(always)]
    pub(super) fn claim(&self, memh: usize) -> bool {
        let is_free = self.memh.load(Ordering::Acquire) == NO_MEMH;
        if is_free {
            self.memh.store(memh, Ordering::Relaxed);
        }
        is_free
    }

    /// Records a registration. The domain comes last: from then on its closing releases the line.
    #[inline]
    pub(super) fn fill(&self, md: MdHandle, address: usize, length: usize) {
        self.address.store(address, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.exported.store(UNDECIDED, Ordering::Relaxed);
        self.md.store(md.addr(), Ordering::Release);
    }

    /// Takes the line away from its memory handle. Returns the address of its domain and its kind of
    /// export. `None` if another thread took it: a memory handle has one release, its own or that of
    /// its domain.
    #[inline]
    pub(super) fn take(&self) -> Option<(usize, Exported)> {
        match self.md.swap(NO_MD, Ordering::AcqRel) {
            NO_MD => None,
            md => Some((md, self.exported())),
        }
    }

    /// Takes the line away from its live memory handle, which its domain deregisters. Returns its kind of
    /// export. `None` if the line is not filled. Not a locked instruction: UCX neither closes a domain
    /// during a deregistration in it nor deregisters a handle twice, so no other thread takes the line of
    /// a live handle.
    #[inline]
    pub(super) fn take_live(&self) -> Option<Exported> {
        match self.md.load(Ordering::Acquire) {
            NO_MD => None,
            _ => {
                self.md.store(NO_MD, Ordering::Release);
                Some(self.exported())
            }
        }
    }

    /// Like [`Registration::take`], if the line still belongs to a handle of this domain.
    pub(super) fn take_of(&self, md: usize) -> Option<Exported> {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let taken = self.md.compare_exchange(md, NO_MD, order.0, order.1);
        taken.is_ok().then(|| self.exported())
    }

    /// True if the line is that of a live memory handle. Without a domain, the closing of an older
    /// handle's domain is still releasing the line, and the handle is elsewhere.
    #[inline(always)]
    pub(super) fn is_of(&self, memh: usize) -> bool {
        self.memh.load(Ordering::Acquire) == memh && self.md.load(Ordering::Acquire) != NO_MD
    }

    /// Takes the line away from a live memory handle and frees it, if it is the handle's.
    #[inline(always)]
    pub(super) fn forget(&self, memh: usize) -> Option<Exported> {
        if self.memh.load(Ordering::Acquire) != memh {
            return None;
        }
        let exported = self.take_live()?;
        self.free();
        Some(exported)
    }

    /// Frees a taken line for another memory handle.
    #[inline]
    pub(super) fn free(&self) {
        self.memh.store(NO_MEMH, Ordering::Release);
    }

    /// First byte.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.address.load(Ordering::Relaxed)
    }

    /// Length in bytes.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length.load(Ordering::Relaxed)
    }

    /// The kind of export.
    #[inline]
    pub(crate) fn exported(&self) -> Exported {
        Exported::of(self.exported.load(Ordering::Acquire))
    }

    /// Decides the kind of export, unless it was decided before.
    ///
    /// # Errors
    /// The earlier decision.
    #[inline]
    pub(crate) fn decide(&self, exported: Exported) -> Result<(), Exported> {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.exported
            .compare_exchange(UNDECIDED, exported.bits(), order.0, order.1)
            .map(drop)
            .map_err(Exported::of)
    }
}
