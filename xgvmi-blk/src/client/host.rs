//! The host's adapter: one for all connections of this process.

use super::spec::Scheme;
use crate::error::{BlkError, Result};
use xgvmi_pool::{Gvmi, OwnerUuid, Seal, VirtAddr};
use xgvmi_verbs::{Forked, HostKeys, HostOptions, KeyKind, PerProcess, VerbsError};

pub(super) use xgvmi_verbs::Held;

/// Keys that the pool creates before it announces them. More follow when more transfers are under way.
const KEYS_AHEAD: u32 = 16;

/// The adapter of this process. It lives until the process ends.
#[derive(Debug)]
pub(super) struct Host {
    name: Option<String>,
    keys: HostKeys,
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
        let random = xgvmi_daemon::random().map_err(keys)?;
        let options = HostOptions {
            device: name,
            owner: OwnerUuid::new(u64::try_from(random >> 64).unwrap_or(1)),
            keys_ahead: KEYS_AHEAD,
        };
        Ok(Self {
            name: name.map(str::to_owned),
            keys: HostKeys::open(&options)?,
        })
    }

    pub(super) fn gvmi(&self) -> Gvmi {
        self.keys.gvmi()
    }

    pub(super) fn owner(&self) -> OwnerUuid {
        self.keys.owner()
    }

    /// Announcement of the pool's keys. Creates the first keys.
    pub(super) fn announcement(&self) -> Vec<u8> {
        self.keys.announcement(&Seal::OPEN)
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
        let kind = match scheme {
            Scheme::Ksm => KeyKind::Own,
            Scheme::Copy | Scheme::Pool | Scheme::Announced => KeyKind::Pooled,
        };
        // SAFETY: the caller's promise.
        Ok(unsafe { self.keys.hold(kind, VirtAddr::new(addr as u64), len) }?)
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
