//! Layouts of the C interface: the structures of `naaice.h`, `naaice_ap2.h` and `naaice_swnaa.h`.
//!
//! Kernels and programs read fields of these structures, so their layouts never change. `tests/layout.rs` compares
//! them with the headers.

use crate::limits::{CALL_LIMIT, RETRIES};
use crate::machine::State;
use rdmacm_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, rdma_cm_id, rdma_event_channel,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

/// `MAX_CONNECTIONS`: maximum number of sessions of a software accelerator.
pub const CONNECTIONS_MAX: usize = 32;

/// `struct naaice_mr_local`: a region of this process.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MrLocal {
    /// The registration.
    pub ibv: *mut ibv_mr,
    /// First address.
    pub addr: *mut c_char,
    /// Number of bytes to send, at most the registered length.
    pub size: usize,
    /// Host: the region is an input. NAA: the region is an output.
    pub to_write: bool,
    /// The region is sent with the first call only.
    pub single_send: bool,
}

/// `struct naaice_mr_peer`: the peer's counterpart of a region.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MrPeer {
    /// Address; before the announcement the requested one.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
    /// Size in bytes.
    pub size: usize,
    /// Host: the region is an output. NAA: the region is an input.
    pub to_write: bool,
    /// The region is sent with the first call only.
    pub single_send: bool,
}

/// `struct naaice_mr_internal`: a region that exists on the NAA only.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MrInternal {
    /// Address on the NAA.
    pub addr: u64,
    /// Size in bytes.
    pub size: usize,
}

/// `struct naaice_communication_context`.
#[repr(C)]
#[derive(Debug)]
pub struct CommContext {
    /// Connection identifier.
    pub id: *mut rdma_cm_id,
    /// Channel of the connection's events.
    pub ev_channel: *mut rdma_event_channel,
    /// Device context.
    pub ibv_ctx: *mut ibv_context,
    /// Protection domain.
    pub pd: *mut ibv_pd,
    /// Channel of completion events.
    pub comp_channel: *mut ibv_comp_channel,
    /// Completion queue.
    pub cq: *mut ibv_cq,
    /// Queue pair.
    pub qp: *mut ibv_qp,
    /// Time limit of a call in seconds.
    pub timeout: f64,
    /// Transport retries of the connection, 0 to 7.
    pub retry_count: u8,
    /// Maximum number of bytes that a write copies into its request.
    pub max_inline_data: u16,
    /// `naaice_communication_state`.
    pub state: c_int,
    /// Regions of this process.
    pub mr_local_data: *mut MrLocal,
    /// Their number.
    pub no_local_mrs: u8,
    /// Unused, as in the original.
    pub mr_return_idx: u8,
    /// Counterparts of the regions.
    pub mr_peer_data: *mut MrPeer,
    /// Their number.
    pub no_peer_mrs: u8,
    /// Buffer of announcement messages.
    pub mr_local_message: *mut MrLocal,
    /// Internal regions.
    pub mr_internal: *mut MrInternal,
    /// Their number.
    pub no_internal_mrs: u8,
    /// Function code.
    pub fncode: u8,
    /// Return code of the accelerator. A kernel writes its return code here.
    pub naa_returncode: u8,
    /// Completed writes of the current transfer.
    pub rdma_writes_done: u8,
    /// Bytes that the last answer's last write carried.
    pub bytes_received: u32,
    /// Number of inputs.
    pub no_input_mrs: u8,
    /// Number of outputs.
    pub no_output_mrs: u8,
    /// Number of calls on this connection.
    pub no_rpc_calls: c_uint,
    /// Immediate value: function code in the first byte, user data in the others.
    pub immediate: [u8; 4],
    /// Slot of the session on the server.
    pub connection_id: u8,
}

impl CommContext {
    /// A structure without a connection.
    pub(crate) fn unconnected() -> Self {
        Self {
            id: ptr::null_mut(),
            ev_channel: ptr::null_mut(),
            ibv_ctx: ptr::null_mut(),
            pd: ptr::null_mut(),
            comp_channel: ptr::null_mut(),
            cq: ptr::null_mut(),
            qp: ptr::null_mut(),
            timeout: CALL_LIMIT.as_secs_f64(),
            retry_count: RETRIES,
            max_inline_data: 0,
            state: State::Init as i32,
            mr_local_data: ptr::null_mut(),
            no_local_mrs: 0,
            mr_return_idx: 0,
            mr_peer_data: ptr::null_mut(),
            no_peer_mrs: 0,
            mr_local_message: ptr::null_mut(),
            mr_internal: ptr::null_mut(),
            no_internal_mrs: 0,
            fncode: 0,
            naa_returncode: 0,
            rdma_writes_done: 0,
            bytes_received: 0,
            no_input_mrs: 0,
            no_output_mrs: 0,
            no_rpc_calls: 0,
            immediate: [0; 4],
            connection_id: 0,
        }
    }
}

/// `struct naaice_communication_context` of interface 2 (`NAAICE_INTERFACE` in `naaice.h`): the layout of the original after
/// version 0.1. A session of a program with this interface has it beside [`CommContext`].
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are those of CommContext")]
pub struct CommContext2 {
    pub id: *mut rdma_cm_id,
    pub ev_channel: *mut rdma_event_channel,
    pub ibv_ctx: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub comp_channel: *mut ibv_comp_channel,
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub timeout: f64,
    pub retry_count: u8,
    pub max_inline_data: u16,
    pub state: c_int,
    pub mr_local_data: *mut MrLocal,
    pub no_local_mrs: u8,
    pub mr_return_idx: u8,
    pub mr_peer_data: *mut MrPeer,
    pub no_peer_mrs: u8,
    pub mr_local_message: *mut MrLocal,
    pub mr_internal: *mut MrInternal,
    pub no_internal_mrs: u8,
    pub fncode: u8,
    /// The accelerator's answer of 24 bits. A kernel writes its return code here.
    pub response_user_immediate: u32,
    pub rdma_writes_done: u8,
    /// The call has ended.
    pub response_received: bool,
    pub bytes_received: u32,
    pub no_input_mrs: u8,
    pub no_output_mrs: u8,
    pub no_rpc_calls: c_uint,
    pub immediate: [u8; 4],
    pub connection_id: u8,
}

impl CommContext2 {
    /// The same contents. `answer` has 24 bits.
    #[must_use]
    pub fn of(from: &CommContext, answer: u32) -> Self {
        Self {
            id: from.id,
            ev_channel: from.ev_channel,
            ibv_ctx: from.ibv_ctx,
            pd: from.pd,
            comp_channel: from.comp_channel,
            cq: from.cq,
            qp: from.qp,
            timeout: from.timeout,
            retry_count: from.retry_count,
            max_inline_data: from.max_inline_data,
            state: from.state,
            mr_local_data: from.mr_local_data,
            no_local_mrs: from.no_local_mrs,
            mr_return_idx: from.mr_return_idx,
            mr_peer_data: from.mr_peer_data,
            no_peer_mrs: from.no_peer_mrs,
            mr_local_message: from.mr_local_message,
            mr_internal: from.mr_internal,
            no_internal_mrs: from.no_internal_mrs,
            fncode: from.fncode,
            response_user_immediate: answer,
            rdma_writes_done: from.rdma_writes_done,
            response_received: from.state == State::Finished as c_int,
            bytes_received: from.bytes_received,
            no_input_mrs: from.no_input_mrs,
            no_output_mrs: from.no_output_mrs,
            no_rpc_calls: from.no_rpc_calls,
            immediate: from.immediate,
            connection_id: from.connection_id,
        }
    }

    /// What a program may have changed between two calls.
    pub fn read_into(&self, to: &mut CommContext) {
        to.timeout = self.timeout;
        to.retry_count = self.retry_count;
        to.mr_return_idx = self.mr_return_idx;
        to.fncode = self.fncode;
        to.immediate = self.immediate;
        to.connection_id = self.connection_id;
    }
}

/// `naa_param_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NaaParam {
    /// First address.
    pub addr: *mut c_void,
    /// Size in bytes.
    pub size: usize,
    /// Sent with the first call only.
    pub single_send: bool,
}

/// `naa_handle`.
#[repr(C)]
#[derive(Debug)]
pub struct NaaHandle {
    /// Function code.
    pub function_code: u32,
    /// The session; null before creation and after its end.
    pub comm_ctx: *mut CommContext,
}

/// `naa_status`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NaaStatus {
    /// `naaice_communication_state`.
    pub state: c_int,
    /// `enum naa_error`. In interface 2 it is `user_immediate`, the answer of 24 bits.
    pub naa_error: c_uint,
    /// Bytes of the last answer.
    pub bytes_received: u64,
}

/// `struct connection_management`: the free slots of a server.
#[repr(C)]
#[derive(Debug)]
pub struct ConnectionManagement {
    /// A stack of free slots.
    pub connections: [u8; CONNECTIONS_MAX],
    /// Its height.
    pub top: c_int,
}

/// `struct context`: a server.
#[repr(C)]
pub struct ServerContext {
    /// Guards the slots.
    pub lock: libc::pthread_mutex_t,
    /// Sessions since the start, modulo 256.
    pub total_connections_lifetime: u8,
    /// The listening connection.
    pub master: *mut CommContext,
    /// The free slots.
    pub con_mng: *mut ConnectionManagement,
    /// The sessions.
    pub worker: [*mut CommContext; CONNECTIONS_MAX],
    /// The sessions' threads.
    pub worker_threads: [libc::pthread_t; CONNECTIONS_MAX],
}

impl std::fmt::Debug for ServerContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerContext").finish_non_exhaustive()
    }
}

/// `struct worker_args`.
#[repr(C)]
#[derive(Debug)]
pub struct WorkerArgs {
    /// The server.
    pub ctx: *mut ServerContext,
    /// The session's slot.
    pub worker_id: u8,
}

/// A kernel: the function that `match_function_code` returns.
pub type Kernel = unsafe extern "C" fn(*mut CommContext);

/// `match_function_code`: writes the kernel of a function code and returns 0, or returns another value.
pub type MatchFunctionCode = unsafe extern "C" fn(u8, *mut Option<Kernel>) -> c_int;

/// Return codes, `enum naa_error`. Codes 0x10 to 0x7f belong to kernels.
pub mod code {
    /// The call has succeeded.
    pub const SUCCESS: u8 = 0;
    /// The accelerator cannot be reached, or has no free slot.
    pub const SOCKET_UNAVAIL: u8 = 1;
    /// The kernel exceeded its time limit.
    pub const KERNEL_TIMEOUT: u8 = 2;
    /// The accelerator has no kernel for the function code.
    pub const UNKNOWN_FUNCTION: u8 = 3;
    /// The kernel crashed.
    pub const KERNEL_CRASHED: u8 = 4;
    /// The kernel returned a code outside its range.
    pub const KERNEL_CODE: u8 = 5;
    /// The accelerator could not access the caller's memory.
    pub const MEMORY: u8 = 6;
    /// First code of kernels.
    pub const KERNEL_FIRST: u8 = 0x10;
    /// Last code of kernels.
    pub const KERNEL_LAST: u8 = 0x7f;

    /// Meaning of a code, for messages.
    #[must_use]
    pub const fn meaning(code: u8) -> &'static str {
        match code {
            SUCCESS => "success",
            SOCKET_UNAVAIL => "the accelerator cannot be reached",
            KERNEL_TIMEOUT => "the kernel exceeded its time limit",
            UNKNOWN_FUNCTION => "the accelerator has no kernel for this function code",
            KERNEL_CRASHED => "the kernel crashed",
            KERNEL_CODE => "the kernel returned a code outside 0x10 to 0x7f",
            MEMORY => "the accelerator could not access the caller's memory",
            KERNEL_FIRST..=KERNEL_LAST => "a return code of the kernel",
            _ => "an unknown return code",
        }
    }

    /// The code that the caller receives for a kernel's return code.
    #[must_use]
    pub const fn of_kernel(returned: u8) -> u8 {
        match returned {
            SUCCESS | KERNEL_FIRST..=KERNEL_LAST => returned,
            _ => KERNEL_CODE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::code;

    #[test]
    fn a_kernel_may_return_only_its_own_codes() {
        for (returned, expect) in [
            (0, 0),
            (0x10, 0x10),
            (0x7f, 0x7f),
            (1, code::KERNEL_CODE),
            (0x0f, code::KERNEL_CODE),
            (0x80, code::KERNEL_CODE),
            (0xff, code::KERNEL_CODE),
        ] {
            assert_eq!(code::of_kernel(returned), expect, "{returned:#x}");
        }
    }
}
