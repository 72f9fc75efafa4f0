//! DPU_RELAY, offers that SPs pass on along a tree, its answer DPU_RELAYED, and what a rank says of the tree.

use super::list::Members;
use super::parts::{Blocks, Collective, get_collective, get_form, put_collective};
use xgvmi_daemon::codec::{BadMessage, Reader, Writer};

/// How the offers of a call reach other SPs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// One by one.
    Direct,
    /// Along a tree to the SP of `root`: every block of the call is for this rank.
    Gather { root: u32, members: Members },
    /// Along a tree from the SP of this rank: every block of the call is of this rank.
    Scatter,
}

/// A [`Route`] inside a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteRef<'a> {
    Direct,
    Gather {
        root: u32,
        /// Blocks for the members, in ascending order of the ranks if they are runs.
        members: Blocks<'a>,
    },
    Scatter,
}

const DIRECT: u8 = 0;
const GATHER: u8 = 1;
const SCATTER: u8 = 2;

impl Route {
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Direct => DIRECT,
            Self::Gather { .. } => GATHER,
            Self::Scatter => SCATTER,
        }
    }

    pub(super) fn put(&self, writer: &mut Writer) {
        if let Self::Gather { root, members } = self {
            let members = members.sorted();
            let form = members.form();
            writer.varint((*root).into()).u8(form);
            members.put(writer, form);
        }
    }
}

impl<'a> RouteRef<'a> {
    pub(super) fn get(reader: &mut Reader<'a>, code: u8) -> Result<Self, BadMessage> {
        match code {
            DIRECT => Ok(Self::Direct),
            GATHER => {
                let root = u32::try_from(reader.varint()?);
                let root = root.map_err(|_| reader.fault("of no root"))?;
                let [form] = reader.raw()?;
                let members = get_form(reader, form)?;
                Ok(Self::Gather { root, members })
            }
            SCATTER => Ok(Self::Scatter),
            _ => Err(reader.fault("with an unknown route")),
        }
    }
}

/// Offers on their way along a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DpuRelay<'a> {
    pub(crate) collective: Collective,
    /// Index of the sending SP in the table. The next field is that SP's number for this message.
    pub(crate) from: u32,
    pub(crate) id: u64,
    /// The SP of a gather's root, to which all offers go.
    pub(crate) root: Option<u32>,
    /// DPU_RTS, each with the SP that gets it. Those of a scatter are in the order of the tree, the receiver's own first.
    pub(crate) offers: Vec<(u32, &'a [u8])>,
}

/// Reports that all blocks of a [`DpuRelay`] are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DpuRelayed {
    /// Index of the SP that received it, and the sender's number.
    pub(crate) from: u32,
    pub(crate) id: u64,
}

/// Bytes of a message without its offers, and of an offer without its bytes.
const HEAD: usize = 45;
const OFFER: usize = 12;

impl<'a> DpuRelay<'a> {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let bytes = self.offers.iter().map(|(_, offer)| OFFER + offer.len());
        let mut writer = Writer::with_capacity(HEAD + bytes.sum::<usize>());
        put_collective(&mut writer, self.collective);
        writer.u32(self.from).u64(self.id);
        writer.u8(self.root.is_some().into());
        if let Some(root) = self.root {
            writer.u32(root);
        }
        for (to, offer) in &self.offers {
            writer.u32(*to).blob(offer);
        }
        writer.finish()
    }

    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("DPU_RELAY", bytes);
        let collective = get_collective(&mut reader)?;
        let (from, id) = (reader.u32()?, reader.u64()?);
        let [is_gather] = reader.raw()?;
        let root = match is_gather {
            0 => None,
            1 => Some(reader.u32()?),
            _ => return Err(reader.fault("with unknown bits")),
        };
        // An offer takes 12 bytes or more, and 24 in the vector.
        let mut offers = Vec::new();
        while !reader.rest().is_empty() {
            offers.push((reader.u32()?, reader.blob()?));
        }
        Ok(Self {
            collective,
            from,
            id,
            root,
            offers,
        })
    }
}

impl DpuRelayed {
    pub(crate) fn to_bytes_in(self, memory: Vec<u8>) -> Vec<u8> {
        let mut writer = Writer::over(memory, 12);
        writer.u32(self.from).u64(self.id);
        writer.finish()
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut reader = Reader::new("DPU_RELAYED", bytes);
        let relayed = Self {
            from: reader.u32()?,
            id: reader.u64()?,
        };
        reader.end()?;
        Ok(relayed)
    }
}
