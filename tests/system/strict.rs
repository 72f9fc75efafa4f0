//! Refusals of the kernel and the device with their errors: calls, commands and work requests that
//! stock libraries never issue, written by hand.

use crate::agent::Agent;
use crate::harness::Case;
use crate::world::{Testbed, World};
use anyhow::{Result, ensure};

const FUNCTION: &str = "node0.host";

/// A command to the agent and the expected start of its answer.
struct Row {
    name: &'static str,
    command: &'static str,
    answer: &'static str,
    /// The refusal counter in `bf-emu stats`, if any.
    counted: Option<&'static str>,
}

const fn refused(
    name: &'static str,
    command: &'static str,
    answer: &'static str,
    counted: &'static str,
) -> Row {
    Row {
        name,
        command,
        answer,
        counted: Some(counted),
    }
}

const fn obeyed(name: &'static str, command: &'static str) -> Row {
    Row {
        name,
        command,
        answer: "ok",
        counted: None,
    }
}

/// QUERY_PORT of port 1, as libibverbs issues it. The following calls differ from it.
const QUERY_PORT: &str = "ioctl 0 2 0:8:1:1 1:48:1:room";

/// Calls into the kernel. Attributes are ID:LENGTH:FLAGS:DATA; flag 1 marks a mandatory attribute.
const CALLS: &[Row] = &[
    obeyed("strict_good_call", QUERY_PORT),
    refused(
        "strict_unknown_object",
        "ioctl 0x7777 0",
        "error ioctl: Protocol not supported",
        "unknown_ioctl",
    ),
    refused(
        "strict_unknown_method",
        "ioctl 0 99",
        "error ioctl: Protocol not supported",
        "unknown_ioctl",
    ),
    refused(
        "strict_unknown_mandatory_attribute",
        "ioctl 0 2 0:8:1:1 1:48:1:room 9:0:1:0",
        "error ioctl: Protocol not supported",
        "unknown_ioctl",
    ),
    obeyed(
        "strict_unknown_optional_attribute",
        "ioctl 0 2 0:8:1:1 1:48:1:room 9:0:0:0",
    ),
    refused(
        "strict_missing_attribute",
        "ioctl 0 2 0:8:1:1",
        "error ioctl: Invalid argument",
        "bad_ioctl",
    ),
    refused(
        "strict_attribute_twice",
        "ioctl 0 2 0:8:1:1 0:8:1:1 1:48:1:room",
        "error ioctl: Invalid argument",
        "bad_ioctl",
    ),
    refused(
        "strict_attribute_too_short",
        "ioctl 0 2 0:4:1:1 1:48:1:room",
        "error ioctl: Invalid argument",
        "bad_ioctl",
    ),
    Row {
        name: "strict_no_such_port",
        command: "ioctl 0 2 0:8:1:2 1:48:1:room",
        answer: "error ioctl: Invalid argument",
        counted: None,
    },
    refused(
        "strict_unknown_write_command",
        "ioctl 0 0 2:8:1:77 0:8:1:room 1:8:1:room",
        "error ioctl: Operation not supported",
        "unknown_ioctl",
    ),
    Row {
        name: "strict_short_write_command",
        command: "ioctl 0 0 2:8:1:9 0:16:1:room 1:12:1:room",
        answer: "error ioctl: No space left on device",
        counted: None,
    },
    // DEALLOC_PD of a completion queue, and of a domain that does not exist.
    Row {
        name: "strict_handle_of_another_kind",
        command: "ioctl 1 0 0:0:1:0x02000000",
        answer: "error ioctl: No such file or directory",
        counted: None,
    },
    Row {
        name: "strict_handle_of_nothing",
        command: "ioctl 1 0 0:0:1:0x01000fff",
        answer: "error ioctl: No such file or directory",
        counted: None,
    },
    // INIT_HCA is not a user command; 0xbff would be a device command; DESTROY_QP creates no
    // object, and CREATE_SRQ would.
    refused(
        "strict_command_of_the_kernel",
        "devx general 0x102",
        "error general: status 0x0 syndrome 0x0 errno 22",
        "unknown_command",
    ),
    refused(
        "strict_unknown_command",
        "devx general 0xbff",
        "error general: status 0x2 syndrome 0x4 errno 121",
        "unknown_command",
    ),
    refused(
        "strict_command_by_the_wrong_call",
        "devx create 0x501",
        "error create: status 0x0 syndrome 0x0 errno 22",
        "unknown_command",
    ),
    refused(
        "strict_unknown_creation",
        "devx create 0x700",
        "error create: status 0x2 syndrome 0x4 errno 121",
        "unknown_command",
    ),
];

/// Attributes of a DC target, as created.
const TARGET: Row = Row {
    name: "strict_target_is_what_it_was_made",
    command: "dct 0x123456789abcdef0",
    answer: "ok state=0 write=1 read=0 rnr=12 pd=1 key=1311768467463790320 mtu=3",
    counted: None,
};

/// Entries of a send queue: opcode, then length in units of 16 bytes, then flags (8: completes with an entry).
const ENTRIES: &[Row] = &[
    obeyed(
        "strict_good_entry",
        "raw 0 00000000 00000001 00000008 00000000",
    ),
    // 2 is IBV_WC_LOC_QP_OP_ERR.
    refused(
        "strict_unknown_opcode",
        "raw 0 0000003e 00000001 00000008 00000000",
        "ok wc=2",
        "unknown_work",
    ),
    refused(
        "strict_entry_without_length",
        "raw 0 00000000 00000000 00000008 00000000",
        "ok wc=2",
        "local_operation",
    ),
    refused(
        "strict_entry_shorter_than_its_opcode",
        "raw 0 00000008 00000001 00000008 00000000",
        "ok wc=2",
        "local_operation",
    ),
    // An inline segment with a length beyond the entry.
    refused(
        "strict_inline_data_beyond_the_entry",
        "raw 0 0000000a 00000002 00000008 00000000 80000040 00000000 00000000 00000000",
        "ok wc=2",
        "local_operation",
    ),
];

pub(crate) fn cases() -> Vec<Case> {
    let call = |row: &'static Row| Case::new(row.name, move |world: &World| run(world, row, false));
    let entry = |row: &'static Row| Case::new(row.name, move |world: &World| run(world, row, true));
    let mut cases: Vec<Case> = CALLS.iter().map(call).collect();
    cases.extend(ENTRIES.iter().map(entry));
    cases.push(call(&TARGET));
    cases
}

fn run(world: &World, row: &Row, with_queue: bool) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut agent = Agent::start(&testbed, FUNCTION)?;
    if with_queue {
        // Connected to itself, which is equivalent to another peer here.
        let qpn: u32 = agent.tell("qp 0")?.value("qpn")?;
        agent.tell(&format!("connect 0 {qpn} {}", agent.lid()))?;
    }
    let counted = |refusal: &str| testbed.stats()?.refusals(FUNCTION, refusal);
    let before = row.counted.map(counted).transpose()?;
    agent.ask(row.command)?.expect_start(row.answer)?;
    if let (Some(refusal), Some(before)) = (row.counted, before) {
        let after = counted(refusal)?;
        ensure!(
            after == before + 1,
            "{refusal} was counted {before} times, then {after}"
        );
    }
    // The process and its objects still work.
    agent.tell(QUERY_PORT).map(drop)
}
