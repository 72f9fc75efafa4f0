//! Who carries the collective out, behind one face: MPI, or the service processes on the DPUs.

use crate::buffers::Pair;
use crate::layout::Layout;
use crate::mpi::{Operation, World};
use anyhow::Result;
use std::mem::ManuallyDrop;
use std::rc::Rc;

/// One of the two.
#[derive(Debug)]
pub enum Backend<'w> {
    /// MPI_Alltoallv and MPI_Ialltoallv.
    Mpi(&'w World),
}

/// A collective under way, with the buffers that it works on.
///
/// They are given back by [`Backend::wait`]. Dropped before that, they stay mapped for ever: somebody may still be
/// writing to them.
#[derive(Debug)]
pub struct Pending {
    kept: ManuallyDrop<(Pair, Rc<Layout>)>,
    operation: Started,
}

#[derive(Debug)]
enum Started {
    Mpi(Operation),
}

/// What the offloaded collective has counted since it was connected, on this rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counted {
    /// Time in registration and export, in microseconds.
    pub registration_us: f64,
    /// Exports asked for, and those that found their key.
    pub exports: u64,
    /// See above.
    pub export_hits: u64,
    /// Imports asked for at the service process, and those that found their alias.
    pub imports: u64,
    /// See above.
    pub import_hits: u64,
}

impl Backend<'_> {
    /// The blocking collective.
    ///
    /// # Errors
    /// The backend's.
    pub fn alltoallv(&mut self, layout: &Rc<Layout>, pair: Pair) -> Result<Pair> {
        match self {
            Self::Mpi(world) => {
                let mut pair = pair;
                world.alltoallv(layout, pair.send.as_slice(), pair.receive.as_mut_slice())?;
                Ok(pair)
            }
        }
    }

    /// Starts the non-blocking collective.
    ///
    /// # Errors
    /// The backend's.
    pub fn start(&mut self, layout: &Rc<Layout>, mut pair: Pair) -> Result<Pending> {
        let send: *const [u8] = pair.send.as_slice();
        let receive: *mut [u8] = pair.receive.as_mut_slice();
        // Kept from here on, so that an error below does not release what was handed out.
        let kept = ManuallyDrop::new((pair, Rc::clone(layout)));
        let operation = match self {
            Self::Mpi(world) => {
                // SAFETY: both buffers and the layout are kept until the operation is done, and nobody can reach them
                // meanwhile: `kept` is private and given back by wait() alone. Moving it does not move what it owns.
                Started::Mpi(unsafe { world.start_alltoallv(&kept.1, send, receive) }?)
            }
        };
        Ok(Pending { kept, operation })
    }

    /// MPI_Test: whether it is done.
    ///
    /// # Errors
    /// The backend's.
    pub fn test(&mut self, pending: &mut Pending) -> Result<bool> {
        match (self, &mut pending.operation) {
            (Self::Mpi(world), Started::Mpi(operation)) => world.test(operation),
        }
    }

    /// MPI_Wait: returns when it is done, with the buffers.
    ///
    /// # Errors
    /// The backend's.
    pub fn wait(&mut self, mut pending: Pending) -> Result<Pair> {
        match (self, &mut pending.operation) {
            (Self::Mpi(world), Started::Mpi(operation)) => world.wait(operation)?,
        }
        let (pair, _) = ManuallyDrop::into_inner(pending.kept);
        Ok(pair)
    }

    /// What was counted so far, where somebody counts.
    #[must_use]
    pub fn counted(&self) -> Option<Counted> {
        match self {
            Self::Mpi(_) => None,
        }
    }
}

impl Counted {
    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            registration_us: self.registration_us - before.registration_us,
            exports: self.exports.saturating_sub(before.exports),
            export_hits: self.export_hits.saturating_sub(before.export_hits),
            imports: self.imports.saturating_sub(before.imports),
            import_hits: self.import_hits.saturating_sub(before.import_hits),
        }
    }
}
