//! Options of a program, declared once with clap. The command line, the file of `--config`, the help, the manual page and
//! the table of a document follow from the declaration.
//!
//! Each option with a value may be in the file, under the name of its flag. An option of the command line replaces that of
//! the file, and options of the file that it excludes.
//!
//! All services have their files in `/etc/xgvmi`. A file that is only in its former place is read there, with a line that
//! names both.

use crate::error::{DaemonError, Result};
use clap::builder::{RangedU64ValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Parser};
use std::any::TypeId;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Value;

/// Units of a time, and microseconds of each.
const UNITS: [(&str, u64); 4] = [("us", 1), ("ms", 1000), ("s", 1_000_000), ("m", 60_000_000)];

/// Parses the arguments of this program. Ends it after an error, and after `--help` and `--version`.
#[must_use]
pub fn parse<C: Parser>() -> C {
    matches(C::command(), std::env::args_os().collect())
        .and_then(|matches| C::from_arg_matches(&matches))
        .unwrap_or_else(|error| error.exit())
}

/// Parses words as the options `A`.
///
/// # Errors
/// [`DaemonError::Options`] with the defect.
pub fn parse_words<A: Args>(words: &[&str]) -> Result<A> {
    let command = A::augment_args(Command::new("options")).no_binary_name(false);
    let words = std::iter::once("options").chain(words.iter().copied());
    matches(command, words.map(OsString::from).collect())
        .and_then(|matches| A::from_arg_matches(&matches))
        .map_err(|error| DaemonError::Options(first_paragraph(&error)))
}

/// The defaults of the options `A`, none of which is required.
///
/// # Panics
/// An option is required.
#[must_use]
pub fn defaults<A: Args>() -> A {
    parse_words(&[]).expect("no option is required")
}

/// A table in the file, such as one of `[[volume]]`. On the command line: `NAME`, `NAME=WORD,WORD`, or an inline table of
/// TOML. [`update`] reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table(String);

impl std::str::FromStr for Table {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl Table {
    /// The text, which may be a name alone.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Its options. `NAME=WORD,WORD` are `name` and `words`.
    fn options(&self, words: &str) -> std::result::Result<toml::Table, String> {
        if self.0.starts_with('{') {
            let table: toml::Table = toml::from_str(&format!("table = {}", self.0))
                .map_err(|error| error.message().to_owned())?;
            return match table.into_iter().next() {
                Some((_, Value::Table(table))) => Ok(table),
                _ => Err("it is no table".to_owned()),
            };
        }
        let (name, values) = self.0.split_once('=').unwrap_or((&self.0, ""));
        let values = values.split(',').filter(|value| !value.is_empty());
        let values = values
            .map(|value| Value::String(value.to_owned()))
            .collect();
        Ok(toml::Table::from_iter([
            ("name".to_owned(), Value::String(name.to_owned())),
            (words.to_owned(), Value::Array(values)),
        ]))
    }
}

/// Replaces the options that a table names. `words` is the name of the option with the words of its short form. Switches
/// without a value stay off.
///
/// # Errors
/// [`DaemonError::Options`] with the defect.
pub fn update<A: Args>(args: &mut A, table: &Table, words: &str) -> Result<()> {
    let command = A::augment_args_for_update(Command::new("table"))
        .no_binary_name(true)
        .mut_args(|arg| arg.default_value(None::<&str>));
    let all = table
        .options(words)
        .and_then(|table| read_table(&command, &table))
        .map_err(|text| DaemonError::Options(format!("{}: {text}", table.0)))?;
    let all = all.into_iter().flat_map(|(_, words)| words);
    command
        .clone()
        .try_get_matches_from(all)
        .and_then(|matches| args.update_from_arg_matches(&matches))
        .map_err(|error| DaemonError::Options(format!("{}: {}", table.0, first_paragraph(&error))))
}

/// A value parser of times with their units, such as `200ms`, `5s` or `2m`. A number alone is refused, because readers take
/// it for seconds and programs for milliseconds.
pub fn time(
    range: RangeInclusive<Duration>,
) -> impl Fn(&str) -> std::result::Result<Duration, String> + Clone + Send + Sync {
    move |text| {
        let time = parse_time(text)?;
        match range.contains(&time) {
            true => Ok(time),
            false => Err(format!(
                "it must be from {:?} to {:?}",
                range.start(),
                range.end()
            )),
        }
    }
}

fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if unit.is_empty() && digits > 0 {
        return Err(format!(
            "{text} has no unit: give {text}us, {text}ms, {text}s or {text}m"
        ));
    }
    let factor = UNITS.into_iter().find(|(name, _)| *name == unit);
    let (Some((_, factor)), Ok(number)) = (factor, number.parse::<u64>()) else {
        return Err("give a time with its unit, such as 200ms, 5s or 2m".to_owned());
    };
    let us = number.checked_mul(factor);
    us.map(Duration::from_micros)
        .ok_or_else(|| "the time is too long".to_owned())
}

/// Parses a number of bytes: `4096`, `64K`, `10G`.
///
/// # Errors
/// The text is no number of bytes.
pub fn bytes(text: &str) -> std::result::Result<u64, String> {
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "give a number of bytes, or with K, M, G, T")?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "the number is too large".to_owned())
}

/// A value parser of counts.
pub fn count(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

/// A value parser of sizes in MiB. The value is in bytes.
pub fn mebibytes(range: RangeInclusive<u64>) -> impl TypedValueParser<Value = usize> {
    count(range).map(|mib| mib << 20)
}

/// Parses words with the options of the file that they name.
fn matches(
    mut command: Command,
    mut words: Vec<OsString>,
) -> std::result::Result<ArgMatches, clap::Error> {
    command.build();
    let given = command.clone().try_get_matches_from(&words)?;
    let (mut inner, mut matches, mut start) = (&command, &given, words[..1].to_vec());
    while let Some((name, below)) = matches.subcommand()
        && let Some(subcommand) = inner.find_subcommand(name)
    {
        (inner, matches) = (subcommand, below);
        start.push(name.into());
    }
    let Ok(Some(path)) = matches.try_get_one::<PathBuf>("config") else {
        return Ok(given);
    };
    let former = former_place(path);
    if let Some(former) = &former {
        let (path, former) = (path.display(), former.display());
        eprintln!("there is no {path}; reading {former}, move it to {path}");
    }
    let path = former.as_deref().unwrap_or(path);
    let read = read_file(inner, path, matches).and_then(|options| {
        let all = options.iter().flat_map(|(words, _)| words);
        let alone = command
            .clone()
            .try_get_matches_from(start.iter().chain(all));
        alone.map_err(|error| format!("{}: {}", path.display(), first_paragraph(&error)))?;
        Ok(options)
    });
    let options = read.map_err(|text| command.clone().error(ErrorKind::ValueValidation, text))?;
    let used = options.into_iter().filter(|(_, is_used)| *is_used);
    words.splice(start.len()..start.len(), used.flat_map(|(words, _)| words));
    command.try_get_matches_from(words)
}

/// Where an absent file of the directory `xgvmi` is, if it is in its place of earlier versions: `xgvmi-sp.toml` and
/// `xgvmi-blk/export-a.toml` beside the directory, for `sp.toml` and `blk-export-a.toml` in it.
fn former_place(path: &Path) -> Option<PathBuf> {
    let (directory, name) = (path.parent()?, path.file_name()?.to_str()?);
    if directory.file_name()? != "xgvmi" || path.exists() {
        return None;
    }
    let former = match name.strip_prefix("blk-") {
        Some(name) => format!("xgvmi-blk/{name}"),
        None => format!("xgvmi-{name}"),
    };
    Some(directory.with_file_name(former)).filter(|former| former.is_file())
}

/// The options of a file as words, and whether the command line leaves them in force.
fn read_file(
    command: &Command,
    path: &Path,
    matches: &ArgMatches,
) -> std::result::Result<Vec<(Vec<OsString>, bool)>, String> {
    let failed = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| failed(&error))?;
    let is_given =
        |arg: &Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let all = read_table(command, &table).map_err(|what| failed(&what))?;
    let options = all.into_iter().map(|(arg, words)| {
        let excluded = command.get_arg_conflicts_with(arg);
        (words, !is_given(arg) && !excluded.into_iter().any(is_given))
    });
    Ok(options.collect())
}

/// The options of a table as words.
fn read_table<'c>(
    command: &'c Command,
    table: &toml::Table,
) -> std::result::Result<Vec<(&'c Arg, Vec<OsString>)>, String> {
    let mut options = Vec::new();
    for (name, value) in table {
        let Some(arg) = in_file(command).find(|arg| is_named(arg, name)) else {
            let names: Vec<String> = in_file(command).map(name_of).collect();
            return Err(format!(
                "unknown option {name}; the options are {}",
                names.join(", ")
            ));
        };
        let words = words(arg, value).map_err(|what| format!("{name} {what}"))?;
        options.push((arg, words));
    }
    Ok(options)
}

/// Options that the file may have.
fn in_file(command: &Command) -> impl Iterator<Item = &Arg> {
    let has_value = |arg: &&Arg| arg.get_action().takes_values() && !arg.is_hide_set();
    command
        .get_arguments()
        .filter(move |arg| has_value(arg) && arg.get_id() != "config")
}

fn name_of(arg: &Arg) -> String {
    let id = || arg.get_id().as_str().replace('_', "-");
    arg.get_long().map_or_else(id, ToOwned::to_owned)
}

/// Whether this is the option's name, or a former one.
fn is_named(arg: &Arg, name: &str) -> bool {
    let former = arg.get_all_aliases().unwrap_or_default();
    name_of(arg) == name || former.contains(&name)
}

/// An option of a file as words of a command line.
fn words(arg: &Arg, value: &Value) -> std::result::Result<Vec<OsString>, String> {
    let is_several = matches!(arg.get_action(), ArgAction::Append);
    let values = match value {
        Value::Array(values) if is_several => values.as_slice(),
        value => std::slice::from_ref(value),
    };
    let kind = arg.get_value_parser().type_id();
    let is_table = kind == TypeId::of::<Table>();
    let is_text = kind == TypeId::of::<String>() || kind == TypeId::of::<PathBuf>();
    let word = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Table(_) if is_table => Ok(value.to_string()),
        Value::Integer(_) | Value::Boolean(_) if !is_text && !is_table => Ok(value.to_string()),
        _ => Err(format!(
            "is of the type {}, which it cannot have",
            value.type_str()
        )),
    };
    let word = |value| match arg.get_long() {
        Some(long) => Ok(format!("--{long}={}", word(value)?).into()),
        None => word(value).map(OsString::from),
    };
    values.iter().map(word).collect()
}

/// The text of an error without the usage.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    text.split("\n\n")
        .next()
        .unwrap_or(text)
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[derive(Debug, PartialEq, Eq, Args)]
    struct Trial {
        /// Targets.
        #[arg(conflicts_with = "memory")]
        targets: Vec<String>,
        /// A file with any of these options.
        #[arg(long)]
        config: Option<PathBuf>,
        /// A volume in memory.
        #[arg(long, conflicts_with = "targets", value_parser = bytes)]
        memory: Option<u64>,
        /// A name.
        #[arg(long, default_value = "n")]
        name: String,
        /// A count.
        #[arg(long, default_value = "4", value_parser = count(1..=64))]
        workers: usize,
        /// A limit.
        #[arg(long, alias = "limit-s", default_value = "5s", value_parser = time(Duration::from_millis(1)..=Duration::from_mins(1)))]
        limit: Duration,
        /// A size.
        #[arg(long, default_value = "1", value_parser = mebibytes(1..=8))]
        buffer_mib: usize,
        /// A switch.
        #[arg(long, num_args = 0..=1, default_missing_value = "true")]
        insecure: Option<bool>,
        /// Only on the command line.
        #[arg(long)]
        now: bool,
        /// Given by the daemon.
        #[arg(long, hide = true)]
        index: Option<u16>,
    }

    fn of_file(text: &str, words: &[&str]) -> Result<Trial> {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        let path = file.path().to_str().expect("UTF-8").to_owned();
        let found = parse_words::<Trial>(&[&["--config", &path], words].concat());
        found.map_err(|error| {
            assert!(error.to_string().contains(&path), "{error}");
            error
        })
    }

    #[test]
    fn flags_override_the_file_and_the_file_the_defaults() {
        let text =
            "targets = ['a', 'b']\nworkers = 8\nlimit = '70ms'\nbuffer-mib = 2\ninsecure = true";
        let found = of_file(text, &["--workers", "9"]).expect("valid");
        assert_eq!((found.workers, found.buffer_mib), (9, 2 << 20));
        assert_eq!(found.targets, ["a", "b"]);
        assert_eq!(found.limit, Duration::from_millis(70));
        assert_eq!((found.name.as_str(), found.insecure), ("n", Some(true)));
        // A word of the command line replaces all words of the file, and those that it excludes.
        assert_eq!(of_file(text, &["c"]).expect("valid").targets, ["c"]);
        let found = of_file(text, &["--memory", "1M"]).expect("valid");
        assert_eq!((found.targets.len(), found.memory), (0, Some(1 << 20)));
        let found = of_file("memory = '1G'", &["c"]).expect("valid");
        assert_eq!((found.targets.len(), found.memory), (1, None));
        let found = of_file("memory = 4096\nlimit-s = '7s'", &[]).expect("valid");
        assert_eq!(found.memory, Some(4096));
        assert_eq!(found.limit, Duration::from_secs(7), "a former name");
        assert_eq!(defaults::<Trial>().workers, 4);
    }

    #[derive(Debug, Default, PartialEq, Eq, Args)]
    struct Several {
        /// Parts.
        #[arg(long = "part")]
        parts: Vec<Table>,
        /// A file.
        #[arg(long)]
        config: Option<PathBuf>,
    }

    #[test]
    fn tables_of_a_file_replace_the_options_that_they_name() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let text =
            "[[part]]\nname = 'a'\ntargets = ['x', 'y']\nlimit = '70ms'\n[[part]]\nname = 'b'\n";
        file.write_all(text.as_bytes()).expect("written");
        let path = file.path().to_str().expect("UTF-8");
        let found: Several = parse_words(&["--config", path]).expect("valid");
        let updated = |table: &Table| {
            let mut one: Trial = parse_words(&["--workers", "7", "z"]).expect("valid");
            update(&mut one, table, "targets").map(|()| one)
        };
        let all: Vec<Trial> = found
            .parts
            .iter()
            .map(|one| updated(one).expect("valid"))
            .collect();
        assert_eq!((all[0].name.as_str(), all[0].workers), ("a", 7));
        assert_eq!((all[1].name.as_str(), all[1].workers), ("b", 7));
        assert_eq!(all[0].targets, ["x", "y"]);
        assert_eq!(all[1].targets, ["z"]);
        assert_eq!(all[0].limit, Duration::from_millis(70));
        assert_eq!(all[1].limit, Duration::from_secs(5));
        // Flags replace all tables of the file.
        let found: Several = parse_words(&["--config", path, "--part=c=x,y"]).expect("valid");
        let one = updated(&found.parts[0]).expect("valid");
        assert_eq!((found.parts.len(), one.name.as_str()), (1, "c"));
        assert_eq!(one.targets, ["x", "y"]);
        for (text, expect) in [
            ("{ wrokers = 5 }", "unknown option wrokers"),
            ("{ workers = 65 }", "65 is not in 1..=64"),
            ("{ workers = [1] }", "workers is of the type array"),
            ("{ workers", "{ workers: "),
        ] {
            let error = updated(&text.parse().expect("any text"))
                .expect_err(text)
                .to_string();
            assert!(error.contains(expect) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_right_in_a_file_is_named_with_the_file() {
        for (text, expect) in [
            (
                "wrokers = 5",
                "unknown option wrokers; the options are targets, memory, name",
            ),
            ("now = true", "unknown option now"),
            ("index = 1", "unknown option index"),
            ("config = 'other'", "unknown option config"),
            ("workers = 65", "65 is not in 1..=64"),
            ("workers = [1, 2]", "workers is of the type array"),
            ("name = 5", "name is of the type integer"),
            ("limit = 20", "20 has no unit: give 20us, 20ms, 20s or 20m"),
            ("limit-s = 20", "20 has no unit"),
            ("limit = '61s'", "it must be from 1ms to 60s"),
            ("memory = '5X'", "a number of bytes"),
            ("buffer-mib = 1.5", "buffer-mib is of the type float"),
            ("targets = ['a']\nmemory = '1M'", "cannot be used with"),
            ("=", "line 1"),
        ] {
            let error = of_file(text, &["--workers", "5"]).unwrap_err().to_string();
            assert!(error.contains(expect), "{text}: {error}");
        }
        let error = parse_words::<Trial>(&["--config", "/nowhere"]).unwrap_err();
        assert!(error.to_string().contains("/nowhere"), "{error}");
        let error = parse_words::<Trial>(&["--limit-s", "20"]).unwrap_err();
        assert!(error.to_string().contains("20 has no unit"), "{error}");
    }

    #[test]
    fn a_file_in_its_former_place_is_read() {
        let etc = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let file = etc.path().join(name);
            std::fs::create_dir_all(file.parent().expect("a directory")).expect("made");
            std::fs::write(file, text).expect("written");
        };
        let workers = |name: &str| {
            let path = etc.path().join("xgvmi").join(name);
            let words = ["--config", path.to_str().expect("UTF-8")];
            parse_words::<Trial>(&words).map(|found| found.workers)
        };
        write("xgvmi-sp.toml", "workers = 8");
        write("xgvmi-blk/export-a.toml", "workers = 9");
        assert_eq!(workers("sp.toml").expect("read"), 8);
        assert_eq!(workers("blk-export-a.toml").expect("read"), 9);
        write("xgvmi/sp.toml", "workers = 7");
        assert_eq!(workers("sp.toml").expect("read"), 7);
        let error = workers("naa.toml").expect_err("absent").to_string();
        assert!(error.contains("xgvmi/naa.toml"), "{error}");
    }

    #[test]
    fn a_time_has_a_unit() {
        for (text, us) in [
            ("0s", 0),
            ("7us", 7),
            ("200ms", 200_000),
            ("5s", 5_000_000),
            ("2m", 120_000_000),
            ("18446744073709551615us", u64::MAX),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_micros(us)), "{text}");
        }
        for (text, expect) in [
            (
                "5000",
                "5000 has no unit: give 5000us, 5000ms, 5000s or 5000m",
            ),
            ("0", "0 has no unit"),
            ("", "with its unit"),
            ("s", "with its unit"),
            ("-5s", "with its unit"),
            ("5 s", "with its unit"),
            ("5h", "with its unit"),
            ("1.5s", "with its unit"),
            ("99999999999999999999s", "with its unit"),
            ("18446744073709551615s", "too long"),
        ] {
            let error = parse_time(text).unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }
}
