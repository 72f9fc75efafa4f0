//! Queue pairs in memory that the program has laid out.

use super::attr::Attr;
use super::init::{InitAttr, Settings};
use super::{Context, attr};
use crate::dpa::{Block, Core, Dpa, Place, Queue, Sizes, failed};
use crate::error::{Code, Result, call, fail, value};
use crate::object::{Alone, Lease, Object, check_place, find, publish, store, withdraw};
use crate::path;
use crate::umem::Umem;
use dpa_dev::objects::{Kind, verbs};
use flexio::{Remote, Retries};
use std::sync::Arc;

/// `struct doca_verbs_qp`.
#[derive(Debug)]
pub struct Qp {
    handle: Block,
    queue: Queue,
    core: Arc<Core>,
    /// One call at a time.
    alone: Alone<()>,
    _leases: [Lease; 2],
}

impl Object for Qp {
    const NAME: &'static str = "struct doca_verbs_qp";
}

/// `DOCA_VERBS_QP_STATE_*`.
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
const ERR: u32 = 4;
/// Reads and atomic operations of a connection at a time, as a logarithm.
const LOG_READS: u8 = 4;

/// Attributes of a change (`DOCA_VERBS_QP_ATTR_*`).
const NEXT_STATE: u32 = 1 << 0;
const ALLOW_REMOTE_WRITE: u32 = 1 << 1;
const ALLOW_REMOTE_READ: u32 = 1 << 2;
const PKEY_INDEX: u32 = 1 << 3;
const PORT_NUM: u32 = 1 << 4;
const RQ_PSN: u32 = 1 << 5;
const DEST_QP_NUM: u32 = 1 << 6;
const MIN_RNR_TIMER: u32 = 1 << 7;
const PATH_MTU: u32 = 1 << 8;
const AH_ATTR: u32 = 1 << 9;
const SQ_PSN: u32 = 1 << 10;
const ACK_TIMEOUT: u32 = 1 << 11;
const RETRY_CNT: u32 = 1 << 12;
const RNR_RETRY: u32 = 1 << 13;

const FOR_INIT: u32 = NEXT_STATE | ALLOW_REMOTE_WRITE | ALLOW_REMOTE_READ | PKEY_INDEX | PORT_NUM;
const FOR_RTR: u32 = NEXT_STATE | RQ_PSN | DEST_QP_NUM | MIN_RNR_TIMER | PATH_MTU | AH_ATTR;
const FOR_RTS: u32 = NEXT_STATE | SQ_PSN | ACK_TIMEOUT | RETRY_CNT | RNR_RETRY;

/// The address in a umem.
fn place(umem: &Umem, offset: u64, dpa: &Arc<Dpa>) -> Result<(u64, u64)> {
    if !Arc::ptr_eq(&umem.dpa, dpa) {
        fail!(NotPermitted, "the umem belongs to another DPA context");
    }
    let Some(bytes) = umem.bytes.checked_sub(offset) else {
        fail!(
            InvalidValue,
            "the offset {offset} is beyond the umem of {} bytes",
            umem.bytes
        );
    };
    Ok((umem.address + offset, bytes))
}

fn create(settings: &Settings) -> Result<Qp> {
    if !settings.is_external {
        fail!(
            NotSupported,
            "a data path on the processor is not supported: call \
             doca_verbs_qp_init_attr_set_external_datapath_en"
        );
    }
    let Settings {
        pd: Some(pd),
        rings: Some(rings),
        records: Some(records),
        uar: Some(uar),
        completions: [Some(completion), Some(receives)],
        ..
    } = settings
    else {
        fail!(
            BadConfig,
            "a queue pair needs a protection domain, an external umem, a umem of doorbell records, a UAR, and both \
             completion queues"
        );
    };
    if settings.sends == 0 || settings.receives == 0 {
        fail!(BadConfig, "a queue pair needs the sizes of both queues");
    }
    if !Arc::ptr_eq(completion, receives) {
        fail!(
            NotSupported,
            "two completion queues: this library reports sends and receives to one"
        );
    }
    if !Arc::ptr_eq(&pd.dev, &uar.dpa.dev) {
        fail!(
            NotPermitted,
            "the protection domain is not that of the DPA context's device"
        );
    }
    let core = completion.core()?;
    if !Arc::ptr_eq(&core, &uar.dpa.core()?) {
        fail!(
            NotPermitted,
            "the completion queue belongs to another DPA context"
        );
    }
    let sizes = Sizes {
        send: settings.sends,
        receive: Some(settings.receives),
        shared: None,
        user_data: 0,
    };
    let rings = place(&rings.0, rings.1, &uar.dpa)?;
    let records = place(&records.0, records.1, &uar.dpa)?;
    let queue = Queue::at(completion, sizes, Some(Place { rings, records }))?;
    let words = [
        (verbs::QUEUE, queue.address()),
        (verbs::COMPLETION, completion.handle()?),
    ];
    Ok(Qp {
        handle: Block::object(&core, Kind::Verbs, verbs::WORDS, &words)?,
        queue,
        core,
        alone: Alone::default(),
        _leases: [pd.users.lease(Qp::NAME), completion.users.lease(Qp::NAME)],
    })
}

/// `doca_verbs_qp_create`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_verbs_qp_create(
    context: *mut Context,
    attr: *mut InitAttr,
    place: *mut *mut Qp,
) -> Code {
    call("doca_verbs_qp_create", || {
        check_place(place)?;
        find(context)?;
        let settings = find(attr)?.0.enter()?.clone();
        let created = Arc::new(create(&settings)?);
        // SAFETY: checked above.
        unsafe { place.write(publish(&created)) };
        Ok(())
    })
}

/// `doca_verbs_qp_destroy`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_qp_destroy(qp: *mut Qp) -> Code {
    call("doca_verbs_qp_destroy", || {
        let qp = find(qp)?;
        let _alone = qp.alone.enter()?;
        withdraw(&qp);
        Ok(())
    })
}

/// `doca_verbs_qp_get_qpn`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_qp_get_qpn(qp: *const Qp) -> u32 {
    value("doca_verbs_qp_get_qpn", || {
        Ok(find(qp)?.queue.qp().number())
    })
    .unwrap_or(0)
}

/// `doca_verbs_qp_get_dpa_handle`.
///
/// # Safety
/// `handle` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doca_verbs_qp_get_dpa_handle(
    qp: *mut Qp,
    dpa: *mut Dpa,
    handle: *mut u64,
) -> Code {
    call("doca_verbs_qp_get_dpa_handle", || {
        let qp = find(qp)?;
        if !Arc::ptr_eq(&find(dpa)?.core()?, &qp.core) {
            fail!(
                NotPermitted,
                "the queue pair belongs to another DPA context"
            );
        }
        // SAFETY: as the caller promises.
        unsafe { store(handle, qp.handle.address()) }
    })
}

/// Refuses a change without an attribute that it needs, or with one that it does not have.
fn check(mask: u32, needed: u32, optional: u32) -> Result<()> {
    let missing = needed & !mask;
    let foreign = mask & !(needed | optional);
    if missing != 0 || foreign != 0 {
        fail!(
            InvalidValue,
            "the mask {mask:#x} lacks {missing:#x} of this change, and {foreign:#x} of it does not belong to it"
        );
    }
    Ok(())
}

fn modify(qp: &Qp, settings: &attr::Settings, mask: u32) -> Result<()> {
    let own = qp.queue.qp();
    match settings.state {
        INIT => {
            check(mask, NEXT_STATE | PORT_NUM, FOR_INIT)?;
            own.to_init(settings.access, settings.port, 0)
                .map_err(failed)
        }
        RTR => {
            check(mask, FOR_RTR, 0)?;
            let Some(gid) = settings.path.gid else {
                fail!(
                    BadConfig,
                    "the path has no GID: call doca_verbs_ah_attr_set_gid first"
                );
            };
            let remote = Remote {
                qpn: settings.peer,
                gid: Some(gid.raw),
                mac: path::mac_of(qp.core.dev(), &gid.raw)?,
                gid_index: settings.path.gid_index,
                mtu: settings.mtu,
                psn: settings.receive_psn,
                log_reads: LOG_READS,
                rnr_timer: settings.rnr_timer,
                hop_limit: settings.path.hop_limit,
                ..Remote::default()
            };
            own.to_rtr(&remote).map_err(failed)
        }
        RTS => {
            check(mask, FOR_RTS, 0)?;
            let retries = Retries {
                timeout: settings.timeout,
                count: settings.retries,
                rnr: settings.rnr_retries,
                psn: settings.send_psn,
                log_reads: LOG_READS,
            };
            own.to_rts(&retries).map_err(failed)?;
            qp.queue.set_connected()
        }
        ERR => {
            check(mask, NEXT_STATE, 0)?;
            own.to_error().map_err(failed)
        }
        other => fail!(
            InvalidValue,
            "{other} is no state that a queue pair can get"
        ),
    }
}

/// `doca_verbs_qp_modify`.
#[unsafe(no_mangle)]
pub extern "C" fn doca_verbs_qp_modify(qp: *mut Qp, attr: *mut Attr, mask: u32) -> Code {
    call("doca_verbs_qp_modify", || {
        let qp = find(qp)?;
        let settings = *find(attr)?.0.enter()?;
        let _alone = qp.alone.enter()?;
        modify(&qp, &settings, mask)
    })
}
