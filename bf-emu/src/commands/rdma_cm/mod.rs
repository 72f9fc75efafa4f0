//! The kernel's side of `/dev/infiniband/rdma_cm`: commands written to an open file
//! (`rdma/rdma_user_cm.h`, ABI version 4; core/ucma.c).
//!
//! [`write()`] copies and parses a command, and one file per subject executes it under the device's
//! lock. An event waits in the device's tables. Its file is a pipe, so that poll works natively: the
//! pipe holds a byte while events wait.

mod attributes;
mod bind;
mod caller;
mod connect;
mod event;
mod group;
mod id;
mod option;
mod parse;
mod query;
mod service;

use std::os::fd::RawFd;

use caller::Caller;
use parse::{Command, Request};

use crate::process::Process;
use crate::sys::{self, Errno};

/// Result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was executed. The value is the result of `write`: the length of the command.
    Done(isize),
    /// It waits for an event: the caller repeats it when the file is readable.
    Waits,
}

/// A command of `length` bytes at `at`, written to a file of the connection manager.
///
/// # Errors
/// The kernel's errno; EBADF if the file is none of the connection manager's.
pub fn write(process: &Process, fd: RawFd, at: usize, length: usize) -> Result<Written, Errno> {
    let file = process.cm_file(fd).ok_or(Errno(libc::EBADF))?;
    let command = Command::read(at, length)?;
    let caller = Caller {
        process,
        fd,
        file,
        room: command.room,
    };
    let _held = sys::SignalsHeld::new();
    if let Request::GetEvent { response } = command.request
        && !event::get(&caller, response)?
    {
        return Ok(Written::Waits);
    }
    execute(&caller, &command.request)?;
    let length = isize::try_from(length).map_err(|_| Errno(libc::EINVAL))?;
    Ok(Written::Done(length))
}

fn execute(caller: &Caller<'_>, request: &Request) -> Result<(), Errno> {
    match *request {
        Request::CreateId {
            uid,
            response,
            port_space,
            qp_type,
        } => id::create(caller, uid, response, (port_space, qp_type)),
        Request::DestroyId { response, id } => id::destroy(caller, response, id),
        Request::Bind { id, address } => bind::bind(caller, id, &address),
        Request::ResolveAddress {
            id,
            timeout_ms,
            source,
            target,
        } => bind::resolve_address(caller, id, timeout_ms, (source, target)),
        Request::ResolveRoute { id, timeout_ms } => bind::resolve_route(caller, id, timeout_ms),
        Request::QueryRoute { response, id } => query::route(caller, response, id),
        Request::Query {
            response,
            id,
            option,
        } => query::query(caller, response, id, option),
        Request::Connect { id, ref params } => connect::connect(caller, id, params),
        Request::Listen { id, backlog } => bind::listen(caller, id, backlog),
        Request::Accept {
            uid,
            id,
            ref params,
        } => connect::accept(caller, uid, id, params.as_ref()),
        Request::Reject {
            id,
            reason,
            ref params,
        } => connect::reject(caller, id, reason, params),
        Request::Disconnect { id } => connect::disconnect(caller, id),
        Request::InitQpAttr {
            response,
            id,
            state,
        } => attributes::init(caller, response, id, state),
        Request::SetOption {
            id,
            level,
            name,
            value,
            length,
        } => option::set(caller, id, (level, name), (value, length)),
        Request::Notify { id, event } => connect::notify(caller, id, event),
        Request::Join {
            uid,
            response,
            id,
            ref address,
            flags,
        } => group::join(caller, (uid, response), id, address.as_ref(), flags),
        Request::Leave {
            response,
            membership,
        } => group::leave(caller, response, membership),
        Request::MigrateId { response, id, fd } => event::migrate(caller, response, id, fd),
        // The caller has executed it.
        Request::GetEvent { .. } => Ok(()),
    }
}
