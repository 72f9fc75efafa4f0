//! The active messages of the offloaded transfer.
//!
//! ```text
//! HOST A                       DPU A                      DPU B                       HOST B
//!   |<---------------------------------------- READY -----------------------------------| buffer is there
//!   |----------------------------------------- START ---------------------------------->|
//!   | map, export                                                           map, export |
//!   |------ HOST_ARRIVE ------->|                          |<------ HOST_ARRIVE --------|
//!   |                           | import, pack rkey        | import                     |
//!   |                           |-------- DPU_RTS -------->|                            |
//!   |~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ RDMA READ, posted by DPU B, host A to host B ~~~~~~~>|
//!   |                           |                          | unmap                      |
//!   |                           |<------- DPU_FIN ---------|-------- HOST_FIN --------->|
//!   |<------- HOST_FIN ---------| unmap                    |                      unmap |
//!   | unmap, munmap                                                                     |
//!   |<---------------------------------------- DONE ------------------------------------|
//! ```
//! A completion reaches a host only after its DPU has released the import. Until then the host must keep the
//! buffer.

use xgvmi_ucp::Message;

/// Kind of message. The discriminants are UCP's active message identifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Kind {
    /// Any process to any, at connection set-up: the path between them works.
    Hello = 0,
    /// Host B to host A: the buffer is ready.
    Ready = 1,
    /// Host A to host B: the measurement starts.
    Start = 2,
    /// Host to its DPU: the exported buffer.
    HostArrive = 3,
    /// DPU A to DPU B: the remote key for the read.
    DpuRts = 4,
    /// DPU B to DPU A: the read is complete.
    DpuFin = 5,
    /// DPU to its host: the host's part is complete.
    HostFin = 6,
    /// Host B to host A: host B's part is complete.
    Done = 7,
}

impl Kind {
    /// Number of identifiers that a worker listens to.
    pub(super) const COUNT: u16 = Self::Done as u16 + 1;

    /// Name for error messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Hello => "HELLO",
            Self::Ready => "READY",
            Self::Start => "START",
            Self::HostArrive => "HOST_ARRIVE",
            Self::DpuRts => "DPU_RTS",
            Self::DpuFin => "DPU_FIN",
            Self::HostFin => "HOST_FIN",
            Self::Done => "DONE",
        }
    }
}

/// The header of every message: little endian, 24 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// Number of the iteration.
    pub(super) iteration: u64,
    /// First address of the buffer of the sender's host, if the message concerns one.
    pub(super) address: u64,
    /// Its length in bytes.
    pub(super) length: u64,
}

/// Reason why a message is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{kind} with a header of {length} bytes instead of {}", Header::BYTES)]
pub(super) struct BadHeader {
    kind: &'static str,
    length: usize,
}

impl Header {
    const BYTES: usize = 24;

    pub(super) fn to_bytes(self) -> Vec<u8> {
        [self.iteration, self.address, self.length]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    pub(super) fn parse(kind: Kind, message: &Message) -> Result<Self, BadHeader> {
        let (words, rest) = message.header.as_chunks::<8>();
        match (words, rest) {
            ([iteration, address, length], []) => Ok(Self {
                iteration: u64::from_le_bytes(*iteration),
                address: u64::from_le_bytes(*address),
                length: u64::from_le_bytes(*length),
            }),
            _ => Err(BadHeader {
                kind: kind.name(),
                length: message.header.len(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(header: Vec<u8>) -> Message {
        Message {
            id: Kind::DpuRts as u16,
            header: header.as_slice().into(),
            data: Vec::new(),
        }
    }

    #[test]
    fn headers_survive_the_wire() {
        let header = Header {
            iteration: 7,
            address: 0x7f12_3456_7000,
            length: 1 << 40,
        };
        let bytes = header.to_bytes();
        assert_eq!(bytes[..8], [7, 0, 0, 0, 0, 0, 0, 0]);
        let parsed = Header::parse(Kind::DpuRts, &message(bytes)).expect("24 bytes");
        assert_eq!(parsed, header);
    }

    #[test]
    fn a_header_of_another_length_is_refused() {
        for length in [0, 23, 25, 32] {
            let error = Header::parse(Kind::DpuRts, &message(vec![0; length])).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("DPU_RTS with a header of {length} bytes instead of 24")
            );
        }
    }
}
