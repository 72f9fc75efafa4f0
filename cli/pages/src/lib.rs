//! Manual pages, shell completions and tables of options from a command's own definition. `COMMAND --generate DIR` writes
//! them. The option is for packagers and does not appear in the command's help.
//!
//! ```
//! use clap::Command;
//!
//! let command = Command::new("hello").about("Prints a greeting");
//! let dir = std::env::temp_dir().join(format!("cli-pages-{}", std::process::id()));
//! cli_pages::generate(&command, &dir)?;
//! assert!(dir.join("man/hello.1").exists());
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

const WORD: &str = "--generate";

/// Writes the pages if the program's arguments request them, and returns the exit code in that
/// case.
#[must_use]
pub fn asked<C: CommandFactory>() -> Option<ExitCode> {
    asked_of(C::command)
}

/// Like [`asked`], for a command with another kind of definition.
#[must_use]
pub fn asked_of(command: impl Fn() -> Command) -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != WORD {
        return None;
    }
    Some(
        match one(words).and_then(|dir| generate(&command(), Path::new(&dir))) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // If stderr is closed, the error cannot be reported.
                let _ = writeln!(io::stderr(), "error: {WORD}: {error}");
                ExitCode::FAILURE
            }
        },
    )
}

fn one(mut words: impl Iterator<Item = OsString>) -> io::Result<OsString> {
    match (words.next(), words.next()) {
        (Some(dir), None) => Ok(dir),
        _ => Err(io::Error::other("it needs a directory, and nothing else")),
    }
}

/// Writes `man/NAME.1` and a page for each subcommand, `options/NAME.md`, `bash/NAME`, `zsh/_NAME` and `fish/NAME.fish`
/// below `dir`.
///
/// # Errors
/// A directory or file that cannot be created.
pub fn generate(command: &Command, dir: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    let man = dir.join("man");
    fs::create_dir_all(&man)?;
    clap_mangen::generate_to(command.clone(), &man)?;
    let options = dir.join("options");
    fs::create_dir_all(&options)?;
    fs::write(options.join(format!("{name}.md")), tables(command))?;
    for (shell, place) in [
        (Shell::Bash, "bash"),
        (Shell::Zsh, "zsh"),
        (Shell::Fish, "fish"),
    ] {
        let place = dir.join(place);
        fs::create_dir_all(&place)?;
        let made = clap_complete::generate_to(shell, &mut command.clone(), &name, &place)?;
        if shell == Shell::Bash {
            // bash loads completions on demand from a file with the command's name.
            fs::rename(made, place.join(&name))?;
        }
    }
    Ok(())
}

/// The options of a command and of its subcommands as tables of a document.
#[must_use]
pub fn tables(command: &Command) -> String {
    let mut text = format!(
        "`{}`\n\n| Option | Default | Meaning |\n|---|---|---|\n",
        command.get_name()
    );
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let values: Vec<String> = arg
            .get_value_names()
            .filter(|_| arg.get_action().takes_values())
            .into_iter()
            .flatten()
            .map(|name| format!(" {name}"))
            .collect();
        let name = arg.get_long().map(|long| format!("--{long}"));
        let defaults: Vec<_> = arg
            .get_default_values()
            .iter()
            .map(|d| d.to_string_lossy())
            .collect();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        // Without a name it is a word of the command line.
        let option = name.unwrap_or_default() + &values.concat();
        text += &format!(
            "| `{}` | {} | {} |\n",
            option.trim(),
            defaults.join(" "),
            help.replace('|', "\\|")
        );
    }
    let below = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    below.for_each(|command| text += &format!("\n{}", tables(command)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries things
    #[derive(Debug, clap::Parser)]
    #[command(name = "trial", version)]
    struct Trial {
        #[command(subcommand)]
        job: Job,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Job {
        /// Look closely
        Look {
            /// How closely
            #[arg(long, default_value = "3")]
            depth: u32,
            /// Where
            place: Option<String>,
            /// Given by a launcher
            #[arg(long, hide = true)]
            index: Option<u32>,
        },
    }

    #[test]
    fn all_pages_are_written_and_the_same_each_time() {
        let (once, again) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        generate(&Trial::command(), once.path()).unwrap();
        generate(&Trial::command(), again.path()).unwrap();
        for (file, part) in [
            ("man/trial.1", "Tries things"),
            ("man/trial-look.1", "How closely"),
            (
                "options/trial.md",
                "`look`\n\n| Option | Default | Meaning |\n|---|---|---|\n| `--depth DEPTH` | 3 | How closely |\n\
                 | `PLACE` |  | Where |\n",
            ),
            ("bash/trial", "complete -F _trial"),
            ("zsh/_trial", "#compdef trial"),
            ("fish/trial.fish", "complete -c trial"),
        ] {
            let text = fs::read_to_string(once.path().join(file)).unwrap();
            assert!(text.contains(part), "{file}: {text}");
            assert_eq!(text, fs::read_to_string(again.path().join(file)).unwrap());
        }
    }

    #[test]
    fn one_directory_is_wanted() {
        let words = |words: &[&str]| one(words.iter().map(OsString::from));
        assert_eq!(words(&["d"]).unwrap(), "d");
        assert!(words(&[]).is_err());
        assert!(words(&["d", "e"]).is_err());
    }
}
