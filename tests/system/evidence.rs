//! What processes do that have not ended in time, for the report of a failed test.

use crate::process;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// Time limit of the debugger for one process. It reads the symbols of some twenty libraries.
const DEBUGGER_LIMIT: Duration = Duration::from_secs(30);

/// Maximum number of frames of a stack.
const FRAMES_MAX: &str = "40";

/// The state of each thread of a process as the kernel describes it, and its stack if gdb is installed. The process is
/// stopped for a fraction of a second.
pub(crate) fn of_process(id: u32) -> String {
    let mut text = String::new();
    let tasks = fs::read_dir(format!("/proc/{id}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |name: &str| {
            let text = fs::read_to_string(task.path().join(name)).unwrap_or_default();
            text.trim_end().to_owned()
        };
        let status = read("status");
        let state = status.lines().find(|line| line.starts_with("State:"));
        text.push_str(&format!(
            "thread {} ({}): {}, in {}, call {}\n",
            task.file_name().display(),
            read("comm"),
            state.unwrap_or("ended").replace('\t', " "),
            read("wchan"),
            read("syscall"),
        ));
    }
    if text.is_empty() {
        return format!("process {id} does not exist\n");
    }
    text + &stacks(id)
}

/// The load of the machine: how long its processes have waited for processors, disk and memory.
pub(crate) fn of_machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut text = format!("load: {}", read("/proc/loadavg"));
    for what in ["cpu", "io", "memory"] {
        let pressure = read(&format!("/proc/pressure/{what}"));
        text.extend(pressure.lines().map(|line| format!("{what}: {line}\n")));
    }
    text
}

fn stacks(id: u32) -> String {
    const DEBUGGER: &str = "gdb";
    if !process::is_installed(DEBUGGER) {
        return "no stacks: gdb is not installed\n".to_owned();
    }
    let mut command = Command::new(DEBUGGER);
    command.args(["-nx", "-batch", "-p", &id.to_string()]);
    command.args(["-ex", &format!("thread apply all backtrace {FRAMES_MAX}")]);
    match process::run(&mut command, DEBUGGER_LIMIT) {
        Ok(done) => {
            let of_stack = |line: &&str| line.starts_with(['#', 'T']);
            let lines: Vec<&str> = done.output.lines().filter(of_stack).collect();
            lines.join("\n") + "\n"
        }
        Err(error) => format!("no stacks: {error:#}\n"),
    }
}
