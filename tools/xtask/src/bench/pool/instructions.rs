//! Counts the instructions of a round of the pool's benches with valgrind. Unlike times, they do not depend on the
//! load.

use crate::setup::Env;
use crate::setup::apt;
use crate::{process, workspace};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Rows, and their names in the program `instructions`.
const SUBJECTS: [(&str, &str); 2] = [
    ("lease_release_1t", "lease_release"),
    ("alias_hit_20k", "alias_hit"),
];

/// Rounds of two runs. The difference of the runs excludes the start-up.
const ROUNDS: [u64; 2] = [50_000, 150_000];

/// One run takes seconds; a loaded machine takes longer.
const LIMIT: Duration = Duration::from_secs(120);

/// `{"ours","peer"}` of each row, in instructions per round. Without valgrind it is empty, and a message says so.
pub(crate) fn measure(env: &Env) -> Result<BTreeMap<&'static str, Value>> {
    if !can_count()? {
        println!("instructions not counted: valgrind is not installed (apt-get install valgrind)");
        return Ok(BTreeMap::new());
    }
    SUBJECTS
        .into_iter()
        .map(|(row, subject)| {
            let counted = json!({
                "ours": per_round(env, subject, "ours")?,
                "peer": per_round(env, subject, "peer")?,
            });
            Ok((row, counted))
        })
        .collect()
}

/// True if valgrind is available. Installs it if that is allowed.
pub(crate) fn can_count() -> Result<bool> {
    Ok(runs() || apt::try_install("valgrind")? && runs())
}

fn runs() -> bool {
    let mut command = Command::new("valgrind");
    command.arg("--version").stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Instructions per round of a subject.
pub(crate) fn per_round(env: &Env, subject: &str, whose: &str) -> Result<f64> {
    let [few, many] = ROUNDS;
    let count = |rounds| count(env, subject, whose, rounds);
    let between = count(many)?.saturating_sub(count(few)?);
    // Exact: both are far below 2^52.
    #[expect(clippy::cast_precision_loss, reason = "counts of millions")]
    Ok(between as f64 / (many - few) as f64)
}

/// Instructions of one run.
fn count(env: &Env, subject: &str, whose: &str, rounds: u64) -> Result<u64> {
    let program = workspace::built("pool-instructions");
    let mut command = Command::new(program);
    command.args([subject, whose]).arg(rounds.to_string());
    command.env("XGVMI_UCX_INCLUDE", &env.ucx_include);
    command.envs(env.for_cc());
    of(&mut command, LIMIT)
}

/// Instructions of a program from start to end.
pub(crate) fn of(program: &mut Command, limit: Duration) -> Result<u64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let done = process::run(&mut command, limit)?;
    collected(&done.output)
        .filter(|_| done.ok())
        .with_context(|| {
            format!(
                "`{}`: {}\n{}",
                process::shown(&command),
                done.verdict(),
                done.output
            )
        })
}

/// The number in valgrind's line `==PID== Collected : NUMBER`.
fn collected(output: &str) -> Option<u64> {
    let mut lines = output.lines().filter(|line| line.starts_with("=="));
    let line = lines.find(|line| line.contains("Collected"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_out_of_what_valgrind_says() {
        let check = |output, expect| assert_eq!(collected(output), expect, "{output}");
        check(
            "==7== Events    : Ir\n==7== Collected : 20841856\n",
            Some(20_841_856),
        );
        check("Collected : 5", None);
        check("==7== Collected : many", None);
        check("", None);
    }
}
