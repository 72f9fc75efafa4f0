//! Opens the targets that a user names, and keeps a volume complete while it serves.

use super::common::secret;
use super::options::OpenArgs;
use crate::error::BlkError;
use crate::geometry::{Id, Role, TARGETS};
use crate::nbd::NbdMedium;
use crate::remote::{Address, RemoteTarget};
use crate::say::say;
use crate::store::{Medium as _, NewTarget, Store, Target};
use crate::volume::{Volume, VolumeStatus};
use anyhow::{Context as _, Result, bail};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between attempts to take absent targets back.
const RETURN: Duration = Duration::from_secs(1);
/// Time until a rebuild that has failed is tried again, if the target has not freed space before.
const REBUILD_AGAIN: Duration = Duration::from_secs(60);
/// Names of rebuilds in messages.
const REBUILD: [&str; TARGETS] = [
    "rebuild of data_1",
    "rebuild of data_2",
    "rebuild of data_p",
];

/// The targets that the user names, and how to open them.
#[derive(Debug)]
pub struct Opener {
    /// Replacements change them.
    targets: Mutex<Vec<String>>,
    capacity: Option<u64>,
    remote: Address,
    outage_limit: Duration,
}

impl Opener {
    /// Files, `tcp:HOST:PORT`, or `nbd:SOCKET`.
    ///
    /// # Errors
    /// The secret cannot be read.
    pub fn new(targets: &[String], args: &OpenArgs) -> Result<Self> {
        let secret = args.secret_file.as_deref().map(secret).transpose()?;
        Ok(Self {
            targets: Mutex::new(targets.to_vec()),
            capacity: args.capacity,
            remote: Address {
                address: String::new(),
                secret,
                limit: args.target_timeout,
                longest: args.target_timeout.max(args.outage_limit),
                owner: new_id()?.0,
                take_over: args.take_over,
            },
            outage_limit: args.outage_limit,
        })
    }

    fn names(&self) -> MutexGuard<'_, Vec<String>> {
        // A panic cannot leave them half changed.
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut names = self.names();
        known(&names)?;
        let present = volume.present();
        let of_role = volume.name_of(target.identity().role);
        let role = volume.replace(target)?;
        let old = names.iter().position(|name| match &of_role {
            Some(old) => name == old,
            None => !present.contains(name),
        });
        match old {
            Some(old) => new.clone_into(&mut names[old]),
            None => names.push(new.to_owned()),
        }
        Ok(role)
    }

    fn open(&self, target: &str) -> Result<Arc<dyn Target>, BlkError> {
        Ok(match target.strip_prefix("tcp:") {
            Some(address) => Arc::new(RemoteTarget::connect(&Address {
                address: address.to_owned(),
                ..self.remote.clone()
            })?),
            None => Arc::new(open_store(target, self.capacity)?),
        })
    }

    /// Opens the volume on the targets that are there.
    ///
    /// # Errors
    /// Fewer than two can be opened, another process uses one, or they do not belong together.
    pub fn open_volume(&self) -> Result<Volume, BlkError> {
        Volume::open(self.find()?)
    }

    /// State of the volume on the targets that are there. Changes nothing.
    ///
    /// # Errors
    /// As [`Opener::open_volume`].
    pub fn inspect(&self) -> Result<VolumeStatus, BlkError> {
        Volume::inspect(self.find()?)
    }

    /// The targets that are there.
    fn find(&self) -> Result<Vec<Arc<dyn Target>>, BlkError> {
        let mut found = Vec::new();
        let mut faults = Vec::new();
        for target in &*self.names() {
            match self.open(target) {
                Ok(target) => found.push(target),
                Err(error) => faults.push(error),
            }
        }
        // With two others, a target that cannot be opened counts as absent. One in use by another process does not.
        for fault in faults {
            if fault.is_used_elsewhere() || found.len() < 2 {
                return Err(fault);
            }
            say(format_args!("{fault}; the volume is opened without it"));
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

    /// Starts a thread that keeps the volume complete.
    pub(super) fn keep(self: &Arc<Self>, volume: &Arc<Volume>) -> Result<()> {
        volume.set_outage_limit(self.outage_limit);
        let volume = Arc::clone(volume);
        let keeper = std::thread::Builder::new().name("keeper".to_owned());
        keeper
            .spawn({
                let opener = Arc::clone(self);
                move || opener.keep_complete(&volume)
            })
            .context("cannot start the keeper")?;
        Ok(())
    }

    /// Completes targets that lack blocks and takes back those that return, without end, while the volume serves.
    fn keep_complete(&self, volume: &Volume) {
        let mut told: HashMap<String, String> = HashMap::new();
        let mut failed = [None; TARGETS];
        loop {
            let present = volume.present();
            let names = self.names().clone();
            for name in &names {
                if !present.contains(name) {
                    let opened = self.open(name);
                    // Held: nobody replaces it meanwhile.
                    let now = self.names();
                    if !now.contains(name) {
                        continue;
                    }
                    let taken = opened.and_then(|target| volume.attach(target));
                    drop(now);
                    if let Ok(role) = taken {
                        // What could not be read before may be there now.
                        failed = [None; TARGETS];
                        say(format_args!("{role} is used again: {name}"));
                        if volume.is_complete(role) {
                            say(format_args!("{role} is complete: it lacks nothing"));
                        }
                    }
                    tell_once(&mut told, name, taken.map_err(Into::into));
                }
            }
            for (role, failed) in Role::ALL.into_iter().zip(&mut failed) {
                if let Some(used) = wants_rebuild(volume, role, *failed) {
                    let rebuilt = rebuild_one(volume, role);
                    *failed = rebuilt.is_err().then(|| Failed {
                        used,
                        at: Instant::now(),
                    });
                    tell_once(&mut told, REBUILD[role.index()], rebuilt);
                }
            }
            std::thread::sleep(RETURN);
        }
    }
}

/// A rebuild that has failed.
#[derive(Debug, Clone, Copy)]
struct Failed {
    /// Bytes in use at the target then.
    used: u64,
    at: Instant,
}

/// Bytes in use at a target that lacks something, if a rebuild may help: it has not failed yet, the target has freed space
/// since, or some time has passed.
fn wants_rebuild(volume: &Volume, role: Role, failed: Option<Failed>) -> Option<u64> {
    let used = volume.used(role)?;
    if volume.is_complete(role) && volume.missing_blocks(role) == 0 {
        return None;
    }
    let again =
        failed.is_none_or(|failed| used < failed.used || failed.at.elapsed() >= REBUILD_AGAIN);
    again.then_some(used)
}

/// Opens a target that this process serves itself: a file, or `nbd:SOCKET`.
pub(super) fn open_store(target: &str, capacity: Option<u64>) -> Result<Store, BlkError> {
    match target.strip_prefix("nbd:") {
        Some(socket) => {
            let medium = NbdMedium::connect(Path::new(socket));
            let medium = medium.map_err(|error| BlkError::io(target, error))?;
            Store::open(target, Box::new(medium), capacity)
        }
        None => Store::open_file(Path::new(target), capacity),
    }
}

/// Creates a target: a new file, or an empty export at `nbd:SOCKET`.
///
/// # Errors
/// The file exists, the export is not empty, or errors of the system.
pub fn create_store(target: &str, new: NewTarget) -> Result<Store, BlkError> {
    let Some(socket) = target.strip_prefix("nbd:") else {
        return Store::create_file(Path::new(target), new, None);
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

/// Logs an error, unless it was the last one of its kind.
fn tell_once<T>(told: &mut HashMap<String, String>, kind: &str, result: Result<T>) {
    match result {
        Ok(_) => drop(told.remove(kind)),
        Err(error) => {
            let error = format!("{error:#}");
            if told.get(kind) != Some(&error) {
                say(format_args!("{kind}: {error}"));
                told.insert(kind.to_owned(), error);
            }
        }
    }
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
    for role in Role::ALL {
        if volume.used(role).is_some() {
            // The others are completed nevertheless.
            result = result.and(rebuild_one(volume, role));
        }
    }
    result
}

/// Completes the target of a role. Also marks one as complete that lacks nothing.
fn rebuild_one(volume: &Volume, role: Role) -> Result<()> {
    let was_complete = volume.is_complete(role);
    match volume.rebuild(role)? {
        0 if was_complete => {}
        count => say(format_args!("{role} is complete: it lacked {count} blocks")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Geometry;
    use crate::store::MemoryMedium;

    /// A target that was full is completed when it has freed space, and is not tried again and again before.
    #[test]
    fn a_full_target_is_completed_when_it_has_space() {
        let (size, count) = (4096u32, 8);
        let targets = Role::ALL.map(|role| -> Arc<dyn Target> {
            let new = NewTarget {
                geometry: Geometry::new(size, count).unwrap(),
                role,
                volume: Id([1; 16]),
                complete: true,
            };
            // Four half blocks and their headers, in the first target.
            let capacity = (role == Role::First).then_some(4 * (2048 + 64));
            let medium = Box::new(MemoryMedium::default());
            Arc::new(Store::create("memory", medium, new, capacity).unwrap())
        });
        let volume = Volume::open(targets.to_vec()).unwrap();
        let mut seed = 1u64;
        let mut noise = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed.to_be_bytes()[0]
        };
        for block in 0..6 {
            let bytes: Vec<u8> = (0..size).map(|_| noise()).collect();
            volume.write(block * u64::from(size), &bytes).unwrap();
        }
        volume.flush().unwrap();
        assert_eq!(volume.missing_blocks(Role::First), 2);
        let used = wants_rebuild(&volume, Role::First, None).expect("it has not been tried");
        assert!(rebuild_one(&volume, Role::First).is_err());
        let failed = Some(Failed {
            used,
            at: Instant::now(),
        });
        assert_eq!(wants_rebuild(&volume, Role::First, failed), None);
        volume.trim(0, 2 * u64::from(size)).unwrap();
        volume.flush().unwrap();
        assert!(wants_rebuild(&volume, Role::First, failed).is_some());
        rebuild_one(&volume, Role::First).unwrap();
        assert_eq!(volume.missing_blocks(Role::First), 0);
        assert_eq!(wants_rebuild(&volume, Role::First, None), None);
    }
}
