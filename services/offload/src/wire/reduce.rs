//! HOST_REDUCE, a rank's part in an allreduce, a reduce or a reduce-scatter.

use super::block::Block;
use super::list::{BlockList, Members};
use super::parts::{
    Blocks, Collective, Export, ExportRef, get_collective, get_export, get_form, put_collective,
    put_export,
};
use crate::reduction::Reduction;
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};

/// Bits of the first byte: the rank has memory to send from, and to receive in; the call has a turn. Then the form of the
/// members, and the target.
const SENDS: u8 = 1;
const RECEIVES: u8 = 2;
const TURN: u8 = 4;
const FORM: u8 = 3;
const TARGET: u8 = 5;

/// The members that get the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Each gets all of it.
    All,
    /// One gets all of it.
    Root(u32),
    /// Each gets a range of it, which is a block for it.
    Ranges(Vec<Block>),
}

/// A rank has entered a reduction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostReduce {
    pub(crate) collective: Collective,
    pub(crate) rank: u32,
    pub(crate) reduction: Reduction,
    /// Count of the reductions that the rank has started on this communicator before, the same at all members. `None` for
    /// a persistent call: the members may start those in different orders.
    pub(crate) turn: Option<u32>,
    /// Number of earlier ordinary reductions on this communicator that are not complete at the rank.
    pub(crate) open: u32,
    /// Length of the vector in bytes.
    pub(crate) length: u64,
    /// Length of the whole vector, of which other lanes have the other parts; 0 with one lane.
    pub(crate) whole: u64,
    /// The communicator's ranks, by their numbers in the job, in any order.
    pub(crate) members: Members,
    pub(crate) target: Target,
    /// `None` in place, and for a short vector.
    pub(crate) send_memory: Option<Export>,
    /// `None` for a short vector, and for a rank that gets nothing.
    pub(crate) receive_memory: Option<Export>,
    /// The elements of a short vector.
    pub(crate) short: Vec<u8>,
}

/// The members that get the result, inside a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetRef<'a> {
    All,
    Root(u32),
    /// In ascending order of the ranks.
    Ranges(Blocks<'a>),
}

/// HOST_REDUCE, as its bytes hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contribution<'a> {
    pub(crate) collective: Collective,
    pub(crate) rank: u32,
    pub(crate) reduction: Reduction,
    pub(crate) turn: Option<u32>,
    pub(crate) open: u32,
    pub(crate) length: u64,
    pub(crate) whole: u64,
    /// Blocks for the members, in ascending order of the ranks if they are runs.
    pub(crate) members: Blocks<'a>,
    pub(crate) target: TargetRef<'a>,
    pub(crate) send_memory: Option<ExportRef<'a>>,
    pub(crate) receive_memory: Option<ExportRef<'a>>,
    pub(crate) short: &'a [u8],
}

/// Blocks in ascending order of their ranks.
fn sorted(mut blocks: Vec<Block>) -> Vec<Block> {
    blocks.sort_unstable_by_key(|block| block.peer);
    blocks
}

impl HostReduce {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let members = self.members.sorted();
        let form = members.form();
        let mut writer = Writer::default();
        let has = |is_there: bool, bit| if is_there { bit } else { 0 };
        let target = match self.target {
            Target::All => 0,
            Target::Root(_) => 1,
            Target::Ranges(_) => 2,
        };
        writer.u8(has(self.send_memory.is_some(), SENDS)
            | has(self.receive_memory.is_some(), RECEIVES)
            | has(self.turn.is_some(), TURN)
            | form << FORM
            | target << TARGET);
        put_collective(&mut writer, self.collective);
        let (element, operation) = self.reduction.codes();
        writer.u32(self.rank);
        for code in [element, operation, self.turn.unwrap_or_default(), self.open] {
            writer.varint(code.into());
        }
        writer.varint(self.length).varint(self.whole);
        members.put(&mut writer, form);
        match &self.target {
            Target::All => {}
            Target::Root(root) => drop(writer.varint((*root).into())),
            Target::Ranges(ranges) => {
                let ranges = BlockList::from(sorted(ranges.clone()));
                let form = ranges.form();
                writer.u8(form);
                ranges.put(&mut writer, form);
            }
        }
        for export in [&self.send_memory, &self.receive_memory]
            .into_iter()
            .flatten()
        {
            put_export(&mut writer, export);
        }
        writer.varint(self.short.len() as u64).raw(&self.short);
        writer.finish()
    }
}

impl<'a> Contribution<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("HOST_REDUCE", bytes);
        let [bits] = reader.raw()?;
        let number = |reader: &mut Reader<'a>| {
            u32::try_from(reader.varint()?)
                .map_err(|_| reader.fault("with a number beyond 32 bits"))
        };
        let export = |reader: &mut Reader<'a>, bit: u8| match bits & bit {
            0 => Ok(None),
            _ => get_export(reader).map(Some),
        };
        let (collective, rank) = (get_collective(&mut reader)?, reader.u32()?);
        let reduction = Reduction::from_codes(number(&mut reader)?, number(&mut reader)?);
        let reduction = reduction.ok_or_else(|| reader.fault("with an unknown operation"))?;
        let turn = number(&mut reader)?;
        let open = number(&mut reader)?;
        let (length, whole) = (reader.varint()?, reader.varint()?);
        if !length.is_multiple_of(reduction.element_size() as u64) {
            return Err(reader.fault("with a part of an element"));
        }
        let contribution = Self {
            collective,
            rank,
            reduction,
            turn: (bits & TURN != 0).then_some(turn),
            open,
            length,
            whole,
            members: get_form(&mut reader, bits >> FORM & 3)?,
            target: match bits >> TARGET {
                0 => TargetRef::All,
                1 => TargetRef::Root(number(&mut reader)?),
                2 => {
                    let [form] = reader.raw()?;
                    TargetRef::Ranges(get_form(&mut reader, form)?)
                }
                _ => return Err(reader.fault("with a result for nobody")),
            },
            send_memory: export(&mut reader, SENDS)?,
            receive_memory: export(&mut reader, RECEIVES)?,
            short: {
                let length = reader.varint()?;
                reader.bytes(length)?
            },
        };
        reader.end()?;
        Ok(contribution)
    }
}
