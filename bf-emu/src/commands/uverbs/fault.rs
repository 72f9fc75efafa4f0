//! The name of each call, for fault rules and for the trace.

use mlx5_prm::cmd::{self, opcode, status};
use mlx5_prm::xgvmi::alias;

use super::abi::{self, device, devx, invoke, object, write};
use super::devx as commands;
use super::ioctl::{Fields, Ioctl};
use crate::bits::{low16, low32};
use crate::commands::call::{Call, Kind};
use crate::commands::devx::{CommandError, is_alias_of_free};
use crate::fabric::counters::Refusal;
use crate::fabric::objects::MkeyKind;
use crate::fabric::rules;
use crate::fabric::trace::What;
use crate::model::faults::{Action, Call as Name, Event};
use crate::sys::{self, Errno};

/// Applies the rules to a call. Some is the result of the call, which is then not executed.
pub(super) fn inject(call: &Call<'_>, ioctl: &Ioctl) -> Option<Result<(), Errno>> {
    if !call.fabric().has_faults() {
        return None;
    }
    let name = refined(call, ioctl, name(call, ioctl)?);
    let process = call.owner().ok()?.process;
    let mut locked = call.fabric().lock();
    let rules = &mut locked.common().faults;
    let action = rules::decide(rules, call.function(), process, Event::Call(name))?;
    drop(locked);
    call.counters().refuse(Refusal::Injected);
    match action {
        Action::Status { status, syndrome } => Some(refuse(ioctl, status, syndrome)),
        Action::Errno(errno) => Some(Err(Errno(errno))),
        Action::Late { ns } => {
            sys::sleep(ns);
            None
        }
        Action::Vanish => {
            sys::vanish();
            None
        }
        // The parser accepts these actions for work requests only.
        Action::Syndrome(_) | Action::Never | Action::QpError | Action::Wrong(_) => None,
    }
}

/// A call that is written to the trace when it ends.
#[derive(Debug)]
pub(super) struct Traced {
    name: Name,
    since_ns: u64,
}

/// Prepares the trace record of a call, if a trace is on. Runs before the call, which may destroy
/// the object that it names.
pub(super) fn traced(call: &Call<'_>, ioctl: &Ioctl) -> Option<Traced> {
    if !call.fabric().trace().is_on() {
        return None;
    }
    Some(Traced {
        name: name(call, ioctl)?,
        since_ns: sys::now_ns(),
    })
}

impl Traced {
    /// Writes the record.
    pub(super) fn end(self, call: &Call<'_>, result: Result<(), Errno>) {
        let what = What::Call {
            call: self.name,
            errno: result.err().map_or(0, |errno| errno.0),
            took_ns: sys::now_ns().saturating_sub(self.since_ns),
        };
        call.fabric().trace().write(call.function(), what);
    }
}

/// The device's refusal. A caller of DEVX sees it in its mailbox, and a caller of verbs as the
/// kernel's errno.
fn refuse(ioctl: &Ioctl, status: u8, syndrome: u32) -> Result<(), Errno> {
    let refused = Err(CommandError::Refused(status, syndrome));
    match (ioctl.object, ioctl.method) {
        (object::DEVX, devx::OTHER) => commands::answer(ioctl, devx::OTHER_CMD_OUT, refused),
        (object::DEVX_OBJ, devx::OBJ_DESTROY) => Err(Errno(libc::EREMOTEIO)),
        (object::DEVX_OBJ, _) => commands::answer(ioctl, devx::OBJ_CMD_OUT, refused),
        _ => Err(errno_of(status)),
    }
}

/// The kernel's errno for a command's status (`mlx5/core/cmd.c`, `cmd_status_to_err`).
fn errno_of(status: u8) -> Errno {
    Errno(match status {
        status::BAD_OP
        | status::BAD_PARAM
        | status::BAD_RESOURCE
        | status::BAD_RES_STATE
        | status::BAD_QP_STATE
        | status::BAD_PACKET
        | status::BAD_SIZE => libc::EINVAL,
        status::RESOURCE_BUSY => libc::EBUSY,
        status::LIMITS_EXCEEDED => libc::ENOMEM,
        status::BAD_INDEX => libc::ENOENT,
        status::NO_RESOURCES => libc::EAGAIN,
        // The internal error, a bad system state, and bad lengths, which the kernel never sends.
        _ => libc::EIO,
    })
}

/// The name of a call in fault rules; None if it has none.
fn name(call: &Call<'_>, ioctl: &Ioctl) -> Option<Name> {
    const CREATE: u16 = 0;
    const DESTROY: u16 = 1;
    const DRIVER_CREATE: u16 = abi::DRIVER;
    const DRIVER_DESTROY: u16 = abi::DRIVER + 1;
    Some(match (ioctl.object, ioctl.method) {
        (object::DEVICE, device::INVOKE_WRITE) => name_of_write(ioctl)?,
        (object::DEVICE, device::QUERY_PORT) => Name::QueryPort,
        (object::DEVICE, device::GET_CONTEXT) => Name::OpenContext,
        (object::ASYNC_EVENT, CREATE) => Name::CreateChannel,
        (object::PD, 0) => Name::DeallocPd,
        (object::MR, 0) => Name::RegMr,
        (object::MR, 1) => Name::DeregMr,
        (object::MW, 0) => Name::DeallocMw,
        (object::CQ, CREATE) => Name::CreateCq,
        (object::CQ, DESTROY) => Name::DestroyCq,
        (object::QP, CREATE) => Name::CreateQp,
        (object::QP, DESTROY) => Name::DestroyQp,
        (object::SRQ, CREATE) => Name::CreateSrq,
        (object::SRQ, DESTROY) => Name::DestroySrq,
        (object::UAR, DRIVER_CREATE) => Name::AllocUar,
        (object::DEVX, devx::OTHER) => name_of_command(&mailbox(ioctl, devx::OTHER_CMD_IN)?),
        (object::DEVX, devx::SUBSCRIBE_EVENT) => Name::SubscribeEvent,
        (object::DEVX_OBJ, devx::OBJ_DESTROY) => {
            name_of_destruction(call, ioctl.number32(devx::OBJ_HANDLE).ok()?)?
        }
        (object::DEVX_OBJ, _) => name_of_command(&mailbox(ioctl, devx::OBJ_CMD_IN)?),
        (object::DEVX_UMEM, DRIVER_CREATE) => Name::UmemReg,
        (object::DEVX_UMEM, DRIVER_DESTROY) => Name::UmemDereg,
        (object::DEVX_ASYNC_CMD_FD | object::DEVX_ASYNC_EVENT_FD, DRIVER_CREATE) => {
            Name::CreateChannel
        }
        _ => Name::Other,
    })
}

/// Tells an alias of a free key from other general objects. The trace has no need of it.
fn refined(call: &Call<'_>, ioctl: &Ioctl, name: Name) -> Name {
    let of_free = || {
        let input = ioctl.input(devx::OBJ_CMD_IN, alias::IN_BYTES).ok()?;
        is_alias_of_free(call, &input).then_some(Name::CreateAliasOfFree)
    };
    match name {
        Name::CreateGeneralObject => of_free().unwrap_or(name),
        name => name,
    }
}

fn mailbox(ioctl: &Ioctl, attr: u16) -> Option<Vec<u8>> {
    ioctl.input(attr, cmd::HEADER_BYTES).ok()
}

fn name_of_command(mailbox: &[u8]) -> Name {
    match low16(low32(cmd::OPCODE.get(mailbox))) {
        opcode::QUERY_HCA_CAP => Name::QueryHcaCap,
        opcode::CREATE_MKEY => Name::CreateMkey,
        opcode::ALLOW_OTHER_VHCA_ACCESS => Name::AllowOtherVhcaAccess,
        opcode::CREATE_GENERAL_OBJECT => Name::CreateGeneralObject,
        opcode::CREATE_CQ => Name::CreateCq,
        opcode::MODIFY_CQ => Name::ModifyCq,
        opcode::CREATE_QP => Name::CreateQp,
        opcode::CREATE_RMP => Name::CreateSrq,
        opcode::QUERY_QP => Name::QueryQp,
        opcode::TO_RST_QP => Name::ModifyQpRst,
        opcode::RST2INIT_QP | opcode::INIT2INIT_QP => Name::ModifyQpInit,
        opcode::INIT2RTR_QP => Name::ModifyQpRtr,
        opcode::RTR2RTS_QP | opcode::RTS2RTS_QP | opcode::SQERR2RTS_QP => Name::ModifyQpRts,
        opcode::TO_ERR_QP => Name::ModifyQpErr,
        _ => Name::Other,
    }
}

fn name_of_destruction(call: &Call<'_>, handle: u32) -> Option<Name> {
    let (kind, slot) = Kind::split(handle).ok()?;
    Some(match kind {
        Kind::Mkey => {
            let locked = call.lock();
            let mkey = locked.peek(call.function()).mkeys.get(slot);
            match mkey.map(|mkey| mkey.kind) {
                Some(MkeyKind::Alias) => Name::DestroyGeneralObject,
                _ => Name::DestroyMkey,
            }
        }
        Kind::Cq => Name::DestroyCq,
        Kind::Qp => Name::DestroyQp,
        Kind::Srq => Name::DestroySrq,
        _ => Name::Other,
    })
}

fn name_of_write(ioctl: &Ioctl) -> Option<Name> {
    if !ioctl.has(invoke::CORE_IN) {
        // A probe of the interface, not a command.
        return None;
    }
    Some(match ioctl.number32(invoke::WRITE_CMD).ok()? {
        write::QUERY_DEVICE | write::EX_QUERY_DEVICE => Name::QueryDevice,
        write::ALLOC_PD => Name::AllocPd,
        write::REG_MR => Name::RegMr,
        write::REREG_MR => Name::ReregMr,
        write::ALLOC_MW => Name::AllocMw,
        write::CREATE_COMP_CHANNEL => Name::CreateChannel,
        write::RESIZE_CQ | write::EX_MODIFY_CQ => Name::ModifyCq,
        write::QUERY_QP => Name::QueryQp,
        write::MODIFY_QP | write::EX_MODIFY_QP => {
            // struct ib_uverbs_modify_qp: attr_mask at 68, the state at 96.
            const STATE: u32 = 1;
            let input = ioctl.input(invoke::CORE_IN, 112).ok()?;
            let input = Fields(&input);
            match (input.u32(68) & STATE, input.u8(96)) {
                (STATE, 0) => Name::ModifyQpRst,
                (STATE, 1) => Name::ModifyQpInit,
                (STATE, 2) => Name::ModifyQpRtr,
                (STATE, 3) => Name::ModifyQpRts,
                (STATE, 6) => Name::ModifyQpErr,
                _ => Name::ModifyQp,
            }
        }
        _ => Name::Other,
    })
}
