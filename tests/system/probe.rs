//! `xgvmi probe` over libmlx5 and the emulated device: a complete report on a device that works, and the name of what
//! does not work on one that fails.

use crate::harness::Case;
use crate::process;
use crate::world::{LIMIT, Testbed, World, free_port, run_pair};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("probe_reports_a_host_and_its_dpu", |world| {
            host_and_dpu(world, "infiniband")
        }),
        Case::new("probe_reports_ethernet_ports", |world| {
            host_and_dpu(world, "ethernet")
        }),
        Case::new("probe_finds_the_limit_of_keys", limit_of_keys),
        Case::new("probe_names_the_proof_that_fails", failing_proof),
        Case::new("probe_continues_after_a_refusal", refused_part),
        Case::new("probe_keeps_its_alias_as_the_library_does", one_alias),
        Case::new(
            "probe_names_the_failed_step_of_an_exchange",
            failing_exchange,
        ),
        Case::new("probe_names_a_peer_that_is_none", bad_peers),
        Case::new("probe_uses_the_gid_of_ucx", gid_of_ucx),
    ]
}

/// Forms of binds: stock and list.
const FORMS: usize = 2;
/// Steps of the four approaches at one size, with a DPU.
const STEPS: usize = 27;

fn options(link: &str) -> [&str; 2] {
    ["--link", link]
}

fn read(file: &Path) -> Result<Value> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    Ok(serde_json::from_str(&text)?)
}

/// Host and DPU in two processes, as on two machines.
fn host_and_dpu(world: &World, link: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (report, failed) = with_dpu(world, &testbed, link, ["", ""])?;
    ensure!(failed.is_none(), "{failed:?}");
    has_fields(&report)?;
    ensure!(report["link"] == link, "{report:#}");
    ensure!(report["peer"]["link"] == link, "{report:#}");
    let proofs = report["proofs"].as_array().context("proofs")?;
    let steps = ["bound", "read", "beyond_refused", "invalid_refused"];
    let proved = proofs
        .iter()
        .filter(|proof| steps.iter().all(|step| proof[step] == true))
        .count();
    ensure!(proved == FORMS && proofs.len() == FORMS, "{report:#}");
    let costs = report["costs"].as_array().context("costs")?;
    ensure!(costs.len() == 2 * STEPS, "{} rows", costs.len());
    for object in ["mkeys", "aliases"] {
        let found = &report["limits"][object];
        ensure!(
            found["created"] == 50 && found["refusal"].is_null(),
            "{object}: {report:#}"
        );
    }
    let peer = &report["peer"];
    ensure!(
        exchanged(&report) == [true; 3]
            && peer["alias_of_invalid_refusal"].is_null()
            && peer["bytes"] == 65536,
        "{peer:#}"
    );
    ensure!(
        peer["vhca_id"] != report["capabilities"]["vhca_id"],
        "{report:#}"
    );
    // All that the probe created is gone.
    for (function, made, gone) in [
        ("node0.host", "create_mkey", "destroy_mkey"),
        ("node0.dpu", "create_alias", "destroy_alias"),
    ] {
        let (made, gone) = (
            testbed.stats()?.commands(function, made)?,
            testbed.stats()?.commands(function, gone)?,
        );
        ensure!(
            made == gone && made > 50,
            "{function}: {made} made, {gone} destroyed"
        );
    }
    Ok(())
}

/// Probes with a DPU, each side under its fault rules. Returns the report, and the output if the probe ended with 1.
fn with_dpu(
    world: &World,
    testbed: &Testbed,
    link: &str,
    [host, dpu]: [&str; 2],
) -> Result<(Value, Option<String>)> {
    let port = free_port()?;
    let address = format!("127.0.0.1:{port}");
    let file = testbed.path().join("probe.json");
    let program = world.built("xgvmi");
    let start = |function: &str, rules: &str| {
        let mut command = testbed.command_with(&options(link), function, &program);
        command.arg("probe").env("BFEMU_FAULTS", rules);
        command
    };
    let mut serve = start("node0.dpu", dpu);
    serve.args(["--serve", &address]);
    let mut probe = start("node0.host", host);
    probe
        .args(["--peer", &address, "--sizes", "16K,1M", "--limit", "50"])
        .arg("--json")
        .arg(&file);
    let (_, probed) = run_pair(&mut serve, &mut probe, port)?;
    let report = read(&file).with_context(|| format!("{}\n{}", probed.verdict(), probed.output))?;
    Ok((report, (!probed.ok()).then_some(probed.output)))
}

/// The verdicts of the exchange with the DPU, in the order of its steps.
fn exchanged(report: &Value) -> [bool; 3] {
    ["verified", "invalid_refused", "rebound"].map(|step| report["peer"][step] == true)
}

/// Firmware that refuses a new alias of an invalid key is good: the library keeps its alias over invalidations and
/// binds, and so does the probe. The report names the refusal, which concerns announcements only.
fn one_alias(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let rule = "any command create_alias_of_free status BAD_RES_STATE syndrome 0x51";
    let (report, failed) = with_dpu(world, &testbed, "infiniband", ["", rule])?;
    let refusal = report["peer"]["alias_of_invalid_refusal"].as_str();
    ensure!(
        failed.is_none()
            && exchanged(&report) == [true; 3]
            && refusal
                .is_some_and(|text| text.contains("CREATE_GENERAL_OBJECT") && text.contains("0x51"))
            && report["limits"]["aliases"]["created"] == 50
            && report["failures"].as_array().is_some_and(Vec::is_empty),
        "{report:#}"
    );
    ensure!(
        testbed.stats()?.refusals("node0.dpu", "injected")? == 1,
        "only the probe of the invalid key creates an alias of a free key"
    );
    Ok(())
}

/// Each step of the exchange fails in turn, after the proofs have passed. The probe names it and ends with 1.
fn failing_exchange(world: &World) -> Result<()> {
    for (rule, verdicts) in [
        ("any request umr_bind nth 6 shifted", [false, true, true]),
        (
            "any request umr_invalidate nth 5 ignored",
            [true, false, true],
        ),
        ("any request umr_bind nth 7 shifted", [true, true, false]),
    ] {
        let testbed = Testbed::new(world)?;
        let (report, failed) = with_dpu(world, &testbed, "infiniband", [rule, ""])?;
        let failed = failed.with_context(|| format!("{rule}: {report:#}"))?;
        ensure!(
            exchanged(&report) == verdicts && failed.contains("NO"),
            "{rule}: {report:#}"
        );
    }
    Ok(())
}

/// The fields that a reader of the file may rely on.
fn has_fields(report: &Value) -> Result<()> {
    let check = |part: &Value, strings: &[&str], numbers: &[&str]| -> Result<()> {
        let string = |name: &&str| part[*name].as_str().is_some_and(|text| !text.is_empty());
        let number = |name: &&str| part[*name].is_number();
        ensure!(strings.iter().all(string), "{part:#}");
        ensure!(numbers.iter().all(number), "{part:#}");
        Ok(())
    };
    check(report, &["device", "firmware", "link"], &[])?;
    check(&report["proofs"][0], &["form"], &["us"])?;
    for cost in report["costs"].as_array().context("costs")? {
        check(cost, &["step"], &["size", "measured_us"])?;
        ensure!(cost.get("slide_us").is_some(), "{cost:#}");
    }
    ensure!(
        report["failures"].as_array().is_some_and(Vec::is_empty),
        "{report:#}"
    );
    ensure!(
        report["limits"].is_object() && report["peer"].is_object(),
        "{report:#}"
    );
    Ok(())
}

/// Runs a probe of the host's function under fault rules. Returns its report and whether it found all well.
fn under(world: &World, rules: &str) -> Result<(Value, bool)> {
    let testbed = Testbed::new(world)?;
    let file = testbed.path().join("probe.json");
    let mut command = testbed.command("node0.host", world.built("xgvmi"));
    command
        .args([
            "probe",
            "--sizes",
            "16K",
            "--limit",
            "100",
            "--repeats",
            "1",
        ])
        .arg("--json")
        .arg(&file)
        .env("BFEMU_FAULTS", rules);
    let done = process::run(&mut command, LIMIT)?;
    let report = read(&file).with_context(|| format!("{}\n{}", done.verdict(), done.output))?;
    Ok((report, done.ok()))
}

/// The device's refusal ends the search and is in the report; the keys that were created are destroyed.
fn limit_of_keys(world: &World) -> Result<()> {
    // The proofs use the first keys, and the timed steps after the search need more.
    let rules = "node0.host command create_mkey after 20 times 1 status LIMITS_EXCEEDED";
    let (report, well) = under(world, rules)?;
    let found = &report["limits"]["mkeys"];
    let created = found["created"].as_u64().context("created")?;
    let refusal = found["refusal"].as_str().unwrap_or_default();
    ensure!(
        well && (10..=20).contains(&created) && refusal.contains("exceeds the limits"),
        "{found:#}"
    );
    Ok(())
}

/// Each step of a proof fails in turn. The probe names it and ends with 1.
fn failing_proof(world: &World) -> Result<()> {
    for (rules, step) in [
        ("node0.host request umr_bind syndrome MW_BIND_ERR", "bound"),
        ("node0.host request umr_bind shifted", "read"),
        ("node0.host request umr_bind longer", "beyond_refused"),
        (
            "node0.host request umr_invalidate ignored",
            "invalid_refused",
        ),
    ] {
        let (report, well) = under(world, rules).with_context(|| rules.to_owned())?;
        let proof = &report["proofs"][0];
        ensure!(
            !well && proof["form"] == "stock" && proof[step] == false,
            "{rules}: {report:#}"
        );
        let steps = ["bound", "read", "beyond_refused", "invalid_refused"];
        let before = steps.iter().take_while(|before| **before != step);
        for before in before {
            ensure!(proof[before] == true, "{rules}: {before} in {proof:#}");
        }
        ensure!(proof["failure"].is_string(), "{rules}: {proof:#}");
    }
    Ok(())
}

/// A refusal ends its part of the report and no other part. Only parts that the library needs end the probe with 1.
fn refused_part(world: &World) -> Result<()> {
    // The first registration of a umem belongs to the approach without verbs, which the library does not use.
    let rules = "node0.host command umem_reg status LIMITS_EXCEEDED";
    let (report, well) = under(world, rules)?;
    let failures = report["failures"].as_array().context("failures")?;
    ensure!(
        well && failures.len() == 1
            && failures[0]["part"] == "umem"
            && failures[0]["needed"] == false
            && approaches(&report) == ["indirection", "umr", "umr_pool_hit"],
        "{report:#}"
    );
    let rules = "node0.host command allow_other_vhca_access status BAD_PARAM";
    let (report, well) = under(world, rules)?;
    let failures = report["failures"].as_array().context("failures")?;
    let named = |part: &Value, field: &str| {
        let text = part[field].as_str().unwrap_or_default();
        text.contains("ALLOW_OTHER_VHCA_ACCESS")
    };
    ensure!(
        !well
            && named(&report["proofs"][0], "failure")
            && failures.len() == 2
            && failures.iter().all(|failure| named(failure, "reason")),
        "{report:#}"
    );
    ensure!(report["capabilities"]["allow"] == true, "{report:#}");
    Ok(())
}

/// The approaches whose costs a report has, in their order.
fn approaches(report: &Value) -> Vec<&str> {
    let rows = report["costs"].as_array().map(Vec::as_slice);
    let mut names: Vec<&str> = rows
        .unwrap_or_default()
        .iter()
        .filter_map(|row| row["approach"].as_str())
        .collect();
    names.dedup();
    names
}

/// `UCX_IB_GID_INDEX` selects the entry of the GID table, as for UCX and for the library.
fn gid_of_ucx(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let file = testbed.path().join("probe.json");
    for (index, well, expect) in [
        ("1", true, ""),
        ("auto", true, ""),
        ("200", false, "GID 200 of port 1 is empty"),
        ("first", false, "a number from 0 to 255, or auto"),
    ] {
        let program = world.built("xgvmi");
        let mut command = testbed.command_with(&options("ethernet"), "node0.host", &program);
        command.args(["probe", "--limit", "0", "--sizes", "16K", "--repeats", "1"]);
        command
            .arg("--json")
            .arg(&file)
            .env("UCX_IB_GID_INDEX", index);
        let done = process::run(&mut command, LIMIT)?;
        ensure!(
            done.ok() == well && done.output.contains(expect),
            "{index}: {}",
            done.output
        );
    }
    Ok(())
}

/// A peer that is absent, silent, of another protocol or of another version ends the probe with a line that says so.
fn bad_peers(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let probe = |address: &str| -> Result<(bool, String)> {
        let mut command: Command = testbed.command("node0.host", world.built("xgvmi"));
        command.args(["probe", "--limit", "0", "--sizes", "16K", "--peer", address]);
        let done = process::run(&mut command, LIMIT)?;
        Ok((done.ok(), done.output))
    };
    let check = |address: &str, expect: &str| -> Result<()> {
        let (well, output) = probe(address)?;
        ensure!(!well && output.contains(expect), "{address}: {output}");
        Ok(())
    };
    check("nowhere", "not a HOST:PORT")?;
    check(
        &format!("127.0.0.1:{}", free_port()?),
        "start `xgvmi probe --serve ADDRESS:PORT` on the DPU first",
    )?;
    for (greeting, expect) in [
        ("SSH-2.0-OpenSSH_9.2\r\n", "not an `xgvmi probe --serve`"),
        (
            "{\"xgvmi_probe\":99,\"device\":\"x\",\"firmware\":\"x\",\"link\":\"x\",\"vhca_id\":1}\n",
            "install the same version on both",
        ),
        ("", "closed at once"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let stranger = std::thread::spawn(move || -> std::io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            stream.write_all(greeting.as_bytes())
        });
        check(&address, expect)?;
        stranger
            .join()
            .map_err(|_| anyhow::anyhow!("the stranger's thread ended badly"))??;
    }
    Ok(())
}
