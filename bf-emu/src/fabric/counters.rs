//! Counters of a function, in shared memory.
//!
//! They are exact: the code that performs an operation counts it. Tests and benchmarks use them
//! where times are noisy.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::names::countable;
use crate::model::topology::PORTS_MAX;

countable! {
    /// Device commands: DEVX commands, and verbs that a kernel turns into commands.
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum Command {
        QueryHcaCap = "query_hca_cap",
        CreateMkey = "create_mkey",
        DestroyMkey = "destroy_mkey",
        AllowOtherVhcaAccess = "allow_other_vhca_access",
        CreateAlias = "create_alias",
        DestroyAlias = "destroy_alias",
        CreateCq = "create_cq",
        DestroyCq = "destroy_cq",
        ResizeCq = "resize_cq",
        ModifyCq = "modify_cq",
        CreateQp = "create_qp",
        DestroyQp = "destroy_qp",
        ModifyQp = "modify_qp",
        QueryQp = "query_qp",
        CreateSrq = "create_srq",
        DestroySrq = "destroy_srq",
        RegMr = "reg_mr",
        DeregMr = "dereg_mr",
        ReregMr = "rereg_mr",
        AllocMw = "alloc_mw",
        DeallocMw = "dealloc_mw",
        AllocPd = "alloc_pd",
        DeallocPd = "dealloc_pd",
        UmemReg = "umem_reg",
        UmemDereg = "umem_dereg",
        AllocUar = "alloc_uar",
        QueryPort = "query_port",
        QueryDevice = "query_device",
        OpenContext = "open_context",
        CreateDpa = "create_dpa",
        DestroyDpa = "destroy_dpa",
        ModifyDpa = "modify_dpa",
        QueryDpa = "query_dpa",
        Other = "other",
    }
}

countable! {
    /// Work requests executed, by opcode.
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum Work {
        Nop = "nop",
        Send = "send",
        SendInvalidate = "send_invalidate",
        RdmaWrite = "rdma_write",
        RdmaRead = "rdma_read",
        Atomic = "atomic",
        UmrBind = "umr_bind",
        UmrInvalidate = "umr_invalidate",
        DmaMemcpy = "dma_memcpy",
        Receive = "receive",
        Flushed = "flushed",
    }
}

countable! {
    /// Requests that were refused.
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum Refusal {
        UnknownIoctl = "unknown_ioctl",
        BadIoctl = "bad_ioctl",
        UnknownCommand = "unknown_command",
        UnknownWork = "unknown_work",
        BadCommand = "bad_command",
        TableFull = "table_full",
        LocalLength = "local_length",
        LocalOperation = "local_operation",
        LocalProtection = "local_protection",
        LocalAccess = "local_access",
        WindowBind = "window_bind",
        RemoteInvalidRequest = "remote_invalid_request",
        RemoteAccess = "remote_access",
        RemoteOperation = "remote_operation",
        RetryExceeded = "retry_exceeded",
        ReceiverNotReady = "receiver_not_ready",
        Dropped = "dropped",
        CqOverrun = "cq_overrun",
        Injected = "injected",
        ForeignDoorbell = "foreign_doorbell",
    }
}

countable! {
    /// Counters of a port.
    ///
    /// The first ones have the names of the mlx5 driver in `ports/PORT/hw_counters` (mlx5/counters.c),
    /// the next ones those of the kernel in `ports/PORT/counters` (core/sysfs.c). `ibv_query_port`
    /// reports the last two.
    pub enum PortCounter {
        /// Dynamic connections to targets here.
        RxDctConnect = "rx_dct_connect",
        /// Times that a packet was missing, of another machine.
        OutOfSequence = "out_of_sequence",
        /// Answers of another machine that a packet is missing.
        PacketSeqErr = "packet_seq_err",
        /// Answers of another machine behind one that is missing.
        ImpliedNakSeqErr = "implied_nak_seq_err",
        /// Times without an answer of another machine.
        LocalAckTimeoutErr = "local_ack_timeout_err",
        /// RDMA writes that arrived.
        RxWriteRequests = "rx_write_requests",
        /// RDMA reads that arrived.
        RxReadRequests = "rx_read_requests",
        /// Atomics that arrived.
        RxAtomicRequests = "rx_atomic_requests",
        /// Messages to this side that found no receive entry.
        OutOfBuffer = "out_of_buffer",
        /// Messages whose data arrived a second time.
        DuplicateRequest = "duplicate_request",
        /// Requests of this side that a receiver was not ready for and that are tried again.
        RnrNakRetryErr = "rnr_nak_retry_err",
        /// Messages that were longer than their receive entry.
        RespLocalLengthError = "resp_local_length_error",
        /// Receive completions in error.
        RespCqeError = "resp_cqe_error",
        /// Send completions in error.
        ReqCqeError = "req_cqe_error",
        /// Requests that the other side refused as invalid.
        ReqRemoteInvalidRequest = "req_remote_invalid_request",
        /// Requests whose remote access was refused.
        ReqRemoteAccessErrors = "req_remote_access_errors",
        /// Requests whose access this side refused.
        RespRemoteAccessErrors = "resp_remote_access_errors",
        /// Flushed receives.
        RespCqeFlushError = "resp_cqe_flush_error",
        /// Flushed requests.
        ReqCqeFlushError = "req_cqe_flush_error",
        /// Requests without an answer after the last retry.
        ReqTransportRetriesExceeded = "req_transport_retries_exceeded",
        /// Requests whose receiver was not ready at the last retry.
        ReqRnrRetriesExceeded = "req_rnr_retries_exceeded",
        /// Words of four bytes sent.
        PortXmitData = "port_xmit_data",
        /// Words of four bytes received.
        PortRcvData = "port_rcv_data",
        /// Packets sent.
        PortXmitPackets = "port_xmit_packets",
        /// Packets received.
        PortRcvPackets = "port_rcv_packets",
        /// Packets sent, without those to groups.
        UnicastXmitPackets = "unicast_xmit_packets",
        /// Packets received, without those to groups.
        UnicastRcvPackets = "unicast_rcv_packets",
        /// Packets sent to groups.
        MulticastXmitPackets = "multicast_xmit_packets",
        /// Packets received that were sent to groups.
        MulticastRcvPackets = "multicast_rcv_packets",
        /// Times at which the port lost its link.
        LinkDowned = "link_downed",
        /// Packets of another partition.
        BadPkey = "bad_pkey",
        /// Datagrams with another queue key.
        QkeyViolations = "qkey_violations",
    }
}

/// A directory of a port in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterDir {
    /// `hw_counters`
    Device,
    /// `counters`
    Port,
}

impl CounterDir {
    /// All directories.
    pub const ALL: [Self; 2] = [Self::Device, Self::Port];

    /// The name of the directory.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "hw_counters",
            Self::Port => "counters",
        }
    }

    /// Counters of what this device does not have.
    #[must_use]
    pub fn always_zero(self) -> &'static [&'static str] {
        match self {
            Self::Device => &[],
            Self::Port => &[
                "symbol_error",
                "link_error_recovery",
                "port_rcv_errors",
                "port_rcv_remote_physical_errors",
                "port_rcv_switch_relay_errors",
                "port_xmit_discards",
                "port_xmit_constraint_errors",
                "port_rcv_constraint_errors",
                "local_link_integrity_errors",
                "excessive_buffer_overrun_errors",
                "VL15_dropped",
                "port_xmit_wait",
            ],
        }
    }
}

impl PortCounter {
    /// The directory that has the counter; None if only a query reports it.
    #[must_use]
    pub fn dir(self) -> Option<CounterDir> {
        let number = self as usize;
        if number < Self::PortXmitData as usize {
            Some(CounterDir::Device)
        } else if number <= Self::LinkDowned as usize {
            Some(CounterDir::Port)
        } else {
            None
        }
    }
}

/// The counters of one function, in shared memory. Initially all zeroes.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Counters {
    pub(crate) commands: [AtomicU64; Command::ALL.len()],
    pub(crate) works: [AtomicU64; Work::ALL.len()],
    pub(crate) refusals: [AtomicU64; Refusal::ALL.len()],
    pub(crate) ports: [[AtomicU64; PortCounter::ALL.len()]; PORTS_MAX],
    pub(crate) traps: AtomicU64,
    pub(crate) doorbells: AtomicU64,
    pub(crate) arms: AtomicU64,
    pub(crate) completions: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) link_ns: AtomicU64,
}

fn add(counter: &AtomicU64, amount: u64) {
    // Relaxed: a counter is a number of events and orders nothing.
    counter.fetch_add(amount, Ordering::Relaxed);
}

impl Counters {
    /// Counts a command.
    pub fn command(&self, command: Command) {
        add(&self.commands[command as usize], 1);
    }

    /// Counts an executed work request.
    pub fn work(&self, work: Work) {
        add(&self.works[work as usize], 1);
    }

    /// Counts a refusal.
    pub fn refuse(&self, refusal: Refusal) {
        add(&self.refusals[refusal as usize], 1);
    }

    /// Counts an event of a port.
    pub fn count_port(&self, port: u8, counter: PortCounter) {
        self.add_port(port, counter, 1);
    }

    /// Adds to a counter of a port.
    pub fn add_port(&self, port: u8, counter: PortCounter, amount: u64) {
        if let Some(counters) = self.port(port) {
            add(&counters[counter as usize], amount);
        }
    }

    /// The count of a port's events; 0 for a port that does not exist.
    #[must_use]
    pub fn of_port(&self, port: u8, counter: PortCounter) -> u64 {
        let counters = self.port(port);
        counters.map_or(0, |counters| {
            counters[counter as usize].load(Ordering::Relaxed)
        })
    }

    fn port(&self, port: u8) -> Option<&[AtomicU64; PortCounter::ALL.len()]> {
        self.ports.get(usize::from(port).checked_sub(1)?)
    }

    /// Counts a store that trapped.
    pub fn trap(&self) {
        add(&self.traps, 1);
    }

    /// Counts a doorbell of a send queue.
    pub fn doorbell(&self) {
        add(&self.doorbells, 1);
    }

    /// Doorbells of send queues so far.
    #[must_use]
    pub fn doorbells(&self) -> u64 {
        self.doorbells.load(Ordering::Relaxed)
    }

    /// Counts the arming of a completion queue.
    pub fn arm(&self) {
        add(&self.arms, 1);
    }

    /// Counts a completion queue entry.
    pub fn completion(&self) {
        add(&self.completions, 1);
    }

    /// Number of events sent to applications.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Number of RDMA reads executed.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.works[Work::RdmaRead as usize].load(Ordering::Relaxed)
    }

    /// Counts an event sent to an application.
    pub fn event(&self) {
        add(&self.events, 1);
    }

    /// Counts the time for which a message occupies the link.
    pub fn link(&self, nanos: u64) {
        add(&self.link_ns, nanos);
    }

    /// Counts payload moved by the function's work requests.
    pub fn payload(&self, bytes: u64) {
        add(&self.bytes, bytes);
    }
}
