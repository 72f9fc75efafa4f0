//! `xgvmi stat`: the counters of the processes that use the library, once or periodically, as text,
//! as JSON, or in Prometheus' format.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::counter_file::{self, Domain, Process};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Repeat the output every given number of seconds, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
    /// Print JSON, one line per output
    #[arg(long, conflicts_with = "prom")]
    json: bool,
    /// Print Prometheus' text format
    #[arg(long)]
    prom: bool,
    /// Print this process only. Exit with 1 if it does not exist
    #[arg(long)]
    pid: Option<u64>,
    /// Directory with the processes' files [default: /dev/shm/xgvmi-UID]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the counters. Returns false if the requested process does not exist or a file cannot be
/// read.
pub(crate) fn run(arguments: &Arguments) -> bool {
    let dir = arguments
        .dir
        .clone()
        .unwrap_or_else(counter_file::default_dir);
    loop {
        let (mut processes, errors) = counter_file::processes(&dir);
        if let Some(pid) = arguments.pid {
            processes.retain(|process| process.pid == pid);
        }
        for error in &errors {
            eprintln!("xgvmi: {error}");
        }
        let text = match (arguments.json, arguments.prom) {
            (true, _) => json(&processes),
            (_, true) => prometheus(&processes),
            _ => table(&processes),
        };
        if arguments.watch.is_some() && std::io::stdout().is_terminal() {
            // Move the cursor to the top and clear the screen below.
            print!("\x1b[H\x1b[2J");
        }
        print!("{text}");
        // If the reader has closed the pipe, the error cannot be reported.
        let _flushed = std::io::stdout().flush();
        let Some(seconds) = arguments.watch else {
            let is_missing = arguments.pid.is_some() && processes.is_empty();
            if is_missing {
                eprintln!("xgvmi: this process is not there, or does not use the library");
            }
            return errors.is_empty() && !is_missing;
        };
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

fn table(processes: &[Process]) -> String {
    if processes.is_empty() {
        return "no process uses the library\n".to_owned();
    }
    let mut text = String::new();
    for process in processes {
        let command = command_of(process.pid);
        let _ = writeln!(text, "process {} {command}", process.pid);
        for domain in &process.domains {
            let _ = writeln!(text, "  function {:#x}", number(domain, "gvmi"));
            let shown = domain.iter().filter(|(name, _)| !is_about(name));
            for (name, value) in shown.filter(|(_, value)| *value != 0) {
                let _ = writeln!(text, "    {name:<28}{value:>14}");
            }
        }
        if process.unlisted > 0 {
            let _ = writeln!(text, "  and {} more memory domains", process.unlisted);
        }
    }
    text
}

fn json(processes: &[Process]) -> String {
    let domain = |domain: &Domain| {
        let numbers = domain
            .iter()
            .map(|(name, value)| (name.clone(), json!(value)));
        Value::Object(numbers.collect::<Map<_, _>>())
    };
    let processes: Vec<Value> = processes
        .iter()
        .map(|process| {
            json!({
                "pid": process.pid,
                "command": command_of(process.pid),
                "version": process.version,
                "unlisted_domains": process.unlisted,
                "domains": process.domains.iter().map(domain).collect::<Vec<_>>(),
            })
        })
        .collect();
    format!("{}\n", json!({ "processes": processes }))
}

/// Prometheus requires all samples of a metric to be contiguous.
fn prometheus(processes: &[Process]) -> String {
    let domains = || {
        let of = |process: &'_ Process| {
            let pid = process.pid;
            let numbered = process.domains.clone().into_iter().enumerate();
            numbered.map(move |(at, domain)| (pid, at, domain))
        };
        processes.iter().flat_map(of)
    };
    let mut names: Vec<String> = Vec::new();
    for (name, _) in domains().flat_map(|(_, _, domain)| domain) {
        if !is_about(&name) && !names.contains(&name) {
            names.push(name);
        }
    }
    let mut text = String::new();
    for name in names {
        let (kind, suffix) = match is_level(&name) {
            true => ("gauge", ""),
            false => ("counter", "_total"),
        };
        let _ = writeln!(text, "# TYPE xgvmi_{name}{suffix} {kind}");
        for (pid, at, domain) in domains() {
            let (gvmi, value) = (number(&domain, "gvmi"), number(&domain, &name));
            let labels = format!("pid=\"{pid}\",domain=\"{at}\",gvmi=\"{gvmi}\"");
            let _ = writeln!(text, "xgvmi_{name}{suffix}{{{labels}}} {value}");
        }
    }
    text
}

/// Fields that describe the counters and are not counters themselves.
fn is_about(name: &str) -> bool {
    ["gvmi", "renewed_ns"].contains(&name)
}

/// Fields that can also decrease (gauges).
fn is_level(name: &str) -> bool {
    const LEVELS: [&str; 6] = [
        "pool_in_use",
        "pool_in_use_max",
        "pool_pending",
        "pool_keys",
        "pool_cap",
        "alias_aliases",
    ];
    LEVELS.contains(&name)
}

fn number(domain: &Domain, name: &str) -> u64 {
    let found = domain.iter().find(|(found, _)| found == name);
    found.map_or(0, |(_, value)| *value)
}

/// The program's name. Empty if the process has just ended or runs in another container.
fn command_of(pid: u64) -> String {
    let path = format!("/proc/{pid}/comm");
    let command = std::fs::read_to_string(path).unwrap_or_default();
    command.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes() -> Vec<Process> {
        let number = |name: &str, value| (name.to_owned(), value);
        let domain = |gvmi, exports| {
            vec![
                number("gvmi", gvmi),
                number("renewed_ns", 99),
                number("exports", exports),
                number("pool_keys", 4),
                number("pool_misses", 0),
            ]
        };
        vec![Process {
            // Larger than any process number.
            pid: 1 << 40,
            version: "0.1.0".to_owned(),
            unlisted: 0,
            domains: vec![domain(7, 12), domain(8, 0)],
        }]
    }

    #[test]
    fn the_table_shows_what_is_not_zero() {
        let text = table(&processes());
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let expect: [&[&str]; 6] = [
            &["process", "1099511627776"],
            &["function", "0x7"],
            &["exports", "12"],
            &["pool_keys", "4"],
            &["function", "0x8"],
            &["pool_keys", "4"],
        ];
        assert_eq!(lines, expect);
        assert_eq!(table(&[]), "no process uses the library\n");
    }

    #[test]
    fn json_has_every_number() {
        let value: Value = serde_json::from_str(&json(&processes())).expect("JSON");
        let process = &value["processes"][0];
        assert_eq!(process["domains"][0]["exports"], 12);
        assert_eq!(process["domains"][1]["pool_misses"], 0);
        assert_eq!(process["version"], "0.1.0");
    }

    #[test]
    fn prometheus_gets_each_name_once() {
        let text = prometheus(&processes());
        let expect = "\
# TYPE xgvmi_exports_total counter
xgvmi_exports_total{pid=\"1099511627776\",domain=\"0\",gvmi=\"7\"} 12
xgvmi_exports_total{pid=\"1099511627776\",domain=\"1\",gvmi=\"8\"} 0
# TYPE xgvmi_pool_keys gauge
";
        assert!(text.starts_with(expect), "{text}");
        assert_eq!(text.matches("# TYPE").count(), 3);
        assert_eq!(prometheus(&[]), "");
    }
}
