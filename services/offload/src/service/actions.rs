//! Actions that the ledger requests, and the errors that it returns.

use crate::wire::{Blocks, Collective, Delivered};

/// Index of a call.
pub(super) type CallId = usize;

/// Index of a received offer.
pub(super) type OfferId = usize;

/// A received offer as the wire identifies it: index of the offering SP, and its number.
pub(super) type OfferKey = (u32, u64);

/// A rank's buffers in a call, as far as blocks depend on them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffers<'a> {
    /// Address of the send buffer in the rank's address space.
    pub(super) base: u64,
    /// The packed key of the send buffer; empty without one.
    pub(super) key: &'a [u8],
}

/// The receive side of a rank that enters a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Receives<'a> {
    Now(Blocks<'a>),
    /// It follows when this number of blocks is on offer.
    Later(usize),
}

impl<'a> From<Blocks<'a>> for Receives<'a> {
    fn from(blocks: Blocks<'a>) -> Self {
        Self::Now(blocks)
    }
}

/// A block that the device reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    /// In the source's address space.
    pub(super) from: u64,
    /// Offset in the destination's receive buffer.
    pub(super) to: u64,
    pub(super) length: u64,
    /// An [`OfferId`].
    pub(super) offer: u32,
    /// Index of the source among the offer's parts.
    pub(super) part: u32,
    /// The destination's local number at this SP, and its call, a [`CallId`].
    pub(super) local: u32,
    pub(super) call: u32,
    /// Number of ranks of this SP that get the same block from a rank of another SP; 0 if it is only this one.
    pub(super) shared: u32,
    /// Number of its batch.
    pub(super) batch: u32,
}

/// The next action, except transfers.
#[derive(Debug)]
pub(super) enum Action {
    /// Send DPU_RTS.
    Offer { to: u32, message: Vec<u8> },
    /// All blocks of a received offer are delivered: drop its keys and send DPU_FIN. The index is free now.
    Finish { offer: OfferId, key: OfferKey },
    /// All blocks for a rank that [`Receives::Later`] has announced are on offer: give it its receive side.
    Gathered { call: CallId, local: usize },
    /// All blocks for a rank in step 1 of an allreduce are there. Its own blocks may still be in use.
    Received {
        call: CallId,
        collective: Collective,
        local: usize,
    },
    /// A rank's call is complete: release its buffers and send HOST_FIN. The seat is free now.
    Complete {
        call: CallId,
        collective: Collective,
        rank: u32,
        local: usize,
        short: Option<Box<Short>>,
    },
}

/// What a rank is told at the end: its short blocks, which travel in messages.
#[derive(Debug, Default)]
pub(super) struct Short {
    pub(super) blocks: Vec<Delivered>,
    /// The data of the blocks, in their order.
    pub(super) bytes: Vec<u8>,
    /// Length of the message, if the rank's receive has another one.
    pub(super) message: Option<u64>,
}

/// A protocol violation that fails the call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    #[error(
        "the counts of {collective} disagree: rank {source_rank} sends {sent} bytes to rank {destination}, which \
         expects {expected}"
    )]
    Counts {
        collective: Collective,
        source_rank: u32,
        destination: u32,
        sent: u64,
        expected: u64,
    },
    #[error(
        "the members of {collective} disagree: rank {source_rank} sends to rank {destination}, which expects nothing \
         from it"
    )]
    Members {
        collective: Collective,
        source_rank: u32,
        destination: u32,
    },
    #[error(
        "the lengths of {collective} disagree: one rank gives {one} bytes, another one {other}"
    )]
    Lengths {
        collective: Collective,
        one: u64,
        other: u64,
    },
    #[error("rank {rank} breaks the protocol in {collective}: {what}")]
    Rank {
        rank: u32,
        collective: Collective,
        what: &'static str,
    },
    #[error("service {service} breaks the protocol in offer {offer}: {what}")]
    Service {
        service: u32,
        offer: u64,
        what: &'static str,
    },
}
