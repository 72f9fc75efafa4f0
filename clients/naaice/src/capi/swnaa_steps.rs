//! `naaice_swnaa.h`: the steps of a session, for programs with their own loops.

use super::swnaa_wait::{LOOK_INTERVAL, announce, receive};
use super::{call, not_null, session, take_back};
use crate::abi::CommContext;
use crate::endpoint::Endpoint;
use crate::error::{NaaError, Result};
use crate::machine::State;
use crate::server::Step;
use crate::wire::Message;
use rdmacm_sys::ibv_wc;
use std::ffi::{c_int, c_uint};

/// Runs a step of a server's session.
///
/// # Safety
/// `comm_ctx` is null, or no other thread uses the session.
pub(super) unsafe fn step(
    name: &'static str,
    comm_ctx: *mut CommContext,
    body: impl FnOnce(&mut Endpoint) -> Result<()>,
) -> c_int {
    // SAFETY: the caller's promise.
    call(name, || body(&mut *unsafe { session(comm_ctx) }?))
}

/// `naaice_swnaa_init_mrsp`: posts the receive of the host's announcement. A session of this library has it already.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_init_mrsp(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_swnaa_init_mrsp", comm_ctx, |endpoint| {
            endpoint.queues().map(|_| ())
        })
    }
}

/// `naaice_swnaa_post_recv_mrsp`: posts a receive of an announcement.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_post_recv_mrsp(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step(
            "naaice_swnaa_post_recv_mrsp",
            comm_ctx,
            Endpoint::receive_message,
        )
    }
}

/// `naaice_swnaa_do_mrsp`: waits for the host's announcement, for at most 30 s, and answers it.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_do_mrsp(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { step("naaice_swnaa_do_mrsp", comm_ctx, announce) }
}

/// `naaice_swnaa_receive_data_transfer`: waits until a call begins (state NAAICE_CALCULATING) or the host ends the
/// session (state NAAICE_FINISHED).
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_receive_data_transfer(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { step("naaice_swnaa_receive_data_transfer", comm_ctx, receive) }
}

/// `naaice_swnaa_write_data`: writes the outputs, or the return code of a failed function.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_write_data(
    comm_ctx: *mut CommContext,
    errorcode: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_swnaa_write_data", comm_ctx, |endpoint| {
            endpoint.answer(errorcode)
        })
    }
}

/// `naaice_swnaa_do_data_transfer`: writes the outputs and waits until they are written.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_do_data_transfer(
    comm_ctx: *mut CommContext,
    errorcode: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_swnaa_do_data_transfer", comm_ctx, |endpoint| {
            endpoint.answer(errorcode)?;
            while endpoint.state() == State::DataSending {
                if let Step::Run(start) = endpoint.wait_step(false, LOOK_INTERVAL)? {
                    endpoint.begin_function(start);
                }
            }
            Ok(())
        })
    }
}

/// `naaice_swnaa_post_recv_data`: posts the receive of a call's last write. A session of this library has it already.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_post_recv_data(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_swnaa_post_recv_data", comm_ctx, |endpoint| {
            endpoint.queues().map(|_| ())
        })
    }
}

/// `naaice_swnaa_handle_work_completion`: handles a completion that the program took from the queue.
///
/// # Safety
/// No other thread uses the session; `wc` is readable and came from the session's queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_handle_work_completion(
    wc: *mut ibv_wc,
    comm_ctx: *mut CommContext,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step(
            "naaice_swnaa_handle_work_completion",
            comm_ctx,
            |endpoint| {
                not_null(wc, "wc")?;
                let read = endpoint.read_completion(&*wc);
                if let Some(completion) = read.map_err(|error| endpoint.fail(error))?
                    && let Step::Run(start) = endpoint.naa_completion(completion, false)?
                {
                    endpoint.begin_function(start);
                }
                Ok(())
            },
        )
    }
}

/// `naaice_swnaa_poll_cq_nonblocking`: handles the completions that are there. Never waits.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_poll_cq_nonblocking(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_swnaa_poll_cq_nonblocking", comm_ctx, |endpoint| {
            if let Step::Run(start) = endpoint.next_step(false)? {
                endpoint.begin_function(start);
            }
            Ok(())
        })
    }
}

/// Reads the host's announcement from the message buffer, and allocates and registers the regions.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_handle_mr_announce_and_request(
    comm_ctx: *mut CommContext,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step(
            "naaice_swnaa_handle_mr_announce_and_request",
            comm_ctx,
            |endpoint| {
                let message = endpoint.message_in_buffer()?;
                endpoint.allocate_for(message).map(|_| ())
            },
        )
    }
}

/// `naaice_swnaa_handle_mr_announce`: a host's announcement without request, which no host sends. Always -1.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_handle_mr_announce(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_swnaa_handle_mr_announce", comm_ctx, |endpoint| {
            Err(NaaError::Announcement {
                peer: endpoint.peer.clone(),
                reason: "a host must send an announcement and request".to_owned(),
            })
        })
    }
}

/// `naaice_swnaa_send_message`: sends the regions (MSG_MR_A) or an error (MSG_MR_ERR).
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_send_message(
    comm_ctx: *mut CommContext,
    message_type: c_uint,
    errorcode: u8,
) -> c_int {
    const MSG_MR_ERR: c_uint = 0;
    const MSG_MR_A: c_uint = 2;
    // SAFETY: the caller's promise.
    unsafe {
        step(
            "naaice_swnaa_send_message",
            comm_ctx,
            |endpoint| match message_type {
                MSG_MR_ERR => endpoint.send_message(&Message::Error(errorcode)),
                MSG_MR_A => {
                    let grants = endpoint.grants()?;
                    endpoint.receive_start()?;
                    endpoint.send_message(&Message::Grant(grants))
                }
                _ => Err(NaaError::State {
                    call: "naaice_swnaa_send_message",
                    state: endpoint.state().name(),
                    rule: "an accelerator sends MSG_MR_A or MSG_MR_ERR",
                }),
            },
        )
    }
}

/// `naaice_swnaa_disconnect_and_cleanup`: ends the session and frees it.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_disconnect_and_cleanup(comm_ctx: *mut CommContext) -> c_int {
    call("naaice_swnaa_disconnect_and_cleanup", || {
        take_back(comm_ctx).map(drop)
    })
}
