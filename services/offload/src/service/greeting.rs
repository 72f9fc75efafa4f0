//! The greetings of a job: before the job starts, each SP reads one greeting from every SP, from a rank's memory to a
//! rank's memory.
//!
//! Every later block takes the same path. A broken path therefore shows before any rank has entered a call. UCX
//! performs set-up work at the first import of a rank's memory and at the first read over a connection; the greeting
//! moves that work from the first call to the job's set-up. The ranks keep the memory and its key while they are
//! connected.

use super::transport::{Range, Transport};
use crate::error::{OffloadError, Result};
use crate::wire::{Export, GREETING_BYTES, Greeting};
use std::collections::{BTreeMap, BTreeSet};

/// State of a job's greetings. The fields drop in this order: operations before the objects that they use.
#[derive(Debug)]
pub(super) struct Greetings<T: Transport> {
    /// Outstanding reads. The tag of each is the index of its SP.
    reads: T::Reads,
    /// SPs whose greeting has been read.
    read: BTreeSet<u32>,
    /// Offers that arrived before the endpoints of the SPs existed.
    early: Vec<(u32, Greeting)>,
    /// Greeting memory of each of this SP's ranks.
    memory: BTreeMap<u32, T::Memory>,
}

impl<T: Transport> Greetings<T> {
    pub(super) fn new() -> Self {
        Self {
            reads: T::Reads::default(),
            read: BTreeSet::new(),
            early: Vec::new(),
            memory: BTreeMap::new(),
        }
    }

    /// Imports a rank's greeting memory.
    pub(super) fn import(&mut self, transport: &T, rank: u32, export: &Export) -> Result<()> {
        if export.length < 2 * GREETING_BYTES {
            return Err(failed(format!(
                "rank {rank} keeps {} bytes for greetings; {} are needed",
                export.length,
                2 * GREETING_BYTES
            )));
        }
        let memory = transport.import(export.view())?;
        // Another one is of an admission that has failed after it: nothing reads or writes it.
        match self.memory.insert(rank, memory) {
            Some(old) => transport.unmap(old),
            None => Ok(()),
        }
    }

    /// The memory that other SPs read: the first half of a rank's memory.
    pub(super) fn ours(&self, transport: &T) -> Result<Greeting> {
        let memory = self.memory.values().next();
        let memory = memory.ok_or_else(|| failed("a table before the first rank"))?;
        Ok(Greeting {
            rkey: transport.pack(memory)?.as_ref().to_vec(),
            address: transport.address(memory),
        })
    }

    /// Handles the greeting offer of SP `index`: reads it, or stores it until `services` are known.
    pub(super) fn offered(
        &mut self,
        transport: &T,
        services: &[T::Peer],
        index: u32,
        greeting: Greeting,
    ) -> Result<()> {
        if services.is_empty() {
            self.early.push((index, greeting));
            return Ok(());
        }
        let lost = |what: &str| failed(format!("the greeting of service {index} without {what}"));
        let endpoint = services.get(index as usize);
        let endpoint = endpoint.ok_or_else(|| lost("a place in the table"))?;
        let into = self.memory.values().next();
        let into = into.ok_or_else(|| lost("a rank to read it"))?;
        let key = transport.unpack(endpoint, &greeting.rkey)?;
        let length = usize::try_from(GREETING_BYTES).map_err(|_| lost("a length that fits"))?;
        let range = Range {
            key: &key,
            address: greeting.address,
            into,
            to: GREETING_BYTES,
            length,
        };
        if !transport.read(&mut self.reads, range, index.into())? {
            self.read.insert(index);
        }
        Ok(())
    }

    /// `services` are known: reads the stored offers.
    pub(super) fn begin(&mut self, transport: &T, services: &[T::Peer]) -> Result<()> {
        for (index, greeting) in std::mem::take(&mut self.early) {
            self.offered(transport, services, index, greeting)?;
        }
        Ok(())
    }

    /// Collects completed reads; returns true if there were any.
    pub(super) fn reap(&mut self, transport: &T) -> Result<bool> {
        let mut done = false;
        while let Some((index, ended)) = transport.next_read(&mut self.reads) {
            ended.map_err(|error| {
                failed(format!("reading the greeting of service {index}: {error}"))
            })?;
            self.read
                .insert(u32::try_from(index).map_err(|_| failed("no service"))?);
            done = true;
        }
        Ok(done)
    }

    /// Whether the greetings of `services` SPs have been read.
    pub(super) fn are_read(&self, services: usize) -> bool {
        self.read.len() == services
    }

    /// Cancels outstanding reads; returns false while UCX still uses an object.
    pub(super) fn shut(&mut self, transport: &T) -> bool {
        while transport.next_read(&mut self.reads).is_some() {}
        T::reads_len(&self.reads) == 0
    }
}

fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}
