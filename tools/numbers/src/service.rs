//! Cost of a service process, from the rows of `cargo xtask bench service`.
//!
//! A call costs an amount per block and an amount per message. With few ranks there are few blocks per message, so the
//! cost per block is high. A line through all rows separates both.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// Cost per block and per message, as the line through all rows with the stand-in with the least relative error. The split names
/// the part of a message that grows with what it carries: an item is the blocks of a rank for one service process.
///
/// # Errors
/// The rows determine no line.
pub fn cost(rows: &[Value]) -> Result<Value> {
    let rows = || rows.iter().filter(|row| row["transport"] == "stand-in");
    let line = |field: &str| -> Option<[f64; 2]> {
        let points = rows().map(|row| {
            let messages = row["messages_per_block"].as_f64()?;
            Some(([1.0, messages], row.pointer(field)?.as_f64()?))
        });
        fitted(&points.collect::<Option<Vec<_>>>()?)
    };
    let [us_per_block, us_per_message] =
        line("/us_per_block/ours").context("no line through the rows' times")?;
    let counted = line("/instructions_per_block");
    let points = rows().map(|row| {
        let number = |name: &str| row[name].as_f64();
        let of = [
            1.0,
            number("messages_per_block")?,
            number("items_per_block")?,
        ];
        Some((of, number("instructions_per_block")?))
    });
    let split = points.collect::<Option<Vec<_>>>();
    let split = split.and_then(|points| fitted(&points));
    Ok(json!({
        "us_per_block": us_per_block,
        "us_per_message": us_per_message,
        "instructions_per_block": counted.map(|[block, _]| block),
        "instructions_per_message": counted.map(|[_, message]| message),
        "split": split.map(|[block, message, item]| json!({
            "instructions_per_block": block,
            "instructions_per_message": message,
            "instructions_per_item": item,
        })),
    }))
}

/// The factors of the sums with the least sum of squared relative errors. `None` if the points determine none.
fn fitted<const N: usize>(points: &[([f64; N], f64)]) -> Option<[f64; N]> {
    // The normal equations: factors, and the right side.
    let (mut left, mut right) = ([[0.0; N]; N], [0.0; N]);
    for (of, sum) in points.iter().filter(|(_, sum)| *sum > 0.0) {
        for (row, a) in of.iter().enumerate() {
            right[row] += a / sum;
            for (column, b) in of.iter().enumerate() {
                left[row][column] += a * b / (sum * sum);
            }
        }
    }
    for pivot in 0..N {
        let (of_pivot, sum_of_pivot) = (left[pivot], right[pivot]);
        for (row, (factors, sum)) in left.iter_mut().zip(&mut right).enumerate() {
            if row == pivot {
                continue;
            }
            let times = factors[pivot] / of_pivot[pivot];
            for (factor, of_pivot) in factors.iter_mut().zip(of_pivot) {
                *factor -= times * of_pivot;
            }
            *sum -= times * sum_of_pivot;
        }
    }
    let found: [f64; N] = std::array::from_fn(|at| right[at] / left[at][at]);
    // A system without a solution has a pivot of about 0.
    let is_there = found
        .iter()
        .all(|found| found.is_finite() && found.abs() < 1e12);
    is_there.then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_and_no_line_is_none() {
        let points = [([1.0, 0.1], 1.2), ([1.0, 0.5], 2.0), ([1.0, 2.0], 5.0)];
        let [a, b] = fitted(&points).expect("a line");
        assert!((a - 1.0).abs() < 1e-9 && (b - 2.0).abs() < 1e-9, "{a} {b}");
        assert_eq!(fitted(&[([1.0, 1.0], 1.0), ([1.0, 1.0], 2.0)]), None);
        assert_eq!(fitted::<2>(&[]), None);
    }

    #[test]
    fn a_message_is_split_into_itself_and_what_it_carries() {
        let rows: Vec<Value> = [(4.0, 0.75, 0.5), (16.0, 0.14, 0.125), (64.0, 0.06, 0.125)]
            .map(|(ranks, messages, items)| {
                let instructions = 80.0 + 600.0 * messages + 1300.0 * items;
                json!({
                    "transport": "stand-in", "ranks": ranks, "messages_per_block": messages, "items_per_block": items,
                    "instructions_per_block": instructions, "us_per_block": { "ours": 0.1 + messages },
                })
            })
            .to_vec();
        let split = &cost(&rows).expect("a line")["split"];
        for (name, expect) in [("block", 80.0), ("message", 600.0), ("item", 1300.0)] {
            let found = split[format!("instructions_per_{name}")].as_f64();
            let found = found.expect("a number");
            assert!((found / expect - 1.0).abs() < 1e-6, "{name}: {found}");
        }
        // Rows of earlier reports have no items.
        let mut earlier = rows;
        earlier[0]["items_per_block"] = Value::Null;
        assert!(cost(&earlier).expect("a line")["split"].is_null());
    }
}
