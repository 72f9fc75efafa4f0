//! Cost of a service process, from the rows of `cargo xtask bench service`.
//!
//! A call costs an amount per block and an amount per message. With few ranks there are few blocks per message, so the
//! cost per block is high. A line through all rows separates both.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// Cost per block and per message, as the line through all rows with the stand-in with the least relative error.
///
/// # Errors
/// The rows determine no line.
pub fn cost(rows: &[Value]) -> Result<Value> {
    let line = |field: &str| -> Option<(f64, f64)> {
        let points: Option<Vec<(f64, f64)>> = rows
            .iter()
            .filter(|row| row["transport"] == "stand-in")
            .map(|row| {
                Some((
                    row["messages_per_block"].as_f64()?,
                    row.pointer(field)?.as_f64()?,
                ))
            })
            .collect();
        fitted(&points?)
    };
    let (us_per_block, us_per_message) =
        line("/us_per_block/ours").context("no line through the rows' times")?;
    let counted = line("/instructions_per_block");
    Ok(json!({
        "us_per_block": us_per_block,
        "us_per_message": us_per_message,
        "instructions_per_block": counted.map(|(block, _)| block),
        "instructions_per_message": counted.map(|(_, message)| message),
    }))
}

/// `a` and `b` of the line `y = a + b x` with the least sum of squared relative errors. `None` if the points determine
/// no line.
fn fitted(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let (mut w, mut wx, mut wxx, mut wy, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (x, y) in points.iter().copied().filter(|(_, y)| *y > 0.0) {
        let weight = 1.0 / (y * y);
        w += weight;
        wx += weight * x;
        wxx += weight * x * x;
        wy += weight * y;
        wxy += weight * x * y;
    }
    let determinant = w * wxx - wx * wx;
    let (a, b) = (
        (wy * wxx - wx * wxy) / determinant,
        (w * wxy - wx * wy) / determinant,
    );
    (a.is_finite() && b.is_finite()).then_some((a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_and_no_line_is_none() {
        let (a, b) = fitted(&[(0.1, 1.2), (0.5, 2.0), (2.0, 5.0)]).expect("a line");
        assert!((a - 1.0).abs() < 1e-9 && (b - 2.0).abs() < 1e-9, "{a} {b}");
        assert_eq!(fitted(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(fitted(&[]), None);
    }
}
