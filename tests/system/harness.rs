//! Runs cases one after the other and reports them in libtest's format, with reasons for skips.

use crate::process;
use crate::world::World;
use anyhow::Result;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Number of cases whose time is printed at the end.
const SLOWEST: usize = 20;

/// One test: name and function. An error is a failure with its text as explanation.
pub(crate) struct Case {
    pub(crate) name: String,
    run: Box<Run>,
}

type Run = dyn Fn(&World) -> Result<Outcome>;

/// Result of a case that did not fail.
pub(crate) enum Outcome {
    Passed,
    Skipped(String),
}

impl Case {
    pub(crate) fn new(
        name: impl Into<String>,
        run: impl Fn(&World) -> Result<()> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            run: Box::new(move |world| run(world).map(|()| Outcome::Passed)),
        }
    }
}

impl Case {
    /// A case that cannot run on all machines. `tests/skips.toml` must contain its reason.
    pub(crate) fn that_may_skip(
        name: impl Into<String>,
        run: impl Fn(&World) -> Result<Outcome> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            run: Box::new(run),
        }
    }
}

/// Runs the cases whose names contain one of the arguments, or all. `--list` prints their names.
pub(crate) fn run(cases: &[Case]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let chosen: Vec<&Case> = cases
        .iter()
        .filter(|case| filters.is_empty() || filters.iter().any(|f| case.name.contains(*f)))
        .collect();
    if arguments.iter().any(|argument| argument == "--list") {
        for case in chosen {
            println!("{}: test", case.name);
        }
        return ExitCode::SUCCESS;
    }

    println!("\nrunning {} tests", chosen.len());
    let world = World::from_env();
    let (mut passed, mut skipped, mut failed) = (0, 0, 0);
    let mut times = Vec::new();
    for case in &chosen {
        let (started, used) = (Instant::now(), used());
        let outcome = match &world {
            Ok(Some(world)) => run_one(case, world),
            Ok(None) => Ok(Outcome::Skipped(
                "run by `cargo xtask test system`".to_owned(),
            )),
            Err(error) => Err(format!("{error:#}")),
        };
        let worked = self::used().saturating_sub(used);
        times.push((started.elapsed(), worked, &case.name));
        match outcome {
            Ok(Outcome::Passed) => {
                passed += 1;
                println!("test {} ... ok", case.name);
            }
            Ok(Outcome::Skipped(reason)) => {
                skipped += 1;
                println!("SKIP {}: {reason}", case.name);
            }
            Err(detail) => {
                failed += 1;
                // Printed at once, so that the reason is visible if a time limit stops this run.
                println!(
                    "test {0} ... FAILED\n---- {0} stdout ----\n{detail}",
                    case.name
                );
            }
        }
    }
    times.sort_unstable_by(|one, other| other.cmp(one));
    println!("\nslowest, and their time of processors:");
    for (time, worked, name) in times.iter().take(SLOWEST) {
        let [time, worked] = [time, worked].map(Duration::as_secs_f64);
        println!("  {time:6.1} s  {worked:6.1} s  {name}");
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {failed} failed; {skipped} skipped");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Time of processors that this process and its ended children have used. What outlives a case counts for a later one.
fn used() -> Duration {
    process::usage(libc::RUSAGE_SELF) + process::usage(libc::RUSAGE_CHILDREN)
}

/// A panic is a failure.
fn run_one(case: &Case, world: &World) -> Result<Outcome, String> {
    match catch_unwind(AssertUnwindSafe(|| (case.run)(world))) {
        Ok(result) => result.map_err(|error| format!("{error:#}")),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            Err(format!("panicked: {}", text.unwrap_or("(no message)")))
        }
    }
}
