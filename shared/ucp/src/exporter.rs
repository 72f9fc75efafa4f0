//! Exported memory for a program that transfers without UCP: the device's key of each range, from any thread.

use super::error::Result;
use super::exported_key::ExportedKey;
use super::{Context, MappedRange, UcpError};
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError};
use ucx_sys::Ucp;

/// A UCP context that exports ranges of this process's memory by one device, with the keys of UCX's own pool.
///
/// Its registration cache is off: the end of an [`ExportedRange`] ends the access of its importers. Any thread may use
/// it; calls wait for each other, because UCX's pool serves one thread at a time. With a context for several threads
/// (`mt_workers_shared`) UCX would create a key for each range and use no pool.
#[derive(Debug)]
pub struct Exporter {
    context: Mutex<Guarded>,
}

#[derive(Debug)]
struct Guarded(Context);

// SAFETY: a context is not bound to a thread, but to one thread at a time. The lock of the exporter is held in each
// call that uses it or the reference counts of its clones: `Exporter::export`, and the drop of an `ExportedRange`.
unsafe impl Send for Guarded {}

impl Exporter {
    /// Opens a device, such as `mlx5_0`. UCX's other settings are those of the environment.
    ///
    /// # Errors
    /// UCX's error, for example if there is no such device.
    pub fn open(ucp: &'static Ucp, name: &str, device: &str) -> Result<Self> {
        let devices = format!("{device}:1");
        let settings = [
            ("NET_DEVICES", devices.as_str()),
            ("TLS", "rc_x"),
            ("RCACHE_ENABLE", "n"),
        ];
        let context = Context::with_settings(ucp, name, &settings)?;
        Ok(Self {
            context: Mutex::new(Guarded(context)),
        })
    }

    /// Registers and exports a range.
    ///
    /// # Errors
    /// UCX's error; [`UcpError::ExportedKey`] if UCX packs keys in a format that this crate does not know.
    ///
    /// # Safety
    /// The range is a mapping of this process and stays one as long as the result lives. While a peer may access it,
    /// nobody here holds a reference to bytes that the peer writes.
    pub unsafe fn export(&self, start: *const u8, length: usize) -> Result<ExportedRange<'_>> {
        let context = self.lock();
        // SAFETY: the caller's promise.
        let range = unsafe { MappedRange::new(&context.0, start, length) }?;
        let packed = range.export()?;
        let key = ExportedKey::of(&packed).ok_or_else(|| UcpError::ExportedKey {
            bytes: packed.len(),
            version: context.0.version(),
        })?;
        drop(packed);
        Ok(ExportedRange {
            exporter: self,
            range: ManuallyDrop::new(range),
            key,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Guarded> {
        self.context.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An exported range. Its drop ends the registration and the access of all importers.
#[derive(Debug)]
pub struct ExportedRange<'e> {
    exporter: &'e Exporter,
    range: ManuallyDrop<MappedRange>,
    key: ExportedKey,
}

// SAFETY: the range is used in the drop alone, under the exporter's lock.
unsafe impl Send for ExportedRange<'_> {}
// SAFETY: shared references read the key alone, which is plain data.
unsafe impl Sync for ExportedRange<'_> {}

impl ExportedRange<'_> {
    /// The device's key of the range.
    #[must_use]
    pub fn key(&self) -> ExportedKey {
        self.key
    }
}

impl Drop for ExportedRange<'_> {
    fn drop(&mut self) {
        let _context = self.exporter.lock();
        // SAFETY: taken once, here, under the lock. UCX logs an error of its release.
        unsafe { ManuallyDrop::drop(&mut self.range) };
    }
}
