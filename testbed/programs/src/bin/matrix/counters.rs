//! The adapter's own counters, read through the given command.

use std::process::Command;

use crate::peer::Launch;

/// Number of executed commands, for all functions together.
pub(crate) fn commands(launch: &Launch) -> Result<i64, String> {
    let counters = read(launch)?;
    let functions = counters["functions"].as_array().ok_or("no functions")?;
    let mut sum = 0;
    for function in functions {
        let commands = function["commands"].as_object().ok_or("no commands")?;
        for (name, count) in commands {
            sum += count
                .as_i64()
                .ok_or_else(|| format!("counter {name} is no number"))?;
        }
    }
    Ok(sum)
}

/// Number of aliases on the adapter, from its own counters.
pub(crate) fn aliases(launch: &Launch) -> Result<i64, String> {
    let created = counted(launch, "/commands/create_alias")?;
    Ok(created - counted(launch, "/commands/destroy_alias")?)
}

/// One of the adapter's counters, of all its functions together.
pub(crate) fn counted(launch: &Launch, pointer: &str) -> Result<i64, String> {
    let counters = read(launch)?;
    let functions = counters["functions"].as_array().ok_or("no functions")?;
    let counts = functions
        .iter()
        .map(|function| function.pointer(pointer)?.as_i64());
    let sum = counts.sum::<Option<i64>>();
    sum.ok_or_else(|| format!("no counter {pointer}"))
}

fn read(launch: &Launch) -> Result<serde_json::Value, String> {
    let found = launch.failing.iter().find(|(has, _)| has == "counters");
    let (_, command) = found.ok_or("no counters")?;
    let (program, words) = command.split_first().ok_or("no command for the counters")?;
    let output = Command::new(program)
        .args(words)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{program}: {error}"))
}
