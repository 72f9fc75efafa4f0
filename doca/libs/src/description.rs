//! Descriptions that programs pass to the other node: of memory, events and connections.

use crate::error::{Code, Fault, Result};

/// First bytes of each description.
const MAGIC: [u8; 4] = *b"XGVD";
/// Version of the formats.
const VERSION: u8 = 1;

/// What is described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Memory = 1,
    Event = 2,
    Connection = 3,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Memory => "a memory map",
            Kind::Event => "a sync event",
            Kind::Connection => "an RDMA connection",
        }
    }
}

/// Memory behind a key: of a map, or the word of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) rkey: u32,
    pub(crate) rights: u32,
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) lid: u16,
    pub(crate) is_ethernet: bool,
    pub(crate) mtu: u8,
    pub(crate) gid: [u8; 16],
}

/// Bytes of a description without its checksum.
const BODY: usize = 8 + 32;
/// Bytes of all descriptions.
pub(crate) const BYTES: usize = BODY + 8;

/// FNV-1a: finds bytes that were cut or mixed up. It protects against no one who wants to deceive.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn seal(kind: Kind, body: [u8; 32]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = kind as u8;
    bytes[8..BODY].copy_from_slice(&body);
    let sum = checksum(&bytes[..BODY]);
    bytes[BODY..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn open(kind: Kind, bytes: &[u8]) -> Result<[u8; 32]> {
    let bad = |what: String| {
        Fault::new(
            Code::InvalidValue,
            format!(
                "the bytes are no description of {}: {what}; pass the exported bytes unchanged",
                kind.word()
            ),
        )
    };
    let whole: &[u8; BYTES] = bytes
        .try_into()
        .map_err(|_| bad(format!("they are {}, not {BYTES}", bytes.len())))?;
    let (body, sum) = whole.split_at(BODY);
    if checksum(body).to_le_bytes() != *sum || body[..4] != MAGIC {
        return Err(bad("their checksum is wrong".to_owned()));
    }
    if body[4] != VERSION {
        return Err(bad(format!(
            "they have version {}, and this library knows {VERSION}",
            body[4]
        )));
    }
    if body[5] != kind as u8 {
        return Err(bad("they describe something else".to_owned()));
    }
    let mut inner = [0; 32];
    inner.copy_from_slice(&body[8..]);
    Ok(inner)
}

fn word<const N: usize>(bytes: &[u8; 32], at: usize) -> [u8; N] {
    std::array::from_fn(|byte| bytes[at + byte])
}

impl Memory {
    pub(crate) fn describe(&self, kind: Kind) -> [u8; BYTES] {
        let mut body = [0; 32];
        body[..8].copy_from_slice(&self.address.to_le_bytes());
        body[8..16].copy_from_slice(&self.length.to_le_bytes());
        body[16..20].copy_from_slice(&self.rkey.to_le_bytes());
        body[20..24].copy_from_slice(&self.rights.to_le_bytes());
        seal(kind, body)
    }

    pub(crate) fn parse(kind: Kind, bytes: &[u8]) -> Result<Self> {
        let body = open(kind, bytes)?;
        let memory = Self {
            address: u64::from_le_bytes(word(&body, 0)),
            length: u64::from_le_bytes(word(&body, 8)),
            rkey: u32::from_le_bytes(word(&body, 16)),
            rights: u32::from_le_bytes(word(&body, 20)),
        };
        if memory.length == 0 || memory.address.checked_add(memory.length).is_none() {
            return Err(Fault::new(
                Code::InvalidValue,
                format!(
                    "the description of {} has an impossible range: {} bytes at {:#x}",
                    kind.word(),
                    memory.length,
                    memory.address
                ),
            ));
        }
        Ok(memory)
    }
}

impl End {
    pub(crate) fn describe(&self) -> [u8; BYTES] {
        let mut body = [0; 32];
        body[..4].copy_from_slice(&self.qpn.to_le_bytes());
        body[4..8].copy_from_slice(&self.psn.to_le_bytes());
        body[8..10].copy_from_slice(&self.lid.to_le_bytes());
        body[10] = u8::from(self.is_ethernet);
        body[11] = self.mtu;
        body[16..].copy_from_slice(&self.gid);
        seal(Kind::Connection, body)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let body = open(Kind::Connection, bytes)?;
        let end = Self {
            qpn: u32::from_le_bytes(word(&body, 0)),
            psn: u32::from_le_bytes(word(&body, 4)),
            lid: u16::from_le_bytes(word(&body, 8)),
            is_ethernet: body[10] != 0,
            mtu: body[11],
            gid: word(&body, 16),
        };
        if end.qpn >= 1 << 24 || end.psn >= 1 << 24 || !(1..=5).contains(&end.mtu) {
            return Err(Fault::new(
                Code::InvalidValue,
                "the description of an RDMA connection has impossible numbers",
            ));
        }
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Memory = Memory {
        address: 0x7fff_0000_1000,
        length: 4096,
        rkey: 0x1234,
        rights: 7,
    };
    const END: End = End {
        qpn: 0x00ab_cdef,
        psn: 5,
        lid: 3,
        is_ethernet: false,
        mtu: 5,
        gid: [9; 16],
    };

    #[test]
    fn what_is_described_is_read_back() {
        for kind in [Kind::Memory, Kind::Event] {
            assert_eq!(
                Memory::parse(kind, &MEMORY.describe(kind)).expect("good bytes"),
                MEMORY
            );
        }
        assert_eq!(End::parse(&END.describe()).expect("good bytes"), END);
    }

    #[test]
    fn each_changed_bit_and_each_other_length_is_refused() {
        let good = MEMORY.describe(Kind::Memory);
        for bit in 0..BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            Memory::parse(Kind::Memory, &bad).expect_err("a changed bit");
        }
        for length in (0..BYTES).chain([BYTES + 1]) {
            let mut bad = good.to_vec();
            bad.resize(length, 0);
            Memory::parse(Kind::Memory, &bad).expect_err("another length");
        }
        let fault = Memory::parse(Kind::Event, &good).expect_err("another kind");
        assert!(
            fault.text.contains("no description of a sync event"),
            "{}",
            fault.text
        );
    }

    #[test]
    fn sealed_bytes_with_impossible_values_are_refused() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let mut body = [0; 32];
            random.fill(&mut body);
            if let Ok(memory) = Memory::parse(Kind::Memory, &seal(Kind::Memory, body)) {
                assert!(memory.address.checked_add(memory.length).is_some());
            }
            if let Ok(end) = End::parse(&seal(Kind::Connection, body)) {
                assert!(end.qpn < 1 << 24 && end.mtu <= 5);
            }
        }
    }
}
