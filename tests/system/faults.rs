//! Injected faults as stock libibverbs and libmlx5 see them: through `bf-emu fault` and through the
//! environment.

use crate::agent::{self, Agent, Memory, connect};
use crate::harness::Case;
use crate::process;
use crate::talk::Talk;
use crate::world::{LIMIT, Testbed, World};
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};

const SIZE: u64 = 64 * 1024;
const OWNER: &str = "node0.host";
const PEER: &str = "node1.host";

/// A rule, a command, and the expected start of its answer.
struct Refusal {
    name: &'static str,
    rule: &'static str,
    /// Commands that must succeed before the rule is active,
    before: &'static [&'static str],
    /// and after it.
    between: &'static [&'static str],
    command: &'static str,
    answer: &'static str,
}

const REFUSALS: &[Refusal] = &[
    Refusal {
        name: "fault_create_mkey_by_number",
        rule: "node0.host command create_mkey nth 2 status LIMITS_EXCEEDED syndrome 0x77",
        before: &[],
        between: &["ksm 0 0 0 4096"],
        command: "ksm 1 0 0 4096",
        answer: "error CREATE_MKEY: status 0x8 syndrome 0x77 errno 121",
    },
    Refusal {
        name: "fault_create_mkey_of_libmlx5",
        rule: "any command create_mkey status LIMITS_EXCEEDED",
        before: &[],
        between: &[],
        command: "umr 0",
        answer: "error mlx5dv_create_mkey",
    },
    Refusal {
        name: "fault_allow_other_vhca_access",
        rule: "any command allow_other_vhca_access every 1 status BAD_PARAM",
        before: &["ksm 0 0 0 4096"],
        between: &[],
        command: "allow 1536 secret",
        answer: "error ALLOW_OTHER_VHCA_ACCESS: status 0x3 syndrome 0x0",
    },
    Refusal {
        name: "fault_create_general_object",
        rule: "any command create_general_object status BAD_RESOURCE syndrome 0x5",
        before: &[],
        between: &[],
        command: "alias 0 1 1536 secret",
        answer: "error CREATE_GENERAL_OBJECT: status 0x5 syndrome 0x5",
    },
    Refusal {
        name: "fault_modify_qp_to_rtr",
        rule: "any command modify_qp_rtr status BAD_PARAM",
        before: &["qp 0"],
        between: &[],
        command: "connect 0 72 1",
        answer: "error ibv_modify_qp: Invalid argument",
    },
    Refusal {
        name: "fault_registration",
        rule: "any command reg_mr nth 2 errno ENOMEM",
        before: &[],
        between: &["mem 1 4096"],
        command: "mem 2 4096",
        answer: "error ibv_reg_mr: Cannot allocate memory",
    },
    // 6 is IBV_WC_MW_BIND_ERR.
    Refusal {
        name: "fault_umr_bind",
        rule: "any request umr_bind nth 2 syndrome MW_BIND_ERR",
        before: &["umr 0"],
        between: &["bind 0 0 0 4096", "invalidate 0"],
        command: "bind 0 0 0 4096",
        answer: "ok wc=6",
    },
    // 5 is IBV_WC_WR_FLUSH_ERR.
    Refusal {
        name: "fault_qp_error",
        rule: "any request umr qp_error",
        before: &["umr 0"],
        between: &[],
        command: "bind 0 0 0 4096",
        answer: "ok wc=5",
    },
];

pub(crate) fn cases() -> Vec<Case> {
    let refusal = |row: &'static Refusal| Case::new(row.name, move |world| refused(world, row));
    let mut cases: Vec<Case> = REFUSALS.iter().map(refusal).collect();
    cases.extend([
        Case::new("fault_late_completion", late),
        Case::new("fault_vanished_peer", vanished),
        Case::new("fault_by_environment", by_environment),
        Case::new("fault_list_and_clear", listed),
    ]);
    cases
}

pub(crate) fn fault(testbed: &Testbed<'_>, words: &[&str]) -> Result<String> {
    let (subcommand, rest) = words.split_first().context("no words")?;
    let mut command = std::process::Command::new(testbed.emulator("fault").get_program());
    command.args(["fault", subcommand]);
    // Here the state option follows the second word.
    command.args(testbed.emulator("fault").get_args().skip(1));
    process::stdout(command.args(rest), LIMIT)
}

fn refused(world: &World, row: &Refusal) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut agent = Agent::start(&testbed, OWNER)?;
    agent.memory(0, SIZE, "wRW")?;
    for command in row.before {
        agent.tell(command)?;
    }
    fault(&testbed, &["add", row.rule])?;
    for command in row.between {
        agent.tell(command)?;
    }
    agent.ask(row.command)?.expect_start(row.answer)
}

/// A late completion is late and then arrives.
fn late(world: &World) -> Result<()> {
    const LATE: Duration = Duration::from_millis(300);
    let testbed = Testbed::new(world)?;
    let mut agent = Agent::start(&testbed, OWNER)?;
    agent.memory(0, SIZE, "wRW")?;
    agent.tell("umr 0")?;
    fault(
        &testbed,
        &["add", "node0.host request umr_bind nth 1 late 300ms"],
    )?;
    let start = Instant::now();
    agent.ask("bind 0 0 0 4096")?.expect_start("ok wc=0")?;
    let took = start.elapsed();
    ensure!(took >= LATE, "it came after {took:?} already");
    agent.ask("invalidate 0")?.expect_start("ok wc=0")
}

/// If a process dies during its work, its peer gets an error and does not hang.
fn vanished(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let (mut owner, mut peer) = (
        Agent::start(&testbed, OWNER)?,
        Agent::start(&testbed, PEER)?,
    );
    let here: Memory = owner.memory(0, SIZE, "wRW")?;
    let there: Memory = peer.memory(0, SIZE, "wRW")?;
    connect(&mut owner, &mut peer)?;
    fault(
        &testbed,
        &["add", "node0.host request rdma_write nth 2 vanish"],
    )?;
    let write = |agent: &mut Agent, from: Memory, to: Memory| {
        agent.rdma("write", (from.addr, from.lkey), (to.addr, to.rkey), 4096)
    };
    ensure!(
        write(&mut owner, here, there)? == agent::Wc::Success,
        "the first write"
    );
    ensure!(
        write(&mut owner, here, there).is_err(),
        "the process is still there"
    );
    let seen = write(&mut peer, there, here)?;
    // IBV_WC_RETRY_EXC_ERR
    ensure!(seen == agent::Wc::Other(12), "the peer saw {seen:?}");
    Ok(())
}

/// Rules in the environment apply to that process and end with it.
fn by_environment(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let program = agent::compile("crash_peer")?;
    let open = |rules: Option<&str>| -> Result<String> {
        let mut command = testbed.command(OWNER, &program);
        if let Some(rules) = rules {
            command.env("BFEMU_FAULTS", rules);
        }
        let mut talk = Talk::start(&mut command)?;
        let answer = talk.ask("open 1 0", LIMIT);
        talk.end()?;
        answer
    };
    let answer = open(Some("any command create_srq errno EBUSY"))?;
    ensure!(
        answer == "error ibv_create_srq: Device or resource busy",
        "{answer}"
    );
    let answer = open(None)?;
    ensure!(answer == "ok", "without rules: {answer}");
    // Invalid rules are reported. The process gets no device instead of one without the requested
    // faults.
    let answer = open(Some("any command create_srq breaks"))?;
    ensure!(answer.starts_with("error"), "with bad rules: {answer}");
    Ok(())
}

fn listed(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut agent = Agent::start(&testbed, OWNER)?;
    fault(
        &testbed,
        &[
            "add",
            "node0.host command reg_mr every 3 errno EAGAIN; any request any never",
        ],
    )?;
    for slot in 0..3 {
        agent.ask(&format!("mem {slot} 4096"))?;
    }
    let list = || -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&fault(
            &testbed,
            &["list", "--json"],
        )?)?)
    };
    let all = list()?;
    ensure!(
        all[0]["rule"] == "node0.host command reg_mr every 3 errno EAGAIN"
            && all[0]["seen"] == 3
            && all[0]["struck"] == 1
            && all[1]["seen"] == 0,
        "{all}"
    );
    fault(&testbed, &["clear", "1"])?;
    ensure!(list()?.as_array().map(Vec::len) == Some(1), "{}", list()?);
    let error = fault(&testbed, &["clear", "1"]).map_err(|error| format!("{error:#}"));
    ensure!(
        error
            .as_ref()
            .is_err_and(|text| text.contains("no rule 1 is active")),
        "{error:?}"
    );
    let error = fault(&testbed, &["add", "node7.host command any vanish"])
        .map_err(|error| format!("{error:#}"));
    let names = "`node7.host` is not valid as function: one of any, node0.host";
    ensure!(
        error.as_ref().is_err_and(|text| text.contains(names)),
        "{error:?}"
    );
    fault(&testbed, &["clear"])?;
    ensure!(list()? == serde_json::json!([]), "{}", list()?);
    Ok(())
}
