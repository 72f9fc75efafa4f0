//! The steps from device sources to the archive.

use crate::attributes::MAX_BYTES;
use crate::dwarf;
use crate::fault::{Failure, Fault, Result};
use crate::generate;
use crate::image;
use crate::objects::{self, Marked};
use crate::options::{Options, Point};
use crate::tools::{self, Device};
use crate::types::Function;
use dpa_dev::{HEADERS, KERNEL_MARK, LINKER_SCRIPT, RPC_MARK};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Most bytes of an input that is read into memory.
const MAX_FILE: u64 = 256 << 20;

/// Builds the archive.
///
/// # Errors
/// All faults of the first step that has some.
pub fn build(options: &Options) -> Result<()> {
    let private = tempfile::Builder::new()
        .prefix("dpacc-")
        .tempdir()
        .map_err(|error| Fault::new(format!("cannot create a temporary directory: {error}")))?;
    if let Some(keep) = &options.keep {
        let cannot = |error| Fault::in_file(keep, format!("cannot create this directory: {error}"));
        fs::create_dir_all(keep).map_err(cannot)?;
    }
    let build = Build {
        options,
        device: Device::find()?,
        private: private.path(),
        work: options.keep.as_deref().unwrap_or(private.path()),
    };
    let inputs = build.inputs()?;
    build.install()?;
    let library = build.congestion_control()?;
    let sources: Vec<&Input> = inputs.iter().chain(&library).collect();
    let (mut objects, mut described) = (Vec::new(), Vec::new());
    for input in &sources {
        let object = build.work.join(format!("{}.dpa.dev.o", input.stem));
        let object = build.compile(input, &object, &[])?;
        described.push(match build.device.describing() {
            Some(options) => {
                let types = build.private.join(format!("{}.types.o", input.stem));
                build.compile(input, &types, &options)?
            }
            None => object.clone(),
        });
        objects.push(object);
    }
    let libraries = build.libraries()?;
    let marked = build.marked(&sources, &objects, &libraries)?;
    let own = build.own()?;
    described.push(own.clone());
    let types = build.link(&build.private.join("types.elf"), &described, &libraries)?;
    let functions = dwarf::functions(&read(&types)?, &marked).map_err(Failure::Faults)?;
    let linked: Vec<PathBuf> = objects
        .into_iter()
        .chain([own, build.unpack(&functions)?])
        .collect();
    let program = build.work.join(format!("{}.elf", options.app));
    let program = build.link(&program, &linked, &libraries)?;
    let program = read(&program)?;
    image::check(&program).map_err(Fault::new)?;
    build.host(&inputs, &marked, &functions, &program)
}

/// One input of the command line.
#[derive(Debug)]
struct Input {
    path: PathBuf,
    /// Name without directory and ending, which the files made from it have.
    stem: String,
    is_source: bool,
}

struct Build<'a> {
    options: &'a Options,
    device: Device,
    /// A directory that is removed at the end.
    private: &'a Path,
    /// The directory of the intermediate files.
    work: &'a Path,
}

impl Build<'_> {
    /// Checks the inputs.
    fn inputs(&self) -> Result<Vec<Input>> {
        let (mut inputs, mut stems, mut faults) = (Vec::new(), BTreeSet::new(), Vec::new());
        for path in &self.options.inputs {
            let mut fault = |what: &str| faults.push(Fault::in_file(path, what));
            let stem = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .unwrap_or_default();
            let is_plain = |c: char| !c.is_control() && !"\"\\".contains(c);
            if !path.is_file() {
                fault("no such file");
            } else if stem.is_empty() || !stem.chars().all(is_plain) {
                fault("files made from this one would have a name that C cannot include");
            } else if !stems.insert(stem.to_owned()) {
                fault(
                    "another input has the same file name, and so would the files made from both",
                );
            } else {
                inputs.push(Input {
                    path: path.clone(),
                    stem: stem.to_owned(),
                    is_source: path.extension().is_some_and(|ending| ending == "c"),
                });
            }
        }
        if faults.is_empty() {
            Ok(inputs)
        } else {
            Err(Failure::Faults(faults))
        }
    }

    /// Directory of the device's headers.
    fn headers(&self) -> PathBuf {
        self.private.join("include")
    }

    /// Writes headers and linker script.
    fn install(&self) -> Result<()> {
        for (name, text) in HEADERS.iter().chain(pcc_dev::HEADERS) {
            write(&self.headers().join(name), text)?;
        }
        write(&self.private.join("dpa.ld"), LINKER_SCRIPT)
    }

    /// Writes the library of congestion control, if it is asked for, and returns its sources.
    fn congestion_control(&self) -> Result<Vec<Input>> {
        let Some(point) = self.options.congestion_control else {
            return Ok(Vec::new());
        };
        let np = match point {
            Point::Reaction => &[],
            Point::Notification => pcc_dev::NP_SOURCES,
        };
        let dir = self.private.join("pcc");
        let files = [pcc_dev::SOURCES, pcc_dev::DEVICE_SOURCES, np].concat();
        let mut sources = Vec::new();
        for (name, text) in files {
            let path = dir.join(name);
            write(&path, text)?;
            if let Some(stem) = name.strip_suffix(".c") {
                let stem = stem.to_owned();
                sources.push(Input {
                    path,
                    stem,
                    is_source: true,
                });
            }
        }
        Ok(sources)
    }

    /// Compiles a source. An object file is used as it is.
    fn compile(&self, input: &Input, object: &Path, more: &[&str]) -> Result<PathBuf> {
        if !input.is_source {
            return Ok(input.path.clone());
        }
        let mut command = self.device.compile(self.options.cpu);
        let value = self.options.cpu.macro_value();
        command.args([
            "-D__DPA__=1",
            "-D__NV_DPA_BF3=1",
            "-D__NV_DPA_CX7=1",
            "-D__NV_DPA_CX8=2",
            "-D__NV_DPA_CX9=3",
        ]);
        command.arg(format!("-D__NV_DPA={value}"));
        for (name, mark) in [("__dpa_global__", KERNEL_MARK), ("__dpa_rpc__", RPC_MARK)] {
            command.arg(format!("-D{name}={mark}"));
        }
        command.arg(format!(
            "-ffile-prefix-map={}=dpacc",
            self.private.display()
        ));
        command.args(&self.options.device_options);
        command.arg("-isystem").arg(self.headers());
        self.device.finish(&mut command);
        command.args(more).arg(&input.path).arg("-o").arg(object);
        tools::run(&mut command, self.options.verbose)?;
        Ok(object.to_owned())
    }

    /// Compiles a generated source of the device.
    fn generated(&self, source: &Path) -> Result<PathBuf> {
        let object = source.with_extension("o");
        let mut command = self.device.compile(self.options.cpu);
        self.device.finish(&mut command);
        // Lines of a directory that is gone by then would say nothing, and differ from run to run.
        command.arg("-g0");
        command.arg(source).arg("-o").arg(&object);
        tools::run(&mut command, self.options.verbose)?;
        Ok(object)
    }

    /// The device libraries that are not part of this driver.
    fn libraries(&self) -> Result<Vec<PathBuf>> {
        let (mut found, mut faults) = (Vec::new(), Vec::new());
        for name in &self.options.libraries {
            let file = format!("lib{name}.a");
            let dirs = self.options.library_dirs.iter();
            match dirs.map(|dir| dir.join(&file)).find(|path| path.is_file()) {
                Some(path) => found.push(path),
                None => faults.push(Fault::new(format!(
                    "no {file} in the directories of -device-libs"
                ))),
            }
        }
        if faults.is_empty() {
            Ok(found)
        } else {
            Err(Failure::Faults(faults))
        }
    }

    /// The functions that all inputs mark.
    fn marked(
        &self,
        inputs: &[&Input],
        objects: &[PathBuf],
        libraries: &[PathBuf],
    ) -> Result<Vec<Marked>> {
        let (mut marked, mut faults) = (Vec::new(), Vec::new());
        let own = inputs
            .iter()
            .zip(objects)
            .map(|(input, object)| (object, &input.path));
        for (file, from) in own.chain(libraries.iter().map(|library| (library, library))) {
            match objects::read(&read(file)?, from) {
                Ok(found) => marked.extend(found),
                Err(found) => faults.extend(found),
            }
        }
        faults.extend(objects::duplicates(&marked));
        if faults.is_empty() && marked.is_empty() {
            faults.push(Fault::new(
                "no function has __dpa_global__ or __dpa_rpc__, so the host could start nothing",
            ));
        }
        if faults.is_empty() {
            Ok(marked)
        } else {
            Err(Failure::Faults(faults))
        }
    }

    /// Compiles the device library and the attributes.
    fn own(&self) -> Result<PathBuf> {
        let mut assembly = dpa_dev::assembly();
        if let Some(path) = &self.options.attributes {
            assembly.push_str(&attributes(path)?);
        }
        let source = self.private.join("calls.S");
        write(&source, &assembly)?;
        self.generated(&source)
    }

    /// Compiles the unpack functions.
    fn unpack(&self, functions: &[Function]) -> Result<PathBuf> {
        let source = self.work.join(format!("{}.unpack.c", self.options.app));
        write(&source, &generate::device(functions))?;
        self.generated(&source)
    }

    /// Links a program.
    fn link(&self, program: &Path, objects: &[PathBuf], libraries: &[PathBuf]) -> Result<PathBuf> {
        let mut command = self.device.link(&self.private.join("dpa.ld"), program);
        command.args(objects);
        if !libraries.is_empty() {
            command
                .arg("--whole-archive")
                .args(libraries)
                .arg("--no-whole-archive");
        }
        command
            .arg("--start-group")
            .args(self.device.libraries())
            .arg("--end-group");
        let done = tools::run(&mut command, self.options.verbose);
        if matches!(done, Err(Failure::Told)) && self.device.libraries().is_empty() {
            eprintln!(
                "dpacc: note: no C library is installed for the DPA (picolibc-riscv64-unknown-elf)"
            );
        }
        done.map(|()| program.to_owned())
    }

    /// Writes and compiles the files for the host, and makes the archive.
    fn host(
        &self,
        inputs: &[Input],
        marked: &[Marked],
        functions: &[Function],
        program: &[u8],
    ) -> Result<()> {
        let app = &self.options.app;
        let of = |path: Option<&Path>| -> Vec<Function> {
            let is_source = |from: &Path| {
                inputs
                    .iter()
                    .any(|input| input.is_source && input.path == from)
            };
            let belongs = |one: &&Marked| match path {
                Some(path) => one.from == path,
                None => !is_source(&one.from),
            };
            let names: BTreeSet<&str> = marked
                .iter()
                .filter(belongs)
                .map(|one| one.name.as_str())
                .collect();
            let has = functions
                .iter()
                .filter(|function| names.contains(function.name.as_str()));
            has.cloned().collect()
        };
        let mut objects = Vec::new();
        for input in inputs.iter().filter(|input| input.is_source) {
            let stem = &input.stem;
            let stubs = generate::stubs(app, &of(Some(&input.path)));
            write(&self.work.join(format!("{stem}.stub.inc")), &stubs)?;
            let source = self.work.join(format!("{stem}.dpa.host.c"));
            write(&source, &generate::host(stem))?;
            objects.push(self.host_object(&source, &format!("{stem}.dpa.host.o"))?);
        }
        write(
            &self.work.join("device_exec.stub.inc"),
            &generate::bytes(program),
        )?;
        let meta = self.work.join(format!("{app}.meta.c"));
        write(&meta, &generate::meta(app, functions, &of(None)))?;
        objects.push(self.host_object(&meta, &format!("{app}.meta.o"))?);
        // One member, so that a program that refers to any of its symbols gets all of it.
        let whole = self.private.join(format!("{app}.dpa.o"));
        let mut join = Command::new(&self.options.host_compiler);
        join.args(["-r", "-nostdlib", "-o"])
            .arg(&whole)
            .args(&objects);
        tools::run(&mut join, self.options.verbose)?;
        let archive = self.private.join("archive.a");
        let mut command = Command::new("ar");
        command.arg("rcs").arg(&archive).arg(&whole);
        tools::run(&mut command, self.options.verbose)?;
        let output = &self.options.output;
        fs::copy(&archive, output)
            .map_err(|error| Fault::in_file(output, format!("cannot write: {error}")))?;
        Ok(())
    }

    fn host_object(&self, source: &Path, name: &str) -> Result<PathBuf> {
        let object = self.private.join(name);
        let mut command = Command::new(&self.options.host_compiler);
        command.args(&self.options.host_options);
        command.arg(format!(
            "-ffile-prefix-map={}=dpacc",
            self.private.display()
        ));
        // Also if the compiler is one for C++.
        command
            .args(["-fPIC", "-fno-lto", "-x", "c", "-c"])
            .arg(source)
            .arg("-o")
            .arg(&object);
        tools::run(&mut command, self.options.verbose)?;
        Ok(object)
    }
}

/// Assembly of the section with the attributes.
fn attributes(path: &Path) -> Result<String> {
    let data = read(path)?;
    if data.len() > MAX_BYTES {
        return Err(Fault::in_file(
            path,
            format!("has more than {MAX_BYTES} bytes of attributes"),
        )
        .into());
    }
    let bytes: Vec<String> = data.iter().map(u8::to_string).collect();
    let mut text = "\t.section .dpa_attributes,\"\",@progbits\n".to_owned();
    for line in bytes.chunks(16) {
        text.push_str(&format!("\t.byte {}\n", line.join(", ")));
    }
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<()> {
    let cannot = |error| Fault::in_file(path, format!("cannot write: {error}"));
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(cannot)?;
    }
    Ok(fs::write(path, text).map_err(cannot)?)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let size = fs::metadata(path).map(|about| about.len());
    if size.is_ok_and(|size| size > MAX_FILE) {
        return Err(Fault::in_file(path, format!("has more than {MAX_FILE} bytes")).into());
    }
    Ok(fs::read(path).map_err(|error| Fault::in_file(path, format!("cannot read: {error}")))?)
}
