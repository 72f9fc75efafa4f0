//! Carries out requests, one at a time.

use super::connection::Connection;
use super::counters::{Counters, add};
use super::identities::Right;
use super::queue::Job;
use super::shared::Shared;
use crate::error::{BlkError, Result};
use crate::frames::{Call, EXTENTS_MAX, Memory, Outcome, Range};
use crate::geometry::SECTOR;
use crate::say::say;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use xgvmi_pool::VirtAddr;
use xgvmi_verbs::{Buffer, Direction, Engine, EngineOptions, Keys, Transport, VerbsError};

/// Time limit of one copy. A request has a few MiB, which take milliseconds.
const COPY_LIMIT: Duration = Duration::from_secs(10);

/// A thread with its own buffer and queue of the adapter. The fields end in their order: the queue before the buffer.
pub(super) struct Worker {
    /// `None` after an error; the next request creates another one.
    engine: Option<Engine>,
    buffer: Buffer,
    transport: Transport,
    shared: Arc<Shared>,
}

impl Worker {
    pub(super) fn new(shared: &Arc<Shared>) -> std::result::Result<Self, VerbsError> {
        let engine = engine(shared)?;
        Ok(Self {
            transport: engine.transport(),
            engine: Some(engine),
            buffer: Buffer::new(&shared.adapter, shared.transfer_max as usize)?,
            shared: Arc::clone(shared),
        })
    }

    pub(super) fn transport(&self) -> Transport {
        self.transport
    }

    /// Carries out requests without end.
    pub(super) fn run(mut self) {
        loop {
            let Job {
                connection,
                request,
            } = self.shared.queue.pop();
            self.count(&connection, |counters| &counters.requests, 1);
            let outcome = match connection.has_ended() {
                true => Outcome::Failed("the connection has ended".to_owned()),
                false => self.carry_out(&connection, request.call),
            };
            // By this an initiator asks whether the volume has grown.
            let asks_for_end = matches!(request.call, Call::Extents { .. })
                && matches!(outcome, Outcome::Invalid(_));
            let is_good = matches!(outcome, Outcome::Done | Outcome::Extents(_));
            if !is_good && !asks_for_end {
                self.count(&connection, |counters| &counters.failed, 1);
            }
            connection.answer(request.number, outcome);
            self.shared.queue.finish(connection.of);
            self.shared.under_way.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Adds to a counter of the service, and to that of the initiator.
    fn count(&self, connection: &Connection, of: fn(&Counters) -> &AtomicU64, amount: u64) {
        add(of(&self.shared.counters), amount);
        if let Some(identity) = &connection.identity {
            add(of(&identity.counters), amount);
        }
    }

    fn carry_out(&mut self, connection: &Connection, call: Call) -> Outcome {
        match connection.right() {
            Some(Right::Write) => {}
            Some(Right::Read) if !call.changes() => {}
            Some(Right::Read) => {
                return Outcome::Denied(format!("{} may only read", connection.who()));
            }
            None => {
                return Outcome::Denied(format!("{} may not use the volume", connection.who()));
            }
        }
        if let Err(reason) = self.check(connection, &call) {
            return Outcome::Invalid(reason);
        }
        let volume = Arc::clone(&connection.volume);
        let done = match call {
            Call::Read { range, memory } => self.read(connection, range, memory),
            Call::Write { range, memory } => self.write(connection, range, memory),
            Call::Flush => volume.flush(),
            Call::Trim { range } => volume.trim(range.offset, range.length.into()),
            Call::Zero { range, allocate } => {
                volume.write_zeroes(range.offset, range.length.into(), allocate)
            }
            Call::Extents { range, limit } => {
                let limit = (limit as usize).clamp(1, EXTENTS_MAX);
                match volume.extents(range.offset, range.length.into(), limit) {
                    Ok(extents) => return Outcome::Extents(extents),
                    Err(error) => Err(error),
                }
            }
        };
        match done {
            Ok(()) => Outcome::Done,
            Err(error) => {
                match &connection.identity {
                    Some(_) => say(format_args!("{}: {error}", connection.who())),
                    None => say(&error),
                }
                if error.is_full() {
                    Outcome::Full(error.to_string())
                } else {
                    Outcome::Failed(error.to_string())
                }
            }
        }
    }

    /// Refuses what cannot be right.
    fn check(&self, connection: &Connection, call: &Call) -> std::result::Result<(), String> {
        let Some(Range { offset, length }) = call.range() else {
            return Ok(());
        };
        if length == 0 {
            return Err("the length is 0".to_owned());
        }
        if !offset.is_multiple_of(u64::from(SECTOR)) || !length.is_multiple_of(SECTOR) {
            return Err(format!(
                "{length} bytes at {offset}: both must be multiples of {SECTOR}"
            ));
        }
        let moves = matches!(call, Call::Read { .. } | Call::Write { .. });
        if moves && length > self.shared.transfer_max {
            return Err(format!(
                "{length} bytes at once; the most is {}",
                self.shared.transfer_max
            ));
        }
        let geometry = connection.volume.geometry();
        let checked = geometry.check(offset, length.into());
        checked.map_err(|error| error.to_string())
    }

    fn read(&mut self, from: &Connection, range: Range, memory: Memory) -> Result<()> {
        let bytes = &mut self.buffer.bytes()[..range.length as usize];
        from.volume.read(range.offset, bytes)?;
        self.copy(&from.keys, Direction::ToHost, (range, memory))?;
        self.count(from, |counters| &counters.delivered, range.length.into());
        Ok(())
    }

    fn write(&mut self, from: &Connection, range: Range, memory: Memory) -> Result<()> {
        self.copy(&from.keys, Direction::FromHost, (range, memory))?;
        self.count(from, |counters| &counters.fetched, range.length.into());
        let bytes = &self.buffer.bytes()[..range.length as usize];
        from.volume.write(range.offset, bytes)
    }

    fn copy(
        &mut self,
        keys: &Keys,
        direction: Direction,
        (range, memory): (Range, Memory),
    ) -> Result<()> {
        let failed = |reason: String| BlkError::Transfer {
            length: range.length,
            address: memory.address,
            reason,
        };
        let alias = self.shared.aliases.attach(keys, memory.mkey);
        let alias = alias.map_err(failed)?;
        let mut engine = match self.engine.take() {
            Some(engine) => engine,
            None => engine(&self.shared).map_err(|error| failed(error.to_string()))?,
        };
        let remote = (alias.lkey(), VirtAddr::new(memory.address));
        engine
            .copy(direction, &mut self.buffer, remote, range.length as usize)
            .map_err(|error| failed(error.to_string()))?;
        self.engine = Some(engine);
        Ok(())
    }
}

fn engine(shared: &Shared) -> std::result::Result<Engine, VerbsError> {
    let options = EngineOptions {
        dma: !shared.rdma,
        limit: COPY_LIMIT,
    };
    Engine::new(&shared.adapter, options)
}
