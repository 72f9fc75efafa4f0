//! The device's own output: the trace of events and the list of objects.

use crate::agent::{Agent, connect};
use crate::harness::Case;
use crate::process;
use crate::world::{LIMIT, Testbed, World};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

const SIZE: u64 = 64 * 1024;

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::new("trace_and_dump", trace_and_dump)]
}

fn told(testbed: &Testbed<'_>, subcommand: &str, options: &[&str]) -> Result<String> {
    process::stdout(testbed.emulator(subcommand).args(options), LIMIT)
}

fn trace_and_dump(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut owner, mut peer) = (
        Agent::start(&testbed, "node0.host")?,
        Agent::start(&testbed, "node1.host")?,
    );
    ensure!(
        told(&testbed, "trace", &[])?.is_empty(),
        "it is traced though nobody asked"
    );
    told(&testbed, "trace", &["--on"])?;
    let (here, there) = (owner.memory(0, SIZE, "wRW")?, peer.memory(0, SIZE, "wRW")?);
    connect(&mut owner, &mut peer)?;
    owner.rdma(
        "write",
        (here.addr, here.lkey),
        (there.addr, there.rkey),
        4096,
    )?;
    owner.rdma(
        "read",
        (here.addr, here.lkey),
        (there.addr, there.rkey + 1),
        4096,
    )?;
    told(&testbed, "trace", &["--off"])?;
    owner.tell("mem 1 4096")?;

    let text = told(&testbed, "trace", &["--json"])?;
    let records: Vec<Value> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let count = |wanted: &[(&str, Value)]| {
        let fits = |record: &&Value| wanted.iter().all(|(name, value)| record[*name] == *value);
        records.iter().filter(fits).count()
    };
    let call = |name: &str| {
        count(&[
            ("kind", "call".into()),
            ("name", name.into()),
            ("error", 0.into()),
        ])
    };
    ensure!(
        call("reg_mr") == 2,
        "the registration after the end is there, or one before is not:\n{text}"
    );
    ensure!(
        call("modify_qp_rtr") == 2 && call("create_qp") == 2,
        "{text}"
    );
    let request = |name: &str, bytes: u64, error: u64| {
        count(&[
            ("kind", "request".into()),
            ("function", "node0.host".into()),
            ("name", name.into()),
            ("bytes", bytes.into()),
            ("error", error.into()),
        ])
    };
    ensure!(request("rdma_write", 4096, 0) == 1, "{text}");
    // An unknown key: remote access error, with the PRM's number.
    ensure!(request("rdma_read", 0, 0x13) == 1, "{text}");
    let completion = |name: &str| count(&[("kind", "completion".into()), ("name", name.into())]);
    ensure!(
        completion("requester") == 1 && completion("requester_error") == 1,
        "{text}"
    );
    ensure!(count(&[("kind", "doorbell".into())]) == 2, "{text}");
    let latest = told(&testbed, "trace", &["--last", "1"])?;
    ensure!(latest.lines().count() == 1, "{latest}");

    let objects: Vec<Value> = serde_json::from_str(&told(&testbed, "dump", &["--json"])?)?;
    let key = objects
        .iter()
        .find(|object| object["kind"] == "mkey" && object["number"] == here.lkey);
    let key = key.with_context(|| format!("no key {:#x} in {objects:?}", here.lkey))?;
    ensure!(
        key["fields"]["bytes"].as_str() == Some(SIZE.to_string().as_str()),
        "{key}"
    );
    let failed = objects
        .iter()
        .filter(|object| object["fields"]["state"] == "ERR");
    ensure!(
        failed.count() == 2,
        "the read has brought both queue pairs to the error state: {objects:?}"
    );
    Ok(())
}
