//! Values of C expressions by the installed headers, for the tests that compare FFI bindings with them.
//!
//! Tests that run under a user-mode emulator ask another compiler, that of [`COMPILER`], and run its programs by [`RUNNER`].

use crate::process;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// C expressions and their values.
pub type Values = BTreeMap<String, i128>;

/// A number of a binding as the value of an expression.
///
/// # Panics
/// If the number has more than 127 bits.
pub fn answer(value: impl TryInto<i128>) -> i128 {
    value
        .try_into()
        .unwrap_or_else(|_| panic!("a number of at most 127 bits"))
}

/// Adds size, alignment and offsets of structures to [`Values`]: `"struct ibv_pd" ibv_pd { context, handle }`. A
/// trailing `_` of a field is not part of its C name.
#[macro_export]
macro_rules! c_layout {
    ($to:ident: $($c:literal $type:ident { $($($field:ident).+),* $(,)? })*) => {$(
        $to.insert(
            format!("sizeof({})", $c),
            $crate::headers::answer(::std::mem::size_of::<$type>()),
        );
        $to.insert(
            format!("_Alignof({})", $c),
            $crate::headers::answer(::std::mem::align_of::<$type>()),
        );
        $($to.insert(
            format!(
                "offsetof({}, {})",
                $c,
                concat!($(".", stringify!($field)),+)
                    .trim_start_matches('.')
                    .trim_end_matches('_'),
            ),
            $crate::headers::answer(::std::mem::offset_of!($type, $($field).+)),
        );)*
    )*};
}

/// Adds constants to [`Values`].
#[macro_export]
macro_rules! c_values {
    ($to:ident: $($name:ident),* $(,)?) => {$(
        $to.insert(stringify!($name).to_owned(), $crate::headers::answer($name));
    )*};
}

/// Variable with the C compiler; without it, this is `cc`.
pub const COMPILER: &str = "XGVMI_HEADERS_CC";

/// Variable with a program that runs what the compiler makes; without it, the system does.
pub const RUNNER: &str = "XGVMI_HEADERS_RUN";

/// Time limit of the C compiler and of the program that it makes.
const LIMIT: Duration = Duration::from_secs(60);

/// Headers for a C program.
#[derive(Debug)]
pub struct Headers<'a> {
    /// Their names, as in `#include`.
    pub names: &'a [&'a str],
    /// A directory to search before the system's.
    pub directory: Option<&'a Path>,
}

impl Headers<'_> {
    /// Why this machine cannot tell their values; `None` if it can.
    ///
    /// # Errors
    /// A temporary file cannot be written.
    pub fn missing(&self) -> Result<Option<String>> {
        let compiler = chosen();
        if !process::is_installed(&compiler) {
            return Ok(Some(format!("no C compiler: {compiler}")));
        }
        let place = Place::new()?;
        let done = process::run(self.compiler(&place, &self.includes())?.arg("-E"), LIMIT)?;
        Ok((!done.ok()).then(|| format!("no headers {}", self.names.join(", "))))
    }

    /// The compiler's values of constant integer expressions.
    ///
    /// # Errors
    /// The expressions do not compile.
    pub fn values<'a>(&self, expressions: impl Iterator<Item = &'a String>) -> Result<Values> {
        let mut source = format!(
            "#include <stddef.h>\n#include <stdio.h>\n{}int main(void) {{\n",
            self.includes()
        );
        for expression in expressions {
            writeln!(
                source,
                "printf(\"%lld %s\\n\", (long long)({expression}), \"{expression}\");"
            )?;
        }
        source.push_str("return 0; }\n");
        let place = Place::new()?;
        let program = place.0.join("program");
        let mut compiler = self.compiler(&place, &source)?;
        process::stdout(compiler.arg("-o").arg(&program), LIMIT)?;
        let words = env::var_os(RUNNER).into_iter().chain([program.into()]);
        let words: Vec<OsString> = words.collect();
        let answers = process::stdout(Command::new(&words[0]).args(&words[1..]), LIMIT)?;
        let answer = |line: &str| {
            let (value, expression) = line.split_once(' ').context("an answer without a value")?;
            Ok((expression.to_owned(), value.parse()?))
        };
        answers.lines().map(answer).collect()
    }

    /// Compares values with the compiler's.
    ///
    /// # Errors
    /// The expressions do not compile, or values differ: the error lists them.
    pub fn compare(&self, ours: &Values) -> Result<()> {
        let theirs = self.values(ours.keys())?;
        ensure!(
            theirs.len() == ours.len(),
            "{} answers to {} questions",
            theirs.len(),
            ours.len()
        );
        let wrong: Vec<String> = ours
            .iter()
            .filter(|(expression, value)| theirs.get(*expression) != Some(*value))
            .map(|(expression, value)| {
                format!("{expression}: ours {value}, headers {}", theirs[expression])
            })
            .collect();
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }

    fn includes(&self) -> String {
        let line = |name: &&str| format!("#include <{name}>\n");
        self.names.iter().map(line).collect()
    }

    fn compiler(&self, place: &Place, source: &str) -> Result<Command> {
        let file = place.0.join("probe.c");
        fs::write(&file, source).with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = Command::new(chosen());
        if let Some(directory) = self.directory {
            command.arg("-I").arg(directory);
        }
        command.arg(file);
        Ok(command)
    }
}

/// The C compiler.
fn chosen() -> String {
    env::var(COMPILER).unwrap_or_else(|_| "cc".to_owned())
}

/// A temporary directory. Dropping this value removes it.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("xgvmi-headers-{}-{number}", std::process::id());
        let place = Self(env::temp_dir().join(name));
        fs::create_dir_all(&place.0)
            .with_context(|| format!("cannot create {}", place.0.display()))?;
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: Headers<'_> = Headers {
        names: &["stdint.h"],
        directory: None,
    };

    #[test]
    fn a_wrong_value_and_a_missing_header_are_named() {
        // Rust itself needs a C compiler to link.
        assert_eq!(HEADERS.missing().unwrap(), None);
        let values = |value| Values::from([("sizeof(int32_t)".to_owned(), value)]);
        HEADERS.compare(&values(4)).unwrap();
        let error = HEADERS.compare(&values(5)).unwrap_err().to_string();
        assert_eq!(error, "sizeof(int32_t): ours 5, headers 4");
        let absent = Headers {
            names: &["xgvmi/no-such-header.h"],
            directory: None,
        };
        assert!(
            absent
                .missing()
                .unwrap()
                .unwrap()
                .contains("no-such-header.h")
        );
    }
}
