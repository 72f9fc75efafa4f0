//! `CREATE_QP`, the state transitions and `QUERY_QP`.

use mlx5_prm::cmd::{self, opcode};
use mlx5_prm::qp::{self, context, rq_type, service, state};
use mlx5_prm::{Field, umr::access};

use super::dpa;
use super::mailbox::{BAD_PARAM, BAD_STATE, CommandError, Output, Result, full};
use super::mailbox::{cq_slot, get, get8, get16, in_umem, pd_slot, ports};
use crate::commands::call::{Call, Full, Kind};
use crate::commands::queue_pair::reset;
use crate::engine;
use crate::engine::complete::enter_error;
use crate::engine::polling;
use crate::fabric::counters::Command;
use crate::fabric::numbers::{number_of, slot_of_number};
use crate::fabric::objects::{Cq, Qp, Ring, SERVICE_DCT};
use crate::fabric::{Function, Place, QPN_BASE};
use crate::model::address::{GidType, Link, Mac};
use crate::sys::Errno;

/// Bytes of a doorbell record.
const DBREC_BYTES: u64 = 8;
/// log2 of the bytes of a send building block.
const LOG_WQEBB: u32 = 6;

/// A field of the context, at its offset in a command.
fn field(field: Field) -> Field {
    field.within(qp::CONTEXT_AT)
}

const MISSING: CommandError = CommandError::Kernel(Errno(libc::ENOENT));

pub(super) fn create(call: &Call<'_>, input: &[u8], capacity: usize) -> Result<(u32, Vec<u8>)> {
    call.count(Command::CreateQp);
    call.process.close_uars(call.context)?;
    let service = get8(input, field(context::ST));
    if !matches!(
        service,
        service::RC | service::UC | service::UD | service::DCI
    ) {
        return Err(BAD_PARAM);
    }
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let umems = [
        get(input, qp::create::WQ_UMEM_ID),
        get(input, field(context::DBR_UMEM_ID)),
    ];
    let owner = dpa::owner_in(call, function, &umems)?;
    let srq = shared_queue(call, function, input)?;
    let (sq, rq) = rings(call, function, input)?;
    let dbr_umem = get(input, field(context::DBR_UMEM_ID));
    let dbr_offset = field(context::DBR_ADDR).get(input);
    let queue = Qp {
        sq,
        rq,
        dbrec: in_umem(call, function, dbr_umem, dbr_offset, DBREC_BYTES)?,
        pd: pd_slot(call, function, get(input, field(context::PD)))?,
        send_cq: cq_slot(call, function, get(input, field(context::CQN_SND)))?,
        recv_cq: cq_slot(call, function, get(input, field(context::CQN_RCV)))?,
        srq: srq.map_or(0, |slot| slot + 1),
        user_index: get(input, field(context::USER_INDEX)),
        uar: get(input, field(context::UAR_PAGE)),
        qkey: get(input, field(context::Q_KEY)),
        service,
        state: state::RST,
        cs_req: scattered(field(context::CS_REQ), input, 0x10)?,
        cs_res: scattered(field(context::CS_RES), input, 0)?,
        by_command: true,
        ..Qp::default()
    };
    check_scattered(function, queue.send_cq, queue.cs_req)?;
    check_scattered(function, queue.recv_cq, queue.cs_res)?;
    if queue.sq.count != 0 {
        polling::forget_rung(queue.dbrec);
    }
    let slot = function
        .insert_qp(owner, queue)
        .ok_or_else(|| full(call, Full::Qps))?;
    drop(locked);
    call.process.start_tick()?;
    let mut output = Output::new(cmd::HEADER_BYTES, capacity);
    output.set(cmd::OBJECT_NUMBER, u64::from(slot + QPN_BASE));
    Ok((Kind::Qp.handle(slot), output.done()))
}

/// Slot of the queue pair's shared receive queue; None if it has its own receive queue.
fn shared_queue(call: &Call<'_>, function: &Function, input: &[u8]) -> Result<Option<u32>> {
    match get8(input, field(context::RQ_TYPE)) {
        rq_type::SRQ_RMP_XRC => {
            let slot = slot_of_number(get(input, field(context::SRQN))).ok_or(BAD_PARAM)?;
            let srq = function.srqs.owned(slot, call.context.number);
            srq.ok_or(BAD_PARAM)?;
            Ok(Some(slot))
        }
        rq_type::REGULAR | rq_type::ZERO_SIZE => Ok(None),
        _ => Err(BAD_PARAM),
    }
}

/// The send and the receive ring. Both are in one umem, the receive ring first.
fn rings(call: &Call<'_>, function: &Function, input: &[u8]) -> Result<(Ring, Ring)> {
    // log_rq_stride counts from 16 bytes.
    let rq_log_stride = get(input, field(context::LOG_RQ_STRIDE)) + 4;
    let rq_count = match get8(input, field(context::RQ_TYPE)) {
        rq_type::REGULAR => 1u32 << get(input, field(context::LOG_RQ_SIZE)),
        _ => 0,
    };
    let sq_count = if field(context::NO_SQ).is_set(input) {
        0
    } else {
        1u32 << get(input, field(context::LOG_SQ_SIZE))
    };
    let rq_bytes = u64::from(rq_count) << rq_log_stride;
    let bytes = rq_bytes + (u64::from(sq_count) << LOG_WQEBB);
    let umem = get(input, qp::create::WQ_UMEM_ID);
    let offset = qp::create::WQ_UMEM_OFFSET.get(input);
    let base = in_umem(call, function, umem, offset, bytes)?;
    let sq = Ring {
        base: base + rq_bytes,
        count: sq_count,
        log_stride: LOG_WQEBB,
    };
    let rq = Ring {
        base,
        count: rq_count,
        log_stride: rq_log_stride,
    };
    Ok((sq, rq))
}

/// Bytes that may be scattered into completions. Value 1 of the field means up to 32 bytes, value 2
/// up to 64. The requester's value is in the upper half.
pub(super) fn scattered(field: Field, input: &[u8], upper: u32) -> Result<u8> {
    match get(input, field) {
        0 => Ok(0),
        value if value == upper | 1 => Ok(32),
        value if value == (upper * 2) | 2 => Ok(64),
        _ => Err(BAD_PARAM),
    }
}

/// Refuses more bytes than the entries of the completion queue hold.
pub(super) fn check_scattered(function: &Function, cq: u32, bytes: u8) -> Result<()> {
    let is_wide = |cq: &Cq| cq.ring.log_stride == 7;
    if bytes <= 32 || function.cqs.get(cq).is_some_and(is_wide) {
        Ok(())
    } else {
        Err(BAD_PARAM)
    }
}

pub(super) fn destroy(call: &Call<'_>, slot: u32) -> Result<()> {
    call.count(Command::DestroyQp);
    let mut locked = call.lock();
    let qps = &mut locked.function(call.function()).qps;
    if !qps
        .owned(slot, call.context.number)
        .ok_or(MISSING)?
        .by_command
    {
        return Err(MISSING);
    }
    qps.remove(slot);
    Ok(())
}

/// Bits of `opt_param_mask` (`mlx5_ifc.h`, MLX5_QP_OPTPAR_*).
mod optional {
    pub(super) const RRE: u32 = 1 << 1;
    pub(super) const RAE: u32 = 1 << 2;
    pub(super) const RWE: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const Q_KEY: u32 = 1 << 5;
}

/// `opt_param_mask` of the transitions.
const OPT_PARAM_MASK: Field = Field::new(0x80, 32);
/// `opt_param_mask_95_32` of the transitions.
const OPT_PARAM_MASK_95_32: Field = Field::new(0x840, 64);
/// Bit in it: the UDP source port (`MLX5_QPC_OPT_MASK_32_UDP_SPORT`).
const OPT_UDP_SPORT: u64 = 1 << 2;
/// Bit in it at INIT2INIT: copies of memory (`MLX5_QPC_OPT_MASK_32_INIT2INIT_MMO` of rdma-core's
/// `mlx5_ifc.h`).
const OPT_MMO: u64 = 1 << 3;
/// The input has a `qpc_data_extension`.
const QPC_EXT: Field = Field::new(0x40, 1);
/// `mmo` in the `qpc_data_extension` of the transitions: the send queue may copy memory.
const MMO: Field = Field::new(0x882, 1);

pub(super) fn modify(
    call: &Call<'_>,
    slot: u32,
    command: u16,
    input: &[u8],
    capacity: usize,
) -> Result {
    call.count(Command::ModifyQp);
    let fabric = call.fabric();
    let ports = ports(call)?;
    let mut locked = call.lock();
    let qps = &mut locked.function(call.function()).qps;
    qps.owned(slot, call.context.number).ok_or(MISSING)?;
    let queue = qps.get_mut(slot).ok_or(MISSING)?;
    if queue.service == SERVICE_DCT {
        return Err(BAD_PARAM);
    }
    let (from, to) = match command {
        opcode::RST2INIT_QP => (state::RST, state::INIT),
        opcode::INIT2INIT_QP => (state::INIT, state::INIT),
        opcode::INIT2RTR_QP => (state::INIT, state::RTR),
        opcode::RTR2RTS_QP => (state::RTR, state::RTS),
        opcode::RTS2RTS_QP => (state::RTS, state::RTS),
        opcode::SQERR2RTS_QP => (state::SQER, state::RTS),
        opcode::TO_ERR_QP => (queue.state, state::ERR),
        opcode::TO_RST_QP => (queue.state, state::RST),
        _ => return Err(super::mailbox::BAD_OP),
    };
    if queue.state != from {
        return Err(BAD_STATE);
    }
    if command == opcode::RST2INIT_QP && get8(input, field(context::PORT)) > ports {
        return Err(BAD_PARAM);
    }
    let place = Place {
        function: call.function(),
        port: queue.port(),
    };
    if command == opcode::INIT2RTR_QP && matches!(queue.service, service::RC | service::UC) {
        check_path(call, place, input)?;
    }
    let sets_udp =
        command == opcode::RTS2RTS_QP && OPT_PARAM_MASK_95_32.get(input) & OPT_UDP_SPORT != 0;
    if sets_udp {
        // Only packets of RoCE v2 have a UDP port.
        if queue.path.gid_type != GidType::RoceV2 {
            return Err(BAD_PARAM);
        }
        queue.path.udp_sport = get16(input, field(context::UDP_SPORT));
    }
    if command == opcode::INIT2INIT_QP && OPT_PARAM_MASK_95_32.get(input) & OPT_MMO != 0 {
        let can =
            fabric.profile().is_dma_mmo_qp() && matches!(queue.service, service::RC | service::DCI);
        if !can || !QPC_EXT.is_set(input) {
            return Err(BAD_PARAM);
        }
        queue.copies = MMO.is_set(input);
    }
    match to {
        state::RST => reset(queue),
        state::ERR => enter_error(&mut locked, call.function(), slot + QPN_BASE, None),
        to => {
            set_attributes(queue, command, input);
            if command == opcode::INIT2RTR_QP {
                queue.path.gid_type = match queue.path.is_global {
                    0 if !fabric.link_of(place).is_ethernet() => GidType::Infiniband,
                    _ => fabric.gid_type(place, queue.path.sgid_index),
                };
                let remote = fabric.port_of_path(place, &queue.path);
                queue.set_remote(remote);
            }
            queue.state = to;
            // From RTR, work starts with the next doorbell: the record may predate a reset.
            let runs = to == state::RTS && from != state::RTR;
            drop(locked);
            if runs {
                engine::run(fabric, call.function(), slot + QPN_BASE);
            }
        }
    }
    Ok(Output::new(cmd::HEADER_BYTES, capacity).done())
}

/// Checks the address of a connected queue pair. On Ethernet an address always has a GID, and its
/// bit is reserved.
fn check_path(call: &Call<'_>, place: Place, input: &[u8]) -> Result<()> {
    let link = call.fabric().link_of(place);
    let grh = field(context::GRH).is_set(input);
    if link == Link::InfinibandGrh && !grh {
        return Err(BAD_PARAM);
    }
    if grh || link.is_ethernet() {
        let index = get8(input, field(context::SRC_ADDR_INDEX));
        call.fabric().gid_entry(place, index).ok_or(BAD_PARAM)?;
    }
    Ok(())
}

fn set_attributes(queue: &mut Qp, command: u16, input: &[u8]) {
    let optional = get(input, OPT_PARAM_MASK);
    let mut set_right = |always: bool, bit: u32, flag: Field, right: u8| {
        if always || optional & bit != 0 {
            queue.access &= !right;
            if field(flag).is_set(input) {
                queue.access |= right;
            }
        }
    };
    let first = command == opcode::RST2INIT_QP;
    set_right(
        first,
        optional::RRE,
        context::REMOTE_READ,
        access::REMOTE_READ,
    );
    set_right(
        first,
        optional::RWE,
        context::REMOTE_WRITE,
        access::REMOTE_WRITE,
    );
    set_right(first, optional::RAE, context::REMOTE_ATOMIC, access::ATOMIC);
    let path = &mut queue.path;
    if first || optional & optional::PKEY_INDEX != 0 {
        path.pkey_index = get16(input, field(context::PKEY_INDEX));
    }
    if first || optional & optional::Q_KEY != 0 {
        queue.qkey = get(input, field(context::Q_KEY));
    }
    match command {
        opcode::RST2INIT_QP => path.port = get8(input, field(context::PORT)),
        opcode::INIT2RTR_QP => {
            queue.remote_qpn = get(input, field(context::REMOTE_QPN));
            path.path_mtu = get8(input, field(context::MTU));
            path.dlid = get16(input, field(context::RLID));
            path.is_global = get8(input, field(context::GRH));
            path.sgid_index = get8(input, field(context::SRC_ADDR_INDEX));
            path.hop_limit = get8(input, field(context::HOP_LIMIT));
            path.sl = get8(input, field(context::SL));
            path.dgid[..8].copy_from_slice(&field(context::RGID_HIGH).get(input).to_be_bytes());
            path.dgid[8..].copy_from_slice(&field(context::RGID_LOW).get(input).to_be_bytes());
            path.traffic_class = get8(input, field(context::TCLASS));
            path.flow_label = get(input, field(context::FLOW_LABEL));
            path.mac = mac(input);
            path.udp_sport = get16(input, field(context::UDP_SPORT));
            path.min_rnr_timer = get8(input, field(context::MIN_RNR_NAK));
            path.max_dest_rd_atomic = 1 << get8(input, field(context::LOG_RRA_MAX));
            path.rq_psn = get(input, field(context::NEXT_RCV_PSN));
        }
        opcode::RTR2RTS_QP => {
            path.retry_count = get8(input, field(context::RETRY_COUNT));
            path.rnr_retry = get8(input, field(context::RNR_RETRY));
            path.timeout = get8(input, field(context::ACK_TIMEOUT));
            path.max_rd_atomic = 1 << get8(input, field(context::LOG_SRA_MAX));
            path.sq_psn = get(input, field(context::NEXT_SEND_PSN));
        }
        _ => {}
    }
}

/// The MAC in a path.
fn mac(input: &[u8]) -> Mac {
    let [_, _, _, _, _, _, a, b] = field(context::RMAC_HIGH).get(input).to_be_bytes();
    let [c, d, e, f] = get(input, field(context::RMAC_LOW)).to_be_bytes();
    Mac([a, b, c, d, e, f])
}

fn be64(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// `QUERY_QP`, for queue pairs of commands and of verbs.
pub(super) fn query(call: &Call<'_>, slot: u32, capacity: usize) -> Result {
    call.count(Command::QueryQp);
    let locked = call.lock();
    let qps = &locked.peek(call.function()).qps;
    let queue = qps.owned(slot, call.context.number).ok_or(MISSING)?;
    let path = &queue.path;
    let flag = |right: u8| u64::from(queue.access & right != 0);
    let mut output = Output::new(qp::QUERY_OUT_BYTES, capacity);
    let mut put = |name: Field, value: u64| {
        output.set(field(name), value);
    };
    put(context::STATE, u64::from(queue.state));
    put(context::ST, u64::from(queue.service));
    put(context::PD, u64::from(number_of(queue.pd)));
    put(context::MTU, u64::from(path.path_mtu));
    put(context::USER_INDEX, u64::from(queue.user_index));
    put(context::UAR_PAGE, u64::from(queue.uar));
    put(context::REMOTE_QPN, u64::from(queue.remote_qpn));
    put(context::RLID, u64::from(path.dlid));
    put(context::GRH, u64::from(path.is_global));
    put(context::UDP_SPORT, u64::from(path.udp_sport));
    put(context::SRC_ADDR_INDEX, u64::from(path.sgid_index));
    put(context::HOP_LIMIT, u64::from(path.hop_limit));
    put(context::TCLASS, u64::from(path.traffic_class));
    put(context::FLOW_LABEL, u64::from(path.flow_label));
    let [a, b, c, d, e, f] = path.mac.0;
    put(context::RMAC_HIGH, u64::from(u16::from_be_bytes([a, b])));
    put(
        context::RMAC_LOW,
        u64::from(u32::from_be_bytes([c, d, e, f])),
    );
    let (high, low) = path.dgid.split_at(8);
    put(context::RGID_HIGH, be64(high));
    put(context::RGID_LOW, be64(low));
    put(context::PORT, u64::from(path.port));
    put(context::PKEY_INDEX, u64::from(path.pkey_index));
    put(context::CQN_SND, u64::from(number_of(queue.send_cq)));
    put(context::CQN_RCV, u64::from(number_of(queue.recv_cq)));
    put(context::REMOTE_READ, flag(access::REMOTE_READ));
    put(context::REMOTE_WRITE, flag(access::REMOTE_WRITE));
    put(context::REMOTE_ATOMIC, flag(access::ATOMIC));
    put(context::RETRY_COUNT, u64::from(path.retry_count));
    put(context::RNR_RETRY, u64::from(path.rnr_retry));
    put(context::MIN_RNR_NAK, u64::from(path.min_rnr_timer));
    put(context::NEXT_SEND_PSN, u64::from(path.sq_psn));
    put(context::NEXT_RCV_PSN, u64::from(path.rq_psn));
    put(context::Q_KEY, u64::from(queue.qkey));
    put(
        context::HW_SQ_WQEBB_COUNTER,
        u64::from(queue.sq_done & 0xffff),
    );
    put(context::HW_RQ_COUNTER, u64::from(queue.rq_done));
    if let Some(srq) = queue.srq.checked_sub(1) {
        put(context::RQ_TYPE, u64::from(rq_type::SRQ_RMP_XRC));
        put(context::SRQN, u64::from(number_of(srq)));
    }
    Ok(output.done())
}
