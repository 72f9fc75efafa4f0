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
//! In a gather of many SPs the DPU_RTS reach the root's SP in DPU_RELAYs along a tree of the SPs, and in a scatter those of the
//! root's SP leave it so.
//!
//! HOST_REDUCE stands for HOST_ARRIVE in a reduction, and HOST_TREE in a broadcast or barrier. Its SP turns it into several
//! such exchanges, see `service::mover::reduce` and `service::mover::tree`.
//!
//! Messages of different lengths may overtake each other. The protocol does not rely on their order.

mod block;
mod key;
mod list;
mod message;
mod offer;
mod parts;
mod reduce;
mod relay;
pub(super) mod runs;
mod tree;

pub(super) use block::{Block, Narrow, Record, Wide};
pub(super) use key::PackedKey;
pub(super) use list::{BlockList, Members};
pub(super) use message::Message;
pub(super) use offer::{
    DpuFin, DpuRts, GROUP, KEYED, OFFER_REST, PART_BYTES, RtsPart, WHOLE, offer_head, offer_start,
    source_code,
};
pub(super) use parts::{
    Blocks, Collective, Export, ExportRef, Name, PACKED_MAX, RANKS_MAX, REDUCE_STEPS, RUNS,
    TREE_STEP, blocks_of, bytes_of, get_export, put_export,
};
#[cfg(test)]
pub(super) use parts::{blocks_from_wire, blocks_on_wire};
pub(super) use reduce::{Contribution, HostReduce, Target, TargetRef};
pub(super) use relay::{DpuRelay, DpuRelayed, Route, RouteRef};
pub(super) use tree::{DpuNote, Entry, HostTree, ROUNDS_MAX};

use super::token::Token;
use parts::{collective_of, get_collective, get_form, put_collective};
use runs::Run;
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
    /// Rank to its SP: an allreduce, a reduce or a reduce-scatter.
    HostReduce = 5,
    /// Rank to its SP: a broadcast or a barrier.
    HostTree = 6,
    /// SP to SP: all ranks of some SPs have entered a barrier.
    DpuNote = 7,
    /// SP to SP: DPU_RTS of several SPs on their way to one, or of one on their way to several.
    DpuRelay = 8,
    /// SP to SP: all blocks of that DPU_RELAY are delivered.
    DpuRelayed = 9,
}

impl Kind {
    /// Number of active message identifiers of a worker.
    pub(super) const COUNT: u16 = Self::DpuRelayed as u16 + 1;

    /// The kind with this identifier.
    pub(super) fn from_id(id: u16) -> Option<Self> {
        const ALL: [Kind; 10] = [
            Kind::Hello,
            Kind::HostArrive,
            Kind::DpuRts,
            Kind::DpuFin,
            Kind::HostFin,
            Kind::HostReduce,
            Kind::HostTree,
            Kind::DpuNote,
            Kind::DpuRelay,
            Kind::DpuRelayed,
        ];
        // Their identifiers count from 0.
        ALL.get(usize::from(id)).copied()
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
    pub(super) sends: BlockList,
    pub(super) receives: BlockList,
    /// The bytes of the short blocks, in the order of `sends`.
    pub(super) short: Vec<u8>,
    pub(super) route: Route,
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
    pub(super) route: RouteRef<'a>,
}

/// Capacity for the parts of HOST_ARRIVE whose lengths do not follow from its blocks. UCX's handles take some tens of bytes.
const HEAD: usize = 256;

/// Bytes of HOST_ARRIVE before its rank: the bits, and the call; and where its rank is in the rest.
pub(super) const ARRIVAL_REST: usize = 21;
pub(super) const ARRIVAL_RANK: std::ops::Range<usize> = 0..4;

/// Bits of HOST_ARRIVE's first byte: it has memory to send from, and to receive in; then the forms of its blocks, and its
/// route.
const SENDS: u8 = 1;
const RECEIVES: u8 = 2;
const SEND_FORM: u8 = 2;
const RECEIVE_FORM: u8 = 4;
const ROUTE: u8 = 6;

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
    /// Length of the message that a receive has got, if it is not that of the receive.
    pub(super) message: Option<u64>,
}

/// Bits of the byte behind HOST_FIN's call: alias lookups follow, and the length of a message.
const COUNTED: u8 = 1;
const OF_MESSAGE: u8 = 2;

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
        let (sends, receives) = (self.sends.form(), self.receives.form());
        let blocks = self.sends.bytes(sends) + self.receives.bytes(receives);
        let mut writer = Writer::with_capacity(HEAD + blocks + self.short.len());
        let has = |export: &Option<Export>, bit| if export.is_some() { bit } else { 0 };
        writer.u8(has(&self.send_memory, SENDS)
            | has(&self.receive_memory, RECEIVES)
            | sends << SEND_FORM
            | receives << RECEIVE_FORM
            | self.route.code() << ROUTE);
        put_collective(&mut writer, self.collective);
        writer.u32(self.rank).varint(self.together.into());
        for export in [&self.send_memory, &self.receive_memory]
            .into_iter()
            .flatten()
        {
            put_export(&mut writer, export);
        }
        self.sends.put(&mut writer, sends);
        self.receives.put(&mut writer, receives);
        self.route.put(&mut writer);
        writer.varint(self.short.len() as u64).raw(&self.short);
        writer.finish()
    }
}

impl<'a> Arrival<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("HOST_ARRIVE", bytes);
        let [bits] = reader.raw()?;
        let form = |at: u8| bits >> at & 3;
        let export = |reader: &mut Reader<'a>, bit: u8| match bits & bit {
            0 => Ok(None),
            _ => get_export(reader).map(Some),
        };
        let arrival = Self {
            collective: get_collective(&mut reader)?,
            rank: reader.u32()?,
            together: reader.number32("with too many ranks"),
            send_memory: export(&mut reader, SENDS)?,
            receive_memory: export(&mut reader, RECEIVES)?,
            sends: get_form(&mut reader, form(SEND_FORM))?,
            receives: get_form(&mut reader, form(RECEIVE_FORM))?,
            route: RouteRef::get(&mut reader, bits >> ROUTE)?,
            short: {
                let length = reader.number();
                reader.piece(length)
            },
        };
        reader.end()?;
        Ok(arrival)
    }
}

impl Arrival<'_> {
    /// The entry without its message, if it needs nothing of it: all handles are announced, and each side is one run at most.
    pub(super) fn lasting(&self) -> Option<Arrival<'static>> {
        let export = |export: ExportRef<'_>| {
            let named = export.packed.is_empty() && export.name.is_some();
            named.then_some(ExportRef {
                packed: &[],
                address: export.address,
                length: export.length,
                name: export.name,
            })
        };
        let blocks = |blocks| match blocks {
            Blocks::Runs(runs) => runs.lasting().map(Blocks::Runs),
            Blocks::Narrow(_) | Blocks::Wide(_) => None,
        };
        if !self.short.is_empty() || !matches!(self.route, RouteRef::Direct) {
            return None;
        }
        let (send_memory, receive_memory) = (
            self.send_memory.map(export),
            self.receive_memory.map(export),
        );
        if send_memory == Some(None) || receive_memory == Some(None) {
            return None;
        }
        Some(Arrival {
            collective: self.collective,
            rank: self.rank,
            together: self.together,
            send_memory: send_memory.flatten(),
            receive_memory: receive_memory.flatten(),
            sends: blocks(self.sends)?,
            receives: blocks(self.receives)?,
            short: &[],
            route: RouteRef::Direct,
        })
    }

    /// The entry is of the call in the first bytes of another message now.
    #[inline]
    pub(super) fn set_call(&mut self, head: &[u8; ARRIVAL_REST]) {
        let (_, call) = head.split_first().expect("21 bytes");
        self.collective = collective_of(call.first_chunk().expect("20 bytes"));
    }
}

impl HostFin {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.to_bytes_in(Vec::new())
    }

    /// The message of a call without short blocks, in memory that is free.
    #[inline]
    pub(super) fn without_blocks(
        collective: Collective,
        aliases: Option<(u64, u64)>,
        memory: Vec<u8>,
    ) -> Vec<u8> {
        let mut writer = Writer::over(memory, 64);
        let (hits, misses) = aliases.unwrap_or_default();
        let mut bytes = [0; 38];
        bytes[..20].copy_from_slice(&bytes_of(collective));
        bytes[20] = aliases.is_some().into();
        bytes[21..29].copy_from_slice(&hits.to_le_bytes());
        bytes[29..37].copy_from_slice(&misses.to_le_bytes());
        // The last byte is the number of blocks.
        match aliases {
            Some(_) => writer.raw(&bytes),
            None => writer.raw(&bytes[..20]).raw(&[0, 0]),
        };
        writer.finish()
    }

    /// The message, in memory that is free.
    pub(super) fn to_bytes_in(&self, memory: Vec<u8>) -> Vec<u8> {
        let mut writer = Writer::over(memory, 64 + 8 * self.short.len() + self.bytes.len());
        put_collective(&mut writer, self.collective);
        let counted = if self.aliases.is_some() { COUNTED } else { 0 };
        let of_message = if self.message.is_some() {
            OF_MESSAGE
        } else {
            0
        };
        writer.u8(counted | of_message);
        if let Some((hits, misses)) = self.aliases {
            writer.u64(hits).u64(misses);
        }
        if let Some(length) = self.message {
            writer.varint(length);
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
        let [bits] = reader.raw()?;
        if bits & !(COUNTED | OF_MESSAGE) != 0 {
            return Err(reader.fault("with unknown bits"));
        }
        let aliases = match bits & COUNTED {
            0 => None,
            _ => Some((reader.u64()?, reader.u64()?)),
        };
        let message = match bits & OF_MESSAGE {
            0 => None,
            _ => Some(reader.varint()?),
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
            message,
        })
    }
}

#[cfg(test)]
mod tests;
