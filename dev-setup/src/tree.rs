//! Unpacks Debian packages of another suite than the machine's into a separate tree. They are never installed.
//!
//! apt uses a separate state: package lists, cache, sources and an empty list of installed packages. Its sources are
//! the machine's with the other suite's name, so mirrors and keys stay the same.

use super::cache::{Cache, key};
use super::joined;
use anyhow::{Context, Result, ensure};
use dev_process::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit for package lists and packages: 45 MB over a slow connection.
const APT: Duration = Duration::from_secs(600);
/// Time limit for one package or one link.
const UNPACK: Duration = Duration::from_secs(60);

/// Debian's testing suite, by the code name that it keeps after its release.
const UCC_SUITE: &str = "forky";

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

/// A tree with stock UCC, Open MPI and MPICH.
#[derive(Debug, Clone)]
pub struct UccTree {
    /// The root of the unpacked packages.
    pub root: PathBuf,
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
    })
}

/// The tree if the cache contains it. Downloads nothing.
///
/// # Errors
/// The cache is not usable.
pub fn ucc_if_there() -> Result<Option<UccTree>> {
    let cache = Cache::open()?;
    let root = cache.dir.join(part_name()).join("root");
    Ok(cache.has_part(&part_name()).then_some(UccTree { root }))
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
        self.root.join("usr/include")
    }

    /// The tree's library directories, as seen from inside the tree.
    pub fn libraries() -> String {
        format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH)
    }

    /// Creates a directory with links to the wheels' UCX and the tree's UCC. UCC loads its components from there, and
    /// with `component` one more: UCC and UCX look for modules next to the path by which they were loaded. The wheels'
    /// own directory is unsuitable, because it also contains libraries of another Open MPI.
    pub fn stage(dir: &Path, ucx: &Path, component: Option<&Path>) -> Result<()> {
        const OWN: [&str; 7] = [
            "cl_basic",
            "cl_hier",
            "tl_ucp",
            "tl_self",
            "mc_cpu",
            "ec_cpu",
            "sysinfo_ib",
        ];
        const UCX: [&str; 6] = [
            "libucm.so.0",
            "libucp.so.0",
            "libucs.so.0",
            "libucs_signal.so.0",
            "libuct.so.0",
            "ucx",
        ];
        let modules = dir.join("ucc");
        fs::create_dir_all(&modules)
            .with_context(|| format!("cannot create {}", modules.display()))?;
        let link = |to: &Path, name: &Path| {
            let _ = fs::remove_file(name);
            std::os::unix::fs::symlink(to, name)
                .with_context(|| format!("cannot link {}", name.display()))
        };
        let libraries = PathBuf::from(Self::libraries());
        link(&libraries.join("libucc.so.1"), &dir.join("libucc.so.1"))?;
        for name in OWN {
            let file = format!("libucc_{name}.so");
            link(
                &libraries.join("ucc").join(format!("{file}.1")),
                &modules.join(file),
            )?;
        }
        for name in UCX {
            link(&ucx.join(name), &dir.join(name))?;
        }
        if let Some(component) = component {
            link(component, &modules.join("libucc_tl_xgvmi.so"))?;
        }
        Ok(())
    }

    /// Library path of a program in the tree: the stage, then the tree's own directories.
    pub fn library_path(stage: &Path) -> String {
        joined(&[stage.to_owned(), Self::libraries().into()])
    }
}

fn fetch(suite: &str, packages: &[&str], dir: &Path) -> Result<()> {
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
    let options = [
        option("Dir::State::Lists", &state.join("lists")),
        option("Dir::State::status", &state.join("status")),
        option("Dir::Cache", &state.join("cache")),
        option("Dir::Etc::SourceList", Path::new("/dev/null")),
        option("Dir::Etc::SourceParts", &state.join("parts")),
        "-oAPT::Sandbox::User=root".to_owned(),
        "-oAcquire::Languages=none".to_owned(),
    ];
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args(&options)
            .arg("-q")
            .args(words)
            .current_dir(&state);
        process::stdout(&mut command, APT)
    };
    apt(&["update"])?;
    let download: Vec<&str> = std::iter::once("download")
        .chain(packages.iter().copied())
        .collect();
    apt(&download)?;
    let root = dir.join("root");
    fs::create_dir_all(root.join("usr"))?;
    for entry in fs::read_dir(&state)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            let mut extract = Command::new("dpkg-deb");
            process::stdout(extract.arg("-x").arg(&path).arg(&root), UNPACK)?;
        }
    }
    for name in ["bin", "lib", "lib64", "sbin"] {
        if !root.join(name).exists() {
            std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
        }
    }
    fs::remove_dir_all(&state).context("cannot clear apt's state")
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
        let ucx = Path::new("/ucx");
        UccTree::stage(
            dir.path(),
            ucx,
            Some(Path::new("/built/libucc_tl_xgvmi.so")),
        )
        .unwrap();
        let names = fs::read_dir(dir.path().join("ucc")).unwrap().count();
        assert_eq!(names, 8);
        UccTree::stage(dir.path(), ucx, None).unwrap();
        let library = fs::read_link(dir.path().join("libucc.so.1")).unwrap();
        assert_eq!(
            library,
            Path::new(&UccTree::libraries()).join("libucc.so.1")
        );
    }
}
