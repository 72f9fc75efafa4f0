//! What the threads of a service share.

use super::connection::Connections;
use super::counters::Counters;
use super::identities::Identities;
use super::queue::Queue;
use crate::volume::Volume;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use xgvmi_daemon::{Admission, Budget};
use xgvmi_verbs::{Adapter, HostAliases};

/// Most requests of one initiator under way.
pub const REQUESTS_MAX: u32 = 32;

pub(super) struct Shared {
    pub(super) volume: Arc<Volume>,
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

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}
