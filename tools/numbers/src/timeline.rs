//! README's picture: the time line of one transfer, with a key per buffer and with pooled keys.
//!
//! The demo's report contains the time of an iteration, and the cost report the time of each key step. The rest of the
//! iteration is messages, the RDMA READ and the processes' own work.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fmt::Write as _;

/// The buffer size of the picture. Both reports contain it.
const SIZE: u64 = 1 << 20;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 924.0;
const LANE: f64 = 40.0;

/// The active party of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lane {
    Host,
    Dpu,
    Both,
}

/// One step: its lane, its label, and its row in the cost report. The rest of the iteration has no row.
type Step = (Lane, &'static str, Option<&'static str>);

/// One scheme of the demo.
struct Scheme {
    title: &'static str,
    /// Scheme in the demo's report.
    name: &'static str,
    /// Approach in the cost report.
    approach: &'static str,
    steps: &'static [Step],
}

const SCHEMES: [Scheme; 2] = [
    Scheme {
        title: "A key per buffer (stock UCX, per-buffer)",
        name: "ksm",
        approach: "indirection",
        steps: &[
            (Lane::Host, "register", Some("host_memory_registration")),
            (Lane::Host, "create key", Some("host_mkey_creation")),
            (Lane::Host, "allow", Some("host_mkey_export")),
            (Lane::Dpu, "create alias", Some("dpu_mkey_registration")),
            (Lane::Both, REST, None),
            (Lane::Dpu, "destroy alias", Some("dpu_mkey_deregistration")),
            (Lane::Host, "destroy key", Some("host_mkey_destroy")),
            (Lane::Host, "deregister", Some("host_memory_deregistration")),
        ],
    },
    Scheme {
        title: "Pooled keys (xgvmi-pool)",
        name: "xgvmi",
        approach: "umr_pool_hit",
        steps: &[
            (Lane::Host, "register", Some("host_memory_registration")),
            (Lane::Host, "bind", Some("host_umr_mkey_registration")),
            (Lane::Both, REST, None),
            (Lane::Host, "invalidate", Some("host_umr_mkey_invalidation")),
            (Lane::Host, "deregister", Some("host_memory_deregistration")),
        ],
    },
];

const REST: &str = "messages, RDMA READ";

/// The picture as SVG. A missing row of a report is an error.
pub fn draw(cost: &Value, demo: &Value) -> Result<String> {
    let lines: Vec<(f64, Vec<f64>)> = SCHEMES
        .iter()
        .map(|scheme| times(scheme, cost, demo))
        .collect::<Result<_>>()?;
    let longest = lines.iter().map(|(total, _)| *total).fold(0.0, f64::max);
    let scale = (RIGHT - LEFT) / longest;
    let mut svg = String::from(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 940 372" font-family="Helvetica, Arial, sans-serif" font-size="12" role="img">
<title>One transfer of 1 MiB as a time line: a key per buffer against pooled keys</title>
<rect width="940" height="372" fill="#fff"/>
"##,
    );
    for ((scheme, (total, steps)), top) in SCHEMES.iter().zip(&lines).zip([16.0, 184.0]) {
        draw_scheme(&mut svg, scheme, *total, steps, scale, top)?;
    }
    writeln!(
        svg,
        r##"<text x="16" y="346" fill="#555">1 MiB from host to host through two DPUs on the emulated device, profile bluefield3: median iteration of the demo,</text>
<text x="16" y="362" fill="#555">key steps from the cost report. Both nodes execute the key steps in parallel, so each step appears once.</text>
</svg>"##
    )?;
    Ok(svg)
}

/// Time of an iteration and of each of its steps, in us.
fn times(scheme: &Scheme, cost: &Value, demo: &Value) -> Result<(f64, Vec<f64>)> {
    let total = row(demo, &[("scheme", scheme.name)])
        .and_then(|row| row.pointer("/steady_us/p50"))
        .and_then(Value::as_f64)
        .with_context(|| format!("the demo's report has no p50 of {} at {SIZE}", scheme.name))?;
    let mut steps = Vec::new();
    for (_, _, name) in scheme.steps {
        let time = match name {
            None => None,
            Some(name) => {
                let ns = row(cost, &[("approach", scheme.approach), ("step", name)])
                    .and_then(|row| row["measured_ns"].as_f64());
                let ns = ns.with_context(|| {
                    format!(
                        "the cost report has no {}, {name} at {SIZE}",
                        scheme.approach
                    )
                })?;
                Some(ns / 1e3)
            }
        };
        steps.push(time);
    }
    let rest = total - steps.iter().flatten().sum::<f64>();
    ensure!(
        rest > 0.0,
        "the key steps of {} take longer than its iteration: the two reports are of different machines",
        scheme.name
    );
    let steps = steps.into_iter().map(|time| time.unwrap_or(rest));
    Ok((total, steps.collect()))
}

/// The row of [`SIZE`] with these values.
fn row<'a>(report: &'a Value, wanted: &[(&str, &str)]) -> Option<&'a Value> {
    report["rows"].as_array()?.iter().find(|row| {
        row["size"].as_u64() == Some(SIZE) && wanted.iter().all(|(key, value)| row[key] == *value)
    })
}

fn draw_scheme(
    svg: &mut String,
    scheme: &Scheme,
    total: f64,
    steps: &[f64],
    scale: f64,
    top: f64,
) -> Result<()> {
    let (host, dpu) = (top + 36.0, top + 36.0 + LANE + 4.0);
    let bottom = dpu + LANE;
    writeln!(
        svg,
        r##"<text x="16" y="{}" font-size="15" font-weight="bold" fill="#111">{}: {total:.0} us</text>
<text x="16" y="{}" fill="#333">host</text><text x="16" y="{}" fill="#333">DPU</text>"##,
        top + 4.0,
        scheme.title,
        host + 25.0,
        dpu + 25.0
    )?;
    // Labels of steps too short for text, before and after the rest of the iteration.
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut at = LEFT;
    let mut is_before = true;
    for ((lane, label, _), time) in scheme.steps.iter().zip(steps) {
        let width = time * scale;
        let (y, height, fill, stroke) = match lane {
            Lane::Host => (host, LANE, "#fde7d8", "#c2410c"),
            Lane::Dpu => (dpu, LANE, "#e0ecfb", "#1d4ed8"),
            Lane::Both => (host, 2.0 * LANE + 4.0, "#eceff3", "#8a94a3"),
        };
        writeln!(
            svg,
            r##"<rect x="{at:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}" stroke="{stroke}"/>"##
        )?;
        let (middle, half) = (at + width / 2.0, y + height / 2.0);
        // About 6.5 units per character.
        if width > 6.5 * label.len() as f64 {
            writeln!(
                svg,
                r##"<text x="{middle:.1}" y="{:.1}" text-anchor="middle" fill="#111">{label}</text><text x="{middle:.1}" y="{:.1}" text-anchor="middle" fill="#111">{time:.0} us</text>"##,
                half - 3.0,
                half + 13.0
            )?;
        } else {
            let labels = if is_before { &mut before } else { &mut after };
            labels.push(format!("{label} {time:.0} us"));
        }
        is_before &= *lane != Lane::Both;
        at += width;
    }
    writeln!(
        svg,
        r##"<text x="{LEFT}" y="{:.1}" fill="#7c2d12">{}</text><text x="{at:.1}" y="{:.1}" text-anchor="end" fill="#7c2d12">{}</text>
<path d="M{LEFT} {bottom:.1}v10M{at:.1} {bottom:.1}v10" stroke="#111"/>"##,
        host - 6.0,
        before.join(", "),
        host - 6.0,
        after.join(", ")
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Reports in which each key step takes 10 us and each iteration 500 us.
    fn reports() -> (Value, Value) {
        let mut cost = Vec::new();
        let mut demo = Vec::new();
        for scheme in &SCHEMES {
            for step in scheme.steps.iter().filter_map(|(_, _, name)| *name) {
                cost.push(json!({"approach": scheme.approach, "step": step, "size": SIZE, "measured_ns": 10_000}));
            }
            demo.push(json!({"scheme": scheme.name, "size": SIZE, "steady_us": {"p50": 500.0}}));
        }
        (json!({ "rows": cost }), json!({ "rows": demo }))
    }

    #[test]
    fn steps_and_rest_add_up_to_the_iteration() {
        let (cost, demo) = reports();
        for scheme in &SCHEMES {
            let (total, steps) = times(scheme, &cost, &demo).unwrap();
            assert!((steps.iter().sum::<f64>() - total).abs() < 1e-9);
        }
        let svg = draw(&cost, &demo).unwrap();
        assert!(svg.contains("430 us") && svg.contains("460 us"), "{svg}");
    }

    #[test]
    fn incomplete_or_unrelated_reports_are_refused() {
        let (cost, demo) = reports();
        assert!(draw(&json!({ "rows": [] }), &demo).is_err());
        assert!(draw(&cost, &json!({ "rows": [] })).is_err());
        let mut short = demo;
        short["rows"][0]["steady_us"]["p50"] = json!(69.0);
        let error = draw(&cost, &short).unwrap_err().to_string();
        assert!(error.contains("different machines"), "{error}");
    }
}
