//! The counters of an emulated device, as `bf-emu stats --json` prints them.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;

/// Counters of all functions at one moment.
#[derive(Debug)]
pub struct Stats {
    text: Value,
}

impl Stats {
    /// From the emulator's output.
    ///
    /// # Errors
    /// It is something else.
    pub fn parse(text: &str) -> Result<Self> {
        let parsed: Value = serde_json::from_str(text)
            .with_context(|| format!("bf-emu stats --json printed: {text}"))?;
        ensure!(
            parsed["functions"].is_array(),
            "bf-emu stats --json has no functions: {text}"
        );
        Ok(Self { text: parsed })
    }

    /// Work requests of a kind that the device has executed, in all functions.
    ///
    /// # Errors
    /// The emulator does not count that kind.
    pub fn executed(&self, kind: &str) -> Result<u64> {
        let counts: Vec<u64> = self
            .functions()
            .filter_map(|function| function["wqes"][kind].as_u64())
            .collect();
        ensure!(!counts.is_empty(), "{self} counts no {kind}");
        Ok(counts.iter().sum())
    }

    /// Commands of a kind that one function has executed.
    ///
    /// # Errors
    /// The emulator does not count that kind.
    pub fn commands(&self, function: &str, kind: &str) -> Result<u64> {
        self.function(function)?["commands"][kind]
            .as_u64()
            .with_context(|| format!("{self} has no {kind} of {function}"))
    }

    /// Numbers of all commands that one function has executed, by kind.
    ///
    /// # Errors
    /// The emulator does not count commands.
    pub fn all_commands(&self, function: &str) -> Result<BTreeMap<String, u64>> {
        let commands = self.function(function)?["commands"]
            .as_object()
            .with_context(|| format!("{self} has no commands of {function}"))?;
        let count = |(kind, count): (&String, &Value)| Some((kind.clone(), count.as_u64()?));
        Ok(commands.iter().filter_map(count).collect())
    }

    /// Refusals of one function for a reason.
    ///
    /// # Errors
    /// The emulator does not count refusals.
    pub fn refusals(&self, function: &str, reason: &str) -> Result<u64> {
        let refusals = &self.function(function)?["refusals"];
        ensure!(refusals.is_object(), "{self} has no refusals of {function}");
        // Counters that are zero are absent from the output.
        Ok(refusals[reason].as_u64().unwrap_or(0))
    }

    /// A counter of the first port of a function.
    ///
    /// # Errors
    /// The emulator does not have it.
    pub fn port_counter(&self, function: &str, name: &str) -> Result<u64> {
        self.function(function)?["ports"][0]["counters"][name]
            .as_u64()
            .with_context(|| format!("{self} has no {name} of {function}"))
    }

    /// A counter of the whole device, summed over all functions: `traps`, `doorbells`, `cq_arms`.
    ///
    /// # Errors
    /// A function does not have it.
    pub fn total(&self, name: &str) -> Result<u64> {
        self.functions()
            .map(|function| function[name].as_u64())
            .sum::<Option<u64>>()
            .with_context(|| format!("{self} has no {name}"))
    }

    /// Sum of the counters of a group that `wanted` selects, over all functions.
    ///
    /// # Errors
    /// The emulator has no such group.
    pub fn counted(&self, group: &str, wanted: impl Fn(&str) -> bool) -> Result<u64> {
        let groups: Vec<_> = self
            .functions()
            .filter_map(|function| function[group].as_object())
            .collect();
        ensure!(!groups.is_empty(), "{self} has no {group}");
        let counters = groups.into_iter().flatten();
        Ok(counters
            .filter(|(name, _)| wanted(name))
            .filter_map(|(_, value)| value.as_u64())
            .sum())
    }

    fn functions(&self) -> impl Iterator<Item = &Value> {
        self.text["functions"].as_array().into_iter().flatten()
    }

    fn function(&self, name: &str) -> Result<&Value> {
        self.functions()
            .find(|function| function["name"] == name)
            .with_context(|| format!("{self} has no {name}"))
    }
}

impl std::fmt::Display for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bf-emu stats --json: {}:", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_function_and_summed_over_all() {
        let stats = Stats::parse(
            r#"{"functions":[
                {"name":"node0.host","traps":3,"wqes":{"umr":2},"commands":{"create_mkey":4},
                 "refusals":{"local_length":1},"ports":[{"counters":{"sent":7}}]},
                {"name":"node0.dpu","traps":5,"wqes":{"umr":1},"commands":{},"refusals":{}}]}"#,
        )
        .unwrap();
        assert_eq!(stats.executed("umr").unwrap(), 3);
        assert_eq!(stats.total("traps").unwrap(), 8);
        assert_eq!(stats.commands("node0.host", "create_mkey").unwrap(), 4);
        assert_eq!(stats.all_commands("node0.host").unwrap()["create_mkey"], 4);
        assert_eq!(stats.refusals("node0.host", "local_length").unwrap(), 1);
        assert_eq!(stats.refusals("node0.dpu", "local_length").unwrap(), 0);
        assert_eq!(stats.port_counter("node0.host", "sent").unwrap(), 7);
        assert_eq!(
            stats
                .counted("refusals", |name| name.starts_with("local_"))
                .unwrap(),
            1
        );
        for missing in [
            stats.executed("send").map(drop),
            stats.total("x").map(drop),
            stats.commands("node9.host", "create_mkey").map(drop),
            stats.counted("x", |_| true).map(drop),
        ] {
            assert!(missing.is_err());
        }
        assert!(Stats::parse("{}").is_err());
    }
}
