//! The host's adapter: registrations of memory, and keys that the DPU can alias.

use super::spec::Scheme;
use crate::error::{BlkError, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xgvmi_pool::mlx5::steps::{Key, Registration, Span, Steps};
use xgvmi_pool::mlx5::{Function, Mlx5Device, Mlx5Lib, Mlx5Options};
use xgvmi_pool::{
    AccessKey, Export, Gvmi, HostHooks, MkeyDevice as _, OwnerUuid, PoolPolicy, Region, Seal,
    VirtAddr,
};

/// Keys that the pool creates before it announces them. More follow when more transfers are under way.
const KEYS_AHEAD: u32 = 16;
/// Attempts to bind a key before a transfer fails.
const BIND_ATTEMPTS: u32 = 3;

/// The adapter of this process. It lives until the process ends.
#[derive(Debug)]
pub(super) struct Host {
    process: u32,
    name: Option<String>,
    steps: Steps<'static>,
    device: Arc<Mlx5Device>,
    hooks: HostHooks<Mlx5Device>,
    owner: OwnerUuid,
    sequence: AtomicU64,
}

impl Host {
    /// The adapter with this name, or the first one. A process uses one.
    pub(super) fn get(name: Option<&str>) -> Result<&'static Self> {
        static HOST: Mutex<Option<&'static Host>> = Mutex::new(None);
        let mut host = HOST.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match *host {
            Some(opened) => opened,
            None => {
                let opened: &'static Self = Box::leak(Box::new(Self::open(name)?));
                *host = Some(opened);
                opened
            }
        };
        if opened.process != std::process::id() {
            return Err(keys(
                "this process was forked after its parent opened the adapter: use exec",
            ));
        }
        if opened.name.as_deref() != name {
            return Err(keys(format!(
                "a process uses one adapter: {:?} is open, {name:?} is wanted",
                opened.name
            )));
        }
        Ok(opened)
    }

    fn open(name: Option<&str>) -> Result<Self> {
        let lib = Arc::new(Mlx5Lib::open().map_err(keys)?);
        let function = Function::open(&lib, name).map_err(keys)?;
        // Guards of registrations borrow it for as long as a transfer needs them.
        let function: &'static Function = Box::leak(Box::new(function));
        let device = function.device(Mlx5Options::default()).map_err(keys)?;
        let hooks = HostHooks::open(Arc::clone(&device), PoolPolicy::default()).map_err(keys)?;
        let random = xgvmi_daemon::random().map_err(keys)?;
        Ok(Self {
            process: std::process::id(),
            name: name.map(str::to_owned),
            steps: Steps::new(function).map_err(keys)?,
            device,
            hooks,
            owner: OwnerUuid::new(u64::try_from(random >> 64).unwrap_or(1)),
            sequence: AtomicU64::new(1),
        })
    }

    pub(super) fn gvmi(&self) -> Gvmi {
        self.device.gvmi()
    }

    pub(super) fn owner(&self) -> OwnerUuid {
        self.owner
    }

    /// Announcement of the pool's keys. Creates the first keys.
    pub(super) fn announcement(&self) -> Vec<u8> {
        if self.hooks.stats().creates < u64::from(KEYS_AHEAD) {
            self.hooks.pool().prefill(KEYS_AHEAD);
        }
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let announcement = self.hooks.pool().announce(self.owner, sequence);
        announcement.to_bytes(&Seal::OPEN)
    }

    /// Registers memory, and binds or creates a key for it.
    ///
    /// # Safety
    /// The memory stays mapped as long as the result lives.
    pub(super) unsafe fn hold(
        &'static self,
        scheme: Scheme,
        addr: *const u8,
        len: usize,
    ) -> Result<Held> {
        let at = VirtAddr::new(addr as u64);
        // SAFETY: the caller's promise.
        let span = unsafe { Span::from_raw(at, len) };
        let registration = self.steps.register(span).map_err(keys)?;
        if scheme == Scheme::Ksm {
            return self.create_key(registration);
        }
        let region = Region::new(at, len as u64, registration.lkey()).map_err(keys)?;
        let mut attempts = 1;
        loop {
            match self.hooks.export(region) {
                Ok(export) => {
                    return Ok(Held::Pool {
                        export,
                        _registration: registration,
                    });
                }
                // The pool replaces a queue that has failed, so another attempt may succeed.
                Err(_) if attempts < BIND_ATTEMPTS => attempts += 1,
                Err(error) => return Err(keys(error)),
            }
        }
    }

    fn create_key(&'static self, registration: Registration<'static>) -> Result<Held> {
        let registration = Box::new(registration);
        // SAFETY: the box keeps its address, and `Held` drops the key before the box.
        let behind: &'static Registration<'static> =
            unsafe { &*std::ptr::from_ref(&*registration) };
        let key = self.steps.create_ksm(behind).map_err(keys)?;
        self.steps
            .allow(&key, &AccessKey::UCX_COMPATIBLE)
            .map_err(keys)?;
        Ok(Held::Ksm {
            key,
            _registration: registration,
        })
    }
}

/// Registered memory with its key. The fields end in their order: the key before the registration. Afterwards no access
/// through the key succeeds.
#[derive(Debug)]
pub(super) enum Held {
    /// A key of the pool, which its drop releases.
    Pool {
        export: Export<Mlx5Device>,
        _registration: Registration<'static>,
    },
    /// A key of its own, which its drop destroys.
    Ksm {
        key: Key<'static>,
        _registration: Box<Registration<'static>>,
    },
}

impl Held {
    pub(super) fn mkey(&self) -> u32 {
        match self {
            Self::Pool { export, .. } => export.mkey().raw(),
            Self::Ksm { key, .. } => key.mkey().raw(),
        }
    }
}

fn keys(error: impl std::fmt::Display) -> BlkError {
    BlkError::Keys(error.to_string())
}
