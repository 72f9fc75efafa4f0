//! Events: what is written into the pipes that applications wait on.

use crate::fabric::Locked;
use crate::fabric::objects::{Channel, ChannelKind, Subscription};
use crate::sys::{self, path::PathBuffer};

/// Asynchronous events and their numbers, in verbs (`enum ibv_event_type`) and on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    CqError,
    QpFatal,
    QpRequestError,
    QpAccessError,
    SrqLimit,
    LastWqe,
}

impl Event {
    fn verbs_type(self) -> u32 {
        match self {
            Self::CqError => 0,
            Self::QpFatal => 1,
            Self::QpRequestError => 2,
            Self::QpAccessError => 3,
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
            Self::SrqLimit => 0x14,
            Self::LastWqe => 0x13,
        }
    }
}

/// Event type of a completion on the device.
const DEVICE_TYPE_COMPLETION: u8 = 0;
/// Bytes of an event queue entry, which follows the cookie where data was asked for.
const EQE_BYTES: usize = 64;

/// Tells the owner of a completion queue that there is something to read. Returns true if the event
/// went to its completion channel, whose events the owner acknowledges.
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
    devx_event(locked, function, devx, DEVICE_TYPE_COMPLETION);
    sent
}

/// Tells the owner of a completion queue like [`completion`]. `about_to_send` is called when nothing
/// is left but to write an event that its owner acknowledges: who is killed in that write is killed
/// when it is done. Returns whether the event was taken; None if there was nowhere to write it.
pub(crate) fn completion_counted(
    locked: &mut Locked<'_>,
    function: usize,
    (channel, user_handle): (u32, u64),
    devx: Subscription,
    about_to_send: impl FnOnce(&mut Locked<'_>, bool),
) -> Option<bool> {
    devx_event(locked, function, devx, DEVICE_TYPE_COMPLETION);
    let pipe = open(locked, function, channel, ChannelKind::Completion);
    about_to_send(locked, pipe.is_some());
    pipe.map(|pipe| pipe.write(locked, function, &user_handle.to_ne_bytes()))
}

/// Tells of an asynchronous event of an object. Returns true if it went to the verbs channel.
pub(crate) fn asynchronous(
    locked: &Locked<'_>,
    function: usize,
    (channel, user_handle): (u32, u64),
    devx: Subscription,
    event: Event,
) -> bool {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&user_handle.to_ne_bytes());
    bytes[8..12].copy_from_slice(&event.verbs_type().to_ne_bytes());
    let sent = send(locked, function, channel, ChannelKind::Async, &bytes);
    devx_event(locked, function, devx, event.device_type());
    sent
}

fn devx_event(locked: &Locked<'_>, function: usize, wanted: Subscription, device_type: u8) {
    if wanted.types >> (device_type & 31) & 1 == 0 {
        return;
    }
    let Some(channel) = channel_of(locked, function, wanted.channel) else {
        return;
    };
    let mut bytes = [0; 8 + EQE_BYTES];
    bytes[..8].copy_from_slice(&wanted.cookie.to_ne_bytes());
    bytes[9] = device_type;
    let length = if channel.omit_data { 8 } else { bytes.len() };
    send(
        locked,
        function,
        wanted.channel,
        ChannelKind::Devx,
        &bytes[..length],
    );
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

/// The write end of a channel, ready to be written.
struct Pipe {
    file: i32,
    /// It was opened for this, and is closed after.
    foreign: bool,
}

/// Opens a channel of this kind: that of another process through the name that the kernel gives to
/// its open files.
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
    /// Writes one event. False if it was not taken: a full pipe has more events than its reader
    /// needs to wake up; a closed one has no reader.
    fn write(self, locked: &Locked<'_>, function: usize, bytes: &[u8]) -> bool {
        // Its reader may have died since it was opened.
        let sent = sys::write_pipe(self.file, bytes).is_ok();
        if self.foreign {
            sys::close(self.file);
        }
        if sent {
            locked.fabric().counters(function).event();
        }
        sent
    }
}
