//! The host's adapter: registrations of memory, and keys that the DPU can alias.

use crate::error::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
pub use xgvmi_pool::mlx5::steps::Rights;
use xgvmi_pool::mlx5::steps::{Key, Registration, Span, Steps};
use xgvmi_pool::mlx5::{Function, Mlx5Device, Mlx5Lib, Mlx5Options};
use xgvmi_pool::{
    AccessKey, Export, Gvmi, HostHooks, Mkey, MkeyDevice as _, OwnerUuid, PoolPolicy, Region, Seal,
    VirtAddr,
};

/// Attempts to bind a key before a transfer fails.
const BIND_ATTEMPTS: u32 = 3;

/// Settings of [`HostKeys`].
#[derive(Debug, Clone)]
pub struct HostOptions<'a> {
    /// RDMA device; `None` for the first mlx5 device.
    pub device: Option<&'a str>,
    /// Name of this process towards services. It must differ from that of every other process, also of earlier ones.
    pub owner: OwnerUuid,
    /// Access key of the keys. A service can alias them only if this process tells it. Services that trust no name take
    /// its [`AccessKey::owner`] as the owner.
    pub access_key: AccessKey,
    /// Keys that exist before the first announcement. More follow when more ranges are held at a time.
    pub keys_ahead: u32,
}

/// Which key a range of memory gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// A key of the pool. Holding a range issues no command once the pool has enough keys.
    Pooled,
    /// A key that is created for the range and destroyed with it.
    Own,
}

/// The host's adapter with a pool of keys. It lives until the process ends ([`crate::PerProcess`]).
#[derive(Debug)]
pub struct HostKeys {
    function: &'static Function,
    steps: Steps<'static>,
    device: Arc<Mlx5Device>,
    hooks: HostHooks<Mlx5Device>,
    owner: OwnerUuid,
    access_key: AccessKey,
    keys_ahead: u32,
    sequence: AtomicU64,
}

impl HostKeys {
    /// Opens the device and the pool. The open device is never closed.
    ///
    /// # Errors
    /// The libraries do not load; there is no such device; or it cannot export keys.
    pub fn open(options: &HostOptions<'_>) -> Result<Self> {
        let lib = Arc::new(Mlx5Lib::open()?);
        let function = Function::open(&lib, options.device)?;
        // Guards of registrations borrow it for as long as a transfer needs them.
        let function: &'static Function = Box::leak(Box::new(function));
        let device = function.device(Mlx5Options::default())?;
        let policy = PoolPolicy {
            access_key: options.access_key.clone(),
            ..PoolPolicy::default()
        };
        let hooks = HostHooks::open(Arc::clone(&device), policy)?;
        Ok(Self {
            function,
            steps: Steps::new(function)?,
            device,
            hooks,
            owner: options.owner,
            access_key: options.access_key.clone(),
            keys_ahead: options.keys_ahead,
            sequence: AtomicU64::new(1),
        })
    }

    /// Name of the device, such as `mlx5_0`.
    #[must_use]
    pub fn device_name(&self) -> &str {
        self.function.name()
    }

    /// The function that owns the keys.
    #[must_use]
    pub fn gvmi(&self) -> Gvmi {
        self.device.gvmi()
    }

    /// Name of this process towards services.
    #[must_use]
    pub fn owner(&self) -> OwnerUuid {
        self.owner
    }

    /// Access key of this process's keys, for the services that it trusts.
    #[must_use]
    pub fn access_key(&self) -> &AccessKey {
        &self.access_key
    }

    /// Announcement of the pool's keys, for [`xgvmi_pool::DpuHooks::receive`]. Creates the first keys.
    #[must_use]
    pub fn announcement(&self, seal: &Seal) -> Vec<u8> {
        if self.hooks.stats().creates < u64::from(self.keys_ahead) {
            self.hooks.pool().prefill(self.keys_ahead);
        }
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let announcement = self.hooks.pool().announce(self.owner, sequence);
        announcement.to_bytes(seal)
    }

    /// Registers memory, and binds or creates a key for it.
    ///
    /// # Errors
    /// The kernel refuses to register the memory, or there is no key for it.
    ///
    /// # Safety
    /// The memory stays mapped as long as the result lives.
    pub unsafe fn hold(&'static self, kind: KeyKind, addr: VirtAddr, len: usize) -> Result<Held> {
        // SAFETY: the caller's promise.
        let (region, registration) = unsafe { self.register(addr, len, Rights::ReadWrite) }?;
        match kind {
            KeyKind::Own => self.create_key(registration),
            KeyKind::Pooled => Ok(Held::pooled(self.export(region)?, registration)),
        }
    }

    /// As [`HostKeys::hold`] for several ranges of bytes, each with the rights of the DPU. All binds are one chain of
    /// requests.
    ///
    /// # Errors
    /// As [`HostKeys::hold`]. No range is held then.
    ///
    /// # Safety
    /// All ranges stay mapped as long as the results live.
    pub unsafe fn hold_all(
        &'static self,
        kind: KeyKind,
        ranges: impl IntoIterator<Item = (VirtAddr, usize, Rights)>,
    ) -> Result<Vec<Held>> {
        let mut registered = Vec::new();
        for (addr, len, rights) in ranges {
            // SAFETY: the caller's promise.
            registered.push(unsafe { self.register(addr, len, rights) }?);
        }
        if kind == KeyKind::Own {
            let registrations = registered.into_iter();
            return registrations
                .map(|(_, registration)| self.create_key(registration))
                .collect();
        }
        let regions: Vec<Region> = registered.iter().map(|(region, _)| *region).collect();
        let exports = self.hooks.export_many(&regions);
        let mut held = Vec::with_capacity(regions.len());
        for (export, (region, registration)) in exports.into_iter().zip(registered) {
            let export = match export {
                Ok(export) => export,
                Err(_) => self.export(region)?,
            };
            held.push(Held::pooled(export, registration));
        }
        Ok(held)
    }

    /// # Safety
    /// As for [`HostKeys::hold`].
    unsafe fn register(
        &'static self,
        addr: VirtAddr,
        len: usize,
        rights: Rights,
    ) -> Result<(Region, Registration<'static>)> {
        // SAFETY: the caller's promise.
        let span = unsafe { Span::from_raw(addr, len) };
        let registration = self.steps.register_with(span, rights)?;
        let region = Region::new(addr, len as u64, registration.lkey())?;
        Ok((region, registration))
    }

    /// Binds a key of the pool. The pool replaces a queue that has failed, so another attempt may succeed.
    fn export(&self, region: Region) -> Result<Export<Mlx5Device>> {
        let mut attempts = 1;
        loop {
            match self.hooks.export(region) {
                Ok(export) => return Ok(export),
                Err(_) if attempts < BIND_ATTEMPTS => attempts += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn create_key(&'static self, registration: Registration<'static>) -> Result<Held> {
        let registration = Box::new(registration);
        // SAFETY: the box keeps its address, and `Holding` drops the key before the box.
        let behind: &'static Registration<'static> =
            unsafe { &*std::ptr::from_ref(&*registration) };
        let key = self.steps.create_ksm(behind)?;
        self.steps.allow(&key, &self.access_key)?;
        Ok(Held(Holding::Own { key, registration }))
    }
}

/// Registered memory with its key. After its drop no access through the key succeeds.
#[derive(Debug)]
pub struct Held(Holding);

/// The fields end in their order: the key before the registration.
#[derive(Debug)]
enum Holding {
    /// A key of the pool, which its drop releases.
    Pooled {
        export: Export<Mlx5Device>,
        registration: Registration<'static>,
    },
    /// A key of its own, which its drop destroys.
    Own {
        key: Key<'static>,
        registration: Box<Registration<'static>>,
    },
}

/// A registration without a key: nobody has access through it. The memory may be unmapped; the system keeps its pages
/// until the drop.
#[derive(Debug)]
pub struct Unkeyed {
    _registration: Box<Registration<'static>>,
    len: usize,
}

impl Unkeyed {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Held {
    fn pooled(export: Export<Mlx5Device>, registration: Registration<'static>) -> Self {
        Self(Holding::Pooled {
            export,
            registration,
        })
    }

    /// Ends the access of the DPU. The registration, whose end takes longer, remains.
    #[must_use]
    pub fn end_access(self) -> Unkeyed {
        let registration = match self.0 {
            Holding::Pooled {
                export,
                registration,
            } => {
                drop(export);
                Box::new(registration)
            }
            Holding::Own { key, registration } => {
                drop(key);
                registration
            }
        };
        let len = registration.span().len();
        Unkeyed {
            _registration: registration,
            len,
        }
    }

    /// The key that the DPU makes an alias of.
    #[must_use]
    pub fn mkey(&self) -> Mkey {
        match &self.0 {
            Holding::Pooled { export, .. } => export.mkey(),
            Holding::Own { key, .. } => key.mkey(),
        }
    }
}
