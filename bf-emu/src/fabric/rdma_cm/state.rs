//! Tables and types of the connection manager. Plain data: all zeroes are an empty table.

use super::super::limits::{CM_EVENTS_MAX, CM_FILES_MAX, CM_IDS_MAX, CM_MEMBERSHIPS_MAX};
use super::super::port::Place;
use super::super::table::Table;
use crate::model::address::Gid;
use crate::model::sockaddr::SocketAddress;
use crate::sys::FileId;

/// Largest private data of a call, and of an event.
pub const PRIVATE_BYTES: usize = 256;

/// Private data in the messages, in bytes (`rdma/ib_cm.h`). Between IP addresses, the first
/// [`IP_HEADER`] bytes of a request hold the addresses.
pub const REQUEST_ROOM: u8 = 92;
/// See [`REQUEST_ROOM`]: a reply.
pub const REPLY_ROOM: u8 = 196;
/// See [`REQUEST_ROOM`]: a rejection.
pub const REJECT_ROOM: u8 = 148;
/// See [`REQUEST_ROOM`]: a lookup of a datagram service.
pub const LOOKUP_ROOM: u8 = 216;
/// See [`REQUEST_ROOM`]: the answer to a lookup.
pub const LOOKUP_REPLY_ROOM: u8 = 136;
/// Bytes of the addresses in a request (core/cma.c, `struct cma_hdr`).
pub const IP_HEADER: u8 = 36;

/// The connection manager of a device. All zeroes is an empty one.
#[derive(Debug)]
#[repr(C)]
pub struct Manager {
    /// Number of the next event: readers get events in this order.
    pub next_event: u64,
    /// Source of port numbers and of packet sequence numbers.
    pub next_number: u32,
    /// Open files.
    pub files: Table<CmFile, CM_FILES_MAX>,
    /// Identifiers.
    pub ids: Table<CmId, CM_IDS_MAX>,
    /// Memberships in multicast groups.
    pub memberships: Table<Membership, CM_MEMBERSHIPS_MAX>,
    /// Unread events.
    pub events: Table<Event, CM_EVENTS_MAX>,
}

/// An open `/dev/infiniband/rdma_cm`: the read end of a pipe, which is readable while events wait.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CmFile {
    /// Device and inode of the pipe, which identify the file in any process.
    pub device: u64,
    /// See `device`.
    pub inode: u64,
    /// The owner's descriptor of both ends of the pipe.
    pub pipe: i32,
    /// The functions that the owner sees, one bit for each.
    pub functions: u64,
}

impl CmFile {
    /// True if this is the file with that identity.
    #[must_use]
    pub fn is(&self, file: FileId) -> bool {
        (self.device, self.inode) == (file.device, file.inode)
    }
}

/// Progress of an identifier (`enum rdma_cm_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// New.
    #[default]
    Idle,
    /// It has a local address.
    Bound,
    /// Its remote address is being resolved.
    AddressQuery,
    /// Its remote address is known.
    AddressResolved,
    /// Its path is being resolved.
    RouteQuery,
    /// Its path is known.
    RouteResolved,
    /// It is connecting or connected.
    Connect,
    /// It was connected.
    Disconnect,
    /// It accepts requests.
    Listen,
}

/// State of the messages between two identifiers (`enum ib_cm_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Exchange {
    /// No exchange, or one that was rejected.
    #[default]
    Idle,
    /// The request was sent.
    RequestSent,
    /// A request arrived.
    RequestReceived,
    /// The reply was sent.
    ReplySent,
    /// The reply arrived.
    ReplyReceived,
    /// Both sides are ready.
    Established,
    /// The request to disconnect was sent.
    DisconnectSent,
    /// A request to disconnect arrived.
    DisconnectReceived,
    /// The connection has ended, and its numbers rest.
    TimeWait,
    /// The request for a datagram service was sent.
    LookupSent,
    /// A request for a datagram service arrived.
    LookupReceived,
}

/// The event that an identifier awaits until its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Awaits {
    /// Nothing.
    #[default]
    Nothing,
    /// An address that does not answer.
    Address,
    /// A path that nobody knows.
    Route,
    /// A port on the way comes up, or a listener starts, so that the request can be delivered.
    Delivery,
    /// The other side's answer.
    Answer,
    /// The other side's confirmation, which is on its way.
    Confirmation,
    /// The other side's end of the disconnection.
    Disconnection,
    /// The end of the rest of the connection's numbers.
    TimeWaitExit,
}

/// Parameters of one side of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Side {
    /// Number of its queue pair.
    pub qp_num: u32,
    /// First packet sequence number that this side accepts.
    pub psn: u32,
}

/// An identifier.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CmId {
    /// The owner's name in events; 0 until a new connection is accepted.
    pub uid: u64,
    /// Slot of its file.
    pub file: u32,
    /// Number of events that the owner has read.
    pub events_reported: u32,
    /// Listener: number of further requests that may wait.
    pub backlog: u32,
    /// Port space (`enum rdma_ucm_port_space`).
    pub port_space: u16,
    /// Type of its queue pair (`enum ib_qp_type`).
    pub qp_type: u8,
    /// Progress.
    pub stage: Stage,
    /// Messages.
    pub exchange: Exchange,
    /// The event that it awaits.
    pub awaits: Awaits,
    /// A new connection whose request has been read.
    pub reported: bool,
    /// A bound address may be in use by another identifier that also permits it.
    pub reuse: bool,
    /// An IPv6 listener takes no IPv4 requests.
    pub family_only: bool,
    /// Service type, in the traffic class of paths.
    pub service_type: u8,
    /// Acknowledgement timeout that the user has set, plus 1; 0 for none.
    pub ack_timeout: u16,
    /// Identifier of the service that it is bound to; 0 if it is not bound.
    pub service: u64,
    /// Functions on whose addresses it is bound, one bit for each.
    pub functions: u64,
    /// Time at which it stops to wait.
    pub deadline_ns: u64,
    /// Local address.
    pub source: SocketAddress,
    /// Remote address.
    pub target: SocketAddress,
    /// Local port, if it is attached to a device.
    pub local: Port,
    /// Remote port.
    pub remote: Port,
    /// Number of paths: 0 or 1.
    pub paths: u32,
    /// A path that the user has set, as a path record.
    pub path: [u32; 16],
    /// True if the user has set a path.
    pub has_path: bool,
    /// The peer's slot, counted from 1; 0 for none.
    pub peer: u32,
    /// Generation of the peer's slot.
    pub peer_generation: u32,
    /// Local parameters.
    pub here: Side,
    /// Remote parameters.
    pub there: Side,
    /// Outstanding reads and atomics that this side answers.
    pub responder_resources: u8,
    /// Outstanding reads and atomics of this side.
    pub initiator_depth: u8,
    /// Transport retries of this side.
    pub retry_count: u8,
    /// Retries of this side when the receiver is not ready.
    pub rnr_retry_count: u8,
    /// Queue key of a datagram service; 0 for none.
    pub qkey: u32,
    /// Time to wait for an answer, in nanoseconds.
    pub patience_ns: u64,
    /// Time at which a request for a service without listener is refused.
    pub refused_at_ns: u64,
    /// The request is not delivered before this time.
    pub late_until_ns: u64,
    /// Numbers of the exchange of messages that an identifier stands for: those of this machine and of the other one; 0
    /// for none.
    pub carried: [u32; 2],
    /// The request, until it is delivered.
    pub request: Params,
}

/// A membership of a port in a multicast group, by an identifier.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Membership {
    /// The owner's name of it in events.
    pub uid: u64,
    /// Slot of the identifier.
    pub id: u32,
    /// Number of its events that the owner has read.
    pub events_reported: u32,
    /// The group.
    pub mgid: Gid,
    /// LID of the group; 0 on Ethernet.
    pub mlid: u16,
    /// Queue key of the group's messages.
    pub qkey: u32,
    /// The port.
    pub port: Port,
    /// The port receives the group's messages, and does not only send them.
    pub receives: bool,
    /// The group is joined.
    pub joined: bool,
}

/// A port with one of its GIDs; function 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Port {
    /// Index of the function, counted from 1.
    function: u32,
    port: u8,
    /// Index of the GID.
    pub sgid_index: u8,
}

impl Port {
    /// The port at a place, with the GID at an index.
    #[must_use]
    pub fn new(place: Place, sgid_index: u8) -> Self {
        // A device has at most 64 functions.
        let function = u32::try_from(place.function + 1).unwrap_or(0);
        Self {
            function,
            port: place.port,
            sgid_index,
        }
    }

    /// Its place; None for no port.
    #[must_use]
    pub fn place(self) -> Option<Place> {
        let function = self.function.checked_sub(1)?;
        Some(Place {
            function: function as usize,
            port: self.port,
        })
    }
}

/// Parameters of a connection in a call (`struct rdma_ucm_conn_param`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Params {
    /// Number of the caller's queue pair.
    pub qp_num: u32,
    /// Queue key.
    pub qkey: u32,
    /// Private data.
    pub data: [u8; PRIVATE_BYTES],
    /// Bytes of private data.
    pub data_len: u8,
    /// The queue pair uses a shared receive queue.
    pub srq: u8,
    /// Outstanding reads and atomics that the caller answers.
    pub responder_resources: u8,
    /// Outstanding reads and atomics of the caller.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// Retries when the receiver is not ready.
    pub rnr_retry_count: u8,
    /// Options of enhanced connection establishment: vendor and attributes.
    pub ece: [u32; 2],
}

impl Default for Params {
    fn default() -> Self {
        Self {
            qp_num: 0,
            qkey: 0,
            data: [0; PRIVATE_BYTES],
            data_len: 0,
            srq: 0,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            ece: [0; 2],
        }
    }
}

impl Params {
    /// The private data.
    #[must_use]
    pub fn private(&self) -> &[u8] {
        self.data.get(..self.data_len.into()).unwrap_or(&[])
    }
}

/// Kinds of events and their numbers (`enum rdma_cm_event_type`, `rdma/rdma_cma.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    /// The remote address is known.
    #[default]
    AddressResolved = 0,
    /// The remote address is not known.
    AddressError = 1,
    /// The path is known.
    RouteResolved = 2,
    /// The path is not known.
    RouteError = 3,
    /// A request arrived.
    ConnectRequest = 4,
    /// A reply arrived.
    ConnectResponse = 5,
    /// The other side does not answer.
    Unreachable = 7,
    /// The other side refused.
    Rejected = 8,
    /// The connection stands.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// A multicast group was joined. The event names a membership, and not an identifier.
    MulticastJoin = 12,
    /// A multicast group was not joined, or is lost. The event names a membership.
    MulticastError = 13,
    /// The numbers of a connection may be used again.
    TimeWaitExit = 15,
}

impl EventKind {
    /// True if events of this kind name a membership instead of an identifier.
    #[must_use]
    pub fn is_of_membership(self) -> bool {
        matches!(self, Self::MulticastJoin | Self::MulticastError)
    }
}

/// Bytes of the parameters of an event (`struct rdma_ucm_ud_param`, the longer of the two).
pub const PARAM_BYTES: usize = 304;

/// Parameters of an event, as the kernel presents them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EventParam {
    bytes: [u8; PARAM_BYTES],
    /// Options of enhanced connection establishment.
    pub ece: [u32; 2],
}

impl Default for EventParam {
    fn default() -> Self {
        Self {
            bytes: [0; PARAM_BYTES],
            ece: [0; 2],
        }
    }
}

impl EventParam {
    /// Parameters of a connection (`struct rdma_ucm_conn_param`). `room` is the size of the private
    /// data in the message, which an event reports instead of the sender's length.
    #[must_use]
    pub fn of_connection(params: &Params, room: u8) -> Self {
        let mut event = Self {
            ece: params.ece,
            ..Self::default()
        };
        event.put(0, &params.qp_num.to_ne_bytes());
        event.put(4, &params.qkey.to_ne_bytes());
        event.put_private(8, params, room);
        event.put(
            264,
            &[
                room,
                params.srq,
                params.responder_resources,
                params.initiator_depth,
                params.flow_control,
                params.retry_count,
                params.rnr_retry_count,
            ],
        );
        event
    }

    /// Parameters of a datagram service (`struct rdma_ucm_ud_param`), with the address of the other
    /// side (`struct ib_uverbs_ah_attr`).
    #[must_use]
    pub fn of_datagrams(params: &Params, room: u8, address: &[u8; 32]) -> Self {
        let mut event = Self::default();
        event.put(0, &params.qp_num.to_ne_bytes());
        event.put(4, &params.qkey.to_ne_bytes());
        event.put(8, address);
        event.put_private(40, params, room);
        event.put(296, &[room]);
        event
    }

    /// The parameters of a connection, with all bytes of the message's private data.
    #[must_use]
    pub fn connection(&self) -> Params {
        let [
            data_len,
            srq,
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
        ] = self.array(264);
        Params {
            qp_num: u32::from_ne_bytes(self.array(0)),
            qkey: u32::from_ne_bytes(self.array(4)),
            data: self.array(8),
            data_len,
            srq,
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
            ece: self.ece,
        }
    }

    /// The parameters of a datagram service, with all bytes of the message's private data.
    #[must_use]
    pub fn datagrams(&self) -> Params {
        let [data_len] = self.array(296);
        Params {
            qp_num: u32::from_ne_bytes(self.array(0)),
            qkey: u32::from_ne_bytes(self.array(4)),
            data: self.array(40),
            data_len,
            ..Params::default()
        }
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let part = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        part.copied().unwrap_or([0; N])
    }

    fn put_private(&mut self, at: usize, params: &Params, room: u8) {
        let private = params.private();
        let length = private.len().min(room.into());
        self.put(at, private.get(..length).unwrap_or(&[]));
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        if let Some(target) = self.bytes.get_mut(at..at + value.len()) {
            target.copy_from_slice(value);
        }
    }

    /// The kernel's structure.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; PARAM_BYTES] {
        &self.bytes
    }
}

/// An unread event.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Event {
    /// Its number: events are read in this order.
    pub number: u64,
    /// Slot of the identifier that counts it.
    pub counted_by: u32,
    /// Slot of the file that it waits in.
    pub file: u32,
    /// Slot of the identifier that it names: for a request the new connection. See
    /// [`EventKind::is_of_membership`].
    pub id: u32,
    /// Kind.
    pub kind: EventKind,
    /// Status: a negative error, or the reason of a refusal.
    pub status: i32,
    /// The owner's name of the identifier.
    pub uid: u64,
    /// Parameters.
    pub param: EventParam,
}

/// Reasons of a rejection (Linux `ib_cm.h`, `enum ib_cm_rej_reason`).
pub mod reason {
    /// The requester gave up.
    pub const TIMEOUT: i32 = 4;
    /// Nobody listens.
    pub const INVALID_SERVICE: i32 = 8;
    /// The other side's program refused.
    pub const CONSUMER: i32 = 28;
}

/// Status of a refused lookup of a datagram service (`enum ib_cm_sidr_status`, `rdma/ib_cm.h`).
pub mod lookup {
    /// Nobody listens.
    pub const UNSUPPORTED: i32 = 1;
    /// The other side's program refused.
    pub const REJECTED: i32 = 2;
}
