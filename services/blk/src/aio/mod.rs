//! Asynchronous requests to a disk: futures of the standard library, for any executor.
//!
//! Requests take buffers and return them, so that a future that is dropped leaves no request with memory of somebody else.
//! A bounded number of requests is under way; a further one waits for a place.
//!
//! ```
//! use std::sync::Arc;
//! use xgvmi_blk::aio::AsyncDisk;
//! # use xgvmi_blk::store::NewTarget;
//! # use xgvmi_blk::{Geometry, Id, Role, Store, Target, Volume};
//! # let directory = std::env::temp_dir().join(format!("xgvmi-blk-aio-{}", std::process::id()));
//! # std::fs::create_dir_all(&directory)?;
//! # let geometry = Geometry::of_size(4096, 1 << 20)?;
//! # let mut targets: Vec<Arc<dyn Target>> = Vec::new();
//! # for role in Role::HALVES {
//! #     let new = NewTarget { geometry, role, volume: Id([7; 16]), complete: true };
//! #     targets.push(Arc::new(Store::create_file(&directory.join(role.to_string()), new, None)?));
//! # }
//! # let volume = Volume::open(targets)?;
//! let disk = AsyncDisk::new(Arc::new(volume));
//! # pollster::block_on(async {
//! let (written, buffer) = disk.write(8192, vec![1; 4096]).await;
//! written?;
//! disk.flush().await?;
//! let (read, buffer) = disk.read(8192, buffer).await;
//! read?;
//! assert_eq!(buffer, [1; 4096]);
//! disk.close().await
//! # })?;
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod places;
mod request;
mod workers;

pub use request::Request;
pub use workers::Workers;

use crate::disk::Disk;
use crate::error::Result;
use places::Places;
use request::Inner;
use std::future::poll_fn;
use std::sync::Arc;

/// Requests under way, unless a caller wants others: all threads are busy, and as many wait for them.
pub const DEPTH: usize = 2 * crate::crew::REQUESTS_MAX;
/// Most requests under way.
pub const DEPTH_MAX: usize = 4096;

/// The result of a read or write, and its buffer.
pub type Transferred<B> = (Result<()>, B);

/// A disk for asynchronous callers: a [`crate::Volume`], one of a service ([`crate::client::Volume`]), or any other. Any thread
/// may use it; clones share the bound of requests. Requests end in any order. Errors are those of the blocking calls.
#[derive(Clone)]
pub struct AsyncDisk {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for AsyncDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncDisk").finish_non_exhaustive()
    }
}

impl AsyncDisk {
    /// With [`DEPTH`] requests under way at most.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self::with_depth(disk, DEPTH)
    }

    /// With 1 to [`DEPTH_MAX`] requests under way at most, up to 16 of which are carried out at once.
    #[must_use]
    pub fn with_depth(disk: Arc<dyn Disk>, depth: usize) -> Self {
        let depth = depth.clamp(1, DEPTH_MAX);
        Self {
            inner: Arc::new(Inner {
                disk,
                workers: Workers::new(depth),
                places: Arc::new(Places::new(depth)),
            }),
        }
    }

    /// The disk, whose blocking calls may be used meanwhile.
    #[must_use]
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.inner.disk
    }

    /// Reads the whole buffer from `offset`. After an error it has any bytes.
    pub fn read<B>(&self, offset: u64, mut buffer: B) -> Request<Transferred<B>>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        Request::new(&self.inner, move |disk| {
            let done = disk.and_then(|disk| disk.read(offset, buffer.as_mut()));
            (done, buffer)
        })
    }

    /// Writes the whole buffer at `offset`.
    pub fn write<B>(&self, offset: u64, buffer: B) -> Request<Transferred<B>>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        Request::new(&self.inner, move |disk| {
            let done = disk.and_then(|disk| disk.write(offset, buffer.as_ref()));
            (done, buffer)
        })
    }

    /// Writes zeros, with space of their own if `allocate` is set.
    pub fn write_zeroes(&self, offset: u64, length: u64, allocate: bool) -> Request<Result<()>> {
        Request::new(&self.inner, move |disk| {
            disk.and_then(|disk| disk.write_zeroes(offset, length, allocate))
        })
    }

    /// Gives the space of whole blocks back. They are zero afterwards.
    pub fn trim(&self, offset: u64, length: u64) -> Request<Result<()>> {
        Request::new(&self.inner, move |disk| {
            disk.and_then(|disk| disk.trim(offset, length))
        })
    }

    /// Makes all writes durable that have ended before this request begins. Others may be durable, too.
    pub fn flush(&self) -> Request<Result<()>> {
        Request::new(&self.inner, move |disk| disk.and_then(|disk| disk.flush()))
    }

    /// Begins no further request of any clone, waits for those under way, and flushes. Requests that wait for a place fail.
    ///
    /// # Errors
    /// As [`Disk::flush`].
    pub async fn close(&self) -> Result<()> {
        self.inner.places.close();
        poll_fn(|context| self.inner.places.poll_empty(context)).await;
        let flush = |disk: Result<&dyn Disk>| disk.and_then(|disk| disk.flush());
        Request::begun(&self.inner, flush).await
    }
}

#[cfg(test)]
mod tests;
