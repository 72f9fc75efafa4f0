//! What a pool hands out: a lease of a free key, and an export, which is a key that stands for a
//! region.

use std::fmt;
use std::sync::Arc;

use crate::core::Core;
use crate::device::MkeyDevice;
use crate::error::{PoolError, ReleaseError};
use crate::key::{Gvmi, Mkey};
use crate::region::Region;
use crate::slots::SlotId;

/// A free key in one's hands. Goes back to the pool when dropped.
#[derive(Debug)]
pub struct Lease<'a, D: MkeyDevice> {
    core: &'a Arc<Core<D>>,
    /// Empty once the lease has become an export.
    id: Option<SlotId>,
}

impl<'a, D: MkeyDevice> Lease<'a, D> {
    pub(crate) fn new(core: &'a Arc<Core<D>>, id: SlotId) -> Self {
        Self { core, id: Some(id) }
    }

    /// Makes the key stand for the region.
    ///
    /// # Errors
    /// If the region is too long for a pooled key, or the bind fails.
    pub fn bind(mut self, region: Region) -> Result<Export<D>, PoolError> {
        self.core.check_length(&region)?;
        match self.id.take() {
            Some(id) => {
                let mkey = self.core.bind(id, region)?;
                Ok(Export::new(self.core, id, mkey, region))
            }
            // Only this function empties it, and it consumes the lease.
            None => Err(PoolError::Closed),
        }
    }
}

impl<D: MkeyDevice> Drop for Lease<'_, D> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.core.give_back(id);
        }
    }
}

/// A key that stands for a region. Released when dropped; [`Export::release`] also says how it went.
pub struct Export<D: MkeyDevice> {
    core: Arc<Core<D>>,
    /// Empty once released.
    id: Option<SlotId>,
    mkey: Mkey,
    region: Region,
}

impl<D: MkeyDevice> Export<D> {
    pub(crate) fn new(core: &Arc<Core<D>>, id: SlotId, mkey: Mkey, region: Region) -> Self {
        Self {
            core: Arc::clone(core),
            id: Some(id),
            mkey,
            region,
        }
    }

    /// The key to send to the importer.
    #[must_use]
    pub fn mkey(&self) -> Mkey {
        self.mkey
    }

    /// The function that the key belongs to, to send along.
    #[must_use]
    pub fn gvmi(&self) -> Gvmi {
        self.core.gvmi
    }

    /// What the key stands for.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// Gives the key back. With [`Invalidate::Strict`](crate::Invalidate::Strict), nobody reaches
    /// the region through it any more when this returns without error.
    ///
    /// # Errors
    /// If the key could be neither invalidated nor destroyed.
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
            // A key that is lost is counted and told to the observer; there is nobody else here.
            let _lost = self.core.release(id, self.mkey);
        }
    }
}

impl<D: MkeyDevice> fmt::Debug for Export<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("gvmi", &self.core.gvmi)
            .field("mkey", &self.mkey)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}
