//! The commands and their structures (`rdma/rdma_user_cm.h`).

use crate::fabric::rdma_cm::{PRIVATE_BYTES, Params};
use crate::guard;
use crate::model::sockaddr::SocketAddress;
use crate::sys::Errno;

/// Bytes of the header: command, bytes of the structure, room for the answer.
const HEADER_BYTES: usize = 8;
/// The longest structure, of CONNECT, ACCEPT and RESOLVE_ADDR.
const STRUCTURE_BYTES_MAX: usize = 296;
/// Number of a command that has no handler: GET_OPTION.
const GET_OPTION: u32 = 13;
/// Bytes of the structures that may end before the options of enhanced connection establishment.
const CONNECT_BYTES_MIN: usize = 280;
const ACCEPT_BYTES_MIN: usize = 288;

/// A command.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) request: Request,
    /// Room for its answer in bytes.
    pub(super) room: usize,
}

/// The commands with their parameters.
#[derive(Debug)]
pub(super) enum Request {
    CreateId {
        uid: u64,
        response: u64,
        port_space: u16,
        qp_type: u8,
    },
    DestroyId {
        response: u64,
        id: u32,
    },
    Bind {
        id: u32,
        address: SocketAddress,
    },
    ResolveAddress {
        id: u32,
        timeout_ms: u32,
        /// None: the kernel chooses it.
        source: Option<SocketAddress>,
        target: SocketAddress,
    },
    ResolveRoute {
        id: u32,
        timeout_ms: u32,
    },
    QueryRoute {
        response: u64,
        id: u32,
    },
    Connect {
        id: u32,
        params: Params,
    },
    Listen {
        id: u32,
        backlog: u32,
    },
    Accept {
        uid: u64,
        id: u32,
        /// None: the call confirms a reply.
        params: Option<Params>,
    },
    Reject {
        id: u32,
        reason: u8,
        params: Params,
    },
    Disconnect {
        id: u32,
    },
    InitQpAttr {
        response: u64,
        id: u32,
        state: u32,
    },
    GetEvent {
        response: u64,
    },
    SetOption {
        id: u32,
        level: u32,
        name: u32,
        value: u64,
        length: u32,
    },
    Notify {
        id: u32,
        event: u32,
    },
    Join {
        uid: u64,
        response: u64,
        id: u32,
        /// None: the structure holds no address.
        address: Option<SocketAddress>,
        flags: u16,
    },
    Leave {
        response: u64,
        /// Number of the membership.
        membership: u32,
    },
    MigrateId {
        response: u64,
        id: u32,
        fd: i32,
    },
    Query {
        response: u64,
        id: u32,
        option: u32,
    },
}

impl Command {
    /// Copies and parses a command of `length` bytes at `at`. Like the kernel it copies the whole
    /// structure, also where the caller's is shorter.
    ///
    /// # Errors
    /// EINVAL: the header or the structure is malformed. ENOSYS: there is no such command. EFAULT:
    /// the memory is not readable.
    pub(super) fn read(at: usize, length: usize) -> Result<Self, Errno> {
        if length < HEADER_BYTES {
            return Err(Errno(libc::EINVAL));
        }
        let mut header = [0; HEADER_BYTES];
        guard::read(at as u64, &mut header)?;
        let header = Header::parse(&header, length)?;
        let mut structure = [0; STRUCTURE_BYTES_MAX];
        let bytes = header.copied()?;
        let structure = structure.get_mut(..bytes).ok_or(Errno(libc::EINVAL))?;
        guard::read((at + HEADER_BYTES) as u64, structure)?;
        Ok(Self {
            request: request(header.command, structure)?,
            room: header.room.into(),
        })
    }
}

/// The header of a command.
#[derive(Clone, Copy, Debug)]
struct Header {
    command: u32,
    given: u16,
    room: u16,
}

impl Header {
    fn parse(bytes: &[u8; HEADER_BYTES], length: usize) -> Result<Self, Errno> {
        let [a, b, c, d, in0, in1, out0, out1] = *bytes;
        let header = Self {
            command: u32::from_ne_bytes([a, b, c, d]),
            given: u16::from_ne_bytes([in0, in1]),
            room: u16::from_ne_bytes([out0, out1]),
        };
        let known = header.command == GET_OPTION || header.structure().is_ok();
        if !known || usize::from(header.given) + HEADER_BYTES > length {
            return Err(Errno(libc::EINVAL));
        }
        match header.command {
            GET_OPTION => Err(Errno(libc::ENOSYS)),
            _ => Ok(header),
        }
    }

    /// Bytes of the command's structure.
    fn structure(self) -> Result<usize, Errno> {
        Ok(match self.command {
            0 | 14 => 24,
            1 | 5 | 11 | 17 | 18 | 19 => 16,
            2 => 40,
            3 => 64,
            4 | 7 | 12 | 15 => 8,
            6 => 288,
            8 => 296,
            9 => 264,
            10 => 4,
            16 => 48,
            20 => 136,
            21 => 272,
            22 => 152,
            _ => return Err(Errno(libc::EINVAL)),
        })
    }

    /// Bytes of the structure that are copied: two commands accept a shorter one.
    fn copied(self) -> Result<usize, Errno> {
        let structure = self.structure()?;
        let least = match self.command {
            6 => CONNECT_BYTES_MIN,
            8 => ACCEPT_BYTES_MIN,
            _ => return Ok(structure),
        };
        match usize::from(self.given) {
            given if given < least => Err(Errno(libc::EINVAL)),
            given => Ok(given.min(structure)),
        }
    }
}

/// A structure by field offset. Missing bytes are zero.
#[derive(Clone, Copy)]
struct Structure<'a>(&'a [u8]);

impl<'a> Structure<'a> {
    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        let mut array = [0; N];
        for (to, from) in array.iter_mut().zip(self.0.iter().skip(at)) {
            *to = *from;
        }
        array
    }

    fn u8(self, at: usize) -> u8 {
        let [byte] = self.array(at);
        byte
    }

    fn u16(self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }

    fn u32(self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    fn u64(self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }

    fn rest(self, at: usize) -> &'a [u8] {
        self.0.get(at..).unwrap_or(&[])
    }

    /// An IP address in a `struct sockaddr_in6`.
    fn ip(self, at: usize) -> Result<SocketAddress, Errno> {
        let bytes = self.rest(at).get(..28).unwrap_or(&[]);
        SocketAddress::parse(bytes).ok_or(Errno(libc::EINVAL))
    }

    /// An address whose length the caller gives.
    fn sized(self, at: usize, length: u16) -> Result<SocketAddress, Errno> {
        let address = SocketAddress::parse(self.rest(at)).ok_or(Errno(libc::EINVAL))?;
        match address.as_slice().len() == usize::from(length) {
            true => Ok(address),
            false => Err(Errno(libc::EINVAL)),
        }
    }

    /// `struct rdma_ucm_conn_param`, with the options of enhanced connection establishment.
    fn params(self, at: usize, ece_at: usize) -> Params {
        Params {
            qp_num: self.u32(at),
            qkey: self.u32(at + 4),
            data: self.array::<PRIVATE_BYTES>(at + 8),
            data_len: self.u8(at + 264),
            srq: self.u8(at + 265),
            responder_resources: self.u8(at + 266),
            initiator_depth: self.u8(at + 267),
            flow_control: self.u8(at + 268),
            retry_count: self.u8(at + 269),
            rnr_retry_count: self.u8(at + 270),
            ece: [self.u32(ece_at), self.u32(ece_at + 4)],
        }
    }

    /// True if the connection parameters are valid.
    fn has_params(self, at: usize) -> bool {
        self.u8(at + 271) != 0
    }
}

fn request(command: u32, structure: &[u8]) -> Result<Request, Errno> {
    let given = Structure(structure);
    Ok(match command {
        0 => Request::CreateId {
            uid: given.u64(0),
            response: given.u64(8),
            port_space: given.u16(16),
            qp_type: given.u8(18),
        },
        1 => Request::DestroyId {
            response: given.u64(0),
            id: given.u32(8),
        },
        2 => Request::Bind {
            id: given.u32(36),
            address: given.ip(8)?,
        },
        3 => Request::ResolveAddress {
            id: given.u32(56),
            timeout_ms: given.u32(60),
            source: match given.u16(0) {
                0 => None,
                _ => Some(given.ip(0)?),
            },
            target: given.ip(28)?,
        },
        20 => bind(given)?,
        21 => resolve_address(given)?,
        4 => Request::ResolveRoute {
            id: given.u32(0),
            timeout_ms: given.u32(4),
        },
        5 => Request::QueryRoute {
            response: given.u64(0),
            id: given.u32(8),
        },
        6 if !given.has_params(0) => return Err(Errno(libc::EINVAL)),
        6 => Request::Connect {
            params: given.params(0, 280),
            id: given.u32(272),
        },
        7 => Request::Listen {
            id: given.u32(0),
            backlog: given.u32(4),
        },
        8 => Request::Accept {
            uid: given.u64(0),
            params: given.has_params(8).then(|| given.params(8, 288)),
            id: given.u32(280),
        },
        9 => reject(given),
        10 => Request::Disconnect { id: given.u32(0) },
        11 => Request::InitQpAttr {
            response: given.u64(0),
            id: given.u32(8),
            state: given.u32(12),
        },
        12 => Request::GetEvent {
            response: given.u64(0),
        },
        14 => Request::SetOption {
            value: given.u64(0),
            id: given.u32(8),
            level: given.u32(12),
            name: given.u32(16),
            length: given.u32(20),
        },
        15 => Request::Notify {
            id: given.u32(0),
            event: given.u32(4),
        },
        16 => Request::Join {
            response: given.u64(0),
            uid: given.u64(8),
            address: given.ip(16).ok(),
            id: given.u32(44),
            flags: 0,
        },
        17 => Request::Leave {
            response: given.u64(0),
            membership: given.u32(8),
        },
        18 => Request::MigrateId {
            response: given.u64(0),
            id: given.u32(8),
            fd: given.u32(12).cast_signed(),
        },
        19 => Request::Query {
            response: given.u64(0),
            id: given.u32(8),
            option: given.u32(12),
        },
        22 => Request::Join {
            response: given.u64(0),
            uid: given.u64(8),
            id: given.u32(16),
            address: given.sized(24, given.u16(20)).ok(),
            flags: given.u16(22),
        },
        _ => return Err(Errno(libc::EINVAL)),
    })
}

fn bind(given: Structure<'_>) -> Result<Request, Errno> {
    if given.u16(6) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(Request::Bind {
        id: given.u32(0),
        address: given.sized(8, given.u16(4))?,
    })
}

fn resolve_address(given: Structure<'_>) -> Result<Request, Errno> {
    if given.u32(12) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(Request::ResolveAddress {
        id: given.u32(0),
        timeout_ms: given.u32(4),
        source: match given.u16(8) {
            0 => None,
            length => Some(given.sized(16, length)?),
        },
        target: given.sized(144, given.u16(10))?,
    })
}

fn reject(given: Structure<'_>) -> Request {
    Request::Reject {
        id: given.u32(0),
        reason: given.u8(5),
        params: Params {
            data: given.array::<PRIVATE_BYTES>(8),
            data_len: given.u8(4),
            ..Params::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A command as a program writes it.
    fn written(command: u32, given: usize, room: u16, structure: &[u8]) -> Vec<u8> {
        let mut bytes = command.to_ne_bytes().to_vec();
        bytes.extend(u16::try_from(given).unwrap().to_ne_bytes());
        bytes.extend(room.to_ne_bytes());
        bytes.extend(structure);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Command, Errno> {
        // The longest structure is copied whatever its declared length.
        let mut memory = bytes.to_vec();
        memory.resize(HEADER_BYTES + STRUCTURE_BYTES_MAX, 0);
        Command::read(memory.as_ptr().expose_provenance(), bytes.len())
    }

    #[test]
    fn structures_have_the_lengths_of_the_kernel() {
        // Without the header, from `rdma/rdma_user_cm.h`.
        let expect = [
            (0, 24),
            (1, 16),
            (2, 40),
            (3, 64),
            (4, 8),
            (5, 16),
            (6, 288),
            (7, 8),
            (8, 296),
            (9, 264),
            (10, 4),
            (11, 16),
            (12, 8),
            (14, 24),
            (15, 8),
            (16, 48),
            (17, 16),
            (18, 16),
            (19, 16),
            (20, 136),
            (21, 272),
            (22, 152),
        ];
        for command in 0..30 {
            let header = Header {
                command,
                given: 0,
                room: 0,
            };
            let known = expect.iter().find(|(number, _)| *number == command);
            let bytes = known.map(|(_, bytes)| *bytes);
            assert_eq!(header.structure().ok(), bytes, "{command}");
        }
    }

    #[test]
    fn headers() {
        let errno = |bytes: &[u8]| read(bytes).err().map(|errno| errno.0);
        assert_eq!(errno(&[0; 7]), Some(libc::EINVAL));
        let listen = [7, 0, 0, 0, 3, 0, 0, 0];
        assert_eq!(errno(&written(7, 8, 0, &listen)), None);
        assert_eq!(errno(&written(7, 9, 0, &listen)), Some(libc::EINVAL));
        assert_eq!(errno(&written(13, 0, 0, &[])), Some(libc::ENOSYS));
        assert_eq!(errno(&written(13, 1, 0, &[])), Some(libc::EINVAL));
        assert_eq!(errno(&written(23, 0, 0, &[])), Some(libc::EINVAL));
    }

    #[test]
    fn a_connection_without_its_options() {
        let mut structure = [0; 288];
        structure[264..272].copy_from_slice(&[2, 0, 1, 4, 0, 7, 6, 1]);
        structure[8..10].copy_from_slice(b"ab");
        structure[272] = 9;
        structure[280] = 0x11;
        for (given, options) in [(280, 0), (288, 0x11)] {
            let Request::Connect { id, params } =
                read(&written(6, given, 0, &structure)).unwrap().request
            else {
                panic!("no connection");
            };
            assert_eq!((id, params.private()), (9, &b"ab"[..]));
            assert_eq!((params.retry_count, params.rnr_retry_count), (7, 6));
            assert_eq!(params.ece[0], options);
        }
        assert!(read(&written(6, 279, 0, &structure)).is_err());
        structure[271] = 0;
        assert!(read(&written(6, 288, 0, &structure)).is_err());
    }

    proptest! {
        /// Any bytes are a command or an error.
        #[test]
        fn any_bytes(command in 0_u32..26, given in 0_usize..400, bytes in prop::collection::vec(any::<u8>(), 0..320)) {
            let _ = read(&written(command, given, 0, &bytes));
        }
    }
}
