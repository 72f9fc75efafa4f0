//! The comparison that `cargo xtask demo pcc` shows, with short runs.

use crate::common::builds;
use pcc_run::Build;
use serde_json::Value;
use std::process::Command;

#[test]
fn the_comparison_accounts_for_each_packet_and_has_all_fields() {
    let test = "demo::the_comparison_accounts_for_each_packet_and_has_all_fields";
    let counts = builds(test).contains(&Build::Dpa);
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_pcc-demo"))
        .args(["--us", "400", "--output"])
        .arg(folder.path())
        .env_remove("XGVMI_DOCA_SAMPLES")
        .env_remove("XGVMI_PCC_TUTORIAL")
        .env_remove("XGVMI_HTSIM")
        .output()
        .expect("started");
    assert!(output.status.success(), "{output:?}");
    let read = |name| std::fs::read_to_string(folder.path().join(name)).expect("written");
    let report: Value = serde_json::from_str(&read("report.json")).expect("JSON");
    let number = |value: &Value| value.as_f64().expect("a number");
    let packets = &report["packets"];
    let sum = ["delivered", "dropped", "in_flight"].map(|fate| number(&packets[fate]));
    assert_eq!(number(&packets["sent"]), sum.iter().sum::<f64>());
    assert_eq!(report["unaccounted"], 0);
    // The guess of the lab, and the time to the next event.
    assert!(number(&report["takeover_us"]) >= 100.0, "{report}");
    let rows = report["rows"].as_array().expect("rows");
    let of = |name: &'static str| rows.iter().filter(move |row| row["algorithm"] == name);
    for name in ["none", "dcqcn", "swift", "hpcc"] {
        let flows: Vec<_> = of(name)
            .map(|row| (row["topology"].clone(), number(&row["flows"])))
            .collect();
        let star = [2.0, 8.0, 32.0, 128.0].map(|flows| ("star".into(), flows));
        assert_eq!(flows[..4], star, "{name}");
        assert_eq!(flows[4], ("parking lot".into(), 3.0), "{name}");
        for row in of(name) {
            assert!(
                (0.0..=1.001).contains(&number(&row["utilisation"])),
                "{row}"
            );
            assert!(
                number(&row["queue_bytes"]["mean"])
                    <= number(&row["queue_bytes"]["p99"]) * 1.01 + 4_096.0,
                "{row}"
            );
            let [low, middle, high] =
                ["p50", "p95", "p99"].map(|part| number(&row["slowdown"][part]));
            assert!(1.0 <= low && low <= middle && middle <= high, "{row}");
            let is_counted = row["instructions_per_event"].is_number();
            assert_eq!(is_counted, counts && name != "none", "{row}");
        }
    }
    for point in report["setpoints"].as_array().expect("set-points") {
        assert!(
            (0.94..1.0).contains(&number(&point["measured_ratio"])),
            "{point}"
        );
    }
    let (plot, text) = (read("report.svg"), read("report.md"));
    assert!(
        plot.contains("longest queue") && plot.contains("swift"),
        "{plot}"
    );
    assert!(text.contains("| hpcc | star | 128 |"), "{text}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("million events per second"), "{printed}");
    let speed = &report["speed"];
    for name in [
        "events_per_second",
        "events_per_second_with_programs",
        "incast_128_for_10_ms_seconds",
    ] {
        assert!(number(&speed[name]) > 0.0, "{speed}");
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("XGVMI_HTSIM names no directory"), "{said}");
}
