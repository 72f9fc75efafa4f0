//! Parts of messages between a volume and a target that the other side reads by RDMA in place of a frame. Does no I/O.

use super::wire::{Answer, put_half_head, put_step};
use crate::store::Step;
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

/// The parts of a call of several steps in their order. No half block is copied.
pub(super) fn steps_in_parts(steps: &[Step<'_>], mut put: impl FnMut(&[u8])) {
    let mut head = Writer::with_capacity(64);
    head.u8(11).u64(steps.len() as u64);
    for step in steps {
        let data = match *step {
            Step::Prepare { block, half, keep } => {
                put_half_head(head.u8(3).u64(block).u64(keep), half);
                &half.data[..]
            }
            step => {
                put_step(&mut head, step);
                &[]
            }
        };
        head = put_and_reuse(head, &mut put);
        put(data);
    }
}

/// Puts the bytes of a writer. Returns an empty one in its memory.
fn put_and_reuse(writer: Writer, put: &mut impl FnMut(&[u8])) -> Writer {
    let bytes = writer.finish();
    put(&bytes);
    Writer::over(bytes, 64)
}

impl Answer {
    /// The parts of the message that answers the call with this number, in their order. No half block is copied.
    pub(super) fn in_parts(&self, call: u64, mut put: impl FnMut(&[u8])) {
        let mut head = Writer::with_capacity(64);
        head.u64(call);
        let answers = match self {
            Self::Steps(answers) => {
                head.u8(12).u64(answers.len() as u64);
                answers
            }
            other => std::slice::from_ref(other),
        };
        for answer in answers {
            let data = match answer {
                Self::Half(half) => {
                    put_half_head(head.u8(3), half);
                    &half.data[..]
                }
                other => {
                    other.put(&mut head);
                    &[]
                }
            };
            head = put_and_reuse(head, &mut put);
            put(data);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::wire::tests::{answers, half};
    use super::super::wire::{Call, steps_to_bytes};
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

    /// The parts of a message are those of its bytes.
    #[test]
    fn parts_are_the_message() {
        let half = half();
        let steps = [
            Step::Prepare {
                block: 1,
                half: &half,
                keep: 2,
            },
            Step::Commit {
                block: 3,
                generation: 4,
            },
            Step::Fetch {
                block: 5,
                generation: 6,
            },
        ];
        let bytes = steps_to_bytes(&steps, None);
        let call = Call::parse(&bytes).unwrap();
        assert_eq!(call.to_bytes(), bytes);
        let Call::Steps(steps_of_call) = call else {
            panic!("{call:?}");
        };
        let into = Call::parse(&steps_to_bytes(&steps, Some(7)));
        assert_eq!(into, Ok(Call::Into(7, steps_of_call)));
        for answer in answers() {
            let mut bytes = Vec::new();
            answer.in_parts(7, |part| bytes.extend_from_slice(part));
            assert_eq!(bytes, answer.to_bytes(7), "{answer:?}");
        }
    }
}
