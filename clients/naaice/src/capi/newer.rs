//! Functions for programs with interface 2 (`NAAICE_INTERFACE` in `naaice.h`), whose session structure has another layout.
//! Their names in C have no number; the header appends it.

use super::low_level::{Regions, check_naa, open};
use super::swnaa::{init_master, init_session, init_worker};
use super::{array, middleware};
use crate::abi::{CommContext, NaaHandle, NaaParam, ServerContext};
use crate::endpoint::Endpoint;
use crate::error::Result;
use std::ffi::{c_char, c_int, c_uint};

#[expect(
    clippy::unnecessary_wraps,
    reason = "the type of a step that completes a session"
)]
fn newer(endpoint: &mut Endpoint) -> Result<()> {
    endpoint.use_newer();
    Ok(())
}

/// `naa_create`.
///
/// # Safety
/// As for [`middleware::naa_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naa_create_2(
    function_code: u32,
    input_params: *mut NaaParam,
    input_amount: c_uint,
    output_params: *mut NaaParam,
    output_amount: c_uint,
    handle: *mut NaaHandle,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        middleware::create(
            function_code,
            (input_params, input_amount),
            (output_params, output_amount),
            handle,
            true,
        )
    }
}

/// `naaice_init_communication_context`.
///
/// # Safety
/// As for [`super::low_level::naaice_init_communication_context`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_init_communication_context_2(
    comm_ctx: *mut *mut CommContext,
    addr_offset: u64,
    param_sizes: *const usize,
    params: *const *mut c_char,
    params_amount: c_uint,
    internal_mr_amount: c_uint,
    internal_mr_sizes: *const usize,
    fncode: u8,
    local_address: *const c_char,
    remote_address: *const c_char,
    remote_cm_port: u16,
) -> c_int {
    let regions = Regions {
        sizes: param_sizes,
        params,
        count: params_amount,
        internal_count: internal_mr_amount,
        internal_sizes: internal_mr_sizes,
    };
    let peer = (local_address, remote_address, remote_cm_port);
    // SAFETY: the caller's promise.
    unsafe { open(comm_ctx, addr_offset, &regions, fncode, peer, newer) }
}

/// `naaice_init_communication_context_with_addresses`: as `naaice_init_communication_context`, with a requested address on
/// the accelerator for each region. Addresses and sizes begin with those of the internal regions.
///
/// # Safety
/// As for [`super::low_level::naaice_init_communication_context`]; `naa_addresses` and `mr_sizes` have an element for each
/// region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_init_communication_context_with_addresses_2(
    comm_ctx: *mut *mut CommContext,
    naa_addresses: *const u64,
    params: *const *mut c_char,
    params_amount: c_uint,
    mr_sizes: *const usize,
    internal_mr_amount: c_uint,
    fncode: u8,
    local_address: *const c_char,
    remote_address: *const c_char,
    remote_cm_port: u16,
) -> c_int {
    let internal = internal_mr_amount as usize;
    let sizes = match mr_sizes.is_null() {
        true => mr_sizes,
        // An array with more elements than regions are possible is refused before it is read.
        false => mr_sizes.wrapping_add(internal),
    };
    let regions = Regions {
        sizes,
        params,
        count: params_amount,
        internal_count: internal_mr_amount,
        internal_sizes: mr_sizes,
    };
    let peer = (local_address, remote_address, remote_cm_port);
    let finish = |endpoint: &mut Endpoint| {
        let count = internal + endpoint.regions.len();
        // SAFETY: the caller's promise.
        let addresses = unsafe { array(naa_addresses, count, "naa_addresses") }?;
        check_naa(addresses)?;
        let (of_internal, of_params) = addresses.split_at(internal);
        for (region, address) in endpoint.internal.iter_mut().zip(of_internal) {
            region.addr = *address;
        }
        for (peer, address) in endpoint.peers.iter_mut().zip(of_params) {
            peer.addr = *address;
        }
        newer(endpoint)
    };
    // SAFETY: the caller's promise.
    unsafe { open(comm_ctx, 0, &regions, fncode, peer, finish) }
}

/// `naaice_swnaa_init_master`.
///
/// # Safety
/// As for [`super::swnaa::naaice_swnaa_init_master`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_init_master_2(
    ctx: *mut *mut ServerContext,
    local_cm_port: u16,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { init_master(ctx, local_cm_port, true) }
}

/// `naaice_swnaa_init_worker`.
///
/// # Safety
/// As for [`super::swnaa::naaice_swnaa_init_worker`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_init_worker_2(
    ctx: *mut *mut ServerContext,
    worker_id: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { init_worker(ctx, worker_id, true) }
}

/// `naaice_swnaa_init_communication_context`.
///
/// # Safety
/// As for [`super::swnaa::naaice_swnaa_init_communication_context`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_swnaa_init_communication_context_2(
    comm_ctx: *mut *mut CommContext,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { init_session(comm_ctx, true) }
}
