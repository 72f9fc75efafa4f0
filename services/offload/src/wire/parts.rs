//! Parts of several messages: the call, exported memory, and lists of blocks in their shortest form.

use super::block::{Block, NARROW, Narrow, Record, WIDE, Wide};
#[cfg(test)]
use super::list::BlockList;
use super::message::Message;
use super::runs::Runs;
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};

/// Maximum number of ranks of a job: the table of all ranks is one frame.
pub(crate) const RANKS_MAX: u32 = Message::RANKS;

/// One start of a call on one communicator. All members number the calls and the starts identically.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Collective {
    /// The communicator's number. Its members agree on it.
    pub(crate) communicator: u64,
    /// Number of the call on this communicator, starting at 0, in the order of the initialisations.
    pub(crate) sequence: u32,
    /// How often the call was started before. A persistent call starts several times, and the members may start two
    /// persistent calls in different orders.
    pub(crate) start: u32,
    /// 0 for a call of a rank. A reduction consists of steps of the SPs, which have the numbers from 1. A level of a
    /// broadcast has [`TREE_STEP`] and its number.
    pub(crate) step: u32,
}

/// Steps of a window of a reduction.
pub(crate) const REDUCE_STEPS: u32 = 3;

/// Bit of the steps that are levels of a broadcast.
pub(crate) const TREE_STEP: u32 = 1 << 31;

impl Collective {
    /// Whether this is a step of a window of a reduction that gets its blocks in memory of the SP.
    pub(crate) fn is_scatter(self) -> bool {
        !self.step.is_multiple_of(REDUCE_STEPS) && !self.is_level()
    }

    /// Whether this is a level of a broadcast.
    pub(crate) fn is_level(self) -> bool {
        self.step & TREE_STEP != 0
    }
}

impl std::fmt::Display for Collective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match Message::of(self.communicator) {
            Some(of) => write!(f, "message {} {of}", self.sequence)?,
            None => write!(
                f,
                "call {} on communicator {}",
                self.sequence, self.communicator
            )?,
        }
        if self.start > 0 {
            write!(f, ", start {}", self.start)?;
        }
        match self.step {
            0 => Ok(()),
            step => write!(f, ", step {}", step & !TREE_STEP),
        }
    }
}

/// A buffer that a rank has exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Export {
    /// Its first address, in the rank's address space.
    pub(crate) address: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Result of `ucp_memh_pack`. Empty if the SP has the import of this name.
    pub(crate) packed: Vec<u8>,
    pub(crate) name: Option<Name>,
}

/// The name of an export, under which the rank's SP keeps the import for later calls.
///
/// A rank uses a number again, with the next generation, when no call with the old one is under way. It leaves the bytes of
/// the handle out when a call that had them is complete: messages may overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    /// Below the number of imports that the SP keeps for a rank.
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// An [`Export`] inside a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExportRef<'a> {
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) packed: &'a [u8],
    pub(crate) name: Option<Name>,
}

/// Blocks inside a message. DPU_RTS repeats the records of HOST_ARRIVE unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocks<'a> {
    /// All offsets and lengths are below 2^32.
    Narrow(&'a [Narrow]),
    Wide(&'a [Wide]),
    Runs(Runs<'a>),
}

/// A form of blocks on the wire: runs.
pub(crate) const RUNS: u8 = 2;

impl Export {
    pub(crate) fn view(&self) -> ExportRef<'_> {
        ExportRef {
            address: self.address,
            length: self.length,
            packed: &self.packed,
            name: self.name,
        }
    }
}

impl ExportRef<'_> {
    pub(crate) fn to_export(self) -> Export {
        Export {
            address: self.address,
            length: self.length,
            packed: self.packed.to_vec(),
            name: self.name,
        }
    }
}

impl Blocks<'_> {
    /// Number of blocks.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Narrow(records) => records.len(),
            Self::Wide(records) => records.len(),
            Self::Runs(runs) => runs.blocks(),
        }
    }

    /// The rank of the first block.
    pub(crate) fn peer(self) -> Option<u32> {
        match self {
            Self::Narrow(records) => records.first().map(|record| record.block().peer),
            Self::Wide(records) => records.first().map(|record| record.block().peer),
            Self::Runs(runs) => (runs.blocks() > 0).then(|| runs.first().peer),
        }
    }

    /// Number of bytes in the message.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Narrow(records) => size_of_val(records),
            Self::Wide(records) => size_of_val(records),
            Self::Runs(runs) => runs.bytes(),
        }
    }

    /// The blocks. Loops over many blocks match on the form instead, once.
    #[cfg(test)]
    pub(crate) fn to_vec(self) -> Vec<Block> {
        match self {
            Self::Narrow(records) => records.iter().map(Record::block).collect(),
            Self::Wide(records) => records.iter().map(Record::block).collect(),
            Self::Runs(runs) => blocks_of(runs).collect(),
        }
    }
}

/// The blocks of runs.
pub(crate) fn blocks_of(runs: Runs<'_>) -> impl Iterator<Item = Block> + Clone + '_ {
    runs.iter()
        .flat_map(|run| (0..run.count).map(move |at| run.block(at)))
}

/// Maximum length of an exported handle or packed key. UCX's take several tens of bytes per device.
pub(crate) const PACKED_MAX: usize = 4 << 10;

pub(crate) fn put_collective(writer: &mut Writer, collective: Collective) {
    writer.raw(&bytes_of(collective));
}

#[inline]
pub(crate) fn bytes_of(collective: Collective) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&collective.communicator.to_le_bytes());
    bytes[8..12].copy_from_slice(&collective.sequence.to_le_bytes());
    bytes[12..16].copy_from_slice(&collective.start.to_le_bytes());
    bytes[16..].copy_from_slice(&collective.step.to_le_bytes());
    bytes
}

/// The call in the bytes of [`put_collective`].
#[inline]
pub(crate) fn collective_of(bytes: &[u8; 20]) -> Collective {
    // Constant indices: the compiler makes four loads of this.
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    Collective {
        communicator: u64::from(word(0)) | u64::from(word(4)) << 32,
        sequence: word(8),
        start: word(12),
        step: word(16),
    }
}

#[inline]
pub(crate) fn get_collective(reader: &mut Reader<'_>) -> Result<Collective, BadMessage> {
    let bytes: [u8; 20] = reader.raw()?;
    Ok(collective_of(&bytes))
}

/// Blocks as a message holds them, for tests: their form and records.
#[cfg(test)]
pub(crate) fn blocks_on_wire(blocks: &[Block]) -> Vec<u8> {
    let list = BlockList::from(blocks.to_vec());
    let mut writer = Writer::default();
    writer.u8(list.form());
    list.put(&mut writer, list.form());
    writer.finish()
}

/// The blocks of [`blocks_on_wire`].
#[cfg(test)]
pub(crate) fn blocks_from_wire(bytes: &[u8]) -> Blocks<'_> {
    let mut reader = Reader::new("blocks", bytes);
    let [form] = reader.raw().expect("made by blocks_on_wire()");
    get_form(&mut reader, form).expect("made by blocks_on_wire()")
}

#[inline]
pub(crate) fn get_form<'a>(reader: &mut Reader<'a>, form: u8) -> Result<Blocks<'a>, BadMessage> {
    fn records<'a, const N: usize>(reader: &mut Reader<'a>) -> Result<&'a [[u8; N]], BadMessage> {
        let bytes = reader.varint()?.saturating_mul(N as u64);
        Ok(reader.bytes(bytes)?.as_chunks::<N>().0)
    }
    match form {
        NARROW => Ok(Blocks::Narrow(records(reader)?)),
        WIDE => Ok(Blocks::Wide(records(reader)?)),
        RUNS => Ok(Blocks::Runs(Runs::read(reader)?)),
        _ => Err(reader.fault("with blocks of an unknown form")),
    }
}

/// The length of the handle, and a bit that says whether a name follows.
pub(crate) fn put_export(writer: &mut Writer, export: &Export) {
    let length = export.packed.len() as u64;
    writer.varint(length << 1 | u64::from(export.name.is_some()));
    if let Some(name) = export.name {
        writer.varint(name.slot.into()).u32(name.generation);
    }
    writer.raw(&export.packed);
    writer.u64(export.address).u64(export.length);
}

#[inline]
pub(crate) fn get_export<'a>(reader: &mut Reader<'a>) -> Result<ExportRef<'a>, BadMessage> {
    let head = reader.number();
    let length = head >> 1;
    if length > PACKED_MAX as u64 {
        return Err(reader.fault("too long in an exported handle"));
    }
    let name = match head & 1 {
        0 if length == 0 => return Err(reader.fault("without an exported handle")),
        0 => None,
        _ => Some(Name {
            slot: reader.number32("with a name that does not exist"),
            generation: u32::from_le_bytes(reader.fixed()),
        }),
    };
    let export = ExportRef {
        packed: reader.piece(length),
        address: u64::from_le_bytes(reader.fixed()),
        length: u64::from_le_bytes(reader.fixed()),
        name,
    };
    reader.sound()?;
    Ok(export)
}
