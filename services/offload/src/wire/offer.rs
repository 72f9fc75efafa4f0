//! DPU_RTS, an offer from an SP to another one, and its answer DPU_FIN.

use super::block::{NARROW, WIDE};
use super::key::{LONG_KEY, PackedKey};
use super::parts::{
    Blocks, Collective, PACKED_MAX, RANKS_MAX, collective_of, get_collective, get_form,
};
use super::runs::{Run, Runs};
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};

/// Forms of blocks in offers: several sources with the same run of short blocks, or of blocks for the device.
pub(crate) const GROUP: u8 = 3;
pub(crate) const KEYED: u8 = 4;

/// Bit of an offer's number of parts: the length of a whole vector follows.
pub(crate) const WHOLE: u32 = 1 << 31;

/// Size of a part of an offer without its blocks and its key: form, source, base, and two lengths.
pub(crate) const PART_BYTES: usize = 29;

/// An offer: blocks of some ranks of an SP for the ranks of another SP, as its bytes hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DpuRts<'a> {
    pub(crate) collective: Collective,
    /// Index of the offering SP in the table. The next field is that SP's number for the offer.
    pub(crate) from: u32,
    pub(crate) offer: u64,
    /// Length of the whole vector of which the blocks are a part; 0 if they are no part.
    pub(crate) whole: u64,
    pub(crate) parts: Vec<RtsPart<'a>>,
    /// The bytes of the short blocks, in the order of the blocks.
    pub(crate) short: &'a [u8],
}

/// The blocks of one source of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RtsPart<'a> {
    pub(crate) source: u32,
    /// Address of the source's buffer in its address space. The offsets of the blocks are relative to it.
    pub(crate) base: u64,
    pub(crate) blocks: Blocks<'a>,
    /// Result of `ucp_rkey_pack`; empty when no block needs it.
    pub(crate) rkey: PackedKey<'a>,
}

/// Reports that all blocks of some offers are delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DpuFin {
    /// Index in the table of the SP that received the offers.
    pub(crate) from: u32,
    /// The offering SP's numbers for the offers.
    pub(crate) offers: Vec<u64>,
}

impl<'a> DpuRts<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, BadMessage> {
        Self::parse_into(bytes, Vec::new())
    }

    /// Like [`DpuRts::parse`], with an empty vector for the parts.
    pub(crate) fn parse_into(
        bytes: &'a [u8],
        mut parts: Vec<RtsPart<'a>>,
    ) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("DPU_RTS", bytes);
        let collective = get_collective(&mut reader)?;
        let from = u32::from_le_bytes(reader.fixed());
        let offer = u64::from_le_bytes(reader.fixed());
        let count = u32::from_le_bytes(reader.fixed());
        let whole = match count & WHOLE {
            0 => 0,
            _ => u64::from_le_bytes(reader.fixed()),
        };
        reader.sound()?;
        let count = count & !WHOLE;
        for _ in 0..count {
            let [form] = reader.raw()?;
            match form {
                GROUP => get_group(&mut reader, &mut parts)?,
                KEYED => get_keyed(&mut reader, &mut parts)?,
                form => parts.push(get_part(&mut reader, form)?),
            }
            if parts.len() > SOURCES_MAX {
                return Err(reader.fault(MANY_SOURCES));
            }
        }
        let short = reader.blob()?;
        reader.end()?;
        Ok(Self {
            collective,
            from,
            offer,
            whole,
            parts,
            short,
        })
    }
}

/// Bytes of an offer before the rest that repeats: the call, the SP, and the number.
pub(crate) const OFFER_REST: usize = 32;

/// The call of an offer, its SP and number, and the rest.
#[inline]
pub(crate) fn offer_start(bytes: &[u8]) -> Option<(Collective, (u32, u64), &[u8])> {
    let (call, more) = bytes.split_first_chunk()?;
    let (from, more) = more.split_first_chunk()?;
    let (number, rest) = more.split_first_chunk()?;
    let key = (u32::from_le_bytes(*from), u64::from_le_bytes(*number));
    Some((collective_of(call), key, rest))
}

/// The call and the number of an offer.
pub(crate) fn offer_head(bytes: &[u8]) -> Option<(Collective, u64)> {
    let mut reader = Reader::new("DPU_RTS", bytes);
    let collective = get_collective(&mut reader).ok()?;
    reader.u32().ok()?;
    Some((collective, reader.u64().ok()?))
}

/// Maximum number of sources of an offer.
const SOURCES_MAX: usize = RANKS_MAX as usize;

fn get_part<'a>(reader: &mut Reader<'a>, form: u8) -> Result<RtsPart<'a>, BadMessage> {
    let (source, base) = (reader.u32()?, reader.u64()?);
    let blocks = match form {
        NARROW => Blocks::Narrow(reader.records()?),
        WIDE => Blocks::Wide(reader.records()?),
        _ => get_form(reader, form)?,
    };
    let rkey = reader.blob()?;
    if blocks.len() == 0 {
        return Err(reader.fault("without blocks of one of its sources"));
    }
    if rkey.len() > PACKED_MAX {
        return Err(reader.fault(LONG_KEY));
    }
    Ok(RtsPart {
        source,
        base,
        blocks,
        rkey: PackedKey::whole(rkey),
    })
}

/// Reads the number of sources of a group, and their run.
fn get_head(reader: &mut Reader<'_>) -> Result<(u32, Run), BadMessage> {
    let sources = reader.number();
    let run = Run::read(reader)?;
    // Each short block of a group has bytes in the message, so these bound the number of blocks.
    if run.length == 0 {
        return Err(reader.fault("with empty blocks of several sources"));
    }
    let sources = u32::try_from(sources).ok();
    let sources = sources.filter(|sources| *sources <= RANKS_MAX);
    let sources = sources.ok_or_else(|| reader.fault(MANY_SOURCES))?;
    Ok((sources, run))
}

const MANY_SOURCES: &str = "with more sources than a job has ranks";

/// Reads a group: a part for each of its sources. Equally spaced ones have their distance, and others a code each.
fn get_group<'a>(reader: &mut Reader<'a>, parts: &mut Vec<RtsPart<'a>>) -> Result<(), BadMessage> {
    let (sources, run) = get_head(reader)?;
    let bytes = run
        .length
        .checked_mul(run.count.into())
        .and_then(|bytes| bytes.checked_mul(sources.into()));
    if bytes.is_none_or(|bytes| bytes > reader.rest().len() as u64) {
        return Err(reader.fault("without the bytes of blocks of several sources"));
    }
    let step = get_source(reader);
    let first = if step > 0 { get_source(reader) } else { 0 };
    reader.sound()?;
    let mut source = 0;
    for at in 0..sources {
        source = match step {
            0 => decoded(source, reader),
            _ => first.wrapping_add(step.wrapping_mul(at)),
        };
        parts.push(RtsPart {
            source,
            base: 0,
            blocks: Blocks::Runs(Runs::one(run)),
            rkey: PackedKey::default(),
        });
    }
    reader.sound()
}

/// Reads a group whose blocks the device reads: each source has the address of its buffer, and its key.
fn get_keyed<'a>(reader: &mut Reader<'a>, parts: &mut Vec<RtsPart<'a>>) -> Result<(), BadMessage> {
    let (sources, run) = get_head(reader)?;
    let length = reader.number();
    let first = reader.piece(length);
    if first.len() > PACKED_MAX {
        return Err(reader.fault(LONG_KEY));
    }
    // Each takes twelve bytes or more.
    let most = reader.rest().len() / 12;
    if sources as usize > most {
        return Err(reader.fault("too short"));
    }
    parts.reserve(sources as usize);
    let mut source = 0;
    for _ in 0..sources {
        source = decoded(source, reader);
        parts.push(RtsPart {
            source,
            base: u64::from_le_bytes(reader.fixed()),
            blocks: Blocks::Runs(Runs::one(run)),
            rkey: PackedKey::read(reader, first)?,
        });
    }
    reader.sound()
}

#[inline]
fn get_source(reader: &mut Reader<'_>) -> u32 {
    reader.number32("of a source that does not exist")
}

/// The source after `last`.
#[inline]
fn decoded(last: u32, reader: &mut Reader<'_>) -> u32 {
    let number = get_source(reader);
    last.wrapping_add((number >> 1) ^ (number & 1).wrapping_neg())
}

/// The distance between two sources of a group, as a small number for a small distance of either sign.
pub(crate) fn source_code(last: u32, source: u32) -> u64 {
    let distance = source.wrapping_sub(last).cast_signed();
    ((distance << 1) ^ (distance >> 31)).cast_unsigned().into()
}

impl DpuFin {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        Self::to_bytes_in(self.from, &self.offers, Vec::new())
    }

    /// The message, in memory that is free.
    pub(crate) fn to_bytes_in(from: u32, offers: &[u64], memory: Vec<u8>) -> Vec<u8> {
        let mut writer = Writer::over(memory, 4 + 8 * offers.len());
        writer.u32(from);
        for offer in offers {
            writer.u64(*offer);
        }
        writer.finish()
    }

    /// The SP that sends the message, and the numbers of the offers.
    pub(crate) fn read(bytes: &[u8]) -> Result<(u32, impl Iterator<Item = u64> + '_), BadMessage> {
        let mut reader = Reader::new("DPU_FIN", bytes);
        let from = reader.u32()?;
        let (offers, rest) = reader.rest().as_chunks::<8>();
        if !rest.is_empty() || offers.is_empty() {
            return Err(reader.fault("with a part of an offer's number"));
        }
        Ok((from, offers.iter().map(|word| u64::from_le_bytes(*word))))
    }

    /// The message with its numbers in a vector.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let (from, offers) = Self::read(bytes)?;
        let offers = offers.collect();
        Ok(Self { from, offers })
    }
}
