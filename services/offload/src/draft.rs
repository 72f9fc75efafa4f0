//! Builds the message of an offer, DPU_RTS, as the ranks arrive.

use crate::wire::runs::Run;
use crate::wire::{
    Collective, GROUP, KEYED, PART_BYTES, PackedKey, RUNS, Record, WHOLE, bytes_of, source_code,
};
use xgvmi_daemon::codec::put_varint;

/// Reserved space for a packed key in a message. UCX's keys take several tens of bytes.
const KEY_BYTES: usize = 64;

/// Capacity for the bytes of short blocks that an empty draft keeps.
const SHORT_KEPT: usize = 1 << 10;

/// Size of an offer's head: collective, SP, number, and count of the parts.
const RTS_HEAD: usize = 36;

/// The numbers of an offer that are known when it is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct RtsHead {
    pub(super) collective: Collective,
    pub(super) from: u32,
    pub(super) offer: u64,
    /// Length of the whole vector, if the blocks are a part of one; otherwise 0.
    pub(super) whole: u64,
}

impl RtsHead {
    /// Writes the numbers at the start of a message.
    #[inline]
    pub(super) fn put(&self, message: &mut [u8]) {
        message[..20].copy_from_slice(&bytes_of(self.collective));
        message[20..24].copy_from_slice(&self.from.to_le_bytes());
        message[24..32].copy_from_slice(&self.offer.to_le_bytes());
    }
}

/// A DPU_RTS under construction: blocks are appended as the ranks arrive, without an intermediate copy.
#[derive(Debug, Default)]
pub(super) struct RtsDraft {
    /// The message without its head and the short blocks.
    bytes: Vec<u8>,
    short: Vec<u8>,
    sources: Vec<u32>,
    /// Parts of the message. A group is one part with several sources.
    parts: u32,
    group: Option<Group>,
    /// The sources of the group as the message holds them, and their first key.
    codes: Vec<u8>,
    first_key: Vec<u8>,
    blocks: usize,
    /// Position of the block count of the open part, and the blocks before it.
    open: Option<(usize, usize)>,
    /// A block of the open part needs the key.
    needs_key: bool,
}

/// Sources with the same run, of short blocks or of blocks for the device.
#[derive(Debug, Clone, Copy)]
struct Group {
    run: Run,
    is_keyed: bool,
    count: u32,
    first: u32,
    last: u32,
    /// Distance of the sources as long as they are equally spaced; otherwise 0.
    step: u32,
}

impl RtsDraft {
    /// Reserves space for this number of sources and for `blocks` bytes of their blocks. `spare` and `memory` are empty
    /// vectors for the sources and for the message.
    pub(super) fn reserve(
        &mut self,
        spare: Vec<u32>,
        memory: Vec<u8>,
        sources: usize,
        blocks: usize,
    ) {
        self.sources = spare;
        self.bytes = memory;
        self.sources.reserve(sources);
        let heads = sources * (PART_BYTES + KEY_BYTES);
        // The last number is the length of the short blocks.
        self.bytes.reserve(RTS_HEAD + heads + blocks + 8);
    }

    /// Begins the part of a source. The offsets of its blocks are relative to `base` in the source's address space.
    pub(super) fn begin<R: Record>(&mut self, source: u32, base: u64) {
        self.part(R::FORM, source, base);
        self.open = Some((self.bytes.len(), self.blocks));
        self.bytes.extend_from_slice(&[0; 8]);
    }

    /// The head of a part.
    fn part(&mut self, form: u8, source: u32, base: u64) {
        debug_assert!(self.open.is_none(), "the last part has ended");
        self.end_group();
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(&[0; RTS_HEAD]);
        }
        self.sources.push(source);
        self.parts += 1;
        self.bytes.push(form);
        self.bytes.extend_from_slice(&source.to_le_bytes());
        self.bytes.extend_from_slice(&base.to_le_bytes());
    }

    /// Adds the runs of a source. `short` are the bytes of the short blocks, and `rkey` is the key to the source's buffer.
    pub(super) fn runs(&mut self, source: u32, base: u64, runs: &[Run], short: &[u8], rkey: &[u8]) {
        if !short.is_empty() {
            self.short.extend_from_slice(short);
        }
        if let [run] = runs {
            // The most frequent case, without loops.
            self.blocks += run.count as usize;
            let is_short = run.length * u64::from(run.count) == short.len() as u64;
            return self.add_to_group(source, base, *run, (!is_short).then_some(rkey));
        }
        self.blocks += runs.iter().map(|run| run.count as usize).sum::<usize>();
        let bytes = runs.iter().map(|run| run.length * u64::from(run.count));
        let is_short = bytes.sum::<u64>() == short.len() as u64;
        self.part(RUNS, source, base);
        put_varint(&mut self.bytes, runs.len() as u64);
        for run in runs {
            run.put(&mut self.bytes);
        }
        let rkey = if is_short { &[] } else { rkey };
        self.bytes
            .extend_from_slice(&(rkey.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(rkey);
    }

    /// Adds a run of blocks for the device.
    #[inline]
    pub(super) fn run(&mut self, source: u32, base: u64, run: Run, rkey: &[u8]) {
        self.blocks += run.count as usize;
        self.add_to_group(source, base, run, Some(rkey));
    }

    /// Adds a source with one run, and the key to its buffer if the device reads the blocks.
    #[inline]
    fn add_to_group(&mut self, source: u32, base: u64, mut run: Run, rkey: Option<&[u8]>) {
        if rkey.is_none() {
            // Its place in the source's buffer does not matter: the bytes are here.
            (run.offset, run.stride) = (0, 0);
        }
        let is_keyed = rkey.is_some();
        let fits = |group: &Group| group.run == run && group.is_keyed == is_keyed;
        if !self.group.as_ref().is_some_and(fits) {
            self.end_group();
            self.codes.clear();
            self.first_key.clear();
            self.first_key.extend_from_slice(rkey.unwrap_or_default());
        }
        let group = self.group.get_or_insert(Group {
            run,
            is_keyed,
            count: 0,
            first: source,
            last: 0,
            step: 1,
        });
        self.sources.push(source);
        let code = source_code(group.last, source);
        match rkey {
            Some(rkey) => PackedKey::put(rkey, &self.first_key, code, base, &mut self.codes),
            None => put_varint(&mut self.codes, code),
        }
        if group.count == 1 {
            group.step = source.saturating_sub(group.last);
        } else if group.count > 1 && group.last.checked_add(group.step) != Some(source) {
            group.step = 0;
        }
        group.last = source;
        group.count += 1;
    }

    /// No further source is like the last ones.
    fn end_group(&mut self) {
        let Some(group) = self.group.take() else {
            return;
        };
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(&[0; RTS_HEAD]);
        }
        self.parts += 1;
        self.bytes.push(if group.is_keyed { KEYED } else { GROUP });
        put_varint(&mut self.bytes, group.count.into());
        group.run.put(&mut self.bytes);
        if group.is_keyed {
            put_varint(&mut self.bytes, self.first_key.len() as u64);
            self.bytes.extend_from_slice(&self.first_key);
        } else {
            put_varint(&mut self.bytes, group.step.into());
        }
        if group.is_keyed || group.step == 0 {
            self.bytes.extend_from_slice(&self.codes);
        } else {
            put_varint(&mut self.bytes, group.first.into());
        }
    }

    /// Whether a part has begun and not ended.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Appends a block to the open part. `short` is the data of a short block; any other block needs the key.
    pub(super) fn block(&mut self, record: &impl Record, short: Option<&[u8]>) {
        self.bytes.extend_from_slice(record.as_ref());
        self.blocks += 1;
        match short {
            Some(short) => self.short.extend_from_slice(short),
            None => self.needs_key = true,
        }
    }

    /// Ends the open part. `rkey` is the key to its source's buffer.
    pub(super) fn end(&mut self, rkey: &[u8]) {
        let needs_key = std::mem::take(&mut self.needs_key);
        let rkey = if needs_key { rkey } else { &[] };
        let (at, before) = self.open.take().expect("a part has begun");
        let count = (self.blocks - before) as u64;
        self.bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
        let length = rkey.len() as u64;
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(rkey);
    }

    /// Number of sources.
    pub(super) fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Number of bytes of short blocks.
    pub(super) fn short_bytes(&self) -> usize {
        self.short.len()
    }

    /// The draft is empty: releases the memory of many short blocks.
    pub(super) fn trim(&mut self) {
        for bytes in [&mut self.short, &mut self.codes] {
            if bytes.capacity() > SHORT_KEPT {
                *bytes = Vec::new();
            }
        }
    }

    /// The sources of the parts, and the message. The draft is empty then.
    pub(super) fn finish(&mut self, head: RtsHead) -> (Vec<u32>, Vec<u8>) {
        self.end_group();
        let mut bytes = std::mem::take(&mut self.bytes);
        head.put(&mut bytes);
        let has_whole = if head.whole > 0 { WHOLE } else { 0 };
        let parts = std::mem::take(&mut self.parts) | has_whole;
        bytes[32..RTS_HEAD].copy_from_slice(&parts.to_le_bytes());
        if has_whole > 0 {
            bytes.splice(RTS_HEAD..RTS_HEAD, head.whole.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.short.len() as u64).to_le_bytes());
        if !self.short.is_empty() {
            bytes.append(&mut self.short);
        }
        self.blocks = 0;
        (std::mem::take(&mut self.sources), bytes)
    }
}
