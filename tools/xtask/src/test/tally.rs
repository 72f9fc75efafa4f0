//! Results of the phases, the verdict on skips, and the summary line.

use super::skips::Accepted;
use std::time::Duration;

/// Result of one test or check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pass,
    /// Contains details for the diagnosis.
    Fail(String),
    /// Contains the reason.
    Skip(String),
}

impl Case {
    pub(crate) fn pass(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            outcome: Outcome::Pass,
        }
    }

    pub(crate) fn fail(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            outcome: Outcome::Fail(detail.into()),
        }
    }

    pub(crate) fn skip(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            outcome: Outcome::Skip(reason.into()),
        }
    }

    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.outcome, Outcome::Fail(_))
    }
}

/// All cases so far, each with its phase.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    cases: Vec<(String, Case)>,
}

impl Tally {
    /// Adds a phase's cases and prints its line, with its time and its processor time.
    pub(crate) fn add(&mut self, phase: &str, [took, used]: [Duration; 2], cases: Vec<Case>) {
        let failed = cases.iter().filter(|case| case.is_failure()).count();
        let skipped = cases
            .iter()
            .filter(|case| matches!(case.outcome, Outcome::Skip(_)))
            .count();
        let passed = cases.len() - failed - skipped;
        let verdict = if failed == 0 { "ok" } else { "FAILED" };
        println!(
            "{phase:<8} {verdict:<7} {passed:>4} passed {failed:>3} failed {skipped:>3} skipped {:>7.1} s {:>7.1} s of processors",
            took.as_secs_f64(),
            used.as_secs_f64()
        );
        self.cases
            .extend(cases.into_iter().map(|case| (phase.to_owned(), case)));
    }

    /// Fails for each unaccepted skip, and for each accepted skip that did not occur.
    pub(crate) fn judge_skips(&mut self, accepted: &[Accepted], phases: &[&str]) {
        let mut verdicts = Vec::new();
        for (phase, case) in &self.cases {
            let Outcome::Skip(reason) = &case.outcome else {
                continue;
            };
            if !accepted
                .iter()
                .any(|a| a.phase == *phase && a.name == case.name)
            {
                let detail = format!(
                    "skipped, and tests/skips.toml does not accept that: {reason}\n\
                     mend it, or add it there with the reason"
                );
                verdicts.push((
                    phase.clone(),
                    Case::fail(format!("skip of {}", case.name), detail),
                ));
            }
        }
        for entry in accepted
            .iter()
            .filter(|entry| phases.contains(&entry.phase.as_str()))
        {
            let skipped = self.cases.iter().any(|(phase, case)| {
                *phase == entry.phase
                    && case.name == entry.name
                    && matches!(case.outcome, Outcome::Skip(_))
            });
            if !skipped {
                let detail =
                    "tests/skips.toml lists it, but it was not skipped: take it off the list";
                verdicts.push((
                    entry.phase.clone(),
                    Case::fail(format!("skip of {}", entry.name), detail),
                ));
            }
        }
        self.cases.extend(verdicts);
    }

    /// Prints failures and skips in full, then the summary line.
    pub(crate) fn print(&self) {
        let of = |wanted: fn(&Outcome) -> Option<&str>| {
            self.cases.iter().filter_map(move |(phase, case)| {
                wanted(&case.outcome).map(|text| (phase, &case.name, text))
            })
        };
        let failures = of(|outcome| match outcome {
            Outcome::Fail(detail) => Some(detail.as_str()),
            _ => None,
        });
        for (phase, name, detail) in failures {
            println!("\nFAILED {phase}: {name}");
            for line in detail.trim_end().lines() {
                println!("    {line}");
            }
        }
        let skips = of(|outcome| match outcome {
            Outcome::Skip(reason) => Some(reason.as_str()),
            _ => None,
        });
        for (at, (phase, name, reason)) in skips.enumerate() {
            if at == 0 {
                println!();
            }
            println!("SKIPPED {phase}: {name}: {reason}");
        }
        println!("{}", self.last_line());
    }

    /// Whether no case has failed.
    pub(crate) fn clean(&self) -> bool {
        !self.cases.iter().any(|(_, case)| case.is_failure())
    }

    fn last_line(&self) -> String {
        let count = |wanted: fn(&Outcome) -> bool| {
            self.cases
                .iter()
                .filter(|(_, case)| wanted(&case.outcome))
                .count()
        };
        format!(
            "{} passed, {} failed, {} skipped",
            count(|o| *o == Outcome::Pass),
            count(|o| matches!(o, Outcome::Fail(_))),
            count(|o| matches!(o, Outcome::Skip(_)))
        )
    }
}

/// The last `count` lines.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(cases: &[Case], accepted: &[(&str, &str)], expect: &str) {
        let mut tally = Tally::default();
        tally.add("system", [Duration::ZERO; 2], cases.to_vec());
        let accepted: Vec<Accepted> = accepted
            .iter()
            .map(|(phase, name)| Accepted {
                phase: (*phase).to_owned(),
                name: (*name).to_owned(),
                unless: None,
            })
            .collect();
        tally.judge_skips(&accepted, &["system"]);
        assert_eq!(tally.last_line(), expect);
        assert_eq!(tally.clean(), expect.contains(" 0 failed,"));
    }

    #[test]
    fn skips_must_be_accepted_and_must_happen() {
        let pass = [Case::pass("a")];
        let both = [Case::pass("a"), Case::skip("b", "no such device")];
        check(&pass, &[], "1 passed, 0 failed, 0 skipped");
        check(&both, &[("system", "b")], "1 passed, 0 failed, 1 skipped");
        check(&both, &[], "1 passed, 1 failed, 1 skipped");
        check(&pass, &[("system", "a")], "1 passed, 1 failed, 0 skipped");
        check(
            &pass,
            &[("system", "gone")],
            "1 passed, 1 failed, 0 skipped",
        );
        check(
            &pass,
            &[("unit", "not run now")],
            "1 passed, 0 failed, 0 skipped",
        );
        check(
            &[Case::fail("a", "why")],
            &[],
            "0 passed, 1 failed, 0 skipped",
        );
    }

    #[test]
    fn a_tail_is_the_end() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
