//! The table of layers of an open volume, and how far a merge of two has come.

use crate::layers::Layers;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The table of layers of an open volume. It changes while its changer has all locks of blocks, so that each request sees one.
#[derive(Debug)]
pub(super) struct Layering {
    /// False for most volumes: there never was a snapshot.
    pub(super) is_used: AtomicBool,
    /// All places are below.
    pub(super) end: AtomicU64,
    layers: RwLock<Arc<Layers>>,
}

/// The layers from which a request reads: up to the one with this number. None: a block is where it is.
pub(super) type View = Option<(Arc<Layers>, usize)>;

impl Layering {
    pub(super) fn new(layers: Layers) -> Self {
        Self {
            is_used: AtomicBool::new(!layers.is_empty()),
            end: AtomicU64::new(layers.end),
            layers: RwLock::new(Arc::new(layers)),
        }
    }

    /// The table, also that of a volume without snapshots.
    pub(super) fn table(&self) -> Arc<Layers> {
        Arc::clone(&self.layers.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the table. The caller has all locks of blocks.
    pub(super) fn replace(&self, layers: Layers) {
        self.end.fetch_max(layers.end, Ordering::AcqRel);
        let is_used = !layers.is_empty();
        *self.layers.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(layers);
        self.is_used.store(is_used, Ordering::Release);
    }
}

/// Where the next step begins.
#[derive(Debug, Default)]
pub(super) struct Merging {
    /// The layer that becomes empty.
    pub(super) upper: u32,
    /// The first block that was not looked at.
    pub(super) next: u64,
    /// Blocks that this pass has moved, and that it could not read.
    pub(super) moved: u64,
    pub(super) lost: u64,
    pub(super) stopped: bool,
}
