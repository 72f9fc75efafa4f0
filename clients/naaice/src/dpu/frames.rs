//! Frames between a host and a service on its DPU. Numbers are little endian; [`xgvmi_daemon::Link`] delimits frames
//! and, with a secret, seals them.
//!
//! | direction | frame | content |
//! |---|---|---|
//! | host | hello | kind of keys, the host's function (gvmi), access key of its keys, announcement of the pool's keys |
//! | service | welcome | aliases created ahead, maximum bytes of a session |
//! | host | create | function code, regions: flags, key, address, size |
//! | service | created | |
//! | host | invoke | 24 bits of user data in bits 8 to 31 |
//! | host | keys | keys of all inputs that were created without one, in their order; then, after the first invoke, of such outputs |
//! | service | done | return code, bytes of the last output |
//! | host | finalize | |
//! | service | refused | text; after it the session does not exist |

use crate::wire::{FUNCTION_MAX, REGIONS_MAX, flag};
use xgvmi_daemon::Protocol;
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};
use xgvmi_pool::AccessKey;

/// Format of the frames.
pub const FRAMES: Protocol = Protocol {
    magic: *b"XNAA",
    version: 2,
    program: "xgvmi-naa",
};

/// Purpose of the key that both sides derive from the secret's file.
pub const SECRET_CONTEXT: &str = "xgvmi 2026 accelerator service control traffic";

/// Maximum length of an announcement of keys in bytes.
pub const ANNOUNCEMENT_MAX: usize = 64 << 10;

const HELLO: u32 = 1;
const CREATE: u32 = 2;
const INVOKE: u32 = 3;
const FINALIZE: u32 = 4;
const WELCOME: u32 = 5;
const CREATED: u32 = 6;
const DONE: u32 = 7;
const REFUSED: u32 = 8;
const KEYS: u32 = 9;

/// A region of the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyedRegion {
    /// See [`flag`].
    pub flags: u8,
    /// The key (mkey) of the host's function. 0 if it follows ([`HostFrame::Keys`]).
    pub mkey: u32,
    /// Address in the host's memory.
    pub addr: u64,
    /// Size in bytes.
    pub size: u32,
}

/// A frame of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostFrame {
    /// The first frame.
    Hello {
        /// Keys of a pool keep their aliases after a session; keys of one region do not.
        pooled: bool,
        /// The host's function.
        gvmi: u16,
        /// Access key of the process's keys. It names their owner ([`AccessKey::owner`]).
        access: AccessKey,
        /// Announcement of the pool's keys; empty without a pool.
        announcement: Vec<u8>,
    },
    /// Creates a session.
    Create {
        /// Function code.
        function: u8,
        /// 1 to 32 regions.
        regions: Vec<KeyedRegion>,
    },
    /// Starts a call.
    Invoke {
        /// User data in bits 8 to 31.
        user: u32,
    },
    /// Keys of all inputs that were created without one; if there are none, of all such outputs. The host registers and
    /// binds the inputs while the service creates the session, and the outputs while it reads the inputs of the first call.
    Keys(Vec<u32>),
    /// Ends the session.
    Finalize,
}

/// A frame of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceFrame {
    /// The answer to a hello.
    Welcome {
        /// Number of aliases created ahead.
        prepared: u32,
        /// Maximum number of bytes of a session's regions.
        bytes_max: u64,
    },
    /// The session exists.
    Created,
    /// The call has ended.
    Done {
        /// Return code.
        code: u8,
        /// Bytes of the last output.
        bytes: u32,
    },
    /// The session does not exist.
    Refused(String),
}

impl HostFrame {
    /// The bytes of the frame.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(64);
        match self {
            Self::Hello {
                pooled,
                gvmi,
                access,
                announcement,
            } => writer
                .u32(HELLO)
                .u32(u32::from(*pooled))
                .u32(u32::from(*gvmi))
                .raw(access.as_bytes())
                .blob(announcement),
            Self::Create { function, regions } => writer
                .u32(CREATE)
                .u32(u32::from(*function))
                .list(regions, |writer, region| {
                    writer
                        .u32(u32::from(region.flags))
                        .u32(region.mkey)
                        .u64(region.addr)
                        .u32(region.size);
                }),
            Self::Invoke { user } => writer.u32(INVOKE).u32(*user),
            Self::Keys(keys) => writer.u32(KEYS).list(keys, |writer, key| {
                writer.u32(*key);
            }),
            Self::Finalize => writer.u32(FINALIZE),
        };
        writer.finish()
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// If the bytes are no frame of a host, or a field has an impossible value.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("a host's frame", bytes);
        let frame = match reader.u32()? {
            HELLO => Self::hello(&mut reader)?,
            CREATE => Self::create(&mut reader)?,
            INVOKE => Self::Invoke {
                user: reader.u32()?,
            },
            KEYS => Self::keys(&mut reader)?,
            FINALIZE => Self::Finalize,
            _ => return Err(reader.fault("unknown kind")),
        };
        reader.end()?;
        Ok(frame)
    }

    fn hello(reader: &mut Reader<'_>) -> Result<Self, BadMessage> {
        let pooled = match reader.u32()? {
            0 => false,
            1 => true,
            _ => return Err(reader.fault("unknown kind of keys")),
        };
        let gvmi = reader.u32()?;
        let gvmi = u16::try_from(gvmi).map_err(|_| reader.fault("a function above 65535"))?;
        let access = AccessKey::new(reader.raw()?);
        let announcement = reader.blob()?.to_vec();
        if announcement.len() > ANNOUNCEMENT_MAX {
            return Err(reader.fault("an announcement that is too long"));
        }
        Ok(Self::Hello {
            pooled,
            gvmi,
            access,
            announcement,
        })
    }

    fn create(reader: &mut Reader<'_>) -> Result<Self, BadMessage> {
        let function = u8::try_from(reader.u32()?)
            .ok()
            .filter(|code| (1..=FUNCTION_MAX).contains(code))
            .ok_or_else(|| reader.fault("a function code outside 1 to 127"))?;
        let count = reader.count(20)?;
        if count == 0 || count > REGIONS_MAX {
            return Err(reader.fault("a number of regions outside 1 to 32"));
        }
        let mut regions = Vec::with_capacity(count);
        for _ in 0..count {
            regions.push(Self::region(reader)?);
        }
        Ok(Self::Create { function, regions })
    }

    fn keys(reader: &mut Reader<'_>) -> Result<Self, BadMessage> {
        let count = reader.count(4)?;
        if count > REGIONS_MAX {
            return Err(reader.fault("more than 32 keys"));
        }
        let mut keys = Vec::with_capacity(count);
        for _ in 0..count {
            match reader.u32()? {
                0 => return Err(reader.fault("a key of 0")),
                key => keys.push(key),
            }
        }
        Ok(Self::Keys(keys))
    }

    fn region(reader: &mut Reader<'_>) -> Result<KeyedRegion, BadMessage> {
        let flags = reader.u32()?;
        let flags = u8::try_from(flags)
            .ok()
            .filter(|flags| flags & !(flag::ALL & !flag::INTERNAL) == 0)
            .ok_or_else(|| reader.fault("unknown flags of a region"))?;
        let region = KeyedRegion {
            flags,
            mkey: reader.u32()?,
            addr: reader.u64()?,
            size: reader.u32()?,
        };
        match region.size {
            0 => Err(reader.fault("a region of 0 bytes")),
            size if region.addr.checked_add(u64::from(size)).is_none() => {
                Err(reader.fault("a region beyond the address space"))
            }
            _ => Ok(region),
        }
    }
}

impl ServiceFrame {
    /// The bytes of the frame.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(64);
        match self {
            Self::Welcome {
                prepared,
                bytes_max,
            } => writer.u32(WELCOME).u32(*prepared).u64(*bytes_max),
            Self::Created => writer.u32(CREATED),
            Self::Done { code, bytes } => writer.u32(DONE).u32(u32::from(*code)).u32(*bytes),
            Self::Refused(text) => writer.u32(REFUSED).blob(text.as_bytes()),
        };
        writer.finish()
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// If the bytes are no frame of a service, or a field has an impossible value.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("a service's frame", bytes);
        let frame = match reader.u32()? {
            WELCOME => Self::Welcome {
                prepared: reader.u32()?,
                bytes_max: reader.u64()?,
            },
            CREATED => Self::Created,
            DONE => Self::Done {
                code: u8::try_from(reader.u32()?)
                    .map_err(|_| reader.fault("a return code above 255"))?,
                bytes: reader.u32()?,
            },
            REFUSED => Self::Refused(String::from_utf8_lossy(reader.blob()?).into_owned()),
            _ => return Err(reader.fault("unknown kind")),
        };
        reader.end()?;
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> KeyedRegion {
        KeyedRegion {
            flags: flag::INPUT | flag::OUTPUT,
            mkey: 0x1234_56fb,
            addr: 0x7f00_0000_1000,
            size: 4096,
        }
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let host = [
            HostFrame::Hello {
                pooled: true,
                gvmi: 7,
                access: AccessKey::new([9; 32]),
                announcement: vec![1, 2, 3],
            },
            HostFrame::Create {
                function: 127,
                regions: vec![region(); REGIONS_MAX],
            },
            HostFrame::Invoke { user: 0xabcd_ef00 },
            HostFrame::Keys(vec![0x1234_56fb, 1]),
            HostFrame::Finalize,
        ];
        for frame in host {
            assert_eq!(HostFrame::parse(&frame.to_bytes()).ok(), Some(frame));
        }
        let service = [
            ServiceFrame::Welcome {
                prepared: 3,
                bytes_max: 1 << 40,
            },
            ServiceFrame::Created,
            ServiceFrame::Done { code: 6, bytes: 1 },
            ServiceFrame::Refused("no".to_owned()),
        ];
        for frame in service {
            assert_eq!(ServiceFrame::parse(&frame.to_bytes()).ok(), Some(frame));
        }
    }

    #[test]
    fn impossible_frames_are_refused() {
        let check = |function: u8, change: fn(&mut Vec<KeyedRegion>)| {
            let mut regions = vec![region()];
            change(&mut regions);
            let bytes = HostFrame::Create { function, regions }.to_bytes();
            assert!(HostFrame::parse(&bytes).is_err());
        };
        check(0, |_| {});
        check(128, |_| {});
        check(1, Vec::clear);
        check(1, |regions| *regions = vec![region(); 33]);
        check(1, |regions| regions[0].size = 0);
        check(1, |regions| regions[0].addr = u64::MAX);
        check(1, |regions| regions[0].flags = flag::INTERNAL);
        for keys in [vec![0], vec![1; 33]] {
            assert!(HostFrame::parse(&HostFrame::Keys(keys).to_bytes()).is_err());
        }
        let mut long = HostFrame::Finalize.to_bytes();
        long.push(0);
        assert!(HostFrame::parse(&long).is_err());
        assert!(HostFrame::parse(&[]).is_err());
        assert!(ServiceFrame::parse(&[0, 0, 0, 0]).is_err());
    }
}
