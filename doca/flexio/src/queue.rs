//! Queues and keys in memory of the DPA, and what device code needs for doorbells and windows.

use crate::error::{Error, Result};
use crate::object::{Input, Object};
use crate::process::{Process, low};
use mlx5_prm::cmd::{self, opcode};
use mlx5_prm::dpa::{self, object};
use mlx5_prm::mkey::{self, access_mode};
use mlx5_prm::qp::{self, context, rq_type, service, state};
use mlx5_prm::{Field, cq};
use mlx5dv_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, mlx5dv_devx_uar,
};

/// log2 of the bytes of a completion, and of a block of a send queue.
const LOG_BLOCK: u32 = 6;
/// log2 of the largest queues: 22 bits of completions, 15 of requests.
const LOG_CQ_MAX: u32 = 22;
const LOG_QP_MAX: u32 = 15;

/// A page of doorbells of the adapter.
#[derive(Debug)]
struct Uar(*mut mlx5dv_devx_uar);

// SAFETY: verbs objects may be used from any thread.
unsafe impl Send for Uar {}
// SAFETY: as above.
unsafe impl Sync for Uar {}

impl Drop for Uar {
    fn drop(&mut self) {
        if let Ok(verbs) = crate::verbs::verbs() {
            // SAFETY: this value has made it.
            unsafe { verbs.mlx5dv_devx_free_uar(self.0) };
        }
    }
}

/// A page of doorbells for threads of a process.
#[derive(Debug)]
pub struct Outbox {
    #[expect(dead_code, reason = "destroyed with this value, before its page")]
    object: Object,
    page: Uar,
    id: u32,
    #[expect(dead_code, reason = "lives as long as this value")]
    process: Process,
}

impl Outbox {
    /// Creates an outbox with a page of its own.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn create(process: &Process) -> Result<Self> {
        let verbs = crate::verbs::verbs()?;
        // A page that the processor does not write to needs no particular mapping: 0 is BlueField's default.
        // SAFETY: the process's creator keeps the context open.
        let page = unsafe { verbs.mlx5dv_devx_alloc_uar(process.context(), 0) };
        if page.is_null() {
            return Err(Error::failed(format!(
                "no page of doorbells: {}",
                std::io::Error::last_os_error()
            )));
        }
        let page = Uar(page);
        // SAFETY: libmlx5 made it, and it stays as long as the value.
        let number = unsafe { (*page.0).page_id };
        let input = Input::general(object::OUTBOX)
            .with(dpa::PROCESS_ID, process.id().into())
            .with(dpa::UAR, number.into());
        let (object, output) = process.create_object(&input, dpa::CREATE_OUT_BYTES)?;
        Ok(Self {
            object,
            page,
            id: low(dpa::CONFIG_ID.get(&output)),
            process: process.clone(),
        })
    }

    /// Its number for device code.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Number of its page, for queues whose doorbells it rings.
    #[must_use]
    pub fn uar(&self) -> u32 {
        // SAFETY: libmlx5 made it, and it stays as long as the value.
        unsafe { (*self.page.0).page_id }
    }
}

/// What device code needs for memory behind keys.
#[derive(Debug)]
pub struct Window {
    #[expect(dead_code, reason = "destroyed with this value")]
    object: Object,
    id: u32,
    #[expect(dead_code, reason = "lives as long as this value")]
    process: Process,
}

impl Window {
    /// Creates a window. Keys must be of the process's protection domain.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn create(process: &Process) -> Result<Self> {
        let input = Input::general(object::WINDOW).with(dpa::PROCESS_ID, process.id().into());
        let (object, output) = process.create_object(&input, dpa::CREATE_OUT_BYTES)?;
        Ok(Self {
            object,
            id: low(dpa::CONFIG_ID.get(&output)),
            process: process.clone(),
        })
    }

    /// Its number for device code.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// A key onto memory of the DPA.
#[derive(Debug)]
pub struct Mkey {
    #[expect(dead_code, reason = "destroyed with this value")]
    object: Object,
    key: u32,
    #[expect(dead_code, reason = "lives as long as this value")]
    process: Process,
}

impl Mkey {
    /// The key, for local and remote use. Its addresses are those of the DPA.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key
    }
}

impl Process {
    /// Creates a key onto memory of the heap, with rights of `IBV_ACCESS_*`.
    ///
    /// # Errors
    /// The range is not in the heap.
    pub fn mkey(&self, address: u64, bytes: u64, access: u32) -> Result<Mkey> {
        let offset = self.offset(address)?;
        let at = |field: Field| field.within(low(mkey::CREATE_CONTEXT_AT as u64));
        let right = |bit: u32| u64::from(access & bit != 0);
        let input = Input::new(opcode::CREATE_MKEY, mkey::CREATE_LIST_AT)
            .with(at(mkey::ACCESS_MODE_1_0), access_mode::MTT.into())
            .with(at(mkey::LOCAL_READ), 1)
            .with(at(mkey::LOCAL_WRITE), right(IBV_ACCESS_LOCAL_WRITE))
            .with(at(mkey::REMOTE_READ), right(IBV_ACCESS_REMOTE_READ))
            .with(at(mkey::REMOTE_WRITE), right(IBV_ACCESS_REMOTE_WRITE))
            .with(at(mkey::ATOMIC), right(IBV_ACCESS_REMOTE_ATOMIC))
            .with(at(mkey::RELAXED_ORDERING_WRITE), 1)
            .with(at(mkey::QPN), mkey::QPN_ANY.into())
            .with(at(mkey::PD), self.pd_number().into())
            .with(at(mkey::START_ADDR), address)
            .with(at(mkey::LEN), bytes)
            .with(mkey::create::UMEM_VALID, 1)
            .with(mkey::create::UMEM_ID, self.umem().into())
            .with(mkey::create::UMEM_OFFSET, offset);
        let (object, output) = self.create_queue(&input, "key")?;
        Ok(Mkey {
            object,
            key: low(cmd::OBJECT_NUMBER.get(&output)) << 8,
            process: self.clone(),
        })
    }

    /// Creates a queue or key by a command that the DPA does not see.
    pub(crate) fn create_queue(&self, input: &Input, what: &str) -> Result<(Object, Vec<u8>)> {
        let context = crate::verbs::Context(self.context());
        // SAFETY: the process's creator keeps the context open as long as its objects.
        let created = unsafe { Object::create(context, input, cmd::HEADER_BYTES) };
        created.map_err(|error| Error {
            status: error.status,
            ..Error::failed(format!("no {what} in memory of the DPA: {error}"))
        })
    }
}

/// What an event of a completion queue does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CqTarget {
    /// Nothing: the queue is polled.
    #[default]
    None,
    /// It activates this thread of the process, after the queue was armed.
    Thread(u32),
    /// It is an entry of this event queue of the process, see [`Eq`](crate::Eq), after the completion queue was armed.
    Queue(u32),
}

/// Attributes of a completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CqAttr {
    /// log2 of its entries, of 64 bytes each.
    pub log_entries: u32,
    /// Address of the ring. [`initial_ring`](Cq::initial_ring) has its first content.
    pub ring: u64,
    /// Address of the doorbell record: 8 bytes, first 0.
    pub doorbell: u64,
    /// Page of the outbox that arms it.
    pub uar: u32,
    /// What an event does.
    pub target: CqTarget,
    /// The consumer counter need not be updated.
    pub overrun_ignore: bool,
}

/// A completion queue in memory of the DPA.
#[derive(Debug)]
pub struct Cq {
    #[expect(dead_code, reason = "destroyed with this value")]
    object: Object,
    number: u32,
    process: Process,
}

impl Cq {
    /// Arms the queue: a completion beyond the consumer counter is an event.
    ///
    /// # Errors
    /// The process has ended.
    pub fn arm(&self, consumer: u32) -> Result<()> {
        self.process.arm(self.number, consumer)
    }

    /// Creates a completion queue.
    ///
    /// # Errors
    /// The ring or the record is not in the heap, or the thread is none of the process.
    pub fn create(process: &Process, attr: &CqAttr) -> Result<Self> {
        check("completion queue", attr.log_entries, LOG_CQ_MAX)?;
        let umem = u64::from(process.umem());
        let (is_apu, target) = match attr.target {
            CqTarget::None => (0, 0),
            CqTarget::Thread(target) | CqTarget::Queue(target) => (1, target),
        };
        let input = Input::new(opcode::CREATE_CQ, cq::CREATE_IN_BYTES)
            .with(cq::DBR_UMEM_VALID, 1)
            .with(dpa::CQ_APU, is_apu)
            .with(dpa::CQ_THREAD, target.into())
            .with(cq::OVERRUN_IGNORE, attr.overrun_ignore.into())
            .with(cq::DBR_UMEM_ID, umem)
            .with(cq::DBR_ADDR, process.offset(attr.doorbell)?)
            .with(cq::LOG_CQ_SIZE, attr.log_entries.into())
            .with(cq::UAR_PAGE, attr.uar.into())
            .with(cq::UMEM_OFFSET, process.offset(attr.ring)?)
            .with(cq::UMEM_ID, umem);
        let (object, output) = process.create_queue(&input, "completion queue")?;
        Ok(Self {
            object,
            number: low(cmd::OBJECT_NUMBER.get(&output)),
            process: process.clone(),
        })
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Content of a ring before its first completion: each entry is invalid and belongs to the device.
    #[must_use]
    pub fn initial_ring(log_entries: u32) -> Vec<u8> {
        const INVALID: u8 = 0xf1;
        let mut ring = vec![0; 1 << (log_entries.min(LOG_CQ_MAX) + LOG_BLOCK)];
        for entry in ring.as_chunks_mut::<64>().0 {
            entry[63] = INVALID;
        }
        ring
    }
}

pub(crate) fn check(what: &str, log: u32, most: u32) -> Result<()> {
    if log > most {
        let text = format!("a {what} of 2^{log} entries: the maximum is 2^{most}");
        return Err(Error::failed(text));
    }
    Ok(())
}

/// Service of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Datagrams.
    Ud,
    /// Initiator of dynamic connections: each request names its target, see [`Dct`](crate::Dct).
    Dci,
}

/// A receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Receive {
    /// log2 of its entries.
    pub log_entries: u32,
    /// log2 of the bytes of an entry, at least 4: a data segment has 16 bytes.
    pub log_stride: u32,
}

/// Attributes of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QpAttr {
    /// Its service.
    pub transport: Transport,
    /// Address of the rings: receive entries, and then the blocks of the send queue.
    pub ring: u64,
    /// log2 of the blocks of the send queue, of 64 bytes each.
    pub log_send: u32,
    /// Its receive queue.
    pub receive: Option<Receive>,
    /// Number of the shared receive queue that it uses in place of its own, see [`Rmp`](crate::Rmp).
    pub shared: Option<u32>,
    /// Address of the doorbell record: the counter of receives and that of sends, 4 bytes each, big-endian.
    pub doorbell: u64,
    /// Completion queue of sends.
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// Page of the outbox that rings its doorbell.
    pub uar: u32,
    /// Number of its protection domain; 0 for the process's.
    pub pd: u32,
    /// The number that its completions have.
    pub user_index: u32,
}

/// The other side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Remote {
    /// Number of its queue pair.
    pub qpn: u32,
    /// Its LID, on InfiniBand.
    pub lid: u16,
    /// Its GID, if the path has one; always on Ethernet.
    pub gid: Option<[u8; 16]>,
    /// Its MAC, on Ethernet.
    pub mac: [u8; 6],
    /// Index of the own GID.
    pub gid_index: u8,
    /// `IBV_MTU_*`.
    pub mtu: u8,
    /// First number of its packets.
    pub psn: u32,
    /// log2 of the reads and atomics that it may have outstanding.
    pub log_reads: u8,
    /// Code of the delay that a receiver that is not ready asks for.
    pub rnr_timer: u8,
    /// Hops of a path with a GID.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
}

/// How often a queue pair tries again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Retries {
    /// Code of the wait for an answer.
    pub timeout: u8,
    /// Tries without an answer.
    pub count: u8,
    /// Tries after the other side was not ready; 7 for always.
    pub rnr: u8,
    /// First number of the own packets.
    pub psn: u32,
    /// log2 of the own reads and atomics that may be outstanding.
    pub log_reads: u8,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            timeout: 14,
            count: 7,
            rnr: 7,
            psn: 0,
            log_reads: 0,
        }
    }
}

/// A queue pair in memory of the DPA.
#[derive(Debug)]
pub struct Qp {
    object: Object,
    number: u32,
    send_offset: u64,
    transport: Transport,
    process: Process,
}

fn at(field: Field) -> Field {
    field.within(qp::CONTEXT_AT)
}

impl Qp {
    /// Creates a queue pair.
    ///
    /// # Errors
    /// The rings or the record are not in the heap, or a number is none of the program's.
    pub fn create(process: &Process, attr: &QpAttr) -> Result<Self> {
        check("send queue", attr.log_send, LOG_QP_MAX)?;
        let receive = attr.receive;
        if let Some(Receive {
            log_entries,
            log_stride,
        }) = receive
        {
            check("receive queue", log_entries, LOG_QP_MAX)?;
            if !(4..=11).contains(&log_stride) {
                let text =
                    format!("receive entries of 2^{log_stride} bytes: allowed are 2^4 to 2^11");
                return Err(Error::failed(text));
            }
        }
        let send_offset = receive.map_or(0, |of| 1 << (of.log_entries + of.log_stride));
        let service = match attr.transport {
            Transport::Rc => service::RC,
            Transport::Uc => service::UC,
            Transport::Ud => service::UD,
            Transport::Dci => service::DCI,
        };
        let pd = if attr.pd == 0 {
            process.pd_number()
        } else {
            attr.pd
        };
        let kind = match (receive, attr.shared) {
            (None, None) => rq_type::ZERO_SIZE,
            (Some(_), None) => rq_type::REGULAR,
            (None, Some(_)) => rq_type::SRQ_RMP_XRC,
            (Some(_), Some(_)) => {
                let text = "a queue pair has a receive queue of its own or a shared one, not both";
                return Err(Error::failed(text));
            }
        };
        let umem = u64::from(process.umem());
        let mut input = Input::new(opcode::CREATE_QP, qp::CREATE_IN_BYTES)
            .with(at(context::ST), service.into())
            // Migrated: the only state without alternative paths.
            .with(at(context::PM_STATE), 3)
            .with(at(context::PD), pd.into())
            .with(at(context::LOG_SQ_SIZE), attr.log_send.into())
            .with(at(context::UAR_PAGE), attr.uar.into())
            .with(at(context::USER_INDEX), attr.user_index.into())
            .with(at(context::CQN_SND), attr.send_cq.into())
            .with(at(context::CQN_RCV), attr.recv_cq.into())
            .with(at(context::RQ_TYPE), kind.into())
            .with(at(context::SRQN), attr.shared.unwrap_or_default().into())
            .with(at(context::DBR_UMEM_VALID), 1)
            .with(at(context::DBR_UMEM_ID), umem)
            .with(at(context::DBR_ADDR), process.offset(attr.doorbell)?)
            .with(qp::create::WQ_UMEM_VALID, 1)
            .with(qp::create::WQ_UMEM_ID, umem)
            .with(qp::create::WQ_UMEM_OFFSET, process.offset(attr.ring)?);
        if let Some(receive) = receive {
            input = input
                .with(at(context::LOG_RQ_SIZE), receive.log_entries.into())
                .with(at(context::LOG_RQ_STRIDE), (receive.log_stride - 4).into());
        }
        let (object, output) = process.create_queue(&input, "queue pair")?;
        Ok(Self {
            object,
            number: low(cmd::OBJECT_NUMBER.get(&output)),
            send_offset,
            transport: attr.transport,
            process: process.clone(),
        })
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Distance of the send queue from the start of the rings.
    #[must_use]
    pub fn send_offset(&self) -> u64 {
        self.send_offset
    }

    fn command(&self, opcode: u16) -> Input {
        Input::new(opcode, qp::CREATE_IN_BYTES).with(cmd::OBJECT_NUMBER, self.number.into())
    }

    fn go(&self, to: &str, input: &Input) -> Result<()> {
        let done = self.object.modify(input);
        done.map_err(|error| Error {
            status: error.status,
            ..Error::failed(format!("queue pair {:#x} to {to}: {error}", self.number))
        })
    }

    /// From reset to INIT, with rights of the other side (`IBV_ACCESS_*`), a port from 1 on, and the key of datagrams.
    ///
    /// # Errors
    /// The state or the port is wrong.
    pub fn to_init(&self, access: u32, port: u8, qkey: u32) -> Result<()> {
        let right = |bit: u32| u64::from(access & bit != 0);
        let input = self
            .command(opcode::RST2INIT_QP)
            .with(at(context::STATE), state::INIT.into())
            .with(at(context::PM_STATE), 3)
            .with(at(context::PORT), port.into())
            .with(at(context::Q_KEY), qkey.into())
            .with(at(context::REMOTE_READ), right(IBV_ACCESS_REMOTE_READ))
            .with(at(context::REMOTE_WRITE), right(IBV_ACCESS_REMOTE_WRITE))
            .with(at(context::REMOTE_ATOMIC), right(IBV_ACCESS_REMOTE_ATOMIC));
        self.go("INIT", &input)
    }

    /// From INIT to ready to receive. Datagrams use only the path's port.
    ///
    /// # Errors
    /// The state or the path is wrong.
    pub fn to_rtr(&self, remote: &Remote) -> Result<()> {
        const LOG_MSG_MAX: u64 = 30;
        let mut input = self
            .command(opcode::INIT2RTR_QP)
            .with(at(context::STATE), state::RTR.into())
            .with(at(context::LOG_MSG_MAX), LOG_MSG_MAX)
            .with(at(context::MTU), remote.mtu.into())
            .with(at(context::NEXT_RCV_PSN), remote.psn.into());
        if self.transport != Transport::Ud {
            let [m0, m1, m2, m3, m4, m5] = remote.mac;
            input = input
                .with(at(context::REMOTE_QPN), remote.qpn.into())
                .with(at(context::RLID), remote.lid.into())
                .with(at(context::SL), remote.sl.into())
                .with(at(context::RMAC_HIGH), u16::from_be_bytes([m0, m1]).into())
                .with(
                    at(context::RMAC_LOW),
                    u32::from_be_bytes([m2, m3, m4, m5]).into(),
                )
                .with(at(context::LOG_RRA_MAX), remote.log_reads.into())
                .with(at(context::MIN_RNR_NAK), remote.rnr_timer.into());
        }
        if let (Some(gid), true) = (remote.gid, self.transport != Transport::Ud) {
            let gid = u128::from_be_bytes(gid);
            let half =
                |value: u128| u64::try_from(value & u128::from(u64::MAX)).unwrap_or_default();
            input = input
                .with(at(context::GRH), 1)
                .with(at(context::SRC_ADDR_INDEX), remote.gid_index.into())
                .with(at(context::HOP_LIMIT), remote.hop_limit.into())
                .with(at(context::RGID_HIGH), half(gid >> 64))
                .with(at(context::RGID_LOW), half(gid));
        }
        self.go("RTR", &input)
    }

    /// From ready to receive to ready to send.
    ///
    /// # Errors
    /// The state is wrong.
    pub fn to_rts(&self, retries: &Retries) -> Result<()> {
        let input = self
            .command(opcode::RTR2RTS_QP)
            .with(at(context::STATE), state::RTS.into())
            .with(at(context::ACK_TIMEOUT), retries.timeout.into())
            .with(at(context::RETRY_COUNT), retries.count.into())
            .with(at(context::RNR_RETRY), retries.rnr.into())
            .with(at(context::LOG_SRA_MAX), retries.log_reads.into())
            .with(at(context::NEXT_SEND_PSN), retries.psn.into());
        self.go("RTS", &input)
    }

    /// To the error state: its requests complete as flushed.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn to_error(&self) -> Result<()> {
        self.go("ERR", &self.command(opcode::TO_ERR_QP))
    }

    /// To reset.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn to_reset(&self) -> Result<()> {
        self.go("RESET", &self.command(opcode::TO_RST_QP))
    }
}
