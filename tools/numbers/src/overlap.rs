//! The overlap that the emulator allows: the rank's core executes the emulated adapter's part of each call.

use serde_json::Value;

/// Adds `overlap_allowed_percent` to the rows of offloaded collectives that overlap, and `overlap_of_allowed`, the measured
/// overlap over it. What the emulator does not allow is its own part of a call, in instructions, over the time of the call; a
/// core's rate is the one by which the report of instructions has its times.
pub(crate) fn bound(ucc: &mut Value, overlap: &Value) {
    let Some(emulator_us) = emulator_us(overlap) else {
        return;
    };
    for row in ucc["rows"].as_array_mut().into_iter().flatten() {
        let number = |key: &str| row[key].as_f64();
        let (Some(us), Some(percent)) = (number("us"), number("overlap_percent")) else {
            continue;
        };
        if row["backend"] == "offload" && us > emulator_us {
            let allowed = 100.0 * (1.0 - emulator_us / us);
            row["overlap_allowed_percent"] = allowed.into();
            row["overlap_of_allowed"] = (percent / allowed).into();
        }
    }
}

/// Time of the emulator's instructions of a call.
fn emulator_us(overlap: &Value) -> Option<f64> {
    let rows = overlap["rows"].as_array()?.iter();
    let emulators = rows.filter(|row| row["owner"] == "emulator");
    let instructions: f64 = emulators
        .map(|row| row["instructions"].as_f64())
        .sum::<Option<f64>>()?;
    let us_per_instruction = overlap.pointer("/bounds/0/instructions_us")?.as_f64()?
        / overlap["own_instructions"].as_f64()?;
    Some(instructions * us_per_instruction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_emulators_part_of_a_call_bounds_its_overlap() {
        let overlap = json!({
            "own_instructions": 1000.0, "bounds": [{"instructions_us": 2.0}],
            "rows": [{"owner": "emulator", "instructions": 3000.0}, {"owner": "emulator", "instructions": 2000.0},
                     {"owner": "UCX", "instructions": 1000.0}],
        });
        let row = |backend: &str, us: f64, overlap: Value| json!({"backend": backend, "us": us, "overlap_percent": overlap});
        let mut ucc = json!({"rows": [
            row("offload", 40.0, 60.0.into()), row("ucc", 40.0, 60.0.into()), row("offload", 40.0, Value::Null),
            row("offload", 5.0, 60.0.into()),
        ]});
        bound(&mut ucc, &overlap);
        let rows = &ucc["rows"];
        assert_eq!(rows[0]["overlap_allowed_percent"], 75.0);
        assert_eq!(rows[0]["overlap_of_allowed"], 0.8);
        for other in 1..4 {
            assert!(rows[other]["overlap_of_allowed"].is_null());
        }
        bound(&mut ucc, &json!({}));
    }
}
