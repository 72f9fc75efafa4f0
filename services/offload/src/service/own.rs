//! The blocks of a rank that arrives for one SP, and those for ranks of its own SP.

use crate::draft::RtsDraft;
use crate::wire::runs::{Run, Runs};
use crate::wire::{Blocks, Record, RtsPart};

/// The blocks of a rank for ranks of this SP.
#[derive(Debug, Default)]
pub(in crate::service) struct Own {
    /// Records, unless the blocks are runs.
    bytes: Vec<u8>,
    runs: Vec<Run>,
    pub(in crate::service) short: Vec<u8>,
    pub(in crate::service) form: Form,
    blocks: usize,
    is_direct: bool,
}

/// Form of [`Own::bytes`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum Form {
    #[default]
    Narrow,
    Wide,
    Runs,
}

/// The blocks of a rank for one SP.
#[derive(Debug, Default)]
pub(in crate::service) struct Part {
    pub(in crate::service) runs: Vec<Run>,
    pub(in crate::service) short: Vec<u8>,
}

impl Own {
    /// Capacity that is kept.
    const KEPT: usize = 16 << 10;

    pub(in crate::service) fn clear(&mut self) {
        for bytes in [&mut self.bytes, &mut self.short] {
            bytes.clear();
            bytes.shrink_to(Self::KEPT);
        }
        self.runs.clear();
        (self.blocks, self.is_direct) = (0, false);
    }

    /// Whether a block needs the key.
    pub(in crate::service) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Number of blocks.
    pub(in crate::service) fn len(&self) -> usize {
        self.blocks
    }

    pub(in crate::service) fn add(&mut self, record: &[u8], short: Option<&[u8]>) {
        self.bytes.extend_from_slice(record);
        self.blocks += 1;
        match short {
            Some(short) => self.short.extend_from_slice(short),
            None => self.is_direct = true,
        }
    }

    pub(in crate::service) fn add_runs(&mut self, part: &Part, direct_min: u64) {
        for run in &part.runs {
            self.blocks += run.count as usize;
            self.is_direct |= run.length >= direct_min;
        }
        self.runs.extend_from_slice(&part.runs);
        self.short.extend_from_slice(&part.short);
    }

    pub(in crate::service) fn blocks(&self) -> Blocks<'_> {
        match self.form {
            Form::Narrow => Blocks::Narrow(self.bytes.as_chunks::<12>().0),
            Form::Wide => Blocks::Wide(self.bytes.as_chunks::<20>().0),
            Form::Runs => Blocks::Runs(Runs::of(&self.runs)),
        }
    }

    /// Appends the blocks to an offer.
    pub(in crate::service) fn draft(
        &self,
        draft: &mut RtsDraft,
        part: RtsPart<'_>,
        rkey: &[u8],
        direct_min: u64,
    ) {
        fn all<R: Record>(
            own: &Own,
            records: &[R],
            draft: &mut RtsDraft,
            part: RtsPart<'_>,
            rkey: &[u8],
            direct_min: u64,
        ) {
            draft.begin::<R>(part.source, part.base);
            let mut short = &own.short[..];
            for record in records {
                let length = record.block().length;
                // The bytes were divided by these lengths.
                let data = (length < direct_min).then(|| {
                    let length = usize::try_from(length).unwrap_or(0).min(short.len());
                    short.split_off(..length).unwrap_or_default()
                });
                draft.block(record, data);
            }
            draft.end(rkey);
        }
        match self.blocks() {
            Blocks::Narrow(records) => all(self, records, draft, part, rkey, direct_min),
            Blocks::Wide(records) => all(self, records, draft, part, rkey, direct_min),
            Blocks::Runs(_) => draft.runs(part.source, part.base, &self.runs, &self.short, rkey),
        }
    }
}
