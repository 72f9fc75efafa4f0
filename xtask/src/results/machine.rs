//! What the numbers were measured on.

use super::LIMIT;
use crate::{process, workspace};
use anyhow::Result;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

/// The machine and the tree, as a list. What cannot be found out is left out.
pub(super) fn describe() -> Result<String> {
    let mut text = String::new();
    let mut line = |what: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "- {what}: {value}");
        }
    };
    let cores = std::thread::available_parallelism().ok();
    let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "processor".to_owned());
    line(
        "processor",
        cores.map(|cores| format!("{cpu}, {cores} cores")),
    );
    line("memory", memory());
    line(
        "system",
        field_with("/etc/os-release", "PRETTY_NAME", '=').map(|name| name.replace('"', "")),
    );
    line(
        "kernel",
        fs::read_to_string("/proc/sys/kernel/osrelease")
            .ok()
            .map(|text| text.trim().to_owned()),
    );
    line("compiler", said("rustc", &["--version"]));
    line("load when this page was made", load());
    line(
        "commit",
        said("git", &["describe", "--always", "--dirty", "--abbrev=10"]),
    );
    Ok(text)
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
