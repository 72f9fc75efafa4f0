//! Command lines: the launcher that starts a process on a function, and the command that reads counters.

use crate::demo::{Place, Role, Side};
use anyhow::{Context as _, Result, bail};
use bench_report::counters::Counters;
use std::process::{Command, Stdio};

/// A command line with placeholders: `{scheme}`, `{node}` (0 is side A, 1 is side B) and `{role}` (`host` or
/// `dpu`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    words: Vec<String>,
}

impl Template {
    /// A template of these words, the program first.
    ///
    /// # Errors
    /// No words, or an unknown placeholder.
    pub fn new(words: Vec<String>) -> Result<Self, String> {
        if words.is_empty() {
            return Err("a command line without a program".to_owned());
        }
        for word in &words {
            let blank = word
                .split_once('{')
                .and_then(|(_, rest)| rest.split_once('}'));
            if let Some((name, _)) = blank
                && name.bytes().all(|byte| byte.is_ascii_alphabetic())
                && !["scheme", "node", "role"].contains(&name)
            {
                return Err(format!("unknown blank {{{name}}} in '{word}'"));
            }
        }
        Ok(Self { words })
    }

    fn fill(&self, scheme: &str, place: Place) -> Vec<String> {
        let node = match place.side() {
            Side::A => "0",
            Side::B => "1",
        };
        let role = match place.role() {
            Role::Host => "host",
            Role::Dpu => "dpu",
        };
        let fill = |word: &String| {
            word.replace("{scheme}", scheme)
                .replace("{node}", node)
                .replace("{role}", role)
        };
        self.words.iter().map(fill).collect()
    }

    /// The command for a process.
    pub(super) fn command(&self, scheme: &str, place: Place) -> Command {
        let words = self.fill(scheme, place);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// Runs the command and parses the counters that it prints.
    pub(super) fn read_counters(&self, scheme: &str) -> Result<Counters> {
        let mut command = self.command(scheme, Place::HostA);
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("running {command:?}"))?;
        if !output.status.success() {
            bail!(
                "{command:?}: {}\n{}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        Counters::parse(&output.stdout).with_context(|| format!("reading what {command:?} printed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(words: &[&str]) -> Result<Template, String> {
        Template::new(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn blanks_are_filled() {
        let check = |place, expect: &[&str]| {
            let template = template(&[
                "run",
                "--state",
                "/s p/{scheme}",
                "--as",
                "node{node}.{role}",
            ])
            .expect("well formed");
            assert_eq!(template.fill("ksm", place), expect);
        };
        check(
            Place::HostA,
            &["run", "--state", "/s p/ksm", "--as", "node0.host"],
        );
        check(
            Place::DpuB,
            &["run", "--state", "/s p/ksm", "--as", "node1.dpu"],
        );
    }

    #[test]
    fn a_bad_template_is_refused() {
        assert!(template(&[]).is_err());
        let error = template(&["run", "{place}"]).unwrap_err();
        assert_eq!(error, "unknown blank {place} in '{place}'");
    }

    #[test]
    fn counters_come_from_the_command() {
        let json = r#"{"schema":1,"functions":[]}"#;
        let counters = template(&["printf", "%s", json]).expect("well formed");
        assert_eq!(
            counters.read_counters("x").expect("read"),
            Counters::default()
        );

        let check = |words: &[&str], expect: &str| {
            let error = template(words)
                .expect("well formed")
                .read_counters("x")
                .map(|_| ())
                .unwrap_err();
            assert!(format!("{error:#}").contains(expect), "{error:#}");
        };
        check(&["/nowhere/counters"], "/nowhere/counters");
        check(&["sh", "-c", "echo broken >&2; exit 3"], "broken");
        check(&["true"], "EOF");
    }
}
