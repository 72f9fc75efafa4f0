//! Objects on the DPA: the program, its queues, and the connection to it.

use super::block::{Block, FAILED, LOG_BLOCKS, Target};
use flexio::{
    App, Cq, CqAttr, CqTarget, Dct, DctAttr, Mkey, Outbox, Process, Qp, QpAttr, Receive, Remote,
    Retries, Rmp, RmpAttr, Thread, ThreadAttr, Transport,
};
use std::os::fd::RawFd;
use std::sync::Arc;
use xgvmi_verbs::{Adapter, Buffer, Notices, Port, VerbsError};

/// Rights of keys and targets (`ibv_access_flags`).
const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
/// The port of all connections.
const PORT: u8 = 1;
/// Entries of each queue, and of the completion queue of three of them, as logarithms.
const LOG_ENTRIES: u32 = LOG_BLOCKS;
const LOG_COMPLETIONS: u32 = LOG_ENTRIES + 2;
/// Reads of a queue at a time, as a logarithm. Each mlx5 device supports 16.
const LOG_READS: u8 = 4;
/// Wait of a sender whose receiver was not ready: 0.64 ms (IBTA 9.7.5.2.8).
const RNR_TIMER: u8 = 12;

/// Why the DPA is not usable.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeviceError {
    #[error(transparent)]
    Dpa(#[from] flexio::Error),
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    #[error("the port is Ethernet")]
    Ethernet,
}

type Result<T> = std::result::Result<T, DeviceError>;

/// The running program. The fields end in their order: queues name memory and threads of the process.
#[derive(Debug)]
pub(super) struct Device {
    reads: Qp,
    answers: Qp,
    notices: Notices,
    target: (Dct, Target),
    _shared: Rmp,
    _completions: [Cq; 2],
    _thread: Thread,
    _outbox: Outbox,
    blocks: (u64, Mkey),
    process: Process,
    _adapter: Arc<Adapter>,
}

impl Device {
    /// Starts the program, whose target others reach with the key `access`.
    pub(super) fn start(adapter: &Arc<Adapter>, program: &[u8], access: u64) -> Result<Self> {
        let port = adapter.port()?;
        if port.is_ethernet {
            return Err(DeviceError::Ethernet);
        }
        let app = Arc::new(App::new("xgvmi-sp", program)?);
        let (context, pd) = adapter.raw();
        // SAFETY: the adapter stays open as long as this value, which drops the process first.
        let process = unsafe { Process::create(context, pd, &app) }?;
        let outbox = Outbox::create(&process)?;
        let thread = Thread::create(
            &process,
            &ThreadAttr {
                function: process.symbol("on_completion")?,
                ..ThreadAttr::default()
            },
        )?;
        let thread_events = CqTarget::Thread(thread.number());
        let (completions, at) = completions(&process, LOG_COMPLETIONS, &outbox, thread_events)?;
        let reads = Sends::create(&process, (Transport::Dci, None), (&completions, &outbox))?;
        let receive = Receive {
            log_entries: LOG_ENTRIES,
            log_stride: 4,
        };
        let kind = (Transport::Rc, Some(receive));
        let answers = Sends::create(&process, kind, (&completions, &outbox))?;
        let bytes = (Block::BYTES << LOG_BLOCKS) as u64;
        let blocks = zeroed(&process, bytes)?;
        let key = process.mkey(blocks, bytes, LOCAL_WRITE | REMOTE_WRITE)?;
        let mask = (1_u64 << LOG_ENTRIES) - 1;
        let mut words = vec![
            outbox.id().into(),
            completions.number().into(),
            at.ring,
            at.record,
            (1 << LOG_COMPLETIONS) - 1,
            0,
            blocks,
            mask,
            0,
            0,
            0,
        ];
        words.extend(reads.words());
        words.extend(answers.words());
        let place = zeroed(&process, 8 * words.len() as u64)?;
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        process.copy_in(place, &words)?;
        process.copy_in(answers.records, &(1_u32 << LOG_ENTRIES).to_be_bytes())?;
        thread.run(place)?;
        completions.arm(0)?;
        let notices = Notices::create(adapter, 1 << LOG_ENTRIES)?;
        connect(&reads.queue, port, 0)?;
        connect(&answers.queue, port, notices.number())?;
        notices.connect(answers.queue.number())?;
        let (shared, served, target) = serve(&process, &outbox, port, access)?;
        let own = Target {
            key: 0,
            number: target.number(),
            lid: port.lid,
            access,
        };
        Ok(Self {
            reads: reads.queue,
            answers: answers.queue,
            notices,
            target: (target, own),
            _shared: shared,
            _completions: [completions, served],
            _thread: thread,
            _outbox: outbox,
            blocks: (blocks, key),
            process,
            _adapter: Arc::clone(adapter),
        })
    }

    /// Where other services reach this one, without a key.
    pub(super) fn target(&self) -> Target {
        self.target.1
    }

    pub(super) fn fd(&self) -> RawFd {
        self.notices.fd()
    }

    /// Passes `count` blocks from the place `at` on to the program.
    pub(super) fn write(
        &mut self,
        from: &Buffer,
        at: usize,
        count: u64,
    ) -> std::result::Result<(), VerbsError> {
        let offset = at * Block::BYTES;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let bytes = u32::try_from(Block::BYTES).unwrap_or(u32::MAX);
        let (blocks, key) = &self.blocks;
        let to = (blocks + offset as u64, key.key());
        self.notices
            .write(from, (offset, count.saturating_mul(bytes)), to, count)
    }

    /// The number of reads that the program has done, if it has told one.
    pub(super) fn heard(&self) -> std::result::Result<Option<u32>, String> {
        match self.notices.next() {
            Ok(Some(value)) if value & FAILED != 0 => Err(format!(
                "a read has failed, syndrome {:#x}",
                value & !FAILED
            )),
            Ok(value) => Ok(value),
            Err(error) => Err(self.fault().unwrap_or_else(|| error.to_string())),
        }
    }

    /// Requests an event for the next notice.
    pub(super) fn arm(&self) -> std::result::Result<(), String> {
        self.notices.arm().map_err(|error| error.to_string())
    }

    /// What has ended the program.
    pub(super) fn fault(&self) -> Option<String> {
        match self.process.fault() {
            Ok(None) => None,
            Ok(Some(fault)) => Some(fault.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A queue in the error state reads nothing more. The process may be gone, and its queues with it.
        let _ = self.reads.to_error();
        let _ = self.answers.to_error();
    }
}

/// A queue pair, and the words of its `struct sends`.
struct Sends {
    queue: Qp,
    ring: u64,
    records: u64,
}

impl Sends {
    fn create(
        process: &Process,
        (transport, receive): (Transport, Option<Receive>),
        (completions, outbox): (&Cq, &Outbox),
    ) -> Result<Self> {
        let receives = receive.map_or(0, |of| 1 << (of.log_entries + of.log_stride));
        let ring = zeroed(process, receives + (64 << LOG_ENTRIES))?;
        let records = zeroed(process, 8)?;
        let queue = Qp::create(
            process,
            &QpAttr {
                transport,
                ring,
                log_send: LOG_ENTRIES,
                receive,
                doorbell: records,
                send_cq: completions.number(),
                recv_cq: completions.number(),
                uar: outbox.uar(),
                ..QpAttr::default()
            },
        )?;
        Ok(Self {
            ring: ring + queue.send_offset(),
            queue,
            records,
        })
    }

    fn words(&self) -> [u64; 5] {
        [self.queue.number().into(), self.ring, self.records, 0, 0]
    }
}

/// Addresses of a completion queue.
struct At {
    ring: u64,
    record: u64,
}

fn zeroed(process: &Process, bytes: u64) -> Result<u64> {
    let address = process.allocate(bytes)?;
    process.fill(address, 0, bytes)?;
    Ok(address)
}

fn completions(
    process: &Process,
    log_entries: u32,
    outbox: &Outbox,
    target: CqTarget,
) -> Result<(Cq, At)> {
    let ring = process.allocate(64 << log_entries)?;
    process.copy_in(ring, &Cq::initial_ring(log_entries))?;
    let record = zeroed(process, 8)?;
    let attr = CqAttr {
        log_entries,
        ring,
        doorbell: record,
        uar: outbox.uar(),
        target,
        overrun_ignore: false,
    };
    Ok((Cq::create(process, &attr)?, At { ring, record }))
}

/// Connects a queue pair to another one of the port. An initiator of dynamic connections names no peer.
fn connect(queue: &Qp, port: Port, peer: u32) -> Result<()> {
    queue.to_init(REMOTE_WRITE | LOCAL_WRITE, PORT, 0)?;
    queue.to_rtr(&Remote {
        qpn: peer,
        lid: port.lid,
        mtu: port.mtu,
        log_reads: LOG_READS,
        rnr_timer: RNR_TIMER,
        ..Remote::default()
    })?;
    queue.to_rts(&Retries {
        log_reads: LOG_READS,
        ..Retries::default()
    })?;
    Ok(())
}

/// The target of other services. It serves reads only, which have no completions here.
fn serve(process: &Process, outbox: &Outbox, port: Port, access: u64) -> Result<(Rmp, Cq, Dct)> {
    let shared = Rmp::create(
        process,
        &RmpAttr {
            ring: zeroed(process, 64)?,
            log_entries: 0,
            log_stride: 6,
            doorbell: zeroed(process, 8)?,
        },
    )?;
    let (served, _) = completions(process, 0, outbox, CqTarget::None)?;
    let target = Dct::create(
        process,
        &DctAttr {
            cq: served.number(),
            shared: shared.number(),
            access: REMOTE_READ,
            key: access,
            port: PORT,
            mtu: port.mtu,
            rnr_timer: RNR_TIMER,
        },
    )?;
    Ok((shared, served, target))
}
