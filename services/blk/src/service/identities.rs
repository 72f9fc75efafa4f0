//! Who may connect to a service: owners of the secret of all initiators, and initiators with a name and a secret of their own.

use super::counters::Counters;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use xgvmi_daemon::Secret;

/// Most initiators with names.
pub const IDENTITIES_MAX: usize = 64;

/// An initiator with a name, as its service's file says.
#[derive(Debug, Clone)]
pub struct Initiator {
    /// Its name.
    pub name: String,
    /// The secret that it proves. It belongs to the name.
    pub secret: Secret,
    /// Its writes are refused.
    pub read_only: bool,
    /// Most connections of it at once.
    pub connections: usize,
}

/// Who may connect. Without anybody, everyone may.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The secret of those without names.
    pub secrets: Vec<Secret>,
    /// Those with names.
    pub initiators: Vec<Initiator>,
}

/// State of an initiator with a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitiatorStatus {
    /// Its name.
    pub name: String,
    /// Its writes are refused.
    pub read_only: bool,
    /// Its connections.
    pub connections: u64,
    /// Its requests.
    pub requests: u64,
    /// Those that failed, or were refused.
    pub failed: u64,
    /// Bytes from its memory.
    pub fetched_bytes: u64,
    /// Bytes to its memory.
    pub delivered_bytes: u64,
}

/// An initiator with a name, and what it does. It stays the same when the file is read again.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) counters: Counters,
    read_only: AtomicBool,
    revoked: AtomicBool,
    most: AtomicUsize,
    connections: AtomicUsize,
}

/// Who may connect now.
#[derive(Debug, Default)]
pub(super) struct Identities {
    shared: Vec<Secret>,
    named: Vec<(Secret, Arc<Identity>)>,
}

/// A connection of an initiator with a name. Its drop ends the count.
#[derive(Debug)]
pub(super) struct Session(Arc<Identity>);

impl Identities {
    /// As the files say, with the counters of those who were there before. Returns those who are not there any more.
    pub(super) fn replace(&self, access: Access) -> (Self, Vec<Arc<Identity>>) {
        let of_name = |name: &str| self.named.iter().find(|(_, known)| known.name == name);
        let named = access.initiators.into_iter().map(|initiator| {
            let known = of_name(&initiator.name).map(|(_, known)| Arc::clone(known));
            let identity = known.unwrap_or_else(|| Arc::new(Identity::new(&initiator.name)));
            identity
                .read_only
                .store(initiator.read_only, Ordering::Release);
            identity
                .most
                .store(initiator.connections, Ordering::Release);
            (initiator.secret, identity)
        });
        let next = Self {
            shared: access.secrets,
            named: named.collect(),
        };
        let stays =
            |gone: &Arc<Identity>| next.named.iter().any(|(_, kept)| Arc::ptr_eq(kept, gone));
        let known = self.named.iter().map(|(_, known)| Arc::clone(known));
        let gone: Vec<Arc<Identity>> = known.filter(|known| !stays(known)).collect();
        for identity in &gone {
            identity.revoked.store(true, Ordering::Release);
        }
        (next, gone)
    }

    /// The secrets, one of which a new connection must prove.
    pub(super) fn secrets(&self) -> Vec<Secret> {
        let named = self.named.iter().map(|(secret, _)| secret);
        self.shared.iter().chain(named).cloned().collect()
    }

    /// Who has proved a secret, if it is that of a name.
    pub(super) fn of(&self, secret: Option<&Secret>) -> Option<Arc<Identity>> {
        let found = self.named.iter().find(|(known, _)| Some(known) == secret);
        found.map(|(_, identity)| Arc::clone(identity))
    }

    pub(super) fn has_names(&self) -> bool {
        !self.named.is_empty()
    }

    pub(super) fn status(&self) -> Vec<InitiatorStatus> {
        self.named.iter().map(|(_, one)| one.status()).collect()
    }
}

impl Identity {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            counters: Counters::default(),
            read_only: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            most: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Counts a connection.
    ///
    /// # Errors
    /// It has as many as it may have.
    pub(super) fn connect(self: &Arc<Self>) -> Result<Session, String> {
        let most = self.most.load(Ordering::Acquire);
        let session = Session(Arc::clone(self));
        match self.connections.fetch_add(1, Ordering::AcqRel) < most {
            true => Ok(session),
            false => Err(format!(
                "all {most} connections of initiator {} are taken: close one, or try again later",
                self.name
            )),
        }
    }

    fn status(&self) -> InitiatorStatus {
        let [requests, failed, fetched_bytes, delivered_bytes] = self.counters.all();
        InitiatorStatus {
            name: self.name.clone(),
            read_only: self.is_read_only(),
            connections: self.connections.load(Ordering::Acquire) as u64,
            requests,
            failed,
            fetched_bytes,
            delivered_bytes,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}
