//! `tests/suites/skips.toml`: the accepted skips of the suites with their reasons.

use anyhow::{Context, Result, bail, ensure};
use std::path::Path;

/// One accepted skip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) suite: String,
    pub(super) name: String,
    pub(super) reason: String,
    /// The machine lacks a requirement, so the test may pass on another one.
    pub(super) of_machine: bool,
}

/// Reads the file.
pub(super) fn read(path: &Path) -> Result<Vec<Accepted>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Vec<Accepted>> {
    let table: toml::Table = text.parse().context("not TOML")?;
    let mut accepted: Vec<Accepted> = Vec::new();
    for (key, value) in &table {
        let (true, Some(groups)) = (key == "skip", value.as_array()) else {
            bail!("unknown key '{key}'; only [[skip]] tables are known");
        };
        for group in groups {
            let text = |name: &str| {
                let text = group.get(name).and_then(toml::Value::as_str);
                text.map(str::trim)
                    .filter(|text| !text.is_empty())
                    .map(str::to_owned)
                    .with_context(|| format!("a [[skip]] without {name}: {group}"))
            };
            let reason = text("reason")?;
            let suites = match group.get("suite").and_then(toml::Value::as_array) {
                None => vec![text("suite")?],
                Some(suites) => suites
                    .iter()
                    .map(|suite| suite.as_str().map(str::to_owned))
                    .collect::<Option<_>>()
                    .with_context(|| format!("a suite that is no text: {group}"))?,
            };
            let of_machine = match group.get("of_machine") {
                None => false,
                Some(value) => value
                    .as_bool()
                    .with_context(|| format!("of_machine is not true or false: {group}"))?,
            };
            let names = group.get("names").and_then(toml::Value::as_array);
            let names = names.with_context(|| format!("a [[skip]] without names: {group}"))?;
            for (suite, name) in suites
                .iter()
                .flat_map(|suite| names.iter().map(move |name| (suite, name)))
            {
                let name = name.as_str().context("a name that is no text")?.to_owned();
                let twice = accepted
                    .iter()
                    .any(|other| other.suite == *suite && other.name == name);
                ensure!(!twice, "'{name}' is listed twice");
                accepted.push(Accepted {
                    suite: suite.clone(),
                    name,
                    reason: reason.clone(),
                    of_machine,
                });
            }
        }
    }
    Ok(accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_need_their_three_fields() {
        let good = "[[skip]]\nsuite = \"s\"\nreason = \"why\"\nnames = [\"a\", \"b\"]\n";
        let names: Vec<String> = parse(good)
            .unwrap()
            .into_iter()
            .map(|skip| format!("{} {} {}", skip.suite, skip.name, skip.reason))
            .collect();
        assert_eq!(names, ["s a why", "s b why"]);
        for missing in ["suite", "reason", "names"] {
            let lines = good.lines().filter(|line| !line.starts_with(missing));
            let text: Vec<&str> = lines.collect();
            let error = format!("{:#}", parse(&text.join("\n")).unwrap_err());
            assert!(error.contains(missing), "{error}");
        }
        assert!(parse(&format!("{good}{good}")).is_err());
        let of_two = good.replace("\"s\"", "[\"s\", \"t\"]");
        assert_eq!(parse(&of_two).unwrap().len(), 4);
        assert!(parse(&good.replace("\"s\"", "[1]")).is_err());
    }
}
