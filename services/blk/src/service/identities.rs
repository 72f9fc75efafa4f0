//! Who may connect to a service: owners of the secret of all initiators, and initiators with a name and a secret of their own.

use super::counters::Counters;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use xgvmi_daemon::Secret;

/// Most initiators with names.
pub const IDENTITIES_MAX: usize = 64;

/// What an initiator may do with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Its writes are refused.
    Read,
    /// It reads and writes.
    Write,
}

/// An initiator with a name, as its service's file says.
#[derive(Debug, Clone)]
pub struct Initiator {
    /// Its name.
    pub name: String,
    /// The secret that it proves. It belongs to the name.
    pub secret: Secret,
    /// Its writes are refused, whatever the volume.
    pub read_only: bool,
    /// The volumes that it may use, by their names. None: all.
    pub volumes: Option<BTreeMap<String, Right>>,
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
    /// Its writes are refused, whatever the volume.
    pub read_only: bool,
    /// What it may do with each volume that has a name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<String, Right>,
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
    /// Of each volume, in the order of the service: 0 for none, or the number of a right, beginning with 1.
    rights: Box<[AtomicU8]>,
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
    /// As the files say, with the counters of those who were there before, for these volumes. Returns those who are not there any
    /// more.
    pub(super) fn replace(&self, access: Access, volumes: &[&str]) -> (Self, Vec<Arc<Identity>>) {
        let of_name = |name: &str| self.named.iter().find(|(_, known)| known.name == name);
        let named = access.initiators.into_iter().map(|initiator| {
            let known = of_name(&initiator.name).map(|(_, known)| Arc::clone(known));
            let identity =
                known.unwrap_or_else(|| Arc::new(Identity::new(&initiator.name, volumes.len())));
            for (right, volume) in identity.rights.iter().zip(volumes) {
                right.store(number(initiator.right(volume)), Ordering::Release);
            }
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

    /// Those with names.
    pub(super) fn named(&self) -> impl Iterator<Item = &Arc<Identity>> {
        self.named.iter().map(|(_, identity)| identity)
    }
}

impl Initiator {
    /// What it may do with a volume.
    fn right(&self, volume: &str) -> Option<Right> {
        let most = if self.read_only {
            Right::Read
        } else {
            Right::Write
        };
        let right = match &self.volumes {
            Some(volumes) => volumes.get(volume).copied(),
            None => Some(most),
        };
        right.map(|right| right.min(most))
    }
}

const fn number(right: Option<Right>) -> u8 {
    match right {
        None => 0,
        Some(Right::Read) => 1,
        Some(Right::Write) => 2,
    }
}

impl Identity {
    fn new(name: &str, volumes: usize) -> Self {
        Self {
            name: name.to_owned(),
            counters: Counters::default(),
            read_only: AtomicBool::new(false),
            rights: (0..volumes).map(|_| AtomicU8::new(0)).collect(),
            revoked: AtomicBool::new(false),
            most: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        }
    }

    /// What it may do with the volume of a number.
    pub(super) fn right(&self, of: usize) -> Option<Right> {
        match self.rights.get(of)?.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Right::Read),
            _ => Some(Right::Write),
        }
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

    /// Its state, with the names of the volumes.
    pub(super) fn status(&self, volumes: &[&str]) -> InitiatorStatus {
        let rights = volumes.iter().enumerate().filter_map(|(of, name)| {
            let right = self.right(of).filter(|_| !name.is_empty())?;
            Some(((*name).to_owned(), right))
        });
        let [requests, failed, fetched_bytes, delivered_bytes] = self.counters.all();
        InitiatorStatus {
            name: self.name.clone(),
            read_only: self.read_only.load(Ordering::Acquire),
            volumes: rights.collect(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        use std::os::unix::fs::PermissionsExt as _;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a secret of sixteen bytes").unwrap();
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(file.path(), private).unwrap();
        Secret::read(file.path(), "a test").unwrap()
    }

    fn initiator(name: &str, read_only: bool, volumes: Option<&[(&str, Right)]>) -> Initiator {
        let volumes = volumes.map(|all| {
            let all = all.iter();
            all.map(|(name, right)| ((*name).to_owned(), *right))
                .collect()
        });
        Initiator {
            name: name.to_owned(),
            secret: secret(),
            read_only,
            volumes,
            connections: 1,
        }
    }

    /// An initiator has the rights of the file that was read last, also in the connections that it has.
    #[test]
    fn rights_are_those_of_each_volume() {
        use Right::{Read, Write};
        let volumes = ["a", "b", "c"];
        let access = |initiators: Vec<Initiator>| Access {
            secrets: Vec::new(),
            initiators,
        };
        let (first, gone) = Identities::default().replace(
            access(vec![
                initiator("all", false, None),
                initiator("reader", true, None),
                initiator("some", false, Some(&[("a", Write), ("c", Read)])),
                initiator("weak", true, Some(&[("b", Write)])),
                initiator("none", false, Some(&[])),
            ]),
            &volumes,
        );
        assert!(gone.is_empty());
        let rights = |identity: &Identity| [0, 1, 2, 3].map(|of| identity.right(of));
        let found: Vec<_> = first.named().map(|one| rights(one)).collect();
        let expect = [
            [Some(Write), Some(Write), Some(Write), None],
            [Some(Read), Some(Read), Some(Read), None],
            [Some(Write), None, Some(Read), None],
            [None, Some(Read), None, None],
            [None; 4],
        ];
        assert_eq!(found, expect);
        let some = Arc::clone(first.named().nth(2).unwrap());
        let status = some.status(&volumes).volumes;
        let expect = [("a", Write), ("c", Read)].map(|(name, right)| (name.to_owned(), right));
        assert_eq!(status, expect.into());

        let next = access(vec![initiator("some", false, Some(&[("b", Write)]))]);
        let (second, gone) = first.replace(next, &volumes);
        assert_eq!(rights(&some), [None, Some(Write), None, None]);
        assert!(Arc::ptr_eq(second.named().next().unwrap(), &some));
        assert_eq!(gone.len(), 4);
        // The volume of a service without names of volumes.
        let only = access(vec![
            initiator("r", true, None),
            initiator("w", false, None),
        ]);
        let (only, _) = Identities::default().replace(only, &[""]);
        let found: Vec<_> = only.named().map(|one| one.right(0)).collect();
        assert_eq!(found, [Some(Read), Some(Write)]);
        assert!(only.named().all(|one| one.status(&[""]).volumes.is_empty()));
    }
}
