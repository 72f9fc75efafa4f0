//! Bytes between a host and an accelerator (NAA): the messages that announce memory regions, and immediate values.
//!
//! # Announcement messages
//! Each side sends one message after the connection is established. All numbers are big endian.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 1 | type: 0 error, 1 announcement and request (host), 2 announcement (NAA) |
//! | 1 | 1 | number of regions; in an error message its code |
//! | 2 | 2 | zero |
//! | 4 | | regions: 24 bytes each from a host, 16 bytes each from an NAA |
//!
//! | offset | bytes | content of a host's region |
//! |---|---|---|
//! | 0 | 1 | flags: 1 internal, 2 single send, 4 input, 8 output |
//! | 1 | 7 | requested address on the NAA |
//! | 8 | 8 | address on the host; 0 for an internal region |
//! | 16 | 4 | key (rkey); 0 for an internal region |
//! | 20 | 4 | size in bytes |
//!
//! An NAA's region has no flags and no requested address. Internal regions are absent from an NAA's message.
//!
//! # Immediate values
//! | direction | bits 0 to 6 | bit 7 | bits 8 to 31 |
//! |---|---|---|---|
//! | host to NAA | function code | start | user data |
//! | NAA to host | 0 | 0 | return code, 0 to 127 |
//!
//! A software accelerator of the original library writes its return code to bits 0 to 7. [`return_code`] reads both.

use crate::error::{MessageError, Wrong};
pub use crate::limits::{FUNCTION_MAX, REGION_BYTES_MAX, REGIONS_MAX};

/// Length of an announcement's header.
pub const HEADER_BYTES: usize = 4;
/// Length of a region in a host's message.
pub const REQUEST_BYTES: usize = 24;
/// Length of a region in an NAA's message.
pub const GRANT_BYTES: usize = 16;
/// Maximum length of a message: 772 bytes.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + REGIONS_MAX * REQUEST_BYTES;
/// Requested addresses have 56 bits.
pub const NAA_ADDRESS_MAX: u64 = (1 << 56) - 1;
/// Requested addresses are multiples of this page size.
pub const NAA_PAGE: u64 = 4096;

const ERROR: u8 = 0;
const REQUEST: u8 = 1;
const GRANT: u8 = 2;

/// Flags of a region.
pub mod flag {
    /// The region exists on the NAA only.
    pub const INTERNAL: u8 = 1;
    /// The host writes the region with the first call only.
    pub const SINGLE_SEND: u8 = 2;
    /// The host writes the region.
    pub const INPUT: u8 = 4;
    /// The NAA writes the region back.
    pub const OUTPUT: u8 = 8;
    /// All flags.
    pub const ALL: u8 = INTERNAL | SINGLE_SEND | INPUT | OUTPUT;
}

/// A region in a host's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// See [`flag`].
    pub flags: u8,
    /// Requested address on the NAA. An NAA may choose another one.
    pub naa_addr: u64,
    /// Address on the host.
    pub addr: u64,
    /// The host's key.
    pub rkey: u32,
    /// Size in bytes.
    pub size: u32,
}

impl Request {
    /// Whether the region exists on the NAA only.
    #[must_use]
    pub const fn is_internal(&self) -> bool {
        self.flags & flag::INTERNAL != 0
    }
}

/// A region in an NAA's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Address on the NAA.
    pub addr: u64,
    /// The NAA's key.
    pub rkey: u32,
    /// Size in bytes.
    pub size: u32,
}

/// A message of the announcement protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The peer cannot serve the announcement.
    Error(u8),
    /// A host announces its regions and requests their counterparts.
    Request(Vec<Request>),
    /// An NAA announces the counterparts.
    Grant(Vec<Grant>),
}

impl Message {
    /// The bytes of the message.
    ///
    /// # Panics
    /// If it has more than [`REGIONS_MAX`] regions or an address above [`NAA_ADDRESS_MAX`]. Callers check both.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, count) = match self {
            Self::Error(code) => (ERROR, *code),
            Self::Request(regions) => (REQUEST, count(regions.len())),
            Self::Grant(regions) => (GRANT, count(regions.len())),
        };
        let mut bytes = vec![kind, count, 0, 0];
        match self {
            Self::Error(_) => {}
            Self::Request(regions) => {
                for region in regions {
                    assert!(region.naa_addr <= NAA_ADDRESS_MAX, "checked by the caller");
                    let info = u64::from(region.flags) << 56 | region.naa_addr;
                    bytes.extend(info.to_be_bytes());
                    bytes.extend(region.addr.to_be_bytes());
                    bytes.extend(region.rkey.to_be_bytes());
                    bytes.extend(region.size.to_be_bytes());
                }
            }
            Self::Grant(regions) => {
                for region in regions {
                    bytes.extend(region.addr.to_be_bytes());
                    bytes.extend(region.rkey.to_be_bytes());
                    bytes.extend(region.size.to_be_bytes());
                }
            }
        }
        bytes
    }

    /// Reads a received message. `bytes` has the received length, no more.
    ///
    /// # Errors
    /// If the bytes are no message: unknown type, wrong length, wrong count, unknown flags, a size of zero, padding
    /// that is not zero. The error names the field and the region.
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let Some((&[kind, count, pad0, pad1], rest)) = bytes.split_first_chunk::<HEADER_BYTES>()
        else {
            return Err(wrong(Wrong::Length {
                expected: HEADER_BYTES,
                found: bytes.len(),
            }));
        };
        if [pad0, pad1] != [0, 0] {
            return Err(wrong(Wrong::Padding));
        }
        let each = match kind {
            ERROR => 0,
            REQUEST => REQUEST_BYTES,
            GRANT => GRANT_BYTES,
            _ => return Err(wrong(Wrong::Type(kind))),
        };
        if kind != ERROR && (count == 0 || usize::from(count) > REGIONS_MAX) {
            return Err(wrong(Wrong::Count(count)));
        }
        let expected = HEADER_BYTES + usize::from(count) * each;
        if bytes.len() != expected {
            return Err(wrong(Wrong::Length {
                expected,
                found: bytes.len(),
            }));
        }
        match kind {
            ERROR => Ok(Self::Error(count)),
            REQUEST => requests(rest).map(Self::Request),
            _ => grants(rest).map(Self::Grant),
        }
    }
}

fn count(regions: usize) -> u8 {
    assert!(regions <= REGIONS_MAX, "checked by the caller");
    u8::try_from(regions).expect("at most 32")
}

fn wrong(what: Wrong) -> MessageError {
    MessageError { region: None, what }
}

fn requests(bytes: &[u8]) -> Result<Vec<Request>, MessageError> {
    let parse = |(region, bytes): (usize, &[u8; REQUEST_BYTES])| {
        let at = |what| MessageError {
            region: Some(region),
            what,
        };
        let info = u64_at(bytes, 0);
        let request = Request {
            flags: bytes[0],
            naa_addr: info & NAA_ADDRESS_MAX,
            addr: u64_at(bytes, 8),
            rkey: u32_at(bytes, 16),
            size: u32_at(bytes, 20),
        };
        if request.flags & !flag::ALL != 0 {
            return Err(at(Wrong::Flags(request.flags)));
        }
        if request.is_internal() && request.flags != flag::INTERNAL {
            return Err(at(Wrong::Flags(request.flags)));
        }
        check_range(request.addr, request.size).map_err(at)?;
        Ok(request)
    };
    let (regions, _) = bytes.as_chunks();
    regions.iter().enumerate().map(parse).collect()
}

fn grants(bytes: &[u8]) -> Result<Vec<Grant>, MessageError> {
    let parse = |(region, bytes): (usize, &[u8; GRANT_BYTES])| {
        let grant = Grant {
            addr: u64_at(bytes, 0),
            rkey: u32_at(bytes, 8),
            size: u32_at(bytes, 12),
        };
        check_range(grant.addr, grant.size).map_err(|what| MessageError {
            region: Some(region),
            what,
        })?;
        Ok(grant)
    };
    let (regions, _) = bytes.as_chunks();
    regions.iter().enumerate().map(parse).collect()
}

fn check_range(addr: u64, size: u32) -> Result<(), Wrong> {
    if size == 0 {
        return Err(Wrong::Empty);
    }
    match addr.checked_add(u64::from(size)) {
        Some(_) => Ok(()),
        None => Err(Wrong::Range { addr, size }),
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Bit 7 of a host's immediate value: start the function.
const START: u32 = 0x80;

/// The start of a call, in the immediate value of the host's last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Function code, 1 to 127.
    pub function: u8,
    /// 24 bits of the caller, in bits 8 to 31.
    pub user: u32,
}

impl Start {
    /// The immediate value, in host byte order.
    #[must_use]
    pub const fn to_immediate(self) -> u32 {
        (self.user & !0xff) | START | (self.function & FUNCTION_MAX) as u32
    }

    /// Reads an immediate value. `None` is the host's report of an error on its side: a value of zero, or one without
    /// a function code.
    #[must_use]
    pub fn from_immediate(immediate: u32) -> Option<Self> {
        let function = immediate.to_le_bytes()[0] & FUNCTION_MAX;
        (function != 0).then_some(Self {
            function,
            user: immediate & !0xff,
        })
    }
}

/// The immediate value with which an NAA ends a call.
#[must_use]
pub const fn answer(code: u8) -> u32 {
    (code as u32) << 8
}

/// The return code in an NAA's immediate value: bits 8 to 31, or bits 0 to 7 if the others are zero. Codes above 255
/// become 255.
#[must_use]
pub fn return_code(immediate: u32) -> u8 {
    u8::try_from(answer_of(immediate)).unwrap_or(u8::MAX)
}

/// The answer in an NAA's immediate value, 24 bits: as [`return_code`], without the limit. Since version 0.1 of the original
/// it is data of the accelerator.
#[must_use]
pub const fn answer_of(immediate: u32) -> u32 {
    match immediate >> 8 {
        0 => immediate & 0xff,
        answer => answer,
    }
}

/// Requested addresses on the NAA: sequential from `offset`, each region rounded up to pages. `None` if they exceed
/// 56 bits.
#[must_use]
pub fn naa_addresses(offset: u64, sizes: &[u64]) -> Option<Vec<u64>> {
    let mut next = offset;
    let mut addresses = Vec::with_capacity(sizes.len());
    for size in sizes {
        if next > NAA_ADDRESS_MAX {
            return None;
        }
        addresses.push(next);
        next = next.checked_add(size.checked_next_multiple_of(NAA_PAGE)?)?;
    }
    Some(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The tables above, by hand: two parameters and an internal region.
    const REQUEST_GOLDEN: [u8; 76] = [
        0x01, 0x03, 0x00, 0x00, // request, three regions, padding
        0x06, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // input, single send; at 0
        0x00, 0x00, 0x7f, 0x01, 0x02, 0x03, 0x04, 0x05, // address
        0x0a, 0x0b, 0x0c, 0x0d, // key
        0x00, 0x00, 0x10, 0x01, // 4097 bytes
        0x0c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x20, 0x00, // input, output; at 0x2000
        0x00, 0x00, 0x7f, 0x11, 0x12, 0x13, 0x14, 0x15, // address
        0x1a, 0x1b, 0x1c, 0x1d, // key
        0xff, 0xff, 0xff, 0xff, // 4 GiB - 1
        0x01, 0x00, 0x00, 0x01, 0x00, 0x00, 0x20, 0x00, // internal; at 0x100002000
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // no address
        0x00, 0x00, 0x00, 0x00, // no key
        0x00, 0x00, 0x00, 0x40, // 64 bytes
    ];

    const GRANT_GOLDEN: [u8; 36] = [
        0x02, 0x02, 0x00, 0x00, // announcement, two regions, padding
        0x00, 0x00, 0x55, 0x01, 0x02, 0x03, 0x04, 0x05, 0xde, 0xad, 0xbe, 0xef, 0x00, 0x00, 0x10,
        0x01, // address, key, size
        0x00, 0x00, 0x55, 0x11, 0x12, 0x13, 0x14, 0x15, 0x00, 0x00, 0x01, 0x00, 0xff, 0xff, 0xff,
        0xff,
    ];

    fn request_message() -> Message {
        Message::Request(vec![
            Request {
                flags: flag::INPUT | flag::SINGLE_SEND,
                naa_addr: 0,
                addr: 0x7f01_0203_0405,
                rkey: 0x0a0b_0c0d,
                size: 4097,
            },
            Request {
                flags: flag::INPUT | flag::OUTPUT,
                naa_addr: 0x2000,
                addr: 0x7f11_1213_1415,
                rkey: 0x1a1b_1c1d,
                size: u32::MAX,
            },
            Request {
                flags: flag::INTERNAL,
                naa_addr: 0x1_0000_2000,
                addr: 0,
                rkey: 0,
                size: 64,
            },
        ])
    }

    fn grant_message() -> Message {
        Message::Grant(vec![
            Grant {
                addr: 0x5501_0203_0405,
                rkey: 0xdead_beef,
                size: 4097,
            },
            Grant {
                addr: 0x5511_1213_1415,
                rkey: 0x100,
                size: u32::MAX,
            },
        ])
    }

    #[test]
    fn a_hosts_message_has_the_documented_bytes() {
        assert_eq!(request_message().to_bytes(), REQUEST_GOLDEN);
        assert_eq!(Message::parse(&REQUEST_GOLDEN), Ok(request_message()));
    }

    #[test]
    fn an_accelerators_message_has_the_documented_bytes() {
        assert_eq!(grant_message().to_bytes(), GRANT_GOLDEN);
        assert_eq!(Message::parse(&GRANT_GOLDEN), Ok(grant_message()));
    }

    #[test]
    fn an_error_message_is_a_header() {
        assert_eq!(Message::Error(1).to_bytes(), [0, 1, 0, 0]);
        assert_eq!(Message::parse(&[0, 7, 0, 0]), Ok(Message::Error(7)));
    }

    #[test]
    fn thirty_two_regions_fit_in_a_message() {
        let region = Request {
            flags: flag::INPUT,
            naa_addr: 0,
            addr: 4096,
            rkey: 1,
            size: 1,
        };
        let bytes = Message::Request(vec![region; REGIONS_MAX]).to_bytes();
        assert_eq!(bytes.len(), MESSAGE_BYTES_MAX);
        assert!(Message::parse(&bytes).is_ok());
    }

    #[test]
    fn every_malformed_message_is_refused_with_its_fault() {
        let check = |change: &dyn Fn(&mut Vec<u8>), expect: &str| {
            let mut bytes = REQUEST_GOLDEN.to_vec();
            change(&mut bytes);
            let error = Message::parse(&bytes).expect_err("it is malformed");
            assert_eq!(error.to_string(), expect);
        };
        check(&|b| b.clear(), "0 bytes instead of 4");
        check(&|b| b.truncate(3), "3 bytes instead of 4");
        check(&|b| b[0] = 3, "type 3; known are 0, 1 and 2");
        check(&|b| b[1] = 0, "0 regions; 1 to 32 are possible");
        check(&|b| b[1] = 33, "33 regions; 1 to 32 are possible");
        check(&|b| b[1] = 2, "76 bytes instead of 52");
        check(&|b| b[1] = 4, "76 bytes instead of 100");
        check(&|b| b[3] = 1, "padding that is not zero");
        check(&|b| b.push(0), "77 bytes instead of 76");
        check(&|b| b[4] = 0x10, "region 0: flags 0x10");
        check(&|b| b[52] = 0x05, "region 2: flags 0x05");
        check(&|b| b[20..28].fill(0), "region 0: 0 bytes");
        check(
            &|b| b[36..44].fill(0xff),
            "region 1: 4294967295 bytes at 0xffffffffffffffff exceed the address space",
        );
    }

    #[test]
    fn immediate_values_have_the_documented_bits() {
        let start = Start {
            function: 5,
            user: 0x1234_5600,
        };
        assert_eq!(start.to_immediate(), 0x1234_5685);
        assert_eq!(Start::from_immediate(0x1234_5685), Some(start));
        assert_eq!(Start::from_immediate(0), None);
        assert_eq!(answer(0x7f), 0x7f00);
        let codes = [(0, 0), (0x7f00, 0x7f), (0x10, 0x10), (u32::MAX, 255)];
        for (immediate, code) in codes {
            assert_eq!(return_code(immediate), code, "{immediate:#x}");
        }
        assert_eq!(answer_of(0x1234_5600), 0x12_3456);
        assert_eq!(answer_of(0x10), 0x10);
    }

    #[test]
    fn requested_addresses_are_sequential_pages() {
        let addresses = naa_addresses(0, &[1, 4096, 4097, 10]);
        assert_eq!(addresses, Some(vec![0, 4096, 8192, 16384]));
        assert_eq!(naa_addresses(NAA_ADDRESS_MAX + 1, &[1]), None);
        assert_eq!(naa_addresses(0, &[]), Some(vec![]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read_as_they_were_written(
            bytes in proptest::collection::vec(any::<u8>(), 0..800),
        ) {
            if let Ok(message) = Message::parse(&bytes) {
                prop_assert_eq!(message.to_bytes(), bytes);
            }
        }
    }
}
