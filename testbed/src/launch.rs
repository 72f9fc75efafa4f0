//! Programs on the functions of an emulated cluster, and clients that carry out batches: what the orchestrating part of a
//! demo needs. Emulator and programs are commands that the caller passes; this module knows neither.

use anyhow::{Context as _, Result, anyhow, ensure};
use bench_report::{counters::Counters, parse_size};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A cluster, as commands: a demo's orchestrating program gets them from its caller.
#[derive(Debug)]
pub struct Launcher {
    /// Starts a program in a function; `{function}` stands for its name.
    launch: Vec<String>,
    /// Prints the device's counters.
    counters: Vec<String>,
}

impl Launcher {
    /// From two JSON lists of words: the command that starts a program in a function, in which `{function}` stands for the
    /// function's name, and the one that prints the device's counters.
    ///
    /// # Errors
    /// A text is no such list.
    pub fn parse(launch: &str, counters: &str) -> Result<Self> {
        let words = |text: &str, what| -> Result<Vec<String>> {
            let words: Vec<String> = serde_json::from_str(text).context(what)?;
            ensure!(!words.is_empty(), "{what}: an empty command");
            Ok(words)
        };
        Ok(Self {
            launch: words(launch, "the command that starts a program")?,
            counters: words(counters, "the command that prints counters")?,
        })
    }

    /// A program in a function, started by the words `before` if there are any, such as `taskset -c 0`.
    pub fn command(&self, before: &[&str], function: &str, program: &Path) -> Command {
        let words = self.launch.iter();
        let launch = words.map(|word| word.replace("{function}", function));
        let mut words = before.iter().map(|word| (*word).to_owned()).chain(launch);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg(program);
        command
    }

    /// The device's counters.
    ///
    /// # Errors
    /// The command fails or prints something else.
    pub fn counters(&self) -> Result<Counters> {
        let mut command = Command::new(&self.counters[0]);
        let output = command.args(&self.counters[1..]).output();
        let output = output.context("the device's counters")?;
        ensure!(
            output.status.success(),
            "the device's counters: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(Counters::parse(&output.stdout)?)
    }
}

/// A child with pipes. It is killed when dropped.
#[derive(Debug)]
pub struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Client {
    /// Starts a program.
    ///
    /// # Errors
    /// The system's.
    pub fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let stdout = child.stdout.take().context("a pipe was requested")?;
        Ok(Self {
            stdin: child.stdin.take(),
            child,
            stdout: BufReader::new(stdout),
        })
    }

    /// Starts a program whose first line contains `word`.
    ///
    /// # Errors
    /// The system's, or the first line is another one.
    pub fn saying(command: &mut Command, word: &str) -> Result<Self> {
        let mut running = Self::start(command)?;
        let line = running
            .line()
            .with_context(|| command.get_program().display().to_string())?;
        ensure!(
            line.contains(word),
            "instead of '{word}' the program says: {line}"
        );
        Ok(running)
    }

    /// Its next line.
    ///
    /// # Errors
    /// The program has ended.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line)?;
        ensure!(read > 0, "it has ended: {}", self.child.wait()?);
        Ok(line)
    }

    /// Sends a batch, a line of JSON.
    ///
    /// # Errors
    /// The program has closed its input.
    pub fn send(&mut self, batch: &impl Serialize) -> Result<()> {
        let stdin = self.stdin.as_mut().context("a pipe was requested")?;
        writeln!(stdin, "{}", serde_json::to_string(batch)?)?;
        Ok(stdin.flush()?)
    }

    /// The answer to a batch, a line of JSON.
    ///
    /// # Errors
    /// The program has ended, or says something else.
    pub fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("the client says: {line}"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sizes in a list with commas, such as `4K,1M`.
///
/// # Errors
/// One of them is no size.
pub fn parse_sizes(list: &str) -> Result<Vec<usize>> {
    let sizes = list.split(',').map(parse_size);
    sizes
        .collect::<Result<_, _>>()
        .map_err(|error| anyhow!(error))
}

/// Writes report.json, report.md and report.svg.
///
/// # Errors
/// The system's.
pub fn write_report(
    directory: &Path,
    report: &impl Serialize,
    (markdown, plot): (&str, &str),
) -> Result<()> {
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let json = serde_json::to_string_pretty(report)? + "\n";
    for (name, text) in [
        ("report.json", json.as_str()),
        ("report.md", markdown),
        ("report.svg", plot),
    ] {
        let path = directory.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_in_its_function_behind_the_words_before_it() {
        let launch = r#"["emulator", "--as", "{function}", "--"]"#;
        let launcher = Launcher::parse(launch, r#"["true"]"#).unwrap();
        let words = |before: &[&str]| {
            let command = launcher.command(before, "node0.dpu", Path::new("service"));
            format!("{command:?}")
        };
        let plain = r#""emulator" "--as" "node0.dpu" "--" "service""#;
        assert_eq!(words(&[]), plain);
        assert_eq!(words(&["taskset"]), format!(r#""taskset" {plain}"#));
        for wrong in ["[]", "{}", "emulator"] {
            assert!(Launcher::parse(wrong, r#"["true"]"#).is_err(), "{wrong}");
        }
    }

    #[test]
    fn counters_that_cannot_be_read_are_an_error() {
        let launcher = Launcher::parse(r#"["true"]"#, r#"["false"]"#).unwrap();
        let error = launcher.counters().unwrap_err().to_string();
        assert!(error.contains("counters"), "{error}");
    }

    #[test]
    fn a_child_answers_line_by_line_and_its_end_is_an_error() {
        let mut child = Client::saying(
            Command::new("sh").args(["-c", "echo ready; read line; echo \"$line\""]),
            "ready",
        )
        .unwrap();
        child.send(&[1, 2]).unwrap();
        assert_eq!(child.answer::<Vec<u32>>().unwrap(), [1, 2]);
        let ended = child.line().unwrap_err().to_string();
        assert!(ended.contains("it has ended"), "{ended}");
        let other = Client::saying(Command::new("echo").arg("other"), "ready");
        assert!(other.unwrap_err().to_string().contains("other"));
    }

    #[test]
    fn sizes_of_a_list_are_read() {
        assert_eq!(parse_sizes("4K,1M").unwrap(), [4096, 1 << 20]);
        assert!(parse_sizes("4K,x").is_err());
    }
}
