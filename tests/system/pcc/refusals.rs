//! What the library and the device refuse, each with one line that says what is wrong.

use super::{ACTIVE, Host, host, testbed};
use crate::talk::Talk;
use crate::world::{LIMIT, Testbed, World};
use anyhow::{Result, ensure};

/// Lines of the calls that `refusals` of the test program makes, in their order.
const LINES: [&str; 18] = [
    "doca_pcc_set_thread_affinity: 1 threads: a context has 2 to 128",
    "doca_pcc_set_thread_affinity: execution unit 254: the last one is 253",
    "doca_pcc_set_thread_affinity: execution unit 3 occurs twice",
    "doca_pcc_set_trace_message: format 0 of the trace",
    "doca_pcc_set_ccmad_probe_packet_format: probe format 1: the device has 1, from 0",
    "doca_pcc_rp_set_ifa2_gns: the probes of this context have the format Ccmad; set Ifa2 first",
    "doca_pcc_set_mailbox: a mailbox for requests of 0 bytes",
    "doca_pcc_stop: the PCC context is not started",
    "doca_pcc_mailbox_send: the PCC context is not started: call doca_pcc_start first",
    "doca_pcc_start: the PCC context is started already",
    "doca_pcc_set_mailbox: the PCC context has started: set this before doca_pcc_start",
    "doca_pcc_mailbox_send: a request of 9 bytes: the mailbox has 1 to 8",
    "doca_pcc_set_algo_params_ext: parameter 1 is read-only",
    "doca_pcc_set_algo_params_ext: slot 8 of port 0 has no algorithm",
    "doca_pcc_set_algo_params_ext: parameters 2 to 2: the algorithm has 2, from 0",
    "doca_pcc_set_algo_params_ext: parameter 0: 0 is not between 1 and 1048576",
    "doca_pcc_wait: a wait of -2 s: allowed are 0 and more",
    "doca_pcc_dump_debug: debugging is off: call doca_pcc_enable_debug first",
];

pub(super) fn all(world: &World) -> Result<()> {
    let testbed = testbed(world, 1)?;
    let mut first = Host::start(&testbed, world, 1)?;
    first.ok("create")?;
    first.ok("refusals")?;
    first.says(LINES[LINES.len() - 1])?;
    let said = first.0.complaints();
    let lines: Vec<&str> = said.lines().collect();
    ensure!(lines.len() == LINES.len(), "{} lines:\n{said}", lines.len());
    for (line, expect) in lines.iter().zip(LINES) {
        ensure!(line.contains(expect), "no '{expect}' in: {line}");
    }
    first.expect("mail 4", "DOCA_ERROR_UNEXPECTED")?;
    // A program without a callback.
    let mut lacking = Host::start(&testbed, world, 1)?;
    lacking.ok("create 2")?;
    lacking.expect("start", "DOCA_ERROR_INVALID_VALUE")?;
    lacking.says("doca_pcc_start: the program has no doca_pcc_dev_user_algo()")?;
    // A card has one receiver.
    let mut receivers = [
        Host::start(&testbed, world, 1)?,
        Host::start(&testbed, world, 1)?,
    ];
    for receiver in &mut receivers {
        receiver.ok("create 1")?;
    }
    let [only, second] = &mut receivers;
    only.ok("start")?;
    only.expect("state", ACTIVE)?;
    only.expect("mbps 1", "DOCA_ERROR_NOT_SUPPORTED")?;
    second.expect("start", "DOCA_ERROR_DRIVER")?;
    second.says("the card has a process of a receiver (NP) already")?;
    // InfiniBand: the question has an answer, and who does not ask gets a line.
    let other = Testbed::new(world)?;
    let mut talk = Talk::start(&mut other.command("node0.host", host(world)?))?;
    let answer = talk.ask("open", LIMIT)?;
    ensure!(answer == "DOCA_ERROR_NOT_SUPPORTED", "{answer}");
    let mut bold = Host(talk);
    bold.ok("open 1")?;
    bold.expect("create", "DOCA_ERROR_NOT_SUPPORTED")?;
    bold.says("has an InfiniBand port: congestion control needs Ethernet")
}
