//! The command line.

use crate::fault::Fault;
use std::path::PathBuf;

/// Text of `--help`.
pub const HELP: &str = "\
Usage: dpacc [options] -o ARCHIVE.a FILE...

Compiles device code (.c) for a DPA and makes an archive for the host's linker: the device program, and one function for
each kernel and RPC, by whose address the host names it.

  FILE                     C source (.c) or object file of device code
  -o, -output-file FILE    the archive
  -mcpu CPU,...            nv-dpa-bf3 (the default), nv-dpa-cx7, nv-dpa-cx8, nv-dpa-cx9; the program runs on all that are given
  -app-name NAME           symbol of the program, a 'struct flexio_app *' (default __dpa_a_out)
  -hostcc PROGRAM          compiler of the host (default cc)
  -hostcc-options OPTIONS  options of the host's compiler, separated by spaces or commas
  -devicecc-options OPTIONS  options of the device's compiler, separated by spaces or commas
  -device-libs OPTIONS     -L and -l of device libraries; the names of DOCA's and FlexIO's own are part of dpacc
  -I DIR, -D MACRO         as the device's compiler
  -dpa-proc-attr FILE      attributes of the program, the output of dpa-app-attributes2blob
  -keep-dir DIR            keep the intermediate files in this directory
  -flto                    accepted; the program is linked without further optimization
  -disable-asm-checks      accepted; assembly is not restricted
  -v, -verbose             show each command
  -h, -help; -V, -version  this text; the version

Each option may begin with one dash or two, and its value may follow after '=' or as the next word.

Variables:
  DPACC_DEVICE_CC          compiler of the device: a clang with the target riscv64, or a gcc for riscv64
                           (default: the first of clang-19, other clangs from 16, riscv64-unknown-elf-gcc)
";

/// Name of the program without `-app-name`.
const DEFAULT_APP: &str = "__dpa_a_out";

/// Device libraries that are part of this driver.
pub(crate) const OWN_LIBRARIES: &[&str] = &[
    "doca_dpa_dev",
    "doca_dpa_dev_comm",
    "doca_dpa_dev_verbs",
    "flexio_dev",
    "dpa",
    "c",
    "m",
    "gcc",
];

/// A model of the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cpu {
    /// BlueField-3 and ConnectX-7.
    Cx7,
    /// ConnectX-8.
    Cx8,
    /// ConnectX-9.
    Cx9,
}

impl Cpu {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "nv-dpa-bf3" | "nv-dpa-cx7" => Some(Self::Cx7),
            "nv-dpa-cx8" => Some(Self::Cx8),
            "nv-dpa-cx9" => Some(Self::Cx9),
            _ => None,
        }
    }

    /// The instructions that a stock compiler may use.
    #[must_use]
    pub fn march(self) -> &'static str {
        match self {
            Self::Cx7 => "rv64imac_zicsr_zbb_zbs",
            Self::Cx8 | Self::Cx9 => "rv64imac_zicsr_zba_zbb_zbs",
        }
    }

    /// Value of the macro `__NV_DPA`.
    #[must_use]
    pub fn macro_value(self) -> u32 {
        match self {
            Self::Cx7 => 1,
            Self::Cx8 => 2,
            Self::Cx9 => 3,
        }
    }
}

/// Where code for congestion control runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// At the sender: it sets rates.
    Reaction,
    /// At the receiver: it answers probes.
    Notification,
}

/// A complete command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Sources and object files.
    pub inputs: Vec<PathBuf>,
    /// The archive.
    pub output: PathBuf,
    /// The oldest of the given models. Its program runs on the others.
    pub cpu: Cpu,
    /// Symbol of the program.
    pub app: String,
    /// Compiler of the host.
    pub host_compiler: String,
    /// Its options.
    pub host_options: Vec<String>,
    /// Options of the device's compiler, `-I` and `-D` included.
    pub device_options: Vec<String>,
    /// Directories of device libraries.
    pub library_dirs: Vec<PathBuf>,
    /// Names of device libraries that are not part of this driver.
    pub libraries: Vec<String>,
    /// The library of congestion control, if it is asked for.
    pub congestion_control: Option<Point>,
    /// File with the attributes of the program.
    pub attributes: Option<PathBuf>,
    /// Directory of the intermediate files.
    pub keep: Option<PathBuf>,
    /// Whether each command is shown.
    pub verbose: bool,
}

/// What the user asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Compile.
    Build(Box<Options>),
    /// Show the help.
    Help,
    /// Show the version.
    Version,
}

/// Reads a command line, without the program's name.
///
/// # Errors
/// The first word that is not understood.
pub fn parse(words: &[String]) -> Result<Request, Fault> {
    let mut raw = Raw::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if !word.starts_with('-') || word == "-" {
            raw.inputs.push(PathBuf::from(word));
            continue;
        }
        // -IDIR and -DMACRO have their value at once.
        if let Some(joined) = joined(word) {
            raw.device_options.push(joined);
            continue;
        }
        let (name, mut value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let name = name.trim_start_matches('-');
        match name {
            "h" | "help" => return Ok(Request::Help),
            "V" | "version" => return Ok(Request::Version),
            "v" | "verbose" => raw.verbose = true,
            "flto" | "disable-asm-checks" | "disable-asm-checks-nowarn" => {}
            _ if !VALUED.contains(&name) => return Err(unknown(word)),
            _ => {
                if value.is_none() {
                    value = words.next().cloned();
                }
                let Some(value) = value else {
                    return Err(Fault::new(format!("option '{word}' needs a value")));
                };
                raw.set(name, value)?;
            }
        }
    }
    raw.finish()
        .map(|options| Request::Build(Box::new(options)))
}

/// Options with a value.
const VALUED: &[&str] = &[
    "o",
    "output-file",
    "mcpu",
    "app-name",
    "hostcc",
    "hostcc-options",
    "devicecc-options",
    "device-libs",
    "I",
    "D",
    "dpa-proc-attr",
    "keep-dir",
];

fn unknown(word: &str) -> Fault {
    Fault::new(format!(
        "unknown option '{word}'; dpacc --help lists all options"
    ))
}

/// The word, if it is `-IDIR` or `-DMACRO`.
fn joined(word: &str) -> Option<String> {
    let has_value = word.starts_with("-I") || word.starts_with("-D");
    (has_value && word.len() > 2).then(|| word.to_owned())
}

/// Options as they are read.
#[derive(Debug, Default)]
struct Raw {
    inputs: Vec<PathBuf>,
    output: Option<PathBuf>,
    cpus: Vec<Cpu>,
    app: Option<String>,
    host_compiler: Option<String>,
    host_options: Vec<String>,
    device_options: Vec<String>,
    library_dirs: Vec<PathBuf>,
    libraries: Vec<String>,
    congestion_control: Option<Point>,
    attributes: Option<PathBuf>,
    keep: Option<PathBuf>,
    verbose: bool,
}

impl Raw {
    fn set(&mut self, name: &str, value: String) -> Result<(), Fault> {
        match name {
            "o" | "output-file" => self.output = Some(value.into()),
            "mcpu" => {
                for cpu in value.split(',') {
                    let known = Cpu::parse(cpu).ok_or_else(|| {
                        Fault::new(format!(
                            "unknown CPU '{cpu}'; known are nv-dpa-bf3, nv-dpa-cx7, nv-dpa-cx8, nv-dpa-cx9"
                        ))
                    })?;
                    self.cpus.push(known);
                }
            }
            "app-name" => self.app = Some(value),
            "hostcc" => self.host_compiler = Some(value),
            "hostcc-options" => self.host_options.extend(split(&value)?),
            "devicecc-options" => self.device_options.extend(split(&value)?),
            "device-libs" => self.libraries(&value)?,
            "I" | "D" => self.device_options.push(format!("-{name}{value}")),
            "dpa-proc-attr" => self.attributes = Some(value.into()),
            "keep-dir" => self.keep = Some(value.into()),
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    /// Reads the value of `-device-libs`.
    fn libraries(&mut self, value: &str) -> Result<(), Fault> {
        let mut words = split(value)?.into_iter();
        while let Some(word) = words.next() {
            let (option, mut rest) = match word.split_at_checked(2) {
                Some((option @ ("-L" | "-l"), rest)) => (option.to_owned(), rest.to_owned()),
                _ => {
                    return Err(Fault::new(format!(
                        "'{word}' in -device-libs is neither -LDIR nor -lNAME"
                    )));
                }
            };
            if rest.is_empty() {
                rest = words.next().unwrap_or_default();
            }
            match option.as_str() {
                "-L" => self.library_dirs.push(rest.into()),
                _ if OWN_LIBRARIES.contains(&rest.as_str()) => {}
                _ if point(&rest).is_some() => self.congestion_control = point(&rest),
                _ => self.libraries.push(rest),
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Options, Fault> {
        if self.inputs.is_empty() {
            return Err(Fault::new("no input file"));
        }
        let Some(output) = self.output else {
            return Err(Fault::new("no output file; give -o ARCHIVE.a"));
        };
        let app = self.app.unwrap_or_else(|| DEFAULT_APP.to_owned());
        if !is_identifier(&app) {
            return Err(Fault::new(format!(
                "'{app}' in -app-name is not a name of C"
            )));
        }
        Ok(Options {
            inputs: self.inputs,
            output,
            cpu: self.cpus.into_iter().min().unwrap_or(Cpu::Cx7),
            app,
            host_compiler: self.host_compiler.unwrap_or_else(|| "cc".to_owned()),
            host_options: self.host_options,
            device_options: self.device_options,
            library_dirs: self.library_dirs,
            libraries: self.libraries,
            congestion_control: self.congestion_control,
            attributes: self.attributes,
            keep: self.keep,
            verbose: self.verbose,
        })
    }
}

/// What a library of congestion control is for; None for other names.
fn point(library: &str) -> Option<Point> {
    let mut known = pcc_dev::LIBRARIES.iter();
    let (_, is_np) = known.find(|(name, _)| *name == library)?;
    Some(match is_np {
        true => Point::Notification,
        false => Point::Reaction,
    })
}

/// Longest name of a program or function. With the prefix of an unpack function it stays below the limit of FlexIO.
pub(crate) const MAX_NAME: usize = 200;

/// Whether a name is one of C, in ASCII.
pub(crate) fn is_identifier(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let first = name.chars().next();
    first.is_some_and(|c| !c.is_ascii_digit())
        && name.chars().all(is_part)
        && name.len() <= MAX_NAME
}

/// Splits a list of options at spaces and commas. Quotes keep them together, and a backslash keeps the next character.
fn split(list: &str) -> Result<Vec<String>, Fault> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut characters = list.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (None, ' ' | '\t' | '\n' | ',') => words.extend(word.take()),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), _) if c == open => quote = None,
            (None | Some('"'), '\\') => {
                let next = characters.next().unwrap_or('\\');
                word.get_or_insert_default().push(next);
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(Fault::new(format!("a quote in '{list}' has no end")));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[&str]) -> Result<Request, Fault> {
        let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
        parse(&words)
    }

    #[track_caller]
    fn options(line: &[&str]) -> Options {
        match read(line) {
            Ok(Request::Build(options)) => *options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_flags_of_build_scripts_are_understood() {
        let read = options(&[
            "a_dev.c",
            "-o",
            "build/a.a",
            "-mcpu=nv-dpa-cx8,nv-dpa-bf3",
            "-hostcc=gcc",
            "-hostcc-options=-Werror -Wall -DX",
            "--devicecc-options=-DSIMX,-ffreestanding,-O2, -DY, -I/some where/else",
            "--app-name=app",
            "-device-libs=-L/lib -ldoca_dpa_dev -ldoca_dpa_dev_comm -lmine",
            "-flto",
            "-Iinclude",
            "-I",
            "more",
            "--keep-dir",
            "kept",
            "-disable-asm-checks",
            "--dpa-proc-attr=a.blob",
        ]);
        assert_eq!(read.inputs, [PathBuf::from("a_dev.c")]);
        assert_eq!(read.output, PathBuf::from("build/a.a"));
        assert_eq!(read.cpu, Cpu::Cx7);
        assert_eq!(read.app, "app");
        assert_eq!(read.host_options, ["-Werror", "-Wall", "-DX"]);
        let expect = [
            "-DSIMX",
            "-ffreestanding",
            "-O2",
            "-DY",
            "-I/some",
            "where/else",
            "-Iinclude",
            "-Imore",
        ];
        assert_eq!(read.device_options, expect);
        assert_eq!(read.library_dirs, [PathBuf::from("/lib")]);
        assert_eq!(read.libraries, ["mine"]);
        assert_eq!(read.keep, Some(PathBuf::from("kept")));
        assert_eq!(read.attributes, Some(PathBuf::from("a.blob")));
    }

    #[test]
    fn defaults_are_those_of_older_scripts() {
        let read = options(&["a.c", "-o", "a.a", "-mcpu", "nv-dpa-cx9"]);
        assert_eq!((read.app.as_str(), read.cpu), ("__dpa_a_out", Cpu::Cx9));
        assert_eq!(options(&["a.c", "-o", "a.a"]).cpu, Cpu::Cx7);
        assert_eq!(read.attributes, None);
        assert_eq!(read.host_compiler, "cc");
    }

    #[test]
    fn each_mistake_has_one_clear_line() {
        let check = |line: &[&str], expect: &str| {
            let fault = read(line).expect_err("a fault").to_string();
            assert!(fault.contains(expect), "{fault}");
        };
        check(&["-o", "a.a"], "no input file");
        check(&["a.c"], "no output file");
        check(&["a.c", "-o"], "option '-o' needs a value");
        check(&["a.c", "-o", "a.a", "-fwhat"], "unknown option '-fwhat'");
        check(
            &["a.c", "-o", "a.a", "-mcpu=x86-64"],
            "unknown CPU 'x86-64'",
        );
        check(
            &["a.c", "-o", "a.a", "-app-name=1x"],
            "'1x' in -app-name is not a name",
        );
        check(
            &["a.c", "-o", "a.a", "-device-libs=x.a"],
            "'x.a' in -device-libs",
        );
        check(&["a.c", "-o", "a.a", "-hostcc-options=\"x"], "has no end");
    }

    #[test]
    fn quotes_and_backslashes_keep_words_together() {
        let words = split("-DA=\"b c\"  '-DD=e,f',-Dg\\ h \"\"").expect("words");
        assert_eq!(words, ["-DA=b c", "-DD=e,f", "-Dg h", ""]);
    }
}
