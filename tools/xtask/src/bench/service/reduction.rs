//! Rates at which a core sums vectors with the services' own code, and copies memory.

use super::{LIMIT, instructions, measured};
use crate::process;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::process::Command;

/// Types of elements, and their sizes in bytes.
const ELEMENTS: [(&str, f64); 6] = [
    ("f32", 4.0),
    ("f64", 8.0),
    ("f16", 2.0),
    ("bf16", 2.0),
    ("i32", 4.0),
    ("i64", 8.0),
];

/// Vectors of a window, its length, and how often it is reduced: as a service with eight ranks.
const MEMBERS: u32 = 8;
const WINDOW_BYTES: u32 = 256 << 10;
const ROUNDS: u32 = 20;

/// Runs of which the best counts: other programs only take time.
const TRIES: usize = 25;

/// A copy that no cache holds.
const COPY: [&str; 3] = ["copy", "134217728", "4"];

/// The report's rows, and the rate of a copy in GB/s.
pub(super) fn measure(counts_instructions: bool) -> Result<(Value, f64)> {
    let mut rows = Vec::new();
    for (element, size) in ELEMENTS {
        let per_element = if counts_instructions {
            Some(per_byte(element)? * size)
        } else {
            None
        };
        let row = json!({
            "element": element,
            "operation": "sum",
            "gb_per_s": rate(|| program(element, ROUNDS))?,
            "instructions_per_element": per_element,
        });
        println!("{row}");
        rows.push(row);
    }
    let copy = rate(|| {
        let mut command = measured();
        command.args(COPY);
        command
    })?;
    println!("copy: {copy:.1} GB/s");
    Ok((Value::Array(rows), copy))
}

/// Bytes per nanosecond.
fn rate(program: impl Fn() -> Command) -> Result<f64> {
    let mut best = 0.0_f64;
    for _ in 0..TRIES {
        let [bytes, time] = answer(&mut program())?;
        best = best.max(bytes / time);
    }
    Ok(best)
}

/// Instructions per byte that is added to another one: the difference of two runs.
fn per_byte(element: &str) -> Result<f64> {
    let [few, many] = [1, 3].map(|rounds| {
        let count = instructions::of(&mut program(element, rounds), LIMIT)?;
        let [bytes, _] = answer(&mut program(element, rounds))?;
        anyhow::Ok((count, bytes))
    });
    let ((few, first), (many, second)) = (few?, many?);
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^52")]
    Ok(many.saturating_sub(few) as f64 / (second - first))
}

fn answer(program: &mut Command) -> Result<[f64; 2]> {
    let text = process::stdout(program, LIMIT)?;
    let outcome: Value = serde_json::from_str(&text).context("service_cost's answer")?;
    let number = |name: &str| {
        let found = outcome[name].as_f64().filter(|number| *number > 0.0);
        found.with_context(|| format!("service_cost says no {name}"))
    };
    Ok([number("bytes")?, number("time_ns")?])
}

fn program(element: &str, rounds: u32) -> Command {
    let mut command = measured();
    command.args(["reduce", element]);
    command.args([MEMBERS, WINDOW_BYTES, rounds].map(|number| number.to_string()));
    command
}
