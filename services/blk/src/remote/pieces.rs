//! What a volume and a target tell each other of their memory, which the other side reads by RDMA. Does no I/O.

use xgvmi_daemon::codec::{BadMessage, Reader, Writer};
use xgvmi_verbs::Endpoint;

/// Memory of the sender that has the rest of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) length: u32,
    /// CRC32C of the bytes: the seal of the frame covers it.
    pub(super) crc: u32,
}

/// The sender's end of an RDMA connection, and the memory that it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) endpoint: Endpoint,
    pub(super) key: u32,
    pub(super) address: u64,
    /// The first bytes of the memory, which prove that it is reached.
    pub(super) token: Token,
}

/// Random bytes.
pub(super) type Token = [u8; 16];

pub(super) fn put_piece<'a>(writer: &'a mut Writer, piece: &Piece) -> &'a mut Writer {
    writer.u64(piece.address).u32(piece.length).u32(piece.crc)
}

pub(super) fn take_piece(reader: &mut Reader<'_>) -> Result<Piece, BadMessage> {
    Ok(Piece {
        address: reader.u64()?,
        length: reader.u32()?,
        crc: reader.u32()?,
    })
}

pub(super) fn put_line<'a>(writer: &'a mut Writer, line: &Line) -> &'a mut Writer {
    writer.raw(&line.endpoint.to_bytes());
    writer.u32(line.key).u64(line.address).raw(&line.token)
}

pub(super) fn take_line(reader: &mut Reader<'_>) -> Result<Line, BadMessage> {
    Ok(Line {
        endpoint: Endpoint::from_bytes(&reader.raw()?),
        key: reader.u32()?,
        address: reader.u64()?,
        token: reader.raw()?,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::remote) fn piece() -> Piece {
        Piece {
            address: 1 << 40,
            length: 5,
            crc: 6,
        }
    }

    pub(in crate::remote) fn line() -> Line {
        let mut endpoint = [7; 24];
        endpoint[7] = 1;
        Line {
            endpoint: Endpoint::from_bytes(&endpoint),
            key: 0x1234,
            address: 1 << 41,
            token: [9; 16],
        }
    }
}
