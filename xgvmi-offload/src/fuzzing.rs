//! Parsers of peers' messages, for fuzz targets. Each accepts any bytes. It must neither panic nor reserve more memory
//! than the input length justifies.

use crate::control::Frame;
use crate::wire::{Arrival, DpuFin, DpuRts, Hello, HostFin};

/// A message that a peer may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Any TCP frame.
    Frame,
    /// HELLO over UCP.
    Hello,
    /// HOST_ARRIVE.
    HostArrive,
    /// DPU_RTS.
    DpuRts,
    /// DPU_FIN.
    DpuFin,
    /// HOST_FIN.
    HostFin,
}

impl Message {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Frame,
        Self::Hello,
        Self::HostArrive,
        Self::DpuRts,
        Self::DpuFin,
        Self::HostFin,
    ];
}

/// Parses `bytes`; returns true if they are a message of this kind. Serializing a parsed message must reproduce it.
#[must_use]
pub fn parse(message: Message, bytes: &[u8]) -> bool {
    match message {
        Message::Frame => Frame::parse(bytes).is_ok_and(|frame| {
            // The bytes may differ: JSON has many forms, and the parser sanitizes reasons.
            assert_eq!(Frame::parse(&frame.to_bytes()), Ok(frame));
            true
        }),
        Message::Hello => Hello::parse(bytes).is_ok(),
        Message::HostArrive => Arrival::parse(bytes).is_ok(),
        Message::DpuRts => DpuRts::parse(bytes).is_ok(),
        Message::DpuFin => DpuFin::parse(bytes).is_ok_and(|fin| {
            assert_eq!(fin.to_bytes(), bytes);
            true
        }),
        Message::HostFin => HostFin::parse(bytes).is_ok_and(|fin| {
            assert_eq!(HostFin::parse(&fin.to_bytes()), Ok(fin));
            true
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths and counts at the limits of a parser's checks.
    const EDGES: [u64; 6] = [0, 1, 7, u32::MAX as u64, 1 << 60, u64::MAX];

    /// The step and the finalizer of splitmix64.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = *state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(state: &mut u64, limit: usize) -> usize {
        usize::try_from(next(state) % (limit.max(1) as u64)).expect("small")
    }

    #[test]
    fn no_bytes_make_a_parser_panic() {
        let mut seed = 1;
        for message in Message::ALL {
            for _ in 0..50_000 {
                let length = below(&mut seed, 160);
                // Mostly zeros, to make many lengths valid; then some random bytes and one edge value.
                let mut bytes = vec![0; length];
                for _ in 0..below(&mut seed, 8) {
                    let at = below(&mut seed, length);
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = next(&mut seed).to_le_bytes()[0];
                    }
                }
                let at = below(&mut seed, length);
                let edge = EDGES[below(&mut seed, EDGES.len())].to_le_bytes();
                if let Some(place) = bytes.get_mut(at..at + 8) {
                    place.copy_from_slice(&edge);
                }
                if let (Message::Frame, Some(kind)) = (message, bytes.first_mut()) {
                    *kind %= 12;
                }
                let _ = parse(message, &bytes);
            }
        }
    }
}
