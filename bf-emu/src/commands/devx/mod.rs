//! Device commands: the part of the firmware.
//!
//! Each function reads a command from its mailbox, checks it, and changes the tables. An error is a
//! status and a syndrome, as in firmware.

mod caps;
mod cq;
mod dct;
mod dpa;
mod known;
mod mailbox;
mod mkey;
mod qp;
mod rmp;
mod xgvmi;

use mlx5_prm::cmd::{self, opcode, status};
use mlx5_prm::vport;

use mailbox::{BAD_OP, BAD_PARAM, BAD_RESOURCE, Output, get, get8, get16};
pub(crate) use mailbox::{CommandError, Result};
pub(in crate::commands) use xgvmi::is_alias_of_free;

use crate::commands::call::{Call, Kind};
use crate::fabric::counters::{Command, Refusal};
use crate::fabric::numbers::{key_of, number_of};
use crate::fabric::{Place, QPN_BASE};
use crate::model::adapter::SM_LID;
use crate::sys::Errno;

/// The opcode of a mailbox, if this call may carry it.
fn opcode_of(call: &Call<'_>, by: known::Call, input: &[u8]) -> std::result::Result<u16, Errno> {
    let opcode = get16(input, cmd::OPCODE);
    if known::passes(by, opcode) {
        Ok(opcode)
    } else {
        call.counters().refuse(Refusal::UnknownCommand);
        Err(Errno(libc::EINVAL))
    }
}

/// Counts a refusal and returns the result unchanged.
fn counted<T>(call: &Call<'_>, result: Result<T>) -> Result<T> {
    if let Err(CommandError::Refused(status, _)) = result {
        call.counters().refuse(match status {
            status::BAD_OP => Refusal::UnknownCommand,
            status::LIMITS_EXCEEDED => Refusal::TableFull,
            _ => Refusal::BadCommand,
        });
    }
    result
}

/// A command on the device itself.
pub(crate) fn general(call: &Call<'_>, input: &[u8], capacity: usize) -> Result {
    let result = match opcode_of(call, known::Call::General, input)? {
        opcode::QUERY_HCA_CAP => caps::query(call, input, capacity),
        opcode::ALLOW_OTHER_VHCA_ACCESS => xgvmi::allow(call, input, capacity),
        opcode::QUERY_LAG => {
            call.count(Command::Other);
            // The port is not bonded.
            Ok(Output::new(cmd::HEADER_BYTES, capacity).done())
        }
        opcode::QUERY_HCA_VPORT_CONTEXT => query_vport(call, input, capacity),
        _ => {
            call.count(Command::Other);
            Err(BAD_OP)
        }
    };
    counted(call, result)
}

/// A command that creates an object. Returns its handle and the output.
pub(crate) fn create(call: &Call<'_>, input: &[u8], capacity: usize) -> Result<(u32, Vec<u8>)> {
    let result = match opcode_of(call, known::Call::Create, input)? {
        opcode::CREATE_MKEY => mkey::create(call, input, capacity),
        opcode::CREATE_CQ => cq::create(call, input, capacity),
        opcode::CREATE_QP => qp::create(call, input, capacity),
        opcode::CREATE_DCT => dct::create(call, input, capacity),
        opcode::CREATE_RMP => rmp::create(call, input, capacity),
        opcode::CREATE_GENERAL_OBJECT if dpa::is_creation(input) => {
            dpa::create(call, input, capacity)
        }
        opcode::CREATE_GENERAL_OBJECT => xgvmi::create_object(call, input, capacity),
        _ => {
            call.count(Command::Other);
            Err(BAD_OP)
        }
    };
    counted(call, result)
}

/// Destroys an object of a command.
pub(crate) fn destroy(call: &Call<'_>, handle: u32) -> std::result::Result<(), Errno> {
    let (kind, slot) = Kind::split(handle)?;
    let result = match kind {
        Kind::Mkey => mkey::destroy(call, slot),
        Kind::Cq => cq::destroy(call, slot),
        Kind::Qp => qp::destroy(call, slot),
        Kind::Srq => rmp::destroy(call, slot),
        Kind::Dpa => dpa::destroy(call, slot),
        _ => Err(CommandError::Kernel(Errno(libc::ENOENT))),
    };
    match counted(call, result) {
        Ok(()) => Ok(()),
        Err(CommandError::Refused(..)) => Err(Errno(libc::EREMOTEIO)),
        Err(CommandError::Kernel(errno)) => Err(errno),
    }
}

/// A command that changes an object.
pub(crate) fn modify(call: &Call<'_>, handle: u32, input: &[u8], capacity: usize) -> Result {
    let command = opcode_of(call, known::Call::Modify, input)?;
    let (kind, slot) = named(handle, input)?;
    let result = match (kind, command) {
        (
            Kind::Qp,
            opcode::RST2INIT_QP
            | opcode::INIT2INIT_QP
            | opcode::INIT2RTR_QP
            | opcode::RTR2RTS_QP
            | opcode::RTS2RTS_QP
            | opcode::SQERR2RTS_QP
            | opcode::TO_ERR_QP
            | opcode::TO_RST_QP,
        ) => qp::modify(call, slot, command, input, capacity),
        (Kind::Cq, opcode::MODIFY_CQ) => cq::modify(call, slot, input, capacity),
        (Kind::Dpa, opcode::MODIFY_GENERAL_OBJECT) => dpa::modify(call, slot, input, capacity),
        _ => {
            call.count(Command::Other);
            Err(BAD_OP)
        }
    };
    counted(call, result)
}

/// A command that queries an object.
pub(crate) fn query(call: &Call<'_>, handle: u32, input: &[u8], capacity: usize) -> Result {
    let command = opcode_of(call, known::Call::Query, input)?;
    let (kind, slot) = named(handle, input)?;
    let result = match (kind, command) {
        (Kind::Qp, opcode::QUERY_QP) => qp::query(call, slot, capacity),
        (Kind::Cq, opcode::QUERY_CQ) => cq::query(call, slot, capacity),
        (Kind::Qp, opcode::QUERY_DCT) => dct::query(call, slot, capacity),
        (Kind::Mkey, opcode::QUERY_GENERAL_OBJECT) => {
            xgvmi::query_object(call, slot, input, capacity)
        }
        (Kind::Dpa, opcode::QUERY_GENERAL_OBJECT) => dpa::query(call, slot, input, capacity),
        _ => {
            call.count(Command::Other);
            Err(BAD_OP)
        }
    };
    counted(call, result)
}

/// The object that a call names by its handle and the mailbox by its number. The kernel requires
/// both to be the same (`devx_is_valid_obj_id`).
fn named(handle: u32, input: &[u8]) -> std::result::Result<(Kind, u32), Errno> {
    let (kind, slot) = Kind::split(handle)?;
    let in_mailbox = match get16(input, cmd::OPCODE) {
        opcode::QUERY_GENERAL_OBJECT | opcode::MODIFY_GENERAL_OBJECT => {
            get(input, cmd::GENERAL_OBJECT_ID)
        }
        _ => get(input, cmd::OBJECT_NUMBER),
    };
    let number = match kind {
        Kind::Qp => slot + QPN_BASE,
        Kind::Mkey => key_of(slot, 0) >> 8,
        Kind::Cq | Kind::Srq => number_of(slot),
        Kind::Dpa => slot,
        _ => return Err(Errno(libc::ENOENT)),
    };
    if number == in_mailbox {
        Ok((kind, slot))
    } else {
        Err(Errno(libc::EINVAL))
    }
}

/// `QUERY_HCA_VPORT_CONTEXT`. The command names the port only if the function has two.
fn query_vport(call: &Call<'_>, input: &[u8], capacity: usize) -> Result {
    call.count(Command::Other);
    let identity = call
        .fabric()
        .identity(call.function())
        .ok_or(BAD_RESOURCE)?;
    let port = get8(input, vport::PORT_NUM).max(1);
    if !identity.ports().contains(&port) {
        return Err(BAD_PARAM);
    }
    let link = identity.link(port);
    if link.is_ethernet() {
        // The command applies to InfiniBand ports only.
        return Err(BAD_PARAM);
    }
    let state = call.fabric().port_state(Place {
        function: call.function(),
        port,
    });
    let mut output = Output::new(vport::QUERY_OUT_BYTES, capacity);
    output
        .set(vport::PORT_PHYSICAL_STATE, u64::from(state.physical_code()))
        .set(vport::PORT_STATE, u64::from(state.code()))
        .set(vport::VPORT_STATE, u64::from(state.code()))
        .set(vport::SYSTEM_IMAGE_GUID, identity.sys_image_guid)
        .set(vport::PORT_GUID, identity.port_guid(port))
        .set(vport::NODE_GUID, identity.node_guid)
        .set(vport::LID, u64::from(identity.lid(port)))
        .set(vport::GRH_REQUIRED, u64::from(link.needs_grh()))
        .set(vport::CAP_MASK1, u64::from(link.capabilities()))
        .set(vport::SM_LID, u64::from(SM_LID));
    Ok(output.done())
}
