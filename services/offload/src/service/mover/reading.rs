//! Reads of blocks: their start, the copies of blocks that several ranks share, and their ends.

use super::{Mover, Receive, Seats, failed};
use crate::error::{OffloadError, Result};
use crate::service::actions::Transfer;
use crate::service::sharing::{Done, Step};
use crate::service::transport::{Range, Transport};

impl<T: Transport> Mover<T> {
    /// Starts the next read; false if there is none.
    #[inline]
    pub(super) fn start_read(&mut self, transport: &T) -> Result<bool> {
        if self.sharing.can_copy() && self.start_copy(transport)? {
            return Ok(true);
        }
        while let Some(transfer) = self.ledger.next_transfer() {
            if transfer.shared > 0 && self.sharing.begin(&transfer) == Step::Wait {
                continue;
            }
            let keys = self.keys.get(transfer.offer as usize);
            let key = keys
                .and_then(|keys| keys.get(transfer.part as usize)?.as_ref())
                .ok_or_else(|| lost("its key"))?;
            let range = Range {
                key,
                address: transfer.from,
                into: Self::receive_of(&self.entered, &transfer)?,
                to: transfer.to,
                length: fitting(&transfer)?,
            };
            let started = transport.read(&mut self.reads, range)?;
            self.started(transport, started, &transfer)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Starts the next copy of a shared block; false if there is none.
    #[cold]
    fn start_copy(&mut self, transport: &T) -> Result<bool> {
        let Some((transfer, key, first)) = self.sharing.next() else {
            return Ok(false);
        };
        let from = Self::receive_of(&self.entered, &first)?;
        let range = Range {
            key,
            // Both blocks are inside their buffers, see check_blocks.
            address: transport.address(from).wrapping_add(first.to),
            into: Self::receive_of(&self.entered, &transfer)?,
            to: transfer.to,
            length: fitting(&transfer)?,
        };
        let started = transport.read(&mut self.reads, range)?;
        self.started(transport, started, &transfer)?;
        Ok(true)
    }

    /// A read has been started. Without a number it is complete.
    ///
    /// Ordering: a rank is told that its block is there, and the source that its buffer is free, only after the
    /// completion of the read, which [`Self::reap`] finds.
    #[inline(always)]
    fn started(&mut self, transport: &T, number: Option<u32>, transfer: &Transfer) -> Result<()> {
        let Some(number) = number else {
            return self.transferred(transport, transfer);
        };
        let at = number as usize;
        if at >= self.transfers.len() {
            self.transfers.resize(at + 1, *transfer);
        }
        self.transfers[at] = *transfer;
        Ok(())
    }

    #[cold]
    pub(super) fn unread(&self, transfer: &Transfer, error: &OffloadError) -> OffloadError {
        let of = match self.ledger.ranks_of(transfer) {
            Some((source, destination)) => format!(" of rank {source} for rank {destination}"),
            None => String::new(),
        };
        failed(format!("reading {} bytes{of}: {error}", transfer.length))
    }

    /// A read is complete.
    #[inline(always)]
    pub(super) fn transferred(&mut self, transport: &T, transfer: &Transfer) -> Result<()> {
        if transfer.shared == 0 {
            self.delivered(transfer);
            return Ok(());
        }
        self.shared_transferred(transport, transfer)
    }

    /// A block is where it shall be, and its copies as well.
    #[inline(always)]
    fn delivered(&mut self, transfer: &Transfer) {
        if let Some((blocks, bytes)) = self.ledger.transferred(transfer) {
            self.moved.blocks += blocks;
            self.moved.bytes += bytes;
        }
    }

    fn shared_transferred(&mut self, transport: &T, transfer: &Transfer) -> Result<()> {
        match self.sharing.done(transfer) {
            None => self.delivered(transfer),
            // The ledger learns of this block after the copies: the rank keeps its buffer until then.
            Some(Done::There) => {
                let packed = transport.pack(Self::receive_of(&self.entered, transfer)?)?;
                let me = self.services.get(self.me as usize).and_then(Option::as_ref);
                let me = me.ok_or_else(|| failed("this SP is not in its table"))?;
                let key = transport.unpack(&me.peer, packed.as_ref())?;
                self.sharing.there(transfer, key);
            }
            Some(Done::Copied) => self.copied(transfer),
            Some(Done::All(first)) => {
                self.copied(transfer);
                self.delivered(&first);
            }
        }
        Ok(())
    }

    fn copied(&mut self, transfer: &Transfer) {
        self.moved.copies += 1;
        self.moved.copied_bytes += transfer.length;
        self.delivered(transfer);
    }

    /// The receive buffer of a transfer's destination.
    #[inline]
    fn receive_of<'a>(entered: &'a [Seats<T>], transfer: &Transfer) -> Result<&'a T::Memory> {
        entered
            .get(transfer.call as usize)
            .and_then(|seats| seats.get(transfer.local as usize)?.receive.as_ref())
            .map(Receive::memory)
            .ok_or_else(|| lost("its destination"))
    }
}

#[cold]
fn lost(what: &str) -> OffloadError {
    failed(format!("a read without {what}"))
}

#[inline]
fn fitting(transfer: &Transfer) -> Result<usize> {
    usize::try_from(transfer.length).map_err(|_| lost("a length that fits"))
}
