//! `naaice.h`: the steps of a host's session.

use super::{array, call, not_null, publish, session, take_back};
use crate::abi::{CommContext, MrInternal};
use crate::endpoint::{Endpoint, wait_readable};
use crate::error::{ArgumentError, NaaError, Result};
use crate::host::Target;
use crate::machine::State;
use crate::plan;
use crate::verbs::{self, Event};
use crate::wire::{Message, NAA_ADDRESS_MAX, REGIONS_MAX};
use rdmacm_sys::{ibv_wc, rdma_cm_event};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;
use std::time::Duration;

/// `POLLING_TIMEOUT`: the longest wait of a function that polls for connection events.
pub(super) const POLL_LIMIT: Duration = Duration::from_millis(500);

/// `enum message_id`.
const MSG_MR_ERR: c_uint = 0;
const MSG_MR_AAR: c_uint = 1;

/// Runs a step of a live session.
///
/// # Safety
/// `comm_ctx` is null, or no other thread uses the session.
unsafe fn step(
    name: &'static str,
    comm_ctx: *mut CommContext,
    body: impl FnOnce(&mut Endpoint) -> Result<()>,
) -> c_int {
    // SAFETY: the caller's promise.
    call(name, || body(&mut *unsafe { session(comm_ctx) }?))
}

/// # Safety
/// `text` is null or a C string that lives as long as the result is used.
unsafe fn text<'a>(text: *const c_char, name: &'static str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text
        .to_str()
        .map_err(|_| ArgumentError::Address(format!("{name} is not UTF-8")))?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// `naaice_init_communication_context`: creates a session and starts to resolve the accelerator's address.
///
/// # Safety
/// `comm_ctx` is writable, the arrays have as many elements as the numbers say, the texts are C strings. The regions
/// stay mapped until `naaice_disconnect_and_cleanup`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_init_communication_context(
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
    unsafe { open(comm_ctx, addr_offset, &regions, fncode, peer, |_| Ok(())) }
}

/// Regions of a C program.
pub(super) struct Regions {
    pub(super) sizes: *const usize,
    pub(super) params: *const *mut c_char,
    pub(super) count: c_uint,
    pub(super) internal_count: c_uint,
    pub(super) internal_sizes: *const usize,
}

/// Creates a session. `finish` completes it before the program gets it.
///
/// # Safety
/// As for [`naaice_init_communication_context`].
pub(super) unsafe fn open(
    comm_ctx: *mut *mut CommContext,
    addr_offset: u64,
    regions: &Regions,
    fncode: u8,
    (local_address, remote_address, remote_cm_port): (*const c_char, *const c_char, u16),
    finish: impl FnOnce(&mut Endpoint) -> Result<()>,
) -> c_int {
    call("naaice_init_communication_context", || {
        not_null(comm_ctx, "comm_ctx")?;
        not_null(remote_address, "remote_address")?;
        let function = plan::check_function(u32::from(fncode))?;
        let (count, internal) = (regions.count as usize, regions.internal_count as usize);
        // SAFETY: the caller's promise.
        let sizes = unsafe { array(regions.sizes, count, "param_sizes") }?;
        // SAFETY: the caller's promise.
        let addresses = unsafe { array(regions.params, count, "params") }?;
        // SAFETY: the caller's promise.
        let internal = unsafe { array(regions.internal_sizes, internal, "internal_mr_sizes") }?;
        // SAFETY: the caller's promise.
        let local = unsafe { text(local_address, "local_address") }?;
        // SAFETY: the caller's promise.
        let remote = unsafe { text(remote_address, "remote_address") }?;
        let target = Target {
            remote: remote.ok_or(ArgumentError::Address(String::new()))?,
            port: remote_cm_port,
            local,
        };
        let regions: Vec<(u64, u64)> = addresses
            .iter()
            .zip(sizes)
            .map(|(addr, size)| (*addr as u64, *size as u64))
            .collect();
        let internal: Vec<u64> = internal.iter().map(|size| *size as u64).collect();
        let mut endpoint = Endpoint::open_host(target, function, &regions, &internal, addr_offset)?;
        finish(&mut endpoint)?;
        let published = publish(endpoint);
        // SAFETY: the caller's promise.
        unsafe { comm_ctx.write(published) };
        Ok(())
    })
}

/// `naaice_poll_connection_event`: takes a connection event within 500 ms, copies it to `ev_cp`, and acknowledges it.
/// Returns -1 if there is none. `ev` is not used.
///
/// # Safety
/// The session is not in use by another thread; `ev_cp` is writable. Pointers in the copy are dangling.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_poll_connection_event(
    comm_ctx: *mut CommContext,
    _ev: *mut rdma_cm_event,
    ev_cp: *mut rdma_cm_event,
) -> c_int {
    // SAFETY: the caller's promise. Without an event the result is -1 and no error is reported, as in the original.
    let taken = std::panic::catch_unwind(|| unsafe { poll_event(comm_ctx, ev_cp) });
    match taken {
        Ok(Ok(true)) => 0,
        Ok(Ok(false)) => -1,
        Ok(Err(error)) => call("naaice_poll_connection_event", || Err(error)),
        Err(_) => -1,
    }
}

/// # Safety
/// As for [`naaice_poll_connection_event`].
unsafe fn poll_event(comm_ctx: *mut CommContext, ev_cp: *mut rdma_cm_event) -> Result<bool> {
    not_null(comm_ctx, "comm_ctx")?;
    not_null(ev_cp, "ev_cp")?;
    // A server's structure is no session of this table, so only its public field is read.
    // SAFETY: the caller's promise.
    let channel = unsafe { (*comm_ctx).ev_channel };
    not_null(channel, "comm_ctx->ev_channel")?;
    let lib = verbs::lib()?;
    // SAFETY: the channel is live.
    wait_readable(&[unsafe { (*channel).fd }], POLL_LIMIT)?;
    let mut event = ptr::null_mut();
    // SAFETY: the channel is live, and the result can be written.
    if unsafe { lib.rdma_get_cm_event(channel, &raw mut event) } != 0 || event.is_null() {
        return Ok(false);
    }
    // SAFETY: the caller's promise; the event is live until it is acknowledged.
    unsafe { ptr::copy_nonoverlapping(event, ev_cp, 1) };
    // SAFETY: the event came from rdma_get_cm_event and is acknowledged once.
    unsafe { lib.rdma_ack_cm_event(event) };
    Ok(true)
}

/// Handles an event of one of the kinds; does nothing for others.
///
/// # Safety
/// `ev` is null or readable. Its private data is not read: it may be dangling.
unsafe fn handle(
    endpoint: &mut Endpoint,
    ev: *const rdma_cm_event,
    kinds: &[rdmacm_sys::rdma_cm_event_type],
) -> Result<()> {
    not_null(ev, "ev")?;
    // SAFETY: the caller's promise.
    let mut copy = unsafe { ptr::read(ev) };
    if !kinds.contains(&copy.event) {
        return Ok(());
    }
    copy.param.conn.private_data = ptr::null();
    // SAFETY: the copy has no private data.
    let event = unsafe { Event::copy(verbs::lib()?, &copy) };
    endpoint.handle_event(&event)
}

macro_rules! handler {
    ($(#[$doc:meta])* $name:ident, $($kind:ident),+) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// No other thread uses the session; `ev` is readable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(comm_ctx: *mut CommContext, ev: *mut rdma_cm_event) -> c_int {
            // SAFETY: the caller's promise.
            unsafe {
                step(stringify!($name), comm_ctx, |endpoint| {
                    handle(endpoint, ev, &[$(rdmacm_sys::$kind),+])
                })
            }
        }
    };
}

handler! {
    /// Resolves the route and creates the queues after RDMA_CM_EVENT_ADDR_RESOLVED.
    naaice_handle_addr_resolved, RDMA_CM_EVENT_ADDR_RESOLVED
}
handler! {
    /// Connects after RDMA_CM_EVENT_ROUTE_RESOLVED.
    naaice_handle_route_resolved, RDMA_CM_EVENT_ROUTE_RESOLVED
}
handler! {
    /// Notes the connection after RDMA_CM_EVENT_ESTABLISHED.
    naaice_handle_connection_established, RDMA_CM_EVENT_ESTABLISHED
}
handler! {
    /// Ends the session after an event of failure.
    naaice_handle_error, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_CONNECT_ERROR,
    RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_DEVICE_REMOVAL,
    RDMA_CM_EVENT_DISCONNECTED
}

/// `naaice_handle_other`: an event that the protocol does not have. Always -1.
///
/// # Safety
/// `ev` is null or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_handle_other(
    _comm_ctx: *mut CommContext,
    ev: *mut rdma_cm_event,
) -> c_int {
    call("naaice_handle_other", || {
        not_null(ev, "ev")?;
        // SAFETY: the caller's promise.
        let _kind = unsafe { (*ev).event };
        Err(NaaError::Protocol {
            what: "an event of the connection manager that the protocol does not have",
            state: "any state",
        })
    })
}

/// `naaice_poll_and_handle_connection_event`: handles a connection event, if one comes within 500 ms.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_poll_and_handle_connection_event(
    comm_ctx: *mut CommContext,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step(
            "naaice_poll_and_handle_connection_event",
            comm_ctx,
            |endpoint| {
                if !endpoint.handle_events()? {
                    wait_readable(&endpoint.descriptors()[1..], POLL_LIMIT)?;
                    endpoint.handle_events()?;
                }
                Ok(())
            },
        )
    }
}

/// `naaice_setup_connection`: waits until the connection is established, for at most 10 s.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_setup_connection(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { step("naaice_setup_connection", comm_ctx, Endpoint::connect) }
}

/// `naaice_init_rdma_resources`: creates the queues. The handling of events does it otherwise.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_init_rdma_resources(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step(
            "naaice_init_rdma_resources",
            comm_ctx,
            |endpoint| match endpoint.queues {
                Some(_) => Ok(()),
                None => endpoint.create_queues(),
            },
        )
    }
}

/// `naaice_register_mrs`: registers the regions.
///
/// # Safety
/// No other thread uses the session, and the regions stay mapped until its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_register_mrs(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_register_mrs", comm_ctx, |endpoint| {
            if endpoint.state() > State::Connected {
                return Err(late(endpoint, "naaice_register_mrs"));
            }
            endpoint.register_regions()
        })
    }
}

fn late(endpoint: &Endpoint, call: &'static str) -> NaaError {
    NaaError::State {
        call,
        state: endpoint.state().name(),
        rule: "regions cannot change after the announcement",
    }
}

/// `naaice_set_parameter_mrs`: replaces the regions before they are registered.
///
/// # Safety
/// No other thread uses the session; the arrays have as many elements as the number says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_set_parameter_mrs(
    comm_ctx: *mut CommContext,
    n_parameter_mrs: c_uint,
    local_addrs: *const u64,
    remote_addrs: *const u64,
    sizes: *const usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_set_parameter_mrs", comm_ctx, |endpoint| {
            let count = n_parameter_mrs as usize;
            let local = array(local_addrs, count, "local_addrs")?;
            let remote = array(remote_addrs, count, "remote_addrs")?;
            let sizes = array(sizes, count, "sizes")?;
            check_naa(remote)?;
            if endpoint.state() > State::Connected
                || endpoint.regions.iter().any(|r| !r.ibv.is_null())
            {
                return Err(late(endpoint, "naaice_set_parameter_mrs"));
            }
            let regions: Vec<(u64, u64)> = local
                .iter()
                .zip(sizes)
                .map(|(addr, size)| (*addr, *size as u64))
                .collect();
            let internal = std::mem::take(&mut endpoint.internal);
            let room = REGIONS_MAX - internal.len();
            let set = match regions.len() > room {
                true => Err(ArgumentError::TooManyRegions(regions.len() + internal.len()).into()),
                false => endpoint.set_regions(&regions, &[], 0),
            };
            endpoint.internal = internal;
            endpoint.show_regions();
            set?;
            for (peer, addr) in endpoint.peers.iter_mut().zip(remote) {
                peer.addr = *addr;
            }
            endpoint.public.no_input_mrs = 0;
            endpoint.public.no_output_mrs = 0;
            Ok(())
        })
    }
}

pub(super) fn check_naa(addresses: &[u64]) -> Result<()> {
    match addresses.iter().any(|address| *address > NAA_ADDRESS_MAX) {
        true => Err(ArgumentError::NaaAddress.into()),
        false => Ok(()),
    }
}

/// `naaice_set_internal_mrs`: sets the regions that exist on the accelerator only.
///
/// # Safety
/// As for [`naaice_set_parameter_mrs`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_set_internal_mrs(
    comm_ctx: *mut CommContext,
    n_internal_mrs: c_uint,
    addrs: *const u64,
    sizes: *const usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_set_internal_mrs", comm_ctx, |endpoint| {
            let count = n_internal_mrs as usize;
            let addrs = array(addrs, count, "addrs")?;
            let sizes = array(sizes, count, "sizes")?;
            check_naa(addrs)?;
            let all = count + endpoint.regions.len();
            if all > REGIONS_MAX {
                return Err(ArgumentError::TooManyRegions(all).into());
            }
            for (index, size) in sizes.iter().enumerate() {
                let name = || format!("internal region {index}");
                if *size == 0 {
                    return Err(ArgumentError::Empty(name()).into());
                }
                if u32::try_from(*size).is_err() {
                    return Err(ArgumentError::TooLarge {
                        name: name(),
                        size: *size as u64,
                    }
                    .into());
                }
            }
            if endpoint.state() > State::Connected {
                return Err(late(endpoint, "naaice_set_internal_mrs"));
            }
            endpoint.internal = addrs
                .iter()
                .zip(sizes)
                .map(|(addr, size)| MrInternal {
                    addr: *addr,
                    size: *size,
                })
                .collect();
            endpoint.show_regions();
            Ok(())
        })
    }
}

/// Changes a region before the announcement.
///
/// # Safety
/// As for [`step`].
unsafe fn with_region(
    name: &'static str,
    comm_ctx: *mut CommContext,
    index: c_uint,
    change: impl FnOnce(&mut Endpoint, usize),
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step(name, comm_ctx, |endpoint| {
            let (index, count) = (index as usize, endpoint.regions.len());
            if index >= count {
                return Err(ArgumentError::Index { index, count }.into());
            }
            if endpoint.state() > State::Connected {
                return Err(late(endpoint, name));
            }
            change(endpoint, index);
            Ok(())
        })
    }
}

fn set_input(endpoint: &mut Endpoint, index: usize) {
    if !std::mem::replace(&mut endpoint.regions[index].to_write, true) {
        endpoint.public.no_input_mrs += 1;
    }
}

/// `naaice_set_input_mr`: each call sends the region.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_set_input_mr(
    comm_ctx: *mut CommContext,
    input_mr_idx: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { with_region("naaice_set_input_mr", comm_ctx, input_mr_idx, set_input) }
}

/// `naaice_set_output_mr`: each call receives the region.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_set_output_mr(
    comm_ctx: *mut CommContext,
    output_mr_idx: c_uint,
) -> c_int {
    let change = |endpoint: &mut Endpoint, index: usize| {
        if !std::mem::replace(&mut endpoint.peers[index].to_write, true) {
            endpoint.public.no_output_mrs += 1;
        }
    };
    // SAFETY: the caller's promise.
    unsafe { with_region("naaice_set_output_mr", comm_ctx, output_mr_idx, change) }
}

/// `naaice_set_singlesend_mr`: the first call sends the region.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_set_singlesend_mr(
    comm_ctx: *mut CommContext,
    singlesend_mr_idx: c_uint,
) -> c_int {
    let change = |endpoint: &mut Endpoint, index: usize| {
        endpoint.regions[index].single_send = true;
        set_input(endpoint, index);
    };
    // SAFETY: the caller's promise.
    unsafe {
        with_region(
            "naaice_set_singlesend_mr",
            comm_ctx,
            singlesend_mr_idx,
            change,
        )
    }
}

/// `naaice_set_immediate`: three bytes for the kernel.
///
/// # Safety
/// No other thread uses the session; `imm_bytes` has three bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_set_immediate(
    comm_ctx: *mut CommContext,
    imm_bytes: *const u8,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_set_immediate", comm_ctx, |endpoint| {
            let bytes = array(imm_bytes, 3, "imm_bytes")?;
            endpoint.public.immediate = [endpoint.public.fncode, bytes[0], bytes[1], bytes[2]];
            Ok(())
        })
    }
}

/// `naaice_set_bytes_to_send`: sends only the first bytes of a region. 0 or a negative number means all.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_set_bytes_to_send(
    comm_ctx: *mut CommContext,
    mr_idx: c_int,
    number_bytes: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_set_bytes_to_send", comm_ctx, |endpoint| {
            let count = endpoint.regions.len();
            let index = usize::try_from(mr_idx).unwrap_or(usize::MAX);
            if index >= count {
                return Err(ArgumentError::Index { index, count }.into());
            }
            let size = endpoint.peers[index].size;
            let bytes = usize::try_from(number_bytes)
                .ok()
                .filter(|bytes| *bytes > 0)
                .unwrap_or(size);
            if bytes > size {
                return Err(ArgumentError::Length {
                    bytes: bytes as u64,
                    index,
                    size: size as u64,
                }
                .into());
            }
            endpoint.regions[index].size = bytes;
            Ok(())
        })
    }
}

/// `naaice_init_mrsp`: sends the announcement.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_init_mrsp(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { step("naaice_init_mrsp", comm_ctx, Endpoint::announce) }
}

/// `naaice_do_mrsp`: sends the announcement and waits for the accelerator's, for at most 30 s.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_do_mrsp(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_do_mrsp", comm_ctx, |endpoint| {
            endpoint.announce()?;
            wait_until(endpoint, State::Announced)
        })
    }
}

fn wait_until(endpoint: &mut Endpoint, wanted: State) -> Result<()> {
    while endpoint.state() < wanted {
        let state = endpoint.state();
        endpoint.wait_past(state)?;
    }
    endpoint.check_alive()
}

/// `naaice_init_data_transfer`: starts a call.
///
/// # Safety
/// No other thread uses the session, and nobody accesses the regions until the call has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_init_data_transfer(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { step("naaice_init_data_transfer", comm_ctx, Endpoint::begin_call) }
}

/// `naaice_do_data_transfer`: starts a call and waits for its end.
///
/// # Safety
/// As for [`naaice_init_data_transfer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_do_data_transfer(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_do_data_transfer", comm_ctx, |endpoint| {
            endpoint.begin_call()?;
            wait_until(endpoint, State::Finished)
        })
    }
}

/// `naaice_handle_work_completion`: handles a completion that the caller took from the queue.
///
/// # Safety
/// No other thread uses the session; `wc` is readable and came from the session's queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_handle_work_completion(
    wc: *mut ibv_wc,
    comm_ctx: *mut CommContext,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_handle_work_completion", comm_ctx, |endpoint| {
            not_null(wc, "wc")?;
            let read = endpoint.read_completion(&*wc);
            match read.map_err(|error| endpoint.fail(error))? {
                Some(completion) => endpoint.host_completion(completion),
                None => Ok(()),
            }
        })
    }
}

/// `naaice_poll_cq_nonblocking`: handles the completions that are there. Never waits.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_poll_cq_nonblocking(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { step("naaice_poll_cq_nonblocking", comm_ctx, Endpoint::progress) }
}

/// `naaice_poll_cq_blocking`: waits until the current step of the protocol has ended.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_poll_cq_blocking(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step(
            "naaice_poll_cq_blocking",
            comm_ctx,
            |endpoint| match endpoint.state() {
                State::AnnouncementSending | State::AnnouncementReceiving => {
                    wait_until(endpoint, State::Announced)
                }
                State::DataSending | State::DataReceiving => wait_until(endpoint, State::Finished),
                _ => endpoint.check_alive(),
            },
        )
    }
}

/// `naaice_poll_cq_busy`: polls without sleeping until the call has ended, within the session's time limit.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_poll_cq_busy(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_poll_cq_busy", comm_ctx, |endpoint| {
            if !matches!(endpoint.state(), State::DataSending | State::DataReceiving) {
                return endpoint.check_alive();
            }
            while endpoint.state() < State::Finished {
                endpoint.progress()?;
            }
            endpoint.check_alive()
        })
    }
}

/// `naaice_send_message`: sends a message of the announcement protocol.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_send_message(
    comm_ctx: *mut CommContext,
    message_type: c_uint,
    errorcode: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step(
            "naaice_send_message",
            comm_ctx,
            |endpoint| match message_type {
                MSG_MR_ERR => endpoint.send_message(&Message::Error(errorcode)),
                MSG_MR_AAR => endpoint.send_announcement(),
                _ => Err(NaaError::State {
                    call: "naaice_send_message",
                    state: endpoint.state().name(),
                    rule: "a host sends MSG_MR_AAR or MSG_MR_ERR",
                }),
            },
        )
    }
}

/// `naaice_write_data`: writes the inputs and starts the function. Code 0 reports an error of the host.
///
/// # Safety
/// As for [`naaice_init_data_transfer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_write_data(comm_ctx: *mut CommContext, fncode: u8) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        step("naaice_write_data", comm_ctx, |endpoint| match fncode {
            0 => endpoint.write_regions(&[], 0),
            code => {
                endpoint.public.fncode = plan::check_function(u32::from(code))?;
                endpoint.write_inputs()
            }
        })
    }
}

/// `naaice_post_recv_mrsp`: posts the receive of an announcement.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_post_recv_mrsp(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { step("naaice_post_recv_mrsp", comm_ctx, Endpoint::receive_message) }
}

/// `naaice_post_recv_data`: posts the receive of a call's last write.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_post_recv_data(comm_ctx: *mut CommContext) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { step("naaice_post_recv_data", comm_ctx, Endpoint::receive_start) }
}

/// `naaice_disconnect_and_cleanup`: ends the session and frees it. The regions may be freed afterwards.
///
/// # Safety
/// No other thread uses the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn naaice_disconnect_and_cleanup(comm_ctx: *mut CommContext) -> c_int {
    call("naaice_disconnect_and_cleanup", || {
        take_back(comm_ctx).map(drop)
    })
}
