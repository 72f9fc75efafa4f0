//! The responding side of an unreliable connection (C 9.8.3): takes whole messages only, drops the rest of a message with a
//! missing packet, and answers nothing.

use super::PSN_MASK;
use super::arriving::{Arriving, Target};
use super::packet::{Head, Part};

/// The responding side of a connection.
#[derive(Debug)]
pub struct Listener {
    arriving: Arriving,
    /// Number of the next packet; any number may come first.
    expected: Option<u32>,
    missing: u64,
    dropped: u64,
}

impl Listener {
    /// A connection without messages, of packets with so many bytes of data.
    #[must_use]
    pub fn new(mtu: u32) -> Self {
        Self {
            arriving: Arriving::new(mtu),
            expected: None,
            missing: 0,
            dropped: 0,
        }
    }

    /// Number of times that a packet was missing.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Number of packets that were dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes a packet of the peer. A message begins at a first packet, whatever its number, so a repeated message arrives
    /// twice (Linux `rxe_resp.c`, `check_psn`). Any other packet must be the next one of the message that is arriving.
    pub fn receive(&mut self, head: &Head, data: &[u8], target: &mut impl Target) {
        let is_next = self.expected.is_none_or(|psn| psn == head.psn);
        self.expected = Some(head.psn.wrapping_add(1) & PSN_MASK);
        self.missing += u64::from(!is_next);
        let begins = head.body.part().is_some_and(Part::begins);
        if begins || !is_next {
            self.arriving.forget();
        }
        if !begins && !self.arriving.is_open() {
            self.dropped += 1;
            return;
        }
        if self.arriving.take(head, data, target).is_err() {
            // No entry, no right, or an invalid message: its rest is dropped.
            self.arriving.forget();
            self.dropped += 1;
        }
    }
}
