//! HOST_TREE, a rank's part in a broadcast or a barrier, and DPU_NOTE, a message of a barrier between SPs.

use super::list::Members;
use super::parts::{
    Blocks, Collective, Export, ExportRef, get_collective, get_export, get_form, put_collective,
    put_export,
};
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};

/// Bits of the first byte: the rank has memory; the call is a barrier. The form of the members follows.
const MEMORY: u8 = 1;
const BARRIER: u8 = 2;
const FORM: u8 = 4;

/// Maximum number of rounds of a barrier: a job has fewer than 2^16 SPs.
pub(crate) const ROUNDS_MAX: u32 = 16;

/// A rank has entered a broadcast or a barrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostTree {
    pub(crate) collective: Collective,
    pub(crate) rank: u32,
    /// The rank that has the data; of a barrier, any member.
    pub(crate) root: u32,
    pub(crate) is_barrier: bool,
    /// The communicator's ranks in any order.
    pub(crate) members: Members,
    /// `None` if the data is short.
    pub(crate) memory: Option<Export>,
    /// Length of the data in bytes.
    pub(crate) length: u64,
    /// Length of all data, of which other lanes have the other parts; 0 with one lane.
    pub(crate) whole: u64,
    /// The bytes of short data, from the root.
    pub(crate) short: Vec<u8>,
}

/// HOST_TREE, as its bytes hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) collective: Collective,
    pub(crate) rank: u32,
    pub(crate) root: u32,
    pub(crate) is_barrier: bool,
    /// Blocks for the members, in ascending order of the ranks if they are runs.
    pub(crate) members: Blocks<'a>,
    pub(crate) memory: Option<ExportRef<'a>>,
    pub(crate) length: u64,
    pub(crate) whole: u64,
    pub(crate) short: &'a [u8],
}

impl HostTree {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let members = self.members.sorted();
        let form = members.form();
        let mut writer = Writer::default();
        let memory = if self.memory.is_some() { MEMORY } else { 0 };
        let barrier = if self.is_barrier { BARRIER } else { 0 };
        writer.u8(memory | barrier | form << FORM);
        put_collective(&mut writer, self.collective);
        writer.u32(self.rank).varint(self.root.into());
        members.put(&mut writer, form);
        if let Some(memory) = &self.memory {
            put_export(&mut writer, memory);
        }
        writer.varint(self.length).varint(self.whole);
        writer.varint(self.short.len() as u64).raw(&self.short);
        writer.finish()
    }
}

impl<'a> Entry<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("HOST_TREE", bytes);
        let [bits] = reader.raw()?;
        let form = bits >> FORM;
        if bits & !(MEMORY | BARRIER) != form << FORM {
            return Err(reader.fault("with unknown bits"));
        }
        let entry = Self {
            collective: get_collective(&mut reader)?,
            rank: reader.u32()?,
            root: u32::try_from(reader.varint()?).map_err(|_| reader.fault("of no root"))?,
            is_barrier: bits & BARRIER != 0,
            members: get_form(&mut reader, form)?,
            memory: match bits & MEMORY {
                0 => None,
                _ => Some(get_export(&mut reader)?),
            },
            length: reader.varint()?,
            whole: reader.varint()?,
            short: {
                let length = reader.varint()?;
                reader.bytes(length)?
            },
        };
        reader.end()?;
        Ok(entry)
    }
}

/// All ranks of some SPs have entered a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DpuNote {
    /// Its step is the round, from 0.
    pub(crate) collective: Collective,
    /// Index of the sending SP in the table.
    pub(crate) from: u32,
}

impl DpuNote {
    pub(crate) fn to_bytes_in(self, memory: Vec<u8>) -> Vec<u8> {
        let mut writer = Writer::over(memory, 24);
        put_collective(&mut writer, self.collective);
        writer.u32(self.from);
        writer.finish()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("DPU_NOTE", bytes);
        let note = Self {
            collective: get_collective(&mut reader)?,
            from: reader.u32()?,
        };
        if note.collective.step >= ROUNDS_MAX {
            return Err(reader.fault("of a round that does not exist"));
        }
        reader.end()?;
        Ok(note)
    }
}
