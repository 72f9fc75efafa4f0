//! Opens the targets that a user names.

use super::common::secret;
use super::options::OpenArgs;
use crate::encryption::{KeyFile, Wrapping};
use crate::error::BlkError;
use crate::geometry::{Id, Role};
use crate::nbd::NbdMedium;
use crate::remote::{Address, Rdma, RemoteTarget};
use crate::say::say;
use crate::store::{Mark, Medium as _, NewTarget, Store, Target};
use crate::volume::{Volume, VolumeStatus};
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};
use xgvmi_daemon::Secret;

/// Time between attempts to open a volume that has lost a target meanwhile.
const AGAIN: Duration = Duration::from_millis(200);

/// The targets that the user names, and how to open them.
#[derive(Debug)]
pub struct Opener {
    /// Replacements change them.
    targets: RwLock<Vec<String>>,
    capacity: Option<u64>,
    direct: bool,
    key: Option<KeyFile>,
    without_absent: bool,
    /// With a secret that is read again.
    remote: RwLock<Address>,
    secret_file: Option<PathBuf>,
    pub(super) outage_limit: Duration,
}

impl Opener {
    /// Files, `tcp:HOST:PORT`, `rdma:HOST:PORT`, or `nbd:SOCKET`.
    ///
    /// # Errors
    /// The secret, or the key of the volume, cannot be read.
    pub fn new(targets: &[String], args: &OpenArgs) -> Result<Self> {
        let secret = args.secret_file.as_deref().map(secret).transpose()?;
        let patience = args.target_timeout.max(args.outage_limit);
        Ok(Self {
            targets: RwLock::new(targets.to_vec()),
            capacity: args.capacity,
            direct: args.direct == Some(true),
            key: args.key_file.as_deref().map(KeyFile::read).transpose()?,
            without_absent: args.without_absent,
            secret_file: args.secret_file.clone(),
            remote: RwLock::new(Address {
                address: String::new(),
                secret,
                limit: args.target_timeout,
                // Half of it: a request has time for a second connection, if the answer was lost with the first one.
                longest: args.target_timeout.max(args.outage_limit / 2),
                patience,
                owner: new_id()?.0,
                take_over: args.take_over,
                rdma: Some(Rdma {
                    device: args.rdma_device.clone(),
                }),
            }),
            outage_limit: args.outage_limit,
        })
    }

    /// The targets' names. Nobody replaces one as long as they are held.
    pub(super) fn names(&self) -> RwLockReadGuard<'_, Vec<String>> {
        // A panic cannot leave them half changed.
        self.targets.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn remote(&self) -> RwLockReadGuard<'_, Address> {
        // A panic cannot leave it half changed.
        self.remote.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the secret of targets again, if there is one.
    ///
    /// # Errors
    /// The file cannot be read, or holds no secret.
    pub(super) fn read_secret(&self) -> Result<Option<Secret>> {
        self.secret_file.as_deref().map(secret).transpose()
    }

    /// Proves this secret to targets from the next connection on.
    pub(super) fn set_secret(&self, secret: Secret) {
        let remote = self.remote.write();
        remote.unwrap_or_else(PoisonError::into_inner).secret = Some(secret);
    }

    /// Shortest and longest wait for an answer while a target takes its place.
    pub(super) fn patience(&self) -> (Duration, Duration) {
        let remote = self.remote();
        (remote.limit, remote.patience)
    }

    /// Uses another target in place of that of its role, while the volume serves.
    ///
    /// # Errors
    /// It cannot be opened, is in use, belongs to another volume, or the volume needs the target of its role.
    pub(super) fn replace(&self, volume: &Volume, new: &str) -> Result<Role> {
        let known = |names: &[String]| match names.iter().any(|name| name == new) {
            true => bail!("{new}: it is a target of this process already: give another one"),
            false => Ok(()),
        };
        known(&self.names())?;
        let target = self.open(new)?;
        // Nobody takes a target back meanwhile.
        let names = self.targets.write();
        let mut names = names.unwrap_or_else(PoisonError::into_inner);
        known(&names)?;
        let replaced = target.identity().role;
        let of_role = volume.name_of(replaced);
        let others = volume.layout().roles().filter(|role| *role != replaced);
        let others: Vec<String> = others.flat_map(|role| volume.name_of(role)).collect();
        let role = volume.replace(target)?;
        // One that was never there has no role that is known: of two it may be the wrong one, so both stay.
        let mut old = names.iter().enumerate().filter(|(_, name)| match &of_role {
            Some(old) => *name == old,
            None => !others.contains(name),
        });
        let old = match (old.next(), old.next()) {
            (Some((at, _)), None) => Some(at),
            _ => None,
        };
        match old {
            Some(old) => new.clone_into(&mut names[old]),
            None => names.push(new.to_owned()),
        }
        Ok(role)
    }

    fn open(&self, target: &str) -> Result<Arc<dyn Target>, BlkError> {
        let (_, longest) = self.patience();
        self.open_with(target, longest)
    }

    /// Opens a target, which must answer within `patience` while it takes its place.
    pub(super) fn open_with(
        &self,
        target: &str,
        patience: Duration,
    ) -> Result<Arc<dyn Target>, BlkError> {
        let by_tcp = target.strip_prefix("tcp:");
        Ok(match by_tcp.or_else(|| target.strip_prefix("rdma:")) {
            Some(address) => {
                let remote = self.remote().clone();
                Arc::new(RemoteTarget::connect(&Address {
                    address: address.to_owned(),
                    patience,
                    rdma: remote.rdma.clone().filter(|_| by_tcp.is_none()),
                    ..remote
                })?)
            }
            None => Arc::new(open_store(target, self.capacity, self.direct)?),
        })
    }

    /// Opens the volume on the targets that are there.
    ///
    /// # Errors
    /// Fewer than two can be opened, another process uses one, or they do not belong together.
    pub fn open_volume(&self) -> Result<Volume, BlkError> {
        self.try_open(true)
    }

    /// As [`Opener::open_volume`]. Tells of targets that are not there, if it is wanted.
    pub(super) fn try_open(&self, tells: bool) -> Result<Volume, BlkError> {
        self.open_found(self.find(tells)?)
    }

    fn open_found(&self, found: Vec<Arc<dyn Target>>) -> Result<Volume, BlkError> {
        match self.without_absent {
            true => Volume::open_without_absent(found, self.key.as_ref()),
            false => Volume::open_with(found, self.key.as_ref()),
        }
    }

    /// As [`Opener::open_volume`]. If a target that the opening needs is lost meanwhile, waits for its return as requests do,
    /// up to the limit of outages, or until SIGTERM.
    pub(super) fn open_patiently(&self) -> Result<Volume, BlkError> {
        let mut lost_at = None;
        loop {
            let opened = match self.find(lost_at.is_none()) {
                Err(error) if lost_at.is_none() => return Err(error),
                found => found.and_then(|found| self.open_found(found)),
            };
            let error = match opened {
                Err(error) if error.is_outage() => error,
                other => return other,
            };
            if lost_at.is_none() && !self.outage_limit.is_zero() {
                say(format_args!(
                    "{error}; the opening waits for it, up to {:?}",
                    self.outage_limit
                ));
            }
            let end = *lost_at.get_or_insert_with(Instant::now) + self.outage_limit;
            if Instant::now() >= end || is_asked_to_end() {
                return Err(error);
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// State of the volume on the targets that are there. Changes nothing.
    ///
    /// # Errors
    /// As [`Opener::open_volume`].
    pub fn inspect(&self) -> Result<VolumeStatus, BlkError> {
        Volume::inspect(self.find(true)?)
    }

    /// The targets that are there. Tells of the others, if it is wanted.
    fn find(&self, tells: bool) -> Result<Vec<Arc<dyn Target>>, BlkError> {
        let mut found = Vec::new();
        let mut faults = Vec::new();
        for target in &*self.names() {
            match self.open(target) {
                Ok(target) => found.push(target),
                Err(error) => faults.push(error),
            }
        }
        let layout = found.first().map(|target| target.identity().role.layout());
        let needed = layout.unwrap_or_default().needed();
        // With enough others, a target that cannot be opened counts as absent. One in use by another process does not.
        for fault in faults {
            if fault.is_used_elsewhere() || found.len() < needed {
                return Err(fault);
            }
            if tells {
                say(format_args!("{fault}; the volume is opened without it"));
            }
        }
        Ok(found)
    }

    /// Takes back the targets that have returned, and completes those that lack blocks.
    ///
    /// # Errors
    /// A target is still absent or cannot be completed. The others are complete.
    pub fn repair(&self, volume: &Volume) -> Result<()> {
        let present = volume.present();
        let names = self.names();
        let absent = names.iter().filter(|name| !present.contains(name));
        let mut faults = Vec::new();
        for name in absent {
            if let Err(error) = self.open(name).and_then(|target| volume.attach(target)) {
                faults.push(error);
            }
        }
        rebuild(volume)?;
        faults
            .into_iter()
            .next()
            .map_or(Ok(()), |error| Err(error.into()))
    }
}

/// True if SIGTERM or SIGINT has arrived at a process that takes signals later.
fn is_asked_to_end() -> bool {
    let mut pending = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is this function's own.
    if unsafe { libc::sigpending(pending.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call was successful, which filled the set.
    let pending = unsafe { pending.assume_init() };
    let signals = [libc::SIGTERM, libc::SIGINT];
    signals.iter().any(|signal| {
        // SAFETY: a valid set and a valid signal.
        unsafe { libc::sigismember(&raw const pending, *signal) == 1 }
    })
}

/// Opens a target that this process serves itself: a file, or `nbd:SOCKET`.
pub(super) fn open_store(
    target: &str,
    capacity: Option<u64>,
    direct: bool,
) -> Result<Store, BlkError> {
    match target.strip_prefix("nbd:") {
        Some(socket) => {
            let medium = NbdMedium::connect(Path::new(socket));
            let medium = medium.map_err(|error| BlkError::io(target, error))?;
            Store::open(target, Box::new(medium), capacity)
        }
        None => Store::open_past(Path::new(target), capacity, direct),
    }
}

/// Creates a target: a new file, a block device, or an empty export at `nbd:SOCKET`. With `force` what a device holds is lost.
/// One of an encrypted volume gets the wrapped key.
///
/// # Errors
/// The file exists, the device or the export is not empty, or errors of the system.
pub fn create_store(
    target: &str,
    new: NewTarget,
    force: bool,
    wrapping: Option<Wrapping>,
) -> Result<Store, BlkError> {
    let store = create_plain(target, new, force)?;
    if let Some(wrapping) = wrapping {
        store.mark(0, Mark::Wrapping(wrapping))?;
    }
    Ok(store)
}

fn create_plain(target: &str, new: NewTarget, force: bool) -> Result<Store, BlkError> {
    let Some(socket) = target.strip_prefix("nbd:") else {
        return Store::create_over(Path::new(target), (new, None), force);
    };
    let failed = |error| BlkError::io(target, error);
    let medium = NbdMedium::connect(Path::new(socket)).map_err(failed)?;
    // A shorter export is refused below.
    let length = medium.size().unwrap_or(u64::MAX).min(8192);
    let mut first = vec![0; usize::try_from(length).unwrap_or(0)];
    medium.read(0, &mut first).map_err(failed)?;
    if first.iter().any(|byte| *byte != 0) {
        return Err(BlkError::NotATarget {
            target: target.to_owned(),
            fault: "it is not empty: a new target needs an export whose first bytes are zero"
                .to_owned(),
        });
    }
    Store::create(target, Box::new(medium), new, None)
}

/// A new identifier.
///
/// # Errors
/// Errors of the system.
pub fn new_id() -> Result<Id> {
    Ok(Id(xgvmi_daemon::random()
        .context("cannot get random bytes")?
        .to_ne_bytes()))
}

/// Completes all targets that are there.
///
/// # Errors
/// As [`Volume::rebuild`].
pub fn rebuild(volume: &Volume) -> Result<()> {
    let mut result = Ok(());
    for role in volume.layout().roles() {
        if volume.used(role).is_some() {
            // The others are completed nevertheless.
            result = result.and(rebuild_one(volume, role));
        }
    }
    result
}

/// Completes the target of a role. Also marks one as complete that lacks nothing.
pub(super) fn rebuild_one(volume: &Volume, role: Role) -> Result<()> {
    let was_complete = volume.is_complete(role);
    match volume.rebuild(role)? {
        0 if was_complete => {}
        count => say(format_args!("{role} is complete: it lacked {count} blocks")),
    }
    Ok(())
}
