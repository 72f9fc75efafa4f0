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
//! are complete. One DPU_RTS carries the blocks of one or several ranks of an SP for all ranks of another SP, including
//! blocks of length zero: a destination is complete when it has a block from each of its sources. One DPU_FIN answers
//! the whole DPU_RTS. Blocks shorter than the service's `direct_min` travel in the messages.
//!
//! The header of each message is the sender's [`Token`](super::token::Token): a peer cannot act for another peer.
//!
//! Messages of different lengths may overtake each other. The protocol does not rely on their order.

use super::token::Token;
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
}

impl Kind {
    /// Number of active message identifiers of a worker.
    pub(super) const COUNT: u16 = Self::HostFin as u16 + 1;

    /// The kind with this identifier.
    pub(super) fn from_id(id: u16) -> Option<Self> {
        [
            Self::Hello,
            Self::HostArrive,
            Self::DpuRts,
            Self::DpuFin,
            Self::HostFin,
        ]
        .into_iter()
        .find(|kind| *kind as u16 == id)
    }
}

/// One call on one communicator. All members number the calls identically.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Collective {
    /// The communicator's number. Its members agree on it.
    pub(super) communicator: u32,
    /// Sequence number of the call on this communicator, starting at 0.
    pub(super) sequence: u32,
}

impl std::fmt::Display for Collective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "call {} on communicator {}",
            self.sequence, self.communicator
        )
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
    /// `None` when no block is long enough for a device read.
    pub(super) send_memory: Option<Export>,
    pub(super) receive_memory: Option<Export>,
    /// One block per member, in any order.
    pub(super) sends: Vec<Block>,
    pub(super) receives: Vec<Block>,
    /// The bytes of the short blocks, in the order of `sends`.
    pub(super) short: Vec<u8>,
}

/// A block in an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OfferedBlock {
    /// Index of the source among the offer's parts.
    pub(super) part: u32,
    pub(super) destination: u32,
    /// Address in the source's address space.
    pub(super) address: u64,
    pub(super) length: u64,
}

/// An offer: blocks of some ranks of an SP for the ranks of another SP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DpuRts {
    pub(super) collective: Collective,
    /// Index of the offering SP in the table. The next field is that SP's number for the offer.
    pub(super) from: u32,
    pub(super) offer: u64,
    pub(super) parts: Vec<RtsPart>,
    /// The blocks of all parts, in the order of the parts.
    pub(super) blocks: Vec<OfferedBlock>,
    /// The bytes of the short blocks, in the order of `blocks`.
    pub(super) short: Vec<u8>,
}

/// A source of an offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RtsPart {
    pub(super) source: u32,
    /// Result of `ucp_rkey_pack`; empty when no block needs it.
    pub(super) rkey: Vec<u8>,
}

/// Serializes a DPU_RTS part by part without an intermediate copy: first all parts, then their short blocks.
#[derive(Debug)]
pub(super) struct RtsWriter {
    writer: Writer,
    short: Vec<u8>,
}

/// Reports that all blocks of an offer are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DpuFin {
    /// Index in the table of the SP that received the offer.
    pub(super) from: u32,
    /// The offering SP's number for the offer.
    pub(super) offer: u64,
}

/// A short block for the rank's receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delivered {
    /// Bytes from the start of the buffer.
    pub(super) offset: u64,
    pub(super) length: u64,
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
        reader.end()?;
        Ok(Self {
            from,
            greeting: (!greeting.rkey.is_empty()).then_some(greeting),
        })
    }
}

impl HostArrive {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        put_collective(&mut writer, self.collective);
        writer.u32(self.rank);
        put_export(&mut writer, self.send_memory.as_ref());
        put_export(&mut writer, self.receive_memory.as_ref());
        writer.records(&self.sends, put_block);
        writer.records(&self.receives, put_block);
        writer.blob(&self.short);
        writer.finish()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("HOST_ARRIVE", bytes);
        let arrive = Self {
            collective: get_collective(&mut reader)?,
            rank: reader.u32()?,
            send_memory: get_export(&mut reader)?,
            receive_memory: get_export(&mut reader)?,
            sends: get_blocks(&mut reader)?,
            receives: get_blocks(&mut reader)?,
            short: reader.blob()?.to_vec(),
        };
        reader.end()?;
        Ok(arrive)
    }
}

impl RtsWriter {
    /// Reserves space for this number of sources, this total number of blocks, and keys of up to `key_bytes`.
    pub(super) fn new(
        collective: Collective,
        from: u32,
        offer: u64,
        [parts, blocks, key_bytes]: [usize; 3],
    ) -> Self {
        let heads = parts * (PART_BYTES + key_bytes);
        let mut writer = Writer::with_capacity(64 + heads + blocks * BLOCK_BYTES);
        put_collective(&mut writer, collective);
        writer.u32(from).u64(offer).u64(parts as u64);
        Self {
            writer,
            short: Vec::new(),
        }
    }

    /// Appends a source's blocks. Their offsets are relative to `base` in the source's address space.
    pub(super) fn part(&mut self, source: u32, rkey: &[u8], base: u64, blocks: &[Block]) {
        self.writer.u32(source).blob(rkey);
        self.writer.records(blocks, |block| {
            // Short blocks do not use the address. The address of any other block lies in the buffer.
            let address = base.wrapping_add(block.offset);
            put_record(block.peer, address, block.length)
        });
    }

    /// Appends the bytes of the next part's short blocks.
    pub(super) fn short(&mut self, bytes: &[u8]) {
        self.short.extend_from_slice(bytes);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.writer.blob(&self.short);
        self.writer.finish()
    }
}

impl DpuRts {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("DPU_RTS", bytes);
        let collective = get_collective(&mut reader)?;
        let (from, offer) = (reader.u32()?, reader.u64()?);
        let mut blocks = Vec::with_capacity(bytes.len() / BLOCK_BYTES);
        let mut place = 0;
        let parts = reader.list(PART_BYTES, |reader| {
            let source = reader.u32()?;
            let rkey = reader.blob()?;
            if rkey.len() > PACKED_MAX {
                return Err(reader.fault("too long in a packed key"));
            }
            blocks.extend(reader.records()?.iter().map(|record| {
                let (destination, address, length) = get_record(record);
                OfferedBlock {
                    part: place,
                    destination,
                    address,
                    length,
                }
            }));
            place += 1;
            Ok(RtsPart {
                source,
                rkey: rkey.to_vec(),
            })
        })?;
        let short = reader.blob()?.to_vec();
        reader.end()?;
        Ok(Self {
            collective,
            from,
            offer,
            parts,
            blocks,
            short,
        })
    }
}

impl DpuFin {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(12);
        writer.u32(self.from).u64(self.offer);
        writer.finish()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("DPU_FIN", bytes);
        let fin = Self {
            from: reader.u32()?,
            offer: reader.u64()?,
        };
        reader.end()?;
        Ok(fin)
    }
}

impl HostFin {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(64 + 16 * self.short.len() + self.bytes.len());
        put_collective(&mut writer, self.collective);
        let (hits, misses) = self.aliases.unwrap_or_default();
        writer.u32(self.aliases.is_some().into());
        writer.u64(hits).u64(misses);
        writer.list(&self.short, |writer, block| {
            writer.u64(block.offset).u64(block.length);
        });
        writer.blob(&self.bytes);
        writer.finish()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("HOST_FIN", bytes);
        let collective = get_collective(&mut reader)?;
        let counted = reader.u32()? != 0;
        let aliases = (reader.u64()?, reader.u64()?);
        let short = reader.list(16, |reader| {
            Ok(Delivered {
                offset: reader.u64()?,
                length: reader.u64()?,
            })
        })?;
        let bytes = reader.blob()?.to_vec();
        let sum = short
            .iter()
            .try_fold(0u64, |sum, block| sum.checked_add(block.length));
        if sum != Some(bytes.len() as u64) {
            return Err(reader.fault("without as many bytes as its blocks have"));
        }
        reader.end()?;
        Ok(Self {
            collective,
            short,
            bytes,
            aliases: counted.then_some(aliases),
        })
    }
}

/// Maximum length of an exported handle or packed key. UCX's take several tens of bytes per device.
pub(super) const PACKED_MAX: usize = 4 << 10;

/// Size of a block on the wire.
const BLOCK_BYTES: usize = 20;

/// Minimum size of a part of an offer: its source and two lengths.
const PART_BYTES: usize = 20;

fn put_collective(writer: &mut Writer, collective: Collective) {
    writer.u32(collective.communicator).u32(collective.sequence);
}

fn get_collective(reader: &mut Reader<'_>) -> Result<Collective, BadMessage> {
    Ok(Collective {
        communicator: reader.u32()?,
        sequence: reader.u32()?,
    })
}

fn put_block(block: &Block) -> [u8; BLOCK_BYTES] {
    put_record(block.peer, block.offset, block.length)
}

fn get_blocks(reader: &mut Reader<'_>) -> Result<Vec<Block>, BadMessage> {
    let block = |record| {
        let (peer, offset, length) = get_record(record);
        Block {
            peer,
            offset,
            length,
        }
    };
    Ok(reader.records()?.iter().map(block).collect())
}

/// Serializes a block: the other rank, an offset or address, and the length.
fn put_record(rank: u32, place: u64, length: u64) -> [u8; BLOCK_BYTES] {
    let mut record = [0; BLOCK_BYTES];
    record[..4].copy_from_slice(&rank.to_le_bytes());
    record[4..12].copy_from_slice(&place.to_le_bytes());
    record[12..].copy_from_slice(&length.to_le_bytes());
    record
}

fn get_record(record: &[u8; BLOCK_BYTES]) -> (u32, u64, u64) {
    let (rank, rest) = record.split_first_chunk().expect("4 of 20 bytes");
    let (place, rest) = rest.split_first_chunk().expect("8 of 16 bytes");
    let length = rest.first_chunk().expect("8 bytes");
    (
        u32::from_le_bytes(*rank),
        u64::from_le_bytes(*place),
        u64::from_le_bytes(*length),
    )
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

pub(super) fn get_export(reader: &mut Reader<'_>) -> Result<Option<Export>, BadMessage> {
    let packed = reader.blob()?;
    if packed.len() > PACKED_MAX {
        return Err(reader.fault("too long in an exported handle"));
    }
    let export = Export {
        packed: packed.to_vec(),
        address: reader.u64()?,
        length: reader.u64()?,
    };
    Ok((!export.packed.is_empty()).then_some(export))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLLECTIVE: Collective = Collective {
        communicator: 3,
        sequence: u32::MAX,
    };

    /// Checks that a message survives a round trip and that every shorter form is refused.
    fn check<T: PartialEq + std::fmt::Debug>(
        message: &T,
        bytes: &[u8],
        parse: impl Fn(&[u8]) -> Result<T, BadMessage>,
    ) {
        assert_eq!(parse(bytes).as_ref(), Ok(message));
        for length in 0..bytes.len() {
            assert!(parse(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn messages_survive_the_wire() {
        for from in [From::Rank(7), From::Service(0)] {
            for address in [None, Some(1 << 47)] {
                let greeting = address.map(|address| Greeting {
                    rkey: vec![9; 40],
                    address,
                });
                let hello = Hello { from, greeting };
                check(&hello, &hello.to_bytes(), Hello::parse);
            }
        }
        let block = |peer| Block {
            peer,
            offset: 1 << 40,
            length: 5,
        };
        let arrive = HostArrive {
            collective: COLLECTIVE,
            rank: 9,
            send_memory: Some(Export {
                address: 0x7f00_0000_1000,
                length: 1 << 30,
                packed: vec![1, 2, 3],
            }),
            receive_memory: None,
            sends: vec![block(0), block(1)],
            receives: vec![block(2)],
            short: b"hello".to_vec(),
        };
        check(&arrive, &arrive.to_bytes(), HostArrive::parse);
        let mut writer = RtsWriter::new(COLLECTIVE, 1, 77, [2, 3, 40]);
        let sent = |length| Block {
            peer: 4,
            offset: 16,
            length,
        };
        writer.part(9, &[9; 40], 0x1000, &[sent(600)]);
        writer.part(10, &[], 0, &[sent(2), sent(3)]);
        writer.short(b"");
        writer.short(b"hello");
        let offered = |part, address, length| OfferedBlock {
            part,
            destination: 4,
            address,
            length,
        };
        let source = |source, rkey| RtsPart { source, rkey };
        let rts = DpuRts {
            collective: COLLECTIVE,
            from: 1,
            offer: 77,
            parts: vec![source(9, vec![9; 40]), source(10, Vec::new())],
            blocks: vec![
                offered(0, 0x1010, 600),
                offered(1, 16, 2),
                offered(1, 16, 3),
            ],
            short: b"hello".to_vec(),
        };
        check(&rts, &writer.finish(), DpuRts::parse);
        let fin = DpuFin { from: 2, offer: 77 };
        check(&fin, &fin.to_bytes(), DpuFin::parse);
        for aliases in [None, Some((0, 0)), Some((5, 6))] {
            let fin = HostFin {
                collective: COLLECTIVE,
                short: vec![Delivered {
                    offset: 3,
                    length: 3,
                }],
                bytes: vec![8; 3],
                aliases,
            };
            check(&fin, &fin.to_bytes(), HostFin::parse);
        }
    }

    #[test]
    fn identifiers_name_their_kinds() {
        for id in 0..Kind::COUNT {
            assert_eq!(Kind::from_id(id).map(|kind| kind as u16), Some(id));
        }
        assert_eq!(Kind::from_id(Kind::COUNT), None);
    }
}
