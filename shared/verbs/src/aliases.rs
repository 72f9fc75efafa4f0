//! The keys of hosts at a service: whose keys a connection names, the aliases of them, and the end of both.

use crate::adapter::Adapter;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xgvmi_pool::mlx5::Mlx5Device;
use xgvmi_pool::{
    AccessKey, Alias, AliasDevice as _, AliasError, AliasPolicy, AliasRef, AliasStats,
    AnnounceError, DpuHooks, Gvmi, Lkey, Mkey, OwnerUuid, RemoteKey,
};

/// Whose keys a connection uses.
#[derive(Debug, Clone)]
pub struct Keys {
    /// They are keys of a pool: their aliases stay after their use.
    pub pooled: bool,
    /// The function of the host.
    pub gvmi: Gvmi,
    /// Follows from the access key of the hello: no host can name another one's keys.
    pub owner: OwnerUuid,
    /// The adapter asks for it before it creates an alias. A host that claims another function gets no alias.
    pub access: AccessKey,
}

/// An alias of a host's key.
#[derive(Debug)]
pub enum Access {
    /// Of the map: it stays after the drop.
    Pooled(AliasRef<Mlx5Device>),
    /// Of this value.
    Own(Arc<Mlx5Device>, Alias),
}

impl Access {
    /// The local key of the host's memory.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        match self {
            Self::Pooled(alias) => alias.lkey(),
            Self::Own(_, alias) => alias.lkey,
        }
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        if let Self::Own(device, alias) = self {
            // A refused destruction leaves the alias until the process ends; other aliases still end.
            let _ = device.destroy_alias(alias.index);
        }
    }
}

/// The aliases of the keys of all hosts that are connected to a service.
#[derive(Debug)]
pub struct HostAliases {
    device: Arc<Mlx5Device>,
    hooks: DpuHooks<Mlx5Device>,
    /// Number of connections of each owner of keys. When the last one ends, the owner's aliases end.
    owners: Mutex<HashMap<u64, u32>>,
}

impl HostAliases {
    /// No aliases yet.
    ///
    /// # Errors
    /// The device creates no aliases.
    pub fn open(adapter: &Adapter) -> Result<Self, AliasError> {
        let device = adapter.device();
        Ok(Self {
            hooks: DpuHooks::open(Arc::clone(&device), AliasPolicy::default())?,
            device,
            owners: Mutex::default(),
        })
    }

    /// A connection of this owner begins. Call it before the first alias of the connection.
    pub fn enter(&self, owner: OwnerUuid) {
        *self.owners().entry(owner.get()).or_default() += 1;
    }

    /// A connection of this owner has ended.
    pub fn leave(&self, owner: OwnerUuid) {
        let is_last = {
            let mut owners = self.owners();
            let Some(count) = owners.get_mut(&owner.get()) else {
                return;
            };
            *count -= 1;
            *count == 0 && owners.remove(&owner.get()).is_some()
        };
        if is_last {
            self.hooks.reap_owner(owner);
        }
    }

    /// Creates the aliases of announced keys. Returns their number.
    ///
    /// # Errors
    /// The announcement is damaged or of another owner.
    pub fn receive(&self, announcement: &[u8], access: &AccessKey) -> Result<u32, AnnounceError> {
        match self.hooks.receive_with(announcement, access) {
            Ok((_, aliases)) => Ok(u32::try_from(aliases.ready).unwrap_or(u32::MAX)),
            // Connections of one process may overtake each other. The newer announcement has all keys of this one.
            Err(AnnounceError::Replayed { .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// An alias of a key.
    ///
    /// # Errors
    /// The adapter refuses; the text names the key.
    pub fn attach(&self, keys: &Keys, mkey: u32) -> Result<Access, String> {
        let key = RemoteKey {
            gvmi: keys.gvmi,
            mkey: Mkey::from_raw(mkey),
            owner: keys.owner,
        };
        let failed = |error: &dyn std::fmt::Display| {
            format!("no alias of the host's key {mkey:#x}: {error}")
        };
        if keys.pooled {
            let alias = self.hooks.attach_with(key, &keys.access);
            return alias.map(Access::Pooled).map_err(|error| failed(&error));
        }
        let alias = self.device.create_alias(&key, &keys.access);
        alias
            .map(|alias| Access::Own(Arc::clone(&self.device), alias))
            .map_err(|error| failed(&error))
    }

    /// Numbers of the alias map.
    #[must_use]
    pub fn stats(&self) -> AliasStats {
        self.hooks.stats()
    }

    /// Destroys all aliases. False if one remains on the device.
    #[must_use]
    pub fn close(&self) -> bool {
        self.hooks.close()
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<u64, u32>> {
        // No holder panics between changes that belong together.
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
