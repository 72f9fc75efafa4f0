//! From sources to an image: by the host's compiler, or by `dpacc`.

use crate::dpa::Dpa;
use crate::host::{Host, SharedObject};
use crate::process::{Engine, Options, Process};
use dpacc::{Cpu, Failure, Point};
use pcc_dev::layout::Model;
use rv64::{Limits, Program};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::{env, fs, io};
use tempfile::TempDir;

/// Name of the program in files that `dpacc` makes.
const APP: &str = "pcc_app";

/// How a program is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Build {
    /// As a shared object for this machine.
    Host,
    /// As RV64 for the interpreter.
    Dpa,
}

/// The user's program.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Name in reports.
    pub name: String,
    /// C files.
    pub files: Vec<PathBuf>,
    /// Directories of headers.
    pub includes: Vec<PathBuf>,
    /// Macros, as NAME or NAME=VALUE.
    pub macros: Vec<String>,
    /// The device's model.
    pub model: Model,
    /// Whether it is code of a receiver.
    pub is_np: bool,
}

impl Sources {
    /// A program of a sender on BlueField-3.
    #[must_use]
    pub fn new(name: &str, files: &[PathBuf]) -> Self {
        Self {
            name: name.to_owned(),
            files: files.to_vec(),
            includes: Vec::new(),
            macros: Vec::new(),
            model: Model::Bf3,
            is_np: false,
        }
    }
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A file cannot be read or written.
    #[error("cannot write {0}: {1}")]
    File(PathBuf, io::Error),
    /// No program of this name can be started.
    #[error("cannot run '{0}': {1}")]
    Compiler(String, io::Error),
    /// What the compiler says.
    #[error("{0} does not compile:\n{1}")]
    Rejected(String, String),
    /// `dpacc` or the compiler that it runs has said why.
    #[error("{0} does not compile for the DPA{1}")]
    Dpa(String, String),
    /// The interpreter refuses the program.
    #[error("{0}: {1}")]
    Load(String, rv64::LoadError),
}

/// A built program.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    model: Model,
    is_np: bool,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Host(Arc<SharedObject>),
    Dpa(Arc<Program>),
}

impl Image {
    /// Builds a program.
    ///
    /// # Errors
    /// The compiler is missing or rejects the program.
    pub fn build(sources: &Sources, build: Build) -> Result<Self, BuildError> {
        let kind = match build {
            Build::Host => Kind::Host(Arc::new(host(sources)?)),
            Build::Dpa => Kind::Dpa(Arc::new(dpa(sources)?)),
        };
        Ok(Self {
            name: sources.name.clone(),
            model: sources.model,
            is_np: sources.is_np,
            kind,
        })
    }

    /// Starts a process.
    ///
    /// # Errors
    /// The program fails at its start, or asks for what the library refuses.
    pub fn start(&self, options: &Options) -> Result<Process, crate::Refused> {
        let engine: Box<dyn Engine> = match &self.kind {
            Kind::Host(object) => Box::new(Host::load(object)?),
            Kind::Dpa(program) => Box::new(Dpa::load(program, options)?),
        };
        Process::start((&self.name, self.model, self.is_np), engine, options)
    }
}

/// A temporary folder.
fn folder() -> Result<TempDir, BuildError> {
    let made = tempfile::Builder::new().prefix("pcc-").tempdir();
    made.map_err(|error| BuildError::File(env::temp_dir(), error))
}

fn write(path: &Path, text: &str) -> Result<(), BuildError> {
    let done = path.parent().map_or(Ok(()), fs::create_dir_all);
    done.and_then(|()| fs::write(path, text))
        .map_err(|error| BuildError::File(path.to_owned(), error))
}

fn host(sources: &Sources) -> Result<SharedObject, BuildError> {
    let folder = folder()?;
    let np = if sources.is_np {
        pcc_dev::NP_SOURCES
    } else {
        &[]
    };
    let headers = folder.path().join("include");
    for (name, text) in pcc_dev::HEADERS.iter().chain(pcc_dev::HOST_HEADERS) {
        write(&headers.join(name), text)?;
    }
    let object = folder.path().join("program.so");
    let library = folder.path().join("lib");
    let mut files = sources.files.clone();
    for (name, text) in [pcc_dev::SOURCES, np, pcc_dev::HOST_SOURCES].concat() {
        write(&library.join(name), text)?;
        if name.ends_with(".c") {
            files.push(library.join(name));
        }
    }
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command.args([
        "-shared",
        "-fPIC",
        "-O2",
        "-w",
        "-fvisibility=hidden",
        "-Wl,-Bsymbolic",
        "-Wl,-z,defs",
    ]);
    command.args(["-ffreestanding", "-fno-strict-aliasing", "-DE_MODE_LE"]);
    command.args([
        "-D__DPA__=1",
        "-D__NV_DPA_BF3=1",
        "-D__NV_DPA_CX7=1",
        "-D__NV_DPA_CX8=2",
        "-D__NV_DPA_CX9=3",
    ]);
    command.arg(format!("-D__NV_DPA={}", sources.model.macro_value()));
    command.args(sources.macros.iter().map(|name| format!("-D{name}")));
    for include in &sources.includes {
        command.arg("-I").arg(include);
    }
    command
        .arg("-isystem")
        .arg(&headers)
        .args(&files)
        .arg("-o")
        .arg(&object);
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|error| BuildError::Compiler(compiler, error))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        return Err(BuildError::Rejected(sources.name.clone(), said));
    }
    let bytes = fs::read(&object).map_err(|error| BuildError::File(object, error))?;
    Ok(SharedObject(bytes))
}

fn dpa(sources: &Sources) -> Result<Program, BuildError> {
    let folder = folder()?;
    let macros = sources.macros.iter().map(|name| format!("-D{name}"));
    let includes = sources
        .includes
        .iter()
        .map(|path| format!("-I{}", path.display()));
    let own = ["-w", "-DE_MODE_LE", "-DSIMX_BUILD"].map(str::to_owned);
    let options = dpacc::Options {
        inputs: sources.files.clone(),
        output: folder.path().join("program.a"),
        cpu: match sources.model {
            Model::Bf3 => Cpu::Cx7,
            Model::Cx8 => Cpu::Cx8,
        },
        app: APP.to_owned(),
        host_compiler: "cc".to_owned(),
        host_options: Vec::new(),
        device_options: own.into_iter().chain(macros).chain(includes).collect(),
        library_dirs: Vec::new(),
        libraries: Vec::new(),
        congestion_control: Some(match sources.is_np {
            true => Point::Notification,
            false => Point::Reaction,
        }),
        attributes: None,
        keep: Some(folder.path().join("kept")),
        verbose: false,
    };
    dpacc::build(&options).map_err(|failure| {
        let said = match failure {
            Failure::Told => String::new(),
            Failure::Faults(faults) => faults.iter().map(|fault| format!("\n{fault}")).collect(),
        };
        BuildError::Dpa(sources.name.clone(), said)
    })?;
    let path = folder.path().join("kept").join(format!("{APP}.elf"));
    let file = fs::read(&path).map_err(|error| BuildError::File(path, error))?;
    Program::parse_with(&file, &Limits::default())
        .map_err(|error| BuildError::Load(sources.name.clone(), error))
}
