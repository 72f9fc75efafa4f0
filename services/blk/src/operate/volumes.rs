//! The volumes of a process: one, or several with names. One of several that cannot be opened, or that another process takes,
//! stops no other.

use super::keeper::keep;
use super::opener::Opener;
use super::options::VolumeArgs;
use super::snapshots::merge_beside;
use super::status::NamedVolume;
use crate::client;
use crate::disk::{Disk, FindDisk};
use crate::error::BlkError;
use crate::say::say;
use crate::service::FindVolume;
use crate::volume::Volume;
use anyhow::{Context as _, Result, bail};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};
use xgvmi_daemon::Secret;

/// Time between attempts to open a volume.
const AGAIN: Duration = Duration::from_secs(1);

/// The volumes of a process.
#[derive(Debug)]
pub(super) struct Volumes {
    all: Vec<Arc<Slot>>,
    /// Each has a name, and is opened when it can be.
    are_named: bool,
}

/// The place of a volume.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    source: Source,
    pub(super) read_only: bool,
    pub(super) vhost_socket: Option<PathBuf>,
    state: Mutex<State>,
    changed: Condvar,
}

/// Where a volume is.
#[derive(Debug)]
enum Source {
    /// On targets that this process opens. `None`: on a service to which it has connected before.
    Targets(Option<Arc<Opener>>),
    Service(Box<Mutex<client::Spec>>),
}

/// A volume that was opened: by this process, if the second one is there; and what its opener needs of it.
type Opened<T> = (Arc<dyn Disk>, Option<Arc<Volume>>, T);

/// A volume, as far as it is there.
enum State {
    Opening,
    /// It could not be opened; it is tried again.
    Waiting(String),
    Open {
        disk: Arc<dyn Disk>,
        /// The same, if it is opened by this process.
        owned: Option<Arc<Volume>>,
    },
    /// Another process has opened it.
    Taken(BlkError),
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("State")
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.state() = state;
        self.changed.notify_all();
    }

    /// Why the volume is not there.
    fn fault(&self) -> String {
        let name = &self.name;
        match &*self.state() {
            State::Open { .. } => String::new(),
            State::Opening => format!("volume {name} is being opened"),
            State::Waiting(error) => format!("volume {name} is not open: {error}"),
            State::Taken(error) => format!("volume {name} is lost: {error}"),
        }
    }

    pub(super) fn disk(&self) -> Result<Arc<dyn Disk>, String> {
        if let State::Open { disk, .. } = &*self.state() {
            return Ok(Arc::clone(disk));
        }
        Err(self.fault())
    }

    fn owned(&self) -> Option<Arc<Volume>> {
        match &*self.state() {
            State::Open { owned, .. } => owned.clone(),
            _ => None,
        }
    }

    /// Opens the volume as soon as its targets are there, and keeps it complete until another process takes it. Or connects to it
    /// as soon as its service gives it.
    fn serve(&self) {
        match &self.source {
            Source::Targets(None) => {}
            Source::Targets(Some(opener)) => {
                let volume = self.open_patiently(|is_first| {
                    let volume = opener.try_open(is_first).map(Arc::new);
                    let volume = volume.map_err(|error| error.to_string())?;
                    let kept = keep(opener, &volume).and_then(|()| merge_beside(&volume));
                    kept.map_err(|error| format!("{error:#}"))?;
                    let disk = Arc::clone(&volume) as Arc<dyn Disk>;
                    Ok((disk, Some(Arc::clone(&volume)), volume))
                });
                let error = volume.wait_superseded();
                say(format_args!("volume {}: {error}", self.name));
                self.set(State::Taken(error));
            }
            Source::Service(spec) => self.open_patiently(|_| {
                let spec = spec.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let volume = client::Volume::connect(&spec).map_err(|error| error.to_string())?;
                Ok((Arc::new(volume) as Arc<dyn Disk>, None, ()))
            }),
        }
    }

    /// Tries to open the volume until it is there.
    fn open_patiently<T>(&self, open: impl Fn(bool) -> Result<Opened<T>, String>) -> T {
        let mut told = String::new();
        loop {
            match open(told.is_empty()) {
                Ok((disk, owned, opened)) => {
                    if !told.is_empty() {
                        say(format_args!("volume {} is open", self.name));
                    }
                    self.set(State::Open { disk, owned });
                    return opened;
                }
                Err(error) => {
                    if error != told {
                        say(format_args!(
                            "volume {} is not open: {error}; it is tried again each second",
                            self.name
                        ));
                        told.clone_from(&error);
                    }
                    self.set(State::Waiting(error));
                }
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Waits for a state. Returns nothing after the limit.
    fn wait<T>(&self, end: Option<Instant>, of: impl Fn(&State) -> Option<T>) -> Option<T> {
        let mut state = self.state();
        loop {
            if let Some(found) = of(&state) {
                return Some(found);
            }
            let left = end.map_or(AGAIN, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Volumes {
    /// One volume that is open; `owned` if this process has opened it.
    pub(super) fn one(disk: Arc<dyn Disk>, owned: Option<(Arc<Volume>, Arc<Opener>)>) -> Self {
        let (owned, opener) = owned.unzip();
        let source = Source::Targets(opener);
        Self {
            all: vec![Arc::new(Slot {
                name: String::new(),
                source,
                read_only: false,
                vhost_socket: None,
                state: Mutex::new(State::Open { disk, owned }),
                changed: Condvar::new(),
            })],
            are_named: false,
        }
    }

    /// Several volumes. Each has been tried to open, or its targets have not answered in their time. With the specification of a
    /// service they are volumes of that, each with a connection of its own.
    ///
    /// # Errors
    /// A file of the options cannot be read, the adapter cannot be used, or errors of the system.
    pub(super) fn open(volumes: &[VolumeArgs], service: Option<&client::Spec>) -> Result<Self> {
        if let Some(spec) = service {
            client::Volume::check_adapter(spec)?;
        }
        let mut all = Vec::new();
        let mut limit = Duration::ZERO;
        for args in volumes {
            let name = args.name.clone().unwrap_or_default();
            let source = match service {
                Some(spec) => Source::Service(Box::new(Mutex::new(client::Spec {
                    volume: name.clone(),
                    ..spec.clone()
                }))),
                None => {
                    let opener = Opener::new(&args.targets, &args.open);
                    let opener = opener.with_context(|| format!("volume {name}"))?;
                    Source::Targets(Some(Arc::new(opener)))
                }
            };
            limit = limit.max(args.open.target_timeout);
            all.push(Arc::new(Slot {
                name,
                source,
                read_only: args.read_only == Some(true),
                vhost_socket: args.vhost_socket.clone(),
                state: Mutex::new(State::Opening),
                changed: Condvar::new(),
            }));
        }
        for slot in &all {
            let slot = Arc::clone(slot);
            let thread = Builder::new().name("volume".to_owned());
            let thread = thread.spawn(move || slot.serve());
            thread.context("cannot start a thread")?;
        }
        let end = Instant::now() + limit;
        let was_tried = |state: &State| (!matches!(state, State::Opening)).then_some(());
        for slot in &all {
            slot.wait(Some(end), was_tried);
        }
        Ok(Self {
            all,
            are_named: true,
        })
    }

    /// The volume without a name.
    pub(super) fn only(&self) -> Option<Arc<dyn Disk>> {
        match &self.all[..] {
            [only] if !self.are_named => only.disk().ok(),
            _ => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.all.iter()
    }

    /// What finds a volume, for NBD clients and virtual machines.
    pub(super) fn find_disk(slot: &Arc<Slot>) -> FindDisk {
        let slot = Arc::clone(slot);
        Arc::new(move || slot.disk())
    }

    /// Their names and what finds them, for a service.
    pub(super) fn find_volumes(&self) -> Vec<(String, FindVolume)> {
        let of_one = |slot: &Arc<Slot>| {
            let of = Arc::clone(slot);
            let find: FindVolume = Arc::new(move || of.owned().ok_or_else(|| of.fault()));
            (slot.name.clone(), find)
        };
        self.all.iter().map(of_one).collect()
    }

    /// For messages.
    pub(super) fn names(&self) -> String {
        let of_one = |slot: &Arc<Slot>| match (self.are_named, slot.disk()) {
            (true, _) => slot.name.clone(),
            (false, Ok(disk)) => disk.id().to_string(),
            (false, Err(fault)) => fault,
        };
        let names: Vec<_> = self.all.iter().map(of_one).collect();
        let kind = if names.len() == 1 {
            "volume"
        } else {
            "volumes"
        };
        format!("{kind} {}", names.join(", "))
    }

    /// The volume that a command names, and what opens its targets.
    pub(super) fn commanded(&self, name: Option<&str>) -> Result<(Arc<Volume>, Arc<Opener>)> {
        let slot = match name {
            None if self.all.len() == 1 => self.all.first(),
            None => None,
            Some(name) => self.all.iter().find(|slot| slot.name == name),
        };
        let slot = slot.with_context(|| match (self.are_named, name) {
            (false, _) => "the volume has no name: give no --volume".to_owned(),
            (true, Some(name)) => format!(
                "there is no volume '{name}': the process has {}",
                self.names()
            ),
            (true, None) => format!("give --volume NAME: the process has {}", self.names()),
        })?;
        let Source::Targets(Some(opener)) = &slot.source else {
            bail!("the volume is that of a service: give the command there, by --service PORT");
        };
        let volume = slot.owned().with_context(|| slot.fault())?;
        Ok((volume, Arc::clone(opener)))
    }

    /// State of the only volume, if it has no name; otherwise of each.
    pub(super) fn status(&self) -> (crate::volume::VolumeStatus, Vec<NamedVolume>) {
        let of_one = |slot: &Arc<Slot>| match slot.disk() {
            Ok(disk) => (String::new(), disk.status()),
            Err(fault) => (fault, crate::volume::VolumeStatus::default()),
        };
        if !self.are_named {
            let only = self.all.first().map(of_one).unwrap_or_default();
            return (only.1, Vec::new());
        }
        let named = self.all.iter().map(|slot| {
            let (error, volume) = of_one(slot);
            NamedVolume {
                name: slot.name.clone(),
                error,
                volume,
            }
        });
        (crate::volume::VolumeStatus::default(), named.collect())
    }

    /// Reads the secrets of targets again. False if no volume has one.
    ///
    /// # Errors
    /// One cannot be read. All stay as they were.
    pub(super) fn read_secrets_again(&self) -> Result<bool> {
        let mut read = Vec::new();
        for slot in &self.all {
            if let Source::Targets(Some(opener)) = &slot.source
                && let Some(secret) = opener.read_secret()?
            {
                read.push((opener, secret));
            }
        }
        let are_there = !read.is_empty();
        for (opener, secret) in read {
            opener.set_secret(secret);
        }
        Ok(are_there)
    }

    /// Proves this secret to the service from the next connection of each volume on.
    pub(super) fn set_secret(&self, secret: &Secret) {
        for slot in &self.all {
            if let Source::Service(spec) = &slot.source {
                let mut spec = spec.lock().unwrap_or_else(PoisonError::into_inner);
                spec.secret = Some(secret.clone());
            }
            if let Ok(disk) = slot.disk() {
                disk.set_secret(secret);
            }
        }
    }

    /// What waits until other processes have taken all volumes of this one, and returns the last error.
    pub(super) fn wait_taken(&self) -> Option<Box<dyn FnOnce() -> BlkError + Send>> {
        if let ([only], false) = (&self.all[..], self.are_named) {
            let volume = only.owned()?;
            return Some(Box::new(move || volume.wait_superseded()));
        }
        if self
            .all
            .iter()
            .any(|slot| matches!(slot.source, Source::Service(_)))
        {
            return None;
        }
        let all = self.all.clone();
        let text_of = |state: &State| match state {
            State::Taken(BlkError::Superseded { target }) => Some(target.clone()),
            _ => None,
        };
        Some(Box::new(move || {
            let mut target = String::new();
            for slot in &all {
                target = slot.wait(None, text_of).unwrap_or(target);
            }
            BlkError::Superseded { target }
        }))
    }

    /// Makes all durable. Notes that the targets are equal if no request is under way.
    ///
    /// # Errors
    /// The first error.
    pub(super) fn end(&self, is_drained: bool) -> Result<(), BlkError> {
        let end_one = |slot: &Arc<Slot>| match &*slot.state() {
            // Fails at once for a volume that another process has opened.
            State::Open {
                owned: Some(volume),
                ..
            } if is_drained => volume.close(),
            State::Open { disk, .. } => disk.flush(),
            _ => Ok(()),
        };
        std::thread::scope(|scope| {
            let start = |slot| scope.spawn(move || end_one(slot));
            let ends: Vec<_> = self.all.iter().map(start).collect();
            let mut first = Ok(());
            for end in ends {
                let panicked = |_| {
                    Err(BlkError::Argument(
                        "the end of a volume has panicked".to_owned(),
                    ))
                };
                first = first.and(end.join().unwrap_or_else(panicked));
            }
            first
        })
    }
}
