//! Blocks of a received offer, and the ranks that they are for.

use super::actions::{OfferKey, Short, Wrong};
use super::slots::{Slots, Sources, Unfit};
use crate::wire::runs::Run;
use crate::wire::{Collective, Delivered, Message};

/// A local rank that has entered a call.
#[derive(Debug)]
pub(super) struct Participant {
    pub(super) slots: Slots,
    /// Sources whose block is not delivered yet.
    pub(super) receives_left: usize,
    /// Unfinished offers that contain blocks of this rank.
    pub(super) offers_left: usize,
    /// Whether [`Action::Received`](super::actions::Action::Received) has been requested.
    pub(super) is_told: bool,
    /// The short blocks that have arrived.
    pub(super) short: Option<Box<Short>>,
}

/// A received offer.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) key: OfferKey,
    /// A call's index, of 32 bits as in a transfer.
    pub(super) call: u32,
    /// Blocks that are not delivered yet.
    pub(super) left: usize,
    pub(super) sources: Vec<Source>,
    /// The blocks whose destinations had not arrived when the offer came, without those of single runs.
    pub(super) parked: Vec<ParkedBlock>,
    /// The bytes of the short blocks, if a block is parked.
    pub(super) short: Vec<u8>,
}

/// A source of a received offer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) rank: u32,
    /// Address of its buffer in its address space.
    pub(super) base: u64,
    /// Number of its blocks for device reads if they are all the same block, and there are several; otherwise 0.
    pub(super) shared: u32,
    /// Its blocks, if they are one run, and the position of the first short one's bytes in the message.
    pub(super) run: Option<Run>,
    pub(super) short_at: usize,
    /// Number of sources from this one on that have the same run for the device and are equally spaced; and their distance.
    pub(super) like: u32,
    pub(super) apart: u32,
}

impl Source {
    /// This source and those that are like it.
    #[inline]
    pub(super) fn alike(&self) -> Sources {
        Sources {
            first: self.rank,
            last: self.rank + self.apart * (self.like - 1),
            apart: self.apart,
            count: self.like,
        }
    }

    /// The parked block for a rank, if the blocks are one run.
    #[inline]
    pub(super) fn parked_for(&self, part: u32, rank: u32, direct_min: u64) -> Option<ParkedBlock> {
        let run = self.run.as_ref()?;
        let index = u64::from(run.index_of(rank)?);
        let from = match run.length < direct_min {
            true => self.short_at as u64 + index * run.length,
            false => run.offset + index * run.stride,
        };
        Some(ParkedBlock {
            part,
            from,
            length: run.length,
        })
    }
}

/// A block of a received offer that waits for its destination.
#[derive(Debug, Clone, Copy)]
pub(super) struct ParkedBlock {
    /// Index of the source among the offer's parts.
    pub(super) part: u32,
    /// Offset in the source's buffer; the position of a short block's bytes in the message.
    pub(super) from: u64,
    pub(super) length: u64,
}

/// A block of an offer whose destination is present.
#[derive(Debug)]
pub(super) struct Meeting<'a> {
    pub(super) key: OfferKey,
    pub(super) collective: Collective,
    pub(super) source: u32,
    pub(super) destination: u32,
    pub(super) block: ParkedBlock,
    /// The bytes of the offer's short blocks.
    pub(super) short: &'a [u8],
    pub(super) direct_min: u64,
}

impl Participant {
    /// Keeps the bytes of a short block behind those of others.
    fn add_short(&mut self, to: u64, bytes: &[u8]) {
        let short = self.short.get_or_insert_default();
        short.bytes.extend_from_slice(bytes);
        short.blocks.push(Delivered::one(to, bytes.len() as u64));
    }

    /// Keeps the bytes of a short block for the offset `to` of the receive buffer. The blocks of runs have their places in
    /// the answer; the bytes of others follow each other.
    fn put_short(&mut self, source: u32, to: u64, bytes: &[u8], direct_min: u64) {
        let Some(before) = self.slots.short_before(source, direct_min) else {
            self.add_short(to, bytes);
            return;
        };
        let short = self.short.get_or_insert_with(|| {
            let runs = self.slots.runs().iter();
            let runs = runs.filter(|run| run.length < direct_min);
            let blocks: Vec<Delivered> = runs.map(Delivered::all_of).collect();
            let length: u64 = blocks.iter().filter_map(Delivered::bytes).sum();
            // The rank's entry was counted with these bytes.
            let bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            Box::new(Short {
                blocks,
                bytes,
                message: None,
            })
        });
        let place = usize::try_from(before)
            .ok()
            .and_then(|before| short.bytes.get_mut(before..before + bytes.len()));
        if let Some(place) = place {
            place.copy_from_slice(bytes);
        }
    }
}

impl Meeting<'_> {
    /// Delivers a block that does not fit its slot, or that the device does not read. `place` is what [`Slots::take`] has returned
    /// for it. Returns place and length of what the device reads.
    pub(super) fn deliver(
        &self,
        participant: &mut Participant,
        place: Result<u64, Unfit>,
    ) -> Result<Option<(u64, u64)>, Wrong> {
        match place {
            Ok(_) if self.block.length == 0 => Ok(None),
            Ok(to) => {
                let bytes = self.bytes(self.block.length)?;
                participant.put_short(self.source, to, bytes, self.direct_min);
                Ok(None)
            }
            Err(Unfit::Length(room)) if Message::of(self.collective.communicator).is_some() => {
                self.deliver_part(participant, room)
            }
            Err(unfit) => Err(self.unfit(&unfit)),
        }
    }

    /// Delivers a message to a receive of `room` bytes, which is shorter or longer: as much as there is room for. If only the
    /// receive is too short for the device, the message has no place.
    #[cold]
    fn deliver_part(
        &self,
        participant: &mut Participant,
        room: u64,
    ) -> Result<Option<(u64, u64)>, Wrong> {
        let place = participant.slots.take(self.source, room);
        let to = place.map_err(|unfit| self.unfit(&unfit))?;
        let length = self.block.length;
        participant.short.get_or_insert_default().message = Some(length);
        if length >= self.direct_min {
            return Ok((room >= self.direct_min).then_some((to, length.min(room))));
        }
        participant.add_short(to, self.bytes(length.min(room))?);
        Ok(None)
    }

    /// The first bytes of a short block.
    fn bytes(&self, length: u64) -> Result<&[u8], Wrong> {
        short_bytes(self.short, self.block.from, length).ok_or(Wrong::Service {
            service: self.key.0,
            offer: self.key.1,
            what: "the bytes of its short blocks are not as many as their lengths say",
        })
    }

    #[cold]
    pub(super) fn unfit(&self, unfit: &Unfit) -> Wrong {
        let Self {
            key,
            collective,
            source,
            destination,
            ..
        } = *self;
        match *unfit {
            Unfit::Source => Wrong::Members {
                collective,
                source_rank: source,
                destination,
            },
            Unfit::Length(expected) => Wrong::Counts {
                collective,
                source_rank: source,
                destination,
                sent: self.block.length,
                expected,
            },
            Unfit::Taken => Wrong::Service {
                service: key.0,
                offer: key.1,
                what: "the block was there already",
            },
        }
    }
}

/// The bytes of a short block at `from`; `None` if they are outside.
fn short_bytes(short: &[u8], from: u64, length: u64) -> Option<&[u8]> {
    let start = usize::try_from(from).ok()?;
    let length = usize::try_from(length).ok()?;
    short.get(start..start.checked_add(length)?)
}
