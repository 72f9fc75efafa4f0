//! INIT_QP_ATTR: the attributes by which a queue pair follows its connection (core/cma.c,
//! `rdma_init_qp_attr`; core/cm.c, `ib_cm_init_qp_attr`).

use super::caller::Caller;
use crate::engine::rdma_cm::{ADDRESS_BYTES, Route, answer, datagrams};
use crate::fabric::rdma_cm::{CmId, Exchange};
use crate::sys::Errno;

/// Bytes of `struct ib_uverbs_qp_attr`.
const ATTRIBUTES_BYTES: usize = 144;

/// States of a queue pair (`enum ib_qp_state`).
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;

/// Types of queue pairs (`enum ib_qp_type`).
const QP_RC: u8 = 2;
const QP_XRC_INI: u8 = 9;
const QP_XRC_TGT: u8 = 10;

/// Attributes that the answer names (`enum ib_qp_attr_mask`).
mod mask {
    pub(super) const STATE: u32 = 1;
    pub(super) const ACCESS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const QKEY: u32 = 1 << 6;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_COUNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const MAX_RD_ATOMIC: u32 = 1 << 13;
    pub(super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub(super) const DEST_QPN: u32 = 1 << 20;
}

/// Rights of the remote side (`enum ib_access_flags`).
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;

/// Acknowledgement timeout of the emulated paths: their lifetime and the adapter's delay
/// (`cm_ack_timeout`).
const ACK_TIMEOUT: u8 = 19;

pub(super) fn init(caller: &Caller<'_>, response: u64, id: u32, state: u32) -> Result<(), Errno> {
    caller.needs_room(ATTRIBUTES_BYTES)?;
    let fabric = caller.process.fabric();
    let mut locked = caller.lock();
    let known = caller.attached(&mut locked, id)?;
    if datagrams(known) && known.qkey == 0 {
        known.qkey = answer::qkey(fabric, known);
    }
    let known = *known;
    drop(locked);
    let route = Route::of(fabric, &known);
    let attributes = attributes(&known, route.as_ref(), state)?;
    caller.answer(response, &attributes)
}

fn attributes(
    id: &CmId,
    route: Option<&Route>,
    state: u32,
) -> Result<[u8; ATTRIBUTES_BYTES], Errno> {
    if datagrams(id) || id.exchange == Exchange::Idle {
        return Ok(before_connection(id, state));
    }
    let connected = matches!(
        id.exchange,
        Exchange::RequestReceived
            | Exchange::ReplySent
            | Exchange::ReplyReceived
            | Exchange::Established
    );
    let route = route.ok_or(Errno(libc::EINVAL))?;
    match state {
        INIT if connected || id.exchange == Exchange::RequestSent => {
            let mut put = Attributes::new(state);
            put.mask(mask::ACCESS | mask::PKEY_INDEX | mask::PORT);
            put.word(36, access(id));
            put.byte(133, route.port);
            Ok(put.bytes)
        }
        RTR if connected => Ok(ready_to_receive(id, route)),
        RTS if connected => Ok(ready_to_send(id)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// The attributes of a queue pair that is not part of an exchange of messages.
fn before_connection(id: &CmId, state: u32) -> [u8; ATTRIBUTES_BYTES] {
    let mut put = Attributes::new(state);
    put.mask(mask::PKEY_INDEX | mask::PORT);
    put.byte(133, id.local.place().map_or(0, |place| place.port));
    if datagrams(id) {
        put.mask(mask::QKEY);
        put.word(20, id.qkey);
    } else {
        put.mask(mask::ACCESS);
    }
    if state == RTR {
        put.word(24, id.here.psn);
    }
    put.bytes
}

fn access(id: &CmId) -> u32 {
    match id.responder_resources {
        0 => REMOTE_WRITE,
        _ => REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC,
    }
}

fn ready_to_receive(id: &CmId, route: &Route) -> [u8; ATTRIBUTES_BYTES] {
    let mut put = Attributes::new(RTR);
    put.mask(mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN);
    put.word(12, route.mtu.into());
    put.word(24, id.here.psn);
    put.word(32, id.there.qp_num);
    put.address(&route.address());
    if matches!(id.qp_type, QP_RC | QP_XRC_TGT) {
        put.mask(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER);
        put.byte(131, id.responder_resources);
    }
    put.bytes
}

fn ready_to_send(id: &CmId) -> [u8; ATTRIBUTES_BYTES] {
    let mut put = Attributes::new(RTS);
    put.mask(mask::SQ_PSN);
    put.word(28, id.there.psn);
    if matches!(id.qp_type, QP_RC | QP_XRC_INI) {
        put.mask(mask::RETRY_COUNT | mask::RNR_RETRY | mask::MAX_RD_ATOMIC);
        put.byte(130, id.initiator_depth);
        put.byte(135, id.retry_count);
        put.byte(136, id.rnr_retry_count);
    }
    if matches!(id.qp_type, QP_RC | QP_XRC_INI | QP_XRC_TGT) {
        put.mask(mask::TIMEOUT);
        let chosen = id.ack_timeout.checked_sub(1);
        let chosen = chosen.and_then(|timeout| u8::try_from(timeout).ok());
        put.byte(134, chosen.unwrap_or(ACK_TIMEOUT));
    }
    put.bytes
}

/// The answer by field offset.
struct Attributes {
    bytes: [u8; ATTRIBUTES_BYTES],
    mask: u32,
}

impl Attributes {
    fn new(state: u32) -> Self {
        let mut attributes = Self {
            bytes: [0; ATTRIBUTES_BYTES],
            mask: 0,
        };
        attributes.mask(mask::STATE);
        attributes.word(4, state);
        attributes
    }

    fn mask(&mut self, bits: u32) {
        self.mask |= bits;
        self.word(0, self.mask);
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        if let Some(target) = self.bytes.get_mut(at..at + value.len()) {
            target.copy_from_slice(value);
        }
    }

    fn word(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_ne_bytes());
    }

    fn byte(&mut self, at: usize, value: u8) {
        self.put(at, &[value]);
    }

    fn address(&mut self, address: &[u8; ADDRESS_BYTES]) {
        self.put(40, address);
    }
}
