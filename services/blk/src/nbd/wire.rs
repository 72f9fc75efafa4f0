//! The NBD protocol's numbers, and parsers of what a client sends. Does no I/O.
//!
//! Source: the protocol document of the NetworkBlockDevice project (`nbd/doc/proto.md`). Numbers are big endian.

/// First bytes of a server's greeting.
pub const GREETING: [u8; 16] = *b"NBDMAGICIHAVEOPT";
const OPTION_MAGIC: [u8; 8] = *b"IHAVEOPT";
/// First bytes of a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First bytes of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First bytes of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First bytes of a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Flags of the handshake.
pub mod handshake_flag {
    /// Fixed newstyle.
    pub const FIXED: u16 = 1 << 0;
    /// No zeros after the old form of choosing an export.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Flags of an export.
pub mod export_flag {
    /// The other flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH.
    pub const FLUSH: u16 = 1 << 2;
    /// FUA.
    pub const FUA: u16 = 1 << 3;
    /// TRIM.
    pub const TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES.
    pub const WRITE_ZEROES: u16 = 1 << 6;
    /// Don't fragment.
    pub const DF: u16 = 1 << 7;
    /// Several connections see the same data, and a flush of one is a flush of all.
    pub const MULTI_CONN: u16 = 1 << 8;
    /// CACHE.
    pub const CACHE: u16 = 1 << 10;
}

/// Options.
#[expect(missing_docs, reason = "the protocol's own names say it all")]
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
#[expect(missing_docs, reason = "the protocol's own names say it all")]
pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Kinds of information about an export.
#[expect(missing_docs, reason = "the protocol's own names say it all")]
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags of a request.
pub mod request_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Zeros take space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent.
    pub const REQ_ONE: u16 = 1 << 3;
}

/// Chunks of structured replies.
#[expect(missing_docs, reason = "the protocol's own names say it all")]
pub mod chunk {
    pub const DONE: u16 = 1;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// Errors of requests.
#[expect(missing_docs, reason = "the protocol's own names say it all")]
pub mod errno {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const EOVERFLOW: u32 = 75;
    pub const ENOTSUP: u32 = 95;
}

/// State of an extent in `base:allocation`: a hole that reads as zero.
pub const STATE_HOLE_ZERO: u32 = 3;
/// The only meta context.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Longest name of an export, and of a meta context.
pub const NAME_MAX: usize = 4096;
/// Longest data of an option. A longer one ends the connection.
pub const OPTION_MAX: u32 = 64 << 10;
/// Most meta contexts that one option may ask for.
pub const QUERIES_MAX: u32 = 64;

/// Longest READ and WRITE in bytes.
pub const LENGTH_MAX: u32 = 32 << 20;

/// Bytes of an option's header.
pub const OPTION_HEADER: usize = 16;
/// Bytes of a request.
pub const REQUEST: usize = 28;

/// Bytes that break the protocol: the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub &'static str);

/// Reads numbers and names from the front of bytes.
#[derive(Debug, Clone, Copy)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// A length, then a text of at most [`NAME_MAX`] bytes.
    fn name(&mut self) -> Option<&'a str> {
        let length = self.u32()? as usize;
        let (text, rest) = self
            .0
            .split_at_checked(length)
            .filter(|_| length <= NAME_MAX)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }
}

/// Header of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// One of [`option`].
    pub option: u32,
    /// Bytes that follow.
    pub length: u32,
}

/// Parses the header of an option.
///
/// # Errors
/// The magic number is wrong.
pub fn option_header(bytes: &[u8; OPTION_HEADER]) -> Result<OptionHeader, Broken> {
    let [magic @ .., a, b, c, d, e, f, g, h] = *bytes;
    if magic != OPTION_MAGIC {
        return Err(Broken("an option has the wrong magic number"));
    }
    Ok(OptionHeader {
        option: u32::from_be_bytes([a, b, c, d]),
        length: u32::from_be_bytes([e, f, g, h]),
    })
}

/// Data of INFO and GO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// Name of the export.
    pub name: &'a str,
    /// Kinds of information that the client asks for.
    pub kinds: Vec<u16>,
}

/// Parses the data of INFO and GO. None if it is malformed.
#[must_use]
pub fn info_request(data: &[u8]) -> Option<InfoRequest<'_>> {
    let mut reader = Reader(data);
    let name = reader.name()?;
    let count = usize::from(reader.u16()?);
    let (kinds, rest) = reader.0.as_chunks::<2>();
    (kinds.len() == count && rest.is_empty()).then(|| InfoRequest {
        name,
        kinds: kinds.iter().map(|kind| u16::from_be_bytes(*kind)).collect(),
    })
}

/// Data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// Name of the export.
    pub name: &'a str,
    /// Contexts that the client asks for.
    pub queries: Vec<&'a str>,
}

/// Parses the data of LIST_META_CONTEXT and SET_META_CONTEXT. None if it is malformed.
#[must_use]
pub fn meta_request(data: &[u8]) -> Option<MetaRequest<'_>> {
    let mut reader = Reader(data);
    let name = reader.name()?;
    let count = reader.u32().filter(|count| *count <= QUERIES_MAX)?;
    let queries = (0..count).map(|_| reader.name()).collect::<Option<_>>()?;
    reader.0.is_empty().then_some(MetaRequest { name, queries })
}

/// A command of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// READ.
    Read,
    /// WRITE. The data follow the request.
    Write,
    /// DISC: the client leaves.
    Disconnect,
    /// FLUSH.
    Flush,
    /// TRIM.
    Trim,
    /// CACHE.
    Cache,
    /// WRITE_ZEROES.
    WriteZeroes,
    /// BLOCK_STATUS.
    BlockStatus,
    /// A command that this server does not know.
    Unknown(u16),
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// See [`request_flag`].
    pub flags: u16,
    /// The command.
    pub command: Command,
    /// The client's number of the request.
    pub cookie: u64,
    /// Start in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

/// Parses a request.
///
/// # Errors
/// The magic number is wrong.
pub fn request(bytes: &[u8; REQUEST]) -> Result<Request, Broken> {
    const BROKEN: Broken = Broken("a request has the wrong magic number");
    let mut reader = Reader(bytes);
    reader
        .u32()
        .filter(|magic| *magic == REQUEST_MAGIC)
        .ok_or(BROKEN)?;
    let mut parse = || {
        Some(Request {
            flags: reader.u16()?,
            command: match reader.u16()? {
                0 => Command::Read,
                1 => Command::Write,
                2 => Command::Disconnect,
                3 => Command::Flush,
                4 => Command::Trim,
                5 => Command::Cache,
                6 => Command::WriteZeroes,
                7 => Command::BlockStatus,
                other => Command::Unknown(other),
            },
            cookie: reader.u64()?,
            offset: reader.u64()?,
            length: reader.u32()?,
        })
    };
    parse().ok_or(BROKEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(name: &str) -> Vec<u8> {
        let length = u32::try_from(name.len()).unwrap();
        [&length.to_be_bytes(), name.as_bytes()].concat()
    }

    #[test]
    fn options_are_parsed() {
        let header = option_header(b"IHAVEOPT\0\0\0\x07\0\0\0\x09").unwrap();
        assert_eq!((header.option, header.length), (option::GO, 9));
        assert!(option_header(b"IHAVEOPX\0\0\0\x07\0\0\0\x09").is_err());
        let data = [text("vol"), vec![0, 2, 0, 3, 0, 1]].concat();
        let parsed = info_request(&data).unwrap();
        assert_eq!((parsed.name, &parsed.kinds[..]), ("vol", &[3, 1][..]));
        for end in 0..data.len() {
            assert_eq!(info_request(&data[..end]), None);
        }
        let data = [text(""), vec![0, 0, 0, 2], text("base:"), text("x:y")].concat();
        let parsed = meta_request(&data).unwrap();
        assert_eq!(parsed.queries, ["base:", "x:y"]);
        for end in 0..data.len() {
            assert_eq!(meta_request(&data[..end]), None);
        }
    }

    #[test]
    fn lengths_that_the_data_do_not_have_are_refused() {
        let long = [&u32::MAX.to_be_bytes()[..], b"abc"].concat();
        assert_eq!(info_request(&long), None);
        let many = [text("a"), u32::MAX.to_be_bytes().to_vec()].concat();
        assert_eq!(meta_request(&many), None);
        let name = "x".repeat(NAME_MAX + 1);
        assert_eq!(info_request(&[text(&name), vec![0, 0]].concat()), None);
        assert_eq!(info_request(&[text("a"), vec![0, 0, 0]].concat()), None);
        assert_eq!(info_request(b"\0\0\0\x01\xff\0\0"), None, "no UTF-8");
    }

    #[test]
    fn requests_are_parsed() {
        let mut bytes = [0; REQUEST];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[5] = 1;
        bytes[7] = 6;
        bytes[15] = 9;
        bytes[22] = 2;
        bytes[26] = 1;
        let expect = Request {
            flags: request_flag::FUA,
            command: Command::WriteZeroes,
            cookie: 9,
            offset: 512,
            length: 256,
        };
        assert_eq!(request(&bytes), Ok(expect));
        bytes[7] = 99;
        assert_eq!(request(&bytes).unwrap().command, Command::Unknown(99));
        bytes[0] ^= 1;
        assert!(request(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = info_request(&bytes);
            let _ = meta_request(&bytes);
        }
    }
}
