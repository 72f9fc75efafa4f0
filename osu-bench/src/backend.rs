//! Common interface of the two backends of the collective: MPI, and the service processes on the DPUs.

use crate::buffers::Pair;
use crate::layout::Layout;
use crate::mpi::{Operation, World};
use crate::offload::{Counted, Offload, parts};
use anyhow::{Result, bail};
use std::mem::ManuallyDrop;
use std::rc::Rc;
use xgvmi_offload::Request;

/// Place of the blocks to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In the send buffer.
    Send,
    /// In the receive buffer, where the received blocks will be (MPI_IN_PLACE).
    InPlace,
}

/// One of the two backends.
#[derive(Debug)]
pub enum Backend<'w> {
    /// MPI_Alltoallv and MPI_Ialltoallv.
    Mpi(&'w World),
    /// The service processes.
    Offload(Box<Offload>),
}

/// An outstanding collective with its buffers.
///
/// [`Backend::wait`] returns the buffers. If it is dropped earlier, they stay mapped until the process ends,
/// because the device may still write to them.
#[derive(Debug)]
pub struct Pending {
    kept: ManuallyDrop<(Pair, Rc<Layout>)>,
    operation: Started,
}

#[derive(Debug)]
enum Started {
    Mpi(Operation),
    Offload(Request),
}

impl Backend<'_> {
    /// The blocking collective.
    ///
    /// # Errors
    /// The backend's error.
    pub fn alltoallv(
        &mut self,
        layout: &Rc<Layout>,
        mut pair: Pair,
        source: Source,
    ) -> Result<Pair> {
        if let Self::Mpi(world) = self {
            let send = (source == Source::Send).then(|| pair.send.as_slice());
            world.alltoallv(layout, send, pair.receive.as_mut_slice())?;
            return Ok(pair);
        }
        let pending = self.start(layout, pair, source)?;
        self.wait(pending)
    }

    /// Starts the non-blocking collective.
    ///
    /// # Errors
    /// The backend's error.
    pub fn start(
        &mut self,
        layout: &Rc<Layout>,
        mut pair: Pair,
        source: Source,
    ) -> Result<Pending> {
        let (send, receive) = parts(&mut pair);
        let send = (source == Source::Send).then_some(send);
        // Kept from here on, so that an error below does not release buffers in use.
        let kept = ManuallyDrop::new((pair, Rc::clone(layout)));
        let operation = match self {
            Self::Mpi(world) => {
                let send = send.map(<*mut [u8]>::cast_const);
                // SAFETY: both buffers and the layout are kept until the operation is complete, and nothing can
                // access them meanwhile: `kept` is private, and only wait() returns them. Moving it does not
                // move the memory that it owns.
                Started::Mpi(unsafe { world.start_alltoallv(&kept.1, send, receive) }?)
            }
            Self::Offload(offload) => {
                // SAFETY: the same.
                Started::Offload(unsafe { offload.start(&kept.1, send, receive) }?)
            }
        };
        Ok(Pending { kept, operation })
    }

    /// MPI_Test: whether the operation is complete.
    ///
    /// # Errors
    /// The backend's error.
    pub fn test(&mut self, pending: &mut Pending) -> Result<bool> {
        match (self, &mut pending.operation) {
            (Self::Mpi(world), Started::Mpi(operation)) => world.test(operation),
            (Self::Offload(offload), Started::Offload(request)) => offload.test(request),
            _ => bail!("tested with another backend than started"),
        }
    }

    /// MPI_Wait: returns the buffers when the operation is complete.
    ///
    /// # Errors
    /// The backend's error.
    pub fn wait(&mut self, pending: Pending) -> Result<Pair> {
        match (self, pending.operation) {
            (Self::Mpi(world), Started::Mpi(mut operation)) => world.wait(&mut operation)?,
            (Self::Offload(offload), Started::Offload(request)) => offload.wait(request)?,
            _ => bail!("waited for with another backend than started"),
        }
        let (pair, _) = ManuallyDrop::into_inner(pending.kept);
        Ok(pair)
    }

    /// Counters so far, if the backend has any.
    #[must_use]
    pub fn counted(&self) -> Option<Counted> {
        match self {
            Self::Mpi(_) => None,
            Self::Offload(offload) => Some(offload.counted()),
        }
    }

    /// Disconnects. Collective over all ranks.
    ///
    /// # Errors
    /// The backend's error.
    pub fn close(self) -> Result<()> {
        match self {
            Self::Mpi(_) => Ok(()),
            Self::Offload(offload) => offload.close(),
        }
    }
}
