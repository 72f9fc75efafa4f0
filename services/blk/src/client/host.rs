//! The host's adapter: one for all connections of this process.

use super::spec::Scheme;
use crate::error::{BlkError, Result};
use std::path::Path;
use ucx_sys::Ucp;
use xgvmi_pool::{AccessKey, Gvmi, Mkey, Seal, VirtAddr};
use xgvmi_ucp::{ExportedRange, Exporter};
use xgvmi_verbs::{Forked, HostKeys, HostOptions, KeyKind, PerProcess, VerbsError};

/// Keys that the pool creates before it announces them. More follow when more transfers are under way.
const KEYS_AHEAD: u32 = 16;

/// The adapter of this process. It lives until the process ends.
#[derive(Debug)]
pub(super) struct Host {
    name: Option<String>,
    keys: HostKeys,
    ucx: PerProcess<Exporter>,
}

impl Host {
    /// The adapter with this name, or the first one. A process uses one.
    pub(super) fn get(name: Option<&str>) -> Result<&'static Self> {
        static HOST: PerProcess<Host> = PerProcess::new();
        let opened = HOST.get(|| Self::open(name))?;
        if opened.name.as_deref() != name {
            return Err(keys(format!(
                "a process uses one adapter: {:?} is open, {name:?} is wanted",
                opened.name
            )));
        }
        Ok(opened)
    }

    fn open(name: Option<&str>) -> Result<Self> {
        let access_key = AccessKey::new(xgvmi_daemon::random_bytes().map_err(keys)?);
        let options = HostOptions {
            device: name,
            owner: access_key.owner(),
            access_key,
            keys_ahead: KEYS_AHEAD,
        };
        Ok(Self {
            name: name.map(str::to_owned),
            keys: HostKeys::open(&options)?,
            ucx: PerProcess::new(),
        })
    }

    /// Opens UCX for [`Scheme::Stock`]. A process uses the first library that it names.
    pub(super) fn open_ucx(&'static self, library: Option<&Path>) -> Result<()> {
        self.ucx(library).map(drop)
    }

    fn ucx(&'static self, library: Option<&Path>) -> Result<&'static Exporter> {
        self.ucx.get(|| {
            let ucp = Ucp::load(library).map_err(keys)?;
            Exporter::open(ucp, "xgvmi-blk", self.keys.device_name()).map_err(keys)
        })
    }

    pub(super) fn gvmi(&self) -> Gvmi {
        self.keys.gvmi()
    }

    pub(super) fn access_key(&self) -> &AccessKey {
        self.keys.access_key()
    }

    /// Announcement of the pool's keys. Creates the first keys.
    pub(super) fn announcement(&self) -> Vec<u8> {
        self.keys.announcement(&Seal::OPEN)
    }

    /// Registers memory, and binds or creates a key for it. For [`Scheme::Stock`] after [`Host::open_ucx`].
    ///
    /// # Safety
    /// The memory stays mapped as long as the result lives.
    pub(super) unsafe fn hold(
        &'static self,
        scheme: Scheme,
        addr: *const u8,
        len: usize,
    ) -> Result<Held> {
        let kind = match scheme {
            Scheme::Ksm => KeyKind::Own,
            Scheme::Copy | Scheme::Pool | Scheme::Announced => KeyKind::Pooled,
            // SAFETY: the caller's promise.
            Scheme::Stock => return unsafe { self.hold_by_ucx(addr, len) },
        };
        // SAFETY: the caller's promise.
        let held = unsafe { self.keys.hold(kind, VirtAddr::new(addr as u64), len) }?;
        Ok(Held::Ours(held))
    }

    /// # Safety
    /// As [`Host::hold`].
    unsafe fn hold_by_ucx(&'static self, addr: *const u8, len: usize) -> Result<Held> {
        // SAFETY: the caller's promise.
        let range = unsafe { self.ucx(None)?.export(addr, len) }.map_err(keys)?;
        let function = range.key().function;
        if function != self.gvmi().get() {
            return Err(keys(format!(
                "UCX exports by function {function}, and {} is function {}",
                self.keys.device_name(),
                self.gvmi().get()
            )));
        }
        Ok(Held::Ucx(range))
    }
}

/// Registered memory with its key. After its drop no access through the key succeeds.
#[derive(Debug)]
pub(super) enum Held {
    /// A key of the pool, or one of its own.
    Ours(xgvmi_verbs::Held),
    /// A key of UCX's pool.
    Ucx(ExportedRange<'static>),
}

impl Held {
    /// The key that the service makes an alias of.
    pub(super) fn mkey(&self) -> Mkey {
        match self {
            Self::Ours(held) => held.mkey(),
            Self::Ucx(range) => Mkey::from_raw(range.key().mkey),
        }
    }
}

impl From<VerbsError> for BlkError {
    fn from(error: VerbsError) -> Self {
        keys(error)
    }
}

impl From<Forked> for BlkError {
    fn from(error: Forked) -> Self {
        keys(error)
    }
}

fn keys(error: impl std::fmt::Display) -> BlkError {
    BlkError::Keys(error.to_string())
}
