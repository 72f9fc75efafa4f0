//! DPU_RTS, an offer from an SP to another one, and its answer DPU_FIN.

use super::block::{NARROW, WIDE};
use super::parts::{Blocks, Collective, PACKED_MAX, RANKS_MAX, get_collective, get_form};
use super::runs::{Run, Runs};
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};

/// A form of blocks in offers: several sources with the same run of short blocks.
pub(crate) const GROUP: u8 = 3;

/// Size of a part of an offer without its blocks and its key: form, source, base, and two lengths.
pub(crate) const PART_BYTES: usize = 29;

/// An offer: blocks of some ranks of an SP for the ranks of another SP, as its bytes hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DpuRts<'a> {
    pub(crate) collective: Collective,
    /// Index of the offering SP in the table. The next field is that SP's number for the offer.
    pub(crate) from: u32,
    pub(crate) offer: u64,
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
    pub(crate) rkey: &'a [u8],
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
        let (from, offer) = (reader.u32()?, reader.u64()?);
        let count = reader.u32()?;
        for _ in 0..count {
            let [form] = reader.raw()?;
            match form {
                GROUP => get_group(&mut reader, &mut parts)?,
                form => parts.push(get_part(&mut reader, form)?),
            }
            if parts.len() > SOURCES_MAX {
                return Err(reader.fault("with more sources than a job has ranks"));
            }
        }
        let short = reader.blob()?;
        reader.end()?;
        Ok(Self {
            collective,
            from,
            offer,
            parts,
            short,
        })
    }
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
    let part = RtsPart {
        source,
        base,
        blocks,
        rkey: reader.blob()?,
    };
    if part.blocks.len() == 0 {
        return Err(reader.fault("without blocks of one of its sources"));
    }
    if part.rkey.len() > PACKED_MAX {
        return Err(reader.fault("too long in a packed key"));
    }
    Ok(part)
}

/// Reads a group: a part for each of its sources.
fn get_group<'a>(reader: &mut Reader<'a>, parts: &mut Vec<RtsPart<'a>>) -> Result<(), BadMessage> {
    let sources = reader.varint()?;
    let run = Run::read(reader)?;
    // Each block of a group has bytes in the message, so these bound the number of blocks.
    if run.length == 0 {
        return Err(reader.fault("with empty blocks of several sources"));
    }
    let blocks = Blocks::Runs(Runs::one(run));
    if sources > SOURCES_MAX as u64 {
        return Err(reader.fault("with more sources than a job has ranks"));
    }
    let mut source = 0u32;
    for _ in 0..sources {
        let code = reader.varint()?;
        let number =
            u32::try_from(code).map_err(|_| reader.fault("of a source that does not exist"))?;
        source = source.wrapping_add((number >> 1) ^ (number & 1).wrapping_neg());
        parts.push(RtsPart {
            source,
            base: 0,
            blocks,
            rkey: &[],
        });
    }
    Ok(())
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
