//! What the threads of a service share.

use super::connection::{Connections, who};
use super::counters::Counters;
use super::identities::{Identities, Identity};
use super::queue::Queue;
use crate::say::Bounded;
use crate::volume::Volume;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use xgvmi_daemon::{Admission, Budget};
use xgvmi_verbs::{Adapter, HostAliases};

/// Most requests of one initiator under way.
pub const REQUESTS_MAX: u32 = 32;

/// Finds a volume that is open, or tells why it is not.
pub type FindVolume = Arc<dyn Fn() -> Result<Arc<Volume>, String> + Send + Sync>;

pub(super) struct Shared {
    /// With their names, which only several need.
    pub(super) volumes: Vec<(String, FindVolume)>,
    pub(super) transfer_max: u32,
    pub(super) rdma: bool,
    pub(super) stock_keys: bool,
    pub(super) wait_ms: u32,
    pub(super) identities: RwLock<Arc<Identities>>,
    pub(super) budget: Budget,
    pub(super) queue: Queue,
    pub(super) connections: Connections,
    pub(super) counters: Counters,
    pub(super) admission: Arc<Admission>,
    /// Lines about peers.
    pub(super) told: Bounded,
    /// Requests that have arrived and have no answer.
    pub(super) under_way: AtomicUsize,
    /// No further request is taken.
    pub(super) draining: AtomicBool,
    pub(super) aliases: HostAliases,
    pub(super) adapter: Arc<Adapter>,
}

impl Shared {
    /// Who may connect now.
    pub(super) fn identities(&self) -> Arc<Identities> {
        // No holder panics while it replaces the list.
        let identities = self.identities.read();
        Arc::clone(&identities.unwrap_or_else(PoisonError::into_inner))
    }

    /// Names of the volumes.
    pub(super) fn names(&self) -> Vec<&str> {
        self.volumes.iter().map(|(name, _)| &**name).collect()
    }

    /// Number and volume of a name. The only volume also has the empty one. An initiator that may not use all does not learn
    /// whether there are others.
    pub(super) fn find(
        &self,
        name: &str,
        identity: Option<&Arc<Identity>>,
    ) -> Result<(usize, Arc<Volume>), String> {
        let all = &self.volumes;
        let found = match all.len() {
            1 if name.is_empty() => Some(0),
            _ => all.iter().position(|(of_volume, _)| of_volume == name),
        };
        let may = |of: usize| identity.is_none_or(|identity| identity.right(of).is_some());
        let found = found.filter(|of| may(*of) && (!name.is_empty() || all.len() == 1));
        let Some(of) = found else {
            let names = self.names();
            let names = names.into_iter().enumerate().filter(|(of, _)| may(*of));
            let names: Vec<_> = names.map(|(_, name)| name).collect();
            let who = who(identity);
            return Err(match names[..] {
                [] => format!("{who} may use no volume of this service"),
                _ if names.len() < all.len() => format!(
                    "there is no volume '{name}' for {who}: name one of {} (--volume)",
                    names.join(", ")
                ),
                [""] => format!(
                    "there is no volume '{name}': the service has one without a name, give none"
                ),
                _ => format!(
                    "there is no volume '{name}': name one of {} (--volume)",
                    names.join(", ")
                ),
            });
        };
        Ok((of, (all[of].1)()?))
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}
