//! The host's adapter: one for all sessions of this process, as the environment asks.

use crate::error::{NaaError, Result};
use crate::plan::Region;
use xgvmi_pool::{AccessKey, Gvmi, Seal, VirtAddr};
use xgvmi_verbs::{Forked, HostKeys, HostOptions, KeyKind, PerProcess, Rights, VerbsError};

pub(super) use xgvmi_verbs::{Held, Unkeyed};

/// Environment variable: RDMA device of the host. Without it the first mlx5 device.
const DEVICE: &str = "NAAICE_DEVICE";
/// Environment variable: `pool` or `ksm`.
const KEYS: &str = "NAAICE_KEYS";
/// Keys that the pool creates with the first session. The service creates their aliases ahead. More keys follow when
/// more regions are in use at a time.
const KEYS_AHEAD: u32 = 8;

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
pub(super) struct Host(HostKeys);

impl Host {
    /// The adapter, opened by the first session.
    pub(super) fn get() -> Result<&'static Self> {
        static HOST: PerProcess<Host> = PerProcess::new();
        HOST.get(Self::open)
    }

    fn open() -> Result<Self> {
        let name = std::env::var(DEVICE).ok().filter(|name| !name.is_empty());
        let access = AccessKey::new(xgvmi_daemon::random_bytes().map_err(keys)?);
        let options = HostOptions {
            device: name.as_deref(),
            owner: access.owner(),
            access_key: access,
            keys_ahead: KEYS_AHEAD,
        };
        Ok(Self(HostKeys::open(&options)?))
    }

    pub(super) fn gvmi(&self) -> Gvmi {
        self.0.gvmi()
    }

    /// The access key of this process's keys.
    pub(super) fn access_key(&self) -> &AccessKey {
        self.0.access_key()
    }

    /// Announcement of the pool's keys. Creates the first keys.
    pub(super) fn announcement(&self, seal: &Seal) -> Vec<u8> {
        self.0.announcement(seal)
    }

    /// Registers regions, and creates or binds their keys. All binds are one chain of requests.
    ///
    /// # Safety
    /// The regions stay mapped as long as the results live.
    pub(super) unsafe fn hold(&'static self, way: Way, regions: &[Region]) -> Result<Vec<Held>> {
        let kind = match way {
            Way::Pool => KeyKind::Pooled,
            Way::Ksm => KeyKind::Own,
        };
        let ranges = regions.iter().map(|region| {
            // A caller's input may be memory that nobody may write.
            let rights = if region.output {
                Rights::ReadWrite
            } else {
                Rights::Read
            };
            (VirtAddr::new(region.addr), region.size as usize, rights)
        });
        // SAFETY: the caller's promise.
        Ok(unsafe { self.0.hold_all(kind, ranges) }?)
    }
}

impl From<Forked> for NaaError {
    fn from(_: Forked) -> Self {
        Self::Forked
    }
}

impl From<VerbsError> for NaaError {
    fn from(error: VerbsError) -> Self {
        match error {
            VerbsError::Forked(_) => Self::Forked,
            error => keys(error),
        }
    }
}

pub(super) fn keys(error: impl std::fmt::Display) -> NaaError {
    NaaError::Keys {
        reason: error.to_string(),
    }
}
