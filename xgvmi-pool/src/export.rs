//! Leases and exports. A lease holds a free key of a pool. An export holds a key that is bound to a
//! region.

use std::fmt;
use std::sync::Arc;

use crate::core::Core;
use crate::device::MkeyDevice;
use crate::error::{PoolError, ReleaseError};
use crate::key::{Gvmi, Mkey, VirtAddr};
#[cfg(doc)]
use crate::region::Region;
use crate::slots::{Size, SlotId};
use crate::span::Span;

/// A lease of a free key. The key returns to the pool when the lease is dropped.
#[derive(Debug)]
pub struct Lease<'a, D: MkeyDevice> {
    core: &'a Arc<Core<D>>,
    /// `None` after the lease became an export.
    id: Option<SlotId>,
}

impl<'a, D: MkeyDevice> Lease<'a, D> {
    #[inline]
    pub(crate) fn new(core: &'a Arc<Core<D>>, id: SlotId) -> Self {
        Self { core, id: Some(id) }
    }

    /// The leased key. It is free.
    #[must_use]
    pub fn mkey(&self) -> Option<Mkey> {
        self.id.map(|id| self.core.slots.mkey(id))
    }

    /// Returns a key that may be bound, for example after a failed
    /// proof. The pool invalidates it, or destroys it.
    ///
    /// # Errors
    /// If the device refuses both. The key is out of use then.
    pub fn return_unsure(mut self) -> Result<(), ReleaseError> {
        match self.id.take() {
            Some(id) => self.core.clean_leased(id),
            None => Ok(()),
        }
    }

    /// Binds the key to a [`Region`], or to a [`Span`] of several regions.
    ///
    /// # Errors
    /// If the memory is too long for a pooled key, or the bind fails.
    pub fn bind<'m>(mut self, memory: impl Into<Span<'m>>) -> Result<Export<D>, PoolError> {
        let span = memory.into();
        let size = self.core.size_for(&span)?;
        match self.id.take() {
            // Another key, with more entries.
            Some(id) if size == Size::Long && self.core.slots.size(id) == Size::Short => {
                self.core.give_back(id);
                let (id, mkey) = self.core.draw_long(span)?;
                Ok(Export::new(self.core, id, mkey, &span))
            }
            Some(id) => {
                let mkey = self.core.bind(id, span)?;
                Ok(Export::new(self.core, id, mkey, &span))
            }
            // Only this function sets `None`, and it consumes the lease.
            None => Err(PoolError::Closed),
        }
    }
}

impl<D: MkeyDevice> Drop for Lease<'_, D> {
    #[inline]
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.core.give_back(id);
        }
    }
}

/// A bound key without a reference to its pool, see [`MkeyPool::bind`](crate::MkeyPool::bind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it stays bound until it is given back"]
pub struct BoundKey(u64);

impl BoundKey {
    pub(crate) const fn new(id: SlotId, mkey: Mkey) -> Self {
        Self((mkey.raw() as u64) << 32 | id.0 as u64)
    }

    /// The key to send to the importer.
    #[must_use]
    pub const fn mkey(self) -> Mkey {
        let [_, _, _, _, a, b, c, d] = self.0.to_le_bytes();
        Mkey::from_raw(u32::from_le_bytes([a, b, c, d]))
    }

    pub(crate) const fn slot(self) -> SlotId {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        SlotId(u32::from_le_bytes([a, b, c, d]))
    }

    /// The bound key as one word. The word is above 2^32 because no key is zero.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The bound key of a word from [`BoundKey::to_bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// A key that is bound to a region. Dropping it releases the key; [`Export::release`] also reports
/// errors.
pub struct Export<D: MkeyDevice> {
    core: Arc<Core<D>>,
    /// `None` after the release.
    id: Option<SlotId>,
    mkey: Mkey,
    addr: VirtAddr,
    len: u64,
}

impl<D: MkeyDevice> Export<D> {
    pub(crate) fn new(core: &Arc<Core<D>>, id: SlotId, mkey: Mkey, span: &Span<'_>) -> Self {
        Self {
            core: Arc::clone(core),
            id: Some(id),
            mkey,
            addr: span.addr(),
            len: span.len(),
        }
    }

    /// The key to send to the importer.
    #[must_use]
    pub fn mkey(&self) -> Mkey {
        self.mkey
    }

    /// The function that owns the key, to send to the importer.
    #[must_use]
    pub fn gvmi(&self) -> Gvmi {
        self.core.hot.gvmi
    }

    /// First byte of the bound memory.
    #[must_use]
    pub fn addr(&self) -> VirtAddr {
        self.addr
    }

    /// Length of the bound memory in bytes, at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nothing is never exported")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the key to the pool. With [`Invalidate::Strict`](crate::Invalidate::Strict), no peer
    /// can reach the region through the key after this call returned without error.
    ///
    /// # Errors
    /// If the device could neither invalidate nor destroy the key.
    pub fn release(mut self) -> Result<(), ReleaseError> {
        match self.id.take() {
            Some(id) => self.core.release(id, self.mkey),
            None => Ok(()),
        }
    }
}

impl<D: MkeyDevice> Drop for Export<D> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            // The core counts a lost key and reports it to the observer. A drop has no other
            // receiver.
            let _lost = self.core.release(id, self.mkey);
        }
    }
}

impl<D: MkeyDevice> fmt::Debug for Export<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("gvmi", &self.core.hot.gvmi)
            .field("mkey", &self.mkey)
            .field("addr", &self.addr)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
