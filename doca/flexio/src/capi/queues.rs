//! The C interface: completion queues and queue pairs.

use super::commands::CEq;
use super::objects::{check_context, check_pd};
use super::{CProcess, destroy, given, guard, put};
use crate::error::{Error, Result};
use crate::queue::{Cq, CqAttr, CqTarget, Qp, QpAttr, Receive, Remote, Retries, Transport};
use crate::shared::{Rmp, RmpAttr};
use crate::thread::Thread;
use mlx5dv_sys::{ibv_context, ibv_pd};
use std::ffi::{c_int, c_void};

/// `FLEXIO_MEMTYPE_DPA`.
const MEMORY_OF_DPA: u32 = 0;
/// `FLEXIO_CQ_ELEMENT_TYPE_*`.
const ELEMENT_THREAD: u32 = 0;
const ELEMENT_EVENTS: u32 = 2;
const ELEMENT_NONE: u32 = 8;
/// log2 of the bytes of a receive entry: one data segment.
const LOG_RECEIVE: u32 = 4;
/// `FLEXIO_WQ_TYPE_CYCLIC`.
const WQ_CYCLIC: u32 = 1;

/// `struct flexio_qmem`.
#[repr(C)]
pub(crate) struct Qmem {
    memtype: u32,
    daddr: u64,
    umem_id: u32,
}

impl Qmem {
    fn address(&self, what: &str) -> Result<u64> {
        if self.memtype == MEMORY_OF_DPA {
            Ok(self.daddr)
        } else {
            Err(Error::failed(format!(
                "the {what} is not in memory of the DPA"
            )))
        }
    }
}

/// `struct flexio_cq_attr`.
#[repr(C)]
pub(crate) struct CCqAttr {
    log_cq_depth: u8,
    overrun_ignore: u8,
    element_type: u32,
    /// A thread, or an event queue.
    target: *const c_void,
    uar_id: u32,
    cq_dbr_daddr: u64,
    cq_ring_qmem: Qmem,
    no_arm: u8,
}

/// Creates a completion queue.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_cq_create(
    process: *const CProcess,
    context: *mut ibv_context,
    attr: *const CCqAttr,
    cq: *mut *mut Cq,
) -> u32 {
    guard("flexio_cq_create", || {
        // SAFETY: from `flexio_process_create`, and the caller's attributes.
        let (own, attr) = unsafe {
            (
                given(process, "the process")?,
                given(attr, "the attributes")?,
            )
        };
        let process = &own.process;
        check_context(process, context)?;
        let target = match attr.element_type {
            ELEMENT_THREAD => {
                // SAFETY: from `flexio_event_handler_get_thread`.
                let thread = unsafe { given(attr.target.cast::<Thread>(), "the thread") }?;
                CqTarget::Thread(thread.number())
            }
            ELEMENT_EVENTS => {
                // SAFETY: from `flexio_eq_create`.
                let events = unsafe { given(attr.target.cast::<CEq>(), "the event queue") }?;
                CqTarget::Queue(events.queue.number())
            }
            ELEMENT_NONE => CqTarget::None,
            other => {
                return Err(Error::failed(format!(
                    "element_type {other} is not available"
                )));
            }
        };
        let made = Cq::create(
            process,
            &CqAttr {
                log_entries: attr.log_cq_depth.into(),
                ring: attr.cq_ring_qmem.address("ring")?,
                doorbell: attr.cq_dbr_daddr,
                uar: attr.uar_id,
                target,
                overrun_ignore: attr.overrun_ignore != 0,
            },
        )?;
        if target != CqTarget::None && attr.no_arm == 0 {
            made.arm(0)?;
        }
        // SAFETY: the caller's place.
        unsafe { put(cq, Box::into_raw(Box::new(made))) }
    })
}

/// Destroys a completion queue.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_cq_destroy(cq: *mut Cq) -> u32 {
    // SAFETY: from `flexio_cq_create`.
    unsafe { destroy("flexio_cq_destroy", cq) }
}

/// Number of a completion queue.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_cq_get_cq_num(cq: *const Cq) -> u32 {
    // SAFETY: from `flexio_cq_create`.
    unsafe { cq.as_ref() }.map_or(u32::MAX, Cq::number)
}

/// `struct flexio_qp_attr`.
#[repr(C)]
pub(crate) struct CQpAttr {
    transport_type: u32,
    pd: *mut ibv_pd,
    log_sq_depth: u8,
    log_rq_depth: u8,
    rq_type: u32,
    qp_wq_buff_qmem: Qmem,
    qp_wq_dbr_qmem: Qmem,
    uar_id: u32,
    sq_cqn: u32,
    rq_cqn: u32,
    rmpqn: u32,
    user_index: u32,
    ops_flag: u32,
    next_state: u32,
    qp_access_mask: c_int,
    vhca_port_num: u8,
    q_key: u32,
    remote_qp_num: u32,
    rlid: u16,
    grh: u8,
    /// `union ibv_gid`, which has words of 64 bits.
    rgid_or_rip: [u64; 2],
    dest_mac: *const [u8; 6],
    gid_table_index: u8,
    path_mtu: u32,
    fl: u32,
    min_rnr_nak_timer: u8,
    log_rra_max: u8,
    log_sra_max: u8,
    retry_count: u8,
    rnr_retry: u8,
    ack_timeout: u8,
    udp_sport: u16,
    next_rcv_psn: u32,
    next_send_psn: u32,
}

/// Creates a queue pair.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_qp_create(
    process: *const CProcess,
    context: *mut ibv_context,
    attr: *const CQpAttr,
    qp: *mut *mut Qp,
) -> u32 {
    guard("flexio_qp_create", || {
        // SAFETY: from `flexio_process_create`, and the caller's attributes.
        let (own, attr) = unsafe {
            (
                given(process, "the process")?,
                given(attr, "the attributes")?,
            )
        };
        let process = &own.process;
        check_context(process, context)?;
        check_pd(process, attr.pd)?;
        let transport = match attr.transport_type {
            0 => Transport::Rc,
            1 => Transport::Uc,
            2 => Transport::Ud,
            other => return Err(Error::failed(format!("no transport {other}"))),
        };
        let (receive, shared) = match attr.rq_type {
            0 => (
                Some(Receive {
                    log_entries: attr.log_rq_depth.into(),
                    log_stride: LOG_RECEIVE,
                }),
                None,
            ),
            1 => (None, Some(attr.rmpqn)),
            3 => (None, None),
            other => {
                return Err(Error::failed(format!(
                    "receive queues of type {other} are not available"
                )));
            }
        };
        let made = Qp::create(
            process,
            &QpAttr {
                transport,
                ring: attr.qp_wq_buff_qmem.address("work queue")?,
                log_send: attr.log_sq_depth.into(),
                receive,
                shared,
                doorbell: attr.qp_wq_dbr_qmem.address("doorbell record")?,
                send_cq: attr.sq_cqn,
                recv_cq: attr.rq_cqn,
                uar: attr.uar_id,
                pd: 0,
                user_index: attr.user_index,
            },
        )?;
        // SAFETY: the caller's place.
        unsafe { put(qp, Box::into_raw(Box::new(made))) }
    })
}

/// Changes the state of a queue pair.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_qp_modify(
    qp: *const Qp,
    attr: *const CQpAttr,
    _mask: *const c_void,
) -> u32 {
    guard("flexio_qp_modify", || {
        // SAFETY: from `flexio_qp_create`, and the caller's attributes.
        let (qp, attr) = unsafe { (given(qp, "the queue pair")?, given(attr, "the attributes")?) };
        // SAFETY: null or six bytes of the caller.
        let mac = unsafe { attr.dest_mac.as_ref() };
        let mut gid = [0; 16];
        for (place, word) in gid.as_chunks_mut::<8>().0.iter_mut().zip(attr.rgid_or_rip) {
            // The words have the byte order of the network.
            *place = word.to_ne_bytes();
        }
        match attr.next_state {
            0 => qp.to_reset(),
            1 => qp.to_init(
                attr.qp_access_mask.cast_unsigned(),
                attr.vhca_port_num,
                attr.q_key,
            ),
            2 => qp.to_rtr(&Remote {
                qpn: attr.remote_qp_num,
                lid: attr.rlid,
                gid: (attr.grh != 0).then_some(gid),
                mac: mac.copied().unwrap_or_default(),
                gid_index: attr.gid_table_index,
                mtu: u8::try_from(attr.path_mtu).unwrap_or_default(),
                psn: attr.next_rcv_psn,
                log_reads: attr.log_rra_max,
                rnr_timer: attr.min_rnr_nak_timer,
                hop_limit: 64,
                sl: 0,
            }),
            3 => qp.to_rts(&Retries {
                timeout: attr.ack_timeout,
                count: attr.retry_count,
                rnr: attr.rnr_retry,
                psn: attr.next_send_psn,
                log_reads: attr.log_sra_max,
            }),
            6 => qp.to_error(),
            state => Err(Error::failed(format!("no state {state}"))),
        }
    })
}

/// Destroys a queue pair.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_qp_destroy(qp: *mut Qp) -> u32 {
    // SAFETY: from `flexio_qp_create`.
    unsafe { destroy("flexio_qp_destroy", qp) }
}

/// Number of a queue pair.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_qp_get_qp_num(qp: *const Qp) -> u32 {
    // SAFETY: from `flexio_qp_create`.
    unsafe { qp.as_ref() }.map_or(u32::MAX, Qp::number)
}

/// `struct flexio_wq_attr`.
#[repr(C)]
pub(crate) struct WqAttr {
    log_wq_stride: u8,
    log_wq_depth: u8,
    uar_id: u32,
    user_index: u32,
    pd: *mut ibv_pd,
    /// A union of the attributes of send queues and of receive queues: the type of the queue.
    wq_type: u32,
    wq_ring_qmem: Qmem,
    wq_dbr_qmem: Qmem,
}

/// Creates a shared receive queue.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_rmp_create(
    process: *const CProcess,
    context: *mut ibv_context,
    attr: *const WqAttr,
    rmp: *mut *mut Rmp,
) -> u32 {
    guard("flexio_rmp_create", || {
        // SAFETY: from `flexio_process_create`, and the caller's attributes.
        let (own, attr) = unsafe {
            (
                given(process, "the process")?,
                given(attr, "the attributes")?,
            )
        };
        let process = &own.process;
        check_context(process, context)?;
        check_pd(process, attr.pd)?;
        if attr.wq_type != WQ_CYCLIC {
            return Err(Error::failed(
                "a shared receive queue is cyclic: set rq.wq_type to FLEXIO_WQ_TYPE_CYCLIC",
            ));
        }
        let made = Rmp::create(
            process,
            &RmpAttr {
                ring: attr.wq_ring_qmem.address("ring")?,
                log_entries: attr.log_wq_depth.into(),
                log_stride: attr.log_wq_stride.into(),
                doorbell: attr.wq_dbr_qmem.address("doorbell record")?,
            },
        )?;
        // SAFETY: the caller's place.
        unsafe { put(rmp, Box::into_raw(Box::new(made))) }
    })
}

/// Destroys a shared receive queue.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_rmp_destroy(rmp: *mut Rmp) -> u32 {
    // SAFETY: from `flexio_rmp_create`.
    unsafe { destroy("flexio_rmp_destroy", rmp) }
}

/// Number of a shared receive queue.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_rmp_get_wq_num(rmp: *const Rmp) -> u32 {
    // SAFETY: from `flexio_rmp_create`.
    unsafe { rmp.as_ref() }.map_or(u32::MAX, Rmp::number)
}
