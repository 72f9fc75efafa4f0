//! `bf-emu run` and `bf-emu env`: create the fabric and the view if needed, and give a program the
//! environment in which it sees that view.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use bf_emu::engine::{self, deferred::ENV_MODE};
use bf_emu::model::profile::Profile;
use bf_emu::model::topology::Topology;
use bf_emu::process::dpa::{ENV_OPTIONS, ENV_PROGRAM};
use bf_emu::process::{ENV_KEYS, pages};
use bf_emu::view::state::{
    ENV_AS, ENV_LIBRARY, ENV_STATE, StateDir, StateError, StateLock, locate,
};

use super::args::{FabricArgs, ShapeArgs, print};

/// Environment variable with the path of the preload library.
const ENV_PRELOAD: &str = "BFEMU_PRELOAD";
const LD_PRELOAD: &str = "LD_PRELOAD";
const LIBRARY: &str = "libbfemu_preload.so";
/// Default number of nodes.
const NODES_DEFAULT: usize = 2;
/// Maximum number of attempts to create a state that another process removes before it is locked.
const ROUNDS_MAX: usize = 8;

/// Replaces this process by `command` with the view.
pub(super) fn run(args: &FabricArgs, command: &[OsString]) -> Result<()> {
    let Some((program, arguments)) = command.split_first() else {
        bail!("no program; give one after --");
    };
    let variables = prepare(args)?;
    let error = Command::new(program).args(arguments).envs(variables).exec();
    let program = Path::new(program).display().to_string();
    Err(error).with_context(|| {
        format!("cannot run {program}; give the program and its arguments after --")
    })
}

/// Prints the environment as lines for a shell.
pub(super) fn env(args: &FabricArgs) -> Result<()> {
    let mut lines = String::new();
    for (name, value) in prepare(args)? {
        let value = value.into_string().map_err(|value| {
            anyhow::anyhow!("{name} would be {value:?}, which is not UTF-8; name another directory")
        })?;
        lines.push_str(&format!("export {name}={}\n", shell_quoted(&value)));
    }
    print(&lines)
}

/// The topology that `shape` requests, if any.
pub(super) fn asked_topology(shape: &ShapeArgs) -> Result<Option<Topology>> {
    if let Some(file) = &shape.topology {
        return Ok(Some(Topology::load(file)?));
    }
    if (shape.nodes, shape.ports, shape.link) == (None, None, None) {
        return Ok(None);
    }
    let nodes = shape.nodes.unwrap_or(NODES_DEFAULT);
    let (ports, link) = (shape.ports.unwrap_or(1), shape.link.unwrap_or_default());
    Topology::with_nodes_and_ports(nodes, ports, link)
        .map(Some)
        .map_err(Into::into)
}

/// The default topology.
pub(super) fn default_topology() -> Result<Topology> {
    Ok(Topology::with_nodes(NODES_DEFAULT)?)
}

/// Creates the fabric and the view if they do not exist. Returns the environment of the program.
fn prepare(args: &FabricArgs) -> Result<Vec<(&'static str, OsString)>> {
    pages::check().map_err(anyhow::Error::msg)?;
    let library = find_library()?;
    let topology = asked_topology(&args.shape)?;
    let profile = args.profile.as_deref().map(Profile::load).transpose()?;
    let (state, lock) = fabric_state(args, topology.as_ref(), profile.as_ref())?;

    let differs = |what| StateError::Differs {
        path: state.path().to_owned(),
        what,
    };
    let has_topology = state.topology()?;
    let has_profile = state.profile()?;
    if topology.is_some_and(|asked| asked != has_topology) {
        return Err(differs("topology").into());
    }
    if profile.is_some_and(|asked| asked.table() != has_profile.table()) {
        return Err(differs("profile").into());
    }
    let fabric = engine::create(state.path(), &has_topology, &has_profile)?;
    state.make_view(&args.view, &lock)?;
    state.show_ports(&fabric, &lock)?;

    let mut variables = vec![
        (
            LD_PRELOAD,
            preload_list(&library, env::var_os(LD_PRELOAD).as_deref())?,
        ),
        (ENV_STATE, state.path().as_os_str().to_owned()),
        (ENV_AS, OsString::from(&args.view)),
        (ENV_LIBRARY, library.into_os_string()),
    ];
    if let Ok(program) = env::current_exe() {
        variables.push((ENV_PROGRAM, program.into_os_string()));
    }
    if let Some(mode) = args.mode {
        variables.push((ENV_MODE, OsString::from(mode.to_string())));
    }
    if let Some(options) = &args.dpa {
        variables.push((ENV_OPTIONS, OsString::from(options)));
    }
    if let Some(keys) = args.keys {
        variables.push((ENV_KEYS, OsString::from(keys.to_string())));
    }
    Ok(variables)
}

/// The state, created if necessary, and its lock.
fn fabric_state(
    args: &FabricArgs,
    topology: Option<&Topology>,
    profile: Option<&Profile>,
) -> Result<(StateDir, StateLock)> {
    let path = locate(args.state.state.as_deref());
    let topology = topology.cloned().map_or_else(default_topology, Ok)?;
    let profile = profile.cloned().map_or_else(|| Profile::load("none"), Ok)?;
    for _ in 0..ROUNDS_MAX {
        let state = match StateDir::open(&path) {
            Err(StateError::Missing { .. }) => {
                // A view that does not exist must not leave a new state behind.
                topology.select(&args.view)?;
                StateDir::create(&path, &topology, &profile)?
            }
            other => other?,
        };
        match state.lock() {
            Ok(lock) => return Ok((state, lock)),
            // Another process removed the state meanwhile. The next round creates it again.
            Err(StateError::Missing { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!(
        "state {} was removed {ROUNDS_MAX} times while it was being made; \
         is `bf-emu reset` running in a loop?",
        path.display()
    )
}

/// The preload library: from `BFEMU_PRELOAD`, next to this program, or in ../lib/bf-emu/.
fn find_library() -> Result<PathBuf> {
    if let Some(path) = env::var_os(ENV_PRELOAD).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!(
                "{ENV_PRELOAD} is {}, which is not a file; unset or fix it",
                path.display()
            );
        }
        return std::path::absolute(&path).context("resolving the preload library");
    }
    let program = env::current_exe().context("finding this program's own file")?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let candidates = [
        beside.join(LIBRARY),
        beside.join("../lib/bf-emu").join(LIBRARY),
    ];
    match candidates.iter().find(|candidate| candidate.is_file()) {
        Some(found) => std::fs::canonicalize(found).context("resolving the preload library"),
        None => bail!(
            "no {LIBRARY} in {} or {}; build it with `cargo build -p bf-emu-preload` (same \
             profile as bf-emu), or name it in {ENV_PRELOAD}",
            candidates[0].display(),
            candidates[1].display()
        ),
    }
}

/// `LD_PRELOAD` with `library` first, because its definitions must precede those of other libraries.
fn preload_list(library: &Path, existing: Option<&OsStr>) -> Result<OsString> {
    let bytes = library.as_os_str().as_bytes();
    if bytes
        .iter()
        .any(|byte| *byte == b':' || byte.is_ascii_whitespace())
    {
        bail!(
            "the preload library is {}; the loader takes no path with spaces or colons, so move \
             it or name a link to it in {ENV_PRELOAD}",
            library.display()
        );
    }
    let mut list = library.as_os_str().to_owned();
    let others = existing.map_or(&[][..], OsStrExt::as_bytes);
    // The loader splits at colons and spaces.
    for other in others.split(|byte| *byte == b':' || byte.is_ascii_whitespace()) {
        if !other.is_empty() && other != bytes {
            list.push(":");
            list.push(OsStr::from_bytes(other));
        }
    }
    Ok(list)
}

/// `text` as one word of a POSIX shell.
fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preload_lists() {
        for (existing, expected) in [
            (None, "/l/us.so"),
            (Some(""), "/l/us.so"),
            (Some("/l/a.so"), "/l/us.so:/l/a.so"),
            (
                Some("/l/a.so /l/us.so::/l/b.so"),
                "/l/us.so:/l/a.so:/l/b.so",
            ),
        ] {
            let list = preload_list(Path::new("/l/us.so"), existing.map(OsStr::new)).unwrap();
            assert_eq!(list, expected, "{existing:?}");
        }
        let refused = preload_list(Path::new("/my files/us.so"), None).unwrap_err();
        assert!(refused.to_string().contains("BFEMU_PRELOAD"), "{refused}");
    }

    #[test]
    fn quoting() {
        assert_eq!(shell_quoted("/a b/it's"), r"'/a b/it'\''s'");
    }
}
