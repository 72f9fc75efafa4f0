//! Calls of a connection that wait for the target's disk. A thread carries them out in their order, while the connection goes
//! on: the answer to a call before or behind them does not wait for the disk.

use super::wire::{Answer, Call};
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use xgvmi_daemon::Background;

/// Most calls that wait. The connection takes no further call until one has ended.
const WAITING_MAX: usize = 64;

/// A call and its number. One without a number is the target's own, and has no answer.
type Numbered = (Option<u64>, Call);
/// The calls that one sync has served, and their answer.
pub(super) type Ended = (Vec<u64>, Answer);

/// The calls of one connection.
#[derive(Default)]
pub(super) struct Syncs {
    waiting: VecDeque<Numbered>,
    /// Starts with the first call.
    thread: Option<Background<Ended>>,
}

impl Syncs {
    /// Adds a call behind the others.
    pub(super) fn add(&mut self, number: u64, call: Call) {
        self.waiting.push_back((Some(number), call));
    }

    /// Adds a sync that no call asks for, unless one waits or is under way.
    pub(super) fn add_own(&mut self) {
        if self.waiting.is_empty() && !self.is_under_way() {
            self.waiting.push_back((None, Call::Flush));
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    fn is_under_way(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| thread.pending() > 0)
    }

    /// Readable when a call has ended.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.thread.as_ref().map(Background::fd)
    }

    /// Calls that have ended.
    pub(super) fn ended(&mut self) -> Option<Ended> {
        // Without one it would ask the system for nothing, at each call.
        let thread = self.thread.as_mut()?;
        (thread.pending() > 0).then(|| thread.take()).flatten()
    }

    /// True if a call waits, and none is under way.
    pub(super) fn is_due(&self) -> bool {
        !self.waiting.is_empty() && !self.is_under_way()
    }

    /// Begins the next call. Flushes that wait share one sync.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn begin(
        &mut self,
        carry_out: impl FnOnce(&Call) -> Answer + Send + 'static,
    ) -> io::Result<()> {
        let Some((number, call)) = self.waiting.pop_front() else {
            return Ok(());
        };
        let mut numbers: Vec<u64> = number.into_iter().collect();
        let is_flush = |waiting: &&Numbered| call == Call::Flush && waiting.1 == Call::Flush;
        let together = self.waiting.iter().take_while(is_flush).count();
        numbers.extend(
            self.waiting
                .drain(..together)
                .filter_map(|(number, _)| number),
        );
        let thread = match &mut self.thread {
            Some(thread) => thread,
            none => none.insert(Background::new("sync")?),
        };
        thread.submit(move || (numbers, carry_out(&call)));
        Ok(())
    }
}
