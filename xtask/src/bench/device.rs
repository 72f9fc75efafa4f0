//! `cargo xtask bench device`: latencies of the emulated device by stock perftest, as `target/bench/device.json`.
//!
//! Two processes on two cores, eight bytes, the doorbell trap. Times are this machine's: they are reported here and
//! asserted nowhere.

use super::{build, build_preload, pool::State};
use crate::process::{Done, Running, shown};
use crate::{setup, workspace};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Twenty thousand round trips take a second; a machine that does other work, more.
const LIMIT: Duration = Duration::from_secs(60);
/// The client retries while the server is on its way to its port.
const TRIES: usize = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);
/// Enough for a typical time that does not depend on the first ones.
const ITERATIONS: &str = "20000";

const PROGRAMS: [&str; 4] = [
    "ib_write_lat",
    "ib_read_lat",
    "ib_send_lat",
    "ib_atomic_lat",
];

/// Measures, writes `file`, and prints the rows.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    if let Some(option) = options.first() {
        bail!("bench device takes no options, not '{option}'");
    }
    let env = setup::ensure()?;
    let place = file.parent().context("the report has a directory")?;
    fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
    let _ = fs::remove_file(file);
    build("bf-emu", "bf-emu")?;
    build_preload()?;
    let mut rows = Vec::new();
    for program in PROGRAMS {
        let typical = measure(&env, program)?;
        println!("{program:<16} {typical:>8.2} us typical");
        rows.push(json!({ "name": program, "bytes": 8, "typical_us": typical }));
    }
    fs::write(
        file,
        format!("{:#}\n", json!({ "schema": 1, "rows": Value::from(rows) })),
    )
    .with_context(|| format!("cannot write {}", file.display()))?;
    println!("\nwritten: {}", file.display());
    Ok(ExitCode::SUCCESS)
}

fn measure(env: &setup::Env, program: &str) -> Result<f64> {
    let state = State::new();
    let port = free_port()?;
    let end = |function: &str| {
        let mut command = Command::new(workspace::target_dir().join("release/bf-emu"));
        command.arg("run").arg("--state").arg(state.path());
        command.args(["--nodes", "2", "--as", function, "--", program]);
        command.args([
            "-F",
            "-d",
            "mlx5_0",
            "-n",
            ITERATIONS,
            "-p",
            &port.to_string(),
        ]);
        if program != "ib_atomic_lat" {
            command.args(["-s", "8"]);
        }
        command.envs(env.for_verbs());
        command
    };
    let server = Running::spawn(&mut end("node0.host"))?;
    let mut client = end("node1.host");
    client.arg("127.0.0.1");
    let mut last = None;
    for _ in 0..TRIES {
        let done = Running::spawn(&mut client)?.wait(LIMIT)?;
        if done.ok() {
            let served = server.wait(LIMIT)?;
            if !served.ok() {
                bail!(
                    "the server of {program}: {}\n{}",
                    served.verdict(),
                    served.output
                );
            }
            return typical(&done.output).with_context(|| {
                format!(
                    "`{}` printed no line of times:\n{}",
                    shown(&client),
                    done.output
                )
            });
        }
        last = Some(done);
        // The server listens within a moment; until then the client is refused.
        std::thread::sleep(BETWEEN_TRIES);
    }
    let last: Option<Done> = last;
    bail!(
        "`{}` failed {TRIES} times, at last: {}",
        shown(&client),
        last.map_or_else(String::new, |done| done.output)
    )
}

/// A port that was free a moment ago, on the loopback interface.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot bind a port")?;
    Ok(listener.local_addr()?.port())
}

/// The typical time of perftest's line of results: bytes, iterations, minimum, maximum, typical, ...
fn typical(output: &str) -> Option<f64> {
    output.lines().find_map(|line| {
        let numbers: Option<Vec<f64>> = line
            .split_whitespace()
            .map(|word| word.parse().ok())
            .collect();
        numbers
            .filter(|numbers| numbers.len() >= 6)
            .map(|numbers| numbers[4])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typical_time_is_read() {
        let output = " #bytes #iterations t_min[usec] t_max[usec] t_typical[usec]\n\
                      Conflicting CPU frequency values detected: 2.0 != 3.0\n\
                       8       20000          5.38           43.44        5.54     5.62 0.81 6.88 18.73\n";
        assert_eq!(typical(output), Some(5.54));
        assert_eq!(typical("no numbers\n1 2 3\n"), None);
    }
}
