//! Installed files and their paths: one list for `cargo xtask install` below a prefix, and for the packages of `cargo
//! xtask dist`.

use crate::{process, workspace};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The library's file name, equal to its soname.
pub(crate) const LIBRARY: &str = "libuct_ib_mlx5_xgvmi.so.0";
/// File name of the UCC component, as UCC expects it.
pub(crate) const UCC_COMPONENT: &str = "libucc_tl_xgvmi.so";
/// Name that some packages of UCX look up.
pub(crate) const OTHER_NAME: &str = "libuct_ib_mlx5_xgvmi.so.0.0.0";

/// systemd units of block storage, in `services/blk/packaging`.
pub(crate) const STORAGE_UNITS: [&str; 3] = [
    "xgvmi-blk-target@.service",
    "xgvmi-blk-export@.service",
    "xgvmi-blk-service@.service",
];
/// Example configurations of block storage, in `services/blk/packaging`.
pub(crate) const STORAGE_EXAMPLES: [&str; 3] = ["target.toml", "export.toml", "service.toml"];
/// File name of the library for calls to accelerators.
pub(crate) const ACCELERATOR_LIBRARY: &str = "libnaaice.so";
/// Its headers, in `include/naaice`.
pub(crate) const ACCELERATOR_HEADERS: [&str; 4] = [
    "naaice.h",
    "naaice_ap2.h",
    "naaice_ap2_cpp.h",
    "naaice_swnaa.h",
];
/// Its CMake package.
pub(crate) const ACCELERATOR_CMAKE: [&str; 2] =
    ["naaice-config.cmake", "naaice-config-version.cmake"];

/// File name of the C library of block storage, equal to its soname.
pub(crate) const STORAGE_LIBRARY: &str = "libxgvmi_blk.so.0";
/// File name of the engine of fio.
pub(crate) const FIO_ENGINE: &str = "libxgvmi-fio.so";

/// Time limit for a command that writes its pages, which takes milliseconds.
const QUESTION: Duration = Duration::from_secs(30);

/// Parts to install separately: users need not install the emulator, and the product does not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The library and its command.
    Product,
    /// Users of the library: service processes, benchmarks, the model.
    Offload,
    /// Block storage.
    Storage,
    /// Calls to accelerators: the library with headers and CMake package, and the service.
    Accelerator,
    /// The emulated device.
    Emulator,
}

impl Part {
    pub(crate) const ALL: [Self; 5] = [
        Self::Product,
        Self::Offload,
        Self::Storage,
        Self::Accelerator,
        Self::Emulator,
    ];

    /// Name of the part's package.
    pub(crate) const fn package(self) -> &'static str {
        match self {
            Self::Product => "xgvmi",
            Self::Offload => "xgvmi-offload",
            Self::Storage => "xgvmi-blk",
            Self::Accelerator => "xgvmi-naa",
            Self::Emulator => "bf-emu",
        }
    }

    /// The part's commands, which are programs of the build.
    pub(crate) const fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Product => &["xgvmi"],
            Self::Offload => &[
                "xgvmi-sp",
                "xgvmi-offload-check",
                "osu_alltoallv",
                "osu_ialltoallv",
                "cost_table",
                "xgvmi-model",
            ],
            Self::Storage => &["xgvmi-blk"],
            Self::Accelerator => &["xgvmi-naa"],
            Self::Emulator => &["bf-emu"],
        }
    }

    /// Documents of the part, by their path in the workspace.
    pub(crate) const fn documents(self) -> &'static [&'static str] {
        match self {
            Self::Product => &["docs/OPTIONS.md", "docs/HARDWARE.md", "docs/DEFECTS.md"],
            Self::Offload => &[
                "docs/OFFLOAD.md",
                "docs/UCC.md",
                "docs/OSU.md",
                "docs/MODEL.md",
            ],
            Self::Storage => &["docs/STORAGE.md"],
            Self::Accelerator => &["docs/NAAICE.md"],
            Self::Emulator => &["docs/EMULATION.md", "docs/FAULTS.md"],
        }
    }
}

/// Target paths. All are below one root, without a leading slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Root of the written files.
    pub(crate) root: PathBuf,
    /// Prefix of all paths, such as `usr`; may be empty.
    pub(crate) prefix: PathBuf,
    /// Libraries, below the prefix: `lib`, or `lib/TRIPLET`.
    pub(crate) lib: PathBuf,
    /// Path of the prefix on the target system.
    pub(crate) used_as: PathBuf,
    /// Completions of zsh and fish, below the prefix.
    pub(crate) zsh: &'static str,
    pub(crate) fish: &'static str,
    /// Whether manual pages are compressed.
    pub(crate) compress: bool,
}

impl Layout {
    /// Layout below one directory.
    pub(crate) fn prefix(prefix: &Path) -> Self {
        Self {
            root: prefix.to_owned(),
            prefix: PathBuf::new(),
            lib: "lib".into(),
            used_as: prefix.to_owned(),
            zsh: "share/zsh/site-functions",
            fish: "share/fish/vendor_completions.d",
            compress: false,
        }
    }

    /// Debian's layout for machines of this triplet.
    pub(crate) fn debian(root: &Path, triplet: &str) -> Self {
        Self {
            root: root.to_owned(),
            prefix: "usr".into(),
            lib: Path::new("lib").join(triplet),
            used_as: "/usr".into(),
            zsh: "share/zsh/vendor-completions",
            fish: "share/fish/vendor_completions.d",
            compress: true,
        }
    }

    /// A path below the prefix.
    pub(crate) fn at(&self, place: impl AsRef<Path>) -> PathBuf {
        self.root.join(&self.prefix).join(place)
    }

    /// UCX's module directory, if the prefix is UCX's.
    pub(crate) fn modules(&self) -> PathBuf {
        self.at(self.lib.join("ucx"))
    }

    /// A directory that contains only the library, for a UCX elsewhere.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.at(self.lib.join("xgvmi"))
    }
}

/// A release build.
#[derive(Debug)]
pub(crate) struct Built {
    /// Directory of its programs and libraries.
    dir: PathBuf,
    /// Runs its programs if they are for another processor. This machine's tools cannot strip them, so the linker has.
    runner: Option<PathBuf>,
}

/// Builds all installed programs in release mode. It builds the whole workspace like the test run, so nothing is built
/// twice.
pub(crate) fn build() -> Result<Built> {
    workspace::build(&[""])?;
    let dir = workspace::target_dir().join("release");
    Ok(Built { dir, runner: None })
}

/// Builds them for the DPU's processor.
pub(crate) fn build_foreign() -> Result<Built> {
    let (dir, runner) = crate::suites::aarch64::release()?;
    let runner = Some(runner);
    Ok(Built { dir, runner })
}

impl Built {
    /// Installs a program or a library.
    fn program(&self, name: &str, target: &Path, mode: u32) -> Result<()> {
        let source = self.dir.join(name);
        match &self.runner {
            None => stripped(&source, target, mode),
            Some(_) => file(&source, target, mode),
        }
    }

    /// The command that runs a program.
    fn command(&self, name: &str) -> Command {
        let program = self.dir.join(name);
        match &self.runner {
            None => Command::new(program),
            Some(runner) => {
                let mut command = Command::new(runner);
                command.arg(program);
                command
            }
        }
    }
}

/// Installs a part according to the layout.
pub(crate) fn put(part: Part, built: &Built, layout: &Layout) -> Result<()> {
    match part {
        Part::Product => {
            let library = layout.plugins().join(LIBRARY);
            built.program("libuct_ib_mlx5_xgvmi.so", &library, 0o644)?;
            link(LIBRARY, &layout.plugins().join(OTHER_NAME))?;
            for name in [LIBRARY, OTHER_NAME] {
                link(&format!("../xgvmi/{LIBRARY}"), &layout.modules().join(name))?;
            }
            let header = workspace::root().join("uct-plugin/include/xgvmi.h");
            file(&header, &layout.at("include/xgvmi.h"), 0o644)?;
            let pkgconfig = layout.at(layout.lib.join("pkgconfig/xgvmi.pc"));
            text(&pc(layout), &pkgconfig, 0o644)?;
        }
        Part::Offload => {
            let source = workspace::root().join("services/offload/packaging");
            unit(&source.join("xgvmi-sp.service"), layout)?;
            examples(part, &source, &["xgvmi-sp.toml", "offload.toml"], layout)?;
            let component = layout.plugins().join(UCC_COMPONENT);
            built.program(UCC_COMPONENT, &component, 0o644)?;
            // UCC loads components from the directory `ucc` next to its library.
            let module = layout.at(layout.lib.join("ucc")).join(UCC_COMPONENT);
            link(&format!("../xgvmi/{UCC_COMPONENT}"), &module)?;
            // The only parts that depend on the MPI; the user compiles them with that MPI's mpicc.
            // The program of `xgvmi-sp --dpa` is compiled by the user's dpacc.
            for source in [
                "osu-bench/shim/osu_mpi.c",
                "clients/mpi/xgvmi_mpi.c",
                "clients/mpi/xgvmi_mpi.h",
                "clients/mpi/xgvmi_mpi_agree.c",
                "clients/mpi/xgvmi_mpi_messages.c",
                "clients/mpi/xgvmi_mpi_messages.h",
                "clients/mpi/xgvmi_mpi_pairs.c",
                "clients/mpi/xgvmi_mpi_persistent.c",
                "clients/mpi/xgvmi_mpi_requests.c",
                "services/offload/dpa/reads.c",
            ] {
                let source = workspace::root().join(source);
                let name = source.file_name().context("no file name")?;
                let to = layout.at("share").join(part.package()).join(name);
                file(&source, &to, 0o644)?;
            }
        }
        Part::Storage => {
            let source = workspace::root().join("services/blk/packaging");
            for name in STORAGE_UNITS {
                unit(&source.join(name), layout)?;
            }
            let libraries = layout.at(&layout.lib);
            let library = libraries.join(STORAGE_LIBRARY);
            built.program("libxgvmi_blk_capi.so", &library, 0o644)?;
            link(STORAGE_LIBRARY, &libraries.join("libxgvmi_blk.so"))?;
            let engine = layout.plugins().join(FIO_ENGINE);
            built.program("libxgvmi_fio.so", &engine, 0o644)?;
            let header = workspace::root().join("services/blk/capi/include/xgvmi_blk.h");
            file(&header, &layout.at("include/xgvmi_blk.h"), 0o644)?;
            examples(part, &source, &STORAGE_EXAMPLES, layout)?;
        }
        Part::Accelerator => accelerator(part, built, layout)?,
        Part::Emulator => {
            let preload = "libbfemu_preload.so";
            // Next to the commands' directory, where the command looks for it.
            let place = layout.at("lib/bf-emu").join(preload);
            built.program(preload, &place, 0o644)?;
        }
    }
    for name in part.commands() {
        built.program(name, &layout.at("bin").join(name), 0o755)?;
        pages(built.command(name), name, layout)?;
    }
    let documents = layout.at("share/doc").join(part.package());
    for document in part.documents() {
        let source = workspace::root().join(document);
        let name = source.file_name().context("a document without a name")?;
        file(&source, &documents.join(name), 0o644)?;
    }
    Ok(())
}

/// Library, headers and CMake package of libnaaice; unit and example configuration of the service.
fn accelerator(part: Part, built: &Built, layout: &Layout) -> Result<()> {
    let library = layout.at(layout.lib.join(ACCELERATOR_LIBRARY));
    built.program(ACCELERATOR_LIBRARY, &library, 0o644)?;
    let source = workspace::root().join("clients/naaice");
    for header in ACCELERATOR_HEADERS {
        let target = layout.at("include/naaice").join(header);
        file(&source.join("include").join(header), &target, 0o644)?;
    }
    for script in ACCELERATOR_CMAKE {
        let target = layout.at(layout.lib.join("cmake/naaice")).join(script);
        file(&source.join("cmake").join(script), &target, 0o644)?;
    }
    let source = workspace::root().join("services/naa/packaging");
    unit(&source.join("xgvmi-naa.service"), layout)?;
    examples(part, &source, &["xgvmi-naa.toml"], layout)
}

/// Installs a systemd unit.
fn unit(source: &Path, layout: &Layout) -> Result<()> {
    let contents = fs::read_to_string(source).with_context(|| source.display().to_string())?;
    let name = source.file_name().context("a unit without a name")?;
    // systemd's own directory in a package; with another prefix the user creates a link or a copy.
    let place = layout.at("lib/systemd/system").join(name);
    text(&unit_of(&contents, layout), &place, 0o644)
}

/// Installs example configurations.
fn examples(part: Part, source: &Path, names: &[&str], layout: &Layout) -> Result<()> {
    let examples = layout.at("share/doc").join(part.package()).join("examples");
    for name in names {
        file(&source.join(name), &examples.join(name), 0o644)?;
    }
    Ok(())
}

/// The systemd unit with the paths of this layout.
fn unit_of(unit: &str, layout: &Layout) -> String {
    unit.replace("/usr/", &format!("{}/", layout.used_as.display()))
}

/// Manual pages and completions that the command generates.
fn pages(mut command: Command, name: &str, layout: &Layout) -> Result<()> {
    let made = workspace::target_dir().join("pages").join(name);
    let _ = fs::remove_dir_all(&made);
    process::stdout(command.arg("--generate").arg(&made), QUESTION)?;
    let bash = layout.at("share/bash-completion/completions");
    file(&made.join("bash").join(name), &bash.join(name), 0o644)?;
    let zsh = format!("_{name}");
    file(
        &made.join("zsh").join(&zsh),
        &layout.at(layout.zsh).join(&zsh),
        0o644,
    )?;
    let fish = format!("{name}.fish");
    file(
        &made.join("fish").join(&fish),
        &layout.at(layout.fish).join(&fish),
        0o644,
    )?;
    for entry in fs::read_dir(made.join("man")).context("manual pages")? {
        let page = entry?.path();
        let file_name = page.file_name().context("a page without a name")?;
        let place = layout.at("share/man/man1").join(file_name);
        file(&page, &place, 0o644)?;
        if layout.compress {
            compress(&place)?;
        }
    }
    Ok(())
}

/// Compresses a file in place, with reproducible output.
pub(crate) fn compress(file: &Path) -> Result<()> {
    let mut command = Command::new("gzip");
    process::stdout(command.args(["-9nf"]).arg(file), QUESTION).map(drop)
}

/// pkg-config file for programs that use the header. It links no library: the library is UCX's module or a preload.
fn pc(layout: &Layout) -> String {
    let (prefix, lib) = (layout.used_as.display(), layout.lib.display());
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "prefix={prefix}\n\
         includedir=${{prefix}}/include\n\
         libdir=${{prefix}}/{lib}\n\
         plugindir=${{libdir}}/xgvmi\n\
         preload=${{plugindir}}/{LIBRARY}\n\
         \n\
         Name: xgvmi\n\
         Description: Pooled memory keys for DPU-offloaded communication through stock UCX\n\
         Version: {version}\n\
         Cflags: -I${{includedir}}\n"
    )
}

/// A program or library of this machine, stripped of debugging information if binutils are installed.
fn stripped(source: &Path, target: &Path, mode: u32) -> Result<()> {
    let name = source.file_name().context("a program without a name")?;
    let dir = workspace::target_dir().join("stripped");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let stripped = dir.join(name);
    let mut command = Command::new("strip");
    command.args(["--strip-debug", "--remove-section=.comment", "-o"]);
    match process::run(command.arg(&stripped).arg(source), QUESTION) {
        Ok(done) if done.ok() => file(&stripped, target, mode),
        Ok(done) => bail!("`{}`: {}", process::shown(&command), done.output),
        Err(_) => file(source, target, mode),
    }
}

pub(crate) fn file(source: &Path, target: &Path, mode: u32) -> Result<()> {
    replace(target, |path| {
        fs::copy(source, path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    })
    .with_context(|| format!("from {}", source.display()))
}

/// Writes a text as a file.
pub(crate) fn text(text: &str, target: &Path, mode: u32) -> Result<()> {
    replace(target, |path| {
        fs::write(path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    })
}

pub(crate) fn link(to: &str, target: &Path) -> Result<()> {
    replace(target, |path| symlink(to, path))
}

/// Creates a file under a temporary name and renames it.
fn replace(target: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    let what = || format!("cannot install {}", target.display());
    let parent = target.parent().with_context(what)?;
    fs::create_dir_all(parent).with_context(what)?;
    let name = target.file_name().with_context(what)?.to_string_lossy();
    let new = parent.join(format!(".{name}.{}", std::process::id()));
    // Leftover of a killed install with the same process id.
    let _ = fs::remove_file(&new);
    let made = make(&new).and_then(|()| fs::rename(&new, target));
    if made.is_err() {
        let _ = fs::remove_file(&new);
    }
    made.with_context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_use_is_replaced_and_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (source, target) = (dir.path().join("source"), dir.path().join("a/b/target"));
        fs::write(&source, "old").unwrap();
        file(&source, &target, 0o644).unwrap();
        let in_use = fs::File::open(&target).unwrap();
        fs::write(&source, "new").unwrap();
        file(&source, &target, 0o755).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        assert_eq!(std::io::read_to_string(in_use).unwrap(), "old");
        assert_eq!(
            target.metadata().unwrap().permissions().mode() & 0o777,
            0o755
        );
        // No temporary file is left, not even after a failure.
        assert!(file(&dir.path().join("none"), &target, 0o644).is_err());
        assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 1);
    }

    #[test]
    fn the_pc_file_speaks_of_where_it_will_be() {
        let debian = Layout::debian(Path::new("/tmp-root"), "x86_64-linux-gnu");
        let text = pc(&debian);
        assert!(text.contains("prefix=/usr\n"), "{text}");
        assert!(
            text.contains("libdir=${prefix}/lib/x86_64-linux-gnu\n"),
            "{text}"
        );
        assert_eq!(
            debian.modules(),
            Path::new("/tmp-root/usr/lib/x86_64-linux-gnu/ucx")
        );
        let unit = "ExecStart=/usr/bin/xgvmi-sp --config /etc/xgvmi/sp.toml";
        assert_eq!(unit_of(unit, &debian), unit);
        let below = Layout::prefix(Path::new("/opt/x"));
        assert_eq!(
            unit_of(unit, &below),
            "ExecStart=/opt/x/bin/xgvmi-sp --config /etc/xgvmi/sp.toml"
        );
        assert!(pc(&below).contains("prefix=/opt/x\n"));
        assert_eq!(below.modules(), Path::new("/opt/x/lib/ucx"));
    }
}
