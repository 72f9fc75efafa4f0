//! The traffic of an offloaded alltoallv as a trace for `pcc-lab --replay`: each RDMA READ that a service process posts, from the
//! emulated device's trace.

use super::{Machine, Site, Variant};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The machine and the job: calls follow one that is not timed.
pub(super) const MACHINE: Machine = Machine {
    nodes: 4,
    ranks: "4",
    services: 1,
};
const SHAPE: &str = "-m 65536:65536 -i 2 -x 1 --temp-buffers mmap";
/// Bytes of a block.
const BLOCK: u64 = 65_536;
/// Blocks of all calls: each rank gets a block from each rank of the other nodes.
const READS: usize = 3 * 16 * 12;
const NAME: &str = "rdma_read";

/// Runs the job and writes `file`.
pub(super) fn run(site: &Site<'_>, place: &Path, file: &Path) -> Result<()> {
    let variant = Variant::plain("xgvmi");
    let site = Site {
        machine: MACHINE,
        ..*site
    };
    let services = site.start(variant)?;
    let device = site.device(variant);
    device.ask("trace", &["--on"])?;
    // The queue pairs exist during the job only.
    let is_done = AtomicBool::new(false);
    let peers = std::thread::scope(|scope| -> Result<Peers> {
        let watch = scope.spawn(|| -> Result<Peers> {
            let mut peers = Peers::new();
            while !is_done.load(Ordering::Relaxed) {
                note_peers(&device.ask("dump", &["--json"])?, &mut peers)?;
            }
            Ok(peers)
        });
        let ran = site.job(
            &services,
            "osu_alltoallv",
            SHAPE,
            &place.join("recorded.json"),
        );
        is_done.store(true, Ordering::Relaxed);
        let peers = watch.join();
        ran?;
        peers.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    device.ask("trace", &["--off"])?;
    let rows = rows(&device.ask("trace", &["--json"])?, &peers)?;
    let blocks = rows.iter().filter(|row| row.3 == BLOCK).count();
    ensure!(
        blocks == READS,
        "{blocks} blocks in place of {READS}; the trace may have lost some"
    );
    let text = text(&rows);
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    println!("{} reads: {}", rows.len(), file.display());
    Ok(())
}

/// Start in ns, node that sends, node that receives, bytes.
type Row = (u64, u32, u32, u64);

fn node(function: &str) -> Option<u32> {
    let (name, _) = function.split_once('.')?;
    name.strip_prefix("node")?.parse().ok()
}

/// Node of the other end, by function and number of a queue pair.
type Peers = BTreeMap<(String, Option<u64>), u32>;

/// Adds the queue pairs of a list of objects.
fn note_peers(objects: &str, peers: &mut Peers) -> Result<()> {
    let objects: Value = serde_json::from_str(objects).context("the objects of the device")?;
    for object in objects.as_array().into_iter().flatten() {
        let peer = object["fields"]["peer"].as_str().and_then(node);
        let own = object["function"].as_str();
        if let (Some("qp"), Some(own), Some(peer)) = (object["kind"].as_str(), own, peer) {
            peers.insert((own.to_owned(), object["number"].as_u64()), peer);
        }
    }
    Ok(())
}

/// The reads between nodes, from the time of the first one.
fn rows(records: &str, peers: &Peers) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for record in records.lines() {
        let record: Value = serde_json::from_str(record).context("a record of the trace")?;
        let own = record["function"].as_str().unwrap_or_default();
        let (Some(to), Some(from)) = (
            node(own),
            peers.get(&(own.to_owned(), record["qpn"].as_u64())),
        ) else {
            continue;
        };
        let number = |key: &str| {
            record[key]
                .as_u64()
                .with_context(|| format!("no {key} in {record}"))
        };
        let is_read = record["kind"] == "request" && record["name"] == NAME;
        if is_read && *from != to && number("error")? == 0 {
            rows.push((number("time_ns")?, *from, to, number("bytes")?));
        }
    }
    let first = rows.iter().map(|row| row.0).min().unwrap_or_default();
    for row in &mut rows {
        row.0 -= first;
    }
    rows.sort_unstable();
    Ok(rows)
}

fn text(rows: &[Row]) -> String {
    let Machine {
        nodes,
        ranks,
        services,
    } = MACHINE;
    let mut text = format!(
        "# Reads of the service processes in three offloaded alltoallvs: {nodes} nodes with {ranks} ranks and {services} service process\n\
         # each, blocks of 64 KiB, scheme xgvmi. Recorded on the emulated device by
#   cargo xtask bench alltoallv -- --record FILE
# Times are those of the recording machine, which is much slower than a network: replay them faster.
# ns sender receiver bytes\n"
    );
    for (ns, from, to, bytes) in rows {
        let _ = writeln!(text, "{ns} {from} {to} {bytes}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_between_nodes_become_rows_from_the_first_one_on() {
        let objects = r#"[{"function":"node1.dpu","kind":"qp","number":256,"pid":1,"fields":{"peer":"node0.dpu"}},
{"function":"node1.dpu","kind":"qp","number":257,"pid":1,"fields":{"peer":"node1.host"}},
{"function":"node1.dpu","kind":"cq","number":256,"pid":1,"fields":{}}]"#;
        let mut peers = Peers::new();
        note_peers(objects, &mut peers).unwrap();
        let read = |ns: u64, qpn: u64, name: &str| {
            format!(
                "{{\"number\":1,\"time_ns\":{ns},\"pid\":1,\"function\":\"node1.dpu\",\"kind\":\"request\",\"name\":\"{name}\",\"qpn\":{qpn},\"bytes\":65536,\"error\":0}}\n"
            )
        };
        let records = [
            read(700, 256, "rdma_read"),
            read(500, 256, "rdma_read"),
            read(400, 257, "rdma_read"),
            read(300, 256, "send"),
        ]
        .concat();
        let rows = rows(&records, &peers).unwrap();
        assert_eq!(rows, [(0, 0, 1, 65_536), (200, 0, 1, 65_536)]);
        assert!(text(&rows).ends_with("\n0 0 1 65536\n200 0 1 65536\n"));
    }
}
