//! Ratios between the rows of one report: of schemes, and of collectives with and without the service processes.

use serde_json::Value;

/// Adds ratios between schemes to rows that have a scheme, a size, and times of the first and of steady iterations.
///
/// `of_stock` and `of_ksm` are the row's median divided by that of the other scheme at the same size;
/// `times_faster_than_...` and `first_times_faster_than_...` are the inverse, for steady and for first iterations.
/// `connect_first_of_...` compares the sum of connect and first iteration. A connect does not depend on the size, and most of it
/// is the start of processes: its time is the median over all sizes of the scheme.
pub(crate) fn schemes(report: &mut Value) {
    let Some(rows) = report["rows"].as_array().cloned() else {
        return;
    };
    let number = |row: &Value, path: &str| row.pointer(path).and_then(Value::as_f64);
    let connect = |scheme: &Value| {
        let same = rows.iter().filter(|row| row["scheme"] == *scheme);
        let mut times: Vec<f64> = same.filter_map(|row| number(row, "/connect_us")).collect();
        times.sort_by(f64::total_cmp);
        let (low, high) = (
            times.get((times.len().max(1) - 1) / 2)?,
            times.get(times.len() / 2)?,
        );
        Some(f64::midpoint(*low, *high))
    };
    for (at, row) in rows.iter().enumerate() {
        let (Some(first), Some(p50)) = (number(row, "/first_us"), number(row, "/steady_us/p50"))
        else {
            continue;
        };
        let target = &mut report["rows"][at];
        target["first_more_us"] = (first - p50).into();
        for other in ["stock", "ksm"] {
            let peer = rows
                .iter()
                .find(|peer| peer["scheme"] == other && peer["size"] == row["size"]);
            let Some(peer) = peer else { continue };
            let whole = |row: &Value| Some(connect(&row["scheme"])? + number(row, "/first_us")?);
            if let (Some(ours), Some(peers)) = (whole(row), whole(peer)) {
                target[format!("connect_first_of_{other}")] = (ours / peers).into();
            }
            let cpu = |row: &Value, path: &str| number(row, path).filter(|us| *us > 0.0);
            for (name, path) in [("rank", "/host_cpu_us"), ("service", "/service_cpu_us")] {
                if let (Some(ours), Some(peers)) = (cpu(row, path), cpu(peer, path)) {
                    target[format!("{name}_cpu_of_{other}")] = (ours / peers).into();
                }
            }
            if let (Some(peer_first), Some(peer_p50)) =
                (number(peer, "/first_us"), number(peer, "/steady_us/p50"))
            {
                target[format!("of_{other}")] = (p50 / peer_p50).into();
                target[format!("times_faster_than_{other}")] = (peer_p50 / p50).into();
                target[format!("first_times_faster_than_{other}")] = (peer_first / first).into();
            }
        }
    }
}

/// Overlap, in percent, that counts as complete whatever stock UCC reaches.
const OVERLAP_ENOUGH: f64 = 90.0;

/// Adds ratios to the rows of offloaded collectives. `of_ucc` and `cpu_of_ucc` are time and processor time of the hosts
/// divided by those of stock UCC on the hosts, for the same program, size and spread. `overlap_kept` is 1 or more if the overlap is
/// at least twice that of stock UCC, or at least 90 %. `key_commands` is the sum of commands for keys and aliases.
pub(crate) fn backends(report: &mut Value) {
    let Some(rows) = report["rows"].as_array().cloned() else {
        return;
    };
    for (at, row) in rows.iter().enumerate() {
        if row["backend"] != "offload" {
            continue;
        }
        let target = &mut report["rows"][at];
        if let Some(commands) = crate::keys::key_commands(row, "commands_per_call") {
            target["key_commands"] = commands.into();
        }
        let peer = rows.iter().find(|peer| {
            let same = |key: &&str| peer[*key] == row[*key];
            peer["backend"] == "ucc" && ["program", "size", "spread_ms"].iter().all(same)
        });
        let Some(peer) = peer else { continue };
        let pair = |key: &str| row[key].as_f64().zip(peer[key].as_f64());
        for (name, key) in [("of_ucc", "us"), ("cpu_of_ucc", "host_cpu_us_per_call")] {
            if let Some((ours, stock)) = pair(key) {
                target[name] = (ours / stock).into();
            }
        }
        if let Some((ours, stock)) = pair("overlap_percent") {
            let wanted = (2.0 * stock).clamp(f64::MIN_POSITIVE, OVERLAP_ENOUGH);
            target["overlap_kept"] = (ours / wanted).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::reports::Reports;
    use serde_json::json;

    #[test]
    fn backends_are_compared_with_stock_ucc() {
        let row = |backend: &str, cpu: f64, overlap: f64| {
            json!({
                "program": "p", "backend": backend, "size": 1, "us": 2.0 * cpu, "host_cpu_us_per_call": cpu,
                "overlap_percent": overlap,
                "commands_per_call": {"create_mkey": 1.0, "destroy_mkey": 0.5, "allow_other_vhca_access": 0.0,
                                      "create_alias": 0.0, "destroy_alias": 0.0},
            })
        };
        let spread = |backend: &str, cpu: f64| {
            let mut row = row(backend, cpu, 30.0);
            row["spread_ms"] = 5.into();
            row
        };
        let rows = json!({"skipped": null, "rows": [
            row("ucc", 8.0, 30.0), row("offload", 2.0, 90.0), spread("offload", 1.0), spread("ucc", 2.0),
        ]});
        let mut reports = Reports::default();
        reports.add("ucc", &rows.to_string()).unwrap();
        let rows = &reports.get("ucc").unwrap().unwrap()["rows"];
        assert_eq!(rows[2]["cpu_of_ucc"], 0.5);
        assert_eq!(rows[1]["cpu_of_ucc"], 0.25);
        assert_eq!(rows[1]["of_ucc"], 0.25);
        assert_eq!(rows[1]["overlap_kept"], 1.5);
        assert_eq!(rows[1]["key_commands"], 1.5);
        assert!(rows[0]["cpu_of_ucc"].is_null());
    }

    #[test]
    fn schemes_are_compared_at_the_same_size() {
        let row = |scheme: &str, size: u64, first: f64, p50: f64| json!({"scheme": scheme, "size": size, "first_us": first, "steady_us": {"p50": p50}});
        let rows = json!({"rows": [row("ksm", 1, 8.0, 4.0), row("xgvmi", 1, 2.0, 1.0), row("ksm", 2, 9.0, 9.0)]});
        let mut reports = Reports::default();
        reports.add("demo", &rows.to_string()).unwrap();
        let row = &reports.get("demo").unwrap().unwrap()["rows"][1];
        assert_eq!(row["of_ksm"], 0.25);
        assert_eq!(row["times_faster_than_ksm"], 4.0);
        assert_eq!(row["first_times_faster_than_ksm"], 4.0);
        assert_eq!(row["first_more_us"], 1.0);
        assert!(row["of_stock"].is_null());
        assert!(reports.get("pool").unwrap().is_none());
        assert!(reports.get("gone").is_err());
    }
}
