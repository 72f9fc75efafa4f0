//! Queue pairs of verbs.

use std::ops::RangeInclusive;

use mlx5_prm::qp::{service, state};

use super::abi::{UHW_IN, UHW_OUT, create_qp};
use super::ioctl::{Answer, Fields, Ioctl};
use super::memory::rights;
use super::transition::{STATES, mask, relevant, transition};
use super::{address, channel, xrcd};
use crate::commands::call::{Call, Full, Kind};
use crate::commands::queue_pair::reset;
use crate::engine;
use crate::engine::complete::enter_error;
use crate::engine::polling;
use crate::fabric::counters::Command;
use crate::fabric::objects::{
    Alternate, Migration, Qp, QpCaps, Ring, SERVICE_DCT, SERVICE_XRC_TARGET,
};
use crate::fabric::{Function, Identity, Place, QPN_BASE};
use crate::model::address::{GidType, Mac};
use crate::sys::Errno;

/// Largest number of entries of a queue, as the device advertises it.
pub(crate) const QP_WRS_MAX: u32 = 32768;

/// Largest number of outstanding reads and atomics of a queue pair, as the device advertises it.
pub(crate) const RD_ATOMIC_MAX: u8 = 16;

/// Offset of the path's port in `struct ib_uverbs_modify_qp`.
const DEST_PORT: usize = 31;

/// Offset of the alternate path in `struct ib_uverbs_modify_qp` and `struct ib_uverbs_query_qp_resp`, and of its port
/// from there.
const ALTERNATE: usize = 32;

/// Not a slot of any table.
const NO_SLOT: u32 = u32::MAX;

/// Enhanced connection establishment: two sides agree on options of their connection, each as a
/// mask of bits. This device has version 1 and none of its options.
pub(super) mod ece {
    /// Version 1 (`verbs.c`, "start from ECE version 1").
    pub(in crate::commands::uverbs) const SUPPORTED: u32 = 0x1000_0000;
}

/// Attributes of destruction.
const DESTROY_HANDLE: u16 = 0;
const DESTROY_RESP: u16 = 1;

/// Types of queue pair (`enum ib_uverbs_qp_type`). The driver's flags distinguish its own types
/// (`mlx5-abi.h`, MLX5_QP_FLAG_TYPE_*).
fn service_of(qp_type: u64, driver_flags: u32) -> Result<u8, Errno> {
    /// Raw packets and the GSI: the kernel knows them, this device has none.
    const RAW_PACKET: u64 = 8;
    match qp_type {
        TYPE_DRIVER => match driver_flags & (driver_flag::TYPE_DCT | driver_flag::TYPE_DCI) {
            driver_flag::TYPE_DCT => Ok(SERVICE_DCT),
            driver_flag::TYPE_DCI => Ok(service::DCI),
            _ => Err(Errno(libc::EINVAL)),
        },
        2 => Ok(service::RC),
        3 => Ok(service::UC),
        4 => Ok(service::UD),
        9 => Ok(service::XRC),
        10 => Ok(SERVICE_XRC_TARGET),
        RAW_PACKET => Err(Errno(libc::EOPNOTSUPP)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Type of queue pair that the driver's flags specify (`IB_UVERBS_QPT_DRIVER`).
const TYPE_DRIVER: u64 = 0xff;

/// Flag of creation: every send request has a completion (`IB_UVERBS_QP_CREATE_SQ_SIG_ALL`).
const SQ_SIG_ALL: u32 = 1 << 12;

/// Flag of creation for datagrams: the sender does not receive its own multicast messages
/// (`IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK`).
const NO_MULTICAST_LOOPBACK: u32 = 1 << 1;

/// Bytes of `struct ib_uverbs_qp_cap`.
pub(super) const CAP_BYTES: u16 = 20;

/// Flags of the driver (`mlx5-abi.h`, `MLX5_QP_FLAG_*`). The device does not advertise signatures,
/// tunnels, streams and others.
mod driver_flag {
    pub(super) const SCATTER_CQE: u32 = 1 << 1;
    pub(super) const BFREG_INDEX: u32 = 1 << 3;
    pub(super) const TYPE_DCT: u32 = 1 << 4;
    pub(super) const TYPE_DCI: u32 = 1 << 5;
    pub(super) const ALLOW_SCATTER_CQE: u32 = 1 << 8;
    pub(super) const UAR_PAGE_INDEX: u32 = 1 << 10;
}

fn check_driver_flags(qp_type: u64, flags: u32) -> Result<(), Errno> {
    let types = match qp_type {
        TYPE_DRIVER => driver_flag::TYPE_DCT | driver_flag::TYPE_DCI,
        _ => 0,
    };
    let known = types
        | driver_flag::SCATTER_CQE
        | driver_flag::ALLOW_SCATTER_CQE
        | driver_flag::BFREG_INDEX
        | driver_flag::UAR_PAGE_INDEX;
    // mlx5/qp.c, process_vendor_flags
    match flags & !known {
        0 => Ok(()),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Creates a queue pair: parses the request, finds the named objects, inserts the queue pair, and
/// answers.
pub(super) fn create(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::CreateQp);
    call.process.close_uars(call.context)?;
    let asked = Asked::read(ioctl)?;
    let named = Named::read(call, ioctl, asked.service)?;
    if asked.sends() {
        polling::forget_rung(asked.dbrec);
    }
    let event_channel = channel::event_channel(call, ioctl, create_qp::EVENT_FD);
    let mut qp = Qp {
        user_handle: ioctl.number(create_qp::USER_HANDLE)?,
        event_channel,
        ..queue_pair(&asked, &named)
    };
    let owner = call.owner()?;
    let mut locked = call.lock();
    let function = locked.function(call.function());
    (qp.cs_req, qp.cs_res) = scattered(function, &qp, asked.driver_flags);
    if !named.exist(function, call.context.number) {
        return Err(Errno(libc::ENOENT));
    }
    let slot = function.insert_qp(owner, qp);
    drop(locked);
    let slot = slot.ok_or_else(|| call.full(Full::Qps))?;
    call.process.start_tick()?;
    answer_create(ioctl, slot, &qp, asked.ece)
}

/// The attributes of a creation.
struct Asked {
    service: u8,
    create_flags: u32,
    driver_flags: u32,
    caps: QpCaps,
    buffer: u64,
    dbrec: u64,
    sq_count: u32,
    rq_count: u32,
    rq_shift: u32,
    user_index: u32,
    uar: u32,
    /// Options of the connection that the owner knows.
    ece: u32,
    /// Key of a DCT. In other types the field holds the address of a separate send ring.
    dc_key: u64,
}

impl Asked {
    fn read(ioctl: &Ioctl) -> Result<Self, Errno> {
        if ioctl.has(create_qp::IND_TABLE_HANDLE) {
            // The device has no such tables.
            return Err(Errno(libc::ENOENT));
        }
        if ioctl.has(create_qp::SOURCE_QPN) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // The device does not advertise the features of the other flags (`enum
        // ib_uverbs_qp_create_flags`).
        let create_flags = ioctl.flags(create_qp::FLAGS, SQ_SIG_ALL | NO_MULTICAST_LOOPBACK)?;
        let caps = ioctl.input(create_qp::CAP, CAP_BYTES.into())?;
        let caps = Fields(&caps);
        // struct mlx5_ib_create_qp
        let driver = ioctl.input(UHW_IN, 56)?;
        let driver = Fields(&driver);
        let qp_type = ioctl.number(create_qp::TYPE)?;
        let driver_flags = driver.u32(28);
        check_driver_flags(qp_type, driver_flags)?;
        let service = service_of(qp_type, driver_flags)?;
        if create_flags & NO_MULTICAST_LOOPBACK != 0 && service != service::UD {
            return Err(Errno(libc::EINVAL));
        }
        let asked = Self {
            service,
            create_flags,
            driver_flags,
            caps: QpCaps {
                max_send_wr: caps.u32(0),
                max_recv_wr: caps.u32(4),
                max_send_sge: caps.u32(8),
                max_recv_sge: caps.u32(12),
                max_inline_data: caps.u32(16),
            },
            buffer: driver.u64(0),
            dbrec: driver.u64(8),
            sq_count: driver.u32(16),
            rq_count: driver.u32(20),
            rq_shift: driver.u32(24),
            user_index: driver.u32(32),
            uar: driver.u32(36),
            dc_key: driver.u64(40),
            ece: driver.u32(48),
        };
        if asked.rings_fit() {
            Ok(asked)
        } else {
            Err(Errno(libc::EINVAL))
        }
    }

    fn rings_fit(&self) -> bool {
        let power = |count: u32| count == 0 || count.is_power_of_two() && count <= QP_WRS_MAX;
        power(self.sq_count)
            && power(self.rq_count)
            && self.rq_shift <= 12
            && self.dbrec.is_multiple_of(8)
    }

    fn sends(&self) -> bool {
        sends(self.service)
    }
}

fn sends(service: u8) -> bool {
    service != SERVICE_XRC_TARGET
}

fn receives(service: u8) -> bool {
    !matches!(service, SERVICE_XRC_TARGET | service::XRC)
}

/// Slots of the objects that a creation names. An object that this type of queue pair does not use
/// has [`NO_SLOT`].
struct Named {
    service: u8,
    pd: u32,
    send_cq: u32,
    recv_cq: u32,
    srq: Option<u32>,
    xrc_domain: u64,
}

impl Named {
    fn read(call: &Call<'_>, ioctl: &Ioctl, service: u8) -> Result<Self, Errno> {
        let slot = |wanted: bool, kind: Kind, attr: u16| match wanted {
            true => kind.slot(ioctl.number32(attr)?),
            false => Ok(NO_SLOT),
        };
        let (sends, receives) = (sends(service), receives(service));
        Ok(Self {
            service,
            pd: slot(sends, Kind::Pd, create_qp::PD_HANDLE)?,
            send_cq: slot(sends, Kind::Cq, create_qp::SEND_CQ_HANDLE)?,
            recv_cq: slot(receives, Kind::Cq, create_qp::RECV_CQ_HANDLE)?,
            xrc_domain: match service {
                SERVICE_XRC_TARGET => xrcd::domain(call, ioctl.number32(create_qp::XRCD_HANDLE)?)?,
                _ => 0,
            },
            srq: match ioctl.number32(create_qp::SRQ_HANDLE) {
                Ok(handle) => Some(Kind::Srq.slot(handle)?),
                Err(_) => None,
            },
        })
    }

    /// True if all named objects exist in the context.
    fn exist(&self, function: &Function, context: u32) -> bool {
        let senders = || {
            function.pds.owned(self.pd, context).is_some()
                && function.cqs.owned(self.send_cq, context).is_some()
        };
        let receivers = || function.cqs.owned(self.recv_cq, context).is_some();
        (!sends(self.service) || senders())
            && (!receives(self.service) || receivers())
            && self
                .srq
                .is_none_or(|srq| function.srqs.owned(srq, context).is_some())
    }
}

/// A new queue pair, without its owner's fields.
fn queue_pair(asked: &Asked, named: &Named) -> Qp {
    let rq_bytes = u64::from(asked.rq_count) << asked.rq_shift;
    let service = asked.service;
    Qp {
        // The receive ring comes first in the buffer (`providers/mlx5/verbs.c`).
        sq: Ring {
            base: asked.buffer.wrapping_add(rq_bytes),
            count: if asked.sends() { asked.sq_count } else { 0 },
            log_stride: 6,
        },
        rq: Ring {
            base: asked.buffer,
            count: if receives(service) { asked.rq_count } else { 0 },
            log_stride: asked.rq_shift,
        },
        dbrec: asked.dbrec,
        pd: named.pd,
        send_cq: named.send_cq,
        recv_cq: named.recv_cq,
        srq: named.srq.map_or(0, |slot| slot + 1),
        user_index: asked.user_index,
        uar: asked.uar,
        caps: asked.caps,
        dc_key: if service == SERVICE_DCT {
            asked.dc_key
        } else {
            0
        },
        xrc_domain: named.xrc_domain,
        service,
        state: state::RST,
        signal_all: asked.create_flags & SQ_SIG_ALL != 0,
        no_loopback: asked.create_flags & NO_MULTICAST_LOOPBACK != 0,
        ..Qp::default()
    }
}

fn answer_create(ioctl: &Ioctl, slot: u32, qp: &Qp, asked_ece: u32) -> Result<(), Errno> {
    ioctl.answer_handle(create_qp::HANDLE, u64::from(Kind::Qp.handle(slot)))?;
    let mut resp = Answer::new(CAP_BYTES.into());
    resp.u32(0, qp.caps.max_send_wr)
        .u32(4, qp.caps.max_recv_wr)
        .u32(8, qp.caps.max_send_sge)
        .u32(12, qp.caps.max_recv_sge)
        .u32(16, qp.caps.max_inline_data);
    ioctl.answer(create_qp::RESP_CAP, resp.as_slice())?;
    ioctl.answer(create_qp::RESP_QP_NUM, &(slot + QPN_BASE).to_ne_bytes())?;
    // struct mlx5_ib_create_qp_resp; a DCT is made by its transition to RTR
    let ece = match qp.service {
        SERVICE_DCT => 0,
        _ => asked_ece & ece::SUPPORTED,
    };
    let mut driver = Answer::new(40);
    driver.u32(0, qp.uar).u32(4, ece);
    ioctl.answer(UHW_OUT, driver.as_slice())
}

/// Bytes of an answer and of a message that go into completions: the driver's request, within the
/// kernel's limits (mlx5/qp.c, `configure_requester_scat_cqe`, `configure_responder_scat_cqe`).
fn scattered(function: &Function, qp: &Qp, driver_flags: u32) -> (u8, u8) {
    if driver_flags & driver_flag::SCATTER_CQE == 0 {
        return (0, 0);
    }
    let is_wide = |cq: u32| {
        let cq = function.cqs.get(cq);
        cq.is_some_and(|cq| cq.ring.log_stride == 7)
    };
    let request = match qp.service {
        // Answers go into completions only if every request completes, or if the application
        // permits it explicitly.
        _ if !qp.signal_all && driver_flags & driver_flag::ALLOW_SCATTER_CQE == 0 => 0,
        service::RC | service::DCI if is_wide(qp.send_cq) => 64,
        service::RC => 32,
        _ => 0,
    };
    let response = match qp.service {
        service::RC | service::UC | SERVICE_DCT if is_wide(qp.recv_cq) => 64,
        service::RC | service::UC => 32,
        _ => 0,
    };
    (request, response)
}

pub(super) fn destroy(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::DestroyQp);
    let slot = Kind::Qp.slot(ioctl.number32(DESTROY_HANDLE)?)?;
    let mut locked = call.lock();
    let qps = &locked.peek(call.function()).qps;
    let qp = *qps
        .owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    if locked.peek(call.function()).is_attached(slot) {
        // uverbs_std_types_qp.c, `uverbs_free_qp`
        return Err(Errno(libc::EBUSY));
    }
    let unread = channel::forget(&locked, call.function(), qp.event_channel, qp.user_handle);
    locked.function(call.function()).qps.remove(slot);
    drop(locked);
    let most = qp.events_sent.wrapping_sub(unread);
    let counter = qp.user_handle.wrapping_add(channel::QP_EVENTS);
    let reported = channel::reported(most, qp.events_unsure, counter);
    ioctl.answer(DESTROY_RESP, &reported.to_ne_bytes())
}

/// `MODIFY_QP`; `input` begins with `struct ib_uverbs_modify_qp` at `at`.
/// Returns the queue pair's number.
pub(super) fn modify(call: &Call<'_>, input: Fields<'_>) -> Result<u32, Errno> {
    call.count(Command::ModifyQp);
    let slot = Kind::Qp.slot(input.u32(64))?;
    let wanted = input.u32(68);
    let identity = call.identity()?;
    let mut locked = call.lock();
    let fabric = call.fabric();
    let qps = &mut locked.function(call.function()).qps;
    qps.owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    let qp = qps.get_mut(slot).ok_or(Errno(libc::ENOENT))?;
    let wanted = relevant(qp.service, wanted);
    let has = |bit: u32| wanted & bit != 0;
    let state_of = |number: u8| {
        STATES
            .get(usize::from(number))
            .copied()
            .ok_or(Errno(libc::EINVAL))
    };
    let from = if has(mask::CUR_STATE) {
        state_of(input.u8(97))?
    } else {
        qp.state
    };
    let to = if has(mask::STATE) {
        state_of(input.u8(96))?
    } else {
        qp.state
    };
    let possible = transition(qp.service, from, to).is_some_and(|needs| needs.met_by(wanted));
    let in_range = are_in_range(input, wanted, identity, qp.port());
    // The port of a path must be the port of the queue pair (uverbs_cmd.c, `modify_qp`).
    let same_port = !has(mask::AV) || to != state::RTR || input.u8(DEST_PORT) == qp.port();
    if from != qp.state || !possible || !in_range || !same_port {
        return Err(Errno(libc::EINVAL));
    }
    let place = Place {
        function: call.function(),
        port: qp.port(),
    };
    let (mut gid_type, mut mac) = (GidType::default(), Mac::default());
    if has(mask::AV) {
        let to = address::Attributes {
            dgid: input.bytes16(0),
            sgid_index: input.u8(24),
            is_global: input.u8(30) != 0,
            port: input.u8(DEST_PORT),
        };
        let own = address::check(identity, &to)?;
        gid_type = own.map(|own| own.kind).unwrap_or_default();
        let connected = !matches!(qp.service, service::UD | service::DCI | SERVICE_DCT);
        let on_ethernet = connected && identity.link(to.port).is_ethernet();
        if let Some(own) = own.filter(|_| on_ethernet) {
            mac = address::resolve(fabric, own, &to.dgid)?;
        }
    }
    let alternate = match has(mask::ALT_PATH) {
        true => Some(alternate(input, identity, qp.port())?),
        false => None,
    };
    let migration = match has(mask::PATH_MIG_STATE) {
        true => Some(migration(input.u8(99))?),
        false => None,
    };
    set_attributes(qp, input, wanted);
    let migrates = qp.migration == Migration::Armed && migration == Some(Migration::Migrated);
    qp.alternate = alternate.unwrap_or(qp.alternate);
    if let Some(state) = migration.filter(|_| !migrates) {
        (qp.migration, qp.refused_path) = (state, false);
    }
    if has(mask::AV) {
        (qp.path.gid_type, qp.path.mac) = (gid_type, mac);
        let remote = fabric.port_of_path(place, &qp.path);
        qp.set_remote(remote);
    }
    match to {
        state::RST => reset(qp),
        state::ERR => enter_error(&mut locked, call.function(), slot + QPN_BASE, None),
        to => {
            qp.state = to;
            qp.tells_drained =
                to == state::SQD && has(mask::EN_SQD_ASYNC_NOTIFY) && input.u8(100) != 0;
            // From RTR, work starts with the next doorbell: the record may predate a reset.
            let runs = to == state::SQD || to == state::RTS && from != state::RTR;
            if migrates {
                engine::migration::migrate(&mut locked, call.function(), slot + QPN_BASE);
            }
            drop(locked);
            if runs {
                engine::run(fabric, call.function(), slot + QPN_BASE);
            }
        }
    }
    Ok(slot + QPN_BASE)
}

/// The alternate path of a modification, for a queue pair at `port`.
fn alternate(input: Fields<'_>, identity: &Identity, port: u8) -> Result<Alternate, Errno> {
    let path = Alternate {
        dgid: input.bytes16(ALTERNATE),
        flow_label: input.u32(ALTERNATE + 16),
        dlid: input.u16(ALTERNATE + 20),
        sgid_index: input.u8(ALTERNATE + 24),
        hop_limit: input.u8(ALTERNATE + 25),
        traffic_class: input.u8(ALTERNATE + 26),
        sl: input.u8(ALTERNATE + 27),
        is_global: input.u8(ALTERNATE + 30),
        pkey_index: input.u16(94),
        port: input.u8(108),
        timeout: input.u8(109),
    };
    // uverbs_cmd.c, `modify_qp`
    let is_valid = identity.ports().contains(&path.port)
        && path.port == input.u8(ALTERNATE + DEST_PORT)
        && path.pkey_index < identity.link(path.port).pkey_table_len();
    // verbs.c, `_ib_modify_qp`: the kernel has alternate paths on InfiniBand only.
    let is_ethernet = [port, path.port].map(|port| identity.link(port).is_ethernet());
    if !is_valid || is_ethernet.contains(&true) {
        return Err(Errno(libc::EINVAL));
    }
    let to = address::Attributes {
        dgid: path.dgid,
        sgid_index: path.sgid_index,
        is_global: path.is_global != 0,
        port: path.port,
    };
    address::check(identity, &to)?;
    Ok(path)
}

/// The state of migration that a modification asks for. Only messages arm a queue pair (`rdmavt/qp.c`, `rvt_modify_qp`).
fn migration(number: u8) -> Result<Migration, Errno> {
    let state = Migration::of(number).filter(|state| *state != Migration::Armed);
    state.ok_or(Errno(libc::EINVAL))
}

/// `EX_MODIFY_QP`, which has driver data. Returns also the options of the connection that both the
/// owner and the device know.
pub(super) fn modify_ex(
    call: &Call<'_>,
    ioctl: &Ioctl,
    input: Fields<'_>,
) -> Result<(u32, u32), Errno> {
    /// `struct mlx5_ib_modify_qp`
    const DRIVER_BYTES: usize = 16;
    let asked = match ioctl.capacity(UHW_IN) {
        0 => 0,
        // mlx5/qp.c, mlx5_ib_modify_qp
        length if length < DRIVER_BYTES => return Err(Errno(libc::EINVAL)),
        _ => {
            let driver = ioctl.input(UHW_IN, DRIVER_BYTES)?;
            let driver = Fields(&driver);
            if driver.u32(0) != 0 || driver.u16(10) != 0 {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            driver.u32(12)
        }
    };
    let number = modify(call, input)?;
    // Only these commands of the firmware have such a field (mlx5/qpc.c, modify_qp_mbox_alloc).
    let has_field = input.u32(68) & mask::STATE != 0
        && matches!(
            STATES.get(usize::from(input.u8(96))),
            Some(&(state::INIT | state::RTR | state::RTS))
        );
    Ok((number, if has_field { asked & ece::SUPPORTED } else { 0 }))
}

fn verbs_state(device: u8) -> u8 {
    const ERROR: u8 = 6;
    let mut states = (0..).zip(STATES);
    states
        .find(|(_, known)| *known == device)
        .map_or(ERROR, |(number, _)| number)
}

/// Checks the values that have limits on the device (mlx5/qp.c, `mlx5_ib_modify_qp`).
fn are_in_range(input: Fields<'_>, wanted: u32, identity: &Identity, port: u8) -> bool {
    /// `enum ib_mtu`: 256 to 4096 bytes.
    const MTUS: RangeInclusive<u8> = 1..=5;
    let has = |bit: u32| wanted & bit != 0;
    let ports = identity.ports();
    let port = if has(mask::PORT) { input.u8(104) } else { port };
    let pkeys = identity.link(port).pkey_table_len();
    (!has(mask::PORT) || ports.contains(&input.u8(104)))
        && (!has(mask::AV) || ports.contains(&input.u8(DEST_PORT)))
        && (!has(mask::PKEY_INDEX) || input.u16(92) < pkeys)
        && (!has(mask::PATH_MTU) || MTUS.contains(&input.u8(98)))
        && (!has(mask::MAX_QP_RD_ATOMIC) || input.u8(101) <= RD_ATOMIC_MAX)
        && (!has(mask::MAX_DEST_RD_ATOMIC) || input.u8(102) <= RD_ATOMIC_MAX)
}

fn set_attributes(qp: &mut Qp, input: Fields<'_>, wanted: u32) {
    let has = |bit: u32| wanted & bit != 0;
    let path = &mut qp.path;
    if has(mask::AV) {
        path.dgid = input.bytes16(0);
        path.flow_label = input.u32(16);
        path.dlid = input.u16(20);
        path.sgid_index = input.u8(24);
        path.hop_limit = input.u8(25);
        path.traffic_class = input.u8(26);
        path.sl = input.u8(27);
        path.is_global = input.u8(30);
    }
    if has(mask::QKEY) {
        qp.qkey = input.u32(72);
    }
    if has(mask::RQ_PSN) {
        path.rq_psn = input.u32(76);
    }
    if has(mask::SQ_PSN) {
        path.sq_psn = input.u32(80);
    }
    if has(mask::DEST_QPN) {
        qp.remote_qpn = input.u32(84);
    }
    if has(mask::ACCESS_FLAGS) {
        qp.access = rights(input.u32(88));
    }
    if has(mask::PKEY_INDEX) {
        path.pkey_index = input.u16(92);
    }
    let bytes = [
        (mask::PATH_MTU, 98, &mut path.path_mtu),
        (mask::MAX_QP_RD_ATOMIC, 101, &mut path.max_rd_atomic),
        (mask::MAX_DEST_RD_ATOMIC, 102, &mut path.max_dest_rd_atomic),
        (mask::MIN_RNR_TIMER, 103, &mut path.min_rnr_timer),
        (mask::PORT, 104, &mut path.port),
        (mask::TIMEOUT, 105, &mut path.timeout),
        (mask::RETRY_CNT, 106, &mut path.retry_count),
        (mask::RNR_RETRY, 107, &mut path.rnr_retry),
    ];
    for (bit, at, field) in bytes {
        if has(bit) {
            *field = input.u8(at);
        }
    }
}

/// The access flags of verbs that a queue pair grants.
fn access_flags(qp: &Qp) -> u32 {
    use mlx5_prm::umr::access;
    [
        (access::LOCAL_WRITE, 1),
        (access::REMOTE_WRITE, 2),
        (access::REMOTE_READ, 4),
        (access::ATOMIC, 8),
    ]
    .into_iter()
    .filter(|(right, _)| qp.access & right != 0)
    .fold(0, |flags, (_, flag)| flags | flag)
}

/// Number of scatter entries in an entry of the receive ring.
fn receive_sges(qp: &Qp) -> u32 {
    match qp.rq.count {
        0 => 0,
        _ => (1 << (qp.rq.log_stride & 31)) / 16,
    }
}

/// `QUERY_QP`.
pub(super) fn query(call: &Call<'_>, input: Fields<'_>) -> Result<Answer, Errno> {
    call.count(Command::QueryQp);
    let slot = Kind::Qp.slot(input.u32(8))?;
    let locked = call.lock();
    let qps = &locked.peek(call.function()).qps;
    let qp = qps
        .owned(slot, call.context.number)
        .ok_or(Errno(libc::ENOENT))?;
    let (path, alternate) = (&qp.path, &qp.alternate);
    // struct ib_uverbs_query_qp_resp
    let mut answer = Answer::new(128);
    answer
        .put(0, &path.dgid)
        .u32(16, path.flow_label)
        .u16(20, path.dlid)
        .u8(24, path.sgid_index)
        .u8(25, path.hop_limit)
        .u8(26, path.traffic_class)
        .u8(27, path.sl)
        .u8(30, path.is_global)
        .u8(31, path.port)
        .put(ALTERNATE, &alternate.dgid)
        .u32(ALTERNATE + 16, alternate.flow_label)
        .u16(ALTERNATE + 20, alternate.dlid)
        .u8(ALTERNATE + 24, alternate.sgid_index)
        .u8(ALTERNATE + 25, alternate.hop_limit)
        .u8(ALTERNATE + 26, alternate.traffic_class)
        .u8(ALTERNATE + 27, alternate.sl)
        .u8(ALTERNATE + 30, alternate.is_global)
        .u8(ALTERNATE + DEST_PORT, alternate.port)
        .u32(64, qp.caps.max_send_wr)
        // The kernel returns the capacity of the ring, not the requested number (mlx5_ib_query_qp).
        .u32(68, qp.rq.count)
        .u32(72, qp.caps.max_send_sge)
        .u32(76, receive_sges(qp))
        .u32(80, qp.caps.max_inline_data)
        .u32(84, qp.qkey)
        .u32(88, path.rq_psn)
        .u32(92, path.sq_psn)
        .u32(96, qp.remote_qpn)
        .u32(100, access_flags(qp))
        .u16(104, path.pkey_index)
        .u16(106, alternate.pkey_index)
        .u8(108, verbs_state(qp.state))
        .u8(109, verbs_state(qp.state))
        .u8(110, path.path_mtu)
        .u8(111, qp.migration as u8)
        .u8(113, path.max_rd_atomic)
        .u8(114, path.max_dest_rd_atomic)
        .u8(115, path.min_rnr_timer)
        .u8(116, path.port)
        .u8(117, path.timeout)
        .u8(118, path.retry_count)
        .u8(119, path.rnr_retry)
        .u8(120, alternate.port)
        .u8(121, alternate.timeout)
        .u8(122, u8::from(qp.signal_all));
    Ok(answer)
}
