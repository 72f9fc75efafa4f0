//! Events: records written to the pipes on which applications wait.

use crate::fabric::objects::{Channel, ChannelKind, Subscription};
use crate::fabric::{Locked, Place, PortState};
use crate::sys::{self, path::PathBuffer, steps::step};

/// Asynchronous events and their numbers, in verbs (`enum ibv_event_type`) and on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    CqError,
    QpFatal,
    QpRequestError,
    QpAccessError,
    SrqLimit,
    LastWqe,
    /// The first message has arrived at a queue pair that cannot send yet.
    CommEst,
    SqDrained,
    /// The list of a shared queue is damaged.
    SrqError,
    /// A connection continues on its alternate path.
    PathMigrated,
    /// The peer has asked for another path than the alternate one.
    PathRefused,
}

impl Event {
    /// The events of a queue pair in the error state.
    pub(super) const OF_ERROR: u16 = Self::QpFatal.bit()
        | Self::QpRequestError.bit()
        | Self::QpAccessError.bit()
        | Self::LastWqe.bit();

    /// In the order in which a queue's owner is notified of them.
    pub(super) const ALL: [Self; 11] = [
        Self::CommEst,
        Self::SqDrained,
        Self::PathMigrated,
        Self::PathRefused,
        Self::CqError,
        Self::QpFatal,
        Self::QpRequestError,
        Self::QpAccessError,
        Self::SrqError,
        Self::SrqLimit,
        Self::LastWqe,
    ];

    /// The bit of the event in a set of events.
    pub(super) const fn bit(self) -> u16 {
        1 << self as u8
    }

    fn verbs_type(self) -> u32 {
        match self {
            Self::CqError => 0,
            Self::QpFatal => 1,
            Self::QpRequestError => 2,
            Self::QpAccessError => 3,
            Self::CommEst => 4,
            Self::SqDrained => 5,
            Self::PathMigrated => 6,
            Self::PathRefused => 7,
            Self::SrqError => 14,
            Self::SrqLimit => 15,
            Self::LastWqe => 16,
        }
    }

    /// Event type of the device (PRM, event queue entries).
    fn device_type(self) -> u8 {
        match self {
            Self::CqError => 0x04,
            Self::QpFatal => 0x05,
            Self::QpRequestError => 0x10,
            Self::QpAccessError => 0x11,
            Self::CommEst => 0x02,
            Self::SqDrained => 0x03,
            Self::PathMigrated => 0x01,
            Self::PathRefused => 0x07,
            Self::SrqError => 0x12,
            Self::SrqLimit => 0x14,
            Self::LastWqe => 0x13,
        }
    }
}

/// Events of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// The port carries messages.
    Active,
    /// The port has no link.
    Down,
    /// The port has a link, and the subnet manager has not activated it.
    Initialized,
    /// The LID changed.
    LidChange,
    /// The partition keys changed.
    PkeyChange,
    /// The GIDs changed.
    GidChange,
    /// The subnet manager changed.
    SmChange,
    /// Subscribers of the subnet manager must subscribe again.
    ClientReregister,
}

impl PortEvent {
    /// The event that reports a port's new state.
    #[must_use]
    pub fn of(state: PortState) -> Self {
        match state {
            PortState::Active => Self::Active,
            PortState::Down => Self::Down,
            PortState::Initializing => Self::Initialized,
        }
    }

    /// Event type of verbs (`enum ibv_event_type`). A port without a link and a port without a
    /// manager have the same type (mlx5/main.c, `handle_port_change`).
    fn verbs_type(self) -> u32 {
        match self {
            Self::Active => 9,
            Self::Down | Self::Initialized => 10,
            Self::LidChange => 11,
            Self::PkeyChange => 12,
            Self::SmChange => 13,
            Self::ClientReregister => 17,
            Self::GidChange => 18,
        }
    }

    /// Subtype on the device (`mlx5/device.h`, MLX5_PORT_CHANGE_SUBTYPE_*); None if the device has
    /// no such event.
    fn device_subtype(self) -> Option<u8> {
        Some(match self {
            Self::Down => 1,
            Self::Active => 4,
            Self::Initialized => 5,
            Self::LidChange => 6,
            Self::PkeyChange => 7,
            Self::GidChange => 8,
            Self::ClientReregister => 9,
            Self::SmChange => return None,
        })
    }
}

/// Event type of a port change on the device.
pub(crate) const DEVICE_TYPE_PORT: u8 = 0x09;
/// Event type of a completion on the device.
const DEVICE_TYPE_COMPLETION: u8 = 0;
/// Bytes of an event queue entry. It follows the cookie if the channel requests data.
const EQE_BYTES: usize = 64;

/// Notifies the owner of a completion queue that an entry exists. Returns true if the event was
/// written to its completion channel, whose events the owner acknowledges.
pub(crate) fn completion(
    locked: &Locked<'_>,
    function: usize,
    (channel, user_handle): (u32, u64),
    devx: Subscription,
) -> bool {
    let sent = send(
        locked,
        function,
        channel,
        ChannelKind::Completion,
        &user_handle.to_ne_bytes(),
    );
    devx_event(locked, function, devx, (DEVICE_TYPE_COMPLETION, 0, 0));
    sent
}

/// Notifies the owner of a completion queue like [`completion`]. Calls `about_to_send` immediately
/// before it writes an event that the owner acknowledges. Returns whether the channel accepted the event; None if there is no
/// channel.
pub(crate) fn completion_counted(
    locked: &mut Locked<'_>,
    function: usize,
    (channel, user_handle): (u32, u64),
    devx: Subscription,
    about_to_send: impl FnOnce(&mut Locked<'_>, bool),
) -> Option<bool> {
    devx_event(locked, function, devx, (DEVICE_TYPE_COMPLETION, 0, 0));
    let pipe = open(locked, function, channel, ChannelKind::Completion);
    about_to_send(locked, pipe.is_some());
    pipe.map(|pipe| pipe.write(locked, function, &user_handle.to_ne_bytes()))
}

/// Reports an asynchronous event of an object. Calls `about_to_send` immediately before the write;
/// the argument says whether the owner will acknowledge the event. Returns whether the channel
/// accepted the event; None if the owner has no verbs channel.
pub(super) fn asynchronous(
    locked: &mut Locked<'_>,
    function: usize,
    ((channel, user_handle), devx): ((u32, u64), Subscription),
    event: Event,
    about_to_send: impl FnOnce(&mut Locked<'_>, bool),
) -> Option<bool> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&user_handle.to_ne_bytes());
    bytes[8..12].copy_from_slice(&event.verbs_type().to_ne_bytes());
    let pipe = open(locked, function, channel, ChannelKind::Async);
    let ready = devx_ready(locked, function, devx, (event.device_type(), 0, 0));
    about_to_send(locked, pipe.is_some());
    let sent = pipe.map(|pipe| pipe.write(locked, function, &bytes));
    if let Some(ready) = ready {
        ready.write(locked, function);
    }
    sent
}

/// Reports to all processes that have a function open that it has failed (`IBV_EVENT_DEVICE_FATAL`).
pub(super) fn device_fatal(locked: &Locked<'_>, function: usize) {
    const DEVICE_FATAL: u32 = 8;
    let mut verbs = [0; 16];
    verbs[8..12].copy_from_slice(&DEVICE_FATAL.to_ne_bytes());
    for (slot, _, channel) in locked.peek(function).channels.iter() {
        if channel.kind == ChannelKind::Async {
            send(locked, function, slot + 1, ChannelKind::Async, &verbs);
        }
    }
}

/// Reports an event on a port to all processes that have its function open.
pub(crate) fn of_port(locked: &Locked<'_>, place: Place, event: PortEvent) {
    let mut verbs = [0; 16];
    verbs[..8].copy_from_slice(&u64::from(place.port).to_ne_bytes());
    verbs[8..12].copy_from_slice(&event.verbs_type().to_ne_bytes());
    for (slot, _, channel) in locked.peek(place.function).channels.iter() {
        let number = slot + 1;
        match channel.kind {
            ChannelKind::Async => {
                send(locked, place.function, number, ChannelKind::Async, &verbs);
            }
            ChannelKind::Devx => {
                let wanted = Subscription {
                    channel: number,
                    ..channel.device
                };
                if let Some(subtype) = event.device_subtype() {
                    let kind = (DEVICE_TYPE_PORT, subtype, place.port);
                    devx_event(locked, place.function, wanted, kind);
                }
            }
            ChannelKind::Completion | ChannelKind::DevxAnswers => {}
        }
    }
}

/// Sends an event of the device, if it is subscribed: its type, its subtype, and its port or 0.
fn devx_event(locked: &Locked<'_>, function: usize, wanted: Subscription, kind: (u8, u8, u8)) {
    if let Some(ready) = devx_ready(locked, function, wanted, kind) {
        ready.write(locked, function);
    }
}

/// An event of the device that is about to be sent.
struct Ready {
    pipe: Pipe,
    bytes: [u8; 8 + EQE_BYTES],
    length: usize,
}

impl Ready {
    fn write(self, locked: &Locked<'_>, function: usize) {
        let bytes = self.bytes.get(..self.length).unwrap_or(&self.bytes);
        self.pipe.write(locked, function, bytes);
    }
}

/// Like [`devx_event`], without the write.
fn devx_ready(
    locked: &Locked<'_>,
    function: usize,
    wanted: Subscription,
    (device_type, subtype, port): (u8, u8, u8),
) -> Option<Ready> {
    if wanted.types >> (device_type & 31) & 1 == 0 {
        return None;
    }
    let channel = channel_of(locked, function, wanted.channel)?;
    let mut bytes = [0; 8 + EQE_BYTES];
    bytes[..8].copy_from_slice(&wanted.cookie.to_ne_bytes());
    bytes[9] = device_type;
    bytes[11] = subtype;
    // `struct mlx5_eqe_port` begins at byte 32 and holds the port in the upper half of its ninth
    // byte.
    bytes[8 + 32 + 8] = port << 4;
    Some(Ready {
        pipe: open(locked, function, wanted.channel, ChannelKind::Devx)?,
        length: if channel.omit_data { 8 } else { bytes.len() },
        bytes,
    })
}

fn channel_of(locked: &Locked<'_>, function: usize, channel: u32) -> Option<Channel> {
    locked
        .peek(function)
        .channels
        .get(channel.checked_sub(1)?)
        .copied()
}

fn send(
    locked: &Locked<'_>,
    function: usize,
    number: u32,
    kind: ChannelKind,
    bytes: &[u8],
) -> bool {
    open(locked, function, number, kind).is_some_and(|pipe| pipe.write(locked, function, bytes))
}

/// The write end of a channel.
struct Pipe {
    file: i32,
    /// The file was opened for this write and is closed after it.
    foreign: bool,
}

/// Opens a channel of this kind. The channel of another process is opened through `/proc/PID/fd`.
fn open(locked: &Locked<'_>, function: usize, number: u32, kind: ChannelKind) -> Option<Pipe> {
    let channel = channel_of(locked, function, number).filter(|channel| channel.kind == kind)?;
    let owner = locked.peek(function).channels.owner(number - 1)?;
    let pid = locked.pid(owner.process)?;
    let fd = channel.write_fd;
    if pid == sys::pid() {
        return Some(Pipe {
            file: fd,
            foreign: false,
        });
    }
    let mut path = PathBuffer::new();
    path.text("/proc/").number(pid).text("/fd/").number(fd);
    let file = sys::open(path.as_cstr(), libc::O_WRONLY | libc::O_NONBLOCK).ok()?;
    Some(Pipe {
        file,
        foreign: true,
    })
}

impl Pipe {
    /// Writes one event. Returns false if the pipe did not accept it: a full pipe holds enough
    /// events to wake its reader, and a closed pipe has no reader.
    fn write(self, locked: &Locked<'_>, function: usize, bytes: &[u8]) -> bool {
        // The reader may have died since the pipe was opened.
        step();
        let sent = sys::write_pipe(self.file, bytes).is_ok();
        step();
        if self.foreign {
            sys::close(self.file);
        }
        if sent {
            locked.fabric().counters(function).event();
        }
        sent
    }
}
