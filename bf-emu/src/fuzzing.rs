//! Entry points for the fuzz targets in `fuzz/`, which see only public items.

use mlx5_prm::dpa::{Done, MessageHead, ThreadAttr, Wait};

use crate::engine::wire::icrc::{Ends, ICRC_BYTES};
use crate::engine::wire::management::Datagram;
use crate::engine::wire::packet::Packet;
use crate::engine::work;
use crate::process::dpa::wire::{Answer, Request};

/// Parses a work queue entry of a queue of this service type. If it is accepted, asserts the
/// properties on which the engine relies.
pub fn work(bytes: &[u8], queue: u8) {
    let Ok(work) = work::parse(bytes, queue) else {
        return;
    };
    assert!(work.data_at <= work.end, "the data begins behind the end");
    assert!(work.end <= bytes.len(), "it ends behind its bytes");
    let entries = work::klms(&bytes[work.data_at..work.end]).count();
    assert!(entries * mlx5_prm::mkey::KLM_BYTES <= work.end - work.data_at);
}

/// Reads a packet of RoCE v2. What is accepted is written and read again as the same packet.
pub fn packet(bytes: &[u8]) {
    let Ok(packet) = Packet::decode(bytes) else {
        return;
    };
    let mut written = Vec::new();
    packet.encode(&mut written);
    assert_eq!(written.len(), bytes.len());
    assert_eq!(Packet::decode(&written), Ok(packet));
    let ends = Ends {
        from: ([10, 0, 0, 1], 4791).into(),
        to: ([10, 0, 0, 2], 4791).into(),
        identification: 0,
    };
    let icrc: [u8; ICRC_BYTES] = ends.icrc(&written).expect("the packet is short enough");
    written.extend(icrc);
    assert!(ends.checked(&written).is_some());
}

/// Reads a message of the connection manager. What is accepted is written and read again as the same message.
pub fn management(bytes: &[u8]) {
    let Ok(message) = Datagram::decode(bytes) else {
        return;
    };
    let written = message.encode();
    assert_eq!(Datagram::decode(&written), Ok(message));
    // The header and the numbers of the exchange are all there.
    assert_eq!(written[..4], bytes[..4]);
    assert_eq!(written[8..18], bytes[8..18]);
    assert_eq!(written[24..28], bytes[24..28]);
}

/// Reads a request to the DPA's runner, the fields of its command, and an answer. What is accepted is written as it was read.
pub fn dpa_command(bytes: &[u8]) {
    if let Ok((request, input)) = Request::receive(bytes) {
        let mut sent = Vec::new();
        request.send(&mut sent, &input).expect("it was received");
        assert_eq!(sent, bytes[..sent.len()]);
    }
    if let Ok(answer) = Answer::receive(bytes) {
        let mut sent = Vec::new();
        answer.send(&mut sent).expect("it was received");
        assert_eq!(Answer::receive(&sent[..]).expect("it was sent"), answer);
    }
    let mut written = [0; mlx5_prm::dpa::BODY_AT];
    if let Ok(Some(wait)) = Wait::parse(bytes) {
        assert!(wait.put(&mut written));
        assert_eq!(Wait::parse(&written), Ok(Some(wait)));
    }
    if let Ok(Some(done)) = Done::parse(bytes) {
        assert!(done.put(&mut written));
        assert_eq!(Done::parse(&written), Ok(Some(done)));
    }
    if let Ok(attr) = ThreadAttr::parse(bytes) {
        assert!(attr.put(&mut written));
        assert_eq!(ThreadAttr::parse(&written), Ok(attr));
    }
    let mut rest = bytes;
    while let Some((head, text, behind)) = MessageHead::split(rest) {
        assert_eq!(text.len(), usize::from(head.bytes));
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    /// A short form of the fuzz target: random bytes behind each operation, with sound flags or any.
    #[test]
    fn packets_are_read_or_refused() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[5]
        };
        for round in 0..20_000 {
            let mut bytes: Vec<u8> = (0..byte() % 64).map(|_| byte()).collect();
            if let [operation, flags, ..] = &mut bytes[..] {
                *operation = match round % 8 {
                    0 => 0x64 | *operation & 1,
                    _ => *operation & 0x1f,
                };
                *flags &= if round % 4 == 0 { 0xff } else { 0xf0 };
            }
            super::packet(&bytes);
        }
    }

    /// A short form of the fuzz target: random bytes behind the header of each message.
    #[test]
    fn messages_are_read_or_refused() {
        let mut state = 0x1234_5678_9abc_def1_u64;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[5]
        };
        for _ in 0..20_000 {
            let mut bytes: [u8; 256] = std::array::from_fn(|_| byte());
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[16..18].copy_from_slice(&[0, 0x0f + byte() % 12]);
            super::management(&bytes);
        }
    }

    /// A short form of the fuzz target: random bytes, and headers of requests with random bytes.
    #[test]
    fn commands_of_the_dpa_are_read_or_refused() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[5]
        };
        for round in 0..20_000 {
            let mut bytes: Vec<u8> = (0..byte()).map(|_| byte()).collect();
            if bytes.len() >= 40 && round % 2 == 0 {
                // A known kind, and a length that may fit.
                bytes[..4].copy_from_slice(&u32::from(byte() % 12).to_le_bytes());
                bytes[32..36].copy_from_slice(&u32::from(byte()).to_le_bytes());
            }
            super::dpa_command(&bytes);
        }
    }
}
