//! The state directory of one emulated fabric: its location, its permissions, and its creation and
//! removal without races. This module does not know the contents of the device file.
//!
//! ```text
//! <state>/topology.toml     the fabric, with all values
//! <state>/profile.toml      the cost profile; the first line names it
//! <state>/lock              flock for creating the device file or a view, and for removal
//! <state>/device            shared memory of the device
//! <state>/views/<view>/sys  /sys of a process with that view
//! <state>/views/<view>/dev  /dev of a process with that view
//! ```

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::fabric::{Fabric, Place, PortState};
use crate::model::profile::{Profile, ProfileError};
use crate::model::topology::{Topology, TopologyError, View};
use crate::view::sysfs;

/// Environment variable that names the state directory; a process without it has no device.
pub const ENV_STATE: &str = "BFEMU_STATE";
/// Environment variable with the comma list of functions that the process sees.
pub const ENV_AS: &str = "BFEMU_AS";
/// Environment variable with the path of the preload library. With it, a program that replaces
/// `LD_PRELOAD` keeps the device.
pub const ENV_LIBRARY: &str = "BFEMU_LIBRARY";

const TOPOLOGY: &str = "topology.toml";
const PROFILE: &str = "profile.toml";
const LOCK: &str = "lock";
const DEVICE: &str = "device";
const VIEWS: &str = "views";
const PROFILE_NAME_PREFIX: &str = "# profile: ";
/// Number of tries to take the lock while other processes remove and create the state. Each further
/// try requires that another `bf-emu reset` wins a race.
const LOCK_ROUNDS_MAX: usize = 16;

/// An existing state directory that belongs to this user and is accessible to no other user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    path: PathBuf,
}

/// The state's lock; released when dropped.
#[derive(Debug)]
#[must_use]
pub struct StateLock {
    // The lock belongs to the open file description and ends with it.
    _file: File,
}

/// Reason why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A system call failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The failed action, such as "creating".
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The state does not exist.
    #[error("no state in {}; `bf-emu run` creates one", path.display())]
    Missing {
        /// The directory.
        path: PathBuf,
    },
    /// The path is not a state directory.
    #[error("{} is not a bf-emu state: {problem}; name another with --state", path.display())]
    NotAState {
        /// The path.
        path: PathBuf,
        /// The difference.
        problem: String,
    },
    /// The directory belongs to another user, or other users can access it.
    #[error(
        "state {} has owner {owner} and mode {mode:04o}; it must be owned by {euid} with mode 0700",
        path.display()
    )]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
        /// The effective user of this process.
        euid: u32,
    },
    /// The state holds another fabric than the requested one.
    #[error(
        "state {} has another {what} than the requested one; \
         omit the option, `bf-emu reset` the state, or name another with --state",
        path.display()
    )]
    Differs {
        /// The directory.
        path: PathBuf,
        /// "topology" or "profile".
        what: &'static str,
    },
    /// The state has no view with that name.
    #[error(
        "state {} has no view {view:?}; `bf-emu run` and `bf-emu env` create it",
        path.display()
    )]
    NoView {
        /// The directory.
        path: PathBuf,
        /// The list of functions.
        view: String,
    },
    /// The topology is invalid.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The profile is invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

impl StateError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| StateError::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

/// The state directory to use: `given`, else `$BFEMU_STATE`, else `/dev/shm/bf-emu-<euid>`.
#[must_use]
pub fn locate(given: Option<&Path>) -> PathBuf {
    if let Some(path) = given {
        return path.to_owned();
    }
    match std::env::var_os(ENV_STATE) {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => PathBuf::from(format!("/dev/shm/bf-emu-{}", euid())),
    }
}

/// The view `as_list` ("node0.host,node0.dpu") of the state in `state`.
///
/// # Errors
/// A [`StateError`] if the state is missing or belongs to another user, a function does not exist,
/// or the view's directory does not exist.
pub fn load_view(state: &Path, as_list: &str) -> Result<View, StateError> {
    let state = StateDir::open(state)?;
    let functions = state.topology()?.select(as_list)?;
    let sys_root = state.view_dir(as_list).join("sys");
    if !sys_root.is_dir() {
        return Err(StateError::NoView {
            path: state.path,
            view: as_list.to_owned(),
        });
    }
    Ok(View {
        functions,
        sys_root,
    })
}

impl StateDir {
    /// Opens the state in `path`, or creates it with `topology` and `profile`.
    ///
    /// Two processes may do so at once: one creates the directory, and both use it.
    ///
    /// # Errors
    /// A [`StateError`]. An existing state is opened with any topology and profile; the caller
    /// compares them.
    pub fn create(path: &Path, topology: &Topology, profile: &Profile) -> Result<Self, StateError> {
        match Self::open(path) {
            Err(StateError::Missing { .. }) => {}
            other => return other,
        }
        let temporary = with_suffix(path, "new");
        let made = fill(&temporary, topology, profile)
            .and_then(|()| fs::rename(&temporary, path).map_err(StateError::io("making", path)));
        if let Err(error) = made {
            // Another process may have created the state meanwhile. That state is then used.
            let _ = fs::remove_dir_all(&temporary);
            return Self::open(path).map_err(|_| error);
        }
        Self::open(path)
    }

    /// Opens the state in `path` after checking that it is a state of this user.
    ///
    /// # Errors
    /// [`StateError::Missing`], [`StateError::NotAState`], [`StateError::NotOurs`] or
    /// [`StateError::Io`].
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let missing = || StateError::Missing {
            path: path.to_owned(),
        };
        let not_a_state = |problem: &str| StateError::NotAState {
            path: path.to_owned(),
            problem: problem.to_owned(),
        };
        // A symbolic link is refused, because /dev/shm is world-writable.
        let found = match fs::symlink_metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            Err(error) => return Err(StateError::io("reading", path)(error)),
        };
        if !found.is_dir() {
            return Err(not_a_state("not a directory"));
        }
        let mode = found.mode() & 0o7777;
        if found.uid() != euid() || mode & 0o077 != 0 {
            return Err(StateError::NotOurs {
                path: path.to_owned(),
                owner: found.uid(),
                mode,
                euid: euid(),
            });
        }
        if !path.join(TOPOLOGY).is_file() {
            let mut entries = fs::read_dir(path).map_err(StateError::io("reading", path))?;
            // An empty directory may become a state. Any other content is user data.
            return Err(match entries.next() {
                None => missing(),
                Some(_) => not_a_state("it has files but no topology.toml"),
            });
        }
        // The result of realpath is compared with paths below this one.
        let path = fs::canonicalize(path).map_err(StateError::io("resolving", path))?;
        Ok(StateDir { path })
    }

    /// The directory, absolute and without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The shared memory file of the device.
    #[must_use]
    pub fn device_path(&self) -> PathBuf {
        self.path.join(DEVICE)
    }

    /// The directory of one view.
    #[must_use]
    pub fn view_dir(&self, as_list: &str) -> PathBuf {
        self.path.join(VIEWS).join(as_list)
    }

    /// The fabric of this state.
    ///
    /// # Errors
    /// [`StateError::Topology`].
    pub fn topology(&self) -> Result<Topology, StateError> {
        Ok(Topology::load(&self.path.join(TOPOLOGY))?)
    }

    /// The cost profile of this state, with its name.
    ///
    /// # Errors
    /// [`StateError::Io`] or [`StateError::Profile`].
    pub fn profile(&self) -> Result<Profile, StateError> {
        let path = self.path.join(PROFILE);
        let text = fs::read_to_string(&path).map_err(StateError::io("reading", &path))?;
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let name = first.strip_prefix(PROFILE_NAME_PREFIX).unwrap_or(PROFILE);
        Ok(Profile::parse(name, rest)?)
    }

    /// Waits for the state's lock. It protects the creation of the device file and of views, and
    /// the removal of the state.
    ///
    /// # Errors
    /// [`StateError::Missing`] if the state was removed while waiting, or [`StateError::Io`].
    pub fn lock(&self) -> Result<StateLock, StateError> {
        let path = self.path.join(LOCK);
        for _ in 0..LOCK_ROUNDS_MAX {
            let file = match File::options().read(true).write(true).open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(StateError::io("opening", &path)(error)),
            };
            flock(&file).map_err(StateError::io("locking", &path))?;
            // The locked file is the current one, unless the state was removed meanwhile.
            let held = file.metadata().map_err(StateError::io("reading", &path))?;
            match fs::metadata(&path) {
                Ok(there) if there.ino() == held.ino() && there.dev() == held.dev() => {
                    return Ok(StateLock { _file: file });
                }
                _ => {}
            }
        }
        Err(StateError::Missing {
            path: self.path.clone(),
        })
    }

    /// Writes the tree of the view `as_list`, if it does not exist.
    ///
    /// # Errors
    /// [`StateError::Topology`] if a function does not exist, or [`StateError::Io`].
    pub fn make_view(&self, as_list: &str, _lock: &StateLock) -> Result<View, StateError> {
        let functions = self.topology()?.select(as_list)?;
        let dir = self.view_dir(as_list);
        if !dir.is_dir() {
            let temporary = with_suffix(&dir, "new");
            make_dir(&temporary)?;
            let entries = sysfs::describe(&functions);
            sysfs::write(&temporary, &entries).map_err(StateError::io("writing", &temporary))?;
            fs::rename(&temporary, &dir).map_err(StateError::io("making", &dir))?;
        }
        load_view(&self.path, as_list)
    }

    /// Writes the current port states into every view.
    ///
    /// # Errors
    /// [`StateError::Topology`] or [`StateError::Io`].
    pub fn show_ports(&self, fabric: &Fabric, _lock: &StateLock) -> Result<(), StateError> {
        let topology = self.topology()?;
        let views = self.path.join(VIEWS);
        let entries = match fs::read_dir(&views) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(StateError::io("reading", &views))?,
        };
        for entry in entries {
            let entry = entry.map_err(StateError::io("reading", &views))?;
            // Any other name is an incomplete view of a process that was killed.
            let Some(functions) = entry
                .file_name()
                .to_str()
                .and_then(|name| topology.select(name).ok())
            else {
                continue;
            };
            for (index, spec) in functions.iter().enumerate() {
                let Some(function) = fabric.function_index(&spec.name) else {
                    continue;
                };
                for port in fabric.identities()[function].ports() {
                    let dir = sysfs::port_dir(&spec.pci_bdf, index, port);
                    let dir = entry.path().join(dir.trim_start_matches('/'));
                    show_port(
                        &entry.path(),
                        &dir,
                        fabric.port_state(Place { function, port }),
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Removes the state and its contents. Processes that still use it keep their mappings. No new
    /// process can join them.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn remove(self, _lock: StateLock) -> Result<(), StateError> {
        // One rename hides the whole directory. After a crash only the renamed directory remains.
        let doomed = with_suffix(&self.path, "old");
        fs::rename(&self.path, &doomed).map_err(StateError::io("removing", &self.path))?;
        fs::remove_dir_all(&doomed).map_err(StateError::io("removing", &doomed))
    }
}

/// Writes the files that show a port's state. Each file is replaced atomically.
fn show_port(view: &Path, dir: &Path, state: PortState) -> Result<(), StateError> {
    for (name, text) in sysfs::state_files(state) {
        let (path, draft) = (dir.join(name), with_suffix(view, name));
        let text = format!("{text}\n");
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        fs::write(&draft, text).map_err(StateError::io("writing", &draft))?;
        fs::rename(&draft, &path).map_err(StateError::io("writing", &path))?;
    }
    Ok(())
}

fn fill(dir: &Path, topology: &Topology, profile: &Profile) -> Result<(), StateError> {
    make_dir(dir)?;
    make_dir(&dir.join(VIEWS))?;
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(StateError::io("writing", &path))
    };
    write(LOCK, "")?;
    let name = profile.name();
    write(
        PROFILE,
        &format!("{PROFILE_NAME_PREFIX}{name}\n{}", profile.text()),
    )?;
    write(TOPOLOGY, &topology.to_toml())
}

fn make_dir(path: &Path) -> Result<(), StateError> {
    DirBuilder::new()
        .mode(0o700)
        .create(path)
        .map_err(StateError::io("creating", path))
}

/// A temporary path beside `path`, unique to this process. A killed process may leave such a path.
/// It is met only when the system reuses the process number, and then causes an error that names
/// it.
fn with_suffix(path: &Path, what: &str) -> PathBuf {
    static USED: AtomicU32 = AtomicU32::new(0);
    let serial = USED.fetch_add(1, Ordering::Relaxed);
    let mut name = OsString::from(path);
    name.push(format!(".{what}-{}-{serial}", std::process::id()));
    PathBuf::from(name)
}

fn euid() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

fn flock(file: &File) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor stays open while `file` is borrowed.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn parts() -> (tempfile::TempDir, Topology, Profile) {
        let dir = tempfile::tempdir().unwrap();
        let topology = Topology::with_nodes(1).unwrap();
        (dir, topology, Profile::load("bluefield3").unwrap())
    }

    #[test]
    fn made_once_and_read_back() {
        let (dir, topology, profile) = parts();
        let path = dir.path().join("state");
        assert!(matches!(
            StateDir::open(&path),
            Err(StateError::Missing { .. })
        ));
        let state = StateDir::create(&path, &topology, &profile).unwrap();
        assert_eq!(state.topology().unwrap(), topology);
        assert_eq!(state.profile().unwrap().name(), "bluefield3");
        assert_eq!(state.profile().unwrap().table(), profile.table());
        assert_eq!(fs::metadata(state.path()).unwrap().mode() & 0o777, 0o700);

        // A second creator gets the existing state.
        let other = Topology::with_nodes(2).unwrap();
        let again = StateDir::create(&path, &other, &profile).unwrap();
        assert_eq!(again.topology().unwrap(), topology);
        // Only the state itself remains in the directory.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn many_makers_agree() {
        let (dir, _, profile) = parts();
        let path = dir.path().join("state");
        let topologies: Vec<Topology> = std::thread::scope(|scope| {
            let makers: Vec<_> = (1..=8)
                .map(|nodes| {
                    let (path, profile) = (&path, &profile);
                    scope.spawn(move || {
                        let topology = Topology::with_nodes(nodes).unwrap();
                        let state = StateDir::create(path, &topology, profile).unwrap();
                        state.topology().unwrap()
                    })
                })
                .collect();
            makers
                .into_iter()
                .map(|maker| maker.join().unwrap())
                .collect()
        });
        let first = topologies.first().unwrap();
        assert!(topologies.iter().all(|topology| topology == first));
    }

    #[test]
    fn an_empty_directory_becomes_a_state_and_others_are_left_alone() {
        let (dir, topology, profile) = parts();
        let empty = dir.path().join("empty");
        make_dir(&empty).unwrap();
        assert!(StateDir::create(&empty, &topology, &profile).is_ok());

        let full = dir.path().join("full");
        make_dir(&full).unwrap();
        fs::write(full.join("thesis.tex"), "mine").unwrap();
        let refused = StateDir::create(&full, &topology, &profile).unwrap_err();
        assert!(matches!(refused, StateError::NotAState { .. }), "{refused}");
        assert!(full.join("thesis.tex").exists());
    }

    #[test]
    fn foreign_states_are_refused() {
        let (dir, topology, profile) = parts();
        let path = dir.path().join("state");
        StateDir::create(&path, &topology, &profile).unwrap();

        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        let refused = StateDir::open(&link).unwrap_err();
        assert!(matches!(refused, StateError::NotAState { .. }), "{refused}");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let refused = StateDir::open(&path).unwrap_err();
        assert!(
            matches!(refused, StateError::NotOurs { mode: 0o755, .. }),
            "{refused}"
        );
    }

    #[test]
    fn views_are_made_once_and_found() {
        let (dir, topology, profile) = parts();
        let state = StateDir::create(&dir.path().join("s"), &topology, &profile).unwrap();
        let list = "node0.dpu,node0.host";
        let refused = load_view(state.path(), list).unwrap_err();
        assert!(matches!(refused, StateError::NoView { .. }), "{refused}");

        let lock = state.lock().unwrap();
        let view = state.make_view(list, &lock).unwrap();
        assert_eq!(state.make_view(list, &lock).unwrap(), view);
        assert_eq!(load_view(state.path(), list).unwrap(), view);
        assert_eq!(view.functions[0].name, "node0.dpu");
        assert!(view.sys_root.starts_with(state.path()));
        assert!(state.make_view("node9.dpu", &lock).is_err());
    }

    #[test]
    fn a_removed_state_is_gone_for_those_who_wait_for_its_lock() {
        let (dir, topology, profile) = parts();
        let path = dir.path().join("s");
        let state = StateDir::create(&path, &topology, &profile).unwrap();
        let lock = state.lock().unwrap();
        state.clone().remove(lock).unwrap();
        assert!(matches!(state.lock(), Err(StateError::Missing { .. })));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn default_is_per_user() {
        assert_eq!(locate(Some(Path::new("/x"))), Path::new("/x"));
    }
}
