//! Objects of the DPA. Its runner executes the commands; this process passes them on.

use mlx5_prm::cmd;
use mlx5_prm::cq;
use mlx5_prm::dpa::{self, object};

use super::mailbox::{BAD_PARAM, BAD_RESOURCE, CommandError, Result, get, get16};
use crate::commands::call::{Call, Kind};
use crate::fabric::Function;
use crate::fabric::counters::Command;
use crate::fabric::numbers::slot_of_number;
use crate::fabric::table::Owner;
use crate::process::dpa::{command, wire};
use crate::sys::Errno;

/// True if a command creates an object of the DPA.
pub(super) fn is_creation(input: &[u8]) -> bool {
    let types = [
        object::MEMORY,
        object::PROCESS,
        object::THREAD,
        object::OUTBOX,
        object::WINDOW,
        object::EVENT_QUEUE,
        object::COMMAND_QUEUE,
        object::TELEMETRY,
    ];
    !cmd::GENERAL_OBJECT_ALIAS.is_set(input)
        && types.contains(&get16(input, cmd::GENERAL_OBJECT_TYPE))
}

fn pass(
    call: &Call<'_>,
    kind: (wire::Kind, u32),
    input: &[u8],
    capacity: usize,
) -> Result<wire::Answer> {
    let answer = command(
        (call.process, call.context, call.signals),
        kind,
        input,
        capacity,
    )?;
    match (answer.status, answer.errno) {
        (0, 0) => Ok(answer),
        (0, errno) => Err(CommandError::Kernel(Errno(errno))),
        (status, _) => Err(CommandError::Refused(status, answer.syndrome)),
    }
}

pub(super) fn create(call: &Call<'_>, input: &[u8], capacity: usize) -> Result<(u32, Vec<u8>)> {
    call.count(Command::CreateDpa);
    call.process.close_uars(call.context)?;
    let answer = pass(call, (wire::Kind::Create, 0), input, capacity)?;
    Ok((Kind::Dpa.handle(answer.object), answer.output))
}

pub(super) fn destroy(call: &Call<'_>, object: u32) -> Result<()> {
    call.count(Command::DestroyDpa);
    pass(call, (wire::Kind::Destroy, object), &[], 0).map(drop)
}

pub(super) fn modify(call: &Call<'_>, object: u32, input: &[u8], capacity: usize) -> Result {
    call.count(Command::ModifyDpa);
    Ok(pass(call, (wire::Kind::Modify, object), input, capacity)?.output)
}

pub(super) fn query(call: &Call<'_>, object: u32, input: &[u8], capacity: usize) -> Result {
    call.count(Command::QueryDpa);
    Ok(pass(call, (wire::Kind::Query, object), input, capacity)?.output)
}

/// The channel, counted from 1, and the cookie of the events of a new completion queue that a thread or an event queue of the DPA
/// gets; zeroes if none does. The upper half of the cookie is free for the number of the completion queue.
pub(super) fn events(call: &Call<'_>, input: &[u8]) -> Result<(u32, u64)> {
    if !dpa::CQ_APU.is_set(input) {
        return Ok((0, 0));
    }
    // Only memory of the DPA's runner may hold such a queue, and only it may tell the channel.
    let locked = call.lock();
    let function = locked.peek(call.function());
    if !is_of_dpa(call, function, get(input, cq::UMEM_ID)) {
        return Err(BAD_PARAM);
    }
    drop(locked);
    let thread = get(input, dpa::CQ_THREAD);
    let answer = pass(call, (wire::Kind::Events, thread), &[], 16)?;
    let (channel, cookie) = answer.output.split_first_chunk().ok_or(BAD_RESOURCE)?;
    let cookie = cookie.first_chunk().ok_or(BAD_RESOURCE)?;
    Ok((u32::from_le_bytes(*channel), u64::from_le_bytes(*cookie)))
}

fn is_of_dpa(call: &Call<'_>, function: &Function, umem: u32) -> bool {
    let umem =
        slot_of_number(umem).and_then(|slot| function.umems.owned(slot, call.context.number));
    umem.is_some_and(|umem| umem.of_dpa)
}

/// Owner of a new object whose memory is in these umems: the caller, or the DPA's runner. All must have the same owner.
pub(super) fn owner_in(call: &Call<'_>, function: &Function, umems: &[u32]) -> Result<Owner> {
    let mut of_dpa = umems
        .iter()
        .filter(|umem| is_of_dpa(call, function, **umem));
    let Some(first) = of_dpa.next() else {
        return Ok(call.owner()?);
    };
    if of_dpa.count() + 1 != umems.len() {
        return Err(BAD_PARAM);
    }
    let owner = |umem: u32| slot_of_number(umem).and_then(|slot| function.umems.owner(slot));
    let first = owner(*first).ok_or(BAD_RESOURCE)?;
    match umems.iter().all(|umem| owner(*umem) == Some(first)) {
        true => Ok(first),
        false => Err(BAD_PARAM),
    }
}
