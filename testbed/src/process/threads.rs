//! The threads of a process group that has not ended in time: whether they sleep, run, or wait for a processor, and where.

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{is_installed, run};

/// Threads that are shown.
const THREADS_MAX: usize = 64;
/// Lines of the stacks of a process.
const LINES_MAX: usize = 400;
/// Bound of the debugger. Shorter than [`super::SHOWS_THREADS`]: its own threads are not shown.
const PATIENCE: Duration = Duration::from_secs(9);

/// A line for each thread of a group, and their stacks if `gdb` is installed.
#[must_use]
pub(super) fn of_group(group: i32) -> String {
    let mut text = String::new();
    let mut shown = 0;
    for process in processes(group) {
        for thread in numbers(&format!("/proc/{process}/task")) {
            shown += 1;
            if shown <= THREADS_MAX {
                let _ = writeln!(text, "{}", line(process, thread));
            }
        }
        text.push_str(&stacks(process));
    }
    text
}

fn numbers(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(number).collect()
}

/// The processes of a group.
fn processes(group: i32) -> impl Iterator<Item = u32> {
    let is_of = move |process: &u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // State, parent and group follow the name, which is in brackets.
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        rest.split(' ').nth(2) == Some(&group.to_string())
    };
    numbers("/proc").into_iter().filter(is_of)
}

fn line(process: u32, thread: u32) -> String {
    let file = |name: &str| {
        let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/{name}"));
        text.unwrap_or_default().trim_end().to_owned()
    };
    let stat = file("stat");
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    // `Documentation/scheduler/sched-stats.rst`: times in nanoseconds on a processor, and waiting for one.
    let times = file("schedstat");
    let mut times = times
        .split(' ')
        .map(|ns| ns.parse().unwrap_or(0_u64) / 1_000_000);
    let (ran, waited) = (times.next().unwrap_or(0), times.next().unwrap_or(0));
    format!(
        "{} {process}/{thread} {}: ran {ran} ms, waited {waited} ms for a processor; {} {}",
        file("comm"),
        state.unwrap_or('?'),
        file("wchan"),
        file("syscall")
            .split(' ')
            .take(3)
            .collect::<Vec<_>>()
            .join(" "),
    )
}

fn stacks(process: u32) -> String {
    if !is_installed("gdb") {
        return String::new();
    }
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-p", &process.to_string()]);
    command
        .args(["-ex", "thread apply all backtrace 20"])
        .stderr(Stdio::null());
    let said = run(&mut command, PATIENCE).map(|done| done.output);
    let said = said.unwrap_or_default();
    let is_wanted = |line: &&str| line.starts_with('#') || line.starts_with("Thread ");
    let lines = said.lines().filter(is_wanted).take(LINES_MAX);
    lines.fold(String::new(), |text, line| text + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Running, wait_until};

    #[test]
    fn each_thread_of_a_group_is_shown() {
        let patience = Duration::from_secs(60);
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & sleep 601; true"]);
        let running = Running::spawn(&mut command).unwrap();
        let mut shown = String::new();
        let all = wait_until(patience, || {
            shown = of_group(running.group.id());
            shown
                .lines()
                .filter(|line| line.starts_with("sleep "))
                .count()
                == 2
        });
        assert!(all && shown.contains(" ms for a processor; "), "{shown}");
        assert!(shown.lines().any(|line| line.starts_with("sh ")), "{shown}");
    }
}
