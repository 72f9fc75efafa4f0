//! Compilers and linkers: which ones there are, and how they are run.

use crate::fault::{Failure, Fault, Result};
use crate::options::Cpu;
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Variable that names the compiler of the device.
const VARIABLE: &str = "DPACC_DEVICE_CC";

/// The oldest clang whose target riscv64 has the extensions of the DPA.
const OLDEST_CLANG: u32 = 16;

/// Names of clang, the preferred one first.
const CLANGS: &[&str] = &[
    "clang-19", "clang-18", "clang-20", "clang-21", "clang-17", "clang-16", "clang",
];

/// Name of gcc, and of the programs with the same prefix.
const GCC: &str = "riscv64-unknown-elf-gcc";

/// Directory of picolibc below the prefix of the programs.
const PICOLIBC: &str = "lib/picolibc/riscv64-unknown-elf";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Clang,
    Gcc,
}

/// The compiler and linker of the device.
#[derive(Debug, Clone)]
pub(crate) struct Device {
    kind: Kind,
    compiler: PathBuf,
    linker: PathBuf,
    /// Directory of the C library's headers, if the library is installed.
    headers: Option<PathBuf>,
    /// The C library and the compiler's own, as far as they are installed.
    libraries: Vec<PathBuf>,
}

impl Device {
    /// Finds the compiler that the variable names, or the first that is installed.
    ///
    /// # Errors
    /// None is installed, or the one that is named cannot be used.
    pub(crate) fn find() -> std::result::Result<Self, Fault> {
        if let Some(name) = env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
            let program = find(&name).ok_or_else(|| {
                Fault::new(format!(
                    "{VARIABLE} names '{}', which is not a program",
                    name.display()
                ))
            })?;
            return Self::of(&program).map_err(|what| {
                Fault::new(format!("{VARIABLE} names {}: {what}", program.display()))
            });
        }
        let names = CLANGS.iter().chain([&GCC]);
        let mut programs = names.filter_map(|name| find(name.as_ref()));
        programs.find_map(|program| Self::of(&program).ok()).ok_or_else(|| {
            Fault::new(
                "no compiler for riscv64; install clang-19 and lld-19, or gcc-riscv64-unknown-elf, and \
                 picolibc-riscv64-unknown-elf",
            )
        })
    }

    /// Examines a compiler.
    fn of(program: &Path) -> std::result::Result<Self, String> {
        let version =
            said(Command::new(program).arg("--version")).ok_or("does not answer to --version")?;
        let kind = if version.contains("clang version") {
            Kind::Clang
        } else {
            Kind::Gcc
        };
        let linker = match kind {
            Kind::Clang => {
                let number = version
                    .split("clang version ")
                    .nth(1)
                    .and_then(|rest| rest.split('.').next());
                let number: u32 = number
                    .and_then(|number| number.parse().ok())
                    .unwrap_or_default();
                if number < OLDEST_CLANG {
                    return Err(format!(
                        "is clang {number}, and {OLDEST_CLANG} is the oldest that can be used"
                    ));
                }
                let targets =
                    said(Command::new(program).arg("--print-targets")).unwrap_or_default();
                if !targets.contains("riscv64") {
                    return Err("has no target riscv64".to_owned());
                }
                let lld = [format!("ld.lld-{number}"), "ld.lld".to_owned()];
                let found = lld.iter().find_map(|name| find(name.as_ref()));
                found.ok_or_else(|| format!("has no linker; install lld-{number}"))?
            }
            Kind::Gcc => {
                let machine = said(Command::new(program).arg("-dumpmachine")).unwrap_or_default();
                if !machine.starts_with("riscv64-") {
                    return Err("is no compiler for riscv64".to_owned());
                }
                let name =
                    said(Command::new(program).arg("-print-prog-name=ld")).unwrap_or_default();
                find(name.trim().as_ref()).ok_or("has no linker")?
            }
        };
        let gcc = match kind {
            Kind::Gcc => Some(program.to_owned()),
            Kind::Clang => find(GCC.as_ref()),
        };
        let picolibc = picolibc(gcc.as_deref().unwrap_or(program));
        let mut libraries: Vec<PathBuf> = Vec::new();
        libraries.extend(picolibc.as_ref().and_then(|(_, library)| library.clone()));
        libraries.extend(gcc.as_deref().and_then(libgcc));
        Ok(Self {
            kind,
            compiler: program.to_owned(),
            linker,
            headers: picolibc.map(|(headers, _)| headers),
            libraries,
        })
    }

    /// A command that compiles for the device, without options of the user.
    #[must_use]
    pub(crate) fn compile(&self, cpu: Cpu) -> Command {
        let mut command = Command::new(&self.compiler);
        if self.kind == Kind::Clang {
            command.args(["--target=riscv64-unknown-elf", "-nostdlibinc"]);
        }
        command.arg(format!("-march={}", cpu.march()));
        command.args([
            "-mabi=lp64",
            "-mcmodel=medany",
            "-ffreestanding",
            "-O2",
            "-g",
        ]);
        command
    }

    /// Options that must not be those of the user: one object with code and debug information, and no warnings about
    /// marks on types.
    pub(crate) fn finish(&self, command: &mut Command) {
        command.args([
            "-g",
            "-fno-lto",
            "-fno-pic",
            "-ftls-model=local-exec",
            "-fno-stack-protector",
            "-fvisibility=default",
        ]);
        match self.kind {
            Kind::Clang => command.arg("-Wno-ignored-attributes"),
            // Equal functions would become one, with one mark.
            Kind::Gcc => command.args(["-Wno-attributes", "-fno-ipa-icf"]),
        };
        if let Some(headers) = &self.headers {
            command.arg("-isystem").arg(headers);
        }
        command.arg("-c");
    }

    /// Options with which debug information states the alignment of all types, if code must be compiled without them. For
    /// processors that access aligned memory only, gcc does not state an alignment that equals that of an integer of the
    /// type's size.
    #[must_use]
    pub(crate) fn describing(&self) -> Option<[&'static str; 2]> {
        (self.kind == Kind::Gcc).then_some(["-mno-strict-align", "-w"])
    }

    /// A command that links objects by a script.
    #[must_use]
    pub(crate) fn link(&self, script: &Path, output: &Path) -> Command {
        let mut command = Command::new(&self.linker);
        command.args([
            "-m",
            "elf64lriscv",
            "-static",
            "-nostdlib",
            "--build-id=none",
        ]);
        command.args(["-z", "max-page-size=4096"]);
        command.arg("-T").arg(script).arg("-o").arg(output);
        command
    }

    /// The libraries that follow the objects.
    #[must_use]
    pub(crate) fn libraries(&self) -> &[PathBuf] {
        &self.libraries
    }
}

/// Headers, and library if it has one for the DPA, of picolibc beside a program.
fn picolibc(program: &Path) -> Option<(PathBuf, Option<PathBuf>)> {
    let prefix = program.parent()?.parent()?;
    let roots = [prefix.join(PICOLIBC), Path::new("/usr").join(PICOLIBC)];
    let root = roots
        .iter()
        .find(|root| root.join("include/string.h").exists())?;
    let places = [
        "lib/release/rv64imac/lp64/libc.a",
        "lib/rv64imac/lp64/libc.a",
    ];
    let library = places
        .iter()
        .map(|place| root.join(place))
        .find(|path| path.exists());
    Some((root.join("include"), library))
}

/// The library of gcc's own functions for the DPA.
fn libgcc(gcc: &Path) -> Option<PathBuf> {
    let mut command = Command::new(gcc);
    command.args(["-march=rv64imac", "-mabi=lp64", "-print-libgcc-file-name"]);
    let path = PathBuf::from(said(&mut command)?.trim());
    path.exists().then_some(path)
}

/// The path of a program. A name without a slash is searched in PATH.
fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// Standard output of a command that succeeds.
fn said(command: &mut Command) -> Option<String> {
    let done = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    done.status
        .success()
        .then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Runs a command. Its messages are those of the user's compiler, so they go to the user.
///
/// # Errors
/// The command cannot start, or fails.
pub(crate) fn run(command: &mut Command, verbose: bool) -> Result<()> {
    if verbose {
        eprintln!("{}", shown(command));
    }
    let name = command.get_program().display().to_string();
    let status = command.stdin(Stdio::null()).status();
    let status = status.map_err(|error| Fault::new(format!("cannot run '{name}': {error}")))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(_) => Err(Failure::Told),
        None => Err(Fault::new(format!("'{name}' has been killed: {status}")).into()),
    }
}

/// A command as one line for the user.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words
        .map(|word| {
            let word = word.display().to_string();
            if word.contains(|c: char| c.is_whitespace() || "\"'\\$".contains(c)) {
                format!("'{}'", word.replace('\'', "'\\''"))
            } else {
                word
            }
        })
        .collect();
    words.join(" ")
}
