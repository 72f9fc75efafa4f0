//! `cargo xtask bench cost`: calibrates the cost profile. It measures the slides' cost table on the emulated device
//! with the slides' times, and writes `target/bench/cost.json`.
//!
//! One run uses the slides' times. The own time of program, system and emulator for a step is the time of the step when
//! the device takes no time for it *but the slides' time for all others*. The surrounding waits matter: after a wait of
//! 0.2 ms, sleeping or spinning, the processor's caches have lost most of their contents, and a work request takes 1.5
//! times as long as in a tight loop; after 5 ms, four times as long. Therefore [`GROUPS`] runs precede, each without
//! the time of about every fourth step. All runs repeat [`ROUNDS`] times in rotation, and the best median of each row
//! counts, because other load on the machine can only increase it.
//!
//! A row passes if it agrees within 10 % with the slide's time and the own time, which may overlap. A row whose own
//! time exceeds the slide's is not resolvable: it says nothing about the device and is not judged. The command prints
//! rows that fail, and fails.

use super::cluster;
use crate::process::{Running, shown};
use crate::{setup, workspace};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The slowest step takes 0.1 s and runs twenty times; a loaded machine takes longer.
const LIMIT: Duration = Duration::from_secs(180);
/// Maximum relative deviation of a row.
const TOLERANCE: f64 = 0.1;
/// The emulator's profile with the slides' times.
const PROFILE: &str = "bluefield3";

/// A step of the table: its name there, the profile's name of its time, and the run that omits this time.
type Step = (&'static str, &'static str, usize);

/// Number of repetitions of each run.
const ROUNDS: usize = 3;

/// Number of runs that measure own times.
const GROUPS: usize = 4;

/// The steps of each approach in order; the sequence repeats after the last. Two steps of the same group are never
/// adjacent, nor separated by only a work request, which is too short to evict the caches: the step before a measured
/// one must take its full time.
const STEPS: [(&str, &[Step]); 4] = [
    (
        "umem",
        &[
            ("host_umem_registration", "umem_reg", 1),
            ("host_mkey_creation", "create_mkey_direct", 2),
            ("host_mkey_export", "allow_ksm", 3),
            ("dpu_mkey_registration", "alias_create", 0),
            ("dpu_mkey_deregistration", "alias_destroy", 1),
            ("host_mkey_destroy", "destroy_mkey_direct", 2),
            ("host_umem_deregistration", "umem_dereg", 3),
        ],
    ),
    (
        "indirection",
        &[
            ("host_memory_registration", "reg_mr", 0),
            ("host_mkey_creation", "create_mkey_ksm", 2),
            ("host_mkey_export", "allow_ksm", 3),
            ("dpu_mkey_registration", "alias_create", 0),
            ("dpu_mkey_deregistration", "alias_destroy", 1),
            ("host_mkey_destroy", "destroy_mkey_ksm", 2),
            ("host_memory_deregistration", "dereg_mr", 3),
        ],
    ),
    (
        "umr",
        &[
            ("host_memory_registration", "reg_mr", 0),
            ("host_umr_mkey_creation", "create_mkey_umr", 2),
            ("host_umr_mkey_registration", "umr_bind", 1),
            ("host_umr_mkey_export", "allow_umr", 3),
            ("dpu_mkey_registration", "alias_create", 0),
            ("dpu_mkey_deregistration", "alias_destroy", 1),
            ("host_umr_mkey_invalidation", "umr_invalidate", 2),
            ("host_umr_mkey_destroy", "destroy_mkey_umr", 0),
            ("host_memory_deregistration", "dereg_mr", 3),
        ],
    ),
    (
        "umr_pool_hit",
        &[
            ("host_memory_registration", "reg_mr", 0),
            ("host_umr_mkey_registration", "umr_bind", 1),
            ("host_umr_mkey_invalidation", "umr_invalidate", 2),
            ("host_memory_deregistration", "dereg_mr", 3),
        ],
    ),
];

/// Measures, writes `file` and its csv, txt and svg next to it, and prints the table.
pub(super) fn run(options: &[String], file: &Path) -> Result<ExitCode> {
    let env = setup::ensure()?;
    bench_report::files::prepare(file)?;
    workspace::build(&["-p bf-emu -p bf-emu-preload -p cost-table"])?;
    let program = workspace::built("cost_table");
    let own = file.with_extension("own.json");
    let profile = file.with_extension("profile.toml");
    let part = |run: usize| file.with_extension(format!("{run}.json"));
    let outputs = ["json", "csv", "txt", "svg"].map(|suffix| file.with_extension(suffix));
    for old in outputs.iter().chain([&own]) {
        // A report of an earlier run must not count for this run.
        let _ = fs::remove_file(old);
    }
    let measure = |profile: &Path, extra: &[&Path]| -> Result<String> {
        let device = cluster(1)?.with([OsStr::new("--profile"), profile.as_os_str()]);
        let mut command = device.command("node0.host,node0.dpu", &program);
        command.args(["--host", "mlx5_0", "--dpu", "mlx5_1"]);
        command.args(options).args(extra);
        command.envs(env.for_verbs());
        let done = Running::spawn(&mut command)?.wait(LIMIT)?;
        if !done.ok() {
            bail!("`{}`: {}\n{}", shown(&command), done.verdict(), done.output);
        }
        Ok(done.output)
    };
    let slides = slides_profile()?;
    // Only the last run combines the results of the others.
    let whole = |round: usize| part(GROUPS + round);
    for round in 0..ROUNDS {
        for group in 0..GROUPS {
            let text = without(&slides, group)?;
            fs::write(&profile, text).with_context(|| format!("writing {}", profile.display()))?;
            let output = part(group);
            let options = ["--output", "--best-of"].map(Path::new);
            let extra = [options[0], &output, options[1], &output];
            // The first round has no earlier results to compare with.
            measure(&profile, if round == 0 { &extra[..2] } else { &extra })?;
        }
        if round + 1 < ROUNDS {
            measure(Path::new(PROFILE), &[Path::new("--output"), &whole(round)])?;
        }
    }
    let parts = (0..GROUPS)
        .map(|group| read(&part(group)))
        .collect::<Result<Vec<Value>>>()?;
    let text = format!("{:#}\n", own_times(&parts)?);
    fs::write(&own, text).with_context(|| format!("writing {}", own.display()))?;
    let earlier: Vec<PathBuf> = (0..ROUNDS - 1).map(whole).collect();
    let mut extra: Vec<&Path> = vec![Path::new("--own"), &own];
    for file in &earlier {
        extra.extend([Path::new("--best-of"), file]);
    }
    for output in &outputs {
        extra.extend([Path::new("--output"), output.as_path()]);
    }
    let text = measure(Path::new(PROFILE), &extra)?;
    for done in (0..GROUPS).map(part).chain(earlier).chain([profile]) {
        let _ = fs::remove_file(done);
    }
    print!("{text}");
    let (within, verdict) = verdict(&read(file)?)?;
    println!("\n{verdict}\nwritten: {}", file.display());
    Ok(if within {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn read(report: &Path) -> Result<Value> {
    let shown = || format!("reading {}", report.display());
    let text = fs::read_to_string(report).with_context(shown)?;
    serde_json::from_str(&text).with_context(shown)
}

/// The emulator's built-in profile with the slides' times.
fn slides_profile() -> Result<toml::Table> {
    let file: PathBuf = workspace::root().join(format!("bf-emu/profiles/{PROFILE}.toml"));
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    text.parse()
        .with_context(|| format!("reading {}", file.display()))
}

/// Text of a profile without the times of a group.
fn without(profile: &toml::Table, group: usize) -> Result<String> {
    let mut profile = profile.clone();
    let costs = profile
        .get_mut("cost_ns")
        .and_then(toml::Value::as_table_mut);
    let costs = costs.context("the profile has no costs")?;
    for (_, steps) in STEPS {
        for (_, cost, _) in steps.iter().filter(|(_, _, of)| *of == group) {
            // Several approaches share some costs.
            costs.remove(*cost);
        }
    }
    Ok(profile.to_string())
}

/// A report of own times: each row comes from the run that omitted the row's device time.
fn own_times(parts: &[Value]) -> Result<Value> {
    let rows = |part: &Value| part["rows"].as_array().cloned().unwrap_or_default();
    let mut own = parts.first().context("there was no run")?.clone();
    let mut chosen = Vec::new();
    for (index, row) in rows(&own).iter().enumerate() {
        let name = |key: &str| row[key].as_str().unwrap_or_default();
        let steps = STEPS.iter().find(|(known, _)| *known == name("approach"));
        let step = steps.and_then(|(_, steps)| steps.iter().find(|step| step.0 == name("step")));
        let Some((_, _, group)) = step else {
            bail!(
                "{} of {} is no step of this table",
                name("step"),
                name("approach")
            );
        };
        let found = parts.get(*group).map(rows).unwrap_or_default();
        let found = found.get(index).context("the runs have the same rows")?;
        for key in ["approach", "step", "size"] {
            ensure!(found[key] == row[key], "the runs have the same rows");
        }
        chosen.push(found.clone());
    }
    own["rows"] = json!(chosen);
    Ok(own)
}

/// Whether all resolvable rows pass, and a text that names the others.
fn verdict(report: &Value) -> Result<(bool, String)> {
    let rows = report["rows"]
        .as_array()
        .context("the report has no rows")?;
    let mut off = Vec::new();
    let (mut compared, mut hidden) = (0, 0);
    for row in rows {
        if row["resolvable"] == false {
            hidden += 1;
            continue;
        }
        let Some(ratio) = row["ratio"].as_f64() else {
            continue;
        };
        compared += 1;
        if (ratio - 1.0).abs() > TOLERANCE {
            off.push(format!(
                "\n  {} {} at {} bytes: {ratio:.2}",
                row["approach"].as_str().unwrap_or_default(),
                row["step"].as_str().unwrap_or_default(),
                row["size"],
            ));
        }
    }
    let text = format!(
        "{} of {compared} rows within {:.0} % of the slides and the emulator's own time, {hidden} not resolvable{}{}",
        compared - off.len(),
        TOLERANCE * 100.0,
        if off.is_empty() { "" } else { "; not:" },
        off.concat()
    );
    Ok((off.is_empty(), text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn rows_that_are_off_are_named() {
        let check = |ratios: &[Option<f64>], expect: &str| {
            let rows: Vec<Value> = ratios
                .iter()
                .map(|ratio| json!({"approach": "umr", "step": "s", "size": 16384, "ratio": ratio}))
                .collect();
            let (within, text) = verdict(&json!({ "rows": rows })).unwrap();
            assert!(text.contains(expect), "{text}");
            assert_eq!(within, !text.contains("not:"), "{text}");
        };
        check(&[Some(1.0), Some(1.09), Some(0.91)], "3 of 3 rows");
        check(&[Some(1.0), Some(1.2), Some(0.8), None], "1 of 3 rows");
        check(&[Some(1.25)], "umr s at 16384 bytes: 1.25");
        let hidden = json!({"rows": [{"ratio": 2.0, "resolvable": false}, {"ratio": 1.0, "resolvable": true}]});
        let (within, text) = verdict(&hidden).unwrap();
        assert!(
            within && text.contains("1 of 1 rows") && text.contains("1 not resolvable"),
            "{text}"
        );
        assert!(verdict(&json!({})).is_err());
    }

    #[test]
    fn what_goes_before_a_step_takes_its_time() {
        for (approach, steps) in STEPS {
            for (index, (step, _, group)) in steps.iter().enumerate() {
                let back = |by: usize| steps[(index + steps.len() - by) % steps.len()];
                let mut before = vec![back(1)];
                if back(1).1.starts_with("umr_") {
                    before.push(back(2));
                }
                for (other, _, of) in before {
                    assert_ne!(*group, of, "{approach}: {other} before {step}");
                }
            }
        }
    }

    #[test]
    fn each_time_is_left_out_once() {
        let slides = slides_profile().unwrap();
        let left = |group: usize| {
            let text: toml::Table = without(&slides, group).unwrap().parse().unwrap();
            text["cost_ns"].as_table().unwrap().clone()
        };
        let mut absent: BTreeMap<String, usize> = BTreeMap::new();
        for group in 0..GROUPS {
            let left = left(group);
            for (cost, time) in slides["cost_ns"].as_table().unwrap() {
                let count = absent.entry(cost.clone()).or_default();
                match left.get(cost) {
                    Some(kept) => assert_eq!(kept, time),
                    None => *count += 1,
                }
            }
        }
        assert!(absent.values().all(|count| *count == 1), "{absent:?}");
    }

    #[test]
    fn own_times_come_from_the_runs_without_the_devices() {
        let part = |run: usize| {
            let row = |step: &str| json!({"approach": "umr", "step": step, "size": 1, "measured_ns": run});
            json!({"schema": 2, "rows": [row("host_umr_mkey_registration"), row("dpu_mkey_registration")]})
        };
        let parts: Vec<Value> = (0..GROUPS).map(part).collect();
        let own = own_times(&parts).unwrap();
        let times = [0, 1].map(|index| own["rows"][index]["measured_ns"].as_u64().unwrap());
        assert_eq!(times, [1, 0]);
        let mut short = parts.clone();
        short[1]["rows"] = json!([]);
        assert!(own_times(&short).is_err());
        let mut strange = parts;
        strange[0]["rows"][0]["step"] = json!("s");
        assert!(own_times(&strange).is_err());
    }
}
