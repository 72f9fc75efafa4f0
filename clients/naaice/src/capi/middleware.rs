//! `naaice_ap2.h`: sessions in five calls.

use super::{Borrowed, array, call, not_null, publish, session, take_back};
use crate::abi::{NaaHandle, NaaParam, NaaStatus, code};
use crate::endpoint::Endpoint;
use crate::error::{ArgumentError, NaaError, Result};
use crate::machine::State;
use crate::plan::Param;
use crate::session::{self, Outcome};
use crate::{plan, spec};
use std::ffi::{c_int, c_uint};
use std::time::Duration;

/// Environment variable: time limit of a call in seconds.
const TIMEOUT: &str = "NAAICE_TIMEOUT_S";

/// `naa_create`: connects to an accelerator of `NAA_SPEC` and announces the regions.
///
/// # Safety
/// `handle` is writable; the arrays have as many elements as the numbers say. The regions stay mapped until
/// `naa_finalize`, and while a call runs nobody else accesses outputs or changes inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naa_create(
    function_code: u32,
    input_params: *mut NaaParam,
    input_amount: c_uint,
    output_params: *mut NaaParam,
    output_amount: c_uint,
    handle: *mut NaaHandle,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        create(
            function_code,
            (input_params, input_amount),
            (output_params, output_amount),
            handle,
            false,
        )
    }
}

/// Creates a session for a program with interface 1 or 2.
///
/// # Safety
/// As for [`naa_create`].
pub(super) unsafe fn create(
    function_code: u32,
    (input_params, input_amount): (*const NaaParam, c_uint),
    (output_params, output_amount): (*const NaaParam, c_uint),
    handle: *mut NaaHandle,
    is_newer: bool,
) -> c_int {
    call("naa_create", || {
        not_null(handle, "handle")?;
        let empty = NaaHandle {
            function_code,
            comm_ctx: std::ptr::null_mut(),
        };
        // SAFETY: the caller's promise; the old contents are not read.
        unsafe { handle.write(empty) };
        plan::check_function(function_code)?;
        // SAFETY: the caller's promise.
        let inputs = unsafe { params(input_params, input_amount, "input_params") }?;
        // SAFETY: the caller's promise.
        let outputs = unsafe { params(output_params, output_amount, "output_params") }?;
        plan::regions(&inputs, &outputs)?;
        let entries = spec::from_env()?;
        // SAFETY: the caller's promise.
        let mut endpoint = unsafe { session::create(function_code, &inputs, &outputs, &entries) }?;
        if let Some(limit) = call_limit()? {
            endpoint.public.timeout = limit.as_secs_f64();
        }
        if is_newer {
            endpoint.use_newer();
        }
        let comm_ctx = publish(endpoint);
        // SAFETY: the caller's promise.
        unsafe { (*handle).comm_ctx = comm_ctx };
        Ok(())
    })
}

/// # Safety
/// The array has this many elements.
unsafe fn params(
    pointer: *const NaaParam,
    amount: c_uint,
    name: &'static str,
) -> Result<Vec<Param>> {
    // SAFETY: the caller's promise.
    let params = unsafe { array(pointer, amount as usize, name) }?;
    Ok(params
        .iter()
        .map(|param| Param {
            addr: param.addr as u64,
            size: param.size as u64,
            single_send: param.single_send,
        })
        .collect())
}

fn call_limit() -> Result<Option<Duration>> {
    let Ok(text) = std::env::var(TIMEOUT) else {
        return Ok(None);
    };
    let seconds = text.parse::<f64>().ok().filter(|s| *s > 0.0);
    match seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()) {
        Some(limit) => Ok(Some(limit)),
        None => Err(ArgumentError::Environment {
            name: TIMEOUT,
            value: text,
            rule: "write a number of seconds above 0",
        }
        .into()),
    }
}

/// The session of a handle.
///
/// # Safety
/// `handle` is null or readable, and no other thread uses the session.
unsafe fn of<'a>(handle: *mut NaaHandle) -> Result<Borrowed<'a>> {
    not_null(handle, "handle")?;
    // SAFETY: the caller's promise.
    unsafe { session((*handle).comm_ctx) }
}

/// `naa_invoke`: sends the inputs and starts the function.
///
/// # Safety
/// `handle` is from `naa_create`, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naa_invoke(handle: *mut NaaHandle) -> c_int {
    call("naa_invoke", || {
        // SAFETY: the caller's promise.
        let mut endpoint = unsafe { of(handle) }?;
        session::invoke(&mut endpoint)
    })
}

/// `naa_test`: tells whether the call has ended. Never waits.
///
/// # Safety
/// As for [`naa_invoke`]; `flag` and `status` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naa_test(
    handle: *mut NaaHandle,
    flag: *mut bool,
    status: *mut NaaStatus,
) -> c_int {
    call("naa_test", || {
        not_null(flag, "flag")?;
        not_null(status, "status")?;
        // SAFETY: the caller's promise.
        let mut endpoint = unsafe { of(handle) }?;
        let outcome = session::test(&mut endpoint);
        // SAFETY: the caller's promise.
        unsafe { status.write(status_of(&endpoint, outcome.as_ref().err())) };
        // After an error the call has ended as well: a loop on the flag ends.
        let ended = !matches!(outcome, Ok(None));
        // SAFETY: the caller's promise.
        unsafe { flag.write(ended) };
        outcome.map(|_| ())
    })
}

/// `naa_wait`: waits until the call has ended.
///
/// # Safety
/// As for [`naa_invoke`]; `status` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naa_wait(handle: *mut NaaHandle, status: *mut NaaStatus) -> c_int {
    call("naa_wait", || {
        not_null(status, "status")?;
        // SAFETY: the caller's promise.
        let mut endpoint = unsafe { of(handle) }?;
        let outcome: Result<Outcome> = session::wait(&mut endpoint);
        // SAFETY: the caller's promise.
        unsafe { status.write(status_of(&endpoint, outcome.as_ref().err())) };
        outcome.map(|_| ())
    })
}

fn status_of(endpoint: &Endpoint, error: Option<&NaaError>) -> NaaStatus {
    let unavailable = match error {
        Some(NaaError::State { .. }) | None if endpoint.is_newer() => endpoint.answer,
        Some(NaaError::State { .. }) | None => u32::from(endpoint.public.naa_returncode),
        Some(_) => u32::from(code::SOCKET_UNAVAIL),
    };
    NaaStatus {
        state: match error {
            Some(_) => State::Error as c_int,
            None => endpoint.state() as c_int,
        },
        naa_error: unavailable,
        bytes_received: u64::from(endpoint.public.bytes_received),
    }
}

/// `naa_finalize`: ends the session. The regions may be freed afterwards.
///
/// # Safety
/// As for [`naa_invoke`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naa_finalize(handle: *mut NaaHandle) -> c_int {
    call("naa_finalize", || {
        not_null(handle, "handle")?;
        // SAFETY: the caller's promise.
        let comm_ctx = unsafe { (*handle).comm_ctx };
        let endpoint = take_back(comm_ctx)?;
        // SAFETY: the caller's promise. A second call finds no session.
        unsafe { (*handle).comm_ctx = std::ptr::null_mut() };
        drop(endpoint);
        Ok(())
    })
}
