//! Messages between an initiator and a service. Does no I/O.
//!
//! Each message is the body of a frame of `xgvmi-daemon`, little endian. An initiator says hello first. Afterwards each
//! request starts with a number, which its answer repeats. Data never travels in a frame: the service moves it between
//! its own memory and the initiator's by DMA.

use crate::geometry::{Geometry, Id};
use crate::volume::Extent;
use xgvmi_daemon::Protocol;
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};
use xgvmi_pool::AccessKey;

/// The frames. Since version 3 an initiator may be read-only, since version 4 it names its volume.
pub(crate) const PROTOCOL: Protocol = Protocol {
    magic: *b"XBLS",
    version: 4,
    program: "xgvmi-blk service",
};

/// Purpose of the key that both sides derive from the secret's file.
pub const SECRET_CONTEXT: &str = "xgvmi 2026 block storage service traffic";

/// Longest announcement of keys in bytes.
pub(crate) const ANNOUNCEMENT_MAX: usize = 64 << 10;
/// Longest frame in bytes of an initiator that has said hello.
pub(crate) const REQUEST_MAX: usize = 256;
/// Most extents of an answer.
pub(crate) const EXTENTS_MAX: usize = 1024;
/// Longest text of an error in bytes.
const TEXT_MAX: usize = 1024;
const EXTENT_BYTES: usize = 9;
/// Longest name of a volume in bytes.
pub(crate) const VOLUME_NAME_MAX: usize = 64;

/// First message of an initiator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The keys stay after an I/O, so their aliases do as well.
    pub(crate) pooled: bool,
    /// Function that owns the keys.
    pub(crate) gvmi: u16,
    /// Access key of the keys, which only this process and the service know. It names the owner.
    pub(crate) access_key: AccessKey,
    /// The keys have the access key of stock UCX instead, which every process knows.
    pub(crate) stock: bool,
    /// Number of the initiator's volume. A new connection with the same number replaces the old one.
    pub(crate) session: u64,
    /// Announcement of the pool's keys; empty without.
    pub(crate) announcement: Vec<u8>,
    /// Name of the volume; empty for the only one.
    pub(crate) volume: String,
}

/// The service's answer to a hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// Size of the volume.
    pub(crate) geometry: Geometry,
    /// The volume.
    pub(crate) volume: Id,
    /// Longest transfer of one request in bytes.
    pub(crate) transfer_max: u32,
    /// Most requests under way.
    pub(crate) requests_max: u32,
    /// Aliases that exist ahead of the first request.
    pub(crate) prepared: u32,
    /// Longest time that a request waits for targets, in milliseconds.
    pub(crate) wait_ms: u32,
    /// Writes of this initiator are refused.
    pub(crate) read_only: bool,
}

/// Where the data of a request is in the initiator's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Key of the initiator's function.
    pub(crate) mkey: u32,
    /// Address under this key.
    pub(crate) address: u64,
}

/// What an initiator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// The service writes the volume's bytes to the memory.
    Read { range: Range, memory: Memory },
    /// The service reads the memory and writes it to the volume.
    Write { range: Range, memory: Memory },
    /// All acknowledged writes become durable.
    Flush,
    /// Whole blocks become zero and lose their space.
    Trim { range: Range },
    /// Zeros, with space of their own or not.
    Zero { range: Range, allocate: bool },
    /// States of the bytes.
    Extents { range: Range, limit: u32 },
}

/// Bytes of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

/// A call with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) call: Call,
}

/// Outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Extents(Vec<Extent>),
    /// The volume has no space.
    Full(String),
    /// The request cannot be right.
    Invalid(String),
    /// The data cannot be read or written.
    Failed(String),
    /// The initiator may not.
    Denied(String),
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) outcome: Outcome,
}

impl Hello {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(64);
        writer
            .u8(u8::from(self.pooled))
            .u32(u32::from(self.gvmi))
            .raw(self.access_key.as_bytes())
            .u8(u8::from(self.stock))
            .u64(self.session)
            .blob(&self.announcement)
            .blob(self.volume.as_bytes());
        writer.finish()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("hello of an initiator", bytes);
        let pooled = take_flag(&mut reader)?;
        let gvmi = u16::try_from(reader.u32()?)
            .map_err(|_| reader.fault("with a function above 65535"))?;
        let access_key = AccessKey::new(reader.raw()?);
        let stock = take_flag(&mut reader)?;
        let session = reader.u64()?;
        let announcement = reader.blob()?.to_vec();
        if announcement.len() > ANNOUNCEMENT_MAX {
            return Err(reader.fault("with an announcement that is too long"));
        }
        let volume = std::str::from_utf8(reader.blob()?).map(str::to_owned);
        let volume = volume.map_err(|_| reader.fault("with a volume's name that is no text"))?;
        if volume.len() > VOLUME_NAME_MAX {
            return Err(reader.fault("with a volume's name that is too long"));
        }
        reader.end()?;
        Ok(Self {
            pooled,
            gvmi,
            access_key,
            stock,
            session,
            announcement,
            volume,
        })
    }
}

impl Welcome {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(64);
        writer
            .u32(self.geometry.block_size())
            .u64(self.geometry.blocks())
            .raw(&self.volume.0)
            .u32(self.transfer_max)
            .u32(self.requests_max)
            .u32(self.prepared)
            .u32(self.wait_ms)
            .u8(u8::from(self.read_only));
        writer.finish()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("welcome of a service", bytes);
        let geometry = Geometry::new(reader.u32()?, reader.u64()?)
            .map_err(|_| reader.fault("with a wrong size"))?;
        let welcome = Self {
            geometry,
            volume: Id(reader.raw()?),
            transfer_max: reader.u32()?,
            requests_max: reader.u32()?,
            prepared: reader.u32()?,
            wait_ms: reader.u32()?,
            read_only: take_flag(&mut reader)?,
        };
        if welcome.transfer_max == 0 || welcome.requests_max == 0 {
            return Err(reader.fault("that allows no request"));
        }
        reader.end()?;
        Ok(welcome)
    }
}

impl Call {
    /// True if it changes the volume.
    pub(crate) fn changes(&self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::Trim { .. } | Self::Zero { .. }
        )
    }

    /// Bytes of the volume that the call concerns.
    pub(crate) fn range(&self) -> Option<Range> {
        match self {
            Self::Read { range, .. }
            | Self::Write { range, .. }
            | Self::Trim { range }
            | Self::Zero { range, .. }
            | Self::Extents { range, .. } => Some(*range),
            Self::Flush => None,
        }
    }
}

impl Request {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(64);
        writer.u64(self.number);
        match self.call {
            Call::Read { range, memory } => put_transfer(&mut writer, 1, range, memory),
            Call::Write { range, memory } => put_transfer(&mut writer, 2, range, memory),
            Call::Flush => writer.u8(3),
            Call::Trim { range } => writer.u8(4).u64(range.offset).u32(range.length),
            Call::Zero { range, allocate } => writer
                .u8(5)
                .u64(range.offset)
                .u32(range.length)
                .u8(u8::from(allocate)),
            Call::Extents { range, limit } => {
                writer.u8(6).u64(range.offset).u32(range.length).u32(limit)
            }
        };
        writer.finish()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("request of an initiator", bytes);
        let number = reader.u64()?;
        let [kind] = reader.raw()?;
        let call = match kind {
            1 => {
                let (range, memory) = take_transfer(&mut reader)?;
                Call::Read { range, memory }
            }
            2 => {
                let (range, memory) = take_transfer(&mut reader)?;
                Call::Write { range, memory }
            }
            3 => Call::Flush,
            4 => Call::Trim {
                range: take_range(&mut reader)?,
            },
            5 => Call::Zero {
                range: take_range(&mut reader)?,
                allocate: take_flag(&mut reader)?,
            },
            6 => Call::Extents {
                range: take_range(&mut reader)?,
                limit: reader.u32()?,
            },
            _ => return Err(reader.fault("of an unknown kind")),
        };
        reader.end()?;
        Ok(Self { number, call })
    }
}

impl Answer {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(64);
        writer.u64(self.number);
        let text = |text: &str| text.as_bytes()[..text.len().min(TEXT_MAX)].to_vec();
        match &self.outcome {
            Outcome::Done => writer.u8(1),
            Outcome::Extents(extents) => writer.u8(2).records(extents, |extent| {
                let mut bytes = [0; EXTENT_BYTES];
                bytes[..8].copy_from_slice(&extent.length.to_le_bytes());
                bytes[8] = u8::from(extent.zero);
                bytes
            }),
            Outcome::Full(reason) => writer.u8(3).blob(&text(reason)),
            Outcome::Invalid(reason) => writer.u8(4).blob(&text(reason)),
            Outcome::Failed(reason) => writer.u8(5).blob(&text(reason)),
            Outcome::Denied(reason) => writer.u8(6).blob(&text(reason)),
        };
        writer.finish()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("answer of a service", bytes);
        let number = reader.u64()?;
        let [kind] = reader.raw()?;
        let outcome = match kind {
            1 => Outcome::Done,
            2 => {
                let records = reader.records::<EXTENT_BYTES>()?;
                if records.len() > EXTENTS_MAX {
                    return Err(reader.fault("with too many extents"));
                }
                Outcome::Extents(records.iter().map(extent).collect())
            }
            3 => Outcome::Full(take_text(&mut reader)?),
            4 => Outcome::Invalid(take_text(&mut reader)?),
            5 => Outcome::Failed(take_text(&mut reader)?),
            6 => Outcome::Denied(take_text(&mut reader)?),
            _ => return Err(reader.fault("of an unknown kind")),
        };
        reader.end()?;
        Ok(Self { number, outcome })
    }
}

fn extent(bytes: &[u8; EXTENT_BYTES]) -> Extent {
    let [length @ .., zero] = bytes;
    Extent {
        length: u64::from_le_bytes(*length),
        zero: *zero != 0,
    }
}

fn put_transfer(writer: &mut Writer, kind: u8, range: Range, memory: Memory) -> &mut Writer {
    writer
        .u8(kind)
        .u64(range.offset)
        .u32(range.length)
        .u32(memory.mkey)
        .u64(memory.address)
}

fn take_range(reader: &mut Reader<'_>) -> Result<Range, BadMessage> {
    Ok(Range {
        offset: reader.u64()?,
        length: reader.u32()?,
    })
}

fn take_transfer(reader: &mut Reader<'_>) -> Result<(Range, Memory), BadMessage> {
    let range = take_range(reader)?;
    let memory = Memory {
        mkey: reader.u32()?,
        address: reader.u64()?,
    };
    match memory.address.checked_add(u64::from(range.length)) {
        Some(_) => Ok((range, memory)),
        None => Err(reader.fault("with memory beyond the address space")),
    }
}

fn take_flag(reader: &mut Reader<'_>) -> Result<bool, BadMessage> {
    match reader.raw()? {
        [0] => Ok(false),
        [1] => Ok(true),
        [_] => Err(reader.fault("with a flag that is neither 0 nor 1")),
    }
}

fn take_text(reader: &mut Reader<'_>) -> Result<String, BadMessage> {
    let bytes = reader.blob()?;
    if bytes.len() > TEXT_MAX {
        return Err(reader.fault("with a text that is too long"));
    }
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: Range = Range {
        offset: 1 << 40,
        length: 4096,
    };
    const MEMORY: Memory = Memory {
        mkey: 0x1234_56fb,
        address: 0x7f00_0000_1000,
    };

    #[test]
    fn messages_are_read_as_they_were_written() {
        let hello = Hello {
            pooled: true,
            gvmi: 7,
            access_key: AccessKey::new([9; 32]),
            stock: true,
            session: 11,
            announcement: vec![1, 2, 3],
            volume: "vol".to_owned(),
        };
        assert_eq!(Hello::parse(&hello.to_bytes()).ok(), Some(hello));
        let welcome = Welcome {
            geometry: Geometry::new(4096, 77).unwrap(),
            volume: Id([3; 16]),
            transfer_max: 1 << 20,
            requests_max: 8,
            prepared: 2,
            wait_ms: 45_000,
            read_only: true,
        };
        assert_eq!(Welcome::parse(&welcome.to_bytes()).ok(), Some(welcome));
        let calls = [
            Call::Read {
                range: RANGE,
                memory: MEMORY,
            },
            Call::Write {
                range: RANGE,
                memory: MEMORY,
            },
            Call::Flush,
            Call::Trim { range: RANGE },
            Call::Zero {
                range: RANGE,
                allocate: true,
            },
            Call::Extents {
                range: RANGE,
                limit: 5,
            },
        ];
        for (number, call) in (3..).zip(calls) {
            let request = Request { number, call };
            let bytes = request.to_bytes();
            assert!(bytes.len() <= REQUEST_MAX);
            assert_eq!(Request::parse(&bytes).ok(), Some(request));
        }
        let extent = Extent {
            length: 9,
            zero: true,
        };
        let text = || "why".to_owned();
        for outcome in [
            Outcome::Done,
            Outcome::Extents(vec![extent; EXTENTS_MAX]),
            Outcome::Full(text()),
            Outcome::Invalid(text()),
            Outcome::Failed(text()),
            Outcome::Denied(text()),
        ] {
            let answer = Answer { number: 4, outcome };
            assert_eq!(Answer::parse(&answer.to_bytes()).ok(), Some(answer));
        }
    }

    #[test]
    fn impossible_messages_are_refused() {
        let request = |call| Request { number: 1, call }.to_bytes();
        let mut long = request(Call::Flush);
        long.push(0);
        assert!(Request::parse(&long).is_err());
        let wraps = request(Call::Read {
            range: RANGE,
            memory: Memory {
                address: u64::MAX,
                ..MEMORY
            },
        });
        assert!(Request::parse(&wraps).is_err());
        let mut flag = request(Call::Zero {
            range: RANGE,
            allocate: false,
        });
        *flag.last_mut().unwrap() = 2;
        assert!(Request::parse(&flag).is_err());
        assert!(Request::parse(&[0; 9]).is_err());
        let many = Outcome::Extents(vec![
            Extent {
                length: 1,
                zero: true,
            };
            EXTENTS_MAX + 1
        ]);
        let answer = Answer {
            number: 1,
            outcome: many,
        };
        assert!(Answer::parse(&answer.to_bytes()).is_err());
        assert!(Hello::parse(&[]).is_err());
        assert!(Welcome::parse(&[0; 40]).is_err());
    }
}
