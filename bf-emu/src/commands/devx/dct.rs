//! `CREATE_DCT`: the target side of dynamic connections. The queue pair table holds DCTs too.

use mlx5_prm::cmd;
use mlx5_prm::qp::{dct, state};
use mlx5_prm::umr::access;

use super::mailbox::{BAD_PARAM, Output, Result, cq_slot, full, get, get8, get16, pd_slot, ports};
use super::qp::{check_scattered, scattered};
use crate::commands::call::{Call, Full, Kind};
use crate::fabric::counters::Command;
use crate::fabric::numbers::{number_of, slot_of_number};
use crate::fabric::objects::{Path, Qp, SERVICE_DCT};
use crate::fabric::{Place, QPN_BASE};

pub(super) fn create(call: &Call<'_>, input: &[u8], capacity: usize) -> Result<(u32, Vec<u8>)> {
    call.count(Command::CreateQp);
    let rights = [
        (dct::REMOTE_READ, access::REMOTE_READ),
        (dct::REMOTE_WRITE, access::REMOTE_WRITE),
        (dct::REMOTE_ATOMIC, access::ATOMIC),
    ];
    let granted = rights
        .into_iter()
        .filter(|(field, _)| field.is_set(input))
        .fold(0, |rights, (_, right)| rights | right);
    if get8(input, dct::PORT) > ports(call)? {
        return Err(BAD_PARAM);
    }
    let sgid_index = get8(input, dct::MY_ADDR_INDEX);
    let place = Place {
        function: call.function(),
        port: get8(input, dct::PORT).max(1),
    };
    let fabric = call.fabric();
    if fabric.link_of(place).is_ethernet() {
        fabric.gid_entry(place, sgid_index).ok_or(BAD_PARAM)?;
    }
    let owner = call.owner()?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    let srq = slot_of_number(get(input, dct::SRQN)).ok_or(BAD_PARAM)?;
    function
        .srqs
        .owned(srq, call.context.number)
        .ok_or(BAD_PARAM)?;
    let cq = cq_slot(call, function, get(input, dct::CQN))?;
    let target = Qp {
        pd: pd_slot(call, function, get(input, dct::PD))?,
        send_cq: cq,
        recv_cq: cq,
        srq: srq + 1,
        user_index: get(input, dct::USER_INDEX),
        dc_key: dct::DC_ACCESS_KEY.get(input),
        access: granted,
        path: Path {
            port: get8(input, dct::PORT),
            path_mtu: get8(input, dct::MTU),
            pkey_index: get16(input, dct::PKEY_INDEX),
            min_rnr_timer: get8(input, dct::MIN_RNR_NAK),
            sgid_index,
            hop_limit: get8(input, dct::HOP_LIMIT),
            gid_type: fabric.gid_type(place, sgid_index),
            ..Path::default()
        },
        cs_res: scattered(dct::CS_RES, input, 0)?,
        service: SERVICE_DCT,
        // A DCT has no transitions: it accepts messages from its creation on.
        state: state::RTR,
        by_command: true,
        ..Qp::default()
    };
    check_scattered(function, cq, target.cs_res)?;
    let slot = function
        .insert_qp(owner, target)
        .ok_or_else(|| full(call, Full::Qps))?;
    let mut output = Output::new(cmd::HEADER_BYTES, capacity);
    output.set(cmd::OBJECT_NUMBER, u64::from(slot + QPN_BASE));
    Ok((Kind::Qp.handle(slot), output.done()))
}

/// `QUERY_DCT`.
pub(super) fn query(call: &Call<'_>, slot: u32, capacity: usize) -> Result {
    call.count(Command::QueryQp);
    let locked = call.lock();
    let queue = *locked
        .peek(call.function())
        .qps
        .owned(slot, call.context.number)
        .filter(|queue| queue.service == SERVICE_DCT)
        .ok_or(BAD_PARAM)?;
    let flag = |right: u8| u64::from(queue.access & right != 0);
    let fields = [
        (dct::STATE, u64::from(queue.state != state::RTR) * DRAINED),
        (dct::USER_INDEX, u64::from(queue.user_index)),
        (dct::CQN, u64::from(number_of(queue.recv_cq))),
        (
            dct::SRQN,
            queue
                .srq
                .checked_sub(1)
                .map_or(0, |slot| u64::from(number_of(slot))),
        ),
        (dct::REMOTE_READ, flag(access::REMOTE_READ)),
        (dct::REMOTE_WRITE, flag(access::REMOTE_WRITE)),
        (dct::REMOTE_ATOMIC, flag(access::ATOMIC)),
        (dct::MIN_RNR_NAK, u64::from(queue.path.min_rnr_timer)),
        (dct::PD, u64::from(number_of(queue.pd))),
        (dct::DC_ACCESS_KEY, queue.dc_key),
        (dct::MTU, u64::from(queue.path.path_mtu)),
        (dct::PORT, u64::from(queue.path.port)),
        (dct::PKEY_INDEX, u64::from(queue.path.pkey_index)),
        (dct::MY_ADDR_INDEX, u64::from(queue.path.sgid_index)),
        (dct::HOP_LIMIT, u64::from(queue.path.hop_limit)),
    ];
    let mut output = Output::new(QUERY_OUT_BYTES, capacity);
    for (field, value) in fields {
        output.set(field, value);
    }
    Ok(output.done())
}

/// Bytes of the answer to `QUERY_DCT`. The context has the layout of `CREATE_DCT`.
const QUERY_OUT_BYTES: usize = 0x50;
/// `MLX5_DCTC_STATE_DRAINED`; 0 is active.
const DRAINED: u64 = 2;
