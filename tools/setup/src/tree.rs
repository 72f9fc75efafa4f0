//! Unpacks Debian packages of another suite than the machine's into a separate tree. They are never installed.
//!
//! apt uses a separate state: package lists, cache, sources and an empty list of installed packages. Its sources are
//! the machine's with the other suite's name, so mirrors and keys stay the same.

use super::cache::{Cache, key};
use super::{apt, joined};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testbed::process;

/// Time limit for package lists and packages: 45 MB over a slow connection.
const APT: Duration = Duration::from_secs(600);
/// Time limit for one package or one link.
const UNPACK: Duration = Duration::from_secs(60);

/// Debian's testing suite, by the code name that it keeps after its release.
pub(crate) const TESTING: &str = "forky";
const UCC_SUITE: &str = TESTING;

/// UCC and its tools, the MPIs that use it, and their dependencies. Debian's UCX among them has no InfiniBand support,
/// so programs use the UCX of the wheels.
const UCC_PACKAGES: &[&str] = &[
    "bash",
    "coreutils",
    "ibverbs-providers",
    "libc6",
    "libesmtp6",
    "libevent-core-2.1-7t64",
    "libevent-pthreads-2.1-7t64",
    "libfabric1",
    "libgcc-s1",
    "libgfortran5",
    "libhwloc15",
    "libibverbs1",
    "libmpich12",
    "libnl-3-200",
    "libnl-route-3-200",
    "libnuma1",
    "libopenmpi40",
    "libpmix2t64",
    "libprrte-bin",
    "libprrte4",
    "libpsm2-2",
    "librdmacm1t64",
    "libssl3t64",
    "libstdc++6",
    "libtinfo6",
    "libucc-dev",
    "libucc1",
    "libucx0",
    "libudev1",
    "libze1",
    "libzstd1",
    "mpich",
    "openmpi-bin",
    "openmpi-common",
    "prrte-common",
    "ucc-utils",
    "zlib1g",
];

/// Debian's release 13, by its code name.
const DEBIAN13_SUITE: &str = "trixie";

/// Its UCX and the libraries that UCX's InfiniBand modules need. Its modules for GPUs are not loaded without theirs.
const DEBIAN13_PACKAGES: &[&str] = &[
    "bash",
    "coreutils",
    "dash",
    "ibverbs-providers",
    "libc6",
    "libfuse3-4",
    "libgcc-s1",
    "libgomp1",
    "libibverbs1",
    "libnl-3-200",
    "libnl-route-3-200",
    "libnuma1",
    "libpcre2-8-0",
    "librdmacm1t64",
    "libselinux1",
    "libstdc++6",
    "libtinfo6",
    "libucx0",
    "libzstd1",
    "zlib1g",
];

/// Root of a tree with Debian 13's UCX. Downloads it unless the cache contains it.
///
/// # Errors
/// The suite or one of the packages is not available.
pub fn debian13() -> Result<PathBuf> {
    let cache = Cache::open()?;
    let inputs = [
        DEBIAN13_SUITE,
        &DEBIAN13_PACKAGES.join(" "),
        std::env::consts::ARCH,
    ];
    let part = cache.part(&format!("debian13-{}", key(&inputs)), |dir| {
        eprintln!("fetching UCX of Debian {DEBIAN13_SUITE} (12 MB)");
        fetch(DEBIAN13_SUITE, DEBIAN13_PACKAGES, dir)
    })?;
    Ok(part.join("root"))
}

/// Variable with the prefix of a UCC that is tested instead of the packages' one.
pub const OTHER_UCC: &str = "XGVMI_UCC_TREE";

/// UCC's own programs that the suite runs.
const UCC_PROGRAMS: [&str; 3] = ["ucc_info", "ucc_perftest", "ucc_test_mpi"];

/// A tree with stock UCC, Open MPI and MPICH.
#[derive(Debug, Clone)]
pub struct UccTree {
    /// The root of the unpacked packages.
    pub root: PathBuf,
    /// A UCC that is used instead of the packages' one.
    pub other: Option<OtherUcc>,
}

/// An installed UCC that the user names with [`OTHER_UCC`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherUcc {
    prefix: PathBuf,
    libraries: PathBuf,
}

/// The tree. Downloads it unless the cache contains it.
///
/// # Errors
/// The suite or one of the packages is not available.
pub fn ucc() -> Result<UccTree> {
    let cache = Cache::open()?;
    let part = cache.part(&part_name(), |dir| {
        eprintln!("fetching stock UCC and MPI of Debian {UCC_SUITE} (45 MB)");
        fetch(UCC_SUITE, UCC_PACKAGES, dir)
    })?;
    Ok(UccTree {
        root: part.join("root"),
        other: OtherUcc::given()?,
    })
}

/// The tree if the cache contains it. Downloads nothing.
///
/// # Errors
/// The cache is not usable.
pub fn ucc_if_there() -> Result<Option<UccTree>> {
    let cache = Cache::open()?;
    let root = cache.dir.join(part_name()).join("root");
    let tree = UccTree { root, other: None };
    Ok(cache.has_part(&part_name()).then_some(tree))
}

/// Attempts to fetch from a suite that no archive has, as after the removal of the packages.
///
/// # Errors
/// Always, unless an archive has such a suite.
pub fn fetch_gone(dir: &Path) -> Result<()> {
    fetch("no-such-suite", UCC_PACKAGES, dir)
}

fn part_name() -> String {
    let inputs = [UCC_SUITE, &UCC_PACKAGES.join(" "), std::env::consts::ARCH];
    format!("ucc-{}", key(&inputs))
}

impl UccTree {
    /// UCC's public headers.
    pub fn include(&self) -> PathBuf {
        match &self.other {
            Some(other) => other.prefix.join("include"),
            None => self.root.join("usr/include"),
        }
    }

    /// libucc, as seen from outside the tree.
    pub fn library(&self) -> PathBuf {
        match &self.other {
            Some(other) => other.libraries.join("libucc.so.1"),
            None => {
                let within = Self::libraries();
                let libraries = self.root.join(within.trim_start_matches('/'));
                libraries.join("libucc.so.1")
            }
        }
    }

    /// One of UCC's programs, as seen from inside the tree.
    pub fn program(&self, stage: &Path, name: &str) -> PathBuf {
        match &self.other {
            Some(_) => stage.join("bin").join(name),
            None => Path::new("/usr/bin").join(name),
        }
    }

    /// The tree's library directories, as seen from inside the tree.
    pub fn libraries() -> String {
        format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH)
    }

    /// Creates a directory with links to the wheels' UCX and the tree's UCC. UCC loads its components from there, and
    /// with `component` one more: UCC and UCX look for modules next to the path by which they were loaded. The wheels'
    /// own directory is unsuitable, because it also contains libraries of another Open MPI.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn stage(&self, dir: &Path, ucx: &Path, component: Option<&Path>) -> Result<()> {
        const UCX: [&str; 6] = [
            "libucm.so.0",
            "libucp.so.0",
            "libucs.so.0",
            "libucs_signal.so.0",
            "libuct.so.0",
            "ucx",
        ];
        // An earlier stage may be that of another UCC.
        let _ = fs::remove_dir_all(dir);
        let modules = dir.join("ucc");
        fs::create_dir_all(&modules)
            .with_context(|| format!("cannot create {}", modules.display()))?;
        match &self.other {
            Some(other) => other.copy(dir)?,
            None => Self::link_packages(dir)?,
        }
        for name in UCX {
            link(&ucx.join(name), &dir.join(name))?;
        }
        if let Some(component) = component {
            link(component, &modules.join("libucc_tl_xgvmi.so"))?;
        }
        Ok(())
    }

    fn link_packages(dir: &Path) -> Result<()> {
        const OWN: [&str; 7] = [
            "cl_basic",
            "cl_hier",
            "tl_ucp",
            "tl_self",
            "mc_cpu",
            "ec_cpu",
            "sysinfo_ib",
        ];
        let libraries = PathBuf::from(Self::libraries());
        link(&libraries.join("libucc.so.1"), &dir.join("libucc.so.1"))?;
        for name in OWN {
            let file = format!("libucc_{name}.so");
            let to = libraries.join("ucc").join(format!("{file}.1"));
            link(&to, &dir.join("ucc").join(file))?;
        }
        Ok(())
    }

    /// Library path of a program in the tree: the stage, then the tree's own directories.
    pub fn library_path(stage: &Path) -> String {
        joined(&[stage.to_owned(), Self::libraries().into()])
    }
}

impl OtherUcc {
    /// The UCC that the variable names; `None` if it names none.
    ///
    /// # Errors
    /// The directory has no complete UCC.
    pub fn given() -> Result<Option<Self>> {
        let prefix = std::env::var_os(OTHER_UCC).filter(|value| !value.is_empty());
        prefix
            .map(|prefix| Self::new(Path::new(&prefix)).with_context(|| OTHER_UCC))
            .transpose()
    }

    fn new(prefix: &Path) -> Result<Self> {
        let shown = prefix.display();
        let libraries = ["lib", "lib64"].map(|name| prefix.join(name));
        let libraries = libraries
            .into_iter()
            .find(|dir| dir.join("libucc.so.1").exists())
            .with_context(|| format!("neither lib nor lib64 of {shown} has libucc.so.1"))?;
        for name in UCC_PROGRAMS {
            ensure!(
                prefix.join("bin").join(name).exists(),
                "{shown}/bin has no {name}; build that UCC with --with-mpi"
            );
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            libraries,
        })
    }

    /// Copies libraries, components and programs, because the prefix may be invisible inside the tree.
    fn copy(&self, dir: &Path) -> Result<()> {
        let copy = |from: &Path, to: &Path| {
            let copied = fs::copy(from, to);
            copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
        };
        copy(
            &self.libraries.join("libucc.so.1"),
            &dir.join("libucc.so.1"),
        )?;
        let modules = self.libraries.join("ucc");
        let shown = || format!("cannot read {}", modules.display());
        for entry in fs::read_dir(&modules).with_context(shown)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            if path.extension().is_some_and(|extension| extension == "so") {
                copy(&path, &dir.join("ucc").join(name))?;
            }
        }
        fs::create_dir_all(dir.join("bin"))?;
        for name in UCC_PROGRAMS {
            copy(
                &self.prefix.join("bin").join(name),
                &dir.join("bin").join(name),
            )?;
        }
        Ok(())
    }
}

fn link(to: &Path, name: &Path) -> Result<()> {
    std::os::unix::fs::symlink(to, name).with_context(|| format!("cannot link {}", name.display()))
}

fn fetch(suite: &str, packages: &[&str], dir: &Path) -> Result<()> {
    let packages: Vec<String> = packages.iter().map(|&name| name.to_owned()).collect();
    let suite = Suite::open(suite, &[], dir)?;
    let root = dir.join("root");
    suite.unpack(&packages, &root)?;
    for name in ["bin", "lib", "lib64", "sbin"] {
        if !root.join(name).exists() {
            std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
        }
    }
    suite.close()
}

/// Package lists of a suite, in a state of their own.
pub(crate) struct Suite {
    state: PathBuf,
    options: Vec<String>,
}

impl Suite {
    /// Downloads the lists into a subdirectory of `dir`. The first architecture is the one of packages without a suffix;
    /// without architectures it is the machine's.
    pub(crate) fn open(suite: &str, architectures: &[&str], dir: &Path) -> Result<Self> {
        let state = dir.join("apt");
        for sub in ["parts", "lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(state.join(sub))?;
        }
        fs::write(state.join("status"), "")?;
        let sources = machine_sources(suite)?;
        ensure!(
            !sources.is_empty(),
            "none of this machine's apt sources is Debian's main archive, so {suite} is not to be had"
        );
        fs::write(state.join("parts/tree.sources"), sources)?;
        let option = |name: &str, value: &Path| format!("-o{name}={}", value.display());
        let mut options = vec![
            option("Dir::State::Lists", &state.join("lists")),
            option("Dir::State::status", &state.join("status")),
            option("Dir::Cache", &state.join("cache")),
            option("Dir::Etc::SourceList", Path::new("/dev/null")),
            option("Dir::Etc::SourceParts", &state.join("parts")),
            "-oAPT::Sandbox::User=root".to_owned(),
            "-oAcquire::Languages=none".to_owned(),
            // Descriptions for software centres.
            "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
        ];
        if let Some(first) = architectures.first() {
            options.push(format!("-oAPT::Architecture={first}"));
        }
        for architecture in architectures {
            options.push(format!("-oAPT::Architectures::={architecture}"));
        }
        let suite = Self { state, options };
        suite.apt(&["update"])?;
        Ok(suite)
    }

    fn apt(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new("apt-get");
        command
            .args(&self.options)
            .arg("-q")
            .args(words)
            .current_dir(&self.state);
        process::stdout(&mut command, APT)
    }

    /// A package and all that it depends on.
    pub(crate) fn closure(&self, package: &str) -> Result<Vec<String>> {
        let text = self.apt(&["-s", "--no-install-recommends", "install", package])?;
        Ok(apt::to_install(&text))
    }

    /// Downloads packages and unpacks them below `root`.
    pub(crate) fn unpack(&self, packages: &[String], root: &Path) -> Result<()> {
        let download: Vec<&str> = std::iter::once("download")
            .chain(packages.iter().map(String::as_str))
            .collect();
        self.apt(&download)?;
        fs::create_dir_all(root.join("usr"))?;
        for entry in fs::read_dir(&self.state)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                let mut extract = Command::new("dpkg-deb");
                process::stdout(extract.arg("-x").arg(&path).arg(root), UNPACK)?;
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Removes lists and state.
    pub(crate) fn close(self) -> Result<()> {
        fs::remove_dir_all(&self.state).context("cannot clear apt's state")
    }
}

/// The machine's sources of Debian's main archive, changed to another suite.
fn machine_sources(suite: &str) -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .context("/etc/os-release names no VERSION_CODENAME")?;
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    for entry in fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
    {
        files.push(entry?.path());
    }
    files.sort();
    let mut sources = String::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let extension = file.extension().unwrap_or_default();
        if extension == "sources" {
            sources += &of_stanzas(&text, &codename, suite);
        } else if extension == "list" {
            sources += &of_lines(&text, &codename, suite);
        }
    }
    Ok(sources)
}

/// Stanzas of a `.sources` file, changed to the other suite.
fn of_stanzas(text: &str, codename: &str, suite: &str) -> String {
    let mut out = String::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            let lines = stanza.lines().filter_map(|line| line.split_once(':'));
            let mut values = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
            values.next().map(|(_, value)| value.trim().to_owned())
        };
        let has = |name: &str, word: &str| {
            field(name).is_some_and(|value| value.split_whitespace().any(|other| other == word))
        };
        let off = field("Enabled").is_some_and(|value| value.eq_ignore_ascii_case("no"));
        if off || !has("Types", "deb") || !has("Suites", codename) || !has("Components", "main") {
            continue;
        }
        out += &format!("Types: deb\nSuites: {suite}\nComponents: main\n");
        let ours = ["types", "suites", "components", "enabled"];
        for line in stanza.lines().filter(|line| !line.starts_with('#')) {
            let key = line.split(':').next().unwrap_or_default().to_lowercase();
            if !line.trim().is_empty() && !ours.contains(&key.as_str()) {
                out += line;
                out.push('\n');
            }
        }
        out.push('\n');
    }
    out
}

/// Lines of a `.list` file as stanzas, changed to the other suite.
fn of_lines(text: &str, codename: &str, suite: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("deb ") else {
            continue;
        };
        let (options, rest) = match rest
            .trim()
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
        {
            Some((options, rest)) => (options, rest),
            None => ("", rest),
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let [uri, found, components @ ..] = words.as_slice() else {
            continue;
        };
        if *found != codename || !components.contains(&"main") {
            continue;
        }
        out += &format!("Types: deb\nSuites: {suite}\nComponents: main\nURIs: {uri}\n");
        let key = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="));
        if let Some(key) = key {
            out += &format!("Signed-By: {key}\n");
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stanzas_of_the_main_archive_get_the_other_suite() {
        let text = "Types: deb\n# a comment\nURIs: mirror\nSuites: now now-updates\nComponents: main contrib\n\
                    Signed-By: /key\n\nTypes: deb\nURIs: other\nSuites: now-security\nComponents: main\n\n\
                    Types: deb\nURIs: off\nSuites: now\nComponents: main\nEnabled: no\n";
        let expect =
            "Types: deb\nSuites: next\nComponents: main\nURIs: mirror\nSigned-By: /key\n\n";
        assert_eq!(of_stanzas(text, "now", "next"), expect);
        assert_eq!(of_stanzas(text, "then", "next"), "");
    }

    #[test]
    fn lines_of_the_main_archive_become_stanzas() {
        let text = "# deb x now main\ndeb [arch=amd64 signed-by=/key] mirror now main contrib\ndeb-src mirror now main\n\
                    deb mirror now-updates main\ndeb other now extra\n";
        let expect =
            "Types: deb\nSuites: next\nComponents: main\nURIs: mirror\nSigned-By: /key\n\n";
        assert_eq!(of_lines(text, "now", "next"), expect);
    }

    #[test]
    fn a_stage_has_the_component_beside_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let stage = dir.path().join("stage");
        let tree = UccTree {
            root: "/root".into(),
            other: None,
        };
        let (ucx, component) = (Path::new("/ucx"), Path::new("/built/libucc_tl_xgvmi.so"));
        tree.stage(&stage, ucx, Some(component)).unwrap();
        let names = || fs::read_dir(stage.join("ucc")).unwrap().count();
        assert_eq!(names(), 8);
        tree.stage(&stage, ucx, None).unwrap();
        assert_eq!(names(), 7);
        let library = fs::read_link(stage.join("libucc.so.1")).unwrap();
        assert_eq!(
            library,
            Path::new(&UccTree::libraries()).join("libucc.so.1")
        );
    }

    #[test]
    fn another_ucc_is_copied_into_the_stage() {
        let dir = tempfile::tempdir().unwrap();
        let (prefix, stage) = (dir.path().join("ucc"), dir.path().join("stage"));
        let refused = OtherUcc::new(&prefix).unwrap_err().to_string();
        assert!(refused.contains("libucc.so.1"), "{refused}");
        for name in ["lib64/ucc", "bin"] {
            fs::create_dir_all(prefix.join(name)).unwrap();
        }
        let write = |name: &str| fs::write(prefix.join(name), "").unwrap();
        write("lib64/libucc.so.1");
        let refused = OtherUcc::new(&prefix).unwrap_err().to_string();
        assert!(refused.contains("no ucc_info"), "{refused}");
        for name in UCC_PROGRAMS {
            write(&format!("bin/{name}"));
        }
        write("lib64/ucc/libucc_tl_ucp.so");
        write("lib64/ucc/libucc_tl_ucp.la");
        let tree = UccTree {
            root: "/root".into(),
            other: Some(OtherUcc::new(&prefix).unwrap()),
        };
        tree.stage(&stage, Path::new("/ucx"), None).unwrap();
        assert_eq!(fs::read_dir(stage.join("ucc")).unwrap().count(), 1);
        let program = tree.program(&stage, "ucc_info");
        assert_eq!(program, stage.join("bin/ucc_info"));
        assert!(program.exists() && stage.join("libucc.so.1").exists());
        assert_eq!(tree.library(), prefix.join("lib64/libucc.so.1"));
    }
}
