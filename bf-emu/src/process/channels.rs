//! The open files of channels in this process: pipes, whose write end is the emulator's own. The
//! write end is closed with the program's last descriptor of the read end.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Process;
use crate::fabric::Locked;
use crate::fabric::objects::Channel;
use crate::fabric::table::Owner;
use crate::sys;

/// Largest descriptor whose close is noticed. A channel with a larger one loses its write end when
/// the next channel is created, or with its context.
const DESCRIPTORS_MAX: usize = 65_536;

/// The descriptors that may be read ends of channels.
static READ_ENDS: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];

fn place_of(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((READ_ENDS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Records that a descriptor is the read end of a channel.
pub fn watch(fd: RawFd) {
    if let Some((word, bit)) = place_of(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// True if a descriptor may be the read end of a channel. Async-signal-safe.
#[must_use]
pub fn may_be(fd: RawFd) -> bool {
    place_of(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Removes the record of a descriptor that is about to be closed. Returns whether there was one.
#[must_use]
pub fn forget(fd: RawFd) -> bool {
    place_of(fd).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
}

impl Process {
    /// Handles the close of a read end: removes the channel, unless another descriptor reads it.
    pub fn closed_channel(&self, fd: RawFd) {
        let process = self.number.load(Ordering::Acquire);
        let _held = sys::SignalsHeld::new();
        let mut locked = self.fabric.lock();
        let mut removed = 0;
        for &function in &self.functions {
            removed += collect(&mut locked, function, process, |channel| {
                channel.read_fd == fd
            });
        }
        // The descriptor may be a duplicate, which no channel names.
        if removed == 0 {
            for &function in &self.functions {
                collect(&mut locked, function, process, |_| true);
            }
        }
    }
}

/// Removes those channels of a process that `wanted` selects and nobody reads, and closes their
/// write ends. The process must be the calling one. Returns their number.
pub(crate) fn collect(
    locked: &mut Locked<'_>,
    function: usize,
    process: u32,
    wanted: impl Fn(&Channel) -> bool,
) -> usize {
    let channels = &mut locked.function(function).channels;
    let is_closed = |owner: Owner, channel: &Channel| {
        owner.process == process && wanted(channel) && sys::has_no_reader(channel.write_fd)
    };
    let (mut removed, mut from) = (0, 0);
    while let Some(slot) = channels.next(from, is_closed) {
        if let Some(channel) = channels.remove(slot) {
            sys::close(channel.write_fd);
            removed += 1;
        }
        from = slot + 1;
    }
    removed
}
