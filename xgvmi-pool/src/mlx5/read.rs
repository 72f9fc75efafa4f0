//! Reads memory of another function through an alias, for programs that test keys. The pool itself
//! reads no memory.

use std::ptr::NonNull;

use mlx5dv_sys::{IBV_ACCESS_LOCAL_WRITE, Mlx5Lib, ibv_mr};
use thiserror::Error;

use super::queues::Queues;
use super::reader::{Direction, Reader, Transfer};
use crate::error::DeviceError;
use crate::key::{Lkey, Rkey, VirtAddr};

/// The reason why a read through a key failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The adapter completed the request with an error: the key gives no access to this memory.
    #[error("the read is refused with syndrome {syndrome:#x}")]
    Refused {
        /// Syndrome of the error completion.
        syndrome: u8,
    },
    /// The request could not be posted.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Reads `into.len()` bytes at `from` through `key`, with one RDMA READ on a queue pair of its own.
pub(super) fn read(
    queues: &Queues,
    key: Lkey,
    from: VirtAddr,
    into: &mut [u8],
) -> Result<(), ReadError> {
    let recipe = queues.recipe();
    let queue = queues.get()?;
    let too_long = |_| DeviceError::Unsupported {
        what: format!("a read of {} bytes", into.len()),
    };
    let len = u32::try_from(into.len()).map_err(too_long)?;
    // SAFETY: the domain is live because the device is open; the memory stays borrowed until the
    // registration ends.
    let mr = unsafe {
        let start = into.as_mut_ptr();
        let iova = start as u64;
        let (pd, access) = (recipe.pd.as_ptr(), IBV_ACCESS_LOCAL_WRITE | recipe.access);
        recipe
            .lib
            .ibv_reg_mr_iova2(pd, start.cast(), into.len(), iova, access)
    };
    let target = Target {
        lib: &recipe.lib,
        mr: NonNull::new(mr).ok_or_else(|| DeviceError::QueueDown {
            reason: format!("ibv_reg_mr: {}", std::io::Error::last_os_error()),
        })?,
    };
    let reader = Reader::new(recipe, &queue)?;
    let transfer = Transfer {
        direction: Direction::Read,
        rkey: Rkey::from_raw(key.raw()),
        remote: from,
        lkey: target.lkey(),
        local: VirtAddr::new(into.as_ptr() as u64),
        len,
    };
    let outcome = reader.run(&queue, [transfer]);
    reader.end();
    let [refused] = outcome?;
    match refused {
        None => Ok(()),
        Some(syndrome) => Err(ReadError::Refused { syndrome }),
    }
}

/// Registration of the target memory.
#[derive(Debug)]
struct Target<'d> {
    lib: &'d Mlx5Lib,
    mr: NonNull<ibv_mr>,
}

impl Target<'_> {
    fn lkey(&self) -> Lkey {
        // SAFETY: registered until the drop.
        Lkey::from_raw(unsafe { self.mr.as_ref() }.lkey)
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        // If the kernel refuses, the registration ends with the context.
        // SAFETY: registered by
        // `read`, whose queue pair was destroyed before.
        unsafe { self.lib.ibv_dereg_mr(self.mr.as_ptr()) };
    }
}
