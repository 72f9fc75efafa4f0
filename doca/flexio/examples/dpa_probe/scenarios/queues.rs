//! Queues in DPA memory: a kernel posts, and completions activate a thread.

use super::{Outcome, ensure, wait_for, word};
use crate::{Probe, call, say, words};
use flexio::{
    Cq, CqAttr, CqTarget, Outbox, Process, Qp, QpAttr, Receive, Remote, Retries, Thread, ThreadAttr,
};

const LOG_ENTRIES: u32 = 4;
const LOG_SEND: u32 = 3;
const RECEIVE: Receive = Receive {
    log_entries: 2,
    log_stride: 4,
};
/// Offsets of fields of the device's `struct handler`.
const ACTIVATIONS: u64 = 48;
const SEEN: u64 = 56;
/// RDMA writes.
const WRITES: u64 = 50;

fn zeroed(process: &Process, bytes: u64) -> flexio::Result<u64> {
    let address = process.allocate(bytes)?;
    process.fill(address, 0, bytes)?;
    Ok(address)
}

/// A completion queue, with the addresses of its ring and record.
fn queue(process: &Process, uar: u32, target: CqTarget) -> flexio::Result<(Cq, u64, u64)> {
    let ring = process.allocate(64 << LOG_ENTRIES)?;
    process.copy_in(ring, &Cq::initial_ring(LOG_ENTRIES))?;
    let record = zeroed(process, 8)?;
    let attr = CqAttr {
        log_entries: LOG_ENTRIES,
        ring,
        doorbell: record,
        uar,
        target,
        overrun_ignore: false,
    };
    Ok((Cq::create(process, &attr)?, ring, record))
}

/// A queue pair, with the addresses of its rings and record.
fn pair(process: &Process, uar: u32, cq: u32) -> flexio::Result<(Qp, u64, u64)> {
    let ring = zeroed(process, (64 << LOG_SEND) + 64)?;
    let record = zeroed(process, 8)?;
    let attr = QpAttr {
        ring,
        log_send: LOG_SEND,
        receive: Some(RECEIVE),
        doorbell: record,
        send_cq: cq,
        recv_cq: cq,
        uar,
        ..QpAttr::default()
    };
    Ok((Qp::create(process, &attr)?, ring, record))
}

/// Two queue pairs of the DPA are connected. A kernel writes from one to the other, and each completion activates a thread.
pub(super) fn completions(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let outbox = Outbox::create(&process)?;
    let attr = ThreadAttr {
        function: process.symbol("on_completion")?,
        ..ThreadAttr::default()
    };
    let thread = Thread::create(&process, &attr)?;
    let target = CqTarget::Thread(thread.number());
    let (cq, cq_ring, cq_record) = queue(&process, outbox.uar(), target)?;
    let (polled, ..) = queue(&process, outbox.uar(), CqTarget::None)?;
    let (one, ring, record) = pair(&process, outbox.uar(), cq.number())?;
    let (two, ..) = pair(&process, outbox.uar(), polled.number())?;

    let mut port = mlx5dv_sys::ibv_port_attr::default();
    // SAFETY: an open context and the place of the answer.
    let failed = unsafe {
        probe
            .verbs
            .ibv_query_port(probe.context, 1, (&raw mut port).cast())
    };
    ensure(failed == 0, || "no port".to_owned())?;
    let access = mlx5dv_sys::IBV_ACCESS_REMOTE_WRITE;
    for (qp, peer) in [(&one, &two), (&two, &one)] {
        qp.to_init(access, 1, 0)?;
        qp.to_rtr(&Remote {
            qpn: peer.number(),
            lid: port.lid,
            mtu: 3,
            rnr_timer: 12,
            ..Remote::default()
        })?;
        qp.to_rts(&Retries::default())?;
    }

    let [source, target] = [zeroed(&process, 8)?, zeroed(&process, 8)?];
    let rights = mlx5dv_sys::IBV_ACCESS_LOCAL_WRITE | access;
    let (from, to) = (
        process.mkey(source, 8, 0)?,
        process.mkey(target, 8, rights)?,
    );
    let handler = process.allocate(64)?;
    let outbox_id = u64::from(outbox.id());
    process.copy_in(
        handler,
        &words(&[
            outbox_id,
            cq.number().into(),
            1 << LOG_ENTRIES,
            cq_ring,
            cq_record,
            0,
            0,
            0,
        ]),
    )?;
    let post = process.allocate(80)?;
    let send = ring + one.send_offset();
    process.copy_in(
        post,
        &words(&[
            outbox_id,
            one.number().into(),
            send,
            record,
            0,
            source,
            from.key().into(),
            target,
            to.key().into(),
            8,
        ]),
    )?;
    thread.run(handler)?;
    let armed = call(&process, "arm", &[handler])?;
    ensure(armed == 0, || "no outbox".to_owned())?;
    for number in 1..=WRITES {
        process.copy_in(source, &(number * 0x0101).to_le_bytes())?;
        let posted = call(&process, "post_write", &[post, 1 << LOG_SEND])?;
        ensure(posted == 0, || "no outbox".to_owned())?;
        wait_for(&process, target, number * 0x0101)?;
        wait_for(&process, handler + SEEN, number)?;
    }
    let activations = word(&process, handler + ACTIVATIONS)?;
    ensure((1..=WRITES + 1).contains(&activations), || {
        format!("{activations} activations")
    })?;
    // Queues name memory of the process, so it ends with them only.
    drop((one, two, cq, polled, from, to));
    ensure(process.fault()?.is_none(), || "a fault".to_owned())?;
    say(format_args!("ok {activations}"));
    Ok(())
}
