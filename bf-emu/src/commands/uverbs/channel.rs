//! Channels: pipes that deliver events to an application.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use super::abi::devx;
use super::ioctl::Ioctl;
use crate::commands::call::{Call, Full};
use crate::fabric::Locked;
use crate::fabric::objects::{Channel, ChannelKind, Subscription};
use crate::guard;
use crate::process::channels;
use crate::sys::{self, Errno};

/// Attribute of the asynchronous event file.
pub(super) const ASYNC_HANDLE: u16 = 0;
/// Flag of a DEVX channel: an event consists of the cookie only (`mlx5_user_ioctl_verbs.h`,
/// MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA).
const OMIT_DATA: u32 = 1;

/// Creates a channel. Returns the file descriptor for the application.
pub(super) fn create(call: &Call<'_>, kind: ChannelKind, omit_data: bool) -> Result<i32, Errno> {
    let owner = call.owner()?;
    // A program may have closed a read end by a system call of its own.
    channels::collect(&mut call.lock(), call.function(), owner.process, |_| true);
    // One read of a DEVX channel returns one event of any size.
    let whole = matches!(kind, ChannelKind::Devx | ChannelKind::DevxAnswers);
    let (read_fd, write_fd) = sys::pipe(whole)?;
    sys::set_nonblocking(write_fd)?;
    let channel = Channel {
        read_fd,
        write_fd,
        kind,
        omit_data,
        device: Subscription::default(),
    };
    let inserted = call
        .lock()
        .function(call.function())
        .channels
        .insert(owner, channel);
    if inserted.is_none() {
        sys::close(read_fd);
        sys::close(write_fd);
        return Err(call.full(Full::Channels));
    }
    channels::watch(read_fd);
    Ok(read_fd)
}

/// The asynchronous event file of a context.
pub(super) fn create_async(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let fd = create(call, ChannelKind::Async, false)?;
    ioctl.answer_handle(ASYNC_HANDLE, u64::from(fd.unsigned_abs()))
}

/// A channel of DEVX events.
pub(super) fn create_devx_events(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let omit_data = ioctl.flags(devx::FD_ALLOC_FLAGS, OMIT_DATA)? != 0;
    let fd = create(call, ChannelKind::Devx, omit_data)?;
    ioctl.answer_handle(devx::FD_ALLOC_HANDLE, u64::from(fd.unsigned_abs()))
}

/// A channel for answers to asynchronous DEVX commands.
pub(super) fn create_devx_answers(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let fd = create(call, ChannelKind::DevxAnswers, false)?;
    ioctl.answer_handle(devx::FD_ALLOC_HANDLE, u64::from(fd.unsigned_abs()))
}

/// Writes an answer into such a channel. Returns EAGAIN if the channel is full.
pub(super) fn answer(call: &Call<'_>, fd: i32, answer: &[u8]) -> Result<(), Errno> {
    let number = find(call, fd, ChannelKind::DevxAnswers);
    let locked = call.lock();
    let channels = &locked.peek(call.function()).channels;
    let slot = number.checked_sub(1).ok_or(Errno(libc::EBADF))?;
    let write_fd = channels.get(slot).ok_or(Errno(libc::EBADF))?.write_fd;
    drop(locked);
    sys::write_pipe(write_fd, answer).map(drop)
}

/// Number of the channel with this file of this process, counted from 1; 0 if there is none.
pub(super) fn find(call: &Call<'_>, fd: i32, kind: ChannelKind) -> u32 {
    let Ok(owner) = call.owner() else { return 0 };
    let locked = call.lock();
    let channels = &locked.peek(call.function()).channels;
    let wanted = |by: crate::fabric::table::Owner, channel: &Channel| {
        by.process == owner.process && channel.read_fd == fd && channel.kind == kind
    };
    // The latest match wins: a reused file descriptor belongs to the newer channel.
    let mut found = 0;
    let mut from = 0;
    while let Some(slot) = channels.next(from, wanted) {
        found = slot + 1;
        from = slot + 1;
    }
    found
}

/// The channel that an attribute names, or the context's latest asynchronous channel.
pub(super) fn event_channel(call: &Call<'_>, ioctl: &Ioctl, attr: u16) -> u32 {
    match ioctl.file(attr) {
        Ok(fd) => find(call, fd, ChannelKind::Async),
        Err(_) => 0,
    }
}

/// Offsets of the counters of acknowledged events in the owner's structures, whose addresses are the handles in events
/// (`verbs.h`, `struct ibv_cq`, `struct ibv_qp`, `struct ibv_srq`): behind a mutex and a condition variable.
pub(super) const CQ_COMPLETIONS: u64 = 32 + SLEEP_BYTES;
pub(super) const CQ_OTHERS: u64 = CQ_COMPLETIONS + 4;
pub(super) const QP_EVENTS: u64 = 64 + SLEEP_BYTES;
pub(super) const SRQ_EVENTS: u64 = 32 + SLEEP_BYTES;
const SLEEP_BYTES: u64 =
    (size_of::<libc::pthread_mutex_t>() + size_of::<libc::pthread_cond_t>()) as u64;

/// Number of events of a destroyed object that its owner has read: at most this number, of which some may not have been
/// written. Then the owner's own counter decides, so that the owner does not wait for an event that never was.
pub(super) fn reported(most: u32, unsure: u32, acknowledged_at: u64) -> u32 {
    if unsure == 0 {
        return most;
    }
    let least = most.wrapping_sub(unsure);
    let mut word = [0; 4];
    let acknowledged = match guard::read(acknowledged_at, &mut word) {
        Ok(()) => u32::from_ne_bytes(word),
        Err(_) => least,
    };
    match acknowledged.wrapping_sub(least) <= unsure {
        true => acknowledged,
        false => least,
    }
}

/// Removes the unread events of a destroyed object from a channel, as the kernel does. Events of
/// other objects keep their order. Returns the number of removed events.
pub(super) fn forget(locked: &Locked<'_>, function: usize, channel: u32, user_handle: u64) -> u32 {
    /// Limit of the search. A pipe holds no more events.
    const EVENTS_MAX: usize = 8192;
    let Some(slot) = channel.checked_sub(1) else {
        return 0;
    };
    let channels = &locked.peek(function).channels;
    let Some(channel) = channels.get(slot) else {
        return 0;
    };
    let owner = channels
        .owner(slot)
        .and_then(|owner| locked.pid(owner.process));
    let bytes = match channel.kind {
        ChannelKind::Completion => 8,
        ChannelKind::Async => 16,
        ChannelKind::Devx | ChannelKind::DevxAnswers => return 0,
    };
    if owner != Some(sys::pid()) {
        return 0;
    }
    let waiting = sys::waiting_bytes(channel.read_fd).unwrap_or(0) / bytes;
    if waiting == 0 {
        return 0;
    }
    // A separate open file. It does not block if the application reads at the same time.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", channel.read_fd));
    let Ok(mut reader) = opened else {
        return 0;
    };
    let mut forgotten = 0;
    for _ in 0..waiting.min(EVENTS_MAX) {
        let mut event = [0; 16];
        let event = &mut event[..bytes];
        if reader.read_exact(event).is_err() {
            break;
        }
        // Events of both kinds begin with the owner's handle of the object.
        if event.starts_with(&user_handle.to_ne_bytes()) {
            forgotten += 1;
        } else {
            // Cannot block: the same number of bytes was just read.
            let _ = sys::write(channel.write_fd, event);
        }
    }
    forgotten
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_whose_sender_died_count_if_the_owner_has_acknowledged_them() {
        let wraps = u32::MAX;
        for (most, unsure, acknowledged, expect) in [
            (5, 0, 9, 5),
            (5, 1, 5, 5),
            (5, 1, 4, 4),
            // It has read one that it has not acknowledged yet.
            (5, 1, 3, 4),
            (5, 2, 3, 3),
            // No counter of events.
            (5, 2, 77, 3),
            (0, 1, wraps, wraps),
        ] {
            let counter = [acknowledged];
            let at = counter.as_ptr().expose_provenance() as u64;
            let found = reported(most, unsure, at);
            assert_eq!(found, expect, "{most} {unsure} {acknowledged}");
        }
    }
}
