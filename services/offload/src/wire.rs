//! The active messages of a collective, with their senders and receivers.
//!
//! ```text
//! RANK s (source)        its SP                    SP of d                  RANK d (destination)
//!   | map, export          |                          |                       map, export |
//!   |---- HOST_ARRIVE ---->|                          |<-------- HOST_ARRIVE -------------|
//!   |                      | import, pack rkey        | import                            |
//!   |                      |-------- DPU_RTS -------->|                                   |
//!   |~~~~~~~~~~~~~~~ RDMA READ, posted by d's SP, s's memory to d's memory ~~~~~~~~~~~~~~>|
//!   |                      |<------- DPU_FIN ---------|                                   |
//!   |<----- HOST_FIN ------| unmap                    | unmap ------- HOST_FIN ---------->|
//! ```
//!
//! Every rank is source and destination: HOST_ARRIVE describes both sides of its call, and HOST_FIN follows when both
//! are complete. One DPU_RTS carries the blocks of one or several ranks of an SP for all ranks of another SP. A destination is
//! complete when it has the block of each source that it has named; empty blocks do not travel. A DPU_FIN answers one or
//! several whole DPU_RTS. Blocks shorter than the service's `direct_min` travel in the messages.
//!
//! Even collectives describe their blocks in [`runs`], so these messages do not grow with the members.
//!
//! The header of each message is the sender's [`Token`](super::token::Token): a peer cannot act for another peer.
//!
//! HOST_REDUCE stands for HOST_ARRIVE in an allreduce, and HOST_TREE in a broadcast or barrier. Its SP turns it into several
//! such exchanges, see `service::mover::reduce` and `service::mover::tree`.
//!
//! Messages of different lengths may overtake each other. The protocol does not rely on their order.

mod offer;
pub(super) mod runs;
mod tree;

pub(super) use tree::{DpuNote, Entry, HostTree, ROUNDS_MAX};

pub(super) use offer::{DpuFin, DpuRts, RtsPart, source_code};

use super::reduction::Reduction;
use super::token::Token;
use runs::{Run, Runs, put_runs, runs_of};
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};

/// Kind of a message. The discriminants are UCP's active message identifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Kind {
    /// Any to any, at connect: opens the UCP connection.
    Hello = 0,
    /// Rank to its SP.
    HostArrive = 1,
    /// Source's SP to destination's SP.
    DpuRts = 2,
    /// Destination's SP to source's SP: all blocks of that DPU_RTS are delivered.
    DpuFin = 3,
    /// SP to its rank: the call is complete and the buffers belong to the program again.
    HostFin = 4,
    /// Rank to its SP: an allreduce.
    HostReduce = 5,
    /// Rank to its SP: a broadcast or a barrier.
    HostTree = 6,
    /// SP to SP: all ranks of some SPs have entered a barrier.
    DpuNote = 7,
}

impl Kind {
    /// Number of active message identifiers of a worker.
    pub(super) const COUNT: u16 = Self::DpuNote as u16 + 1;

    /// The kind with this identifier.
    pub(super) fn from_id(id: u16) -> Option<Self> {
        const ALL: [Kind; 8] = [
            Kind::Hello,
            Kind::HostArrive,
            Kind::DpuRts,
            Kind::DpuFin,
            Kind::HostFin,
            Kind::HostReduce,
            Kind::HostTree,
            Kind::DpuNote,
        ];
        // Their identifiers count from 0.
        ALL.get(usize::from(id)).copied()
    }
}

/// One start of a call on one communicator. All members number the calls and the starts identically.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Collective {
    /// The communicator's number. Its members agree on it.
    pub(super) communicator: u64,
    /// Number of the call on this communicator, starting at 0, in the order of the initialisations.
    pub(super) sequence: u32,
    /// How often the call was started before. A persistent call starts several times, and the members may start two
    /// persistent calls in different orders.
    pub(super) start: u32,
    /// 0 for a call of a rank. An allreduce consists of steps between the SPs, which have the numbers from 1. A level of a
    /// broadcast has [`TREE_STEP`] and its number.
    pub(super) step: u32,
}

/// Bit of the steps that are levels of a broadcast.
pub(super) const TREE_STEP: u32 = 1 << 31;

impl Collective {
    /// Whether this is step 1 of a window of an allreduce.
    pub(super) fn is_scatter(self) -> bool {
        self.step % 2 == 1 && !self.is_level()
    }

    /// Whether this is a level of a broadcast.
    pub(super) fn is_level(self) -> bool {
        self.step & TREE_STEP != 0
    }
}

impl std::fmt::Display for Collective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "call {} on communicator {}",
            self.sequence, self.communicator
        )?;
        if self.start > 0 {
            write!(f, ", start {}", self.start)?;
        }
        match self.step {
            0 => Ok(()),
            step => write!(f, ", step {}", step & !TREE_STEP),
        }
    }
}

/// Length of a hello's header. Most of it is padding. The header is longer than a work request holds: UCX allocates the
/// buffers of longer messages, about 10 MB of registered memory, at the first such message. With the padding, that
/// message is the hello and not the first collective.
const HELLO_PADDING: usize = 1024;

/// The header of a hello.
pub(super) fn hello_header(token: Token) -> Vec<u8> {
    let mut header = token.0.to_vec();
    header.resize(HELLO_PADDING, 0);
    header
}

/// Length of a greeting, which SPs read before the first collective. A rank provides twice as much memory: one half to
/// read, one half to write. The length is far above those that UCX could copy with the CPU.
pub(super) const GREETING_BYTES: u64 = 4096;

/// Memory that an SP offers for a greeting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Greeting {
    /// Result of `ucp_rkey_pack`.
    pub(super) rkey: Vec<u8>,
    /// Address in the address space of the rank that provides the memory.
    pub(super) address: u64,
}

/// The first message on a UCP connection, in both directions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) from: From,
    /// Present from SP to SP.
    pub(super) greeting: Option<Greeting>,
}

/// The sender of a HELLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// A rank, by its number in the job.
    Rank(u32),
    /// An SP, by its index in the job's table.
    Service(u32),
}

/// A block of one side's buffer, for or from `peer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    /// The other rank, by its number in the job.
    pub(super) peer: u32,
    /// Bytes from the start of the buffer.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) length: u64,
}

/// A buffer that a rank has exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Export {
    /// Its first address, in the rank's address space.
    pub(super) address: u64,
    /// Length in bytes.
    pub(super) length: u64,
    /// Result of `ucp_memh_pack`.
    pub(super) packed: Vec<u8>,
}

/// A rank has entered a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostArrive {
    pub(super) collective: Collective,
    pub(super) rank: u32,
    /// Number of ranks of the same SP that enter the call. It is a hint: their blocks share offers.
    pub(super) together: u32,
    /// `None` when no block is long enough for a device read.
    pub(super) send_memory: Option<Export>,
    pub(super) receive_memory: Option<Export>,
    /// At most one block per rank, in any order. Empty ones do not travel.
    pub(super) sends: Vec<Block>,
    pub(super) receives: Vec<Block>,
    /// The bytes of the short blocks, in the order of `sends`.
    pub(super) short: Vec<u8>,
}

/// A rank has entered an allreduce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostReduce {
    pub(super) collective: Collective,
    pub(super) rank: u32,
    pub(super) reduction: Reduction,
    /// Count of the allreduces that the rank has started on this communicator before, the same at all members. `None` for
    /// a persistent call: the members may start those in different orders.
    pub(super) turn: Option<u32>,
    /// Number of earlier ordinary allreduces on this communicator that are not complete at the rank.
    pub(super) open: u32,
    /// Length of the vector in bytes.
    pub(super) length: u64,
    /// The communicator's ranks, by their numbers in the job. All members use the same order.
    pub(super) members: Vec<u32>,
    /// `None` in place, and for a short vector.
    pub(super) send_memory: Option<Export>,
    /// `None` for a short vector.
    pub(super) receive_memory: Option<Export>,
    /// The elements of a short vector.
    pub(super) short: Vec<u8>,
}

/// HOST_ARRIVE, as its bytes hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival<'a> {
    pub(super) collective: Collective,
    pub(super) rank: u32,
    pub(super) together: u32,
    pub(super) send_memory: Option<ExportRef<'a>>,
    pub(super) receive_memory: Option<ExportRef<'a>>,
    pub(super) sends: Blocks<'a>,
    pub(super) receives: Blocks<'a>,
    pub(super) short: &'a [u8],
}

/// An [`Export`] inside a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExportRef<'a> {
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) packed: &'a [u8],
}

/// Blocks inside a message. DPU_RTS repeats the records of HOST_ARRIVE unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocks<'a> {
    /// All offsets and lengths are below 2^32.
    Narrow(&'a [Narrow]),
    Wide(&'a [Wide]),
    Runs(Runs<'a>),
}

/// A block on the wire: the other rank, offset and length, of 32 bits each.
pub(super) type Narrow = [u8; 12];

/// A block on the wire: the other rank, then offset and length of 64 bits each.
pub(super) type Wide = [u8; 20];

/// Forms of blocks on the wire. A group is a form of offers: several sources with the same run of short blocks.
const NARROW: u8 = 0;
const WIDE: u8 = 1;
pub(super) const RUNS: u8 = 2;
pub(super) const GROUP: u8 = 3;

/// Bits of HOST_ARRIVE's first byte: it has memory to send from, and to receive in; then the forms of its blocks.
const SENDS: u8 = 1;
const RECEIVES: u8 = 2;
const SEND_FORM: u8 = 2;
const RECEIVE_FORM: u8 = 4;

/// A block on the wire, in one of its forms.
pub(super) trait Record: AsRef<[u8]> {
    const FORM: u8;

    fn block(&self) -> Block;
}

/// Short blocks for the rank's receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delivered {
    /// Place of the first block, from the start of the buffer, and distance to the next one.
    pub(super) offset: u64,
    pub(super) stride: u64,
    /// Length of each block, and number of blocks.
    pub(super) length: u64,
    pub(super) count: u32,
}

impl Delivered {
    /// One block.
    pub(super) fn one(offset: u64, length: u64) -> Self {
        Self {
            offset,
            stride: 0,
            length,
            count: 1,
        }
    }

    /// The blocks of a run.
    pub(super) fn all_of(run: &Run) -> Self {
        Self {
            offset: run.offset,
            stride: run.stride,
            length: run.length,
            count: run.count,
        }
    }

    /// Number of bytes; `None` beyond 64 bits.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.length.checked_mul(self.count.into())
    }

    /// Offsets of the blocks.
    pub(super) fn offsets(self) -> impl Iterator<Item = u64> {
        (0..u64::from(self.count))
            .map(move |at| self.offset.wrapping_add(self.stride.wrapping_mul(at)))
    }
}

/// Reports that a rank's call is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostFin {
    pub(super) collective: Collective,
    pub(super) short: Vec<Delivered>,
    /// Data of the short blocks; the sum of their lengths.
    pub(super) bytes: Vec<u8>,
    /// The SP's alias lookups so far, hits and misses; `None` without the library's counters.
    pub(super) aliases: Option<(u64, u64)>,
}

impl Export {
    pub(super) fn view(&self) -> ExportRef<'_> {
        ExportRef {
            address: self.address,
            length: self.length,
            packed: &self.packed,
        }
    }
}

impl ExportRef<'_> {
    pub(super) fn to_export(self) -> Export {
        Export {
            address: self.address,
            length: self.length,
            packed: self.packed.to_vec(),
        }
    }
}

impl Block {
    /// The block in the narrow form, if it fits.
    pub(super) fn narrow(&self) -> Option<Narrow> {
        let offset = u32::try_from(self.offset).ok()?;
        let length = u32::try_from(self.length).ok()?;
        let mut record: Narrow = [0; 12];
        for (place, word) in record.chunks_exact_mut(4).zip([self.peer, offset, length]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Some(record)
    }

    /// The block in the wide form.
    pub(super) fn wide(&self) -> Wide {
        let mut record: Wide = [0; 20];
        record[..4].copy_from_slice(&self.peer.to_le_bytes());
        record[4..12].copy_from_slice(&self.offset.to_le_bytes());
        record[12..].copy_from_slice(&self.length.to_le_bytes());
        record
    }
}

impl Record for Narrow {
    const FORM: u8 = NARROW;

    fn block(&self) -> Block {
        // Constant indices: the compiler makes three loads of this.
        let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3] = *self;
        Block {
            peer: u32::from_le_bytes([a0, a1, a2, a3]),
            offset: u32::from_le_bytes([b0, b1, b2, b3]).into(),
            length: u32::from_le_bytes([c0, c1, c2, c3]).into(),
        }
    }
}

impl Record for Wide {
    const FORM: u8 = WIDE;

    fn block(&self) -> Block {
        let (peer, rest) = self.split_first_chunk().expect("4 of 20 bytes");
        let (offset, rest) = rest.split_first_chunk().expect("8 of 16 bytes");
        let length = rest.first_chunk().expect("8 bytes");
        Block {
            peer: u32::from_le_bytes(*peer),
            offset: u64::from_le_bytes(*offset),
            length: u64::from_le_bytes(*length),
        }
    }
}

impl Blocks<'_> {
    /// Number of blocks.
    pub(super) fn len(self) -> usize {
        match self {
            Self::Narrow(records) => records.len(),
            Self::Wide(records) => records.len(),
            Self::Runs(runs) => runs.blocks(),
        }
    }

    /// Number of bytes in the message.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Narrow(records) => size_of_val(records),
            Self::Wide(records) => size_of_val(records),
            Self::Runs(runs) => runs.bytes(),
        }
    }

    /// The blocks. Loops over many blocks match on the form instead, once.
    #[cfg(test)]
    pub(super) fn to_vec(self) -> Vec<Block> {
        match self {
            Self::Narrow(records) => records.iter().map(Record::block).collect(),
            Self::Wide(records) => records.iter().map(Record::block).collect(),
            Self::Runs(runs) => blocks_of(runs).collect(),
        }
    }
}

/// The blocks of runs.
pub(super) fn blocks_of(runs: Runs<'_>) -> impl Iterator<Item = Block> + Clone + '_ {
    runs.iter()
        .flat_map(|run| (0..run.count).map(move |at| run.block(at)))
}

impl Hello {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self.from {
            From::Rank(rank) => writer.u32(0).u32(rank),
            From::Service(index) => writer.u32(1).u32(index),
        };
        // A greeting with an empty key means none: UCX's keys are never empty.
        let none = Greeting::default();
        let greeting = self.greeting.as_ref().unwrap_or(&none);
        writer.blob(&greeting.rkey).u64(greeting.address);
        writer.finish()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("HELLO", bytes);
        let from = match (reader.u32()?, reader.u32()?) {
            (0, rank) => From::Rank(rank),
            (1, index) => From::Service(index),
            _ => return Err(reader.fault("of an unknown sender")),
        };
        let greeting = Greeting {
            rkey: reader.blob()?.to_vec(),
            address: reader.u64()?,
        };
        if greeting.rkey.len() > PACKED_MAX {
            return Err(reader.fault("too long in a packed key"));
        }
        reader.end()?;
        Ok(Self {
            from,
            greeting: (!greeting.rkey.is_empty()).then_some(greeting),
        })
    }
}

impl HostArrive {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (sends, receives) = (form_of(&self.sends), form_of(&self.receives));
        let mut writer = Writer::default();
        let has = |export: &Option<Export>, bit| if export.is_some() { bit } else { 0 };
        writer.u8(has(&self.send_memory, SENDS)
            | has(&self.receive_memory, RECEIVES)
            | sends.form() << SEND_FORM
            | receives.form() << RECEIVE_FORM);
        put_collective(&mut writer, self.collective);
        writer.u32(self.rank).varint(self.together.into());
        for export in [&self.send_memory, &self.receive_memory] {
            if export.is_some() {
                put_export(&mut writer, export.as_ref());
            }
        }
        put_form(&mut writer, &sends, &self.sends);
        put_form(&mut writer, &receives, &self.receives);
        writer.varint(self.short.len() as u64).raw(&self.short);
        writer.finish()
    }
}

impl<'a> Arrival<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("HOST_ARRIVE", bytes);
        let [bits] = reader.raw()?;
        let form = |at: u8| bits >> at & 3;
        if bits >> (RECEIVE_FORM + 2) != 0 {
            return Err(reader.fault("with unknown bits"));
        }
        let export = |reader: &mut Reader<'a>, bit: u8| match bits & bit {
            0 => Ok(None),
            _ => get_export(reader),
        };
        let arrival = Self {
            collective: get_collective(&mut reader)?,
            rank: reader.u32()?,
            together: u32::try_from(reader.varint()?)
                .map_err(|_| reader.fault("with too many ranks"))?,
            send_memory: export(&mut reader, SENDS)?,
            receive_memory: export(&mut reader, RECEIVES)?,
            sends: get_form(&mut reader, form(SEND_FORM))?,
            receives: get_form(&mut reader, form(RECEIVE_FORM))?,
            short: {
                let length = reader.varint()?;
                reader.bytes(length)?
            },
        };
        reader.end()?;
        Ok(arrival)
    }
}

impl HostReduce {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (element, operation) = self.reduction.codes();
        let mut writer = Writer::default();
        put_collective(&mut writer, self.collective);
        writer.u32(self.rank).u32(element).u32(operation);
        writer.u32(self.turn.is_some().into());
        writer.u32(self.turn.unwrap_or_default()).u32(self.open);
        writer.u64(self.length);
        writer.list(&self.members, |writer, member| {
            writer.u32(*member);
        });
        put_export(&mut writer, self.send_memory.as_ref());
        put_export(&mut writer, self.receive_memory.as_ref());
        writer.blob(&self.short);
        writer.finish()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("HOST_REDUCE", bytes);
        let (collective, rank) = (get_collective(&mut reader)?, reader.u32()?);
        let reduction = Reduction::from_codes(reader.u32()?, reader.u32()?);
        let reduction = reduction.ok_or_else(|| reader.fault("with an unknown operation"))?;
        let has_turn = reader.u32()? != 0;
        let turn = Some(reader.u32()?).filter(|_| has_turn);
        let open = reader.u32()?;
        let length = reader.u64()?;
        if !length.is_multiple_of(reduction.element_size() as u64) {
            return Err(reader.fault("with a part of an element"));
        }
        let message = Self {
            collective,
            rank,
            reduction,
            turn,
            open,
            length,
            members: reader.list(4, Reader::u32)?,
            send_memory: get_export(&mut reader)?.map(ExportRef::to_export),
            receive_memory: get_export(&mut reader)?.map(ExportRef::to_export),
            short: reader.blob()?.to_vec(),
        };
        reader.end()?;
        Ok(message)
    }
}

impl HostFin {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.to_bytes_in(Vec::new())
    }

    /// The message, in memory that is free.
    pub(super) fn to_bytes_in(&self, memory: Vec<u8>) -> Vec<u8> {
        let mut writer = Writer::over(memory, 64 + 8 * self.short.len() + self.bytes.len());
        put_collective(&mut writer, self.collective);
        writer.u8(self.aliases.is_some().into());
        if let Some((hits, misses)) = self.aliases {
            writer.u64(hits).u64(misses);
        }
        writer.varint(self.short.len() as u64);
        for block in &self.short {
            writer.varint(block.offset).varint(block.stride);
            writer.varint(block.length).varint(block.count.into());
        }
        writer.raw(&self.bytes);
        writer.finish()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("HOST_FIN", bytes);
        let collective = get_collective(&mut reader)?;
        let [counted] = reader.raw()?;
        let aliases = match counted {
            0 => None,
            1 => Some((reader.u64()?, reader.u64()?)),
            _ => return Err(reader.fault("with unknown bits")),
        };
        let count = reader.varint()?;
        // Each takes four bytes or more.
        if count > reader.rest().len() as u64 / 4 {
            return Err(reader.fault("too short"));
        }
        let mut short = Vec::new();
        for _ in 0..count {
            short.push(Delivered {
                offset: reader.varint()?,
                stride: reader.varint()?,
                length: reader.varint()?,
                count: u32::try_from(reader.varint()?)
                    .map_err(|_| reader.fault("with too many blocks"))?,
            });
        }
        let bytes = reader.rest().to_vec();
        let sum = short
            .iter()
            .try_fold(0u64, |sum, block| sum.checked_add(block.bytes()?));
        if sum != Some(bytes.len() as u64) {
            return Err(reader.fault("without as many bytes as its blocks have"));
        }
        if short.iter().any(|block| block.length == 0) {
            return Err(reader.fault("with empty blocks"));
        }
        Ok(Self {
            collective,
            short,
            bytes,
            aliases,
        })
    }
}

/// Maximum length of an exported handle or packed key. UCX's take several tens of bytes per device.
pub(super) const PACKED_MAX: usize = 4 << 10;

/// Size of a part of an offer without its blocks and its key: form, source, base, and two lengths.
pub(super) const PART_BYTES: usize = 29;

fn put_collective(writer: &mut Writer, collective: Collective) {
    writer.u64(collective.communicator).u32(collective.sequence);
    writer.u32(collective.start).u32(collective.step);
}

fn get_collective(reader: &mut Reader<'_>) -> Result<Collective, BadMessage> {
    Ok(Collective {
        communicator: reader.u64()?,
        sequence: reader.u32()?,
        start: reader.u32()?,
        step: reader.u32()?,
    })
}

/// Blocks as a message holds them, for tests: their form and records.
#[cfg(test)]
pub(super) fn blocks_on_wire(blocks: &[Block]) -> Vec<u8> {
    let form = form_of(blocks);
    let mut writer = Writer::default();
    writer.u8(form.form());
    put_form(&mut writer, &form, blocks);
    writer.finish()
}

/// The blocks of [`blocks_on_wire`].
#[cfg(test)]
pub(super) fn blocks_from_wire(bytes: &[u8]) -> Blocks<'_> {
    let mut reader = Reader::new("blocks", bytes);
    let [form] = reader.raw().expect("made by blocks_on_wire()");
    get_form(&mut reader, form).expect("made by blocks_on_wire()")
}

/// The form in which blocks travel.
enum Form {
    Narrow,
    Wide,
    Runs(Vec<Run>),
}

impl Form {
    fn form(&self) -> u8 {
        match self {
            Self::Narrow => NARROW,
            Self::Wide => WIDE,
            Self::Runs(_) => RUNS,
        }
    }
}

/// The shortest form that can hold the blocks.
fn form_of(blocks: &[Block]) -> Form {
    if let Some(runs) = runs_of(blocks) {
        return Form::Runs(runs);
    }
    match blocks.iter().all(|block| block.narrow().is_some()) {
        true => Form::Narrow,
        false => Form::Wide,
    }
}

/// Serializes the blocks that are not empty.
fn put_form(writer: &mut Writer, form: &Form, blocks: &[Block]) {
    let filled = || blocks.iter().filter(|block| block.length > 0);
    match form {
        Form::Runs(runs) => {
            let mut bytes = Vec::new();
            put_runs(&mut bytes, runs);
            writer.raw(&bytes);
        }
        Form::Narrow => {
            writer.varint(filled().count() as u64);
            for block in filled() {
                writer.raw(&block.narrow().expect("all are narrow"));
            }
        }
        Form::Wide => {
            writer.varint(filled().count() as u64);
            for block in filled() {
                writer.raw(&block.wide());
            }
        }
    }
}

fn get_form<'a>(reader: &mut Reader<'a>, form: u8) -> Result<Blocks<'a>, BadMessage> {
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

/// An absent export has no bytes: the exports of UCX are never empty.
pub(super) fn put_export(writer: &mut Writer, export: Option<&Export>) {
    match export {
        Some(export) => {
            writer.blob(&export.packed);
            writer.u64(export.address).u64(export.length)
        }
        None => writer.blob(&[]).u64(0).u64(0),
    };
}

pub(super) fn get_export<'a>(reader: &mut Reader<'a>) -> Result<Option<ExportRef<'a>>, BadMessage> {
    let packed = reader.blob()?;
    if packed.len() > PACKED_MAX {
        return Err(reader.fault("too long in an exported handle"));
    }
    let export = ExportRef {
        packed,
        address: reader.u64()?,
        length: reader.u64()?,
    };
    Ok((!export.packed.is_empty()).then_some(export))
}

#[cfg(test)]
mod tests;
