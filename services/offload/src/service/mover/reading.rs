//! Reads of blocks: their start, the copies of blocks that several ranks share, and their ends.

use super::{Mover, Receive, Seats, failed};
use crate::error::{OffloadError, Result};
use crate::service::actions::Transfer;
use crate::service::counters::Moved;
use crate::service::ledger::Ledger;
use crate::service::ready::Flight;
use crate::service::sharing::{Done, Step};
use crate::service::transport::{Range, Run, Transport};
use crate::wire::PackedKey;

/// What [`Mover::start_batch`] has begun.
enum Begun {
    Nothing,
    Batch,
    /// The next block is shared.
    Shared,
}

impl<T: Transport> Mover<T> {
    /// Starts as many reads as there may be. Returns whether there was one.
    pub(super) fn start_reads(&mut self, transport: &T) -> Result<bool> {
        let mut has_started = false;
        loop {
            let under_way = T::reads_len(&self.reads);
            let room = self.limits.receives.saturating_sub(under_way);
            if room == 0 {
                return Ok(has_started);
            }
            if !(self.sharing.can_copy() && self.start_copy(transport)?) {
                match self.start_batch(transport, room)? {
                    Begun::Nothing => return Ok(has_started),
                    Begun::Batch => {}
                    Begun::Shared => self.start_shared(transport)?,
                }
            }
            has_started = true;
        }
    }

    /// Starts the next reads of a batch, unless its blocks are shared.
    #[inline]
    fn start_batch(&mut self, transport: &T, room: usize) -> Result<Begun> {
        let Some(unread) = self.ledger.unread() else {
            return Ok(Begun::Nothing);
        };
        if unread.sources.first().is_some_and(|first| first.shared > 0) {
            return Ok(Begun::Shared);
        }
        let (id, batch) = (unread.id, unread.batch);
        let list = self.keys.get(batch.offer as usize);
        let list = list.ok_or_else(|| lost("its keys"))?;
        let keys = list.get(batch.part as usize..).unwrap_or_default();
        let (into, shift) = receive_of(&self.entered, batch.call, batch.local)?;
        let run = Run {
            into,
            keys: list,
            to: batch.to.wrapping_add(shift),
            stride: batch.stride,
            length: fitting(batch.length)?,
            room,
            most: batch.count,
            tag: Flight {
                batch: id,
                part: batch.part,
                is_shared: false,
            }
            .tag(),
        };
        // A source without a key ends them: none is left at its turn.
        let sources = unread.sources.iter().zip(keys).map_while(|(source, key)| {
            let key = key.as_deref()?;
            Some((key, source.base.wrapping_add(batch.from)))
        });
        let (count, done) = transport.read_run(&mut self.reads, run, sources)?;
        if count == 0 {
            return Err(lost("its key"));
        }
        self.ledger.started(id, count);
        if done > 0 {
            self.delivered(id, done);
        }
        Ok(Begun::Batch)
    }

    /// Starts the next read of a block that several ranks get, or lets it wait.
    fn start_shared(&mut self, transport: &T) -> Result<()> {
        let Some(transfer) = self.ledger.next_transfer() else {
            return Ok(());
        };
        if self.sharing.begin(&transfer) == Step::Wait {
            return Ok(());
        }
        let keys = self.keys.get(transfer.offer as usize);
        let key = keys
            .and_then(|keys| keys.get(transfer.part as usize)?.as_deref())
            .ok_or_else(|| lost("its key"))?;
        let (into, shift) = receive_of(&self.entered, transfer.call, transfer.local)?;
        let range = Range {
            key,
            address: transfer.from,
            into,
            to: transfer.to.wrapping_add(shift),
            length: fitting(transfer.length)?,
        };
        let is_under_way = transport.read(&mut self.reads, range, shared(&transfer))?;
        self.started(transport, is_under_way, &transfer)
    }

    /// Starts the next copy of a shared block; false if there is none.
    #[cold]
    fn start_copy(&mut self, transport: &T) -> Result<bool> {
        let Some((transfer, key, first)) = self.sharing.next() else {
            return Ok(false);
        };
        let (from, from_shift) = receive_of(&self.entered, first.call, first.local)?;
        let (into, shift) = receive_of(&self.entered, transfer.call, transfer.local)?;
        let range = Range {
            key: &**key,
            // Both blocks are inside their buffers, see check_blocks.
            address: transport
                .address(from)
                .wrapping_add(from_shift)
                .wrapping_add(first.to),
            into,
            to: transfer.to.wrapping_add(shift),
            length: fitting(transfer.length)?,
        };
        let is_under_way = transport.read(&mut self.reads, range, shared(&transfer))?;
        self.started(transport, is_under_way, &transfer)?;
        Ok(true)
    }

    /// A read of a shared block has been started.
    fn started(&mut self, transport: &T, is_under_way: bool, transfer: &Transfer) -> Result<()> {
        match is_under_way {
            true => Ok(()),
            false => self.shared_transferred(transport, transfer),
        }
    }

    #[cold]
    fn failed(&self, flight: Flight, error: &OffloadError) -> OffloadError {
        let Some(transfer) = self.ledger.transfer(flight.batch, flight.part) else {
            return failed(format!("reading a block: {error}"));
        };
        let of = match self.ledger.ranks_of(&transfer) {
            Some((source, destination)) => format!(" of rank {source} for rank {destination}"),
            None => String::new(),
        };
        failed(format!("reading {} bytes{of}: {error}", transfer.length))
    }

    /// Collects completed reads. Returns true when there were any.
    ///
    /// Ordering: a rank is told that its block is there, and the source that its buffer is free, only after the completion
    /// of the read, which this function finds.
    pub(super) fn reap_reads(&mut self, transport: &T) -> Result<bool> {
        if T::reads_len(&self.reads) == 0 {
            return Ok(false);
        }
        let (mut has_ended, mut wrong) = (false, None);
        // The reads of a batch end together as a rule: what their tags have in common, and how many of them have ended.
        let (mut lane, mut count) = (u64::MAX, 0);
        let Self {
            reads,
            ledger,
            moved,
            shared_ends,
            ..
        } = self;
        while let Some((tag, more, ended)) = transport.next_reads(reads) {
            has_ended = true;
            if let Err(error) = ended {
                wrong = Some((tag, error));
                break;
            }
            if Flight::lane(tag) == lane {
                count += more;
                continue;
            }
            if Flight::of(tag).is_shared {
                shared_ends.push(tag);
                continue;
            }
            delivered_of(ledger, moved, lane, count);
            (lane, count) = (Flight::lane(tag), more);
        }
        delivered_of(ledger, moved, lane, count);
        if let Some((tag, error)) = wrong {
            return Err(self.failed(Flight::of(tag), &error));
        }
        while let Some(tag) = self.shared_ends.pop() {
            let flight = Flight::of(tag);
            let transfer = self.ledger.transfer(flight.batch, flight.part);
            let transfer = transfer.ok_or_else(|| lost("its batch"))?;
            self.shared_transferred(transport, &transfer)?;
        }
        Ok(has_ended)
    }

    /// Blocks of a batch are where they shall be, and their copies as well.
    fn delivered(&mut self, batch: u32, count: u32) {
        delivered(&mut self.ledger, &mut self.moved, batch, count);
    }

    fn shared_transferred(&mut self, transport: &T, transfer: &Transfer) -> Result<()> {
        match self.sharing.done(transfer) {
            None => self.delivered(transfer.batch, 1),
            // The ledger learns of this block after the copies: the rank keeps its buffer until then.
            Some(Done::There) => {
                let receive = receive_at(&self.entered, transfer.call, transfer.local)?;
                let packed = receive.pack(transport)?;
                let (_, rank) = self
                    .ledger
                    .ranks_of(transfer)
                    .ok_or_else(|| lost("its rank"))?;
                let me = self.services.get(self.me as usize).and_then(Option::as_ref);
                let me = me.ok_or_else(|| failed("this SP is not in its table"))?;
                let unpack = |packed: &[u8]| transport.unpack(&me.peer, packed);
                let key = self.known.get(rank, PackedKey::whole(packed), unpack)?;
                self.sharing.there(transfer, key);
            }
            Some(Done::Copied) => self.copied(transfer),
            Some(Done::All(first)) => {
                self.copied(transfer);
                self.delivered(first.batch, 1);
            }
        }
        Ok(())
    }

    fn copied(&mut self, transfer: &Transfer) {
        self.moved.copies += 1;
        self.moved.copied_bytes += transfer.length;
        self.delivered(transfer.batch, 1);
    }
}

/// The memory of a local rank's receive buffer in a call, and the offset of the buffer in it.
#[inline]
fn receive_of<T: Transport>(
    entered: &[Seats<T>],
    call: u32,
    local: u32,
) -> Result<(&T::Memory, u64)> {
    receive_at(entered, call, local).map(Receive::memory)
}

#[inline]
fn receive_at<T: Transport>(entered: &[Seats<T>], call: u32, local: u32) -> Result<&Receive<T>> {
    entered
        .get(call as usize)
        .and_then(|seats| seats.get(local as usize)?.receive.as_ref())
        .ok_or_else(|| lost("its destination"))
}

/// Reads of one batch have ended, if there were any.
#[inline]
fn delivered_of(ledger: &mut Ledger, moved: &mut Moved, lane: u64, count: u32) {
    if count > 0 {
        delivered(ledger, moved, Flight::of(lane << 31).batch, count);
    }
}

/// Blocks of a batch are where they shall be, see [`Mover::delivered`].
#[inline]
fn delivered(ledger: &mut Ledger, moved: &mut Moved, batch: u32, count: u32) {
    if let Some((blocks, bytes)) = ledger.transferred(batch, count) {
        moved.blocks += blocks;
        moved.bytes += bytes;
    }
}

/// The tag of the read of a shared block.
fn shared(transfer: &Transfer) -> u64 {
    let flight = Flight {
        batch: transfer.batch,
        part: transfer.part,
        is_shared: true,
    };
    flight.tag()
}

#[cold]
fn lost(what: &str) -> OffloadError {
    failed(format!("a read without {what}"))
}

#[inline]
fn fitting(length: u64) -> Result<usize> {
    usize::try_from(length).map_err(|_| lost("a length that fits"))
}
