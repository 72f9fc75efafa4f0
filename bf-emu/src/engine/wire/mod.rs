//! Connections over RoCE v2: packets, and the two sides of a connection. No input or output, and no clock:
//! times are arguments.
//!
//! "C" means InfiniBand Architecture 1.3, volume 1, in all modules here.

pub mod arriving;
pub mod icrc;
pub mod management;
pub mod packet;
pub mod requester;
pub mod responder;
#[cfg(test)]
mod tests;
pub mod unreliable;

/// A packet sequence number has 24 bits.
pub const PSN_MASK: u32 = 0x00ff_ffff;

/// The packets of one direction, counted without end from the first one. The wire carries the lower 24 bits, from a
/// number on that both sides know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    first_psn: u32,
}

impl Numbers {
    pub(super) fn from(first_psn: u32) -> Self {
        Self { first_psn }
    }

    /// The number of a packet on the wire.
    pub(super) fn psn(self, packet: u64) -> u32 {
        let low = u32::try_from(packet & u64::from(PSN_MASK)).unwrap_or(0);
        self.first_psn.wrapping_add(low) & PSN_MASK
    }

    /// The packet with a number on the wire, at most 2^23 away from packet `near`. None before the first packet.
    pub(super) fn packet(self, psn: u32, near: u64) -> Option<u64> {
        const HALF: u32 = 1 << 23;
        let ahead = psn.wrapping_sub(self.psn(near)) & PSN_MASK;
        match ahead < HALF {
            true => near.checked_add(u64::from(ahead)),
            false => near.checked_sub(u64::from(PSN_MASK + 1 - ahead)),
        }
    }
}

/// Number of packets of a message; an empty message has one.
pub(super) fn packets_of(length: u32, mtu: u32) -> u64 {
    u64::from(length.div_ceil(mtu.max(1)).max(1))
}

/// The part of a message of `length` bytes in its packet `index`: its offset and its bytes.
pub(super) fn part_of(length: u32, mtu: u32, index: u64) -> (u32, usize) {
    let offset = u64::from(mtu).saturating_mul(index).min(u64::from(length));
    let offset = u32::try_from(offset).unwrap_or(length);
    let bytes = (length - offset).min(mtu);
    (offset, usize::try_from(bytes).unwrap_or(0))
}
