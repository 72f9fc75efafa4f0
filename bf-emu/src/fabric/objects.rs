//! The device's state of each object. Plain data: any bit pattern is valid, all zeroes mean
//! "nothing", and the code checks each address before it uses it.

use mlx5_prm::xgvmi::ACCESS_KEY_BYTES;

use super::klm::Run;
use super::port::Place;
use crate::memory::pins::Pin;
use crate::model::address::{Gid, GidType, Mac};

/// Address translation of an mkey.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum MkeyKind {
    /// One range of the owner's memory.
    #[default]
    Direct,
    /// A list of entries of any length.
    Klm,
    /// A list of entries of equal length.
    Ksm,
    /// An alias of another function's mkey.
    Alias,
}

/// Origin of an mkey.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum MkeyOrigin {
    /// Memory registration by verbs.
    #[default]
    Region,
    /// `CREATE_MKEY`.
    Command,
    /// Memory window of type 1 or 2.
    Window,
    /// Alias object.
    Alias,
}

/// A memory key.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Mkey {
    /// First address of the key's range.
    pub start: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// Direct: address of the memory in the owner process.
    pub host: u64,
    /// Indirect: the translation list.
    pub list: Run,
    /// Entries of the list that are set.
    pub entries: u32,
    /// Protection domain.
    pub pd: u32,
    /// The only queue pair that may use the key; [`mlx5_prm::mkey::QPN_ANY`] for any.
    pub qpn: u32,
    /// Alias: function, index and generation of its target.
    pub target: Target,
    /// Granted rights, as [`mlx5_prm::umr::access`].
    pub access: u8,
    /// Low byte of lkey and rkey.
    pub variant: u8,
    /// log2 of the entry size.
    pub log_entity: u8,
    /// Kind of translation.
    pub kind: MkeyKind,
    /// Origin.
    pub origin: MkeyOrigin,
    /// Not usable until a UMR binds it.
    pub free: bool,
    /// A UMR may change it.
    pub umr_enabled: bool,
    /// Other functions may create aliases with `access_key`.
    pub allowed: bool,
    /// The remote side may invalidate it.
    pub remote_invalidate: bool,
    /// Memory windows may be bound to it.
    pub window_bind: bool,
    /// The window is of type 2.
    pub window_type_2: bool,
    /// A region whose pages are resolved at each access.
    pub on_demand: bool,
    /// A region in device memory.
    pub device_memory: bool,
    /// Writes need no order among each other.
    pub relaxed: bool,
    /// Direct: the pinned pages of the registration.
    pub pin: Pin,
    /// Access key that the creator of an alias must present.
    pub access_key: [u8; ACCESS_KEY_BYTES],
}

/// Target of an alias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Target {
    /// Index of the function.
    pub function: u32,
    /// mkey index in that function.
    pub index: u32,
    /// Generation of that index at the creation of the alias.
    pub generation: u32,
}

/// A ring in its owner's memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Ring {
    /// Address in the owner.
    pub base: u64,
    /// Number of entries, a power of two; 0 if there is no ring.
    pub count: u32,
    /// log2 of the bytes of an entry.
    pub log_stride: u32,
}

impl Ring {
    /// Address of the entry for a free-running counter.
    #[must_use]
    pub fn entry(&self, counter: u32) -> u64 {
        let index = u64::from(counter & self.count.wrapping_sub(1));
        self.base.wrapping_add(index << (self.log_stride & 63))
    }
}

/// DEVX events that a channel subscribes to for an object.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Subscription {
    /// First field of each event.
    pub cookie: u64,
    /// The channel, counted from 1; 0 for none.
    pub channel: u32,
    /// Bit mask of the subscribed event types.
    pub types: u32,
}

/// Service of a DCT. The PRM has a separate object for DCTs. Here the queue pair table holds them,
/// under a number that is no service type of the PRM.
pub const SERVICE_DCT: u8 = 0xfe;

/// Service of the target side of an extended reliable connection. The initiator has the PRM's type.
pub const SERVICE_XRC_TARGET: u8 = 0xfd;

/// A queue pair, or a DCT.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Qp {
    // The transfer of a cache line between cores takes up to 0.2 us, so the fields that change with
    // each request are grouped by writer. The poster writes the first line.
    /// Time at which the wait for the other side ends in an error; 0 if the queue pair does not
    /// wait.
    pub give_up_at_ns: u64,
    /// Time of the next try after a receiver was not ready; 0 for now.
    pub retry_at_ns: u64,
    /// Deferred mode: time at which posted work is executed; 0 for now.
    pub defer_until_ns: u64,
    /// Link model: arrival time of the next request; 0 if it is not sent.
    pub arrives_at_ns: u64,
    /// Link model: time at which the last request had left; 0 if the queue has been idle since.
    pub left_at_ns: u64,
    /// Building blocks executed, modulo 65,536 on the wire.
    pub sq_done: u32,
    /// The thread that executes the queue now; 0 for none.
    pub busy: u32,
    /// Posted work waits for another try.
    pub pending: bool,
    /// A doorbell was written while the queue was busy.
    pub rang: bool,
    /// The owner's handle in events.
    pub user_handle: u64,
    // The other side writes the second line.
    /// Receive entries used.
    pub rq_done: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// Receive ring.
    pub rq: Ring,
    /// DCT: the key that a sender must present.
    pub dc_key: u64,
    /// XRC target: its domain, like [`Pd::xrc_domain`].
    pub xrc_domain: u64,
    /// Shared receive queue, counted from 1; 0 for none.
    pub srq: u32,
    /// UAR page of its doorbell.
    pub uar: u32,
    /// Its subscription of DEVX events.
    pub devx: Subscription,
    // The following lines do not change while requests execute.
    /// Send ring, in building blocks of 64 bytes.
    pub sq: Ring,
    /// Address of the doorbell record in the owner.
    pub dbrec: u64,
    /// Protection domain.
    pub pd: u32,
    /// Completion queue of sends.
    pub send_cq: u32,
    /// User index in completions.
    pub user_index: u32,
    /// Connected: the peer's number.
    pub remote_qpn: u32,
    /// Connected: the peer's function, counted from 1; 0 if the path has no destination.
    pub remote_function: usize,
    /// Datagrams: the key that a sender must present.
    pub qkey: u32,
    /// Asynchronous event channel, counted from 1.
    pub event_channel: u32,
    /// Number of events sent, at most.
    pub events_sent: u32,
    /// Those of them that may not have been written, because their sender has died.
    pub events_unsure: u32,
    /// Its last request, executed but not completed.
    pub held: Held,
    /// The owner's requested capabilities, for queries.
    pub caps: QpCaps,
    /// The owner's path attributes.
    pub path: Path,
    /// One of [`mlx5_prm::qp::service`], [`SERVICE_DCT`] or [`SERVICE_XRC_TARGET`].
    pub service: u8,
    /// One of [`mlx5_prm::qp::state`].
    pub state: u8,
    /// Rights of the remote side, as [`mlx5_prm::umr::access`].
    pub access: u8,
    /// Made by a DEVX command.
    pub by_command: bool,
    /// Every send request has a completion.
    pub signal_all: bool,
    /// Connected: a message has arrived before it could send.
    pub is_established: bool,
    /// Its owner is to be notified when its send queue is drained.
    pub tells_drained: bool,
    /// Datagrams: it does not receive its own multicast messages.
    pub no_loopback: bool,
    /// A command has permitted copies of memory.
    pub copies: bool,
    /// Bytes of returned data that the completion may hold: 0, 32 or 64.
    pub cs_req: u8,
    /// Bytes of a received message that the completion may hold: 0, 32 or 64.
    pub cs_res: u8,
    /// Asynchronous events that are not sent yet, one bit for each.
    pub owed: u16,
    /// Those of them that are being written.
    pub telling: u16,
    /// Connected: port of the peer's function at the end of the path.
    pub remote_port: u8,
    /// Its register in the page of its doorbell, counted from 1; 0 before its first doorbell.
    pub bf_register: u8,
    /// Connected to another machine: the number of its connection there; 0 before the first packet.
    pub carried: u64,
    /// Connected: the path that takes over if its path fails.
    pub alternate: Alternate,
    /// State of the migration to that path.
    pub migration: Migration,
    /// The peer has asked for a path other than `alternate`, and the owner knows.
    pub refused_path: bool,
}

/// State of a queue pair's migration to its alternate path (`enum ibv_mig_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Migration {
    /// It has migrated, or has no alternate path. Its messages ask the peer to migrate.
    #[default]
    Migrated,
    /// It has an alternate path, and waits for a message of a peer that has one, too.
    Rearm,
    /// Both ends have an alternate path.
    Armed,
}

impl Migration {
    /// The state with this number in verbs.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        let all = [Self::Migrated, Self::Rearm, Self::Armed];
        all.get(usize::from(number)).copied()
    }
}

/// An alternate path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(
    missing_docs,
    reason = "the names of struct ibv_qp_attr and ibv_ah_attr"
)]
pub struct Alternate {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub dlid: u16,
    pub pkey_index: u16,
    pub is_global: u8,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub port: u8,
    pub timeout: u8,
}

impl Path {
    /// The same connection on another path.
    #[must_use]
    pub fn on(&self, path: &Alternate) -> Self {
        Self {
            dgid: path.dgid,
            flow_label: path.flow_label,
            dlid: path.dlid,
            pkey_index: path.pkey_index,
            is_global: path.is_global,
            sgid_index: path.sgid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            sl: path.sl,
            port: path.port,
            timeout: path.timeout,
            ..*self
        }
    }
}

/// An executed request that completes later. The requests behind it wait, because completions of
/// one queue are in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Held {
    /// Time of its completion; 0 for no such request, [`u64::MAX`] for never.
    pub until_ns: u64,
    /// Bytes moved.
    pub byte_count: u32,
    /// Its number.
    pub index: u16,
    /// Its opcode.
    pub opcode: u8,
    /// Its completion is written to a queue.
    pub signaled: bool,
    /// The next message to the queue pair ends the wait.
    pub ends_by_message: bool,
}

/// Bytes of a processor's cache line.
const LINE_BYTES: usize = 64;
const _: () = {
    assert!(std::mem::offset_of!(Qp, rq_done) == LINE_BYTES);
    assert!(std::mem::offset_of!(Qp, sq) == 2 * LINE_BYTES);
};

impl Qp {
    /// A copy for the poster, without the cache line that the peer writes.
    #[must_use]
    pub fn as_poster(&self) -> Self {
        Self {
            rq_done: 0,
            recv_cq: 0,
            rq: Ring::default(),
            dc_key: 0,
            xrc_domain: 0,
            srq: 0,
            uar: 0,
            devx: Subscription::default(),
            ..*self
        }
    }

    /// A copy for the peer, without the cache line that the owner writes.
    #[must_use]
    pub fn as_peer(&self) -> Self {
        Self {
            give_up_at_ns: 0,
            retry_at_ns: 0,
            defer_until_ns: 0,
            arrives_at_ns: 0,
            left_at_ns: 0,
            sq_done: 0,
            busy: 0,
            pending: false,
            rang: false,
            user_handle: 0,
            ..*self
        }
    }

    /// The port of the queue pair, for both directions.
    #[must_use]
    pub fn port(&self) -> u8 {
        // A command may leave the port at 0, which means the first port.
        self.path.port.max(1)
    }

    /// Destination of its path; None if it has none.
    #[must_use]
    pub fn remote(&self) -> Option<Place> {
        Some(Place {
            function: self.remote_function.checked_sub(1)?,
            port: self.remote_port.max(1),
        })
    }

    /// Sets the destination of its path.
    pub fn set_remote(&mut self, remote: Option<Place>) {
        self.remote_function = remote.map_or(0, |place| place.function + 1);
        self.remote_port = remote.map_or(0, |place| place.port);
    }

    /// Time of the next try on a waiting queue pair; a past time if it is unknown.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        self.defer_until_ns
            .max(self.held.until_ns)
            .max(self.retry_at_ns)
    }
}

/// Capabilities that verbs can query.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the names of struct ibv_qp_cap")]
pub struct QpCaps {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// Path attributes of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the names of struct ibv_qp_attr")]
pub struct Path {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dlid: u16,
    pub pkey_index: u16,
    pub is_global: u8,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub port: u8,
    pub path_mtu: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    /// Transport of its messages.
    pub gid_type: GidType,
    /// MAC of the destination, on Ethernet.
    pub mac: Mac,
    /// UDP source port of RoCE v2, if a command sets it.
    pub udp_sport: u16,
}

/// Condition for an event of a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Armed {
    /// No event.
    #[default]
    No,
    /// At the next completion.
    Next,
    /// At the next solicited completion or error.
    Solicited,
}

/// Moderation of a completion queue's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Moderation {
    /// Number of entries that end the delay.
    pub count: u16,
    /// Longest delay after the first entry, in microseconds.
    pub period_us: u16,
    /// A solicited entry ends the delay.
    pub solicited_breaks: bool,
}

/// A delayed event. All zeroes means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Window {
    /// Latest time of the event; 0 if none is delayed.
    pub due_ns: u64,
    /// Producer counter before the first entry of the event.
    pub from: u32,
}

/// A completion queue.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Cq {
    /// The ring.
    pub ring: Ring,
    /// Address of the doorbell record in the owner.
    pub dbrec: u64,
    /// The owner's handle in events.
    pub user_handle: u64,
    /// Entries written.
    pub produced: u32,
    /// Consumer counter at the last look.
    pub consumed: u32,
    /// Completion channel, counted from 1; 0 for none.
    pub channel: u32,
    /// Asynchronous event channel, counted from 1.
    pub event_channel: u32,
    /// Events written to the completion channel, at most.
    pub events_sent: u32,
    /// Those of them that may not have been written, because their sender has died.
    pub events_unsure: u32,
    /// Asynchronous events sent, at most.
    pub async_events_sent: u32,
    /// Like [`Cq::events_unsure`].
    pub async_events_unsure: u32,
    /// Its subscription of DEVX events.
    pub devx: Subscription,
    /// The event that is delayed now.
    pub window: Window,
    /// The last wait for room in the ring.
    pub room: Room,
    /// Moderation of events.
    pub moderation: Moderation,
    /// Condition for the next event.
    pub armed: Armed,
    /// The owner prevents overruns itself and need not update its consumer counter.
    pub ignore_overrun: bool,
    /// An entry was lost because the ring was full. The queue gets no more entries.
    pub overrun: bool,
    /// Like [`Qp::owed`].
    pub owed: u16,
    /// Like [`Qp::telling`].
    pub telling: u16,
    /// Made by a DEVX command.
    pub by_command: bool,
}

/// A wait of requests for room in a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Room {
    /// Start of the wait; 0 if there was none.
    pub since_ns: u64,
    /// The consumer counter during the wait.
    pub consumed: u32,
    /// The queue was full, not half full.
    pub is_full: bool,
}

/// A shared receive queue or receive memory pool.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Srq {
    /// The ring.
    pub ring: Ring,
    /// Address of the doorbell record in the owner.
    pub dbrec: u64,
    /// The owner's handle in events.
    pub user_handle: u64,
    /// XRC: its domain, like [`Pd::xrc_domain`]; 0 for a basic queue.
    pub xrc_domain: u64,
    /// XRC: its completion queue.
    pub cq: u32,
    /// Entries taken.
    pub taken: u32,
    /// List: the entry to take next.
    pub head: u32,
    /// Protection domain.
    pub pd: u32,
    /// User index in completions.
    pub user_index: u32,
    /// An event is sent if fewer entries remain; 0 for none.
    pub limit: u32,
    /// Asynchronous event channel, counted from 1.
    pub event_channel: u32,
    /// Number of events sent, at most.
    pub events_sent: u32,
    /// Like [`Qp::events_unsure`].
    pub events_unsure: u32,
    /// Scatter entries of each receive entry.
    pub sge_max: u32,
    /// Like [`Qp::owed`].
    pub owed: u16,
    /// Like [`Qp::telling`].
    pub telling: u16,
    /// The entries form a ring and not a list.
    pub cyclic: bool,
    /// Its list is damaged: it gives no more entries.
    pub failed: bool,
    /// Made by a DEVX command.
    pub by_command: bool,
}

/// Memory that DEVX commands name, or device memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Umem {
    /// Address in the owner.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Its pinned pages.
    pub pin: Pin,
    /// Device memory: its first page in the context's device memory, counted from 1; 0 for the
    /// owner's own memory.
    pub device_page: u16,
    /// Memory of a process of the DPA: it belongs to the runner, and queues and keys in it do so too.
    pub of_dpa: bool,
}

/// A protection domain, or one process's handle of an XRC domain.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Pd {
    /// XRC: identity of the domain, equal for all processes that open the same file; 0 for a
    /// protection domain.
    pub xrc_domain: u64,
}

/// A multicast group with attached queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Group {
    /// The destination GID of its messages.
    pub gid: Gid,
    /// Number of attachments.
    pub attached: u32,
}

/// A queue pair that is attached to a multicast group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Attachment {
    /// Slot of the group.
    pub group: u32,
    /// Slot of the queue pair.
    pub qp: u32,
    /// LID in the call. The adapter selects by the GID only (`mlx5_core_attach_mcg`).
    pub lid: u16,
}

/// The contents of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ChannelKind {
    /// Completion events of verbs.
    #[default]
    Completion,
    /// Asynchronous events of verbs.
    Async,
    /// Events of DEVX.
    Devx,
    /// Answers to asynchronous DEVX commands.
    DevxAnswers,
}

/// A pipe to the owner.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Channel {
    /// The read end, which the application holds.
    pub read_fd: i32,
    /// The write end.
    pub write_fd: i32,
    /// Its contents.
    pub kind: ChannelKind,
    /// DEVX: an event consists of the cookie only.
    pub omit_data: bool,
    /// DEVX: subscribed events of the whole device.
    pub device: Subscription,
}

/// A process that uses the device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Attached {
    /// Its process number.
    pub pid: i32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22). It distinguishes
    /// processes with the same number.
    pub start_time: u64,
    /// The functions visible to it, as a comma list.
    pub view: [u8; crate::model::topology::VIEW_NAME_MAX],
}
