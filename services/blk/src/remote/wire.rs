//! Messages between a volume and a target in another process. Does no I/O.
//!
//! Each message is the body of a frame of `xgvmi-daemon`, little endian: the kind of the call, then its arguments; or the
//! number of the call on its connection, the outcome, then the result. Answers come in any order.

use super::pieces::{Line, Piece, put_line, put_piece, take_line, take_piece};
use crate::block::Kind;
use crate::encryption::Wrapping;
use crate::error::BlkError;
use crate::geometry::{Geometry, Id, Layout, TARGETS_MAX};
use crate::layers::Layers;
use crate::record::{Half, RECORD_MAX};
use crate::store::{Held, Identity, Mark, Members, Standing, Step, Trusted, Usage};
use bytes::Bytes;
use xgvmi_daemon::Protocol;
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};

/// The frames. Since version 6 answers name their calls, since version 7 there are layers, since version 8 wrapped keys and other
/// layouts, and calls and answers may be read by RDMA, since version 9 targets learn who is trusted and what all have made durable,
/// since version 10 steps that are all done have one answer.
pub(super) const PROTOCOL: Protocol = Protocol {
    magic: *b"XBLK",
    version: 10,
    program: "xgvmi-blk target",
};
/// Longest call: the steps of a group.
pub(super) const CALL_MAX: usize = STEPS_BYTES + RECORD_MAX + 4096;
/// Most steps of a call.
pub(super) const STEPS_MAX: usize = 256;
/// Most bytes of half blocks in the steps of a call, unless it is one.
pub(super) const STEPS_BYTES: usize = RECORD_MAX / 2;
const HELD_BYTES: usize = 18;
/// In place of 0 or 1 for settled.
const DAMAGED: u8 = 2;
/// Longest text of an error.
const TEXT_MAX: usize = 1024;

/// A call of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    /// Identity and use of space.
    Hello,
    /// Generations of these blocks.
    Held {
        from: u64,
        to: u64,
    },
    /// Blocks from this one on that may have changed since the targets were equal.
    Changed {
        from: u64,
    },
    /// More blocks.
    Grow {
        blocks: u64,
    },
    /// Calls of the kinds Prepare, Commit and Fetch, each for another block.
    Steps(Vec<Call>),
    Prepare {
        block: u64,
        keep: u64,
        half: Half,
    },
    Commit {
        block: u64,
        generation: u64,
    },
    Fetch {
        block: u64,
        generation: u64,
    },
    Flush,
    /// All targets have made durable what counts up to this generation.
    Release {
        generation: u64,
    },
    Mark {
        epoch: u64,
        mark: Box<Mark>,
        owner: [u8; 16],
        /// Also if the owner's connection is open.
        take_over: bool,
    },
    /// Has no effect. Only the owner is answered.
    Confirm,
    /// The table of layers.
    Layers,
    /// A new one.
    SetLayers(Layers),
    /// The peer's end of an RDMA connection.
    Join(Box<Line>),
    /// A call of several steps whose answer may go to this slot of the target's memory.
    Into(u16, Vec<Call>),
    /// As `Into`, or without a slot. The target reads the steps in the peer's memory.
    Pull(Option<u16>, Piece),
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Identity, use of space, bytes free, and whether the connection of an owner is open.
    Hello(Box<Identity>, Usage, u64, bool),
    /// Generations, and the first block of the next part; that behind the last one at the end.
    Held(Vec<Held>, u64),
    /// Ranges of blocks, as beginnings and ends, and the first block of the next part.
    Changed(Vec<(u64, u64)>, u64),
    /// One answer for each step.
    Steps(Vec<Answer>),
    /// So many steps are done. Use of space afterwards.
    All(usize, Usage),
    Half(Half),
    /// The call is done. Use of space afterwards.
    Done(Usage),
    Absent,
    Corrupt(String),
    Full {
        wanted: u64,
        free: u64,
        capacity: u64,
    },
    Failed(String),
    /// The table of layers.
    Layers(Layers),
    /// The target's end of an RDMA connection.
    Joined(Line),
    /// The answer is in the slot of the call.
    Pull(Piece),
    /// The connection of another owner is open.
    Owned,
    /// Another process has become the owner since.
    Superseded,
}

impl Call {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(64);
        self.put(&mut writer);
        writer.finish()
    }

    fn put<'a>(&self, writer: &'a mut Writer) -> &'a mut Writer {
        match self {
            Self::Hello => writer.u8(1),
            Self::Held { from, to } => writer.u8(2).u64(*from).u64(*to),
            Self::Prepare { block, keep, half } => put_step(
                writer,
                Step::Prepare {
                    block: *block,
                    keep: *keep,
                    half,
                },
            ),
            Self::Commit { block, generation } => writer.u8(4).u64(*block).u64(*generation),
            Self::Fetch { block, generation } => writer.u8(5).u64(*block).u64(*generation),
            Self::Changed { from } => writer.u8(9).u64(*from),
            Self::Grow { blocks } => writer.u8(10).u64(*blocks),
            Self::Steps(calls) => put_calls(writer, calls),
            Self::Flush => writer.u8(6),
            Self::Release { generation } => writer.u8(17).u64(*generation),
            Self::Mark {
                epoch,
                mark,
                owner,
                take_over,
            } => {
                writer.u8(7).u64(*epoch).u8(mark_number(**mark));
                match &**mark {
                    Mark::Members(members) => put_members(writer, members),
                    Mark::Wrapping(wrapping) => put_wrapping(writer, wrapping),
                    Mark::Trusted(trusted) => put_trusted(writer, trusted),
                    Mark::Owned | Mark::Agreed | Mark::Complete | Mark::Equal => {}
                }
                writer.raw(owner).u8(u8::from(*take_over))
            }
            Self::Confirm => writer.u8(8),
            Self::Layers => writer.u8(12),
            Self::SetLayers(layers) => writer.u8(13).blob(&layers.to_bytes()),
            Self::Join(line) => put_line(writer.u8(14), line),
            Self::Into(slot, steps) => {
                writer.u8(15).raw(&slot.to_le_bytes());
                put_calls(writer, steps)
            }
            Self::Pull(slot, piece) => {
                // There are fewer slots.
                let slot = slot.unwrap_or(u16::MAX);
                put_piece(writer.u8(16).raw(&slot.to_le_bytes()), piece)
            }
        }
    }

    /// Reads a call. Its half blocks stay where they are.
    pub(super) fn parse(bytes: &Bytes) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("call of a target", bytes);
        let call = Self::take(&mut reader, bytes, false)?;
        reader.end()?;
        Ok(call)
    }

    /// Reads a call, or a step of one.
    fn take(reader: &mut Reader<'_>, message: &Bytes, is_step: bool) -> Result<Self, BadMessage> {
        let [number] = reader.raw()?;
        if is_step && !(3..=5).contains(&number) {
            return Err(reader.fault("with a step that is none"));
        }
        Ok(match number {
            1 => Self::Hello,
            2 => Self::Held {
                from: reader.u64()?,
                to: reader.u64()?,
            },
            3 => Self::Prepare {
                block: reader.u64()?,
                keep: reader.u64()?,
                half: take_half(reader, message)?,
            },
            4 => Self::Commit {
                block: reader.u64()?,
                generation: reader.u64()?,
            },
            5 => Self::Fetch {
                block: reader.u64()?,
                generation: reader.u64()?,
            },
            6 => Self::Flush,
            7 => Self::Mark {
                epoch: reader.u64()?,
                mark: Box::new(take_mark(reader)?),
                owner: reader.raw()?,
                take_over: reader.raw::<1>()? != [0],
            },
            8 => Self::Confirm,
            9 => Self::Changed {
                from: reader.u64()?,
            },
            10 => Self::Grow {
                blocks: reader.u64()?,
            },
            11 => Self::Steps(take_steps(reader, message)?),
            12 => Self::Layers,
            13 => Self::SetLayers(take_layers(reader)?),
            14 => Self::Join(Box::new(take_line(reader)?)),
            15 => {
                let slot = u16::from_le_bytes(reader.raw()?);
                if reader.raw()? != [11] {
                    return Err(reader.fault("with a slot for another call"));
                }
                Self::Into(slot, take_steps(reader, message)?)
            }
            16 => {
                let slot = u16::from_le_bytes(reader.raw()?);
                Self::Pull((slot != u16::MAX).then_some(slot), take_piece(reader)?)
            }
            17 => Self::Release {
                generation: reader.u64()?,
            },
            _ => return Err(reader.fault("of an unknown kind")),
        })
    }
}

fn put_calls<'a>(writer: &'a mut Writer, calls: &[Call]) -> &'a mut Writer {
    writer.u8(11).u64(calls.len() as u64);
    for call in calls {
        call.put(writer);
    }
    writer
}

fn take_steps(reader: &mut Reader<'_>, message: &Bytes) -> Result<Vec<Call>, BadMessage> {
    let count = take_count(reader)?;
    let mut calls = Vec::with_capacity(count);
    for _ in 0..count {
        calls.push(Call::take(reader, message, true)?);
    }
    Ok(calls)
}

/// The number of steps in a call or an answer.
fn take_count(reader: &mut Reader<'_>) -> Result<usize, BadMessage> {
    let count = usize::try_from(reader.u64()?).unwrap_or(usize::MAX);
    match count {
        1..=STEPS_MAX => Ok(count),
        _ => Err(reader.fault("with a wrong number of steps")),
    }
}

pub(super) fn put_step<'a>(writer: &'a mut Writer, step: Step<'_>) -> &'a mut Writer {
    match step {
        Step::Prepare { block, half, keep } => {
            writer.u8(3).u64(block).u64(keep);
            put_half(writer, half)
        }
        Step::Commit { block, generation } => writer.u8(4).u64(block).u64(generation),
        Step::Fetch { block, generation } => writer.u8(5).u64(block).u64(generation),
    }
}

impl Answer {
    /// True if the call had no effect or no result.
    pub(super) fn is_error(&self) -> bool {
        matches!(
            self,
            Self::Absent
                | Self::Corrupt(_)
                | Self::Full { .. }
                | Self::Failed(_)
                | Self::Owned
                | Self::Superseded
        )
    }

    /// The answer for an error of all steps: the other end takes an answer for each.
    pub(super) fn of_each(steps: &[Call], error: &BlkError) -> Self {
        Self::Steps(vec![Self::of_error(error); steps.len()])
    }

    /// The answer for an error of a store.
    pub(super) fn of_error(error: &BlkError) -> Self {
        match error {
            BlkError::Absent { .. } => Self::Absent,
            BlkError::Corrupt { fault, .. } => Self::Corrupt(fault.clone()),
            BlkError::Unreadable { error, .. } => {
                Self::Corrupt(format!("its disk cannot read it: {error}"))
            }
            BlkError::Full {
                wanted,
                free,
                capacity,
                ..
            } => Self::Full {
                wanted: *wanted,
                free: *free,
                capacity: *capacity,
            },
            BlkError::Owned { .. } => Self::Owned,
            BlkError::Superseded { .. } => Self::Superseded,
            error if error.is_full() => Self::Full {
                wanted: 0,
                free: 0,
                capacity: 0,
            },
            error => Self::Failed(error.to_string()),
        }
    }

    /// The message that answers the call with this number.
    pub(super) fn to_bytes(&self, call: u64) -> Vec<u8> {
        let mut writer = Writer::with_capacity(16 + self.length());
        self.put(writer.u64(call));
        writer.finish()
    }

    /// Bytes of its message, but for the data of short answers.
    pub(super) fn length(&self) -> usize {
        match self {
            Self::Half(half) => 32 + half.data.len(),
            Self::Steps(answers) => answers.iter().map(Self::length).sum(),
            _ => 64,
        }
    }

    pub(super) fn put<'a>(&self, writer: &'a mut Writer) -> &'a mut Writer {
        let text = |text: &str| text.as_bytes()[..text.len().min(TEXT_MAX)].to_vec();
        match self {
            Self::Hello(identity, usage, free, owned) => {
                let geometry = identity.geometry;
                writer
                    .u8(1)
                    .u32(geometry.block_size())
                    .u64(geometry.blocks())
                    .raw(&identity.role.layout().numbers())
                    .u8(identity.role.number());
                writer.raw(&identity.volume.0).raw(&identity.target.0);
                writer.u64(identity.epoch).u8(identity.standing.number());
                writer
                    .u64(identity.agreed)
                    .u64(identity.equal)
                    .u64(identity.room);
                put_members(writer, &identity.members);
                writer.u8(identity.wrapping.is_some().into());
                if let Some(wrapping) = &identity.wrapping {
                    put_wrapping(writer, wrapping);
                }
                put_trusted(writer, &identity.trusted);
                writer
                    .u64(usage.used)
                    .u64(usage.damaged)
                    .u64(*free)
                    .u8(u8::from(*owned))
            }
            Self::Held(held, next) => writer.u8(2).u64(*next).records(held, |held| {
                let mut bytes = [0; HELD_BYTES];
                bytes[..8].copy_from_slice(&held.block.to_le_bytes());
                bytes[8..16].copy_from_slice(&held.generation.to_le_bytes());
                bytes[16] = held.kind as u8;
                bytes[17] = if held.damaged {
                    DAMAGED
                } else {
                    u8::from(held.settled)
                };
                bytes
            }),
            Self::Half(half) => {
                writer.u8(3);
                put_half(writer, half)
            }
            Self::Changed(ranges, next) => {
                writer.u8(11).u64(*next).records(ranges, |(from, to)| {
                    let mut bytes = [0; 16];
                    bytes[..8].copy_from_slice(&from.to_le_bytes());
                    bytes[8..].copy_from_slice(&to.to_le_bytes());
                    bytes
                })
            }
            Self::Steps(answers) => {
                writer.u8(12).u64(answers.len() as u64);
                for answer in answers {
                    answer.put(writer);
                }
                writer
            }
            Self::All(steps, usage) => {
                let writer = writer.u8(16).u64(*steps as u64);
                writer.u64(usage.used).u64(usage.damaged)
            }
            Self::Done(usage) => writer.u8(4).u64(usage.used).u64(usage.damaged),
            Self::Absent => writer.u8(5),
            Self::Corrupt(fault) => writer.u8(6).blob(&text(fault)),
            Self::Full {
                wanted,
                free,
                capacity,
            } => writer.u8(7).u64(*wanted).u64(*free).u64(*capacity),
            Self::Failed(error) => writer.u8(8).blob(&text(error)),
            Self::Owned => writer.u8(9),
            Self::Superseded => writer.u8(10),
            Self::Layers(layers) => writer.u8(13).blob(&layers.to_bytes()),
            Self::Joined(line) => put_line(writer.u8(14), line),
            Self::Pull(piece) => put_piece(writer.u8(15), piece),
        }
    }

    /// Reads an answer. Its half blocks stay where they are.
    pub(super) fn parse(bytes: &Bytes) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("answer of a target", bytes);
        // The connection has looked at the number.
        reader.u64()?;
        let answer = Self::take(&mut reader, bytes, false)?;
        reader.end()?;
        Ok(answer)
    }

    /// Reads an answer, or that of a step.
    fn take(reader: &mut Reader<'_>, message: &Bytes, is_step: bool) -> Result<Self, BadMessage> {
        let [number] = reader.raw()?;
        if is_step && !(3..=10).contains(&number) {
            return Err(reader.fault("with the answer of no step"));
        }
        Ok(match number {
            1 => {
                let identity = take_identity(reader)?;
                let usage = take_usage(reader)?;
                let free = reader.u64()?;
                Self::Hello(Box::new(identity), usage, free, reader.raw::<1>()? != [0])
            }
            2 => {
                let next = reader.u64()?;
                Self::Held(take_held(reader)?, next)
            }
            3 => Self::Half(take_half(reader, message)?),
            4 => Self::Done(take_usage(reader)?),
            5 => Self::Absent,
            6 => Self::Corrupt(take_text(reader)?),
            7 => Self::Full {
                wanted: reader.u64()?,
                free: reader.u64()?,
                capacity: reader.u64()?,
            },
            8 => Self::Failed(take_text(reader)?),
            9 => Self::Owned,
            10 => Self::Superseded,
            11 => {
                let next = reader.u64()?;
                let word = |bytes: &[u8]| {
                    bytes
                        .iter()
                        .rev()
                        .fold(0, |word, byte| word << 8 | u64::from(*byte))
                };
                let ranges = reader.records::<16>()?;
                let ranges = ranges
                    .iter()
                    .map(|range| (word(&range[..8]), word(&range[8..])));
                Self::Changed(ranges.collect(), next)
            }
            12 => {
                let count = take_count(reader)?;
                let mut answers = Vec::with_capacity(count);
                for _ in 0..count {
                    answers.push(Self::take(reader, message, true)?);
                }
                Self::Steps(answers)
            }
            13 => Self::Layers(take_layers(reader)?),
            14 => Self::Joined(take_line(reader)?),
            15 => Self::Pull(take_piece(reader)?),
            16 => Self::All(take_count(reader)?, take_usage(reader)?),
            _ => return Err(reader.fault("of an unknown kind")),
        })
    }
}

fn take_layers(reader: &mut Reader<'_>) -> Result<Layers, BadMessage> {
    let fault = reader.fault("with a damaged table of layers");
    Layers::parse(reader.blob()?).ok_or(fault)
}

fn put_half<'a>(writer: &'a mut Writer, half: &Half) -> &'a mut Writer {
    put_half_head(writer, half).raw(&half.data)
}

/// A half block but for its bytes.
pub(super) fn put_half_head<'a>(writer: &'a mut Writer, half: &Half) -> &'a mut Writer {
    writer
        .u64(half.generation)
        .u8(half.kind as u8)
        .u32(half.stored)
        .u64(half.data.len() as u64)
}

fn take_half(reader: &mut Reader<'_>, message: &Bytes) -> Result<Half, BadMessage> {
    let generation = reader.u64()?;
    let [kind] = reader.raw()?;
    Ok(Half {
        generation,
        kind: Kind::of(kind).ok_or(reader.fault("with an unknown form"))?,
        stored: reader.u32()?,
        data: message.slice_ref(reader.blob()?),
    })
}

fn take_identity(reader: &mut Reader<'_>) -> Result<Identity, BadMessage> {
    let geometry = Geometry::new(reader.u32()?, reader.u64()?)
        .map_err(|_| reader.fault("with a wrong size"))?;
    let [data, parity, role] = reader.raw()?;
    let layout = Layout::new(data, parity).ok_or(reader.fault("with an unknown layout"))?;
    Ok(Identity {
        geometry,
        role: layout
            .role(role.into())
            .ok_or(reader.fault("with an unknown role"))?,
        volume: Id(reader.raw()?),
        target: Id(reader.raw()?),
        epoch: reader.u64()?,
        standing: {
            let [standing] = reader.raw()?;
            Standing::of(standing).ok_or(reader.fault("with an unknown standing"))?
        },
        agreed: reader.u64()?,
        equal: reader.u64()?,
        room: reader.u64()?,
        members: take_members(reader)?,
        wrapping: match reader.raw()? {
            [0] => None,
            [_] => Some(take_wrapping(reader)?),
        },
        trusted: take_trusted(reader)?,
    })
}

fn put_trusted(writer: &mut Writer, trusted: &Trusted) {
    let roles = u32::from(trusted.roles);
    writer.u64(trusted.epoch).u64(trusted.revision).u32(roles);
}

fn take_trusted(reader: &mut Reader<'_>) -> Result<Trusted, BadMessage> {
    let fault = reader.fault("with unknown roles");
    Ok(Trusted {
        epoch: reader.u64()?,
        revision: reader.u64()?,
        roles: u16::try_from(reader.u32()?).map_err(|_| fault)?,
    })
}

fn put_wrapping(writer: &mut Writer, wrapping: &Wrapping) {
    writer
        .u64(wrapping.revision)
        .raw(&wrapping.wrapped)
        .raw(&wrapping.check);
}

fn take_wrapping(reader: &mut Reader<'_>) -> Result<Wrapping, BadMessage> {
    Ok(Wrapping {
        revision: reader.u64()?,
        wrapped: reader.raw()?,
        check: reader.raw()?,
    })
}

fn put_members(writer: &mut Writer, members: &Members) {
    writer.u64(members.revision);
    for target in members.targets {
        writer.raw(&target.0);
    }
}

fn take_members(reader: &mut Reader<'_>) -> Result<Members, BadMessage> {
    Ok(Members {
        revision: reader.u64()?,
        targets: {
            let mut targets = [Id::default(); TARGETS_MAX];
            for target in &mut targets {
                *target = Id(reader.raw()?);
            }
            targets
        },
    })
}

const fn mark_number(mark: Mark) -> u8 {
    match mark {
        Mark::Owned => 0,
        Mark::Agreed => 1,
        Mark::Complete => 2,
        Mark::Equal => 3,
        Mark::Members(_) => 4,
        Mark::Wrapping(_) => 5,
        Mark::Trusted(_) => 6,
    }
}

fn take_mark(reader: &mut Reader<'_>) -> Result<Mark, BadMessage> {
    let [number] = reader.raw()?;
    Ok(match number {
        0 => Mark::Owned,
        1 => Mark::Agreed,
        2 => Mark::Complete,
        3 => Mark::Equal,
        4 => Mark::Members(take_members(reader)?),
        5 => Mark::Wrapping(take_wrapping(reader)?),
        6 => Mark::Trusted(take_trusted(reader)?),
        _ => return Err(reader.fault("with an unknown mark")),
    })
}

fn take_usage(reader: &mut Reader<'_>) -> Result<Usage, BadMessage> {
    Ok(Usage {
        used: reader.u64()?,
        damaged: reader.u64()?,
    })
}

fn take_held(reader: &mut Reader<'_>) -> Result<Vec<Held>, BadMessage> {
    let fault = reader.fault("with an unknown form");
    let parse = |bytes: &[u8; HELD_BYTES]| {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Kind::of(bytes[16]).map(|kind| Held {
            block: word(0),
            generation: word(8),
            kind,
            settled: bytes[17] == 1,
            damaged: bytes[17] == DAMAGED,
        })
    };
    let records = reader.records::<HELD_BYTES>()?;
    records
        .iter()
        .map(parse)
        .collect::<Option<_>>()
        .ok_or(fault)
}

fn take_text(reader: &mut Reader<'_>) -> Result<String, BadMessage> {
    Ok(String::from_utf8_lossy(reader.blob()?).into_owned())
}

#[cfg(test)]
pub(super) mod tests;
