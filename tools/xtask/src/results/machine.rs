//! The machine and the commit of the measurements.

use super::LIMIT;
use crate::{process, workspace};
use serde_json::{Map, Value};
use std::fs;
use std::process::Command;

/// The machine. Facts that the system does not provide are absent.
pub(super) fn describe() -> Map<String, Value> {
    let mut facts = Map::new();
    let mut add = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            facts.insert(what.to_owned(), value.into());
        }
    };
    let cores = std::thread::available_parallelism().ok();
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "processor".to_owned());
    add(
        "processor",
        cores.map(|cores| format!("{cpu}, {cores} cores")),
    );
    add("memory", memory());
    let system = field_with("/etc/os-release", "PRETTY_NAME", '=');
    add("system", system.map(|name| name.replace('"', "")));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    add("kernel", kernel.map(|text| text.trim().to_owned()));
    add("compiler", said("rustc", &["--version"]));
    add("load at the end of the run", load());
    facts
}

/// The commit of the tree, with `-dirty` if a file differs from it.
pub(super) fn commit() -> Option<String> {
    said("git", &["describe", "--always", "--dirty", "--abbrev=10"])
}

fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace::root());
    let text = process::stdout(&mut command, LIMIT).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn field(file: &str, name: &str) -> Option<String> {
    field_with(file, name, ':')
}

/// The value of the first line `name SEPARATOR value`.
fn field_with(file: &str, name: &str, separator: char) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(separator)?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn memory() -> Option<String> {
    let kib: u64 = field("/proc/meminfo", "MemTotal")?
        .strip_suffix(" kB")?
        .parse()
        .ok()?;
    Some(format!("{} GiB", kib >> 20))
}

/// Means over 1, 5 and 15 minutes.
fn load() -> Option<String> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let means: Vec<&str> = text.split_whitespace().take(3).collect();
    Some(means.join(", ")).filter(|means| !means.is_empty())
}
