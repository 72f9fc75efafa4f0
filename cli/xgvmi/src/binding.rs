//! How the library gets UCX's calls on this machine: the way in which it is loaded, and whether UCX's libraries bind the
//! references to their own functions inside (`-Bsymbolic-functions`). Reads the files' dynamic sections according to the
//! ELF specification. No library is loaded for it.

use std::collections::BTreeSet;
use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Prefix of the file names of this library.
const OWN_FILE: &str = "libuct_ib_mlx5_xgvmi.so";
/// Prefix of the file names of UCX's mlx5 module.
const MODULE_FILE: &str = "libuct_ib_mlx5.so";
/// A function of the module that the library replaces by name.
const OPERATION: &[u8] = b"uct_ib_mlx5_devx_mkey_pack";
/// The function of libuct that libucp calls to open a memory domain.
const MD_OPEN: &[u8] = b"uct_md_open";
/// Maximum size of a file that is read. UCX's largest library has a few megabytes.
const BYTES_MAX: u64 = 64 << 20;

/// How UCX loads the library in this environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// `LD_PRELOAD` names this file.
    Preload(PathBuf),
    /// UCX 1.22 and later finds this file.
    Plugin(PathBuf),
    /// Neither.
    Absent,
}

/// How UCX's module refers to its own operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// By name: the loader selects the functions of a preloaded library.
    ByName,
    /// Bound inside. libucp opens memory domains by name, where a preloaded library starts.
    Inside,
    /// Bound inside, and libucp is bound to its libuct as well.
    Closed,
    /// There is no such module.
    NoModule,
    /// The files cannot be read.
    Unknown(String),
}

impl fmt::Display for Load {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Preload(file) => write!(to, "LD_PRELOAD={}", file.display()),
            Self::Plugin(file) => write!(to, "plugin {}", file.display()),
            Self::Absent => to.write_str("not loaded in this environment"),
        }
    }
}

/// How this environment loads the library into a UCX; `has_plugins` if that UCX loads plugins.
pub(crate) fn load(libraries: Option<&Path>, has_plugins: bool) -> Load {
    let preload = env::var("LD_PRELOAD").unwrap_or_default();
    let plugins = env::var_os("UCX_PLUGIN_PATH").map(PathBuf::from);
    let modules = libraries.map(|dir| dir.join("ucx"));
    load_from(&preload, plugins.iter().chain(&modules), has_plugins)
}

fn load_from<'a>(
    preload: &str,
    plugins: impl Iterator<Item = &'a PathBuf>,
    has_plugins: bool,
) -> Load {
    let is_own = |file: &Path| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(OWN_FILE)
    };
    let mut preloaded = preload.split([' ', ':']).map(PathBuf::from);
    if let Some(file) = preloaded.find(|file| is_own(file)) {
        return Load::Preload(file);
    }
    let found = plugins
        .filter(|_| has_plugins)
        .find_map(|dir| starting_with(dir, OWN_FILE));
    found.map_or(Load::Absent, Load::Plugin)
}

/// The directory of the libucp that this process has loaded.
pub(crate) fn libraries() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let is_libucp = |path: &&Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libucp.so") || name.starts_with("libucp-")
    };
    paths
        .filter(is_libucp)
        .find_map(|path| Some(path.parent()?.to_owned()))
}

/// How the UCX in this directory refers to its own functions.
pub(crate) fn binding(libraries: &Path) -> Binding {
    let chosen = env::var_os("UCX_MODULE_DIR").map(PathBuf::from);
    let dirs = [Some(libraries.join("ucx")), chosen];
    let module = dirs
        .iter()
        .flatten()
        .find_map(|dir| starting_with(dir, MODULE_FILE));
    let Some(module) = module else {
        return Binding::NoModule;
    };
    let judge = || -> Result<Binding> {
        if names(&module)?.has(OPERATION) {
            return Ok(Binding::ByName);
        }
        let libucp = starting_with(libraries, "libucp").context("no libucp beside its modules")?;
        Ok(match names(&libucp)?.names.contains(MD_OPEN) {
            true => Binding::Inside,
            false => Binding::Closed,
        })
    };
    judge().unwrap_or_else(|error| Binding::Unknown(format!("{error:#}")))
}

/// The first file of a directory whose name starts with `prefix`.
fn starting_with(dir: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.flatten();
    let mut files: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files.into_iter().next()
}

/// `DT_*` of the dynamic section.
mod tag {
    pub(super) const NULL: u64 = 0;
    pub(super) const PLTRELSZ: u64 = 2;
    pub(super) const STRTAB: u64 = 5;
    pub(super) const SYMTAB: u64 = 6;
    pub(super) const RELA: u64 = 7;
    pub(super) const RELASZ: u64 = 8;
    pub(super) const SYMBOLIC: u64 = 16;
    pub(super) const JMPREL: u64 = 23;
    pub(super) const FLAGS: u64 = 30;
}

/// Names in the relocations of an object.
#[derive(Debug, Default)]
struct Names {
    names: BTreeSet<Vec<u8>>,
    /// `DF_SYMBOLIC`: the loader searches the object's own symbols first.
    is_symbolic: bool,
}

impl Names {
    /// True if the loader resolves a reference to an own function of that name by name.
    fn has(&self, name: &[u8]) -> bool {
        !self.is_symbolic && self.names.contains(name)
    }
}

fn names(file: &Path) -> Result<Names> {
    let read = || {
        let length = fs::metadata(file)?.len();
        ensure!(length <= BYTES_MAX, "more than {BYTES_MAX} bytes");
        Object(&fs::read(file)?).names()
    };
    read().with_context(|| format!("{}", file.display()))
}

/// A 64-bit object in this machine's byte order.
struct Object<'a>(&'a [u8]);

impl Object<'_> {
    fn names(&self) -> Result<Names> {
        ensure!(
            self.0.get(..5) == Some(b"\x7fELF\x02"),
            "not a 64-bit ELF object"
        );
        let (mut segments, mut section) = (Vec::new(), None);
        let (table, size, count) = (self.word(32)?, self.half(54)?, self.half(56)?);
        for at in 0..count {
            let header = table + at * size;
            let range = (
                self.word(header + 16)?,
                self.word(header + 8)?,
                self.word(header + 32)?,
            );
            match self.number::<4>(header)? {
                1 => segments.push(range),
                2 => section = Some(range),
                _ => {}
            }
        }
        let (_, start, length) = section.context("no dynamic section")?;
        let mut dynamic = std::collections::BTreeMap::new();
        for at in 0..length / 16 {
            let tag = self.word(start + 16 * at)?;
            if tag == tag::NULL {
                break;
            }
            dynamic.insert(tag, self.word(start + 16 * at + 8)?);
        }
        let offset = |address: u64| {
            let mut segments = segments.iter();
            let found = segments.find_map(|&(start, offset, length)| {
                let at = address.checked_sub(start)?;
                (at < length).then_some(offset + at)
            });
            found.with_context(|| format!("{address:#x} is in no segment"))
        };
        let value = |tag| dynamic.get(&tag).copied();
        let symbols = value(tag::SYMTAB).context("no symbols")?;
        let strings = value(tag::STRTAB).context("no strings")?;
        let mut found = Names {
            is_symbolic: value(tag::SYMBOLIC).is_some()
                || value(tag::FLAGS).unwrap_or_default() & 2 != 0,
            ..Names::default()
        };
        for (table, length) in [(tag::RELA, tag::RELASZ), (tag::JMPREL, tag::PLTRELSZ)] {
            let (Some(table), Some(length)) = (value(table), value(length)) else {
                continue;
            };
            let table = offset(table)?;
            for at in 0..length / 24 {
                let symbol = self.word(table + 24 * at + 8)? >> 32;
                if symbol != 0 {
                    let name = self.number::<4>(offset(symbols + 24 * symbol)?)?;
                    found
                        .names
                        .insert(self.string(offset(strings + name)?)?.to_vec());
                }
            }
        }
        Ok(found)
    }

    fn string(&self, at: u64) -> Result<&[u8]> {
        let rest = self
            .0
            .get(usize::try_from(at)?..)
            .context("a name beyond the end")?;
        Ok(rest.split(|&byte| byte == 0).next().unwrap_or(rest))
    }

    fn word(&self, at: u64) -> Result<u64> {
        self.number::<8>(at)
    }

    fn half(&self, at: u64) -> Result<u64> {
        self.number::<2>(at)
    }

    fn number<const BYTES: usize>(&self, at: u64) -> Result<u64> {
        let start = usize::try_from(at)?;
        let found = start
            .checked_add(BYTES)
            .and_then(|end| self.0.get(start..end));
        let found = found.with_context(|| format!("the file ends before byte {at}"))?;
        let mut word = [0; 8];
        word[..BYTES].copy_from_slice(found);
        Ok(u64::from_le_bytes(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn compile(source: &str, output: &Path, options: &[&str]) {
        let file = output.with_extension("c");
        fs::write(&file, source).expect("a file");
        let mut command = Command::new("cc");
        command
            .args(["-shared", "-fPIC", "-o"])
            .arg(output)
            .arg(&file)
            .args(options);
        assert!(command.status().expect("a C compiler").success());
    }

    const MODULE: &str = "\
void uct_ib_mlx5_devx_mkey_pack(void) {}
void (*table[])(void) = {uct_ib_mlx5_devx_mkey_pack};
";

    #[test]
    fn a_ucx_that_is_bound_inside_is_recognised() {
        let dir = tempfile::tempdir().expect("a directory");
        let modules = dir.path().join("ucx");
        fs::create_dir(&modules).expect("a directory");
        assert_eq!(binding(dir.path()), Binding::NoModule);
        let module = modules.join("libuct_ib_mlx5.so.0");
        fs::write(&module, "no object").expect("a file");
        assert!(matches!(binding(dir.path()), Binding::Unknown(_)));
        compile(MODULE, &module, &[]);
        assert_eq!(binding(dir.path()), Binding::ByName);
        let libucp = dir.path().join("libucp.so.0");
        for option in ["-Wl,-Bsymbolic-functions", "-Wl,-Bsymbolic"] {
            compile(MODULE, &module, &[option]);
            compile(
                "void uct_md_open(void); void ucp(void) { uct_md_open(); }",
                &libucp,
                &[],
            );
            assert_eq!(binding(dir.path()), Binding::Inside, "{option}");
            compile("void ucp(void) {}", &libucp, &[]);
            assert_eq!(binding(dir.path()), Binding::Closed, "{option}");
        }
    }

    #[test]
    fn the_way_of_loading_is_found_in_the_environment() {
        let dir = tempfile::tempdir().expect("a directory");
        let dirs = [dir.path().to_owned()];
        let file = dir.path().join("libuct_ib_mlx5_xgvmi.so.0");
        assert_eq!(load_from("/lib/other.so", dirs.iter(), true), Load::Absent);
        fs::write(&file, "").expect("a file");
        assert_eq!(load_from("", dirs.iter(), false), Load::Absent);
        assert_eq!(load_from("", dirs.iter(), true), Load::Plugin(file));
        let preload = "/lib/other.so:/opt/libuct_ib_mlx5_xgvmi.so.0";
        let expect = Load::Preload("/opt/libuct_ib_mlx5_xgvmi.so.0".into());
        assert_eq!(load_from(preload, dirs.iter(), true), expect);
    }
}
