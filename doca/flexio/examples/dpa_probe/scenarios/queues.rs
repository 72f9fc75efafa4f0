//! Queues in DPA memory: a kernel posts, and completions activate a thread.

use super::{Outcome, ensure, wait_for, word};
use crate::{Probe, call, function, say, words};
use flexio::{
    CommandQueue, CommandQueueAttr, Cq, CqAttr, CqTarget, Eq, EqAttr, Outbox, Process, Qp, QpAttr,
    Receive, Remote, Retries, Status, Thread, ThreadAttr, ThreadKind,
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

/// log2 of the entries of the event queue: it goes round many times.
const LOG_EVENTS: u32 = 1;
/// Bytes of the device's `struct events` before its handler, and offsets of fields.
const EVENTS_BYTES: u64 = 64;
const EVENTS: u64 = 40;
const WRONG: u64 = 48;

/// Connects two queue pairs.
fn connect(probe: &Probe, one: &Qp, two: &Qp) -> Outcome {
    let mut port = mlx5dv_sys::ibv_port_attr::default();
    // SAFETY: an open context and the place of the answer.
    let failed = unsafe {
        probe
            .verbs
            .ibv_query_port(probe.context, 1, (&raw mut port).cast())
    };
    ensure(failed == 0, || "no port".to_owned())?;
    let access = mlx5dv_sys::IBV_ACCESS_REMOTE_WRITE;
    for (qp, peer) in [(one, two), (two, one)] {
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
    Ok(())
}

/// Two queue pairs of the DPA are connected. A kernel writes from one to the other, and each completion activates a thread: at once,
/// or by an entry of an event queue.
pub(super) fn completions(probe: &Probe, has_event_queue: bool) -> Outcome {
    let process = probe.process(0)?;
    let outbox = Outbox::create(&process)?;
    let function = if has_event_queue {
        "on_queue"
    } else {
        "on_completion"
    };
    let attr = ThreadAttr {
        function: process.symbol(function)?,
        ..ThreadAttr::default()
    };
    let thread = Thread::create(&process, &attr)?;
    let events_ring = process.allocate(64 << LOG_EVENTS)?;
    process.copy_in(events_ring, &Eq::initial_ring(LOG_EVENTS))?;
    let events_attr = EqAttr {
        ring: events_ring,
        log_entries: LOG_EVENTS,
        thread: Some(thread.number()),
    };
    let events = Eq::create(&process, &events_attr)?;
    let target = if has_event_queue {
        CqTarget::Queue(events.number())
    } else {
        CqTarget::Thread(thread.number())
    };
    let (cq, cq_ring, cq_record) = queue(&process, outbox.uar(), target)?;
    let (polled, ..) = queue(&process, outbox.uar(), CqTarget::None)?;
    let (one, ring, record) = pair(&process, outbox.uar(), cq.number())?;
    let (two, ..) = pair(&process, outbox.uar(), polled.number())?;

    connect(probe, &one, &two)?;

    let [source, target] = [zeroed(&process, 8)?, zeroed(&process, 8)?];
    let rights = mlx5dv_sys::IBV_ACCESS_LOCAL_WRITE | mlx5dv_sys::IBV_ACCESS_REMOTE_WRITE;
    let (from, to) = (
        process.mkey(source, 8, 0)?,
        process.mkey(target, 8, rights)?,
    );
    let own = process.allocate(EVENTS_BYTES + 72)?;
    let handler = own + EVENTS_BYTES;
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
    let entries = 1 << LOG_EVENTS;
    let number = events.number().into();
    let head = words(&[outbox_id, number, entries, events_ring, 0, 0, 0, 0]);
    process.copy_in(own, &head)?;
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
    thread.run(if has_event_queue { own } else { handler })?;
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
    if has_event_queue {
        let (count, wrong) = (word(&process, own + EVENTS)?, word(&process, own + WRONG)?);
        ensure(count == activations && wrong == 0, || {
            format!("{count} events, {wrong} wrong, {activations} activations")
        })?;
        event_queues_refused(&process, &events_attr)?;
    }
    // Queues name memory of the process, so it ends with them only.
    drop((one, two, cq, polled, from, to));
    ensure(process.fault()?.is_none(), || "a fault".to_owned())?;
    say(format_args!("ok {activations}"));
    Ok(())
}

fn event_queues_refused(process: &Process, attr: &EqAttr) -> Outcome {
    for (bad, expect) in [
        (
            EqAttr { ring: 64, ..*attr },
            "no allocation and no variable",
        ),
        (
            EqAttr {
                thread: Some(0xff_fff0),
                ..*attr
            },
            "no event handler 16777200",
        ),
        (
            EqAttr {
                log_entries: 23,
                ..*attr
            },
            "the maximum is 2^22",
        ),
    ] {
        let text = Eq::create(process, &bad).expect_err(expect).to_string();
        ensure(text.contains(expect), || text.clone())?;
    }
    Ok(())
}

/// Tasks of a command queue: all are executed, several at a time, and mistakes are refused.
pub(super) fn tasks(probe: &Probe) -> Outcome {
    const TASKS: u64 = 200;
    let process = probe.process(0)?;
    let counter = zeroed(&process, 8)?;
    let attr = CommandQueueAttr {
        workers: 4,
        batch: 3,
        runs: false,
    };
    let queue = CommandQueue::create(&process, &attr)?;
    ensure(queue.is_empty()?, || "tasks without an add".to_owned())?;
    for _ in 0..TASKS {
        queue.add(&function("task", 1), counter)?;
    }
    ensure(!queue.is_empty()?, || "no task waits".to_owned())?;
    ensure(word(&process, counter)? == 0, || {
        "tasks before the start".to_owned()
    })?;
    queue.run()?;
    until_empty(&queue)?;
    let done = word(&process, counter)?;
    ensure(done == TASKS, || format!("{done} tasks"))?;
    let met = zeroed(&process, 8)?;
    let pair = CommandQueueAttr {
        workers: 2,
        batch: 1,
        runs: true,
    };
    let pair = CommandQueue::create(&process, &pair)?;
    for _ in 0..2 {
        pair.add(&function("meet", 1), met)?;
    }
    until_empty(&pair)?;
    let kinds = process.counters()?;
    let workers = kinds.iter().filter(|of| of.kind == ThreadKind::Worker);
    ensure(workers.count() == 6, || format!("{kinds:?}"))?;
    for workers in [0, 255] {
        let bad = CommandQueueAttr { workers, ..attr };
        let text = CommandQueue::create(&process, &bad)
            .expect_err("a number of threads")
            .to_string();
        ensure(text.contains("allowed are 1 to 254 threads"), || {
            text.clone()
        })?;
    }
    // More threads than are left: nothing of the queue stays.
    let all = CommandQueueAttr {
        workers: 254,
        ..attr
    };
    let text = CommandQueue::create(&process, &all)
        .expect_err("no thread is left")
        .to_string();
    ensure(text.contains("all 256 threads"), || text.clone())?;
    drop((queue, pair));
    let queue = CommandQueue::create(&process, &all)?;
    queue.run()?;
    // A task with a mistake ends the process.
    queue.add(&function("store", 1), 0x10)?;
    let error = loop {
        match queue.is_empty() {
            Ok(false) => {}
            Ok(true) => return Err("a fault has ended a task".into()),
            Err(error) => break error,
        }
    };
    let text = error.to_string();
    ensure(
        error.status == Status::Fatal && text.contains("in store"),
        || text.clone(),
    )?;
    say("ok");
    Ok(())
}

fn until_empty(queue: &CommandQueue) -> Outcome {
    let mut asked = 0;
    while !queue.is_empty()? {
        asked += 1;
        ensure(asked < 100_000, || "the tasks do not end".to_owned())?;
    }
    Ok(())
}
