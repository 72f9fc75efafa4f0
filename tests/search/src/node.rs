//! A target's process and the volume's connection to it. The target itself is the product's `Store`.

use crate::disk::{Disk, Fuse};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xgvmi_blk::error::{BlkError, Result};
use xgvmi_blk::record::Half;
use xgvmi_blk::store::{Begun, Changed, Identity, Mark, Part, Step, Usage};
use xgvmi_blk::{Layers, Store, Target};

/// A target: its disk, and the store that serves it if there is one.
#[derive(Debug)]
pub(crate) struct Node {
    name: &'static str,
    pub(crate) disk: Disk,
    store: Mutex<Option<Arc<Store>>>,
    /// How often it was started.
    boots: AtomicU32,
}

impl Node {
    pub(crate) fn new(name: &'static str, disk: Disk) -> Arc<Self> {
        Arc::new(Self {
            name,
            disk,
            store: Mutex::new(None),
            boots: AtomicU32::new(0),
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Its process ends; connections to it fail from here on.
    pub(crate) fn stop(&self) {
        self.close();
        self.boots.fetch_add(1, Ordering::Relaxed);
        self.disk.own().set(u32::MAX);
    }

    /// The store's process has ended, or the export that was it.
    pub(crate) fn close(&self) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// True if it was told that it has taken the place of another target.
    pub(crate) fn has_replaced(&self) -> bool {
        self.store().is_some_and(|store| {
            let identity = store.identity();
            identity.members.of(identity.role) == Some(identity.target)
        })
    }

    pub(crate) fn store(&self) -> Option<Arc<Store>> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.clone()
    }

    /// True if a connection that was made at `boot` works.
    pub(crate) fn serves(&self, boot: u32) -> bool {
        self.boots() == boot && !self.disk.own().is_burnt()
    }

    pub(crate) fn boots(&self) -> u32 {
        self.boots.load(Ordering::Relaxed)
    }

    /// Connects to it, and starts its store if there is none. Calls burn `fuse`: that of an export elsewhere. One that
    /// `forgets` stores nothing, and says that it does.
    pub(crate) fn connect(
        self: &Arc<Self>,
        fuse: Option<&Fuse>,
        forgets: bool,
    ) -> Result<Arc<Link>> {
        let store = match self.store() {
            Some(store) => store,
            None => {
                let store = Arc::new(Store::open(self.name, Box::new(self.disk.clone()), None)?);
                *self.store.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(Arc::clone(&store));
                store
            }
        };
        Ok(Arc::new(Link {
            boot: self.boots(),
            node: Arc::clone(self),
            store,
            fuse: fuse.cloned(),
            forgets,
        }))
    }
}

/// A volume's connection to a target.
#[derive(Debug)]
pub(crate) struct Link {
    node: Arc<Node>,
    store: Arc<Store>,
    boot: u32,
    fuse: Option<Fuse>,
    /// It stores nothing, and says that it does.
    forgets: bool,
}

impl Link {
    fn store(&self) -> Result<&Store> {
        let sent = self.fuse.as_ref().is_none_or(Fuse::burn);
        if sent && self.node.boots() == self.boot {
            return Ok(&self.store);
        }
        Err(BlkError::Unreachable {
            target: self.node.name.to_owned(),
            reason: "it was stopped".to_owned(),
        })
    }
}

impl Target for Link {
    fn name(&self) -> &str {
        self.node.name
    }

    fn identity(&self) -> Identity {
        self.store.identity()
    }

    fn part(&self, blocks: Range<u64>) -> Result<Part> {
        self.store()?.part(blocks)
    }

    fn changed(&self, from: u64) -> Result<Changed> {
        self.store()?.changed(from)
    }

    fn grow(&self, blocks: u64) -> Result<()> {
        self.store()?.grow(blocks)
    }

    fn prepare(&self, block: u64, half: &Half, keep: u64) -> Result<()> {
        if self.forgets {
            return Ok(());
        }
        self.store()?.prepare(block, half, keep)
    }

    fn commit(&self, block: u64, generation: u64) -> Result<()> {
        if self.forgets {
            return Ok(());
        }
        self.store()?.commit(block, generation)
    }

    fn fetch(&self, block: u64, generation: u64) -> Result<Half> {
        self.store()?.fetch(block, generation)
    }

    fn begin_all(&self, steps: &[Step<'_>]) -> Vec<Begun> {
        // A target elsewhere gets them one by one.
        if self.fuse.is_none()
            && !self.forgets
            && let Ok(store) = self.store()
        {
            return store.begin_all(steps);
        }
        steps.iter().map(|step| self.begin(*step)).collect()
    }

    fn is_owned(&self) -> bool {
        // The connections of an export end with it, and there is one export at a time.
        false
    }

    fn begin_confirm(&self) -> Begun {
        // A target elsewhere is asked. Files are locked instead.
        let asked = self
            .fuse
            .as_ref()
            .map_or(Ok(()), |_| self.store().map(drop));
        Begun::Ended(asked.map(|()| None))
    }

    fn flush(&self) -> Result<()> {
        self.store()?.flush()
    }

    fn begin_release(&self, generation: u64) -> Begun {
        match self.store() {
            Ok(store) => store.begin_release(generation),
            Err(error) => Begun::Ended(Err(error)),
        }
    }

    fn flushes_at_once(&self) -> bool {
        true
    }

    fn mark(&self, epoch: u64, mark: Mark) -> Result<()> {
        self.store()?.mark(epoch, mark)
    }

    fn layers(&self) -> Result<Layers> {
        self.store()?.layers()
    }

    fn set_layers(&self, layers: &Layers) -> Result<()> {
        self.store()?.set_layers(layers)
    }

    fn usage(&self) -> Usage {
        self.store.usage()
    }
}
