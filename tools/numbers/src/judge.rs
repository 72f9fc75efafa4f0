//! The promises that a benchmark checks: each is a query of a report and a bound. A promise without a report, or without
//! its row in the report, is neither kept nor broken.

use crate::query::Query;
use crate::reports::Reports;
use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The bound of a promise.
#[derive(Debug, Clone, Copy)]
enum Bound {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
    Above(f64),
}

use Bound::{Above, AtLeast, AtMost, Below};

impl Bound {
    fn holds(self, found: f64) -> bool {
        match self {
            AtMost(limit) => found <= limit,
            Below(limit) => found < limit,
            AtLeast(limit) => found >= limit,
            Above(limit) => found > limit,
        }
    }

    fn shown(self, unit: &str) -> String {
        let (sign, limit) = match self {
            AtMost(limit) => ("<=", limit),
            Below(limit) => ("<", limit),
            AtLeast(limit) => (">=", limit),
            Above(limit) => (">", limit),
        };
        format!("{sign} {limit} {unit}").trim_end().to_owned()
    }
}

struct Promise {
    what: &'static str,
    /// Query of the number; with several rows the worst counts.
    query: &'static str,
    /// Divisor of the number.
    over: Option<&'static str>,
    bound: Bound,
    unit: &'static str,
}

const fn promise(
    what: &'static str,
    query: &'static str,
    bound: Bound,
    unit: &'static str,
) -> Promise {
    Promise {
        what,
        query,
        over: None,
        bound,
        unit,
    }
}

const PROMISES: &[Promise] = &[
    promise("demo: wrong bytes", "demo mismatches", AtMost(0.0), ""),
    promise(
        "demo: steady median of xgvmi over stock, at each size",
        "demo scheme=xgvmi max:of_stock",
        AtMost(1.05),
        "times",
    ),
    promise(
        "demo: steady median of xgvmi over ksm, at each size",
        "demo scheme=xgvmi max:of_ksm",
        Below(1.0),
        "times",
    ),
    promise(
        "demo: steady median over Ethernet over the one over InfiniBand, at each size",
        "links max:ratio",
        AtMost(1.05),
        "times",
    ),
    promise(
        "pool: lease and return of a key, one thread",
        "pool name=lease_release_1t ours",
        AtMost(60.0),
        "ns",
    ),
    promise(
        "pool: the same against a C list under a mutex, one thread",
        "pool name=lease_release_1t ratio",
        AtLeast(1.0),
        "times better",
    ),
    promise(
        "pool: the same, two threads on two cores",
        "pool name=lease_release_2t ratio",
        Above(1.0),
        "times better",
    ),
    promise(
        "pool: an alias found among 20,000, against UCX's khash",
        "pool name=alias_hit_20k ratio",
        AtLeast(1.5),
        "times better",
    ),
    promise(
        "pool: bind and invalidate, strict, against stock UCX",
        "pool name=bind_invalidate_strict ratio",
        AtLeast(1.0),
        "times better",
    ),
    promise(
        "pool: the same, batched, 64 keys together",
        "pool name=bind_invalidate_batched ratio",
        AtLeast(2.0),
        "times better",
    ),
    promise(
        "pool: doorbells of 64 exports and 64 releases",
        "pool name=doorbells_64 ours",
        AtMost(4.0),
        "doorbells",
    ),
    promise(
        "pool: first import of 64 announced keys, against stock UCX",
        "pool name=first_touch_64 ratio",
        AtLeast(50.0),
        "times better",
    ),
    promise(
        "pool: the key of an export of 4 GiB, against stock UCX",
        "pool name=export_4gib ratio",
        AtLeast(100.0),
        "times better",
    ),
    promise(
        "library in UCX: export and release, strict, against stock UCX",
        "pool name=ucx_bind_invalidate_strict ratio",
        AtLeast(1.0),
        "times better",
    ),
    promise(
        "library in UCX: the same, batched",
        "pool name=ucx_bind_invalidate_batched ratio",
        AtLeast(1.6),
        "times better",
    ),
    promise(
        "library in UCX: the same, chained",
        "pool name=ucx_bind_invalidate_chained ratio",
        AtLeast(1.6),
        "times better",
    ),
    promise(
        "library in UCX: export of 4 GiB, against stock UCX",
        "pool name=ucx_export_4gib ratio",
        AtLeast(100.0),
        "times better",
    ),
    Promise {
        over: Some(
            r#"hotpath what="instructions through UCX, pool and queue" mode=strict owner=library stock"#,
        ),
        ..promise(
            "library in UCX, strict: its instructions per export and release over those of stock UCX's pool and queue",
            r#"hotpath what="instructions through UCX, pool and queue" mode=strict owner=library ours"#,
            AtMost(1.0),
            "times",
        )
    },
    Promise {
        over: Some(r#"hotpath what="traps through UCX" mode=strict stock"#),
        ..promise(
            "library in UCX, strict: doorbell traps over those of stock UCX",
            r#"hotpath what="traps through UCX" mode=strict ours"#,
            AtMost(1.0),
            "times",
        )
    },
    promise(
        "library in UCX, strict: allocations per export and release",
        r#"hotpath what="allocations through UCX" mode=strict owner=library ours"#,
        AtMost(0.0),
        "",
    ),
    promise(
        "library in UCX, strict: system calls per export and release",
        r#"hotpath what="system calls through UCX" mode=strict owner=library ours"#,
        AtMost(0.0),
        "",
    ),
    promise(
        "library in UCX, strict: its cache lines per export and release",
        r#"hotpath what="cache lines through UCX" mode=strict owner=library ours"#,
        AtMost(12.0),
        "lines",
    ),
    promise(
        "alltoallv: steady median of xgvmi over stock, at each size",
        "alltoallv scheme=xgvmi max:of_stock",
        AtMost(1.05),
        "times",
    ),
    promise(
        "alltoallv: processor time of a rank per call, xgvmi over stock, at each size",
        "alltoallv scheme=xgvmi max:rank_cpu_of_stock",
        AtMost(1.05),
        "times",
    ),
    promise(
        "alltoallv: processor time of a service process per call, xgvmi over stock, at each size",
        "alltoallv scheme=xgvmi max:service_cpu_of_stock",
        AtMost(1.05),
        "times",
    ),
    promise(
        "alltoallv: instructions of a rank per call, xgvmi over stock, without the emulator's, at each size",
        r#"offload scheme=xgvmi+fifo process=rank owner="all but the emulator" max:of_stock"#,
        AtMost(1.05),
        "times",
    ),
    promise(
        "alltoallv: instructions of a service process per call, xgvmi over stock, without the emulator's, at each size",
        r#"offload scheme=xgvmi+fifo process=service owner="all but the emulator" max:of_stock"#,
        AtMost(1.05),
        "times",
    ),
    promise(
        "alltoallv of 2 x 4 ranks: a service process's own instructions per call over those of the version in OFFLOAD.md, at each size",
        "offload.compared owner=service max:of_before",
        AtMost(0.9),
        "times",
    ),
    promise(
        "alltoallv: xgvmi against ksm, up to 16 KiB",
        "alltoallv scheme=xgvmi size=1K size=2K size=4K size=8K size=16K min:times_faster_than_ksm",
        AtLeast(1.3),
        "times faster",
    ),
    promise(
        "alltoallv: connect (median of all sizes) and first iteration of xgvmi over those of stock, at each size",
        "alltoallv scheme=xgvmi max:connect_first_of_stock",
        AtMost(1.0),
        "times",
    ),
    promise(
        "service process: its own instructions per block, at each scale",
        "service transport=stand-in max:instructions_per_block",
        AtMost(1000.0),
        "",
    ),
    promise(
        "service process: its own instructions per block beside those of the call's messages",
        "service cost.instructions_per_block",
        AtMost(1000.0),
        "",
    ),
    promise(
        "service process: its own time per block, at each scale",
        "service transport=stand-in max:us_per_block.ours",
        AtMost(0.25),
        "us",
    ),
    promise(
        "service process with UCX: its own instructions per block, from 16 ranks on",
        "service transport=ucx ranks=16 ranks=64 max:instructions_per_block",
        AtMost(1000.0),
        "",
    ),
    promise(
        "service process with UCX: its own time per block, from 16 ranks on",
        "service transport=ucx ranks=16 ranks=64 max:us_per_block.ours",
        AtMost(0.25),
        "us",
    ),
    Promise {
        over: Some(
            "service ranks=16 ranks=64 ranks=256 ranks=1024 transport=stand-in min:instructions_per_block",
        ),
        ..promise(
            "service process: instructions per block, most over least, 16 to 1,024 ranks",
            "service ranks=16 ranks=64 ranks=256 ranks=1024 transport=stand-in max:instructions_per_block",
            AtMost(1.2),
            "times",
        )
    },
    promise(
        "service process: memory per rank",
        "service max:bytes_per_rank",
        AtMost(32_768.0),
        "bytes",
    ),
    promise(
        "service process: connect of 1,024 ranks with the stand-in transport",
        "service ranks=1024 transport=stand-in max:connect_ms",
        AtMost(5000.0),
        "ms",
    ),
    promise(
        "soak: objects of the device that are left after all jobs",
        "soak device_objects_left",
        AtMost(0.0),
        "",
    ),
    Promise {
        over: Some("soak max:early_descriptors"),
        ..promise(
            "soak: most descriptors of a service process after all jobs over the most before half of them",
            "soak max:last_descriptors",
            AtMost(1.0),
            "times",
        )
    },
    Promise {
        over: Some("soak max:early_kib"),
        ..promise(
            "soak: most memory of a service process after all jobs over the most before half of them",
            "soak max:last_kib",
            AtMost(1.1),
            "times",
        )
    },
    promise(
        "library: time that it adds to a program's run",
        "library unit=ms max:value",
        AtMost(5.0),
        "ms",
    ),
    promise(
        "library: its file",
        "library name=file value",
        AtMost(2048.0),
        "KiB",
    ),
    promise(
        "library: proof of a form of binds, without a profile",
        "library unit=us max:value",
        AtMost(60.0),
        "us",
    ),
    promise(
        "emulated device: ib_write_lat, 8 B, each side on its core",
        r#"device name="ib_write_lat, 8 B, typical" measured"#,
        AtMost(5.0),
        "us",
    ),
    promise(
        "block storage: bytes of half compressible data over those of the reference's format",
        "storage.stored of_reference",
        AtMost(0.75),
        "times",
    ),
    promise(
        "emulated device: ucp_put_lat, 8 B",
        r#"device name="ucp_put_lat, 8 B, median" measured"#,
        AtMost(5.0),
        "us",
    ),
    Promise {
        over: Some(r#"device name="the same by UCX's cma" measured"#),
        ..promise(
            "emulated device: ucp_get of 1 MiB over the bandwidth of UCX's cma",
            r#"device name="ucp_get, 1 MiB, by the median" measured"#,
            AtLeast(0.8),
            "times",
        )
    },
    promise(
        "emulated device: ib_write_bw, 8 B, both directions",
        r#"device name="ib_write_bw, 8 B, both directions" measured"#,
        AtLeast(0.25),
        "M/s",
    ),
    promise(
        "emulated device: longest round trip of four busy pairs",
        r#"device name="4 busy pairs on all cores, longest round trip" measured"#,
        AtMost(100.0),
        "ms",
    ),
    promise(
        "cost profile: a resolvable step is off the slides by, beside the emulator's own time",
        "cost resolvable=true max:off",
        AtMost(0.1),
        "of it",
    ),
    promise(
        "model, assumed link of 400 Gb/s: distance to the slides' gains at 32 nodes x 32 ranks x 4 SPs",
        r#"model.sensitivity what="as assumed" max:off_slides"#,
        AtMost(6.0),
        "points",
    ),
    promise(
        "model: measured over predicted savings of the alltoallv, largest",
        "check max:ratio",
        AtMost(2.0),
        "times",
    ),
    promise(
        "model: measured over predicted savings of the alltoallv, smallest",
        "check min:ratio",
        AtLeast(0.5),
        "times",
    ),
    promise(
        "compatibility matrix: failed cells",
        "matrix sum:failed",
        AtMost(0.0),
        "",
    ),
    promise(
        "test suites of other projects: failed tests",
        "suites sum:failed",
        AtMost(0.0),
        "",
    ),
    promise(
        "UCC: time in which a process with UCC loads the component",
        "overlap component_load_ms",
        AtMost(5.0),
        "ms",
    ),
    promise("UCC demo: wrong bytes", "ucc mismatches", AtMost(0.0), ""),
    promise(
        "UCC demo: key and alias commands per call of an unmodified MPI program, xgvmi, at each size",
        "ucc scheme=xgvmi max:key_commands",
        AtMost(0.0),
        "",
    ),
    promise(
        "UCC demo: overlap over the smaller of twice stock UCC's on the hosts and 90 %, xgvmi, 64 KiB to 1 MiB",
        "ucc scheme=xgvmi program=osu_ialltoallv size=64K size=128K size=256K size=512K size=1M min:overlap_kept",
        AtLeast(1.0),
        "times",
    ),
    promise(
        "UCC demo: host processor time per overlapped call over stock UCC's on the hosts, xgvmi, 64 KiB to 1 MiB",
        "ucc scheme=xgvmi program=osu_ialltoallv size=64K size=128K size=256K size=512K size=1M max:cpu_of_ucc",
        AtMost(0.5),
        "times",
    ),
    promise(
        "storage through the DPU: wrong bytes",
        "volume mismatches",
        AtMost(0.0),
        "",
    ),
    promise(
        "storage through the DPU: key and alias commands per transfer on fresh memory, at each size",
        "volume scheme=xgvmi scheme=announced max:key_commands",
        AtMost(0.0),
        "",
    ),
    promise(
        "storage through the DPU: time of a transfer on fresh memory, xgvmi over stock UCX's pool, at each size",
        "volume scheme=xgvmi max:of_stock",
        AtMost(1.0),
        "times",
    ),
    promise(
        "storage through the DPU: processor time of the host over the pipeline on its own cores",
        "volume host_cpu_of_host",
        AtMost(0.5),
        "times",
    ),
    promise(
        "storage through the DPU: stored bytes over those of the reference's format, mixed data",
        "volume stored_of_reference",
        AtMost(0.75),
        "times",
    ),
    promise(
        "accelerators: wrong bytes",
        "naaice mismatches",
        AtMost(0.0),
        "",
    ),
    promise(
        "accelerators: key and alias commands per one shot on fresh buffers, pool, at each size",
        "naaice way=pool max:key_commands",
        AtMost(0.0),
        "",
    ),
    promise(
        "accelerators: one shot with pooled keys against a key per region, 16 KiB to 1 MiB",
        "naaice way=pool size=16K size=64K size=256K size=1M min:times_faster_than_ksm",
        AtLeast(3.0),
        "times faster",
    ),
    promise(
        "accelerators: steady call over RDMA over one of a hand-written verbs loop, at each size",
        "naaice way=verbs max:call_of_loop",
        AtMost(1.05),
        "times",
    ),
];

/// One row for each promise: `promise`, `wanted`, `found`, `kept` (null without a report), and the `command` that
/// writes the report.
///
/// # Errors
/// A report does not have the expected form.
pub fn rows(reports: &Reports) -> Result<Vec<Value>> {
    PROMISES
        .iter()
        .map(|promise| {
            let found = found(promise, reports).with_context(|| promise.what.to_owned())?;
            let shown = found.map(|found| {
                format!("{} {}", digits(found), promise.unit)
                    .trim_end()
                    .to_owned()
            });
            Ok(json!({
                "promise": promise.what, "wanted": promise.bound.shown(promise.unit), "found": shown,
                "kept": found.map(|found| promise.bound.holds(found)),
                "command": Reports::command(&Query::parse(promise.query)?.report)?,
            }))
        })
        .collect()
}

fn found(promise: &Promise, reports: &Reports) -> Result<Option<f64>> {
    let number = |text: &str| -> Result<Option<f64>> {
        let query = Query::parse(text)?;
        match reports.get(&query.report)? {
            Some(report) => query.number(report),
            None => Ok(None),
        }
    };
    let Some(found) = number(promise.query)? else {
        return Ok(None);
    };
    let Some(over) = promise.over else {
        return Ok(Some(found));
    };
    Ok(number(over)?.map(|over| found / over))
}

/// Three significant digits; large numbers keep all integer digits.
fn digits(number: f64) -> String {
    match number.abs() {
        _ if number.fract() == 0.0 => format!("{number:.0}"),
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(report: &str, text: &str) -> Vec<Value> {
        let mut reports = Reports::default();
        reports.add(report, text).unwrap();
        rows(&reports).unwrap()
    }

    fn row<'a>(rows: &'a [Value], what: &str) -> &'a Value {
        let mut found = rows.iter().filter(|row| row["promise"] == what);
        found.next().unwrap()
    }

    #[test]
    fn a_promise_is_kept_broken_or_unknown() {
        let demo = |p50: f64| {
            let row = |scheme: &str, p50: f64| json!({"scheme": scheme, "size": 1, "first_us": 1.0, "steady_us": {"p50": p50}});
            json!({"mismatches": 0, "rows": [row("ksm", 200.0), row("stock", 100.0), row("xgvmi", p50)]})
        };
        let check = |p50: f64, stock: bool, ksm: bool, found: &str| {
            let rows = judged("demo", &demo(p50).to_string());
            let of_stock = row(
                &rows,
                "demo: steady median of xgvmi over stock, at each size",
            );
            assert_eq!(
                *of_stock,
                json!({
                    "promise": "demo: steady median of xgvmi over stock, at each size",
                    "wanted": "<= 1.05 times", "found": found, "kept": stock, "command": "cargo xtask demo",
                })
            );
            let of_ksm = row(&rows, "demo: steady median of xgvmi over ksm, at each size");
            assert_eq!(of_ksm["kept"], ksm);
            // A missing report.
            let pool = row(&rows, "pool: lease and return of a key, one thread");
            assert_eq!(
                (&pool["kept"], &pool["found"]),
                (&Value::Null, &Value::Null)
            );
        };
        check(104.0, true, true, "1.04 times");
        check(106.0, false, true, "1.06 times");
        check(200.0, false, false, "2 times");
    }

    #[test]
    fn a_row_that_is_not_there_is_unknown_and_one_of_another_form_an_error() {
        let rows = judged(
            "pool",
            r#"{"rows":[{"name":"lease_release_1t","ours":70.0,"ratio":0.5}]}"#,
        );
        let kept = |what: &str| row(&rows, what)["kept"].clone();
        assert_eq!(kept("pool: lease and return of a key, one thread"), false);
        assert_eq!(
            kept("pool: the same, two threads on two cores"),
            Value::Null
        );
        let mut reports = Reports::default();
        let strange = r#"{"rows":[{"name":"lease_release_1t","ours":"fast","ratio":1}]}"#;
        reports.add("pool", strange).unwrap();
        assert!(super::rows(&reports).is_err());
    }

    #[test]
    fn ratios_of_two_rows_are_judged() {
        let device = r#"{"rows":[{"name":"ucp_get, 1 MiB, by the median","measured":9},
                                 {"name":"the same by UCX's cma","measured":10}]}"#;
        let rows = judged("device", device);
        let get = row(
            &rows,
            "emulated device: ucp_get of 1 MiB over the bandwidth of UCX's cma",
        );
        assert_eq!(
            (&get["found"], &get["kept"]),
            (&json!("0.900 times"), &json!(true))
        );
    }
}
