//! The state that the locks protect: objects of each function, and state common to all functions.

use super::flow::{Events, Flow};
use super::journal::Journal;
use super::klm::Klms;
use super::limits::{
    CHANNELS_MAX, CQS_MAX, MCAST_ATTACHMENTS_MAX, MCAST_GROUPS_MAX, MKEYS_MAX, PDS_MAX,
    PROCESSES_MAX, QPS_MAX, SRQS_MAX, UMEMS_MAX,
};
use super::objects::{Attached, Attachment, Channel, Cq, Group, Mkey, Pd, Qp, Srq, Umem};
use super::rdma_cm::state::Manager;
use super::rules::Rules;
use super::table::{Owner, Table};

/// The objects of one function.
#[derive(Debug)]
#[repr(C)]
pub struct Function {
    /// The pending completion.
    pub journal: Journal,
    /// Variant of the next registered mkey.
    pub next_variant: u8,
    /// Protection domains.
    pub pds: Table<Pd, PDS_MAX>,
    /// Channels.
    pub channels: Table<Channel, CHANNELS_MAX>,
    /// Completion queues.
    pub cqs: Table<Cq, CQS_MAX>,
    /// Shared receive queues.
    pub srqs: Table<Srq, SRQS_MAX>,
    /// Queue pairs.
    pub qps: Table<Qp, QPS_MAX>,
    /// Their flows, by the same slots.
    pub flows: [Flow; QPS_MAX],
    /// Multicast groups with attached queue pairs.
    pub groups: Table<Group, MCAST_GROUPS_MAX>,
    /// Queue pairs attached to them.
    pub attachments: Table<Attachment, MCAST_ATTACHMENTS_MAX>,
    /// umems.
    pub umems: Table<Umem, UMEMS_MAX>,
    /// mkeys.
    pub mkeys: Table<Mkey, MKEYS_MAX>,
    /// Translation lists of indirect mkeys.
    pub klms: Klms,
}

/// Number of other queue pair numbers that become free before one is used again. A packet names its destination by this
/// number only. The peers of a dead process may send to it for seconds, until they have noticed. Hardware uses a number
/// again after millions of others.
const QPS_RESTING: u32 = 256;

impl Function {
    /// Inserts a queue pair and returns its slot; None if the table is full.
    pub fn insert_qp(&mut self, owner: Owner, qp: Qp) -> Option<u32> {
        self.qps.insert_rested(owner, qp, QPS_RESTING)
    }
}

/// State common to all functions, protected by all locks together.
#[derive(Debug)]
#[repr(C)]
pub struct Common {
    /// Processes.
    pub processes: Table<Attached, PROCESSES_MAX>,
    /// Injected faults.
    pub faults: Rules,
    /// Connections.
    pub rdma_cm: Manager,
    /// Events of congestion control.
    pub congestion: Events,
}
