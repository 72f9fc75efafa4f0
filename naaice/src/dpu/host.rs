//! The host's adapter: registrations of regions, and keys that the DPU can alias.

use crate::error::{NaaError, Result};
use crate::plan::Region;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xgvmi_pool::mlx5::steps::{Key, Registration, Span, Steps};
use xgvmi_pool::mlx5::{Function, Mlx5Device, Mlx5Lib, Mlx5Options};
use xgvmi_pool::{
    AccessKey, Export, Gvmi, HostHooks, Mkey, MkeyDevice as _, OwnerUuid, PoolPolicy, Seal,
    VirtAddr,
};

/// Environment variable: RDMA device of the host. Without it the first mlx5 device.
const DEVICE: &str = "NAAICE_DEVICE";
/// Environment variable: `pool` or `ksm`.
const KEYS: &str = "NAAICE_KEYS";
/// Keys that the pool creates with the first session. The service creates their aliases ahead. More keys follow when
/// more regions are in use at a time.
const KEYS_AHEAD: u32 = 8;

/// Attempts to bind a key before a session fails.
const BIND_ATTEMPTS: u32 = 3;

/// How the DPU gets access to regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Pooled keys, announced ahead: a session issues no key command.
    Pool,
    /// A key per region and session, for comparison.
    Ksm,
}

impl Way {
    /// The way of the environment.
    ///
    /// # Errors
    /// For an unknown value.
    pub(super) fn from_env() -> Result<Self> {
        match std::env::var(KEYS).as_deref() {
            Err(_) | Ok("" | "pool") => Ok(Self::Pool),
            Ok("ksm") => Ok(Self::Ksm),
            Ok(other) => Err(crate::error::ArgumentError::Environment {
                name: KEYS,
                value: other.to_owned(),
                rule: "write pool or ksm",
            }
            .into()),
        }
    }
}

/// The adapter of this process. It lives until the process ends.
#[derive(Debug)]
pub(super) struct Host {
    process: u32,
    steps: Steps<'static>,
    device: Arc<Mlx5Device>,
    hooks: HostHooks<Mlx5Device>,
    owner: OwnerUuid,
    sequence: AtomicU64,
}

impl Host {
    /// The adapter, opened by the first session.
    pub(super) fn get() -> Result<&'static Self> {
        static HOST: Mutex<Option<&'static Host>> = Mutex::new(None);
        let mut host = HOST.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match *host {
            Some(opened) => opened,
            None => {
                let opened: &'static Self = Box::leak(Box::new(Self::open()?));
                *host = Some(opened);
                opened
            }
        };
        if opened.process != std::process::id() {
            return Err(NaaError::Forked);
        }
        Ok(opened)
    }

    fn open() -> Result<Self> {
        let lib = Arc::new(Mlx5Lib::open().map_err(keys)?);
        let name = std::env::var(DEVICE).ok().filter(|name| !name.is_empty());
        let function = Function::open(&lib, name.as_deref()).map_err(keys)?;
        // Guards of registrations borrow it for as long as a session needs them.
        let function: &'static Function = Box::leak(Box::new(function));
        let device = function.device(Mlx5Options::default()).map_err(keys)?;
        let hooks = HostHooks::open(Arc::clone(&device), PoolPolicy::default()).map_err(keys)?;
        let random = xgvmi_daemon::random().map_err(keys)?;
        Ok(Self {
            process: std::process::id(),
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
    pub(super) fn announcement(&self, seal: &Seal) -> Vec<u8> {
        if self.hooks.stats().creates == 0 {
            self.hooks.pool().prefill(KEYS_AHEAD);
        }
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        self.hooks
            .pool()
            .announce(self.owner, sequence)
            .to_bytes(seal)
    }

    /// Binds a key of the pool. The pool replaces a queue that has failed, so another attempt may succeed.
    fn export(&self, region: xgvmi_pool::Region) -> Result<Export<Mlx5Device>> {
        let mut attempts = 1;
        loop {
            match self.hooks.export(region) {
                Ok(export) => return Ok(export),
                Err(_) if attempts < BIND_ATTEMPTS => attempts += 1,
                Err(error) => return Err(keys(error)),
            }
        }
    }

    /// Registers regions, and creates or binds their keys. All binds are one chain of requests.
    ///
    /// # Safety
    /// The regions stay mapped as long as the results live.
    pub(super) unsafe fn hold(&'static self, way: Way, regions: &[Region]) -> Result<Vec<Held>> {
        let mut registrations = Vec::with_capacity(regions.len());
        for region in regions {
            let addr = VirtAddr::new(region.addr);
            // SAFETY: the caller's promise.
            let span = unsafe { Span::from_raw(addr, region.size as usize) };
            registrations.push(self.steps.register(span).map_err(keys)?);
        }
        match way {
            Way::Pool => self.bind(regions, registrations),
            Way::Ksm => registrations
                .into_iter()
                .map(|registration| self.create_key(registration))
                .collect(),
        }
    }

    fn bind(
        &self,
        regions: &[Region],
        registrations: Vec<Registration<'static>>,
    ) -> Result<Vec<Held>> {
        let pooled: Vec<xgvmi_pool::Region> = regions
            .iter()
            .zip(&registrations)
            .map(|(region, registration)| {
                let addr = VirtAddr::new(region.addr);
                xgvmi_pool::Region::new(addr, u64::from(region.size), registration.lkey())
                    .map_err(keys)
            })
            .collect::<Result<_>>()?;
        let exports = self.hooks.export_many(&pooled);
        let mut held = Vec::with_capacity(regions.len());
        for ((export, region), registration) in exports.into_iter().zip(pooled).zip(registrations) {
            let export = match export {
                Ok(export) => export,
                Err(_) => self.export(region)?,
            };
            held.push(Held::Pool {
                export,
                _registration: registration,
            });
        }
        Ok(held)
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

/// A registered region with its key. The fields end in their order: the key before the registration.
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
    pub(super) fn mkey(&self) -> Mkey {
        match self {
            Self::Pool { export, .. } => export.mkey(),
            Self::Ksm { key, .. } => key.mkey(),
        }
    }
}

pub(super) fn keys(error: impl std::fmt::Display) -> NaaError {
    NaaError::Keys {
        reason: error.to_string(),
    }
}
