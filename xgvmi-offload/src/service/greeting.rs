//! The greetings of a job: before it begins, each SP reads one from every SP, from a rank's memory to a rank's memory.
//!
//! That is the way of every block later. What does not lead there is found out while nobody has entered a call, and what
//! UCX sets up at the first import of a rank's memory, and at the first read over a connection, is set up when the job
//! comes together and not in its first call. The ranks keep the memory, and its key, for as long as they are connected.

use super::imported::Imported;
use crate::error::{OffloadError, Result};
use crate::wire::{Export, GREETING_BYTES, Greeting};
use std::collections::{BTreeMap, BTreeSet};
use xgvmi_ucp::{Context, Endpoint, RemoteKey, Request};

/// What has come of them. Fields go in this order: operations before what they use.
#[derive(Debug, Default)]
pub(super) struct Greetings {
    /// Reads under way, and from which SP.
    reads: Vec<(u32, Request)>,
    /// SPs whose greeting is here.
    read: BTreeSet<u32>,
    /// What SPs have offered before we knew how to reach them.
    early: Vec<(u32, Greeting)>,
    /// Of each of our ranks, the memory that it keeps for this.
    memory: BTreeMap<u32, Imported>,
}

impl Greetings {
    /// Imports what a rank keeps for greetings.
    pub(super) fn import(&mut self, context: &Context, rank: u32, export: &Export) -> Result<()> {
        if export.length < 2 * GREETING_BYTES {
            return Err(failed(format!(
                "rank {rank} keeps {} bytes for greetings; {} are needed",
                export.length,
                2 * GREETING_BYTES
            )));
        }
        let memory = Imported::new(context, export)?;
        self.memory.insert(rank, memory);
        Ok(())
    }

    /// What other SPs are to read: the first half of a rank's memory.
    pub(super) fn ours(&self) -> Result<Greeting> {
        let memory = self.memory.values().next();
        let memory = memory.ok_or_else(|| failed("a table before the first rank"))?;
        Ok(Greeting {
            rkey: memory.memory.pack_rkey()?.to_vec(),
            address: memory.address,
        })
    }

    /// SP `index` offers its greeting: reads it, or keeps it until `services` are known.
    pub(super) fn offered(
        &mut self,
        services: &[Endpoint],
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
        // SAFETY: the offering SP sends what UCX packed, byte by byte; its UCX is of our version.
        let key = unsafe { RemoteKey::unpack(endpoint, &greeting.rkey) }?;
        let length = usize::try_from(GREETING_BYTES).map_err(|_| lost("a length that fits"))?;
        let to = into.address.wrapping_add(GREETING_BYTES);
        let read = Endpoint::get(&key, greeting.address, &into.memory, to, length)?;
        self.reads.push((index, read));
        Ok(())
    }

    /// `services` are known: reads what was offered before.
    pub(super) fn begin(&mut self, services: &[Endpoint]) -> Result<()> {
        for (index, greeting) in std::mem::take(&mut self.early) {
            self.offered(services, index, greeting)?;
        }
        Ok(())
    }

    /// Takes note of the reads that have ended; true when there were any.
    pub(super) fn reap(&mut self) -> Result<bool> {
        let before = self.reads.len();
        let mut at = 0;
        while let Some((index, read)) = self.reads.get(at) {
            let ended = read.test().map_err(|error| {
                failed(format!("reading the greeting of service {index}: {error}"))
            })?;
            if ended {
                let (index, _) = self.reads.swap_remove(at);
                self.read.insert(index);
            } else {
                at += 1;
            }
        }
        Ok(self.reads.len() < before)
    }

    /// Whether the greetings of that many SPs are here.
    pub(super) fn are_read(&self, services: usize) -> bool {
        self.read.len() == services
    }

    /// Gives up what is under way; false while UCX still uses something.
    pub(super) fn shut(&mut self) -> bool {
        self.reads
            .retain(|(_, read)| matches!(read.test(), Ok(false)));
        self.reads.is_empty()
    }
}

fn failed(reason: impl Into<String>) -> OffloadError {
    OffloadError::Failed(reason.into())
}
