//! The device's state of each object. Plain data: any bit pattern is valid, all zeroes mean "nothing", and the code
//! checks each address before it uses it.

use mlx5_prm::xgvmi::ACCESS_KEY_BYTES;

use super::klm::Run;
use super::port::Place;
use crate::model::address::{GidType, Mac};

/// How an mkey translates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum MkeyKind {
    /// To one range of its owner's memory.
    #[default]
    Direct,
    /// Through a list of entries of any length.
    Klm,
    /// Through a list of entries of one length.
    Ksm,
    /// It stands for an mkey of another function.
    Alias,
}

/// What made an mkey.
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
    /// First address that it stands for.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Direct: address of the memory in its owner.
    pub host: u64,
    /// Indirect: the translation list.
    pub list: Run,
    /// Entries of the list that are set.
    pub entries: u32,
    /// Protection domain.
    pub pd: u32,
    /// The queue pair that alone may use it.
    pub qpn: u32,
    /// Alias: the function, index and generation it stands for.
    pub target: Target,
    /// What it may be used for, as [`mlx5_prm::umr::access`].
    pub access: u8,
    /// Low byte of lkey and rkey.
    pub variant: u8,
    /// log2 of the entry size.
    pub log_entity: u8,
    /// How it translates.
    pub kind: MkeyKind,
    /// What made it.
    pub origin: MkeyOrigin,
    /// Not usable until a UMR sets it.
    pub free: bool,
    /// A UMR may change it.
    pub umr_enabled: bool,
    /// Other functions may make aliases, with `access_key`.
    pub allowed: bool,
    /// The remote side may invalidate it.
    pub remote_invalidate: bool,
    /// Memory windows may be bound to it.
    pub window_bind: bool,
    /// The window is of type 2.
    pub window_type_2: bool,
    /// A region whose pages are brought when they are used.
    pub on_demand: bool,
    /// A region in device memory.
    pub device_memory: bool,
    /// What an alias must present.
    pub access_key: [u8; ACCESS_KEY_BYTES],
}

/// What an alias stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Target {
    /// Index of the function.
    pub function: u32,
    /// mkey index there.
    pub index: u32,
    /// Generation of that index when the alias was made.
    pub generation: u32,
}

/// A ring in its owner's memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Ring {
    /// Address in the owner.
    pub base: u64,
    /// Number of entries, a power of two; 0 for a ring that is not there.
    pub count: u32,
    /// log2 of the bytes of an entry.
    pub log_stride: u32,
}

impl Ring {
    /// Address of the entry that a free-running counter names.
    #[must_use]
    pub fn entry(&self, counter: u32) -> u64 {
        let index = u64::from(counter & self.count.wrapping_sub(1));
        self.base.wrapping_add(index << (self.log_stride & 63))
    }
}

/// DEVX events that somebody wants of an object.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Subscription {
    /// What to send first in each event.
    pub cookie: u64,
    /// The channel, counted from 1; 0 for none.
    pub channel: u32,
    /// Bit mask of the event types wanted.
    pub types: u32,
}

/// Service of a DCT. The device counts it apart from queue pairs; here it lies among them, with a
/// number that no service type of the PRM has.
pub const SERVICE_DCT: u8 = 0xfe;

/// Service of the target side of an extended reliable connection, whose initiator has the PRM's type.
pub const SERVICE_XRC_TARGET: u8 = 0xfd;

/// A queue pair, or a DCT.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Qp {
    // A line of the processors' caches takes up to 0.2 us from one core to another, so what changes with
    // each request lies apart. The first line is written by who posts, ...
    /// When the other side, not ready or not answering, is given up; 0 while it is not waited for.
    pub give_up_at_ns: u64,
    /// When a receiver that was not ready may be tried again; 0 for at once.
    pub retry_at_ns: u64,
    /// Deferred mode: when to come to what is posted; 0 for now.
    pub defer_until_ns: u64,
    /// Link model: when the next request arrives; 0 while it has not been sent.
    pub arrives_at_ns: u64,
    /// Link model: when the last request had left, of a queue that has not been idle since; else 0.
    pub left_at_ns: u64,
    /// Building blocks executed, modulo 65,536 on the wire.
    pub sq_done: u32,
    /// The thread that executes it now; 0 for none.
    pub busy: u32,
    /// Posted work waits for another try.
    pub pending: bool,
    /// A doorbell rang while it was busy.
    pub rang: bool,
    /// What the owner calls it in events.
    pub user_handle: u64,
    // ... the second one by the other side, ...
    /// Receive entries used.
    pub rq_done: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// Receive ring.
    pub rq: Ring,
    /// DCT: the key that a sender must present.
    pub dc_key: u64,
    /// XRC target: its domain, as [`Pd::xrc_domain`].
    pub xrc_domain: u64,
    /// Shared receive queue, counted from 1; 0 for none.
    pub srq: u32,
    /// UAR page that rings it.
    pub uar: u32,
    /// Where DEVX events of it go.
    pub devx: Subscription,
    // ... and the others by nobody while requests run.
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
    /// Connected: the other side's number.
    pub remote_qpn: u32,
    /// Connected: the other side's function, counted from 1; 0 if the path leads nowhere.
    pub remote_function: usize,
    /// Datagrams: the key that a sender must present.
    pub qkey: u32,
    /// Asynchronous event channel, counted from 1.
    pub event_channel: u32,
    /// Events that were sent of it.
    pub events_sent: u32,
    /// Its last request, carried out but not completed yet.
    pub held: Held,
    /// What the owner asked for, to be answered again.
    pub caps: QpCaps,
    /// What the owner set and nothing here depends on.
    pub path: Path,
    /// One of [`mlx5_prm::qp::service`], [`SERVICE_DCT`] or [`SERVICE_XRC_TARGET`].
    pub service: u8,
    /// One of [`mlx5_prm::qp::state`].
    pub state: u8,
    /// What the remote side may do, as [`mlx5_prm::umr::access`].
    pub access: u8,
    /// Made by a DEVX command.
    pub by_command: bool,
    /// Every send completes with an entry.
    pub signal_all: bool,
    /// Up to so many bytes that come back to it lie in the completion's entry: 0, 32 or 64.
    pub cs_req: u8,
    /// Up to so many bytes of a message to it lie in the completion's entry, likewise.
    pub cs_res: u8,
    /// Asynchronous events that the owner has not been told of yet, a bit for each.
    pub owed: u8,
    /// Connected: the port of the other side's function that the path leads to.
    pub remote_port: u8,
}

/// A request that was carried out and completes later. Those behind it wait, as completions of one
/// queue come in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Held {
    /// When it completes; 0 for no such request, [`u64::MAX`] for never.
    pub until_ns: u64,
    /// Bytes that it moved.
    pub byte_count: u32,
    /// Its number.
    pub index: u16,
    /// Its opcode.
    pub opcode: u8,
    /// Its completion is an entry in a queue.
    pub signaled: bool,
}

/// Bytes of a line of the processors' caches.
const LINE_BYTES: usize = 64;
const _: () = {
    assert!(std::mem::offset_of!(Qp, rq_done) == LINE_BYTES);
    assert!(std::mem::offset_of!(Qp, sq) == 2 * LINE_BYTES);
};

impl Qp {
    /// A copy for the one who posts on it, without the line that its other side writes.
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

    /// A copy for the one who posts to it, without the line that its own side writes.
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

    /// The port that its requests leave by, and where it is reached.
    #[must_use]
    pub fn port(&self) -> u8 {
        // Who never said one, by command, is on the first.
        self.path.port.max(1)
    }

    /// Where its path leads; None for nowhere.
    #[must_use]
    pub fn remote(&self) -> Option<Place> {
        Some(Place {
            function: self.remote_function.checked_sub(1)?,
            port: self.remote_port.max(1),
        })
    }

    /// Sets where its path leads.
    pub fn set_remote(&mut self, remote: Option<Place>) {
        self.remote_function = remote.map_or(0, |place| place.function + 1);
        self.remote_port = remote.map_or(0, |place| place.port);
    }

    /// When there is something to do on a queue pair that waits: in the past if nobody knows.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        self.defer_until_ns
            .max(self.held.until_ns)
            .max(self.retry_at_ns)
    }
}

/// Capabilities that verbs asks back.
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
    /// What carries its messages.
    pub gid_type: GidType,
    /// MAC of the destination, on Ethernet.
    pub mac: Mac,
    /// UDP source port of RoCE v2, if a command sets it.
    pub udp_sport: u16,
}

/// When a completion queue wants to tell its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Armed {
    /// Not at all.
    #[default]
    No,
    /// At the next completion.
    Next,
    /// At the next solicited completion or error.
    Solicited,
}

/// How the events of a completion queue are held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Moderation {
    /// Until so many entries were written.
    pub count: u16,
    /// Or until so many microseconds after the first of them.
    pub period_us: u16,
    /// But not behind an entry whose sender wants to be noticed.
    pub solicited_breaks: bool,
}

/// An event that is held back. All zeroes is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Window {
    /// When it is sent at the latest; 0 if there is none.
    pub due_ns: u64,
    /// Entries written before the first that it tells of.
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
    /// What the owner calls it in events.
    pub user_handle: u64,
    /// Entries written.
    pub produced: u32,
    /// Entries that the owner was last seen to have read.
    pub consumed: u32,
    /// Completion channel, counted from 1; 0 for none.
    pub channel: u32,
    /// Asynchronous event channel, counted from 1.
    pub event_channel: u32,
    /// Events written to the completion channel.
    pub events_sent: u32,
    /// Asynchronous events sent.
    pub async_events_sent: u32,
    /// Where DEVX events of it go.
    pub devx: Subscription,
    /// The event that is held back now.
    pub window: Window,
    /// How events are held back.
    pub moderation: Moderation,
    /// When to tell the owner.
    pub armed: Armed,
    /// Its owner takes care that it never overruns, and need not say how far he has read.
    pub ignore_overrun: bool,
    /// An entry was lost for want of room.
    pub overrun: bool,
    /// As [`Qp::owed`].
    pub owed: u8,
    /// Made by a DEVX command.
    pub by_command: bool,
}

/// A shared receive queue or receive memory pool.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Srq {
    /// The ring.
    pub ring: Ring,
    /// Address of the doorbell record in the owner.
    pub dbrec: u64,
    /// What the owner calls it in events.
    pub user_handle: u64,
    /// Of an XRC domain: that, as [`Pd::xrc_domain`]; 0 of an ordinary one.
    pub xrc_domain: u64,
    /// Of an XRC domain: its completion queue.
    pub cq: u32,
    /// Entries taken.
    pub taken: u32,
    /// List: the entry to take next.
    pub head: u32,
    /// Protection domain.
    pub pd: u32,
    /// User index in completions.
    pub user_index: u32,
    /// Below this many entries an event is sent; 0 for none.
    pub limit: u32,
    /// Asynchronous event channel, counted from 1.
    pub event_channel: u32,
    /// Events that were sent of it.
    pub events_sent: u32,
    /// Scatter entries of each receive entry.
    pub sge_max: u32,
    /// As [`Qp::owed`].
    pub owed: u8,
    /// The entries form a ring and not a list.
    pub cyclic: bool,
    /// Made by a DEVX command.
    pub by_command: bool,
}

/// Memory that DEVX commands name, or device memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Umem {
    /// Address in the owner.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Device memory: its first page among the context's, counted from 1; 0 of the owner's own memory.
    pub device_page: u16,
}

/// A protection domain, or an XRC domain as one process has opened it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Pd {
    /// XRC: which domain it is, the same for all who opened the same file; 0 of a protection domain.
    pub xrc_domain: u64,
}

/// What is written to a channel.
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
    /// Answers to DEVX commands that nobody waits for.
    DevxAnswers,
}

/// A pipe into the owner.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Channel {
    /// The read end, which the application has.
    pub read_fd: i32,
    /// The write end.
    pub write_fd: i32,
    /// What is written to it.
    pub kind: ChannelKind,
    /// DEVX: events are the cookie alone.
    pub omit_data: bool,
    /// DEVX: the events of the device as a whole that are wanted.
    pub device: Subscription,
}

/// A process that uses the device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Attached {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot (`/proc/PID/stat`, field 22): a number that came
    /// again belongs to another process.
    pub start_time: u64,
    /// The processor that it last rang a doorbell on.
    pub cpu: u32,
    /// What it sees, a comma list.
    pub view: [u8; crate::model::topology::VIEW_NAME_MAX],
}
