//! Documentation tests, and the pages of rustdoc, which must give no warning.
//!
//! For the pages of a crate, rustdoc needs its dependencies compiled. Those of the documentation tests are: cargo runs this
//! program as rustdoc, which makes the pages with the arguments of the tests, and then runs the tests.

use super::tally::Case;
use super::{Phase, World, at_least_one, cargo, selected, single, skips, tests_of_crates};
use crate::{process, workspace};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// The name under which this program is rustdoc.
const NAME: &str = "rustdoc";

/// Bound of a hang, of the pages of one crate.
const LIMIT: Duration = Duration::from_secs(300);

/// The phase.
pub(super) fn run(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    let program = world.logs.join(NAME);
    fs::copy("/proc/self/exe", &program).with_context(|| program.display().to_string())?;
    let mut command = tests_of_crates(world, "--doc")?;
    command.env("RUSTDOC", &program);
    let tests = selected(phase, world, &mut command);
    fs::remove_file(&program).with_context(|| program.display().to_string())?;
    let mut cases = at_least_one(phase, world, tests?)?;
    const BOOK: &str = "book";
    cases.push(if process::is_installed(skips::MDBOOK) {
        Case {
            name: BOOK.to_owned(),
            ..single(phase, world, Command::new(skips::MDBOOK).arg("build"))?
        }
    } else {
        Case::skip(BOOK, format!("{} is not installed", skips::MDBOOK))
    });
    Ok(cases)
}

/// The pages of all crates, which cargo checks with all dependencies for that alone.
pub(super) fn with_programs(phase: &Phase, world: &World) -> Result<Vec<Case>> {
    let mut command = cargo();
    command.args(["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    Ok(vec![single(phase, world, &mut command)?])
}

/// Whether cargo runs this program as rustdoc.
pub(crate) fn is_rustdoc(program: &str) -> bool {
    Path::new(program).ends_with(NAME)
}

/// Makes the pages of a crate if it is to be tested, and says in libtest's format whether that gave a warning. Then does what
/// rustdoc does with these arguments.
pub(crate) fn rustdoc(arguments: &[String]) -> Result<ExitCode> {
    let mut is_clean = true;
    if let Some(mut pages) = of_pages(arguments) {
        let place = workspace::target_dir().join("doc");
        pages.extend(["--out-dir".to_owned(), place.display().to_string()]);
        let done = process::run(Command::new(NAME).args(pages), LIMIT)?;
        is_clean = done.ok();
        match is_clean {
            true => println!("test {NAME} ... ok"),
            false => println!(
                "test {NAME} ... FAILED\n---- {NAME} stdout ----\n{}\n{}\nfailures:",
                done.verdict(),
                done.output
            ),
        }
    }
    let tested = Command::new(NAME).args(arguments).status();
    let is_passed = tested.context("rustdoc")?.success();
    Ok(match is_clean && is_passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The arguments of the tests without those that only tests have; `None` if these are no arguments of tests.
fn of_pages(arguments: &[String]) -> Option<Vec<String>> {
    /// They have a value: the next argument.
    const OF_TESTS: [&str; 4] = [
        "--test-args",
        "--test-run-directory",
        "--test-runtool",
        "--test-runtool-arg",
    ];
    if !arguments.iter().any(|argument| argument == "--test") {
        return None;
    }
    let mut pages = vec!["-Dwarnings".to_owned()];
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if OF_TESTS.contains(&argument.as_str()) {
            rest.next();
        } else if argument != "--test" && argument != "--no-run" {
            pages.push(argument.clone());
        }
    }
    Some(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_the_arguments_of_the_tests() {
        let split = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
        let tests = split(
            "--edition=2024 --crate-name a --test a.rs --test-run-directory /a --extern b=c --test-args --ok",
        );
        let pages = split("-Dwarnings --edition=2024 --crate-name a a.rs --extern b=c");
        assert_eq!(of_pages(&tests), Some(pages));
        assert_eq!(of_pages(&split("-vV")), None);
        assert!(is_rustdoc("/a/target/test/rustdoc") && !is_rustdoc("/a/cargo-xtask"));
    }
}
