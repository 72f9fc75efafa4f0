//! Manual pages and completions of the two programs, generated from the text of `-h`, the only list of options.

use crate::omb::VERSION;
use crate::options::{Program, help};
use clap::{Arg, ArgAction, Command};

/// Column of the option texts in the help.
const TEXT_AT: usize = 28;

/// The command definition for the generators.
#[must_use]
pub fn command(program: Program) -> Command {
    let about = match program {
        Program::Blocking => "OSU's MPI_Alltoallv latency test, with temporary buffers",
        Program::NonBlocking => "OSU's MPI_Ialltoallv overlap test, with temporary buffers",
    };
    let command = Command::new(program.name())
        .version(VERSION)
        .about(about)
        .long_about(format!(
            "{about}.\n\nTo be started by MPI's launcher, as in `mpirun -np 4 {} -m 1024:65536 --temp-buffers mmap`. The \
             options of OSU's micro-benchmarks {VERSION} come first, then those of these programs.",
            program.name()
        ))
        .disable_help_flag(true)
        .disable_version_flag(true);
    // The generators keep references to program names, so these are leaked. The program writes the pages and
    // ends.
    command.args(options(Box::leak(help(program).into_boxed_str())))
}

/// The options in a help text. Each starts a line with its names. Its text, in its own column, may continue
/// below.
fn options(help: &'static str) -> Vec<Arg> {
    let mut entries: Vec<(&'static str, String)> = Vec::new();
    for line in help.lines() {
        let (names, text) = match line.split_at_checked(TEXT_AT) {
            Some((names, text)) => (names.trim(), text),
            // A list of names whose text is on the next line.
            None => (line.trim(), ""),
        };
        // Longer names move their text to the next line.
        let (names, text) = match line.trim_start().starts_with('-') {
            true if !line[..TEXT_AT.min(line.len())].ends_with(' ') => (line.trim(), ""),
            _ => (names, text),
        };
        if names.starts_with('-') {
            entries.push((names, text.to_owned()));
        } else if names.is_empty()
            && let Some((_, before)) = entries.last_mut()
        {
            if !before.is_empty() {
                before.push(' ');
            }
            before.push_str(text);
        }
    }
    let args = entries
        .iter()
        .flat_map(|(names, text)| several(names, text));
    args.collect()
}

/// `-m, --message-size`, or `--json FILE, --csv FILE`: one option by two names, or two.
fn several(names: &'static str, text: &str) -> Vec<Arg> {
    let mut letter = None;
    let mut args = Vec::new();
    for part in names.split(", ") {
        let (name, value) = part.split_once(' ').unwrap_or((part, ""));
        match name.strip_prefix("--") {
            None => letter = name.chars().nth(1),
            Some(long) => {
                let mut arg = Arg::new(long).long(long).help(text.to_owned());
                if let Some(letter) = letter.take() {
                    arg = arg.short(letter);
                }
                args.push(match (value, osu_value(text)) {
                    ("", false) => arg.action(ArgAction::SetTrue),
                    ("", true) => arg.action(ArgAction::Set).value_name("VALUE"),
                    (value, _) => arg.action(ArgAction::Set).value_name(value),
                });
            }
        }
    }
    args
}

/// Whether one of OSU's options has a value: the first word of its text is then in capitals or brackets.
fn osu_value(text: &str) -> bool {
    let word = text.split(' ').next().unwrap_or_default();
    let word = word.trim_end_matches(',');
    let is_value = |c: char| c.is_ascii_uppercase() || "[]:,_|".contains(c);
    word.len() > 1 && word.chars().all(is_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_the_help() {
        for program in [Program::Blocking, Program::NonBlocking] {
            let command = command(program);
            command.clone().debug_assert();
            let text = help(program);
            let told = text.split_whitespace().filter(|word| {
                word.strip_prefix("--")
                    .is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
            });
            let told: std::collections::BTreeSet<&str> =
                told.map(|word| word.trim_end_matches([',', '.'])).collect();
            let known: std::collections::BTreeSet<String> = command
                .get_arguments()
                .filter_map(|arg| Some(format!("--{}", arg.get_long()?)))
                .collect();
            assert_eq!(
                told.into_iter().collect::<Vec<_>>(),
                known.iter().collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn values_and_texts_belong_to_their_options() {
        let command = command(Program::NonBlocking);
        let check = |name: &str, letter: Option<char>, value: bool, text: &str| {
            let arg = command
                .get_arguments()
                .find(|arg| arg.get_long() == Some(name))
                .unwrap();
            assert_eq!(arg.get_short(), letter, "{name}");
            assert_eq!(arg.get_action().takes_values(), value, "{name}");
            let help = arg.get_help().unwrap().to_string();
            assert!(help.contains(text), "{name}: {help}");
        };
        check("message-size", Some('m'), true, "bytes to each rank");
        check("full", Some('f'), false, "more columns");
        check("json", None, true, "write the results");
        check("csv", None, true, "write the results");
        check(
            "offload-limit-s",
            None,
            true,
            "time limits of the connection",
        );
        check("scheme", None, true, "or the same UCX with this project");
        check("time-alloc", None, false, "first touch");
        check("num-test-calls", Some('t'), true, "MPI_Test");
    }
}
