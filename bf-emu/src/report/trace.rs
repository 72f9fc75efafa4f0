//! Records of the trace, with names: `bf-emu trace`.

use std::fmt;

use mlx5_prm::cqe;
use mlx5_prm::wqe::opcode;
use serde::Serialize;

use crate::fabric::trace::{Record, What};

/// A record for display, with names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Its number, from 1. A gap means overwritten records.
    pub number: u64,
    /// Monotonic time of the machine, in nanoseconds.
    pub time_ns: u64,
    /// The process.
    pub pid: i32,
    /// Name of the function.
    pub function: String,
    /// "call", "mailbox", "doorbell", "entry", "request" or "completion".
    pub kind: &'static str,
    /// Name of the call, or opcode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'static str>,
    /// Queue pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qpn: Option<u32>,
    /// Completion queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cqn: Option<u32>,
    /// Number of the entry in its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u16>,
    /// Opcode of a device command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opcode: Option<u16>,
    /// Index of the part of an entry or mailbox, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<u8>,
    /// Bytes of an entry, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hex: Option<String>,
    /// Bytes moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// errno of a call, syndrome of a request or completion; 0 for success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<u32>,
    /// Duration of a call in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_ns: Option<u64>,
}

impl Shown {
    /// Adds the names of functions to a record.
    #[must_use]
    pub fn new(record: &Record, functions: &[&str]) -> Self {
        let function = functions.get(record.function).copied().unwrap_or("?");
        let mut shown = Self {
            number: record.number,
            time_ns: record.time_ns,
            pid: record.pid,
            function: function.to_owned(),
            kind: "doorbell",
            name: None,
            qpn: None,
            cqn: None,
            index: None,
            opcode: None,
            part: None,
            hex: None,
            bytes: None,
            error: None,
            took_ns: None,
        };
        match record.what {
            What::Call {
                call,
                errno,
                took_ns,
            } => {
                shown.kind = "call";
                shown.name = Some(call.name());
                shown.error = Some(errno.unsigned_abs());
                shown.took_ns = Some(took_ns);
            }
            What::Doorbell { qpn } => shown.qpn = Some(qpn),
            What::Request {
                qpn,
                opcode,
                index,
                syndrome,
                bytes,
            } => {
                shown.kind = "request";
                shown.name = Some(request_name(opcode));
                shown.qpn = Some(qpn);
                shown.index = Some(index);
                shown.bytes = Some(bytes);
                shown.error = Some(u32::from(syndrome));
            }
            What::Entry {
                qpn,
                index,
                part,
                bytes,
            } => {
                shown.kind = "entry";
                shown.qpn = Some(qpn);
                shown.index = Some(index);
                shown.part = Some(part);
                shown.hex = Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
            }
            What::Mailbox {
                opcode,
                part,
                bytes,
            } => {
                shown.kind = "mailbox";
                shown.opcode = Some(opcode);
                shown.part = Some(part);
                shown.hex = Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect());
            }
            What::Completion {
                cqn,
                qpn,
                opcode,
                index,
                syndrome,
                bytes,
            } => {
                shown.kind = "completion";
                shown.name = Some(completion_name(opcode));
                shown.qpn = Some(qpn);
                shown.cqn = Some(cqn);
                shown.index = Some(index);
                shown.bytes = Some(u64::from(bytes));
                shown.error = Some(u32::from(syndrome));
            }
        }
        shown
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.time_ns / 1_000_000_000, self.time_ns % 1_000_000_000);
        write!(
            f,
            "{seconds}.{nanos:09} {} {} {}",
            self.function, self.pid, self.kind
        )?;
        if let Some(name) = self.name {
            write!(f, " {name}")?;
        }
        if let Some(cqn) = self.cqn {
            write!(f, " cq {cqn:#x}")?;
        }
        if let Some(qpn) = self.qpn {
            write!(f, " qp {qpn:#x}")?;
        }
        if let Some(index) = self.index {
            write!(f, " index {index}")?;
        }
        if let Some(opcode) = self.opcode {
            write!(f, " command {opcode:#x}")?;
        }
        if let Some(part) = self.part {
            write!(f, " part {part}")?;
        }
        if let Some(hex) = &self.hex {
            write!(f, " {hex}")?;
        }
        if let Some(bytes) = self.bytes {
            write!(f, " bytes {bytes}")?;
        }
        if let Some(took_ns) = self.took_ns {
            write!(f, " took {}.{:03} us", took_ns / 1000, took_ns % 1000)?;
        }
        match (self.error, self.kind) {
            (None, _) => Ok(()),
            (Some(0), _) => write!(f, " ok"),
            (Some(errno), "call") => write!(f, " errno {errno}"),
            (Some(syndrome), _) => write!(f, " syndrome {syndrome:#04x}"),
        }
    }
}

fn request_name(code: u8) -> &'static str {
    match code {
        opcode::NOP => "nop",
        opcode::SEND => "send",
        opcode::SEND_IMM => "send_imm",
        opcode::SEND_INVAL => "send_inval",
        opcode::RDMA_WRITE => "rdma_write",
        opcode::RDMA_WRITE_IMM => "rdma_write_imm",
        opcode::RDMA_READ => "rdma_read",
        opcode::ATOMIC_CS => "atomic_cs",
        opcode::ATOMIC_FA => "atomic_fa",
        opcode::UMR => "umr",
        opcode::MMO => "mmo",
        _ => "other",
    }
}

fn completion_name(code: u8) -> &'static str {
    match code {
        cqe::opcode::REQ => "requester",
        cqe::opcode::RESP_WR_IMM => "responder_write_imm",
        cqe::opcode::RESP_SEND => "responder_send",
        cqe::opcode::RESP_SEND_IMM => "responder_send_imm",
        cqe::opcode::RESP_SEND_INV => "responder_send_inval",
        cqe::opcode::REQ_ERR => "requester_error",
        cqe::opcode::RESP_ERR => "responder_error",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::faults::Call;

    #[test]
    fn records_are_shown_with_names() {
        let record = |what| Record {
            number: 1,
            time_ns: 5_000_000_042,
            pid: 7,
            function: 1,
            what,
        };
        for (what, expect) in [
            (
                What::Doorbell { qpn: 0x48 },
                "5.000000042 b 7 doorbell qp 0x48",
            ),
            (
                What::Call {
                    call: Call::CreateMkey,
                    errno: 121,
                    took_ns: 1_500,
                },
                "5.000000042 b 7 call create_mkey took 1.500 us errno 121",
            ),
            (
                What::Request {
                    qpn: 0x48,
                    opcode: opcode::RDMA_WRITE,
                    index: 9,
                    syndrome: 0,
                    bytes: 4096,
                },
                "5.000000042 b 7 request rdma_write qp 0x48 index 9 bytes 4096 ok",
            ),
            (
                What::Entry {
                    qpn: 0x48,
                    index: 9,
                    part: 1,
                    bytes: [0xa5; 32],
                },
                concat!(
                    "5.000000042 b 7 entry qp 0x48 index 9 part 1 ",
                    "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5"
                ),
            ),
            (
                What::Mailbox {
                    opcode: 0x200,
                    part: 2,
                    bytes: [0x5a; 32],
                },
                concat!(
                    "5.000000042 b 7 mailbox command 0x200 part 2 ",
                    "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
                ),
            ),
            (
                What::Completion {
                    cqn: 0x10,
                    qpn: 0x48,
                    opcode: cqe::opcode::REQ_ERR,
                    index: 9,
                    syndrome: 6,
                    bytes: 0,
                },
                "5.000000042 b 7 completion requester_error cq 0x10 qp 0x48 index 9 bytes 0 syndrome 0x06",
            ),
        ] {
            assert_eq!(Shown::new(&record(what), &["a", "b"]).to_string(), expect);
        }
    }
}
